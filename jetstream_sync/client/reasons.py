"""Errors of closed connections: the reason, and whether the user closed the connection."""

from __future__ import annotations

from ..errors import ConnectionClosedError, ConnectionDrainingError


def closed_error_for(cause: BaseException) -> ConnectionClosedError:
    """Return ``cause`` if it is a `ConnectionClosedError`, else a new one caused by it."""
    if isinstance(cause, ConnectionClosedError):
        return cause
    closed = ConnectionClosedError(f"the connection is closed: {cause}")
    closed.__cause__ = cause
    return closed


def is_deliberate_close(error: ConnectionClosedError) -> bool:
    """Return whether the user closed or drained the connection, so that iteration ends normally."""
    if isinstance(error, ConnectionDrainingError):
        return True
    return type(error) is ConnectionClosedError and error.__cause__ is None
