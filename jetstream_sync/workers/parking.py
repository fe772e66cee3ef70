"""
Parked messages: they wait in their stream as schedules, which the server publishes again.

Their headers continue what the server knows of a message: its id, its attempts and its time. Any client may have
sent or copied such headers: they count only with the name of a schedule of the stream, and under the subject for
which they were written. The server does not reserve `Nats-Scheduler`: a client that copies all headers of a parked
message under the same subject continues its id.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from .call_messages import SCHEDULER, CallAddress, is_parked_subject

if TYPE_CHECKING:
    from .. import JetStreamMsg, StoredMsg

#: The headers with the number of attempts, the id of the first message, and the time when that was stored.
ATTEMPT_HEADER: Final = "Worker-Attempt"
ORIGIN_HEADER: Final = "Worker-Origin"
STORED_HEADER: Final = "Worker-Stored"
#: The header with the subject of the message.
SUBJECT_HEADER: Final = "Worker-Subject"
#: The header with the time since when processes have given the message back that it does not fit.
UNFIT_HEADER: Final = "Worker-Unfit-Since"
#: A number of attempts, a time in nanoseconds, and the end of an id, after stream and consumer.
_ATTEMPTS: Final = re.compile("[0-9]{1,9}")
_TIME: Final = re.compile("[0-9]{19}")
_ORIGIN_END: Final = re.compile("[0-9]{1,20}/[0-9A-Za-z]{0,40}")


def parked_attempts(msg: JetStreamMsg) -> int:
    """Return the number of attempts before a message was parked; 0: it was not."""
    text = _header(msg, msg.metadata.stream, ATTEMPT_HEADER)
    return int(text) if _ATTEMPTS.fullmatch(text) else 0


def parked_origin(msg: JetStreamMsg, start: str) -> str:
    """Return the id of the first message if it begins with ``start``; empty: the message was not parked."""
    origin = _header(msg, msg.metadata.stream, ORIGIN_HEADER)
    is_id = origin.startswith(start) and _ORIGIN_END.fullmatch(origin, len(start))
    return origin if is_id else ""


def first_stored_ns(msg: JetStreamMsg | StoredMsg, stream: str, stored_ns: int) -> int:
    """Return when a message of a stream, or the one that was parked for it, was stored first."""
    return _time_ns(msg, stream, STORED_HEADER) or stored_ns


def unfit_since_ns(msg: JetStreamMsg) -> int:
    """Return when a process first returned the message because it did not fit; 0: none did, or the message has run since."""
    return _time_ns(msg, msg.metadata.stream, UNFIT_HEADER)


def _time_ns(msg: JetStreamMsg | StoredMsg, stream: str, name: str) -> int:
    text = _header(msg, stream, name)
    return int(text) if _TIME.fullmatch(text) else 0


def _header(msg: JetStreamMsg | StoredMsg, stream: str, name: str) -> str:
    """Return a header of a parked message; empty: there is none, or the message was not parked."""
    headers = msg.headers
    if not headers or name not in headers or headers.get(SUBJECT_HEADER) != msg.subject:
        return ""
    schedule = headers.get(SCHEDULER, "")
    is_parked = is_parked_subject(schedule, stream) or schedule == CallAddress(msg.subject).later
    return headers.get(name, "") if is_parked else ""
