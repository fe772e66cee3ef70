"""
Read one sequence range of a stream: each message once and in order, or raise an error that says why not.

A range is complete when a message at or after its end was seen. It is also complete when there are no more
replies and the stream leader confirms that there are no more messages: another replica may lag behind, and a mirror
may reply that it has no message. This covers filters without a match at the end, and deleted or purged messages. If
the leader does not confirm it, or a mirror sends its messages, the leader is asked for each message from there on.

After a lost link, a server restart or the loss of the consumer, the read continues after the last yielded
message. Every direct get response is checked before it is yielded: the stream must be the one that the range
was planned for, and its first sequence must not have moved past missing messages.
"""

from __future__ import annotations

import logging
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import count
from typing import Final

from ... import errors
from ...api.stream import MsgGetRequest, StreamInfo
from ...jetstream.api_requests import APIRequests
from ...jetstream.context import JetStream
from ...jetstream.direct_get import leader_get
from ...net.clock import BackoffDelay, Deadline
from ..connections import ConnectionSettings, api_requests, connected, is_batching
from ..option_values import LossMode, ReadMode
from ..options import ReadOptions
from ..retry import is_transient, task_context
from ..streams import StreamView, stream_view
from .chunks import Chunk, FieldSelection, ReadTask
from .direct import DirectReader
from .pull import MIN_SKIPPED_PAYLOAD_BYTES, PullReader
from .ranges import (
    LOSS_ACTIONS,
    DirectGetRefusedError,
    LossAction,
    RangeLostError,
    RangeStalledError,
    SequenceRange,
    StreamRecreatedError,
)

log: logging.Logger = logging.getLogger("jetstream_sync.spark")

#: Ranges with more messages than this are read with a consumer.
_MIN_CONSUMER_ROWS: Final = 50_000
#: How often a stream that has become shorter is read again, in about three seconds, before its end counts as lost.
_END_CHECKS: Final = 6
_MIN_WAIT_S: Final = 0.05
_MAX_WAIT_S: Final = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadPlan:
    """The parameters of a read; it can be pickled, and contains no secrets."""

    mode: ReadMode = ReadMode.AUTO
    """``direct``, ``pull``, or ``auto``: see `choose_mode`."""
    batch_bytes: int = 4_000_000
    """Maximum size of a chunk in Arrow, in bytes, unless it has a single message."""
    fail_on_data_loss: LossMode = LossMode.TRUE
    """``true``, ``false`` or ``strict``."""
    timeout: float = 10.0
    """Maximum time to wait for a reply, in seconds."""
    retry_timeout: float = 60.0
    """How long transient errors are retried without progress, in seconds."""

    @classmethod
    def of(cls, options: ReadOptions) -> ReadPlan:
        """Return the plan for read options."""
        return cls(
            mode=options.read_mode,
            batch_bytes=options.batch_bytes,
            fail_on_data_loss=options.fail_on_data_loss,
            timeout=options.connection.timeout,
        )


def choose_mode(
    mode: ReadMode,
    view: StreamView,
    rows: int,
    filters: tuple[str, ...],
    fields: FieldSelection,
    *,
    server: str = "",
) -> ReadMode:
    """
    Return the read mode of a range: with direct gets, or with a pull consumer.

    Direct gets leave no state on the server, and are the only mode for a work queue. A consumer is faster
    after its creation, supports several filters, and can omit payloads that are not selected. It is also faster
    than direct gets from a server before 2.11, one for each message.

    Raises `DirectGetRefusedError` if direct gets are the mode, and the stream does not allow them.
    """
    if mode == ReadMode.AUTO:
        skips_payload = not fields.data and view.message_bytes >= MIN_SKIPPED_PAYLOAD_BYTES
        if view.is_work_queue:
            mode = ReadMode.DIRECT
        elif (
            not (view.allow_direct and is_batching(server))
            or rows > _MIN_CONSUMER_ROWS
            or len(filters) > 1
            or skips_payload
        ):
            mode = ReadMode.PULL
        else:
            mode = ReadMode.DIRECT
    if mode == ReadMode.DIRECT and not view.allow_direct:
        raise DirectGetRefusedError(view.name)
    return mode


def read_chunks(
    js: JetStream,
    range: SequenceRange,  # noqa: A002 - the name of the concept
    columns: frozenset[str],
    plan: ReadPlan,
    deadline: Deadline | None = None,
) -> Iterator[Chunk]:
    """
    Yield the messages of a range in sequence order, each once.

    A chunk is completely received before it is yielded. The caller may hold the iterator for any time: only
    one or two responses of limited size are outstanding, and the reader thread of the connection receives
    them. Closing the iterator early leaves no state behind. Transient errors are retried until the deadline, and for
    ``plan.retry_timeout`` after each progress.
    """
    if range.from_earliest and (context := task_context()) is not None and context.attemptNumber():
        # A sink may have stored rows of an earlier attempt, and knows them by their position.
        range = replace(range, from_earliest=False)  # noqa: A001
    deadline = deadline or Deadline(plan.retry_timeout)
    return _RangeReader(api_requests(js), range, columns, plan, deadline).chunks()


def read_partition(
    settings: ConnectionSettings,
    range: SequenceRange,  # noqa: A002 - the name of the concept
    columns: frozenset[str],
    plan: ReadPlan,
) -> Iterator[Chunk]:
    """Yield the same as `read_chunks`, on the connection of this process; one limit for connecting and the first read."""
    deadline = Deadline(plan.retry_timeout)
    yield from read_chunks(connected(settings, deadline), range, columns, plan, deadline)


class _RangeReader:
    """The state of reading one range; for one thread."""

    def __init__(
        self,
        api: APIRequests,
        range_: SequenceRange,
        columns: frozenset[str],
        plan: ReadPlan,
        deadline: Deadline,
    ) -> None:
        self._api = api
        self._range = range_
        self._plan = plan
        self._fields = FieldSelection.of(columns)
        self._next_seq = max(1, range_.start_seq)
        self._is_direct = False
        # Whether direct gets did not return what the stream holds: a mirror or a replica that lags behind replies.
        self._asks_leader = False
        # Whether the stream was checked since the reader started: a consumer ends with its stream.
        self._stream_checked = False
        # Whether a message was returned: what left the stream before that is not missing in a read from earliest,
        # which then begins at this sequence.
        self._has_rows = False
        self._begin_seq = 0
        self._loss_logged = False
        # How often the stream was shorter than when the range was planned.
        self._end_checks = 0
        self._deadline = deadline
        self._waits = BackoffDelay(_MIN_WAIT_S, _MAX_WAIT_S)

    def chunks(self) -> Iterator[Chunk]:
        """Yield the messages of the range, see `read_chunks`."""
        end_seq = self._range.end_seq
        while self._next_seq < end_seq:
            try:
                yield from self._read_responses()
                if self._next_seq >= end_seq or self._is_complete():
                    return
            except errors.Error as error:
                self._recover(error)
            else:
                reason = "the stream holds the message, but the server does not deliver it"
                self._recover(RangeStalledError(self._range.stream, self._next_seq, reason))

    def _read_responses(self) -> Iterator[Chunk]:
        """Yield chunks until there are no more replies, or the range is complete."""
        responses = self._make_reader(self._check_stream()).responses(self._next_seq)
        self._stream_checked = False
        try:
            for response in responses:
                received, begun_at = response.chunk, self._next_seq
                if self._begin_seq > self._next_seq:
                    begin = bisect_left(received.sequences, self._begin_seq)
                    received = received.slice(begin, len(received))
                for chunk in received.split_by_size(self._plan.batch_bytes):
                    self._has_rows = True
                    yield chunk
                    self._next_seq = chunk.sequences[-1] + 1
                self._next_seq = response.next_seq
                if self._next_seq > begun_at:
                    self._deadline = Deadline(self._plan.retry_timeout)
                    self._waits.reset()
        finally:
            responses.close()

    def _make_reader(self, view: StreamView) -> DirectReader | PullReader:
        fields, filters = self._fields, self._range.filters
        rows = self._range.end_seq - self._next_seq
        server = self._api.core.info.version
        mode = choose_mode(self._plan.mode, view, rows, filters, fields, server=server)
        self._is_direct = mode == ReadMode.DIRECT
        task = ReadTask(
            range=self._range,
            fields=fields,
            batch_bytes=self._plan.batch_bytes,
            message_bytes=view.message_bytes,
            silence_timeout=self._plan.timeout,
            validate_batch=self._validate_batch,
            server=server,
        )
        if not self._is_direct:
            return PullReader(self._api, task)
        return DirectReader(self._api, task, asks_leader=self._asks_leader)

    def _recover(self, error: errors.Error) -> None:
        """Wait before the next attempt after an error."""
        if self._is_direct and not self._asks_leader and isinstance(error, RangeStalledError):
            self._asks_leader = True
            return
        # As in `retry_transient`: then the next error says more than that it was late.
        wait = min(self._waits.next(), (self._deadline.left() or 0.0) / 2)
        if not is_transient(error) or self._deadline.expired() or self._api.core.wait_closed(wait):
            raise error
        log.info("reading %s continues at %d after: %s", self._range.stream, self._next_seq, error)

    # --- checks for completeness ----------------------------------------------------------------

    def _check_stream(self) -> StreamView:
        """Return the current state of the stream."""
        route = self._api.routes.to("STREAM.INFO", self._range.stream)
        deadline = self._deadline.sooner(self._plan.timeout)
        view = stream_view(self._api.ask_for(StreamInfo, route, deadline=deadline))
        planned_ns = self._range.created_ns
        if planned_ns and view.created_ns != planned_ns:
            raise StreamRecreatedError(self._range.stream, planned_ns, view.created_ns)
        self._stream_checked = True
        return view

    def _validate_batch(self, start_seq: int, next_seq: int, sequences: Sequence[int]) -> None:
        """Check that a response is from the right stream, and no messages were lost before it."""
        is_contiguous = len(sequences) == next_seq - start_seq
        if self._is_direct or not (self._stream_checked and is_contiguous):
            view = self._check_stream()
            if not is_contiguous:
                up_to = min(next_seq, self._range.end_seq)
                self._check_head(view, start_seq, sequences, up_to)

    def _is_complete(self) -> bool:
        """Return whether the stream leader has no more messages of the range."""
        api, deadline = self._api, self._deadline.sooner(self._plan.timeout)
        for subject in self._range.filters or (">",):
            request = MsgGetRequest(self._next_seq, next_by_subj=subject)
            try:
                found = leader_get(api, self._range.stream, request, deadline)
            except errors.MessageNotFoundError:
                continue
            if found.seq < self._range.end_seq:
                return False
        view, end_seq = self._check_stream(), self._range.end_seq
        if self._range.created_ns and view.end_seq < end_seq:
            # The range was planned in a longer stream: its server has an older copy, or the leader lags behind.
            if self._end_checks < _END_CHECKS:
                self._end_checks += 1
                return False
            lost = RangeLostError(self._range.stream, max(self._next_seq, view.end_seq), end_seq)
            self._report(lost, expected=False)
        self._check_head(view, self._next_seq, (), end_seq)
        return True

    def _check_head(
        self, view: StreamView, start_seq: int, sequences: Sequence[int], up_to: int
    ) -> None:
        """Check that no message missing from `sequences` was removed from the head of the stream."""
        end_seq = min(view.first_seq, up_to)
        if end_seq <= start_seq:
            return
        missing = _first_missing(start_seq, sequences)
        if missing >= end_seq:
            return
        expected_loss = view.removes_unread(self._range.filters)
        if self._range.from_earliest and not self._has_rows and not expected_loss:
            # Messages received from before `end_seq` are followed by a gap, so that the read begins after them.
            expected_loss, self._begin_seq = True, end_seq
        self._report(RangeLostError(self._range.stream, missing, end_seq), expected=expected_loss)

    def _report(self, lost: RangeLostError, *, expected: bool) -> None:
        """Raise or log that messages are lost, see `LOSS_ACTIONS`."""
        action = LOSS_ACTIONS[self._plan.fail_on_data_loss, expected]
        if action is LossAction.RAISE:
            raise lost
        if not self._loss_logged:
            self._loss_logged = True
            log.log(logging.DEBUG if action is LossAction.IGNORE else logging.WARNING, "%s", lost)


def _first_missing(start_seq: int, sequences: Sequence[int]) -> int:
    """Return the first sequence from a start on that is missing in a rising list."""
    pairs = zip(count(start_seq), sequences, strict=False)
    return next((due for due, seq in pairs if due != seq), start_seq + len(sequences))
