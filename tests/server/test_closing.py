"""The end of a connection: close, drain, flush, and the errors and callbacks that follow."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest
from fixtures.internals import core_of
from fixtures.server import paused
from fixtures.threads import between, threads_in, wait_until, within

import jetstream_sync
from jetstream_sync import Connection, Msg, Subscription, errors
from jetstream_sync.server import NatsServer


@pytest.fixture
def own(nats_server: NatsServer) -> Iterator[Connection]:
    """A connection that the test closes itself."""
    connection = jetstream_sync.connect(nats_server.url)
    yield connection
    connection.close()


class Gate:
    """A callback that blocks at its first message until it is released."""

    def __init__(self) -> None:
        self.began = threading.Event()
        self.go_on = threading.Event()
        self.got: list[bytes] = []

    def __call__(self, msg: Msg) -> None:
        self.began.set()
        assert self.go_on.wait(20)
        self.got.append(msg.data)


# --- close --------------------------------------------------------------------------------------


def test_close_wakes_all_waiting_threads(fresh_server, subject):
    """Closing wakes threads that wait for a message, a reply or a flush; only iterations end quietly."""
    nc = jetstream_sync.connect(fresh_server.url)
    sub = nc.subscribe(subject)
    _kept = nc.subscribe(f"{subject}.silent")
    nc.flush(5)
    with paused(fresh_server), ThreadPoolExecutor(5) as pool:
        try:
            iterating = pool.submit(list, sub)
            waiting = [
                pool.submit(sub.next_msg, None),
                pool.submit(nc.request, f"{subject}.silent", b"", None),
                pool.submit(nc.flush, None),
                pool.submit(nc.rtt, None),
            ]
            for function in ("__iter__", "next_msg", "request", "flush", "rtt"):
                wait_until(lambda function=function: threads_in(function))
            assert not any(item.done() for item in [iterating, *waiting])
        finally:
            nc.close()
        assert iterating.result(5) == []
        for item in waiting:
            assert type(item.exception(5)) is errors.ConnectionClosedError  # not lost


def test_two_threads_close(own, subject):
    """Any number of threads may close a connection at the same time."""
    sub = own.subscribe(subject)
    start = threading.Barrier(4)

    def close() -> None:
        start.wait(5)
        own.close()
        assert own.is_closed

    with ThreadPoolExecutor(5) as pool:
        waiting = pool.submit(sub.next_msg, None)
        closing = [pool.submit(close) for _ in range(4)]
        for item in closing:
            item.result(5)
        assert isinstance(waiting.exception(5), errors.ConnectionClosedError)


@pytest.mark.parametrize(
    "how", ["close", "drain", "with", "close in a callback", "drain in a callback"]
)
def test_closed_cb_runs_before_the_close_returns(nats_server, subject, how):
    """`close` and `drain` return when ``closed_cb`` has, also in a callback of a subscription."""
    called: list[str] = []
    seen: list[list[str]] = []

    def closed() -> None:
        time.sleep(0.2)
        called.append("closed")

    nc = jetstream_sync.connect(nats_server.url, closed_cb=closed)
    if how.endswith("callback"):

        def end(_: Msg) -> None:
            getattr(nc, how.split(maxsplit=1)[0])()
            seen.append(list(called))

        nc.subscribe(subject, cb=end)
        nc.publish(subject)
        wait_until(lambda: seen)
    elif how == "with":
        with nc:
            pass
        seen.append(list(called))
    else:
        getattr(nc, how)()
        seen.append(list(called))
    assert seen == [["closed"]]
    nc.close()
    assert called == ["closed"]


@pytest.mark.parametrize("option", ["closed_cb", "error_cb", "disconnected_cb"])
def test_an_event_callback_may_close(fresh_server, option):
    """An event callback may close its connection without a deadlock."""
    took: list[float] = []

    def close(*_: object) -> None:
        started = time.monotonic()
        nc.close()
        took.append(time.monotonic() - started)

    closed = threading.Event()
    callbacks: dict[str, Callable[..., object]] = {"closed_cb": closed.set, option: close}
    nc = jetstream_sync.connect(fresh_server.url, reconnect_time_wait=0.01, **callbacks)
    if option == "closed_cb":
        nc.close()
        closed.set()
    elif option == "error_cb":
        core_of(nc).events.error(RuntimeError("reported"))
    else:
        fresh_server.stop()
    assert closed.wait(5)
    wait_until(lambda: took)
    assert took[0] < 3


def test_closing_does_not_wait_for_ever_for_closed_cb(nats_server, monkeypatch):
    """A ``closed_cb`` that needs what the closing thread holds delays the close, and no more."""
    monkeypatch.setattr("jetstream_sync.client.engine._CLOSE_CALLBACK_TIMEOUT_S", 0.3)
    held, called = threading.Lock(), threading.Event()

    def closed() -> None:
        with held:
            called.set()

    nc = jetstream_sync.connect(nats_server.url, closed_cb=closed)
    with held, within(2):
        nc.close()
    assert called.wait(5)


def test_a_closed_connection_calls_no_callback(own, subject):
    """After a close a callback gets no more messages, not even pending ones."""
    gate = Gate()
    sub = own.subscribe(subject, cb=gate)
    for number in range(10):
        own.publish(subject, b"%d" % number)
    own.flush(5)
    assert gate.began.wait(5)
    assert sub.pending_msgs == 9
    with within(1):
        own.close()
    gate.go_on.set()
    wait_until(lambda: gate.got)
    wait_until(lambda: not threads_in("_run"))
    assert gate.got == [b"0"]


def test_messages_published_before_a_close_are_sent(nc, own, subject):
    """A close flushes the messages published before it."""
    with nc.subscribe(subject) as sub:
        nc.flush(5)
        for number in range(10_000):
            own.publish(subject, b"%d" % number)
        own.close()
        assert [sub.next_msg(5).data for _ in range(10_000)] == [b"%d" % n for n in range(10_000)]


def uses(
    nc: Connection, subject: str, sub: Subscription, msg: Msg
) -> dict[str, Callable[[], object]]:
    """Return every call that needs an open connection."""
    return {
        "publish": lambda: nc.publish(subject, b"x"),
        "publish with headers": lambda: nc.publish(subject, b"x", headers={"A": "b"}),
        "request": lambda: nc.request(subject, b"x", 5),
        "subscribe": lambda: nc.subscribe(subject),
        "subscribe with a callback": lambda: nc.subscribe(subject, cb=print),
        "flush": lambda: nc.flush(5),
        "rtt": lambda: nc.rtt(5),
        "drain": lambda: nc.drain(5),
        "next_msg": lambda: sub.next_msg(5),
        "unsubscribe": sub.unsubscribe,
        "sub.drain": lambda: sub.drain(5),
        "respond": lambda: msg.respond(b"x"),
    }


def test_every_call_after_a_close_raises(own, subject):
    """On a closed connection every call raises `ConnectionClosedError` at once, without a cause."""
    sub = own.subscribe(subject)
    own.publish(subject, b"x", "reply.to")
    msg = sub.next_msg(5)
    own.close()
    for name, use in uses(own, subject, sub, msg).items():
        with within(1), pytest.raises(errors.ConnectionClosedError) as caught:
            use()
        assert type(caught.value) is errors.ConnectionClosedError, name
        assert caught.value.__cause__ is None, name
    assert list(sub) == []
    assert isinstance(own.last_error, errors.ConnectionClosedError)


def test_calls_raise_the_reason_of_the_close(fresh_server, subject):
    """After a close by the server every call raises the reason, also iterations."""
    nc = jetstream_sync.connect(fresh_server.url, allow_reconnect=False)
    try:
        sub = nc.subscribe(subject)
        nc.publish(subject, b"x", "reply.to")
        msg = sub.next_msg(5)
        with ThreadPoolExecutor(1) as pool:
            iterating = pool.submit(list, sub)
            wait_until(lambda: threads_in("__iter__"))
            fresh_server.stop()
            wait_until(lambda: nc.is_closed)
            reason = nc.last_error
            assert isinstance(reason, errors.ConnectionClosedError)
            assert type(reason) is not errors.ConnectionClosedError or reason.__cause__ is not None
            assert type(iterating.exception(5)) is type(reason)
        for name, use in uses(nc, subject, sub, msg).items():
            with within(1), pytest.raises(errors.ConnectionClosedError) as caught:
                use()
            assert (type(caught.value), str(caught.value)) == (type(reason), str(reason)), name
    finally:
        nc.close()


# --- drain --------------------------------------------------------------------------------------


def test_a_drain_waits_for_callbacks(nc, own, subject):
    """A drain returns when callbacks have handled every message; new subscriptions are refused."""
    gate = Gate()
    own.subscribe(subject, cb=gate)
    own.flush(5)
    for number in range(1_000):
        nc.publish(subject, b"%d" % number)
    nc.flush(5)
    with ThreadPoolExecutor(2) as pool:
        try:
            assert gate.began.wait(5)
            draining = pool.submit(own.drain, 20)
            wait_until(lambda: own.is_draining)
            with pytest.raises(errors.ConnectionDrainingError):
                own.subscribe(f"{subject}.new")
            with pytest.raises(errors.DrainTimeoutError):
                own.drain(0.05)
            second = pool.submit(own.drain, 20)
            wait_until(lambda: threads_in("drain") == 2)
            assert not draining.done()
            assert not second.done()
        finally:
            gate.go_on.set()
        draining.result(10)
        assert gate.got == [b"%d" % number for number in range(1_000)]
        second.result(10)
    assert own.is_closed


def test_callbacks_may_answer_and_ask_during_a_drain(nc, own, subject):
    """Publishes and requests of a callback during a drain are still sent."""
    nc.subscribe(f"{subject}.ask", cb=lambda msg: msg.respond(b"re " + msg.data))
    responses = nc.subscribe(f"{subject}.answers")
    nc.flush(5)
    go_on, began = threading.Event(), threading.Event()

    def relay(msg: Msg) -> None:
        began.set()
        assert go_on.wait(20)
        own.publish(f"{subject}.answers", own.request(f"{subject}.ask", msg.data, 5).data)

    own.subscribe(subject, cb=relay)
    for number in range(100):
        own.publish(subject, b"%d" % number)
    with ThreadPoolExecutor(1) as pool:
        try:
            assert began.wait(5)
            draining = pool.submit(own.drain, 20)
            wait_until(lambda: own.is_draining)
        finally:
            go_on.set()
        draining.result(20)
    assert [responses.next_msg(5).data for _ in range(100)] == [b"re %d" % n for n in range(100)]


def test_unread_messages_outlive_a_drain(own, subject):
    """Without a callback, pending messages can be read after a drain; then reading ends."""
    sub, iterated = own.subscribe(subject), own.subscribe(subject)
    for number in range(10):
        own.publish(subject, b"%d" % number)
    own.drain()
    wanted = [b"%d" % number for number in range(10)]
    assert [sub.next_msg(0).data for _ in range(10)] == wanted
    assert [msg.data for msg in iterated] == wanted
    with pytest.raises(errors.BadSubscriptionError):
        sub.next_msg(5)


def test_a_subscription_drains_alone(nc, own, subject):
    """`Subscription.drain` lets its callback handle pending messages, and affects nothing else."""
    gate, other = Gate(), own.subscribe(subject)
    sub = own.subscribe(subject, cb=gate)
    own.flush(5)
    for number in range(100):
        nc.publish(subject, b"%d" % number)
    nc.flush(5)
    with ThreadPoolExecutor(1) as pool:
        try:
            assert gate.began.wait(5)
            draining = pool.submit(sub.drain, 20)
            wait_until(lambda: not sub.is_valid)
            assert not draining.done()
            nc.publish(subject, b"late")
            nc.flush(5)
        finally:
            gate.go_on.set()
        draining.result(10)
    wanted = [b"%d" % number for number in range(100)]
    assert gate.got == wanted
    assert [other.next_msg(5).data for _ in range(101)] == [*wanted, b"late"]
    assert own.is_connected
    with pytest.raises(errors.BadSubscriptionError):
        sub.drain()


def test_a_callback_drains_its_own_subscription(own, subject):
    """A callback may drain its subscription, and gets the remaining messages."""
    got: list[bytes] = []

    def took(msg: Msg) -> None:
        if not got:
            sub.drain()
        got.append(msg.data)

    sub = own.subscribe(subject, cb=took)
    for number in range(10):
        own.publish(subject, b"%d" % number)
    wait_until(lambda: not sub.is_valid and not threads_in("_run"))
    assert got == [b"%d" % number for number in range(10)]


@pytest.mark.parametrize("what", ["connection", "subscription"])
def test_a_drain_gives_up_in_time(own, subject, what):
    """If a callback hangs, a drain raises `DrainTimeoutError` in time and drops the rest."""
    gate = Gate()
    sub = own.subscribe(subject, cb=gate)
    own.publish(subject, b"1")
    own.publish(subject, b"2")
    own.flush(5)
    try:
        assert gate.began.wait(5)
        with within(3), pytest.raises(errors.DrainTimeoutError) as caught:
            (own if what == "connection" else sub).drain(timedelta(milliseconds=100))
        assert isinstance(caught.value, errors.TimeoutError)
        assert own.is_closed is (what == "connection")
    finally:
        gate.go_on.set()
    wait_until(lambda: not threads_in("_run"))
    assert gate.got == [b"1"]


def test_a_drain_of_a_silent_server_gives_up(fresh_server, subject):
    """If the server is silent, a drain raises `DrainTimeoutError` in time, and closes."""
    nc = jetstream_sync.connect(fresh_server.url, drain_timeout=0.2)
    _kept = nc.subscribe(subject)
    with paused(fresh_server):
        with within(3), pytest.raises(errors.DrainTimeoutError):
            nc.drain()
        assert nc.is_closed


# --- the with block -----------------------------------------------------------------------------


def test_a_with_block_drains(nats_server, subject):
    """At the end of a with block callbacks have handled every message, and the connection is closed."""
    got: list[bytes] = []
    with jetstream_sync.connect(nats_server.url) as nc:
        nc.subscribe(subject, cb=lambda msg: got.append(msg.data))
        for number in range(1_000):
            nc.publish(subject, b"%d" % number)
    assert got == [b"%d" % number for number in range(1_000)]
    assert nc.is_closed


def test_a_with_block_that_raises_closes(nats_server, subject):
    """When a with block raises, that error comes out without waiting for callbacks."""
    gate = Gate()
    try:
        with (
            within(3),
            pytest.raises(ZeroDivisionError),
            jetstream_sync.connect(nats_server.url) as nc,
        ):
            nc.subscribe(subject, cb=gate)
            nc.publish(subject, b"1")
            nc.publish(subject, b"2")
            assert gate.began.wait(5)
            raise ZeroDivisionError
        assert nc.is_closed
    finally:
        gate.go_on.set()
    wait_until(lambda: not threads_in("_run"))
    assert gate.got == [b"1"]


def test_a_subscription_ends_with_its_block(own, subject):
    """A subscription is unsubscribed at the end of its with block, unless it has ended before."""
    with own.subscribe(subject) as sub:
        assert sub.is_valid
    assert not sub.is_valid
    with own.subscribe(subject) as sub:
        sub.unsubscribe()


# --- servers that are silent --------------------------------------------------------------------


def test_flush_and_rtt(own, nc, subject):
    """After a flush the server has processed all messages; the round-trip time is positive."""
    with nc.subscribe(subject) as sub:
        nc.flush(None)
        own.publish(subject, b"x")
        own.flush(timedelta(seconds=5))
        nc.flush(5)
        assert sub.pending_msgs == 1
    for rtt in (own.rtt(), own.rtt(None), own.rtt(timedelta(seconds=5))):
        assert timedelta(0) < rtt < timedelta(seconds=2)


def test_a_flush_gives_up_in_time(alone, fresh_server, subject):
    """An unanswered flush raises `TimeoutError` in time; its late PONG completes no other flush."""
    sub = alone.subscribe(subject)
    alone.flush(5)
    with paused(fresh_server):
        for use in (alone.flush, alone.rtt):
            with between(0.1, 1), pytest.raises(errors.TimeoutError):
                use(0.1)
    for number in range(1, 50):
        alone.publish(subject, b"x")
        alone.flush(5)
        assert sub.pending_msgs == number
