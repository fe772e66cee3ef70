"""
Write the rows of partitions with the delivery mode of the options, to a stream checked on the driver.

Tasks use only those properties of the stream that do not affect correctness if they change: its subjects,
and whether it allows rollups.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import chain
from operator import attrgetter
from typing import Final

from ... import errors
from ...api.enums import RetentionPolicy
from ...api.stream import StreamConfig
from ...jetstream.buckets.entries import BucketSubjects
from ...jetstream.context import JetStream
from ...net.clock import Deadline
from ...subjects import API_PREFIX, is_reserved, subject_matches, subjects_overlap
from ..connections import api_requests, connected
from ..option_values import Delivery, RowIds, ShortWindow
from ..options import WriteOptions
from ..retry import retry_transient, task_context
from ..sink_errors import SinkError, stream_replaced
from ..streams import stream_view
from .checkpoints import CheckpointStore
from .message_ids import ContentIds, MessageIds, WriteTaskId
from .publishing import CHUNK_ROWS, AckWindow, WriteStats
from .rows import BATCH_ROWS, BucketRowEncoder, Columns, EncodedRows, RowEncoder, RowLayout
from .transactions import RowBatches, TransactionWriter

log: logging.Logger = logging.getLogger("jetstream_sync.spark")

#: Columns that are not possible in an atomic batch (ADR-50).
_NOT_IN_BATCHES: Final = ("expected_last_sequence", "expected_last_msg_id")
#: Warnings that this process has already logged.
_warned: set[str] = set()


@dataclass(frozen=True, kw_only=True)
class WriteTarget:
    """The checked stream; it contains no secrets."""

    subjects: tuple[str, ...]
    """The subjects of the stream, with wildcards."""

    allows_rollup: bool
    """Whether a message may replace earlier ones on its subject (``allow_rollup_hdrs``)."""

    end_seq: int
    """The sequence of the next message at the time of the check."""

    created_ns: int
    """When the stream was created, in nanoseconds since 1970."""

    max_msg_size: int | None = None
    """Maximum bytes of a message with its headers; ``None``: the limit of the server."""

    denies_purge: bool = False
    """Whether the stream denies purges."""

    key_prefix: str = ""
    """The prefix of the subjects of the keys of a bucket; empty: the stream is not used as a bucket."""

    def accepts(self, subject: str) -> bool:
        """Return whether the stream stores messages of a subject."""
        if self.key_prefix:
            # With a domain or an API prefix, the server maps the subjects.
            return subject.startswith(self.key_prefix)
        return any(subject_matches(item, subject) for item in self.subjects)


def check_target(
    js: JetStream, options: WriteOptions, layout: RowLayout, *, warns: bool = True
) -> WriteTarget:
    """
    Check that a stream can store rows in the way that the options require.

    A duplicate window that is too short for ``delivery=window`` is logged once per process, or is an error,
    depending on ``onShortWindow``. Raises `SinkError` for a stream that does not exist or cannot store the rows.
    """
    name = options.stream
    what = f"stream {name!r}" if options.bucket is None else f"bucket {options.bucket!r}"
    try:
        info = js.get_stream(name).cached_info
    except errors.StreamNotFoundError as error:
        raise SinkError(f"{what} does not exist: create it first") from error
    config = info.config
    target = WriteTarget(
        subjects=tuple(config.subjects or ()),
        allows_rollup=bool(config.allow_rollup_hdrs),
        end_seq=max(info.state.last_seq + 1, info.state.first_seq),
        created_ns=stream_view(info).created_ns,
        max_msg_size=config.max_msg_size if (config.max_msg_size or 0) > 0 else None,
        denies_purge=bool(config.deny_purge),
        key_prefix=_key_prefix(js, options, config),
    )
    for problem in _problems(what, target, options, config, layout):
        raise SinkError(problem)
    if options.delivery == Delivery.WINDOW:
        _check_window(options, config, warns=warns)
    return target


def _problems(
    what: str, target: WriteTarget, options: WriteOptions, config: StreamConfig, layout: RowLayout
) -> Iterator[str]:
    """Yield the reasons why a stream cannot store rows."""
    if config.mirror is not None:
        yield f"{what} is a mirror, which does not store published messages"
    if config.sealed:
        yield f"{what} is sealed and does not store new messages"
    if config.no_ack:
        yield f"{what} has no_ack set, so it does not confirm that rows are stored"
    if options.subject is not None and not target.accepts(options.subject):
        yield f"subject {options.subject!r} does not match the subjects of {what}"
    for subject in filter(None, (options.subject, options.marker_subject)):
        if is_reserved(subject, options.connection.api_prefix):
            yield f"subject {subject!r} calls a server API or is an inbox: use another one"
    if options.subject is None and "subject" not in layout.names:
        yield "the subject is missing: add a column 'subject' or set the option 'subject'"
    if "ttl" in layout.names and not config.allow_msg_ttl:
        yield f"the column 'ttl' needs allow_msg_ttl, which {what} does not set"
    if options.delivery == Delivery.TRANSACTION:
        yield from _transaction_problems(what, target, options, config, layout)


def _transaction_problems(
    what: str, target: WriteTarget, options: WriteOptions, config: StreamConfig, layout: RowLayout
) -> Iterator[str]:
    """Yield the reasons why a stream cannot store rows in transactions, with their checkpoints."""
    subject = options.marker_subject
    if not target.accepts(f"{subject}.query.0"):
        yield (
            f"delivery=transaction stores its checkpoints on {subject}.*.*, which does not match "
            f"the subjects of {what}: add it to them"
        )
    transform = config.subject_transform
    if transform is not None and subjects_overlap(transform.src or ">", f"{subject}.>"):
        yield (
            f"{what} changes the subjects {transform.src or '>'} (subject_transform), so the checkpoints "
            f"on {subject}.*.* would not be found again: use another markerSubject, or delivery=window"
        )
    if config.retention == RetentionPolicy.INTEREST:
        yield (
            f"{what} has interest retention and would lose the checkpoints of "
            "delivery=transaction: use delivery=window"
        )
    if options.ids == RowIds.CONTENT and config.retention == RetentionPolicy.WORK_QUEUE:
        yield (
            f"{what} is a work queue, in which stored rows cannot be found again: "
            "use delivery=transaction with ids=position, or delivery=window"
        )
    if not config.allow_atomic:
        yield (
            f"delivery=transaction needs allow_atomic, which {what} does not set "
            "(nats-server 2.12 or newer)"
        )
    for column in _NOT_IN_BATCHES:
        if column in layout.names:
            yield f"the column {column!r} is not possible in an atomic batch"


def _key_prefix(js: JetStream, options: WriteOptions, config: StreamConfig) -> str:
    if options.bucket is None:
        return ""
    prefix = api_requests(js).routes.prefix
    return BucketSubjects.of(config, None if prefix == API_PREFIX else prefix).write


def _check_window(options: WriteOptions, config: StreamConfig, *, warns: bool) -> None:
    window = config.duplicate_window
    seconds = window.total_seconds() if window is not None else 0.0
    if seconds >= options.expected_recovery:
        return
    text = (
        f"the duplicate_window of stream {options.stream!r} is {seconds:g} s, shorter than "
        f"expectedRecovery={options.expected_recovery:g} s: rows that are repeated after a longer outage "
        "are stored twice. Extend the window, or use delivery=transaction"
    )
    if options.on_short_window == ShortWindow.ERROR:
        raise SinkError(text)
    if warns and text not in _warned:
        _warned.add(text)
        log.warning(text)


@dataclass(frozen=True, kw_only=True)
class Written:
    """The result of writing the rows of a partition."""

    partition: int
    """The partition number."""

    rows: int = 0
    """The number of rows, all of which are stored."""

    duplicates: int = 0
    """How many of them were stored before, by an earlier attempt or by a resend in this one."""

    bytes: int = 0
    """The size of their payloads, in bytes."""

    first_seq: int | None = None
    """The lowest sequence of a row; ``None``: there are no rows, or it is unknown."""

    last_seq: int | None = None
    """The highest sequence of a row; ``None`` as for `first_seq`."""


@dataclass(frozen=True, kw_only=True)
class WritePlan:
    """
    How to write the rows of all partitions; created once on the driver.

    It can be pickled, and shows no secrets.
    """

    options: WriteOptions
    """The write options."""

    layout: RowLayout
    """The columns of the rows."""

    target: WriteTarget
    """The checked stream."""

    @classmethod
    def checked(cls, options: WriteOptions, layout: RowLayout, *, warns: bool = True) -> WritePlan:
        """Return the plan after checking the stream, see `check_target`; transient errors are retried."""
        deadline = Deadline(options.ack_timeout)
        js = connected(options.connection, deadline)
        check = partial(check_target, js, options, layout, warns=warns)
        target = retry_transient(check, deadline, "checking the stream")
        return cls(options=options, layout=layout, target=target)

    def write(self, task_id: WriteTaskId, groups: Iterable[Iterable[Columns]]) -> Written:
        """Write the rows of a partition, given in groups; on return the stream has stored all of them."""
        js, deadline = self._connected()
        encoder = self._encoder(task_id.partition)
        rows = self._rows(encoder, groups)
        if self.options.delivery == Delivery.TRANSACTION:
            stats = self._in_transactions(js, encoder, task_id, rows, deadline)
        else:
            stats = self._published(js, encoder, task_id, rows)
        return Written(partition=task_id.partition, bytes=encoder.data_bytes, **asdict(stats))

    def _encoder(self, partition: int) -> RowEncoder:
        options, target = self.options, self.target
        if options.bucket is not None:
            return BucketRowEncoder(partition, options.stream, target.key_prefix)
        api_prefix = options.connection.api_prefix
        subject, patterns = options.subject, target.subjects
        return RowEncoder(partition, options.stream, subject, patterns, api_prefix)

    def _rows(
        self, encoder: RowEncoder, groups: Iterable[Iterable[Columns]]
    ) -> Iterator[EncodedRows]:
        """Yield encoded rows in chunks that are sent together."""
        in_batches = self.options.delivery == Delivery.TRANSACTION
        most = BATCH_ROWS if in_batches else min(CHUNK_ROWS, self.options.max_pending)
        return chain.from_iterable(encoder.encode(group, most) for group in groups)

    def _ids(self, task_id: WriteTaskId) -> MessageIds:
        """Return what assigns message ids to rows; with a new ``queryId``, they keep the name of the query."""
        options = self.options
        by_content = options.delivery != Delivery.AT_LEAST_ONCE and options.ids == RowIds.CONTENT
        return ContentIds(task_id).of if by_content else attrgetter("ids")

    # --- delivery modes -------------------------------------------------------------------------

    def _published(
        self, js: JetStream, encoder: RowEncoder, task_id: WriteTaskId, rows: Iterable[EncodedRows]
    ) -> WriteStats:
        options, ids = self.options, self._ids(task_id)
        individually = any(name.startswith("expected_") for name in self.layout.names)
        window = AckWindow(
            api_requests(js).core,
            encoder,
            options.max_pending,
            options.ack_timeout,
            self.target.accepts,
            keeps_order=options.bucket is not None,
        )
        with closing(window):
            for chunk in rows:
                window.send(replace(chunk, ids=ids(chunk)), individually=individually)
            window.finish()
        return window.stats

    def _in_transactions(
        self,
        js: JetStream,
        encoder: RowEncoder,
        task_id: WriteTaskId,
        rows: Iterable[EncodedRows],
        deadline: Deadline,
    ) -> WriteStats:
        core, limit = api_requests(js).core, self.target.max_msg_size
        with closing(RowBatches(core, encoder, limit)) as batches:
            checkpoints, ids = self._checkpoints(js, task_id), self._ids(task_id)
            writer = TransactionWriter(batches, checkpoints, task_id, self.options, ids)
            writer.read_stored(deadline)
            writer.write(rows)
        return writer.stats

    def confirm(self, written: Sequence[Written]) -> None:
        """
        Check that the stream has the rows of some partitions, before they count as stored.

        A stream that was deleted and created again in the meantime has only the last rows. A stream that was purged
        still knows the ids of the purged rows, and does not store them again. Raises `SinkError` for both.
        """
        last_seq = max((item.last_seq or 0 for item in written), default=0)
        if not last_seq:
            return
        (js, deadline), name, target = self._connected(), self.options.stream, self.target
        read = partial(js.get_stream, name)
        info = retry_transient(read, deadline, "checking the stream").cached_info
        view = stream_view(info)
        if view.created_ns != target.created_ns or info.state.last_seq < last_seq:
            raise stream_replaced(name)
        repeated = [item.first_seq or 0 for item in written if item.duplicates]
        # A transaction begins with its checkpoint and, with ids by content, a list, which later ones may replace.
        is_transaction = self.options.delivery == Delivery.TRANSACTION
        notes = is_transaction + (is_transaction and self.options.ids == RowIds.CONTENT)
        if min(repeated, default=last_seq) + notes < view.first_seq and not view.removes_messages:
            raise SinkError(
                f"rows count as duplicates, because stream {name!r} has stored their ids, but it was purged since then:"
                " write them after its duplicate_window is over, or with other ids (another jobId)"
            )

    def end_batch(self, task_id: WriteTaskId) -> None:
        """Record that all partitions of a micro-batch are written, if the delivery mode needs it; for the driver."""
        if self.options.delivery == Delivery.TRANSACTION:
            js, deadline = self._connected()
            self._checkpoints(js, task_id).end_batch(deadline)

    def purge(self, seq: int) -> int:
        """Remove the messages before a sequence, and return their number; for the driver."""
        js, deadline = self._connected()
        return retry_transient(
            lambda: js.get_stream(self.options.stream).purge(seq=seq),
            deadline,
            "purging earlier messages",
        )

    def _checkpoints(self, js: JetStream, task_id: WriteTaskId) -> CheckpointStore:
        roll_up = self.target.allows_rollup
        return CheckpointStore(js, self.options, task_id, roll_up=roll_up)

    def _connected(self) -> tuple[JetStream, Deadline]:
        """Return a JetStream context, and the limit for connecting and the next request, which starts now."""
        deadline = Deadline(self.options.ack_timeout)
        return connected(self.options.connection, deadline), deadline


def write_task_id(
    options: WriteOptions, partition: int | None = None, *, run: str = ""
) -> WriteTaskId:
    """
    Return the id of a write task of a job, from the Spark task context, if any.

    In ``foreachBatch``, query and batch are part of it, as in a streaming write. Outside of queries it needs a ``jobId``
    or ``run``, the same text for all attempts of one run; otherwise it is another one for each call.
    """
    context = task_context()
    query = batch = None
    if context is not None:
        query = context.getLocalProperty("sql.streaming.queryId")
        batch = context.getLocalProperty("streaming.sql.batchId")
        partition = context.partitionId() if partition is None else partition
    names = []
    if query is not None and batch is not None:
        names.append(f"query {query}")
    if options.job_id is not None:
        names.append(f"job {options.job_id}")
    if not names:
        if options.delivery == Delivery.TRANSACTION and not run:
            raise SinkError("delivery=transaction needs the option jobId outside a streaming query")
        names.append(run or f"call {uuid.uuid4().hex}")
    return WriteTaskId(name=" ".join(names), batch=int(batch or 0), partition=partition or 0)
