"""
Message headers: the ``NATS/1.0`` block, its status line, and the names that JetStream uses.

ADR-4 describes the block: a version line that may carry a status, one ``Name: value`` per line, an
empty line at the end. Names keep their case, may repeat, and are found whatever case they are
asked for in.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, MutableMapping
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

from .errors import InvalidHeaderError

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["Headers", "HeadersLike", "Status", "encode_headers", "parse_headers", "parse_status"]

# --- the names that JetStream uses --------------------------------------------------------------

#: De-duplication within the stream's duplicate window.
MSG_ID: Final = "Nats-Msg-Id"
#: The stream that the publisher means; refused by any other.
EXPECTED_STREAM: Final = "Nats-Expected-Stream"
#: The sequence of the last message in the stream that the publisher knows of.
EXPECTED_LAST_SEQ: Final = "Nats-Expected-Last-Sequence"
#: The same for the last message on the subject.
EXPECTED_LAST_SUBJECT_SEQ: Final = "Nats-Expected-Last-Subject-Sequence"
#: The subject that this is about, where it is not that of the message (server 2.11).
EXPECTED_LAST_SUBJECT_SEQ_SUBJECT: Final = "Nats-Expected-Last-Subject-Sequence-Subject"
#: The message id of the last message in the stream.
EXPECTED_LAST_MSG_ID: Final = "Nats-Expected-Last-Msg-Id"
#: How long this message is kept (ADR-43, server 2.11).
MSG_TTL: Final = "Nats-TTL"
#: The stream that a message got by direct get came from (ADR-31).
STREAM: Final = "Nats-Stream"
#: Its sequence there (ADR-31).
SEQUENCE: Final = "Nats-Sequence"
#: When it was stored (ADR-31).
TIMESTAMP: Final = "Nats-Time-Stamp"
#: Its subject (ADR-31).
SUBJECT: Final = "Nats-Subject"
#: Messages that an ended pull request did not deliver (ADR-37).
PENDING_MESSAGES: Final = "Nats-Pending-Messages"
#: Bytes that an ended pull request did not deliver (ADR-37).
PENDING_BYTES: Final = "Nats-Pending-Bytes"
#: In an idle heartbeat: the last consumer sequence that was delivered (ADR-9).
LAST_CONSUMER: Final = "Nats-Last-Consumer"
#: In an idle heartbeat: the last stream sequence that was delivered (ADR-9).
LAST_STREAM: Final = "Nats-Last-Stream"
#: In an idle heartbeat: the subject of a flow control request that is still to be answered.
CONSUMER_STALLED: Final = "Nats-Consumer-Stalled"
#: The pin that this client holds in a priority group (ADR-42).
PIN_ID: Final = "Nats-Pin-Id"

_VERSION: Final = b"NATS/1.0"
# Printable ASCII without the colon, as nats-server and RFC 7230 have it.
_NAME = re.compile(r"[!-9;-~]+")
# A line break would end the value, and C programs end it at a NUL. Surrogates are fine where they
# stand for bytes that are not UTF-8.
_UNFIT_FOR_VALUES = re.compile(r"[\x00\r\n\ud800-\udc7f\udd00-\udfff]")


class Status(NamedTuple):
    """What a server says in a message that has no other content."""

    code: int
    """A number like HTTP's: 404, 408, 503."""
    description: str
    """What it means; may be empty."""


class Headers(MutableMapping[str, str]):
    """
    The headers of a message: names with one or more values each.

    As a mapping it has the first value of each name: ``headers["Nats-Msg-Id"]``; looking up
    ignores case, iteration gives the names as they were written. `get_all()` has every value.

    Args:
        items: a mapping to a value or a list of values, or pairs of name and value.

    Raises:
        InvalidHeaderError: a name is not printable ASCII or has a colon, or a value has a
            line break or a NUL.

    """

    __slots__ = ("_entries",)

    def __init__(self, items: HeadersLike | Iterable[tuple[str, str]] = ()) -> None:
        # Lower-case name -> (name as first written, its values in order).
        self._entries: dict[str, tuple[str, list[str]]] = {}
        if isinstance(items, Headers):
            for known, text in items.pairs():
                self._append(known, text)
            return
        for name, value in items.items() if isinstance(items, Mapping) else items:
            for one in (value,) if isinstance(value, str) else _several(name, value):
                self.add(name, one)

    def add(self, name: str, value: str) -> None:
        """
        Append a value, keeping those that the name already has.

        Raises:
            InvalidHeaderError: the name or the value can not be sent.

        """
        _check(name, value)
        self._append(name, value)

    def get_all(self, name: str) -> list[str]:
        """Return every value of a name in order, ``[]`` when it has none."""
        entry = self._entries.get(name.lower())
        return list(entry[1]) if entry else []

    def pairs(self) -> Iterator[tuple[str, str]]:
        """Yield every pair of name and value; a name with three values comes three times."""
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
        """Make headers of what a server sent, which is not checked again."""
        headers = cls()
        for name, value in pairs:
            headers._append(name, value)
        return headers

    def __getitem__(self, name: str) -> str:
        return self._entries[name.lower()][1][0]

    def __setitem__(self, name: str, value: str) -> None:
        _check(name, value)
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
            except InvalidHeaderError:
                return False
        return NotImplemented

    __hash__ = None  # type: ignore[assignment]  # mutable, as a dict is

    def __repr__(self) -> str:
        return f"Headers({list(self.pairs())!r})"


#: What a caller may pass as headers.
HeadersLike: TypeAlias = Headers | Mapping[str, str] | Mapping[str, list[str]]


def _check(name: str, value: str) -> None:
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise InvalidHeaderError(str(name), "a name is printable ASCII without a colon or spaces")
    if not isinstance(value, str):
        raise InvalidHeaderError(name, f"a value is a str, not {type(value).__name__}")
    if _UNFIT_FOR_VALUES.search(value):
        raise InvalidHeaderError(name, "a value has no line breaks, NULs or surrogates")


def _several(name: str, values: object) -> Iterable[str]:
    """Return what is not one value as several."""
    if not isinstance(values, Iterable):
        raise InvalidHeaderError(
            str(name), f"a value is a str or a list of them, not {type(values).__name__}"
        )
    return values


def encode_headers(headers: HeadersLike) -> bytes:
    """
    Make the header block that goes before a payload.

    Args:
        headers: names and values; values are sent as UTF-8.

    Returns:
        The block with its closing empty line, or ``b""`` when there are no headers.

    Raises:
        InvalidHeaderError: a name or value can not be sent.

    """
    if not headers:
        return b""
    lines = ["NATS/1.0\r\n"]
    if isinstance(headers, Headers):
        lines += [f"{name}: {value}\r\n" for name, value in headers.pairs()]
    else:
        for name, values in headers.items():
            for value in (values,) if isinstance(values, str) else _several(name, values):
                _check(name, value)
                lines.append(f"{name}: {value}\r\n")
    lines.append("\r\n")
    return "".join(lines).encode("utf-8", "surrogateescape")


def parse_headers(block: bytes) -> Headers | None:
    """
    Read a header block.

    Args:
        block: from ``NATS/1.0`` to the empty line. Bytes that are not UTF-8 survive a round trip,
            as surrogate escapes.

    Returns:
        The headers, or ``None`` when the block has none (a bare status).

    """
    lines = block.decode("utf-8", "surrogateescape").split("\r\n")[1:]
    pairs = []
    for line in lines:
        name, colon, value = line.partition(":")
        if colon and name:
            # No other white space is optional (RFC 7230), so it belongs to the value.
            pairs.append((name.strip(" \t"), value.strip(" \t")))
    return Headers._received(pairs) if pairs else None  # noqa: SLF001 - the trusted constructor


def parse_status(block: bytes) -> Status | None:
    """
    Read the status of a header block, when it has one.

    Returns:
        The status, or ``None``: the version ends the line, or what follows is not a number of up
        to three digits.

    """
    line = block.partition(b"\r\n")[0][len(_VERSION) :].strip()
    if not line or not block.startswith(_VERSION):
        return None
    code, _, text = line.partition(b" ")
    if not code.isdigit() or len(code) > 3:
        return None
    return Status(int(code), text.strip().decode("utf-8", "replace"))
