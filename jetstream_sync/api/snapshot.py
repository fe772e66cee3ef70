"""
Requests and metadata of stream snapshots.

Follows nats-server's ``server/jetstream_api.go`` (``STREAM.SNAPSHOT`` and ``STREAM.RESTORE``).
"""

from __future__ import annotations

from ..codec import Record
from ..records import record
from .stream import StreamConfig, StreamState

_KIB = 1024
_MIB = 1024 * _KIB


@record
class SnapshotInfo(Record):
    """
    Configuration and state of a stream at the time of its snapshot.

    Its JSON form is the ``backup.json`` file of the ``nats`` command.
    """

    config: StreamConfig
    """Configuration of the stream; a restore may change all fields except the name."""

    state: StreamState
    """State of the stream."""


@record
class SnapshotRequest(Record):
    """Request for a snapshot."""

    deliver_subject: str
    """Subject to send the data to."""

    no_consumers: bool | None = None
    """Whether to omit the consumers."""

    jsck: bool | None = None
    """Whether to verify all messages first."""

    chunk_size: int | None = None
    """Chunk size in bytes."""

    window_size: int | None = None
    """Maximum number of unacknowledged bytes."""

    def _check(self) -> None:
        self._check_range(_KIB, _MIB, "chunk_size")
        self._check_range(_KIB, 32 * _MIB, "window_size")


def chunk_position(reply: str) -> tuple[int, int] | None:
    """Return the size and the number (from 1) of a chunk from its reply subject."""
    # $JS.SNAPSHOT.ACK.<stream>.<id>.<size>.<number>
    tokens = reply.rsplit(".", 2)
    if len(tokens) == 3 and tokens[1].isdecimal() and tokens[2].isdecimal():
        return int(tokens[1]), int(tokens[2])
    return None
