"""
Percentiles and a text histogram of latencies.

All functions are pure. Times are integer nanoseconds.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

__all__ = ["Bucket", "Latency", "bar", "buckets_of", "draw", "human_ns", "writes_blocks"]

_ROWS: Final = 10
#: Additional rows for the slowest percent, if there are enough samples.
_TAIL_ROWS: Final = 3
_MIN_TAIL_SAMPLES: Final = 1000
#: Ratio of maximum to minimum below which buckets have equal widths; above it, equal ratios.
_LINEAR_RATIO: Final = 3.0
_EIGHTHS: Final = " ▏▎▍▌▋▊▉"


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
            p50_ns=_percentile(ordered, 500),
            p90_ns=_percentile(ordered, 900),
            p99_ns=_percentile(ordered, 990),
            p999_ns=_percentile(ordered, 999),
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


def _percentile(ordered: Sequence[int], per_mille: int) -> int:
    # Nearest rank: the smallest value that at least this share of the values does not exceed.
    rank = -(-per_mille * len(ordered) // 1000)
    return ordered[max(rank, 1) - 1]


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


def bar(share: float, columns: int, *, blocks: bool) -> str:
    """
    Return a bar as text.

    Args:
        share: the filled share of the columns, 0 to 1; a value above 0 is always visible.
        columns: the length of a full bar.
        blocks: draw with block characters, in eighths of a column, else with ``#``.

    """
    if share <= 0:
        return ""
    if not blocks:
        return "#" * max(1, round(share * columns))
    full, eighths = divmod(max(1, round(share * columns * 8)), 8)
    return "█" * full + _EIGHTHS[eighths].strip()


def writes_blocks(encoding: str | None) -> bool:
    """Return whether an encoding has block characters."""
    try:
        "▏█".encode(encoding or "ascii")
    except (LookupError, UnicodeEncodeError):
        return False
    return True


def human_ns(nanoseconds: float) -> str:
    """Return a duration with three significant digits and its unit, such as ``12.3 µs``."""
    value, unit = nanoseconds, "ns"
    for larger in ("µs", "ms", "s"):
        if value < 999.5:
            break
        value, unit = value / 1000, larger
    digits = 0 if unit == "ns" or value >= 99.95 else 1 if value >= 9.995 else 2
    return f"{value:.{digits}f} {unit}"
