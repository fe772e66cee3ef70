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
"""

from __future__ import annotations

import uuid
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
    PermissionsError,
)
from ...headers import MSG_ID, parse_status
from ...net.clock import Deadline
from ...protocol.parser import Delivery
from .publishing import check_sizes
from .rows import Encoder, Rows

__all__ = ["BATCH_ROWS", "AtomicBatches"]

#: Rows of a batch, beside one message before them.
BATCH_ROWS: Final = 999

_NOBODY: Final = 503
#: Said of a batch where one of its messages was refused before.
_INCOMPLETE: Final = 10176

_FIRST: Final = b".first"
_LAST: Final = b".last"


class AtomicBatches:
    """
    Sends batches, one after the other; for one thread, which closes it.

    Args:
        core: the connection.
        encoder: what made the rows.

    """

    takes_answers = True

    def __init__(self, core: Core, encoder: Encoder) -> None:
        self._core = core
        self._encoder = encoder
        # --- written by the reader: answers, or an error that ends the wait for them ---
        self._news: Mailbox[Delivery | Error] = Mailbox()
        self._subjects: frozenset[bytes] = frozenset()
        self._inbox = core.new_inbox()
        self._interest = core.add_interest(f"{self._inbox}.*.*", "", self)

    def close(self) -> None:
        """Take no more answers."""
        self._core.remove_interest_quietly(self._interest)

    def commit(
        self, subject: bytes, lines: bytes, payload: bytes, rows: Rows, deadline: Deadline
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
        self._news.items.clear()
        buffer = b"".join(made)
        self._core.writer.send(buffer, len(made), len(buffer), deadline)
        return self._answer(reply, deadline)

    def _row_commands(self, rows: Rows, head: bytes, reply: bytes) -> list[bytes]:
        last = len(rows) - 1
        name = MSG_ID.encode()
        made = []
        for i, (subject, data) in enumerate(zip(rows.subjects, rows.data, strict=True)):
            lines = b"%b%d\r\n" % (head, i + 2)
            if i == last:
                lines += b"Nats-Batch-Commit: 1\r\n"
            if rows.ids is not None and rows.ids[i]:
                lines += b"%b: %b\r\n" % (name, rows.ids[i])
            if rows.extras is not None:
                lines += rows.extras[i]
            made.append(_command(subject, reply if i == last else b"", lines, data))
        return made

    def _answer(self, reply: bytes, deadline: Deadline) -> PubAck:
        """Wait for the answer to the last message of a batch; raises as `commit()`."""
        cause: Error | None = None
        while True:
            news = self._news.get(deadline)
            if isinstance(news, Error):
                raise news
            where, _, header, payload = news
            if where == reply + _FIRST:
                cause = _refusal(header, payload)
            elif where == reply + _LAST:
                error = _refusal(header, payload)
                if error is None:
                    return PubAck.from_json(loads(payload))
                incomplete = isinstance(error, APIError) and error.err_code == _INCOMPLETE
                raise (cause or error) if incomplete else error

    # --- the reader's side; see `Sink` ----------------------------------------------------------

    def deliver(self, deliveries: list[Delivery]) -> None:
        """Take answers."""
        self._news.put(deliveries, len(deliveries))

    def link_changed(self, *, connected: bool) -> None:
        """Say that no answer will come when the link breaks."""
        if not connected:
            self._news.put((ConnectionLostError("the link broke before the batch was stored"),), 1)

    def denied(self, subject: bytes, error: PermissionsError) -> bool:
        """Say what the user may not do, where it is about a batch."""
        if error.operation != "subscribe" and subject not in self._subjects:
            return False
        self._news.put((error,), 1)
        return True

    def ended(self, reason: BaseException) -> None:
        """Wake the task: the connection is closed."""
        self._news.close(reason)

    def finished(self, deadline: Deadline) -> bool:
        """Say that no callback runs."""
        del deadline
        return True


def _refusal(header: bytes, payload: bytes) -> Error | None:
    """Return why a message was refused, ``None`` where it was not."""
    if not payload:
        status = parse_status(header) if header else None
        nobody = status is not None and status.code == _NOBODY
        return NoStreamResponseError("one of the batch's subjects") if nobody else None
    answer = loads(payload)
    error = answer.get("error") if isinstance(answer, dict) else None
    return APIError.from_response(error) if isinstance(error, dict) else None


def _command(subject: bytes, reply: bytes, lines: bytes, payload: bytes) -> bytes:
    header = b"NATS/1.0\r\n%b\r\n" % lines
    where = b"%b %b" % (subject, reply) if reply else subject
    sizes = (len(header), len(header) + len(payload))
    return b"HPUB %b %d %d\r\n%b%b\r\n" % (where, *sizes, header, payload)
