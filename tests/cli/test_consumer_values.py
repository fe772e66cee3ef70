"""Values of consumer options: overlapping subjects, starts, percentages."""

from __future__ import annotations

import itertools

import pytest

from jetstream_sync.cli.consumer.options import (
    outside,
    parse_backoff,
    parse_deliver,
    parse_sample,
    subjects_overlap,
)
from jetstream_sync.subjects import subject_matches

TOKENS = ["a", "b", "*", ">"]
PATTERNS = [
    ".".join(tokens)
    for length in (1, 2, 3)
    for tokens in itertools.product(TOKENS, repeat=length)
    if ">" not in tokens[:-1]
]
SUBJECTS = [
    ".".join(tokens)
    for length in (1, 2, 3, 4)
    for tokens in itertools.product("abc", repeat=length)
]


def test_two_patterns_overlap_where_a_subject_falls_under_both() -> None:
    """Checked for every pair of short patterns by searching for a common subject."""
    under = {
        pattern: {subject for subject in SUBJECTS if subject_matches(pattern, subject)}
        for pattern in PATTERNS
    }
    for one, other in itertools.product(PATTERNS, repeat=2):
        assert subjects_overlap(one, other) is bool(under[one] & under[other]), (one, other)


def test_filters_outside_of_a_stream() -> None:
    """Filters that match none of the stream's subjects."""
    assert outside(["ORDERS.a", "ORDER.a", "*.a"], ["ORDERS.*"]) == ["ORDER.a"]
    assert outside([], ["ORDERS.*"]) == []


@pytest.mark.parametrize("text", ["", "101", "-1", "10.5", "many", "%"])
def test_what_is_no_percentage(text: str) -> None:
    """An invalid percentage is refused before a request is sent."""
    with pytest.raises(ValueError, match="0 to 100"):
        parse_sample(text)


def test_percentages_and_waits() -> None:
    """A percent sign is optional; durations are separated by commas."""
    assert [parse_sample(text) for text in ("0", "80%", " 100 ")] == ["0", "80", "100"]
    assert [each.total_seconds() for each in parse_backoff("1s, 500ms,1m")] == [1, 0.5, 60]
    assert parse_backoff("") == []


def test_a_start_takes_back_another_one() -> None:
    """A later start replaces an earlier one, a sequence or a time."""
    fields = parse_deliver("all")
    assert fields["opt_start_seq"] is fields["opt_start_time"] is None
    assert parse_deliver("10")["opt_start_time"] is None
