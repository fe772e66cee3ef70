"""
``jsm apply``: create and update streams and consumers from a file; repeating it changes nothing.

The plan has the differences between the file and the server, as a list of steps. A file has streams, and
consumers inside a stream or in a list of their own. A field that the file does not contain keeps its
value; in a new stream or consumer the server chooses it.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import click

from .. import ConsumerConfig, JetStream, StreamConfig
from ..differences import Difference, differences, without_server_labels
from ..errors import (
    APIError,
    ConsumerNotFoundError,
    Error,
    InvalidArgumentError,
    StreamNotFoundError,
)
from ..subjects import check_stream_name
from .config import config_of, difference_documents, read_documents, update_error
from .output import emit
from .prompts import Asker
from .settings import Settings, command
from .status import CommandError, ExitStatus
from .streams import is_internal
from .values import FILE, option

CREATE, UPDATE, NOTHING, DELETE = "create", "update", "", "delete"


@dataclass(frozen=True, kw_only=True)
class DesiredResource:
    """A stream or consumer in a file."""

    stream: str
    config: StreamConfig | ConsumerConfig
    fields: frozenset[str]
    """The fields that the file contains."""

    @property
    def consumer(self) -> str | None:
        """The name of the consumer; ``None`` for a stream."""
        if isinstance(self.config, StreamConfig):
            return None
        return self.config.durable_name or self.config.name


@dataclass(frozen=True, kw_only=True)
class Step:
    """The action for one stream or consumer."""

    action: str
    stream: str
    consumer: str | None = None
    config: StreamConfig | ConsumerConfig | None = None
    """The new config; ``None`` for a deletion."""
    found: list[Difference] = field(default_factory=list)
    """The differences, for an update."""

    @property
    def kind(self) -> str:
        """``stream`` or ``consumer``."""
        return "stream" if self.consumer is None else "consumer"

    @property
    def title(self) -> str:
        """Kind and name, for messages."""
        return f"{self.kind} {self.stream}" + (f" > {self.consumer}" if self.consumer else "")


# --- reading ------------------------------------------------------------------------------------


def desired_resources(documents: Sequence[Any], path: str) -> list[DesiredResource]:
    """Return the streams and consumers in the documents of a file, streams first."""
    found: list[DesiredResource] = []
    for number, document in enumerate(documents, 1):
        where = path if len(documents) == 1 else f"{path}, document {number}"
        if document is not None:
            found += _of_document(document, where)
    seen: set[tuple[str, str | None]] = set()
    for resource in found:
        key = resource.stream, resource.consumer
        if key in seen:
            name = (
                resource.stream
                if resource.consumer is None
                else f"{resource.stream} > {resource.consumer}"
            )
            raise CommandError(f"{path}: {name} occurs twice")
        seen.add(key)
    return sorted(found, key=lambda resource: resource.consumer is not None)


def _of_document(document: Any, where: str) -> Iterator[DesiredResource]:
    if isinstance(document, list):
        for number, item in enumerate(document):
            yield from _of_document(item, f"{where}, item {number + 1}")
        return
    if not isinstance(document, dict):
        raise CommandError(f"{where}: expected an object")
    if not {"streams", "consumers"} & document.keys() or "name" in document:
        yield from _of_item(document, where)
        return
    unknown = document.keys() - {"streams", "consumers"}
    if unknown:
        listed = ", ".join(sorted(map(str, unknown)))
        raise CommandError(f"{where}: unknown keys {listed}: expected 'streams' and 'consumers'")
    for key in ("streams", "consumers"):
        items = document.get(key) or []
        if not isinstance(items, list):
            raise CommandError(f"{where}: {key}: expected a list")
        for number, item in enumerate(items):
            yield from _of_item(item, f"{where}, {key}[{number}]", consumer=key == "consumers")


def _of_item(item: Any, where: str, *, consumer: bool = False) -> Iterator[DesiredResource]:
    if not isinstance(item, dict):
        raise CommandError(f"{where}: expected an object")
    names = {"stream", "stream_name"} & item.keys()
    try:
        if consumer or names:
            yield _consumer(item, item.get("stream") or item.get("stream_name"))
            return
        fields = dict(item)
        inside = fields.pop("consumers", None) or []
        resource = _stream(fields)
        yield resource
        if not isinstance(inside, list):
            raise InvalidArgumentError("consumers: expected a list")
        for each in inside:
            yield _consumer(each, resource.stream)
    except Error as error:
        raise CommandError(f"{where}: {error}") from error


def _config_fields(item: Any) -> dict[str, Any]:
    """Return the fields of a config, or of the config inside an info document."""
    if not isinstance(item, dict):
        raise InvalidArgumentError("expected an object")
    inner = item.get("config")
    return dict(inner) if isinstance(inner, dict) else dict(item)


def _stream(item: dict[str, Any]) -> DesiredResource:
    fields = _config_fields(item)
    config = config_of(StreamConfig, fields, {})
    return DesiredResource(stream=config.name, config=config, fields=frozenset(fields))


def _consumer(item: Any, stream: object) -> DesiredResource:
    fields = _config_fields(item)
    for key in ("stream", "stream_name"):
        fields.pop(key, None)
    if not isinstance(stream, str):
        raise InvalidArgumentError("a consumer needs the name of its stream: set 'stream'")
    check_stream_name(stream)
    if isinstance(alias := fields.pop("durable", None), str):
        fields["durable_name"] = alias
    name = fields.get("durable_name") or fields.get("name")
    if not name:
        raise InvalidArgumentError(f"a consumer of {stream} has no name")
    if "inactive_threshold" not in fields:
        # A consumer without an inactive threshold is meant to stay, so it must be durable.
        fields["durable_name"] = name
    config = config_of(ConsumerConfig, fields, {})
    return DesiredResource(stream=stream, config=config, fields=frozenset(fields))


# --- comparing ----------------------------------------------------------------------------------


def plan(js: JetStream, desired: Sequence[DesiredResource]) -> list[Step]:
    """Return one step for each resource, in the same order; nothing is changed."""
    created = {resource.stream for resource in desired if resource.consumer is None}
    return [_step(js, resource, created) for resource in desired]


def _step(js: JetStream, resource: DesiredResource, created: set[str]) -> Step:
    found: StreamConfig | ConsumerConfig
    try:
        if resource.consumer is None:
            found = js.get_stream(resource.stream).cached_info.config
        else:
            found = js.consumer_info(resource.stream, resource.consumer).config
    except StreamNotFoundError:
        if resource.consumer is not None and resource.stream not in created:
            raise CommandError(
                f"consumer {resource.consumer}: stream {resource.stream} exists neither on the server nor in "
                "the file",
                ExitStatus.NOT_FOUND,
            ) from None
        return _new(resource)
    except ConsumerNotFoundError:
        return _new(resource)
    config = _merged(found, resource)
    changes = differences(found, config)
    return Step(
        action=UPDATE if changes else NOTHING,
        stream=resource.stream,
        consumer=resource.consumer,
        config=config,
        found=changes,
    )


def _new(resource: DesiredResource) -> Step:
    return Step(
        action=CREATE, stream=resource.stream, consumer=resource.consumer, config=resource.config
    )


def _merged(
    found: StreamConfig | ConsumerConfig, resource: DesiredResource
) -> StreamConfig | ConsumerConfig:
    """Return the current config with the fields of the file; metadata entries are added."""
    known = {each.name for each in dataclasses.fields(found)} - {"extra"}
    given: dict[str, Any] = {
        name: getattr(resource.config, name) for name in resource.fields & known
    }
    for one, other in (
        ("filter_subject", "filter_subjects"),
        ("filter_subjects", "filter_subject"),
    ):
        if given.get(one) and other in known and other not in given:
            given[other] = None
    labels = given.get("metadata")
    if isinstance(labels, Mapping):
        given["metadata"] = {**(found.metadata or {}), **labels}
    more = {name: value for name, value in resource.config.extra.items() if name in resource.fields}
    merged = replace(found, **given, extra={**found.extra, **more})
    return without_server_labels(merged)


def prune(js: JetStream, desired: Sequence[DesiredResource]) -> list[Step]:
    """
    Return a deletion for each stream, and each consumer of a stream in the file, not in the file.

    Streams of key-value buckets, object stores and MQTT are kept, and so are ephemeral consumers.
    """
    streams = {resource.stream for resource in desired if resource.consumer is None}
    kept = {(resource.stream, resource.consumer) for resource in desired}
    steps = []
    for name in js.stream_names():
        if name in streams:
            steps += [
                Step(action=DELETE, stream=name, consumer=each.name)
                for each in js.list_consumers(name)
                if each.config.durable_name and (name, each.name) not in kept
            ]
        elif not is_internal(name) and not any(stream == name for stream, _ in kept):
            steps.append(Step(action=DELETE, stream=name))
    return steps


@command("apply")
@option("-f, --file FILE", "JSON or YAML file; - is stdin.", FILE, to="path", required=True)
@option("--dry-run", "Show what would be done, and change nothing.")
@option("--exit-code", "With --dry-run: exit with status 1 if there are changes.")
@option("--prune", "Delete streams and consumers that are not in the file.", to="pruning")
@option("--force, -y, --yes", "With --prune: do not ask for confirmation.")
def apply(
    settings: Settings, path: str, dry_run: bool, exit_code: bool, pruning: bool, force: bool
) -> None:
    """
    Create and update streams and consumers from a file.

    A stream or consumer that already matches the file is left unchanged, so applying a file again
    changes nothing. Fields that the file does not contain keep their values. Nothing is deleted
    without --prune, which deletes all other streams of the account and all other durable consumers
    of the streams in the file.

    \b
      {"streams": [
        {"name": "ORDERS", "subjects": ["ORDERS.*"], "max_age": "1y",
         "consumers": [{"name": "NEW", "filter_subject": "ORDERS.received"}]}
      ]}

    \b
    Exit status:
      0  the streams and consumers match the file
      1  the server refused a change;
         with --dry-run --exit-code: there are changes
      2  the file cannot be read, or --prune needs a confirmation and there is no terminal
      3  the stream of a consumer exists neither on the server nor in the file
      5  no connection
    """  # noqa: D301 - click knows its mark by the character, not by the escape
    desired = desired_resources(read_documents(settings, path), path)
    if pruning and not desired:
        raise CommandError(
            f"{path} contains no streams or consumers: --prune would delete everything"
        )
    with settings.jetstream() as js:
        steps = plan(js, desired)
        if pruning:
            steps += prune(js, desired)
        if dry_run:
            _report(settings, steps, dry_run=True)
            if exit_code and any(step.action != NOTHING for step in steps):
                raise click.exceptions.Exit(ExitStatus.FAILED)
            return
        deleted = [step.title for step in steps if step.action == DELETE]
        if deleted:
            Asker(settings).confirm(f"Delete {', '.join(deleted)}?", force=force)
        done: list[Step] = []
        try:
            for step in steps:
                _execute(js, step)
                done.append(step)
        finally:
            # Also report the steps that were completed before an error.
            _report(settings, done, dry_run=False)


def _execute(js: JetStream, step: Step) -> None:
    if step.action == NOTHING:
        return
    try:
        if step.action == DELETE:
            _delete(js, step)
        elif isinstance(step.config, StreamConfig):
            change = js.create_stream if step.action == CREATE else js.update_stream
            change(step.config)
        elif isinstance(step.config, ConsumerConfig):
            _apply_consumer(js, step.stream, step.config, create=step.action == CREATE)
    except APIError as error:
        if step.action == UPDATE:
            raise update_error(step.title, error, step.found) from error
        raise CommandError(f"{step.title}: {error}", ExitStatus.FAILED) from error


def _delete(js: JetStream, step: Step) -> None:
    if step.consumer is None:
        js.delete_stream(step.stream)
    else:
        js.delete_consumer(step.stream, step.consumer)


def _apply_consumer(js: JetStream, stream: str, config: ConsumerConfig, *, create: bool) -> None:
    if config.deliver_subject:
        push = js.create_push_consumer if create else js.update_push_consumer
        push(stream, config)
    else:
        pull = js.create_consumer if create else js.update_consumer
        pull(stream, config)


def _report(settings: Settings, steps: list[Step], *, dry_run: bool) -> None:
    """Write the steps that were done, or would be done, and a summary."""
    counts = Counter(step.action for step in steps)
    document = {
        "dry_run": dry_run,
        "items": [_item(step) for step in steps],
        "summary": {_verb(action): counts[action] for action in (CREATE, UPDATE, NOTHING, DELETE)},
    }
    width = max((len(_verb(step.action, dry_run=dry_run)) for step in steps), default=0)
    lines = []
    for step in steps:
        lines.append(f"{_verb(step.action, dry_run=dry_run):<{width}}  {step.title}")
        lines += [f"{'':<{width}}    {each.text}" for each in step.found]
    totals = [f"{number} {_verb(action, dry_run=dry_run)}" for action, number in counts.items()]
    lines.append(", ".join(totals) or "Nothing to do")
    emit(settings, document, lambda: settings.env.stdout.write("\n".join([*lines, ""])))


def _verb(action: str, *, dry_run: bool = False) -> str:
    if action == NOTHING:
        return "unchanged"
    return f"would {action}" if dry_run else f"{action}d"


def _item(step: Step) -> dict[str, Any]:
    item: dict[str, Any] = {"kind": step.kind, "stream": step.stream}
    if step.consumer is not None:
        item["consumer"] = step.consumer
    item["action"] = _verb(step.action)
    if step.found:
        item["differences"] = difference_documents(step.found)
    return item
