"""Dead letters: messages that are given up: how they are stored, found, read and published again."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime, timedelta, timezone
from functools import partial
from typing import TYPE_CHECKING, Final, Literal, TypeAlias
from urllib.parse import quote

from .. import Headers, JetStreamMsg, RetentionPolicy, StorageType, codec, errors
from ..exact import exact
from ..records import record
from ..subjects import Metadata, check_publish_subject, fits_request, is_reserved
from .call_messages import REQUEUED_HEADER
from .errors import DeadLetterTooLargeError

if TYPE_CHECKING:
    from .. import JetStream, OrderedMessages, PubAck, StoredMsg, Stream
    from .context import Publishing
    from .deliveries import LeasedMessage

#: Where dead letters go: a stream, or a function of the message and the reason that returns a subject.
DeadLetterTarget: TypeAlias = str | Callable[[JetStreamMsg, str], str]

#: The subjects of the stream for dead letters.
DEAD_LETTER_SUBJECTS: Final = "dead.>"
#: How long a stream for dead letters keeps them by default.
MAX_AGE: Final = timedelta(days=30)
#: Timeout of storing a dead letter, in seconds.
_PUBLISH_TIMEOUT_S: Final = 5.0
#: Maximum length of the reason, in characters.
_MAX_REASON: Final = 500
#: Headers that concern one publish of a message. If they were published again, the server would reject
#: the message, delete other messages, or trace it.
_PUBLISH_HEADERS: Final = (
    "nats-msg-id",
    "nats-expected-",
    "nats-rollup",
    "nats-schedule",
    "nats-stream-source",
    "nats-batch-",
    "nats-trace-",
)
#: In place of a subject that only other clients publish to: the last token of the dead letter.
_NO_SUBJECT: Final = "invalid-subject"
#: Characters of a header that are not escaped: those that both names and values may have.
_SAFE: Final = "!#$&'()*+,/;<=>?@[]^`{|}\""
#: Headers that the runtime adds to messages that wait for a retry in the stream.
_RETRY_HEADERS: Final = (
    *("worker-attempt", "worker-origin", "worker-stored", "worker-subject", "worker-unfit-since"),
)
#: All headers that a copy of a message does not have; a dead letter must not expire with its TTL.
_NOT_COPIED: Final = (*_PUBLISH_HEADERS, *_RETRY_HEADERS, "nats-ttl", "dead-")


def one_line(error: BaseException | str) -> str:
    """Return the text of a reason as one line of limited length."""
    text = error if isinstance(error, str) else codec.text_of(error)
    if not text and isinstance(error, BaseException):
        text = traceback.format_exception_only(error)[-1]
    if not text.isprintable():
        text = "".join(char if char.isprintable() else " " for char in text)
    return " ".join(text.split())[:_MAX_REASON]


def copied_headers(
    msg: JetStreamMsg | StoredMsg,
    without: tuple[str, ...] = _NOT_COPIED,
    *,
    add: Callable[[Headers, str, str], None] = Headers.add,
) -> Headers:
    """Return the headers of a message, except those that begin with one of the prefixes."""
    headers = Headers()
    for name, value in (msg.headers or headers).pairs():
        if not name.lower().startswith(without):
            add(headers, name, value)
    return headers


def _add_escaped(headers: Headers, name: str, value: str) -> None:
    """Add a header; one that only other clients publish with what it has escaped as in a URL."""
    try:
        headers.add(name, value)
    except errors.InvalidHeaderError:
        escaped = partial(quote, safe=_SAFE, errors="surrogateescape")
        headers.add(escaped(name) or "%", escaped(value))


def _dead_subject(where: Metadata, subject: str) -> str:
    """Return the subject of a dead letter, which has the subject of the message if it can be published."""
    folder = f"dead.{where.stream}.{where.consumer}"
    with suppress(errors.BadSubjectError):
        found = check_publish_subject(f"{folder}.{subject}")
        if fits_request(found):
            return found
    return f"{folder}.{_NO_SUBJECT}"


#: Subjects of the advisories for messages at the delivery limit, and terminated by a client.
_ADVISORIES: Final = (
    "$JS.EVENT.ADVISORY.CONSUMER.MAX_DELIVERIES",
    "$JS.EVENT.ADVISORY.CONSUMER.MSG_TERMINATED",
)
#: The types of these advisories, and what they say of the message.
_ADVISORY_KINDS: Final[Mapping[str, Literal["max_deliver", "terminated"]]] = {
    "io.nats.jetstream.advisory.v1.max_deliver": "max_deliver",
    "io.nats.jetstream.advisory.v1.terminated": "terminated",
}
#: Timeout for a message that the stream has, in seconds, and the number of attempts: while the stream
#: has no leader, its messages do not arrive.
_READ_TIMEOUT_S: Final = 5.0
_READ_ATTEMPTS: Final = 6


@record
class _Advisory(codec.Record):
    """What the server publishes about a message that it does not deliver again."""

    type: str
    stream: str
    consumer: str
    stream_seq: int
    deliveries: int = 0
    timestamp: datetime
    reason: str = ""


@dataclass(frozen=True, kw_only=True)
class DeadLetter:
    """A message that a consumer does not deliver again; see `DeadLetters.find`."""

    stream: str
    """The stream of the message."""
    consumer: str
    """The consumer that gave it up."""
    seq: int
    """The stream sequence of the message."""
    kind: Literal["max_deliver", "terminated", "copy"]
    """Why it is a dead letter: the last delivery failed, a client terminated it, or a worker gave it up
    and stored a copy."""
    deliveries: int
    """The number of deliveries."""
    time: datetime
    """The time of the advisory, or the time at which the copy was stored."""
    reason: str = ""
    """The reason given by the worker, or by the client that terminated the message; may be empty."""
    stored: tuple[tuple[str, int], ...] = ()
    """The stream and sequence of each advisory and copy of the message; the latest is the last one."""
    subject: str = ""
    """The subject of the message, if there is a copy; otherwise empty."""
    pointer: bool = False
    """Whether the copy has no data, because the message was too large."""


class DeadLetters:
    """
    The dead letters of an account: messages that consumers do not deliver again.

    The server publishes an advisory when a message has reached the ``max_deliver`` of its consumer, and
    when a client terminates it. The message stays in its stream without a mark. A `Worker` with
    ``dead_letters`` also stores a copy of a message that it gives up. A dead letter is found if a stream
    stores its advisory, or a copy with a subject that begins with ``dead.``. An advisory and a copy of
    the same message are one dead letter.

    Any thread may call the methods. Each method raises `Error` if a request fails: `TimeoutError`,
    `ConnectionClosedError`, `PermissionsError` or `APIError`.

    Args:
        js: the JetStream context of the account.

    """

    def __init__(self, js: JetStream) -> None:
        self._js = js
        self._streams: dict[str, Stream] = {}

    def advisory_streams(self) -> list[str]:
        """Return the names of the streams that store some or all of the advisories."""
        names = (self._js.stream_names(subject=f"{subject}.>") for subject in _ADVISORIES)
        return sorted({name for item in names for name in item})

    def copy_streams(self) -> list[str]:
        """Return the names of the streams that store copies of workers."""
        return self._js.stream_names(subject=DEAD_LETTER_SUBJECTS)

    def store_advisories(
        self,
        name: str = "DEAD_LETTERS",
        *,
        max_age: timedelta | None = MAX_AGE,
        num_replicas: int | None = None,
    ) -> Stream:
        """
        Create a stream that stores the advisories from now on, unless there is one.

        Args:
            name: the name of the stream to create.
            max_age: how long advisories are kept, 30 days by default; ``None``: without limit.
            num_replicas: the number of servers that store the stream; ``None``: one.

        Returns:
            The first stream that stores advisories, or the new one.

        Raises:
            InvalidNameError: the name is invalid.
            StreamNameInUseError: a stream with this name has other subjects.

        """
        for known in self.advisory_streams():
            return self._js.get_stream(known)
        return self._js.create_stream(
            name=name,
            subjects=[f"{subject}.>" for subject in _ADVISORIES],
            description="Dead letters: advisories of max deliver and of termination",
            storage=StorageType.FILE,
            max_age=max_age,
            num_replicas=num_replicas,
            allow_direct=True,
        )

    def find(self, stream: str | None = None, consumer: str | None = None) -> list[DeadLetter]:
        """
        Return the dead letters, sorted by stream, consumer and sequence.

        Messages that are no longer stored are included, see `get_msg`. Without `advisory_streams` and
        `copy_streams` the list is empty.

        Args:
            stream: only those of this stream; ``None``: of all streams.
            consumer: only those of this consumer; ``None``: of all consumers.

        """
        stream, consumer = exact(stream), exact(consumer)
        found: dict[tuple[str, str, int], DeadLetter] = {}
        for letter in self._read(stream, consumer):
            if stream in (None, letter.stream) and consumer in (None, letter.consumer):
                key = (letter.stream, letter.consumer, letter.seq)
                # The last one replaces earlier ones for the same message.
                earlier = found[key].stored if key in found else ()
                found[key] = replace(letter, stored=earlier + letter.stored)
        return [found[key] for key in sorted(found)]

    def _read(self, stream: str | None, consumer: str | None) -> Iterator[DeadLetter]:
        """Yield the dead letters of all advisories, then of all copies, which replace them."""
        advisories = [f"{advisory}.{stream or '*'}.{consumer or '*'}" for advisory in _ADVISORIES]
        for name in self.advisory_streams():
            for msg in self._iter_msgs(name, advisories):
                where = msg.metadata
                letter = _advisory_of(msg.data, (where.stream, where.stream_seq))
                if letter is not None:
                    yield letter
        for name in self.copy_streams():
            # The function of a worker chooses the rest of their subjects.
            for msg in self._iter_msgs(name, [DEAD_LETTER_SUBJECTS], headers_only=True):
                where = msg.metadata
                place = where.stream, where.stream_seq
                letter = _letter_of(msg.headers or Headers(), where.timestamp, place)
                if letter is not None:
                    yield letter

    def _iter_msgs(
        self, name: str, subjects: list[str], *, headers_only: bool = False
    ) -> Iterator[JetStreamMsg]:
        """Yield the messages that a stream has now on some subjects."""
        try:
            stream = self._stream(name)
        except errors.StreamNotFoundError:
            return
        # The server refuses a filter that no subject of the stream matches.
        filters = [subject for subject in subjects if _has_after(stream, 0, subject)]
        if not filters:
            return
        ordered = stream.ordered_consumer(filter_subjects=filters, headers_only=headers_only)
        with ordered.messages() as messages:
            last = 0
            while msg := _next(messages, stream, filters, last):
                yield msg
                last = msg.metadata.stream_seq
                # A leader that was elected just now may count too few messages.
                if not msg.metadata.num_pending and not any(
                    _has_after(stream, last, item) for item in filters
                ):
                    return

    def _stream(self, name: str) -> Stream:
        if name not in self._streams:
            self._streams[name] = self._js.get_stream(name)
        return self._streams[name]

    def get_msg(self, letter: DeadLetter) -> StoredMsg | None:
        """
        Return the message of a dead letter with its original subject and headers.

        It is read from the copy, if that has its data, else from its stream.

        Args:
            letter: the dead letter.

        Returns:
            The message; ``None``: it is no longer stored.

        """
        if letter.kind != "copy" or letter.pointer:
            return self._original(letter)
        # Not the original if the copy is gone: another program may have discarded the letter.
        copy = self._stored(letter, *letter.stored[-1])
        if copy is None:
            return None
        return copy._replace(subject=letter.subject, headers=copied_headers(copy))

    def read_copy(self, stream: str, seq: int) -> tuple[DeadLetter, StoredMsg]:
        """
        Return the dead letter that is a message of a stream, with its message as `get_msg`.

        Args:
            stream: the stream of dead letters.
            seq: the sequence in it.

        Raises:
            StreamNotFoundError: there is no such stream.
            MessageNotFoundError: the message is not stored.
            InvalidOptionError: the message is no copy of a dead letter.

        """
        stored = self._js.get_stream(stream).get_msg(seq, consistent=True)
        letter = _letter_of(stored.headers or Headers(), stored.time, (stream, seq))
        if letter is None:
            rule = f"is no dead letter of a worker: message of subject {stored.subject}"
            raise errors.InvalidOptionError("seq", seq, rule)
        return letter, self._msg_of(letter)

    def _msg_of(self, letter: DeadLetter) -> StoredMsg:
        """Return the message as `get_msg`; raise `MessageNotFoundError` if it is no longer stored."""
        msg = self.get_msg(letter)
        if msg is None:
            text = f"message {letter.seq} of stream {letter.stream!r} is no longer stored"
            raise errors.MessageNotFoundError.found_here(text)
        return msg

    def _original(self, letter: DeadLetter) -> StoredMsg | None:
        msg = self._get(letter.stream, letter.seq)
        # A message stored after the advisory belongs to a recreated stream.
        return None if msg is None or msg.time > letter.time else msg

    def _stored(self, letter: DeadLetter, name: str, seq: int) -> StoredMsg | None:
        """Return an advisory or copy of a dead letter; ``None``: it is gone, or another one has its sequence."""
        msg = self._get(name, seq)
        if msg is None:
            return None
        where = (name, seq)
        found = _letter_of(msg.headers or Headers(), msg.time, where) or _advisory_of(
            msg.data, where
        )
        names = (letter.stream, letter.consumer, letter.seq)
        if found is None or (found.stream, found.consumer, found.seq) != names:
            return None
        # A later copy belongs to a recreated stream; the advisory follows the copy.
        return msg if found.kind != "copy" or found.time <= letter.time else None

    def _get(self, name: str, seq: int) -> StoredMsg | None:
        """Return a message; ``None``: its leader does not have it, as a replica that is behind may not."""
        try:
            return self._stream(name).get_msg(seq, consistent=True)
        except (errors.MessageNotFoundError, errors.StreamNotFoundError):
            return None

    def requeue(self, letter: DeadLetter, msg: StoredMsg | None = None) -> PubAck:
        """
        Publish the message of a dead letter again, and wait until a stream has stored it.

        It is a new message for every consumer of the subject, and a call of a task is a new one, with the id
        ``<id>-<time in nanoseconds>`` and all attempts. It has the headers of the original,
        except those that concern one publish, and ``Jsm-Requeued-From`` with the stream, consumer and
        sequence of the original. Its message id is derived from the original: if the result is unknown
        after an error, call this again within the duplicate window of the stream, and nothing is stored
        twice. The dead letter is still found until `discard`.

        Args:
            letter: the dead letter.
            msg: the message to publish: that of `get_msg`, of which ``_replace()`` changes the data, the
                headers or the subject; ``None``: it is read.

        Returns:
            The acknowledgement; ``duplicate`` is set if the message was requeued before.

        Raises:
            MessageNotFoundError: the message is no longer stored.
            BadSubjectError: the subject begins with ``$JS``, ``$SYS`` or ``_INBOX``; nothing was sent.
            NoStreamResponseError: no stream stores the subject.

        """
        if msg is None:
            msg = self._msg_of(letter)
        # The headers of a copy name the subject, and any client that may write to its stream wrote them.
        if is_reserved(msg.subject):
            raise errors.BadSubjectError(
                msg.subject, "a dead letter must not call a server API or go to an inbox"
            )
        headers = copied_headers(msg, (*_PUBLISH_HEADERS, *_RETRY_HEADERS))
        headers[REQUEUED_HEADER] = f"{letter.stream} {letter.consumer} {letter.seq}"
        return self._js.publish(
            msg.subject,
            msg.data,
            headers=headers,
            msg_id=f"jsm.requeue.{letter.stream}.{letter.consumer}.{letter.seq}",
        )

    def discard(self, letter: DeadLetter) -> None:
        """
        Delete the advisories and copies of a dead letter, so that it is not found any more.

        The original message stays in its stream, see `delete_original`. A copy is the only one left of a
        message that a worker has given up in a work queue: requeue it first, unless it is not needed.

        Args:
            letter: the dead letter.

        """
        for name, seq in letter.stored:
            # The stream may be another one by now, with another dead letter at this sequence.
            if self._stored(letter, name, seq) is not None:
                self._delete(name, seq)

    def delete_original(self, letter: DeadLetter) -> None:
        """
        Delete the message of a dead letter from its stream, unless it is gone.

        Args:
            letter: the dead letter.

        """
        # The sequence may belong to a message of a recreated stream.
        if self._original(letter) is not None:
            self._delete(letter.stream, letter.seq)

    def _delete(self, name: str, seq: int) -> None:
        with suppress(errors.MessageNotFoundError, errors.StreamNotFoundError):
            self._stream(name).delete_msg(seq)


def _next(
    messages: OrderedMessages, stream: Stream, filters: list[str], last: int
) -> JetStreamMsg | None:
    """Return the next message; ``None``: the messages after the last one have been deleted."""
    for _ in range(_READ_ATTEMPTS):
        try:
            return messages.next(_READ_TIMEOUT_S)
        except errors.TimeoutError:
            if not any(_has_after(stream, last, item) for item in filters):
                return None
    raise errors.TimeoutError(f"stream {stream.name!r} has dead letters that do not arrive")


def _has_after(stream: Stream, last: int, subject: str) -> bool:
    try:
        stream.get_msg(last + 1, next_by_subject=subject, consistent=True)
    except errors.MessageNotFoundError:
        return False
    return True


def _advisory_of(data: bytes, stored: tuple[str, int]) -> DeadLetter | None:
    """Return the dead letter of an advisory with this data; ``None``: it is not such an advisory."""
    try:
        event = codec.decode(_Advisory, codec.loads(data))
    except errors.InvalidResponseError:
        return None
    kind = _ADVISORY_KINDS.get(event.type)
    if kind is None or event.stream_seq < 1:  # any client can publish one without a sequence
        return None
    return DeadLetter(
        stream=event.stream,
        consumer=event.consumer,
        seq=event.stream_seq,
        kind=kind,
        deliveries=event.deliveries,
        time=event.timestamp,
        reason=event.reason,
        stored=(stored,),
    )


def _letter_of(
    headers: Mapping[str, str], time: datetime, stored: tuple[str, int]
) -> DeadLetter | None:
    """Return the dead letter of a copy with these headers; ``None``: it is not such a copy."""
    try:
        return DeadLetter(
            stream=headers["Dead-Stream"],
            consumer=headers["Dead-Consumer"],
            seq=int(headers["Dead-Sequence"]),
            kind="copy",
            deliveries=int(headers["Dead-Attempts"]),
            time=time,
            reason=headers.get("Dead-Reason", ""),
            stored=(stored,),
            subject=headers["Dead-Subject"],
            pointer="Dead-Pointer" in headers,
        )
    except (KeyError, ValueError):
        return None


class DeadLetterWriter:
    """Publishes dead letters to a stream."""

    def __init__(self, js: Publishing, worker: str, target: DeadLetterTarget) -> None:
        self._js = js
        self._choose = None if isinstance(target, str) else target
        self._stream = target if isinstance(target, str) else None
        self._worker = worker

    def write(self, delivery: LeasedMessage, message_id: str, reason: str, error: str) -> None:
        """
        Store a copy of a message; on return the stream has it.

        A message that is too large with the additional headers is stored without the reason, or, if its
        stream keeps it, without its data.
        """
        where, msg = delivery.metadata, delivery.msg
        if self._choose is None:
            subject = _dead_subject(where, msg.subject)
        else:
            subject = self._choose(msg, reason)
            if isinstance(subject, str) and is_reserved(subject):
                rule = "a dead letter must not call the API of a server, or reach an inbox"
                raise errors.BadSubjectError(subject, rule)
        headers = self._headers(delivery, error)
        # With the sequence: a message that was published again with all headers is another one.
        dead_id = f"dead:{message_id}:{where.stream_seq}"
        with_reason = Headers(headers)
        with_reason["Dead-Reason"] = reason
        if self._publish(subject, msg.data, with_reason, dead_id):
            return
        if self._publish(subject, msg.data, headers, dead_id):
            return
        config = self._js.get_stream(where.stream).cached_info.config
        headers["Dead-Pointer"] = "1"
        # Any other stream deletes the message when it is terminated.
        if config.retention != RetentionPolicy.LIMITS or not self._publish(
            subject, b"", headers, dead_id
        ):
            raise DeadLetterTooLargeError(
                f"{len(msg.data)} bytes do not fit into a dead letter with its headers: raise "
                "max_payload of the server, or max_msg_size of the stream for dead letters"
            )

    def _publish(self, subject: str, data: bytes, headers: Headers, dead_id: str) -> bool:
        """Publish a dead letter; return whether it was small enough."""
        try:
            self._js.publish(
                subject,
                data,
                timeout=_PUBLISH_TIMEOUT_S,
                stream=self._stream,
                headers=headers,
                msg_id=dead_id,
            )
        except (errors.MaxPayloadError, errors.ValueTooLargeError):
            return False
        return True

    def _headers(self, delivery: LeasedMessage, error: str) -> Headers:
        # Whatever another client has published becomes a dead letter.
        headers = copied_headers(delivery.msg, add=_add_escaped)
        where = delivery.metadata
        headers["Dead-Stream"] = where.stream
        headers["Dead-Consumer"] = where.consumer
        headers["Dead-Sequence"] = str(where.stream_seq)
        _add_escaped(headers, "Dead-Subject", delivery.msg.subject)
        headers["Dead-Attempts"] = str(delivery.attempt)
        headers["Dead-Error"] = error
        headers["Dead-Time"] = datetime.now(timezone.utc).isoformat()
        headers["Dead-Worker"] = self._worker
        return headers
