"""
Errors of the sink, and which refusals of a stream are worth a retry.

Spark repeats a failed task whatever the error is. So an error that cannot pass fails at once, with the row that
caused it. An error that may pass is first retried here.
"""

from __future__ import annotations

from typing import Final

from ...errors import APIError, Error, NoStreamResponseError

#: The message id is being stored. A leader that steps down in between and leads again returns this error until
#: the duplicate window is over (``processStreamLeaderChange`` in nats-server 2.15).
ID_IN_PROCESS: Final = 10158
#: Errors that may pass: not the leader, too many requests, the same id or subject is being stored, too many
#: atomic batches (``server/errors.json``).
_RETRIABLE: Final = frozenset({10008, 10009, 10023, ID_IN_PROCESS, 10163, 10164, 10167, 10210})


class SinkError(Error):
    """Rows cannot be written as the options require; the message says why."""


class RowError(SinkError):
    """
    A row cannot be stored; the error never contains its payload.

    Args:
        partition: the partition of the row.
        row: its number in the partition, counted from 0.
        subject: its subject; empty if it is unknown.
        reason: what is wrong.

    """

    def __init__(self, partition: int, row: int, subject: str, reason: str) -> None:
        super().__init__(partition, row, subject, reason)
        self.partition = partition
        self.row = row
        self.subject = subject
        self.reason = reason

    def __str__(self) -> str:
        about = f" (subject {self.subject!r})" if self.subject else ""
        return f"row {self.row} of partition {self.partition}{about}: {self.reason}"


def is_retriable(error: Error) -> bool:
    """Return whether a refused message may be accepted later."""
    if isinstance(error, APIError):
        return error.err_code in _RETRIABLE
    return isinstance(error, NoStreamResponseError)
