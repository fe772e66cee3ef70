"""Locks that neither a Ctrl-C nor a fork leaves held, and steps that a Ctrl-C does not separate."""

# The client takes all its locks for ``with`` statements from here. The conditions of workers and of ``jsm`` have
# plain ones.
#
# CPython 3.14 handles a signal between `__enter__` of a lock, which is written in C, and the beginning of
# the block, so a Ctrl-C there leaves the lock held for ever. Up to 3.13, and from 3.15 on, it does not.
#
# In a forked child every lock is free: a thread of the parent may have held it, and does not exist there. Under gevent
# it exists, and releases the lock. A signal handler that forks must not return in the child: the code that it
# interrupted may hold a lock.

from __future__ import annotations

import os
import sys
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from itertools import islice, starmap
from operator import methodcaller
from types import TracebackType
from typing import Any, Final, Protocol, TypeVar, cast

T = TypeVar("T")


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
        # The result is recorded without bytecode in between; see `call_and_record`.
        acquired: list[bool] = []
        try:
            acquired.extend(starmap(self.acquire, ((),)))
        except BaseException:
            if acquired:
                self.release()
            raise


# By id, so that a new item takes the entry of one that is gone. Not a `weakref.WeakSet`: its callback is written in
# Python, and a Ctrl-C or another interrupt that is raised in it would be lost.
_inherited: Final[dict[int, weakref.ref[Any]]] = {}


def reinit_in_child(item: object) -> None:
    """Call ``item._at_fork_reinit()`` in each forked child, at the same time as for the locks."""
    _inherited[id(item)] = weakref.ref(item)


def _reinit_all() -> None:
    for known in list(_inherited.values()):
        item = known()
        if item is not None:
            item._at_fork_reinit()  # noqa: SLF001 - as `threading` and `logging` do


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_reinit_all)

_IS_NEEDED: Final = sys.version_info[:2] == (3, 14) and sys.implementation.name == "cpython"


def _registered(lock: _PlainLock) -> object:
    if type(lock).__module__ == "_thread":  # not one of gevent
        reinit_in_child(lock)
    return InterruptSafeLock(lock) if _IS_NEEDED else lock


def new_lock() -> threading.Lock:
    """Return a new lock that a Ctrl-C in ``with lock:`` and a fork leave free."""
    # `threading.Lock` is looked up here, because gevent may replace it after this import.
    return cast("threading.Lock", _registered(threading.Lock()))


def new_rlock() -> threading.RLock:
    """Return a new reentrant lock that a Ctrl-C in ``with lock:`` and a fork leave free."""
    return cast("threading.RLock", _registered(threading.RLock()))


def call_and_record(results: list[T], function: Callable[..., T], *args: object) -> None:
    """
    Call a function written in C, and append its result to a list.

    Python handles a signal between two instructions of its bytecode. No bytecode runs between the call
    and the append, so a `KeyboardInterrupt` comes before the call or finds the result in the list. To
    acquire a lock with a timeout::

        acquired: list[bool] = []
        try:
            call_and_record(acquired, lock.acquire, True, timeout)
            ...
        finally:
            if True in acquired:
                lock.release()
    """
    results.extend(starmap(function, (args,)))


# Not `threading.Lock.release`: gevent may replace the class after this import.
_release: Final[Callable[[threading.Lock], None]] = methodcaller("release")


def releases(gates: deque[threading.Lock], count: int | None = None) -> Iterator[None]:
    """
    Return an iterator that removes gates from a queue and releases them, each by one thread only.

    No KeyboardInterrupt separates a change from the wake-up of the threads that wait for it, because no
    bytecode runs in between::

        wake = releases(gates)
        self.closed = True
        try:
            deque(wake, maxlen=0)
        except IndexError:
            pass  # no more gates
    """
    return map(_release, islice(iter(gates.popleft, None), count))
