"""Connections that know JetStream, and how to open one."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from ..client.connection import Connection as CoreConnection
from ..client.core import Core
from ..options import DEFAULT_SERVER, ConnectionOptions, parse_servers
from .context import JetStream

__all__ = ["Connection", "connect"]


class Connection(CoreConnection):
    """A connection to NATS, from which JetStream can be had."""

    def jetstream(
        self,
        domain: str | None = None,
        prefix: str | None = None,
        timeout: float | timedelta | None = 5.0,
    ) -> JetStream:
        """
        Return the entry to JetStream on this connection; nothing is sent.

        Args:
            domain: the JetStream domain to talk to; ``None``: the one of the server.
            prefix: where the API is, for an account that imports it under another subject;
                excludes ``domain``; ``None``: ``$JS.API``.
            timeout: how long its calls wait for an answer, in seconds; ``None``: for ever.

        Raises:
            InvalidOptionError: domain and prefix are both given, or one is not well formed.

        """
        return JetStream(self._core, domain=domain, prefix=prefix, timeout=timeout)


def connect(servers: str | Sequence[str] = DEFAULT_SERVER, **options: Any) -> Connection:
    """
    Connect to a NATS server.

    On return the server has accepted the login. The first server that accepts is taken; each
    is tried once, for at most ``connect_timeout``.

    Args:
        servers: a URL (``nats://127.0.0.1:4222``), several with commas between them, or a list.
        **options: these, by name:

            ``name``: what the server calls this connection in its lists; default: nothing.

            ``user``, ``password``, ``token``: the login; a URL may carry one, which comes first.

            ``connect_timeout``: seconds for one server: TCP, handshake and login; default 2.

            ``allow_reconnect``: whether another link is sought when one breaks; default true.

            ``max_reconnect_attempts``: failures in a row after which a server is given up; -1:
            never; default 60.

            ``reconnect_time_wait``: seconds between two walks of the list of servers; default 2.

            ``ping_interval``: seconds between pings; default 120.

            ``max_outstanding_pings``: unanswered pings after which a link is given up; default 2.

            ``dont_randomize``: try the servers in the order given; default false.

            ``no_echo``: do not receive what this connection publishes itself; default false.

            ``verbose``, ``pedantic``: have the server confirm, or check strictly; default false.

            ``inbox_prefix``: where answers go; default ``_INBOX``.

            ``drain_timeout``: seconds that draining may take; default 30.

            ``pending_size``: bytes to keep while there is no link; default 2 MiB.

            ``error_cb``: called with each error that no call can raise; default: it is logged.

            ``disconnected_cb``, ``reconnected_cb``, ``closed_cb``, ``discovered_server_cb``,
            ``lame_duck_mode_cb``: called, without arguments, when that happened. Callbacks run one
            after the other on a thread of their own.

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
    core = Core(ConnectionOptions.of(parse_servers(servers), options), _version())
    core.open()
    return Connection(core)


def _version() -> str:
    """Return the version of this package, also where it was shipped without its metadata."""
    # Imported late: it takes longer than everything else that a connection needs.
    from importlib import metadata  # noqa: PLC0415

    try:
        return metadata.version("jetstream-sync")
    except metadata.PackageNotFoundError:
        return "0"
