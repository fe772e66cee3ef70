"""
The work that ``jsm bench`` measures, one function for each kind, for one client.

The function of a kind prepares the work and returns the function that is timed. While it runs, that
function counts messages in a `Meter`, one by one or in steps, and records latencies: of every message
if the work waits for a reply, else of every n-th message, because reading the clock each time would
distort the result.
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

#: Maximum number of samples of a client that does not time every message.
_MAX_SAMPLES: Final = 20_000
#: Up to this number of messages, every message is timed.
_ALL_TIMED: Final = 1000
#: Above it, at most every n-th message is timed.
_MIN_STRIDE: Final = 8
#: Time without a message after which a client fails.
_STALL_TIMEOUT_S: Final = 10.0
#: Maximum duration of one wait, so that the client notices an early stop.
_WAIT_SLICE_S: Final = 0.5
#: Maximum time for outstanding confirmations at the end.
_FLUSH_TIMEOUT_S: Final = 60.0
#: Length of the publish time at the start of a payload, in hexadecimal digits.
TIMESTAMP_BYTES: Final = 16


@dataclass(frozen=True, kw_only=True)
class Workload:
    """The work of one client."""

    count: int
    size: int
    subject: str
    stream: str = ""
    consumer: str = ""
    batch: int = 500
    rate: float | None = None
    """Maximum messages per second; ``None`` sets no limit."""
    timestamped: bool = False
    """Whether each message begins with the time when it was published."""


@dataclass
class Meter:
    """Progress and measurements of a client; another thread reads them meanwhile."""

    done: int = 0
    stopped: bool = False
    """Set by the other thread to stop the work early."""
    samples: list[int] = field(default_factory=list)
    """Latencies in nanoseconds."""
    started: float = 0.0
    ended: float = 0.0


Run = Callable[[], None]
Start = Callable[["Connection", "JetStream", Workload, Meter], Run]


@dataclass(frozen=True, kw_only=True)
class BenchKind:
    """One kind of work."""

    title: str
    latency: str
    """What a latency measures."""
    start: Start
    needs_stream: bool = False
    """Whether the work needs a stream."""
    reads: bool = False
    """Whether the stream must be filled first."""
    shares_consumer: bool = False
    """Whether the clients share a durable consumer and acknowledge its messages."""
    needs_publisher: bool = False
    """Whether another client must publish while the work runs."""


def sampling_stride(count: int) -> int:
    """Return n so that every n-th of this number of messages is timed."""
    return 1 if count <= _ALL_TIMED else max(_MIN_STRIDE, count // _MAX_SAMPLES)


class _RateLimit:
    """Limit the rate of a publisher."""

    def __init__(self, rate: float | None) -> None:
        self._rate = rate
        self._started = time.monotonic()

    def step(self, most: int) -> int:
        """Return the number of messages to send between two calls of `wait`, at most ``most``."""
        return most if self._rate is None else max(1, min(most, int(self._rate / 100)))

    def wait(self, done: int) -> None:
        """Wait until the rate allows this number of messages."""
        if self._rate is not None:
            early = self._started + done / self._rate - time.monotonic()
            if early > 0:
                pause(early)


# --- publishing -----------------------------------------------------------------------------------


def _core(nc: Connection, _js: JetStream, workload: Workload, meter: Meter) -> Run:
    payload = b"x" * workload.size

    def run() -> None:
        subject, publish, now = workload.subject, nc.publish, time.perf_counter_ns
        limit = _RateLimit(workload.rate)
        step = limit.step(sampling_stride(workload.count))
        left = workload.count
        while left and not meter.stopped:
            began = now()
            publish(subject, payload)
            meter.samples.append(now() - began)
            more = min(left, step) - 1
            for _ in range(more):
                publish(subject, payload)
            left -= more + 1
            meter.done = workload.count - left
            limit.wait(meter.done)
        nc.flush(_FLUSH_TIMEOUT_S)
        if nc.stats["errors_received"]:
            raise CommandError(f"the server refused to publish to {subject}", ExitStatus.FAILED)

    return run


def _publish(_nc: Connection, js: JetStream, workload: Workload, meter: Meter) -> Run:
    payload = b"x" * workload.size

    def run() -> None:
        subject, publish, now = workload.subject, js.publish, time.perf_counter_ns
        limit = _RateLimit(workload.rate)
        took = meter.samples.append
        for number in range(1, workload.count + 1):
            began = now()
            publish(subject, payload)
            took(now() - began)
            meter.done = number
            if meter.stopped:
                return
            if workload.rate is not None:
                limit.wait(number)

    return run


def _publish_async(_nc: Connection, js: JetStream, workload: Workload, meter: Meter) -> Run:
    payload = b"x" * workload.size

    def acked(began: int, _future: Future[PubAck]) -> None:
        meter.samples.append(time.perf_counter_ns() - began)

    def run() -> None:
        subject, publish, now = workload.subject, js.publish_async, time.perf_counter_ns
        limit = _RateLimit(workload.rate)
        step = limit.step(sampling_stride(workload.count))
        left = workload.count
        while left and not meter.stopped:
            began = now()
            publish(subject, payload).add_done_callback(functools.partial(acked, began))
            more = min(left, step) - 1
            for _ in range(more):
                publish(subject, payload)
            left -= more + 1
            meter.done = workload.count - left
            limit.wait(meter.done)
        js.publish_async_completed(_FLUSH_TIMEOUT_S)

    return run


def publish_timestamped(nc: Connection, workload: Workload) -> None:
    """Publish the messages of a client, each with the current time at its beginning."""
    subject, publish, now = workload.subject, nc.publish, time.monotonic_ns
    filler = b"x" * (workload.size - TIMESTAMP_BYTES)
    limit = _RateLimit(workload.rate)
    step = limit.step(workload.count)
    for number in range(1, workload.count + 1):
        publish(subject, b"%016x" % now() + filler)
        if number % step == 0:
            limit.wait(number)
    nc.flush(_FLUSH_TIMEOUT_S)


# --- reading --------------------------------------------------------------------------------------


def _fetch(nc: Connection, js: JetStream, workload: Workload, meter: Meter) -> Run:
    consumer = js.get_consumer(workload.stream, workload.consumer)

    def run() -> None:
        now = time.perf_counter_ns
        left = workload.count
        while left and not meter.stopped:
            began = now()
            messages = consumer.fetch(min(workload.batch, left), _STALL_TIMEOUT_S)
            meter.samples.append(now() - began)
            for msg in messages:
                msg.ack()
            left -= len(messages)
            meter.done = workload.count - left
            if not messages:
                raise _stalled(meter, workload)
        nc.flush(_FLUSH_TIMEOUT_S)

    return run


def _consume(nc: Connection, js: JetStream, workload: Workload, meter: Meter) -> Run:
    consumer = js.get_consumer(workload.stream, workload.consumer)
    step = sampling_stride(workload.count)
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
        if meter.done == workload.count:
            ended.set()

    def run() -> None:
        with consumer.consume(
            take, max_messages=workload.batch, stop_after=workload.count
        ) as handle:
            seen, since = 0, time.monotonic()
            while not ended.wait(_WAIT_SLICE_S) and not meter.stopped:
                if meter.done != seen:
                    seen, since = meter.done, time.monotonic()
                elif handle.error is not None:
                    raise handle.error
                elif time.monotonic() - since > _STALL_TIMEOUT_S:
                    raise _stalled(meter, workload)
        nc.flush(_FLUSH_TIMEOUT_S)

    return run


def _ordered(_nc: Connection, js: JetStream, workload: Workload, meter: Meter) -> Run:
    stream = js.get_stream(workload.stream)

    def run() -> None:
        now = time.perf_counter_ns
        step = sampling_stride(workload.count)
        left = workload.count
        with stream.ordered_consumer().messages() as messages:
            take = messages.next
            while left and not meter.stopped:
                began = now()
                take(_STALL_TIMEOUT_S)
                meter.samples.append(now() - began)
                more = min(left, step) - 1
                for _ in range(more):
                    take(_STALL_TIMEOUT_S)
                left -= more + 1
                meter.done = workload.count - left

    return run


def _sub(nc: Connection, _js: JetStream, workload: Workload, meter: Meter) -> Run:
    # No limits: the work waits for every message, so none may be dropped.
    sub = nc.subscribe(workload.subject, pending_msgs_limit=0, pending_bytes_limit=0)
    nc.flush()

    def run() -> None:
        step = sampling_stride(workload.count)
        take, waited = sub.next_msg, 0.0
        while meter.done < workload.count and not meter.stopped:
            try:
                msg = take(_WAIT_SLICE_S)
            except TimeoutError:
                waited += _WAIT_SLICE_S
                if waited >= _STALL_TIMEOUT_S and (meter.done or workload.timestamped):
                    raise _stalled(meter, workload) from None
                continue
            if not meter.done and not workload.timestamped:
                # The publishers of --no-publish start at an unknown time.
                meter.started = time.monotonic()
            waited = 0.0
            meter.done += 1
            if workload.timestamped and meter.done % step == 0:
                meter.samples.append(time.monotonic_ns() - int(msg.data[:TIMESTAMP_BYTES], 16))

    return run


def _stalled(meter: Meter, workload: Workload) -> CommandError:
    return CommandError(
        f"received {meter.done:,} of {workload.count:,} messages, and none for {_STALL_TIMEOUT_S:g} s",
        ExitStatus.TIMED_OUT,
    )


KINDS: Final[dict[str, BenchKind]] = {
    "pub": BenchKind(title="Core publish", latency="one call of publish()", start=_core),
    "publish": BenchKind(
        title="Publish, wait for each ack",
        latency="from publish to ack",
        start=_publish,
        needs_stream=True,
    ),
    "publish-async": BenchKind(
        title="Publish asynchronously",
        latency="from publish to ack",
        start=_publish_async,
        needs_stream=True,
    ),
    "fetch": BenchKind(
        title="Fetch, ack each",
        latency="one fetch",
        start=_fetch,
        needs_stream=True,
        reads=True,
        shares_consumer=True,
    ),
    "consume": BenchKind(
        title="Consume with a callback, ack each",
        latency="from one message to the next",
        start=_consume,
        needs_stream=True,
        reads=True,
        shares_consumer=True,
    ),
    "ordered": BenchKind(
        title="Read in order, no acks",
        latency="waiting for the next message",
        start=_ordered,
        needs_stream=True,
        reads=True,
    ),
    "sub": BenchKind(
        title="Core subscribe",
        latency="from publish to receipt, with a publisher that does not wait",
        start=_sub,
        needs_publisher=True,
    ),
}
