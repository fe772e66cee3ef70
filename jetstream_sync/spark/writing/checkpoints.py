"""
Write checkpoints: how far a partition has been written, stored in the target stream itself.

Each partition of a query has its own checkpoint subject, and the last message on it counts. So there is no
second stream, a checkpoint lives as long as the rows, and it is ordered with them: rows written after it have
higher sequences. A writer must know the last checkpoint (``Nats-Expected-Last-Subject-Sequence``), so only one
of two attempts succeeds. Checkpoints are read from the stream leader, since a replica may lag behind.

With ``delivery=scan`` a checkpoint is stored before the first row of a partition. A repeated attempt finds it,
reads the message ids stored after it, and skips those rows. The stream is read once. If another attempt writes
at the same time, only the duplicate window of the stream detects the duplicates.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from ...codec import dumps, loads
from ...durations import time_to_ns
from ...errors import InvalidResponseError, MessageNotFoundError, WrongLastSequenceError
from ...headers import EXPECTED_LAST_SUBJECT_SEQ, MSG_ID
from ...jetstream.api_requests import APIRequests
from ...jetstream.context import JetStream
from ...jetstream.direct_get import leader_get
from ..options import WriteOptions
from ..reading.range_reader import ReadPlan, read_chunks
from ..reading.ranges import SequenceRange
from ..retry import retry_transient
from .message_ids import WriteTaskId

_VERSION: Final = 1
_ROLLUP: Final = "Nats-Rollup"


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """How far the rows of a partition have been written."""

    batch: int
    """The last micro-batch that was started."""

    rows: int = 0
    """The number of its rows that are stored, if their order is stable."""

    first_seq: int = 0
    """The sequence of the first checkpoint of the batch; 0: this is the first one."""

    last_seq: int = 0
    """The sequence of the last row stored with this checkpoint; its own sequence without rows."""

    seq: int = 0
    """The sequence of the checkpoint itself; 0: it is not stored."""

    def stored(self, seq: int, rows: int) -> Checkpoint:
        """Return the checkpoint as stored, with a number of rows after it."""
        return replace(self, seq=seq, first_seq=self.first_seq or seq, last_seq=seq + rows)

    def to_json(self, rows: int = 0) -> bytes:
        """Return the message payload, for a number of rows after the checkpoint."""
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
    """The checkpoints of one partition of a query or job."""

    def __init__(
        self, api: APIRequests, stream: str, prefix: str, task_id: WriteTaskId, *, roll_up: bool
    ) -> None:
        self._api = api
        self._stream = stream
        self._roll_up = roll_up
        self.subject: str = f"{prefix}.{task_id.token}.{task_id.partition}"

    def read(self) -> Checkpoint | None:
        """Return the last checkpoint, ``None`` if there is none."""
        request = {"last_by_subj": self.subject}
        try:
            found = leader_get(self._api, self._stream, request, self._api.deadline())
        except MessageNotFoundError:
            return None
        fields = loads(found.data)
        if not isinstance(fields, dict) or fields.get("v") != _VERSION:
            raise InvalidResponseError(
                f"the message on {self.subject!r} is not a write checkpoint of this version: use another "
                "markerSubject, or the version of the package that wrote it"
            )
        checkpoint = Checkpoint(
            batch=int(fields["batch"]),
            rows=int(fields["rows"]),
            first_seq=int(fields["first"]),
        )
        return checkpoint.stored(found.seq, int(fields["here"]))

    def write(self, js: JetStream, checkpoint: Checkpoint, seen: int) -> int:
        """Store a checkpoint without rows, and return its sequence."""
        return js.publish(
            self.subject,
            checkpoint.to_json(),
            stream=self._stream,
            expected_last_subject_sequence=seen,
            headers={_ROLLUP: "sub"} if self._roll_up else None,
        ).seq

    def header_lines(self, seen: int) -> bytes:
        """Return header lines that make the server check the sequence of the last checkpoint."""
        lines = b"%b: %d\r\n" % (EXPECTED_LAST_SUBJECT_SEQ.encode(), seen)
        return b"%b%b: sub\r\n" % (lines, _ROLLUP.encode()) if self._roll_up else lines


_ID: Final = b"\r\n%b: " % MSG_ID.encode()


class StoredIds:
    """The message ids stored in a part of a stream."""

    def __init__(self, js: JetStream, options: WriteOptions, prefix: bytes) -> None:
        self._js = js
        self._options = options
        self._prefix = prefix
        #: The ids read so far.
        self.ids: set[bytes] = set()

    def read(self, start_seq: int, end_seq: int | None) -> None:
        """Read the ids of a sequence range."""
        options = self._options
        info = self._js.get_stream(options.stream).cached_info
        if end_seq is None:
            end_seq = info.state.last_seq + 1
        part = SequenceRange(
            options.stream, start_seq, max(start_seq, end_seq), created_ns=time_to_ns(info.created)
        )
        plan = ReadPlan(timeout=options.connection.timeout)
        prefix = self._prefix
        for chunk in read_chunks(self._js, part, frozenset({"headers"}), plan):
            for block in chunk.headers:
                start = block.find(_ID)
                if start >= 0:
                    found = block[start + len(_ID) : block.index(b"\r\n", start + 2)]
                    if found.startswith(prefix):
                        self.ids.add(found)

    def missing(self, ids: Sequence[bytes]) -> Sequence[int]:
        """Return the indices of the ids that are not stored."""
        if not self.ids or self.ids.isdisjoint(ids):
            return range(len(ids))
        return [index for index, each in enumerate(ids) if each not in self.ids]


class ScanRecovery:
    """Finds the rows of a partition that an earlier attempt has stored."""

    def __init__(
        self, js: JetStream, checkpoints: CheckpointStore, batch: int, stored: StoredIds
    ) -> None:
        self._js = js
        self._checkpoints = checkpoints
        self._batch = batch
        self.stored = stored
        #: The sequence of the checkpoint.
        self.seq: int = 0
        #: Whether a later batch was started, so that all rows of this one are stored.
        self.batch_is_complete: bool = False

    def begin(self, timeout: float) -> None:
        """Read what was stored after the checkpoint of an earlier attempt, or store one."""
        checkpoint = retry_transient(self._find_or_write, timeout, "writing a checkpoint")
        if checkpoint is not None:
            self.seq = checkpoint.seq
            self.batch_is_complete = checkpoint.batch > self._batch
            if not self.batch_is_complete:
                self.stored.read(checkpoint.seq + 1, None)

    def _find_or_write(self) -> Checkpoint | None:
        """Return the checkpoint of an earlier attempt, or store one and return ``None``."""
        while True:
            checkpoint = self._checkpoints.read()
            if checkpoint is not None and checkpoint.batch >= self._batch:
                return checkpoint
            seen = checkpoint.seq if checkpoint is not None else 0
            try:
                self.seq = self._checkpoints.write(self._js, Checkpoint(batch=self._batch), seen)
            except WrongLastSequenceError:
                continue  # another attempt was first
            return None
