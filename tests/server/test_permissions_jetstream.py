"""Permission violations in JetStream: no call waits for a reply that cannot arrive."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from queue import SimpleQueue

import pytest
from fixtures.internals import open_subscriptions
from fixtures.threads import wait_until, within

import jetstream_sync
from jetstream_sync import Connection, PermissionsError
from jetstream_sync.server import NatsServer

CONFIG = """authorization { users: [
    { user: admin, password: a }
    { user: idle, password: i, permissions: {
        publish: { deny: ["$JS.API.CONSUMER.MSG.NEXT.>", "$JS.ACK.>", "S.denied"] }
    } }
    { user: reader, password: r, permissions: { publish: { deny: "$JS.API.CONSUMER.CREATE.>" } } }
    { user: narrow, password: n, permissions: { publish: { allow: "S.x" } } }
    { user: deaf, password: d, permissions: { subscribe: { deny: "_INBOX.*" } } }
] }"""

#: Longer than any reply takes: a call that waits so long got no error.
LONG = 30.0


@pytest.fixture(scope="module")
def strict() -> Iterator[NatsServer]:
    """A server with JetStream, a stream with messages and a consumer, and restricted users."""
    with NatsServer(name="strict", config=CONFIG) as server:
        with jetstream_sync.connect(server.url, user="admin", password="a") as nc:
            js = nc.jetstream()
            stream = js.create_stream(name="S", subjects=["S.*"])
            stream.create_consumer(durable_name="C", ack_policy="explicit")
            for _ in range(3):
                js.publish("S.x", b"x")
        yield server


@contextmanager
def connected(server: NatsServer, user: str) -> Iterator[tuple[Connection, SimpleQueue[Exception]]]:
    """A connection of a user, and the errors reported to it."""
    reported: SimpleQueue[Exception] = SimpleQueue()
    with jetstream_sync.connect(
        server.url, user=user, password=user[0], error_cb=reported.put
    ) as nc:
        yield nc, reported
        assert nc.is_connected


@contextmanager
def denied(subject: str, operation: str = "publish") -> Iterator[None]:
    """Assert that the block raises soon that a subject is not permitted."""
    with within(5), pytest.raises(PermissionsError) as caught:
        yield
    assert caught.value.operation == operation
    assert caught.value.subject.startswith(subject)


NEXT = "$JS.API.CONSUMER.MSG.NEXT.S.C"


@pytest.mark.parametrize("timeout", [LONG, None])
def test_fetching(strict, timeout):
    """A fetch whose request is not permitted raises, instead of returning nothing later."""
    with connected(strict, "idle") as (nc, reported):
        consumer = nc.jetstream().get_consumer("S", "C")
        for fetch in (consumer.next, lambda timeout: consumer.fetch(5, timeout)):
            with denied(NEXT):
                fetch(timeout=timeout)
            assert isinstance(reported.get(timeout=5), PermissionsError)
        with denied(NEXT):
            consumer.fetch_no_wait(5)
        # The consumer stays usable for permitted requests.
        assert consumer.info().num_waiting == 0


def test_messages(strict):
    """An iterator ends with the error: another request would be refused, too."""
    with connected(strict, "idle") as (nc, _):
        messages = nc.jetstream().get_consumer("S", "C").messages()
        with messages:
            for _ in range(2):
                with denied(NEXT):
                    messages.next(timeout=LONG)
            assert messages.closed
            with denied(NEXT):
                next(iter(messages))


def test_consume(strict):
    """A consume ends with the error, which ``error_cb`` gets once."""
    with connected(strict, "idle") as (nc, reported):
        handle = nc.jetstream().get_consumer("S", "C").consume(print)
        handle.wait_closed(timeout=5)
        assert isinstance(handle.error, PermissionsError)
        assert handle.error.subject == NEXT
        assert isinstance(reported.get(timeout=5), PermissionsError)
        nc.flush()
        assert reported.empty()


def test_an_ordered_consumer(strict):
    """It does not create consumers repeatedly for refused requests."""
    with connected(strict, "idle") as (nc, _):
        stream = nc.jetstream().get_stream("S")
        with (
            stream.ordered_consumer().messages() as messages,
            denied("$JS.API.CONSUMER.MSG.NEXT.S."),
        ):
            messages.next(timeout=LONG)
        with denied("$JS.API.CONSUMER.MSG.NEXT.S."):
            stream.ordered_consumer().fetch(1, timeout=LONG)


def test_an_ordered_consumer_that_cannot_be_created(strict):
    """It does not repeat a refused creation."""
    with connected(strict, "reader") as (nc, reported):
        stream = nc.jetstream(timeout=LONG).get_stream("S")
        with denied("$JS.API.CONSUMER.CREATE.S."):
            stream.ordered_consumer().messages()
        with denied("$JS.API.CONSUMER.CREATE.S."):
            stream.ordered_consumer().fetch(1, timeout=LONG)
        for _ in range(2):
            assert isinstance(reported.get(timeout=5), PermissionsError)
        nc.flush()
        assert reported.empty()


def test_the_api(strict):
    """Every request to the JetStream API fails at once."""
    with connected(strict, "narrow") as (nc, _):
        js = nc.jetstream(timeout=LONG)
        with denied("$JS.API.INFO"):
            js.account_info()
        with denied("$JS.API.STREAM.CREATE.T"):
            js.create_stream(name="T")
        with denied("$JS.API.STREAM.NAMES"):
            list(js.stream_names())
        with denied("$JS.API.CONSUMER.INFO.S.C"):
            js.get_consumer("S", "C")


def test_publishing(strict):
    """A publish to a subject that is not permitted fails at once; others are stored."""
    with connected(strict, "idle") as (nc, _):
        js = nc.jetstream(timeout=LONG)
        with denied("S.denied"):
            js.publish("S.denied", b"x")
        future = js.publish_async("S.denied", b"x")
        with denied("S.denied"):
            future.result(LONG)
        assert js.publish("S.x", b"x").stream == "S"


def test_acknowledging(strict):
    """A confirmed acknowledgement raises; others are reported."""
    with jetstream_sync.connect(strict.url, user="admin", password="a") as admin:
        consumer = admin.jetstream().get_consumer("S", "C")
        reply = consumer.next(timeout=LONG).reply
        with connected(strict, "idle") as (nc, reported):
            with denied("$JS.ACK."):
                nc.request(reply, b"+ACK", timeout=LONG)
            assert isinstance(reported.get(timeout=5), PermissionsError)
            nc.publish(reply, b"+ACK")
            assert isinstance(reported.get(timeout=5), PermissionsError)


def test_a_refused_inbox_fails_like_a_refused_request(strict):
    """A refused inbox has the same effect as a refused request."""
    config = """authorization { users: [
        { user: u, password: u, permissions: { subscribe: { allow: "_INBOX.*.*" } } }
    ] }"""
    del strict
    with NatsServer(config=config) as server, connected(server, "u") as (nc, _):
        js = nc.jetstream()
        js.create_stream(name="S", subjects=["S.*"])
        # Requests and small fetches use "_INBOX.<unique>.*", which is permitted; other pulls use
        # "_INBOX.<unique>".
        consumer = js.create_consumer("S", durable_name="C")
        with denied("_INBOX.", "subscribe"):
            consumer.fetch(100, timeout=LONG)
        with consumer.messages() as messages, denied("_INBOX.", "subscribe"):
            messages.next(timeout=LONG)
        future = js.publish_async("S.x", b"x")
        assert future.result(LONG).seq == 1


def test_a_future_without_a_permitted_inbox_fails_at_once():
    """A future whose acknowledgement cannot arrive fails at once, and so does the next one."""
    config = """authorization { users: [
        { user: u, password: u, permissions: { subscribe: { deny: "_INBOX.>" } } }
    ] }"""
    with NatsServer(config=config) as server, connected(server, "u") as (nc, _):
        js = nc.jetstream(timeout=LONG)
        for _ in range(2):
            future = js.publish_async("S.x", b"x")
            with denied("_INBOX.", "subscribe"):
                future.result(LONG)


def test_a_refused_fetch_or_iterator_leaves_nothing_behind(strict):
    """A refused fetch or iterator leaves no subscription and no thread behind."""
    with connected(strict, "idle") as (nc, _):
        js = nc.jetstream()
        consumer = js.get_consumer("S", "C")
        before = len(open_subscriptions(nc))
        with denied(NEXT):
            consumer.fetch(1, timeout=LONG)
        messages = consumer.messages()
        with denied(NEXT):
            messages.next(timeout=LONG)
        consumer.consume(print).wait_closed(5)
        assert len(open_subscriptions(nc)) == before
        wait_until(lambda: not [t for t in threading.enumerate() if "consume" in t.name])


def test_a_refusal_after_a_reconnect_ends_the_call_that_it_belongs_to(strict):
    """An iterator that has requested nothing since the reconnect does not take the error of a fetch."""
    address = strict.url.removeprefix("nats://")
    with jetstream_sync.connect(f"nats://admin:a@{address}", error_cb=lambda _: None) as nc:
        consumer = nc.jetstream(timeout=LONG).get_consumer("S", "C")
        with consumer.messages(max_messages=1) as messages:
            messages.next(5).nak()
            nc.set_server_pool(f"nats://idle:i@{address}")
            nc.reconnect()
            wait_until(lambda: nc.stats["reconnects"])
            with denied("$JS.API.CONSUMER.MSG.NEXT.S.C"):
                consumer.fetch_no_wait(1)
            with denied("$JS.API.CONSUMER.MSG.NEXT.S.C"):
                while True:  # messages that have arrived before
                    messages.next(LONG)
