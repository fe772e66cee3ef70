"""
How people write sizes, durations and times, and the option types that read them.

``10KB`` and ``10K`` are thousands, ``10KiB`` is 1024s. Durations have units, and may be put together:
``500ms``, ``1h30m``, ``1d``, ``1y``.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any, Final

import click

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

    ParamType = click.ParamType[Any, Any]
else:
    # It takes no type arguments before click 8.4.
    ParamType = click.ParamType

__all__ = [
    "DURATION",
    "LIMIT",
    "LIMITED_DURATION",
    "LIMITED_SIZE",
    "PAUSE",
    "SIZE",
    "TIME",
    "TIMEOUT",
    "Duration",
    "Limit",
    "ParamType",
    "Pause",
    "Size",
    "Time",
    "Timeout",
    "WordType",
    "parse_duration",
    "parse_limit",
    "parse_limited_duration",
    "parse_limited_size",
    "parse_size",
    "parse_time",
]

_SIZE: Final = re.compile(r"(\d+(?:\.\d+)?)\s*([KMGTPE]?)(I?)B?", re.IGNORECASE)
_POWERS: Final = {"": 0, "K": 1, "M": 2, "G": 3, "T": 4, "P": 5, "E": 6}

#: Microseconds of each unit. A month has 30 days and a year 365, as the ``nats`` command has it.
_UNITS: Final = {
    "us": 1,
    "µs": 1,
    "ms": 1_000,
    "s": 1_000_000,
    "m": 60_000_000,
    "h": 3_600_000_000,
    "d": 86_400_000_000,
    "D": 86_400_000_000,
    "w": 7 * 86_400_000_000,
    "W": 7 * 86_400_000_000,
    "M": 30 * 86_400_000_000,
    "y": 365 * 86_400_000_000,
    "Y": 365 * 86_400_000_000,
}
_PART: Final = re.compile(r"(\d+(?:\.\d+)?|\.\d+)\s*(ns|us|µs|ms|[smhdDwWMyY])")
#: The longest duration: servers have them as nanoseconds, in 64 bits.
_LONGEST: Final = timedelta(microseconds=(2**63 - 1) // 1000)
#: Seconds that nobody will ever have waited: more would be too much for some clocks.
_FOR_EVER: Final = 100 * 365 * 86_400.0
_SHORTEST_PAUSE: Final = timedelta(milliseconds=10)
_NO_LIMIT: Final = frozenset({"-1", "0", "unlimited", "none", ""})


def parse_size(text: str) -> int:
    """
    Return the bytes that a text such as ``1024``, ``10KB``, ``10KiB`` or ``1.5G`` stands for.

    Raises:
        ValueError: it is no size.

    """
    found = _SIZE.fullmatch(text.strip())
    if found is None:
        raise ValueError(f"{text!r} is no size; write 1024, 10KB, 10KiB or 1GB")
    number, letter, binary = found.groups()
    factor: int = (1024 if binary else 1000) ** _POWERS[letter.upper()]
    return _times(number, factor)


def _times(number: str, factor: int, parts: int = 1) -> int:
    """Return ``number * factor / parts``, rounded to a whole; exact, however large the number is."""
    whole, _, rest = number.partition(".")
    parts *= 10 ** len(rest)
    return (2 * int(whole + rest) * factor + parts) // (2 * parts)


def parse_limited_size(text: str) -> int:
    """Return the same, and -1 for ``-1``, ``0`` and ``unlimited``."""
    return -1 if text.strip().lower() in _NO_LIMIT else parse_size(text)


def parse_limit(text: str) -> int:
    """
    Return a number of things, which may have commas; -1 for ``-1``, ``0`` and ``unlimited``.

    Raises:
        ValueError: it is no number.

    """
    if text.strip().lower() in _NO_LIMIT:
        return -1
    digits = text.strip().replace(",", "").replace("_", "")
    if not digits.isdecimal():
        raise ValueError(f"{text!r} is no number; write 1000, or -1 for no limit")
    return int(digits)


def parse_duration(text: str, *, bare: str | None = None) -> timedelta:
    """
    Return how long a text such as ``30s``, ``1h30m``, ``2w`` or ``1y`` is.

    Args:
        text: digits with units: us, ms, s, m, h, d, w, M (30 days), y (365 days).
        bare: the unit of a number without one; ``None``: there must be one.

    Raises:
        ValueError: it is no duration.

    """
    given = text.strip()
    if re.fullmatch(r"\d+(\.\d+)?|\.\d+", given):
        if bare is not None:
            given += bare
        elif not given.strip("0."):
            return timedelta(0)
    total, end = 0, 0
    for found in _PART.finditer(given):
        if found.start() != end:
            break
        number, unit = found.groups()
        end = found.end()
        # One nanosecond is not nothing.
        if unit == "ns":
            total += max(_times(number, 1, 1000), bool(number.strip("0.")))
        else:
            total += _times(number, _UNITS[unit])
    if not given or end != len(given):
        raise ValueError(f"{text!r} is no duration; write 30s, 5m, 1h30m, 1d, 2w or 1y")
    if total > _LONGEST // timedelta(microseconds=1):
        raise ValueError(f"{text!r} is too long; servers know durations up to 292 years")
    return timedelta(microseconds=total)


def parse_limited_duration(text: str) -> timedelta:
    """Return the same, and no time at all for ``-1``, ``0`` and ``unlimited``."""
    return timedelta(0) if text.strip().lower() in _NO_LIMIT else parse_duration(text)


def parse_time(text: str, now: datetime | None = None) -> datetime:
    """
    Return a moment: an RFC 3339 time, or so long ago.

    Args:
        text: ``2026-01-02T15:04:05Z``, with any offset; without one it is local time. Or a duration.
        now: what a duration is taken from; ``None``: this moment.

    Returns:
        The moment in UTC.

    Raises:
        ValueError: it is neither.

    """
    given = text.strip()
    if re.match(r"\d{4}-\d\d-\d\d", given):
        try:
            return _read_time(given)
        except (ValueError, OverflowError):
            raise ValueError(f"{text!r} is no time; write 2026-01-02T15:04:05Z") from None
    ago = parse_duration(given)
    return (now or datetime.now(timezone.utc)) - ago


def _read_time(text: str) -> datetime:
    # Python 3.10 knows no Z, and only three or six digits of a second.
    given = re.sub(r"[zZ]$", "+00:00", text)
    given = re.sub(r"\.(\d+)", lambda found: f".{found[1][:6]:0<6}", given)
    moment = datetime.fromisoformat(given)
    # Without an offset it is local time.
    return moment.astimezone(timezone.utc)


class WordType(ParamType):
    """
    A type for which some words are usual: the shell completes them.

    Args:
        name: what help calls a value.
        words: the usual ones, in the order of the help.

    """

    def __init__(self, name: str, words: Sequence[str] = ()) -> None:
        self.name = name
        self.words = tuple(words)

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        """Return the words that begin like what was typed, in any case."""
        del ctx, param
        from click.shell_completion import CompletionItem  # noqa: PLC0415 - for shells only

        typed = incomplete.lower()
        return [CompletionItem(word) for word in self.words if word.startswith(typed)]


class _Parsed(ParamType):
    """An option whose text one of the functions above reads."""

    name = "value"

    def parse(self, text: str) -> Any:
        raise NotImplementedError

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not isinstance(value, str):
            return value
        try:
            return self.parse(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)


class Size(_Parsed):
    """Bytes, as an ``int``; with ``limited``, -1 is no limit."""

    name = "size"

    def __init__(self, *, limited: bool = False) -> None:
        self.parse = parse_limited_size if limited else parse_size  # type: ignore[method-assign]


class Limit(_Parsed):
    """A number of things, as an ``int``; -1 is no limit."""

    name = "number"

    def parse(self, text: str) -> int:
        """Read it."""
        return parse_limit(text)


class Duration(_Parsed):
    """
    A ``timedelta``; with ``limited``, -1 and 0 are no limit, which is a ``timedelta`` of 0.

    Args:
        limited: whether that may be.
        bare: the unit of a number without one; ``None``: there must be one.

    """

    name = "duration"

    def __init__(self, *, limited: bool = False, bare: str | None = None) -> None:
        self.limited = limited
        self.bare = bare

    def parse(self, text: str) -> timedelta:
        """Read it."""
        if self.limited:
            return parse_limited_duration(text)
        return parse_duration(text, bare=self.bare)


class Time(_Parsed):
    """A moment, as an aware ``datetime``: an RFC 3339 time, or so long ago."""

    name = "time"

    def parse(self, text: str) -> datetime:
        """Read it."""
        return parse_time(text)


class Timeout(_Parsed):
    """How long to wait, as ``float`` seconds above 0: ``2s``, ``500ms`` or ``2``."""

    name = "duration"

    def parse(self, text: str) -> float:
        """Read it."""
        seconds = parse_duration(text, bare="s").total_seconds()
        if seconds <= 0:
            raise ValueError("a time to wait is above 0")
        return min(seconds, _FOR_EVER)


class Pause(_Parsed):
    """How long to wait between two looks at something, as a ``timedelta``: ``2s``, ``500ms`` or ``2``."""

    name = "duration"

    def parse(self, text: str) -> timedelta:
        """Read it."""
        pause = parse_duration(text, bare="s")
        if pause < _SHORTEST_PAUSE:
            raise ValueError("a pause is at least 10ms")
        return timedelta(seconds=min(pause.total_seconds(), _FOR_EVER))


PAUSE = Pause()
SIZE = Size()
DURATION = Duration()
#: With -1 for no limit.
LIMIT = Limit()
LIMITED_SIZE = Size(limited=True)
LIMITED_DURATION = Duration(limited=True)
TIME = Time()
TIMEOUT = Timeout()
