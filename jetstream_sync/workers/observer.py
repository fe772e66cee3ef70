"""
What happens in a worker, as hooks and as counters.

Rules:

1. The messages that are handled within some milliseconds are counted together, or when the counters are read:
   no lock is taken for a message. All durations of a message are counted when its handler has ended.
2. A hook runs on the thread of its event: a handler thread, or the thread that called `Worker.run`.
   Hooks for lost leases run on the latter, because a slow hook must not delay the renewal of leases.
3. A hook that raises is logged once with its traceback. It changes nothing for the message.
"""

from __future__ import annotations

import heapq
import logging
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any, Final, Literal, TypedDict, get_args

from ..locks import new_lock
from ..options import check_returned
from .deliveries import DeliveryObserver, LeasedMessage, lease_clock, stored_ns
from .logs import log, outcome_log
from .verdicts import DeliveryOutcome, Verdict

if TYPE_CHECKING:
    from .. import JetStreamMsg
    from .source import Source, Work

WorkerEventKind = Literal[
    "start", "ready", "message", "success", "failure", "dead_letter", "lease_lost", "drain", "stop"
]
OUTCOMES: Final[tuple[DeliveryOutcome, ...]] = get_args(DeliveryOutcome)
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

#: Interval at which the handled messages are counted, in seconds.
_COUNT_INTERVAL_S: Final = 0.005


@dataclass(frozen=True, kw_only=True)
class WorkerEvent:
    """Something that happened in a worker; the argument of the functions of `Worker.on`."""

    kind: WorkerEventKind
    """The name of the event."""
    worker: str
    """The name of the worker."""
    handler: Work | Source | None = None
    """The handler or task, or the queue of a call of an unknown task; ``None`` for the events ``start``, ``ready``, ``drain`` and ``stop``."""
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
        self._known: list[WorkObserver] = []

    def of(self, work: Work | Source) -> WorkObserver:
        """Return the observer of some work, or of the other messages of a queue; the same for each call."""
        for item in self._known:
            if item.work is work:
                return item
        self._known.append(WorkObserver(work, self))
        return self._known[-1]

    def emit(self, kind: WorkerEventKind, **fields: Any) -> None:
        """Call the hooks of this kind; their errors are logged."""
        for hook in self.hooks.get(kind, ()):
            try:
                check_returned(hook(WorkerEvent(kind=kind, worker=self._worker, **fields)))
            except BaseException as error:
                level = logging.DEBUG if hook in self._failed else logging.ERROR
                self._failed.add(hook)
                log.log(level, "hook %r for %r raised", hook, kind, exc_info=error)


#: The trace of a message with a duration in a bucket, the duration in seconds, and the seconds since 1970.
Exemplar = tuple[str, float, float]


class HistogramSnapshot(TypedDict):
    """A histogram of durations."""

    counts: list[int]
    """The counts of `BUCKETS_S`, and of everything above."""
    total: float
    """The sum in seconds."""
    exemplars: list[Exemplar | None]
    """The last traced message of each bucket; empty without traces."""


class Histogram:
    """Counts of durations, in `BUCKETS_S` and above."""

    __slots__ = ("counts", "exemplars", "total")

    def __init__(self) -> None:
        self.exemplars: list[Exemplar | None] = []
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

    def mark(self, trace_id: str, seconds: float, when: float) -> None:
        """Keep a traced message as the exemplar of its bucket."""
        self.exemplars = self.exemplars or [None] * len(self.counts)
        self.exemplars[bisect_left(BUCKETS_S, seconds)] = (trace_id, seconds, when)

    def snapshot(self) -> HistogramSnapshot:
        """Return the current counts."""
        return {
            "counts": list(self.counts),
            "total": self.total,
            "exemplars": list(self.exemplars),
        }


def _clock_offset() -> float:
    """Return the seconds since 1970, less the lease clock."""
    return datetime.now(timezone.utc).timestamp() - lease_clock()


class WorkObserver(DeliveryObserver):
    """The observer of one work, for any thread."""

    def __init__(self, work: Work | Source, observer: Observer) -> None:
        self.work = work
        self._observer = observer
        # The functions to call: functions may be added while the worker runs.
        self._hooks = observer.hooks
        # The acknowledged messages that are not counted yet, and the time when a thread counts them.
        self._recent: deque[LeasedMessage] = deque()
        self._due = 0.0
        # Whether a hook or the log gets each of them; found out when they are counted.
        self._reports = True
        self._lock = new_lock()
        # --- under _lock ---
        self._counts = dict.fromkeys((*OUTCOMES, *COUNTERS), 0)
        self._durations = {name: Histogram() for name in DURATIONS}
        # Time of the last acknowledgement by the lease clock; 0: there was none.
        self._last_success = 0.0
        # Times by the lease clock at which the delays of retries are over.
        self._delayed: list[float] = []
        self._clock_offset = _clock_offset()

    # --- events ---------------------------------------------------------------------------------

    def started(self, delivery: LeasedMessage) -> None:
        """Call the hooks for a message whose handler is about to run."""
        self._emit("message", delivery)

    def handled(self, delivery: LeasedMessage) -> float:
        """Record that the handler has returned, and its message is acknowledged; return the time of the lease clock."""
        delivery.ended_at = now = lease_clock()
        self._recent.append(delivery)
        if now >= self._due:
            self._due = now + _COUNT_INTERVAL_S
            self._count_recent()
        if self._reports:
            self._report("ack", delivery)
            self._emit("success", delivery)
            now = lease_clock()
        return now

    def ended(self, deliveries: Sequence[LeasedMessage]) -> None:
        """Record that the handler has ended; `settled` records the outcome of each message."""
        now = lease_clock()
        for delivery in deliveries:
            delivery.ended_at = now
        # At once: a message may run again, which changes its times.
        with self._lock:
            self._add_durations(deliveries)

    def _count_recent(self) -> None:
        self._reports = "success" in self._hooks or outcome_log.isEnabledFor(logging.INFO)
        with self._lock:
            recent = [self._recent.popleft() for _ in range(len(self._recent))]
            if recent:
                self._counts["ack"] += len(recent)
                self._last_success = recent[-1].ended_at
                self._add_durations(recent)

    def _add_durations(self, ended: Sequence[LeasedMessage]) -> None:
        offset = self._clock_offset + ended[0].origin.clock_ahead
        stored = stored_ns([item.msg for item in ended])
        ages = [item.started_at + offset - ns / 1e9 for item, ns in zip(ended, stored, strict=True)]
        durations = {
            "duration": [item.ended_at - item.started_at for item in ended],
            "wait": [item.started_at - item.lease.received_at for item in ended],
            "age": [max(0.0, age) for age in ages] if min(ages) < 0 else ages,
        }
        for name, seconds in durations.items():
            self._durations[name].add(seconds)
        # Either all messages are traced, or one of a batch, or none.
        if ended[0].trace_id or ended[-1].trace_id:
            for place, item in enumerate(ended):
                for name in durations if item.trace_id else ():
                    when = item.ended_at + offset
                    self._durations[name].mark(item.trace_id, durations[name][place], when)

    def settled(
        self, delivery: LeasedMessage, verdict: Verdict, error: BaseException | None = None
    ) -> None:
        """Record the outcome of a delivery."""
        now, outcome = lease_clock(), verdict.outcome
        with self._lock:
            self._counts[outcome] += 1
            if outcome == "ack":
                self._last_success = now
            if outcome == "retry":
                self._end_delays(now)
                heapq.heappush(self._delayed, now + verdict.delay)
        if outcome == "lost" and delivery.lose():
            self.lease_lost(delivery)
        self._report(outcome, delivery)
        if error is not None:
            delay = verdict.delay if outcome == "retry" else None
            self._emit("failure", delivery, error=error, delay=delay)
        elif outcome == "ack":
            self._emit("success", delivery)
        if outcome in {"dead", "rejected"}:
            self._emit("dead_letter", delivery, error=error)

    def lease_lost(self, delivery: LeasedMessage) -> None:
        """Record that the lease of a message is lost; see `LeasedMessage.lose`."""
        self.count("leases_lost")
        if "lease_lost" in self._hooks:
            self._observer.defer(lambda: self._emit("lease_lost", delivery))

    def count(self, name: str, number: int = 1) -> None:
        """Add to one of `COUNTERS`."""
        with self._lock:
            self._counts[name] += number

    def _report(self, outcome: str, delivery: LeasedMessage) -> None:
        if outcome_log.isEnabledFor(logging.INFO):
            outcome_log.info("%s: %r: %s", self.work.name, delivery, outcome)

    def _emit(self, kind: WorkerEventKind, delivery: LeasedMessage, **fields: Any) -> None:
        self._observer.emit(kind, handler=self.work, message=delivery.msg, **fields)

    def _end_delays(self, now: float) -> None:
        while self._delayed and self._delayed[0] <= now:
            heapq.heappop(self._delayed)

    # --- reading --------------------------------------------------------------------------------

    def snapshot(self) -> dict[str, Any]:
        """Return the counted part of a `HandlerSnapshot`."""
        self._count_recent()
        with self._lock:
            self._clock_offset = _clock_offset()  # the time of the system may have been set
            self._end_delays(lease_clock())
            last = self._last_success
            return {
                "counts": dict(self._counts),
                **{name: histogram.snapshot() for name, histogram in self._durations.items()},
                "last_success": last + self._clock_offset if last else None,
                "delayed": len(self._delayed),
            }


#: The names of all events.
EVENT_KINDS: Final[tuple[WorkerEventKind, ...]] = get_args(WorkerEventKind)
