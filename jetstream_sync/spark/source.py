"""The data source ``jetstream`` that Spark creates, with its readers for ``spark.read``."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, ClassVar, NoReturn

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
    InputPartition,
)

from .. import errors
from .options import BucketReadOptions, ReadOptions, WriteOptions, exposed_secrets
from .planning.batch_read import plan_read
from .reading.arrow import PartitionReader
from .reading.bucket import check_bucket_exists, read_bucket
from .retry import one_line_errors
from .schema import BUCKET_DDL, BUCKET_TYPES, READ_DDL, READ_TYPES, check_read_columns

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

log: logging.Logger = logging.getLogger("jetstream_sync.spark")

#: Options that this process has already warned about.
_warned: set[str] = set()


class JetStreamReader(DataSourceReader):
    """
    Batch reader of the range between two offsets of each stream.

    Spark plans once for each ``load()``: messages stored later are read by the next ``load()``.
    """

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        self._options = options
        self._reader = PartitionReader(options, schema)

    @one_line_errors()
    def partitions(self) -> list[InputPartition]:
        """Return one partition for each task, planned on the driver; raises like `plan_read`."""
        planned = plan_read(self._options)
        return [InputPartition(item) for item in planned]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read one partition on an executor; raises like `read_chunks`."""
        return self._reader.read(partition)

    def __repr__(self) -> str:
        return f"JetStreamReader({self._reader})"


class BucketReader(DataSourceReader):
    """
    Batch reader of the entries of a key-value bucket, in one task.

    Each execution reads the bucket again, so every micro-batch of a join sees the current entries.
    """

    def __init__(self, options: BucketReadOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema

    @one_line_errors()
    def partitions(self) -> list[InputPartition]:
        """Return the only partition; raise `BucketNotFoundError` if the bucket does not exist."""
        check_bucket_exists(self._options)
        return [InputPartition(self._options.bucket)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read the entries on an executor; raises like `read_bucket`."""
        del partition
        with one_line_errors():
            yield from read_bucket(self._options, self._schema)

    def __repr__(self) -> str:
        return f"BucketReader({self._options.bucket})"


class _NoStreamReader(DataSourceStreamReader):
    """Raises an error: before PySpark 4.2 a source does not know where a batch starts."""

    @one_line_errors()
    def initialOffset(self) -> NoReturn:  # noqa: N802 - PySpark's name
        raise errors.Error(
            "streaming reads need PySpark 4.2 or newer: use spark.read, or the functions for tasks"
        )

    def latestOffset(self, *_: object) -> NoReturn:  # noqa: N802 - PySpark's name
        self.initialOffset()

    def read(self, partition: InputPartition) -> NoReturn:
        del partition
        self.initialOffset()


class JetStreamDataSource(DataSource):
    """
    JetStream streams as tables that Spark reads and writes, in batches and in streaming queries.

    ``spark.dataSource.register(JetStreamDataSource)`` registers it as ``jetstream``. Where the package is
    installed, Spark finds it without that. The options are those of `ReadOptions` and `WriteOptions`; they
    are checked on the driver before any task starts.
    """

    #: Whether the session redacts all options with secrets.
    _secrets_are_redacted: ClassVar[bool] = False

    @classmethod
    def name(cls) -> str:
        """Return the short name for ``format()``."""
        return "jetstream"

    @one_line_errors()
    def schema(self) -> str:
        """Return the default schema, as DDL; raise an error for an invalid option of a read."""
        if self._bucket_options() is not None:
            return BUCKET_DDL
        ReadOptions.from_options(self.options)
        return READ_DDL

    @one_line_errors()
    def reader(self, schema: StructType) -> DataSourceReader:
        """
        Return the reader for ``spark.read``.

        Args:
            schema: the columns to read, selected by name.

        Raises:
            InvalidOptionError: an option is unknown or invalid.
            SchemaError: a column does not exist, or has the wrong type.

        """
        bucket = self._bucket_options()
        if bucket is not None:
            self._warn_exposed_secrets()
            _check_columns(schema, BUCKET_TYPES)
            return BucketReader(bucket, schema)
        options = self._read_options()
        _check_columns(schema)
        return JetStreamReader(options, schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        """
        Return the reader for ``spark.readStream``; it raises the errors of `reader()` when it is used.

        An error here would be lost: PySpark 4.3 shows one of its own code in place of it.
        """
        try:
            from .streaming.reader import JetStreamStreamReader  # noqa: PLC0415 - its base needs PySpark 4.2
        except ImportError:
            return _NoStreamReader()

        try:
            _check_columns(schema)
            options = self._read_options()
            for name, value in (
                ("endingOffsets", options.ending_offsets),
                ("endingTimestamp", options.ending_timestamp),
                ("endingOffsetsByTimestamp", options.ending_offsets_by_timestamp or None),
            ):
                if value is not None:
                    raise errors.InvalidOptionError(
                        name, "...", "applies to spark.read only: a streaming query has no end"
                    )
        except errors.Error as error:
            return JetStreamStreamReader(error, schema)
        return JetStreamStreamReader(options, schema)

    @one_line_errors()
    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """
        Return the writer for ``df.write``.

        Args:
            schema: the schema of the rows.
            overwrite: whether the save mode is ``overwrite`` instead of ``append``.

        Raises:
            InvalidOptionError: an option is unknown or invalid.
            SchemaError: a column does not exist, or has the wrong type.
            SinkError: the stream cannot store such rows in this way.
            Error: the server cannot be reached, or refuses.

        """
        from .writing.sink import batch_writer  # noqa: PLC0415 - readers do not need it

        return batch_writer(self._write_options(), schema, overwrite)

    @one_line_errors()
    def streamWriter(  # noqa: N802 - PySpark's name
        self, schema: StructType, overwrite: bool
    ) -> DataSourceStreamWriter:
        """Return the writer for ``df.writeStream``; raises like `writer()`."""
        from .writing.sink import stream_writer  # noqa: PLC0415 - readers do not need it

        return stream_writer(self._write_options(), schema, overwrite)

    def _bucket_options(self) -> BucketReadOptions | None:
        """Return the options for reading a bucket; ``None``: this is not about a bucket."""
        if not any(name.lower() == "bucket" for name in self.options):
            return None
        return BucketReadOptions.from_options(self.options)

    def _read_options(self) -> ReadOptions:
        self._warn_exposed_secrets()
        return ReadOptions.from_options(self.options)

    def _write_options(self) -> WriteOptions:
        self._warn_exposed_secrets()
        return WriteOptions.from_options(self.options)

    def _warn_exposed_secrets(self) -> None:
        """Warn once about each option with a secret that Spark may show."""
        if self._secrets_are_redacted:
            return
        for name, instead in exposed_secrets(self.options).items():
            if name not in _warned:
                _warned.add(name)
                log.warning(
                    "a view of this table would put the secret of option %s into Spark's event log:"
                    " use %s instead, or call jetstream_sync.spark.register(spark) first",
                    name,
                    instead,
                )

    def __repr__(self) -> str:
        # The options may contain secrets.
        return "JetStreamDataSource()"


class RedactedDataSource(JetStreamDataSource):
    """The data source in a session that redacts its secrets, see `session.register`."""

    _secrets_are_redacted = True


def _check_columns(schema: StructType, types: Mapping[str, str] = READ_TYPES) -> None:
    fields = ((field.name, field.dataType.simpleString()) for field in schema.fields)
    check_read_columns(fields, types)
