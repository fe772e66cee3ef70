"""
Gap detection in the deliveries of a consumer.

A consumer numbers its deliveries. The consumer sequence is in the reply subject of each message and
in the heartbeats of a push consumer (ADR-15, "Message Gaps").
"""

from __future__ import annotations

from .reply import consumer_sequence


class DeliverySequence:
    """
    The last received delivery of a consumer.

    Not thread-safe.
    """

    __slots__ = ("last", "reply")

    def __init__(self, last: int | None = 0) -> None:
        self.last = last
        #: Reply subject of the last delivery; empty before the first one.
        self.reply: bytes = b""

    def follows(self, reply: bytes) -> bool:
        """Return whether a message is the next delivery, and record it if so. A hot path."""
        last = self.last
        sequence = consumer_sequence(reply)
        if last is not None and sequence != last + 1:
            return False
        self.last = sequence
        self.reply = reply
        return True

    def follow(self, first: bytes, last: bytes, count: int) -> bool:
        """
        Return whether a batch of messages contains the next deliveries, and record them if so.

        Checking the last message is sufficient: sequences only grow, so a gap changes the last one.
        """
        before = self.last
        if before is None:
            before = consumer_sequence(first) - 1
        sequence = consumer_sequence(last)
        if sequence != before + count:
            return False
        self.last = sequence
        self.reply = last
        return True

    def jump(self, reply: bytes) -> int:
        """
        Record a message with any sequence, and return the number of missing messages before it.

        A lower sequence (the consumer was reset or moved) is not a gap.
        """
        sequence = consumer_sequence(reply)
        missing = self.missing(sequence - 1)
        self.last = sequence
        self.reply = reply
        return missing

    def missing(self, sent: int) -> int:
        """Return the number of missing messages if the server sent all up to a sequence."""
        return 0 if self.last is None else max(0, sent - self.last)
