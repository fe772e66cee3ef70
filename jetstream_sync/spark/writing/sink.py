"""The writer that Spark calls for ``df.write``, and how it comes to that and the other one."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import TYPE_CHECKING

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceWriter, WriterCommitMessage

from ...errors import InvalidOptionError
from ..options import WriteOptions
from .deliveries import Delivery
from .ids import Origin
from .writer import finish, give_up, made_delivery, write_batches

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.datasource import DataSourceStreamWriter
    from pyspark.sql.types import StructType

__all__ = ["batch_writer", "stream_writer"]


def batch_writer(options: WriteOptions, schema: StructType, overwrite: bool) -> DataSourceWriter:
    """
    Return the writer of a batch job; called on the driver, which asks the server about the stream.

    Args:
        options: what the user wants.
        schema: of the rows.
        overwrite: whether the mode is ``overwrite``.

    Raises:
        SchemaError: a column is missing, not known or of another type.
        InvalidOptionError: the mode is ``overwrite``, and the option ``overwriteMode`` is not set.
        SinkError: the stream can not take such rows in such a way.
        Error: the server can not be reached, or refuses.

    """
    return _BatchWriter(made_delivery(options, schema, overwrite), overwrite)


def stream_writer(
    options: WriteOptions, schema: StructType, overwrite: bool
) -> DataSourceStreamWriter:
    """
    Return the writer of a micro-batch; called on the driver; args and errors as for `batch_writer()`.

    Raises:
        InvalidOptionError: also where there is a ``jobId``: a query has an id of its own.

    """
    from .stream_sink import StreamWriter  # noqa: PLC0415 - PySpark has its base since 4.1

    if options.job_id is not None:
        raise InvalidOptionError(
            "jobId", options.job_id, "a streaming query has the id of its checkpoint"
        )
    return StreamWriter(made_delivery(options, schema, overwrite), overwrite)


class _BatchWriter(DataSourceArrowWriter):
    """Writes a batch job; the same object for all of its tasks."""

    def __init__(self, delivery: Delivery, overwrite: bool) -> None:
        self._delivery = delivery
        self._overwrite = overwrite
        # A task that is tried again is of the same job, and makes the same ids.
        self._job = delivery.options.job_id or uuid.uuid4().hex
        self._what = f"job {self._job}"

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Write the rows of one task."""
        context = TaskContext.get()
        assert context is not None
        origin = Origin(name=f"job {self._job}", batch=0, partition=context.partitionId())
        return write_batches(self._delivery, origin, iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """See that all rows are accounted for."""
        finish(self._delivery, messages, self._what, overwrite=self._overwrite)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Say what is left."""
        give_up(messages, self._what, self._delivery.options.stream)
