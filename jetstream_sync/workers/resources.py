"""
The streams and buckets that a worker needs: how they are created and compared, and how they are opened.

They may be deleted at any time: an `Opener` finds them at their first use, and again after that.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields, replace
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Final, Generic, NamedTuple, TypeAlias, TypeVar

from .. import KeyValueConfig, StorageType, StreamConfig, errors
from ..declare import CREATE, UPDATE, Declared, plan
from ..subjects import KV_PREFIX
from .dead_letters import DEAD_LETTER_SUBJECTS, MAX_AGE

if TYPE_CHECKING:
    from .. import Connection, JetStream, KeyValue, Stream
    from .source import Source

T = TypeVar("T")
R = TypeVar("R")
Resource = StreamConfig | KeyValueConfig
#: Creates what is missing of some streams and buckets, unless the worker must not.
Creator: TypeAlias = "Callable[[Connection, Sequence[Resource]], object]"

_DEAD_LETTER_WINDOW: Final = timedelta(hours=1)
#: How long a bucket for ``once`` keeps the states of messages.
_ONCE_TTL: Final = timedelta(days=30)


def has_schedules(nc: Connection) -> bool:
    """Return whether the server publishes messages at a time (2.12)."""
    version = [int(number) for number in re.findall(r"\d+", nc.server_info.version)]
    return version[:2] >= [2, 12]


def delete_on_subject(stream: Stream, subject: str) -> bool:
    """Delete the messages of a subject; return whether there were any."""
    # Not with a purge: the server would forget other messages that a consumer has delivered.
    found = False
    with suppress(errors.MessageNotFoundError):
        while True:
            message = stream.get_msg(last_by_subject=subject, consistent=True)
            if message.subject != subject:
                return found  # another client has published under a pattern, which selects other messages
            with suppress(errors.MessageNotFoundError):  # it was acknowledged meanwhile
                stream.delete_msg(message.seq)
                found = True
    return found


def name_of(resource: Resource) -> str:
    """Return kind and name."""
    if isinstance(resource, StreamConfig):
        return f"stream {resource.name!r}"
    return f"bucket {resource.bucket!r}"


@dataclass(frozen=True, kw_only=True)
class SetupStep:
    """What `Worker.setup` changes on the server."""

    action: str
    """``"create"`` or ``"update"``."""
    name: str
    """What is created or updated, such as ``stream 'ORDERS'``."""
    differences: Sequence[str] = ()
    """The fields that differ, such as ``num_replicas: 1 -> 3``; empty: it is created."""
    run: Callable[[], object] = field(repr=False)
    """Does it."""

    def __str__(self) -> str:
        """Return the step as text of one or more lines."""
        return "\n  ".join([f"{self.action} {self.name}", *self.differences])


def resources_of(
    sources: Iterable[Source],
    of_tasks: Iterable[Resource],
    given: Iterable[Resource] = (),
    replicas: int | None = None,
) -> list[Wanted]:
    """Return the streams and buckets of a worker, those that are given first, each name once."""
    found = [Wanted(_with_replicas(resource, replicas), is_given=True) for resource in given]
    implied = list(of_tasks)
    for source in sources:
        implied += _of_handler(source)
    found += [Wanted(_with_replicas(item, replicas), is_given=False) for item in implied]
    by_name: dict[str, Wanted] = {}
    for wanted in found:
        by_name.setdefault(name_of(wanted.resource), wanted)
    return list(by_name.values())


class Wanted(NamedTuple):
    """A stream or bucket of a worker."""

    resource: Resource
    is_given: bool
    """Whether the user gave the config; otherwise an existing one is left as it is."""


def _of_handler(source: Source) -> Iterator[Resource]:
    for work in source.works:
        if work.once is not None:
            yield KeyValueConfig(bucket=work.once, ttl=_ONCE_TTL)
    if isinstance(source.dead_letters, str):
        yield StreamConfig(
            name=source.dead_letters,
            subjects=[DEAD_LETTER_SUBJECTS],
            storage=StorageType.FILE,
            duplicate_window=_DEAD_LETTER_WINDOW,
            max_age=MAX_AGE,
        )


def _with_replicas(resource: Resource, replicas: int | None) -> Resource:
    if isinstance(resource, StreamConfig):
        return replace(resource, num_replicas=resource.num_replicas or replicas)
    return replace(resource, replicas=resource.replicas or replicas)


def plan_resources(js: JetStream, resources: Iterable[Wanted]) -> Iterator[SetupStep]:
    """Return a step for each stream and bucket that does not exist, or differs from a given config."""
    listed = list(resources)
    declared = [
        Declared(config=item.resource, fields=_given_fields(item.resource)) for item in listed
    ]
    for wanted, step in zip(listed, plan(js, declared), strict=True):
        if step.action == CREATE or (step.action == UPDATE and wanted.is_given):
            yield SetupStep(
                action=step.action,
                name=name_of(wanted.resource),
                differences=[difference.text for difference in step.found],
                run=partial(step.run, js),
            )


def occupied_buckets(js: JetStream, resources: Iterable[Wanted]) -> dict[str, str]:
    """Return why missing buckets cannot be created: their streams exist, and are no buckets; by `name_of`."""
    found = {}
    for resource in [item.resource for item in resources]:
        if isinstance(resource, KeyValueConfig):
            try:
                js.key_value(resource.bucket)
            except errors.BucketNotFoundError as error:
                with suppress(errors.StreamNotFoundError):
                    js.get_stream(f"{KV_PREFIX}{resource.bucket}")
                    found[name_of(resource)] = error.description
    return found


def _given_fields(resource: Resource) -> frozenset[str]:
    """Return the names of the fields that a config sets; the others keep their values."""
    names = [item.name for item in fields(resource) if item.name != "extra"]
    given = {name for name in names if getattr(resource, name) is not None}
    return frozenset(given | getattr(resource, "extra", {}).keys())


def create_missing(js: JetStream, resources: Iterable[Wanted]) -> list[SetupStep]:
    """Create the streams and buckets that do not exist; return the steps that are left."""
    steps = list(plan_resources(js, resources))
    for step in steps:
        if step.action == CREATE:
            step.run()
    return [step for step in steps if step.action != CREATE]


# --- opening ------------------------------------------------------------------------------------


class Opener(Generic[T]):
    """
    Opens a stream or bucket of workers: for the first use of a connection, and again after it was deleted.

    Args:
        connection: returns the connection of this process; a forked process has another one.
        read: returns what is opened on a connection; raises `StreamNotFoundError` if it is missing.
        create: creates it, and perhaps more that is missing, unless the worker must not.

    """

    def __init__(
        self,
        connection: Callable[[], Connection],
        read: Callable[[Connection], T],
        create: Callable[[Connection], object] = lambda _nc: None,
    ) -> None:
        self._connection = connection
        self._create = create
        self._read = read
        self._opened: tuple[Connection, T] | None = None

    @property
    def is_open(self) -> bool:
        """Whether `open` makes no request."""
        return self._opened is not None and self._opened[0] is self._connection()

    def open(self) -> T:
        """Return what is opened; create it if it is missing."""
        nc = self._connection()
        opened = self._opened
        if opened is None or opened[0] is not nc:
            try:
                found = self._read(nc)
            except errors.StreamNotFoundError:
                self._create(nc)
                found = self._read(nc)
            opened = self._opened = nc, found
        return opened[1]

    def use(self, action: Callable[[T], R]) -> R:
        """Return what an action returns; if the stream was deleted, repeat the action once."""
        try:
            return action(self.open())
        except (errors.NoStreamResponseError, errors.StreamNotFoundError):
            self._opened = None
            return action(self.open())


BucketOpener: TypeAlias = "Opener[tuple[KeyValue, Stream]]"


def bucket_opener(
    connection: Callable[[], Connection],
    name: str,
    create: Callable[[Connection], object],
    timeout: float = 5.0,
) -> BucketOpener:
    """Return what opens a bucket and its stream; ``timeout``: of each request, in seconds."""

    def read(nc: Connection) -> tuple[KeyValue, Stream]:
        js = nc.jetstream(timeout=timeout)
        return js.key_value(name), js.get_stream(f"{KV_PREFIX}{name}")

    return Opener(connection, read, create)
