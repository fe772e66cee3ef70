"""Push subscriptions under faults: slow readers, missed heartbeats, broken links, forks, Ctrl-C."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from queue import SimpleQueue
from typing import Any

import pytest
from fixtures.internals import core_of
from fixtures.rawnats import RawClient
from fixtures.server import break_link
from fixtures.threads import SCALE, wait_until

import jetstream_sync
from jetstream_sync import (
    BadSubscriptionError,
    Connection,
    ConsumerConfig,
    JetStream,
    JetStreamMsg,
    NoHeartbeatError,
    NotJSMessageError,
    SlowConsumerError,
    Stream,
    TimeoutError,
)
from jetstream_sync.server import NatsServer

MANY = 60_000


def fill(js: JetStream, subject: str, count: int, size: int = 1, first: int = 0) -> None:
    """Store messages whose payload starts with their number."""
    padding = b" " * size
    for number in range(first, first + count):
        js.publish_async(subject, b"%d%b" % (number, padding))
    js.publish_async_completed(60 * SCALE)


@pytest.fixture
def errors() -> list[Any]:
    """The errors reported to error_cb."""
    return []


@pytest.fixture
def nc(nats_server: NatsServer, errors: list[Any]) -> Iterator[Connection]:
    """A connection that records its errors, with a short reconnect wait."""
    with jetstream_sync.connect(
        nats_server.url, error_cb=errors.append, reconnect_time_wait=0.05
    ) as connection:
        yield connection


@pytest.fixture
def stream(js: JetStream, stream_name: str) -> Stream:
    """An empty stream."""
    return js.create_stream(name=stream_name, subjects=[stream_name], storage="memory")


# --- flow control -------------------------------------------------------------------------------


def test_flow_control_holds_the_server_back(js, stream, errors):
    """A slow subscriber gets 60,000 messages in order, with few pending at first."""
    fill(js, stream.name, MANY, size=200)
    sub = js.subscribe(
        stream.name,
        idle_heartbeat=0.5,
        flow_control=True,
        config=ConsumerConfig(ack_policy="none"),
    )
    pending = []
    wait_until(lambda: sub.pending_msgs)
    for number in range(MANY):
        if number % 10_000 == 0:
            # Slow: the server fills its window, and has to wait.
            before = -1
            while before != sub.pending_msgs:
                before = sub.pending_msgs
                threading.Event().wait(0.02)
            pending.append(before)
        msg = sub.next_msg(10)
        assert int(msg.data) == number
    with pytest.raises(TimeoutError):
        sub.next_msg(0.05)
    sub.unsubscribe()
    # The window of the server grows; without flow control all messages would be pending at first.
    assert 0 < pending[0] < MANY // 2
    assert sub.dropped == 0
    assert errors == []


def test_without_flow_control_exceeding_the_limit_is_reported(js, stream, errors):
    """Above the pending limit messages are dropped, which is reported, and is not a gap."""
    fill(js, stream.name, 100)
    sub = js.subscribe(
        stream.name,
        pending_msgs_limit=10,
        config=ConsumerConfig(ack_policy="none"),
    )
    wait_until(lambda: errors)
    assert isinstance(errors[0], SlowConsumerError)
    wait_until(lambda: sub.delivered == 100)
    assert sub.dropped == 100 - sub.pending_msgs
    sub.unsubscribe()
    assert all(isinstance(error, SlowConsumerError) for error in errors)


# --- heartbeats ---------------------------------------------------------------------------------


def test_heartbeats_of_an_idle_consumer(js, stream, errors):
    """Heartbeats of an idle consumer prevent the error, and are not delivered."""
    sub = js.subscribe(stream.name, idle_heartbeat=0.1)
    seen = sub._last_seen
    wait_until(lambda: sub._last_seen > seen + 0.8)
    assert sub.pending_msgs == 0
    sub.unsubscribe()
    assert errors == []


@pytest.mark.parametrize("sent", ["9" * 5000, "\u00b2", "-1", ""])
def test_a_heartbeat_of_another_client(js, peer, stream, errors, sent):
    """A number that no server writes is left out; the subscription goes on."""
    sub = js.subscribe(stream.name, idle_heartbeat=1)
    peer.send(b"%b\r\n" % _heartbeat(sub.subject, sent))
    peer.request("$JS.API.INFO")
    js.publish(stream.name, b"data")
    assert sub.next_msg(5).data == b"data"
    sub.unsubscribe()
    assert errors == []


def _heartbeat(subject: str, sent: str) -> bytes:
    return _control(subject, f"Nats-Last-Consumer: {sent}")


def _control(subject: str, line: str, reply: str = "") -> bytes:
    header = f"NATS/1.0 100 Any\r\n{line}\r\n\r\n".encode()
    return f"HPUB {subject} {reply} {len(header)} {len(header)}\r\n".encode() + header


def test_another_client_chooses_no_subject(js, nc, peer, stream, errors):
    """A control message with any reply subject, as of a request to the API, makes the subscriber send nothing."""
    js.create_stream(name="VICTIM", subjects=["victim"], storage="memory")
    sub = js.subscribe(stream.name, idle_heartbeat=1)
    for line, reply in (
        ("A: b", "$JS.API.STREAM.DELETE.VICTIM"),
        ("Nats-Consumer-Stalled: $JS.API.STREAM.DELETE.VICTIM", ""),
        ("Nats-Consumer-Stalled: a b c d", ""),
        ("Nats-Consumer-Stalled: $JS.FC.a b c d", ""),
    ):
        peer.send(b"%b\r\n" % _control(sub.subject, line, reply))
    peer.request("$JS.API.INFO")
    js.publish(stream.name, b"data")
    assert sub.next_msg(5).data == b"data"
    nc.flush()
    js.delete_stream("VICTIM")  # it is there
    sub.unsubscribe()
    assert errors == []
    assert nc.stats["reconnects"] == 0


@pytest.mark.parametrize("fails", [False, True])
def test_a_message_of_another_client_is_not_acknowledged(js, nc, peer, stream, errors, fails):
    """Its reply subject is any: neither the subscription nor a callback sends an acknowledgement to it."""
    settled: SimpleQueue[Any] = SimpleQueue()

    def handle(msg: JetStreamMsg) -> None:
        for settle in (msg.ack, msg.nak, msg.term, msg.in_progress, msg.ack_sync):
            with pytest.raises(NotJSMessageError):
                settle()
        settled.put((msg.data, msg.is_acked))
        if fails:
            raise ValueError("no")

    with nc.subscribe("other") as seen:
        sub = js.subscribe(stream.name, cb=handle)
        peer.send(b"PUB %b other 4\r\ndata\r\n" % sub.subject.encode())
        assert settled.get(timeout=5 * SCALE) == (b"data", False)
        wait_until(lambda: errors)
        assert isinstance(errors[0], ValueError if fails else NotJSMessageError)
        sub.unsubscribe()
        nc.flush()
        with pytest.raises(TimeoutError):
            seen.next_msg(0)


@pytest.mark.parametrize(("intervals", "limit"), [(None, 0.6), (2, 0.4)])
def test_a_silent_server_is_reported(js, stream, errors, intervals, limit):
    """After three silent intervals, or the given number, missed heartbeats are reported."""
    options: Any = {} if intervals is None else {"heartbeat_intervals": intervals}
    sub = js.subscribe(stream.name, idle_heartbeat=0.2, **options)
    seen = sub._last_seen
    wait_until(lambda: sub._last_seen > seen)
    stream.delete_consumer(sub.consumer_name)
    wait_until(lambda: errors)
    took = time.monotonic() - sub._last_seen
    assert limit <= took < limit + 0.4 * SCALE
    error = errors[0]
    assert isinstance(error, NoHeartbeatError)
    assert error.consumer == sub.consumer_name
    assert error.seconds == pytest.approx(limit)
    wait_until(lambda: len(errors) > 1)  # as long as it lasts
    sub.unsubscribe()


def test_queues_have_no_heartbeat_alarm(js, stream):
    """Members of a queue get no heartbeats, so silence is not reported."""
    sub = js.subscribe(stream.name, "workers")
    assert sub._monitor is None
    assert not [item for item in threading.enumerate() if "heartbeat" in item.name]
    sub.unsubscribe()


# --- the link -----------------------------------------------------------------------------------


def test_a_durable_continues_after_a_reconnect(js, nc, stream):
    """After a reconnect the durable consumer continues; lost messages are redelivered."""
    config = ConsumerConfig(ack_wait=0.5)
    got: set[int] = set()

    def work(msg: JetStreamMsg) -> None:
        got.add(int(msg.data))

    sub = js.subscribe(stream.name, durable="dur", cb=work, config=config)
    for part in range(3):
        fill(js, stream.name, 100, first=100 * part)
        break_link(nc)
    wait_until(lambda: got == set(range(300)), 10)
    sub.unsubscribe()
    assert stream.consumer_names() == []


def test_unsubscribe_while_disconnected(alone, fresh_server):
    """Unsubscribing while disconnected returns at once, and the next link has no subscription."""
    js = alone.jetstream()
    js.create_stream(name="S", subjects=["s"], storage="file")
    sub = js.subscribe("s", durable="dur", idle_heartbeat=5, delete_consumer=False)
    fresh_server.stop()
    wait_until(lambda: core_of(alone).address is None)
    sub.unsubscribe()
    with pytest.raises(BadSubscriptionError):
        sub.next_msg(5)
    fresh_server.start()
    wait_until(lambda: alone.is_connected, 15)
    with RawClient(fresh_server.port) as raw:
        wait_until(lambda: "config" in raw.api("CONSUMER.INFO.S.dur"))
        wait_until(lambda: not raw.api("CONSUMER.INFO.S.dur").get("push_bound"))


# --- ways to read -------------------------------------------------------------------------------


def test_a_timeout_loses_no_message(js, stream):
    """A call that times out while a message arrives leaves it to other calls."""
    sub = js.subscribe(stream.name, config=ConsumerConfig(ack_policy="none"))
    got: list[int] = []
    stop = threading.Event()

    def read() -> None:
        while not stop.is_set():
            try:
                got.append(int(sub.next_msg(0.0005).data))
            except TimeoutError:
                continue

    with ThreadPoolExecutor(2) as pool:
        reading = [pool.submit(read) for _ in range(2)]
        for number in range(300):
            js.publish(stream.name, b"%d" % number)
        wait_until(lambda: len(got) == 300)
        stop.set()
        for item in reading:
            item.result(5)
    assert sorted(got) == list(range(300))
    sub.unsubscribe()


def test_a_subscription_has_no_thread_but_its_timer(nats_server, stream):
    """A subscription without a callback has one thread, its timer, and none after its end."""
    with jetstream_sync.connect(nats_server.url) as nc:
        before = threading.active_count()
        sub = nc.jetstream().subscribe(stream.name, idle_heartbeat=0.2)
        assert threading.active_count() == before + 1
        sub.unsubscribe()
        wait_until(lambda: threading.active_count() == before)
