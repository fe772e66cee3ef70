"""Plan a batch read: the ranges that its tasks read."""

from __future__ import annotations

from ... import errors
from ..options import EARLIEST, ReadOptions
from ..reading.ranges import SequenceRange
from ..streams import StreamView
from .access import SourceAccess
from .batches import MessageCounter, partition_counts, partition_cuts, partition_ranges
from .data_loss import DataLossPolicy, find_resume_point
from .offsets import StreamOffset


def plan_read(options: ReadOptions) -> list[SequenceRange]:
    """
    Plan a read between two offsets of each stream.

    The messages stay in the stream, also in a work queue.

    Raises:
        StreamNotFoundError: a stream does not exist, or none matches the pattern.
        InvalidOptionError: an offset or a time is not in the stream, or no message can match a filter.
        DataLossError: messages from the start on have left a stream, see ``failOnDataLoss``.
        Error: the server cannot be reached within ``planningTimeout``, or refuses.

    """
    filters = options.subjects
    access = SourceAccess(options)
    views = access.snapshot()
    access.selection.check_all_exist(views)
    if not views:
        raise errors.StreamNotFoundError.found_here(f"no stream matches {options.stream_pattern!r}")
    access.check_filters(views)
    parts: dict[str, tuple[MessageCounter, int, int]] = {}
    rows: dict[str, int] = {}
    for key, view in views.items():
        start, end = _bounds(access, view)
        counts = access.counts(view, filters)
        parts[key] = counts, start, end
        rows[key] = counts.matching(start, end)
    wanted = partition_counts(rows, options.max_records_per_partition, options.min_partitions)
    planned: list[SequenceRange] = []
    for key, (counts, start, end) in parts.items():
        if not rows[key]:
            continue
        position = StreamOffset(
            created_ns=views[key].created_ns,
            start_seq=start,
            next_seq=end,
            cuts=partition_cuts(counts, start, end, rows[key], wanted[key]),
            filters=filters,
            from_earliest=access.is_earliest(views[key], EARLIEST),
        )
        planned += partition_ranges(position, views[key].name)
    return planned


def _bounds(access: SourceAccess, view: StreamView) -> tuple[int, int]:
    """Return start and end of the read of a stream; raises like `plan_read()`."""
    options = access.options
    start, end = access.start(view, EARLIEST), access.end(view)
    by_time = options.starting_time(view.name) or options.ending_time(view.name)
    if end < start and start > view.first_seq and by_time is None:
        raise errors.InvalidOptionError(
            "endingOffsets", end, f"is before the start of the read of stream {view.name}, {start}"
        )
    position = StreamOffset(
        created_ns=view.created_ns, start_seq=start, next_seq=start, filters=options.subjects
    )
    policy = DataLossPolicy(options.fail_on_data_loss)
    return policy.next_seq(find_resume_point(position, view, view.name)), end
