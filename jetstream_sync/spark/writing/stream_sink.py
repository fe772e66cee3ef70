"""The writer that Spark calls for ``df.writeStream``; it makes one for each micro-batch."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceStreamArrowWriter, WriterCommitMessage

from ...errors import InvalidOptionError
from ..options import WriteOptions
from .message_ids import WriteTaskId
from .sink import commit_write, log_abort, make_write_plan, write_batches
from .write_errors import SinkError
from .write_plan import WritePlan

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.datasource import DataSourceStreamWriter
    from pyspark.sql.types import StructType

__all__ = ["stream_writer"]


def stream_writer(
    options: WriteOptions, schema: StructType, overwrite: bool
) -> DataSourceStreamWriter:
    """
    Return the writer of a micro-batch; called on the driver; args and errors as for `batch_writer()`.

    Raises:
        InvalidOptionError: also where there is a ``jobId``: a query has an id of its own.

    """
    if options.job_id is not None:
        raise InvalidOptionError(
            "jobId", options.job_id, "a streaming query has the id of its checkpoint"
        )
    return _StreamWriter(make_write_plan(options, schema, overwrite), overwrite)


class _StreamWriter(DataSourceStreamArrowWriter):
    """Writes a micro-batch; the same object for all of its tasks, and another one commits."""

    def __init__(self, plan: WritePlan, overwrite: bool) -> None:
        self._plan = plan
        self._overwrite = overwrite

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Write the rows of one task."""
        context = TaskContext.get()
        assert context is not None
        # The query's id is that of its checkpoint: the same after a restart.
        query = context.getLocalProperty("sql.streaming.queryId")
        batch = context.getLocalProperty("streaming.sql.batchId")
        if query is None or batch is None:
            raise SinkError("Spark does not say which query and batch the rows are of")
        task_id = WriteTaskId(name=query, batch=int(batch), partition=context.partitionId())
        return write_batches(self._plan, task_id, iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """See that all rows are accounted for."""
        commit_write(self._plan, messages, f"batch {batchId}", overwrite=self._overwrite)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Say what is left."""
        log_abort(messages, f"batch {batchId}", self._plan.options.stream)
