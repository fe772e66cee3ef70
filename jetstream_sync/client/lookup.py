"""Resolve a host name with a deadline."""

from __future__ import annotations

from ..net.clock import Deadline
from ..net.lookup import Address, numeric, resolve
from .result_slot import ResultSlot
from .threads import spawn


def look_up(host: str, port: int, deadline: Deadline, *, randomize: bool) -> list[Address]:
    """
    Return the addresses of a host.

    The system's resolver has no timeout, so it runs on a separate thread. After the deadline that
    thread is abandoned, and ends when the resolver returns. An IP address needs no thread.
    """
    addresses = numeric(host, port)
    if addresses:
        return addresses
    slot: ResultSlot[list[Address]] = ResultSlot()

    def ask() -> None:
        try:
            found = resolve(host, port, randomize=randomize)
        except (OSError, UnicodeError) as error:
            slot.fail(error)
        else:
            slot.set(found)

    spawn(f"lookup-{host}", ask, slot.fail)
    if not slot.arrived(deadline):
        raise TimeoutError(f"the lookup of {host!r} timed out")
    return slot.result()
