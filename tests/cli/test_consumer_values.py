"""Values of consumer options: overlapping subjects, and starts."""

from __future__ import annotations

import itertools

from jetstream_sync.cli.consumer_config import parse_deliver
from jetstream_sync.subjects import subject_matches, subjects_overlap

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


def test_a_start_takes_back_another_one() -> None:
    """A later start replaces an earlier one, a sequence or a time."""
    fields = parse_deliver("all")
    assert fields["opt_start_seq"] is fields["opt_start_time"] is None
    assert parse_deliver("10")["opt_start_time"] is None
