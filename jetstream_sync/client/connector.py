"""
Find a link: the first one, and another one after a link broke.

The rules, which are those of nats.go where it has them:

1. A walk tries every known server once. The server whose link broke comes last.
2. The first walk begins at once. Between two walks there is a wait, so that a server which is down is
   not asked without end, and by chance a little more, so that not all its clients come at once.
3. Links that break as soon as they are made count as walks in vain, once there were more of them in
   a row than there are servers: nobody dials as fast as a server hangs up.
4. A server is forgotten after so many failures in a row; when none is left it is over. A server
   that refuses the login twice with the same words ends it, too: it would again.
"""

from __future__ import annotations

import logging
import random
import threading

from ..address import ServerAddress
from ..errors import (
    AuthorizationError,
    ConnectionClosedError,
    ConnectionLostError,
    Error,
    InvalidArgumentError,
    NoServersError,
    ProtocolError,
)
from ..events import ConnectionEvent, EventKind
from ..net.clock import monotonic, seconds
from ..options import ConnectionOptions
from ..protocol.session import ServerInfo
from .dialer import Dialer
from .events import Events
from .pool import ServerPool
from .transport import Transport, describe

__all__ = ["Connector"]

log = logging.getLogger("jetstream_sync.connection")

#: Seconds by which a wait is longer at most, without TLS and with it.
_JITTER = 0.1
_JITTER_TLS = 1.0
#: Seconds that lie between two walks at least, and the most that this grows to, by as much with each walk:
#: soon after a restart, without keeping a core busy, or using all attempts up in a moment.
_SHORTEST_WAIT = 0.01
_SHORTEST_LATER = 0.05
#: Seconds that locks and events take at most.
_LONGEST_WAIT = 9e9
#: Seconds after which a link is a good one, and the break of it a new story.
_SETTLED = 1.0


class Connector:
    """
    Tries the servers of a pool until one accepts.

    Args:
        options: which servers, how long to wait, how often to try.
        dialer: opens links.
        events: told of failures that a user should know of, and of changes in the cluster.

    `stop()`, `skip_wait()` and `stopped()` may be called by any thread, the rest by one at a time.
    """

    def __init__(self, options: ConnectionOptions, dialer: Dialer, events: Events) -> None:
        self._name = options.name or "connection"
        self._options = options
        self._dialer = dialer
        self._events = events
        #: The servers that are tried.
        self.pool = self._pool = ServerPool(
            options.servers,
            randomize=not options.dont_randomize,
            max_failures=options.max_reconnect_attempts,
        )
        self._stopped = threading.Event()
        self._hurry = threading.Event()  # ends a wait
        self._made = 0.0  # when the last link was made
        self._short_lived = 0  # links in a row that broke soon
        self._informed = False  # whether there was an INFO before
        self._lame_duck = ""  # the server that said last that it will stop soon

    def first(self) -> Transport:
        """
        Try every server once, and return the first link.

        Raises:
            AuthorizationError, ProtocolError, SecureConnectionError: the only server, or all of
                them, failed in this way.
            NoServersError: no server could be reached, for various reasons.
            InvalidArgumentError: no login could be made of the options, for any server.

        """
        failures: dict[ServerAddress, Exception] = {}
        for address in self._pool.addresses():
            try:
                return self._opened(address)
            except InvalidArgumentError:
                raise
            except (Error, OSError) as error:
                failures[address] = error
                self._note_first_failure(address, error)
        raise _no_server(failures) from list(failures.values())[-1]

    def reconnect(self, lost: ServerAddress | None, cause: BaseException) -> Transport | None:
        """
        Walk the pool until a server accepts, with a wait between two walks.

        Args:
            lost: the server whose link broke; ``None``: there was none yet.
            cause: why it broke.

        Returns:
            The link, or ``None`` when `stop()` was called.

        Raises:
            NoServersError: every server failed as often as it may.
            AuthorizationError: a server refused the login twice with the same words.
            ConnectionClosedError: every server failed in this one way.

        """
        hurried = self._hurry.is_set()
        self._hurry.clear()
        if lost is not None:
            self._note_loss(lost, cause)
        failures: dict[ServerAddress, Exception] = {}
        walks = 0
        if self._is_flapping(lost, hurried=hurried):
            walks = 1
            self._wait(walks)
        while not self._stopped.is_set():
            for address in self._pool.addresses():
                if self._stopped.is_set():
                    return None
                if not self._pool.has(address):
                    continue  # the pool was replaced meanwhile
                try:
                    return self._opened(address)
                except (Error, OSError) as error:
                    failures[address] = error
                    self._failed(address, error)
            if not self._pool.addresses():
                raise _no_server(failures)
            walks += 1
            self._wait(walks)
        return None

    def skip_wait(self) -> None:
        """End the wait that is under way, or leave out the next one."""
        self._hurry.set()

    def stop(self) -> None:
        """Make `reconnect()` give up."""
        self._stopped.set()
        self._hurry.set()

    def stopped(self, seconds: float) -> bool:
        """Wait up to ``seconds`` until `stop()` is called; say whether it was."""
        return self._stopped.wait(seconds)

    def informed(self, info: ServerInfo, current: ServerAddress) -> None:
        """Take what an INFO says of the cluster and of the server's end, and tell of what is new."""
        first, self._informed = not self._informed, True
        new: list[ServerAddress] = []
        if not self._options.ignore_discovered_servers:
            urls = info.connect_urls
            if current.websocket and info.ws_connect_urls:
                urls = info.ws_connect_urls
            new = self._pool.discovered(urls, current)
        if first:
            return  # whom the first server knows is nothing that happens
        if new:
            servers = tuple(address.url for address in new)
            self._events.tell(
                ConnectionEvent(EventKind.DISCOVERED_SERVERS, current.url, servers=servers)
            )
        if info.ldm and info.server_id != self._lame_duck:
            self._lame_duck = info.server_id
            self._events.tell(ConnectionEvent(EventKind.LAME_DUCK, current.url))

    def _opened(self, address: ServerAddress) -> Transport:
        link = self._dialer.open(address)
        self._made = monotonic()
        self._pool.succeeded(address)
        return link

    def _note_first_failure(self, address: ServerAddress, error: Exception) -> None:
        reason = describe(error)
        log.info("%s: %s: %s", self._name, address.url, reason)
        self._pool.passed_over(address)
        self._pool.is_news(address, reason)
        if isinstance(error, AuthorizationError):
            self._pool.refused(address, str(error))

    def _note_loss(self, lost: ServerAddress, cause: BaseException) -> None:
        self._pool.lost(lost)
        if isinstance(cause, AuthorizationError):
            self._pool.refused(lost, str(cause))

    def _failed(self, address: ServerAddress, error: Exception) -> None:
        """Note a failure; raise it where the same would happen again and again."""
        reason = describe(error)
        log.info("%s: %s: %s", self._name, address.url, reason)
        news = self._pool.is_news(address, reason)
        over = isinstance(error, AuthorizationError) and self._pool.refused(address, reason)
        self._pool.failed(address)
        if over and not self._options.ignore_auth_error_abort:
            raise _no_server({address: error}) from error
        if news and not _is_down(error):
            self._events.error(error)

    def _is_flapping(self, lost: ServerAddress | None, *, hurried: bool) -> bool:
        """Say whether links break as fast as they are made."""
        if lost is None or hurried or monotonic() - self._made > _SETTLED:
            self._short_lived = 0
            return False
        self._short_lived += 1
        return self._short_lived > len(self._pool.addresses())

    def _wait(self, walks: int) -> None:
        """Wait between two walks, unless somebody is in a hurry."""
        least = min(_SHORTEST_WAIT * walks, _SHORTEST_LATER)
        self._hurry.wait(min(max(self._delay(walks), least), _LONGEST_WAIT))
        # In this order: `stop()` sets both, and is looked for after this.
        self._hurry.clear()

    def _delay(self, walks: int) -> float:
        """Return how long to wait after so many walks."""
        options = self._options
        if options.reconnect_delay_cb is not None:
            try:
                return seconds(options.reconnect_delay_cb(walks), "reconnect_delay_cb")
            except Exception as error:
                log.exception("%s: reconnect_delay_cb raised", self._name)
                self._events.error(error)
        wait = options.reconnect_time_wait
        jitter = options.reconnect_jitter
        if jitter is None:
            tls = options.tls or any(address.tls for address in self._pool.addresses())
            jitter = _JITTER_TLS if tls else _JITTER
        return wait + random.uniform(0, jitter) if wait else 0.0  # noqa: S311 - it keeps no secret


def _is_down(error: Exception) -> bool:
    """Say whether a server is just not there, which is what reconnecting is for: no news for the user."""
    if isinstance(error, Error):
        return type(error) is ConnectionLostError or isinstance(error, TimeoutError)
    return isinstance(error, OSError)


def _no_server(failures: dict[ServerAddress, Exception]) -> Error:
    """Return a new error that says best why no server accepted, and which."""
    if len({type(error) for error in failures.values()}) == 1:
        address, last = list(failures.items())[-1]
        if isinstance(last, ProtocolError):
            return ProtocolError(f"{address.url}: {last.reason}", last.excerpt)
        if isinstance(last, ConnectionClosedError):
            return type(last)(f"{address.url}: {last}")
    return NoServersError(
        tuple((address.url, describe(error)) for address, error in failures.items())
    )
