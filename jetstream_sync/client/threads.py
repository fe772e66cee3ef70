"""Start threads and timers, and wait for other threads; no other module of the package does the former."""

# Every thread is a daemon, has a name that starts with ``nats-``, and logs an unexpected exception.
# Objects register here for forks and for the exit of the interpreter. Importing starts no thread.
#
# Waits use plain locks. Python raises a KeyboardInterrupt between two bytecodes of the main thread, so in
# the methods of `threading.Condition` and `threading.Event`, which are written in Python, it can leave
# their lock held, and every other thread then blocks. A plain lock in a ``with`` statement is released.

from __future__ import annotations

import _thread
import atexit
import contextlib
import logging
import os
import sys
import threading
import weakref
from collections import deque
from collections.abc import Callable
from types import FrameType
from typing import Final, Protocol

from .. import errors
from ..locks import releases
from ..net.clock import FOREVER, Deadline

log: logging.Logger = logging.getLogger("jetstream_sync.threads")


def caller() -> tuple[str, int]:
    """Return the file and line that called this package, for a warning."""
    package = __name__.partition(".client.")[0]
    frame: FrameType = sys._getframe()  # noqa: SLF001 - documented
    while frame.f_back and f"{frame.f_globals.get('__name__')}.".startswith(f"{package}."):
        frame = frame.f_back
    return frame.f_code.co_filename, frame.f_lineno


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


class Waiters:
    """The threads that wait until a condition holds, without a lock around the condition."""

    # A thread that makes the condition true calls `wake_all()` afterwards.

    def __init__(self) -> None:
        #: One locked lock for each waiting thread, released to wake it.
        self.gates: deque[threading.Lock] = deque()

    def wait_for(self, holds: Callable[[], object], deadline: Deadline) -> bool:
        """Wait until ``holds()`` is true; return whether it is, false after the deadline."""
        while not holds():
            gate = threading.Lock()
            gate.acquire()
            self.gates.append(gate)
            try:
                # Checked again: either this thread sees the change, or its author sees the gate.
                if not holds() and not gate.acquire(timeout=deadline.lock_timeout()):
                    return bool(holds())
            finally:
                with contextlib.suppress(ValueError):  # another thread took it
                    self.gates.remove(gate)
        return True

    def wake_all(self) -> None:
        """Let all waiting threads check their condition."""
        if self.gates:
            with contextlib.suppress(IndexError):
                deque(releases(self.gates), maxlen=0)


class Signal(Waiters):
    """A flag for which threads wait, as with `threading.Event`."""

    def __init__(self) -> None:
        super().__init__()
        self._is_set = False

    def is_set(self) -> bool:
        """Return whether the flag is set."""
        return self._is_set

    def set(self) -> None:
        """Set the flag and wake all waiting threads."""
        wake = releases(self.gates)
        self._is_set = True
        try:  # noqa: SIM105 - without a call
            deque(wake, maxlen=0)
        except IndexError:
            pass  # no more gates

    def clear(self) -> None:
        """Reset the flag."""
        self._is_set = False

    def wait(self, timeout: float | None = None) -> bool:
        """Wait up to ``timeout`` seconds for the flag, ``None``: for ever; return whether it is set."""
        return self.wait_for(self.is_set, FOREVER if timeout is None else Deadline(timeout))


# Keyed by the threads, not a `Thread` subclass or a `threading.local`: these would be created at import,
# and if gevent patches later, they would have the wrong type.
#: The threads of this package, each with the signal that is set at its end.
_ours: weakref.WeakKeyDictionary[threading.Thread, Signal] = weakref.WeakKeyDictionary()


def spawn(
    name: str, target: Callable[[], None], crashed: Callable[[BaseException], None] | None = None
) -> threading.Thread:
    """Start a daemon thread; ``crashed`` is called with what ``target`` raises, also a `SystemExit`."""

    def run() -> None:
        try:
            target()
        except BaseException as error:
            log.exception("thread %s crashed", thread.name)
            if crashed is not None:
                crashed(error)
        finally:
            ended.set()

    def start() -> None:
        try:
            thread.start()
        except RuntimeError as error:
            refused.append(error)
        finally:
            started.release()

    ended = Signal()
    started = threading.Lock()  # held until then
    started.acquire()
    refused: list[RuntimeError] = []
    thread = threading.Thread(target=run, name=f"nats-{name}", daemon=True)
    _ours[thread] = ended
    # `Thread.start` waits for a `threading.Event`, and a KeyboardInterrupt in it could block the new
    # thread. So a thread that is never interrupted calls it.
    _thread.start_new_thread(start, ())
    started.acquire()
    if refused:
        raise refused[0]
    return thread


def spawn_from_finalizer(name: str, target: Callable[[], None]) -> None:
    """Start a daemon thread as `spawn` does, from a finalizer that may interrupt any other code."""
    # Starting a `threading.Thread` takes locks that the interrupted code may hold, so a low-level thread
    # starts it. While the interpreter exits, no thread is started.
    with contextlib.suppress(RuntimeError):
        _thread.start_new_thread(spawn, (name, target))


def call_to_end(
    name: str, call: Callable[[], object], again: Callable[[], object] | None = None
) -> None:
    """Call a function; if a Ctrl-C interrupts it, a thread calls it again, and the Ctrl-C is raised."""
    # `again`: what the thread calls instead. It finds the work of the first call done up to any point.
    try:
        call()
    except KeyboardInterrupt:

        def finish() -> None:
            with contextlib.suppress(
                errors.Error
            ):  # as after a lost connection: the server ends it later
                (again or call)()

        spawn(name, finish)
        raise


def join(thread: threading.Thread, seconds: float | None) -> bool:
    """Wait for the end of a thread that `spawn` has started, and return whether it has ended."""
    # This does not use ``Thread.join(timeout)`` or ``is_alive()``: after a KeyboardInterrupt in one of
    # them, CPython before 3.13 regards the running thread as stopped, and later calls return at once.
    ended = _ours[thread].wait(seconds)
    if ended:
        thread.join()  # a few instructions remain
    return ended


def in_callback() -> bool:
    """Return whether the calling thread is one of this package, as in a callback."""
    return threading.current_thread() in _ours


def start_timer(
    name: str,
    seconds: float,
    target: Callable[[], float | None],
    cancelled: Signal,
    crashed: Callable[[BaseException], None],
) -> None:
    """Start a timer: ``target`` runs on a daemon thread after ``seconds``, and again as it wants."""
    # `target`: returns the seconds until its next call.

    def run() -> None:
        # One thread for all calls: the start of another one could fail.
        wait: float | None = seconds
        while wait is not None and not cancelled.wait(wait):
            wait = target()

    spawn(name, run, crashed)


# Weak references, so that unused connections are collected.
_fork_aware: weakref.WeakSet[ForkAware] = weakref.WeakSet()
_exit_aware: weakref.WeakSet[ExitAware] = weakref.WeakSet()
_renewals: list[Callable[[], None]] = []


def after_fork(member: ForkAware) -> None:
    """Call ``member.forked()`` in every child process that is forked from now on."""
    _fork_aware.add(member)


def in_each_child(renew: Callable[[], None]) -> None:
    """Call a function in every forked child process, and in the children of those, for module state."""
    # `renew`: resets the state of a module; it must not raise.
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


#: The modules with blocking calls that this package uses.
_USED: Final = ("select", "socket", "threading")


def is_gevent() -> bool:
    """Return whether gevent has patched `threading`, so that threads are greenlets."""
    monkey = sys.modules.get("gevent.monkey")
    return monkey is not None and bool(monkey.is_module_patched("threading"))


def interrupt_main_greenlet(error: KeyboardInterrupt) -> None:
    """Raise a Ctrl-C in the main greenlet: under gevent, the signal may arrive in any of them."""
    hub = sys.modules["gevent"].get_hub()
    hub.loop.run_callback(hub.handle_system_error, KeyboardInterrupt, error)


def check_patches() -> None:
    """Raise `Error` if gevent has patched only some of the modules that are used."""
    monkey = sys.modules.get("gevent.monkey")
    if monkey is None:
        return
    patched = [name for name in _USED if monkey.is_module_patched(name)]
    if patched and len(patched) < len(_USED):
        missing = [name for name in _USED if name not in patched]
        raise errors.Error(
            f"gevent has patched {' and '.join(patched)}, but not {' and '.join(missing)}:"
            " call gevent.monkey.patch_all() without exclusions"
        )
