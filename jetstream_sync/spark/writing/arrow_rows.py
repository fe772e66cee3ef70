"""Columns of Arrow as values to write, if possible without an object for each of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from ... import errors
from ..bytes_column import BytesColumn
from ..reading.arrow import binary_column, bytes_column, offset_column, string_scalar
from ..schema import SchemaError
from .rows import LINE_BREAKS, TEXT_COLUMNS, Columns, RowLayout, header_start


def arrow_columns(layout: RowLayout, batch: pa.RecordBatch) -> Columns:
    """Return the columns of a record batch."""
    named = zip(layout.names, map(_without_rest, batch.columns), strict=True)
    return {name: _values(name, column) for name, column in named if name}


def record_batches(layout: RowLayout, batches: Iterable[pa.RecordBatch]) -> Iterator[Columns]:
    """
    Yield the columns of record batches.

    Raises `SchemaError` if their names differ, and `InvalidArgumentError` for anything but a record batch.
    """
    names: list[str] | None = None
    for batch in batches:
        if not isinstance(batch, pa.RecordBatch):
            kind = type(batch).__name__
            raise errors.InvalidArgumentError(
                f"the rows are record batches, and one is of type {kind}; a table has to_batches()"
            )
        names = names or batch.schema.names
        for name in {*names} ^ {*batch.schema.names}:
            raise SchemaError(name, "is not in every record batch")
        yield arrow_columns(layout, batch.select(names))


def _without_rest(column: pa.Array) -> pa.Array:
    """Return a column without the values of the table that it is a small part of, which would be copied each time."""
    # The sizes of a column are no criterion: `nbytes` reads the missing offsets of an empty column made in Java.
    return pa.concat_arrays([column]) if column.offset else column


def _values(name: str, column: pa.Array) -> Sequence[Any]:
    """Return the values of a column, by its name in `rows`."""
    if name in TEXT_COLUMNS:
        try:
            column = column.cast(pa.binary())
        except pa.ArrowNotImplementedError:
            rule = f"must be of type binary or string, not {column.type}"
            raise SchemaError(name, rule) from None
        return column.to_pylist() if column.null_count else bytes_column(column)
    if name == "headers":
        with suppress(pa.ArrowNotImplementedError):  # unusual types of texts or lists
            lines = _header_lines(column)
            if lines is not None:
                return lines
    values: Sequence[Any] = column.to_pylist()
    return values


def _is_pair(kind: pa.DataType) -> bool:
    """Return whether values are structs of a name and a value, in this order."""
    return pa.types.is_struct(kind) and [field.name for field in kind][1:] == ["value"]


def _header_lines(column: pa.Array) -> BytesColumn | None:
    """
    Return the header lines of each row of a column ``headers``.

    ``None``: a name, a value or the type is unusual, so that `RowEncoder` must check each header.
    """
    kind = column.type
    if column.null_count:
        return None
    if pa.types.is_map(kind):
        names, values = column.keys, column.items
    elif pa.types.is_list(kind) and _is_pair(kind.value_type):
        names, values = column.values.flatten()
    else:
        return None
    if not len(names):
        return BytesColumn.of([b""] * len(column))
    ends = column.offsets
    if names.null_count:
        return None
    encoded = pc.dictionary_encode(names.cast(pa.string()))
    try:
        starts = [header_start(name).encode() for name in encoded.dictionary.to_pylist()]
    except errors.Error:
        return None
    start_column = binary_column(BytesColumn.of(starts), pa.binary()).take(encoded.indices)
    if pa.types.is_list(values.type):
        if values.null_count:
            return None
        counts = pc.list_value_length(values)
        value_ends = pa.concat_arrays([offset_column(bytes(4)), pc.cumulative_sum(counts)])
        ends = value_ends.take(ends)
        start_column = start_column.take(pc.list_parent_indices(values))
        values = values.flatten()
    values = values.cast(pa.binary())
    if values.null_count:
        return None
    if any(byte in bytes_column(values).data for byte in LINE_BREAKS):
        return None
    nothing = string_scalar("", pa.binary())
    line_end = string_scalar("\r\n", pa.binary())
    lines = pc.binary_join_element_wise(start_column, values, line_end, nothing)
    if b"" in starts:
        lines = pc.if_else(pc.equal(start_column, nothing), nothing, lines)
    joined = bytes_column(lines)
    offsets = offset_column(joined.offsets).take(ends)
    return BytesColumn(memoryview(offsets.buffers()[1]).cast("i")[: len(offsets)], joined.data)
