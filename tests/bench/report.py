"""From measurements to the two tables: rates, and ratios beside their aims."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median

from .rows import CLIENTS, OURS, ROWS

__all__ = ["Rates", "align", "as_record", "rate_table", "ratio_table"]

Rates = Mapping[str, Mapping[str, Sequence[float]]]
"""Row -> client -> messages per second, one for each round; empty when the client failed."""


def rate_table(rates: Rates, clients: Sequence[str]) -> str:
    """Format the median and, in brackets, the best rate of each cell."""
    lines = [["messages per second: median (best)", *(CLIENTS[client] for client in clients)]]
    for row, cells in rates.items():
        lines.append([ROWS[row].title, *(_rate(cells.get(client)) for client in clients)])
    return align(lines)


def ratio_table(rates: Rates) -> str:
    """Format our median over each peer's, and whether that reaches the aims."""
    lines = [["ratio of the medians", "ours / nats-py", "aim", "ours / C", "aim", ""]]
    for row, cells in rates.items():
        line = [ROWS[row].title]
        reached: list[bool | None] = []
        for peer in ("nats-py", "c"):
            ratio = _ratio(cells, peer)
            aim = ROWS[row].aims.get(peer)
            line += ["-" if ratio is None else f"{ratio:.2f}", "" if aim is None else f">= {aim}"]
            if aim is not None:
                reached.append(None if ratio is None else ratio >= aim)
        lines.append([*line, _verdict(reached)])
    return align(lines)


def as_record(rates: Rates) -> dict[str, object]:
    """Return rates, ratios and aims for a JSON file."""
    return {
        row: {
            "messages_per_second": {client: list(cell) for client, cell in cells.items()},
            "median": {client: median(cell) for client, cell in cells.items() if cell},
            "ratio": {peer: _ratio(cells, peer) for peer in CLIENTS if peer != OURS},
            "aim": dict(ROWS[row].aims),
        }
        for row, cells in rates.items()
    }


def align(lines: Sequence[Sequence[str]]) -> str:
    """Format a table: the first column to the left, the others to the right."""
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(
        "  ".join(
            word.ljust(width) if number == 0 else word.rjust(width)
            for number, (word, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    )


def _ratio(cells: Mapping[str, Sequence[float]], peer: str) -> float | None:
    mine, theirs = cells.get(OURS), cells.get(peer)
    return median(mine) / median(theirs) if mine and theirs else None


def _verdict(reached: Sequence[bool | None]) -> str:
    if False in reached:
        return "not reached"
    return "not measured" if None in reached else "reached"


def _rate(cell: Sequence[float] | None) -> str:
    if cell is None:
        return "-"
    return f"{median(cell):,.0f} ({max(cell):,.0f})" if cell else "failed"
