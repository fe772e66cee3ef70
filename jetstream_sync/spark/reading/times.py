"""Times as direct gets have them, read fast: messages that come together share most of the text."""

from __future__ import annotations

from collections.abc import Iterable

from ...errors import InvalidResponseError
from ...nanos import time_from_text, time_to_ns

__all__ = ["times_ns"]


def times_ns(lines: Iterable[bytes], start: int) -> list[int]:
    """
    Read times such as ``2026-01-31T12:00:00.123456789Z``.

    Args:
        lines: each with a time at its end.
        start: where in a line it starts.

    Returns:
        The times, in nanoseconds since 1970.

    Raises:
        InvalidResponseError: one is no such time.

    """
    times: list[int] = []
    second: bytes | None = None
    second_ns = 0
    second_end = start + len("2026-01-31T12:00:00")
    try:
        for line in lines:
            if line[start:second_end] != second:
                second = line[start:second_end]
                second_ns = time_to_ns(time_from_text(second.decode() + "Z"))
            # The server leaves zeros at the end out, and the dot with the last of them.
            fraction = line[second_end + 1 : -1]
            times.append(second_ns + int(fraction.ljust(9, b"0")))
    except ValueError:
        raise InvalidResponseError("a direct get answered with something that is no time") from None
    return times
