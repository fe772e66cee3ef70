"""
Messages as they are read: by columns, undecoded, bounded in bytes.

What the two ways to read a range have in common: what they are told, and what they return.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Final

from .ranges import SequenceRange

__all__ = ["MAX_REQUEST_ROWS", "BatchSizer", "Chunk", "FieldSelection", "ReadResponse", "ReadTask"]

#: What a row takes in Arrow beside its texts and bytes: numbers, and where each text ends.
_ROW_OVERHEAD_BYTES: Final = 80
#: A header block is text, and each of its headers has some ends of texts, for which this stands.
_HEADER_FACTOR: Final = 3


@dataclass(frozen=True, slots=True)
class FieldSelection:
    """Which parts of a message are asked for; what is not is neither parsed nor kept."""

    subjects: bool
    data: bool
    headers: bool
    times: bool
    sizes: bool

    @classmethod
    def of(cls, columns: Collection[str]) -> FieldSelection:
        """Return what columns need, by their names in `schema`."""
        return cls(
            subjects="subject" in columns,
            data="data" in columns,
            headers="headers" in columns or "msg_id" in columns,
            times="timestamp" in columns or "time_ns" in columns,
            sizes="size" in columns,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """
    Messages that came together: lists of one length, in the order of their sequences.

    A list of what was not asked for is empty, and `headers` may be when no message has any.
    """

    stream: str
    """The stream that they are of."""

    sequences: Sequence[int]
    """Their sequences."""

    subjects: Sequence[bytes] = ()
    """Their subjects."""

    data: Sequence[bytes] = ()
    """Their payloads."""

    headers: Sequence[bytes] = ()
    """Their own header blocks, without what the server added; ``b""``: none."""

    times_ns: Sequence[int] = ()
    """When the stream stored them, in nanoseconds since 1970."""

    sizes: Sequence[int] = ()
    """How large their payloads are, in bytes."""

    @property
    def _row_overhead(self) -> int:
        return _ROW_OVERHEAD_BYTES + len(self.stream)

    def __len__(self) -> int:
        return len(self.sequences)

    def slice(self, start: int, end: int) -> Chunk:
        """Return the messages from one index up to another."""
        if start == 0 and end >= len(self):
            return self
        return Chunk(
            stream=self.stream,
            sequences=self.sequences[start:end],
            subjects=self.subjects[start:end],
            data=self.data[start:end],
            headers=self.headers[start:end],
            times_ns=self.times_ns[start:end],
            sizes=self.sizes[start:end],
        )

    def split_by_size(self, limit: int) -> Iterator[Chunk]:
        """
        Yield the messages in chunks that take so many bytes in Arrow at most, or have one message.

        Args:
            limit: in bytes.

        """
        start = before = last = 0
        if self.total_bytes() > limit:
            for index, total in enumerate(accumulate(self._row_bytes())):
                if total - before > limit and index > start:
                    yield self.slice(start, index)
                    start, before = index, last
                last = total
        if start < len(self):
            yield self.slice(start, len(self))

    def total_bytes(self) -> int:
        """Return about how many bytes the messages take in Arrow; never less than it will be."""
        total = len(self) * self._row_overhead
        total += sum(map(len, self.subjects)) + sum(map(len, self.data))
        return total + _HEADER_FACTOR * sum(map(len, self.headers))

    def _row_bytes(self) -> Iterator[int]:
        fixed = self._row_overhead
        columns = [
            [factor * len(each) for each in column]
            for column, factor in (
                (self.subjects, 1),
                (self.data, 1),
                (self.headers, _HEADER_FACTOR),
            )
            if column
        ]
        if not columns:
            return iter([fixed] * len(self))
        return (fixed + sum(sizes) for sizes in zip(*columns, strict=True))


#: Messages of one request at most, so that small ones do not take many times their size in memory.
MAX_REQUEST_ROWS: Final = 16_384
#: How much of a batch the expected messages are to fill: one that got too large is cut.
_TARGET_FILL: Final = 0.9
#: How many messages are asked for at first where filters leave an unknown number out.
_INITIAL_ROWS: Final = 1024


@dataclass(frozen=True, slots=True)
class ReadResponse:
    """What one request brought."""

    chunk: Chunk
    """The messages, all of them within the range."""

    next_seq: int
    """From where on to ask next; the end of the range, or above it, when the range is through."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadTask:
    """A range and how to read it."""

    range: SequenceRange
    fields: FieldSelection
    batch_bytes: int
    """How large an answer should be, about, in Arrow."""
    message_bytes: float
    """How large a message is, by what is known of the stream."""
    silence_timeout: float
    """Seconds of silence after which a request is given up."""
    validate_batch: Callable[[int, int, Sequence[int]], None]
    """Is told of each answer, before anything else is asked for: from where on and up to where it
    tells, and the sequences of its messages. It raises where that can not be right."""


class BatchSizer:
    """
    How many messages to ask for: as fit into the batch, and as the range is likely to have.

    Args:
        job: what to read.
        start_seq: from where on.
        filtered: whether the server leaves messages out.

    One thread uses it.
    """

    def __init__(self, task: ReadTask, start_seq: int, *, filtered: bool) -> None:
        self._task = task
        self._start_seq = start_seq
        self._row_bytes = max(1.0, task.message_bytes)
        self._rows = 0
        self._filtered = filtered

    def add_rows(self, rows: int) -> None:
        """Note how many messages came."""
        self._rows += rows

    def learn_size(self, chunk: Chunk) -> None:
        """Learn how large messages are."""
        if len(chunk):
            # A few messages say little about the rest.
            weight = min(1.0, len(chunk) / 100)
            self._row_bytes += weight * (chunk.total_bytes() / len(chunk) - self._row_bytes)

    def rows(self, next_seq: int) -> int:
        """Return how many messages to ask for from a sequence on; at least one."""
        fitting = int(self._task.batch_bytes * _TARGET_FILL / self._row_bytes)
        return max(1, min(fitting, MAX_REQUEST_ROWS, self._expected(next_seq)))

    def _expected(self, next_seq: int) -> int:
        """Guess how many messages the rest of the range has, rather too many than too few."""
        left = self._task.range.end_seq - next_seq
        if not self._filtered:
            return left
        if next_seq == self._start_seq:
            return min(left, _INITIAL_ROWS)
        density = self._rows / (next_seq - self._start_seq)
        return min(left, int(left * density * 1.1) + 16)
