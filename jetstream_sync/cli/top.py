"""``jsm top``: the live view on a terminal, its keys, and text for a pipe."""

from __future__ import annotations

import contextlib
import os
import shutil
import termios
import threading
import tty
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

import click
from typing_extensions import Self

from ..errors import Error
from ..net.clock import monotonic
from .env import unescaped
from .long_running import RECONNECT_OPTIONS, pause
from .output import emit, emit_line, note
from .settings import Settings, common_options
from .status import one_line
from .top_tables import (
    CONSUMERS,
    STREAMS,
    Frame,
    History,
    Layout,
    Snapshot,
    plain_text,
    screen,
    sorted_frame,
    take_snapshot,
    writes_blocks,
)
from .values import PAUSE

_ENTER_SCREEN: Final = "\x1b[?1049h\x1b[?25l"
_LEAVE_SCREEN: Final = "\x1b[?25h\x1b[?1049l"
_CURSOR_HOME: Final = "\x1b[H"
_ERASE_LINE: Final = "\x1b[K"
_ERASE_BELOW: Final = "\x1b[J"
#: Maximum wait for a key, in tenths of a second (the unit of VTIME).
_KEY_TIMEOUT_DS: Final = 1

if TYPE_CHECKING:
    from .. import Connection, JetStream
    from .env import Environment


_INTERVALS: Final = (0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0)
_SORTS: Final = {column.title.lower(): number for number, column in enumerate(CONSUMERS.columns)}
_VIEWS: Final = ("both", "streams", "consumers")


@click.command()
@click.option(
    "--interval",
    type=PAUSE,
    default="1s",
    show_default=True,
    metavar="TIME",
    help="Time between refreshes.",
)
@click.option(
    "--once", is_flag=True, help="Show one table with the rates of one interval, and exit."
)
@click.option("--count", type=click.IntRange(1), metavar="N", help="Exit after N tables.")
@click.option(
    "--filter",
    "text",
    default="",
    metavar="TEXT",
    help="Show only streams and consumers whose names contain TEXT.",
)
@click.option(
    "--sort",
    type=click.Choice(sorted(_SORTS)),
    default="lag",
    show_default=True,
    help="Column to sort the consumers by.",
)
@click.option(
    "--view", type=click.Choice(_VIEWS), default="both", show_default=True, help="Tables to show."
)
@common_options
def top(
    settings: Settings,
    *,
    interval: timedelta,
    once: bool,
    count: int | None,
    text: str,
    sort: str,
    view: str,
) -> None:
    """
    Monitor streams and consumers: rates, lag, pending acknowledgements, redeliveries.

    On a terminal, refreshes one screen; '?' shows the keys. Elsewhere, writes a table per interval,
    or with --json one JSON document per line.
    """
    layout = Layout(
        consumer_sort=_SORTS[sort],
        consumer_down=CONSUMERS.columns[_SORTS[sort]].down,
        view=view,
        filter=text,
        interval=interval.total_seconds(),
    )
    env = settings.env
    draws = env.stdin.isatty() and env.stdout.isatty() and not settings.json
    if once or count is not None or not draws or env.variables.get("TERM") in ("dumb", "unknown"):
        _tables(settings, layout, 1 if once else count, one=once)
    else:
        _live(settings, layout)


# --- a sequence of tables ------------------------------------------------------------------


def _tables(settings: Settings, layout: Layout, count: int | None, *, one: bool) -> None:
    env = settings.env
    blocks = writes_blocks(getattr(env.stdout, "encoding", None))
    history, shown, reported = History(), 0, ""
    with settings.connection(**RECONNECT_OPTIONS) as nc:
        js = settings.jetstream_on(nc)
        history.add(take_snapshot(js))
        while shown != count:
            pause(layout.interval)
            try:
                frame = history.add(take_snapshot(js))
            except Error as error:
                if one or not nc.is_reconnecting:
                    raise
                # Report an error once; the next table shows that the connection is back.
                if reported != one_line(error):
                    reported = one_line(error)
                    note(settings, f"{reported}; trying again")
                continue
            reported = ""
            shown += 1
            _table(settings, layout, frame, one=one, blocks=blocks)


def _table(settings: Settings, layout: Layout, frame: Frame, *, one: bool, blocks: bool) -> None:
    out = settings.env.stdout
    found = sorted_frame(frame, layout).document()
    if layout.view != "both":
        del found["consumers" if layout.view == "streams" else "streams"]
    if one:
        emit(settings, found, lambda: out.write(plain_text(frame, layout, blocks=blocks)))
    elif settings.json:
        emit_line(settings, found)
    else:
        out.write(plain_text(frame, layout, blocks=blocks) + "\n")
        out.flush()


# --- the live screen ------------------------------------------------------------------------------


class _Poller:
    """Take a snapshot regularly on a thread, so that requests do not delay the handling of keys."""

    def __init__(self, nc: Connection, js: JetStream, interval: float) -> None:
        self.frame = Frame()
        self.snapshots = 0
        self.interval = interval
        self.paused = False
        self.problem = ""
        self.failure: Error | None = None
        self._nc = nc
        self._js = js
        self._since = 0.0
        self._history = History()
        self._wake = threading.Event()
        self._ended = False
        self._thread = threading.Thread(target=self._run, name="jsm-top", daemon=True)

    def __enter__(self) -> Self:
        # Take the first snapshot here: without JetStream the command fails before it draws a screen.
        self._take(take_snapshot(self._js))
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Stop the thread; closing the connection ends a request that is still in progress."""
        self._ended = True
        self._wake.set()

    def _take(self, snapshot: Snapshot) -> None:
        self.frame = self._history.add(snapshot)
        self.snapshots += 1

    def _run(self) -> None:
        while not self._ended:
            self._wake.wait(self.interval)
            self._wake.clear()
            if self._ended or self.paused:
                continue
            try:
                self._take(take_snapshot(self._js))
                self.problem = ""
            except Error as error:
                self._record(error)

    def _record(self, error: Error) -> None:
        if self._nc.is_closed:
            self.failure = error
            return
        if not self.problem:
            self._since = monotonic()
        self.problem = one_line(error)

    def problem_text(self) -> str:
        """Return the current problem and its duration; empty if there is none."""
        if self._nc.is_reconnecting and not self.problem:
            self._since = monotonic()
            self.problem = "connection lost"
        if not self.problem:
            return ""
        kind = "no connection" if self._nc.is_reconnecting else "no answer"
        seconds = monotonic() - self._since
        return f"{kind} for {seconds:.0f} s ({self.problem}); trying again"


def _live(settings: Settings, layout: Layout) -> None:
    env = settings.env
    blocks = writes_blocks(getattr(env.stdout, "encoding", None))
    colour = not env.variables.get("NO_COLOR") and env.variables.get("JSM_COLOR") != "never"
    with (
        settings.connection(**RECONNECT_OPTIONS) as nc,
        _Poller(nc, settings.jetstream_on(nc), layout.interval) as poller,
        Screen(env) as terminal,
    ):
        title = _title_of(nc)
        shown: Any = None
        while poller.failure is None:
            columns, lines = terminal.size()
            now = (poller.snapshots, layout, columns, lines, poller.problem_text())
            if now != shown:
                shown = now
                terminal.show(
                    screen(
                        poller.frame,
                        layout,
                        columns=columns,
                        lines=lines,
                        title=title(),
                        problem=now[-1],
                        colour=colour,
                        blocks=blocks,
                    )
                )
            key = terminal.read_key()
            if not key:
                continue
            changed = apply_key(layout, key)
            if changed is None:
                return
            layout = changed
            poller.interval, poller.paused = layout.interval, layout.paused
    raise poller.failure


def _title_of(nc: Connection) -> Callable[[], str]:
    """Return a function that returns the first line, which names the current server."""

    def title() -> str:
        info = nc.server_info
        return f"jsm top   {nc.connected_url or '-'}   {info.server_name} {info.version}"

    return title


def apply_key(layout: Layout, key: str) -> Layout | None:
    """Return the layout after a key, or ``None`` if the key quits."""
    if key.startswith("\x1b"):
        # Esc alone, or the escape sequence of another key.
        return replace(
            layout, typing=False, filter="" if key == "\x1b" else layout.filter, help=False
        )
    for each in key:
        found = _edit_filter(layout, each) if layout.typing else _apply_command(layout, each)
        if found is None:
            return None
        layout = found
    return layout


def _edit_filter(layout: Layout, key: str) -> Layout:
    if key in "\r\n":
        return replace(layout, typing=False)
    if key in "\x7f\b":
        return replace(layout, filter=layout.filter[:-1])
    if key == "\x15":
        return replace(layout, filter="")
    return replace(layout, filter=layout.filter + key) if key.isprintable() else layout


def _apply_command(layout: Layout, key: str) -> Layout | None:
    if key in "qQ\x04":
        return None
    if layout.help:
        return replace(layout, help=False)
    streams = layout.active == "streams"
    if key == "s":
        if streams:
            sort = (layout.stream_sort + 1) % len(STREAMS.columns)
            return replace(layout, stream_sort=sort, stream_down=STREAMS.columns[sort].down)
        sort = (layout.consumer_sort + 1) % len(CONSUMERS.columns)
        return replace(layout, consumer_sort=sort, consumer_down=CONSUMERS.columns[sort].down)
    if key == "r":
        if streams:
            return replace(layout, stream_down=not layout.stream_down)
        return replace(layout, consumer_down=not layout.consumer_down)
    if key in "+-":
        return replace(layout, interval=_next_interval(layout.interval, faster=key == "+"))
    changes: dict[str, dict[str, Any]] = {
        "\t": {"marked": "consumers" if layout.marked == "streams" else "streams"},
        "v": {"view": _VIEWS[(_VIEWS.index(layout.view) + 1) % len(_VIEWS)]},
        "g": {"graphs": not layout.graphs},
        "/": {"typing": True},
        "p": {"paused": not layout.paused},
        "?": {"help": True},
        "h": {"help": True},
    }
    return replace(layout, **changes.get(key, {}))


def _next_interval(interval: float, *, faster: bool) -> float:
    """Return the next shorter or longer interval."""
    if faster:
        return max((each for each in _INTERVALS if each < interval), default=interval)
    return min((each for each in _INTERVALS if each > interval), default=interval)


class Screen:
    """
    The whole screen of a terminal; the end of the ``with`` block restores the terminal.

    Ctrl-C still raises SIGINT.
    """

    def __init__(self, env: Environment) -> None:
        self._out = unescaped(env.stdout)
        self._input = env.stdin.fileno()
        self._before: list[object] | None = None

    def __enter__(self) -> Self:
        self._before = termios.tcgetattr(self._input)
        tty.setcbreak(self._input, termios.TCSANOW)
        mode = termios.tcgetattr(self._input)
        mode[6][termios.VMIN], mode[6][termios.VTIME] = 0, _KEY_TIMEOUT_DS
        termios.tcsetattr(self._input, termios.TCSANOW, mode)
        self._out.write(_ENTER_SCREEN)
        self._out.flush()
        return self

    def __exit__(self, *_: object) -> None:
        """Restore the terminal."""
        if self._before is not None:
            # Discard unread input, so that the shell does not run it.
            termios.tcsetattr(self._input, termios.TCSAFLUSH, self._before)  # type: ignore[arg-type]
        with contextlib.suppress(OSError):
            self._out.write(_LEAVE_SCREEN)
            self._out.flush()

    def size(self) -> tuple[int, int]:
        """Return the current number of columns and lines."""
        with contextlib.suppress(OSError):
            found = os.get_terminal_size(self._input)
            if found.columns and found.lines:
                return found.columns, found.lines
        return shutil.get_terminal_size()

    def read_key(self) -> str:
        """Return the input of the next tenth of a second; empty if there was none."""
        data = os.read(self._input, 32)
        return data.decode("utf-8", "replace")

    def show(self, lines: Sequence[str]) -> None:
        """Redraw the whole screen without flicker."""
        drawn = f"{_ERASE_LINE}\n".join(lines)
        self._out.write(f"{_CURSOR_HOME}{drawn}{_ERASE_LINE}{_ERASE_BELOW}")
        self._out.flush()
