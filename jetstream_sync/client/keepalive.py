"""
Pings: is the server still there, and has it got everything that was sent before?

A server answers pings in order. Each ping that goes out leaves an entry in ``_waiters``, and each
pong takes one: the handoff of a flush, or ``None`` for a ping of the schedule.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from ..errors import ConnectionLostError, StaleConnectionError, TimeoutError
from ..net.clock import Deadline, monotonic
from ..protocol.commands import PING
from .result_slot import ResultSlot, fresh
from .writer import Writer

__all__ = ["KeepAlive"]


class KeepAlive:
    """
    Flushes and the ping schedule of a connection.

    Args:
        writer: what pings go out through.
        interval: seconds between the pings of the schedule.
        max_outstanding: pings without a pong after which the server is given up.
        stale: called when it is; on the flusher's thread, no lock held.

    Any thread may call `flush()`; the rest is for the connection's own threads.
    """

    def __init__(
        self,
        writer: Writer,
        interval: float,
        max_outstanding: int,
        stale: Callable[[StaleConnectionError], None],
    ) -> None:
        self._writer = writer
        self._interval = interval
        self._max_outstanding = max_outstanding
        self._stale = stale
        # Held while a ping is appended to the out-buffer, so that the waiters stand in its order.
        self._lock = threading.Lock()
        self._waiters: list[ResultSlot[None] | None] = []
        self._outstanding = 0
        self._up = False
        self._next = monotonic() + interval
        #: Pongs that came over the current link, or over the last one.
        self.pongs = 0

    def flush(self, deadline: Deadline) -> None:
        """
        Wait until the server has processed everything that was sent before.

        Raises:
            TimeoutError: it has not in time.
            ConnectionLostError: the link broke meanwhile.
            ConnectionClosedError: the connection is closed.

        """
        if self._writer.closed is not None:
            # Before a lock is taken: in a forked child, a thread that is not there may hold it.
            raise fresh(self._writer.closed)
        handoff: ResultSlot[None] = ResultSlot()
        with self._lock:
            self._writer.enqueue_with_marker(PING, self._waiters, handoff)
        if self._writer.closed is not None:
            raise fresh(self._writer.closed)
        self._writer.send_buffered()
        if not handoff.arrived(deadline):
            # The entry stays: its pong will come, and must not be taken for another one's.
            raise TimeoutError("the server did not confirm in time")
        handoff.result()

    def pong(self) -> None:
        """Take note of a pong; called by the reader."""
        with self._lock:
            self._outstanding = 0
            self.pongs += 1
            waiter = self._waiters.pop(0) if self._waiters else None
        if waiter is not None:
            waiter.set(None)

    def due(self) -> float:
        """Send a ping when it is time for one, and return the seconds until it is again."""
        now = monotonic()
        left = self._next - now
        if left > 0:
            return left
        self._next = now + self._interval
        if not self._up:
            return self._interval
        if self._outstanding >= self._max_outstanding:
            self._stale(StaleConnectionError(f"{self._outstanding} pings were left unanswered"))
            return self._interval
        with self._lock:
            self._outstanding += 1
            self._writer.enqueue_with_marker(PING, self._waiters, None)
        return self._interval

    def on_disconnected(self, error: BaseException) -> None:
        """Detach the writer, and fail those who wait for a pong that will not come."""
        with self._lock:
            # In one step: a flush after this puts its ping into a buffer without the old ones.
            self._writer.detach()
            waiters, self._waiters = self._waiters, []
            self._up = False
            self._outstanding = 0
        lost = ConnectionLostError("the link broke before the server confirmed")
        lost.__cause__ = error
        for waiter in waiters:
            if waiter is not None:
                waiter.fail(lost)

    def on_connected(self, first: int = 0) -> None:
        """
        Start the schedule anew.

        Args:
            first: PINGs that go out before everything else and that no caller waits for.

        """
        with self._lock:
            self.pongs = 0
            self._waiters[:0] = [None] * first
        self._next = monotonic() + self._interval
        self._up = True

    def close(self, reason: BaseException) -> None:
        """Fail those who wait."""
        with self._lock:
            waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if waiter is not None:
                waiter.fail(reason)
