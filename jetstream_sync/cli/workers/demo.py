"""
``jsm demo``: orders go through a stream and two handlers of a worker, and each comes out exactly once.

::

    input ──> ORDERS.received ──> NEW ──> ORDERS.processed ──> DISPATCH ──> ORDERS.completed
                     └────────────────────────┴───────── MONITOR ────────────────┘

NEW and DISPATCH are durable pull consumers with explicit acknowledgement, whose messages a worker handles. MONITOR
is an ordered consumer that reads every message of the stream.

JetStream delivers at least once. Three rules make each order pass exactly once:

1. A handler publishes the next message and waits for its acknowledgement; then the worker acknowledges its
   input. If the handler fails in between, the input is delivered again.
2. The message id of the next message consists of the stage and the id of the order, so the stream drops the
   second one within its duplicate window.
3. The next message depends on the input only, so the second one is equal.
"""

from __future__ import annotations

import contextlib
import dataclasses
import operator
import random
import time
import uuid
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any, BinaryIO, Final

import click

from ... import JetStream, JetStreamMsg, Stream, StreamConfig, errors
from ...client.threads import join, spawn
from ...exit_status import ExitStatus
from ...net.clock import Deadline
from ...server import NatsServer
from ...subjects import check_stream_name
from ...workers import Context, Reject, Retry, Worker
from ..shared.env import json_text, parse_json
from ..shared.long_running import pause
from ..shared.output import emit
from ..shared.render import Field, Table, bad, show_progress, write_rows
from ..shared.settings import Settings, command
from ..shared.status import CommandError, FailedError
from ..shared.values import NonEmptyPath, option

# --- the orders -----------------------------------------------------------------------------------

_SAMPLE_SIZE: Final = 5_000
_SAMPLE_PRICES: Final = ("12.90", "19.90", "24.50", "44.00", "84.90", "119.00", "329.00", "649.00")


#: Takes a JSON value, and returns the fields of the next message.
Work = Callable[[Any], dict[str, Any]]


#: What wrong fields raise in this work; a deeply nested message is a `RuntimeError`.
_INVALID = (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError)


class OrderError(Exception):
    """A message is not a valid order."""


def price(order: Any) -> dict[str, Any]:
    """Do the work of NEW: add up the units and the price of an order."""
    items = [(operator.index(item["quantity"]), item["price"]) for item in order["items"]]
    total = sum(quantity * Decimal(str(item)) for quantity, item in items)
    if not items or not 0 <= total < 10**12:
        raise ValueError(f"total {total}")
    units = sum(quantity for quantity, _ in items)
    return {"id": str(order["id"]), "units": units, "total": f"{total:.2f}"}


def dispatch(order: Any) -> dict[str, Any]:
    """Do the work of DISPATCH: pack a priced order and assign a tracking number."""
    return {
        "id": order["id"],
        "total": order["total"],
        "parcels": -(-order["units"] // 20),  # rounded up
        "tracking_number": f"JS{zlib.crc32(order['id'].encode()):010d}",
    }


def read(payload: bytes, work: Work) -> dict[str, Any]:
    """Return the result of some work on a message; raise `OrderError` for an invalid message."""
    try:
        return work(parse_json(payload))
    except _INVALID as error:
        raise OrderError(f"not a valid order: {error!r}") from error


def read_orders(name: str | None, stdin: BinaryIO) -> dict[str, bytes]:
    """Return the orders of a file by id, one on each line; ``None``: a sample, ``-``: standard input."""
    source, lines = name or "the sample", _sample()
    if name == "-":
        source, lines = "standard input", iter(stdin)
    elif name is not None:
        lines = iter(Path(name).read_bytes().splitlines())
    orders: dict[str, bytes] = {}
    for number, line in enumerate(lines, start=1):
        where = f"{source}, line {number}"
        if not line.strip():
            continue
        try:
            order_id = read(line, price)["id"]
        except OrderError as error:
            raise CommandError(f"{where}: {error}") from error
        if order_id in orders:
            raise CommandError(f"{where}: order {order_id!r} occurs twice")
        orders[order_id] = line.strip()
    if not orders:
        raise CommandError(f"{source} contains no orders")
    return orders


def _sample() -> Iterator[bytes]:
    """Generate the same orders in every run."""
    rng = random.Random(2020)  # noqa: S311 - no secret
    for number in range(1, _SAMPLE_SIZE + 1):
        items = [
            {"quantity": rng.choice((1, 1, 1, 2, 3, 10, 25)), "price": rng.choice(_SAMPLE_PRICES)}
            for _ in range(rng.choice((1, 1, 2, 4)))
        ]
        yield json_text({"id": f"SO-{100_000 + number}", "items": items}).encode()


# --- the worker -----------------------------------------------------------------------------------

#: After this time an order is delivered again whose handler has failed.
_RETRY_DELAY_S: Final = 0.1


@dataclass
class DemoStep:
    """The handler of one step; several threads call it."""

    js: JetStream
    #: The subject to publish to.
    subject: str
    work: Work
    redeliver_percent: float
    #: What happened, by the names in `_COUNTS`; a list, because its append needs no lock.
    counted: list[str] = field(default_factory=list, repr=False)

    def __call__(self, payload: bytes, context: Context) -> None:
        """Do the work, and publish the result; the worker acknowledges the message afterwards."""
        first = context.attempt == 1
        self.counted.append("deliveries")
        if not first:
            self.counted.append("redelivered")
        try:
            order = read(payload, self.work)
        except OrderError as error:
            self.counted.append("refused")
            raise Reject(str(error)) from error  # a redelivery would fail as well
        msg_id = f"{self.subject}:{order['id']}"
        ack = self.js.publish(self.subject, json_text(order).encode(), msg_id=msg_id)
        if ack.duplicate:
            self.counted.append("deduplicated")
        if first and zlib.crc32(order["id"].encode()) % 10_000 < self.redeliver_percent * 100:
            raise Retry("a simulated failure", delay=_RETRY_DELAY_S)


#: What the handlers count: deliveries, of which some are redeliveries; publishes that the stream recognized as
#: duplicates; messages that were not valid orders.
_COUNTS: Final = ("deliveries", "redelivered", "deduplicated", "refused")


# --- the monitor ----------------------------------------------------------------------------------


#: The stages, each with a function that returns the id and the total of its messages.
_STAGES: Final[dict[str, Work]] = {"received": price, "processed": dict, "completed": dict}


class OrderMonitor:
    """Compares every message of the stream with the input; a callback of a consumer."""

    def __init__(self, orders: dict[str, bytes]) -> None:
        self._totals = {name: read(order, price)["total"] for name, order in orders.items()}
        #: The number of messages of each order, by stage.
        self.seen: dict[str, Counter[str]] = {stage: Counter() for stage in _STAGES}
        #: Messages with another total than the order has, or about no order of the input.
        self._wrong: Counter[str] = Counter()
        self.last_seq: int = 0

    def __call__(self, msg: JetStreamMsg) -> None:
        """Compare one message."""
        self.last_seq = msg.metadata.stream_seq
        stage = msg.subject.rpartition(".")[2]
        if stage not in _STAGES:
            stage = "received"  # a message of another subject does not match the input either
        try:
            order = read(msg.data, _STAGES[stage])
            right = order["total"] == self._totals[order["id"]]
        except (OrderError, LookupError, TypeError):
            right = False
        if right:
            self.seen[stage][order["id"]] += 1
        else:
            self._wrong[stage] += 1

    @property
    def completed(self) -> int:
        """Number of orders that came through so far."""
        return len(self.seen["completed"])

    def report(self) -> Iterator[dict[str, Any]]:
        """Yield the numbers of each stage, and whether they match the input."""
        for stage, seen in self.seen.items():
            right, wrong = sum(seen.values()), self._wrong[stage]
            numbers = {
                "missing": len(self._totals) - len(seen),
                "duplicates": right - len(seen),
                "wrong": wrong,
            }
            matches = not any(numbers.values())
            yield {"stage": stage, "messages": right + wrong, **numbers, "matches_input": matches}


# --- the run --------------------------------------------------------------------------------------

#: The consumers: name, stage that it reads, stage that it publishes, and the work.
_STEPS: Final = (
    ("NEW", "received", "processed", price),
    ("DISPATCH", "processed", "completed", dispatch),
)
#: After this time a message that a worker holds is redelivered.
_ACK_WAIT_S: Final = 20.0
_PUBLISH_TIMEOUT_S: Final = 30.0
#: How long to wait for the worker at the end.
_STOP_TIMEOUT_S: Final = 10.0
_CHECK_INTERVAL_S: Final = 0.25
#: How long to wait for missing orders after the server reports that nothing is pending.
_SETTLE_TIME_S: Final = 2.0
#: Metadata of the stream: identifies the run that created it.
_OWNER_KEY: Final = "jsm-demo-run"


@contextlib.contextmanager
def new_stream(settings: Settings, js: JetStream, name: str, *, keep: bool) -> Iterator[Stream]:
    """Create the stream; delete it at the end unless it is kept or is not the stream of this run."""
    # The server returns an existing stream with an equal config as if it had just been created. The
    # owner makes the configs of two runs differ.
    owner = {_OWNER_KEY: uuid.uuid4().hex}
    config = StreamConfig(
        name=name,
        subjects=[f"{name}.*"],
        duplicate_window=timedelta(hours=1),  # longer than any run
        metadata=owner,
    )
    try:
        yield js.create_stream(config)
    finally:
        if not keep:
            _remove_stream(settings, js, name, owner)


def _remove_stream(settings: Settings, js: JetStream, name: str, owner: dict[str, str]) -> None:
    try:
        # Ctrl-C may have come before the stream was created: it may be the stream of another run.
        metadata = js.get_stream(name).cached_info.config.metadata or {}
        if owner.items() <= metadata.items():
            js.delete_stream(name)
    except (errors.StreamNotFoundError, errors.JetStreamNotEnabledError):
        pass
    except errors.Error as error:
        settings.note(f"warning: stream {name} could not be removed: {error}")


@dataclass
class DemoRun:
    """One run: the main thread publishes the input, and waits until the workers are done."""

    js: JetStream
    stream: Stream
    orders: dict[str, bytes]
    monitor: OrderMonitor
    show: Callable[[int], None]
    #: Errors of the connection and of the worker; the first one ends the run.
    failures: list[BaseException]
    number: int
    """The number of threads of each step."""
    steps: dict[str, DemoStep] = field(default_factory=dict)

    def start(
        self, login: Settings, redeliver_percent: float, running: contextlib.ExitStack
    ) -> None:
        """Create the consumers and run a worker for them; ``running`` stops it."""
        running.enter_context(self.stream.ordered_consumer().consume(self.monitor))
        worker = Worker(**login.worker_options(), name="jsm demo", ensure="none", report=None)
        for name, source, target, work in _STEPS:
            self.stream.create_consumer(
                durable_name=name,
                filter_subject=f"{self.stream.name}.{source}",
                ack_wait=_ACK_WAIT_S,
            )
            step = DemoStep(self.js, f"{self.stream.name}.{target}", work, redeliver_percent)
            self.steps[name] = step
            worker.handler(stream=self.stream.name, consumer=name, concurrency=self.number)(step)

        def run() -> None:
            if status := worker.run():
                self.failures.append(CommandError("the worker failed", ExitStatus(status)))

        running.callback(join, spawn("demo", run, self.failures.append), _STOP_TIMEOUT_S)
        running.callback(worker.stop)

    def publish(self, rate: float | None) -> None:
        """Publish the input to the first subject, and check that the stream stored every order."""
        started, subject, futures = time.monotonic(), f"{self.stream.name}.received", []
        for number, (order_id, payload) in enumerate(self.orders.items()):
            if rate is not None:
                pause(started + number / rate - time.monotonic())
            self._check()
            futures.append(self.js.publish_async(subject, payload, msg_id=f"{subject}:{order_id}"))
        self.js.publish_async_completed(_PUBLISH_TIMEOUT_S)
        for future in futures:
            future.result(timeout=0)

    def wait(self) -> None:
        """Wait until every published order is completed or lost."""
        settled = Deadline(_SETTLE_TIME_S)
        while True:
            self._check()
            if not self._idle():
                settled = Deadline(_SETTLE_TIME_S)
            # The server updates its counts of pending messages shortly after it stores one.
            elif self.monitor.completed == len(self.orders) or settled.expired():
                return
            pause(_CHECK_INTERVAL_S)

    def _check(self) -> None:
        self.show(self.monitor.completed)
        if self.failures:
            raise self.failures[0]

    def _idle(self) -> bool:
        """Ask the server whether no message is pending, and whether the monitor has read all."""
        # The order matters: if NEW is idle, nothing new reaches DISPATCH, and then the stream.
        for name in self.steps:
            info = self.stream.get_consumer(name).cached_info
            if info.num_pending or info.num_ack_pending:
                return False
        return self.monitor.last_seq >= self.stream.info().state.last_seq

    def report(self) -> dict[str, Any]:
        """Return the result."""
        stages = list(self.monitor.report())
        consumers = []
        for name, step in self.steps.items():
            counts = Counter(step.counted)
            numbers = {count: counts[count] for count in _COUNTS}
            consumers.append({"name": name, "workers": self.number, **numbers})
        return {
            "exactly_once": all(stage["matches_input"] for stage in stages),
            "orders": len(self.orders),
            "stages": stages,
            "consumers": consumers,
        }


# --- the command ----------------------------------------------------------------------------------


@command()
@option(
    "-i, --input FILE",
    f"Orders as JSON lines, '-' for standard input.  [default: a sample of {_SAMPLE_SIZE:,}]",
    NonEmptyPath(exists=True, dir_okay=False, allow_dash=True),
    to="input_name",
)
@option("-w, --workers", "Threads for each of the two consumers.", click.IntRange(1, 64), default=2)
@option(
    "--redeliver PERCENT",
    "Percentage of orders whose handler fails before the acknowledgement.",
    click.FloatRange(0, 100),
    to="redeliver_percent",
    default=1.0,
)
@option(
    "--rate N",
    "Publish N orders per second.  [default: no limit]",
    click.FloatRange(0, min_open=True),
)
@option("--stream NAME", "Create this stream, for NAME.*.", to="name", default="ORDERS")
@option("--keep", "Keep the stream; needs --server or --context.")
def demo(
    settings: Settings,
    *,
    input_name: str | None,
    workers: int,
    redeliver_percent: float,
    rate: float | None,
    name: str,
    keep: bool,
) -> None:
    """
    Process orders in a pipeline, each exactly once.

    Publishes orders to ORDERS.received. A worker handles the messages of two pull consumers: for NEW
    it checks and prices them, and publishes to ORDERS.processed; for DISPATCH it assigns a tracking
    number, and publishes to ORDERS.completed. MONITOR reads all three subjects and compares them with
    the input.

    Without --server or --context, starts a nats-server for the run, in a temporary directory. With
    one of them, creates the stream there and deletes it at the end; a stream that exists already is
    never changed.

    An order is a JSON object with "id" and "items"; an item has "quantity" and "price". Other
    fields are ignored.

    Exits with status 0 only if every order came through exactly once.
    """
    own_server = not (settings.servers or settings.given.get("context"))
    if keep and own_server:
        raise click.UsageError(
            "--keep needs --server or --context: the demo's own server is removed at the end"
        )
    check_stream_name(name)
    orders = read_orders(input_name, settings.env.stdin)
    monitor, failures, started = OrderMonitor(orders), list[BaseException](), time.monotonic()
    with contextlib.ExitStack() as running:
        login = _own_server(settings, running) if own_server else settings
        nc = running.enter_context(login.connection(name="jsm demo", error_cb=failures.append))
        js = login.jetstream_on(nc)
        shown = show_progress(settings.env, "orders", len(orders))
        show = running.enter_context(shown)
        stream = running.enter_context(new_stream(settings, js, name, keep=keep or own_server))
        run = DemoRun(js, stream, orders, monitor, show, failures, workers)
        run.start(login, redeliver_percent, running)
        run.publish(rate)
        run.wait()
        report = run.report()
        report["server"] = f"nats-server {nc.server_info.version}"
    report["seconds"] = time.monotonic() - started
    emit(settings, report, lambda: _write_report(settings, report))
    if not report["exactly_once"]:
        raise FailedError("not every order came through exactly once")


def _own_server(settings: Settings, running: contextlib.ExitStack) -> Settings:
    """Start a server that runs as long as ``running``, and return settings for it alone."""
    server = running.enter_context(NatsServer())
    env = dataclasses.replace(settings.env, variables={})
    given = {"servers": [server.url], "no_context": True, "trace": settings.trace}
    return Settings(env=env, given=given)


_STAGE_FIELDS: Final = (
    Field("Stage", "stage"),
    Field("Messages", "messages"),
    Field("Missing", "missing"),
    Field("Duplicate", "duplicates"),
    Field("Wrong", "wrong"),
    Field("As input", lambda stage: "yes" if stage["matches_input"] else bad("NO")),
)
_CONSUMER_FIELDS: Final = (
    Field("Consumer", "name"),
    Field("Workers", "workers"),
    *(Field(name.capitalize(), name) for name in _COUNTS),
)


def _write_report(settings: Settings, report: dict[str, Any]) -> None:
    out, orders = settings.env.stdout, f"{report['orders']:,} orders"
    title = f"Messages in the stream, for {orders}"
    write_rows(settings, report["stages"], Table(_STAGE_FIELDS, title))
    out.write("\n")
    write_rows(settings, report["consumers"], Table(_CONSUMER_FIELDS, "Work of the consumers"))
    if report["exactly_once"]:
        out.write(
            f"\nEvery order came through exactly once: {orders}, 3 stages, "
            f"{report['seconds']:.2f} s on {report['server']}\n"
        )
