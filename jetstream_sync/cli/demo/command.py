"""``jsm demo``: the whole main job in one command, on real orders and a real server."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Final

import click

from ...subjects import check_stream_name
from ..settings import Settings, common_options
from ..status import CommandError, ExitStatus
from .intake import read_input
from .progress import make_progress
from .report import write_report
from .tally import DemoReport

if TYPE_CHECKING:
    from ..login import Login

__all__ = ["demo"]

#: Options that a demo with a server of its own listens to, of those of a connection.
_KEPT: Final = ("json", "trace")
#: The parts of a login, as the options of the data source have them.
_SPARK_OPTIONS: Final = {
    "user": "user",
    "password": "password",
    "token": "token",
    "creds": "credsFile",
    "nkey": "nkeySeedFile",
    "tlscert": "tlsCert",
    "tlskey": "tlsKey",
    "tlsca": "tlsCa",
    "tlsfirst": "tlsHandshakeFirst",
    "domain": "domain",
    "api_prefix": "apiPrefix",
}
#: Those that it has no option for.
_NOT_FOR_SPARK: Final = frozenset({"jwt", "seed", "inbox_prefix"})


@click.command()
@click.option(
    "-i",
    "--input",
    "input_name",
    metavar="FILE",
    help="Orders as JSON lines, '-' for standard input.  [default: a sample of 5,000]",
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
    help="Share of the orders whose worker fails just before it acknowledges.",
)
@click.option(
    "--rate",
    type=click.FloatRange(0, min_open=True),
    metavar="N",
    help="Send N orders per second.  [default: as fast as the server takes them]",
)
@click.option(
    "--stream",
    default="ORDERS",
    show_default=True,
    metavar="NAME",
    help="The stream to create; its subjects are NAME.*.",
)
@click.option("--keep", is_flag=True, help="Leave the stream there; needs --server or --context.")
@click.option(
    "--timeout",
    type=click.FloatRange(0, min_open=True),
    metavar="SECONDS",
    help="Give up when nothing moves for so long.  [default: 30, with --spark 120]",
)
@click.option(
    "--spark",
    "with_spark",
    is_flag=True,
    help="Have Spark do the work of both consumers; needs Java.",
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
    timeout: float | None,
    with_spark: bool,
    quiet: bool,
) -> None:
    """
    Run orders through a pipeline, each exactly once.

    Orders are published to ORDERS.received. The workers of the pull consumer NEW check and price
    them, and publish to ORDERS.processed. The workers of DISPATCH give those a tracking number,
    and publish to ORDERS.completed. MONITOR reads all three and compares them with the input.

    Without --server or --context, a nats-server is started for the run, in a temporary directory.
    With one of them, the stream is created there and deleted at the end; a stream that exists
    already is never touched.

    With --spark, NEW and DISPATCH are two streaming queries of Spark, with as many tasks at a time
    as there are workers. In the place of single orders each does its last batch a second time
    (unless --redeliver is 0), and Spark SQL adds up what came out.

    An order is a JSON object with "id", "customer", "currency", "country" and "items"; an item
    has "sku", "quantity" and "price".

    The exit status is 0 only when every order came through exactly once.
    """
    theirs = bool(settings.servers or settings.given.get("context"))
    if keep and not theirs:
        raise click.UsageError(
            "--keep needs --server or --context: the server of the demo ends with it"
        )
    check_stream_name(stream)
    env = settings.env
    orders = read_input(input_name, env.stdin)
    # Imported late, so that "jsm --help" stays fast.
    from .flow import Errand, Plan  # noqa: PLC0415
    from .pipeline import run_pipeline  # noqa: PLC0415
    from .spark_pipeline import run_spark_pipeline  # noqa: PLC0415
    from .spark_session import check_spark  # noqa: PLC0415

    if with_spark:
        check_spark()
    plan = Plan(
        stream=stream,
        workers=workers,
        redeliver_percent=redeliver_percent,
        rate=rate,
        # Spark starts many processes, which takes its time on a busy machine.
        timeout=timeout or (120.0 if with_spark else 30.0),
        # The server of the demo takes the stream with it.
        remove=theirs and not keep,
    )

    def warn(line: str) -> None:
        env.stderr.write(f"jsm: warning: {line}\n")

    with contextlib.ExitStack() as own:
        if not theirs:
            settings = _own_server(settings, own)
        # A demo takes seconds: a server that goes away is its end, not something to wait for.
        nc = own.enter_context(settings.connection(name="jsm demo", error_cb=_told_by_the_run))
        run: Callable[[Errand], DemoReport] = run_pipeline
        if with_spark:
            run = partial(run_spark_pipeline, place=_for_spark(settings.login()))
        with make_progress(env, len(orders), quiet=quiet) as progress:
            js = settings.jetstream_on(nc)
            errand = Errand(nc=nc, js=js, orders=orders, plan=plan, show=progress.show, warn=warn)
            report = run(errand)
        write_report(report, env, as_json=settings.json)
    if not report.exactly_once:
        raise CommandError(report.failure(), ExitStatus.FAILED)


def _told_by_the_run(error: Exception) -> None:
    """Leave an error to the run, which ends with it; it should not be told twice."""
    del error


def _own_server(settings: Settings, own: contextlib.ExitStack) -> Settings:
    """Start a server that runs as long as ``own``, and return settings that have it and nothing else."""
    from ...server import NatsServer  # noqa: PLC0415

    server = own.enter_context(NatsServer())
    given = {"servers": [server.url], "no_context": True}
    given.update((name, settings.given[name]) for name in _KEPT if name in settings.given)
    variables = {
        name: value
        for name, value in settings.env.variables.items()
        if not name.startswith("NATS_")
    }
    return Settings(env=replace(settings.env, variables=variables), given=given)


def _for_spark(login: Login) -> dict[str, str]:
    """Return a login as the data source of Spark has it."""
    found = {
        option: str(login.values[part])
        for part, option in _SPARK_OPTIONS.items()
        if part in login.values
    }
    missing = login.values.keys() & _NOT_FOR_SPARK
    if missing:
        listed = ", ".join(sorted(missing))
        raise CommandError(f"--spark can not log in with {listed}", ExitStatus.USAGE)
    return {"servers": ",".join(login.servers), **found}
