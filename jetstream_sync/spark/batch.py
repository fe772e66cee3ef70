"""Reading with ``spark.read``: the batch reader of the data source."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader, InputPartition

from .bounded import plan_read
from .options import ReadOptions
from .tasks import RangeReader

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

__all__ = ["JetStreamReader"]


class JetStreamReader(DataSourceReader):
    """
    Reads what is between two positions of each stream.

    Spark plans once for each ``load()``: what is stored later is for the next ``load()``.

    Args:
        options: of the read.
        schema: the columns that are wanted.

    """

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        self._options = options
        self._reader = RangeReader(options, schema)

    def partitions(self) -> list[InputPartition]:
        """Return one partition for each task, planned on the driver; raises as `plan_read`."""
        return [InputPartition(each) for each in plan_read(self._options)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read one partition, on an executor; raises as `read_chunks`."""
        return self._reader.read(partition)

    def __repr__(self) -> str:
        return f"JetStreamReader({self._reader})"
