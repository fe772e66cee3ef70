"""Columns of received messages, with and without the C extension."""

from __future__ import annotations

from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jetstream_sync import speedups
from jetstream_sync.errors import NotJSMessageError
from jetstream_sync.protocol.parser import Messages, Parser, RawMessage
from jetstream_sync.spark.bytes_column import BytesColumn
from jetstream_sync.spark.reading import replies as module
from jetstream_sync.spark.reading.replies import Replies

NUMBERS = st.one_of(st.integers(0, 120), st.sampled_from([10**18 - 1, 10**18, 2**63 - 1]))
MESSAGES = st.lists(
    st.tuples(
        st.sampled_from([b"a", b"orders.new"]),
        st.tuples(NUMBERS, NUMBERS),
        st.sampled_from([b"", b"NATS/1.0\r\nA: b\r\n\r\n"]),
        st.binary(max_size=30),
    ),
    min_size=1,
)


def received(deliveries: list[RawMessage], *sizes: int) -> Replies:
    """Return messages as a connection receives them, in reads of these sizes."""
    data = b""
    for subject, reply, header, payload in deliveries:
        kind, head = (b"HMSG", b" %d" % len(header)) if header else (b"MSG", b"")
        size = len(header) + len(payload)
        data += b"%b %b 7 %b%b %d\r\n%b%b\r\n" % (kind, subject, reply, head, size, header, payload)
    parser = Parser()
    parser.packed_sids = {7}
    replies = Replies()
    for size in (*sizes, len(data)):
        for run in parser.feed(data[:size]):
            assert isinstance(run, Messages)
            replies += run.deliveries
        data = data[size:]
    return replies


@given(MESSAGES, st.lists(st.integers(1, 200), max_size=3), st.booleans())
def test_columns(messages, sizes, in_c):
    """The columns have the fields of the messages, in the order in which they came."""
    expected = [
        (subject, b"$JS.ACK.S.c.1.%d.%d" % numbers, header, payload)
        for subject, numbers, header, payload in messages
    ]
    replies = received(expected, *sizes)
    with mock.patch.multiple(
        module,
        run_column=speedups.run_column if in_c else None,
        run_numbers=speedups.run_numbers if in_c else None,
    ):
        for field in range(4):
            assert list(replies.column(field)) == [item[field] for item in expected]
        for place in (1, 2):
            assert list(replies.reply_numbers(place)) == [
                message[1][-place] for message in messages
            ]
        with pytest.raises(NotJSMessageError):
            replies.reply_numbers(4)  # the name of the consumer
    assert (replies[0], replies[-1], list(replies)) == (expected[0], expected[-1], expected)
    assert [replies.pop() for _ in range(len(replies))] == expected[::-1]


@given(st.lists(st.binary(max_size=9)), st.integers(0, 9), st.integers(0, 9))
def test_a_column_of_bytes_is_a_sequence(values, start, end):
    """It has the length, the items, the slices and the sizes of the list, without copies of the data."""
    column = BytesColumn.of(values)
    assert (len(column), list(column), column.sizes()) == (len(values), values, [*map(len, values)])
    part = column[start:end]
    assert list(part) == values[start:end]
    assert part.total_bytes == sum(map(len, values[start:end]))
    assert part.data is column.data
    assert [column[index - len(values)] for index in range(len(values))] == values
    with pytest.raises(IndexError):
        column[len(values)]


def test_a_message_with_headers_after_packed_messages():
    """A message that Python reads, because it arrived in two parts, follows those that C has packed."""
    header = b"NATS/1.0\r\nA: b\r\n\r\n"
    messages = [(b"a", b"$JS.ACK.S.c.1.%d.%d" % (n, n), header, b"x\r\n" * 5) for n in range(4)]
    for size in range(1, 300):
        assert list(received(messages, size)) == messages
