"""Validation of a context: its values, its files, and optionally a connection."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ...errors import Error
from ..settings import Settings
from ..status import CommandError, one_line

__all__ = ["check"]

#: Options that do not affect the login.
_KEPT = ("timeout", "trace")


def _with_context_only(settings: Settings, name: str) -> Settings:
    """Return settings with the login of a context, without login options and variables."""
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
    Return whether a context is usable, as the fields of a JSON document.

    Args:
        settings: the settings of the command; login options and variables are ignored.
        name: the name of the context.
        connect: whether to connect as well.

    """
    settings = _with_context_only(settings, name)
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
