"""Where a pull's messages and statuses arrive."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from ..client.core import Core
from ..client.mailbox import Mailbox
from ..errors import BadSubscriptionError, ConnectionDrainingError
from ..net.clock import Deadline, monotonic
from ..protocol.parser import Delivery

__all__ = ["LINK_DOWN", "LINK_UP", "PullInbox"]

#: Put among the messages when the link breaks: what was asked for is lost. They look like
#: statuses, so that nobody has to look for them among messages, and are known by identity.
LINK_DOWN: Final[Delivery] = (b"", b"", b"down", b"")
#: Put among the messages when there is a new link.
LINK_UP: Final[Delivery] = (b"", b"", b"up", b"")


class PullInbox:
    """
    A subject of its own for the answers to pull requests.

    Messages come under the subjects that they were published to, so requests whose answers must
    not be mixed up need inboxes of their own. The subscription is sent with the next request.

    Args:
        core: the connection.

    Raises:
        ConnectionClosedError: it is closed or draining.

    """

    __slots__ = ("_core", "_interest", "callback_finished", "last_seen", "mailbox", "reply")

    def __init__(self, core: Core) -> None:
        self._core = core
        #: What came and was not read yet.
        self.mailbox: Mailbox[Delivery] = Mailbox()
        #: When something came last, by the monotonic clock; written by the reader, once per read.
        self.last_seen = monotonic()
        #: Waits until a callback has had the last message; ``None``: there is no callback.
        self.callback_finished: Callable[[Deadline], bool] | None = None
        subject = core.new_inbox()
        #: The subject, as bytes: the reply of requests.
        self.reply = subject.encode()
        self._interest = core.add_interest_quietly(subject, self)

    def close(self) -> None:
        """Give the subscription up; what has come stays readable."""
        self._core.remove_interest_quietly(self._interest)

    def drain(self, deadline: Deadline) -> None:
        """
        Give the subscription up once everything that is on its way has come.

        Raises:
            DrainTimeoutError: the server did not confirm in time.
            ConnectionClosedError: the connection is closed, or lost its link.

        """
        self._core.drain_interests([self._interest], deadline)

    # --- the reader's side; see `Sink` ----------------------------------------------------------

    def deliver(self, deliveries: list[Delivery]) -> None:
        """Take messages and statuses."""
        self.last_seen = monotonic()
        self.mailbox.put(deliveries, len(deliveries))

    def link_changed(self, *, connected: bool) -> None:
        """Put the news among the messages."""
        self.mailbox.put((LINK_UP if connected else LINK_DOWN,), 1)

    def ended(self, reason: BaseException) -> None:
        """Wake whoever waits."""
        if isinstance(reason, BadSubscriptionError):
            reason = ConnectionDrainingError("the connection was drained")
        self.mailbox.close(reason)

    def finished(self, deadline: Deadline) -> bool:
        """Wait for the callback that the messages go to, if there is one."""
        return self.callback_finished is None or self.callback_finished(deadline)
