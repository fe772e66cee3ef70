"""When a consumer counts as silent, and who watches it where nobody is waiting for its messages."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import lru_cache
from typing import Final

from ..client.threads import start_timer
from ..errors import NoHeartbeatError
from ..net.clock import monotonic

__all__ = [
    "PULL_INTERVALS",
    "PUSH_INTERVALS",
    "HeartbeatMonitor",
    "HeartbeatTimeout",
    "pull_heartbeat_timeout",
]

_SECOND: Final = 1_000_000_000
#: Heartbeats that a pull may miss (ADR-37).
PULL_INTERVALS: Final = 2
#: Heartbeats that a push consumer may miss where nobody says (ADR-15).
PUSH_INTERVALS: Final = 3


class HeartbeatTimeout:
    """
    How long a consumer may be silent; the one place that decides it.

    Args:
        interval: seconds between two heartbeats; 0: there are none, so it is never late.
        intervals: how many of them may pass without a word.

    """

    __slots__ = ("interval", "limit")

    def __init__(self, interval: float, intervals: float) -> None:
        self.interval = interval
        #: In seconds; 0: for ever.
        self.limit = interval * intervals

    def due(self, last_seen: float) -> float:
        """Return when it is late; as ``last_seen``, a moment of the monotonic clock."""
        return last_seen + self.limit

    def left(self, last_seen: float) -> float:
        """Return the seconds until it is late, which may have passed."""
        return last_seen + self.limit - monotonic()

    def error(self, consumer: str) -> NoHeartbeatError:
        """Return what to tell the user of a consumer that is late."""
        return NoHeartbeatError(consumer, self.limit)


@lru_cache(maxsize=16)
def pull_heartbeat_timeout(heartbeat_ns: int) -> HeartbeatTimeout:
    """Return how long the server may be silent while a pull waits; programs repeat their pulls."""
    return HeartbeatTimeout(heartbeat_ns / _SECOND, PULL_INTERVALS)


class HeartbeatMonitor:
    """
    Raises an alarm when a consumer is silent, and again each time that it stays so.

    It is a timer that looks at a stamp and arms itself again, at most once for each interval:
    nothing is done for each message.

    Args:
        name: for the threads' names.
        timeout: how long it may be silent.
        last_seen: returns when something came last, by the monotonic clock.
        alarm: called on the timer's thread; must not raise.

    Any thread may call its methods.
    """

    def __init__(
        self,
        name: str,
        timeout: HeartbeatTimeout,
        last_seen: Callable[[], float],
        alarm: Callable[[], None],
    ) -> None:
        self._name = name
        self._patience = timeout
        self._last_seen = last_seen
        self._alarm = alarm
        self._lock = threading.Lock()
        # --- under _lock ---
        self._timer: threading.Timer | None = None
        self._stopped = False
        self._arm(timeout.limit)

    def _arm(self, seconds: float) -> None:
        with self._lock:
            if not self._stopped:
                self._timer = start_timer(f"heartbeat-{self._name}", seconds, self._look)

    def _look(self) -> None:
        left = self._patience.left(self._last_seen())
        if left <= 0:
            self._alarm()
            left = self._patience.limit
        self._arm(max(left, self._patience.interval))

    def stop(self) -> None:
        """End it; an alarm that is being raised just now is not waited for."""
        with self._lock:
            self._stopped = True
            if self._timer is not None:
                self._timer.cancel()

    def forked(self) -> None:
        """End it in a forked child, where its thread does not exist and may have held its locks."""
        self._lock = threading.Lock()
        self._stopped = True
        self._timer = None
