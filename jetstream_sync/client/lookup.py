"""Look a host's addresses up, within a time."""

from __future__ import annotations

from ..net.clock import Deadline
from ..net.lookup import Address, numeric, resolve
from .result_slot import ResultSlot
from .threads import spawn

__all__ = ["look_up"]


def look_up(host: str, port: int, deadline: Deadline, *, randomize: bool) -> list[Address]:
    """
    Return the addresses of a host.

    The system's look-up of a name can not be given a time, so it gets a thread of its own, which is left
    behind when the deadline comes and ends with the system's patience. A host that is given by its number
    needs neither.

    Args:
        host: a name, or an IP address.
        port: the port to go with it.
        deadline: when to give up.
        randomize: shuffle the addresses of a name.

    Raises:
        OSError: there is no such name, or nobody to ask.
        UnicodeError: it can not be a name.
        TimeoutError: the built-in one; the deadline came.

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
        raise TimeoutError(f"looking up {host!r} took too long")
    return slot.result()
