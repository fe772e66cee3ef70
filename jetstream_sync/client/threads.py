"""
The only maker of threads and timers.

Every thread of this package is a daemon, has a name that starts with ``nats-``, and reports a crash
instead of dying in silence. What must know of a fork says so here; importing starts nothing.
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

log = logging.getLogger("jetstream_sync.threads")


class ForkAware(Protocol):
    """Something that is of no use in a forked child."""

    def forked(self) -> None:
        """Become unusable; called in the child, where only the calling thread exists."""
        ...


class ExitAware(Protocol):
    """Something that has work to finish before the interpreter goes."""

    def exiting(self) -> None:
        """Finish, within a second or so."""
        ...


# By themselves, not by a class or a `threading.local` of this module: these would be made at import, and
# where gevent patches later they would be of the wrong kind.
#: The threads of this package, each with what is set at its end.
_ours: weakref.WeakKeyDictionary[threading.Thread, threading.Event] = weakref.WeakKeyDictionary()


def spawn(
    name: str, target: Callable[[], None], crashed: Callable[[Exception], None] | None = None
) -> threading.Thread:
    """
    Start a daemon thread.

    Args:
        name: what comes after ``nats-`` in its name.
        target: what it runs.
        crashed: called on the thread with an error that ``target`` let through; ``None``: the
            error is only logged.

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
    Start a daemon thread as `spawn` does, from code that may run in the middle of any other.

    Starting a `threading.Thread` takes locks that the interrupted code may hold. So it is started by a
    thread of the lower level. When the interpreter is going, nothing is started.
    """
    with contextlib.suppress(RuntimeError):
        _thread.start_new_thread(spawn, (name, target))


def join(thread: threading.Thread, seconds: float) -> bool:
    """
    Wait for the end of a thread that `spawn` has started, and return whether it has ended.

    Not ``Thread.join(timeout)``, nor ``is_alive()`` after it: where a KeyboardInterrupt strikes in one
    of them, CPython before 3.13 takes the thread for stopped while it runs, and later calls return at
    once.

    Args:
        thread: which one; not the calling thread.
        seconds: how long to wait; 0 only looks.

    """
    ended = _ours[thread].wait(seconds)
    if ended:
        thread.join()  # it has a few instructions left
    return ended


def in_callback() -> bool:
    """Say whether user code that calls this was called by a thread of this package."""
    return threading.current_thread() in _ours


def start_timer(name: str, seconds: float, target: Callable[[], None]) -> threading.Timer:
    """
    Start a timer: ``target`` runs once on a daemon thread after ``seconds``, unless cancelled.

    Args:
        name: what comes after ``nats-`` in the thread's name.
        seconds: how long to wait.
        target: what to run; it must not raise.

    """
    timer = threading.Timer(seconds, target)
    timer.name = f"nats-{name}"
    timer.daemon = True
    timer.start()
    return timer


# Weak, so that a connection which nobody uses any more can go.
_fork_aware: weakref.WeakSet[ForkAware] = weakref.WeakSet()
_exit_aware: weakref.WeakSet[ExitAware] = weakref.WeakSet()
_renewals: list[Callable[[], None]] = []


def after_fork(member: ForkAware) -> None:
    """Have ``member.forked()`` called in every child process that is forked from now on."""
    _fork_aware.add(member)


def in_each_child(renew: Callable[[], None]) -> None:
    """
    Have a function called in every child process, and in theirs, for what belongs to a module.

    Args:
        renew: replaces locks that a thread of the parent may have held; it must not raise.

    """
    _renewals.append(renew)


def _tell_child() -> None:
    for renew in _renewals:
        renew()
    for member in list(_fork_aware):
        member.forked()
    _fork_aware.clear()
    _exit_aware.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_tell_child)


def at_exit(member: ExitAware) -> None:
    """Have ``member.exiting()`` called when the interpreter exits in the usual way."""
    _exit_aware.add(member)


@atexit.register
def _tell_exiting() -> None:
    for member in list(_exit_aware):
        member.exiting()
