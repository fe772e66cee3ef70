"""Ordered subscriptions: every message once and in order, under any fault."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
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
    ConsumerNotFoundError,
    DrainTimeoutError,
    Error,
    InvalidOptionError,
    JetStream,
    JetStreamMsg,
    OrderedSubscription,
    Stream,
    StreamNotFoundError,
    StreamRecreatedError,
    SubscriptionError,
    TimeoutError,
)
from jetstream_sync.jetstream.ordered_cursor import OrderedCursor
from jetstream_sync.jetstream.pull import PullInbox
from jetstream_sync.net.clock import Deadline
from jetstream_sync.server import NatsServer


def numbers(sub: OrderedSubscription, count: int, timeout: float = 10) -> list[int]:
    """Read this number of messages and return their numbers."""
    return [int(sub.next_msg(timeout).data) for _ in range(count)]


def replace_slowly(
    sub: OrderedSubscription, monkeypatch: pytest.MonkeyPatch
) -> tuple[threading.Event, threading.Thread]:
    """Start the creation of the next consumer, which waits for the event that is returned, in a thread."""
    making, go_on = threading.Event(), threading.Event()
    renew = cursor_of(sub).renew

    def slow(*args: Any) -> Any:
        making.set()
        go_on.wait(10)
        return renew(*args)

    def replace() -> None:
        with suppress(Error):
            sub._reader.renew("a test", Deadline(10))

    monkeypatch.setattr(cursor_of(sub), "renew", slow)
    thread = threading.Thread(target=replace, daemon=True)
    thread.start()
    assert making.wait(5)
    return go_on, thread


def lose(stream: Stream) -> None:
    """Delete the subscription's consumer on the server, and wait until it has another one."""
    (name,) = stream.consumer_names()
    stream.delete_consumer(name)


@pytest.fixture
def nc(nats_server: NatsServer) -> Iterator[Connection]:
    """A connection with a short reconnect delay."""
    with jetstream_sync.connect(nats_server.url, reconnect_time_wait=0.02) as connection:
        yield connection


def read_ordered(js: JetStream, stream: Stream, **options: Any) -> OrderedSubscription:
    """Subscribe to a whole stream, with short heartbeats."""
    sub = js.subscribe(
        f"{stream.name}.>", ordered_consumer=True, **{"idle_heartbeat": 0.2, **options}
    )
    assert isinstance(sub, OrderedSubscription)
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
    wait_until(lambda: stream.consumer_names() == [])


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


def test_a_lost_consumer_is_replaced(js, stream):
    """Another consumer starts behind the last message."""
    fill(js, stream.name, 5)
    sub = read_ordered(js, stream)
    assert numbers(sub, 5) == list(range(5))
    for first in (5, 10):
        lose(stream)
        fill(js, stream.name, 5, first=first)
        assert numbers(sub, 5) == list(range(first, first + 5))
    assert stream.consumer_names() == [sub.consumer_name]
    sub.unsubscribe()


def dropping_for(inbox: PullInbox) -> Any:
    """Return a `PullInbox.deliver` that drops what arrives in one inbox."""
    deliver = PullInbox.deliver

    def dropping(self: PullInbox, deliveries: list[Any]) -> None:
        if self is not inbox:
            deliver(self, deliveries)

    return dropping


def test_a_silent_consumer_is_replaced(alone, monkeypatch):
    """Two missed heartbeats are enough, also if the server never says that the consumer is gone."""
    js = alone.jetstream()
    stream = js.create_stream(name="S", subjects=["S.>"], storage="memory")
    sub = read_ordered(js, stream)
    first = sub.consumer_name
    # Nothing arrives from the first consumer, as from a server that is gone.
    inbox = sub._reader._messages._inbox
    monkeypatch.setattr(type(inbox), "deliver", dropping_for(inbox))
    began = time.monotonic()
    fill(js, "S", 3)
    assert numbers(sub, 3) == [0, 1, 2]
    assert time.monotonic() - began < 1.0 + 0.5 * SCALE
    assert sub.consumer_name != first
    sub.unsubscribe()


def test_a_lost_consumer_is_replaced_without_a_reader(js, stream):
    """`consumer_info` creates another one if the server has none, as nothing reads meanwhile."""
    fill(js, stream.name, 3)
    sub = read_ordered(js, stream)
    first = sub.consumer_info().name
    lose(stream)
    info = sub.consumer_info()
    assert info.name == sub.consumer_name != first
    assert numbers(sub, 3) == [0, 1, 2]
    sub.unsubscribe()
    with pytest.raises(ConsumerNotFoundError):
        wait_until(lambda: not sub.consumer_info())


def test_messages_are_counted(js, stream):
    """Received messages are delivered or pending, also those of earlier consumers."""
    fill(js, stream.name, 300)
    sub = read_ordered(js, stream)
    wait_until(lambda: sub.pending_msgs == 300)
    size = sub.pending_bytes
    assert size == sum(len(b"%d" % number) for number in range(300))
    assert numbers(sub, 100) == list(range(100))
    assert (sub.delivered, sub.pending_msgs, sub.dropped) == (300, 200, 0)
    assert 0 < sub.pending_bytes < size
    lose(stream)
    assert numbers(sub, 200) == list(range(100, 300))
    assert (sub.delivered, sub.pending_msgs, sub.pending_bytes) == (300, 0, 0)
    sub.unsubscribe()


def test_a_limit_below_what_was_read(js, stream):
    """Nothing is pending then, and the count of deliveries does not fall."""
    fill(js, stream.name, 8)
    sub = read_ordered(js, stream)
    assert numbers(sub, 5) == list(range(5))
    wait_until(lambda: sub.pending_msgs == 3)
    sub.unsubscribe(2)
    assert (sub.pending_msgs, sub.pending_bytes, sub.delivered) == (0, 0, 5)


def test_a_lost_link_is_no_message(js, nc, stream):
    """An empty subscription stays empty, whatever happens to the connection."""
    sub = read_ordered(js, stream)
    break_link(nc)
    wait_until(lambda: nc.stats["reconnects"] == 1)
    nc.flush()
    assert (sub.pending_msgs, sub.pending_bytes, sub.delivered) == (0, 0, 0)
    fill(js, stream.name, 1)
    assert numbers(sub, 1) == [0]
    sub.unsubscribe()


def test_a_final_error_ends_a_subscription_without_a_callback(js, stream):
    """A loop while it is valid ends when the stream was created again."""
    fill(js, stream.name, 3)
    sub = read_ordered(js, stream)
    assert numbers(sub, 3) == [0, 1, 2]
    config = stream.info().config
    js.delete_stream(stream.name)
    js.create_stream(config)
    with pytest.raises(StreamRecreatedError):
        sub.next_msg(10 * SCALE)
    assert not sub.is_valid


def test_a_drain_that_is_not_confirmed_is_an_end(alone, fresh_server):
    """The rest is dropped, and another drain does not report success."""
    js = alone.jetstream()
    sub = read_ordered(js, js.create_stream(name="D", subjects=["D.*"]))
    fresh_server.pause()
    try:
        with pytest.raises(DrainTimeoutError):
            sub.drain(0.2)
        with pytest.raises(BadSubscriptionError):
            sub.drain(0.2)
    finally:
        fresh_server.resume()
    assert not sub.is_valid


def test_several_threads_share_the_messages(js, stream):
    """Each message goes to one thread, and a limit holds for all of them."""
    fill(js, stream.name, 1000)
    sub = read_ordered(js, stream)
    sub.unsubscribe(700)
    with ThreadPoolExecutor(4) as pool:
        parts = list(pool.map(lambda _: [int(msg.data) for msg in sub], range(4)))
    assert sorted(number for part in parts for number in part) == list(range(700))
    assert sub.delivered == 700


@pytest.mark.parametrize(
    "options",
    [
        {"queue": "group"},
        {"durable": "durable"},
        {"delete_consumer": False},
        {"heartbeat_intervals": 1},
        {"pending_msgs_limit": 5},
        {"config": ConsumerConfig(rate_limit_bps=1000)},
        {"config": ConsumerConfig(deliver_subject="there")},
    ],
)
def test_what_an_ordered_subscription_cannot_have(js, stream, options):
    """The error names the option, and there is no consumer."""
    with pytest.raises(InvalidOptionError):
        read_ordered(js, stream, **options)
    assert stream.consumer_names() == []


def test_a_callback_is_waited_for(js, stream):
    """`drain` returns after the last call, and raises if that takes too long."""
    fill(js, stream.name, 5)
    got: list[int] = []
    go_on = threading.Event()

    def work(msg: JetStreamMsg) -> None:
        go_on.wait(10)
        got.append(int(msg.data))

    sub = read_ordered(js, stream, cb=work)
    wait_until(lambda: sub.pending_msgs >= 4)
    with pytest.raises(SubscriptionError):
        sub.next_msg(0)
    with pytest.raises(DrainTimeoutError):
        sub.drain(0.1)
    go_on.set()
    wait_until(lambda: stream.consumer_names() == [])
    wait_until(lambda: got)  # the call that was running
    del got[:]
    sub = read_ordered(js, stream, cb=work)
    wait_until(lambda: sub.delivered == 5)
    sub.drain()
    assert got == list(range(5))
    wait_until(lambda: stream.consumer_names() == [])


def test_an_error_of_a_callback_is_reported(nats_server, js, stream):
    """The next message follows."""
    errors: list[Any] = []
    got: list[int] = []

    def work(msg: JetStreamMsg) -> None:
        got.append(int(msg.data))
        if len(got) == 2:
            raise ValueError

    fill(js, stream.name, 3)
    with (
        jetstream_sync.connect(nats_server.url, error_cb=errors.append) as nc,
        read_ordered(nc.jetstream(), stream, cb=work),
    ):
        wait_until(lambda: got == [0, 1, 2])
    assert len(errors) == 1


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
    fresh_server.start()
    wait_until(lambda: alone.is_connected, 15)
    fill(js, "S", 5)
    assert numbers(sub, 5, 20) == list(range(5))
    sub.unsubscribe()


def test_closing_ends_the_making_of_a_consumer(nats_server, stream, monkeypatch):
    """Closing the connection meanwhile leaves no thread and no waiting call."""
    with jetstream_sync.connect(nats_server.url) as nc:
        sub = read_ordered(nc.jetstream(), stream)
        go_on, thread = replace_slowly(sub, monkeypatch)
        nc.close()
        go_on.set()
        with pytest.raises(ConnectionClosedError):
            sub.next_msg(5)
        wait_until(lambda: not thread.is_alive())


# --- the end ------------------------------------------------------------------------------------


@pytest.mark.parametrize("end", ["unsubscribe", "drain"])
def test_ending_does_not_wait_for_the_next_consumer(js, stream, monkeypatch, end):
    """Ending it does not wait for the next consumer, and that one does not stay."""
    sub = read_ordered(js, stream)
    go_on, thread = replace_slowly(sub, monkeypatch)
    getattr(sub, end)()
    go_on.set()
    wait_until(lambda: stream.consumer_names() == [])
    wait_until(lambda: not thread.is_alive())
    with pytest.raises(BadSubscriptionError):
        sub.next_msg(0)


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
