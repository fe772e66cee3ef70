"""``df.write`` and ``df.writeStream`` with ``format("jetstream")``, on a real Spark and a real server."""

from __future__ import annotations

import base64
import hashlib
import os
import signal
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from fix_spark import Driver, batches, forget_commit
from fix_threads import wait_until
from rawnats import RawClient

from jetstream_sync.server import NatsServer

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from jetstream_sync import JetStream

pytestmark = [pytest.mark.spark, pytest.mark.timeout(180)]

#: Where the notes of the deliveries ``transaction`` and ``scan`` go.
NOTES = "notes"
EXACT = ("window", "transaction", "scan")


class Target:
    """A stream that is written to, and read back without the package."""

    def __init__(self, js: JetStream, server: NatsServer, name: str) -> None:
        self.js = js
        self.server = server
        self.name = name

    def make(self, **fields: Any) -> Target:
        fields = {"storage": "memory", "duplicate_window": 600.0} | fields
        subjects = [f"{self.name}.>"]
        self.js.create_stream(name=self.name, subjects=subjects, **fields)
        return self

    def options(self, delivery: str = "window", **more: Any) -> dict[str, str]:
        """The options of a sink that writes here."""
        options = {"servers": self.server.url, "stream": self.name, "delivery": delivery, **more}
        if delivery in {"transaction", "scan"}:
            options["markerSubject"] = f"{self.name}.{NOTES}"
        return options

    def subject(self, token: str = "rows") -> str:
        return f"{self.name}.{token}"

    def stored(self) -> list[tuple[str, bytes]]:
        """Subject and payload of each message but the notes, in their order."""
        with RawClient(self.server.port) as raw:
            found = raw.stored(self.name)
        notes = f"{self.name}.{NOTES}."
        return [(each.subject, each.data) for each in found if not each.subject.startswith(notes)]

    def payloads(self) -> list[bytes]:
        return [data for _, data in self.stored()]

    def header_lines(self, seq: int) -> list[str]:
        with RawClient(self.server.port) as raw:
            message = raw.api(f"STREAM.MSG.GET.{self.name}", seq=seq)["message"]
        return base64.b64decode(message.get("hdrs", "")).decode().split("\r\n")[1:-2]


@pytest.fixture
def target(js: JetStream, nats_server: NatsServer, stream_name: str) -> Target:
    return Target(js, nats_server, stream_name)


def save(frame: DataFrame, options: dict[str, str], mode: str = "append") -> None:
    frame.write.format("jetstream").options(**options).mode(mode).save()


def refusal(call: Callable[[], object]) -> str:
    """What Spark says of a call that fails."""
    from pyspark.errors import PySparkException

    with pytest.raises(PySparkException) as error:
        call()
    return str(error.value)


def numbers(spark: SparkSession, count: int, target: Target) -> DataFrame:
    """Rows whose payloads are the numbers from 0 on, on three subjects."""
    return spark.range(count).selectExpr(
        f"concat('{target.name}.x', id % 3) AS subject", "cast(id AS string) AS data"
    )


def wanted(count: int) -> Counter[bytes]:
    return Counter(b"%d" % number for number in range(count))


# --- batches ------------------------------------------------------------------------------------


@pytest.mark.parametrize("delivery", ["at-least-once", "window", "transaction", "scan"])
def test_every_row_is_stored_once_and_intact(
    spark: SparkSession, target: Target, delivery: str
) -> None:
    """However it is delivered, each row is one message, on its subject."""
    target.make(allow_atomic=True)
    save(numbers(spark, 3000, target), target.options(delivery))
    found = target.stored()
    assert Counter(data for _, data in found) == wanted(3000)
    assert all(subject == f"{target.name}.x{int(data) % 3}" for subject, data in found)


def test_columns_become_headers_ids_and_times_to_live(spark: SparkSession, target: Target) -> None:
    """Headers, msg_id, ttl and expectations of a row are those of its message."""
    target.make(allow_msg_ttl=True)
    frame = spark.createDataFrame(
        [(target.subject(), b"\x00\xff", {"X": ["1", "2"], "Y": ["z"]}, "mine", "90s", 0, 0)],
        "subject string, data binary, headers map<string,array<string>>, msg_id string,"
        "ttl string, expected_last_sequence long, expected_last_subject_sequence long",
    )
    save(frame, target.options())
    assert target.stored() == [(target.subject(), b"\x00\xff")]
    assert sorted(target.header_lines(1)) == [
        f"Nats-Expected-Last-Sequence: 0",
        f"Nats-Expected-Last-Subject-Sequence: 0",
        f"Nats-Expected-Stream: {target.name}",
        "Nats-Msg-Id: mine",
        "Nats-TTL: 90s",
        "X: 1",
        "X: 2",
        "Y: z",
    ]


@pytest.mark.parametrize(
    "column",
    ["map('K', 'v')", "map('K', array('v'))", "array(named_struct('name', 'K', 'value', 'v'))"],
)
def test_headers_come_in_three_types(spark: SparkSession, target: Target, column: str) -> None:
    """Headers are a map to a value, a map to values, or an array of names and values."""
    target.make()
    frame = spark.range(1).selectExpr(f"{column} AS headers", "'d' AS data")
    save(frame, target.options("at-least-once", subject=target.subject()))
    assert "K: v" in target.header_lines(1)


@pytest.mark.parametrize("ttl", ["60", "60L", "60.0D", "interval '60' second", "'1m'"])
def test_a_time_to_live_is_seconds_or_a_duration(
    spark: SparkSession, target: Target, ttl: str
) -> None:
    """A ttl is a number of seconds, an interval, or text as the server takes it."""
    target.make(allow_msg_ttl=True)
    frame = spark.range(1).selectExpr(f"{ttl} AS ttl", "'d' AS data")
    save(frame, target.options(subject=target.subject()))
    lines = target.header_lines(1)
    assert "Nats-TTL: 60" in lines or "Nats-TTL: 1m" in lines


def test_null_says_nothing(spark: SparkSession, target: Target) -> None:
    """A NULL subject is the option's, and NULL headers, ids, ttls and expectations are none."""
    target.make(allow_msg_ttl=True)
    frame = spark.createDataFrame(
        [(None, "d", None, None, None, None)],
        "subject string, data string, headers map<string,array<string>>, msg_id string,"
        "ttl long, expected_last_sequence long",
    )
    save(frame, target.options("at-least-once", subject=target.subject()))
    assert target.stored() == [(target.subject(), b"d")]
    assert target.header_lines(1) == [f"Nats-Expected-Stream: {target.name}"]


def test_a_stored_header_of_another_stream_is_not_taken_for_ours(
    spark: SparkSession, target: Target
) -> None:
    """Headers that were read with a message do not say how it is stored again."""
    target.make()
    headers = (
        "map('Nats-Msg-Id', 'theirs', 'nats-expected-stream', 'ELSEWHERE', 'Nats-Batch-Id', 'b',"
        "'Nats-Expected-Last-Sequence', '99', 'Nats-Stream-Source', 'S 1', 'Keep', 'it')"
    )
    frame = spark.range(1).selectExpr(f"{headers} AS headers", "'d' AS data", "'ours' AS msg_id")
    save(frame, target.options(subject=target.subject()))
    assert sorted(target.header_lines(1)) == [
        "Keep: it",
        f"Nats-Expected-Stream: {target.name}",
        "Nats-Msg-Id: ours",
    ]


def test_equal_rows_are_as_many_messages(spark: SparkSession, target: Target) -> None:
    """Rows with the same content are not duplicates of each other."""
    target.make()
    frame = spark.range(1000).selectExpr("cast(id % 7 AS string) AS data").coalesce(1)
    save(frame, target.options(subject=target.subject()))
    assert Counter(target.payloads()) == Counter(b"%d" % (number % 7) for number in range(1000))


@pytest.mark.parametrize("delivery", EXACT)
@pytest.mark.parametrize("ids", ["content", "position"])
def test_a_job_with_an_id_is_written_once_however_often_it_runs(
    spark: SparkSession, target: Target, delivery: str, ids: str
) -> None:
    """With the same jobId a second run finds its rows in the stream."""
    target.make(allow_atomic=True)
    for _ in range(2):
        frame = numbers(spark, 2500, target)
        save(frame, target.options(delivery, jobId="import 7", ids=ids))
    assert Counter(target.payloads()) == wanted(2500)
    save(numbers(spark, 10, target), target.options(delivery, jobId="import 8", ids=ids))
    assert len(target.payloads()) == 2510


def test_no_rows_are_no_messages(spark: SparkSession, target: Target) -> None:
    """An empty DataFrame leaves the stream as it is."""
    target.make()
    save(numbers(spark, 0, target), target.options())
    assert target.payloads() == []


def test_overwriting_empties_the_stream_only_where_that_is_said(
    spark: SparkSession, target: Target
) -> None:
    """The mode overwrite is refused, or with overwriteMode=purge leaves the new rows alone."""
    target.make()
    save(numbers(spark, 5, target), target.options())
    said = refusal(lambda: save(numbers(spark, 3, target), target.options(), "overwrite"))
    assert "overwriteMode" in said
    assert len(target.payloads()) == 5
    save(numbers(spark, 3, target), target.options(overwriteMode="purge"), "overwrite")
    assert Counter(target.payloads()) == wanted(3)
    save(numbers(spark, 0, target), target.options(overwriteMode="purge"), "overwrite")
    assert target.payloads() == []


# --- what is refused ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        (["'x' AS body"], "'body'"),
        (["'x' AS data", "1 AS colour"], "'colour'"),
        (["'x' AS subject"], "'data'"),
        (["1 AS data"], "binary or string"),
        (["'x' AS data", "1 AS subject"], "string"),
        (["'x' AS data", "map(1, 'x') AS headers"], "map<string,string>"),
        (["'x' AS data", "true AS ttl"], "ttl"),
        (["'x' AS data", "'x' AS DATA"], "twice"),
    ],
)
def test_columns_are_checked_before_any_task(
    spark: SparkSession, target: Target, columns: list[str], said: str
) -> None:
    """A column that is unknown, missing or of another type is an error on the driver."""
    target.make()
    spark.conf.set("spark.sql.caseSensitive", "true")
    try:
        frame = spark.range(1).selectExpr(*columns)
        error = refusal(lambda: save(frame, target.options(subject=target.subject())))
    finally:
        spark.conf.unset("spark.sql.caseSensitive")
    assert said in error
    assert "Task" not in error.split("\n")[0]
    assert target.payloads() == []


@pytest.mark.parametrize(
    ("fields", "options", "said"),
    [
        ({}, {"delivery": "transaction"}, "allow_atomic"),
        ({"retention": "interest"}, {"delivery": "scan"}, "only while somebody wants it"),
        ({"retention": "workqueue"}, {"delivery": "scan"}, "lets go of what was worked on"),
        ({"no_ack": True}, {}, "no_ack"),
        ({"duplicate_window": 1.0}, {"onShortWindow": "error"}, "duplicate_window"),
        ({}, {"subject": "elsewhere"}, "'elsewhere'"),
    ],
)
def test_a_stream_that_can_not_take_rows_so_is_found_out_on_the_driver(
    spark: SparkSession,
    target: Target,
    fields: dict[str, Any],
    options: dict[str, str],
    said: str,
) -> None:
    """The error names the setting of the stream that is in the way."""
    target.make(**fields)
    chosen = target.options(**{"subject": target.subject(), **options})
    error = refusal(lambda: save(spark.range(1).selectExpr("'x' AS data"), chosen))
    assert said in error
    assert target.payloads() == []


def test_a_missing_stream_is_named(spark: SparkSession, target: Target) -> None:
    """Nothing is written where the stream does not exist."""
    frame = spark.range(1).selectExpr("'x' AS data")
    error = refusal(lambda: save(frame, target.options(subject=target.subject())))
    assert f"no stream {target.name!r}" in error


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({"data": None}, "data is NULL"),
        ({"subject": None}, "subject is NULL"),
        ({"subject": "a..b"}, "empty token"),
        ({"subject": "nobody.takes.this"}, "no stream takes"),
        ({"headers": {"a b": ["x"]}}, "a b"),
        ({"headers": {"A": ["x\ny"]}}, "line break"),
        ({"headers": {"A": [None]}}, "NULL"),
        ({"msg_id": "a\r\nb"}, "line break"),
        ({"ttl": "soon"}, "ttl"),
        ({"expected": 4711}, "wrong last sequence"),
        ({"data": b"SECRET" * 200_000}, "max_payload"),
    ],
)
def test_a_row_that_can_not_be_stored_is_named_without_its_payload(
    spark: SparkSession, target: Target, row: dict[str, Any], said: str
) -> None:
    """The error says which row of which partition, and never shows what is in it."""
    target.make(allow_msg_ttl=True)
    good = {
        "subject": target.subject(),
        "data": b"SECRET",
        "headers": None,
        "msg_id": None,
        "ttl": None,
        "expected": None,
    }
    rows = [tuple(good.values())] * 17 + [tuple((good | row).values())]
    names = "subject string, data binary, headers map<string,array<string>>, msg_id string,"
    frame = spark.createDataFrame(rows, f"{names} ttl string, expected_last_sequence long")
    error = refusal(lambda: save(frame.coalesce(1), target.options("at-least-once")))
    assert "row 17 of partition 0" in error
    assert said in error
    assert "SECRET" not in error


def test_another_streams_subject_is_a_row_error(
    spark: SparkSession, target: Target, js: JetStream
) -> None:
    """A row for a subject of another stream is refused by that, and named."""
    target.make()
    js.create_stream(name=f"{target.name}_other", subjects=["other.>"], storage="memory")
    rows = [(target.subject(), "1"), ("other.x", "2")]
    frame = spark.createDataFrame(rows, "subject string, data string").coalesce(1)
    error = refusal(lambda: save(frame, target.options()))
    assert "row 1 of partition 0 (subject 'other.x')" in error
    assert "expected stream does not match" in error


def test_a_full_stream_is_a_row_error(spark: SparkSession, target: Target) -> None:
    """A stream that takes no more refuses the first row that has no place."""
    target.make(max_msgs=10, discard="new")
    frame = numbers(spark, 12, target).coalesce(1)
    error = refusal(lambda: save(frame, target.options()))
    assert "row 10 of partition 0" in error
    assert "maximum messages exceeded" in error


def test_a_message_id_that_an_atomic_batch_can_not_have_is_explained(
    spark: SparkSession, target: Target
) -> None:
    """A transaction is refused whole where a msg_id of it is in the stream already."""
    target.make(allow_atomic=True)
    target.js.publish(target.subject(), b"first", msg_id="a")
    frame = spark.createDataFrame([("2", "a"), ("3", "b")], "data string, msg_id string").coalesce(1)
    options = target.options("transaction", subject=target.subject())
    assert "has a msg_id that is in the stream already" in refusal(lambda: save(frame, options))
    assert target.payloads() == [b"first"]


def test_secrets_are_in_no_error(spark: SparkSession, target: Target) -> None:
    """Neither a login nor the URL with it is shown when writing fails."""
    target.make()
    port = target.server.port
    options = target.options(subject=target.subject()) | {
        "servers": f"nats://joe:hunter2@127.0.0.1:{port}"
    }
    frame = spark.range(1).selectExpr("cast(NULL AS string) AS data")
    error = refusal(lambda: save(frame, options))
    assert "data is NULL" in error
    assert "hunter2" not in error
    unknown = target.options(subject=target.subject()) | {"password": "hunter2", "user": "u"}
    assert "hunter2" not in refusal(lambda: save(frame, {**unknown, "colour": "red"}))
