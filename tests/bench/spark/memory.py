"""
A data source with rows in memory: the cost of passing rows to Spark, without server and network.

The rows have the form in which they arrive, and are passed as Arrow like in the data source, or as tuples like in
`read_range`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import pairwise, repeat
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

from jetstream_sync.spark.reading.arrow import to_batch
from jetstream_sync.spark.reading.chunks import Chunk
from jetstream_sync.spark.schema import READ_COLUMNS, READ_DDL
from jetstream_sync.spark.task_helpers import _values

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["MemoryDataSource"]

#: As many rows as a full response has.
_ROWS: Final = 15_000
_NOON_NS: Final = 1_769_860_800 * 10**9


class MemoryDataSource(DataSource):  # type: ignore[misc]  # pyspark says Any
    """A number of rows with the columns of the source."""

    @classmethod
    def name(cls) -> str:
        return "jetstream-memory"

    def schema(self) -> str:
        return READ_DDL

    def reader(self, schema: object) -> DataSourceReader:
        return _MemoryReader(dict(self.options))


class _MemoryReader(DataSourceReader):  # type: ignore[misc]
    def __init__(self, options: Mapping[str, str]) -> None:
        self._rows = int(options["rows"])
        self._size = int(options["size"])
        self._tasks = int(options["tasks"])
        self._by_tuples = options["form"] == "tuples"

    def partitions(self) -> list[InputPartition]:
        bounds = [self._rows * task // self._tasks + 1 for task in range(self._tasks + 1)]
        return [InputPartition(range(*each)) for each in pairwise(bounds)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch | tuple[Any, ...]]:
        payload, subjects = b"%0*d", [b"FILLED.%d" % number for number in range(100)]
        # All chunks have the same payloads: creating them is not measured.
        data = [payload % (self._size, number) for number in range(_ROWS)]
        names = [subjects[number % 100] for number in range(_ROWS)]
        times = [_NOON_NS + 1_000_123 * number for number in range(_ROWS)]
        wanted: range = partition.value
        for start in range(wanted.start, wanted.stop, _ROWS):
            sequences = range(start, min(start + _ROWS, wanted.stop))
            chunk = Chunk(
                stream="FILLED",
                sequences=sequences,
                subjects=names[: len(sequences)],
                data=data[: len(sequences)],
                times_ns=times[: len(sequences)],
            )
            if self._by_tuples:
                columns = map(_values, repeat(chunk), READ_COLUMNS, repeat(None))
                yield from zip(*columns, strict=True)
            else:
                yield to_batch(chunk, READ_COLUMNS)
