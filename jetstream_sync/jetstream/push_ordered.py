"""Ordered push subscriptions (ADR-17): every message once and in order."""

# Rules:
#
# 1. Messages are enqueued only in order, so everything in the queue is valid, and a new consumer starts
#    after its last message.
# 2. The feed is the subject to which the current consumer delivers. After a gap, a missed heartbeat or a
#    reconnect the feed is retired: later deliveries from it are dropped.
# 3. A dedicated thread creates the next consumer with a new feed, and retries until it succeeds. It ends
#    after that. Neither the reader nor the threads that take messages wait for it.

from __future__ import annotations

import logging
import os
from dataclasses import replace
from datetime import timedelta

from ..api.reply import DeliverySequence
from ..api.subscribing import SubscribeRequest, ordered_config
from ..client.core import ConnectionCore
from ..client.subscription import Subscription, SubscriptionReceiver
from ..client.threads import spawn
from ..codec import encode
from ..errors import (
    BadSubscriptionError,
    ConnectionClosedError,
    ConnectionLostError,
    Error,
    IteratorClosedError,
    NotJSMessageError,
)
from ..net.clock import FOREVER, monotonic
from ..protocol.parser import Delivery
from .api_requests import APIRequests, EchoCheck
from .heartbeat import HeartbeatTimeout
from .ordered_cursor import OrderedCursor
from .push import PushOptions, PushSubscription

log: logging.Logger = logging.getLogger("jetstream_sync.ordered")


class _Feed(SubscriptionReceiver):
    """The deliveries of one consumer of an ordered subscription."""

    __slots__ = ("retired",)

    def __init__(self, owner: Subscription, core: ConnectionCore, *, weak: bool) -> None:
        super().__init__(owner, core, weak=weak)
        #: Whether deliveries from this feed are dropped.
        self.retired = False


class OrderedPushSubscription(PushSubscription):
    """
    A subscription to a stream that returns each message once and in order, without acknowledgements.

    Returned by `JetStream.subscribe` with ``ordered_consumer``. It has no state of its own on the
    server: after a gap, a missed heartbeat or a reconnect it creates another consumer, which starts
    after the last received message.

    Flow control bounds the pending messages, so there are no pending limits.
    """

    def __init__(
        self, api: APIRequests, stream: str, request: SubscribeRequest, options: PushOptions
    ) -> None:
        """Subscribe to a first inbox; call `_start()` next."""
        prefix = request.requested.get("name") or os.urandom(8).hex()
        first = ordered_config(request, f"{prefix}_0", api.core.new_inbox())
        self._cursor = OrderedCursor(api, stream, prefix, encode(first))
        # --- under _receive_lock ---
        self._feed: _Feed  # set by `_new_receiver()`
        self._unused = True  # whether no consumer delivers to the first feed yet
        self._renewing = False  # whether a thread is creating a consumer
        super().__init__(
            api, stream, first, replace(options, pending_msgs_limit=0, pending_bytes_limit=0)
        )
        self._sequence = self._cursor.sequence

    def _new_receiver(self) -> _Feed:
        self._feed = self._new_feed()
        return self._feed

    def _new_feed(self) -> _Feed:
        return _Feed(self, self._core.internal, weak=self._callback is None)

    def _start(self) -> None:
        """Create the first consumer."""
        check = EchoCheck(self._api, f"the consumer of stream {self._stream!r}", self._config)
        self._cursor.renew(self._api.deadline(), self._next_inbox)
        info = self._cursor.info
        assert info is not None
        if fields := check.left_out(info.config):
            outcome = check.removed(self._cursor.drop)
            raise check.refuse(fields, info.config, outcome)
        self._created = True
        heartbeat = self._config.idle_heartbeat
        assert heartbeat is not None
        self._start_monitor(heartbeat)

    @property
    def consumer_name(self) -> str:
        """The name of the current consumer, or of the one that is being created."""
        return self._cursor.name

    # --- ending ---------------------------------------------------------------------------------

    def unsubscribe(self, limit: int = 0) -> None:
        """End the subscription, at once or after a number of messages, and delete its consumer."""
        if limit == 0 and not self._limit_is_reached():
            self._give_up()
        super().unsubscribe(limit)

    def drain(self, timeout: float | timedelta | None = None) -> None:
        """End the subscription after all messages in flight were handled."""
        self._give_up()
        super().drain(timeout)

    def _on_closed(self, reason: BaseException) -> None:
        """Handle the end of the subscription."""
        self._cursor.stopping = True
        super()._on_closed(reason)

    def _give_up(self) -> None:
        """Create no more feeds: the current one is the last."""
        self._mailbox.raise_reason()
        with self._receive_lock:
            self._cursor.stopping = True

    # --- called by the reader -------------------------------------------------------------------

    def _deliver(self, receiver: SubscriptionReceiver, deliveries: list[Delivery]) -> None:
        """Enqueue messages and statuses unless the feed is retired."""
        with self._receive_lock:
            if receiver is self._feed and not self._feed.retired:
                self._receive(deliveries)

    def _on_connection_change(self, *, connected: bool) -> None:
        """Create another consumer after a reconnect: the old one may be gone or have a gap."""
        with self._receive_lock:
            if connected:
                self._replace_consumer("the connection was re-established")
            else:
                self._feed.retired = True

    def _is_contiguous(self, deliveries: list[Delivery]) -> bool:
        """Return it, except for the first deliveries of a consumer: `_accepts` checks their start."""
        return self._cursor.sequence.last != 0 and super()._is_contiguous(deliveries)

    def _accepts(self, reply: bytes) -> bool:
        sequence = self._cursor.sequence
        if self._feed.retired:
            return False
        try:
            if sequence.last == 0 and self._cursor.repeats(reply):
                self._replace_consumer("the server of the consumer lags behind")
                return False
            if sequence.follows(reply):
                return True
        except NotJSMessageError as error:
            self._core.report_error(error)  # another client published to the inbox
            return False
        self._replace_consumer(f"a message is missing after consumer sequence {sequence.last}")
        return False

    def _check_sent(self, sent: int, sequence: DeliverySequence) -> None:
        if sent != sequence.last and not self._feed.retired:
            self._replace_consumer(
                f"a message is missing: {sent} were sent, {sequence.last} were received"
            )

    def _on_silence(self, timeout: HeartbeatTimeout) -> None:
        with self._receive_lock:
            if self._core.address is not None and not self._renewing:
                self._replace_consumer(str(timeout.error(self.consumer_name)))

    # --- another consumer -----------------------------------------------------------------------

    def _replace_consumer(self, why: str) -> None:
        """Retire the feed and start creating another consumer; ``_receive_lock`` is held."""
        log.info("ordered subscription to %r: %s", self._stream, why)
        self._feed.retired = True
        if not self._renewing and not self._cursor.stopping:
            self._renewing = True
            spawn(f"ordered-{self._stream}", self._renew)

    def _renew(self) -> None:
        """Create consumers until one has a valid feed; runs on a dedicated thread."""
        while True:
            try:
                self._cursor.renew(FOREVER, self._next_inbox)
            except ConnectionLostError:
                pass  # the connection is lost
            except (ConnectionClosedError, IteratorClosedError):
                return  # it has ended and that was reported
            except Error as error:
                self._fail(error)
                return
            with self._receive_lock:
                if self._mailbox.closed:
                    break
                if not self._feed.retired or self._core.address is None:
                    # While disconnected, the reconnect starts this again.
                    self._renewing = False
                    return
        self._cursor.drop()

    def _next_inbox(self) -> str:
        """Return the subject of a new feed; called before each attempt to create a consumer."""
        core = self._core
        with self._receive_lock:
            if self._cursor.stopping:
                raise IteratorClosedError("the subscription has ended")
            if self._unused:
                self._unused = False
                return self.subject
            if self._renewing and core.address is None:
                raise ConnectionLostError("there is no connection")
            old = self._state
            feed = self._new_feed()
            inbox = core.new_inbox()
            core.add_subscription(inbox, "", feed)
            core.remove_subscription_deferred(old)
            self._feed = self._receiver = feed
            self.subject = inbox
            self._cursor.sequence.last = 0
            self._last_seen = monotonic()
        return inbox

    def _fail(self, error: Error) -> None:
        """End with an error that another consumer would cause again."""
        self._core.remove_subscription_deferred(self._state)
        if self._callback is None:
            self._on_closed(error)
        else:
            self._core.report_error(error)
            self._on_closed(
                BadSubscriptionError(f"the ordered subscription could not continue: {error}")
            )
