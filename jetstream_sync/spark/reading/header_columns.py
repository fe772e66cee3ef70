"""
Convert the header blocks of a chunk to Arrow.

The C extension splits ordinary blocks without an object for each header. Without it, blocks that all have the same
header names in the same order, as those of one publisher, are split together. Every other block is parsed.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from contextlib import suppress
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from ...headers import MSG_ID, Headers, parse_headers
from ...speedups import split_headers
from .columns import (
    binary_column,
    first_numbers,
    joined_column,
    number_scalar,
    offset_column,
    string_column,
    string_scalar,
)

_VERSION: Final = b"NATS/1.0"
_NEWLINE: Final = b"\r\n"
_WHITE_SPACE: Final = " \t"


class HeaderColumns:
    """The headers of some messages, as columns."""

    def __init__(self, blocks: Sequence[bytes], count: int) -> None:
        self._names = self._values = string_column((), pa.string())
        #: The number of headers before each message and after the last.
        self._ends = offset_column(bytes(4 * (count + 1)))
        #: The number of values before each header and after the last; ``None``: each header has one.
        self._value_ends: pa.Array | None = None
        if any(blocks) and not self._split(blocks) and not self._split_common(blocks):
            self._parse(blocks)

    def _split(self, blocks: Sequence[bytes]) -> bool:
        """Split blocks in C; return whether that is possible."""
        columns = None if split_headers is None else split_headers(blocks)
        if columns is None:
            return False
        ends, name_offsets, names, value_offsets, values = columns
        with suppress(pa.ArrowInvalid):  # a value is not UTF-8
            self._names = joined_column(name_offsets, names).cast(pa.string())
            self._values = joined_column(value_offsets, values).cast(pa.string())
            self._ends = offset_column(ends)
            return True
        return False

    def _split_common(self, blocks: Sequence[bytes]) -> bool:
        """Split blocks with the same names; return whether they have them."""
        common = _common_headers(blocks)
        if common is None:
            return False
        names, values = common
        with suppress(pa.ArrowInvalid):
            text = binary_column(values, pa.string())
            self._values = pc.utf8_trim(text, characters=_WHITE_SPACE)
            self._names = binary_column(names * len(blocks), pa.string())
            self._ends = pc.multiply(
                first_numbers(len(blocks) + 1), number_scalar(len(names))
            ).cast(pa.int32())
            return True
        return False

    def _parse(self, blocks: Sequence[bytes]) -> None:
        """Parse each block."""
        names: list[bytes] = []
        values: list[bytes] = []
        ends, value_ends = array("i", [0]), array("i", [0])
        for block in blocks:
            headers = parse_headers(block) or Headers()
            for name in headers:
                names.append(name.encode("utf-8", "surrogateescape"))
                values += [
                    value.encode("utf-8", "surrogateescape") for value in headers.get_all(name)
                ]
                value_ends.append(len(values))
            ends.append(len(names))
        self._names = string_column(names, pa.string())
        self._values = string_column(values, pa.string())
        self._ends, self._value_ends = offset_column(ends), offset_column(value_ends)

    def map_array(self, kind: pa.DataType) -> pa.Array:
        """Return a map of names to lists of values for each message; it has no NULL."""
        count = len(self._names)
        value_ends = self._value_ends
        if value_ends is None:
            value_ends = first_numbers(count + 1).cast(pa.int32())
        lists = pa.Array.from_buffers(
            kind.item_type, count, [None, value_ends.buffers()[1]], children=[self._values]
        )
        entries = pa.StructArray.from_arrays(
            [self._names, lists], fields=[kind.key_field, kind.item_field]
        )
        ends = self._ends.buffers()[1]
        return pa.Array.from_buffers(kind, len(self._ends) - 1, [None, ends], children=[entries])

    def message_ids(self, kind: pa.DataType) -> pa.Array:
        """Return the message id of each message, NULL for none."""
        is_id = pc.equal(self._names, string_scalar(MSG_ID, pa.string()))
        positions = pc.indices_nonzero(is_id)
        if self._value_ends is not None:
            positions = self._value_ends.take(positions)
        # The number of ids before each message and after the last: a message has one or none.
        counts = pa.concat_arrays(
            [offset_column(bytes(4)), pc.cumulative_sum(is_id.cast(pa.int32()))]
        )
        counts = counts.take(self._ends)
        before, after = counts[:-1], counts[1:]
        index = pc.if_else(pc.less(before, after), before, pa.nulls(1, pa.int32())[0])
        return self._values.take(positions).take(index).cast(kind)


def _common_headers(blocks: Sequence[bytes]) -> tuple[list[bytes], list[bytes]] | None:
    """Return the common header names of all blocks, and their values; ``None``: the names differ."""
    template = blocks[0].split(_NEWLINE)
    starts = [line[: line.find(b":") + 1] for line in template[1:-2]]
    names = [start[:-1] for start in starts]
    distinct = {
        name.lower() for name in names if name and name == name.strip(_WHITE_SPACE.encode())
    }
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
    return names, values
