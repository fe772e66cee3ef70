"""Exact durations and times with nanoseconds, as subclasses of `timedelta` and `datetime`; sizes and counts as text."""

# JetStream's JSON has durations in integer nanoseconds and times with nine fractional digits. `timedelta`
# and `datetime` have a resolution of a microsecond, so other values are returned as the subclasses
# `NanoDuration` and `NanoTime`. All arithmetic uses integers, never floats. All functions are pure and
# safe to call from any thread.

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any, Final

from . import errors
from .exact import exact

if TYPE_CHECKING:
    from typing_extensions import Self

#: Nanoseconds in a second.
NS_PER_S: Final = 1_000_000_000
#: Maximum timeout in seconds that locks accept, about 292 years.
MAX_TIMEOUT_S: Final = 9e9
#: The longest time to live of a message in seconds, 200 years. The server adds it to the time of the message as
#: nanoseconds in 64 bits: a message whose end is after the year 2262 expires at once.
MAX_TTL_S: Final = 200 * 365 * 86_400
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=timezone.utc)
_MAX_NS: Final = 2**63 - 1
_RFC3339: Final = re.compile(
    r"(\d{4})-(\d\d)-(\d\d)[Tt](\d\d):(\d\d):(\d\d)(?:\.(\d+))?(?:[Zz]|([+-])(\d\d):(\d\d))",
    re.ASCII,
)


class NanoDuration(timedelta):
    """
    A duration with nanoseconds that a plain `timedelta` would drop.

    Its `timedelta` value is rounded down to the microsecond; arithmetic returns plain `timedelta`
    objects. `duration_from_ns()` creates one only if needed.
    """

    __slots__ = ("ns",)

    #: The exact duration in nanoseconds.
    ns: int

    def __new__(cls, ns: int) -> Self:
        """Create a duration from nanoseconds."""
        self = super().__new__(cls, microseconds=ns // 1000)
        self.ns = ns
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.ns,)

    def __repr__(self) -> str:
        return f"NanoDuration({self.ns})"


class NanoTime(datetime):
    """
    An aware time in UTC with nanoseconds that a plain `datetime` would drop.

    Its `datetime` value (for comparison, arithmetic and printing) is rounded down to the microsecond;
    results of arithmetic have no nanoseconds. `time_from_ns()` creates one only if needed.
    """

    __slots__ = ("_nanoseconds",)

    _nanoseconds: int

    @property
    def ns(self) -> int:
        """The exact time in nanoseconds since 1970-01-01 UTC."""
        return time_to_ns(self)

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        plain = datetime.combine(self.date(), self.timetz())
        return _with_nanoseconds, (plain, _sub_microseconds(self))


def seconds(timeout: float | timedelta, option: str = "timeout") -> float:
    """Return a time span in seconds; raise `InvalidOptionError` if it is not a number or a `timedelta`."""
    value = timeout.total_seconds() if isinstance(timeout, timedelta) else exact(timeout)
    # An int may be too large for isnan().
    if type(value) not in (int, float) or (type(value) is float and math.isnan(value)):
        raise errors.InvalidOptionError(
            option, timeout, "must be a number of seconds or a timedelta"
        )
    return value


def duration(value: timedelta | float, option: str = "duration") -> timedelta:
    """Return a duration of the user as a `timedelta`; raise `InvalidOptionError` if it is not valid."""
    if isinstance(value, timedelta):
        if abs(duration_to_ns(value)) > _MAX_NS:
            raise errors.InvalidOptionError(option, value, "must not exceed 292 years")
        return value
    value = exact(value)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise errors.InvalidOptionError(option, value, "must be a timedelta or a number of seconds")
    # The negated form also catches NaN.
    if not abs(value) * NS_PER_S <= _MAX_NS:
        raise errors.InvalidOptionError(
            option, value, "must be a finite duration of at most 292 years"
        )
    if isinstance(value, int) or value.is_integer():
        return duration_from_ns(int(value) * NS_PER_S)
    # Imported late to keep the import time of the package low.
    from decimal import Decimal  # noqa: PLC0415

    # repr() of a float is the shortest text with its value: the number that the user wrote.
    return duration_from_ns(round(Decimal(float.__repr__(value)) * NS_PER_S))


def duration_to_ns(value: timedelta) -> int:
    """Return a duration in nanoseconds, exactly."""
    if isinstance(value, NanoDuration):
        return value.ns
    return (value.days * 86_400 + value.seconds) * NS_PER_S + value.microseconds * 1000


def duration_from_ns(ns: int) -> timedelta:
    """Return the exact duration for a number of nanoseconds."""
    return NanoDuration(ns) if ns % 1000 else timedelta(microseconds=ns // 1000)


#: The units of Go's ``time.ParseDuration``, in nanoseconds.
GO_UNITS: Final[Mapping[str, int]] = {
    "h": 3600 * NS_PER_S,
    "m": 60 * NS_PER_S,
    "s": NS_PER_S,
    "ms": 1_000_000,
    "us": 1000,
    "\u00b5s": 1000,
    "\u03bcs": 1000,
    "ns": 1,
}
_PART: Final = r"(\d*)(?:\.(\d*))?\s*([A-Za-z\u00b5\u03bc]+)"


def duration_from_text(text: str, units: Mapping[str, int] = GO_UNITS) -> timedelta:
    """Return the duration of a text such as ``1m30s`` or ``5``: a Go duration, or a number of seconds."""
    # `units` are nanoseconds. Raises `ValueError` for another text, and for more than 292 years.
    if text.isdigit():
        return duration_from_ns(int(text) * NS_PER_S)
    ns = end = 0
    for part in re.finditer(_PART, text):
        whole, fraction, name = part[1], part[2] or "", part[3]
        if part.start() != end or name not in units or not (whole or fraction):
            break
        end = part.end()
        # Rounded up, since 0 often means no limit.
        ns -= -int(whole + fraction) * units[name] // 10 ** len(fraction)
    if not text or end != len(text):
        raise ValueError(f"{text!r} is not a duration such as 1m30s")
    if ns > _MAX_NS:
        raise ValueError(f"duration {text!r} is too long: the maximum is 292 years")
    return duration_from_ns(ns)


def check_time(value: object, option: str = "time") -> datetime:
    """Return a time of the user; raise `InvalidOptionError` without a time zone, or outside of the years 1 to 9999."""
    if not isinstance(value, datetime) or value.utcoffset() is None:
        raise errors.InvalidOptionError(option, value, "must be a datetime with a time zone")
    try:
        value.astimezone(timezone.utc)
    except OverflowError:
        raise errors.InvalidOptionError(
            option, value, "must be in the years 1 to 9999 UTC"
        ) from None
    return value


def check_message_time(value: object, option: str = "time") -> datetime:
    """Return a time that the server compares with messages; raise `InvalidOptionError` if it is out of range."""
    moment = check_time(value, option)
    if abs(duration_to_ns(moment - _EPOCH)) > _MAX_NS:
        # The server would compare another time, without an error.
        raise errors.InvalidOptionError(option, value, "must be in the years 1678 to 2261")
    return moment


def time_to_ns(value: datetime) -> int:
    """Return an aware time in nanoseconds since 1970-01-01 UTC, exactly."""
    return duration_to_ns(value - _EPOCH) + _sub_microseconds(value)


def time_from_ns(ns: int) -> datetime:
    """Return the exact time for a number of nanoseconds since 1970-01-01 UTC."""
    return _with_nanoseconds(_EPOCH + timedelta(microseconds=ns // 1000), ns % 1000)


def time_from_text(text: str) -> datetime:
    """Return the time of an RFC 3339 text; raise `ValueError` if it is not one."""
    # Returns the same instant in UTC, as a `NanoTime` if a `datetime` would lose nanoseconds.
    match = _RFC3339.fullmatch(text)
    if match is None:
        raise ValueError(f"not an RFC 3339 time: {text!r}")
    year, month, day, hour, minute, second, fraction, sign, hours, minutes = match.groups()
    nanos = int(fraction[:9].ljust(9, "0")) if fraction else 0
    time = datetime(
        int(year),
        int(month),
        int(day),
        int(hour),
        int(minute),
        int(second),
        nanos // 1000,
        timezone.utc,
    )
    if sign:
        offset = timedelta(hours=int(hours), minutes=int(minutes))
        try:
            time = time - offset if sign == "+" else time + offset
        except OverflowError as error:
            raise ValueError(f"not within the years 1 to 9999: {text!r}") from error
    return _with_nanoseconds(time, nanos % 1000)


def time_to_text(value: datetime) -> str:
    """Format an aware time as RFC 3339 in UTC, like Go: without trailing zeros, with a final Z."""
    second = value.astimezone(timezone.utc).replace(microsecond=0, tzinfo=None).isoformat()
    nanos = value.microsecond * 1000 + _sub_microseconds(value)
    return f"{second}.{nanos:09}".rstrip("0") + "Z" if nanos else f"{second}Z"


def _with_nanoseconds(time: datetime, nanoseconds: int) -> datetime:
    if not nanoseconds:
        return time
    exact = NanoTime.combine(time.date(), time.timetz())
    exact._nanoseconds = nanoseconds  # noqa: SLF001 - the only constructor
    return exact


def _sub_microseconds(time: datetime) -> int:
    # Arithmetic on a NanoTime returns a NanoTime with an empty slot.
    nanoseconds: int = getattr(time, "_nanoseconds", 0)
    return nanoseconds


def duration_text(value: timedelta | None, *, unlimited: bool = False) -> str:
    """Return a duration as Go writes it: ``30s``, ``1h0m0s``; whole days in front: ``1y (8760h0m0s)``."""
    if value is None:
        return "-"
    if not value and unlimited:
        return "Unlimited"
    text = seconds_text(value)
    days, rest = divmod(value, timedelta(days=1))
    if rest or days <= 0:
        return text
    for item, unit in ((365, "y"), (7, "w")):
        if days % item == 0:
            return f"{days // item}{unit} ({text})"
    return f"{days}d ({text})"


def seconds_text(value: timedelta) -> str:
    """Return a duration as Go writes it, with microsecond precision: ``1m30s``, ``5.168ms``."""
    micros = value // timedelta(microseconds=1)
    sign, micros = ("-" if micros < 0 else ""), abs(micros)
    if micros < 1_000:
        return f"{sign}{micros}µs" if micros else "0s"
    if micros < 1_000_000:
        return f"{sign}{_digits(micros, 1_000)}ms"
    minutes, micros = divmod(micros, 60_000_000)
    hours, minutes = divmod(minutes, 60)
    text = f"{_digits(micros, 1_000_000)}s"
    if hours or minutes:
        text = f"{minutes}m{text}"
    if hours:
        text = f"{hours}h{text}"
    return sign + text


def _digits(number: int, unit: int) -> str:
    whole, rest = divmod(number, unit)
    if not rest:
        return str(whole)
    return f"{whole}.{rest:0{len(str(unit)) - 1}d}".rstrip("0")


# --- sizes --------------------------------------------------------------------------------------

_SIZE: Final = r"(\d+(?:\.\d+)?)\s*([KMGTPE]?)(I?)B?"


def size_from_text(text: str) -> int:
    """Return the number of bytes for a text such as ``10KiB`` or ``1.5G``; raise `ValueError` for others."""
    found = re.fullmatch(_SIZE, text.strip(), re.ASCII | re.IGNORECASE)
    if found is None:
        raise ValueError(
            f"invalid size {text!r}: expected a number with an optional unit, as in 1024, 10KB, 10KiB or 1GB"
        )
    number, letter, binary = found.groups()
    factor: int = (1024 if binary else 1000) ** ("KMGTPE".find(letter.upper()) + 1 if letter else 0)
    # Rounded to an integer without loss of precision.
    whole, _, rest = number.partition(".")
    parts: int = 10 ** len(rest)
    return (2 * int(whole + rest) * factor + parts) // (2 * parts)


def counted(number: int, noun: str) -> str:
    """Return a number with its noun: ``1 message``, ``1,000 messages``."""
    return f"{exact(number):,} {noun}{'' if number == 1 else 's'}"
