"""Encoded publish commands, the rows in flight, and which refusals are retried."""

from __future__ import annotations

import pickle

import pytest

from jetstream_sync.api.publish import EACH_MESSAGE
from jetstream_sync.errors import (
    APIError,
    NoStreamResponseError,
    TimeoutError,
)
from jetstream_sync.spark.bytes_column import BytesColumn
from jetstream_sync.spark.sink_errors import RowError, SinkError, is_retriable
from jetstream_sync.spark.writing import publishing
from jetstream_sync.spark.writing.publishing import (
    AckTimes,
    Due,
    RowsInFlight,
    WriteStats,
    commands,
    joined_commands,
)
from jetstream_sync.spark.writing.rows import EncodedRows, RowEncoder
from jetstream_sync.speedups import IN_USE

ENCODER = RowEncoder(4, "STREAM", "s")
HEAD = b"NATS/1.0\r\n" + ENCODER.common


def rows_of(
    subjects: list[bytes],
    data: list[bytes],
    header_lines: list[bytes] | None = None,
    ids: list[bytes] | None = None,
    first: int = 0,
) -> EncodedRows:
    columns = map(BytesColumn.of, (subjects, data, header_lines or (), ids or ()))
    return EncodedRows(range(first, first + len(data)), *columns)


def test_each_row_has_the_headers_of_each_message(monkeypatch):
    """A header for all messages is declared once, for the rows of Spark as well."""
    monkeypatch.setitem(EACH_MESSAGE, "All", "1")
    assert RowEncoder(4, "STREAM", "s").common == b"All: 1\r\nNats-Expected-Stream: STREAM\r\n"


@pytest.fixture(params=["extension", "Python"])
def variant(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run a test with the C extension and without it."""
    if request.param == "Python":
        monkeypatch.setattr(publishing, "join_commands", None)
    elif not IN_USE:
        pytest.skip("the C extension is not in use")


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
def test_a_command_contains_the_whole_row(header_lines, ids):
    """Each command contains the correct sizes, and every header once."""
    rows = rows_of([b"a", b"b.c"], [b"xyz", b""], header_lines, ids)
    made = commands(rows, HEAD, [b"r.0", b"r.1"])
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


@pytest.mark.usefixtures("variant")
@pytest.mark.parametrize("number", [0, 7])
@pytest.mark.parametrize("has_lines", [True, False])
@pytest.mark.parametrize("has_ids", [True, False])
def test_a_chunk_contains_the_command_of_each_row(has_ids, has_lines, number):
    """The buffer of a chunk contains every row completely, in order, with the reply subject of the chunk."""
    sizes = [0, 1, 9, 99, 100, 12_345]
    subjects = [b"s.%d" % size for size in sizes]
    ids = [b"", *(b"id-%d" % size for size in sizes[1:])]
    lines = [*(b"K: %d\r\n" % size for size in sizes[:-1]), b""]
    rows = rows_of(
        subjects,
        [b"\r" * size for size in sizes],
        lines if has_lines else None,
        ids if has_ids else None,
    )
    head = HEAD + b"Number: " if number else HEAD
    rest = joined_commands(ENCODER, rows, head, b"reply.-1", 100_000, number)
    for index, size in enumerate(sizes):
        line, _, rest = rest.partition(b"\r\n")
        total = int(line.rsplit(b" ", 1)[1]) + 2
        command, rest = line + b"\r\n" + rest[:total], rest[total:]
        subject, reply, header, found = taken_apart(command)
        assert (subject, reply, found) == (subjects[index], b"reply.-1", b"\r" * size)
        expected = [b"Nats-Expected-Stream: STREAM"]
        if number:
            expected.append(b"Number: %d" % (number + index))
        if has_ids and index:
            expected.append(b"Nats-Msg-Id: " + ids[index])
        if has_lines and lines[index]:
            expected.append(b"K: %d" % size)
        assert header.split(b"\r\n") == [*expected, b""]
    assert not rest


@pytest.mark.usefixtures("variant")
def test_a_row_above_the_size_limit_is_not_sent():
    """The size includes headers and payload, and nothing else of the command."""
    rows = rows_of([b"s"] * 2, [b"x", b"x" * 100], first=7)
    header = len(HEAD) + 2
    assert joined_commands(ENCODER, rows, HEAD, b"reply", header + 100)
    with pytest.raises(RowError) as error:
        joined_commands(ENCODER, rows, HEAD, b"reply", header + 99)
    assert (error.value.partition, error.value.row) == (4, 8)
    assert f"{header + 100} bytes" in str(error.value)


def replies_of(buffer: bytes) -> list[bytes]:
    """Return the reply subject of each command."""
    return [line.split(b" ")[2] for line in buffer.splitlines() if line.startswith(b"HPUB ")]


def numbered_rows(first: int, end: int, *, ids: bool = False) -> EncodedRows:
    count = end - first
    names = [b"id-%d" % number for number in range(first, end)]
    return rows_of([b"s"] * count, [b"x"] * count, ids=names if ids else None, first=first)


def test_a_chunk_leaves_when_all_of_its_rows_are_acknowledged():
    """Rows that all have ids share a reply subject, whose acknowledgements are counted."""
    rows = RowsInFlight(ENCODER, b"_INBOX.a.", keeps_order=False)
    sent = rows.add(rows.encode(numbered_rows(0, 3, ids=True), 1000))
    (reply,) = {*replies_of(sent)}
    assert (rows.rows, rows.size) == (3, len(sent))
    assert [rows.acknowledge(reply, 2), rows.acknowledge(reply, 1)] == [2, 1]
    assert (rows.rows, rows.size, rows.stored) == (0, 0, 3)


def test_the_rows_of_a_split_chunk_are_counted_again():
    """Late acknowledgements of the chunk are ignored, and each row leaves with its own one."""
    rows = RowsInFlight(ENCODER, b"_INBOX.a.", keeps_order=False)
    (reply,) = {*replies_of(rows.add(rows.encode(numbered_rows(5, 8, ids=True), 1000)))}
    assert rows.acknowledge(reply, 2) == 2
    assert rows.split(reply) == [5, 6, 7]
    again = rows.again([5, 6, 7])
    assert (rows.rows, rows.stored, rows.size) == (3, 0, sum(map(len, again)))
    assert rows.acknowledge(reply, 1) == 0
    for own in replies_of(b"".join(again)):
        assert rows.acknowledge(own, 1) == 1
        assert rows.acknowledge(own, 1) == 0  # a row that was sent twice
    assert (rows.rows, rows.stored, rows.size) == (0, 3, 0)
    assert rows.split(reply) is None


def test_a_row_that_keeps_its_order_leaves_after_the_rows_before_it():
    """In a bucket, acknowledgements of what was sent before a resend do not count."""
    rows = RowsInFlight(ENCODER, b"_INBOX.a.", keeps_order=True)
    first, second, third = replies_of(rows.add(rows.encode(numbered_rows(0, 3, ids=True), 1000)))
    assert [rows.acknowledge(second, 1), rows.rows] == [0, 3]
    assert [rows.acknowledge(first, 1), rows.rows] == [2, 1]
    (again,) = replies_of(b"".join(rows.all_again()))
    assert [rows.acknowledge(third, 1), rows.acknowledge(again, 1)] == [0, 1]
    assert (rows.rows, rows.size, rows.stored) == (0, 0, 3)


def test_rows_that_were_encoded_before_a_resend_are_acknowledged_after_it():
    """While rows wait for room, all others are sent again with new reply subjects, which these have as well."""
    rows = RowsInFlight(ENCODER, b"_INBOX.a.", keeps_order=True)
    rows.add(rows.encode(numbered_rows(0, 1), 1000))
    waiting = rows.encode(numbered_rows(1, 2), 1000)
    (first,) = replies_of(b"".join(rows.all_again()))
    (second,) = replies_of(rows.add(waiting))
    assert [rows.acknowledge(first, 1), rows.acknowledge(second, 1)] == [1, 1]
    assert (rows.rows, rows.size) == (0, 0)


def test_an_acknowledged_row_is_not_refused_any_more():
    """A refused row is sent again until it is acknowledged."""
    for keeps_order in (False, True):
        rows = RowsInFlight(ENCODER, b"_INBOX.a.", keeps_order=keeps_order)
        (reply,) = replies_of(rows.add(rows.encode(numbered_rows(0, 1), 1000)))
        number = rows.pending_row(reply)
        assert number == 0
        assert rows.row_for_subject(b"s") == 0
        rows.refused[number] = 1.0, APIError(503, 10023, "busy")
        rows.acknowledge(reply, 1)
        assert not rows.refused
        assert rows.pending_row(reply) is None
        assert rows.row_for_subject(b"s") is None


def test_stats_contain_the_range_of_sequences():
    """The stats contain the lowest and the highest stored sequence."""
    stats = WriteStats()
    assert (stats.first_seq, stats.last_seq) == (None, None)
    for lowest, highest in ((5, 9), (7, 8), (2, 3)):
        stats.stored(lowest, highest)
    assert (stats.first_seq, stats.last_seq) == (2, 9)


def refusal(code: int, err_code: int, text: str) -> APIError:
    return APIError.from_response({"code": code, "err_code": err_code, "description": text})


@pytest.mark.parametrize(
    ("error", "passes"),
    [
        (refusal(503, 10023, "insufficient resources"), True),
        (refusal(409, 10158, "duplicate message id is in process"), True),
        (refusal(400, 10164, "wrong last sequence"), True),
        (refusal(429, 10167, "too many requests"), True),
        (refusal(429, 10210, "too many inflight"), True),
        (refusal(429, 10211, "too many inflight"), True),
        (NoStreamResponseError("s"), True),
        (refusal(400, 10071, "wrong last sequence: 5"), False),
        (refusal(503, 10077, "maximum messages exceeded"), False),
        (refusal(400, 10060, "expected stream does not match"), False),
        (refusal(400, 10054, "message size exceeds maximum allowed"), False),
        (TimeoutError("late"), False),
    ],
)
def test_temporary_refusals_are_retried(error, passes):
    """Only refusals by a busy or leaderless stream are retried."""
    assert is_retriable(error) is passes


def test_errors_of_the_sink_can_be_pickled():
    """Spark sends the errors from the workers to the driver."""
    for error in (RowError(1, 2, "s", "why"), RowError(1, 2, "", "why"), SinkError("no")):
        copy = pickle.loads(pickle.dumps(error))
        assert (type(copy), str(copy)) == (type(error), str(error))
    assert "subject" not in str(RowError(1, 2, "", "why"))


def test_rows_without_an_acknowledgement_are_sent_again_and_then_given_up():
    """Within the timeout all rows are sent again three times; each acknowledgement begins the waits again."""
    times = AckTimes(8.0, 100.0, is_connected=True)
    found = []
    for now in range(100, 109):
        found.append(times.due(now))
        if found[-1] is Due.RESEND:
            times.resent(now)
    wait, resend = Due.WAIT, Due.RESEND
    assert found == [wait, wait, resend, wait, resend, wait, resend, wait, Due.GIVE_UP]
    times.acknowledged(108.0)
    assert (times.due(109.0), times.next_check(109.0)) == (Due.WAIT, 1.0)


def test_refused_rows_are_sent_again_after_a_short_wait():
    """The wait begins with the first refusal, and again after each retry."""
    times = AckTimes(8.0, 100.0, is_connected=True)
    times.refused(100.0)
    times.refused(100.2)
    assert (times.due(100.2), times.due(100.25)) == (Due.WAIT, Due.RETRY)
    times.retried()
    assert times.due(101.0) is Due.WAIT
    assert times.next_check(101.0) == 1.0


def test_while_disconnected_nothing_is_sent_again():
    """Without a connection only the timeout counts."""
    times = AckTimes(8.0, 100.0, is_connected=False)
    times.refused(100.0)
    assert [times.due(now) for now in (100.5, 103.0, 108.0)] == [Due.WAIT, Due.WAIT, Due.GIVE_UP]
    assert times.next_check(100.0) == 8.0
    assert times.next_check(110.0) == 0.0
    times.is_connected = True
    assert times.due(103.0) is Due.RETRY
