"""
How far a query is behind, for its progress reports.

Spark shows what `ProgressReport.report` returns as ``sources[].latestOffset`` in every progress of the query.

The plan of a streaming query: what the next batch is, and what happens when one is committed.

It runs on the driver, in one process and thread for the whole query, and is asked at every trigger.
All that has to survive is in the offsets; what is kept here saves questions.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from time import monotonic, sleep
from typing import Any, Final
from uuid import uuid4

from ...errors import InvalidOptionError
from ..options import EARLIEST, LATEST, ReadOptions
from ..planning.access import SourceAccess
from ..planning.batches import (
    MessageCounter,
    divide_rows,
    limit_to_bytes,
    partition_counts,
    partition_cuts,
    partition_ranges,
)
from ..planning.data_loss import DataLossPolicy, ResumePoint, find_resume_point
from ..planning.offsets import Offset, StreamOffset
from ..reading.ranges import SequenceRange
from ..streams import StreamView
from .commit import CommitHandler

__all__ = ["ProgressReport", "StreamingQuery"]


class ProgressReport:
    """What the last trigger has seen of each stream, and how much of it is left to read."""

    def __init__(self) -> None:
        self._views: Mapping[str, StreamView] = {}
        self._pending: dict[str, int] = {}

    def update(
        self,
        views: Mapping[str, StreamView],
        available: Mapping[str, int],
        taken: Mapping[str, int],
    ) -> None:
        """
        Note what a trigger has found.

        Args:
            views: the streams.
            available: how many messages there were to read in each.
            taken: how many of them the next batch has.

        """
        self._views = views
        self._pending = {key: count - taken.get(key, 0) for key, count in available.items()}

    def report(self) -> dict[str, Any] | None:
        """
        Return each stream's first and last sequence, messages, bytes and how many wait to be read.

        Those of the batch that is planned or running do not wait any more. ``None`` before the
        first trigger.
        """
        if not self._views:
            return None
        streams = {
            key: {
                "bytes": view.bytes,
                "first": view.first_seq,
                "last": view.end_seq - 1,
                "messages": view.messages,
                "pending": self._pending.get(key, 0),
            }
            for key, view in sorted(self._views.items())
        }
        return {"streams": streams}


log = logging.getLogger("jetstream_sync.spark")

#: How often to look, and how many seconds to wait in between, before a stream has really lost its end.
_STATE_CHECKS: Final = 4
_STATE_CHECK_DELAY_S: Final = 1.0


@dataclass(frozen=True, slots=True)
class _StreamPart:
    """What there is to read of one stream."""

    view: StreamView
    start: StreamOffset
    """The empty batch that begins where the last one ended."""
    end_seq: int
    """How far the batch may go."""
    counts: MessageCounter
    rows: int
    """How many messages match up to there."""


class StreamingQuery:
    """
    The batches of one query; for one thread.

    Args:
        options: of the read.

    """

    def __init__(self, options: ReadOptions) -> None:
        self._options = options
        self._access = SourceAccess(options)
        self._loss_policy = DataLossPolicy(options.fail_on_data_loss)
        self._cached_handler: CommitHandler | None = None
        self._initial: dict[str, Any] | None = None
        #: What the query is called when it is new; later ones have the name of their checkpoint.
        self._name = uuid4().hex
        #: What the last look at the streams has shown.
        self._views: dict[str, StreamView] = {}
        #: The filters of each stream that was prepared, with the time when it was made.
        self._prepared: dict[str, tuple[int, tuple[str, ...]]] = {}
        #: With AvailableNow, where each stream that was there ended at the start.
        self._end_targets: dict[str, tuple[int, int]] | None = None
        self._last_batch: float | None = None
        self._turn = 0
        self.progress = ProgressReport()

    # --- what Spark asks for --------------------------------------------------------------------

    def initial(self) -> dict[str, Any]:
        """
        Return the offset that a new query starts at; the same one however often it is asked for.

        Raises:
            StreamNotFoundError: a stream that was named is not there.
            InvalidOptionError: the options do not go with a stream.
            DataLossError: the start is gone, and ``failOnDataLoss`` is not false.
            Error: as `JetStream.get_stream`.

        """
        if self._initial is None:
            views = self._refresh_views()
            self._access.selection.check_all_exist(views)
            starts = {key: self._first_offset(key, view) for key, view in views.items()}
            self._initial = Offset(starts, self._name).to_json()
        return self._initial

    def prepare_available_now(self) -> None:
        """Take what the streams have now as all that there will be; raises as `initial()`."""
        views = self._refresh_views()
        self._end_targets = {key: (view.created_ns, view.end_seq) for key, view in views.items()}

    def latest(self, start: dict[str, Any], *, unlimited: bool) -> dict[str, Any]:
        """
        Return where the next batch ends; first let go of what was read before it starts.

        Args:
            start: where the last batch has ended.
            unlimited: whether the limits of the options do not count, as with ``once``.

        Returns:
            The end; ``start`` itself, as it came, when there is nothing to read.

        Raises:
            OffsetError: the offset is not one of this source.
            DataLossError: messages are gone, and ``failOnDataLoss`` says that this is an error.
            InvalidOptionError: the options do not go with a stream, or with the checkpoint.
            QueueInUseError: another query reads a work queue.
            Error: as `JetStream.get_stream` and `Stream.purge`.

        """
        offset = Offset.from_json(start)
        self._refresh_views()
        # As long as nothing is in the checkpoint, whoever has a queue is not this query.
        self._claim_queues(offset, is_new=start == self._initial)
        positions = self._resume(offset)
        self._commit(offset)
        parts = {key: self._part(key, self._views[key], each) for key, each in positions.items()}
        available = {key: part.rows for key, part in parts.items()}
        shares = self._admit(parts, unlimited=unlimited)
        self.progress.update(self._views, available, shares)
        if not any(shares.values()):
            return start
        self._last_batch = monotonic()
        self._turn += 1
        return Offset(self._batches(offset, parts, shares), offset.query or self._name).to_json()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[SequenceRange]:
        """
        Return what the tasks of a batch read: the same ranges for the same end, whenever it is asked.

        Args:
            start: only compared: a batch that ends where it starts is empty.
            end: says all the rest.

        Raises:
            OffsetError: the offset is not one of this source.
            DataLossError: a stream is gone, and ``failOnDataLoss`` is not false.
            QueueInUseError: another query reads a work queue.
            Error: as `JetStream.get_stream`.

        """
        views = self._views or self._refresh_views()
        offset = Offset.from_json(end)
        # By now the end is in the checkpoint, and with it what the query is called.
        self._claim_queues(offset)
        if start == end:
            return []
        planned: list[SequenceRange] = []
        for key, position in offset.positions.items():
            if not position.partition_bounds():
                continue
            view = views.get(key)
            if view is None or view.created_ns != position.created_ns:
                self._loss_policy.next_seq(find_resume_point(position, view, key))
                continue
            planned += partition_ranges(position, view.name)
        return planned

    def commit(self, end: dict[str, Any]) -> None:
        """
        Let go of what was read before an offset that Spark has committed.

        Raises:
            OffsetError: the offset is not one of this source.
            QueueInUseError: another query reads a work queue.
            Error: as `Stream.purge` and `JetStream.reset_consumer`.

        """
        if not self._views:
            self._refresh_views()
        offset = Offset.from_json(end)
        self._claim_queues(offset)
        self._commit(offset)

    def close(self) -> None:
        """Close the connection, which is the process's."""
        self._access.close()

    @property
    def _commit_handler(self) -> CommitHandler:
        js = self._access.js
        if self._cached_handler is None or self._cached_handler.js is not js:
            self._cached_handler = CommitHandler(js, self._options.consumer)
        return self._cached_handler

    # --- looking --------------------------------------------------------------------------------

    def _refresh_views(self) -> dict[str, StreamView]:
        self._views = self._access.snapshot()
        return self._views

    def _claim_queues(self, offset: Offset, *, is_new: bool = False) -> None:
        """Make sure that no other query has the work queues of an offset."""
        views = self._views

        def look() -> None:
            (self._commit_handler.check_unclaimed if is_new else self._commit_handler.claim)(
                offset, views
            )

        self._access.retry_transient(look, "looking at the consumers of work queues")

    def _commit(self, offset: Offset) -> None:
        for key in offset.positions.keys() & self._views.keys():
            self._prepare(key, self._views[key], offset.positions[key])
        views = self._views
        self._access.retry_transient(
            lambda: self._commit_handler.commit(offset, views), "committing"
        )

    def _prepare(
        self, key: str, view: StreamView, position: StreamOffset | None = None
    ) -> tuple[str, ...]:
        """
        Make sure once that a stream can be read and committed; return its filters.

        Args:
            key: of the stream.
            view: the stream.
            position: where the query is in it; ``None``: it is new to the query.

        """
        known = self._prepared.get(key)
        if known is None or known[0] != view.created_ns:
            subjects = self._options.subjects
            if view.is_work_queue:
                _check_filters(view, subjects, position)
            filters = self._access.retry_transient(
                lambda: self._commit_handler.prepare(view, subjects),
                f"preparing stream {view.name}",
            )
            _check_filters(view, filters, position)
            known = self._prepared[key] = view.created_ns, filters
        return known[1]

    def _first_offset(self, key: str, view: StreamView) -> StreamOffset:
        """Return where a new query starts in a stream."""
        filters = self._prepare(key, view)
        if view.removes_when_consumed:
            self._check_start(view)
            return self._head_offset(view, filters)
        start = self._access.start(view, LATEST)
        position = _empty_batch(view, start, filters)
        return _empty_batch(
            view, self._loss_policy.next_seq(find_resume_point(position, view, key)), filters
        )

    def _head_offset(self, view: StreamView, filters: tuple[str, ...]) -> StreamOffset:
        """Return the position of all that is in a stream and not worked on."""
        first_unprocessed = self._access.retry_transient(
            lambda: self._commit_handler.first_unprocessed(view), "looking at the consumer"
        )
        return _empty_batch(view, first_unprocessed, filters)

    def _check_start(self, view: StreamView) -> None:
        options = self._options
        starts = options.starting_offsets
        earliest = starts is None or starts.of(view.name) in {None, EARLIEST}
        if options.starting_timestamp is None and earliest:
            return
        name = "startingTimestamp" if earliest else "startingOffsets"
        raise InvalidOptionError(
            name,
            options.starting_timestamp if earliest else starts,
            f"what is before the start would leave stream {view.name} unread, as its retention is"
            f" {view.retention}: leave the option out",
        )

    # --- where to go on -------------------------------------------------------------------------

    def _resume(self, offset: Offset) -> dict[str, StreamOffset]:
        """Return where the next batch starts in each stream that is there."""
        found = self._resumptions(offset)
        for looks in range(1, _STATE_CHECKS):
            if not any(each.may_be_stale for each in found.values()):
                break
            log.warning("a stream seems to have lost its end; looking again (%d)", looks)
            sleep(_STATE_CHECK_DELAY_S)
            self._refresh_views()
            found = self._resumptions(offset)
        positions: dict[str, StreamOffset] = {}
        for key, resumption in found.items():
            next_seq = self._loss_policy.next_seq(resumption)
            view = self._views.get(key)
            if view is not None:
                filters = self._prepare(key, view, offset.positions[key])
                positions[key] = _empty_batch(view, next_seq, filters)
        for key, view in self._views.items():
            if key not in positions:
                positions[key] = self._head_offset(view, self._prepare(key, view))
        return positions

    def _resumptions(self, offset: Offset) -> dict[str, ResumePoint]:
        selection = self._access.selection
        return {
            key: find_resume_point(position, self._views.get(key), key)
            for key, position in offset.positions.items()
            if selection.has(key.rpartition("/")[2])
        }

    # --- how far to go --------------------------------------------------------------------------

    def _part(self, key: str, view: StreamView, start: StreamOffset) -> _StreamPart:
        end_seq = view.end_seq
        if self._end_targets is not None:
            created_ns, target = self._end_targets.get(key, (0, 0))
            end_seq = min(end_seq, target) if created_ns == view.created_ns else 0
        counts = self._access.counts(view, start.filters)
        rows = counts.matching(start.next_seq, end_seq)
        return _StreamPart(view, start, end_seq, counts, rows)

    def _admit(self, parts: Mapping[str, _StreamPart], *, unlimited: bool) -> dict[str, int]:
        """Return how many messages of each stream the next batch takes."""
        available = {key: part.rows for key, part in parts.items()}
        options, total = self._options, sum(available.values())
        if unlimited or not total:
            return available
        if self._end_targets is None and self._is_too_soon(total):
            return dict.fromkeys(available, 0)
        shares = divide_rows(options.max_offsets_per_trigger or total, available, self._turn)
        if options.max_bytes_per_trigger is None:
            return shares
        sizes = {key: part.view.message_bytes for key, part in parts.items()}
        return limit_to_bytes(shares, sizes, options.max_bytes_per_trigger, self._turn)

    def _is_too_soon(self, rows: int) -> bool:
        """Say whether to wait for more messages; the first batch of a process never waits."""
        fewest = self._options.min_offsets_per_trigger
        if fewest is None or rows >= fewest or self._last_batch is None:
            return False
        return monotonic() - self._last_batch < self._options.max_trigger_delay

    def _batches(
        self, offset: Offset, parts: Mapping[str, _StreamPart], shares: Mapping[str, int]
    ) -> dict[str, StreamOffset]:
        """Return the batch of each stream; that of a stream with no share is empty."""
        wanted = partition_counts(
            shares, self._options.max_records_per_partition, self._options.min_partitions
        )
        ended = {key: position.empty_after() for key, position in offset.positions.items()}
        for key, part in parts.items():
            ended[key] = _batch(part, shares[key], wanted[key]) if shares[key] else part.start
        return ended


def _check_filters(
    view: StreamView, filters: tuple[str, ...], position: StreamOffset | None
) -> None:
    """Refuse to go on with other filters where a commit takes messages away, also unread ones."""
    if position is None or not view.removes_when_consumed or view.created_ns != position.created_ns:
        return
    if set(filters) != set(position.filters):
        raise InvalidOptionError(
            "subjects",
            ",".join(filters),
            f"the checkpoint has read stream {view.name} for other subjects"
            f" ({', '.join(position.filters) or 'all'}), and would drop what it has not read:"
            " start a new checkpoint",
        )


def _empty_batch(view: StreamView, seq: int, filters: tuple[str, ...]) -> StreamOffset:
    """Return the empty batch at a sequence of a stream."""
    return StreamOffset(created_ns=view.created_ns, start_seq=seq, next_seq=seq, filters=filters)


def _batch(part: _StreamPart, rows: int, partitions: int) -> StreamOffset:
    start, end_seq = part.start.next_seq, part.end_seq
    if rows < part.rows:
        end_seq = part.counts.find_end(start, end_seq, rows)
    return StreamOffset(
        created_ns=part.view.created_ns,
        start_seq=start,
        next_seq=end_seq,
        cuts=partition_cuts(part.counts, start, end_seq, rows, partitions),
        filters=part.start.filters,
    )
