"""Futures of `publish_async` after a fork: settled at once in the child, by acks in the parent."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, as_completed, wait

import pytest
from fixtures.fork import in_child
from fixtures.threads import wait_until

import jetstream_sync
from jetstream_sync import ForkedConnectionError, JetStream, PubAck, PubAckFuture
from jetstream_sync.server import NatsServer

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")


class Held:
    """A JetStream context whose messages to the subject ``held`` are acknowledged on request."""

    def __init__(self, url: str) -> None:
        self.nc = jetstream_sync.connect(url)
        self.js: JetStream = self.nc.jetstream()
        self._sub = self.nc.subscribe("held")

    def publish(self) -> PubAckFuture:
        return self.js.publish_async("held", timeout=None)

    def acknowledge(self, seq: int = 1) -> None:
        """Acknowledge the first unacknowledged message."""
        self._sub.next_msg(timeout=5).respond(b'{"stream":"HELD","seq":%d}' % seq)


@pytest.fixture
def held(nats_server: NatsServer) -> Iterator[Held]:
    it = Held(nats_server.url)
    yield it
    it.nc.close()


@pytest.mark.parametrize("looked_at", [False, True])
def test_a_child_s_futures_are_settled_at_once(held, looked_at):
    """A child does not wait for acks that only its parent can receive."""
    futures = [held.publish() for _ in range(3)]
    standard = [future.future() for future in futures] if looked_at else []

    def check() -> None:
        for future in futures:
            assert future.done()
            assert isinstance(future.exception(), ForkedConnectionError)
            with pytest.raises(ForkedConnectionError):
                future.result()
        for others in standard, [future.future() for future in futures]:
            assert wait(others).done == set(others)
            assert set(as_completed(others)) == set(others)
            assert {type(other.exception()) for other in others} <= {ForkedConnectionError}
        assert held.js.publish_async_pending == 0
        with pytest.raises(ForkedConnectionError):
            held.js.publish_async_completed()

    in_child(check)
    for seq, future in enumerate(futures, 1):
        assert not future.done()
        held.acknowledge(seq)
        assert future.result(5) == PubAck("HELD", seq)


def test_an_acknowledged_future_stays_acknowledged_in_a_child(held):
    """A future that was acknowledged before the fork is acknowledged in the child, too."""
    future = held.publish()
    held.acknowledge(7)
    wait_until(future.done)
    in_child(lambda: future.result().seq == 7 or pytest.fail("not acknowledged"))


def test_callbacks_are_called_in_the_parent_alone(held):
    """Callbacks of inherited futures run in the parent only, not twice."""
    called: list[int] = []
    future = held.publish()
    future.add_done_callback(lambda _: called.append(os.getpid()))

    def check() -> None:
        with pytest.raises(ForkedConnectionError):
            future.result()
        assert not called
        # A callback that the child adds itself is called.
        future.add_done_callback(lambda _: called.append(os.getpid()))
        assert called == [os.getpid()]

    in_child(check)
    held.acknowledge()
    wait_until(lambda: called == [os.getpid()])


@pytest.mark.parametrize("when", ["all", "first"])
def test_as_completed_ends_in_a_child(held, when):
    """A fork during `as_completed` leaves the child with an iteration that ends."""
    futures = {held.publish().future() for _ in range(4)}
    held.acknowledge()
    iteration = as_completed(futures)
    first = next(iteration)
    assert first.result().stream == "HELD"

    def check() -> None:
        if when == "first":
            assert wait(futures, return_when=FIRST_COMPLETED).done == futures
        rest = set(iteration)
        assert rest == futures - {first}
        assert all(isinstance(item.exception(), ForkedConnectionError) for item in rest)

    in_child(check)


@pytest.mark.parametrize("looked_at", [False, True])
def test_a_future_that_was_about_to_be_settled(held, looked_at):
    """A child's future is also settled if a thread of the parent was about to settle it."""
    future = held.publish()
    others = [future.future(), held.publish().future()] if looked_at else []
    # Take the future like the thread that settles, and fork right after it.
    taken = dict(held.js._publisher._pending)
    held.js._publisher._pending.clear()
    assert next(iter(taken.values())) is future
    if looked_at:
        others[0]._condition.acquire()

    def check() -> None:
        assert future.done()
        with pytest.raises(ForkedConnectionError):
            future.result()
        # That thread holds the lock of the first one for ever.
        assert {type(other.exception(5)) for other in others[1:]} <= {ForkedConnectionError}

    in_child(check)
    if looked_at:
        others[0]._condition.release()


def test_a_full_window(nats_server):
    """Publishing in a child is refused, without waiting for room in the window."""
    held = Held(nats_server.url)
    held.js._publisher._window = 2
    futures = [held.publish() for _ in range(2)]

    def check() -> None:
        for _ in range(3):
            with pytest.raises(ForkedConnectionError):
                held.publish()

    in_child(check)
    held.nc.close()
    wait_until(lambda: all(future.done() for future in futures))


def test_a_callback_that_forks(held):
    """A child that was forked in a future's callback gets none of the received acks."""
    futures = [held.publish() for _ in range(10)]
    children: list[int] = []
    seen: list[int] = []

    def forks(future: PubAckFuture) -> None:
        seen.append(future.result().seq)
        pid = os.fork()
        if pid:
            children.append(pid)
            return
        # It continues like the parent, with nothing to settle.
        seen.clear()
        end = threading.Timer(0.2, lambda: os._exit(len(seen)))
        end.daemon = True
        end.start()

    futures[0].add_done_callback(forks)
    for future in futures[1:]:
        future.add_done_callback(lambda item: seen.append(item.result().seq))
    for seq in range(1, 11):
        held.acknowledge(seq)
    wait_until(lambda: len(seen) == 10)
    _, status = os.waitpid(children[0], 0)
    assert status == 0, "the child got acks of its parent"
