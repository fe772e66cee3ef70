"""What the server says of a publish that it does not permit: late, and to nobody who waits for it."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Final

from ..errors import PermissionsError

if TYPE_CHECKING:
    from .. import Connection

__all__ = ["PermissionWatch"]

#: Seconds until what the server has said is heard; it has been received by then.
_PATIENCE: Final = 2.0


class PermissionWatch:
    """Hears what a server refuses: its `on_error` is the ``error_cb`` of a connection."""

    def __init__(self) -> None:
        self._errors: list[PermissionsError] = []
        self._came = threading.Event()

    def on_error(self, error: Exception) -> None:
        """Take an error; called on a thread of the library's."""
        if isinstance(error, PermissionsError):
            self._errors.append(error)
            self._came.set()

    def check(self, nc: Connection) -> None:
        """
        Raise the first refusal; what was sent has to be flushed before, so that there is an answer.

        Raises:
            PermissionsError: the server did not take something.

        """
        if nc.stats["errors_received"] and self._came.wait(_PATIENCE):
            raise self._errors[0]
