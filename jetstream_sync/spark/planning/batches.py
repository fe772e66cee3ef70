"""
How much of what is there goes into the next batch.

Sequences are no counts where messages were deleted or filters leave most of them out. There the server is
asked how many messages match from a sequence on, and the end of the batch is searched for. A
stream without holes that is read whole needs no question.

From the range of a batch to partitions: each is a range of sequences of one stream.

A partition is read alone, so many can be read at a time, and it says all by itself which
messages it has: reading it again gives the same rows. Where every sequence has its message
the ranges are equally wide; where messages were deleted or are left out, they have about equally many.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import ceil
from typing import Final

from ..reading.ranges import SequenceRange
from ..streams import StreamView
from .offsets import StreamOffset

__all__ = [
    "MAX_PARTITIONS",
    "CountProbe",
    "MessageCounter",
    "divide_rows",
    "limit_to_bytes",
    "partition_counts",
    "partition_cuts",
    "partition_ranges",
]

#: Asks the server: from this sequence on, which is the first message that matches, and how many match?
#: ``None`` and 0 when none does.
CountProbe = Callable[[int], tuple[int | None, int]]


class MessageCounter:
    """
    The messages of one stream that match a read's filters, by sequence.

    What arrives while the server is asked makes a range look larger than it is, never smaller, so
    a limit holds all the same.

    Args:
        view: the stream.
        filtered: whether filters leave messages out.
        probe: see `CountProbe`; a question takes about 0.1 ms.

    """

    def __init__(self, view: StreamView, filtered: bool, probe: CountProbe) -> None:
        self._is_contiguous = view.is_contiguous and not filtered
        self._view = view
        self._probe = probe

    def first(self, start: int) -> int | None:
        """Return the sequence of the first match from ``start`` on; ``None``: there is none yet."""
        if self._is_contiguous:
            first = max(start, self._view.first_seq)
            return first if first < self._view.end_seq else None
        first_match, _ = self._probe(start)
        if first_match is None or first_match >= self._view.end_seq:
            return None
        return first_match

    def matching(self, start: int, end: int) -> int:
        """Return how many messages match from ``start`` up to ``end``, which is not counted."""
        start, end = max(start, self._view.first_seq), min(end, self._view.end_seq)
        if start >= end:
            return 0
        if self._is_contiguous:
            return end - start
        # In this order: what arrives in between is counted in the second answer.
        beyond = self._probe(end)[1]
        return max(0, self._probe(start)[1] - beyond)

    def find_end(self, start: int, end: int, rows: int, tolerance: int = 0) -> int:
        """
        Return the end of a range that begins at ``start`` and has so many matches.

        Args:
            start: its first sequence.
            end: where it ends at the latest.
            rows: how many matches it has at most.
            tolerance: so many fewer are fine, which saves questions.

        """
        if self._is_contiguous:
            return min(end, max(start, self._view.first_seq) + rows)
        # `low` is an end with few enough rows, `high` one with too many.
        low, high = min(end, start + rows), end
        count = self.matching(start, low)
        if low == end or self.matching(start, end) <= rows:
            return end
        while high - low > 1 and count < rows - tolerance:
            middle = (low + high) // 2
            found = self.matching(start, middle)
            if found <= rows:
                low, count = middle, found
            else:
                high = middle
        return low


def divide_rows(total: int, available: Mapping[str, int], first: int = 0) -> dict[str, int]:
    """
    Divide the rows of a batch among the streams that have some.

    Everybody gets the same; what one does not need goes to the others. So a small stream does
    not wait for a large one.

    Args:
        total: how many rows there are to give.
        available: how many each stream has.
        first: who gets the first one of rows that can not be divided; it goes round with every call.

    """
    shares = dict.fromkeys(available, 0)
    waiting = sorted(key for key, count in available.items() if count > 0)
    if waiting:
        turn = first % len(waiting)
        waiting = waiting[turn:] + waiting[:turn]
    while total > 0 and waiting:
        each = max(1, total // len(waiting))
        for key in waiting:
            given = min(each, available[key] - shares[key], total)
            shares[key] += given
            total -= given
        waiting = [key for key in waiting if shares[key] < available[key]]
    return shares


def limit_to_bytes(
    shares: Mapping[str, int], sizes: Mapping[str, float], most: int, first: int = 0
) -> dict[str, int]:
    """
    Reduce the rows of a batch to so many bytes, which the streams share as they share rows.

    Args:
        shares: how many rows of each stream are wanted.
        sizes: how many bytes one takes there, on average.
        most: how many bytes there may be.
        first: whose turn it is: that stream has one row at least, however large it is.

    """
    sought = {key: ceil(count * sizes[key]) for key, count in shares.items()}
    if sum(sought.values()) <= most:
        return dict(shares)
    given = divide_rows(most, sought, first)
    reduced = {key: min(count, int(given[key] / sizes[key])) for key, count in shares.items()}
    waiting = sorted(key for key, count in shares.items() if count)
    turn = waiting[first % len(waiting)]
    reduced[turn] = max(1, reduced[turn])
    return reduced


#: More partitions than this are never planned for one batch of one stream.
MAX_PARTITIONS: Final = 64
#: A partition may be smaller than its share by one part in so many, which saves questions.
_TOLERANCE_DIVISOR: Final = 16


def partition_counts(
    rows: Mapping[str, int], max_rows: int, min_partitions: int | None
) -> dict[str, int]:
    """
    Return how many partitions each stream's part of a batch gets.

    Args:
        rows: how many messages there are to read of each stream.
        max_rows: how many a partition has at most, as long as there are not more than
            `MAX_PARTITIONS` of them.
        min_partitions: how many there are at least in all, if there are as many messages; ``None``:
            no more than needed.

    """
    total = sum(rows.values())
    counts: dict[str, int] = {}
    for key, count in rows.items():
        wanted = -(-count // max_rows)
        if min_partitions is not None and total:
            wanted = max(wanted, -(-min_partitions * count // total))
        most = max(MAX_PARTITIONS, min_partitions or 0)
        counts[key] = max(1, min(wanted, most, count)) if count else 0
    return counts


def partition_cuts(
    counts: MessageCounter, start: int, end: int, rows: int, partitions: int
) -> tuple[int, ...]:
    """
    Return where the second and each further partition of a range begins.

    Args:
        counts: the messages of the stream.
        start: the first sequence of the range.
        end: the one after its last.
        rows: how many messages match in it.
        partitions: how many partitions are wanted; there may be fewer in the end.

    """
    found: list[int] = []
    at = start
    for left in range(partitions, 1, -1):
        share = -(-rows // left)
        cut = counts.find_end(at, end, share, share // _TOLERANCE_DIVISOR)
        if not at < cut < end:
            break
        found.append(cut)
        rows -= counts.matching(at, cut)
        at = cut
    return tuple(found)


def partition_ranges(position: StreamOffset, stream: str) -> list[SequenceRange]:
    """Return what the tasks of a batch read of a stream."""
    return [
        SequenceRange(stream, low, high, position.filters, position.created_ns)
        for low, high in position.partition_bounds()
    ]
