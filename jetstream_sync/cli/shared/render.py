"""
Tables and labelled blocks: with rich on a terminal, else as aligned plain text that is never cut.

A command declares its columns as `Field` objects and passes its records or dicts to `show_rows`, which writes
the same rows as JSON with ``--json``. `show_blocks` does the same for one record, with a line for each field
of each `Block`. A value has the text of its type: numbers get separators, times are local, lists are joined.
`bad` and `warn` colour a value.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cache, partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

import click

from ...durations import duration_text
from .env import Environment, readable, single_line, unescaped
from .long_running import failover, pause
from .output import Missing, count, emit, emit_line, emit_list, when
from .settings import Settings
from .status import CommandError
from .values import TIMEOUT, Decorator, option, with_options

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text
    from typing_extensions import Self

T = TypeVar("T")

#: At narrow widths, the width to which a text column may be folded: the first column, and others.
_FOLDED_NAME: Final = 32
_FOLDED_TEXT: Final = 16
#: Spaces between two columns.
_GAP: Final = 2


@dataclass(frozen=True, slots=True)
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


@cache
def _names_of(path: str) -> tuple[str, ...]:
    return tuple(path.split("."))


@dataclass(frozen=True, slots=True)
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
        if isinstance(record, dict) and self.value in record:
            return record[self.value]
        for name in _names_of(self.value):
            if record is None:
                break
            record = record.get(name) if isinstance(record, dict) else getattr(record, name)
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


#: A part of a cell, and its colour.
_Part = tuple[str, str]


def _parts(
    settings: Settings, value: Any, *, short: bool, line: bool = True, style: str = ""
) -> Iterator[_Part]:
    """Yield the parts of a value; ``short`` is for times in tables, ``line`` escapes line breaks."""
    if isinstance(value, Mark):
        style = value.style if value else style
        yield from _parts(settings, value.value, short=short, line=line, style=style)
    elif isinstance(value, (list, tuple)):
        for place, item in enumerate(value):
            if place:
                yield ", ", style
            yield from _parts(settings, item, short=short, line=line, style=style)
    else:
        shown = _plain_text(settings, value, short=short)
        # Texts are chosen by other clients, which may be malicious.
        yield single_line(shown) if line else readable(shown), style


def _plain_text(settings: Settings, value: Any, *, short: bool) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return count(value)
    if isinstance(value, datetime):
        return when(settings, value, short=short) if value.year > 1 else ""
    if isinstance(value, timedelta):
        return duration_text(value)
    return str(value)


def _joined(parts: Iterable[_Part]) -> str:
    return "".join(text for text, _ in parts)


def styled(parts: Iterable[_Part]) -> Text:
    """Return the parts of a value as one text with their colours."""
    from rich.text import Text  # noqa: PLC0415 - for terminals only

    return Text.assemble(*parts)


def cell(settings: Settings, field: Field, record: Any) -> Text:
    """Return the text of a field of a record, as in a table."""
    return styled(_parts(settings, field.display(field.of(record)), short=True))


def _width(text: str) -> int:
    """Return the number of columns that a text takes."""
    if text.isascii():
        return len(text)
    from rich.cells import cell_len  # noqa: PLC0415 - for wide characters only

    return cell_len(text)


# --- tables -------------------------------------------------------------------------------------

#: The last column, if a row is `Missing`.
_STATE: Final = Field("State", lambda _: None)
#: The number of rows that a table reads before it writes them: columns keep their widths, unless a
#: later row needs more.
_PAGE_ROWS: Final = 1000


class Table(NamedTuple):
    """The columns and the texts of a table."""

    fields: Sequence[Field]
    title: str
    none: str = ""
    """The line that is written instead of a table without rows."""


def show_rows(
    settings: Settings,
    rows: Iterable[Any],
    table: Table,
    *,
    item: Callable[[Any], object] | None = None,
    document: object = None,
) -> None:
    """
    Write records as a JSON list with ``--json``, else as a table; those of an iterator as they come.

    `item`: returns the JSON of a record. `document`: the whole JSON, instead of a list of the records.
    """
    if settings.json and document is not None:
        emit(settings, document, lambda: None)
    elif settings.json:
        if item is not None:
            rows = (row if isinstance(row, Missing) else item(row) for row in rows)
        emit_list(settings, rows)
    else:
        write_rows(settings, rows, table)


def write_rows(settings: Settings, rows: Iterable[Any], table: Table) -> None:
    """Write records as a table; see `show_rows`."""
    env, (fields, title, none) = settings.env, table
    console = env.console(env.stdout)
    make = partial(_Column, settings, short=console is not None)
    columns = [
        make(fields[0], lambda row: row.name),
        *map(make, fields[1:]),
        make(_STATE, lambda row: f"{row.state}: {row.reason}"),
    ]
    titles: list[str] = []
    page: list[Any] = []
    for page in _pages(rows):
        for column in columns:
            column.take(page)
        filled = [columns[0], *(column for column in columns[1:] if column.is_filled)]
        if console is not None:
            heading = "" if titles else single_line(title)
            _write_columns(console, heading, filled)
        else:
            if not titles:
                env.stdout.write(f"{single_line(title)}\n")
            heads = [column.title for column in filled]
            env.stdout.write(_plain(filled, heads=heads != titles))
        titles = [column.title for column in filled]
    if not titles and none:
        env.stdout.write(f"{none}\n")


def _pages(rows: Iterable[Any]) -> Iterator[list[Any]]:
    """Yield the rows in lists; those that came before an error are yielded before it is raised."""
    page: list[Any] = []
    try:
        for row in rows:
            page.append(row)
            if len(page) == _PAGE_ROWS:
                yield page
                page = []
    except Exception:
        if page:
            yield page
        raise
    if page:
        yield page


class _Column:
    """A column, and its cells on the present page."""

    def __init__(
        self,
        settings: Settings,
        field: Field,
        missing: Callable[[Missing], str] = lambda _: "?",
        *,
        short: bool,
    ) -> None:
        self.title = field.title
        self.drop = field.drop
        self.right = False
        self.width = _width(field.title)
        self.cells: list[tuple[_Part, ...]] = []
        self.texts: list[str] = []
        self.is_filled = False
        self._field = field
        self._missing = missing
        self._settings = settings
        self._short = short

    def take(self, rows: Sequence[Any]) -> None:
        """Replace the cells by those of other rows; the width only grows."""
        field = self._field
        values = [field.of(row) for row in rows if not isinstance(row, Missing)]
        parts = partial(_parts, self._settings, short=self._short)
        known = [tuple(parts(field.display(value))) for value in values]
        # A column that is empty so far has no alignment yet.
        self.right = self.right if self.is_filled else field.is_right(values)
        # An unknown value does not fill a column, other than that of the reasons.
        self.is_filled = self.is_filled or any(map(_joined, known))
        cells = iter(known)
        self.cells = [
            tuple(parts(bad(self._missing(row)))) if isinstance(row, Missing) else next(cells)
            for row in rows
        ]
        self.texts = [_joined(cell) for cell in self.cells]
        self.is_filled |= field is _STATE and any(self.texts)
        self.width = max(self.width, *map(_width, self.texts))

    def least_width(self, most: int) -> int:
        """Return the width after line breaks in the title, and in texts that are wider than ``most``."""
        cells = max(map(_width, self.texts))
        return max(*map(len, self.title.split()), cells if self.right else min(cells, most), 1)


def _write_columns(console: Console, title: str, columns: list[_Column]) -> None:
    from rich import box, table  # noqa: PLC0415 - for terminals only
    from rich.text import Text  # noqa: PLC0415

    tight = _total(column.width for column in columns) > console.width
    if tight:
        columns = _fitting(columns, console.width)
    drawn = table.Table(box=box.SIMPLE_HEAD, show_edge=False, padding=(0, _GAP - 1, 0, 0))
    for column in columns:
        header = column.title.replace(" ", "\n") if tight and column.right else column.title
        drawn.add_column(
            Text(header),
            justify="right" if column.right else "left",
            no_wrap=column.right,
            overflow="fold",
        )
    for row in zip(*(column.cells for column in columns), strict=True):
        drawn.add_row(*map(styled, row))
    if title:
        console.print(Text(title, style="bold"))
    console.print(drawn)


def _total(widths: Iterable[int]) -> int:
    return sum(width + _GAP for width in widths)


def _fitting(columns: list[_Column], width: int) -> list[_Column]:
    """Return the columns that remain when as few as possible are dropped."""
    first, *others = columns
    least = first.least_width(_FOLDED_NAME)
    while _total([least, *(other.least_width(_FOLDED_TEXT) for other in others)]) > width:
        most = max(others, key=lambda item: item.drop, default=None)
        if most is None or not most.drop:
            break
        others.remove(most)
    return [first, *others]


def _plain(columns: Sequence[_Column], *, heads: bool) -> str:
    """Return the rows of the present page as aligned lines, with the titles above if ``heads``."""
    aligned = []
    for column in columns:
        texts = [column.title, *column.texts] if heads else column.texts
        spaces = (" " * (column.width - _width(text)) for text in texts)
        pairs = zip(texts, spaces, strict=True)
        aligned.append([space + text if column.right else text + space for text, space in pairs])
    gap = " " * _GAP
    return "".join(f"{gap.join(row).rstrip()}\n" for row in zip(*aligned, strict=True))


# --- reports ------------------------------------------------------------------------------------


def sort_key(value: Any) -> tuple[int, Any]:
    """Return a sort key for values of several types: numbers, then texts, then nothing."""
    value = value.value if isinstance(value, Mark) else value
    if value is None:
        return (-1, 0)
    if isinstance(value, timedelta):
        return (0, value.total_seconds())
    return (0, value) if isinstance(value, (int, float)) else (1, str(value).lower())


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportOptions:
    """The values of `report_options`; one that a command does not have has its default."""

    sort: str = "name"
    """The name of the column to sort by."""
    reverse: bool = False
    watch: float | None = None
    """Seconds between repeated reports; ``None``: the report is written once."""

    @classmethod
    def pop_from(cls, options: dict[str, Any]) -> Self:
        """Return the options of a report, and remove them from those of its command."""
        names = [item.name for item in dataclasses.fields(cls) if item.name in options]
        return cls(**{name: options.pop(name) for name in names})

    def in_order(self, rows: Sequence[T], fields: Sequence[Field]) -> list[T]:
        """Return the rows in the order of the column."""
        field = next(field for field in fields if field.sort == self.sort)
        keys = [sort_key(field.of(row)) for row in rows]
        down = any(kind == 0 for kind, _ in keys)
        return sorted(
            rows, key=lambda row: sort_key(field.of(row)), reverse=down is not self.reverse
        )


def report_options(
    fields: Sequence[Field], default: str = "", *, repeats: bool = True
) -> Decorator:
    """Return the options of a report, `ReportOptions`; `default`: the name of the column to sort by."""
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


def write_reports(
    settings: Settings,
    take: Callable[[], Sequence[T]],
    table: Table,
    *,
    watch: float | None,
    check: Callable[[], None],
) -> None:
    """
    Write a report once, or repeatedly until Ctrl-C; a terminal is cleared before each repeated one.

    `check`: raises `CommandError` if what was taken last is not complete. An empty report then has no ``none``.

    Raises:
        CommandError: the single report is not complete. Below a repeated one, it is a note.

    """
    out = settings.env.stdout
    while True:
        # No server answers while a cluster elects a leader.
        rows = take() if watch is None else failover(take, settings.timeout)
        problem = None
        try:
            check()
        except CommandError as error:
            problem = error
        if watch is not None and not settings.json and settings.env.console(out) is not None:
            unescaped(out).write("\x1b[H\x1b[2J")
        if settings.json and watch is not None:
            emit_line(settings, rows)
        else:
            none = "" if problem else table.none
            show_rows(settings, rows, table._replace(none=none))
        out.flush()
        if watch is None and problem is not None:
            raise problem
        if watch is None:
            return
        if problem is not None:
            settings.note(problem.message)
        pause(watch)


# --- blocks -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Block:
    """Lines of label and value for one record, under an optional title."""

    title: str
    fields: Sequence[Field]
    record: Any

    def lines(self, settings: Settings) -> list[tuple[str, tuple[_Part, ...]]]:
        """Return the labels with the values that are not empty."""
        lines = []
        for field in self.fields:
            value = field.of(self.record)
            if field.each and isinstance(value, Mapping):
                value = [f"{key}: {item}" for key, item in value.items()]
            for item in (value or ()) if field.each else [value]:
                shown = tuple(_parts(settings, field.display(item), short=False, line=False))
                if _joined(shown):
                    lines.append((field.title, shown))
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
        env.stdout.flush()
        _write_grid(console, lines)


def _write_grid(console: Console, lines: Sequence[tuple[str, tuple[_Part, ...]]]) -> None:
    from rich import table  # noqa: PLC0415 - for terminals only
    from rich.text import Text  # noqa: PLC0415

    grid = table.Table.grid(padding=(0, 1, 0, 0))
    grid.add_column(justify="right", no_wrap=True)
    grid.add_column(overflow="fold")
    for label, parts in lines:
        grid.add_row(Text(f"  {label}:"), styled(parts))
    console.print(grid)


def _plain_lines(lines: Sequence[tuple[str, tuple[_Part, ...]]]) -> str:
    width = max(len(label) for label, _ in lines) + 2
    out = []
    for label, parts in lines:
        first, *more = _joined(parts).split("\n")
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
