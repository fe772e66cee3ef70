"""The subscriptions of a connection, and the commands by which the server learns of them."""

# A subscription and its command are added in one step, with the lock of the state, so that a new server
# gets each of them once: from the buffer, or by `SubscriptionTable.restore()`.

from __future__ import annotations

import itertools
import logging
import os
from collections.abc import Callable

from .. import errors
from ..protocol.session import Session, SubscriptionState
from .direct_reads import DirectReads
from .events import Events
from .mailbox import MessageReceiver
from .state import ConnectionState
from .writer import Writer

log: logging.Logger = logging.getLogger("jetstream_sync.connection")


class SubscriptionTable:
    """The subscriptions of a connection; any thread may call its methods."""

    def __init__(
        self,
        session: Session[MessageReceiver],
        state: ConnectionState,
        writer: Writer,
        direct: DirectReads,
        events: Events,
        inbox_prefix: str,
    ) -> None:
        self._session = session
        #: The subscriptions by their id.
        self.by_sid: dict[int, SubscriptionState[MessageReceiver]] = session.subscriptions
        #: Returns the commands that restore all subscriptions; the lock of the state is held.
        self.restore: Callable[[], bytes] = session.resubscribe
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

    def all(self) -> list[SubscriptionState[MessageReceiver]]:
        """Return the current subscriptions."""
        with self._state.lock:
            return list(self.by_sid.values())

    # --- adding and removing --------------------------------------------------------------------

    def add(
        self, subject: str, queue: str, receiver: MessageReceiver
    ) -> SubscriptionState[MessageReceiver]:
        """Subscribe; the command is sent with the next flush or by the flusher."""
        before = getattr(receiver, "subscription", None)
        try:
            with self._state.lock:
                # While draining, callbacks may still make requests, also the first of the connection.
                self._state.check_usable(draining=receiver.is_reply_inbox)
                subscription, command = self._session.subscribe(subject, queue, receiver)
                self._writer.append(command)
            if not receiver.awaited:
                self._direct.end()
        except BaseException:
            self._take_back(receiver, before)
            raise
        return subscription

    def add_deferred(
        self, subject: str, receiver: MessageReceiver, limit: int = 0
    ) -> SubscriptionState[MessageReceiver]:
        """Subscribe, for ``limit`` messages if given; sent together with the caller's next command."""
        before = getattr(receiver, "subscription", None)
        try:
            with self._state.lock:
                self._state.check_usable(draining=receiver.is_reply_inbox)
                subscription, command = self._session.subscribe(subject, "", receiver)
                if limit:
                    command += self._session.unsubscribe(subscription, limit)
                self._writer.enqueue_deferred(command)
            if not receiver.awaited:
                self._direct.end()
        except BaseException:
            self._take_back(receiver, before)
            raise
        return subscription

    def _take_back(
        self, receiver: MessageReceiver, before: SubscriptionState[MessageReceiver] | None
    ) -> None:
        """End the subscription of an interrupted call, if it was made."""
        made = getattr(receiver, "subscription", None)
        if made is not None and made is not before:
            self.remove_deferred(made)

    def remove(self, subscription: SubscriptionState[MessageReceiver], limit: int = 0) -> None:
        """End a subscription, at once or after ``limit`` messages."""
        # The caller must notify the receiver.
        with self._state.lock:
            if subscription.sid in self.by_sid:
                self._writer.append(self._session.unsubscribe(subscription, limit))
                if limit and limit <= subscription.delivered:
                    # The reader delivered the last message before this thread took the lock.
                    self._session.forget(subscription)

    def remove_deferred(self, subscription: SubscriptionState[MessageReceiver]) -> None:
        """End a subscription; the command is sent together with the next one."""
        with self._state.lock:
            if subscription.sid in self.by_sid:
                self._writer.enqueue_deferred(self._session.unsubscribe(subscription))

    def remove_receiver(self, receiver: MessageReceiver) -> None:
        """End what a receiver has subscribed to: its owner could not be created, or has failed."""
        with self._state.lock:
            for subscription in list(self.by_sid.values()):
                if subscription.receiver is receiver:
                    self._writer.append(self._session.unsubscribe(subscription))

    def stop(self, subscriptions: list[SubscriptionState[MessageReceiver]]) -> None:
        """Unsubscribe on the server; messages in flight are still delivered until `forget()`."""
        with self._state.lock:
            for subscription in subscriptions:
                self._writer.enqueue_deferred(self._session.stop(subscription))

    def forget(self, subscriptions: list[SubscriptionState[MessageReceiver]]) -> None:
        """Remove subscriptions that were stopped."""
        with self._state.lock:
            for subscription in subscriptions:
                self._session.forget(subscription)

    # --- called by the connection's own threads -------------------------------------------------

    def on_limit_reached(self, subscription: SubscriptionState[MessageReceiver]) -> None:
        """Remove a subscription that has received its limit of messages."""
        with self._state.lock:
            self._session.forget(subscription)
            if self._state.reconnects:
                # An UNSUB with a limit that was buffered over a reconnect makes the new server count
                # from zero, so it would keep the subscription.
                self._writer.append(self._session.unsubscribe(subscription))

    def on_connection_change(self, *, connected: bool) -> None:
        """Notify all receivers."""
        for subscription in self.all():
            try:
                subscription.receiver.on_connection_change(connected=connected)
            except Exception as error:  # noqa: BLE001 - reported
                self.on_receiver_error(subscription, error)

    def on_receiver_error(
        self, subscription: SubscriptionState[MessageReceiver], error: Exception
    ) -> None:
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

    def _close_receiver(
        self, subscription: SubscriptionState[MessageReceiver], reason: BaseException
    ) -> None:
        try:
            subscription.receiver.on_closed(reason)
        except Exception:
            log.exception("%s: the receiver of %r raised", self._events.name, subscription.subject)
