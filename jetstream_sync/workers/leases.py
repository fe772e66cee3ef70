"""
Leases: for how long a received message belongs to this worker, and their renewal.

Rules:

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
"""

from __future__ import annotations

import itertools
import math
import random
import time
from collections.abc import Callable, Hashable
from contextvars import ContextVar
from copy import copy
from enum import Enum
from functools import partial
from typing import TYPE_CHECKING, Final

from .. import errors
from .logs import log

if TYPE_CHECKING:
    from .. import Connection, ConsumerConfig, JetStreamMsg, Metadata

#: Shortest supported lease, in seconds: a shorter one would be lost by a short stall of the process.
MIN_WAIT_S: Final = 3.0
#: Default ``ack_wait`` of nats-server, in seconds.
_DEFAULT_WAIT_S: Final = 30.0
#: Leases are renewed after this fraction of their length, with a jitter.
_RENEWAL_FRACTION: Final = 1 / 3
_RENEWAL_JITTER: Final = 0.1
#: A lease is lost after this fraction of its length. The rest is for the way from the server to the
#: worker, on a loaded machine.
_LOST_FRACTION: Final = 0.9
#: Timeout of the ping behind renewals, as a fraction of the shortest renewed lease.
_PING_FRACTION: Final = 0.25

#: Number of tokens of a reply subject without a domain (ADR-15), in which the number of the delivery
#: and the time of the message have fixed places.
_SHORT_FORM: Final = 9

#: The fractions of the next renewals: a list that repeats is cheaper than a random number per message.
_RENEWALS: Final = itertools.cycle(
    [
        _RENEWAL_FRACTION * random.uniform(1 - _RENEWAL_JITTER, 1 + _RENEWAL_JITTER)  # noqa: S311
        for _ in range(997)
    ]
)

_BOOTTIME: Final = getattr(time, "CLOCK_BOOTTIME", None)


#: Returns a monotonic time in seconds that also advances while the machine is suspended.
lease_clock: Final[Callable[[], float]] = (
    time.monotonic if _BOOTTIME is None else partial(time.clock_gettime, _BOOTTIME)
)


class LeaseLostError(Exception):
    """The lease of the message is over: the server may have delivered it to another worker."""


class LeaseTimes:
    """The lengths of the leases of one consumer; replaced as a whole by `adopt`."""

    __slots__ = ("waits",)

    def __init__(self, config: ConsumerConfig) -> None:
        #: Lengths of the leases of the first, the second, ... delivery, in seconds.
        self.waits: list[float] = []
        self.adopt(config)

    def adopt(self, config: ConsumerConfig) -> None:
        """Use the lengths of this config from now on; for held messages from the next `LeaseKeeper.tick`."""
        waits = [wait.total_seconds() for wait in config.backoff or ()]
        if not waits:
            waits = [config.ack_wait.total_seconds() if config.ack_wait else _DEFAULT_WAIT_S]
        if waits != self.waits:
            self.waits = waits

    @property
    def shortest(self) -> float:
        """The length of the shortest lease, in seconds."""
        return min(self.waits)


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
        wait = self.waits[min(self.delivered, len(self.waits)) - 1]
        self.due = min(self.due, self.begun_at + wait * next(_RENEWALS))
        #: Time when the lease is over.
        self.lost_at: float = self.begun_at + wait * _LOST_FRACTION


def delivery_number(msg: JetStreamMsg) -> int:
    """Return how often a message was delivered."""
    tokens = msg.ack_subject.split(b".")
    return int(tokens[4]) if len(tokens) == _SHORT_FORM else msg.metadata.num_delivered


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

    def lease_lost(self, delivery: Delivery) -> None:
        """Record that the lease of a message is lost."""


_IGNORED: Final = DeliveryObserver()


class Delivery:
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
    """The error of the handler's ``key`` function; ``None``: there was none."""
    state: DeliveryState = DeliveryState.LEASED
    thread: int = 0
    """The thread that runs the handler; 0: the handler does not run."""
    give_up_at: float = math.inf
    """Time by the lease clock at which the handler's timeout is over."""
    trace_id: str = ""
    """The trace of the handler; empty: it is not traced."""
    started_at: float = 0.0
    """Time of the last start of the handler by the lease clock."""
    ended_at: float = 0.0
    """Time of its end."""
    consumer: str = ""
    """The name in `metadata` instead of that of the consumer; empty: none."""
    task: str = ""
    """The name of the task that the message is a call of; empty: it is none."""
    is_suspicious: bool = False
    """Whether the message may have ended the process that handled it before."""

    def __init__(
        self,
        msg: JetStreamMsg,
        lease: Lease,
        handler: str,
        generation: str = "",
        observer: DeliveryObserver = _IGNORED,
    ) -> None:
        self.msg: JetStreamMsg = msg
        self.lease: Lease = lease
        #: The number of the attempt: that of the delivery, plus the retries in place.
        self.attempt: int = lease.delivered
        self.handler: str = handler
        #: The creation time of the stream, for the id of the message.
        self.generation: str = generation
        self.observer: DeliveryObserver = observer

    @property
    def metadata(self) -> Metadata:
        """The metadata of the message, parsed on each access."""
        found = self.msg.metadata
        return found._replace(consumer=self.consumer) if self.consumer else found

    @property
    def stored_ns(self) -> int:
        """Time when the message was stored, in nanoseconds since 1970."""
        subject = self.msg.ack_subject
        if subject.count(b".") == _SHORT_FORM - 1:
            return int(subject.rsplit(b".", 2)[1])
        return self.metadata.timestamp_ns

    def is_lost(self) -> bool:
        """Return whether the lease is over."""
        return lease_clock() >= self.lease.lost_at

    @property
    def is_settled(self) -> bool:
        """Whether the message was settled, by the worker or by the handler itself."""
        return self.state is DeliveryState.SETTLED or self.msg.is_acked

    @property
    def exceeds_timeout(self) -> bool:
        """Whether the handler runs for longer than its timeout; this says nothing about the lease."""
        return lease_clock() >= self.give_up_at

    def __repr__(self) -> str:
        """Return the position of the message, for log records."""
        where = self.metadata
        return f"message {where.stream_seq} of {where.stream}/{where.consumer}"


#: The message that this thread handles.
log_context: ContextVar[Delivery | None] = ContextVar("jetstream_sync_delivery", default=None)


class LeaseKeeper:
    """Renews the leases of all held messages of a connection, for any thread; one thread calls `tick`."""

    def __init__(self, nc: Connection, on_reconnect: Callable[[], object]) -> None:
        self._nc = nc
        self._on_reconnect = on_reconnect
        #: Number of reconnects, as of the last tick.
        self.reconnects: int = 0
        #: Time of the last tick, by the lease clock.
        self.checked_at: float = lease_clock()
        #: The held messages; changed in single steps, by any thread. See `Settlements.claim`.
        self.held: set[Delivery] = set()

    def tick(self) -> None:
        """Renew the leases that are due, except those of handlers over their timeout."""
        reconnects = self._nc.stats["reconnects"]
        if reconnects != self.reconnects:
            self.reconnects = reconnects
            self._on_reconnect()
        due: list[Delivery] = []
        now = self.checked_at = lease_clock()
        for delivery in self.held.copy():
            lease = delivery.lease
            if lease.waits is not lease.times.waits:
                lease.adopt()
            # Most are not due. A renewal is due long before the lease is lost.
            if now < lease.due and now < delivery.give_up_at:
                continue
            if delivery.is_lost():
                self._report_lost(delivery)
            elif now >= delivery.give_up_at:
                delivery.lease = copy(lease)  # that of the others may be renewed
            else:
                due.append(delivery)
        if due and self._nc.is_connected:
            self._renew(due, reconnects)

    def _renew(self, due: list[Delivery], reconnects: int) -> None:
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
                self._nc.flush(shortest * _PING_FRACTION)
        except errors.Error as error:
            log.debug("leases were not renewed: %s", error)
            return  # they stay due
        if self._nc.stats["reconnects"] == reconnects:
            for lease in {delivery.lease for delivery in renewed}:
                lease.renew(now)
            for delivery in renewed:
                delivery.observer.count("leases_renewed")

    def _report_lost(self, delivery: Delivery) -> None:
        if delivery.state in {DeliveryState.LOST, DeliveryState.SETTLED}:
            return
        delivery.observer.lease_lost(delivery)
        delivery.state = DeliveryState.LOST
        log.warning(
            "%s: the lease of %r is lost; the message is delivered again",
            delivery.handler,
            delivery,
        )
