"""
Limits on how many handlers run at a time, how often, and for how long: within one process, and in all processes.

Rules of the limits of all processes, which are for calls of tasks:

1. A limit is a key of a bucket, or one for each value of ``limit_key``. Its value has the part of each process,
   and a token bucket for starts; it changes by compare and set, and `divide` decides what it becomes.
2. A process asks once for a slice of time: it gets a number of calls that it may run, and a number of starts.
   Within them, calls begin and end without a request. What it does not use is given back after the slice.
3. The part of a process that has died lapses after its time to live. A process that cannot renew its part starts
   nothing any more before that.
4. No process has more than its fair part while another one has to wait.
5. A call that may not start waits without a thread, if it can start within a slice. Otherwise it is sent again as
   a schedule, and holds no place of its consumer either.
6. Times are those of the server: the clocks of the processes may differ.
"""

from __future__ import annotations

import json
import random
import re
import threading
import time
import uuid
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar
from urllib.parse import quote

from .. import KeyValueConfig, codec, errors
from ..converters import MISFITS
from ..exact import exact, take_values
from ..locks import new_lock
from ..net.clock import BackoffDelay, Deadline
from .checks import check_count, check_option
from .deliveries import lease_clock
from .errors import SoftTimeoutError
from .logs import log

if TYPE_CHECKING:
    from .. import KeyValueEntry
    from .openers import BucketOpener

T = TypeVar("T")

#: Number of failures in a row after which a handler is paused, at least twice its threads.
_FAILURES: Final = 10
#: The first and the longest pause, in seconds.
_FIRST_PAUSE_S: Final = 1.0
_MAX_PAUSE_S: Final = 60.0

_UNITS: Final = {"s": 1.0, "m": 60.0, "h": 3600.0}
_RATE: Final = re.compile(r"(\d+(?:\.\d+)?)/([smh])", re.ASCII)

#: The bucket, and how long it keeps the key of a limit that is not used.
LIMITS_BUCKET: Final = "TASK_LIMITS"
_KEEP: Final = timedelta(days=30)
LIMITS: Final = KeyValueConfig(bucket=LIMITS_BUCKET, ttl=_KEEP)
#: The time for which a process gets starts and keeps what it does not use, in seconds.
SLICE_S: Final = 0.5
#: The time to live of the part of a process, and the time in which the process uses it, in seconds.
PART_TTL_S: Final = 10.0
_PART_USED_S: Final = 7.0
_PART_RENEWED_S: Final = 3.0
#: The shortest and the longest delay of a call that has to wait, and the largest step between two of them.
_MIN_DELAY_S: Final = 0.25
_MAX_DELAY_S: Final = 60.0
_MAX_STEP_S: Final = 1.0
_MIN_STEP_S: Final = 0.005
#: Half a slice, and the interval at which parts are looked after, in seconds.
_HALF_S: Final = SLICE_S / 2
_TICK_S: Final = SLICE_S / 4
#: What a call is expected to take at first, in seconds.
_FIRST_SECONDS: Final = 0.1
#: The share of the expected delay after which a call returns: the estimate may be too long.
_EARLY: Final = 0.5
#: Interval at which the clock of the server is read, in seconds.
_CLOCK_S: Final = 60.0
_REPEAT_LOG_S: Final = 60.0
#: Longest end of a key.
_MAX_KEY: Final = 200


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
        self, limit: Limit | None, rate: str | None, stopped: threading.Event, urgent: bool
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


# --- limits of all processes --------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class SharedLimitRule:
    """A limit that holds for all processes; see `Worker.limit`."""

    name: str
    concurrency: int | None = None
    """How many calls may run at a time; ``None``: any number."""
    rate: str | None = None
    """How many may start, such as ``"10/s"``; ``None``: any number."""

    def __post_init__(self) -> None:
        """Check the values."""
        take_values(self)
        given = self.concurrency is not None or self.rate is not None
        check_option("concurrency", None, given, "is needed, or 'rate'")
        if self.concurrency is not None:
            check_count("concurrency", self.concurrency)
        if self.rate is not None:
            ok = rate_interval(self.rate) < _KEEP.total_seconds()
            check_option("rate", self.rate, ok, f"must be at least one start in {_KEEP.days} days")

    @property
    def interval(self) -> float:
        """The time between two starts at the rate, in seconds; 0: there is no rate."""
        return 0.0 if self.rate is None else rate_interval(self.rate)


class LimitUse(NamedTuple):
    """How a task uses a limit."""

    rule: SharedLimitRule
    key_of: Callable[[bytes], str]
    """Returns the key in the bucket for the payload of a call."""


# --- decisions ----------------------------------------------------------------------------------


class Part(NamedTuple):
    """What a process has of a limit."""

    slots: int
    """How many calls it may run, or runs."""
    wanted: int
    """How many more it would run."""
    until: float
    """When it lapses, in seconds since 1970."""


class LimitState(NamedTuple):
    """The value of the key of a limit."""

    parts: Mapping[str, Part]
    tokens: float
    """How many calls may start."""
    at: float
    """The time of that number, in seconds since 1970."""

    def to_json(self) -> bytes:
        """Return the value as it is stored."""
        return json.dumps(self).encode()

    @classmethod
    def from_json(cls, data: bytes) -> LimitState:
        """Return a stored value; raise `InvalidResponseError` if it is none."""
        try:
            parts, tokens, at = codec.loads(data)
            found = {
                name: Part(max(0, int(slots)), max(0, int(wanted)), float(until))
                for name, (slots, wanted, until) in parts.items()
            }
            return cls(found, max(0.0, float(tokens)), float(at))
        except MISFITS as error:
            text = f"the bucket {LIMITS_BUCKET} has other data for a limit: {error}"
            raise errors.InvalidResponseError(text) from error


class Share(NamedTuple):
    """What a process gets for a slice."""

    slots: int
    """How many calls it may run at a time."""
    starts: int
    """How many may start."""
    processes: int
    """How many processes use the limit."""


class Need(NamedTuple):
    """What a process asks for."""

    running: int
    """How many calls it runs."""
    slots: int
    """How many it would run at a time."""
    starts: int
    """How many would start now."""


def divide(
    state: LimitState | None, rule: SharedLimitRule, me: str, need: Need, now: float
) -> tuple[LimitState, Share]:
    """Return the state after a process has asked, and what the process gets."""
    most = max(1.0, _HALF_S / rule.interval) if rule.interval else 0.0
    if state is None:
        state = LimitState({}, most, now)
    # After the clock of the server was set back, stored times may be far ahead: the lower ones are stored.
    latest = now + PART_TTL_S
    living = {
        name: part._replace(until=min(part.until, latest))
        for name, part in state.parts.items()
        if part.until > now
    }
    at = min(state.at, latest)
    mine = living.pop(me, None)
    slots = need.slots
    if rule.concurrency is not None:
        slots = min(slots, max(0, rule.concurrency - sum(part.slots for part in living.values())))
        if any(part.wanted for part in living.values()):
            fair = rule.concurrency // (len(living) + 1)
            starved = any(part.wanted and not part.slots for part in living.values())
            # One that has a part makes room for one that has none, which may then take at least one.
            slots = min(slots, fair if starved and mine and mine.slots else max(1, fair))
    tokens, starts = 0.0, need.starts
    if rule.interval:
        # A clock that is behind that of another process adds nothing until it has caught up.
        tokens = min(most, state.tokens + max(0.0, now - at) / rule.interval)
        starts = min(starts, int(tokens)) if slots > need.running else 0
        tokens -= starts
    held = max(need.running, slots)
    part = Part(held, max(0, need.slots - held), latest)
    parts = {**living, me: part} if part.slots or part.wanted else living
    return LimitState(parts, tokens, max(at, now)), Share(slots, starts, len(living) + 1)


def step_of(rule: SharedLimitRule, seconds: float, processes: int) -> float:
    """Return the expected time between two starts of calls of a process, which run for some seconds."""
    per_call = seconds / rule.concurrency if rule.concurrency else 0.0
    return max(_MIN_STEP_S, max(rule.interval, per_call) * processes)


# --- the limits of a process --------------------------------------------------------------------


class SharedLimit:
    """The part of one limit that this process has; any thread may call the methods."""

    def __init__(self, rule: SharedLimitRule, key: str, limits: SharedLimits) -> None:
        self._rule = rule
        self._key = key
        self._limits = limits
        # Held for a request; the other lock is taken within it.
        self._asking = new_lock()
        self._lock = new_lock()
        #: Number of calls that run, wait or are about to begin; changed under the lock of `SharedLimits`.
        self.users: int = 0
        self._running = self._peak = self._refused = 0
        self._share = Share(0, 0, 1)
        # What continues the calls that wait here, without a thread; the first one waits longest.
        self._waiting: deque[Callable[[], object]] = deque()
        # Times by the lease clock: of the last request, and of the last one that did not get everything.
        self._asked_at = self._full_at = -PART_TTL_S
        self._seconds = _FIRST_SECONDS
        self._line = 0.0

    def begin(self) -> bool:
        """Return whether a call may run now; if so, `end` follows."""
        with self._lock:
            if self._take():
                return True
            self._refused += 1
        with self._asking:
            with self._lock:
                if self._take():
                    return True
                if lease_clock() < self._full_at + _HALF_S:
                    return False
            self._ask()
            with self._lock:
                return self._take()

    def _take(self) -> bool:
        """Begin a call within the share; used under the lock."""
        if self._free() <= 0:
            return False
        self._running += 1
        self._peak = max(self._peak, self._running)
        self._share = self._share._replace(starts=self._share.starts - 1)
        return True

    def _free(self) -> int:
        """Return how many calls may begin; used under the lock."""
        age = lease_clock() - self._asked_at
        free = self._share.slots - self._running if age < _PART_USED_S else 0
        if self._rule.interval:
            free = min(free, self._share.starts if age < _HALF_S else 0)
        return free

    def end(self, seconds: float) -> None:
        """End a call that has run for some seconds."""
        with self._lock:
            self._running -= 1
            self._seconds += (seconds - self._seconds) / 8
        self.resume()

    def wait(self, resume: Callable[[], object]) -> float | None:
        """
        Have a call that may not run wait here, if it can run soon; return the delay of one that cannot.

        ``resume`` is called when the call may try again, by any thread.
        """
        with self._lock:
            step = step_of(self._rule, self._seconds, self._share.processes)
            if len(self._waiting) < max(1, int(SLICE_S / step)) and not self._limits.is_stopped:
                self._waiting.append(resume)
                return None
            now = lease_clock()
            self._line = max(self._line, now + _MIN_DELAY_S) + min(step * _EARLY, _MAX_STEP_S)
            longest = _MAX_DELAY_S * random.uniform(0.5, 1.0)  # noqa: S311 - not a secret
            return min(self._line - now, longest)

    def resume(self, *, all_waiting: bool = False) -> None:
        """Have waiting calls try again: those that may begin, or all of them."""
        with self._lock:
            count = len(self._waiting) if all_waiting else min(self._free(), len(self._waiting))
            found = [self._waiting.popleft() for _ in range(count)]
        for resume in found:
            resume()

    def tick(self) -> bool:
        """Give back what is not used, and renew the rest; return whether the limit is still in use."""
        with self._lock:
            age = lease_clock() - self._asked_at
            wanted = self._refused + len(self._waiting)
            has_part = self._running > 0 or self._share.slots > 0
            if wanted and self._rule.interval:
                is_due = age >= _HALF_S - _TICK_S / 2
            elif wanted or self._share.slots > self._running:
                is_due = (has_part or bool(self._waiting)) and age >= SLICE_S
            else:
                is_due = has_part and age >= _PART_RENEWED_S
        if is_due:
            with self._asking:
                self._ask()
            self.resume()
        return has_part or wanted > 0 or age < _CLOCK_S

    def stop(self) -> bool:
        """Give back what does not run; return whether the server has replied."""
        with self._asking:
            with self._lock:
                self._peak = self._refused = 0
                has_part = self._running > 0 or self._share.slots > 0
            return self._ask() if has_part else True

    def _ask(self) -> bool:
        """Ask for a slice; return whether there was a reply. The caller holds the lock for requests."""
        with self._lock:
            # No call begins until it is known what the process has.
            self._share = self._share._replace(
                slots=min(self._share.slots, self._running), starts=0
            )
            running, wanted = self._running, self._refused + len(self._waiting)
            need = Need(running, max(self._peak, running + wanted), wanted)
            self._peak, self._refused = running, 0
            began = lease_clock()
        share = self._limits.ask(self._rule, self._key, need)
        with self._lock:
            self._asked_at = began
            if share is None or share.slots < need.slots or share.starts < need.starts:
                self._full_at = lease_clock()
            if share is not None:
                self._share = share
        return share is not None


class SharedLimits:
    """
    The limits of all processes, as one process uses them.

    Args:
        opener: opens the bucket and its stream.

    """

    def __init__(self, opener: BucketOpener) -> None:
        self._opener = opener
        self._me = uuid.uuid4().hex[:12]
        self._limits: dict[str, SharedLimit] = {}
        self._lock = new_lock()
        #: Whether no call may wait here any more.
        self.is_stopped: bool = False
        # By how much the clock of the server is ahead of the lease clock, and when that was read.
        self._ahead, self._read_at = 0.0, -_CLOCK_S
        self._logged_at = -_REPEAT_LOG_S

    def enter(self, rule: SharedLimitRule, key: str) -> SharedLimit:
        """Return the limit with a key; `leave` follows."""
        with self._lock:
            found = self._limits.get(key)
            if found is None:
                found = self._limits[key] = SharedLimit(rule, key, self)
            found.users += 1
            return found

    def leave(self, limit: SharedLimit) -> None:
        """Note that a call does not use its limit any more."""
        with self._lock:
            limit.users -= 1

    def ask(self, rule: SharedLimitRule, key: str, need: Need) -> Share | None:
        """Ask for a slice; ``None``: it is not known what the process has."""
        found: Share | None = None

        def changed(entry: KeyValueEntry | None) -> bytes:
            nonlocal found
            state = None if entry is None else LimitState.from_json(entry.value)
            state, found = divide(state, rule, self._me, need, lease_clock() + self._ahead)
            return state.to_json()

        try:
            if lease_clock() >= self._read_at + _CLOCK_S:
                info = self._opener.use(lambda opened: opened[1].info())
                assert info.ts is not None  # the server has schedules
                self._read_at = lease_clock()
                self._ahead = info.ts.timestamp() - self._read_at
            self._opener.use(lambda opened: opened[0].modify(key, changed))
        except errors.Error as error:
            if lease_clock() >= self._logged_at + _REPEAT_LOG_S:
                self._logged_at = lease_clock()
                log.error("limit %s: it cannot be used, its calls wait: %s", rule.name, error)  # noqa: TRY400
            return None
        return found

    def run(self, ended: threading.Event) -> None:
        """Give back and renew parts until the worker has ended; the function of a thread."""
        while not ended.wait(_TICK_S):
            limits = self._limits.copy()
            unused = [key for key, limit in limits.items() if not limit.tick()]
            with self._lock:
                for key in unused:
                    if not limits[key].users:
                        del self._limits[key]

    def stop(self) -> None:
        """Return the waiting calls to the server, and give back the parts of this process, which stops."""
        self.is_stopped = True
        for limit in self._limits.copy().values():
            limit.resume(all_waiting=True)
        # At the first error, the other parts are left to their times to live: the server may be silent.
        all(limit.stop() for limit in self._limits.copy().values())


def key_of(name: str, value: Any) -> str:
    """Return the key of a limit for a result of ``limit_key``; raise `TypeError` or `ValueError`."""
    if value is None:
        return name
    if not isinstance(value, (str, int)):
        raise TypeError(f"limit_key returned a {type(value).__name__}, not a str or an int")
    text = quote(str(exact(value)), safe="", errors="surrogatepass").replace("%", "=")
    text = text.replace(".", "=2E").replace("~", "=7E")
    if len(text) > _MAX_KEY:
        raise ValueError(f"limit_key returned a text that is too long: {text[:60]}...")
    return f"{name}.={text}"
