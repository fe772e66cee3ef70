"""
The queue between the reader and those who read a subscription.

Rules:

1. An item leaves the mailbox only by a `get()` that returns it. Waking a waiter hands it nothing
   but the news that there is something; a waiter that has just timed out passes the news on.
2. The fast path takes no lock: `deque.append` and `deque.popleft` are atomic. The lock is taken to
   go to sleep, to wake, and to close.
3. The reader never waits here: the lock is held for a few instructions only.
4. `close()` wakes everybody. What is still in the mailbox can be read; then `get()` raises the reason.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable
from typing import Generic, TypeVar

from ..errors import ForkedConnectionError, TimeoutError
from ..net.clock import Deadline
from .result_slot import fresh

__all__ = ["Mailbox"]

T = TypeVar("T")


class Mailbox(Generic[T]):
    """
    A queue with one writer and any number of readers.

    `items` is the queue itself: reading threads may ``popleft()`` from it directly, and catch the
    `IndexError` by calling `get()`.

    Args:
        timed_out: makes the error for a wait that timed out, such as `ConnectionCore.timed_out`.

    """

    __slots__ = ("_gates", "_lock", "_reason", "_timed_out", "items")

    def __init__(self, timed_out: Callable[[str], TimeoutError] = TimeoutError) -> None:
        self._timed_out = timed_out
        self.items: deque[T] = deque()
        self._lock = threading.Lock()
        # One closed lock for each sleeping reader, opened to wake it. Changed under the lock.
        self._gates: deque[threading.Lock] = deque()
        # Why nothing more will come. Set once, under the lock.
        self._reason: BaseException | None = None

    def __len__(self) -> int:
        return len(self.items)

    @property
    def closed(self) -> bool:
        """Whether nothing more will come; items may still be there."""
        return self._reason is not None

    @property
    def reason(self) -> BaseException | None:
        """Why nothing more will come, ``None`` while something may."""
        return self._reason

    def put(self, items: Iterable[T], count: int) -> None:
        """
        Add ``count`` items and wake as many readers.

        A closed mailbox takes items, too: whoever closed it decides whether they are read.
        """
        self.items.extend(items)
        # A reader registers its gate before it looks into the queue for the last time, so either
        # it sees the items, or its gate is seen here.
        if self._gates:
            with self._lock:
                self._wake(count)

    def get(self, deadline: Deadline) -> T:
        """
        Take the next item, waiting for it.

        Args:
            deadline: when to give up.

        Raises:
            TimeoutError: nothing came in time.
            BaseException: the reason that the mailbox was closed with; it is empty.

        """
        while True:
            try:
                return self.items.popleft()
            except IndexError:
                self.wait(deadline)

    def close(self, reason: BaseException) -> None:
        """
        Say why nothing more will come, and wake everybody; the first reason stays.

        In a forked child the items go, too: they are the parent's.
        """
        if isinstance(reason, ForkedConnectionError):
            # A thread that is not there may have held the lock, and nobody waits.
            self._lock = threading.Lock()
            self._gates.clear()
            self.items.clear()
            self._reason = reason
            return
        with self._lock:
            if self._reason is None:
                self._reason = reason
            self._wake(len(self._gates))

    def raise_reason(self) -> None:
        """Raise the reason that the mailbox was closed with; do nothing while it is open."""
        if self._reason is not None:
            raise fresh(self._reason)

    def wait(self, deadline: Deadline) -> None:
        """
        Wait until there may be an item; another reader may be faster.

        Raises:
            TimeoutError: nothing came in time.
            BaseException: the reason that the mailbox was closed with; it is empty.

        """
        gate = threading.Lock()
        gate.acquire()
        woken = False
        try:
            with self._lock:
                self._gates.append(gate)
                if self.items:
                    return
                if self._reason is not None:
                    raise fresh(self._reason)
            woken = gate.acquire(timeout=deadline.lock_timeout())
        finally:
            # There was something already, the time is up, or a Ctrl-C struck. Another one could
            # strike at a call of our own functions, so there is none.
            if not woken:
                with self._lock:
                    if gate in self._gates:
                        self._gates.remove(gate)
                    elif self.items and self._gates:
                        # It was opened just now: somebody else gets the news.
                        self._gates.popleft().release()
        if not woken and not self.items:
            raise self._timed_out("nothing came in time")

    def _wake(self, count: int) -> None:
        """Open ``count`` gates; the lock is held."""
        for _ in range(min(count, len(self._gates))):
            self._gates.popleft().release()
