"""Rendering of results as tables and as JSON."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace

from .env import Environment
from .sanitize import readable_json, single_line


def to_json(document: object) -> str:
    """Return a document as indented JSON with a final line break, safe to show on a terminal."""
    return readable_json(json.dumps(document, indent=2, ensure_ascii=False)) + "\n"


@dataclass(frozen=True, kw_only=True)
class Table:
    """
    Rows of text under a title and column names.

    The first ``left`` columns are aligned to the left, the others to the right, as numbers.
    """

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    left: int = 1


def write_table(table: Table, env: Environment) -> None:
    """
    Write a table to ``env.stdout``: with borders on a terminal, else as plain aligned text.

    A table that is wider than the terminal is written as plain text, since rich would break its words.
    """
    # Cells have names chosen by other clients, which may be malicious.
    table = replace(table, rows=[[single_line(cell) for cell in row] for row in table.rows])
    console = env.console(env.stdout)
    if console is None or _drawn_width(table) > console.width:
        env.stdout.write(_plain(table))
        return
    from rich.table import Table as RichTable  # noqa: PLC0415 - an extra, only for terminals
    from rich.text import Text  # noqa: PLC0415

    drawn = RichTable(title=Text(table.title), title_justify="left")
    for number, name in enumerate(table.columns):
        right = number >= table.left
        drawn.add_column(
            Text(name), justify="right" if right else "left", no_wrap=right, overflow="fold"
        )
    for row in table.rows:
        # Text, not str: rich would interpret mark-up in a str.
        drawn.add_row(*(Text(cell) for cell in row))
    console.print(drawn)


def _drawn_width(table: Table) -> int:
    """Return the width of a table with its borders and without line breaks in cells."""
    widths = _widths(table)
    return sum(widths) + 3 * len(widths) + 1


def _widths(table: Table) -> list[int]:
    lines = [table.columns, *table.rows]
    return [max(len(line[number]) for line in lines) for number in range(len(table.columns))]


def _plain(table: Table) -> str:
    lines = [list(table.columns), *(list(row) for row in table.rows)]
    widths = _widths(table)
    out = [table.title]
    for line in lines:
        cells = [
            cell.ljust(width) if number < table.left else cell.rjust(width)
            for number, (cell, width) in enumerate(zip(line, widths, strict=True))
        ]
        out.append("  ".join(cells).rstrip())
    return "\n".join(out) + "\n"
