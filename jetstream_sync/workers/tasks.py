"""
Tasks: functions whose calls are messages of a queue.

A `Task` sends calls, and runs the function for them. How calls are stored,
and their states, are in `calls`.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from typing import (
    TYPE_CHECKING,
    Any,
    Concatenate,
    Final,
    Generic,
    NoReturn,
    ParamSpec,
    Protocol,
    TypeVar,
    cast,
    overload,
)

from .. import errors
from ..exact import exact
from ..options import check_returned
from .arguments import Arguments, encoded_value
from .call_messages import CallFailure, CallRecord, CallStatus, FlowPlace, is_call_id, new_record
from .calls import URGENT, CallBucket, CallQueue, CallStates, SentCall, has_expired, sent_call
from .checks import check_option, check_time, is_number
from .errors import Reject, TaskError, misfit
from .flows import MEMBERS, Call
from .logs import log
from .options import hint_of, refuse_unknown
from .running import terminate as end_call

if TYPE_CHECKING:
    from .context import CallProgress, Context
    from .source import Work
    from .unique import UniqueCalls

P = ParamSpec("P")
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)

#: The options of a call, see `Task.apply_async`.
_CALL_OPTIONS: Final = ("args", "kwargs", "countdown", "eta", "expires", "priority", "task_id")


class TaskOwner(Protocol):
    """The queues of the worker of a task."""

    def start(self, task: Task[P, R], record: CallRecord, at: datetime | None) -> TaskResult[R]:
        """Send a call, or run it at once; see `Worker.eager`."""

    def result(self, task: Task[P, R], call: str) -> TaskResult[R]:
        """Return the call of a task with an id."""


class TaskResult(Generic[R_co]):
    """
    A call of a task; `Task.delay`, `Task.apply_async` and `Task.result_of` return it.

    Args:
        task: the task.
        task_id: the id of the call.
        store: where its state is; ``None``: the task has no results.

    """

    def __init__(self, task: Task[Any, R_co], task_id: str, store: CallStates | None) -> None:
        self._task = task
        self._store = store
        #: The id of the call.
        self.id: str = task_id

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> NoReturn:
            raise _no_attribute(self, "result", name)

    def _states(self, *, prepared: bool = True) -> CallStates:
        if self._store is None:
            rule = "the task has no bucket for results"
            raise errors.InvalidOptionError("results", None, rule)
        if prepared and self._store.has_messages:
            self._task.queue.prepare()
        return self._store

    def _sent(self) -> CallRecord | None:
        """Return the record in the message of a call that waits, if any."""
        if self._store is None or not self._store.has_messages:
            return None
        return self._task.queue.find(self._task.name, self.id)

    @property
    def status(self) -> str:
        """
        The current status: ``READY``, ``RUNNING``, ``SUCCESSFUL``, ``FAILED``, ``CANCELLED`` or ``EXPIRED``.

        A call that waits for its next attempt is ``READY``, or ``RUNNING`` if its worker was killed.

        Raises:
            InvalidOptionError: the task has no ``results``.
            KeyNotFoundError: there is no such call, or its result has expired.
            Error: otherwise as `KeyValue.get`.

        """
        try:
            return str(self._states().read(self.id).status)
        except errors.KeyNotFoundError:
            # Calls of an outbox have no record before they start, and one may expire before that.
            if self._sent() is None:
                raise
            return str(CallStatus.READY)

    @property
    def progress(self) -> CallProgress | None:
        """
        How far the last run is, as it has reported with `Context.progress`; ``None``: it has reported nothing.

        Raises:
            InvalidOptionError: the task has no ``results``.
            Error: as `KeyValue.get`.

        """
        return self._states().progress(self.id)

    def get(self, timeout: float | timedelta | None = None) -> R_co:
        """
        Wait until the call has ended, and return the return value of the function, as JSON has it.

        Args:
            timeout: seconds to wait; ``None``: without limit; 0: do not wait for the end of the call. Reading
                whether it has ended may take 0.25 seconds more.

        Raises:
            TaskError: the call has failed, was cancelled, or has expired.
            TimeoutError: it has not ended in time, or there is no such call.
            InvalidOptionError: the task has no ``results``, or the timeout is not a time.
            Error: otherwise as `KeyValue.watch`.

        """
        if isinstance(timeout, timedelta):
            timeout = timeout.total_seconds()
        ok = timeout is None or (is_number(timeout) and not math.isnan(timeout))
        check_option("timeout", timeout, ok, "must be a number of seconds or a timedelta")
        # The stream is not needed, and its requests would not know the timeout.
        record = self._states(prepared=False).wait(self.id, timeout)
        if record.status == CallStatus.SUCCESSFUL:
            return cast("R_co", record.return_value)
        raise error_of(record)

    def cancel(self, *, terminate: bool = False) -> bool:
        """
        Delete the message of a call that does not run yet, or that waits for its next attempt.

        With ``results``, no worker starts the call afterwards. If it is the last one of a flow, the calls of the flow
        that have not started are cancelled; so are the members for which a call waits. Without, a worker that has received the
        message already runs it.

        Args:
            terminate: whether a call that runs is ended, too. It needs ``results``, a queue with
                ``pool="processes"``, whose process is killed, and a worker with ``report``.

        Returns:
            Whether the call was cancelled, without ``results`` whether its message was deleted; ``False``: it runs,
            has ended, or is unknown.

        Raises:
            InvalidOptionError: ``terminate``, and the task has no ``results``.
            Error: as `KeyValue.modify` and `Stream.purge`.

        """
        if terminate:
            self._states()
        unique = self._task.unique
        waiting = None if unique is None else self._task.queue.find(self._task.name, self.id)
        cancelled = self._cancel(terminate=terminate)
        if cancelled and unique is not None and waiting is not None:
            unique.release(self.id, waiting.args, waiting.kwargs)
        return cancelled

    def _cancel(self, *, terminate: bool) -> bool:
        queue, name = self._task.queue, self._task.name
        store = self._store
        if store is not None and not store.cancel(self.id):
            sent = self._sent()
            if sent is None or not store.cancel(self.id, sent):
                if store.flows.cancel(store, self.id):  # it has not begun, and will not
                    return True
                levels = (queue, queue.urgent) if queue.urgent is not None else (queue,)
                places = [level.address(name, self.id) for level in levels]
                return terminate and any(end_call(queue.connection(), item.now) for item in places)
        if store is not None:
            store.flows.cancel(store, self.id)
            if not store.has_messages:
                return True
        withdrawn = queue.withdraw(name, self.id)
        return withdrawn or store is not None

    def signal(self, name: str, data: object = None) -> bool:
        """
        Give a call a signal, for which its function waits with `Context.wait`, now or later.

        Repeat it after an error: it may have been stored, and the call may still wait.

        Args:
            name: the name of the signal.
            data: its data, which JSON must have.

        Returns:
            Whether the call gets this data; ``False``: it had a signal with this name before, the time to wait is
            over, or the call has ended, perhaps with this signal.

        Raises:
            InvalidOptionError: the task has no ``results``, or the name is none.
            Error: as `KeyValue.create`, and as `Task.delay`.

        """
        store = self._states()
        is_its: bool = store.flows.signal(store, self.id, name, data)
        return is_its

    def __repr__(self) -> str:
        return f"<TaskResult {self.id}>"


def error_of(record: CallRecord) -> TaskError:
    """Return the error of a call that has ended without success."""
    last = record.errors[-1] if record.errors else CallFailure()
    text = f"task {record.task} {record.id} is {record.status.lower()}"
    if last.exception_class_path:
        text += f": {last.exception_class_path}"
        text += f": {last.text}" if last.text else ""
    return TaskError(text, str(record.status), last.traceback)


def _no_attribute(owner: object, place: str, name: str) -> AttributeError:
    text = f"{type(owner).__name__!r} object has no attribute {name!r}"
    hint = hint_of(place, name)
    if hint is not None:
        text += f": use {hint}"
    return AttributeError(text, name=name, obj=owner)


class Task(Generic[P, R]):
    """
    A function whose calls are messages for workers; `Worker.task` returns it.

    Calling it calls the function itself, at once.
    """

    #: What runs its calls, with the options of the task.
    work: Work
    #: The keys of its calls; ``None``: it is not unique.
    unique: UniqueCalls | None = None

    def __init__(
        self,
        function: Callable[..., R],
        name: str,
        queue: CallQueue,
        states: CallBucket | None,
        owner: TaskOwner,
    ) -> None:
        self.function = function
        #: The name, which is a token of the subject.
        self.name: str = name
        self.queue = queue
        self.states = states
        self._arguments = Arguments(function)
        self._owner = owner
        self.__doc__ = function.__doc__
        self.__wrapped__ = function

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> NoReturn:
            raise _no_attribute(self, "task object", name)

    def delay(self, *args: P.args, **kwargs: P.kwargs) -> TaskResult[R]:
        """
        Have a worker call the function; return as soon as the stream has the message.

        The arguments are sent as JSON. Annotated ones are checked, here and in the worker, which gets the
        objects of the annotations: times, UUIDs, decimals, paths, enums, dataclasses, named tuples and pydantic
        models, also in lists, tuples and mappings.

        Raises:
            TaskArgumentsError: the arguments do not fit the function, are not JSON, or would not arrive as
                they are; nothing was sent.
            Error: as `JetStream.publish`, and with ``results`` as `KeyValue.create`. After a time-out or a
                lost connection the call may be stored.

        """
        return self.apply_async(args, kwargs)

    def apply_async(
        self,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        *,
        countdown: float | timedelta | None = None,
        eta: datetime | None = None,
        expires: float | timedelta | datetime | None = None,
        task_id: str | None = None,
        priority: str = "normal",
        **unknown: object,
    ) -> TaskResult[R]:
        """
        Have a worker call the function, with options of the call; otherwise as `delay`.

        Args:
            args: the positional arguments.
            kwargs: the keyword arguments.
            countdown: seconds, or a timedelta, after which the call may start; the server keeps it until then.
            eta: the time at which it may start, with a time zone.
            expires: the time after which it does not start any more, by the clock of the server, or the seconds or
                a timedelta from now, by that of this computer. Its status is then ``EXPIRED``.
            task_id: the id, which may contain `Context.id` of the run that sends the call; a second call with it is not stored, and its first one is returned: within the
                ``duplicate_window`` of the stream, and with ``results`` as long as the bucket keeps them.
            priority: ``"urgent"``: it starts before all calls of the queue that do not run yet; for a queue with
                ``urgent=True``.
            **unknown: other options of Celery raise an error that names what they are called here.

        Raises:
            TaskArgumentsError: as `delay`.
            InvalidOptionError: an option is unknown or out of range, or excludes another one.
            ServerTooOldError: there is a time to start, and the server is older than 2.12.
            Error: as `delay`, and as `JetStream.schedule`.

        """
        refuse_unknown("call", unknown, _CALL_OPTIONS)
        times = (countdown, eta, expires)
        return self.start(
            *self.record(args, kwargs or {}, *times, task_id=task_id, priority=priority)
        )

    def result_of(self, task_id: str) -> TaskResult[R]:
        """
        Return the call with this id, which another process may have sent.

        Raises:
            InvalidOptionError: the id is too long, or has other characters than those of a call.

        """
        return self._owner.result(self, _checked_id(task_id))

    def call(self, *args: Any, **kwargs: Any) -> Call[TaskResult[R]]:
        """
        Return a call that is not sent, for `chain`, `group` and `Context.gather`; the task needs ``results``.

        The arguments are those of `delay`. In a chain, the value of the call before is the first argument, before
        these; in the callback of a group, the list of values.

        Raises:
            InvalidOptionError: the task has no ``results``.

        """
        rule = "is needed for calls of a flow"
        check_option("results", None, self.states is not None, rule)
        check_option("unique", True, self.unique is None, "is not for calls of a flow")
        return Call(
            lambda gets_value: self._planned(args, kwargs, gets_value=gets_value),
            lambda record: self.start(record, None),
            self.result_of,
        )

    # --- sending --------------------------------------------------------------------------------

    def record(
        self,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        countdown: float | timedelta | None = None,
        eta: datetime | None = None,
        expires: float | timedelta | datetime | None = None,
        *,
        task_id: str | None = None,
        priority: str = "normal",
    ) -> tuple[CallRecord, datetime | None]:
        """
        Return the record of a new call, and when it may start; see `apply_async`.

        :meta private:
        """
        now = datetime.now(timezone.utc)
        at = check_time("eta", eta)
        if countdown is not None:
            at = _later("countdown", countdown, now, ok=at is None)
        if task_id is not None:
            task_id = _checked_id(task_id)
        ok, rule = priority in ("normal", URGENT), "must be 'normal' or 'urgent'"
        if priority == URGENT and self.queue.urgent is None:
            ok, rule = False, f"needs worker.queue({self.queue.name!r}, urgent=True)"
        check_option("priority", priority, ok, rule)
        received = self._arguments.check(self.name, args, kwargs)
        end: datetime | None = None
        if expires is not None:
            end = check_time("expires", expires if isinstance(expires, datetime) else None)
            end = end or _later("expires", expires, now, ok=True)
        record = new_record(
            self.name,
            received["args"],
            received["kwargs"],
            task_id=task_id,
            eta=None if at is None else at.isoformat(),
            expires=None if end is None else end.timestamp(),
            extra={"priority": URGENT} if priority == URGENT else {},
        )
        return record, at

    def _planned(
        self, args: Sequence[Any], kwargs: Mapping[str, Any], *, gets_value: bool
    ) -> CallRecord:
        """Return the record of a call of a flow."""
        if not gets_value:
            record, _ = self.record(args, kwargs)
        else:
            found = self._arguments.check(self.name, args, kwargs, follows=True)
            record = new_record(self.name, found["args"], found["kwargs"])
        assert self.states is not None
        return replace(
            record,
            flow=FlowPlace(
                queue=self.queue.name,
                handler=self.name,
                results=self.states.bucket,
                steps=self.work.state.has_steps,
            ),
        )

    def start(self, record: CallRecord, at: datetime | None) -> TaskResult[R]:
        """
        Send a call, or run it at once; see `Worker.eager`.

        :meta private:
        """
        return self._owner.start(self, record, at)

    # --- running --------------------------------------------------------------------------------

    @property
    def run_payload(self) -> Callable[[bytes], object] | None:
        """
        Return what runs a call without its context; ``None``: it needs that, or has a stored result.

        :meta private:
        """
        return self._run_payload if self._arguments.is_simple and self.states is None else None

    def _run_payload(self, data: bytes) -> object:
        call = sent_call(data)
        return None if self._has_expired(call) else self._run(call, None)

    def run_call(self, data: bytes, context: Context) -> object:
        """
        Run the call in a message.

        :meta private:
        """
        # Not the arguments of the record: the function may change them.
        call = sent_call(data)
        flow = call.flow
        if self.states is not None:  # their record shows whether the call has expired
            if flow is not None and flow.members:
                values = context.steps.outcomes(MEMBERS, flow.members, flow.on_error)
                call = call._replace(args=[values, *call.args])
            value = self._run(call, context)
            context.check_suspended()
            context.value = encoded_value(value, context.value_limit)
            return None
        return None if self._has_expired(call) else self._run(call, context)

    def _has_expired(self, call: SentCall) -> bool:
        expired = has_expired(call.expires)
        if expired:
            log.info("a call of task %s has expired", self.name)
        return expired

    def _run(self, call: SentCall, context: Context | None) -> R:
        args, kwargs = call.args, call.kwargs
        try:
            is_plain = self._arguments.is_simple and self._arguments.are_plain(args, kwargs)
        except (TypeError, AttributeError):
            is_plain = False
        if not is_plain:
            bound = self._bound(call, context)
            args, kwargs = bound.args, bound.kwargs
        try:
            result = self.function(*args, **kwargs)
        except TypeError as error:
            trace = error.__traceback__
            if trace is not None and trace.tb_next is None:  # raised by the call itself
                self._bound(call, context)
            raise
        check_returned(result, done=True)
        return result

    def _bound(self, call: SentCall, context: Context | None) -> inspect.BoundArguments:
        try:
            return self._arguments.bind(self.name, call.args, call.kwargs, context)
        except (TypeError, ValueError) as error:
            raise misfit(Reject(f"the message is no call of the task: {error}")) from error

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call the function."""
        return self.function(*args, **kwargs)

    def __repr__(self) -> str:
        return f"<Task {self.name}>"


class TaskDecorator(Protocol):
    """Makes a function a task; `Worker.task` returns it."""

    @overload
    def __call__(self, function: Callable[Concatenate[Context, P], R], /) -> Task[P, R]: ...

    @overload
    def __call__(self, function: Callable[P, R], /) -> Task[P, R]: ...


def _later(option: str, seconds: object, now: datetime, *, ok: bool) -> datetime:
    """Return the time after some seconds."""
    if isinstance(seconds, timedelta):
        seconds = seconds.total_seconds()
    try:
        if ok and is_number(seconds) and (option == "expires" or cast("float", seconds) >= 0):
            return now + timedelta(seconds=cast("float", seconds))
    except (OverflowError, ValueError):
        pass  # not a number, or beyond the year 9999
    rule = "must be a number of seconds or a timedelta, 0 or above, and excludes 'eta'"
    if option == "expires":
        rule = "must be a number of seconds, a timedelta, or a datetime with a time zone"
    raise errors.InvalidOptionError(option, seconds, rule)


def _checked_id(task_id: str) -> str:
    task_id = exact(task_id)
    rule = "must have 1 to 200 letters, digits, '-', '_', '=' and '/'"
    check_option("task_id", task_id, is_call_id(task_id), rule)
    return task_id
