"""A slot for one result that one thread passes to another."""

from __future__ import annotations

import threading
from typing import Generic, TypeVar

from ..net.clock import Deadline

T = TypeVar("T")


def copy_exception(error: BaseException) -> BaseException:
    """
    Return a copy of an error, for raising it in several threads.

    One error may wake many threads; raising one shared object would mix their tracebacks.
    """
    copied = type(error)(*error.args)
    copied.__cause__ = error.__cause__
    return copied


class ResultSlot(Generic[T]):
    """
    Passes one result from one thread to another that waits for it.

    Exactly one thread calls `set()` or `fail()`, once, and one thread waits. If a result and a timeout
    coincide, the table where the slot is registered decides: a thread that removed the slot from the
    table will set it, so the waiting thread continues to wait (see ``client/request.py``).
    """

    __slots__ = ("_error", "_gate", "_value")

    def __init__(self) -> None:
        self._gate = threading.Lock()
        self._gate.acquire()
        self._value: T | None = None
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
        return not self._gate.locked()

    def arrived(self, deadline: Deadline) -> bool:
        """Wait for a result or an error; return whether one arrived before the deadline."""
        return self._gate.acquire(timeout=deadline.lock_timeout())

    def result(self) -> T:
        """Return the result, after `arrived()` has returned ``True``."""
        if self._error is not None:
            raise copy_exception(self._error)
        return self._value  # type: ignore[return-value]  # set() came first
