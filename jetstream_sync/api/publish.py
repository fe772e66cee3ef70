"""
The acknowledgement of a publish.

Follows nats-server's ``server/stream.go`` (``JSPubAckResponse``), ADR-22, ADR-49 and ADR-50.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

from .. import speedups
from ..codec import loads
from ..errors import APIError, InvalidResponseError

if TYPE_CHECKING:
    from typing_extensions import Self


class PubAck(NamedTuple):
    """
    The acknowledgement of a stream: the message is stored.

    A named tuple instead of a record for speed, because every publish creates one. Unknown fields of
    newer servers are dropped, because an acknowledgement is never sent back.
    """

    stream: str
    """The stream that stored the message."""

    seq: int
    """Stream sequence; for a duplicate the sequence of the original."""

    duplicate: bool = False
    """Whether the message is a duplicate by its message id and was not stored."""

    domain: str | None = None
    """JetStream domain of the stream, if any."""

    batch_id: str | None = None
    """Id of the committed atomic batch (ADR-50); ``batch`` in JSON."""

    batch_size: int | None = None
    """Number of messages in the batch; ``count`` in JSON."""

    val: str | None = None
    """New value of the counter (ADR-49): an integer of any size, as text."""

    @classmethod
    def from_json(cls, data: Any) -> Self:
        """
        Create an acknowledgement from a decoded reply.

        Args:
            data: the result of `jetstream_sync.codec.loads()`.

        Raises:
            APIError: the server refused the message; the class names the reason.
            InvalidResponseError: the reply is not an acknowledgement.

        """
        if not isinstance(data, dict):
            raise InvalidResponseError(f"PubAck: expected an object, got {data!r:.60}")
        get = data.get
        stream = get("stream")
        seq = get("seq")
        if type(seq) is int and type(stream) is str and stream and len(data) == 2:
            # The usual reply: takes half the time of the general case below.
            return tuple.__new__(cls, (stream, seq, False, None, None, None, None))
        error = get("error")
        if isinstance(error, dict):
            raise APIError.from_response(error)
        if error is not None:
            raise InvalidResponseError(f"PubAck: expected an object as error, got {error!r:.60}")
        if not stream or type(stream) is not str or type(seq) is not int:
            raise InvalidResponseError(f"PubAck: expected stream and seq, got {data!r:.60}")
        return cls(
            stream,
            seq,
            get("duplicate") is True,
            get("domain") or None,
            get("batch") or None,
            get("count"),
            get("val"),
        )


# The fields of an acknowledgement after the stream and the sequence.
_DEFAULTS: Final = tuple(PubAck._field_defaults.values())


def parse_pub_ack(answer: bytes) -> PubAck:
    """Parse the reply of a server to a published message."""
    if speedups.parse_pub_ack is not None:
        ack = speedups.parse_pub_ack(answer, PubAck, _DEFAULTS)
        if ack is not None:
            return ack  # type: ignore[no-any-return]
    return PubAck.from_json(loads(answer))
