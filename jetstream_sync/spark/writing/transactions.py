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
5. If a limit of the account is reached at the commit, the messages before that are stored. Server 2.12 refuses the
   batch nevertheless (error 10002), and 2.15 does not reply.

The checkpoint is the first message of its batch. The stream stores it only if the last checkpoint is still the
one that was seen. So rows that are stored are refused the second time, after an outage of any length and also
if an abandoned attempt is still running. It comes first because the first unmet expectation determines the
error.

An attempt that finds a checkpoint of its own micro-batch must know which rows it covers. A checkpoint does not
imply that the partition is complete: if the input of a task fails, the task only sees the end of its rows, and
stores those before it. With ``ids=position`` the checkpoint contains the number of stored rows and their hash, and
that many are skipped. Otherwise the order of the rows may change, so the key of each stored row is in a list that is
stored with it. The rows themselves prove nothing: limits of the stream may have removed them.

Batch numbers repeat if the checkpoint of a query is restored from an older copy. So stored rows that the batch does
not have are an error, and nothing is written before all of them were seen. A later micro-batch of any partition is an
error too, because Spark runs no batch before the one that it has written last: either the checkpoint was restored, or
another attempt has completed the batch and this one was abandoned, so that Spark ignores its error. If the batch before
this one has no end in the stream, the stream was restored.
"""

from __future__ import annotations

from binascii import b2a_base64
from collections.abc import Iterable, Sequence
from contextlib import closing
from dataclasses import replace
from hashlib import blake2b
from time import sleep
from typing import Final

from ... import errors
from ...api.publish import PubAck
from ...client.core import ConnectionCore
from ...client.encoder import batch_heads, publish_with_headers_command
from ...jetstream.batches import AtomicBatchSender
from ...net.clock import Deadline
from ..option_values import RowIds
from ..options import WriteOptions
from ..sink_errors import CheckpointRewoundError, SinkError, is_retriable, stream_replaced
from .checkpoints import Checkpoint, CheckpointStore
from .message_ids import MessageIds, WriteTaskId, content_digests
from .publishing import AckWindow, WriteStats, joined_commands
from .rows import EncodedRows, RowEncoder


class RowBatches:
    """Sends one atomic batch of rows at a time; one thread uses and closes it."""

    def __init__(
        self, core: ConnectionCore, encoder: RowEncoder, max_msg_size: int | None = None
    ) -> None:
        self._core = core
        self._encoder = encoder
        self._max_msg_size = max_msg_size
        self._sender = AtomicBatchSender(core)

    def close(self) -> None:
        """Unsubscribe from replies."""
        self._sender.close()

    def window(self, timeout: float) -> AckWindow:
        """Return a window for rows that are sent alone."""
        return AckWindow(self._core, self._encoder, 1, timeout, lambda _: True)

    @property
    def max_size(self) -> int:
        """Maximum bytes of a message with its headers."""
        limit = self._core.info.max_payload
        return limit if self._max_msg_size is None else min(limit, self._max_msg_size)

    def commit(
        self, notes: Sequence[tuple[bytes, bytes, bytes]], rows: EncodedRows, deadline: Deadline
    ) -> PubAck:
        """Store messages, given as subject, header lines and payload, and rows after them, all or none."""
        encoder, limit, last = self._encoder, self.max_size, len(rows)
        batch, reply = self._sender.new_batch()
        head, end = batch_heads(batch, encoder.common)
        count = len(notes) + last
        buffer = b"".join(
            [
                # Only the checkpoint requests a reply before the end.
                *(
                    publish_with_headers_command(
                        subject,
                        b"" if i else reply + b"1",
                        b"%b%d\r\n%b\r\n" % (head, i + 1, lines),
                        data,
                    )
                    for i, (subject, lines, data) in enumerate(notes)
                ),
                joined_commands(encoder, rows.slice(0, last - 1), head, b"", limit, len(notes) + 1),
                joined_commands(
                    encoder, rows.slice(last - 1, last), end, b"%b%d" % (reply, count), limit, count
                ),
            ]
        )
        subjects = frozenset((*(note[0] for note in notes), *rows.subjects))
        return self._sender.commit(buffer, count, reply, [1], subjects, deadline)


#: Number of attempts to send a batch within the timeout: a stream leader that steps down forgets a batch,
#: without a reply.
_ATTEMPTS_PER_TIMEOUT: Final = 4
#: Seconds before the checkpoint is read again after a failure.
_RETRY_DELAY_S: Final = 0.05
#: The size of the key of a row whose id was not made here, in bytes.
_KEY_SIZE: Final = 12
#: Upper bounds, in bytes: of such a key as text in a list of keys, and of the headers of the list.
_MAX_KEY_TEXT: Final = 20
_MAX_LIST_HEADER: Final = 512


class TransactionWriter:
    """Writes the rows of a partition in atomic batches; for one thread."""

    def __init__(
        self,
        batches: RowBatches,
        checkpoints: CheckpointStore,
        task_id: WriteTaskId,
        options: WriteOptions,
        ids: MessageIds,
    ) -> None:
        self._batches = batches
        self._checkpoints = checkpoints
        self._query = task_id.token
        self._batch = task_id.batch
        self._stream = options.stream
        self._timeout = options.ack_timeout
        self._ids = ids
        self._prefix = task_id.prefix()
        self._in_order = options.ids == RowIds.POSITION
        self._checkpoint: Checkpoint | None = None
        # With ids by position, the hash of all rows so far.
        self._digest = blake2b(digest_size=_KEY_SIZE)
        # With ids by content, the keys of the stored rows.
        self._stored: set[bytes] = set()
        # Those stored by earlier attempts that were not seen yet, and the other rows before the last of them.
        self._unseen: set[bytes] = set()
        self._held: list[EncodedRows] = []
        self._written = 0
        self.stats: WriteStats = WriteStats()

    def read_stored(self, deadline: Deadline) -> None:
        """Read from the stream which rows are stored, and check that the micro-batch fits to them; call it first."""
        self._checkpoints.check_order(deadline)
        self._read_checkpoint(deadline)
        self._unseen = self._stored.copy()

    def write(self, parts: Iterable[EncodedRows]) -> None:
        """Write all rows that are not stored yet; raise `CheckpointRewoundError` if other ones of the batch are stored."""
        for part in parts:
            self.stats.rows += len(part)
            rows = replace(part, ids=self._ids(part))
            if self._unseen:
                self._unseen.difference_update(self._keys(rows))
                self._held.append(self._unstored(rows))
                if self._unseen:
                    continue
                for held in self._held:
                    self._store(held)
                self._held = []
            else:
                self._store(rows)
        if any(map(len, self._held)):
            raise CheckpointRewoundError(self._stream, self._batch, self._batch)
        stats, checkpoint = self.stats, self._own_checkpoint()
        stats.duplicates = stats.rows - self._written
        if stats.rows and checkpoint is not None:
            stats.stored(checkpoint.first_seq, checkpoint.last_seq)

    # --- rows that are stored already -----------------------------------------------------------

    def _read_checkpoint(self, deadline: Deadline) -> None:
        """Read the last checkpoint, and the keys of the rows stored with it."""
        checkpoint = self._checkpoint = self._checkpoints.read(deadline)
        if checkpoint is None:
            return
        if checkpoint.batch > self._batch:
            raise CheckpointRewoundError(self._stream, checkpoint.batch, self._batch)
        if checkpoint.batch == self._batch:
            self._stored = self._checkpoints.read_keys(checkpoint, deadline)

    def _own_checkpoint(self) -> Checkpoint | None:
        """Return the last checkpoint if this micro-batch has stored it."""
        checkpoint = self._checkpoint
        return checkpoint if checkpoint is not None and checkpoint.batch == self._batch else None

    def _unstored(self, rows: EncodedRows) -> EncodedRows:
        """Return the rows that are not stored yet."""
        checkpoint = self._own_checkpoint()
        if checkpoint is None:
            return rows
        if self._in_order:
            return rows.slice(max(0, checkpoint.rows - rows.numbers[0]), len(rows))
        stored = self._stored
        return rows.select([i for i, key in enumerate(self._keys(rows)) if key not in stored])

    def _keys(self, rows: EncodedRows) -> list[bytes]:
        """Return a short key for each row, which identifies it in its micro-batch."""
        prefix, start = self._prefix, len(self._prefix)
        return [
            item[start:]
            if item.startswith(prefix)
            else b"=" + b2a_base64(blake2b(item, digest_size=_KEY_SIZE).digest(), newline=False)
            for item in rows.ids
        ]

    def _digest_after(self, rows: EncodedRows, left: EncodedRows) -> blake2b:
        """Return the hash of all rows up to the end of ``rows``, after checking it for the stored ones."""
        digest, stored = self._digest.copy(), len(rows) - len(left)
        if stored:
            digest.update(content_digests(self._prefix, rows.slice(0, stored)))
        checkpoint = self._own_checkpoint()
        is_end = checkpoint is not None and rows.numbers[0] + stored == checkpoint.rows
        known = checkpoint.digest if checkpoint is not None and is_end else ""
        if known and digest.hexdigest() != known:
            raise CheckpointRewoundError(self._stream, self._batch, self._batch)
        if len(left):
            digest.update(content_digests(self._prefix, left))
        return digest

    # --- storing --------------------------------------------------------------------------------

    def _store(self, rows: EncodedRows) -> None:
        """Store those rows that are not stored yet."""
        deadline = Deadline(self._timeout)
        while len(rows):
            left = self._unstored(rows)
            digest = self._digest_after(rows, left) if self._in_order else self._digest
            if not len(left):
                self._digest = digest
                return
            if len(left) > 1 and self._list_size(left) > self._batches.max_size:
                self._store_halves(left)
                return
            try:
                self._commit(left, digest, deadline.sooner(self._timeout / _ATTEMPTS_PER_TIMEOUT))
            except (
                errors.APIError,
                errors.ConnectionLostError,
                errors.NoStreamResponseError,
                errors.OutboundBufferLimitError,
                errors.TimeoutError,
            ) as error:
                if not self._is_duplicate(error, left, deadline):
                    continue
                if len(left) > 1:
                    self._store_halves(left)
                else:
                    self._find(left)
            else:
                self._digest = digest
            return

    def _store_halves(self, rows: EncodedRows) -> None:
        middle = len(rows) // 2
        self._store(rows.slice(0, middle))
        self._store(rows.slice(middle, len(rows)))

    def _find(self, row: EncodedRows) -> None:
        """Note the sequence of a row whose id the server knows: the reply to the row alone contains it."""
        window = self._batches.window(self._timeout)
        with closing(window):
            window.send(row, individually=True)
            window.finish()
        found = window.stats
        self._written += found.rows - found.duplicates
        if found.first_seq is not None and found.last_seq is not None:
            self.stats.stored(found.first_seq, found.last_seq)

    def _list_size(self, rows: EncodedRows) -> int:
        """Return an upper bound of the size of the list of the keys of rows, which is a message."""
        if self._in_order:
            return 0
        return rows.ids.total_bytes + _MAX_KEY_TEXT * len(rows) + _MAX_LIST_HEADER

    def _commit(self, rows: EncodedRows, digest: blake2b, deadline: Deadline) -> None:
        """Store rows with a checkpoint."""
        seen = 0 if self._checkpoint is None else self._checkpoint.seq
        own = self._own_checkpoint() or Checkpoint(query=self._query, batch=self._batch)
        checkpoint = replace(
            own,
            rows=rows.numbers[-1] + 1,
            digest=digest.hexdigest() if self._in_order else "",
            lists=0 if self._in_order else own.lists + 1,
            messages=len(rows) + (0 if self._in_order else 1),
        )
        notes = [self._checkpoints.checkpoint_message(checkpoint, seen)]
        if not self._in_order:
            notes.append(self._checkpoints.list_message(checkpoint, self._keys(rows)))
        ack = self._batches.commit(notes, rows, deadline)
        self._checkpoint = checkpoint.stored(ack.seq - checkpoint.messages)
        self._written += len(rows)

    def _is_duplicate(self, error: errors.Error, rows: EncodedRows, deadline: Deadline) -> bool:
        """
        Read the checkpoint after a refusal or a lost reply, or raise an error that is final.

        Return whether a row was stored under another identity of the query, so that the server knows its id.
        """
        refused = isinstance(error, (errors.APIError, errors.NoStreamResponseError))
        conflict = _is_conflict(error)
        if refused and not conflict and not is_retriable(error):
            raise _refusal(rows, error) from error
        if deadline.expired():
            raise errors.TimeoutError(
                f"a batch was not stored in {self._timeout:g} s: {error}"
            ) from error
        before = self._checkpoint
        if not conflict:
            sleep(min(_RETRY_DELAY_S, deadline.left() or 0.0))
        self._read_checkpoint(deadline)
        after = self._checkpoint
        if before is not None and (after is None or after.seq < before.seq):
            raise stream_replaced(self._stream)
        if not conflict or after != before:
            return False
        # No other attempt has stored a checkpoint, so a row caused the conflict.
        is_id = isinstance(error, errors.BatchDuplicateError)
        if is_id and rows.ids and all(item.startswith(self._prefix) for item in rows.ids):
            return True
        raise _refusal(rows, error) from error


def _is_conflict(error: errors.Error) -> bool:
    """Return whether a row has a duplicate message id, or an expectation that is not met."""
    unmet = isinstance(error, errors.WrongLastSequenceError) and not error.in_process
    return unmet or isinstance(error, errors.BatchDuplicateError)


def _refusal(rows: EncodedRows, error: errors.Error) -> SinkError:
    rows_text = (
        f"one of the rows {rows.numbers[0]} to {rows.numbers[-1]} of the partition was refused"
    )
    if isinstance(error, errors.WrongLastSequenceError):
        return SinkError(f"{rows_text}, because of its expected sequence: {error}")
    if _is_conflict(error):
        return SinkError(f"{rows_text}, because its msg_id is already in the stream: {error}")
    return SinkError(f"{rows_text}: {error}")
