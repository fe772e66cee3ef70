"""Client commands: exact bytes, one command each, and no injection."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jetstream_sync.client.encoder import (
    publish_command,
    publish_with_headers_command,
)
from jetstream_sync.client.subscription_table import subscribe_command, unsubscribe_command
from jetstream_sync.client.writer import PING, PONG
from jetstream_sync.errors import BadSubjectError, InvalidHeaderError
from jetstream_sync.headers import Headers, encode_headers
from jetstream_sync.subjects import check_publish_subject, check_queue, check_subject


def read(data):
    """Read commands like a server: arguments up to a line end, then a payload of the given size."""
    found = []
    while data:
        line, end, data = data.partition(b"\r\n")
        assert end, "a command without an end"
        # nats-server also takes a bare LF or CR as an end, and a tab as a space.
        assert not re.search(rb"[\r\n\t]", line)
        verb, *args = line.split(b" ")
        payload = None
        if verb in (b"PUB", b"HPUB"):
            size = int(args[-1])
            payload, end, data = data[:size], data[size : size + 2], data[size + 2 :]
            assert (len(payload), end) == (size, b"\r\n")
        found.append((verb, args, payload))
    return found


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        (PING, b"PING\r\n"),
        (PONG, b"PONG\r\n"),
        (publish_command(b"a.b", b"", b""), b"PUB a.b 0\r\n\r\n"),
        (publish_command(b"a.b", b"r", b"x\r\n"), b"PUB a.b r 3\r\nx\r\n\r\n"),
        (subscribe_command("a.*", "", 1), b"SUB a.* 1\r\n"),
        (subscribe_command("a.>", "q", 22), b"SUB a.> q 22\r\n"),
        (subscribe_command("ä", "ö", 1), "SUB ä ö 1\r\n".encode()),
        (unsubscribe_command(1), b"UNSUB 1\r\n"),
        (unsubscribe_command(1, 5), b"UNSUB 1 5\r\n"),
        # The examples of ADR-4.
        (
            publish_with_headers_command(
                b"SUBJECT", b"REPLY", b"NATS/1.0\r\nHeader: X\r\n\r\n", b"PAYLOAD"
            ),
            b"HPUB SUBJECT REPLY 23 30\r\nNATS/1.0\r\nHeader: X\r\n\r\nPAYLOAD\r\n",
        ),
        (
            publish_with_headers_command(b"S", b"", b"NATS/1.0\r\nHeader: X\r\n\r\n", b""),
            b"HPUB S 23 23\r\nNATS/1.0\r\nHeader: X\r\n\r\n\r\n",
        ),
    ],
)
def test_exact_bytes(command, expected):
    """Each command has the format of the client protocol."""
    assert command == expected


# Arguments that may pass, and arguments that a server could take for more than one.
CUNNING = st.lists(
    st.sampled_from(["a", ".", "*", ">", " ", "\t", "\r", "\n", "\r\nPUB x 0\r\n\r\n", " 5", "\0"])
    | st.characters(),
    max_size=5,
).map("".join)
WORDS = st.text("abä$._-*>", max_size=6) | CUNNING


def checked(check, text):
    """Return the text if it passes the check, and `None` if it is rejected."""
    try:
        return check(text)
    except BadSubjectError:
        return None


@given(WORDS, WORDS, st.integers(1, 2**40))
def test_a_subscription_is_one_command(subject, queue, sid):
    """Any accepted arguments are read back unchanged as one command."""
    if checked(check_subject, subject) is None or checked(check_queue, queue) is None:
        return
    words = [subject.encode(), *([queue.encode()] if queue else []), str(sid).encode()]
    command = subscribe_command(subject, queue, sid)
    assert read(command + PING) == [(b"SUB", words, None), (b"PING", [], None)]


@given(WORDS, WORDS, st.binary(max_size=20), CUNNING, CUNNING)
def test_a_publish_is_one_command(subject, reply, payload, name, value):
    """Any accepted arguments, payload and headers are read back unchanged as one command."""
    if checked(check_publish_subject, subject) is None:
        return
    if reply and checked(check_publish_subject, reply) is None:
        return
    words = [subject.encode(), *([reply.encode()] if reply else [])]
    command = publish_command(*map(str.encode, (subject, reply)), payload)
    expected = (b"PUB", [*words, b"%d" % len(payload)], payload)
    assert read(command + PING) == [expected, (b"PING", [], None)]

    try:
        header = encode_headers(Headers({name: value, "A": "1"}))
    except InvalidHeaderError:
        header = encode_headers({"A": "1"})
    command = publish_with_headers_command(*map(str.encode, (subject, reply)), header, payload)
    whole = header + payload
    expected = (b"HPUB", [*words, b"%d" % len(header), b"%d" % len(whole)], whole)
    assert read(command + PING) == [expected, (b"PING", [], None)]
