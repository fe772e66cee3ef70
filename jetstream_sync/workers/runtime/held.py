"""
The messages that a handler holds: received and not settled yet, waiting for a thread or running.

Rules:

1. A message that is delivered for the third time may have ended its process. It is started alone: no other
   one starts while it runs, and only one message at a time is requested, until one comes that is not
   suspicious. So the others are not delivered without a run. A retry of an attempt that this process
   survived is not suspicious. One that exceeds its timeout holds up the others no longer.
2. A message that exceeds the timeout of its handler stays among the running ones until that returns.
3. With ``key``, a message of a free key is ready at once, and makes the key busy until it is finished, after
   its settlement was enqueued; a retry in place keeps the key. The other messages of a busy key wait in its
   lane, in the order of their arrival, and occupy no thread. A lane exists only while its key is busy.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Hashable, Sequence
from enum import Enum
from typing import TYPE_CHECKING, Final

from ...locks import new_lock

if TYPE_CHECKING:
    from ..leases import Delivery

#: The delivery from which on a message is started alone.
SUSPICIOUS_DELIVERY: Final = 3


class Phase(Enum):
    """What happens to messages; each phase follows the one before."""

    RECEIVING = "receiving"
    """They are requested and handled."""
    DRAINING = "draining"
    """No more are requested; those that wait or arrive are handled."""
    RETURNING = "returning"
    """Those that wait or arrive are returned to the server."""


class HeldMessages:
    """The held messages of one handler."""

    def __init__(self, *, isolates: bool) -> None:
        self.lock: threading.Lock = new_lock()
        #: Notified when a thread has something to do.
        self.work: threading.Condition = threading.Condition(self.lock)
        self.phase: Phase = Phase.RECEIVING
        #: With ``max_bytes``, their size, and the one that is expected of the next message: that of a larger
        #: message replaces it, others change it by a sixteenth.
        self.size: int = 0
        self.expected_size: float = 0.0
        self.running: set[Delivery] = set()
        #: Number of messages that were settled.
        self.handled: int = 0
        #: The messages that a thread can take, in the order in which they became ready.
        self.ready: deque[Delivery] = deque()
        # The busy keys, each with the messages that wait for it.
        self._lanes: dict[Hashable, deque[Delivery]] = {}
        self._isolates = isolates
        #: The message that is run alone.
        self.alone: Delivery | None = None
        #: Whether the last received message is suspicious; at first, no message is known.
        self.is_careful: bool = isolates
        #: Whether messages were returned because they waited for long, and no thread has become free since.
        self.is_congested: bool = False

    @property
    def waiting(self) -> int:
        """Number of messages that wait for a thread or for their key."""
        return len(self.ready) + sum(map(len, self._lanes.values()))

    @property
    def count(self) -> int:
        """Number of messages, waiting or running."""
        return self.waiting + len(self.running)

    @property
    def is_over(self) -> bool:
        """Whether a thread that finds no message ends."""
        return self.phase is not Phase.RECEIVING and (self.alone is None or not self.ready)

    def add(self, run: Sequence[Delivery]) -> bool:
        """Add received messages, and wake threads for them; return false if they have to be returned."""
        if self.phase is Phase.RETURNING:
            return False
        ready, lanes, before = self.ready, self._lanes, len(self.ready)
        for delivery in run:
            if delivery.key is None:
                ready.append(delivery)
            elif delivery.key in lanes:
                lanes[delivery.key].append(delivery)
            else:
                lanes[delivery.key] = deque()
                ready.append(delivery)
            if delivery.size:
                self.size += delivery.size
                expected = self.expected_size
                self.expected_size = max(delivery.size, expected + (delivery.size - expected) / 16)
        self.is_careful = self._isolates and run[-1].is_suspicious
        self.work.notify(len(ready) - before)
        return True

    def take(self) -> Delivery | None:
        """Let a waiting message run, if one may start, and return it."""
        if not self.ready or self.alone is not None:
            return None
        delivery = self.ready.popleft()
        self.running.add(delivery)
        if delivery.is_suspicious and self._isolates:
            self.alone = delivery
        return delivery

    def take_batch(self, size: int) -> list[Delivery]:
        """Let up to this number of waiting messages run, and return them."""
        batch = [self.ready.popleft() for _ in range(min(size, len(self.ready)))]
        self.running.update(batch)
        return batch

    def finish(self, delivery: Delivery) -> None:
        """Forget a message that was taken, and free its key."""
        self.handled += 1
        self.is_congested = False
        self.running.discard(delivery)
        if delivery.size:
            self.size -= delivery.size
        if delivery is self.alone:
            self.alone = None
            self.work.notify_all()
        if delivery.key is not None:
            lane = self._lanes[delivery.key]
            if lane:
                self.ready.append(lane.popleft())
                self.work.notify()
            else:
                del self._lanes[delivery.key]

    def has_stale(self, slots: int, before: float) -> bool:
        """Return whether all threads are busy, and messages wait that were received before a time."""
        is_busy = len(self.running) >= slots and self.phase is Phase.RECEIVING
        return is_busy and any(item.lease.received_at < before for item in self.ready)

    def take_stale(self, slots: int, before: float) -> list[Delivery]:
        """Remove and return the waiting messages that were received before a time, if all threads are busy."""
        if not self.has_stale(slots, before):
            return []
        stale = [item for item in self.ready if item.lease.received_at < before]
        self.is_congested = True
        self.ready = deque(item for item in self.ready if item.lease.received_at >= before)
        self.size -= sum([item.size for item in stale])
        return stale

    def end_isolation(self) -> None:
        """Let others start beside the message that runs alone, because it exceeds its timeout."""
        self.alone, self.is_careful = None, False
        self.work.notify_all()

    def clear(self) -> list[Delivery]:
        """Remove and return the waiting messages; the keys of running ones stay busy."""
        waiting = list(self.ready)
        self.ready.clear()
        for lane in self._lanes.values():
            waiting += lane
        busy = {delivery.key for delivery in self.running}
        self._lanes = {key: deque() for key in self._lanes if key in busy}
        self.size -= sum([delivery.size for delivery in waiting])
        return waiting
