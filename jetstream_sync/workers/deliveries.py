"""
Deliveries: received messages, their leases, and how they are settled.

Rules of leases:

1. A message is leased from its receipt, while it waits and while its handler runs.
2. The length of a lease comes from the consumer's info, not from the options of a handler: a
   ``backoff`` in the config replaces ``ack_wait``.
3. Messages that were received at the same time, with the same number of deliveries, have one `Lease`, and
   are renewed together.
4. A renewal counts from the moment before it was sent, and only if the same link then answered a
   ping. A renewal that may not have arrived does not prolong a lease.
5. A lease is regarded as lost after nine tenths of its length: the server counts from the moment when
   it sent the message, which is not known here.
6. A lease that is over is lost for good. Only an acknowledgement of a handled message may be sent
   after that: the server applies everything else to the newer delivery of the message.
7. The lease of a message is not renewed after its handler's timeout.

Rules of settlements:

8. Exactly one of ack, nak and term is chosen for a delivery, by the caller that removes it from the lease
   keeper: see `Settlements.claim`.
9. Settlements are sent with a reply subject and confirmed by the server. Handler threads do not wait for
   the confirmations. Acks that wait at the same time form a run: they have one reply subject, and the run
   is confirmed when the server has confirmed each of them. A handler thread sends the acks that wait unless
   some were sent in the last milliseconds; so a busy worker has few runs. `Settlements.tick` sends those
   that are left.
10. While the connection is down, settlements are kept here, not in the output buffer of the
    connection: a nak or term must not be sent after its lease is lost.
11. A settlement is sent again after a reconnect, and when it is not confirmed in time. An ack may be
    sent any number of times, also late. A term is sent again while the lease lasts. A nak is sent
    again only within its own delay: after that, the message may have been delivered again, and a
    second nak would act on that delivery.
12. "No responders" to a settlement means that the consumer has no leader for the moment, or was deleted.
    An ack or a term is retried a few times.
"""

from __future__ import annotations

import itertools
import math
import random
import threading
import time
from collections import deque
from collections.abc import Callable, Hashable, Mapping, Sequence
from contextvars import ContextVar
from copy import copy
from dataclasses import dataclass, replace
from enum import Enum
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

from .. import Headers, errors
from ..lease_times import LOST_FRACTION, RENEWAL_FRACTION, LeaseTimes
from ..locks import new_lock
from .call_messages import parked_attempts
from .logs import log

if TYPE_CHECKING:
    from .. import Connection, JetStreamMsg, Metadata
    from ..net.clock import Deadline

#: Shortest supported lease, in seconds: a shorter one would be lost by a short stall of the process.
MIN_WAIT_S: Final = 3.0
#: The part of an interval between renewals by which it varies.
_RENEWAL_JITTER: Final = 0.1
#: Timeout of the ping behind renewals, as a fraction of the shortest renewed lease.
_PING_FRACTION: Final = 0.25

#: Number of tokens of a reply subject without a domain (ADR-15), in which the number of the delivery
#: and the time of the message have fixed places.
_SHORT_FORM: Final = 9

#: The fractions of the next renewals: a list that repeats is cheaper than a random number per message.
_RENEWALS: Final = itertools.cycle(
    [
        RENEWAL_FRACTION * random.uniform(1 - _RENEWAL_JITTER, 1 + _RENEWAL_JITTER)  # noqa: S311
        for _ in range(997)
    ]
)

#: The header of a message with the subject for a `Reply`.
REPLY_TO: Final = "Reply-To"
_ACK: Final = b"+ACK"
#: Seconds after which an unconfirmed settlement is sent again.
_CONFIRM_TIMEOUT_S: Final = 5.0
#: Shortest interval of the acks that a thread sends before it goes on with another message, in seconds.
_INTERVAL_S: Final = 0.005
#: Largest number of acks in a run.
_MAX_RUN: Final = 250
#: Seconds after which a settlement is sent again that nothing has received, and how often it is sent then.
_ABSENT_DELAY_S: Final = 1.0
_MAX_ABSENT_SENDS: Final = 8
#: Number of times that a settlement is sent on working links before it is abandoned.
_MAX_SENDS: Final = 12

_BOOTTIME: Final = getattr(time, "CLOCK_BOOTTIME", None)


#: Returns a monotonic time in seconds that also advances while the machine is suspended.
lease_clock: Final[Callable[[], float]] = (
    time.monotonic if _BOOTTIME is None else partial(time.clock_gettime, _BOOTTIME)
)


class Lease:
    """The lease of messages that were received at the same time, with the same number of deliveries."""

    __slots__ = ("begun_at", "delivered", "due", "lost_at", "received_at", "times", "waits")

    def __init__(self, times: LeaseTimes, delivered: int, now: float) -> None:
        self.times: LeaseTimes = times
        #: The number of the delivery, which determines the length.
        self.delivered: int = delivered
        #: Time of the receipt by the lease clock, as all times here.
        self.received_at: float = now
        #: Begin of the lease: the time of the receipt or of the last renewal.
        self.begun_at: float = now
        #: Time of the next renewal.
        self.due: float = math.inf
        self.adopt()

    def renew(self, now: float) -> None:
        """Let the lease begin again."""
        self.begun_at, self.due = now, math.inf
        self.adopt()

    def adopt(self) -> None:
        """Use the current length; bring the next renewal forward if it has become shorter."""
        #: The lengths that are in use.
        self.waits: list[float] = self.times.waits
        wait = self.times.of(self.delivered)
        self.due = min(self.due, self.begun_at + wait * next(_RENEWALS))
        #: Time when the lease is over.
        self.lost_at: float = self.begun_at + wait * LOST_FRACTION


def delivery_number(msg: JetStreamMsg) -> int:
    """Return how often a message was delivered."""
    tokens = msg.ack_subject.split(b".")
    return int(tokens[4]) if len(tokens) == _SHORT_FORM else msg.metadata.num_delivered


def stored_ns(msgs: Sequence[JetStreamMsg]) -> list[int]:
    """Return when messages of one consumer were stored, in nanoseconds since 1970."""
    subjects = [msg.ack_subject for msg in msgs]
    if subjects[0].count(b".") == _SHORT_FORM - 1:
        return [int(subject.rsplit(b".", 2)[1]) for subject in subjects]
    return [msg.metadata.timestamp_ns for msg in msgs]


class DeliveryState(Enum):
    """The life of a delivery; each state may follow any of the former ones."""

    LEASED = "leased"
    """Its lease is renewed while it waits, and while its handler runs within its timeout."""
    LOST = "lost"
    """The lease is over, and that is reported."""
    SETTLED = "settled"
    """Ack, nak or term was chosen, also after its lease was lost; see `Settlements.claim`."""


class DeliveryObserver:
    """Counts what happens to deliveries; this one ignores it."""

    def count(self, name: str, number: int = 1) -> None:
        """Add to a counter."""

    def lease_lost(self, delivery: LeasedMessage) -> None:
        """Record that the lease of a message is lost."""


class Origin(NamedTuple):
    """What the messages have in common that were received at the same time."""

    handler: str
    """The name of the handler."""
    generation: str = ""
    """The creation time of the stream, for the ids of the messages."""
    observer: DeliveryObserver = DeliveryObserver()
    parks: bool = True
    """Whether the messages may wait in their stream, as schedules."""
    clock_ahead: float = 0.0
    """Seconds by which the server's clock, which sets `stored_ns`, is ahead of the local clock."""


class LeasedMessage:
    """A received message, its lease and its state."""

    # Attributes of the class are the values at the receipt, which few messages change: creating a
    # delivery is a hot path.
    key: Hashable = None
    """The key of the message; ``None``: it has no order."""
    size: int = 0
    """In bytes, if the handler has ``max_bytes``."""
    slept: float = 0.0
    """Total delay of the retries in place, in seconds."""
    failure: BaseException | None = None
    """The error of the handler's ``key`` function."""
    state: DeliveryState = DeliveryState.LEASED
    thread: int = 0
    """The thread that runs the handler; 0: the handler does not run."""
    retry_in: float | None = None
    """Seconds until the thread has to run the handler again; ``None``: it has not."""
    give_up_at: float = math.inf
    """Time by the lease clock at which the handler's timeout is over."""
    trace_id: str = ""
    """The trace of the handler; empty: it is not traced."""
    started_at: float = 0.0
    """Time of the last start of the handler by the lease clock."""
    ended_at: float = 0.0
    """Time of its end."""
    consumer: str = ""
    """The name in `metadata` in place of the real consumer; empty: none."""
    task: str = ""
    """The name of the task that the message is a call of; empty: it is none."""
    progress: Any = None
    """The `CallProgress` of the run; ``None``: it has reported none."""
    stored_at: float = -math.inf
    """When that was stored last, by the lease clock."""
    limit: Any = None
    """The `SharedLimit` in which the run counts."""
    waits: bool = False
    """Whether it was taken by a thread, and waits for a limit without one."""
    is_suspicious: bool = False
    """Whether the message may have ended the process that handled it before."""

    def __init__(self, msg: JetStreamMsg, lease: Lease, origin: Origin) -> None:
        self.msg: JetStreamMsg = msg
        self.lease: Lease = lease
        #: What it has in common with the messages that were received together with it.
        self.origin: Origin = origin

    @cached_property
    def attempt(self) -> int:
        """The number of the attempt: of the delivery, plus those before the message was parked, and those in place."""
        return self.lease.delivered + parked_attempts(self.msg)

    @cached_property
    def handler(self) -> str:
        """The name of the handler or, in a queue, of the task."""
        return self.origin.handler

    @cached_property
    def observer(self) -> DeliveryObserver:
        """Counts what happens to the message."""
        return self.origin.observer

    @property
    def metadata(self) -> Metadata:
        """The metadata of the message, parsed on each access."""
        found = self.msg.metadata
        return found._replace(consumer=self.consumer) if self.consumer else found

    def is_lost(self) -> bool:
        """Return whether the lease is over."""
        return lease_clock() >= self.lease.lost_at

    def lose(self) -> bool:
        """Note that the lease is over; return whether that is new. A settled message stays settled."""
        before = self.state
        if before is DeliveryState.LEASED:
            self.state = DeliveryState.LOST
        return before is not DeliveryState.LOST

    @property
    def is_settled(self) -> bool:
        """Whether the message was settled, by the worker or by the handler itself."""
        return self.state is DeliveryState.SETTLED or self.msg.is_acked

    @property
    def exceeds_timeout(self) -> bool:
        """Whether the handler runs for longer than its timeout; this says nothing about the lease."""
        return lease_clock() >= self.give_up_at

    def server_ns(self) -> int:
        """Return the time by the clock of the server, in nanoseconds since 1970."""
        return time.time_ns() + int(self.origin.clock_ahead * 1e9)

    def __repr__(self) -> str:
        """Return the position of the message, for log records."""
        where = self.metadata
        return f"message {where.stream_seq} of {where.stream}/{where.consumer}"


#: The message that this thread handles.
log_context: ContextVar[LeasedMessage | None] = ContextVar("jetstream_sync_delivery", default=None)


class LeaseKeeper:
    """Renews the leases of all held messages of a connection, for any thread; one thread calls `tick`."""

    def __init__(self, nc: Connection, on_reconnect: Callable[[], object]) -> None:
        #: The connection.
        self.nc: Connection = nc
        self._on_reconnect = on_reconnect
        #: Number of reconnects, as of the last tick.
        self.reconnects: int = 0
        #: Time of the last tick, by the lease clock.
        self.checked_at: float = lease_clock()
        #: The held messages; changed in single steps, by any thread. See `Settlements.claim`.
        self.held: set[LeasedMessage] = set()

    def tick(self) -> None:
        """Renew the leases that are due, except those of handlers over their timeout."""
        reconnects = self.nc.stats["reconnects"]
        if reconnects != self.reconnects:
            self.reconnects = reconnects
            self._on_reconnect()
        due: list[LeasedMessage] = []
        now = self.checked_at = lease_clock()
        for delivery in self.held.copy():
            lease = delivery.lease
            if lease.waits is not lease.times.waits and now < lease.lost_at:
                lease.adopt()  # a longer one does not bring back a lost lease
            # Most are not due. A renewal is due long before the lease is lost.
            if now < lease.due and now < delivery.give_up_at:
                continue
            if delivery.is_lost():
                self._report_lost(delivery)
            elif now >= delivery.give_up_at:
                delivery.lease = copy(lease)  # the lease of the other messages may be renewed
            else:
                due.append(delivery)
        if due and self.nc.is_connected:
            self._renew(due, reconnects)

    def _renew(self, due: list[LeasedMessage], reconnects: int) -> None:
        now = lease_clock()
        renewed = []
        try:
            for delivery in due:
                # Checked again right before sending: the process may have been suspended.
                if not (delivery.is_lost() or delivery.is_settled):
                    delivery.msg.in_progress()
                    renewed.append(delivery)
            if renewed:
                shortest = min(delivery.lease.times.shortest for delivery in renewed)
                self.nc.flush(shortest * _PING_FRACTION)
        except errors.Error as error:
            log.debug("leases were not renewed: %s", error)
            return  # they stay due
        if self.nc.stats["reconnects"] == reconnects:
            for lease in {delivery.lease for delivery in renewed}:
                lease.renew(now)
            for delivery in renewed:
                delivery.observer.count("leases_renewed")

    def _report_lost(self, delivery: LeasedMessage) -> None:
        if delivery.state is DeliveryState.SETTLED or not delivery.lose():
            return
        delivery.observer.lease_lost(delivery)
        text = "%s: the lease of %r is lost; the message is delivered again"
        log.warning(text, delivery.handler, delivery)


@dataclass(slots=True, eq=False)
class _Pending:
    """A settlement, or a run of acks, that is not confirmed yet."""

    deliveries: list[LeasedMessage]
    payload: bytes
    #: Seconds after the first sending within which it may be sent again, and their end.
    repeat_s: float = math.inf
    repeat_until: float = math.inf
    #: Number of missing confirmations.
    missing: int = 0
    sends: int = 0
    sent_at: float = 0.0
    #: The number of reconnects when it was sent.
    reconnects: int = 0
    #: Whether it could not be sent, and waits for a connection.
    waits: bool = False
    #: Whether there were no responders, at least for one of a run.
    absent: bool = False

    @property
    def delivery(self) -> LeasedMessage:
        """The first one, for log records."""
        return self.deliveries[0]


@dataclass(frozen=True)
class Reply:
    """
    A return value of a handler for the publisher of the message.

    It is published to the subject in the header ``Reply-To`` of the message, before the message is
    acknowledged; without the header it is ignored. A subject that begins with ``$`` gets no reply. An
    error of sending is logged, and the message is acknowledged.

    Args:
        payload: the payload.
        headers: names and values.

    """

    payload: bytes = b""
    headers: Headers | Mapping[str, str] | Mapping[str, list[str]] | None = None


class Settler(Protocol):
    """Settles deliveries, for any thread."""

    def claim(self, delivery: LeasedMessage) -> bool:
        """Return whether the caller may settle this delivery; only the first caller may."""

    def ack(self, delivery: LeasedMessage, *, confirm: bool) -> bool:
        """
        Acknowledge a delivery, also after its lease was lost; return whether it was not settled before.

        Call `send_acks` next.
        """

    def send_acks(self) -> None:
        """Send the acks that wait."""

    def nak(self, delivery: LeasedMessage, delay: float) -> bool:
        """Have a message delivered again after a delay in seconds, 0: at once; return as `ack`."""

    def term(self, delivery: LeasedMessage, reason: str) -> bool:
        """End the deliveries of a message, for a reason of one line; return as `ack`."""

    def reply(self, subject: str, reply: Reply) -> None:
        """Publish the reply of a handler; it is sent before an acknowledgement that follows."""


class Settlements:
    """A `Settler` that sends settlements and tracks their confirmations; one thread calls `tick`."""

    def __init__(self, nc: Connection, keeper: LeaseKeeper) -> None:
        self._nc = nc
        self._keeper = keeper
        self._held = keeper.held
        self._tokens = itertools.count(1)
        # The acks that wait.
        self._unsent: deque[LeasedMessage] = deque()
        #: Time by the lease clock at which a handler thread sends the acks that wait.
        self.due: float = 0.0
        # Held while acks are moved from there to _pending.
        self._lock = new_lock()
        # Held while confirmations are processed; never waited for, because that may log.
        self._confirming = threading.Lock()
        # Changed in single steps, by any thread.
        self._pending: dict[int, _Pending] = {}
        #: Number of acks and terms that were not confirmed, and are not sent again. A nak is not needed: the
        #: message is delivered again when its lease is over.
        self.abandoned: int = 0
        # Confirmations are read by `tick`, because nothing waits for one.
        self._confirmations = nc._confirmations()  # noqa: SLF001 - for workers

    def claim(self, delivery: LeasedMessage) -> bool:
        """As `Settler.claim`."""
        try:
            self._held.remove(delivery)
        except KeyError:
            return False
        delivery.state = DeliveryState.SETTLED
        return True

    def ack(self, delivery: LeasedMessage, *, confirm: bool) -> bool:
        """As `Settler.ack`; call `send_acks` at the latest at the time `due`."""
        if not self.claim(delivery):
            return False
        if delivery.msg.is_acked:
            return True  # the handler did
        if confirm or not self._nc.is_connected:
            self._unsent.append(delivery)
            return True
        try:
            delivery.msg.ack()
        except errors.Error as error:
            log.warning("%r was handled but not acknowledged: %s", delivery, error)
        return True

    def send_acks(self, now: float = 0.0) -> None:
        """Send the acks that wait; ``now`` is the time by the lease clock, for `due`."""
        self.due = now + _INTERVAL_S
        while self._unsent:
            token = next(self._tokens)
            with self._lock:
                count = min(len(self._unsent), _MAX_RUN)
                pending = _Pending([self._unsent.popleft() for _ in range(count)], _ACK)
                if not count:
                    return  # another thread sends them
                self._pending[token] = pending
            self._transmit(token, pending)

    def nak(self, delivery: LeasedMessage, delay: float) -> bool:
        """As `Settler.nak`."""
        payload = b'-NAK {"delay": %d}' % round(delay * 1e9) if delay else b"-NAK"
        return self._settle(delivery, payload, delay)

    def term(self, delivery: LeasedMessage, reason: str) -> bool:
        """As `Settler.term`."""
        return self._settle(delivery, b"+TERM " + reason.encode())

    def _settle(self, delivery: LeasedMessage, payload: bytes, repeat_s: float = math.inf) -> bool:
        if not self.claim(delivery):
            return False
        if not delivery.msg.is_acked:
            token, pending = next(self._tokens), _Pending([delivery], payload, repeat_s)
            self._pending[token] = pending
            self._transmit(token, pending)
        return True

    def reply(self, subject: str, reply: Reply) -> None:
        """As `Settler.reply`."""
        self._nc.publish(subject, reply.payload, headers=reply.headers)

    def _transmit(self, token: int, pending: _Pending) -> None:
        """Send a settlement, unless the connection is down or the lease is lost."""
        pending.waits = not self._nc.is_connected
        if pending.waits:
            return
        if pending.payload is not _ACK and pending.delivery.is_lost():
            text = "%s: the lease of %r was lost before it was settled; it is delivered again"
            log.warning(text, pending.delivery.handler, pending.delivery)
            self._pending.pop(token, None)
            return
        pending.sent_at = lease_clock()
        if not pending.sends:
            pending.repeat_until = pending.sent_at + pending.repeat_s
        elif pending.sent_at >= pending.repeat_until:
            log.warning(
                "%s: the nak of %r was not confirmed", pending.delivery.handler, pending.delivery
            )
            self._pending.pop(token, None)
            return
        if pending.sends and len(pending.deliveries) > 1:
            # With a new token: late confirmations of some must not count for others.
            if self._pending.pop(token, None) is None:
                return  # confirmed just now
            token = next(self._tokens)
            pending = self._pending[token] = replace(pending)
        pending.absent = False
        pending.missing = len(pending.deliveries)
        # Counted by the last tick: after a reconnect it may be sent once more than necessary.
        pending.reconnects = self._keeper.reconnects
        pending.sends += 1
        if pending.sends > 1:
            pending.delivery.observer.count("settle_retries")
        try:
            subjects = [delivery.msg.ack_subject for delivery in pending.deliveries]
            self._confirmations.send(subjects, pending.payload, token)
        except errors.Error as error:
            log.debug("%r was not settled: %s", pending.delivery, error)
            pending.waits = True

    def _read_confirmations(self) -> None:
        """Process the confirmations that have arrived, unless another thread does."""
        if not self._confirming.acquire(blocking=False):
            return
        try:
            for token, number, is_absent in self._confirmations.counts():
                self._confirmed(token, number, is_absent=is_absent)
        finally:
            self._confirming.release()

    def _confirmed(self, token: int, number: int, *, is_absent: bool) -> None:
        """Process confirmations, or replies that there are no responders; ``_confirming`` is held."""
        pending = self._pending.get(token)
        if pending is None:
            return
        if is_absent:
            pending.absent = True
        pending.missing -= number
        if pending.missing > 0:
            return
        # Not for a nak: it could act on the delivery of a consumer that was created again.
        repeat = pending.sends < _MAX_ABSENT_SENDS and math.isinf(pending.repeat_s)
        if pending.absent and repeat:
            return
        self._pending.pop(token, None)
        if pending.absent:
            self.abandoned += math.isinf(pending.repeat_s)
            text = "%s: %r was not settled: its consumer has no leader, or is deleted"
            log.warning(text, pending.delivery.handler, pending.delivery)

    def tick(self) -> None:
        """Process confirmations, send what waits, and send again what is due."""
        self._read_confirmations()
        self.send_acks()
        if self._pending and self._nc.is_connected:
            self._repeat()
        waiters = self._confirmations.waiters
        if waiters.gates:  # what `wait_confirmed` waits for was confirmed here, or abandoned
            waiters.wake_all()

    def _repeat(self) -> None:
        """Send again what is due."""
        for token, pending in self._pending.copy().items():
            if not self._is_due(pending):
                continue
            if pending.sends >= _MAX_SENDS:
                self.abandoned += math.isinf(pending.repeat_s)
                self._pending.pop(token, None)
                log.error("%r: the server did not confirm %r", pending.delivery, pending.payload)
            else:
                self._transmit(token, pending)

    def _is_due(self, pending: _Pending) -> bool:
        """Return whether a settlement has to be sent again; a new one is being sent."""
        if pending.waits or not pending.sends:
            return pending.waits
        timeout = _ABSENT_DELAY_S if pending.absent else _CONFIRM_TIMEOUT_S
        late = lease_clock() - pending.sent_at >= timeout
        return late or pending.reconnects != self._keeper.reconnects

    def wait_confirmed(self, deadline: Deadline) -> bool:
        """Wait until all settlements are confirmed or abandoned; return whether they are."""
        self.send_acks()
        return self._confirmations.waiters.wait_for(self._all_confirmed, deadline)

    def _all_confirmed(self) -> bool:
        self._read_confirmations()
        with self._lock:
            return not (self._pending or self._unsent)
