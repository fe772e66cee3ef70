"""
From declared configs to steps: what has to be created, updated or deleted on the server.

`plan` compares each declared stream, consumer, bucket or object store with the server and changes nothing; a
`Step` does its part when it is run. A field that is not declared keeps its value, or with ``strict`` gets its
default.

Declared objects may belong to a set, whose name is in their metadata. Only objects of the set are ever deleted.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from .. import ConsumerConfig, KeyValueConfig, ObjectStoreConfig, StreamConfig, errors
from ..differences import Difference, differences, without_server_labels

if TYPE_CHECKING:
    from .. import JetStream

Config = StreamConfig | ConsumerConfig | KeyValueConfig | ObjectStoreConfig

CREATE, UPDATE, NOTHING, DELETE = "create", "update", "", "delete"
#: The key of the metadata with the name of the set.
SET_LABEL: Final = "jetstream_sync.set"
#: Fields of consumers of which only one may be set.
_EXCLUSIVE: Final = {"filter_subject": "filter_subjects", "filter_subjects": "filter_subject"}


@dataclass(frozen=True, kw_only=True)
class Declared:
    """A declared stream, consumer, bucket or object store."""

    config: Config
    stream: str = ""
    """The stream of a consumer."""
    fields: frozenset[str] = frozenset()
    """The fields that are declared."""

    @property
    def kind(self) -> str:
        """``stream``, ``consumer``, ``bucket`` or ``object store``."""
        return _KINDS[type(self.config)].name

    @property
    def own_name(self) -> str:
        """The name."""
        config = self.config
        if isinstance(config, StreamConfig):
            return config.name
        if isinstance(config, ConsumerConfig):
            return str(config.durable_name or config.name)
        return config.bucket

    @property
    def name(self) -> str:
        """The name, with that of the stream for a consumer."""
        return f"{self.stream} > {self.own_name}" if self.stream else self.own_name

    @property
    def title(self) -> str:
        """Kind and name, for messages."""
        return f"{self.kind} {self.name}"

    def current(self, js: JetStream) -> Config:
        """Return the present config; raise `NotFoundError` if there is none."""
        return _KINDS[type(self.config)].find(js, self)

    def in_set(self, name: str) -> Declared:
        """Return the same with the label of a set."""
        labels = {**(self.config.metadata or {}), SET_LABEL: name}
        config = replace(self.config, metadata=labels)
        return replace(self, config=config, fields=self.fields | {"metadata"})

    def change_from(self, found: Config) -> Step:
        """Return the step from the present config of the object to the declared one."""
        changes = differences(found, self.config)
        action = UPDATE if changes else NOTHING
        declared = replace(self, config=without_server_labels(self.config))
        return Step(action=action, declared=declared, found=changes)


@dataclass(frozen=True, kw_only=True)
class Step:
    """The action for one declared object, or for one that is to be deleted."""

    action: str
    declared: Declared
    """With the new config, or for a deletion the present one."""
    found: Sequence[Difference] = ()
    """The differences, for an update."""
    unmanaged: Sequence[Difference] = ()
    """The fields that are not declared and differ from their defaults."""
    messages: int | None = None
    """For the deletion of a stream, bucket or store: the number of its messages."""

    def run(self, js: JetStream) -> Any:
        """
        Do it; an update changes the fields that differed, and no others.

        Returns:
            What the call returned; ``None`` if there was nothing to do.

        Raises:
            Error: the server refused.

        """
        config, stream = self.declared.config, self.declared.stream
        if self.action == NOTHING:
            return None
        if self.action == UPDATE:
            # Another program may have changed other fields since the config was read.
            config = self._on(self.declared.current(js))
        is_push = self.action != DELETE and getattr(config, "deliver_subject", None)
        kind = f"push_{_KINDS[type(config)].noun}" if is_push else _KINDS[type(config)].noun
        call = getattr(js, f"{self.action}_{kind}")
        where = [stream] if stream else []
        return call(*where, self.declared.own_name if self.action == DELETE else config)

    def _on(self, present: Config) -> Config:
        """Return the present config with the fields that this step changes."""
        wanted: Any = self.declared.config
        known = {field.name for field in dataclasses.fields(wanted)} - {"extra"}
        values = {
            item.field: getattr(wanted, item.field) for item in self.found if item.field in known
        }
        if "metadata" in values:
            before = next(item.before for item in self.found if item.field == "metadata") or {}
            others = {k: v for k, v in (present.metadata or {}).items() if k not in before}
            values["metadata"] = {**others, **(values["metadata"] or {})} or None
        if hasattr(wanted, "extra"):
            names = {item.field for item in self.found} - known
            kept = {name: value for name, value in present.extra.items() if name not in names}
            values["extra"] = kept | {k: v for k, v in wanted.extra.items() if k in names}
        return without_server_labels(replace(present, **values))

    def overwritten(self, js: JetStream, result: Any) -> list[Difference]:
        """Return the fields of an update that have another value than in the `result` of `run`, by another program."""
        fields = {item.field for item in self.found}
        # The server may have corrected a value.
        stored = getattr(getattr(result, "cached_info", result), "config", None)
        wanted = stored if isinstance(stored, type(self.declared.config)) else self.declared.config
        found = differences(wanted, self.declared.current(js))
        return [item for item in found if item.field in fields]


class _Kind(NamedTuple):
    """What a kind of object is called, and how it is read."""

    name: str
    #: Its name in the methods of `JetStream` that create, update and delete one.
    noun: str
    find: Callable[[JetStream, Declared], Config]


_KINDS: Final[dict[type, _Kind]] = {
    StreamConfig: _Kind(
        *("stream", "stream"), lambda js, item: js.get_stream(item.name).cached_info.config
    ),
    ConsumerConfig: _Kind(
        *("consumer", "consumer"),
        lambda js, item: js.consumer_info(item.stream, item.own_name).config,
    ),
    KeyValueConfig: _Kind(
        *("bucket", "key_value"), lambda js, item: js.key_value(item.name).status().config
    ),
    ObjectStoreConfig: _Kind(
        *("object store", "object_store"),
        lambda js, item: js.object_store(item.name).status().config,
    ),
}


# --- comparing ----------------------------------------------------------------------------------


def plan(js: JetStream, declared: Iterable[Declared], *, strict: bool = False) -> list[Step]:
    """
    Return one step for each declared object, in the same order; nothing is changed.

    Args:
        js: where to look.
        declared: the objects, streams before their consumers.
        strict: whether fields that are not declared get their defaults.

    """
    listed = list(declared)
    created = {item.name for item in listed if isinstance(item.config, StreamConfig)}
    return [_step(js, item, created, strict=strict) for item in listed]


def _step(js: JetStream, declared: Declared, created: set[str], *, strict: bool) -> Step:
    try:
        found = declared.current(js)
    except errors.NotFoundError:
        if declared.stream and declared.stream not in created:
            _require_stream(js, declared)
        return Step(action=CREATE, declared=declared)
    merged = _merged(found, declared)
    bare = replace(declared.config, metadata=merged.metadata)
    step = replace(declared, config=bare if strict else merged).change_from(found)
    # The values that a strict comparison would replace.
    return step if strict else replace(step, unmanaged=differences(merged, bare))


def _require_stream(js: JetStream, declared: Declared) -> None:
    try:
        js.get_stream(declared.stream)
    except errors.StreamNotFoundError as error:
        text = f"{declared.title}: stream {declared.stream} does not exist and is not declared"
        raise errors.StreamNotFoundError(error.code, error.err_code, text) from error


def _merged(found: Config, declared: Declared) -> Config:
    """Return the present config with the declared fields; metadata entries are added."""
    known = {field.name for field in dataclasses.fields(found)} - {"extra"}
    given: dict[str, Any] = {
        name: getattr(declared.config, name) for name in declared.fields & known
    }
    for one, other in _EXCLUSIVE.items():
        if given.get(one) and other in known and other not in given:
            given[other] = None
    labels = given.get("metadata")
    if isinstance(labels, Mapping):
        given["metadata"] = {**(found.metadata or {}), **labels}
    if hasattr(found, "extra"):
        extra = getattr(declared.config, "extra", {})
        more = {name: value for name, value in extra.items() if name in declared.fields}
        given["extra"] = {**found.extra, **more}
    return without_server_labels(replace(found, **given))


def set_of(config: Config) -> str | None:
    """Return the set that an object belongs to."""
    return (config.metadata or {}).get(SET_LABEL)
