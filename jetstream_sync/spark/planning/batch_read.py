"""Plan a batch read: the ranges that its tasks read."""

from __future__ import annotations

from ... import errors
from ..options import EARLIEST, ReadOptions
from ..reading.ranges import SequenceRange
from ..streams import StreamView
from .access import SourceAccess
from .batches import partition_ranges
from .data_loss import DataLossPolicy, find_resume_point
from .micro_batches import StreamPart, empty_batch, next_batches
from .offsets import Offset


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
    access = SourceAccess(options)
    views = access.snapshot()
    access.selection.check_all_exist(views)
    if not views:
        raise errors.StreamNotFoundError.found_here(f"no stream matches {options.stream_pattern!r}")
    access.check_filters(views)
    parts = {key: _part(access, view) for key, view in views.items()}
    rows = {key: part.rows for key, part in parts.items()}
    batches = next_batches(Offset({}), parts, rows, options)
    return [
        item for key, batch in batches.items() for item in partition_ranges(batch, views[key].name)
    ]


def _part(access: SourceAccess, view: StreamView) -> StreamPart:
    """Return the messages that are read of a stream; raises like `plan_read()`."""
    options, filters = access.options, access.options.subjects
    start, end = access.start(view, EARLIEST), access.end(view)
    by_time = options.starting_time(view.name) or options.ending_time(view.name)
    if end < start and start > view.first_seq and by_time is None:
        raise errors.InvalidOptionError(
            "endingOffsets", end, f"is before the start of the read of stream {view.name}, {start}"
        )
    found = find_resume_point(empty_batch(view, start, filters), view, view.name)
    start = DataLossPolicy(options.fail_on_data_loss).next_seq(found)
    is_earliest = access.is_earliest(view, EARLIEST)
    counts = access.counts(view, filters)
    position = empty_batch(view, start, filters, from_earliest=is_earliest)
    return StreamPart(view, position, end, counts, counts.matching(start, end))
