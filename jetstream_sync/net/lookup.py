"""Where a host is: its addresses."""

from __future__ import annotations

import random
import socket
from dataclasses import dataclass
from typing import Any

__all__ = ["Address", "numeric", "resolve"]


@dataclass(frozen=True, slots=True)
class Address:
    """One address of a host, in the form that the system's calls take."""

    family: int
    kind: int
    protocol: int
    where: Any
    """The host's number and the port, and for IPv6 some more."""


def numeric(host: str, port: int) -> list[Address]:
    """
    Return the address that a host's number stands for; none when it is a name. It never waits.

    Raises:
        UnicodeError: it is neither, and can not be: a part of it is empty or too long.

    """
    try:
        return _addresses(host, port, socket.AI_NUMERICHOST)
    except socket.gaierror:
        return []


def resolve(host: str, port: int, *, randomize: bool) -> list[Address]:
    """
    Return every address of a name; may wait for long, and nothing can end that.

    Args:
        host: the name.
        port: the port to go with it.
        randomize: shuffle them, so that clients spread over servers with one name (ADR-11).

    Raises:
        OSError: there is no such name, or nobody to ask.
        UnicodeError: it can not be a name.

    """
    found = _addresses(host, port, 0)
    if randomize:
        random.shuffle(found)
    return found


def _addresses(host: str, port: int, flags: int) -> list[Address]:
    found = socket.getaddrinfo(host, port, 0, socket.SOCK_STREAM, 0, flags)
    return [Address(family, kind, protocol, where) for family, kind, protocol, _, where in found]
