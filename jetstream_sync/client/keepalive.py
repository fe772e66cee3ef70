"""Pings: detect a dead connection, and confirm that the server has processed all earlier commands."""

# A server answers pings in order. Each ping adds an entry to ``_waiters``, and each pong removes the
# first one: the result slot of a flush, or ``None`` for a scheduled ping.

from __future__ import annotations

from collections.abc import Callable

from .. import errors
from ..locks import new_lock
from ..net.clock import Deadline, monotonic
from ..protocol.session import PING
from .mailbox import ResultSlot, copy_exception
from .writer import Writer


class KeepAlive:
    """Flushes and scheduled pings of a connection."""

    # Any thread may call `flush()`; the other methods are for the connection's own threads.

    def __init__(
        self,
        writer: Writer,
        interval: float,
        max_outstanding: int,
        on_stale: Callable[[errors.StaleConnectionError], None],
    ) -> None:
        self._writer = writer
        self._interval = interval
        self._max_outstanding = max_outstanding
        self._on_stale = on_stale
        # Held while a ping is appended to the output buffer, so that the waiters have the same order.
        self._lock = new_lock()
        self._waiters: list[ResultSlot[None] | None] = []
        self._outstanding = 0
        self._connected = False
        self._next_ping = monotonic() + interval

    def flush(self, deadline: Deadline) -> None:
        """Wait until the server has processed everything that was sent before."""
        if self._writer.closed is not None:
            # Before a lock is taken: in a forked child, a thread of the parent may have held it.
            raise copy_exception(self._writer.closed)
        slot: ResultSlot[None] = ResultSlot()
        with self._lock:
            self._writer.enqueue_with_marker(PING, self._waiters, slot)
        if self._writer.closed is not None:
            raise copy_exception(self._writer.closed)
        self._writer.send_buffered()
        if not slot.arrived(deadline):
            # The entry stays, because its pong will arrive and must not be matched to another ping.
            raise errors.TimeoutError("the server did not confirm in time")
        slot.result()

    def pong_awaited(self) -> bool:
        """Return whether a pong is outstanding."""
        return bool(self._waiters)

    def pong(self) -> None:
        """Process a pong; called by the reader."""
        with self._lock:
            self._outstanding = 0
            waiter = self._waiters.pop(0) if self._waiters else None
        if waiter is not None:
            waiter.set(None)

    def due(self) -> float:
        """Send a ping if one is due, and return the seconds until the next."""
        now = monotonic()
        left = self._next_ping - now
        if left > 0:
            return left
        self._next_ping = now + self._interval
        if not self._connected:
            return self._interval
        if self._outstanding >= self._max_outstanding:
            self._on_stale(
                errors.StaleConnectionError(f"the server did not answer {self._outstanding} pings")
            )
            return self._interval
        with self._lock:
            self._outstanding += 1
            self._writer.enqueue_with_marker(PING, self._waiters, None)
        return self._interval

    def on_disconnected(self, error: BaseException) -> None:
        """Detach the writer, and fail the flushes whose pong will not arrive."""
        with self._lock:
            # In one step: a later flush adds its ping to a buffer without the old pings.
            self._writer.detach()
            waiters, self._waiters = self._waiters, []
            self._connected = False
            self._outstanding = 0
        lost = errors.ConnectionLostError("the connection was lost before the server confirmed")
        lost.__cause__ = error
        for waiter in waiters:
            if waiter is not None:
                waiter.fail(lost)

    def on_connected(self) -> None:
        """Restart the schedule."""
        self._next_ping = monotonic() + self._interval
        self._connected = True

    def close(self, reason: BaseException) -> None:
        """Fail all waiting flushes with the reason."""
        with self._lock:
            waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if waiter is not None:
                waiter.fail(reason)
