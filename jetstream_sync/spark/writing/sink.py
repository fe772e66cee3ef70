"""
What the writers of batch jobs and of micro-batches have in common.

Spark makes a writer on the driver and pickles it into the tasks, and calls ``commit`` or ``abort`` on the
driver, for a streaming query on another object that was made anew. So everything that a commit needs
is in the messages of the tasks.

The writer that Spark calls for ``df.write``, and how it comes to that and the other one.
"""

from __future__ import annotations

import logging
import sys
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceWriter, WriterCommitMessage

from ...errors import InvalidOptionError
from ..connections import connection
from ..options import WriteOptions
from ..retry import retry_transient
from .message_ids import WriteTaskId
from .rows import RowColumns, RowLayout
from .write_errors import SinkError
from .write_plan import WritePlan, Written, check_target

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

__all__ = [
    "CommitMessage",
    "batch_writer",
    "commit_write",
    "log_abort",
    "make_write_plan",
    "write_batches",
]

log = logging.getLogger("jetstream_sync.spark")

#: What the process runs in which the writers of a query commit.
_COMMIT_WORKER: Final = "pyspark.sql.worker.python_streaming_sink_runner"


@dataclass
class CommitMessage(WriterCommitMessage):
    """What a task tells the driver: numbers, and no secrets."""

    written: Written


def make_write_plan(options: WriteOptions, schema: StructType, overwrite: bool) -> WritePlan:
    """Check options and schema against the stream; raises as `sink.batch_writer`."""
    if overwrite and options.overwrite_mode is None:
        raise InvalidOptionError(
            "overwriteMode",
            None,
            "the mode overwrite would empty the stream; say overwriteMode=purge where that is meant, or "
            "write in the mode append",
        )
    layout = RowLayout.of_schema(schema)
    settings = options.connection
    connected = retry_transient(partial(connection, settings), options.ack_timeout, "connecting")
    js = settings.jetstream(connected)
    # The writer that will write was made before this one, and has said what there is to say.
    look = partial(check_target, js, options, layout, warns=_COMMIT_WORKER not in sys.argv)
    target = retry_transient(look, options.ack_timeout, "looking at the stream")
    return WritePlan(options=options, layout=layout, target=target)


def write_batches(
    plan: WritePlan, task_id: WriteTaskId, batches: Iterator[pa.RecordBatch]
) -> CommitMessage:
    """
    Write the rows of a task.

    Raises:
        Error: as `WritePlan.write`.

    """
    count = 0

    def columns() -> Iterator[RowColumns]:
        nonlocal count
        for batch in batches:
            count += batch.num_rows
            yield plan.layout.of_arrow(batch)

    written = plan.write(task_id, columns())
    if written.rows != count:
        raise SinkError(f"{written.rows} of {count} rows are accounted for")
    return CommitMessage(written)


def commit_write(
    plan: WritePlan,
    messages: Sequence[WriterCommitMessage | None],
    label: str,
    *,
    overwrite: bool,
) -> None:
    """
    Look whether every task has written its rows, and take away what was there before, where asked to.

    Raises:
        SinkError: a task said nothing, or two wrote the same partition.
        Error: the stream can not be purged.

    """
    written = [message.written for message in messages if isinstance(message, CommitMessage)]
    if len(written) != len(messages):
        raise SinkError(f"{len(messages) - len(written)} of {len(messages)} tasks gave no account")
    if len({each.partition for each in written}) != len(written):
        raise SinkError("several tasks wrote the same partition")
    options = plan.options
    if overwrite:
        firsts = [each.first_seq for each in written if each.first_seq is not None]
        before = min(firsts, default=plan.target.end_seq)
        js = options.connection.jetstream(connection(options.connection))
        purged = js.get_stream(options.stream).purge(seq=before) if before > 1 else 0
        log.info("%s: %d messages that were there before are purged", label, purged)
    log.info(
        "%s: %d rows are in stream %r, %d of them were already, %d bytes",
        label,
        sum(each.rows for each in written),
        options.stream,
        sum(each.duplicates for each in written),
        sum(each.bytes for each in written),
    )


def log_abort(messages: Sequence[WriterCommitMessage | None], label: str, stream: str) -> None:
    """Say what a job that failed leaves behind: what is stored stays."""
    written = [message.written for message in messages if isinstance(message, CommitMessage)]
    log.warning(
        "%s failed; %d of its tasks have written %d rows to stream %r, and those stay there",
        label,
        len(written),
        sum(each.rows for each in written),
        stream,
    )


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
    return _BatchWriter(make_write_plan(options, schema, overwrite), overwrite)


class _BatchWriter(DataSourceArrowWriter):
    """Writes a batch job; the same object for all of its tasks."""

    def __init__(self, plan: WritePlan, overwrite: bool) -> None:
        self._plan = plan
        self._overwrite = overwrite
        # A task that is tried again is of the same job, and makes the same ids.
        self._job = plan.options.job_id or uuid.uuid4().hex
        self._label = f"job {self._job}"

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Write the rows of one task."""
        context = TaskContext.get()
        assert context is not None
        task_id = WriteTaskId(name=f"job {self._job}", batch=0, partition=context.partitionId())
        return write_batches(self._plan, task_id, iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """See that all rows are accounted for."""
        commit_write(self._plan, messages, self._label, overwrite=self._overwrite)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Say what is left."""
        log_abort(messages, self._label, self._plan.options.stream)
