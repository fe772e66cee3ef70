"""The states of a connection and the table of their transitions."""

# 1. Every change of the state is an event in this table; no other code decides on it.
# 2. An event without a row for the current state is a bug in this package, and raises.
#
# A connection starts as connecting and is connected after the handshake. When the transport breaks, it
# is reconnecting until the next handshake is complete. If it may not reconnect, or is draining, it
# closes instead. Closed is the final state.

from __future__ import annotations

from enum import Enum
from typing import Final


class ConnectionStatus(Enum):
    """What a connection is doing."""

    CONNECTING = "connecting"
    """The first handshake is in progress."""
    CONNECTED = "connected"
    """Messages are sent and received."""
    RECONNECTING = "reconnecting"
    """The connection was lost; the client tries other servers, and publishes are buffered."""
    DRAINING = "draining"
    """New subscriptions are refused, and pending work is completed."""
    CLOSED = "closed"
    """The final state: a closed connection is never opened again."""


class Event(Enum):
    """An event that changes the status of a connection."""

    HANDSHAKE_DONE = "handshake done"
    """A server accepted the login and answered the first ping."""
    DISCONNECTED = "disconnected"
    """The transport broke, and a reconnect is permitted."""
    DRAIN = "drain"
    """The user called ``drain()``."""
    CLOSE = "close"
    """The user called ``close()``, a drain has finished, or no server is left to try."""


_S = ConnectionStatus
_E = Event

TRANSITIONS: Final[dict[tuple[ConnectionStatus, Event], ConnectionStatus]] = {
    (_S.CONNECTING, _E.HANDSHAKE_DONE): _S.CONNECTED,
    (_S.CONNECTING, _E.DISCONNECTED): _S.RECONNECTING,
    (_S.CONNECTING, _E.CLOSE): _S.CLOSED,
    (_S.CONNECTED, _E.DISCONNECTED): _S.RECONNECTING,
    (_S.CONNECTED, _E.DRAIN): _S.DRAINING,
    (_S.CONNECTED, _E.CLOSE): _S.CLOSED,
    (_S.RECONNECTING, _E.HANDSHAKE_DONE): _S.CONNECTED,
    # The transport may break again before the handshake is complete.
    (_S.RECONNECTING, _E.DISCONNECTED): _S.RECONNECTING,
    # Without a server there is nothing to drain.
    (_S.RECONNECTING, _E.DRAIN): _S.CLOSED,
    (_S.RECONNECTING, _E.CLOSE): _S.CLOSED,
    # A drain is not continued on another server.
    (_S.DRAINING, _E.DISCONNECTED): _S.CLOSED,
    (_S.DRAINING, _E.DRAIN): _S.DRAINING,
    (_S.DRAINING, _E.CLOSE): _S.CLOSED,
    # Other threads may report an event after the close.
    (_S.CLOSED, _E.DISCONNECTED): _S.CLOSED,
    (_S.CLOSED, _E.CLOSE): _S.CLOSED,
}


def next_status(status: ConnectionStatus, event: Event) -> ConnectionStatus:
    """Return the status after an event."""
    try:
        return TRANSITIONS[status, event]
    except KeyError:
        raise AssertionError(f"{event} is not permitted for a connection in {status}") from None
