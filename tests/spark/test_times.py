"""The times of messages, as Python and as Arrow parse them; needs no Java."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jetstream_sync.durations import time_from_ns, time_to_text
from jetstream_sync.errors import Error
from jetstream_sync.spark.reading.times import HeaderTimes, MessageTimes, ReplyTimes

pytestmark = [
    pytest.mark.spark,
    # The wait of a client that reconnects is random, in a thread that other tests have left.
    pytest.mark.filterwarnings("ignore:Do not use the `random` module inside strategies"),
]

USUAL_NS = 1_763_830_000_123_456_789
#: Times of other lengths: 1970, 2001, and the last one of an int64.
TIMES = st.one_of(
    st.integers(USUAL_NS, USUAL_NS + 10**12),
    st.sampled_from([0, 5, 10**12, 999_999_999_999_999_999, 10**18, 2**63 - 1]),
)
#: The numbers of remaining messages.
COUNTS = st.one_of(st.integers(0, 120), st.sampled_from([999, 10**9, 10**18, 2**64 - 1]))


def reply(number: int, time_ns: int, left: int, tail: str = "") -> bytes:
    start = "_.Hash.O.c" if tail else "O.c"
    return f"$JS.ACK.{start}.1.{number}.{number}.{time_ns}.{left}{tail}".encode()


def line(time_ns: int) -> bytes:
    return f"Nats-Time-Stamp: {time_to_text(time_from_ns(time_ns))}".encode()


def header_times(lines: list[bytes]) -> HeaderTimes:
    return HeaderTimes(lines, len("Nats-Time-Stamp: "))


@given(
    st.lists(st.tuples(TIMES, COUNTS, st.sampled_from([1, 10**18, USUAL_NS])), max_size=40),
    st.sampled_from(["", ".a", ".1763830000123456789"]),
    st.integers(1, 40),
)
def test_times_of_reply_subjects(
    messages: list[tuple[int, int, int]], tail: str, repeats: int
) -> None:
    """Arrow finds the times of any reply subjects, however long the numbers around them are."""
    messages = messages * repeats
    replies = [reply(number, time, left, tail) for time, left, number in messages]
    found = ReplyTimes(replies, 1 if tail else 0)
    times = [time for time, _, _ in messages]
    assert list(found) == times
    assert found.to_arrow().equals(pa.array(times, pa.int64()))


def test_the_number_of_remaining_messages_loses_digits() -> None:
    """A chunk in which the place of the time changes is parsed completely."""
    count = 3000
    replies = [reply(i, USUAL_NS + i, count - i) for i in range(count)]
    found = ReplyTimes(replies)
    assert found.to_arrow().to_pylist() == [USUAL_NS + i for i in range(count)]
    assert found[2999] == USUAL_NS + 2999
    assert list(found[10:12]) == [USUAL_NS + 10, USUAL_NS + 11]
    assert found[10:12].to_arrow().to_pylist() == [USUAL_NS + 10, USUAL_NS + 11]
    assert len(found[:0].to_arrow()) == len(found[:0]) == 0


@given(st.lists(st.integers(0, 2**63 - 1), max_size=40))
def test_times_of_headers(times: list[int]) -> None:
    """Arrow finds the times in header lines, with any number of fractional digits."""
    found = header_times([line(each) for each in times])
    assert list(found) == times
    assert found.to_arrow().equals(pa.array(times, pa.int64()))
    assert list(found[1:]) == times[1:]


def test_whole_seconds_of_headers() -> None:
    """The server omits trailing zeros of the fractional second."""
    second = USUAL_NS // 10**9 * 10**9
    found = header_times([line(second), line(second + 500_000_000), line(second + 1)])
    assert found.to_arrow().to_pylist() == [second, second + 500_000_000, second + 1]


@pytest.mark.parametrize(
    "times",
    [
        header_times([line(USUAL_NS), b"Nats-Time-Stamp: yesterday"]),
        header_times([line(USUAL_NS), b""]),
        header_times([b"\xff" * 40]),
        ReplyTimes([reply(1, USUAL_NS, 1), b"$JS.ACK.O.c.1.1.1.xxxxxxxxxxxxxxxxxxx.0"]),
        ReplyTimes([reply(1, USUAL_NS, 1), b"other"]),
        ReplyTimes([b"$JS.ACK.O.c.1.1.1..0"]),
        ReplyTimes([b"other", reply(1, USUAL_NS, 1)]),
    ],
)
@pytest.mark.full
def test_a_text_without_a_time_is_an_error(times: MessageTimes) -> None:
    """A malformed time raises an error of the package, in Python and for Arrow."""
    with pytest.raises(Error):
        times.parse()
    with pytest.raises(Error):
        times.to_arrow()
