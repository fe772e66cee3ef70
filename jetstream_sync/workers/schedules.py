"""
Schedules of a worker: messages that the server publishes at given times (ADR-51).

Rules:

1. The subject of a schedule is ``schedules.<stream>.<worker>.<name>``, in the stream of its messages.
2. A schedule is published at the start of a worker only if it differs from the stored one: to publish
   the same one again would begin its interval again. A header has the digests to compare.
3. A refresh stores again what is missing, or has another rule: an older version of the worker may have
   stored it. The payload does not count there, because it may differ between processes that refresh in
   turns.
4. A worker never deletes a schedule: during a rolling deploy, old and new processes have different ones.
   `delete_schedules` does it for a command.
5. A cron rule is checked when it is defined, as nats-server checks it: fields of numbers or names, ranges and
   steps. A month has its names in English; a week begins with Sunday, 0.
"""

from __future__ import annotations

import logging
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import date, datetime, timedelta, timezone
from functools import cache
from pathlib import PurePath
from typing import TYPE_CHECKING, Final, NamedTuple

from .. import KeyValueConfig, RetentionPolicy, errors
from ..exact import take_values
from ..net.clock import FOREVER, Deadline
from ..subjects import subject_matches
from .call_messages import schedule_subject
from .checks import check_option, check_time, is_number, short_digest, unwrapped
from .logs import log
from .openers import delete_on_subject
from .source import Source

if TYPE_CHECKING:
    from zoneinfo import ZoneInfo

    from .. import Headers, JetStream, Stream, StreamInfo

#: Interval at which stored schedules are checked, in seconds.
REFRESH_S: Final = 60.0
#: The header with the digests of a schedule; the messages have it, too.
_DIGEST: Final = "Worker-Schedule"
#: The header with the module that defines a schedule.
_MODULE: Final = "Worker-Schedule-Module"
#: Longest interval, in seconds.
_LONGEST_S: Final = 100 * 365 * 86_400.0
_TOKEN: Final = re.compile(r"[-\w]+")
#: Levels of the API from which the server knows ``@at``, and the other rules.
AT_LEVEL: Final = 2
_LEVEL: Final = 4
#: The bucket with the leases of calls that must not overlap, and how long the one of a process that has stopped is
#: kept, in seconds.
LEASE_S: Final = 30.0
LEASES: Final = KeyValueConfig(bucket="TASK_LEASES", ttl=timedelta(seconds=LEASE_S))
#: The names of cron rules, of months, and of days.
_NAMES: Final = ("@yearly", "@annually", "@monthly", "@weekly", "@daily", "@midnight", "@hourly")
_MONTHS: Final = (
    *("jan", "feb", "mar", "apr", "may", "jun"),
    *("jul", "aug", "sep", "oct", "nov", "dec"),
)
_DAYS: Final = ("sun", "mon", "tue", "wed", "thu", "fri", "sat")
#: Name, first and last value of the fields, and the names of their values.
_FIELDS: Final[tuple[tuple[str, int, int, tuple[str, ...]], ...]] = (
    ("second", 0, 59, ()),
    ("minute", 0, 59, ()),
    ("hour", 0, 23, ()),
    ("day of the month", 1, 31, ()),
    ("month", 1, 12, _MONTHS),
    ("day of the week", 0, 6, _DAYS),
)
_LONGEST_MONTHS: Final = (31, 29, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """A schedule of a worker, see `Worker.schedule`."""

    function: Callable[[], bytes] = field(repr=False)
    name: str
    subject: str
    cron: str | None = None
    every: float | timedelta | None = None
    at: datetime | None = None
    time_zone: str | None = None

    def __post_init__(self) -> None:
        """Check the options that do not need the server."""
        take_values(self)
        is_token = isinstance(self.name, str) and _TOKEN.fullmatch(self.name) is not None
        check_option("name", self.name, is_token, "must have letters, digits, '-' and '_'")
        given = [name for name in ("cron", "every", "at") if getattr(self, name) is not None]
        check_option("cron, every, at", given, len(given) == 1, "give exactly one of them")
        if self.cron is not None:
            check_cron(self.cron)
        if self.time_zone is not None:
            check_option("time_zone", self.time_zone, self.cron is not None, "needs 'cron'")
            check_zone(self.time_zone)
        if self.every is not None:
            seconds = self.every
            if isinstance(seconds, timedelta):
                seconds = seconds.total_seconds()
            ok = is_number(seconds) and 1 <= seconds <= _LONGEST_S
            rule = "must be a number of seconds from 1 to a hundred years"
            check_option("every", self.every, ok, rule)
        check_time("at", self.at)

    @property
    def level(self) -> int:
        """The level of the API that has the rule."""
        return _LEVEL if self.at is None else AT_LEVEL

    def clock_changes(self) -> list[str]:
        """Return what happens to the rule when the clock is changed, and what may not be meant by it."""
        if self.cron is None:
            return []
        return [*clock_changes(self.cron, self.time_zone), *either_day(self.cron)]

    @property
    def rule_digest(self) -> str:
        """A text that differs between schedules with different rules."""
        rule: tuple[object, ...] = (self.subject, self.cron, self.every, self.at, self.time_zone)
        return short_digest(repr(rule).encode())

    def digest(self, payload: bytes) -> str:
        """Return the digest of the rule and, after a hyphen, that of the payload."""
        return f"{self.rule_digest}-{short_digest(payload)}"

    @property
    def module(self) -> str:
        """The module that defines the schedule."""
        return module_of(unwrapped(self.function).__module__)


def module_of(name: str) -> str:
    """Return the name of a module; for a script, that of its file."""
    if name != "__main__":
        return name
    main = sys.modules[name]
    spec = getattr(main, "__spec__", None)
    return PurePath(getattr(main, "__file__", name)).name if spec is None else str(spec.name)


def _subject(stream: str, worker: str, name: str = "*") -> str:
    rule = "must have letters, digits, '-' and '_' for a worker with schedules"
    check_option("name", worker, _TOKEN.fullmatch(worker) is not None, rule)
    return schedule_subject(stream, f"{worker}.{name}")


class Schedules:
    """The schedules of a running worker."""

    def __init__(
        self, js: JetStream, worker: str, schedules: Sequence[Schedule], sources: Sequence[Source]
    ) -> None:
        self._js = js
        self._worker = worker
        self._schedules = schedules
        self._sources = sources
        self._stored: list[_StoredSchedule] = []
        self._streams: list[Stream] = []
        self._refresh_at = FOREVER
        # What could not be checked at the last refresh, which is logged once.
        self._failed: set[str] = set()

    def store(self) -> None:
        """Store the schedules that are missing or differ; `refresh` does it again."""
        found = check_schedules(self._js, self._worker, self._schedules, self._sources)
        self._streams = [*{stream.name: stream for _, stream in found}.values()]
        digests: dict[str, str | None] = {}
        for stream in self._streams:
            digests |= _stored_digests(stream, _subject(stream.name, self._worker))
        self._stored = [
            _StoredSchedule(
                self._js, schedule, stream, _subject(stream.name, self._worker, schedule.name)
            )
            for schedule, stream in found
        ]
        for item in self._stored:
            item.store(digests)
        self._refresh_at = Deadline(REFRESH_S)

    def refresh(self) -> None:
        """Store again, once a minute, what is missing or has another rule; log errors."""
        if not self._refresh_at.expired():
            return
        self._refresh_at = Deadline(REFRESH_S)
        digests: dict[str, str | None] = {}
        with suppress(
            errors.TimeoutError
        ):  # the worker must see a signal; the next refresh is soon
            for stream in self._streams:
                with self._logged(f"schedules of stream {stream.name}"):
                    digests |= _stored_digests(stream, _subject(stream.name, self._worker))
            for item in self._stored:
                with self._logged(f"schedule {item.schedule.name}"):
                    item.store(digests, is_again=True)

    @contextmanager
    def _logged(self, what: str) -> Iterator[None]:
        """Log an error; raise a timeout again."""
        try:
            yield
            self._failed.discard(what)
        except errors.Error as error:
            level = logging.DEBUG if what in self._failed else logging.ERROR
            self._failed.add(what)
            log.log(level, "%s cannot be checked: %s", what, error)
            if isinstance(error, errors.TimeoutError):
                raise


class _StoredSchedule:
    """A schedule with its payload at the start of the worker, and the place where it is stored."""

    def __init__(self, js: JetStream, schedule: Schedule, stream: Stream, subject: str) -> None:
        self.schedule = schedule
        self._js = js
        self._stream = stream
        self._subject = subject
        self._payload = schedule.function()
        self._digest = schedule.digest(self._payload)

    def store(self, digests: Mapping[str, str | None], *, is_again: bool = False) -> None:
        """
        Store the schedule if it is missing or differs from the stored one, whose digest is given by its subject.

        ``is_again``: only if it is missing or has another rule; it was stored before.
        """
        same: Callable[[str], str] = _rule if is_again else str
        wanted = same(self._digest)
        if same(digests.get(self._subject) or "") == wanted:
            return
        # It was not read, or by a replica that is behind.
        found = _stored_digest(self._stream, self._subject)
        if found is not None and same(found) == wanted:
            return
        # The server may have published and deleted a single message already, also since the start of the worker.
        margin = timedelta(seconds=REFRESH_S if is_again else 0)
        if self.schedule.at is not None and self._is_over(self._stream.info(), margin):
            return
        self._publish()
        if not is_again:
            log.info("schedule %s is stored in stream %s", self.schedule.name, self._stream.name)
            return
        what = "missing" if found is None else "replaced by one with another rule"
        text = "schedule %s was %s: it is stored again in stream %s"
        log.warning(text, self.schedule.name, what, self._stream.name)

    def _is_over(self, info: StreamInfo, margin: timedelta) -> bool:
        """Return whether the time of a single message has come, by the clock of the server, which publishes it."""
        at, now = self.schedule.at, info.ts or datetime.now(timezone.utc)
        return at is not None and at <= now + margin

    def _publish(self) -> None:
        schedule = self.schedule
        self._js.schedule(
            self._subject,
            self._payload,
            target=schedule.subject,
            at=schedule.at,
            every=schedule.every,
            cron=schedule.cron,
            time_zone=schedule.time_zone,
            headers={_DIGEST: self._digest, _MODULE: schedule.module},
        )


def _stored_digests(stream: Stream, subjects: str) -> dict[str, str | None]:
    """Return the digests of stored schedules by their subjects; a replica may answer. ``None``: it was not read."""
    found: dict[str, str | None] = dict.fromkeys(
        stream.info(subjects_filter=subjects).state.subjects or ()
    )
    if found and stream.cached_info.config.allow_direct:
        for message in stream.get_last_msgs(subjects):
            found[message.subject] = _digest_in(message.headers)
    return found


def _digest_in(headers: Headers | None) -> str:
    """Return the digests in the headers of a schedule; empty: it has none."""
    return "" if headers is None or _MODULE not in headers else headers.get(_DIGEST) or ""


def _stored_digest(stream: Stream, subject: str) -> str | None:
    """Return the digests of a stored schedule, if any; empty: it has no digests."""
    try:
        headers = stream.get_msg(last_by_subject=subject, consistent=True).headers
    except errors.MessageNotFoundError:
        return None
    return _digest_in(headers)


def _rule(digest: str) -> str:
    return digest.partition("-")[0]


@dataclass(frozen=True, kw_only=True)
class ScheduleState:
    """A schedule that a worker defines, or that is stored under its name; see `Worker.find_schedules`."""

    name: str
    """The name of the schedule."""
    stream: str
    """The stream of its messages."""
    subject: str
    """The subject under which it is stored."""
    state: str
    """
    ``"stored"``: as the worker defines it; ``"differs"``: it has another rule; ``"missing"``: it is not
    stored; ``"unused"``: the worker does not define it; ``"foreign"``: neither, and a module defined it
    that has no handler and no schedule of the worker.
    """


def find_schedules(
    js: JetStream, worker: str, schedules: Sequence[Schedule], sources: Iterable[Source]
) -> list[ScheduleState]:
    """Return the schedules of a worker, and those that are stored under its name."""
    sources = list(sources)
    states = {}
    for schedule in schedules:
        stream_name = js.find_stream_name_by_subject(schedule.subject)
        subject = _subject(stream_name, worker, schedule.name)
        found = _stored_digest(js.get_stream(stream_name), subject)
        state = "stored" if found and _rule(found) == schedule.rule_digest else "differs"
        states[subject] = ScheduleState(
            name=schedule.name,
            stream=stream_name,
            subject=subject,
            state="missing" if found is None else state,
        )
    modules = {schedule.module for schedule in schedules} | {
        module_of(module)
        for source in sources
        for work in source.works
        for module in (work.module, unwrapped(work.function).__module__)
    }
    streams = {
        *(state.stream for state in states.values()),
        *(source.stream for source in sources),
    }
    for name in sorted(streams):
        stream = js.get_stream(name)
        for subject in stream.info(subjects_filter=_subject(name, worker)).state.subjects or ():
            if subject not in states:
                states[subject] = ScheduleState(
                    name=subject.rpartition(".")[2],
                    stream=name,
                    subject=subject,
                    state=_unused_state(stream, subject, modules),
                )
    return list(states.values())


def _unused_state(stream: Stream, subject: str, modules: set[str]) -> str:
    """Return ``"foreign"`` for a schedule of another program with a worker of the same name."""
    headers = None
    with suppress(errors.MessageNotFoundError):
        headers = stream.get_msg(last_by_subject=subject, consistent=True).headers
    module = None if headers is None else headers.get(_MODULE)
    return "unused" if module is None or module in modules else "foreign"


def delete_schedules(js: JetStream, schedules: Iterable[ScheduleState]) -> None:
    """Delete stored schedules; raise `Error` if the server refuses."""
    for schedule in schedules:
        delete_on_subject(js.get_stream(schedule.stream), schedule.subject)


def check_schedules(
    js: JetStream, worker: str, schedules: Sequence[Schedule], sources: Iterable[Source]
) -> list[tuple[Schedule, Stream]]:
    """Check that the server and the streams fit the schedules; return them with the streams."""
    found: list[tuple[Schedule, Stream]] = []
    streams: dict[str, Stream] = {}
    filters: dict[str, list[_Filters]] = {}
    sources = list(sources)
    for level in {schedule.level for schedule in schedules}:
        require_level(js, level)
    for schedule in schedules:
        stream = next((item for item in streams.values() if _stores(item, schedule.subject)), None)
        if stream is None:
            name = js.find_stream_name_by_subject(schedule.subject)
            stream = streams[name] = js.get_stream(name)
            filters[name] = list(filters_in(js, name, sources))
        subject = _subject(stream.name, worker, schedule.name)
        check_place(stream, subject, filters[stream.name])
        found.append((schedule, stream))
    return found


def _stores(stream: Stream, subject: str) -> bool:
    return any(subject_matches(item, subject) for item in stream.cached_info.config.subjects or ())


def require_level(js: JetStream, level: int) -> None:
    """Raise `ServerTooOldError` if the API of the server does not have the level."""
    known = js.account_info().api.level or 0
    if known < level:
        needs = "2.14" if level == _LEVEL else "2.12"
        raise errors.ServerTooOldError("schedules", needs, f"one at API level {known}")


#: The name of a consumer, and its filters.
_Filters = tuple[str, Sequence[str]]


def filters_in(js: JetStream, stream: str, sources: Iterable[Source]) -> Iterator[_Filters]:
    """Yield the consumers of the handlers of a stream with their filters."""
    for source in sources:
        if source.stream != stream or source.group is not None:
            continue
        filters: Sequence[str] = source.filter_subjects
        with suppress(errors.ConsumerNotFoundError):
            filters = filters or sorted(js.consumer_info(stream, source.consumer).config.filters)
        yield source.consumer, filters


def check_place(stream: Stream, subject: str, consumers: Iterable[_Filters]) -> None:
    """Check that a stream can have a schedule with this subject, and that no consumer receives it."""
    config, name = stream.cached_info.config, stream.name
    area = f"{subject.partition('.')[0]}.{name}.>"
    allows = config.allow_msg_schedules
    check_option("allow_msg_schedules", allows, bool(allows), f"stream {name} must have it")
    ok = config.retention != RetentionPolicy.INTEREST
    rule = f"stream {name} would drop schedules, which no consumer receives"
    check_option("retention", str(config.retention), ok, rule)
    rule = f"stream {name} must have the subject {area!r} for schedules"
    check_option("subjects", config.subjects, _stores(stream, subject), rule)
    for consumer, filters in consumers:
        ok = bool(filters) and not any(subject_matches(item, subject) for item in filters)
        rule = f"consumer {name}/{consumer} would receive schedules: exclude {area!r}"
        check_option("filter_subjects", list(filters), ok, rule)


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
    for (name, first, last, names), text in zip(_FIELDS, parts, strict=True):
        try:
            fields.append(_values(text, first, last, names))
        except ValueError:
            rule = f"the field {text!r} for the {name} must have values from {first} to {last}"
            raise errors.InvalidOptionError("cron", cron, rule) from None
    days, months = fields[3], fields[4]
    if parts[5] in {"*", "?"} and not any(
        min(days) <= _LONGEST_MONTHS[month - 1] for month in months
    ):
        raise errors.InvalidOptionError("cron", cron, f"no such month has a day {min(days)}")
    return fields


def _values(text: str, first: int, last: int, names: Sequence[str]) -> set[int]:
    found: set[int] = set()
    for part in filter(None, text.split(",")):
        span, slash, step = part.partition("/")
        begin, dash, end = span.partition("-")
        if begin in {"*", "?"}:
            low, high = first, last
        else:
            low = _number(begin, first, names)
            high = _number(end, first, names) if dash else (last if slash else low)
        width = int(step) if slash and step.isdigit() else 1
        if (slash and not step.isdigit()) or width < 1 or not first <= low <= high <= last:
            raise ValueError(part)
        found.update(range(low, high + 1, width))
    if not found:
        raise ValueError(text)
    return found


def _number(text: str, first: int, names: Sequence[str]) -> int:
    if text.lower() in names:
        return names.index(text.lower()) + first
    if not text.isascii() or not text.isdigit():
        raise ValueError(text)
    return int(text)


def check_zone(name: object) -> ZoneInfo | None:
    """Return a time zone, ``None`` if this system knows none; raise `InvalidOptionError` for an unknown one."""
    from zoneinfo import ZoneInfo, available_timezones  # noqa: PLC0415 - for schedules only

    try:
        if isinstance(name, str) and name:
            return ZoneInfo(name)
    except (KeyError, ValueError, OSError):
        if not available_timezones():
            return None  # the server has its own
    rule = "must be the name of a time zone, such as 'Europe/Berlin'"
    raise errors.InvalidOptionError("time_zone", name, rule)


class _Transition(NamedTuple):
    """A change of the clock: the local times that are left out, or that come twice."""

    start: datetime
    end: datetime
    is_gap: bool


@cache
def _transitions(zone: ZoneInfo, today: date) -> list[_Transition]:
    """Return the changes of the clock within a year."""
    found = []
    first = datetime(today.year, today.month, today.day, tzinfo=timezone.utc)

    def offset(at: datetime) -> timedelta:
        return at.astimezone(zone).utcoffset() or timedelta()

    for days in range(366):
        low, high = (first + timedelta(days=days + item) for item in (0, 1))
        before, after = offset(low), offset(high)
        if before == after:
            continue
        while high - low > timedelta(seconds=1):
            middle = (low + (high - low) / 2).replace(microsecond=0)
            low, high = (middle, high) if offset(middle) == before else (low, middle)
        start, end = sorted(high.replace(tzinfo=None) + item for item in (before, after))
        found.append(_Transition(start, end, after > before))
    return found


def _has_time(fields: Sequence[set[int]], start: datetime, end: datetime) -> bool:
    """Return whether a rule has a time between two local ones, apart from seconds."""
    _, minutes, hours, days, months, weekdays = fields
    is_either = len(days) < _FIELDS[3][2] and len(weekdays) < len(_DAYS)
    for number in range(int((end - start).total_seconds() // 60)):
        at = start + timedelta(minutes=number)
        fits = at.day in days, at.isoweekday() % 7 in weekdays
        is_day = any(fits) if is_either else all(fits)
        if is_day and at.month in months and at.hour in hours and at.minute in minutes:
            return True
    return False


def clock_changes(cron: str, time_zone: str | None) -> list[str]:
    """Return what happens to a rule when the clock is changed within a year, as sentences."""
    fields = check_cron(cron)
    if time_zone is None or not fields or len(fields[2]) == _FIELDS[2][2] + 1:
        return []
    zone = check_zone(time_zone)
    if zone is None:
        return []
    return [
        f"on {item.start:%Y-%m-%d} a time of {cron!r} in {time_zone} "
        + ("is left out" if item.is_gap else "comes twice")
        for item in _transitions(zone, datetime.now(timezone.utc).date())
        if _has_time(fields, item.start, item.end)
    ]


def either_day(cron: str) -> list[str]:
    """Return a sentence if a rule names days of the month and of the week, which the server takes as "or"."""
    fields = check_cron(cron)
    if not fields or len(fields[3]) == _FIELDS[3][2] or len(fields[5]) == len(_DAYS):
        return []
    text = "is due on each of its days of the month, and on each of its days of the week as well"
    return [f"{cron!r} {text}: leave one of them '*', and check the other in the function"]
