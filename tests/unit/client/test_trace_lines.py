"""Protocol bytes become readable lines without secrets."""

from __future__ import annotations

import json
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jetstream_sync.client.tracing import RECEIVED, SENT, LineCutter


def lines_of(data: bytes, mark: str = SENT) -> list[str]:
    return LineCutter(mark).feed(data)


# --- readable lines -----------------------------------------------------------------------------


def test_commands_without_a_payload_are_shown_as_they_are():
    """A line is the mark and the command, without its line end."""
    assert lines_of(b"PING\r\nSUB a.* q 3\r\nUNSUB 3 10\r\n") == [
        "> PING",
        "> SUB a.* q 3",
        "> UNSUB 3 10",
    ]
    assert lines_of(b"PONG\r\n+OK\r\n-ERR 'Slow Consumer'\r\n", RECEIVED) == [
        "< PONG",
        "< +OK",
        "< -ERR 'Slow Consumer'",
    ]


def test_a_message_is_one_line_with_its_payload():
    """Headers and payload follow the command."""
    assert lines_of(b"PUB a 5\r\nhello\r\nPUB a b 0\r\n\r\n") == [
        "> PUB a 5 | hello",
        "> PUB a b 0",
    ]
    block = b"NATS/1.0\r\nA: 1\r\nB: 2\r\n\r\n"
    assert lines_of(b"HPUB a %d %d\r\n%bhello\r\n" % (len(block), len(block) + 5, block)) == [
        f"> HPUB a {len(block)} {len(block) + 5} | NATS/1.0, A: 1, B: 2 | hello"
    ]
    status = b"NATS/1.0 404 No Messages\r\n\r\n"
    assert lines_of(b"HMSG x 1 28 28\r\n%b\r\n" % status, RECEIVED) == [
        "< HMSG x 1 28 28 | NATS/1.0 404 No Messages"
    ]


def test_a_payload_is_not_taken_for_lines():
    """Commands inside a payload are part of the payload."""
    payload = b'PING\r\nCONNECT {"pass":"x"}\r\nMSG a 1 100\r\n'
    lines = lines_of(b"MSG a 1 %d\r\n%b\r\nPING\r\n" % (len(payload), payload), RECEIVED)
    assert len(lines) == 2
    assert lines[0].startswith(f"< MSG a 1 {len(payload)} | PING\\r\\n")
    assert lines[1] == "< PING"


def test_json_is_shown_whole_and_stays_json():
    """JSON up to a limit is shown in one line and can be parsed again."""
    value = {"name": "ORDERS", "text": "\u00a0\u202e\U000e0001 é", "list": list(range(2000))}
    for payload in (json.dumps(value), json.dumps(value, indent=2, ensure_ascii=False)):
        data = payload.encode()
        assert len(data) > 10_000
        (line,) = lines_of(b"MSG a 1 %d\r\n%b\r\n" % (len(data), data))
        head, _, shown = line.partition(" | ")
        assert head == f"> MSG a 1 {len(data)}"
        assert json.loads(shown) == value
        assert line.isprintable()


def test_long_payloads_are_shown_with_their_start():
    """A payload that is not JSON or too long ends with dots; the command has its size."""
    (line,) = lines_of(b"PUB a 1000000\r\n" + b"abcdefghij" * 100_000 + b"\r\n")
    assert line.startswith("> PUB a 1000000 | abcdefghijabc")
    assert line.endswith("...")
    assert len(line) < 500
    data = json.dumps(list(range(100_000))).encode()
    (line,) = lines_of(b"PUB a %d\r\n%b\r\n" % (len(data), data))
    assert line.endswith("...")
    assert len(line) < 500


@pytest.mark.parametrize(
    ("payload", "shown"),
    [
        (b"\x00\xff", "\\x00\\xff"),
        (b"\x1b[2Jclear", "\\x1b[2Jclear"),
        ("grün €".encode(), "grün €"),
        (b"{\xff}", "{\\xff}"),
        (b"a\nb\tc", "a\\nb\\tc"),
        ("\u202eabc".encode(), "\\u202eabc"),
    ],
)
def test_unprintable_bytes_are_escaped(payload, shown):
    """Line ends and terminal control characters are escaped."""
    assert lines_of(b"PUB a %d\r\n%b\r\n" % (len(payload), payload)) == [
        f"> PUB a {len(payload)} | {shown}"
    ]


# --- secrets ------------------------------------------------------------------------------------


SECRETS = {
    "pass": "s3cret-pass",
    "auth_token": "s3cret-token",
    "jwt": "s3cret-jwt",
    "sig": "s3cret-sig",
    "new_kind_of_key": "s3cret-new",
}


def test_secrets_of_connect_are_masked():
    """The user and the public key are shown; other fields are masked unless they are known to be harmless."""
    fields = {"user": "alice", "nkey": "UABC", "name": "orders", "verbose": False, **SECRETS}
    (line,) = lines_of(b"CONNECT %b\r\n" % json.dumps(fields).encode())
    assert "s3cret" not in line
    verb, _, shown = line.partition(" {")
    assert verb == "> CONNECT"
    assert json.loads("{" + shown) == {**fields, **dict.fromkeys(SECRETS, "***")}


@pytest.mark.parametrize(
    "data",
    [
        b'CONNECT {"pass":"s3cret"\r\n',
        b'CONNECT ["s3cret"]\r\n',
        b'CONNECT "s3cret"\r\n',
        b'connect\t{"pass":"s3cret"}\r\n',
        b'  CONNECT{"pass":"s3cret"}\r\n',
        b'CONNECT {"jwt":"' + b"s3cret" * 100_000 + b'"}\r\n',
        b'CONNECT {"user":{"pass":"\xff s3cret"}}\r\n',
    ],
)
def test_an_invalid_connect_is_masked(data):
    """An invalid CONNECT is masked as a whole."""
    (line,) = lines_of(data)
    assert "s3cret" not in line
    assert line.startswith("> CONNECT ")


def test_logins_in_urls_are_masked():
    """URLs in INFO and errors are shown without their login."""
    lines = lines_of(
        b'INFO {"nonce":"abc","connect_urls":["nats://bob:s3cret@h:1","tls://s3cret@h:2","h:3"]}\r\n'
        b"-ERR 'cannot route to nats://bob:s3cret@host:4222'\r\n",
        RECEIVED,
    )
    assert "s3cret" not in "".join(lines)
    assert '"nats://***@h:1","tls://***@h:2","h:3"' in lines[0]
    assert '"nonce":"abc"' in lines[0]


# --- any bytes ----------------------------------------------------------------------------------

pieces = st.lists(
    st.one_of(
        st.just(b"PING\r\n"),
        st.just(b'CONNECT {"pass":"x"}\r\n'),
        st.binary(max_size=30).map(lambda data: b"PUB a %d\r\n%b\r\n" % (len(data), data)),
        st.binary(max_size=30).map(
            lambda data: b"HMSG a 1 14 %d\r\nNATS/1.0 503\r\n%b\r\n" % (len(data) + 14, data)
        ),
        st.binary(max_size=30),
        st.just(b"MSG a 1 99999999999\r\n"),
        st.just(b"HPUB a 9 3\r\n"),
        st.just(b"PUB\r\nPUB 1\r\nPUB a -1\r\nPUB a \xb2\r\n"),
    ),
    max_size=8,
)


@given(pieces, st.lists(st.integers(1, 20), max_size=40))
def test_any_split_of_the_bytes_gives_the_same_lines(parts, sizes):
    """Any split of the bytes, also of invalid ones, gives the same lines and raises nothing."""
    data = b"".join(parts)
    expected = lines_of(data)
    cutter = LineCutter(SENT)
    lines = []
    at = 0
    for size in [*sizes, len(data)]:
        lines += cutter.feed(data[at : at + size])
        at += size
    assert lines == expected
    assert all(line.startswith("> ") and line.isprintable() for line in lines)


@pytest.mark.parametrize(
    "data", [b"x" * 65536, b"MSG a 1 60000000\r\n" + b"x" * 65536, b"INFO " + b"x" * 65536]
)
def test_the_memory_for_an_endless_line_is_limited(data):
    """The memory for an endless line or payload is limited."""
    cutter = LineCutter(RECEIVED)
    cutter.feed(data)
    for _ in range(200):
        assert cutter.feed(b"y" * 65536) == []
    kept = sum(sys.getsizeof(getattr(cutter, name)) for name in cutter.__slots__)
    assert kept < 200_000


def test_a_line_that_is_too_long_is_shown_with_its_start():
    """The line after a too long one is complete again."""
    lines = lines_of(b"SUB " + b"a" * 200_000 + b" 1\r\nPING\r\n")
    assert lines[0].startswith("> SUB aaa")
    assert lines[0].endswith("...")
    assert len(lines[0]) < 70_000
    assert lines[1] == "> PING"
