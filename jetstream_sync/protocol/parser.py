"""Parse the bytes of a server into operations, its INFO, and the texts of its errors; the handshake."""

# The rules, from the NATS client protocol (ADR-4 for headers, ``server/parser.go``):
#
# 1. A control line ends with CR LF; its words are in upper case and separated by one space, as
#    nats-server writes them. ``MSG`` and ``HMSG`` are followed by a payload of the size in the line, and
#    another CR LF.
# 2. The operations do not depend on how the bytes are split into reads. An incomplete operation is kept,
#    and a large payload that arrives in many reads is copied once.
# 3. Anything else raises a `ProtocolError` that quotes the start of the invalid bytes. After that the
#    parser is unusable, because it cannot know where the next operation starts.
#
# This is the hottest code of the package. The C extension, if it is in use, takes the complete messages at
# the start of a read. In Python, a read is split into lines with one ``split``; then a message costs a
# ``split`` of its control line and one tuple. Subject, reply and headers stay bytes until they are
# accessed. Only payloads that contain line ends are joined again.

from __future__ import annotations

import re
from collections import deque
from dataclasses import field
from dataclasses import fields as fields_of
from typing import Any, Final, NamedTuple, TypeAlias

from .. import errors
from ..codec import loads
from ..records import Frozen, frozen
from ..speedups import read_messages

PING: Final = b"PING\r\n"
PONG: Final = b"PONG\r\n"

#: One received message: subject, reply, header block, payload. Absent parts are empty.
RawMessage: TypeAlias = tuple[bytes, bytes, bytes, bytes]
SUBJECT: Final = 0
REPLY: Final = 1
HEADER: Final = 2
PAYLOAD: Final = 3


class Messages(NamedTuple):
    """Consecutive messages for one subscription."""

    sid: int
    deliveries: list[RawMessage]


class Info(NamedTuple):
    """Information about the server and its cluster."""

    fields: dict[str, object]


class Ping(NamedTuple):
    """A ping of the server, which expects a PONG."""


class Pong(NamedTuple):
    """The reply to a PING of this client."""


class Ok(NamedTuple):
    """The reply to any command in verbose mode."""


class ErrorLine(NamedTuple):
    """An error of the server; the text is without its quotes."""

    text: str


@frozen()
class ServerInfo(Frozen):
    """The last INFO of a server; ``fields`` has all of its fields."""

    server_id: str = ""
    """The server's public key."""
    server_name: str = ""
    """Its name, unique in a cluster."""
    version: str = ""
    """The version of nats-server, such as ``2.15.1``."""
    host: str = ""
    """The address that it listens on, which a client may not be able to reach."""
    port: int = 0
    """The port that it listens on."""
    max_payload: int = 1024 * 1024
    """The largest message that it accepts, headers included, in bytes."""
    headers: bool = False
    """Whether messages may have headers."""
    jetstream: bool = False
    """Whether JetStream is enabled."""
    auth_required: bool = False
    """Whether it requires a login."""
    tls_required: bool = False
    """Whether it requires TLS."""
    tls_available: bool = False
    """Whether it offers TLS."""
    tls_verify: bool = False
    """Whether it requires a client certificate."""
    ldm: bool = False
    """Whether it is in lame-duck mode: it will stop soon."""
    client_id: int = 0
    """The number of this connection on the server."""
    client_ip: str = ""
    """The address of this client as the server sees it."""
    cluster: str = ""
    """The name of its cluster; empty for a single server."""
    connect_urls: tuple[str, ...] = ()
    """The servers of its cluster, as ``host:port``; on a WebSocket, those that accept WebSockets."""
    ws_connect_urls: tuple[str, ...] = ()
    """The servers that accept WebSockets, if the server lists them separately."""
    nonce: str = field(default="", repr=False)
    """The nonce that a key has to sign for the login."""
    accepts_headers: bool = field(default=True, repr=False)
    """Whether the server accepts messages with headers: not with its option ``no_header_support``."""
    fields: dict[str, object] = field(default_factory=dict, repr=False)
    """All fields of the INFO, unchanged."""

    @classmethod
    def from_fields(cls, fields: dict[str, object]) -> ServerInfo:
        """
        Return the server info for the fields of an INFO.

        A field that is missing or has another type keeps its default.

        Args:
            fields: the decoded JSON object.

        """
        known: dict[str, Any] = {}
        for name, default in _INFO_DEFAULTS.items():
            value = fields.get(name)
            if type(value) is type(default):
                known[name] = value
        for name in _INFO_LISTS:
            urls = fields.get(name)
            if isinstance(urls, list):
                known[name] = tuple(url for url in urls if isinstance(url, str))
        return cls(**known, accepts_headers=fields.get("headers") is not False, fields=fields)


_INFO_LISTS: Final = ("connect_urls", "ws_connect_urls")
_INFO_DEFAULTS: Final = {
    item.name: item.default
    for item in fields_of(ServerInfo)
    if item.name not in (*_INFO_LISTS, "accepts_headers", "fields")
}


Operation: TypeAlias = Messages | Info | Ping | Pong | Ok | ErrorLine

#: nats-server limits a payload to 64 MiB at most; a message gains headers on its way.
MAX_PAYLOAD: Final = 65 * 1024 * 1024
#: Far above the control lines that a server sends, whose own limit is for what it receives.
MAX_CONTROL_LINE: Final = 64 * 1024
#: INFO lists every server of a cluster.
MAX_INFO_LINE: Final = 1024 * 1024

_FIRST_BYTES: Final = frozenset(b"MHPI+-")
_EXCERPT: Final = 64


class Parser:
    """Turn the bytes that a server sends into operations."""

    # One thread at a time may use a parser.

    __slots__ = ("_max_payload", "_missing", "_rest", "message_bytes", "packed_sids")

    def __init__(self, max_payload: int = MAX_PAYLOAD) -> None:
        self._max_payload = max_payload
        #: The bytes of headers and payloads so far.
        self.message_bytes: int = 0
        #: The ids of subscriptions whose messages the C extension packs, see `speedups.run_column`.
        self.packed_sids: set[int] = set()
        # The start of an operation that is not complete, in the pieces that it came in.
        self._rest: list[bytes] = []
        # How many bytes must come before that operation can be complete; 0: not known.
        self._missing = 0

    @property
    def idle(self) -> bool:
        """Whether the next byte is the first one of an operation."""
        return not self._rest

    def feed(self, data: bytes) -> list[Operation]:
        """Take the next bytes and return the operations that are complete now; raise `ProtocolError`, see rule 3."""
        data = self._after_rest(data)
        operations: list[Operation] = []
        if read_messages is not None:
            operations, end, size = read_messages(
                data, self._max_payload, Messages, self.packed_sids
            )
            self.message_bytes += size
            data = data[end:]
        elif data.startswith(b"HMSG "):
            data = self._run_with_headers(data, operations)
        if not data:
            return operations
        # Split at every line end at once: for a message without headers, and without line ends in its
        # payload, this gives its control line and its payload. The last piece is not complete.
        lines = data.split(b"\r\n")
        last = len(lines) - 1
        # The run of messages that the last one belonged to, and its sid as it was written.
        run: list[RawMessage] = []
        run_sid: bytes | None = None
        message_bytes = 0
        limit = self._max_payload
        at = 0
        while at < last:
            args = lines[at].split(b" ")
            if args[0] != b"MSG":
                if args[0] == b"HMSG":
                    taken = self._message_with_headers(lines, at, args, operations)
                    if not taken:
                        break
                    at += taken
                else:
                    operations.append(_control(lines[at]))
                    at += 1
                run_sid = None
                continue
            try:
                if len(args) == 5:
                    _, subject, sid, reply, size_ = args
                else:
                    _, subject, sid, size_ = args
                    reply = b""
                size = int(size_) if size_.isdigit() else -1
                if sid != run_sid:
                    number = _number(sid)
            except ValueError:
                raise _garbled("malformed operation", lines[at]) from None
            payload = lines[at + 1]
            if at + 1 < last and len(payload) == size <= limit:
                at += 2
            else:
                joined, taken = self._join(lines, at, size)
                if not taken:
                    break
                payload = joined
                at += 1 + taken
            if sid != run_sid:
                run = []
                operations.append(Messages(number, run))
                run_sid = sid
            run.append((subject, reply, b"", payload))
            message_bytes += size
        self.message_bytes += message_bytes
        if at < last or lines[last]:
            self._keep(lines, at)
        return operations

    def _after_rest(self, data: bytes) -> bytes:
        """Return the kept start of an operation with the next bytes; empty: it is still not complete."""
        rest = self._rest
        if rest:
            rest.append(data)
            if len(data) < self._missing:
                self._missing -= len(data)
                return b""
            data = b"".join(rest)
            self._rest = []
        self._missing = 0
        return data

    def _run_with_headers(self, data: bytes, operations: list[Operation]) -> bytes:
        """Read the HMSGs at the start of the data, as far as they are complete and valid."""
        # Splitting them at every line end, like the other operations, would split their headers, too.
        # Unusual and invalid ones are left to the general code, which reports the error.
        find, size_of_all, limit = data.find, len(data), self._max_payload
        run: list[RawMessage] = []
        run_sid = b""
        at = 0
        while data.startswith(b"HMSG ", at):
            line_end = find(b"\r\n", at)
            if line_end < 0:
                break
            args = data[at + 5 : line_end].split(b" ")
            if len(args) == 4:
                subject, sid, header_size, size = args
                reply = b""
            elif len(args) == 5:
                subject, sid, reply, header_size, size = args
            else:
                break
            if not (header_size.isdigit() and size.isdigit() and sid.isdigit()):
                break
            start = line_end + 2
            try:
                number = int(sid)
                body, end = start + int(header_size), start + int(size)
            except ValueError:  # more digits than an int may have
                break
            if not (body <= end <= size_of_all - 2 and end - start <= limit):
                break
            if data[end : end + 2] != b"\r\n":
                break
            if sid != run_sid:
                run = []
                operations.append(Messages(number, run))
                run_sid = sid
            run.append((subject, reply, data[start:body], data[body:end]))
            self.message_bytes += end - start
            at = end + 2
        return data[at:]

    def _message_with_headers(
        self, lines: list[bytes], at: int, args: list[bytes], operations: list[Operation]
    ) -> int:
        """Read the HMSG at ``lines[at]``; return how many lines it took, 0: it is not complete."""
        try:
            if len(args) == 6:
                _, subject, sid, reply, header_size_, size_ = args
            else:
                _, subject, sid, header_size_, size_ = args
                reply = b""
            number, header_size, size = _number(sid), _number(header_size_), _number(size_)
        except ValueError:
            raise _garbled("malformed operation", lines[at]) from None
        if header_size > size:
            raise _garbled("header size out of bounds", lines[at])
        joined, taken = self._join(lines, at, size)
        if not taken:
            return 0
        delivery = (subject, reply, joined[:header_size], joined[header_size:])
        run = operations[-1] if operations else None
        deliveries = run.deliveries if isinstance(run, Messages) and run.sid == number else None
        # The extension may have packed the messages before this one.
        if isinstance(deliveries, list):
            deliveries.append(delivery)
        else:
            operations.append(Messages(number, [delivery]))
        self.message_bytes += size
        return 1 + taken

    def _join(self, lines: list[bytes], at: int, size: int) -> tuple[bytes, int]:
        """Put the payload behind the control line ``lines[at]`` together again."""
        # Returns the payload and how many lines it was cut into; no lines: it is not complete, and
        # ``_missing`` says how many bytes must still come.
        if not 0 <= size <= self._max_payload:
            raise _garbled(f"message size out of bounds (limit {self._max_payload})", lines[at])
        last = len(lines) - 1
        there = -2  # bytes of the lines so far, with the line ends between them
        for end in range(at + 1, last):
            there += len(lines[end]) + 2
            if there == size:
                return b"\r\n".join(lines[at + 1 : end + 1]), end - at
            if there > size:
                break
        else:
            there += 2 + len(lines[last])
            if there < size + 2:
                self._missing = size + 2 - there
                return b"", 0
        raise _garbled("payload of another size than announced", lines[at])

    def _keep(self, lines: list[bytes], at: int) -> None:
        """Keep the incomplete operation at ``lines[at]``, or raise if it cannot become valid."""
        rest = b"\r\n".join(lines[at:]) if at < len(lines) - 1 else lines[at]
        if rest[0] not in _FIRST_BYTES:
            raise _garbled("unknown operation", rest)
        if not self._missing:
            longest = MAX_INFO_LINE if rest.startswith(b"INFO") else MAX_CONTROL_LINE
            if len(rest) > longest:
                raise _garbled("control line too long", rest)
        self._rest = [rest]


def _control(line: bytes) -> Operation:
    """Read a control line that carries no payload."""
    if line == b"PING":
        return Ping()
    if line == b"PONG":
        return Pong()
    if line.startswith(b"INFO"):
        try:
            fields = loads(line[4:])
        except errors.InvalidResponseError:
            raise _garbled("INFO is not JSON", line) from None
        if not isinstance(fields, dict):
            raise _garbled("INFO is not an object", line)
        return Info(fields)
    if line.startswith(b"-ERR"):
        return ErrorLine(line[4:].strip().strip(b"'").decode("utf-8", "replace"))
    if line.startswith(b"+OK"):
        return Ok()
    raise _garbled("unknown operation", line)


def _number(text: bytes) -> int:
    """Read a number, which is nothing but digits; `int` takes signs and more."""
    if not text.isdigit():
        raise ValueError(text)
    return int(text)


def _garbled(reason: str, data: bytes) -> errors.ProtocolError:
    return errors.ProtocolError(reason, data[:_EXCERPT])


def only_message(data: bytes, subject: bytes, sid: int) -> RawMessage | None:
    """Return the message that received bytes consist of."""
    end = data.find(b"\r\n")
    args = data[: max(end, 0)].split(b" ")
    size = b"%d" % (len(data) - end - 4)
    if args[1:3] != [subject, b"%d" % sid] or args[-1] != size or data[-2:] != b"\r\n":
        return None
    kind, count = args[0], len(args)
    start = end + 2
    if kind == b"MSG" and 4 <= count <= 5:
        return subject, args[3] if count == 5 else b"", b"", data[start:-2]
    header_size = args[-2]
    if kind != b"HMSG" or not 5 <= count <= 6 or not header_size.isdigit():
        return None
    # A number with as many digits as the size at most, so it is short.
    body = start + int(header_size) if len(header_size) <= len(size) else len(data)
    if body > len(data) - 2:
        return None
    return subject, args[3] if count == 6 else b"", data[start:body], data[body:-2]


# The texts are those of nats-server's client.go, with subjects quoted by Go's %q; case is ignored.

# Compiling takes a millisecond, so the pattern is compiled on first use.
_VIOLATION: Final = (
    r"permissions violation for (?P<operation>publish to|publish with reply of|subscription to) "
    r'"(?P<subject>(?:[^"\\]|\\.)*)"'
    r'(?: using queue "(?P<queue>(?:[^"\\]|\\.)*)")?'
)
_OPERATIONS: Final = {
    "publish to": "publish",
    "publish with reply of": "reply",
    "subscription to": "subscribe",
}
_ESCAPE: Final = r"\\(x[0-9a-f]{2}|u[0-9a-f]{4}|U[0-9a-f]{8}|.)"
_ESCAPED: Final = {"a": "\a", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}
_LAST_CHARACTER: Final = 0x10FFFF


#: The text of a server that refuses a subscription because of a limit.
_OVER_LIMIT: Final = "maximum subscriptions exceeded"
#: The texts after which a server keeps the connection. The last two: of a SUB, and in pedantic mode of a PUB.
_SUBSCRIPTION_TEXTS: Final = (_OVER_LIMIT, "invalid subject", "invalid publish subject")
#: What a text contains -> its error. An expired login, of a user or of a whole account, was valid before.
_ERRORS: Final[tuple[tuple[str, type[errors.Error]], ...]] = (
    ("authentication expired", errors.AuthenticationExpiredError),
    ("authentication revoked", errors.AuthenticationExpiredError),
    ("authorization violation", errors.AuthorizationError),
    ("authentication timeout", errors.AuthorizationError),
    ("stale connection", errors.StaleConnectionError),
    ("secure connection", errors.SecureConnectionError),
)


def error_from_text(text: str) -> errors.Error:
    """Return the error for the text of a server's ``-ERR``."""
    lower = text.lower()
    if "permissions violation" in lower:
        return permissions_error(text)
    if lower in _SUBSCRIPTION_TEXTS:
        return errors.SubscriptionError(text)
    made = (error for part, error in _ERRORS if part in lower)
    return next(made, errors.ServerRefusedError)(text)


def ends_connection(error: errors.Error) -> bool:
    """Return whether a server closes the connection after the ``-ERR`` of this error."""
    return not isinstance(error, errors.SubscriptionError)


def is_over_limit(error: errors.Error) -> bool:
    """Return whether a server refused a subscription because of its limit, or that of the account."""
    return type(error) is errors.SubscriptionError and str(error).lower() == _OVER_LIMIT


def permissions_error(text: str) -> errors.PermissionsError:
    """Return the error with the refused operation, subject and queue, which are empty if it does not name them."""
    found = re.search(_VIOLATION, text, re.IGNORECASE)
    if found is None:
        return errors.PermissionsError(text)
    operation = _OPERATIONS[found["operation"].lower()]
    queue = _unquoted(found["queue"] or "")
    return errors.PermissionsError(text, operation, _unquoted(found["subject"]), queue)


def _unquoted(text: str) -> str:
    """Undo the quoting of Go's ``%q``, without the surrounding quotes."""

    def unescaped(escape: re.Match[str]) -> str:
        what = escape[1]
        if len(what) == 1:
            return _ESCAPED.get(what, what)
        code = int(what[1:], 16)
        return chr(code) if code <= _LAST_CHARACTER else "\ufffd"

    return re.sub(_ESCAPE, unescaped, text)


class Handshake:
    """The exchange that opens a connection: INFO, then CONNECT and PING, then PONG."""

    # Pass received bytes to `feed()` and send what it returns, until `done`. When it has set `info`, secure
    # the connection if the INFO says so, and send CONNECT and PING. What came after the INFO is processed by
    # the next call.

    def __init__(self) -> None:
        self.parser: Parser = Parser()
        self.info: ServerInfo | None = None
        self.done: bool = False
        #: Operations that are not processed; at the end those that arrived with the PONG.
        self.left: deque[Operation] = deque()

    def feed(self, data: bytes) -> bytes:
        """
        Process received bytes up to the first INFO or the PONG, and return the bytes to send.

        Raises:
            ProtocolError: the server does not speak the protocol, or something else than INFO came first.
            Error: the server sent an error, such as `AuthorizationError`.

        """
        self.left += self.parser.feed(data)
        reply = b""
        was_informed = self.info is not None
        while self.left and not self.done and (was_informed or self.info is None):
            operation = self.left.popleft()
            if isinstance(operation, Info):
                self.info = ServerInfo.from_fields(operation.fields)
                continue
            if isinstance(operation, ErrorLine):
                raise error_from_text(operation.text)
            if isinstance(operation, Ping):
                reply += PONG
                continue
            if self.info is None:
                raise errors.ProtocolError(f"expected INFO, got {type(operation).__name__.upper()}")
            self.done = isinstance(operation, Pong)
        return reply
