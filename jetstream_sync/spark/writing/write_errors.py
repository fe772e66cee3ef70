"""
What a stream refuses, and whether it may take it a moment later.

Spark tries a failed task again whatever the error says. So what can not work fails at once, with the
row that it is about, and what may work soon is tried again here first.
"""

from __future__ import annotations

from typing import Final

from ...errors import APIError, Error, NoStreamResponseError

__all__ = ["ID_IN_PROCESS", "RowError", "SinkError", "is_retriable"]

#: The id of a message is being stored just now. A leader that stepped down amid that, and leads again,
#: says so until the duplicate window is over (``processStreamLeaderChange`` in nats-server 2.15).
ID_IN_PROCESS: Final = 10158
#: Refusals of a moment: not the leader, too many requests, the same id or subject is being stored
#: just now, too many atomic batches (``server/errors.json``).
_RETRIABLE: Final = frozenset({10008, 10009, 10023, ID_IN_PROCESS, 10163, 10164, 10167, 10210})


class SinkError(Error):
    """Rows can not be written as the options ask for; the message says what is in the way."""


class RowError(SinkError):
    """
    A row can not be stored; its payload is never part of the error.

    Args:
        partition: the partition of the row.
        row: its number there, counted from 0.
        subject: where it was to go; empty where that is not known.
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
    """Say whether a refusal may be over in a moment."""
    if isinstance(error, APIError):
        return error.err_code in _RETRIABLE
    return isinstance(error, NoStreamResponseError)
