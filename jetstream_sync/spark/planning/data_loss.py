"""
What it means when a stream is not as the checkpoint has left it.

The table, by what is seen and whether ``failOnDataLoss`` is ``true``, ``false`` or ``strict``:

=====================================  ==================  ==========================
seen                                   ``true``            ``false``
=====================================  ==================  ==========================
the head moved past the position       error               warning, go on at the head
the same where that is how it works    go on at the head   go on at the head
the stream is another one              error               warning, start at its head
the stream ends before the position    error               warning, start at its head
the stream is gone                     error               warning, wait for it
=====================================  ==================  ==========================

Messages in the middle that were deleted are never an error. A head that moves is how it works in
streams with interest retention, with a limit by subject or with messages that expire one by one, and in
a work queue of which only some subjects are read: somebody else has worked on the others. There
only ``strict`` makes it an error.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass

from ...errors import Error
from ..streams import StreamView
from .offsets import StreamOffset

__all__ = ["DataLossError", "DataLossPolicy", "ResumePoint", "find_resume_point"]

log = logging.getLogger("jetstream_sync.spark")


class DataLossError(Error):
    """Messages that were to be read are gone, and ``failOnDataLoss`` says to stop then."""


@dataclass(frozen=True, slots=True)
class ResumePoint:
    """Where to go on in a stream."""

    stream: str
    """What it is called."""

    next_seq: int
    """The first sequence to read."""

    problem: str | None = None
    """What was lost, for the log or the error; ``None``: nothing."""

    is_fatal: bool = False
    """Whether that is an error, unless ``failOnDataLoss`` is false."""

    may_be_stale: bool = False
    """Whether the answer may be that of a server that is behind, so that it is worth asking again."""


def find_resume_point(position: StreamOffset, view: StreamView | None, stream: str) -> ResumePoint:
    """
    Compare a position with what the server says about its stream.

    Args:
        position: of the checkpoint; ``next_seq`` is where to go on.
        view: the stream as it is; ``None``: it does not exist.
        stream: what to call it.

    """
    wanted = position.next_seq
    if view is None:
        return ResumePoint(stream, wanted, f"stream {stream} does not exist any more", True)
    if view.created_ns != position.created_ns:
        problem = f"stream {stream} was deleted and made again; what was not read of the old one"
        return ResumePoint(
            stream, view.first_seq, f"{problem}, from sequence {wanted} on, is gone", True
        )
    if view.end_seq < wanted:
        problem = f"stream {stream} ends at sequence {view.end_seq - 1}, but was read up to"
        return ResumePoint(
            stream, view.first_seq, f"{problem} {wanted - 1}", True, may_be_stale=True
        )
    if view.first_seq > wanted:
        count = view.first_seq - wanted
        problem = f"stream {stream} begins at sequence {view.first_seq}, but is read up to"
        problem += f" {wanted - 1} only: {count} sequences are gone"
        return ResumePoint(
            stream, view.first_seq, problem, not _removal_is_expected(view, position)
        )
    return ResumePoint(stream, wanted)


def _removal_is_expected(view: StreamView, position: StreamOffset) -> bool:
    """Say whether the head of a stream moves past a reader when all is well."""
    return (
        view.is_interest
        or view.removes_individually
        or (view.is_work_queue and bool(position.filters))
    )


class DataLossPolicy:
    """
    Makes of what `find_resume_point` finds an error, a warning or nothing.

    Args:
        mode: ``failOnDataLoss``: ``true``, ``false`` or ``strict``.

    """

    def __init__(self, mode: str) -> None:
        self._mode = mode
        #: The last warning of each stream.
        self._last_warnings: dict[str, str] = {}

    def next_seq(self, found: ResumePoint) -> int:
        """
        Return where to go on; a warning is given once for each loss.

        Raises:
            DataLossError: something is lost, and that is not to be passed over.

        """
        if found.problem is None:
            return found.next_seq
        if self._mode == "strict" or (found.is_fatal and self._mode == "true"):
            raise DataLossError(f"{found.problem}; failOnDataLoss=false goes on all the same")
        if not found.is_fatal:
            log.debug("%s", found.problem)
        elif self._last_warnings.get(found.stream) != found.problem:
            self._last_warnings[found.stream] = found.problem
            log.warning("%s", found.problem)
        return found.next_seq
