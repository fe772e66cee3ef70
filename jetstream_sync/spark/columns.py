"""
Arrow arrays and scalars made from buffers.

The first call of ``pa.array`` or ``pa.scalar`` in a process imports pandas, which takes as long as reading 300,000
rows.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from functools import cache
from typing import Any

import pyarrow as pa

from .bytes_column import NO_BYTES, BytesColumn


def binary_column(values: BytesColumn, kind: pa.DataType) -> pa.Array:
    """Return bytes as an array of a type that can be cast from ``binary``; raise `ArrowInvalid` for others."""
    buffers = [None, pa.py_buffer(values.offsets), pa.py_buffer(values.data)]
    return pa.Array.from_buffers(pa.binary(), len(values), buffers).cast(kind)


def bytes_column(column: pa.Array) -> BytesColumn:
    """Return a binary array without NULL as a column of bytes."""
    if not len(column):
        return NO_BYTES
    _, offsets, data = column.buffers()
    first = column.offset
    view = memoryview(offsets).cast("i")[first : first + len(column) + 1]
    return BytesColumn(view, b"" if data is None else data.to_pybytes())


def string_column(values: BytesColumn, kind: pa.DataType) -> pa.Array:
    """Return bytes as an array of strings, and replace invalid UTF-8."""
    try:
        return binary_column(values, kind)
    except pa.ArrowInvalid:
        valid = [value.decode("utf-8", "replace").encode() for value in values]
        return binary_column(BytesColumn.of(valid), kind)


def number_column(values: Iterable[int], kind: pa.DataType) -> pa.Array:
    """Return integers as an array of a type that can be cast from ``int64``."""
    numbers = values if isinstance(values, array) else array("q", values)
    buffers = [None, pa.py_buffer(numbers)]
    return pa.Array.from_buffers(pa.int64(), len(numbers), buffers).cast(kind)


def number_scalar(value: int) -> pa.Scalar:
    """Return an integer as a scalar of type ``int64``."""
    return number_column([value], pa.int64())[0]


def string_scalar(value: str, kind: pa.DataType) -> pa.Scalar:
    """Return a text as a scalar."""
    return binary_column(BytesColumn.of([value.encode()]), kind)[0]


def offset_column(offsets: Any) -> pa.Array:
    """Return a buffer of 32-bit integers as an array."""
    buffer = pa.py_buffer(offsets)
    return pa.Array.from_buffers(pa.int32(), buffer.size // 4, [None, buffer])


def first_numbers(count: int) -> pa.Array:
    """Return the integers from 0 on."""
    return _numbers(1 << count.bit_length()).slice(0, count)


@cache
def _numbers(count: int) -> pa.Array:
    return number_column(range(count), pa.int64())
