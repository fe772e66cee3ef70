"""Reading with ``spark.read``: the batch reader of the data source."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from pyspark.sql.datasource import DataSourceReader, InputPartition

from ..options import ReadOptions
from ..reading.tasks import RangeReader
from .bounded import plan_read
from .pushdown import Narrowing, narrowing

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.datasource import Filter
    from pyspark.sql.types import StructType

__all__ = ["JetStreamReader", "PushdownReader", "takes_filters"]

_PUSHDOWN_WORKER: Final = "pyspark.sql.worker.data_source_pushdown_filters"


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
        self._narrowing: Narrowing | None = None
        self._reader = RangeReader(options, schema)

    def partitions(self) -> list[InputPartition]:
        """Return one partition for each task, planned on the driver; raises as `plan_read`."""
        planned = plan_read(self._options, self._narrowing)
        return [InputPartition(each) for each in planned]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read one partition, on an executor; raises as `read_chunks`."""
        return self._reader.read(partition)

    def __repr__(self) -> str:
        return f"JetStreamReader({self._reader})"


class PushdownReader(JetStreamReader):
    """
    The same, for a table that is only ever read with one set of filters.

    Spark keeps the plan of the last query with the table, and applies it to every other query of
    the same ``load()``. So this is for those who ask for it.
    """

    def pushFilters(self, filters: list[Filter]) -> list[Filter]:  # noqa: N802 - PySpark's name
        """Take what filters say about subjects, sequences and times; Spark applies them all again."""
        self._narrowing = narrowing(filters, self._options.subjects)
        return filters


def takes_filters() -> bool:
    """Say whether this is the process in which Spark passes filters on; others refuse who takes them."""
    return _PUSHDOWN_WORKER in sys.argv
