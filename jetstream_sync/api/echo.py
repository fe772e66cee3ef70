"""
Detection of config fields that a server ignored.

A server that does not know a field ignores it silently and replies with the config that it applied. The
requested config is therefore compared with the reply, at every depth: the fields that are newer than the
oldest supported server, and those that this version does not know. A different value is a normalization by
the server and counts as applied; only an absent field was ignored. Older fields are known to every server:
one that is absent was dropped for a reason, as is the duplicate window of a mirror in a cluster.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import fields
from datetime import timedelta
from typing import Any, Final

from ..codec import Record
from .enums import PersistMode, PriorityPolicy

Release = tuple[int, int]

#: The release of nats-server that introduced a field; all other fields are in 2.10, the oldest supported one.
_SINCE: Final[Mapping[str, Release]] = {
    "allow_msg_ttl": (2, 11),
    "subject_delete_marker_ttl": (2, 11),
    "pause_until": (2, 11),
    "priority_groups": (2, 11),
    "priority_policy": (2, 11),
    "priority_timeout": (2, 11),
    "preferred": (2, 11),
    "allow_msg_counter": (2, 12),
    "allow_atomic": (2, 12),
    "allow_msg_schedules": (2, 12),
    "persist_mode": (2, 12),
    "allow_batched": (2, 14),
    "consumer": (2, 14),
    "sourcing": (2, 14),
}
#: Enum values that are defaults, which a server omits in its reply.
_DEFAULT_VALUES: Final = {
    "persist_mode": PersistMode.DEFAULT,
    "priority_policy": PriorityPolicy.NONE,
}


def release(version: str) -> Release | None:
    """Return major and minor version of a server; ``None`` if the version is malformed."""
    major, _, rest = version.partition(".")
    minor = rest.partition(".")[0]
    return (int(major), int(minor)) if major.isdigit() and minor.isdigit() else None


def server_release(metadata: Mapping[str, str] | None) -> Release | None:
    """Return the release of the server that sent a config; ``None`` if older than 2.11."""
    return release((metadata or {}).get("_nats.ver", ""))


def since(path: str) -> Release | None:
    """Return the release that a field from `fields_left_out` requires, if known."""
    return _SINCE.get(path.rpartition(".")[2])


def fields_left_out(asked: Record, given: Record) -> list[str]:
    """
    Return the requested fields of a config that are absent in the server's reply.

    Args:
        asked: the `StreamConfig` or `ConsumerConfig` that was sent.
        given: the config in the reply.

    Returns:
        Paths such as ``allow_atomic`` or ``sources[1].consumer``; empty: the server applied all fields.

    """
    sender = server_release(getattr(given, "metadata", None))
    # A server that knows a field can omit it for another reason than its age: an update of a consumer
    # does not change pause_until.
    known = {name for name, needs in _SINCE.items() if sender is not None and sender >= needs}
    return list(_left_out(asked, given, "", known))


def _left_out(asked: Record, given: Record, prefix: str, known: set[str]) -> Iterator[str]:
    for each in fields(asked):
        name = each.name
        value, found = getattr(asked, name), getattr(given, name)
        if found is not None:
            yield from _within(value, found, prefix + name, known)
        elif name in _SINCE and name not in known and not _is_default(name, value):
            yield prefix + name
    for name, value in asked.extra.items():
        if value and name not in given.extra:
            yield prefix + name


def _within(asked: Any, given: Any, path: str, known: set[str]) -> Iterator[str]:
    """Compare the records of two values; different scalars are normalizations by the server."""
    if isinstance(asked, Record):
        yield from _left_out(asked, given, f"{path}.", known)
    elif isinstance(asked, list) and len(asked) == len(given):
        for number, (one, other) in enumerate(zip(asked, given, strict=True)):
            yield from _within(one, other, f"{path}[{number}]", known)


def _is_default(name: str, value: Any) -> bool:
    """Return whether a value is a default, which a server may omit in its reply."""
    if isinstance(value, Record):
        return not value.extra and all(
            _is_default(each.name, getattr(value, each.name))
            for each in fields(value)
            if each.name != "extra"
        )
    return not value or value == timedelta(0) or value == _DEFAULT_VALUES.get(name)
