"""
Parsers and option types for sizes, durations, times and names.

``10KB`` and ``10K`` are decimal, ``10KiB`` is binary. Durations have units, which may be combined:
``500ms``, ``1h30m``, ``1d``, ``1y``.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any, Final

import click

from ..errors import InvalidNameError
from ..subjects import check_stream_name

__all__ = [
    "DURATION",
    "LIMIT",
    "LIMITED_DURATION",
    "LIMITED_SIZE",
    "PAUSE",
    "SIZE",
    "STREAM_NAME",
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

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

    ParamType = click.ParamType[Any, Any]
else:
    # It accepts no type arguments before click 8.4.
    ParamType = click.ParamType


_SIZE: Final = re.compile(r"(\d+(?:\.\d+)?)\s*([KMGTPE]?)(I?)B?", re.IGNORECASE)
_POWERS: Final = {"": 0, "K": 1, "M": 2, "G": 3, "T": 4, "P": 5, "E": 6}

#: Microseconds of each unit. A month has 30 days and a year 365, as in the ``nats`` command.
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
#: The longest duration: servers store nanoseconds in 64 bits.
_MAX_DURATION: Final = timedelta(microseconds=(2**63 - 1) // 1000)
#: The longest wait, in seconds; larger values overflow some clocks.
_MAX_WAIT_S: Final = 100 * 365 * 86_400.0
_MIN_PAUSE: Final = timedelta(milliseconds=10)
_NO_LIMIT: Final = frozenset({"-1", "0", "unlimited", "none", ""})


def parse_size(text: str) -> int:
    """
    Return the number of bytes for a text such as ``1024``, ``10KB``, ``10KiB`` or ``1.5G``.

    Raises:
        ValueError: the text is not a size.

    """
    found = _SIZE.fullmatch(text.strip())
    if found is None:
        raise ValueError(
            f"invalid size {text!r}: expected a number with an optional unit, as in 1024, 10KB, 10KiB or 1GB"
        )
    number, letter, binary = found.groups()
    factor: int = (1024 if binary else 1000) ** _POWERS[letter.upper()]
    return _times(number, factor)


def _times(number: str, factor: int, parts: int = 1) -> int:
    """Return ``number * factor / parts``, rounded to an integer without loss of precision."""
    whole, _, rest = number.partition(".")
    parts *= 10 ** len(rest)
    return (2 * int(whole + rest) * factor + parts) // (2 * parts)


def parse_limited_size(text: str) -> int:
    """Return the same as `parse_size`, and -1 for ``-1``, ``0`` and ``unlimited``."""
    return -1 if text.strip().lower() in _NO_LIMIT else parse_size(text)


def parse_limit(text: str) -> int:
    """
    Return a number, which may have commas; -1 for ``-1``, ``0`` and ``unlimited``.

    Raises:
        ValueError: the text is not a number.

    """
    if text.strip().lower() in _NO_LIMIT:
        return -1
    digits = text.strip().replace(",", "").replace("_", "")
    if not digits.isdecimal():
        raise ValueError(
            f"invalid number {text!r}: expected digits such as 1000, or -1 for no limit"
        )
    return int(digits)


def parse_duration(text: str, *, bare: str | None = None) -> timedelta:
    """
    Return the duration for a text such as ``30s``, ``1h30m``, ``2w`` or ``1y``.

    Args:
        text: numbers with units: us, ms, s, m, h, d, w, M (30 days), y (365 days).
        bare: the unit of a number without one; ``None``: a unit is required.

    Raises:
        ValueError: the text is not a duration, or it is too long.

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
        # Less than a microsecond is rounded up, since 0 often means no limit.
        if unit == "ns":
            total += max(_times(number, 1, 1000), bool(number.strip("0.")))
        else:
            total += _times(number, _UNITS[unit])
    if not given or end != len(given):
        raise ValueError(
            f"invalid duration {text!r}: expected numbers with units, as in 30s, 5m, 1h30m, 1d, 2w or 1y"
        )
    if total > _MAX_DURATION // timedelta(microseconds=1):
        raise ValueError(f"duration {text!r} is too long: the maximum is 292 years")
    return timedelta(microseconds=total)


def parse_limited_duration(text: str) -> timedelta:
    """Return the same as `parse_duration`, and 0 for ``-1``, ``0`` and ``unlimited``."""
    return timedelta(0) if text.strip().lower() in _NO_LIMIT else parse_duration(text)


def parse_time(text: str, now: datetime | None = None) -> datetime:
    """
    Return the time for an RFC 3339 text, or for a duration before now.

    Args:
        text: a time such as ``2026-01-02T15:04:05Z``, local without an offset; or a duration.
        now: the time from which a duration is subtracted; ``None``: the current time.

    Returns:
        The time in UTC.

    Raises:
        ValueError: the text is neither.

    """
    given = text.strip()
    if re.match(r"\d{4}-\d\d-\d\d", given):
        try:
            return _read_time(given)
        except (ValueError, OverflowError):
            raise ValueError(
                f"invalid time {text!r}: expected a time such as 2026-01-02T15:04:05Z"
            ) from None
    ago = parse_duration(given)
    return (now or datetime.now(timezone.utc)) - ago


def _read_time(text: str) -> datetime:
    # Python 3.10 does not accept Z, and accepts only three or six fractional digits.
    given = re.sub(r"[zZ]$", "+00:00", text)
    given = re.sub(r"\.(\d+)", lambda found: f".{found[1][:6]:0<6}", given)
    moment = datetime.fromisoformat(given)
    # A time without an offset is local.
    return moment.astimezone(timezone.utc)


class WordType(ParamType):
    """
    A parameter type with well-known values that the shell completes.

    Args:
        name: the name of a value in the help.
        words: the well-known values, in the order of the help.

    """

    def __init__(self, name: str, words: Sequence[str] = ()) -> None:
        self.name = name
        self.words = tuple(words)

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        """Return the words that start with the typed text, ignoring case."""
        del ctx, param
        from click.shell_completion import CompletionItem  # noqa: PLC0415 - for shells only

        typed = incomplete.lower()
        return [CompletionItem(word) for word in self.words if word.startswith(typed)]


class _Parsed(ParamType):
    """A parameter type based on one of the functions above."""

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
    """Bytes, as an ``int``; with ``limited``, -1 means no limit."""

    name = "size"

    def __init__(self, *, limited: bool = False) -> None:
        self.parse = parse_limited_size if limited else parse_size  # type: ignore[method-assign]


class Limit(_Parsed):
    """A number, as an ``int``; -1 means no limit."""

    name = "number"

    def parse(self, text: str) -> int:
        """Return the parsed value."""
        return parse_limit(text)


class Duration(_Parsed):
    """
    A ``timedelta``; with ``limited``, -1 and 0 mean no limit, returned as a ``timedelta`` of 0.

    Args:
        limited: whether no limit is allowed.
        bare: the unit of a number without one; ``None``: a unit is required.

    """

    name = "duration"

    def __init__(self, *, limited: bool = False, bare: str | None = None) -> None:
        self.limited = limited
        self.bare = bare

    def parse(self, text: str) -> timedelta:
        """Return the parsed value."""
        if self.limited:
            return parse_limited_duration(text)
        return parse_duration(text, bare=self.bare)


class Time(_Parsed):
    """An aware ``datetime``, from an RFC 3339 time or a duration before now."""

    name = "time"

    def parse(self, text: str) -> datetime:
        """Return the parsed value."""
        return parse_time(text)


class Timeout(_Parsed):
    """A timeout, as ``float`` seconds above 0: ``2s``, ``500ms`` or ``2``."""

    name = "duration"

    def parse(self, text: str) -> float:
        """Return the parsed value."""
        seconds = parse_duration(text, bare="s").total_seconds()
        if seconds <= 0:
            raise ValueError(f"invalid duration {text!r}: it must be greater than 0")
        return min(seconds, _MAX_WAIT_S)


class Pause(_Parsed):
    """An interval between refreshes, as a ``timedelta``: ``2s``, ``500ms`` or ``2``."""

    name = "duration"

    def parse(self, text: str) -> timedelta:
        """Return the parsed value."""
        pause = parse_duration(text, bare="s")
        if pause < _MIN_PAUSE:
            raise ValueError(f"invalid interval {text!r}: it must be at least 10ms")
        return timedelta(seconds=min(pause.total_seconds(), _MAX_WAIT_S))


PAUSE = Pause()
SIZE = Size()
DURATION = Duration()
#: -1 means no limit.
LIMIT = Limit()
LIMITED_SIZE = Size(limited=True)
LIMITED_DURATION = Duration(limited=True)
TIME = Time()
TIMEOUT = Timeout()


class _StreamName(ParamType):
    """A valid stream name; a server does not answer requests with an invalid one."""

    name = "name"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the name, or fail when it is invalid."""
        try:
            return check_stream_name(value)
        except InvalidNameError as error:
            self.fail(str(error), param, ctx)


STREAM_NAME: Final = _StreamName()
