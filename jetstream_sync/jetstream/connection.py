"""`connect()`, connections with a JetStream context, and the connection shared by a process."""

# Rules of `shared_connection()`:
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
from datetime import timedelta
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

from .. import errors
from ..address import DEFAULT_SERVER, parse_servers
from ..api.routes import Routes
from ..client.connection import Connection as CoreConnection
from ..client.engine import Engine
from ..client.mailbox import copy_exception
from ..client.threads import in_each_child
from ..locks import new_rlock
from ..net.clock import seconds
from ..options import ConnectionOptions, ConnectOptions
from ..services.service import Service, StatsHandler, StopCallback
from ..services.wire import DEFAULT_PREFIX, ServiceInfo, ServicePing, ServiceStats, discover
from ..version import __version__
from .api_requests import APICallback, APIRequests, ConnectionCaches
from .context import JetStream
from .message import Confirmations
from .publish import DEFAULT_WINDOW, Publisher

if TYPE_CHECKING:
    from typing_extensions import Unpack


class Connection(CoreConnection):
    """A connection to NATS with access to JetStream."""

    def __init__(self, engine: Engine) -> None:
        super().__init__(engine)
        self._caches = ConnectionCaches()

    def _confirmations(self) -> Confirmations:
        """Return a sender of settlements that counts their confirmations; for workers."""
        return Confirmations(self._core)

    def jetstream(
        self,
        domain: str | None = None,
        prefix: str | None = None,
        timeout: float | timedelta | None = 5.0,
        publish_async_max_pending: int = DEFAULT_WINDOW,
        publish_async_stall_wait: float | timedelta | None = None,
        required_api_level: int | None = None,
        api_cb: APICallback | None = None,
    ) -> JetStream:
        """
        Return a JetStream context of this connection, without a request to the server.

        Args:
            domain: the JetStream domain; ``None``: that of the server.
            prefix: the subject prefix of the API, for an account that imports it under another subject;
                excludes ``domain``; ``None``: ``$JS.API``.
            timeout: how long calls wait for a reply, in seconds; ``None``: no limit.
            publish_async_max_pending: maximum number of unacknowledged messages of
                `JetStream.publish_async`; at the limit the call waits.
            publish_async_stall_wait: how long it waits then, in seconds; 0: it raises at once. ``None``: the
                timeout of the message.
            required_api_level: the API level that the server must have for each request (ADR-44); servers
                before 2.12 ignore it. ``None``: any level.
            api_cb: called with an `APICall` after each request to the API, in the thread of the request;
                what it raises is reported to ``error_cb``. Publishing and pulling are not requests to the
                API. ``None``: none.

        Raises:
            InvalidOptionError: domain and prefix are both given, or one is invalid, or a
                number is out of range.

        """
        if timeout is not None:
            seconds(timeout)
        api = APIRequests(
            self._core,
            Routes.of(domain, prefix),
            timeout,
            required_level=required_api_level,
            callback=api_cb,
            caches=self._caches,
        )
        window, stall_wait = publish_async_max_pending, publish_async_stall_wait
        return JetStream(api, Publisher(self._core, timeout, window, stall_wait))

    # --- services -------------------------------------------------------------------------------

    def add_service(
        self,
        name: str,
        version: str,
        description: str = "",
        metadata: Mapping[str, str] | None = None,
        queue_group: str = "q",
        stats_handler: StatsHandler | None = None,
        stop_cb: StopCallback | None = None,
        prefix: str = DEFAULT_PREFIX,
    ) -> Service:
        """
        Start a service, which answers discovery requests (ADR-32); then add endpoints to it.

        Args:
            name: letters, digits, ``-`` and ``_``; the same for all instances of the service.
            version: a semantic version, such as ``1.0.0``.
            description: what the service does.
            metadata: shown in the description of the service.
            queue_group: the queue group of the endpoints, whose members share the requests; empty: none, so
                that each instance gets every request.
            stats_handler: called with the `EndpointStats` of an endpoint for a statistics request; returns
                further data for them, which JSON can represent.
            stop_cb: called when the service has stopped, with the reason; ``None`` if `Service.stop` was
                called.
            prefix: the root of the subjects of discovery requests.

        Raises:
            InvalidNameError: the name is invalid.
            BadSubjectError: the queue group or the prefix is invalid.
            InvalidOptionError: another argument is invalid.
            TimeoutError: the server did not answer in time.
            ConnectionClosedError: the connection is closed.

        """
        return Service(
            self._core,
            name,
            version,
            description,
            metadata,
            queue_group,
            stats_handler,
            stop_cb,
            prefix,
        )

    def service_ping(
        self,
        name: str | None = None,
        id: str | None = None,  # noqa: A002 - the name of the field
        timeout: float | timedelta = 1.0,
        stall: float | timedelta | None = 0.3,
        prefix: str = DEFAULT_PREFIX,
    ) -> list[ServicePing]:
        """
        Return the running service instances, sorted by name and id.

        Args:
            name: the name of the service; ``None``: all services.
            id: the id of an instance, with ``name``; ``None``: all instances.
            timeout: how long to wait for replies, in seconds.
            stall: how long to wait for each reply after the first, in seconds; ``None``: until the timeout.
            prefix: the root of the subjects of discovery requests.

        Raises:
            InvalidNameError, InvalidOptionError: an argument is invalid.
            ConnectionClosedError: the connection is closed.

        """
        return discover(self._core, ServicePing, "PING", name, id, timeout, stall, prefix)

    def service_info(
        self,
        name: str | None = None,
        id: str | None = None,  # noqa: A002 - the name of the field
        timeout: float | timedelta = 1.0,
        stall: float | timedelta | None = 0.3,
        prefix: str = DEFAULT_PREFIX,
    ) -> list[ServiceInfo]:
        """Return the descriptions of service instances; arguments and errors as `service_ping()`."""
        return discover(self._core, ServiceInfo, "INFO", name, id, timeout, stall, prefix)

    def service_stats(
        self,
        name: str | None = None,
        id: str | None = None,  # noqa: A002 - the name of the field
        timeout: float | timedelta = 1.0,
        stall: float | timedelta | None = 0.3,
        prefix: str = DEFAULT_PREFIX,
    ) -> list[ServiceStats]:
        """Return the statistics of service instances; arguments and errors as `service_ping()`."""
        return discover(self._core, ServiceStats, "STATS", name, id, timeout, stall, prefix)


def connect(
    servers: str | Sequence[str] | None = None,
    *,
    context: str | None = None,
    **options: Unpack[ConnectOptions],
) -> Connection:
    """
    Connect to a NATS server.

    On return the server has accepted the login. The servers are tried once each, for at most
    ``connect_timeout``, until one accepts.

    The most used options, with types and defaults; times are seconds or a `timedelta`::

        name: str = None                       name in the server's monitoring
        user: str = None                       user name, with password: str
        token: str = None                      authentication token
        user_credentials: path = None          a .creds file
        tls: bool | SSLContext | TLSOptions = None   require TLS; None: if the server requires it
        connect_timeout: float = 2             timeout of one connection attempt
        allow_reconnect: bool = True           reconnect when the connection is lost
        max_reconnect_attempts: int = 60       consecutive failures of one server; -1: no limit
        reconnect_time_wait: float = 2         wait between two rounds of attempts
        ping_interval: float = 120             interval between pings
        drain_timeout: float = 30              timeout of Connection.drain()
        error_cb: callable = None              receives asynchronous errors; None: they are logged

    Args:
        servers: a URL (``nats://127.0.0.1:4222``), comma-separated URLs, or a list of URLs; ``None``: those
            of the context, else ``nats://127.0.0.1:4222``.
        context: the name of a context of the ``nats`` and ``jsm`` commands, a file with servers and login
            (ADR-21); options that are given replace those of the context. Its JetStream domain and prefix
            are not used: see `Connection.jetstream`. ``None``: no context.
        **options: all options are documented in `ConnectOptions`.

    Returns:
        The connection; use it in a ``with`` block, or call `Connection.drain` or
        `Connection.close` at the end.

    Raises:
        NoServersError: no server could be reached; the error names each server and the reason.
        AuthorizationError: the server refused the login.
        ProtocolError: the server does not speak the NATS protocol.
        SecureConnectionError: one side requires TLS and the other does not support it.
        InvalidOptionError: an option is unknown or invalid.

    """
    chosen, given = _with_context(servers, context, options)
    engine = Engine(ConnectionOptions.of(parse_servers(chosen), given), __version__)
    # In this order, so that a Ctrl-C after the opening cannot lose the connection.
    connection = Connection(engine)
    engine.open()
    return connection


def _with_context(
    servers: str | Sequence[str] | None, context: str | None, options: ConnectOptions
) -> tuple[str | Sequence[str], Mapping[str, Any]]:
    """Return the servers and options with those of a context that are not given."""
    given: Mapping[str, Any] = options
    if context is not None:
        from ..contexts import read_context  # noqa: PLC0415 - most programs have no context

        urls, login = read_context(context)
        servers = urls if servers is None else servers
        given = {**login, **options}
    return DEFAULT_SERVER if servers is None else servers, given


log: logging.Logger = logging.getLogger("jetstream_sync.connection")

#: Number of connections that is likely a mistake and is logged.
_WARN_COUNT: Final = 10
#: Size of the cache of checked servers and options.
_CACHE_SIZE: Final = 128


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
    chosen, given = _with_context(servers, context, options)
    try:
        key, checked = _check_options_cached(
            chosen if isinstance(chosen, str) else tuple(chosen), tuple(given.items())
        )
    except TypeError:
        # A value cannot be hashed, or is invalid, which raises here.
        key, checked = _check_options(chosen, given)
    return _shared.get(key, checked)


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


class _Opening:
    """A connection that a thread is opening."""

    # `gate` is closed until the attempt has ended, with any result.

    __slots__ = ("connection", "error", "gate", "opener")

    def __init__(self) -> None:
        self.gate = threading.Lock()
        self.gate.acquire()
        self.opener = threading.get_ident()
        #: The connection, or the error; neither after a Ctrl-C.
        self.connection: Connection | None = None
        self.error: Exception | None = None


def _open(opening: _Opening, options: ConnectionOptions) -> Connection:
    """Open the connection; raises as `shared_connection()`."""
    engine = Engine(options, __version__)
    connection = Connection(engine)
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
        self._openings: dict[Hashable, _Opening] = {}

    def get(self, key: Hashable, options: ConnectionOptions) -> Connection:
        """Return the connection of this key; open it if there is no usable one."""
        while True:
            connection = self._open.get(key)
            if connection is not None and _usable(connection):
                return connection
            own = _Opening()
            try:
                with self._lock:
                    connection = self._open.get(key)
                    if connection is not None and _usable(connection):
                        return connection  # another thread has just opened it
                    opening = self._openings.setdefault(key, own)
                if opening is own:
                    return _open(own, options)
            finally:
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
                raise _copied(opening.error)

    def _record_result(self, key: Hashable, opening: _Opening) -> None:
        """Record the result of an attempt; its gate is open."""
        with self._lock:
            if self._openings.get(key) is not opening:
                return
            connection = opening.connection
            if connection is not None and self._open.get(key) is not connection:
                # Copied, because other threads read the old one without the lock.
                self._open = {k: c for k, c in self._open.items() if _usable(c)}
                self._open[key] = connection
                count = len(self._open)
            else:
                count = 0
            del self._openings[key]
        if count == _WARN_COUNT:
            log.warning(
                "there are %d shared connections in this process; an option that is a function "
                "created in each call opens a new connection each time",
                count,
            )

    def forked(self) -> None:
        """Reset the tables in a forked child."""
        self._lock = new_rlock()
        self._open = {}
        self._openings = {}


def _usable(connection: Connection) -> bool:
    """Return whether a connection is usable, as far as is known."""
    return not (connection.is_closed or connection.is_draining)


def _copied(error: Exception) -> BaseException:
    # The constructor of a user's error may have any parameters.
    return copy_exception(error) if isinstance(error, errors.Error) else error


_shared = _SharedConnections()
in_each_child(_shared.forked)
