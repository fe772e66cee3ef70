"""
State that several threads change at the same time, on interpreters with and without a GIL.

With a GIL most of these steps cannot meet, so a fault shows on a free-threaded interpreter only.
"""

from __future__ import annotations

import contextlib
import itertools
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast
from weakref import WeakSet

import pytest
from fix_threads import SCALE

from jetstream_sync import AckPolicy, ConsumerConfig
from jetstream_sync.client import tracing
from jetstream_sync.client.direct_reads import DirectReads
from jetstream_sync.client.mailbox import Mailbox, MessageReceiver, first_items
from jetstream_sync.client.subscription import PendingLimits
from jetstream_sync.client.tracing import Tracer
from jetstream_sync.jetstream.leases import LeaseRenewer, Leases
from jetstream_sync.jetstream.message import JetStreamMsg
from jetstream_sync.jetstream.pull_subscription import PullSubscription
from jetstream_sync.net.clock import monotonic
from jetstream_sync.protocol.parser import Delivery
from jetstream_sync.protocol.session import Session

if TYPE_CHECKING:
    from jetstream_sync.client.core import ConnectionCore
    from jetstream_sync.jetstream.api_requests import APIRequests
    from jetstream_sync.jetstream.pull import PullInbox

#: Seconds for which the threads of a test run at the same time.
_RUN_S = 0.2


@contextmanager
def meanwhile(*steps: Callable[[], object]) -> Iterator[None]:
    """Repeat each step on a thread of its own during the block; raise the first error."""
    ended = threading.Event()
    raised: list[BaseException] = []

    def repeat(step: Callable[[], object]) -> None:
        try:
            while not ended.is_set():
                step()
        except BaseException as error:
            raised.append(error)

    threads = [threading.Thread(target=repeat, args=(step,), daemon=True) for step in steps]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        ended.set()
        for thread in threads:
            thread.join(20 * SCALE)
    if raised:
        raise raised[0]


def repeat(step: Callable[[], object]) -> None:
    """Repeat a step for a while."""
    end = time.monotonic() + _RUN_S
    while time.monotonic() < end:
        step()


class Receiver(MessageReceiver):
    """A receiver whose messages a caller awaits."""

    awaited = True

    def caller_waits(self) -> bool:
        return False


def test_subscribing_while_the_reader_looks_at_the_table() -> None:
    """The reader finds out whether it may pause while other threads subscribe and unsubscribe."""
    session: Session[MessageReceiver] = Session()
    direct = DirectReads(session.subscriptions, lambda: False)
    lock = threading.Lock()

    def subscribe() -> None:
        with lock:
            some = [session.subscribe("a", "", Receiver())[0] for _ in range(6)]
            for subscription in some:
                session.unsubscribe(subscription)

    with meanwhile(subscribe, subscribe):
        repeat(lambda: direct._all_awaited() and direct._caller_waits())


def delivery(number: int) -> Delivery:
    """Return a message of a consumer with this consumer sequence."""
    return b"s", b"$JS.ACK.S.C.1.%d.%d.1.0" % (number, number), b"", b"x"


class Handling:
    """A consumer's leases, which expire at once, and the threads that take its messages."""

    def __init__(self) -> None:
        lease = timedelta(microseconds=1)
        config = ConsumerConfig(ack_policy=AckPolicy.EXPLICIT, ack_wait=lease)
        self.leases = Leases(cast("APIRequests", None), "S", lambda: "C", config)
        self.numbers = itertools.count(1)
        self.last = 1

    def receive(self) -> None:
        """Record a run of messages, as the reader does."""
        self.last = next(self.numbers)
        self.leases.times.received([delivery(self.last)], monotonic())

    def take(self) -> None:
        """Take messages on threads that end afterwards."""
        for ident in range(-20, 0):
            self.leases.last_taken[ident] = JetStreamMsg(delivery(1), cast("ConnectionCore", None))
        for ident in range(-20, 0):
            self.leases.last_taken.pop(ident, None)

    def buffer_state(self) -> tuple[list[Delivery], int, bool]:
        """Return an empty buffer; see `LeaseRenewer`."""
        return [], 0, True


def test_leases_while_messages_arrive_and_are_taken() -> None:
    """Leases expire and are renewed while the reader records messages and new threads take them."""
    it = Handling()
    core = cast("ConnectionCore", SimpleNamespace(closed_reason=None))
    renewer = LeaseRenewer(core, "C", it.leases, it.buffer_state)

    def check() -> None:
        it.leases.admits(delivery(max(1, it.last - 50))[1])
        it.leases.renewed([delivery(it.last)], monotonic())
        renewer._at_hand(monotonic())

    try:
        with meanwhile(it.receive, it.take, it.take):
            repeat(check)
    finally:
        renewer.stop()


def test_pending_bytes_while_messages_are_read() -> None:
    """The bytes of a half-read batch are counted while other threads read it."""
    pending = PendingLimits(0, 0)
    items: deque[Delivery] = deque()
    lock = threading.Lock()
    batch = [delivery(number) for number in range(1, 201)]

    def deliver() -> None:
        with lock:
            if len(items) < 1000:
                pending.admit(batch, len(items))
                items.extend(batch)

    def read() -> None:
        with contextlib.suppress(IndexError):
            items.popleft()

    def count() -> None:
        with lock:
            assert 0 <= pending.bytes_of(items) <= 1200

    with meanwhile(deliver, read, read):
        repeat(count)


class Inbox:
    """The inbox of a running fetch."""

    def __init__(self) -> None:
        self.mailbox: Mailbox[Delivery] = Mailbox()


def test_pending_messages_of_a_subscription_while_fetches_begin_and_end() -> None:
    """A pull subscription counts what running fetches have received while they come and go."""
    sub = PullSubscription.__new__(PullSubscription)
    inboxes = [cast("PullInbox", Inbox()) for _ in range(20)]
    sub._busy = set()

    def fetch() -> None:
        for inbox in inboxes:
            inbox.mailbox.put([delivery(1)], 1)
            sub._busy.add(inbox)
        for inbox in inboxes:
            sub._busy.discard(inbox)
            with contextlib.suppress(IndexError):
                inbox.mailbox.items.popleft()

    with meanwhile(fetch, fetch):
        repeat(lambda: (sub.pending_msgs, sub.pending_bytes))


def test_closing_an_ordered_consumer_while_iterators_begin() -> None:
    """The iterators of an ordered consumer are found while other threads create some."""
    pullers: WeakSet[Handling] = WeakSet()

    def begin() -> None:
        created = [Handling() for _ in range(10)]
        for each in created:
            pullers.add(each)

    with meanwhile(begin, begin):
        repeat(lambda: first_items(pullers))


def test_a_trace_that_is_full_while_its_thread_takes_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    """Dropped lines are counted while the trace thread empties the queue; none is lost."""
    monkeypatch.setattr(tracing, "_MAX_QUEUED_BYTES", 0)
    traced: list[str] = []
    tracer = Tracer("test", traced.append)
    added = [0, 0]

    def add(index: int) -> None:
        with tracer.lock:
            tracer.add(["line"])
        added[index] += 1

    with meanwhile(lambda: add(0), lambda: add(1)):
        repeat(lambda: None)
    tracer.close(timeout=20 * SCALE)
    dropped = [int(line.rpartition(" ")[2]) for line in traced if line != "line"]
    assert traced.count("line") + sum(dropped) == sum(added)
