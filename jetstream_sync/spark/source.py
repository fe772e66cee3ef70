"""The data source ``jetstream``, as Spark knows it."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, ClassVar

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)

from ..errors import InvalidOptionError
from .batch.reader import JetStreamReader, PushdownReader, takes_filters
from .options import ReadOptions, WriteOptions, shown_secrets
from .schema import READ_DDL, check_read_columns

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

__all__ = ["HiddenDataSource", "JetStreamDataSource"]

log = logging.getLogger("jetstream_sync.spark")

#: What was said once in this process.
_said: set[str] = set()


class JetStreamDataSource(DataSource):
    """
    JetStream's streams as tables that Spark reads and writes, in batches and as they grow.

    ``spark.dataSource.register(JetStreamDataSource)`` makes it known as ``jetstream``; where the
    package is installed Spark finds it by itself. The options are those of `ReadOptions` and
    `WriteOptions`; they are checked on the driver, before any task starts.
    """

    #: Whether the session hides all options with secrets.
    _is_hidden: ClassVar[bool] = False

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
        kind = PushdownReader if options.pushdown and takes_filters() else JetStreamReader
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
        from .writing.sink import stream_writer  # noqa: PLC0415 - who reads does without it

        return stream_writer(self._write_options(), schema, overwrite)

    def _read_options(self) -> ReadOptions:
        self._warn()
        return ReadOptions.from_options(self.options)

    def _write_options(self) -> WriteOptions:
        self._warn()
        return WriteOptions.from_options(self.options)

    def _warn(self) -> None:
        """Say once which options have secrets that Spark may show."""
        if self._is_hidden:
            return
        for name, instead in shown_secrets(self.options).items():
            if name not in _said:
                _said.add(name)
                log.warning(
                    "a view of this table puts the secret in its option %s into Spark's event log:"
                    " use %s, or call jetstream_sync.spark.register(spark) first",
                    name,
                    instead,
                )

    def __repr__(self) -> str:
        # The options may have secrets in them.
        return "JetStreamDataSource()"


class HiddenDataSource(JetStreamDataSource):
    """The same in a session that hides its secrets, see `session.register`."""

    _is_hidden = True


def _check_columns(schema: StructType) -> None:
    check_read_columns((field.name, field.dataType.simpleString()) for field in schema.fields)
