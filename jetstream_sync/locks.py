"""Locks for ``with`` statements; no other module of the package creates such locks."""

# CPython 3.14 handles a signal between `__enter__` of a lock, which is written in C, and the beginning of
# the block, so a Ctrl-C there leaves the lock held for ever. Up to 3.13, and from 3.15 on, it does not.

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from itertools import starmap
from types import TracebackType
from typing import Final, Protocol, cast


class _PlainLock(Protocol):
    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool: ...
    def release(self) -> None: ...
    def __exit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None: ...


class InterruptSafeLock:
    """A lock, or a reentrant one, that an interrupt of ``with lock:`` never leaves held."""

    # `__exit__` stays the method of the plain lock: a signal is handled when a Python function is entered,
    # so one written in Python would be interrupted before it releases.
    __slots__ = ("__exit__", "acquire", "locked", "release")

    def __init__(self, lock: _PlainLock) -> None:
        self.acquire: Callable[..., bool] = lock.acquire
        self.release: Callable[[], None] = lock.release
        self.__exit__: Callable[..., None] = lock.__exit__
        #: ``None``: a reentrant lock has it from Python 3.14 on.
        self.locked: Callable[[], bool] | None = getattr(lock, "locked", None)

    def __enter__(self) -> None:
        # The result is recorded without bytecode in between; see `net.clock.call_and_record`.
        acquired: list[bool] = []
        try:
            acquired.extend(starmap(self.acquire, ((),)))
        except BaseException:
            if acquired:
                self.release()
            raise


_IS_NEEDED: Final = sys.version_info[:2] == (3, 14) and sys.implementation.name == "cpython"


def new_lock() -> threading.Lock:
    """Return a new lock that a Ctrl-C in ``with lock:`` leaves free."""
    # `threading.Lock` is looked up here, because gevent may replace it after this import.
    lock = threading.Lock()
    return cast("threading.Lock", InterruptSafeLock(lock)) if _IS_NEEDED else lock


def new_rlock() -> threading.RLock:
    """Return a new reentrant lock that a Ctrl-C in ``with lock:`` leaves free."""
    lock = threading.RLock()
    return cast("threading.RLock", InterruptSafeLock(lock)) if _IS_NEEDED else lock
