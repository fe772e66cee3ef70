"""
Message ids that are the same when the same rows are written again.

An id consists of the query or job, the batch, the partition and the content of the row. After a shuffle a repeated
attempt may see the rows of a partition in another order. Equal rows of a partition are counted: the id of the k-th
one contains k. The attempt number is never part of an id.

If a checkpoint is restored, a batch may have other rows than the first time. Then the stream ignores a row only if it
has stored an equal one of the batch, which the query does not write again under another id: so no row is missing.
"""

from __future__ import annotations

from binascii import b2a_base64
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from hashlib import blake2b
from itertools import repeat
from typing import Final

from ...speedups import add_digests, row_digests
from ..bytes_column import BytesColumn
from .rows import EncodedRows

#: Hash sizes in bytes, of a row and of a write task; as multiples of 3 they need no base64 padding.
_ROW_HASH: Final = 12
_ORIGIN_HASH: Final = 9
#: The size of the bytes of an id by content, which base64 encodes as 4 characters for each 3 of them.
_CONTENT_SIZE: Final = _ORIGIN_HASH + _ROW_HASH
#: Maximum number of cached subject hashers.
_MAX_CACHED: Final = 4096


@dataclass(frozen=True, kw_only=True)
class WriteTaskId:
    """The source of rows, which is the same for each attempt to write them."""

    name: str
    """The id of the query, from its checkpoint, or the id of the job."""

    batch: int
    """The number of the micro-batch; 0 for a job."""

    partition: int
    """The partition number."""

    has_ends: bool = False
    """Whether the driver records the end of each micro-batch; see `CheckpointStore`."""

    @property
    def token(self) -> str:
        """The hash of the name, for use in a subject."""
        return blake2b(self.name.encode(), digest_size=_ORIGIN_HASH).hexdigest()

    def prefix(self) -> bytes:
        """Return the unique prefix of the ids of these rows; short, to save memory on the server."""
        return b2a_base64(self.digest(), newline=False)

    def digest(self) -> bytes:
        """Return the bytes that `prefix()` encodes."""
        text = f"{self.batch} {self.partition} {self.name}"
        return blake2b(text.encode(), digest_size=_ORIGIN_HASH).digest()


@lru_cache(_MAX_CACHED)
def _subject_hasher(subject: bytes) -> Callable[[], blake2b]:
    """Return what makes a hasher that has already consumed a subject."""
    # The length separates the subject from the payload.
    return blake2b(b"%d %b" % (len(subject), subject), digest_size=_ROW_HASH).copy


def content_digests(prefix: bytes, rows: EncodedRows) -> bytes:
    """Return the prefix and a hash of each row, over everything that is stored of it."""
    columns = (rows.subjects.parts, rows.header_lines.parts, rows.data.parts)
    made = None if row_digests is None else row_digests(prefix, *columns)
    if made is not None:
        return made
    parts: list[bytes] = []
    header_lines = rows.header_lines or repeat(b"")
    for subject, lines, data in zip(rows.subjects, header_lines, rows.data, strict=False):
        hasher = _subject_hasher(subject)()
        if lines:
            hasher.update(b"\r\n%d\r\n%b" % (len(lines), lines))
        hasher.update(data)
        parts += prefix, hasher.digest()
    return b"".join(parts)


class _SeenContents:
    """
    The hashes of the rows so far.

    With the C extension they take up to 32 bytes each, in a table that is at most three quarters full.
    """

    def __init__(self) -> None:
        self._table = bytearray(_ROW_HASH * 1024)
        self._count = 0
        self._hashes: set[bytes] = set()

    def add(self, contents: bytes) -> bytes:
        """Add the hashes of rows, and return a byte for each: 1 if it was there."""
        if add_digests is None:
            return bytes(map(self._add, range(0, len(contents), _CONTENT_SIZE), repeat(contents)))
        self._count += len(contents) // _CONTENT_SIZE
        while self._count * _ROW_HASH * 4 > len(self._table) * 3:
            smaller, self._table = self._table, bytearray(2 * len(self._table))
            add_digests(self._table, smaller, _ROW_HASH)
        return add_digests(self._table, contents, _CONTENT_SIZE)

    def _add(self, start: int, contents: bytes) -> bool:
        digest = contents[start + _ORIGIN_HASH : start + _CONTENT_SIZE]
        if digest in self._hashes:
            return True
        self._hashes.add(digest)
        return False


class ContentIds:
    """Ids by the content of a row; it stores a hash for each row."""

    def __init__(self, task_id: WriteTaskId) -> None:
        self._task_digest = task_id.digest()
        self._seen = _SeenContents()
        # How often a repeated content was seen after the first time.
        self._repeat_counts: dict[bytes, int] = {}

    def of(self, rows: EncodedRows) -> BytesColumn:
        """Return an id for each row; an id of the column takes precedence."""
        if rows.all_have_ids:
            return rows.ids
        contents = content_digests(self._task_digest, rows)
        repeated = self._seen.add(contents)
        ids = BytesColumn.of_width(b2a_base64(contents, newline=False), _CONTENT_SIZE // 3 * 4)
        if 1 in repeated:
            ids = BytesColumn.of(map(self._numbered, ids, repeated))
        if not rows.ids:
            return ids
        return BytesColumn.of(own or made for own, made in zip(rows.ids, ids, strict=True))

    def _numbered(self, made: bytes, is_repeated: int) -> bytes:
        if not is_repeated:
            return made
        count = self._repeat_counts[made] = self._repeat_counts.get(made, 0) + 1
        return b"%b-%d" % (made, count)


#: Returns the message ids of rows, which are passed in order and once.
MessageIds = Callable[[EncodedRows], BytesColumn]
