"""Connection events, as passed to the callbacks."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class EventKind(Enum):
    """Kind of a connection event."""

    DISCONNECTED = "disconnected"
    """The connection was lost."""
    RECONNECTED = "reconnected"
    """The client reconnected, or connected for the first time in the background."""
    CLOSED = "closed"
    """The connection is closed."""
    DISCOVERED_SERVERS = "discovered servers"
    """The cluster announced new servers."""
    LAME_DUCK = "lame duck"
    """The server is in lame duck mode: it will shut down soon, clients should reconnect elsewhere."""


@dataclass(frozen=True, slots=True)
class ConnectionEvent:
    """An event of a connection."""

    kind: EventKind
    """Kind of the event."""
    server: str | None = None
    """URL of the server concerned, without credentials; ``None`` if there is none."""
    error: BaseException | None = None
    """Reason of a lost connection or of a close that the user did not request."""
    servers: tuple[str, ...] = ()
    """URLs of the discovered servers."""
