"""
Plan a batch read: the ranges that its tasks read, narrowed by the filters that Spark pushes down.

Spark re-evaluates all filters. A filter that cannot be expressed as subjects, sequences or times is ignored,
so the plan never excludes a row that passes the filters. Filters are recognized by their class names, so
this module needs no PySpark.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import product
from typing import Any, Final

from ...durations import time_to_ns
from ...errors import BadSubjectError, StreamNotFoundError
from ...subjects import check_publish_subject, check_subject, subject_matches, subjects_overlap
from ..options import EARLIEST, ReadOptions
from ..reading.ranges import SequenceRange
from ..streams import StreamView
from .access import SourceAccess
from .batches import MessageCounter, partition_counts, partition_cuts, partition_ranges
from .data_loss import DataLossPolicy, find_resume_point
from .offsets import StreamOffset

#: Maximum number of literal subjects; more are not worth a filter each.
_MAX_SUBJECTS: Final = 16
_MICROSECOND_NS: Final = 1000
_REPLACED: Final = "\N{REPLACEMENT CHARACTER}"
#: The bounds of a range without bounds.
_LEAST: Final = -(2**64)
_MOST: Final = 2**64


@dataclass(frozen=True, slots=True, kw_only=True)
class FilterBounds:
    """The part of a read that passes the filters."""

    subjects: tuple[str, ...] | None = None
    """Filter subjects; an empty tuple: there is nothing to read; ``None``: all subjects."""

    first_seq: int = _LEAST
    """The first sequence of each stream."""

    end_seq: int = _MOST
    """The sequence after the last one."""

    first_ns: int = _LEAST
    """The earliest time, in nanoseconds since 1970."""

    end_ns: int = _MOST
    """The time after the latest one."""

    def with_subjects(self, subjects: tuple[str, ...]) -> FilterBounds:
        """Return the bounds intersected with subjects."""
        if self.subjects is None:
            return replace(self, subjects=subjects)
        both = _intersection(self.subjects, subjects)
        return self if both is None else replace(self, subjects=both)

    def with_sequences(self, first: int, end: int) -> FilterBounds:
        """Return the bounds intersected with a range of sequences."""
        return replace(self, first_seq=max(self.first_seq, first), end_seq=min(self.end_seq, end))

    def with_times(self, first: int, end: int) -> FilterBounds:
        """Return the bounds intersected with a range of times."""
        return replace(self, first_ns=max(self.first_ns, first), end_ns=min(self.end_ns, end))


def filter_bounds(filters: Iterable[Any], subjects: tuple[str, ...]) -> FilterBounds:
    """Return the bounds that filters put on a read."""
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
        # A filter subject matches whole tokens only.
        head, dot, _ = value.rpartition(".")
        found = _checked(f"{head}.>", check_subject) if dot else None
    return bounds if found is None else bounds.with_subjects(found)


def _literals(values: Iterable[Any]) -> tuple[str, ...] | None:
    """Return values as literal subjects, ``None`` if one is not a valid subject."""
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
    # In a row this may replace invalid UTF-8, but the server compares the original bytes.
    return None if _REPLACED in found else (found,)


def _by_sequence(bounds: FilterBounds, kind: str, value: Any) -> FilterBounds:
    values = value if kind == "In" else [value]
    if not values or not all(type(each) is int for each in values):
        return bounds
    return bounds.with_sequences(*_value_range(kind, min(values), max(values), 1))


def _by_time(bounds: FilterBounds, kind: str, value: Any) -> FilterBounds:
    values = value if kind == "In" else [value]
    if not values or not all(isinstance(each, datetime) and each.tzinfo for each in values):
        return bounds
    times = sorted(map(time_to_ns, values))
    # Rows have microseconds, messages nanoseconds: a row at t was stored up to a microsecond later.
    return bounds.with_times(*_value_range(kind, times[0], times[-1], _MICROSECOND_NS))


def _value_range(kind: str, least: int, most: int, step: int) -> tuple[int, int]:
    """Return the first value that passes a filter, and the value after the last one."""
    if kind in {"EqualTo", "EqualNullSafe", "In"}:
        return least, most + step
    if kind in {"GreaterThan", "GreaterThanOrEqual"}:
        return least + (step if kind == "GreaterThan" else 0), _MOST
    if kind in {"LessThan", "LessThanOrEqual"}:
        return _LEAST, most + (step if kind == "LessThanOrEqual" else 0)
    return _LEAST, _MOST


_COLUMNS: Final[dict[str, Callable[[FilterBounds, str, Any], FilterBounds]]] = {
    "subject": _by_subject,
    "sequence": _by_sequence,
    "timestamp": _by_time,
}


def _intersection(ones: tuple[str, ...], others: tuple[str, ...]) -> tuple[str, ...] | None:
    """Return the patterns matched by both sets, ``None`` if no pattern expresses that."""
    found: list[str] = []
    for one, other in product(ones, others):
        if subject_matches(one, other):
            found.append(other)
        elif subject_matches(other, one):
            found.append(one)
        elif subjects_overlap(one, other):
            return None
    return tuple(dict.fromkeys(found))


#: Tolerance for different clocks of the leaders of a stream.
_CLOCK_TOLERANCE_NS: Final = 60 * 10**9


def plan_read(
    options: ReadOptions, filter_bounds: FilterBounds | None = None
) -> list[SequenceRange]:
    """
    Plan a read between two offsets of each stream.

    The messages stay in the stream, also in a work queue.
    """
    bounds = filter_bounds or FilterBounds(subjects=options.subjects or None)
    filters = bounds.subjects
    if filters == ():
        return []
    access = SourceAccess(options)
    views = access.snapshot()
    access.selection.check_all_exist(views)
    if not views:
        raise StreamNotFoundError(404, 10059, f"no stream matches {options.stream_pattern!r}")
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
    """Return start and end of the read of a stream; raises like `plan_read()`."""
    start = max(_start(access, view), bounds.first_seq)
    end = min(access.end(view), bounds.end_seq)
    if view.assigns_timestamps and bounds.first_ns > _LEAST:
        start = max(start, access.first_seq_since(view, bounds.first_ns - _CLOCK_TOLERANCE_NS))
    if view.assigns_timestamps and bounds.end_ns < _MOST:
        end = min(end, access.first_seq_since(view, bounds.end_ns + _CLOCK_TOLERANCE_NS))
    return start, end


def _start(access: SourceAccess, view: StreamView) -> int:
    """Return the start of the read of a stream; raises like `plan_read()`."""
    options = access.options
    start = access.start(view, EARLIEST)
    position = StreamOffset(
        created_ns=view.created_ns, start_seq=start, next_seq=start, filters=options.subjects
    )
    return DataLossPolicy(options.fail_on_data_loss).next_seq(
        find_resume_point(position, view, view.name)
    )
