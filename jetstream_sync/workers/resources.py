"""The streams and buckets that a worker needs."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Final, Protocol

from .. import (
    BucketNotFoundError,
    Error,
    KeyValueConfig,
    StorageType,
    StreamConfig,
    StreamNotFoundError,
)
from .dead_letters import DEAD_LETTER_SUBJECTS, MAX_AGE

if TYPE_CHECKING:
    from .. import Connection, JetStream
    from .handler import Handler

Resource = StreamConfig | KeyValueConfig

_DEAD_LETTER_WINDOW: Final = timedelta(hours=1)
#: How long a bucket for ``once`` keeps the states of messages.
_ONCE_TTL: Final = timedelta(days=30)


class Owner(Protocol):
    """What is used of a task."""

    def resources(self, nc: Connection) -> Sequence[Resource]:
        """Return the configs of its stream and its bucket."""


def has_schedules(nc: Connection) -> bool:
    """Return whether the server publishes messages at a time (2.12)."""
    version = [int(number) for number in re.findall(r"\d+", nc.server_info.version)]
    return version[:2] >= [2, 12]


def name_of(resource: Resource) -> str:
    """Return kind and name."""
    if isinstance(resource, StreamConfig):
        return f"stream {resource.name!r}"
    return f"bucket {resource.bucket!r}"


def resources_of(
    nc: Connection,
    handlers: Iterable[Handler],
    queues: Iterable[Owner],
    given: Sequence[Resource] = (),
    replicas: int | None = None,
) -> list[Resource]:
    """Return the configs of streams and buckets, those that are given first, each name once."""
    found = [*given]
    for queue in queues:
        found += queue.resources(nc)
    for handler in handlers:
        found += _of_handler(handler)
    by_name: dict[str, Resource] = {}
    for resource in found:
        by_name.setdefault(name_of(resource), resource)
    return [_with_replicas(resource, replicas) for resource in by_name.values()]


def _of_handler(handler: Handler) -> Iterator[Resource]:
    if handler.once is not None:
        yield KeyValueConfig(bucket=handler.once, ttl=_ONCE_TTL)
    if isinstance(handler.dead_letters, str):
        yield StreamConfig(
            name=handler.dead_letters,
            subjects=[DEAD_LETTER_SUBJECTS],
            storage=StorageType.FILE,
            duplicate_window=_DEAD_LETTER_WINDOW,
            max_age=MAX_AGE,
        )


def _with_replicas(resource: Resource, replicas: int | None) -> Resource:
    if isinstance(resource, StreamConfig):
        return replace(resource, num_replicas=resource.num_replicas or replicas)
    return replace(resource, replicas=resource.replicas or replicas)


def missing(js: JetStream, resources: Iterable[Resource]) -> Iterator[tuple[Resource, Error]]:
    """Return the streams and buckets that do not exist, with the error of the server."""
    for resource in resources:
        try:
            if isinstance(resource, StreamConfig):
                js.get_stream(resource.name)
            else:
                js.key_value(resource.bucket)
        except (StreamNotFoundError, BucketNotFoundError) as error:
            yield resource, error


def create_missing(js: JetStream, resources: Iterable[Resource]) -> None:
    """Create the streams and buckets that do not exist."""
    for resource, _error in missing(js, resources):
        if isinstance(resource, StreamConfig):
            js.create_stream(resource)
        else:
            js.create_key_value(resource)
