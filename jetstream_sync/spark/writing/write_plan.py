"""
Write the rows of partitions with the delivery mode of the options, to a stream checked on the driver.

Tasks use only those properties of the stream that do not affect correctness if they change: its subjects,
and whether it allows rollups.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

from ... import errors
from ...api.enums import RetentionPolicy
from ...api.routes import DEFAULT_PREFIX
from ...api.stream import StreamConfig
from ...jetstream.buckets.entries import BucketSubjects
from ...jetstream.context import JetStream
from ...subjects import is_reserved, subject_matches, subjects_overlap
from ..connections import api_requests, jetstream
from ..options import WriteOptions
from ..retry import retry_transient
from ..streams import stream_view
from .checkpoints import CheckpointStore
from .message_ids import ColumnIds, ContentIds, WriteTaskId
from .publishing import CHUNK_ROWS, AckWindow, WriteStats
from .rows import BATCH_ROWS, BucketRowEncoder, Columns, EncodedRows, RowEncoder, RowLayout
from .sink_errors import SinkError, stream_replaced
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
    depending on ``onShortWindow``.
    """
    name = options.stream
    what = f"stream {name!r}" if options.bucket is None else f"bucket {options.bucket!r}"
    try:
        info = js.get_stream(name).cached_info
    except errors.StreamNotFoundError as error:
        raise SinkError(f"{what} does not exist: create it first") from error
    config = info.config
    if config.mirror is not None:
        raise SinkError(f"{what} is a mirror, which does not store published messages")
    if config.sealed:
        raise SinkError(f"stream {name!r} is sealed and does not store new messages")
    if config.no_ack:
        raise SinkError(
            f"stream {name!r} has no_ack set, so it does not confirm that rows are stored"
        )
    target = WriteTarget(
        subjects=tuple(config.subjects or ()),
        allows_rollup=bool(config.allow_rollup_hdrs),
        end_seq=max(info.state.last_seq + 1, info.state.first_seq),
        created_ns=stream_view(info).created_ns,
        max_msg_size=config.max_msg_size if (config.max_msg_size or 0) > 0 else None,
        key_prefix=_key_prefix(js, options, config),
    )
    if options.subject is not None and not target.accepts(options.subject):
        raise SinkError(
            f"subject {options.subject!r} does not match the subjects of stream {name!r}"
        )
    for subject in filter(None, (options.subject, options.marker_subject)):
        if is_reserved(subject, options.connection.api_prefix):
            raise SinkError(
                f"subject {subject!r} calls a server API or is an inbox: use another one"
            )
    if options.subject is None and "subject" not in layout.names:
        raise SinkError(
            "the subject is missing: add a column 'subject' or set the option 'subject'"
        )
    if "ttl" in layout.names and not config.allow_msg_ttl:
        raise SinkError(f"the column 'ttl' needs allow_msg_ttl, which stream {name!r} does not set")
    if options.delivery == "transaction":
        _check_checkpoints(target, options, config)
        _check_transactions(options, config, layout)
    if options.delivery == "window":
        _check_window(options, config, warns=warns)
    return target


def _key_prefix(js: JetStream, options: WriteOptions, config: StreamConfig) -> str:
    if options.bucket is None:
        return ""
    prefix = api_requests(js).routes.prefix
    return BucketSubjects.of(config, None if prefix == DEFAULT_PREFIX else prefix).write


def _check_checkpoints(target: WriteTarget, options: WriteOptions, config: StreamConfig) -> None:
    """Check that the stream stores and retains the write checkpoints."""
    name, subject = options.stream, options.marker_subject
    if subject is None:
        raise SinkError("delivery=transaction needs the option markerSubject")
    if not target.accepts(f"{subject}.query.0"):
        raise SinkError(
            f"delivery=transaction stores its checkpoints on {subject}.*.*, which does not match "
            f"the subjects of stream {name!r}: add it to them"
        )
    transform = config.subject_transform
    if transform is not None and subjects_overlap(transform.src or ">", f"{subject}.>"):
        raise SinkError(
            f"stream {name!r} changes the subjects {transform.src or '>'} (subject_transform), so the checkpoints "
            f"on {subject}.*.* would not be found again: use another markerSubject, or delivery=window"
        )
    if config.retention == RetentionPolicy.INTEREST:
        raise SinkError(
            f"stream {name!r} has interest retention and would lose the checkpoints of "
            "delivery=transaction: use delivery=window"
        )
    if options.ids == "content" and config.retention == RetentionPolicy.WORK_QUEUE:
        raise SinkError(
            f"stream {name!r} is a work queue, in which stored rows cannot be found again: "
            "use delivery=transaction with ids=position, or delivery=window"
        )


def _check_transactions(options: WriteOptions, config: StreamConfig, layout: RowLayout) -> None:
    name = options.stream
    if not config.allow_atomic:
        raise SinkError(
            f"delivery=transaction needs allow_atomic, which stream {name!r} does not set "
            "(nats-server 2.12 or newer)"
        )
    for column in _NOT_IN_BATCHES:
        if column in layout.names:
            raise SinkError(f"the column {column!r} is not possible in an atomic batch")


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
    if options.on_short_window == "error":
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
        js = _connected(options)
        check = partial(check_target, js, options, layout, warns=warns)
        target = retry_transient(check, options.ack_timeout, "checking the stream")
        return cls(options=options, layout=layout, target=target)

    def write(self, task_id: WriteTaskId, groups: Iterable[Iterable[Columns]]) -> Written:
        """Write the rows of a partition, given in groups; on return the stream has stored all of them."""
        options = self.options
        js = _connected(options)
        encoder: RowEncoder
        if options.bucket is None:
            encoder = RowEncoder(
                task_id.partition,
                options.stream,
                options.subject,
                self.target.subjects,
                options.connection.api_prefix,
            )
        else:
            prefix = self.target.key_prefix
            encoder = BucketRowEncoder(task_id.partition, options.stream, prefix)
        rows = self._rows(encoder, groups)
        if options.delivery == "transaction":
            stats = self._in_transactions(js, encoder, task_id, rows)
        else:
            stats = self._published(js, encoder, task_id, rows)
        return Written(
            partition=task_id.partition,
            rows=stats.rows,
            duplicates=stats.duplicates,
            bytes=encoder.data_bytes,
            first_seq=stats.first_seq,
            last_seq=stats.last_seq,
        )

    def _rows(
        self, encoder: RowEncoder, groups: Iterable[Iterable[Columns]]
    ) -> Iterator[EncodedRows]:
        """Yield encoded rows in chunks that are sent together."""
        in_batches = self.options.delivery == "transaction"
        most = BATCH_ROWS if in_batches else min(CHUNK_ROWS, self.options.max_pending)
        for group in groups:
            yield from encoder.encode(group, most)

    # --- delivery modes -------------------------------------------------------------------------

    def _published(
        self,
        js: JetStream,
        encoder: RowEncoder,
        task_id: WriteTaskId,
        parts: Iterable[EncodedRows],
    ) -> WriteStats:
        options = self.options
        ids = ColumnIds() if options.delivery == "at-least-once" else ContentIds(task_id)
        individually = any(name.startswith("expected_") for name in self.layout.names)
        window = AckWindow(
            api_requests(js).core,
            encoder,
            options.max_pending,
            options.ack_timeout,
            self.target.accepts,
            keeps_order=options.bucket is not None,
        )
        try:
            for part in parts:
                window.send(replace(part, ids=ids.of(part)), individually=individually)
            window.finish()
        finally:
            window.close()
        return window.stats

    def _in_transactions(
        self,
        js: JetStream,
        encoder: RowEncoder,
        task_id: WriteTaskId,
        parts: Iterable[EncodedRows],
    ) -> WriteStats:
        batches = RowBatches(api_requests(js).core, encoder, self.target.max_msg_size)
        try:
            # The ids keep the name of the query, so that the server detects rows under a new identity.
            ids = ColumnIds() if self.options.ids == "position" else ContentIds(task_id)
            checkpoints = self._checkpoints(js, task_id)
            writer = TransactionWriter(batches, checkpoints, task_id, self.options, ids)
            writer.write(parts)
        finally:
            batches.close()
        return writer.stats

    def confirm(self, written: Sequence[Written]) -> None:
        """
        Check that the stream has the rows of some partitions, before they count as stored.

        A stream that was deleted and created again in the meantime has the last ones only. A stream that was purged
        still knows the ids of the purged rows, and does not store them again.
        """
        last_seq = max((item.last_seq or 0 for item in written), default=0)
        if not last_seq:
            return
        name, target, options = self.options.stream, self.target, self.options
        read = partial(_connected(options).get_stream, name)
        info = retry_transient(read, options.ack_timeout, "checking the stream").cached_info
        view = stream_view(info)
        if view.created_ns != target.created_ns or info.state.last_seq < last_seq:
            raise stream_replaced(name)
        repeated = [item.first_seq or 0 for item in written if item.duplicates]
        if min(repeated, default=last_seq) < view.first_seq and not view.removes_messages:
            raise SinkError(
                f"rows count as duplicates, because stream {name!r} has stored their ids, but it was purged since then:"
                " write them after its duplicate_window is over, or with other ids (another jobId)"
            )

    def end_batch(self, task_id: WriteTaskId) -> None:
        """Record that all partitions of a micro-batch are written, if the delivery mode needs it; for the driver."""
        if self.options.delivery == "transaction":
            self._checkpoints(_connected(self.options), task_id).end_batch()

    def _checkpoints(self, js: JetStream, task_id: WriteTaskId) -> CheckpointStore:
        roll_up = self.target.allows_rollup
        return CheckpointStore(js, self.options, task_id, roll_up=roll_up)


def _connected(options: WriteOptions) -> JetStream:
    connect = partial(jetstream, options.connection)
    return retry_transient(connect, options.ack_timeout, "connecting")
