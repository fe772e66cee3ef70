"""
The messages of calls and of schedules: their subjects, headers and payloads.

Parked messages, also those of other handlers, wait in their stream as schedules, which the server publishes again.
Their headers continue what the server knows of a message: its id, its attempts and its time. Any client may have
sent or copied such headers: they count only with the name of a schedule of the stream, and under the subject for
which they were written. The server does not reserve `Nats-Scheduler`: a client that copies all headers of a parked
message under the same subject continues its id.
"""

from __future__ import annotations

import re
from datetime import datetime
from typing import TYPE_CHECKING, Final, NamedTuple

from ..converters import to_json
from .call_records import CallRecord

if TYPE_CHECKING:
    from .. import JetStreamMsg, StoredMsg

#: The header of the messages of a schedule.
SCHEDULE_HEADER: Final = "Worker-Schedule"
#: The header of a message that is published again for a dead letter: stream, consumer and sequence of the original.
REQUEUED_HEADER: Final = "Jsm-Requeued-From"
#: The header with the revision of the record that the sender has created for the call.
_REVISION_HEADER: Final = "Worker-Revision"
#: A revision with this many digits or more is not taken: it may exceed 64 bits.
_MAX_DIGITS: Final = 19
#: The headers of a schedule, and of the messages that the server publishes for it (ADR-51).
_SCHEDULE: Final = "Nats-Schedule"
SCHEDULE_TARGET: Final = "Nats-Schedule-Target"
SCHEDULER: Final = "Nats-Scheduler"
#: The first tokens of the schedules of workers, and of those of parked messages.
_SCHEDULES: Final = "schedules"
_PARKED: Final = "parked"
#: The last token of the schedule of a later call, and the number of dots in the subject of a call.
_LATER: Final = "later"
_DOTS: Final = 4
#: What follows the token in the id of a call that shares its subject: the time in nanoseconds.
_TICK_END: Final = re.compile("-[0-9]{19}")
#: The id of a call.
_ID: Final = re.compile("[-_=/0-9A-Za-z]{1,200}")
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


def is_call_id(text: object) -> bool:
    """Return whether a text can be the id of a call: a token of a subject, and a key of a bucket."""
    return isinstance(text, str) and _ID.fullmatch(text) is not None


def schedule_subject(stream: str, place: str = ">") -> str:
    """Return the subject of a schedule of a worker; ``place``: ``<worker>.<name>``, or all."""
    return f"{_SCHEDULES}.{stream}.{place}"


def parked_subject(stream: str, place: str = ">") -> str:
    """Return the subject of the schedule of a parked message; ``place``: ``<consumer>.<sequence>``, or all."""
    return f"{_PARKED}.{stream}.{place}"


def is_parked_subject(subject: str, stream: str = "") -> bool:
    """Return whether a subject is the schedule of a parked message, of one stream or of any."""
    return subject.startswith(f"{_PARKED}.{stream}." if stream else f"{_PARKED}.")


class CallAddress(NamedTuple):
    """The subjects of a call: ``<subject>.<namespace>.<queue>.<task>.<id>``, and its schedule."""

    now: str
    """The subject of its message."""

    @classmethod
    def of(cls, subject: str) -> CallAddress:
        """Return the address of a call from the subject of its message or its schedule."""
        start, _, end = subject.rpartition(".")
        return cls(start if end == _LATER and start.count(".") == _DOTS else subject)

    @property
    def queue(self) -> str:
        """What the subjects of all calls of its queue begin with, without the dot that follows."""
        return self.now.rsplit(".", 2)[0]

    @property
    def task(self) -> str:
        """The name of the task; empty: this is not the subject of a call."""
        return self.now.rpartition(".")[0].rpartition(".")[2]

    @property
    def token(self) -> str:
        """The id of the call; of one that a schedule makes, the start of the id."""
        return self.now.rpartition(".")[2]

    @property
    def of_schedule(self) -> str:
        """The subject of the call if a schedule has made it; of another call ``now``."""
        start, end = self.now[:-20], self.now[-20:]
        return start if _TICK_END.fullmatch(end) else self.now

    @property
    def later(self) -> str:
        """The subject of the schedule of a later call, which no queue receives."""
        return f"{self.now}.{_LATER}"

    @property
    def both(self) -> tuple[str, str]:
        """The subjects that a message of the call may have."""
        return self.now, self.later


class CallMessage(NamedTuple):
    """The message of a call."""

    address: CallAddress
    data: bytes
    msg_id: str
    at: datetime | None = None
    """When the call starts; ``None``: now."""
    revision: int = 0
    """The revision of its record in the bucket; 0: it is not known."""

    @property
    def subject(self) -> str:
        """Where the message is stored."""
        return self.address.now if self.at is None else self.address.later

    @property
    def headers(self) -> dict[str, str]:
        """The headers besides those of its schedule."""
        return {_REVISION_HEADER: str(self.revision)} if self.revision else {}

    @property
    def schedule(self) -> dict[str, str]:
        """The headers of its schedule; empty: there is none."""
        if self.at is None:
            return {}
        return {_SCHEDULE: f"@at {self.at.isoformat()}", SCHEDULE_TARGET: self.address.now}


def call_message(
    address: CallAddress, record: CallRecord, at: datetime | None, *, whole: bool
) -> CallMessage:
    """Return the message of a call; see `payload_of`."""
    return CallMessage(address, payload_of(record, whole=whole), address.now, at)


def payload_of(record: CallRecord, *, whole: bool) -> bytes:
    """Return the payload of the message of a call: the ``whole`` record, or the arguments and the expiry."""
    if whole:
        return record.to_json()
    kept: dict[str, object] = {"args": record.args, "kwargs": record.kwargs}
    if record.expires is not None:
        kept["expires"] = record.expires
    return to_json(kept)


def sent_revision(message: JetStreamMsg) -> int:
    """Return the revision of the record with which a call was sent; 0: it is not known, or no longer current."""
    text = "" if message.headers is None else message.headers.get(_REVISION_HEADER, "")
    is_number = text.isascii() and text.isdigit() and len(text) < _MAX_DIGITS
    return int(text) if is_number and message.metadata.num_delivered == 1 else 0


def shares_subject(message: JetStreamMsg) -> bool:
    """Return whether several calls have the subject of a message: ticks, or one that failed and was requeued."""
    headers = message.headers
    return headers is not None and (SCHEDULE_HEADER in headers or REQUEUED_HEADER in headers)


def call_id(message: JetStreamMsg) -> str:
    """Return the id of a call; each message that shares its subject is a call of its own."""
    token = CallAddress(message.subject).token
    if shares_subject(message):
        where = message.metadata
        return f"{token}-{first_stored_ns(message, where.stream, where.timestamp_ns)}"
    return token


# --- parked messages ---------------------------------------------------------------------------


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
