"""Message headers: the ``NATS/1.0`` block, its status line, and the header names of JetStream."""

# ADR-4 defines the block: a version line with an optional status, one ``Name: value`` per line, and an
# empty line at the end. Names keep their case and may repeat; lookup ignores case.

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, MutableMapping, Sequence
from enum import IntEnum
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

from . import errors
from .exact import exact

if TYPE_CHECKING:
    from typing_extensions import Self

# --- header names of JetStream ------------------------------------------------------------------

#: Message id for deduplication within the stream's duplicate window.
MSG_ID: Final = "Nats-Msg-Id"
#: The stream that the publisher expects; any other stream rejects the message.
EXPECTED_STREAM: Final = "Nats-Expected-Stream"
#: The expected last sequence of the stream.
EXPECTED_LAST_SEQ: Final = "Nats-Expected-Last-Sequence"
#: The expected last sequence of the subject.
EXPECTED_LAST_SUBJECT_SEQ: Final = "Nats-Expected-Last-Subject-Sequence"
#: The subject for the expected last sequence, if not the message's own (server 2.11).
EXPECTED_LAST_SUBJECT_SEQ_SUBJECT: Final = "Nats-Expected-Last-Subject-Sequence-Subject"
#: The expected message id of the last message in the stream.
EXPECTED_LAST_MSG_ID: Final = "Nats-Expected-Last-Msg-Id"
#: Time to live of the message (ADR-43, server 2.11).
MSG_TTL: Final = "Nats-TTL"
#: Replaces the earlier messages of the subject (``sub``) or of the stream (``all``).
ROLLUP: Final = "Nats-Rollup"
#: When the server publishes the message of a schedule (ADR-51, server 2.12).
SCHEDULE: Final = "Nats-Schedule"
#: The subject of the messages of a schedule.
SCHEDULE_TARGET: Final = "Nats-Schedule-Target"
#: The time zone of a cron expression.
SCHEDULE_TIME_ZONE: Final = "Nats-Schedule-Time-Zone"
#: The subject whose last message is the payload of the messages of a schedule (server 2.14).
SCHEDULE_SOURCE: Final = "Nats-Schedule-Source"
#: The time to live of the messages of a schedule.
SCHEDULE_TTL: Final = "Nats-Schedule-TTL"
#: Whether a message of a schedule replaces the earlier ones of its subject (``sub``; server 2.14).
SCHEDULE_ROLLUP: Final = "Nats-Schedule-Rollup"
#: The subject of the schedule that a message belongs to, and what happens to the schedule then.
SCHEDULER: Final = "Nats-Scheduler"
SCHEDULE_NEXT: Final = "Nats-Schedule-Next"
#: The increment of a counter (ADR-49, server 2.12), and the totals of its sources.
INCREMENT: Final = "Nats-Incr"
COUNTER_SOURCES: Final = "Nats-Counter-Sources"
#: In a direct get response: the stream (ADR-31).
STREAM: Final = "Nats-Stream"
#: In a direct get response: the stream sequence (ADR-31).
SEQUENCE: Final = "Nats-Sequence"
#: In a direct get response: the time when the message was stored (ADR-31).
TIMESTAMP: Final = "Nats-Time-Stamp"
#: In a direct get response: the subject (ADR-31).
SUBJECT: Final = "Nats-Subject"
#: Number of messages that an ended pull request did not deliver (ADR-37).
PENDING_MESSAGES: Final = "Nats-Pending-Messages"
#: Number of bytes that an ended pull request did not deliver (ADR-37).
PENDING_BYTES: Final = "Nats-Pending-Bytes"
#: In an idle heartbeat: the last delivered consumer sequence (ADR-9).
LAST_CONSUMER: Final = "Nats-Last-Consumer"
#: In an idle heartbeat: the last delivered stream sequence (ADR-9).
LAST_STREAM: Final = "Nats-Last-Stream"
#: In an idle heartbeat: the reply subject of an unanswered flow control request.
CONSUMER_STALLED: Final = "Nats-Consumer-Stalled"
#: The pin id of this client in a priority group (ADR-42).
PIN_ID: Final = "Nats-Pin-Id"
#: The API level that a request demands (ADR-44).
REQUIRED_API_LEVEL: Final = "Nats-Required-Api-Level"

_VERSION: Final = b"NATS/1.0"
#: The beginning of a header block with a status.
STATUS_START: Final = _VERSION + b" "
#: The first line of a header block without a status.
VERSION_LINE: Final = b"NATS/1.0\r\n"
# Printable ASCII without the colon, as in nats-server and RFC 7230.
_NAME_PATTERN = re.compile(r"[!-9;-~]+")
# A line break ends the value, and C programs end it at a NUL.
_FORBIDDEN_IN_VALUES = re.compile(r"[\x00\r\n]")


class StatusCode(IntEnum):
    """The codes of `Status` that have a meaning."""

    CONTROL = 100
    """A heartbeat, or a request of the flow control."""
    DONE = 204
    """The end of a batched reply or of a snapshot."""
    BAD_REQUEST = 400
    NOT_FOUND = 404
    TIMEOUT = 408
    """A pull request has expired, or a request was empty."""
    CONFLICT = 409
    """A pull request has ended for the reason in the description."""
    UNSUPPORTED = 412
    """The server is too old for the request."""
    PIN_ID_MISMATCH = 423
    NO_RESPONDERS = 503
    """The subject has no subscribers."""


class Status(NamedTuple):
    """Status line of a server message without content."""

    code: int
    """HTTP-like status code; such as 404, 408 and 503."""
    description: str
    """Description of the status; may be empty."""


class Headers(MutableMapping[str, str]):
    """
    The headers of a message: names with one or more values each.

    Indexing returns the first value of a name: ``headers["Nats-Msg-Id"]``. Lookup ignores case;
    iteration yields the names in their original case. `get_all()` returns all values of a name.

    Args:
        items: a mapping to a value or a list of values, or pairs of name and value.

    Raises:
        InvalidHeaderError: a name is not printable ASCII or contains a colon, or a value contains a
            line break or a NUL.

    """

    __slots__ = ("_entries",)

    def __init__(self, items: HeadersLike | Iterable[tuple[str, str]] = ()) -> None:
        # Lower-case name -> (name as first written, its values in order).
        self._entries: dict[str, tuple[str, list[str]]] = {}
        if isinstance(items, Headers):
            for name, text in items.pairs():
                self._append(name, text)
            return
        for name, value in items.items() if isinstance(items, Mapping) else items:
            for one in (value,) if isinstance(value, str) else _values_of(name, value):
                self.add(name, one)

    def add(self, name: str, value: str) -> None:
        """
        Append a value to a name and keep its existing values.

        Raises:
            InvalidHeaderError: the name or the value is invalid.

        """
        self._append(*_check(name, value))

    def get_all(self, name: str) -> list[str]:
        """Return all values of a name in order, or ``[]``."""
        entry = self._entries.get(name.lower())
        return list(entry[1]) if entry else []

    def pairs(self) -> Iterator[tuple[str, str]]:
        """Yield all pairs of name and value; a name with three values is yielded three times."""
        for name, values in self._entries.values():
            for value in values:
                yield name, value

    def _append(self, name: str, value: str) -> None:
        entry = self._entries.get(name.lower())
        if entry is None:
            self._entries[name.lower()] = (name, [value])
        else:
            entry[1].append(value)

    @classmethod
    def _received(cls, pairs: Iterable[tuple[str, str]]) -> Self:
        """Create headers from received pairs without validation."""
        headers = cls()
        for name, value in pairs:
            headers._append(name, value)
        return headers

    def __getitem__(self, name: str) -> str:
        return self._entries[name.lower()][1][0]

    def __setitem__(self, name: str, value: str) -> None:
        name, value = _check(name, value)
        self._entries[name.lower()] = (name, [value])

    def __delitem__(self, name: str) -> None:
        del self._entries[name.lower()]

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and name.lower() in self._entries

    def __iter__(self) -> Iterator[str]:
        return (name for name, _ in self._entries.values())

    def __len__(self) -> int:
        return len(self._entries)

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Headers):
            return {k: v for k, (_, v) in self._entries.items()} == {
                k: v for k, (_, v) in other._entries.items()
            }
        if isinstance(other, Mapping):
            try:
                return self == Headers(other)
            except errors.InvalidHeaderError:
                return False
        return NotImplemented

    __hash__ = None  # type: ignore[assignment]  # mutable, like a dict

    def __repr__(self) -> str:
        return f"Headers({list(self.pairs())!r})"


#: Types accepted as headers.
HeadersLike: TypeAlias = Headers | Mapping[str, str | Sequence[str]]


def _check(name: str, value: str) -> tuple[str, str]:
    """Return a name and a value; raise `InvalidHeaderError` if one is invalid."""
    name, value = exact(name), exact(value)
    if type(name) is not str or not _NAME_PATTERN.fullmatch(name):
        raise errors.InvalidHeaderError(
            str(name), "a name must be printable ASCII without colons and spaces"
        )
    if type(value) is not str:
        raise errors.InvalidHeaderError(name, f"a value must be a str, not {type(value).__name__}")
    if _FORBIDDEN_IN_VALUES.search(value) or not _is_encodable(value):
        raise errors.InvalidHeaderError(
            name, "a value must not contain line breaks, NULs or surrogates"
        )
    return name, value


def _is_encodable(value: str) -> bool:
    """Return whether a text has no surrogates except surrogate escapes, which are bytes that are not UTF-8."""
    try:
        value.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return False
    return True


def _values_of(name: str, values: object) -> Iterable[str]:
    """Return the values of a name; raise if they are not iterable."""
    if not isinstance(values, Iterable):
        raise errors.InvalidHeaderError(
            str(name), f"a value must be a str or a list of str, not {type(values).__name__}"
        )
    return values


def check_headers(headers: HeadersLike) -> HeadersLike:
    """Return headers; raise if they are not a mapping. The error omits the value, which may be secret."""
    if not isinstance(headers, Mapping):
        rule = "must be a mapping of names to values, such as dict(headers), or Headers"
        raise errors.InvalidOptionError("headers", type(headers), rule)
    return headers


def encode_header_lines(headers: HeadersLike) -> bytes:
    """Return the lines of a header block without its first and its last one."""
    return encode_headers(headers)[len(VERSION_LINE) : -2]


def encode_headers(headers: HeadersLike) -> bytes:
    """Return the header block that precedes a payload."""
    if not headers:
        return b""
    lines = ["NATS/1.0\r\n"]
    if isinstance(headers, Headers):
        lines += [f"{name}: {value}\r\n" for name, value in headers.pairs()]
    else:
        for name, values in check_headers(headers).items():
            for value in (values,) if isinstance(values, str) else _values_of(name, values):
                lines.append("{}: {}\r\n".format(*_check(name, value)))
    lines.append("\r\n")
    return "".join(lines).encode("utf-8", "surrogateescape")


def parse_headers(block: bytes) -> Headers | None:
    """Parse a header block."""
    # Returns the headers, or ``None`` if the block has none (a status line only).
    lines = block.decode("utf-8", "surrogateescape").split("\r\n")[1:]
    pairs = []
    for line in lines:
        name, colon, value = line.partition(":")
        if colon and name:
            # Only spaces and tabs are optional white space (RFC 7230); the rest belongs to the value.
            pairs.append((name.strip(" \t"), value.strip(" \t")))
    return Headers._received(pairs) if pairs else None  # noqa: SLF001 - the constructor without validation


def server_number(text: str) -> int | None:
    """Return a number as a server writes it; ``None``: another client has written something else."""
    # isdigit() is true for digits that int() refuses, and for thousands of them.
    return int(text) if re.fullmatch("[0-9]{1,20}", text) else None


def parse_status(block: bytes) -> Status | None:
    """Parse the status line of a header block."""
    # Returns the status, or ``None`` if the first line has no status or its code is not a number of up
    # to three digits.
    if not block.startswith(STATUS_START):
        return None
    line = block.partition(b"\r\n")[0][len(STATUS_START) :].strip()
    code, _, text = line.partition(b" ")
    if not code.isdigit() or len(code) > 3:
        return None
    return Status(int(code), text.strip().decode("utf-8", "replace"))


def is_no_responders(header: bytes, payload: bytes) -> bool:
    """Return whether a reply is the status of the server for a subject without subscribers."""
    status = None if payload else parse_status(header)
    return status is not None and status.code == StatusCode.NO_RESPONDERS
