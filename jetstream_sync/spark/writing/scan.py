"""
Skip what an earlier attempt has stored, by looking at what the stream has.

Before the first row of a partition is written, a note goes to the stream itself, on a subject of the
partition, see `markers`. An attempt that finds the note of its own batch reads the headers of what was stored
behind it, and leaves out the rows whose ids are there. That is looked at once: what another attempt
stores at the same time is told by the ids alone, within the stream's duplicate window.
"""

from __future__ import annotations

from ...errors import WrongLastSequenceError
from ...jetstream.context import JetStream
from ..patience import patiently
from .markers import Marker, Markers
from .stored import StoredIds

__all__ = ["Scan"]


class Scan:
    """
    What of a partition is stored, by a note and the ids behind it.

    Args:
        js: JetStream.
        markers: the notes of the partition.
        batch: the number of the micro-batch.
        stored: what reads ids.

    """

    def __init__(self, js: JetStream, markers: Markers, batch: int, stored: StoredIds) -> None:
        self._js = js
        self._markers = markers
        self._batch = batch
        self.stored = stored
        #: The sequence of the note.
        self.seq = 0
        #: Whether a later batch was begun, so that all of this one is stored.
        self.is_over = False

    def begin(self, timeout: float) -> None:
        """
        Find the note of an earlier attempt and read what is behind it, or write one.

        Args:
            timeout: seconds for which errors that pass are waited out.

        Raises:
            RangeLostError: messages behind the note have left the stream.
            Error: the stream can not be read or written.

        """
        marker = patiently(self._note, timeout, "writing a marker")
        if marker is not None:
            self.seq = marker.seq
            self.is_over = marker.batch > self._batch
            if not self.is_over:
                self.stored.read(marker.seq + 1, None)

    def _note(self) -> Marker | None:
        """Return the note of an earlier attempt, or write one and return ``None``."""
        while True:
            marker = self._markers.read()
            if marker is not None and marker.batch >= self._batch:
                return marker
            seen = marker.seq if marker is not None else 0
            try:
                self.seq = self._markers.write(self._js, Marker(batch=self._batch), seen)
            except WrongLastSequenceError:
                continue  # another attempt was faster
            return None
