"""The bounds that filters put on a read; these filter classes imitate PySpark's, which is not needed."""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jetstream_sync.durations import time_to_ns
from jetstream_sync.spark.planning.batch_read import FilterBounds, filter_bounds
from jetstream_sync.subjects import subject_matches


@dataclass(frozen=True)
class Comparison:
    attribute: tuple[str, ...]
    value: Any

    def passes(self, row: Any) -> bool:
        return bool(OPERATORS[type(self).__name__](row, self.value))


OPERATORS: dict[str, Callable[[Any, Any], bool]] = {
    "EqualTo": operator.eq,
    "GreaterThan": operator.gt,
    "GreaterThanOrEqual": operator.ge,
    "LessThan": operator.lt,
    "LessThanOrEqual": operator.le,
    "In": lambda row, value: row in value,
    "StringStartsWith": str.startswith,
    "StringContains": operator.contains,
}
KINDS = [type(name, (Comparison,), {}) for name in OPERATORS]
EqualTo, GreaterThan, _, _, LessThanOrEqual, In, StringStartsWith, StringContains = KINDS


class Not:
    def __init__(self, child: Comparison) -> None:
        self.child = child
        self.attribute_of_child = child.attribute

    def passes(self, row: Any) -> bool:
        return not self.child.passes(row)


NOON = datetime(2026, 1, 1, 12, tzinfo=timezone.utc)
ORDERED = KINDS[:5]
subjects = st.lists(st.sampled_from("abc"), min_size=1, max_size=3).map(".".join)
patterns = st.lists(st.sampled_from(["a", "b", "*"]), min_size=1, max_size=3).map(".".join) | (
    st.lists(st.sampled_from(["a", "b", "*"]), max_size=2).map(lambda head: ".".join([*head, ">"]))
)
sequences = st.integers(1, 20)
times = st.integers(0, 20).map(lambda number: NOON + timedelta(microseconds=number))


def comparisons(column: str, values: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    simple = st.builds(lambda kind, value: kind((column,), value), st.sampled_from(ORDERED), values)
    among = st.lists(values, max_size=3).map(lambda some: In((column,), some))
    return simple | among | simple.map(Not)


filters = st.lists(
    comparisons("sequence", sequences)
    | comparisons("timestamp", times)
    | st.builds(lambda value: EqualTo(("subject",), value), subjects)
    | st.lists(subjects, max_size=3).map(lambda some: In(("subject",), some))
    | st.builds(
        lambda value: StringStartsWith(("subject",), value),
        st.sampled_from(["", "a", "a.", "a.b", "a.b.", "b.c"]),
    )
    | st.builds(lambda value: StringContains(("subject",), value), subjects),
    max_size=4,
)


def column_of(each: Any) -> str:
    return (each.child if isinstance(each, Not) else each).attribute[0]


def keeps(left: FilterBounds, subject: str, sequence: int, time_ns: int) -> bool:
    return (
        (left.subjects is None or any(subject_matches(each, subject) for each in left.subjects))
        and left.first_seq <= sequence < left.end_seq
        and left.first_ns <= time_ns < left.end_ns
    )


@given(filters, st.lists(patterns, max_size=2), subjects, sequences, times, st.integers(0, 999))
def test_messages_that_pass_the_filters_are_within_the_bounds(
    given_filters, option, subject, sequence, time, nanoseconds
):
    """Every message whose row passes all filters is within the bounds."""
    row = {"subject": subject, "sequence": sequence, "timestamp": time}
    passes = all(each.passes(row[column_of(each)]) for each in given_filters)
    chosen = not option or any(subject_matches(each, subject) for each in option)
    if passes and chosen:
        left = filter_bounds(given_filters, tuple(option))
        assert keeps(left, subject, sequence, time_to_ns(time) + nanoseconds)


@pytest.mark.parametrize(
    ("filters", "option", "left"),
    [
        ([], (), None),
        ([], ("a.>",), ("a.>",)),
        ([EqualTo(("subject",), "a.b")], (), ("a.b",)),
        ([EqualTo(("subject",), "a.b")], ("a.>",), ("a.b",)),
        ([EqualTo(("subject",), "b.b")], ("a.>",), ()),
        ([In(("subject",), ["a.b", "b.c", "a.c"])], ("a.*",), ("a.b", "a.c")),
        ([StringStartsWith(("subject",), "a.b.c")], (), ("a.b.>",)),
        ([StringStartsWith(("subject",), "a.b")], ("a.b.*",), ("a.b.*",)),
        ([StringStartsWith(("subject",), "abc")], (), None),
        # A literal that contains a wildcard is not a pattern.
        ([EqualTo(("subject",), "a.*")], (), None),
        ([EqualTo(("subject",), ">")], (), None),
        # These patterns overlap, but no pattern matches exactly their intersection.
        ([StringStartsWith(("subject",), "a.")], ("*.b",), ("*.b",)),
        ([EqualTo(("other",), "a.b")], (), None),
        ([EqualTo(("subject", "inner"), "a.b")], (), None),
        # In a row this may replace invalid UTF-8, in a filter it is literal.
        ([EqualTo(("subject",), "a.\ufffd")], (), None),
        ([StringStartsWith(("subject",), "\ufffd.a")], (), None),
    ],
)
def test_subjects(filters, option, left):
    """A filter on the subject becomes filter subjects within those of the option, if possible."""
    assert filter_bounds(filters, option).subjects == left


def test_sequences_and_times_are_exact():
    """Rows have microseconds, so the bounds cover all nanoseconds of each microsecond."""
    left = filter_bounds(
        [
            GreaterThan(("sequence",), 5),
            LessThanOrEqual(("sequence",), 9),
            GreaterThan(("timestamp",), NOON),
            LessThanOrEqual(("timestamp",), NOON + timedelta(microseconds=3)),
        ],
        (),
    )
    assert (left.first_seq, left.end_seq) == (6, 10)
    noon = time_to_ns(NOON)
    assert (left.first_ns - noon, left.end_ns - noon) == (1000, 4000)


def test_a_long_list_of_subjects_is_not_pushed_down():
    """A long list of subjects is left to Spark."""
    many = [f"a.{number}" for number in range(100)]
    assert filter_bounds([In(("subject",), many)], ()).subjects is None
