"""The interface of byte streams, which TCP, TLS and WebSocket implement."""

from __future__ import annotations

from typing import Protocol


class ByteStream(Protocol):
    """
    A connected, reliable stream of bytes.

    One thread reads and one other thread writes at the same time; `shutdown()` may be called by
    any thread, and makes both return.
    """

    peer: str
    """The address at the other end, as ``host:port``."""

    def receive(self) -> bytes:
        """Wait for bytes and return them; ``b""`` at the end of the stream."""
        ...

    def send(self, data: memoryview, sent: list[int]) -> None:
        """
        Send as much as possible without waiting, and append the number of bytes to ``sent``.

        No KeyboardInterrupt can be raised between sending and appending, so the caller always knows
        how much of a command was sent.
        """
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
