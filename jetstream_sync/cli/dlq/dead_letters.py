"""
Dead letters: messages that a consumer does not deliver again, and how to find them.

The server does not mark them in the stream. It publishes an advisory when a message has reached the
consumer's ``max_deliver``, and when a client terminates a message. Advisories are not stored by default,
so only those captured by a stream can be listed. Without such a stream, the counters of a consumer give
an estimate of the number of dead letters, but not their sequences.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

from ...codec import loads
from ...durations import time_from_text, time_to_text
from ...errors import InvalidResponseError, MessageNotFoundError, StreamNotFoundError, TimeoutError
from ...subjects import subjects_overlap
from ..sanitize import readable

if TYPE_CHECKING:
    from ... import ConsumerInfo, JetStream, StoredMsg, Stream

__all__ = ["ADVISORIES", "SETUP", "DeadLetter", "DeadLetterEstimate", "DeadLetters"]

#: Subjects of the advisories for messages at the delivery limit, and terminated by a client.
_MAX_DELIVER: Final = "$JS.EVENT.ADVISORY.CONSUMER.MAX_DELIVERIES"
_TERMINATED: Final = "$JS.EVENT.ADVISORY.CONSUMER.MSG_TERMINATED"
#: The subjects of a stream that stores these advisories.
ADVISORIES: Final = (f"{_MAX_DELIVER}.>", f"{_TERMINATED}.>")

#: The remedy when no stream stores the advisories.
SETUP: Final = "'jsm consumer dlq setup' creates a stream that stores the advisories from now on"

_KINDS: Final[Mapping[str, str]] = {
    "io.nats.jetstream.advisory.v1.max_deliver": "max_deliver",
    "io.nats.jetstream.advisory.v1.terminated": "terminated",
}
#: Timeout for an advisory that is in the stream, in seconds.
_READ_TIMEOUT_S: Final = 5.0


@dataclass(frozen=True, kw_only=True)
class DeadLetter:
    """A message that a consumer does not deliver again."""

    stream: str
    consumer: str
    seq: int
    """The stream sequence of the message."""
    kind: str
    """``max_deliver`` or ``terminated``."""
    deliveries: int
    time: datetime
    """The time of the advisory."""
    reason: str = ""
    """The reason given by the client that terminated the message."""
    advisories: list[tuple[str, int]] = field(default_factory=list)
    """The stream and sequence of each stored advisory for this message."""

    @property
    def why(self) -> str:
        """Return a short description of the reason."""
        if self.kind == "max_deliver":
            return "max deliver"
        return f"terminated: {self.reason}" if self.reason else "terminated"

    def document(self) -> dict[str, Any]:
        """Return the JSON document."""
        return {
            "stream": self.stream,
            "consumer": self.consumer,
            "stream_seq": self.seq,
            "kind": self.kind,
            "deliveries": self.deliveries,
            "time": time_to_text(self.time),
            **({"reason": self.reason} if self.reason else {}),
        }

    def document_with(self, msg: StoredMsg | None) -> dict[str, Any]:
        """Return the JSON document with details of the message; ``None``: it was deleted."""
        fields: dict[str, Any] = {**self.document(), "in_stream": msg is not None}
        if msg is not None:
            fields.update(subject=readable(msg.subject), bytes=len(msg.data))
        return fields


@dataclass(frozen=True, kw_only=True)
class DeadLetterEstimate:
    """An estimate of a consumer's dead letters, from its counters."""

    info: ConsumerInfo

    @property
    def upper_bound(self) -> int | None:
        """
        The maximum number of dead letters: all unacknowledged redelivered messages.

        ``None`` for ``max_deliver=1``, since the server does not count these messages.
        """
        return None if self.info.config.max_deliver == 1 else self.info.num_redelivered

    @property
    def lower_bound(self) -> int:
        """The minimum number of dead letters: messages with a pending acknowledgement are excluded."""
        return max(0, self.info.num_redelivered - self.info.num_ack_pending)

    def document(self) -> dict[str, Any]:
        """Return the JSON document."""
        info = self.info
        return {
            "stream": info.stream_name,
            "consumer": info.name,
            "max_deliver": info.config.max_deliver,
            "at_least": self.lower_bound,
            "at_most": self.upper_bound,
            "num_redelivered": info.num_redelivered,
            "num_ack_pending": info.num_ack_pending,
            "ack_floor_stream_seq": info.ack_floor.stream_seq,
            "delivered_stream_seq": info.delivered.stream_seq,
        }

    @classmethod
    def of(cls, infos: Sequence[ConsumerInfo]) -> list[DeadLetterEstimate]:
        """Return the estimates of the consumers that may have dead letters."""
        return [
            cls(info=info)
            for info in infos
            if (info.config.max_deliver or -1) > 0
            and (
                info.num_redelivered or (info.config.max_deliver == 1 and info.delivered.stream_seq)
            )
        ]


class DeadLetters:
    """
    The dead letters of an account whose advisories are stored.

    Args:
        js: the JetStream context of the account.

    """

    def __init__(self, js: JetStream) -> None:
        self._js = js
        self._streams: dict[str, Stream | None] = {}
        #: The streams that store some or all of the advisories.
        self.stores = sorted(
            {name for subject in ADVISORIES for name in js.stream_names(subject=subject)}
        )

    def read(self, stream: str | None = None, consumer: str | None = None) -> list[DeadLetter]:
        """
        Return the dead letters, sorted by stream, consumer and sequence.

        Args:
            stream: only those of this stream; ``None``: of all streams.
            consumer: only those of this consumer; ``None``: of all consumers.

        """
        found: dict[tuple[str, str, int], DeadLetter] = {}
        for store in self.stores:
            for letter in self._stored(store, stream or "*", consumer or "*"):
                key = (letter.stream, letter.consumer, letter.seq)
                # The last advisory replaces earlier ones for the same message.
                before = found.pop(key, None)
                if before is not None:
                    letter.advisories[:0] = before.advisories
                found[key] = letter
        return [found[key] for key in sorted(found)]

    def _stored(self, store: str, stream: str, consumer: str) -> Iterator[DeadLetter]:
        """Yield the dead letters from the advisories in one stream."""
        held = self.stream(store)
        if held is None:
            return
        wanted = [f"{each}.{stream}.{consumer}" for each in (_MAX_DELIVER, _TERMINATED)]
        covered = held.cached_info.config.subjects or ()
        filters = [each for each in wanted if any(subjects_overlap(one, each) for one in covered)]
        total = 0
        for each in filters:
            total += sum((held.info(subjects_filter=each).state.subjects or {}).values())
        if not total:
            return
        ordered = held.ordered_consumer(filter_subjects=filters)
        with ordered.messages(stop_after=total) as messages:
            for _ in range(total):
                try:
                    msg = messages.next(_READ_TIMEOUT_S)
                except TimeoutError:
                    return  # some advisories have just expired
                about = msg.metadata
                letter = _letter(msg.data, (store, about.stream_seq))
                if letter is not None:
                    yield letter
                if not about.num_pending:
                    return

    def stream(self, name: str) -> Stream | None:
        """Return a stream, cached after the first lookup; ``None``: it does not exist."""
        if name not in self._streams:
            try:
                self._streams[name] = self._js.get_stream(name)
            except StreamNotFoundError:
                self._streams[name] = None
        return self._streams[name]

    def message(self, letter: DeadLetter) -> StoredMsg | None:
        """Return the message of a dead letter; ``None``: it is no longer in the stream."""
        stream = self.stream(letter.stream)
        try:
            msg = stream.get_msg(letter.seq) if stream is not None else None
        except (MessageNotFoundError, StreamNotFoundError):
            return None
        # A message stored after the advisory belongs to a recreated stream.
        return None if msg is None or msg.time > letter.time else msg


def _letter(data: bytes, stored: tuple[str, int]) -> DeadLetter | None:
    """Return the dead letter for an advisory; ``None``: the data is not such an advisory."""
    try:
        event = loads(data)
        kind = _KINDS.get(event["type"])
        if kind is None:
            return None
        return DeadLetter(
            stream=str(event["stream"]),
            consumer=str(event["consumer"]),
            seq=int(event["stream_seq"]),
            kind=kind,
            deliveries=int(event.get("deliveries", 0)),
            time=time_from_text(event["timestamp"]),
            reason=str(event.get("reason", "")),
            advisories=[stored],
        )
    except (InvalidResponseError, KeyError, TypeError, ValueError):
        return None
