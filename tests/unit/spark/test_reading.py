"""Which way a range is read, and how much is asked for at a time."""

from __future__ import annotations

import pickle
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jetstream_sync.api.stream import StreamInfo
from jetstream_sync.codec import decode
from jetstream_sync.errors import InvalidArgumentError
from jetstream_sync.spark import DirectGetRefusedError, RangeError, SequenceRange
from jetstream_sync.spark.reading import ranges as ranges_module
from jetstream_sync.spark.reading.answers import MAX_ROWS, Job, Pace
from jetstream_sync.spark.reading.chunks import Chunk, Wanted
from jetstream_sync.spark.reading.one_range import ReadPlan, choose_mode
from jetstream_sync.spark.reading.view import StreamView, view_of
from jetstream_sync.spark.schema import READ_COLUMNS

INFO = {
    "created": "2026-01-31T12:00:00Z",
    "config": {"name": "ORDERS", "retention": "limits", "storage": "file", "allow_direct": True},
    "state": {
        "messages": 1000,
        "bytes": 200_000,
        "first_seq": 1,
        "last_seq": 1000,
        "consumer_count": 0,
        "first_ts": "2026-01-31T12:00:00Z",
        "last_ts": "2026-01-31T12:00:00Z",
    },
}
VIEW = view_of(decode(StreamInfo, INFO))
USUAL = Wanted.of(READ_COLUMNS)


@pytest.mark.parametrize(
    ("view", "rows", "filters", "wanted", "expected"),
    [
        (VIEW, 1000, (), USUAL, "direct"),
        (VIEW, 1000, ("a.>",), USUAL, "direct"),
        (VIEW, 50_001, (), USUAL, "pull"),
        (VIEW, 1000, ("a", "b"), USUAL, "pull"),
        (replace(VIEW, allow_direct=False), 1000, (), USUAL, "pull"),
        (VIEW, 1000, (), Wanted.of({"sequence"}), "direct"),
        (replace(VIEW, bytes=10_000_000), 1000, (), Wanted.of({"sequence"}), "pull"),
        (replace(VIEW, bytes=10_000_000), 1000, (), USUAL, "direct"),
        (replace(VIEW, retention="workqueue"), 10**9, ("a", "b"), USUAL, "direct"),
        (replace(VIEW, retention="interest"), 1000, (), USUAL, "direct"),
    ],
)
def test_auto(
    view: StreamView, rows: int, filters: tuple[str, ...], wanted: Wanted, expected: str
) -> None:
    """Small ranges and work queues are read by direct gets, the rest through a consumer."""
    assert choose_mode("auto", view, rows, filters, wanted) == expected


def test_what_is_asked_for_is_done() -> None:
    """A mode that is named is taken, unless the stream does not allow it."""
    for mode in ("direct", "pull"):
        assert choose_mode(mode, VIEW, 10**9, ("a", "b"), USUAL) == mode
        assert choose_mode(mode, VIEW, 1, (), USUAL) == mode
    closed = replace(VIEW, allow_direct=False)
    assert choose_mode("pull", closed, 1, (), USUAL) == "pull"
    with pytest.raises(DirectGetRefusedError):
        choose_mode("direct", closed, 1, (), USUAL)
    with pytest.raises(DirectGetRefusedError):
        choose_mode("auto", replace(closed, retention="workqueue"), 1, (), USUAL)


def job(end_seq: int, batch_bytes: int = 1_000_000, message_bytes: float = 100.0) -> Job:
    return Job(
        range=SequenceRange("ORDERS", 1, end_seq),
        wanted=USUAL,
        batch_bytes=batch_bytes,
        message_bytes=message_bytes,
        patience=1.0,
        witness=lambda *_: None,
    )


def test_no_more_is_asked_for_than_the_range_and_the_batch_have() -> None:
    """A request is for what is left of the range, what fits into a batch, and one message at least."""
    assert Pace(job(101), 1, filtered=False).rows(1) == 100
    assert Pace(job(101), 1, filtered=False).rows(100) == 1
    assert 8000 < Pace(job(10**9), 1, filtered=False).rows(1) <= 10_000
    assert Pace(job(10**9, message_bytes=1.0), 1, filtered=False).rows(1) == MAX_ROWS
    assert Pace(job(10**9, message_bytes=1e9), 1, filtered=False).rows(1) == 1


def test_the_size_of_messages_is_learned() -> None:
    """When messages turn out to be larger, fewer are asked for."""
    pace = Pace(job(10**9), 1, filtered=False)
    pace.weigh(Chunk(stream="ORDERS", sequences=range(1000), data=[b"x" * 10_000] * 1000))
    assert 70 < pace.rows(1001) <= 100


@given(st.integers(1, 10**6), st.integers(0, 2000))
def test_a_filter_is_not_read_far_beyond_the_range(span: int, came: int) -> None:
    """With a filter, what is asked for goes by how many messages came from how far."""
    pace = Pace(job(2 * span + 2), 1, filtered=True)
    assert pace.rows(1) <= 1024
    pace.came(came)
    assert 1 <= pace.rows(span + 1) <= max(1, came * 1.1 * (span + 1) / span + 16)


def test_ranges() -> None:
    """A range may be empty, and does not end before it starts; it travels to the executors."""
    piece = SequenceRange("ORDERS", 5, 5, ("a", "b"), 7)
    assert pickle.loads(pickle.dumps(piece)) == piece
    with pytest.raises(InvalidArgumentError):
        SequenceRange("ORDERS", 6, 5)
    assert pickle.loads(pickle.dumps(ReadPlan(mode="pull"))) == ReadPlan(mode="pull")


@pytest.mark.parametrize("name", [n for n in ranges_module.__all__ if n.endswith("Error")])
def test_errors_travel_to_the_driver(name: str) -> None:
    """Every error of a range survives pickle, says its stream, and is an Error."""
    fields = {
        "RangeError": ("ORDERS",),
        "RangeLostError": ("ORDERS", 5, 9),
        "StreamRecreatedError": ("ORDERS", 5, 9),
        "RangeStalledError": ("ORDERS", 5, "it is so"),
        "DirectGetRefusedError": ("ORDERS",),
    }[name]
    error = getattr(ranges_module, name)(*fields)
    again = pickle.loads(pickle.dumps(error))
    assert isinstance(again, RangeError)
    assert (type(again), again.args, str(again)) == (type(error), error.args, str(error))
    assert "ORDERS" in str(again)
