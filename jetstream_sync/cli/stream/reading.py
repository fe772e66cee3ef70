"""
Read the messages of a stream without changing it.

Messages are read with batched direct gets. A request returns only one message if the stream has no
``allow_direct`` or the server is older than 2.11; after some of these, an ordered consumer reads the
rest. It acknowledges nothing. It is used only on streams with limits retention: on a work queue it would
take the place of a worker, and on a stream with interest retention it would retain messages without
interest. On those streams, and if the server refuses the consumer, each message is one request.
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

_ALL_SUBJECTS: Final = ">"
#: Limits of one batch; it ends with the message that reaches one of them.
_BATCH_MESSAGES: Final = 500
_BATCH_BYTES: Final = 1_000_000
#: Number of requests with one message after which a consumer is created.
_MAX_SINGLE_GETS: Final = 20
#: Time without a message after which the reader checks whether it has reached the end.
_END_CHECK_INTERVAL_S: Final = 0.5


class Reader:
    """
    Read the messages of a stream, in batches if the server supports them.

    Args:
        stream: the stream to read.

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
        Iterate over the messages from a sequence to the end of the stream.

        Args:
            seq: the first sequence to read.
            subject: read only messages of this subject; ``None`` reads all.
            until: the last sequence to read; ``None`` reads to the end.
            most: expected number of messages, which limits the batch size but not the iteration.

        """
        seq = max(seq, 1)
        single = 0
        while until is None or seq <= until:
            limits = [_BATCH_MESSAGES, most, None if until is None else until - seq + 1]
            batch = min(each for each in limits if each)
            if single == _MAX_SINGLE_GETS and batch > _MAX_SINGLE_GETS:
                messages = self._ordered(seq, subject)
                if messages is not None:
                    yield from self._read_ordered(messages, seq, subject, until)
                    return
            found = self._stream.get_msgs(batch, seq, subject, max_bytes=_BATCH_BYTES)
            if not found:
                return
            single = single + 1 if len(found) == 1 else 0
            for msg in found:
                if until is not None and msg.seq > until:
                    return
                yield msg
                seq = msg.seq + 1

    def _ordered(self, seq: int, subject: str | None) -> OrderedMessages | None:
        """Return an ordered consumer from a sequence on, or ``None`` if it cannot be used."""
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
            # No permission, or too many consumers. The next direct get raises any other error.
            self._may_consume = False
            return None

    def _read_ordered(
        self, messages: OrderedMessages, seq: int, subject: str | None, until: int | None
    ) -> Iterator[StoredMsg]:
        """Yield the messages of an ordered consumer up to a sequence or the end of the stream."""
        with messages:
            while True:
                try:
                    msg = messages.next(_END_CHECK_INTERVAL_S)
                except TimeoutError:
                    # The remaining messages may have been deleted meanwhile.
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
        """Return the last messages in stream order, at most ``number``."""
        state = self._stream.cached_info.state
        if not state.messages:
            return []
        found: list[StoredMsg] = []
        end, width = state.last_seq, number
        # Deleted messages and other subjects leave gaps: go back in increasing steps.
        while len(found) < number and end >= state.first_seq:
            start = max(state.first_seq, end - width + 1)
            found = [*self.messages(start, subject, until=end), *found]
            end, width = start - 1, width * 2
        return found[-number:]

    def sequence_at(self, moment: datetime) -> int:
        """Return the sequence of the first message at or after a time, else the next sequence."""
        state = self._stream.cached_info.state
        # The first sequence of a stream that never had a message is 0.
        low, high = max(state.first_seq, 1), state.last_seq + 1
        while low < high:
            middle = (low + high) // 2
            try:
                msg = self._stream.get_msg(seq=middle, next_by_subject=_ALL_SUBJECTS)
            except MessageNotFoundError:
                high = middle
                continue
            if msg.time < moment:
                low = msg.seq + 1
            else:
                high = middle
        return low
