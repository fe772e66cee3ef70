"""Chunks of undecoded messages in columns, and the read tasks that produce them."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, fields
from itertools import accumulate
from typing import Any, Final

from ...api.enums import KeyValueOperation
from ...headers import parse_headers
from ...jetstream.buckets.entries import MAY_BE_MARKER, operation_of
from ..bytes_column import NO_BYTES, BytesColumn
from .ranges import SequenceRange

#: Bytes of a row in Arrow besides its strings and payload: numbers and string offsets.
_ROW_OVERHEAD_BYTES: Final = 80
#: Factor for the size of a header block in Arrow; it covers the string offsets of its headers.
_HEADER_FACTOR: Final = 3


@dataclass(frozen=True, slots=True)
class FieldSelection:
    """The message fields to read; other fields are neither parsed nor kept."""

    subjects: bool
    data: bool
    headers: bool
    times: bool
    sizes: bool

    @property
    def keeps_headers(self) -> bool:
        """Whether to keep header blocks: they also tell whether a message without a payload is a marker."""
        return self.headers or self.data

    @classmethod
    def of(cls, columns: Collection[str]) -> FieldSelection:
        """Return the fields that columns need, by their names in `schema`."""
        return cls(
            subjects="subject" in columns,
            data="data" in columns,
            headers="headers" in columns or "msg_id" in columns,
            times="timestamp" in columns or "time_ns" in columns,
            sizes="size" in columns,
        )


@dataclass(frozen=True, kw_only=True)
class Chunk:
    """
    Messages as columns of equal length, in sequence order.

    The column of a field that was not selected is empty. `headers` may be empty if no message has headers.
    """

    stream: str
    """The stream that contains the messages."""

    sequences: Sequence[int]
    """The sequences of the messages."""

    subjects: BytesColumn = NO_BYTES
    """The subjects."""

    data: BytesColumn = NO_BYTES
    """The payloads."""

    headers: BytesColumn = NO_BYTES
    """The header blocks as published, without the headers added by the server; ``b""``: none."""

    times_ns: Sequence[int] = ()
    """When the stream stored each message, in nanoseconds since 1970."""

    sizes: Sequence[int] = ()
    """The payload sizes, in bytes."""

    @property
    def _row_overhead(self) -> int:
        return _ROW_OVERHEAD_BYTES + len(self.stream)

    def __len__(self) -> int:
        return len(self.sequences)

    def slice(self, start: int, end: int) -> Chunk:
        """Return the messages from one index up to, but not including, another."""
        if start == 0 and end >= len(self):
            return self
        return self._changed(lambda column: column[start:end])

    def markers(self) -> list[bool] | None:
        """Return for each message whether it only marks that a key was deleted; ``None``: none does."""
        if not self.data or not MAY_BE_MARKER(self.headers.data):
            return None
        return [
            MAY_BE_MARKER(block) is not None
            and operation_of(parse_headers(block), data) is not KeyValueOperation.PUT
            for block, data in zip(self.headers, self.data, strict=True)
        ]

    def select(self, indices: Sequence[int]) -> Chunk:
        """Return some of the messages, by their indices."""
        if len(indices) == len(self):
            return self

        def some(column: Any) -> Any:
            if isinstance(column, BytesColumn):
                return column.select(indices)
            return [column[i] for i in indices]

        return self._changed(lambda column: some(column) if column else column)

    def _changed(self, change: Callable[[Any], Any]) -> Chunk:
        """Return the messages with each column changed."""
        columns = {field.name: change(getattr(self, field.name)) for field in fields(self)[1:]}
        return Chunk(stream=self.stream, **columns)

    def split_by_size(self, limit: int) -> Iterator[Chunk]:
        """Yield chunks that fit into a size limit, or contain a single message."""
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
        """Return an upper estimate of the size of the messages in Arrow, in bytes."""
        strings = self.subjects.total_bytes + self.data.total_bytes
        return len(self) * self._row_overhead + strings + _HEADER_FACTOR * self.headers.total_bytes

    def _row_bytes(self) -> Iterator[int]:
        fixed = self._row_overhead
        columns = [
            [factor * size for size in column.sizes()]
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


_WILDCARDS: Final = {"*": rb"[^.]+", ">": rb".+"}


def subject_matcher(filters: tuple[str, ...]) -> Any:
    """Return a function that matches a subject, as bytes, against any of several patterns."""
    patterns = []
    for pattern in filters:
        parts = [_WILDCARDS.get(part) or re.escape(part.encode()) for part in pattern.split(".")]
        patterns.append(rb"\.".join(parts))
    return re.compile(b"|".join(patterns), re.DOTALL).fullmatch


#: Maximum number of messages per request; the memory overhead of small messages is large.
MAX_REQUEST_ROWS: Final = 16_384
#: Fraction of a batch that the expected messages fill; a batch that gets too large is split.
_TARGET_FILL: Final = 0.9
#: First request size if filters exclude an unknown number of messages.
_INITIAL_ROWS: Final = 1024


@dataclass(frozen=True, slots=True)
class ReadResponse:
    """The result of one request."""

    chunk: Chunk
    """The messages, all within the range."""

    next_seq: int
    """The sequence of the next request; at or above the end of the range if it is complete."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadTask:
    """A range, and the parameters of the read."""

    range: SequenceRange
    fields: FieldSelection
    batch_bytes: int
    """Approximate size of a response in Arrow, in bytes."""
    message_bytes: float
    """Average message size of the stream, in bytes."""
    silence_timeout: float
    """Maximum time without any reply to a request, in seconds."""
    validate_batch: Callable[[int, int, Sequence[int]], None]
    """Called for each response before the next request, with its start, its end and the sequences of its
    messages. It raises an error if the response cannot be right."""
    server: str = ""
    """The version of the connected server; empty: unknown."""

    def chunk(
        self,
        sequences: Sequence[int],
        subjects: BytesColumn,
        headers: BytesColumn,
        data: BytesColumn,
        times_ns: Sequence[int],
        *,
        sizes: Sequence[int] | None = None,
        matches: Callable[[bytes], Any] | None = None,
    ) -> Chunk:
        """
        Return the selected fields of the messages that are in the range.

        Without ``sizes``, the sizes of ``data`` are used. ``matches`` returns whether a message with a subject is kept.
        """
        fields = self.fields
        if sizes is None:
            sizes = data.sizes() if fields.sizes else ()
        chunk = Chunk(
            stream=self.range.stream,
            sequences=sequences,
            subjects=subjects if fields.subjects else NO_BYTES,
            data=data if fields.data else NO_BYTES,
            headers=headers if fields.keeps_headers and headers.total_bytes else NO_BYTES,
            times_ns=times_ns if fields.times else (),
            sizes=sizes if fields.sizes else (),
        )
        chunk = chunk.slice(0, bisect_left(sequences, self.range.end_seq))
        if matches is None:
            return chunk
        return chunk.select([i for i, item in enumerate(subjects[: len(chunk)]) if matches(item)])


class BatchSizer:
    """
    Chooses request sizes that fit into a batch and match what the range is expected to contain.

    One thread uses it.
    """

    def __init__(self, task: ReadTask, start_seq: int, *, filtered: bool) -> None:
        self._task = task
        self._start_seq = start_seq
        self._row_bytes = max(1.0, task.message_bytes)
        self._rows = 0
        self._filtered = filtered

    def add_rows(self, rows: int) -> None:
        """Add the number of received messages."""
        self._rows += rows

    def learn_size(self, chunk: Chunk) -> None:
        """Update the estimated message size."""
        if len(chunk):
            # A few messages are a weak estimate for the rest.
            weight = min(1.0, len(chunk) / 100)
            self._row_bytes += weight * (chunk.total_bytes() / len(chunk) - self._row_bytes)

    def rows(self, next_seq: int) -> int:
        """Return how many messages to request from a sequence on; at least one."""
        fitting = int(self._task.batch_bytes * _TARGET_FILL / self._row_bytes)
        return max(1, min(fitting, MAX_REQUEST_ROWS, self._expected(next_seq)))

    def _expected(self, next_seq: int) -> int:
        """Return an estimate of the messages in the rest of the range, rather too high than too low."""
        left = self._task.range.end_seq - next_seq
        if not self._filtered:
            return left
        if next_seq == self._start_seq:
            return min(left, _INITIAL_ROWS)
        density = self._rows / (next_seq - self._start_seq)
        return min(left, int(left * density * 1.1) + 16)
