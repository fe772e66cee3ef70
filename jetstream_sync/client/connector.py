"""The pool of servers, and how one of them is found: the first time, and after a connection was lost."""

# The rules follow nats.go where it has the same feature:
#
# 1. A round tries every known server once. The server whose connection was lost comes last.
# 2. The first round begins at once. Between two rounds there is a delay, so that a server which is down
#    is not tried continuously, plus a random jitter, so that its clients do not all return at once.
# 3. Connections that break right after the handshake count as failed rounds once there are more of
#    them in a row than servers. So the client does not redial as fast as a server disconnects it.
# 4. The jitter doubles with each round in which a server sent its INFO, but did not finish the handshake
#    in time. It has more clients than it can accept, and the work for those that give up is lost. With a
#    fixed delay, thousands of them would never get in: see docs/topics/sizing.rst. nats.go does not do this.
# 5. A server is removed from the pool after ``max_reconnect_attempts`` failures in a row. When no server
#    is left, reconnecting ends. It also ends when a server refuses the login twice with the same error.

from __future__ import annotations

import contextlib
import logging
import random
from collections.abc import Callable
from dataclasses import dataclass, replace

from .. import errors
from ..address import Server, ServerAddress
from ..locks import new_lock
from ..net.clock import Deadline, monotonic, seconds
from ..options import ConnectionEvent, ConnectionOptions, EventKind
from ..protocol.parser import ServerInfo
from .events import Events
from .threads import Waiters
from .transport import Transport, TransportOpener, describe

log: logging.Logger = logging.getLogger("jetstream_sync.connection")

#: Maximum random addition to a delay, in seconds, without and with TLS.
_JITTER_S = 0.1
_JITTER_TLS_S = 1.0
#: Limit of the addition while servers do not finish their handshakes in time, in seconds; see rule 4.
_MAX_JITTER_S = 60.0
#: Minimum delay between two rounds, in seconds: it grows by the first value with each round, up to the
#: second. So a restarted server is found quickly, but the retries neither keep a CPU core busy nor use
#: up all attempts at once.
_MIN_DELAY_STEP_S = 0.01
_MAX_MIN_DELAY_S = 0.05
#: Uptime in seconds after which the reconnect back-off is reset.
_STABLE_UPTIME_S = 1.0


class Connector:
    """Tries the servers of a pool until one accepts the connection."""

    # `stop()`, `skip_wait()`, `stopped()` and `wake()` may be called by any thread, the others by one at a time.

    def __init__(self, options: ConnectionOptions, opener: TransportOpener, events: Events) -> None:
        self._name = options.name or "connection"
        self._options = options
        self._opener = opener
        self._events = events
        #: The servers to try.
        self.pool: ServerPool = ServerPool(
            options.servers,
            randomize=not options.dont_randomize,
            max_failures=options.max_reconnect_attempts,
        )
        self._waiters = Waiters()  # the threads that wait for one of these
        self._is_stopped = False
        self._skips_wait = False  # ends a delay
        self._connected_at = 0.0  # monotonic time of the last successful connection
        self._short_lived = 0  # connections in a row that broke before _STABLE_UPTIME_S
        self._slow_rounds = 0  # rounds in a row with a handshake that was too slow; see rule 4
        self._was_slow = False  # whether the current round has had one
        self._has_info = False  # whether an INFO was processed before
        self._lame_duck = ""  # id of the last server that announced lame-duck mode

    def first(self) -> Transport:
        """
        Try every server once, and return the first transport.

        Raises:
            InvalidArgumentError: an option or a credential is invalid.
            NoServersError, ProtocolError, ConnectionClosedError: no server accepted; the last two if all
                attempts failed with it.

        """
        failures: dict[ServerAddress, Exception] = {}
        for address in self.pool.addresses():
            try:
                return self._open(address)
            except errors.InvalidArgumentError:
                raise
            except (errors.Error, OSError) as error:
                failures[address] = error
                self._recorded(address, error)
                self.pool.skipped(address)
        raise _no_server(failures) from list(failures.values())[-1]

    def reconnect(self, lost: ServerAddress | None, cause: BaseException) -> Transport | None:
        """
        Try the servers in rounds until one accepts; return its transport, or ``None`` after `stop()`.

        Raises:
            Error: no server is left in the pool, or one refused the login twice with the same error; as `first()`.

        """
        skip_wait, self._skips_wait = self._skips_wait, False
        rounds = 0
        if self._is_flapping(lost, skip_wait=skip_wait):
            rounds = 1
            self._wait(rounds)
        if lost is not None:
            self.pool.lost(lost)
            if isinstance(cause, errors.AuthorizationError):
                self.pool.refused(lost, str(cause))
        failures: dict[ServerAddress, Exception] = {}
        while not self._is_stopped:
            for following in self.pool.addresses():
                address = self._chosen() or following
                if self._is_stopped:
                    return None
                chose = self._options.reconnect_to_cb is not None
                if (failures or chose) and not self.pool.has(address):
                    continue  # the pool was replaced meanwhile
                try:
                    return self._open(address)
                except (errors.Error, OSError) as error:
                    failures[address] = error
                    self._failed(address, error)
            if not self.pool.addresses():
                raise _no_server(failures)
            rounds += 1
            self._wait(rounds)
        return None

    def skip_wait(self) -> None:
        """End the current delay, or skip the next one."""
        self._skips_wait = True
        self._waiters.wake_all()

    def stop(self) -> None:
        """Make `reconnect()` return ``None``."""
        self._is_stopped = True
        self._waiters.wake_all()

    def stopped(self, seconds: float, ended: Callable[[], object] | None = None) -> bool:
        """Wait up to ``seconds`` for `stop()`, or until ``ended()`` holds; return whether it was called."""
        self._waiters.wait_for(
            lambda: self._is_stopped or (ended is not None and ended()), Deadline(seconds)
        )
        return self._is_stopped

    def wake(self) -> None:
        """Let the threads in `stopped()` check their conditions."""
        self._waiters.wake_all()

    def on_info(self, info: ServerInfo, current: ServerAddress) -> None:
        """Update the pool from an INFO, and report discovered servers and lame-duck mode."""
        first, self._has_info = not self._has_info, True
        new: list[ServerAddress] = []
        if not self._options.ignore_discovered_servers:
            urls = info.connect_urls
            if current.websocket and info.ws_connect_urls:
                urls = info.ws_connect_urls
            new = self.pool.discovered(urls, current)
        if first:
            return  # servers listed in the first INFO are not reported as discovered
        if new:
            servers = tuple(address.url for address in new)
            self._events.tell(
                ConnectionEvent(EventKind.DISCOVERED_SERVERS, current.url, servers=servers)
            )
        if info.ldm and info.server_id != self._lame_duck:
            self._lame_duck = info.server_id
            self._events.tell(ConnectionEvent(EventKind.LAME_DUCK, current.url))

    def _open(self, address: ServerAddress) -> Transport:
        transport = self._opener.open(address, Deadline(self._options.connect_timeout))
        self._connected_at = monotonic()
        self._slow_rounds = 0
        self._was_slow = False
        self.pool.succeeded(address)
        return transport

    def _recorded(self, address: ServerAddress, error: Exception) -> tuple[bool, bool]:
        """Log and record a failure; return whether its reason is new, and whether it refuses a login again."""
        reason = describe(error)
        log.info("%s: %s: %s", self._name, address.url, reason)
        is_refused = isinstance(error, errors.AuthorizationError)
        refused_twice = is_refused and self.pool.refused(address, reason)
        return self.pool.is_new_failure(address, reason), refused_twice

    def _failed(self, address: ServerAddress, error: Exception) -> None:
        """Record a failure; raise it if the login was refused twice with the same error."""
        if self._opener.was_greeted and isinstance(error, TimeoutError):
            self._was_slow = True
        is_new, refused_twice = self._recorded(address, error)
        self.pool.failed(address)
        self._events.tell(ConnectionEvent(EventKind.RECONNECT_FAILED, address.url, error))
        if refused_twice and not self._options.ignore_auth_error_abort:
            raise _no_server({address: error}) from error
        if is_new and not _is_unreachable(error):
            self._events.error(error)

    def _is_flapping(self, lost: ServerAddress | None, *, skip_wait: bool) -> bool:
        """Return whether connections repeatedly break right after the handshake; see rule 3."""
        if lost is None or skip_wait or monotonic() - self._connected_at > _STABLE_UPTIME_S:
            self._short_lived = 0
            return False
        self._short_lived += 1
        return self._short_lived > len(self.pool.addresses())

    def _wait(self, rounds: int) -> None:
        """Wait between two rounds, until the delay is over or `skip_wait()` is called."""
        self._slow_rounds = self._slow_rounds + 1 if self._was_slow else 0
        self._was_slow = False
        least = min(_MIN_DELAY_STEP_S * rounds, _MAX_MIN_DELAY_S)
        self._sleep(max(self._delay(rounds), least))

    def _sleep(self, delay: float) -> None:
        """Wait for ``delay`` seconds, or until `skip_wait()` or `stop()` is called."""
        self._waiters.wait_for(lambda: self._skips_wait or self._is_stopped, Deadline(delay))
        self._skips_wait = False

    def _chosen(self) -> ServerAddress | None:
        """Wait as ``reconnect_to_cb`` wants, and return the server that it chose; ``None``: the next one."""
        choose = self._options.reconnect_to_cb
        if choose is None:
            return None
        try:
            choice = choose(self.pool.servers())
            if choice is None:
                return None
            server, delay = choice
            address = self._address(server.uri)
            wait = seconds(delay, "reconnect_to_cb")
        except BaseException as error:  # noqa: BLE001 - reported
            self._events.callback_raised("reconnect_to_cb", error)
            return None
        if wait > 0:
            self._sleep(wait)
        return address

    def _address(self, url: str) -> ServerAddress:
        for address in self.pool.addresses():
            if address.url == url:
                return address
        raise errors.InvalidOptionError("reconnect_to_cb", url, "is not in the server pool")

    def _delay(self, rounds: int) -> float:
        """Return the delay in seconds after a number of rounds."""
        options = self._options
        if options.reconnect_delay_cb is not None:
            try:
                return seconds(options.reconnect_delay_cb(rounds), "reconnect_delay_cb")
            except BaseException as error:  # noqa: BLE001 - reported
                self._events.callback_raised("reconnect_delay_cb", error)
        wait = options.reconnect_time_wait
        jitter = options.reconnect_jitter
        if jitter is None:
            tls = options.tls or any(address.tls for address in self.pool.addresses())
            jitter = _JITTER_TLS_S if tls else _JITTER_S
            jitter = min(jitter * 2 ** min(self._slow_rounds, 16), _MAX_JITTER_S)
        return wait + random.uniform(0, jitter) if wait else 0.0  # noqa: S311 - not a secret


def _is_unreachable(error: Exception) -> bool:
    """Return whether a server is only unreachable, which reconnecting handles without a report."""
    if isinstance(error, errors.Error):
        return type(error) is errors.ConnectionLostError or isinstance(error, TimeoutError)
    return isinstance(error, OSError)


def _no_server(failures: dict[ServerAddress, Exception]) -> errors.Error:
    """Return the error that describes best why no server accepted the connection."""
    if len({type(error) for error in failures.values()}) == 1:
        address, last = list(failures.items())[-1]
        if isinstance(last, errors.ProtocolError):
            return errors.ProtocolError(f"{address.url}: {last.reason}", last.excerpt)
        if isinstance(last, errors.ConnectionClosedError):
            return type(last)(f"{address.url}: {last}")
    return errors.NoServersError(
        tuple((address.url, describe(error)) for address, error in failures.items())
    )


#: Maximum number of servers used from one INFO, and of endpoints remembered as known.
_MAX_DISCOVERED = 1000
_MAX_SEEN = 10_000


@dataclass(slots=True, eq=False)
class _Entry:
    address: ServerAddress
    discovered: bool = False
    failures: int = 0
    """Number of failed attempts since the last success."""
    refusal: str = ""
    """Text of the last refused login since the last success."""
    last_failure: str = ""
    """Text of the last failure since the last success."""


class ServerPool:
    """The known servers: given by the user, or discovered from the cluster."""

    # The server in use, or the one reached last, is the first.
    #
    # `randomize`: shuffle given and discovered servers, so that clients spread over a cluster.
    # `max_failures`: failed attempts in a row after which a server is removed; -1: never.
    #
    # Any thread may call its methods.

    def __init__(
        self, servers: tuple[ServerAddress, ...], *, randomize: bool, max_failures: int
    ) -> None:
        self._lock = new_lock()
        self._entries = [_Entry(address) for address in servers]
        self._randomize = randomize
        self._max_failures = max_failures
        # All endpoints ever known: a server that returns is not reported as discovered.
        self._seen = {_endpoint(address) for address in servers}
        if randomize:
            random.shuffle(self._entries)

    def addresses(self) -> list[ServerAddress]:
        """Return the servers in the order in which they are tried next."""
        with self._lock:
            return [entry.address for entry in self._entries]

    def servers(self) -> list[Server]:
        """Return the servers with their state, in the order in which they are tried next."""
        with self._lock:
            return [
                Server(item.address.url, item.failures, item.discovered) for item in self._entries
            ]

    def has(self, address: ServerAddress) -> bool:
        """Return whether a server is still in the pool."""
        with self._lock:
            return any(entry.address == address for entry in self._entries)

    def replace_all(self, servers: tuple[ServerAddress, ...]) -> None:
        """Replace all servers; a server that was known before keeps its failures."""
        with self._lock:
            known = {_endpoint(entry.address): entry for entry in self._entries}
            entries = []
            for address in dict.fromkeys(servers):
                old = known.get(_endpoint(address), _Entry(address))
                entries.append(replace(old, address=address, discovered=False))
            if self._randomize:
                random.shuffle(entries)
            self._entries = entries
            self._seen.update(_endpoint(address) for address in servers)

    def failed(self, address: ServerAddress) -> None:
        """Count a failed attempt, and move the server to the end or remove it after too many."""
        with self._lock:
            entry = self._entry(address)
            entry.failures += 1
            self._move_to_end(entry)

    def lost(self, address: ServerAddress) -> None:
        """Move the server whose connection was lost to the end, so that the others are tried first."""
        with self._lock:
            self._move_to_end(self._entry(address))

    def skipped(self, address: ServerAddress) -> None:
        """Move a server to the end that failed in the first round, which is not counted."""
        with self._lock:
            entry = self._entry(address)
            self._entries.sort(key=lambda item: item is entry)

    def succeeded(self, address: ServerAddress) -> None:
        """Reset the failures of a server that accepted the connection."""
        with self._lock:
            entry = self._entry(address)
            entry.failures = 0
            entry.refusal = entry.last_failure = ""

    def refused(self, address: ServerAddress, text: str) -> bool:
        """Record that a server refused the login."""
        # Returns whether it did so before with the same text, and has not accepted the client since.
        with self._lock:
            entry = self._entry(address)
            again, entry.refusal = entry.refusal == text, text
            return again

    def is_new_failure(self, address: ServerAddress, reason: str) -> bool:
        """Record why a server failed; return whether the reason differs from the last one."""
        with self._lock:
            entry = self._entry(address)
            is_new, entry.last_failure = entry.last_failure != reason, reason
            return is_new and entry in self._entries

    def discovered(self, urls: tuple[str, ...], current: ServerAddress) -> list[ServerAddress]:
        """Add the servers that an INFO announced, and return those that were never known before."""
        # Discovered servers that are no longer announced are removed, except the current one. An empty
        # list changes nothing, because a single server announces none. Invalid addresses are ignored.
        #
        # `current`: the connected server, whose login and TLS settings the new servers inherit. A
        # server announced by its IP address must have a certificate for the current name.
        announced = {}
        for url in urls[:_MAX_DISCOVERED]:
            with contextlib.suppress(errors.InvalidOptionError):
                address = ServerAddress.parse(url)
                announced[_endpoint(address)] = address
        if not announced:
            return []
        with self._lock:
            return self._merge(announced, current)

    def _merge(
        self, announced: dict[tuple[str, int], ServerAddress], current: ServerAddress
    ) -> list[ServerAddress]:
        """Merge the announced servers into the pool, see `discovered`; ``_lock`` is held."""
        self._entries = [
            entry
            for entry in self._entries
            if not entry.discovered
            or _endpoint(entry.address) in announced
            or entry.address == current
        ]
        name = current.tls_name if current.is_ip else current.host
        known = {_endpoint(entry.address) for entry in self._entries}
        added = {
            endpoint: replace(
                current,
                host=address.host,
                port=address.port,
                tls_name=name if address.is_ip else "",
            )
            for endpoint, address in announced.items()
            if endpoint not in known
        }
        self._entries += [_Entry(address, discovered=True) for address in added.values()]
        new = [address for endpoint, address in added.items() if endpoint not in self._seen]
        self._seen.update(added)
        if len(self._seen) > _MAX_SEEN:
            # The servers change their addresses all the time: a removed one may be reported again.
            self._seen = {(entry.address.host, entry.address.port) for entry in self._entries}
        if new and self._randomize:
            # The server in use keeps its endpoint.
            others = self._entries[1:]
            random.shuffle(others)
            self._entries[1:] = others
        return new

    def _entry(self, address: ServerAddress) -> _Entry:
        """Return the entry of a server, or a new one if it was removed; ``_lock`` is held."""
        return next((item for item in self._entries if item.address == address), _Entry(address))

    def _move_to_end(self, entry: _Entry) -> None:
        """Move a server to the end, or remove it if it has failed too often; ``_lock`` is held."""
        if entry in self._entries:
            self._entries.remove(entry)
            if self._max_failures < 0 or entry.failures < self._max_failures:
                self._entries.append(entry)


def _endpoint(address: ServerAddress) -> tuple[str, int]:
    return address.host, address.port
