"""
Trace the protocol of a connection: pass it to the user's callback line by line, on a separate thread.

Rules:

1. A sending or receiving thread runs no user code and never waits: it splits the bytes into lines and
   adds them to a queue, which the trace thread reads.
2. A place in the queue is reserved *before* bytes are sent, and filled afterwards with the bytes that
   were sent. So a command precedes its reply, which another thread may receive in between.
3. The queue is bounded. Lines that do not fit are dropped and counted, and a line reports the number.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Final

from ..errors import ConnectionClosedError, ForkedConnectionError
from ..net.clock import FOREVER
from ..net.layer import ByteStream
from ..protocol.trace import RECEIVED, SENT, LineCutter
from .mailbox import Mailbox
from .threads import after_fork, join, spawn

log: logging.Logger = logging.getLogger("jetstream_sync.trace")

#: Maximum size of the queue, in bytes of lines and in places.
_MAX_QUEUED_BYTES: Final = 16 * 1024 * 1024
_MAX_PLACES: Final = 64 * 1024
#: Memory in bytes that a line needs besides its text.
_LINE_OVERHEAD_BYTES: Final = 64
#: Seconds to wait for the lines of a reserved place; sending never waits, so this is ample.
_FILL_TIMEOUT_S: Final = 1.0


class _Place:
    """The lines that one call of `send` or `receive` adds to the trace."""

    __slots__ = ("dropped", "gate", "lines", "taken")

    def __init__(self, lines: list[str] | None = None, dropped: int = 0) -> None:
        self.lines: list[str] | None = lines  # None: not known yet
        self.dropped: int = dropped
        self.taken: bool = False  # whether the trace thread has processed it
        self.gate: threading.Lock = threading.Lock()  # released when the lines are known
        if lines is None:
            self.gate.acquire()


def _size(lines: list[str]) -> int:
    return sum(map(len, lines)) + _LINE_OVERHEAD_BYTES * len(lines)


class Tracer:
    """
    Calls the user's callback with each line, in order.

    The thread is started with the first line. The first exception of the callback is logged.

    Any thread may call its methods; only `close()` waits.
    """

    def __init__(self, name: str, callback: Callable[[str], object]) -> None:
        self._name = name
        self._callback = callback
        self._places: Mailbox[_Place] = Mailbox()
        # --- under _lock, which is held for a few instructions only ---
        self._lock = threading.Lock()
        self._bytes = 0
        self._thread: threading.Thread | None = None
        self._failed = False  # whether the callback has raised; used by the trace thread only
        after_fork(self)

    @classmethod
    def of(cls, name: str, callback: Callable[[str], object] | None) -> Tracer | None:
        """Return a tracer, or ``None`` without a callback."""
        return None if callback is None else cls(name, callback)

    def wrap(self, stream: ByteStream) -> ByteStream:
        """Return a stream that traces the given one."""
        return TracedStream(stream, self)

    def reserve(self) -> _Place | None:
        """Reserve a place for lines that are not known yet; ``None``: the queue is full."""
        with self._lock:
            if self._full():
                return None
            place = _Place()
            self._put(place)
        return place

    def fill(self, place: _Place | None, lines: list[str]) -> None:
        """Put lines into the place that was reserved for them."""
        if place is None:
            self.add(lines)
            return
        with self._lock:
            if self._full():
                place.dropped, place.lines = len(lines), []
            else:
                self._bytes += _size(lines)
                place.lines = lines
            if place.taken and (place.lines or place.dropped):
                self._put(place)  # processed without lines after the timeout, so once more
            place.gate.release()

    def add(self, lines: list[str]) -> None:
        """Add lines at the end."""
        with self._lock:
            if self._full():
                self._drop(len(lines))
            else:
                self._bytes += _size(lines)
                self._put(_Place(lines))

    def close(self, timeout: float = 0.0) -> None:
        """Accept no more lines; the thread ends after the queued ones."""
        with self._lock:
            self._places.close(ConnectionClosedError("closed"))
            thread = self._thread
        if thread is None or not timeout or thread is threading.current_thread():
            return
        if not join(thread, timeout):
            log.warning("%s: trace_cb is slow; closing does not wait for it", self._name)

    def forked(self) -> None:
        """Forget the thread, which exists only in the parent; see `ForkAware`."""
        self._lock = threading.Lock()
        self._thread = None
        self._places = Mailbox()
        self._places.close(ForkedConnectionError("forked"))

    def _full(self) -> bool:
        """Return whether the queue is full; the lock is held."""
        return self._bytes > _MAX_QUEUED_BYTES or len(self._places) > _MAX_PLACES

    def _put(self, place: _Place) -> None:
        """Add a place to the queue; the lock is held."""
        if self._places.closed:
            return
        self._places.put((place,), 1)
        if self._thread is None:
            self._thread = spawn(f"trace-{self._name}", self._run)

    def _drop(self, count: int) -> None:
        """Count lines as dropped, at the end of the queue; the lock is held."""
        try:
            last: _Place | None = self._places.items[-1]
        except IndexError:  # the trace thread has taken it
            last = None
        if count and last is not None and last.dropped and not last.taken:
            last.dropped += count
        elif count:
            self._put(_Place([], count))

    # --- the thread -----------------------------------------------------------------------------

    def _run(self) -> None:
        dropped = 0
        while True:
            try:
                place = self._places.get(FOREVER)
            except ConnectionClosedError:
                return
            lines, more_dropped = self._taken(place)
            dropped += more_dropped
            if dropped and (lines or not len(self._places)):
                self._call(f"! lines dropped, since trace_cb is slow: {dropped}")
                dropped = 0
            for line in lines:
                self._call(line)
            with self._lock:
                self._bytes -= _size(lines)

    def _taken(self, place: _Place) -> tuple[list[str], int]:
        """Wait until a place is filled; return its lines and the number of dropped ones."""
        if place.lines is None:
            place.gate.acquire(timeout=_FILL_TIMEOUT_S)
        with self._lock:
            place.taken = True
            lines, dropped = place.lines, place.dropped
            if lines is not None:
                place.lines, place.dropped = [], 0
            return lines or [], dropped

    def _call(self, line: str) -> None:
        try:
            self._callback(line)
        except Exception:
            if not self._failed:
                self._failed = True
                log.exception("%s: trace_cb raised; tracing continues", self._name)


class TracedStream:
    """A `ByteStream` that traces another one."""

    def __init__(self, stream: ByteStream, tracer: Tracer) -> None:
        self.peer: str = stream.peer
        self._stream = stream
        self._tracer = tracer
        self._received = LineCutter(RECEIVED)
        self._sent = LineCutter(SENT)

    def receive(self) -> bytes:
        """Wait for bytes and return them; ``b""`` at the end of the stream."""
        data = self._stream.receive()
        lines = self._received.feed(data)
        if lines:
            self._tracer.add(lines)
        return data

    def send(self, data: memoryview, sent: list[int]) -> None:
        """Send as much as possible without waiting, and append the count to ``sent``."""
        place, before = self._tracer.reserve(), len(sent)
        try:
            self._stream.send(data, sent)
        finally:
            lines = self._sent.feed(bytes(data[: sum(sent[before:])]))
            self._tracer.fill(place, lines)

    def wait_writable(self, timeout: float) -> bool:
        """Wait up to ``timeout`` seconds until the stream is writable; return whether it is."""
        return self._stream.wait_writable(timeout)

    def set_timeout(self, timeout: float | None) -> None:
        """Set the timeout of `receive()` in seconds; ``None``: wait forever."""
        self._stream.set_timeout(timeout)

    def shutdown(self) -> None:
        """End the stream in both directions and wake the threads that use it."""
        self._stream.shutdown()

    def close(self) -> None:
        """Release the resources."""
        self._stream.close()
