"""
The one gap check: whether the deliveries of a consumer follow each other.

A consumer numbers its deliveries. The number is in the reply subject of each message, and in the
heartbeats of a push consumer (ADR-15, "Message Gaps").
"""

from __future__ import annotations

from .reply import consumer_sequence

__all__ = ["DeliverySequence"]


class DeliverySequence:
    """
    The last delivery of a consumer that came in.

    Args:
        last: its consumer sequence; 0: none was sent yet; ``None``: not known, the first one that
            comes is believed.

    One thread at a time may use it.
    """

    __slots__ = ("last", "reply")

    def __init__(self, last: int | None = 0) -> None:
        self.last = last
        #: The reply subject of that delivery; empty while there was none.
        self.reply = b""

    def follows(self, reply: bytes) -> bool:
        """
        Say whether a message is the next one, and note it if so; for each message, so nothing else.

        Raises:
            NotJSMessageError: it does not come from a stream.

        """
        last = self.last
        sequence = consumer_sequence(reply)
        if last is not None and sequence != last + 1:
            return False
        self.last = sequence
        self.reply = reply
        return True

    def follow(self, first: bytes, last: bytes, count: int) -> bool:
        """
        Say whether messages that came together are the next ones, and note them if so.

        Looking at the last one is enough: sequences only grow, and one left out moves it.

        Args:
            first: the reply subject of the first.
            last: that of the last.
            count: how many they are.

        Raises:
            NotJSMessageError: one of these does not come from a stream.

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
        Note a message, whatever its sequence is, and return how many before it did not come.

        A sequence that went back (a consumer that was reset, or moved) is no gap.

        Raises:
            NotJSMessageError: it does not come from a stream.

        """
        sequence = consumer_sequence(reply)
        missing = self.missing(sequence - 1)
        self.last = sequence
        self.reply = reply
        return missing

    def missing(self, sent: int) -> int:
        """Return how many messages did not come, where the server sent all up to a sequence."""
        return 0 if self.last is None else max(0, sent - self.last)
