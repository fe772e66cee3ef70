"""
The errors of snapshots and of restoring them: the server refuses, or what had begun does not end.

    SnapshotFailedError (a ServerError)             no snapshot can be made of the stream
    RestoreFailedError (a ServerError)              no stream can be made of the data
    RestoreNameInUseError (a StreamNameInUseError)  there is a stream of that name
    SnapshotBrokenError (a JetStreamError)          the data of a snapshot ended before its end
    RestoreBrokenError (a JetStreamError)           the server takes no more of a restore

They are apart from `errors`, whose tree they hang on, because no other part of the package raises them.
"""

from __future__ import annotations

from .errors import JetStreamError, ServerError, StreamNameInUseError

__all__ = [
    "RestoreBrokenError",
    "RestoreFailedError",
    "RestoreNameInUseError",
    "SnapshotBrokenError",
    "SnapshotFailedError",
]


class SnapshotFailedError(ServerError, err_codes=(10064,)):
    """The server can not make a snapshot of the stream; nothing of it was sent."""


class RestoreFailedError(ServerError, err_codes=(10062, 10072)):
    """The server can not make a stream of the data; there is none."""


class RestoreNameInUseError(StreamNameInUseError, err_codes=(10130,)):
    """A stream of that name exists, whatever its configuration; it is as it was."""


class SnapshotBrokenError(JetStreamError):
    """
    The data of a snapshot ended before its end; what came of it is of no use.

    ``code`` is the status that the server ended it with: 408 when it saw nobody take the data any
    more, 500 when it failed; 0 when a piece did not arrive.
    """

    def __init__(self, stream: str, code: int, description: str) -> None:
        super().__init__(stream, code, description)
        self.stream = stream
        self.code = code
        self.description = description

    def __str__(self) -> str:
        status = f"{self.code} {self.description}" if self.code else self.description
        return f"the snapshot of stream {self.stream!r} broke off: {status}"


class RestoreBrokenError(JetStreamError):
    """
    The server takes no more of a restore: it was restarted, or waited too long for the next piece.

    It makes no stream of what it has.
    """

    def __init__(self, stream: str, sent: int) -> None:
        super().__init__(stream, sent)
        self.stream = stream
        self.sent = sent
        """How many bytes it had taken."""

    def __str__(self) -> str:
        done = f"the server takes no more after {self.sent} bytes"
        return f"the restore of stream {self.stream!r} broke off: {done}; start again"
