"""Callbacks of users: the events of a connection that they receive, and the check of a callback."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from functools import partial
from inspect import isasyncgenfunction, iscoroutinefunction, isgeneratorfunction
from typing import Any

from . import errors


class EventKind(Enum):
    """Kind of a connection event."""

    DISCONNECTED = "disconnected"
    """The connection was lost."""
    RECONNECTED = "reconnected"
    """The client reconnected, or connected for the first time in the background."""
    CLOSED = "closed"
    """The connection is closed."""
    DISCOVERED_SERVERS = "discovered servers"
    """The cluster announced new servers."""
    RECONNECT_FAILED = "reconnect failed"
    """An attempt to reconnect to a server failed; others follow."""
    LAME_DUCK = "lame duck"
    """The server is in lame duck mode: it will shut down soon, clients should reconnect elsewhere."""


@dataclass(frozen=True, slots=True)
class ConnectionEvent:
    """An event of a connection."""

    kind: EventKind
    """Kind of the event."""
    server: str | None = None
    """URL of the server concerned, without credentials; ``None`` if there is none."""
    error: BaseException | None = None
    """Reason of a lost connection, of a failed attempt, or of a close that the user did not request."""
    servers: tuple[str, ...] = ()
    """URLs of the discovered servers."""


#: Called with the error: an `Exception`, or another `BaseException` that a callback raised.
ErrorCallback = Callable[[Any], object]
#: Called on a connection event. A callback with a parameter receives the event.
EventCallback = Callable[[], object] | Callable[[ConnectionEvent], object]


def check_callback(option: str, callback: object) -> None:
    """Check that a callback is a plain function."""
    # The value is omitted: it may be the secret that the function should return.
    if not callable(callback):
        raise errors.InvalidOptionError(option, "...", "must be a function")
    inner: Any = callback
    while isinstance(inner, partial):
        inner = inner.func
    if not hasattr(inner, "__code__") and not isinstance(inner, type):
        # A bound method is what its function is, and an object what its method is.
        inner = getattr(inner, "__func__", type(inner).__call__)
    if iscoroutinefunction(inner) or isasyncgenfunction(inner) or isgeneratorfunction(inner):
        rule = "must be a plain function, not an async one or a generator"
        raise errors.InvalidOptionError(option, "...", rule)
