"""`connect()`, and connections with a JetStream context."""

from __future__ import annotations

import weakref
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeVar

from ..address import DEFAULT_SERVER, parse_servers
from ..client.connection import CoreConnection
from ..client.engine import Engine
from ..exact import masked
from ..net.clock import seconds
from ..options import ConnectionOptions, ConnectOptions, keyword_types
from ..records import shows_fields
from ..services.service import Service, StatsHandler, StopCallback
from ..services.wire import (
    DEFAULT_PREFIX,
    ServiceInfo,
    ServicePing,
    ServiceStats,
    discover,
    raise_for_error,
)
from ..subjects import Routes
from .api_requests import APICallback, APIRequests, ConnectionCaches, no_responses
from .context import JetStream
from .message import Confirmations
from .publish import DEFAULT_WINDOW, Publisher

if TYPE_CHECKING:
    from typing_extensions import Unpack

T = TypeVar("T")


class Connection(CoreConnection):
    """A connection to NATS with access to JetStream."""

    def __init__(self, engine: Engine, routes: Routes) -> None:
        super().__init__(engine)
        self._routes = routes
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
            domain: the JetStream domain; ``None``: that of the context of the connection, else of the server.
            prefix: the subject prefix of the API, for an account that imports it under another subject;
                excludes ``domain``; ``None``: that of the context, else ``$JS.API``.
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
            self._routes if domain is prefix is None else Routes.of(domain, prefix),
            timeout,
            required_level=required_api_level,
            callback=api_cb,
            caches=self._caches,
        )
        window, stall_wait = publish_async_max_pending, publish_async_stall_wait
        # The thread for acknowledgements holds the publisher, which must not keep the connection open.
        known = weakref.ref(api)
        publisher = Publisher(
            self._core,
            timeout,
            window,
            stall_wait,
            reasons=lambda subjects: no_responses(known(), subjects),
            has_reasons=lambda: (found := known()) is not None and found.knows_reasons(),
        )
        return JetStream(api, publisher)

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

        Discovery subjects that the server does not permit are reported to ``error_cb``; the endpoints do not
        need them.

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

    def service_call(
        self,
        subject: str,
        value: object = None,
        returns: type[T] = object,  # type: ignore[assignment]  # the default of a type variable
        timeout: float | timedelta = 5.0,
    ) -> T:
        """
        Call a typed endpoint of a service: send a value as JSON, and return the reply as an object.

        Args:
            subject: the subject of the endpoint.
            value: what JSON can represent, as for the arguments of tasks; ``bytes``: the payload itself.
            returns: the type of the return value; by default, what JSON has.
            timeout: how long to wait for the reply, in seconds.

        Raises:
            ServiceError: the endpoint has replied with an error; code 400: the value does not fit there.
            InvalidOptionError: the value is not JSON.
            InvalidResponseError: the reply does not fit ``returns``.
            NoRespondersError: no service has the subject.
            Error: otherwise as `request()`.

        """
        from ..services.typed import payload_of, value_of  # noqa: PLC0415 - it imports the types that it converts

        reply = self.request(subject, payload_of(value), timeout=timeout)
        return value_of(raise_for_error(reply).data, returns)

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
            TimeoutError: there is no connection to a server, or the server is silent.
            ConnectionLostError: the connection was lost meanwhile, and instances may be missing.
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


@shows_fields((ConnectionOptions, keyword_types()))
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
            (ADR-21); options that are given replace those of the context, and a login replaces its login.
            Its JetStream domain and prefix are the defaults of `Connection.jetstream`. Its login is for
            its own servers: other ``servers`` raise `InvalidOptionError`. ``None``: no context.
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
    # Later frames, and the locals of this one that a report of an error shows, have no plain secrets.
    servers, options = masked(servers), masked(options)
    chosen, given, routes = with_context(servers, context, options)
    engine = Engine(ConnectionOptions.of(parse_servers(chosen), given))
    # In this order, so that a Ctrl-C after the opening cannot lose the connection.
    connection = Connection(engine, routes)
    engine.open()
    return connection


def with_context(
    servers: str | Sequence[str] | None, context: str | None, options: ConnectOptions
) -> tuple[str | Sequence[str], Mapping[str, Any], Routes]:
    """Return the servers and options with those of a context that are not given, and its routes."""
    if context is None:
        return DEFAULT_SERVER if servers is None else servers, options, Routes()
    from ..contexts import read_context  # noqa: PLC0415 - most programs have no context

    urls, given, route = read_context(context, servers, options)
    chosen = urls if servers is None else servers
    return chosen or DEFAULT_SERVER, given, Routes.of(**route)
