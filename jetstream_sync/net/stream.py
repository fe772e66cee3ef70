"""The seam between threads and the network: what a stream of bytes has to be able to do."""

from __future__ import annotations

from typing import Protocol

__all__ = ["ByteStream"]


class ByteStream(Protocol):
    """
    A connected, reliable stream of bytes.

    One thread reads and one other thread writes at the same time; `shutdown()` may be called by
    any thread, and makes both return.
    """

    peer: str
    """The address at the other end, as ``host:port``."""

    def receive(self) -> bytes:
        """
        Wait for bytes and return them, ``b""`` at the end of the stream.

        Raises:
            OSError: the link broke.
            TimeoutError: the built-in one; the time set with `set_timeout()` ran out.

        """
        ...

    def send(self, data: memoryview, sent: list[int]) -> None:
        """
        Send what can be sent without waiting, and append how many bytes that was to ``sent``.

        The count is written down before anything can interrupt, so that a Ctrl-C never leaves it
        open how much of a command has gone out.

        Raises:
            BlockingIOError: nothing can be sent now.
            OSError: the link broke.

        """
        ...

    def wait_writable(self, timeout: float) -> bool:
        """Wait up to ``timeout`` seconds until something can be sent; say whether it can."""
        ...

    def set_timeout(self, timeout: float | None) -> None:
        """Limit how long `receive()` waits, in seconds; ``None``: for ever."""
        ...

    def shutdown(self) -> None:
        """End the stream in both directions and wake whoever waits for it."""
        ...

    def close(self) -> None:
        """Release the system's resources; nobody may be using the stream any more."""
        ...
