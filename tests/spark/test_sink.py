"""``df.write`` and ``df.writeStream`` with ``format("jetstream")``, with real Spark and nats-server."""

from __future__ import annotations

import base64
import hashlib
import io
import re
import textwrap
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from fixtures.rawnats import RawClient
from fixtures.spark import Driver, batches, forget_commit, need_java
from fixtures.threads import wait_until

from jetstream_sync.server import NatsServer

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from jetstream_sync import JetStream

pytestmark = [pytest.mark.spark, pytest.mark.timeout(120)]

#: The subject prefix of the write checkpoints of ``transaction``.
NOTES = "notes"
EXACT = ("window", "transaction")
FROM_KAFKA = Path(__file__).parents[2] / "docs/howto/spark-from-kafka.rst"


class SinkStream:
    """The target stream, read back without the package under test."""

    def __init__(self, js: JetStream, server: NatsServer, name: str) -> None:
        self.js = js
        self.server = server
        self.name = name

    def make(self, **fields: Any) -> SinkStream:
        fields = {"storage": "memory", "duplicate_window": 600.0} | fields
        subjects = [f"{self.name}.>"]
        self.js.create_stream(name=self.name, subjects=subjects, **fields)
        return self

    def options(self, delivery: str = "window", **more: Any) -> dict[str, str]:
        """Return sink options for this stream."""
        options = {"servers": self.server.url, "stream": self.name, "delivery": delivery, **more}
        if delivery == "transaction":
            options["markerSubject"] = f"{self.name}.{NOTES}"
        return options

    def subject(self, token: str = "rows") -> str:
        return f"{self.name}.{token}"

    def stored(self) -> list[tuple[str, bytes]]:
        """Return subject and payload of each message except write checkpoints, in order."""
        with RawClient(self.server.port) as raw:
            found = raw.stored(self.name)
        notes = f"{self.name}.{NOTES}."
        return [(item.subject, item.data) for item in found if not item.subject.startswith(notes)]

    def payloads(self) -> list[bytes]:
        return [data for _, data in self.stored()]

    def header_lines(self, seq: int) -> list[str]:
        with RawClient(self.server.port) as raw:
            message = raw.api(f"STREAM.MSG.GET.{self.name}", seq=seq)["message"]
        return base64.b64decode(message.get("hdrs", "")).decode().split("\r\n")[1:-2]


@pytest.fixture
def target(js: JetStream, nats_server: NatsServer, stream_name: str) -> SinkStream:
    return SinkStream(js, nats_server, stream_name)


def save(frame: DataFrame, options: dict[str, str], mode: str = "append") -> None:
    frame.write.format("jetstream").options(**options).mode(mode).save()


def refusal(call: Callable[[], object]) -> str:
    """Return the error text of a call that must fail."""
    from pyspark.errors import PySparkException

    with pytest.raises(PySparkException) as error:
        call()
    return str(error.value)


def numbers(spark: SparkSession, count: int, target: SinkStream) -> DataFrame:
    """Return rows whose payloads are the numbers from 0 on, on three subjects."""
    return spark.range(count).selectExpr(
        f"concat('{target.name}.x', id % 3) AS subject", "cast(id AS string) AS data"
    )


def wanted(count: int) -> Counter[bytes]:
    return Counter(b"%d" % number for number in range(count))


# --- batches ------------------------------------------------------------------------------------


@pytest.mark.parametrize("delivery", ["at-least-once", *EXACT])
def test_every_row_is_stored_once_and_intact(spark, target, delivery):
    """Each row becomes one message on its subject, in each delivery mode."""
    target.make(allow_atomic=True)
    save(numbers(spark, 3000, target), target.options(delivery))
    found = target.stored()
    assert Counter(data for _, data in found) == wanted(3000)
    assert all(subject == f"{target.name}.x{int(data) % 3}" for subject, data in found)


def test_columns_become_headers_ids_and_times_to_live(spark, target):
    """Headers, msg_id, ttl and expectations of a row become headers of its message."""
    target.make(allow_msg_ttl=True)
    frame = spark.createDataFrame(
        [(target.subject(), b"\x00\xff", {"X": ["1", "2"], "Y": ["z"]}, "mine", "90s", 0, 0)],
        "subject string, data binary, headers map<string,array<string>>, msg_id string,"
        "ttl string, expected_last_sequence long, expected_last_subject_sequence long",
    )
    save(frame, target.options())
    assert target.stored() == [(target.subject(), b"\x00\xff")]
    assert sorted(target.header_lines(1)) == [
        "Nats-Expected-Last-Sequence: 0",
        "Nats-Expected-Last-Subject-Sequence: 0",
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
def test_headers_come_in_three_types(spark, target, column):
    """Headers can be a map to values, a map to lists of values, or an array of names and values."""
    target.make()
    frame = spark.range(1).selectExpr(f"{column} AS headers", "'d' AS data")
    save(frame, target.options("at-least-once", subject=target.subject()))
    assert "K: v" in target.header_lines(1)


@pytest.mark.parametrize("ttl", ["60.0D", "interval '60' second"])
def test_a_time_to_live_is_seconds_or_an_interval(spark, target, ttl):
    """A ttl can be a number of seconds or an interval; for texts see test_rows.py."""
    target.make(allow_msg_ttl=True)
    frame = spark.range(1).selectExpr(f"{ttl} AS ttl", "'d' AS data")
    save(frame, target.options(subject=target.subject()))
    assert "Nats-TTL: 60" in target.header_lines(1)


def test_an_empty_data_frame(spark, target):
    """An empty DataFrame stores nothing."""
    target.make()
    save(numbers(spark, 0, target), target.options())
    assert target.payloads() == []


@pytest.mark.full
def test_mode_overwrite_needs_an_option(spark, target):
    """Mode overwrite is refused, or leaves only the new rows with overwriteMode=purge."""
    target.make()
    save(numbers(spark, 5, target), target.options())
    said = refusal(lambda: save(numbers(spark, 3, target), target.options(), "overwrite"))
    assert "overwriteMode" in said
    assert len(target.payloads()) == 5
    save(numbers(spark, 3, target), target.options(overwriteMode="purge"), "overwrite")
    assert Counter(target.payloads()) == wanted(3)
    save(numbers(spark, 0, target), target.options(overwriteMode="purge"), "overwrite")
    assert target.payloads() == []


@pytest.mark.full
def test_mode_overwrite_of_a_stream_that_denies_purges(spark, target):
    """Mode overwrite is refused before rows are stored where the earlier messages cannot be purged."""
    target.make(deny_purge=True)
    save(numbers(spark, 5, target), target.options())
    given = target.options(overwriteMode="purge")
    said = refusal(lambda: save(numbers(spark, 3, target), given, "overwrite"))
    assert "deny_purge" in said
    assert len(target.payloads()) == 5


# --- refusals -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        (["'x' AS data", "1 AS colour"], "'colour'"),
        (["'x' AS data", "map(1, 'x') AS headers"], "map<string,string>"),
        (["'x' AS data", "'x' AS DATA"], "duplicated"),
    ],
)
@pytest.mark.full
def test_columns_are_checked_before_any_task(spark, target, columns, said):
    """An unknown or missing column, or one of the wrong type, fails on the driver."""
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
        (
            {"retention": "interest", "allow_atomic": True},
            {"delivery": "transaction"},
            "interest retention",
        ),
        (
            {"retention": "workqueue", "allow_atomic": True},
            {"delivery": "transaction"},
            "is a work queue",
        ),
        ({"no_ack": True}, {}, "no_ack"),
        ({"duplicate_window": 1.0}, {"onShortWindow": "error"}, "duplicate_window"),
        ({}, {"subject": "elsewhere"}, "'elsewhere'"),
    ],
)
def test_an_unsuitable_stream_fails_on_the_driver(spark, target, fields, options, said):
    """The error names the setting of the stream that prevents the write."""
    target.make(**fields)
    chosen = target.options(**{"subject": target.subject(), **options})
    error = refusal(lambda: save(spark.range(1).selectExpr("'x' AS data"), chosen))
    assert said in error
    assert target.payloads() == []


def test_a_missing_stream_is_named(spark, target):
    """Writing to a stream that does not exist fails without writing anything."""
    frame = spark.range(1).selectExpr("'x' AS data")
    error = refusal(lambda: save(frame, target.options(subject=target.subject())))
    assert f"stream {target.name!r} does not exist" in error


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({"subject": "not.stored.anywhere"}, "does not store it"),
        ({"headers": {"A\n": ["x"]}}, "header"),
        ({"expected": 4711}, "wrong last sequence"),
        ({"data": b"SECRET" * 200_000}, "max_payload"),
    ],
)
@pytest.mark.full
def test_a_row_error_names_the_row_without_its_payload(spark, target, row, said):
    """The error names row and partition, and never shows the payload."""
    target.make(allow_msg_ttl=True)
    good = {"subject": target.subject(), "data": b"SECRET", "headers": None, "expected": None}
    rows = [tuple(good.values())] * 17 + [tuple((good | row).values())]
    names = "subject string, data binary, headers map<string,array<string>>"
    frame = spark.createDataFrame(rows, f"{names}, expected_last_sequence long")
    error = refusal(lambda: save(frame.coalesce(1), target.options("at-least-once")))
    assert "row 17 of partition 0" in error
    assert said in error
    assert "SECRET" not in error


@pytest.mark.full
def test_a_subject_of_another_stream_is_a_row_error(spark, target, js):
    """A row whose subject belongs to another stream is refused, with a row error."""
    target.make()
    js.create_stream(name=f"{target.name}_other", subjects=["other.>"], storage="memory")
    rows = [(target.subject(), "1"), ("other.x", "2")]
    frame = spark.createDataFrame(rows, "subject string, data string").coalesce(1)
    error = refusal(lambda: save(frame, target.options()))
    assert "row 1 of partition 0 (subject 'other.x')" in error
    assert "does not store it" in error


def test_a_full_stream_is_a_row_error(spark, target):
    """A full stream refuses the first row that does not fit, with a row error."""
    target.make(max_msgs=10, discard="new")
    frame = numbers(spark, 12, target).coalesce(1)
    error = refusal(lambda: save(frame, target.options()))
    assert "row 10 of partition 0" in error
    assert "maximum messages exceeded" in error


@pytest.mark.full
def test_a_duplicate_message_id_in_a_transaction_is_explained(spark, target):
    """A transaction is refused as a whole if the stream contains one of its msg_id values."""
    target.make(allow_atomic=True)
    target.js.publish(target.subject(), b"first", msg_id="a")
    frame = spark.createDataFrame([("2", "a"), ("3", "b")], "data string, msg_id string").coalesce(
        1
    )
    options = target.options("transaction", subject=target.subject())
    assert "its msg_id is already in the stream" in refusal(lambda: save(frame, options))
    assert target.payloads() == [b"first"]


# --- streaming queries --------------------------------------------------------------------------


class Lines:
    """Files of lines that a query reads, one file for each micro-batch."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "in"
        self.folder.mkdir()
        self.checkpoint = folder / "checkpoint"
        self.count = 0

    def add(self, count: int) -> None:
        lines = "".join(f"{number}\n" for number in range(self.count, self.count + count))
        self.count += count
        (self.folder / f"{len(list(self.folder.iterdir())):04}.txt").write_text(lines)

    def read(self, spark: SparkSession) -> DataFrame:
        """Return the lines as column ``data``, in two partitions by content."""
        files = spark.readStream.option("maxFilesPerTrigger", 1).text(str(self.folder))
        return files.selectExpr("value AS data").repartition(2, "data")

    def write(self, frame: DataFrame, options: dict[str, str], mode: str = "append") -> None:
        """Write everything that is available, and wait for the end of the query."""
        query = (
            frame.writeStream.format("jetstream")
            .options(**options)
            .option("checkpointLocation", str(self.checkpoint))
            .outputMode(mode)
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(90)


@pytest.fixture
def lines(tmp_path: Path) -> Lines:
    return Lines(tmp_path)


def digest(payloads: list[bytes]) -> str:
    return hashlib.sha256(b"\n".join(sorted(payloads))).hexdigest()


@pytest.mark.matrix
@pytest.mark.parametrize("delivery", EXACT)
def test_a_repeated_batch_is_stored_once(spark, target, lines, delivery):
    """Rows of a batch that was written but not committed are not stored again."""
    target.make(allow_atomic=True)
    options = target.options(delivery, subject=target.subject())
    for _ in range(2):
        lines.add(3000)
        lines.write(lines.read(spark), options)
        before = digest(target.payloads())
        forget_commit(lines.checkpoint, batches(lines.checkpoint)[-1])
        lines.write(lines.read(spark), options)
        assert digest(target.payloads()) == before
    assert Counter(target.payloads()) == wanted(6000)


@pytest.mark.full
def test_a_target_that_was_restored_is_an_error(spark, target, lines):
    """A query whose target was restored to an earlier state fails and stores nothing, also after empty batches."""
    from pyspark.errors import StreamingQueryException

    target.make(allow_atomic=True, storage="file")
    options = target.options("transaction", subject=target.subject())
    backup = io.BytesIO()
    lines.add(10)
    lines.write(lines.read(spark), options)
    with target.js.get_stream(target.name).snapshot() as snapshot:
        snapshot.write_to(backup)
    backup.seek(0)
    lines.add(0)
    lines.write(lines.read(spark), options)
    target.js.delete_stream(target.name)
    target.js.restore_stream(snapshot.info, backup)
    lines.add(10)
    with pytest.raises(StreamingQueryException, match="ends with batch 0 of the query"):
        lines.write(lines.read(spark), options)
    assert Counter(target.payloads()) == wanted(10)
    lines.write(lines.read(spark), options | {"queryId": "another"})
    assert Counter(target.payloads()) == wanted(20)


@pytest.mark.matrix
@pytest.mark.parametrize("delivery", EXACT)
@pytest.mark.full
def test_an_interrupted_batch_is_completed_by_the_next_run(
    spark, target, lines, tmp_path, delivery
):
    """After a query fails in the middle of its rows, a restart adds the missing ones."""
    from pyspark.errors import StreamingQueryException

    target.make(allow_atomic=True)
    broken, stream, port = tmp_path / "broken", target.name, target.server.port

    def break_off(parts: Iterator[Any]) -> Iterator[Any]:
        rows = 0
        for part in parts:
            rows += part.num_rows
            yield part
            if rows >= 15_000 and not broken.exists():
                broken.touch()
                with RawClient(port) as raw:
                    wait_until(lambda: raw.api(f"STREAM.INFO.{stream}")["state"]["messages"], 30)
                raise RuntimeError("breaks off")

    lines.add(20_000)
    files = spark.readStream.text(str(lines.folder)).selectExpr("value AS data")
    frame = files.mapInArrow(break_off, "data string")
    options = target.options(delivery, subject=target.subject())
    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "500")
    try:
        with pytest.raises(StreamingQueryException, match="breaks off"):
            lines.write(frame, options)
        assert 0 < len(target.payloads()) < 20_000
        lines.write(frame, options)
    finally:
        spark.conf.unset("spark.sql.execution.arrow.maxRecordsPerBatch")
    assert Counter(target.payloads()) == wanted(20_000)


@pytest.mark.full
def test_complete_mode_replaces_the_messages(spark, target, lines):
    """Output mode complete is an overwrite: refused, or only the last result remains."""
    from pyspark.errors import StreamingQueryException

    target.make()
    lines.add(10)
    lines.add(10)
    files = spark.readStream.option("maxFilesPerTrigger", 1).text(str(lines.folder))
    counts = files.selectExpr("cast(value % 2 AS string) AS odd").groupBy("odd").count()
    frame = counts.selectExpr("concat(odd, '=', count) AS data")
    options = target.options(subject=target.subject())
    with pytest.raises(StreamingQueryException, match="overwriteMode"):
        lines.write(frame, options, "complete")
    lines.write(frame, options | {"overwriteMode": "purge"}, "complete")
    assert sorted(target.payloads()) == [b"0=10", b"1=10"]


def test_rows_of_the_source_are_written(spark, target):
    """All columns of the source are accepted, and those that cannot be stored are ignored."""
    target.make()
    save(numbers(spark, 3, target), target.options("at-least-once"))
    read = spark.read.format("jetstream").option("servers", target.server.url).load(target.name)
    copy = read.write.format("jetstream").option("servers", target.server.url)
    copy.option("delivery", "at-least-once").mode("append").save(target.name)
    stored = target.stored()
    assert stored[3:] == stored[:3]


def test_insert_into_a_view(spark, target):
    """A temporary view is written by order and by name; a table loses its options."""
    target.make()
    options = f"OPTIONS (servers '{target.server.url}', stream '{target.name}')"
    columns = "(data string, subject string)"
    spark.sql(f"CREATE TEMPORARY VIEW written {columns} USING jetstream {options}")
    try:
        spark.sql(f"INSERT INTO written VALUES ('one', '{target.subject()}')")
        spark.sql(f"INSERT INTO written (subject, data) VALUES ('{target.subject()}', 'two')")
    finally:
        spark.sql("DROP VIEW written")
    assert target.payloads() == [b"one", b"two"]
    said = refusal(lambda: spark.sql(f"CREATE TABLE lost USING jetstream {options}"))
    assert "use CREATE TEMPORARY VIEW" in said


@pytest.mark.full
def test_write_to_a_table(spark, target):
    """``writeTo`` writes with the options of the call; the table itself has none."""
    target.make()
    rows = spark.createDataFrame([("one",)], ["data"])
    options = target.options(subject=target.subject())
    try:
        rows.writeTo("listed").using("jetstream").options(**options).create()
        rows.writeTo("listed").options(**options).append()
        assert "CREATE TABLE loses its options" in refusal(lambda: spark.table("listed").count())
    finally:
        spark.sql("DROP TABLE listed")
    assert target.payloads() == [b"one"] * 2


@pytest.mark.full
def test_update_mode_with_foreach_batch(spark, target, lines, tmp_path):
    """
    A repeated batch of foreachBatch stores each row once, and a query with a new checkpoint stores its own.

    The code is that of the page.
    """
    blocks = re.findall(r"code-block:: python\n\n((?:\n|   .*\n)+)", FROM_KAFKA.read_text("utf-8"))
    (block,) = (textwrap.dedent(item) for item in blocks if ".foreachBatch(" in item)
    target.make()
    lines.add(4)
    counts = lines.read(spark).groupBy("data").count().selectExpr("cast(count AS string) AS data")
    code = block.replace('"TOTALS"', repr(target.name)).replace('"totals"', repr(target.subject()))
    given = {"servers": target.server.url, "totals": counts}
    for checkpoint in (tmp_path / "first", tmp_path / "first", tmp_path / "second"):
        options = f'option("checkpointLocation", {str(checkpoint)!r}).trigger(availableNow=True)'
        exec(code.replace(".start()", f".{options}.start()"), given)
        given["query"].awaitTermination()
        forget_commit(checkpoint, 0)
    assert target.payloads() == [b"1"] * 8


def test_a_query_has_no_job_id(spark, target, lines):
    """A jobId is refused for streaming queries, which have the id of their checkpoint."""
    from pyspark.errors import StreamingQueryException

    target.make()
    lines.add(1)
    options = target.options(subject=target.subject(), jobId="j")
    with pytest.raises(StreamingQueryException, match="jobId"):
        lines.write(lines.read(spark), options)


RETRIES = """
import sys
from pathlib import Path

spark = session(home, "local[2,4]")

def lose(folder):
    "Fail each task once, when all of its rows were written."
    def run(parts):
        from pyspark import TaskContext
        for part in parts:
            yield part
        lost = Path(folder, str(TaskContext.get().partitionId()))
        if not lost.exists():
            lost.touch()
            raise RuntimeError("lost")
    return run

for delivery, stream in TARGETS.items():
    Path(stream).mkdir()
    frame = spark.range(4000).repartition(2).selectExpr("cast(id AS string) AS data")
    options = {"servers": URL, "stream": stream, "delivery": delivery, "subject": stream + ".rows"}
    if delivery == "transaction":
        options["markerSubject"] = stream + ".notes"
    lost = frame.mapInArrow(lose(stream), "data string")
    lost.write.format("jetstream").options(**options).mode("append").save()
    assert len(list(Path(stream).iterdir())) == 2, list(Path(stream).iterdir())
print("written")
spark.stop()
"""


@pytest.mark.full
@pytest.mark.timeout(240)
def test_a_repeated_task_stores_its_rows_once(js, nats_server, stream_name, tmp_path):
    """A task that fails after its last row stores its rows once when Spark repeats it."""
    need_java()
    targets = {
        delivery: SinkStream(js, nats_server, f"{stream_name}_{delivery}").make(allow_atomic=True)
        for delivery in EXACT
    }
    names = {delivery: target.name for delivery, target in targets.items()}
    code = f"TARGETS = {names!r}\nURL = {nats_server.url!r}\n{RETRIES}"
    with Driver(code, tmp_path) as driver:
        driver.wait_for("written", 120)
        assert driver.ended() == 0
    for target in targets.values():
        assert Counter(target.payloads()) == wanted(4000)


@pytest.mark.full
def test_short_duplicate_window_is_logged_once(spark, spark_home, target, lines):
    """A duplicate window below expectedRecovery is logged once, not for each micro-batch."""
    target.make(duplicate_window=1.0)
    for _ in range(4):
        lines.add(10)
    lines.write(lines.read(spark), target.options(subject=target.subject()))
    assert len(target.payloads()) == 40
    warning = f"the duplicate_window of stream {target.name!r}"
    wait_until(lambda: warning in spark_home.output.read_text(), 20)
    assert spark_home.output.read_text().count(warning) == 1
