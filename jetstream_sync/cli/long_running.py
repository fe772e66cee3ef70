"""
Connections of commands that need more than one of the usual kind.

Some run until Ctrl-C: they outlive the server's restarts, and say so. Some open several connections, or
read a message from where the password is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from .login import read_password
from .output import note

if TYPE_CHECKING:
    from .. import ConnectionEvent
    from .settings import Settings

__all__ = ["RECONNECT_OPTIONS", "password_once", "reconnect_options"]

#: The options of a connection that is sought again whenever it breaks. Somebody looks at what comes, so a
#: server that does not answer any more is noticed in half a minute.
RECONNECT_OPTIONS: Final[dict[str, Any]] = {
    "allow_reconnect": True,
    "max_reconnect_attempts": -1,
    "reconnect_time_wait": 0.5,
    "ping_interval": 10.0,
    "max_outstanding_pings": 2,
}


def reconnect_options(settings: Settings) -> dict[str, Any]:
    """Return these options, and callbacks that say what goes on."""

    def broken(event: ConnectionEvent) -> None:
        why = f": {event.error}" if event.error is not None else ""
        note(settings, f"the connection broke{why}; trying again")

    def back(event: ConnectionEvent) -> None:
        note(settings, f"connected again to {event.server}")

    return {**RECONNECT_OPTIONS, "disconnected_cb": broken, "reconnected_cb": back}


def password_once(settings: Settings) -> None:
    """Read the password of ``--password-stdin`` now: the next line belongs to somebody else."""
    if settings.given.get("password_stdin"):
        password = read_password(settings)
        del settings.given["password_stdin"]
        settings.given["password"] = password
