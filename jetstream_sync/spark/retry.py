"""
What to try again, and for how long.

An error while a batch is planned ends the query at once: Spark tries nothing again there. So what
passes by itself (a server that restarts, a leader that is being chosen) is waited for here.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from time import sleep
from typing import Final, TypeVar

from ..errors import (
    AuthorizationError,
    ConnectionClosedError,
    Error,
    LeadershipChangeError,
    NoHeartbeatError,
    NoRespondersError,
    NoServersError,
    NoStreamResponseError,
    OutboundBufferLimitError,
    SecureConnectionError,
    ServiceUnavailableError,
    TimeoutError,
)
from ..net.clock import Deadline

__all__ = ["is_transient", "retry_transient"]

log = logging.getLogger("jetstream_sync.spark")

T = TypeVar("T")

_TRANSIENT: Final = (
    ConnectionClosedError,
    LeadershipChangeError,
    NoHeartbeatError,
    NoRespondersError,
    NoServersError,
    NoStreamResponseError,
    OutboundBufferLimitError,
    ServiceUnavailableError,
    TimeoutError,
)
_NOT_TRANSIENT: Final = (AuthorizationError, SecureConnectionError)
_MIN_WAIT_S: Final = 0.1
_MAX_WAIT_S: Final = 5.0


def is_transient(error: Error) -> bool:
    """Say whether the same call may work in a moment."""
    return isinstance(error, _TRANSIENT) and not isinstance(error, _NOT_TRANSIENT)


def retry_transient(call: Callable[[], T], timeout: float, what: str) -> T:
    """
    Call a function until it works.

    Between the attempts there is a wait, 0.1 s at first and up to 5 s.

    Args:
        call: it may be called several times.
        timeout: seconds after which the next error is final.
        what: what it does, for the log.

    Raises:
        Error: it is not one that passes, or it did not pass in time.

    """
    deadline = Deadline(timeout)
    wait = _MIN_WAIT_S
    while True:
        try:
            return call()
        except Error as error:
            if not is_transient(error) or deadline.expired():
                raise
            log.warning("%s failed, and is tried again in %.1f s: %s", what, wait, error)
        sleep(min(wait, deadline.left() or 0.0))
        wait = min(2 * wait, _MAX_WAIT_S)
