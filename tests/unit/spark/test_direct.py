"""The headers that the server adds in a direct get, and those of the user."""

from __future__ import annotations

from unittest import mock

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from jetstream_sync.durations import time_from_ns, time_to_text
from jetstream_sync.errors import (
    APIError,
    InvalidResponseError,
    NoRespondersError,
)
from jetstream_sync.spark.bytes_column import BytesColumn
from jetstream_sync.spark.reading import direct
from jetstream_sync.spark.reading.chunks import subject_matcher
from jetstream_sync.spark.reading.direct import (
    _is_status,
    _parse_server_headers,
    _remaining_messages,
)
from jetstream_sync.subjects import subject_matches

TIME = "2026-01-31T12:00:00Z"
ADDED = [
    "Nats-Stream",
    "Nats-Subject",
    "Nats-Sequence",
    "Nats-Time-Stamp",
    "Nats-Num-Pending",
    "Nats-Last-Sequence",
]
PRINTABLE = st.characters(min_codepoint=0x20, exclude_characters="\x7f", exclude_categories=["C"])
NAMES = st.sampled_from([*ADDED, "nats-sequence", "Nats-Msg-Id", "X", "NATS/1.0"])
VALUES = st.one_of(
    st.sampled_from(["7", "", "Nats-Sequence: 9", "2026-01-31T12:00:00Z"]),
    st.text(PRINTABLE, max_size=20).map(str.strip),
)
MESSAGE = st.tuples(
    st.lists(st.tuples(NAMES, VALUES), max_size=9),
    st.lists(st.sampled_from(["a", "orders", "new-1", "日本", "*x", "é"]), min_size=1, max_size=4),
    st.integers(min_value=0, max_value=2**62),
)


def own_block(headers: list[tuple[str, str]]) -> bytes:
    """Return the header block as published."""
    if not headers:
        return b""
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers)
    return f"NATS/1.0\r\n{lines}\r\n".encode()


def as_replied(own: bytes, subject: str, seq: int, time: str) -> bytes:
    """Return the block that getDirectRequest() and genHeader() of nats-server make."""
    block = own or b"NATS/1.0\r\n\r\n"
    for name, value in zip(ADDED, ("ORDERS", subject, seq, time, 3, seq - 1), strict=True):
        block = block[:-2] + f"{name}: {value}\r\n\r\n".encode()
    return block


@pytest.mark.parametrize("split", [direct.split_direct, None], ids=["in use", "python"])
@given(st.lists(MESSAGE, max_size=12), st.integers(min_value=1, max_value=10))
@example([([("Nats-Sequence", "9"), ("Nats-Stream", "OTHER")], ["a"], 5)], 1)
# The server omits trailing zeros of the fractional second. Leap years, and the last time in an int64.
@example([([], ["a"], time) for time in (0, 5, 951_782_400_100_000_000, 2**63 - 1)], 1)
@example([([], ["a"], 1_709_164_800_000_000_000), ([], ["a"], 4_107_542_400_000_000_000)], 1)
def test_server_headers_are_separated_from_the_users_headers(split, messages, step):
    """Forged and republished headers stay with the user; sequence, subject and time are the server's."""
    blocks, own, sequences, subjects, times = [], [], [], [], []
    for index, (headers, tokens, time_ns) in enumerate(messages):
        seq = 1 + index * step
        own.append(own_block(headers))
        sequences.append(seq)
        subjects.append(".".join(tokens))
        times.append(time_ns)
        blocks.append(as_replied(own[-1], subjects[-1], seq, time_to_text(time_from_ns(time_ns))))
    with mock.patch.object(direct, "split_direct", split):
        found = _parse_server_headers(BytesColumn.of(blocks))
    assert list(found.sequences) == sequences
    assert [subject.decode() for subject in found.subjects] == subjects
    assert list(found.times_ns) == times
    assert list(found.own) == own
    for block in blocks:
        assert not _is_status((b"inbox", b"", block, b""))


@pytest.mark.parametrize(
    "block",
    [
        b"NATS/1.0\r\n\r\n",
        b"NATS/1.0\r\nX: y\r\n\r\n",
        as_replied(b"", "a", 1, TIME).replace(b"Nats-Sequence", b"Nats-Another0"),
        as_replied(b"", "a", 1, TIME).replace(b"Nats-Sequence: 1", b"Nats-Sequence: x"),
        as_replied(b"", "a", 1, "yesterday"),
        as_replied(b"", "a", 1, "2023-02-29T00:00:00Z"),
        as_replied(b"", "a", 1, "2026-04-31T00:00:00Z"),
        as_replied(b"", "a", 1, TIME.replace("Z", ".xZ")),
    ],
)
def test_unexpected_headers_are_an_error(block):
    """A header block without the headers of ADR-31 is refused."""
    with pytest.raises(InvalidResponseError):
        _parse_server_headers(BytesColumn.of([block]))


def test_the_end_of_a_response():
    """Status 204 ends a response and contains the number of remaining messages; 404 means none."""
    end = b"NATS/1.0 204 EOB\r\nNats-Num-Pending: 17\r\nNats-Last-Sequence: 4\r\n\r\n"
    missing = b"NATS/1.0 404 Message Not Found\r\n\r\n"
    assert _is_status((b"inbox", b"", end, b""))
    assert _remaining_messages((b"inbox", b"", end, b""), b"route") == 17
    assert _is_status((b"inbox", b"", missing, b""))
    assert _remaining_messages((b"inbox", b"", missing, b""), b"route") == 0


def test_a_refusal():
    """Other statuses are errors: no responders, or an invalid request."""
    with pytest.raises(NoRespondersError):
        _remaining_messages((b"", b"", b"NATS/1.0 503\r\n\r\n", b""), b"route")
    with pytest.raises(APIError) as caught:
        _remaining_messages((b"", b"", b"NATS/1.0 408 Bad Request\r\n\r\n", b""), b"route")
    assert caught.value.code == 408
    with pytest.raises(InvalidResponseError):
        _remaining_messages((b"", b"", b"", b"x"), b"route")


PATTERNS = st.lists(
    st.sampled_from(["a", "b.c", "a.*", "*.c", "*", "b.>", ">", "a+b", "*.*.x"]), min_size=1
)
SUBJECTS = st.lists(st.sampled_from(["a", "b", "c", "x", "a+b", "aab"]), min_size=1, max_size=4)


@given(PATTERNS, SUBJECTS)
def test_several_filters(patterns, tokens):
    """A subject passes several filters if it matches one of them."""
    subject = ".".join(tokens)
    expected = any(subject_matches(pattern, subject) for pattern in patterns)
    assert (subject_matcher(tuple(patterns))(subject.encode()) is not None) == expected
