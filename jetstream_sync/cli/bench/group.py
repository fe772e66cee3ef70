"""``jsm bench``: measure how fast messages go."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Final

import click

from ..groups import NounGroup
from ..long_running import password_once
from ..output import emit, note
from ..settings import Settings, common_options
from .bed import Bed, bench_bed
from .options import (
    BATCH,
    CLIENTS,
    PUBLISHER,
    RATE,
    REPLICAS,
    STORAGE,
    SUBJECT,
    Plan,
    measure_options,
)
from .peer import Peer, job_for
from .progress import Ticker
from .run import Interrupted, Outcome, run_clients, split
from .show import (
    document,
    show_many,
    show_one,
    summary,
    write_csv,
)
from .work import KINDS, STAMP_BYTES, Cell, Kind

__all__ = ["bench"]


@click.group(cls=NounGroup)
@common_options
def bench(_settings: Settings) -> None:
    """
    Measure how fast messages go.

    Kinds of work that need a stream make one of their own, and remove it at the end, after Ctrl-C
    as well. Percentiles are of the times of single messages: of all of them where an answer is
    awaited, else of a sample.
    """


def _command(name: str, text: str, *more: Callable[[Any], Any]) -> click.Command:
    """Make the command of one kind of work."""

    @click.command(name, help=text, short_help=KINDS[name].title + ".")
    @measure_options(*more)
    def measure(settings: Settings, **options: Any) -> None:
        _measure(settings, [name], Plan(**options))

    return measure


_ALL: Final = (
    _command("pub", "Publish to core NATS, which confirms nothing.", CLIENTS, RATE, SUBJECT),
    _command(
        "sub",
        "Receive messages of core NATS. A process of its own publishes them.",
        CLIENTS,
        RATE,
        SUBJECT,
        PUBLISHER,
    ),
    _command(
        "publish",
        "Publish to a stream, and wait for each acknowledgement.",
        CLIENTS,
        RATE,
        STORAGE,
        REPLICAS,
    ),
    _command(
        "publish-async",
        "Publish to a stream; up to 4,000 acknowledgements are awaited at a time.",
        CLIENTS,
        RATE,
        STORAGE,
        REPLICAS,
    ),
    _command(
        "fetch",
        "Fetch a stream's messages in batches, and acknowledge each. The clients share a consumer.",
        CLIENTS,
        BATCH,
        STORAGE,
        REPLICAS,
    ),
    _command(
        "consume",
        "Have a callback called with a stream's messages, which acknowledges each. The clients "
        "share a consumer.",
        CLIENTS,
        BATCH,
        STORAGE,
        REPLICAS,
    ),
    _command(
        "ordered",
        "Read a stream in order, without acknowledgements. Each client reads all of it.",
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
    """Measure every kind of work, one after the other, and show a table."""
    _measure(settings, list(KINDS), Plan(**options))


# --- as the nats command has them -----------------------------------------------------------------


@bench.group("js", cls=NounGroup, hidden=True)
@common_options
def js_group(_settings: Settings) -> None:
    """Find the work with streams where the nats command has it."""


@js_group.group("pub", cls=NounGroup)
@common_options
def js_pub_group(_settings: Settings) -> None:
    """Publish to a stream."""


for _each in _ALL[4:]:
    js_group.add_command(_each)
js_pub_group.add_command(_ALL[2], "sync")
js_pub_group.add_command(_ALL[3], "async")


# --- measuring ------------------------------------------------------------------------------------


def _measure(settings: Settings, names: list[str], plan: Plan) -> None:
    plan.check(settings)
    password_once(settings)
    env = settings.env
    streams = any(KINDS[name].streams for name in names)
    with (
        settings.jetstream() as js,
        bench_bed(
            js,
            streams=streams,
            storage=plan.storage,
            replicas=plan.replicas,
            subject=plan.subject,
            warn=lambda line: note(settings, f"warning: {line}"),
        ) as bed,
    ):
        measuring = _Measuring(settings, plan, bed)
        try:
            outcomes = [measuring.outcome(name) for name in names]
        except Interrupted as stopped:
            env.stderr.write(f"\n{stopped.outcome.kind.title}: {summary(stopped.outcome)}\n")
            raise
    if plan.csv is not None:
        write_csv(outcomes, plan.csv, env)
    documents = [document(each) for each in outcomes]
    if len(outcomes) > 1:
        if plan.csv != "-":
            emit(settings, documents, lambda: show_many(outcomes, env))
    elif plan.csv != "-":
        emit(settings, documents[0], lambda: show_one(outcomes[0], env))


@dataclass(frozen=True)
class _Measuring:
    """Measures one kind of work after the other on a bed."""

    settings: Settings
    plan: Plan
    bed: Bed

    def _cell(self, kind: Kind) -> Cell:
        plan, bed = self.plan, self.bed
        return Cell(
            count=plan.msgs,
            size=max(plan.size, STAMP_BYTES) if kind.heard else plan.size,
            subject=bed.subject,
            stream=bed.stream,
            consumer=bed.consumer,
            batch=plan.batch,
            rate=plan.rate,
            stamped=kind.heard and plan.publisher,
        )

    def _place(self, kind: Kind, cell: Cell) -> Cell:
        """Keep core messages out of the stream that other kinds of work have."""
        if kind.streams or not self.bed.stream:
            return cell
        return replace(cell, subject=f"{cell.subject}.core")

    def _ticker(self, title: str, total: int) -> Ticker:
        quiet = self.plan.quiet or self.settings.json
        return Ticker(self.settings.env, title, total, quiet=quiet)

    def _prepare(self, kind: Kind) -> None:
        with self._ticker("Filling the stream", self.plan.msgs) as ticker:
            self.bed.prepare(kind, self.plan.msgs, self.plan.size, ticker.show)

    def outcome(self, name: str) -> Outcome:
        """Measure one kind of work, and check that it was done."""
        kind = KINDS[name]
        self._prepare(kind)
        cell = self._place(kind, self._cell(kind))
        each = kind.streams and not kind.pulls and kind.reads
        cells = list(split(cell, self.plan.clients, each=each or kind.heard))
        with self._ticker(kind.title, sum(share.count for share in cells)) as ticker:
            outcome = run_clients(
                self.settings,
                name,
                kind,
                cells,
                show=ticker.show,
                helped=lambda: self._publisher(cell),
            )
        self.bed.verify(kind, self.plan.msgs)
        return outcome

    @contextlib.contextmanager
    def _publisher(self, cell: Cell) -> Iterator[Callable[[], None]]:
        """Start a publisher in another process if there is to be one, and yield what lets it begin."""
        if not cell.stamped:
            yield lambda: None
            return
        with Peer(job_for(self.settings, cell)) as peer:
            peer.ready()
            yield peer.go
