"""A subscription: messages of a subject, waiting to be read, or handed to a callback."""

from __future__ import annotations

import logging
import threading
import weakref
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import TYPE_CHECKING

from ..errors import (
    BadSubscriptionError,
    ConnectionClosedError,
    DrainTimeoutError,
    ForkedConnectionError,
    InvalidOptionError,
    PermissionsError,
    SlowConsumerError,
    SubscriptionError,
    TimeoutError,
)
from ..net.clock import FOREVER, Deadline
from ..protocol.parser import Delivery
from ..protocol.session import SubscriptionState
from .core import ConnectionCore, is_deliberate_close
from .mailbox import Mailbox
from .message import Msg
from .pending_limits import PendingLimits
from .receiver import MessageReceiver
from .threads import spawn

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["MsgCallback", "Subscription"]

log = logging.getLogger("jetstream_sync.subscription")

#: Called with each message, on the subscription's own thread.
MsgCallback = Callable[[Msg], object]


class Subscription:
    """
    The messages of a subject.

    Made by `Connection.subscribe`. Without a callback, messages are read with `next_msg()` or by
    iterating; the iteration ends when the subscription does. With one, a thread of its own calls
    it for each message; an error that it raises is reported to ``error_cb`` and the subscription
    goes on.

    Any thread may use a subscription, and several may read the same one: each message goes to one.
    """

    is_reply_inbox = False

    def __init__(
        self,
        core: ConnectionCore,
        subject: str,
        queue: str,
        callback: MsgCallback | None,
        msgs_limit: int,
        bytes_limit: int,
    ) -> None:
        self.subject = subject
        """The subject that was subscribed to."""
        self.queue = queue
        """The queue group, empty without one."""
        self._core = core
        self._callback = callback
        self._mailbox: Mailbox[Delivery] = Mailbox(core.machinery.timed_out)
        self._backlog = PendingLimits(msgs_limit, bytes_limit)
        self._dropped = 0
        self._slow = False
        # Held while messages are put in, while those above a limit are taken out again, and while
        # what is pending is counted.
        self._intake = threading.Lock()
        # The limit that had been reached when unsubscribe() was called; 0: none.
        self._limit = 0
        self._thread: threading.Thread | None = None
        # Set when the callback has had its last message.
        self._done = threading.Event()
        # Stands in until there is a number: a message may come before add_interest() returns.
        self._interest: SubscriptionState[MessageReceiver] = SubscriptionState(
            0, subject, queue, self
        )
        sink = self._sink()
        self._interest = core.add_subscription(subject, queue, sink)
        if isinstance(sink, _WeakSink):
            sink.interest = self._interest
        if callback is None:
            self._done.set()
        else:
            self._thread = spawn(f"subscription-{subject}", self._run)

    def _sink(self) -> MessageReceiver:
        """Return what the reader hands messages to."""
        return self if self._callback is not None else _WeakSink(self, self._core.machinery)

    # --- what is known of it --------------------------------------------------------------------

    @property
    def sid(self) -> int:
        """Its number on the connection."""
        return self._interest.sid

    @property
    def delivered(self) -> int:
        """Messages that came for it so far, dropped ones included."""
        return self._interest.delivered

    @property
    def dropped(self) -> int:
        """Messages that were dropped because too many were waiting."""
        return self._dropped

    @property
    def pending_msgs(self) -> int:
        """Messages that wait to be read."""
        return len(self._mailbox)

    @property
    def pending_bytes(self) -> int:
        """Bytes of headers and payload that wait to be read."""
        with self._intake:
            return self._backlog.bytes_of(self._mailbox.items)

    @property
    def is_valid(self) -> bool:
        """Whether more messages may come."""
        return not self._mailbox.closed

    # --- reading --------------------------------------------------------------------------------

    def next_msg(self, timeout: float | timedelta | None = 1.0) -> Msg:
        """
        Return the next message, waiting for it.

        Args:
            timeout: in seconds; ``None``: wait for ever; 0: look once.

        Raises:
            TimeoutError: none came in time.
            BadSubscriptionError: the subscription has ended, and everything is read.
            PermissionsError: the server does not permit it, so it has ended, too.
            ConnectionClosedError: the connection is closed, and everything is read.
            SubscriptionError: it has a callback.

        """
        self._must_be_readable()
        return self._next(Deadline(timeout))

    def __iter__(self) -> Iterator[Msg]:
        """
        Yield messages until the subscription or the connection is ended on purpose.

        Raises:
            PermissionsError: the server does not permit the subscription.
            ConnectionClosedError: the connection was closed for another reason.

        """
        self._must_be_readable()
        while True:
            try:
                msg = self._next(FOREVER)
            except BadSubscriptionError:
                return
            except ConnectionClosedError as error:
                if is_deliberate_close(error):
                    return
                raise
            yield msg

    def _next(self, deadline: Deadline) -> Msg:
        if not self._mailbox.items:
            # What was published so far goes out before we sleep; an answer may depend on it.
            self._core.writer.send_buffered()
        return Msg(self._mailbox.get(deadline), self._core)

    def _must_be_readable(self) -> None:
        if self._callback is not None:
            raise SubscriptionError("the subscription has a callback, which gets its messages")

    # --- ending ---------------------------------------------------------------------------------

    def unsubscribe(self, limit: int = 0) -> None:
        """
        End the subscription, at once or after a number of messages.

        Args:
            limit: messages, counted from the subscription's start, after which it ends by itself,
                also across reconnects; when more have come already, those above it that wait
                unread are dropped; 0: it ends now, and all that waits unread is dropped.

        Raises:
            BadSubscriptionError, PermissionsError: it has ended before, and not by its limit; after
                that, a call without a limit drops what waits unread, and one with a limit does nothing.
            ConnectionClosedError: the connection is closed.
            InvalidOptionError: ``limit`` is below 0.

        """
        if limit < 0:
            raise InvalidOptionError("limit", limit, "must be 0 or above")
        if self._limit_is_reached():
            if not limit:
                self._mailbox.items.clear()
            return
        self._mailbox.raise_reason()
        self._core.remove_subscription(self._interest, limit)
        if not limit:
            self._mailbox.items.clear()
        elif limit <= self._interest.delivered:
            self._drop_above(limit)
        if limit <= self._interest.delivered:
            self.on_closed(BadSubscriptionError("the subscription was ended by unsubscribe()"))

    def _limit_is_reached(self) -> bool:
        """Return whether the subscription ended since it got as many messages as it was to get."""
        interest = self._interest
        return self._limit > 0 or 0 < interest.limit <= interest.delivered

    def _drop_above(self, limit: int) -> None:
        """Drop what waits unread and is not among the first ``limit`` messages."""
        items = self._mailbox.items
        with self._intake:
            self._limit = limit
            try:
                for _ in range(self._backlog.admitted - limit):
                    items.pop()
            except IndexError:  # the others are read
                pass

    def drain(self, timeout: float | timedelta | None = None) -> None:
        """
        End the subscription, but not before every message that is on its way has been handled.

        With a callback, this waits until it has had the last message, unless it is the callback
        that calls. Without one, the messages can still be read; then reading ends.

        Args:
            timeout: in seconds; ``None``: the connection's ``drain_timeout``.

        Raises:
            DrainTimeoutError: it took longer; the rest is dropped.
            BadSubscriptionError, PermissionsError: the subscription has ended before.
            ConnectionClosedError: the connection is closed.

        """
        self._mailbox.raise_reason()
        deadline = Deadline(self._core.options.drain_timeout if timeout is None else timeout)
        try:
            self._core.drain_subscriptions([self._interest], deadline)
        finally:
            self.on_closed(BadSubscriptionError("the subscription was drained"))
        if not self.wait_drained(deadline):
            raise DrainTimeoutError(f"the callback for {self.subject!r} is not through")

    def wait_drained(self, deadline: Deadline) -> bool:
        """
        Wait until the callback, if there is one, has had its last message; say whether it has.

        A callback that asks this itself is not waited for. What is left after the time is dropped.
        """
        if threading.current_thread() is self._thread:
            return True
        if self._done.wait(deadline.left()):
            return True
        self._mailbox.items.clear()
        return False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.is_valid:
            self.unsubscribe()

    # --- the reader's side ----------------------------------------------------------------------

    def deliver(self, deliveries: list[Delivery]) -> None:
        """Take messages from the reader; what is above the limits is dropped, and told of."""
        with self._intake:
            if self._limit:
                # They were on their way to us while unsubscribe() was called.
                deliveries = deliveries[: max(0, self._limit - self._backlog.admitted)]
            fitting = self._backlog.admit(deliveries, len(self._mailbox))
            if fitting == len(deliveries):
                self._slow = False
                self._mailbox.put(deliveries, fitting)
                return
            self._mailbox.put(deliveries[:fitting], fitting)
        self._dropped += len(deliveries) - fitting
        if not self._slow:
            # Told once for each time that it falls behind, not for each message.
            self._slow = True
            self._core.events.error(SlowConsumerError(self.subject, self.sid, self._dropped))

    def on_connection_change(self, *, connected: bool) -> None:
        """Do nothing: the connection subscribes again by itself."""

    def on_permission_error(self, subject: bytes, error: PermissionsError) -> bool:
        """End where the server does not permit it: what has come can be read, then this is raised."""
        del subject
        if error.operation != "subscribe" or self._mailbox.closed:
            return False
        # Not on the next link, either: whoever reads it is told that it has ended.
        self._core.remove_subscription_deferred(self._interest)
        self.on_closed(error)
        return True

    def on_closed(self, reason: BaseException) -> None:
        """Learn that nothing more will come; a callback stops at once where the user closed."""
        if isinstance(reason, ForkedConnectionError):
            self._intake = threading.Lock()  # the parent's reader may have held it
        self._mailbox.close(reason)
        purpose = isinstance(reason, ConnectionClosedError) and is_deliberate_close(reason)
        if self._callback is not None and purpose:
            self._mailbox.items.clear()

    # --- the callback's thread ------------------------------------------------------------------

    def _run(self) -> None:
        callback = self._callback
        assert callback is not None
        self._thread = threading.current_thread()  # spawn() may not have returned yet
        try:
            while True:
                try:
                    msg = self._next(FOREVER)
                except (
                    BadSubscriptionError,
                    ConnectionClosedError,
                    PermissionsError,
                    TimeoutError,
                ):
                    return
                try:
                    callback(msg)
                except Exception as error:
                    log.debug("the callback of %r raised", self.subject, exc_info=True)
                    self._core.events.error(error)
        finally:
            self._done.set()


class _WeakSink:
    """
    Hands messages to a subscription that is read, without keeping it alive.

    What nothing can read any more is dropped, and ended with the next message that comes. So a connection
    whose users are gone is not held by its own table of subscriptions.
    """

    is_reply_inbox = False

    def __init__(self, subscription: Subscription, core: ConnectionCore) -> None:
        self._subscription = weakref.ref(subscription)
        self._core = core
        #: The entry in the table of subscriptions; ``None`` while it is being made.
        self.interest: SubscriptionState[MessageReceiver] | None = None

    def deliver(self, deliveries: list[Delivery]) -> None:
        subscription = self._subscription()
        if subscription is not None:
            subscription.deliver(deliveries)
        elif self.interest is not None:
            self._core.remove_subscription_deferred(self.interest)

    def on_connection_change(self, *, connected: bool) -> None:
        subscription = self._subscription()
        if subscription is not None:
            subscription.on_connection_change(connected=connected)

    def on_permission_error(self, subject: bytes, error: PermissionsError) -> bool:
        subscription = self._subscription()
        return subscription is not None and subscription.on_permission_error(subject, error)

    def on_closed(self, reason: BaseException) -> None:
        subscription = self._subscription()
        if subscription is not None:
            subscription.on_closed(reason)

    def wait_drained(self, deadline: Deadline) -> bool:
        subscription = self._subscription()
        return subscription is None or subscription.wait_drained(deadline)
