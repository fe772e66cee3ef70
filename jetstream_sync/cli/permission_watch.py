"""Permission errors of publishes, which the server reports asynchronously."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Final

from ..errors import PermissionsError

if TYPE_CHECKING:
    from .. import Connection

__all__ = ["PermissionWatch"]

#: Timeout for the callback with an error that has been received already, in seconds.
_CALLBACK_TIMEOUT_S: Final = 2.0


class PermissionWatch:
    """Collects permission errors: pass `on_error` as the ``error_cb`` of a connection."""

    def __init__(self) -> None:
        self._errors: list[PermissionsError] = []
        self._received = threading.Event()

    def on_error(self, error: Exception) -> None:
        """Record an error; called on a thread of the library."""
        if isinstance(error, PermissionsError):
            self._errors.append(error)
            self._received.set()

    def check(self, nc: Connection) -> None:
        """
        Raise the first permission error. Flush before, so that the server has processed all publishes.

        Raises:
            PermissionsError: the server has denied a publish.

        """
        if nc.stats["errors_received"] and self._received.wait(_CALLBACK_TIMEOUT_S):
            raise self._errors[0]
