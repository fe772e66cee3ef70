"""Messages that the server publishes later (ADR-51)."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Literal

from ..api.publish import PubAck, ttl_text
from ..api.schedules import schedule_headers
from ..headers import SCHEDULE_TTL, Headers, HeadersLike
from ..subjects import check_publish_subject
from .api_requests import APIRequests, require_level
from .stream import Stream


class ScheduleAPI:
    """The methods of `JetStream` for schedules."""

    _api: APIRequests

    if TYPE_CHECKING:

        def publish(self, *args: Any, **options: Any) -> PubAck: ...  # noqa: D102
        def find_stream_name_by_subject(self, subject: str) -> str: ...  # noqa: D102

        def get_stream(self, name: str) -> Stream:
            """Return an existing stream."""

    def schedule(
        self,
        subject: str,
        payload: bytes = b"",
        *,
        target: str,
        at: datetime | None = None,
        every: float | timedelta | None = None,
        cron: str | None = None,
        time_zone: str | None = None,
        source: str | None = None,
        ttl: float | timedelta | Literal["never"] | None = None,
        rollup: bool = False,
        headers: HeadersLike | None = None,
        msg_id: str | None = None,
        timeout: float | timedelta | None = None,
    ) -> PubAck:
        """
        Have the server publish a message later, or again and again (ADR-51).

        The schedule is a message of the stream, whose subject identifies it: another schedule with the
        subject replaces it, and `cancel_schedule()` ends it. Consumers with a filter that
        includes the subject receive it, too.

        Args:
            subject: the subject of the schedule.
            payload: the payload of the messages.
            target: the subject of the messages, another one of the same stream.
            at: the time of the only message, with a time zone; a time in the past is now. The schedule
                is then deleted.
            every: the interval between messages, in seconds, at least 1. Needs server 2.14.
            cron: six fields, the first one for seconds; five fields, as in a crontab, for the second 0; or
                a name such as ``@daily``. Needs server 2.14.
            time_zone: the time zone of ``cron``, such as ``Europe/Berlin``; ``None``: UTC.
            source: the subject whose last message is published instead of the payload; ``None``: the
                payload. Needs server 2.14.
            ttl: how long the stream keeps each message, as `PublishOptions.msg_ttl`; ``None``: the
                ``max_age`` of the stream.
            rollup: whether each message replaces the earlier ones of its subject. Needs server 2.14.
            headers: headers of the messages; ``None``: none.
            msg_id: the message id of the schedule; ``None``: none.
            timeout: as in `JetStream.publish`.

        Raises:
            InvalidOptionError: not exactly one of ``at``, ``every`` and ``cron`` is given, or one is invalid.
            ServerTooOldError: the server does not know the rule; nothing was sent.
            ScheduleError: the stream does not have ``allow_msg_schedules``, the target is not among its
                subjects, or the rule is invalid.
            Error: otherwise as `JetStream.publish`.

        """
        merged = Headers(headers or ())
        merged.update(schedule_headers(target, at, every, cron, time_zone, source, rollup))
        if ttl is not None:
            merged[SCHEDULE_TTL] = ttl_text(ttl)
        deadline = self._api.deadline(timeout)
        is_new = at is None or source is not None or rollup
        require_level(self._api, 4 if is_new else 2, "schedules", deadline)
        return self.publish(subject, payload, deadline.left(), headers=merged, msg_id=msg_id)

    def cancel_schedule(self, subject: str) -> bool:
        """
        Delete a schedule.

        Args:
            subject: the subject of the schedule.

        Returns:
            Whether there was one. ``False``: it has been published meanwhile, or was cancelled before.

        Raises:
            StreamNotFoundError: no stream has the subject.
            BadSubjectError: the subject is invalid.
            Error: otherwise as `Stream.purge`.

        """
        name = self.find_stream_name_by_subject(check_publish_subject(subject))
        return self.get_stream(name).purge(subject=subject) > 0
