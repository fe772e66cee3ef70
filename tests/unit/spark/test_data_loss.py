"""Streams that do not continue where the checkpoint ended."""

from __future__ import annotations

import logging
from dataclasses import replace

import pytest
from fixtures.spark_streams import stream_info

from jetstream_sync.spark.planning.data_loss import (
    Change,
    DataLossError,
    DataLossPolicy,
    find_resume_point,
)
from jetstream_sync.spark.planning.offsets import StreamOffset
from jetstream_sync.spark.reading.ranges import LOSS_ACTIONS
from jetstream_sync.spark.streams import StreamView, stream_view

LIMITS = replace(stream_view(stream_info(messages=100, first_seq=1, last_seq=100)), created_ns=1)


def at(seq: int, *filters: str) -> StreamOffset:
    return StreamOffset(created_ns=1, start_seq=seq, next_seq=seq, filters=filters)


def test_messages_that_are_skipped_anyway_are_no_loss():
    """Messages stored before the time to start from may be removed before the time is reached."""
    later = replace(LIMITS, first_seq=50, messages=51, first_ns=10)
    assert outcome(later, replace(at(10), since_ns=20), "true") == 50
    assert outcome(later, replace(at(10), since_ns=5), "true") == "error"
    # Without a message, the time of the last one tells.
    empty = replace(LIMITS, first_seq=50, messages=0, first_ns=0, last_ns=10)
    assert outcome(empty, replace(at(10), since_ns=20), "true") == 50
    assert outcome(empty, replace(at(10), since_ns=5), "true") == "error"


def outcome(view: StreamView | None, position: StreamOffset, mode: str) -> int | str:
    """Return the sequence where the read continues, or ``error``."""
    try:
        return DataLossPolicy(mode).next_seq(find_resume_point(position, view, "S"))
    except DataLossError:
        return "error"


MODES = ("true", "false", "strict")


def test_only_an_expected_loss_is_ignored():
    """There is an action for each value of the option; ``strict`` ignores nothing, and ``false`` raises nothing."""
    assert LOSS_ACTIONS.keys() == {(mode, expected) for mode in MODES for expected in (False, True)}
    actions = {
        mode: [LOSS_ACTIONS[mode, False].value, LOSS_ACTIONS[mode, True].value] for mode in MODES
    }
    assert actions == {
        "true": ["raise", "ignore"],
        "false": ["warn", "ignore"],
        "strict": ["raise", "raise"],
    }


@pytest.mark.parametrize("seq", [1, 50, 101])
@pytest.mark.parametrize("mode", MODES)
def test_a_position_within_the_stream_is_no_loss(seq, mode):
    """A read continues from any offset between the first message and the end of the stream."""
    assert outcome(LIMITS, at(seq), mode) == seq


@pytest.mark.parametrize(
    ("case", "view", "position", "outcomes"),
    [
        ("aged out", replace(LIMITS, first_seq=60), at(50), ("error", 60, "error")),
        (
            "purged to empty",
            replace(LIMITS, first_seq=101, messages=0),
            at(50),
            ("error", 101, "error"),
        ),
        (
            "key-value",
            replace(LIMITS, first_seq=60, removes_individually=True),
            at(50),
            (60, 60, "error"),
        ),
        (
            "interest",
            replace(LIMITS, first_seq=60, retention="interest"),
            at(50),
            (60, 60, "error"),
        ),
        (
            "work queue, read whole",
            replace(LIMITS, first_seq=60, retention="workqueue"),
            at(50),
            ("error", 60, "error"),
        ),
        (
            "work queue, read in part",
            replace(LIMITS, first_seq=60, retention="workqueue"),
            at(50, "a.>"),
            (60, 60, "error"),
        ),
        (
            "made again",
            replace(LIMITS, created_ns=2, first_seq=3),
            at(50),
            ("error", 3, "error"),
        ),
        ("cut off", replace(LIMITS, end_seq=40), at(50), ("error", 1, "error")),
        ("gone", None, at(50), ("error", 50, "error")),
    ],
)
def test_the_documented_table(case, view, position, outcomes):
    """Each loss is an error or not, as in the table of the module."""
    assert tuple(outcome(view, position, mode) for mode in MODES) == outcomes, case


def test_a_lost_end_is_told_from_other_changes():
    """The state from a lagging server can only show an end that is too low, which is checked again."""
    views = replace(LIMITS, end_seq=40), replace(LIMITS, first_seq=60), None
    changes = [find_resume_point(at(50), view, "S").change for view in views]
    assert changes == [Change.SHORTENED, Change.REMOVED, Change.MISSING]


def test_an_error_says_what_is_lost():
    """The message contains the stream, the sequences and their number."""
    with pytest.raises(DataLossError, match=r"ORDERS.*sequence 60.*49.*10 sequences"):
        DataLossPolicy("true").next_seq(
            find_resume_point(at(50), replace(LIMITS, first_seq=60), "ORDERS")
        )


def test_a_loss_is_logged_once(caplog):
    """An idle query does not repeat its warning at every trigger."""
    watch = DataLossPolicy("false")
    with caplog.at_level(logging.WARNING, "jetstream_sync.spark"):
        for _ in range(3):
            watch.next_seq(find_resume_point(at(50), replace(LIMITS, first_seq=60), "S"))
    assert len(caplog.records) == 1
