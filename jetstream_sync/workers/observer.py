"""
What happens in a worker, as hooks and as counters.

Rules:

1. Counters belong to a thread, and are added up when they are read. The messages that a thread has handled
   within some milliseconds are counted together, or when the counters are read: no lock is taken for a message.
   All durations of a message are counted when its handler has ended.
2. A hook runs on the thread of its event: a handler thread, or the thread that called `Worker.run`.
   Hooks for lost leases run on the latter, because a slow hook must not delay the renewal of leases.
3. A hook that raises is logged once with its traceback. It changes nothing for the message.
"""

from __future__ import annotations

import heapq
import logging
import threading
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any, Final, Literal, TypedDict, get_args

from ..locks import new_lock
from .deliveries import DeliveryObserver, DeliveryState, LeasedMessage, lease_clock
from .logs import log, outcome_log

if TYPE_CHECKING:
    from .. import JetStreamMsg
    from .handler import Handler

WorkerEventKind = Literal[
    "start", "ready", "message", "success", "failure", "dead_letter", "lease_lost", "drain", "stop"
]
#: The outcomes of a delivery; the label ``outcome`` of a metric.
OUTCOMES: Final = ("ack", "retry", "dead", "rejected", "lost", "given_back")
#: Other things that are counted for a handler, with their help.
COUNTERS: Final = {
    "leases_renewed": "Leases that were renewed.",
    "leases_lost": "Leases that were lost: the message is delivered again.",
    "settle_retries": "Acknowledgements and the like that were sent again.",
    "dead_letter_failures": "Dead letters that could not be stored.",
    "timeouts": "Handlers that exceeded their timeout.",
    "restarts": "Processes that ended and were replaced.",
    "unknown_tasks": "Deliveries of calls of tasks that the worker does not have.",
}
#: The durations of a message, with their help.
DURATIONS: Final = {
    "duration": "Run time of the handler.",
    "wait": "Time from the receipt of a message to the start of its handler.",
    "age": "Time from storing a message to the start of its handler.",
}
#: Upper bounds of the histograms, in seconds.
BUCKETS_S: Final = (
    *(0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0),
    *(30.0, 60.0, 120.0, 300.0, 600.0, 3600.0),
)

#: Interval at which a thread counts the messages that it has handled, in seconds, and their largest number.
_COUNT_INTERVAL_S: Final = 0.005
_MAX_RECENT: Final = 100


@dataclass(frozen=True, kw_only=True)
class WorkerEvent:
    """Something that happened in a worker; the argument of the functions of `Worker.on`."""

    kind: WorkerEventKind
    """The name of the event."""
    worker: str
    """The name of the worker."""
    handler: Handler | None = None
    """The handler; ``None`` for the events ``start``, ``ready``, ``drain`` and ``stop``."""
    message: JetStreamMsg | None = None
    """The message; ``None`` for the same events."""
    error: BaseException | None = None
    """The error of the handler, for ``failure`` and ``dead_letter``; ``None`` if it did not run."""
    delay: float | None = None
    """For ``failure``: seconds until the next attempt; ``None`` if there is none."""
    status: int | None = None
    """For ``stop``: the exit status."""


#: A function of `Worker.on`.
Hook = Callable[[WorkerEvent], object]


class Observer:
    """The observer of one run of a worker."""

    def __init__(
        self,
        worker: str,
        hooks: dict[WorkerEventKind, list[Hook]],
        defer: Callable[[Callable[[], object]], object],
    ) -> None:
        self._worker = worker
        self.hooks = hooks
        self._failed: set[Hook] = set()
        self.defer = defer
        self.handlers: list[HandlerObserver] = []

    def handler(self, handler: Handler) -> HandlerObserver:
        """Return the observer of a handler; the same for each call."""
        for item in self.handlers:
            if item.handler is handler:
                return item
        self.handlers.append(HandlerObserver(handler, self))
        return self.handlers[-1]

    def wants(self, kind: WorkerEventKind) -> bool:
        """Return whether there are hooks of this kind."""
        return bool(self.hooks.get(kind))

    def emit(self, kind: WorkerEventKind, **fields: Any) -> None:
        """Call the hooks of this kind; their errors are logged."""
        for hook in self.hooks.get(kind, ()):
            try:
                hook(WorkerEvent(kind=kind, worker=self._worker, **fields))
            except BaseException as error:
                level = logging.DEBUG if hook in self._failed else logging.ERROR
                self._failed.add(hook)
                log.log(level, "hook %r for %r raised", hook, kind, exc_info=error)


class HistogramSnapshot(TypedDict):
    """A histogram of durations."""

    counts: list[int]
    """The counts of `BUCKETS_S`, and of everything above."""
    total: float
    """The sum in seconds."""


class Histogram:
    """Counts of durations, in `BUCKETS_S` and above."""

    __slots__ = ("counts", "total")

    def __init__(self) -> None:
        self.counts: list[int] = [0] * (len(BUCKETS_S) + 1)
        #: The sum of all values, in seconds.
        self.total: float = 0.0

    def add(self, values: Sequence[float]) -> None:
        """Count durations in seconds."""
        self.total += sum(values)
        first, last = bisect_left(BUCKETS_S, min(values)), bisect_left(BUCKETS_S, max(values))
        if first == last:
            self.counts[first] += len(values)
        else:
            for seconds in values:
                self.counts[bisect_left(BUCKETS_S, seconds)] += 1

    def merge(self, other: Histogram) -> None:
        """Add the counts of another one."""
        self.counts = [a + b for a, b in zip(self.counts, other.counts, strict=True)]
        self.total += other.total

    def snapshot(self) -> HistogramSnapshot:
        """Return the current counts."""
        return {"counts": list(self.counts), "total": self.total}


class ThreadCounters:
    """Numbers of one handler that one thread changes."""

    __slots__ = ("_lock", "counts", "due", "durations", "last_success", "recent")

    def __init__(self) -> None:
        #: The acknowledged messages that are not counted yet.
        self.recent: deque[LeasedMessage] = deque()
        #: Time when the next one has them counted.
        self.due: float = 0.0
        # Held while they are counted.
        self._lock = new_lock()
        self.counts: dict[str, int] = dict.fromkeys((*OUTCOMES, *COUNTERS), 0)
        self.durations: dict[str, Histogram] = {name: Histogram() for name in DURATIONS}
        #: Time of the last acknowledgement by the lease clock; 0: none was.
        self.last_success: float = 0.0

    def count_recent(self, clock_offset: float, failed: LeasedMessage | None = None) -> None:
        """Count the acknowledged messages whose handler has ended, and one that has failed; for any thread."""
        with self._lock:
            recent = [self.recent.popleft() for _ in range(len(self.recent))]
            self.counts["ack"] += len(recent)
            if recent:
                self.last_success = recent[-1].ended_at
            if failed is not None:
                recent.append(failed)
            if recent:
                self.due = recent[-1].ended_at + _COUNT_INTERVAL_S
                ages = [item.started_at + clock_offset - item.stored_ns / 1e9 for item in recent]
                durations = {
                    "duration": [item.ended_at - item.started_at for item in recent],
                    "wait": [item.started_at - item.lease.received_at for item in recent],
                    "age": [max(0.0, age) for age in ages] if min(ages) < 0 else ages,
                }
                for name, seconds in durations.items():
                    self.durations[name].add(seconds)


def _clock_offset() -> float:
    """Return the seconds since 1970, less the lease clock."""
    return datetime.now(timezone.utc).timestamp() - lease_clock()


class HandlerObserver(DeliveryObserver):
    """The observer of one handler, for any thread."""

    def __init__(self, handler: Handler, observer: Observer) -> None:
        self.handler = handler
        self._observer = observer
        # The functions to call: functions may be added while the worker runs.
        self._hooks = observer.hooks
        self._own = threading.local()
        self._all: list[ThreadCounters] = []
        self._lock = new_lock()
        # Times by the lease clock at which the delays of retries are over; under _lock.
        self._delayed: list[float] = []
        self._clock_offset = _clock_offset()

    def _counters(self) -> ThreadCounters:
        try:
            counters: ThreadCounters = self._own.counters
        except AttributeError:
            counters = self._own.counters = ThreadCounters()
            self._all.append(counters)
        return counters

    # --- events ---------------------------------------------------------------------------------

    def started(self, delivery: LeasedMessage) -> None:
        """Call the hooks for a message whose handler is about to run."""
        if "message" in self._hooks:
            self._emit("message", delivery)

    def ended(self, delivery: LeasedMessage, *, acked: bool = False) -> None:
        """Record that the handler has returned or raised, and, if it was ``acked``, its outcome."""
        try:  # as `_counters`: this runs once for each message
            counters: ThreadCounters = self._own.counters
        except AttributeError:
            counters = self._counters()
        delivery.ended_at = now = lease_clock()
        if not acked:
            # A failed message may run again: its times change.
            counters.count_recent(self._clock_offset, delivery)
        else:
            counters.recent.append(delivery)
            if now >= counters.due or len(counters.recent) >= _MAX_RECENT:
                counters.count_recent(self._clock_offset)
            if outcome_log.logger.isEnabledFor(logging.INFO):
                outcome_log.info("%s: %r: %s", self.handler.name, delivery, "ack")
            if "success" in self._hooks:
                self._emit("success", delivery)

    def settled(
        self,
        delivery: LeasedMessage,
        outcome: str,
        error: BaseException | None = None,
        delay: float | None = None,
    ) -> None:
        """Record the outcome of a delivery, one of `OUTCOMES`; ``delay`` is that of the next attempt."""
        counters = self._counters()
        counters.counts[outcome] += 1
        if outcome == "ack":
            counters.last_success = lease_clock()
        elif outcome == "lost":
            self.lease_lost(delivery)
        if delay is not None:
            self._add_delay(delay)
        if outcome_log.isEnabledFor(logging.INFO):
            outcome_log.info("%s: %r: %s", self.handler.name, delivery, outcome)
        observer = self._observer
        if error is not None:
            if observer.wants("failure"):
                self._emit("failure", delivery, error=error, delay=delay)
        elif outcome == "ack" and observer.wants("success"):
            self._emit("success", delivery)
        if outcome in {"dead", "rejected"} and observer.wants("dead_letter"):
            self._emit("dead_letter", delivery, error=error)

    def lease_lost(self, delivery: LeasedMessage) -> None:
        """Record that the lease of a message is lost; only the first call for it counts."""
        if delivery.state is DeliveryState.LOST:
            return
        if delivery.state is not DeliveryState.SETTLED:
            delivery.state = DeliveryState.LOST
        self.count("leases_lost")
        if self._observer.wants("lease_lost"):
            self._observer.defer(lambda: self._emit("lease_lost", delivery))

    def count(self, name: str, number: int = 1) -> None:
        """Add to one of `COUNTERS`."""
        self._counters().counts[name] += number

    def _emit(self, kind: WorkerEventKind, delivery: LeasedMessage, **fields: Any) -> None:
        self._observer.emit(kind, handler=self.handler, message=delivery.msg, **fields)

    # --- retries that wait ----------------------------------------------------------------------

    def _add_delay(self, delay: float) -> None:
        now = lease_clock()
        with self._lock:
            self._end_delays(now)
            heapq.heappush(self._delayed, now + delay)

    def _end_delays(self, now: float) -> None:
        while self._delayed and self._delayed[0] <= now:
            heapq.heappop(self._delayed)

    @property
    def delayed(self) -> int:
        """Number of messages that this worker returned with a delay that is not over."""
        with self._lock:
            self._end_delays(lease_clock())
            return len(self._delayed)

    # --- reading --------------------------------------------------------------------------------

    def snapshot(self) -> dict[str, Any]:
        """Return the counted part of a `HandlerSnapshot`: the sums of the counters of all threads."""
        total = ThreadCounters()
        for item in tuple(self._all):
            item.count_recent(self._clock_offset)
            for name, number in item.counts.items():
                total.counts[name] += number
            for name, histogram in item.durations.items():
                total.durations[name].merge(histogram)
            total.last_success = max(total.last_success, item.last_success)
        self._clock_offset = _clock_offset()  # the time of the system may have been set
        last = total.last_success
        return {
            "counts": total.counts,
            **{name: histogram.snapshot() for name, histogram in total.durations.items()},
            "last_success": last + self._clock_offset if last else None,
            "delayed": self.delayed,
        }


#: The names of all events.
EVENT_KINDS: Final[tuple[WorkerEventKind, ...]] = get_args(WorkerEventKind)
