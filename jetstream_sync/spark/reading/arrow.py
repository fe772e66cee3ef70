"""
Convert chunks of messages to Arrow record batches.

A NULL map costs Spark several times as much as an empty one, so the headers are never NULL.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from ..bytes_column import NO_BYTES
from ..columns import (
    binary_column,
    first_numbers,
    number_column,
    number_scalar,
    string_column,
    string_scalar,
)
from ..connections import connection
from ..options import ReadOptions
from ..retry import one_line_errors
from ..schema import arrow_schema
from .chunks import MAX_REQUEST_ROWS, Chunk
from .header_columns import HeaderColumns
from .range_reader import ReadPlan, read_chunks
from .ranges import SequenceRange

if TYPE_CHECKING:
    from pyspark.sql.datasource import InputPartition
    from pyspark.sql.types import StructType


def to_batch(
    chunk: Chunk, columns: pa.Schema | Sequence[str], domain: str | None = None
) -> pa.RecordBatch:
    """Return a chunk as a record batch; any thread may call it."""
    schema = columns if isinstance(columns, pa.Schema) else arrow_schema(columns)
    has_headers = bool({"headers", "msg_id"}.intersection(schema.names))
    headers = HeaderColumns(chunk.headers if has_headers else NO_BYTES, len(chunk))
    arrays: dict[str, Callable[[pa.DataType], pa.Array]] = {
        "subject": lambda kind: string_column(chunk.subjects, kind),
        "data": lambda kind: binary_column(chunk.data, kind),
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
        from pyspark.sql.pandas.types import to_arrow_schema  # noqa: PLC0415 - `to_batch` works without it

        each: SequenceRange | None = partition.value
        if each is None:
            return
        columns = frozenset(self._schema.names)
        schema = to_arrow_schema(self._schema, timezone="UTC")
        with one_line_errors():
            for chunk in read_chunks(connection(self._settings), each, columns, self._plan):
                yield to_batch(chunk, schema, self._settings.domain)

    def __str__(self) -> str:
        return ", ".join(self._schema.names)
