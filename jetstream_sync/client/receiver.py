"""What a connection hands messages to."""

from __future__ import annotations

from typing import Protocol

from ..errors import PermissionsError
from ..net.clock import Deadline
from ..protocol.parser import Delivery

__all__ = ["MessageReceiver"]


class MessageReceiver(Protocol):
    """Where the messages of one subscription go."""

    is_reply_inbox: bool
    """Whether what comes here are answers, which something under way may wait for: a drain of the
    connection leaves it until everything else is through."""

    def deliver(self, deliveries: list[Delivery]) -> None:
        """Take messages; called by the reader, must not wait."""
        ...

    def on_connection_change(self, *, connected: bool) -> None:
        """Learn that the link broke, or that there is a new one; by the reader, must not wait."""
        ...

    def on_permission_error(self, subject: bytes, error: PermissionsError) -> bool:
        """
        Learn that the server does not permit something; by the reader, must not wait.

        Args:
            subject: that of the error.
            error: what it does not permit: to ``publish`` to a subject or with a ``reply``, which every
                sink is asked about until one says that it was its own; or to ``subscribe``, which
                only the sinks of that subscription are told.

        Returns:
            Whether somebody who waits for an answer was told, or will be. The server says it once
            for each message, so that one is enough.

        """
        ...

    def on_closed(self, reason: BaseException) -> None:
        """Learn that nothing more will come; must not wait."""
        ...

    def wait_drained(self, deadline: Deadline) -> bool:
        """Wait until a callback, if there is one, has had its last message; say whether it has."""
        ...
