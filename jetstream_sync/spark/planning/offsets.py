"""
The offset of a streaming query: how far it has read each stream, as stored in the checkpoint.

Rules, each for a behaviour of Spark:

1. An offset contains the *start* of its batch. After a crash in the first batch Spark asks for the initial
   offset again, and ``latest`` has moved by then. The batch is still read from its own start.
2. An offset contains the cuts between partitions and the filters. So a repeated batch has the same
   partitions with the same rows, even if the options have changed.
3. An offset contains a random name for the query. Spark passes no other value to a source on the driver that
   is stable across restarts and unique to the query.
4. An offset contains the time of its last message if the batch ends with the stream, because a stream that is
   restored to an earlier state gives the same sequences to other messages.
5. Spark compares offsets as text. `Offset.to_json` gives equal offsets equal texts. If there is nothing new to
   read, the caller returns the given offset unchanged.

Everything here is pure, and any thread may call it.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from ... import errors
from ..stored import FLAG, INTEGER, NANOSECONDS, TEXT, by_name, from_json, many, stored, to_json

VERSION: Final = 1


class OffsetError(errors.Error, ValueError):
    """The offset of a checkpoint cannot be read: another source or a newer version wrote it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamOffset:
    """How far one stream is read, with the batch that ends there."""

    created_ns: int = stored("created", NANOSECONDS)
    """When the stream was created, in nanoseconds since 1970; it identifies the stream."""

    start_seq: int = stored("from", INTEGER)
    """The first sequence of the batch that this offset ends."""

    next_seq: int = stored("next", INTEGER)
    """The sequence after that batch, where the next batch begins."""

    cuts: tuple[int, ...] = stored("cuts", many(INTEGER), (), required=True)
    """The start sequences of the second and all further partitions of the batch."""

    filters: tuple[str, ...] = stored("subjects", many(TEXT), ())
    """The filter subjects of the batch; empty: all subjects."""

    since_ns: int | None = stored("since", NANOSECONDS, None)
    """Messages stored before this time are skipped; ``None``: the time of the start is reached."""

    last_ns: int | None = stored("last", NANOSECONDS, None)
    """When the message before `next_seq` was stored, which shows a restored stream; ``None``: unknown."""

    from_earliest: bool = stored("earliest", FLAG, default=False)
    """Whether the batch is the first one and begins, unless it is repeated, with the message that is the first when
    it is read."""

    def __post_init__(self) -> None:
        """Check that the sequences rise."""
        bounds = (self.start_seq, *self.cuts, self.next_seq)
        rising = all(low < high for low, high in itertools.pairwise(bounds))
        if self.start_seq < 1 or not (rising or bounds == (self.next_seq,) * 2):
            raise errors.InvalidArgumentError(
                f"invalid batch bounds {bounds}: sequences must rise from 1"
            )

    @property
    def is_unread(self) -> bool:
        """Whether nothing was read from the start of the stream."""
        return self.from_earliest and self.start_seq == self.next_seq

    def empty_after(self) -> StreamOffset:
        """Return the empty batch that begins where this one ends."""
        start = self.next_seq
        return replace(self, start_seq=start, cuts=(), from_earliest=self.is_unread)

    def partition_bounds(self) -> list[tuple[int, int]]:
        """Return start and end of each partition; the end is exclusive."""
        bounds = (self.start_seq, *self.cuts, self.next_seq)
        return [(low, high) for low, high in itertools.pairwise(bounds) if low < high]


@dataclass(frozen=True, slots=True)
class Offset:
    """How far a query has read each of its streams, by `stream_key`."""

    positions: Mapping[str, StreamOffset] = stored("streams", by_name(StreamOffset))

    query: str = stored("query", TEXT, "")
    """The random name of the query; it stays the same as long as its checkpoint exists."""

    def to_json(self) -> dict[str, Any]:
        """Return the offset as stored in the checkpoint; equal offsets give equal JSON texts."""
        return {**to_json(self), "v": VERSION}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Offset:
        """Parse an offset from a checkpoint; raise `OffsetError` for another version, and for anything else."""
        version = value.get("v") if isinstance(value, Mapping) else None
        if version != VERSION:
            raise OffsetError(
                f"the checkpoint has an offset of version {version!r}, but this version of the package "
                f"reads version {VERSION}: use the version that wrote it, or start a new checkpoint"
            )
        try:
            return from_json(cls, value)
        except ValueError as error:
            raise OffsetError(f"the checkpoint has an invalid offset: {error}") from None
