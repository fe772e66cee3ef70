"""
Connections of commands that need more than one of the usual kind.

Some run until Ctrl-C: they outlive the server's restarts, and say so. Some open several connections, or
read a message from where the password is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .login import read_password
from .output import note

if TYPE_CHECKING:
    from .. import ConnectionEvent
    from .settings import Settings

__all__ = ["lasting", "password_once"]

#: Seconds between two attempts to connect again.
_PAUSE = 0.5


def lasting(settings: Settings) -> dict[str, Any]:
    """Return the options of a connection that is sought again whenever it breaks."""

    def broken(event: ConnectionEvent) -> None:
        why = f": {event.error}" if event.error is not None else ""
        note(settings, f"the connection broke{why}; trying again")

    def back(event: ConnectionEvent) -> None:
        note(settings, f"connected again to {event.server}")

    return {
        "allow_reconnect": True,
        "max_reconnect_attempts": -1,
        "reconnect_time_wait": _PAUSE,
        "disconnected_cb": broken,
        "reconnected_cb": back,
    }


def password_once(settings: Settings) -> None:
    """Read the password of ``--password-stdin`` now: the next line belongs to somebody else."""
    if settings.given.get("password_stdin"):
        password = read_password(settings)
        del settings.given["password_stdin"]
        settings.given["password"] = password
