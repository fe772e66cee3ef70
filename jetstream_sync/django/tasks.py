"""
A backend for Django's tasks: a task is a message, which the worker runs, and its result is a key.

Django has tasks from version 6.0 on; the package ``django-tasks`` brings them to older ones.
"""

from __future__ import annotations

from dataclasses import replace
from inspect import signature
from typing import Any, Final

from django.utils.dateparse import parse_datetime
from django.utils.module_loading import import_string
from django.utils.timezone import is_naive, make_aware

from .. import errors
from ..converters import MISFITS, check_numbers
from ..options import check_returned
from ..workers import Context, Reject, WorkerCrashedError
from ..workers.arguments import encoded_value
from ..workers.call_messages import (
    CallRecord,
    CallStatus,
    FlowPlace,
    call_id,
    is_call_id,
    new_record,
)
from ..workers.calls import URGENT, CallBucket, CallQueue, NewCall, TaskState, sent_record
from ..workers.checks import check_option, check_token
from ..workers.errors import NoCallError, TaskArgumentsError, misfit
from ..workers.flows import MEMBERS, Call
from ..workers.options import own_names
from ..workers.source import WorkOptions
from .config import connection
from .workers import default_worker, discover

try:
    from django.tasks import TaskContext, TaskResult, TaskResultStatus
    from django.tasks.backends.base import BaseTaskBackend
    from django.tasks.base import Task, TaskError
    from django.tasks.exceptions import TaskException, TaskResultDoesNotExist
    from django.tasks.signals import task_enqueued, task_finished, task_started
except ImportError:  # older than 6.0
    from django_tasks import TaskContext, TaskResult, TaskResultStatus
    from django_tasks.backends.base import BaseTaskBackend
    from django_tasks.base import Task, TaskError
    from django_tasks.exceptions import TaskException, TaskResultDoesNotExist
    from django_tasks.signals import task_enqueued, task_finished, task_started

__all__ = ["JetStreamBackend", "call"]

#: The status in Django of calls that have ended in ways that it does not have.
_STATUSES: Final[dict[str, str]] = {CallStatus.CANCELLED: "FAILED", CallStatus.EXPIRED: "FAILED"}
_TIMES: Final = ("enqueued_at", "started_at", "finished_at", "last_attempted_at")


def _create(nc: Any, resources: Any) -> None:
    default_worker().queues.create(nc, resources)


class JetStreamBackend(BaseTaskBackend):
    """
    Runs the tasks of a Django project in workers.

    A task of the queue ``mail`` is a call in the queue ``mail`` of the worker of the project, which tasks of
    `jetstream_sync.django.Worker.task` may share. A task that raises has failed, and is not run again. A task
    whose worker is killed is run again. Tasks with ``run_after`` are kept by the server until then (ADR-51).
    A task with a priority above 0 is urgent; its queue needs ``urgent=True``, and there are no other levels.
    Coroutines are refused. The stream and the bucket are created if they do not exist, unless
    the setting ``JETSTREAM`` has ``ensure="none"``.

    Args:
        alias: the name of the backend.
        params: its entry in the setting ``TASKS``. Without ``QUEUES``, all tasks are in the queue ``default``.
            ``OPTIONS`` may have ``results``, the key-value bucket of the results, ``TASK_RESULTS`` by default,
            or ``None`` for no results; ``atomic`` as for `jetstream_sync.django.Worker.task`; options of a task,
            such as ``timeout``; and options of `jetstream_sync.workers.Worker.queue`, such as
            ``concurrency``, for queues that the project does not define. All queues have ``pool="threads"``.

    Raises:
        InvalidOptionError: the name of a queue is no token of a subject.

    """

    supports_defer: bool = True
    supports_get_result: bool = True
    supports_priority: bool = True

    def __init__(self, alias: str, params: dict[str, Any]) -> None:
        super().__init__(alias, params)
        options = dict(self.options)
        results = options.pop("results", "TASK_RESULTS")
        self._atomic: bool | str = options.pop("atomic", False)
        names = own_names(WorkOptions)
        self._work_options = {name: options.pop(name) for name in names if name in options}
        self._queue_options = options
        self._name = f"django-{alias}"
        self._states = None if results is None else CallBucket(connection, results, _create)
        self.supports_get_result = results is not None
        for queue in self.queues:
            check_token("QUEUES", queue)

    def _queue_of(self, name: str) -> CallQueue:
        discover()  # the project may define the queue
        name = name if self.queues else "default"
        found: CallQueue = default_worker().queues.find(name, self._queue_options).calls
        return found

    # --- enqueueing ---------------------------------------------------------------------------

    def enqueue(self, task: Any, args: Any, kwargs: Any) -> Any:
        """
        Store a task in the stream, and return its result, which is not ready yet.

        Raises:
            InvalidTask: the task is not valid for this backend.
            InvalidOptionError: it has a priority above 0, and its queue is not ``urgent``.
            TaskArgumentsError: an argument has no form in JSON, or is a number such as NaN.
            ServerTooOldError: it has ``run_after``, and the server is older than 2.12.
            BadRequestError: it has ``run_after``, and the stream does not allow schedules.
            Error: as `JetStream.publish`.

        """
        self.validate_task(task)
        run_after = task.run_after
        if run_after is not None and is_naive(run_after):
            run_after = make_aware(run_after)
        return self._send(self._new_record(task, args, kwargs, run_after), run_after)

    def _send(self, record: CallRecord, run_after: Any = None) -> Any:
        queue = self._queue_of(record.extra["queue"])
        # Without results, too: the record names the task.
        default_worker().queues.put(
            NewCall(queue, self._name, self._states, record, run_after, whole=True)
        )
        result = self._from_record(record)
        task_enqueued.send(type(self), task_result=result)
        return result

    def call(self, task: Any, args: Any, kwargs: Any) -> Call[Any]:
        """Return a call of a task that is not sent; see the function `call`."""
        self.validate_task(task)
        rule = "is not for calls of a flow"
        check_option("run_after", task.run_after, task.run_after is None, rule)
        rule = "is needed for calls of a flow"
        check_option("results", None, self._states is not None, rule)
        assert self._states is not None
        place = FlowPlace(
            queue=self._queue_of(task.queue_name).name,
            handler=self._name,
            results=self._states.bucket,
        )
        record = replace(self._new_record(task, args, kwargs), flow=place)
        return Call(
            lambda _: record,
            self._send,
            lambda result_id: self._from_record(replace(record, id=result_id)),
        )

    def _new_record(self, task: Any, args: Any, kwargs: Any, run_after: Any = None) -> CallRecord:
        """Return the record of a new call of a task."""
        try:
            check_numbers([args, kwargs])  # the worker would get None
        except MISFITS as error:
            text = f"task {task.module_path}: the arguments are not JSON: {error}"
            raise TaskArgumentsError(text) from error
        own = {
            "queue": task.queue_name,
            "run_after": None if run_after is None else run_after.isoformat(),
        }
        queue = self._queue_of(task.queue_name)
        if task.priority > 0:
            if queue.urgent is None:
                rule = f"above 0 needs urgent=True of the queue {queue.name!r}"
                raise errors.InvalidOptionError("priority", task.priority, rule)
            own["priority"] = URGENT
        return new_record(task.module_path, args, kwargs, extra=own)

    # --- results --------------------------------------------------------------------------------

    def get_result(self, result_id: str) -> Any:
        """
        Return the result of a task.

        Raises:
            TaskResultDoesNotExist: there is none, or it has expired.
            Error: as `KeyValue.get`.

        """
        if not self.supports_get_result:
            return super().get_result(result_id)
        try:
            assert self._states is not None
            return self._from_record(self._states.read(result_id))
        except (errors.KeyNotFoundError, errors.BucketNotFoundError, NoCallError) as error:
            raise TaskResultDoesNotExist(result_id) from error

    def cancel(self, result_id: str) -> bool:
        """
        Cancel a task that does not run yet; it has failed then.

        Returns:
            Whether the task was cancelled; ``False``: it runs, has ended, or is unknown.

        Raises:
            Error: as `jetstream_sync.workers.TaskResult.cancel`.

        """
        if not is_call_id(result_id):  # it may be from a URL
            return False
        if self._states is not None and not self._states.cancel(result_id):
            return False
        queues = [self._queue_of(name) for name in sorted(self.queues) or ["default"]]
        withdrawn = [queue.withdraw(self._name, result_id) for queue in queues]
        return any(withdrawn) or self._states is not None

    def _from_record(self, record: CallRecord) -> Any:
        """Return the result of a record; raise `TaskResultDoesNotExist` if it is none of this version."""
        try:
            return self._result_of(record)
        except (ImportError, TaskException, *MISFITS) as error:
            text = f"{record.id} is no result of this version: {error}"
            raise TaskResultDoesNotExist(text) from error

    def _result_of(self, record: CallRecord) -> Any:
        task = import_string(record.task)
        if not isinstance(task, Task):
            raise TaskResultDoesNotExist(f"{record.task} is not a task")
        queue, run_after = record.extra["queue"], record.extra["run_after"]
        run_after = None if run_after is None else parse_datetime(run_after)
        times = {name: getattr(record, name) for name in _TIMES}
        result = TaskResult(
            task=task.using(queue_name=queue, run_after=run_after, backend=self.alias),
            id=record.id,
            status=TaskResultStatus(_STATUSES.get(record.status, str(record.status))),
            args=list(record.args),
            kwargs=dict(record.kwargs),
            backend=self.alias,
            errors=[
                TaskError(exception_class_path=item.exception_class_path, traceback=item.traceback)
                for item in record.errors
            ],
            worker_ids=list(record.worker_ids),
            **{name: text and parse_datetime(text) for name, text in times.items()},
        )
        object.__setattr__(result, "_return_value", record.return_value)  # it is frozen for users
        return result

    # --- running --------------------------------------------------------------------------------

    def add_handlers(self, worker: Any) -> None:
        """Add a task for the tasks of this backend to each queue of a worker; without queues, to ``default``."""
        for queue in sorted(self.queues) or ["default"]:
            worker.queues.find(queue, self._queue_options)
            # A task that raises is not run again, only one whose process has crashed.
            options = {"retry_on": (WorkerCrashedError,), **self._work_options}
            options |= {"name": self._name, "function": self._run, "run_call": self._run}
            if self._states is not None:
                options["state"] = TaskState(
                    self._states, self._name, acks_failures=True, on_change=self._report
                )
            worker.set_atomic(worker.queues.add_work(queue, self._states, options), self._atomic)
        for source in worker.queues.in_use:
            ok = source.pool != "processes" or self._name not in source.tasks
            rule = (
                f"is not for queue {source.name}: its processes would not have the tasks of Django"
            )
            check_option("pool", source.pool, ok, rule)

    def _run(self, data: bytes, context: Context) -> None:
        """Run the task of a message; a task that raises has failed."""
        if context.call is not None:
            record = context.call[0]
        else:
            record = sent_record(self._name, call_id(context.message), data)
        try:
            result = self._from_record(record)
        except TaskResultDoesNotExist as error:
            raise misfit(Reject(f"the task cannot be found: {error}")) from error
        given = [TaskContext(task_result=result)] if result.task.takes_context else []
        if record.flow is not None and record.flow.members:
            flow = record.flow
            given.append(context.steps.outcomes(MEMBERS, flow.members, flow.on_error))
        try:
            signature(result.task.func).bind(*given, *result.args, **result.kwargs)
        except TypeError as error:
            raise misfit(Reject(f"the message is no call of the task: {error}")) from error
        value = result.task.call(*given, *result.args, **result.kwargs)
        check_returned(value, done=True)
        if context.call is not None:
            context.value = encoded_value(value, context.value_limit)

    def _report(self, record: CallRecord) -> None:
        """Send Django's signal for a change; in a failure, Django logs the current exception."""
        try:
            result = self._from_record(record)
        except TaskResultDoesNotExist:
            return
        signal = task_finished if result.is_finished else task_started
        signal.send(type(self), task_result=result)


def call(task: Any, /, *args: Any, **kwargs: Any) -> Call[Any]:
    """
    Return a call of a Django task that is not sent, for `jetstream_sync.workers.chain` and ``group``.

    The ``delay()`` of the flow returns the result of its last call, as ``enqueue()`` does. The backend of the task
    is a `JetStreamBackend` with ``results``.

    Raises:
        InvalidOptionError: the backend has no results, or the task has ``run_after``.

    """
    found: Call[Any] = task.get_backend().call(task, args, kwargs)
    return found
