"""The streams and buckets that a worker needs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields, replace
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

from .. import KeyValueConfig, StorageType, StreamConfig, errors
from ..declare import CREATE, UPDATE, Declared, plan
from ..subjects import KV_PREFIX
from .dead_letters import DEAD_LETTER_SUBJECTS, MAX_AGE
from .openers import Resource

if TYPE_CHECKING:
    from .. import JetStream
    from .source import Source

_DEAD_LETTER_WINDOW: Final = timedelta(hours=1)
#: How long a bucket for ``once`` keeps the states of messages.
_ONCE_TTL: Final = timedelta(days=30)


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
