"""Reconnecting to scripted servers: the bytes on the wire, and the reported events."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import nullcontext
from itertools import pairwise
from queue import Empty, SimpleQueue
from typing import Any

import pytest
from fixtures.internals import connection_threads, engine_of
from fixtures.proxy import Listener, ScriptedPeer
from fixtures.threads import SCALE, run_all, wait_until, within

import jetstream_sync
from jetstream_sync import Connection, ConnectionEvent, ConnectionStatus, EventKind, errors

QUICK: dict[str, Any] = {"reconnect_time_wait": 0.01, "max_reconnect_attempts": -1}


class EventLog:
    """The events reported to a connection's callbacks, in order."""

    def __init__(self) -> None:
        self._notes: SimpleQueue[ConnectionEvent | Exception] = SimpleQueue()
        note: Callable[[ConnectionEvent], None] = self._notes.put
        self.options: dict[str, Any] = {
            "error_cb": self._notes.put,
            "disconnected_cb": note,
            "reconnected_cb": note,
            "closed_cb": note,
            "discovered_server_cb": note,
            "lame_duck_mode_cb": note,
        }

    def error(self) -> Exception:
        """Return the next record, which must be an error."""
        note = self._notes.get(timeout=5 * SCALE)
        assert isinstance(note, Exception), note
        return note

    def event(self, kind: EventKind) -> ConnectionEvent:
        """Return the next record, which must be an event of this kind."""
        note = self._notes.get(timeout=5 * SCALE)
        assert isinstance(note, ConnectionEvent), note
        assert note.kind is kind
        return note

    def no_more(self) -> bool:
        try:
            note = self._notes.get_nowait()
        except Empty:
            return True
        pytest.fail(f"there is {note}")


def ended(nc: Connection) -> bool:
    """Return whether the threads of a connection have ended."""
    wait_until(lambda: not any(thread.is_alive() for thread in connection_threads(nc)))
    return True


def free_port() -> int:
    with Listener() as listener:
        return listener.port


# --- bytes on the wire ------------------------------------------------------------------------


def test_subscriptions_then_the_buffer():
    """A new link gets the subscriptions with their remaining limits first, then the buffer."""
    back, gone = threading.Event(), threading.Event()
    with Listener() as listener:
        nc = jetstream_sync.connect(
            listener.url, disconnected_cb=gone.set, reconnected_cb=back.set, **QUICK
        )
        peer = listener.take()
        first, second = nc.subscribe("first"), nc.subscribe("second", queue="q")
        second.unsubscribe(limit=5)
        for line in (b"SUB first 1\r\n", b"SUB second q 2\r\n", b"UNSUB 2 5\r\n"):
            assert peer.line() == line
        peer.send(b"MSG second 2 1\r\nx\r\n" * 2)
        wait_until(lambda: second.pending_msgs == 2)

        served = threading.Event()
        again: list[ScriptedPeer] = []

        def late(peer: ScriptedPeer) -> None:
            served.wait(10 * SCALE)
            peer.handshake()
            again.append(peer)

        listener._play = late
        peer.close()
        assert gone.wait(5 * SCALE)
        nc.publish("orders", b"1")
        _kept = nc.subscribe("third")
        nc.publish("orders", b"2")
        assert not back.is_set()
        served.set()
        assert back.wait(5 * SCALE)
        nc.publish("orders", b"3")
        wait_until(lambda: again)
        lines = [again[0].line() for _ in range(11)]
        assert lines[:3] == [b"SUB first 1\r\n", b"SUB second q 2\r\n", b"UNSUB 2 3\r\n"]
        third = lines[3]
        assert third.startswith(b"SUB third ")
        one = b"PUB orders 1\r\n"
        # A subscription made meanwhile is sent twice, which a server counts once.
        assert lines[4:] == [one, b"1\r\n", third, one, b"2\r\n", one, b"3\r\n"]
        assert first.is_valid
        nc.close()


def test_pings_of_the_old_link_stay_there():
    """A flush without a PONG ends with its link; a flush on the new link gets its own PONG."""
    with Listener() as listener:
        nc = jetstream_sync.connect(listener.url, **QUICK)
        peer = listener.take()
        flushed: SimpleQueue[BaseException | None] = SimpleQueue()

        def flush() -> None:
            try:
                nc.flush(timeout=None)
            except errors.ConnectionLostError as error:
                flushed.put(error)
            else:
                flushed.put(None)

        thread = threading.Thread(target=flush)
        thread.start()
        assert peer.line() == b"PING\r\n"
        peer.send(b"PING\r\n")
        peer.close()
        assert isinstance(flushed.get(timeout=5 * SCALE), errors.ConnectionLostError)
        thread.join()
        again = listener.take(1)
        wait_until(lambda: nc.is_connected)
        thread = threading.Thread(target=flush)
        thread.start()
        assert again.line() == b"PING\r\n"
        assert flushed.empty()
        again.send(b"PONG\r\n")
        assert flushed.get(timeout=5 * SCALE) is None
        thread.join()
        nc.close()


# --- reported events --------------------------------------------------------------------------


def test_events_have_url_and_reason():
    """Each event has the server's URL without its login, and the reason if there is one."""
    diary = EventLog()
    with Listener() as listener:
        url = listener.url.replace("nats://", "nats://me:secret@")
        nc = jetstream_sync.connect(url, **diary.options, **QUICK)
        listener.take().close()
        lost = diary.event(EventKind.DISCONNECTED)
        assert lost.server == listener.url
        assert isinstance(lost.error, (errors.ConnectionLostError, OSError))
        back = diary.event(EventKind.RECONNECTED)
        assert back == ConnectionEvent(EventKind.RECONNECTED, listener.url)
        nc.close()
        over = diary.event(EventKind.CLOSED)
        assert over == ConnectionEvent(EventKind.CLOSED, listener.url)
        assert diary.no_more()


@pytest.mark.parametrize(
    ("words", "kind"),
    [
        (b"User Authentication Expired", errors.AuthenticationExpiredError),
        (b"Account Authentication Expired", errors.AuthenticationExpiredError),
        (b"Authorization Violation", errors.AuthorizationError),
        (b"Stale Connection", errors.StaleConnectionError),
        (b"maximum connections exceeded", errors.ServerRefusedError),
        (b"Maximum Payload Violation", errors.ServerRefusedError),
    ],
)
def test_a_server_that_ends_the_link_is_asked_again(words, kind):
    """The last error of a server before it closes is reported, and the client reconnects."""
    diary = EventLog()
    with Listener() as listener:
        nc = jetstream_sync.connect(listener.url, **diary.options, **QUICK)
        peer = listener.take()
        peer.send(b"-ERR '%b'\r\n" % words)
        peer.close()
        lost = diary.event(EventKind.DISCONNECTED)
        assert isinstance(lost.error, kind)
        assert diary.error() is lost.error
        diary.event(EventKind.RECONNECTED)
        assert nc.stats["errors_received"] == 1
        assert nc.is_connected
        nc.close()


def test_an_error_after_which_a_server_goes_on():
    """An error that is not known is reported, and is not the reason of a later end."""
    diary = EventLog()
    with Listener() as listener:
        nc = jetstream_sync.connect(listener.url, **diary.options, **QUICK)
        peer = listener.take()
        peer.send(b"-ERR 'A Warning Of A Newer Server'\r\nPING\r\n")
        assert str(diary.error()) == "A Warning Of A Newer Server"
        peer.close()
        lost = diary.event(EventKind.DISCONNECTED)
        assert isinstance(lost.error, (errors.ConnectionLostError, OSError))
        assert not isinstance(lost.error, errors.ServerRefusedError)
        diary.event(EventKind.RECONNECTED)
        nc.close()


def test_discovered_servers_and_lame_ducks():
    """Discovered servers are reported with their URLs, lame duck mode once; not the first INFO."""
    diary = EventLog()
    with Listener() as listener, Listener() as other:
        here, there = (f"127.0.0.1:{item.port}" for item in (listener, other))
        listener._play = lambda peer: peer.handshake(connect_urls=[here])
        nc = jetstream_sync.connect(listener.url, **diary.options, **QUICK)
        peer = listener.take()
        for _ in range(2):
            peer.send(b'INFO {"server_id":"peer","connect_urls":["%b"]}\r\n' % there.encode())
        found = diary.event(EventKind.DISCOVERED_SERVERS)
        assert (found.server, found.servers) == (listener.url, (other.url,))
        for _ in range(2):
            peer.send(b'INFO {"server_id":"peer","ldm":true}\r\n')
        lame = diary.event(EventKind.LAME_DUCK)
        assert lame == ConnectionEvent(EventKind.LAME_DUCK, listener.url)
        assert nc.is_connected, "a lame duck still serves"
        peer.close()
        diary.event(EventKind.DISCONNECTED)
        assert diary.event(EventKind.RECONNECTED).server == other.url
        nc.close()
        diary.event(EventKind.CLOSED)
        assert diary.no_more()


@pytest.mark.parametrize("what", ["raise", "close", "reconnect", "publish", "drain"])
def test_callbacks_may_do_anything(what):
    """A reconnected_cb may raise, use the connection, or close it; the events continue."""
    over = threading.Event()
    calls: list[ConnectionEvent] = []

    def reconnected(event: ConnectionEvent) -> None:
        calls.append(event)
        if what == "raise":
            raise ValueError(what)
        if what == "publish":
            nc.publish("orders", b"from the callback")
        elif what != "reconnect" or len(calls) < 3:
            getattr(nc, what)()

    def play(peer: ScriptedPeer) -> None:
        peer.handshake()
        while line := peer.line():  # until the client closes
            if line == b"PING\r\n":
                peer.send(b"PONG\r\n")

    with Listener() as listener:
        nc = jetstream_sync.connect(
            listener.url, reconnected_cb=reconnected, closed_cb=over.set, **QUICK
        )
        listener._play = play
        listener.take().close()
        wait_until(lambda: len(calls) == (3 if what == "reconnect" else 1))
        if what not in {"close", "drain"}:
            wait_until(lambda: nc.is_connected)
            assert not over.is_set()
            nc.close()
        assert over.wait(5 * SCALE)
        assert ended(nc)


# --- reconnect() ------------------------------------------------------------------------------


def test_reconnect_moves_to_another_server():
    """reconnect() moves to another server at once, with all subscriptions."""
    diary = EventLog()
    with Listener() as first, Listener() as second:
        nc = jetstream_sync.connect(
            [first.url, second.url],
            dont_randomize=True,
            reconnect_time_wait=60,
            **diary.options,
        )
        peer = first.take()
        _kept = nc.subscribe("orders")
        assert peer.line() == b"SUB orders 1\r\n"
        nc.reconnect()
        lost = diary.event(EventKind.DISCONNECTED)
        assert lost.server == first.url
        assert isinstance(lost.error, errors.ConnectionLostError)
        assert diary.event(EventKind.RECONNECTED).server == second.url
        assert second.take().line() == b"SUB orders 1\r\n"
        assert peer.rest() == b""
        nc.reconnect()
        diary.event(EventKind.DISCONNECTED)
        assert diary.event(EventKind.RECONNECTED).server == first.url
        assert nc.stats["reconnects"] == 2
        assert diary.no_more()
        nc.close()


def test_reconnect_again_and_again():
    """Many threads may call reconnect() at any time; the connection is usable afterwards."""
    with Listener() as listener:
        nc = jetstream_sync.connect(listener.url, **QUICK)

        def ask() -> None:
            for _ in range(20):
                nc.reconnect()

        run_all(*[ask] * 4)
        # The last of them may be in progress, so that this one means the same link.
        so_far = nc.stats["reconnects"]
        nc.reconnect()
        wait_until(lambda: nc.is_connected and nc.stats["reconnects"] > so_far)
        nc.close()
        assert ended(nc)


def test_reconnect_cuts_a_wait_short():
    """While disconnected, reconnect() ends the wait between two attempts."""
    port = free_port()
    nc = jetstream_sync.connect(
        f"nats://127.0.0.1:{port}",
        retry_on_failed_connect=True,
        reconnect_time_wait=60,
        error_cb=lambda _: None,
    )
    with Listener(port=port) as listener:

        def connected() -> bool:
            nc.reconnect()
            return nc.is_connected

        wait_until(connected)
        listener.take()
        nc.close()


def test_reconnect_opens_no_closed_or_draining_connection():
    """A closed connection is not opened again, and a draining one is left alone."""
    with Listener() as listener:
        nc = jetstream_sync.connect(listener.url, **QUICK)
        assert engine_of(nc).start_draining()
        with pytest.raises(errors.ConnectionDrainingError):
            nc.reconnect()
        nc.close()
        with pytest.raises(errors.ConnectionClosedError):
            nc.reconnect()
        assert listener.clients == 1


# --- connecting in the background -------------------------------------------------------------


def test_retry_on_failed_connect():
    """connect() returns without a link; published messages arrive later, and the connect is reported."""
    diary = EventLog()
    port = free_port()
    url = f"nats://127.0.0.1:{port}"
    nc = jetstream_sync.connect(url, retry_on_failed_connect=True, **diary.options, **QUICK)
    assert nc.status is ConnectionStatus.RECONNECTING
    assert nc.connected_url is None
    failure = diary.error()
    assert isinstance(failure, errors.NoServersError)
    assert failure.attempts[0][0] == url
    nc.publish("orders", b"early")
    _kept = nc.subscribe("answers")
    assert diary.no_more()
    with Listener(port=port) as listener:
        peer = listener.take()
        assert diary.event(EventKind.RECONNECTED) == ConnectionEvent(EventKind.RECONNECTED, url)
        lines = [peer.line() for _ in range(3)]
        assert lines[0].startswith(b"SUB answers")
        assert lines[1:] == [b"PUB orders 5\r\n", b"early\r\n"]
        assert nc.is_connected
        nc.close()
        diary.event(EventKind.CLOSED)


def test_retry_on_failed_connect_gives_up():
    """After max_reconnect_attempts the connection is closed with the reason."""
    diary = EventLog()
    nc = jetstream_sync.connect(
        f"nats://127.0.0.1:{free_port()}",
        retry_on_failed_connect=True,
        reconnect_time_wait=0,
        max_reconnect_attempts=3,
        **diary.options,
    )
    for _ in range(2):  # of the first connect, and of the end
        assert isinstance(diary.error(), errors.NoServersError)
    assert isinstance(diary.event(EventKind.CLOSED).error, errors.ConnectionClosedError)
    assert nc.is_closed
    with pytest.raises(errors.ConnectionClosedError):
        nc.publish("late")
    nc.close()


@pytest.mark.parametrize("publishes", [False, True])
def test_leaving_the_block_before_the_first_link(publishes):
    """The end of a with block closes a connection that has no link yet; it raises if messages are lost."""
    loses = pytest.raises(errors.ConnectionClosedError) if publishes else nullcontext()
    with within(1), loses:  # noqa: SIM117 - the end of the block raises
        with jetstream_sync.connect(
            f"nats://127.0.0.1:{free_port()}",
            retry_on_failed_connect=True,
            reconnect_time_wait=60,
            error_cb=lambda _: None,
        ) as nc:
            if publishes:
                nc.publish("orders")
    assert nc.is_closed
    assert ended(nc)


def test_a_server_that_only_greets_is_asked_less_and_less(monkeypatch: pytest.MonkeyPatch):
    """A server with more clients than it can accept is left alone for longer with each round."""
    monkeypatch.setattr("jetstream_sync.client.connector.random.uniform", lambda _, most: most)
    times: list[float] = []

    def greet(peer: ScriptedPeer) -> None:
        times.append(time.monotonic())
        peer.send(b'INFO {"server_id":"fake","headers":true,"max_payload":1048576}\r\n')
        peer.rest()

    with Listener() as listener:
        options = {"reconnect_time_wait": 0.01, "connect_timeout": 0.2}
        with jetstream_sync.connect(listener.url, **options):
            listener._play = greet
            listener.take().close()
            wait_until(lambda: len(times) >= 5)
    gaps = [later - earlier for earlier, later in pairwise(times)]
    # 0.2 s for an attempt, and 0.2, 0.4, 0.8, 1.6 s until the next. On a busy machine an attempt may be noted late.
    assert gaps[3] > gaps[2] > max(gaps[:2])
    assert sum(gaps) > 3.4
