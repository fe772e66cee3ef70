"""
The ORDERS architecture on a server: one stream, two pull consumers, a monitor, and their workers.

::

    input ──> ORDERS.received ──> NEW ──> ORDERS.processed ──> DISPATCH ──> ORDERS.completed
                     └────────────────────────┴───────── MONITOR ────────────────┘

The stream holds ``ORDERS.*``. NEW and DISPATCH are durable pull consumers with explicit
acknowledgement and any number of workers each; see `jetstream_sync.cli.demo.workers` for why no order is
done twice. MONITOR is an ordered consumer: it sees every message of the stream in order, and
acknowledges nothing.

The main thread publishes, shows progress and watches, see `jetstream_sync.cli.demo.flow`; everything else
runs in callbacks, on the threads of the library.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING

from ... import AckPolicy, ConsumerConfig
from ...net.clock import Deadline, monotonic
from . import orders
from .flow import Errand, Flow, stop
from .tally import STAGES, DemoReport
from .workers import Step, Worker, worker_report

if TYPE_CHECKING:
    from ... import Stream

__all__ = ["run_pipeline"]

#: After this a message that a worker holds goes to another; below the default of --timeout.
_ACK_WAIT = timedelta(seconds=20)
_CHECK_INTERVAL = 0.25
#: How long to look for orders that are still under way when the server says that none is.
_GRACE = 2.0


def run_pipeline(errand: Errand) -> DemoReport:
    """
    Send all orders through, and report: the books, whether they balance or not.

    Raises:
        CommandError: the stream exists already, or nothing moved for as long as is planned.
        Error: the server refused something, or the connection is lost.

    """
    started = monotonic()
    with errand.stream() as stream, contextlib.ExitStack() as running:
        run = _Run(errand, stream)
        run.start(running)
        run.flow.publish()
        run.wait()
        running.close()
        return run.report(monotonic() - started, errand.server)


class _Run:
    """One run: the books, the workers and the waiting."""

    def __init__(self, errand: Errand, stream: Stream) -> None:
        self._stream = stream
        self._plan = errand.plan
        self.flow = Flow(errand, self._check)
        self._steps = (
            self._step("NEW", STAGES[1], orders.process),
            self._step("DISPATCH", STAGES[2], orders.complete),
        )
        self._workers = {
            step.consumer: [
                Worker(errand.js, step, f"{step.consumer}-{number}")
                for number in range(1, errand.plan.workers + 1)
            ]
            for step in self._steps
        }

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
        running.enter_context(self.flow.monitor(self._stream))
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
                running.callback(stop, consumer.consume(worker))

    def wait(self) -> None:
        """Wait until all that was published has gone all the way, or was lost."""
        check = Deadline(0)
        grace: Deadline | None = None
        while True:
            self.flow.tick()
            if self.flow.tally.complete() or check.expired():
                check = Deadline(_CHECK_INTERVAL)
                settled = self._settled()
                if settled and self.flow.tally.complete():
                    self.flow.tick()
                    return
                # The server counts what is pending a little after it stores it.
                grace = (grace or Deadline(_GRACE)) if settled else None
                if grace is not None and grace.expired():
                    return
            self.flow.wait()

    def report(self, seconds: float, server: str) -> DemoReport:
        """Close the books; only when everything has stopped."""
        return self.flow.tally.report(
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
        return bool(self.flow.tally.last_seq >= self._stream.info().state.last_seq)

    def _check(self) -> None:
        """Raise what a worker met."""
        for workers in self._workers.values():
            for worker in workers:
                if worker.failure is not None:
                    raise worker.failure
