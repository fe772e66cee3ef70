"""One connection per process and options: opening, waiting for it, and when it is replaced."""

from __future__ import annotations

import functools
import gc
import logging
import os
import random
import ssl
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path

import pytest
from fixtures.ctrl_c import interrupted, sends_ctrl_c
from fixtures.fork import in_child
from fixtures.proxy import Listener, ScriptedPeer
from fixtures.threads import SCALE, wait_until

import jetstream_sync
from jetstream_sync import (
    Connection,
    ConnectionClosedError,
    ForkedConnectionError,
    InvalidOptionError,
    NoServersError,
    shared_connection,
)
from jetstream_sync.jetstream import shared_connection as shared
from jetstream_sync.options import TLSOptions

needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")


@pytest.fixture(autouse=True)
def none_left() -> Iterator[None]:
    """Each test begins and ends without a shared connection."""
    yield
    for connection in list(shared._shared._open.values()):
        connection.close()
    shared._shared.forked()


@pytest.fixture
def listener() -> Iterator[Listener]:
    """A server without authentication."""
    with Listener() as one:
        yield one


class Door:
    """A server that delays the handshake until the test opens the gate."""

    def __init__(self) -> None:
        self.opened = threading.Event()
        self.listener = Listener(self._play)
        self.url = self.listener.url

    def _play(self, peer: ScriptedPeer) -> None:
        self.opened.wait(10 * SCALE)
        peer.handshake()

    def wait_for_knock(self) -> None:
        wait_until(lambda: self.listener.clients)


@pytest.fixture
def door() -> Iterator[Door]:
    it = Door()
    with it.listener:
        yield it
        it.opened.set()


# --- equal and different options ----------------------------------------------------------------


def test_the_same_call_gives_the_same_connection(listener):
    """One connection serves all calls, and one client is on the server."""
    first = shared_connection(listener.url, name="web")
    assert first.is_connected
    assert all(shared_connection(listener.url, name="web") is first for _ in range(10))
    assert listener.clients == 1


def error_cb(error: Exception) -> None:
    """Accept an error."""


class Vault:
    def token(self) -> str:
        return "t"


class Unhashable:
    """A callable that is compared by value."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Unhashable)

    __hash__ = None

    def __call__(self, error: Exception) -> None:
        pass


VAULT = Vault()
UNHASHABLE = Unhashable()
CONTEXT = ssl.create_default_context()


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"connect_timeout": 3}, {"connect_timeout": timedelta(seconds=3)}),
        ({"connect_timeout": 2.0}, {}),
        ({"no_echo": False, "name": "a"}, {"name": "a"}),
        ({"error_cb": error_cb}, {"error_cb": error_cb}),
        ({"error_cb": UNHASHABLE}, {"error_cb": UNHASHABLE}),
        ({"token": VAULT.token}, {"token": VAULT.token}),
        ({"user_credentials": Path("a")}, {"user_credentials": Path("a")}),
        (
            {"ws_connection_headers": {"A": ["b", "c"], "D": "e"}},
            {"ws_connection_headers": {"D": "e", "A": ["b", "c"]}},
        ),
        ({"tls": TLSOptions(ca_file="a")}, {"tls": TLSOptions(ca_file="a")}),
        ({"tls": CONTEXT}, {"tls": CONTEXT}),
    ],
)
def test_equal_options_share_a_connection(one, other):
    """Equal values, or the same function or SSLContext, give the same connection."""
    assert key("nats://a", **one) == key("nats://a", **other)
    assert hash(key("nats://a", **one)) == hash(key("nats://a", **other))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"connect_timeout": 3}, {}),
        ({"error_cb": lambda _: None}, {"error_cb": lambda _: None}),
        ({"error_cb": UNHASHABLE}, {"error_cb": Unhashable()}),
        ({"error_cb": functools.partial(print)}, {"error_cb": functools.partial(print)}),
        ({"token": Vault().token}, {"token": VAULT.token}),
        ({"token": "a"}, {"token": "b"}),
        ({"ws_connection_headers": {"A": "b"}}, {"ws_connection_headers": {"A": "c"}}),
        ({"tls": ssl.create_default_context()}, {"tls": CONTEXT}),
        ({"tls": True}, {}),
    ],
)
def test_different_options_do_not_share_a_connection(one, other):
    """Different values, or another function, give another connection."""
    assert key("nats://a", **one) != key("nats://a", **other)


def key(servers: str | list[str], **options: object) -> object:
    return shared._check_options(servers, options)[0]


def test_equal_servers_share_a_connection():
    """Servers are compared by their parsed URLs, in order, with their logins."""
    assert key("nats://a:4222,nats://b:4222") == key(["a", "b:4222"])
    assert key("nats://a,nats://b") != key("nats://b,nats://a")
    assert key("nats://me:pw@a") != key("nats://you:pw@a")


def test_a_misspelled_option_is_reported_as_by_connect():
    """Options are checked on every call."""
    for _ in range(2):
        with pytest.raises(InvalidOptionError, match="did you mean connect_timeout"):
            shared_connection("nats://127.0.0.1:1", conect_timeout=1)
        with pytest.raises(InvalidOptionError, match="servers"):
            shared_connection(7)
        with pytest.raises(InvalidOptionError, match="unknown option"):
            shared_connection("nats://127.0.0.1:1", x=[[]])


def test_too_many_connections_are_logged(listener, caplog):
    """A lambda in the call, which opens a connection each time, causes a warning in the log."""
    caplog.set_level(logging.WARNING)
    for _ in range(9):
        shared_connection(listener.url, error_cb=lambda _: None)
    assert not caplog.records
    for _ in range(3):
        shared_connection(listener.url, error_cb=lambda _: None)
    assert len(caplog.records) == 1
    assert "10 shared connections" in caplog.text


# --- opening ------------------------------------------------------------------------------------


def test_concurrent_calls_get_the_same_connection(door):
    """Threads that call during the opening get the same connection."""
    with ThreadPoolExecutor(8) as pool:
        calls = [pool.submit(shared_connection, door.url) for _ in range(8)]
        door.wait_for_knock()
        door.opened.set()
        assert len({call.result(5) for call in calls}) == 1
    assert door.listener.clients == 1


def test_openings_do_not_wait_for_each_other(door, listener):
    """A slow server delays only the callers that connect to it."""
    with ThreadPoolExecutor(1) as pool:
        slow = pool.submit(shared_connection, door.url)
        door.wait_for_knock()
        assert shared_connection(listener.url).is_connected
        assert shared_connection(listener.url) is shared_connection(listener.url)
        assert not slow.done()
        door.opened.set()
        assert slow.result(5).is_connected


def test_all_callers_get_a_failure_and_the_next_call_tries_again():
    """Callers waiting for an opening that fails get a copy of its error; the next call tries again."""
    go = threading.Event()
    refuse = threading.Event()

    def play(peer: ScriptedPeer) -> None:
        go.wait(10 * SCALE)
        if refuse.is_set():
            peer.close()
        else:
            peer.handshake()

    refuse.set()
    with Listener(play) as listener, ThreadPoolExecutor(4) as pool:
        calls = [pool.submit(shared_connection, listener.url) for _ in range(4)]
        wait_until(lambda: listener.clients)
        # The others wait, or will: they get the result, or open it again.
        go.set()
        errors = [call.exception(5) for call in calls]
        assert {type(error) for error in errors} == {jetstream_sync.ConnectionLostError}
        assert len({id(error) for error in errors}) == 4
        refuse.clear()
        assert shared_connection(listener.url).is_connected


def test_an_error_of_a_users_function_is_raised_in_all_waiting_callers():
    """Any error of a callback during the opening is passed on."""

    class OddError(Exception):
        def __init__(self, one: int, *, two: int) -> None:
            super().__init__(f"{one} {two}")

    asked = threading.Event()
    go = threading.Event()

    def token() -> str:
        asked.set()
        go.wait(10 * SCALE)
        raise OddError(1, two=2)

    with Listener() as listener, ThreadPoolExecutor(2) as pool:
        calls = [pool.submit(shared_connection, listener.url, token=token) for _ in range(2)]
        assert asked.wait(5 * SCALE)
        wait_until(lambda: len(shared._shared._openings) == 1)
        go.set()
        for call in calls:
            assert "1 2" in repr(call.exception(5)) or "1 2" in repr(call.exception(5).__cause__)


def test_a_callback_of_the_opening_that_wants_the_connection(listener):
    """A secret function that asks for the connection gets an error instead of a deadlock."""
    told: list[Exception] = []

    def token() -> str:
        try:
            shared_connection(listener.url, token=token)
        except jetstream_sync.Error as error:
            told.append(error)
        return "t"

    assert shared_connection(listener.url, token=token).is_connected
    assert "wait for itself" in str(told[0])


# --- replacement --------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["close", "server"])
def test_a_closed_connection_is_replaced(listener, how):
    """After a close from any thread, the next call opens another."""
    first = shared_connection(listener.url, allow_reconnect=False)
    if how == "close":
        first.close()
    else:
        listener.take().close()
        wait_until(lambda: first.is_closed)
    second = shared_connection(listener.url, allow_reconnect=False)
    assert second is not first
    assert second.is_connected
    assert len(shared._shared._open) == 1


def test_a_draining_connection_is_replaced():
    """A `with` block would close it for all other users."""

    def play(peer: ScriptedPeer) -> None:
        peer.handshake()
        while peer.line():  # reads nothing
            pass

    with Listener(play) as listener, ThreadPoolExecutor(1) as pool:
        first = shared_connection(listener.url)
        drained = pool.submit(first.drain, timeout=30)
        wait_until(lambda: first.is_draining)
        second = shared_connection(listener.url)
        assert second is not first
        assert shared_connection(listener.url) is second
        first.close()
        assert isinstance(drained.exception(5), ConnectionClosedError)


def test_a_reconnecting_connection_is_kept(listener):
    """A reconnecting connection is returned, not replaced."""
    first = shared_connection(listener.url, reconnect_time_wait=0.01)
    listener.take().close()
    wait_until(lambda: not first.is_connected or listener.clients == 2)
    assert shared_connection(listener.url, reconnect_time_wait=0.01) is first
    wait_until(lambda: first.is_connected)


# --- forks --------------------------------------------------------------------------------------


@needs_fork
def test_a_forked_child_opens_another_connection(listener):
    """After a fork the same call opens another one, in a child of the child, too."""
    mine = shared_connection(listener.url)

    def grandchild(parents: Connection) -> None:
        own = shared_connection(listener.url)
        assert own is not parents
        assert own.is_connected
        with pytest.raises(ForkedConnectionError):
            parents.publish("a")

    def child() -> None:
        own = shared_connection(listener.url)
        assert own is not mine
        assert own.is_connected
        assert shared_connection(listener.url) is own
        in_child(lambda: grandchild(own))

    in_child(child)
    assert shared_connection(listener.url) is mine
    assert mine.is_connected
    assert listener.clients == 3


@needs_fork
def test_a_fork_amid_an_opening(door):
    """A child forked while its parent connects does not wait, and opens its own connection."""
    with ThreadPoolExecutor(2) as pool:
        options = {"connect_timeout": 10 * SCALE}
        calls = [pool.submit(shared_connection, door.url, **options) for _ in range(2)]
        door.wait_for_knock()

        def child() -> None:
            door.opened.set()  # of the child only
            with pytest.raises(NoServersError):
                shared_connection(door.url, connect_timeout=0.2)
            with pytest.raises(NoServersError):
                shared_connection("nats://127.0.0.1:1")

        in_child(child)
        assert not any(call.done() for call in calls)
        door.opened.set()
        assert len({call.result(5) for call in calls}) == 1


# --- Ctrl-C -------------------------------------------------------------------------------------


@sends_ctrl_c
# A socket that was being created at the signal is closed by garbage collection.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_ctrl_c_at_any_moment(listener, request):
    """After a Ctrl-C at any point the next call has a connection, and no thread waits for ever."""
    gc.freeze()  # the objects of other tests would make each collection slow
    request.addfinalizer(gc.unfreeze)
    moment = random.randrange(1, 10)  # each run looks at a tenth of the points
    found: list[Connection] = []

    def find() -> None:
        found.append(shared_connection(listener.url))

    while interrupted(lambda: shared_connection(listener.url), moment):
        thread = threading.Thread(target=find, daemon=True)
        thread.start()
        thread.join(5 * SCALE)
        assert found, f"it hangs after a Ctrl-C at point {moment}"
        assert found[0].is_connected
        found.pop().close()
        shared_connection(listener.url).close()
        assert not shared._shared._openings
        gc.collect()
        moment += 10
    assert moment > 50
