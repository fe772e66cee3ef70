"""
The workers of the demo: each takes messages of one stage and publishes those of the next.

That an order is never done twice although JetStream delivers *at least* once rests on three things:

1. The next message is published, and its acknowledgement awaited, before the input is acknowledged.
   A worker that dies in between leaves an input that is delivered again.
2. The next message has a message id made of the stage and the order, so the stream drops the second
   one of a repeated step within its duplicate window.
3. The step depends on its input alone, so its repetition says the same (but for the worker's name).

So a plain ``ack()`` is enough: if it is lost, 1 to 3 happen once more.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ...errors import Error
from .orders import OrderError
from .tally import WorkerReport

if TYPE_CHECKING:
    from ... import JetStream, JetStreamMsg

__all__ = ["Step", "Worker", "message_id", "worker_report"]


@dataclass(frozen=True, kw_only=True)
class Step:
    """What the workers of one consumer do with a message."""

    #: The consumer's name.
    consumer: str
    #: The stage that the results belong to.
    stage: str
    #: Where the results are published.
    subject: str
    #: Makes order id and result of an input and the worker's name; raises `OrderError`.
    work: Callable[[bytes, str], tuple[str, bytes]]
    #: Share of the orders that are delivered a second time on purpose.
    redeliver_percent: float


def message_id(stage: str, order_id: str) -> str:
    """Return the message id of an order's message in a stage; no two have the same."""
    return f"{stage}:{order_id}"


class Worker:
    """
    One worker of a step, called with each message; its numbers are written by its thread alone.

    Args:
        js: where to publish.
        step: what to do.
        name: unique among all workers.

    """

    def __init__(self, js: JetStream, step: Step, name: str) -> None:
        self._js = js
        self._step = step
        self.name = name
        self.deliveries = 0
        self.redelivered = 0
        self.deduplicated = 0
        self.refused = 0
        self.first_refusal: str | None = None
        #: The first error of the library; the run ends with it.
        self.failure: Error | None = None

    def __call__(self, msg: JetStreamMsg) -> None:
        """Do one message: publish what follows from it, then acknowledge it."""
        if self.failure is not None:
            # The run is over. What is not acknowledged here is not lost.
            return
        try:
            self._handle(msg)
        except Error as error:
            self.failure = error

    def _handle(self, msg: JetStreamMsg) -> None:
        first = msg.metadata.num_delivered == 1
        self.deliveries += 1
        self.redelivered += not first
        try:
            order_id, result = self._step.work(msg.data, self.name)
        except OrderError as error:
            self.refused += 1
            self.first_refusal = self.first_refusal or f"{self.name} refused a message: {error}"
            # It would fail again: no redelivery.
            msg.term(reason=str(error))
            return
        ack = self._js.publish(
            self._step.subject, result, msg_id=message_id(self._step.stage, order_id)
        )
        self.deduplicated += bool(ack.duplicate)
        if first and _chosen(order_id, self._step.redeliver_percent):
            # As if the worker had died here.
            msg.nak()
        else:
            msg.ack()


def _chosen(order_id: str, percent: float) -> bool:
    """Say whether an order is among this share of all orders; always the same ones are."""
    return zlib.crc32(order_id.encode()) % 10_000 < percent * 100


def worker_report(step: Step, workers: Sequence[Worker]) -> WorkerReport:
    """Sum up what the workers of a step did; only when they have ended."""
    return WorkerReport(
        name=step.consumer,
        workers=len(workers),
        deliveries=sum(worker.deliveries for worker in workers),
        redelivered=sum(worker.redelivered for worker in workers),
        deduplicated=sum(worker.deduplicated for worker in workers),
        refused=sum(worker.refused for worker in workers),
        first_refusal=next((w.first_refusal for w in workers if w.first_refusal), None),
    )
