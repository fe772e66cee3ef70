"""Write the results of ``jsm bench``: rates, percentiles and a histogram as text, JSON or CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from ..env import Environment
from ..output import size as size_text
from ..render import Table, write_table
from ..status import CommandError, ExitStatus
from .histogram import Latency, buckets_of, draw, human_ns, writes_blocks
from .run import Outcome

__all__ = [
    "document",
    "show_many",
    "show_one",
    "summary",
    "write_csv",
]

#: Width of a histogram in columns if the output is not a terminal.
_DEFAULT_WIDTH: Final = 100
_CSV_COLUMNS: Final = (
    "kind",
    "clients",
    "messages",
    "size_bytes",
    "seconds",
    "messages_per_second",
    "bytes_per_second",
    "samples",
    "min_ns",
    "avg_ns",
    "p50_ns",
    "p90_ns",
    "p99_ns",
    "p999_ns",
    "max_ns",
    "stddev_ns",
)


def summary(outcome: Outcome) -> str:
    """Return one line with the number of messages and the rates."""
    return (
        f"{outcome.messages:,} messages of {size_text(outcome.size)} in {outcome.seconds:.2f} s: "
        f"{outcome.rate:,.0f} msgs/s, {size_text(int(outcome.rate * outcome.size))}/s"
    )


def _columns(env: Environment) -> int:
    console = env.console(env.stdout)
    return console.width if console is not None else _DEFAULT_WIDTH


def show_one(outcome: Outcome, env: Environment) -> None:
    """Write the result of one kind of work as text, with percentiles and a histogram."""
    out = env.stdout
    clients = len(outcome.clients)
    with_clients = f", {clients} clients" if clients > 1 else ""
    out.write(f"{outcome.kind.title}{with_clients}\n\n  {summary(outcome)}\n")
    if clients > 1:
        rates = [each.rate for each in outcome.clients]
        out.write(
            f"  per client: min {min(rates):,.0f}, avg {sum(rates) / clients:,.0f}, "
            f"max {max(rates):,.0f} msgs/s\n"
        )
    if not outcome.latencies:
        return
    latency = Latency.of(outcome.latencies)
    out.write(f"\nLatency: {outcome.kind.latency} ({latency.samples:,} samples)\n\n")
    named = {name: human_ns(value) for name, value in latency.named().items()}
    widths = {name: max(len(name), len(text)) for name, text in named.items()}
    out.write("  " + "  ".join(f"{name:>{widths[name]}}" for name in named) + "\n")
    out.write("  " + "  ".join(f"{text:>{widths[name]}}" for name, text in named.items()) + "\n\n")
    blocks = writes_blocks(getattr(out, "encoding", None))
    out.write("\n".join(draw(outcome.latencies, width=_columns(env), blocks=blocks)) + "\n")


def show_many(outcomes: Sequence[Outcome], env: Environment) -> None:
    """Write the results of several kinds of work as a table."""
    rows: list[tuple[str, ...]] = []
    for outcome in outcomes:
        latency = Latency.of(outcome.latencies) if outcome.latencies else None
        times: tuple[str, ...] = ("-",) * 4
        if latency is not None:
            values = (latency.p50_ns, latency.p90_ns, latency.p99_ns, latency.max_ns)
            times = tuple(map(human_ns, values))
        rate = (f"{outcome.rate:,.0f}", f"{size_text(int(outcome.rate * outcome.size))}/s")
        rows.append((outcome.kind.title, f"{outcome.messages:,}", *rate, *times))
    columns = ("Work", "Messages", "Msgs/s", "Bytes", "P50", "P90", "P99", "Max")
    size = size_text(outcomes[0].size)
    title = f"Messages of {size}, {len(outcomes[0].clients)} clients"
    write_table(Table(title=title, columns=columns, rows=rows), env)


# --- JSON and CSV ---------------------------------------------------------------------------------


def document(outcome: Outcome) -> dict[str, Any]:
    """Return the JSON document of an outcome."""
    found: dict[str, Any] = {
        "kind": outcome.name,
        "title": outcome.kind.title,
        "clients": len(outcome.clients),
        "messages": outcome.messages,
        "size_bytes": outcome.size,
        "seconds": outcome.seconds,
        "messages_per_second": outcome.rate,
        "bytes_per_second": outcome.rate * outcome.size,
        "per_client": [
            {"messages": each.messages, "seconds": each.seconds, "messages_per_second": each.rate}
            for each in outcome.clients
        ],
    }
    if outcome.latencies:
        latency = asdict(Latency.of(outcome.latencies))
        found["latency"] = {"of": outcome.kind.latency, **latency}
        found["histogram"] = [
            {"low_ns": each.low_ns, "high_ns": each.high_ns, "count": each.count}
            for each in buckets_of(outcome.latencies)
        ]
    return found


def csv_text(outcomes: Sequence[Outcome]) -> str:
    """Return outcomes as CSV: a header line and a line for each outcome."""
    text = io.StringIO()
    writer = csv.DictWriter(text, _CSV_COLUMNS, restval="", lineterminator="\n")
    writer.writeheader()
    for outcome in outcomes:
        fields: Mapping[str, Any] = document(outcome)
        row = {name: value for name, value in fields.items() if name in _CSV_COLUMNS}
        latency = fields.get("latency", {})
        row.update((name, value) for name, value in latency.items() if name in _CSV_COLUMNS)
        writer.writerow(row)
    return text.getvalue()


def write_csv(outcomes: Sequence[Outcome], target: str, env: Environment) -> None:
    """
    Write outcomes as CSV to a file, or to ``stdout`` for ``-``.

    Raises:
        CommandError: the file cannot be written.

    """
    text = csv_text(outcomes)
    if target == "-":
        env.stdout.write(text)
        return
    try:
        Path(target).write_text(text, "utf-8")
    except OSError as error:
        raise CommandError(
            f"cannot write {target}: {error.strerror or error}", ExitStatus.FAILED
        ) from error
