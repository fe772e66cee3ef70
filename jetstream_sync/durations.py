"""
Durations and times with nanoseconds, exact, as the types that Python programs use.

On the wire JetStream's durations are integer nanoseconds and its times have nine digits after the
second. `timedelta` and `datetime` stop at the microsecond, so a value that they can not hold comes
as `NanoDuration` or `NanoTime`, which are such a `timedelta` or `datetime` and know the rest. All
arithmetic is on integers, never on floats. Everything here is pure; any thread may call it.
"""

from __future__ import annotations

import re
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any, Final

from .errors import InvalidOptionError

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = [
    "NanoDuration",
    "NanoTime",
    "duration",
    "duration_from_ns",
    "duration_to_ns",
    "time_from_ns",
    "time_from_text",
    "time_to_ns",
    "time_to_text",
]

_SECOND: Final = 1_000_000_000
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=timezone.utc)
_MAX_NS: Final = 2**63 - 1
_RFC3339: Final = re.compile(
    r"(\d{4})-(\d\d)-(\d\d)[Tt](\d\d):(\d\d):(\d\d)(?:\.(\d+))?(?:[Zz]|([+-])(\d\d):(\d\d))",
    re.ASCII,
)


class NanoDuration(timedelta):
    """
    A duration with nanoseconds that a plain `timedelta` would drop.

    As a `timedelta` it is rounded down to the microsecond; the results of arithmetic with it are
    plain ones. `duration_from_ns()` makes one only where it is needed.
    """

    __slots__ = ("ns",)

    #: The exact duration in nanoseconds.
    ns: int

    def __new__(cls, ns: int) -> Self:
        """Make the duration of so many nanoseconds."""
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

    As a `datetime` (comparing, computing, printing) it is rounded down to the microsecond; what is
    computed from it has no nanoseconds. `time_from_ns()` makes one only where it is needed.
    """

    __slots__ = ("_tail",)

    _tail: int

    @property
    def ns(self) -> int:
        """The exact time in nanoseconds since 1970-01-01 UTC."""
        return time_to_ns(self)

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        plain = datetime.combine(self.date(), self.timetz())
        return _with_tail, (plain, _tail(self))


def duration(value: timedelta | float, option: str = "duration") -> timedelta:
    """
    Bring a duration that a user gave into its one form.

    Args:
        value: a `timedelta`, or seconds. Seconds are taken as they are written (``1.001`` is
            1,001,000,000 ns, although no float is exactly that) and rounded to the nanosecond.
        option: what the error calls it.

    Raises:
        InvalidOptionError: it is not a number, or does not fit the wire's signed 64-bit nanoseconds
            (about 292 years).

    """
    if isinstance(value, timedelta):
        if abs(duration_to_ns(value)) > _MAX_NS:
            raise InvalidOptionError(option, value, "longer than the wire can say (292 years)")
        return value
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise InvalidOptionError(option, value, "a duration is a timedelta, or seconds")
    # The negated form also catches NaN.
    if not abs(value) * _SECOND <= _MAX_NS:
        raise InvalidOptionError(option, value, "not a duration that the wire can say (292 years)")
    if isinstance(value, int) or value.is_integer():
        return duration_from_ns(int(value) * _SECOND)
    # Imported late: it takes a good part of the time that importing the package may take.
    from decimal import Decimal  # noqa: PLC0415

    # repr() of a float is the shortest text that means it: what the user wrote.
    return duration_from_ns(round(Decimal(float.__repr__(value)) * _SECOND))


def duration_to_ns(value: timedelta) -> int:
    """Return a duration in nanoseconds, exactly."""
    if isinstance(value, NanoDuration):
        return value.ns
    return (value.days * 86_400 + value.seconds) * _SECOND + value.microseconds * 1000


def duration_from_ns(ns: int) -> timedelta:
    """
    Return the duration of so many nanoseconds, exactly.

    Returns:
        A plain `timedelta`, or a `NanoDuration` where that would drop nanoseconds.

    """
    return NanoDuration(ns) if ns % 1000 else timedelta(microseconds=ns // 1000)


def time_to_ns(value: datetime) -> int:
    """
    Return an aware time in nanoseconds since 1970-01-01 UTC, exactly.

    Raises:
        TypeError: it has no time zone.

    """
    return duration_to_ns(value - _EPOCH) + _tail(value)


def time_from_ns(ns: int) -> datetime:
    """
    Return the time so many nanoseconds after 1970-01-01 UTC, exactly.

    Returns:
        An aware `datetime` in UTC, or a `NanoTime` where that would drop nanoseconds.

    """
    return _with_tail(_EPOCH + timedelta(microseconds=ns // 1000), ns % 1000)


def time_from_text(text: str) -> datetime:
    """
    Read an RFC 3339 time.

    Args:
        text: such as ``2026-01-31T12:00:00.123456789Z``; digits after the ninth are dropped.

    Returns:
        The same instant in UTC, a `NanoTime` where a `datetime` would drop nanoseconds.

    Raises:
        ValueError: it is not an RFC 3339 time, or not within the years 1 to 9999.

    """
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
    return _with_tail(time, nanos % 1000)


def time_to_text(value: datetime) -> str:
    """
    Write an aware time as RFC 3339 in UTC, as Go does: without trailing zeros, with a final Z.

    Args:
        value: a `NanoTime` is written with its nanoseconds.

    """
    second = value.astimezone(timezone.utc).replace(microsecond=0, tzinfo=None).isoformat()
    nanos = value.microsecond * 1000 + _tail(value)
    return f"{second}.{nanos:09}".rstrip("0") + "Z" if nanos else f"{second}Z"


def _with_tail(time: datetime, tail: int) -> datetime:
    if not tail:
        return time
    exact = NanoTime.combine(time.date(), time.timetz())
    exact._tail = tail  # noqa: SLF001 - only this makes one
    return exact


def _tail(time: datetime) -> int:
    # Datetime arithmetic on a NanoTime makes a NanoTime whose slot is empty.
    tail: int = getattr(time, "_tail", 0)
    return tail
