"""Ordered push subscriptions: every message once and in order, under any fault."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from fixtures.internals import core_of, cursor_of
from fixtures.server import break_link, fill
from fixtures.threads import SCALE, wait_until

import jetstream_sync
from jetstream_sync import (
    BadSubscriptionError,
    Connection,
    ConnectionClosedError,
    ConsumerConfig,
    JetStream,
    NotJSMessageError,
    PushSubscription,
    Stream,
    StreamNotFoundError,
    TimeoutError,
)
from jetstream_sync.jetstream.ordered_cursor import OrderedCursor
from jetstream_sync.jetstream.push import FeedState, OrderedPushSubscription
from jetstream_sync.server import NatsServer


def numbers(sub: PushSubscription, count: int, timeout: float = 10) -> list[int]:
    """Read this number of messages and return their numbers."""
    return [int(sub.next_msg(timeout).data) for _ in range(count)]


def lose(stream: Stream) -> None:
    """Delete the subscription's consumer on the server, and wait until it has another one."""
    (name,) = stream.consumer_names()
    stream.delete_consumer(name)


def replace_slowly(
    sub: OrderedPushSubscription, monkeypatch: pytest.MonkeyPatch
) -> threading.Event:
    """Start the creation of the next consumer, which waits for the event that is returned."""
    making, go_on = threading.Event(), threading.Event()
    renew = cursor_of(sub).renew

    def slow(*args: Any) -> Any:
        making.set()
        go_on.wait(10)
        return renew(*args)

    monkeypatch.setattr(cursor_of(sub), "renew", slow)
    with sub._receive_lock:
        sub._replace_consumer("a test")
    assert making.wait(5)
    return go_on


def nc_flush(js: JetStream) -> None:
    """Wait until the reader thread has delivered everything in flight."""
    js.account_info()


@pytest.fixture
def nc(nats_server: NatsServer) -> Iterator[Connection]:
    """A connection with a short reconnect delay."""
    with jetstream_sync.connect(nats_server.url, reconnect_time_wait=0.02) as connection:
        yield connection


def read_ordered(js: JetStream, stream: Stream, **options: Any) -> OrderedPushSubscription:
    """Subscribe to a whole stream, with short heartbeats."""
    sub = js.subscribe(
        f"{stream.name}.>", ordered_consumer=True, **{"idle_heartbeat": 0.2, **options}
    )
    assert isinstance(sub, OrderedPushSubscription)
    return sub


# --- reading ------------------------------------------------------------------------------------


def test_all_messages_are_read_in_order(js, stream):
    """Stored messages and new ones are read in order."""
    fill(js, stream.name, 1000)
    sub = read_ordered(js, stream)
    assert numbers(sub, 1000) == list(range(1000))
    fill(js, stream.name, 100, first=1000)
    assert numbers(sub, 100) == list(range(1000, 1100))
    msg_count = sub.delivered
    sub.unsubscribe()
    assert msg_count == 1100
    assert stream.consumer_names() == []


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"deliver_policy": "new"}, []),
        ({"deliver_policy": "last_per_subject"}, [3, 4, 5]),
        (
            {"config": ConsumerConfig(deliver_policy="by_start_sequence", opt_start_seq=3)},
            [2, 3, 4, 5],
        ),
    ],
)
@pytest.mark.parametrize("lost", [False, True])
def test_every_deliver_policy_is_kept_after_a_loss(js, nc, stream, options, expected, lost):
    """Every deliver policy applies, also when the first consumer is lost before a message."""
    fill(js, stream.name, 6)
    sub = read_ordered(js, stream, **options)
    if lost:
        assert numbers(sub, len(expected)) == expected
        break_link(nc)
        fill(js, stream.name, 2, first=6)
        assert numbers(sub, 2) == [6, 7]
    else:
        fill(js, stream.name, 2, first=6)
        assert numbers(sub, len(expected) + 2) == [*expected, 6, 7]
    sub.unsubscribe()


# --- losses -------------------------------------------------------------------------------------


def test_a_stream_that_does_not_exist(js):
    """A consumer that cannot be created is an error of the call."""
    with pytest.raises(StreamNotFoundError):
        js.subscribe("x", stream="NOTHING", ordered_consumer=True)


def test_a_gap_is_read_again(js, stream):
    """A lost delivery is detected, and read again with all that follows it."""
    sub = read_ordered(js, stream)
    dropped = threading.Event()
    receive = sub._receive

    def dropping(deliveries: list[Any]) -> None:
        if not dropped.is_set() and len(deliveries) > 3:
            del deliveries[2]
            dropped.set()
        receive(deliveries)

    sub._receive = dropping
    first = sub.consumer_name
    fill(js, stream.name, 2000)
    assert numbers(sub, 2000) == list(range(2000))
    assert dropped.is_set()
    wait_until(lambda: sub.consumer_name != first)
    sub.unsubscribe()


def test_the_last_message_may_vanish(js, stream):
    """A loss at the end is detected by the next heartbeat, which has the last sequence."""
    sub = read_ordered(js, stream)
    fill(js, stream.name, 3)
    assert numbers(sub, 3) == [0, 1, 2]
    receive = sub._receive
    sub._receive = lambda _: None
    js.publish(f"{stream.name}.0", b"3")
    nc_flush(js)
    sub._receive = receive
    assert numbers(sub, 1) == [3]
    sub.unsubscribe()


def test_missed_heartbeats_create_another_consumer(js, stream):
    """Missed heartbeats create a new consumer, which starts behind the last message."""
    fill(js, stream.name, 5)
    sub = read_ordered(js, stream)
    assert numbers(sub, 5) == list(range(5))
    for first in (5, 10):
        lose(stream)
        fill(js, stream.name, 5, first=first)
        assert numbers(sub, 5) == list(range(first, first + 5))
    (name,) = stream.consumer_names()
    assert name == sub.consumer_name
    sub.unsubscribe()


def test_one_missed_heartbeat_is_noticed(js, stream):
    """A consumer that is gone without a signal of the server is replaced after one heartbeat, not after three."""
    fill(js, stream.name, 5)
    sub = read_ordered(js, stream, idle_heartbeat=2.0)
    assert numbers(sub, 5) == list(range(5))
    lose(stream)
    began = time.monotonic()
    fill(js, stream.name, 1, first=5)
    assert numbers(sub, 1) == [5]
    assert time.monotonic() - began < 2.5 + 0.5 * SCALE
    sub.unsubscribe()


def test_nothing_is_lost_before_the_first_message(js, nc, stream):
    """If the consumer is lost before the first new message, no message is lost."""
    fill(js, stream.name, 5)
    sub = read_ordered(js, stream, deliver_policy="new")
    sub._receive = lambda _: None
    js.publish(f"{stream.name}.0", b"5")
    nc_flush(js)
    del sub._receive
    break_link(nc)
    assert numbers(sub, 1) == [5]
    sub.unsubscribe()


def test_a_new_link_is_a_new_consumer(js, nc, stream):
    """After each break reading continues, without loss and repetition."""
    sub = read_ordered(js, stream)
    got: list[int] = []
    for part in range(5):
        fill(js, stream.name, 500, first=500 * part)
        got += numbers(sub, 100)
        break_link(nc)
    got += numbers(sub, 2000)
    assert got == list(range(2500))
    with pytest.raises(TimeoutError):
        sub.next_msg(0.05)
    sub.unsubscribe()


def test_a_deleted_stream_ends_the_subscription_after_the_last_message(js, stream):
    """The subscription ends with the reason after the last message."""
    fill(js, stream.name, 2)
    sub = read_ordered(js, stream)
    wait_until(lambda: sub.pending_msgs == 2)
    js.delete_stream(stream.name)
    reading = iter(sub)
    assert [int(next(reading).data) for _ in range(2)] == [0, 1]
    with pytest.raises(StreamNotFoundError):
        next(reading)
    with pytest.raises(StreamNotFoundError):
        sub.unsubscribe()


def test_a_deleted_stream_with_a_callback(nats_server, stream):
    """The error is reported when no call is reading."""
    errors: list[Any] = []
    with jetstream_sync.connect(nats_server.url, error_cb=errors.append) as nc:
        js = nc.jetstream()
        sub = read_ordered(js, stream, cb=lambda _: None)
        js.delete_stream(stream.name)
        wait_until(lambda: errors)
        wait_until(lambda: not sub.is_valid)
        assert isinstance(errors[0], StreamNotFoundError)


def test_a_message_from_no_stream_is_reported_and_dropped(js, nats_server, stream):
    """A message to its inbox that is from no stream is reported, and does not break the order."""
    errors: list[Any] = []
    with jetstream_sync.connect(nats_server.url, error_cb=errors.append) as mine:
        sub = read_ordered(mine.jetstream(), stream)
        fill(js, stream.name, 1)
        assert numbers(sub, 1) == [0]
        core_of(js).writer.publish(*core_of(js).encoder.encode_message(sub.subject, b"hello"))
        js.account_info()
        fill(js, stream.name, 1, first=1)
        assert numbers(sub, 1) == [1]
        wait_until(lambda: errors)
        assert isinstance(errors[0], NotJSMessageError)
        sub.unsubscribe()


def test_a_link_that_is_lost_while_subscribing(js, nc, stream, monkeypatch):
    """After a reconnect during the call, only the calling thread creates consumers, and one remains."""
    fill(js, stream.name, 3)
    create, creators = OrderedCursor._create, []

    def breaking(cursor: OrderedCursor, *args: Any) -> Any:
        creators.append(threading.current_thread())
        if len(creators) == 1:
            break_link(nc)
        return create(cursor, *args)

    monkeypatch.setattr(OrderedCursor, "_create", breaking)
    sub = read_ordered(nc.jetstream(), stream)
    assert numbers(sub, 3) == [0, 1, 2]
    assert set(creators) == {threading.current_thread()}
    wait_until(lambda: stream.consumer_names() == [sub.consumer_name])
    sub.unsubscribe()


def test_a_consumer_is_created_on_the_next_link(alone, fresh_server):
    """A consumer that is needed while disconnected is created on the next link."""
    js = alone.jetstream(timeout=15)
    js.create_stream(name="S", subjects=["S.>"], storage="file")
    sub = read_ordered(js, js.get_stream("S"))
    fresh_server.stop()
    wait_until(lambda: core_of(alone).address is None)
    with sub._receive_lock:
        sub._replace_consumer("a test")
    wait_until(lambda: sub._feed_state is FeedState.LOST)
    fresh_server.start()
    wait_until(lambda: alone.is_connected, 15)
    fill(js, "S", 5)
    assert numbers(sub, 5, 20) == list(range(5))
    sub.unsubscribe()


def test_closing_ends_the_making_of_a_consumer(nats_server, stream, monkeypatch):
    """Closing the connection meanwhile leaves no thread and no waiting call."""
    with jetstream_sync.connect(nats_server.url) as nc:
        sub = read_ordered(nc.jetstream(), stream)
        go_on = replace_slowly(sub, monkeypatch)
        nc.close()
        go_on.set()
        with pytest.raises(ConnectionClosedError):
            sub.next_msg(5)
        wait_until(lambda: not [item for item in threading.enumerate() if "ordered" in item.name])


def test_deliveries_of_a_replaced_consumer_are_dropped(js, stream, monkeypatch):
    """While another consumer is created, the old one's messages are not used: the new one sends them."""
    sub = read_ordered(js, stream)
    go_on = replace_slowly(sub, monkeypatch)
    fill(js, stream.name, 5)
    js.account_info()  # the old consumer's messages have arrived
    assert sub.pending_msgs == 0
    go_on.set()
    assert numbers(sub, 5) == list(range(5))
    sub.unsubscribe()


def test_a_gap_in_the_first_deliveries_is_filled(js, stream, monkeypatch):
    """The first message may be lost before ``subscribe()`` returns: another consumer delivers it."""
    fill(js, stream.name, 3)
    deliver, create = OrderedPushSubscription._deliver, OrderedCursor._create
    first = [True]

    def lossy(sub, receiver, deliveries):
        if first:
            deliveries = deliveries[first.pop() :]
        if deliveries:
            deliver(sub, receiver, deliveries)

    def slow(cursor, *arguments):
        created = create(cursor, *arguments)
        wait_until(lambda: not first)  # the reader has the first message before the caller goes on
        return created

    monkeypatch.setattr(OrderedPushSubscription, "_deliver", lossy)
    monkeypatch.setattr(OrderedCursor, "_create", slow)
    sub = js.subscribe(f"{stream.name}.>", ordered_consumer=True)
    assert numbers(sub, 3) == [0, 1, 2]
    sub.unsubscribe()
    wait_until(lambda: stream.consumer_names() == [])


# --- the end ------------------------------------------------------------------------------------


@pytest.mark.parametrize("end", ["unsubscribe", "drain"])
def test_ending_does_not_wait_for_the_next_consumer(js, stream, monkeypatch, end):
    """Ending it does not wait for the next consumer, and that one does not stay."""
    sub = read_ordered(js, stream)
    go_on = replace_slowly(sub, monkeypatch)
    getattr(sub, end)()
    go_on.set()
    wait_until(lambda: stream.consumer_names() == [])
    with pytest.raises(BadSubscriptionError):
        sub.next_msg(0)
    wait_until(lambda: not [item for item in threading.enumerate() if "ordered" in item.name])


def test_a_limit_holds_across_consumers(js, nc, stream):
    """unsubscribe(limit) counts messages from the first consumer on."""
    fill(js, stream.name, 4)
    sub = read_ordered(js, stream)
    wait_until(lambda: sub.pending_msgs == 4)
    sub.unsubscribe(7)
    break_link(nc)
    fill(js, stream.name, 6, first=4)
    assert [int(msg.data) for msg in sub] == list(range(7))
    assert sub.delivered == 7
    wait_until(lambda: stream.consumer_names() == [])
