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

from ... import errors
from ..reading.ranges import LOSS_ACTIONS, LossAction
from ..streams import StreamView
from .offsets import StreamOffset

log: logging.Logger = logging.getLogger("jetstream_sync.spark")


class DataLossError(errors.Error):
    """Unread messages are gone, and ``failOnDataLoss`` makes that an error."""


@dataclass(frozen=True, slots=True)
class ResumePoint:
    """Where a read of a stream continues."""

    stream: str
    """The name of the stream."""

    next_seq: int
    """The first sequence to read."""

    problem: str | None = None
    """What was lost, as text for the log or the error; ``None``: nothing."""

    is_expected: bool = False
    """Whether the stream removes such messages in normal operation."""

    may_be_stale: bool = False
    """Whether a lagging server may have replied, so that the state should be read again."""


def find_resume_point(position: StreamOffset, view: StreamView | None, stream: str) -> ResumePoint:
    """Compare an offset of the checkpoint with the state of its stream."""
    wanted = position.next_seq
    if view is None:
        return ResumePoint(stream, wanted, f"stream {stream} does not exist any more")
    if view.created_ns != position.created_ns:
        problem = (
            f"stream {stream} is not the stream of the checkpoint: it was deleted and created again, or is in"
            f" another cluster; the unread messages of the old stream, from sequence {wanted} on, are gone"
        )
        return ResumePoint(stream, view.first_seq, problem)
    if view.end_seq < wanted:
        problem = f"stream {stream} ends at sequence {view.end_seq - 1}, but was already read up to"
        return ResumePoint(stream, view.first_seq, f"{problem} {wanted - 1}", may_be_stale=True)
    skips_removed = position.since_ns is not None and view.first_ns <= position.since_ns
    if view.first_seq > wanted and not skips_removed:
        count = view.first_seq - wanted
        problem = f"stream {stream} starts at sequence {view.first_seq}, but was only read up to"
        problem += f" {wanted - 1}: {count} sequences are gone"
        is_expected = view.removes_unread(position.filters)
        return ResumePoint(stream, view.first_seq, problem, is_expected)
    return ResumePoint(stream, max(wanted, view.first_seq))


class DataLossPolicy:
    """Turns the result of `find_resume_point` into an error, a warning or nothing."""

    def __init__(self, mode: str) -> None:
        self._mode = mode
        #: The last warning of each stream.
        self._last_warnings: dict[str, str] = {}

    def next_seq(self, found: ResumePoint) -> int:
        """Return where to continue; each loss is logged once."""
        if found.problem is None:
            return found.next_seq
        action = LOSS_ACTIONS[self._mode, found.is_expected]
        if action is LossAction.RAISE:
            remedy = "true" if found.is_expected else "false"
            raise DataLossError(
                f"{found.problem}; set the option failOnDataLoss={remedy} of the source to continue anyway"
            )
        if action is LossAction.IGNORE:
            log.debug("%s", found.problem)
        elif self._last_warnings.get(found.stream) != found.problem:
            self._last_warnings[found.stream] = found.problem
            log.warning("%s", found.problem)
        return found.next_seq
