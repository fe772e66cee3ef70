"""
What the server is too old for: it drops fields of a config, or takes no notice of a request.

Two ways to find out. A config comes back in the answer as the server understood it, see `api.echo`;
servers from 2.12 on refuse a field that they do not know by themselves (`BadRequestError`).
For a message or a request there is the level of the API (ADR-44), which is asked for once for each
link of a connection: another server may be at the end of the next one.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Final

from ..api.echo import fields_left_out, release, server_release, since
from ..codec import Record, encode
from ..errors import APIError, Error, PermissionsError, ServerTooOldError
from ..net.clock import Deadline, monotonic
from .requests import APIRequests

__all__ = ["EchoCheck", "require_level"]

#: Added to the time that a request took, when that is compared with the server's times.
_CLOCK_STEP: Final = timedelta(milliseconds=1)
#: The release that brought each level of the API, where something here needs it.
_LEVELS: Final = {1: (2, 11)}
_OLDER: Final = "older than 2.11"


class EchoCheck:
    """
    Compares the config of a create or update with the answer; made right before the request.

    Args:
        api: where the request goes.
        what: names the stream or consumer in an error.
        asked: the config as it is sent.

    """

    def __init__(self, api: APIRequests, what: str, asked: Record) -> None:
        self._api = api
        self._what = what
        self._asked = asked
        self._started = monotonic()

    def left_out(self, given: Record) -> list[str]:
        """Return the fields that the server left out of its answer."""
        return fields_left_out(self._asked, given)

    def is_new(self, created: datetime, now: datetime | None) -> bool:
        """
        Return whether something was made by this request, by the times in the answer.

        The answer does not tell: a create that matches what exists is answered in the same way, also
        with ``did_create``. In doubt, as with clocks of a cluster that differ, it was not.
        """
        took = timedelta(seconds=monotonic() - self._started) + _CLOCK_STEP
        return now is not None and -took <= now - created <= took

    def refuse(self, fields: list[str], given: Record, outcome: str) -> ServerTooOldError:
        """Return the error for fields that were left out, with what became of the request."""
        sender = server_release(getattr(given, "metadata", None))
        version = self._api.core.info.version
        if sender is not None:
            version = ".".join(map(str, sender))
        elif (release(version) or (2, 11)) >= (2, 11):
            version = _OLDER  # another one than the one that we are connected to
        needs = max((needed for needed in map(since, fields) if needed), default=None)
        return ServerTooOldError(
            ", ".join(fields),
            "of a newer release" if needs is None else f"{needs[0]}.{needs[1]}",
            version,
            fields=tuple(fields),
            outcome=outcome,
        )

    def removed(self, delete: Callable[[], None]) -> str:
        """Delete what the request made, and return a sentence about that."""
        try:
            delete()
        except Error as error:
            return f"{self._what} was created without that and could not be removed: {error}"
        return f"{self._what}, created without that, was removed"

    def updated(self, fields: list[str]) -> str:
        """Return a sentence about what an update did."""
        dropped = {path.partition(".")[0].partition("[")[0] for path in fields}
        taken = sorted(encode(self._asked).keys() - dropped - {"name", "durable_name"})
        return f"{self._what} was updated with the rest: {', '.join(taken) or 'nothing'}"

    def found(self) -> str:
        """Return a sentence about something that was there before, as it is."""
        return f"{self._what} stays as it is: by the server's times it was not created by this call"


def require_level(
    api: APIRequests, level: int, feature: str, deadline: Deadline | None = None
) -> None:
    """
    Raise unless the server's API has at least a level.

    The level is asked for once for each link and API prefix of a connection. Where this user may not
    ask, the release of the server that we are connected to decides.

    Raises:
        ServerTooOldError: it is lower; nothing was sent.
        TimeoutError, ConnectionLostError, ConnectionClosedError: as `APIRequests.ask()`.

    """
    core = api.core
    link = core.reconnects
    known = core.api_levels.get(api.routes.prefix)
    if known is None or known[0] != link:
        known = core.api_levels[api.routes.prefix] = link, _level(api, deadline)
    if known[1] < level:
        needs = _LEVELS[level]
        version = core.info.version
        if (release(version) or needs) >= needs:
            version = f"another one, at API level {known[1]}"
        raise ServerTooOldError(feature, f"{needs[0]}.{needs[1]}", version)


def _level(api: APIRequests, deadline: Deadline | None) -> int:
    try:
        said = api.ask(api.routes.account_info(), None, deadline).get("api")
    except (APIError, PermissionsError):
        found = release(api.core.info.version)
        return max(
            (level for level, first in _LEVELS.items() if (found or first) >= first), default=0
        )
    level = said.get("level") if isinstance(said, dict) else None
    return level if type(level) is int else 0
