"""
Publish rows without waiting for each, and know in the end that the stream has every one.

Rules:

1. A row is in ``_pieces`` or ``_pending`` from before it is sent until its acknowledgement has come. What
   is there when the link comes back is sent again: with the same id, where it has one.
2. Rows that all have ids go out in pieces with one reply subject, whose answers are counted: the server
   works less for a reply subject that it knows. A piece whose answers are not all plain, or that has to be sent
   again, is taken apart: its rows are sent once more, each with a reply subject that ends in its
   number. Answers that still come to the piece are not looked at.
3. One thread sends and counts: that of the task. The connection's reader leaves what comes in
   ``_news``, and nothing else is shared.
4. A row that a stream refuses for a moment stays pending and is sent again. Any other refusal ends it
   all, with the row's number.
5. Nobody waits for ever: when nothing was acknowledged for the time that is given, that is an error.

Fast ingest (ADR-50) would save most acknowledgements. It is not used since it was measured with
nats-server 2.15.1: for rows with ids it takes no less of the server's processor time than this does. Each
message has its own reply subject there, and a duplicate is passed over in silence.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import suppress
from itertools import repeat
from typing import Final

from ...api.publish import PubAck
from ...client.core import Core
from ...client.mailbox import Mailbox
from ...codec import loads
from ...errors import (
    APIError,
    Error,
    InvalidResponseError,
    MaxPayloadError,
    NoStreamResponseError,
    OutboundBufferLimitError,
    PermissionsError,
    TimeoutError,
    WrongLastMsgIDError,
    WrongLastSequenceError,
)
from ...headers import MSG_ID, parse_status
from ...net.clock import Deadline, monotonic
from ...protocol.parser import Delivery
from ...protocol.state import ConnectionStatus
from .rows import Encoder, Rows
from .write_errors import ID_IN_PROCESS, RowError, is_passing

__all__ = ["CHUNK_BYTES", "CHUNK_ROWS", "AckWindow", "Tally", "check_sizes", "commands"]

#: Rows that are sent in one piece, and bytes, when they are large.
CHUNK_ROWS: Final = 512
CHUNK_BYTES: Final = 1024 * 1024
#: Bytes that may be on their way, whatever the window says.
_BYTES_AWAY: Final = 32 * 1024 * 1024
#: Seconds between two looks at the clock while waiting, and before a refused row is sent again.
_TICK: Final = 0.25
#: Parts of the time that an acknowledgement may take, after which silent rows are sent again: the
#: leader of a stream that steps down forgets what it has not stored, and says nothing.
_NUDGES: Final = 4
#: The status of an answer that says that nobody listens.
_NOBODY: Final = 503
#: What an acknowledgement has in it when the stream had the message already.
_DUPLICATE: Final = b'"duplicate"'

#: Said of a row that expects what is not so. A server that is not clustered looks at that before it looks
#: at ids (``server/stream.go``, ``processJetStreamMsg``), so that it refuses a stored row, too.
_EXPECTED: Final = (
    "; or an earlier attempt has stored it, which delivery=scan and delivery=transaction find out"
)
#: What to say of an id that a leader of the stream still holds for half stored.
_HALF_STORED: Final = (
    "; a leader that stepped down meanwhile takes it when the duplicate window is over,"
    " another one at once"
)

_LINK_DOWN: Final[list[Delivery]] = []
_LINK_UP: Final[list[Delivery]] = []
_DENIED: Final[list[Delivery]] = []


def commands(rows: Rows, common: bytes, replies: Iterable[bytes]) -> list[bytes]:
    """
    Make the command of each row.

    Args:
        rows: what to publish, with their ids.
        common: header lines that all have.
        replies: the reply subject of each.

    """
    ids = rows.ids
    start = b"NATS/1.0\r\n" + common
    name = b"%b: " % MSG_ID.encode()
    if ids is not None and rows.extras is None and len(set(map(len, ids))) == 1 and ids[0]:
        # Nearly always so, and then everything but the sizes of payloads is known.
        start += name
        head = len(start) + len(ids[0]) + 4
        return [
            b"HPUB %b %b %d %d\r\n%b%b\r\n\r\n%b\r\n"
            % (subject, reply, head, head + len(data), start, each, data)
            for subject, reply, each, data in zip(
                rows.subjects, replies, ids, rows.data, strict=False
            )
        ]
    made = []
    for i, (subject, reply, data) in enumerate(
        zip(rows.subjects, replies, rows.data, strict=False)
    ):
        header = start
        if ids is not None and ids[i]:
            header += b"%b%b\r\n" % (name, ids[i])
        if rows.extras is not None:
            header += rows.extras[i]
        header += b"\r\n"
        made.append(
            b"HPUB %b %b %d %d\r\n%b%b\r\n"
            % (subject, reply, len(header), len(header) + len(data), header, data)
        )
    return made


def check_sizes(encoder: Encoder, rows: Rows, commands: list[bytes], max_payload: int) -> None:
    """
    Check that the server accepts rows of their size; it would end the connection.

    Raises:
        RowError: one is too large.

    """
    if max(map(len, commands), default=0) <= max_payload:
        return  # also with what a command has beside headers and payload
    for number, subject, command in zip(rows.numbers, rows.subjects, commands, strict=True):
        size = int(command[: command.index(b"\r\n")].rsplit(b" ", 1)[1])
        if size > max_payload:
            raise encoder.error(number, subject, str(MaxPayloadError(size, max_payload)))


class Tally:
    """What was published so far."""

    __slots__ = ("duplicates", "first_seq", "last_seq", "rows")

    def __init__(self) -> None:
        self.rows = 0
        self.duplicates = 0
        self.first_seq: int | None = None
        self.last_seq: int | None = None

    def stored(self, lowest: int, highest: int) -> None:
        """Take note of sequences under which rows are stored."""
        if self.first_seq is None or lowest < self.first_seq:
            self.first_seq = lowest
        if self.last_seq is None or highest > self.last_seq:
            self.last_seq = highest


class _Piece:
    """Rows that went out together, with one reply subject."""

    __slots__ = ("left", "rows", "size")

    def __init__(self, rows: Rows, size: int) -> None:
        self.rows = rows
        self.size = size
        self.left = len(rows)


class AckWindow:
    """
    Publishes the rows of a partition, and counts their acknowledgements.

    Args:
        core: the connection.
        encoder: what made the rows.
        window: rows that may be on their way.
        ack_timeout: seconds that may pass without any acknowledgement.
        taken: says whether the stream is there for a subject: only then it is worth to ask again when
            nobody answers.

    One thread uses it, and closes it.
    """

    takes_answers = True

    def __init__(
        self,
        core: Core,
        encoder: Encoder,
        window: int,
        ack_timeout: float,
        taken: Callable[[str], bool],
    ) -> None:
        self._core = core
        self._encoder = encoder
        self._window = window
        self._ack_timeout = ack_timeout
        self._taken = taken
        self.tally = Tally()
        # By the reply subject, which ends in a number below zero, counted down.
        self._pieces: dict[bytes, _Piece] = {}
        self._made = 0
        # The commands of single rows, by their numbers.
        self._pending: dict[int, bytes] = {}
        self._rows_away = 0
        self._bytes_away = 0
        # What an acknowledgement that says nothing special begins with; learned from the first.
        self._plain = b"\0"
        # Rows that were refused for a moment: until when they may be.
        self._refused: dict[int, tuple[float, Error]] = {}
        self._retry_at = 0.0
        self._moved = monotonic()
        self._nudged = self._moved
        # --- written by the reader ---
        self._news: Mailbox[list[Delivery]] = Mailbox()
        self._denials: list[tuple[bytes, PermissionsError]] = []
        inbox = core.new_inbox()
        self._reply = inbox.encode() + b"."
        self._interest = core.add_interest(f"{inbox}.*", "", self)
        # Behind that: a link that breaks from now on is in the news.
        self._connected = core.status is ConnectionStatus.CONNECTED

    def close(self) -> None:
        """Take no more acknowledgements."""
        self._core.remove_interest_quietly(self._interest)

    # --- the reader's side; see `Sink` ----------------------------------------------------------

    def deliver(self, deliveries: list[Delivery]) -> None:
        """Take acknowledgements."""
        self._news.put((deliveries,), 1)

    def link_changed(self, *, connected: bool) -> None:
        """Put the news among the acknowledgements."""
        self._news.put((_LINK_UP if connected else _LINK_DOWN,), 1)

    def denied(self, subject: bytes, error: PermissionsError) -> bool:
        """Learn that rows are not permitted to go to a subject, or their acknowledgements to come."""
        if error.operation != "subscribe" and self._row_to(subject) is None:
            return False
        self._denials.append((subject, error))
        self._news.put((_DENIED,), 1)
        return True

    def _row_to(self, subject: bytes) -> int | None:
        """Return the number of a row on its way to a subject; also called by the reader."""
        for piece in list(self._pieces.values()):
            if subject in piece.rows.subjects:
                return piece.rows.numbers[piece.rows.subjects.index(subject)]
        for number, command in list(self._pending.items()):
            if command.split(b" ", 2)[1] == subject:
                return number
        return None

    def ended(self, reason: BaseException) -> None:
        """Wake the task, for nothing more will come."""
        self._news.close(reason)

    def finished(self, deadline: Deadline) -> bool:
        """Say that no callback runs."""
        del deadline
        return True

    # --- the task's side ------------------------------------------------------------------------

    def send(self, rows: Rows, *, alone: bool = False) -> None:
        """
        Publish rows as soon as there is room for them.

        Args:
            rows: some hundreds at most, with their ids.
            alone: whether a row that is stored must not be sent again, not even with its id.

        Raises:
            RowError: one of the rows so far can not be stored.
            PermissionsError: the user may not get acknowledgements.
            TimeoutError: nothing was acknowledged for too long.
            ConnectionClosedError: the connection is closed.

        """
        news = self._news.items
        while news:
            self._take(news.popleft())
        together = not alone and rows.ids is not None and all(rows.ids)
        if together:
            self._made -= 1
            reply = b"%b%d" % (self._reply, self._made)
            made = commands(rows, self._encoder.common, repeat(reply))
        else:
            made = self._single(rows)
        check_sizes(self._encoder, rows, made, self._core.composer.max_payload)
        buffer = b"".join(made)
        self._wait_for_room(len(made), len(buffer))
        if together:
            self._pieces[reply] = _Piece(rows, len(buffer))
        else:
            self._pending.update(zip(rows.numbers, made, strict=True))
        self._rows_away += len(made)
        self._bytes_away += len(buffer)
        self._transmit(buffer, len(made))

    def finish(self) -> None:
        """Wait until every row is stored; raises as `send()`."""
        self._core.writer.send_buffered()
        while self._rows_away:
            self._wait()

    def _single(self, rows: Rows) -> list[bytes]:
        """Make commands with reply subjects of their own."""
        reply = self._reply
        replies = [b"%b%d" % (reply, number) for number in rows.numbers]
        return commands(rows, self._encoder.common, replies)

    def _wait_for_room(self, rows: int, size: int) -> None:
        if not self._rows_away:
            self._moved = self._nudged = monotonic()
        while not self._connected or (
            self._rows_away
            and (self._rows_away + rows > self._window or self._bytes_away + size > _BYTES_AWAY)
        ):
            self._wait()
        if not self._rows_away:
            self._moved = self._nudged = monotonic()

    def _transmit(self, buffer: bytes, count: int) -> None:
        # Without a link, or with one about to be given up, the next one brings them all again.
        with suppress(OutboundBufferLimitError, TimeoutError):
            self._core.writer.send(buffer, count, len(buffer), Deadline(self._ack_timeout))

    def _transmit_again(self, numbers: Iterable[int]) -> None:
        again = [self._pending[number] for number in numbers]
        for start in range(0, len(again), CHUNK_ROWS):
            part = again[start : start + CHUNK_ROWS]
            self._transmit(b"".join(part), len(part))

    def _send_all_again(self) -> None:
        self._nudged = monotonic()
        for reply in list(self._pieces):
            self._take_apart(reply)
        self._transmit_again(list(self._pending))

    def _take_apart(self, reply: bytes) -> list[int]:
        """Turn a piece into single rows, which are to be sent."""
        piece = self._pieces.pop(reply)
        made = self._single(piece.rows)
        self._pending.update(zip(piece.rows.numbers, made, strict=True))
        # Those that were counted will be counted again.
        self._rows_away += len(made) - piece.left
        self.tally.rows -= len(made) - piece.left
        self._bytes_away += sum(map(len, made)) - piece.size
        return list(piece.rows.numbers)

    def _wait(self) -> None:
        """Wait for news, take them, and do what the clock says."""
        try:
            self._take(self._news.get(Deadline(_TICK)))
            news = self._news.items
            while news:
                self._take(news.popleft())
        except TimeoutError:
            pass
        now = monotonic()
        if self._refused and self._connected and now >= self._retry_at:
            self._retry(now)
        if now - self._moved >= self._ack_timeout:
            raise self._overdue()
        if self._connected and now - self._nudged >= self._ack_timeout / _NUDGES:
            self._send_all_again()

    def _overdue(self) -> Error:
        if not self._rows_away:
            return TimeoutError(f"no link to a server for {self._ack_timeout:g} s")
        for reply in list(self._pieces):
            self._take_apart(reply)
        number, command = next(iter(self._pending.items()))
        error = self._encoder.error(number, _subject_of(command), "no acknowledgement")
        return TimeoutError(
            f"{error} for {self._ack_timeout:g} s, and {len(self._pending) - 1} rows more wait for one"
        )

    def _retry(self, now: float) -> None:
        for number, (until, error) in self._refused.items():
            if now >= until:
                raise self._row_error(number, error)
        self._transmit_again(self._refused)
        self._retry_at = now + _TICK

    # --- acknowledgements -----------------------------------------------------------------------

    def _take(self, deliveries: list[Delivery]) -> None:
        if not deliveries:
            self._take_note(deliveries)
            return
        # What is stored plainly comes apart into the sequences, and this costs little for each.
        tails = b"".join([delivery[3] for delivery in deliveries]).split(self._plain)
        if len(tails) != len(deliveries) + 1 or tails[0]:
            self._take_each(deliveries)
            return
        del tails[0]
        try:
            sequences = [int(tail[:-1]) for tail in tails]
            duplicates = 0
        except ValueError:
            sequences = [int(tail.rstrip(b"}").partition(b",")[0]) for tail in tails]
            duplicates = sum([_DUPLICATE in tail for tail in tails])
        counts = Counter([delivery[0] for delivery in deliveries])
        before = self._rows_away
        for reply, count in counts.items():
            self._strike_off(reply, count)
        stored = before - self._rows_away
        if stored:
            self.tally.rows += stored
            self.tally.stored(min(sequences), max(sequences))
            self.tally.duplicates += min(duplicates, stored)
            self._moved = self._nudged = monotonic()

    def _strike_off(self, reply: bytes, count: int) -> None:
        """Count answers to a reply subject, all of which say that a row is stored."""
        piece = self._pieces.get(reply)
        if piece is not None:
            self._rows_away -= count
            piece.left -= count
            if not piece.left:
                del self._pieces[reply]
                self._bytes_away -= piece.size
            return
        number = int(reply[len(self._reply) :])
        command = self._pending.pop(number, None)
        if command is not None:
            self._rows_away -= 1
            self._bytes_away -= len(command)
            self._refused.pop(number, None)

    def _take_each(self, deliveries: list[Delivery]) -> None:
        """Take acknowledgements of which some say more than a sequence."""
        for reply, _, header, payload in deliveries:
            ack = self._ack_of(reply, header, payload)
            before = self._rows_away
            if ack is None:
                continue
            self._strike_off(reply, 1)
            if before == self._rows_away:
                continue  # the second answer to a row that was sent twice
            self.tally.rows += 1
            self.tally.stored(ack.seq, ack.seq)
            self.tally.duplicates += ack.duplicate
            self._moved = self._nudged = monotonic()
            end = b"%d}" % ack.seq
            if payload.endswith(end):
                self._plain = payload[: -len(end)]

    def _ack_of(self, reply: bytes, header: bytes, payload: bytes) -> PubAck | None:
        """Return an acknowledgement; take note where it is none."""
        error: Error
        if header and not payload:
            status = parse_status(header)
            error = InvalidResponseError(f"a publish was answered with {header[:60]!r}")
            if status is not None and status.code == _NOBODY:
                error = NoStreamResponseError("")
        else:
            try:
                return PubAck.from_json(loads(payload))
            except Error as refusal:
                error = refusal
        if reply in self._pieces:
            # Which of its rows it is will be seen when each is sent alone.
            self._transmit_again(self._take_apart(reply))
            return None
        number = int(reply[len(self._reply) :])
        if number in self._pending:
            self._refuse(number, error)
        return None

    def _refuse(self, number: int, error: Error) -> None:
        """Have a row sent again, or raise why it can not be stored."""
        passing = is_passing(error)
        if isinstance(error, NoStreamResponseError):
            subject = _subject_of(self._pending[number]).decode("utf-8", "replace")
            error = NoStreamResponseError(subject)
            passing = self._taken(subject)
        if not passing:
            raise self._row_error(number, error)
        now = monotonic()
        if not self._refused:
            self._retry_at = now + _TICK
        self._refused.setdefault(number, (now + self._ack_timeout, error))

    def _row_error(self, number: int, error: Error) -> RowError:
        reason = f"it was refused: {error}"
        if isinstance(error, (WrongLastSequenceError, WrongLastMsgIDError)):
            reason += _EXPECTED
        elif isinstance(error, APIError) and error.err_code == ID_IN_PROCESS:
            reason += _HALF_STORED
        made = self._encoder.error(number, _subject_of(self._pending[number]), reason)
        made.__cause__ = error
        return made

    def _take_note(self, news: list[Delivery]) -> None:
        """Take what is no acknowledgement."""
        if news is _LINK_DOWN:
            self._connected = False
        elif news is _LINK_UP:
            self._connected = True
            self._send_all_again()
        elif news is _DENIED and self._denials:
            subject, error = self._denials[0]
            number = self._row_to(subject)
            if number is None:
                raise error
            raise self._encoder.error(number, subject, str(error)) from error


def _subject_of(command: bytes) -> bytes:
    return command.split(b" ", 2)[1]
