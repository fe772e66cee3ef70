"""
Write checkpoints: how far a partition has been written, stored in the target stream itself.

Each partition of a query has its own checkpoint subject, and the last message on it counts. So there is no
second stream, a checkpoint lives as long as the rows, and it is ordered with them. A writer must know the last
checkpoint (``Nats-Expected-Last-Subject-Sequence``), so only one of two attempts succeeds. Checkpoints are read
from the stream leader, since a replica may lag behind.

With ids by content, the keys of the rows of each atomic batch are stored with it, each batch on its own subject. So
the stored rows are known even if limits of the stream have removed the rows.

When all partitions of a micro-batch of a query are written, the driver records its end, also if there were no rows. So
the newest message of the query in the stream shows whether the stream has everything up to the current micro-batch.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

from ... import errors
from ...codec import dumps, loads
from ...headers import EXPECTED_LAST_SUBJECT_SEQ, ROLLUP
from ...jetstream.context import JetStream
from ...jetstream.direct_get import StoredMsg, leader_get
from ..connections import api_requests
from ..options import WriteOptions
from ..retry import retry_transient
from .message_ids import WriteTaskId
from .sink_errors import CheckpointRewoundError, SinkError, TargetRewoundError

_VERSION: Final = 3
#: The last token of the subject of the ends of micro-batches, in place of the number of a partition.
_END: Final = "end"


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """How far the rows of a partition have been written."""

    batch: int
    """The last micro-batch that was started."""

    rows: int = 0
    """The number of its rows that are stored, if their order is stable."""

    digest: str = ""
    """The hash of these rows; empty with ids by content."""

    lists: int = 0
    """The number of lists with the keys of its stored rows; 0 with ids by position."""

    first_seq: int = 0
    """The sequence of the first checkpoint of the batch; 0: this is the first one."""

    last_seq: int = 0
    """The sequence of the last row stored with this checkpoint."""

    seq: int = 0
    """The sequence of the checkpoint itself; 0: it is not stored."""

    def stored(self, seq: int, messages: int) -> Checkpoint:
        """Return the checkpoint as stored, with a number of messages after it."""
        return replace(self, seq=seq, first_seq=self.first_seq or seq, last_seq=seq + messages)

    def to_json(self, messages: int, query: str) -> bytes:
        """Return the message payload, for a number of messages after the checkpoint."""
        return dumps(
            {
                "v": _VERSION,
                "query": query,
                "batch": self.batch,
                "rows": self.rows,
                "digest": self.digest,
                "lists": self.lists,
                "first": self.first_seq,
                "here": messages,
            }
        )


class CheckpointStore:
    """The checkpoints of one partition of a query or job."""

    def __init__(
        self, js: JetStream, options: WriteOptions, task_id: WriteTaskId, *, roll_up: bool
    ) -> None:
        self._js = js
        self._api = api_requests(js)
        self._stream = options.stream
        self._timeout = options.ack_timeout
        self._roll_up = b"%b: sub\r\n" % ROLLUP.encode() if roll_up else b""
        self._batch = task_id.batch
        self._has_ends = task_id.has_ends
        self._query = task_id.token
        identity = task_id if options.query_id is None else replace(task_id, name=options.query_id)
        self._prefix = f"{options.marker_subject}.{identity.token}"
        self._subject = f"{self._prefix}.{task_id.partition}"

    def check_order(self) -> None:
        """
        Check that the newest message of the query in the stream, of any partition, fits to the micro-batch.

        It must be of this batch or, if the driver records the ends of batches, be the end of the one before. A stream
        without a message of the query proves nothing: limits may have removed them, or the identity is new.
        """
        found = self._last(f"{self._prefix}.*")
        if found is None:
            return
        token = found.subject.rpartition(".")[2]
        if token == _END or token.isdecimal():
            fields = _fields(found)
            stored = int(fields["batch"])
            if fields["query"] != self._query:
                raise SinkError(
                    f"stream {self._stream!r} has batch {stored} of another query, or of one with another checkpoint, with"
                    " the same queryId: set the option queryId to another value"
                )
        else:
            stored = int(found.data.partition(b"\n")[0])  # a list of keys
        if stored > self._batch:
            raise CheckpointRewoundError(self._stream, stored, self._batch)
        if self._has_ends and stored < self._batch - (token == _END):
            raise TargetRewoundError(self._stream, stored, self._batch)

    def end_batch(self) -> None:
        """Record that all partitions of the micro-batch are written."""
        retry_transient(self._end_batch, self._timeout, "recording the end of a batch")

    def _end_batch(self) -> None:
        subject = f"{self._prefix}.{_END}"
        last = self._get(subject)
        stored = -1 if last is None else int(_fields(last)["batch"])
        if stored > self._batch:
            raise CheckpointRewoundError(self._stream, stored, self._batch)
        if stored < self._batch:
            self._js.publish(
                subject,
                dumps({"v": _VERSION, "query": self._query, "batch": self._batch}),
                headers={ROLLUP: "sub"} if self._roll_up else None,
                stream=self._stream,
                expected_last_subject_sequence=0 if last is None else last.seq,
            )

    def read(self) -> Checkpoint | None:
        """Return the last checkpoint of the partition, ``None`` if there is none."""
        found = self._last(self._subject)
        if found is None:
            return None
        fields = _fields(found)
        checkpoint = Checkpoint(
            batch=int(fields["batch"]),
            rows=int(fields["rows"]),
            digest=str(fields["digest"]),
            lists=int(fields["lists"]),
            first_seq=int(fields["first"]),
        )
        return checkpoint.stored(found.seq, int(fields["here"]))

    def read_keys(self, checkpoint: Checkpoint) -> set[bytes]:
        """Return the keys of the rows that are stored up to a checkpoint."""
        keys: set[bytes] = set()
        for number in range(checkpoint.lists):
            subject = self._list_subject(number)
            found = self._last(subject)
            batch, *listed = (b"" if found is None else found.data).split(b"\n")
            if batch != b"%d" % checkpoint.batch:
                raise SinkError(
                    f"batch {checkpoint.batch} of the query is partly stored in stream {self._stream!r}, but"
                    f" the record on {subject!r} of which rows these are was removed: keep messages for longer"
                    " than an outage, or use ids=position"
                )
            keys.update(listed)
        return keys

    def checkpoint_message(
        self, checkpoint: Checkpoint, messages: int, seen: int
    ) -> tuple[bytes, bytes, bytes]:
        """Return subject, header lines and payload; the server checks the sequence of the last checkpoint."""
        expected = b"%b: %d\r\n" % (EXPECTED_LAST_SUBJECT_SEQ.encode(), seen)
        return (
            self._subject.encode(),
            expected + self._roll_up,
            checkpoint.to_json(messages, self._query),
        )

    def list_message(
        self, checkpoint: Checkpoint, keys: Iterable[bytes]
    ) -> tuple[bytes, bytes, bytes]:
        """Return subject, header lines and payload of the last list of a checkpoint."""
        subject = self._list_subject(checkpoint.lists - 1).encode()
        return subject, self._roll_up, b"\n".join((b"%d" % checkpoint.batch, *keys))

    def _list_subject(self, number: int) -> str:
        return f"{self._subject}-{number}"

    def _last(self, subject: str) -> StoredMsg | None:
        """Return the last message on a subject, ``None`` if there is none."""
        read = partial(self._get, subject)
        return retry_transient(read, self._timeout, "reading a checkpoint")

    def _get(self, subject: str) -> StoredMsg | None:
        request = {"last_by_subj": subject}
        try:
            return leader_get(self._api, self._stream, request, self._api.deadline())
        except errors.MessageNotFoundError:
            return None


def _fields(message: StoredMsg) -> dict[str, Any]:
    fields = loads(message.data)
    if not isinstance(fields, dict) or fields.get("v") != _VERSION:
        raise errors.InvalidResponseError(
            f"the message on {message.subject!r} is not a write checkpoint of this version: use another "
            "markerSubject, or the version of the package that wrote it"
        )
    return fields
