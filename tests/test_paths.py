"""A reader follows a call through few files; see ``paths.py``."""

from __future__ import annotations

import pytest
from paths import changes_in_reconnect, file_count, measured

from jetstream_sync import speedups

pytestmark = [
    pytest.mark.full,
    pytest.mark.skipif(speedups.OutputBuffer is None, reason="the paths are those with the C code"),
]

#: A call -> the greatest number of files. The aims are in ``paths.py``.
LIMITS = {
    "publish": 8,
    "fetch(1)": 8,
    "first entry of kv.watch()": 26,
    "one message of a worker": 24,
}


def test_calls_run_through_few_files():
    """No call runs through more files than it did."""
    found = {name: file_count(codes) for name, codes in measured().items()}
    assert found.keys() == LIMITS.keys()
    assert {name: count for name, count in found.items() if count > LIMITS[name]} == {}


def test_a_reconnect_changes_the_file_seldom():
    """The reader thread does not move between the files of the package more often than it did."""
    assert changes_in_reconnect() <= 40
