"""
The stream that is written to: what is checked of it, once, on the driver.

A task learns from it only what can not change what it does: which subjects the stream takes, and whether
it lets a message replace those before it.

Write the rows of one partition, in the way that the options ask for.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Final

from ...api.enums import RetentionPolicy
from ...api.stream import StreamConfig
from ...errors import StreamNotFoundError
from ...jetstream.connection import Connection
from ...jetstream.context import JetStream
from ...subjects import subject_matches
from ..connections import api_requests, connection
from ..options import WriteOptions
from ..retry import retry_transient
from .checkpoints import CheckpointStore, ScanRecovery, StoredIds
from .message_ids import ColumnIds, ContentIds, MessageIds, PositionIds, WriteTaskId
from .publishing import CHUNK_BYTES, CHUNK_ROWS, AckWindow, WriteStats
from .rows import EncodedRows, RowColumns, RowEncoder, RowLayout
from .transactions import BATCH_ROWS, AtomicBatchSender, TransactionWriter
from .write_errors import SinkError

__all__ = ["WritePlan", "WriteTarget", "Written", "check_target"]

log = logging.getLogger("jetstream_sync.spark")

#: Columns that an atomic batch can not have (ADR-50).
_NOT_IN_BATCHES: Final = ("expected_last_sequence", "expected_last_msg_id")
#: What was said once in this process.
_warned: set[str] = set()


@dataclass(frozen=True, kw_only=True)
class WriteTarget:
    """A stream that was checked; it has no secrets."""

    subjects: tuple[str, ...]
    """The subjects that it takes, with wildcards."""

    allows_rollup: bool
    """Whether a message may replace those before it on its subject (``allow_rollup_hdrs``)."""

    end_seq: int
    """The sequence that its next message was going to have."""

    def accepts(self, subject: str) -> bool:
        """Say whether it takes messages of a subject."""
        return any(subject_matches(each, subject) for each in self.subjects)


def check_target(
    js: JetStream, options: WriteOptions, layout: RowLayout, *, warns: bool = True
) -> WriteTarget:
    """
    Look whether a stream can take rows in the way that the options say.

    A duplicate window that is too short for ``delivery=window`` is logged, once in a process, or
    is an error, as ``onShortWindow`` says.

    Args:
        js: where the stream is.
        options: what the user wants.
        layout: the columns of the rows.
        warns: whether to log what is no error; once is enough.

    Raises:
        SinkError: it can not; the message says which setting is in the way.
        Error: as `JetStream.get_stream`.

    """
    name = options.stream
    try:
        info = js.get_stream(name).cached_info
    except StreamNotFoundError as error:
        raise SinkError(f"there is no stream {name!r}; make it before it is written to") from error
    config = info.config
    if config.mirror is not None:
        raise SinkError(f"stream {name!r} is a mirror, which takes no messages")
    if config.sealed:
        raise SinkError(f"stream {name!r} is sealed and takes no messages")
    if config.no_ack:
        raise SinkError(f"stream {name!r} acknowledges nothing (its no_ack), so nothing is certain")
    target = WriteTarget(
        subjects=tuple(config.subjects or ()),
        allows_rollup=bool(config.allow_rollup_hdrs),
        end_seq=max(info.state.last_seq + 1, info.state.first_seq),
    )
    if options.subject is not None and not target.accepts(options.subject):
        raise SinkError(f"stream {name!r} does not take the subject {options.subject!r}")
    if options.subject is None and "subject" not in layout.names:
        raise SinkError("there is neither a column nor an option 'subject'")
    if "ttl" in layout.names and not config.allow_msg_ttl:
        raise SinkError(f"there is a column 'ttl', and stream {name!r} has no allow_msg_ttl")
    if options.delivery in {"transaction", "scan"}:
        _check_marked(target, options, config)
    if options.delivery == "transaction":
        _check_transactions(options, config, layout)
    if options.delivery == "window":
        _check_window(options, config, warns=warns)
    return target


def _check_marked(target: WriteTarget, options: WriteOptions, config: StreamConfig) -> None:
    """Check that the stream takes and keeps the notes of how far the sink has come."""
    name, subject = options.stream, options.marker_subject
    if subject is None:
        raise SinkError(f"delivery={options.delivery} needs the option markerSubject")
    if not target.accepts(f"{subject}.query.0"):
        raise SinkError(
            f"stream {name!r} does not take {subject}.*.*, where delivery={options.delivery} notes "
            f"how far it has come; add that to its subjects"
        )
    if config.retention == RetentionPolicy.INTEREST:
        raise SinkError(
            f"stream {name!r} keeps a message only while somebody wants it, so the notes of "
            f"delivery={options.delivery} would be gone; use delivery=window"
        )
    reads_back = options.delivery == "scan" or options.ids == "content"
    if reads_back and config.retention == RetentionPolicy.WORK_QUEUE:
        raise SinkError(
            f"stream {name!r} lets go of what was worked on, so that nobody can see which rows it had; "
            "use delivery=transaction with ids=position, or delivery=window"
        )


def _check_transactions(options: WriteOptions, config: StreamConfig, layout: RowLayout) -> None:
    name = options.stream
    if not config.allow_atomic:
        raise SinkError(
            f"stream {name!r} takes no atomic batches: delivery=transaction needs its allow_atomic "
            "(nats-server 2.12)"
        )
    for column in _NOT_IN_BATCHES:
        if column in layout.names:
            raise SinkError(f"an atomic batch has no place for the column {column!r}")


def _check_window(options: WriteOptions, config: StreamConfig, *, warns: bool) -> None:
    window = config.duplicate_window
    seconds = window.total_seconds() if window is not None else 0.0
    if seconds >= options.expected_recovery:
        return
    text = (
        f"stream {options.stream!r} knows message ids for {seconds:g} s (its duplicate_window), and "
        f"expectedRecovery is {options.expected_recovery:g} s: what is written again after a longer "
        "outage will be there twice. Make the window longer, or use delivery=transaction or scan"
    )
    if options.on_short_window == "error":
        raise SinkError(text)
    if warns and text not in _warned:
        _warned.add(text)
        log.warning(text)


@dataclass(frozen=True, kw_only=True)
class Written:
    """What was done with the rows of a partition."""

    partition: int
    """Its number."""

    rows: int
    """How many rows it has; all are stored."""

    duplicates: int
    """How many of them the stream had already, from an earlier attempt or a resend within this one."""

    bytes: int
    """The bytes of their payloads."""

    first_seq: int | None
    """The lowest sequence under which one is stored; ``None``: there are none, or it is not known."""

    last_seq: int | None
    """The highest one."""

    @classmethod
    def nothing(cls, partition: int) -> Written:
        """Return what was done where there was nothing to do."""
        return cls(
            partition=partition, rows=0, duplicates=0, bytes=0, first_seq=None, last_seq=None
        )


@dataclass(frozen=True, kw_only=True)
class WritePlan:
    """
    How rows are written; the same for all partitions, and made once, on the driver.

    It can be pickled; what it shows has no secrets.
    """

    options: WriteOptions
    """What the user wants."""

    layout: RowLayout
    """The columns of the rows."""

    target: WriteTarget
    """What is known of the stream."""

    def write(self, task_id: WriteTaskId, columns: Iterable[RowColumns]) -> Written:
        """
        Write the rows of a partition; on return the stream has every one.

        Args:
            task_id: the query or job, batch and partition.
            columns: the rows, in parts.

        Raises:
            SinkError: the stream does not take them; with `RowError` a row is the reason.
            TimeoutError: the server did not answer in time. Some rows are stored.
            Error: there is no connection, or it broke for good.

        """
        options = self.options
        connected = retry_transient(
            partial(connection, options.connection), options.ack_timeout, "connecting"
        )
        encoder = RowEncoder(task_id.partition, options.stream, options.subject)
        size = _Size()
        rows = self._rows(encoder, columns, size)
        if options.delivery == "transaction":
            stats = self._in_transactions(connected, encoder, task_id, rows)
        else:
            stats = self._published(connected, encoder, task_id, rows)
        return Written(
            partition=task_id.partition,
            rows=stats.rows,
            duplicates=stats.duplicates,
            bytes=size.bytes,
            first_seq=stats.first_seq,
            last_seq=stats.last_seq,
        )

    def _rows(
        self, encoder: RowEncoder, columns: Iterable[RowColumns], size: _Size
    ) -> Iterator[EncodedRows]:
        """Yield rows in parts that are sent in one piece."""
        in_batches = self.options.delivery == "transaction"
        most = BATCH_ROWS if in_batches else min(CHUNK_ROWS, self.options.max_pending)
        first = 0
        for some in columns:
            if not some.count:
                continue
            average = some.data_size() // some.count + 1
            step = max(1, min(most, CHUNK_BYTES // average))
            for start in range(0, some.count, step):
                rows = encoder.rows(some, start, min(start + step, some.count), first + start)
                size.bytes += sum(map(len, rows.data))
                yield rows
            first += some.count

    # --- the ways to write ----------------------------------------------------------------------

    def _published(
        self,
        connected: Connection,
        encoder: RowEncoder,
        task_id: WriteTaskId,
        parts: Iterable[EncodedRows],
    ) -> WriteStats:
        options = self.options
        js = options.connection.jetstream(connected)
        scan = None
        if options.delivery == "scan":
            stored = self._stored(connected, task_id)
            scan = ScanRecovery(js, self._checkpoints(connected, task_id), task_id.batch, stored)
            scan.begin(options.ack_timeout)
        ids = self._ids(task_id)
        individually = any(name.startswith("expected_") for name in self.layout.names)
        skipped = 0
        window = AckWindow(
            api_requests(js).core,
            encoder,
            options.max_pending,
            options.ack_timeout,
            self.target.accepts,
        )
        try:
            for part in parts:
                rows = part.with_ids(ids.of(part))
                if scan is not None:
                    assert rows.ids is not None
                    rows = rows.select(
                        () if scan.batch_is_complete else scan.stored.missing(rows.ids)
                    )
                    skipped += len(part) - len(rows)
                if rows.data:
                    window.send(rows, individually=individually)
            window.finish()
        finally:
            window.close()
        stats = window.stats
        stats.rows += skipped
        stats.duplicates += skipped
        if scan is not None:
            stats.stored(scan.seq, scan.seq)
        return stats

    def _in_transactions(
        self,
        connected: Connection,
        encoder: RowEncoder,
        task_id: WriteTaskId,
        parts: Iterable[EncodedRows],
    ) -> WriteStats:
        options = self.options
        in_order = options.ids == "position"
        batches = AtomicBatchSender(
            api_requests(options.connection.jetstream(connected)).core, encoder
        )
        try:
            writer = TransactionWriter(
                batches,
                self._checkpoints(connected, task_id),
                task_id.batch,
                options.ack_timeout,
                ColumnIds() if in_order else self._ids(task_id),
                None if in_order else self._stored(connected, task_id),
            )
            writer.write(parts)
        finally:
            batches.close()
        return writer.stats

    def _ids(self, task_id: WriteTaskId) -> MessageIds:
        if self.options.delivery == "at-least-once":
            return ColumnIds()
        return PositionIds(task_id) if self.options.ids == "position" else ContentIds(task_id)

    def _stored(self, connected: Connection, task_id: WriteTaskId) -> StoredIds:
        # Ids of a column of their own may begin with anything.
        prefix = b"" if "msg_id" in self.layout.names else task_id.prefix()
        js = self.options.connection.jetstream(connected)
        return StoredIds(connected, js, self.options, prefix)

    def _checkpoints(self, connected: Connection, task_id: WriteTaskId) -> CheckpointStore:
        options = self.options
        assert options.marker_subject is not None
        return CheckpointStore(
            api_requests(options.connection.jetstream(connected)),
            options.stream,
            options.marker_subject,
            task_id,
            roll_up=self.target.allows_rollup,
        )


class _Size:
    """Counts the bytes of payloads."""

    bytes = 0
