"""
Message ids that are the same when the same rows are written again.

An id consists of the query or job, the batch, the partition and the row. The row is identified by its content
or by its position. After a shuffle a repeated attempt may see the rows of a partition in another order, so
positions need a plan with a stable order. Equal rows of a partition are counted: the id of the k-th one
contains k. The attempt number is never part of an id.
"""

from __future__ import annotations

from binascii import b2a_base64
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import blake2b
from struct import iter_unpack
from typing import Final, Protocol

from .rows import EncodedRows

#: Hash sizes in bytes, of a row and of a write task; as multiples of 3 they need no base64 padding.
_ROW_HASH: Final = 12
_ORIGIN_HASH: Final = 9
#: An id by content, for `struct`: base64 has 4 characters for 3 bytes.
_ID_FORMAT: Final = f"{(_ORIGIN_HASH + _ROW_HASH) // 3 * 4}s"
#: Maximum number of cached subject hashers.
_MAX_CACHED: Final = 4096


@dataclass(frozen=True, kw_only=True)
class WriteTaskId:
    """The source of rows, which is the same for each attempt to write them."""

    name: str
    """The id of the query (that of its checkpoint), or of the job."""

    batch: int
    """The number of the micro-batch; 0 for a job."""

    partition: int
    """The partition number."""

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


class _SubjectHashers(dict[bytes, Callable[[], blake2b]]):
    """Caches for each subject a hasher that has already consumed the subject."""

    def __missing__(self, subject: bytes) -> Callable[[], blake2b]:
        if len(self) >= _MAX_CACHED:
            self.clear()
        # The length separates the subject from the payload.
        start = b"%d %b" % (len(subject), subject)
        made = self[subject] = blake2b(start, digest_size=_ROW_HASH).copy
        return made


_hashers = _SubjectHashers()


def row_digests(rows: EncodedRows) -> list[bytes]:
    """Return a hash of each row, over everything that is stored of it."""
    hashers = _hashers
    result: list[bytes] = []
    append = result.append
    if rows.header_lines is None:
        for subject, data in zip(rows.subjects, rows.data, strict=True):
            hasher = hashers[subject]()
            hasher.update(data)
            append(hasher.digest())
        return result
    for subject, extra, data in zip(rows.subjects, rows.header_lines, rows.data, strict=True):
        hasher = hashers[subject]()
        if extra:
            hasher.update(b"\r\n%d\r\n%b" % (len(extra), extra))
        hasher.update(data)
        append(hasher.digest())
    return result


class MessageIds(Protocol):
    """Assigns message ids to rows, which are passed in order and once."""

    def of(self, rows: EncodedRows) -> list[bytes] | None:
        """Return an id for each row, empty for none; ``None`` if no row has one."""
        ...


class ColumnIds:
    """Ids from the column ``msg_id`` only."""

    def of(self, rows: EncodedRows) -> list[bytes] | None:
        """Return the ids of the column."""
        return rows.ids


class PositionIds:
    """Ids by the position of a row in its partition."""

    def __init__(self, task_id: WriteTaskId) -> None:
        self._prefix = task_id.prefix()

    def of(self, rows: EncodedRows) -> list[bytes] | None:
        """Return an id for each row; an id of the column takes precedence."""
        prefix = self._prefix
        made = [b"%b%d" % (prefix, number) for number in rows.numbers]
        return made if rows.ids is None else _prefer_own(rows.ids, made)


class ContentIds:
    """
    Ids by the content of a row.

    It stores a hash for each row, which takes about 100 bytes.
    """

    def __init__(self, task_id: WriteTaskId) -> None:
        self._prefix = task_id.prefix()
        self._task_digest = task_id.digest()
        self._seen: set[bytes] = set()
        # How often a repeated content was seen after the first time.
        self._repeat_counts: dict[bytes, int] = {}

    def of(self, rows: EncodedRows) -> list[bytes] | None:
        """Return an id for each row; an id of the column takes precedence."""
        if rows.ids is not None and all(rows.ids):
            return rows.ids
        seen = self._seen
        hashes = row_digests(rows)
        expected = len(seen) + len(hashes)
        if seen.isdisjoint(hashes):
            seen.update(hashes)
            if len(seen) == expected:
                made = self._encode(hashes)
                return made if rows.ids is None else _prefer_own(rows.ids, made)
            # These rows contain repetitions, so count them one by one.
            seen.difference_update(hashes)
        made = [self._counted(each) for each in hashes]
        return made if rows.ids is None else _prefer_own(rows.ids, made)

    def _encode(self, hashes: list[bytes]) -> list[bytes]:
        """Return the ids of different rows, all encoded at once."""
        task = self._task_digest
        text = b2a_base64(task + task.join(hashes), newline=False)
        return [made for (made,) in iter_unpack(_ID_FORMAT, text)]

    def _counted(self, digest: bytes) -> bytes:
        made = self._prefix + b2a_base64(digest, newline=False)
        if digest not in self._seen:
            self._seen.add(digest)
            return made
        count = self._repeat_counts[digest] = self._repeat_counts.get(digest, 0) + 1
        return b"%b-%d" % (made, count)


def _prefer_own(own: list[bytes], made: list[bytes]) -> list[bytes]:
    return [mine or other for mine, other in zip(own, made, strict=True)]
