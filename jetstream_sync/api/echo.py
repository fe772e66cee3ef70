"""Detection of config fields that a server does not know."""

# A server that does not know a field ignores it silently and replies with the config that it applied. The
# requested config is therefore compared with the reply, at every depth: the fields that are newer than the
# oldest supported server, and those that this version does not know. A different value is a normalization by
# the server and counts as applied; only an absent field was ignored. Older fields are known to every server:
# one that is absent was dropped for a reason, as is the duplicate window of a mirror in a cluster.
# Servers from 2.12 on refuse a request with an unknown field, and name the first one.

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import fields
from typing import Any, Final

from ..codec import Record
from ..differences import normalized
from ..headers import server_number

Release = tuple[int, int]

#: The oldest supported release, which a config without a release comes from.
_OLDEST: Final = (2, 10)
#: How a server names a field that it does not know; the text is that of Go's JSON decoder.
_UNKNOWN_FIELD: Final = 'unknown field "(.+)"'
#: The release that brought each level of the API, where something here needs it.
API_LEVELS: Final = {1: (2, 11), 2: (2, 12), 4: (2, 14)}


def release(version: str) -> Release | None:
    """Return major and minor version of a server; ``None`` if the version is malformed."""
    major, minor = map(server_number, f"{version}.".split(".")[:2])
    return None if major is None or minor is None else (major, minor)


def server_release(metadata: Mapping[str, str] | None) -> Release | None:
    """Return the release of the server that sent a config; ``None`` if older than 2.11."""
    return release((metadata or {}).get("_nats.ver", ""))


def fields_refused(asked: Record, description: str) -> dict[str, Release | None]:
    """Return the field that the error of a server names as unknown, with the release that it needs."""
    found = re.search(_UNKNOWN_FIELD, description)
    return {} if found is None else {found[1]: _since(asked, found[1])}


def _since(asked: Any, name: str) -> Release | None:
    """Return the release that a field of a record, or of one inside, needs; ``None``: unknown."""
    inside: list[Any] = asked if isinstance(asked, list) else []
    if isinstance(asked, Record):
        inside = [getattr(asked, field.name) for field in fields(asked)]
        for field in fields(asked):
            if field.name == name:
                since: Release | None = field.metadata.get("since")
                return since
    return next(filter(None, (_since(value, name) for value in inside)), None)


def fields_left_out(asked: Record, given: Record) -> dict[str, Release | None]:
    """Return the requested fields of a config that are absent in the server's reply."""
    sender = server_release(getattr(given, "metadata", None)) or _OLDEST
    return dict(_left_out(asked, given, "", sender))


def _left_out(
    asked: Record, given: Record, prefix: str, sender: Release
) -> Iterator[tuple[str, Release | None]]:
    for field in fields(asked):
        name, since = field.name, field.metadata.get("since")
        value, found = getattr(asked, name), getattr(given, name)
        default = field.metadata.get("server_default")
        if found is not None:
            yield from _within(value, found, prefix + name, sender)
        # A server that knows a field can omit a default, and others for another reason than its age: an
        # update of a consumer does not change pause_until.
        elif since is not None and sender < since and normalized(value, default) is not None:
            yield prefix + name, since
    for name, value in asked.extra.items():
        if value and name not in given.extra:
            yield prefix + name, None


def _within(
    asked: Any, given: Any, path: str, sender: Release
) -> Iterator[tuple[str, Release | None]]:
    """Compare the records of two values; different scalars are normalizations by the server."""
    if isinstance(asked, Record):
        yield from _left_out(asked, given, f"{path}.", sender)
    elif isinstance(asked, list) and len(asked) == len(given):
        for number, (one, other) in enumerate(zip(asked, given, strict=True)):
            yield from _within(one, other, f"{path}[{number}]", sender)
