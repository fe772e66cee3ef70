"""
One bounded answer of many messages, taken in whole before anybody looks at it.

The reader's thread appends what comes, a socket read at a time, and wakes the waiting thread once, at the
end. So the server never waits for whoever works on the messages, however slow that is; and what
is in memory is what was asked for.
"""

from __future__ import annotations

from collections.abc import Callable

from ..client.core import ConnectionCore
from ..client.result_slot import ResultSlot
from ..errors import ConnectionLostError, PermissionsError
from ..net.clock import Deadline
from ..protocol.parser import Delivery

__all__ = ["ReplyCollector"]


class ReplyCollector:
    """
    What comes in answer to one request; it is made, asked with, waited for and closed by one thread.

    Args:
        core: the connection.
        is_end: says of the last message so far whether it ends the answer; called by the reader.
        expected: end it after so many messages, too; 0: only `is_end` does.

    Raises:
        ConnectionClosedError: the connection is closed or draining.

    """

    is_reply_inbox = True

    __slots__ = (
        "_asked",
        "_core",
        "_expected",
        "_handoff",
        "_interest",
        "_is_end",
        "_open",
        "_reply",
        "items",
    )

    def __init__(
        self, core: ConnectionCore, is_end: Callable[[Delivery], bool], expected: int = 0
    ) -> None:
        self._core = core.machinery  # the reader holds this object
        self._is_end = is_end
        self._expected = expected
        self._asked = b""
        self._handoff: ResultSlot[None] = ResultSlot()
        # Whoever takes out the one item settles the handoff: that is done once, by whatever thread.
        self._open: list[None] = [None]
        #: What has come so far.
        self.items: list[Delivery] = []
        inbox = core.new_inbox()
        self._reply = inbox.encode()
        self._interest = core.add_subscription_deferred(inbox, self)

    def ask(self, subject: bytes, payload: bytes) -> None:
        """
        Send the request.

        Raises:
            ConnectionClosedError: the connection is closed.
            OutboundBufferLimitError: there is no link, and the buffer for that time is full.

        """
        self._asked = subject
        command, size = self._core.composer.command(subject, payload, self._reply)
        self._core.writer.send(command, 1, size)

    def wait(self, patience: float, deadline: Deadline | None = None) -> list[Delivery]:
        """
        Wait for the end of the answer, and return all of it.

        Args:
            patience: seconds without a message after which it is given up.
            deadline: when to give up in any case; ``None``: only then.

        Raises:
            TimeoutError: nothing came for so long, or the end did not come in time.
            ConnectionLostError: the link broke meanwhile.
            PermissionsError: the server does not permit the request.
            ConnectionClosedError: the connection was closed.

        """
        seen = len(self.items)
        whole = deadline or Deadline(None)
        while not self._handoff.arrived(whole.sooner(patience)):
            if len(self.items) == seen or whole.expired():
                text = f"the answer on {self._asked.decode()!r} did not go on in time"
                raise self._core.timed_out(text)
            seen = len(self.items)
        self._handoff.result()
        return self.items

    def close(self) -> None:
        """Let go of the answer; the server is told soon when it is complete, and at once when not."""
        if self._open:
            self._core.remove_subscription(self._interest)
        else:
            self._core.remove_subscription_deferred(self._interest)
        # The subscription and this know each other, so this goes late; what it holds goes now.
        self.items = []

    # --- the reader's side; see `MessageReceiver` ----------------------------------------------------------

    def deliver(self, deliveries: list[Delivery]) -> None:
        """Take messages, until the answer has ended."""
        if not self._open:
            return  # the waiting thread looks at them now
        items = self.items
        items += deliveries
        if (self._expected and len(items) >= self._expected) or self._is_end(items[-1]):
            self._settle(None)

    def on_connection_change(self, *, connected: bool) -> None:
        """Give up when the link breaks: the rest of the answer is lost with it."""
        if not connected:
            self._settle(ConnectionLostError("the link broke before the answer was complete"))

    def on_permission_error(self, subject: bytes, error: PermissionsError) -> bool:
        """Give up where the server does not permit the request, or the inbox."""
        mine = error.operation == "subscribe" or subject in {self._asked, self._reply}
        return mine and self._settle(error)

    def on_closed(self, reason: BaseException) -> None:
        """Give up: the connection is closed."""
        self._settle(reason)

    def wait_drained(self, deadline: Deadline) -> bool:
        """Say at once that no callback is at work."""
        del deadline
        return True

    def _settle(self, error: BaseException | None) -> bool:
        """Wake the waiting thread, unless that was done; say whether it was now."""
        try:
            self._open.pop()
        except IndexError:
            return False
        if error is None:
            self._handoff.set(None)
        else:
            self._handoff.fail(error)
        return True
