"""
The ORDERS architecture on a server: one stream, two pull consumers, a monitor, and their workers.

::

    input ──> ORDERS.received ──> NEW ──> ORDERS.processed ──> DISPATCH ──> ORDERS.completed
                     └────────────────────────┴───────── MONITOR ────────────────┘

The stream holds ``ORDERS.*``. NEW and DISPATCH are durable pull consumers with explicit
acknowledgement and any number of workers each; see `jetstream_sync.cli.workers` for why no order is
done twice. MONITOR is an ordered consumer: it sees every message of the stream in order, and
acknowledges nothing.

The main thread publishes, shows progress and watches; everything else runs in callbacks, on the
threads of the library.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING

from .. import AckPolicy, ConsumerConfig
from ..net.clock import Deadline, monotonic
from . import orders
from .intake import InputOrder
from .orders import OrderError
from .own_stream import new_stream
from .status import CommandError, ExitStatus
from .tally import STAGES, DemoReport, Tally
from .workers import Step, Worker, message_id, worker_report

if TYPE_CHECKING:
    from .. import Connection, ConsumeHandle, JetStream, JetStreamMsg, PubAck, Stream

__all__ = ["Plan", "run_pipeline"]

#: After this a message that a worker holds goes to another; below the default of --timeout.
_ACK_WAIT = timedelta(seconds=20)
_TICK = 0.02
_CHECK_INTERVAL = 0.25
#: How long to look for orders that are still under way when the server says that none is.
_GRACE = 2.0
_PUBLISH_BLOCK = 50
#: Longer than a worker waits for the acknowledgement of what it publishes.
_STOP_TIMEOUT = 10.0


@dataclass(frozen=True, kw_only=True)
class Plan:
    """How a run is set up."""

    #: The stream's name; its subjects are NAME.*.
    stream: str
    #: Workers of NEW, and as many of DISPATCH.
    workers: int
    #: Share of the orders whose messages are delivered a second time on purpose.
    redeliver_percent: float
    #: Orders per second; ``None`` as fast as the server takes them.
    rate: float | None
    #: Seconds without any movement after which the run has failed.
    timeout: float
    #: Delete the stream at the end, however the run ends.
    remove: bool

    def subject(self, stage: str) -> str:
        """Return the subject of a stage."""
        return f"{self.stream}.{stage}"


def run_pipeline(
    nc: Connection,
    input_orders: Sequence[InputOrder],
    plan: Plan,
    *,
    show: Callable[[Sequence[int]], None],
    warn: Callable[[str], None],
) -> DemoReport:
    """
    Send all orders through, and report.

    Args:
        nc: connected; it stays open.
        input_orders: each id once.
        plan: how.
        show: called often on this thread with the number of orders in each stage.
        warn: called with a line when something that was made could not be removed.

    Returns:
        The books, whether they balance or not.

    Raises:
        CommandError: the stream exists already, or nothing moved for ``plan.timeout``.
        Error: the server refused something, or the connection is lost.

    """
    started = monotonic()
    js = nc.jetstream()
    with (
        new_stream(js, plan.stream, remove=plan.remove, warn=warn) as stream,
        contextlib.ExitStack() as running,
    ):
        run = _Run(js, stream, plan, input_orders, show)
        run.start(running)
        run.publish()
        run.wait()
        running.close()
        return run.report(monotonic() - started, server=f"nats-server {nc.server_info.version}")


class _Run:
    """One run: the books, the workers and the waiting."""

    def __init__(
        self,
        js: JetStream,
        stream: Stream,
        plan: Plan,
        input_orders: Sequence[InputOrder],
        show: Callable[[Sequence[int]], None],
    ) -> None:
        self._js = js
        self._stream = stream
        self._plan = plan
        self._input = input_orders
        self._show = show
        self._tally = Tally({order.id: order.fingerprint for order in input_orders})
        self._steps = (
            self._step("NEW", STAGES[1], orders.process),
            self._step("DISPATCH", STAGES[2], orders.complete),
        )
        self._workers = {
            step.consumer: [
                Worker(js, step, f"{step.consumer}-{number}")
                for number in range(1, plan.workers + 1)
            ]
            for step in self._steps
        }
        self._published = 0
        self._counts: tuple[int, ...] = ()
        self._stall = Deadline(plan.timeout)

    def _step(
        self, consumer: str, stage: str, work: Callable[[bytes, str], tuple[str, bytes]]
    ) -> Step:
        return Step(
            consumer=consumer,
            stage=stage,
            subject=self._plan.subject(stage),
            work=work,
            redeliver_percent=self._plan.redeliver_percent,
        )

    def start(self, running: contextlib.ExitStack) -> None:
        """Start the monitor and all workers; ``running`` stops them."""
        monitor = self._stream.ordered_consumer().consume(self._see)
        running.callback(_stop, monitor)
        for step, source in zip(self._steps, STAGES, strict=False):
            consumer = self._stream.create_consumer(
                ConsumerConfig(
                    durable_name=step.consumer,
                    filter_subject=self._plan.subject(source),
                    ack_policy=AckPolicy.EXPLICIT,
                    ack_wait=_ACK_WAIT,
                )
            )
            for worker in self._workers[step.consumer]:
                running.callback(_stop, consumer.consume(worker))

    def publish(self) -> None:
        """Publish the input to the first subject, and see that the stream took every order."""
        subject = self._plan.subject(STAGES[0])
        started = monotonic()
        futures: list[Future[PubAck]] = []
        for number, order in enumerate(self._input):
            if self._plan.rate is not None:
                self._tick_until(started + number / self._plan.rate)
            elif number % _PUBLISH_BLOCK == 0:
                self._tick()
            futures.append(
                self._js.publish_async(
                    subject, order.payload, msg_id=message_id(STAGES[0], order.id)
                )
            )
            self._published += 1
        self._js.publish_async_completed(self._plan.timeout)
        for future in futures:
            future.result(timeout=0)

    def wait(self) -> None:
        """Wait until all that was published has gone all the way, or was lost."""
        check = Deadline(0)
        grace: Deadline | None = None
        while True:
            self._tick()
            if self._tally.complete() or check.expired():
                check = Deadline(_CHECK_INTERVAL)
                settled = self._settled()
                if settled and self._tally.complete():
                    return
                # The server counts what is pending a little after it stores it.
                grace = (grace or Deadline(_GRACE)) if settled else None
                if grace is not None and grace.expired():
                    return
            time.sleep(_TICK)

    def report(self, seconds: float, server: str) -> DemoReport:
        """Close the books; only when everything has stopped."""
        return self._tally.report(
            seconds=seconds,
            server=server,
            workers=[worker_report(step, self._workers[step.consumer]) for step in self._steps],
        )

    def _settled(self) -> bool:
        """Ask the server whether nothing is waiting or under way, and all of it was seen."""
        # In this order: while NEW is idle nothing comes to DISPATCH, and then nothing to the stream.
        for step in self._steps:
            info = self._stream.get_consumer(step.consumer).cached_info
            if info.num_pending or info.num_ack_pending:
                return False
        return bool(self._tally.last_seq >= self._stream.info().state.last_seq)

    def _tick_until(self, moment: float) -> None:
        self._tick()
        while (left := moment - monotonic()) > 0:
            time.sleep(min(left, _TICK))
            self._tick()

    def _tick(self) -> None:
        """Show progress; raise what a worker met, or when what is under way does not move."""
        counts = self._tally.counts()
        self._show(counts)
        for workers in self._workers.values():
            for worker in workers:
                if worker.failure is not None:
                    raise worker.failure
        if counts != self._counts or counts[-1] >= self._published:
            self._counts = counts
            self._stall = Deadline(self._plan.timeout)
        elif self._stall.expired():
            came = ", ".join(f"{n:,} {stage}" for stage, n in zip(STAGES, counts, strict=True))
            raise CommandError(
                f"nothing moved for {self._plan.timeout:g} s: {came} of {len(self._input):,}",
                ExitStatus.TIMED_OUT,
            )

    def _see(self, msg: JetStreamMsg) -> None:
        """Count a message; called by the monitor for each message of the stream, in order."""
        stage = msg.subject.rpartition(".")[2]
        try:
            if stage == STAGES[0]:
                order = orders.parse(msg.data)
                order_id, currency, amount = order.id, order.currency, orders.total(order)
            else:
                order_id, currency, amount = orders.settle(msg.data)
        except OrderError:
            self._tally.see_unreadable(stage)
        else:
            self._tally.see(
                stage,
                order_id,
                orders.fingerprint(order_id, currency, amount),
                msg.metadata.timestamp_ns,
            )
        self._tally.last_seq = msg.metadata.stream_seq


def _stop(handle: ConsumeHandle) -> None:
    """Stop a callback, and wait until it is not running any more."""
    handle.stop()
    handle.wait_closed(_STOP_TIMEOUT)
