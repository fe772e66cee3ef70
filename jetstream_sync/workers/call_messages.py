"""
Calls as they are stored and sent: their records, and the subjects, headers and payloads of their messages.

A record has the status of a call, its place in a flow, and the changes that follow each other.

Parked messages, also those of other handlers, wait in their stream as schedules, which the server publishes again.
Their headers continue what the server knows of a message: its id, its attempts and its time. Any client may have
sent or copied such headers: they count only with the name of a schedule of the stream, and under the subject for
which they were written. The server does not reserve `Nats-Scheduler`: a client that copies all headers of a parked
message under the same subject continues its id.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from datetime import datetime, timezone
from enum import Enum
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from .. import codec, errors
from ..converters import to_json
from ..records import record
from .errors import CallEndedError, NoCallError

if TYPE_CHECKING:
    from .. import JetStreamMsg, StoredMsg

#: Maximum size of the tracebacks in a record, in bytes.
_MAX_ERRORS: Final = 20_000
#: The keys of a record that are stored without a value as well.
_NULLS: Final = dict.fromkeys(
    ("return_value", "started_at", "finished_at", "last_attempted_at"), None
)
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


# --- records -----------------------------------------------------------------------------------


def utc_now() -> str:
    """Return the current time as text."""
    return datetime.now(timezone.utc).isoformat()


class CallStatus(str, Enum):
    """The state of a call."""

    READY = "READY"
    """It waits for its first or its next attempt."""
    RUNNING = "RUNNING"
    """An attempt has begun; its process may have been killed."""
    SUCCESSFUL = "SUCCESSFUL"
    """The function and the middleware have returned."""
    FAILED = "FAILED"
    """The last attempt has failed, or the message was given up."""
    CANCELLED = "CANCELLED"
    """It was cancelled before an attempt, or its process was killed for that."""
    EXPIRED = "EXPIRED"
    """The time to start an attempt was over."""

    # Otherwise str() differs between the supported Python versions.
    __str__ = str.__str__


class CallEvent(Enum):
    """An event that changes the status of a call."""

    BEGIN = "begin"
    """A worker is about to run the function."""
    EXPIRE = "expire"
    """A worker has received the call after the time by which it must start."""
    SUCCEED = "succeed"
    """The attempt has succeeded."""
    RETRY = "retry"
    """The attempt has failed, and another one follows."""
    SUSPEND = "suspend"
    """The function waits for a time, a signal or other calls; a message begins it again."""
    FAIL = "fail"
    """The last attempt has failed, or the message is given up."""
    CANCEL = "cancel"
    """The sender cancels the call."""
    TERMINATE = "terminate"
    """A worker has killed the process of the call, because the sender asked for it."""


_S = CallStatus
_E = CallEvent

TRANSITIONS: Final[dict[tuple[CallStatus, CallEvent], CallStatus]] = {
    (_S.READY, _E.BEGIN): _S.RUNNING,
    # The process of the former attempt was killed, or has lost its lease.
    (_S.RUNNING, _E.BEGIN): _S.RUNNING,
    (_S.READY, _E.EXPIRE): _S.EXPIRED,
    (_S.RUNNING, _E.EXPIRE): _S.EXPIRED,
    (_S.RUNNING, _E.SUCCEED): _S.SUCCESSFUL,
    (_S.RUNNING, _E.RETRY): _S.READY,
    (_S.RUNNING, _E.SUSPEND): _S.READY,
    (_S.RUNNING, _E.FAIL): _S.FAILED,
    # Delivered too often, or a call of an unknown task.
    (_S.READY, _E.FAIL): _S.FAILED,
    # A call that runs is only cancelled by the worker that can end it.
    (_S.READY, _E.CANCEL): _S.CANCELLED,
    (_S.READY, _E.TERMINATE): _S.CANCELLED,
    (_S.RUNNING, _E.TERMINATE): _S.CANCELLED,
}
#: The ends of a call, and those without a dead letter.
FINISHED: Final = frozenset(CallStatus) - {status for status, _ in TRANSITIONS}
DONE: Final = FINISHED - {CallStatus.FAILED}


def next_status(status: CallStatus | str, event: CallEvent) -> CallStatus | None:
    """Return the status after an event; ``None``: the event is not permitted."""
    # A status of a newer version is not one of the ends: such a call runs, and is not cancelled.
    known = status if isinstance(status, CallStatus) else CallStatus.RUNNING
    return TRANSITIONS.get((known, event))


@record
class CallFailure(codec.Record):
    """A failed attempt."""

    exception_class_path: str = ""
    """Module and name of the exception."""
    text: str = ""
    """Its text, which may be cut."""
    traceback: str = ""
    """The end of its traceback."""


@record
class FlowParent(codec.Record):
    """The call that waits for the end of a member of its group, and which member that is."""

    queue: str
    handler: str
    results: str
    id: str
    key: str
    """The step that waits."""
    index: int
    size: int
    """The number of members."""


@record
class FlowPlace(codec.Record):
    """The place of a call in a flow, and where it is sent: queue, task in its subject, and bucket."""

    queue: str
    handler: str
    results: str
    then: Sequence[CallRecord] = ()
    """The calls of a chain after this one."""
    before: int = 0
    """The number of calls of the chain before this one."""
    members: Sequence[CallRecord] = ()
    """The calls of the group whose callback this is."""
    on_error: str = "stop"
    parent: FlowParent | None = None
    steps: bool = False
    """Whether the call has keys in the bucket of steps, which are deleted when it has ended."""
    gathered: Mapping[str, int] | None = None
    """The number of calls for which it has waited, by step."""
    origin: str | None = None
    """The id of its first message."""
    began: Sequence[int] = ()
    """Time and sequence of the message of the last run."""
    waiting: str | None = None
    """The step for which the call waits without a message of its own."""

    def parked(self, wait: Any) -> FlowPlace:
        """Return the place of a call that waits, as a `Suspended` says."""
        own = {} if wait.members is None else {wait.key: len(wait.members)}
        return replace(self, waiting=wait.key, gathered={**(self.gathered or {}), **own})


@record
class CallRecord(codec.Record):
    """The record of a call; what the sender adds for itself is in ``extra``. Times are ISO 8601 texts."""

    id: str
    task: str
    status: CallStatus | str = CallStatus.READY
    args: Sequence[object] = ()
    kwargs: Mapping[str, object]
    errors: Sequence[CallFailure] = ()
    """The failed attempts; the oldest are left out when their tracebacks become too large."""
    worker_ids: Sequence[str] = ()
    """Host and process of the last attempts."""
    return_value: object | None = None
    enqueued_at: str
    started_at: str | None = None
    finished_at: str | None = None
    last_attempted_at: str | None = None
    interrupted: bool | None = None
    """Whether the attempt before the last one did not report its end."""
    eta: str | None = None
    """The time at which the call may start."""
    expires: float | None = None
    """The time after which it must not start, in seconds since 1970."""
    flow: FlowPlace | None = None
    """Its place in a flow."""

    @property
    def has_ended(self) -> bool:
        """Whether the status does not change any more."""
        return self.status in FINISHED

    @property
    def may_be_lost(self) -> bool:
        """Whether the message may not have been stored: no worker has received it."""
        return self.status == CallStatus.READY and self.last_attempted_at is None

    @property
    def starts_at(self) -> datetime | None:
        """The time at which the call may start; ``None``: at once. Raises `NoCallError` if the text is invalid."""
        try:
            return None if self.eta is None else datetime.fromisoformat(self.eta)
        except ValueError as error:
            raise NoCallError(f"call {self.id} has no time to start: {error}") from error

    def after(self, event: CallEvent, **changes: Any) -> CallRecord:
        """Return the record after an event, with other changes; raise `CallEndedError` if it is not permitted."""
        status = next_status(self.status, event)
        if status is None:
            raise CallEndedError(self)
        if status in FINISHED:
            changes["finished_at"] = utc_now()
        return _made({name: getattr(self, name) for name in _DEFAULTS} | changes, status)

    def after_failure(
        self, event: CallEvent, kind: type[BaseException], text: str, trace: str
    ) -> CallRecord:
        """Return the record after an attempt has failed; as `after`."""
        path = f"{kind.__module__}.{kind.__qualname__}"
        failure = CallFailure(
            exception_class_path=path, text=text[:500], traceback=trace[-_MAX_ERRORS:]
        )
        failures = [*self.errors, failure]
        while len(failures) > 1 and sum(len(item.traceback) for item in failures) > _MAX_ERRORS:
            del failures[0]
        return self.after(event, errors=failures)

    def to_json(self) -> bytes:
        """Return the record as it is stored and sent."""
        return to_json({**_NULLS, **codec.encode(self)})

    @classmethod
    def from_json(cls, call: str, data: bytes) -> CallRecord:
        """Return the record that is stored for a call; raise `NoCallError` if the data is not its record."""
        try:
            found = codec.decode(cls, codec.loads(data))
        except errors.InvalidResponseError as error:
            raise NoCallError(f"the bucket has other data for the call: {error}") from error
        if found.id != call:  # it would be stored as that call
            raise NoCallError(
                f"the bucket has other data for the call: that of call {found.id!r:.60}"
            )
        return found


def new_record(
    task: str,
    args: Sequence[object],
    kwargs: Mapping[str, object],
    *,
    task_id: str | None = None,
    **others: Any,
) -> CallRecord:
    """Return the record of a call that is ready to run; ``task_id`` is ``None``: it gets a new id."""
    call = os.urandom(16).hex() if task_id is None else task_id
    own = {"id": call, "task": task, "args": args, "kwargs": kwargs, "enqueued_at": utc_now()}
    return _made(own | others, CallStatus.READY)


#: The fields of a record, with their defaults.
_DEFAULTS: Final[dict[str, Any]] = {
    item.name: codec.Extra() if item.name == "extra" else item.default
    for item in fields(CallRecord)
}


def _made(values: Mapping[str, Any], status: CallStatus) -> CallRecord:
    """Return a record of values that fit; its constructor, which checks them, takes four times as long."""
    record = CallRecord.__new__(CallRecord)
    for name, default in _DEFAULTS.items():
        object.__setattr__(record, name, values.get(name, default))
    object.__setattr__(record, "status", status)
    return record


# --- messages ----------------------------------------------------------------------------------


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
