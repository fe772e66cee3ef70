"""Connections that know JetStream, and how to open one."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING

from ..address import DEFAULT_SERVER, parse_servers
from ..client.connection import Connection as CoreConnection
from ..client.core import ConnectionCore
from ..options import ConnectionOptions, ConnectOptions
from ..version import __version__
from .context import JetStream
from .publish import DEFAULT_WINDOW

if TYPE_CHECKING:
    from typing_extensions import Unpack

__all__ = ["Connection", "connect"]


class Connection(CoreConnection):
    """A connection to NATS, from which JetStream can be had."""

    def jetstream(
        self,
        domain: str | None = None,
        prefix: str | None = None,
        timeout: float | timedelta | None = 5.0,
        publish_async_max_pending: int = DEFAULT_WINDOW,
    ) -> JetStream:
        """
        Return the entry to JetStream on this connection; nothing is sent.

        Args:
            domain: the JetStream domain to talk to; ``None``: the one of the server.
            prefix: where the API is, for an account that imports it under another subject;
                excludes ``domain``; ``None``: ``$JS.API``.
            timeout: how long its calls wait for an answer, in seconds; ``None``: for ever.
            publish_async_max_pending: messages of `JetStream.publish_async` that may wait for their
                acknowledgements at a time; at the limit the call waits for room.

        Raises:
            InvalidOptionError: domain and prefix are both given, or one is not well formed, or a
                number can not work.

        """
        return JetStream(
            self._core,
            domain=domain,
            prefix=prefix,
            timeout=timeout,
            publish_async_max_pending=publish_async_max_pending,
        )


def connect(
    servers: str | Sequence[str] = DEFAULT_SERVER, **options: Unpack[ConnectOptions]
) -> Connection:
    """
    Connect to a NATS server.

    On return the server has accepted the login. The first server that accepts is taken; each
    is tried once, for at most ``connect_timeout``.

    Args:
        servers: a URL (``nats://127.0.0.1:4222``), several with commas between them, or a list.
        **options: see `ConnectOptions`.

    Returns:
        The connection; use it in a ``with`` block, or call `Connection.drain` or
        `Connection.close` at the end.

    Raises:
        NoServersError: no server could be reached; it says which and why.
        AuthorizationError: the server refused the login.
        ProtocolError: what is there does not speak NATS.
        SecureConnectionError: one side wants TLS, and the other can not.
        InvalidOptionError: an option is out of range or not known.

    """
    core = ConnectionCore(ConnectionOptions.of(parse_servers(servers), options), __version__)
    # In this order: once it is open, a Ctrl-C has no place to strike before the caller has it.
    connection = Connection(core)
    core.open()
    return connection
