"""
Detect data loss: a stream that does not continue where the checkpoint ended.

What follows from `LOSS_ACTIONS`, by what is found and the option ``failOnDataLoss``:

========================================  ======================  ==============================
found                                     ``true``                ``false``
========================================  ======================  ==============================
unread messages were removed              error                   warning, continue at the start
unread messages were removed as expected  continue at the start   continue at the start
the stream was re-created or restored     error                   warning, restart at its start
the stream ends before the offset         error                   warning, restart at its start
the stream does not exist                 error                   warning, wait for it
========================================  ======================  ==============================

Deleted messages in the middle of a stream are never an error. Removals are expected in streams with interest
retention, with a limit per subject or with a TTL per message. They are also expected in a work queue that is
read with filters, since other consumers remove the other subjects. There they are an error only with
``strict``.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from enum import Enum
from typing import Final

from ... import errors
from ...jetstream.connection import Connection
from ..option_values import LossMode
from ..reading.ranges import LOSS_ACTIONS, LossAction
from ..streams import StreamView
from .offsets import Offset, StreamOffset

log: logging.Logger = logging.getLogger("jetstream_sync.spark")


class DataLossError(errors.Error):
    """Unread messages are gone, and ``failOnDataLoss`` makes that an error."""


class Change(Enum):
    """What has happened to a stream since the offset."""

    NONE = "none"
    """It continues where the checkpoint ended."""
    EXPIRED = "expired"
    """Unread messages were removed, as the stream does in normal operation."""
    REMOVED = "removed"
    """Unread messages were removed."""
    RECREATED = "recreated"
    """It was deleted and created again, or restored with another creation time."""
    RESTORED = "restored"
    """It was restored to an earlier state, and has other messages up to the offset."""
    SHORTENED = "shortened"
    """It ends before the offset. A lagging server may have replied, so the state should be read again."""
    MISSING = "missing"
    """It does not exist."""


#: The changes after which a stream has other messages, or none, with the sequences of a batch.
OTHER_MESSAGES: Final = {Change.MISSING, Change.RECREATED, Change.RESTORED, Change.SHORTENED}


@dataclass(frozen=True, slots=True)
class ResumePoint:
    """Where a read of a stream continues."""

    stream: str
    """The name of the stream."""

    next_seq: int
    """The first sequence to read."""

    change: Change = Change.NONE
    """What has happened to the stream."""

    problem: str = ""
    """What was lost, as text for the log or the error."""


def find_resume_point(position: StreamOffset, view: StreamView | None, stream: str) -> ResumePoint:
    """Compare an offset of the checkpoint with the state of its stream."""
    wanted = position.next_seq
    if view is None:
        problem = f"stream {stream} does not exist any more"
        return ResumePoint(stream, wanted, Change.MISSING, problem)
    if view.created_ns != position.created_ns:
        problem = (
            f"stream {stream} is not the stream of the checkpoint: it was deleted and created again, or is in"
            f" another cluster; the unread messages of the old stream, from sequence {wanted} on, are gone"
        )
        return ResumePoint(stream, view.first_seq, Change.RECREATED, problem)
    if view.end_seq < wanted:
        problem = f"stream {stream} ends at sequence {view.end_seq - 1}, but was already read up to"
        problem = f"{problem} {wanted - 1}"
        return ResumePoint(stream, view.first_seq, Change.SHORTENED, problem)
    # Of an empty stream, the time of the last message is known.
    kept_ns = view.first_ns or view.last_ns
    skips_removed = position.since_ns is not None and kept_ns <= position.since_ns
    if view.first_seq > wanted and not skips_removed:
        count = view.first_seq - wanted
        problem = f"stream {stream} starts at sequence {view.first_seq}, but was only read up to"
        problem += f" {wanted - 1}: {count} sequences are gone"
        is_expected = view.removes_unread(position.filters)
        change = Change.EXPIRED if is_expected else Change.REMOVED
        return ResumePoint(stream, view.first_seq, change, problem)
    return ResumePoint(stream, max(wanted, view.first_seq))


class DataLossPolicy:
    """Turns the result of `find_resume_point` into an error, a warning or nothing."""

    def __init__(self, mode: LossMode) -> None:
        self._mode = mode
        #: The last warning of each stream.
        self._last_warnings: dict[str, str] = {}

    def next_seq(self, found: ResumePoint) -> int:
        """Return where to continue, and log each loss once; raise `DataLossError` if the option says so."""
        if found.change is Change.NONE:
            return found.next_seq
        is_expected = found.change is Change.EXPIRED
        action = LOSS_ACTIONS[self._mode, is_expected]
        if action is LossAction.RAISE:
            remedy = LossMode.TRUE if is_expected else LossMode.FALSE
            raise DataLossError(
                f"{found.problem}; set the option failOnDataLoss={remedy} of the source to continue anyway"
            )
        if action is LossAction.IGNORE:
            log.debug("%s", found.problem)
        elif self._last_warnings.get(found.stream) != found.problem:
            self._last_warnings[found.stream] = found.problem
            log.warning("%s", found.problem)
        return found.next_seq


@dataclass(slots=True)
class KnownStream:
    """What the process of a query knows about a stream, until it becomes shorter or is missing."""

    created_ns: int
    filters: tuple[str, ...] | None = None
    """The filters of its reads and commits; ``None``: it is not prepared for them."""
    searched_seq: int = 0
    """With filters, the sequence up to which nothing matches."""
    searched_end: tuple[int, int] | None = None
    """The end of the stream at that search."""
    verified_end: tuple[int, int] | None = None
    """The end of the stream when this process planned a batch of it, or found that the last message that was read is
    still the same one."""


class StreamMemory:
    """
    Compares streams with offsets, and keeps what that shows, which saves requests; for one thread.

    A stream may be deleted and restored between two requests for its state, also with its creation time. So what is
    known is compared with the stream again whenever its end has changed.

    Args:
        stored_at: returns sequence and time of the first message of a stream from a sequence on.

    """

    def __init__(self, stored_at: Callable[[str, int], tuple[int, int] | None]) -> None:
        self._stored_at = stored_at
        self._known: dict[str, KnownStream] = {}
        #: The link on which that was found out.
        self.link: tuple[Connection, int] | None = None
        #: Offsets whose streams are read from their start again; they release nothing there.
        self.restarted: dict[str, StreamOffset] = {}
        #: The end of the last batch that this process has planned; a batch from the checkpoint is a repeated one.
        self.planned_end: Offset | None = None

    def of(self, key: str, view: StreamView) -> KnownStream:
        """Return what is known about a stream."""
        known = self._known.get(key)
        if known is None or known.created_ns != view.created_ns:
            known = self._known[key] = KnownStream(view.created_ns)
        return known

    def update(
        self,
        before: Mapping[str, StreamView],
        views: Mapping[str, StreamView],
        link: tuple[Connection, int] | None,
    ) -> None:
        """Forget what new states of the streams, and the link on which they arrived, make doubtful."""
        if link != self.link:
            # The streams of a restarted server may be older copies, also if they are as long as before.
            self.link = link
            for known in self._known.values():
                known.filters = None
        for key, old in before.items():
            view = views.get(key)
            if view is None or view.end_seq < old.end_seq:
                # A restored stream gives the same sequences to other messages. Its consumers are those of the backup.
                self._known.pop(key, None)

    def compare(
        self, positions: Mapping[str, StreamOffset], views: Mapping[str, StreamView]
    ) -> dict[str, ResumePoint]:
        """Return what has happened to each stream of an offset, and where it continues."""
        return {key: self._compared(key, item, views.get(key)) for key, item in positions.items()}

    def _compared(self, key: str, position: StreamOffset, view: StreamView | None) -> ResumePoint:
        found = find_resume_point(self._after_search(key, position, view), view, key)
        if view is None or found.change is not Change.NONE or position.last_ns is None:
            return found
        known = self.of(key, view)
        if known.verified_end == view.end:
            return found
        # Servers before 2.15 keep the creation time of a stream that they restore.
        stored = self._stored_at(view.name, position.next_seq - 1)
        if stored is None or stored[0] >= position.next_seq or stored[1] == position.last_ns:
            known.verified_end = view.end
            return found
        problem = f"stream {key} was restored to an earlier state: it has another message"
        return replace(
            found,
            next_seq=view.first_seq,
            change=Change.RESTORED,
            problem=f"{problem} with sequence {stored[0]}, up to which it was read",
        )

    def _after_search(
        self, key: str, position: StreamOffset, view: StreamView | None
    ) -> StreamOffset:
        """
        Return a position without the messages after it that do not match its filters.

        A query that has read nothing and begins with the first message begins with the present first message.
        """
        if view is None or view.created_ns != position.created_ns:
            return position
        seq = self._searched_seq(key, view, position.next_seq)
        if position.is_unread:
            seq = max(seq, view.first_seq)
        if seq <= position.next_seq:
            return position
        return replace(position, start_seq=seq, next_seq=seq, cuts=())

    def _searched_seq(self, key: str, view: StreamView, next_seq: int) -> int:
        """Return the sequence up to which nothing matches, if it is after a position and known of this copy."""
        known, last = self.of(key, view), None
        if known.searched_seq > next_seq:
            last = known.searched_end
        if last is not None and last != view.end:
            # Without it, messages that did not match and have left the stream would look like lost ones.
            stored = self._stored_at(view.name, last[0])
            if stored is not None and stored[0] == last[0] and stored != last:
                known.searched_seq = 0
            known.searched_end = view.end
        return known.searched_seq
