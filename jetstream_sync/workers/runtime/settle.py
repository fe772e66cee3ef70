"""
Settlement: how ack, nak and term leave the worker, and their confirmation by the server.

Rules:

1. Exactly one of ack, nak and term is chosen for a delivery, by the caller that removes it from the lease
   keeper: see `Settlements.claim`.
2. Settlements are sent with a reply subject and confirmed by the server. Handler threads do not wait for
   the confirmations. Acks that wait at the same time form a run: they have one reply subject, and the run
   is confirmed when the server has confirmed each of them. A handler thread sends the acks that wait unless
   some were sent in the last milliseconds; so a busy worker has few runs. `Settlements.tick` sends those
   that are left.
3. While the connection is down, settlements are kept here, not in the output buffer of the
   connection: a nak or term must not be sent after its lease is lost.
4. A settlement is sent again after a reconnect, and when it is not confirmed in time. An ack may be
   sent any number of times, also late. A term is sent again while the lease lasts. A nak is sent
   again only within its own delay: after that, the message may have been delivered again, and a
   second nak would act on that delivery.
5. "No responders" to a settlement means that the consumer has no leader for the moment, or was deleted.
   An ack or a term is sent again some times.
"""

from __future__ import annotations

import itertools
import math
import threading
import time
from collections import deque
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, Protocol

from ... import errors
from ...locks import new_lock
from ..leases import Delivery, DeliveryState, LeaseKeeper, lease_clock
from ..logs import log

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ... import Connection, Headers

_ACK: Final = b"+ACK"
_SETTLED: Final = DeliveryState.SETTLED
#: Seconds after which an unconfirmed settlement is sent again.
_CONFIRM_TIMEOUT_S: Final = 5.0
#: Shortest interval of the acks that a thread sends before it goes on with another message, in seconds.
_INTERVAL_S: Final = 0.005
#: Largest number of acks in a run.
_MAX_RUN: Final = 250
#: Seconds after which a settlement is sent again that nothing has received, and how often it is sent then.
_ABSENT_DELAY_S: Final = 1.0
_MAX_ABSENT_SENDS: Final = 8
#: Interval in which `Settlements.wait_confirmed` looks for confirmations, in seconds.
_CONFIRMED_POLL_S: Final = 0.005
#: Number of times that a settlement is sent on working links before it is abandoned.
_MAX_SENDS: Final = 12


@dataclass(slots=True, eq=False)
class _Pending:
    """A settlement, or a run of acks, that is not confirmed yet."""

    deliveries: list[Delivery]
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
    def delivery(self) -> Delivery:
        """The first one, for log records."""
        return self.deliveries[0]


class Settling(Protocol):
    """How a processor of messages settles them; `Settlements` does, and test clients record it."""

    def claim(self, delivery: Delivery) -> bool:
        """Return whether the caller may settle this delivery; only the first caller may."""

    def ack(self, delivery: Delivery, *, confirm: bool) -> bool:
        """Acknowledge a delivery; return whether it was not settled before."""

    def send_acks(self) -> None:
        """Send the acks that wait."""

    def nak(self, delivery: Delivery, delay: float) -> bool:
        """Have a message delivered again after a delay in seconds; return as `ack`."""

    def term(self, delivery: Delivery, reason: str) -> bool:
        """End the deliveries of a message; return as `ack`."""

    def reply(
        self,
        subject: str,
        payload: bytes,
        headers: Headers | Mapping[str, str] | Mapping[str, list[str]] | None,
    ) -> None:
        """Publish the reply of a handler."""


class Settlements:
    """Sends settlements and tracks their confirmations, for any thread; one thread calls `tick`."""

    def __init__(self, nc: Connection, keeper: LeaseKeeper) -> None:
        self._nc = nc
        self._keeper = keeper
        self._held = keeper.held
        self._tokens = itertools.count(1)
        # The acks that wait.
        self._unsent: deque[Delivery] = deque()
        #: Time by the lease clock at which a handler thread sends the acks that wait.
        self.due: float = 0.0
        # Held while acks are moved from there to _pending.
        self._lock = new_lock()
        # Held while confirmations are processed; never waited for, because that may log.
        self._confirming = threading.Lock()
        # Changed in single steps, by any thread.
        self._pending: dict[int, _Pending] = {}
        #: Number of settlements that were not confirmed, and are not sent again.
        self.abandoned: int = 0
        # Confirmations are read by `tick`, because nothing waits for one.
        self._confirmations = nc._confirmations()  # noqa: SLF001 - for workers

    def claim(self, delivery: Delivery) -> bool:
        """Return whether the caller may settle this delivery; only the first caller may."""
        try:
            self._held.remove(delivery)
        except KeyError:
            return False
        delivery.state = _SETTLED
        return True

    def ack(self, delivery: Delivery, *, confirm: bool) -> bool:
        """
        Acknowledge a delivery, also after its lease was lost; return whether it was not settled before.

        Call `send_acks` next, at the latest at the time `due`.
        """
        try:  # as `claim`: this runs once for each message
            self._held.remove(delivery)
        except KeyError:
            return False
        delivery.state = _SETTLED
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

    def nak(self, delivery: Delivery, delay: float) -> bool:
        """Have a message delivered again after a delay in seconds, 0: at once; return as `ack`."""
        payload = b'-NAK {"delay": %d}' % round(delay * 1e9) if delay else b"-NAK"
        return self._settle(delivery, payload, delay)

    def term(self, delivery: Delivery, reason: str) -> bool:
        """End the deliveries of a message, for a reason of one line; return as `ack`."""
        return self._settle(delivery, b"+TERM " + reason.encode())

    def _settle(self, delivery: Delivery, payload: bytes, repeat_s: float = math.inf) -> bool:
        if not self.claim(delivery):
            return False
        if not delivery.msg.is_acked:
            token, pending = next(self._tokens), _Pending([delivery], payload, repeat_s)
            self._pending[token] = pending
            self._transmit(token, pending)
        return True

    def reply(
        self,
        subject: str,
        payload: bytes,
        headers: Headers | Mapping[str, str] | Mapping[str, list[str]] | None,
    ) -> None:
        """Publish the reply of a handler; it is sent before an acknowledgement that follows."""
        self._nc.publish(subject, payload, headers=headers)

    def _transmit(self, token: int, pending: _Pending) -> None:
        """Send a settlement, unless the connection is down or the lease is lost."""
        pending.waits = not self._nc.is_connected
        if pending.waits:
            return
        if pending.payload is not _ACK and pending.delivery.is_lost():
            log.warning(
                "%s: the lease of %r was lost before it was settled; it is delivered again",
                pending.delivery.handler,
                pending.delivery,
            )
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
            self.abandoned += 1
            log.warning(
                "%s: %r was not settled: its consumer has no leader, or is deleted",
                pending.delivery.handler,
                pending.delivery,
            )

    def tick(self) -> None:
        """Process confirmations, send what waits, and send again what is due."""
        self._read_confirmations()
        self.send_acks()
        if not self._pending or not self._nc.is_connected:
            return
        for token, pending in self._pending.copy().items():
            if not self._is_due(pending):
                continue
            if pending.sends >= _MAX_SENDS:
                self.abandoned += 1
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

    def wait_confirmed(self, timeout: float) -> bool:
        """Wait until all settlements are confirmed or abandoned; return whether they are."""
        self.send_acks()
        until = time.monotonic() + timeout
        while True:
            self._read_confirmations()
            with self._lock:
                if not (self._pending or self._unsent):
                    return True
            left = until - time.monotonic()
            if left <= 0:
                return False
            time.sleep(min(left, _CONFIRMED_POLL_S))
