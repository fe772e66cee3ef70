"""Deliveries of one partition, and the helpers for tasks, against a real server."""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest
from fix_threads import wait_until, within
from rawnats import RawClient

import jetstream_sync
from jetstream_sync.errors import (
    ConsumerNotFoundError,
    InvalidArgumentError,
    InvalidOptionError,
    NoRespondersError,
    PermissionsError,
    TimeoutError,
)
from jetstream_sync.server import NatsServer
from jetstream_sync.spark.options import WriteOptions
from jetstream_sync.spark.task_helpers import (
    plan_ranges,
    publish_partition,
    read_range,
    read_range_batches,
)
from jetstream_sync.spark.work_queue import WORK_DDL, acknowledge, take_work
from jetstream_sync.spark.writing.message_ids import WriteTaskId
from jetstream_sync.spark.writing.rows import RowColumns, RowLayout
from jetstream_sync.spark.writing.transactions import AtomicBatchSender
from jetstream_sync.spark.writing.write_errors import RowError, SinkError
from jetstream_sync.spark.writing.write_plan import WritePlan, Written, check_target

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from jetstream_sync import Connection, JetStream, Msg
    from jetstream_sync.server import NatsCluster

pytestmark = [pytest.mark.spark, pytest.mark.timeout(120)]

EXACT = ("window", "transaction", "scan")
LAYOUT = RowLayout.of_names(("data",))
STREAM = "OUT"

Payloads = list[bytes]


def make_stream(server: NatsServer, **fields: Any) -> None:
    fields = {"duplicate_window": 600.0, "allow_atomic": True, "storage": "memory"} | fields
    with jetstream_sync.connect(server.url) as nc:
        nc.jetstream().create_stream(name=STREAM, subjects=["out.>"], **fields)


def delivery(server: NatsServer, kind: str, **options: str) -> WritePlan:
    """A delivery to the stream, of rows that are payloads alone."""
    given = {"servers": server.url, "stream": STREAM, "subject": "out.rows", "delivery": kind}
    if kind in {"transaction", "scan"}:
        given["markerSubject"] = "out.notes"
    wanted = WriteOptions.from_options(given | options)
    with jetstream_sync.connect(server.url) as nc:
        target = check_target(nc.jetstream(), wanted, LAYOUT)
    return WritePlan(options=wanted, layout=LAYOUT, target=target)


def origin(batch: int = 0, partition: int = 0) -> WriteTaskId:
    return WriteTaskId(name="query", batch=batch, partition=partition)


def numbered(start: int, end: int) -> Payloads:
    return [b"%d" % number for number in range(start, end)]


def columns(rows: Payloads, size: int = 100) -> Iterator[RowColumns]:
    """Rows as Spark brings them, some at a time."""
    for start in range(0, len(rows), size):
        yield LAYOUT.columns([rows[start : start + size]])


class BreaksOffError(Exception):
    """What ends the first attempt."""


def broken_off(rows: Payloads, count: int) -> Iterator[RowColumns]:
    """The first rows, and then an error."""
    yield from columns(rows[:count])
    raise BreaksOffError


def payloads(server: NatsServer) -> Payloads:
    """What is on the subject of rows, in its order."""
    with RawClient(server.port) as raw:
        return [each.data for each in raw.stored(STREAM) if each.subject == "out.rows"]


def assert_once(server: NatsServer, rows: Payloads) -> None:
    found = Counter(payloads(server))
    assert found == Counter(rows), found - Counter(rows) or Counter(rows) - found


def window_over(server: NatsServer, kind: str) -> None:
    """Wait until the stream has forgotten the ids that it knows now."""
    with jetstream_sync.connect(server.url) as nc:
        js = nc.jetstream()
        js.publish("out.probe", b"", msg_id=kind)
        wait_until(lambda: not js.publish("out.probe", b"", msg_id=kind).duplicate, 10)


@pytest.fixture
def server(nats_server: NatsServer, js: JetStream) -> NatsServer:
    """The shared server, whose streams go at the end."""
    del js
    return nats_server


# --- one attempt, and another --------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["at-least-once", *EXACT])
def test_what_was_written_is_accounted_for(server: NatsServer, kind: str) -> None:
    """The account has the rows, their bytes, and the sequences between which they are."""
    make_stream(server)
    rows = numbered(0, 2500)
    written = delivery(server, kind).write(origin(), columns(rows))
    assert_once(server, rows)
    with RawClient(server.port) as raw:
        stored = raw.stored(STREAM)
    assert written == Written(
        partition=0,
        rows=2500,
        duplicates=0,
        bytes=sum(map(len, rows)),
        first_seq=stored[0].seq,
        last_seq=stored[-1].seq,
    )


@pytest.mark.parametrize("kind", EXACT)
@pytest.mark.parametrize("ids", ["content", "position"])
@pytest.mark.parametrize("stored", [0, 1, 700, 2300, 2500])
def test_a_second_attempt_adds_what_is_missing(
    server: NatsServer, kind: str, ids: str, stored: int
) -> None:
    """However far the first attempt came, after the second one each row is there once."""
    make_stream(server)
    rows = numbered(0, 2500)
    write = delivery(server, kind, ids=ids).write
    with pytest.raises(BreaksOffError):
        write(origin(), broken_off(rows, stored))
    written = write(origin(), columns(rows))
    assert written.rows == 2500
    assert_once(server, rows)
    again = write(origin(), columns(rows))
    assert (again.rows, again.duplicates) == (2500, 2500)
    assert_once(server, rows)


@pytest.mark.parametrize("kind", EXACT)
def test_a_second_attempt_may_see_the_rows_in_another_order(server: NatsServer, kind: str) -> None:
    """Ids and batches are made of what is in a row, so that its place does not matter."""
    make_stream(server)
    rows = numbered(0, 2000) + numbered(0, 300)
    write = delivery(server, kind).write
    with pytest.raises(BreaksOffError):
        write(origin(), broken_off(rows, 1500))
    write(origin(), columns(rows[::-1]))
    write(origin(), columns(rows))
    assert_once(server, rows)


@pytest.mark.parametrize("kind", EXACT)
def test_batches_and_partitions_are_apart(server: NatsServer, kind: str) -> None:
    """Equal rows of another batch, partition or query are rows of their own."""
    make_stream(server)
    rows = numbered(0, 50)
    write = delivery(server, kind).write
    for each in (
        origin(),
        origin(1),
        origin(1, 1),
        WriteTaskId(name="other", batch=0, partition=0),
    ):
        assert write(each, columns(rows)).duplicates == 0
    assert_once(server, rows * 4)


@pytest.mark.parametrize("kind", ["transaction", "scan"])
@pytest.mark.parametrize("stored", [700, 2300, 2500])
def test_no_outage_is_too_long(server: NatsServer, kind: str, stored: int) -> None:
    """Where the stream has forgotten the ids, what was stored is still not stored again."""
    make_stream(server, duplicate_window=0.2)
    rows = numbered(0, 2500)
    write = delivery(server, kind, ids="position").write
    with pytest.raises(BreaksOffError):
        write(origin(), broken_off(rows, stored))
    window_over(server, kind)
    written = write(origin(), columns(rows))
    assert written.rows == 2500
    assert_once(server, rows)


def test_a_window_that_is_over_lets_rows_in_again(
    server: NatsServer, caplog: pytest.LogCaptureFixture
) -> None:
    """That is what delivery=window can not do, and what is warned of, once."""
    make_stream(server, duplicate_window=0.2)
    rows = numbered(0, 100)
    write = delivery(server, "window").write
    delivery(server, "window")
    said = [each.message for each in caplog.records if "duplicate_window" in each.message]
    assert len(said) == 1
    write(origin(), columns(rows))
    window_over(server, "window")
    write(origin(), columns(rows))
    assert_once(server, rows * 2)


@pytest.mark.parametrize("kind", ["transaction", "scan"])
def test_an_attempt_at_an_old_batch_writes_nothing(server: NatsServer, kind: str) -> None:
    """A task that was given up, and wakes after a later batch is through, stores nothing."""
    make_stream(server, duplicate_window=0.2)
    write = delivery(server, kind).write
    write(origin(4), columns(numbered(0, 10)))
    write(origin(5), columns(numbered(10, 20)))
    window_over(server, kind)
    write(origin(4), columns(numbered(0, 10)))
    assert_once(server, numbered(0, 20))


@pytest.mark.parametrize("kind", EXACT)
@pytest.mark.parametrize("ids", ["content", "position"])
def test_an_attempt_whose_rows_end_too_early_is_not_taken_for_all(
    server: NatsServer, kind: str, ids: str
) -> None:
    """A task that Spark cuts off sees the end of its rows; another attempt stores the others."""
    make_stream(server)
    rows = numbered(0, 2500)
    write = delivery(server, kind, ids=ids).write
    for count in (1300, 100, 2500):
        assert write(origin(), columns(rows[:count])).rows == count
    assert_once(server, rows)


def test_a_work_queue_has_transactions_in_order(server: NatsServer) -> None:
    """What was worked on is gone and can not be read back, so that the order has to tell."""
    make_stream(server, retention="workqueue")
    with pytest.raises(SinkError, match="ids=position"):
        delivery(server, "transaction")
    rows = numbered(0, 1500)
    write = delivery(server, "transaction", ids="position").write
    with pytest.raises(BreaksOffError):
        write(origin(), broken_off(rows, 1200))
    with jetstream_sync.connect(server.url) as nc:
        consumer = nc.jetstream().create_consumer(
            STREAM, durable_name="W", filter_subject="out.rows"
        )
        (message,) = consumer.fetch(1)
        message.ack_sync()
    write(origin(), columns(rows))
    assert len(payloads(server)) == 1499


@pytest.mark.parametrize("roll_up", [False, True])
def test_markers_replace_each_other_where_the_stream_allows_it(
    server: NatsServer, roll_up: bool
) -> None:
    """With allow_rollup_hdrs a partition leaves one note, else one for each atomic batch."""
    make_stream(server, allow_rollup_hdrs=roll_up)
    write = delivery(server, "transaction").write
    for batch in range(3):
        write(origin(batch), columns(numbered(0, 1500)))
    with RawClient(server.port) as raw:
        notes = [each for each in raw.stored(STREAM) if each.subject.startswith("out.notes.")]
    assert len(notes) == (1 if roll_up else 6)
    assert_once(server, numbered(0, 1500) * 3)


@pytest.mark.parametrize("kind", EXACT)
def test_two_attempts_at_once_store_each_row_once(server: NatsServer, kind: str) -> None:
    """An attempt that was given up and still runs does no harm, wherever the two meet."""
    make_stream(server)
    rows = numbered(0, 6000)
    write = delivery(server, kind, ids="position").write
    meeting = threading.Barrier(2)

    def slowly() -> Iterator[RowColumns]:
        for part in columns(rows, 1000):
            meeting.wait(20)
            yield part

    errors: list[BaseException] = []

    def attempt() -> None:
        try:
            write(origin(), slowly())
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=attempt) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(40)
    assert errors == []
    assert_once(server, rows)


# --- a server that goes away ---------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["at-least-once", *EXACT])
def test_a_server_that_is_killed_and_comes_back_loses_nothing(
    fresh_server: NatsServer, kind: str
) -> None:
    """What was on its way is sent again with the same ids, when the link is back."""
    make_stream(fresh_server, storage="file")
    rows = numbered(0, 12_000)

    def interrupted() -> Iterator[RowColumns]:
        for number, part in enumerate(columns(rows, 500)):
            if number in {6, 15}:
                fresh_server.kill()
                fresh_server.restart()
            yield part

    in_order = {} if kind == "at-least-once" else {"ids": "position"}
    written = delivery(fresh_server, kind, **in_order).write(origin(), interrupted())
    assert written.rows == 12_000
    if kind == "at-least-once":
        assert set(payloads(fresh_server)) == set(rows)
    else:
        assert_once(fresh_server, rows)


def test_nobody_waits_longer_than_ack_timeout(fresh_server: NatsServer) -> None:
    """A server that acknowledges nothing is a TimeoutError that names the first row."""
    make_stream(fresh_server)
    kind = delivery(fresh_server, "window", ackTimeout="1s")

    def stuck() -> Iterator[RowColumns]:
        fresh_server.pause()
        yield from columns(numbered(0, 10))

    try:
        with pytest.raises(TimeoutError, match="row 0 of partition 0 .*no acknowledgement"):
            kind.write(origin(), stuck())
    finally:
        fresh_server.resume()


def test_a_stream_that_is_deleted_meanwhile_is_waited_for(fresh_server: NatsServer) -> None:
    """Where nobody answers for a subject of the stream, rows are sent again until somebody does."""
    make_stream(fresh_server)
    with jetstream_sync.connect(fresh_server.url) as nc:
        js = nc.jetstream()

        def gone() -> Iterator[RowColumns]:
            yield from columns(numbered(0, 10))
            js.delete_stream(STREAM)
            threading.Timer(0.5, make_stream, (fresh_server,)).start()
            yield from columns(numbered(10, 20))

        written = delivery(fresh_server, "window").write(origin(), gone())
    assert written.rows == 20
    assert set(payloads(fresh_server)) >= set(numbered(10, 20))


def test_an_id_that_stays_half_stored_is_explained(server: NatsServer) -> None:
    """A row whose id a former leader holds on to is named, with what helps, after ``ackTimeout``."""
    make_stream(server)
    refusal = {"code": 409, "err_code": 10158, "description": "duplicate message id is in process"}
    said = json.dumps({"error": refusal, "stream": STREAM, "seq": 0}).encode()
    with jetstream_sync.connect(server.url) as leader:

        def refuse(msg: Msg) -> None:
            leader.publish(msg.reply, said)

        # No server can be made to hold one for sure, so what it says comes from here.
        leader.subscribe("played", cb=refuse)
        leader.flush()
        with pytest.raises(RowError, match="row 0 of partition 0 .*another leader accepts it at once"):
            publish_partition(
                [(b"a", "played")], options(server, ackTimeout="1s"), columns=("data", "subject")
            )


@pytest.mark.parametrize("window", ["1", "7", "5000"])
@pytest.mark.parametrize("kind", ["at-least-once", "window"])
def test_any_window_is_wide_enough(server: NatsServer, kind: str, window: str) -> None:
    """However few rows may be on their way, all come through."""
    make_stream(server)
    rows = numbered(0, 300)
    assert delivery(server, kind, maxPending=window).write(origin(), columns(rows)).rows == 300
    assert_once(server, rows)


def test_large_rows_are_sent_few_at_a_time(server: NatsServer) -> None:
    """Rows near the server's limit go through, and what is on its way stays bounded."""
    make_stream(server, storage="file")
    rows = [b"%03d" % number + b"x" * 900_000 for number in range(60)]
    assert delivery(server, "window").write(origin(), columns(rows)).rows == 60
    found = payloads(server)
    assert [each[:3] for each in found] == [each[:3] for each in rows]
    assert {len(each) for each in found} == {900_003}


@pytest.mark.parametrize("kind", ["window", "scan", "transaction"])
def test_rows_that_expect_something_are_written_again_where_that_is_looked_up(
    server: NatsServer, kind: str
) -> None:
    """A stored row that expects a last sequence is refused the second time, or known to be stored."""
    make_stream(server)
    given = options(server, delivery=kind, jobId="j")
    if kind != "window":
        given["markerSubject"] = "out.notes"
    rows = [{"data": b"a", "expected_last_subject_sequence": 0}]
    publish_partition(rows, given)
    if kind == "window":
        with pytest.raises(RowError, match="an earlier attempt has stored the row"):
            publish_partition(rows, given)
    else:
        assert publish_partition(rows, given).duplicates == 1
    assert payloads(server) == [b"a"]


# --- publish_partition ---------------------------------------------------------------------------


def options(server: NatsServer, **more: str) -> dict[str, str]:
    return {"servers": server.url, "stream": STREAM, "subject": "out.rows"} | more


class Record(NamedTuple):
    subject: str | None
    data: Any


@pytest.mark.parametrize(
    ("rows", "names"),
    [
        ([b"a", b"b"], None),
        (["a", "b"], None),
        ([{"data": "a"}, {"data": b"b", "subject": None}][::-1], None),
        ([("out.rows", b"a"), (None, "b")], ("subject", "data")),
        ([Record("out.rows", b"a"), Record(None, bytearray(b"b"))], None),
    ],
)
def test_rows_come_in_many_forms(server: NatsServer, rows: list[Any], names: Any) -> None:
    """Payloads, mappings, tuples and records can be published."""
    make_stream(server)
    assert publish_partition(iter(rows), options(server), columns=names).rows == 2
    assert sorted(payloads(server)) == [b"a", b"b"]


def test_record_batches_can_be_published(server: NatsServer) -> None:
    """What mapInArrow gets is published as it is."""
    import pyarrow as pa

    make_stream(server)
    batch = pa.record_batch({"data": pa.array(["a", "b"]), "subject": ["out.rows", None]})
    assert publish_partition([batch, batch], options(server)).rows == 4
    assert sorted(payloads(server)) == [b"a", b"a", b"b", b"b"]


def test_no_rows_are_nothing(server: NatsServer) -> None:
    """An empty partition asks nobody for anything."""
    assert publish_partition(iter([]), options(server, stream="NONE")).rows == 0


def test_rows_that_do_not_name_their_columns_are_refused(server: NatsServer) -> None:
    """Tuples need names, and mappings have the keys of the first one."""
    make_stream(server)
    with pytest.raises(InvalidArgumentError, match="columns="):
        publish_partition([("a", "b")], options(server))
    with pytest.raises(InvalidArgumentError, match="msg_id"):
        publish_partition([{"data": "a"}, {"data": "b", "msg_id": "c"}], options(server))


def test_a_job_id_makes_calls_the_same(server: NatsServer) -> None:
    """With a jobId a second call finds its rows; without one they are written again."""
    make_stream(server)
    for _ in range(2):
        publish_partition([b"a"], options(server, jobId="j"))
    assert payloads(server) == [b"a"]
    for _ in range(2):
        publish_partition([b"a"], options(server))
    assert payloads(server) == [b"a"] * 3
    with pytest.raises(SinkError, match="jobId"):
        publish_partition(
            [b"a"], options(server, delivery="transaction", markerSubject="out.notes")
        )


def test_a_bad_row_is_named(server: NatsServer) -> None:
    """The error has the number of the row and the partition."""
    make_stream(server)
    with pytest.raises(RowError) as error:
        publish_partition([b"a", None], options(server), partition=3)
    assert (error.value.row, error.value.partition) == (1, 3)


def test_spark_tasks_take_their_ids_from_their_task(
    spark: SparkSession, server: NatsServer, tmp_path: Any
) -> None:
    """A foreachPartition within foreachBatch writes a batch that is run again once."""
    from fix_spark import forget_commit

    make_stream(server)
    given = options(server)
    source, checkpoint = tmp_path / "in", tmp_path / "checkpoint"
    source.mkdir()
    (source / "rows.txt").write_text("".join(f"{number}\n" for number in range(500)))

    def publish(frame: Any, _: int) -> None:
        rows = frame.selectExpr("value AS data").repartition(2)
        rows.foreachPartition(partial(publish_partition, options=given))

    for _ in range(2):
        query = (
            spark.readStream.text(str(source))
            .writeStream.foreachBatch(publish)
            .option("checkpointLocation", str(checkpoint))
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(60)
        assert_once(server, numbered(0, 500))
        forget_commit(checkpoint, 0)


# --- read_range ----------------------------------------------------------------------------------


def test_ranges_are_planned_and_read(server: NatsServer) -> None:
    """The ranges of a plan have every message once, as tuples or record batches."""
    make_stream(server, allow_direct=True)
    publish_partition(numbered(0, 1000), options(server, delivery="at-least-once"))
    given = {"servers": server.url, "stream": STREAM, "maxRecordsPerPartition": "300"}
    ranges = plan_ranges(given)
    assert len(ranges) == 4
    rows = [row for each in ranges for row in read_range(each, given, ("sequence", "data"))]
    assert rows == [(number + 1, b"%d" % number) for number in range(1000)]
    batches = [each for one in ranges for each in read_range_batches(one, given, ("data",))]
    assert [value for each in batches for value in each["data"].to_pylist()] == numbered(0, 1000)


def test_each_column_has_its_value(server: NatsServer, js: JetStream) -> None:
    """A tuple has what the columns say, in values of Python."""
    make_stream(server)
    js.publish("out.a", b"x", headers={"K": ["1", "2"]}, msg_id="m")
    js.publish("out.b", b"")
    given = {"servers": server.url, "stream": STREAM}
    names = ("subject", "headers", "msg_id", "stream", "size", "domain", "time_ns", "timestamp")
    (one,) = plan_ranges(given)
    first, second = read_range(one, given, names)
    assert first[:6] == ("out.a", {"K": ["1", "2"], "Nats-Msg-Id": ["m"]}, "m", STREAM, 1, None)
    assert second[:6] == ("out.b", {}, None, STREAM, 0, None)
    assert first[6] <= second[6]
    assert abs(first[7].timestamp() - first[6] / 1e9) < 1e-3


# --- taking work ---------------------------------------------------------------------------------


@pytest.fixture
def queue(server: NatsServer, js: JetStream) -> dict[str, str]:
    """Options of a work queue with 100 messages and a durable consumer."""
    make_stream(server, retention="workqueue")
    js.create_consumer(STREAM, durable_name="WORK", ack_wait=30.0)
    for number in range(100):
        js.publish_async("out.rows", b"%d" % number)
    js.publish_async_completed(10)
    return {"servers": server.url, "stream": STREAM, "consumer": "WORK"}


def test_work_that_was_done_is_gone(queue: dict[str, str], server: NatsServer) -> None:
    """Each message comes once, and leaves the queue at the end of its with block."""
    done: Payloads = []
    for batch in take_work(queue, batch=30, idle_seconds=0.2):
        with batch:
            done += [message.data for message in batch]
        assert len(payloads(server)) == 100 - len(done)
    assert Counter(done) == Counter(numbered(0, 100))


def test_work_that_failed_comes_again(queue: dict[str, str], server: NatsServer) -> None:
    """An error in the with block gives the batch back at once."""
    with pytest.raises(BreaksOffError):
        for batch in take_work(queue, batch=40):
            with batch:
                raise BreaksOffError
    done = []
    for batch in take_work(queue, idle_seconds=0.2):
        with batch:
            done += [message.data for message in batch]
    assert Counter(done) == Counter(numbered(0, 100))
    assert payloads(server) == []


def test_work_is_bounded(queue: dict[str, str]) -> None:
    """No more than max_messages are taken, and none after max_seconds."""
    assert sum(len(each) for each in take_work(queue, batch=30, max_messages=70)) == 70
    assert list(take_work(queue, max_seconds=0.0)) == []


def test_one_message_may_be_settled_alone(queue: dict[str, str], server: NatsServer) -> None:
    """What the task settled itself is not acknowledged again."""
    (batch,) = take_work(queue, batch=100, max_messages=100)
    with batch:
        batch.messages[0].term()
        batch.messages[1].ack_sync()
        batch.in_progress()
    wait_until(lambda: payloads(server) == [])


def test_work_may_be_acknowledged_elsewhere(
    spark: SparkSession, queue: dict[str, str], server: NatsServer
) -> None:
    """A mapInArrow takes work, and when the job is through another one acknowledges it."""

    def work(_: Any) -> Iterator[Any]:
        for batch in take_work(queue, batch=20, idle_seconds=0.3):
            yield batch.to_arrow()

    frame = spark.range(0, 2, 1, 2).mapInArrow(work, WORK_DDL).persist()
    rows = frame.select("data", "subject", "stream", "sequence").collect()
    assert Counter(bytes(row.data) for row in rows) == Counter(numbered(0, 100))
    assert sorted(row.sequence for row in rows) == list(range(1, 101))
    assert len(payloads(server)) == 100
    frame.select("ack").foreachPartition(lambda part: acknowledge((row.ack for row in part), queue))
    assert payloads(server) == []
    frame.unpersist()


def test_a_consumer_that_can_not_give_work_is_refused(
    queue: dict[str, str], server: NatsServer, js: JetStream
) -> None:
    """The option consumer is needed, and names one that wants acknowledgements."""
    with pytest.raises(InvalidOptionError, match="consumer"):
        next(take_work({"servers": server.url, "stream": STREAM}))
    with pytest.raises(ConsumerNotFoundError):
        next(take_work(queue | {"consumer": "OTHER"}))
    js.create_stream(name="LOG", subjects=["log.>"], storage="memory")
    js.create_consumer("LOG", durable_name="NOACK", ack_policy="none")
    with pytest.raises(InvalidOptionError, match="explicit"):
        next(take_work({"servers": server.url, "stream": "LOG", "consumer": "NOACK"}))


def test_acknowledging_to_nobody_is_an_error(queue: dict[str, str], js: JetStream) -> None:
    """Where the consumer is gone, nothing was acknowledged."""
    batch = next(take_work(queue))
    js.delete_consumer(STREAM, "WORK")
    with pytest.raises(ConsumerNotFoundError):
        batch.acknowledge()


# --- clusters and permissions --------------------------------------------------------------------


def test_a_batch_that_is_forgotten_is_sent_again(
    server: NatsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A leader that steps down forgets a batch and says nothing; there is time left to try it again."""
    make_stream(server)
    really = AtomicBatchSender._row_commands
    forgotten: Payloads = []

    def forget(self: AtomicBatchSender, rows: Any, head: bytes, reply: bytes) -> Payloads:
        made = really(self, rows, head, reply)
        if not forgotten:
            forgotten.append(made.pop())  # which would have committed it
        return made

    monkeypatch.setattr(AtomicBatchSender, "_row_commands", forget)
    rows = numbered(0, 1500)
    write = delivery(server, "transaction", ackTimeout="8s").write
    assert write(origin(), columns(rows)).rows == 1500
    assert len(forgotten) == 1
    assert_once(server, rows)


def stepped_down(nc: Connection, led: set[str]) -> bool:
    """
    Have the stream's leader step down for a server that has not led it, if there is one just now.

    A server that leads again may refuse ids for the whole of the duplicate window, as being stored just
    now: of those that it had begun to store it drops only the last ones (``processStreamLeaderChange``).
    """
    try:
        cluster = json.loads(nc.request(f"$JS.API.STREAM.INFO.{STREAM}", timeout=1).data)["cluster"]
        led.add(cluster["leader"])
        new = min({each["name"] for each in cluster["replicas"] if each["current"]} - led)
        answer = nc.request(
            f"$JS.API.STREAM.LEADER.STEPDOWN.{STREAM}",
            json.dumps({"placement": {"preferred": new}}).encode(),
            timeout=1,
        )
    except (TimeoutError, NoRespondersError, KeyError, ValueError):
        return False
    return b'"success":true' in answer.data


@pytest.mark.parametrize("kind", EXACT)
def test_a_leader_that_steps_down_loses_nothing(cluster: NatsCluster, kind: str) -> None:
    """Rows that a stream's leader forgets are sent again, and those that it has not forgotten are not."""
    first = cluster.servers[0]
    make_stream(first, num_replicas=3, storage="file", allow_rollup_hdrs=True)
    rows = numbered(0, 6000)
    led: set[str] = set()

    def interrupted() -> Iterator[RowColumns]:
        with jetstream_sync.connect(first.url) as nc:
            for number, part in enumerate(columns(rows, 500)):
                if number in {3, 8}:
                    wait_until(partial(stepped_down, nc, led), 20)
                yield part

    write = delivery(first, kind, ids="position", ackTimeout="40s").write
    assert write(origin(), interrupted()).rows == 6000
    assert len(led) == 2
    assert write(origin(), columns(rows)).duplicates == 6000
    assert_once(first, rows)


PERMISSIONS = """
accounts {
  A {
    jetstream: enabled
    users: [
      {user: boss, password: b}
      {user: app, password: a, permissions: {
        publish: {allow: ["$JS.API.>", "out.allowed", "out.notes.>"]}, subscribe: "_INBOX.>"
      }}
    ]
  }
}
"""


@pytest.mark.parametrize("kind", ["at-least-once", "window", "transaction"])
def test_a_subject_that_is_not_permitted_is_an_error_at_once(kind: str) -> None:
    """The error says what the user may not do, and nobody waits for an acknowledgement."""
    with NatsServer(config=PERMISSIONS) as server:
        url = f"nats://boss:b@127.0.0.1:{server.port}"
        with jetstream_sync.connect(url) as nc:
            nc.jetstream().create_stream(
                name=STREAM, subjects=["out.>"], allow_atomic=True, storage="memory"
            )
        given = {"servers": f"nats://127.0.0.1:{server.port}", "user": "app", "password": "a"}
        given |= {"stream": STREAM, "delivery": kind, "jobId": "j", "ackTimeout": "20s"}
        if kind == "transaction":
            given["markerSubject"] = "out.notes"
        rows = [("out.allowed", b"1"), ("out.forbidden", b"2")]
        with within(10), pytest.raises((SinkError, PermissionsError), match=r"out\.forbidden"):
            publish_partition(rows, given, columns=("subject", "data"))
