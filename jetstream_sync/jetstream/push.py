"""Push subscriptions (ADR-15), with automatic handling of status messages."""

# Rules:
#
# 1. The reader checks deliveries once per read. If all have payloads and the last one has the expected
#    sequence, no message is missing and none is a status.
# 2. Statuses that need an action stay in the queue in order of arrival. The thread that takes messages
#    acts on them: a flow control request is answered after the messages before it were taken.
# 3. A timer monitors heartbeats, and their headers reveal gaps. They are not queued.
# 4. A message whose lease expired in the queue is dropped: see `Leases`.
# 5. The members of a queue group share a consumer. Each sees neither all messages nor all statuses, so
#    rule 3 does not apply to them.

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from enum import Enum
from functools import partial
from operator import itemgetter
from threading import get_ident
from typing import Final, cast

from .. import errors
from ..api.consumer import ConsumerConfig, ConsumerInfo
from ..api.enums import AckPolicy
from ..api.pull import PullStatus, PullStatusKind, parse_pull_status
from ..api.subscribing import SubscribeRequest, ordered_config
from ..client.events import is_deliberate_close
from ..client.subscription import MsgCallback, PendingLimits, Subscription, SubscriptionReceiver
from ..client.threads import call_to_end, spawn
from ..codec import decode, encode
from ..headers import CONSUMER_STALLED, LAST_CONSUMER, LAST_STREAM, parse_headers, parse_status
from ..locks import new_lock
from ..net.clock import FOREVER, Deadline, monotonic
from ..options import check_int, check_returned
from ..protocol.parser import HEADER, PAYLOAD, REPLY, SUBJECT, RawMessage
from ..records import Frozen, frozen
from ..subjects import DeliverySequence, ack_tokens
from .api_requests import APIRequests
from .consume_handle import JetStreamCallback, nak_failed
from .consumer_requests import ConsumerAccessors, release_consumer
from .heartbeat import PUSH_INTERVALS, HeartbeatMonitor, HeartbeatTimeout
from .leases import Leases
from .message import JetStreamMsg
from .ordered_cursor import CursorOptions, OrderedCursor, log
from .server_support import EchoCheck

_payload = itemgetter(3)
#: By how much a heartbeat may be late for an ordered subscription: in intervals, and at least in seconds.
_LATE_INTERVALS: Final = 0.2
_LATE_S: Final = 0.5


@frozen(kw_only=True)
class PushOptions(Frozen):
    """Client-side options of a push subscription; they do not affect the consumer config."""

    callback: JetStreamCallback | None = None
    """Called with each message; ``None``: messages are read with `next_msg()`."""
    manual_ack: bool = False
    """Whether the callback acknowledges messages itself."""
    pending_msgs_limit: int = 512 * 1024
    """Maximum number of pending messages; 0: no limit. The default is that of nats-py."""
    pending_bytes_limit: int = 256 * 1024 * 1024
    """Maximum number of pending bytes; 0: no limit. The default is that of nats-py."""
    heartbeat_intervals: float = PUSH_INTERVALS
    """How many heartbeats may be missed; an ordered subscription creates another consumer after the first one."""
    delete_consumer: bool = True
    """Whether a consumer that was created for the subscription is deleted with it."""
    restart_if_recreated: bool = False
    """Whether an ordered subscription starts again when its stream was recreated."""

    def __post_init__(self) -> None:
        PendingLimits(self.pending_msgs_limit, self.pending_bytes_limit)  # for its checks
        if isinstance(self.heartbeat_intervals, bool) or not self.heartbeat_intervals >= 1:
            raise errors.InvalidOptionError(
                "heartbeat_intervals", self.heartbeat_intervals, "must be at least 1"
            )


@dataclass(slots=True, eq=False)
class _EndState:
    """When a push subscription ends, and what becomes of its consumer; changed under ``_receive_lock``."""

    received: int = 0
    """Number of received messages, without statuses."""
    limit: int = 0
    """The message limit of `unsubscribe()`; 0: none."""
    requested: bool = False
    """Whether it was unsubscribed or drained, or has reached its limit."""
    owns_consumer: bool = False
    """Whether the consumer was created for this subscription."""
    release_due: bool = False
    """Whether the consumer must be deleted after the last message."""


class PushSubscription(ConsumerAccessors, Subscription):
    """
    A subscription to the messages of a push consumer.

    Returned by `JetStream.subscribe` and `JetStream.subscribe_bind`. Without a callback, messages are
    read with `next_msg()` or by iterating. With a callback, a dedicated thread calls it for each
    message and acknowledges the message when the callback returns. If the callback raises, the error
    is reported to ``error_cb``, and the message is redelivered after 5 seconds, or after the step of
    the consumer's ``backoff``.

    Flow control requests and heartbeats are handled automatically. Missing messages
    (`ConsumerSequenceMismatchError`) and missed heartbeats (`NoHeartbeatError`) are reported to
    ``error_cb``.

    Any thread may use a subscription, and several may read from it: each message goes to one of them.
    """

    def __init__(
        self, api: APIRequests, stream: str, config: ConsumerConfig, options: PushOptions
    ) -> None:
        """Subscribe to the deliver subject of the consumer, which need not exist yet."""
        assert config.deliver_subject is not None
        self._api = api
        self._config = config
        self._options = options
        self._stream = stream
        self._consumer = config.durable_name or config.name or ""
        # Initial acknowledgement state of a message; None: the consumer wants no acknowledgements.
        unacked = config.ack_policy in (AckPolicy.NONE, AckPolicy.FLOW_CONTROL)
        self._settled = None if unacked else False
        # Weak, so that a subscription that was dropped is collected at once.
        owner = weakref.ref(self)

        def consumer_name() -> str:
            subscription = owner()
            return "" if subscription is None else subscription.consumer_name

        self._leases = Leases(api, stream, consumer_name, config)
        # Held while the reader enqueues messages, and while the message limit is set.
        self._receive_lock = new_lock()
        # --- under _receive_lock ---
        self._sequence = None if config.deliver_group else DeliverySequence(None)
        self._end = _EndState()
        self._last_seen = monotonic()
        self._last_flow_control = b""  # the last answered flow control request
        self._monitor: HeartbeatMonitor | None = None
        super().__init__(
            api.core,
            config.deliver_subject,
            config.deliver_group or "",
            self._callback_of(options),
            options.pending_msgs_limit,
            options.pending_bytes_limit,
        )

    def _set_consumer(self, info: ConsumerInfo, *, created: bool) -> None:
        """Set the consumer; called once, before the subscription is returned to the caller."""
        self._consumer = info.name
        self._config = info.config
        self._leases.adopt(info.config)
        self._end.owns_consumer = created
        if created and self._sequence is not None:
            with self._receive_lock:
                if self._sequence.last is None:
                    # All later deliveries arrive here.
                    self._sequence.last = info.delivered.consumer_seq
        heartbeat = info.config.idle_heartbeat
        if heartbeat and self._sequence is not None:
            self._start_monitor(heartbeat)

    def _missed_intervals(self, heartbeat: timedelta) -> float:
        """Return the number of heartbeat intervals after which a silence is noticed."""
        del heartbeat
        return self._options.heartbeat_intervals

    def _start_monitor(self, heartbeat: timedelta) -> None:
        """Monitor the heartbeats until the subscription ends."""
        timeout = HeartbeatTimeout(heartbeat.total_seconds(), self._missed_intervals(heartbeat))
        self._last_seen = monotonic()
        # The timer does not keep a subscription that was dropped.
        owner = weakref.ref(self)

        def last_seen() -> float:
            subscription = owner()
            return monotonic() if subscription is None else subscription._last_seen  # noqa: SLF001

        def on_silence() -> None:
            if (subscription := owner()) is not None:
                subscription._on_silence(timeout)  # noqa: SLF001

        report = self._core.internal.events.error
        self._monitor = HeartbeatMonitor(self.consumer_name, timeout, last_seen, on_silence, report)
        weakref.finalize(self, self._monitor.stop).atexit = False
        self._monitor.start()
        if self._mailbox.closed:
            self._monitor.stop()  # _on_closed() was called meanwhile and did not see the monitor

    # --- counters -------------------------------------------------------------------------------

    @property
    def delivered(self) -> int:
        """The number of received messages, including dropped ones, without status messages."""
        return self._end.received

    # --- reading --------------------------------------------------------------------------------

    def next_msg(self, timeout: float | timedelta | None = 1.0) -> JetStreamMsg:
        """
        Wait for the next message and return it.

        Args:
            timeout: in seconds; ``None``: no limit; 0: do not wait.

        Raises:
            TimeoutError: no message arrived in time.
            PullError: the server sent an error status; the subscription stays usable.
            BadSubscriptionError: the subscription has ended and all messages were read.
            StreamNotFoundError, StreamRecreatedError, BadRequestError: an ordered subscription cannot
                continue.
            ConnectionClosedError: the connection is closed and all messages were read.
            SubscriptionError: the subscription has a callback.

        """
        self._must_be_readable()
        return self._next(Deadline(timeout))

    def __iter__(self) -> Iterator[JetStreamMsg]:
        """Yield messages until the subscription or the connection is closed by the user."""
        return cast("Iterator[JetStreamMsg]", super().__iter__())

    def _next(self, deadline: Deadline) -> JetStreamMsg:
        items = self._mailbox.items
        while True:
            try:
                delivery = items.popleft()
            except IndexError:
                delivery = self._wait(deadline)
            if delivery[PAYLOAD] or not delivery[HEADER]:
                msg = self._message(delivery)
            else:
                msg = self._handle_status(delivery)
            if msg is not None:
                return msg

    def _message(self, delivery: RawMessage) -> JetStreamMsg | None:
        """Return the message for the caller; ``None``: its lease has expired."""
        leases = self._leases
        while monotonic() >= leases.fresh_until and not leases.admits(delivery[REPLY]):
            if not leases.unsure:
                return None
            leases.verify()
        msg = JetStreamMsg(delivery, self._core, self._settled)
        leases.last_taken[get_ident()] = msg
        return msg

    def _wait(self, deadline: Deadline) -> RawMessage:
        # Flush buffered acknowledgements before waiting: the server may need them before it sends more.
        self._core.writer.send_buffered()
        try:
            return self._mailbox.get(deadline)
        except errors.BadSubscriptionError:
            # All messages were read and could be acknowledged.
            self._release_after_last()
            raise

    def _handle_status(self, delivery: RawMessage) -> JetStreamMsg | None:
        """Handle a delivery with headers and no payload: return a message, or handle a status."""
        status = parse_pull_status(delivery[HEADER], delivery[PAYLOAD])
        if status is None:
            return self._message(delivery)
        if status.kind is not PullStatusKind.HEARTBEAT:
            error = _status_error(status, delivery)
            if self._callback is None:
                raise error
            self._core.events.error(error)
        elif delivery[REPLY] != self._last_flow_control:
            self._last_flow_control = delivery[REPLY]
            self._answer_flow_control(delivery)
        return None

    def _answer_flow_control(self, delivery: RawMessage) -> None:
        headers = None
        if self._config.ack_policy == AckPolicy.FLOW_CONTROL and delivery[SUBJECT]:
            # The reply acknowledges all messages up to this one (ADR-60, server 2.14).
            tokens = ack_tokens(delivery[SUBJECT])
            headers = {LAST_CONSUMER: tokens[4].decode(), LAST_STREAM: tokens[3].decode()}
        command, size = self._core.encoder.encode_command(delivery[REPLY], b"", b"", headers)
        self._core.writer.count_internal(1)
        self._core.writer.publish(command, size)

    # --- the callback ---------------------------------------------------------------------------

    def _callback_of(self, options: PushOptions) -> MsgCallback | None:
        """Return the function for the callback thread: call the callback, then acknowledge."""
        callback = options.callback
        if callback is None or options.manual_ack or self._settled is None:
            return cast("MsgCallback | None", callback)

        def call(msg: JetStreamMsg) -> None:
            try:
                returned = callback(msg)
                if returned is not None:
                    check_returned(returned, done=True)
            except BaseException:
                nak_failed(msg, self._config)
                raise
            if not msg.is_acked:
                _ack(msg)

        return cast("MsgCallback", call)

    # --- ending ---------------------------------------------------------------------------------

    def unsubscribe(self, limit: int = 0) -> None:
        """
        End the subscription, at once or after a number of messages.

        A consumer that was created for the subscription is deleted, unless ``delete_consumer`` was
        false or other members of the queue group still use it; with a limit, after all messages were
        read. A consumer that existed before is kept.

        Args:
            limit: the number of messages, counted from the start of the subscription, after which it
                ends. If more have arrived already, the pending ones above the limit are dropped. 0: end
                now and drop all pending messages.

        Raises:
            BadSubscriptionError, PermissionsError: the subscription has ended before, other than by
                its limit. After its limit, a call without a limit drops the pending messages, and a
                call with a limit does nothing.
            ConnectionClosedError: the connection is closed.
            InvalidOptionError: ``limit`` is below 0.
            APIError, TimeoutError: the subscription has ended, but the consumer was not deleted.

        """
        limit = check_int("limit", limit, 0)

        def again() -> None:
            with suppress(errors.Error):
                self._unsubscribe(limit)
            if not limit:
                self._release()

        call_to_end(f"closer-{self._core.name}", partial(self._unsubscribe, limit), again)

    def _unsubscribe(self, limit: int) -> None:
        if not self._limit_is_reached():
            if limit > 0:
                self._end_after(limit)
                return
            self._mailbox.raise_reason()
            self._end.requested = limit == 0
        super().unsubscribe(limit)
        if not limit:
            self._release()

    def _limit_is_reached(self) -> bool:
        return 0 < self._end.limit <= self._end.received

    def _end_after(self, limit: int) -> None:
        self._mailbox.raise_reason()
        with self._receive_lock:
            self._end.limit = limit
            over = self._end.received - limit
            if over >= 0:
                _drop_last(self._mailbox.items.pop, over)
                self._end_by_limit()
        if over >= 0 and not self._mailbox.items:
            self._release_after_last()

    def _end_by_limit(self) -> None:
        """End the subscription at its message limit; ``_receive_lock`` is held."""
        self._end.requested = True
        self._core.table.remove(self._state)
        self._on_closed(
            errors.BadSubscriptionError(
                f"the subscription has reached its limit of {self._end.limit} messages"
            )
        )

    def drain(self, timeout: float | timedelta | None = None) -> None:
        """
        End the subscription after all messages in flight were handled.

        With a callback, wait until it has handled the last message, unless the callback itself calls
        this. Without a callback, the pending messages can still be read. A consumer that was created
        for the subscription is deleted after the last message, as by `unsubscribe()`; an error of the
        deletion is reported to ``error_cb``.

        Args:
            timeout: in seconds; ``None``: the connection's ``drain_timeout``.

        Raises:
            DrainTimeoutError: the timeout expired; the rest is dropped.
            BadSubscriptionError, PermissionsError: the subscription has ended before.
            ConnectionClosedError: the connection is closed.

        """
        if not self._is_ending():
            self._end.requested = True
        super().drain(timeout)

    def _wait_drained(self, deadline: Deadline) -> bool:
        """Wait until the callback, if any, has handled its last message; return whether it has."""
        done = super()._wait_drained(deadline)
        # Without a callback, the reading thread reaches the end later, unless the connection closes.
        if self._callback is None and not (self._end.requested and self._mailbox.items):
            self._release_after_last()
        return done

    def _on_closed(self, reason: BaseException) -> None:
        """Handle the end of the subscription; a callback stops at once after a deliberate close."""
        if self._monitor is not None:
            self._monitor.stop()
        if isinstance(reason, errors.BadSubscriptionError) and not self._mailbox.closed:
            # A durable consumer outlives the connection that created it.
            owned = self._end.requested or not self._config.durable_name
            self._end.release_due = (
                self._end.owns_consumer and self._options.delete_consumer and owned
            )
        super()._on_closed(reason)

    def _abandon(self) -> None:
        """End a subscription that was not returned to the caller; keep the consumer."""
        self._end.owns_consumer = False
        self._end_with(errors.BadSubscriptionError("the subscription could not be created"))

    def _release(self) -> None:
        """Delete the consumer if that is due; only the first caller does."""
        if not self._end.release_due:
            return
        due = False
        try:
            with self._receive_lock:
                due, self._end.release_due = self._end.release_due, False
            if due:
                shared = bool(self._config.deliver_group)
                release_consumer(self._api, self._stream, self.consumer_name, shared=shared)
        except KeyboardInterrupt:
            self._end.release_due = due
            raise

    def _release_after_last(self) -> None:
        """Delete the consumer after the last message; report errors, because no caller waits."""
        try:
            self._release()
        except errors.Error as error:
            self._core.events.error(error)

    # --- called by the reader -------------------------------------------------------------------

    def _deliver(self, receiver: SubscriptionReceiver, deliveries: list[RawMessage]) -> None:
        """Enqueue messages and statuses."""
        del receiver
        with self._receive_lock:
            self._receive(deliveries)

    def _receive(self, deliveries: list[RawMessage]) -> None:
        """Enqueue deliveries; ``_receive_lock`` is held."""
        self._last_seen = now = monotonic()
        self._leases.times.received(deliveries, now)
        msgs = len(deliveries)
        if not (all(map(_payload, deliveries)) and self._is_contiguous(deliveries)):
            deliveries, msgs = self._filter(deliveries)
        self._end.received += msgs
        if not self._end.limit or self._end.received < self._end.limit:
            self._enqueue(deliveries)
            return
        over = self._end.received - self._end.limit
        self._end.received = self._end.limit
        _drop_last(deliveries.pop, over)
        self._enqueue(deliveries)
        self._end_by_limit()

    def _is_contiguous(self, deliveries: list[RawMessage]) -> bool:
        """Record messages if they follow without a gap; ``_receive_lock`` is held."""
        if self._sequence is None:
            return True
        try:
            return self._sequence.follow(
                deliveries[0][REPLY], deliveries[-1][REPLY], len(deliveries)
            )
        except errors.NotJSMessageError:
            return False

    def _filter(self, deliveries: list[RawMessage]) -> tuple[list[RawMessage], int]:
        """Return the deliveries to enqueue and the number of messages; ``_receive_lock`` is held."""
        kept: list[RawMessage] = []
        msgs = 0
        for delivery in deliveries:
            status = parse_pull_status(delivery[HEADER], delivery[PAYLOAD])
            if status is None:
                if self._accepts(delivery[REPLY]):
                    kept.append(delivery)
                    msgs += 1
            elif status.kind is PullStatusKind.HEARTBEAT:
                if self._sequence is not None:
                    kept += self._on_heartbeat(delivery, self._sequence)
            elif status.kind is not PullStatusKind.QUIET:
                kept.append(delivery)
        return kept, msgs

    def _accepts(self, reply: bytes) -> bool:
        """Record a message, and return whether to enqueue it; ``_receive_lock`` is held."""
        sequence = self._sequence
        if sequence is None:
            return True
        before, last = sequence.reply, sequence.last
        try:
            missing = sequence.jump(reply)
        except errors.NotJSMessageError:
            return True  # another client published to the subject; the user has to handle that
        if missing:
            self._core.events.error(_mismatch(before, last or 0, missing))
        return True

    def _on_heartbeat(self, delivery: RawMessage, sequence: DeliverySequence) -> list[RawMessage]:
        """Handle a heartbeat; return a request that needs a reply; ``_receive_lock`` is held."""
        if delivery[REPLY]:
            # The subject, which is the deliver subject, is replaced by the reply of the last message.
            return [(sequence.reply, *delivery[1:])]
        headers = parse_headers(delivery[HEADER])
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
        """Compare the last sequence that the server sent; ``_receive_lock`` is held."""
        missing = sequence.missing(sent)
        if missing:
            self._core.events.error(_mismatch(sequence.reply, sequence.last or 0, missing))
            sequence.last = sent  # reported once

    def _on_silence(self, timeout: HeartbeatTimeout) -> None:
        """Report missed heartbeats; called on the timer's thread."""
        self._core.events.error(timeout.error(self.consumer_name))


def _ack(msg: JetStreamMsg) -> None:
    try:
        msg.ack()
    except errors.MsgAlreadyAckdError:
        return
    except errors.ConnectionClosedError as error:
        # Closed while the callback was running: the message is redelivered.
        if not is_deliberate_close(error):
            raise


def _drop_last(pop: Callable[[], RawMessage], count: int) -> None:
    """Drop the last ``count`` messages of a queue; ``pop`` removes its last item."""
    while count > 0:
        try:
            delivery = pop()
        except IndexError:  # the other messages were read
            return
        if parse_pull_status(delivery[HEADER], delivery[PAYLOAD]) is None:
            count -= 1


def _status_error(status: PullStatus, delivery: RawMessage) -> errors.PullError:
    """Return the exception for an error status."""
    if status.error is not None:
        return status.error
    parsed = parse_status(delivery[HEADER])
    assert parsed is not None
    return errors.PullError(parsed.code, parsed.description)


def _mismatch(before: bytes, last: int, missing: int) -> errors.ConsumerSequenceMismatchError:
    stream_seq = int(ack_tokens(before)[3]) if before else 0
    return errors.ConsumerSequenceMismatchError(stream_seq, last, last + missing)


# Rules of ordered subscriptions (ADR-17):
#
# 1. Messages are enqueued only in order, so everything in the queue is valid, and a new consumer starts
#    after its last message.
# 2. The feed is the subject to which the current consumer delivers. Each consumer has a feed of its own, and
#    deliveries from an earlier one are dropped.
# 3. Every change of the feed is an event in the table; no other code decides on it.
# 4. A dedicated thread creates the next consumer with a new feed, and retries until it succeeds. It ends
#    after that. Neither the reader nor the threads that take messages wait for it. The first consumer is
#    created by the caller.
# 5. What the next consumer delivers is held back until the cursor has found that the stream is still the one
#    that was read.


class FeedState(Enum):
    """What happens to the deliveries of the current feed."""

    LIVE = "live"
    """They are enqueued."""
    LOST = "lost"
    """They are dropped, and no thread creates the next consumer."""
    RENEWING = "renewing"
    """They are dropped, and a thread creates the next consumer."""
    HELD = "held"
    """They are held back while a thread creates their consumer."""


class FeedEvent(Enum):
    """An event that changes the state of a feed."""

    BROKEN = "broken"
    """A message or heartbeat is missing, or the connection was re-established: a thread starts if none runs."""
    CUT = "cut"
    """The connection is lost, or a message is missing after the end: no consumer can be created now."""
    SUBSCRIBED = "subscribed"
    """The subject of the next consumer was subscribed."""
    CREATED = "created"
    """The thread has created a consumer."""
    SUSPENDED = "suspended"
    """The thread ends because there is no connection; the reconnect is the next event."""


_S, _E = FeedState, FeedEvent

FEED_TRANSITIONS: Final[dict[tuple[FeedState, FeedEvent], FeedState]] = {
    (_S.LIVE, _E.BROKEN): _S.RENEWING,
    (_S.LIVE, _E.CUT): _S.LOST,
    (_S.LOST, _E.BROKEN): _S.RENEWING,
    (_S.LOST, _E.CUT): _S.LOST,
    (_S.RENEWING, _E.BROKEN): _S.RENEWING,
    (_S.RENEWING, _E.CUT): _S.RENEWING,
    (_S.RENEWING, _E.SUBSCRIBED): _S.HELD,
    # The feed broke while its consumer was created: the thread creates another one.
    (_S.RENEWING, _E.CREATED): _S.RENEWING,
    (_S.RENEWING, _E.SUSPENDED): _S.LOST,
    (_S.HELD, _E.BROKEN): _S.RENEWING,
    (_S.HELD, _E.CUT): _S.RENEWING,
    (_S.HELD, _E.SUBSCRIBED): _S.HELD,
    (_S.HELD, _E.CREATED): _S.LIVE,
    (_S.HELD, _E.SUSPENDED): _S.LIVE,
}


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
        first = ordered_config(request, f"{prefix}_0", api.core.table.new_inbox())
        further: CursorOptions = {}
        if options.restart_if_recreated:
            further["on_recreated"] = api.core.internal.events.error
        self._cursor = OrderedCursor(api, stream, prefix, encode(first), **further)
        # --- under _receive_lock ---
        self._feeds: list[SubscriptionReceiver]  # the current one; set by `_new_receiver()`
        self._feed_state = FeedState.RENEWING
        self._unused = True  # whether no consumer delivers to the first feed yet
        self._held: list[list[RawMessage]] = []  # what the feed has received in the state HELD
        super().__init__(
            api, stream, first, replace(options, pending_msgs_limit=0, pending_bytes_limit=0)
        )
        self._sequence = self._cursor.sequence

    def _new_receiver(self) -> SubscriptionReceiver:
        self._feeds = [SubscriptionReceiver(self, self._core.internal, weak=self._callback is None)]
        return self._feeds[0]

    def _start(self) -> None:
        """Create the first consumer."""
        check = EchoCheck(self._api, f"the consumer of stream {self._stream!r}", self._config)
        deadline, is_created = self._api.deadline(), False
        while not is_created:
            # What it delivers, or a reconnect, may replace it as soon as the renewal has ended.
            response = self._cursor.renew(deadline, self._next_inbox).response
            with self._receive_lock:
                is_created = self._end_renewal(FeedEvent.CREATED)
        check.verify(decode(ConsumerInfo, response).config, self._cursor.drop)
        self._end.owns_consumer = True
        heartbeat = self._config.idle_heartbeat
        assert heartbeat is not None
        self._start_monitor(heartbeat)
        if self._callback is None:
            self._stop_when_dropped()

    def _missed_intervals(self, heartbeat: timedelta) -> float:
        # Another consumer does no harm, so one heartbeat that is late is enough.
        late = max(_LATE_INTERVALS, _LATE_S / heartbeat.total_seconds())
        return min(super()._missed_intervals(heartbeat), 1 + late)

    def _stop_when_dropped(self) -> None:
        """End the subscription and delete its consumer when it is collected."""
        cursor, feeds, core = self._cursor, self._feeds, self._core

        def stop() -> None:
            core.table.remove_receiver(feeds[0])
            cursor.drop()

        what = f"an ordered subscription to stream {self._stream!r}"
        core.stop_dropped(self, lambda: not cursor.stopping, stop, what)

    @property
    def consumer_name(self) -> str:
        """The name of the current consumer, or of the one that is being created."""
        return self._cursor.name

    # --- ending ---------------------------------------------------------------------------------

    def _unsubscribe(self, limit: int) -> None:
        if limit == 0 and not self._limit_is_reached():
            self._give_up()
        super()._unsubscribe(limit)

    def drain(self, timeout: float | timedelta | None = None) -> None:
        """End the subscription after all messages in flight were handled."""
        if not self._is_ending():
            self._give_up()
        super().drain(timeout)

    def _on_closed(self, reason: BaseException) -> None:
        """Handle the end of the subscription."""
        self._cursor.stop()
        super()._on_closed(reason)

    def _abandon(self) -> None:
        """End a subscription that was not returned to the caller, with its consumer."""
        super()._abandon()
        self._cursor.drop()

    def _give_up(self) -> None:
        """Create no more feeds: the current one is the last."""
        self._mailbox.raise_reason()
        with self._receive_lock:
            self._cursor.stop()

    # --- called by the reader -------------------------------------------------------------------

    def _deliver(self, receiver: SubscriptionReceiver, deliveries: list[RawMessage]) -> None:
        """Enqueue messages and statuses of the current feed, hold them back or drop them, see `FeedState`."""
        with self._receive_lock:
            if receiver is not self._receiver:
                return
            if self._feed_state is FeedState.HELD:
                self._held.append(deliveries)
            elif self._feed_state is FeedState.LIVE:
                self._receive(deliveries)

    def _on_connection_change(self, *, connected: bool) -> None:
        """Create another consumer after a reconnect: the old one may be gone or have a gap."""
        with self._receive_lock:
            if connected:
                self._replace_consumer("the connection was re-established")
            else:
                self._change_feed(FeedEvent.CUT)

    def _is_contiguous(self, deliveries: list[RawMessage]) -> bool:
        """Return it, except for a first delivery, see `_accepts`; ``_receive_lock`` is held."""
        return self._cursor.sequence.last != 0 and super()._is_contiguous(deliveries)

    def _accepts(self, reply: bytes) -> bool:
        sequence = self._cursor.sequence
        if self._feed_state is not FeedState.LIVE:
            return False
        try:
            if sequence.last == 0 and self._cursor.repeats(reply):
                self._replace_consumer("the server of the consumer lags behind")
                return False
            if sequence.follows(reply):
                return True
        except errors.NotJSMessageError as error:
            self._core.events.error(error)  # another client published to the inbox
            return False
        self._replace_consumer(f"a message is missing after consumer sequence {sequence.last}")
        return False

    def _check_sent(self, sent: int, sequence: DeliverySequence) -> None:
        if sent != sequence.last and self._feed_state is FeedState.LIVE:
            self._replace_consumer(
                f"a message is missing: {sent} were sent, {sequence.last} were received"
            )

    def _on_silence(self, timeout: HeartbeatTimeout) -> None:
        with self._receive_lock:
            idle = self._feed_state in (FeedState.LIVE, FeedState.LOST)
            if self._core.address is not None and idle:
                self._replace_consumer(str(timeout.error(self.consumer_name)))

    # --- another consumer -----------------------------------------------------------------------

    def _replace_consumer(self, why: str) -> None:
        """Drop the feed, and start creating another consumer; ``_receive_lock`` is held."""
        log.info("ordered subscription to %r: %s", self._stream, why)
        before = self._feed_state
        self._change_feed(FeedEvent.CUT if self._cursor.stopping else FeedEvent.BROKEN)
        idle = before in (FeedState.LIVE, FeedState.LOST)
        if idle and self._feed_state is FeedState.RENEWING:
            spawn(f"ordered-{self._stream}", self._renew, self._fail)

    def _change_feed(self, event: FeedEvent) -> None:
        """Apply an event to the state of the feed; ``_receive_lock`` is held."""
        self._feed_state = FEED_TRANSITIONS[self._feed_state, event]

    def _renew(self) -> None:
        """Create consumers until one has a valid feed; runs on a dedicated thread."""
        while True:
            try:
                self._cursor.renew(FOREVER, self._inbox_if_connected)
            except errors.ConnectionLostError:
                pass  # the connection is lost
            except (errors.ConnectionClosedError, errors.IteratorClosedError):
                return  # it has ended and that was reported
            except errors.Error as error:
                self._fail(error)
                return
            with self._receive_lock:
                if self._mailbox.closed:
                    break
                connected = self._core.address is not None
                if self._end_renewal(FeedEvent.CREATED if connected else FeedEvent.SUSPENDED):
                    return
        self._cursor.drop()

    def _end_renewal(self, event: FeedEvent) -> bool:
        """Return whether no other consumer must be created; ``_receive_lock`` is held."""
        self._change_feed(event)
        if self._feed_state is FeedState.RENEWING:
            return False
        held, self._held = self._held, []
        for deliveries in held:
            if self._feed_state is FeedState.LIVE:
                self._receive(deliveries)
        return True

    def _inbox_if_connected(self) -> str:
        """Return the subject of a new feed, as `_next_inbox`; raise if there is no connection."""
        if self._core.address is None:
            raise errors.ConnectionLostError("there is no connection")
        return self._next_inbox()

    def _next_inbox(self) -> str:
        """Return the subject of a new feed; called before each attempt to create a consumer."""
        core = self._core
        with self._receive_lock:
            if self._cursor.stopping:
                raise errors.IteratorClosedError("the subscription has ended")
            if self._unused:
                self._unused = False
                self._change_feed(FeedEvent.SUBSCRIBED)
                return self.subject
            old = self._state
            feed = SubscriptionReceiver(self, core.internal, weak=self._callback is None)
            inbox = core.table.new_inbox()
            core.table.add(inbox, "", feed)
            core.table.remove_deferred(old)
            self._receiver = self._feeds[0] = feed
            self._change_feed(FeedEvent.SUBSCRIBED)
            self._held = []
            self.subject = inbox
            self._cursor.sequence.last = 0
            self._last_seen = monotonic()
        return inbox

    def _fail(self, error: BaseException) -> None:
        """End with an error that another consumer would cause again."""
        self._core.table.remove_deferred(self._state)
        if self._callback is None:
            self._on_closed(error)
        else:
            self._core.events.error(error)
            self._on_closed(
                errors.BadSubscriptionError(f"the ordered subscription could not continue: {error}")
            )
