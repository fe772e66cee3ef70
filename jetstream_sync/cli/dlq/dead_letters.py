"""
Dead letters: messages that a consumer delivers no more, and how anybody can know of them.

The server marks nothing in the stream. It publishes an advisory when a message has been delivered as
often as the consumer's ``max_deliver`` allows, and one when a client terminates a message; who does not
listen at that moment never hears of it. So what can be listed is what a stream has stored of these
advisories. Without one, a consumer's counters say how many there may be, but not which.
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

#: Where the server says that a message is given up: by the limit, and by a client.
_MAX_DELIVER: Final = "$JS.EVENT.ADVISORY.CONSUMER.MAX_DELIVERIES"
_TERMINATED: Final = "$JS.EVENT.ADVISORY.CONSUMER.MSG_TERMINATED"
#: What a stream stores so that they are not lost.
ADVISORIES: Final = (f"{_MAX_DELIVER}.>", f"{_TERMINATED}.>")

#: What to do where nobody stores them.
SETUP: Final = "'jsm consumer dlq setup' makes a stream that stores what is given up from now on"

_KINDS: Final[Mapping[str, str]] = {
    "io.nats.jetstream.advisory.v1.max_deliver": "max_deliver",
    "io.nats.jetstream.advisory.v1.terminated": "terminated",
}
#: Seconds to wait for an advisory that the stream says it has.
_PATIENCE: Final = 5.0


@dataclass(frozen=True, kw_only=True)
class DeadLetter:
    """A message that a consumer has given up."""

    stream: str
    consumer: str
    seq: int
    """The message's sequence in the stream."""
    kind: str
    """``max_deliver`` or ``terminated``."""
    deliveries: int
    time: datetime
    """When it was given up."""
    reason: str = ""
    """What the client said that terminated it."""
    advisories: list[tuple[str, int]] = field(default_factory=list)
    """The streams and sequences under which this is stored; more than one when it happened again."""

    @property
    def why(self) -> str:
        """Return in a few words why it was given up."""
        if self.kind == "max_deliver":
            return "max deliver"
        return f"terminated: {self.reason}" if self.reason else "terminated"

    def document(self) -> dict[str, Any]:
        """Return it as JSON has it."""
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
        """Return it with what is known of its message; ``None``: the stream has it no more."""
        fields: dict[str, Any] = {**self.document(), "in_stream": msg is not None}
        if msg is not None:
            fields.update(subject=readable(msg.subject), bytes=len(msg.data))
        return fields


@dataclass(frozen=True, kw_only=True)
class DeadLetterEstimate:
    """What a consumer's counters say of messages that it has given up."""

    info: ConsumerInfo

    @property
    def most(self) -> int | None:
        """
        How many there may be: all that was delivered more than once, and not acknowledged.

        Of a consumer that delivers once the server does not count them: ``None``.
        """
        return None if self.info.config.max_deliver == 1 else self.info.num_redelivered

    @property
    def least(self) -> int:
        """How many there are at least: what still waits for its acknowledgement is none."""
        return max(0, self.info.num_redelivered - self.info.num_ack_pending)

    def document(self) -> dict[str, Any]:
        """Return it as JSON has it."""
        info = self.info
        return {
            "stream": info.stream_name,
            "consumer": info.name,
            "max_deliver": info.config.max_deliver,
            "at_least": self.least,
            "at_most": self.most,
            "num_redelivered": info.num_redelivered,
            "num_ack_pending": info.num_ack_pending,
            "ack_floor_stream_seq": info.ack_floor.stream_seq,
            "delivered_stream_seq": info.delivered.stream_seq,
        }

    @classmethod
    def of(cls, infos: Sequence[ConsumerInfo]) -> list[DeadLetterEstimate]:
        """Return those of the consumers that may have given something up."""
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
    The dead letters of an account, as far as they are stored.

    Args:
        js: where they are.

    """

    def __init__(self, js: JetStream) -> None:
        self._js = js
        self._streams: dict[str, Stream | None] = {}
        #: The streams that store the advisories, all of them or some.
        self.stores = sorted(
            {name for subject in ADVISORIES for name in js.stream_names(subject=subject)}
        )

    def read(self, stream: str | None = None, consumer: str | None = None) -> list[DeadLetter]:
        """
        Return the dead letters: by stream, consumer and sequence.

        Args:
            stream: only those of this stream; ``None``: of all.
            consumer: only those of this consumer; ``None``: of all.

        """
        found: dict[tuple[str, str, int], DeadLetter] = {}
        for store in self.stores:
            for letter in self._stored(store, stream or "*", consumer or "*"):
                key = (letter.stream, letter.consumer, letter.seq)
                # The last advisory is what counts; all of them are of the same message.
                before = found.pop(key, None)
                if before is not None:
                    letter.advisories[:0] = before.advisories
                found[key] = letter
        return [found[key] for key in sorted(found)]

    def _stored(self, store: str, stream: str, consumer: str) -> Iterator[DeadLetter]:
        """Yield what one stream has."""
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
                    msg = messages.next(_PATIENCE)
                except TimeoutError:
                    return  # some have just expired
                about = msg.metadata
                letter = _letter(msg.data, (store, about.stream_seq))
                if letter is not None:
                    yield letter
                if not about.num_pending:
                    return

    def stream(self, name: str) -> Stream | None:
        """Return a stream, looked up once; ``None``: there is none."""
        if name not in self._streams:
            try:
                self._streams[name] = self._js.get_stream(name)
            except StreamNotFoundError:
                self._streams[name] = None
        return self._streams[name]

    def message(self, letter: DeadLetter) -> StoredMsg | None:
        """Return the message of a dead letter; ``None``: its stream does not have it any more."""
        stream = self.stream(letter.stream)
        try:
            msg = stream.get_msg(letter.seq) if stream is not None else None
        except (MessageNotFoundError, StreamNotFoundError):
            return None
        # One that was stored later has its sequence from a stream that was made anew.
        return None if msg is None or msg.time > letter.time else msg


def _letter(data: bytes, stored: tuple[str, int]) -> DeadLetter | None:
    """Read an advisory; ``None``: it is another one, or none."""
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
