"""The headers of a message schedule (ADR-51)."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Final, NamedTuple

from .. import errors
from ..durations import check_time, duration, duration_to_ns, time_to_text
from ..headers import (
    SCHEDULE,
    SCHEDULE_ROLLUP,
    SCHEDULE_SOURCE,
    SCHEDULE_TARGET,
    SCHEDULE_TIME_ZONE,
    SCHEDULE_TTL,
    Headers,
)
from ..subjects import check_publish_subject

_SECOND: Final = 1_000_000_000
#: Fields of a cron expression; the first of six is for seconds.
_CRON_FIELDS: Final = 6


class Schedule(NamedTuple):
    """A schedule that a stream holds."""

    subject: str
    """Its subject, which identifies it."""

    rule: str
    """When messages are published: ``@at`` and a time, ``@every`` and a duration, or a cron expression."""

    target: str
    """The subject of the messages."""

    time_zone: str | None
    """The time zone of a cron expression; ``None``: UTC."""

    source: str | None
    """The subject whose last message is published; ``None``: the payload."""

    ttl: str | None
    """The time to live of the messages, as the server stores it; ``None``: that of the stream."""

    rollup: bool
    """Whether each message replaces the earlier ones of its subject."""

    payload: bytes
    """The payload of the messages."""

    headers: Headers
    """All headers of the schedule."""

    seq: int
    """Its sequence in the stream."""

    created: datetime
    """When it was stored, in UTC."""

    @classmethod
    def of(
        cls, subject: str, payload: bytes, headers: Headers, seq: int, created: datetime
    ) -> Schedule:
        """Return the schedule in a stored message."""
        get = headers.get
        return cls(
            subject,
            get(SCHEDULE, ""),
            get(SCHEDULE_TARGET, ""),
            get(SCHEDULE_TIME_ZONE),
            get(SCHEDULE_SOURCE),
            get(SCHEDULE_TTL),
            get(SCHEDULE_ROLLUP) == "sub",
            payload,
            headers,
            seq,
            created,
        )


def schedule_headers(
    target: str,
    at: datetime | None,
    every: float | timedelta | None,
    cron: str | None,
    time_zone: str | None,
    source: str | None = None,
    rollup: bool = False,
) -> dict[str, str]:
    """Return the headers of a schedule; see `JetStream.schedule` for the arguments."""
    rules = {"at": at, "every": every, "cron": cron}
    given = [name for name, value in rules.items() if value is not None]
    if len(given) != 1:
        raise errors.InvalidOptionError("at, every, cron", given, "give exactly one of them")
    headers = {SCHEDULE_TARGET: check_publish_subject(target)}
    if time_zone is not None:
        if cron is None:
            raise errors.InvalidOptionError("time_zone", time_zone, "needs 'cron'")
        headers[SCHEDULE_TIME_ZONE] = time_zone
    if source is not None:
        headers[SCHEDULE_SOURCE] = check_publish_subject(source)
    if rollup:
        headers[SCHEDULE_ROLLUP] = "sub"
    if at is not None:
        headers[SCHEDULE] = f"@at {time_to_text(check_time(at, 'at'))}"
    elif every is not None:
        headers[SCHEDULE] = _every(every)
    elif cron is not None:
        headers[SCHEDULE] = _cron(cron)
    return headers


def _every(value: float | timedelta) -> str:
    ns = duration_to_ns(duration(value, "every"))
    if ns < _SECOND:
        raise errors.InvalidOptionError("every", value, "must be at least one second")
    return f"@every {ns}ns" if ns % _SECOND else f"@every {ns // _SECOND}s"


def _cron(value: str) -> str:
    # Names such as @daily, but not the prefixes of the other rules.
    fields = value.split() if isinstance(value, str) else []
    if len(fields) == _CRON_FIELDS - 1:
        fields = ["0", *fields]  # as in a crontab, at the second 0
    elif len(fields) != _CRON_FIELDS and not (len(fields) == 1 and fields[0].startswith("@")):
        rule = (
            "must have six fields, the first one for seconds, five fields as in a crontab, or be a name "
            "such as '@daily'"
        )
        raise errors.InvalidOptionError("cron", value, rule)
    return " ".join(fields)
