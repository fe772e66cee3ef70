"""``jsm bench``: measure throughput and latency."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Final

import click

from ...subjects import check_publish_subject
from ..groups import NounGroup
from ..long_running import password_once
from ..output import emit, note
from ..progress import Progress, show_progress
from ..settings import Settings, common_options
from ..values import FILE, SIZE, with_options
from .results import document, show_many, show_one, summary, write_csv
from .run import BenchStream, Interrupted, Outcome, bench_stream, run_clients, split
from .work import KINDS, TIMESTAMP_BYTES, BenchKind, Workload
from .worker_process import WorkerProcess, worker_job

_MESSAGES: Final = 100_000


@dataclass(frozen=True, kw_only=True)
class BenchOptions:
    """The options of a measurement."""

    msgs: int
    size: int
    clients: int = 1
    batch: int = 500
    storage: str = "memory"
    replicas: int = 1
    rate: float | None = None
    subject: str | None = None
    publisher: bool = True
    quiet: bool = False
    csv: str | None = None

    def check(self, settings: Settings) -> None:
        """
        Check the options.

        Raises:
            click.UsageError: a value is out of range, or two options exclude each other.

        """
        if self.msgs < 1 or self.size < 1:
            raise click.UsageError("--msgs and --size must be at least 1")
        if self.subject is not None:
            check_publish_subject(self.subject)
        if self.csv == "-" and settings.json:
            raise click.UsageError("--csv - and --json exclude each other")
        if not self.publisher and self.subject is None:
            raise click.UsageError(
                "--no-publish needs --subject, which another client publishes to"
            )


def _positive(context: click.Context, parameter: click.Parameter, value: int) -> int:
    if value < 1:
        raise click.BadParameter("must be at least 1", context, parameter)
    return value


def measure_options(*more: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return a decorator that adds the common options of all measurements, and these ones."""
    return with_options(
        click.option(
            "--msgs",
            type=SIZE,
            default=str(_MESSAGES),
            callback=_positive,
            metavar="N",
            help=f"Number of messages of all clients together.  [default: {_MESSAGES:,}]",
        ),
        click.option(
            "--size",
            type=SIZE,
            default="128",
            callback=_positive,
            metavar="BYTES",
            help="Size of each message.  [default: 128]",
        ),
        *more,
        click.option("--no-progress", "quiet", is_flag=True, help="Show no progress."),
        click.option(
            "--csv",
            type=FILE,
            metavar="FILE",
            help="Write the results as CSV; '-' for standard output.",
        ),
        common_options,
    )


CLIENTS = click.option(
    "--clients",
    type=click.IntRange(1, 256),
    default=1,
    show_default=True,
    metavar="N",
    help="Number of clients, each with its own connection and thread.",
)
BATCH = click.option(
    "--batch",
    type=click.IntRange(1),
    default=500,
    show_default=True,
    metavar="N",
    help="Maximum number of messages in a pull request.",
)
STORAGE = click.option(
    "--storage",
    type=click.Choice(["memory", "file"]),
    default="memory",
    show_default=True,
    help="Storage of the stream; with memory the disk does not affect the result.",
)
REPLICAS = click.option(
    "--replicas",
    type=click.IntRange(1, 5),
    default=1,
    show_default=True,
    metavar="N",
    help="Number of replicas of the stream.",
)
RATE = click.option(
    "--rate",
    type=click.FloatRange(0, min_open=True),
    metavar="N",
    help="Maximum messages per second of all clients together.",
)
SUBJECT = click.option(
    "--subject", metavar="SUBJECT", help="Subject to use.  [default: a generated one]"
)
PUBLISHER = click.option(
    "--no-publish",
    "publisher",
    is_flag=True,
    default=True,
    flag_value=False,
    help="Do not publish; receive what other clients publish to --subject.",
)


@click.group(cls=NounGroup)
@common_options
def bench(_settings: Settings) -> None:
    """
    Measure throughput and latency.

    A measurement that needs a stream creates one with a generated name and deletes it at the end,
    also after Ctrl-C. Latency percentiles cover every message if the client waits for a reply, else
    a sample of the messages.
    """


def _command(name: str, text: str, *more: Callable[[Any], Any]) -> click.Command:
    """Return the command of one kind of work."""

    @click.command(name, help=text, short_help=KINDS[name].title + ".")
    @measure_options(*more)
    def measure(settings: Settings, **options: Any) -> None:
        _measure(settings, [name], BenchOptions(**options))

    return measure


_ALL: Final = (
    _command(
        "pub", "Publish core NATS messages, which are not acknowledged.", CLIENTS, RATE, SUBJECT
    ),
    _command(
        "sub",
        "Receive core NATS messages. Another process publishes them.",
        CLIENTS,
        RATE,
        SUBJECT,
        PUBLISHER,
    ),
    _command(
        "publish",
        "Publish to a stream and wait for each acknowledgement.",
        CLIENTS,
        RATE,
        STORAGE,
        REPLICAS,
    ),
    _command(
        "publish-async",
        "Publish to a stream asynchronously, with up to 4,000 pending acknowledgements.",
        CLIENTS,
        RATE,
        STORAGE,
        REPLICAS,
    ),
    _command(
        "fetch",
        "Fetch messages in batches and acknowledge each. The clients share one consumer.",
        CLIENTS,
        BATCH,
        STORAGE,
        REPLICAS,
    ),
    _command(
        "consume",
        "Consume messages with a callback and acknowledge each. The clients share one consumer.",
        CLIENTS,
        BATCH,
        STORAGE,
        REPLICAS,
    ),
    _command(
        "ordered",
        "Read a stream in order, without acknowledgements. Each client reads every message.",
        CLIENTS,
        STORAGE,
        REPLICAS,
    ),
)
for _each in _ALL:
    bench.add_command(_each)


@bench.command("all")
@measure_options(CLIENTS, BATCH, STORAGE, REPLICAS)
def all_kinds(settings: Settings, **options: Any) -> None:
    """Run all measurements one after the other and show a table."""
    _measure(settings, list(KINDS), BenchOptions(**options))


# --- command names of the nats CLI -----------------------------------------------------------------


@bench.group("js", cls=NounGroup, hidden=True)
@common_options
def js_group(_settings: Settings) -> None:
    """Measure JetStream; the same command names as in the nats CLI."""


@js_group.group("pub", cls=NounGroup)
@common_options
def js_pub_group(_settings: Settings) -> None:
    """Publish to a stream."""


for _each in _ALL[4:]:
    js_group.add_command(_each)
js_pub_group.add_command(_ALL[2], "sync")
js_pub_group.add_command(_ALL[3], "async")


# --- measurement ------------------------------------------------------------------------------------


def _measure(settings: Settings, names: list[str], options: BenchOptions) -> None:
    options.check(settings)
    password_once(settings)
    env = settings.env
    needs_stream = any(KINDS[name].needs_stream for name in names)
    with (
        settings.jetstream() as js,
        bench_stream(
            js,
            needs_stream=needs_stream,
            storage=options.storage,
            replicas=options.replicas,
            subject=options.subject,
            warn=lambda line: note(settings, f"warning: {line}"),
        ) as target,
    ):
        measurement = _Measurement(settings, options, target)
        try:
            outcomes = [measurement.outcome(name) for name in names]
        except Interrupted as stopped:
            env.stderr.write(f"\n{stopped.outcome.kind.title}: {summary(stopped.outcome)}\n")
            raise
    if options.csv is not None:
        write_csv(outcomes, options.csv, env)
    documents = [document(each) for each in outcomes]
    if len(outcomes) > 1:
        if options.csv != "-":
            emit(settings, documents, lambda: show_many(outcomes, env))
    elif options.csv != "-":
        emit(settings, documents[0], lambda: show_one(outcomes[0], env))


@dataclass(frozen=True)
class _Measurement:
    """Measure kinds of work one after the other with the same target."""

    settings: Settings
    options: BenchOptions
    target: BenchStream

    def _cell(self, kind: BenchKind) -> Workload:
        options, target = self.options, self.target
        return Workload(
            count=options.msgs,
            size=max(options.size, TIMESTAMP_BYTES) if kind.needs_publisher else options.size,
            subject=target.subject,
            stream=target.stream,
            consumer=target.consumer,
            batch=options.batch,
            rate=options.rate,
            timestamped=kind.needs_publisher and options.publisher,
        )

    def _separate_core(self, kind: BenchKind, workload: Workload) -> Workload:
        """Change the subject of core messages so that the stream does not store them."""
        if kind.needs_stream or not self.target.stream:
            return workload
        return replace(workload, subject=f"{workload.subject}.core")

    def _progress(self, title: str, total: int) -> contextlib.AbstractContextManager[Progress]:
        quiet = self.options.quiet or self.settings.json
        return show_progress(self.settings.env, title, total, quiet=quiet)

    def _prepare(self, kind: BenchKind) -> None:
        with self._progress("Filling the stream", self.options.msgs) as shown:
            self.target.prepare(kind, self.options.msgs, self.options.size, shown.show)

    def outcome(self, name: str) -> Outcome:
        """Measure one kind of work, and verify on the server that it was done."""
        kind = KINDS[name]
        self._prepare(kind)
        workload = self._separate_core(kind, self._cell(kind))
        reads_all = kind.reads and not kind.shares_consumer
        workloads = list(
            split(workload, self.options.clients, each=reads_all or kind.needs_publisher)
        )
        with self._progress(kind.title, sum(each.count for each in workloads)) as shown:
            outcome = run_clients(
                self.settings,
                name,
                kind,
                workloads,
                show=shown.show,
                helper=lambda: self._publisher(workload),
            )
        self.target.verify(kind, self.options.msgs)
        return outcome

    @contextlib.contextmanager
    def _publisher(self, workload: Workload) -> Iterator[Callable[[], None]]:
        """Start a publisher in another process if the workload needs it; yield its start function."""
        if not workload.timestamped:
            yield lambda: None
            return
        with WorkerProcess(worker_job(self.settings, workload)) as worker:
            worker.ready()
            yield worker.start_publishing
