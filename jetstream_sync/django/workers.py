"""The worker of a Django project."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, Protocol, TypeVar, cast, overload

from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.db import DEFAULT_DB_ALIAS, DatabaseError, connections, transaction
from django.utils.module_loading import autodiscover_modules, import_string

from .. import Headers, errors, workers
from ..records import shows_fields
from ..workers import Context, Handler, TaskResult
from ..workers.checks import check_option
from ..workers.events import RunEvent
from ..workers.logs import log
from ..workers.options import OPTIONS, TaskOptions, WorkerOptions
from ..workers.queues import TaskQueues, program_of
from ..workers.source import HANDLER_OPTIONS, HandlerFunction, Work
from ..workers.tracing import publishing
from .config import Config

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from ..workers.calls import NewCall
    from ..workers.metrics import GaugeSnapshot
    from ..workers.option_fields import HandlerFields, TaskFields, WorkerFields
    from .outbox import OutboxRelay


P = ParamSpec("P")
R = TypeVar("R")


class Task(workers.Task[P, R]):
    """A task of a Django project; see `jetstream_sync.workers.Task`."""

    #: Whether calls are sent with the outbox, or the database of the outbox.
    outbox: bool | str = False

    def delay_on_commit(self, *args: P.args, **kwargs: P.kwargs) -> TaskResult[R]:
        """
        Have a worker call the function when the current transaction commits, or now if there is none.

        Nothing is sent if the transaction is rolled back. The call is lost if the process ends, or sending
        fails, after the commit: use ``outbox=True`` for calls that must not be lost. In tests,
        ``TestCase.captureOnCommitCallbacks`` captures it.

        Raises:
            TaskArgumentsError: as `Task.delay`.
            Error: there is no transaction, and sending failed.

        """
        record, _ = self.record(args, kwargs)
        transaction.on_commit(lambda: self.start(record, None))
        return TaskResult[R](self, record.id, self.states)


if TYPE_CHECKING:

    class TaskDecorator(Protocol):
        """Makes a function a task."""

        @overload
        def __call__(self, function: Callable[Concatenate[Context, P], R], /) -> Task[P, R]: ...

        @overload
        def __call__(self, function: Callable[P, R], /) -> Task[P, R]: ...


class _TaskQueues(TaskQueues):
    """Puts the calls of tasks with ``outbox`` into the outbox."""

    def send(self, task: Any, call: NewCall) -> None:
        """Send a call of a task, or store it in the outbox in the current transaction."""
        if not task.outbox:
            super().send(task, call)
            return
        from .models import Outbox  # noqa: PLC0415 - models exist after the apps are loaded

        message, using = call.message(), None if task.outbox is True else task.outbox
        with publishing(message.address.now, message.data, None, message.msg_id) as headers:
            found = Headers(headers or {})
        found.update(message.schedule)
        Outbox.publish(message.subject, message.data, found, msg_id=message.msg_id, using=using)

    def eager(self) -> Any:
        """Return what runs calls at once; ``None``: workers do."""
        owner = self.worker
        if owner.eager_calls is None and Config.load().eager:
            owner.eager_calls = owner.new_eager_calls()
            discover()
        return owner.eager_calls


class Worker(workers.Worker):
    """
    A worker whose handlers use the database of a Django project.

    Before and after each message, broken and expired database connections are closed, as Django does
    around each request. A thread that ends closes its database connections. While the worker runs, it
    publishes the messages of the outbox.

    Args:
        servers: as for `jetstream_sync.connect`; ``None``: that of the setting ``JETSTREAM``.
        **options: the attributes of `jetstream_sync.workers.WorkerOptions`; those that are not given are
            taken from the setting.

    Raises:
        ImproperlyConfigured: the setting ``JETSTREAM`` is wrong.
        InvalidOptionError: an option is unknown or out of range.

    """

    process_setup = "django:setup"
    default_name: str = Config.name
    name_example = 'JETSTREAM = {"name": "shop"} in the settings'
    task_class: type[workers.Task[..., Any]] = Task
    queues_class: type[TaskQueues] = _TaskQueues

    @shows_fields((WorkerOptions, OPTIONS["worker"]))
    def __init__(
        self, servers: str | Sequence[str] | None = None, **given: Unpack[WorkerFields]
    ) -> None:
        config = Config.load()
        options = {**config.worker_options, **given}
        if not options.get("program"):
            # Not the module that calls this: a web process and a worker would be two programs.
            urls = getattr(settings, "ROOT_URLCONF", None)
            options["program"] = program_of(str(urls)) if urls else options["name"]
        found = [
            _imported("middleware", item) if isinstance(item, str) else item
            for item in options["middleware"]
        ]
        options["middleware"] = [_with_database, *found, self._in_transaction]
        super().__init__(config.servers if servers is None else servers, **options)
        self._relay: OutboxRelay | None = None

    @shows_fields((Handler, HANDLER_OPTIONS))
    def handler(
        self,
        *,
        stream: str,
        consumer: str | None = None,
        atomic: bool | str = False,
        **options: Unpack[HandlerFields],
    ) -> Callable[[HandlerFunction], Handler]:
        """
        Return a decorator that makes a function handle the messages of a consumer.

        Args:
            stream: the name of the stream, which must exist, or be in an ``ensure``.
            consumer: the durable name of the consumer; ``None``: the name in ``group``.
            atomic: whether the function runs in a transaction that also stores the id of the message in
                the inbox: its effects in the database happen once, even if the message is delivered
                again. A str is the name of the database. Publish with `Outbox.publish` in it: what
                `publish_on_commit` publishes is lost if the process ends right after the commit.
            **options: as for `jetstream_sync.workers.Worker.handler`.

        Raises:
            InvalidOptionError: as `jetstream_sync.workers.Worker.handler`.

        """
        decorate = super().handler(stream=stream, consumer=consumer, **options)

        def decorated(function: HandlerFunction) -> Handler:
            handler = decorate(function)
            self.set_atomic(handler, atomic)
            return handler

        return decorated

    if TYPE_CHECKING:

        @overload
        def task(self, function: Callable[Concatenate[Context, P], R], /) -> Task[P, R]: ...

        @overload
        def task(self, function: Callable[P, R], /) -> Task[P, R]: ...

        @overload
        def task(
            self,
            *,
            atomic: bool | str = False,
            outbox: bool | str = False,
            **options: Unpack[TaskFields],
        ) -> TaskDecorator: ...

    @shows_fields((TaskOptions, OPTIONS["task"]))  # type: ignore[misc]
    def task(
        self,
        function: Callable[..., Any] | None = None,
        /,
        *,
        atomic: bool | str = False,
        outbox: bool | str = False,
        **options: Any,
    ) -> Any:
        """
        Make a function a task; a decorator, with and without arguments.

        Args:
            function: the function.
            atomic: as for `handler`; with ``steps=True``, each step of the function has a transaction of its own, in
                which it is recorded.
            outbox: whether calls are sent with `Outbox.publish`: a call inside a transaction is sent if and
                only if the transaction commits. Its status is unknown until a worker has published it, soon
                after the commit. A str is the name of the database.
            **options: as for `jetstream_sync.workers.Worker.task`.

        Raises:
            InvalidOptionError: as `jetstream_sync.workers.Worker.task`.

        """

        def decorate(function: Callable[..., Any]) -> Task[..., Any]:
            task = cast("Task[..., Any]", super(Worker, self).task(**options)(function))
            rule = "excludes 'unique': its calls are stored after the commit"
            check_option("outbox", outbox, not (outbox and task.unique), rule)
            task.outbox = outbox
            self.set_atomic(task.work, atomic)
            return task

        return decorate if function is None else decorate(function)

    def set_atomic(self, work: Work, atomic: bool | str) -> None:
        """
        Have a handler or task run in a transaction of a database, if ``atomic``.

        :meta private:
        """
        if atomic:
            object.__setattr__(work, "atomic", DEFAULT_DB_ALIAS if atomic is True else atomic)

    @property
    def atomic_databases(self) -> set[str]:
        """
        The databases of the handlers and tasks with ``atomic``.

        :meta private:
        """
        works = (work for source in self.handlers for work in source.works)
        return {work.atomic for work in works if work.atomic is not None}

    def batch(
        self, *, stream: str, consumer: str, **options: Any
    ) -> Callable[[HandlerFunction], Handler]:
        """
        Return a decorator that makes a function handle messages in batches.

        As `jetstream_sync.workers.Worker.batch`. A batch cannot have ``atomic``: it has several messages,
        which fail one by one.

        Raises:
            InvalidOptionError: ``atomic`` is given, or as `jetstream_sync.workers.Worker.batch`.

        """
        if "atomic" in options:
            raise errors.InvalidOptionError(
                "atomic", options["atomic"], "is not possible for batches"
            )
        return super().batch(stream=stream, consumer=consumer, **options)

    def run(self, *, burst: bool = False) -> int:
        """Run the handlers and the relay of the outbox; see `jetstream_sync.workers.Worker.run`."""
        from .outbox import OutboxRelay  # noqa: PLC0415 - models exist after the apps are loaded

        # Connections of this thread are not used any more, and must not be shared with child processes.
        connections.close_all()
        relay = OutboxRelay(Config.load(), self.atomic_databases)
        self._relay = relay
        with relay.running(lambda error: self._events.put(RunEvent(error=error))):
            return super().run(burst=burst)

    def gauges(self) -> list[GaugeSnapshot]:
        """Return the state of the outbox of each database."""
        return [] if self._relay is None else self._relay.gauges()

    def on_thread_end(self) -> None:
        """Close the database connections of the thread."""
        connections.close_all()

    def _in_transaction(self, call: Callable[[], object], ctx: Context) -> object:
        using = ctx.work.atomic
        if using is None:
            return call()
        from .models import Inbox  # noqa: PLC0415 - models exist after the apps are loaded

        if ctx.work.state.has_steps:
            ctx.steps.runner = partial(Inbox.run_step, using=using)
            return call()
        return Inbox.run_once(call, ctx, using)

    def has_committed(self, context: Context) -> bool:
        """Return whether the inbox has a message, whose handler has raised after the commit."""
        using = context.work.atomic
        if using is None or context.work.state.has_steps:
            return False
        from .models import Inbox  # noqa: PLC0415 - models exist after the apps are loaded

        try:
            return Inbox.find(context, using)
        except DatabaseError as error:
            # If it has committed, the next delivery finds the message there.
            log.warning("%s: it is not known whether it has committed: %s", context.id, error)
            return False
        finally:
            _close_old_connections()


def _with_database(call: Callable[[], object], _ctx: Context) -> object:
    """Close broken and expired database connections before and after a message."""
    _close_old_connections()
    try:
        return call()
    finally:
        _close_old_connections()


def _close_old_connections() -> None:
    for item in connections.all(initialized_only=True):
        if not item.in_atomic_block:  # such as the connection of a TestCase
            item.close_if_unusable_or_obsolete()


def _imported(what: str, path: Any) -> Any:
    """Return what a dotted path names, for a setting."""
    try:
        return import_string(str(path).replace(":", "."))
    except ImportError as error:
        raise ImproperlyConfigured(f"cannot import the {what} {path!r}: {error}") from error


@cache
def default_worker() -> Worker:
    """Return the worker of the project, the same one in each call."""
    return Worker()


@cache
def discover() -> None:
    """Import the module ``workers`` of each app that has one, and add the handlers of tasks."""
    autodiscover_modules("workers")
    _add_handlers(default_worker())


def _add_handlers(worker: Worker) -> None:
    """Add the handlers of all backends in the setting ``TASKS``, also of subclasses, to a worker."""
    for alias, params in (getattr(settings, "TASKS", None) or {}).items():
        kind = _imported("backend of TASKS", params.get("BACKEND"))
        # Not by its class, whose module imports this one, and needs Django with tasks.
        if isinstance(kind, type) and callable(getattr(kind, "add_handlers", None)):
            backend: Any = kind(alias, params)
            backend.add_handlers(worker)


def find_worker(path: str | None = None) -> Worker:
    """Return a worker after the handlers of all apps are defined."""
    discover()
    path = Config.load().worker if path is None else path
    found = _imported("worker", path)
    if not isinstance(found, Worker):
        raise ImproperlyConfigured(
            f"{path!r} is not a worker of jetstream_sync.django: create it with its class Worker"
        )
    return found
