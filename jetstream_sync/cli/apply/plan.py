"""
What a file wants, compared with what there is: the plan that ``jsm apply`` carries out.

A file has streams, and consumers in them or beside them. What it does not say of a stream or consumer
stays as it is, and is the server's choice where it has to be made.
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

__all__ = ["CREATE", "DELETE", "NOTHING", "UPDATE", "Step", "Wish", "plan", "prune", "wishes"]

CREATE, UPDATE, NOTHING, DELETE = "create", "update", "nothing", "delete"


@dataclass(frozen=True, kw_only=True)
class Wish:
    """A stream or consumer that a file wants."""

    stream: str
    config: StreamConfig | ConsumerConfig
    fields: frozenset[str]
    """The fields that the file says."""

    @property
    def consumer(self) -> str | None:
        """The consumer's name; ``None`` for a stream."""
        if isinstance(self.config, StreamConfig):
            return None
        return self.config.durable_name or self.config.name


@dataclass(frozen=True, kw_only=True)
class Step:
    """What is to be done with one stream or consumer."""

    action: str
    stream: str
    consumer: str | None = None
    config: StreamConfig | ConsumerConfig | None = None
    """What it is to be; ``None`` where it goes."""
    found: list[Difference] = field(default_factory=list)
    """What changes, for an update."""

    @property
    def kind(self) -> str:
        """``stream`` or ``consumer``."""
        return "stream" if self.consumer is None else "consumer"

    @property
    def title(self) -> str:
        """What it is called."""
        return f"{self.kind} {self.stream}" + (f" > {self.consumer}" if self.consumer else "")

    @property
    def possible(self) -> bool:
        """Whether servers can do it."""
        return all(each.possible for each in self.found)


# --- reading ------------------------------------------------------------------------------------


def wishes(documents: Sequence[Any], path: str) -> list[Wish]:
    """
    Return what the documents of a file want, streams before consumers.

    Raises:
        CommandError: one makes no sense; the message says which, and why.

    """
    found: list[Wish] = []
    for number, document in enumerate(documents, 1):
        where = path if len(documents) == 1 else f"{path}, document {number}"
        if document is not None:
            found += _of_document(document, where)
    seen: set[tuple[str, str | None]] = set()
    for wish in found:
        key = wish.stream, wish.consumer
        if key in seen:
            name = wish.stream if wish.consumer is None else f"{wish.stream} > {wish.consumer}"
            raise CommandError(f"{path}: {name} is there twice", ExitStatus.USAGE)
        seen.add(key)
    return sorted(found, key=lambda wish: wish.consumer is not None)


def _of_document(document: Any, where: str) -> Iterator[Wish]:
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
        raise CommandError(f"{where}: {listed}: expected streams and consumers", ExitStatus.USAGE)
    for key in ("streams", "consumers"):
        items = document.get(key) or []
        if not isinstance(items, list):
            raise CommandError(f"{where}: {key}: expected a list", ExitStatus.USAGE)
        for number, item in enumerate(items):
            yield from _of_item(item, f"{where}, {key}[{number}]", consumer=key == "consumers")


def _of_item(item: Any, where: str, *, consumer: bool = False) -> Iterator[Wish]:
    if not isinstance(item, dict):
        raise CommandError(f"{where}: expected an object", ExitStatus.USAGE)
    names = {"stream", "stream_name"} & item.keys()
    try:
        if consumer or names:
            yield _consumer(item, item.get("stream") or item.get("stream_name"))
            return
        fields = dict(item)
        inside = fields.pop("consumers", None) or []
        wish = _stream(fields)
        yield wish
        if not isinstance(inside, list):
            raise InvalidArgumentError("consumers: expected a list")
        for each in inside:
            yield _consumer(each, wish.stream)
    except Error as error:
        raise CommandError(f"{where}: {error}", ExitStatus.USAGE) from error


def _bare(item: Any) -> dict[str, Any]:
    """Return the fields of a config, or of the config in an info."""
    if not isinstance(item, dict):
        raise InvalidArgumentError("expected an object")
    inner = item.get("config")
    return dict(inner) if isinstance(inner, dict) else dict(item)


def _stream(item: dict[str, Any]) -> Wish:
    fields = _bare(item)
    config = config_of(StreamConfig, fields, {})
    return Wish(stream=config.name, config=config, fields=frozenset(fields))


def _consumer(item: Any, stream: object) -> Wish:
    fields = _bare(item)
    for key in ("stream", "stream_name"):
        fields.pop(key, None)
    if not isinstance(stream, str):
        raise InvalidArgumentError("a consumer needs its stream")
    check_stream_name(stream)
    if isinstance(alias := fields.pop("durable", None), str):
        fields["durable_name"] = alias
    name = fields.get("durable_name") or fields.get("name")
    if not name:
        raise InvalidArgumentError(f"a consumer of {stream} has no name")
    if "inactive_threshold" not in fields:
        # One that is to be there is durable.
        fields["durable_name"] = name
    config = config_of(ConsumerConfig, fields, {})
    return Wish(stream=stream, config=config, fields=frozenset(fields))


# --- comparing ----------------------------------------------------------------------------------


def plan(js: JetStream, wanted: Sequence[Wish]) -> list[Step]:
    """
    Return what has to be done, in the order of the wishes; nothing is changed.

    Raises:
        CommandError: a consumer's stream is neither there nor wanted.
        Error: the server can not be asked.

    """
    made = {wish.stream for wish in wanted if wish.consumer is None}
    return [_step(js, wish, made) for wish in wanted]


def _step(js: JetStream, wish: Wish, made: set[str]) -> Step:
    found: StreamConfig | ConsumerConfig
    try:
        if wish.consumer is None:
            found = js.get_stream(wish.stream).cached_info.config
        else:
            found = js.consumer_info(wish.stream, wish.consumer).config
    except StreamNotFoundError:
        if wish.consumer is not None and wish.stream not in made:
            raise CommandError(
                f"consumer {wish.consumer}: there is no stream {wish.stream}, and the file has none",
                ExitStatus.NOT_FOUND,
            ) from None
        return _new(wish)
    except ConsumerNotFoundError:
        return _new(wish)
    config = _merged(found, wish)
    changes = differences(found, config)
    return Step(
        action=UPDATE if changes else NOTHING,
        stream=wish.stream,
        consumer=wish.consumer,
        config=config,
        found=changes,
    )


def _new(wish: Wish) -> Step:
    return Step(action=CREATE, stream=wish.stream, consumer=wish.consumer, config=wish.config)


def _merged(found: StreamConfig | ConsumerConfig, wish: Wish) -> StreamConfig | ConsumerConfig:
    """Return what there is with what the file says; labels are added to those that there are."""
    known = {each.name for each in dataclasses.fields(found)} - {"extra"}
    said: dict[str, Any] = {name: getattr(wish.config, name) for name in wish.fields & known}
    for one, other in (
        ("filter_subject", "filter_subjects"),
        ("filter_subjects", "filter_subject"),
    ):
        if said.get(one) and other in known and other not in said:
            said[other] = None
    labels = said.get("metadata")
    if isinstance(labels, Mapping):
        said["metadata"] = {**(found.metadata or {}), **labels}
    more = {name: value for name, value in wish.config.extra.items() if name in wish.fields}
    merged = replace(found, **said, extra={**found.extra, **more})
    return without_server_labels(merged)


def prune(js: JetStream, wanted: Sequence[Wish]) -> list[Step]:
    """
    Return what the account has and the file has not: streams, and consumers of its streams.

    Streams of buckets, object stores and MQTT are left alone, and so are ephemeral consumers.
    """
    streams = {wish.stream for wish in wanted if wish.consumer is None}
    kept = {(wish.stream, wish.consumer) for wish in wanted}
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
