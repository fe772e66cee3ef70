"""The command ``jsm demo``: its options, its own server, and its result."""

from __future__ import annotations

import contextlib
import dataclasses
from typing import TYPE_CHECKING, Final

import click

from ...subjects import check_stream_name
from ..env import Environment
from ..output import to_json
from ..progress import show_progress
from ..render import Table, write_table
from ..settings import Settings, common_options
from ..status import CommandError, ExitStatus
from ..values import FILE
from .orders import SAMPLE_SIZE, read_orders

if TYPE_CHECKING:
    from .pipeline import DemoReport

#: Options that also apply to a demo with its own server.
_KEPT_OPTIONS: Final = ("json", "trace")


@click.command()
@click.option(
    "-i",
    "--input",
    "input_name",
    type=FILE,
    metavar="FILE",
    help=f"Orders as JSON lines, '-' for standard input.  [default: a sample of {SAMPLE_SIZE:,}]",
)
@click.option(
    "-w",
    "--workers",
    type=click.IntRange(1, 64),
    default=2,
    show_default=True,
    help="Workers of each of the two consumers.",
)
@click.option(
    "--redeliver",
    "redeliver_percent",
    type=click.FloatRange(0, 100),
    default=1.0,
    show_default=True,
    metavar="PERCENT",
    help="Percentage of orders whose worker fails before it acknowledges.",
)
@click.option(
    "--rate",
    type=click.FloatRange(0, min_open=True),
    metavar="N",
    help="Publish N orders per second.  [default: no limit]",
)
@click.option(
    "--stream",
    default="ORDERS",
    show_default=True,
    metavar="NAME",
    help="Name of the stream to create; its subjects are NAME.*.",
)
@click.option("--keep", is_flag=True, help="Keep the stream; needs --server or --context.")
@click.option(
    "--timeout",
    type=click.FloatRange(0, min_open=True),
    default=30.0,
    show_default=True,
    metavar="SECONDS",
    help="Fail after this many seconds without progress.",
)
@click.option("-q", "--quiet", is_flag=True, help="Show no progress.")
@common_options
def demo(
    settings: Settings,
    *,
    input_name: str | None,
    workers: int,
    redeliver_percent: float,
    rate: float | None,
    stream: str,
    keep: bool,
    timeout: float,
    quiet: bool,
) -> None:
    """
    Process orders in a pipeline, each exactly once.

    Publishes orders to ORDERS.received. The workers of the pull consumer NEW check and price them,
    and publish to ORDERS.processed. The workers of DISPATCH assign a tracking number, and publish
    to ORDERS.completed. MONITOR reads all three subjects and compares them with the input.

    Without --server or --context, starts a nats-server for the run, in a temporary directory. With
    one of them, creates the stream there and deletes it at the end; a stream that exists already is
    never changed.

    An order is a JSON object with "id" and "items"; an item has "quantity" and "price". Other
    fields are ignored.

    Exits with status 0 only if every order came through exactly once.
    """
    given_server = bool(settings.servers or settings.given.get("context"))
    if keep and not given_server:
        raise click.UsageError(
            "--keep needs --server or --context: the demo's own server is removed at the end"
        )
    check_stream_name(stream)
    env = settings.env
    orders = read_orders(input_name, env.stdin)
    # Imported here to keep the start of other commands fast.
    from .pipeline import DemoContext, run_pipeline  # noqa: PLC0415

    with contextlib.ExitStack() as running:
        if not given_server:
            settings = _start_server(settings, running)
        # A demo takes seconds: a lost connection ends it, and is reported once, as its error.
        nc = running.enter_context(settings.connection(name="jsm demo", error_cb=lambda _: None))
        shown = running.enter_context(show_progress(env, "orders", len(orders), quiet=quiet))
        report = run_pipeline(
            DemoContext(
                js=settings.jetstream_on(nc),
                orders=orders,
                stream=stream,
                workers=workers,
                redeliver_percent=redeliver_percent,
                rate=rate,
                timeout=timeout,
                remove=given_server and not keep,
                server=f"nats-server {nc.server_info.version}",
                show=shown.show,
                warn=lambda line: print(f"jsm: warning: {line}", file=env.stderr),
            )
        )
    _write_report(report, env, as_json=settings.json)
    if not report.exactly_once:
        raise CommandError(report.failure(), ExitStatus.FAILED)


def _start_server(settings: Settings, running: contextlib.ExitStack) -> Settings:
    """Start a server that runs as long as ``running``, and return settings for it alone."""
    from ...server import NatsServer  # noqa: PLC0415

    server = running.enter_context(NatsServer())
    given = {"servers": [server.url], "no_context": True}
    given.update((name, settings.given[name]) for name in _KEPT_OPTIONS if name in settings.given)
    variables = {
        name: value
        for name, value in settings.env.variables.items()
        if not name.startswith("NATS_")
    }
    return Settings(env=dataclasses.replace(settings.env, variables=variables), given=given)


def _write_report(report: DemoReport, env: Environment, *, as_json: bool) -> None:
    if as_json:
        document = {"exactly_once": report.exactly_once, **dataclasses.asdict(report)}
        env.stdout.write(to_json(document))
        return
    stages = [
        [stage.stage]
        + [
            f"{count:,}"
            for count in (
                stage.messages,
                stage.missing,
                stage.duplicates,
                stage.wrong_totals,
                stage.unknown,
            )
        ]
        + ["yes" if stage.matches_input else "NO"]
        for stage in report.stages
    ]
    write_table(
        Table(
            title=f"Messages in the stream, for {report.orders:,} orders",
            columns=(
                "stage", "messages", "missing", "duplicate", "wrong total", "unknown", "as input",
            ),
            rows=stages,
        ),
        env,
    )  # fmt: skip
    consumers = [
        [
            consumer.name,
            *(f"{value:,}" for value in list(dataclasses.asdict(consumer).values())[1:]),
        ]
        for consumer in report.consumers
    ]
    columns = ("consumer", "workers", "deliveries", "redelivered", "deduplicated", "refused")
    env.stdout.write("\n")
    write_table(Table(title="Work of the consumers", columns=columns, rows=consumers), env)
    if report.latency_ms:
        shown = ", ".join(f"{name} {value:,.1f} ms" for name, value in report.latency_ms.items())
        env.stdout.write(f"\nreceived to completed: {shown}\n")
    if report.exactly_once:
        env.stdout.write(
            f"\nEvery order came through exactly once: {report.orders:,} orders, 3 stages, "
            f"{report.seconds:.2f} s on {report.server}\n"
        )
