"""Trace the protocol of a connection: pass it to the user's callback line by line, on a separate thread."""

# Rules:
#
# 1. A sending or receiving thread runs no user code: it splits the bytes into lines and adds them to a
#    queue, which the trace thread reads.
# 2. A thread holds ``lock`` while it sends, which never waits, and adds the lines. So a command precedes its
#    reply, which another thread may receive in between.
# 3. The queue is bounded. Lines that do not fit are dropped and counted, and a line reports the number.

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Final

from .. import errors
from ..locks import new_lock
from ..net.clock import FOREVER
from ..net.layer import ByteStream
from ..protocol.trace import RECEIVED, SENT, LineCutter
from .mailbox import Mailbox
from .threads import after_fork, join, spawn

log: logging.Logger = logging.getLogger("jetstream_sync.trace")

#: Maximum size of the queue in bytes, and the memory that a line needs besides its text.
_MAX_QUEUED_BYTES: Final = 16 * 1024 * 1024
_LINE_OVERHEAD_BYTES: Final = 64


class Tracer:
    """Calls the user's callback with each line, in order."""

    # The thread is started with the first line. The first exception of the callback is logged.
    #
    # Any thread may call its methods; only `close()` waits.

    def __init__(self, name: str, callback: Callable[[str], object]) -> None:
        self._name = name
        self._callback = callback
        self._lines: Mailbox[str] = Mailbox()
        #: Held while bytes are sent, and by the caller of `add()`.
        self.lock: threading.Lock = new_lock()
        # --- under the lock ---
        self._bytes = 0
        self._dropped = 0  # lines since the last queued one
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

    def add(self, lines: list[str]) -> None:
        """Add lines at the end; the lock is held."""
        if self._bytes > _MAX_QUEUED_BYTES:
            self._dropped += len(lines)
            return
        if not lines or self._lines.closed:
            return
        lines = self._drop_note() + lines
        self._bytes += sum(map(len, lines)) + _LINE_OVERHEAD_BYTES * len(lines)
        self._lines.put(lines, len(lines))
        if self._thread is None:
            try:
                self._thread = spawn(f"trace-{self._name}", self._run)
            except RuntimeError:
                # The connection must go on. The next lines try again.
                log.exception("%s: trace_cb has no thread", self._name)

    def close(self, timeout: float = 0.0) -> None:
        """Accept no more lines; the thread ends after the queued ones."""
        with self.lock:
            self._lines.close(errors.ConnectionClosedError("closed"))
            thread = self._thread
        if thread is None or not timeout or thread is threading.current_thread():
            return
        if not join(thread, timeout):
            log.warning("%s: trace_cb is slow; closing does not wait for it", self._name)

    def forked(self) -> None:
        """Forget the thread, which exists only in the parent; see `ForkAware`."""
        self.lock = new_lock()
        self._thread = None
        self._lines = Mailbox()
        self._lines.close(errors.ForkedConnectionError("forked"))

    def _drop_note(self) -> list[str]:
        """Return the line that reports the dropped lines, if there are any; the lock is held."""
        dropped, self._dropped = self._dropped, 0
        return [f"! lines dropped, since trace_cb is slow: {dropped}"] if dropped else []

    # --- the thread -----------------------------------------------------------------------------

    def _run(self) -> None:
        while True:
            try:
                line = self._lines.get(FOREVER)
            except errors.ConnectionClosedError:
                return
            self._call(line)
            with self.lock:
                self._bytes -= len(line) + _LINE_OVERHEAD_BYTES
                notes = [] if len(self._lines) else self._drop_note()
            for note in notes:
                self._call(note)

    def _call(self, line: str) -> None:
        try:
            self._callback(line)
        except BaseException:
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
        with self._tracer.lock:
            self._tracer.add(lines)
        return data

    def send(self, data: memoryview, sent: list[int]) -> None:
        """Send as much as possible without waiting, and append the count to ``sent``."""
        before = len(sent)
        with self._tracer.lock:
            try:
                self._stream.send(data, sent)
            finally:
                self._tracer.add(self._sent.feed(bytes(data[: sum(sent[before:])])))

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
