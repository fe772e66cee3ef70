"""What one task reads, and what can go wrong with it."""

from __future__ import annotations

from dataclasses import dataclass

from ...errors import InvalidArgumentError, JetStreamError

__all__ = [
    "DirectGetRefusedError",
    "RangeError",
    "RangeLostError",
    "RangeStalledError",
    "SequenceRange",
    "StreamRecreatedError",
]


class RangeError(JetStreamError):
    """A range of a stream could not be read; the fields say which."""


class RangeLostError(RangeError):
    """Messages of a range left the stream before they were read."""

    def __init__(self, stream: str, start_seq: int, end_seq: int) -> None:
        super().__init__(stream, start_seq, end_seq)
        self.stream = stream
        self.start_seq = start_seq
        """The first sequence that is not there any more."""
        self.end_seq = end_seq
        """The first one behind those."""

    def __str__(self) -> str:
        return (
            f"stream {self.stream!r} lost the sequences {self.start_seq} to {self.end_seq - 1} "
            "before they were read; failOnDataLoss=false reads what is left"
        )


class StreamRecreatedError(RangeError):
    """The stream was deleted and made again since the range was planned."""

    def __init__(self, stream: str, planned_ns: int, found_ns: int) -> None:
        super().__init__(stream, planned_ns, found_ns)
        self.stream = stream
        self.planned_ns = planned_ns
        """When the stream was made that the range was planned for, in nanoseconds since 1970."""
        self.found_ns = found_ns
        """The same of the one that is there."""

    def __str__(self) -> str:
        return (
            f"stream {self.stream!r} was deleted and made again: its sequences are not those that "
            "were planned"
        )


class RangeStalledError(RangeError):
    """The server holds messages of a range, and does not deliver them; trying again may help."""

    def __init__(self, stream: str, seq: int, reason: str) -> None:
        super().__init__(stream, seq, reason)
        self.stream = stream
        self.seq = seq
        """The sequence that was to be read next."""
        self.reason = reason

    def __str__(self) -> str:
        return (
            f"stream {self.stream!r} could not be read on from sequence {self.seq}: {self.reason}"
        )


class DirectGetRefusedError(RangeError):
    """Nobody answers direct gets for the stream."""

    def __init__(self, stream: str) -> None:
        super().__init__(stream)
        self.stream = stream

    def __str__(self) -> str:
        return (
            f"stream {self.stream!r} answers no direct gets: set its allow_direct, or read it with "
            "readMode=pull, which a work-queue stream does not allow"
        )


@dataclass(frozen=True, slots=True)
class SequenceRange:
    """
    A half-open range of a stream's sequences: what one task reads.

    It can be pickled, and has no secrets.

    Raises:
        InvalidArgumentError: it ends before it starts.

    """

    stream: str
    """The stream's name."""

    start_seq: int
    """The first sequence that belongs to it."""

    end_seq: int
    """The first sequence behind it."""

    filters: tuple[str, ...] = ()
    """Subjects, with wildcards, that a message's has to match one of; none: all belong to it."""

    created_ns: int = 0
    """When the stream was made, in nanoseconds since 1970, which tells it from one made later under
    the same name; 0: that is not checked."""

    def __post_init__(self) -> None:
        if not 0 <= self.start_seq <= self.end_seq:
            raise InvalidArgumentError(
                f"a range from {self.start_seq} to {self.end_seq} ends before it starts"
            )
