"""The servers that a connection may use, in the order in which they are tried."""

from __future__ import annotations

import contextlib
import random
from dataclasses import dataclass, replace

from .. import errors
from ..address import Server, ServerAddress
from ..locks import new_lock

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

    def __len__(self) -> int:
        return len(self._entries)

    def forked(self) -> None:
        """Replace the lock in a forked child, because a thread of the parent may have held it."""
        self._lock = new_lock()

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
        """Merge the announced servers into the pool; see `discovered`. The lock is held."""
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

    # --- the lock is held ---------------------------------------------------------------------------

    def _entry(self, address: ServerAddress) -> _Entry:
        """Return the entry of a server; a new one, which is not in the pool, if it was removed."""
        return next((item for item in self._entries if item.address == address), _Entry(address))

    def _move_to_end(self, entry: _Entry) -> None:
        """Move a server to the end, or remove it if it has failed too often."""
        if entry in self._entries:
            self._entries.remove(entry)
            if self._max_failures < 0 or entry.failures < self._max_failures:
                self._entries.append(entry)


def _endpoint(address: ServerAddress) -> tuple[str, int]:
    return address.host, address.port
