"""
Convert the header blocks of a chunk to Arrow.

Most often all messages have the same header names in the same order, as those of one publisher. Then the blocks
are split together, and no object is made for a message. Otherwise each block is parsed.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from ...headers import MSG_ID, parse_headers

_VERSION: Final = b"NATS/1.0"
_NEWLINE: Final = b"\r\n"
_WHITE_SPACE: Final = " \t"
_NO_HEADERS: Final[dict[str, list[str]]] = {}


class HeaderColumns:
    """The headers of some messages, as columns."""

    def __init__(self, blocks: Sequence[bytes], count: int) -> None:
        self._count = count
        #: The common names of all messages, and their values in the order of the messages.
        self._common: tuple[list[str], pa.Array] | None = None
        self._parsed: list[dict[str, list[str]]] = []
        if any(blocks):
            self._common = _split_common(blocks)
            if self._common is None:
                self._parsed = [_parse_block(block) if block else _NO_HEADERS for block in blocks]

    def map_array(self, kind: pa.DataType) -> pa.Array:
        """Return a map of names to lists of values for each message; it has no NULL."""
        if self._common is not None:
            names, values = self._common
            # One value for each name, so the offsets rise evenly.
            name_ends = pc.multiply(first_numbers(self._count + 1), len(names))
            return _map_array(
                kind, names * self._count, values, first_numbers(len(values) + 1), name_ends
            )
        if not self._parsed:
            return _map_array(kind, [], [], [0], [0] * (self._count + 1))
        names, all_values = [], []
        name_ends, value_ends = [0], [0]
        for headers in self._parsed:
            for name, several in headers.items():
                names.append(name)
                all_values += several
                value_ends.append(len(all_values))
            name_ends.append(len(names))
        return _map_array(kind, names, all_values, value_ends, name_ends)

    def message_ids(self, kind: pa.DataType) -> pa.Array:
        """Return the message id of each message, NULL for none."""
        if self._common is not None:
            names, values = self._common
            if MSG_ID in names:
                positions = range(names.index(MSG_ID), len(values), len(names))
                return values.take(pa.array(positions, pa.int32())).cast(kind)
        if not self._parsed:
            return pa.nulls(self._count, kind)
        found = (headers.get(MSG_ID) for headers in self._parsed)
        return pa.array([values[0] if values else None for values in found], kind)


def _map_array(
    kind: pa.DataType,
    names: Sequence[str],
    values: Sequence[str] | pa.Array,
    value_ends: Sequence[int] | pa.Array,
    name_ends: Sequence[int] | pa.Array,
) -> pa.Array:
    """Assemble an array of maps from flat arrays."""
    if not isinstance(values, pa.Array):
        values = pa.array(values, kind.item_type.value_type)
    lists = pa.Array.from_buffers(
        kind.item_type, len(names), [None, _offsets(value_ends)], children=[values]
    )
    entries = pa.StructArray.from_arrays(
        [pa.array(names, kind.key_type), lists], fields=[kind.key_field, kind.item_field]
    )
    count = len(name_ends) - 1
    return pa.Array.from_buffers(kind, count, [None, _offsets(name_ends)], children=[entries])


def _offsets(ends: Sequence[int] | pa.Array) -> pa.Buffer:
    array = ends.cast(pa.int32()) if isinstance(ends, pa.Array) else pa.array(ends, pa.int32())
    return array.buffers()[1]


def first_numbers(count: int) -> pa.Array:
    """Return the integers from 0 on."""
    return _numbers(1 << count.bit_length()).slice(0, count)


@cache
def _numbers(count: int) -> pa.Array:
    return pa.array(range(count), pa.int64())


def _split_common(blocks: Sequence[bytes]) -> tuple[list[str], pa.Array] | None:
    """Return the common header names of all blocks, and their values; ``None``: the names differ."""
    template = blocks[0].split(_NEWLINE)
    starts = [line[: line.find(b":") + 1] for line in template[1:-2]]
    names = [start[:-1].decode("utf-8", "replace") for start in starts]
    distinct = {name.lower() for name in names if name and name == name.strip(_WHITE_SPACE)}
    count, width = len(blocks), len(template) - 1
    lines = b"".join(blocks).split(_NEWLINE)
    if not names or len(distinct) < len(names) or len(lines) != width * count + 1:
        return None
    if lines[0::width].count(_VERSION) != count or lines[width - 1 :: width].count(b"") != count:
        return None
    values = [b""] * (count * len(names))
    for column, start in enumerate(starts):
        at, found = len(start), lines[column + 1 :: width]
        if {line[:at] for line in found} != {start}:
            return None
        values[column :: len(names)] = [line[at:] for line in found]
    try:
        text = pa.array(values, pa.binary()).cast(pa.string())
        return names, pc.utf8_trim(text, characters=_WHITE_SPACE)
    except pa.ArrowInvalid:
        return None  # a value is not UTF-8


def _parse_block(block: bytes) -> dict[str, list[str]]:
    """Parse a header block, and replace invalid UTF-8 in values."""
    headers = parse_headers(block)
    if headers is None:
        return _NO_HEADERS
    found = {name: headers.get_all(name) for name in headers}
    if not block.isascii():
        return {
            name: [
                value.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
                for value in values
            ]
            for name, values in found.items()
        }
    return found
