"""The choice of the read mode, and request sizes."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from dataclasses import replace
from itertools import islice
from types import SimpleNamespace
from typing import Any

import pytest
from fixtures.spark_streams import stream_info
from hypothesis import given
from hypothesis import strategies as st

from jetstream_sync.errors import InvalidArgumentError, InvalidResponseError, TimeoutError
from jetstream_sync.jetstream.api_requests import APIRequests
from jetstream_sync.jetstream.direct_get import ReplyCollector
from jetstream_sync.net.clock import FOREVER, Deadline
from jetstream_sync.protocol.parser import RawMessage
from jetstream_sync.spark import DirectGetRefusedError, RangeError, SequenceRange
from jetstream_sync.spark.bytes_column import BytesColumn
from jetstream_sync.spark.reading import direct, pull, replies
from jetstream_sync.spark.reading import ranges as ranges_module
from jetstream_sync.spark.reading.chunks import (
    MAX_REQUEST_ROWS,
    BatchSizer,
    Chunk,
    FieldSelection,
    ReadTask,
)
from jetstream_sync.spark.reading.range_reader import ReadPlan, _RangeReader, choose_mode
from jetstream_sync.spark.reading.replies import Replies
from jetstream_sync.spark.schema import READ_COLUMNS
from jetstream_sync.spark.streams import stream_view
from jetstream_sync.subjects import Routes

VIEW = stream_view(
    stream_info({"allow_direct": True}, messages=1000, bytes=200_000, first_seq=1, last_seq=1000)
)
USUAL = FieldSelection.of(READ_COLUMNS)


@pytest.mark.parametrize(
    ("view", "rows", "filters", "wanted", "expected"),
    [
        (VIEW, 1000, (), USUAL, "direct"),
        (VIEW, 1000, ("a.>",), USUAL, "direct"),
        (VIEW, 50_001, (), USUAL, "pull"),
        (VIEW, 1000, ("a", "b"), USUAL, "pull"),
        (replace(VIEW, allow_direct=False), 1000, (), USUAL, "pull"),
        (VIEW, 1000, (), FieldSelection.of({"sequence"}), "direct"),
        (replace(VIEW, bytes=10_000_000), 1000, (), FieldSelection.of({"sequence"}), "pull"),
        (replace(VIEW, bytes=10_000_000), 1000, (), USUAL, "direct"),
        (replace(VIEW, retention="workqueue"), 10**9, ("a", "b"), USUAL, "direct"),
        (replace(VIEW, retention="interest"), 1000, (), USUAL, "direct"),
    ],
)
def test_auto_mode(view, rows, filters, wanted, expected):
    """Small ranges and work queues are read with direct gets, other ranges with a consumer."""
    assert choose_mode("auto", view, rows, filters, wanted) == expected


def test_an_explicit_mode_is_used():
    """An explicit mode is used, unless the stream does not allow it."""
    for mode in ("direct", "pull"):
        assert choose_mode(mode, VIEW, 10**9, ("a", "b"), USUAL) == mode
        assert choose_mode(mode, VIEW, 1, (), USUAL) == mode
    closed = replace(VIEW, allow_direct=False)
    assert choose_mode("pull", closed, 1, (), USUAL) == "pull"
    with pytest.raises(DirectGetRefusedError):
        choose_mode("direct", closed, 1, (), USUAL)
    with pytest.raises(DirectGetRefusedError):
        choose_mode("auto", replace(closed, retention="workqueue"), 1, (), USUAL)


def job(end_seq: int, batch_bytes: int = 1_000_000, message_bytes: float = 100.0) -> ReadTask:
    return ReadTask(
        range=SequenceRange("ORDERS", 1, end_seq),
        fields=USUAL,
        batch_bytes=batch_bytes,
        message_bytes=message_bytes,
        silence_timeout=1.0,
        validate_batch=lambda *_: None,
    )


def test_request_sizes_are_limited_by_range_and_batch():
    """A request is limited by the rest of the range and the batch size, but asks for at least one message."""
    assert BatchSizer(job(101), 1, filtered=False).rows(1) == 100
    assert BatchSizer(job(101), 1, filtered=False).rows(100) == 1
    assert 8000 < BatchSizer(job(10**9), 1, filtered=False).rows(1) <= 10_000
    assert BatchSizer(job(10**9, message_bytes=1.0), 1, filtered=False).rows(1) == MAX_REQUEST_ROWS
    assert BatchSizer(job(10**9, message_bytes=1e9), 1, filtered=False).rows(1) == 1


def test_the_message_size_is_learned():
    """If messages are larger than expected, a request asks for fewer."""
    pace = BatchSizer(job(10**9), 1, filtered=False)
    pace.learn_size(
        Chunk(stream="ORDERS", sequences=range(1000), data=BytesColumn.of([b"x" * 10_000] * 1000))
    )
    assert 70 < pace.rows(1001) <= 100


@given(st.integers(1, 10**6), st.integers(0, 2000))
def test_a_filtered_read_does_not_go_far_beyond_the_range(span, came):
    """With a filter, the request size depends on the density of the matches so far."""
    pace = BatchSizer(job(2 * span + 2), 1, filtered=True)
    assert pace.rows(1) <= 1024
    pace.add_rows(came)
    assert 1 <= pace.rows(span + 1) <= max(1, came * 1.1 * (span + 1) / span + 16)


def test_ranges():
    """A range may be empty but must not end before it starts, and it can be pickled."""
    piece = SequenceRange("ORDERS", 5, 5, ("a", "b"), 7)
    assert pickle.loads(pickle.dumps(piece)) == piece
    with pytest.raises(InvalidArgumentError):
        SequenceRange("ORDERS", 6, 5)
    assert pickle.loads(pickle.dumps(ReadPlan(mode="pull"))) == ReadPlan(mode="pull")


@pytest.mark.parametrize(
    "error",
    [
        RangeError("ORDERS"),
        ranges_module.RangeLostError("ORDERS", 5, 9),
        ranges_module.StreamRecreatedError("ORDERS", 5, 9),
        ranges_module.RangeStalledError("ORDERS", 5, "it is so"),
        ranges_module.DirectGetRefusedError("ORDERS"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_range_errors_can_be_pickled(error):
    """Each range error keeps its attributes when it is pickled, and is an Error."""
    again = pickle.loads(pickle.dumps(error))
    assert isinstance(again, RangeError)
    assert (type(again), again.args, str(again)) == (type(error), error.args, str(error))
    assert "ORDERS" in str(again)


# --- unexpected responses ------------------------------------------------------------------------

NO_CORE: Any = SimpleNamespace(
    table=SimpleNamespace(new_inbox=lambda: "inbox", add_deferred=lambda *_: None),
    state=SimpleNamespace(timed_out=TimeoutError),
    address=None,
)
NO_CORE.internal = NO_CORE
MESSAGE: RawMessage = (b"a", b"reply", b"", b"payload")


class Scripted:
    """Replaces `ReplyCollector`, and always returns the same response."""

    def __init__(self, response: list[RawMessage], *_: object) -> None:
        self.items = Replies()
        self.items += response

    def ask(self, subject: bytes, payload: bytes, deadline: Deadline) -> None:
        pass

    def wait(self, patience: float) -> Replies:
        return self.items

    def close(self) -> None:
        pass


def answering(*response: RawMessage) -> Callable[..., Scripted]:
    return lambda *_, **__: Scripted(list(response))


def test_missing_messages_are_not_requested_again_at_once(monkeypatch):
    """A direct get that reports remaining messages but returns none is not repeated at once."""
    end = (b"inbox", b"", b"NATS/1.0 204 EOB\r\nNats-Num-Pending: 7\r\n\r\n", b"")
    monkeypatch.setattr(replies, "ReplyCollector", answering(end))
    reader = direct.DirectReader(APIRequests(NO_CORE, Routes(), 1.0), job(101))
    found = list(islice(reader.responses(1), 5))
    assert [(len(response.chunk), response.next_seq) for response in found] == [(0, 1)]


def test_a_message_of_another_kind_ends_the_consumer(monkeypatch):
    """After a message that is not from the consumer, the read continues with another consumer."""
    monkeypatch.setattr(replies, "ReplyCollector", answering(MESSAGE))
    monkeypatch.setattr(pull, "add_consumer", lambda *_: SimpleNamespace(num_pending=1))
    reader = pull.PullReader(APIRequests(NO_CORE, Routes(), 1.0), job(101))
    with pytest.raises(ranges_module.RangeStalledError):
        next(reader.responses(1))


def test_a_malformed_reply_of_the_leader(monkeypatch):
    """A reply without a message is an error, and does not complete a range."""
    api = APIRequests(NO_CORE, Routes(), 1.0)
    monkeypatch.setattr(api, "ask", lambda *_: {})
    reading = _RangeReader(
        api, SequenceRange("ORDERS", 1, 10), frozenset(READ_COLUMNS), ReadPlan(), FOREVER
    )
    with pytest.raises(InvalidResponseError):
        reading._is_complete()


def test_messages_after_the_end_of_a_response_are_ignored():
    """Messages after the end of a response do not change it, since the caller may already read it."""
    gathering = ReplyCollector(NO_CORE, lambda _: False, expected=2)
    gathering.deliver([MESSAGE, MESSAGE])
    found = gathering.wait(1.0)
    gathering.deliver([MESSAGE])
    assert len(found) == 2


def test_a_second_wait_has_the_full_timeout(monkeypatch):
    """A second wait takes the given time, even if messages arrived before it."""
    gathering = ReplyCollector(NO_CORE, lambda _: False)
    gathering.deliver([MESSAGE])
    waits: list[object] = []

    def silence(deadline: object) -> bool:
        waits.append(deadline)
        return False

    monkeypatch.setattr(gathering, "_handoff", SimpleNamespace(arrived=silence))
    with pytest.raises(TimeoutError):
        gathering.wait(1.0)
    assert len(waits) == 1
