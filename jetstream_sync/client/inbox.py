"""The inbox of a request: which errors concern it, and how it ends."""

from __future__ import annotations

from .. import errors
from ..headers import HeadersLike
from ..net.clock import FOREVER, Deadline
from ..protocol.parser import Delivery
from .core import ConnectionCore
from .mailbox import Mailbox, MessageReceiver


class Inbox(MessageReceiver):
    """Receives the replies to requests, and fails with the connection and with their permissions."""

    # A subclass defines `_fail` and `deliver`. The reader calls all methods except `ask`; they must not
    # wait. The subscription is sent with the request.

    is_reply_inbox = True

    __slots__ = ("_core", "asked", "reply")

    def __init__(self, core: ConnectionCore, suffix: str = "", limit: int = 0) -> None:
        # `suffix`: appended to the reply subject in the subject of the subscription, such as ``".*"``.
        # `limit`: the number of replies after which the subscription ends; 0: none.
        self._core = core.internal  # the reader holds this object
        #: The subject of the last request.
        self.asked: bytes = b""
        inbox = core.table.new_inbox()
        #: The reply subject of requests, or the beginning of it.
        self.reply: bytes = inbox.encode()
        core.table.add_deferred(inbox + suffix, self, limit)

    def ask(
        self,
        subject: bytes,
        payload: bytes,
        headers: HeadersLike | None = None,
        deadline: Deadline = FOREVER,
    ) -> None:
        """Send a request."""
        self.asked = subject
        core = self._core
        command, size = core.encoder.encode_command(subject, payload, self.reply, headers)
        core.writer.send(command, 1, size, deadline)

    def _fail(self, error: BaseException) -> bool:
        """End with an error; return whether this was the end."""
        raise NotImplementedError

    def _is_asked(self, subject: bytes) -> bool:
        """Return whether a request was sent to a subject."""
        return subject == self.asked

    def on_connection_change(self, *, connected: bool) -> None:
        """Fail when the connection is lost: the rest of the reply is lost too."""
        if not connected:
            self._fail(
                errors.ConnectionLostError("the connection was lost before the reply was complete")
            )

    def on_permission_error(self, subject: bytes, error: errors.PermissionsError) -> bool:
        """Fail if the server does not permit the request, its reply subject or the subscription."""
        is_reply = subject == self.reply or subject.startswith(self.reply + b".")
        concerned = error.operation == "subscribe" or is_reply or self._is_asked(subject)
        return concerned and self._fail(error)

    def on_closed(self, reason: BaseException) -> None:
        """Fail: the connection is closed, or was drained."""
        if isinstance(reason, errors.BadSubscriptionError):
            reason = errors.ConnectionDrainingError("the connection was drained")
        self._fail(reason)


class QueueInbox(Inbox):
    """Queues the replies for the threads that read them; an error closes the queue."""

    __slots__ = ("mailbox",)

    def __init__(self, core: ConnectionCore, suffix: str = "", limit: int = 0) -> None:
        #: The replies that were not read yet.
        self.mailbox: Mailbox[Delivery] = Mailbox(core.internal.state.timed_out)
        super().__init__(core, suffix, limit)

    def deliver(self, deliveries: list[Delivery]) -> None:
        """Queue replies."""
        self.mailbox.put(deliveries, len(deliveries))

    def _fail(self, error: BaseException) -> bool:
        is_end = not self.mailbox.closed
        self.mailbox.close(error)  # also if it is closed: in a forked child, its lock is replaced
        return is_end
