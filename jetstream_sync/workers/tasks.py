"""
Tasks: functions whose calls are messages, and whose results are values of a key-value bucket.

Rules:

1. The subject of a call is ``<subject>.run.<queue>.<id>``, and ``<subject>.later.<queue>.<id>`` for the
   schedule of a later one. The payload is a JSON object, the record of the task.
2. With a bucket, the record is also the value of the key ``<id>``, and the bucket has the current one. It
   changes from ``READY`` either to ``RUNNING`` or to ``CANCELLED``, by compare and set.
3. A task that ends as ``SUCCESSFUL``, ``FAILED`` or ``CANCELLED`` is not run again.
"""

from __future__ import annotations

import importlib
import inspect
import os
import platform
import time
import traceback
import uuid
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime, timedelta, timezone
from functools import cache
from typing import TYPE_CHECKING, Any, Final

import orjson

from .. import (
    Error,
    InvalidArgumentError,
    InvalidOptionError,
    KeyValueConfig,
    RetentionPolicy,
    StreamConfig,
)
from .context import Context
from .handler import is_context
from .resources import Resource, Wanted, create_missing, has_schedules
from .retries import Reject
from .tracing import publishing

if TYPE_CHECKING:
    from .. import Connection, JetStreamMsg, KeyValue, KeyValueEntry
    from .handler import Handler

READY, RUNNING, CANCELLED = "READY", "RUNNING", "CANCELLED"
SUCCESSFUL, FAILED = "SUCCESSFUL", "FAILED"
_FINISHED: Final = (SUCCESSFUL, FAILED, CANCELLED)
#: How long a bucket that is created for results keeps them.
_RESULT_TTL: Final = timedelta(days=1)

Record = dict[str, Any]


class TaskArgumentsError(InvalidArgumentError, TypeError):
    """The arguments of a task do not fit its signature, or are not JSON; nothing was sent."""


class TaskError(Error):
    """
    A task has failed, or was cancelled.

    Attributes:
        status: ``"FAILED"`` or ``"CANCELLED"``.
        traceback: the traceback of its last attempt; empty: it was cancelled.

    """

    def __init__(self, text: str, status: str, traceback: str = "") -> None:
        super().__init__(text)
        self.status = status
        self.traceback = traceback

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.args[0], self.status, self.traceback)


@cache
def _pydantic() -> Any:
    """Return the module pydantic, from version 2 on; ``None``: it is not installed."""
    try:
        module = importlib.import_module("pydantic")
    except ImportError:
        return None
    return module if hasattr(module, "TypeAdapter") else None


def to_json(value: object) -> bytes:
    """Return JSON; also of dataclasses, times and UUIDs, and with pydantic of its models."""
    pydantic = _pydantic()

    def other(value: object) -> Any:
        if pydantic is None:
            raise TypeError
        return pydantic.TypeAdapter(Any).dump_python(value, mode="json")

    return orjson.dumps(value, default=other)


def check_token(option: str, value: object) -> None:
    """Check that a name can be a token of a subject, and a part of the name of a consumer."""
    if not isinstance(value, str) or not value or set(value) & set(".*>/\\ \t\r\n"):
        raise InvalidOptionError(option, value, "must be a token of a subject")


def utc_now() -> str:
    """Return the current time as text."""
    return datetime.now(timezone.utc).isoformat()


def new_record(task: str, args: Sequence[object], kwargs: dict[str, object]) -> Record:
    """Return the record of a task that is ready to run."""
    return {
        "id": uuid.uuid4().hex,
        "task": task,
        "status": READY,
        "args": list(args),
        "kwargs": kwargs,
        "errors": [],
        "worker_ids": [],
        "return_value": None,
        "enqueued_at": utc_now(),
        "started_at": None,
        "finished_at": None,
        "last_attempted_at": None,
    }


class _EndedError(Exception):
    """A task has ended, or is unknown."""


class TaskQueue:
    """
    The stream and the bucket of tasks, for `Worker.task` and for the backend for Django's tasks.

    Args:
        connection: returns the connection of this process for sending and for results.
        stream: the name of the stream.
        subject: the first token of its subjects.
        results: the name of the bucket; ``None``: there are no results.

    """

    def __init__(
        self,
        connection: Callable[[], Connection],
        *,
        stream: str,
        subject: str,
        results: str | None,
    ) -> None:
        check_token("subject", subject)
        self._connection = connection
        self.stream = stream
        self._subject = subject
        self._results = results
        self._exists = False
        # The bucket of a connection; a forked process has another one.
        self._opened: tuple[Connection, KeyValue] | None = None

    def resources(self, nc: Connection) -> list[Resource]:
        """Return the configs of the stream and the bucket, as far as the server supports them."""
        found: list[Resource] = [
            StreamConfig(
                name=self.stream,
                subjects=[f"{self._subject}.>"],
                retention=RetentionPolicy.WORK_QUEUE,
                allow_msg_schedules=has_schedules(nc) or None,
            )
        ]
        if self._results is not None:
            found.append(KeyValueConfig(bucket=self._results, ttl=_RESULT_TTL))
        return found

    def create(self, plan: Callable[[list[Resource]], Iterable[Wanted]]) -> None:
        """Create the stream and the bucket, as planned, unless they exist; once in a process."""
        if not self._exists:
            nc = self._connection()
            create_missing(nc.jetstream(), plan(self.resources(nc)))
            self._exists = True

    def filter_subject(self, queue: str) -> str:
        """Return the subject of the calls of a queue."""
        return f"{self._subject}.run.{queue}.*"

    def send(self, queue: str, record: Record, at: datetime | None = None) -> None:
        """Store the record of a task, and its message; ``at`` a time, if one is given."""
        js = self._connection().jetstream()
        data = to_json(record)
        if self._results is not None:
            self._bucket().put(record["id"], data)
        target = f"{self._subject}.run.{queue}.{record['id']}"
        if at is None:
            with publishing(target, data, None, record["id"]) as headers:
                js.publish(target, data, headers=headers, msg_id=record["id"])
        else:
            later = f"{self._subject}.later.{queue}.{record['id']}"
            js.schedule(later, data, target=target, at=at, msg_id=record["id"])

    def _bucket(self) -> KeyValue:
        if self._results is None:
            raise InvalidOptionError("results", None, "the task has no bucket for results")
        nc = self._connection()
        if self._opened is None or self._opened[0] is not nc:
            self._opened = nc, nc.jetstream().key_value(self._results)
        return self._opened[1]

    def read(self, task_id: str) -> Record:
        """Return the current record; raises as `KeyValue.get`."""
        found: Record = orjson.loads(self._bucket().get(task_id, consistent=True).value)
        return found

    def wait(self, task_id: str, timeout: float | None) -> Record:
        """Return the record of a task that has ended."""
        deadline = None if timeout is None else time.monotonic() + timeout
        with self._bucket().watch(task_id, ignore_deletes=True) as watch:
            while True:
                left = None if deadline is None else max(0.0, deadline - time.monotonic())
                record: Record = orjson.loads(watch.next(left).value)
                if record["status"] in _FINISHED:
                    return record

    def cancel(self, task_id: str) -> bool:
        """Have a task not run that is not running; return whether it is cancelled."""
        if self._results is not None:
            try:
                self._change(task_id, None, _cancel)
            except _EndedError:
                return False
        stream = self._connection().jetstream().get_stream(self.stream)
        deleted = stream.purge(f"{self._subject}.*.*.{task_id}")
        return deleted > 0 or self._results is not None

    def give_up(self, message: JetStreamMsg, reason: str) -> Record | None:
        """Record that a task has failed whose message is given up; return ``None`` if it has ended before."""
        if self._results is None:
            return None

        def fail(record: Record) -> None:
            _add_error(record, TaskError, f"the message was given up: {reason}")
            record["status"] = FAILED
            record["finished_at"] = utc_now()

        try:
            return self._change(_task_id(message), None, fail)
        except _EndedError:
            return None

    def _change(
        self, task_id: str, sent: Record | None, change: Callable[[Record], object]
    ) -> Record:
        """Change the record of a task, and return it; raises `_EndedError`."""
        record = sent

        def changed(entry: KeyValueEntry | None) -> bytes:
            nonlocal record
            record = sent if entry is None else orjson.loads(entry.value)
            if record is None or record["status"] in _FINISHED:
                raise _EndedError
            change(record)
            return to_json(record)

        if self._results is not None:
            self._bucket().modify(task_id, changed)
        elif record is not None:
            change(record)
        assert record is not None
        return record

    def run(
        self,
        sent: Record,
        call: Callable[[Record], object],
        *,
        is_final: Callable[[BaseException], bool],
        on_change: Callable[[Record], object] = lambda _record: None,
    ) -> None:
        """
        Run a task unless it has ended, and record the outcome.

        Args:
            sent: the record in the message.
            call: called with the current record; returns the result.
            is_final: whether the task is not run again after an error.
            on_change: called with the record when the task begins and when it ends.

        """
        try:
            record = self._change(sent["id"], sent, _begin)
        except _EndedError:
            return
        on_change(record)
        try:
            value = call(record)
            record["return_value"] = orjson.loads(to_json(value)) if self._results else None
        except BaseException as error:
            _add_error(record, type(error), "".join(traceback.format_exception(error)))
            self._end(record, FAILED if is_final(error) else READY)
            on_change(record)
            raise
        self._end(record, SUCCESSFUL)
        on_change(record)

    def _end(self, record: Record, status: str) -> None:
        record["status"] = status
        if status in _FINISHED:
            record["finished_at"] = utc_now()
        if self._results is not None:
            self._bucket().put(record["id"], to_json(record))


def _add_error(record: Record, kind: type[BaseException], text: str) -> None:
    path = f"{kind.__module__}.{kind.__qualname__}"
    record["errors"].append({"exception_class_path": path, "traceback": text})


def _task_id(message: JetStreamMsg) -> str:
    return message.subject.rpartition(".")[2]


def _begin(record: Record) -> None:
    now = utc_now()
    record["status"] = RUNNING
    record["started_at"] = record["started_at"] or now
    record["last_attempted_at"] = now
    record["worker_ids"].append(f"{platform.node()}-{os.getpid()}")


def _cancel(record: Record) -> None:
    if record["status"] != READY:
        raise _EndedError
    record["status"] = CANCELLED
    record["finished_at"] = utc_now()


class TaskResult:
    """
    A call of a task; `Task.delay` and `Task.result_of` return it.

    Args:
        queue: where the task is.
        task_id: the id of the call.

    """

    def __init__(self, queue: TaskQueue, task_id: str) -> None:
        self._queue = queue
        #: The id of the call.
        self.id: str = task_id

    @property
    def status(self) -> str:
        """
        The current status: ``READY``, ``RUNNING``, ``SUCCESSFUL``, ``FAILED`` or ``CANCELLED``.

        A task that waits for its next attempt is ``READY``, or ``RUNNING`` if its worker was killed. One
        whose message becomes a dead letter is ``FAILED``.

        Raises:
            InvalidOptionError: the task has no ``results``.
            KeyNotFoundError: there is no such call, or its result has expired.
            Error: otherwise as `KeyValue.get`.

        """
        return str(self._queue.read(self.id)["status"])

    def get(self, timeout: float | None = None) -> Any:
        """
        Wait until the task has ended, and return the return value of the function, as JSON has it.

        Args:
            timeout: seconds to wait; ``None``: without limit.

        Raises:
            TaskError: the task has failed, or was cancelled.
            TimeoutError: it has not ended in time, or there is no such call.
            InvalidOptionError: the task has no ``results``.
            Error: otherwise as `KeyValue.watch`.

        """
        record = self._queue.wait(self.id, timeout)
        if record["status"] == SUCCESSFUL:
            return record["return_value"]
        last = record["errors"][-1] if record["errors"] else {}
        why = last.get("exception_class_path", "")
        text = f"task {record['task']} {self.id} is {record['status'].lower()}"
        raise TaskError(
            f"{text}: {why}" if why else text, record["status"], last.get("traceback", "")
        )

    def cancel(self) -> bool:
        """
        Delete the message of a task that does not run yet, or that waits for its next attempt.

        With ``results``, no worker starts the task afterwards. Without, a worker that has received the
        message already runs it.

        Returns:
            Whether the task was cancelled; ``False``: it runs, has ended, or is unknown.

        Raises:
            Error: as `KeyValue.modify` and `Stream.purge`.

        """
        return self._queue.cancel(self.id)

    def __repr__(self) -> str:
        return f"<TaskResult {self.id}>"


class _Arguments:
    """The parameters of a task; `Context` is not one of its message."""

    def __init__(self, function: Callable[..., object]) -> None:
        try:
            self._signature = inspect.signature(function, eval_str=True)
        except NameError:  # the annotations do not exist at run time, and are not checked
            self._signature = inspect.signature(function)
        parameters = self._signature.parameters.values()
        self._context = [each.name for each in parameters if is_context(each.annotation)]
        self._sent = self._signature.replace(
            parameters=[each for each in parameters if each.name not in self._context]
        )
        pydantic = _pydantic()
        self._adapters = {
            each.name: pydantic.TypeAdapter(each.annotation)
            for each in parameters
            if pydantic is not None
            and each.name not in self._context
            and each.annotation is not each.empty
            and not isinstance(each.annotation, str)
        }

    def bind(self, record: Record, context: Context | None = None) -> inspect.BoundArguments:
        """Return the arguments of a call; raises `TaskArgumentsError` if they do not fit."""
        where = f"task {record['task']}"
        try:
            found = self._sent.bind(*record["args"], **record["kwargs"]).arguments
            for name in found.keys() & self._adapters.keys():
                where = f"task {record['task']}, argument {name!r}"
                found[name] = self._validated(name, found[name])
        except (TypeError, ValueError) as error:
            raise TaskArgumentsError(f"{where}: {error}") from error
        for name in self._context:
            found[name] = context
        ordered = {name: found[name] for name in self._signature.parameters if name in found}
        return inspect.BoundArguments(self._signature, ordered)

    def _validated(self, name: str, value: Any) -> Any:
        adapter = self._adapters[name]
        kind = self._signature.parameters[name].kind
        if kind is inspect.Parameter.VAR_POSITIONAL:
            return tuple(adapter.validate_python(each) for each in value)
        if kind is inspect.Parameter.VAR_KEYWORD:
            return {key: adapter.validate_python(each) for key, each in value.items()}
        return adapter.validate_python(value)


class Task:
    """
    A function whose calls are messages for workers; `Worker.task` returns it.

    Calling it calls the function itself, at once.
    """

    #: The handler that runs the task.
    handler: Handler

    def __init__(
        self,
        function: Callable[..., Any],
        name: str,
        queue: TaskQueue,
        prepare: Callable[[], object],
    ) -> None:
        self.function = function
        #: The name, which is a token of the subject.
        self.name: str = name
        self.queue = queue
        self._prepare = prepare
        self._arguments = _Arguments(function)

    def delay(self, *args: Any, **kwargs: Any) -> TaskResult:
        """
        Have a worker call the function; return as soon as the stream has the message.

        The arguments are sent as JSON. With pydantic installed, annotated ones are validated, here and in
        the worker, which gets the objects of the annotations.

        Raises:
            TaskArgumentsError: the arguments do not fit the function, or are not JSON; nothing was sent.
            Error: as `JetStream.publish`, and with ``results`` as `KeyValue.put`.

        """
        return self._send(None, args, kwargs)

    #: As `delay`.
    send = delay

    def send_at(self, at: datetime, *args: Any, **kwargs: Any) -> TaskResult:
        """
        Have a worker call the function at a time; the server keeps the message until then.

        Args:
            at: the time, with a time zone.
            *args: as for `delay`.
            **kwargs: as for `delay`.

        Raises:
            TaskArgumentsError: as `delay`.
            ServerTooOldError: the server is older than 2.12.
            Error: as `JetStream.schedule`, and with ``results`` as `KeyValue.put`.

        """
        return self._send(at, args, kwargs)

    def result_of(self, task_id: str) -> TaskResult:
        """Return the call with this id, which another process may have sent."""
        return TaskResult(self.queue, task_id)

    def _send(
        self, at: datetime | None, args: Sequence[object], kwargs: dict[str, object]
    ) -> TaskResult:
        record = new_record(self.name, args, kwargs)
        try:
            received = orjson.loads(to_json(record))
        except TypeError as error:
            raise TaskArgumentsError(f"task {self.name}: {error}") from error
        self._arguments.bind(received)
        self._prepare()
        self.queue.send(self.name, record, at)
        return TaskResult(self.queue, record["id"])

    def run(self, data: bytes, context: Context) -> None:
        """Run the function for a message."""
        try:
            sent = orjson.loads(data)
            record = {**new_record(self.name, (), {}), "id": _task_id(context.message), **sent}
            bound = self._arguments.bind(record, context)
        except (TypeError, ValueError) as error:
            raise Reject(f"the message is no call of the task: {error}") from error

        def is_final(error: BaseException) -> bool:
            handler = self.handler
            return handler.rejects(error) or context.attempt >= handler.retry.attempts

        self.queue.run(
            record, lambda _record: self.function(*bound.args, **bound.kwargs), is_final=is_final
        )

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function."""
        return self.function(*args, **kwargs)

    def __repr__(self) -> str:
        return f"<Task {self.name}>"
