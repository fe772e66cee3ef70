"""Differences between two configs."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import fields, replace
from datetime import timedelta
from typing import Any, TypeVar

from .codec import Record, encode
from .durations import duration_text
from .records import Frozen, frozen

R = TypeVar("R", bound=Record)


@frozen(kw_only=True)
class Difference(Frozen):
    """One field that differs between two configs; as JSON, ``None`` is an unset field."""

    field: str
    before: Any
    after: Any
    text: str
    """The difference in one line of text."""


def differences(before: R, after: R) -> list[Difference]:
    """Return the fields that differ, by name; an unset field equals its default."""
    before, after = without_server_labels(before), without_server_labels(after)
    old, new = encode(before), encode(after)
    return [
        Difference(
            field=name,
            before=old.get(name),
            after=new.get(name),
            text=f"{name}: {_shown(before, name, old)} -> {_shown(after, name, new)}",
        )
        for name in changed_fields(before, after)
    ]


def changed_fields(before: R, after: R) -> list[str]:
    """Return the names of the fields that differ, sorted; an unset field equals its default."""
    before, after = without_server_labels(before), without_server_labels(after)
    defaults = {field.name: field.metadata.get("server_default") for field in fields(before)}
    found = []
    for name in sorted({*defaults, *before.extra, *after.extra} - {"extra"}):
        default, wanted = defaults.get(name), _value(after, name)
        if default is ... and wanted is None:
            continue  # the server chooses it
        if normalized(_value(before, name), default) != normalized(wanted, default):
            found.append(name)
    return found


def explained(before: R, after: R) -> tuple[str, dict[str, tuple[object, object]]]:
    """Return the fields that differ as text, and with their values."""
    found = differences(before, after)
    values = {item.field: (item.before, item.after) for item in found}
    text = "; ".join(item.text for item in found)
    return text or "other values of fields that are not set here", values


def _value(config: Record, name: str) -> Any:
    """Return the value of a field, also of one that this version does not know."""
    return getattr(config, name, None) if name not in config.extra else config.extra[name]


def without_server_labels(config: R) -> R:
    """Return a config without the metadata that the server adds."""
    labels = getattr(config, "metadata", None)
    if not labels:
        return config
    own = {key: text for key, text in labels.items() if not key.startswith("_nats.")}
    fields: dict[str, Any] = {"metadata": own or None}
    return config if len(own) == len(labels) else replace(config, **fields)


def normalized(value: Any, default: Any = None) -> Any:
    """Return a value in the form for comparisons: ``None`` if it is unset, 0, empty or the default."""
    if isinstance(value, Record):
        values = {
            field.name: normalized(getattr(value, field.name), field.metadata.get("server_default"))
            for field in fields(value)
        }
        return {name: item for name, item in values.items() if item is not None} or None
    if value == default or not value:
        return None
    if isinstance(value, Mapping):
        return {key: normalized(item) for key, item in value.items() if item} or None
    if isinstance(value, (list, tuple)):
        items = [normalized(item) for item in value]
        return sorted(items) if all(isinstance(item, str) for item in items) else items
    return value


def _shown(config: Record, name: str, encoded: Mapping[str, Any]) -> str:
    """Return the value of a field as text: durations with units, other values as JSON."""
    wire = encoded.get(name)
    if wire is None:
        return "-"
    shown = _readable(getattr(config, name, None), wire)
    texts = [shown] if isinstance(shown, str) else shown
    if isinstance(texts, list) and all(isinstance(item, str) for item in texts):
        # A line break in a description must not look like the next field.
        return ", ".join(item if item.isprintable() else json.dumps(item) for item in texts)
    return json.dumps(shown, ensure_ascii=False)


def _readable(value: Any, wire: Any) -> Any:
    """Return the JSON of a value in which durations have units, also inside of records and lists."""
    if isinstance(value, timedelta):
        return duration_text(value)
    if isinstance(value, Record) and isinstance(wire, dict):
        return {name: _readable(getattr(value, name, None), item) for name, item in wire.items()}
    if isinstance(value, (list, tuple)):
        return [_readable(*pair) for pair in zip(value, wire, strict=True)]
    return wire
