"""
Metrics of workers, in the text format of Prometheus.

Rules:

1. Every metric is computed from snapshots: one for each process of a worker. Counters and histograms
   are added up; what a consumer reports is the same in each process, and the highest value is used.
2. The text is written here, so that the endpoint needs no other package and a supervisor can add up
   its processes. `WorkerCollector` gives the same families to a registry of ``prometheus_client``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import accumulate
from operator import itemgetter
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol, TypedDict, cast

from .observer import BUCKETS_S, COUNTERS, DURATIONS, OUTCOMES, Exemplar, HistogramSnapshot

if TYPE_CHECKING:
    from prometheus_client import Metric

    from .runtime.threads import Runner

OPENMETRICS_TYPE: Final = "application/openmetrics-text; version=1.0.0; charset=utf-8"
CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
_PREFIX: Final = "jetstream_worker_"
_LABELS: Final = ("handler", "stream", "consumer")


class HandlerSnapshot(TypedDict):
    """The numbers of one handler in one process, at one time."""

    handler: str
    stream: str
    consumer: str
    counts: dict[str, int]
    duration: HistogramSnapshot
    wait: HistogramSnapshot
    age: HistogramSnapshot
    last_success: float | None
    """Seconds since 1970; ``None``: no message was acknowledged."""
    handled: int
    """Number of messages that are done since the start."""
    running: int
    buffered: int
    paused: float
    """Seconds for which no messages are requested, because all have failed."""
    slots: int
    delayed: int
    pending: int | None
    """``num_pending`` of the consumer; ``None``: unknown."""
    ack_pending: int | None
    """``num_ack_pending`` of the consumer; ``None``: unknown."""
    mismatches: int
    """How many properties of the consumer do not fit the handler, such as a pause."""
    unknown_tasks: dict[str, int]
    """Number of deliveries of calls of tasks that the worker does not have, by task."""


class GaugeSnapshot(TypedDict):
    """A number of a worker that does not belong to a handler."""

    name: str
    """The name of the metric, without its prefix."""
    help: str
    labels: dict[str, str]
    value: float


class Snapshot(TypedDict):
    """Health and numbers of one process; it can be sent as JSON."""

    not_live: list[str]
    """Reasons why the process should be restarted; empty: it is alive."""
    not_ready: list[str]
    """Reasons why it does not handle messages; empty: it does."""
    handlers: list[HandlerSnapshot]
    gauges: list[GaugeSnapshot]
    """What the processes read from the same place; the highest value is used."""


class _Sample(NamedTuple):
    """A sample of a metric."""

    suffix: str
    labels: dict[str, str]
    value: float
    exemplar: Exemplar | None = None


class _Family(NamedTuple):
    """A metric: name without prefix, type, help and samples."""

    name: str
    kind: str
    help: str
    samples: Sequence[_Sample]


class _Gauge(NamedTuple):
    """A number of a handler that may fall."""

    name: str
    """The name of the metric; empty: it is only in the snapshot."""
    combine: Callable[[Iterable[float]], float]
    """Combines the values of several processes."""
    help: str
    read: Callable[[Runner], object] | None = None
    """Returns the value; ``None``: the observer of the handler does."""
    absent: object = 0
    """The value of a task, whose messages its queue holds, and of a process that has ended."""


#: The gauges, by their key in a `HandlerSnapshot`; each is declared there and here.
_GAUGES: Final[dict[str, _Gauge]] = {
    "delayed": _Gauge("consumer_delayed", sum, "Failed messages that wait for their next attempt."),
    "last_success": _Gauge(
        "last_success_timestamp_seconds",
        max,
        "Time of the last acknowledgement, in seconds since 1970.",
        absent=None,
    ),
}
_Read = Callable[["Runner"], object]


def _gauge(
    name: str, combine: Callable[[Iterable[float]], float] = sum, absent: object = 0
) -> Callable[[_Read], _Read]:
    """Declare a gauge by the function that returns its value, whose docstring is its help."""

    def declare(read: _Read) -> _Read:
        key = read.__name__.lstrip("_")
        _GAUGES[key] = _Gauge(name, combine, read.__doc__ or "", read, absent)
        return read

    return declare


@_gauge("")
def _handled(runner: Runner) -> int:
    """Messages that are done since the start."""
    return runner.held.handled


@_gauge("running")
def _running(runner: Runner) -> int:
    """Messages whose handler is running."""
    return len(runner.held.running)


@_gauge("buffered")
def _buffered(runner: Runner) -> int:
    """Messages that were received and wait for a thread."""
    with runner.held.lock:
        return runner.held.waiting


@_gauge("paused_seconds", max)
def _paused(runner: Runner) -> float:
    """Seconds for which no messages are requested, because all failed."""
    return runner.processor.breaker.seconds_left


@_gauge("slots")
def _slots(runner: Runner) -> int:
    """Messages that can be handled at a time."""
    return runner.source.concurrency


@_gauge("consumer_pending", max, None)
def _pending(runner: Runner) -> int | None:
    """Messages that the consumer has not delivered yet."""
    info = runner.consumer.info
    return None if info is None else info.num_pending


@_gauge("consumer_ack_pending", max, None)
def _ack_pending(runner: Runner) -> int | None:
    """Messages delivered and not acknowledged."""
    info = runner.consumer.info
    return None if info is None else info.num_ack_pending


@_gauge("consumer_mismatches", max)
def _mismatches(runner: Runner) -> int:
    """Properties of the consumer that do not fit the handler, such as a pause."""
    return len(runner.consumer.mismatches)


@_gauge("", absent={})
def _unknown_tasks(runner: Runner) -> dict[str, int]:
    """Deliveries of calls of tasks that the worker does not have, by task."""
    return dict(runner.unknown_tasks)


_ABSENT: Final = {key: gauge.absent for key, gauge in _GAUGES.items()}


def handler_snapshots(runner: Runner) -> Iterator[HandlerSnapshot]:
    """Yield the numbers of a handler, and of the tasks of a queue that have run."""
    source, observer = runner.source, runner.observer
    where = {"handler": source.name, "stream": source.stream, "consumer": source.consumer}
    read = {key: gauge.read(runner) for key, gauge in _GAUGES.items() if gauge.read is not None}
    yield cast("HandlerSnapshot", where | runner.processor.observer.snapshot() | read)
    # What is not counted belongs to the queue.
    for work in source.works:
        counted = observer.of(work).snapshot()
        if work.is_call and any(counted["counts"].values()):
            yield cast("HandlerSnapshot", where | {"handler": work.name} | _ABSENT | counted)


def _families(snapshots: Sequence[Snapshot], restarts: int | None) -> Iterator[_Family]:
    """Yield all metrics, added up over the snapshots."""
    by_labels: dict[tuple[str, ...], list[HandlerSnapshot]] = {}
    for snapshot in snapshots:
        for item in snapshot["handlers"]:
            key = (item["handler"], item["stream"], item["consumer"])
            by_labels.setdefault(key, []).append(item)
    groups = [
        (dict(zip(_LABELS, key, strict=True)), group) for key, group in sorted(by_labels.items())
    ]
    messages = [
        _counted(outcome, {**labels, "outcome": outcome}, group)
        for labels, group in groups
        for outcome in OUTCOMES
    ]
    yield _Family("messages", "counter", "Deliveries, by outcome.", messages)
    for name, text in COUNTERS.items():
        samples = [_counted(name, labels, group) for labels, group in groups]
        if name == "restarts" and restarts is not None:
            samples = [_Sample("_total", {}, restarts)]
        yield _Family(name, "counter", text, samples)
    yield from _durations_and_gauges(groups)
    yield from _other_gauges([item for snapshot in snapshots for item in snapshot["gauges"]])


def _counted(name: str, labels: dict[str, str], group: Sequence[HandlerSnapshot]) -> _Sample:
    return _Sample("_total", labels, sum(item["counts"][name] for item in group))


def _durations_and_gauges(
    groups: Sequence[tuple[dict[str, str], list[HandlerSnapshot]]],
) -> Iterator[_Family]:
    for name, text in DURATIONS.items():
        samples: list[_Sample] = []
        for labels, group in groups:
            samples += _histogram(labels, [item[name] for item in group])  # type: ignore[literal-required]
        yield _Family(f"{name}_seconds", "histogram", text, samples)
    for key, gauge in _GAUGES.items():
        if not gauge.name:
            continue
        samples = []
        for labels, group in groups:
            values = [item[key] for item in group]  # type: ignore[literal-required]
            known = [value for value in values if value is not None]
            if known:
                samples.append(_Sample("", labels, gauge.combine(known)))
        yield _Family(gauge.name, "gauge", gauge.help, samples)


def _other_gauges(gauges: Sequence[GaugeSnapshot]) -> Iterator[_Family]:
    values: dict[tuple[str, str], dict[tuple[tuple[str, str], ...], float]] = {}
    for gauge in gauges:
        samples = values.setdefault((gauge["name"], gauge["help"]), {})
        labels = tuple(gauge["labels"].items())
        samples[labels] = max(gauge["value"], samples.get(labels, gauge["value"]))
    for (name, text), samples in values.items():
        found = [_Sample("", dict(labels), value) for labels, value in samples.items()]
        yield _Family(name, "gauge", text, found)


def _histogram(labels: dict[str, str], parts: Sequence[HistogramSnapshot]) -> Iterator[_Sample]:
    total = _sum(parts)
    bounds = [*map(str, BUCKETS_S), "+Inf"]
    exemplars = total["exemplars"] or [None] * len(bounds)
    for bound, number, exemplar in zip(bounds, accumulate(total["counts"]), exemplars, strict=True):
        yield _Sample("_bucket", {**labels, "le": bound}, number, exemplar)
    yield _Sample("_count", labels, sum(total["counts"]))
    yield _Sample("_sum", labels, total["total"])


def metrics_text(
    snapshots: Sequence[Snapshot], restarts: int | None = None, *, openmetrics: bool = False
) -> str:
    """Return all metrics in the text format of Prometheus, or in OpenMetrics with the traces of exemplars."""
    lines = []
    for family in _families(snapshots, restarts):
        total = "_total" if family.kind == "counter" and not openmetrics else ""
        name = f"{_PREFIX}{family.name}"
        lines.append(f"# HELP {name}{total} {family.help}")
        lines.append(f"# TYPE {name}{total} {family.kind}")
        for suffix, labels, value, exemplar in family.samples:
            pairs = ",".join(f'{label}="{_escaped(text)}"' for label, text in labels.items())
            where = f"{{{pairs}}}" if pairs else ""
            mark = ""
            if openmetrics and exemplar is not None:
                trace_id, seconds, when = exemplar
                mark = f' # {{trace_id="{trace_id}"}} {seconds!r} {when:.3f}'
            lines.append(f"{name}{suffix}{where} {value!r}{mark}")
    return "\n".join([*lines, *(["# EOF"] if openmetrics else []), ""])


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def counts_of(parts: Sequence[HandlerSnapshot]) -> HandlerSnapshot:
    """Return the sum of what processes have counted that have ended since."""
    successes = [part["last_success"] for part in parts if part["last_success"] is not None]
    where: dict[str, object] = {name: parts[0][name] for name in _LABELS}
    counted = {
        "counts": {
            name: sum(part["counts"][name] for part in parts) for name in parts[0]["counts"]
        },
        **{name: _sum([part[name] for part in parts]) for name in DURATIONS},  # type: ignore[literal-required]
        "last_success": max(successes, default=None),
    }
    return cast("HandlerSnapshot", where | _ABSENT | counted)


def _sum(parts: Sequence[HistogramSnapshot]) -> HistogramSnapshot:
    counts = [sum(column) for column in zip(*(part["counts"] for part in parts), strict=True)]
    exemplars = [
        max(filter(None, column), key=itemgetter(2), default=None)
        for column in zip(*(part["exemplars"] for part in parts if part["exemplars"]), strict=True)
    ]
    return {
        "counts": counts,
        "total": sum(part["total"] for part in parts),
        "exemplars": exemplars,
    }


class _Monitored(Protocol):
    """A worker."""

    def snapshot(self) -> Snapshot | None:
        """Return health and numbers; ``None``: it does not run."""


class WorkerCollector:
    """
    A collector for a registry of ``prometheus_client``, for programs that have one.

    It needs the extra ``metrics``. While the worker does not run, there are no samples.

    Example::

        prometheus_client.REGISTRY.register(WorkerCollector(worker))

    Args:
        worker: the worker.

    """

    def __init__(self, worker: _Monitored) -> None:
        self._worker = worker

    def describe(self) -> Iterable[Metric]:
        """Return no metrics: they are known without a collection."""
        return ()

    def collect(self) -> Iterator[Metric]:
        """Yield the current metrics."""
        from prometheus_client import Metric as PrometheusMetric  # noqa: PLC0415 - an extra
        from prometheus_client.samples import Exemplar as PrometheusExemplar  # noqa: PLC0415

        snapshot = self._worker.snapshot()
        for family in _families([] if snapshot is None else [snapshot], None):
            name = f"{_PREFIX}{family.name}"
            metric = PrometheusMetric(name, family.help, family.kind)
            for suffix, labels, value, exemplar in family.samples:
                mark = None
                if exemplar is not None:
                    trace_id, *numbers = exemplar
                    mark = PrometheusExemplar({"trace_id": trace_id}, *numbers)
                metric.add_sample(f"{name}{suffix}", labels, value, exemplar=mark)
            yield metric
