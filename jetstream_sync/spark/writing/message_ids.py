"""
Message ids that come out the same when the same rows are written again.

An id names the query or job, its batch, the partition and the row. The row is named by its content,
or by its position: after a shuffle a second attempt may see the rows of a partition in another order,
so a position is right only where a plan keeps the order. Equal rows of one partition are numbered: the
k-th of them has k in its id, whichever of them it is. The number of an attempt is never part of an id.
"""

from __future__ import annotations

from binascii import b2a_base64
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import blake2b
from typing import Final, Protocol

from .rows import EncodedRows

__all__ = ["ColumnIds", "ContentIds", "MessageIds", "PositionIds", "WriteTaskId", "row_digests"]

#: Bytes of the hashes of a row, and of the name of a query or job; both fill base64 without a rest.
_ROW_HASH: Final = 12
_ORIGIN_HASH: Final = 9
#: Subjects whose hashers are remembered.
_MAX_CACHED: Final = 4096


@dataclass(frozen=True, kw_only=True)
class WriteTaskId:
    """Where rows come from; the same for each attempt to write them."""

    name: str
    """The id of the query (that of its checkpoint), or of the job."""

    batch: int
    """The number of the micro-batch; 0 in a job."""

    partition: int
    """The number of the partition."""

    @property
    def token(self) -> str:
        """What stands for the name in a subject."""
        return blake2b(self.name.encode(), digest_size=_ORIGIN_HASH).hexdigest()

    def prefix(self) -> bytes:
        """Return what the ids of these rows start with, and no others; the server likes it short."""
        text = f"{self.batch} {self.partition} {self.name}"
        digest = blake2b(text.encode(), digest_size=_ORIGIN_HASH).digest()
        return b2a_base64(digest, newline=False)


class _SubjectHashers(dict[bytes, Callable[[], blake2b]]):
    """For each subject what makes a hasher that has taken the subject already."""

    def __missing__(self, subject: bytes) -> Callable[[], blake2b]:
        if len(self) >= _MAX_CACHED:
            self.clear()
        # The length keeps subject and payload apart.
        start = b"%d %b" % (len(subject), subject)
        made = self[subject] = blake2b(start, digest_size=_ROW_HASH).copy
        return made


_hashers = _SubjectHashers()


def row_digests(rows: EncodedRows) -> list[bytes]:
    """Return a hash for each row, of all that is stored of it."""
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
    """Gives each row its id; the rows come in their order, each once."""

    def of(self, rows: EncodedRows) -> list[bytes] | None:
        """Return an id for each row, empty for none; ``None``: no row has one."""
        ...


class ColumnIds:
    """The ids that the rows have in their own column, and no others."""

    def of(self, rows: EncodedRows) -> list[bytes] | None:
        """Return what the column has."""
        return rows.ids


class PositionIds:
    """
    Ids by the position of a row in its partition.

    Args:
        origin: where the rows come from.

    """

    def __init__(self, task_id: WriteTaskId) -> None:
        self._prefix = task_id.prefix()

    def of(self, rows: EncodedRows) -> list[bytes] | None:
        """Return an id for each row, its own where it has one."""
        prefix = self._prefix
        made = [b"%b%d" % (prefix, number) for number in rows.numbers]
        return made if rows.ids is None else _prefer_own(rows.ids, made)


class ContentIds:
    """
    Ids by the content of a row.

    It remembers a hash of each row, some 100 bytes for one.

    Args:
        origin: where the rows come from.

    """

    def __init__(self, task_id: WriteTaskId) -> None:
        self._prefix = task_id.prefix()
        self._seen: set[bytes] = set()
        # How many more of a content that came several times there were.
        self._constant_array: dict[bytes, int] = {}

    def of(self, rows: EncodedRows) -> list[bytes] | None:
        """Return an id for each row, its own where it has one."""
        if rows.ids is not None and all(rows.ids):
            return rows.ids
        prefix, seen = self._prefix, self._seen
        hashes = row_digests(rows)
        expected = len(seen) + len(hashes)
        if seen.isdisjoint(hashes):
            seen.update(hashes)
            if len(seen) == expected:
                made = [prefix + b2a_base64(each, newline=False) for each in hashes]
                return made if rows.ids is None else _prefer_own(rows.ids, made)
            # Some came several times just now: they are counted one by one.
            seen.difference_update(hashes)
        made = [self._counted(each) for each in hashes]
        return made if rows.ids is None else _prefer_own(rows.ids, made)

    def _counted(self, digest: bytes) -> bytes:
        made = self._prefix + b2a_base64(digest, newline=False)
        if digest not in self._seen:
            self._seen.add(digest)
            return made
        count = self._constant_array[digest] = self._constant_array.get(digest, 0) + 1
        return b"%b-%d" % (made, count)


def _prefer_own(own: list[bytes], made: list[bytes]) -> list[bytes]:
    return [mine or other for mine, other in zip(own, made, strict=True)]
