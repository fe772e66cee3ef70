"""The public API: what changes in it is seen in review."""

from __future__ import annotations

import difflib

import make_api_record as record


def test_the_public_names_and_signatures_are_the_recorded_ones():
    """A change of a public name, argument or default is also a change of tests/api.txt."""
    recorded = record.RECORD.read_text(encoding="utf-8").splitlines()
    difference = difflib.unified_diff(recorded, list(record.lines()), "recorded", "current", n=0)
    assert list(difference) == [], f"update the record if this is meant: {record.COMMAND}"
