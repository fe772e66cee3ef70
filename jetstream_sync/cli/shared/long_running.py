"""Long-running commands: calls that are repeated, and waits that Ctrl-C always interrupts."""

from __future__ import annotations

import errno
import os
import select
import threading
from collections.abc import Callable, Iterator
from typing import BinaryIO, Final, TypeVar

from ... import errors
from ...net.clock import Deadline

T = TypeVar("T")

#: How many timeouts a call is repeated for.
_FAILOVER_TIMEOUTS: Final = 3
#: Seconds before a call is made again while a stream has no leader.
_ELECTION_WAIT_S: Final = 2.0


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
