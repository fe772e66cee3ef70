"""
Convert the header blocks of a chunk to Arrow.

The C extension splits ordinary blocks without an object for each header. Without it, each block is parsed.
"""

from __future__ import annotations

from array import array
from contextlib import suppress

import pyarrow as pa
import pyarrow.compute as pc

from ...headers import MSG_ID, Headers, parse_headers
from ...speedups import split_headers
from ..bytes_column import NO_BYTES, BytesColumn
from ..columns import (
    binary_column,
    first_numbers,
    offset_column,
    string_column,
    string_scalar,
)


class HeaderColumns:
    """The headers of some messages, as columns."""

    def __init__(self, blocks: BytesColumn, count: int) -> None:
        self._names = self._values = string_column(NO_BYTES, pa.string())
        #: The number of headers before each message and after the last.
        self._ends = offset_column(bytes(4 * (count + 1)))
        #: The number of values before each header and after the last; ``None``: each header has one.
        self._value_ends: pa.Array | None = None
        if blocks.total_bytes and not self._split(blocks):
            self._parse(blocks)

    def _split(self, blocks: BytesColumn) -> bool:
        """Split blocks in C; return whether that is possible."""
        columns = None if split_headers is None else split_headers(blocks.offsets, blocks.data)
        if columns is None:
            return False
        ends, name_offsets, names, value_offsets, values = columns
        with suppress(pa.ArrowInvalid):  # a value is not UTF-8
            self._names = binary_column(BytesColumn(name_offsets, names), pa.string())
            self._values = binary_column(BytesColumn(value_offsets, values), pa.string())
            self._ends = offset_column(ends)
            return True
        return False

    def _parse(self, blocks: BytesColumn) -> None:
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
        self._names = string_column(BytesColumn.of(names), pa.string())
        self._values = string_column(BytesColumn.of(values), pa.string())
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
