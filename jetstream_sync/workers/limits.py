"""Limits on how many handlers run at a time, and how often; both hold within one process."""

from __future__ import annotations

import re
import threading
import time
from typing import Final

from .. import InvalidOptionError

__all__ = ["Limit", "Pace", "rate_interval"]

_UNITS: Final = {"s": 1.0, "m": 60.0, "h": 3600.0}
_RATE: Final = re.compile(r"(\d+(?:\.\d+)?)/([smh])")


def rate_interval(rate: str) -> float:
    """
    Return the seconds between two starts at a rate such as ``"10/s"``.

    Raises:
        InvalidOptionError: it is not a number with a unit.

    """
    match = _RATE.fullmatch(rate) if isinstance(rate, str) else None
    if match is None or not float(match[1]):
        raise InvalidOptionError(
            "rate", rate, "must be a number above 0 and a unit, such as '10/s', '600/m' or '1000/h'"
        )
    return _UNITS[match[2]] / float(match[1])


class Limit:
    """
    The number of handlers that may run at a time.

    Args:
        count: the number.

    Any thread may call the methods.
    """

    def __init__(self, count: int) -> None:
        self._changed = threading.Condition()
        self._free = count
        self._stopped = False

    def acquire(self) -> bool:
        """Wait until another handler may run; return whether it may: false after `stop`."""
        with self._changed:
            while not (self._free or self._stopped):
                self._changed.wait()
            if self._stopped:
                return False
            self._free -= 1
            return True

    def release(self) -> None:
        """End the run of a handler."""
        with self._changed:
            self._free += 1
            self._changed.notify()

    def stop(self) -> None:
        """Let no other handler run, and wake the waiting threads."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()


class Pace:
    """
    The rate at which handlers start, evenly spaced: a token bucket that holds one token.

    Args:
        interval: the seconds between two starts.

    Any thread may call the methods.
    """

    def __init__(self, interval: float) -> None:
        self._interval = interval
        self._lock = threading.Lock()
        self._next_at = 0.0

    def reserve(self) -> float:
        """Reserve the next start, and return the seconds until then."""
        with self._lock:
            now = time.monotonic()
            start = max(now, self._next_at)
            self._next_at = start + self._interval
            return start - now
