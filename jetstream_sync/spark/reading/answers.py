"""What the two ways to read a range have in common: what they are told, and what they return."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from .chunks import Chunk, Wanted
from .ranges import SequenceRange

__all__ = ["MAX_ROWS", "Answer", "Job", "Pace"]

#: Messages of one request at most, so that small ones do not take many times their size in memory.
MAX_ROWS: Final = 16_384
#: How much of a batch the expected messages are to fill: one that got too large is cut.
_FILLED: Final = 0.9
#: How many messages are asked for at first where filters leave an unknown number out.
_FIRST_ROWS: Final = 1024


@dataclass(frozen=True, slots=True)
class Answer:
    """What one request brought."""

    chunk: Chunk
    """The messages, all of them within the range."""

    next_seq: int
    """From where on to ask next; the end of the range, or above it, when the range is through."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A range and how to read it."""

    range: SequenceRange
    wanted: Wanted
    batch_bytes: int
    """How large an answer should be, about, in Arrow."""
    message_bytes: float
    """How large a message is, by what is known of the stream."""
    patience: float
    """Seconds of silence after which a request is given up."""
    witness: Callable[[int, int, Sequence[int]], None]
    """Is told of each answer, before anything else is asked for: from where on and up to where it
    tells, and the sequences of its messages. It raises where that can not be right."""


class Pace:
    """
    How many messages to ask for: as fit into the batch, and as the range is likely to have.

    Args:
        job: what to read.
        start_seq: from where on.
        filtered: whether the server leaves messages out.

    One thread uses it.
    """

    def __init__(self, job: Job, start_seq: int, *, filtered: bool) -> None:
        self._job = job
        self._start_seq = start_seq
        self._row_bytes = max(1.0, job.message_bytes)
        self._rows = 0
        self._filtered = filtered

    def came(self, rows: int) -> None:
        """Note how many messages came."""
        self._rows += rows

    def weigh(self, chunk: Chunk) -> None:
        """Learn how large messages are."""
        if len(chunk):
            # A few messages say little about the rest.
            weight = min(1.0, len(chunk) / 100)
            self._row_bytes += weight * (chunk.total_bytes() / len(chunk) - self._row_bytes)

    def rows(self, next_seq: int) -> int:
        """Return how many messages to ask for from a sequence on; at least one."""
        fitting = int(self._job.batch_bytes * _FILLED / self._row_bytes)
        return max(1, min(fitting, MAX_ROWS, self._expected(next_seq)))

    def _expected(self, next_seq: int) -> int:
        """Guess how many messages the rest of the range has, rather too many than too few."""
        left = self._job.range.end_seq - next_seq
        if not self._filtered:
            return left
        if next_seq == self._start_seq:
            return min(left, _FIRST_ROWS)
        density = self._rows / (next_seq - self._start_seq)
        return min(left, int(left * density * 1.1) + 16)
