"""Inboxes for the replies to a request: which errors concern them, how they end, and how they are read."""

# An `Inbox` has its own subscription; single replies arrive at `RequestMux`. `ReplyCollector` returns all
# messages when the reply is complete; the layers above use it for requests whose protocol marks the end.
# `ReplyIterator` yields the replies as they arrive (ADR-47), for `Connection.request_many`.
#
# The reader thread delivers the replies and enforces the deadline and the number of them, so a slow
# caller loses nothing that arrived in time and gets nothing that came later. The calling thread waits,
# measures the stall time, and calls the sentinel, which is user code.

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

from .. import errors
from ..headers import HeadersLike, StatusCode, parse_status
from ..net.clock import FOREVER, Deadline, seconds
from ..options import check_int, check_returned
from ..protocol.parser import HEADER, PAYLOAD, RawMessage
from .core import ConnectionCore
from .mailbox import Mailbox, MessageReceiver, ResultSlot
from .message import Msg
from .threads import spawn_from_finalizer
from .writer import NOW


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
        """Send a request; raises as `MessageEncoder.encode_command` and `Writer.append`."""
        self.asked = subject
        core = self._core
        command, size = core.encoder.encode_command(subject, payload, self.reply, headers)
        core.writer.append(command, size, NOW, 1, True, deadline)

    def end_with(self, owner: object) -> None:
        """End the subscription when its owner is collected."""
        table, subscription = self._core.table, self.subscription
        is_open, end = lambda: subscription.sid in table.by_sid, partial(table.remove, subscription)
        self._core.stop_dropped(owner, is_open, end)

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
        self.mailbox: Mailbox[RawMessage] = Mailbox(core.internal.state.timed_out)
        super().__init__(core, suffix, limit)

    def deliver(self, deliveries: list[RawMessage]) -> None:
        """Queue replies."""
        self.mailbox.put(deliveries, len(deliveries))

    def _fail(self, error: BaseException) -> bool:
        is_end = not self.mailbox.closed
        self.mailbox.close(error)
        return is_end


if TYPE_CHECKING:
    from typing_extensions import Self

#: Returns whether a message is the last of the reply.
Sentinel = Callable[[Msg], object]


class ReplyCollector(Inbox):
    """Collects the replies to one request; one thread creates, uses and closes it."""

    # The replies are added with ``+=`` to a list, or to another sequence `into`, also as packed runs.

    __slots__ = ("_expected", "_handoff", "_is_end", "_open", "items")

    def __init__(
        self,
        core: ConnectionCore,
        is_end: Callable[[RawMessage], bool],
        expected: int = 0,
        into: Any = None,
    ) -> None:
        self._is_end = is_end
        self._expected = expected
        self._handoff: ResultSlot[None] = ResultSlot()
        # The thread that removes the single item sets the result, so that it is set once.
        self._open: list[None] = [None]
        #: The messages received so far.
        self.items: Any = [] if into is None else into
        super().__init__(core)
        if into is not None:
            core.reader.packed_sids.add(self.subscription.sid)

    def wait(self, idle_timeout: float, deadline: Deadline = FOREVER) -> Any:
        """
        Wait for the end of the reply and return all its messages.

        Raises:
            TimeoutError: the deadline has passed, or no message arrived for ``idle_timeout`` seconds.
            PermissionsError: the server does not permit the request.
            ConnectionLostError, ConnectionClosedError: the connection was lost, or is closed.

        """
        seen = len(self.items)
        while not self._handoff.arrived(deadline.sooner(idle_timeout)):
            if len(self.items) == seen or deadline.expired():
                text = f"the reply to {self.asked.decode()!r} was not completed in time"
                raise self._core.state.timed_out(text)
            seen = len(self.items)
        self._handoff.result()
        return self.items

    def close(self) -> None:
        """Unsubscribe and drop the messages; the UNSUB is deferred if the reply is complete."""
        self._core.reader.packed_sids.discard(self.subscription.sid)
        if self._open:
            self._core.table.remove(self.subscription)
        else:
            self._core.table.remove_deferred(self.subscription)
        # A reference cycle with the subscription delays the deletion of this object, but not of its items.
        self.items = []

    # --- the reader's side --------------------------------------------------------------------------

    def deliver(self, deliveries: list[RawMessage]) -> None:
        """Take messages, until the reply has ended."""
        if not self._open:
            return  # the waiting thread looks at them now
        items = self.items
        items += deliveries
        if (self._expected and len(items) >= self._expected) or self._is_end(items[-1]):
            self._settle(None)

    def _fail(self, error: BaseException) -> bool:
        return self._settle(error)

    def _settle(self, error: BaseException | None) -> bool:
        """Wake the waiting thread, unless that was done; return whether it was now."""
        try:
            self._open.pop()
        except IndexError:
            return False
        if error is None:
            self._handoff.set(None)
        else:
            self._handoff.fail(error)
        return True


class _End(Exception):  # noqa: N818 - closes a mailbox, and never leaves this module
    """Why a mailbox with replies was closed, as in `ReplyIterator.ended_by`."""


class _ReplyQueue(QueueInbox):
    """Queues the replies to one request until a deadline or a number of them."""

    # It is separate from the `ReplyIterator`, which the reader must not keep alive.

    __slots__ = ("_deadline",)

    def __init__(self, core: ConnectionCore, deadline: Deadline, limit: int) -> None:
        self._deadline = deadline
        super().__init__(core, limit=limit)

    def close(self, reason: str) -> None:
        """End with a reason, and unsubscribe; the queued replies can still be read."""
        self.mailbox.close(_End(reason))
        self._core.table.remove(self.subscription)

    def deliver(self, deliveries: list[RawMessage]) -> None:
        """Queue the replies, unless they came too late."""
        if self.mailbox.closed:
            return
        if self._deadline.expired():
            self.mailbox.close(_End("timeout"))
            self._core.table.remove_deferred(self.subscription)
            return
        super().deliver(deliveries)

    def on_connection_change(self, *, connected: bool) -> None:
        """Fail when the connection is lost, if the option says so or nothing else ends the wait."""
        fails = self._core.options.fail_requests_on_disconnect or self._deadline.left() is None
        if fails and not connected and not self.mailbox.closed:
            super().on_connection_change(connected=connected)
            self._core.table.remove_deferred(self.subscription)

    def on_closed(self, reason: BaseException) -> None:
        """End; the reader reports the end of a subscription with a limit as an error."""
        is_limit = isinstance(reason, errors.BadSubscriptionError)
        self._fail(_End("count") if is_limit else reason)


class ReplyIterator:
    """
    The replies to one request, in the order of their arrival.

    Returned by `Connection.request_many`. Iterate over it once, in a ``with`` block if the loop may be
    left early. It ends when one of the limits of the request is reached; `ended_by` names it. One thread
    at a time may use it, and any thread may call `close()`.
    """

    _queue: _ReplyQueue | None = None  # for an iterator whose constructor raised

    def __init__(
        self,
        core: ConnectionCore,
        subject: str,
        payload: bytes,
        timeout: float | timedelta | None,
        stall: float | timedelta | None,
        max_messages: int | None,
        sentinel: Sentinel | str | None,
        headers: HeadersLike | None,
    ) -> None:
        self._core = core
        self._subject = subject
        self._stall = None if stall is None else seconds(stall, "stall")
        if self._stall is not None and self._stall <= 0:
            raise errors.InvalidOptionError("stall", stall, "must be above 0 seconds")
        self._sentinel = _checked_sentinel(sentinel)
        if max_messages is not None:
            check_int("max_messages", max_messages, 1)
        where = core.encoder.encode_subject(subject)
        self._deadline = Deadline(timeout)
        self._is_first = True
        self._ended_by: str | None = None
        queue = self._queue = _ReplyQueue(core, self._deadline, max_messages or 0)
        try:
            queue.ask(where, payload, headers, self._deadline)
        except BaseException:
            self.close()
            raise

    @property
    def ended_by(self) -> str | None:
        """
        Why the iteration has ended; ``None``: it has not.

        ``timeout``, ``stall``, ``count`` (``max_messages``), ``sentinel``, ``status`` (a server sent a
        status instead of a reply), or ``closed`` (by `close()`, the ``with`` block, or an error, which the
        iteration raised).
        """
        return self._ended_by

    def close(self) -> None:
        """End the iteration and unsubscribe; a second call does nothing. Any thread may call it."""
        self._end("closed")

    def _end(self, reason: str) -> None:
        if self._ended_by is None:
            self._ended_by = reason
            if self._queue is not None:
                self._queue.mailbox.items.clear()
                self._queue.close(reason)

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Msg:
        """Return the next reply, and wait for it."""
        delivery = self._next_delivery()
        if delivery is None:
            raise StopIteration
        is_first, self._is_first = self._is_first, False
        status = None if delivery[PAYLOAD] else parse_status(delivery[HEADER])
        if status is not None:
            self._end("status")
            if is_first and status.code == StatusCode.NO_RESPONDERS:
                raise errors.NoRespondersError(self._subject)
            raise StopIteration
        msg = Msg(delivery, self._core)
        if self._sentinel is not None:
            try:
                is_end = self._sentinel(msg)
                check_returned(is_end, done=True)  # a future would be the end
            except BaseException:
                self.close()
                raise
            if is_end:
                self._end("sentinel")
                raise StopIteration
        return msg

    def _next_delivery(self) -> RawMessage | None:
        """Return the next delivery, if any."""
        queue = self._queue
        if queue is None or self._ended_by is not None:
            return None
        mailbox = queue.mailbox
        while True:
            try:
                return mailbox.items.popleft()
            except IndexError:
                pass
            deadline = self._deadline
            if self._stall is not None and not self._is_first:
                deadline = deadline.sooner(self._stall)
            try:
                mailbox.wait(deadline)
            except errors.TimeoutError:
                self._end("timeout" if self._deadline.expired() else "stall")
                return None
            except _End as end:
                self._end(str(end))
                return None
            except Exception:
                self.close()
                raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        # Without the `with` block, for example after a break. The thread that runs this may hold any
        # lock, so another thread unsubscribes.
        queue = self._queue
        if queue is not None and self._ended_by is None and not queue.mailbox.closed:
            spawn_from_finalizer(f"closer-{self._subject}", lambda: queue.close("closed"))

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._subject!r} {self._ended_by or 'open'}>"


def _checked_sentinel(sentinel: Sentinel | str | None) -> Sentinel | None:
    if sentinel == "empty":
        return lambda msg: not msg.data
    if sentinel is None or callable(sentinel):
        return sentinel
    raise errors.InvalidOptionError(
        "sentinel", sentinel, "must be 'empty' or a function of a message"
    )
