"""
What is left of a read by the filters that Spark passes on.

Nothing here decides about a row: Spark applies every filter again. A filter that can not be said in
subjects, sequences or times is passed over, so a read is never narrower than its filters.

Filters are looked at by the names of their classes, so this needs no PySpark.

The plan of a read that ends: which ranges of which streams a batch query reads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Final

from ...errors import BadSubjectError, StreamNotFoundError
from ...nanos import time_to_ns
from ...subjects import check_publish_subject, check_subject, subjects_overlap
from ..options import EARLIEST, ReadOptions
from ..reading.ranges import SequenceRange
from ..streams import StreamView
from .access import SourceAccess
from .batches import MessageCounter, partition_counts, partition_cuts, partition_ranges
from .data_loss import DataLossPolicy, find_resume_point
from .offsets import StreamOffset

__all__ = ["FilterBounds", "filter_bounds", "plan_read"]

#: More subjects than this are not worth a filter each.
_MAX_SUBJECTS: Final = 16
_MICROSECOND_NS: Final = 1000
_REPLACED: Final = "\N{REPLACEMENT CHARACTER}"


@dataclass(frozen=True, slots=True, kw_only=True)
class FilterBounds:
    """What filters leave of a read; ``None``: all of it."""

    subjects: tuple[str, ...] | None = None
    """Filter subjects; none at all: there is nothing to read."""

    first_seq: int = 1
    """The first sequence of each stream."""

    end_seq: int | None = None
    """The sequence after the last one."""

    first_ns: int | None = None
    """The earliest time, in nanoseconds since 1970."""

    end_ns: int | None = None
    """The time after the latest one."""

    def with_subjects(self, subjects: tuple[str, ...]) -> FilterBounds:
        """Return what is also left by the subjects of a further filter."""
        if self.subjects is None:
            return replace(self, subjects=subjects)
        both = _intersection(self.subjects, subjects)
        return self if both is None else replace(self, subjects=both)

    def with_sequences(self, first: int, end: int | None) -> FilterBounds:
        """Return what is also left by a range of sequences."""
        return replace(
            self, first_seq=max(self.first_seq, first), end_seq=_min_or_none(self.end_seq, end)
        )

    def with_times(self, first_ns: int | None, end_ns: int | None) -> FilterBounds:
        """Return what is also left by a range of times."""
        firsts = [each for each in (self.first_ns, first_ns) if each is not None]
        first = max(firsts, default=None)
        return replace(self, first_ns=first, end_ns=_min_or_none(self.end_ns, end_ns))


def filter_bounds(filters: Iterable[Any], subjects: tuple[str, ...]) -> FilterBounds:
    """
    Return what filters leave of a read.

    Args:
        filters: PySpark's, all of which a row has to pass.
        subjects: the option.

    """
    bounds = FilterBounds(subjects=subjects or None)
    for each in filters:
        column = ".".join(each.attribute) if hasattr(each, "attribute") else ""
        apply = _COLUMNS.get(column)
        if apply is not None:
            bounds = apply(bounds, type(each).__name__, getattr(each, "value", None))
    return bounds


def _by_subject(bounds: FilterBounds, kind: str, value: Any) -> FilterBounds:
    found: tuple[str, ...] | None = None
    if kind in {"EqualTo", "EqualNullSafe"}:
        found = _literals([value])
    elif kind == "In" and len(value) <= _MAX_SUBJECTS:
        found = _literals(value)
    elif kind == "StringStartsWith":
        # Only whole tokens can be said.
        head, dot, _ = value.rpartition(".")
        found = _checked(f"{head}.>", check_subject) if dot else None
    return bounds if found is None else bounds.with_subjects(found)


def _literals(values: Iterable[Any]) -> tuple[str, ...] | None:
    """Return subjects that are meant word for word; ``None`` when one can not be one."""
    found: list[str] = []
    for value in values:
        checked = _checked(value, check_publish_subject)
        if checked is None:
            return None
        found += checked
    return tuple(dict.fromkeys(found))


def _checked(subject: Any, check: Callable[[str], str]) -> tuple[str, ...] | None:
    try:
        found = check(subject)
    except BadSubjectError:
        return None
    # In a row this may stand for bytes that are no UTF-8, which the server compares as they are.
    return None if _REPLACED in found else (found,)


def _by_sequence(bounds: FilterBounds, kind: str, value: Any) -> FilterBounds:
    values = value if kind == "In" else [value]
    if not values or not all(type(each) is int for each in values):
        return bounds
    return bounds.with_sequences(*_value_range(kind, min(values), max(values), 1, bounds.first_seq))


def _by_time(bounds: FilterBounds, kind: str, value: Any) -> FilterBounds:
    values = value if kind == "In" else [value]
    if not values or not all(isinstance(each, datetime) and each.tzinfo for each in values):
        return bounds
    times = sorted(map(time_to_ns, values))
    # A row has microseconds, a message nanoseconds: what is at t is up to a microsecond later.
    return bounds.with_times(*_value_range(kind, times[0], times[-1], _MICROSECOND_NS, None))


def _value_range(
    kind: str, least: int, most: int, step: int, lowest: Any
) -> tuple[Any, int | None]:
    """Return the first value that a filter lets through, and the one after the last."""
    if kind in {"EqualTo", "EqualNullSafe", "In"}:
        return least, most + step
    if kind in {"GreaterThan", "GreaterThanOrEqual"}:
        return least + (step if kind == "GreaterThan" else 0), None
    if kind in {"LessThan", "LessThanOrEqual"}:
        return lowest, most + (step if kind == "LessThanOrEqual" else 0)
    return lowest, None


_COLUMNS: Final[dict[str, Callable[[FilterBounds, str, Any], FilterBounds]]] = {
    "subject": _by_subject,
    "sequence": _by_sequence,
    "timestamp": _by_time,
}


def _min_or_none(one: int | None, other: int | None) -> int | None:
    if one is None or other is None:
        return other if one is None else one
    return min(one, other)


def _intersection(ones: tuple[str, ...], others: tuple[str, ...]) -> tuple[str, ...] | None:
    """Return patterns for what falls under both; ``None`` when there are none for that."""
    found: list[str] = []
    for one in ones:
        for other in others:
            if _covers(one, other):
                found.append(other)
            elif _covers(other, one):
                found.append(one)
            elif subjects_overlap(one, other):
                return None
    return tuple(dict.fromkeys(found))


def _covers(pattern: str, other: str) -> bool:
    """Say whether everything that falls under one pattern falls under another."""
    wanted, tokens = pattern.split("."), other.split(".")
    for position, expected in enumerate(wanted):
        if expected == ">":
            return len(tokens) > position
        if position >= len(tokens) or tokens[position] == ">":
            return False
        if expected not in {"*", tokens[position]}:
            return False
    return len(wanted) == len(tokens)


#: Seconds that a stream's clock may have been off, in nanoseconds: its leader can change.
_CLOCK_TOLERANCE_NS: Final = 60 * 10**9


def plan_read(
    options: ReadOptions, filter_bounds: FilterBounds | None = None
) -> list[SequenceRange]:
    """
    Plan a read of all that is between two positions of each stream.

    It takes nothing away: a work queue has its messages afterwards, too.

    Args:
        options: of the read.
        filter_bounds: what filters leave of it; ``None``: there are none.

    Returns:
        What the tasks read; nothing when there is nothing to read.

    Raises:
        StreamNotFoundError: a stream is not there, or none fits the pattern.
        InvalidOptionError: the read would begin behind a stream's end.
        DataLossError: it begins where messages are gone, and ``failOnDataLoss`` is not false.
        Error: as `JetStream.get_stream`.

    """
    bounds = filter_bounds or FilterBounds(subjects=options.subjects or None)
    filters = bounds.subjects
    if filters == ():
        return []
    access = SourceAccess(options)
    views = access.snapshot()
    access.selection.check_all_exist(views)
    if not views:
        raise StreamNotFoundError(404, 10059, f"no stream fits {options.stream_pattern!r}")
    parts: dict[str, tuple[MessageCounter, int, int]] = {}
    rows: dict[str, int] = {}
    for key, view in views.items():
        start, end = _bounded_range(access, view, bounds)
        counts = access.counts(view, filters or ())
        parts[key] = counts, start, end
        rows[key] = counts.matching(start, end)
    wanted = partition_counts(rows, options.max_records_per_partition, options.min_partitions)
    planned: list[SequenceRange] = []
    for key, (counts, start, end) in parts.items():
        if not rows[key]:
            continue
        position = StreamOffset(
            created_ns=views[key].created_ns,
            start_seq=start,
            next_seq=end,
            cuts=partition_cuts(counts, start, end, rows[key], wanted[key]),
            filters=filters or (),
        )
        planned += partition_ranges(position, views[key].name)
    return planned


def _bounded_range(access: SourceAccess, view: StreamView, bounds: FilterBounds) -> tuple[int, int]:
    """Return from where to where a stream is read; raises as `plan_read()`."""
    start = max(_start(access, view), bounds.first_seq)
    end = access.end(view)
    if bounds.end_seq is not None:
        end = min(end, bounds.end_seq)
    if view.assigns_timestamps:
        if bounds.first_ns is not None:
            start = max(start, access.first_seq_since(view, bounds.first_ns - _CLOCK_TOLERANCE_NS))
        if bounds.end_ns is not None:
            end = min(end, access.first_seq_since(view, bounds.end_ns + _CLOCK_TOLERANCE_NS))
    return start, end


def _start(access: SourceAccess, view: StreamView) -> int:
    """Return where to start in a stream; raises as `plan_read()`."""
    options = access.options
    start = access.start(view, EARLIEST)
    position = StreamOffset(
        created_ns=view.created_ns, start_seq=start, next_seq=start, filters=options.subjects
    )
    return DataLossPolicy(options.fail_on_data_loss).next_seq(
        find_resume_point(position, view, view.name)
    )
