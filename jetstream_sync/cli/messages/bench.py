"""
``jsm bench``: measure throughput and latency, with a connection and a thread for each client.

A client records latencies of every n-th message only if it does not wait for a reply, because reading the
clock each time would distort the result.
"""

from __future__ import annotations

import contextlib
import functools
import statistics
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

import click

from ... import errors
from ...client.threads import join, spawn
from ...exit_status import ExitStatus
from ...net.clock import Deadline
from ...subjects import check_publish_subject
from ..shared.long_running import pause
from ..shared.output import count as count_text
from ..shared.output import size
from ..shared.render import Block, Field, show_blocks, show_progress
from ..shared.settings import Settings, command
from ..shared.status import CommandError, FailedError, TimedOutError
from ..shared.values import FROM_1, SIZE, Parsed, allow_one, option, with_options

if TYPE_CHECKING:
    import threading

    from ... import Connection, JetStream, PubAckFuture

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """The work of one client, or of all clients together."""

    count: int
    size: int
    subject: str
    #: The name of the stream; it exists during the measurement only.
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


TimedWork = Callable[[], None]


@dataclass(frozen=True, slots=True)
class BenchKind:
    """One kind of work."""

    path: str
    title: str
    #: What a latency measures.
    latency: str
    #: Prepares the work of a client, and returns the function that is timed.
    start: Callable[[Connection, JetStream, Workload, _Client], TimedWork]
    #: Creates the stream of the work; ``None``: the work needs none.
    prepare: Callable[[JetStream, Workload], Any] | None = None
    #: Whether each client does all of the work, instead of a part of it.
    each: bool = False
    #: Whether the work adds messages to the stream.
    stores: bool = False


def _repeat(
    workload: Workload,
    client: _Client,
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
    now, record = time.perf_counter_ns, client.samples.append
    while client.done < workload.count and not client.stopped:
        if timed is None:
            before = now()
            call()
            record(now() - before)
        else:
            timed()
        more = min(workload.count - client.done, stride) - 1
        for _ in range(more):
            call()
        client.done += more + 1
        early = began + client.done / rate - time.monotonic() if rate is not None else 0.0
        if early > 0:
            pause(early)


def _sampled(workload: Workload) -> int:
    return max(_MIN_STRIDE, workload.count // _MAX_SAMPLES)


# --- core messages --------------------------------------------------------------------------------


def _pub(nc: Connection, _js: JetStream, workload: Workload, client: _Client) -> TimedWork:
    publish = functools.partial(nc.publish, workload.subject, workload.payload)

    def run() -> None:
        _repeat(workload, client, publish, stride=_sampled(workload))
        nc.flush(_FLUSH_TIMEOUT_S)
        if nc.stats["errors_received"]:
            raise CommandError(
                f"the server refused to publish to {workload.subject}", ExitStatus.NO_CONNECTION
            )

    return run


def _sub(nc: Connection, _js: JetStream, workload: Workload, client: _Client) -> TimedWork:
    # No limits: the work waits for every message, so none may be dropped.
    sub = nc.subscribe(workload.subject, pending_msgs_limit=0, pending_bytes_limit=0)
    nc.flush()

    def run() -> None:
        # The publisher starts at an unknown time: the first message starts the clock.
        while not client.done and not client.stopped:
            try:
                sub.next_msg(_WAIT_SLICE_S)
            except errors.TimeoutError:
                continue
            client.started = time.monotonic()
            client.done = 1
        take = functools.partial(sub.next_msg, _STALL_TIMEOUT_S)
        _repeat(workload, client, take, stride=_sampled(workload))

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


def _js_pub(_nc: Connection, js: JetStream, workload: Workload, client: _Client) -> TimedWork:
    publish = functools.partial(js.publish, workload.subject, workload.payload)
    return lambda: _repeat(workload, client, publish)


def _js_pub_async(_nc: Connection, js: JetStream, workload: Workload, client: _Client) -> TimedWork:
    publish = functools.partial(js.publish_async, workload.subject, workload.payload)

    def acked(began: int, _future: PubAckFuture) -> None:
        client.samples.append(time.perf_counter_ns() - began)

    def timed() -> None:
        began = time.perf_counter_ns()
        publish().add_done_callback(functools.partial(acked, began))

    def run() -> None:
        _repeat(workload, client, publish, stride=_sampled(workload), timed=timed)
        js.publish_async_completed(_FLUSH_TIMEOUT_S)

    return run


def _js_fetch(nc: Connection, js: JetStream, workload: Workload, client: _Client) -> TimedWork:
    consumer = js.get_consumer(workload.name, _CONSUMER)

    def run() -> None:
        now = time.perf_counter_ns
        while client.done < workload.count and not client.stopped:
            began = now()
            messages = consumer.fetch(
                min(workload.batch, workload.count - client.done), _STALL_TIMEOUT_S
            )
            client.samples.append(now() - began)
            if not messages:
                raise TimedOutError(
                    f"no message for {_STALL_TIMEOUT_S:g} s, after {client.done:,} of "
                    f"{workload.count:,}"
                )
            for msg in messages:
                msg.ack()
            client.done += len(messages)
        nc.flush(_FLUSH_TIMEOUT_S)

    return run


def _js_ordered(_nc: Connection, js: JetStream, workload: Workload, client: _Client) -> TimedWork:
    stream = js.get_stream(workload.name)

    def run() -> None:
        with stream.ordered_consumer().messages() as messages:
            take = functools.partial(messages.next, _STALL_TIMEOUT_S)
            _repeat(workload, client, take, stride=_sampled(workload))

    return run


# --- running the clients ------------------------------------------------------------------------

_PROGRESS_INTERVAL_S: Final = 0.1
#: Time for the clients to stop by themselves before their connections are closed.
_STOP_TIMEOUT_S: Final = 2.0


@contextlib.contextmanager
def _prepared(settings: Settings, kind: BenchKind, workload: Workload) -> Iterator[None]:
    """Create the stream of the work, verify it at the end, and delete it however the block ends."""
    if kind.prepare is None:
        yield
        return
    with settings.jetstream() as js:
        try:
            kind.prepare(js, workload)
            yield
            found = js.get_stream(workload.name).cached_info.state.messages if kind.stores else 0
            if kind.stores and found != workload.count:
                raise FailedError(f"the stream has {found:,} of {workload.count:,} messages")
        finally:
            # A Ctrl-C may interrupt the creation after the server has created the stream.
            # The name is generated, so the stream cannot belong to another program.
            try:
                with contextlib.suppress(errors.StreamNotFoundError):
                    js.delete_stream(workload.name)
            except errors.Error as error:
                settings.note(f"warning: stream {workload.name} could not be deleted: {error}")


class _Client:
    """
    One client: its connection, its thread and its measurements.

    The thread writes the measurements and the failure, which the main thread reads meanwhile.
    """

    def __init__(
        self, settings: Settings, nc: Connection, kind: BenchKind, workload: Workload
    ) -> None:
        self.done = 0
        #: Set by the other thread to stop the work early.
        self.stopped = False
        #: Latencies in nanoseconds.
        self.samples: list[int] = []
        self.started = 0.0
        self.ended = 0.0
        self.nc = nc
        self.failure: BaseException | None = None
        self._run = kind.start(nc, settings.jetstream_on(nc), workload, self)
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Start the thread."""
        self._thread = spawn("bench", self._work, self._failed)

    def wait(self, seconds: float) -> bool:
        """Wait for the end of the thread, if it was started, and return whether it has ended."""
        return self._thread is None or join(self._thread, seconds)

    def _work(self) -> None:
        try:
            self.started = time.monotonic()
            self._run()
        finally:
            self.ended = time.monotonic()

    def _failed(self, error: BaseException) -> None:
        self.failure = error


def _run(clients: Sequence[_Client], show: Callable[[int], Any]) -> None:
    """Run all clients at the same time until they have ended; raise the error of a client that failed."""
    for client in clients:
        client.start()
    working = list(clients)
    while working:
        working[0].wait(_PROGRESS_INTERVAL_S)
        working = [client for client in working if not client.wait(0.0)]
        show(sum(client.done for client in clients))
        for client in clients:
            if client.failure is not None:
                raise client.failure


def _stop(clients: Sequence[_Client]) -> None:
    for client in clients:
        client.stopped = True
    deadline = Deadline(_STOP_TIMEOUT_S)
    for client in clients:
        client.wait(deadline.left() or 0.0)
    for client in clients:
        client.nc.close()
        client.wait(_STOP_TIMEOUT_S)


def _split(workload: Workload, clients: int, *, each: bool) -> Iterator[Workload]:
    """Yield the workload of each client: a part of the work, or with ``each`` all of it."""
    if workload.count < clients:
        raise CommandError(
            f"--msgs {workload.count} is too few for {clients} clients: each needs at least one message"
        )
    for number in range(clients):
        extra = number < workload.count % clients
        count = workload.count if each else workload.count // clients + extra
        rate = workload.rate / clients if workload.rate is not None else None
        yield replace(workload, count=count, rate=rate)


# --- the commands -------------------------------------------------------------------------------

_PERCENTILES: Final = {"p50_ns": 500, "p90_ns": 900, "p99_ns": 990, "p999_ns": 999}


def _positive(text: str) -> int:
    number: int = SIZE.parse(text)
    if number < 1:
        raise ValueError("must be at least 1")
    return number


_POSITIVE: Final = Parsed("number", _positive)
_RATE: Final = option(
    "--rate N",
    "Maximum messages per second of all clients together.",
    click.FloatRange(0, min_open=True),
)
_SUBJECT: Final = with_options(
    click.argument("given", metavar="[SUBJECT]", required=False),
    option("--subject SUBJECT", "Subject of the messages.  [default: jsm.bench]"),
)
_BATCH: Final = option("--batch N", "Maximum number of messages in a request.", FROM_1, default=500)
_STORED: Final = (
    option(
        "--storage",
        "Storage of the messages; with memory the disk does not affect the result.",
        click.Choice(["memory", "file"]),
        default="memory",
    ),
    option("--replicas N", "Number of replicas.", click.IntRange(1, 5), default=1),
)


def _command(kind: BenchKind, text: str, *more: Callable[[Any], Any]) -> click.Command:
    """Return the command of one kind of work."""

    @command(help=text)
    @with_options(
        option("--msgs N", "Messages of all clients.", _POSITIVE, to="count", default="100k"),
        option("--size BYTES", "Size of each message.", _POSITIVE, default="128"),
        option(
            "--clients N",
            "Number of clients, each with its own connection and thread.",
            click.IntRange(1, 256),
            to="number",
            default=1,
        ),
        *more,
    )
    def measure(settings: Settings, number: int, given: str | None = None, **options: Any) -> None:
        own = uuid.uuid4().hex[:12]
        if "subject" in options:
            allow_one({"SUBJECT": given, "--subject": options["subject"]})
            options["subject"] = given or options["subject"] or "jsm.bench"
        options = {"subject": f"jsm.bench.{own}", **options}
        check_publish_subject(options["subject"])
        workload = Workload(name=f"JSM_BENCH_{own}", **options)
        workloads = list(_split(workload, number, each=kind.each))
        total = sum(workload.count for workload in workloads)
        with _prepared(settings, kind, workload), ExitStack() as connections:
            # All clients are connected before the first one starts.
            clients = [
                _Client(settings, connections.enter_context(settings.connection()), kind, part)
                for part in workloads
            ]
            try:
                with show_progress(settings.env, kind.title, total) as show:
                    _run(clients, show)
            except BaseException as error:
                _stop(clients)
                if isinstance(error, KeyboardInterrupt):
                    line = _summary(_document(kind, clients, workload))
                    settings.env.stderr.write(f"\n{kind.title}: {line}\n")
                raise
            document = _document(kind, clients, workload)
        show_blocks(
            settings,
            document,
            Block("", [Field("Result", _summary)], document),
            Block(f"Latency: {kind.latency}", _LATENCY, document["latency"]),
            heading=kind.title + (f", {len(clients)} clients" if len(clients) > 1 else ""),
        )

    return measure


def _summary(document: dict[str, Any]) -> str:
    """Return one line with the number of messages and the rates."""
    return (
        f"{count_text(document['messages'])} messages of {size(document['size_bytes'])} in "
        f"{document['seconds']:.2f} s: {document['messages_per_second']:,.0f} msgs/s, "
        f"{size(int(document['bytes_per_second']))}/s"
    )


def _document(kind: BenchKind, clients: Sequence[_Client], workload: Workload) -> dict[str, Any]:
    """Return the measurements of all clients, from the start of the first one to the end of the last one."""
    started = min((client.started for client in clients if client.started), default=0.0)
    seconds = max(0.0, max(client.ended for client in clients) - started) if started else 0.0
    messages = sum(client.done for client in clients)
    rate = messages / seconds if seconds else 0.0
    samples = [sample for client in clients for sample in client.samples]
    return {
        "kind": kind.path,
        "title": kind.title,
        "clients": len(clients),
        "messages": messages,
        "size_bytes": workload.size,
        "seconds": seconds,
        "messages_per_second": rate,
        "bytes_per_second": rate * workload.size,
        "latency": {"of": kind.latency, **_latency(samples)},
    }


def _latency(samples: list[int]) -> dict[str, float]:
    """Return statistics of latencies in nanoseconds; nothing without samples."""
    if not samples:
        return {}
    # Before Python 3.13 `quantiles` needs two samples.
    several = samples if len(samples) > 1 else samples * 2
    cuts = statistics.quantiles(several, n=1000, method="inclusive")
    return {
        "samples": len(samples),
        "min_ns": min(samples),
        "avg_ns": statistics.fmean(samples),
        **{name: cuts[per_mille - 1] for name, per_mille in _PERCENTILES.items()},
        "max_ns": max(samples),
    }


def _micros(nanoseconds: float | None) -> str | None:
    return None if nanoseconds is None else f"{nanoseconds / 1000:,.1f} µs"


_LATENCY: Final = (
    Field("Samples", "samples"),
    Field("Minimum", "min_ns", _micros),
    Field("Average", "avg_ns", _micros),
    Field("P50", "p50_ns", _micros),
    Field("P90", "p90_ns", _micros),
    Field("P99", "p99_ns", _micros),
    Field("P99.9", "p999_ns", _micros),
    Field("Maximum", "max_ns", _micros),
)


pub: Final = _command(
    BenchKind("pub", "Core publish", "one call of publish()", _pub),
    "Publish core NATS messages, which are not acknowledged.",
    *(_RATE, _SUBJECT),
)
sub: Final = _command(
    BenchKind("sub", "Core subscribe", "waiting for the next message", _sub, each=True),
    "Receive core NATS messages that another process publishes, such as jsm bench pub.",
    _SUBJECT,
)
js_pub_sync: Final = _command(
    BenchKind(
        *("js pub sync", "Publish, wait for each ack", "from publish to ack"),
        *(_js_pub, _create_stream),
        stores=True,
    ),
    "Publish to a stream and wait for each acknowledgement.",
    *(_RATE, *_STORED),
)
js_pub_async: Final = _command(
    BenchKind(
        *("js pub async", "Publish asynchronously", "from publish to ack"),
        *(_js_pub_async, _create_stream),
        stores=True,
    ),
    "Publish to a stream asynchronously, with up to 4,000 pending acknowledgements.",
    *(_RATE, *_STORED),
)
js_fetch: Final = _command(
    BenchKind("js fetch", "Fetch, ack each", "one fetch", _js_fetch, _fill_consumer),
    "Fetch messages in batches and acknowledge each. The clients share one consumer.",
    *(_BATCH, *_STORED),
)
js_ordered: Final = _command(
    BenchKind(
        *("js ordered", "Read in order, no acks", "waiting for the next message"),
        *(_js_ordered, _fill_stream),
        each=True,
    ),
    "Read a stream in order, without acknowledgements. Each client reads every message.",
    *_STORED,
)
