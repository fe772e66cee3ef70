"""
From the range of a batch to partitions: each is a range of sequences of one stream.

A partition is read alone, so many can be read at a time, and it says all by itself which
messages it has: reading it again gives the same rows. Where every sequence has its message
the ranges are equally wide; where messages were deleted or are left out, they have about equally many.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from ..reading.ranges import SequenceRange
from .admission import Counts
from .offsets import Position

__all__ = ["MAX_PARTITIONS", "cuts", "partition_counts", "ranges"]

#: More partitions than this are never planned for one batch of one stream.
MAX_PARTITIONS: Final = 64
#: A partition may be smaller than its share by one part in so many, which saves questions.
_SLACK: Final = 16


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


def cuts(counts: Counts, start: int, end: int, rows: int, partitions: int) -> tuple[int, ...]:
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
        cut = counts.reach(at, end, share, share // _SLACK)
        if not at < cut < end:
            break
        found.append(cut)
        rows -= counts.matching(at, cut)
        at = cut
    return tuple(found)


def ranges(position: Position, stream: str) -> list[SequenceRange]:
    """Return what the tasks of a batch read of a stream."""
    return [
        SequenceRange(stream, low, high, position.filters, position.created_ns)
        for low, high in position.pieces()
    ]
