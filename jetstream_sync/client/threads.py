"""
Start threads and timers; no other module of the package does.

Every thread is a daemon, has a name that starts with ``nats-``, and logs an unexpected exception.
Objects register here for forks and for the exit of the interpreter. Importing starts no thread.
"""

from __future__ import annotations

import _thread
import atexit
import contextlib
import logging
import os
import threading
import weakref
from collections.abc import Callable
from typing import Protocol

__all__ = [
    "ExitAware",
    "ForkAware",
    "after_fork",
    "at_exit",
    "in_callback",
    "in_each_child",
    "join",
    "spawn",
    "spawn_from_finalizer",
    "start_timer",
]

log: logging.Logger = logging.getLogger("jetstream_sync.threads")


class ForkAware(Protocol):
    """An object that cannot be used in a forked child."""

    def forked(self) -> None:
        """Become unusable; called in the child, where only the calling thread exists."""
        ...


class ExitAware(Protocol):
    """An object with work to complete before the interpreter exits."""

    def exiting(self) -> None:
        """Complete the work, within about a second."""
        ...


# Keyed by the threads, not a `Thread` subclass or a `threading.local`: these would be created at import,
# and if gevent patches later, they would have the wrong type.
#: The threads of this package, each with the event that is set at its end.
_ours: weakref.WeakKeyDictionary[threading.Thread, threading.Event] = weakref.WeakKeyDictionary()


def spawn(
    name: str, target: Callable[[], None], crashed: Callable[[Exception], None] | None = None
) -> threading.Thread:
    """
    Start a daemon thread.

    Args:
        name: the name of the thread, without the prefix ``nats-``.
        target: the function to run.
        crashed: called on the thread with an exception raised by ``target``; ``None``: it is only
            logged.

    Returns:
        The running thread.

    """

    def run() -> None:
        try:
            target()
        except Exception as error:
            log.exception("thread %s crashed", thread.name)
            if crashed is not None:
                crashed(error)
        finally:
            ended.set()

    ended = threading.Event()
    thread = threading.Thread(target=run, name=f"nats-{name}", daemon=True)
    _ours[thread] = ended
    thread.start()
    return thread


def spawn_from_finalizer(name: str, target: Callable[[], None]) -> None:
    """
    Start a daemon thread as `spawn` does, from a finalizer that may interrupt any other code.

    Starting a `threading.Thread` takes locks that the interrupted code may hold, so a low-level thread
    starts it. While the interpreter exits, no thread is started.
    """
    with contextlib.suppress(RuntimeError):
        _thread.start_new_thread(spawn, (name, target))


def join(thread: threading.Thread, seconds: float) -> bool:
    """
    Wait for the end of a thread that `spawn` has started, and return whether it has ended.

    This does not use ``Thread.join(timeout)`` or ``is_alive()``: after a KeyboardInterrupt in one of
    them, CPython before 3.13 regards the running thread as stopped, and later calls return at once.

    Args:
        thread: the thread; not the calling one.
        seconds: how long to wait; 0: do not wait.

    """
    ended = _ours[thread].wait(seconds)
    if ended:
        thread.join()  # a few instructions remain
    return ended


def in_callback() -> bool:
    """Return whether the calling thread is one of this package, as in a callback."""
    return threading.current_thread() in _ours


def start_timer(name: str, seconds: float, target: Callable[[], None]) -> threading.Timer:
    """
    Start a timer: ``target`` runs once on a daemon thread after ``seconds``, unless cancelled.

    Args:
        name: the name of the thread, without the prefix ``nats-``.
        seconds: how long to wait.
        target: the function to run; it must not raise.

    """
    timer = threading.Timer(seconds, target)
    timer.name = f"nats-{name}"
    timer.daemon = True
    timer.start()
    return timer


# Weak references, so that unused connections are collected.
_fork_aware: weakref.WeakSet[ForkAware] = weakref.WeakSet()
_exit_aware: weakref.WeakSet[ExitAware] = weakref.WeakSet()
_renewals: list[Callable[[], None]] = []


def after_fork(member: ForkAware) -> None:
    """Call ``member.forked()`` in every child process that is forked from now on."""
    _fork_aware.add(member)


def in_each_child(renew: Callable[[], None]) -> None:
    """
    Call a function in every forked child process, and in the children of those, for module state.

    Args:
        renew: replaces locks that a thread of the parent may have held; it must not raise.

    """
    _renewals.append(renew)


def _tell_child() -> None:
    for renew in _renewals:
        renew()
    # All are told, also if one raises, which Python then reports.
    with contextlib.ExitStack() as calls:
        for member in list(_fork_aware):
            calls.callback(member.forked)
        _fork_aware.clear()
        _exit_aware.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_tell_child)


def at_exit(member: ExitAware) -> None:
    """Call ``member.exiting()`` when the interpreter exits normally."""
    _exit_aware.add(member)


@atexit.register
def _tell_exiting() -> None:
    with contextlib.ExitStack() as calls:
        for member in list(_exit_aware):
            calls.callback(member.exiting)
