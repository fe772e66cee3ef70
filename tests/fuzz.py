"""
Compare the C extension with the code in Python on inputs that a coverage-guided fuzzer makes.

    python tests/fuzz.py -max_total_time=600
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import atheris

from jetstream_sync import errors, headers, speedups
from jetstream_sync.api import publish
from jetstream_sync.codec import loads
from jetstream_sync.protocol import parser
from jetstream_sync.spark.bytes_column import BytesColumn
from jetstream_sync.spark.reading import direct

# The fuzzer sees the branches of these functions only: instrumenting the whole package takes a minute.
parser.Parser.feed = atheris.instrument_func(parser.Parser.feed)
parse_headers = atheris.instrument_func(headers.parse_headers)
direct._value = atheris.instrument_func(direct._value)

_DIRECT = (
    b"NATS/1.0\r\nA: b\r\nNats-Stream: S\r\nNats-Subject: s.a\r\nNats-Sequence: 7\r\n"
    b"Nats-Time-Stamp: 2024-02-29T12:00:00.5Z\r\nNats-Num-Pending: 3\r\nNats-Last-Sequence: 6\r\n\r\n"
)
#: The first byte selects the comparison.
_SEEDS = (
    b"\x00\x05PING\r\nMSG a.b 1 r 3\r\nabc\r\nHMSG a 2 12 13\r\nNATS/1.0\r\n\r\nx\r\n+OK\r\n",
    b"\x00\x40-ERR 'x'\r\nINFO {\"a\": 1}\r\nMSG a 1 0\r\n\r\nPONG\r\n",
    b"\x01NATS/1.0\r\nNats-Msg-Id: 1\r\nX: a\rb\r\nY:\tz \r\n\r\n",
    b"\x02" + _DIRECT,
    b"\x02" + _DIRECT.replace(b"2024-02-29", b"2023-02-29"),
    b"\x03" + b'{"stream":"S","seq":1}',
    b"\x03" + b'{"stream":"S", "seq":12,"duplicate":true}',
)


def compare_parsers(data: bytes) -> None:
    """Feed both parsers with the same pieces."""
    step, rest = (data[0] or 1) if data else 1, data[1:]
    pieces = [rest[at : at + step] for at in range(0, len(rest), step)]

    def outcome() -> list[object]:
        parsing = parser.Parser(64)
        found: list[object] = []
        try:
            for piece in pieces:
                for item in parsing.feed(piece):
                    # The pieces decide which messages are in one run: compare single ones.
                    if isinstance(item, parser.Messages):
                        found += [(item.sid, delivery) for delivery in item.deliveries]
                    else:
                        found.append(repr(item))
        except errors.Error as error:
            return [*found, str(error)]
        return [*found, parsing.message_bytes]

    parser.read_messages = speedups.read_messages
    in_c = outcome()
    parser.read_messages = None
    assert in_c == outcome(), pieces


def compare_headers(block: bytes) -> None:
    """Where C splits a block of headers, Python finds the same."""
    column = BytesColumn.of([block])
    columns = speedups.split_headers(column.offsets, column.data)
    if columns is None:
        return
    _, name_offsets, names, value_offsets, values = columns
    split = list(
        zip(BytesColumn(name_offsets, names), BytesColumn(value_offsets, values), strict=True)
    )
    known = parse_headers(block) or headers.Headers()
    parsed = [
        (name.encode("utf-8", "surrogateescape"), value.encode("utf-8", "surrogateescape"))
        for name in known
        for value in known.get_all(name)
    ]
    assert split == parsed, (split, parsed)


def compare_direct(block: bytes) -> None:
    """Where C splits the headers of a direct get, Python finds the same."""
    column = BytesColumn.of([block])

    def outcome() -> object:
        try:
            found = direct._parse_server_headers(column)
        except errors.Error:
            return None
        return [list(part) for part in found]

    direct.split_direct = speedups.split_direct
    in_c = outcome()
    if speedups.split_direct(column.offsets, column.data) is None:
        return
    direct.split_direct = None
    in_python = outcome()
    assert in_c == in_python, (in_c, in_python)


def compare_acks(response: bytes) -> None:
    """Where C reads an acknowledgement, Python reads the same."""
    publish_in_c = speedups.parse_pub_ack(
        response, publish.PubAck, tuple(publish.PubAck("", 0))[2:]
    )
    if publish_in_c is None:
        return
    fields = loads(response)
    assert (publish_in_c.stream, publish_in_c.seq) == (fields["stream"], fields["seq"]), response


_COMPARISONS = (compare_parsers, compare_headers, compare_direct, compare_acks)


def compare(data: bytes) -> None:
    """Run the comparison that the first byte selects."""
    if data:
        _COMPARISONS[data[0] % len(_COMPARISONS)](data[1:])


def main() -> None:
    """Fuzz until the time given on the command line has passed."""
    with tempfile.TemporaryDirectory() as corpus:
        for number, seed in enumerate(_SEEDS):
            (Path(corpus) / str(number)).write_bytes(seed)
            compare(seed)
        atheris.Setup([*sys.argv, corpus], compare)
        atheris.Fuzz()


if __name__ == "__main__":
    main()
