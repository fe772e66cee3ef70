"""Callbacks that raise a `SystemExit`, or another exception that is no `Exception`, end no thread."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from fixtures.internals import core_of, open_subscriptions
from fixtures.server import break_link
from fixtures.threads import SCALE, wait_until

import jetstream_sync
from jetstream_sync import Connection, JetStream, Stream
from jetstream_sync.server import NatsServer


class Timeout(BaseException):
    """As those of gevent and eventlet."""

    def __init__(self, seconds: float, *, why: str) -> None:
        super().__init__(seconds)
        self.why = why


RAISES: dict[str, Callable[[], object]] = {
    "sys.exit": lambda: sys.exit("from a callback"),
    "cancelled": lambda: _raise(asyncio.CancelledError()),
    "timeout": lambda: _raise(Timeout(1, why="late")),
    "pytest.fail": lambda: pytest.fail("from a callback"),
    "interrupt": lambda: _raise(KeyboardInterrupt()),
}


def _raise(error: BaseException) -> None:
    raise error


class Exiting:
    """A callback that exits at its first call and records the later ones."""

    def __init__(self, kind: str) -> None:
        self.calls = 0
        self._exit = RAISES[kind]

    def __call__(self, *_: object) -> None:
        self.calls += 1
        if self.calls == 1:
            self._exit()


@pytest.fixture
def reported() -> list[BaseException]:
    """The errors that the connection `own` reports."""
    return []


@pytest.fixture
def own(nats_server: NatsServer, reported: list[BaseException]) -> Iterator[Connection]:
    """A connection of the test alone."""
    with jetstream_sync.connect(nats_server.url, error_cb=reported.append) as connection:
        yield connection


@pytest.fixture
def stored(own: Connection, js: JetStream, stream: Stream) -> Stream:
    """The stream with two messages, for the connection of the test."""
    for number in range(2):
        js.publish(f"{stream.name}.a", b"%d" % number)
    return own.jetstream().get_stream(stream.name)


def _core(nc: Connection, _: Stream, callback: Exiting) -> Callable[[], object]:
    sub = nc.subscribe("exiting", cb=callback)
    for _number in range(2):
        nc.publish("exiting")
    return lambda: sub.is_valid


def _consume(_: Connection, stream: Stream, callback: Exiting) -> Callable[[], object]:
    handle = stream.create_consumer(durable_name="C").consume(callback)
    return lambda: not handle.closed and handle.error is None


def _ordered(_: Connection, stream: Stream, callback: Exiting) -> Callable[[], object]:
    handle = stream.ordered_consumer().consume(callback)
    return lambda: not handle.closed and handle.error is None


def _push(nc: Connection, stream: Stream, callback: Exiting) -> Callable[[], object]:
    sub = nc.jetstream().subscribe("", stream=stream.name, cb=callback)
    return lambda: sub.is_valid


def _kv(nc: Connection, _: Stream, callback: Exiting) -> Callable[[], object]:
    kv = nc.jetstream().create_key_value(bucket="EXITING", storage="memory")
    kv.put("a", b"1")
    kv.put("b", b"1")
    handle: Any = kv.watch(cb=callback)
    return lambda: not handle.closed and handle.error is None


def _kv_current(nc: Connection, _: Stream, callback: Exiting) -> Callable[[], object]:
    kv = nc.jetstream().create_key_value(bucket="EXITING", storage="memory")
    kv.put("a", b"1")
    handle: Any = kv.watch(cb=lambda _: callback.calls > 0 and callback(), current_cb=callback)
    handle.wait_current(5 * SCALE)
    kv.put("b", b"1")
    return lambda: not handle.closed and handle.error is None


def _objects(nc: Connection, _: Stream, callback: Exiting) -> Callable[[], object]:
    store = nc.jetstream().create_object_store(bucket="EXITING", storage="memory")
    store.put("a", b"1")
    store.put("b", b"1")
    handle: Any = store.watch(cb=callback)
    return lambda: not handle.closed and handle.error is None


def _future(nc: Connection, stream: Stream, callback: Exiting) -> Callable[[], object]:
    js = nc.jetstream()
    added = 0
    while added < 2:
        future = js.publish_async(f"{stream.name}.a")
        try:
            future.add_done_callback(callback)
        except BaseException:  # it was done already, so this thread has called it
            callback.calls = 0
        else:
            added += 1
    js.publish_async_completed(5 * SCALE)
    return lambda: js.publish(f"{stream.name}.a")


@pytest.mark.matrix
@pytest.mark.parametrize("kind", RAISES)
@pytest.mark.parametrize(
    "start", [_core, _consume, _ordered, _push, _kv, _kv_current, _objects, _future]
)
def test_the_next_message_follows(own, stored, reported, start, kind):
    """The error goes to ``error_cb``, and the callback gets the next message."""
    callback = Exiting(kind)
    is_alive = start(own, stored, callback)
    wait_until(lambda: callback.calls >= 2)
    wait_until(lambda: reported)
    assert not isinstance(reported[0], Exception)
    assert is_alive()


@pytest.mark.parametrize("kind", RAISES)
def test_a_handler_of_a_service(own, nc, reported, kind):
    """The requester gets code 500, and the endpoint answers the next request."""
    callback = Exiting(kind)

    def handle(request: Any) -> None:
        callback()
        request.respond(b"ok")

    with own.add_service("exiting", "1.0.0") as service:
        service.add_endpoint("exit", handle)
        assert nc.request("exit", timeout=5).headers["Nats-Service-Error-Code"] == "500"
        assert nc.request("exit", timeout=5).data == b"ok"
        assert service.stats().endpoints[0].num_errors == 1
    wait_until(lambda: reported)
    assert not isinstance(reported[0], Exception)


def test_callbacks_of_a_service(own, nc, reported):
    """The functions for statistics and for the end may exit; the service answers, and stops."""
    service = own.add_service(
        "exiting", "1.0.0", stats_handler=lambda _: sys.exit(1), stop_cb=lambda _: sys.exit(2)
    )
    service.add_endpoint("exit", lambda request: request.respond(b"ok"))
    for _ in range(2):
        assert nc.request("$SRV.STATS.exiting", timeout=5).data
    wait_until(lambda: len(reported) == 2)
    with own.subscribe("end", cb=lambda _: service.stop()):
        own.publish("end")
        assert service.wait_stopped(5 * SCALE)
        wait_until(lambda: len(reported) == 3)
    assert [type(error) for error in reported] == [SystemExit] * 3


def test_an_exit_on_the_thread_of_the_user_reaches_the_caller(own, reported):
    """A function that exits on a thread of the user exits that thread, as without this package."""
    service = own.add_service("exiting", "1.0.0", stats_handler=lambda _: sys.exit(3))
    service.add_endpoint("exit", print)
    with pytest.raises(SystemExit):
        service.stats()
    with pytest.raises(SystemExit):
        own.jetstream(api_cb=lambda _: sys.exit(4)).account_info()
    service.stop()
    assert reported == []


def test_event_callbacks(nats_server):
    """A callback for an event that exits gets the next event, and so do the others."""
    calls: list[str] = []

    def record(name: str) -> Callable[..., None]:
        def call(*_: object) -> None:
            calls.append(name)
            sys.exit(name)

        return call

    closed = threading.Event()
    with jetstream_sync.connect(
        nats_server.url,
        reconnect_time_wait=0.01,
        reconnected_cb=record("reconnected"),
        disconnected_cb=record("disconnected"),
        error_cb=record("error"),
        closed_cb=closed.set,
        trace_cb=record("trace"),
        reconnect_delay_cb=lambda _: sys.exit("delay"),
    ) as nc:
        for _ in range(2):
            break_link(nc)
        wait_until(lambda: calls.count("reconnected") == 2)
        assert calls.count("disconnected") == 2
        assert calls.count("trace") > 2
        core_of(nc).events.error(ValueError())
        wait_until(lambda: "error" in calls)
    assert closed.is_set()


def test_functions_that_the_reader_calls(fresh_server):
    """Functions for reconnecting that exit are reported, and the connection is restored."""
    reported: list[BaseException] = []
    logins = Exiting("sys.exit")
    logins.calls = 1

    def token() -> str:
        logins()
        return "t"

    with jetstream_sync.connect(
        fresh_server.url,
        token=token,
        error_cb=reported.append,
        reconnect_to_cb=lambda _: sys.exit("to"),
        reconnect_delay_cb=lambda _: sys.exit("delay"),
    ) as nc:
        logins.calls = 0
        break_link(nc)
        nc.flush(5)
        assert logins.calls == 2
    assert {type(error).__name__ for error in reported} == {"SystemExit", "CredentialsError"}


def test_a_failed_thread_ends_its_subscription_with_the_error(own, stored, monkeypatch, reported):
    """A thread that cannot go on ends its subscription on both sides, and says why."""
    sub = own.subscribe("exiting", cb=print)
    handle = stored.create_consumer(durable_name="C").consume(lambda msg: msg.ack())
    wait_until(lambda: handle._messages._waiting)
    failure = SystemExit("a time-out of gevent that fired late")

    def fail(*_: object) -> None:
        raise failure

    monkeypatch.setattr(sub, "_next", fail)
    monkeypatch.setattr(handle._messages, "_next_delivery", fail)
    own.publish("exiting")
    own.jetstream().publish(f"{stored.name}.a")
    handle.wait_closed(5 * SCALE)
    wait_until(lambda: not sub.is_valid)
    own.flush(5)
    assert handle.error is failure
    with pytest.raises(SystemExit):
        sub.unsubscribe()
    wait_until(lambda: reported.count(failure) == 2)
    assert [
        subscription.subject
        for subscription in open_subscriptions(own)
        if subscription.subject == "exiting"
    ] == []
