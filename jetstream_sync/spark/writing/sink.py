"""
The writers that Spark creates for ``df.write`` and, for each micro-batch, for ``df.writeStream``.

Spark creates a writer on the driver and pickles it into the tasks. It calls ``commit`` or ``abort`` on the
driver, for a streaming query on another instance. So the messages of the tasks contain everything that a
commit needs.
"""

from __future__ import annotations

import logging
import sys
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from pyspark import TaskContext
from pyspark.sql import datasource
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceWriter, WriterCommitMessage

from ... import errors
from ..options import WriteOptions
from ..retry import one_line_errors
from ..sink_errors import SinkError
from .arrow_rows import arrow_columns
from .message_ids import WriteTaskId
from .rows import Columns, RowLayout, grouped, row_parts
from .write_plan import WritePlan, Written, write_task_id

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.datasource import DataSourceStreamWriter
    from pyspark.sql.types import StructType

log: logging.Logger = logging.getLogger("jetstream_sync.spark")

#: The worker module in which Spark commits streaming writes.
_COMMIT_WORKER: Final = "pyspark.sql.worker.python_streaming_sink_runner"


@dataclass
class CommitMessage(WriterCommitMessage):
    """The result of a task for the driver; it contains no secrets."""

    written: Written
    task_id: WriteTaskId


def _write_plan(options: WriteOptions, schema: StructType, overwrite: bool) -> WritePlan:
    """Check options and schema against the stream; raises like `sink.batch_writer`."""
    if overwrite and options.bucket is not None:
        raise errors.InvalidOptionError(
            "bucket",
            options.bucket,
            "cannot be written in mode overwrite: mode append replaces the values of the written keys",
        )
    if overwrite and options.overwrite_mode is None:
        raise errors.InvalidOptionError(
            "overwriteMode",
            None,
            "is required for mode overwrite and output mode complete, which empty the stream: set"
            " overwriteMode=purge, write in mode append, or write each batch with foreachBatch",
        )
    layout = RowLayout.of_schema(schema, bucket=options.bucket is not None)
    # The instance that writes was created before this one, and has already logged the warnings.
    plan = WritePlan.checked(options, layout, warns=_COMMIT_WORKER not in sys.argv)
    if overwrite and plan.target.denies_purge:
        raise SinkError(
            f"mode overwrite purges, which stream {options.stream!r} denies (deny_purge)"
        )
    return plan


def _write(
    plan: WritePlan, task_id: WriteTaskId, batches: Iterator[pa.RecordBatch | list[Any]]
) -> CommitMessage:
    """Write the rows of a task, given as record batches or as lists of rows."""
    count = 0

    def columns() -> Iterator[Columns]:
        nonlocal count
        for batch in batches:
            count += len(batch)
            if isinstance(batch, list):
                yield plan.layout.columns(zip(*batch, strict=True))
            else:
                yield arrow_columns(plan.layout, batch)

    written = plan.write(task_id, grouped(columns()))
    if written.rows != count:
        raise SinkError(f"only {written.rows} of {count} rows were confirmed as stored")
    return CommitMessage(written, task_id)


def commit_write(
    plan: WritePlan,
    messages: Sequence[WriterCommitMessage | None],
    label: str,
    *,
    overwrite: bool,
) -> None:
    """
    Check that each task has written its rows; purge earlier messages in mode overwrite, and record the end.

    Raises `SinkError` if a task has not reported its rows, and as `WritePlan.confirm`.
    """
    written = [message.written for message in messages if isinstance(message, CommitMessage)]
    if len(written) != len(messages):
        missing = len(messages) - len(written)
        raise SinkError(f"{missing} of {len(messages)} write tasks did not report a result")
    if len({item.partition for item in written}) != len(written):
        raise SinkError("two write tasks reported the same partition")
    options = plan.options
    plan.confirm(written)
    if overwrite:
        firsts = [item.first_seq for item in written if item.first_seq is not None]
        before = min(firsts, default=plan.target.end_seq)
        purged = plan.purge(before) if before > 1 else 0
        log.info("%s: purged %d earlier messages", label, purged)
    for message in messages[:1]:
        if isinstance(message, CommitMessage) and message.task_id.has_ends:
            plan.end_batch(message.task_id)
    log.info(
        "%s: stored %d rows in stream %r, of which %d were stored before, %d bytes",
        label,
        sum(item.rows for item in written),
        options.stream,
        sum(item.duplicates for item in written),
        sum(item.bytes for item in written),
    )


def _log_abort(messages: Sequence[WriterCommitMessage | None], label: str, stream: str) -> None:
    """Log what a failed job leaves in the stream: stored rows stay there."""
    written = [message.written for message in messages if isinstance(message, CommitMessage)]
    log.warning(
        "%s failed; %d of its tasks have stored %d rows in stream %r, which stay there",
        label,
        len(written),
        sum(item.rows for item in written),
        stream,
    )


def batch_writer(options: WriteOptions, schema: StructType, overwrite: bool) -> DataSourceWriter:
    """Return the writer of a batch job; raises as `check_target`, and `InvalidOptionError` with ``queryId``."""
    if options.query_id is not None:
        raise errors.InvalidOptionError(
            "queryId", options.query_id, "applies to streaming queries: a batch job has a jobId"
        )
    return _BatchWriter(_write_plan(options, schema, overwrite), overwrite)


class _BatchWriter(DataSourceArrowWriter):
    """Writer of a batch job; Spark sends the same object to all tasks."""

    def __init__(self, plan: WritePlan, overwrite: bool) -> None:
        self._plan = plan
        self._overwrite = overwrite
        # All attempts of a task have the same id of the run, and so the same message ids.
        self._run = f"run {uuid.uuid4().hex}"
        self._label = f"job {plan.options.job_id}" if plan.options.job_id else self._run

    @one_line_errors()
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Write the rows of a task."""
        return _write(self._plan, write_task_id(self._plan.options, run=self._run), iterator)

    @one_line_errors()
    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Check that all rows are stored."""
        commit_write(self._plan, messages, self._label, overwrite=self._overwrite)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Log what the failed job leaves in the stream."""
        _log_abort(messages, self._label, self._plan.options.stream)


def stream_writer(
    options: WriteOptions, schema: StructType, overwrite: bool
) -> DataSourceStreamWriter:
    """Return the writer of a micro-batch; raises as `check_target`, and `InvalidOptionError` with ``jobId``."""
    if options.job_id is not None:
        raise errors.InvalidOptionError(
            "jobId",
            options.job_id,
            "cannot be used: a streaming query has the id of its checkpoint",
        )
    return _StreamWriter(_write_plan(options, schema, overwrite), overwrite)


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
        return _write(
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
        _log_abort(messages, f"batch {batchId}", self._plan.options.stream)
