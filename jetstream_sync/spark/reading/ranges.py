"""Sequence ranges, which tasks read, and the errors of reading them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final

from ... import errors
from ...errors import RangeError as RangeError  # noqa: PLC0414 - exported
from ...errors import StreamRecreatedError as StreamRecreatedError  # noqa: PLC0414 - exported
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


class RangeLostError(RangeError):
    """Messages of a range left the stream before they were read."""

    def __init__(self, stream: str, start_seq: int, end_seq: int) -> None:
        super().__init__(stream, start_seq, end_seq)
        self.stream = stream
        self.start_seq = start_seq
        """The first lost sequence."""
        self.end_seq = end_seq
        """The sequence after the last lost one."""

    def __str__(self) -> str:
        return (
            f"stream {self.stream!r} lost the sequences {self.start_seq} to {self.end_seq - 1} "
            "before they were read; set the option failOnDataLoss=false of the source to read the others"
        )


class RangeStalledError(RangeError, transient=True):
    """The server holds messages of a range but does not deliver them; a retry may succeed."""

    def __init__(self, stream: str, seq: int, reason: str) -> None:
        super().__init__(stream, seq, reason)
        self.stream = stream
        self.seq = seq
        """The next sequence to read."""
        self.reason = reason

    def __str__(self) -> str:
        return (
            f"stream {self.stream!r} could not be read from sequence {self.seq} on: {self.reason}"
        )


class DirectGetRefusedError(RangeError):
    """The stream does not answer direct gets."""

    def __init__(self, stream: str) -> None:
        super().__init__(stream)
        self.stream = stream

    def __str__(self) -> str:
        return (
            f"stream {self.stream!r} does not answer direct gets: set allow_direct on the stream, or "
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
