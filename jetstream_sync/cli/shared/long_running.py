"""
Long-running commands: connection options, waits that Ctrl-C always interrupts, and repeated reports.

Commands that run until Ctrl-C reconnect after a server restart and report it. Those that read or write
much reconnect for as long as a request may take, so that a cluster may lose a server meanwhile.
"""

from __future__ import annotations

import errno
import math
import os
import select
import threading
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, BinaryIO, Final, TypeVar

from ... import errors
from ...net.clock import Deadline
from .settings import Settings

if TYPE_CHECKING:
    from ... import ConnectionEvent

T = TypeVar("T")

#: Seconds between two attempts to reconnect, and how many timeouts a call is repeated for.
_FAILOVER_WAIT_S: Final = 0.25
_FAILOVER_TIMEOUTS: Final = 3
#: Seconds before a call is made again while a stream has no leader.
_ELECTION_WAIT_S: Final = 2.0

#: Options of a connection that reconnects without limit. The output is watched by a person, so a server
#: that stops answering is detected within half a minute.
RECONNECT_OPTIONS: Final[dict[str, Any]] = {
    "allow_reconnect": True,
    "max_reconnect_attempts": -1,
    "reconnect_time_wait": 0.5,
    "ping_interval": 10.0,
    "max_outstanding_pings": 2,
}


def failover_options(settings: Settings) -> dict[str, Any]:
    """Return the options of a connection that reconnects for up to the timeout of a request."""
    attempts = max(1, math.ceil(settings.timeout / _FAILOVER_WAIT_S))
    return {
        "allow_reconnect": True,
        "max_reconnect_attempts": attempts,
        "reconnect_time_wait": _FAILOVER_WAIT_S,
    }


def failover(call: Callable[[], T], timeout: float) -> T:
    """
    Make a call that may be repeated, again after an error that is transient.

    `timeout`: the timeout of a request, in seconds. After the first failure, the call is repeated for up to
    three timeouts, since an election may take longer than one.
    """
    deadline: Deadline | None = None
    while True:
        try:
            return call()
        except errors.Error as error:
            deadline = deadline or Deadline(_FAILOVER_TIMEOUTS * timeout)
            final = not error.transient or isinstance(error, errors.NoRespondersError)
            if final or deadline.expired():
                raise
            # The call has waited for a reply, or the next one waits for the connection.
            if not isinstance(error, (errors.TimeoutError, errors.ConnectionLostError)):
                pause(min(_ELECTION_WAIT_S, deadline.left() or 0.0))


def reconnect_options(settings: Settings) -> dict[str, Any]:
    """Return `RECONNECT_OPTIONS` with callbacks that report disconnects and reconnects."""

    def on_disconnect(event: ConnectionEvent) -> None:
        why = f": {event.error}" if event.error is not None else ""
        settings.note(f"disconnected{why}; reconnecting")

    def on_reconnect(event: ConnectionEvent) -> None:
        settings.note(f"reconnected to {event.server}")

    return {**RECONNECT_OPTIONS, "disconnected_cb": on_disconnect, "reconnected_cb": on_reconnect}


# --- waits and reports --------------------------------------------------------------------------

#: The longest single wait, in seconds.
_MAX_SLICE_S: Final = 0.5
_STANDARD_OUTPUT: Final = 1
#: The maximum number of bytes of one read.
_READ_BYTES: Final = 128 * 1024


def check_reader() -> None:
    """Raise `BrokenPipeError` if the reader of standard output has closed it: nothing would be read any more."""
    output = select.poll()
    output.register(_STANDARD_OUTPUT, 0)
    if any(event & (select.POLLERR | select.POLLHUP) for _, event in output.poll(0)):
        raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))


def wait_interruptibly(take: Callable[[float], T], deadline: Deadline) -> T:
    """
    Return the result of ``take``, called with short timeouts until the deadline.

    A command that waits in a pipe, such as ``jsm kv watch APP | head -1``, ends with its reader.

    Python records a Ctrl-C and raises KeyboardInterrupt a moment later. When the signal arrives just
    before a wait for a lock, the wait still begins, and an unlimited wait would never be interrupted.
    """
    while True:
        left = deadline.left()
        try:
            return take(_MAX_SLICE_S if left is None else min(left, _MAX_SLICE_S))
        except errors.TimeoutError:
            if deadline.expired():
                raise
            check_reader()


def pause(seconds: float) -> None:
    """Sleep for a time in short slices; see `wait_interruptibly` for the reason."""
    never_set, deadline = threading.Event(), Deadline(seconds)
    while not deadline.expired():
        never_set.wait(min(deadline.left() or 0.0, _MAX_SLICE_S))
        check_reader()


def read_interruptibly(file: BinaryIO) -> Iterator[bytes]:
    """Yield the data of an input as it arrives, until its end; see `wait_interruptibly` for the reason."""
    try:
        descriptor = file.fileno()
    except OSError:
        descriptor = None
    while True:
        while descriptor is not None and not select.select([descriptor], [], [], _MAX_SLICE_S)[0]:
            pass
        # At most one read of the descriptor: the buffer stays empty.
        data: bytes = file.read1(_READ_BYTES)  # type: ignore[attr-defined]
        if not data:
            return
        yield data
