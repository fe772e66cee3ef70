"""How a task reads its partition, whatever planned it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from pyspark.sql.datasource import InputPartition
from pyspark.sql.pandas.types import to_arrow_schema

from ..connections import connection
from ..options import ReadOptions
from .arrow import to_batch
from .one_range import ReadPlan, read_chunks
from .ranges import SequenceRange

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

__all__ = ["RangeReader"]


class RangeReader:
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
        each: SequenceRange | None = partition.value
        if each is None:
            return
        columns = frozenset(self._schema.names)
        schema = to_arrow_schema(self._schema, timezone="UTC")
        for chunk in read_chunks(connection(self._settings), each, columns, self._plan):
            yield to_batch(chunk, schema, self._settings.domain)

    def __str__(self) -> str:
        return ", ".join(self._schema.names)
