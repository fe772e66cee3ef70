"""Columns of bytes as Arrow stores them: in one buffer, with offsets."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate, pairwise
from typing import Any, overload


class BytesColumn(Sequence[bytes]):
    """A sequence of bytes objects, which are made when they are accessed."""

    __slots__ = ("data", "offsets")

    def __init__(self, offsets: Any, data: bytes) -> None:
        view = memoryview(offsets)
        #: 32-bit integers, one more than there are objects.
        self.offsets: memoryview[int] = view if view.format == "i" else view.cast("i")
        self.data: bytes = data

    @classmethod
    def of(cls, values: Iterable[bytes]) -> BytesColumn:
        """Return bytes objects as a column; raise `OverflowError` for more than 2 GiB."""
        values = list(values)
        return cls(array("i", accumulate(map(len, values), initial=0)), b"".join(values))

    @classmethod
    def of_texts(cls, texts: Sequence[str]) -> BytesColumn:
        """Return the UTF-8 of texts as a column; raise `UnicodeEncodeError` if one has surrogates."""
        joined = "".join(texts)
        if joined.isascii():
            return cls(array("i", accumulate(map(len, texts), initial=0)), joined.encode())
        return cls.of(map(str.encode, texts))

    @classmethod
    def of_width(cls, data: bytes, width: int) -> BytesColumn:
        """Return objects of one size as a column, given joined."""
        return cls(array("i", range(0, len(data) + 1, width)), data)

    @property
    def parts(self) -> tuple[Any, bytes]:
        """The offsets and the bytes, as the C extension takes them."""
        return self.offsets, self.data

    @property
    def total_bytes(self) -> int:
        """The size of all objects."""
        return self.offsets[-1] - self.offsets[0]

    def joined(self) -> bytes:
        """Return all objects as one; `data` may have more than these."""
        return self.data[self.offsets[0] : self.offsets[-1]]

    def sizes(self) -> list[int]:
        """Return the size of each object."""
        return [end - start for start, end in pairwise(self.offsets)]

    def select(self, indices: Iterable[int]) -> BytesColumn:
        """Return some of the objects."""
        return BytesColumn.of([self[index] for index in indices])

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __iter__(self) -> Iterator[bytes]:
        data = self.data
        return iter([data[start:end] for start, end in pairwise(self.offsets)])

    @overload
    def __getitem__(self, index: int) -> bytes: ...
    @overload
    def __getitem__(self, index: slice) -> BytesColumn: ...
    def __getitem__(self, index: int | slice) -> bytes | BytesColumn:
        if isinstance(index, slice):
            start, end, _ = index.indices(len(self))
            return BytesColumn(self.offsets[start : max(start, end) + 1], self.data)
        index = range(len(self))[index]
        return self.data[self.offsets[index] : self.offsets[index + 1]]


#: A column without objects, for a field that was not selected.
NO_BYTES = BytesColumn.of(())
