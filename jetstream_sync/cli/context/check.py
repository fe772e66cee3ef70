"""Whether a context can be used: its values, its files, and a connection with it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ...errors import Error
from ..settings import Settings
from ..status import CommandError, one_line

__all__ = ["check"]

#: Options that have nothing to do with a login.
_KEPT = ("timeout", "trace")


def _with_nothing_else(settings: Settings, name: str) -> Settings:
    """Return settings whose login is a context's, whatever options and variables say."""
    variables = {
        variable: value
        for variable, value in settings.env.variables.items()
        if variable != "SERVERS" and not variable.startswith("NATS_")
    }
    given: dict[str, Any] = {each: value for each, value in settings.given.items() if each in _KEPT}
    return Settings(
        env=replace(settings.env, variables=variables), given={**given, "context": name}
    )


def check(settings: Settings, name: str, *, connect: bool) -> dict[str, Any]:
    """
    Say whether a context can be used, as the fields of a JSON document.

    Args:
        settings: of the command; options and variables that log in do not count.
        name: the context's.
        connect: whether to connect with it, too.

    """
    settings = _with_nothing_else(settings, name)
    try:
        login = settings.login()
        for path in login.files():
            with path.open("rb"):
                pass
        if not connect:
            return {"ok": True}
        with settings.connection() as nc:
            return {"ok": True, "server": nc.connected_url}
    except (Error, CommandError, OSError) as error:
        return {"ok": False, "error": one_line(error)}
