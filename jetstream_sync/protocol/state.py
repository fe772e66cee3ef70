"""
The states of a connection, and the one table that says how they follow each other.

1. Everything that changes the state of a connection is an event in this table; there is no other
   place that decides.
2. An event that a state has no row for is a mistake of this package, and raises.

In words: a connection starts out connecting. Once the handshake is through it is connected. When
the link breaks it is reconnecting until another handshake is through, unless it may not reconnect,
or is draining: then it closes. Closed is the end.
"""

from __future__ import annotations

from enum import Enum
from typing import Final

__all__ = ["TRANSITIONS", "ConnectionStatus", "Event", "next_status"]


class ConnectionStatus(Enum):
    """What a connection is doing."""

    CONNECTING = "connecting"
    """The first handshake is under way."""
    CONNECTED = "connected"
    """Messages flow."""
    RECONNECTING = "reconnecting"
    """The link broke; another server is being sought, and publishes are buffered."""
    DRAINING = "draining"
    """Nothing new is taken; what is under way is finished."""
    CLOSED = "closed"
    """It is over; a closed connection is never opened again."""


class Event(Enum):
    """What may happen to a connection."""

    HANDSHAKE_DONE = "handshake done"
    """A server accepted the login and answered the first ping."""
    LINK_LOST = "link lost"
    """The link broke, and another may be tried."""
    DRAIN = "drain"
    """The user asked for a drain."""
    CLOSE = "close"
    """The user asked for a close, a drain is through, or there is nothing left to try."""


_S = ConnectionStatus
_E = Event

TRANSITIONS: Final[dict[tuple[ConnectionStatus, Event], ConnectionStatus]] = {
    (_S.CONNECTING, _E.HANDSHAKE_DONE): _S.CONNECTED,
    (_S.CONNECTING, _E.LINK_LOST): _S.RECONNECTING,
    (_S.CONNECTING, _E.CLOSE): _S.CLOSED,
    (_S.CONNECTED, _E.LINK_LOST): _S.RECONNECTING,
    (_S.CONNECTED, _E.DRAIN): _S.DRAINING,
    (_S.CONNECTED, _E.CLOSE): _S.CLOSED,
    (_S.RECONNECTING, _E.HANDSHAKE_DONE): _S.CONNECTED,
    # A link may be lost again before its handshake is through.
    (_S.RECONNECTING, _E.LINK_LOST): _S.RECONNECTING,
    # There is no server to finish anything with.
    (_S.RECONNECTING, _E.DRAIN): _S.CLOSED,
    (_S.RECONNECTING, _E.CLOSE): _S.CLOSED,
    # A drain that loses its link is not taken up again.
    (_S.DRAINING, _E.LINK_LOST): _S.CLOSED,
    (_S.DRAINING, _E.DRAIN): _S.DRAINING,
    (_S.DRAINING, _E.CLOSE): _S.CLOSED,
    # Threads that were under way may still report to a closed connection.
    (_S.CLOSED, _E.LINK_LOST): _S.CLOSED,
    (_S.CLOSED, _E.CLOSE): _S.CLOSED,
}


def next_status(status: ConnectionStatus, event: Event) -> ConnectionStatus:
    """
    Return the status that follows.

    Raises:
        AssertionError: the table has no such row; a fault of this package, never of a server.

    """
    try:
        return TRANSITIONS[status, event]
    except KeyError:
        raise AssertionError(f"{event} can not happen to a connection in {status}") from None
