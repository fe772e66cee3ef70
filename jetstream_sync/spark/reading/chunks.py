"""Messages as they are read: by columns, undecoded, bounded in bytes."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Final

__all__ = ["Chunk", "Wanted"]

#: What a row takes in Arrow beside its texts and bytes: numbers, and where each text ends.
_FIXED: Final = 80
#: A header block is text, and each of its headers has some ends of texts, for which this stands.
_HEADERS: Final = 3


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which parts of a message are asked for; what is not is neither parsed nor kept."""

    subjects: bool
    data: bool
    headers: bool
    times: bool
    sizes: bool

    @classmethod
    def of(cls, columns: Collection[str]) -> Wanted:
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
    def _fixed(self) -> int:
        return _FIXED + len(self.stream)

    def __len__(self) -> int:
        return len(self.sequences)

    def part(self, start: int, end: int) -> Chunk:
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

    def bounded(self, limit: int) -> Iterator[Chunk]:
        """
        Yield the messages in chunks that take so many bytes in Arrow at most, or have one message.

        Args:
            limit: in bytes.

        """
        start = before = last = 0
        if self.total_bytes() > limit:
            for index, total in enumerate(accumulate(self._row_bytes())):
                if total - before > limit and index > start:
                    yield self.part(start, index)
                    start, before = index, last
                last = total
        if start < len(self):
            yield self.part(start, len(self))

    def total_bytes(self) -> int:
        """Return about how many bytes the messages take in Arrow; never less than it will be."""
        total = len(self) * self._fixed
        total += sum(map(len, self.subjects)) + sum(map(len, self.data))
        return total + _HEADERS * sum(map(len, self.headers))

    def _row_bytes(self) -> Iterator[int]:
        fixed = self._fixed
        columns = [
            [factor * len(each) for each in column]
            for column, factor in ((self.subjects, 1), (self.data, 1), (self.headers, _HEADERS))
            if column
        ]
        if not columns:
            return iter([fixed] * len(self))
        return (fixed + sum(sizes) for sizes in zip(*columns, strict=True))
