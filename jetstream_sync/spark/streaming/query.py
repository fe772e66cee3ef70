"""
Plan the batches of a streaming query, and commit them.

This runs on the driver, in one process and thread for the whole query, and is called at every trigger.
Everything that must survive is in the offsets. The state kept here only saves requests.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from time import monotonic, sleep
from typing import Final, NamedTuple
from uuid import uuid4

from ... import errors
from ...client.subscription import Subscription
from ...codec import dumps
from ...durations import time_to_ns
from ...jetstream.connection import Connection
from ..options import EARLIEST, LATEST, ReadOptions
from ..planning.access import SourceAccess
from ..planning.batches import partition_ranges
from ..planning.data_loss import Change, DataLossPolicy, ResumePoint, find_resume_point
from ..planning.micro_batches import (
    Admission,
    StreamPart,
    Turn,
    empty_batch,
    next_batches,
    next_turn,
)
from ..planning.offsets import Offset, StreamOffset
from ..progress import SourceReport, StreamReport
from ..reading.ranges import SequenceRange
from ..stored import to_json
from ..streams import StreamView
from .commit import CommitHandler

log: logging.Logger = logging.getLogger("jetstream_sync.spark")

#: How often the state is read, at this interval in seconds, before a lost stream end is believed.
_STATE_CHECKS: Final = 4
_STATE_CHECK_DELAY_S: Final = 1.0
#: The changes after which a stream has other messages, or none, with the sequences of a batch.
_OTHER_MESSAGES: Final = {Change.MISSING, Change.RECREATED, Change.RESTORED, Change.SHORTENED}
#: Seconds after which an unchanged progress is stored again.
_STORE_INTERVAL_S: Final = 10.0
#: Maximum number of subjects; a query for more only asks the server from time to time.
_MAX_SUBJECTS: Final = 64
#: Seconds after a message in which the stream may not have stored it yet.
_STORE_DELAY_S: Final = 0.2


class Arrivals:
    """
    Notices new messages without a request to the server; for one thread.

    Spark asks an idle query every few milliseconds whether there is new data. In place of as many requests, the
    driver subscribes to the subjects of the streams for one message each. Its arrival is a hint only: the streams
    are asked at the latest after ``minPollInterval``, also where a message takes another way, as in a mirror.
    """

    def __init__(self) -> None:
        self._subscriptions: dict[str, Subscription] = {}
        self._is_denied = False
        # The subjects of which a message has arrived, and until when the streams may not have stored it yet.
        self._hints: dict[str, float] = {}
        #: Whether messages are noticed.
        self.is_active: bool = False

    def watch(
        self, connection: Connection, views: Iterable[StreamView], options: ReadOptions
    ) -> None:
        """Subscribe to the subjects that are not subscribed to, if they are few."""
        subjects = {subject for view in views for subject in options.subjects or view.subjects}
        if options.min_poll_interval <= 0 or self._is_denied or len(subjects) > _MAX_SUBJECTS:
            subjects = set()
        self.is_active = bool(subjects)
        for subject in self._subscriptions.keys() - subjects:
            self._subscriptions.pop(subject).unsubscribe()
        for subject in subjects - self._subscriptions.keys():
            # The limit ends the subscription on the server, however many messages follow.
            subscription = connection.subscribe(subject)
            try:
                subscription.unsubscribe(1)
            except errors.Error:
                # Without its limit it would receive every message; a retry makes another one.
                with suppress(errors.Error):
                    subscription.unsubscribe()
                raise
            self._subscriptions[subject] = subscription

    def seen(self) -> list[str]:
        """Return the subjects of which a message has arrived, so that their streams must be asked."""
        for subject, subscription in list(self._subscriptions.items()):
            if subscription.pending_msgs:
                self._hints[subject] = monotonic() + _STORE_DELAY_S
            elif subscription.is_valid:
                continue
            else:
                self._check(subscription)
            del self._subscriptions[subject]
        return [subject for subject, until in self._hints.items() if monotonic() < until]

    def _check(self, subscription: Subscription) -> None:
        """Find out whether the user may not subscribe; a closed connection only needs a new subscription."""
        try:
            subscription.next_msg(0)
        except errors.PermissionsError:
            self._is_denied = True
        except errors.Error:
            pass


class _ProgressReport:
    """The progress that a query reports to Spark, and in the bucket of the options."""

    def __init__(self, access: SourceAccess) -> None:
        self._access = access
        #: The state and the backlog of each stream; ``None``: before the first trigger, or there are no streams.
        self.progress: SourceReport | None = None
        self._stored: SourceReport | None = None
        self._store_at = 0.0

    def take(
        self,
        parts: Mapping[str, StreamPart],
        shares: Mapping[str, int],
        batches: Mapping[str, StreamOffset],
    ) -> None:
        """Set `progress`; messages of the next batch do not count as pending."""
        streams: dict[str, StreamReport] = {}
        for key, part in sorted(parts.items()):
            view = part.view
            # With AvailableNow there are more messages beyond the end of the query.
            beyond = part.counts.matching(max(part.end_seq, part.start.next_seq), view.end_seq)
            left, lag = part.rows - shares[key] + beyond, 0.0
            oldest = self._access.stored_at(view.name, batches[key].next_seq) if left else None
            if oldest is not None:
                lag = round(max(0, view.at_ns - oldest[1]) / 1e9, 3)
            streams[key] = StreamReport(
                bytes=view.bytes,
                first_seq=view.first_seq,
                lag=lag,
                last_seq=view.end_seq - 1,
                messages=view.messages,
                pending=left,
                pending_bytes=round(left * view.message_bytes),
                read_seq=batches[key].next_seq - 1,
            )
        self.progress = SourceReport(streams) if streams else None

    def store(self, query: str) -> None:
        """Put the progress into the bucket of the options, under the name of the query."""
        bucket, report = self._access.options.progress_bucket, self.progress
        is_new = report != self._stored or monotonic() >= self._store_at
        if bucket is None or not is_new:
            return
        self._stored, self._store_at = report, monotonic() + _STORE_INTERVAL_S
        try:
            self._access.js.key_value(bucket).put(query, dumps(report and to_json(report)))
        except errors.Error as error:
            log.warning("the progress cannot be stored in bucket %s: %s", bucket, error)


class _Idle(NamedTuple):
    """A start for which there was nothing new."""

    start: Offset
    until: float
    """Until when that is believed, on the monotonic clock."""


@dataclass(slots=True)
class _KnownStream:
    """
    What this process knows about a stream, until it becomes shorter or is missing; it saves requests.

    A stream may be deleted and restored between two requests for its state, also with its creation time. So what is
    known is compared with the stream again whenever its end has changed.
    """

    created_ns: int
    filters: tuple[str, ...] | None = None
    """The filters of its reads and commits; ``None``: it is not prepared for them."""
    searched_seq: int = 0
    """With filters, the sequence up to which nothing matches."""
    searched_end: tuple[int, int] | None = None
    """The end of the stream at that search."""
    verified_end: tuple[int, int] | None = None
    """The end of the stream when this process planned a batch of it, or found that the last message that was read is
    still the same one."""


class QueryPlanner:
    """Plans and commits the batches of one query; for one thread."""

    def __init__(self, options: ReadOptions) -> None:
        self.options: ReadOptions = options
        self._access = SourceAccess(options)
        self._loss_policy = DataLossPolicy(options.fail_on_data_loss)
        self._cached_handler: CommitHandler | None = None
        self._initial: Offset | None = None
        #: The name of a new query; a restarted one has the name in its checkpoint.
        self._name = uuid4().hex
        self._known: dict[str, _KnownStream] = {}
        #: The link on which that was found out.
        self._link: tuple[Connection, int] | None = None
        #: Offsets whose streams are read from their start again; they release nothing there.
        self._restarted: dict[str, StreamOffset] = {}
        self._arrivals = Arrivals()
        self._idle: _Idle | None = None
        #: The last known state of the streams.
        self._views: dict[str, StreamView] = {}
        #: When the state of all streams is read again, on the monotonic clock.
        self._ask_all_at = 0.0
        #: With AvailableNow, the state of the streams when the query started.
        self._end_views: Mapping[str, StreamView] | None = None
        self._admission = Admission(options)
        #: The end of the last batch that this process has planned; a batch from the checkpoint is a repeated one.
        self._planned_end: Offset | None = None
        self._report = _ProgressReport(self._access)

    # --- called by Spark ------------------------------------------------------------------------

    def initial(self) -> Offset:
        """Return the start offset of a new query; repeated calls return the same one."""
        if self._initial is None:
            views = self._refresh_views()
            self._access.selection.check_all_exist(views)
            self._access.check_filters(views)
            starts = {key: self._first_offset(key, view) for key, view in views.items()}
            self._initial = Offset(starts, self._name)
        return self._initial

    def prepare_available_now(self) -> None:
        """Fix the current end of the streams as the end of the query; raises like `initial()`."""
        self._end_views = self._refresh_views()

    def latest(self, start: Offset, *, unlimited: bool) -> Offset:
        """
        Return the end of the next batch, after releasing the messages before its start.

        If there is nothing new, it is the start itself.
        """
        if self._is_idle(start):
            return start
        # Subscribed before the streams are asked, so that every later message is noticed.
        views = self._views or self._refresh_views()
        some = self._streams_to_ask(start)
        self._access.retry_transient(
            lambda: self._arrivals.watch(self._access.connection, views.values(), self.options),
            "subscribing to the subjects",
        )
        self._refresh_views(some)
        # Before the first commit the checkpoint is empty, so any owner of a queue is another query.
        starts = {key: position.next_seq for key, position in start.positions.items()}
        self._claim(start, starts, is_new=start == self._initial)
        positions = self._resume(start)
        self._commit(start)
        parts = {key: self._part(key, self._views[key], item) for key, item in positions.items()}
        # A query that ends with the streams does not wait for more messages.
        may_wait, now = self._end_views is None, monotonic()
        shares = self._admission.shares(parts, now, unlimited=unlimited, may_wait=may_wait)
        name = start.query or self._name
        end, batches = start, positions
        if next_turn(start, parts, shares) is not Turn.WAIT:
            batches = next_batches(start, parts, shares, self.options)
            for key, part in parts.items():
                self._known_stream(key, part.view).verified_end = part.view.end
            end = self._planned_end = Offset(batches, name)
        elif may_wait:
            self._idle = _Idle(start, monotonic() + self.options.min_poll_interval)
        self._report.take(parts, shares, batches)
        self._report.store(name)
        return end

    def _is_idle(self, start: Offset) -> bool:
        """Return whether there was nothing new a moment ago, and no message has arrived since then."""
        known = self._idle
        idle = known is not None and known.start == start and monotonic() < known.until
        return idle and not self._arrivals.seen()

    def partitions(self, start: Offset, end: Offset) -> list[SequenceRange]:
        """Return the ranges that the tasks of a batch read; the same end gives the same ranges."""
        if not self._views:
            self._refresh_views()
        # The end is in the checkpoint by now, with the name of the query.
        batches = {key: item for key, item in end.positions.items() if item.partition_bounds()}
        self._claim(end, {key: item.start_seq for key, item in batches.items()})
        if start == end:
            return []
        planned: list[SequenceRange] = []
        for key, point in self._resume_points(batches).items():
            if point.change in _OTHER_MESSAGES:
                # A repeated batch must not have other rows than the first time.
                self._loss_policy.next_seq(point)
                continue
            position = batches[key]
            if end != self._planned_end:
                # A sink may have stored rows of this batch before the query was started again.
                position = replace(position, from_earliest=False)
            planned += partition_ranges(position, self._views[key].name)
        return planned

    def commit(self, end: Offset) -> None:
        """Release the messages before an offset that Spark has committed."""
        handler = self._commit_handler
        if not all(handler.is_committed(key, item) for key, item in end.positions.items()):
            # The batch may have taken long, and the messages of a stream that was created again are unread.
            self._refresh_views()
        self._claim(end)
        self._commit(end)

    @property
    def progress(self) -> SourceReport | None:
        """The state of each stream and the backlog, see `_ProgressReport`."""
        return self._report.progress

    def close(self) -> None:
        """Close the connection of this process."""
        self._access.close()

    @property
    def _commit_handler(self) -> CommitHandler:
        js = self._access.js
        if self._cached_handler is None or self._cached_handler.js is not js:
            self._cached_handler = CommitHandler(js, self.options.consumer)
        return self._cached_handler

    # --- stream state ---------------------------------------------------------------------------

    def _streams_to_ask(self, start: Offset) -> set[str] | None:
        """
        Return which streams of a list must be asked before ``minPollInterval`` is over; ``None``: all.

        The others have no unread messages, and nothing is released there.
        """
        if len(self.options.stream) < 2 or not self._arrivals.is_active:
            return None
        seen = self._arrivals.seen()
        if not seen or monotonic() >= self._ask_all_at or self._access.link != self._link:
            return None
        quiet = {
            view.name
            for key, view in self._views.items()
            if self._is_done(start, key) and not any(map(view.may_store, seen))
        }
        return {*self.options.stream} - quiet

    def _is_done(self, start: Offset, key: str) -> bool:
        """Return whether the messages up to the last known end of a stream were read and released."""
        position, view = start.positions.get(key), self._views[key]
        if position is None or not self._commit_handler.is_committed(key, position):
            return False
        known = self._known_stream(key, view)
        return max(position.next_seq, known.searched_seq) >= view.end_seq

    def _refresh_views(self, some: set[str] | None = None) -> dict[str, StreamView]:
        """Ask for the state of all streams, or of some, and keep that of the others."""
        if some is None:
            self._ask_all_at = monotonic() + self.options.min_poll_interval
        views = self._access.snapshot(some) if some is None or some else {}
        if some is not None:
            kept = {key: view for key, view in self._views.items() if view.name not in some}
            views = dict(sorted((kept | views).items()))
        if self._access.link != self._link:
            # The streams of a restarted server may be older copies, also if they are as long as before.
            self._link = self._access.link
            for known in self._known.values():
                known.filters = None
        for key, old in self._views.items():
            view = views.get(key)
            if view is None or view.end_seq < old.end_seq:
                # A restored stream gives the same sequences to other messages. Its consumers are those of the backup.
                self._known.pop(key, None)
        self._views = views
        return views

    def _known_stream(self, key: str, view: StreamView) -> _KnownStream:
        known = self._known.get(key)
        if known is None or known.created_ns != view.created_ns:
            known = self._known[key] = _KnownStream(view.created_ns)
        return known

    def _claim(
        self, offset: Offset, starts: Mapping[str, int] | None = None, *, is_new: bool = False
    ) -> None:
        """Check the owner of the consumers of an offset and what it released, and claim them unless new."""
        self._access.retry_transient(
            lambda: self._commit_handler.claim(
                offset, self._views, starts, take_ownership=not is_new
            ),
            "checking the consumers",
        )

    def _commit(self, offset: Offset) -> None:
        for key in offset.positions.keys() & self._views.keys():
            self._prepare(key, self._views[key], offset.positions[key])
        # In a stream that was restored, unread messages have these sequences.
        views, restarted = self._views, self._restarted.items()
        positions = {
            key: position
            for key, position in offset.positions.items() - restarted
            if self._resume_point(key, position).change not in _OTHER_MESSAGES
        }
        kept = Offset(positions, offset.query)
        self._access.retry_transient(
            lambda: self._commit_handler.commit(kept, views),
            "committing",
            limits_calls=False,  # a server before 2.14 may have to deliver many messages again
        )

    def _prepare(
        self, key: str, view: StreamView, position: StreamOffset | None = None
    ) -> tuple[str, ...]:
        """Prepare a stream once for reads and commits, and return its filters."""
        known = self._known_stream(key, view)
        if known.filters is None:
            subjects = self.options.subjects
            if view.is_work_queue:
                _check_filters(view, subjects, position)
            filters = self._access.retry_transient(
                lambda: self._commit_handler.prepare(view, subjects),
                f"preparing stream {view.name}",
            )
            _check_filters(view, filters, position)
            known.filters = filters
        return known.filters

    def _first_offset(self, key: str, view: StreamView) -> StreamOffset:
        """Return the offset where a new query starts in a stream."""
        filters = self._prepare(key, view)
        if view.removes_when_consumed:
            self._check_start(view)
            return self._head_offset(view, filters)
        start = self._access.start(view, LATEST)
        position = empty_batch(view, start, filters)
        next_seq = self._loss_policy.next_seq(find_resume_point(position, view, key))
        position = empty_batch(view, next_seq, filters)
        position = replace(position, from_earliest=self._access.is_earliest(view, LATEST))
        return self._skip_older(view, position, self._since_ns(view))

    def _since_ns(self, view: StreamView) -> int | None:
        since = self.options.starting_time(view.name)
        return None if since is None else time_to_ns(since)

    def _skip_older(
        self, view: StreamView, position: StreamOffset, since_ns: int | None
    ) -> StreamOffset:
        """
        Return the first position with messages that were stored at a time or later.

        As long as there are none, it is the end of the stream, and the offset keeps the time: messages that
        arrive before it are skipped as well.
        """
        if since_ns is None:
            return position
        if view.last_ns < since_ns:
            return replace(empty_batch(view, view.end_seq, position.filters), since_ns=since_ns)
        first = max(position.next_seq, self._access.first_seq_since(view, since_ns))
        return empty_batch(view, first, position.filters)

    def _head_offset(self, view: StreamView, filters: tuple[str, ...]) -> StreamOffset:
        """Return the offset of the first unprocessed message of a stream."""
        first_unprocessed = self._access.retry_transient(
            lambda: self._commit_handler.first_unprocessed(view), "reading the consumer state"
        )
        position = empty_batch(view, first_unprocessed, filters)
        return replace(position, from_earliest=not view.removes_when_consumed)

    def _check_start(self, view: StreamView) -> None:
        starts = self.options.starting_offsets
        given = None if starts is None else starts.of(view.name)
        since = self.options.starting_time(view.name)
        name, value = "startingOffsets", "latest" if given == LATEST else str(given)
        if given in {None, EARLIEST}:
            if since is None:
                return
            name, value = self.options.starting_time_option, since.isoformat()
        raise errors.InvalidOptionError(
            name,
            value,
            f"is not possible with the {view.retention} retention of stream {view.name}, where all"
            " unprocessed messages must be read: leave the option out",
        )

    # --- where to continue ----------------------------------------------------------------------

    def _resume(self, offset: Offset) -> dict[str, StreamOffset]:
        """Return the start of the next batch in each stream that exists."""
        selection = self._access.selection
        selected = {
            key: position
            for key, position in offset.positions.items()
            if selection.selects(key.rpartition("/")[2])
        }
        if offset.positions and not selected:
            raise errors.InvalidOptionError(
                selection.option,
                selection.text,
                f"selects no stream of the checkpoint ({', '.join(sorted(offset.positions))}):"
                " start a new checkpoint",
            )
        found = self._resume_points(selected)
        positions: dict[str, StreamOffset] = {}
        for key, point in found.items():
            next_seq = self._loss_policy.next_seq(point)
            view = self._views.get(key)
            if next_seq < offset.positions[key].next_seq:
                self._restarted[key] = offset.positions[key]
            if view is not None:
                filters = self._prepare(key, view, offset.positions[key])
                since_ns = offset.positions[key].since_ns
                empty = empty_batch(view, next_seq, filters)
                empty = replace(empty, from_earliest=offset.positions[key].is_unread)
                positions[key] = self._skip_older(view, empty, since_ns)
        for key, view in self._views.items():
            if key not in positions:
                head = self._head_offset(view, self._prepare(key, view))
                positions[key] = self._skip_older(view, head, self._since_ns(view))
        return positions

    def _resume_points(self, positions: Mapping[str, StreamOffset]) -> dict[str, ResumePoint]:
        """Compare positions with the streams, whose state is read again while one seems too short."""
        for attempt in range(1, _STATE_CHECKS + 1):
            found = {key: self._resume_point(key, item) for key, item in positions.items()}
            is_short = any(item.change is Change.SHORTENED for item in found.values())
            if not is_short or attempt == _STATE_CHECKS:
                break
            log.warning("a stream ends before the offset; reading its state again (%d)", attempt)
            sleep(_STATE_CHECK_DELAY_S)
            self._refresh_views()
        return found

    def _resume_point(self, key: str, position: StreamOffset) -> ResumePoint:
        view = self._views.get(key)
        found = find_resume_point(self._after_search(key, position, view), view, key)
        if view is None or found.change is not Change.NONE or position.last_ns is None:
            return found
        known = self._known_stream(key, view)
        if known.verified_end == view.end:
            return found
        # Servers before 2.15 keep the creation time of a stream that they restore.
        stored = self._access.stored_at(view.name, position.next_seq - 1)
        if stored is None or stored[0] >= position.next_seq or stored[1] == position.last_ns:
            known.verified_end = view.end
            return found
        problem = f"stream {key} was restored to an earlier state: it has another message"
        return replace(
            found,
            next_seq=view.first_seq,
            change=Change.RESTORED,
            problem=f"{problem} with sequence {stored[0]}, up to which it was read",
        )

    def _after_search(
        self, key: str, position: StreamOffset, view: StreamView | None
    ) -> StreamOffset:
        """
        Return a position without the messages after it that do not match its filters.

        A query that has read nothing and begins with the first message begins with the present first message.
        """
        if view is None or view.created_ns != position.created_ns:
            return position
        seq = self._searched_seq(key, view, position.next_seq)
        if position.is_unread:
            seq = max(seq, view.first_seq)
        if seq <= position.next_seq:
            return position
        return replace(position, start_seq=seq, next_seq=seq, cuts=())

    def _searched_seq(self, key: str, view: StreamView, next_seq: int) -> int:
        """Return the sequence up to which nothing matches, if it is after a position and known of this copy."""
        known, last = self._known_stream(key, view), None
        if known.searched_seq > next_seq:
            last = known.searched_end
        if last is not None and last != view.end:
            # Without it, messages that did not match and have left the stream would look like lost ones.
            stored = self._access.stored_at(view.name, last[0])
            if stored is not None and stored[0] == last[0] and stored != last:
                known.searched_seq = 0
            known.searched_end = view.end
        return known.searched_seq

    # --- how much to read -----------------------------------------------------------------------

    def _part(self, key: str, view: StreamView, start: StreamOffset) -> StreamPart:
        end_seq = view.end_seq
        if self._end_views is not None:
            last = self._end_views.get(key)
            same = last is not None and last.created_ns == view.created_ns
            end_seq = min(end_seq, last.end_seq) if last is not None and same else 0
        counts = self._access.counts(view, start.filters)
        if start.filters and start.next_seq < end_seq:
            # The position moves on while nothing matches: what leaves the stream then is no data loss.
            first = self._access.first_match(view, start.filters, start.next_seq)
            seq = end_seq if first is None else min(first, end_seq)
            is_first = start.from_earliest and first is not None
            start = empty_batch(view, seq, start.filters, start.since_ns)
            start = replace(start, from_earliest=is_first)
            known = self._known_stream(key, view)
            known.searched_seq, known.searched_end = seq, view.end
        rows = counts.matching(start.next_seq, end_seq) if start.next_seq < end_seq else 0
        return StreamPart(view, start, end_seq, counts, rows)


def _check_filters(
    view: StreamView, filters: tuple[str, ...], position: StreamOffset | None
) -> None:
    """Refuse changed filters if a commit would also remove messages that were not read."""
    if position is None or not view.removes_when_consumed or view.created_ns != position.created_ns:
        return
    if set(filters) != set(position.filters):
        raise errors.InvalidOptionError(
            "subjects",
            ",".join(filters),
            f"the checkpoint was written with other subjects of stream {view.name}"
            f" ({', '.join(position.filters) or 'all'}), so unread messages would be removed:"
            " start a new checkpoint",
        )
