"""Limits on how many handlers run at a time, how often, and for how long; they hold within one process."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final, TypeVar

from .. import errors
from ..locks import new_lock
from ..net.clock import BackoffDelay, Deadline
from .errors import SoftTimeoutError
from .logs import log

T = TypeVar("T")

#: Number of failures in a row after which a handler is paused, at least twice its threads.
_FAILURES: Final = 10
#: The first and the longest pause, in seconds.
_FIRST_PAUSE_S: Final = 1.0
_MAX_PAUSE_S: Final = 60.0

_UNITS: Final = {"s": 1.0, "m": 60.0, "h": 3600.0}
_RATE: Final = re.compile(r"(\d+(?:\.\d+)?)/([smh])", re.ASCII)


def rate_interval(rate: str) -> float:
    """Return the seconds between two starts at a rate such as ``"10/s"``."""
    match = _RATE.fullmatch(rate) if isinstance(rate, str) else None
    if match is None or not float(match[1]):
        raise errors.InvalidOptionError(
            "rate", rate, "must be a number above 0 and a unit, such as '10/s', '600/m' or '1000/h'"
        )
    return _UNITS[match[2]] / float(match[1])


class CircuitBreaker:
    """
    Pauses a handler while all of its messages fail, so that they do not use up their attempts.

    After a number of failures in a row no messages are requested for a second. Then some are tried; after as
    many failures, the pause is twice as long, up to a minute. A success ends that.
    """

    def __init__(self, name: str, threads: int) -> None:
        self._name = name
        #: Number of failures in a row that open it.
        self.limit: int = max(_FAILURES, 2 * threads)
        self._lock = new_lock()
        self._failures = 0
        #: Whether messages have failed since the last success.
        self.has_failures: bool = False
        #: The length of the last pause in seconds; `seconds_left` is the rest of it. After a pause, some messages
        #: are tried. A success resets it to 0, and all messages are requested again.
        self.pause: float = 0.0
        self._pauses = BackoffDelay(_FIRST_PAUSE_S, _MAX_PAUSE_S)
        self._end = Deadline(0)

    @property
    def seconds_left(self) -> float:
        """The rest of the pause in seconds; 0: messages may be requested."""
        return (self._end.left() or 0.0) if self.pause else 0.0

    def succeeded(self) -> None:
        """Note a success; needed if `has_failures`."""
        with self._lock:
            was_paused, self._failures, self.pause = self.pause > 0, 0, 0.0
            self._pauses.reset()
            self.has_failures = False
        if was_paused:
            log.warning("%s: a message was handled, all are requested again", self._name)

    def failed(self) -> None:
        """Note a failure that another message might have as well."""
        with self._lock:
            if self.seconds_left:
                return  # it was requested before the pause
            self._failures += 1
            self.has_failures = True
            if self._failures < self.limit:
                return
            self._failures = 0
            pause = self._pauses.next()
            self._end, self.pause = Deadline(pause), pause
        text = "%s: the last %d messages failed, none is requested for %g s"
        log.error(text, self._name, self.limit, pause)


class Limit:
    """The number of handlers that may run at a time."""

    def __init__(self, count: int) -> None:
        self._changed = threading.Condition()
        self._free = count
        self._urgent = 0  # of the waiting threads
        self._stopped = False

    def acquire(self, *, urgent: bool = False) -> bool:
        """Wait until another handler may run, before those that are not urgent; return false after `stop`."""
        with self._changed:
            self._urgent += urgent
            while not (self._stopped or (self._free and (urgent or not self._urgent))):
                self._changed.wait()
            self._urgent -= urgent
            if urgent:
                self._changed.notify_all()  # the others may have waited for this one
            if self._stopped:
                return False
            self._free -= 1
            return True

    def release(self) -> None:
        """End the run of a handler."""
        with self._changed:
            self._free += 1
            if self._urgent:
                self._changed.notify_all()
            else:
                self._changed.notify()

    def stop(self) -> None:
        """Let no other handler run, and wake the waiting threads."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()


class Gate:
    """Lets the runs of one handler begin, within its limit and at its rate, which is even."""

    def __init__(
        self,
        limit: Limit | None,
        rate: str | None,
        stopped: threading.Event,
        *,
        urgent: bool = False,
    ) -> None:
        self._limit = limit
        self._urgent = urgent
        self._interval = 0.0 if rate is None else rate_interval(rate)
        self._stopped = stopped
        self._lock = new_lock()
        self._next_at = 0.0

    @contextmanager
    def opened(self) -> Iterator[bool]:
        """Wait for the start of a run, and count it for the duration of a block; false: it must not start."""
        if self._limit is None:
            yield self._wait()
        elif not self._limit.acquire(urgent=self._urgent):
            yield False
        else:
            try:
                # The rate comes last: a wait for the limit must not bring two starts together.
                yield self._wait()
            finally:
                self._limit.release()

    def _wait(self) -> bool:
        """Wait for the next start at the rate; return false if the worker stops."""
        if not self._interval:
            return True
        with self._lock:
            now = time.monotonic()
            start = max(now, self._next_at)
            self._next_at = start + self._interval
        return not self._stopped.wait(start - now)


#: Held for an interrupt, and for the end of a limit. A lock for each limit would be registered and dropped while
#: interrupts come, and one that comes in a weakref callback is lost.
_interrupting: Final = new_lock()


class SoftTimeout:
    """The limit of one run of a handler, in the thread that creates it."""

    def __init__(self, seconds: float) -> None:
        self.deadline: Deadline = Deadline(seconds)
        self._thread = threading.get_ident()
        self._runs = True

    def interrupt(self) -> None:
        """Raise in the thread of the handler, if that still runs; called by another thread."""
        import ctypes  # noqa: PLC0415 - for few programs

        with _interrupting:
            if self._runs:
                self._runs = False
                ctypes.pythonapi.PyThreadState_SetAsyncExc(
                    ctypes.c_ulong(self._thread), ctypes.py_object(SoftTimeoutError)
                )

    def end(self) -> None:
        """Prevent an interrupt, and discard one that was sent already; called by the thread itself."""
        # An error that is not raised yet is raised here: at the latest when the lock is released,
        # since the interpreter looks for it after each call. It must not be taken back with a null
        # pointer instead: CPython then looks for an error after every call from there on, and 3.11
        # under a debugger or coverage never returns from that.
        while True:
            try:
                with _interrupting:
                    self._runs = False
                return
            except SoftTimeoutError:
                pass  # it came just now


class SoftTimeouts:
    """The handlers that run with a ``soft_timeout``; another thread calls `tick`."""

    def __init__(self) -> None:
        #: The limits of the runs; changed in single steps, by any thread.
        self.running: set[SoftTimeout] = set()

    def run(self, seconds: float, function: Callable[[], T]) -> T:
        """Call a function, and raise `SoftTimeoutError` in it after a number of seconds."""
        limit = SoftTimeout(seconds)
        self.running.add(limit)
        try:
            return function()
        finally:
            self.running.discard(limit)
            limit.end()

    def tick(self) -> None:
        """Interrupt those whose time is over."""
        for limit in self.running.copy():
            if limit.deadline.expired():
                self.running.discard(limit)
                limit.interrupt()
