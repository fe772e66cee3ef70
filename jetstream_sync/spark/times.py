"""Times as direct gets have them, read fast: messages that come together share most of the text."""

from __future__ import annotations

from ..errors import InvalidResponseError
from ..nanos import time_from_text, time_to_ns

__all__ = ["NanosOfText"]


class NanosOfText:
    """Reads times such as ``2026-01-31T12:00:00.123456789Z``; for one thread."""

    __slots__ = ("_second", "_second_ns")

    def __init__(self) -> None:
        self._second = b""
        self._second_ns = 0

    def of(self, text: bytes) -> int:
        """
        Return a time in nanoseconds since 1970.

        Raises:
            InvalidResponseError: it is no such time.

        """
        try:
            if text[:19] != self._second:
                self._second_ns = time_to_ns(time_from_text(text[:19].decode() + "Z"))
                self._second = text[:19]
            # The server leaves zeros at the end out, and the dot with them.
            fraction = text[20:-1]
            return self._second_ns + (int(fraction) * 10 ** (9 - len(fraction)) if fraction else 0)
        except ValueError:
            raise InvalidResponseError(f"{text!r} is no time") from None
