"""What can happen to a connection, as its callbacks are told."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

__all__ = ["ConnectionEvent", "EventKind"]


class EventKind(Enum):
    """What happened."""

    DISCONNECTED = "disconnected"
    """The link broke."""
    RECONNECTED = "reconnected"
    """There is a new link; also the first one, where connecting went on in the background."""
    CLOSED = "closed"
    """The connection is closed, for good."""
    DISCOVERED_SERVERS = "discovered servers"
    """The cluster told of servers that were not known."""
    LAME_DUCK = "lame duck"
    """The server will stop soon; clients should look for another one."""


@dataclass(frozen=True, slots=True)
class ConnectionEvent:
    """One thing that happened to a connection."""

    kind: EventKind
    """What happened."""
    server: str | None = None
    """The URL of the server that it happened with, without a login; ``None`` where there was none."""
    error: BaseException | None = None
    """Why, where there is a reason: of a broken link, and of a close that the user did not ask for."""
    servers: tuple[str, ...] = ()
    """The URLs of the servers that were discovered."""
