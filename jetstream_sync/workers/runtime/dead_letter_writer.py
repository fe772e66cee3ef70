"""How a worker stores copies of messages that it gives up."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import TYPE_CHECKING, Final

from ... import Headers, RetentionPolicy, errors
from ..dead_letters import DeadLetterTarget, copied_headers

if TYPE_CHECKING:
    from ..context import Publishing
    from ..leases import Delivery

_PUBLISH_TIMEOUT_S: Final = 5.0


class DeadLetterTooLargeError(Exception):
    """A message is too large for a dead letter, and its stream does not keep it."""


class DeadLetterWriter:
    """Publishes dead letters to a stream."""

    def __init__(self, js: Publishing, target: DeadLetterTarget, worker: str) -> None:
        self._js = js
        self._choose = None if isinstance(target, str) else target
        self._stream = target if isinstance(target, str) else None
        self._worker = worker

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
        except (errors.MaxPayloadError, errors.ValueTooLargeError):
            return False
        return True

    def _headers(self, delivery: Delivery, error: str) -> Headers:
        headers = copied_headers(delivery.msg)
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
