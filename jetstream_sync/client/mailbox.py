"""
The queue between the reader thread and the threads that consume a subscription.

Rules:

1. An item leaves the mailbox only by a `get()` that returns it. Waking a waiting thread only tells it
   to check the queue; a thread that was woken just after its timeout wakes the next one.
2. The fast path takes no lock: `deque.append` and `deque.popleft` are atomic. The lock is taken to
   go to sleep, to wake, and to close.
3. The reader thread never waits here: the lock is held for a few instructions only.
4. `close()` wakes all waiting threads. The remaining items can be read; then `get()` raises the reason.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable
from itertools import islice
from typing import Generic, TypeVar

from ..errors import ForkedConnectionError, TimeoutError
from ..net.clock import Deadline
from .result_slot import copy_exception
from .threads import releases

T = TypeVar("T")


def first_items(items: Iterable[T], count: int | None = None) -> list[T]:
    """Return the first items of a queue or set that other threads change, without removing them."""
    while True:
        try:
            return list(islice(items, count))
        except RuntimeError:  # another thread added or took something meanwhile
            continue


class Mailbox(Generic[T]):
    """
    A queue with one writer and any number of readers.

    `items` is the queue itself: reading threads may ``popleft()`` from it directly, and call `get()`
    after an `IndexError`.
    """

    __slots__ = ("_gates", "_lock", "_reason", "_timed_out", "items")

    def __init__(self, timed_out: Callable[[str], TimeoutError] = TimeoutError) -> None:
        self._timed_out = timed_out
        self.items: deque[T] = deque()
        self._lock = threading.Lock()
        # One locked lock for each sleeping reader, released to wake it. Changed under the lock.
        self._gates: deque[threading.Lock] = deque()
        # Why the mailbox was closed. Set once, under the lock.
        self._reason: BaseException | None = None

    def __len__(self) -> int:
        return len(self.items)

    @property
    def closed(self) -> bool:
        """Whether the mailbox was closed; it may still contain items."""
        return self._reason is not None

    @property
    def reason(self) -> BaseException | None:
        """The error that the mailbox was closed with; ``None`` while it is open."""
        return self._reason

    def put(self, items: Iterable[T], count: int) -> None:
        """
        Add ``count`` items and wake as many readers.

        A closed mailbox accepts items, too: the owner decides whether they are read.
        """
        self.items.extend(items)
        # A reader registers its gate before it checks the queue for the last time. So either the
        # reader sees the items, or this thread sees the gate.
        if self._gates:
            with self._lock:
                try:  # noqa: SIM105 - each wake-up would cost more
                    deque(releases(self._gates, count), maxlen=0)
                except IndexError:
                    pass  # no more gates

    def get(self, deadline: Deadline) -> T:
        """Remove and return the next item, and wait for it if necessary."""
        while True:
            try:
                return self.items.popleft()
            except IndexError:
                self.wait(deadline)

    def close(self, reason: BaseException) -> None:
        """
        Close the mailbox with a reason, and wake all waiting threads; the first reason stays.

        In a forked child the items are dropped, because they belong to the parent.
        """
        if isinstance(reason, ForkedConnectionError):
            # A thread of the parent may have held the lock, and no thread is waiting here.
            self._lock = threading.Lock()
            self._gates.clear()
            self.items.clear()
            self._reason = reason
            return
        with self._lock:
            wake = releases(self._gates)
            self._reason = self._reason or reason
            try:  # noqa: SIM105 - without a call
                deque(wake, maxlen=0)
            except IndexError:
                pass  # no more gates

    def raise_reason(self) -> None:
        """Raise the reason if the mailbox is closed."""
        if self._reason is not None:
            raise copy_exception(self._reason)

    def wait(self, deadline: Deadline) -> None:
        """Wait until the mailbox may contain an item; another reader may take it first."""
        gate = threading.Lock()
        gate.acquire()
        woken = False
        try:
            with self._lock:
                self._gates.append(gate)
                if self.items:
                    return
                if self._reason is not None:
                    raise copy_exception(self._reason)
            woken = gate.acquire(timeout=deadline.lock_timeout())
        finally:
            # An item was there, the deadline has passed, or a KeyboardInterrupt was raised. A second
            # one could be raised in a Python function, so none is called here.
            if not woken:
                with self._lock:
                    if gate in self._gates:
                        self._gates.remove(gate)
                    elif self.items and self._gates:
                        # Woken after the timeout: wake another reader instead.
                        self._gates.popleft().release()
        if not woken and not self.items:
            raise self._timed_out("no message arrived in time")
