"""
Schedules of a worker: messages that the server publishes at given times (ADR-51).

Rules:

1. The subject of a schedule is ``schedules.<stream>.<worker>.<name>``, in the stream of its messages.
2. A schedule is published at the start of a worker only if it differs from the stored one: to publish
   the same one again would begin its interval again. A header has the digest to compare.
3. Schedules of the worker that its code no longer has are deleted, from the streams of its handlers and
   of its other schedules. Another program may have a worker of the same name: a schedule is deleted only
   if its header names a module that this worker has, or none.
"""

from __future__ import annotations

import hashlib
import logging
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from pathlib import PurePath
from typing import TYPE_CHECKING, Final

from .. import (
    ConsumerNotFoundError,
    InvalidOptionError,
    MessageNotFoundError,
    RetentionPolicy,
    ServerTooOldError,
)
from .handler import Handler

if TYPE_CHECKING:
    from .. import JetStream, Stream, StreamConfig

__all__ = [
    "AT_LEVEL",
    "Schedule",
    "apply_schedules",
    "check_schedules",
    "check_scheduling",
    "matches",
    "require_level",
]

log: logging.Logger = logging.getLogger("jetstream_sync.worker")

#: The header with the digest of a schedule; the messages have it, too.
_DIGEST: Final = "Worker-Schedule"
#: The header with the module that defines a schedule.
_MODULE: Final = "Worker-Schedule-Module"
_TOKEN: Final = re.compile(r"[-\w]+")
#: Levels of the API from which the server knows ``@at``, and the other rules.
AT_LEVEL: Final = 2
_LEVEL: Final = 4


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
        if not _TOKEN.fullmatch(self.name):
            raise InvalidOptionError("name", self.name, "must have letters, digits, '-' and '_'")
        given = [each for each in ("cron", "every", "at") if getattr(self, each) is not None]
        if len(given) != 1:
            raise InvalidOptionError("cron, every, at", given, "give exactly one of them")
        if self.at is not None and self.at.utcoffset() is None:
            raise InvalidOptionError("at", self.at, "must have a time zone")

    @property
    def level(self) -> int:
        """The level of the API that has the rule."""
        return _LEVEL if self.at is None else AT_LEVEL

    def digest(self, payload: bytes) -> str:
        """Return a text that differs between schedules with different rules or payloads."""
        rule = (self.subject, self.cron, self.every, self.at, self.time_zone, payload)
        return hashlib.sha256(repr(rule).encode()).hexdigest()[:16]

    @property
    def module(self) -> str:
        """The module that defines the schedule."""
        return _module(self.function.__module__)


def _module(name: str) -> str:
    """Return the name of a module; for a script, that of its file."""
    if name != "__main__":
        return name
    main = sys.modules[name]
    spec = getattr(main, "__spec__", None)
    return PurePath(getattr(main, "__file__", name)).name if spec is None else str(spec.name)


def _prefix(stream: str, worker: str) -> str:
    if not _TOKEN.fullmatch(worker):
        rule = "must have letters, digits, '-' and '_' for a worker with schedules"
        raise InvalidOptionError("name", worker, rule)
    return f"schedules.{stream}.{worker}"


def apply_schedules(
    js: JetStream, worker: str, schedules: Sequence[Schedule], handlers: Iterable[Handler]
) -> None:
    """
    Store the schedules, and delete those that the worker no longer has.

    Args:
        js: the JetStream context.
        worker: the name of the worker.
        schedules: the schedules.
        handlers: the handlers, whose consumers must not receive the schedules.

    Raises:
        ServerTooOldError: the server does not know a rule.
        StreamNotFoundError: no stream has the subject of a schedule.
        InvalidOptionError: the stream, or the consumer of a handler, does not fit.
        Error: the server refused.

    """
    defined = {}
    for schedule, stream in check_schedules(js, worker, schedules, handlers):
        subject = f"{_prefix(stream, worker)}.{schedule.name}"
        defined[subject] = stream
        _store(js, schedule, stream, subject)
    modules = {each.module for each in schedules} | {_module(each.module) for each in handlers}
    for stream in {*defined.values(), *(each.stream for each in handlers)}:
        found = js.get_stream(stream)
        if not found.cached_info.config.allow_msg_schedules:
            continue
        filters = f"schedules.{stream}.{worker}.*"
        for subject in found.info(subjects_filter=filters).state.subjects or ():
            if subject not in defined:
                _delete(found, worker, subject, modules)


def _delete(stream: Stream, worker: str, subject: str, modules: set[str]) -> None:
    """Delete a schedule that the worker does not have, unless it is of another program."""
    try:
        headers = stream.get_msg(last_by_subject=subject).headers
    except MessageNotFoundError:
        return
    module = None if headers is None else headers.get(_MODULE)
    if module is None or module in modules:
        log.info("worker %r: schedule %s is deleted", worker, subject)
        stream.purge(subject=subject)
    else:
        text = "worker %r: schedule %s is of module %s, which this worker does not have; it is kept"
        log.warning(text, worker, subject, module)


def _store(js: JetStream, schedule: Schedule, stream: str, subject: str) -> None:
    payload = schedule.function()
    digest = schedule.digest(payload)
    try:
        stored = js.get_stream(stream).get_msg(last_by_subject=subject)
    except MessageNotFoundError:
        if schedule.at is not None and schedule.at <= datetime.now(timezone.utc):
            log.info("schedule %s is over: it is due at %s", schedule.name, schedule.at)
            return
    else:
        headers = stored.headers
        if headers is not None and headers.get(_DIGEST) == digest and _MODULE in headers:
            return
    js.schedule(
        subject,
        payload,
        target=schedule.subject,
        at=schedule.at,
        every=schedule.every,
        cron=schedule.cron,
        time_zone=schedule.time_zone,
        headers={_DIGEST: digest, _MODULE: schedule.module},
    )
    log.info("schedule %s is stored in stream %s", schedule.name, stream)


def check_schedules(
    js: JetStream, worker: str, schedules: Sequence[Schedule], handlers: Iterable[Handler]
) -> list[tuple[Schedule, str]]:
    """
    Check that the server and the streams fit the schedules; return them with the names of the streams.

    Raises:
        Error: as `apply_schedules`.

    """
    found = []
    for schedule in schedules:
        require_level(js, schedule.level)
        stream = js.find_stream_name_by_subject(schedule.subject)
        check_scheduling(js, stream, f"{_prefix(stream, worker)}.{schedule.name}", handlers)
        found.append((schedule, stream))
    return found


def require_level(js: JetStream, level: int) -> None:
    """Raise `ServerTooOldError` if the API of the server does not have the level."""
    known = js.account_info().api.level or 0
    if known < level:
        needs = "2.14" if level == _LEVEL else "2.12"
        raise ServerTooOldError("schedules", needs, f"one at API level {known}")


def check_scheduling(js: JetStream, stream: str, subject: str, handlers: Iterable[Handler]) -> None:
    """
    Check that a stream can have a schedule with this subject, and that no handler receives it.

    Raises:
        InvalidOptionError: it cannot, or a consumer has no filter, or one that includes it.
        Error: the server refused.

    """
    config: StreamConfig = js.get_stream(stream).cached_info.config
    area = f"{subject.partition('.')[0]}.{stream}.>"
    if not config.allow_msg_schedules:
        raise InvalidOptionError(
            "allow_msg_schedules", config.allow_msg_schedules, f"stream {stream} must have it"
        )
    if config.retention == RetentionPolicy.INTEREST:
        rule = f"stream {stream} would drop schedules, which no consumer receives"
        raise InvalidOptionError("retention", str(config.retention), rule)
    if not any(matches(each, subject) for each in config.subjects or ()):
        rule = f"stream {stream} must have the subject {area!r} for schedules"
        raise InvalidOptionError("subjects", config.subjects, rule)
    for handler in handlers:
        if handler.stream != stream:
            continue
        filters: Sequence[str] = handler.filter_subjects
        try:
            consumer = js.consumer_info(stream, handler.consumer).config
        except ConsumerNotFoundError:
            pass
        else:
            one = [consumer.filter_subject] if consumer.filter_subject else []
            filters = filters or consumer.filter_subjects or one
        if not filters or any(matches(each, subject) for each in filters):
            rule = f"consumer {stream}/{handler.consumer} would receive schedules: exclude {area!r}"
            raise InvalidOptionError("filter_subjects", list(filters), rule)


def matches(pattern: str, subject: str) -> bool:
    """Return whether a subject matches a pattern, token by token."""
    tokens, wanted = subject.split("."), pattern.split(".")
    if wanted[-1] == ">":
        wanted = wanted[:-1]
        if len(tokens) <= len(wanted):
            return False
        tokens = tokens[: len(wanted)]
    return len(tokens) == len(wanted) and all(
        each in ("*", token) for each, token in zip(wanted, tokens, strict=True)
    )
