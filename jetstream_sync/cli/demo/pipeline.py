"""
The pipeline of the demo: one stream, two pull consumers with workers, and a monitor.

::

    input ──> ORDERS.received ──> NEW ──> ORDERS.processed ──> DISPATCH ──> ORDERS.completed
                     └────────────────────────┴───────── MONITOR ────────────────┘

NEW and DISPATCH are durable pull consumers with explicit acknowledgement. MONITOR is an ordered
consumer that reads every message of the stream. The main thread publishes and watches; workers and
monitor run in callbacks on the threads of the library.

JetStream delivers at least once. Three rules make each order pass exactly once:

1. A worker publishes the next message and waits for its acknowledgement before it acknowledges its
   input. If it dies in between, the input is delivered again.
2. The message id of the next message consists of the stage and the id of the order, so the stream
   drops the second one within its duplicate window.
3. The next message depends on the input only, so the second one is equal (except the worker's name).
"""

from __future__ import annotations

import contextlib
import time
import uuid
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Final

from ... import AckPolicy, ConsumerConfig, StreamConfig
from ...errors import (
    APIError,
    Error,
    StreamNameInUseError,
    StreamNotFoundError,
    StreamSubjectOverlapError,
)
from ...net.clock import Deadline, monotonic
from ..charts import percentile
from ..status import CommandError, ExitStatus
from . import orders
from .orders import InputOrder, OrderError

if TYPE_CHECKING:
    from ... import ConsumeHandle, JetStream, JetStreamMsg, PubAck, Stream

#: The stages of an order, as the last token of the subject.
STAGES: Final = ("received", "processed", "completed")
_MAX_EXAMPLES: Final = 3


@dataclass(frozen=True, kw_only=True)
class StageReport:
    """The messages of one stage, compared with the input."""

    stage: str
    messages: int
    orders: int
    missing: int
    duplicates: int
    #: Messages with another total than the order has.
    wrong_totals: int
    #: Messages that are not about an order of the input.
    unknown: int
    matches_input: bool
    #: A few ids of orders that are missing, duplicate or wrong.
    examples: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class ConsumerReport:
    """The work of all workers of one consumer."""

    name: str
    workers: int
    #: Messages that were delivered, including redeliveries.
    deliveries: int
    redelivered: int
    #: Publishes that the stream recognized as duplicates by their message id.
    deduplicated: int
    #: Messages that a worker terminated because they were not valid.
    refused: int


@dataclass(frozen=True, kw_only=True)
class DemoReport:
    """The outcome of a run."""

    orders: int
    seconds: float
    server: str
    stages: tuple[StageReport, ...]
    consumers: tuple[ConsumerReport, ...]
    #: Percentiles of the time from received to completed in milliseconds, by the server's clock.
    latency_ms: Mapping[str, float]

    @property
    def exactly_once(self) -> bool:
        """Whether every order passed every stage exactly once, with the total of the input."""
        return all(stage.matches_input for stage in self.stages)

    def failure(self) -> str:
        """Return one line that describes what is wrong; only if not `exactly_once`."""
        parts = [
            f"{stage.stage}: {stage.missing} missing, {stage.duplicates} duplicate, "
            f"{stage.wrong_totals} with a wrong total, {stage.unknown} unknown"
            + (f" (for example {', '.join(stage.examples)})" if stage.examples else "")
            for stage in self.stages
            if not stage.matches_input
        ]
        return "; ".join(["not every order came through exactly once", *parts])


@dataclass
class _Stage:
    messages: int = 0
    unknown: int = 0
    #: Number of messages of each order.
    seen: dict[str, int] = field(default_factory=dict)
    wrong: list[str] = field(default_factory=list)


class Verification:
    """
    Compare the messages of the stream with the input.

    Args:
        totals: the total of each order of the input by its id.

    """

    def __init__(self, totals: Mapping[str, int]) -> None:
        self._totals = totals
        self._stages = {name: _Stage() for name in STAGES}
        self._received_ns: dict[str, int] = {}
        self._latencies_ns: list[int] = []
        #: The highest stream sequence that was added.
        self.last_seq = 0

    def add(self, stage: str, order_id: str, total: int, timestamp_ns: int) -> None:
        """
        Count a message.

        Args:
            stage: one of `STAGES`.
            order_id: as in the message.
            total: as in the message.
            timestamp_ns: when the server stored the message.

        """
        counts = self._stages[stage]
        counts.messages += 1
        if order_id not in self._totals:
            counts.unknown += 1
            return
        counts.seen[order_id] = counts.seen.get(order_id, 0) + 1
        if total != self._totals[order_id]:
            counts.wrong.append(order_id)
        if stage == STAGES[0]:
            self._received_ns.setdefault(order_id, timestamp_ns)
        elif stage == STAGES[-1] and order_id in self._received_ns:
            self._latencies_ns.append(timestamp_ns - self._received_ns.pop(order_id))

    def add_unknown(self, stage: str) -> None:
        """Count a message that is not about an order; one of no known stage fails all of them."""
        for name in [stage] if stage in self._stages else STAGES:
            self._stages[name].messages += 1
            self._stages[name].unknown += 1

    def counts(self) -> tuple[int, ...]:
        """Return the number of different orders in each stage so far."""
        return tuple(len(counts.seen) for counts in self._stages.values())

    def complete(self) -> bool:
        """Return whether the last stage has every order."""
        return self.counts()[-1] >= len(self._totals)

    def report(
        self, *, seconds: float, server: str, consumers: Sequence[ConsumerReport]
    ) -> DemoReport:
        """Return the result; only after the last `add`."""
        latencies = sorted(self._latencies_ns)
        return DemoReport(
            orders=len(self._totals),
            seconds=seconds,
            server=server,
            stages=tuple(self._stage_report(name) for name in STAGES),
            consumers=tuple(consumers),
            latency_ms={
                f"p{percent}": percentile(latencies, 10 * percent) / 1e6
                for percent in (50, 99, 100)
                if latencies
            },
        )

    def _stage_report(self, name: str) -> StageReport:
        counts = self._stages[name]
        missing = [order_id for order_id in self._totals if order_id not in counts.seen]
        duplicate = [order_id for order_id, times in counts.seen.items() if times > 1]
        examples = [*missing, *duplicate, *counts.wrong]
        return StageReport(
            stage=name,
            messages=counts.messages,
            orders=len(counts.seen),
            missing=len(missing),
            duplicates=sum(counts.seen[order_id] - 1 for order_id in duplicate),
            wrong_totals=len(counts.wrong),
            unknown=counts.unknown,
            matches_input=not examples and not counts.unknown,
            examples=tuple(examples[:_MAX_EXAMPLES]),
        )


_TICK_INTERVAL_S: Final = 0.02
#: Number of orders that are published between two progress updates.
_PUBLISH_BLOCK: Final = 50
#: Longer than a worker waits for the acknowledgement of what it publishes.
_STOP_TIMEOUT_S: Final = 10.0
#: After this time a message that a worker holds is redelivered; shorter than --timeout by default.
_ACK_WAIT: Final = timedelta(seconds=20)
_CHECK_INTERVAL_S: Final = 0.25
#: How long to wait for missing orders after the server reports that nothing is pending.
_SETTLE_TIME_S: Final = 2.0
#: Longer than any run, so that every redelivery is recognized.
_DUPLICATE_WINDOW: Final = timedelta(hours=1)
#: Metadata of the stream: identifies the run that created it.
_OWNER_KEY: Final = "jsm-demo-run"


@dataclass(frozen=True, kw_only=True)
class DemoContext:
    """The options of a run and what it works with."""

    js: JetStream
    orders: Sequence[InputOrder]
    #: Name of the stream; its subjects are NAME.*.
    stream: str
    #: Workers of each of the two consumers.
    workers: int
    #: Share of the orders whose workers do not acknowledge the first delivery.
    redeliver_percent: float
    #: Orders per second; ``None`` publishes without a limit.
    rate: float | None
    #: Seconds without progress after which the run fails.
    timeout: float
    #: Whether to delete the stream at the end, however the run ends.
    remove: bool
    server: str
    #: Called often on the main thread, with the number of completed orders.
    show: Callable[[int], None]
    #: Called with a line when the stream cannot be removed.
    warn: Callable[[str], None]


def run_pipeline(context: DemoContext) -> DemoReport:
    """
    Send all orders through the pipeline, and return the verification, successful or not.

    Raises:
        CommandError: the stream exists already, or there was no progress for the timeout.
        Error: the server refused a request, or the connection is lost.

    """
    started = monotonic()
    with _new_stream(context) as stream, contextlib.ExitStack() as running:
        run = _Run(context, stream)
        run.start(running)
        run.publish()
        run.wait()
        running.close()
        return run.report(monotonic() - started)


# --- the stream of a run --------------------------------------------------------------------------


@contextlib.contextmanager
def _new_stream(context: DemoContext) -> Iterator[Stream]:
    """Create the stream. Delete it at the end if that is wanted and it is the stream of this run."""
    # The server returns an existing stream with an equal config as if it had just been created. The
    # owner makes the configs of two runs differ.
    owner = uuid.uuid4().hex
    with contextlib.ExitStack() as undo:
        if context.remove:
            undo.callback(_remove_stream, context, owner)
        try:
            stream = _create_stream(context, owner)
        except (APIError, CommandError):
            # The server refused. After a timeout or Ctrl-C the stream may exist and is removed.
            undo.pop_all()
            raise
        yield stream


def _create_stream(context: DemoContext, owner: str) -> Stream:
    config = StreamConfig(
        name=context.stream,
        subjects=[f"{context.stream}.*"],
        description="orders of jsm demo",
        duplicate_window=_DUPLICATE_WINDOW,
        metadata={_OWNER_KEY: owner},
    )
    try:
        return context.js.create_stream(config)
    except (StreamNameInUseError, StreamSubjectOverlapError) as error:
        problem = (
            f"stream {config.name} exists already"
            if isinstance(error, StreamNameInUseError)
            else f"another stream has subjects of {config.name}.*"
        )
        raise CommandError(
            f"{problem}, and the demo does not change existing streams; "
            "choose another name with --stream",
            ExitStatus.FAILED,
        ) from error


def _remove_stream(context: DemoContext, owner: str) -> None:
    try:
        # Ctrl-C may have come before the stream was created: it may be the stream of another run.
        config = context.js.get_stream(context.stream).cached_info.config
        if (config.metadata or {}).get(_OWNER_KEY) == owner:
            context.js.delete_stream(context.stream)
    except StreamNotFoundError:
        pass
    except Error as error:
        context.warn(f"stream {context.stream} could not be removed: {error}")


# --- the workers ----------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class _Step:
    """One consumer: what its workers read, do and publish."""

    consumer: str
    source: str
    stage: str
    #: Returns order id and result; raises `OrderError`.
    work: Callable[[bytes, str], tuple[str, bytes]]


_STEPS: Final = (
    _Step(consumer="NEW", source=STAGES[0], stage=STAGES[1], work=orders.price),
    _Step(consumer="DISPATCH", source=STAGES[1], stage=STAGES[2], work=orders.dispatch),
)


class _Worker:
    """The callback of one worker; only its own thread changes its counters."""

    def __init__(self, context: DemoContext, step: _Step, name: str) -> None:
        self._js = context.js
        self._subject = f"{context.stream}.{step.stage}"
        self._redeliver_percent = context.redeliver_percent
        self._step = step
        self._name = name
        self.deliveries = 0
        self.redelivered = 0
        self.deduplicated = 0
        self.refused = 0
        #: The first error of the library; it ends the run.
        self.failure: Error | None = None

    def __call__(self, msg: JetStreamMsg) -> None:
        if self.failure is not None:
            return  # the run has failed; unacknowledged messages stay in the stream
        try:
            self._handle(msg)
        except Error as error:
            self.failure = error

    def _handle(self, msg: JetStreamMsg) -> None:
        first = msg.metadata.num_delivered == 1
        self.deliveries += 1
        self.redelivered += not first
        try:
            order_id, result = self._step.work(msg.data, self._name)
        except OrderError as error:
            self.refused += 1
            # A redelivery would fail as well.
            msg.term(reason=str(error))
            return
        ack = self._js.publish(
            self._subject, result, msg_id=_message_id(self._step.stage, order_id)
        )
        self.deduplicated += bool(ack.duplicate)
        if first and zlib.crc32(order_id.encode()) % 10_000 < self._redeliver_percent * 100:
            # Simulate a worker that fails before it acknowledges.
            msg.nak()
        else:
            msg.ack()


def _message_id(stage: str, order_id: str) -> str:
    return f"{stage}:{order_id}"


# --- the run --------------------------------------------------------------------------------------


class _Run:
    """One run: publishes the input, watches progress, and verifies what the stream holds."""

    def __init__(self, context: DemoContext, stream: Stream) -> None:
        self._context = context
        self._stream = stream
        self._verification = Verification({order.id: order.total for order in context.orders})
        self._workers = {
            step.consumer: [
                _Worker(context, step, f"{step.consumer}-{number}")
                for number in range(1, context.workers + 1)
            ]
            for step in _STEPS
        }
        self._published = 0
        self._counts: tuple[int, ...] = ()
        self._stall = Deadline(context.timeout)

    def start(self, running: contextlib.ExitStack) -> None:
        """Start the monitor and all workers; ``running`` stops them."""
        monitor = self._stream.ordered_consumer().consume(self._verify)
        running.callback(_stop, monitor)
        for step in _STEPS:
            consumer = self._stream.create_consumer(
                ConsumerConfig(
                    durable_name=step.consumer,
                    filter_subject=f"{self._context.stream}.{step.source}",
                    ack_policy=AckPolicy.EXPLICIT,
                    ack_wait=_ACK_WAIT,
                )
            )
            for worker in self._workers[step.consumer]:
                running.callback(_stop, consumer.consume(worker))

    def publish(self) -> None:
        """Publish the input to the first subject, and check that the stream stored every order."""
        context = self._context
        started = monotonic()
        futures: list[Future[PubAck]] = []
        for number, order in enumerate(context.orders):
            if context.rate is not None:
                self._tick_until(started + number / context.rate)
            elif number % _PUBLISH_BLOCK == 0:
                self._tick()
            futures.append(
                context.js.publish_async(
                    f"{context.stream}.{STAGES[0]}",
                    order.payload,
                    msg_id=_message_id(STAGES[0], order.id),
                )
            )
            self._published += 1
        context.js.publish_async_completed(context.timeout)
        for future in futures:
            future.result(timeout=0)

    def wait(self) -> None:
        """Wait until every published order is completed or lost."""
        next_check = Deadline(0)
        settled_for: Deadline | None = None
        while True:
            self._tick()
            complete = self._verification.complete()
            if complete or next_check.expired():
                next_check = Deadline(_CHECK_INTERVAL_S)
                settled = self._settled()
                if settled and complete:
                    self._tick()
                    return
                # The server updates its counts of pending messages shortly after it stores one.
                settled_for = (settled_for or Deadline(_SETTLE_TIME_S)) if settled else None
                if settled_for is not None and settled_for.expired():
                    return
            time.sleep(_TICK_INTERVAL_S)

    def report(self, seconds: float) -> DemoReport:
        """Return the result; only after everything has stopped."""
        return self._verification.report(
            seconds=seconds,
            server=self._context.server,
            consumers=[
                ConsumerReport(
                    name=name,
                    workers=len(workers),
                    deliveries=sum(worker.deliveries for worker in workers),
                    redelivered=sum(worker.redelivered for worker in workers),
                    deduplicated=sum(worker.deduplicated for worker in workers),
                    refused=sum(worker.refused for worker in workers),
                )
                for name, workers in self._workers.items()
            ],
        )

    def _verify(self, msg: JetStreamMsg) -> None:
        """Add a message of the stream to the verification; the callback of the monitor."""
        stage = msg.subject.rpartition(".")[2]
        try:
            order_id, total = orders.result(stage, msg.data)
        except OrderError:
            self._verification.add_unknown(stage)
        else:
            if stage in STAGES:
                self._verification.add(stage, order_id, total, msg.metadata.timestamp_ns)
            else:
                self._verification.add_unknown(stage)
        self._verification.last_seq = msg.metadata.stream_seq

    def _settled(self) -> bool:
        """Ask the server whether no message is pending, and whether the monitor has read all."""
        # The order matters: if NEW is idle, nothing new reaches DISPATCH, and then the stream.
        for step in _STEPS:
            info = self._stream.get_consumer(step.consumer).cached_info
            if info.num_pending or info.num_ack_pending:
                return False
        return bool(self._verification.last_seq >= self._stream.info().state.last_seq)

    def _tick_until(self, moment: float) -> None:
        self._tick()
        while (left := moment - monotonic()) > 0:
            time.sleep(min(left, _TICK_INTERVAL_S))
            self._tick()

    def _tick(self) -> None:
        """
        Show progress.

        Raises:
            CommandError: there was no progress for the timeout.
            Error: a worker failed with it.

        """
        counts = self._verification.counts()
        self._context.show(counts[-1])
        for workers in self._workers.values():
            for worker in workers:
                if worker.failure is not None:
                    raise worker.failure
        if counts != self._counts or counts[-1] >= self._published:
            self._counts = counts
            self._stall = Deadline(self._context.timeout)
        elif self._stall.expired():
            stages = ", ".join(f"{n:,} {stage}" for stage, n in zip(STAGES, counts, strict=True))
            raise CommandError(
                f"no progress for {self._context.timeout:g} s: "
                f"{stages} of {len(self._context.orders):,}",
                ExitStatus.TIMED_OUT,
            )


def _stop(handle: ConsumeHandle) -> None:
    """Stop a callback, and wait until it has returned."""
    handle.stop()
    handle.wait_closed(_STOP_TIMEOUT_S)
