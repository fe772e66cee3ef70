"""
Which errors are retried in Spark, and how Spark shows the others.

Spark does not retry the planning of a batch: an error there ends the query at once. So transient errors,
such as a server restart or a leader election, are waited out here.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Callable, Iterator
from time import sleep
from typing import Any, Final, TypeVar

from .. import errors
from ..jetstream.api_requests import limited
from ..net.clock import FOREVER, BackoffDelay, Deadline

log: logging.Logger = logging.getLogger("jetstream_sync.spark")

T = TypeVar("T")

#: The JetStream API has no responders while a server starts, and its accounts are loaded after that. A query
#: waits for it; other programs show at once that JetStream is disabled.
_STARTING: Final = (errors.JetStreamNotEnabledError, errors.JetStreamNotEnabledForAccountError)
#: The connection of the process was closed; the next attempt opens another one.
_CLOSED: Final = (errors.ConnectionClosedError, errors.ConnectionDrainingError)
_MIN_WAIT_S: Final = 0.1
_MAX_WAIT_S: Final = 5.0


def is_transient(error: errors.Error) -> bool:
    """Return whether the same call may succeed when it is repeated."""
    return error.transient or isinstance(error, _STARTING) or type(error) in _CLOSED


def retry_transient(
    call: Callable[[], T], deadline: Deadline, what: str, *, limits_calls: bool = True
) -> T:
    """
    Call a function until it succeeds, or a deadline has passed.

    The wait between two attempts starts at 0.1 s and doubles up to 5 s. The requests of a call end at the deadline,
    unless ``limits_calls`` is false.
    """
    waits = BackoffDelay(_MIN_WAIT_S, _MAX_WAIT_S)
    while True:
        try:
            with limited(deadline if limits_calls else FOREVER):
                return call()
        except errors.Error as error:
            left = deadline.left() or 0.0
            if not is_transient(error) or left < _MIN_WAIT_S:
                raise
            # An attempt needs some time before the deadline: then its error says more than that it was late.
            wait = min(waits.next(), left / 2)
            log.warning("%s failed; next attempt in %.1f s: %s", what, wait, error)
        sleep(wait)


def task_context() -> Any:
    """Return the Spark context of this task, ``None`` outside a task."""
    try:
        from pyspark import TaskContext  # noqa: PLC0415 - this works without PySpark
    except ImportError:
        return None
    return TaskContext.get()


@contextlib.contextmanager
def one_line_errors() -> Iterator[None]:
    """
    Let Spark show an error of this package as its text alone, without the Python traceback.

    Spark reads the variable when it formats an error in one of its processes, and then ends the process.
    """
    try:
        yield
    except errors.Error:
        os.environ["SPARK_HIDE_TRACEBACK"] = "1"
        raise
