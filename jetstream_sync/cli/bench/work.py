"""
The work that ``jsm bench`` measures, one function for each kind, for one client.

A kind's function makes ready and returns what the clock runs for. While that runs it counts in a
`Meter`, message by message or in steps, and takes the time of every so-manieth message: of all of
them where an answer is awaited, of a sample where looking at a clock would be a part of the work.
"""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from ...errors import TimeoutError
from ..interruptible import pause
from ..status import CommandError, ExitStatus

if TYPE_CHECKING:
    from concurrent.futures import Future

    from ... import Connection, JetStream, JetStreamMsg, PubAck

__all__ = ["KINDS", "STAMP_BYTES", "Cell", "Kind", "Meter", "every", "stamped_publish"]

#: Samples of a client where not every message is timed.
_SAMPLES: Final = 20_000
#: Up to so many messages all are timed; of more, at most one of so many.
_FEW: Final = 1000
_STRIDE: Final = 8
#: Seconds without any message after which something is wrong.
_PATIENCE: Final = 10.0
#: Seconds that one wait lasts, so that Ctrl-C is heard.
_LOOK: Final = 0.5
#: Seconds for what has to be confirmed at the end.
_GOODBYE: Final = 60.0
#: The time of day that a message was published, in hexadecimal digits at its beginning.
STAMP_BYTES: Final = 16


@dataclass(frozen=True, kw_only=True)
class Cell:
    """What one client has to do."""

    count: int
    size: int
    subject: str
    stream: str = ""
    consumer: str = ""
    batch: int = 500
    rate: float | None = None
    """Messages a second at most; ``None``: as fast as it goes."""
    stamped: bool = False
    """Whether messages begin with the time of their publishing."""


@dataclass
class Meter:
    """How far a client is, and what it measured; read by another thread while it works."""

    done: int = 0
    stopped: bool = False
    """Set by the other thread to end the work early."""
    samples: list[int] = field(default_factory=list)
    """Nanoseconds."""
    started: float = 0.0
    ended: float = 0.0


Run = Callable[[], None]
Start = Callable[["Connection", "JetStream", Cell, Meter], Run]


@dataclass(frozen=True, kw_only=True)
class Kind:
    """One kind of work."""

    title: str
    latency: str
    """What its latencies are."""
    start: Start
    streams: bool = False
    """Whether it needs a stream."""
    reads: bool = False
    """Whether the stream is filled before."""
    pulls: bool = False
    """Whether the clients share a durable consumer, and acknowledge."""
    heard: bool = False
    """Whether somebody else has to publish meanwhile."""


def every(count: int) -> int:
    """Return which messages of so many are timed: every one of a few, else one of some."""
    return 1 if count <= _FEW else max(_STRIDE, count // _SAMPLES)


class _Pace:
    """Keeps a publisher from being faster than it should."""

    def __init__(self, rate: float | None) -> None:
        self._rate = rate
        self._started = time.monotonic()

    def step(self, most: int) -> int:
        """Return how many messages may be sent between two waits."""
        return most if self._rate is None else max(1, min(most, int(self._rate / 100)))

    def wait(self, done: int) -> None:
        """Wait until so many messages may have been sent."""
        if self._rate is not None:
            early = self._started + done / self._rate - time.monotonic()
            if early > 0:
                pause(early)


# --- publishing -----------------------------------------------------------------------------------


def _core(nc: Connection, _js: JetStream, cell: Cell, meter: Meter) -> Run:
    payload = b"x" * cell.size

    def run() -> None:
        subject, publish, now = cell.subject, nc.publish, time.perf_counter_ns
        pace = _Pace(cell.rate)
        step = pace.step(every(cell.count))
        left = cell.count
        while left and not meter.stopped:
            began = now()
            publish(subject, payload)
            meter.samples.append(now() - began)
            more = min(left, step) - 1
            for _ in range(more):
                publish(subject, payload)
            left -= more + 1
            meter.done = cell.count - left
            pace.wait(meter.done)
        nc.flush(_GOODBYE)
        if nc.stats["errors_received"]:
            raise CommandError(f"the server did not take what came to {subject}", ExitStatus.FAILED)

    return run


def _publish(_nc: Connection, js: JetStream, cell: Cell, meter: Meter) -> Run:
    payload = b"x" * cell.size

    def run() -> None:
        subject, publish, now = cell.subject, js.publish, time.perf_counter_ns
        pace = _Pace(cell.rate)
        took = meter.samples.append
        for number in range(1, cell.count + 1):
            began = now()
            publish(subject, payload)
            took(now() - began)
            meter.done = number
            if meter.stopped:
                return
            if cell.rate is not None:
                pace.wait(number)

    return run


def _publish_async(_nc: Connection, js: JetStream, cell: Cell, meter: Meter) -> Run:
    payload = b"x" * cell.size

    def acked(began: int, _future: Future[PubAck]) -> None:
        meter.samples.append(time.perf_counter_ns() - began)

    def run() -> None:
        subject, publish, now = cell.subject, js.publish_async, time.perf_counter_ns
        pace = _Pace(cell.rate)
        step = pace.step(every(cell.count))
        left = cell.count
        while left and not meter.stopped:
            began = now()
            publish(subject, payload).add_done_callback(functools.partial(acked, began))
            more = min(left, step) - 1
            for _ in range(more):
                publish(subject, payload)
            left -= more + 1
            meter.done = cell.count - left
            pace.wait(meter.done)
        js.publish_async_completed(_GOODBYE)

    return run


def stamped_publish(nc: Connection, cell: Cell) -> None:
    """Publish a client's messages, each with the time at its beginning."""
    subject, publish, now = cell.subject, nc.publish, time.monotonic_ns
    filler = b"x" * (cell.size - STAMP_BYTES)
    pace = _Pace(cell.rate)
    step = pace.step(cell.count)
    for number in range(1, cell.count + 1):
        publish(subject, b"%016x" % now() + filler)
        if number % step == 0:
            pace.wait(number)
    nc.flush(_GOODBYE)


# --- reading --------------------------------------------------------------------------------------


def _fetch(nc: Connection, js: JetStream, cell: Cell, meter: Meter) -> Run:
    consumer = js.get_consumer(cell.stream, cell.consumer)

    def run() -> None:
        now = time.perf_counter_ns
        left = cell.count
        while left and not meter.stopped:
            began = now()
            messages = consumer.fetch(min(cell.batch, left), _PATIENCE)
            meter.samples.append(now() - began)
            for msg in messages:
                msg.ack()
            left -= len(messages)
            meter.done = cell.count - left
            if not messages:
                raise _late(meter, cell)
        nc.flush(_GOODBYE)

    return run


def _consume(nc: Connection, js: JetStream, cell: Cell, meter: Meter) -> Run:
    consumer = js.get_consumer(cell.stream, cell.consumer)
    step = every(cell.count)
    ended = threading.Event()
    began = 0

    def take(msg: JetStreamMsg) -> None:
        nonlocal began
        msg.ack()
        meter.done += 1
        if began:
            meter.samples.append(time.perf_counter_ns() - began)
            began = 0
        if meter.done % step == 0:
            began = time.perf_counter_ns()
        if meter.done == cell.count:
            ended.set()

    def run() -> None:
        with consumer.consume(take, max_messages=cell.batch, stop_after=cell.count) as handle:
            seen, since = 0, time.monotonic()
            while not ended.wait(_LOOK) and not meter.stopped:
                if meter.done != seen:
                    seen, since = meter.done, time.monotonic()
                elif handle.error is not None:
                    raise handle.error
                elif time.monotonic() - since > _PATIENCE:
                    raise _late(meter, cell)
        nc.flush(_GOODBYE)

    return run


def _ordered(_nc: Connection, js: JetStream, cell: Cell, meter: Meter) -> Run:
    stream = js.get_stream(cell.stream)

    def run() -> None:
        now = time.perf_counter_ns
        step = every(cell.count)
        left = cell.count
        with stream.ordered_consumer().messages() as messages:
            take = messages.next
            while left and not meter.stopped:
                began = now()
                take(_PATIENCE)
                meter.samples.append(now() - began)
                more = min(left, step) - 1
                for _ in range(more):
                    take(_PATIENCE)
                left -= more + 1
                meter.done = cell.count - left

    return run


def _sub(nc: Connection, _js: JetStream, cell: Cell, meter: Meter) -> Run:
    # No limits: a message that is dropped here would be waited for.
    sub = nc.subscribe(cell.subject, pending_msgs_limit=0, pending_bytes_limit=0)
    nc.flush()

    def run() -> None:
        step = every(cell.count)
        take, waited = sub.next_msg, 0.0
        while meter.done < cell.count and not meter.stopped:
            try:
                msg = take(_LOOK)
            except TimeoutError:
                waited += _LOOK
                if waited >= _PATIENCE and (meter.done or cell.stamped):
                    raise _late(meter, cell) from None
                continue
            if not meter.done and not cell.stamped:
                # Nobody knows when others begin.
                meter.started = time.monotonic()
            waited = 0.0
            meter.done += 1
            if cell.stamped and meter.done % step == 0:
                meter.samples.append(time.monotonic_ns() - int(msg.data[:STAMP_BYTES], 16))

    return run


def _late(meter: Meter, cell: Cell) -> CommandError:
    return CommandError(
        f"{meter.done:,} of {cell.count:,} messages came, and none for {_PATIENCE:g} s",
        ExitStatus.TIMED_OUT,
    )


KINDS: Final[dict[str, Kind]] = {
    "pub": Kind(title="Core publish", latency="a call of publish()", start=_core),
    "publish": Kind(
        title="Publish, wait for each ack",
        latency="from publish to ack",
        start=_publish,
        streams=True,
    ),
    "publish-async": Kind(
        title="Publish, acks come later",
        latency="from publish to ack",
        start=_publish_async,
        streams=True,
    ),
    "fetch": Kind(
        title="Fetch, ack each",
        latency="one fetch",
        start=_fetch,
        streams=True,
        reads=True,
        pulls=True,
    ),
    "consume": Kind(
        title="Consume with a callback, ack each",
        latency="from one message to the next",
        start=_consume,
        streams=True,
        reads=True,
        pulls=True,
    ),
    "ordered": Kind(
        title="Read in order, no acks",
        latency="waiting for the next message",
        start=_ordered,
        streams=True,
        reads=True,
    ),
    "sub": Kind(
        title="Core subscribe",
        latency="from publish to receipt, of a publisher that never waits",
        start=_sub,
        heard=True,
    ),
}
