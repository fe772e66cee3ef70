"""
One atomic batch (ADR-50) at a time: all of its messages in one send, and what the server says to them.

Facts about nats-server 2.15 (``server/stream.go``, ``processJetStreamAtomicBatchMsg``) that this rests on:

1. A batch has 1000 messages at most. Their sequences follow each other without a gap, and the
   acknowledgement of the last message has the last one.
2. Expectations are checked at the commit, message by message in their order. The first that is not met
   refuses the batch, and the answer to the last message says so, not to which.
3. An error before that abandons the batch. The answer to the message tells it, and the last one is
   told that the batch is incomplete. Messages without a reply subject get no answer.
4. A stream has 50 open batches at most (10210).

Rows in atomic batches, each with a note of how far the partition has come.

The note is the first message of its batch, and the stream takes it only while the last note is the one that was
seen. So what was stored once is refused the second time, however long the outage was, and also
where a first attempt that was given up still runs. It comes first since the first expectation that is not
met is what a batch is refused for.

An attempt that finds the note of its own micro-batch has to know which rows it speaks of. A note does not
say that a partition is complete: where what feeds a task fails, the task sees the end of its rows, as if
there were no more, and stores them. With ``ids=position`` the note has the number of rows, and that many are
passed over. Else rows come in any order: each has an id, and those are read from the stream.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator
from time import sleep
from typing import Final

from ...api.publish import PubAck
from ...client.core import Core
from ...client.mailbox import Mailbox
from ...codec import loads
from ...errors import (
    APIError,
    ConnectionLostError,
    Error,
    NoStreamResponseError,
    OutboundBufferLimitError,
    PermissionsError,
    TimeoutError,
    WrongLastSequenceError,
)
from ...headers import MSG_ID, parse_status
from ...net.clock import Deadline
from ...protocol.parser import Delivery
from ..retry import retry_transient
from .checkpoints import Checkpoint, CheckpointStore, StoredIds
from .message_ids import MessageIds
from .publishing import WriteStats, check_sizes
from .rows import EncodedRows, RowEncoder
from .write_errors import SinkError, is_retriable

__all__ = ["BATCH_ROWS", "AtomicBatchSender", "TransactionWriter"]

#: Rows of a batch, beside one message before them.
BATCH_ROWS: Final = 999

_NO_RESPONDERS: Final = 503
#: Said of a batch where one of its messages was refused before.
_BATCH_INCOMPLETE: Final = 10176

_FIRST: Final = b".first"
_LAST: Final = b".last"


class AtomicBatchSender:
    """
    Sends batches, one after the other; for one thread, which closes it.

    Args:
        core: the connection.
        encoder: what made the rows.

    """

    takes_answers = True

    def __init__(self, core: Core, encoder: RowEncoder) -> None:
        self._core = core
        self._encoder = encoder
        # --- written by the reader: answers, or an error that ends the wait for them ---
        self._events: Mailbox[Delivery | Error] = Mailbox()
        self._subjects: frozenset[bytes] = frozenset()
        self._inbox = core.new_inbox()
        self._interest = core.add_interest(f"{self._inbox}.*.*", "", self)

    def close(self) -> None:
        """Take no more answers."""
        self._core.remove_interest_quietly(self._interest)

    def commit(
        self, subject: bytes, lines: bytes, payload: bytes, rows: EncodedRows, deadline: Deadline
    ) -> PubAck:
        """
        Store a message and the rows behind it, all or none.

        Args:
            subject: where the first message goes.
            lines: its own header lines.
            payload: what it says.
            rows: what follows, 1 to `BATCH_ROWS`.
            deadline: how long to wait for the answer.

        Returns:
            The acknowledgement of the last row.

        Raises:
            RowError: a row is larger than the server accepts; nothing was sent.
            APIError: the batch was refused; nothing was stored.
            NoStreamResponseError: no stream takes one of the subjects; nothing was stored.
            PermissionsError: the user may not publish to one of the subjects.
            ConnectionLostError, TimeoutError: there was no answer; it may be stored.
            OutboundBufferLimitError: there is no link; nothing was sent.
            ConnectionClosedError: the connection is closed.

        """
        batch = uuid.uuid4().hex.encode()
        reply = b"%b.%b" % (self._inbox.encode(), batch)
        head = b"%bNats-Batch-Id: %b\r\nNats-Batch-Sequence: " % (self._encoder.common, batch)
        made = [
            _command(subject, reply + _FIRST, b"%b1\r\n%b" % (head, lines), payload),
            *self._row_commands(rows, head, reply + _LAST),
        ]
        check_sizes(self._encoder, rows, made[1:], self._core.composer.max_payload)
        self._subjects = frozenset((subject, *rows.subjects))
        self._events.items.clear()
        buffer = b"".join(made)
        self._core.writer.send(buffer, len(made), len(buffer), deadline)
        return self._wait_for_ack(reply, deadline)

    def _row_commands(self, rows: EncodedRows, head: bytes, reply: bytes) -> list[bytes]:
        last = len(rows) - 1
        name = MSG_ID.encode()
        made = []
        for i, (subject, data) in enumerate(zip(rows.subjects, rows.data, strict=True)):
            lines = b"%b%d\r\n" % (head, i + 2)
            if i == last:
                lines += b"Nats-Batch-Commit: 1\r\n"
            if rows.ids is not None and rows.ids[i]:
                lines += b"%b: %b\r\n" % (name, rows.ids[i])
            if rows.header_lines is not None:
                lines += rows.header_lines[i]
            made.append(_command(subject, reply if i == last else b"", lines, data))
        return made

    def _wait_for_ack(self, reply: bytes, deadline: Deadline) -> PubAck:
        """Wait for the answer to the last message of a batch; raises as `commit()`."""
        cause: Error | None = None
        while True:
            events = self._events.get(deadline)
            if isinstance(events, Error):
                raise events
            where, _, header, payload = events
            if where == reply + _FIRST:
                cause = _answer_error(header, payload)
            elif where == reply + _LAST:
                error = _answer_error(header, payload)
                if error is None:
                    return PubAck.from_json(loads(payload))
                incomplete = isinstance(error, APIError) and error.err_code == _BATCH_INCOMPLETE
                raise (cause or error) if incomplete else error

    # --- the reader's side; see `Sink` ----------------------------------------------------------

    def deliver(self, deliveries: list[Delivery]) -> None:
        """Take answers."""
        self._events.put(deliveries, len(deliveries))

    def link_changed(self, *, connected: bool) -> None:
        """Say that no answer will come when the link breaks."""
        if not connected:
            self._events.put(
                (ConnectionLostError("the link broke before the batch was stored"),), 1
            )

    def denied(self, subject: bytes, error: PermissionsError) -> bool:
        """Say what the user may not do, where it is about a batch."""
        if error.operation != "subscribe" and subject not in self._subjects:
            return False
        self._events.put((error,), 1)
        return True

    def ended(self, reason: BaseException) -> None:
        """Wake the task: the connection is closed."""
        self._events.close(reason)

    def finished(self, deadline: Deadline) -> bool:
        """Say that no callback runs."""
        del deadline
        return True


def _answer_error(header: bytes, payload: bytes) -> Error | None:
    """Return why a message was refused, ``None`` where it was not."""
    if not payload:
        status = parse_status(header) if header else None
        nobody = status is not None and status.code == _NO_RESPONDERS
        return NoStreamResponseError("one of the batch's subjects") if nobody else None
    answer = loads(payload)
    error = answer.get("error") if isinstance(answer, dict) else None
    return APIError.from_response(error) if isinstance(error, dict) else None


def _command(subject: bytes, reply: bytes, lines: bytes, payload: bytes) -> bytes:
    header = b"NATS/1.0\r\n%b\r\n" % lines
    where = b"%b %b" % (subject, reply) if reply else subject
    sizes = (len(header), len(header) + len(payload))
    return b"HPUB %b %d %d\r\n%b%b\r\n" % (where, *sizes, header, payload)


#: Bytes of a batch from which on it is not made longer.
_MAX_BATCH_BYTES: Final = 8 * 1024 * 1024
#: Parts of the time, in one of which the answer to a batch has to come before it is sent again: the
#: leader of a stream that steps down forgets a batch, and says nothing.
_ATTEMPTS_PER_TIMEOUT: Final = 4
#: Seconds before what was refused is looked at again.
_RETRY_DELAY_S: Final = 0.05
#: Said of a batch: its expectation is not met, or one of its ids is known already.
_CONFLICTS: Final = frozenset({10071, 10201})


class TransactionWriter:
    """
    Writes the rows of a partition in atomic batches; for one thread.

    Args:
        batches: what sends them.
        markers: the notes of the partition.
        batch: the number of the micro-batch.
        timeout: seconds that one atomic batch may take until it is stored.
        ids: what gives rows their ids.
        stored: what reads ids; ``None``: the rows come in the same order each time.

    """

    def __init__(
        self,
        batches: AtomicBatchSender,
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
        self.stats = WriteStats()

    def write(self, parts: Iterable[EncodedRows]) -> None:
        """
        Write all rows that are not stored yet.

        Args:
            parts: the rows of the partition.

        Raises:
            SinkError: the stream does not take them.
            TimeoutError: a batch was not stored in time; trying the partition again is safe.
            ConnectionClosedError: the connection is closed.

        """
        self._read_checkpoint()
        for rows in self._group(parts):
            written = self._store(rows)
            stats, checkpoint = self.stats, self._checkpoint
            stats.rows += len(rows)
            stats.duplicates += len(rows) - written
            if checkpoint is not None and checkpoint.batch == self._batch:
                stats.stored(checkpoint.first_seq, checkpoint.last_seq)

    def _group(self, parts: Iterable[EncodedRows]) -> Iterator[EncodedRows]:
        """Give the rows their ids, and join those that go into one batch."""
        waiting: list[EncodedRows] = []
        count = size = 0
        for part in parts:
            rows = part.with_ids(self._ids.of(part))
            more = sum(map(len, rows.data))
            if waiting and (count + len(rows) > BATCH_ROWS or size + more > _MAX_BATCH_BYTES):
                yield EncodedRows.concat(waiting)
                waiting, count, size = [], 0, 0
            waiting.append(rows)
            count += len(rows)
            size += more
        if waiting:
            yield EncodedRows.concat(waiting)

    # --- what is stored already -----------------------------------------------------------------

    def _read_checkpoint(self) -> None:
        """Read the last note, and what it speaks of."""
        self._checkpoint = retry_transient(
            self._checkpoints.read, self._timeout, "reading a marker"
        )
        checkpoint = self._checkpoint
        if self._stored is not None and checkpoint is not None and checkpoint.batch == self._batch:
            self._stored.read(checkpoint.first_seq, checkpoint.last_seq + 1)

    def _unstored(self, rows: EncodedRows) -> EncodedRows:
        """Return the rows that are not stored."""
        checkpoint = self._checkpoint
        if checkpoint is None or checkpoint.batch < self._batch:
            return rows
        if checkpoint.batch > self._batch:
            # A later micro-batch is only begun when this one is through.
            return rows.select(())
        if self._stored is not None:
            assert rows.ids is not None
            return rows.select(self._stored.missing(rows.ids))
        return rows.select([i for i, row in enumerate(rows.numbers) if row >= checkpoint.rows])

    # --- storing --------------------------------------------------------------------------------

    def _store(self, rows: EncodedRows) -> int:
        """Store what is not stored of some rows, and return how many that were."""
        deadline = Deadline(self._timeout)
        while True:
            left = self._unstored(rows)
            if not left.data:
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
        """Look what is stored after a batch was refused, or nothing is known of it; or raise why."""
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
            # Nobody else was there, so it is about a row.
            raise _refusal(rows, error) from error


def _refusal(rows: EncodedRows, error: Error) -> SinkError:
    some = f"one of the rows {rows.numbers[0]} to {rows.numbers[-1]} of a partition was refused"
    if isinstance(error, WrongLastSequenceError):
        return SinkError(f"{some}, it expects another message on its subject: {error}")
    if isinstance(error, APIError) and error.err_code in _CONFLICTS:
        return SinkError(f"{some}, it has a msg_id that is in the stream already: {error}")
    return SinkError(f"{some}, so that none of them was stored: {error}")
