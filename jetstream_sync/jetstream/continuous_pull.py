"""Continuous pull: messages are requested ahead of their use (ADR-37, "Consume")."""

# Rules:
#
# 1. The thread that takes a message also updates the ledger. There is no thread and no timer for it.
#    The lock guards the ledger and the sending of requests. It is never held while waiting.
# 2. Statuses are handled in order of arrival, between messages.
# 3. The heartbeat timeout only applies while the buffer is empty: a request is open then.
# 4. A message whose lease expired in the buffer is dropped: see `Leases`.
# 5. With a message, the thread that holds the lock accepts a run: the messages behind it that have
#    arrived, up to the next status, and before the next one that may cause a request. Any thread takes
#    them from _ready without the lock and without accounting; the ledger counts them when a thread
#    holds the lock again. So the requests are those of an accounting per message. While a thread waits,
#    no run is accepted: the inbox wakes that thread only for messages that are still in it.
# 6. The iterator ends when the user stops it, when the connection closes, or after a fatal status.
#    Every later call of `next()` raises the reason.

from __future__ import annotations

import contextlib
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from enum import Enum
from itertools import islice, repeat, starmap
from threading import get_ident
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar

from .. import errors
from ..api.pull import ContinuousPull, PullLedger, PullStatus, PullStatusKind, parse_pull_status
from ..client.core import ConnectionCore
from ..client.events import is_deliberate_close
from ..client.mailbox import first_items
from ..client.threads import after_fork
from ..headers import StatusCode
from ..locks import new_lock
from ..net.clock import FOREVER, Deadline, monotonic
from ..options import check_int
from ..protocol.parser import HEADER, PAYLOAD, REPLY, RawMessage
from ..subjects import consumer_sequence
from .heartbeat import HeartbeatTimeout, pull_heartbeat_timeout
from .leases import LeaseRenewer, Leases, ReceiveTimes
from .message import JetStreamMsg
from .pull import (
    CONSUMER_CHECK_DELAY_S,
    DISCONNECTED,
    RECONNECTED,
    STATUS_EFFECTS,
    PullInbox,
    PullRequester,
    RetryBackoff,
    RetryPolicy,
    StatusEffect,
    arrived_messages,
)

if TYPE_CHECKING:
    from typing_extensions import Self

T = TypeVar("T")

#: Maximum delay between two attempts for a consumer without a leader, in seconds; a shorter heartbeat
#: interval reduces it.
_MAX_RETRY_DELAY_S: Final = 2.0
#: Maximum time to wait for messages in flight that are to be given back, in seconds.
_GIVE_BACK_LIMIT_S: Final = 5.0
#: Maximum number of messages in a run.
_MAX_RUN: Final = 256


def _no_items() -> Iterator[Any]:
    return iter(())


def until_stopped(
    take: Callable[[Deadline], T],
    ready: Callable[[], Iterator[T]] = _no_items,
    owner: object = None,  # noqa: ARG001 - held by the generator
) -> Iterator[T]:
    """Yield what ``take`` returns until the user stops it; raise any other reason."""
    # `owner`: the object that must not be collected during the iteration, because that would stop it.
    while True:
        yield from ready()
        try:
            msg = take(FOREVER)
        except errors.IteratorClosedError:
            return
        except errors.ConnectionClosedError as error:
            if is_deliberate_close(error):
                return
            raise
        yield msg


class _LeasedInbox(PullInbox):
    """An inbox that records when messages arrive."""

    __slots__ = ("_times", "renewer")

    def __init__(self, core: ConnectionCore, times: ReceiveTimes) -> None:
        self._times = times
        #: The renewer of the buffered leases, held weakly because it keeps the connection open;
        #: ``None``: they are not renewed.
        self.renewer: weakref.ref[LeaseRenewer] | None = None
        super().__init__(core)

    def deliver(self, deliveries: list[RawMessage]) -> None:
        self.last_seen = now = monotonic()
        self._times.received(deliveries, now)
        self.mailbox.put(deliveries, len(deliveries))

    def on_closed(self, reason: BaseException) -> None:
        super().on_closed(reason)
        # After a drain, buffered messages can still be taken.
        renewer = None if self.renewer is None else self.renewer()
        if renewer is not None and isinstance(reason, errors.ConnectionClosedError):
            renewer.stop()

    def wait_drained(self, deadline: Deadline) -> bool:
        done = super().wait_drained(deadline)
        renewer = None if self.renewer is None else self.renewer()
        if renewer is not None:
            renewer.stop()  # the connection is about to close
        return done


class MessageFeed(Protocol):
    """What iterators and consume handles take messages from."""

    @property
    def closed(self) -> bool:
        """Whether the server delivers no more messages."""
        ...

    def take(self, deadline: Deadline) -> JetStreamMsg:
        """Wait for the next message and return it; see `MessageIterator.next`."""
        ...

    def stop(self) -> None:
        """Stop, and drop the buffered messages; a second call does nothing."""
        ...

    def drain(self, timeout: float | timedelta | None = None) -> None:
        """Request no more messages; see `MessageIterator.drain`."""
        ...

    def set_callback_waiter(
        self,
        callback_finished: Callable[[Deadline], bool],
        report: Callable[[BaseException], None],
    ) -> None:
        """Make a drain of the connection wait for the callback that receives the messages."""
        # `report`: called with each error instead of `Events.error`.
        ...


class IterableFeed(MessageFeed, Protocol):
    """What iterators take messages from."""

    def ready(self) -> Iterator[JetStreamMsg]:
        """Yield messages that can be taken without waiting and without accounting, and end."""
        ...


class MessageIterator:
    """
    An endless iterator over the messages of a consumer.

    Returned by `PullConsumer.messages`. It keeps a buffer filled while messages are taken from it with
    `next()` or by iterating. Use it in a ``with`` block, so that it is stopped at the end. If it is
    garbage-collected before it ends, it is stopped with a `ResourceWarning`, and messages that were not taken are
    given back. Any number of threads may take messages from one iterator; each message goes to one of them.
    """

    def __init__(self, source: IterableFeed, on_demand: MessagePuller | None = None) -> None:
        self._source = source
        self._on_demand = on_demand

    def request(self, count: int) -> None:
        """
        Request this many more messages, with the option ``on_demand`` of `PullConsumer.messages`.

        A request that is lost or expires is repeated for the messages that are still missing. Any thread
        may call this, also while another one waits in `next()`.

        Args:
            count: number of messages, at least 1.

        Raises:
            InvalidOptionError: the count is less than 1, or the iterator requests messages by itself, as
                that of an ordered consumer always does.
            IteratorClosedError, ConsumerDeletedError, NotFoundError, PullError, ConnectionClosedError: the
                reason why the iterator ended, as in `next()`.

        """
        if self._on_demand is None:
            raise errors.InvalidOptionError(
                "count", count, "the iterator was created without on_demand"
            )
        check_int("count", count, 1)
        self._on_demand.request(count)

    def next(self, timeout: float | timedelta | None = None) -> JetStreamMsg:
        """
        Wait for the next message and return it.

        Args:
            timeout: in seconds; ``None``: no limit; 0: do not wait.

        Raises:
            TimeoutError: no message arrived in time; the iterator stays usable. If the server has refused the
                requests since the last message, the text and ``__cause__`` say so.
            IteratorClosedError: it was stopped or drained, or returned ``stop_after`` messages.
            ConsumerDeletedError, NotFoundError, PullError: the reason why it ended.
            StreamNotFoundError, BadRequestError, OrderedConsumerResetError: an ordered consumer cannot
                continue.
            ConnectionClosedError: the connection is closed.

        """
        return self._source.take(FOREVER if timeout is None else Deadline(timeout))

    def _next_run(self, limit: int, timeout: float | None) -> list[JetStreamMsg]:
        """Wait for the next message, and return it with messages behind it that have arrived; for workers."""
        run = [self.next(timeout)]
        run += islice(self._source.ready(), limit - 1)
        return run

    def __iter__(self) -> Iterator[JetStreamMsg]:
        """Yield messages until the iterator is stopped; raise any other reason for the end."""
        # A generator of its own for each thread, which is also faster than calls of `__next__`.
        return until_stopped(self._source.take, self._source.ready, self)

    def __next__(self) -> JetStreamMsg:
        """Return the next message, as an iteration does."""
        return next(until_stopped(self._source.take))

    def stop(self) -> None:
        """
        Stop the iterator and drop the buffered messages.

        Dropped messages that need an acknowledgement are redelivered after the consumer's
        ``ack_wait``. An ordered consumer's consumer on the server is deleted. Threads that wait in
        `next()` get `IteratorClosedError`. A second call does nothing.
        """
        self._source.stop()

    def drain(self, timeout: float | timedelta | None = None) -> None:
        """
        Request no more messages; buffered messages and those in flight can still be taken.

        After those, `next()` raises `IteratorClosedError`, and an iteration ends.

        Args:
            timeout: how long to wait for messages in flight, in seconds; ``None``: the connection's
                ``drain_timeout``.

        Raises:
            DrainTimeoutError: the server did not confirm in time.
            ConnectionClosedError: the connection is closed or was lost.

        """
        self._source.drain(timeout)

    @property
    def closed(self) -> bool:
        """Whether the server delivers no more messages; some may still be buffered."""
        return self._source.closed

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


class PullerState(Enum):
    """What a puller does; the server may have closed it as well, which its mailbox knows."""

    PULLING = "pulling"
    """Requests are sent when messages are taken."""
    DRAINING = "draining"
    """No more requests are sent; messages that are buffered or in flight can be taken."""
    STOPPED = "stopped"
    """Messages are dropped."""


class PullerEvent(Enum):
    """An event that changes the state of a puller."""

    DRAIN = "drain"
    """The user called ``drain()``, or the connection is drained."""
    STOP = "stop"
    """The user called ``stop()``, or an ordered consumer has replaced the puller."""


#: There is no way back.
PULLER_TRANSITIONS: Final[dict[tuple[PullerState, PullerEvent], PullerState]] = {
    (PullerState.PULLING, PullerEvent.DRAIN): PullerState.DRAINING,
    (PullerState.PULLING, PullerEvent.STOP): PullerState.STOPPED,
    (PullerState.DRAINING, PullerEvent.DRAIN): PullerState.DRAINING,
    (PullerState.DRAINING, PullerEvent.STOP): PullerState.STOPPED,
    (PullerState.STOPPED, PullerEvent.DRAIN): PullerState.STOPPED,
    (PullerState.STOPPED, PullerEvent.STOP): PullerState.STOPPED,
}


@dataclass(slots=True, eq=False)
class _NextActions:
    """When a puller that waits for messages acts by itself; times are monotonic."""

    heartbeats: HeartbeatTimeout
    backoff: RetryBackoff
    """The next request to a consumer that is unavailable."""
    retry_at: float | None = None
    """The next request after a message that does not fit, or after an interrupt."""
    check_at: float | None = None
    """When to check whether a silent consumer exists; see `PullRequester`."""
    delivered_at_failure: int = 0
    """The number of delivered messages when the consumer was unavailable for the last time."""
    reported: tuple[BaseException, int] | None = None
    """The error that was reported last, if no request was accepted since, and the messages delivered before it."""

    def failed(self, error: errors.PullError, delivered: int) -> bool:
        """Schedule a request to an unavailable consumer; return whether the error is the first one."""
        if delivered > self.delivered_at_failure:
            self.backoff.reset()  # it was available meanwhile
        self.delivered_at_failure = delivered
        return self.backoff.record(error)


class MessagePuller:
    """Pulls the messages of a consumer ahead of their use; the source of a `MessageIterator`."""

    # `policy`: with ``NEVER``, also a reconnect or a missed heartbeat ends it.

    def __init__(
        self,
        requester: PullRequester,
        pull: ContinuousPull,
        policy: RetryPolicy = RetryPolicy.ALWAYS,
        *,
        auto_in_progress: bool = False,
    ) -> None:
        self._requester = requester
        self._policy = policy
        self._report: Callable[[BaseException], None] = requester.core.events.error
        self._leases = leases = requester.leases()
        self._renewer: LeaseRenewer | None = None
        self._inbox: PullInbox
        self._arrived: deque[RawMessage] = deque()
        # The accepted run. Messages are added under _lock, and taken without it.
        self._ready: deque[RawMessage] = deque()
        # Threads that wait, or are about to; added under _lock, removed without it.
        self._waiting: set[int] = set()
        # --- under _lock ---
        self._lock = new_lock()
        self._state = PullerState.PULLING
        self._ledger = PullLedger(pull)
        self._uncounted = 0  # messages that were moved to _ready and not counted by the ledger
        heartbeats = pull_heartbeat_timeout(pull.request.heartbeat_ns)
        self._schedule = _NextActions(
            heartbeats, RetryBackoff(min(_MAX_RETRY_DELAY_S, heartbeats.interval))
        )
        core = requester.core
        after_fork(self)
        try:
            if isinstance(leases, Leases):
                self._inbox = _LeasedInbox(core, leases.times)
            else:
                self._inbox = PullInbox(core)
            self._arrived = self._inbox.mailbox.items
            with self._lock:
                self._pull()
                self._check_consumer_soon()
            if auto_in_progress and isinstance(self._inbox, _LeasedInbox):
                assert isinstance(leases, Leases)
                self._renewer = LeaseRenewer(core, requester.consumer, leases, self._buffer_state)
                self._inbox.renewer = weakref.ref(self._renewer)
                self._renewer.start()
        except BaseException:
            if hasattr(self, "_inbox"):
                self.stop()
            raise

    def request(self, count: int) -> None:
        """Request more messages of a pull on demand; see `MessageIterator.request`."""
        self._inbox.mailbox.raise_reason()
        with self._lock:
            self._ledger.allow(count)
            self._pull()
            self._check_consumer_soon()
            is_waiting = bool(self._waiting)
        if is_waiting:
            # That thread flushed before it began to wait.
            self._requester.core.writer.send_buffered()

    # --- taking messages ------------------------------------------------------------------------

    def take(self, deadline: Deadline) -> JetStreamMsg:
        """Wait for the next message and return it; see `MessageIterator.next`."""
        leases = self._leases
        ready = self._ready
        while True:
            if ready and monotonic() < leases.fresh_until:
                try:
                    msg = self._requester.make(ready.popleft())
                except IndexError:
                    continue  # another thread took it
                if leases.last_taken is not None:
                    leases.last_taken[get_ident()] = msg
                return msg
            try:
                with self._lock:
                    if ready and monotonic() < leases.fresh_until:
                        continue  # another thread has accepted a run meanwhile
                    if ready:
                        self._put_back()
                    delivery = self._next_delivery()
                    if delivery is None:
                        self._waiting.add(get_ident())
                    if (
                        delivery is not None
                        and (not delivery[HEADER] or delivery[PAYLOAD])
                        and (monotonic() < leases.fresh_until or self._is_deliverable(delivery))
                    ):
                        return self._accept(delivery)
                if delivery is None:
                    try:
                        self._wait(deadline)
                    finally:
                        self._waiting.discard(get_ident())
                    continue
                checked = self._handle(delivery)
                if checked is not None:
                    return checked
            except errors.Error:
                raise
            except BaseException:
                # A message may not be counted, or a counted request not be sent: request again.
                self._schedule.retry_at = 0.0
                raise

    def _handle(self, delivery: RawMessage) -> JetStreamMsg | None:
        """Handle a status, or a message that needs a check; return a message for the caller."""
        if delivery[HEADER] and not delivery[PAYLOAD]:
            if self._handle_status(delivery):
                return None
            # Headers without a payload and without a status: a message.
            with self._lock:
                if monotonic() < self._leases.fresh_until or self._is_deliverable(delivery):
                    return self._accept(delivery)
        self._leases.verify()
        return None

    def ready(self) -> Iterator[JetStreamMsg]:
        """Yield the messages of the accepted run while their leases last."""
        ready, leases, last_taken = self._ready, self._leases, self._leases.last_taken
        core, settled = self._requester.core, self._requester.settled
        take = ready.popleft
        while ready:
            if last_taken is not None and monotonic() >= leases.fresh_until:
                return
            try:
                msg = JetStreamMsg(take(), core, settled)
            except IndexError:
                return  # another thread took it
            if last_taken is not None:
                last_taken[get_ident()] = msg
            yield msg

    def take_run(self) -> list[RawMessage]:
        """Return the deliveries of the accepted run; for a consumer without acknowledgements."""
        return list(islice(starmap(self._ready.popleft, repeat(())), len(self._ready)))

    def has_arrived(self) -> bool:
        """Return whether a message or status has arrived that was not taken."""
        return bool(self._ready or self._arrived)

    # --- runs -----------------------------------------------------------------------------------

    def _next_delivery(self) -> RawMessage | None:
        """Count the last run, and remove and return the next delivery, if any; ``_lock`` is held."""
        if self._uncounted:
            taken, self._uncounted = self._uncounted, 0
            self._ledger.messages(taken)
        return self._arrived.popleft() if self._arrived else None

    def _put_back(self) -> None:
        """Move the messages of the accepted run that were not taken back; ``_lock`` is held."""
        while self._ready:
            try:
                self._arrived.appendleft(self._ready.pop())
            except IndexError:
                break  # another thread took it
            self._uncounted -= 1

    def _accept_run(self) -> None:
        """Accept messages that need neither a check nor a request; ``_lock`` is held."""
        arrived = self._arrived
        limit = min(len(arrived), _MAX_RUN, self._ledger.messages_before_request())
        if limit < 1 or self._waiting or monotonic() >= self._leases.fresh_until:
            return
        # A limit in bytes needs the size of each message, and a pinned client its headers.
        if self._ledger.by_bytes or self._requester.pinned:
            return
        run = arrived_messages(arrived, limit)
        if not run:
            return
        count = len(run)
        moved = starmap(arrived.popleft, repeat((), count))
        sequence = self._requester.sequence
        if sequence is not None:
            reply = run[-1][REPLY]
            try:
                last = consumer_sequence(reply)
            except errors.NotJSMessageError:
                return
            if sequence.last is None or last != sequence.last + count:
                return  # a gap, which is found when the message after it is taken
            sequence.last = last
            sequence.reply = reply
        self._uncounted = count
        with contextlib.suppress(IndexError):  # end() has cleared them
            self._ready.extend(moved)
        if self._state is PullerState.STOPPED:
            self._ready.clear()

    def _is_deliverable(self, delivery: RawMessage) -> bool:
        """Return whether the lease of a message is still valid; ``_lock`` is held."""
        # If not, the message is dropped, or put back until the consumer's config has been read.
        if self._leases.admits(delivery[REPLY]):
            return True
        if self._leases.unsure:
            self._arrived.appendleft(delivery)
        elif self._ledger.dropped(sum(map(len, delivery)) if self._ledger.by_bytes else 0):
            self._pull()
        return False

    def _buffer_state(self) -> tuple[list[RawMessage], int, bool]:
        """Return the buffered deliveries, the number of taken messages, and whether it is closed."""
        with self._lock:
            ready = first_items(self._ready, _MAX_RUN)
            taken = self._ledger.delivered + self._uncounted - len(ready)
            buffered = ready + first_items(self._arrived)
            return buffered, taken, self._inbox.mailbox.closed

    def buffered(self) -> list[RawMessage]:
        """Return the messages that have arrived and were not taken."""
        found, _, _ = self._buffer_state()
        # The markers of a lost connection have no reply subject.
        return [item for item in found if item[REPLY] and parse_pull_status(*item[1:]) is None]

    def _wait(self, deadline: Deadline) -> None:
        """Wait until there may be a delivery, and run due actions meanwhile."""
        mailbox = self._inbox.mailbox
        if self._renewer is not None:
            self._renewer.asked()
        # Flush buffered acknowledgements before waiting: the server may need them before it sends more.
        self._requester.core.writer.send_buffered()
        while True:
            with self._lock:
                left = self._seconds_until_due()
            try:
                mailbox.wait(deadline if left is None else deadline.sooner(left))
            except errors.TimeoutError as error:
                # Also for callers that poll with a timeout of 0.
                self._check_consumer()
                with self._lock:
                    late = self._run_due_actions()
                if late is not None:
                    self._warn(late)
                if deadline.expired():
                    self._raise_reason(error)
                    raise
            else:
                return

    def _check_consumer(self) -> None:
        """Check whether the consumer exists, if that is due; close the iterator if it does not."""
        with self._lock:
            doubt_at = self._schedule.check_at
            if doubt_at is None or monotonic() < doubt_at:
                return
            self._schedule.check_at = None
            if self._inbox.last_seen > doubt_at - CONSUMER_CHECK_DELAY_S:
                return  # there was a delivery
        gone = self._requester.check_consumer_exists(FOREVER)
        if gone is not None:
            self._close(gone)

    def _accept(self, delivery: RawMessage) -> JetStreamMsg:
        """Return the message and record it in the ledger; ``_lock`` is held."""
        msg = self._requester.message(delivery)
        if self._leases.last_taken is not None:
            self._leases.last_taken[get_ident()] = msg
        if self._ledger.message(sum(map(len, delivery)) if self._ledger.by_bytes else 0):
            self._pull()
        if self._arrived:
            self._accept_run()
        return msg

    # --- due actions ----------------------------------------------------------------------------

    def _seconds_until_due(self) -> float | None:
        """Return the seconds until the next due action, if any; ``_lock`` is held."""
        if not self._inbox.connected or self._state is not PullerState.PULLING:
            return None
        schedule = self._schedule
        due = schedule.retry_at if schedule.backoff.retry_at is None else schedule.backoff.retry_at
        if due is None:
            due = self._inbox.last_seen + schedule.heartbeats.limit
        if schedule.check_at is not None:
            due = min(due, schedule.check_at)
        return due - monotonic()

    def _run_due_actions(self) -> errors.Error | None:
        """Repeat the request if due, and return the error to report, if any; ``_lock`` is held."""
        left = self._seconds_until_due()
        if left is None or left > 0:
            return None  # another thread was faster
        schedule = self._schedule
        late = None
        if schedule.backoff.retry_at is None:
            if self._ledger.idle():
                self._inbox.last_seen = monotonic()
                return None
            if schedule.retry_at is None:
                late = schedule.heartbeats.error(self._requester.consumer)
        if late is not None and self._policy is RetryPolicy.NEVER:
            self._close(late)
            return None
        self._request_again()
        return late

    def _request_again(self) -> None:
        """Request a full buffer, because earlier requests are lost; ``_lock`` is held."""
        self._schedule.retry_at = None
        self._schedule.backoff.retry_at = None
        self._ledger.reset()
        self._pull()
        self._check_consumer_soon()

    def _check_consumer_soon(self) -> None:
        """Let the consumer be looked up soon if it gives no reply when missing; ``_lock`` is held."""
        if self._requester.silent_when_deleted() and not self._ledger.empty():
            self._schedule.check_at = monotonic() + CONSUMER_CHECK_DELAY_S

    def _pull(self) -> None:
        """Send a request if one is due; ``_lock`` is held."""
        if self._ledger.complete():
            self._close(errors.IteratorClosedError("the iterator has returned stop_after messages"))
            # Requests that seemed lost may have delivered more.
            self._arrived.clear()
            return
        if self._state is not PullerState.PULLING or self._inbox.mailbox.closed:
            return
        if self._schedule.backoff.retry_at is not None:
            return
        try:
            request = self._ledger.next_request()
            if request is None:
                return
            self._inbox.last_seen = monotonic()
            # With an empty buffer the caller soon asks for the next message. What it sends before that
            # (an ack) is then sent together with the request.
            self._requester.send(request, self._inbox, deferred=not self._arrived)
        except (errors.OutboundBufferLimitError, errors.ConnectionClosedError):
            # The connection was just lost, and the current message must not be lost with it. The next
            # item in the mailbox is DISCONNECTED, or the mailbox is closed with the reason.
            return

    # --- statuses -------------------------------------------------------------------------------

    def _handle_status(self, delivery: RawMessage) -> bool:
        """Handle a marker or a status; return false for a message."""
        if delivery is DISCONNECTED or delivery is RECONNECTED:
            with self._lock:
                self._schedule.backoff.reset()
                if self._inbox.apply_connection_change(delivery):
                    if self._policy is RetryPolicy.NEVER:
                        self._close(
                            errors.ConnectionLostError("the connection was lost and re-established")
                        )
                    else:
                        self._request_again()
            return True
        status = parse_pull_status(*delivery[1:])
        if status is None:
            return False
        if status.error is None:
            self._schedule.reported = None  # the server accepts requests
        if status.kind is not PullStatusKind.HEARTBEAT:
            self._ended(status)
        elif self._schedule.backoff.retry_at is None:
            self._schedule.backoff.reset()
        return True

    def _ended(self, status: PullStatus) -> None:
        """Handle a status that ended a request."""
        error = status.error
        effect = STATUS_EFFECTS[self._policy][status.kind]
        if error is not None and effect is StatusEffect.FAIL:
            self._close(error)
            return
        if error is not None and effect is StatusEffect.RETRY:
            self._consumer_unavailable(error)
            return
        unpinned = isinstance(error, errors.PinIDMismatchError)
        with self._lock:
            whole = self._ledger.request_ended(status.pending)
            is_full = status.kind is PullStatusKind.FULL
            if is_full and whole:
                error = errors.PullError(409, "Message Size Exceeds MaxBytes: it will never fit")
                self._schedule.retry_at = monotonic() + self._schedule.heartbeats.limit
            if unpinned:
                self._requester.pin_id = None  # another client is pinned now
            if unpinned and status.pending is None:
                self._request_again()
            elif unpinned or (error is None and (not is_full or self._ledger.empty())):
                # If a message did not fit and others are buffered or still to come, there is room after
                # they are taken. The same request at once would fail for the same message.
                self._pull()
            # After other warnings the request has ended, and the same request would fail again. The
            # heartbeat timeout triggers the next one.
        if error is not None and not unpinned:
            self._warn(error)

    def _consumer_unavailable(self, error: errors.PullError) -> None:
        """Retry later, and report the error once; close the iterator if the consumer is deleted."""
        if error.code == StatusCode.NO_RESPONDERS:
            gone = self._requester.check_consumer_exists(FOREVER)
            if gone is not None:
                self._close(gone)
                return
        with self._lock:
            new = self._schedule.failed(error, self._ledger.delivered)
        if new:
            self._warn(error)

    def _warn(self, error: errors.Error) -> None:
        """Report an error after which the pull continues."""
        self._schedule.reported = error, self._ledger.delivered
        self._report(error)

    def _raise_reason(self, error: errors.TimeoutError) -> None:
        """Raise the timeout of a call with the error that was reported, if no message has followed it."""
        reported = self._schedule.reported
        if reported is not None and reported[1] == self._ledger.delivered:
            raise errors.TimeoutError(f"{error}; reported before: {reported[0]}") from reported[0]

    # --- ending ---------------------------------------------------------------------------------

    def stop(self) -> None:
        """Stop, and drop the buffered messages; a second call does nothing."""
        self.end(errors.IteratorClosedError("the iterator was stopped"))

    def end(self, reason: errors.Error) -> None:
        """Stop as `stop()` does, with another reason for waiting threads."""
        self._close(reason)
        # Without the lock, which the thread that a signal handler interrupts may hold.
        self._state = PULLER_TRANSITIONS[self._state, PullerEvent.STOP]
        self._arrived.clear()
        self._ready.clear()
        # A running callback finishes its message, and renewal stops by itself afterwards.
        finished = self._inbox.callback_finished
        if self._renewer is not None and (finished is None or finished(Deadline(0))):
            self._renewer.stop()

    def abandon(self, reason: errors.Error, rewind: Callable[[bytes], None]) -> None:
        """Stop as `end()` does, so that another iterator continues after the last message taken."""
        unread: deque[RawMessage] = deque()
        with self._lock:
            with contextlib.suppress(IndexError):  # the last one was moved
                unread.extendleft(starmap(self._ready.pop, repeat(())))
            if unread:
                rewind(unread[0][REPLY])
            self.end(reason)

    def is_open(self) -> bool:
        """Return whether messages may arrive, or have arrived and were not taken; takes no lock."""
        if self._state is PullerState.STOPPED:
            return False
        return not self._inbox.mailbox.closed or self.has_arrived()

    def give_back(self) -> None:
        """Stop, and let the messages be delivered again that were not taken."""
        try:
            with contextlib.suppress(errors.Error):
                # Those in flight arrive before its end, and are not delivered for an `ack_wait` otherwise.
                self.drain(_GIVE_BACK_LIMIT_S)
            self._requester.give_back((*self._ready, *self._arrived))
        finally:
            self.stop()

    def drain(self, timeout: float | timedelta | None = None) -> None:
        """Request no more messages; see `MessageIterator.drain`."""
        with self._lock:
            self._state = PULLER_TRANSITIONS[self._state, PullerEvent.DRAIN]
        limit = self._requester.core.options.drain_timeout if timeout is None else timeout
        try:
            self._inbox.drain(Deadline(limit))
        finally:
            self._close(errors.IteratorClosedError("the iterator was drained"))

    @property
    def closed(self) -> bool:
        """Whether the server delivers no more messages; some may still be buffered."""
        return self._inbox.mailbox.closed

    def set_callback_waiter(
        self,
        callback_finished: Callable[[Deadline], bool],
        report: Callable[[BaseException], None],
    ) -> None:
        """Make a drain of the connection wait for the callback that receives the messages."""
        self._inbox.callback_finished = callback_finished
        self._report = report

    def forked(self) -> None:
        """Drop what belongs to the parent; see `ForkAware`."""
        self._ready.clear()
        self._waiting.clear()
        if self._renewer is not None:
            self._renewer.stop()

    def _close(self, reason: errors.Error) -> None:
        self._requester.failed(reason)
        self._inbox.mailbox.close(reason)
        self._inbox.close()
