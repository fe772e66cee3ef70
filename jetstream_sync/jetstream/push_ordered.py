"""
Ordered push subscriptions (ADR-17): every message once and in order, whatever happens in between.

Rules:

1. Messages get into the queue only in order, so whatever is in it is good, and a new consumer starts
   behind its last message.
2. What a gap, a missed heartbeat or a new link shows first is that the feed, the subject that the
   current consumer delivers to, is no good any more: all else that comes from it is dropped.
3. A thread of its own makes the next consumer, with a feed of its own, as often as it takes. It lives
   until that is done. Neither the reader nor those who read messages wait for it.
"""

from __future__ import annotations

import logging
import os
from dataclasses import replace
from datetime import timedelta

from ..api.gaps import DeliverySequence
from ..api.subscribing import SubscribeRequest, ordered_config
from ..client.receiver import MessageReceiver
from ..client.threads import spawn
from ..errors import (
    BadSubscriptionError,
    ConnectionClosedError,
    ConnectionLostError,
    Error,
    IteratorClosedError,
    NotJSMessageError,
    PermissionsError,
)
from ..net.clock import FOREVER, Deadline, monotonic
from ..protocol.parser import Delivery
from .api_requests import APIRequests
from .heartbeat import HeartbeatTimeout
from .ordered import OrderedCursor
from .push import PushOptions, PushSubscription

__all__ = ["OrderedPushSubscription"]

log = logging.getLogger("jetstream_sync.ordered")


class _Feed:
    """What one consumer of an ordered subscription delivers; a `MessageReceiver`."""

    is_reply_inbox = False

    def __init__(self, owner: OrderedPushSubscription) -> None:
        self._owner = owner
        #: Whether what comes from here is dropped.
        self.retired = False

    def deliver(self, deliveries: list[Delivery]) -> None:
        """Take messages and statuses from the reader."""
        self._owner.deliver_from(self, deliveries)

    def on_connection_change(self, *, connected: bool) -> None:
        """Tell the owner."""
        self._owner.on_connection_change(connected=connected)

    def on_permission_error(self, subject: bytes, error: PermissionsError) -> bool:
        """Tell the owner."""
        return self._owner.on_permission_error(subject, error)

    def on_closed(self, reason: BaseException) -> None:
        """Tell the owner."""
        self._owner.on_closed(reason)

    def wait_drained(self, deadline: Deadline) -> bool:
        """Ask the owner."""
        return self._owner.wait_drained(deadline)


class OrderedPushSubscription(PushSubscription):
    """
    The messages of a stream, each once and in order, without acknowledgements.

    Returned by `JetStream.subscribe` with ``ordered_consumer``. It has no state of its own on the
    server: when a message is missing, when the consumer is silent, and after each reconnect, it makes
    another consumer, which starts behind the last message that came.

    How much waits unread is bounded by flow control, so there are no pending limits.
    """

    def __init__(
        self, api: APIRequests, stream: str, wanted: SubscribeRequest, options: PushOptions
    ) -> None:
        """
        Listen on a first inbox; `start()` comes next.

        Args:
            api: the JetStream API.
            stream: the name of the stream.
            wanted: what was asked for.
            options: what to do with messages.

        Raises:
            InvalidOptionError: something was asked for that an ordered consumer cannot have.

        """
        prefix = wanted.said.get("name") or os.urandom(8).hex()
        first = ordered_config(wanted, f"{prefix}_0", api.core.new_inbox())
        self._position = OrderedCursor(api, stream, prefix, first)
        # --- under _receive_lock ---
        self._feed = _Feed(self)
        self._unused = True  # whether no consumer was to deliver to the feed yet
        self._renewing = False  # whether a thread is making a consumer
        super().__init__(
            api, stream, first, replace(options, pending_msgs_limit=0, pending_bytes_limit=0)
        )
        self._sequence = self._position.sequence

    def _sink(self) -> MessageReceiver:
        return self._feed

    def start(self) -> None:
        """
        Create the first consumer.

        Raises:
            StreamNotFoundError: there is no such stream.
            BadRequestError: the server rejected the consumer config.
            TimeoutError: the server did not reply in time.
            ConnectionClosedError: the connection is closed.

        """
        self._position.renew(self._api.deadline(), self._next_inbox)
        self._created = True
        heartbeat = self._config.idle_heartbeat
        assert heartbeat is not None
        self._start_monitor(heartbeat)

    @property
    def consumer_name(self) -> str:
        """The name of the consumer that is read now, or is just being made."""
        return self._position.name

    # --- ending ---------------------------------------------------------------------------------

    def unsubscribe(self, limit: int = 0) -> None:
        """
        End the subscription, at once or after a number of messages, and delete its consumer.

        Args:
            limit: as for `PushSubscription.unsubscribe`, also across consumers.

        Raises:
            Error: as `PushSubscription.unsubscribe`.

        """
        if limit == 0 and not self._limit_is_reached():
            self._give_up()
        super().unsubscribe(limit)

    def drain(self, timeout: float | timedelta | None = None) -> None:
        """
        End the subscription, but not before every message that is on its way has been handled.

        Args:
            timeout: in seconds; ``None``: the connection's ``drain_timeout``.

        Raises:
            Error: as `PushSubscription.drain`.

        """
        self._give_up()
        super().drain(timeout)

    def on_closed(self, reason: BaseException) -> None:
        """Learn that nothing more will come."""
        self._position.given_up = True
        super().on_closed(reason)

    def _give_up(self) -> None:
        """Let no more feeds be made: the one that there is will be given up."""
        self._mailbox.raise_reason()
        with self._receive_lock:
            self._position.given_up = True

    # --- the reader's side ----------------------------------------------------------------------

    def deliver_from(self, feed: _Feed, deliveries: list[Delivery]) -> None:
        """Take messages and statuses from the reader, unless the feed is no good any more."""
        with self._receive_lock:
            if feed is self._feed and not feed.retired:
                self._receive(deliveries)

    def on_connection_change(self, *, connected: bool) -> None:
        """Make another consumer after a reconnect: nobody knows what became of the old one."""
        with self._receive_lock:
            if connected:
                self._replace_consumer("the connection was re-established")
            else:
                self._feed.retired = True

    def _accepts(self, reply: bytes) -> bool:
        sequence = self._position.sequence
        if self._feed.retired:
            return False
        try:
            if sequence.follows(reply):
                return True
        except NotJSMessageError as error:
            self._core.events.error(error)  # somebody published to the inbox
            return False
        self._replace_consumer(f"a message is missing behind {sequence.last}")
        return False

    def _check_sent(self, sent: int, sequence: DeliverySequence) -> None:
        if sent != sequence.last and not self._feed.retired:
            self._replace_consumer(f"a message is missing: {sent} were sent, {sequence.last} came")

    def _on_silence(self, timeout: HeartbeatTimeout) -> None:
        with self._receive_lock:
            if self._core.address is not None and not self._renewing:
                self._replace_consumer(str(timeout.error(self.consumer_name)))

    # --- another consumer -----------------------------------------------------------------------

    def _replace_consumer(self, why: str) -> None:
        """Drop what else comes, and see to another consumer; ``_receive_lock`` is held."""
        log.info("ordered subscription to %r: %s", self._stream, why)
        self._feed.retired = True
        if not self._renewing and not self._position.given_up:
            self._renewing = True
            spawn(f"ordered-{self._stream}", self._renew)

    def _renew(self) -> None:
        """Make consumers until there is one whose feed is good; on a dedicated thread."""
        while True:
            try:
                self._position.renew(FOREVER, self._next_inbox)
            except ConnectionLostError:
                pass  # the connection is lost
            except (ConnectionClosedError, IteratorClosedError):
                return  # it has ended, and everybody was told
            except Error as error:
                self._fail(error)
                return
            with self._receive_lock:
                if self._mailbox.closed:
                    break
                if not self._feed.retired or self._core.address is None:
                    # Without a link, the next one starts this again.
                    self._renewing = False
                    return
        self._position.drop()

    def _next_inbox(self) -> str:
        """Return the subject of a new feed; called before each attempt to make a consumer."""
        core = self._core
        with self._receive_lock:
            if self._position.given_up:
                raise IteratorClosedError("the subscription has ended")
            if self._unused:
                self._unused = False
                return self.subject
            if self._renewing and core.address is None:
                raise ConnectionLostError("there is no connection")
            old = self._interest
            feed = _Feed(self)
            inbox = core.new_inbox()
            self._interest = core.add_subscription(inbox, "", feed)
            core.remove_subscription_deferred(old)
            self._feed = feed
            self.subject = inbox
            self._position.sequence.last = 0
            self._last_seen = monotonic()
        return inbox

    def _fail(self, error: Error) -> None:
        """End for a reason that another consumer would meet, too."""
        self._core.remove_subscription_deferred(self._interest)
        if self._callback is None:
            self.on_closed(error)
        else:
            self._core.events.error(error)
            self.on_closed(BadSubscriptionError(f"it could not go on: {error}"))
