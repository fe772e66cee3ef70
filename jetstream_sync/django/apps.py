"""The Django app: its configuration, and the system checks, which open no connection."""

from __future__ import annotations

from typing import Any

from django.apps import AppConfig
from django.conf import settings
from django.core.cache import InvalidCacheBackendError, caches
from django.core.checks import CheckMessage, Error, Warning, register
from django.core.exceptions import ImproperlyConfigured

from .. import errors
from ..address import parse_servers
from .config import Config
from .workers import Worker, find_worker


class JetStreamConfig(AppConfig):
    """The app ``jetstream``."""

    name = "jetstream_sync.django"
    label = "jetstream"
    verbose_name = "JetStream"
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        """Register the system checks."""
        register(check_jetstream, "jetstream")


def check_jetstream(**_options: Any) -> list[CheckMessage]:
    """Check the setting ``JETSTREAM``, and the handlers of the worker that it names."""
    try:
        config = Config.load()
        if config.servers is not None:
            parse_servers(config.servers)
        worker = find_worker()
    except (ImproperlyConfigured, errors.InvalidArgumentError) as error:
        return [Error(str(error), id="jetstream.E001")]
    found: list[CheckMessage] = []
    tasks: Any = worker.queues.tasks  # of the class of this package
    outboxes = {task.outbox for task in tasks.values()} - {True, False}
    used = {*config.outbox_databases, *worker.atomic_databases}
    found += [
        Error(
            f"tasks put their calls into the outbox of the database {alias!r}, which no worker publishes",
            hint="add it to 'outbox' in JETSTREAM",
            id="jetstream.E004",
        )
        for alias in sorted(outboxes.difference(config.outbox_databases))
    ]
    found += [
        Error(
            f"the database {alias!r} has AUTOCOMMIT False: the changes of a worker would not be committed",
            id="jetstream.E005",
        )
        for alias in sorted(used & settings.DATABASES.keys())
        if not settings.DATABASES[alias].get("AUTOCOMMIT", True)
    ]
    found += [
        Error(
            f"JETSTREAM or a handler names the database {alias!r}, which DATABASES does not have",
            id="jetstream.E002",
        )
        for alias in sorted(used - settings.DATABASES.keys())
    ]
    return found + _check_handlers(worker) + _check_databases(worker) + _check_caches()


def _check_caches() -> list[CheckMessage]:
    found: list[CheckMessage] = []
    for alias in settings.CACHES:
        try:
            caches.create_connection(alias)  # opens no connection
        except InvalidCacheBackendError:
            pass  # of another package; the first use raises it
        except ImproperlyConfigured as error:
            found.append(Error(f"the cache {alias!r}: {error}", id="jetstream.E003"))
    return found


def _check_handlers(worker: Worker) -> list[CheckMessage]:
    return [
        Warning(
            f"the handler {handler.name!r} has no stream for dead letters: messages that it gives up"
            " are dropped",
            hint="set 'dead_letters' in JETSTREAM, or in the decorator",
            obj=handler.name,
            id="jetstream.W001",
        )
        for handler in worker.handlers
        if handler.dead_letters is None
    ]


def _check_databases(worker: Worker) -> list[CheckMessage]:
    if not worker.handlers:
        return []
    return [
        Warning(
            f"the database {alias!r} has persistent connections without health checks: the message"
            " after an idle time fails if the database has closed the connection",
            hint="set CONN_HEALTH_CHECKS to True, or CONN_MAX_AGE to 0",
            id="jetstream.W002",
        )
        for alias, options in settings.DATABASES.items()
        if options.get("CONN_MAX_AGE", 0) != 0 and not options.get("CONN_HEALTH_CHECKS", False)
    ]
