"""
Rows in atomic batches, each with a note of how far the partition has come.

The note is the first message of its batch, and the stream takes it only while the last note is the one that was
seen. So what was stored once is refused the second time, however long the outage was, and also
where a first attempt that was given up still runs. It comes first since the first expectation that is not
met is what a batch is refused for.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from hashlib import blake2b
from time import sleep
from typing import Final, NamedTuple

from ..errors import (
    APIError,
    ConnectionLostError,
    Error,
    NoStreamResponseError,
    OutboundBufferLimitError,
    TimeoutError,
    WrongLastSequenceError,
)
from ..net.clock import Deadline
from .atomic import BATCH_ROWS, AtomicBatches
from .ids import digests
from .markers import Marker, Markers
from .patience import patiently
from .publishing import Tally
from .refusals import NotExactlyOnceError, SinkError, is_passing
from .rows import Rows

__all__ = ["TransactionWriter"]

#: Bytes of a batch from which on it is not made longer.
_BYTES: Final = 8 * 1024 * 1024
#: Seconds before what was refused for a moment is sent again.
_TICK: Final = 0.1
#: Said where a message id of a batch is known already.
_DUPLICATE_ID: Final = 10201
#: The last sequence is not the expected one; 10164 is said where another message is on its way.
_WRONG_LAST: Final = 10071


class _Part(NamedTuple):
    """What goes into one batch."""

    rows: Rows
    hashes: list[bytes]


class TransactionWriter:
    """
    Writes the rows of a partition in atomic batches; for one thread.

    Args:
        batches: what sends them.
        markers: the notes of the partition.
        batch: the number of the micro-batch.
        timeout: seconds that one atomic batch may take until it is stored.
        in_order: whether the rows come in the same order each time. If not they are all held, and
            sorted by their hashes, unless one atomic batch takes them.

    """

    def __init__(
        self,
        batches: AtomicBatches,
        markers: Markers,
        batch: int,
        timeout: float,
        *,
        in_order: bool,
    ) -> None:
        self._batches = batches
        self._markers = markers
        self._batch = batch
        self._timeout = timeout
        self._in_order = in_order
        self._marker: Marker | None = None
        self.tally = Tally()

    def write(self, rows: Iterable[Rows]) -> None:
        """
        Write all rows that are not stored yet.

        Args:
            rows: those of the partition.

        Raises:
            SinkError: the stream does not take them, or has others of this batch.
            TimeoutError: a batch was not stored in time; trying the partition again is safe.
            ConnectionClosedError: the connection is closed.

        """
        self._marker = self._read()
        if self._is_all_stored():
            for some in rows:
                self._count(some, stored_before=True)
            return
        digest = b""
        for chunk, (part, last) in enumerate(_with_last(self._parts(rows))):
            digest = blake2b(digest + b"".join(part.hashes), digest_size=16).digest()
            note = Marker(
                batch=self._batch,
                chunk=chunk,
                last=last,
                rows=self.tally.rows + len(part.rows),
                digest=digest.hex(),
                first_seq=self.tally.first_seq or 0,
            )
            self._count(part.rows, stored_before=not self._store(part.rows, note))

    def _count(self, rows: Rows, *, stored_before: bool) -> None:
        tally, marker = self.tally, self._marker
        tally.rows += len(rows)
        if stored_before:
            tally.duplicates += len(rows)
        if marker is not None and marker.batch == self._batch:
            tally.stored(marker.first_seq, marker.last_seq)

    # --- what is stored already -----------------------------------------------------------------

    def _read(self) -> Marker | None:
        return patiently(self._markers.read, self._timeout, "reading a marker")

    def _is_all_stored(self) -> bool:
        """Say whether a note says that the whole partition is stored, or a later batch of it."""
        marker = self._marker
        if marker is None:
            return False
        return marker.batch > self._batch or (marker.batch == self._batch and marker.last)

    def _is_stored(self, note: Marker) -> bool:
        """
        Say whether what a note would speak of is stored already.

        Raises:
            NotExactlyOnceError: other rows are there in its place.

        """
        marker = self._marker
        if marker is None or marker.batch < note.batch:
            return False
        if self._is_all_stored():
            return True
        if marker.chunk == note.chunk and marker.digest != note.digest:
            raise NotExactlyOnceError(
                f"the stream has the first {marker.rows} rows of batch {marker.batch} already "
                f"({self._markers.subject}), and they are not what the query gives now: it is not "
                "the same each time it runs"
            )
        return marker.chunk >= note.chunk

    # --- storing --------------------------------------------------------------------------------

    def _store(self, rows: Rows, note: Marker) -> bool:
        """Store rows with a note; say whether that was done now, and not found to be done."""
        deadline = Deadline(self._timeout)
        while not self._is_stored(note):
            seen = self._marker.seq if self._marker is not None else 0
            try:
                ack = self._batches.commit(
                    self._markers.subject.encode(),
                    self._markers.header_lines(seen),
                    note.to_json(len(rows)),
                    rows,
                    deadline,
                )
            except (
                ConnectionLostError,
                OutboundBufferLimitError,
                TimeoutError,
                WrongLastSequenceError,
            ) as error:
                self._look_again(error, deadline)
            except (APIError, NoStreamResponseError) as error:
                if not is_passing(error):
                    raise _refused(rows, error) from error
                self._look_again(error, deadline)
            else:
                self._marker = note.stored(ack.seq - len(rows), len(rows))
                return True
        return False

    def _look_again(self, error: Error, deadline: Deadline) -> None:
        """Read the note after a batch that was refused, or of which nothing is known."""
        before = self._marker
        if deadline.expired():
            raise TimeoutError(f"a batch was not stored in {self._timeout:g} s: {error}") from error
        sleep(min(_TICK, deadline.left() or 0.0))
        self._marker = self._read()
        if (
            isinstance(error, WrongLastSequenceError)
            and error.err_code == _WRONG_LAST
            and self._marker == before
        ):
            raise SinkError(
                f"a row expects another last sequence on its subject: {error}"
            ) from error

    # --- what goes into a batch -----------------------------------------------------------------

    def _parts(self, rows: Iterable[Rows]) -> Iterator[_Part]:
        """Cut rows into parts that are the same each time."""
        if self._in_order:
            yield from _cut(_Part(some, digests(some)) for some in rows)
            return
        held = [_Part(some, digests(some)) for some in rows]
        if sum(len(part.rows) for part in held) <= BATCH_ROWS:
            yield from _cut(held)
            return
        every = _joined(held)
        order = sorted(range(len(every.rows)), key=every.hashes.__getitem__)
        yield from _cut([_chosen(every, order)])


def _refused(rows: Rows, error: Error) -> SinkError:
    some = f"one of {len(rows)} rows ({rows.numbers[0]} to {rows.numbers[-1]} of the partition)"
    if isinstance(error, APIError) and error.err_code == _DUPLICATE_ID:
        return SinkError(
            f"{some} has a msg_id that is in the stream already, or in another of them: {error}"
        )
    return SinkError(f"{some} was refused, so that none was stored: {error}")


def _cut(parts: Iterable[_Part]) -> Iterator[_Part]:
    """Join parts, and cut them where a batch is full."""
    waiting: list[_Part] = []
    for part in parts:
        waiting.append(part)
        count = sum(len(each.rows) for each in waiting)
        size = sum(sum(map(len, each.rows.data)) for each in waiting)
        if count < BATCH_ROWS and size < _BYTES:
            continue
        every = _joined(waiting)
        start = used = 0
        for i, data in enumerate(every.rows.data):
            if i - start >= BATCH_ROWS or (used and used + len(data) > _BYTES):
                yield _chosen(every, range(start, i))
                start, used = i, 0
            used += len(data)
        waiting = [_chosen(every, range(start, len(every.rows)))]
    if waiting and len(waiting[0].rows):
        yield _joined(waiting)


def _joined(parts: list[_Part]) -> _Part:
    if len(parts) == 1:
        return parts[0]
    return _Part(Rows.joined([part.rows for part in parts]), [h for p in parts for h in p.hashes])


def _chosen(part: _Part, indices: list[int] | range) -> _Part:
    return _Part(part.rows.chosen(indices), [part.hashes[i] for i in indices])


def _with_last(parts: Iterator[_Part]) -> Iterator[tuple[_Part, bool]]:
    """Yield parts, and whether each is the last one."""
    before = next(parts, None)
    for part in parts:
        assert before is not None
        yield before, False
        before = part
    if before is not None:
        yield before, True
