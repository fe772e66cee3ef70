"""
Notes of how far a sink has come, kept in the stream that it writes to.

Each partition of a query has a subject of its own there, and the last message on it counts. So a note
needs no second stream, lives as long as what it speaks of, and has its place in the same order: what
was written behind a note has a higher sequence. Who writes one says which one he saw last
(``Nats-Expected-Last-Subject-Sequence``), so of two attempts at one partition only one gets through.

A note is read from the stream's leader: a replica may not have the newest one yet.

Which rows of a partition an earlier attempt has stored, read from the headers of the stream itself.

Skip what an earlier attempt has stored, by looking at what the stream has.

Before the first row of a partition is written, a note goes to the stream itself, on a subject of the
partition, see `checkpoints`. An attempt that finds the note of its own batch reads the headers of what was stored
behind it, and leaves out the rows whose ids are there. That is looked at once: what another attempt
stores at the same time is told by the ids alone, within the stream's duplicate window.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from ...codec import dumps, loads
from ...errors import InvalidResponseError, MessageNotFoundError, WrongLastSequenceError
from ...headers import EXPECTED_LAST_SUBJECT_SEQ, MSG_ID
from ...jetstream.connection import Connection
from ...jetstream.context import JetStream
from ...jetstream.requests import APIRequests
from ...jetstream.stored import leader_get
from ...nanos import time_to_ns
from ..options import WriteOptions
from ..reading.range_reader import ReadPlan, read_chunks
from ..reading.ranges import SequenceRange
from ..retry import retry_transient
from .message_ids import WriteTaskId

__all__ = ["Checkpoint", "CheckpointStore", "ScanRecovery", "StoredIds"]

_VERSION: Final = 1
_ROLLUP: Final = "Nats-Rollup"


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
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

    def stored(self, seq: int, rows: int) -> Checkpoint:
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


class CheckpointStore:
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
        self, api: APIRequests, stream: str, prefix: str, task_id: WriteTaskId, *, roll_up: bool
    ) -> None:
        self._api = api
        self._stream = stream
        self._roll_up = roll_up
        self.subject = f"{prefix}.{task_id.token}.{task_id.partition}"

    def read(self) -> Checkpoint | None:
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
        checkpoint = Checkpoint(
            batch=int(fields["batch"]),
            rows=int(fields["rows"]),
            first_seq=int(fields["first"]),
        )
        return checkpoint.stored(found.seq, int(fields["here"]))

    def write(self, js: JetStream, checkpoint: Checkpoint, seen: int) -> int:
        """
        Store a note alone, and return its sequence.

        Args:
            js: JetStream.
            checkpoint: the note.
            seen: the sequence of the last one, 0 for none.

        Raises:
            WrongLastSequenceError: it is not the last one any more.
            Error: as `JetStream.publish`.

        """
        return js.publish(
            self.subject,
            checkpoint.to_json(),
            stream=self._stream,
            expected_last_subject_sequence=seen,
            headers={_ROLLUP: "sub"} if self._roll_up else None,
        ).seq

    def header_lines(self, seen: int) -> bytes:
        """Return the header lines of a note: it is taken only while the last one has that sequence."""
        lines = b"%b: %d\r\n" % (EXPECTED_LAST_SUBJECT_SEQ.encode(), seen)
        return b"%b%b: sub\r\n" % (lines, _ROLLUP.encode()) if self._roll_up else lines


_ID: Final = b"\r\n%b: " % MSG_ID.encode()


class StoredIds:
    """
    The message ids that are in a part of a stream.

    Args:
        connection: where to read.
        js: JetStream on it.
        options: of the sink.
        prefix: what the ids begin with; empty: those of others are of interest, too.

    """

    def __init__(
        self, connection: Connection, js: JetStream, options: WriteOptions, prefix: bytes
    ) -> None:
        self._connection = connection
        self._js = js
        self._options = options
        self._prefix = prefix
        #: The ids that were read.
        self.ids: set[bytes] = set()

    def read(self, start_seq: int, end_seq: int | None) -> None:
        """
        Read them.

        Args:
            start_seq: where to begin.
            end_seq: the first sequence that is not read; ``None``: all there are now.

        Raises:
            RangeLostError: messages have left the stream.
            Error: it can not be read.

        """
        options, settings = self._options, self._options.connection
        info = self._js.get_stream(options.stream).cached_info
        if end_seq is None:
            end_seq = info.state.last_seq + 1
        part = SequenceRange(
            options.stream, start_seq, max(start_seq, end_seq), created_ns=time_to_ns(info.created)
        )
        plan = ReadPlan(
            domain=settings.domain, api_prefix=settings.api_prefix, timeout=settings.timeout
        )
        prefix = self._prefix
        for chunk in read_chunks(self._connection, part, frozenset({"headers"}), plan):
            for block in chunk.headers:
                start = block.find(_ID)
                if start >= 0:
                    found = block[start + len(_ID) : block.index(b"\r\n", start + 2)]
                    if found.startswith(prefix):
                        self.ids.add(found)

    def missing(self, ids: Sequence[bytes]) -> Sequence[int]:
        """Return the places of the ids that are not among them."""
        if self.ids.isdisjoint(ids):
            return range(len(ids))
        return [place for place, each in enumerate(ids) if each not in self.ids]


class ScanRecovery:
    """
    What of a partition is stored, by a note and the ids behind it.

    Args:
        js: JetStream.
        markers: the notes of the partition.
        batch: the number of the micro-batch.
        stored: what reads ids.

    """

    def __init__(
        self, js: JetStream, checkpoints: CheckpointStore, batch: int, stored: StoredIds
    ) -> None:
        self._js = js
        self._checkpoints = checkpoints
        self._batch = batch
        self.stored = stored
        #: The sequence of the note.
        self.seq = 0
        #: Whether a later batch was begun, so that all of this one is stored.
        self.batch_is_complete = False

    def begin(self, timeout: float) -> None:
        """
        Find the note of an earlier attempt and read what is behind it, or write one.

        Args:
            timeout: seconds for which errors that pass are waited out.

        Raises:
            RangeLostError: messages behind the note have left the stream.
            Error: the stream can not be read or written.

        """
        checkpoint = retry_transient(self._find_or_write, timeout, "writing a marker")
        if checkpoint is not None:
            self.seq = checkpoint.seq
            self.batch_is_complete = checkpoint.batch > self._batch
            if not self.batch_is_complete:
                self.stored.read(checkpoint.seq + 1, None)

    def _find_or_write(self) -> Checkpoint | None:
        """Return the note of an earlier attempt, or write one and return ``None``."""
        while True:
            checkpoint = self._checkpoints.read()
            if checkpoint is not None and checkpoint.batch >= self._batch:
                return checkpoint
            seen = checkpoint.seq if checkpoint is not None else 0
            try:
                self.seq = self._checkpoints.write(self._js, Checkpoint(batch=self._batch), seen)
            except WrongLastSequenceError:
                continue  # another attempt was faster
            return None
