"""Errors of the sink, and which refusals of the server may pass."""

from __future__ import annotations

from .. import errors
from ..records import with_fields


class SinkError(errors.Error):
    """Rows cannot be written as the options require; the message says why."""


@with_fields
class _BatchOrderError(SinkError):
    """The last batch of the query in the target stream does not fit to the batch that Spark runs."""

    stream: str
    stored_batch: int
    batch: int
    problem: str = ""


class CheckpointRewoundError(_BatchOrderError):
    """
    The stream has seen a batch that the checkpoint of the query does not know; a `SinkError`.

    The checkpoint was restored from an older copy, or copied for a second query: then nothing was written. Or another
    attempt of the same task has completed the batch: then Spark ignores the error. A source raises it if messages after
    the checkpoint were released: then they cannot be read again.

    Args:
        stream: the target stream, or the one that is read.
        stored_batch: the number of the batch that was stored last.
        batch: the number of the batch that Spark runs; the same number if the stored batch has other rows.
        problem: what was released of a stream that is read, where the numbers are 0.

    """

    def __str__(self) -> str:
        if self.problem:
            return self.problem
        found = f"has rows of batch {self.stored_batch}, but Spark runs batch {self.batch}"
        if self.stored_batch == self.batch:
            found = f"has other rows of batch {self.stored_batch} than batch {self.batch} of Spark"
        return (
            f"stream {self.stream!r} {found} of the same query: the checkpoint of the query was restored or"
            " copied, or its rows differ each time. Restore the target stream, too, or set the option queryId to"
            " a new value, which writes rows that the target already has again unless its duplicate window"
            " contains their ids"
        )


class TargetRewoundError(_BatchOrderError):
    """
    The target stream does not have the end of the batch before the one that Spark runs; a `SinkError`.

    The stream was restored to an earlier state, or the query has written some batches in another way.

    Args:
        stream: the target stream.
        stored_batch: the number of the batch that the stream has last, maybe not all of it.
        batch: the number of the batch that Spark runs.

    """

    def __str__(self) -> str:
        return (
            f"stream {self.stream!r} ends with batch {self.stored_batch} of the query, or a part of it, but Spark runs"
            f" batch {self.batch}: the stream was restored to an earlier state. Start with a new checkpoint behind the"
            " last message that the stream has; or set the option queryId to a new value to go on without the rows"
            " of the batches in between"
        )


@with_fields
class RowError(SinkError):
    """
    A row cannot be stored; the error never contains its payload.

    Args:
        partition: the partition of the row.
        row: its number in the partition, counted from 0.
        subject: its subject; empty if it is unknown.
        reason: what is wrong.

    """

    partition: int
    row: int
    subject: str
    reason: str

    def __str__(self) -> str:
        about = f" (subject {self.subject[:200]!r})" if self.subject else ""
        return f"row {self.row} of partition {self.partition}{about}: {self.reason}"


def stream_replaced(stream: str) -> SinkError:
    """Return an error about a stream that lost rows while others were written to it."""
    return SinkError(
        f"stream {stream!r} was deleted and created again, or restored to an earlier state, while rows were written"
        " to it: the first of them are not stored there. Write the rows again"
    )


def is_retriable(error: errors.Error) -> bool:
    """Return whether a refused message may be accepted later."""
    return isinstance(error, errors.APIError | errors.NoStreamResponseError) and error.transient
