"""
Tell the user what goes over the links of a connection, line by line, on a thread of its own.

Rules:

1. Who sends or receives runs no user code and waits for nobody: it cuts the bytes into lines and puts
   them into a queue, from which the thread takes them.
2. A place in the queue is taken *before* bytes are sent, and filled afterwards with what has gone out.
   So a command stands before the answer to it, which another thread may receive in between.
3. The queue is bounded. What does not fit is dropped and counted, and a line in its place says so.
4. A Ctrl-C between sending and noting loses nothing: what was begun is in ``_open``, and whoever sends
   next finishes it first. Its lines come late, when the thread has given up to wait for them.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Final

from ..errors import ConnectionClosedError, ForkedConnectionError
from ..net.clock import FOREVER
from ..net.stream import ByteStream
from ..protocol.trace import RECEIVED, SENT, LineCutter
from .mailbox import Mailbox
from .threads import after_fork, join, spawn

__all__ = ["TracedStream", "Tracer"]

log = logging.getLogger("jetstream_sync.trace")

#: Bytes of lines, and places, that wait for the callback at most.
_MOST_BYTES: Final = 16 * 1024 * 1024
_MOST_PLACES: Final = 64 * 1024
#: Bytes that a line needs besides its text.
_OVERHEAD: Final = 64
#: Seconds to wait until a place is filled; sending does not wait, so it is by far enough.
_PATIENCE: Final = 1.0


class _Place:
    """What one call of `send` or `receive` adds to the trace."""

    __slots__ = ("dropped", "gate", "lines", "taken")

    def __init__(self, lines: list[str] | None = None, dropped: int = 0) -> None:
        self.lines = lines  # None: they are not known yet
        self.dropped = dropped
        self.taken = False  # whether the thread has it
        self.gate = threading.Lock()  # opened when the lines are known
        if lines is None:
            self.gate.acquire()


def _size(lines: list[str]) -> int:
    return sum(map(len, lines)) + _OVERHEAD * len(lines)


class Tracer:
    """
    Calls the user's callback with each line, in order.

    The thread is made with the first line. The first error that the callback raises is logged.

    Args:
        name: the connection's name, for the thread's.
        callback: the user's.

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
        self._failed = False  # the callback raised; the thread's own
        after_fork(self)

    @classmethod
    def of(cls, name: str, callback: Callable[[str], object] | None) -> Tracer | None:
        """Return a tracer where there is a callback."""
        return None if callback is None else cls(name, callback)

    def wrap(self, stream: ByteStream) -> ByteStream:
        """Return a stream that does what the given one does, and is traced."""
        return TracedStream(stream, self)

    def reserve(self) -> _Place | None:
        """Take a place for lines that are not known yet; ``None``: there is none free."""
        with self._lock:
            if self._full():
                return None
            place = _Place()
            self._put(place)
        return place

    def fill(self, place: _Place | None, lines: list[str]) -> None:
        """Put lines into the place that was taken for them; a second time does no harm."""
        if place is None:
            self.add(lines)
            return
        with self._lock:
            if place.lines is not None:
                return
            if self._full():
                place.dropped, place.lines = len(lines), []
            else:
                self._bytes += _size(lines)
                place.lines = lines
            if place.taken:  # as an empty one
                self._put(_Place(place.lines, place.dropped))
        place.gate.release()

    def add(self, lines: list[str]) -> None:
        """Add lines at the end."""
        with self._lock:
            if self._full():
                self._drop(len(lines))
            else:
                self._bytes += _size(lines)
                self._put(_Place(lines))

    def close(self, patience: float = 0.0) -> None:
        """
        Take no more lines; the thread ends when it has handed over those that are there.

        Args:
            patience: seconds to wait for that; not when the callback itself closes.

        """
        with self._lock:
            self._places.close(ConnectionClosedError("closed"))
            thread = self._thread
        if thread is None or not patience or thread is threading.current_thread():
            return
        if not join(thread, patience):
            log.warning("%s: trace_cb is slow; closing does not wait for it", self._name)

    def forked(self) -> None:
        """Forget the thread, which exists only in the parent; see `ForkAware`."""
        self._lock = threading.Lock()
        self._thread = None
        self._places = Mailbox()
        self._places.close(ForkedConnectionError("forked"))

    def _full(self) -> bool:
        """Say whether nothing more fits; the lock is held."""
        return self._bytes > _MOST_BYTES or len(self._places) > _MOST_PLACES

    def _put(self, place: _Place) -> None:
        """Queue a place; the lock is held."""
        if self._places.closed:
            return
        self._places.put((place,), 1)
        if self._thread is None:
            self._thread = spawn(f"trace-{self._name}", self._run)

    def _drop(self, count: int) -> None:
        """Count lines as dropped, at the end of the queue; the lock is held."""
        last = self._places.items[-1] if len(self._places) else None
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
        """Return the lines of a place, and how many were dropped there, waiting until it is filled."""
        if place.lines is None:
            place.gate.acquire(timeout=_PATIENCE)
        with self._lock:
            place.taken = True
            return place.lines or [], place.dropped

    def _call(self, line: str) -> None:
        try:
            self._callback(line)
        except Exception:
            if not self._failed:
                self._failed = True
                log.exception("%s: trace_cb raised; it is called all the same", self._name)


class TracedStream:
    """
    A `ByteStream` that has its bytes traced.

    Args:
        stream: what does the work.
        tracer: where the lines go.

    """

    def __init__(self, stream: ByteStream, tracer: Tracer) -> None:
        self.peer = stream.peer
        self._stream = stream
        self._tracer = tracer
        self._received = LineCutter(RECEIVED)
        self._sent = LineCutter(SENT)
        # The send that is not noted yet: its place, its data, the counts, and how many were there before.
        self._open: tuple[_Place | None, memoryview, list[int], int] | None = None

    def receive(self) -> bytes:
        """Wait for bytes and return them, ``b""`` at the end."""
        data = self._stream.receive()
        lines = self._received.feed(data)
        if lines:
            self._tracer.add(lines)
        return data

    def send(self, data: memoryview, sent: list[int]) -> None:
        """Send what can be sent without waiting, and append the count to ``sent``."""
        self._settle()
        self._open = (self._tracer.reserve(), data, sent, len(sent))
        try:
            self._stream.send(data, sent)
        finally:
            self._settle()

    def _settle(self) -> None:
        """Note what the last send has sent."""
        if self._open is None:
            return
        place, data, sent, before = self._open
        cutter = self._sent.copy()
        lines = cutter.feed(bytes(data[: sum(sent[before:])]))
        self._tracer.fill(place, lines)
        self._sent, self._open = cutter, None

    def wait_writable(self, timeout: float) -> bool:
        """Wait up to ``timeout`` seconds until something can be sent; say whether it can."""
        return self._stream.wait_writable(timeout)

    def set_timeout(self, timeout: float | None) -> None:
        """Limit how long `receive()` waits, in seconds; ``None``: for ever."""
        self._stream.set_timeout(timeout)

    def shutdown(self) -> None:
        """End the stream in both directions and wake whoever waits for it."""
        self._stream.shutdown()

    def close(self) -> None:
        """Release the system's resources."""
        self._stream.close()
