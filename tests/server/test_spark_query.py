"""Planning of Spark reads with a real server, without Spark."""

from __future__ import annotations

import contextlib
import io
import json
import shutil
import subprocess
import sys
from collections import Counter
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from time import monotonic, sleep
from typing import TYPE_CHECKING, Any

import pytest
from fixtures.spark_streams import fill
from fixtures.threads import SCALE, wait_until

import jetstream_sync
from jetstream_sync import StreamSource, Subscription, errors
from jetstream_sync.durations import time_to_ns
from jetstream_sync.server import NatsServer
from jetstream_sync.spark.connections import connection, is_batching
from jetstream_sync.spark.options import ReadOptions
from jetstream_sync.spark.planning.batch_read import plan_read
from jetstream_sync.spark.planning.data_loss import DataLossError
from jetstream_sync.spark.planning.offsets import Offset
from jetstream_sync.spark.reading.range_reader import _RangeReader
from jetstream_sync.spark.reading.ranges import RangeLostError, SequenceRange
from jetstream_sync.spark.sink_errors import CheckpointRewoundError
from jetstream_sync.spark.streaming.commit import Claim, CommitHandler, QueueInUseError
from jetstream_sync.spark.streaming.query import Arrivals, QueryPlanner
from jetstream_sync.spark.streams import stream_view
from jetstream_sync.spark.task_helpers import read_range

if TYPE_CHECKING:
    from collections.abc import Iterator

    from jetstream_sync import JetStream, Stream


class Query(QueryPlanner):
    """A query whose offsets pass through JSON, as in Spark."""

    def initial(self) -> dict[str, Any]:
        return super().initial().to_json()

    def latest(self, start: dict[str, Any], *, unlimited: bool) -> dict[str, Any]:
        offset = Offset.from_json(start)
        end = super().latest(offset, unlimited=unlimited)
        return start if end is offset else end.to_json()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[SequenceRange]:
        return super().partitions(Offset.from_json(start), Offset.from_json(end))

    def commit(self, end: dict[str, Any]) -> None:
        super().commit(Offset.from_json(end))


class Planner:
    """Creates query planners like a driver, and closes their connections."""

    def __init__(self, server: NatsServer) -> None:
        self._server = server
        self._options: list[ReadOptions] = []

    def options(self, stream: str, **options: object) -> ReadOptions:
        given = {"servers": self._server.url, "planningTimeout": "5s"}
        given |= {"stream": stream} if stream else {}
        given |= {name: str(value) for name, value in options.items()}
        self._options.append(ReadOptions.from_options(given))
        return self._options[-1]

    def query(self, stream: str, **options: object) -> Query:
        return Query(self.options(stream, **options))

    def close(self) -> None:
        for options in self._options:
            with contextlib.suppress(errors.NoServersError):
                connection(options.connection).close()


@pytest.fixture
def planner(nats_server: NatsServer) -> Iterator[Planner]:
    found = Planner(nats_server)
    yield found
    found.close()


def step(query: Query, start: dict[str, Any], *, unlimited: bool = False) -> dict[str, Any]:
    """Plan the next batch; the offsets pass through JSON, as in Spark."""
    end = query.latest(json.loads(json.dumps(start)), unlimited=unlimited)
    restored: dict[str, Any] = json.loads(json.dumps(end))
    return restored


def planned(query: Query, start: dict[str, Any], end: dict[str, Any]) -> list[tuple[int, int]]:
    return [(partition.start_seq, partition.end_seq) for partition in query.partitions(start, end)]


def work_queue(js: JetStream, name: str, **more: Any) -> Stream:
    config = {"allow_direct": True, "storage": "memory", "retention": "workqueue"} | more
    return js.create_stream(name=name, subjects=[f"{name}.>"], **config)


def test_batches_are_adjacent(js, stream, planner):
    """Each batch begins at the end of the previous one, and all messages are read."""
    fill(js, f"{stream.name}.a", 25)
    query = planner.query(stream.name, startingOffsets="earliest", maxOffsetsPerTrigger=10)
    offset, found = query.initial(), []
    while (end := step(query, offset)) != offset:
        found.append(planned(query, offset, end))
        offset = end
    assert found == [[(1, 11)], [(11, 21)], [(21, 26)]]


def test_the_initial_offset_is_stable(js, stream, planner):
    """Spark asks a new query twice, and messages that arrive in between belong to the query."""
    query = planner.query(stream.name)
    first = query.initial()
    fill(js, f"{stream.name}.a", 5)
    assert query.initial() == first
    assert planned(query, first, step(query, first)) == [(1, 6)]


def test_a_batch_is_planned_from_its_end_alone(js, stream, planner):
    """Another process with other options and another start plans the same partitions."""
    fill(js, f"{stream.name}.a", 100)
    query = planner.query(stream.name, startingOffsets="earliest", maxRecordsPerPartition=30)
    start = query.initial()
    end = step(query, start)
    fill(js, f"{stream.name}.a", 100)
    other = planner.query(stream.name, minPartitions=7)
    ranges = planned(query, start, end)
    assert planned(other, other.initial(), end) == ranges
    assert len(ranges) == 4
    assert planned(query, end, end) == []


@pytest.fixture
def two(js: JetStream, stream_name: str) -> list[str]:
    """Return the names of two streams with five messages each."""
    names = [f"{stream_name}_{which}" for which in "AB"]
    for name in names:
        js.create_stream(name=name, subjects=[f"{name}.>"], storage="memory")
        fill(js, f"{name}.a", 5)
    return names


def read(query: Query, start: dict[str, Any], end: dict[str, Any]) -> list[tuple[str, int, int]]:
    """Return the ranges of a batch, with their streams."""
    return [
        (partition.stream, partition.start_seq, partition.end_seq)
        for partition in query.partitions(start, end)
    ]


def test_an_idle_stream_is_not_read_again(js, two, planner):
    """A batch of one stream has an empty range for the others."""
    query = planner.query(",".join(two), startingOffsets="earliest")
    first = step(query, query.initial())
    fill(js, f"{two[0]}.a", 5)
    assert read(query, first, step(query, first)) == [(two[0], 6, 11)]


def test_streams_that_are_no_longer_selected_are_dropped(js, two, planner):
    """With fewer streams in the options, a query continues with the remaining ones."""
    query = planner.query(",".join(two), startingOffsets="earliest")
    first = step(query, query.initial())
    for name in two:
        fill(js, f"{name}.a", 5)
    fewer = planner.query(two[0])
    assert read(fewer, first, step(fewer, first)) == [(two[0], 6, 11)]


#: The requests to the server by their letters in `test_a_trigger_asks_for_each_thing_once`.
REQUESTS = {
    "STREAM.INFO": "i",
    "STREAM.MSG.GET": "g",
    "DIRECT.GET": "d",
    "STREAM.PURGE": "p",
    "CONSUMER.INFO": "c",
    "CONSUMER.CREATE": "n",
    "CONSUMER.RESET": "r",
}


@pytest.mark.server(">=2.14")
@pytest.mark.parametrize(
    ("fields", "options", "requests"),
    [
        # A stream that has new messages may have been deleted and restored since the last trigger.
        ({}, {"startingOffsets": "earliest"}, ["ig", "", "", "i"]),
        ({}, {"startingOffsets": "earliest", "subjects": "T.a"}, ["iggdgd", "", "", "i"]),
        ({"retention": "workqueue"}, {}, ["igc", "c", "icp", "ic"]),
        # The owner may have changed while other streams were committed, so a commit looks at the consumer again.
        ({"retention": "interest"}, {"consumer": "c"}, ["igc", "c", "iccncr", "ic"]),
    ],
    ids=["limits", "filtered", "queue", "interest"],
)
def test_a_trigger_asks_for_each_thing_once(js, planner, fields, options, requests):
    """The requests of a trigger, of the plan of its batch, of its commit and of an idle trigger, each of which is needed."""
    js.create_stream(name="T", subjects=["T.*"], allow_direct=True, **fields)
    if "consumer" in options:
        js.create_consumer("T", durable_name="c", ack_policy="all")
    fill(js, "T.a", 5)
    query = planner.query("T", minPollInterval="0s", **options)
    offset = step(query, query.initial())
    query.commit(offset)
    fill(js, "T.a", 5)
    with jetstream_sync.connect(planner._server.url) as nc:
        asked = nc.subscribe("$JS.API.>")

        def sent() -> str:
            nc.flush()
            names = []
            while asked.pending_msgs:
                names.append(asked.next_msg(1).subject.removeprefix("$JS.API.").partition(".T")[0])
            return "".join(REQUESTS[name] for name in names)

        sent()
        end = step(query, offset)
        found = [sent()]
        for call in (
            lambda: query.partitions(offset, end),
            lambda: query.commit(end),
            lambda: step(query, end),
        ):
            call()
            found.append(sent())
    assert found == requests


def test_a_subscription_whose_limit_was_not_sent_is_made_again(js, stream, planner, monkeypatch):
    """A subscription without its limit would receive every message; the next attempt replaces it."""
    options, arrivals = planner.options(stream.name), Arrivals()
    view = stream_view(stream.info())

    unsubscribe = Subscription.unsubscribe

    def full(subscription: Subscription, limit: int = 0) -> None:
        if limit:
            raise errors.OutboundBufferLimitError("full")
        unsubscribe(subscription)

    with jetstream_sync.connect(planner._server.url) as nc:
        with monkeypatch.context() as patch, pytest.raises(errors.OutboundBufferLimitError):
            patch.setattr(Subscription, "unsubscribe", full)
            arrivals.watch(nc, [view], options)
        arrivals.watch(nc, [view], options)
        nc.flush()
        fill(js, f"{stream.name}.a", 5)
        wait_until(arrivals.seen)
        nc.flush()
        assert nc.stats["in_msgs"] == 1


@pytest.mark.parametrize(
    ("start", "end"),
    [
        ({"startingOffsets": 15}, {"endingOffsets": 12}),
        ({"startingOffsets": "latest"}, {"endingOffsets": 12}),
    ],
)
def test_a_read_that_would_end_before_its_start_is_refused(js, stream, planner, start, end):
    """An empty result would look like a range without messages."""
    fill(js, f"{stream.name}.a", 20)
    with pytest.raises(errors.InvalidOptionError, match="^endingOffsets=12: "):
        plan_read(planner.options(stream.name, **start, **end))
    assert plan_read(planner.options(stream.name, endingOffsets=1)) == []
    stream.purge(seq=10)
    assert plan_read(planner.options(stream.name, endingOffsets=5)) == []


def test_a_filter_that_cannot_match_is_refused(js, stream, planner, caplog):
    """An empty result would look like a stream without such messages."""
    fill(js, f"{stream.name}.a", 3)
    wrong = {"subjects": f"{stream.name}.a,orders.>", "startingOffsets": "earliest"}
    for call in (
        lambda: plan_read(planner.options(stream.name, **wrong)),
        lambda: planner.query(stream.name, **wrong).initial(),
    ):
        with pytest.raises(errors.InvalidOptionError, match="^subjects='?orders.>"):
            call()
    assert len(plan_read(planner.options("", streamPattern=f"{stream.name}*", **wrong))) == 1
    assert "no message" in caplog.text
    # Messages from before a change of the subjects are read, and so is what may come from another stream.
    js.update_stream(replace(stream.info().config, subjects=["orders.>"]))
    old = planner.options(stream.name, subjects=f"{stream.name}.a")
    assert [part.end_seq for part in plan_read(old)] == [4]
    copy = js.create_stream(name=f"{stream.name}_copy", sources=[StreamSource(name=stream.name)])
    assert plan_read(planner.options(copy.name, subjects="anything")) == []


def test_a_missing_stream_fails_at_the_start(planner):
    """A stream that does not exist fails the query at its start."""
    with pytest.raises(errors.StreamNotFoundError):
        planner.query("NONE").initial()
    with pytest.raises(errors.StreamNotFoundError):
        plan_read(planner.options("NONE"))


def test_a_query_moves_with_its_position_not_with_its_checkpoint(
    js, stream_name, fresh_server, planner
):
    """On another cluster the checkpoint is an error; its position is right in a restored stream."""
    stream = js.create_stream(name=stream_name, subjects=[f"{stream_name}.>"])
    fill(js, f"{stream.name}.a", 10)
    query = planner.query(stream.name, startingOffsets="earliest")
    offset = step(query, query.initial())
    backup = io.BytesIO()
    with stream.snapshot() as snapshot:
        snapshot.write_to(backup)
    backup.seek(0)
    with jetstream_sync.connect(fresh_server.url) as nc:
        other = nc.jetstream()
        other.restore_stream(snapshot.info, backup)
        fill(other, f"{stream.name}.a", 5)
        moved = Planner(fresh_server)
        # A server before 2.15 keeps the creation time.
        with contextlib.suppress(DataLossError):
            step(moved.query(stream.name), offset)
        position = offset["streams"][stream.name]["next"]
        query = moved.query(stream.name, startingOffsets=position)
        offset = query.initial()
        assert planned(query, offset, step(query, offset)) == [(11, 16)]
        moved.close()


@pytest.mark.parametrize("more", [3, 20])
def test_a_stream_that_was_restored_to_an_earlier_state_is_an_error(js, stream_name, planner, more):
    """Other messages have the sequences that were read, whether the stream ends before the offset or behind it."""
    stream = js.create_stream(name=stream_name, subjects=[f"{stream_name}.>"])
    backup = io.BytesIO()
    fill(js, f"{stream.name}.a", 5)
    with stream.snapshot() as snapshot:
        snapshot.write_to(backup)
    backup.seek(0)
    query = planner.query(stream.name, startingOffsets="earliest")
    fill(js, f"{stream.name}.a", 5)
    offset = step(query, query.initial())
    # Another process goes on where the stream is the same one.
    fill(js, f"{stream.name}.a", 1)
    assert planned(planner.query(stream.name), offset, step(planner.query(stream.name), offset))
    js.delete_stream(stream.name)
    js.restore_stream(snapshot.info, backup)
    fill(js, f"{stream.name}.b", more)
    with pytest.raises(DataLossError, match="restored to an earlier|ends at|is not the stream"):
        step(planner.query(stream.name), offset)
    query = planner.query(stream.name, failOnDataLoss="false")
    assert planned(query, offset, step(query, offset)) == [(1, 6 + more)]


@pytest.fixture
def rolled_back(fresh_server: NatsServer, tmp_path: Path) -> Iterator[RolledBack]:
    with closing(RolledBack(fresh_server, tmp_path / "copy")) as found:
        yield found


class RolledBack:
    """A work queue S whose server is stopped, and started with an older copy of its files and other messages."""

    def __init__(self, server: NatsServer, copy: Path) -> None:
        self._server = server
        self._copy = copy
        self.planner = Planner(server)
        self._fill("old", 5)
        server.stop()
        shutil.copytree(server.store_dir, copy)
        server.start()
        self._fill("lost", 5)

    def roll_back(self, more: int, subject: str = "S.a") -> None:
        self._server.stop()
        shutil.rmtree(self._server.store_dir)
        shutil.copytree(self._copy, self._server.store_dir)
        self._server.start()
        self._fill("other", more, subject)

    def _fill(self, payload: str, count: int, subject: str = "S.a") -> None:
        with jetstream_sync.connect(self._server.url) as nc:
            js = nc.jetstream()
            with contextlib.suppress(errors.StreamNameInUseError):
                work_queue(js, "S", storage="file")
            fill(js, subject, count, payload.encode())

    def held(self) -> int:
        with jetstream_sync.connect(self._server.url) as nc:
            return nc.jetstream().get_stream("S").info().state.messages

    def close(self) -> None:
        self.planner.close()


@pytest.mark.parametrize("more", [0, 20])
def test_a_repeated_batch_of_a_server_that_was_rolled_back_is_an_error(
    rolled_back, more, monkeypatch
):
    """The batch has other rows now, or fewer; with ``failOnDataLoss=false`` the stream is read from its start."""
    monkeypatch.setattr("jetstream_sync.spark.streaming.query.sleep", lambda _: None)
    query = rolled_back.planner.query("S")
    start = query.initial()
    end = step(query, start)
    assert planned(query, start, end) == [(1, 11)]
    rolled_back.roll_back(more)
    with pytest.raises(DataLossError, match="ends at|restored to an earlier"):
        planned(rolled_back.planner.query("S"), start, end)
    query = rolled_back.planner.query("S", failOnDataLoss="false")
    assert planned(query, start, end) == []
    assert planned(query, end, step(query, end)) == [(1, 6 + more)]


def test_a_running_query_notices_that_the_server_was_rolled_back(rolled_back):
    """After a reconnect the last message that was read must be the same one, however long the stream is."""
    query = rolled_back.planner.query("S")
    end = step(query, query.initial())
    rolled_back.roll_back(20)
    with pytest.raises(DataLossError, match="restored to an earlier"):
        step(query, end)


def test_what_did_not_match_before_a_rollback_may_match_after_it(rolled_back):
    """The sequences that were searched have other messages."""
    query = rolled_back.planner.query("S", subjects="S.b", minPollInterval=0)
    start = query.initial()
    assert planned(query, start, step(query, start)) == []
    rolled_back.roll_back(20, "S.b")
    assert planned(query, start, step(query, start)) == [(6, 26)]


def test_what_does_not_match_may_leave_the_stream_before_a_reconnect(js, stream, planner):
    """It was searched, so it is not lost."""
    options = planner.options(
        stream.name, subjects=f"{stream.name}.a", startingOffsets="earliest", minPollInterval=0
    )
    query = Query(options)
    fill(js, f"{stream.name}.a", 3)
    end = step(query, query.initial())
    query.commit(end)
    fill(js, f"{stream.name}.b", 20)
    assert step(query, end) == end
    stream.purge()
    nc = connection(options.connection)
    nc.reconnect()
    wait_until(lambda: nc.stats["reconnects"] == 1 and nc.is_connected)
    assert step(query, end) == end
    fill(js, f"{stream.name}.a", 2)
    assert planned(query, end, step(query, end)) == [(24, 26)]


def test_a_range_of_a_server_that_was_rolled_back_is_an_error(rolled_back, monkeypatch):
    """A stream that has become shorter has lost the rest of a range, which is not the end of the range."""
    monkeypatch.setattr("jetstream_sync.spark.reading.range_reader._END_CHECKS", 2)
    given = rolled_back.planner.options("S")
    (part,) = plan_read(given)
    rolled_back.roll_back(0)
    with pytest.raises(RangeLostError, match="6 to 10"):
        list(read_range(part, given, ("sequence",)))
    accepting = rolled_back.planner.options("S", failOnDataLoss="false")
    rows = [sequence for (sequence,) in read_range(part, accepting, ("sequence",))]
    assert rows == [1, 2, 3, 4, 5]


def test_a_commit_does_not_touch_a_queue_that_was_rolled_back(rolled_back):
    """The sequences of the committed batch belong to messages that were not read."""
    query = rolled_back.planner.query("S")
    end = step(query, query.initial())
    rolled_back.roll_back(20)
    for again in (query, rolled_back.planner.query("S")):
        again.commit(end)
        assert rolled_back.held() == 25


def test_a_checkpoint_of_other_streams_is_refused(two, planner):
    """The other stream would be read from its start without a word."""
    query = planner.query(two[0], startingOffsets="earliest")
    offset = step(query, query.initial())
    with pytest.raises(errors.InvalidOptionError, match=f"^stream='?{two[1]}.*{two[0]}"):
        step(planner.query(two[1]), offset)
    with pytest.raises(errors.InvalidOptionError, match=f"^streamPattern='?{two[1]}.*{two[0]}"):
        step(planner.query("", streamPattern=f"{two[1]}*"), offset)


class Restorable:
    """A stream with five messages in its backup."""

    def __init__(self, js: JetStream, name: str, **config: Any) -> None:
        self._js = js
        self.name = name
        stream = js.create_stream(name=name, subjects=[f"{name}.>"], **config)
        fill(js, f"{name}.a", 5)
        self._backup = io.BytesIO()
        with stream.snapshot() as snapshot:
            snapshot.write_to(self._backup)
        self._info = snapshot.info

    def restore(self, offset: dict[str, Any], more: int) -> dict[str, Any]:
        """Restore the backup, publish other messages, and return the offset as servers before 2.15 need it."""
        with contextlib.suppress(errors.StreamNotFoundError):
            self._js.delete_stream(self.name)
        self._backup.seek(0)
        stream = self._js.restore_stream(self._info, self._backup)
        fill(self._js, f"{self.name}.b", more)
        # Those servers keep the creation time, so the offset seems to belong to the stream.
        created = str(time_to_ns(stream.cached_info.created))
        known = offset["streams"][self.name] | {"created": created}
        return offset | {"streams": offset["streams"] | {self.name: known}}


def test_a_restored_stream_is_read_from_its_start_after_waiting_for_messages(
    js, stream_name, planner
):
    """A trigger that finds the loss and plans no batch leaves it to the next one."""
    stream = Restorable(js, stream_name)
    fill(js, f"{stream_name}.a", 5)
    query = planner.query(stream_name, startingOffsets="earliest")
    offset = stream.restore(step(query, query.initial()), 20)
    waits = {"minOffsetsPerTrigger": 100, "maxTriggerDelay": "1h", "minPollInterval": "0s"}
    query = planner.query(stream_name, failOnDataLoss="false", **waits)
    assert step(query, offset) == offset
    fill(js, f"{stream_name}.b", 100)
    assert planned(query, offset, step(query, offset)) == [(1, 126)]


def test_a_restored_stream_is_an_error_while_the_state_of_another_is_read_again(
    js, stream_name, planner, monkeypatch
):
    """A lagging reply about one stream does not hide that the other one was restored."""
    stream, lagging = Restorable(js, f"{stream_name}_A"), Restorable(js, f"{stream_name}_B")
    fill(js, f"{stream.name}.a", 5)
    query = planner.query("", streamPattern=f"{stream_name}_*", startingOffsets="earliest")
    offset = stream.restore(step(query, query.initial()), 20)
    del offset["streams"][lagging.name]["last"]
    offset["streams"][lagging.name]["next"] = 8

    def catch_up(_seconds: float) -> None:
        fill(js, f"{lagging.name}.a", 2)

    monkeypatch.setattr("jetstream_sync.spark.streaming.query.sleep", catch_up)
    query = planner.query("", streamPattern=f"{stream_name}_*")
    with pytest.raises(DataLossError, match="A was restored to an earlier state"):
        step(query, offset)


@pytest.mark.parametrize("start", ["earliest", "latest"])
def test_a_restored_stream_without_messages_in_the_last_batch_is_an_error(
    js, stream_name, planner, start
):
    """The offset keeps the time of the last message of a stream while a batch has none of its messages."""
    busy, idle = Restorable(js, f"{stream_name}_A"), Restorable(js, f"{stream_name}_B")
    names = f"{busy.name},{idle.name}"
    fill(js, f"{idle.name}.a", 5)
    query = planner.query(names, startingOffsets=start)
    offset = query.initial()
    for _ in range(2):
        fill(js, f"{busy.name}.a", 5)
        offset = step(query, offset)
    offset = idle.restore(offset, 20)
    with pytest.raises(DataLossError, match="B was restored to an earlier state"):
        step(planner.query(names), offset)


def test_a_stream_that_is_restored_while_a_query_runs_is_an_error(js, stream_name, planner):
    """A stream that became shorter is compared again, although it does not end before the offset."""
    stream = Restorable(js, stream_name)
    fill(js, f"{stream_name}.a", 5)
    waits = {"minOffsetsPerTrigger": 10, "maxTriggerDelay": "1h", "minPollInterval": "0s"}
    query = planner.query(stream_name, startingOffsets="earliest", **waits)
    offset = step(query, query.initial())
    fill(js, f"{stream_name}.a", 5)
    assert step(query, offset) == offset
    offset = stream.restore(offset, 7)
    with pytest.raises(DataLossError, match="restored to an earlier state"):
        step(query, offset)


def test_a_stream_that_was_missing_and_restored_is_read_from_its_start(js, stream_name, planner):
    """A stream that did not exist when a batch was planned is compared when it exists again."""
    busy, lost = Restorable(js, f"{stream_name}_A"), Restorable(js, f"{stream_name}_B")
    fill(js, f"{lost.name}.a", 5)
    names = f"{busy.name},{lost.name}"
    # Both are asked at each trigger, however long it takes until a message is noticed.
    options = {"failOnDataLoss": "false", "minPollInterval": "0s"}
    query = planner.query(names, startingOffsets="earliest", **options)
    offset = step(query, query.initial())
    js.delete_stream(lost.name)
    fill(js, f"{busy.name}.a", 5)
    offset = step(query, offset)
    offset = lost.restore(offset, 20)
    assert read(query, offset, step(query, offset)) == [(lost.name, 1, 26)]


@pytest.mark.parametrize("subjects", [None, "*.a"])
@pytest.mark.parametrize("is_listed", [False, True])
def test_a_stream_restored_between_two_triggers_is_an_error(
    js, stream_name, planner, is_listed, subjects
):
    """Also a longer copy, which is there before the query asks for the state again, is noticed."""
    busy, idle = Restorable(js, f"{stream_name}_A"), Restorable(js, f"{stream_name}_B")
    fill(js, f"{idle.name}.a", 5)
    names = f"{busy.name},{idle.name}" if is_listed else idle.name
    options = {"subjects": subjects} if subjects else {}
    query = planner.query(names, startingOffsets="earliest", minPollInterval="1s", **options)
    offset = step(query, query.initial())
    if subjects:  # these do not match, so the query has seen more than its position
        fill(js, f"{idle.name}.c", 10)
        offset = step(query, offset)
    offset = idle.restore(offset, 30)
    # As on servers that keep the creation time.
    query._memory._known[idle.name].created_ns = int(offset["streams"][idle.name]["created"])
    fill(js, f"{busy.name}.a", 5)
    with pytest.raises(DataLossError, match="B was restored to an earlier state"):
        for _ in range(200):
            offset = step(query, offset)
            sleep(0.01)


def test_a_queue_created_again_between_two_triggers_keeps_its_messages(js, stream_name, planner):
    """A commit removes nothing from a stream of which this process knows an older state."""
    names = [f"{stream_name}_{letter}" for letter in "AB"]
    busy, queue = (work_queue(js, name) for name in names)
    fill(js, f"{queue.name}.a", 5)
    query = planner.query(",".join(names), minPollInterval="30s")
    offset = query.initial()
    while (end := step(query, offset)) == offset:
        sleep(0.01)
    js.delete_stream(queue.name)
    queue = work_queue(js, names[1])
    fill(js, f"{queue.name}.a", 10)
    fill(js, f"{busy.name}.a", 1)
    query.commit(end)
    with pytest.raises(DataLossError, match="created again"):
        for _ in range(200):
            end = step(query, end)
            sleep(0.01)
    assert queue.info().state.messages == 10


def test_strict_reports_removals_by_a_limit_per_subject(js, stream_name, planner):
    """A limit per subject moves the start of the stream, which is an error only with ``strict``."""
    js.create_stream(name=stream_name, subjects=[f"{stream_name}.>"], max_msgs_per_subject=1)
    fill(js, f"{stream_name}.a", 3)
    query = planner.query(stream_name, startingOffsets="earliest")
    offset = step(query, query.initial())
    fill(js, f"{stream_name}.a", 3)
    assert planned(query, offset, step(query, offset)) == [(6, 7)]
    strict = planner.query(stream_name, failOnDataLoss="strict")
    with pytest.raises(DataLossError):
        step(strict, offset)


def test_planning_timeout_ends_the_query(fresh_server):
    """After ``planningTimeout`` the error is raised."""
    planner = Planner(fresh_server)
    with jetstream_sync.connect(fresh_server.url) as nc:
        nc.jetstream().create_stream(name="S", subjects=["s"])
    query = planner.query("S", planningTimeout="500ms", timeout="200ms", connectTimeout="200ms")
    offset = query.initial()
    fresh_server.stop()
    with pytest.raises(
        (jetstream_sync.TimeoutError, errors.ConnectionClosedError, errors.NoServersError)
    ):
        step(query, offset)
    planner.close()


# --- requests -----------------------------------------------------------------------------------


@contextlib.contextmanager
def counted_requests(server: NatsServer) -> Iterator[list[str]]:
    """Yield a list that has the subjects of all API requests at the end of the block."""
    subjects: list[str] = []
    with jetstream_sync.connect(server.url) as nc:
        asked = nc.subscribe("$JS.API.>")
        nc.flush()
        yield subjects
        nc.flush()
        while asked.pending_msgs:
            subjects.append(asked.next_msg(1).subject)


@pytest.mark.parametrize("options", [{}, {"subjects": "one"}, {"streamPattern": "*"}])
def test_an_idle_query_asks_seldom_and_wakes_at_once(js, stream, planner, options):
    """Without new messages there are two requests per second at most, and a new message ends the wait."""
    fill(js, f"{stream.name}.a", 5)
    given = options | ({"subjects": f"{stream.name}.a"} if "subjects" in options else {})
    name = "" if "streamPattern" in options else stream.name
    query = planner.query(name, startingOffsets="earliest", **given)
    offset = step(query, query.initial())
    assert step(query, offset) == offset
    with counted_requests(planner._server) as subjects:
        until = monotonic() + 1.5
        while monotonic() < until:
            assert step(query, offset) == offset
            sleep(0.01)
    assert len(subjects) <= 4
    query = planner.query(name, startingOffsets="earliest", minPollInterval="30s", **given)
    assert step(query, offset) == offset
    sent = monotonic()
    fill(js, f"{stream.name}.a", 1)
    while step(query, offset) == offset:
        sleep(0.01)
    assert monotonic() - sent < 5 * SCALE  # a query that is not woken waits for 30 s


def test_many_streams_are_asked_in_parallel(js, planner):
    """The state of many streams costs little more time than that of one."""
    names = [f"P{number}" for number in range(100)]
    for name in names:
        js.create_stream(name=name, subjects=[f"{name}.>"], storage="memory")
    js.publish("P7.x", b"1")
    query = planner.query(",".join(names), startingOffsets="earliest")
    first = query.initial()
    assert read(query, first, step(query, first)) == [("P7", 1, 2)]
    listed = planner.query("", streamPattern="P*", startingOffsets="earliest")
    with counted_requests(planner._server) as subjects:
        assert read(listed, listed.initial(), step(listed, listed.initial())) == [("P7", 1, 2)]
    assert set(subjects) == {"$JS.API.STREAM.LIST"}


@pytest.mark.parametrize("filters", [{}, {"subjects": "B0.x"}])
def test_a_busy_stream_of_a_list_is_asked_alone(js, planner, filters):
    """The other streams are asked after the poll interval, or when a message arrives there."""
    names = [f"B{number}" for number in range(20)]
    for name in names:
        js.create_stream(name=name, subjects=[f"{name}.>"], storage="memory")
    query = planner.query(
        ",".join(names), startingOffsets="earliest", minPollInterval="30s", **filters
    )
    offset = step(query, query.initial())
    with counted_requests(planner._server) as subjects:
        for number in range(10):
            js.publish("B0.x", b"%d" % number)
            while (end := step(query, offset)) == offset:
                sleep(0.01)
            offset = end
    asked = Counter(subject.rpartition(".")[2] for subject in subjects if ".INFO." in subject)
    assert asked["B0"] >= 10
    assert asked["B1"] == 0
    if not filters:
        js.publish("B7.x", b"")
        while (end := step(query, offset)) == offset:
            sleep(0.01)
        assert read(query, offset, end) == [("B7", 1, 2)]
    # A stream that was deleted is noticed after the interval, at the latest.
    js.delete_stream("B1")
    query._states._ask_all_at = 0.0
    js.publish("B0.x", b"")
    with pytest.raises(DataLossError, match="B1 does not exist"):
        while step(query, offset):
            sleep(0.01)


@pytest.mark.parametrize(
    ("allow_direct", "distance", "most"), [(True, 10, 4 * 16 + 2), (True, 50, 3), (False, 50, 100)]
)
def test_planning_with_a_filter_needs_few_requests(
    nc, js, stream_name, planner, allow_direct, distance, most
):
    """At most four counts for each partition, fewer with few matches, and partitions of about equal size."""
    js.create_stream(
        name=stream_name,
        subjects=[f"{stream_name}.>"],
        storage="memory",
        allow_direct=allow_direct,
    )
    fill(js, lambda number: f"{stream_name}.{'miss' if number % distance else 'hit'}", 20_000, b"")
    options = planner.options(stream_name, subjects=f"{stream_name}.hit", minPartitions=16)
    with counted_requests(planner._server) as subjects:
        ranges = plan_read(options)
    counts = [
        subject for subject in subjects if "DIRECT.GET" in subject or "CONSUMER.CREATE" in subject
    ]
    # A server before 2.11 has no batches.
    assert len(counts) <= (most if is_batching(nc.server_info.version) else 4 * 16 + 3 + 2 * 16)
    assert len(ranges) == 16
    sizes = [
        len([seq for seq in range(item.start_seq, item.end_seq) if seq % distance == 0])
        for item in ranges
    ]
    assert sum(sizes) == 20_000 // distance
    assert max(sizes) <= 20_000 // distance // 16 * 1.1
    assert not js.get_stream(stream_name).consumer_names()


# --- messages that expire -----------------------------------------------------------------------


def expire_to(stream: Stream, seq: int) -> None:
    """Remove the oldest messages, as a limit does."""
    stream.purge(seq=seq)


@pytest.fixture
def expiring(js: JetStream, stream_name: str) -> Stream:
    """Return a stream that keeps messages for an hour, with ten messages."""
    stream = js.create_stream(
        name=stream_name, subjects=[f"{stream_name}.>"], max_age=3600, storage="memory"
    )
    fill(js, f"{stream_name}.miss", 10)
    return stream


@pytest.mark.parametrize("start", ["earliest", "latest"])
def test_a_filtered_query_continues_without_matches(js, expiring, planner, start):
    """Messages that do not match may expire, also before a first match and during a restart."""
    name = expiring.name
    given = {"subjects": f"{name}.hit", "startingOffsets": start, "minPollInterval": "0s"}
    query = planner.query(name, **given)
    offset = query.initial()
    for _ in range(5):
        fill(js, f"{name}.miss", 20)
        offset = step(query, offset)
        expire_to(expiring, expiring.info().state.last_seq - 5)
        offset = step(query, offset)
        # A restarted query only has the offset of its checkpoint.
        query = planner.query(name, **given)
        offset = step(query, offset)
    js.publish(f"{name}.hit", b"")
    last = expiring.info().state.last_seq
    fill(js, f"{name}.miss", 3)
    end = step(query, offset)
    assert planned(query, offset, end) == [(last, last + 4)]


@pytest.mark.parametrize("filtered", [False, True])
def test_a_new_query_begins_with_the_message_that_is_first(js, expiring, planner, filtered):
    """Messages that expire between the start of a query and its first batch are no loss, later ones are."""
    name = expiring.name
    given = {"subjects": f"{name}.miss"} if filtered else {}
    query = planner.query(name, startingOffsets="earliest", minPollInterval="0s", **given)
    start = query.initial()
    expire_to(expiring, 4)
    offset = step(query, start)
    assert planned(query, start, offset) == [(4, 11)]
    fill(js, f"{name}.miss", 5)
    expire_to(expiring, 13)
    with pytest.raises(DataLossError, match="2 sequences are gone"):
        step(query, offset)
    query = planner.query(name, startingOffsets="13", minPollInterval="0s", **given)
    start = query.initial()
    expire_to(expiring, 14)
    with pytest.raises(DataLossError, match="1 sequences are gone"):
        step(query, start)


def test_a_stream_that_appears_begins_with_the_message_that_is_first(js, stream_name, planner):
    """Messages of a new stream of a pattern that expire before a task reads them are no loss."""
    subjects = [f"{stream_name}.>"]
    query = planner.query("", streamPattern=f"{stream_name}_*", minPollInterval="0s")
    start = query.initial()
    stream = js.create_stream(name=f"{stream_name}_new", subjects=subjects, storage="memory")
    fill(js, f"{stream_name}.a", 20)
    offset = step(query, start)
    expire_to(stream, 8)
    (part,) = query.partitions(start, offset)
    given = planner.options(stream.name)
    assert [seq for (seq,) in read_range(part, given, ("sequence",))] == [*range(8, 21)]
    fill(js, f"{stream_name}.a", 20)
    end = step(query, offset)
    expire_to(stream, 30)
    with pytest.raises(RangeLostError):
        list(read_range(query.partitions(offset, end)[0], given, ("sequence",)))


@pytest.mark.parametrize("mode", ["direct", "pull"])
def test_a_read_from_earliest_does_not_miss_what_expired_before_it(js, stream_name, planner, mode):
    """In a stream whose messages expire all the time, the first one is gone when a task reads it."""
    stream = js.create_stream(
        name=stream_name, subjects=[f"{stream_name}.>"], allow_direct=True, storage="memory"
    )
    fill(js, f"{stream.name}.a", 20)
    query = planner.query(stream.name, startingOffsets="earliest", readMode=mode)
    start = query.initial()
    offset = step(query, start)
    fixed = planner.options(stream.name, startingOffsets=1, readMode=mode)
    given = planner.options(stream.name, readMode=mode, minPartitions=2)
    batch, exact = plan_read(given), plan_read(fixed)
    stream.purge(seq=8)
    for parts in (query.partitions(start, offset), batch):
        rows = [row for part in parts for row in read_range(part, given, ("sequence",))]
        assert rows == [(seq,) for seq in range(8, 21)]
    with pytest.raises(RangeLostError):
        list(read_range(exact[0], fixed, ("sequence",)))
    # The query was started again: a sink may have stored rows of its first batch.
    repeated = planner.query(stream.name).partitions(start, offset)
    with pytest.raises(RangeLostError):
        list(read_range(repeated[0], given, ("sequence",)))
    # The second batch has a fixed start.
    fill(js, f"{stream.name}.a", 20)
    end = step(query, offset)
    stream.purge(seq=30)
    with pytest.raises(RangeLostError):
        list(read_range(query.partitions(offset, end)[0], given, ("sequence",)))


# An older server gets a request for each message, all at a time.
@pytest.mark.parametrize(
    "mode", [pytest.param("direct", marks=pytest.mark.server(">=2.11")), "pull"]
)
def test_a_read_from_earliest_misses_nothing_after_its_first_row(js, stream_name, planner, mode):
    """What leaves the stream between two responses or partitions of a read is an error, as in any other read."""
    stream = js.create_stream(
        name=stream_name, subjects=[stream_name], allow_direct=True, storage="memory"
    )
    for _ in range(40):
        js.publish(stream.name, bytes(4000))
    given = planner.options(stream.name, readMode=mode, minPartitions=2, batchBytes=10_000)
    first, second = plan_read(given)
    assert (first.from_earliest, second.from_earliest) == (True, False)
    rows = read_range(first, given, ("sequence", "data"))
    assert next(rows)[0] == 1
    stream.purge(seq=15)
    with pytest.raises(RangeLostError, match="to 14 before"):
        list(rows)
    stream.purge(seq=30)
    assert list(read_range(first, given, ("sequence",))) == []
    with pytest.raises(RangeLostError, match="sequences 21 to 29 "):
        list(read_range(second, given, ("sequence",)))


@pytest.mark.parametrize("mode", ["direct", "pull"])
def test_a_read_from_earliest_begins_after_what_expires_under_it(
    js, stream_name, planner, mode, monkeypatch
):
    """Rows that may be followed by a loss are left out: it is not known whether a gap in them did not match."""
    stream = js.create_stream(
        name=stream_name, subjects=[f"{stream_name}.>"], allow_direct=True, storage="memory"
    )
    for _ in range(10):
        fill(js, f"{stream.name}.hit", 1)
        fill(js, f"{stream.name}.miss", 1)
    given = planner.options(stream.name, readMode=mode, subjects=f"{stream.name}.hit")
    (part,) = plan_read(given)
    validate = _RangeReader._validate_batch

    def purge_and_validate(self: _RangeReader, *received: Any) -> None:
        stream.purge(seq=6)
        validate(self, *received)

    monkeypatch.setattr(_RangeReader, "_validate_batch", purge_and_validate)
    rows = list(read_range(part, given, ("sequence",)))
    assert rows == [(seq,) for seq in range(7, 21, 2)]


def test_a_repeated_task_begins_where_its_first_attempt_began(
    js, stream_name, planner, monkeypatch
):
    """A sink may have stored rows of the first attempt, so the second one does not begin later."""
    taskcontext = pytest.importorskip("pyspark.taskcontext")
    stream = js.create_stream(
        name=stream_name, subjects=[stream_name], allow_direct=True, storage="memory"
    )
    fill(js, stream.name, 10)
    given = planner.options(stream.name)
    (part,) = plan_read(given)
    stream.purge(seq=5)
    # The new context becomes that of this process.
    monkeypatch.setattr(taskcontext.TaskContext, "_taskContext", None)
    context = taskcontext.TaskContext()
    context._attemptNumber = 0
    assert len(list(read_range(part, given, ("sequence",)))) == 6
    context._attemptNumber = 1
    with pytest.raises(RangeLostError):
        list(read_range(part, given, ("sequence",)))


def test_a_filtered_query_reports_a_lost_match(js, expiring, planner):
    """A match that expires before it is planned is data loss."""
    name = expiring.name
    query = planner.query(name, subjects=f"{name}.hit", minPollInterval="0s")
    offset = step(query, query.initial())
    js.publish(f"{name}.hit", b"")
    fill(js, f"{name}.miss", 3)
    expire_to(expiring, expiring.info().state.last_seq)
    with pytest.raises(DataLossError, match="sequences are gone"):
        step(query, offset)


def test_an_idle_position_is_not_stored_without_need(js, expiring, planner):
    """While the position is in the newer half of the stream, no empty batch is planned."""
    name = expiring.name
    query = planner.query(name, subjects=f"{name}.hit", minPollInterval="0s")
    offset = step(query, query.initial())
    fill(js, f"{name}.miss", 5)
    assert step(query, offset) == offset
    fill(js, f"{name}.miss", 50)
    moved = step(query, offset)
    assert moved["streams"][name]["next"] == 66
    assert planned(query, offset, moved) == []


# --- retention ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("startingOffsets", "latest"),
        ("startingOffsets", "7"),
        ("startingTimestamp", "2026-01-31T12:00:00+00:00"),
    ],
)
def test_the_start_in_a_queue_is_refused_with_its_value(js, stream_name, planner, name, value):
    """All unprocessed messages of a work queue are read, so a start is refused; it is no secret."""
    work_queue(js, stream_name)
    with pytest.raises(errors.InvalidOptionError, match="retention") as refused:
        planner.query(stream_name, **{name: value}).initial()
    assert (refused.value.option, refused.value.value) == (name, value)


def test_a_trigger_releases_committed_messages(js, stream_name, planner):
    """The start of a batch counts as a commit, since Spark may never call commit."""
    stream = work_queue(js, stream_name)
    fill(js, f"{stream_name}.a", 10)
    query = planner.query(stream_name, maxOffsetsPerTrigger=4)
    first = step(query, query.initial())
    assert stream.info().state.messages == 10
    second = step(query, first)
    assert stream.info().state.first_seq == 5
    query.commit(second)
    assert stream.info().state.first_seq == 9


def test_commits_can_be_repeated_and_never_go_back(js, stream_name, planner):
    """An old offset in a new process removes no unread message."""
    stream = work_queue(js, stream_name)
    fill(js, f"{stream_name}.a", 10)
    query = planner.query(stream_name, maxOffsetsPerTrigger=4)
    first = step(query, query.initial())
    second = step(query, first)
    query.commit(second)
    for offset in (first, second, first):
        planner.query(stream_name).commit(offset)
    assert stream.info().state.first_seq == 9
    assert stream.info().state.last_seq == 10


@pytest.mark.parametrize("more", [3, 20])
def test_a_commit_does_not_touch_a_restored_queue(js, stream_name, planner, more, monkeypatch):
    """A queue that is read from its start keeps its messages until they are read, and then releases them."""
    monkeypatch.setattr("jetstream_sync.spark.streaming.query.sleep", lambda _seconds: None)
    queue = Restorable(js, stream_name, retention="workqueue", allow_direct=True)
    fill(js, f"{stream_name}.a", 5)
    query = planner.query(stream_name)
    offset = queue.restore(step(query, query.initial()), more)
    query = planner.query(stream_name, failOnDataLoss="false")
    end = step(query, offset)
    query.commit(offset)
    assert js.get_stream(stream_name).info().state.messages == 5 + more
    assert planned(query, offset, end) == [(1, 6 + more)]
    query.commit(end)
    assert js.get_stream(stream_name).info().state.messages == 0


@pytest.mark.server("<2.15")
def test_a_queue_that_is_restored_while_a_query_runs_is_released(
    js, stream_name, planner, monkeypatch
):
    """Batches after the restart release their messages, although their sequences were released before."""
    monkeypatch.setattr("jetstream_sync.spark.streaming.query.sleep", lambda _seconds: None)
    queue = Restorable(js, stream_name, retention="workqueue", allow_direct=True)
    fill(js, f"{stream_name}.a", 5)
    query = planner.query(stream_name, failOnDataLoss="false", minPollInterval="0s")
    offset = step(query, query.initial())
    query.commit(offset)
    queue.restore(offset, 3)
    end = step(query, offset)
    query.commit(end)
    assert js.get_stream(stream_name).info().state.messages == 0


@pytest.mark.server("<2.15")
def test_a_stream_that_is_restored_while_a_query_runs_is_prepared_again(
    js, stream_name, planner, monkeypatch
):
    """The durable that shows the progress is not in the backup, and is created again."""
    monkeypatch.setattr("jetstream_sync.spark.streaming.query.sleep", lambda _seconds: None)
    backup = Restorable(js, stream_name)
    fill(js, f"{stream_name}.a", 5)
    query = planner.query(
        stream_name,
        failOnDataLoss="false",
        minPollInterval="0s",
        consumer="progress",
        startingOffsets="earliest",
    )
    offset = step(query, query.initial())
    backup.restore(offset, 3)
    offset = step(query, offset)
    query.commit(offset)
    assert js.consumer_names(stream_name) == ["progress"]


def test_a_commit_does_not_touch_a_re_created_stream(js, stream_name, planner):
    """Neither messages nor sequences of the new stream are affected."""
    work_queue(js, stream_name)
    fill(js, f"{stream_name}.a", 10)
    query = planner.query(stream_name)
    end = step(query, query.initial())
    js.delete_stream(stream_name)
    again = work_queue(js, stream_name)
    fill(js, f"{stream_name}.a", 2)
    planner.query(stream_name).commit(end)
    state = again.info().state
    assert (state.first_seq, state.last_seq) == (1, 2)


@pytest.mark.server(">=2.11")
def test_two_queries_share_a_queue_by_subject(js, stream_name, planner):
    """Each query removes its own messages, and is not affected by those that the other one removed."""
    stream = work_queue(js, stream_name)
    fill(js, lambda number: f"{stream_name}.{'ab'[number % 2]}", 20)
    one = planner.query(stream_name, subjects=f"{stream_name}.a")
    two = planner.query(stream_name, subjects=f"{stream_name}.b")
    ends = [step(query, query.initial()) for query in (one, two)]
    one.commit(ends[0])
    assert stream.info(subjects_filter=">").state.subjects == {f"{stream_name}.b": 10}
    fill(js, f"{stream_name}.a", 1)
    two.commit(ends[1])
    assert stream.info(subjects_filter=">").state.subjects == {f"{stream_name}.a": 1}
    assert planned(one, ends[0], step(one, ends[0])) == [(21, 22)]


def interest_stream(js: JetStream, name: str) -> Stream:
    stream = js.create_stream(
        name=name, subjects=[f"{name}.>"], retention="interest", allow_direct=True
    )
    stream.create_consumer(durable_name="spark", ack_policy="all")
    return stream


@pytest.mark.server(">=2.14")
def test_a_durable_is_taken_over(js, stream_name, planner):
    """Without the name of its query, a new checkpoint owns it; the position of the old one has no meaning then."""
    stream = interest_stream(js, stream_name)
    fill(js, f"{stream_name}.a", 10)
    old = planner.query(stream_name, consumer="spark", maxOffsetsPerTrigger=4)
    end = step(old, old.initial())
    old.partitions(old.initial(), end)
    old.commit(end)
    # As after a kill between the note of a release and the release.
    config = stream.get_consumer("spark").cached_info.config
    noted = {**config.metadata, "jetstream_sync.next": "9"}
    js.update_consumer(stream_name, replace(config, metadata=noted))
    command = ["consumer", "edit", stream_name, "spark", "--metadata", "jetstream_sync.query="]
    subprocess.run(
        [
            sys.executable,
            "-m",
            "jetstream_sync.cli",
            "-s",
            planner._server.url,
            *command,
            "--force",
        ],
        check=True,
        timeout=60 * SCALE,
    )
    new = planner.query(stream_name, consumer="spark", maxOffsetsPerTrigger=2)
    start, read_to = new.initial(), []
    while (last := step(new, start)) != start:
        read_to += planned(new, start, last)
        start = last
    assert read_to == [(5, 7), (7, 9), (9, 11)]
    assert stream.info().state.messages == 0
    with pytest.raises(QueueInUseError):
        step(old, end)


ALL_QUERIES = ("$JS.API.STREAM.INFO.{0}", "$JS.API.STREAM.MSG.GET.{0}", "$JS.API.DIRECT.GET.{0}")
CONSUMER = ("$JS.API.CONSUMER.INFO.{0}.own", "$JS.API.CONSUMER.CREATE.{0}.own")


@pytest.mark.server(">=2.14")
@pytest.mark.parametrize(
    ("config", "options", "needed"),
    [
        ({}, {"startingOffsets": "earliest"}, ()),
        ({"retention": "workqueue"}, {"consumer": "own"}, (*CONSUMER, "$JS.API.STREAM.PURGE.{0}")),
        (
            {"retention": "workqueue"},
            {"consumer": "own", "subjects": "S.a"},
            (CONSUMER[0], "$JS.API.CONSUMER.CREATE.{0}.own.>", "$JS.API.STREAM.PURGE.{0}"),
        ),
        (
            {"retention": "interest"},
            {"consumer": "own"},
            (*CONSUMER, "$JS.API.CONSUMER.RESET.{0}.own"),
        ),
    ],
)
def test_the_documented_permissions_are_enough(config, options, needed):
    """A query reads and commits with the permissions to publish that the topic page lists."""
    allowed = [subject.format("S") for subject in (*ALL_QUERIES, *needed)]
    given = ", ".join(f'"{subject}"' for subject in allowed)
    users = f"""
        {{ user: admin, password: admin }}
        {{ user: spark, password: spark, permissions: {{ publish: [{given}] }} }}
    """
    with (
        NatsServer(config=f"authorization {{ users: [{users}] }}") as server,
        jetstream_sync.connect(server.url, user="admin", password="admin") as nc,
        closing(Planner(server)) as planner,
    ):
        js = nc.jetstream()
        stream = js.create_stream(name="S", subjects=["S.>"], allow_direct=True, **config)
        if "consumer" in options and "interest" in config.values():
            stream.create_consumer(durable_name="own", ack_policy="all")
        fill(js, "S.a", 10)
        query = planner.query("S", user="spark", password="spark", **options)
        start = query.initial()
        end = step(query, start)
        assert planned(query, start, end) == [(1, 11)]
        query.commit(end)
        assert step(query, end) == end
        assert stream.info().state.messages == (0 if config else 10)


@pytest.mark.server(">=2.14")
def test_two_queries_on_one_durable_are_refused(js, stream_name, planner):
    """Each would release what the other one has not read; the durable names its owner."""
    stream = interest_stream(js, stream_name)
    fill(js, f"{stream_name}.a", 20)
    one = planner.query(stream_name, consumer="spark", maxOffsetsPerTrigger=5)
    two = planner.query(stream_name, consumer="spark")
    end, end_of_two = step(one, one.initial()), step(two, two.initial())
    assert planned(one, one.initial(), end) == [(1, 6)]
    for call in (
        lambda: two.partitions(two.initial(), end_of_two),
        lambda: step(planner.query(stream_name, consumer="spark"), end_of_two),
        lambda: two.commit(end_of_two),
    ):
        with pytest.raises(QueueInUseError, match="'spark'.*another durable"):
            call()
    one.commit(end)
    assert stream.info().state.first_seq == 6
    metadata = stream.get_consumer("spark").cached_info.config.metadata
    assert metadata["jetstream_sync.query"] == end["query"]


@pytest.mark.server(">=2.14")
def test_a_durable_that_is_claimed_during_a_commit_is_left_alone(
    js, stream_name, planner, monkeypatch
):
    """The commit of another stream may take long: what the next owner has written meanwhile stays."""
    stream = interest_stream(js, stream_name)
    fill(js, f"{stream_name}.a", 20)
    query = planner.query(stream_name, consumer="spark", maxOffsetsPerTrigger=5)
    end = step(query, query.initial())
    query.partitions(query.initial(), end)
    release = CommitHandler._release

    def late(self: CommitHandler, claim: Claim) -> None:
        config = stream.get_consumer("spark").info().config
        stream.update_consumer(
            replace(config, metadata={"jetstream_sync.query": "other"}, max_ack_pending=77)
        )
        release(self, claim)

    monkeypatch.setattr(CommitHandler, "_release", late)
    with pytest.raises(QueueInUseError, match="claimed by another query"):
        query.commit(end)
    info = stream.get_consumer("spark").info()
    assert info.config.metadata["jetstream_sync.query"] == "other"
    assert (info.config.max_ack_pending, info.ack_floor.stream_seq) == (77, 0)
    assert stream.info().state.first_seq == 1


def test_two_queries_that_show_progress_with_one_durable_are_refused(js, stream, planner):
    """The durable of a stream with limits has one owner, too."""
    fill(js, f"{stream.name}.a", 20)
    given = {"consumer": "progress", "startingOffsets": "earliest"}
    one, two = (planner.query(stream.name, **given) for _ in range(2))
    ends = [step(query, query.initial()) for query in (one, two)]
    one.partitions(one.initial(), ends[0])
    with pytest.raises(QueueInUseError):
        two.partitions(two.initial(), ends[1])


@pytest.mark.server(">=2.14")
@pytest.mark.parametrize("kind", ["interest", "filtered queue", "kept by another"])
def test_a_restored_checkpoint_is_an_error(js, stream_name, planner, kind):
    """What the query has released cannot be read again, and must not be skipped in silence."""
    if kind == "filtered queue":
        work_queue(js, stream_name)
        given: dict[str, Any] = {"subjects": f"{stream_name}.a"}
    else:
        given = {"consumer": "spark"}
        stream = interest_stream(js, stream_name)
        if kind == "kept by another":
            stream.create_consumer(durable_name="other")
    given |= {"maxOffsetsPerTrigger": 10}
    fill(js, f"{stream_name}.a", 40)
    query = planner.query(stream_name, **given)
    offsets = [query.initial()]
    for _ in range(3):
        offsets.append(step(query, offsets[-1]))
        query.partitions(*offsets[-2:])
    query.commit(offsets[3])
    for call in (
        lambda restored: step(restored, offsets[1]),
        lambda restored: restored.partitions(offsets[1], offsets[2]),
        lambda restored: restored.partitions(offsets[2], offsets[3]),
    ):
        with pytest.raises(CheckpointRewoundError, match="sequence (11|21) .* moved to 31"):
            call(planner.query(stream_name, failOnDataLoss="false", **given))
    # The checkpoint of the present position continues, also in another process.
    again = planner.query(stream_name, **given)
    end = step(again, offsets[3])
    assert planned(again, offsets[3], end) == [(31, 41)]


@pytest.mark.server(">=2.14")
def test_a_durable_that_another_program_has_moved_is_an_error(js, stream_name, planner):
    """What another program has acknowledged is missing from the query."""
    stream = interest_stream(js, stream_name)
    stream.create_consumer(durable_name="other")
    fill(js, f"{stream_name}.a", 10)
    query = planner.query(stream_name, consumer="spark", maxOffsetsPerTrigger=2)
    end = step(query, query.initial())
    query.partitions(query.initial(), end)
    stream.get_consumer("spark").fetch(5, timeout=2)[-1].ack_sync()
    with pytest.raises(CheckpointRewoundError, match="sequence 3 .* moved to 6"):
        step(query, end)


def test_a_commit_beside_other_consumers_deletes_by_sequence(js, stream_name, planner):
    """A purge by subject could make the server forget what other consumers have pending."""
    stream = work_queue(js, stream_name)
    fill(js, lambda number: f"{stream_name}.{'ab'[number % 2]}", 600)
    worker = stream.create_consumer(durable_name="worker", filter_subject=f"{stream_name}.b")
    pending = worker.fetch(100, timeout=2)
    query = planner.query(stream_name, subjects=f"{stream_name}.a", maxOffsetsPerTrigger=290)
    end = step(query, query.initial())
    query.partitions(query.initial(), end)
    stream.delete_msg(2)
    with counted_requests(planner._server) as subjects:
        query.commit(end)
        query.commit(end)
        planner.query(stream_name, subjects=f"{stream_name}.a").commit(end)
    assert not [subject for subject in subjects if ".PURGE." in subject]
    # A server before 2.11 counts the matches of a work queue as too many, so that the batch is smaller.
    next_seq = end["streams"][stream_name]["next"]
    left = len(range(next_seq + next_seq % 2, 601, 2))
    assert 10 <= left < 300
    kept = {f"{stream_name}.a": left, f"{stream_name}.b": 300}
    assert stream.info(subjects_filter=">").state.subjects == kept
    assert worker.info().num_ack_pending == len(pending)


def test_a_guard_is_taken_over(js, stream_name, planner):
    """The next process of a query uses the existing consumer."""
    stream = work_queue(js, stream_name)
    planner.query(stream_name, consumer="guard").initial()
    planner.query(stream_name, consumer="guard").initial()
    assert stream.consumer_names() == ["guard"]
    with pytest.raises(errors.InvalidOptionError, match="subjects"):
        planner.query(stream_name, consumer="guard", subjects=f"{stream_name}.a").initial()
    with pytest.raises(errors.BadRequestError, match="another consumer"):
        planner.query(stream_name, subjects=f"{stream_name}.a").initial()


def test_a_progress_durable_must_match_the_query(stream, planner):
    """The durable must be resettable with the same filters; it is created if it does not exist."""
    planner.query(stream.name, consumer="lag", subjects=f"{stream.name}.a").initial()
    assert stream.get_consumer("lag").cached_info.config.filter_subject == f"{stream.name}.a"
    with pytest.raises(errors.InvalidOptionError, match="subjects"):
        planner.query(stream.name, consumer="lag").initial()
    stream.create_consumer(durable_name="fresh", deliver_policy="new")
    with pytest.raises(errors.InvalidOptionError, match="deliver_policy"):
        planner.query(stream.name, consumer="fresh").initial()


@pytest.mark.server("<2.14")
def test_old_servers_move_the_durable_with_acknowledgements(js, stream_name, planner):
    """Messages that another attempt fetched without acknowledging them are waited for."""
    stream = js.create_stream(
        name=stream_name, subjects=[f"{stream_name}.>"], retention="interest", allow_direct=True
    )
    durable = stream.create_consumer(durable_name="spark", ack_policy="all", ack_wait=1)
    fill(js, f"{stream_name}.a", 1200)
    query = planner.query(stream_name, consumer="spark", maxOffsetsPerTrigger=700)
    first = step(query, query.initial())
    assert stream.info().state.messages == 1200
    second = step(query, first)
    assert stream.info().state.first_seq == 701
    assert len(durable.fetch(100, timeout=2)) == 100
    planner.query(stream_name, consumer="spark").commit(second)
    assert stream.info().state.messages == 0
    assert durable.info().num_ack_pending == 0


@pytest.mark.server("<2.14")
def test_old_servers_need_ack_policy_all(js, stream_name, planner):
    """One acknowledgement must cover all messages before it."""
    stream = js.create_stream(
        name=stream_name, subjects=[f"{stream_name}.>"], retention="interest", allow_direct=True
    )
    stream.create_consumer(durable_name="spark")
    fill(js, f"{stream_name}.a", 5)
    query = planner.query(stream_name, consumer="spark")
    end = step(query, query.initial())
    with pytest.raises(errors.InvalidOptionError, match="ack_policy=all"):
        query.commit(end)
