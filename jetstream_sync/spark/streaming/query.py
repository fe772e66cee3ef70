"""
How far a query is behind, for its progress reports.

Spark shows what `Progress.report` returns as ``sources[].latestOffset`` in every progress of the query.

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
from ..planning.access import Access
from ..planning.batches import Counts, cuts, fitted, partition_counts, ranges, share_out
from ..planning.data_loss import LossWatch, Resumption, resume
from ..planning.offsets import Offset, Position
from ..reading.ranges import SequenceRange
from ..streams import StreamView
from .commit import Commits

__all__ = ["Progress", "StreamingQuery"]


class Progress:
    """What the last trigger has seen of each stream, and how much of it is left to read."""

    def __init__(self) -> None:
        self._views: Mapping[str, StreamView] = {}
        self._pending: dict[str, int] = {}

    def seen(
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
_LOOKS: Final = 4
_LOOK_AGAIN: Final = 1.0


@dataclass(frozen=True, slots=True)
class _Part:
    """What there is to read of one stream."""

    view: StreamView
    start: Position
    """The empty batch that begins where the last one ended."""
    end_seq: int
    """How far the batch may go."""
    counts: Counts
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
        self._access = Access(options)
        self._loss = LossWatch(options.fail_on_data_loss)
        self._known_commits: Commits | None = None
        self._initial: dict[str, Any] | None = None
        #: What the query is called when it is new; later ones have the name of their checkpoint.
        self._name = uuid4().hex
        #: What the last look at the streams has shown.
        self._views: dict[str, StreamView] = {}
        #: The filters of each stream that was prepared, with the time when it was made.
        self._prepared: dict[str, tuple[int, tuple[str, ...]]] = {}
        #: With AvailableNow, where each stream that was there ended at the start.
        self._targets: dict[str, tuple[int, int]] | None = None
        self._last_batch: float | None = None
        self._turn = 0
        self.progress = Progress()

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
            views = self._look()
            self._access.selection.check_all_there(views)
            starts = {key: self._first_position(key, view) for key, view in views.items()}
            self._initial = Offset(starts, self._name).to_json()
        return self._initial

    def prepare_available_now(self) -> None:
        """Take what the streams have now as all that there will be; raises as `initial()`."""
        views = self._look()
        self._targets = {key: (view.created_ns, view.end_seq) for key, view in views.items()}

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
        self._look()
        # As long as nothing is in the checkpoint, whoever has a queue is not this query.
        self._own(offset, is_new=start == self._initial)
        positions = self._resume(offset)
        self._commit(offset)
        parts = {key: self._part(key, self._views[key], each) for key, each in positions.items()}
        available = {key: part.rows for key, part in parts.items()}
        shares = self._admit(parts, unlimited=unlimited)
        self.progress.seen(self._views, available, shares)
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
        views = self._views or self._look()
        offset = Offset.from_json(end)
        # By now the end is in the checkpoint, and with it what the query is called.
        self._own(offset)
        if start == end:
            return []
        planned: list[SequenceRange] = []
        for key, position in offset.positions.items():
            if not position.pieces():
                continue
            view = views.get(key)
            if view is None or view.created_ns != position.created_ns:
                self._loss.next_seq(resume(position, view, key))
                continue
            planned += ranges(position, view.name)
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
            self._look()
        offset = Offset.from_json(end)
        self._own(offset)
        self._commit(offset)

    def close(self) -> None:
        """Close the connection, which is the process's."""
        self._access.close()

    @property
    def _commits(self) -> Commits:
        js = self._access.js
        if self._known_commits is None or self._known_commits.js is not js:
            self._known_commits = Commits(js, self._options.consumer)
        return self._known_commits

    # --- looking --------------------------------------------------------------------------------

    def _look(self) -> dict[str, StreamView]:
        self._views = self._access.snapshot()
        return self._views

    def _own(self, offset: Offset, *, is_new: bool = False) -> None:
        """Make sure that no other query has the work queues of an offset."""
        views = self._views

        def look() -> None:
            (self._commits.check_free if is_new else self._commits.claim)(offset, views)

        self._access.patiently(look, "looking at the consumers of work queues")

    def _commit(self, offset: Offset) -> None:
        for key in offset.positions.keys() & self._views.keys():
            self._prepare(key, self._views[key], offset.positions[key])
        views = self._views
        self._access.patiently(lambda: self._commits.commit(offset, views), "committing")

    def _prepare(
        self, key: str, view: StreamView, position: Position | None = None
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
            filters = self._access.patiently(
                lambda: self._commits.prepare(view, subjects), f"preparing stream {view.name}"
            )
            _check_filters(view, filters, position)
            known = self._prepared[key] = view.created_ns, filters
        return known[1]

    def _first_position(self, key: str, view: StreamView) -> Position:
        """Return where a new query starts in a stream."""
        filters = self._prepare(key, view)
        if view.is_consumed:
            self._check_start(view)
            return self._head(view, filters)
        start = self._access.start(view, LATEST)
        position = _at(view, start, filters)
        return _at(view, self._loss.next_seq(resume(position, view, key)), filters)

    def _head(self, view: StreamView, filters: tuple[str, ...]) -> Position:
        """Return the position of all that is in a stream and not worked on."""
        floor = self._access.patiently(lambda: self._commits.floor(view), "looking at the consumer")
        return _at(view, floor, filters)

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

    def _resume(self, offset: Offset) -> dict[str, Position]:
        """Return where the next batch starts in each stream that is there."""
        found = self._resumptions(offset)
        for looks in range(1, _LOOKS):
            if not any(each.may_pass for each in found.values()):
                break
            log.warning("a stream seems to have lost its end; looking again (%d)", looks)
            sleep(_LOOK_AGAIN)
            self._look()
            found = self._resumptions(offset)
        positions: dict[str, Position] = {}
        for key, resumption in found.items():
            next_seq = self._loss.next_seq(resumption)
            view = self._views.get(key)
            if view is not None:
                filters = self._prepare(key, view, offset.positions[key])
                positions[key] = _at(view, next_seq, filters)
        for key, view in self._views.items():
            if key not in positions:
                positions[key] = self._head(view, self._prepare(key, view))
        return positions

    def _resumptions(self, offset: Offset) -> dict[str, Resumption]:
        selection = self._access.selection
        return {
            key: resume(position, self._views.get(key), key)
            for key, position in offset.positions.items()
            if selection.has(key.rpartition("/")[2])
        }

    # --- how far to go --------------------------------------------------------------------------

    def _part(self, key: str, view: StreamView, start: Position) -> _Part:
        end_seq = view.end_seq
        if self._targets is not None:
            created_ns, target = self._targets.get(key, (0, 0))
            end_seq = min(end_seq, target) if created_ns == view.created_ns else 0
        counts = self._access.counts(view, start.filters)
        rows = counts.matching(start.next_seq, end_seq)
        return _Part(view, start, end_seq, counts, rows)

    def _admit(self, parts: Mapping[str, _Part], *, unlimited: bool) -> dict[str, int]:
        """Return how many messages of each stream the next batch takes."""
        available = {key: part.rows for key, part in parts.items()}
        options, total = self._options, sum(available.values())
        if unlimited or not total:
            return available
        if self._targets is None and self._is_too_soon(total):
            return dict.fromkeys(available, 0)
        shares = share_out(options.max_offsets_per_trigger or total, available, self._turn)
        if options.max_bytes_per_trigger is None:
            return shares
        sizes = {key: part.view.message_bytes for key, part in parts.items()}
        return fitted(shares, sizes, options.max_bytes_per_trigger, self._turn)

    def _is_too_soon(self, rows: int) -> bool:
        """Say whether to wait for more messages; the first batch of a process never waits."""
        fewest = self._options.min_offsets_per_trigger
        if fewest is None or rows >= fewest or self._last_batch is None:
            return False
        return monotonic() - self._last_batch < self._options.max_trigger_delay

    def _batches(
        self, offset: Offset, parts: Mapping[str, _Part], shares: Mapping[str, int]
    ) -> dict[str, Position]:
        """Return the batch of each stream; that of a stream with no share is empty."""
        wanted = partition_counts(
            shares, self._options.max_records_per_partition, self._options.min_partitions
        )
        ended = {key: position.ended() for key, position in offset.positions.items()}
        for key, part in parts.items():
            ended[key] = _batch(part, shares[key], wanted[key]) if shares[key] else part.start
        return ended


def _check_filters(view: StreamView, filters: tuple[str, ...], position: Position | None) -> None:
    """Refuse to go on with other filters where a commit takes messages away, also unread ones."""
    if position is None or not view.is_consumed or view.created_ns != position.created_ns:
        return
    if set(filters) != set(position.filters):
        raise InvalidOptionError(
            "subjects",
            ",".join(filters),
            f"the checkpoint has read stream {view.name} for other subjects"
            f" ({', '.join(position.filters) or 'all'}), and would drop what it has not read:"
            " start a new checkpoint",
        )


def _at(view: StreamView, seq: int, filters: tuple[str, ...]) -> Position:
    """Return the empty batch at a sequence of a stream."""
    return Position(created_ns=view.created_ns, start_seq=seq, next_seq=seq, filters=filters)


def _batch(part: _Part, rows: int, partitions: int) -> Position:
    start, end_seq = part.start.next_seq, part.end_seq
    if rows < part.rows:
        end_seq = part.counts.reach(start, end_seq, rows)
    return Position(
        created_ns=part.view.created_ns,
        start_seq=start,
        next_seq=end_seq,
        cuts=cuts(part.counts, start, end_seq, rows, partitions),
        filters=part.start.filters,
    )
