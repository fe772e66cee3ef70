"""
Batch sizes and partitions: how many messages the next batch has, and how its range is split.

Where messages were deleted or filtered out, a difference of sequences does not count messages. There the
server is asked how many messages match from a sequence on, and a binary search finds the end of the batch. A
contiguous stream that is read without filters needs no request.

A partition is a sequence range of one stream. Partitions are read in parallel, and a repeated read of one
returns the same rows. In a contiguous stream they have equal widths, else about equal message counts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import ceil
from typing import Final

from ..reading.ranges import SequenceRange
from ..streams import StreamView
from .offsets import StreamOffset

#: Asks the server for the first matching message from a sequence on, and the number of matching messages.
#: ``None`` and 0 if there is none.
CountProbe = Callable[[int], tuple[int | None, int]]


class MessageCounter:
    """
    Counts the messages of one stream that match the filters of a read, by sequence.

    Messages that arrive between two requests make a count too large, never too small. So limits hold.
    """

    def __init__(self, view: StreamView, filtered: bool, probe: CountProbe) -> None:
        self._is_contiguous = view.is_contiguous and not filtered
        self._view = view
        self._probe = probe

    def first(self, start: int) -> int | None:
        """Return the sequence of the first match from ``start`` on, ``None`` if there is none yet."""
        if self._is_contiguous:
            first = max(start, self._view.first_seq)
            return first if first < self._view.end_seq else None
        first_match, _ = self._probe(start)
        if first_match is None or first_match >= self._view.end_seq:
            return None
        return first_match

    def matching(self, start: int, end: int) -> int:
        """Return the number of matches from ``start`` up to, but not including, ``end``."""
        start, end = max(start, self._view.first_seq), min(end, self._view.end_seq)
        if start >= end:
            return 0
        if self._is_contiguous:
            return end - start
        # In this order: messages that arrive in between are part of the second count.
        beyond = self._probe(end)[1]
        return max(0, self._probe(start)[1] - beyond)

    def find_end(self, start: int, end: int, rows: int, tolerance: int = 0) -> int:
        """Return the end of a range that begins at ``start`` and has a given number of matches."""
        if self._is_contiguous:
            return min(end, max(start, self._view.first_seq) + rows)
        # Invariant: a range up to `low` has at most `rows` matches, a range up to `high` has more.
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
    Divide the rows of a batch fairly among the streams that have messages.

    All streams get the same number. What one stream does not need goes to the others, so a small stream
    does not wait for a large one.
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
    """Limit the rows of a batch to a number of bytes, divided among the streams like rows."""
    sought = {key: ceil(count * sizes[key]) for key, count in shares.items()}
    if sum(sought.values()) <= most:
        return dict(shares)
    given = divide_rows(most, sought, first)
    reduced = {key: min(count, int(given[key] / sizes[key])) for key, count in shares.items()}
    waiting = sorted(key for key, count in shares.items() if count)
    turn = waiting[first % len(waiting)]
    reduced[turn] = max(1, reduced[turn])
    return reduced


#: Maximum number of partitions of one stream in one batch.
MAX_PARTITIONS: Final = 64
#: A partition may be smaller than its share by this fraction, which saves requests.
_TOLERANCE_DIVISOR: Final = 16


def partition_counts(
    rows: Mapping[str, int], max_rows: int, min_partitions: int | None
) -> dict[str, int]:
    """Return the number of partitions of each stream in a batch."""
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
    """Return the start sequence of every partition of a range after the first one."""
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
    """Return the ranges that the tasks of a batch read from a stream."""
    return [
        SequenceRange(stream, low, high, position.filters, position.created_ns)
        for low, high in position.partition_bounds()
    ]
