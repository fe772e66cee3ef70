"""
What every run of the demo has: orders that go in, books that are kept, and a watch over both.

The main thread publishes, shows progress and watches; `Flow.see` is called on the one thread that
reads the stream.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ...net.clock import Deadline, monotonic
from ..status import CommandError, ExitStatus
from . import orders
from .intake import InputOrder
from .orders import OrderError
from .own_stream import new_stream
from .tally import STAGES, Tally
from .workers import message_id

if TYPE_CHECKING:
    from ... import Connection, ConsumeHandle, JetStream, JetStreamMsg, PubAck, Stream

__all__ = ["Errand", "Flow", "Plan", "stop"]

_TICK = 0.02
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


@dataclass(frozen=True, kw_only=True)
class Errand:
    """What a run has to do, and with what; the connection stays open."""

    nc: Connection
    js: JetStream
    """On that connection."""
    orders: Sequence[InputOrder]
    """Each id once."""
    plan: Plan
    show: Callable[[Sequence[int]], None]
    """Called often on the main thread with the number of orders in each stage."""
    warn: Callable[[str], None]
    """Called with a line when something that was made could not be removed."""

    @property
    def server(self) -> str:
        """What it runs on, for people."""
        return f"nats-server {self.nc.server_info.version}"

    def stream(self) -> AbstractContextManager[Stream]:
        """Lend the stream of the run."""
        return new_stream(self.js, self.plan.stream, remove=self.plan.remove, warn=self.warn)


class Flow:
    """
    The orders of one run, on their way.

    Args:
        errand: what is to be done.
        check: called often; raises what has gone wrong elsewhere.

    """

    def __init__(self, errand: Errand, check: Callable[[], None]) -> None:
        plan = errand.plan
        self._js = errand.js
        self._plan = plan
        self._input = errand.orders
        self._show = errand.show
        self._check = check
        self.tally = Tally({order.id: order.fingerprint for order in errand.orders})
        self._published = 0
        self._counts: tuple[int, ...] = ()
        self._stall = Deadline(plan.timeout)

    @contextlib.contextmanager
    def monitor(self, stream: Stream) -> Iterator[None]:
        """Count every message of a stream, for a ``with`` block."""
        handle = stream.ordered_consumer().consume(self.see)
        try:
            yield
        finally:
            stop(handle)

    def publish(self) -> None:
        """Publish the input to the first subject, and see that the stream took every order."""
        subject = self._plan.subject(STAGES[0])
        started = monotonic()
        futures: list[Future[PubAck]] = []
        for number, order in enumerate(self._input):
            if self._plan.rate is not None:
                self._tick_until(started + number / self._plan.rate)
            elif number % _PUBLISH_BLOCK == 0:
                self.tick()
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
        """Let a little time pass."""
        time.sleep(_TICK)

    def tick(self) -> None:
        """
        Show progress.

        Raises:
            CommandError: what is under way does not move.

        """
        counts = self.tally.counts()
        self._show(counts)
        self._check()
        if counts != self._counts or counts[-1] >= self._published:
            self._counts = counts
            self._stall = Deadline(self._plan.timeout)
        elif self._stall.expired():
            came = ", ".join(f"{n:,} {stage}" for stage, n in zip(STAGES, counts, strict=True))
            raise CommandError(
                f"nothing moved for {self._plan.timeout:g} s: {came} of {len(self._input):,}",
                ExitStatus.TIMED_OUT,
            )

    def see(self, msg: JetStreamMsg) -> None:
        """Count a message; called by the monitor for each message of the stream, in order."""
        stage = msg.subject.rpartition(".")[2]
        try:
            if stage == STAGES[0]:
                order = orders.parse(msg.data)
                order_id, currency, amount = order.id, order.currency, orders.total(order)
            else:
                order_id, currency, amount = orders.settle(msg.data)
        except OrderError:
            self.tally.see_unreadable(stage)
        else:
            self.tally.see(
                stage,
                order_id,
                orders.fingerprint(order_id, currency, amount),
                msg.metadata.timestamp_ns,
            )
        self.tally.last_seq = msg.metadata.stream_seq

    def _tick_until(self, moment: float) -> None:
        self.tick()
        while (left := moment - monotonic()) > 0:
            time.sleep(min(left, _TICK))
            self.tick()


def stop(handle: ConsumeHandle) -> None:
    """Stop a callback, and wait until it is not running any more."""
    handle.stop()
    handle.wait_closed(_STOP_TIMEOUT)
