"""Chunks of messages: splitting by size, and field selection."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from jetstream_sync.spark.bytes_column import BytesColumn
from jetstream_sync.spark.reading.chunks import Chunk, FieldSelection

ROWS = st.lists(st.tuples(st.binary(max_size=300), st.binary(max_size=20), st.binary(max_size=40)))


def chunk_of(rows: Sequence[tuple[bytes, bytes, bytes]]) -> Chunk:
    return Chunk(
        stream="ORDERS",
        sequences=range(5, 5 + len(rows)),
        data=BytesColumn.of(row[0] for row in rows),
        subjects=BytesColumn.of(row[1] for row in rows),
        headers=BytesColumn.of(row[2] for row in rows),
        times_ns=[10 * index for index in range(len(rows))],
        sizes=[len(row[0]) for row in rows],
    )


@given(ROWS, st.integers(min_value=1, max_value=2000))
def test_a_chunk_is_split_by_size(rows, limit):
    """The parts are complete and in order, and none is empty or too large unless it has one message."""
    whole = chunk_of(rows)
    parts = list(whole.split_by_size(limit))
    assert [seq for part in parts for seq in part.sequences] == list(whole.sequences)
    assert [item for part in parts for item in part.data] == list(whole.data)
    assert [header for part in parts for header in part.headers] == list(whole.headers)
    assert [subject for part in parts for subject in part.subjects] == list(whole.subjects)
    assert [item for part in parts for item in part.times_ns] == list(whole.times_ns)
    assert [size for part in parts for size in part.sizes] == list(whole.sizes)
    for part in parts:
        assert len(part) == 1 or part.total_bytes() <= limit
        assert len(part) > 0


@given(st.integers(min_value=0, max_value=50), st.integers(min_value=1, max_value=2000))
def test_fields_that_are_not_selected_stay_empty(count, limit):
    """A chunk with only sequences can be split, too."""
    parts = list(Chunk(stream="ORDERS", sequences=range(count)).split_by_size(limit))
    assert [seq for part in parts for seq in part.sequences] == list(range(count))
    assert all(not part.data and not part.subjects and not part.headers for part in parts)
    assert all(len(part) == 1 or part.total_bytes() <= limit for part in parts)


def test_fields_needed_by_columns():
    """Only the fields that a column needs are selected."""
    assert FieldSelection.of({"sequence", "stream", "domain"}) == FieldSelection(
        subjects=False, data=False, headers=False, times=False, sizes=False
    )
    for column, part in (
        ("subject", "subjects"),
        ("data", "data"),
        ("headers", "headers"),
        ("msg_id", "headers"),
        ("timestamp", "times"),
        ("time_ns", "times"),
        ("size", "sizes"),
    ):
        nothing = {"subjects", "data", "headers", "times", "sizes"}
        expected = FieldSelection(**{name: name == part for name in nothing})
        assert FieldSelection.of({column}) == expected
