"""Reconnecting: restored subscriptions, buffered messages, callbacks, and giving up."""

from __future__ import annotations

import pickle
import re
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timezone
from queue import SimpleQueue
from typing import Any

import pytest
from fixtures.faults import FaultProxy
from fixtures.internals import connection_threads, core_of, waiting_requests
from fixtures.proxy import Listener
from fixtures.threads import SCALE, wait_until, within

import jetstream_sync
from jetstream_sync import Connection, ConnectionStatus, Subscription, errors
from jetstream_sync.net.clock import Deadline
from jetstream_sync.server import NatsServer

#: More attempts than a test can use, with short waits.
QUICK: dict[str, Any] = {"reconnect_time_wait": 0.01, "max_reconnect_attempts": -1}


@pytest.fixture
def server() -> Iterator[NatsServer]:
    """A server of this test, which may be stopped."""
    with NatsServer(jetstream=False) as starting:
        yield starting


@pytest.fixture
def alone(server: NatsServer) -> Iterator[Connection]:
    """A connection to that server, with a short reconnect wait."""
    connection = jetstream_sync.connect(server.url, **QUICK)
    yield connection
    connection.close()


@pytest.fixture
def witness(server: NatsServer) -> Iterator[Connection]:
    """Another connection, which observes the messages of the first one."""
    connection = jetstream_sync.connect(server.url, **QUICK)
    yield connection
    connection.close()


def stop(server: NatsServer, *connections: Connection) -> None:
    """Stop the server, and wait until the connections are disconnected."""
    server.stop()
    for nc in connections:
        wait_until(lambda nc=nc: nc.is_reconnecting)


def start(server: NatsServer, *connections: Connection) -> None:
    """Start the server, and wait until the connections have sent their buffers."""
    server.start()
    for nc in connections:
        wait_until(lambda nc=nc: nc.is_connected)
        nc.flush(5 * SCALE)


def restart(server: NatsServer, *connections: Connection) -> None:
    stop(server, *connections)
    start(server, *connections)


def read(sub: Subscription, count: int) -> list[bytes]:
    return [sub.next_msg(timeout=5 * SCALE).data for _ in range(count)]


def nothing_more(sub: Subscription, sender: Connection) -> bool:
    """Return whether the subscription has received everything that was sent so far."""
    sender.flush(5 * SCALE)
    core_of(sub).flush(Deadline(5 * SCALE))
    return sub.pending_msgs == 0


# --- restored on a new link -------------------------------------------------------------------


def test_a_waiting_next_msg_survives_a_restart(server, alone, witness):
    """A next_msg that waits during a restart gets messages published afterwards."""
    with ThreadPoolExecutor() as pool:
        waiter = pool.submit(alone.subscribe("orders").next_msg, timeout=20 * SCALE)
        restart(server, alone, witness)
        witness.publish("orders", b"after")
        assert waiter.result(5 * SCALE).data == b"after"


def test_a_limit_set_while_disconnected_holds(server, alone, witness):
    """A queue member that has reached its limit takes no messages from the others."""
    short = alone.subscribe("jobs", queue="workers")
    alone.flush(5 * SCALE)
    for _ in range(3):
        witness.publish("jobs", b"before")
    assert read(short, 3) == [b"before"] * 3
    stop(server, alone, witness)
    short.unsubscribe(limit=4)
    start(server, alone, witness)
    witness.publish("jobs", b"the fourth")
    assert read(short, 1) == [b"the fourth"]
    with pytest.raises(errors.BadSubscriptionError):
        short.next_msg(timeout=5 * SCALE)
    other = alone.subscribe("jobs", queue="workers")
    alone.flush(5 * SCALE)
    for _ in range(20):
        witness.publish("jobs", b"after")
    assert read(other, 20) == [b"after"] * 20


def test_subscriptions_made_while_disconnected_are_sent_once(server, alone, witness):
    """Subscriptions made while disconnected are sent once with the next link; ended ones are not."""
    ended = alone.subscribe("orders")
    stop(server, alone, witness)
    ended.unsubscribe()
    made = alone.subscribe("orders")
    made_and_ended = alone.subscribe("orders")
    made_and_ended.unsubscribe()
    start(server, alone, witness)
    before = alone.stats["in_msgs"]
    witness.publish("orders", b"once")
    assert read(made, 1) == [b"once"]
    assert nothing_more(made, witness)
    assert alone.stats["in_msgs"] == before + 1
    with pytest.raises(errors.BadSubscriptionError):
        ended.next_msg(timeout=0)


# --- callbacks --------------------------------------------------------------------------------


def test_without_a_link_there_is_no_url(server, alone):
    """While disconnected the status is RECONNECTING, and there is no URL."""
    stop(server, alone)
    assert alone.status is ConnectionStatus.RECONNECTING
    assert not alone.is_connected
    assert not alone.is_closed
    assert alone.connected_url is None
    assert "reconnecting" in repr(alone)
    assert alone.last_error is None
    start(server, alone)
    assert alone.connected_url == server.url


# --- giving up ----------------------------------------------------------------------------------


def test_too_many_failures_close_the_connection(server):
    """When every server has failed max_reconnect_attempts times, the connection is closed."""
    told: SimpleQueue[object] = SimpleQueue()
    nc = jetstream_sync.connect(
        server.url,
        max_reconnect_attempts=3,
        reconnect_time_wait=0.01,
        error_cb=told.put,
        closed_cb=lambda: told.put("closed"),
    )
    with ThreadPoolExecutor() as pool:
        waiter = pool.submit(nc.subscribe("orders").next_msg, timeout=None)
        server.stop()
        error = waiter.exception(5 * SCALE)
    assert isinstance(error, errors.ConnectionClosedError)
    assert isinstance(error.__cause__, errors.NoServersError)
    assert nc.is_closed
    assert nc.last_error is not None
    cause = nc.last_error.__cause__
    assert isinstance(cause, errors.NoServersError)
    [(address, reason)] = cause.attempts
    assert address == server.url
    assert "refused" in reason.lower()
    assert isinstance(cause.__cause__, (errors.ConnectionLostError, OSError))
    assert isinstance(told.get(timeout=5 * SCALE), errors.NoServersError)
    assert told.get(timeout=5 * SCALE) == "closed"
    nc.close()


def test_there_is_no_wait_after_the_last_failure(server):
    """After its last attempt a connection is closed without another wait."""
    closed = threading.Event()
    nc = jetstream_sync.connect(
        server.url, max_reconnect_attempts=1, reconnect_time_wait=60, closed_cb=closed.set
    )
    server.stop()
    assert closed.wait(5 * SCALE)
    assert nc.is_closed
    nc.close()


# --- closing while disconnected ---------------------------------------------------------------


def test_close_while_reconnecting_returns_promptly(server):
    """A close() during the wait between attempts returns at once and wakes waiting threads."""
    closed = threading.Event()
    nc = jetstream_sync.connect(server.url, reconnect_time_wait=60, closed_cb=closed.set)
    with ThreadPoolExecutor() as pool:
        waiter = pool.submit(nc.subscribe("orders").next_msg, timeout=None)
        stop(server, nc)
        nc.publish("orders", b"never sent")
        with within(0.5):
            nc.close()
        assert isinstance(waiter.exception(5 * SCALE), errors.ConnectionClosedError)
    assert nc.is_closed
    assert closed.wait(5 * SCALE)
    wait_until(lambda: not any(t.is_alive() for t in connection_threads(nc)))


def test_close_during_an_attempt_makes_no_new_link():
    """A close() while an attempt hangs leaves the connection closed, also if the attempt succeeds."""
    asked, response = threading.Event(), threading.Event()
    with Listener() as listener:
        nc = jetstream_sync.connect(listener.url, connect_timeout=5, **QUICK)

        def late(peer: Any) -> None:
            asked.set()
            response.wait(10)
            peer.handshake()

        listener._play = late
        listener.take().close()
        assert asked.wait(5 * SCALE)
        with within(2.0):
            nc.close()
        assert nc.is_closed
        response.set()
        wait_until(lambda: not any(t.is_alive() for t in connection_threads(nc)))
        assert nc.is_closed
        assert nc.connected_url is None
        assert listener.take(1).rest() == b""


@pytest.mark.parametrize("wait", [0.01, 60])
def test_drain_while_reconnecting_closes(server, wait):
    """A drain() while disconnected raises an error and closes at once, as nothing can be drained."""
    nc = jetstream_sync.connect(server.url, reconnect_time_wait=wait)
    sub = nc.subscribe("orders")
    stop(server, nc)
    with within(0.5), pytest.raises(errors.ConnectionClosedError):
        nc.drain()
    assert nc.is_closed
    with pytest.raises(errors.ConnectionClosedError):
        sub.next_msg(timeout=5 * SCALE)
    server.start()
    assert nc.is_closed


def test_a_request_without_a_deadline_ends_with_its_link(fresh_server):
    """A request without a timeout fails when the link breaks: its reply may be lost."""
    with jetstream_sync.connect(fresh_server.url, reconnect_time_wait=0.05) as nc:
        _kept = nc.subscribe("silent")
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(nc.request, "silent", timeout=None)
            wait_until(lambda: waiting_requests(nc))
            fresh_server.restart()
            with pytest.raises(errors.ConnectionLostError, match="before the reply"):
                waiting.result(5)


def test_a_timeout_after_a_reconnect_names_the_lost_connection(fresh_server):
    """A request that is not repeated is not sent again: its timeout is not said to be that of the stream."""
    with (
        FaultProxy(fresh_server.port) as proxy,
        jetstream_sync.connect(proxy.url, reconnect_time_wait=0.05) as nc,
    ):
        js = nc.jetstream(timeout=1)
        stream = js.create_stream(name="S", subjects=["s"], storage="memory")
        for call in (stream.purge, lambda: js.publish("s", timeout=1)):
            with ThreadPoolExecutor(1) as pool:
                proxy.hold()
                waiting = pool.submit(call)
                wait_until(lambda: waiting_requests(nc))
                proxy.cut()
                proxy.heal()
                with pytest.raises(
                    errors.RequestTimeoutError, match="in time; the connection was"
                ) as late:
                    waiting.result(5)
                assert "leader" not in str(late.value)


# --- timeouts while disconnected ------------------------------------------------------------------


def calls(nc: Connection) -> dict[str, Callable[[], object]]:
    """Return every call that waits for the server, with a short timeout."""
    js = nc.jetstream(timeout=0.2)
    stream = js.create_stream(name="DOWN", subjects=["down.*"], storage="memory")
    consumer = stream.create_consumer(name="pulled", inactive_threshold=60)
    ordered = stream.ordered_consumer()
    assert ordered.fetch(1, timeout=0.2) == []
    reading, ordered_reading = consumer.messages(), ordered.messages()
    pulled = js.pull_subscribe_bind("pulled", "DOWN")
    pushed = js.subscribe("down.*")
    plain = nc.subscribe("plain")
    nc.flush()
    return {
        "publish": lambda: js.publish("down.a"),
        "publish_async": lambda: js.publish_async("down.a", timeout=0.2).result(5),
        "request": lambda: nc.request("plain.question", timeout=0.2),
        "api": js.account_info,
        "info": stream.info,
        "flush": lambda: nc.flush(0.2),
        "rtt": lambda: nc.rtt(0.2),
        "next": lambda: consumer.next(timeout=0.2),
        "next of messages": lambda: reading.next(timeout=0.2),
        "ordered next": lambda: ordered.next(timeout=0.2),
        "ordered next of messages": lambda: ordered_reading.next(timeout=0.2),
        "fetch": lambda: pulled.fetch(1, timeout=0.2),
        "next_msg": lambda: plain.next_msg(0.2),
        "next_msg of js": lambda: pushed.next_msg(0.2),
    }


def test_a_timeout_without_a_link_says_since_when(fresh_server):
    """The error has the time of the disconnect; while connected it has none."""
    said = re.compile(
        r"no connection to a server for (\d+\.\d) s, since (\d{4}-\d\d-\d\d \d\d:\d\d:\d\d) UTC"
    )
    with jetstream_sync.connect(
        fresh_server.url, reconnect_time_wait=0.05, max_reconnect_attempts=-1
    ) as nc:
        waiting = calls(nc)
        for name in ("next", "fetch", "next_msg", "next_msg of js", "next of messages"):
            with pytest.raises(errors.TimeoutError) as caught:
                waiting[name]()
            assert "connection" not in str(caught.value), name
        fresh_server.stop()
        wait_until(lambda: nc.is_reconnecting)
        broke = datetime.now(timezone.utc)
        for name, call in waiting.items():
            with pytest.raises(errors.TimeoutError) as caught:
                call()
            found = said.search(str(caught.value))
            assert found, f"{name}: {caught.value}"
            since = datetime.strptime(found[2] + "+0000", "%Y-%m-%d %H:%M:%S%z")
            assert abs((since - broke).total_seconds()) < 2 * SCALE
            assert float(found[1]) >= 0.1
            assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)
        fresh_server.start()
        wait_until(lambda: nc.is_connected)
        with pytest.raises(errors.TimeoutError) as caught:
            waiting["next_msg"]()
        assert "connection" not in str(caught.value)


def test_a_timeout_before_the_first_link_names_the_outage(fresh_server):
    """The same holds with ``retry_on_failed_connect`` before the first link."""
    fresh_server.stop()
    with (
        jetstream_sync.connect(
            fresh_server.url, retry_on_failed_connect=True, error_cb=lambda _: None
        ) as nc,
        pytest.raises(errors.TimeoutError, match="no connection to a server for"),
    ):
        nc.request("question", timeout=0.1)
