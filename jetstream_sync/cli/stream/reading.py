"""
Reading a stream's messages without a consumer.

Nothing is acknowledged and nobody competes, so work queues are read like everything else.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import TYPE_CHECKING, Final

from ...errors import MessageNotFoundError

if TYPE_CHECKING:
    from ... import StoredMsg, Stream

__all__ = ["Reader"]

_EVERYTHING: Final = ">"
#: Messages and bytes of one answer; it ends with the message that reaches one of them.
_MOST: Final = 500
_BYTES: Final = 1_000_000


class Reader:
    """
    Reads the messages of a stream, many with one request where the server can.

    Args:
        stream: which one.

    """

    def __init__(self, stream: Stream) -> None:
        self._stream = stream

    def messages(
        self,
        seq: int,
        subject: str | None = None,
        *,
        until: int | None = None,
        most: int | None = None,
    ) -> Iterator[StoredMsg]:
        """
        Iterate over the messages from a sequence on, to what is the end when it is reached.

        Args:
            seq: where to start.
            subject: only messages of it; ``None``: all.
            until: the last sequence to look at; ``None``: the last one.
            most: how many will be looked at, as far as that is known; it does not end the iteration.

        """
        seq = max(seq, 1)
        while until is None or seq <= until:
            rooms = [_MOST, most, None if until is None else until - seq + 1]
            room = min(each for each in rooms if each)
            found = self._stream.get_msgs(room, seq, subject, max_bytes=_BYTES)
            if not found:
                return
            for msg in found:
                if until is not None and msg.seq > until:
                    return
                yield msg
                seq = msg.seq + 1

    def last(self, number: int, subject: str | None = None) -> list[StoredMsg]:
        """Return the last messages, at most so many, in their order."""
        state = self._stream.cached_info.state
        if not state.messages:
            return []
        found: list[StoredMsg] = []
        end, width = state.last_seq, number
        # Where messages are gone, or are of other subjects, further back and in larger steps.
        while len(found) < number and end >= state.first_seq:
            start = max(state.first_seq, end - width + 1)
            found = [*self.messages(start, subject, until=end), *found]
            end, width = start - 1, width * 2
        return found[-number:]

    def sequence_at(self, moment: datetime) -> int:
        """Return the sequence of the first message that is not older than a moment, or the next one."""
        state = self._stream.cached_info.state
        # A stream that never had a message has no first one.
        low, high = max(state.first_seq, 1), state.last_seq + 1
        while low < high:
            middle = (low + high) // 2
            try:
                msg = self._stream.get_msg(seq=middle, next_by_subject=_EVERYTHING)
            except MessageNotFoundError:
                high = middle
                continue
            if msg.time < moment:
                low = msg.seq + 1
            else:
                high = middle
        return low
