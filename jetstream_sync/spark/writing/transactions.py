"""
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

from collections.abc import Iterable, Iterator
from time import sleep
from typing import Final

from ...errors import (
    APIError,
    ConnectionLostError,
    Error,
    NoStreamResponseError,
    OutboundBufferLimitError,
    TimeoutError,
    WrongLastSequenceError,
)
from ...net.clock import Deadline
from ..patience import patiently
from .atomic import BATCH_ROWS, AtomicBatches
from .ids import RowIds
from .markers import Marker, Markers
from .publishing import Tally
from .refusals import SinkError, is_passing
from .rows import Rows
from .stored import StoredIds

__all__ = ["TransactionWriter"]

#: Bytes of a batch from which on it is not made longer.
_BYTES: Final = 8 * 1024 * 1024
#: Parts of the time, in one of which the answer to a batch has to come before it is sent again: the
#: leader of a stream that steps down forgets a batch, and says nothing.
_ATTEMPTS: Final = 4
#: Seconds before what was refused is looked at again.
_TICK: Final = 0.05
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
        batches: AtomicBatches,
        markers: Markers,
        batch: int,
        timeout: float,
        ids: RowIds,
        stored: StoredIds | None,
    ) -> None:
        self._batches = batches
        self._markers = markers
        self._batch = batch
        self._timeout = timeout
        self._ids = ids
        self._stored = stored
        self._marker: Marker | None = None
        self.tally = Tally()

    def write(self, parts: Iterable[Rows]) -> None:
        """
        Write all rows that are not stored yet.

        Args:
            parts: the rows of the partition.

        Raises:
            SinkError: the stream does not take them.
            TimeoutError: a batch was not stored in time; trying the partition again is safe.
            ConnectionClosedError: the connection is closed.

        """
        self._look()
        for rows in self._batched(parts):
            written = self._store(rows)
            tally, marker = self.tally, self._marker
            tally.rows += len(rows)
            tally.duplicates += len(rows) - written
            if marker is not None and marker.batch == self._batch:
                tally.stored(marker.first_seq, marker.last_seq)

    def _batched(self, parts: Iterable[Rows]) -> Iterator[Rows]:
        """Give the rows their ids, and join those that go into one batch."""
        waiting: list[Rows] = []
        count = size = 0
        for part in parts:
            rows = part.with_ids(self._ids.of(part))
            more = sum(map(len, rows.data))
            if waiting and (count + len(rows) > BATCH_ROWS or size + more > _BYTES):
                yield Rows.joined(waiting)
                waiting, count, size = [], 0, 0
            waiting.append(rows)
            count += len(rows)
            size += more
        if waiting:
            yield Rows.joined(waiting)

    # --- what is stored already -----------------------------------------------------------------

    def _look(self) -> None:
        """Read the last note, and what it speaks of."""
        self._marker = patiently(self._markers.read, self._timeout, "reading a marker")
        marker = self._marker
        if self._stored is not None and marker is not None and marker.batch == self._batch:
            self._stored.read(marker.first_seq, marker.last_seq + 1)

    def _missing(self, rows: Rows) -> Rows:
        """Return the rows that are not stored."""
        marker = self._marker
        if marker is None or marker.batch < self._batch:
            return rows
        if marker.batch > self._batch:
            # A later micro-batch is only begun when this one is through.
            return rows.chosen(())
        if self._stored is not None:
            assert rows.ids is not None
            return rows.chosen(self._stored.missing(rows.ids))
        return rows.chosen([i for i, row in enumerate(rows.numbers) if row >= marker.rows])

    # --- storing --------------------------------------------------------------------------------

    def _store(self, rows: Rows) -> int:
        """Store what is not stored of some rows, and return how many that were."""
        deadline = Deadline(self._timeout)
        while True:
            left = self._missing(rows)
            if not left.data:
                return 0
            before = self._marker
            here = before if before is not None and before.batch == self._batch else None
            note = Marker(
                batch=self._batch,
                rows=rows.numbers[-1] + 1,
                first_seq=here.first_seq if here is not None else 0,
            )
            try:
                ack = self._batches.commit(
                    self._markers.subject.encode(),
                    self._markers.header_lines(before.seq if before is not None else 0),
                    note.to_json(len(left)),
                    left,
                    deadline.sooner(self._timeout / _ATTEMPTS),
                )
            except (
                APIError,
                ConnectionLostError,
                NoStreamResponseError,
                OutboundBufferLimitError,
                TimeoutError,
            ) as error:
                self._endure(error, left, deadline)
            else:
                self._marker = note.stored(ack.seq - len(left), len(left))
                return len(left)

    def _endure(self, error: Error, rows: Rows, deadline: Deadline) -> None:
        """Look what is stored after a batch was refused, or nothing is known of it; or raise why."""
        refused = isinstance(error, (APIError, NoStreamResponseError))
        conflict = isinstance(error, APIError) and error.err_code in _CONFLICTS
        if refused and not conflict and not is_passing(error):
            raise _refusal(rows, error) from error
        if deadline.expired():
            raise TimeoutError(f"a batch was not stored in {self._timeout:g} s: {error}") from error
        before = self._marker
        sleep(min(_TICK, deadline.left() or 0.0))
        self._look()
        if conflict and self._marker == before:
            # Nobody else was there, so it is about a row.
            raise _refusal(rows, error) from error


def _refusal(rows: Rows, error: Error) -> SinkError:
    some = f"one of the rows {rows.numbers[0]} to {rows.numbers[-1]} of a partition was refused"
    if isinstance(error, WrongLastSequenceError):
        return SinkError(f"{some}, it expects another message on its subject: {error}")
    if isinstance(error, APIError) and error.err_code in _CONFLICTS:
        return SinkError(f"{some}, it has a msg_id that is in the stream already: {error}")
    return SinkError(f"{some}, so that none of them was stored: {error}")
