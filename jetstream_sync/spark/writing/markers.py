"""
Notes of how far a sink has come, kept in the stream that it writes to.

Each partition of a query has a subject of its own there, and the last message on it counts. So a note
needs no second stream, lives as long as what it speaks of, and has its place in the same order: what
was written behind a note has a higher sequence. Who writes one says which one he saw last
(``Nats-Expected-Last-Subject-Sequence``), so of two attempts at one partition only one gets through.

A note is read from the stream's leader: a replica may not have the newest one yet.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from ...codec import dumps, loads
from ...errors import InvalidResponseError, MessageNotFoundError
from ...headers import EXPECTED_LAST_SUBJECT_SEQ
from ...jetstream.context import JetStream
from ...jetstream.requests import APIRequests
from ...jetstream.stored import leader_get
from .ids import Origin

__all__ = ["Marker", "Markers"]

_VERSION: Final = 1
_ROLLUP: Final = "Nats-Rollup"


@dataclass(frozen=True, kw_only=True)
class Marker:
    """How far the rows of a partition have been written."""

    batch: int
    """The last micro-batch that was begun."""

    rows: int = 0
    """How many of its rows are stored, where they come in an order."""

    first_seq: int = 0
    """The sequence of the first marker of the batch; 0: it is this one."""

    last_seq: int = 0
    """The sequence of the last row that was stored with this marker; its own without any."""

    seq: int = 0
    """The sequence of the marker itself; 0: there is none yet."""

    def stored(self, seq: int, rows: int) -> Marker:
        """Return the marker as it is once it is stored, with rows behind it."""
        return replace(self, seq=seq, first_seq=self.first_seq or seq, last_seq=seq + rows)

    def to_json(self, rows: int = 0) -> bytes:
        """Return what is written with so many rows behind it."""
        return dumps(
            {
                "v": _VERSION,
                "batch": self.batch,
                "rows": self.rows,
                "first": self.first_seq,
                "here": rows,
            }
        )


class Markers:
    """
    The notes of one partition of a query or job.

    Args:
        api: the JetStream API.
        stream: the stream.
        prefix: what their subjects begin with.
        origin: the query or job, and the partition.
        roll_up: whether a note may replace those before it.

    """

    def __init__(
        self, api: APIRequests, stream: str, prefix: str, origin: Origin, *, roll_up: bool
    ) -> None:
        self._api = api
        self._stream = stream
        self._roll_up = roll_up
        self.subject = f"{prefix}.{origin.token}.{origin.partition}"

    def read(self) -> Marker | None:
        """
        Return the last note, ``None`` when there is none.

        Raises:
            InvalidResponseError: it is none of ours.
            Error: as `Stream.get_msg`.

        """
        request = {"last_by_subj": self.subject}
        try:
            found = leader_get(self._api, self._stream, request, self._api.deadline())
        except MessageNotFoundError:
            return None
        fields = loads(found.data)
        if not isinstance(fields, dict) or fields.get("v") != _VERSION:
            raise InvalidResponseError(
                f"what is on {self.subject!r} was not written by this sink, or by a newer one"
            )
        marker = Marker(
            batch=int(fields["batch"]),
            rows=int(fields["rows"]),
            first_seq=int(fields["first"]),
        )
        return marker.stored(found.seq, int(fields["here"]))

    def write(self, js: JetStream, marker: Marker, seen: int) -> int:
        """
        Store a note alone, and return its sequence.

        Args:
            js: JetStream.
            marker: the note.
            seen: the sequence of the last one, 0 for none.

        Raises:
            WrongLastSequenceError: it is not the last one any more.
            Error: as `JetStream.publish`.

        """
        return js.publish(
            self.subject,
            marker.to_json(),
            stream=self._stream,
            expected_last_subject_sequence=seen,
            headers={_ROLLUP: "sub"} if self._roll_up else None,
        ).seq

    def header_lines(self, seen: int) -> bytes:
        """Return the header lines of a note: it is taken only while the last one has that sequence."""
        lines = b"%b: %d\r\n" % (EXPECTED_LAST_SUBJECT_SEQ.encode(), seen)
        return b"%b%b: sub\r\n" % (lines, _ROLLUP.encode()) if self._roll_up else lines
