"""The plan of a read that ends: which ranges of which streams a batch query reads."""

from __future__ import annotations

from typing import Final

from ...errors import StreamNotFoundError
from ..options import EARLIEST, ReadOptions
from ..planning.access import Access
from ..planning.admission import Counts
from ..planning.loss import LossWatch, resume
from ..planning.offsets import Position
from ..planning.partitions import cuts, partition_counts, ranges
from ..reading.ranges import SequenceRange
from ..reading.view import StreamView
from .pushdown import Narrowing

__all__ = ["plan_read"]


#: Seconds that a stream's clock may have been off, in nanoseconds: its leader can change.
_TIME_SLACK: Final = 60 * 10**9


def plan_read(options: ReadOptions, narrowing: Narrowing | None = None) -> list[SequenceRange]:
    """
    Plan a read of all that is between two positions of each stream.

    It takes nothing away: a work queue has its messages afterwards, too.

    Args:
        options: of the read.
        narrowing: what filters leave of it; ``None``: there are none.

    Returns:
        What the tasks read; nothing when there is nothing to read.

    Raises:
        StreamNotFoundError: a stream is not there, or none fits the pattern.
        InvalidOptionError: the read would begin behind a stream's end.
        DataLossError: it begins where messages are gone, and ``failOnDataLoss`` is not false.
        Error: as `JetStream.get_stream`.

    """
    left = narrowing or Narrowing(subjects=options.subjects or None)
    filters = left.subjects
    if filters == ():
        return []
    access = Access(options)
    views = access.snapshot()
    access.selection.check_all_there(views)
    if not views:
        raise StreamNotFoundError(404, 10059, f"no stream fits {options.stream_pattern!r}")
    parts: dict[str, tuple[Counts, int, int]] = {}
    rows: dict[str, int] = {}
    for key, view in views.items():
        start, end = _narrowed(access, view, left)
        counts = access.counts(view, filters or ())
        parts[key] = counts, start, end
        rows[key] = counts.matching(start, end)
    wanted = partition_counts(rows, options.max_records_per_partition, options.min_partitions)
    planned: list[SequenceRange] = []
    for key, (counts, start, end) in parts.items():
        if not rows[key]:
            continue
        position = Position(
            created_ns=views[key].created_ns,
            start_seq=start,
            next_seq=end,
            cuts=cuts(counts, start, end, rows[key], wanted[key]),
            filters=filters or (),
        )
        planned += ranges(position, views[key].name)
    return planned


def _narrowed(access: Access, view: StreamView, left: Narrowing) -> tuple[int, int]:
    """Return from where to where a stream is read; raises as `plan_read()`."""
    start = max(_start(access, view), left.first_seq)
    end = access.end(view)
    if left.end_seq is not None:
        end = min(end, left.end_seq)
    if view.gives_times:
        if left.first_ns is not None:
            start = max(start, access.first_since(view, left.first_ns - _TIME_SLACK))
        if left.end_ns is not None:
            end = min(end, access.first_since(view, left.end_ns + _TIME_SLACK))
    return start, end


def _start(access: Access, view: StreamView) -> int:
    """Return where to start in a stream; raises as `plan_read()`."""
    options = access.options
    start = access.start(view, EARLIEST)
    position = Position(
        created_ns=view.created_ns, start_seq=start, next_seq=start, filters=options.subjects
    )
    return LossWatch(options.fail_on_data_loss).next_seq(resume(position, view, view.name))
