"""
The work that ``jsm bench`` measures: how each kind prepares the server, and what one client does.

A client records latencies of every n-th message only if it does not wait for a reply, because reading the
clock each time would distort the result.
"""

from __future__ import annotations

import functools
import itertools
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from ...errors import TimeoutError
from ..long_running import pause
from ..status import CommandError, ExitStatus

if TYPE_CHECKING:
    from concurrent.futures import Future

    from ... import Connection, JetStream, PubAck

#: Maximum number of samples of a client that does not time every message.
_MAX_SAMPLES: Final = 20_000
#: At most every n-th message of such a client is timed.
_MIN_STRIDE: Final = 8
#: Time without a message after which a client fails.
_STALL_TIMEOUT_S: Final = 10.0
#: Maximum duration of the wait for the first message, so that the client notices an early stop.
_WAIT_SLICE_S: Final = 0.5
#: Maximum time for outstanding confirmations at the end.
_FLUSH_TIMEOUT_S: Final = 120.0
#: Longer than any run: a message that a client has pulled and not read yet is not redelivered.
_ACK_WAIT_S: Final = 120.0
_CONSUMER: Final = "bench"
#: The keys of a bucket; each client uses them in turn.
_KEYS: Final = tuple(f"key.{number}" for number in range(100))


@dataclass(frozen=True, kw_only=True)
class Workload:
    """The work of one client, or of all clients together."""

    count: int
    size: int
    subject: str
    #: The name of the stream or bucket; it exists during the measurement only.
    name: str
    batch: int = 500
    #: Maximum messages per second; ``None`` sets no limit.
    rate: float | None = None
    storage: str = "memory"
    replicas: int = 1

    @property
    def payload(self) -> bytes:
        """The body of a message."""
        return b"x" * self.size


@dataclass
class Meter:
    """Progress and measurements of a client; another thread reads them meanwhile."""

    done: int = 0
    #: Set by the other thread to stop the work early.
    stopped: bool = False
    #: Latencies in nanoseconds.
    samples: list[int] = field(default_factory=list)
    started: float = 0.0
    ended: float = 0.0


Run = Callable[[], None]


@dataclass(frozen=True, kw_only=True)
class BenchKind:
    """One kind of work."""

    title: str
    #: What a latency measures.
    latency: str
    #: Prepares the work of a client, and returns the function that is timed.
    start: Callable[[Connection, JetStream, Workload, Meter], Run]
    #: Creates the stream or bucket of the work; ``None``: the work needs none.
    prepare: Callable[[JetStream, Workload], Any] | None = None
    #: Whether each client does all of the work, instead of a part of it.
    each: bool = False
    #: Whether the work adds messages to the stream.
    stores: bool = False


def _repeat(
    workload: Workload,
    meter: Meter,
    call: Callable[[], object],
    *,
    stride: int = 1,
    timed: Callable[[], object] | None = None,
) -> None:
    """Call a function for each message until the client is stopped, and time every n-th call."""
    # `timed` takes the place of a timed call whose latency is recorded later, by itself.
    began, rate = time.monotonic(), workload.rate
    if rate is not None:
        stride = min(stride, max(1, int(rate / 100)))
    now, record = time.perf_counter_ns, meter.samples.append
    while meter.done < workload.count and not meter.stopped:
        if timed is None:
            before = now()
            call()
            record(now() - before)
        else:
            timed()
        more = min(workload.count - meter.done, stride) - 1
        for _ in range(more):
            call()
        meter.done += more + 1
        early = began + meter.done / rate - time.monotonic() if rate is not None else 0.0
        if early > 0:
            pause(early)


def _sampled(workload: Workload) -> int:
    return max(_MIN_STRIDE, workload.count // _MAX_SAMPLES)


# --- core messages --------------------------------------------------------------------------------


def _pub(nc: Connection, _js: JetStream, workload: Workload, meter: Meter) -> Run:
    publish = functools.partial(nc.publish, workload.subject, workload.payload)

    def run() -> None:
        _repeat(workload, meter, publish, stride=_sampled(workload))
        nc.flush(_FLUSH_TIMEOUT_S)
        if nc.stats["errors_received"]:
            raise CommandError(
                f"the server refused to publish to {workload.subject}", ExitStatus.FAILED
            )

    return run


def _sub(nc: Connection, _js: JetStream, workload: Workload, meter: Meter) -> Run:
    # No limits: the work waits for every message, so none may be dropped.
    sub = nc.subscribe(workload.subject, pending_msgs_limit=0, pending_bytes_limit=0)
    nc.flush()

    def run() -> None:
        # The publisher starts at an unknown time: the first message starts the clock.
        while not meter.done and not meter.stopped:
            try:
                sub.next_msg(_WAIT_SLICE_S)
            except TimeoutError:
                continue
            meter.started = time.monotonic()
            meter.done = 1
        take = functools.partial(sub.next_msg, _STALL_TIMEOUT_S)
        _repeat(workload, meter, take, stride=_sampled(workload))

    return run


# --- streams --------------------------------------------------------------------------------------


def _create_stream(js: JetStream, workload: Workload) -> None:
    js.create_stream(
        name=workload.name,
        subjects=[workload.subject],
        storage=workload.storage,
        num_replicas=workload.replicas,
        description="temporary stream of jsm bench",
    )


def _fill_stream(js: JetStream, workload: Workload) -> None:
    _create_stream(js, workload)
    for _ in range(workload.count):
        js.publish_async(workload.subject, workload.payload)
    js.publish_async_completed(_FLUSH_TIMEOUT_S)


def _fill_consumer(js: JetStream, workload: Workload) -> None:
    _fill_stream(js, workload)
    js.get_stream(workload.name).create_consumer(
        durable_name=_CONSUMER, ack_policy="explicit", max_ack_pending=-1, ack_wait=_ACK_WAIT_S
    )


def _js_pub(_nc: Connection, js: JetStream, workload: Workload, meter: Meter) -> Run:
    publish = functools.partial(js.publish, workload.subject, workload.payload)
    return lambda: _repeat(workload, meter, publish)


def _js_pub_async(_nc: Connection, js: JetStream, workload: Workload, meter: Meter) -> Run:
    publish = functools.partial(js.publish_async, workload.subject, workload.payload)

    def acked(began: int, _future: Future[PubAck]) -> None:
        meter.samples.append(time.perf_counter_ns() - began)

    def timed() -> None:
        began = time.perf_counter_ns()
        publish().add_done_callback(functools.partial(acked, began))

    def run() -> None:
        _repeat(workload, meter, publish, stride=_sampled(workload), timed=timed)
        js.publish_async_completed(_FLUSH_TIMEOUT_S)

    return run


def _js_fetch(nc: Connection, js: JetStream, workload: Workload, meter: Meter) -> Run:
    consumer = js.get_consumer(workload.name, _CONSUMER)

    def run() -> None:
        now = time.perf_counter_ns
        while meter.done < workload.count and not meter.stopped:
            began = now()
            messages = consumer.fetch(
                min(workload.batch, workload.count - meter.done), _STALL_TIMEOUT_S
            )
            meter.samples.append(now() - began)
            if not messages:
                raise CommandError(
                    f"no message for {_STALL_TIMEOUT_S:g} s, after {meter.done:,} of "
                    f"{workload.count:,}",
                    ExitStatus.TIMED_OUT,
                )
            for msg in messages:
                msg.ack()
            meter.done += len(messages)
        nc.flush(_FLUSH_TIMEOUT_S)

    return run


def _js_ordered(_nc: Connection, js: JetStream, workload: Workload, meter: Meter) -> Run:
    stream = js.get_stream(workload.name)

    def run() -> None:
        with stream.ordered_consumer().messages() as messages:
            take = functools.partial(messages.next, _STALL_TIMEOUT_S)
            _repeat(workload, meter, take, stride=_sampled(workload))

    return run


# --- buckets --------------------------------------------------------------------------------------


def _create_bucket(js: JetStream, workload: Workload) -> None:
    js.create_key_value(
        bucket=workload.name,
        storage=workload.storage,
        replicas=workload.replicas,
        description="temporary bucket of jsm bench",
    )


def _fill_bucket(js: JetStream, workload: Workload) -> None:
    _create_bucket(js, workload)
    bucket = js.key_value(workload.name)
    for key in _KEYS:
        bucket.put(key, workload.payload)


def _kv_put(_nc: Connection, js: JetStream, workload: Workload, meter: Meter) -> Run:
    put, keys, payload = js.key_value(workload.name).put, itertools.cycle(_KEYS), workload.payload
    return lambda: _repeat(workload, meter, lambda: put(next(keys), payload))


def _kv_get(_nc: Connection, js: JetStream, workload: Workload, meter: Meter) -> Run:
    get, keys = js.key_value(workload.name).get, itertools.cycle(_KEYS)
    return lambda: _repeat(workload, meter, lambda: get(next(keys)))


KINDS: Final[dict[str, BenchKind]] = {
    "pub": BenchKind(title="Core publish", latency="one call of publish()", start=_pub),
    "sub": BenchKind(
        title="Core subscribe", latency="waiting for the next message", start=_sub, each=True
    ),
    "js pub sync": BenchKind(
        title="Publish, wait for each ack",
        latency="from publish to ack",
        start=_js_pub,
        prepare=_create_stream,
        stores=True,
    ),
    "js pub async": BenchKind(
        title="Publish asynchronously",
        latency="from publish to ack",
        start=_js_pub_async,
        prepare=_create_stream,
        stores=True,
    ),
    "js fetch": BenchKind(
        title="Fetch, ack each", latency="one fetch", start=_js_fetch, prepare=_fill_consumer
    ),
    "js ordered": BenchKind(
        title="Read in order, no acks",
        latency="waiting for the next message",
        start=_js_ordered,
        prepare=_fill_stream,
        each=True,
    ),
    "kv put": BenchKind(
        title="Put values", latency="one put", start=_kv_put, prepare=_create_bucket
    ),
    "kv get": BenchKind(title="Get values", latency="one get", start=_kv_get, prepare=_fill_bucket),
}
