"""The state of a connection: its status and transport, the server, and the current outage."""

# The status:
#
# 1. Every change of the state is an event in this table; no other code decides on it. The only exception is
#    the copy in a forked child, which is closed from the start: see `ConnectionState.forked`.
# 2. An event without a row for the current state is a bug in this package, and raises.
#
# A connection starts as connecting and is connected after the handshake. When the transport breaks, it
# is reconnecting until the next handshake is complete. If it may not reconnect, or is draining, it
# closes instead. Closed is the final state.

from __future__ import annotations

import threading
from datetime import datetime, timedelta, timezone
from enum import Enum
from typing import Final

from .. import errors
from ..locks import new_lock
from ..net.clock import monotonic
from ..protocol.parser import ServerInfo
from .encoder import MessageEncoder
from .mailbox import copy_exception
from .transport import Transport
from .writer import Writer


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


class StateEvent(Enum):
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
_E = StateEvent

TRANSITIONS: Final[dict[tuple[ConnectionStatus, StateEvent], ConnectionStatus]] = {
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


def next_status(status: ConnectionStatus, event: StateEvent) -> ConnectionStatus:
    """Return the status after an event; raise `AssertionError` if the table has no row for it."""
    try:
        return TRANSITIONS[status, event]
    except KeyError:
        raise AssertionError(f"{event} is not permitted for a connection in {status}") from None


def closed_error_for(cause: BaseException) -> errors.ConnectionClosedError:
    """Return ``cause`` if it is a `ConnectionClosedError`, else a new one caused by it."""
    if isinstance(cause, errors.ConnectionClosedError):
        return cause
    closed = errors.ConnectionClosedError(f"the connection is closed: {cause}")
    closed.__cause__ = cause
    return closed


class ConnectionState:
    """The state that all parts of a connection share."""

    # It is changed with ``lock`` held; one attribute may be read without it.

    def __init__(self, writer: Writer, encoder: MessageEncoder) -> None:
        self.lock: threading.Lock = new_lock()
        self.status: ConnectionStatus = ConnectionStatus.CONNECTING
        #: ``None`` while disconnected.
        self.transport: Transport | None = None
        #: The last INFO of the server.
        self.info: ServerInfo = ServerInfo()
        self.reconnects: int = 0
        self._down_since: float | None = None  # start of the outage, by the monotonic clock
        self._writer = writer
        self._encoder = encoder

    # --- changing it ----------------------------------------------------------------------------

    def transition(self, event: StateEvent, reason: errors.ConnectionClosedError) -> bool:
        """Change the status; return whether it is CLOSED now, with ``reason``; ``lock`` is held."""
        status = next_status(self.status, event)
        if status is ConnectionStatus.CLOSED:
            # Before the status, so that a thread that sees CLOSED also finds the reason.
            self._writer.close(reason)
        self.status = status
        return status is ConnectionStatus.CLOSED

    def attach(self, transport: Transport) -> None:
        """Make a transport the current one; ``lock`` is held."""
        self.status = next_status(self.status, StateEvent.HANDSHAKE_DONE)
        self.transport = transport
        self._down_since = None
        self.update(transport.info)

    def detach(self) -> None:
        """Begin an outage; ``lock`` is held."""
        self.transport = None
        self._down_since = monotonic()

    def update(self, info: ServerInfo) -> None:
        """Take over the INFO of a server; ``lock`` is held."""
        self.info = info
        self._encoder.max_payload = info.max_payload
        self._encoder.accepts_headers = info.accepts_headers

    def forked(self) -> None:
        """Become closed in a forked child."""
        self.status = ConnectionStatus.CLOSED
        if self.transport is not None:
            # Close the child's copy of the socket. A shutdown would end the parent's connection.
            self.transport.stream.close()
            self.transport = None

    # --- asking for it --------------------------------------------------------------------------

    def closed_error(self) -> BaseException:
        """Return the error for a call on the closed connection."""
        return copy_exception(
            self._writer.closed or errors.ConnectionClosedError("the connection is closed")
        )

    def check_usable(self, *, draining: bool = False) -> None:
        """
        Raise unless the connection may be used.

        Raises:
            ConnectionClosedError: it is closed; a copy of the reason.
            ConnectionDrainingError: it is draining, unless that is permitted.

        """
        if self.status is ConnectionStatus.CLOSED:
            raise self.closed_error()
        if self.status is ConnectionStatus.DRAINING and not draining:
            raise errors.ConnectionDrainingError("the connection is draining")

    def timed_out(self, text: str) -> errors.TimeoutError:
        """Return the error for a wait that timed out; while disconnected, it names the outage."""
        return errors.TimeoutError(self.with_outage(text))

    def with_outage(self, text: str) -> str:
        """Return the text of an error, and while disconnected how long that has lasted."""
        down = self._down_since
        if down is None:
            return text
        seconds = monotonic() - down
        since = datetime.now(timezone.utc) - timedelta(seconds=seconds)
        return (
            f"{text}; there has been no connection to a server for {seconds:.1f} s,"
            f" since {since:%Y-%m-%d %H:%M:%S} UTC"
        )
