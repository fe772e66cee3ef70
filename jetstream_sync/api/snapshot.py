"""
Snapshots of streams: what is asked for, and what goes with the data.

Follows nats-server's ``server/jetstream_api.go`` (``STREAM.SNAPSHOT`` and ``STREAM.RESTORE``).
"""

from __future__ import annotations

from ..codec import Record, record
from .stream import StreamConfig, StreamState

__all__ = ["SnapshotInfo", "SnapshotRequest", "chunk_position"]

_KIB = 1024
_MIB = 1024 * _KIB


@record
class SnapshotInfo(Record):
    """
    What a stream was when its snapshot was made.

    Encoded it is what the ``nats`` command writes to ``backup.json``, beside the data.
    """

    config: StreamConfig
    """Its configuration; a restore may change it, but for the name."""

    state: StreamState
    """What it held."""


@record
class SnapshotRequest(Record):
    """How a snapshot is to be sent."""

    deliver_subject: str
    """Where the data goes."""

    no_consumers: bool | None = None
    """Whether to leave out the consumers."""

    jsck: bool | None = None
    """Whether to check every message first."""

    chunk_size: int | None = None
    """The size of the pieces, in bytes."""

    window_size: int | None = None
    """How many bytes may be on their way."""

    def _check(self) -> None:
        self._check_range(_KIB, _MIB, "chunk_size")
        self._check_range(_KIB, 32 * _MIB, "window_size")


def chunk_position(reply: str) -> tuple[int, int] | None:
    """
    Return the size and the number, from 1 on, of a piece whose reply subject this is.

    Returns:
        ``None`` when the subject does not say.

    """
    # $JS.SNAPSHOT.ACK.<stream>.<id>.<size>.<number>
    tokens = reply.rsplit(".", 2)
    if len(tokens) == 3 and tokens[1].isdecimal() and tokens[2].isdecimal():
        return int(tokens[1]), int(tokens[2])
    return None
