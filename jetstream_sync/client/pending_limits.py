"""How much a subscription holds that has not been read yet, counted without work per message read."""

from __future__ import annotations

from collections import deque
from itertools import islice

from ..protocol.parser import Delivery

__all__ = ["PendingLimits"]


class PendingLimits:
    """
    The account of the messages and bytes that wait in a mailbox; one thread at a time may use it.

    The readers of a mailbox take messages without a lock, so they can not count bytes. The
    reader knows how many messages it put in, and sees how many are left; so it knows which of the
    batches that it put in are gone, and how many bytes went with them. The sum is exact to one
    batch: the batch that is half read counts in full.

    Args:
        msgs_limit: messages that may wait; 0 or less: no limit.
        bytes_limit: bytes of headers and payloads that may wait; 0 or less: no limit.

    """

    __slots__ = ("_batches", "_bytes_limit", "_first", "_msgs_limit", "_put", "pending_bytes")

    def __init__(self, msgs_limit: int, bytes_limit: int) -> None:
        self._msgs_limit = msgs_limit
        self._bytes_limit = bytes_limit
        # Messages put in so far, and how many of them had been before the first batch.
        self._put = 0
        self._first = 0
        # Count and bytes of each batch of which something may be left.
        self._batches: deque[tuple[int, int]] = deque()
        self.pending_bytes = 0

    @property
    def admitted(self) -> int:
        """Messages that were let in so far."""
        return self._put

    def admit(self, deliveries: list[Delivery], waiting: int) -> int:
        """
        Say how many of these messages may be put in, and count them.

        Args:
            deliveries: the messages, in order.
            waiting: how many are in the mailbox now.

        """
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
        """Forget the batches that are read."""
        batches = self._batches
        taken = self._put - waiting
        while batches and self._first + batches[0][0] <= taken:
            count, size = batches.popleft()
            self._first += count
            self.pending_bytes -= size

    def bytes_of(self, items: deque[Delivery]) -> int:
        """
        Return the bytes of the messages that wait in a mailbox.

        Only the batch that is half read is looked at message by message. Threads that read
        meanwhile make the answer that of a moment ago.
        """
        waiting = len(items)
        self.settle(waiting)
        if not self._batches:
            return 0
        count, size = self._batches[0]
        left = self._first + count - (self._put - waiting)
        if left >= count:
            return self.pending_bytes
        # In C, so that no other thread changes the queue meanwhile.
        half_read = list(islice(items, left))
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
