"""The writer that Spark creates for each micro-batch of ``df.writeStream``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

from pyspark import TaskContext
from pyspark.sql import datasource
from pyspark.sql.datasource import WriterCommitMessage

from ... import errors
from ..options import WriteOptions
from ..retry import one_line_errors
from .message_ids import WriteTaskId
from .rows import row_parts
from .sink import commit_write, log_abort, make_write_plan, write_batches
from .sink_errors import SinkError
from .write_plan import WritePlan

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.datasource import DataSourceStreamWriter
    from pyspark.sql.types import StructType


def stream_writer(
    options: WriteOptions, schema: StructType, overwrite: bool
) -> DataSourceStreamWriter:
    """Return the writer of a micro-batch; arguments and other errors as for `batch_writer()`."""
    if options.job_id is not None:
        raise errors.InvalidOptionError(
            "jobId",
            options.job_id,
            "cannot be used: a streaming query has the id of its checkpoint",
        )
    return _StreamWriter(make_write_plan(options, schema, overwrite), overwrite)


#: PySpark 4.0 passes rows in place of record batches.
_TAKES_BATCHES: Final = hasattr(datasource, "DataSourceStreamArrowWriter")
_Base: Any = (
    datasource.DataSourceStreamArrowWriter if _TAKES_BATCHES else datasource.DataSourceStreamWriter
)


class _StreamWriter(_Base):  # type: ignore[misc]
    """Writer of a micro-batch; Spark sends it to all tasks, and commits on another instance."""

    def __init__(self, plan: WritePlan, overwrite: bool) -> None:
        self._plan = plan
        self._overwrite = overwrite

    @one_line_errors()
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Write the rows of a task."""
        context = TaskContext.get()
        assert context is not None
        # The query id is that of the checkpoint, so it is the same after a restart.
        query = context.getLocalProperty("sql.streaming.queryId")
        batch = context.getLocalProperty("streaming.sql.batchId")
        if query is None or batch is None:
            raise SinkError("the Spark task has no query id or batch id: write with writeStream")
        task_id = WriteTaskId(
            name=query, batch=int(batch), partition=context.partitionId(), has_ends=True
        )
        return write_batches(
            self._plan,
            task_id,
            iterator if _TAKES_BATCHES else row_parts(iterator, self._plan.options),
        )

    @one_line_errors()
    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Check that all rows are stored."""
        commit_write(self._plan, messages, f"batch {batchId}", overwrite=self._overwrite)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Log what the failed batch leaves in the stream."""
        log_abort(messages, f"batch {batchId}", self._plan.options.stream)
