"""Where a pull's messages and statuses arrive."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import ClassVar, Final
from weakref import ref

from ..client.core import ConnectionCore
from ..client.mailbox import Mailbox
from ..errors import (
    BadSubscriptionError,
    ConnectionClosedError,
    ConnectionDrainingError,
    PermissionsError,
)
from ..net.clock import Deadline, monotonic
from ..protocol.parser import Delivery

__all__ = ["LINK_DOWN", "LINK_UP", "AnswerInbox", "PullInbox"]

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

    What was asked for is lost with the link, and has to be asked for again, once, on the next one.
    So the subject changes with the link, for the server may still have requests with the old one;
    and nothing may be asked between a change of the link and the moment when its `LINK_UP` is
    read: `asking_to()` and `news()` see to that.

    Args:
        core: the connection.

    Raises:
        ConnectionClosedError: it is closed or draining.

    """

    is_reply_inbox = False

    #: What follows the reply subject in the subscription's.
    _tail: ClassVar[str] = ""

    __slots__ = (
        "_closed",
        "_core",
        "_downs",
        "_downs_read",
        "_interest",
        "asked",
        "callback_finished",
        "last_seen",
        "linked",
        "mailbox",
        "reply",
    )

    def __init__(self, core: ConnectionCore) -> None:
        self._core = core.machinery  # the reader holds this object
        self._closed = False
        #: Where the last request went.
        self.asked = b""
        # How often the link broke: by the reader's count, and by what was read of it.
        self._downs = 0
        self._downs_read = 0
        #: What came and was not read yet.
        self.mailbox: Mailbox[Delivery] = Mailbox(core.machinery.timed_out)
        #: When something came last, by the monotonic clock; written by the reader, once per read.
        self.last_seen = monotonic()
        #: Waits until a callback has had the last message; ``None``: there is no callback.
        self.callback_finished: Callable[[Deadline], bool] | None = None
        subject = core.new_inbox()
        #: The subject, as bytes: the reply of requests.
        self.reply = subject.encode()
        self._interest = core.add_subscription_deferred(subject + self._tail, self)
        #: Whether there is a link, as far as it was read. Looked at once there is a subscription:
        #: what changes later is told.
        self.linked = core.address is not None

    def close(self, *, quietly: bool = False) -> None:
        """
        Give the subscription up; what has come stays readable.

        Args:
            quietly: tell the server when something else is sent. Where a request may be left, the
                server has to know at once: it would go on sending messages here.

        """
        self._closed = True
        if quietly:
            self._core.remove_subscription_deferred(self._interest)
        else:
            self._core.remove_subscription(self._interest)

    def asking_to(self) -> bytes | None:
        """Return the reply for a request that is sent now; ``None``: wait for `LINK_UP`."""
        # Read before the count: the reader counts first, and changes it then.
        reply = self.reply
        return reply if self.linked and self._downs == self._downs_read else None

    def is_awaited(self, status: Delivery) -> bool:
        """Say whether a status is about the last request, and not about one before it."""
        # Here they are all of one fetch, which asks again when the one before has ended.
        del status
        return True

    def news(self, delivery: Delivery) -> bool:
        """Take note of `LINK_DOWN` or `LINK_UP`; say whether what was asked for can be asked again."""
        if delivery is LINK_DOWN:
            self._downs_read += 1
            self.linked = False
            return False
        known, self.linked = self.linked, True
        return not known

    def drain(self, deadline: Deadline) -> None:
        """
        Give the subscription up once everything that is on its way has come.

        Raises:
            DrainTimeoutError: the server did not confirm in time.
            ConnectionClosedError: the connection is closed, or lost its link.

        """
        self._core.drain_subscriptions([self._interest], deadline)

    # --- the reader's side; see `MessageReceiver` ----------------------------------------------------------

    def deliver(self, deliveries: list[Delivery]) -> None:
        """Take messages and statuses."""
        self.last_seen = monotonic()
        self.mailbox.put(deliveries, len(deliveries))

    def on_connection_change(self, *, connected: bool) -> None:
        """Put the news among the messages, and take another subject for the next link."""
        if not connected:
            self._downs += 1
            self._renew()
        self.mailbox.put((LINK_UP if connected else LINK_DOWN,), 1)

    def on_permission_error(self, subject: bytes, error: PermissionsError) -> bool:
        """End where the server does not permit the request, or this inbox: asking again is no use."""
        if self.mailbox.closed:
            return False
        if error.operation != "subscribe" and subject not in (self.asked, self.reply):
            return False
        self.mailbox.close(error)
        self.close(quietly=True)
        return True

    def _renew(self) -> None:
        subject = self._core.new_inbox()
        old = self._interest
        try:
            self._interest = self._core.add_subscription_deferred(subject + self._tail, self)
        except ConnectionClosedError:
            return  # it is being closed
        self.reply = subject.encode()
        self._core.remove_subscription_deferred(old)
        if self._closed:
            # close() came meanwhile, and may not have seen the new one.
            self._core.remove_subscription_deferred(self._interest)

    def on_closed(self, reason: BaseException) -> None:
        """Wake whoever waits."""
        if isinstance(reason, BadSubscriptionError):
            reason = ConnectionDrainingError("the connection was drained")
        self.mailbox.close(reason)

    def wait_drained(self, deadline: Deadline) -> bool:
        """Wait for the callback that the messages go to, if there is one."""
        return self.callback_finished is None or self.callback_finished(deadline)


class AnswerInbox(PullInbox):
    """
    An inbox that is used again: each request has a reply subject of its own in it.

    It saves a subscription for each fetch of a single message ("Pull Optimization" of ADR-13), and
    takes what comes after a fetch has ended. Only one fetch has it at a time. Messages cannot be told
    apart by the request that they answer, statuses can.
    """

    _tail: ClassVar[str] = ".*"

    __slots__ = ("_reply", "_tokens", "owner")

    def __init__(self, core: ConnectionCore) -> None:
        self._tokens = itertools.count(1)
        self._reply = b""
        #: What keeps the inbox between two fetches: without it the inbox is closed with the next
        #: delivery, or the next change of the link.
        self.owner: ref[object] | None = None
        super().__init__(core)

    def asking_to(self) -> bytes | None:
        """Return the reply for a request that is sent now, with a token of its own."""
        reply = super().asking_to()
        if reply is None:
            return None
        self._reply = b"%b.%x" % (reply, next(self._tokens))
        return self._reply

    def is_awaited(self, status: Delivery) -> bool:
        """Return whether a status is about the last request."""
        return status[0] == self._reply

    def deliver(self, deliveries: list[Delivery]) -> None:
        """Take messages and statuses."""
        super().deliver(deliveries)
        self._close_without_owner()

    def on_connection_change(self, *, connected: bool) -> None:
        """Put the news among the messages, and take another subject for the next link."""
        super().on_connection_change(connected=connected)
        self._close_without_owner()

    def _close_without_owner(self) -> None:
        if self.owner is not None and self.owner() is None:
            self.close(quietly=True)
