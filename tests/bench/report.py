"""The tables of the comparison: rates, ratios beside their aims, and processor times."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median

from .rows import BARE, BARE_READER, CLIENTS, OURS, ROWS

__all__ = [
    "SERVER",
    "Costs",
    "Rates",
    "align",
    "as_record",
    "processor_table",
    "rate_table",
    "ratio_table",
]

Rates = Mapping[str, Mapping[str, Sequence[float]]]
"""Row -> client -> messages per second, one for each round; empty when the client failed."""

Costs = Mapping[str, Mapping[str, Sequence[Mapping[str, float]]]]
"""Row -> client -> processor microseconds per message by thread, one for each round."""

SERVER = "server"
"""Key of the server's processor time, beside those of the client's threads."""


def rate_table(rates: Rates, clients: Sequence[str]) -> str:
    """Format the median and, in brackets, the best rate of each cell."""
    lines = [["messages per second: median (best)", *(CLIENTS[client] for client in clients)]]
    for row, cells in rates.items():
        lines.append([ROWS[row].title, *(_rate(cells.get(client)) for client in clients)])
    return align(lines)


def ratio_table(rates: Rates) -> str:
    """Format the ratios of our median to each peer's, and whether they reach the aims."""
    lines = [
        [
            "ratio of the medians",
            *("ours / nats-py", "aim", "ours / C", "aim", ""),
            *("ours / bare socket", "with a reader"),
        ]
    ]
    for row, cells in rates.items():
        line = [ROWS[row].title]
        reached: list[bool | None] = []
        for peer in ("nats-py", "c"):
            ratio = _ratio(cells, peer)
            aim = ROWS[row].aims.get(peer)
            line += [_number(ratio), "" if aim is None else f">= {aim}"]
            if aim is not None:
                reached.append(None if ratio is None else ratio >= aim)
        bare = [_number(_ratio(cells, peer)) for peer in (BARE, BARE_READER)]
        lines.append([*line, _verdict(reached), *bare])
    return align(lines)


def processor_table(costs: Costs) -> str:
    """Format the processor time per message: ours by thread, the peers' and the server's."""
    peers = [client for client in CLIENTS if any(client in cells for cells in costs.values())]
    peers = [client for client in peers if client != OURS]
    lines = [
        ["processor time per message, us", "ours", "by thread", *map(CLIENTS.__getitem__, peers)]
    ]
    lines[0].append("server, with ours")
    for row, cells in costs.items():
        ours = _medians(cells.get(OURS, ()))
        server = ours.pop(SERVER, None)
        threads = sorted(ours, key=lambda thread: -ours[thread])
        shown = [f"{thread} {ours[thread]:.1f}" for thread in threads if ours[thread] >= 0.05]
        line = [ROWS[row].title, _microseconds(ours), ", ".join(shown) or "-"]
        for peer in peers:
            theirs = _medians(cells.get(peer, ()))
            theirs.pop(SERVER, None)
            line.append(_microseconds(theirs))
        lines.append([*line, "-" if server is None else f"{server:.1f}"])
    return align(lines)


def as_record(rates: Rates, costs: Costs) -> dict[str, object]:
    """Return rates, ratios, aims and processor times for a JSON file."""
    return {
        row: {
            "messages_per_second": {client: list(cell) for client, cell in cells.items()},
            "median": {client: median(cell) for client, cell in cells.items() if cell},
            "ratio": {peer: _ratio(cells, peer) for peer in CLIENTS if peer != OURS},
            "aim": dict(ROWS[row].aims),
            "processor_us": {client: _medians(cell) for client, cell in costs[row].items()},
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


def _medians(rounds: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Return the median over the rounds, for each thread."""
    threads = dict.fromkeys(thread for each in rounds for thread in each)
    return {thread: median(each.get(thread, 0.0) for each in rounds) for thread in threads}


def _microseconds(threads: Mapping[str, float]) -> str:
    return f"{sum(threads.values()):.1f}" if threads else "-"


def _ratio(cells: Mapping[str, Sequence[float]], peer: str) -> float | None:
    mine, theirs = cells.get(OURS), cells.get(peer)
    return median(mine) / median(theirs) if mine and theirs else None


def _number(ratio: float | None) -> str:
    return "-" if ratio is None else f"{ratio:.2f}"


def _verdict(reached: Sequence[bool | None]) -> str:
    if False in reached:
        return "not reached"
    return "not measured" if None in reached else "reached"


def _rate(cell: Sequence[float] | None) -> str:
    if cell is None:
        return "-"
    return f"{median(cell):,.0f} ({max(cell):,.0f})" if cell else "failed"
