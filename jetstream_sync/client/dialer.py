"""Find a server: the first one, and another one after a link broke."""

from __future__ import annotations

import logging
import random
import threading
from typing import Any

from ..address import ServerAddress
from ..errors import (
    ConnectionClosedError,
    Error,
    NoServersError,
    ProtocolError,
)
from ..net.clock import Deadline
from ..options import ConnectionOptions
from ..protocol.session import ServerInfo, connect_fields
from .link import Link, describe, open_link
from .login import Login
from .pool import ServerPool

__all__ = ["Dialer"]

log = logging.getLogger("jetstream_sync.connection")

#: Seconds by which the wait between two walks of the pool is spread, so that the clients of a
#: restarted server do not all come at once.
_JITTER = 0.1


class Dialer:
    """
    Opens links to the servers of a pool.

    Args:
        options: which servers, how long, how often.
        client_version: the version of this package, for the server's lists.

    `stop()` and `discovered()` may be called by any thread, the rest by one at a time.
    """

    def __init__(self, options: ConnectionOptions, client_version: str) -> None:
        self._options = options
        self._client_version = client_version
        self._login = Login(options)
        # Guards the pool: the reader walks it, and an INFO may change it.
        self._lock = threading.Lock()
        self._pool = ServerPool(
            options.servers,
            randomize=not options.dont_randomize,
            max_failures=options.max_reconnect_attempts,
        )
        self._stopped = threading.Event()

    def first(self) -> Link:
        """
        Try every server once, and return the first link.

        Raises:
            AuthorizationError, ProtocolError, SecureConnectionError: the only server, or all of
                them, failed in this way.
            NoServersError: no server could be reached, for various reasons.

        """
        failures: list[tuple[ServerAddress, Exception]] = []
        for address in self._addresses():
            try:
                return self._open(address)
            except (Error, OSError) as error:
                failures.append((address, error))
        raise _no_server(failures) from failures[-1][1]

    def again(self) -> Link | None:
        """
        Walk the pool until a server accepts, with a wait between two walks.

        Returns:
            The link, or ``None`` when `stop()` was called.

        Raises:
            NoServersError: every server failed as often as it may.

        """
        while True:
            failures: list[tuple[ServerAddress, Exception]] = []
            for address in self._addresses():
                if self._stopped.is_set():
                    return None
                try:
                    return self._open(address)
                except (Error, OSError) as error:
                    log.info("%s: %s: %s", self._options.name, address.url, describe(error))
                    failures.append((address, error))
                    with self._lock:
                        self._pool.failed(address)
            if not self._addresses():
                raise _no_server(failures)
            wait = self._options.reconnect_time_wait
            jitter = random.uniform(0, _JITTER) if wait else 0  # noqa: S311 - it keeps no secret
            if self._stopped.wait(wait + jitter):
                return None

    def stop(self) -> None:
        """Make `again()` give up."""
        self._stopped.set()

    def stopped(self, seconds: float) -> bool:
        """Wait up to ``seconds`` until `stop()` is called; say whether it was."""
        return self._stopped.wait(seconds)

    def discovered(self, info: ServerInfo, current: ServerAddress) -> bool:
        """Take the servers that an INFO tells of; say whether there is a new one."""
        with self._lock:
            return bool(self._pool.discovered(info.connect_urls, current))

    def addresses(self) -> list[ServerAddress]:
        """Return the servers that are known."""
        return self._addresses()

    def _addresses(self) -> list[ServerAddress]:
        with self._lock:
            return self._pool.addresses()

    def _open(self, address: ServerAddress) -> Link:
        link = open_link(
            address,
            self._options,
            lambda info: self._connect_fields(info, address),
            Deadline(self._options.connect_timeout),
        )
        with self._lock:
            self._pool.succeeded(address)
        return link

    def _connect_fields(self, info: ServerInfo, address: ServerAddress) -> dict[str, Any]:
        """Return the fields of CONNECT for a server."""
        options = self._options
        fields = connect_fields(
            name=options.name,
            version=self._client_version,
            verbose=options.verbose,
            pedantic=options.pedantic,
            echo=not options.no_echo,
        )
        return {**fields, **self._login.connect_fields(address, info)}


def _no_server(failures: list[tuple[ServerAddress, Exception]]) -> Error:
    """Return a new error that says best why no server accepted, and which."""
    kinds = {type(error) for _, error in failures}
    if len(kinds) == 1:
        address, last = failures[-1]
        if isinstance(last, ProtocolError):
            return ProtocolError(f"{address.url}: {last.reason}", last.excerpt)
        if isinstance(last, ConnectionClosedError):
            return type(last)(f"{address.url}: {last}")
    return NoServersError(tuple((address.url, describe(error)) for address, error in failures))
