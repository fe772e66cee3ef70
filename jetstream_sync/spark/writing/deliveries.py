"""Write the rows of one partition, in the way that the options ask for."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial

from ...jetstream.connection import Connection
from ..connections import connection
from ..options import WriteOptions
from ..patience import patiently
from ..reading.api import api_of
from .atomic import BATCH_ROWS, AtomicBatches
from .ids import ContentIds, GivenIds, Origin, PositionIds, RowIds
from .markers import Markers
from .publishing import CHUNK_BYTES, CHUNK_ROWS, AckWindow, Tally
from .rows import Columns, Encoder, RowLayout, Rows
from .scan import Scan
from .stored import StoredIds
from .targets import Target
from .transactions import TransactionWriter

__all__ = ["Delivery", "Written"]


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
class Delivery:
    """
    How rows are written; the same for all partitions, and made once, on the driver.

    It can be pickled; what it shows has no secrets.
    """

    options: WriteOptions
    """What the user wants."""

    layout: RowLayout
    """The columns of the rows."""

    target: Target
    """What is known of the stream."""

    def write(self, origin: Origin, columns: Iterable[Columns]) -> Written:
        """
        Write the rows of a partition; on return the stream has every one.

        Args:
            origin: the query or job, batch and partition.
            columns: the rows, in parts.

        Raises:
            SinkError: the stream does not take them; with `RowError` a row is the reason.
            TimeoutError: the server did not answer in time. Some rows are stored.
            Error: there is no connection, or it broke for good.

        """
        options = self.options
        connected = patiently(
            partial(connection, options.connection), options.ack_timeout, "connecting"
        )
        encoder = Encoder(origin.partition, options.stream, options.subject)
        size = _Size()
        rows = self._rows(encoder, columns, size)
        if options.delivery == "transaction":
            tally = self._in_transactions(connected, encoder, origin, rows)
        else:
            tally = self._published(connected, encoder, origin, rows)
        return Written(
            partition=origin.partition,
            rows=tally.rows,
            duplicates=tally.duplicates,
            bytes=size.bytes,
            first_seq=tally.first_seq,
            last_seq=tally.last_seq,
        )

    def _rows(self, encoder: Encoder, columns: Iterable[Columns], size: _Size) -> Iterator[Rows]:
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
        self, connected: Connection, encoder: Encoder, origin: Origin, parts: Iterable[Rows]
    ) -> Tally:
        options = self.options
        js = options.connection.jetstream(connected)
        scan = None
        if options.delivery == "scan":
            stored = self._stored(connected, origin)
            scan = Scan(js, self._markers(connected, origin), origin.batch, stored)
            scan.begin(options.ack_timeout)
        ids = self._ids(origin)
        alone = any(name.startswith("expected_") for name in self.layout.names)
        skipped = 0
        window = AckWindow(
            api_of(js).core, encoder, options.max_pending, options.ack_timeout, self.target.takes
        )
        try:
            for part in parts:
                rows = part.with_ids(ids.of(part))
                if scan is not None:
                    assert rows.ids is not None
                    rows = rows.chosen(() if scan.is_over else scan.stored.missing(rows.ids))
                    skipped += len(part) - len(rows)
                if rows.data:
                    window.send(rows, alone=alone)
            window.finish()
        finally:
            window.close()
        tally = window.tally
        tally.rows += skipped
        tally.duplicates += skipped
        if scan is not None:
            tally.stored(scan.seq, scan.seq)
        return tally

    def _in_transactions(
        self, connected: Connection, encoder: Encoder, origin: Origin, parts: Iterable[Rows]
    ) -> Tally:
        options = self.options
        in_order = options.ids == "position"
        batches = AtomicBatches(api_of(options.connection.jetstream(connected)).core, encoder)
        try:
            writer = TransactionWriter(
                batches,
                self._markers(connected, origin),
                origin.batch,
                options.ack_timeout,
                GivenIds() if in_order else self._ids(origin),
                None if in_order else self._stored(connected, origin),
            )
            writer.write(parts)
        finally:
            batches.close()
        return writer.tally

    def _ids(self, origin: Origin) -> RowIds:
        if self.options.delivery == "at-least-once":
            return GivenIds()
        return PositionIds(origin) if self.options.ids == "position" else ContentIds(origin)

    def _stored(self, connected: Connection, origin: Origin) -> StoredIds:
        # Ids of a column of their own may begin with anything.
        prefix = b"" if "msg_id" in self.layout.names else origin.prefix()
        js = self.options.connection.jetstream(connected)
        return StoredIds(connected, js, self.options, prefix)

    def _markers(self, connected: Connection, origin: Origin) -> Markers:
        options = self.options
        assert options.marker_subject is not None
        return Markers(
            api_of(options.connection.jetstream(connected)),
            options.stream,
            options.marker_subject,
            origin,
            roll_up=self.target.allows_rollup,
        )


class _Size:
    """Counts the bytes of payloads."""

    bytes = 0
