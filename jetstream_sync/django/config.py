"""The setting ``JETSTREAM``, and the connection of the process, which has its options."""

from __future__ import annotations

import sys
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, Final

from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.db import DEFAULT_DB_ALIAS, transaction

from .. import shared_connection
from ..options import closest_match
from ..workers.options import OPTIONS

if TYPE_CHECKING:
    from .. import Connection, Headers, JetStream

#: What Django assumes for a database without settings.
_NO_ENGINE: Final = "django.db.backends.dummy"
#: Above that, the time of the oldest entry to keep might not exist.
_MAX_DAYS: Final = 100 * 365

#: The text and a copy of the setting that was read last, and its config.
_loaded: Final[list[tuple[str, Mapping[str, Any], Config]]] = []


@dataclass(frozen=True, kw_only=True)
class Config:
    """
    The keys of the setting ``JETSTREAM``; all are optional.

    The other options of `jetstream_sync.workers.WorkerOptions`, such as ``dead_letters``, are keys as well; with
    ``program=""``, the program is the top package of the setting ``ROOT_URLCONF``, or without that the ``name``.
    """

    servers: str | Sequence[str] | None = "nats://127.0.0.1:4222"
    """As for `jetstream_sync.connect`; by default those of the ``context`` of ``connection``, if it has one."""
    name: str = "django"
    """The name of the connections, and of the worker: a project with tasks or schedules needs one that no other
    program of the account has."""
    connection: Mapping[str, Any] = field(default_factory=dict)
    """Other options of `jetstream_sync.connect`."""
    timeout: float = 5.0
    """The timeout of each request in seconds, of `jetstream` and of caches."""
    eager: bool = False
    """Whether calls of tasks run at once in this process, for tests; see `Worker.eager`."""
    middleware: Sequence[str | Callable[..., object]] = ()
    """Middleware of the worker: functions, or their dotted paths."""
    worker: str = "jetstream_sync.django:worker"
    """The worker that ``manage.py jetstream_worker`` runs, as ``MODULE:ATTRIBUTE``."""
    outbox: Sequence[str] | None = None
    """The databases whose outbox the workers publish; ``None``: the default one, if there is one."""
    max_payload: int = 1024 * 1024
    """The ``max_payload`` of the server, in bytes: `Outbox.publish` refuses larger messages."""
    inbox_days: float = 7.0
    """Number of days after which the workers delete rows of the inbox; 0: never."""
    others: dict[str, Any] = field(default_factory=dict, init=False, repr=False)

    @classmethod
    def load(cls) -> Config:
        """
        Return the current setting.

        Raises:
            ImproperlyConfigured: it is no mapping, has an unknown key, or a value of a wrong type.

        """
        given = getattr(settings, "JETSTREAM", {})
        # A program may change the dictionary, or one in it, and True equals 1: the text shows both.
        text = repr(given)
        if _loaded and _loaded[0][:2] == (text, given):
            return _loaded[0][2]
        found = cls._of(given)
        _loaded[:] = [(text, dict(given), found)]
        return found

    @classmethod
    def _of(cls, given: Any) -> Config:
        """Return the config in a value of the setting."""
        if not isinstance(given, Mapping):
            raise ImproperlyConfigured("the setting JETSTREAM must be a dictionary")
        own = [item.name for item in fields(cls) if item.init]
        known = [*own, *(name for name in OPTIONS["worker"] if name not in own)]
        given = {key.lower() if key == "EAGER" else key: value for key, value in given.items()}
        for key in given:
            if key not in known:
                close = closest_match(str(key), known)
                hint = f": did you mean {close!r}?" if close else f"; known are {', '.join(known)}"
                raise ImproperlyConfigured(f"unknown key {key!r} in the setting JETSTREAM{hint}")
        # None is the default of each key, as in the options of a worker.
        values = {key: value for key, value in given.items() if key in own and value is not None}
        connection = values.get("connection")
        if isinstance(connection, Mapping) and "context" in connection:
            values.setdefault("servers", None)
        found = cls(**values)
        found.others.update((key, value) for key, value in given.items() if key not in own)
        days = f"a number of days, from 0 to {_MAX_DAYS}"
        for key, ok, rule in (
            ("connection", isinstance(found.connection, Mapping), "a dictionary"),
            ("name", isinstance(found.name, str), "a str"),
            ("eager", isinstance(found.eager, bool), "True or False"),
            ("timeout", _is_within(found.timeout, 0.001, sys.maxsize), "seconds above 0"),
            ("outbox", _are_names(found.outbox), "a list of databases"),
            ("worker", isinstance(found.worker, str), "MODULE:ATTRIBUTE"),
            ("middleware", isinstance(found.middleware, list | tuple), "a list"),
            ("max_payload", _is_within(found.max_payload, 1, sys.maxsize), "a number of bytes"),
            ("inbox_days", _is_within(found.inbox_days, 0, _MAX_DAYS), days),
        ):
            if not ok:
                value = getattr(found, key)
                raise ImproperlyConfigured(f"JETSTREAM[{key!r}] is {value!r}: it must be {rule}")
        return found

    @property
    def worker_options(self) -> dict[str, Any]:
        """The options of the worker of the project."""
        own = {name: getattr(self, name) for name in ("name", "connection", "middleware")}
        return {**own, **self.others}

    @property
    def outbox_databases(self) -> Sequence[str]:
        """The databases whose outbox the workers publish."""
        if self.outbox is not None:
            return self.outbox
        engine = settings.DATABASES.get(DEFAULT_DB_ALIAS, {}).get("ENGINE", _NO_ENGINE)
        return () if engine == _NO_ENGINE else (DEFAULT_DB_ALIAS,)


def _are_names(value: object) -> bool:
    return value is None or (
        isinstance(value, list | tuple) and all(isinstance(item, str) for item in value)
    )


def _is_within(value: object, least: float, most: float) -> bool:
    return isinstance(value, int | float) and least <= value <= most


# --- the connection ------------------------------------------------------------------------------


def connection() -> Connection:
    """
    Return the connection of this process; open it if there is none.

    Call this wherever the connection is needed; a forked process gets its own. Workers have another
    connection. See `jetstream_sync.shared_connection`.

    Raises:
        ImproperlyConfigured: the setting ``JETSTREAM`` is wrong.
        Error: as `jetstream_sync.connect`.

    """
    config = Config.load()
    return shared_connection(config.servers, **{"name": config.name, **config.connection})


def jetstream() -> JetStream:
    """
    Return a JetStream context of `connection`.

    Raises:
        ImproperlyConfigured: the setting ``JETSTREAM`` is wrong.
        Error: the connection cannot be opened.

    """
    return connection().jetstream(timeout=Config.load().timeout)


def publish_on_commit(
    subject: str,
    payload: bytes = b"",
    headers: Headers | Mapping[str, str] | Mapping[str, list[str]] | None = None,
    *,
    msg_id: str | None = None,
    using: str | None = None,
    robust: bool = False,
    **options: Any,
) -> str:
    """
    Publish a message when the current transaction commits, or now if there is none.

    Nothing is published if the transaction is rolled back. The message is lost if the process ends, or
    publishing fails, after the commit: use `Outbox.publish` for messages that must not be lost. In
    tests, ``TestCase.captureOnCommitCallbacks`` captures it.

    Args:
        subject: the subject, without wildcards.
        payload: the payload.
        headers: names and values.
        msg_id: the message id for deduplication; ``None``: a random one.
        using: the database of the transaction; ``None``: the default.
        robust: whether an error of publishing is logged. Otherwise it is raised where the transaction
            ends, although that is committed.
        **options: as for `JetStream.publish`.

    Returns:
        The message id.

    Raises:
        Error: there is no transaction, and publishing failed.

    """
    msg_id = uuid.uuid4().hex if msg_id is None else msg_id

    def publish() -> None:
        jetstream().publish(subject, payload, headers=headers, msg_id=msg_id, **options)

    transaction.on_commit(publish, using=using, robust=robust)
    return msg_id
