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

from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import partial
from time import sleep
from typing import TYPE_CHECKING, Final

from ... import errors
from ...api.stream import MsgGetRequest
from ...codec import dumps, loads
from ...headers import EXPECTED_LAST_SUBJECT_SEQ, ROLLUP
from ...jetstream.api_requests import stream_info
from ...jetstream.context import JetStream
from ...jetstream.direct_get import StoredMsg, leader_get
from ...net.clock import Deadline
from ..connections import api_requests
from ..options import WriteOptions
from ..retry import retry_transient
from ..sink_errors import CheckpointRewoundError, SinkError, TargetRewoundError
from ..stored import INTEGER, TEXT, from_json, stored, to_json
from .message_ids import WriteTaskId

if TYPE_CHECKING:
    from typing_extensions import Self

_VERSION: Final = 3
#: The last token of the subject of the ends of micro-batches, in place of the number of a partition.
_END: Final = "end"
#: Seconds in which nothing more is stored of an atomic batch that is stored in part.
_SETTLING_S: Final = 1.0


@dataclass(frozen=True, kw_only=True)
class BatchEnd:
    """A micro-batch of a query of which all partitions are written."""

    query: str = stored("query", TEXT)
    """The token of the query, see `WriteTaskId`."""

    batch: int = stored("batch", INTEGER)
    """The number of the micro-batch."""

    def to_json(self) -> bytes:
        """Return the payload of the message."""
        return dumps({"v": _VERSION, **to_json(self)})

    @classmethod
    def parse(cls, message: StoredMsg) -> Self:
        """Return the record in a message of the stream; raise `SinkError` for another message."""
        fields = loads(message.data)
        try:
            if isinstance(fields, dict) and fields.get("v") == _VERSION:
                return from_json(cls, fields)
        except ValueError:
            pass
        raise _unknown_message(message)


@dataclass(frozen=True, kw_only=True)
class Checkpoint(BatchEnd):
    """How far the rows of a partition have been written; its micro-batch is the last one that was started."""

    rows: int = stored("rows", INTEGER, 0, required=True)
    """The number of its rows that are stored, if their order is stable."""

    digest: str = stored("digest", TEXT, "", required=True)
    """The hash of these rows; empty with ids by content."""

    lists: int = stored("lists", INTEGER, 0, required=True)
    """The number of lists with the keys of its stored rows; 0 with ids by position."""

    first_seq: int = stored("first", INTEGER, 0, required=True)
    """The sequence of the first checkpoint of the batch; 0: this is the first one, and is not stored."""

    messages: int = stored("here", INTEGER, 0, required=True)
    """The number of messages that are stored with the checkpoint, after it."""

    seq: int = 0
    """The sequence of the checkpoint itself; 0: it is not stored."""

    @property
    def last_seq(self) -> int:
        """The sequence of the last row stored with this checkpoint."""
        return self.seq + self.messages

    def stored(self, seq: int) -> Checkpoint:
        """Return the checkpoint as stored with a sequence."""
        return replace(self, seq=seq, first_seq=self.first_seq or seq)


@dataclass(frozen=True)
class KeyList:
    """The keys of rows that are stored with a checkpoint; a message with a key on each line."""

    batch: int
    """The number of the micro-batch."""

    keys: tuple[bytes, ...]

    def to_bytes(self) -> bytes:
        """Return the payload of the message."""
        return b"\n".join((b"%d" % self.batch, *self.keys))

    @classmethod
    def parse(cls, message: StoredMsg) -> KeyList:
        """Return the list in a message of the stream; raise `SinkError` for another message."""
        batch, *keys = message.data.split(b"\n")
        if not batch.isdigit():
            raise _unknown_message(message)
        return cls(int(batch), tuple(keys))


def check_newest(newest: BatchEnd | KeyList, task_id: WriteTaskId, stream: str) -> None:
    """
    Check that the newest message of a query in a stream, of any partition, fits to the micro-batch of a task.

    It must be of this batch or, if the driver records the ends of batches, be the end of the one before.

    Raises:
        SinkError: another query has the same identity.
        CheckpointRewoundError: the stream has a later micro-batch than the task.
        TargetRewoundError: the stream lacks the micro-batch before that of the task.

    """
    if not isinstance(newest, KeyList) and newest.query != task_id.token:
        raise SinkError(
            f"stream {stream!r} has batch {newest.batch} of another query, or of one with another checkpoint, with"
            " the same queryId: set the option queryId to another value"
        )
    if newest.batch > task_id.batch:
        raise CheckpointRewoundError(stream, newest.batch, task_id.batch)
    is_end = type(newest) is BatchEnd
    if task_id.has_ends and newest.batch < task_id.batch - is_end:
        raise TargetRewoundError(stream, newest.batch, task_id.batch)


class CheckpointStore:
    """The checkpoints of one partition of a query or job."""

    def __init__(
        self, js: JetStream, options: WriteOptions, task_id: WriteTaskId, *, roll_up: bool
    ) -> None:
        self._js = js
        self._api = api_requests(js)
        self._stream = options.stream
        self._roll_up = b"%b: sub\r\n" % ROLLUP.encode() if roll_up else b""
        self._task_id = task_id
        identity = task_id if options.query_id is None else replace(task_id, name=options.query_id)
        self._prefix = f"{options.marker_subject}.{identity.token}"
        self._subject = f"{self._prefix}.{task_id.partition}"

    def check_order(self, deadline: Deadline) -> None:
        """
        Check that the newest message of the query in the stream fits to the micro-batch, see `check_newest`.

        A stream without a message of the query proves nothing: limits may have removed them, or the identity is new.
        """
        found = self._last(f"{self._prefix}.*", deadline)
        if found is not None:
            check_newest(_parse(found), self._task_id, self._stream)

    def end_batch(self, deadline: Deadline) -> None:
        """Record that all partitions of the micro-batch are written."""
        retry_transient(self._end_batch, deadline, "recording the end of a batch")

    def _end_batch(self) -> None:
        subject, batch = f"{self._prefix}.{_END}", self._task_id.batch
        last = self._get(MsgGetRequest(last_by_subj=subject))
        stored_batch = -1 if last is None else BatchEnd.parse(last).batch
        if stored_batch > batch:
            raise CheckpointRewoundError(self._stream, stored_batch, batch)
        if stored_batch < batch:
            self._js.publish(
                subject,
                BatchEnd(query=self._task_id.token, batch=batch).to_json(),
                headers={ROLLUP: "sub"} if self._roll_up else None,
                stream=self._stream,
                expected_last_subject_sequence=0 if last is None else last.seq,
            )

    def read(self, deadline: Deadline) -> Checkpoint | None:
        """Return the last checkpoint of the partition, ``None`` if there is none."""
        found = self._last(self._subject, deadline)
        if found is None:
            return None
        checkpoint = Checkpoint.parse(found).stored(found.seq)
        if checkpoint.batch != self._task_id.batch:
            return checkpoint
        messages = self._stored_after(found, checkpoint.messages, deadline)
        missing = checkpoint.messages - messages
        return replace(
            checkpoint,
            messages=messages,
            rows=checkpoint.rows - missing,
            digest="" if missing else checkpoint.digest,
            # The list comes before the rows.
            lists=checkpoint.lists if messages else max(0, checkpoint.lists - 1),
        )

    def _stored_after(self, message: StoredMsg, count: int, deadline: Deadline) -> int:
        """
        Return how many of the messages after one are stored, which the same atomic batch has stored with it.

        If the account has no storage left, the server stores the first messages of a batch only. What was removed
        later counts as stored.
        """
        batch, seqs = _atomic_batch(message), range(message.seq + 1, message.seq + 1 + count)

        def next_stored(seq: int) -> StoredMsg | None:
            return self._get(MsgGetRequest(seq, next_by_subj=">"))

        def is_behind(seq: int) -> bool:
            found = next_stored(seq)
            return found is None or _atomic_batch(found) != batch

        def stored_now() -> int:
            is_part = count > 0 and is_behind(seqs[-1])
            first = bisect_left(seqs, True, key=is_behind) if is_part else count
            if first == count:
                return count
            # The first message of another writer shows where the batch ends.
            found = next_stored(seqs[first])
            if found is not None:
                return min(count, found.seq - seqs.start)
            last = stream_info(self._api, self._stream).state.last_seq
            return min(count, last + 1 - seqs.start)

        look = partial(retry_transient, stored_now, deadline, "reading a checkpoint")
        before, stored = -1, look()
        while before < stored < count:
            # Another attempt may be storing the batch at this moment.
            sleep(min(_SETTLING_S, (deadline.left() or 0.0) / 2))
            before, stored = stored, look()
        return stored

    def read_keys(self, checkpoint: Checkpoint, deadline: Deadline) -> set[bytes]:
        """Return the keys of the rows stored up to a checkpoint; raise `SinkError` if one of their lists is gone."""
        keys: set[bytes] = set()
        for number in range(checkpoint.lists):
            subject = self._list_subject(number)
            found = self._last(subject, deadline)
            listed = None if found is None else KeyList.parse(found)
            if found is None or listed is None or listed.batch != checkpoint.batch:
                raise SinkError(
                    f"batch {checkpoint.batch} of the query is partly stored in stream {self._stream!r}, but"
                    f" the record on {subject!r} of which rows these are was removed: keep messages for longer"
                    " than an outage, or use ids=position"
                )
            keys.update(listed.keys[: self._stored_after(found, len(listed.keys), deadline)])
        return keys

    def checkpoint_message(self, checkpoint: Checkpoint, seen: int) -> tuple[bytes, bytes, bytes]:
        """Return subject, header lines and payload; the server checks the sequence of the last checkpoint."""
        expected = b"%b: %d\r\n" % (EXPECTED_LAST_SUBJECT_SEQ.encode(), seen)
        return self._subject.encode(), expected + self._roll_up, checkpoint.to_json()

    def list_message(
        self, checkpoint: Checkpoint, keys: Iterable[bytes]
    ) -> tuple[bytes, bytes, bytes]:
        """Return subject, header lines and payload of the last list of a checkpoint."""
        subject = self._list_subject(checkpoint.lists - 1).encode()
        return subject, self._roll_up, KeyList(checkpoint.batch, tuple(keys)).to_bytes()

    def _list_subject(self, number: int) -> str:
        return f"{self._subject}-{number}"

    def _last(self, subject: str, deadline: Deadline) -> StoredMsg | None:
        """Return the last message on a subject, ``None`` if there is none."""
        read = partial(self._get, MsgGetRequest(last_by_subj=subject))
        return retry_transient(read, deadline, "reading a checkpoint")

    def _get(self, request: MsgGetRequest) -> StoredMsg | None:
        try:
            return leader_get(self._api, self._stream, request, self._api.deadline())
        except errors.MessageNotFoundError:
            return None


def _atomic_batch(message: StoredMsg) -> str | None:
    """Return the id of the atomic batch that a message was stored with."""
    return None if message.headers is None else message.headers.get("Nats-Batch-Id")


def _unknown_message(message: StoredMsg) -> errors.InvalidResponseError:
    return errors.InvalidResponseError(
        f"the message on {message.subject!r} is not a write checkpoint of this version: use another "
        "markerSubject, or the version of the package that wrote it"
    )


def _parse(message: StoredMsg) -> BatchEnd | KeyList:
    """Return the record in a message of a query, which its subject identifies."""
    token = message.subject.rpartition(".")[2]
    if token == _END:
        return BatchEnd.parse(message)
    return Checkpoint.parse(message) if token.isdecimal() else KeyList.parse(message)
