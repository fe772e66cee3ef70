"""Text graphs: a sparkline of values over time and a chart of several lines."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

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
    """
    Return values as a line of bars, with the newest at the right end.

    Args:
        values: the oldest first.
        width: width in columns; fewer values are padded on the left.
        blocks: draw with block characters, else with ASCII.

    """
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
    """
    Return values as bars on several lines, with the scale at the left.

    Args:
        values: the oldest first.
        width: width of the whole chart in columns.
        height: number of lines.
        blocks: draw with block characters, else with ASCII.

    """
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
