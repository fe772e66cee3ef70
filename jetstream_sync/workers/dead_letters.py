"""Dead letters: copies of messages that a worker gave up, in a stream of their own."""

from __future__ import annotations

import traceback
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Final

from .. import Headers, MaxPayloadError, RetentionPolicy, StorageType, StreamNotFoundError

if TYPE_CHECKING:
    from .. import JetStream
    from .leases import Delivery

__all__ = ["DEAD_LETTER_SUBJECTS", "DeadLetterWriter", "one_line"]

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


def one_line(error: BaseException | str) -> str:
    """Return the text of a reason as one line of limited length."""
    text = error if isinstance(error, str) else str(error)
    if not text and isinstance(error, BaseException):
        text = traceback.format_exception_only(error)[-1]
    printable = "".join(char if char.isprintable() else " " for char in text)
    return " ".join(printable.split())[:_MAX_REASON]


class DeadLetterWriter:
    """
    Publishes dead letters to a stream.

    Args:
        js: the JetStream context.
        stream: the name of the stream for dead letters.
        worker: the worker's name, recorded with each dead letter.

    Any thread may call the methods.
    """

    def __init__(self, js: JetStream, stream: str, worker: str) -> None:
        self._js = js
        self._stream = stream
        self._worker = worker

    def ensure_stream(self) -> None:
        """
        Create the stream unless it exists.

        Raises:
            Error: the server refused.

        """
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

        Args:
            delivery: the message.
            message_id: its id, the same for each delivery of the message.
            reason: one line.
            error: the class of the error that the handler raised.

        Raises:
            Error: the copy was not stored.

        """
        headers = self._headers(delivery, error)
        where = delivery.metadata
        headers["Dead-Reason"] = reason
        subject = f"dead.{where.stream}.{where.consumer}.{delivery.msg.subject}"
        dead_id = f"dead:{message_id}"
        try:
            self._publish(subject, delivery.msg.data, headers, dead_id)
        except MaxPayloadError:
            del headers["Dead-Reason"]
            try:
                self._publish(subject, delivery.msg.data, headers, dead_id)
            except MaxPayloadError:
                config = self._js.get_stream(where.stream).cached_info.config
                if config.retention != RetentionPolicy.LIMITS:
                    raise  # the copy would be the only one
                headers["Dead-Pointer"] = "1"
                self._publish(subject, b"", headers, dead_id)

    def _publish(self, subject: str, data: bytes, headers: Headers, dead_id: str) -> None:
        self._js.publish(
            subject,
            data,
            timeout=_PUBLISH_TIMEOUT_S,
            stream=self._stream,
            headers=headers,
            msg_id=dead_id,
        )

    def _headers(self, delivery: Delivery, error: str) -> Headers:
        headers = Headers()
        for name, value in delivery.msg.headers.pairs() if delivery.msg.headers else ():
            lower = name.lower()
            if not lower.startswith(_SERVER_HEADERS) and not lower.startswith("dead-"):
                headers.add(name, value)
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
