"""What a trigger of a query does, decided without a server."""

from __future__ import annotations

from dataclasses import replace

import pytest
from fixtures.spark_streams import stream_info

from jetstream_sync.spark.options import ReadOptions
from jetstream_sync.spark.planning.batches import MessageCounter
from jetstream_sync.spark.planning.micro_batches import (
    Admission,
    StreamPart,
    empty_batch,
    has_batch,
    next_batches,
)
from jetstream_sync.spark.planning.offsets import Offset
from jetstream_sync.spark.streams import StreamView, stream_view


def view(first_seq: int, last_seq: int, **changes: object) -> StreamView:
    info = stream_info(
        messages=last_seq + 1 - first_seq, bytes=1000, first_seq=first_seq, last_seq=last_seq
    )
    return replace(stream_view(info), **changes)


def part(start_seq: int, found: StreamView, rows: int | None = None) -> StreamPart:
    """Return the unread messages of a stream without gaps, from a sequence on."""
    counts = MessageCounter(found, False, lambda seqs: pytest.fail(f"it asked for {seqs}"))
    rows = found.end_seq - start_seq if rows is None else rows
    return StreamPart(found, empty_batch(found, start_seq, ()), found.end_seq, counts, rows)


def options(**given: str) -> ReadOptions:
    return ReadOptions.from_options({"stream": "A", **given})


def test_a_limit_is_shared_in_turn():
    """Each stream gets its share, and the rest goes to the next stream in each batch."""
    parts = {name: part(1, view(1, 100)) for name in "AB"}
    admission = Admission(options(maxOffsetsPerTrigger="5"))
    found = [admission.shares(parts, 0.0, unlimited=False) for _ in range(2)]
    assert found == [{"A": 3, "B": 2}, {"A": 2, "B": 3}]
    assert admission.shares(parts, 0.0, unlimited=True) == {"A": 100, "B": 100}


def test_a_limit_in_bytes_admits_one_message_at_least():
    """A message above the limit is a batch of its own."""
    admission = Admission(options(maxBytesPerTrigger="1"))
    assert admission.shares({"A": part(1, view(1, 10))}, 0.0, unlimited=False) == {"A": 1}


def test_few_messages_wait_for_more_or_for_the_delay():
    """The delay begins with the first waiting message, and again after each batch."""
    few, enough = {"A": part(1, view(1, 3))}, {"A": part(1, view(1, 10))}
    admission = Admission(options(minOffsetsPerTrigger="10", maxTriggerDelay="5s"))

    def shares(parts: dict[str, StreamPart], now: float) -> int:
        return admission.shares(parts, now, unlimited=False)["A"]

    assert [shares(few, now) for now in (1.0, 5.9, 6.0)] == [0, 0, 3]
    assert [shares(few, 7.0), shares(enough, 8.0), shares(few, 12.5)] == [0, 10, 0]
    admission.end_views = {}  # such a query ends with the streams
    assert shares(few, 12.6) == 3
    admission.end_views = None
    assert [shares(few, 20.0), shares({"A": part(1, view(1, 0))}, 24.0), shares(few, 25.5)] == [
        0,
        0,
        0,
    ]


@pytest.mark.parametrize(
    ("admitted", "rows", "read_up_to", "limited", "planned"),
    [
        (1, 1, 10, True, True),
        (0, 0, 10, True, True),
        (0, 0, 90, True, False),
        (0, 0, 10, False, False),
        (0, 5, 10, True, False),
    ],
)
def test_what_a_trigger_does(admitted, rows, read_up_to, limited, planned):
    """Admitted messages are read; a position that the stream may lose soon is stored; else the query waits."""
    found = view(1, 100, removes_oldest=limited)
    offset = Offset({"A": empty_batch(found, read_up_to, ("a",))})
    parts = {"A": part(95, found, rows)}
    assert has_batch(offset, parts, {"A": admitted}) is planned


def test_the_batches_of_all_streams():
    """A batch ends at its share, a stream without a share has an empty one, and one without messages keeps its end."""
    found = view(1, 100, last_ns=7)
    offset = Offset({name: empty_batch(found, 11, ()) for name in "ABC"})
    parts = {"A": part(11, found), "B": part(101, found, 0), "D": part(1, found)}
    shares = {"A": 90, "B": 0, "D": 40}
    batches = next_batches(offset, parts, shares, options(maxRecordsPerPartition="45"))
    bounds = {name: position.partition_bounds() for name, position in batches.items()}
    assert bounds == {"A": [(11, 56), (56, 101)], "B": [], "C": [], "D": [(1, 41)]}
    # The time of the last message is known where the batch ends with the stream.
    assert {name: position.last_ns for name, position in batches.items()} == {
        "A": 7,
        "B": 7,
        "C": None,
        "D": None,
    }
