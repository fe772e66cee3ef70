"""
The plan of ``jsm apply``: the differences between a file and the server, as a list of steps.

A file has streams, and consumers inside a stream or in a list of their own. A field that the file does
not contain keeps its value; in a new stream or consumer the server chooses it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ... import ConsumerConfig, JetStream, StreamConfig
from ...errors import ConsumerNotFoundError, Error, InvalidArgumentError, StreamNotFoundError
from ...subjects import check_stream_name
from ..config.diff import Difference, differences, without_server_labels
from ..config.files import config_of
from ..status import CommandError, ExitStatus
from ..stream.ls import is_internal

__all__ = [
    "CREATE",
    "DELETE",
    "NOTHING",
    "UPDATE",
    "DesiredResource",
    "Step",
    "desired_resources",
    "plan",
    "prune",
]

CREATE, UPDATE, NOTHING, DELETE = "create", "update", "nothing", "delete"


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

    @property
    def possible(self) -> bool:
        """Whether a server can make every change."""
        return all(each.possible for each in self.found)


# --- reading ------------------------------------------------------------------------------------


def desired_resources(documents: Sequence[Any], path: str) -> list[DesiredResource]:
    """
    Return the streams and consumers in the documents of a file, streams first.

    Raises:
        CommandError: a document is invalid; the error names the document and the reason.

    """
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
            raise CommandError(f"{path}: {name} occurs twice", ExitStatus.USAGE)
        seen.add(key)
    return sorted(found, key=lambda resource: resource.consumer is not None)


def _of_document(document: Any, where: str) -> Iterator[DesiredResource]:
    if isinstance(document, list):
        for number, item in enumerate(document):
            yield from _of_document(item, f"{where}, item {number + 1}")
        return
    if not isinstance(document, dict):
        raise CommandError(f"{where}: expected an object", ExitStatus.USAGE)
    if not {"streams", "consumers"} & document.keys() or "name" in document:
        yield from _of_item(document, where)
        return
    unknown = document.keys() - {"streams", "consumers"}
    if unknown:
        listed = ", ".join(sorted(map(str, unknown)))
        raise CommandError(
            f"{where}: unknown keys {listed}: expected 'streams' and 'consumers'", ExitStatus.USAGE
        )
    for key in ("streams", "consumers"):
        items = document.get(key) or []
        if not isinstance(items, list):
            raise CommandError(f"{where}: {key}: expected a list", ExitStatus.USAGE)
        for number, item in enumerate(items):
            yield from _of_item(item, f"{where}, {key}[{number}]", consumer=key == "consumers")


def _of_item(item: Any, where: str, *, consumer: bool = False) -> Iterator[DesiredResource]:
    if not isinstance(item, dict):
        raise CommandError(f"{where}: expected an object", ExitStatus.USAGE)
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
        raise CommandError(f"{where}: {error}", ExitStatus.USAGE) from error


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
    """
    Return one step for each resource, in the same order; nothing is changed.

    Raises:
        CommandError: the stream of a consumer exists neither on the server nor in the file.
        Error: a request to the server failed.

    """
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
