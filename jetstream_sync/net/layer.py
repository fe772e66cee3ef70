"""
A `ByteStream` around another one: what TLS and WebSocket have in common.

Rules:

1. ``_lock`` guards what turns bytes into other bytes, and is held for that only: nobody waits for the
   network, or for another lock, with it. So the reader may decode while the writer finds a full socket.
2. What was encoded must leave as it is, and once: a record of TLS has a number, a frame has a length. So
   it is kept in ``_flight`` until the inner stream took all of it, and only then the bytes that the
   caller gave count as sent. A caller who is told to come again comes with the same bytes.
3. The reader never sends. What has to be answered (a ping of WebSocket, a change of keys) is put in
   line, and leaves with what is sent next.
4. A Ctrl-C strikes at a call. Where it must not come between two steps, there is none between them.
"""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from .clock import Deadline
from .stream import ByteStream

if TYPE_CHECKING:
    from threading import Lock

__all__ = ["Layer"]

#: Bytes that are encoded at a time, so that the lock is never held for long.
_CHUNK: Final = 64 * 1024


class Layer(ABC):
    """
    A stream whose bytes travel on another one in another form.

    Args:
        inner: the stream below, which belongs to this one from now on.
        make_lock: makes locks; threads are the business of who calls.

    """

    def __init__(self, inner: ByteStream, make_lock: Callable[[], Lock]) -> None:
        self.peer = inner.peer
        self._inner = inner
        self._lock = make_lock()
        # Encoded, and not taken up by the sender yet; under _lock.
        self._coded: list[bytes] = []
        # Held by who sends. It is never waited for long: sending does not wait.
        self._sending = make_lock()
        self._flight = memoryview(b"")
        self._gone: list[int] = []  # how much of the flight has left, send by send
        self._count = 0  # how many of the caller's bytes were encoded and do not count as sent yet
        self._farewell_said = False
        # The rest is the reader's.
        self._timeout: float | None = None
        self._early = b""  # decoded before anybody asked for it
        self._failure: OSError | None = None  # what came behind bytes that had to be returned first
        self._ended = False

    # --- what a kind of layer does; all under _lock -------------------------------------------------

    @abstractmethod
    def _encode(self, data: memoryview) -> None:
        """Encode all of ``data`` and set ``_count`` to its length, in one step as to a Ctrl-C."""

    @abstractmethod
    def _decode(self, data: bytes) -> bytes:
        """
        Decode what came, and return what is complete; set ``_ended`` where it says goodbye.

        Raises:
            OSError: it can not be decoded. Where something else could be, that is returned, and the
                error becomes the ``_failure``.

        """

    @abstractmethod
    def _farewell(self) -> None:
        """Encode a goodbye."""

    @abstractmethod
    def _collect(self) -> None:
        """Move what was encoded into ``_coded``, where it is not there already."""

    # --- ByteStream ---------------------------------------------------------------------------------

    def receive(self) -> bytes:
        """Wait until something can be decoded and return all of it, ``b""`` at the end."""
        if self._early:
            early, self._early = self._early, b""
            return early
        if self._failure is not None:
            raise self._failure
        # More than one read may be needed; the time is for all of them.
        deadline = None if self._timeout is None else Deadline(self._timeout)
        while not self._ended:
            data = self._inner.receive()
            if not data:
                self._ended = True
                break
            with self._lock:
                decoded = self._decode(data)
            if decoded:
                return decoded
            if deadline is not None:
                if deadline.expired():
                    raise TimeoutError("timed out")
                self._inner.set_timeout(deadline.left())
        return b""

    def send(self, data: memoryview, sent: list[int]) -> None:
        """Send without waiting; what has left completely is counted in ``sent``."""
        with self._sending:
            if not self._count:
                with self._lock:
                    self._encode(data[:_CHUNK])
            self._send_coded()
            # One step: there is no call in it.
            count = [self._count]
            self._count = 0
            sent += count

    def wait_writable(self, timeout: float) -> bool:
        """Wait up to ``timeout`` seconds until something can be sent; say whether it can."""
        return self._inner.wait_writable(timeout)

    def set_timeout(self, timeout: float | None) -> None:
        """Limit how long `receive()` waits, in seconds; ``None``: for ever."""
        self._timeout = timeout
        self._inner.set_timeout(timeout)

    def shutdown(self) -> None:
        """Say goodbye where that can be done without waiting, and end the stream below."""
        # Where somebody is sending, there is no goodbye: it would come in the middle of something.
        if self._sending.acquire(blocking=False):
            try:
                # A full socket, a dead one, or a state in which nothing can be said.
                with contextlib.suppress(OSError):
                    self._say_goodbye()
            finally:
                self._sending.release()
        self._inner.shutdown()

    def close(self) -> None:
        """Close the stream below; nothing is sent and no lock is taken, for this may be a fork."""
        self._inner.close()

    # --- for a handshake, which comes before everything else ----------------------------------------

    def _push(self, deadline: Deadline) -> None:
        """Send all that is encoded, and wait for that."""
        while True:
            try:
                self._send_coded()
            except BlockingIOError:
                self._inner.wait_writable(_left(deadline) or 1.0)
            else:
                return

    def _receive_by(self, deadline: Deadline) -> bytes:
        """Receive from the stream below."""
        self._inner.set_timeout(_left(deadline))
        return self._inner.receive()

    # --- sending ------------------------------------------------------------------------------------

    def _send_coded(self) -> None:
        """
        Send all that is encoded; ``_sending`` is held.

        Raises:
            BlockingIOError: a part could not be sent now; it is kept.
            OSError: the link broke.

        """
        while self._more():
            self._inner.send(self._flight[sum(self._gone) :], self._gone)

    def _say_goodbye(self) -> None:
        if not self._farewell_said:
            self._farewell_said = True
            with self._lock:
                self._farewell()
            self._send_coded()

    def _more(self) -> bool:
        """Take up what is encoded where the last flight has left; say whether there is something."""
        if sum(self._gone) < len(self._flight):
            return True
        with self._lock:
            self._collect()
            flight = memoryview(b"".join(self._coded))
            gone: list[int] = []
            # One step: there is no call between the assignments.
            self._flight, self._gone, self._coded = flight, gone, []
        return bool(flight)


def _left(deadline: Deadline) -> float | None:
    left = deadline.left()
    if left is not None and left <= 0:
        raise TimeoutError("the handshake took too long")
    return left
