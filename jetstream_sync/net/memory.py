"""A `ByteStream` that plays back what a server would have sent; for tests and examples."""

from __future__ import annotations

from collections.abc import Iterable

__all__ = ["MemoryStream"]


class MemoryStream:
    """
    A stream with a script instead of a network.

    Args:
        script: what `receive()` returns, one piece after the other; then the stream ends.

    What was sent is in `sent`.
    """

    def __init__(self, script: Iterable[bytes]) -> None:
        self.peer = "memory"
        self.sent = bytearray()
        self._script = iter(script)
        self._ended = False

    def receive(self) -> bytes:
        """Return the next piece of the script, ``b""`` at its end or after `shutdown()`."""
        return b"" if self._ended else next(self._script, b"")

    def send(self, data: memoryview, sent: list[int]) -> None:
        """Remember the bytes."""
        if self._ended:
            raise BrokenPipeError("the stream was shut down")
        self.sent += data
        sent.append(len(data))

    def wait_writable(self, timeout: float) -> bool:
        """Return at once: there is always room."""
        del timeout
        return True

    def set_timeout(self, timeout: float | None) -> None:
        """Do nothing: `receive()` never waits."""

    def shutdown(self) -> None:
        """End the stream."""
        self._ended = True

    def close(self) -> None:
        """End the stream."""
        self._ended = True
