"""
Tables and labelled blocks: with rich on a terminal, else as aligned plain text that is never cut.

A command declares its columns as `Field` objects and passes its records or dicts to `show_rows`, which writes
the same rows as JSON with ``--json``. `show_blocks` does the same for one record, with a line for each field
of each `Block`. A value has the text of its type: numbers get separators, times are local, lists are joined.
`bad` and `warn` colour a value.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final, TypeVar

import click
from rich import box
from rich.table import Table as RichTable
from rich.text import Text

from ..durations import duration_text
from .env import Environment, readable, single_line, unescaped
from .long_running import failover, pause
from .output import count, emit, emit_line, when, yes
from .settings import Settings
from .values import TIMEOUT, Decorator, option, with_options

T = TypeVar("T")

#: At narrow widths, the width to which a text column may be folded: the first column, and others.
_FOLDED_NAME: Final = 32
_FOLDED_TEXT: Final = 16
#: Spaces between two columns.
_GAP: Final = 2


@dataclass(frozen=True)
class Mark:
    """A value with a colour on terminals; 0 has none."""

    value: object
    style: str

    def __bool__(self) -> bool:
        return bool(self.value)


def bad(value: object) -> Mark:
    """Return a value in the colour of failures."""
    return Mark(value, "red")


def warn(value: object) -> Mark:
    """Return a value in the colour of warnings."""
    return Mark(value, "yellow")


@dataclass(frozen=True)
class Field:
    """A column of a table, or a line of a block."""

    title: str
    #: The path of an attribute or key, such as "config.name", or a function of the record.
    value: str | Callable[[Any], Any]
    #: Returns what is shown of a value, which may be ``None``; by default its type decides.
    shown: Callable[[Any], Any] | None = None
    #: Whether the column is aligned to the right; ``None``: columns of numbers and durations are.
    right: bool | None = None
    #: At narrow widths, columns with the highest number are dropped first; 0 is never dropped.
    drop: int = 0
    #: Whether 0, false and empty values are left out.
    if_set: bool = False
    #: The name by which a report is sorted by this column; empty: it is not.
    sort: str = ""
    #: Whether a block has a line for each item of the value.
    each: bool = False

    def of(self, record: Any) -> Any:
        """Return the value of a record."""
        if callable(self.value):
            return self.value(record)
        if isinstance(record, Mapping) and self.value in record:
            return record[self.value]
        for name in self.value.split("."):
            if record is None:
                break
            record = record.get(name) if isinstance(record, Mapping) else getattr(record, name)
        return record

    def is_right(self, values: Sequence[Any]) -> bool:
        """Return whether a column with these values is aligned to the right."""
        if self.right is not None:
            return self.right
        bare = (value.value if isinstance(value, Mark) else value for value in values)
        numbers = [
            isinstance(value, (int, float, timedelta)) for value in bare if value is not None
        ]
        return bool(numbers) and all(numbers)

    def display(self, value: Any) -> Any:
        """Return what is shown of a value."""
        if self.if_set and not value:
            return None
        if self.shown is None:
            return value
        return (
            Mark(self.shown(value.value), value.style)
            if isinstance(value, Mark)
            else self.shown(value)
        )


def _text(settings: Settings, value: Any, *, short: bool, line: bool = True) -> Text:
    """Return the text of a value; ``short`` is for times in tables, ``line`` escapes line breaks."""
    if isinstance(value, Mark):
        text = _text(settings, value.value, short=short, line=line)
        if value:
            text.stylize(value.style)
        return text
    if isinstance(value, (list, tuple)):
        parts = (_text(settings, item, short=short, line=line) for item in value)
        return Text(", ").join(parts)
    shown = _plain_text(settings, value, short=short)
    # Texts are chosen by other clients, which may be malicious.
    return Text(single_line(shown) if line else readable(shown))


def _plain_text(settings: Settings, value: Any, *, short: bool) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return yes(value)
    if isinstance(value, int):
        return count(value)
    if isinstance(value, datetime):
        return when(settings, value, short=short) if value.year > 1 else ""
    if isinstance(value, timedelta):
        return duration_text(value)
    return str(value)


def cell(settings: Settings, field: Field, record: Any) -> Text:
    """Return the text of a field of a record, as in a table."""
    return _text(settings, field.display(field.of(record)), short=True)


# --- tables -------------------------------------------------------------------------------------


def show_rows(
    settings: Settings,
    rows: Sequence[Any],
    fields: Sequence[Field],
    *,
    title: str,
    none: str,
    document: object = None,
) -> None:
    """
    Write records as a JSON list with ``--json``, else as a table.

    `none`: the line that is written instead of an empty table.
    """
    emit(
        settings,
        rows if document is None else document,
        lambda: write_rows(settings, rows, fields, title=title, none=none),
    )


def write_rows(
    settings: Settings, rows: Sequence[Any], fields: Sequence[Field], *, title: str, none: str = ""
) -> None:
    """Write records as a table, or the line ``none``; see `show_rows`."""
    env = settings.env
    if not rows:
        env.stdout.write(f"{none}\n" if none else "")
        return
    short = env.console(env.stdout) is not None
    columns = [_column(settings, each, rows, short=short) for each in fields]
    filled = [each for each in columns[1:] if any(cell.plain for cell in each.cells)]
    _write_columns(env, single_line(title), [columns[0], *filled])


@dataclass(frozen=True)
class _Column:
    """The cells of a column."""

    title: str
    cells: list[Text]
    right: bool
    drop: int = 0

    def width(self) -> int:
        """Return the width without line breaks."""
        return max(len(self.title), *(cell.cell_len for cell in self.cells))

    def least_width(self, most: int) -> int:
        """Return the width after line breaks in the title, and in texts that are wider than ``most``."""
        cells = max(cell.cell_len for cell in self.cells)
        return max(*map(len, self.title.split()), cells if self.right else min(cells, most), 1)


def _column(settings: Settings, field: Field, rows: Sequence[Any], *, short: bool) -> _Column:
    values = [field.of(row) for row in rows]
    cells = [_text(settings, field.display(value), short=short) for value in values]
    return _Column(field.title, cells, field.is_right(values), field.drop)


def _write_columns(env: Environment, title: str, columns: list[_Column]) -> None:
    console = env.console(env.stdout)
    if console is None:
        env.stdout.write(_plain(title, columns))
        return
    tight = _total(column.width() for column in columns) > console.width
    if tight:
        columns = _fitting(columns, console.width)
    drawn = RichTable(box=box.SIMPLE_HEAD, show_edge=False, padding=(0, _GAP - 1, 0, 0))
    for column in columns:
        header = column.title.replace(" ", "\n") if tight and column.right else column.title
        drawn.add_column(
            Text(header),
            justify="right" if column.right else "left",
            no_wrap=column.right,
            overflow="fold",
        )
    for row in zip(*(column.cells for column in columns), strict=True):
        drawn.add_row(*row)
    console.print(Text(title, style="bold"))
    console.print(drawn)


def _total(widths: Iterable[int]) -> int:
    listed = list(widths)
    return sum(listed) + _GAP * len(listed)


def _fitting(columns: list[_Column], width: int) -> list[_Column]:
    """Return the columns that remain when as few as possible are dropped."""
    first, *others = columns
    while (
        _total(
            [first.least_width(_FOLDED_NAME), *(each.least_width(_FOLDED_TEXT) for each in others)]
        )
        > width
    ):
        most = max(others, key=lambda each: each.drop, default=None)
        if most is None or not most.drop:
            break
        others.remove(most)
    return [first, *others]


def _plain(title: str, columns: Sequence[_Column]) -> str:
    lines = [title]
    titles = [Text(column.title) for column in columns]
    for row in (titles, *zip(*(column.cells for column in columns), strict=True)):
        cells = []
        for column, cell in zip(columns, row, strict=True):
            space = " " * (column.width() - cell.cell_len)
            cells.append(space + cell.plain if column.right else cell.plain + space)
        lines.append((" " * _GAP).join(cells).rstrip())
    return "\n".join(lines) + "\n"


# --- reports ------------------------------------------------------------------------------------


def sort_key(value: Any) -> tuple[int, Any]:
    """Return a sort key for values of several types: numbers, then texts, then nothing."""
    value = value.value if isinstance(value, Mark) else value
    if value is None:
        return (-1, 0)
    if isinstance(value, timedelta):
        return (0, value.total_seconds())
    return (0, value) if isinstance(value, (int, float)) else (1, str(value).lower())


def report_options(
    fields: Sequence[Field], default: str = "", *, repeats: bool = True
) -> Decorator:
    """Return the options of `write_reports`; `default`: the name of the column to sort by."""
    text = "Column to sort by; numbers are in descending order."
    kind = click.Choice([field.sort for field in fields if field.sort])
    return with_options(
        *([option("--sort", text, kind, default=default)] if default else []),
        option("-R, --reverse", "Reverse the order."),
        *(
            [option("--watch TIME", "Repeat the report at this interval.", TIMEOUT)]
            if repeats
            else []
        ),
    )


def in_order(rows: Sequence[T], fields: Sequence[Field], sort: str, *, reverse: bool) -> list[T]:
    """Return the rows in the order of a column."""
    field = next(field for field in fields if field.sort == sort)
    keys = [sort_key(field.of(row)) for row in rows]
    down = any(kind == 0 for kind, _ in keys)
    return sorted(rows, key=lambda row: sort_key(field.of(row)), reverse=down is not reverse)


def write_reports(
    settings: Settings,
    take: Callable[[], Sequence[T]],
    fields: Sequence[Field],
    *,
    title: str,
    none: str,
    watch: float | None,
) -> None:
    """Write a report once, or repeatedly until Ctrl-C; a terminal is cleared before each repeated one."""
    out = settings.env.stdout
    while True:
        # No server answers while a cluster elects a leader.
        rows = take() if watch is None else failover(take)
        if watch is not None and not settings.json and settings.env.console(out) is not None:
            unescaped(out).write("\x1b[H\x1b[2J")
        if settings.json and watch is not None:
            emit_line(settings, rows)
        else:
            show_rows(settings, rows, fields, title=title, none=none)
        out.flush()
        if watch is None:
            return
        pause(watch)


# --- blocks -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Block:
    """Lines of label and value for one record, under an optional title."""

    title: str
    fields: Sequence[Field]
    record: Any

    def lines(self, settings: Settings) -> list[tuple[str, Text]]:
        """Return the labels with the values that are not empty."""
        lines = []
        for each in self.fields:
            value = each.of(self.record)
            if each.each and isinstance(value, Mapping):
                value = [f"{key}: {item}" for key, item in value.items()]
            for item in (value or ()) if each.each else [value]:
                text = _text(settings, each.display(item), short=False, line=False)
                if text.plain:
                    lines.append((each.title, text))
        return lines


def show_blocks(settings: Settings, document: object, *blocks: Block, heading: str = "") -> None:
    """Write a document as JSON with ``--json``, else as labelled blocks."""
    emit(settings, document, lambda: write_blocks(settings, *blocks, heading=heading))


def write_blocks(settings: Settings, *blocks: Block, heading: str = "") -> None:
    """Write labelled blocks with an empty line between them; see `show_blocks`."""
    env = settings.env
    console = env.console(env.stdout)
    parts = [(block.title, lines) for block in blocks if (lines := block.lines(settings))]
    between = ""
    if heading:
        env.stdout.write(f"{heading}\n")
        between = "\n"
    for title, lines in parts:
        env.stdout.write(f"{between}{title}:\n\n" if title else between)
        between = "\n"
        if console is None:
            env.stdout.write(_plain_lines(lines))
            continue
        grid = RichTable.grid(padding=(0, 1, 0, 0))
        grid.add_column(justify="right", no_wrap=True)
        grid.add_column(overflow="fold")
        for label, text in lines:
            grid.add_row(Text(f"  {label}:"), text)
        env.stdout.flush()
        console.print(grid)


def _plain_lines(lines: Sequence[tuple[str, Text]]) -> str:
    width = max(len(label) for label, _ in lines) + 2
    out = []
    for label, text in lines:
        first, *more = text.plain.split("\n")
        out.append(f"{label:>{width}}: {first}".rstrip())
        out += [f"{'':{width + 2}}{line}".rstrip() for line in more]
    return "\n".join(out) + "\n"


# --- progress -----------------------------------------------------------------------------------


@contextmanager
def show_progress(
    env: Environment, title: str, total: int | None, *, in_bytes: bool = False
) -> Iterator[Callable[[int], None]]:
    """
    Yield a function that shows the number of items, or bytes, that are done; one thread may call it.

    A terminal shows a bar that is erased at the end; other outputs show nothing.
    """
    stderr = env.stderr
    drawn = stderr.isatty() and not getattr(stderr, "as_json", False)
    console = env.console(stderr) if drawn else None
    if console is None:
        yield lambda _done: None
        return
    from rich import progress  # noqa: PLC0415 - only for terminals

    numbers = progress.DownloadColumn(binary_units=True), progress.TransferSpeedColumn()
    with progress.Progress(
        progress.TextColumn("{task.description}", markup=False),
        progress.BarColumn(bar_width=max(4, min(40, console.width - 50))),
        *(numbers if in_bytes else (progress.MofNCompleteColumn(), progress.TimeElapsedColumn())),
        console=console,
        transient=True,
        redirect_stdout=False,
        redirect_stderr=False,
    ) as bars:
        task = bars.add_task(single_line(title), total=total)

        def draw(done: int) -> None:
            # The total may be an estimate.
            bars.update(task, completed=done, total=None if total is None else max(total, done))

        yield draw
