"""Work queues and interest streams, read by Spark."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from fixtures.spark import forget_commit
from fixtures.spark_streams import fill, new_stream
from fixtures.threads import SCALE, wait_until

from jetstream_sync import BadRequestError, Error
from jetstream_sync.errors import InvalidOptionError
from jetstream_sync.spark import ReadOptions
from jetstream_sync.spark.planning.offsets import Offset
from jetstream_sync.spark.streaming.commit import QueueInUseError, _acknowledge
from jetstream_sync.spark.streaming.query import QueryPlanner

if TYPE_CHECKING:
    from jetstream_sync import JetStream, Stream

pytestmark = [pytest.mark.spark, pytest.mark.timeout(120)]

ONCE = {"once": True}


@pytest.fixture
def queue(js: JetStream, stream_name: str) -> Stream:
    """Create an empty work queue."""
    return new_stream(js, stream_name, retention="workqueue")


@pytest.fixture
def wanted(js: JetStream, stream_name: str) -> Stream:
    """Create an empty interest stream, with one durable for Spark and another one."""
    stream = new_stream(js, stream_name, retention="interest")
    stream.create_consumer(durable_name="spark")
    stream.create_consumer(durable_name="other")
    return stream


def held(stream: Stream) -> list[int]:
    """Return the sequences that a stream still contains."""
    state = stream.info(deleted_details=True).state
    gone = set(state.deleted or ())
    return [seq for seq in range(state.first_seq, state.last_seq + 1) if seq not in gone]


# --- work queues --------------------------------------------------------------------------------


def test_a_work_queue_is_empty_when_its_messages_are_committed(js, queue, collected):
    """All messages are read from the start of the queue, and removed by the commits."""
    fill(js, f"{queue.name}.a", 50)
    left: list[list[int]] = []
    collected.during_batch = lambda _: left.append(held(queue))
    collected.run(stream=queue.name, maxOffsetsPerTrigger=20)
    assert collected.sequences() == list(range(1, 51))
    # The queue contains the messages of the current batch, and no longer those of the one before.
    assert left == [list(range(first, 51)) for first in (1, 21, 41)]
    assert held(queue) == []


def test_messages_stay_until_their_batch_is_committed(js, queue, collected):
    """A failed batch leaves its messages in the queue, and is repeated after a restart."""
    fill(js, f"{queue.name}.a", 20)

    def fail(_: int) -> None:
        raise RuntimeError("the sink is broken")

    collected.during_batch = fail
    with pytest.raises(Exception, match="the sink is broken"):
        collected.run(stream=queue.name)
    assert held(queue) == list(range(1, 21))
    collected.during_batch = None
    collected.run(stream=queue.name)
    assert collected.sequences() == list(range(1, 21))
    assert held(queue) == []


@pytest.mark.full
def test_a_lost_commit_is_repeated(js, queue, collected):
    """Messages committed in the checkpoint but not removed are removed after a restart, and not read again."""
    fill(js, f"{queue.name}.a", 20)
    # With this trigger nothing runs after the commit to the checkpoint.
    collected.run(ONCE, stream=queue.name)
    assert held(queue) == list(range(1, 21))
    fill(js, f"{queue.name}.a", 5)
    collected.run(stream=queue.name)
    assert collected.sizes() == [20, 5]
    assert held(queue) == []


@pytest.mark.full
def test_a_repeated_batch_has_its_messages(js, queue, collected):
    """A batch whose rows were stored but that was not committed is repeated with the same rows."""
    fill(js, f"{queue.name}.a", 20)
    collected.run(ONCE, stream=queue.name)
    forget_commit(collected.checkpoint, 0)
    fill(js, f"{queue.name}.a", 5)
    again = collected.resumed()
    again.run(stream=queue.name)
    assert again.sizes() == [20, 5]
    assert held(queue) == []


@pytest.mark.full
def test_only_what_was_read_is_removed(js, queue, collected):
    """Messages of other subjects stay in the queue."""
    fill(js, lambda number: f"{queue.name}.{'abc'[number % 3]}", 30)
    collected.run(stream=queue.name, subjects=f"{queue.name}.a,{queue.name}.b")
    read = [seq for seq in range(1, 31) if seq % 3 in {0, 1}]
    assert collected.sequences() == read
    assert held(queue) == [seq for seq in range(1, 31) if seq not in read]
    fill(js, lambda number: f"{queue.name}.{'abc'[number % 3]}", 30)
    collected.run(stream=queue.name, subjects=f"{queue.name}.b,{queue.name}.a")
    assert len(collected.sequences(1)) == 20
    assert len(held(queue)) == 20


@pytest.mark.full
def test_a_guard_reserves_the_subjects_of_a_query(js, queue, collected):
    """A consumer guards the subjects that the query reads, and shows the backlog."""
    fill(js, lambda number: f"{queue.name}.{'ab'[number % 2]}", 10)
    collected.run(stream=queue.name, subjects=f"{queue.name}.a", consumer="spark")
    with pytest.raises(BadRequestError):
        queue.create_consumer(durable_name="thief", filter_subject=f"{queue.name}.a")
    queue.create_consumer(durable_name="colleague", filter_subject=f"{queue.name}.b")
    fill(js, f"{queue.name}.a", 3)
    assert queue.get_consumer("spark").info().num_pending == 3


@pytest.mark.full
def test_a_queue_with_another_consumer_is_refused(js, queue, collected):
    """A queue that another consumer reads is refused."""
    queue.create_consumer(durable_name="worker")
    fill(js, f"{queue.name}.a", 3)
    with pytest.raises(Exception, match="another consumer"):
        collected.run(stream=queue.name)
    assert held(queue) == [1, 2, 3]


@pytest.mark.full
def test_a_second_query_is_refused(js, queue, collected):
    """A second query for the same subjects with another checkpoint is refused, also after a restart."""
    # The query owns the queue before there is anything to read.
    collected.run(stream=queue.name)
    fill(js, f"{queue.name}.a", 10)
    collected.run(stream=queue.name)
    fill(js, f"{queue.name}.a", 5)
    second = collected.another()
    with pytest.raises(Exception, match="QueueInUseError"):
        second.run(stream=queue.name)
    assert held(queue) == list(range(11, 16))
    collected.run(stream=queue.name)
    assert collected.sequences() == list(range(1, 16))
    assert held(queue) == []
    # The error says what to do if the checkpoint is lost; after that the first query is refused.
    (guard,) = queue.consumer_names()
    queue.delete_consumer(guard)
    fill(js, f"{queue.name}.a", 5)
    second.run(stream=queue.name)
    assert second.sequences() == list(range(16, 21))
    with pytest.raises(Exception, match="QueueInUseError"):
        collected.run(stream=queue.name)


def test_simultaneous_queries_do_not_share_a_queue(js, queue, nats_server):
    """Of two queries that start at the same time, one is refused before it reads or removes anything."""
    options = {"servers": nats_server.url, "stream": queue.name}

    def started() -> tuple[QueryPlanner, Offset]:
        query = QueryPlanner(ReadOptions.from_options(options))
        return query, query.initial()

    (first, start), (second, other_start) = started(), started()
    fill(js, f"{queue.name}.a", 20)
    end = first.latest(start, unlimited=True)
    other_end = second.latest(other_start, unlimited=True)
    assert len(first.partitions(start, end)) == 1
    for call in (
        lambda: second.partitions(other_start, other_end),
        lambda: second.latest(other_end, unlimited=True),
        lambda: second.commit(other_end),
    ):
        with pytest.raises(QueueInUseError, match="another query"):
            call()
    assert held(queue) == list(range(1, 21))
    # A query that was killed before the commit is asked for its start again; its batch identifies it.
    again, _ = started()
    assert again.partitions(start, end) == first.partitions(start, end)
    assert again.latest(end, unlimited=True) == end
    assert held(queue) == []


def test_a_used_consumer_is_refused_as_a_guard(js, queue, in_process):
    """A consumer that has delivered messages is refused as the guard of a query."""
    worker = queue.create_consumer(durable_name="worker")
    fill(js, f"{queue.name}.a", 3)
    assert len(worker.fetch(1, timeout=5)) == 1
    with pytest.raises(InvalidOptionError, match="^consumer"):
        in_process.run(stream=queue.name, consumer="worker")
    assert held(queue) == [1, 2, 3]


@pytest.mark.parametrize(
    "options",
    [{"startingOffsets": "latest"}, {"startingOffsets": '{"%s": 2}'}, {"startingTimestamp": "1"}],
)
def test_a_queue_is_read_from_its_start(js, queue, in_process, options):
    """A start after the first message is refused, since skipped messages would be removed unread."""
    fill(js, f"{queue.name}.a", 3)
    named = {key: value.replace("%s", queue.name) for key, value in options.items()}
    with pytest.raises(InvalidOptionError, match="^starting"):
        in_process.run(stream=queue.name, **named)
    assert held(queue) == [1, 2, 3]


def test_other_subjects_need_another_checkpoint(js, queue, in_process):
    """Changed subjects are refused, since unread messages of the new subjects would be removed."""
    fill(js, lambda number: f"{queue.name}.{'ab'[number % 2]}", 10)
    in_process.run(stream=queue.name, subjects=f"{queue.name}.a")
    fill(js, f"{queue.name}.a", 5)
    with pytest.raises(InvalidOptionError):
        in_process.run(stream=queue.name, subjects=f"{queue.name}.b")
    assert len(held(queue)) == 10
    assert len(queue.consumer_names()) == 1


@pytest.mark.parametrize("setting", ["deny_purge", "allow_direct"])
def test_an_unsuitable_queue_is_refused(js, stream_name, in_process, setting):
    """The error names the unsuitable setting of the stream."""
    settings = {"allow_direct": setting != "allow_direct", "deny_purge": setting == "deny_purge"}
    js.create_stream(name=stream_name, storage="memory", retention="workqueue", **settings)
    with pytest.raises(Error, match=setting):
        in_process.run(stream=stream_name)


@pytest.mark.full
def test_a_re_created_queue_keeps_its_messages(js, queue, collected):
    """Offsets of a deleted queue remove nothing from a new stream of the same name."""
    fill(js, f"{queue.name}.a", 50)
    collected.run(ONCE, stream=queue.name)
    config = queue.cached_info.config
    js.delete_stream(queue.name)
    js.create_stream(config)
    fill(js, f"{queue.name}.a", 60)
    with pytest.raises(Exception, match="DataLossError"):
        collected.run(stream=queue.name)
    assert held(queue) == list(range(1, 61))
    collected.run(stream=queue.name, failOnDataLoss="false")
    assert collected.sequences(1) == list(range(1, 61))
    assert held(queue) == []


# --- interest streams ---------------------------------------------------------------------------


def acknowledge_all(stream: Stream) -> None:
    for message in stream.get_consumer("other").fetch(1000, timeout=2):
        message.ack_sync()


def test_a_durable_is_moved_by_reading(js, wanted):
    """Before server 2.14, a commit reads up to its end; later messages, which it gets too, are delivered again."""
    name, consumer = (
        wanted.name,
        js.create_consumer(wanted.name, durable_name="Q", ack_policy="all"),
    )
    fill(js, f"{name}.a", 200)
    begun = time.monotonic()
    for end in (31, 61, 91, 200):
        _acknowledge(consumer, end)
        assert consumer.info().ack_floor.stream_seq == end - 1
    assert time.monotonic() - begun < 20 * SCALE
    _acknowledge(consumer, 201)
    assert consumer.info().num_ack_pending == consumer.info().num_pending == 0


@pytest.mark.server(">=2.14")
@pytest.mark.full
def test_a_commit_moves_only_the_durable_of_the_query(js, wanted, collected):
    """A commit moves the durable of the query and no other one."""
    fill(js, f"{wanted.name}.a", 30)
    collected.run(stream=wanted.name, consumer="spark", maxOffsetsPerTrigger=10)
    assert collected.sizes() == [10, 10, 10]
    assert held(wanted) == list(range(1, 31))
    spark = wanted.get_consumer("spark").info()
    assert (spark.ack_floor.stream_seq, spark.num_pending) == (30, 0)
    assert wanted.get_consumer("other").info().num_pending == 30
    acknowledge_all(wanted)
    assert held(wanted) == []


@pytest.mark.server(">=2.14")
@pytest.mark.full
def test_an_interest_stream_keeps_a_batch_until_its_commit(js, wanted, collected):
    """The stream keeps a batch until it is committed, even if all other consumers have acknowledged it."""
    fill(js, f"{wanted.name}.a", 30)
    acknowledge_all(wanted)
    left: list[list[int]] = []
    collected.during_batch = lambda _: left.append(held(wanted))
    collected.run(stream=wanted.name, consumer="spark", maxOffsetsPerTrigger=10)
    assert left == [list(range(first, 31)) for first in (1, 11, 21)]
    assert held(wanted) == []


@pytest.mark.server(">=2.14")
@pytest.mark.full
def test_a_lost_commit_of_an_interest_stream_is_repeated(js, wanted, collected):
    """Messages committed in the checkpoint only are not read again, and released after a restart."""
    fill(js, f"{wanted.name}.a", 20)
    acknowledge_all(wanted)
    collected.run(ONCE, stream=wanted.name, consumer="spark")
    assert held(wanted) == list(range(1, 21))
    fill(js, f"{wanted.name}.a", 5)
    collected.run(stream=wanted.name, consumer="spark")
    assert collected.sizes() == [20, 5]
    assert wanted.get_consumer("spark").info().ack_floor.stream_seq == 25
    assert held(wanted) == [21, 22, 23, 24, 25]


@pytest.mark.server(">=2.14")
@pytest.mark.full
def test_a_new_query_starts_where_its_durable_is(js, wanted, collected):
    """A query that takes over a durable does not read messages before its position; before that it is refused."""
    fill(js, f"{wanted.name}.a", 20)
    collected.run(stream=wanted.name, consumer="spark")
    fill(js, f"{wanted.name}.a", 5)
    other = collected.another()
    with pytest.raises(Exception, match="QueueInUseError"):
        other.run(stream=wanted.name, consumer="spark")
    config = wanted.get_consumer("spark").cached_info.config
    owned = {key: text for key, text in config.metadata.items() if key != "jetstream_sync.query"}
    wanted.update_consumer(replace(config, metadata=owned))
    other = collected.another()
    other.run(stream=wanted.name, consumer="spark")
    assert other.sequences() == [21, 22, 23, 24, 25]


@pytest.mark.server(">=2.14")
@pytest.mark.full
def test_the_durable_determines_the_subjects(js, wanted, collected):
    """The query reads the filter subjects of its durable, and other subjects are refused."""
    wanted.create_consumer(durable_name="evens", filter_subject=f"{wanted.name}.even")
    fill(js, lambda number: f"{wanted.name}.{'odd' if number % 2 else 'even'}", 20)
    collected.run(stream=wanted.name, consumer="evens")
    assert collected.sequences() == list(range(2, 21, 2))
    with pytest.raises(Exception, match="InvalidOptionError: subjects"):
        collected.another().run(stream=wanted.name, consumer="evens", subjects=f"{wanted.name}.odd")


@pytest.mark.parametrize("consumer", [None, "absent", "fresh"])
def test_an_interest_stream_needs_a_resettable_durable(wanted, in_process, consumer):
    """The query needs an existing durable that starts at the beginning of the stream."""
    wanted.create_consumer(durable_name="fresh", deliver_policy="new")
    options = {"consumer": consumer} if consumer else {}
    with pytest.raises(InvalidOptionError, match="^consumer"):
        in_process.run(stream=wanted.name, **options)


# --- limits retention ---------------------------------------------------------------------------


@pytest.mark.server(">=2.14")
@pytest.mark.full
def test_a_durable_shows_the_progress_of_a_query(js, stream, collected):
    """On a stream with limits retention, ``consumer`` names a durable whose pending count is that of the query."""
    fill(js, f"{stream.name}.a", 30)
    query = collected.start(stream=stream.name, startingOffsets="earliest", consumer="lag")
    query.processAllAvailable()
    wait_until(lambda: stream.get_consumer("lag").info().num_pending == 0, 20)
    query.stop()
    fill(js, f"{stream.name}.a", 7)
    assert stream.get_consumer("lag").info().num_pending == 7
    assert len(held(stream)) == 37
