"""Heartbeat timeouts of pull and push consumers, and a timer that monitors them."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Final

from .. import errors
from ..client.threads import Signal, start_timer
from ..durations import NS_PER_S
from ..net.clock import monotonic

#: Heartbeats that a pull may miss (ADR-37).
PULL_INTERVALS: Final = 2
#: Heartbeats that a push consumer may miss by default (ADR-15).
PUSH_INTERVALS: Final = 3


class HeartbeatTimeout:
    """The time for which a consumer may be silent."""

    __slots__ = ("interval", "limit")

    def __init__(self, interval: float, intervals: float) -> None:
        self.interval: float = interval
        #: In seconds; 0: no limit.
        self.limit: float = interval * intervals

    def left(self, last_seen: float) -> float:
        """Return the seconds until the timeout expires; negative afterwards."""
        # last_seen is a monotonic time.
        return last_seen + self.limit - monotonic()

    def error(self, consumer: str) -> errors.NoHeartbeatError:
        """Return the error for a consumer that missed its heartbeats."""
        return errors.NoHeartbeatError(consumer, self.limit)


@lru_cache(maxsize=16)
def pull_heartbeat_timeout(heartbeat_ns: int) -> HeartbeatTimeout:
    """Return the heartbeat timeout of a pull request; cached, because programs repeat their pulls."""
    return HeartbeatTimeout(heartbeat_ns / NS_PER_S, PULL_INTERVALS)


class HeartbeatMonitor:
    """Calls a function when a consumer misses its heartbeats, and again while it stays silent."""

    # A timer compares the time of the last delivery, at most once per heartbeat interval. There is no
    # work per message.
    #
    # `on_timeout`: called on the timer's thread.
    # `crashed`: called if that raises, which ends the monitor.
    #
    # Any thread may call its methods.

    def __init__(
        self,
        name: str,
        timeout: HeartbeatTimeout,
        last_seen: Callable[[], float],
        on_timeout: Callable[[], None],
        crashed: Callable[[BaseException], None],
    ) -> None:
        self._name = name
        self._timeout = timeout
        self._last_seen = last_seen
        self._on_timeout = on_timeout
        self._crashed = crashed
        self._stopped = Signal()

    def start(self) -> None:
        """Start; the caller holds the monitor by now, so that it can always be stopped."""
        name, limit = f"heartbeat-{self._name}", self._timeout.limit
        start_timer(name, limit, self._check, self._stopped, self._crashed)

    def _check(self) -> float:
        left = self._timeout.left(self._last_seen())
        if left <= 0:
            self._on_timeout()
            left = self._timeout.limit
        return max(left, self._timeout.interval)

    def stop(self) -> None:
        """Stop the monitor, without waiting for a running call of ``on_timeout``."""
        self._stopped.set()
