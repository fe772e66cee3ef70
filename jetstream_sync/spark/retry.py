"""
Errors in Spark: which of them are retried, and how Spark shows the others.

Spark does not retry the planning of a batch: an error there ends the query at once. So transient errors,
such as a server restart or a leader election, are waited out here.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Callable, Iterator
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

log: logging.Logger = logging.getLogger("jetstream_sync.spark")

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
    """Return whether the same call may succeed when it is repeated."""
    return isinstance(error, _TRANSIENT) and not isinstance(error, _NOT_TRANSIENT)


def retry_transient(call: Callable[[], T], timeout: float, what: str) -> T:
    """
    Call a function until it succeeds.

    The wait between two attempts starts at 0.1 s and doubles up to 5 s.

    Args:
        call: the function; it may be called several times.
        timeout: seconds after which the next error is raised.
        what: a description of the call for the log, such as ``reading the streams``.

    Raises:
        Error: it is not transient, or it persisted until the timeout.

    """
    deadline = Deadline(timeout)
    wait = _MIN_WAIT_S
    while True:
        try:
            return call()
        except Error as error:
            if not is_transient(error) or deadline.expired():
                raise
            log.warning("%s failed; next attempt in %.1f s: %s", what, wait, error)
        sleep(min(wait, deadline.left() or 0.0))
        wait = min(2 * wait, _MAX_WAIT_S)


@contextlib.contextmanager
def one_line_errors() -> Iterator[None]:
    """
    Let Spark show an error of this package as its text alone, without the Python traceback.

    Spark reads the variable when it formats an error in one of its processes, and then ends the process.
    """
    try:
        yield
    except Error:
        os.environ["SPARK_HIDE_TRACEBACK"] = "1"
        raise
