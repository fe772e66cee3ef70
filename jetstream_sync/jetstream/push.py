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

import re
import weakref
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from operator import itemgetter
from threading import get_ident
from typing import cast

from .. import errors
from ..api.consumer import ConsumerConfig, ConsumerInfo
from ..api.enums import AckPolicy
from ..api.pull import PullStatus, PullStatusKind, parse_pull_status
from ..client.events import is_deliberate_close
from ..client.subscription import MsgCallback, PendingLimits, Subscription
from ..client.threads import call_to_end
from ..client.writer import SOON
from ..durations import counted
from ..headers import (
    CONSUMER_STALLED,
    LAST_CONSUMER,
    LAST_STREAM,
    parse_headers,
    parse_status,
    server_number,
)
from ..locks import new_lock
from ..net.clock import Deadline, monotonic
from ..options import check_int, check_returned
from ..protocol.parser import HEADER, PAYLOAD, REPLY, SUBJECT, RawMessage
from ..records import Frozen, frozen
from ..subjects import ACK_PREFIX, DeliverySequence, ack_tokens
from .api_requests import APIRequests
from .consume_handle import JetStreamCallback, nak_failed
from .consumer_requests import ConsumerAccessors, release_consumer
from .heartbeat import PUSH_INTERVALS, HeartbeatMonitor, HeartbeatTimeout
from .leases import Leases
from .message import FOREIGN, JetStreamMsg

_payload = itemgetter(3)
#: Matches the reply subject of a flow control request. Another client may publish one with any subject, such as that
#: of an API request, which this client would then send.
_is_flow_control = re.compile(rb"\$JS\.FC\.[!-~]+").fullmatch


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
    """How many heartbeats may be missed before that is reported."""
    delete_consumer: bool = True
    """Whether a consumer that was created for the subscription is deleted with it."""

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
    made: ConsumerInfo | None = None
    """The consumer, if it was created for this subscription."""
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
        self._end.made = info if created else None
        if created and self._sequence is not None:
            with self._receive_lock:
                if self._sequence.last is None:
                    # All later deliveries arrive here.
                    self._sequence.last = info.delivered.consumer_seq
        heartbeat = info.config.idle_heartbeat
        if heartbeat and self._sequence is not None:
            self._start_monitor(heartbeat)

    def _start_monitor(self, heartbeat: timedelta) -> None:
        """Monitor the heartbeats until the subscription ends."""
        timeout = HeartbeatTimeout(heartbeat.total_seconds(), self._options.heartbeat_intervals)
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
        settled: bool | int | None = self._settled
        if settled is False and not delivery[REPLY].startswith(ACK_PREFIX):
            settled = FOREIGN
        msg = JetStreamMsg(delivery, self._core, settled)
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
        status = parse_pull_status(*delivery[1:])
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
        self._core.writer.append(command, size, SOON, 1, True)

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
                f"the subscription has reached its limit of {counted(self._end.limit, 'message')}"
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
                self._end.made is not None and self._options.delete_consumer and owned
            )
        super()._on_closed(reason)

    def _abandon(self) -> None:
        """End a subscription that was not returned to the caller; keep the consumer."""
        self._end.made = None
        self._end_with(errors.BadSubscriptionError("the subscription could not be created"))

    def _release(self) -> None:
        """Delete the consumer if that is due; only the first caller does."""
        made = self._end.made
        if made is None or not self._end.release_due:
            return
        due = False
        try:
            with self._receive_lock:
                due, self._end.release_due = self._end.release_due, False
            if due:
                shared = bool(self._config.deliver_group)
                release_consumer(self._api, made, shared=shared)
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

    def _deliver(self, deliveries: list[RawMessage]) -> None:
        """Enqueue messages and statuses."""
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
            status = parse_pull_status(*delivery[1:])
            if status is None:
                self._check_gap(delivery[REPLY])
                kept.append(delivery)
                msgs += 1
            elif status.kind is PullStatusKind.HEARTBEAT:
                if self._sequence is not None:
                    kept += self._on_heartbeat(delivery, self._sequence)
            elif status.kind is not PullStatusKind.QUIET:
                kept.append(delivery)
        return kept, msgs

    def _check_gap(self, reply: bytes) -> None:
        """Record a message, and report those that are missing before it; ``_receive_lock`` is held."""
        sequence = self._sequence
        if sequence is None:
            return
        before, last = sequence.reply, sequence.last
        try:
            missing = sequence.jump(reply)
        except errors.NotJSMessageError:
            return  # another client published to the subject; the user has to handle that
        if missing:
            self._core.events.error(_mismatch(before, last or 0, missing))

    def _on_heartbeat(self, delivery: RawMessage, sequence: DeliverySequence) -> list[RawMessage]:
        """Handle a heartbeat; return a request that needs a reply; ``_receive_lock`` is held."""
        if delivery[REPLY]:
            # The subject, which is the deliver subject, is replaced by the reply of the last message.
            is_request = _is_flow_control(delivery[REPLY])
            return [(sequence.reply, *delivery[1:])] if is_request else []
        headers = parse_headers(delivery[HEADER])
        if headers is None:
            return []
        sent = server_number(headers.get(LAST_CONSUMER, ""))
        if sent is not None:
            self._check_sent(sent, sequence)
        stalled = headers.get(CONSUMER_STALLED, "").encode("utf-8", "surrogateescape")
        return [(sequence.reply, stalled, *delivery[2:])] if _is_flow_control(stalled) else []

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
        if parse_pull_status(*delivery[1:]) is None:
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
