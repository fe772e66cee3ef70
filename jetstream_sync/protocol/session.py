"""What a client sends to a server, its commands and subscriptions, and how the server describes itself."""

# The callers of the functions that encode a command have validated the arguments, so these do not fail.
# Subjects of messages are bytes, because the callers cache them in this form.
#
# A `Session` survives reconnects: it returns the commands that restore the subscriptions. Nothing here
# takes a lock: the owner of a session does (see ``client/subscription_table.py``). Looking up a sid needs
# none, because one dictionary access is atomic.

from __future__ import annotations

from dataclasses import dataclass, field
from dataclasses import fields as fields_of
from typing import Any, Final, Generic, Protocol, TypeVar

from .. import errors
from ..records import Frozen, frozen
from ..subjects import MAX_CONTROL_LINE


class _Receiver(Protocol):
    subscription: SubscriptionState[Any]


ReceiverT = TypeVar("ReceiverT", bound=_Receiver)


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


PING: Final = b"PING\r\n"
PONG: Final = b"PONG\r\n"


def publish_command(subject: bytes, reply: bytes, payload: bytes) -> bytes:
    """Return the command for a message without headers; ``reply`` may be empty."""
    if reply:
        return b"PUB %b %b %d\r\n%b\r\n" % (subject, reply, len(payload), payload)
    return b"PUB %b %d\r\n%b\r\n" % (subject, len(payload), payload)


def publish_with_headers_command(
    subject: bytes, reply: bytes, header: bytes, payload: bytes
) -> bytes:
    """Return the command for a message with a header block; ``reply`` may be empty."""
    sizes = (len(header), len(header) + len(payload))
    if reply:
        return b"HPUB %b %b %d %d\r\n%b%b\r\n" % (subject, reply, *sizes, header, payload)
    return b"HPUB %b %d %d\r\n%b%b\r\n" % (subject, *sizes, header, payload)


def subscribe_command(subject: str, queue: str, sid: int) -> bytes:
    """Return the command for a subscription, alone or as a member of a queue group."""
    if queue:
        return f"SUB {subject} {queue} {sid}\r\n".encode()
    return f"SUB {subject} {sid}\r\n".encode()


def unsubscribe_command(sid: int, limit: int = 0) -> bytes:
    """Return the command that ends a subscription, at once or after ``limit`` messages in total."""
    return b"UNSUB %d %d\r\n" % (sid, limit) if limit else b"UNSUB %d\r\n" % sid


@dataclass(slots=True, eq=False)
class SubscriptionState(Generic[ReceiverT]):
    """One subscription as the server knows it, and the receiver of its messages."""

    sid: int
    subject: str
    queue: str
    receiver: ReceiverT
    limit: int = 0
    """Number of messages after which it ends, counted from its start; 0: no limit."""
    delivered: int = 0
    """Number of messages passed to the receiver; updated by the reader thread only, before it passes them."""
    processed: int = 0
    """Number of messages that the receiver has processed, as far as it had no limit."""
    ended: BaseException | None = None
    """Why it has ended, while the receiver may still process its last messages."""
    ending: bool = False
    """Whether UNSUB was sent while messages may still be in flight."""


class Session(Generic[ReceiverT]):
    """The subscription table, and the commands that restore it after a reconnect."""

    def __init__(self) -> None:
        self.subscriptions: dict[int, SubscriptionState[ReceiverT]] = {}
        self._last_sid = 0

    def subscribe(
        self, subject: str, queue: str, receiver: ReceiverT
    ) -> tuple[SubscriptionState[ReceiverT], bytes]:
        """Add a subscription, and return it with the command that must be sent."""
        # The receiver has it as `subscription` before it is in the table, where the reader finds it.
        command = subscribe_command(subject, queue, self._last_sid + 1)
        size = len(command) - len(b"\r\n")
        if size > MAX_CONTROL_LINE:
            raise errors.BadSubjectError(
                subject,
                f"the command line with it and its queue group has {size} bytes; "
                f"a server accepts {MAX_CONTROL_LINE}",
            )
        self._last_sid += 1
        subscription = SubscriptionState(self._last_sid, subject, queue, receiver)
        receiver.subscription = subscription
        self.subscriptions[subscription.sid] = subscription
        return subscription, command

    def unsubscribe(self, subscription: SubscriptionState[ReceiverT], limit: int = 0) -> bytes:
        """End a subscription after ``limit`` messages, and return the command that must be sent."""
        # It ends at once if ``limit`` is 0 or was reached before.
        if limit > subscription.delivered:
            subscription.limit = limit
            return unsubscribe_command(subscription.sid, limit)
        self.subscriptions.pop(subscription.sid, None)
        return unsubscribe_command(subscription.sid)

    def stop(self, subscription: SubscriptionState[ReceiverT]) -> bytes:
        """Return the command that ends a subscription, which stays for the messages in flight."""
        subscription.ending = True
        return unsubscribe_command(subscription.sid)

    def forget(self, subscription: SubscriptionState[ReceiverT]) -> None:
        """Remove a subscription that was stopped or has reached its limit."""
        self.subscriptions.pop(subscription.sid, None)

    def resubscribe(self) -> bytes:
        """Return the commands that restore every subscription, with the rest of its limit."""
        parts = []
        for subscription in self.subscriptions.values():
            if subscription.ending:
                continue
            parts.append(
                subscribe_command(subscription.subject, subscription.queue, subscription.sid)
            )
            if subscription.limit:
                left = max(1, subscription.limit - subscription.delivered)
                parts.append(unsubscribe_command(subscription.sid, left))
        return b"".join(parts)
