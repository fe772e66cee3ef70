"""
Decide what a trigger of a query does: which messages the next micro-batch has, if any, and where it ends.

Nothing here does I/O, except that the `MessageCounter` of a stream with gaps asks the server.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from ..options import ReadOptions
from ..streams import StreamView
from .batches import (
    MessageCounter,
    divide_rows,
    limit_to_bytes,
    partition_counts,
    partition_cuts,
)
from .offsets import Offset, StreamOffset


@dataclass(frozen=True, slots=True)
class StreamPart:
    """The unread messages of one stream."""

    view: StreamView
    start: StreamOffset
    """The empty batch at the end of the last one; with filters, at the first match after it."""
    end_seq: int
    """The latest end of the next batch."""
    counts: MessageCounter
    rows: int
    """The number of matching messages up to `end_seq`."""


class Admission:
    """Decides how many messages of each stream are in the next batch; for one thread."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = options
        #: When messages began to wait for `min_offsets_per_trigger`; ``None``: none waits.
        self._waiting_since: float | None = None
        # The number of batches so far: the streams are first in turn.
        self._turn = 0
        #: With AvailableNow, the state of the streams when the query started, where it ends.
        self.end_views: Mapping[str, StreamView] | None = None

    @property
    def may_wait(self) -> bool:
        """Whether the query waits for messages; one that ends with the streams does not."""
        return self.end_views is None

    def end_seq(self, key: str, view: StreamView) -> int:
        """Return the latest end of the next batch of a stream."""
        if self.end_views is None:
            return view.end_seq
        last = self.end_views.get(key)
        if last is None or last.created_ns != view.created_ns:
            return 0
        return min(view.end_seq, last.end_seq)

    def shares(
        self, parts: Mapping[str, StreamPart], now: float, *, unlimited: bool
    ) -> dict[str, int]:
        """
        Return the number of messages of each stream in the next batch; all 0: there is none yet.

        Args:
            parts: the unread messages.
            now: the time on the monotonic clock.
            unlimited: whether Spark asks for all messages.

        """
        available = {key: part.rows for key, part in parts.items()}
        total = sum(available.values())
        if total and not unlimited and self.may_wait and self._is_too_soon(total, now):
            return dict.fromkeys(available, 0)
        self._waiting_since = None
        shares, options = available, self._options
        if total and not unlimited:
            most = options.max_offsets_per_trigger or total
            shares = divide_rows(most, available, self._turn)
        if total and not unlimited and options.max_bytes_per_trigger is not None:
            sizes = {key: part.view.message_bytes for key, part in parts.items()}
            shares = limit_to_bytes(shares, sizes, options.max_bytes_per_trigger, self._turn)
        if any(shares.values()):
            self._turn += 1
        return shares

    def _is_too_soon(self, rows: int, now: float) -> bool:
        """Return whether to wait for more messages; the delay begins with the first waiting one."""
        fewest = self._options.min_offsets_per_trigger
        if fewest is None or rows >= fewest:
            return False
        if self._waiting_since is None:
            self._waiting_since = now
        return now - self._waiting_since < self._options.max_trigger_delay


def has_batch(offset: Offset, parts: Mapping[str, StreamPart], shares: Mapping[str, int]) -> bool:
    """
    Return whether a trigger plans a batch, given the offset where it starts and the messages that are admitted.

    An empty batch stores that nothing matches before the end of a stream. Otherwise the stream would begin behind the
    offset after some time, so that a restarted query cannot know whether it has missed a match. A position in the newer
    half of the stream can stay.
    """
    if any(shares.values()):
        return True
    for key, part in parts.items():
        view, position = part.view, offset.positions.get(key)
        if position is None or not view.removes_oldest or part.start.next_seq <= position.next_seq:
            continue
        if part.rows == 0 and position.next_seq <= (view.first_seq + view.end_seq) // 2:
            return True
    return False


def next_batches(
    offset: Offset,
    parts: Mapping[str, StreamPart],
    shares: Mapping[str, int],
    options: ReadOptions,
) -> dict[str, StreamOffset]:
    """Return the batch of each stream; it is empty for a stream without a share."""
    wanted = partition_counts(shares, options.max_records_per_partition, options.min_partitions)
    ended = {key: position.empty_after() for key, position in offset.positions.items()}
    for key, part in parts.items():
        if shares[key]:
            ended[key] = _batch(part, shares[key], wanted[key])
        else:
            last_ns = _last_ns(part.view, part.start.next_seq, offset.positions.get(key))
            ended[key] = replace(part.start, last_ns=last_ns)
    return ended


def _batch(part: StreamPart, rows: int, partitions: int) -> StreamOffset:
    start, end_seq = part.start.next_seq, part.end_seq
    if rows < part.rows:
        end_seq = part.counts.find_end(start, end_seq, rows)
    return StreamOffset(
        created_ns=part.view.created_ns,
        start_seq=start,
        next_seq=end_seq,
        cuts=partition_cuts(part.counts, start, end_seq, rows, partitions),
        filters=part.start.filters,
        from_earliest=part.start.from_earliest,
        last_ns=_last_ns(part.view, end_seq),
    )


def empty_batch(view: StreamView, seq: int, filters: tuple[str, ...], **more: Any) -> StreamOffset:
    """Return an empty batch at a sequence of a stream, with more fields of `StreamOffset`."""
    return StreamOffset(
        created_ns=view.created_ns, start_seq=seq, next_seq=seq, filters=filters, **more
    )


def _last_ns(view: StreamView, next_seq: int, known: StreamOffset | None = None) -> int | None:
    """Return when the message before a sequence was stored; ``None``: unknown."""
    last_ns = view.last_ns if view.messages and next_seq == view.end_seq else None
    if known is None or (known.created_ns, known.next_seq) != (view.created_ns, next_seq):
        return last_ns
    return last_ns if known.last_ns is None else known.last_ns
