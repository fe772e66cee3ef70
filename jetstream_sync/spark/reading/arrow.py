"""
Chunks of messages become Arrow's record batches, by columns.

A map that is NULL costs Spark several times what an empty one does, so there is none that is NULL.

How a task reads its partition, whatever planned it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.compute as pc

from ...headers import MSG_ID, parse_headers
from ..connections import connection
from ..options import ReadOptions
from ..schema import arrow_schema
from .chunks import Chunk
from .range_reader import ReadPlan, read_chunks
from .ranges import SequenceRange

if TYPE_CHECKING:
    from pyspark.sql.datasource import InputPartition
    from pyspark.sql.types import StructType

__all__ = ["PartitionReader", "to_batch"]

_NO_HEADERS: Final[dict[str, list[str]]] = {}


def to_batch(
    chunk: Chunk, columns: pa.Schema | Sequence[str], domain: str | None = None
) -> pa.RecordBatch:
    """
    Return a chunk as a record batch; any thread may call it.

    Args:
        chunk: with what the columns need, see `FieldSelection.of`.
        columns: the schema that the batch has to have, with columns of `schema.READ_TYPES`; or their
            names, for the schema that `arrow_schema` makes of them.
        domain: what the column ``domain`` says; ``None``: NULL.

    """
    schema = columns if isinstance(columns, pa.Schema) else arrow_schema(columns)
    headers = (
        _parse_header_blocks(chunk) if {"headers", "msg_id"}.intersection(schema.names) else []
    )
    arrays: dict[str, Callable[[pa.DataType], pa.Array]] = {
        "subject": lambda kind: _string_array(chunk.subjects, kind),
        "data": lambda kind: pa.array(chunk.data, kind),
        "headers": lambda kind: _headers_array(headers, len(chunk), kind),
        # PyArrow takes a list several times as fast as a range.
        "sequence": lambda kind: pa.array([*chunk.sequences], kind),
        "timestamp": lambda kind: _timestamp_array(chunk.times_ns, kind),
        "stream": lambda kind: _constant_array(chunk.stream, len(chunk), kind),
        "time_ns": lambda kind: pa.array(chunk.times_ns, kind),
        "msg_id": lambda kind: _msg_id_array(headers, len(chunk), kind),
        "size": lambda kind: pa.array(chunk.sizes, kind),
        "domain": lambda kind: _constant_array(domain, len(chunk), kind),
    }
    made = [arrays[field.name](field.type) for field in schema]
    return pa.RecordBatch.from_arrays(made, schema=schema)


def _string_array(values: Sequence[bytes], kind: pa.DataType) -> pa.Array:
    """Make texts of bytes; what is no UTF-8 among them is replaced."""
    try:
        return pa.array(values, kind)
    except pa.ArrowInvalid:
        return pa.array([value.decode("utf-8", "replace") for value in values], kind)


def _constant_array(value: str | None, count: int, kind: pa.DataType) -> pa.Array:
    return pa.nulls(count, kind) if value is None else pa.repeat(pa.scalar(value, kind), count)


def _timestamp_array(times_ns: Sequence[int], kind: pa.DataType) -> pa.Array:
    return pc.divide(pa.array(times_ns, pa.int64()), 1000).cast(kind)


def _parse_header_blocks(chunk: Chunk) -> list[dict[str, list[str]]]:
    """Return the headers of each message; nothing at all when there is no header in the chunk."""
    if not any(chunk.headers):
        return []
    return [_parse_block(block) if block else _NO_HEADERS for block in chunk.headers]


def _parse_block(block: bytes) -> dict[str, list[str]]:
    """Return the values of each name; what is no UTF-8 in them is replaced."""
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


def _msg_id_array(
    headers: Sequence[dict[str, list[str]]], count: int, kind: pa.DataType
) -> pa.Array:
    if not headers:
        return pa.nulls(count, kind)
    return pa.array([_message_id(each) for each in headers], kind)


def _message_id(headers: dict[str, list[str]]) -> str | None:
    values = headers.get(MSG_ID)
    return values[0] if values else None


def _headers_array(
    headers: Sequence[dict[str, list[str]]], count: int, kind: pa.DataType
) -> pa.Array:
    """Make a map of names to values for each message, put together from its columns."""
    names: list[str] = []
    values: list[str] = []
    name_ends, value_ends = [0], [0]
    for each in headers:
        for name, several in each.items():
            names.append(name)
            values += several
            value_ends.append(len(values))
        name_ends.append(len(names))
    if not headers:
        name_ends *= count + 1
    lists = pa.Array.from_buffers(
        kind.item_type,
        len(names),
        [None, _offsets(value_ends)],
        children=[pa.array(values, kind.item_type.value_type)],
    )
    entries = pa.StructArray.from_arrays(
        [pa.array(names, kind.key_type), lists], fields=[kind.key_field, kind.item_field]
    )
    return pa.Array.from_buffers(kind, count, [None, _offsets(name_ends)], children=[entries])


def _offsets(ends: list[int]) -> pa.Buffer:
    return pa.array(ends, pa.int32()).buffers()[1]


class PartitionReader:
    """
    Reads ranges into Arrow; it is pickled with a reader and sent to the executors.

    Args:
        options: of the read.
        schema: the columns that are wanted.

    """

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        self._settings = options.connection
        self._schema = schema
        self._plan = ReadPlan.of(options)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """
        Yield the rows of a partition.

        Args:
            partition: with a `SequenceRange`; with ``None``, which Spark makes up where there is no
                partition at all, there are no rows.

        Raises:
            Error: as `read_chunks`.

        """
        from pyspark.sql.pandas.types import to_arrow_schema  # noqa: PLC0415 - `to_batch` works without it

        each: SequenceRange | None = partition.value
        if each is None:
            return
        columns = frozenset(self._schema.names)
        schema = to_arrow_schema(self._schema, timezone="UTC")
        for chunk in read_chunks(connection(self._settings), each, columns, self._plan):
            yield to_batch(chunk, schema, self._settings.domain)

    def __str__(self) -> str:
        return ", ".join(self._schema.names)
