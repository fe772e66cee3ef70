"""Why a connection is closed, and whether its user wanted that."""

from __future__ import annotations

from ..errors import ConnectionClosedError, ConnectionDrainingError

__all__ = ["closed_error_for", "is_deliberate_close"]


def closed_error_for(cause: BaseException) -> ConnectionClosedError:
    """Return ``cause`` where it says that a connection is closed, else an error that has it as cause."""
    if isinstance(cause, ConnectionClosedError):
        return cause
    closed = ConnectionClosedError(f"the connection is closed: {cause}")
    closed.__cause__ = cause
    return closed


def is_deliberate_close(error: ConnectionClosedError) -> bool:
    """Say whether a connection was closed or drained by its user, so that reading may end quietly."""
    if isinstance(error, ConnectionDrainingError):
        return True
    return type(error) is ConnectionClosedError and error.__cause__ is None
