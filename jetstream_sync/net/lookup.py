"""Resolve host names to addresses."""

from __future__ import annotations

import random
import socket
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Address:
    """One address of a host, as the arguments of the socket calls."""

    family: int
    kind: int
    protocol: int
    where: Any
    """The IP address and the port; for IPv6 also flow info and scope id."""


def numeric(host: str, port: int) -> list[Address]:
    """Return the address of a numeric host, or an empty list for a name; never waits."""
    try:
        return _addresses(host, port, socket.AI_NUMERICHOST)
    except socket.gaierror:
        return []


def resolve(host: str, port: int, *, randomize: bool) -> list[Address]:
    """
    Return all addresses of a name; may wait for a long time, without a timeout.

    `randomize`: shuffle them, so that clients spread over servers with one name (ADR-11).
    """
    found = _addresses(host, port, 0)
    if randomize:
        random.shuffle(found)
    return found


def _addresses(host: str, port: int, flags: int) -> list[Address]:
    found = socket.getaddrinfo(host, port, 0, socket.SOCK_STREAM, 0, flags)
    return [Address(family, kind, protocol, where) for family, kind, protocol, _, where in found]
