"""Servers that hang, do not read or are slow: detected in time, and no call waits for ever."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from queue import SimpleQueue

import pytest
from fixtures.internals import core_of, engine_of
from fixtures.proxy import Listener
from fixtures.threads import SCALE, wait_until, within

import jetstream_sync
from jetstream_sync import Connection, ConnectionEvent, errors
from jetstream_sync.client.writer import SOON
from jetstream_sync.server import NatsServer

BIG = b"x" * 1_000_000
#: More than the system buffers for both ends of a connection.
PLENTY = 40


@pytest.fixture
def server() -> Iterator[NatsServer]:
    """A server of this test alone, which may be suspended."""
    with NatsServer(jetstream=False) as starting:
        yield starting
        starting.kill()


def fill(nc: Connection) -> threading.Thread:
    """Publish on another thread until the socket is full and the publisher waits."""

    def publish() -> None:
        # The second: the link is lost, and the limit of the buffer is exceeded.
        with pytest.raises((errors.ConnectionClosedError, errors.OutboundBufferLimitError)):
            while True:
                nc.publish("big", BIG)

    publisher = threading.Thread(target=publish, daemon=True)
    publisher.start()
    seen = [0, time.monotonic()]

    def stuck() -> bool:
        now = nc.stats["out_msgs"]
        if now != seen[0]:
            seen[:] = now, time.monotonic()
        return now > 0 and time.monotonic() - seen[1] > 0.05

    wait_until(stuck)
    return publisher


# --- a server that hangs ----------------------------------------------------------------------


@pytest.mark.parametrize("busy", [False, True], ids=["idle", "publisher waits"])
def test_a_hanging_server_is_detected(server, busy):
    """A server that hangs is detected within (max_outstanding_pings + 1) ping intervals."""
    lost: SimpleQueue[tuple[float, ConnectionEvent]] = SimpleQueue()
    interval, outstanding = 0.2, 2
    nc = jetstream_sync.connect(
        server.url,
        ping_interval=interval,
        max_outstanding_pings=outstanding,
        disconnected_cb=lambda event: lost.put((time.monotonic(), event)),
        error_cb=lambda _: None,
        connect_timeout=0.2,
        reconnect_time_wait=60,
    )
    nc.flush(5 * SCALE)
    server.pause()
    began = time.monotonic()
    publisher = fill(nc) if busy else None
    when, event = lost.get(timeout=5 * SCALE)
    assert isinstance(event.error, errors.StaleConnectionError)
    # It cannot be sooner than the time of the unanswered pings.
    assert interval * (outstanding - 1) < when - began < interval * (outstanding + 1) + 0.3 * SCALE
    wait_until(lambda: nc.is_reconnecting)
    with within(2):
        nc.close()
    if publisher is not None:
        publisher.join(5 * SCALE)
        assert not publisher.is_alive()


def test_a_short_hang_keeps_the_link(server):
    """A server that hangs for less than that time keeps its link."""
    nc = jetstream_sync.connect(server.url, ping_interval=0.2, max_outstanding_pings=20)
    sub = nc.subscribe("orders")
    nc.flush(5 * SCALE)
    server.pause()
    wait_until(lambda: engine_of(nc).keepalive._outstanding >= 2)
    nc.publish("orders", b"late")
    server.resume()
    assert sub.next_msg(timeout=5 * SCALE).data == b"late"
    wait_until(lambda: engine_of(nc).keepalive._outstanding == 0)
    assert nc.stats["reconnects"] == 0
    nc.close()


@pytest.mark.parametrize("full", [False, True], ids=["idle", "full"])
def test_close_does_not_wait_for_a_dead_server(server, full):
    """close() takes two seconds at most when the server hangs, and wakes waiting threads."""
    nc = jetstream_sync.connect(server.url)
    nc.flush(5 * SCALE)
    server.pause()
    publisher = fill(nc) if full else None
    with within(2 if full else 1.5):
        nc.close()
    assert nc.is_closed
    if publisher is not None:
        publisher.join(5 * SCALE)
        assert not publisher.is_alive()


# --- a server that sends and does not read ----------------------------------------------------


def test_a_flood_of_pings_uses_bounded_memory():
    """A server that sends PINGs and does not read does not grow the client's memory."""
    with Listener() as listener:
        nc = jetstream_sync.connect(listener.url, allow_reconnect=False)
        peer = listener.take()
        writer = core_of(nc).writer
        for _ in range(PLENTY):
            writer.control(b"PUB big %d\r\n%b\r\n" % (len(BIG), BIG), SOON)
        wait_until(lambda: writer._batch and writer._sent)
        before = len(writer._buffer)
        for _ in range(300):
            peer.send(b"PING\r\n" * 1000)
        peer.send(b'INFO {"server_id":"after"}\r\n')
        wait_until(lambda: nc.server_info.server_id == "after", 20)
        assert len(writer._buffer) <= max(before, 64 * 1024) + 1000
        # When it reads again, it gets everything in order, and a reply.
        for _ in range(PLENTY):
            assert peer.line() == b"PUB big %d\r\n" % len(BIG)
            assert len(peer.read(len(BIG) + 2)) == len(BIG) + 2
        assert peer.line() == b"PONG\r\n"
        nc.close()


def test_a_server_that_sends_and_does_not_read_is_detected():
    """Incoming messages do not count as replies to the pings."""
    stop = threading.Event()
    with Listener() as listener:
        nc = jetstream_sync.connect(
            listener.url, allow_reconnect=False, ping_interval=0.2, error_cb=lambda _: None
        )
        peer = listener.take()
        sub = nc.subscribe("a", pending_msgs_limit=10)

        def flood() -> None:
            with pytest.raises((OSError, ValueError)):
                while not stop.is_set():
                    peer.send(b"MSG a %d 5\r\nhello\r\n" % sub.sid * 100 + b"PING\r\n" * 100)

        flooding = threading.Thread(target=flood)
        flooding.start()
        with within(5):
            publisher = fill(nc)
            wait_until(lambda: nc.is_closed, 10)
        assert isinstance(nc.last_error, errors.StaleConnectionError)
        publisher.join(5 * SCALE)
        assert not publisher.is_alive()
        flooding.join(5 * SCALE)
        assert not flooding.is_alive()
        stop.set()
        nc.close()


# --- a subscription that is slow --------------------------------------------------------------


def test_a_signal_handler_that_publishes_amid_a_send_gets_an_error(alone, fresh_server):
    """A handler that would wait for its own thread raises; the connection stays usable."""
    raised: list[BaseException] = []

    def handler(*_: object) -> None:
        try:
            alone.publish("signal", bytes(100_000))
        except jetstream_sync.Error as error:
            raised.append(error)
            fresh_server.resume()

    fresh_server.pause()
    before = signal.signal(signal.SIGALRM, handler)
    timer = threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGALRM))
    timer.start()
    try:
        while not raised:
            alone.publish("full", bytes(500_000))
    finally:
        timer.join()
        signal.signal(signal.SIGALRM, before)
        fresh_server.resume()
    assert "signal handler" in str(raised[0])
    alone.flush(10 * SCALE)
