"""
Convert chunks of messages to Arrow record batches, and make Arrow arrays and scalars from buffers.

The first call of ``pa.array`` or ``pa.scalar`` in a process imports pandas, which takes as long as reading 300,000
rows.

A NULL map costs Spark several times as much as an empty one, so the headers are never NULL. The C extension
splits ordinary header blocks without an object for each header. Without it, each block is parsed.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import cache
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from ...headers import MSG_ID, Headers, parse_headers
from ...speedups import split_headers
from ..bytes_column import NO_BYTES, BytesColumn
from ..options import ReadOptions
from ..retry import one_line_errors
from ..schema import arrow_schema, spark_arrow_schema
from .chunks import MAX_REQUEST_ROWS, Chunk
from .range_reader import ReadPlan, read_partition
from .ranges import SequenceRange

if TYPE_CHECKING:
    from pyspark.sql.datasource import InputPartition
    from pyspark.sql.types import StructType


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


def to_batch(
    chunk: Chunk, columns: pa.Schema | Sequence[str], domain: str | None = None
) -> pa.RecordBatch:
    """Return a chunk as a record batch; any thread may call it."""
    schema = columns if isinstance(columns, pa.Schema) else arrow_schema(columns)
    has_headers = bool({"headers", "msg_id"}.intersection(schema.names))
    headers = HeaderColumns(chunk.headers if has_headers else NO_BYTES, len(chunk))
    arrays: dict[str, Callable[[pa.DataType], pa.Array]] = {
        "subject": lambda kind: string_column(chunk.subjects, kind),
        "data": lambda kind: _data_array(chunk, kind),
        "headers": headers.map_array,
        "sequence": lambda kind: _sequence_array(chunk.sequences, kind),
        "timestamp": lambda kind: _timestamp_array(chunk.times_ns, kind),
        "stream": lambda kind: _constant_array(chunk.stream, len(chunk), kind),
        "time_ns": lambda kind: number_column(chunk.times_ns, kind),
        "msg_id": headers.message_ids,
        "size": lambda kind: number_column(chunk.sizes, kind),
        "domain": lambda kind: _constant_array(domain, len(chunk), kind),
    }
    made = [arrays[field.name](field.type) for field in schema]
    return pa.RecordBatch.from_arrays(made, schema=schema)


def _data_array(chunk: Chunk, kind: pa.DataType) -> pa.Array:
    """Return the payloads, NULL for a message that marks that a key was deleted."""
    data, markers = binary_column(chunk.data, kind), chunk.markers()
    if markers is None:
        return data
    return pc.if_else(number_column(markers, pa.bool_()), pa.nulls(1, kind)[0], data)


def _constant_array(value: str | None, count: int, kind: pa.DataType) -> pa.Array:
    return pa.nulls(count, kind) if value is None else pa.repeat(string_scalar(value, kind), count)


def _sequence_array(sequences: Sequence[int], kind: pa.DataType) -> pa.Array:
    count = len(sequences)
    if not isinstance(sequences, range) or count > MAX_REQUEST_ROWS:
        return number_column(sequences, kind)
    return pc.add(first_numbers(count), number_scalar(sequences.start)).cast(kind)


def _timestamp_array(times_ns: Sequence[int], kind: pa.DataType) -> pa.Array:
    return pc.divide(number_column(times_ns, pa.int64()), number_scalar(1000)).cast(kind)


class PartitionReader:
    """Reads partitions into Arrow; Spark pickles it and sends it to the executors."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        self._settings = options.connection
        self._schema = schema
        self._plan = ReadPlan.of(options)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a partition."""
        sequences: SequenceRange | None = partition.value
        if sequences is None:
            return
        columns = frozenset(self._schema.names)
        schema = spark_arrow_schema(self._schema)
        with one_line_errors():
            for chunk in read_partition(self._settings, sequences, columns, self._plan):
                yield to_batch(chunk, schema, self._settings.domain)

    def __str__(self) -> str:
        return ", ".join(self._schema.names)
