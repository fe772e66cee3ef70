"""``jsm top``: the live view on a terminal or in a browser, and tables for a pipe."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NoReturn, TypeVar

import click

from ...durations import counted
from ...version import install_command
from ..shared.listings import Lister
from ..shared.long_running import pause
from ..shared.output import emit
from ..shared.render import Table, write_rows
from ..shared.settings import Settings, command
from ..shared.status import FailedError
from ..shared.values import TIMEOUT, option
from .data import BOTH, CONSUMERS, STREAMS, VIEWS, Collector, TopOptions

T = TypeVar("T")

_SORTS: Final = {column.title.lower(): number for number, column in enumerate(CONSUMERS.columns)}


@command()
@option("--interval TIME", "Time between refreshes.", TIMEOUT, default="1s")
@option("--once", "Show one table with the rates of one interval, and exit.")
@option("--filter TEXT", "Show only rows whose names contain TEXT.", to="text", default="")
@option("--sort", "Column to sort the consumers by.", click.Choice(sorted(_SORTS)), default="lag")
@option("--view", "Tables to show.", click.Choice([BOTH, *VIEWS]), default=BOTH)
@option("--progress BUCKET", "Show the Spark queries that store their progress in this bucket.")
@option("--mask", "Do not show arguments and return values of calls.")
@option("--read-only", "Do not offer to requeue or discard dead letters.")
@option("--web", "Show it in a browser; prints an address that works once.")
@option("--allow-changes", "With --web: offer changes in the browser.")
@option(
    "--listen HOST:PORT",
    "With --web: listen here; other machines need a proxy with TLS.",
    default="127.0.0.1:8484",
)
@option("--public-url URL", "With --web: the address of a proxy in front, as browsers use it.")
def top(
    settings: Settings,
    *,
    once: bool,
    sort: str,
    read_only: bool,
    web: bool,
    allow_changes: bool,
    listen: str,
    public_url: str | None,
    **options: Any,
) -> None:
    """
    Monitor streams, consumers, workers, dead letters, buckets, Spark queries and servers.

    On a terminal, this is an application with keys and mouse, for which the extra 'top' must be installed;
    '?' shows the keys. Elsewhere, and with --json or --once, writes one table with the rates of an interval.

    With --web, serves the application to one browser on this machine. Nothing can be changed there
    without --allow-changes.
    """
    env = settings.env
    # textual-serve sets this for the process of a browser, which has no terminal.
    in_browser = "TEXTUAL_DRIVER" in env.variables
    if web and not in_browser:
        _with_extra(lambda: _serve(settings, listen, public_url))
    may_change = not read_only and (allow_changes or not web)
    shown = TopOptions(consumer_sort=_SORTS[sort], may_change=may_change, **options)
    draws = env.console(env.stdout) is not None and all(
        item.isatty() for item in (env.stdin, env.stdout, env.stderr)
    )
    if in_browser:
        _live(settings, shown)
    elif not draws or settings.json or once:
        _once(settings, shown)
    else:
        _with_extra(lambda: _live(settings, shown))


def _with_extra(run: Callable[[], T]) -> T:
    """Run something that needs the extra ``top``; without it, tell how to install it."""
    try:
        return run()
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in {"aiohttp", "textual", "textual_serve"}:
            raise
        raise FailedError(
            "'jsm top' on a terminal needs the extra 'top'",
            hint=f"{install_command('top')}, or --once for one table",
        ) from error


def _serve(settings: Settings, listen: str, public_url: str | None) -> NoReturn:
    from .web import WebAddress, serve  # noqa: PLC0415 - needs the extra

    address = WebAddress.of(listen, public_url)
    # An error of the login is reported here, before a browser is opened.
    with settings.jetstream() as js:
        js.account_info()
    serve(settings, address)


def _live(settings: Settings, options: TopOptions) -> None:
    from .app import TopApp, run_app  # noqa: PLC0415 - needs the extra

    with settings.connection(reconnects="always", disconnected_cb=None, reconnected_cb=None) as nc:
        run_app(TopApp(Lister(settings, nc), options))


# --- one table ----------------------------------------------------------------------------------


def _once(settings: Settings, options: TopOptions) -> None:
    view = options.view
    with settings.connection(reconnects="failover") as nc:
        collector = Collector(Lister(settings, nc), options)
        for wait in (options.interval, 0.0):
            frame = collector.collect(view)
            if error := frame.errors.get(STREAMS.name if view == BOTH else view):
                raise error
            pause(wait)
    views = (STREAMS, CONSUMERS) if view == BOTH else (VIEWS[view],)
    rows: dict[str, list[Any]] = {}
    for item in views:
        column = options.consumer_sort if item is CONSUMERS else item.sort
        found = item.sorted(frame.rows[item.name], column, options.text)
        rows[item.name] = [row.record if row.is_missing else row.fields for row in found]

    def human() -> None:
        out = settings.env.stdout
        if frame.seconds:  # both snapshots have arrived
            out.write(f"{frame.totals()}\n\n")
        for view in views:
            out.write("" if view is views[0] else "\n")
            title = f"{view.title} ({len(rows[view.name]):,})"
            write_rows(settings, rows[view.name], Table(view.columns, title, view.none))

    emit(settings, {"seconds": frame.seconds, **rows}, human)
    if frame.failure is not None:
        raise frame.failure
    missing = sum(row.is_missing for found in frame.rows.values() for row in found)
    if missing:
        raise FailedError(f"the tables are incomplete: {counted(missing, 'row')} unreachable")
