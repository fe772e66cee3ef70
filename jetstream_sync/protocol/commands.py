"""Encode the commands of a client: one function for each command."""

# The caller has validated the arguments, so these functions do not fail. Subjects of messages are bytes,
# because the callers cache them in this form.

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from ..codec import dumps

PING: Final = b"PING\r\n"
PONG: Final = b"PONG\r\n"


def connect(fields: Mapping[str, Any]) -> bytes:
    """Return the command for the login, with the features of this client."""
    return b"CONNECT %b\r\n" % dumps(fields)


def publish(subject: bytes, reply: bytes, payload: bytes) -> bytes:
    """Return the command for a message without headers; ``reply`` may be empty."""
    if reply:
        return b"PUB %b %b %d\r\n%b\r\n" % (subject, reply, len(payload), payload)
    return b"PUB %b %d\r\n%b\r\n" % (subject, len(payload), payload)


def publish_with_headers(subject: bytes, reply: bytes, header: bytes, payload: bytes) -> bytes:
    """Return the command for a message with a header block; ``reply`` may be empty."""
    sizes = (len(header), len(header) + len(payload))
    if reply:
        return b"HPUB %b %b %d %d\r\n%b%b\r\n" % (subject, reply, *sizes, header, payload)
    return b"HPUB %b %d %d\r\n%b%b\r\n" % (subject, *sizes, header, payload)


def subscribe(subject: str, queue: str, sid: int) -> bytes:
    """Return the command for a subscription, alone or as a member of a queue group."""
    if queue:
        return f"SUB {subject} {queue} {sid}\r\n".encode()
    return f"SUB {subject} {sid}\r\n".encode()


def unsubscribe(sid: int, limit: int = 0) -> bytes:
    """Return the command that ends a subscription, at once or after ``limit`` messages in total."""
    return b"UNSUB %d %d\r\n" % (sid, limit) if limit else b"UNSUB %d\r\n" % sid
