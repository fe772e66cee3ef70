"""
Publish rows asynchronously, and confirm that the stream has stored every one.

Rules:

1. A row is in `RowsInFlight` from before it is sent until it is acknowledged. After a reconnect everything
   there is sent again, with the same message ids.
2. Rows that all have ids are sent in chunks with one reply subject, and their acknowledgements are counted:
   a reply subject that the server knows costs it less. A chunk is split if an acknowledgement is not plain or
   if it must be sent again: its rows are sent once more, each with a reply subject that ends in its row
   number. Late acknowledgements of the chunk are ignored.
3. The thread of the task sends and counts. The reader thread of the connection puts replies and state changes
   into ``_events``, and reads what is sent only to attribute a permission error.
4. A row that is refused with a retriable error stays pending and is sent again. Any other refusal fails the
   task, with the number of the row.
5. Every wait ends: it is an error if nothing is acknowledged for ``ack_timeout``.
6. A stream leader that steps down may lose a row and store later ones. In a key-value bucket the last row of a key
   must win. So there a row stays in flight until all rows before it are acknowledged, all of them are sent again
   in their order, and acknowledgements of what was sent before that do not count.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from itertools import repeat
from typing import Final, NamedTuple

from ... import errors
from ...api.publish import PubAck
from ...client.core import ConnectionCore
from ...client.encoder import publish_with_headers_command
from ...client.mailbox import Mailbox, MessageReceiver
from ...client.state import ConnectionStatus
from ...client.writer import NOW
from ...codec import loads
from ...headers import MSG_ID, VERSION_LINE, StatusCode, parse_status
from ...net.clock import Deadline, monotonic
from ...protocol.parser import PAYLOAD, SUBJECT, RawMessage
from ...speedups import join_commands
from ..reading.replies import Replies
from ..sink_errors import RowError, is_retriable
from .rows import EncodedRows, RowEncoder

_MSG_ID: Final = MSG_ID.encode()

#: Maximum rows of a chunk.
CHUNK_ROWS: Final = 512
#: Maximum bytes in flight, independent of the window.
_MAX_BYTES_IN_FLIGHT: Final = 32 * 1024 * 1024
#: Seconds before a refused row is sent again.
_RETRY_INTERVAL_S: Final = 0.25
#: Number of resends within ``ack_timeout``: a stream leader that steps down forgets messages that it has not
#: stored, without a reply.
_RESENDS_PER_TIMEOUT: Final = 4
#: Part of an acknowledgement for a duplicate.
_DUPLICATE: Final = b'"duplicate"'
#: What precedes the sequence in an acknowledgement.
_SEQUENCE: Final = b'"seq":'

#: Added to the error of a row with an unmet expectation. A standalone server checks expectations before
#: message ids (``server/stream.go``, ``processJetStreamMsg``), so it also refuses a row that is stored.
_EXPECTATION_HINT: Final = (
    "; or an earlier attempt has stored the row, which delivery=transaction detects"
)
#: Added to the error of a row whose id is being stored, according to the leader of the stream.
_ID_IN_PROCESS_HINT: Final = (
    "; a leader that stepped down in the meantime accepts the id after the duplicate window,"
    " another leader accepts it at once"
)

#: What the numbers in reply subjects grow by when rows that must keep their order are sent again.
_GENERATION: Final = 10**12


class _Denial(NamedTuple):
    """A permission error that concerns rows or their acknowledgements."""

    subject: bytes
    error: errors.PermissionsError


#: What the reader thread reports to the task: acknowledgements, whether there is a connection, or a denial.
AckEvent = list[RawMessage] | bool | _Denial


class Due(Enum):
    """What a task does that waits for acknowledgements."""

    WAIT = "wait"
    """It waits for the next event, or until `AckTimes.next_check`."""
    RETRY = "retry"
    """It sends the refused rows again."""
    RESEND = "resend"
    """It sends all rows again: the leader of the stream may have forgotten them."""
    GIVE_UP = "give up"
    """It raises an error: nothing was acknowledged for ``ack_timeout``."""


class AckTimes:
    """
    Decides when rows in flight are sent again, and when that is given up.

    The methods that change it take the time on the monotonic clock. While disconnected nothing is sent again. One
    thread uses it.
    """

    __slots__ = ("_acked_at", "_resent_at", "_retry_at", "_timeout", "is_connected")

    def __init__(self, timeout: float, now: float, *, is_connected: bool) -> None:
        self.is_connected: bool = is_connected
        self._timeout = timeout
        self._acked_at = self._resent_at = now
        # When the refused rows are sent again; ``None``: none was refused.
        self._retry_at: float | None = None

    def acknowledged(self, now: float) -> None:
        """Begin the waits again: a row was acknowledged, or the first one is sent."""
        self._acked_at = self._resent_at = now

    def resent(self, now: float) -> None:
        """Begin the wait for the next resend."""
        self._resent_at = now

    def refused(self, now: float) -> None:
        """Begin the wait before refused rows are sent again, unless it has begun."""
        if self._retry_at is None:
            self._retry_at = now + _RETRY_INTERVAL_S

    def retried(self) -> None:
        """End the wait before refused rows are sent again."""
        self._retry_at = None

    def due(self, now: float) -> Due:
        """Return what to do at a time."""
        return next((due for due, at in self._ends() if now >= at), Due.WAIT)

    def next_check(self, now: float) -> float:
        """Return the seconds until `due` has another result, if nothing arrives before."""
        return max(0.0, min(at for _, at in self._ends()) - now)

    def _ends(self) -> Iterator[tuple[Due, float]]:
        """Yield what becomes due, the most important first, and when."""
        yield Due.GIVE_UP, self._acked_at + self._timeout
        if self.is_connected:
            if self._retry_at is not None:
                yield Due.RETRY, self._retry_at
            yield Due.RESEND, self._resent_at + self._timeout / _RESENDS_PER_TIMEOUT


def commands(
    rows: EncodedRows, head: bytes, replies: Iterable[bytes], number: int = 0
) -> list[bytes]:
    """
    Return the protocol command of each row.

    The header block of a row begins with the head and, unless ``number`` is 0, with the number of the row,
    counted from there.
    """
    made = []
    ids, header_lines = rows.ids or repeat(b""), rows.header_lines or repeat(b"")
    columns = zip(rows.subjects, replies, ids, header_lines, rows.data, strict=False)
    for item, (subject, reply, msg_id, lines, data) in enumerate(columns, number):
        header = b"%b%d\r\n" % (head, item) if number else head
        if msg_id:
            header += b"%b: %b\r\n" % (_MSG_ID, msg_id)
        made.append(publish_with_headers_command(subject, reply, header + lines + b"\r\n", data))
    return made


def joined_commands(
    encoder: RowEncoder, rows: EncodedRows, head: bytes, reply: bytes, limit: int, number: int = 0
) -> bytes:
    """Return the protocol commands of rows with the same reply subject, after checking their sizes."""
    made = None
    if join_commands is not None:
        subjects, ids, lines, data = rows.subjects, rows.ids, rows.header_lines, rows.data
        columns = subjects.parts, ids.parts, lines.parts, data.parts
        made = join_commands(*columns, head, reply, number, limit)
    if made is None:
        encoded = commands(rows, head, repeat(reply), number)
        check_sizes(encoder, rows, encoded, limit)
        made = b"".join(encoded)
    return made


def check_sizes(
    encoder: RowEncoder, rows: EncodedRows, commands: list[bytes], max_payload: int
) -> None:
    """Raise `RowError` for a row above the limit of the server, which would close the connection, or of the stream."""
    if max(map(len, commands), default=0) <= max_payload:
        return  # an upper bound, since a command is longer than its headers and payload
    for number, subject, made in zip(rows.numbers, rows.subjects, commands, strict=True):
        size = int(made[: made.index(b"\r\n")].rsplit(b" ", 1)[1])
        if size > max_payload:
            reason = (
                f"message of {size} bytes (headers included) is too large: the max_payload of the server, or the"
                f" max_msg_size of the stream, is {max_payload} bytes"
            )
            raise encoder.error(number, subject, reason)


@dataclass(slots=True)
class WriteStats:
    """Counts of published rows, and the range of their sequences."""

    rows: int = 0
    duplicates: int = 0
    first_seq: int | None = None
    last_seq: int | None = None

    def stored(self, lowest: int, highest: int) -> None:
        """Extend the range of sequences."""
        if self.first_seq is None or lowest < self.first_seq:
            self.first_seq = lowest
        if self.last_seq is None or highest > self.last_seq:
            self.last_seq = highest


class OutgoingRows(NamedTuple):
    """Encoded rows that are to be sent."""

    rows: EncodedRows
    reply: bytes
    """The reply subject of the chunk; empty: each row has its own."""
    commands: list[bytes]
    """The command of each row; empty for a chunk."""
    buffer: bytes
    """All commands."""
    generation: int = 0
    """The generation of the reply subjects, see `_RowOrder`."""


@dataclass(slots=True)
class _SentChunk:
    """Rows sent together with one reply subject."""

    rows: EncodedRows
    size: int
    unacked: int


class _RowOrder:
    """The order of rows in flight that must keep it."""

    __slots__ = ("acked", "generation", "numbers")

    def __init__(self) -> None:
        #: The numbers of the rows in flight.
        self.numbers: deque[int] = deque()
        #: The numbers of acknowledged rows that wait for an earlier row.
        self.acked: set[int] = set()
        #: What is added to the numbers in reply subjects.
        self.generation = 0


class RowsInFlight:
    """
    The rows that were sent and are not acknowledged yet; rules 1, 2 and 6 of this module.

    It does no I/O. One thread changes it; any thread may call `row_for_subject`.
    """

    def __init__(self, encoder: RowEncoder, reply: bytes, *, keeps_order: bool) -> None:
        self.encoder: RowEncoder = encoder
        #: The number of rows, and the size of their commands.
        self.rows: int = 0
        self.size: int = 0
        #: The number of rows that were acknowledged.
        self.stored: int = 0
        #: Rows refused with a retriable error, with the deadline of the retries.
        self.refused: dict[int, tuple[float, errors.Error]] = {}
        self._head = VERSION_LINE + encoder.common
        # What reply subjects begin with.
        self._reply = reply
        # By reply subject, which ends in a negative number that counts down.
        self._chunks: dict[bytes, _SentChunk] = {}
        self._last_chunk_number = 0
        # Commands of individually sent rows, by row number.
        self._pending: dict[int, bytes] = {}
        self._order = _RowOrder() if keeps_order else None

    # --- sending --------------------------------------------------------------------------------

    def encode(self, rows: EncodedRows, limit: int, *, individually: bool = False) -> OutgoingRows:
        """Return the commands of rows, after checking their sizes; call `add` before they are sent."""
        if not individually and self._order is None and rows.all_have_ids:
            self._last_chunk_number -= 1
            reply = b"%b%d" % (self._reply, self._last_chunk_number)
            buffer = joined_commands(self.encoder, rows, self._head, reply, limit)
            return OutgoingRows(rows, reply, [], buffer)
        outgoing = self._encode_singly(rows)
        check_sizes(self.encoder, rows, outgoing.commands, limit)
        return outgoing

    def add(self, outgoing: OutgoingRows) -> bytes:
        """Count rows as in flight, and return the commands to send."""
        if outgoing.generation != self._generation:
            # All others were sent again since then: acknowledgements of the old reply subjects do not count.
            outgoing = self._encode_singly(outgoing.rows)
        rows, size = outgoing.rows, len(outgoing.buffer)
        self.rows += len(rows)
        self.size += size
        if outgoing.reply:
            self._chunks[outgoing.reply] = _SentChunk(rows, size, len(rows))
        else:
            self._pending.update(zip(rows.numbers, outgoing.commands, strict=True))
        if self._order is not None:
            self._order.numbers.extend(rows.numbers)
        return outgoing.buffer

    def again(self, numbers: Iterable[int]) -> list[bytes]:
        """Return the commands of rows that are sent again: of some, or of all if they must keep their order."""
        if self._order is not None:
            numbers = self._begin_again(self._order)
        return [self._pending[number] for number in numbers]

    def all_again(self) -> list[bytes]:
        """Return the commands of all rows, to be sent again."""
        self.split_all()
        return self.again(self._pending)

    @property
    def _generation(self) -> int:
        return 0 if self._order is None else self._order.generation

    def _encode_singly(self, rows: EncodedRows) -> OutgoingRows:
        """Return commands with a reply subject for each row."""
        generation = self._generation
        replies = [b"%b%d" % (self._reply, generation + number) for number in rows.numbers]
        made = commands(rows, self._head, replies)
        return OutgoingRows(rows, b"", made, b"".join(made), generation)

    def _begin_again(self, order: _RowOrder) -> Iterable[int]:
        """Give all rows new reply subjects, and return their numbers in order."""
        order.generation += _GENERATION
        order.acked.clear()
        for number in order.numbers:
            verb, subject, _, rest = self._pending[number].split(b" ", 3)
            reply = b"%b%d" % (self._reply, order.generation + number)
            again = b" ".join((verb, subject, reply, rest))
            self.size += len(again) - len(self._pending[number])
            self._pending[number] = again
        return order.numbers

    # --- replies --------------------------------------------------------------------------------

    def acknowledge(self, reply: bytes, count: int) -> int:
        """Take acknowledgements with the same reply subject, and return how many rows left."""
        before = self.rows
        chunk = self._chunks.get(reply)
        if chunk is not None:
            self.rows -= count
            chunk.unacked -= count
            if not chunk.unacked:
                del self._chunks[reply]
                self.size -= chunk.size
        elif self._order is None:
            self._remove(self._number(reply))
        else:
            self._acknowledge_in_order(self._order, self._number(reply))
        left = before - self.rows
        self.stored += left
        return left

    def _acknowledge_in_order(self, order: _RowOrder, number: int) -> None:
        if number not in self._pending:
            return
        order.acked.add(number)
        self.refused.pop(number, None)
        while order.numbers and order.numbers[0] in order.acked:
            order.acked.remove(order.numbers[0])
            self._remove(order.numbers.popleft())

    def _remove(self, number: int) -> None:
        command = self._pending.pop(number, None)
        if command is not None:
            self.rows -= 1
            self.size -= len(command)
            self.refused.pop(number, None)

    def _number(self, reply: bytes) -> int:
        """Return the number of a row from its reply subject; one without a row if it was sent again since then."""
        return int(reply[len(self._reply) :]) - self._generation

    def pending_row(self, reply: bytes) -> int | None:
        """Return the number of the individually sent row with a reply subject; ``None``: it was acknowledged."""
        number = self._number(reply)
        return number if number in self._pending else None

    def split(self, reply: bytes) -> list[int] | None:
        """
        Replace a chunk by individual rows, which the caller sends, and return their numbers.

        ``None``: no chunk has this reply subject.
        """
        chunk = self._chunks.pop(reply, None)
        if chunk is None:
            return None
        # Acknowledged rows of the chunk will be counted again.
        self.rows -= chunk.unacked
        self.stored -= len(chunk.rows) - chunk.unacked
        self.size -= chunk.size
        self.add(self._encode_singly(chunk.rows))
        return list(chunk.rows.numbers)

    def split_all(self) -> None:
        """Replace all chunks by individual rows."""
        for reply in self._chunks.copy():
            self.split(reply)

    # --- errors ---------------------------------------------------------------------------------

    def row_for_subject(self, subject: bytes) -> int | None:
        """Return the number of a row to a subject; also called by the reader thread."""
        for chunk in self._chunks.copy().values():
            if subject in chunk.rows.subjects:
                return chunk.rows.numbers[chunk.rows.subjects.index(subject)]
        for number, command in self._pending.copy().items():
            if command.split(b" ", 2)[1] == subject:
                return number
        return None

    def subject_of(self, number: int) -> bytes:
        """Return the subject of an individually sent row."""
        return self._pending[number].split(b" ", 2)[1]

    def error(self, number: int, reason: str) -> RowError:
        """Return an error about an individually sent row."""
        return self.encoder.error(number, self.subject_of(number), reason)

    def oldest_error(self, reason: str) -> RowError:
        """Return an error about the row that was sent first."""
        self.split_all()
        return self.error(next(iter(self._pending)), reason)


class AckWindow(MessageReceiver):
    """
    Publishes the rows of a partition, and waits for the acknowledgements.

    One thread uses and closes it.
    """

    is_reply_inbox = True

    def __init__(
        self,
        core: ConnectionCore,
        encoder: RowEncoder,
        window: int,
        ack_timeout: float,
        stream_accepts: Callable[[str], bool],
        *,
        keeps_order: bool = False,
    ) -> None:
        self._core = core
        self._window = window
        self._ack_timeout = ack_timeout
        self._stream_accepts = stream_accepts
        self.stats: WriteStats = WriteStats()
        # The beginning of an acknowledgement, up to the sequence; learned from the first one.
        self._ack_prefix = b""
        # --- written by the reader thread ---
        self._events: Mailbox[AckEvent] = Mailbox()
        inbox = core.table.new_inbox()
        self._in_flight = RowsInFlight(encoder, inbox.encode() + b".", keeps_order=keeps_order)
        core.table.add(f"{inbox}.*", "", self)
        core.reader.packed_sids.add(self.subscription.sid)
        # After the subscription, so that every later disconnect is among the events.
        is_connected = core.status is ConnectionStatus.CONNECTED
        self._times = AckTimes(ack_timeout, monotonic(), is_connected=is_connected)

    def close(self) -> None:
        """Unsubscribe from acknowledgements."""
        self._core.reader.packed_sids.discard(self.subscription.sid)
        self._core.table.remove_deferred(self.subscription)

    # --- called by the reader thread; see `MessageReceiver` ------------------------------------------------

    def deliver(self, deliveries: list[RawMessage]) -> None:
        """Queue acknowledgements for the task."""
        self._events.put((deliveries,), 1)

    def on_connection_change(self, *, connected: bool) -> None:
        """Queue a change of the connection state for the task."""
        self._events.put((connected,), 1)

    def on_permission_error(self, subject: bytes, error: errors.PermissionsError) -> bool:
        """Queue a permission error that concerns these rows or their acknowledgements."""
        if error.operation != "subscribe" and self._in_flight.row_for_subject(subject) is None:
            return False
        self._events.put((_Denial(subject, error),), 1)
        return True

    def on_closed(self, reason: BaseException) -> None:
        """Wake the task when the connection is closed."""
        self._events.close(reason)

    # --- called by the task ---------------------------------------------------------------------

    def send(self, rows: EncodedRows, *, individually: bool = False) -> None:
        """Publish rows as soon as the window has room."""
        events = self._events.items
        while events:
            self._process(events.popleft())
        limit = self._core.info.max_payload
        outgoing = self._in_flight.encode(rows, limit, individually=individually)
        self._wait_for_room(len(rows), len(outgoing.buffer))
        self._transmit(self._in_flight.add(outgoing), len(rows))

    def finish(self) -> None:
        """Wait until all rows are stored; raises like `send()`."""
        self._core.writer.send_buffered()
        while self._in_flight.rows:
            self._wait()
        self.stats.rows = self._in_flight.stored

    def _wait_for_room(self, rows: int, size: int) -> None:
        in_flight = self._in_flight
        if not in_flight.rows:
            self._times.acknowledged(monotonic())
        while not self._times.is_connected or (
            in_flight.rows
            and (
                in_flight.rows + rows > self._window or in_flight.size + size > _MAX_BYTES_IN_FLIGHT
            )
        ):
            self._wait()
        if not in_flight.rows:
            self._times.acknowledged(monotonic())

    def _transmit(self, buffer: bytes, count: int) -> None:
        # While disconnected nothing is sent; after the reconnect everything is sent again.
        with suppress(errors.OutboundBufferLimitError, errors.TimeoutError):
            deadline = Deadline(self._ack_timeout)
            self._core.writer.append(buffer, len(buffer), NOW, count, True, deadline)

    def _resend(self, again: list[bytes]) -> None:
        for start in range(0, len(again), CHUNK_ROWS):
            part = again[start : start + CHUNK_ROWS]
            self._transmit(b"".join(part), len(part))

    def _resend_all(self) -> None:
        self._times.resent(monotonic())
        self._resend(self._in_flight.all_again())

    def _wait(self) -> None:
        """Wait for events, process them, and check the timeouts."""
        try:
            self._process(self._events.get(Deadline(self._times.next_check(monotonic()))))
            events = self._events.items
            while events:
                self._process(events.popleft())
        except errors.TimeoutError:
            pass
        now = monotonic()
        due = self._times.due(now)
        if due is Due.GIVE_UP:
            raise self._timeout_error()
        if due is Due.RETRY:
            self._retry(now)
        elif due is Due.RESEND:
            self._resend_all()

    def _timeout_error(self) -> errors.Error:
        if not self._in_flight.rows:
            return errors.TimeoutError(f"not connected to a server for {self._ack_timeout:g} s")
        for number, (_, refusal) in self._in_flight.refused.items():
            return self._row_error(number, refusal)
        error = self._in_flight.oldest_error("no acknowledgement")
        others = self._in_flight.rows - 1
        return errors.TimeoutError(
            f"{error} for {self._ack_timeout:g} s; {others} other rows are unacknowledged"
        )

    def _retry(self, now: float) -> None:
        refused = self._in_flight.refused
        for number, (until, error) in refused.items():
            if now >= until:
                raise self._row_error(number, error)
        self._times.retried()
        if refused:
            self._times.refused(now)
            self._resend(self._in_flight.again(refused))

    # --- acknowledgements -----------------------------------------------------------------------

    def _process(self, event: AckEvent) -> None:
        """Process what the reader thread has reported."""
        if isinstance(event, bool):
            self._times.is_connected = event
            if event:
                self._resend_all()
        elif isinstance(event, _Denial):
            number = self._in_flight.row_for_subject(event.subject)
            if number is None:
                raise event.error
            reason = str(event.error)
            raise self._in_flight.encoder.error(number, event.subject, reason) from event.error
        else:
            self._process_acks(event)

    def _process_acks(self, deliveries: list[RawMessage]) -> None:
        # Splitting at the common bytes leaves the sequences, at little cost per acknowledgement.
        prefix = self._ack_prefix = self._ack_prefix or _ack_prefix(deliveries[0][PAYLOAD])
        if not prefix:
            self._process_each(deliveries)
            return
        replies = Replies()
        replies += deliveries
        payloads = replies.column(PAYLOAD).data
        tails = payloads[len(prefix) : -1].split(b"}" + prefix)
        if len(tails) != len(deliveries) or not payloads.startswith(prefix):
            self._process_each(deliveries)
            return
        try:
            sequences = list(map(int, tails))
            duplicates = 0
        except ValueError:
            sequences = [int(tail.partition(b",")[0]) for tail in tails]
            duplicates = sum([_DUPLICATE in tail for tail in tails])
        counts = Counter(replies.column(SUBJECT))
        stored = sum(map(self._in_flight.acknowledge, counts, counts.values()))
        if stored:
            self._count(min(sequences), max(sequences), min(duplicates, stored))

    def _process_each(self, deliveries: list[RawMessage]) -> None:
        """Process acknowledgements of which some contain more than a sequence."""
        for reply, _, header, payload in deliveries:
            ack = self._parse_ack(reply, header, payload)
            # No row leaves if this one was acknowledged before, or waits for an earlier one.
            if ack is not None and self._in_flight.acknowledge(reply, 1):
                self._count(ack.seq, ack.seq, ack.duplicate)

    def _count(self, lowest: int, highest: int, duplicates: int) -> None:
        """Add acknowledged rows to the stats."""
        self.stats.stored(lowest, highest)
        self.stats.duplicates += duplicates
        self._times.acknowledged(monotonic())

    def _parse_ack(self, reply: bytes, header: bytes, payload: bytes) -> PubAck | None:
        """Return the acknowledgement in a reply; handle the reply if it is an error."""
        error: errors.Error
        if header and not payload:
            status = parse_status(header)
            error = errors.InvalidResponseError(f"unexpected reply to a publish: {header[:60]!r}")
            if status is not None and status.code == StatusCode.NO_RESPONDERS:
                error = errors.NoStreamResponseError("")
        else:
            try:
                return PubAck.from_json(loads(payload))
            except errors.Error as refusal:
                error = refusal
        # Sending each row of a chunk individually shows which one was refused.
        numbers = self._in_flight.split(reply)
        if numbers is not None:
            self._resend(self._in_flight.again(numbers))
        elif (number := self._in_flight.pending_row(reply)) is not None:
            self._handle_refusal(number, error)
        return None

    def _handle_refusal(self, number: int, error: errors.Error) -> None:
        """Schedule a refused row to be sent again, or raise an error if it cannot be stored."""
        retriable = is_retriable(error)
        if isinstance(error, errors.NoStreamResponseError):
            subject = self._in_flight.subject_of(number).decode("utf-8", "replace")
            error = errors.NoStreamResponseError(subject)
            retriable = self._stream_accepts(subject)
        if not retriable:
            raise self._row_error(number, error)
        now = monotonic()
        self._times.refused(now)
        self._in_flight.refused.setdefault(number, (now + self._ack_timeout, error))

    def _row_error(self, number: int, error: errors.Error) -> RowError:
        reason = f"the server refused it: {error}"
        if isinstance(error, (errors.WrongLastSequenceError, errors.WrongLastMsgIDError)):
            reason += _EXPECTATION_HINT
        elif (
            isinstance(error, errors.APIError)
            and error.err_code == errors.ErrorCode.DUPLICATE_MESSAGE_CONFLICT
        ):
            reason += _ID_IN_PROCESS_HINT
        made = self._in_flight.error(number, reason)
        made.__cause__ = error
        return made


def _ack_prefix(payload: bytes) -> bytes:
    """Return the bytes of an acknowledgement before its sequence; empty: it is an error."""
    try:
        PubAck.from_json(loads(payload))
    except errors.Error:
        return b""
    before, name, _ = payload.partition(_SEQUENCE)
    return before + name if name else b""
