"""
Plan the batches of a streaming query, and commit them.

This runs on the driver, in one process and thread for the whole query. Everything that must survive is in the
offsets. The state kept here only saves requests. At each trigger

1. `StreamStates` asks for the state of the streams;
2. `StreamMemory` compares it with the start, the offset that Spark has committed last;
3. `CommitHandler` releases the messages before the start in the streams that are still the same;
4. each stream has a `StreamPart` from where it continues, after what was lost, to its end;
5. `Admission` and `next_batches` decide how much of these parts the next batch has.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from time import monotonic, sleep
from typing import Final
from uuid import uuid4

from ... import errors
from ...client.subscription import Subscription
from ...codec import dumps
from ...durations import time_to_ns
from ...jetstream.connection import Connection
from ..options import EARLIEST, LATEST, ReadOptions
from ..planning.access import SourceAccess
from ..planning.batches import partition_ranges
from ..planning.data_loss import (
    OTHER_MESSAGES,
    Change,
    DataLossPolicy,
    ResumePoint,
    StreamMemory,
    find_resume_point,
)
from ..planning.micro_batches import (
    Admission,
    StreamPart,
    empty_batch,
    has_batch,
    next_batches,
)
from ..planning.offsets import Offset, StreamOffset
from ..progress import SourceReport, StreamReport
from ..reading.ranges import SequenceRange
from ..stored import to_json
from ..streams import StreamView
from .commit import Claim, CommitHandler

log: logging.Logger = logging.getLogger("jetstream_sync.spark")

#: How often the state is read, at this interval in seconds, before a lost stream end is believed.
_STATE_CHECKS: Final = 4
_STATE_CHECK_DELAY_S: Final = 1.0
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


class ProgressReport:
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


class StreamStates:
    """The last known states of the streams of a query, and when the server is asked for them; for one thread."""

    def __init__(self, access: SourceAccess, memory: StreamMemory) -> None:
        self._access = access
        self._memory = memory
        self._arrivals = Arrivals()
        #: The state of each stream.
        self.views: Mapping[str, StreamView] = {}
        # When all streams are asked again, on the monotonic clock.
        self._ask_all_at = 0.0
        # A start for which there was nothing new, and until when that is believed.
        self._idle: tuple[Offset, float] | None = None

    def is_idle(self, start: Offset) -> bool:
        """Return whether there was nothing new a moment ago, and no message has arrived since then."""
        known = self._idle
        idle = known is not None and known[0] == start and monotonic() < known[1]
        return idle and not self._arrivals.seen()

    def wait(self, start: Offset) -> None:
        """Begin a pause: there is nothing new after a start."""
        self._idle = start, monotonic() + self._access.options.min_poll_interval

    def refresh(self, some: Collection[str] | None = None) -> Mapping[str, StreamView]:
        """Ask for the state of all streams, or of some, and keep that of the others."""
        if some is None:
            self._ask_all_at = monotonic() + self._access.options.min_poll_interval
        views = self._access.snapshot(some) if some is None or some else {}
        if some is not None:
            kept = {key: view for key, view in self.views.items() if view.name not in some}
            views = dict(sorted((kept | views).items()))
        self._memory.update(self.views, views, self._access.link)
        self.views = views
        return views

    def refresh_changed(self, is_done: Callable[[str, StreamView], bool]) -> None:
        """
        Ask for the state of the streams, and notice messages from now on.

        Of the streams of a list, those that are done are not asked before ``minPollInterval`` is over, unless a message
        has arrived.
        """
        # Subscribed before the streams are asked, so that every later message is noticed.
        views = self.views or self.refresh()
        some = self._changed(is_done)
        self._access.retry_transient(
            lambda: self._arrivals.watch(
                self._access.connection, views.values(), self._access.options
            ),
            "subscribing to the subjects",
        )
        self.refresh(some)

    def _changed(self, is_done: Callable[[str, StreamView], bool]) -> set[str] | None:
        """Return which streams must be asked now; ``None``: all."""
        names = self._access.options.stream
        if len(names) < 2 or not self._arrivals.is_active:
            return None
        seen = self._arrivals.seen()
        is_due = monotonic() >= self._ask_all_at or self._access.link != self._memory.link
        if not seen or is_due:
            return None
        return {*names} - {
            view.name
            for key, view in self.views.items()
            if is_done(key, view) and not any(map(view.may_store, seen))
        }


class QueryPlanner:
    """Plans and commits the batches of one query; for one thread."""

    def __init__(self, options: ReadOptions) -> None:
        self._access = SourceAccess(options)
        self._memory = StreamMemory(self._access.stored_at)
        self._states = StreamStates(self._access, self._memory)
        self._handler = CommitHandler(self._access)
        self._loss_policy = DataLossPolicy(options.fail_on_data_loss)
        self._admission = Admission(options)
        self._report = ProgressReport(self._access)
        self._initial: Offset | None = None
        #: The name of a new query; a restarted one has the name in its checkpoint.
        self._name = uuid4().hex

    @property
    def options(self) -> ReadOptions:
        """The options of the query."""
        return self._access.options

    # --- called by Spark ------------------------------------------------------------------------

    def initial(self) -> Offset:
        """Return the start offset of a new query; repeated calls return the same one."""
        if self._initial is None:
            views = self._states.refresh()
            self._access.selection.check_all_exist(views)
            self._access.check_filters(views)
            starts = {key: self._first_offset(key, view) for key, view in views.items()}
            self._initial = Offset(starts, self._name)
        return self._initial

    def prepare_available_now(self) -> None:
        """Fix the current end of the streams as the end of the query; raises like `initial()`."""
        self._admission.end_views = self._states.refresh()

    def latest(self, start: Offset, *, unlimited: bool) -> Offset:
        """
        Return the end of the next batch, after releasing the messages before its start.

        If there is nothing new, it is the start itself.
        """
        if self._states.is_idle(start):
            return start
        self._states.refresh_changed(partial(self._is_done, start))
        now = self._compare(self._selected(start))  # which may read the states again
        # Before the first commit the checkpoint is empty, so any owner of a queue is another query.
        starts = {key: position.next_seq for key, position in start.positions.items()}
        claimed = self._handler.claim(
            start, self._states.views, starts, is_new=start == self._initial
        )
        positions = self._resume(start, now)
        self._commit(claimed, now)
        parts = {key: self._part(key, position) for key, position in positions.items()}
        shares = self._admission.shares(parts, monotonic(), unlimited=unlimited)
        name = start.query or self._name
        end = start
        if has_batch(start, parts, shares):
            positions = next_batches(start, parts, shares, self.options)
            for key, part in parts.items():
                self._memory.of(key, part.view).verified_end = part.view.end
            end = self._memory.planned_end = Offset(positions, name)
        elif self._admission.may_wait:
            self._states.wait(start)
        self._report.take(parts, shares, positions)
        self._report.store(name)
        return end

    def partitions(self, start: Offset, end: Offset) -> list[SequenceRange]:
        """Return the ranges that the tasks of a batch read; the same end gives the same ranges."""
        views = self._states.views or self._states.refresh()
        # The end is in the checkpoint by now, with the name of the query.
        batches = {key: item for key, item in end.positions.items() if item.partition_bounds()}
        self._handler.claim(end, views, {key: item.start_seq for key, item in batches.items()})
        if start == end:
            return []
        planned: list[SequenceRange] = []
        for key, point in self._compare(batches).items():
            if point.change in OTHER_MESSAGES:
                # A repeated batch must not have other rows than the first time.
                self._loss_policy.next_seq(point)
                continue
            position = batches[key]
            if end != self._memory.planned_end:
                # A sink may have stored rows of this batch before the query was started again.
                position = replace(position, from_earliest=False)
            planned += partition_ranges(position, self._states.views[key].name)
        return planned

    def commit(self, end: Offset) -> None:
        """Release the messages before an offset that Spark has committed."""
        handler, views = self._handler, self._states.views
        if all(handler.is_committed(key, at, views.get(key)) for key, at in end.positions.items()):
            return
        # The batch may have taken long, and the messages of a stream that was created again are unread.
        views = self._states.refresh()
        claimed = handler.claim(end, views)
        self._commit(claimed, self._memory.compare(end.positions, views))

    @property
    def progress(self) -> SourceReport | None:
        """The state of each stream and the backlog, see `ProgressReport`."""
        return self._report.progress

    def close(self) -> None:
        """Close the connection of this process."""
        self._access.close()

    # --- comparison and commit ------------------------------------------------------------------

    def _is_done(self, start: Offset, key: str, view: StreamView) -> bool:
        """Return whether the messages up to the last known end of a stream were read and released."""
        position = start.positions.get(key)
        if position is None or not self._handler.is_committed(key, position, view):
            return False
        return max(position.next_seq, self._memory.of(key, view).searched_seq) >= view.end_seq

    def _selected(self, offset: Offset) -> dict[str, StreamOffset]:
        """Return the positions in the streams that the options select."""
        selection, positions = self._access.selection, offset.positions
        selected = {
            key: position
            for key, position in positions.items()
            if selection.selects(key.rpartition("/")[2])
        }
        if positions and not selected:
            raise errors.InvalidOptionError(
                selection.option,
                selection.text,
                f"selects no stream of the checkpoint ({', '.join(sorted(positions))}):"
                " start a new checkpoint",
            )
        return selected

    def _compare(self, positions: Mapping[str, StreamOffset]) -> dict[str, ResumePoint]:
        """Compare positions with the streams, whose state is read again while one seems too short."""
        for attempt in range(1, _STATE_CHECKS + 1):
            found = self._memory.compare(positions, self._states.views)
            is_short = any(item.change is Change.SHORTENED for item in found.values())
            if not is_short or attempt == _STATE_CHECKS:
                break
            log.warning("a stream ends before the offset; reading its state again (%d)", attempt)
            sleep(_STATE_CHECK_DELAY_S)
            self._states.refresh()
        return found

    def _commit(self, claimed: Iterable[Claim], now: Mapping[str, ResumePoint]) -> None:
        """Release the messages before claimed positions, where the streams still have them."""
        # In a stream that was restored, unread messages have these sequences.
        self._handler.commit(
            claim
            for claim in claimed
            if now[claim.key].change not in OTHER_MESSAGES
            and self._memory.restarted.get(claim.key) != claim.position
        )

    def _prepare(
        self, key: str, view: StreamView, position: StreamOffset | None = None
    ) -> tuple[str, ...]:
        """Prepare a stream once for reads and commits, and return its filters."""
        known = self._memory.of(key, view)
        if known.filters is None:
            subjects = self.options.subjects
            if view.is_work_queue:
                _check_filters(view, subjects, position)
            filters = self._handler.prepare(view, subjects)
            _check_filters(view, filters, position)
            known.filters = filters
        return known.filters

    # --- where to start and to continue ---------------------------------------------------------

    def _first_offset(self, key: str, view: StreamView) -> StreamOffset:
        """Return the offset where a new query starts in a stream."""
        filters = self._prepare(key, view)
        if view.removes_when_consumed:
            self._check_start(view)
            return self._head_offset(view, filters)
        start = self._access.start(view, LATEST)
        position = empty_batch(view, start, filters)
        next_seq = self._loss_policy.next_seq(find_resume_point(position, view, key))
        is_earliest = self._access.is_earliest(view, LATEST)
        position = empty_batch(view, next_seq, filters, from_earliest=is_earliest)
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
            return empty_batch(view, view.end_seq, position.filters, since_ns=since_ns)
        first = self._access.first_seq_since(view, since_ns)
        return empty_batch(view, first, position.filters) if first > position.next_seq else position

    def _head_offset(self, view: StreamView, filters: tuple[str, ...]) -> StreamOffset:
        """Return the offset of the first unprocessed message of a stream."""
        first = self._handler.first_unprocessed(view)
        return empty_batch(view, first, filters, from_earliest=not view.removes_when_consumed)

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

    def _resume(self, start: Offset, now: Mapping[str, ResumePoint]) -> dict[str, StreamOffset]:
        """Return the start of the next batch in each stream that exists."""
        positions: dict[str, StreamOffset] = {}
        views = self._states.views
        for key, point in now.items():
            last, next_seq = start.positions[key], self._loss_policy.next_seq(point)
            if next_seq < last.next_seq:
                self._memory.restarted[key] = last
            view = views.get(key)
            if view is not None:
                filters = self._prepare(key, view, last)
                empty = empty_batch(view, next_seq, filters, from_earliest=last.is_unread)
                positions[key] = self._skip_older(view, empty, last.since_ns)
        for key, view in views.items():
            if key not in positions:
                head = self._head_offset(view, self._prepare(key, view))
                positions[key] = self._skip_older(view, head, self._since_ns(view))
        return positions

    def _part(self, key: str, start: StreamOffset) -> StreamPart:
        """Return the messages that the next batch may have of a stream."""
        view = self._states.views[key]
        end_seq = self._admission.end_seq(key, view)
        counts = self._access.counts(view, start.filters)
        if start.filters and start.next_seq < end_seq:
            # The position moves on while nothing matches: what leaves the stream then is no data loss.
            first = self._access.first_match(view, start.filters, start.next_seq)
            seq = end_seq if first is None else min(first, end_seq)
            is_first = start.from_earliest and first is not None
            start = replace(
                start, start_seq=seq, next_seq=seq, last_ns=None, from_earliest=is_first
            )
            known = self._memory.of(key, view)
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
