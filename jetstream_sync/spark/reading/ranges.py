"""Sequence ranges, which tasks read, and the errors of reading them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final

from ... import errors
from ...errors import RangeError as RangeError  # noqa: PLC0414 - exported
from ...errors import StreamRecreatedError as StreamRecreatedError  # noqa: PLC0414 - exported
from ...records import with_fields
from ..option_values import LossMode


class LossAction(Enum):
    """What is done when unread messages have left their stream."""

    RAISE = "raise"
    WARN = "warn"
    IGNORE = "ignore"


#: The action for each value of the option ``failOnDataLoss``, and whether the stream removes such messages in normal
#: operation; see `StreamView.removes_unread`.
LOSS_ACTIONS: Final[Mapping[tuple[LossMode, bool], LossAction]] = {
    (LossMode.TRUE, False): LossAction.RAISE,
    (LossMode.TRUE, True): LossAction.IGNORE,
    (LossMode.FALSE, False): LossAction.WARN,
    (LossMode.FALSE, True): LossAction.IGNORE,
    (LossMode.STRICT, False): LossAction.RAISE,
    (LossMode.STRICT, True): LossAction.RAISE,
}


@with_fields
class RangeLostError(RangeError):
    """Messages of a range left the stream before they were read."""

    stream: str
    start_seq: int
    """The first lost sequence."""
    end_seq: int
    """The sequence after the last lost one."""

    def __str__(self) -> str:
        return (
            f"stream {self.stream!r} lost the sequences {self.start_seq} to {self.end_seq - 1} "
            "before they were read; set the option failOnDataLoss=false of the source to read the others"
        )


@with_fields
class RangeStalledError(RangeError, transient=True):
    """The server holds messages of a range but does not deliver them; a retry may succeed."""

    stream: str
    seq: int
    """The next sequence to read."""
    reason: str
    _template = "stream {stream!r} could not be read from sequence {seq} on: {reason}"


@with_fields
class DirectGetRefusedError(RangeError):
    """The stream does not answer direct gets."""

    stream: str
    _template = (
        "stream {stream!r} does not answer direct gets: set allow_direct on the stream, or "
        "use readMode=pull, which is not possible for a work queue"
    )


@dataclass(frozen=True, slots=True)
class SequenceRange:
    """
    A half-open range of sequences of a stream, which one task reads.

    It can be pickled, and contains no secrets.

    Raises:
        InvalidArgumentError: the range ends before it starts.

    """

    stream: str
    """The name of the stream."""

    start_seq: int
    """The first sequence of the range."""

    end_seq: int
    """The sequence after the range."""

    filters: tuple[str, ...] = ()
    """Filter subjects, with wildcards; empty: all messages."""

    created_ns: int = 0
    """When the stream was created, in nanoseconds since 1970. It distinguishes the stream from a later one
    of the same name. 0: not checked."""

    from_earliest: bool = False
    """Whether the range, which is the first one of its read, begins with the message that is the first one when
    it is read. A task that Spark repeats begins where the range begins."""

    def __post_init__(self) -> None:
        if not 0 <= self.start_seq <= self.end_seq:
            raise errors.InvalidArgumentError(
                f"invalid range: it starts at {self.start_seq} and ends before that, at {self.end_seq}"
            )
