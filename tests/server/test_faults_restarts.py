"""Calls and consumers while a server is stopped, or killed with -9, and restarted."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from queue import SimpleQueue
from typing import Any

import pytest
from fixtures.threads import SCALE, wait_until, within

import jetstream_sync
from jetstream_sync import (
    Connection,
    ConnectionLostError,
    JetStream,
    JetStreamMsg,
    PullConsumer,
    TimeoutError,
)
from jetstream_sync.server import NatsServer

OPTIONS: dict[str, Any] = {"reconnect_time_wait": 0.02, "max_reconnect_attempts": -1}
HEARTBEAT = 1.0

every_end = pytest.mark.parametrize("end", ["stop", "kill"])


@pytest.fixture
def server() -> Iterator[NatsServer]:
    """A server of this test alone that syncs each stored message to disk."""
    with NatsServer(config="jetstream { sync_interval: always }\n") as starting:
        yield starting


@pytest.fixture
def alone(server: NatsServer) -> Iterator[Connection]:
    with jetstream_sync.connect(server.url, **OPTIONS) as nc:
        yield nc


@pytest.fixture
def js(alone: Connection) -> JetStream:
    """JetStream with a stream that survives a restart."""
    js = alone.jetstream()
    js.create_stream(name="S", subjects=["s"])
    return js


@pytest.fixture
def durable(js: JetStream) -> PullConsumer:
    return js.create_consumer("S", durable_name="C", ack_wait=60)


def info_of(consumer: PullConsumer) -> tuple[int, int, int]:
    info = consumer.info()
    return info.num_waiting, info.num_ack_pending, info.num_pending


def restart(server: NatsServer, nc: Connection, end: str) -> None:
    """Stop the server, start it again, and return when the connection is open."""
    before = nc.stats["reconnects"]
    (server.stop if end == "stop" else server.kill)()
    server.start()
    wait_until(lambda: nc.is_connected and nc.stats["reconnects"] > before, 10)


@every_end
def test_messages_and_consume_resume_within_two_heartbeats(server, alone, js, durable, end):
    """Both get new messages within two heartbeats of the restart, and send each request once."""
    other = js.create_consumer("S", durable_name="D", ack_wait=60)
    called: SimpleQueue[bytes] = SimpleQueue()

    def callback(msg: JetStreamMsg) -> None:
        msg.ack()
        called.put(msg.data)

    handle = other.consume(callback, heartbeat=HEARTBEAT, expires=4)
    with durable.messages(heartbeat=HEARTBEAT, expires=4) as messages:
        js.publish("s", b"before")
        messages.next(5 * SCALE).ack_sync(5 * SCALE)
        assert called.get(timeout=5 * SCALE) == b"before"
        wait_until(lambda: other.info().num_ack_pending == 0)
        with ThreadPoolExecutor(1) as pool:
            taken = pool.submit(messages.next, 20 * SCALE)
            restart(server, alone, end)
            back = time.monotonic()
            js.publish("s", b"after")
            # A killed server may have lost acknowledgements: it redelivers.
            again = taken.result(5 * SCALE).data
            assert again in {b"before", b"after"}
            if again == b"before":
                assert messages.next(5 * SCALE).data == b"after"
            while called.get(timeout=5 * SCALE) != b"after":
                pass
        assert time.monotonic() - back < 2 * HEARTBEAT * SCALE
        assert durable.info().num_waiting <= 1
    handle.stop()
    handle.wait_closed(5 * SCALE)
    assert handle.error is None
    wait_until(lambda: durable.info().num_waiting == 0 and other.info().num_waiting == 0)


@every_end
@pytest.mark.parametrize("way", ["messages", "fetch"])
def test_an_ordered_consumer_continues_after_a_restart(server, alone, js, way, end):
    """Its memory consumer is lost with the server; no message is missing or repeated."""
    for number in range(200):
        js.publish_async("s", b"%d" % number)
    js.publish_async_completed(10 * SCALE)
    consumer = js.ordered_consumer("S")
    messages = consumer.messages(max_messages=30, heartbeat=0.5) if way == "messages" else None

    def take(count: int) -> list[int]:
        if messages is not None:
            return [int(messages.next(10 * SCALE).data) for _ in range(count)]
        return [int(consumer.next(10 * SCALE).data) for _ in range(count)]

    got = take(50)
    restart(server, alone, end)
    got += take(50)
    restart(server, alone, end)
    for number in range(200, 210):
        js.publish("s", b"%d" % number)
    assert got + take(110) == list(range(210))
    if messages is not None:
        messages.stop()
        wait_until(lambda: js.consumer_names("S") == [])


@every_end
def test_every_future_settles(server, alone, js, end):
    """Pending futures fail at once; those made while disconnected are kept for the server."""
    js.publish("s", b"first")
    server.pause()
    waiting = [js.publish_async("s", b"%d" % item, timeout=30) for item in range(50)]
    alone.jetstream()  # the messages are on their way; there are no responders
    with within(7):
        (server.stop if end == "stop" else server.kill)()
        errors = [future.exception(5 * SCALE) for future in waiting]
    # A server that is stopped may have acknowledged some before.
    assert {type(error) for error in errors} <= {ConnectionLostError, type(None)}
    wait_until(lambda: not alone.is_connected)
    kept = [js.publish_async("s", b"%d" % item, timeout=30) for item in range(50, 60)]
    server.start()
    assert [future.result(10 * SCALE).stream for future in kept] == ["S"] * 10
    assert js.publish_async_pending == 0


def test_fetches_among_crashes_miss_nothing(server, alone, js):
    """Fetches return every message; those with lost acknowledgements are redelivered."""
    durable = js.create_consumer("S", durable_name="C", ack_wait=1)
    for number in range(60):
        js.publish("s", b"%d" % number)
    got: Counter[int] = Counter()
    for _ in range(3):
        restart(server, alone, "kill")
        for msg in durable.fetch(10, timeout=10 * SCALE):
            got[int(msg.data)] += 1
            msg.ack_sync(5 * SCALE)
    while info_of(durable) != (0, 0, 0):
        for msg in durable.fetch(10, timeout=0.5):
            got[int(msg.data)] += 1
            msg.ack()
    assert set(got) == set(range(60))
    assert set(got.values()) <= {1, 2, 3, 4}


def test_a_stopped_server_is_a_pause(server, js, durable):
    """While a server is suspended, calls wait: nothing is lost, and nothing ends."""
    with durable.messages(heartbeat=HEARTBEAT, expires=4) as messages:
        server.pause()
        future = js.publish_async("s", b"0", timeout=20 * SCALE)
        with pytest.raises(TimeoutError):
            messages.next(0.5)
        server.resume()
        assert future.result(5 * SCALE).seq == 1
        assert messages.next(5 * SCALE).data == b"0"
