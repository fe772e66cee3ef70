"""
Skip what an earlier attempt has stored, by looking at what the stream has.

Before the first row of a partition is written, a note goes to the stream itself, on a subject of the
partition, see `markers`. An attempt that finds the note of its own batch reads the headers of what was stored
behind it, and leaves out the rows whose ids are there. The ids do the rest: two attempts that
run at the same time are told apart by the stream's duplicate window, however short it is.
"""

from __future__ import annotations

from typing import Final

from ..errors import WrongLastSequenceError
from ..headers import MSG_ID
from ..jetstream.connection import Connection
from ..jetstream.context import JetStream
from ..nanos import time_to_ns
from .ids import Origin
from .markers import Marker, Markers
from .options import WriteOptions
from .patience import patiently
from .publishing import Tally
from .ranges import SequenceRange
from .reading import ReadPlan, read_chunks
from .rows import Rows

__all__ = ["StoredIds"]

_ID: Final = b"\r\n%b: " % MSG_ID.encode()


class StoredIds:
    """
    The ids of the rows of a partition that are in the stream.

    Args:
        connection: where to read.
        js: JetStream on it.
        options: of the sink.
        markers: the notes of the partition.
        origin: where the rows come from.

    """

    def __init__(
        self,
        connection: Connection,
        js: JetStream,
        options: WriteOptions,
        markers: Markers,
        origin: Origin,
    ) -> None:
        self._connection = connection
        self._js = js
        self._options = options
        self._markers = markers
        self._origin = origin
        #: The ids, once they were read.
        self.ids: set[bytes] = set()
        # Where the note is, and the last of them.
        self._first_seq: int | None = None
        self._last_seq: int | None = None
        #: Whether a later batch was written, so that all of this one is stored.
        self.all_stored = False

    def read(self, *, foreign: bool) -> None:
        """
        Read them, or note that an attempt begins.

        Args:
            foreign: whether rows may have ids that were not made here.

        Raises:
            RangeLostError: messages behind the note have left the stream.
            Error: the stream can not be read or written.

        """
        marker = patiently(self._begin, self._options.ack_timeout, "writing a marker")
        if marker is None:
            return
        if marker.batch > self._origin.batch:
            self.all_stored = True
            return
        self._first_seq = self._last_seq = marker.seq
        prefix = b"" if foreign else self._origin.prefix()
        info = self._js.get_stream(self._options.stream).cached_info
        stored = SequenceRange(
            self._options.stream,
            marker.seq + 1,
            max(marker.seq, info.state.last_seq) + 1,
            created_ns=time_to_ns(info.created),
        )
        connection = self._options.connection
        plan = ReadPlan(
            domain=connection.domain, api_prefix=connection.api_prefix, timeout=connection.timeout
        )
        for chunk in read_chunks(self._connection, stored, frozenset({"headers"}), plan):
            for block, seq in zip(chunk.headers, chunk.sequences, strict=False):
                start = block.find(_ID)
                if start >= 0:
                    found = block[start + len(_ID) : block.index(b"\r\n", start + 2)]
                    if found.startswith(prefix):
                        self.ids.add(found)
                        self._last_seq = seq

    def missing(self, rows: Rows, ids: list[bytes]) -> tuple[Rows, list[bytes]]:
        """Return the rows that are not stored, and their ids."""
        if not self.all_stored and self.ids.isdisjoint(ids):
            return rows, ids
        left = [i for i, each in enumerate(ids) if not self.all_stored and each not in self.ids]
        return rows.chosen(left), [ids[i] for i in left]

    def note(self, tally: Tally) -> None:
        """Add to a tally where the note is, and the rows that were stored before."""
        if self._first_seq is not None and self._last_seq is not None:
            tally.stored(self._first_seq, self._last_seq)

    def _begin(self) -> Marker | None:
        """Return the note of an earlier attempt, or write one and return ``None``."""
        while True:
            marker = self._markers.read()
            if marker is not None and marker.batch >= self._origin.batch:
                return marker
            note = Marker(batch=self._origin.batch)
            seen = marker.seq if marker is not None else 0
            try:
                self._first_seq = self._last_seq = self._markers.write(self._js, note, seen)
            except WrongLastSequenceError:
                continue  # another attempt was faster
            return None
