"""
What a client and a server know of each other: the handshake, and who listens to what.

A `Session` outlives its links: after a reconnect the same session is told the new server's INFO
and says what has to be sent again. Nothing here locks; the owner of a session does (see
``client/core.py``), except for looking up a sid, which one dictionary access does safely.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final, Generic, TypeVar

from ..errors import (
    AuthenticationExpiredError,
    AuthorizationError,
    BadSubjectError,
    Error,
    PermissionsError,
    ProtocolError,
    SecureConnectionError,
    ServerRefusedError,
    StaleConnectionError,
    SubscriptionError,
)
from ..subjects import MAX_CONTROL_LINE
from . import commands
from .parser import Err, Info, Operation, Ping, Pong

__all__ = [
    "Handshake",
    "ServerInfo",
    "Session",
    "SubscriptionState",
    "ends_connection",
    "error_from_text",
    "refuses_line",
]

#: The protocol level that makes a server send INFO again when the cluster changes.
_PROTOCOL_LEVEL: Final = 1

ReceiverT = TypeVar("ReceiverT")


@dataclass(frozen=True, slots=True)
class ServerInfo:
    """What a server said of itself in its last INFO; ``fields`` has all of it."""

    server_id: str = ""
    """The server's public key."""
    server_name: str = ""
    """Its name, unique in a cluster."""
    version: str = ""
    """The version of nats-server, such as ``2.15.1``."""
    host: str = ""
    """The address that it listens on, which need not be one that a client can reach."""
    port: int = 0
    """The port that it listens on."""
    max_payload: int = 1024 * 1024
    """The largest message that it accepts, headers included, in bytes."""
    headers: bool = False
    """Whether messages may have headers."""
    jetstream: bool = False
    """Whether JetStream is on."""
    auth_required: bool = False
    """Whether it wants a login."""
    tls_required: bool = False
    """Whether it insists on TLS."""
    tls_available: bool = False
    """Whether it offers TLS."""
    ldm: bool = False
    """Whether it is in lame-duck mode: it will stop soon."""
    client_id: int = 0
    """Its number for this connection."""
    client_ip: str = ""
    """The address that it sees this client at."""
    cluster: str = ""
    """The name of its cluster, empty when it is alone."""
    connect_urls: tuple[str, ...] = ()
    """The servers of its cluster, as ``host:port``; to a WebSocket those that take WebSockets."""
    ws_connect_urls: tuple[str, ...] = ()
    """Those that take WebSockets, where they are told apart."""
    nonce: str = field(default="", repr=False)
    """What a key has to sign to log in."""
    fields: dict[str, object] = field(default_factory=dict, repr=False)
    """Everything that it sent, as it was sent."""

    @classmethod
    def from_fields(cls, fields: dict[str, object]) -> ServerInfo:
        """
        Read the fields of an INFO; a field that is missing, or of another type, keeps its default.

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
        return cls(**known, fields=fields)


_INFO_LISTS: Final = ("connect_urls", "ws_connect_urls")
_INFO_DEFAULTS: Final = {
    name: getattr(ServerInfo(), name)
    for name in ServerInfo.__slots__
    if name not in (*_INFO_LISTS, "fields")
}


@dataclass(slots=True)
class SubscriptionState(Generic[ReceiverT]):
    """One subscription as the server knows it, and where its messages go."""

    sid: int
    subject: str
    queue: str
    sink: ReceiverT
    limit: int = 0
    """Messages after which it ends, counted from its start; 0: no limit."""
    delivered: int = 0
    """Messages handed to the sink; only the thread that reads counts."""
    ending: bool = False
    """Whether the server was told that it ends, while messages may still be on their way."""


class Session(Generic[ReceiverT]):
    """The subscription table, and what to say again on a new link."""

    def __init__(self) -> None:
        self.info = ServerInfo()
        self.interests: dict[int, SubscriptionState[ReceiverT]] = {}
        self._last_sid = 0

    def subscribe(
        self, subject: str, queue: str, sink: ReceiverT
    ) -> tuple[SubscriptionState[ReceiverT], bytes]:
        """
        Add an interest; the bytes must be sent.

        Raises:
            BadSubjectError: the command line is longer than a server takes; nothing was added.

        """
        command = commands.subscribe(subject, queue, self._last_sid + 1)
        size = len(command) - len(b"\r\n")
        if size > MAX_CONTROL_LINE:
            raise BadSubjectError(
                subject,
                f"the command line with it and its queue group has {size} bytes; "
                f"a server takes {MAX_CONTROL_LINE}",
            )
        self._last_sid += 1
        interest = SubscriptionState(self._last_sid, subject, queue, sink)
        self.interests[interest.sid] = interest
        return interest, command

    def unsubscribe(self, interest: SubscriptionState[ReceiverT], limit: int = 0) -> bytes:
        """
        End an interest now, or once it got ``limit`` messages; the bytes must be sent.

        An interest that has got as many already ends now.
        """
        if limit > interest.delivered:
            interest.limit = limit
            return commands.unsubscribe(interest.sid, limit)
        self.interests.pop(interest.sid, None)
        return commands.unsubscribe(interest.sid)

    def stop(self, interest: SubscriptionState[ReceiverT]) -> bytes:
        """End an interest, but keep it until what is on its way has come; the bytes must be sent."""
        interest.ending = True
        return commands.unsubscribe(interest.sid)

    def forget(self, interest: SubscriptionState[ReceiverT]) -> None:
        """Drop an interest that was stopped, or that reached its limit."""
        self.interests.pop(interest.sid, None)

    def resubscribe(self, confirming: list[SubscriptionState[ReceiverT]] | None = None) -> bytes:
        """
        Return what tells a new server of every interest, with what is left of the limits.

        Args:
            confirming: gets every interest, and a PING goes out behind each, so that the pongs tell
                which of the commands the server took; ``None``: no PINGs.

        """
        parts = []
        for interest in self.interests.values():
            if interest.ending:
                continue
            parts.append(commands.subscribe(interest.subject, interest.queue, interest.sid))
            if confirming is not None:
                confirming.append(interest)
                parts.append(commands.PING)
            if interest.limit:
                left = max(1, interest.limit - interest.delivered)
                parts.append(commands.unsubscribe(interest.sid, left))
        return b"".join(parts)


class Handshake:
    """
    The exchange that opens a link: INFO, then CONNECT and PING, then PONG.

    Args:
        connect_fields: called with the server's INFO, returns the fields of CONNECT; it may raise
            to refuse the server.

    Feed it operations with `receive()` and send what that returns, until `done`.
    """

    def __init__(self, connect_fields: Callable[[ServerInfo], dict[str, Any]]) -> None:
        self._connect_fields = connect_fields
        self.info: ServerInfo | None = None
        self.done = False

    def receive(self, operation: Operation) -> bytes:
        """
        Take one operation, and return what must be sent, which may be nothing.

        Raises:
            AuthorizationError: the server refused the login.
            ServerRefusedError: the server refused for another reason.
            ProtocolError: the operation has no place in a handshake.

        """
        if isinstance(operation, Info):
            first = self.info is None
            self.info = ServerInfo.from_fields(operation.fields)
            if not first:
                return b""
            return commands.connect(self._connect_fields(self.info)) + commands.PING
        if isinstance(operation, Err):
            raise error_from_text(operation.text)
        if isinstance(operation, Ping):
            return commands.PONG
        if self.info is None:
            raise ProtocolError(f"expected INFO, got {type(operation).__name__.upper()}")
        if isinstance(operation, Pong):
            self.done = True
        return b""


def connect_fields(
    *, name: str | None, version: str, verbose: bool, pedantic: bool, echo: bool
) -> dict[str, Any]:
    """Return the fields of CONNECT that say who this client is and what it can do."""
    fields: dict[str, Any] = {
        "lang": "python-sync",
        "version": version,
        "protocol": _PROTOCOL_LEVEL,
        "verbose": verbose,
        "pedantic": pedantic,
        "echo": echo,
        "headers": True,
        "no_responders": True,
        "tls_required": False,
    }
    if name:
        fields["name"] = name
    return fields


# A login that was good, of a user or of his whole account.
_EXPIRED_WORDS: Final = ("authentication expired", "authentication revoked")
_AUTH_WORDS: Final = ("authorization violation", "authentication timeout")


def error_from_text(text: str) -> Error:
    """
    Return the error that a server's ``-ERR`` text stands for; the texts are nats-server's.

    Args:
        text: without its quotes.

    """
    lower = text.lower()
    if any(words in lower for words in _EXPIRED_WORDS):
        return AuthenticationExpiredError(text)
    if any(words in lower for words in _AUTH_WORDS):
        return AuthorizationError(text)
    if "permissions violation" in lower:
        return PermissionsError(text)
    # The last two: the subject of a SUB, and in pedantic mode of a PUB.
    if lower in ("maximum subscriptions exceeded", "invalid subject", "invalid publish subject"):
        return SubscriptionError(text)
    if "stale connection" in lower:
        return StaleConnectionError(text)
    if "secure connection" in lower:
        return SecureConnectionError(text)
    return ServerRefusedError(text)


def refuses_line(error: BaseException) -> bool:
    """Return whether the server refused a command because its line is too long."""
    return isinstance(error, ServerRefusedError) and "control line" in str(error).lower()


def ends_connection(error: Error) -> bool:
    """Say whether a server closes the link after the ``-ERR`` that gave this error."""
    return not isinstance(error, SubscriptionError)
