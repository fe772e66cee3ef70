"""Encoded publish commands, and which refusals are retried."""

from __future__ import annotations

import pickle
from itertools import repeat

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jetstream_sync.errors import (
    APIError,
    Error,
    NoStreamResponseError,
    TimeoutError,
    WrongLastSequenceError,
)
from jetstream_sync.spark.retry import RowError, SinkError, is_retriable
from jetstream_sync.spark.writing.publishing import (
    WriteStats,
    check_sizes,
    chunk_commands,
    commands,
)
from jetstream_sync.spark.writing.rows import EncodedRows, RowEncoder

ENCODER = RowEncoder(4, "STREAM", "s")


def taken_apart(command: bytes) -> tuple[bytes, bytes, bytes, bytes]:
    """Parse a command by its own sizes: subject, reply, headers and payload."""
    line, _, rest = command.partition(b"\r\n")
    verb, subject, reply, head, total = line.split(b" ")
    assert verb == b"HPUB"
    assert len(rest) == int(total) + 2
    assert rest.endswith(b"\r\n")
    header = rest[: int(head)]
    assert header.startswith(b"NATS/1.0\r\n")
    assert header.endswith(b"\r\n\r\n")
    return subject, reply, header[10:-2], rest[int(head) : -2]


@pytest.mark.parametrize(
    ("header_lines", "ids"),
    [
        (None, None),
        (None, [b"one", b"two"]),
        (None, [b"one", b"three"]),
        (None, [b"", b""]),
        ([b"K: v\r\n", b""], [b"one", b""]),
        ([b"K: v\r\n", b""], None),
    ],
)
def test_a_command_contains_the_whole_row(
    header_lines: list[bytes] | None, ids: list[bytes] | None
) -> None:
    """Each command contains the correct sizes, and every header once."""
    rows = EncodedRows(range(2), [b"a", b"b.c"], [b"xyz", b""], header_lines, ids)
    made = commands(rows, ENCODER.common, [b"r.0", b"r.1"])
    for number, command in enumerate(made):
        subject, reply, header, payload = taken_apart(command)
        assert (subject, reply) == (rows.subjects[number], b"r.%d" % number)
        assert payload == rows.data[number]
        lines = [b"Nats-Expected-Stream: STREAM"]
        if ids is not None and ids[number]:
            lines.append(b"Nats-Msg-Id: " + ids[number])
        if header_lines is not None and header_lines[number]:
            lines.append(b"K: v")
        assert header.split(b"\r\n") == [*lines, b""]


@given(
    st.lists(st.tuples(st.binary(max_size=200), st.binary(max_size=9)), min_size=1, max_size=20),
    st.sampled_from(["ids of one length", "ids of any length", "header lines"]),
)
def test_a_chunk_contains_the_command_of_each_row(
    pairs: list[tuple[bytes, bytes]], kind: str
) -> None:
    """The buffer of a chunk contains every row completely, in order, with the reply subject of the chunk."""
    data = [payload for payload, _ in pairs]
    subjects = [b"s.%d" % len(each) for _, each in pairs]
    ids = [each.hex().encode() + b"-" for _, each in pairs]
    if kind == "ids of one length":
        ids = [b"%06d" % number for number in range(len(pairs))]
    lines = [b"K: %b\r\n" % each for each in ids] if kind == "header lines" else None
    rows = EncodedRows(range(len(pairs)), subjects, data, lines, ids)
    rest = chunk_commands(rows, ENCODER.common, b"reply.-1")
    for number, payload in enumerate(data):
        line, _, rest = rest.partition(b"\r\n")
        size = int(line.rsplit(b" ", 1)[1]) + 2
        command, rest = line + b"\r\n" + rest[:size], rest[size:]
        subject, reply, header, found = taken_apart(command)
        assert (subject, reply, found) == (subjects[number], b"reply.-1", payload)
        expected = [b"Nats-Expected-Stream: STREAM", b"Nats-Msg-Id: " + ids[number]]
        if lines is not None:
            expected.append(b"K: " + ids[number])
        assert header.split(b"\r\n") == [*expected, b""]
    assert not rest


def test_a_row_above_the_size_limit_is_not_sent() -> None:
    """The size includes headers and payload, and nothing else of the command."""
    rows = EncodedRows(range(7, 9), [b"s"] * 2, [b"x", b"x" * 100], None, None)
    made = commands(rows, ENCODER.common, repeat(b"reply"))
    header = len(taken_apart(made[1])[2]) + 12
    check_sizes(ENCODER, rows, made, header + 100)
    with pytest.raises(RowError) as error:
        check_sizes(ENCODER, rows, made, header + 99)
    assert (error.value.partition, error.value.row) == (4, 8)
    assert f"{header + 100} bytes" in str(error.value)


def test_stats_contain_the_range_of_sequences() -> None:
    """The stats contain the lowest and the highest stored sequence."""
    stats = WriteStats()
    assert (stats.first_seq, stats.last_seq) == (None, None)
    for lowest, highest in ((5, 9), (7, 8), (2, 3)):
        stats.stored(lowest, highest)
    assert (stats.first_seq, stats.last_seq) == (2, 9)


@pytest.mark.parametrize(
    ("error", "passes"),
    [
        (APIError(503, 10023, "insufficient resources"), True),
        (APIError(409, 10158, "duplicate message id is in process"), True),
        (APIError(429, 10167, "too many requests"), True),
        (APIError(429, 10210, "too many inflight"), True),
        (NoStreamResponseError("s"), True),
        (WrongLastSequenceError(400, 10071, "wrong last sequence: 5"), False),
        (APIError(503, 10077, "maximum messages exceeded"), False),
        (APIError(400, 10060, "expected stream does not match"), False),
        (APIError(400, 10054, "message size exceeds maximum allowed"), False),
        (TimeoutError("late"), False),
    ],
)
def test_temporary_refusals_are_retried(error: Error, passes: bool) -> None:
    """Only refusals by a busy or leaderless stream are retried."""
    assert is_retriable(error) is passes


def test_errors_of_the_sink_can_be_pickled() -> None:
    """Spark sends the errors from the workers to the driver."""
    for error in (RowError(1, 2, "s", "why"), RowError(1, 2, "", "why"), SinkError("no")):
        copy = pickle.loads(pickle.dumps(error))
        assert (type(copy), str(copy)) == (type(error), str(error))
    assert "subject" not in str(RowError(1, 2, "", "why"))
