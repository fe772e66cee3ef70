"""The thresholds of ``jsm server check``, and what follows from the findings; no server is asked."""

from __future__ import annotations

import pytest

from jetstream_sync.cli.server.check import Check, Level, Metric, Thresholds


@pytest.mark.parametrize(
    ("thresholds", "levels"),
    [
        (Thresholds(), {0: None, 9: None}),
        (Thresholds(2, 4), {1: Level.OK, 2: Level.WARNING, 4: Level.CRITICAL}),
        (Thresholds(None, 4), {3: Level.OK, 4: Level.CRITICAL}),
        (Thresholds(2, None), {1: Level.OK, 9: Level.WARNING}),
        (Thresholds(4, 2, below=True), {5: Level.OK, 4: Level.WARNING, 2: Level.CRITICAL}),
        # The direction follows from the thresholds.
        (Thresholds(4, 2, below=None), {5: Level.OK, 3: Level.WARNING, 0: Level.CRITICAL}),
        (Thresholds(2, 4, below=None), {1: Level.OK, 3: Level.WARNING, 5: Level.CRITICAL}),
        (Thresholds(None, 4, below=None), {3: Level.OK, 5: Level.CRITICAL}),
    ],
)
def test_a_value_that_reaches_a_threshold_is_bad(thresholds, levels):
    """Each value has the level of the worst threshold that it reaches; without thresholds it is not judged."""
    assert {value: thresholds.level(value) for value in levels} == levels


def test_the_worst_finding_is_the_level_of_the_check():
    """A measurement without thresholds is no finding; an empty problem is none either."""
    check = Check("stream", "S", {"msgs": (3, 1)})
    check.add("bytes", 5, "Bytes")
    check.critical("")
    assert (check.level, check.findings) == (Level.OK, [])
    check.ok("fine")
    check.add("messages", 2, "Messages", levels="msgs", below=True)
    assert check.level is Level.WARNING
    check.critical("no leader")
    assert check.level is Level.CRITICAL
    assert check.findings[1:] == [(Level.WARNING, "messages: 2"), (Level.CRITICAL, "no leader")]


@pytest.mark.parametrize(
    ("metric", "text"),
    [
        (Metric("rtt", 0.25, "Time", "s", Thresholds(0.5, 1)), "rtt=0.2500s;0.5000;1.0000"),
        (Metric("lag", 3, "Lag", "", Thresholds(None, 5)), "lag=3;;5"),
        (Metric("size", 7, "Size", "B"), "size=7B"),
    ],
)
def test_performance_data_ends_with_the_last_threshold(metric, text):
    """The data of a plugin are the value, the thresholds and the unit, without empty ones at the end."""
    assert metric.nagios() == text
