"""How the reader thread passes messages, results and errors to the threads that wait for them."""

# Rules of the `Mailbox`, the queue of a subscription:
#
# 1. An item leaves the mailbox only by a `get()` that returns it. Waking a waiting thread only tells it
#    to check the queue; a thread that was woken just after its timeout wakes the next one.
# 2. The fast path takes no lock: `deque.append` and `deque.popleft` are atomic. The lock is taken to
#    go to sleep, to wake, and to close.
# 3. The reader thread never waits here: the lock is held for a few instructions only.
# 4. `close()` wakes all waiting threads. The remaining items can be read; then `get()` raises the reason.

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import islice
from typing import Any, ClassVar, Final, Generic, TypeVar

from .. import errors
from ..locks import new_lock, reinit_in_child, releases
from ..net.clock import Deadline
from ..protocol.parser import RawMessage

T = TypeVar("T")

#: Why nothing that belongs to a connection can be used in a forked child.
FORKED: Final = errors.ForkedConnectionError(
    "the connection was opened in the parent process; open one after the fork"
)
#: The value of a slot without a result.
_UNSET: Final[Any] = object()


def copy_exception(error: BaseException) -> BaseException:
    """Return a copy of an error, for raising it in several threads."""
    # One error may wake many threads; raising one shared object would mix their tracebacks.
    try:
        copied = type(error)(*error.args)
    except Exception:  # noqa: BLE001 - an error of a user's function, with other parameters
        return error
    copied.__cause__ = error.__cause__
    return copied


class ResultSlot(Generic[T]):
    """Passes one result from one thread to another that waits for it."""

    # Exactly one thread calls `set()` or `fail()`, once, and one thread waits. If a result and a timeout
    # coincide, the table where the slot is registered decides: a thread that removed the slot from the
    # table will set it, so the waiting thread continues to wait (see ``client/request.py``).

    __slots__ = ("_error", "_gate", "_value")

    def __init__(self) -> None:
        self._gate = threading.Lock()
        self._gate.acquire()
        self._value: T = _UNSET
        self._error: BaseException | None = None

    def set(self, value: T) -> None:
        """Set the result and wake the waiting thread."""
        self._value = value
        self._gate.release()

    def fail(self, error: BaseException) -> None:
        """Set an error, which the waiting thread raises, and wake that thread."""
        self._error = error
        self._gate.release()

    def is_set(self) -> bool:
        """Return whether there is a result or an error."""
        return self._value is not _UNSET or self._error is not None

    def arrived(self, deadline: Deadline) -> bool:
        """Wait for a result or an error; return whether one arrived before the deadline."""
        return self._gate.acquire(timeout=deadline.lock_timeout())

    def result(self) -> T:
        """Return the result, or raise a copy of the error, after `arrived()` has returned ``True``."""
        if self._error is not None:
            raise copy_exception(self._error)
        return self._value


def first_items(items: Iterable[T], count: int | None = None) -> list[T]:
    """Return the first items of a queue or set that other threads change, without removing them."""
    while True:
        try:
            return list(islice(items, count))
        except RuntimeError:  # another thread added or took something meanwhile
            continue


class Mailbox(Generic[T]):
    """A queue with one writer and any number of readers."""

    # `items` is the queue itself: reading threads may ``popleft()`` from it directly, and call `get()`
    # after an `IndexError`.

    __slots__ = ("__weakref__", "_gates", "_lock", "_timed_out", "items", "reason")

    def __init__(
        self, timed_out: Callable[[str], errors.TimeoutError] = errors.TimeoutError
    ) -> None:
        self._timed_out = timed_out
        self.items: deque[T] = deque()
        self._lock = new_lock()
        # One locked lock for each sleeping reader, released to wake it. Changed under the lock.
        self._gates: deque[threading.Lock] = deque()
        #: The error that the mailbox was closed with; ``None`` while it is open. Set once, under the lock.
        self.reason: BaseException | None = None
        reinit_in_child(self)

    def __len__(self) -> int:
        return len(self.items)

    @property
    def closed(self) -> bool:
        """Whether the mailbox was closed; it may still contain items."""
        return self.reason is not None

    def put(self, items: Iterable[T], count: int) -> None:
        """Add ``count`` items and wake as many readers."""
        # A closed mailbox accepts items, too: the owner decides whether they are read.
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
        """Remove and return the next item, and wait for it if necessary; raises as `wait()`."""
        while True:
            try:
                return self.items.popleft()
            except IndexError:
                self.wait(deadline)

    def close(self, reason: BaseException) -> None:
        """Close the mailbox with a reason, and wake all waiting threads; the first reason stays."""
        with self._lock:
            wake = releases(self._gates)
            self.reason = self.reason or reason
            try:  # noqa: SIM105 - without a call
                deque(wake, maxlen=0)
            except IndexError:
                pass  # no more gates

    def _at_fork_reinit(self) -> None:
        """Drop the items in a forked child, because they belong to the parent, and close the mailbox."""
        self._gates.clear()
        self.items.clear()
        self.reason = FORKED

    def raise_reason(self) -> None:
        """Raise a copy of the reason if the mailbox is closed."""
        if self.reason is not None:
            raise copy_exception(self.reason)

    def wait(self, deadline: Deadline) -> None:
        """
        Wait until the mailbox may contain an item; another reader may take it first.

        Raises:
            TimeoutError: no item arrived in time.
            Exception: the mailbox is closed and empty; a copy of the reason.

        """
        gate = threading.Lock()
        gate.acquire()
        woken = False
        try:
            with self._lock:
                self._gates.append(gate)
                if self.items:
                    return
                if self.reason is not None:
                    raise copy_exception(self.reason)
            woken = gate.acquire(timeout=deadline.lock_timeout())
        finally:
            # An item was there, the deadline has passed, or a KeyboardInterrupt was raised. A second
            # one could be raised in a Python function, so none is called here.
            if not woken:
                with self._lock:
                    is_late = gate not in self._gates  # woken after the timeout
                    if not is_late:
                        self._gates.remove(gate)
                    if is_late and self.items and self._gates:
                        self._gates.popleft().release()  # wakes another reader instead
        if not woken and not self.items:
            raise self._timed_out("no message arrived in time")


class MessageReceiver:
    """Receives the messages and events of one subscription; by default, it ignores the events."""

    # The connection holds it while the subscription exists. So it holds `ConnectionCore.internal`, not a
    # handle, and no public object, unless it has to keep the connection open.

    __slots__ = ("subscription",)

    subscription: SubscriptionState
    """The last entry in the subscription table; assigned before the reader can find the entry."""

    is_reply_inbox: ClassVar[bool] = False
    """Whether the messages are replies to requests: a drain of the connection keeps such a
    subscription until all others have ended."""

    @property
    def awaited(self) -> bool:
        """Whether every message is a reply to a waiting caller, which may read it; see `DirectReads`."""
        return False

    def caller_waits(self) -> bool:
        """Return whether a caller waits for a reply; only for receivers that are ``awaited``."""
        return True

    def deliver(self, deliveries: list[RawMessage]) -> None:
        """Process messages; called by the reader, must not wait."""
        raise NotImplementedError

    def on_connection_change(self, *, connected: bool) -> None:
        """React to a lost or new connection; called by the reader, must not wait."""

    def on_permission_error(self, subject: bytes, error: errors.PermissionsError) -> bool:
        """React to a permission error of the server; called by the reader, must not wait."""
        # Returns whether the error belongs to a request of this receiver. The server sends one error
        # for each refused message, so one receiver is enough.
        del subject, error
        return False

    def on_closed(self, reason: BaseException) -> None:
        """Process the end of the subscription: no more messages follow; must not wait."""

    def unacknowledged(self, deadline: Deadline) -> int:
        """Wait for acknowledgements of published messages; return the number of those that are missing."""
        del deadline
        return 0

    def wait_drained(self, deadline: Deadline) -> bool:
        """Wait until all messages are processed; return whether they are, at once if no callback runs."""
        del deadline
        return True


@dataclass(slots=True, eq=False)
class SubscriptionState:
    """One subscription as the server knows it, and the receiver of its messages."""

    sid: int
    subject: str
    queue: str
    receiver: MessageReceiver
    limit: int = 0
    """Number of messages after which it ends, counted from its start; 0: no limit."""
    delivered: int = 0
    """Number of messages passed to the receiver; updated by the reader thread only, before it passes them."""
    processed: int = 0
    """Number of messages that the receiver has processed, as far as it had no limit."""
    ended: BaseException | None = None
    """Why it has ended, while the receiver may still process its last messages."""
    ending: bool = False
    """Whether UNSUB was sent while messages may still be in flight."""
