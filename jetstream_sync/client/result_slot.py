"""One result for one waiter."""

from __future__ import annotations

import threading
from typing import Generic, TypeVar

from ..net.clock import Deadline

__all__ = ["ResultSlot", "fresh"]

T = TypeVar("T")


def fresh(error: BaseException) -> BaseException:
    """
    Return a copy of an error that may be raised in a thread of its own.

    One error wakes many waiters; raised as one object, their tracebacks would run together.
    """
    copied = type(error)(*error.args)
    copied.__cause__ = error.__cause__
    return copied


class ResultSlot(Generic[T]):
    """
    A place where one thread leaves a result that another waits for.

    Exactly one thread calls `set()` or `fail()`, once, and one thread waits. Who that is, when a
    result and a time-out come together, is settled where the handoff is registered: a giver
    that took it out of the table will give, so the waiter waits on (see ``client/request.py``).
    """

    __slots__ = ("_error", "_gate", "_value")

    def __init__(self) -> None:
        self._gate = threading.Lock()
        self._gate.acquire()
        self._value: T | None = None
        self._error: BaseException | None = None

    def set(self, value: T) -> None:
        """Leave the result and wake the waiter."""
        self._value = value
        self._gate.release()

    def fail(self, error: BaseException) -> None:
        """Leave an error, which the waiter will raise, and wake the waiter."""
        self._error = error
        self._gate.release()

    def arrived(self, deadline: Deadline) -> bool:
        """Wait until there is a result or an error; say whether one came before the deadline."""
        return self._gate.acquire(timeout=deadline.lock_timeout())

    def result(self) -> T:
        """
        Return the result, after `arrived()` said that there is one.

        Raises:
            BaseException: the error that was left instead.

        """
        if self._error is not None:
            raise fresh(self._error)
        return self._value  # type: ignore[return-value]  # set() came first
