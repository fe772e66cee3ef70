"""
What a server left out of a config that it was given.

A server older than a field ignores it without a word, and answers with the config as it understood
it. So what was asked for is compared with that answer, field by field and at every depth. A value
that differs is the server's normalization and counts as taken; only what is absent was left out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields
from datetime import timedelta
from typing import Any, Final

from ..codec import Record
from .enums import PersistMode, PriorityPolicy

__all__ = ["fields_left_out", "release", "server_release", "since"]

Release = tuple[int, int]

#: The release of nats-server that brought a field; those that are not here are older than 2.11.
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
#: Servers may drop these whatever their release: ``direct`` is theirs alone (``jetstream_api.go``), and
#: filters go by whether there are any, see `_left_out`.
_SERVERS_OWN: Final = frozenset({"direct", "extra", "filter_subject", "filter_subjects"})
#: Words that stand for the default, which a server leaves out of its answer.
_DEFAULT_WORDS: Final = {
    "persist_mode": PersistMode.DEFAULT,
    "priority_policy": PriorityPolicy.NONE,
}
#: Metadata that the server sets and removes itself.
_RESERVED: Final = "_nats."


def release(version: str) -> Release | None:
    """Return the first two numbers of a server's version; ``None``: it does not have them."""
    major, _, rest = version.partition(".")
    minor = rest.partition(".")[0]
    return (int(major), int(minor)) if major.isdigit() and minor.isdigit() else None


def server_release(metadata: Mapping[str, str] | None) -> Release | None:
    """Return the release of the server that sent a config; ``None``: it is older than 2.11."""
    return release((metadata or {}).get("_nats.ver", ""))


def since(path: str) -> Release | None:
    """Return the release that a field from `fields_left_out` needs, where that is known."""
    return _SINCE.get(path.rpartition(".")[2])


def fields_left_out(asked: Record, given: Record) -> list[str]:
    """
    Return the fields of a config that were asked for and are absent in the server's answer.

    Args:
        asked: a `StreamConfig` or `ConsumerConfig` as it was sent.
        given: the config in the answer.

    Returns:
        Paths such as ``allow_atomic`` or ``sources[1].consumer``; empty: the server took them all.

    """
    sender = server_release(getattr(given, "metadata", None))
    # What a server knows and yet leaves out has another reason than its age: it keeps pause_until
    # as it is when an existing consumer is changed.
    known = {name for name, needs in _SINCE.items() if sender is not None and sender >= needs}
    return list(_left_out(asked, given, "", known))


def _left_out(asked: Record, given: Record, prefix: str, known: set[str]) -> Iterator[str]:
    for each in fields(asked):
        name = each.name
        value, found = getattr(asked, name), getattr(given, name)
        if name in _SERVERS_OWN or _is_default(name, value):
            continue
        if found is None:
            if name not in known:
                yield prefix + name
        else:
            yield from _within(value, found, prefix + name, known)
    for name, value in asked.extra.items():
        if value and name not in given.extra:
            yield prefix + name
    yield from _filters_left_out(asked, given, prefix)


def _within(asked: Any, given: Any, path: str, known: set[str]) -> Iterator[str]:
    """Compare what is there on both sides; scalars that differ are the server's choice."""
    if isinstance(asked, Record):
        yield from _left_out(asked, given, f"{path}.", known)
    elif isinstance(asked, Mapping):
        for key in asked:
            if key not in given and not key.startswith(_RESERVED):
                yield f"{path}.{key}"
    elif isinstance(asked, Sequence) and not isinstance(asked, str) and len(asked) == len(given):
        for number, (one, other) in enumerate(zip(asked, given, strict=True)):
            if isinstance(one, Record):
                yield from _left_out(one, other, f"{path}[{number}].", known)


def _filters_left_out(asked: Record, given: Record, prefix: str) -> Iterator[str]:
    """Compare filters: one may come back as the only one of several, and the other way round."""
    names = ("filter_subject", "filter_subjects")
    if not any(getattr(given, name, None) for name in names):
        yield from (prefix + name for name in names if getattr(asked, name, None))


def _is_default(name: str, value: Any) -> bool:
    """Return whether a value asks for nothing: a server may leave that out of its answer."""
    if isinstance(value, Record):
        return not value.extra and all(
            _is_default(each.name, getattr(value, each.name))
            for each in fields(value)
            if each.name != "extra"
        )
    if name == "metadata" and value:
        return all(key.startswith(_RESERVED) for key in value)
    return not value or value == timedelta(0) or value == _DEFAULT_WORDS.get(name)
