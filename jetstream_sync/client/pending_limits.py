"""Count the pending messages and bytes of a subscription, without work for each message read."""

from __future__ import annotations

from collections import deque

from ..protocol.parser import Delivery
from .mailbox import first_items


class PendingLimits:
    """
    Counts the pending messages and bytes of a mailbox; one thread at a time may use it.

    The consumers of a mailbox take messages without a lock, so they cannot count bytes. The reader
    thread knows how many messages it added and how many are left, so it can tell which batches are
    consumed, and their bytes. The sum is exact to one batch: a partly consumed batch counts in full.
    """

    __slots__ = ("_batches", "_bytes_limit", "_first", "_msgs_limit", "_put", "pending_bytes")

    def __init__(self, msgs_limit: int, bytes_limit: int) -> None:
        self._msgs_limit = msgs_limit
        self._bytes_limit = bytes_limit
        # Number of messages added so far, and how many of them came before the first batch.
        self._put = 0
        self._first = 0
        # Message count and bytes of each batch that may not be consumed completely.
        self._batches: deque[tuple[int, int]] = deque()
        self.pending_bytes: int = 0

    @property
    def admitted(self) -> int:
        """Number of messages admitted so far."""
        return self._put

    def admit(self, deliveries: list[Delivery], waiting: int) -> int:
        """Return how many of these messages may be added, and count them."""
        self.settle(waiting)
        count = len(deliveries)
        if 0 < self._msgs_limit < waiting + count:
            count = max(0, self._msgs_limit - waiting)
        size = sum([len(header) + len(payload) for _, _, header, payload in deliveries])
        if 0 < self._bytes_limit < self.pending_bytes + size or count < len(deliveries):
            count, size = self._cut(deliveries[:count])
        if count:
            self._put += count
            self._batches.append((count, size))
            self.pending_bytes += size
        return count

    def settle(self, waiting: int) -> None:
        """Remove the batches that are consumed."""
        batches = self._batches
        taken = self._put - waiting
        while batches and self._first + batches[0][0] <= taken:
            count, size = batches.popleft()
            self._first += count
            self.pending_bytes -= size

    def bytes_of(self, items: deque[Delivery]) -> int:
        """
        Return the bytes of the pending messages of a mailbox.

        Only a partly consumed batch is counted message by message. While other threads consume
        messages, the result may be slightly out of date.
        """
        waiting = len(items)
        self.settle(waiting)
        if not self._batches:
            return 0
        count, size = self._batches[0]
        left = self._first + count - (self._put - waiting)
        if left >= count:
            return self.pending_bytes
        half_read = first_items(items, left)
        return self.pending_bytes - size + sum([len(each[2]) + len(each[3]) for each in half_read])

    def _cut(self, deliveries: list[Delivery]) -> tuple[int, int]:
        """Return how many of the messages fit, and their bytes."""
        fitting = 0
        total = 0
        for _, _, header, payload in deliveries:
            size = len(header) + len(payload)
            if 0 < self._bytes_limit < self.pending_bytes + total + size:
                break
            fitting += 1
            total += size
        return fitting, total
