"""
Reading a stream's messages without a consumer.

Nothing is acknowledged and nobody competes, so work queues are read like everything else.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime

from ... import StoredMsg, Stream
from ...errors import MessageNotFoundError

__all__ = ["last_of", "messages_from", "sequence_at"]

_EVERYTHING = ">"


def messages_from(
    stream: Stream, seq: int, subject: str | None = None, until: int | None = None
) -> Iterator[StoredMsg]:
    """
    Iterate over the messages from a sequence on, to what is the end when it is reached.

    Args:
        stream: which one.
        seq: where to start.
        subject: only messages of it; ``None``: all.
        until: the last sequence to look at; ``None``: the last one.

    """
    seq = max(seq, 1)
    while until is None or seq <= until:
        try:
            msg = stream.get_msg(seq=seq, next_by_subject=subject or _EVERYTHING)
        except MessageNotFoundError:
            return
        if until is not None and msg.seq > until:
            return
        yield msg
        seq = msg.seq + 1


def last_of(stream: Stream, number: int, subject: str | None = None) -> list[StoredMsg]:
    """Return the last messages, at most so many, in their order."""
    state = stream.cached_info.state
    if not number or not state.messages:
        return []
    found: list[StoredMsg] = []
    end, width = state.last_seq, number
    # Where messages are gone, or are of other subjects, further back and in larger steps.
    while len(found) < number and end >= state.first_seq:
        start = max(state.first_seq, end - width + 1)
        found = [*messages_from(stream, start, subject, end), *found]
        end, width = start - 1, width * 2
    return found[-number:]


def sequence_at(stream: Stream, moment: datetime) -> int:
    """Return the sequence of the first message that is not older than a moment, or the next one."""
    state = stream.cached_info.state
    low, high = state.first_seq, state.last_seq + 1
    while low < high:
        middle = (low + high) // 2
        try:
            msg = stream.get_msg(seq=middle, next_by_subject=_EVERYTHING)
        except MessageNotFoundError:
            high = middle
            continue
        if msg.time < moment:
            low = msg.seq + 1
        else:
            high = middle
    return low
