"""
Results of ``jsm bench``: percentiles, a text histogram, tables and CSV.

Times are integer nanoseconds.
"""

from __future__ import annotations

import csv
import io
import math
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

from ..charts import bar, percentile, writes_blocks
from ..env import Environment
from ..output import size as size_text
from ..render import Table, write_table
from ..status import CommandError, ExitStatus
from .run import Outcome

_ROWS: Final = 10
#: Additional rows for the slowest percent, if there are enough samples.
_TAIL_ROWS: Final = 3
_MIN_TAIL_SAMPLES: Final = 1000
#: Ratio of maximum to minimum below which buckets have equal widths; above it, equal ratios.
_LINEAR_RATIO: Final = 3.0


@dataclass(frozen=True, kw_only=True)
class Latency:
    """Statistics of latencies, in nanoseconds."""

    samples: int
    min_ns: int
    avg_ns: float
    p50_ns: int
    p90_ns: int
    p99_ns: int
    p999_ns: int
    max_ns: int
    stddev_ns: float

    @classmethod
    def of(cls, ordered: Sequence[int]) -> Latency:
        """
        Calculate the statistics.

        Args:
            ordered: the latencies in ascending order, at least one.

        """
        average = math.fsum(ordered) / len(ordered)
        variance = math.fsum((each - average) ** 2 for each in ordered) / len(ordered)
        return cls(
            samples=len(ordered),
            min_ns=ordered[0],
            avg_ns=average,
            p50_ns=percentile(ordered, 500),
            p90_ns=percentile(ordered, 900),
            p99_ns=percentile(ordered, 990),
            p999_ns=percentile(ordered, 999),
            max_ns=ordered[-1],
            stddev_ns=math.sqrt(variance),
        )

    def named(self) -> dict[str, float]:
        """Return the values by their display names, in display order."""
        return {
            "min": self.min_ns,
            "avg": self.avg_ns,
            "P50": self.p50_ns,
            "P90": self.p90_ns,
            "P99": self.p99_ns,
            "P99.9": self.p999_ns,
            "max": self.max_ns,
            "stddev": self.stddev_ns,
        }


@dataclass(frozen=True, kw_only=True)
class Bucket:
    """The latencies from ``low_ns`` to below ``high_ns``; the last bucket includes its end."""

    low_ns: int
    high_ns: int
    count: int
    marks: tuple[str, ...] = ()
    """Names of the percentiles in this bucket."""


def buckets_of(ordered: Sequence[int]) -> list[Bucket]:
    """
    Divide latencies into at most 14 buckets, fewer if there are few or equal ones.

    Args:
        ordered: in ascending order, at least one.

    """
    latency = Latency.of(ordered)
    edges = _edges(latency)
    # The index where each bucket begins; the last bucket has all remaining values.
    starts = [0, *(bisect_left(ordered, edge) for edge in edges[1:-1]), len(ordered)]
    named = latency.named()
    found = []
    for number, (low, high) in enumerate(pairwise(edges)):
        last = number == len(edges) - 2
        marks = tuple(
            name
            for name in ("P50", "P90", "P99", "P99.9")
            if low <= named[name] < high or (last and named[name] == high)
        )
        count = starts[number + 1] - starts[number]
        found.append(Bucket(low_ns=low, high_ns=high, count=count, marks=marks))
    return found


def _edges(latency: Latency) -> list[int]:
    low, high = latency.min_ns, latency.max_ns
    if latency.samples > _MIN_TAIL_SAMPLES:
        # Without rows of its own, a long tail would leave all other values in two rows.
        tail = _steps(latency.p99_ns, high, _TAIL_ROWS)
        inner = [*_steps(low, latency.p99_ns, _ROWS), *tail]
    else:
        inner = _steps(low, high, min(_ROWS, latency.samples))
    edges = [low]
    for edge in map(_rounded, inner):
        # Rounding may move the last edge next to the maximum.
        if edges[-1] < edge < 0.97 * high:
            edges.append(edge)
    return [*edges, high] if edges[-1] < high else [low, low]


def _steps(low: int, high: int, steps: int) -> list[float]:
    if low <= 0 or high / low < _LINEAR_RATIO:
        return [low + (high - low) * step / steps for step in range(1, steps + 1)]
    ratio = (high / low) ** (1 / steps)
    return [low * ratio**step for step in range(1, steps + 1)]


def _rounded(value: float) -> int:
    """Round to two significant digits."""
    if value < 1:
        return 0
    step: int = 10 ** max(0, math.floor(math.log10(value)) - 1)
    return round(value / step) * step


def draw(ordered: Sequence[int], *, width: int, blocks: bool) -> list[str]:
    """
    Return the lines of a histogram, one for each bucket.

    Args:
        ordered: in ascending order, at least one.
        width: maximum line length in columns; bars have at least 10 columns anyway.
        blocks: draw with block characters in eighths of a column, else with ``#``.

    """
    buckets = buckets_of(ordered)
    most = max(bucket.count for bucket in buckets)
    left = [f"{human_ns(each.low_ns)} - {human_ns(each.high_ns)}" for each in buckets]
    right = [f"{each.count:,}" for each in buckets]
    margin, numbers = max(map(len, left)), max(map(len, right))
    columns = max(10, width - margin - numbers - 28)
    lines = []
    for label, bucket, count in zip(left, buckets, right, strict=True):
        drawn = bar(bucket.count / most, columns, blocks=blocks).ljust(columns)
        share = f"{100 * bucket.count / len(ordered):6.2f}%"
        marks = " ".join(bucket.marks)
        lines.append(f"  {label:>{margin}}  {drawn} {count:>{numbers}} {share}  {marks}".rstrip())
    return lines


def human_ns(nanoseconds: float) -> str:
    """Return a duration with three significant digits and its unit, such as ``12.3 µs``."""
    value, unit = nanoseconds, "ns"
    for larger in ("µs", "ms", "s"):
        if value < 999.5:
            break
        value, unit = value / 1000, larger
    digits = 0 if unit == "ns" or value >= 99.95 else 1 if value >= 9.995 else 2
    return f"{value:.{digits}f} {unit}"


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
