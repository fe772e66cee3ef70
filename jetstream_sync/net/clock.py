"""Deadlines on the monotonic clock, which changes of the system time do not affect."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Final

from ..errors import InvalidOptionError

monotonic: Callable[[], float] = time.monotonic

# Maximum timeout in seconds that locks accept, about 292 years.
_MAX_TIMEOUT_S: Final = 9e9


def seconds(timeout: float | timedelta, option: str = "timeout") -> float:
    """Return a time span in seconds."""
    value = timeout.total_seconds() if isinstance(timeout, timedelta) else timeout
    if isinstance(value, bool) or not isinstance(value, (int, float)) or math.isnan(value):
        raise InvalidOptionError(option, timeout, "must be a number of seconds or a timedelta")
    return value


class Deadline:
    """The end of a wait: created once from a timeout and passed to all nested calls."""

    # `timeout`: in seconds or as a `timedelta`; ``None``: it never expires, 0 or less: it has expired.

    __slots__ = ("at",)

    def __init__(self, timeout: float | timedelta | None) -> None:
        #: The end on the monotonic clock; ``None``: it never expires.
        self.at: float | None = None
        if timeout is not None:
            if not isinstance(timeout, float) or math.isnan(timeout):
                timeout = seconds(timeout)
            self.at = monotonic() + min(timeout, _MAX_TIMEOUT_S)

    def left(self) -> float | None:
        """Return the remaining seconds, never below 0; ``None``: it never expires."""
        return None if self.at is None else max(0.0, self.at - monotonic())

    def lock_timeout(self) -> float:
        """Return the remaining seconds for ``Lock.acquire``, where -1 means forever."""
        return -1 if self.at is None else max(0.0, self.at - monotonic())

    def expired(self) -> bool:
        """Return whether the deadline has passed."""
        return self.at is not None and monotonic() >= self.at

    def sooner(self, timeout: float) -> Deadline:
        """Return the earlier one of this deadline and one in ``timeout`` seconds."""
        other = Deadline(timeout)
        if self.at is not None and other.at is not None and self.at < other.at:
            return self
        return other


#: The deadline that never expires.
FOREVER: Final = Deadline(None)
