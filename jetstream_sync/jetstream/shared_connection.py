"""The connections that a process shares."""

# Rules:
#
# 1. _lock guards the two tables. It is held for a few instructions, never while connecting. A
#    caller that finds an attempt in progress waits for that attempt only.
# 2. Every thread that sees that an attempt has ended records it, not only the thread that started it.
#    A thread that Ctrl-C interrupted in between therefore blocks no other.
# 3. A forked child starts with empty tables and a new lock, and reads nothing of its parent's. The fork
#    may happen at any moment, also while another thread is connecting.

from __future__ import annotations

import logging
import threading
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import fields
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

from .. import errors
from ..address import parse_servers
from ..client.engine import Engine
from ..client.mailbox import copy_exception
from ..client.threads import in_each_child
from ..exact import masked
from ..locks import new_rlock
from ..options import ConnectionOptions, ConnectOptions, keyword_types
from ..records import Frozen, shows_fields
from ..subjects import Routes
from .connection import Connection, with_context

if TYPE_CHECKING:
    from typing_extensions import Unpack

log: logging.Logger = logging.getLogger("jetstream_sync.connection")
#: Number of connections that is likely a mistake and is logged.
_WARN_COUNT: Final = 10
#: Size of the cache of checked servers and options.
_CACHE_SIZE: Final = 128


@shows_fields((ConnectionOptions, keyword_types()))
def shared_connection(
    servers: str | Sequence[str] | None = None,
    *,
    context: str | None = None,
    **options: Unpack[ConnectOptions],
) -> Connection:
    """
    Return the connection that this process has for these servers and options; open it if there is none.

    It belongs to the process: call this function wherever the connection is needed. Do not use the
    connection in a ``with`` block, which would close it for all users. The first caller opens it, and
    concurrent callers wait for it. A failure is raised in all of them, and the next call tries
    again. After `os.fork` a child gets its own connection. A connection that was closed or drained,
    or that gave up reconnecting, is replaced at the next call. It need not be closed: buffered data
    is sent when the interpreter exits normally.

    The same connection is returned for equal servers and options: the same servers in the
    same order, and equal options in any order. Mappings and lists are compared by content. Values that
    cannot be compared (functions, an `ssl.SSLContext`) must be the same object: a new lambda in each call
    opens a new connection each time.

    Any thread may call it, also in a callback, except in a credentials callback of the connection that
    is being opened: that raises an `Error`.

    Args:
        servers: as for `connect()`.
        context: as for `connect()`; its file is read in each call.
        **options: as for `connect()`; a `ConnectOptions` dict can be sent to other processes.

    Raises:
        Error: as `connect()`.

    """
    servers, options = masked(servers), masked(options)
    chosen, given, routes = with_context(servers, context, options)
    try:
        key, checked = _check_options_cached(
            chosen if isinstance(chosen, str) else tuple(chosen), tuple(given.items())
        )
    except TypeError:
        # A value cannot be hashed, or is invalid, which raises here.
        key, checked = _check_options(chosen, given)
    return _shared.get((key, routes), checked, routes)


class _IdentityKey:
    """A key for an object that is equal only to itself; a reference keeps its id unique."""

    __slots__ = ("_it",)

    def __init__(self, it: object) -> None:
        self._it = it

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _IdentityKey) and other._it is self._it

    def __hash__(self) -> int:
        return id(self._it)


def _comparable(value: object) -> Hashable:
    """Return a hashable key for the value of an option."""
    if isinstance(value, Mapping):
        return "mapping", frozenset((item, _comparable(value[item])) for item in value)
    if isinstance(value, list | tuple):
        return tuple(map(_comparable, value))
    if isinstance(value, Frozen):
        # Plain values are hashed without a call of Python, in which a Ctrl-C could be raised.
        return type(value), *(_comparable(getattr(value, field.name)) for field in fields(value))
    try:
        hash(value)
    except TypeError:
        return _IdentityKey(value)
    return value


def _check_options(
    servers: str | Sequence[str], options: Mapping[str, Any]
) -> tuple[Hashable, ConnectionOptions]:
    """Check servers and options; return a key that is equal for equivalent ones, and the options."""
    checked = ConnectionOptions.of(parse_servers(servers), options)
    return tuple(_comparable(getattr(checked, field.name)) for field in fields(checked)), checked


@lru_cache(maxsize=_CACHE_SIZE)
def _check_options_cached(
    servers: str | tuple[str, ...], options: tuple[tuple[str, Any], ...]
) -> tuple[Hashable, ConnectionOptions]:
    """Return the cached result of `_check_options()`, because the checks are slow."""
    return _check_options(servers, dict(options))


class _OpenAttempt:
    """A connection that a thread is opening."""

    # `gate` is closed until the attempt has ended, with any result.

    __slots__ = ("connection", "error", "gate", "has_ended", "opener")

    def __init__(self) -> None:
        self.gate = threading.Lock()
        self.gate.acquire()
        self.opener = threading.get_ident()
        self.has_ended = False
        #: The connection, or the error; neither after a Ctrl-C.
        self.connection: Connection | None = None
        self.error: Exception | None = None


def _open(opening: _OpenAttempt, options: ConnectionOptions, routes: Routes) -> Connection:
    """Open the connection; raises as `shared_connection()`."""
    engine = Engine(options)
    connection = Connection(engine, routes)
    try:
        engine.open()
        opening.connection = connection
    except Exception as error:
        opening.error = error
        raise
    finally:
        # After a Ctrl-C right after the opening, the next caller gets the connection.
        if opening.error is None and connection.is_connected:
            opening.connection = connection
    return connection


class _SharedConnections:
    """The shared connections of this process; any thread may call `get()`."""

    def __init__(self) -> None:
        # Reentrant, for a signal handler that needs a connection. Each change of the tables is atomic.
        self._lock = new_rlock()
        # --- guarded by _lock; `_open` is also read without it ---
        self._open: dict[Hashable, Connection] = {}
        self._openings: dict[Hashable, _OpenAttempt] = {}

    def get(self, key: Hashable, options: ConnectionOptions, routes: Routes) -> Connection:
        """Return the connection of this key; open it if there is no usable one."""
        while True:
            connection = self._open.get(key)
            if connection is not None and _usable(connection):
                return connection
            own = _OpenAttempt()
            try:
                with self._lock:
                    connection = self._open.get(key)
                    if connection is not None and _usable(connection):
                        return connection  # another thread has just opened it
                    opening = self._openings.get(key, own)
                    if opening.has_ended:
                        # A Ctrl-C kept it from being recorded.
                        self._record_result(key, opening)
                        continue
                    self._openings[key] = opening
                if opening is own:
                    return _open(own, options, routes)
            finally:
                own.has_ended = True
                own.gate.release()
                self._record_result(key, own)
            if opening.opener == threading.get_ident():
                raise errors.Error(
                    "this thread is opening the connection, and cannot wait for itself"
                )
            with opening.gate:
                pass
            self._record_result(key, opening)
            if opening.error is not None:
                # The constructor of a user's error may have any parameters.
                is_ours = isinstance(opening.error, errors.Error)
                raise copy_exception(opening.error) if is_ours else opening.error

    def _record_result(self, key: Hashable, opening: _OpenAttempt) -> None:
        """Record the result of an attempt; its gate is open."""
        with self._lock:
            if self._openings.get(key) is not opening:
                return
            connection = opening.connection
            count = 0
            if connection is not None and self._open.get(key) is not connection:
                # Copied, because other threads read the old one without the lock.
                usable = {k: c for k, c in self._open.items() if _usable(c)}
                usable[key] = connection
                count = len(usable)
                # There is no call between this and the next step, so no Ctrl-C separates them.
                self._open = usable
            del self._openings[key]
        if count == _WARN_COUNT:
            log.warning(
                "there are %d shared connections in this process; an option that is a function "
                "created in each call opens a new connection each time",
                count,
            )

    def forked(self) -> None:
        """Reset the tables in a forked child."""
        self._open = {}
        self._openings = {}


def _usable(connection: Connection) -> bool:
    """Return whether a connection is usable, as far as is known."""
    return not (connection.is_closed or connection.is_draining)


_shared = _SharedConnections()
in_each_child(_shared.forked)
