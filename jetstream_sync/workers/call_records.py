"""The record of a call: its status, its place in a flow, and the changes that follow each other."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from datetime import datetime, timezone
from enum import Enum
from typing import TYPE_CHECKING, Any, Final

from .. import codec, errors
from ..converters import to_json
from ..records import record
from .errors import CallEndedError, NoCallError

if TYPE_CHECKING:
    from .steps import Suspended

#: Maximum size of the tracebacks in a record, in bytes.
_MAX_ERRORS: Final = 20_000
#: The keys of a record that are stored without a value as well.
_NULLS: Final = dict.fromkeys(
    ("return_value", "started_at", "finished_at", "last_attempted_at"), None
)


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

    def parked(self, wait: Suspended) -> FlowPlace:
        """Return the place of a call that waits."""
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
