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
from dataclasses import dataclass
from enum import Enum

from ... import errors
from ..option_values import LossMode
from ..reading.ranges import LOSS_ACTIONS, LossAction
from ..streams import StreamView
from .offsets import StreamOffset

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
    skips_removed = position.since_ns is not None and view.first_ns <= position.since_ns
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
