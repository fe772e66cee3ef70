"""
Bytes from a server become operations.

The rules, from the NATS client protocol (ADR-4 for headers, ``server/parser.go``):

1. A control line ends with CR LF. ``MSG`` and ``HMSG`` are followed by a payload of the size that
   the line names, and another CR LF.
2. However the bytes are cut into pieces, the operations are the same. What is not complete yet is
   kept, and a large payload that arrives in many pieces is copied once.
3. Anything else is a `ProtocolError` that quotes the start of what was not understood. After that
   the parser is of no use: it can not know where the next operation starts.

This is the hottest code of the package. A message costs one ``find``, one ``split``, one slice for
its payload and one tuple; its subject, reply and headers stay bytes until somebody reads them.
"""

from __future__ import annotations

from typing import Final, NamedTuple, TypeAlias

from ..codec import loads
from ..errors import InvalidResponseError, ProtocolError

__all__ = [
    "Delivery",
    "Info",
    "Messages",
    "Ok",
    "Operation",
    "Parser",
    "Ping",
    "Pong",
    "ServerError",
]

#: One message as it came: subject, reply, header block, payload. Absent parts are empty.
Delivery: TypeAlias = tuple[bytes, bytes, bytes, bytes]


class Messages(NamedTuple):
    """Messages for one subscription that came one after the other."""

    sid: int
    deliveries: list[Delivery]


class Info(NamedTuple):
    """What the server says of itself, and of the cluster around it."""

    fields: dict[str, object]


class Ping(NamedTuple):
    """The server wants a PONG."""


class Pong(NamedTuple):
    """The answer to a PING of ours."""


class Ok(NamedTuple):
    """The answer to any command in verbose mode."""


class ServerError(NamedTuple):
    """The server complains; the text is without its quotes."""

    text: str


Operation: TypeAlias = Messages | Info | Ping | Pong | Ok | ServerError

#: nats-server limits a payload to 64 MiB at most; a message gains headers on its way.
MAX_PAYLOAD: Final = 65 * 1024 * 1024
#: Far above the control lines that a server sends, whose own limit is for what it receives.
MAX_CONTROL_LINE: Final = 64 * 1024
#: INFO lists every server of a cluster.
MAX_INFO_LINE: Final = 1024 * 1024

_CR: Final = 13
_FIRST_BYTES: Final = frozenset(b"MHPI+-")
_EXCERPT: Final = 64


class Parser:
    """
    Turn the bytes that a server sends into operations.

    Args:
        max_payload: the largest payload with headers that is accepted, in bytes.

    One thread at a time may use a parser.
    """

    __slots__ = ("_max_payload", "_missing", "_rest", "message_bytes", "messages")

    def __init__(self, max_payload: int = MAX_PAYLOAD) -> None:
        self._max_payload = max_payload
        #: Messages so far, and the bytes of their headers and payloads.
        self.messages = 0
        self.message_bytes = 0
        # The start of an operation that is not complete, in the pieces that it came in.
        self._rest: list[bytes] = []
        # How many bytes must come before that operation can be complete; 0: not known.
        self._missing = 0

    def feed(self, data: bytes) -> list[Operation]:
        """
        Take the next bytes and return the operations that are complete now.

        Args:
            data: any number of bytes, cut anywhere.

        Raises:
            ProtocolError: the bytes are not the NATS protocol, or a size is over its limit.

        """
        rest = self._rest
        if rest:
            rest.append(data)
            if len(data) < self._missing:
                self._missing -= len(data)
                return []
            data = b"".join(rest)
            self._rest = []
        self._missing = 0

        operations: list[Operation] = []
        find = data.find
        limit = self._max_payload
        end = len(data)
        position = 0
        # The run of messages that the last one belonged to, and its sid as it was written.
        run: list[Delivery] = []
        run_sid = b""
        messages = 0
        message_bytes = 0
        while True:
            line_end = find(b"\r\n", position)
            if line_end < 0:
                break
            args = data[position:line_end].split()
            kind = args[0] if args else b""
            try:
                if kind == b"MSG":
                    header_size = 0
                    if len(args) == 5:
                        _, subject, sid, reply, size_ = args
                    else:
                        _, subject, sid, size_ = args
                        reply = b""
                    size = int(size_)
                elif kind == b"HMSG":
                    if len(args) == 6:
                        _, subject, sid, reply, header_size_, size_ = args
                    else:
                        _, subject, sid, header_size_, size_ = args
                        reply = b""
                    header_size = int(header_size_)
                    size = int(size_)
                else:
                    operations.append(_control(data[position:line_end]))
                    run_sid = b""
                    position = line_end + 2
                    continue
                if sid != run_sid:
                    run = []
                    operations.append(Messages(int(sid), run))
                    run_sid = sid
            except ValueError:
                raise _garbled("malformed operation", data, position) from None

            start = line_end + 2
            payload_end = start + size
            if not 0 <= header_size <= size <= limit:
                raise _garbled(f"message size out of bounds (limit {limit})", data, position)
            if payload_end + 2 > end:
                self._missing = payload_end + 2 - end
                if not run:
                    # The run was opened for this message, which is not complete.
                    operations.pop()
                break
            if data[payload_end] != _CR:
                raise _garbled("payload of another size than announced", data, position)
            if header_size:
                body = start + header_size
                run.append((subject, reply, data[start:body], data[body:payload_end]))
            else:
                run.append((subject, reply, b"", data[start:payload_end]))
            messages += 1
            message_bytes += size
            position = payload_end + 2

        self.messages += messages
        self.message_bytes += message_bytes
        if position < end:
            self._keep(data, position)
        return operations

    def _keep(self, data: bytes, position: int) -> None:
        """Keep the incomplete operation at ``position``, unless it can not become one."""
        if data[position] not in _FIRST_BYTES:
            raise _garbled("unknown operation", data, position)
        if not self._missing:
            longest = MAX_INFO_LINE if data.startswith(b"INFO", position) else MAX_CONTROL_LINE
            if len(data) - position > longest:
                raise _garbled("control line too long", data, position)
        self._rest = [data[position:]]


def _control(line: bytes) -> Operation:
    """Read a control line that carries no payload."""
    if line == b"PING":
        return Ping()
    if line == b"PONG":
        return Pong()
    if line.startswith(b"INFO"):
        try:
            fields = loads(line[4:])
        except InvalidResponseError:
            raise _garbled("INFO is not JSON", line, 0) from None
        if not isinstance(fields, dict):
            raise _garbled("INFO is not an object", line, 0)
        return Info(fields)
    if line.startswith(b"-ERR"):
        return ServerError(line[4:].strip().strip(b"'").decode("utf-8", "replace"))
    if line.startswith(b"+OK"):
        return Ok()
    raise _garbled("unknown operation", line, 0)


def _garbled(reason: str, data: bytes, position: int) -> ProtocolError:
    return ProtocolError(reason, data[position : position + _EXCERPT])
