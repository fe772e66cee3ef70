"""Time, as the monotonic clock has it: setting the system's clock changes nothing here."""

from __future__ import annotations

import math
import time
from datetime import timedelta
from typing import Final

from ..errors import InvalidOptionError

__all__ = ["FOREVER", "Deadline", "monotonic", "seconds"]

monotonic = time.monotonic

# Locks take no more than this many seconds, about 292 years.
_LONGEST: Final = 9e9


def seconds(timeout: float | timedelta, option: str = "timeout") -> float:
    """
    Return a time span in seconds.

    Args:
        timeout: seconds, or a `timedelta`.
        option: what to call it in the error.

    Raises:
        InvalidOptionError: it is not a number.

    """
    value = timeout.total_seconds() if isinstance(timeout, timedelta) else timeout
    if isinstance(value, bool) or not isinstance(value, (int, float)) or math.isnan(value):
        raise InvalidOptionError(option, timeout, "a time is a number of seconds or a timedelta")
    return value


class Deadline:
    """
    A moment by which something has to be done, made once from a timeout and handed down.

    Args:
        timeout: in seconds or as a `timedelta`; ``None`` never comes, 0 or less has come.

    Raises:
        InvalidOptionError: it is not a number.

    """

    __slots__ = ("_at",)

    def __init__(self, timeout: float | timedelta | None) -> None:
        self._at = None if timeout is None else monotonic() + min(seconds(timeout), _LONGEST)

    def left(self) -> float | None:
        """Return the seconds that are left, never below 0; ``None`` when it never comes."""
        return None if self._at is None else max(0.0, self._at - monotonic())

    def lock_timeout(self) -> float:
        """Return what is left in the form that ``Lock.acquire`` wants, where -1 is for ever."""
        return -1 if self._at is None else max(0.0, self._at - monotonic())

    def expired(self) -> bool:
        """Say whether it has come."""
        return self._at is not None and monotonic() >= self._at

    def sooner(self, timeout: float) -> Deadline:
        """Return this one, or one in ``timeout`` seconds where that comes first."""
        other = Deadline(timeout)
        if self._at is not None and other._at is not None and self._at < other._at:
            return self
        return other


#: The deadline that never comes.
FOREVER: Final = Deadline(None)
