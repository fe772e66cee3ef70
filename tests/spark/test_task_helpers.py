"""Write plans of one partition, and the helpers for tasks, with a real server."""

from __future__ import annotations

import contextlib
import io
import json
import random
import threading
from collections import Counter
from collections.abc import Iterator
from decimal import Decimal
from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa
import pytest
from fixtures.exact import Data, Text
from fixtures.rawnats import RawClient
from fixtures.threads import wait_until, within

import jetstream_sync
from jetstream_sync import SubjectTransform
from jetstream_sync.errors import (
    ConsumerNotFoundError,
    InvalidArgumentError,
    InvalidOptionError,
    NoRespondersError,
    NotJSMessageError,
    PermissionsError,
    TimeoutError,
)
from jetstream_sync.server import NatsServer
from jetstream_sync.spark.options import WriteOptions
from jetstream_sync.spark.reading.ranges import SequenceRange
from jetstream_sync.spark.schema import SchemaError
from jetstream_sync.spark.sink_errors import (
    CheckpointRewoundError,
    RowError,
    SinkError,
    TargetRewoundError,
)
from jetstream_sync.spark.task_helpers import (
    plan_ranges,
    publish_partition,
    read_range,
    read_range_batches,
)
from jetstream_sync.spark.work_queue import WORK_DDL, acknowledge, take_work
from jetstream_sync.spark.writing import publishing, transactions
from jetstream_sync.spark.writing.message_ids import WriteTaskId
from jetstream_sync.spark.writing.rows import Columns, RowLayout
from jetstream_sync.spark.writing.write_plan import WritePlan, Written

if TYPE_CHECKING:
    from jetstream_sync import Connection, JetStream, Msg

pytestmark = [pytest.mark.spark, pytest.mark.timeout(120)]

EXACT = ("window", "transaction")
#: The deliveries that store each row once, with the ways to recognize stored rows.
IDS = (("window", "content"), ("transaction", "content"), ("transaction", "position"))
LAYOUT = RowLayout.of_names(("data",))
STREAM = "OUT"

Payloads = list[bytes]


def make_stream(server: NatsServer, **fields: Any) -> None:
    fields = {"duplicate_window": 600.0, "allow_atomic": True, "storage": "memory"} | fields
    with jetstream_sync.connect(server.url) as nc:
        nc.jetstream().create_stream(**{"name": STREAM, "subjects": ["out.>"], **fields})


def options(server: NatsServer, **more: str) -> dict[str, str]:
    """Return the options of the sink for the stream."""
    given = {"servers": server.url, "stream": STREAM, "subject": "out.rows"}
    if more.get("delivery") == "transaction":
        given["markerSubject"] = "out.notes"
    return given | more


def delivery(server: NatsServer, kind: str, **more: str) -> WritePlan:
    """Return a plan to write rows with only payloads to the stream."""
    return WritePlan.checked(
        WriteOptions.from_options(options(server, delivery=kind, **more)), LAYOUT
    )


def origin(batch: int = 0, partition: int = 0, *, has_ends: bool = False) -> WriteTaskId:
    return WriteTaskId(name="query", batch=batch, partition=partition, has_ends=has_ends)


def numbered(start: int, end: int) -> Payloads:
    return [b"%d" % number for number in range(start, end)]


def columns(rows: Payloads, size: int = 100) -> Iterator[list[Columns]]:
    """Yield rows in groups, as Spark passes them."""
    for start in range(0, len(rows), size):
        yield [LAYOUT.columns([rows[start : start + size]])]


class BreaksOffError(Exception):
    """The error that ends the first attempt."""


def broken_off(rows: Payloads, count: int) -> Iterator[list[Columns]]:
    """Yield the first rows, and then raise an error."""
    yield from columns(rows[:count])
    raise BreaksOffError


def payloads(server: NatsServer) -> Payloads:
    """Return the payloads on the subject of the rows, in stream order."""
    with RawClient(server.port) as raw:
        return [item.data for item in raw.stored(STREAM) if item.subject == "out.rows"]


def stored_count(server: NatsServer) -> int:
    """Return how many messages are on the subject of the rows."""
    with RawClient(server.port) as raw:
        state = raw.api(f"STREAM.INFO.{STREAM}", subjects_filter="out.rows")["state"]
    return sum((state.get("subjects") or {}).values())


def assert_once(server: NatsServer, rows: Payloads) -> None:
    found = Counter(payloads(server))
    assert found == Counter(rows), found - Counter(rows) or Counter(rows) - found


def window_over(server: NatsServer, kind: str) -> None:
    """Wait until the duplicate window of the stream has passed."""
    with jetstream_sync.connect(server.url) as nc:
        js = nc.jetstream()
        js.publish("out.probe", b"", msg_id=kind)
        wait_until(lambda: not js.publish("out.probe", b"", msg_id=kind).duplicate, 10)


@pytest.fixture
def server(nats_server: NatsServer, js: JetStream) -> NatsServer:
    """Return the shared server, and delete its streams afterwards."""
    del js
    return nats_server


# --- repeated attempts ---------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["at-least-once", *EXACT])
def test_the_result_counts_what_was_written(server, kind):
    """The result contains the number of rows, their bytes and the range of their sequences."""
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


def test_acknowledgements_are_not_parsed_one_by_one(server, monkeypatch):
    """The first acknowledgement shows how the others begin, also if all of them are for duplicates."""
    make_stream(server)
    parsed = []

    def loads(payload: bytes) -> Any:
        parsed.append(payload)
        return json.loads(payload)

    monkeypatch.setattr(publishing, "loads", loads)
    rows = numbered(0, 2000)
    write = delivery(server, "window").write
    for duplicates in (0, 2000):
        parsed.clear()
        assert write(origin(), columns(rows)).duplicates == duplicates
        assert len(parsed) == 1
    assert_once(server, rows)


@pytest.mark.parametrize(
    ("kind", "ids", "outage"),
    [*((*item, False) for item in IDS), *((*item, True) for item in IDS[1:])],
)
@pytest.mark.parametrize("stored", [0, 1, 700, 2300, 2500])
@pytest.mark.full
def test_a_second_attempt_adds_the_missing_rows(server, kind, outage, ids, stored):
    """Wherever the first one ended, and even if the stream has forgotten the ids of the stored rows."""
    make_stream(server, duplicate_window=0.2 if outage else 600.0)
    rows = numbered(0, 2500)
    write = delivery(server, kind, ids=ids).write
    with pytest.raises(BreaksOffError):
        write(origin(), broken_off(rows, stored))
    if outage:
        window_over(server, kind)
    written = write(origin(), columns(rows))
    assert written.rows == 2500
    assert_once(server, rows)
    again = write(origin(), columns(rows))
    assert (again.rows, again.duplicates) == (2500, 2500)
    assert_once(server, rows)


@pytest.mark.parametrize("kind", EXACT)
def test_a_second_attempt_may_see_the_rows_in_another_order(server, kind):
    """Message ids and batches depend on the content of rows, not on their order."""
    make_stream(server)
    rows = numbered(0, 2000) + numbered(0, 300)
    write = delivery(server, kind).write
    with pytest.raises(BreaksOffError):
        write(origin(), broken_off(rows, 1500))
    write(origin(), columns(rows[::-1]))
    write(origin(), columns(rows))
    assert_once(server, rows)


@pytest.mark.parametrize("kind", EXACT)
def test_equal_rows_of_other_sources_are_separate(server, kind):
    """Equal rows of another batch, partition or query are stored separately."""
    make_stream(server)
    rows = numbered(0, 50)
    write = delivery(server, kind).write
    for item in (
        origin(),
        origin(1),
        origin(1, 1),
        WriteTaskId(name="other", batch=0, partition=0),
    ):
        assert write(item, columns(rows)).duplicates == 0
    assert_once(server, rows * 4)


def test_delivery_window_stores_rows_again_after_the_window(server, caplog):
    """``window`` stores rows again after the duplicate window, and logs one warning about that."""
    make_stream(server, duplicate_window=0.2)
    rows = numbered(0, 100)
    write = delivery(server, "window").write
    delivery(server, "window")
    said = [record.message for record in caplog.records if "duplicate_window" in record.message]
    assert len(said) == 1
    write(origin(), columns(rows))
    window_over(server, "window")
    write(origin(), columns(rows))
    assert_once(server, rows * 2)


@pytest.mark.parametrize("ids", ["content", "position"])
def test_an_abandoned_attempt_writes_nothing(server, ids):
    """An attempt that resumes after a later batch has begun stores nothing, and counts no row as stored."""
    make_stream(server, duplicate_window=0.2)
    write = delivery(server, "transaction", ids=ids).write
    first, second = numbered(0, 1000), numbered(1000, 2000)

    def overtaken() -> Iterator[list[Columns]]:
        yield from columns(first[:500], 500)
        write(origin(4), columns(first))
        write(origin(5), columns(second))
        yield from columns(first[500:], 500)

    with pytest.raises(CheckpointRewoundError, match="batch 5, but Spark runs batch 4"):
        write(origin(4), overtaken())
    assert_once(server, first + second)


@pytest.mark.parametrize("ids", ["content", "position"])
def test_a_restored_checkpoint_is_an_error(server, ids):
    """A query that runs a batch before the one in the target fails, names both, and stores nothing."""
    make_stream(server, duplicate_window=0.2)
    write = delivery(server, "transaction", ids=ids).write
    for batch in range(10):
        write(origin(batch), columns(numbered(batch * 100, batch * 100 + 100)))
    with pytest.raises(CheckpointRewoundError, match="batch 9, but Spark runs batch 3") as caught:
        write(origin(3), columns(numbered(5000, 5100)))
    assert (caught.value.stored_batch, caught.value.batch) == (9, 3)
    # After a shuffle, the rows may be in a partition that no batch had before.
    with pytest.raises(CheckpointRewoundError, match="batch 9, but Spark runs batch 3"):
        write(origin(3, partition=7), columns(numbered(5000, 5100)))
    assert "queryId" in str(caught.value)
    assert_once(server, numbered(0, 1000))


@pytest.mark.parametrize("ids", ["content", "position"])
def test_other_rows_of_the_last_batch_are_an_error(server, ids):
    """A restored query that runs the last batch of the target with other rows stores none of them."""
    make_stream(server, duplicate_window=0.2)
    write = delivery(server, "transaction", ids=ids).write
    write(origin(3), columns(numbered(0, 1500), 1500))
    with pytest.raises(CheckpointRewoundError, match="other rows of batch 3"):
        write(origin(3), columns(numbered(700, 3000), 2300))
    assert_once(server, numbered(0, 1500))


class Query:
    """Writes micro-batches like the sink of a query, each of 10 rows in two partitions, and keeps a backup."""

    def __init__(self, plan: WritePlan) -> None:
        self._plan = plan
        self._backup = io.BytesIO()

    def write(self, batch: int, rows: int = 10, *, ends: bool = True) -> None:
        for partition in range(2):
            start = batch * 100 + partition * 50
            task_id = origin(batch, partition, has_ends=True)
            self._plan.write(task_id, columns(numbered(start, start + rows // 2)))
        if ends:
            self._plan.end_batch(task_id)

    def back_up(self, js: JetStream) -> None:
        with js.get_stream(STREAM).snapshot() as snapshot:
            snapshot.write_to(self._backup)
        self._info = snapshot.info

    def restore(self, js: JetStream) -> None:
        js.delete_stream(STREAM)
        self._backup.seek(0)
        js.restore_stream(self._info, self._backup)


@pytest.mark.parametrize("ends", [True, False])
@pytest.mark.parametrize("rows", [10, 0])
@pytest.mark.parametrize("ids", ["content", "position"])
def test_a_restored_target_is_an_error(server, js, ids, rows, ends):
    """A query that runs a batch for which the target has no batch before it fails, and stores nothing."""
    make_stream(server, storage="file", duplicate_window=0.2)
    query = Query(delivery(server, "transaction", ids=ids))
    query.write(0)
    query.write(1, ends=ends)
    query.back_up(js)
    if not ends:
        query.write(1)
    query.write(2, rows)
    query.restore(js)
    before = Counter(payloads(server))
    with pytest.raises(
        TargetRewoundError, match="ends with batch 1 of the query, or a part"
    ) as caught:
        query.write(3)
    assert (caught.value.stored_batch, caught.value.batch) == (1, 3)
    assert Counter(payloads(server)) == before
    # The batch after the one in the target can follow, but not if that one has no end.
    with contextlib.nullcontext() if ends else pytest.raises(TargetRewoundError):
        query.write(2, rows)


@pytest.mark.parametrize("roll_up", [True, False])
@pytest.mark.parametrize("ids", ["content", "position"])
def test_batches_follow_each_other(server, ids, roll_up):
    """Batches without rows, repeated batches, and batches whose records limits have removed are no restored target."""
    make_stream(server, allow_rollup_hdrs=roll_up)
    query = Query(delivery(server, "transaction", ids=ids))
    for batch in range(4):
        query.write(batch, 10 if batch % 2 else 0)
        query.write(batch, 10 if batch % 2 else 0, ends=False)
    query.write(4, ends=False)
    query.write(4)
    with pytest.raises(CheckpointRewoundError):
        query.write(3)
    with RawClient(server.port) as raw:
        raw.api(f"STREAM.PURGE.{STREAM}", filter="out.notes.>")
    query.write(9)
    query.write(10)
    assert_once(
        server,
        [
            b"%d" % (batch * 100 + p * 50 + i)
            for batch in (1, 3, 4, 9, 10)
            for p in (0, 1)
            for i in range(5)
        ],
    )


def test_rows_by_position_need_transactions(server):
    """After a restore, other rows would have the ids of stored ones, and the stream would drop them."""
    make_stream(server)
    for given in (options(server, ids="position"), options(server, ids="position", jobId="j")):
        with pytest.raises(InvalidOptionError, match="ids='position': needs delivery=transaction"):
            publish_partition([b"1"], given)
    assert payloads(server) == []


@pytest.mark.parametrize("kind", EXACT)
@pytest.mark.parametrize("seed", range(2))
def test_each_row_that_counts_as_duplicate_is_stored(server, kind, seed):
    """
    A restored query repeats batches with other rows, and none of its rows is missing in the stream.

    Few different contents make rows of other messages look alike. With transactions the query has a new identity.
    """
    make_stream(server)
    rng = random.Random(seed)
    source = [b"%d" % rng.randrange(12) for _ in range(300)]
    restored = rng.randrange(3)
    starts = [0]
    for query in ("first", "restored"):
        more = {"queryId": query} if kind == "transaction" else {}
        write = delivery(server, kind, **more).write
        if query == "restored":
            starts = starts[: restored + 1]
        while starts[-1] < len(source):
            begin = starts[-1]
            starts.append(begin + rng.randrange(10, 150))
            rows = source[begin : starts[-1]]
            middle = rng.randrange(len(rows) + 1)
            for partition, part in enumerate((rows[:middle], rows[middle:])):
                before = stored_count(server)
                written = write(origin(len(starts), partition), columns(part))
                added = stored_count(server) - before
                assert (written.rows, written.duplicates) == (len(part), len(part) - added)
        stored = Counter(payloads(server))
        assert not Counter(source) - stored
    assert stored.total() < 2 * len(source)


def test_a_query_id_belongs_to_one_query(server):
    """A query with another checkpoint fails with the queryId of another one, whichever batch it runs, and stores nothing."""
    make_stream(server)
    plan = delivery(server, "transaction", queryId="x")
    first = [origin(batch, has_ends=True) for batch in range(2)]
    plan.write(first[0], columns(numbered(0, 10)))
    plan.end_batch(first[0])
    for batch in range(3):
        other = WriteTaskId(name="other", batch=batch, partition=0, has_ends=True)
        with pytest.raises(SinkError, match="another query.* same queryId"):
            plan.write(other, columns(numbered(50, 60)))
    plan.write(first[1], columns(numbered(10, 20)))
    assert_once(server, numbered(0, 20))


def test_a_new_query_id_is_a_new_identity(server):
    """With a new queryId all rows are stored, and rows with the same batch and content are detected."""
    make_stream(server)
    write = delivery(server, "transaction").write
    for batch in range(4):
        write(origin(batch), columns(numbered(batch * 100, batch * 100 + 100)))
    again = delivery(server, "transaction", queryId="restored").write
    result = again(origin(3), columns(numbered(300, 450), 150))
    assert (result.rows, result.duplicates) == (150, 100)
    assert again(origin(4), columns(numbered(450, 500))).duplicates == 0
    assert again(origin(4), columns(numbered(450, 500))).duplicates == 50
    assert_once(server, numbered(0, 500))


@pytest.mark.parametrize("outage", [False, True])
def test_limits_that_remove_rows_do_not_bring_them_back(server, outage):
    """A repeated batch stores no row again that a limit per subject has removed."""
    make_stream(server, max_msgs_per_subject=1, duplicate_window=0.2 if outage else 600.0)
    write = delivery(server, "transaction").write
    with pytest.raises(BreaksOffError):
        write(origin(), broken_off(numbered(0, 1500), 1200))
    assert payloads(server) == [b"1199"]
    if outage:
        window_over(server, "outage")
    for _ in range(2):
        write(origin(), columns(numbered(0, 1500)))
        assert payloads(server) == [b"1499"]
    with jetstream_sync.connect(server.url) as nc:
        nc.jetstream().publish("out.rows", b"newer")
    assert write(origin(), columns(numbered(0, 1500))).duplicates == 1500
    assert payloads(server) == [b"newer"]


def test_a_removed_record_of_stored_rows_is_an_error(server):
    """If it is not known any more which rows are stored, the repeated batch fails and names the reason."""
    make_stream(server)
    write = delivery(server, "transaction").write
    with pytest.raises(BreaksOffError):
        write(origin(), broken_off(numbered(0, 1500), 1200))
    with jetstream_sync.connect(server.url) as nc:
        nc.jetstream().get_stream(STREAM).purge(subject="out.notes.*.0-0")
    with pytest.raises(SinkError, match="record on .* of which rows"):
        write(origin(), columns(numbered(0, 1500)))
    assert_once(server, numbered(0, 1200))


@pytest.mark.parametrize(("kind", "ids"), IDS)
def test_an_interrupted_attempt_is_completed(server, kind, ids):
    """A task that Spark ends early sees the end of its rows, and another attempt stores the others."""
    make_stream(server)
    rows = numbered(0, 2500)
    write = delivery(server, kind, ids=ids).write
    for count in (1300, 100, 2500):
        assert write(origin(), columns(rows[:count])).rows == count
    assert_once(server, rows)


@pytest.mark.parametrize("ids", ["content", "position"])
def test_a_replaced_checkpoint_is_no_purge(server, ids):
    """A later checkpoint may remove the first message of the stream, which was the first one of the job."""
    make_stream(server, allow_rollup_hdrs=True)
    given = options(server, delivery="transaction", ids=ids, jobId="1")
    rows = numbered(0, 1500)
    publish_partition(rows[:1000], given)
    assert publish_partition(rows, given).duplicates == 1000
    assert publish_partition(rows, given).duplicates == 1500
    assert_once(server, rows)
    with jetstream_sync.connect(server.url) as nc:
        stream = nc.jetstream().get_stream(STREAM)
        stream.purge(seq=stream.info().state.first_seq + 2)
    with pytest.raises(SinkError, match="was purged|was removed"):
        publish_partition(rows, given)


@pytest.mark.parametrize("ids", ["content", "position"])
def test_a_batch_that_is_stored_in_part_is_completed(ids):
    """A server whose storage becomes full stores a part of an atomic batch; the rest is stored when there is room."""
    users = "users: [{user: u, password: p}], jetstream: {max_mem: 1MB, max_store: 1MB}"
    rows = [b"%04d" % number + bytes(200) for number in range(1500)]
    with (
        NatsServer(config=f"accounts {{ A {{ {users} }} }}, no_auth_user: u") as server,
        jetstream_sync.connect(server.url) as nc,
    ):
        js = nc.jetstream()
        js.create_stream(name="OTHER", subjects=["other"], storage="memory")
        js.publish("other", bytes(750_000))
        subjects = ["out.>"]
        js.create_stream(name=STREAM, subjects=subjects, allow_atomic=True, storage="memory")
        given = options(server, delivery="transaction", ids=ids, jobId="1", ackTimeout="2")
        with pytest.raises(SinkError, match="resource limits exceeded"):
            publish_partition(rows, given)
        count = stored_count(server)
        assert 0 < count < 998
        js.delete_stream("OTHER")
        # The attempt in between sees a part of the rows only.
        assert publish_partition(rows[:1100], given).duplicates == count
        assert publish_partition(rows, given).duplicates == 1100
        assert_once(server, rows)


def test_a_work_queue_has_transactions_in_order(server):
    """Acknowledged rows of a work queue cannot be read back, so ``ids=position`` is required."""
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
def test_checkpoints_replace_each_other_where_the_stream_allows_it(server, roll_up):
    """With allow_rollup_hdrs a partition leaves the notes of its last batch, else those of each."""
    make_stream(server, allow_rollup_hdrs=roll_up)
    write = delivery(server, "transaction").write
    for batch in range(3):
        write(origin(batch), columns(numbered(0, 1500), 1500))
    with RawClient(server.port) as raw:
        notes = [item for item in raw.stored(STREAM) if item.subject.startswith("out.notes.")]
    assert len(notes) == (1 + 2 if roll_up else 6 + 6)
    assert_once(server, numbered(0, 1500) * 3)


@pytest.mark.parametrize("kind", EXACT)
def test_two_attempts_at_once_store_each_row_once(server, kind):
    """An abandoned attempt that is still running does no harm, wherever the two attempts meet."""
    make_stream(server)
    rows = numbered(0, 6000)
    write = delivery(server, kind).write
    meeting = threading.Barrier(2)

    def slowly() -> Iterator[list[Columns]]:
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


# --- server faults -------------------------------------------------------------------------------


@pytest.mark.matrix
@pytest.mark.parametrize("kind", ["at-least-once", *EXACT])
@pytest.mark.full
def test_a_server_restart_loses_no_rows(fresh_server, kind):
    """Unacknowledged rows are sent again with the same ids after the reconnect."""
    make_stream(fresh_server, storage="file")
    rows = numbered(0, 12_000)

    def interrupted() -> Iterator[list[Columns]]:
        for number, part in enumerate(columns(rows, 500)):
            if number in {6, 15}:
                fresh_server.kill()
                fresh_server.restart()
            yield part

    written = delivery(fresh_server, kind).write(origin(), interrupted())
    assert written.rows == 12_000
    if kind == "at-least-once":
        assert set(payloads(fresh_server)) == set(rows)
    else:
        assert_once(fresh_server, rows)


def test_ack_timeout_ends_the_wait(fresh_server):
    """If the server acknowledges nothing, a TimeoutError names the first row."""
    make_stream(fresh_server)
    kind = delivery(fresh_server, "window", ackTimeout="1s")

    def stuck() -> Iterator[list[Columns]]:
        fresh_server.pause()
        yield from columns(numbered(0, 10))

    try:
        with pytest.raises(TimeoutError, match="row 0 of partition 0 .*no acknowledgement"):
            kind.write(origin(), stuck())
    finally:
        fresh_server.resume()


def test_a_deleted_stream_is_waited_for(fresh_server):
    """While there are no responders for a subject of the stream, rows are sent again."""
    make_stream(fresh_server)
    with jetstream_sync.connect(fresh_server.url) as nc:
        js = nc.jetstream()

        def gone() -> Iterator[list[Columns]]:
            yield from columns(numbered(0, 10))
            js.delete_stream(STREAM)
            threading.Timer(0.5, make_stream, (fresh_server,)).start()
            yield from columns(numbered(10, 20))

        written = delivery(fresh_server, "window").write(origin(), gone())
    assert written.rows == 20
    assert set(payloads(fresh_server)) >= set(numbered(10, 20))


def create_again(server: NatsServer) -> None:
    with jetstream_sync.connect(server.url) as nc:
        nc.jetstream().delete_stream(STREAM)
    make_stream(server)


@pytest.mark.parametrize(("kind", "ids"), IDS)
def test_a_stream_that_is_created_again_meanwhile_is_an_error(server, kind, ids):
    """Rows stored in the deleted stream do not count as stored, and are written when the call is repeated."""
    make_stream(server)
    rows = numbered(0, 10_000)
    given = options(server, delivery=kind, ids=ids, jobId="j")

    def interrupted() -> Iterator[bytes]:
        yield from rows[:6000]
        wait_until(lambda: len(payloads(server)) > 1000, 10)
        create_again(server)
        yield from rows[6000:]

    with pytest.raises(SinkError, match="deleted and created again"):
        publish_partition(interrupted(), given)
    assert len(payloads(server)) < len(rows)
    publish_partition(rows, given)
    assert_once(server, rows)


@pytest.mark.parametrize("kind", ["at-least-once", *EXACT])
def test_a_batch_is_not_committed_if_its_stream_was_created_again(server, kind):
    """The rows of tasks that had ended before are not in the new stream."""
    sink = pytest.importorskip("jetstream_sync.spark.writing.sink")  # not before Spark 4
    make_stream(server)
    plan, first = delivery(server, kind), origin(0, 0, has_ends=True)
    messages = [sink.CommitMessage(plan.write(first, columns(numbered(0, 10))), first)]
    create_again(server)
    second = origin(0, 1, has_ends=True)
    messages.append(sink.CommitMessage(plan.write(second, columns(numbered(10, 20))), second))
    with pytest.raises(SinkError, match="deleted and created again"):
        sink.commit_write(plan, messages, "batch 0", overwrite=False)


@pytest.mark.parametrize("kind", EXACT)
@pytest.mark.parametrize(
    ("limits", "is_error"),
    [({}, True), ({"max_msgs": 20_000}, False), ({"max_msgs": 20_000, "discard": "new"}, True)],
)
def test_rows_that_were_purged_do_not_count_as_stored(server, limits, is_error, kind):
    """Within the duplicate window a purged stream ignores repeated rows; a limit, though, may have removed them."""
    make_stream(server, **limits)
    rows, given = numbered(0, 100), options(server, jobId="j", delivery=kind)
    publish_partition(rows, given)
    with RawClient(server.port) as raw:
        raw.api(f"STREAM.PURGE.{STREAM}")
    purged = pytest.raises(SinkError, match="it was purged")
    with purged if is_error else contextlib.nullcontext():
        publish_partition(rows, given)
    publish_partition(rows, given | {"jobId": "k"})
    assert_once(server, rows)


def test_a_small_message_size_limits_the_rows_of_a_transaction():
    """The list of the keys of the rows is a message, too, and must not exceed the limit of server or stream."""
    for limit, server_config in ((4000, ""), (-1, "max_payload: 4000\n")):
        with NatsServer(config=server_config) as server:
            make_stream(server, max_msg_size=limit)
            rows = numbered(0, 1000)
            plan = delivery(server, "transaction", ackTimeout="5s")
            assert plan.write(origin(), columns(rows, 1000)).rows == 1000
            assert plan.write(origin(), columns(rows, 1000)).duplicates == 1000
            assert_once(server, rows)
            with pytest.raises(RowError, match="row 1 .*max_msg_size of the stream, is 4000 bytes"):
                plan.write(origin(1), columns([b"a", bytes(4000)]))


def test_checkpoints_whose_subjects_are_changed_are_refused(server):
    """A stream that changes the subjects of the checkpoints does not find them, so a repeated batch would fail."""
    make_stream(server, subject_transform=SubjectTransform(src="out.>", dest="other.>"))
    with pytest.raises(SinkError, match="subject_transform"):
        delivery(server, "transaction")
    delivery(server, "window").write(origin(), columns(numbered(0, 10)))


def test_an_id_held_by_a_former_leader_is_explained(server):
    """A row whose id a former leader holds fails after ``ackTimeout``, with an explanation."""
    make_stream(server, subjects=["out.>", "played"])
    refusal = {"code": 409, "err_code": 10158, "description": "duplicate message id is in process"}
    said = json.dumps({"error": refusal, "stream": STREAM, "seq": 0}).encode()
    plan = delivery(server, "window", subject="played", ackTimeout="1s")
    with jetstream_sync.connect(server.url) as leader:
        leader.jetstream().update_stream(name=STREAM, subjects=["out.>"], storage="memory")

        def refuse(msg: Msg) -> None:
            leader.publish(msg.reply, said)

        # No server state produces this refusal reliably, so the test sends it.
        leader.subscribe("played", cb=refuse)
        leader.flush()
        with pytest.raises(
            RowError, match="row 0 of partition 0 .*another leader accepts it at once"
        ):
            plan.write(origin(), columns([b"a"]))


@pytest.mark.parametrize("window", ["1", "7", "5000"])
@pytest.mark.parametrize("kind", ["at-least-once", "window"])
def test_any_window_size_works(server, kind, window):
    """All rows are stored with a window of any size."""
    make_stream(server)
    rows = numbered(0, 300)
    assert delivery(server, kind, maxPending=window).write(origin(), columns(rows)).rows == 300
    assert_once(server, rows)


def test_large_rows_are_sent_few_at_a_time(server):
    """Rows near the size limit of the server are stored, and the bytes in flight stay limited."""
    make_stream(server, storage="file")
    rows = [b"%03d" % number + b"x" * 900_000 for number in range(60)]
    assert delivery(server, "window").write(origin(), columns(rows)).rows == 60
    found = payloads(server)
    assert [item[:3] for item in found] == [row[:3] for row in rows]
    assert {len(item) for item in found} == {900_003}


@pytest.mark.parametrize("kind", EXACT)
def test_repeated_rows_with_an_expected_sequence(server, kind):
    """A stored row with an expected last sequence is refused when it is repeated, or known to be stored."""
    make_stream(server)
    given = options(server, delivery=kind, jobId="j")
    rows = [{"data": b"a", "expected_last_subject_sequence": 0}]
    publish_partition(rows, given)
    if kind == "window":
        with pytest.raises(RowError, match="an earlier attempt has stored the row"):
            publish_partition(rows, given)
    else:
        assert publish_partition(rows, given).duplicates == 1
    assert payloads(server) == [b"a"]


# --- publish_partition ---------------------------------------------------------------------------


class Record(NamedTuple):
    subject: str | None
    data: Any


class Reversed(NamedTuple):
    data: Any
    subject: str | None


@pytest.mark.smoke
@pytest.mark.parametrize(
    ("rows", "names"),
    [
        ([b"a", b"b"], None),
        (["a", "b"], None),
        ([{"data": "a"}, {"data": b"b", "subject": None}][::-1], None),
        ([("out.rows", b"a"), (None, "b")], ("subject", "data")),
        ([Record("out.rows", b"a"), Record(None, bytearray(b"b"))], None),
        ([Text("a"), Data(b"b")], None),
    ],
)
def test_rows_come_in_many_forms(server, rows, names):
    """Payloads, mappings, tuples and records can be published."""
    make_stream(server)
    assert publish_partition(iter(rows), options(server), columns=names).rows == 2
    assert sorted(payloads(server)) == [b"a", b"b"]


@pytest.mark.smoke
def test_record_batches_can_be_published(server):
    """Record batches as passed to mapInArrow are published unchanged."""
    import pyarrow as pa

    make_stream(server)
    batch = pa.record_batch({"data": pa.array(["a", "b"]), "subject": ["out.rows", None]})
    assert publish_partition([batch, batch], options(server)).rows == 4
    assert sorted(payloads(server)) == [b"a", b"a", b"b", b"b"]


def test_an_empty_partition(server):
    """An empty partition sends no request."""
    assert publish_partition(iter([]), options(server, stream="NONE")).rows == 0


def test_rows_that_do_not_name_their_columns_are_refused(server):
    """Tuples need column names, and mappings must have the keys of the first one."""
    make_stream(server)
    with pytest.raises(InvalidArgumentError, match="columns="):
        publish_partition([("a", "b")], options(server))
    with pytest.raises(RowError, match="has msg_id, which the first row does not have"):
        publish_partition([{"data": "a"}, {"data": "b", "msg_id": "c"}], options(server))


def test_a_server_that_restarts_is_waited_for(fresh_server):
    """A task that begins while the server is unavailable waits for it, like one that has begun."""
    make_stream(fresh_server, storage="file")
    fresh_server.kill()
    threading.Timer(0.5, fresh_server.restart).start()
    assert publish_partition([b"a"], options(fresh_server)).rows == 1
    assert payloads(fresh_server) == [b"a"]


def test_calls_with_the_same_job_id(server):
    """With a jobId a second call stores no rows again, and without one it does."""
    make_stream(server)
    for _ in range(2):
        publish_partition([b"a"], options(server, jobId="j"))
    assert payloads(server) == [b"a"]
    for _ in range(2):
        publish_partition([b"a"], options(server))
    assert payloads(server) == [b"a"] * 3
    with pytest.raises(SinkError, match="jobId"):
        publish_partition([b"a"], options(server, delivery="transaction"))


@pytest.mark.parametrize("kind", ["at-least-once", *EXACT])
@pytest.mark.parametrize(
    "subject",
    ["$JS.API.STREAM.PURGE.VICTIM", "$JS.EVENT.ADVISORY.x", "_INBOX.x.y", "victim.x", "out"],
)
@pytest.mark.parametrize("form", ["rows", "arrow"])
def test_a_row_reaches_nothing_but_its_stream(server, kind, subject, form):
    """A subject of another stream, of a server API or of an inbox is refused before a row is sent."""
    # A stream that stores advisories and replies does not make them subjects of rows.
    make_stream(server, subjects=["out.>", "$JS.EVENT.>", "_INBOX.x.*"])
    with jetstream_sync.connect(server.url) as nc:
        js = nc.jetstream()
        js.create_stream(name="VICTIM", subjects=["victim.*"], storage="memory")
        js.publish("victim.1", b"stays")
        heard = nc.subscribe(subject)
        nc.flush()
        given = options(server, delivery=kind, jobId="j")
        rows: Any = [{"data": b"1", "subject": "out.rows"}] * 999
        rows.append({"data": b"2", "subject": subject})
        if form == "arrow":
            rows = [pa.RecordBatch.from_pylist(rows)]
        with pytest.raises(RowError, match="row 999 of partition 0") as error:
            publish_partition(rows, given)
        assert error.value.subject == subject
        nc.flush()
        assert heard.pending_msgs == 0
        assert js.get_stream("VICTIM").info().state.messages == 1
        assert payloads(server) == []


@pytest.mark.parametrize("option", ["subject", "markerSubject"])
def test_an_option_reaches_no_server_api(server, option):
    """Such a subject is refused as an option, too."""
    make_stream(server, subjects=["out.>", "$JS.EVENT.>"])
    given = options(server, delivery="transaction", jobId="j")
    with pytest.raises(SinkError, match="calls a server API"):
        publish_partition([b"1"], given | {option: "$JS.EVENT.x"})


def test_a_payload_of_another_type_is_a_row_error(server):
    """The error names the row and the type."""
    make_stream(server)
    with pytest.raises(RowError, match="row 1 of .*neither binary nor a string: int"):
        publish_partition([{"data": b"1"}, {"data": 1}], options(server))


def test_tombstones_are_written_and_read(server):
    """NULL is an empty payload with the marker of buckets, is read as NULL, and can be copied."""
    make_stream(server, allow_direct=True)
    rows = [{"data": b"1", "headers": {"A": "b"}}, {"data": None, "headers": {"A": "b"}}]
    at_least_once = options(server, delivery="at-least-once")
    publish_partition([*rows, {"data": b"", "headers": None}], at_least_once)
    given = {"servers": server.url, "stream": STREAM}
    (part,) = plan_ranges(given)
    found = list(read_range(part, given, ("data", "headers")))
    marker = {"A": ["b"], "KV-Operation": ["DEL"]}
    assert found[0][0] == b"1"
    expected = {"Nats-Expected-Stream": [STREAM]}
    assert found[1] == (None, marker | expected)
    assert found[2] == (b"", expected)
    for mode in ("direct", "pull"):
        (batch,) = read_range_batches(part, given | {"readMode": mode}, ("data",))
        assert batch.column("data").to_pylist() == [b"1", None, b""]
    publish_partition(found, at_least_once, columns=("data", "headers"))
    again = list(read_range(plan_ranges(given)[0], given, ("data", "headers")))
    assert again[3:] == found


@pytest.mark.parametrize("mode", ["direct", "pull"])
def test_changes_of_a_bucket_have_the_values_of_the_client(server, js, mode):
    """A change is NULL exactly if the client finds no value, whatever another client has stored."""
    kv = js.create_key_value(bucket="B", history=1)
    headers = [
        *({"KV-Operation": name} for name in ("DEL", "PURGE", "PUT", "del", "MOVE")),
        *({"Nats-Marker-Reason": name} for name in ("MaxAge", "Remove", "Else")),
        {"kv-operation": "DEL"},
        {"KV-Operation": "PUT", "Nats-Marker-Reason": "MaxAge"},
        {"A": "KV-Operation: DEL"},
    ]
    for number, lines in enumerate(headers):
        for kind, data in (("empty", b""), ("full", b"x")):
            js.publish(f"$KV.B.{kind}.{number}", data, headers=lines)
    given = {"servers": server.url, "stream": "KV_B", "readMode": mode}
    (part,) = plan_ranges(given)
    found = {
        key[len("$KV.B.") :]: data for key, data in read_range(part, given, ("subject", "data"))
    }
    values = {key: kv.get(key).value for key in kv}
    assert {key: data for key, data in found.items() if data is not None} == values
    assert len(found) == 2 * len(headers)
    (batch,) = read_range_batches(part, given, ("data",))
    assert batch.column("data").to_pylist() == list(found.values())


def test_keys_of_a_bucket_are_deleted_and_purged(server, js):
    """A NULL value deletes a key, and the operation PURGE removes its history too."""
    kv = js.create_key_value(bucket="B", history=5)
    for key in "abc":
        kv.put(key, b"1")
        kv.put(key, b"2")
    wanted = WriteOptions.from_options({"servers": server.url, "bucket": "B"})
    layout = RowLayout(names=("subject", "data", "operation"))
    plan = WritePlan.checked(wanted, layout)
    values = [["a", "b", "c"], [None, None, b"3"], [None, "PURGE", "PUT"]]
    plan.write(origin(), [[layout.columns(values)]])
    assert kv.keys() == ["c"]
    assert len(kv.history("a")) == 3
    assert len(kv.history("b")) == 1
    values = [["c"], [b"4"], ["DEL"]]
    with pytest.raises(RowError, match="DEL or PURGE without one"):
        plan.write(origin(), [[layout.columns(values)]])


def test_option_values_may_be_numbers(server):
    """Options of a helper may be numbers and booleans, as for ``option()`` of Spark."""
    make_stream(server)
    given = {**options(server), "maxPending": 100, "ackTimeout": 5.5, "tlsHandshakeFirst": False}
    assert publish_partition([b"1"], given).rows == 1
    (part,) = plan_ranges({"servers": server.url, "stream": STREAM, "minPartitions": 1})
    assert part.end_seq == 2


def test_headers_that_are_not_utf8(server):
    """Invalid UTF-8 in headers is replaced, so that Spark can take the values."""
    make_stream(server)
    with RawClient(server.port) as raw:
        block = b"NATS/1.0\r\nA: \xff\r\nNats-Msg-Id: \xfe\r\n\r\n"
        raw.send(b"HPUB out.rows %d %d\r\n%b\r\n" % (len(block), len(block), block))
    given = {"servers": server.url, "stream": STREAM}
    wait_until(lambda: len(plan_ranges(given)) == 1, 10)
    (row,) = read_range(plan_ranges(given)[0], given, ("headers", "msg_id"))
    assert row == ({"A": ["\ufffd"], "Nats-Msg-Id": ["\ufffd"]}, "\ufffd")


@pytest.mark.parametrize(
    ("rows", "number"),
    [
        ([b"a", None], 1),
        ([None, b"a"], 0),
        ([{"data": b"a"}, {"data": 1}], 1),
        ([(b"a",), None], 1),
        ([(b"a",), (b"b", "out.x")], 1),
        ([(b"a",), {"data": b"b"}], 1),
        ([b"a", {"data": b"b"}], 1),
        ([{"data": b"a"}, b"b"], 1),
        ([{"data": b"a"}, (b"b",)], 1),
        ([1], 0),
        ([{"data": b"a"}, {"data": "\ud800"}], 1),
        ([{"data": b"a"}, {"data": [1]}], 1),
        ([Record("out.rows", b"a"), Reversed(b"b", "out.rows")], 1),
    ],
)
def test_an_invalid_row_is_named(server, rows, number):
    """The error contains the row number and the partition; a row that is None is not the end of the rows."""
    make_stream(server)
    with pytest.raises(RowError) as error:
        columns = None if isinstance(rows[0], Record) else ["data"]
        publish_partition(rows, options(server), columns=columns, partition=3)
    assert (error.value.row, error.value.partition) == (number, 3)
    assert b"b" not in payloads(server)


@pytest.mark.parametrize(
    "more",
    [
        {"subject": 1},
        {"subject": "out.\ud800"},
        {"msg_id": 7},
        {"msg_id": "\ud800"},
        {"headers": "A: b"},
        {"headers": 5},
        {"headers": [("A",)]},
        {"headers": ["Ab"]},
        {"headers": [{"nom": "A"}]},
        {"headers": [(["A"], "b")]},
        {"headers": {"A": 1}},
        {"headers": {"A": 0}},
        {"headers": {"A": [1]}},
        {"headers": {"A": "\ud800"}},
        {"headers": {"\ud800": "b"}},
        {"headers": {None: "b"}},
        {"key": 3},
        {"key": "\ud800"},
        {"key": b"\xff"},
        {"ttl": [1]},
        {"ttl": Decimal("NaN")},
        {"ttl": float("nan")},
        {"ttl": "\ud800"},
        {"expected_last_sequence": "1"},
        {"expected_last_sequence": -1},
        {"expected_last_msg_id": 3},
        {"unknown": 1},
        {"subject": ""},
        {"subject": 0},
        {"msg_id": 0},
        {"msg_id": False},
        {"headers": 0},
        {"headers": False},
        {"headers": ""},
        {"headers": b""},
        {"headers": {"": "b"}},
        {"key": 0},
        {"ttl": ""},
        {"ttl": 0},
        {"ttl": False},
        {"expected_last_sequence": False},
        {"expected_last_subject_sequence": ""},
        {"expected_last_msg_id": 0},
        {"expected_last_msg_id": ""},
    ],
    ids=str,
)
def test_an_invalid_value_is_named(server, more):
    """Nothing is ignored: a value of the wrong type, or that cannot be encoded, is an error of its row."""
    make_stream(server, allow_msg_ttl=True)
    first = {} if "unknown" in more else dict.fromkeys(more)
    with pytest.raises(RowError) as error:
        publish_partition([{"data": b"a", **first}, {"data": b"b", **more}], options(server))
    assert error.value.row == 1
    assert b"b" not in payloads(server)


def test_a_mapping_without_data_is_no_tombstone(server):
    """A missing payload is an error, since NULL would delete something."""
    make_stream(server)
    with pytest.raises(RowError, match="row 1 .* has no 'data': a tombstone is"):
        publish_partition([{"data": b"a", "msg_id": "1"}, {"msg_id": "2"}], options(server))
    assert b"" not in payloads(server)


@pytest.mark.parametrize(
    "rows", ["ab", b"ab", {"data": b"ab"}, pa.table({"data": ["ab"]}), SimpleNamespace(columns="a")]
)
def test_one_row_is_not_the_rows(server, rows):
    """The characters of a text, the keys of a mapping, or the columns of a table are not taken for rows."""
    make_stream(server)
    with pytest.raises(InvalidArgumentError, match="pass a list"):
        publish_partition(rows, options(server))


def test_record_batches_are_matched_by_name(server):
    """A batch with its columns in another order is written correctly, and one with others is refused."""
    make_stream(server)
    of = pa.RecordBatch.from_pydict
    first, second = {"data": ["a"], "msg_id": ["1"]}, {"msg_id": ["2"], "data": ["b"]}
    publish_partition([of(first), of(second)], options(server))
    assert payloads(server) == [b"a", b"b"]
    for other in ({"data": ["c"]}, {**first, "ttl": [1]}, {"data": [1], "msg_id": ["3"]}):
        with pytest.raises(SchemaError):
            publish_partition([of(first), of(other)], options(server))
    with pytest.raises(InvalidArgumentError, match="to_batches"):
        publish_partition([pa.table(first)], options(server))
    assert payloads(server) == [b"a", b"b"]


@pytest.mark.smoke
@pytest.mark.full
def test_spark_tasks_take_their_ids_from_their_task(spark, server, tmp_path):
    """In foreachBatch, foreachPartition stores the rows of a repeated batch once."""
    from fixtures.spark import forget_commit

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


@pytest.mark.smoke
def test_ranges_are_planned_and_read(server):
    """The planned ranges return each message once, as tuples or record batches."""
    make_stream(server, allow_direct=True)
    publish_partition(numbered(0, 1000), options(server, delivery="at-least-once"))
    given = {"servers": server.url, "stream": STREAM, "maxRecordsPerPartition": "300"}
    ranges = plan_ranges(given)
    assert len(ranges) == 4
    rows = [row for item in ranges for row in read_range(item, given, ("sequence", "data"))]
    assert rows == [(number + 1, b"%d" % number) for number in range(1000)]
    batches = [batch for one in ranges for batch in read_range_batches(one, given, ("data",))]
    assert [value for batch in batches for value in batch["data"].to_pylist()] == numbered(0, 1000)


def test_a_read_without_columns_is_refused(server):
    """It would return no row, as if the range were empty."""
    make_stream(server)
    publish_partition(numbered(0, 10), options(server))
    given = {"servers": server.url, "stream": STREAM}
    (part,) = plan_ranges(given)
    for read in (read_range, read_range_batches):
        with pytest.raises(InvalidArgumentError, match="at least one column"):
            next(read(part, given, ()))


@pytest.mark.parametrize("mode", ["direct", "pull"])
def test_a_range_may_begin_at_zero(server, mode):
    """A range that the user has made begins with the first message, whose sequence is 1."""
    make_stream(server, allow_direct=True)
    publish_partition(numbered(0, 3), options(server))
    given = {"servers": server.url, "stream": STREAM, "readMode": mode}
    part = SequenceRange(STREAM, 0, 3)
    assert list(read_range(part, given, ("sequence",))) == [(1,), (2,)]


# --- work queues ---------------------------------------------------------------------------------


@pytest.fixture
def queue(server: NatsServer, js: JetStream) -> dict[str, str]:
    """Return the options of a work queue with 100 messages and a durable consumer."""
    make_stream(server, retention="workqueue")
    js.create_consumer(STREAM, durable_name="WORK", ack_wait=30.0)
    for number in range(100):
        js.publish_async("out.rows", b"%d" % number)
    js.publish_async_completed(10)
    return {"servers": server.url, "stream": STREAM, "consumer": "WORK"}


@pytest.mark.smoke
def test_processed_work_is_removed(queue, server):
    """Each message is delivered once, and removed from the queue at the end of its with block."""
    done: Payloads = []
    for batch in take_work(queue, batch=30, idle_seconds=0.2):
        with batch:
            done += [message.data for message in batch]
        assert len(payloads(server)) == 100 - len(done)
    assert Counter(done) == Counter(numbered(0, 100))


def test_failed_work_is_delivered_again(queue, server):
    """An error in the with block returns the batch to the queue at once."""
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


def test_limits_of_take_work(queue):
    """At most max_messages messages are taken, and no batch after max_seconds."""
    assert sum(len(item) for item in take_work(queue, batch=30, max_messages=70)) == 70
    assert list(take_work(queue, max_seconds=0.0)) == []


def test_a_message_can_be_settled_individually(queue, server):
    """A message that the task settled is not acknowledged again."""
    (batch,) = take_work(queue, batch=100, max_messages=100)
    with batch:
        batch.messages[0].term()
        batch.messages[1].ack_sync()
        batch.in_progress()
    wait_until(lambda: payloads(server) == [])


@pytest.mark.smoke
def test_work_can_be_acknowledged_in_another_task(spark, queue, server):
    """A mapInArrow takes work, and a later job acknowledges it."""

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


def test_an_unsuitable_consumer_is_refused(queue, server, js):
    """The option consumer is required, and must name a consumer with explicit acknowledgements."""
    with pytest.raises(InvalidOptionError, match="consumer"):
        next(take_work({"servers": server.url, "stream": STREAM}))
    with pytest.raises(ConsumerNotFoundError):
        next(take_work(queue | {"consumer": "OTHER"}))
    js.create_stream(name="LOG", subjects=["log.>"], storage="memory")
    js.create_consumer("LOG", durable_name="NOACK", ack_policy="none")
    with pytest.raises(InvalidOptionError, match="explicit"):
        next(take_work({"servers": server.url, "stream": "LOG", "consumer": "NOACK"}))


@pytest.mark.parametrize(
    "replies",
    [
        "out.rows",
        ["out.rows"],
        ["$JS.API.STREAM.PURGE.OUT"],
        ["$JS.ACK.a.b.c.d.e.f.g\r\nPING"],
        [""],
    ],
)
def test_acknowledging_reaches_no_other_subject(queue, server, replies):
    """A value that is not the reply subject of a message is refused, and nothing is sent to it."""
    with pytest.raises((InvalidArgumentError, NotJSMessageError)):
        acknowledge(replies, queue)
    assert len(payloads(server)) == 100


@pytest.mark.parametrize("limits", [{"batch": 0}, {"max_messages": -1}])
def test_limits_out_of_range_are_refused(queue, limits):
    """A negative limit is not taken for no limit."""
    with pytest.raises(InvalidOptionError):
        next(take_work(queue, **limits))


def test_acknowledging_without_the_consumer_is_an_error(queue, js):
    """Acknowledgements fail if the consumer was deleted."""
    batch = next(take_work(queue))
    js.delete_consumer(STREAM, "WORK")
    with pytest.raises(ConsumerNotFoundError):
        batch.acknowledge()


# --- clusters and permissions --------------------------------------------------------------------


@pytest.mark.full
def test_a_forgotten_batch_is_sent_again(server, monkeypatch):
    """A leader that steps down forgets a batch without a reply, and the batch is sent again in time."""
    make_stream(server)
    really = transactions.joined_commands
    forgotten: Payloads = []

    def forget(*arguments: Any) -> bytes:
        made = really(*arguments)
        if not forgotten and b"Nats-Batch-Commit" in made:
            forgotten.append(made)
            return b""
        return made

    monkeypatch.setattr(transactions, "joined_commands", forget)
    rows = numbered(0, 1500)
    write = delivery(server, "transaction", ackTimeout="8s").write
    assert write(origin(), columns(rows)).rows == 1500
    assert len(forgotten) == 1
    assert_once(server, rows)


def stepped_down(nc: Connection, led: set[str]) -> bool:
    """
    Make the stream leader step down in favour of a server that was not leader before, if there is one.

    A server that becomes leader again may refuse ids as being stored for the whole duplicate window: of the
    messages that it had begun to store it drops only the last ones (``processStreamLeaderChange``).
    """
    try:
        cluster = json.loads(nc.request(f"$JS.API.STREAM.INFO.{STREAM}", timeout=1).data)["cluster"]
        led.add(cluster["leader"])
        new = min({item["name"] for item in cluster["replicas"] if item["current"]} - led)
        response = nc.request(
            f"$JS.API.STREAM.LEADER.STEPDOWN.{STREAM}",
            json.dumps({"placement": {"preferred": new}}).encode(),
            timeout=1,
        )
    except (TimeoutError, NoRespondersError, KeyError, ValueError):
        return False
    return b'"success":true' in response.data


@pytest.mark.full
@pytest.mark.parametrize("kind", EXACT)
def test_a_leader_that_steps_down_loses_nothing(cluster, kind):
    """Rows that the stream leader forgets are sent again, and rows that it stored are not duplicated."""
    first = cluster.servers[0]
    make_stream(first, num_replicas=3, storage="file", allow_rollup_hdrs=True)
    rows = numbered(0, 6000)
    led: set[str] = set()

    def interrupted() -> Iterator[list[Columns]]:
        with jetstream_sync.connect(first.url) as nc:
            for number, part in enumerate(columns(rows, 500)):
                if number in {3, 8}:
                    wait_until(partial(stepped_down, nc, led), 20)
                yield part

    write = delivery(first, kind, ackTimeout="40s").write
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
def test_a_missing_permission_is_an_error_at_once(kind):
    """The error names the missing permission, and is raised without waiting for an acknowledgement."""
    with NatsServer(config=PERMISSIONS) as server:
        url = f"nats://boss:b@127.0.0.1:{server.port}"
        with jetstream_sync.connect(url) as nc:
            nc.jetstream().create_stream(
                name=STREAM, subjects=["out.>"], allow_atomic=True, storage="memory"
            )
        login = {"servers": f"nats://127.0.0.1:{server.port}", "user": "app", "password": "a"}
        given = options(server, delivery=kind, jobId="j", ackTimeout="20s") | login
        rows = [("out.allowed", b"1"), ("out.forbidden", b"2")]
        with within(10), pytest.raises((SinkError, PermissionsError), match=r"out\.forbidden"):
            publish_partition(rows, given, columns=("subject", "data"))
