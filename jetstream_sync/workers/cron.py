"""
Cron rules, checked when they are defined, as nats-server checks them.

A field has numbers or names, ranges and steps. A month has its names in English; a week begins with Sunday, 0.
"""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from typing import Final
from zoneinfo import ZoneInfo, available_timezones

from .. import errors
from .checks import check_option

_NAMES: Final = ("@yearly", "@annually", "@monthly", "@weekly", "@daily", "@midnight", "@hourly")
_MONTHS: Final = (
    *("jan", "feb", "mar", "apr", "may", "jun"),
    *("jul", "aug", "sep", "oct", "nov", "dec"),
)
_DAYS: Final = ["sun", "mon", "tue", "wed", "thu", "fri", "sat"]
#: Name, first and last value of the fields.
_FIELDS: Final = (
    ("second", 0, 59),
    ("minute", 0, 59),
    ("hour", 0, 23),
    ("day of the month", 1, 31),
    ("month", 1, 12),
    ("day of the week", 0, 6),
)
_LONGEST_MONTHS: Final = (31, 29, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)


def check_cron(cron: object) -> list[set[int]]:
    """
    Return the values of the six fields of a rule; of a name such as ``@daily``, none.

    Raises:
        InvalidOptionError: the server would refuse the rule, or it has no time.

    """
    parts = cron.split() if isinstance(cron, str) else []
    if len(parts) == 1 and parts[0] in _NAMES:
        return []
    if len(parts) == len(_FIELDS) - 1:
        parts = ["0", *parts]
    rule = f"must have five or six fields, or be one of {', '.join(_NAMES)}"
    check_option("cron", cron, len(parts) == len(_FIELDS), rule)
    fields = []
    for (name, first, last), text in zip(_FIELDS, parts, strict=True):
        try:
            fields.append(_values(text, name, first, last))
        except ValueError:
            rule = f"the field {text!r} for the {name} must have values from {first} to {last}"
            raise errors.InvalidOptionError("cron", cron, rule) from None
    days, months = fields[3], fields[4]
    if parts[5] in {"*", "?"} and not any(
        min(days) <= _LONGEST_MONTHS[month - 1] for month in months
    ):
        raise errors.InvalidOptionError("cron", cron, f"no such month has a day {min(days)}")
    return fields


def _values(text: str, name: str, first: int, last: int) -> set[int]:
    found: set[int] = set()
    for part in filter(None, text.split(",")):
        span, slash, step = part.partition("/")
        begin, dash, end = span.partition("-")
        if begin in {"*", "?"}:
            low, high = first, last
        else:
            low = _number(begin, name)
            high = _number(end, name) if dash else (last if slash else low)
        width = int(step) if slash and step.isdigit() else 1
        if (slash and not step.isdigit()) or width < 1 or not first <= low <= high <= last:
            raise ValueError(part)
        found.update(range(low, high + 1, width))
    if not found:
        raise ValueError(text)
    return found


def _number(text: str, name: str) -> int:
    if name == "month" and text.lower() in _MONTHS:
        return _MONTHS.index(text.lower()) + 1
    if name == "day of the week" and text.lower() in _DAYS:
        return _DAYS.index(text.lower())
    if not text.isascii() or not text.isdigit():
        raise ValueError(text)
    return int(text)


def check_zone(name: object) -> ZoneInfo | None:
    """Return a time zone, ``None`` if this system knows none; raise `InvalidOptionError` for an unknown one."""
    try:
        if isinstance(name, str) and name:
            return ZoneInfo(name)
    except (KeyError, ValueError, OSError):
        if not available_timezones():
            return None  # the server has its own
    rule = "must be the name of a time zone, such as 'Europe/Berlin'"
    raise errors.InvalidOptionError("time_zone", name, rule)


def clock_changes(cron: str, time_zone: str | None) -> list[str]:
    """Return what happens to a rule when the clock is changed within a year, as sentences."""
    fields = check_cron(cron)
    if time_zone is None or not fields or len(fields[2]) == _FIELDS[2][2] + 1:
        return []
    zone, found = check_zone(time_zone), []
    if zone is None:
        return []
    now = datetime.now(timezone.utc).replace(minute=0, second=0, microsecond=0)
    for hours in range(366 * 24):
        before = (now + timedelta(hours=hours)).astimezone(zone)
        after = (now + timedelta(hours=hours + 1)).astimezone(zone)
        change = (after.utcoffset() or timedelta()) - (before.utcoffset() or timedelta())
        if not change:
            continue
        local = before.replace(tzinfo=None) + timedelta(hours=1)  # as if the clock were not changed
        start = local if change > timedelta(0) else local + change
        times = [start + timedelta(minutes=item) for item in range(int(abs(change).seconds / 60))]
        if any(time.hour in fields[2] and time.minute in fields[1] for time in times):
            what = "is left out" if change > timedelta(0) else "comes twice"
            found.append(f"on {start:%Y-%m-%d} a time of {cron!r} in {time_zone} {what}")
    return found
