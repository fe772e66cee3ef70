"""A `ByteStream` that replays recorded server data; for tests and examples."""

from __future__ import annotations

from collections.abc import Iterable


class MemoryStream:
    """
    A stream with a script instead of a network.

    Sent bytes are collected in `sent`.
    """

    def __init__(self, script: Iterable[bytes]) -> None:
        self.peer = "memory"
        self.sent: bytearray = bytearray()
        self._script = iter(script)
        self._ended = False

    def receive(self) -> bytes:
        """Return the next piece of the script; ``b""`` at its end or after `shutdown()`."""
        return b"" if self._ended else next(self._script, b"")

    def send(self, data: memoryview, sent: list[int]) -> None:
        """Append the bytes to `sent`."""
        if self._ended:
            raise BrokenPipeError("the stream was shut down")
        self.sent += data
        sent.append(len(data))

    def wait_writable(self, timeout: float) -> bool:
        """Return ``True`` at once: the stream is always writable."""
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
