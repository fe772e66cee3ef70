"""
The answer to a publish.

Follows nats-server's ``server/stream.go`` (``JSPubAckResponse``), ADR-22, ADR-49 and ADR-50.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from ..errors import APIError, InvalidResponseError

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["PubAck"]


class PubAck(NamedTuple):
    """
    A stream's acknowledgement: the message is stored.

    A named tuple rather than a record, since one is made for each message that is published; what
    a newer server adds to it is not kept, for it is never sent back.
    """

    stream: str
    """The stream that stored the message."""

    seq: int
    """Its sequence there; for a duplicate the sequence of the first one."""

    duplicate: bool = False
    """Whether the stream had a message of the same id already, and stored nothing."""

    domain: str | None = None
    """The JetStream domain of the stream, if it has one."""

    batch_id: str | None = None
    """The atomic batch that this commits (ADR-50); the wire calls it ``batch``."""

    batch_size: int | None = None
    """How many messages were in that batch; the wire calls it ``count``."""

    val: str | None = None
    """What the counter is now (ADR-49): an integer of any size, as text."""

    @classmethod
    def from_json(cls, data: Any) -> Self:
        """
        Make it of a decoded reply.

        Args:
            data: what `jetstream_sync.codec.loads()` returned.

        Raises:
            APIError: the server refused the message; the class says why.
            InvalidResponseError: the reply is not an acknowledgement.

        """
        if not isinstance(data, dict):
            raise InvalidResponseError(f"PubAck: expected an object, got {data!r:.60}")
        get = data.get
        stream = get("stream")
        seq = get("seq")
        error = get("error")
        if isinstance(error, dict):
            raise APIError.from_response(error)
        if error is not None:
            raise InvalidResponseError(f"PubAck: expected an object as error, got {error!r:.60}")
        if not stream or type(stream) is not str or type(seq) is not int:
            raise InvalidResponseError(f"PubAck: expected stream and seq, got {data!r:.60}")
        if len(data) == 2:
            # What most streams send; this is half the time of going through the defaults.
            return tuple.__new__(cls, (stream, seq, False, None, None, None, None))
        return cls(
            stream,
            seq,
            get("duplicate") is True,
            get("domain") or None,
            get("batch") or None,
            get("count"),
            get("val"),
        )
