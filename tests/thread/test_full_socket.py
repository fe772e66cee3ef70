"""Full sockets: which calls wait, for how long, and which never do."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest
from fixtures.internals import core_of
from fixtures.proxy import Listener, ScriptedPeer
from fixtures.threads import wait_until, within

import jetstream_sync
from jetstream_sync import Connection, errors
from jetstream_sync.client import writer
from jetstream_sync.client.writer import SOON

#: More than the buffers of both ends of a loopback connection hold.
PLENTY = 40
BIG = b"x" * 1_000_000


@pytest.fixture
def listener() -> Iterator[Listener]:
    with Listener() as listening:
        yield listening


@pytest.fixture
def nc(listener: Listener) -> Iterator[Connection]:
    """A connection to a server that reads nothing after the handshake."""
    connection = jetstream_sync.connect(listener.url, allow_reconnect=False)
    peer = listener.take()
    yield connection
    peer.close()
    connection.close()


def fill(nc: Connection) -> threading.Thread:
    """Publish on another thread until the socket is full and the publisher waits."""

    def publish() -> None:
        with pytest.raises(errors.ConnectionClosedError):
            while True:
                nc.publish("big", BIG)

    publisher = threading.Thread(target=publish, daemon=True)
    publisher.start()

    def stuck() -> bool:
        before = nc.stats["out_msgs"]
        time.sleep(0.05)
        return before > 0 and nc.stats["out_msgs"] == before

    wait_until(stuck)
    return publisher


def fill_alone(nc: Connection) -> None:
    """Leave more in the buffer than the socket accepts, with no thread waiting for it."""
    for _ in range(PLENTY):
        core_of(nc).writer.control(b"PUB big %d\r\n%b\r\n" % (len(BIG), BIG), SOON)


@pytest.mark.parametrize("filled", [fill, fill_alone], ids=["publisher waits", "no waiter"])
@pytest.mark.parametrize("call", ["flush", "rtt", "request", "next_msg", "drain"])
def test_calls_with_a_timeout_keep_it(nc, filled, call):
    """A call with a timeout keeps it, although the server reads nothing."""
    sub = nc.subscribe("answers")
    filled(nc)
    with within(1), pytest.raises(errors.TimeoutError):
        if call == "request":
            nc.request("service", timeout=0.1)
        elif call == "next_msg":
            sub.next_msg(timeout=0.1)
        elif call == "drain":
            sub.drain(timeout=0.1)
        else:
            getattr(nc, call)(timeout=0.1)


def test_a_request_that_finds_the_buffer_full_ends_in_time(nc):
    """Requests to a server that reads nothing do not use unlimited memory."""
    fill_alone(nc)
    size = len(core_of(nc).writer._buffer)
    for _ in range(3):
        with within(1), pytest.raises(errors.TimeoutError):
            nc.request("service", BIG, timeout=0.1)
    assert len(core_of(nc).writer._buffer) <= size + 3 * len(BIG) + 1000


def test_a_message_without_a_timeout_ends_its_wait_for_the_socket(nc, monkeypatch):
    """Without a timeout, a message waits while the socket accepts data, also if it has waited for its turn before."""
    monkeypatch.setattr(writer, "_STALL_LIMIT_S", 0.2)
    js = nc.jetstream(timeout=None, publish_async_max_pending=1)
    js.publish_async("first", timeout=0.3)
    fill_alone(nc)
    with within(3), pytest.raises(errors.TimeoutError, match="accepts no more data"):
        js.publish_async("second")


def test_drain_keeps_its_timeout(nc):
    """Draining a connection whose server reads nothing ends in time, and closes it."""
    fill_alone(nc)
    with within(2.5), pytest.raises(jetstream_sync.DrainTimeoutError):
        nc.drain(timeout=0.2)
    assert nc.is_closed


def test_a_fast_publisher_waits_for_the_server(nc, listener):
    """A publisher faster than the server waits for it, and everything arrives in order."""
    peer = listener.take()
    count = 60

    def publish() -> None:
        for number in range(count):
            nc.publish("big", b"%06d" % number + BIG)
        nc.publish("end")

    publisher = threading.Thread(target=publish)
    publisher.start()
    wait_until(lambda: nc.stats["out_msgs"] > 2)
    assert publisher.is_alive()
    for number in range(count):
        assert peer.line() == b"PUB big %d\r\n" % (len(BIG) + 6)
        payload = peer.read(len(BIG) + 8)
        assert payload == b"%06d%b\r\n" % (number, BIG)
    assert peer.line() == b"PUB end 0\r\n"
    publisher.join()


def test_a_server_that_reads_again_gets_everything(nc, listener):
    """Commands that a timed-out call left in the buffer are sent later, in order."""
    peer: ScriptedPeer = listener.take()
    fill_alone(nc)
    with pytest.raises(errors.TimeoutError):
        nc.flush(timeout=0.05)
    for _ in range(PLENTY):
        assert peer.line() == b"PUB big %d\r\n" % len(BIG)
        assert len(peer.read(len(BIG) + 2)) == len(BIG) + 2
    assert peer.line() == b"PING\r\n"
    nc.publish("after", b"1")
    assert peer.line() == b"PUB after 1\r\n"
