"""
Write rows in atomic batches (ADR-50), each with a checkpoint of the partition.

Behaviour of nats-server 2.15 (``server/stream.go``, ``processJetStreamAtomicBatchMsg``) that this relies on:

1. A batch has at most 1000 messages. Their sequences are contiguous, and the acknowledgement of the last
   message contains the last one.
2. Expectations are checked at the commit, in message order. The first unmet one refuses the batch. The reply
   to the last message contains the error, but not which message failed.
3. An earlier error abandons the batch. It is sent as the reply to the failed message, and the last message
   gets the error that the batch is incomplete. Messages without a reply subject get no reply.
4. A stream has at most 50 open batches (error 10210).

The checkpoint is the first message of its batch. The stream stores it only if the last checkpoint is still the
one that was seen. So rows that are stored are refused the second time, after an outage of any length and also
if an abandoned attempt is still running. It comes first because the first unmet expectation determines the
error.

An attempt that finds a checkpoint of its own micro-batch must know which rows it covers. A checkpoint does not
imply that the partition is complete: if the input of a task fails, the task only sees the end of its rows, and
stores those before it. With ``ids=position`` the checkpoint contains the number of stored rows, and that many
are skipped. Otherwise the order of the rows may change, so their ids are read from the stream.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from time import sleep
from typing import Final

from ...api.publish import PubAck
from ...client.core import ConnectionCore
from ...errors import (
    APIError,
    ConnectionLostError,
    Error,
    NoStreamResponseError,
    OutboundBufferLimitError,
    TimeoutError,
    WrongLastSequenceError,
)
from ...jetstream.batches import AtomicBatchSender
from ...net.clock import Deadline
from ..retry import SinkError, is_retriable, retry_transient
from .checkpoints import Checkpoint, CheckpointStore, StoredIds
from .message_ids import MessageIds
from .publishing import WriteStats, command, joined_commands
from .rows import EncodedRows, RowEncoder

#: Maximum rows of a batch, besides the checkpoint.
BATCH_ROWS: Final = 999


class RowBatches:
    """Sends one atomic batch of rows at a time; one thread uses and closes it."""

    def __init__(self, core: ConnectionCore, encoder: RowEncoder) -> None:
        self._core = core
        self._encoder = encoder
        self._sender = AtomicBatchSender(core)

    def close(self) -> None:
        """Unsubscribe from replies."""
        self._sender.close()

    def commit(
        self, subject: bytes, lines: bytes, payload: bytes, rows: EncodedRows, deadline: Deadline
    ) -> PubAck:
        """Store a message and rows after it, all or none."""
        encoder, limit, last = self._encoder, self._core.info.max_payload, len(rows)
        batch, reply = self._sender.new_batch()
        head = b"NATS/1.0\r\n%bNats-Batch-Id: %b\r\n" % (encoder.common, batch)
        end = head + b"Nats-Batch-Commit: 1\r\nNats-Batch-Sequence: "
        head += b"Nats-Batch-Sequence: "
        end_reply = b"%b%d" % (reply, last + 1)
        buffer = b"".join(
            [
                # Only the checkpoint requests a reply before the end.
                command(subject, reply + b"1", b"%b1\r\n%b" % (head, lines), payload),
                joined_commands(encoder, rows.slice(0, last - 1), head, b"", limit, 2),
                joined_commands(
                    encoder, rows.slice(last - 1, last), end, end_reply, limit, last + 1
                ),
            ]
        )
        subjects = frozenset((subject, *rows.subjects))
        return self._sender.commit(buffer, last + 1, reply, [1], subjects, deadline)


#: Number of attempts to send a batch within the timeout: a stream leader that steps down forgets a batch,
#: without a reply.
_ATTEMPTS_PER_TIMEOUT: Final = 4
#: Seconds before the checkpoint is read again after a failure.
_RETRY_DELAY_S: Final = 0.05
#: Errors of an unmet expectation and of a duplicate message id.
_CONFLICTS: Final = frozenset({10071, 10201})


class TransactionWriter:
    """Writes the rows of a partition in atomic batches; for one thread."""

    def __init__(
        self,
        batches: RowBatches,
        checkpoints: CheckpointStore,
        batch: int,
        timeout: float,
        ids: MessageIds,
        stored: StoredIds | None,
    ) -> None:
        self._batches = batches
        self._checkpoints = checkpoints
        self._batch = batch
        self._timeout = timeout
        self._ids = ids
        self._stored = stored
        self._checkpoint: Checkpoint | None = None
        self.stats: WriteStats = WriteStats()

    def write(self, parts: Iterable[EncodedRows]) -> None:
        """Write all rows that are not stored yet."""
        self._read_checkpoint()
        for part in parts:
            rows = replace(part, ids=self._ids.of(part))
            written = self._store(rows)
            stats, checkpoint = self.stats, self._checkpoint
            stats.rows += len(rows)
            stats.duplicates += len(rows) - written
            if checkpoint is not None and checkpoint.batch == self._batch:
                stats.stored(checkpoint.first_seq, checkpoint.last_seq)

    # --- rows that are stored already -----------------------------------------------------------

    def _read_checkpoint(self) -> None:
        """Read the last checkpoint, and the ids stored with it."""
        self._checkpoint = retry_transient(
            self._checkpoints.read, self._timeout, "reading a checkpoint"
        )
        checkpoint = self._checkpoint
        if self._stored is not None and checkpoint is not None and checkpoint.batch == self._batch:
            self._stored.read(checkpoint.first_seq, checkpoint.last_seq + 1)

    def _unstored(self, rows: EncodedRows) -> EncodedRows:
        """Return the rows that are not stored yet."""
        checkpoint = self._checkpoint
        if checkpoint is None or checkpoint.batch < self._batch:
            return rows
        if checkpoint.batch > self._batch:
            # A later micro-batch only starts when this one is complete.
            return rows.select(())
        if self._stored is not None:
            return rows.select(self._stored.missing(rows.ids))
        return rows.select([i for i, row in enumerate(rows.numbers) if row >= checkpoint.rows])

    # --- storing --------------------------------------------------------------------------------

    def _store(self, rows: EncodedRows) -> int:
        """Store those rows that are not stored yet, and return their number."""
        deadline = Deadline(self._timeout)
        while True:
            left = self._unstored(rows)
            if not len(left):
                return 0
            before = self._checkpoint
            here = before if before is not None and before.batch == self._batch else None
            checkpoint = Checkpoint(
                batch=self._batch,
                rows=rows.numbers[-1] + 1,
                first_seq=here.first_seq if here is not None else 0,
            )
            try:
                ack = self._batches.commit(
                    self._checkpoints.subject.encode(),
                    self._checkpoints.header_lines(before.seq if before is not None else 0),
                    checkpoint.to_json(len(left)),
                    left,
                    deadline.sooner(self._timeout / _ATTEMPTS_PER_TIMEOUT),
                )
            except (
                APIError,
                ConnectionLostError,
                NoStreamResponseError,
                OutboundBufferLimitError,
                TimeoutError,
            ) as error:
                self._handle_failure(error, left, deadline)
            else:
                self._checkpoint = checkpoint.stored(ack.seq - len(left), len(left))
                return len(left)

    def _handle_failure(self, error: Error, rows: EncodedRows, deadline: Deadline) -> None:
        """Read the checkpoint after a refusal or a lost reply, or raise an error that is final."""
        refused = isinstance(error, (APIError, NoStreamResponseError))
        conflict = isinstance(error, APIError) and error.err_code in _CONFLICTS
        if refused and not conflict and not is_retriable(error):
            raise _refusal(rows, error) from error
        if deadline.expired():
            raise TimeoutError(f"a batch was not stored in {self._timeout:g} s: {error}") from error
        before = self._checkpoint
        sleep(min(_RETRY_DELAY_S, deadline.left() or 0.0))
        self._read_checkpoint()
        if conflict and self._checkpoint == before:
            # No other attempt has stored a checkpoint, so a row caused the conflict.
            raise _refusal(rows, error) from error


def _refusal(rows: EncodedRows, error: Error) -> SinkError:
    rows_text = (
        f"one of the rows {rows.numbers[0]} to {rows.numbers[-1]} of the partition was refused"
    )
    if isinstance(error, WrongLastSequenceError):
        return SinkError(f"{rows_text}, because of its expected sequence: {error}")
    if isinstance(error, APIError) and error.err_code in _CONFLICTS:
        return SinkError(f"{rows_text}, because its msg_id is already in the stream: {error}")
    return SinkError(f"{rows_text}, so none of them was stored: {error}")
