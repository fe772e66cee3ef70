"""
The effect of each consumer option, on pull and on push consumers.

The options of push consumers alone are in ``test_consumer_options_push.py``. Limits of pull
requests (``max_waiting``, ``max_batch``, ``max_expires``, ``max_bytes``) are in ``test_fetch.py``,
and ``priority_groups``, ``priority_policy``, ``priority_timeout`` in ``test_priority_groups.py``.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from fix_threads import STALL, wait_until

import jetstream_sync
from jetstream_sync import (
    AckPolicy,
    Connection,
    ConsumerConfig,
    ConsumerInfo,
    ConsumerNotFoundError,
    DeliverPolicy,
    JetStream,
    JetStreamMsg,
    ReplayPolicy,
    Stream,
    TimeoutError,
)
from jetstream_sync.server import NatsCluster, NatsServer


class Reader:
    """A consumer of either kind, read message by message."""

    def __init__(self, info: Callable[[], ConsumerInfo], next_msg: Callable[[float], JetStreamMsg]):
        self.info = info
        self._next_msg = next_msg

    def take(self, count: int, timeout: float = 2.0) -> list[JetStreamMsg]:
        """Return the next messages; fail when fewer arrive."""
        return [self._next_msg(timeout) for _ in range(count)]

    def data(self, count: int) -> list[bytes]:
        """Return the payloads of the next messages."""
        return [msg.data for msg in self.take(count)]

    def silent(self, seconds: float = 0.15) -> bool:
        """Return whether no message arrives within the given time."""
        try:
            self._next_msg(seconds)
        except TimeoutError:
            return True
        return False


#: Creates a consumer with these options, and returns a reader of it.
Read = Callable[..., Reader]


@pytest.fixture(params=["pull", "push"])
def read(request: pytest.FixtureRequest, js: JetStream, stream: Stream) -> Iterator[Read]:
    """Create readers of both kinds of consumers of the stream."""

    def pull(**options: Any) -> Reader:
        consumer = stream.create_consumer(**options)
        return Reader(consumer.info, consumer.next)

    def push(**options: Any) -> Reader:
        subject = options.get("filter_subject", f"{stream.name}.>")
        config = ConsumerConfig(**options)
        sub = stack.enter_context(js.subscribe(subject, stream=stream.name, config=config))
        return Reader(sub.consumer_info, sub.next_msg)

    with ExitStack() as stack:
        yield pull if request.param == "pull" else push


def put(js: JetStream, stream: Stream, *numbers: int) -> None:
    """Store numbered messages; the subject tells whether a number is odd or even."""
    for number in numbers:
        js.publish(f"{stream.name}.{'odd' if number % 2 else 'even'}", b"%d" % number)


def pass_time(seconds: float) -> None:
    """Wait until the server's time has advanced by a given duration."""
    begun = time.monotonic()
    wait_until(lambda: time.monotonic() - begun > seconds)


# --- deliver_policy, opt_start_seq, opt_start_time ---------------------------------------------


def test_deliver_all_starts_with_the_earliest_message(
    js: JetStream, stream: Stream, read: Read
) -> None:
    """All stored messages are delivered, then new ones."""
    put(js, stream, 1, 2, 3)
    stream.delete_msg(1)
    reader = read(deliver_policy=DeliverPolicy.ALL)
    assert reader.data(2) == [b"2", b"3"]
    put(js, stream, 4)
    assert reader.data(1) == [b"4"]


def test_deliver_last_starts_with_the_last_message(
    js: JetStream, stream: Stream, read: Read
) -> None:
    """The last message of the stream is delivered, then new ones."""
    put(js, stream, 1, 2, 3)
    reader = read(deliver_policy=DeliverPolicy.LAST)
    assert reader.data(1) == [b"3"]
    put(js, stream, 4)
    assert reader.data(1) == [b"4"]


def test_deliver_last_is_the_last_one_of_the_filter(
    js: JetStream, stream: Stream, read: Read
) -> None:
    """With a filter, the last message that matches it is delivered."""
    put(js, stream, 1, 2, 3)
    reader = read(deliver_policy=DeliverPolicy.LAST, filter_subject=f"{stream.name}.even")
    assert reader.data(1) == [b"2"]


def test_deliver_last_per_subject_starts_with_one_of_each(
    js: JetStream, stream: Stream, read: Read
) -> None:
    """The last message of each subject is delivered in stream order, then new ones."""
    put(js, stream, 1, 2, 3, 4, 5)
    subject = f"{stream.name}.>"
    reader = read(deliver_policy=DeliverPolicy.LAST_PER_SUBJECT, filter_subject=subject)
    assert reader.data(2) == [b"4", b"5"]
    put(js, stream, 6)
    assert reader.data(1) == [b"6"]


def test_deliver_new_leaves_out_what_was_there(js: JetStream, stream: Stream, read: Read) -> None:
    """Only messages published after the creation of the consumer are delivered."""
    put(js, stream, 1, 2)
    reader = read(deliver_policy=DeliverPolicy.NEW)
    assert reader.silent()
    put(js, stream, 3)
    assert reader.data(1) == [b"3"]


def test_a_start_sequence_is_where_it_starts(js: JetStream, stream: Stream, read: Read) -> None:
    """The message ``opt_start_seq``, or the next one that exists, is delivered first."""
    put(js, stream, 1, 2, 3, 4)
    stream.delete_msg(2)
    policy = DeliverPolicy.BY_START_SEQUENCE
    assert read(deliver_policy=policy, opt_start_seq=2).data(2) == [b"3", b"4"]
    assert read(deliver_policy=policy, opt_start_seq=4).data(1) == [b"4"]


def test_a_start_time_is_where_it_starts(js: JetStream, stream: Stream, read: Read) -> None:
    """The first message stored at ``opt_start_time`` or later comes first, to the nanosecond."""
    put(js, stream, 1, 2, 3)
    policy = DeliverPolicy.BY_START_TIME
    stored = stream.get_msg(2).time
    assert read(deliver_policy=policy, opt_start_time=stored).data(1) == [b"2"]
    later = stored + timedelta(microseconds=1)
    assert later < stream.get_msg(3).time
    assert read(deliver_policy=policy, opt_start_time=later).data(1) == [b"3"]
    elsewhere = stored.astimezone(timezone(timedelta(hours=5))) + timedelta(microseconds=1)
    assert read(deliver_policy=policy, opt_start_time=elsewhere).data(1) == [b"3"]


# --- ack_policy, ack_wait, backoff, max_deliver, max_ack_pending ---------------------------------


def test_explicit_acks_are_for_one_message_each(js: JetStream, stream: Stream, read: Read) -> None:
    """Acknowledging the third of three leaves two: explicit acks are the default policy."""
    put(js, stream, 1, 2, 3)
    reader = read()
    assert reader.info().config.ack_policy == AckPolicy.EXPLICIT
    reader.take(3)[2].ack_sync()
    assert reader.info().num_ack_pending == 2
    assert reader.info().ack_floor.stream_seq == 0


def test_ack_all_is_for_those_before_it_too(js: JetStream, stream: Stream, read: Read) -> None:
    """Acknowledging the second of three also acknowledges the first."""
    put(js, stream, 1, 2, 3)
    reader = read(ack_policy=AckPolicy.ALL)
    reader.take(3)[1].ack_sync()
    assert reader.info().num_ack_pending == 1
    assert reader.info().ack_floor.stream_seq == 2


def test_without_acks_what_is_delivered_is_done(js: JetStream, stream: Stream, read: Read) -> None:
    """With ack policy ``none`` nothing is pending, and each delivery moves the position."""
    put(js, stream, 1, 2, 3)
    reader = read(ack_policy=AckPolicy.NONE)
    reader.take(2)[1].ack()
    info = reader.info()
    assert info.num_ack_pending == 0
    assert info.ack_floor.stream_seq == info.delivered.stream_seq >= 2


def test_ack_wait_is_how_long_an_ack_may_take(js: JetStream, stream: Stream, read: Read) -> None:
    """An unacknowledged message is redelivered after ``ack_wait``, and not before."""
    put(js, stream, 1)
    begun = time.monotonic()
    reader = read(ack_wait=0.3)
    (first,) = reader.take(1)
    (again,) = reader.take(1)
    assert 0.3 < time.monotonic() - begun < 2 + STALL
    assert (first.metadata.num_delivered, again.metadata.num_delivered) == (1, 2)
    assert again.metadata.stream_seq == first.metadata.stream_seq
    again.ack_sync()
    assert reader.info().num_ack_pending == 0


def test_backoff_is_how_long_each_ack_may_take(js: JetStream, stream: Stream, read: Read) -> None:
    """The n-th redelivery follows after the n-th duration."""
    put(js, stream, 1)
    begun = time.monotonic()
    reader = read(backoff=[0.1, 0.5], max_deliver=4)
    assert reader.info().config.ack_wait == timedelta(seconds=0.1), "the first one overrides it"
    came = []
    for _ in range(4):
        reader.take(1)
        came.append(time.monotonic() - begun)
    assert came[1] < 0.5 + STALL
    assert came[2] > 0.6
    assert came[3] > 1.1, "the last one holds for all that follow"


def test_max_deliver_is_how_often_a_message_comes(
    js: JetStream, stream: Stream, read: Read, nc: Connection
) -> None:
    """After this number of deliveries a message is not redelivered, and there is an advisory."""
    put(js, stream, 1)
    with nc.subscribe(f"$JS.EVENT.ADVISORY.CONSUMER.MAX_DELIVERIES.{stream.name}.*") as advisories:
        reader = read(max_deliver=2, ack_wait=0.1)
        assert [msg.metadata.num_delivered for msg in reader.take(2)] == [1, 2]
        assert reader.silent(0.4)
        assert b'"deliveries":2' in advisories.next_msg(2).data


def test_max_ack_pending_is_how_many_may_be_open(js: JetStream, stream: Stream, read: Read) -> None:
    """With two messages pending, the third is delivered after an acknowledgement."""
    put(js, stream, 1, 2, 3)
    reader = read(max_ack_pending=2)
    first, _ = reader.take(2)
    assert reader.silent()
    first.ack()
    assert reader.data(1) == [b"3"]


def test_no_limit_of_open_acks(js: JetStream, stream: Stream, read: Read) -> None:
    """``-1`` is unlimited, and the server's default is 1000."""
    for _ in range(1100):
        js.publish_async(f"{stream.name}.a", b"x")
    js.publish_async_completed(10)
    reader = read(max_ack_pending=-1)
    reader.take(1100)
    assert reader.info().num_ack_pending == 1100


# --- filter_subject, filter_subjects, headers_only ----------------------------------------------


def test_a_filter_is_what_comes(js: JetStream, stream: Stream, read: Read) -> None:
    """Only messages that match ``filter_subject`` are delivered and counted as pending."""
    put(js, stream, 1, 2, 3, 4)
    reader = read(filter_subject=f"{stream.name}.odd", max_ack_pending=1)
    (first,) = reader.take(1)
    assert (first.data, first.metadata.num_pending) == (b"1", 1)
    first.ack()
    assert reader.data(1) == [b"3"]
    assert reader.silent()


def test_several_filters_are_what_comes(js: JetStream, stream: Stream, read: Read) -> None:
    """With ``filter_subjects`` messages on any of them are delivered in stream order."""
    for token in ("a.1", "b.1", "c.1", "a.2", "c.2"):
        js.publish(f"{stream.name}.{token}", token.encode())
    reader = read(filter_subjects=[f"{stream.name}.c.*", f"{stream.name}.a.1"])
    assert reader.data(3) == [b"a.1", b"c.1", b"c.2"]
    assert reader.silent()


def test_headers_only_leaves_the_payload_out(js: JetStream, stream: Stream, read: Read) -> None:
    """A message has its headers, no payload, and a header with the size of the payload."""
    js.publish(f"{stream.name}.a", b"x" * 1234, headers={"A": "b"})
    js.publish(f"{stream.name}.a", b"y")
    first, second = read(headers_only=True).take(2)
    assert (first.data, second.data) == (b"", b"")
    assert first.headers is not None
    assert second.headers is not None
    assert (first.headers["A"], first.headers["Nats-Msg-Size"]) == ("b", "1234")
    assert second.headers["Nats-Msg-Size"] == "1"


# --- replay_policy, sample_freq ------------------------------------------------------------------


def test_replay_instant_is_as_fast_as_it_goes(js: JetStream, stream: Stream, read: Read) -> None:
    """Messages stored over some time are delivered at once."""
    put(js, stream, 1)
    pass_time(0.4 + STALL)
    put(js, stream, 2)
    reader = read(replay_policy=ReplayPolicy.INSTANT)
    begun = time.monotonic()
    reader.take(2)
    assert time.monotonic() - begun < 0.4 + STALL


def test_replay_original_is_as_slow_as_it_was(js: JetStream, stream: Stream, read: Read) -> None:
    """Messages are delivered with the intervals of their publishing."""
    put(js, stream, 1)
    pass_time(0.5)
    put(js, stream, 2, 3)
    begun = time.monotonic()
    reader = read(replay_policy=ReplayPolicy.ORIGINAL)
    reader.take(2)
    assert 0.4 < time.monotonic() - begun < 2 + STALL
    reader.take(1)
    assert time.monotonic() - begun < 2 + STALL


@pytest.mark.parametrize("freq", ["100", "100%"])
def test_sample_freq_reports_acks(
    js: JetStream, stream: Stream, read: Read, nc: Connection, freq: str
) -> None:
    """With a rate of 100 % each ack is reported with its delivery count."""
    put(js, stream, 1, 2)
    with nc.subscribe(f"$JS.EVENT.METRIC.CONSUMER.ACK.{stream.name}.*") as metrics:
        reader = read(sample_freq=freq)
        for msg in reader.take(2):
            msg.ack()
        reported = [jetstream_sync.codec.loads(metrics.next_msg(2).data) for _ in range(2)]
    assert [metric["stream_seq"] for metric in reported] == [1, 2]
    assert {metric["deliveries"] for metric in reported} == {1}
    assert all(metric["ack_time"] > 0 for metric in reported)


def test_without_sample_freq_acks_are_not_reported(
    js: JetStream, stream: Stream, read: Read, nc: Connection
) -> None:
    """Without ``sample_freq`` no ack samples are published."""
    put(js, stream, 1)
    with nc.subscribe(f"$JS.EVENT.METRIC.CONSUMER.ACK.{stream.name}.*") as metrics:
        read().take(1)[0].ack_sync()
        nc.flush()
        assert metrics.pending_msgs == 0


# --- durable_name, name, inactive_threshold, description, metadata -------------------------------


def test_an_ephemeral_consumer_goes_when_it_is_not_used(stream: Stream) -> None:
    """A consumer is deleted after ``inactive_threshold`` without use; a durable one is kept."""
    ephemeral = stream.create_consumer(name="E", inactive_threshold=0.2)
    durable = stream.create_consumer(durable_name="D")
    both = stream.create_consumer(durable_name="B", inactive_threshold=0.2)
    assert stream.consumer_names() == ["B", "D", "E"]
    wait_until(lambda: stream.consumer_names() == ["D"])
    assert durable.info().config.inactive_threshold is None
    for gone in (ephemeral, both):
        with pytest.raises(ConsumerNotFoundError):
            gone.info()


def test_a_consumer_in_use_stays(js: JetStream, stream: Stream, read: Read) -> None:
    """A waiting reader keeps the consumer alive, with messages or without."""
    reader = read(inactive_threshold=0.3)
    assert reader.silent(1.0)
    put(js, stream, 1)
    assert reader.data(1) == [b"1"]


def test_a_durable_consumer_goes_on_where_it_was(js: JetStream, stream: Stream) -> None:
    """The next reader gets the messages that were not acknowledged."""
    put(js, stream, 1, 2, 3)
    first = stream.create_consumer(durable_name="D")
    first.next().ack_sync()
    assert first.info().config.durable_name == first.name == "D"
    assert stream.get_consumer("D").next().data == b"2"


def test_description_and_metadata_are_kept(read: Read) -> None:
    """The server stores and returns both, and adds its own metadata."""
    config = read(description="for billing", metadata={"team": "a", "x": ""}).info().config
    assert config.description == "for billing"
    assert config.metadata is not None
    labels = {k: v for k, v in config.metadata.items() if not k.startswith("_nats.")}
    assert labels == {"team": "a", "x": ""}


# --- pause_until ---------------------------------------------------------------------------------


@pytest.mark.server(">=2.11")
def test_a_paused_consumer_delivers_later(js: JetStream, stream: Stream, read: Read) -> None:
    """Nothing is delivered before ``pause_until``; then everything is."""
    put(js, stream, 1)
    begun = time.monotonic()
    reader = read(pause_until=datetime.now(timezone.utc) + timedelta(seconds=0.5))
    assert reader.info().paused
    assert reader.data(1) == [b"1"]
    assert 0.4 < time.monotonic() - begun < 2 + STALL


# --- num_replicas, mem_storage -------------------------------------------------------------------


def test_num_replicas_is_on_how_many_servers_it_is(cluster: NatsCluster) -> None:
    """A durable consumer has the stream's replicas by default, an ephemeral one has one."""
    with jetstream_sync.connect(cluster.urls) as nc:
        js = nc.jetstream()
        stream = js.create_stream(name="S", subjects=["s"], num_replicas=3)

        def servers(**options: Any) -> int:
            where = stream.create_consumer(**options).info().cluster
            assert where is not None
            return 1 + len(where.replicas or ())

        assert (servers(), servers(durable_name="D")) == (1, 3)
        assert (servers(num_replicas=3), servers(durable_name="E", num_replicas=1)) == (3, 1)


def test_mem_storage_is_forgotten_with_the_server(fresh_server: NatsServer) -> None:
    """After a restart a memory consumer starts again, and a file consumer continues."""
    with jetstream_sync.connect(fresh_server.url, reconnect_time_wait=0.05) as nc:
        js = nc.jetstream()
        stream = js.create_stream(name="S", subjects=["S.>"], storage="file")
        put(js, stream, 1, 2)
        readers = {
            kept: stream.create_consumer(durable_name=f"D{kept:d}", mem_storage=not kept)
            for kept in (True, False)
        }
        for reader in readers.values():
            reader.next().ack_sync()
        fresh_server.restart()
        wait_until(lambda: nc.is_connected and nc.stats["reconnects"])
        assert stream.get_consumer("D1").next().data == b"2"
        # The server stores the config of a durable memory consumer, and not its position.
        assert stream.create_consumer(durable_name="D0", mem_storage=True).next().data == b"1"
