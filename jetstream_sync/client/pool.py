"""The servers that a connection may use, in the order in which they are tried."""

from __future__ import annotations

import contextlib
import random
from dataclasses import dataclass, replace

from ..address import ServerAddress
from ..errors import InvalidOptionError

__all__ = ["ServerPool"]


@dataclass(slots=True, eq=False)
class _Entry:
    address: ServerAddress
    discovered: bool = False
    failures: int = 0


class ServerPool:
    """
    Known servers: those that the user named, and those that the cluster told of.

    Args:
        servers: what the user named.
        randomize: shuffle them, and what is discovered, so that clients spread over a cluster.
        max_failures: failed attempts in a row after which a server is forgotten; -1: never.

    One thread at a time may use it.
    """

    def __init__(
        self, servers: tuple[ServerAddress, ...], *, randomize: bool, max_failures: int
    ) -> None:
        self._entries = [_Entry(address) for address in servers]
        self._randomize = randomize
        self._max_failures = max_failures
        if randomize:
            random.shuffle(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def addresses(self) -> list[ServerAddress]:
        """Return the servers in the order in which they are tried next."""
        return [entry.address for entry in self._entries]

    def failed(self, address: ServerAddress) -> None:
        """Put a server that could not be reached at the end, or forget it after too many times."""
        for entry in self._entries:
            if entry.address == address:
                self._entries.remove(entry)
                entry.failures += 1
                if self._max_failures < 0 or entry.failures < self._max_failures:
                    self._entries.append(entry)
                return

    def succeeded(self, address: ServerAddress) -> None:
        """Note that a server was reached."""
        for entry in self._entries:
            if entry.address == address:
                entry.failures = 0

    def discovered(self, urls: tuple[str, ...], current: ServerAddress) -> list[ServerAddress]:
        """
        Take the servers that a cluster told of, and return those that are new.

        Those that were told of before and are gone now are forgotten, except the current one. An
        empty list changes nothing: a server that is alone sends none. What is no address is left out.

        Args:
            urls: ``host:port`` of each.
            current: the server that is connected to, whose login and TLS setting they inherit.

        """
        told = {}
        for url in urls:
            with contextlib.suppress(InvalidOptionError):
                address = ServerAddress.parse(url)
                told[address.host, address.port] = address
        if not told:
            return []
        self._entries = [
            entry
            for entry in self._entries
            if not entry.discovered
            or (entry.address.host, entry.address.port) in told
            or entry.address == current
        ]
        known = {(entry.address.host, entry.address.port) for entry in self._entries}
        new = [
            replace(current, host=address.host, port=address.port)
            for place, address in told.items()
            if place not in known
        ]
        if self._randomize:
            random.shuffle(new)
        self._entries += [_Entry(address, discovered=True) for address in new]
        return new
