"""Stream selection, stream state and start positions."""

from __future__ import annotations

import pytest
from fixtures.spark_streams import stream_info
from hypothesis import given
from hypothesis import strategies as st

from jetstream_sync.spark.options import EARLIEST, LATEST, OffsetSpec
from jetstream_sync.spark.planning.access import first_seq_since, resolve_offset
from jetstream_sync.spark.streams import StreamSelection, StreamView, stream_view


def test_a_new_stream_starts_at_sequence_one():
    """The server reports 0 as the first sequence of such a stream."""
    view = stream_view(stream_info())
    assert (view.first_seq, view.end_seq) == (1, 1)
    assert view.is_contiguous


def test_a_purged_stream_starts_after_its_last_message():
    """A purge does not reuse sequences."""
    view = stream_view(stream_info(first_seq=11, last_seq=10))
    assert (view.first_seq, view.end_seq) == (11, 11)


def test_the_time_of_creation_is_exact():
    """It identifies a stream among others of the same name, with nanosecond precision."""
    assert stream_view(stream_info()).created_ns % 1_000_000_000 == 123456789


def test_deleted_messages_make_a_stream_non_contiguous():
    """A stream is contiguous if no message in its middle is missing."""
    assert stream_view(stream_info(messages=10, first_seq=5, last_seq=14)).is_contiguous
    assert not stream_view(stream_info(messages=9, first_seq=5, last_seq=14)).is_contiguous


@pytest.mark.parametrize(
    ("config", "sheds"),
    [
        ({}, False),
        ({"max_msgs_per_subject": -1}, False),
        ({"max_age": 1000000000}, False),
        ({"max_msgs_per_subject": 1}, True),
        ({"allow_msg_ttl": True}, True),
    ],
)
def test_streams_that_remove_messages_individually(config, sheds):
    """Limits per subject and TTLs per message remove messages in normal operation."""
    assert stream_view(stream_info(config)).removes_individually is sheds


@pytest.mark.parametrize(
    ("pattern", "fits", "does_not"),
    [
        ("ORDERS_*", ["ORDERS_", "ORDERS_EU"], ["ORDERS", "MY_ORDERS_EU"]),
        ("*", ["A", "B-1"], []),
        ("A+B*", ["A+B", "A+BC"], ["AAB"]),
        ("/ORDERS_(EU|US)/", ["ORDERS_EU"], ["ORDERS_EUROPE", "/ORDERS_EU/"]),
    ],
)
def test_patterns(pattern, fits, does_not):
    """An asterisk matches any characters; a regular expression must match the whole name."""
    selection = StreamSelection(pattern=pattern)
    assert all(selection.selects(name) for name in fits)
    assert not any(selection.selects(name) for name in does_not)


def view(first_seq: int, end_seq: int) -> StreamView:
    return stream_view(
        stream_info(messages=end_seq - first_seq, first_seq=first_seq, last_seq=end_seq - 1)
    )


def test_offsets_of_options():
    """The start and end of a stream have special numbers; other numbers are sequences."""
    there = view(5, 11)
    assert resolve_offset(None, EARLIEST, there) == 5
    assert resolve_offset(None, LATEST, there) == 11
    assert resolve_offset(OffsetSpec(LATEST), EARLIEST, there) == 11
    assert resolve_offset(OffsetSpec(None, (("ORDERS", 7),)), LATEST, there) == 7
    assert resolve_offset(OffsetSpec(None, (("ORDERS", EARLIEST),)), LATEST, there) == 5
    assert resolve_offset(OffsetSpec(None, (("OTHER", 7),)), LATEST, there) == 11


@given(
    st.sets(st.integers(1, 100), min_size=1),
    st.lists(st.integers(0, 50), min_size=100),
    st.integers(-1, 51),
)
def test_the_first_message_since_a_time(sequences, moments, wanted):
    """Deleted messages and equal times do not affect the search."""
    times = dict(zip(sorted(sequences), sorted(moments), strict=False))

    def stored_at(seq: int) -> tuple[int, int] | None:
        return next(((time, times[time]) for time in sorted(times) if time >= seq), None)

    there = view(min(times), max(times) + 1)
    found = first_seq_since(wanted, there, stored_at)
    since = [seq for seq, time in times.items() if time >= wanted]
    assert [seq for seq in times if seq >= found] == since
