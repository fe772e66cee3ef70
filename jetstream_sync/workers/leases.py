"""
Leases: for how long a received message belongs to this worker, and their renewal.

Rules:

1. A message is leased from its receipt, while it waits and while its handler runs.
2. The length of a lease comes from the consumer's info, not from the options of a handler: a
   ``backoff`` in the config replaces ``ack_wait``.
3. A renewal counts from the moment before it was sent, and only if the same link then answered a
   ping. A renewal that may not have arrived does not prolong a lease.
4. A lease is regarded as lost after nine tenths of its length: the server counts from the moment when
   it sent the message, which is not known here.
5. A lease that is over is lost for good. Only an acknowledgement of a handled message may be sent
   after that: the server applies everything else to the newer delivery of the message.
6. A lease is not renewed after the handler's timeout.
"""

from __future__ import annotations

import itertools
import math
import random
import sys
import time
import traceback
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from .. import Error
from .logs import log

if TYPE_CHECKING:
    from .. import Connection, ConsumerConfig, JetStreamMsg, Metadata

__all__ = [
    "MIN_WAIT_S",
    "Delivery",
    "DeliveryObserver",
    "LeaseKeeper",
    "LeaseLostError",
    "LeaseTimes",
    "lease_clock",
]

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

#: The fractions of the next renewals: a list that repeats is cheaper than a random number per message.
_RENEWALS: Final = itertools.cycle(
    _RENEWAL_FRACTION * random.uniform(1 - _RENEWAL_JITTER, 1 + _RENEWAL_JITTER)  # noqa: S311
    for _ in range(997)
)

_BOOTTIME: Final = getattr(time, "CLOCK_BOOTTIME", None)


def lease_clock() -> float:
    """Return a monotonic time in seconds that also advances while the machine is suspended."""
    return time.monotonic() if _BOOTTIME is None else time.clock_gettime(_BOOTTIME)


class LeaseLostError(Exception):
    """The lease of the message is over: the server may have delivered it to another worker."""


class LeaseTimes:
    """The lengths of the leases of one consumer; replaced as a whole by `adopt`."""

    __slots__ = ("shortest", "waits")

    def __init__(self, config: ConsumerConfig) -> None:
        #: Lengths of the leases of the first, the second, ... delivery, in seconds.
        self.waits: list[float] = []
        self.shortest: float = 0.0
        self.adopt(config)

    def adopt(self, config: ConsumerConfig) -> None:
        """Use the lengths of this config from now on, also for held messages."""
        waits = [wait.total_seconds() for wait in config.backoff or ()]
        if not waits:
            waits = [config.ack_wait.total_seconds() if config.ack_wait else _DEFAULT_WAIT_S]
        self.waits = waits
        self.shortest = min(waits)

    def of(self, attempt: int) -> float:
        """Return the length of the lease of the n-th delivery of a message, in seconds."""
        waits = self.waits
        return waits[attempt - 1] if attempt < len(waits) else waits[-1]


class DeliveryObserver:
    """Counts what happens to deliveries; this one ignores it."""

    def count(self, name: str, number: int = 1) -> None:
        """Add to a counter."""

    def lease_lost(self, delivery: Delivery) -> None:
        """Record that the lease of a message is lost."""


_IGNORED: Final = DeliveryObserver()


class Delivery:
    """
    A received message, its lease and its state.

    Args:
        msg: the message.
        times: the lengths of the leases of its consumer.
        handler: the name of its handler, for log records.
        observer: counts what happens to it.

    """

    __slots__ = (
        "attempt",
        "claimed",
        "delivered",
        "due",
        "failure",
        "give_up_at",
        "given_up",
        "handler",
        "leased_at",
        "metadata",
        "msg",
        "observer",
        "received_at",
        "reported",
        "size",
        "slept",
        "started_at",
        "thread",
        "times",
        "trace_id",
    )

    def __init__(
        self,
        msg: JetStreamMsg,
        times: LeaseTimes,
        handler: str,
        observer: DeliveryObserver = _IGNORED,
    ) -> None:
        self.msg: JetStreamMsg = msg
        self.observer: DeliveryObserver = observer
        self.metadata: Metadata = msg.metadata
        #: The number of the delivery, which determines the length of the lease.
        self.delivered: int = self.metadata.num_delivered
        #: The number of the attempt: the same, plus the retries in place.
        self.attempt: int = self.delivered
        #: In bytes, if the handler has ``max_bytes``.
        self.size: int = 0
        #: Total delay of the retries in place, in seconds.
        self.slept: float = 0.0
        #: The error of the handler's ``key`` function; ``None``: there was none.
        self.failure: BaseException | None = None
        self.times: LeaseTimes = times
        self.handler: str = handler
        #: Whether ack, nak or term was chosen; guarded by the lock of `Settlements`.
        self.claimed: bool = False
        #: The thread that runs the handler; 0: the handler does not run.
        self.thread: int = 0
        #: Time by the lease clock at which the handler's timeout is over.
        self.give_up_at: float = math.inf
        self.given_up: bool = False
        self.reported: bool = False
        #: The trace of the handler; empty: it is not traced.
        self.trace_id: str = ""
        #: Begin of the lease, and time of the next renewal, by the lease clock.
        self.leased_at: float = 0.0
        self.due: float = 0.0
        self.renewed(lease_clock())
        #: Times of the receipt, and of the last start of the handler, by the lease clock.
        self.received_at: float = self.leased_at
        self.started_at: float = self.leased_at

    def renewed(self, now: float) -> None:
        """Record that the lease began at ``now``."""
        self.leased_at = now
        self.due = now + self.times.of(self.delivered) * next(_RENEWALS)

    def is_lost(self) -> bool:
        """Return whether the lease is over."""
        return lease_clock() - self.leased_at >= self.times.of(self.delivered) * _LOST_FRACTION

    def __repr__(self) -> str:
        """Return the position of the message, for log records."""
        where = self.metadata
        return f"message {where.stream_seq} of {where.stream}/{where.consumer}"


class LeaseKeeper:
    """
    Renews the leases of all held messages of a connection.

    Args:
        nc: the connection.
        on_reconnect: called by `tick` after a reconnect.

    Any thread may call `add` and `remove`; one thread calls `tick`.
    """

    def __init__(self, nc: Connection, on_reconnect: Callable[[], object]) -> None:
        self._nc = nc
        self._on_reconnect = on_reconnect
        #: Number of reconnects, as of the last tick.
        self.reconnects: int = 0
        #: Time of the last tick, by the lease clock.
        self.checked_at: float = lease_clock()
        self._held: dict[int, Delivery] = {}

    def add(self, delivery: Delivery) -> None:
        """Renew the lease of a message from now on."""
        self._held[id(delivery)] = delivery

    def remove(self, delivery: Delivery) -> None:
        """Stop renewing; a second call does nothing."""
        self._held.pop(id(delivery), None)

    def tick(self) -> None:
        """Renew the leases that are due; give up those of handlers over their timeout."""
        reconnects = self._nc.stats["reconnects"]
        if reconnects != self.reconnects:
            self.reconnects = reconnects
            self._on_reconnect()
        due: list[Delivery] = []
        now = self.checked_at = lease_clock()
        for delivery in tuple(self._held.values()):
            # Most are not due. A renewal is due long before the lease is lost.
            if now < delivery.due and now < delivery.give_up_at:
                continue
            if delivery.is_lost():
                self._report_lost(delivery)
            elif now >= delivery.give_up_at:
                self._give_up(delivery)
            elif now >= delivery.due:
                due.append(delivery)
        if due and self._nc.is_connected:
            self._renew(due, reconnects)

    def _renew(self, due: list[Delivery], reconnects: int) -> None:
        now = lease_clock()
        renewed = []
        try:
            for delivery in due:
                # Checked again right before sending: the process may have been suspended.
                if not (delivery.is_lost() or delivery.claimed or delivery.msg.is_acked):
                    delivery.msg.in_progress()
                    renewed.append(delivery)
            if renewed:
                shortest = min(each.times.shortest for each in renewed)
                self._nc.flush(shortest * _PING_FRACTION)
        except Error as error:
            log.debug("leases were not renewed: %s", error)
            return  # they stay due
        if self._nc.stats["reconnects"] == reconnects:
            for delivery in renewed:
                delivery.renewed(now)
                delivery.observer.count("leases_renewed")

    def _report_lost(self, delivery: Delivery) -> None:
        if delivery.reported or delivery.claimed:
            return
        delivery.observer.lease_lost(delivery)
        delivery.reported = True
        log.warning(
            "%s: the lease of %r is lost; the message is delivered again",
            delivery.handler,
            delivery,
        )

    def _give_up(self, delivery: Delivery) -> None:
        if delivery.given_up:
            return
        delivery.given_up = True
        delivery.observer.count("timeouts")
        frame = sys._current_frames().get(delivery.thread)  # noqa: SLF001 - documented for this use
        stack = "".join(traceback.format_stack(frame)) if frame is not None else ""
        log.error(
            "%s: the handler exceeds its timeout; the lease of %r is given up, and its thread "
            "stays occupied. Stack of the thread:\n%s",
            delivery.handler,
            delivery,
            stack,
        )
