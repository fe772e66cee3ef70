"""Dead letters: copies of messages that a worker gave up, in a stream of their own."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Final, TypeAlias

from .. import (
    Headers,
    MaxPayloadError,
    RetentionPolicy,
    StorageType,
    StreamNotFoundError,
    ValueTooLargeError,
)

if TYPE_CHECKING:
    from .. import JetStream, JetStreamMsg
    from .leases import Delivery

#: Where dead letters go: a stream, or a function of the message and the reason that returns a subject.
DeadLetterTarget: TypeAlias = "str | Callable[[JetStreamMsg, str], str]"

#: The subjects of the stream for dead letters.
DEAD_LETTER_SUBJECTS: Final = "dead.>"
_DUPLICATE_WINDOW: Final = timedelta(hours=1)
_MAX_AGE: Final = timedelta(days=30)
#: Maximum length of the reason, in characters.
_MAX_REASON: Final = 500
_PUBLISH_TIMEOUT_S: Final = 5.0
#: Headers with an effect on the server: they concern the original message, not its copy.
_SERVER_HEADERS: Final = (
    "nats-msg-id",
    "nats-expected-",
    "nats-ttl",
    "nats-rollup",
    "nats-schedule",
    "nats-batch-",
    "nats-trace-",
)

#: Headers that the runtime adds to dead letters, and to messages that wait for a retry in the stream.
_RUNTIME_HEADERS: Final = ("dead-", "worker-attempt", "worker-origin")


def one_line(error: BaseException | str) -> str:
    """Return the text of a reason as one line of limited length."""
    text = ""
    with suppress(Exception):  # the class of the user decides
        text = str(error)
    if not text and isinstance(error, BaseException):
        text = traceback.format_exception_only(error)[-1]
    printable = "".join(char if char.isprintable() else " " for char in text)
    return " ".join(printable.split())[:_MAX_REASON]


def copied_headers(delivery: Delivery) -> Headers:
    """Return the headers of a message that a copy of it may have."""
    headers = Headers()
    for name, value in delivery.msg.headers.pairs() if delivery.msg.headers else ():
        if not name.lower().startswith((*_SERVER_HEADERS, *_RUNTIME_HEADERS)):
            headers.add(name, value)
    return headers


class DeadLetterTooLargeError(Exception):
    """A message is too large for a dead letter, and its stream does not keep it."""


class DeadLetterWriter:
    """Publishes dead letters to a stream."""

    def __init__(self, js: JetStream, target: DeadLetterTarget, worker: str) -> None:
        self._js = js
        self._choose = None if isinstance(target, str) else target
        self._stream = target if isinstance(target, str) else None
        self._worker = worker

    def ensure_stream(self) -> None:
        """Create the stream unless it exists; with a function there is nothing to create."""
        if self._stream is None:
            return
        try:
            self._js.get_stream(self._stream)
        except StreamNotFoundError:
            self._js.create_stream(
                name=self._stream,
                subjects=[DEAD_LETTER_SUBJECTS],
                storage=StorageType.FILE,
                duplicate_window=_DUPLICATE_WINDOW,
                max_age=_MAX_AGE,
            )

    def write(self, delivery: Delivery, message_id: str, reason: str, error: str) -> None:
        """
        Store a copy of a message; on return the stream has it.

        A message that is too large with the additional headers is stored without the reason, or, if its
        stream keeps it, without its data.
        """
        where, msg = delivery.metadata, delivery.msg
        if self._choose is None:
            subject = f"dead.{where.stream}.{where.consumer}.{msg.subject}"
        else:
            subject = self._choose(msg, reason)
        headers = self._headers(delivery, error)
        dead_id = f"dead:{message_id}"
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
        except (MaxPayloadError, ValueTooLargeError):
            return False
        return True

    def _headers(self, delivery: Delivery, error: str) -> Headers:
        headers = copied_headers(delivery)
        where = delivery.metadata
        headers["Dead-Stream"] = where.stream
        headers["Dead-Consumer"] = where.consumer
        headers["Dead-Sequence"] = str(where.stream_seq)
        headers["Dead-Subject"] = delivery.msg.subject
        headers["Dead-Attempts"] = str(delivery.attempt)
        headers["Dead-Error"] = error
        headers["Dead-Time"] = datetime.now(timezone.utc).isoformat()
        headers["Dead-Worker"] = self._worker
        return headers
