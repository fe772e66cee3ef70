"""
Names for shell completion: streams, consumers, contexts.

Failures and timeouts complete nothing and write no errors.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

import click

from ...errors import Error
from ..status import CommandError

if TYPE_CHECKING:
    from ... import JetStream
    from ..settings import Settings

__all__ = ["complete_consumer", "complete_context", "complete_stream"]

#: Timeout of the connection and of the request, in seconds.
_TIMEOUT_S = 0.3


def complete_stream(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Return the matching stream names; for ``shell_complete`` of a parameter."""
    del param
    return _beginning(_names(ctx, "streams", lambda js: js.stream_names()), incomplete)


def complete_consumer(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Return the matching consumer names of the stream that was typed before."""
    del param
    stream = ctx.params.get("stream")
    if not isinstance(stream, str):
        return []
    names = _names(ctx, f"consumers of {stream}", lambda js: js.get_stream(stream).consumer_names())
    return _beginning(names, incomplete)


def complete_context(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Return the matching context names; for ``shell_complete`` of a parameter."""
    del param
    settings: Settings | None = ctx.find_root().obj
    if settings is None:
        return []
    from ..context.store import Contexts  # noqa: PLC0415 - for shells only

    return _beginning(Contexts(settings.env.variables).names(), incomplete)


def _beginning(names: list[str], incomplete: str) -> list[str]:
    return [name for name in names if name.startswith(incomplete)]


def _names(ctx: click.Context, what: str, ask: Callable[[JetStream], list[str]]) -> list[str]:
    settings: Settings | None = ctx.find_root().obj
    if settings is None:
        return []
    from .cache import cached_names  # noqa: PLC0415 - every command has options that complete

    settings.given["timeout"] = _TIMEOUT_S
    for name in ("trace", "password_stdin"):  # standard input belongs to the shell
        settings.given.pop(name, None)
    try:
        login = settings.login()
    except CommandError:
        return []
    about = [what, *sorted(f"{part}={value}" for part, value in login.values.items())]
    return cached_names(settings.env.variables, about, lambda: _request(settings, ask))


def _request(settings: Settings, ask: Callable[[JetStream], list[str]]) -> list[str] | None:
    logging.disable()
    try:
        with settings.jetstream(error_cb=_ignore, connect_timeout=_TIMEOUT_S) as js:
            return ask(js)
    except (Error, CommandError, click.ClickException, OSError):
        return None
    finally:
        logging.disable(logging.NOTSET)


def _ignore(error: Exception) -> None:
    del error
