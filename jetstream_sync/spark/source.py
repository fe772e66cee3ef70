"""
Reading with ``spark.read``: the batch reader of the data source.

The data source ``jetstream``, as Spark knows it.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, ClassVar, Final

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
    InputPartition,
)

from ..errors import InvalidOptionError
from .options import ReadOptions, WriteOptions, exposed_secrets
from .planning.batch_read import FilterBounds, filter_bounds, plan_read
from .reading.arrow import PartitionReader
from .schema import READ_DDL, check_read_columns

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.datasource import Filter
    from pyspark.sql.types import StructType

__all__ = [
    "JetStreamDataSource",
    "JetStreamReader",
    "PushdownReader",
    "RedactedDataSource",
    "in_pushdown_worker",
]

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
        self._filter_bounds: FilterBounds | None = None
        self._reader = PartitionReader(options, schema)

    def partitions(self) -> list[InputPartition]:
        """Return one partition for each task, planned on the driver; raises as `plan_read`."""
        planned = plan_read(self._options, self._filter_bounds)
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
        self._filter_bounds = filter_bounds(filters, self._options.subjects)
        return filters


def in_pushdown_worker() -> bool:
    """Say whether this is the process in which Spark passes filters on; others refuse who takes them."""
    return _PUSHDOWN_WORKER in sys.argv


log = logging.getLogger("jetstream_sync.spark")

#: What was said once in this process.
_warned: set[str] = set()


class JetStreamDataSource(DataSource):
    """
    JetStream's streams as tables that Spark reads and writes, in batches and as they grow.

    ``spark.dataSource.register(JetStreamDataSource)`` makes it known as ``jetstream``; where the
    package is installed Spark finds it by itself. The options are those of `ReadOptions` and
    `WriteOptions`; they are checked on the driver, before any task starts.
    """

    #: Whether the session hides all options with secrets.
    _secrets_are_redacted: ClassVar[bool] = False

    @classmethod
    def name(cls) -> str:
        """Return the name for ``format()``."""
        return "jetstream"

    def schema(self) -> str:
        """Return the columns that are read where no schema is given."""
        return READ_DDL

    def reader(self, schema: StructType) -> DataSourceReader:
        """
        Return what reads with ``spark.read``.

        Args:
            schema: the columns that are wanted, by their names.

        Raises:
            InvalidOptionError: an option does not exist or can not work.
            SchemaError: there is no such column, or it has another type.

        """
        options = self._read_options()
        _check_columns(schema)
        kind = PushdownReader if options.pushdown and in_pushdown_worker() else JetStreamReader
        return kind(options, schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        """Return what reads with ``spark.readStream``; raises as `reader()`."""
        from .streaming.reader import JetStreamStreamReader  # noqa: PLC0415 - PySpark has its base since 4.2

        options = self._read_options()
        _check_columns(schema)
        for name, value in (
            ("endingOffsets", options.ending_offsets),
            ("endingTimestamp", options.ending_timestamp),
        ):
            if value is not None:
                raise InvalidOptionError(name, value, "a stream has no end; that is for spark.read")
        return JetStreamStreamReader(options, schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """
        Return what writes with ``df.write``.

        Args:
            schema: of the rows.
            overwrite: whether the mode is ``overwrite`` and not ``append``.

        Raises:
            InvalidOptionError: an option does not exist or can not work.
            SchemaError: there is no such column, or it has another type.

        """
        from .writing.sink import batch_writer  # noqa: PLC0415 - who reads does without it

        return batch_writer(self._write_options(), schema, overwrite)

    def streamWriter(  # noqa: N802 - PySpark's name
        self, schema: StructType, overwrite: bool
    ) -> DataSourceStreamWriter:
        """Return what writes with ``df.writeStream``; raises as `writer()`."""
        from .writing.stream_sink import stream_writer  # noqa: PLC0415 - who reads does without it

        return stream_writer(self._write_options(), schema, overwrite)

    def _read_options(self) -> ReadOptions:
        self._warn_exposed_secrets()
        return ReadOptions.from_options(self.options)

    def _write_options(self) -> WriteOptions:
        self._warn_exposed_secrets()
        return WriteOptions.from_options(self.options)

    def _warn_exposed_secrets(self) -> None:
        """Say once which options have secrets that Spark may show."""
        if self._secrets_are_redacted:
            return
        for name, instead in exposed_secrets(self.options).items():
            if name not in _warned:
                _warned.add(name)
                log.warning(
                    "a view of this table puts the secret in its option %s into Spark's event log:"
                    " use %s, or call jetstream_sync.spark.register(spark) first",
                    name,
                    instead,
                )

    def __repr__(self) -> str:
        # The options may have secrets in them.
        return "JetStreamDataSource()"


class RedactedDataSource(JetStreamDataSource):
    """The same in a session that hides its secrets, see `session.register`."""

    _secrets_are_redacted = True


def _check_columns(schema: StructType) -> None:
    check_read_columns((field.name, field.dataType.simpleString()) for field in schema.fields)
