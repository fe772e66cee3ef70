"""The base class of the objects to which a connection passes the messages of a subscription."""

from __future__ import annotations

from typing import ClassVar

from ..errors import PermissionsError
from ..net.clock import Deadline
from ..protocol.parser import Delivery
from ..protocol.session import SubscriptionState


class MessageReceiver:
    """
    Receives the messages and events of one subscription; by default, it ignores the events.

    The connection holds it while the subscription exists. So it holds `ConnectionCore.internal`, not a
    handle, and no public object, unless it has to keep the connection open.
    """

    __slots__ = ("subscription",)

    subscription: SubscriptionState[MessageReceiver]
    """The last entry in the subscription table; assigned before the reader can find the entry."""

    is_reply_inbox: ClassVar[bool] = False
    """Whether the messages are replies to requests: a drain of the connection keeps such a
    subscription until all others have ended."""

    @property
    def awaited(self) -> bool:
        """Whether every message is a reply to a waiting caller, which may read it; see `DirectReads`."""
        return False

    def caller_waits(self) -> bool:
        """Return whether a caller waits for a reply; only for receivers that are ``awaited``."""
        return True

    def deliver(self, deliveries: list[Delivery]) -> None:
        """Process messages; called by the reader, must not wait."""
        raise NotImplementedError

    def on_connection_change(self, *, connected: bool) -> None:
        """React to a lost or new connection; called by the reader, must not wait."""

    def on_permission_error(self, subject: bytes, error: PermissionsError) -> bool:
        """
        React to a permission error of the server; called by the reader, must not wait.

        Returns:
            Whether the error belongs to a request of this receiver. The server sends one error for
            each refused message, so one receiver is enough.
        """
        del subject, error
        return False

    def on_closed(self, reason: BaseException) -> None:
        """Process the end of the subscription: no more messages follow; must not wait."""

    def wait_drained(self, deadline: Deadline) -> bool:
        """Wait until all messages are processed; return whether they are, at once if no callback runs."""
        del deadline
        return True
