"""Waits: deadlines on the monotonic clock, growing delays, and waits whose result an interrupt cannot lose."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Final

from ..durations import MAX_TIMEOUT_S
from ..durations import seconds as seconds  # noqa: PLC0414 - with the other times of a wait

#: The clock that changes of the system time do not affect.
monotonic: Callable[[], float] = time.monotonic

# The number of failures after which a delay does not grow any more: 2.0 ** n overflows for a large n.
_MAX_EXPONENT: Final = 64
_NUMBERS: Final = (float, int)


class Deadline:
    """The end of a wait: created once from a timeout and passed to all nested calls."""

    # `timeout`: in seconds or as a `timedelta`; ``None``: it never expires, 0 or less: it has expired.

    __slots__ = ("at",)

    def __init__(self, timeout: float | timedelta | None) -> None:
        #: The end on the monotonic clock; ``None``: it never expires.
        self.at: float | None = None
        if timeout is not None:
            # Without calls for a usual number, as in `left()`: each request creates and reads several deadlines.
            if type(timeout) not in _NUMBERS or not timeout < MAX_TIMEOUT_S:  # type: ignore[operator]
                timeout = min(seconds(timeout), MAX_TIMEOUT_S)
            self.at = monotonic() + timeout  # type: ignore[operator]

    def left(self) -> float | None:
        """Return the remaining seconds, never below 0; ``None``: it never expires."""
        if self.at is None:
            return None
        left = self.at - monotonic()
        if left < 0.0:
            return 0.0
        return left

    def left_or_raise(self) -> float | None:
        """Return the remaining seconds of a handshake, above 0; raise `TimeoutError` if there are none."""
        left = None if self.at is None else self.at - monotonic()
        if left is not None and left <= 0:
            raise TimeoutError("the handshake timed out")
        return left

    def lock_timeout(self) -> float:
        """Return the remaining seconds for ``Lock.acquire``, where -1 means forever."""
        left = self.left()
        return -1 if left is None else left

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
#: A deadline that has expired: look once.
NO_WAIT: Final = Deadline(0)


class BackoffDelay:
    """A delay between attempts, which doubles with each attempt up to a maximum."""

    # `first`, `maximum`: in seconds. `jitter`: whether each delay is a random part of it, so that several
    # clients do not try again at the same time. Not thread-safe.

    __slots__ = ("_first", "_jitter", "_maximum", "delay")

    def __init__(self, first: float, maximum: float, *, jitter: bool = False) -> None:
        self._first = first
        self._maximum = maximum
        self._jitter = jitter
        #: The next delay in seconds, before jitter.
        self.delay: float = first

    def next(self) -> float:
        """Return the next delay in seconds, and double the one after it."""
        delay = self.delay
        self.delay = min(2 * delay, self._maximum)
        return random.uniform(0, delay) if self._jitter else delay  # noqa: S311 - not a secret

    def reset(self) -> None:
        """Begin with the first delay again, after a success."""
        self.delay = self._first

    def after(self, failures: int) -> float:
        """Return the delay in seconds after a number of failures that is known from elsewhere, without jitter."""
        return min(self._first * 2.0 ** min(failures, _MAX_EXPONENT), self._maximum)
