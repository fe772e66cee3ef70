"""A subscription: receives the messages of a subject, and queues them or calls a callback."""

# The reader passes the messages to a `SubscriptionReceiver`, which passes them to the `Subscription`.

# ruff: noqa: SLF001 - a subscription and its receiver are one unit: users see no methods of the reader

from __future__ import annotations

import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import TYPE_CHECKING

from .. import errors
from ..locks import new_lock
from ..net.clock import FOREVER, Deadline
from ..options import check_int, check_returned
from ..protocol.parser import RawMessage
from .core import ConnectionCore
from .events import is_deliberate_close
from .mailbox import Mailbox, MessageReceiver, SubscriptionState, first_items
from .message import Msg
from .threads import Signal

if TYPE_CHECKING:
    from typing_extensions import Self


class PendingLimits:
    """Counts the pending messages and bytes of a mailbox; one thread at a time may use it."""

    # The consumers of a mailbox take messages without a lock, so they cannot count bytes. The reader
    # thread knows how many messages it added and how many are left, so it can tell which batches are
    # consumed, and their bytes. The sum is exact to one batch: a partly consumed batch counts in full.

    __slots__ = ("_batches", "_bytes_limit", "_first", "_msgs_limit", "admitted", "pending_bytes")

    def __init__(self, msgs_limit: int, bytes_limit: int) -> None:
        limits = {"pending_msgs_limit": msgs_limit, "pending_bytes_limit": bytes_limit}
        for option, limit in limits.items():  # the reader compares them
            if isinstance(limit, bool) or not isinstance(limit, int):
                raise errors.InvalidOptionError(option, limit, "must be an integer; 0: no limit")
        self._msgs_limit = msgs_limit
        self._bytes_limit = bytes_limit
        #: Number of messages admitted so far.
        self.admitted: int = 0
        # How many of them came before the first batch.
        self._first = 0
        # Message count and bytes of each batch that may not be consumed completely.
        self._batches: deque[tuple[int, int]] = deque()
        self.pending_bytes: int = 0

    def admit(self, deliveries: list[RawMessage], waiting: int) -> int:
        """Return how many of these messages may be added, and count them."""
        self.settle(waiting)
        count = len(deliveries)
        if 0 < self._msgs_limit < waiting + count:
            count = max(0, self._msgs_limit - waiting)
        size = sum([len(header) + len(payload) for _, _, header, payload in deliveries])
        if 0 < self._bytes_limit < self.pending_bytes + size or count < len(deliveries):
            count, size = self._cut(deliveries[:count])
        if count:
            self.admitted += count
            self._batches.append((count, size))
            self.pending_bytes += size
        return count

    def settle(self, waiting: int) -> None:
        """Remove the batches that are consumed."""
        batches = self._batches
        taken = self.admitted - waiting
        while batches and self._first + batches[0][0] <= taken:
            count, size = batches.popleft()
            self._first += count
            self.pending_bytes -= size

    def bytes_of(self, items: deque[RawMessage]) -> int:
        """Return the bytes of the pending messages of a mailbox."""
        # Only a partly consumed batch is counted message by message. While other threads consume
        # messages, the result may be slightly out of date.
        waiting = len(items)
        self.settle(waiting)
        if not self._batches:
            return 0
        count, size = self._batches[0]
        left = self._first + count - (self.admitted - waiting)
        if left >= count:
            return self.pending_bytes
        half_read = first_items(items, left)
        return self.pending_bytes - size + sum([len(item[2]) + len(item[3]) for item in half_read])

    def _cut(self, deliveries: list[RawMessage]) -> tuple[int, int]:
        """Return how many of the messages fit, and their bytes."""
        fitting = 0
        total = 0
        for _, _, header, payload in deliveries:
            size = len(header) + len(payload)
            if 0 < self._bytes_limit < self.pending_bytes + total + size:
                break
            fitting += 1
            total += size
        return fitting, total


#: Called with each message, on the subscription's own thread.
MsgCallback = Callable[[Msg], object]


class Subscription:
    """
    A subscription to a subject.

    Created by `Connection.subscribe`. Without a callback, messages are read with `next_msg()` or by
    iterating; the iteration ends when the subscription does. With a callback, a separate thread calls
    it for each message. An exception of the callback is reported to ``error_cb``, and the subscription
    continues.

    Any thread may use a subscription. Several threads may read from one; each message goes to one thread.
    """

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
        """The subject of the subscription."""
        self.queue = queue
        """The queue group; empty: none."""
        self._core = core
        self._callback = callback
        self._mailbox: Mailbox[RawMessage] = Mailbox(core.internal.state.timed_out)
        self._pending = PendingLimits(msgs_limit, bytes_limit)
        self._dropped = 0
        self._slow = False
        # Held while messages are added, while those above a limit are removed again, and while the
        # pending bytes are counted.
        self._intake = new_lock()
        # The limit of unsubscribe(), if it was reached before that call; 0: none.
        self._limit = 0
        self._thread: threading.Thread | None = None
        self._draining = False
        # Set after the last call of the callback.
        self._done = Signal()
        self._receiver: SubscriptionReceiver = self._new_receiver()
        if callback is None:
            self._done.set()
        try:
            core.table.add(subject, queue, self._receiver)
            self._start_threads()
        except BaseException:
            self._end_with(errors.BadSubscriptionError("the subscription could not be created"))
            raise

    def _start_threads(self) -> None:
        """Start the thread of the callback, if there is one."""
        if self._callback is not None:
            name = f"subscription-{self.subject}"
            self._thread = self._core.callbacks.spawn(name, self._run, self._end_with)

    def _new_receiver(self) -> SubscriptionReceiver:
        """Return an object to which the reader passes messages."""
        weak = self._callback is None
        return SubscriptionReceiver(self, self._core.internal, weak=weak)

    # --- state ----------------------------------------------------------------------------------

    @property
    def _state(self) -> SubscriptionState:
        return self._receiver.subscription

    @property
    def sid(self) -> int:
        """The subscription id, unique on the connection."""
        return self._state.sid

    @property
    def delivered(self) -> int:
        """Number of messages received so far, including dropped ones."""
        return self._state.delivered

    @property
    def dropped(self) -> int:
        """Number of messages dropped because a pending limit was exceeded."""
        return self._dropped

    @property
    def pending_msgs(self) -> int:
        """Number of messages received and not yet read."""
        return len(self._mailbox)

    @property
    def pending_bytes(self) -> int:
        """Bytes of headers and payload received and not yet read."""
        with self._intake:
            return self._pending.bytes_of(self._mailbox.items)

    @property
    def is_valid(self) -> bool:
        """Whether the subscription may receive more messages."""
        return not self._mailbox.closed

    # --- reading --------------------------------------------------------------------------------

    def next_msg(self, timeout: float | timedelta | None = 1.0) -> Msg:
        """
        Return the next message, and wait for it if necessary.

        Args:
            timeout: in seconds; ``None``: wait forever; 0: do not wait.

        Raises:
            TimeoutError: no message arrived in time.
            BadSubscriptionError: the subscription has ended, and all messages are read.
            PermissionsError: the server does not permit the subscription, so it has ended.
            ConnectionClosedError: the connection is closed, and all messages are read.
            SubscriptionError: the subscription has a callback.

        """
        if self._callback is None:
            try:
                # Without a call of _next(): this runs once per message.
                return Msg(self._mailbox.items.popleft(), self._core)
            except IndexError:
                pass
        self._must_be_readable()
        return self._next(Deadline(timeout))

    def __iter__(self) -> Iterator[Msg]:
        """Yield messages until the subscription ends or the connection is closed by the user."""
        self._must_be_readable()
        while True:
            try:
                msg = self._next(FOREVER)
            except errors.BadSubscriptionError:
                return
            except errors.ConnectionClosedError as error:
                if is_deliberate_close(error):
                    return
                raise
            yield msg

    def _next(self, deadline: Deadline) -> Msg:
        if not self._mailbox.items:
            # Send buffered messages before waiting: the next message may be a reply to them.
            self._core.writer.send_buffered()
        return Msg(self._mailbox.get(deadline), self._core)

    def _must_be_readable(self) -> None:
        if self._callback is not None:
            raise errors.SubscriptionError(
                "the subscription has a callback, which receives its messages;"
                " subscribe without cb to read them"
            )

    # --- ending ---------------------------------------------------------------------------------

    def unsubscribe(self, limit: int = 0) -> None:
        """
        End the subscription, at once or after a number of messages.

        Args:
            limit: the number of messages, counted from the start of the subscription and across
                reconnects, after which it ends; unread messages above the limit are dropped. 0: it
                ends now, and all unread messages are dropped.

        Raises:
            BadSubscriptionError, PermissionsError: it has ended before, and not by its limit. After
                it ended by its limit, a call without a limit drops the unread messages, and a call
                with a limit does nothing.
            ConnectionClosedError: the connection is closed.
            InvalidOptionError: ``limit`` is below 0.

        """
        limit = check_int("limit", limit, 0)
        if self._limit_is_reached():
            if not limit:
                self._mailbox.items.clear()
            # Not closed: a Ctrl-C has cut a call short, or the reader passes the last messages and closes it.
            if not self._mailbox.closed and self._state.processed == self._state.delivered:
                self._on_closed(self._ended_by_call())
            return
        self._mailbox.raise_reason()
        state = self._state
        self._core.table.remove(state, limit)
        if limit > state.delivered:
            return
        state.ended = self._ended_by_call()
        if limit:
            self._drop_above(limit)
        else:
            self._mailbox.items.clear()
        # If the reader is passing messages within the limit, it ends the subscription after them.
        if not limit or state.processed == state.delivered:
            self._on_closed(state.ended)

    @staticmethod
    def _ended_by_call() -> errors.BadSubscriptionError:
        return errors.BadSubscriptionError("the subscription was ended by unsubscribe()")

    def _limit_is_reached(self) -> bool:
        """Return whether the subscription ended by its limit."""
        state = self._state
        return self._limit > 0 or 0 < state.limit <= state.delivered

    def _drop_above(self, limit: int) -> None:
        """Drop the unread messages that are not among the first ``limit`` messages."""
        items = self._mailbox.items
        with self._intake:
            self._limit = limit
            try:
                for _ in range(self._pending.admitted - limit):
                    items.pop()
            except IndexError:  # the others were read
                pass

    def drain(self, timeout: float | timedelta | None = None) -> None:
        """
        End the subscription after all messages in flight have been processed.

        With a callback, this waits until the callback has returned from the last message, unless the
        callback itself calls it. Without a callback, the messages can still be read afterwards.

        Args:
            timeout: in seconds; ``None``: the connection's ``drain_timeout``.

        Raises:
            DrainTimeoutError: the timeout has passed; the remaining messages are dropped.
            BadSubscriptionError, PermissionsError: the subscription has ended before, and not by its
                limit. After it ended by its limit, this waits for the callback in the same way.
            ConnectionClosedError: the connection is closed.

        """
        deadline = Deadline(self._core.options.drain_timeout if timeout is None else timeout)
        if not self._is_ending():
            try:
                self._core.drain_subscriptions([self._state], deadline)
            finally:
                self._draining = True
                self._on_closed(errors.BadSubscriptionError("the subscription was drained"))
        if not self._wait_drained(deadline):
            raise errors.DrainTimeoutError(f"the callback for {self.subject!r} is still running")

    def _is_ending(self) -> bool:
        """Return whether only the callback has to end; raise if the subscription has ended before."""
        if not self._limit_is_reached() and (not self._draining or self._done.is_set()):
            self._mailbox.raise_reason()
        return self._mailbox.closed

    def _wait_drained(self, deadline: Deadline) -> bool:
        """Wait until the callback, if any, has processed its last message; return whether it has."""
        # Called from the callback itself, return at once. After the deadline, drop the other messages.
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

    # --- called by the reader; see `SubscriptionReceiver` ---------------------------------------

    def _deliver(self, deliveries: list[RawMessage]) -> None:
        """Process messages that have arrived."""
        self._enqueue(deliveries)

    def _enqueue(self, deliveries: list[RawMessage]) -> None:
        """Queue messages; drop those above the pending limits, and report them."""
        with self._intake:
            if self._limit:
                # They were in flight while unsubscribe() was called.
                deliveries = deliveries[: max(0, self._limit - self._pending.admitted)]
            fitting = self._pending.admit(deliveries, len(self._mailbox))
            if fitting == len(deliveries):
                self._slow = False
                self._mailbox.put(deliveries, fitting)
                return
            self._mailbox.put(deliveries[:fitting], fitting)
        self._on_dropped(deliveries[fitting:])

    def _on_dropped(self, dropped: list[RawMessage]) -> None:
        """Report messages above the pending limits."""
        self._dropped += len(dropped)
        if not self._slow:
            # Reported once each time the subscription falls behind, not for each message.
            self._slow = True
            self._core.events.error(errors.SlowConsumerError(self.subject, self.sid, self._dropped))

    def _on_refused(self, error: errors.PermissionsError) -> bool:
        """End a subscription that is not permitted; reading raises the error after the last message."""
        if self._mailbox.closed:
            return False
        # It is not restored after a reconnect either, because its readers get the error.
        self._core.table.remove_deferred(self._state)
        self._on_closed(error)
        return True

    def _on_closed(self, reason: BaseException) -> None:
        """End the subscription; after a close by the user, the callback gets no more messages."""
        self._mailbox.close(reason)
        deliberate = isinstance(reason, errors.ConnectionClosedError) and is_deliberate_close(
            reason
        )
        if self._callback is not None and deliberate:
            self._mailbox.items.clear()

    def _end_with(self, reason: BaseException) -> None:
        """End the subscription on both sides: it was not created, its thread failed, or all is closed."""
        self._core.table.remove_receiver(self._receiver)
        self._on_closed(reason)

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
                    errors.BadSubscriptionError,
                    errors.ConnectionClosedError,
                    errors.PermissionsError,
                    errors.TimeoutError,
                ):
                    return
                try:
                    returned = callback(msg)
                    if returned is not None:
                        check_returned(returned)
                except BaseException as error:  # noqa: BLE001 - reported
                    self._core.events.callback_raised(f"the callback of {self.subject!r}", error)
        finally:
            self._done.set()


class SubscriptionReceiver(MessageReceiver):
    """Passes messages and events from the reader to a subscription."""

    # It does not keep a subscription without a callback alive. Once such a subscription was collected,
    # messages are dropped and the next one ends it on the server. So the subscription table does not keep
    # an unreferenced connection alive.

    __slots__ = ("_core", "_owner")

    def __init__(self, subscription: Subscription, core: ConnectionCore, *, weak: bool) -> None:
        self._owner: Callable[[], Subscription | None] = (
            weakref.ref(subscription) if weak else lambda: subscription
        )
        self._core = core

    def deliver(self, deliveries: list[RawMessage]) -> None:
        """Queue messages."""
        subscription = self._owner()
        if subscription is not None:
            subscription._deliver(deliveries)
        else:
            self._core.table.remove_deferred(self.subscription)

    def on_permission_error(self, subject: bytes, error: errors.PermissionsError) -> bool:
        """Pass a refusal of the subscription on; the subscription publishes nothing."""
        del subject
        subscription = self._owner()
        if error.operation != "subscribe":
            return False
        if subscription is not None:
            return subscription._on_refused(error)
        self._core.table.remove_deferred(self.subscription)  # not to be restored
        return True

    def on_closed(self, reason: BaseException) -> None:
        """Pass the end on."""
        subscription = self._owner()
        if subscription is not None:
            subscription._on_closed(reason)

    def wait_drained(self, deadline: Deadline) -> bool:
        """Wait for the callback."""
        subscription = self._owner()
        return subscription is None or subscription._wait_drained(deadline)
