"""The same source with one tuple per row, as in most Python data sources: shows the gain from Arrow."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

from jetstream_sync.spark.task_helpers import plan_ranges, read_range

__all__ = ["TupleDataSource"]


class TupleDataSource(DataSource):  # type: ignore[misc]  # pyspark says Any
    """Ranges of a stream, read like the data source but row by row."""

    @classmethod
    def name(cls) -> str:
        return "jetstream-tuples"

    def schema(self) -> str:
        return (
            "subject string, data binary, headers map<string, array<string>>,"
            " sequence long, timestamp timestamp, stream string"
        )

    def reader(self, schema: object) -> DataSourceReader:
        return _TupleReader(dict(self.options))


class _TupleReader(DataSourceReader):  # type: ignore[misc]
    def __init__(self, options: Mapping[str, str]) -> None:
        self._options = options

    def partitions(self) -> list[InputPartition]:
        return [InputPartition(each) for each in plan_ranges(self._options)]

    def read(self, partition: InputPartition) -> Iterator[tuple[Any, ...]]:
        return read_range(partition.value, self._options)
