"""The servers that a connection may use, in the order in which they are tried."""

from __future__ import annotations

import contextlib
import random
import threading
from dataclasses import dataclass, replace

from ..address import ServerAddress
from ..errors import InvalidOptionError

__all__ = ["Server", "ServerPool"]


@dataclass(frozen=True, slots=True)
class Server:
    """A server that a connection may use, as `Connection.server_pool` has it."""

    uri: str
    """Its URL, without a login."""
    reconnects: int = 0
    """How often in a row it could not be reached."""
    discovered: bool = False
    """Whether a cluster told of it; the others were named by the user."""


#: Servers that are taken of what one INFO tells of, and places that are remembered as known.
_MAX_DISCOVERED = 1000
_MAX_SEEN = 10_000


@dataclass(slots=True, eq=False)
class _Entry:
    address: ServerAddress
    discovered: bool = False
    failures: int = 0
    """How often it could not be reached since it last was."""
    refusal: str = ""
    """How it last refused the login, since it last was reached."""
    complaint: str = ""
    """What its last failure was, since it last was reached."""


class ServerPool:
    """
    Known servers: those that the user named, and those that the cluster told of.

    The one that is in use, or was reached last, is the first.

    Args:
        servers: what the user named.
        randomize: shuffle them, and what is discovered, so that clients spread over a cluster.
        max_failures: failed attempts in a row after which a server is forgotten; -1: never.

    Any thread may call its methods.
    """

    def __init__(
        self, servers: tuple[ServerAddress, ...], *, randomize: bool, max_failures: int
    ) -> None:
        self._lock = threading.Lock()
        self._entries = [_Entry(address) for address in servers]
        self._randomize = randomize
        self._max_failures = max_failures
        # Every place that was ever known: coming back is no discovery.
        self._seen = {_place(address) for address in servers}
        if randomize:
            random.shuffle(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def forked(self) -> None:
        """Replace the lock in a forked child, where a thread that is not there may hold it."""
        self._lock = threading.Lock()

    def addresses(self) -> list[ServerAddress]:
        """Return the servers in the order in which they are tried next."""
        with self._lock:
            return [entry.address for entry in self._entries]

    def servers(self) -> list[Server]:
        """Return what is known of the servers, in the order in which they are tried next."""
        with self._lock:
            return [
                Server(each.address.url, each.failures, each.discovered) for each in self._entries
            ]

    def has(self, address: ServerAddress) -> bool:
        """Return whether a server is still one of them."""
        with self._lock:
            return self._find(address) is not None

    def replace_all(self, servers: tuple[ServerAddress, ...]) -> None:
        """Take these servers instead of all that were known; one that was known keeps its failures."""
        with self._lock:
            known = {_place(entry.address): entry for entry in self._entries}
            entries = []
            for address in dict.fromkeys(servers):
                old = known.get(_place(address), _Entry(address))
                entries.append(replace(old, address=address, discovered=False))
            if self._randomize:
                random.shuffle(entries)
            self._entries = entries
            self._seen.update(_place(address) for address in servers)

    def failed(self, address: ServerAddress) -> None:
        """Put a server that could not be reached at the end, or forget it after too many times."""
        with self._lock:
            entry = self._find(address)
            if entry is not None:
                entry.failures += 1
                self._put_off(entry)

    def lost(self, address: ServerAddress) -> None:
        """Put the server whose link broke at the end: the others are tried first."""
        with self._lock:
            entry = self._find(address)
            if entry is not None:
                self._put_off(entry)

    def skipped(self, address: ServerAddress) -> None:
        """Put a server at the end that did not accept at the first walk, which does not count."""
        with self._lock:
            entry = self._find(address)
            if entry is not None:
                self._entries.remove(entry)
                self._entries.append(entry)

    def succeeded(self, address: ServerAddress) -> None:
        """Note that a server was reached, and let the client in."""
        with self._lock:
            entry = self._find(address)
            if entry is not None:
                entry.failures = 0
                entry.refusal = entry.complaint = ""

    def refused(self, address: ServerAddress, text: str) -> bool:
        """
        Note that a server refused the login.

        Args:
            address: the server.
            text: its words.

        Returns:
            Whether it did so before with the same words, and has not let the client in since.

        """
        with self._lock:
            entry = self._find(address)
            if entry is None:
                return False
            again = entry.refusal == text
            entry.refusal = text
            return again

    def is_new_failure(self, address: ServerAddress, complaint: str) -> bool:
        """Note why a server could not be used, and say whether that was not the reason last time."""
        with self._lock:
            entry = self._find(address)
            if entry is None or entry.complaint == complaint:
                return False
            entry.complaint = complaint
            return True

    def discovered(self, urls: tuple[str, ...], current: ServerAddress) -> list[ServerAddress]:
        """
        Take the servers that a cluster told of, and return those that were never known.

        Those that were told of before and are gone now are forgotten, except the current one. An
        empty list changes nothing: a server that is alone sends none. What is no address is left out.

        Args:
            urls: ``host:port`` of each.
            current: the server that is connected to, whose login and TLS setting they inherit. One
                that is known by its IP alone has to prove that it is called like the current.

        """
        told = {}
        for url in urls[:_MAX_DISCOVERED]:
            with contextlib.suppress(InvalidOptionError):
                address = ServerAddress.parse(url)
                told[_place(address)] = address
        if not told:
            return []
        with self._lock:
            return self._merge(told, current)

    def _merge(
        self, told: dict[tuple[str, int], ServerAddress], current: ServerAddress
    ) -> list[ServerAddress]:
        """Take the servers that were told of; see `discovered`. The lock is held."""
        self._entries = [
            entry
            for entry in self._entries
            if not entry.discovered or _place(entry.address) in told or entry.address == current
        ]
        name = current.tls_name if current.is_ip else current.host
        known = {_place(entry.address) for entry in self._entries}
        added = {
            place: replace(
                current,
                host=address.host,
                port=address.port,
                tls_name=name if address.is_ip else "",
            )
            for place, address in told.items()
            if place not in known
        }
        self._entries += [_Entry(address, discovered=True) for address in added.values()]
        new = [address for place, address in added.items() if place not in self._seen]
        self._seen.update(added)
        if len(self._seen) > _MAX_SEEN:
            # Servers with ever new addresses: what is gone may count as a discovery when it is back.
            self._seen = {(entry.address.host, entry.address.port) for entry in self._entries}
        if new and self._randomize:
            # The server in use keeps its place.
            others = self._entries[1:]
            random.shuffle(others)
            self._entries[1:] = others
        return new

    # --- the lock is held ---------------------------------------------------------------------------

    def _find(self, address: ServerAddress) -> _Entry | None:
        return next((entry for entry in self._entries if entry.address == address), None)

    def _put_off(self, entry: _Entry) -> None:
        """Put a server at the end, unless it has failed too often."""
        self._entries.remove(entry)
        if self._max_failures < 0 or entry.failures < self._max_failures:
            self._entries.append(entry)


def _place(address: ServerAddress) -> tuple[str, int]:
    return address.host, address.port
