"""A `ByteStream` around another one: the common base of TLS and WebSocket."""

# Rules:
#
# 1. ``_lock`` guards encoding and decoding, and is held only for these: no thread waits for the network
#    or for another lock while it holds it. So the reader may decode while the socket of the writer is full.
# 2. Encoded data must be sent completely, unchanged and once: a TLS record has a number, a frame has a
#    length. So it is kept in ``_flight`` until the inner stream has accepted all of it; only then do the
#    caller's bytes count as sent. After a BlockingIOError the caller retries with the same bytes.
# 3. The reader never sends. A reply (to a WebSocket ping, or a key update) is queued and sent with
#    the next data.
# 4. A KeyboardInterrupt is raised only at a call. Where two steps must not be separated, there is no
#    call between them.

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from typing import Final, Protocol

from ..locks import call_and_record, new_lock
from .clock import Deadline

#: Bytes that are encoded at a time, so that the lock is never held for long.
_CHUNK: Final = 64 * 1024


class Layer(ABC):
    """A stream whose bytes are sent on another stream in an encoded form."""

    def __init__(self, inner: ByteStream) -> None:
        self.peer: str = inner.peer
        self._inner = inner
        self._lock = new_lock()
        # Encoded data that is not in the flight yet; under _lock.
        self._coded: list[bytes] = []
        # Held by the sending thread, and only for a short time, because sending does not wait.
        self._sending = new_lock()
        self._flight = memoryview(b"")
        self._gone: list[int] = []  # bytes of the flight that were sent, one entry per send
        self._count = (
            0  # number of the caller's bytes that are encoded and do not count as sent yet
        )
        self._close_sent = False
        # The rest is used by the reader only.
        self._timeout: float | None = None
        self._early = b""  # decoded during the handshake
        self._failure: OSError | None = None  # an error to raise after the bytes before it
        self._ended = False

    # --- implemented by the subclasses --------------------------------------------------------------

    @abstractmethod
    def _encode(self, data: memoryview) -> None:
        """Encode ``data`` and set ``_count`` to its length, or do neither at a Ctrl-C; ``_lock`` is held."""

    @abstractmethod
    def _decode(self, data: bytes) -> bytes:
        """Decode bytes, and return the complete part; set ``_ended`` at a close message; ``_lock`` is held."""

    @abstractmethod
    def _encode_close(self) -> None:
        """Encode a close message; ``_lock`` is held."""

    @abstractmethod
    def _collect(self) -> None:
        """Move encoded data into ``_coded``, unless it is there already; ``_lock`` is held."""

    # --- ByteStream ---------------------------------------------------------------------------------

    def receive(self) -> bytes:
        """Wait until bytes can be decoded and return them; ``b""`` at the end of the stream."""
        if self._early:
            early, self._early = self._early, b""
            return early
        if self._failure is not None:
            raise self._failure
        # More than one read may be necessary; the timeout applies to all of them together.
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
        """Send without waiting; bytes whose encoded form was sent completely count in ``sent``."""
        with self._sending:
            if not self._count:
                with self._lock:
                    self._encode(data[:_CHUNK])
            self._send_coded()
            # There is no call in these steps, so no KeyboardInterrupt separates them.
            count = [self._count]
            self._count = 0
            sent += count

    def wait_writable(self, timeout: float) -> bool:
        """Wait up to ``timeout`` seconds until the stream is writable; return whether it is."""
        return self._inner.wait_writable(timeout)

    def set_timeout(self, timeout: float | None) -> None:
        """Set the timeout of `receive()` in seconds; ``None``: wait forever."""
        self._timeout = timeout
        self._inner.set_timeout(timeout)

    def shutdown(self) -> None:
        """Send a close message if that is possible without waiting, and shut the inner stream down."""
        # While another thread is sending, none is sent: it would be in the middle of other data.
        acquired: list[bool] = []
        try:
            call_and_record(acquired, self._sending.acquire, False)
            if acquired[0]:
                # The socket may be full or closed, or the state may not permit a close message.
                with contextlib.suppress(OSError):
                    self._send_close()
        finally:
            if True in acquired:
                self._sending.release()
        self._inner.shutdown()

    def close(self) -> None:
        """Close the inner stream without sending or taking a lock, because this may be a forked child."""
        self._inner.close()

    # --- for the handshakes of the subclasses -------------------------------------------------------

    def _push(self, deadline: Deadline) -> None:
        """Send all encoded data, waiting for the socket."""
        while True:
            try:
                self._send_coded()
            except BlockingIOError:
                self._inner.wait_writable(deadline.left_or_raise() or 1.0)
            else:
                return

    def _receive_by(self, deadline: Deadline) -> bytes:
        """Receive from the inner stream until the deadline."""
        self._inner.set_timeout(deadline.left_or_raise())
        return self._inner.receive()

    # --- sending ------------------------------------------------------------------------------------

    def _send_coded(self) -> None:
        """Send all encoded data; ``_sending`` is held."""
        while self._next_flight():
            self._inner.send(self._flight[sum(self._gone) :], self._gone)

    def _send_close(self) -> None:
        """Send a close message once; ``_sending`` is held."""
        if not self._close_sent:
            self._close_sent = True
            with self._lock:
                self._encode_close()
            self._send_coded()

    def _next_flight(self) -> bool:
        """Take the next flight if the last one was sent; return whether there is one; ``_sending`` is held."""
        if sum(self._gone) < len(self._flight):
            return True
        with self._lock:
            self._collect()
            flight = memoryview(b"".join(self._coded))
            gone: list[int] = []
            # There is no call between the assignments, so no KeyboardInterrupt separates them.
            self._flight, self._gone, self._coded = flight, gone, []
        return bool(flight)


class ByteStream(Protocol):
    """A connected, reliable stream of bytes."""

    # One thread reads and one other thread writes at the same time; `shutdown()` may be called by
    # any thread, and makes both return.

    peer: str
    """The address at the other end, as ``host:port``."""

    def receive(self) -> bytes:
        """Wait for bytes and return them; ``b""`` at the end of the stream."""
        ...

    def send(self, data: memoryview, sent: list[int]) -> None:
        """Send as much as possible without waiting, and append the number of bytes to ``sent``."""
        # No KeyboardInterrupt can be raised between sending and appending, so the caller always knows
        # how much of a command was sent.
        ...

    def wait_writable(self, timeout: float) -> bool:
        """Wait up to ``timeout`` seconds until the stream is writable; return whether it is."""
        ...

    def set_timeout(self, timeout: float | None) -> None:
        """Set the timeout of `receive()` in seconds; ``None``: wait forever."""
        ...

    def shutdown(self) -> None:
        """End the stream in both directions and wake the threads that use it."""
        ...

    def close(self) -> None:
        """Release the resources; no thread may use the stream any more."""
        ...
