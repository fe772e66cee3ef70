"""The subscriptions of a connection, and the commands by which the server learns of them."""

# A subscription and its command are added in one step, with the lock of the state, so that a new server
# gets each of them once: from the buffer, or by `SubscriptionTable.restore()`. Looking up a sid needs no lock,
# because one dictionary access is atomic.

from __future__ import annotations

import itertools
import logging
import os
from typing import Final

from .. import errors
from ..subjects import MAX_CONTROL_LINE
from .direct_reads import DirectReads
from .events import Events
from .mailbox import MessageReceiver, SubscriptionState
from .state import ConnectionState
from .writer import SOON, WITH_NEXT, Flush, Writer

log: logging.Logger = logging.getLogger("jetstream_sync.connection")

#: The largest limit that a server can read. For one with more digits it ends the subscription at once, so the client
#: alone counts up to it.
_MAX_LIMIT: Final = 999_999_999


def subscribe_command(subject: str, queue: str, sid: int) -> bytes:
    """Return the command for a subscription, alone or as a member of a queue group."""
    if queue:
        return f"SUB {subject} {queue} {sid}\r\n".encode()
    return f"SUB {subject} {sid}\r\n".encode()


def unsubscribe_command(sid: int, limit: int = 0) -> bytes:
    """Return the command that ends a subscription, at once or after ``limit`` messages in total."""
    if limit > _MAX_LIMIT:
        return b""
    return b"UNSUB %d %d\r\n" % (sid, limit) if limit else b"UNSUB %d\r\n" % sid


class SubscriptionTable:
    """The subscriptions of a connection; any thread may call its methods."""

    def __init__(
        self,
        subscriptions: dict[int, SubscriptionState],
        state: ConnectionState,
        writer: Writer,
        direct: DirectReads,
        events: Events,
        inbox_prefix: str,
    ) -> None:
        #: The subscriptions by their id.
        self.by_sid: dict[int, SubscriptionState] = subscriptions
        self._last_sid = 0
        self._state = state
        self._writer = writer
        self._direct = direct
        self._events = events
        # Inboxes share an unguessable random part and differ by a number.
        self._inbox_base = f"{inbox_prefix}.{os.urandom(11).hex()}"
        self._inbox_numbers = itertools.count(1)

    def new_inbox(self) -> str:
        """Return a unique subject for replies."""
        return f"{self._inbox_base}{next(self._inbox_numbers):x}"

    def all(self) -> list[SubscriptionState]:
        """Return the current subscriptions."""
        with self._state.lock:
            return list(self.by_sid.values())

    # --- adding and removing --------------------------------------------------------------------

    def add(self, subject: str, queue: str, receiver: MessageReceiver) -> SubscriptionState:
        """
        Subscribe; the command is sent with the next flush or by the flusher.

        Raises:
            BadSubjectError: the subject and the queue group are too long for a command.
            ConnectionDrainingError: the connection is draining, and the receiver is not for replies.
            ConnectionClosedError: the connection is closed.

        """
        return self._add(subject, queue, receiver, 0, SOON)

    def add_deferred(
        self, subject: str, receiver: MessageReceiver, limit: int = 0
    ) -> SubscriptionState:
        """Subscribe as `add()`, for ``limit`` messages if given; sent together with the caller's next command."""
        return self._add(subject, "", receiver, limit, WITH_NEXT)

    def _add(
        self,
        subject: str,
        queue: str,
        receiver: MessageReceiver,
        limit: int,
        flush: Flush,
    ) -> SubscriptionState:
        before = getattr(receiver, "subscription", None)
        try:
            with self._state.lock:
                # While draining, callbacks may still make requests, also the first of the connection.
                self._state.check_usable(draining=receiver.is_reply_inbox)
                subscription, command = self._subscribe(subject, queue, receiver)
                if limit:
                    subscription.limit = limit
                    command += unsubscribe_command(subscription.sid, limit)
                self._writer.control(command, flush)
            if not receiver.awaited:
                self._direct.end()
        except BaseException:
            made = getattr(receiver, "subscription", None)
            if made is not None and made is not before:
                self.remove_deferred(made)  # the call was interrupted after it had subscribed
            raise
        return subscription

    def remove(self, subscription: SubscriptionState, limit: int = 0) -> None:
        """End a subscription, at once or after ``limit`` messages."""
        # The caller must notify the receiver.
        with self._state.lock:
            if subscription.sid in self.by_sid:
                self._unsubscribe(subscription, SOON, limit)

    def remove_deferred(self, subscription: SubscriptionState) -> None:
        """End a subscription; the command is sent together with the next one."""
        with self._state.lock:
            if subscription.sid in self.by_sid:
                self._unsubscribe(subscription, WITH_NEXT)

    def remove_receiver(self, receiver: MessageReceiver) -> None:
        """End what a receiver has subscribed to: its owner could not be created, or has failed."""
        with self._state.lock:
            for subscription in list(self.by_sid.values()):
                if subscription.receiver is receiver:
                    self._unsubscribe(subscription, SOON)

    def stop(self, subscriptions: list[SubscriptionState]) -> None:
        """Unsubscribe on the server; messages in flight are still delivered until `forget()`."""
        with self._state.lock:
            for subscription in subscriptions:
                # It stays for the messages in flight.
                subscription.ending = True
                self._writer.control(unsubscribe_command(subscription.sid), WITH_NEXT)

    def forget(self, subscriptions: list[SubscriptionState]) -> None:
        """Remove subscriptions that were stopped."""
        with self._state.lock:
            for subscription in subscriptions:
                self.by_sid.pop(subscription.sid, None)

    # --- commands -------------------------------------------------------------------------------

    def _subscribe(
        self, subject: str, queue: str, receiver: MessageReceiver
    ) -> tuple[SubscriptionState, bytes]:
        """Add a subscription, and return it with the command that must be sent; the state's ``lock`` is held."""
        # The receiver has it as `subscription` before it is in the table, where the reader finds it.
        command = subscribe_command(subject, queue, self._last_sid + 1)
        size = len(command) - len(b"\r\n")
        if size > MAX_CONTROL_LINE:
            raise errors.BadSubjectError(
                subject,
                f"the command line with it and its queue group has {size} bytes; "
                f"a server accepts {MAX_CONTROL_LINE}",
            )
        self._last_sid += 1
        subscription = SubscriptionState(self._last_sid, subject, queue, receiver)
        receiver.subscription = subscription
        self.by_sid[subscription.sid] = subscription
        return subscription, command

    def _unsubscribe(self, subscription: SubscriptionState, flush: Flush, limit: int = 0) -> None:
        """End a subscription, and append the command for the server; the state's ``lock`` is held."""
        # It ends after ``limit`` messages, at once if ``limit`` is 0 or was reached before. It leaves the table last:
        # a call that a Ctrl-C interrupts can be repeated.
        if limit > subscription.delivered:
            subscription.limit = limit
            self._writer.control(unsubscribe_command(subscription.sid, limit), flush)
            if limit > subscription.delivered:
                return
            # The reader has delivered the last message before it saw the limit.
        else:
            self._writer.control(unsubscribe_command(subscription.sid), flush)
        self.by_sid.pop(subscription.sid, None)

    def restore(self) -> bytes:
        """Return the commands that restore every subscription and limit; the state's ``lock`` is held."""
        parts = []
        for subscription in self.by_sid.values():
            if subscription.ending:
                continue
            parts.append(
                subscribe_command(subscription.subject, subscription.queue, subscription.sid)
            )
            if subscription.limit:
                left = max(1, subscription.limit - subscription.delivered)
                parts.append(unsubscribe_command(subscription.sid, left))
        return b"".join(parts)

    # --- called by the connection's own threads -------------------------------------------------

    def on_limit_reached(self, subscription: SubscriptionState) -> None:
        """Remove a subscription that has received its limit of messages."""
        with self._state.lock:
            self.by_sid.pop(subscription.sid, None)
            if self._state.reconnects or subscription.limit > _MAX_LIMIT:
                # An UNSUB with a limit that was buffered over a reconnect makes the new server count
                # from zero, so it would keep the subscription. Of a larger limit it does not know.
                self._unsubscribe(subscription, SOON)

    def on_connection_change(self, *, connected: bool) -> None:
        """Notify all receivers."""
        for subscription in self.all():
            try:
                subscription.receiver.on_connection_change(connected=connected)
            except Exception as error:  # noqa: BLE001 - reported
                self.on_receiver_error(subscription, error)

    def on_receiver_error(self, subscription: SubscriptionState, error: Exception) -> None:
        """End the subscription of a receiver that raised, and report it; all others continue."""
        log.error(
            "%s: the receiver of %r raised", self._events.name, subscription.subject, exc_info=error
        )
        ended = errors.ConnectionClosedError(
            f"an internal error ended the subscription to {subscription.subject!r}"
        )
        ended.__cause__ = error
        self.remove_deferred(subscription)
        self._events.error(ended)
        self._close_receiver(subscription, ended)

    def close(self, reason: BaseException) -> None:
        """End all subscriptions; the connection is closed."""
        for subscription in self.all():
            self._close_receiver(subscription, reason)
        self.by_sid.clear()

    def _close_receiver(self, subscription: SubscriptionState, reason: BaseException) -> None:
        try:
            subscription.receiver.on_closed(reason)
        except Exception:
            log.exception("%s: the receiver of %r raised", self._events.name, subscription.subject)
