"""Check that the server applied a config as requested, and that it has an API level."""

# There are two ways to find out that a server is too old. The reply to a config contains the config as
# the server understood it, see `api.echo`; servers from 2.12 on refuse unknown fields themselves. For
# messages and requests there is the API level (ADR-44). It is requested once per transport, because a
# reconnect may lead to another server.

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import Final

from .. import errors
from ..api.echo import API_LEVELS, Release, fields_left_out, fields_refused, release, server_release
from ..codec import Record, encode
from ..net.clock import Deadline, monotonic
from .api_requests import APIRequests

#: Added to the time that a request took, when that is compared with the server's times.
_CLOCK_STEP: Final = timedelta(milliseconds=1)
_OLDER: Final = "older than 2.11"
_NOT_OURS: Final = "{} stays as it is: by the server's times it was not created by this call"


class EchoCheck:
    """Compares the config of a create or update with the reply; made right before the request."""

    def __init__(self, api: APIRequests, what: str, asked: Record) -> None:
        self._api = api
        self._what = what
        self._asked = asked
        self._started = monotonic()

    @contextmanager
    def request(self) -> Iterator[None]:
        """Raise `ServerTooOldError` if the server refuses the request because it does not know a field."""
        try:
            yield
        except errors.BadRequestError as error:
            refused = fields_refused(self._asked, error.description)
            if error.err_code != errors.ErrorCode.INVALID_JSON or not refused:
                raise
            version = self._api.core.info.version
            raise self._error(refused, version, "nothing was changed") from error

    def verify(
        self, given: Record, delete: Callable[[], None] | None = None, *, updated: bool = False
    ) -> None:
        """Raise `ServerTooOldError` if the server omitted fields in its reply."""
        # `delete`: removes what the request made; ``None``: it updated something, or made nothing.
        fields = fields_left_out(self._asked, given)
        if not fields:
            return
        if delete is not None:
            outcome = self._removed(delete)
        else:
            outcome = self._updated(fields) if updated else _NOT_OURS.format(self._what)
        sender = server_release(getattr(given, "metadata", None))
        version = self._api.core.info.version
        if sender is not None:
            version = ".".join(map(str, sender))
        elif (release(version) or (2, 11)) >= (2, 11):
            version = _OLDER  # of the server that replied, which is not the connected one
        raise self._error(fields, version, outcome)

    def is_new(self, created: datetime, now: datetime | None) -> bool:
        """Return whether something was made by this request, by the times in the reply."""
        # A create that matches an existing one gets the same reply, also with did_create. If the
        # server clocks differ, assume that it was not.
        took = timedelta(seconds=monotonic() - self._started) + _CLOCK_STEP
        return now is not None and -took <= now - created <= took

    @staticmethod
    def _error(
        fields: dict[str, Release | None], version: str, outcome: str
    ) -> errors.ServerTooOldError:
        needs = max((needed for needed in fields.values() if needed), default=None)
        return errors.ServerTooOldError(
            ", ".join(fields),
            "of a newer release" if needs is None else f"{needs[0]}.{needs[1]}",
            version,
            fields=tuple(fields),
            outcome=outcome,
        )

    def _removed(self, delete: Callable[[], None]) -> str:
        """Delete what the request made, and return a sentence about that."""
        try:
            delete()
        except errors.Error as error:
            return f"{self._what} was created without that and could not be removed: {error}"
        return f"{self._what}, created without that, was removed"

    def _updated(self, fields: dict[str, Release | None]) -> str:
        """Return a sentence about what an update did."""
        dropped = {path.partition(".")[0].partition("[")[0] for path in fields}
        taken = sorted(encode(self._asked).keys() - dropped - {"name", "durable_name"})
        return f"{self._what} was updated with the rest: {', '.join(taken) or 'nothing'}"


def require_level(
    api: APIRequests, level: int, feature: str, deadline: Deadline | None = None
) -> None:
    """Raise unless the server's API has at least a level."""
    # The level is requested once for each API prefix, and again after a reconnect. If the user has
    # no permission for the request, the release of the connected server decides.
    core, levels = api.core, api.caches.levels
    reconnects = core.reconnects
    known = levels.get(api.routes.prefix)
    if known is None or known[0] != reconnects:
        known = levels[api.routes.prefix] = reconnects, _level(api, deadline)
    if known[1] < level:
        needs = API_LEVELS[level]
        version = core.info.version
        if (release(version) or needs) >= needs:
            version = f"another one, at API level {known[1]}"
        raise errors.ServerTooOldError(feature, f"{needs[0]}.{needs[1]}", version)


def _level(api: APIRequests, deadline: Deadline | None) -> int:
    try:
        shown = api.ask(api.routes.to("INFO"), None, deadline).get("api")
    except (errors.APIError, errors.PermissionsError):
        found = release(api.core.info.version)
        return max(
            (level for level, first in API_LEVELS.items() if (found or first) >= first), default=0
        )
    level = shown.get("level") if isinstance(shown, dict) else None
    return level if type(level) is int else 0
