"""
The offset of a streaming query: how far it has read each stream, as it stands in the checkpoint.

Four rules, each for something that Spark does:

1. An offset has the *start* of its batch in it, too. After a crash in the first batch Spark asks for
   the initial offset anew, and ``latest`` is somewhere else by then; the batch is read from its own
   start all the same.
2. It has the cuts between the partitions, and the filters. So a batch that is read again has the
   same partitions with the same rows, whatever the options say by then.
3. It has a name for the query, made up when it was new: nothing else that Spark tells a source on the
   driver is the same after a restart, and other than that of a second query.
4. Spark compares offsets as text. `Offset.to_json` always writes the same offset in the same way,
   and where there is nothing new the caller hands back the very offset that it was given.

Everything here is pure; any thread may call it.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from ...errors import Error, InvalidArgumentError

__all__ = ["Offset", "OffsetError", "StreamOffset"]

VERSION: Final = 1


class OffsetError(Error, ValueError):
    """An offset from a checkpoint can not be read: another program, or a newer version, wrote it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamOffset:
    """How far one stream is read."""

    created_ns: int
    """When the stream was made, in nanoseconds since 1970; another time is another stream."""

    start_seq: int
    """The first sequence of the batch that this offset ends."""

    next_seq: int
    """The sequence after its last one: where the next batch begins."""

    cuts: tuple[int, ...] = ()
    """Where the second and every further partition of the batch begins."""

    filters: tuple[str, ...] = ()
    """The filter subjects of the batch; none: all subjects."""

    def __post_init__(self) -> None:
        """Refuse what no offset of ours says."""
        bounds = (self.start_seq, *self.cuts, self.next_seq)
        rising = all(low < high for low, high in itertools.pairwise(bounds))
        if self.start_seq < 1 or not (rising or bounds == (self.next_seq,) * 2):
            raise InvalidArgumentError(f"these sequences are no batch: {bounds}")

    def empty_after(self, filters: tuple[str, ...] | None = None) -> StreamOffset:
        """Return the empty batch that begins where this one ends; ``None``: with its filters."""
        return StreamOffset(
            created_ns=self.created_ns,
            start_seq=self.next_seq,
            next_seq=self.next_seq,
            filters=self.filters if filters is None else filters,
        )

    def partition_bounds(self) -> list[tuple[int, int]]:
        """Return the ranges of the batch's partitions, each without its end."""
        bounds = (self.start_seq, *self.cuts, self.next_seq)
        return [(low, high) for low, high in itertools.pairwise(bounds) if low < high]


@dataclass(frozen=True, slots=True)
class Offset:
    """How far a query has read each of its streams, by `stream_key`."""

    positions: Mapping[str, StreamOffset]

    query: str = ""
    """What tells the query from others, at random; it is the same for as long as its checkpoint is."""

    def to_json(self) -> dict[str, Any]:
        """Return it in the form that is kept in the checkpoint; equal offsets give equal texts."""
        streams = {key: _to_json(self.positions[key]) for key in sorted(self.positions)}
        named = {"query": self.query} if self.query else {}
        return {**named, "streams": streams, "v": VERSION}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Offset:
        """
        Read an offset from a checkpoint.

        Raises:
            OffsetError: it is of another version or another source, or is damaged.

        """
        version = value.get("v")
        if version != VERSION:
            raise OffsetError(
                f"the checkpoint has an offset of version {version!r}; this version of the package "
                f"reads version {VERSION}: use the one that wrote it, or start a new checkpoint"
            )
        try:
            positions = {str(key): _from_json(each) for key, each in value["streams"].items()}
            return cls(positions, str(value.get("query", "")))
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise OffsetError(
                f"the checkpoint has an offset that can not be read: {error}"
            ) from None


def _to_json(position: StreamOffset) -> dict[str, Any]:
    # In the order of their names. The time as text: not every reader of JSON has such numbers.
    written: dict[str, Any] = {
        "created": str(position.created_ns),
        "cuts": list(position.cuts),
        "from": position.start_seq,
        "next": position.next_seq,
    }
    if position.filters:
        written["subjects"] = list(position.filters)
    return written


def _from_json(value: Mapping[str, Any]) -> StreamOffset:
    return StreamOffset(
        created_ns=int(value["created"]),
        start_seq=int(value["from"]),
        next_seq=int(value["next"]),
        cuts=tuple(int(cut) for cut in value["cuts"]),
        filters=tuple(str(subject) for subject in value.get("subjects", ())),
    )
