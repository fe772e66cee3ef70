"""The encoder gives the same commands and errors in C and in Python."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NoReturn

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from jetstream_sync import speedups
from jetstream_sync.client.encoder import FastEncoder, MessageEncoder
from jetstream_sync.errors import BadSubjectError, Error, MaxPayloadError
from jetstream_sync.headers import Headers

needs_extension = pytest.mark.skipif(
    not speedups.IN_USE, reason="the C extension is not in use: JETSTREAM_SYNC_SPEEDUPS=0"
)
MAX_PAYLOAD = 3000


class Text(str):
    """A str of another class."""

    __slots__ = ()


class Data(bytes):
    """Bytes of another class."""

    __slots__ = ()


class Table(dict):
    """A dict of another class, with other items than it has."""

    def items(self):
        return [("From-Items", "1")]


def outcome(call: Callable[..., Any], *arguments: object) -> object:
    """Return the result of a call, or its error."""
    try:
        return call(*arguments)
    except (Error, TypeError, AttributeError) as error:
        return type(error), str(error)


def encoded(kind: type[MessageEncoder], method: str, *arguments: object) -> object:
    """Return the outcome of a method of an encoder."""
    encoder = kind()
    encoder.max_payload = MAX_PAYLOAD
    return outcome(getattr(encoder, method), *arguments)


# --- random messages --------------------------------------------------------------------------------

PIECES = [*"a.*> \t\0\x7fä日\ud800", "B9", "..", "$_-/", "\r\n"]
SUBJECTS = (
    st.lists(st.sampled_from(PIECES), max_size=6).map("".join)
    | st.integers(1000, 5000).map(lambda length: "s" * length)
    | st.sampled_from([None, 7, b"bytes", ["unhashable"], Text("other.class")])
    | st.from_regex(r"[a-z]{1,5}(\.[a-z0-9]{1,5}){0,3}", fullmatch=True)
)
PAYLOADS = (
    st.binary(max_size=40)
    | st.integers(MAX_PAYLOAD - 60, MAX_PAYLOAD + 5).map(bytes)
    | st.sampled_from(
        [bytearray(b"array"), memoryview(b"view"), Data(b"other class"), "text", None]
    )
)
NAMES = st.sampled_from(
    ["A", "Nats-Msg-Id", "a", "", "with space", "a:b", "ä", "n" * 400, "\x7f", Text("T"), 7]
)
VALUES = (
    st.text("a b:\t\x7f\x1f", max_size=8)
    | st.sampled_from(
        ["", "ä日", "\r", "a\nb", "\0", "\udc80", "\ud800", "v" * 700, Text("t"), 7, None]
    )
    | st.lists(st.sampled_from(["one", "two", "\n"]), max_size=3)
)
HEADERS: st.SearchStrategy[object] = (
    st.none()
    | st.dictionaries(NAMES, VALUES, max_size=4)
    | st.dictionaries(st.sampled_from("ab"), st.sampled_from(["1", "x y"]), max_size=2)
    | st.dictionaries(st.sampled_from("ab"), st.sampled_from("12"), max_size=2).map(Headers)
    | st.sampled_from([Table(), Table(a="1"), [("a", "b")], "text", 0, 7])
)


@needs_extension
@given(SUBJECTS, PAYLOADS, SUBJECTS | st.just(""), HEADERS)
@example("s" * 1024, b"", "r" * 1024, {"n" * 500: "v" * 500})
@example("s" * 1025, b"", "r" * 1024, {"n" * 500: "v" * 600})
def test_a_message_is_encoded_the_same_in_c_and_in_python(subject, payload, reply, headers):
    """Both give the same command and size, or the same error."""
    arguments = ("encode_message", subject, payload, reply, headers)
    assert encoded(FastEncoder, *arguments) == encoded(MessageEncoder, *arguments)


@needs_extension
@given(st.binary(max_size=2100), PAYLOADS, st.binary(max_size=2100), HEADERS)
def test_a_command_is_encoded_the_same_in_c_and_in_python(subject, payload, reply, headers):
    """Both give the same command and size, or the same error."""
    arguments = ("encode_command", subject, payload, reply, headers)
    assert encoded(FastEncoder, *arguments) == encoded(MessageEncoder, *arguments)


# --- the extension itself ---------------------------------------------------------------------------

WORDS = "x" * 1024
ORDINARY: list[tuple[tuple[str, bytes, str, Mapping[str, str] | None], bytes, int]] = [
    (("a.b", b"", "", None), b"PUB a.b 0\r\n\r\n", 0),
    (("a", b"xyz", "r.1", {}), b"PUB a r.1 3\r\nxyz\r\n", 3),
    (("a", b"x", "", {"N": "v"}), b"HPUB a 18 19\r\nNATS/1.0\r\nN: v\r\n\r\nx\r\n", 19),
    (
        ("a", b"", "r", {"N": "", "n": "2"}),
        b"HPUB a r 23 23\r\nNATS/1.0\r\nN: \r\nn: 2\r\n\r\n\r\n",
        23,
    ),
    (
        (WORDS, bytes(100), WORDS, None),
        b"PUB %b %b 100\r\n%b\r\n" % (*[WORDS.encode()] * 2, bytes(100)),
        100,
    ),
]


class NotInPython(MessageEncoder):
    """An encoder whose methods in Python fail."""

    def _encode_message(self, *_: object) -> NoReturn:
        raise AssertionError("encoded in Python")

    _encode_command = _encode_message


@needs_extension
@pytest.mark.parametrize(("arguments", "command", "size"), ORDINARY)
def test_the_extension_encodes_ordinary_messages(arguments, command, size):
    """It encodes these itself, and exactly as the protocol says."""

    class Encoder(speedups.Encoder, NotInPython):  # type: ignore[misc, name-defined]  # the base is a variable
        pass

    encoder = Encoder()
    encoder.max_payload = 100
    subject, payload, reply, headers = arguments
    assert encoder.encode_message(*arguments) == (command, size)
    words = (subject.encode(), payload, reply.encode(), headers)
    assert encoder.encode_command(*words) == (command, size)
    if not headers:
        assert encoder.encode_command(*words[:3]) == (command, size)


@needs_extension
@pytest.mark.parametrize("method", ["encode_message", "encode_command"])
def test_the_extension_refuses_other_arguments(method):
    """A wrong number of arguments, and a limit or flag of another type, are errors."""
    encoder: Any = FastEncoder()
    encode = getattr(encoder, method)
    for arguments in [(), ("a",), ("a", b"", "", None, 7)]:
        with pytest.raises(TypeError):
            encode(*arguments)
    for field, value in [("max_payload", "100"), ("accepts_headers", 1)]:
        with pytest.raises(TypeError):
            setattr(encoder, field, value)
    bare = speedups.Encoder()  # type: ignore[misc]  # the extension is in use
    with pytest.raises(AttributeError):
        getattr(bare, method)("", b"")


# --- with and without the extension -----------------------------------------------------------------


KINDS = pytest.mark.parametrize("kind", [MessageEncoder, FastEncoder], ids=["python", "in use"])


@KINDS
def test_the_limit_of_the_server_applies_to_headers_and_payload(kind):
    """A new limit applies to the next message."""
    encoder = kind()
    encoder.max_payload = 100
    assert encoder.encode_message("a", bytes(82), "", {"N": "v"})[1] == 100
    with pytest.raises(MaxPayloadError) as caught:
        encoder.encode_message("a", bytes(83), "", {"N": "v"})
    assert (caught.value.size, caught.value.max_payload) == (101, 100)
    encoder.max_payload = 101
    assert encoder.encode_command(b"a", bytes(83), b"", {"N": "v"})[1] == 101


@KINDS
def test_bytes_are_not_a_subject(kind):
    """Only the method for encoded subjects takes bytes."""
    encoder = kind()
    subjects: list[Any] = [b"a", None, ["a"]]
    for subject in subjects:
        with pytest.raises(BadSubjectError):
            encoder.encode_message(subject, b"")
    with pytest.raises(BadSubjectError):
        encoder.encode_message("a", b"", b"reply")  # type: ignore[arg-type]  # on purpose
