"""
Parse options as Spark passes them: case-insensitive names and text values.

Errors name the option, the given value and the accepted values. A value that may be a secret is never
repeated.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime, timezone
from typing import Final, TypeVar

from ..durations import time_from_ns, time_from_text
from ..errors import InvalidOptionError
from ..suggestions import closest_match
from .connections import Secret

T = TypeVar("T")

_UNIT_SECONDS: Final = {
    "ns": 1e-9,
    "us": 1e-6,
    "µs": 1e-6,
    "ms": 1e-3,
    "s": 1.0,
    "m": 60.0,
    "h": 3600.0,
}
_DURATION: Final = re.compile(r"(\d+(?:\.\d+)?)(ns|us|µs|ms|s|m|h)", re.ASCII)
_UNIT_BYTES: Final = {
    "": 1,
    "b": 1,
    "kb": 1000,
    "mb": 1000**2,
    "gb": 1000**3,
    "kib": 1024,
    "mib": 1024**2,
    "gib": 1024**3,
}
_SIZE: Final = re.compile(r"(\d+(?:\.\d+)?)\s*([A-Za-z]*)", re.ASCII)
_DECIMAL: Final = re.compile(r"\d+(?:\.\d+)?", re.ASCII)
_INTEGER: Final = re.compile(r"-?\d{1,19}", re.ASCII)


class OptionValues:
    """
    The options given by a user.

    Args:
        options: names and values.
        known: the documented option names.
        ignored: names that Spark itself adds, in lower case.

    Raises:
        InvalidOptionError: an option is unknown; the error suggests the closest name.

    """

    def __init__(
        self, options: Mapping[str, str], known: Iterable[str], ignored: Iterable[str] = ()
    ) -> None:
        names = {name.lower(): name for name in known}
        skipped = frozenset(ignored)
        self._values: dict[str, str] = {}
        for name, value in options.items():
            if name.lower() in skipped:
                continue
            canonical = names.get(name.lower())
            if canonical is None:
                close = closest_match(name.lower(), names)
                hint = f"; did you mean {names[close]}?" if close else ""
                # The value is not repeated: it may be a secret under a misspelled name.
                raise InvalidOptionError(name, "...", f"there is no such option{hint}")
            if not isinstance(value, str):
                raise InvalidOptionError(canonical, "...", "the value must be text")
            self._values[canonical] = value

    def __contains__(self, name: str) -> bool:
        return name in self._values

    def exclude(self, *names: str) -> None:
        """
        Allow at most one of these options.

        Raises:
            InvalidOptionError: two of them are given.

        """
        given = [name for name in names if name in self]
        if len(given) > 1:
            raise InvalidOptionError(given[1], "...", f"cannot be combined with {given[0]}")

    def require(self, name: str, reason: str) -> None:
        """
        Require an option.

        Raises:
            InvalidOptionError: it is not given.

        """
        if name not in self:
            raise InvalidOptionError(name, None, reason)

    def require_with(self, name: str, other: str) -> None:
        """
        Allow an option only together with another one.

        Raises:
            InvalidOptionError: the other one is missing.

        """
        if name in self and other not in self:
            raise InvalidOptionError(name, "...", f"needs {other}")

    def text(self, name: str) -> str | None:
        """Return the value without surrounding white space, ``None`` if it is not given."""
        value = self._values.get(name)
        if value is None:
            return None
        if not value.strip():
            raise InvalidOptionError(name, value, "must not be empty")
        return value.strip()

    def validated(self, name: str, check: Callable[[str], T]) -> T | None:
        """
        Return the result of a check function for the value, ``None`` if it is not given.

        Args:
            name: the name of the option.
            check: converts the value, or raises `ValueError`.

        Raises:
            InvalidOptionError: the check failed.

        """
        value = self.text(name)
        return None if value is None else _validated(name, value, check)

    def items(self, name: str, check: Callable[[str], str]) -> tuple[str, ...]:
        """
        Return the items of a comma-separated list, each checked.

        Raises:
            InvalidOptionError: an item is empty, duplicated or invalid.

        """
        value = self.text(name)
        if value is None:
            return ()
        items = tuple(_validated(name, item.strip(), check) for item in value.split(","))
        if len(set(items)) < len(items):
            raise InvalidOptionError(name, value, "has a duplicate item")
        return items

    def secret(self, name: str) -> Secret | None:
        """Return the unchanged value as a `Secret`, ``None`` if it is not given."""
        value = self._values.get(name)
        if value is None:
            return None
        if not value:
            raise InvalidOptionError(name, "...", "must not be empty")
        return Secret(value)

    def choice(self, name: str, choices: tuple[str, ...], default: str) -> str:
        """Return one of several keywords, in lower case."""
        value = self.text(name)
        if value is None:
            return default
        if value.lower() not in choices:
            raise InvalidOptionError(name, value, f"must be one of {', '.join(choices)}")
        return value.lower()

    def flag(self, name: str, *, default: bool) -> bool:
        """Return a boolean value, given as true or false."""
        return self.choice(name, ("true", "false"), str(default).lower()) == "true"

    def number(self, name: str, minimum: int, maximum: int) -> int | None:
        """Return an integer, ``None`` if it is not given."""
        value = self.text(name)
        if value is None:
            return None
        if not _INTEGER.fullmatch(value) or not minimum <= int(value) <= maximum:
            raise InvalidOptionError(name, value, f"must be an integer from {minimum} to {maximum}")
        return int(value)

    def seconds(self, name: str, default: float, minimum: float, maximum: float) -> float:
        """Return a duration in seconds, given as a number of seconds or as ``1m30s``."""
        value = self.text(name)
        if value is None:
            return default
        total: float | None = None
        if _DECIMAL.fullmatch(value):
            total = float(value)
        elif not _DURATION.sub("", value):
            total = sum(float(n) * _UNIT_SECONDS[unit] for n, unit in _DURATION.findall(value))
        if total is None or not minimum <= total <= maximum:
            raise InvalidOptionError(
                name,
                value,
                f"must be a duration such as 500ms, 10s or 2m, from {minimum:g} to {maximum:g} s",
            )
        return total

    def size(self, name: str, default: int | None, minimum: int, maximum: int) -> int | None:
        """Return a size in bytes, given as a number of bytes or as ``4MB`` or ``4MiB``."""
        value = self.text(name)
        if value is None:
            return default
        match = _SIZE.fullmatch(value)
        unit = None if match is None else _UNIT_BYTES.get(match[2].lower())
        if match is None or unit is None or not minimum <= float(match[1]) * unit <= maximum:
            raise InvalidOptionError(
                name,
                value,
                f"must be a size such as 4194304, 4MB or 4MiB, from {minimum} to {maximum} bytes",
            )
        return int(float(match[1]) * unit)

    def time(self, name: str) -> datetime | None:
        """Return a time in UTC, given in ISO 8601 with a time zone or in milliseconds since 1970."""
        value = self.text(name)
        if value is None:
            return None
        try:
            if _INTEGER.fullmatch(value):
                return time_from_ns(int(value) * 1_000_000)
            return _iso_time(value)
        except (ValueError, OverflowError):
            raise InvalidOptionError(
                name,
                value,
                "must be a time with its zone such as 2026-01-31T12:00:00Z, or milliseconds since 1970",
            ) from None


def _validated(name: str, value: str, check: Callable[[str], T]) -> T:
    try:
        return check(value)
    except InvalidOptionError:
        raise
    except ValueError as error:
        raise InvalidOptionError(name, value, str(error)) from None


def _iso_time(value: str) -> datetime:
    """Parse a time with a time zone, and up to nine fractional digits of the second."""
    try:
        return time_from_text(value)
    except ValueError:
        at = datetime.fromisoformat(value)
        if at.utcoffset() is None:
            raise
        return at.astimezone(timezone.utc)
