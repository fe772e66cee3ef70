"""
A pull that goes on: messages are asked for ahead of their use (ADR-37, "Consume").

Rules:

1. Whoever takes messages also does the accounting: there is no thread and no timer for it. The lock
   guards the ledger and the sending of requests; it is never held while waiting.
2. Statuses are handled in the order in which they came, between messages.
3. Silence matters only when the buffer is empty: then a request is out, and a heartbeat is due.
4. A message whose lease ran out while it waited here is dropped: see `Leases`.
5. Nothing ends it but the user, the connection's end, and statuses after which asking again makes
   no sense. Then `next()` raises why, each time.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterator
from datetime import timedelta
from threading import get_ident
from typing import TYPE_CHECKING, Final

from ..api.pull import ContinuousPull, PullLedger
from ..api.status import PullStatus, PullStatusKind, parse_pull_status
from ..client.core import ConnectionCore, is_deliberate_close
from ..client.threads import after_fork
from ..errors import (
    ConnectionClosedError,
    ConnectionLostError,
    Error,
    ForkedConnectionError,
    IteratorClosedError,
    OutboundBufferLimitError,
    PullError,
    TimeoutError,
)
from ..net.clock import FOREVER, Deadline, monotonic
from ..protocol.parser import Delivery
from .heartbeat import pull_heartbeat_timeout
from .leases import LeaseRenewer, ReceiveTimes
from .message import JetStreamMsg
from .pull import (
    CONSUMER_CHECK_DELAY_S,
    DISCONNECTED,
    RECONNECTED,
    PullInbox,
    PullRequester,
    RetryBackoff,
)

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["MessageIterator", "until_stopped"]

_SECOND: Final = 1_000_000_000
#: Seconds between two attempts for a consumer without a leader, at most; less with heartbeats that
#: are shorter.
_MAX_RETRY_DELAY_S: Final = 2.0


def until_stopped(take: Callable[[Deadline], JetStreamMsg]) -> Iterator[JetStreamMsg]:
    """Yield what ``take`` returns until the user ends it; any other end is raised."""
    while True:
        try:
            msg = take(FOREVER)
        except IteratorClosedError:
            return
        except ConnectionClosedError as error:
            if is_deliberate_close(error):
                return
            raise
        yield msg


class _LeasedInbox(PullInbox):
    """An inbox that notes when messages come."""

    __slots__ = ("_times", "renewer")

    def __init__(self, core: ConnectionCore, times: ReceiveTimes) -> None:
        self._times = times
        #: The renewer of the buffered leases, held weakly: it keeps the connection open; ``None``
        #: without a renewer.
        self.renewer: weakref.ref[LeaseRenewer] | None = None
        super().__init__(core)

    def deliver(self, deliveries: list[Delivery]) -> None:
        self.last_seen = now = monotonic()
        self._times.received(deliveries, now)
        self.mailbox.put(deliveries, len(deliveries))

    def on_closed(self, reason: BaseException) -> None:
        super().on_closed(reason)
        # After a drain, what is buffered can still be taken.
        renewer = None if self.renewer is None else self.renewer()
        if renewer is not None and isinstance(reason, ConnectionClosedError):
            if isinstance(reason, ForkedConnectionError):
                renewer.forked()
            else:
                renewer.stop()

    def wait_drained(self, deadline: Deadline) -> bool:
        done = super().wait_drained(deadline)
        renewer = None if self.renewer is None else self.renewer()
        if renewer is not None:
            renewer.stop()  # the connection is about to close
        return done


class MessageIterator:
    """
    Messages of a consumer, one after the other, without an end.

    Made by `PullConsumer.messages`. It keeps a buffer filled while messages are taken from it with
    `next()` or by iterating; use it in a ``with`` block, so that it is stopped at the end. Any number of
    threads may take messages from one iterator; each message goes to one.

    Args:
        requester: the consumer's.
        pull: the limits.
        fail_fast: end at the first disturbance (a new link, silence, a warning) instead of asking
            again; an ordered consumer then goes on with another consumer.
        auto_in_progress: renew the leases of messages that are buffered or being handled.

    """

    def __init__(
        self,
        requester: PullRequester,
        pull: ContinuousPull,
        *,
        fail_fast: bool = False,
        auto_in_progress: bool = False,
    ) -> None:
        self._requester = requester
        self._fail_fast = fail_fast
        self._by_bytes = bool(pull.request.max_bytes)
        self._heartbeats = pull_heartbeat_timeout(pull.request.heartbeat_ns)
        self._leases = requester.leases()
        # The message that each thread got last; ``None``: that need not be known.
        self._last_taken = self._leases.last_taken if self._leases.limited else None
        self._renewer: LeaseRenewer | None = None
        self._inbox = _LeasedInbox(requester.core, self._leases.times)
        self._arrived = self._inbox.mailbox.items
        # --- under _lock ---
        self._lock = threading.Lock()
        self._ledger = PullLedger(pull)
        self._draining = False
        self._backoff = RetryBackoff(min(_MAX_RETRY_DELAY_S, self._heartbeats.interval))
        self._delivered_at_failure = 0  # when it was last said to be away
        self._retry_at: float | None = None  # when to ask again for a message that never fits
        # When silence makes us ask whether the consumer is there; see Puller.
        self._check_at: float | None = None
        after_fork(self)
        with self._lock:
            self._request_again()
        if auto_in_progress and self._leases.limited:
            self._renewer = LeaseRenewer(
                requester.core, requester.consumer, self._leases, self._buffer_state
            )
            self._inbox.renewer = weakref.ref(self._renewer)

    # --- taking messages ------------------------------------------------------------------------

    def next(self, timeout: float | timedelta | None = None) -> JetStreamMsg:
        """
        Return the next message, waiting for it.

        Args:
            timeout: in seconds; ``None``: wait for ever; 0: look once.

        Raises:
            TimeoutError: none came in time; the iterator goes on.
            IteratorClosedError: it was stopped, or drained, or gave all of ``stop_after``.
            ConsumerDeletedError, NotFoundError, PullError: it ended for this reason.
            ConnectionClosedError: the connection is closed.

        """
        return self.take(FOREVER if timeout is None else Deadline(timeout))

    def __iter__(self) -> Iterator[JetStreamMsg]:
        """Yield messages until the iterator is stopped; raises where it ends for another reason."""
        return until_stopped(self.take)

    def take(self, deadline: Deadline) -> JetStreamMsg:
        """Return the next message, as `next()` does, before the deadline."""
        leases = self._leases
        while True:
            with self._lock:
                delivery = self._arrived.popleft() if self._arrived else None
                if (
                    delivery is not None
                    and (not delivery[2] or delivery[3])
                    and (monotonic() < leases.fresh_until or self._is_deliverable(delivery))
                ):
                    return self._accept(delivery)
            if delivery is None:
                self._wait(deadline)
            elif not delivery[2] or delivery[3]:
                leases.verify()
            elif not self._handle_status(delivery):
                # Headers without a payload, and no status in them: a message after all.
                with self._lock:
                    if monotonic() < leases.fresh_until or self._is_deliverable(delivery):
                        return self._accept(delivery)
                leases.verify()

    def _is_deliverable(self, delivery: Delivery) -> bool:
        """
        Return whether a message may be handed out, past the time when all may; ``_lock`` is held.

        One that may not is dropped, or put back until the consumer's config has been read.
        """
        if self._leases.admits(delivery[1]):
            return True
        if self._leases.unsure:
            self._arrived.appendleft(delivery)
        elif self._ledger.dropped(sum(map(len, delivery)) if self._by_bytes else 0):
            self._pull()
        return False

    def _buffer_state(self) -> tuple[list[Delivery], int, bool]:
        """Return what is buffered, how many messages were taken, and whether no more will come."""
        with self._lock:
            while True:
                try:
                    buffered = list(self._arrived)
                except RuntimeError:  # the reader has put something in meanwhile
                    continue
                return buffered, self._ledger.delivered, self._inbox.mailbox.closed

    def _wait(self, deadline: Deadline) -> None:
        """Wait until there may be a delivery, and see to what is due meanwhile."""
        mailbox = self._inbox.mailbox
        if self._renewer is not None:
            self._renewer.asked()
        # Acknowledgements that wait for company go out before we sleep: the server may be waiting
        # for them before it sends more.
        self._requester.core.writer.send_buffered()
        while True:
            with self._lock:
                left = self._seconds_until_due()
            try:
                mailbox.wait(deadline if left is None else deadline.sooner(left))
            except TimeoutError:
                # Also for who only looks once each time.
                self._check_consumer()
                with self._lock:
                    late = self._run_due_actions()
                if late is not None:
                    self._requester.core.events.error(late)
                if deadline.expired():
                    raise
            else:
                return

    def _check_consumer(self) -> None:
        """Where it is time to, find out whether the consumer is there, and end where it is not."""
        with self._lock:
            doubt_at = self._check_at
            if doubt_at is None or monotonic() < doubt_at:
                return
            self._check_at = None
            if self._inbox.last_seen > doubt_at - CONSUMER_CHECK_DELAY_S:
                return  # something came
        gone = self._requester.check_consumer_exists(FOREVER)
        if gone is not None:
            self._close(gone)

    def _accept(self, delivery: Delivery) -> JetStreamMsg:
        """Make the user's message and enter it; ``_lock`` is held."""
        msg = self._requester.message(delivery)
        if self._last_taken is not None:
            self._last_taken[get_ident()] = msg
        if self._ledger.message(sum(map(len, delivery)) if self._by_bytes else 0):
            self._pull()
        return msg

    # --- what is due; _lock is held -------------------------------------------------------------

    def _seconds_until_due(self) -> float | None:
        """Return the seconds until something has to be done; ``None``: nothing will have to be."""
        if not self._inbox.connected or self._draining:
            return None
        due = self._retry_at if self._backoff.retry_at is None else self._backoff.retry_at
        if due is None:
            due = self._heartbeats.due(self._inbox.last_seen)
        if self._check_at is not None:
            due = min(due, self._check_at)
        return due - monotonic()

    def _run_due_actions(self) -> Error | None:
        """Ask again where it is time to; return what the user should hear of."""
        left = self._seconds_until_due()
        if left is None or left > 0:
            return None  # another thread has seen to it
        late = None
        if self._retry_at is None and self._backoff.retry_at is None:
            late = self._heartbeats.error(self._requester.consumer)
        if late is not None and self._fail_fast:
            self._close(late)
            return None
        self._request_again()
        return late

    def _request_again(self) -> None:
        """Ask for a full buffer: what was asked for before is lost."""
        self._retry_at = None
        self._backoff.retry_at = None
        self._ledger.reset()
        self._pull()
        if self._requester.silent_when_deleted():
            self._check_at = monotonic() + CONSUMER_CHECK_DELAY_S

    def _pull(self) -> None:
        """Send the request that is due, if one is."""
        if self._ledger.complete():
            self._close(IteratorClosedError("it gave as many messages as stop_after says"))
            # Requests that were thought lost may have brought more.
            self._arrived.clear()
            return
        if self._draining or self._inbox.mailbox.closed or self._backoff.retry_at is not None:
            return
        request = self._ledger.next_request()
        if request is None:
            return
        self._inbox.last_seen = monotonic()
        try:
            # With nothing left to hand out, the taker asks for the next message soon, and what he
            # does before that (an ack) goes out together with the request.
            self._requester.send(request, self._inbox, deferred=not self._arrived)
        except (OutboundBufferLimitError, ConnectionClosedError):
            # The link just broke, and the message at hand must not be lost for that. What comes
            # next is DISCONNECTED, or the reason why it is over.
            return

    # --- statuses -------------------------------------------------------------------------------

    def _handle_status(self, delivery: Delivery) -> bool:
        """Handle a delivery that is no message; say whether it is none."""
        if delivery is DISCONNECTED or delivery is RECONNECTED:
            with self._lock:
                self._backoff.over()
                if self._inbox.apply_connection_change(delivery):
                    if self._fail_fast:
                        self._close(ConnectionLostError("the link broke; there is a new one"))
                    else:
                        self._request_again()
            return True
        status = parse_pull_status(delivery[2], delivery[3])
        if status is None:
            return False
        if status.kind is not PullStatusKind.HEARTBEAT:
            self._ended(status)
        elif self._backoff.retry_at is None:
            self._backoff.over()
        return True

    def _ended(self, status: PullStatus) -> None:
        """Act on a status that ended a request."""
        error = status.error
        if error is not None and (self._fail_fast or status.kind is PullStatusKind.FATAL):
            self._close(error)
            return
        if error is not None and status.kind is PullStatusKind.AWAY:
            self._consumer_unavailable(error)
            return
        with self._lock:
            whole = self._ledger.request_ended(status.pending)
            if status.kind is PullStatusKind.FULL:
                # With something unread, or still to come, there is room when that is read. The same
                # request at once would meet the same message.
                if whole:
                    error = PullError(409, "Message Size Exceeds MaxBytes: it will never fit")
                    self._retry_at = self._heartbeats.due(monotonic())
                elif self._ledger.empty():
                    self._pull()
            elif error is None:
                self._pull()
            elif error.code == 423:
                self._requester.unpin()
                if status.pending is None:
                    self._request_again()
                else:
                    self._pull()
            # After other warnings the request is gone, and the same one would meet the same; the
            # missing heartbeats will make us ask again.
        if error is not None and error.code != 423:
            self._requester.core.events.error(error)

    def _consumer_unavailable(self, error: PullError) -> None:
        """Ask again later, and say once that nobody serves the consumer; end where it is gone."""
        if error.code == 503:
            gone = self._requester.check_consumer_exists(FOREVER)
            if gone is not None:
                self._close(gone)
                return
        with self._lock:
            if self._ledger.delivered > self._delivered_at_failure:
                self._backoff.over()  # it was there meanwhile
            self._delivered_at_failure = self._ledger.delivered
            new = self._backoff.record(error)
        if new:
            self._requester.core.events.error(error)

    # --- ending ---------------------------------------------------------------------------------

    def stop(self) -> None:
        """
        End the iterator and drop what is buffered.

        Dropped messages that need an acknowledgement are delivered again after the consumer's
        ``ack_wait``. Whoever waits in `next()` gets `IteratorClosedError`. Stopping twice is fine.
        """
        self.end(IteratorClosedError("the iterator was stopped"))

    def end(self, reason: Error) -> None:
        """End the iterator as `stop()` does, with another reason for whoever waits."""
        self._close(reason)
        self._arrived.clear()
        # A callback finishes the message that it is at, which ends by itself.
        finished = self._inbox.callback_finished
        if self._renewer is not None and (finished is None or finished(Deadline(0))):
            self._renewer.stop()

    def drain(self, timeout: float | timedelta | None = None) -> None:
        """
        Ask for no more messages; what is buffered, or on its way, can still be taken.

        After that `next()` raises `IteratorClosedError`, and an iteration ends.

        Args:
            timeout: how long to wait for what is on its way, in seconds; ``None``: the
                connection's ``drain_timeout``.

        Raises:
            DrainTimeoutError: the server did not confirm in time.
            ConnectionClosedError: the connection is closed, or lost its link.

        """
        with self._lock:
            self._draining = True
        limit = self._requester.core.options.drain_timeout if timeout is None else timeout
        try:
            self._inbox.drain(Deadline(limit))
        finally:
            self._close(IteratorClosedError("the iterator was drained"))

    @property
    def closed(self) -> bool:
        """Whether no more messages will come from the server; some may still be buffered."""
        return self._inbox.mailbox.closed

    def set_callback_waiter(self, callback_finished: Callable[[Deadline], bool]) -> None:
        """Have a drain of the connection wait for the callback that the messages go to."""
        self._inbox.callback_finished = callback_finished

    def forked(self) -> None:
        """Replace the lock, which a thread of the parent may have held; see `ForkAware`."""
        self._lock = threading.Lock()
        self._leases.forked()
        if self._renewer is not None:
            self._renewer.forked()

    def _close(self, reason: Error) -> None:
        self._inbox.mailbox.close(reason)
        self._inbox.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
