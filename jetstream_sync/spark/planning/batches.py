"""
Batch sizes and partitions: how many messages the next batch has, and how its range is split.

Where messages were deleted or filtered out, a difference of sequences does not count messages. There the
server is asked how many messages match from some sequences on, and an interpolation finds the end of the batch. A
contiguous stream that is read without filters needs no request.

A partition is a sequence range of one stream. Partitions are read in parallel, and a repeated read of one
returns the same rows. In a contiguous stream they have equal widths, else about equal message counts.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from math import ceil
from operator import itemgetter
from time import monotonic
from typing import Final

from ...net.clock import Deadline
from ..reading.ranges import SequenceRange
from ..streams import StreamView
from .offsets import StreamOffset

#: Asks the server, for some sequences in order, for the first matching message from each on, and the number of
#: matching messages; ``None`` and 0 if there is none.
CountProbes = Callable[[Sequence[int]], list[tuple[int | None, int]]]

#: Returns the sequences of the matching messages from a sequence on, of which there are about this many; ``None``: it
#: cannot.
ReadMatches = Callable[[int, int], list[int] | None]
#: Maximum number of matches whose sequences are read instead of being counted.
_FEW_MATCHES: Final = 1000

#: Seconds of work that the server is asked for at once: to count in a stream in memory, it walks through the stream.
_COUNTING_S: Final = 1.0
#: Maximum time of a search in seconds. After it, a batch is smaller, and partitions are cut at interpolated sequences.
_SEARCH_S: Final = 5.0

#: Where the end of a batch is searched for, as fractions of the part that is left.
_SECTIONS: Final = (0.25, 0.5, 0.75)


class MessageCounter:
    """
    Counts the messages of one stream that match the filters of a read, by sequence.

    Messages that arrive between two requests make a count too large, never too small. So limits hold.
    """

    def __init__(
        self,
        view: StreamView,
        filtered: bool,
        probes: CountProbes,
        read_matches: ReadMatches | None = None,
    ) -> None:
        #: Whether each sequence of the stream is a match.
        self.is_contiguous: bool = view.is_contiguous and not filtered
        self._view = view
        self._ask_server = probes
        #: The time that the server takes to count from one sequence on, in seconds, and from how many it may be asked
        #: next. Counts are cheap near the ends of a stream, so that number grows slowly.
        self.probe_s: float = _COUNTING_S
        self.at_once: int = 1
        self._read_matches = read_matches
        # The start and the number of a few matches, and their sequences once these were read.
        self._few: tuple[int, int] | None = None
        self._matches: list[int] = []

    def _probes(self, seqs: Sequence[int]) -> list[tuple[int | None, int]]:
        """Count from each of some sequences on, from as many at once as the server counts in a moment."""
        found: list[tuple[int | None, int]] = []
        while left := seqs[len(found) : len(found) + self.at_once]:
            begun = monotonic()
            found += self._ask_server(left)
            self.probe_s = max(monotonic() - begun, 1e-6) / len(left)
            self.at_once = max(1, min(2 * len(left), int(_COUNTING_S / self.probe_s)))
        return found

    def matching(self, start: int, end: int) -> int:
        """Return the number of matches from ``start`` up to, but not including, ``end``."""
        start, end = max(start, self._view.first_seq), min(end, self._view.end_seq)
        if start >= end:
            return 0
        if self.is_contiguous:
            return end - start
        # In this order: messages that arrive in between are part of the second count.
        (_, beyond), (_, every) = self._probes((end, start))
        if self._few is None and every <= _FEW_MATCHES:
            self._few = start, every
        return max(0, every - beyond)

    def counts(self, start: int, seqs: Sequence[int]) -> list[tuple[int, int]]:
        """Return for each sequence the number of matches before it, from ``start`` on, and the first match."""
        if (
            self._few is not None
            and self._read_matches is not None
            and (max(start, self._view.first_seq) >= self._few[0])
        ):
            self._matches = self._matches or self._read_matches(*self._few) or []
            self._read_matches = self._read_matches if self._matches else None
        if self._matches:
            return self._known_counts(start, seqs)
        # The first count comes last: messages that arrive in between make the others too large.
        *found, (_, every) = self._probes((*seqs, start))
        end = self._view.end_seq
        return [(max(0, every - left), end if first is None else first) for first, left in found]

    def _known_counts(self, start: int, seqs: Sequence[int]) -> list[tuple[int, int]]:
        matches = [*self._matches, self._view.end_seq]
        before = bisect_left(matches, start)
        places = [bisect_left(matches, seq, hi=len(matches) - 1) for seq in seqs]
        return [(max(0, place - before), matches[place]) for place in places]

    def find_end(self, start: int, end: int, rows: int) -> int:
        """Return the end of a range that begins at ``start`` and has a given number of matches."""
        if self.is_contiguous:
            return min(end, max(start, self._view.first_seq) + rows)
        # Invariant: a range up to `low` has at most `rows` matches, a range up to `high` has more.
        deadline = Deadline(_SEARCH_S)
        low, high = min(end, start + rows), end
        (count, _), (every, _) = self.counts(start, (low, high))
        if low == end or every <= rows:
            return end
        while high - low > 1 and count < rows and not (count and deadline.expired()):
            # Where the end is if the matches are spread evenly, and beside it.
            size, near = high - low, (rows + 0.5 - count) / (every - count)
            places = {
                low + int(size * part) for part in (*_SECTIONS, near, near * 0.97, near * 1.03)
            }
            seqs = sorted(seq for seq in places | {low + 1} if low < seq < high)
            for seq, (found, first) in zip(seqs, self.counts(start, seqs), strict=True):
                if found > rows:
                    if seq < high:
                        high, every = seq, found
                elif seq < high:
                    # Up to the next match there are as many.
                    low, count = min(max(seq, first), high - 1), found
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
        share = max(1, total // len(waiting))
        for key in waiting:
            given = min(share, available[key] - shares[key], total)
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
#: A partition may differ from its share by this fraction, which saves requests.
_TOLERANCE_DIVISOR: Final = 32
#: Maximum number of requests for each partition.
_PROBES_PER_PARTITION: Final = 4


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
    counter: MessageCounter, start: int, end: int, rows: int, partitions: int
) -> tuple[int, ...]:
    """Return the start sequence of every partition of a range after the first one."""
    if partitions <= 1:
        return ()
    ranks = [rows * number // partitions for number in range(1, partitions)]
    if counter.is_contiguous:
        first = end - rows
        return tuple(first + rank for rank in ranks)
    tolerance = rows // partitions // _TOLERANCE_DIVISOR
    # Sequences with the number of matches before each, both rising.
    known = [(start, 0), (end, rows)]
    budget, deadline = _PROBES_PER_PARTITION * partitions, Deadline(_SEARCH_S)
    while True:
        guesses = {rank: _interpolated(known, rank, tolerance) for rank in ranks}
        open_seqs = sorted({seq for seq in guesses.values() if seq is not None})
        left = int((deadline.left() or 0.0) / counter.probe_s)
        affordable = min(budget, left, counter.at_once)
        if not open_seqs or affordable < 1:
            break
        asked = open_seqs[:: ceil(len(open_seqs) / affordable)]
        budget -= len(asked)
        found = zip(asked, counter.counts(start, asked), strict=True)
        for seq, (count, first) in found:
            # All sequences up to the next match have the same number of matches before them.
            known += (seq, min(count, rows)), (min(max(seq, first), end), min(count, rows))
        # The last count is of an earlier time, and messages may have left the stream since then.
        known = [*_rising(point for point in known if point[0] < end), (end, rows)]
    cuts = {guess or _nearest(known, rank)[0] for rank, guess in guesses.items()}
    return tuple(sorted(cut for cut in cuts if start < cut < end))


def _interpolated(known: list[tuple[int, int]], rank: int, tolerance: int) -> int | None:
    """Return the likely sequence of a match by its rank; ``None``: a known sequence is near enough."""
    index = bisect_left(known, rank, key=itemgetter(1))
    (low, before), (high, after) = known[max(index - 1, 0)], known[index]
    if min(rank - before, after - rank) <= tolerance or high - low <= 1:
        return None
    seq = low + round((high - low) * (rank - before) / (after - before))
    return min(max(seq, low + 1), high - 1)


def _rising(points: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return points in order, without those that contradict earlier ones after a change of the stream."""
    kept: list[tuple[int, int]] = []
    for seq, count in sorted(set(points)):
        if not kept or (seq > kept[-1][0] and count >= kept[-1][1]):
            kept.append((seq, count))
    return kept


def _nearest(points: list[tuple[int, int]], rank: int) -> tuple[int, int]:
    """Return the point with the number of matches nearest to a rank; of several, the last one, a match."""
    return min(reversed(points), key=lambda point: abs(point[1] - rank))


def partition_ranges(position: StreamOffset, stream: str) -> list[SequenceRange]:
    """Return the ranges that the tasks of a batch read from a stream."""
    return [
        SequenceRange(
            stream,
            low,
            high,
            position.filters,
            position.created_ns,
            # After the first partition, what is missing may be missing from the middle of the rows.
            position.from_earliest and low == position.start_seq,
        )
        for low, high in position.partition_bounds()
    ]
