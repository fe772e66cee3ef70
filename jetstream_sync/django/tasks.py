"""
A backend for Django's tasks: a task is a message, which the worker runs, and its result is a key.

Django has tasks from version 6.0 on; the package ``django-tasks`` brings them to older ones.
"""

from __future__ import annotations

import json
import os
import platform
import traceback
import uuid
from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final

from django.conf import settings
from django.utils.dateparse import parse_datetime
from django.utils.module_loading import import_string
from django.utils.timezone import is_naive, make_aware, now

from .. import InvalidArgumentError, InvalidOptionError, KeyNotFoundError, KeyValue
from ..workers import Context, Reject, Worker
from .publishing import jetstream

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

    A task of the queue ``mail`` is a message with the subject ``tasks.run.mail``. A task that raises has
    failed, and is not run again. A task whose worker is killed is run again. Tasks with ``run_after`` are
    kept by the server until then (ADR-51). Priorities and coroutines are refused.

    Args:
        alias: the name of the backend.
        params: its entry in the setting ``TASKS``. ``OPTIONS`` may have ``stream``, ``TASKS`` by default;
            ``subject``, the first token of its subjects, ``tasks`` by default; ``results``, the key-value
            bucket of the results, ``TASK_RESULTS`` by default, or ``None`` for no results; and options of
            `Worker.handler`. The stream and the bucket must exist.

    Raises:
        InvalidOptionError: the name of a queue is no token of a subject.

    """

    supports_defer: bool = True
    supports_get_result: bool = True

    def __init__(self, alias: str, params: dict[str, Any]) -> None:
        super().__init__(alias, params)
        options = dict(self.options)
        self._stream: str = options.pop("stream", "TASKS")
        self._subject: str = options.pop("subject", "tasks")
        self._bucket: str | None = options.pop("results", "TASK_RESULTS")
        self._handler_options = options
        self.supports_get_result = self._bucket is not None
        for queue in self.queues:
            if not queue or set(queue) & set(".*> \t\r\n"):
                raise InvalidOptionError("QUEUES", queue, "must be a token of a subject")

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
        result = TaskResult(
            task=task,
            id=uuid.uuid4().hex,
            status=TaskResultStatus.READY,
            enqueued_at=now(),
            started_at=None,
            finished_at=None,
            last_attempted_at=None,
            args=list(args),
            kwargs=dict(kwargs),
            backend=self.alias,
            errors=[],
            worker_ids=[],
        )
        self._store(result)
        data = json.dumps(_to_json(result)).encode()
        target = f"{self._subject}.run.{task.queue_name}"
        if task.run_after is None:
            jetstream().publish(target, data, msg_id=result.id)
        else:
            at = make_aware(task.run_after) if is_naive(task.run_after) else task.run_after
            later = f"{self._subject}.later.{result.id}"
            jetstream().schedule(later, data, target=target, at=at, msg_id=result.id)
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
        results = self._results()
        if results is None:
            return super().get_result(result_id)
        try:
            return self._from_json(json.loads(results.get(result_id).value))
        except (KeyNotFoundError, InvalidArgumentError) as error:
            raise TaskResultDoesNotExist(result_id) from error

    def _results(self) -> KeyValue | None:
        return None if self._bucket is None else jetstream().key_value(self._bucket)

    def _store(self, result: Any) -> None:
        results = self._results()
        if results is not None:
            results.put(result.id, json.dumps(_to_json(result)).encode())

    def _from_json(self, data: Mapping[str, Any]) -> Any:
        task = import_string(data["task"])
        if not isinstance(task, Task):
            raise TaskResultDoesNotExist(f"{data['task']} is not a task")
        run_after = None if data["run_after"] is None else parse_datetime(data["run_after"])
        result = TaskResult(
            task=task.using(queue_name=data["queue"], run_after=run_after, backend=self.alias),
            id=data["id"],
            status=TaskResultStatus(data["status"]),
            args=data["args"],
            kwargs=data["kwargs"],
            backend=self.alias,
            errors=[TaskError(**each) for each in data["errors"]],
            worker_ids=data["worker_ids"],
            **{name: data[name] and parse_datetime(data[name]) for name in _TIMES},
        )
        _change(result, _return_value=data["return_value"])
        return result

    # --- running --------------------------------------------------------------------------------

    def add_handlers(self, worker: Worker) -> None:
        """Add a handler for each queue to a worker; without queues, one for all."""
        for queue in sorted(self.queues) or ["*"]:

            def run_task(data: dict[str, Any], _ctx: Context) -> None:
                self._run(data)

            options = {"decode": "json", **self._handler_options}
            worker.handler(
                stream=self._stream,
                consumer=f"{self._subject}-{'all' if queue == '*' else queue}",
                filter_subject=f"{self._subject}.run.{queue}",
                **options,
            )(run_task)

    def _run(self, data: Mapping[str, Any]) -> None:
        """Run the task of a message, unless it has been run to its end."""
        try:
            try:
                result = self.get_result(data["id"]) if self._bucket else self._from_json(data)
            except TaskResultDoesNotExist:
                result = self._from_json(data)  # it has expired
        except (ImportError, TaskResultDoesNotExist) as error:
            raise Reject(f"the task cannot be found: {error}") from error
        if result.is_finished:
            return
        began = now()
        result.worker_ids.append(f"{platform.node()}-{os.getpid()}")
        _change(
            result,
            status=TaskResultStatus.RUNNING,
            started_at=result.started_at or began,
            last_attempted_at=began,
        )
        self._store(result)
        task_started.send(type(self), task_result=result)
        self._execute(result)
        self._store(result)

    def _execute(self, result: Any) -> None:
        """Call the function of a task, and record the outcome."""
        context = [TaskContext(task_result=result)] if result.task.takes_context else []
        try:
            value = result.task.call(*context, *result.args, **result.kwargs)
            value = json.loads(json.dumps(value))
        except BaseException as error:  # noqa: BLE001 - whatever it is, the task has failed
            kind = type(error)
            result.errors.append(
                TaskError(
                    exception_class_path=f"{kind.__module__}.{kind.__qualname__}",
                    traceback="".join(traceback.format_exception(error)),
                )
            )
            _change(result, status=TaskResultStatus.FAILED, finished_at=now())
            task_finished.send(type(self), task_result=result)  # Django logs the current exception
        else:
            _change(
                result,
                status=TaskResultStatus.SUCCESSFUL,
                finished_at=now(),
                _return_value=value,
            )
            task_finished.send(type(self), task_result=result)


def add_handlers(worker: Worker) -> None:
    """Add the handlers of all backends in the setting ``TASKS`` to a worker."""
    for alias, params in getattr(settings, "TASKS", {}).items():
        if params.get("BACKEND") == _PATH:
            JetStreamBackend(alias, params).add_handlers(worker)


def _to_json(result: Any) -> dict[str, Any]:
    run_after = result.task.run_after
    return {
        "id": result.id,
        "task": result.task.module_path,
        "queue": result.task.queue_name,
        "run_after": None if run_after is None else run_after.isoformat(),
        "status": str(result.status),
        "args": result.args,
        "kwargs": result.kwargs,
        "errors": [
            {"exception_class_path": each.exception_class_path, "traceback": each.traceback}
            for each in result.errors
        ],
        "worker_ids": result.worker_ids,
        "return_value": result._return_value,  # noqa: SLF001 - the property raises until the end
        **{name: _iso(getattr(result, name)) for name in _TIMES},
    }


def _iso(time: datetime | None) -> str | None:
    return None if time is None else time.isoformat()


def _change(result: Any, **fields: Any) -> None:
    # Results are frozen for their users.
    for name, value in fields.items():
        object.__setattr__(result, name, value)
