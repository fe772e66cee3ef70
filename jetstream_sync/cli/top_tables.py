"""The rows of ``jsm top`` and their rates, as tables and text graphs."""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

from ..errors import InvalidNameError, StreamNotFoundError
from ..net.clock import monotonic
from .env import readable
from .output import counted
from .output import size as size_text

Row = TypeVar("Row")

_GRAPH_COLUMNS: Final = 24
_MIN_NAME_COLUMNS: Final = 12
_CHART_LINES: Final = 6
_BOLD: Final = "\x1b[1m"
_REVERSE: Final = "\x1b[7m"
_DIM: Final = "\x1b[2m"
_RED: Final = "\x1b[31m"
_END: Final = "\x1b[0m"

HELP: Final = (
    "q        quit, as Ctrl-C does",
    "s        sort the marked table by its next column",
    "r        reverse the order",
    "Tab      mark the other table",
    "v        switch between both tables, streams and consumers",
    "g        show or hide graphs of the totals",
    "/        filter by name; Esc clears the filter",
    "p        pause or resume",
    "+ -      refresh more or less often",
    "?        show this help",
)

if TYPE_CHECKING:
    from .. import ConsumerInfo, JetStream, StreamInfo


#: Number of values that are kept for a graph.
_MAX_POINTS: Final = 240


@dataclass(frozen=True, kw_only=True)
class Snapshot:
    """The state of all streams and consumers at one time."""

    taken: float
    """Time of the monotonic clock, in seconds."""
    streams: Mapping[str, StreamInfo]
    consumers: Mapping[tuple[str, str], ConsumerInfo]
    """By stream name and consumer name."""


@dataclass(frozen=True, kw_only=True)
class StreamRow:
    """The row of a stream."""

    name: str
    messages: int
    bytes: int
    consumers: int
    rate: float
    """Stored messages per second."""
    last: datetime | None
    """Time of the last message."""
    rates: tuple[float, ...]
    """The rates of the last snapshots, the oldest first."""

    @property
    def key(self) -> str:
        """The text that the filter searches."""
        return self.name


@dataclass(frozen=True, kw_only=True)
class ConsumerRow:
    """The row of a consumer."""

    stream: str
    name: str
    lag: int
    """Number of messages that were not delivered yet."""
    ack_pending: int
    redelivered: int
    waiting: int
    """Number of waiting pull requests."""
    rate: float
    """Deliveries per second."""
    ack_rate: float
    """Rate at which the ack floor moves, in deliveries per second."""
    paused: bool
    lags: tuple[float, ...]

    @property
    def key(self) -> str:
        """The text that the filter searches."""
        return f"{self.stream} > {self.name}"


@dataclass(frozen=True, kw_only=True)
class Frame:
    """Everything that one screen or table shows."""

    streams: tuple[StreamRow, ...] = ()
    consumers: tuple[ConsumerRow, ...] = ()
    seconds: float = 0.0
    """Time between the last two snapshots; 0 after the first one."""
    in_rates: tuple[float, ...] = ()
    """Stored messages per second in all streams, the oldest first."""
    out_rates: tuple[float, ...] = ()
    """Deliveries per second of all consumers, the oldest first."""

    def document(self) -> dict[str, Any]:
        """Return the JSON document, without the values of the graphs."""
        streams = [
            {
                "name": row.name,
                "messages": row.messages,
                "bytes": row.bytes,
                "consumers": row.consumers,
                "messages_per_second": row.rate,
                "last": row.last.isoformat() if row.last is not None else None,
            }
            for row in self.streams
        ]
        consumers = [
            {
                "stream": row.stream,
                "name": row.name,
                "lag": row.lag,
                "ack_pending": row.ack_pending,
                "redelivered": row.redelivered,
                "waiting": row.waiting,
                "deliveries_per_second": row.rate,
                "acks_per_second": row.ack_rate,
                "paused": row.paused,
            }
            for row in self.consumers
        ]
        return {"seconds": self.seconds, "streams": streams, "consumers": consumers}


def take_snapshot(js: JetStream) -> Snapshot:
    """Return the state of all streams and consumers, with one request per stream that has consumers."""
    infos = js.list_streams()
    consumers: dict[tuple[str, str], ConsumerInfo] = {}
    busy = [info.config.name for info in infos if info.state.consumer_count]
    for name in busy:
        # The stream may be deleted meanwhile, or have a name that this client rejects.
        with contextlib.suppress(StreamNotFoundError, InvalidNameError):
            for consumer in js.list_consumers(name):
                consumers[name, consumer.name] = consumer
    return Snapshot(
        taken=monotonic(),
        streams={info.config.name: info for info in infos},
        consumers=consumers,
    )


def _points() -> deque[float]:
    return deque(maxlen=_MAX_POINTS)


@dataclass
class History:
    """The values for the graphs, of the streams and consumers that still exist."""

    _last: Snapshot | None = None
    _rates: dict[str, deque[float]] = field(default_factory=dict)
    _lags: dict[tuple[str, str], deque[float]] = field(default_factory=dict)
    _in: deque[float] = field(default_factory=_points)
    _out: deque[float] = field(default_factory=_points)

    def add(self, now: Snapshot) -> Frame:
        """Add a snapshot, and return the frame of its differences from the previous one."""
        before, self._last = self._last, now
        seconds = now.taken - before.taken if before is not None else 0.0
        streams = tuple(
            self._stream(name, info, before, seconds) for name, info in now.streams.items()
        )
        consumers = tuple(
            self._consumer(key, info, before, seconds) for key, info in now.consumers.items()
        )
        for known, there in ((self._rates, now.streams), (self._lags, now.consumers)):
            for gone in set(known) - set(there):
                del known[gone]  # type: ignore[arg-type]  # each with its own kind of key
        if seconds:
            self._in.append(sum(row.rate for row in streams))
            self._out.append(sum(row.rate for row in consumers))
        return Frame(
            streams=streams,
            consumers=consumers,
            seconds=seconds,
            in_rates=tuple(self._in),
            out_rates=tuple(self._out),
        )

    def _stream(
        self, name: str, info: StreamInfo, before: Snapshot | None, seconds: float
    ) -> StreamRow:
        state = info.state
        old = before.streams.get(name) if before is not None else None
        rate = 0.0
        # A stream that was deleted and created again has a new creation time and no rate yet.
        if old is not None and old.created == info.created:
            rate = _rate(state.last_seq, old.state.last_seq, seconds)
        points = self._rates.setdefault(name, _points())
        if seconds:
            points.append(rate)
        return StreamRow(
            name=name,
            messages=state.messages,
            bytes=state.bytes,
            consumers=state.consumer_count,
            rate=rate,
            last=state.last_ts if state.last_ts is not None and state.last_ts.year > 1 else None,
            rates=tuple(points),
        )

    def _consumer(
        self, key: tuple[str, str], info: ConsumerInfo, before: Snapshot | None, seconds: float
    ) -> ConsumerRow:
        old = before.consumers.get(key) if before is not None else None
        rate = ack_rate = 0.0
        if old is not None and old.created == info.created:
            rate = _rate(info.delivered.consumer_seq, old.delivered.consumer_seq, seconds)
            ack_rate = _rate(info.ack_floor.consumer_seq, old.ack_floor.consumer_seq, seconds)
        points = self._lags.setdefault(key, _points())
        points.append(float(info.num_pending))
        return ConsumerRow(
            stream=key[0],
            name=key[1],
            lag=info.num_pending,
            ack_pending=info.num_ack_pending,
            redelivered=info.num_redelivered,
            waiting=info.num_waiting,
            rate=rate,
            ack_rate=ack_rate,
            paused=bool(info.paused),
            lags=tuple(points),
        )


def _rate(now: int, before: int, seconds: float) -> float:
    # The sequences go back when a consumer is reset; that is not a negative rate.
    return max(0, now - before) / seconds if seconds > 0 else 0.0


def filtered(frame: Frame, text: str) -> Frame:
    """Return the rows of a frame whose names contain a text, ignoring case."""
    folded = text.lower()
    return replace(
        frame,
        streams=tuple(row for row in frame.streams if folded in row.key.lower()),
        consumers=tuple(row for row in frame.consumers if folded in row.key.lower()),
    )


@dataclass(frozen=True)
class Column(Generic[Row]):
    """One column: its title, its sort key and its text."""

    title: str
    value: Callable[[Row], Any]
    text: Callable[[Row], str]
    down: bool = True
    """Whether the default order is descending."""


@dataclass(frozen=True)
class TableSpec(Generic[Row]):
    """The columns of a table, of which the first is the name, and its graph."""

    title: str
    columns: tuple[Column[Row], ...]
    graph_title: str
    graph: Callable[[Row], Sequence[float]]


def _number(value: float) -> str:
    return short_number(value) if value < 9.95 and value else f"{value:,.0f}"


STREAMS: Final = TableSpec[StreamRow](
    "Streams",
    (
        Column("Stream", lambda row: row.name.lower(), lambda row: readable(row.name), down=False),
        Column("Messages", lambda row: row.messages, lambda row: f"{row.messages:,}"),
        Column("Size", lambda row: row.bytes, lambda row: size_text(row.bytes)),
        Column("In/s", lambda row: row.rate, lambda row: _number(row.rate)),
        Column("Consumers", lambda row: row.consumers, lambda row: f"{row.consumers:,}"),
    ),
    "In/s",
    lambda row: row.rates,
)
CONSUMERS: Final = TableSpec[ConsumerRow](
    "Consumers",
    (
        Column("Consumer", lambda row: row.key.lower(), lambda row: readable(row.key), down=False),
        Column("Lag", lambda row: row.lag, lambda row: f"{row.lag:,}"),
        Column("Unacked", lambda row: row.ack_pending, lambda row: f"{row.ack_pending:,}"),
        Column("Redelivered", lambda row: row.redelivered, lambda row: f"{row.redelivered:,}"),
        Column("Waiting", lambda row: row.waiting, lambda row: f"{row.waiting:,}"),
        Column("Out/s", lambda row: row.rate, lambda row: _number(row.rate)),
        Column("Acked/s", lambda row: row.ack_rate, lambda row: _number(row.ack_rate)),
    ),
    "Lag",
    lambda row: row.lags,
)


@dataclass(frozen=True, kw_only=True)
class Layout:
    """The settings that the user can change with keys."""

    stream_sort: int = 3
    stream_down: bool = True
    consumer_sort: int = 1
    consumer_down: bool = True
    view: str = "both"
    """``both``, ``streams`` or ``consumers``."""
    marked: str = "streams"
    """The table that the sort keys apply to if both are shown."""
    filter: str = ""
    typing: bool = False
    """Whether the filter is being typed."""
    graphs: bool = False
    help: bool = False
    paused: bool = False
    interval: float = 1.0

    @property
    def active(self) -> str:
        """The table that the sort keys apply to."""
        return self.marked if self.view == "both" else self.view


def sorted_frame(frame: Frame, layout: Layout) -> Frame:
    """Return a frame with the filter and the sort orders of a layout applied."""
    frame = filtered(frame, layout.filter) if layout.filter else frame

    def ordered(
        rows: Sequence[Row], table: TableSpec[Row], sort: int, *, down: bool
    ) -> tuple[Row, ...]:
        # Sort by name first, so that rows with equal values keep their order.
        by_name = sorted(rows, key=table.columns[0].value)
        return tuple(sorted(by_name, key=table.columns[sort].value, reverse=down))

    return replace(
        frame,
        streams=ordered(frame.streams, STREAMS, layout.stream_sort, down=layout.stream_down),
        consumers=ordered(
            frame.consumers, CONSUMERS, layout.consumer_sort, down=layout.consumer_down
        ),
    )


@dataclass(frozen=True)
class _Style:
    """How to render: with or without escape codes and block characters."""

    colour: bool
    blocks: bool
    marks: bool = True
    """Whether to mark the active table."""

    def __call__(self, code: str, text: str) -> str:
        return f"{code}{text}{_END}" if self.colour else text


def screen(
    frame: Frame,
    layout: Layout,
    *,
    columns: int,
    lines: int,
    title: str,
    problem: str,
    colour: bool,
    blocks: bool,
) -> list[str]:
    """Return the lines of a screen, at most as many as the terminal has."""
    style = _Style(colour, blocks)
    shown = sorted_frame(frame, layout)
    top = [style(_BOLD, _cut(title, columns))]
    if problem:
        top.append(style(_RED, _cut(problem, columns)))
    else:
        top.append(_cut(_totals(shown), columns))
    if layout.typing or layout.filter:
        mark = "_" if layout.typing else ""
        top.append(_cut(f"Filter: {layout.filter}{mark}", columns))
    if layout.help:
        return [*top, "", *(_cut(line, columns) for line in HELP)][:lines]
    if layout.graphs:
        for name, values in (("In/s", shown.in_rates), ("Out/s", shown.out_rates)):
            top += ["", style(_DIM, name), *chart(values, columns, _CHART_LINES, blocks=blocks)]
    foot = style(_DIM, _cut(_keys(layout), columns))
    room = max(0, lines - len(top) - 1)
    body = _tables(shown, layout, columns, room, style)
    return [*top, *body[:room], foot][:lines]


def _totals(frame: Frame) -> str:
    messages = sum(row.messages for row in frame.streams)
    size = sum(row.bytes for row in frame.streams)
    pending = sum(row.ack_pending for row in frame.consumers)
    lag = sum(row.lag for row in frame.consumers)
    incoming = frame.in_rates[-1] if frame.in_rates else 0.0
    outgoing = frame.out_rates[-1] if frame.out_rates else 0.0
    return (
        f"{counted(len(frame.streams), 'stream')}, {counted(messages, 'message')}, "
        f"{size_text(size)}, {_number(incoming)} in/s   "
        f"{counted(len(frame.consumers), 'consumer')}, lag {lag:,}, "
        f"unacked {pending:,}, {_number(outgoing)} out/s"
    )


def _keys(layout: Layout) -> str:
    paused = "PAUSED, p resumes   " if layout.paused else ""
    return (
        f"{paused}every {layout.interval:g} s   q quit  s sort  r reverse  / filter  g graphs  "
        "v view  ? help"
    )


def _tables(frame: Frame, layout: Layout, columns: int, room: int, style: _Style) -> list[str]:
    """Return the lines of the shown tables; each gets half of the lines, or what the other leaves."""
    want_streams = layout.view in ("both", "streams")
    want_consumers = layout.view in ("both", "consumers")
    streams_need = (len(frame.streams) + 3) * want_streams
    consumers_need = (len(frame.consumers) + 3) * want_consumers
    half = room // 2 if want_streams and want_consumers else room
    streams_get = min(streams_need, max(half, room - consumers_need))
    lines: list[str] = []
    if want_streams:
        sort = (layout.stream_sort, layout.stream_down)
        marked = layout.active == "streams"
        lines += _table(STREAMS, frame.streams, sort, marked, columns, streams_get, style)
    if want_consumers:
        left = room - len(lines)
        sort = (layout.consumer_sort, layout.consumer_down)
        marked = layout.active == "consumers"
        lines += _table(CONSUMERS, frame.consumers, sort, marked, columns, left, style)
    return lines


def _table(
    table: TableSpec[Row],
    rows: Sequence[Row],
    sort: tuple[int, bool],
    marked: bool,
    columns: int,
    room: int,
    style: _Style,
) -> list[str]:
    if room < 3:
        return []
    fits = room - 3
    cut = rows[: fits if len(rows) <= fits else max(0, fits - 1)]
    arrow = ("▼" if sort[1] else "▲") if style.blocks else ("v" if sort[1] else "^")
    titles = [
        column.title + (arrow if number == sort[0] else "")
        for number, column in enumerate(table.columns)
    ]
    cells = [[column.text(row) for column in table.columns] for row in cut]
    widths = [
        max([len(title), *(len(line[number]) for line in cells)])
        for number, title in enumerate(titles)
    ]
    numbers = sum(width + 2 for width in widths[1:])
    graph = max(0, min(_GRAPH_COLUMNS, columns - numbers - _MIN_NAME_COLUMNS - 2))
    graph = graph if graph >= 6 else 0
    name = max(_MIN_NAME_COLUMNS, columns - numbers - (graph + 2 if graph else 0))
    widths[0] = min(name, max(widths[0], _MIN_NAME_COLUMNS)) if graph else name

    def line(texts: Sequence[str], drawn: str) -> str:
        first = _cut(texts[0], widths[0]).ljust(widths[0])
        rest = "".join(
            f"  {text:>{width}}" for text, width in zip(texts[1:], widths[1:], strict=True)
        )
        return _cut(f"{first}{rest}  {drawn}" if graph else first + rest, columns).rstrip()

    title = f"{table.title} ({len(rows):,})"
    head = line(titles, f"{table.graph_title} over time"[:graph].rjust(graph))
    lines = [
        "",
        style(_BOLD, f"{'>' if marked else ' '} {title}" if style.marks else title),
        style(_REVERSE, head.ljust(columns)) if style.colour else head,
    ]
    for row, texts in zip(cut, cells, strict=True):
        lines.append(line(texts, sparkline(table.graph(row), graph, blocks=style.blocks)))
    if len(cut) < len(rows):
        lines.append(style(_DIM, f"... {len(rows) - len(cut):,} more"))
    return lines


def _cut(text: str, columns: int) -> str:
    return text if len(text) <= columns else text[: max(0, columns - 1)] + "~"


def plain_text(frame: Frame, layout: Layout, *, blocks: bool) -> str:
    """Return the tables as plain text, with all rows and without truncation."""
    shown = sorted_frame(frame, layout)
    names = [row.key for row in shown.streams] + [row.key for row in shown.consumers]
    longest = max([_MIN_NAME_COLUMNS, *(len(readable(name)) for name in names)])
    columns = longest + 110
    room = len(shown.streams) + len(shown.consumers) + 10
    lines = _tables(shown, layout, columns, room, _Style(colour=False, blocks=blocks, marks=False))
    return "\n".join([_totals(shown), *lines]) + "\n"


# --- text graphs --------------------------------------------------------------------------------

_BLOCK_LEVELS: Final = "▁▂▃▄▅▆▇█"
_ASCII_LEVELS: Final = "_.-=+*#@"


def writes_blocks(encoding: str | None) -> bool:
    """Return whether an encoding has block characters."""
    try:
        "▏█".encode(encoding or "ascii")
    except (LookupError, UnicodeEncodeError):
        return False
    return True


def _newest(values: Sequence[float], width: int) -> list[float]:
    """Return the newest values, at most one for each column."""
    return list(values[-width:]) if width > 0 else []


def sparkline(values: Sequence[float], width: int, *, blocks: bool) -> str:
    """Return values as a line of bars, with the newest at the right end."""
    levels = _BLOCK_LEVELS if blocks else _ASCII_LEVELS
    shown = _newest(values, width)
    most = max(shown, default=0.0)
    drawn = ""
    for value in shown:
        # A space is only for zero: a very small value has the lowest bar.
        level = 0 if most <= 0 else min(7, int(value / most * 7.999))
        drawn += " " if value <= 0 else levels[level]
    return drawn.rjust(width)


def chart(values: Sequence[float], width: int, height: int, *, blocks: bool) -> list[str]:
    """Return values as bars on several lines, with the scale at the left."""
    margin = 8
    shown = _newest(values, width - margin)
    most = max(shown, default=0.0)
    lines = []
    for row in range(height, 0, -1):
        label = short_number(most * row / height) if row in (height, 1) or height < 3 else ""
        cells = "".join(_cell(value, most, row, height, blocks=blocks) for value in shown)
        lines.append(f"{label:>{margin - 2}} |{cells.rjust(max(0, width - margin))}")
    return lines


def _cell(value: float, most: float, row: int, height: int, *, blocks: bool) -> str:
    filled = value / most * height - (row - 1) if most > 0 else 0.0
    if filled <= 0:
        return " "
    if not blocks:
        return "#" if filled >= 0.5 else "."
    return _BLOCK_LEVELS[min(7, int(filled * 7.999))]


def short_number(value: float) -> str:
    """Return a number in at most five characters: ``0``, ``0.3``, ``999``, ``12.3K``, ``4.5M``."""
    if value <= 0:
        return "0"
    if value < 9.95:
        return f"{value:.1f}"
    unit = ""
    for larger in ("K", "M", "G", "T"):
        if value < 999.5:
            break
        value, unit = value / 1000, larger
    return f"{value:.0f}{unit}" if not unit or value >= 99.5 else f"{value:.1f}{unit}"
