"""
Subscriptions to what a push consumer delivers (ADR-15), with automatic status management.

Rules:

1. The reader looks at what came once per read: when it all has payloads, and the last one has the
   sequence that it should have, then no message is missing and none is a status.
2. Statuses that somebody has to act on stand in the queue where they came. Who takes messages acts on
   them: a flow control request is answered when what was before it has been handed out.
3. Heartbeats are watched by a timer, and by their headers; they do not get into the queue.
4. A message whose lease ran out while it waited here is dropped: see `Leases`.
5. A queue group shares its consumer: its members see neither all messages nor all statuses, so
   nothing of 3 is done for them.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from operator import itemgetter
from threading import get_ident
from typing import Final, cast

from ..api.consumer import ConsumerConfig, ConsumerInfo
from ..api.enums import AckPolicy
from ..api.gaps import DeliverySequence
from ..api.reply import ack_tokens
from ..api.status import PullStatus, PullStatusKind, parse_pull_status
from ..client.core import is_deliberate_close
from ..client.subscription import MsgCallback, Subscription
from ..errors import (
    BadSubscriptionError,
    ConnectionClosedError,
    ConsumerSequenceMismatchError,
    Error,
    ForkedConnectionError,
    InvalidOptionError,
    MsgAlreadyAckdError,
    NotJSMessageError,
    PullError,
)
from ..headers import CONSUMER_STALLED, LAST_CONSUMER, LAST_STREAM, parse_headers, parse_status
from ..net.clock import Deadline, monotonic
from ..protocol.parser import Delivery
from .api_requests import APIRequests
from .consume import JetStreamCallback, nak_failed
from .consumer_api import ConsumerAccessors, release_consumer
from .heartbeat import PUSH_INTERVALS, HeartbeatMonitor, HeartbeatTimeout
from .leases import Leases
from .message import JetStreamMsg

__all__ = ["PENDING_BYTES_LIMIT", "PENDING_MSGS_LIMIT", "PushOptions", "PushSubscription"]

#: What may wait unread where nobody says; as in nats-py.
PENDING_MSGS_LIMIT: Final = 512 * 1024
PENDING_BYTES_LIMIT: Final = 256 * 1024 * 1024

_payload = itemgetter(3)


@dataclass(frozen=True, slots=True, kw_only=True)
class PushOptions:
    """How messages are handed out, and what happens around them; the consumer is not touched by it."""

    callback: JetStreamCallback | None = None
    """Called with each message; ``None``: they are read."""
    manual_ack: bool = False
    """Whether the callback acknowledges by itself."""
    pending_msgs_limit: int = PENDING_MSGS_LIMIT
    """Messages that may wait unread; 0: no limit."""
    pending_bytes_limit: int = PENDING_BYTES_LIMIT
    """Bytes that may wait unread; 0: no limit."""
    heartbeat_intervals: float = PUSH_INTERVALS
    """How many heartbeats may be missed."""
    delete_consumer: bool = True
    """Whether a consumer that was made for the subscription is deleted with it."""

    def __post_init__(self) -> None:
        if not self.heartbeat_intervals >= 1:
            raise InvalidOptionError(
                "heartbeat_intervals", self.heartbeat_intervals, "must be 1 or above"
            )


class PushSubscription(ConsumerAccessors, Subscription):
    """
    The messages of a consumer that delivers them.

    Made by `JetStream.subscribe` and `JetStream.subscribe_bind`. Without a callback, messages are
    read with `next_msg()` or by iterating. With one, a thread of its own calls it for each message
    and acknowledges the message when the callback returns; when it raises, the error is reported to
    ``error_cb``, and the message is delivered again after 5 seconds, or the step of the consumer's
    ``backoff``.

    Flow control and heartbeats are taken care of. Messages that are missing
    (`ConsumerSequenceMismatchError`) and silence (`NoHeartbeatError`) are reported to ``error_cb``.

    Any thread may use a subscription, and several may read the same one: each message goes to one.
    """

    def __init__(
        self, api: APIRequests, stream: str, config: ConsumerConfig, options: PushOptions
    ) -> None:
        """
        Listen on the subject that the consumer delivers to, or will.

        Args:
            api: where to ask.
            stream: the stream's name.
            config: the consumer's config.
            options: what to do with messages.

        """
        assert config.deliver_subject is not None
        self._api = api
        self._config = config
        self._options = options
        self._stream = stream
        self._consumer = config.durable_name or config.name or ""
        # What messages are born with: whether an acknowledgement is open, or not wanted at all.
        unacked = config.ack_policy in (AckPolicy.NONE, AckPolicy.FLOW_CONTROL)
        self._settled = None if unacked else False
        self._leases = Leases(api, stream, lambda: self.consumer_name, config)
        # Held while the reader hands messages in, and while the subscription's limit is set.
        self._receive_lock = threading.Lock()
        # --- under _receive_lock ---
        self._sequence = None if config.deliver_group else DeliverySequence(None)
        self._received_count = 0  # messages that came, without statuses
        self._max_msgs = 0  # messages after which it ends; 0: no limit
        self._release_due = False  # whether the consumer is to be deleted at the end
        self._created = False  # whether it was made for this subscription
        self._ending = False  # whether unsubscribe() or drain() was called, or the limit reached
        self._last_seen = monotonic()
        self._last_flow_control = b""  # the flow control request that was answered last
        self._monitor: HeartbeatMonitor | None = None
        super().__init__(
            api.core,
            config.deliver_subject,
            config.deliver_group or "",
            self._callback_of(options),
            options.pending_msgs_limit,
            options.pending_bytes_limit,
        )

    def set_consumer(self, info: ConsumerInfo, *, created: bool) -> None:
        """
        Learn which consumer it is; called once, before anybody else has the subscription.

        Args:
            info: what is known of it.
            created: whether it was made for this subscription.

        """
        self._consumer = info.name
        self._config = info.config
        self._leases.adopt(info.config)
        self._created = created
        if created and self._sequence is not None:
            with self._receive_lock:
                if self._sequence.last is None:
                    # What is delivered from now on comes here.
                    self._sequence.last = info.delivered.consumer_seq
        heartbeat = info.config.idle_heartbeat
        if heartbeat and self._sequence is not None:
            self._watch(heartbeat)

    def _watch(self, heartbeat: timedelta) -> None:
        """Watch the heartbeats, as long as the subscription lasts."""
        timeout = HeartbeatTimeout(heartbeat.total_seconds(), self._options.heartbeat_intervals)
        self._last_seen = monotonic()
        self._monitor = HeartbeatMonitor(
            self.consumer_name, timeout, lambda: self._last_seen, lambda: self._on_silence(timeout)
        )
        if self._mailbox.closed:
            self._monitor.stop()  # ended() came meanwhile, and did not see it

    # --- what is known of it --------------------------------------------------------------------

    @property
    def delivered(self) -> int:
        """Messages that came for it so far, dropped ones included, without status messages."""
        return self._received_count

    # --- reading --------------------------------------------------------------------------------

    def next_msg(self, timeout: float | timedelta | None = 1.0) -> JetStreamMsg:
        """
        Return the next message, waiting for it.

        Args:
            timeout: in seconds; ``None``: wait for ever; 0: look once.

        Raises:
            TimeoutError: none came in time.
            PullError: the server sent a status that is an error; the subscription goes on.
            BadSubscriptionError: the subscription has ended, and everything is read.
            StreamNotFoundError, BadRequestError: an ordered subscription can not go on.
            ConnectionClosedError: the connection is closed, and everything is read.
            SubscriptionError: it has a callback.

        """
        self._must_be_readable()
        try:
            delivery = self._mailbox.items.popleft()
        except IndexError:
            return self._next(Deadline(timeout))
        if delivery[3] or not delivery[2]:
            return self._message(delivery) or self._next(Deadline(timeout))
        return self._act_on(delivery) or self._next(Deadline(timeout))

    def __iter__(self) -> Iterator[JetStreamMsg]:
        """
        Yield messages until the subscription or the connection is ended on purpose.

        Raises:
            Error: as `next_msg()`, where it ends for another reason.

        """
        return cast("Iterator[JetStreamMsg]", super().__iter__())

    def _next(self, deadline: Deadline) -> JetStreamMsg:
        items = self._mailbox.items
        while True:
            try:
                delivery = items.popleft()
            except IndexError:
                delivery = self._wait(deadline)
            if delivery[3] or not delivery[2]:
                msg = self._message(delivery)
            else:
                msg = self._act_on(delivery)
            if msg is not None:
                return msg

    def _message(self, delivery: Delivery) -> JetStreamMsg | None:
        """Return the message that the user gets; ``None``: its lease has run out."""
        leases = self._leases
        while monotonic() >= leases.fresh_until and not leases.admits(delivery[1]):
            if not leases.unsure:
                return None
            leases.verify()
        msg = JetStreamMsg(delivery, self._core, self._settled)
        leases.last_taken[get_ident()] = msg
        return msg

    def _wait(self, deadline: Deadline) -> Delivery:
        # Acknowledgements that wait for company go out before we sleep: the server may be waiting
        # for them before it sends more.
        self._core.writer.send_buffered()
        try:
            return self._mailbox.get(deadline)
        except BadSubscriptionError:
            # Everything is read, and had the time to be acknowledged.
            self._release_after_last()
            raise

    def _act_on(self, delivery: Delivery) -> JetStreamMsg | None:
        """Act on what has headers and no payload: return the message that it is, or handle a status."""
        status = parse_pull_status(delivery[2], delivery[3])
        if status is None:
            return self._message(delivery)
        if status.kind is not PullStatusKind.HEARTBEAT:
            error = _status_error(status, delivery)
            if self._callback is None:
                raise error
            self._core.events.error(error)
        elif delivery[1] != self._last_flow_control:
            self._last_flow_control = delivery[1]
            self._answer_flow_control(delivery)
        return None

    def _answer_flow_control(self, delivery: Delivery) -> None:
        headers = None
        if self._config.ack_policy == AckPolicy.FLOW_CONTROL and delivery[0]:
            # The answer acknowledges everything up to here (ADR-60, server 2.14).
            tokens = ack_tokens(delivery[0])
            headers = {LAST_CONSUMER: tokens[4].decode(), LAST_STREAM: tokens[3].decode()}
        command, size = self._core.composer.command(delivery[1], b"", b"", headers)
        self._core.writer.publish(command, size)

    # --- the callback ---------------------------------------------------------------------------

    def _callback_of(self, options: PushOptions) -> MsgCallback | None:
        """Return what the callback's thread calls: the callback, and after it the acknowledgement."""
        callback = options.callback
        if callback is None or options.manual_ack or self._settled is None:
            return cast("MsgCallback | None", callback)

        def call(msg: JetStreamMsg) -> None:
            try:
                callback(msg)
            except Exception:
                nak_failed(msg, self._config)
                raise
            if not msg.is_acked:
                _ack(msg)

        return cast("MsgCallback", call)

    # --- ending ---------------------------------------------------------------------------------

    def unsubscribe(self, limit: int = 0) -> None:
        """
        End the subscription, at once or after a number of messages.

        A consumer that was made for it is deleted, unless ``delete_consumer`` was false, or others
        of its queue group still use it; with a limit, when all messages are read. One that was there
        before is left.

        Args:
            limit: messages, counted from the subscription's start, after which it ends by itself;
                when more have come already, those above it that wait unread are dropped; 0: it ends
                now, and all that waits unread is dropped.

        Raises:
            BadSubscriptionError, PermissionsError: it has ended before, and not by its limit; after
                that, a call without a limit drops what waits unread, and one with a limit does nothing.
            ConnectionClosedError: the connection is closed.
            InvalidOptionError: ``limit`` is below 0.
            APIError, TimeoutError: the subscription has ended, but the consumer was not deleted.

        """
        if not self._limit_is_reached():
            if limit > 0:
                self._end_after(limit)
                return
            self._mailbox.raise_reason()
            self._ending = limit == 0
        super().unsubscribe(limit)
        if not limit:
            self._release()

    def _limit_is_reached(self) -> bool:
        return 0 < self._max_msgs <= self._received_count

    def _end_after(self, limit: int) -> None:
        self._mailbox.raise_reason()
        with self._receive_lock:
            self._max_msgs = limit
            over = self._received_count - limit
            if over >= 0:
                _drop_last(self._mailbox.items.pop, over)
                self._end_by_limit()
        if over >= 0 and not self._mailbox.items:
            self._release_after_last()

    def _end_by_limit(self) -> None:
        """End it with what has come; ``_receive_lock`` is held."""
        self._ending = True
        self._core.remove_subscription(self._interest)
        self.on_closed(BadSubscriptionError(f"the subscription got its {self._max_msgs} messages"))

    def drain(self, timeout: float | timedelta | None = None) -> None:
        """
        End the subscription, but not before every message that is on its way has been handled.

        With a callback, this waits until it has had the last message, unless it is the callback
        that calls. Without one, the messages can still be read; then reading ends. A consumer that
        was made for the subscription is deleted after the last message, as `unsubscribe()` does it;
        an error of that is reported to ``error_cb``.

        Args:
            timeout: in seconds; ``None``: the connection's ``drain_timeout``.

        Raises:
            DrainTimeoutError: it took longer; the rest is dropped.
            BadSubscriptionError, PermissionsError: the subscription has ended before.
            ConnectionClosedError: the connection is closed.

        """
        self._mailbox.raise_reason()
        self._ending = True
        super().drain(timeout)

    def wait_drained(self, deadline: Deadline) -> bool:
        """Wait until the callback, if there is one, has had its last message; say whether it has."""
        done = super().wait_drained(deadline)
        # Without a callback, who reads comes to the end later, except where the connection ends.
        if self._callback is None and not (self._ending and self._mailbox.items):
            self._release_after_last()
        return done

    def on_closed(self, reason: BaseException) -> None:
        """Learn that nothing more will come; a callback stops at once where the user closed."""
        if self._monitor is not None:
            if isinstance(reason, ForkedConnectionError):
                self._monitor.forked()
            else:
                self._monitor.stop()
        if isinstance(reason, BadSubscriptionError) and not self._mailbox.closed:
            # A durable consumer outlives the connection that made it.
            mine = self._ending or not self._config.durable_name
            self._release_due = self._created and self._options.delete_consumer and mine
        super().on_closed(reason)

    def abandon(self) -> None:
        """End a subscription that nobody got, without touching the consumer."""
        self._created = False
        if not self._mailbox.closed:
            super().unsubscribe()

    def _release(self) -> None:
        """Delete the consumer where that is due; once, whoever comes first."""
        if not self._release_due:
            return
        with self._receive_lock:
            due, self._release_due = self._release_due, False
        if due:
            shared = bool(self._config.deliver_group)
            release_consumer(self._api, self._stream, self.consumer_name, shared=shared)

    def _release_after_last(self) -> None:
        """Delete the consumer after the last message: nobody waits for that, so errors are reported."""
        try:
            self._release()
        except Error as error:
            self._core.events.error(error)

    # --- the reader's side ----------------------------------------------------------------------

    def deliver(self, deliveries: list[Delivery]) -> None:
        """Take messages and statuses from the reader."""
        with self._receive_lock:
            self._receive(deliveries)

    def _receive(self, deliveries: list[Delivery]) -> None:
        """Take what came; ``_receive_lock`` is held."""
        self._last_seen = now = monotonic()
        self._leases.times.received(deliveries, now)
        got = len(deliveries)
        if not (all(map(_payload, deliveries)) and self._is_contiguous(deliveries)):
            deliveries, got = self._filter(deliveries)
        self._received_count += got
        if not self._max_msgs or self._received_count < self._max_msgs:
            super().deliver(deliveries)
            return
        over = self._received_count - self._max_msgs
        self._received_count = self._max_msgs
        _drop_last(deliveries.pop, over)
        super().deliver(deliveries)
        self._end_by_limit()

    def _is_contiguous(self, deliveries: list[Delivery]) -> bool:
        """Say whether messages without a status among them come without a gap, and note them."""
        if self._sequence is None:
            return True
        try:
            return self._sequence.follow(deliveries[0][1], deliveries[-1][1], len(deliveries))
        except NotJSMessageError:
            return False

    def _filter(self, deliveries: list[Delivery]) -> tuple[list[Delivery], int]:
        """Look at each delivery; return what goes into the queue, and how many messages are in it."""
        kept: list[Delivery] = []
        got = 0
        for delivery in deliveries:
            status = parse_pull_status(delivery[2], delivery[3])
            if status is None:
                if self._accepts(delivery[1]):
                    kept.append(delivery)
                    got += 1
            elif status.kind is PullStatusKind.HEARTBEAT:
                if self._sequence is not None:
                    kept += self._on_heartbeat(delivery, self._sequence)
            elif status.kind is not PullStatusKind.QUIET:
                kept.append(delivery)
        return kept, got

    def _accepts(self, reply: bytes) -> bool:
        """Note a message, and say whether the user gets it; tell of messages missing before it."""
        sequence = self._sequence
        if sequence is None:
            return True
        before, last = sequence.reply, sequence.last
        try:
            missing = sequence.jump(reply)
        except NotJSMessageError:
            return True  # the user's to find out: somebody published to the subject
        if missing:
            self._core.events.error(_mismatch(before, last or 0, missing))
        return True

    def _on_heartbeat(self, delivery: Delivery, sequence: DeliverySequence) -> list[Delivery]:
        """Look at a heartbeat or flow control request; return what the taker has to answer."""
        if delivery[1]:
            # In place of its subject, which is ours, stands the message before it.
            return [(sequence.reply, *delivery[1:])]
        headers = parse_headers(delivery[2])
        if headers is None:
            return []
        sent = headers.get(LAST_CONSUMER, "")
        if sent.isdigit():
            self._check_sent(int(sent), sequence)
        stalled = headers.get(CONSUMER_STALLED)
        if stalled is None:
            return []
        return [(sequence.reply, stalled.encode("utf-8", "surrogateescape"), *delivery[2:])]

    def _check_sent(self, sent: int, sequence: DeliverySequence) -> None:
        """Learn how far the server has sent; tell of messages that did not come."""
        missing = sequence.missing(sent)
        if missing:
            self._core.events.error(_mismatch(sequence.reply, sequence.last or 0, missing))
            sequence.last = sent  # told once

    def _on_silence(self, timeout: HeartbeatTimeout) -> None:
        """Tell of a consumer that is silent; on the timer's thread."""
        self._core.events.error(timeout.error(self.consumer_name))


def _ack(msg: JetStreamMsg) -> None:
    try:
        msg.ack()
    except MsgAlreadyAckdError:
        return
    except ConnectionClosedError as error:
        # Closed while the callback was at work: the message comes again.
        if not is_deliberate_close(error):
            raise


def _drop_last(pop: Callable[[], Delivery], count: int) -> None:
    """Drop the last messages of a queue, which loses its last item with each ``pop()``."""
    while count > 0:
        try:
            delivery = pop()
        except IndexError:  # the others are read
            return
        if parse_pull_status(delivery[2], delivery[3]) is None:
            count -= 1


def _status_error(status: PullStatus, delivery: Delivery) -> PullError:
    """Return what a status that is an error raises."""
    if status.error is not None:
        return status.error
    said = parse_status(delivery[2])
    assert said is not None
    return PullError(said.code, said.description)


def _mismatch(before: bytes, last: int, missing: int) -> ConsumerSequenceMismatchError:
    stream_seq = int(ack_tokens(before)[3]) if before else 0
    return ConsumerSequenceMismatchError(stream_seq, last, last + missing)
