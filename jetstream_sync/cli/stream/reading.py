"""
Reading a stream's messages without a consumer.

Nothing is acknowledged and nobody competes, so work queues are read like everything else.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import TYPE_CHECKING, Final

from ...errors import MessageNotFoundError
from .batches import Batches

if TYPE_CHECKING:
    from ... import Connection, StoredMsg, Stream
    from ..settings import Settings

__all__ = ["Reader"]

_EVERYTHING: Final = ">"


class Reader:
    """
    Reads the messages of a stream, many with one request where the server can.

    Args:
        settings: has the domain or the prefix, and how long to wait.
        nc: the connection.
        stream: which one.

    """

    def __init__(self, settings: Settings, nc: Connection, stream: Stream) -> None:
        self._stream = stream
        self._batches = Batches(settings, nc, stream)

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
            try:
                found = self._some(seq, subject or _EVERYTHING, until, most)
            except MessageNotFoundError:
                return
            for msg in found:
                if until is not None and msg.seq > until:
                    return
                yield msg
                seq = msg.seq + 1

    def _some(self, seq: int, subject: str, until: int | None, most: int | None) -> list[StoredMsg]:
        """Return the next messages, one at least; raise `MessageNotFoundError` at the end."""
        room = [each for each in (most, None if until is None else until - seq + 1) if each]
        return self._batches.get(seq, subject, min(room, default=None)) or [
            self._stream.get_msg(seq=seq, next_by_subject=subject)
        ]

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
