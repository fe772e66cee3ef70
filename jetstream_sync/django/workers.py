"""The worker of a Django project."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.db import DEFAULT_DB_ALIAS, close_old_connections, connections
from django.utils.module_loading import autodiscover_modules, import_string

from .. import InvalidOptionError, workers
from ..workers import Context, Handler, Task
from ..workers.handler import HandlerFunction, Middleware
from .config import Config

if TYPE_CHECKING:
    from ..workers.metrics import GaugeSnapshot
    from .outbox import OutboxRelay


class Worker(workers.Worker):
    """
    A worker whose handlers use the database of a Django project.

    Before and after each message, broken and expired database connections are closed, as Django does
    around each request. A thread that ends closes its database connections. While the worker runs, it
    publishes the messages of the outbox.

    Args:
        servers: as for `jetstream_sync.connect`; ``None``: that of the setting ``JETSTREAM``.
        **options: as for `jetstream_sync.workers.Worker`; those that are not given are taken from the
            setting.

    Raises:
        ImproperlyConfigured: the setting ``JETSTREAM`` is wrong.
        InvalidOptionError: an option is out of range.

    """

    process_setup = "django:setup"

    def __init__(self, servers: str | Sequence[str] | None = None, **options: Any) -> None:
        config = Config.load()
        names = ("name", "dead_letters", "drain_timeout", "ensure", "num_replicas")
        for name in (*names, "connection", "middleware"):
            options.setdefault(name, getattr(config, name))
        options["middleware"] = [
            _with_database,
            *map(_imported, options["middleware"]),
            self._in_transaction,
        ]
        super().__init__(config.servers if servers is None else servers, **options)
        #: The databases of the handlers with ``atomic``, by stream and consumer.
        self.atomic: dict[tuple[str, str], str] = {}
        self._relay: OutboxRelay | None = None

    def handler(
        self,
        *,
        stream: str,
        consumer: str | None = None,
        atomic: bool | str = False,
        **options: Any,
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
        self._set_atomic(stream, consumer or options.get("group", ""), atomic)
        return decorate

    def task(
        self, *, atomic: bool | str = False, **options: Any
    ) -> Callable[[Callable[..., Any]], Task]:
        """
        Return a decorator that makes a function a task.

        Args:
            atomic: as for `handler`.
            **options: as for `jetstream_sync.workers.Worker.task`.

        Raises:
            InvalidOptionError: as `jetstream_sync.workers.Worker.task`.

        """
        decorate = super().task(**options)

        def decorated(function: Callable[..., Any]) -> Task:
            task = decorate(function)
            self._set_atomic(task.handler.stream, task.handler.consumer, atomic)
            return task

        return decorated

    def _set_atomic(self, stream: str, consumer: str, atomic: bool | str) -> None:
        if atomic:
            self.atomic[stream, consumer] = DEFAULT_DB_ALIAS if atomic is True else atomic

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
            raise InvalidOptionError("atomic", options["atomic"], "is not possible for batches")
        return super().batch(stream=stream, consumer=consumer, **options)

    def run(self, *, burst: bool = False) -> int:
        """Run the handlers and the relay of the outbox; see `jetstream_sync.workers.Worker.run`."""
        from .outbox import OutboxRelay  # noqa: PLC0415 - models exist after the apps are loaded

        # Connections of this thread are not used any more, and must not be shared with child processes.
        connections.close_all()
        relay = OutboxRelay(Config.load(), set(self.atomic.values()))
        self._relay = relay
        with relay.running():
            return super().run(burst=burst)

    def gauges(self) -> list[GaugeSnapshot]:
        """Return the state of the outbox of each database."""
        return [] if self._relay is None else self._relay.gauges()

    def on_thread_end(self) -> None:
        """Close the database connections of the thread."""
        connections.close_all()

    def _in_transaction(self, call: Callable[[], object], ctx: Context) -> object:
        where = ctx.message.metadata
        using = self.atomic.get((where.stream, where.consumer))
        if using is None:
            return call()
        from .models import Inbox  # noqa: PLC0415 - models exist after the apps are loaded

        return Inbox.run_once(call, ctx.id, using)


def _with_database(call: Callable[[], object], _ctx: Context) -> object:
    """Close broken and expired database connections before and after a message."""
    close_old_connections()
    try:
        return call()
    finally:
        close_old_connections()


def _imported(middleware: str | Middleware) -> Middleware:
    if isinstance(middleware, str):
        found: Middleware = import_string(middleware)
        return found
    return middleware


@cache
def default_worker() -> Worker:
    """Return the worker of the project, the same one in each call."""
    return Worker()


@cache
def discover() -> None:
    """Import the module ``workers`` of each app that has one, and add the handlers of tasks."""
    autodiscover_modules("workers")
    if getattr(settings, "TASKS", None):
        from .tasks import add_handlers  # noqa: PLC0415 - Django may have no tasks

        add_handlers(default_worker())


def find_worker(path: str | None = None) -> Worker:
    """Return a worker after the handlers of all apps are defined."""
    discover()
    path = Config.load().worker if path is None else path
    try:
        found = import_string(path.replace(":", "."))
    except ImportError as error:
        raise ImproperlyConfigured(f"cannot import the worker {path!r}: {error}") from error
    if not isinstance(found, Worker):
        raise ImproperlyConfigured(
            f"{path!r} is not a worker of jetstream_sync.django: create it with its class Worker"
        )
    return found
