"""
Parking: retries after long delays wait as schedules in the stream, not in the consumer (ADR-51).

Rules:

1. The schedule is stored before the message is acknowledged. Its subject is made from the sequence of the
   message: when the acknowledgement is lost, the next delivery replaces it.
2. Headers carry the number of attempts and the id of the first message, which is the id of all.
3. Only work queues: in other streams, other consumers would receive the message again.
"""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Final

from ... import RetentionPolicy
from ..checks import check_option
from ..dead_letters import copied_headers
from ..schedules import AT_LEVEL, check_scheduling, require_level

if TYPE_CHECKING:
    from ... import JetStream
    from ..context import Publishing
    from ..handler import Handler
    from ..leases import Delivery

_ATTEMPT: Final = "Worker-Attempt"
_ORIGIN: Final = "Worker-Origin"
_TIMEOUT_S: Final = 5.0


def check_parking(js: JetStream, handler: Handler) -> None:
    """Check that messages of a handler can wait in its stream."""
    require_level(js, AT_LEVEL)
    stream = handler.stream
    retention = js.get_stream(stream).cached_info.config.retention
    rule = f"stream {stream} must be a work queue for park_after"
    check_option("retention", str(retention), retention == RetentionPolicy.WORK_QUEUE, rule)
    check_scheduling(js, stream, f"parked.{stream}.{handler.consumer}.1", [handler])


def park(js: Publishing, delivery: Delivery, message_id: str, delay: float) -> None:
    """Have the server publish a message again after a delay in seconds."""
    where = delivery.metadata
    headers = copied_headers(delivery.msg)
    headers[_ATTEMPT] = str(delivery.attempt)
    headers[_ORIGIN] = message_id
    js.schedule(
        f"parked.{where.stream}.{where.consumer}.{where.stream_seq}",
        delivery.msg.data,
        target=delivery.msg.subject,
        at=datetime.now(timezone.utc) + timedelta(seconds=delay),
        headers=headers,
        msg_id=f"parked:{message_id}:{delivery.attempt}",
        timeout=_TIMEOUT_S,
    )


def parked_attempts(delivery: Delivery) -> int:
    """Return the number of attempts before the message was parked; 0: it was not."""
    text = delivery.msg.headers.get(_ATTEMPT, "") if delivery.msg.headers else ""
    return int(text) if text.isascii() and text.isdigit() else 0


def parked_origin(delivery: Delivery) -> str | None:
    """Return the id of the message that was parked first; ``None``: it was not."""
    return delivery.msg.headers.get(_ORIGIN) if delivery.msg.headers else None
