"""
A backend for Django's tasks: a task is a message, which the worker runs, and its result is a key.

Django has tasks from version 6.0 on; the package ``django-tasks`` brings them to older ones.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from django.conf import settings
from django.utils.dateparse import parse_datetime
from django.utils.module_loading import import_string
from django.utils.timezone import is_naive, make_aware

from .. import BucketNotFoundError, InvalidArgumentError, JetStreamMsg, KeyNotFoundError
from ..workers import Reject, Worker
from ..workers.resources import resources_of
from ..workers.tasks import CANCELLED, FAILED, TaskQueue, check_token, new_record
from .config import Config
from .publishing import connection

try:
    from django.tasks import TaskContext, TaskResult, TaskResultStatus
    from django.tasks.backends.base import BaseTaskBackend
    from django.tasks.base import Task, TaskError
    from django.tasks.exceptions import TaskResultDoesNotExist
    from django.tasks.signals import task_enqueued, task_finished, task_started
except ImportError:  # older than 6.0
    from django_tasks import TaskContext, TaskResult, TaskResultStatus
    from django_tasks.backends.base import BaseTaskBackend
    from django_tasks.base import Task, TaskError
    from django_tasks.exceptions import TaskResultDoesNotExist
    from django_tasks.signals import task_enqueued, task_finished, task_started

__all__ = ["JetStreamBackend", "add_handlers"]

_TIMES: Final = ("enqueued_at", "started_at", "finished_at", "last_attempted_at")
_PATH: Final = "jetstream_sync.django.tasks.JetStreamBackend"


class JetStreamBackend(BaseTaskBackend):
    """
    Runs the tasks of a Django project in workers.

    A task of the queue ``mail`` is a message with a subject below ``tasks.run.mail``. A task that raises has
    failed, and is not run again. A task whose worker is killed is run again. Tasks with ``run_after`` are
    kept by the server until then (ADR-51). Priorities and coroutines are refused. The stream and the bucket
    are created if they do not exist, unless the setting ``JETSTREAM`` has ``ensure="none"``.

    Args:
        alias: the name of the backend.
        params: its entry in the setting ``TASKS``. ``OPTIONS`` may have ``stream``, ``TASKS`` by default;
            ``subject``, the first token of its subjects, ``tasks`` by default; ``results``, the key-value
            bucket of the results, ``TASK_RESULTS`` by default, or ``None`` for no results; and options of
            `Worker.handler`.

    Raises:
        InvalidOptionError: the name of a queue is no token of a subject.

    """

    supports_defer: bool = True
    supports_get_result: bool = True

    def __init__(self, alias: str, params: dict[str, Any]) -> None:
        super().__init__(alias, params)
        options = dict(self.options)
        self._subject: str = options.pop("subject", "tasks")
        results = options.pop("results", "TASK_RESULTS")
        self._tasks = TaskQueue(
            connection,
            stream=options.pop("stream", "TASKS"),
            subject=self._subject,
            results=results,
        )
        self._handler_options = options
        self.supports_get_result = results is not None
        for queue in self.queues:
            check_token("QUEUES", queue)

    # --- enqueueing ---------------------------------------------------------------------------

    def enqueue(self, task: Any, args: Any, kwargs: Any) -> Any:
        """
        Store a task in the stream, and return its result, which is not ready yet.

        Raises:
            InvalidTask: the task is not valid for this backend.
            ServerTooOldError: it has ``run_after``, and the server is older than 2.12.
            BadRequestError: it has ``run_after``, and the stream does not allow schedules.
            Error: as `JetStream.publish`.

        """
        self.validate_task(task)
        run_after = task.run_after
        if run_after is not None and is_naive(run_after):
            run_after = make_aware(run_after)
        record = {
            **new_record(task.module_path, args, kwargs),
            "queue": task.queue_name,
            "run_after": None if run_after is None else run_after.isoformat(),
        }
        config = Config.load()
        if config.ensure != "none":
            given = () if isinstance(config.ensure, str) else config.ensure
            self._tasks.create(lambda own: resources_of([], own, given, config.num_replicas))
        self._tasks.send(task.queue_name, record, run_after)
        result = self._from_record(record)
        task_enqueued.send(type(self), task_result=result)
        return result

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
            return self._from_record(self._tasks.read(result_id))
        except (KeyNotFoundError, BucketNotFoundError, InvalidArgumentError) as error:
            raise TaskResultDoesNotExist(result_id) from error

    def cancel(self, result_id: str) -> bool:
        """
        Have a task not run that is not running; its result is then that of a failed one.

        Returns:
            Whether the task was cancelled; ``False``: it runs, has ended, or is unknown.

        Raises:
            Error: as `jetstream_sync.workers.TaskResult.cancel`.

        """
        return self._tasks.cancel(result_id)

    def _from_record(self, data: Mapping[str, Any]) -> Any:
        task = import_string(data["task"])
        if not isinstance(task, Task):
            raise TaskResultDoesNotExist(f"{data['task']} is not a task")
        run_after = None if data["run_after"] is None else parse_datetime(data["run_after"])
        result = TaskResult(
            task=task.using(queue_name=data["queue"], run_after=run_after, backend=self.alias),
            id=data["id"],
            status=TaskResultStatus(FAILED if data["status"] == CANCELLED else data["status"]),
            args=data["args"],
            kwargs=data["kwargs"],
            backend=self.alias,
            errors=[TaskError(**each) for each in data["errors"]],
            worker_ids=data["worker_ids"],
            **{name: data[name] and parse_datetime(data[name]) for name in _TIMES},
        )
        object.__setattr__(result, "_return_value", data["return_value"])  # it is frozen for users
        return result

    # --- running --------------------------------------------------------------------------------

    def add_handlers(self, worker: Worker) -> None:
        """Add a handler for each queue to a worker; without queues, one for all."""
        for queue in sorted(self.queues) or ["*"]:

            def run_task(data: dict[str, Any]) -> None:
                self._run(data)

            options = {"decode": "json", **self._handler_options, "on_given_up": self._given_up}
            worker.handler(
                stream=self._tasks.stream,
                consumer=f"{self._subject}-{'all' if queue == '*' else queue}",
                filter_subject=self._tasks.filter_subject(queue),
                **options,
            )(run_task)
        worker.task_queues.append(self._tasks)

    def _run(self, sent: dict[str, Any]) -> None:
        """Run the task of a message, unless it has ended; a task that raises has failed."""
        try:
            self._from_record(sent)
        except (ImportError, TaskResultDoesNotExist) as error:
            raise Reject(f"the task cannot be found: {error}") from error
        failures: list[BaseException] = []

        def is_final(error: BaseException) -> bool:
            failures.append(error)
            return True

        def call(record: dict[str, Any]) -> object:
            result = self._from_record(record)
            context = [TaskContext(task_result=result)] if result.task.takes_context else []
            return result.task.call(*context, *result.args, **result.kwargs)

        try:
            self._tasks.run(sent, call, is_final=is_final, on_change=self._report)
        except BaseException as error:
            if error not in failures:
                raise  # the state of the task could not be read or stored

    def _given_up(self, message: JetStreamMsg, reason: str) -> None:
        """Record and report that a task has failed whose message is given up, as after kills of its workers."""
        record = self._tasks.give_up(message, reason)
        if record is not None:
            self._report(record)

    def _report(self, record: Mapping[str, Any]) -> None:
        """Send Django's signal for a change; in a failure, Django logs the current exception."""
        result = self._from_record(record)
        signal = task_finished if result.is_finished else task_started
        signal.send(type(self), task_result=result)


def add_handlers(worker: Worker) -> None:
    """Add the handlers of all backends in the setting ``TASKS`` to a worker."""
    for alias, params in getattr(settings, "TASKS", {}).items():
        if params.get("BACKEND") == _PATH:
            JetStreamBackend(alias, params).add_handlers(worker)
