"""
Read a stream's messages, without an effect on the stream.

Messages come with direct gets in batches. Where one request brings one message, an ordered consumer reads
on: the stream has no ``allow_direct``, or the server is older than 2.11. Such a consumer acknowledges
nothing. It is used on streams with limits only: on a work queue it would take the place of a worker, and on
a stream with interest it would keep messages for which there is none. There, and where the server refuses a
consumer, each message is a request.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

from ... import DeliverPolicy, RetentionPolicy, StoredMsg
from ...durations import time_from_ns
from ...errors import Error, MessageNotFoundError, TimeoutError

if TYPE_CHECKING:
    from ... import OrderedMessages, Stream

__all__ = ["Reader"]

_EVERYTHING: Final = ">"
#: Messages and bytes of one answer; it ends with the message that reaches one of them.
_MOST: Final = 500
_BYTES: Final = 1_000_000
#: Messages that are got one by one before a consumer is made for more.
_SINGLE: Final = 20
#: Seconds without a message after which the end is looked for.
_SLICE_S: Final = 0.5


class Reader:
    """
    Reads the messages of a stream, many with one request where the server can.

    Args:
        stream: which one.

    """

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self._may_consume = stream.cached_info.config.retention is RetentionPolicy.LIMITS

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
        single = 0
        while until is None or seq <= until:
            rooms = [_MOST, most, None if until is None else until - seq + 1]
            room = min(each for each in rooms if each)
            if single == _SINGLE and room > _SINGLE:
                messages = self._ordered(seq, subject)
                if messages is not None:
                    yield from self._rest(messages, seq, subject, until)
                    return
            found = self._stream.get_msgs(room, seq, subject, max_bytes=_BYTES)
            if not found:
                return
            single = single + 1 if len(found) == 1 else 0
            for msg in found:
                if until is not None and msg.seq > until:
                    return
                yield msg
                seq = msg.seq + 1

    def _ordered(self, seq: int, subject: str | None) -> OrderedMessages | None:
        """Return the messages from a sequence on, by a consumer, or ``None`` where there can be none."""
        if not self._may_consume:
            return None
        start: dict[str, Any] = {
            "deliver_policy": DeliverPolicy.BY_START_SEQUENCE,
            "opt_start_seq": seq,
        }
        if subject is not None:
            start["filter_subjects"] = [subject]
        try:
            return self._stream.ordered_consumer(**start).messages()
        except Error:
            # No permission, or too many consumers. What else is wrong is told of the next request.
            self._may_consume = False
            return None

    def _rest(
        self, messages: OrderedMessages, seq: int, subject: str | None, until: int | None
    ) -> Iterator[StoredMsg]:
        """Yield what an ordered consumer reads, to the end or to a sequence."""
        with messages:
            while True:
                try:
                    msg = messages.next(_SLICE_S)
                except TimeoutError:
                    # Perhaps the last ones were removed meanwhile.
                    if not self._stream.get_msgs(1, seq, subject):
                        return
                    continue
                about = msg.metadata
                if until is not None and about.stream_seq > until:
                    return
                seq = about.stream_seq + 1
                time = time_from_ns(about.timestamp_ns)
                yield StoredMsg(
                    about.stream, msg.subject, about.stream_seq, msg.data, msg.headers, time
                )
                if not about.num_pending:
                    return

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
