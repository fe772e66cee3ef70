"""Metadata in the reply subject of a message from a stream."""

# There are two forms (ADR-15; nats-server 2.14 can be configured to use the second):
#
#     $JS.ACK.<stream>.<consumer>.<delivered>.<stream seq>.<consumer seq>.<timestamp>.<pending>
#     $JS.ACK.<domain>.<account hash>.<stream>.<consumer>.<delivered>.<stream seq>.<consumer seq>
#            .<timestamp>.<pending>[.<more>...]
#
# The first form has exactly 9 tokens, the second 11 or more; 10 tokens are invalid. The domain _ means
# no domain.

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from typing import Final, NamedTuple

from .. import errors

#: The start of the reply subject of a message from a consumer.
ACK_PREFIX: Final = b"$JS.ACK."
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=timezone.utc)


class Metadata(NamedTuple):
    """Metadata of a message delivered by a consumer."""

    stream: str
    """Name of the stream."""
    consumer: str
    """Name of the consumer."""
    domain: str | None
    """JetStream domain; ``None`` if not given."""
    stream_seq: int
    """Stream sequence of the message."""
    consumer_seq: int
    """Consumer sequence: increases by one with each delivery of the consumer."""
    num_delivered: int
    """Number of deliveries of the message, including this one."""
    num_pending: int
    """Number of matching messages that remain after this one."""
    timestamp_ns: int
    """Time when the message was stored, in nanoseconds since 1970 (UTC)."""

    @property
    def timestamp(self) -> datetime:
        """Time when the message was stored, in UTC, truncated to microseconds."""
        return _EPOCH + timedelta(microseconds=self.timestamp_ns // 1000)


def ack_tokens(reply: bytes) -> list[bytes]:
    """Return the seven tokens that both forms share, from the stream's name on."""
    # The tokens are stream, consumer, delivered, stream seq, consumer seq, timestamp and pending.
    tokens = reply.split(b".")
    if len(tokens) == 9 and reply.startswith(ACK_PREFIX):
        return tokens[2:]
    if len(tokens) >= 11 and reply.startswith(ACK_PREFIX):
        return tokens[4:11]
    raise errors.NotJSMessageError(
        "the message is not from a stream: it has no reply subject"
        if not reply
        else f"{reply.decode('utf-8', 'replace')!r} is not the reply subject of a message from a stream"
    )


def consumer_sequence(reply: bytes) -> int:
    """Return only the consumer sequence. A hot path, called for each message."""
    tokens = reply.split(b".")
    try:
        if tokens[0] == b"$JS" and tokens[1] == b"ACK" and len(tokens) != 10:
            return int(tokens[6 if len(tokens) == 9 else 8])
    except (IndexError, ValueError):
        pass
    raise errors.NotJSMessageError(f"{reply!r} is not the reply subject of a message")


def metadata_of(reply: bytes) -> Metadata:
    """Read a reply subject."""
    stream, consumer, delivered, stream_seq, consumer_seq, timestamp, pending = ack_tokens(reply)
    domain = b"_"
    if reply.count(b".") > 8:
        domain = reply.split(b".", 3)[2]
    try:
        return Metadata(
            stream.decode(),
            consumer.decode(),
            None if domain == b"_" else domain.decode(),
            int(stream_seq),
            int(consumer_seq),
            int(delivered),
            int(pending),
            int(timestamp),
        )
    except ValueError:
        raise errors.NotJSMessageError(
            f"{reply!r} has something else where numbers belong"
        ) from None


class DeliverySequence:
    """The last received delivery of a consumer, to find gaps (ADR-15, "Message Gaps")."""

    # A consumer numbers its deliveries. The number is in the reply subject of each message, and in the
    # heartbeats of a push consumer. Not thread-safe.

    __slots__ = ("last", "reply")

    def __init__(self, last: int | None = 0) -> None:
        self.last = last
        #: Reply subject of the last delivery; empty before the first one.
        self.reply: bytes = b""

    def follows(self, reply: bytes) -> bool:
        """Return whether a message is the next delivery, and record it if so. A hot path."""
        last = self.last
        sequence = consumer_sequence(reply)
        if last is not None and sequence != last + 1:
            return False
        self.last = sequence
        self.reply = reply
        return True

    def follow(self, first: bytes, last: bytes, count: int) -> bool:
        """Return whether a batch of messages contains the next deliveries, and record them if so."""
        # Checking the last message is sufficient: sequences only grow, so a gap changes the last
        # one.
        before = self.last
        if before is None:
            before = consumer_sequence(first) - 1
        sequence = consumer_sequence(last)
        if sequence != before + count:
            return False
        self.last = sequence
        self.reply = last
        return True

    def jump(self, reply: bytes) -> int:
        """Record a message with any sequence, and return the number of missing messages before it."""
        # A lower sequence (the consumer was reset or moved) is not a gap.
        sequence = consumer_sequence(reply)
        missing = self.missing(sequence - 1)
        self.last = sequence
        self.reply = reply
        return missing

    def missing(self, sent: int) -> int:
        """Return the number of missing messages if the server sent all up to a sequence."""
        return 0 if self.last is None else max(0, sent - self.last)
