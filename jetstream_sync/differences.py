"""Differences between two configs."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from datetime import timedelta
from typing import Any, Final, TypeVar

from .codec import Record, encode
from .durations import duration_text

R = TypeVar("R", bound=Record)


@dataclass(frozen=True, kw_only=True)
class Difference:
    """One field that differs between two configs; as JSON, ``None`` is an unset field."""

    field: str
    before: Any
    after: Any
    text: str
    """The difference in one line of text."""


def differences(before: R, after: R) -> list[Difference]:
    """Return the fields that differ, by name; an unset field equals its default."""
    old, new = (encode(without_server_labels(item)) for item in (before, after))
    defaults = {field.name: field.metadata.get("server_default") for field in fields(before)}
    found = []
    for name in sorted({*old, *new}):
        default = defaults.get(name)
        if default is ... and name not in new:
            continue
        if _normalized(old.get(name), default) == _normalized(new.get(name), default):
            continue
        values = (
            _shown(getattr(config, name, None), json.get(name))
            for config, json in ((before, old), (after, new))
        )
        found.append(
            Difference(
                field=name,
                before=old.get(name),
                after=new.get(name),
                text=f"{name}: {' -> '.join(values)}",
            )
        )
    return found


def without_server_labels(config: R) -> R:
    """Return a config without the metadata that the server adds."""
    labels = getattr(config, "metadata", None)
    if not labels:
        return config
    own = {key: text for key, text in labels.items() if not key.startswith("_nats.")}
    fields: dict[str, Any] = {"metadata": own or None}
    return config if len(own) == len(labels) else replace(config, **fields)


def _normalized(value: Any, default: Any) -> Any:
    """Return a value in normalized form for comparison: without fields that are unset, 0 or empty."""
    if value == default or not value:
        return None
    if isinstance(value, dict):
        return {key: _normalized(item, None) for key, item in value.items() if item} or None
    if isinstance(value, list):
        items = [_normalized(item, None) for item in value]
        return sorted(items) if all(isinstance(item, str) for item in items) else items
    return value


_FORMATTERS: Final[list[tuple[type, Callable[[Any], str]]]] = [
    (bool, lambda value: "true" if value else "false"),
    (timedelta, duration_text),
    (str, str),
    (int, str),
]


def _shown(value: Any, wire: Any) -> str:
    """Return a value as text: durations with units, other values as JSON."""
    if wire is None:
        return "-"
    for kind, form in _FORMATTERS:
        if isinstance(value, kind):
            return form(value)
    if isinstance(wire, list) and all(isinstance(item, str) for item in wire):
        return ", ".join(wire)
    return json.dumps(wire, ensure_ascii=False)
