"""Bytes from a server become operations, regardless of how they are split."""

from __future__ import annotations

import operator

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from jetstream_sync import speedups
from jetstream_sync.errors import ProtocolError
from jetstream_sync.protocol import parser as parser_module
from jetstream_sync.protocol.parser import (
    MAX_CONTROL_LINE,
    MAX_INFO_LINE,
    MAX_PAYLOAD,
    ErrorLine,
    Info,
    Messages,
    Ok,
    Parser,
    Ping,
    Pong,
    only_message,
)

BLOCK = b"NATS/1.0\r\nA: 1\r\n\r\n"


@pytest.fixture(autouse=True, scope="module", params=["extension", "python"])
def reader(request):
    """Run every test with the C extension and without it."""
    if request.param == "extension" and not speedups.IN_USE:
        pytest.skip("the C extension is not in use")
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "python":
            patch.setattr(parser_module, "read_messages", None)
        yield


# --- the server's bytes, made without the package -------------------------------------------------


def message(sid, subject, payload=b"", reply=b"", header=b""):
    """Return the bytes of a message, by the description of MSG and HMSG (ADR-4)."""
    words = [b"HMSG" if header else b"MSG", subject, str(sid).encode()]
    words += [reply] if reply else []
    words += [str(len(header)).encode()] if header else []
    words += [str(len(header + payload)).encode()]
    return b" ".join(words) + b"\r\n" + header + payload + b"\r\n"


def flat(operations):
    """Return the operations with every message separate, so that runs compare equal."""
    for operation in operations:
        if isinstance(operation, Messages):
            assert operation.deliveries
            for delivery in operation.deliveries:
                yield (operation.sid, *delivery)
        else:
            yield operation


def fed(*pieces, max_payload=MAX_PAYLOAD):
    parser = Parser(max_payload)
    return [operation for piece in pieces for operation in flat(parser.feed(piece))]


# What a server sends, and the operation of each.
MEANT = [
    (
        b'INFO {"server_id":"A","max_payload":1048576}\r\n',
        Info({"server_id": "A", "max_payload": 2**20}),
    ),
    (b"+OK\r\n", Ok()),
    (b"PING\r\n", Ping()),
    (b"PONG\r\n", Pong()),
    (b"-ERR 'Stale Connection'\r\n", ErrorLine("Stale Connection")),
    (message(1, b"a.b", b"hello"), (1, b"a.b", b"", b"", b"hello")),
    (message(1, b"a.b", b"", b"r"), (1, b"a.b", b"r", b"", b"")),
    (message(22, b"a", b"\r\n", b"r.s", BLOCK), (22, b"a", b"r.s", BLOCK, b"\r\n")),
    (message(22, b"a", b"", b"", BLOCK), (22, b"a", b"", BLOCK, b"")),
    (message(3, b"PING", b"MSG a 1 3\r\nabc\r\n"), (3, b"PING", b"", b"", b"MSG a 1 3\r\nabc\r\n")),
]
SCRIPT = b"".join(text for text, _ in MEANT)
OPERATIONS = [operation for _, operation in MEANT]


# --- valid bytes ------------------------------------------------------------------------------------


def test_messages_of_one_subscription_come_together():
    """Consecutive messages with the same sid in one read are one operation."""
    operations = Parser().feed(
        message(1, b"a", b"1")
        + message(1, b"b", b"2\r\n")
        + message(2, b"a", b"3")
        + message(1, b"a", b"4")
        + b"PING\r\n"
        + message(1, b"a", b"5")
    )
    runs = [(run.sid, len(run.deliveries)) for run in operations if isinstance(run, Messages)]
    assert runs == [(1, 2), (2, 1), (1, 1), (1, 1)]


@pytest.mark.parametrize("sid", [b"1", b"01", b"0", b"18446744073709551615"])
def test_a_sid_is_a_number(sid):
    """The sid is the number that this client gave to the subscription."""
    assert fed(b"MSG a " + sid + b" 1\r\nx\r\n") == [(int(sid), b"a", b"", b"", b"x")]


@pytest.mark.parametrize(
    ("line", "text"),
    [
        (b"-ERR 'Authorization Violation'", "Authorization Violation"),
        (b"-ERR Authorization Violation", "Authorization Violation"),
        (b"-ERR", ""),
        (b"-ERR ''", ""),
        (
            b"""-ERR 'Permissions Violation for Publish to "it's"'""",
            """Permissions Violation for Publish to "it's\"""",
        ),
        (b"-ERR '\xff'", "\ufffd"),
    ],
)
def test_the_text_of_an_error_is_without_its_quotes(line, text):
    """The text of -ERR is decoded without its quotes, also for invalid bytes."""
    assert fed(line + b"\r\n") == [ErrorLine(text)]


def test_bytes_of_messages_are_counted():
    """The statistics count headers and payloads, regardless of how they are split."""
    for pieces in ([SCRIPT], [SCRIPT[i : i + 1] for i in range(len(SCRIPT))]):
        parser = Parser()
        for piece in pieces:
            parser.feed(piece)
        sizes = [len(item[3]) + len(item[4]) for item in OPERATIONS if type(item) is tuple]
        assert parser.message_bytes == sum(sizes)


# --- however it is cut ------------------------------------------------------------------------------


def test_byte_by_byte():
    """Single bytes give the same operations; each operation is complete with its last byte."""
    parser = Parser()
    ends = [sum(len(text) for text, _ in MEANT[: n + 1]) for n in range(len(MEANT))]
    for position in range(len(SCRIPT)):
        operations = list(flat(parser.feed(SCRIPT[position : position + 1])))
        expected = [OPERATIONS[ends.index(position + 1)]] if position + 1 in ends else []
        assert operations == expected, position
    assert parser.feed(b"") == []


WORDS = st.text("abMSGPIN.$_ä", min_size=1, max_size=6).map(str.encode)
DATA = st.binary(max_size=20) | st.lists(
    st.sampled_from([b"\r", b"\n", b"a", b"PING\r\n", b"MSG a 1 1"]), max_size=6
).map(b"".join)
SPOKEN = st.one_of(
    st.sampled_from(MEANT[:5]),
    st.builds(
        lambda sid, subject, payload, reply, header: (
            message(sid, subject, payload, reply, header),
            (sid, subject, reply, header, payload),
        ),
        st.integers(0, 3),
        WORDS,
        DATA,
        WORDS | st.just(b""),
        DATA | st.just(BLOCK),
    ),
)


@given(st.lists(SPOKEN, max_size=8), st.data())
def test_any_operations_cut_anywhere(spoken, data):
    """Any valid operations, split anywhere, are parsed correctly."""
    script = b"".join(text for text, _ in spoken)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(script)), max_size=8)))
    ends = zip([0, *cuts], [*cuts, len(script)], strict=True)
    assert fed(*(script[start:end] for start, end in ends)) == [meant for _, meant in spoken]


@pytest.mark.parametrize("filling", [b"x", b"\r\n" + b"x" * 30])
@pytest.mark.parametrize("header", [b"", BLOCK])
def test_a_large_payload_in_many_pieces_is_joined_once(filling, header):
    """The pieces of a payload are joined once, so that the cost is linear."""
    payload = filling * (8 * 2**20 // len(filling))
    text = message(1, b"a", payload, header=header)
    pieces = [text[start : start + 65536] for start in range(0, len(text), 65536)]
    parser = Parser()
    for count, piece in enumerate(pieces[:-1], 1):
        assert parser.feed(piece) == []
        assert all(kept is came for kept, came in zip(parser._rest[1:], pieces[1:], strict=False))
        assert len(parser._rest) == count
    assert list(flat(parser.feed(pieces[-1]))) == [(1, b"a", b"", header, payload)]
    assert parser._rest == []


def test_complete_operations_are_not_kept():
    """Only an incomplete operation is kept for the next read."""
    parser = Parser()
    parser.feed(SCRIPT * 100 + b"MSG a 1 5\r\nhe")
    assert b"".join(parser._rest) == b"MSG a 1 5\r\nhe"
    assert list(flat(parser.feed(b"llo\r\n" + SCRIPT))) == [
        (1, b"a", b"", b"", b"hello"),
        *OPERATIONS,
    ]


# --- invalid bytes ----------------------------------------------------------------------------------

# Control lines that nats-server never sends. Every one is refused wherever it is cut.
GARBLED = [
    b"",
    b" ",
    b"HELLO",
    b"PING ",
    b"ping",
    b"msg a 1 0",
    b" PING",
    b"\tMSG a 1 0",
    b"MSG",
    b"MSG a 1",
    b"MSG a 1 r x 0",
    b"MSG a  1 0",
    b"MSG a x 0",
    b"MSG a 1_0 0",
    b"MSG a 1 x",
    b"MSG a 1 +0",
    b"MSG a 1 \xb2",
    b"MSG a 1 " + b"9" * 5000,
    b"MSG\ta 1 0",
    b"HMSG",
    b"HMSG a 1 0",
    b"HMSG a 1 r x 0 0",
    b"HMSG a 1 5 4",
    b"HMSG a +1 4 4",
    b"HMSG a 1 1 " + b"9" * 5000,
    b"INFO",
    b"INFO []",
    b"INFO \xff",
]


@pytest.mark.parametrize("line", GARBLED)
@pytest.mark.parametrize("prefix", [b"", b"PING\r\n", message(1, b"a", b"hello")])
@pytest.mark.parametrize("payload", [b"", b"abcd"])
def test_other_bytes_than_those_of_the_protocol_are_refused(line, prefix, payload):
    """Numbers must be digits, commands in upper case with single spaces, and nothing may be missing."""
    text = prefix + line + b"\r\n" + payload + b"\r\n"
    parser = Parser()
    with pytest.raises(ProtocolError) as caught:
        parser.feed(text)
    assert line.startswith(caught.value.excerpt)
    assert len(caught.value.excerpt) <= 64
    for cut in range(len(text)):
        with pytest.raises(ProtocolError):
            fed(text[:cut], text[cut:])


@pytest.mark.parametrize(
    "text",
    [
        b"MSG a 1 5\r\nhell\r\n",
        b"MSG a 1 3\r\nhell\r\n",
        b"MSG a 1 0\r\nx\r\n",
        b"MSG a 1 3\r\nabcPING\r\n",
        b"MSG a 1 3\r\nabc\rPING\r\n",
        b"MSG a 1 3\r\nabc\nPING\r\n",
        b"MSG a 1 4\r\na\r\nbPING\r\n",
        b"MSG a 1 4\r\na\r\n\r\nPING\r\n",
        b"HMSG a 1 2 5\r\nhell\r\nPING\r\n",
        b"HMSG a 1 2 3\r\nhello\r\n",
    ],
)
def test_a_payload_of_another_size_than_announced(text):
    """A payload that is not followed by a line end is a protocol error."""
    line = text[: text.index(b"\r\n")]
    text += b"PING\r\n"
    for cut in range(len(text)):
        with pytest.raises(ProtocolError) as caught:
            fed(text[:cut], text[cut:])
        assert caught.value.excerpt == line


@pytest.mark.parametrize("header", [b"", BLOCK])
def test_the_limit_of_a_payload_is_exact(header):
    """Headers and payload may have the maximum size, and not one byte more."""
    limit = len(BLOCK) + 10
    fits = message(1, b"a", b"x" * (limit - len(header)), header=header)
    above = message(1, b"a", b"x" * (limit - len(header) + 1), header=header)
    for cut in range(len(fits)):
        assert len(fed(fits[:cut], fits[cut:], max_payload=limit)) == 1
        with pytest.raises(ProtocolError, match="size"):
            fed(above[:cut], above[cut:], max_payload=limit)


@pytest.mark.parametrize("size", [MAX_PAYLOAD + 1, 2**63, 10**100])
def test_a_size_above_the_limit_is_refused_before_the_payload_comes(size):
    """A size above nats-server's limit of 64 MiB is rejected before the payload arrives."""
    assert MAX_PAYLOAD > 64 * 2**20
    for line in (b"MSG a 1 %d\r\n", b"HMSG a 1 5 %d\r\n"):
        with pytest.raises(ProtocolError, match="size"):
            Parser().feed(line % size)
    assert Parser().feed(b"MSG a 1 %d\r\n" % MAX_PAYLOAD) == []


@pytest.mark.parametrize(
    ("start", "limit"),
    [
        (b"MSG ", MAX_CONTROL_LINE),
        (b"-ERR '", MAX_CONTROL_LINE),
        (b'INFO {"a":"', MAX_INFO_LINE),
    ],
)
def test_a_control_line_without_an_end_is_given_up(start, limit):
    """Control lines are limited to 64 KiB, INFO to 1 MiB; more is not kept in memory."""
    line = start + b"x" * (limit - len(start))
    assert fed(line) == []
    assert fed(line[:100], line[100:]) == []
    for pieces in ([line + b"x"], [line, b"x"], [line[:100], line[100:] + b"x"]):
        with pytest.raises(ProtocolError, match="too long") as caught:
            fed(*pieces)
        assert caught.value.excerpt == line[:64]


def test_an_invalid_operation_is_refused_at_its_first_wrong_byte():
    """Another protocol is detected at its first byte."""
    for first in range(256):
        byte = bytes([first])
        if byte in b"MHPI+-":
            assert fed(byte) == []
        else:
            with pytest.raises(ProtocolError) as caught:
                fed(b"PING\r\n" + byte)
            assert caught.value.excerpt == byte


LOOKS_RIGHT = st.lists(
    st.sampled_from(
        [text for text, _ in MEANT]
        + [
            b"MSG ",
            b"HMSG ",
            b"a ",
            b"1 ",
            b"3",
            b"\r\n",
            b"\r",
            b"\n",
            b"abc",
            b"INFO {}",
            b"-ERR",
        ]
        + [b"+OK", b"PING", b" ", b"-1", b"99999999999999999999"]
    ),
    max_size=12,
).map(b"".join)


@given(st.one_of(st.binary(max_size=60), LOOKS_RIGHT), st.integers(0, 100), st.booleans())
def test_any_bytes_are_operations_or_refused(data, cut, valid_first):
    """Any bytes, also after valid ones, raise nothing but `ProtocolError`."""
    whole = SCRIPT + data if valid_first else data
    pieces = (data[:cut], data[cut:])
    parser = Parser()
    if valid_first:
        assert list(flat(parser.feed(SCRIPT))) == OPERATIONS
    operations = []
    refused = None
    try:
        for piece in pieces:
            operations += flat(parser.feed(piece))
    except ProtocolError as error:
        refused = error
    if refused is not None:
        assert refused.excerpt in whole
    else:
        assert operations == fed(data), "what was understood depends on the cut"


@pytest.mark.skipif(not speedups.IN_USE, reason="the C extension is not in use")
@given(
    st.lists(st.one_of(st.binary(max_size=30), LOOKS_RIGHT, SPOKEN.map(operator.itemgetter(0)))),
    st.integers(0, 60),
)
def test_the_extension_parses_as_python_does(pieces, max_payload):
    """The same operations, counts, remains and errors, for any bytes cut anywhere."""

    def outcome():
        parser = Parser(max_payload)
        outcomes = []
        for piece in pieces:
            try:
                operations = list(flat(parser.feed(piece)))
            except ProtocolError as error:
                return [*outcomes, str(error)]
            outcomes.append((operations, parser.message_bytes, b"".join(parser._rest)))
        return outcomes

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(parser_module, "read_messages", speedups.read_messages)
        in_c = outcome()
        patch.setattr(parser_module, "read_messages", None)
        assert outcome() == in_c


# --- a single reply ------------------------------------------------------------------------------

WORD = st.text("abc.", min_size=1, max_size=3).map(str.encode)


@given(
    WORD,
    st.integers(1, 12),
    st.one_of(st.just(b""), WORD),
    st.one_of(st.just(b""), st.just(BLOCK)),
    st.one_of(st.binary(max_size=12), st.just(b"a\r\nMSG a 1 1\r\nx\r\n")),
    st.data(),
)
def test_one_message_alone(subject, sid, reply, header, payload, data):
    """`only_message` returns what the parser returns, and nothing for other bytes."""
    sent = message(sid, subject, payload, reply, header)
    (messages,) = Parser().feed(sent)
    assert only_message(sent, subject, sid) == messages.deliveries[0]
    assert only_message(sent, subject + b"x", sid) is None
    assert only_message(sent, subject, sid + 1) is None
    assert only_message(sent[: data.draw(st.integers(0, len(sent) - 1))], subject, sid) is None
    assert only_message(sent + data.draw(st.binary(min_size=1, max_size=9)), subject, sid) is None


PARTS = [b"MSG", b"HMSG", b"PUB", b"a", b"1", b"02", b"+1", b"12", b"x", b" ", b"\r\n"]


@given(st.lists(st.sampled_from(PARTS)))
@example([b"HMSG a 1 9 2\r\nxx\r\n"])
@example([b"MSG a 1 r r 2\r\nxx\r\n"])
def test_one_message_of_other_bytes(pieces):
    """For bytes of any kind, `only_message` returns the only message that the parser finds, or nothing."""
    found = only_message(b"".join(pieces), b"a", 1)
    if found is not None:
        assert Parser().feed(b"".join(pieces)) == [Messages(1, [found])]
