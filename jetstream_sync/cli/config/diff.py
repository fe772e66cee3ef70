"""Differences between two configs, and whether the server supports the change."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, Final, TypeVar

from ... import ConsumerConfig, StreamConfig
from ...codec import Record, encode
from ..output import duration, note
from ..settings import Settings

__all__ = [
    "Difference",
    "difference_documents",
    "differences",
    "said",
    "warn_of_ignored",
    "without_server_labels",
]

R = TypeVar("R", bound=Record)

#: The server's defaults for unset fields; 0, false and empty values are not listed.
_DEFAULTS: Final[Mapping[str, object]] = {
    "retention": "limits",
    "storage": "file",
    "discard": "old",
    "num_replicas": 1,
    "compression": "none",
    "persist_mode": "default",
    "max_consumers": -1,
    "max_msgs": -1,
    "max_bytes": -1,
    "max_msgs_per_subject": -1,
    "max_msg_size": -1,
    "max_deliver": -1,
    "deliver_policy": "all",
    "replay_policy": "instant",
    "priority_policy": "none",
}
#: Fields whose defaults depend on other settings: when unset, the server decides.
_LEFT_TO_SERVER: Final = frozenset(
    {"duplicate_window", "ack_wait", "max_ack_pending", "max_waiting", "consumer_limits", "name"}
    | {"ack_policy", "subjects", "inactive_threshold"}
)
#: Fields that can only be turned on, by the class of the config.
_ENABLE_ONLY: Final[Mapping[type[Record], frozenset[str]]] = {
    StreamConfig: frozenset(
        {"sealed", "deny_delete", "deny_purge", "allow_msg_ttl", "allow_msg_schedules"}
    ),
    ConsumerConfig: frozenset(),
}
#: Fields that cannot be changed.
_IMMUTABLE: Final[Mapping[type[Record], frozenset[str]]] = {
    StreamConfig: frozenset({"name", "storage", "allow_msg_counter", "persist_mode"}),
    ConsumerConfig: frozenset(
        {"deliver_policy", "opt_start_seq", "opt_start_time", "ack_policy", "replay_policy"}
        | {"idle_heartbeat", "flow_control", "max_waiting", "mem_storage", "priority_policy"}
    ),
}


@dataclass(frozen=True, kw_only=True)
class Difference:
    """One field that differs between two configs."""

    field: str
    before: Any
    """The JSON value; ``None``: unset."""
    after: Any
    shown_before: str
    """The value as text."""
    shown_after: str
    possible: bool
    """Whether any server version supports this change."""

    def line(self) -> str:
        """Return the difference as one line of text."""
        rest = "" if self.possible else "  (cannot be changed)"
        return f"{self.field}: {self.shown_before} -> {self.shown_after}{rest}"


def differences(before: R, after: R) -> list[Difference]:
    """
    Return the fields that differ, by name; an unset field equals its default.

    Args:
        before: the current config from the server.
        after: the desired config.

    """
    old, new = (encode(without_server_labels(each)) for each in (before, after))
    found = []
    for name in sorted({*old, *new}):
        if name not in new and name in _LEFT_TO_SERVER:
            continue
        if _normalized(name, old.get(name)) == _normalized(name, new.get(name)):
            continue
        found.append(
            Difference(
                field=name,
                before=old.get(name),
                after=new.get(name),
                shown_before=_shown(getattr(before, name, old.get(name)), old.get(name)),
                shown_after=_shown(getattr(after, name, new.get(name)), new.get(name)),
                possible=_possible(type(before), name, old.get(name), new.get(name)),
            )
        )
    return found


def difference_documents(found: Sequence[Difference]) -> list[dict[str, Any]]:
    """Return differences as JSON documents."""
    return [
        {
            "field": each.field,
            "before": each.before,
            "after": each.after,
            **({} if each.possible else {"possible": False}),
        }
        for each in found
    ]


def said(config: Record) -> dict[str, Any]:
    """Return the known fields of a config that are set."""
    names = [name for name in encode(config) if name not in config.extra]
    return {name: getattr(config, name) for name in names}


def warn_of_ignored(settings: Settings, wanted: R, got: R) -> None:
    """Warn about fields that the server ignored because it is too old to support them."""
    asked = replace(got, **said(wanted))
    names = [each.field for each in differences(got, asked) if each.before is None]
    if names:
        note(settings, f"the server ignored {', '.join(names)}; it may be too old to support this")


def without_server_labels(config: R) -> R:
    """Return a config without the metadata that the server adds."""
    labels = getattr(config, "metadata", None)
    if not labels:
        return config
    own = {key: text for key, text in labels.items() if not key.startswith("_nats.")}
    fields: dict[str, Any] = {"metadata": own or None}
    return config if len(own) == len(labels) else replace(config, **fields)


def _normalized(name: str, value: Any) -> Any:
    """Return a value in normalized form for comparison."""
    if name in ("subjects", "filter_subjects") and isinstance(value, list):
        return sorted(value)
    if value == _DEFAULTS.get(name) or not value:
        return None
    return _compact(value)


def _compact(value: Any) -> Any:
    """Return a value without nested fields that are unset, false, 0 or empty."""
    if isinstance(value, dict):
        return {key: _compact(each) for key, each in value.items() if each} or None
    if isinstance(value, list):
        return [_compact(each) for each in value]
    return value


def _possible(kind: type[Record], name: str, before: Any, after: Any) -> bool:
    if name in _IMMUTABLE[kind]:
        return False
    if name in _ENABLE_ONLY[kind]:
        return not before
    if name == "retention":
        return "workqueue" not in (before, after)
    if name == "mirror":
        return not after
    return True


_FORMATTERS: Final[list[tuple[type, Callable[[Any], str]]]] = [
    (bool, lambda value: "true" if value else "false"),
    (timedelta, duration),
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
    if isinstance(wire, list) and all(isinstance(each, str) for each in wire):
        return ", ".join(wire)
    return json.dumps(wire, ensure_ascii=False)
