"""The JetStream context of a connection."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from datetime import datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, BinaryIO, Final, Literal

from .. import errors
from ..api.account import AccountInfo
from ..api.publish import (
    DEFAULT_RETRIES,
    OPTION_LEVELS,
    PubAck,
    PublishOptions,
    Retries,
    given_options,
    option_headers,
    schedule_headers,
    ttl_text,
)
from ..api.stream import SnapshotInfo
from ..foreign_names import ForeignNames
from ..headers import (
    SCHEDULE,
    SCHEDULE_TTL,
    Headers,
    HeadersLike,
    check_headers,
    server_number,
)
from ..net.clock import Deadline, monotonic
from ..subjects import check_publish_subject
from .api_requests import APIRequests, stream_info, with_one_deadline
from .batches import BatchAPI
from .buckets.admin import BucketAdmin
from .counters import Counters
from .fast_publish import DEFAULT_FLOW, FastPublisher, GapCallback
from .partitioned.groups import ConsumerGroups
from .publish import PubAckFuture, Publisher
from .pull_subscription import PullSubscribeAPI
from .server_support import EchoCheck, require_level
from .snapshots import restore
from .stream import Stream
from .subscribe import PushSubscribeAPI

if TYPE_CHECKING:
    from typing_extensions import Unpack


#: Seconds after which the API level of a stream's leader is requested again.
_LEADER_CHECK_S: Final = 5.0
#: API level -> the first release with it.
_RELEASES: Final = {1: "2.11", 2: "2.12"}


class JetStream(ForeignNames, BatchAPI, BucketAdmin, PushSubscribeAPI, PullSubscribeAPI):
    """
    The JetStream API of one connection.

    Returned by `Connection.jetstream`. It need not be closed, and any number of threads may use it.
    Every call waits for the reply of the server. Names and configs are checked before a request is
    sent.
    """

    def __init__(self, api: APIRequests, publisher: Publisher) -> None:
        """Initialise; see `Connection.jetstream`."""
        self._api = api
        self._publisher = publisher
        # Stream -> time of the last request for the API level of its leader, and the level.
        self._leaders: dict[str, tuple[float, str]] = {}

    # --- the account ----------------------------------------------------------------------------

    def account_info(self) -> AccountInfo:
        """
        Return the JetStream usage and limits of the account.

        Raises:
            JetStreamNotEnabledError: there are no responders: JetStream is disabled on the server, or the
                domain or prefix does not exist.
            JetStreamNotEnabledForAccountError: JetStream is disabled for the account.
            APIError: the server returned an error; see its subclasses.
            TimeoutError: the server did not reply within the timeout of the context.
            ConnectionClosedError: the connection is closed.

        """
        return self._api.ask_for(AccountInfo, self._api.routes.to("INFO"))

    # --- messages -------------------------------------------------------------------------------

    def counters(self, stream: str) -> Counters:
        """
        Return the counters of a stream (ADR-49).

        Args:
            stream: the name of a stream with ``allow_msg_counter`` and ``allow_direct``; needs server 2.12.

        Raises:
            InvalidOptionError: the stream does not have both options.
            StreamNotFoundError: the stream does not exist.
            InvalidNameError: the name is invalid.
            Error: otherwise as `get_stream()`.

        """
        return Counters(self.get_stream(stream), self.publish)

    @property
    def consumer_groups(self) -> ConsumerGroups:
        """The partitioned consumer groups of the account; needs server 2.11."""
        return ConsumerGroups(self, self._api)

    def restore_stream(
        self,
        info: SnapshotInfo,
        data: BinaryIO | Iterable[bytes],
        timeout: float | timedelta | None = None,
        final_timeout: float | timedelta | None = 3600.0,
    ) -> Stream:
        """
        Restore a stream from a snapshot of `Stream.snapshot`.

        The restored messages keep their sequences, and the consumers their positions. If the restore fails,
        also with an error of ``data`` or a Ctrl-C, the partial stream is deleted, provided that a server can
        be reached within 10 seconds. A stream with all messages is kept if the reply to the last chunk was lost:
        another client may have restored it at the same time.

        Args:
            info: the info of the snapshot. Its config may be changed, for example the number of replicas,
                but not the name.
            data: a file, or an iterable of bytes of any size; it is not closed. A seekable file is read
                again if a stream with that name was just deleted and the server fails on its remains
                (seen with server 2.15).
            timeout: the timeout for the reply and then for each chunk, in
                seconds; ``None``: the timeout of the context.
            final_timeout: how long the server may take to create the stream after the last chunk, in
                seconds; ``None``: no limit.

        Raises:
            RestoreNameInUseError: a stream with that name exists.
            RestoreFailedError: the server cannot create a stream from the data.
            RestoreBrokenError: the server ended the restore; start again. It does so after 5 seconds
                without data.
            StreamSubjectOverlapError: another stream has one of the subjects.
            ServerTooOldError: the server does not support some of the fields of the config, which the
                error names; no stream is left.
            InvalidNameError: the name is invalid.
            ConnectionLostError: the connection was lost; start again.
            Error: otherwise as `account_info()`.

        """
        name = info.config.name
        check = EchoCheck(self._api, f"stream {name!r}", info.config)
        with check.request():
            restored = restore(self._api, info, data, timeout, final_timeout)
        check.verify(restored.config, partial(self.delete_stream, name))
        return Stream(self._api, restored)

    # --- publishing -----------------------------------------------------------------------------

    def publish(
        self,
        subject: str,
        payload: bytes = b"",
        timeout: float | timedelta | None = None,
        stream: str | None = None,
        headers: HeadersLike | None = None,
        msg_id: str | None = None,
        **options: Unpack[PublishOptions],
    ) -> PubAck:
        """
        Publish a message and wait until a stream has stored it.

        While no stream responds, for example during the election of a leader, the message is sent again
        (ADR-22), with the same message id and within the timeout.

        Args:
            subject: the subject, without wildcards.
            payload: the payload.
            timeout: how long to wait for the acknowledgement, in seconds; ``None``: the timeout of the
                context (see `Connection.jetstream`).
            stream: the name of the stream that must store it; ``None``: any stream with the subject.
            headers: names and values; ``None``: only those of the other arguments.
            msg_id: the message id for deduplication: within the stream's ``duplicate_window``, a second
                message with the same id is not stored; ``None``: no id.
            **options: see `PublishOptions`.

        Raises:
            NoStreamResponseError: no stream has the subject.
            WrongStreamError: a stream other than the expected one has the subject.
            WrongLastSequenceError, WrongLastMsgIDError: an expectation is not met.
            MessageTTLDisabledError: ``msg_ttl`` is given, and the stream does not allow it.
            ServerTooOldError: ``msg_ttl`` or ``expected_last_subject`` is given, and the server is
                older than 2.11, or ``cancels`` and it is older than 2.12: it would ignore the option, so
                nothing was sent. The version is requested once per connection to a server.
            APIError: the server returned an error; nothing was stored.
            TimeoutError: no acknowledgement arrived in time; the message may be stored nevertheless.
            BadSubjectError, InvalidHeaderError, InvalidOptionError, MaxPayloadError: the message is
                invalid, and nothing was sent.
            OutboundBufferLimitError: disconnected, and the buffer is full.
            ConnectionClosedError: the connection is closed, or was closed while waiting.

        """
        retries, given = DEFAULT_RETRIES, given_options(options, msg_id, stream)
        if options:
            option_headers(given)  # refuses invalid options before the server is asked
            retries, timeout = self._checked(options, timeout)
        ack = self._publisher.publish(subject, payload, headers, timeout, retries, stream, given)
        if options:
            self._check_leader(ack, options)
        return ack

    def publish_async(
        self,
        subject: str,
        payload: bytes = b"",
        timeout: float | timedelta | None = None,
        stream: str | None = None,
        headers: HeadersLike | None = None,
        msg_id: str | None = None,
        **options: Unpack[PublishOptions],
    ) -> PubAckFuture:
        """
        Publish a message, and return a future of its acknowledgement.

        If the maximum number of unacknowledged messages is reached, this waits for an acknowledgement, for up
        to ``timeout``. The future always completes, with the acknowledgement or with an error that
        `publish()` would raise while waiting. Its callbacks run on a thread of the client.

        Args:
            subject: the subject, without wildcards.
            payload: the payload.
            timeout: how long to wait for the acknowledgement, in seconds; ``None``: the timeout of the
                context.
            stream: as in `publish()`.
            headers: as in `publish()`.
            msg_id: as in `publish()`.
            **options: as in `publish()`.

        Raises:
            TooManyStalledMsgsError: the maximum number of messages was unacknowledged during the timeout,
                or ``publish_async_stall_wait``.
            ServerTooOldError: as `publish()`; the first message with a TTL after each connect waits for
                the reply of the server.
            BadSubjectError, InvalidHeaderError, InvalidOptionError, MaxPayloadError: the message is
                invalid, and nothing was sent.
            OutboundBufferLimitError: disconnected, and the buffer is full.
            ConnectionClosedError: the connection is closed.

        """
        if not options and msg_id is None and stream is None:
            return self._publisher.publish_async(subject, payload, headers, timeout)
        retries, given = DEFAULT_RETRIES, given_options(options, msg_id, stream)
        if options:
            option_headers(given)  # refuses invalid options before the server is asked
            retries, timeout = self._checked(options, timeout)
        return self._publisher.publish_async(
            subject, payload, headers, timeout, retries, stream, given
        )

    def fast_publish(
        self,
        gaps: Literal["fail", "ok"] = "fail",
        flow: int = DEFAULT_FLOW,
        outstanding: int = 2,
        gap_cb: GapCallback | None = None,
        timeout: float | timedelta | None = None,
    ) -> FastPublisher:
        """
        Start to publish many messages to one stream with few acknowledgements (ADR-50).

        The stream needs `StreamConfig.allow_batched`, and the server must be 2.14 or newer. Use the result in
        a ``with`` block, which commits at the end.

        Args:
            gaps: what happens when a message is lost on its way: ``"fail"``: the publish ends, and later
                messages are not stored; ``"ok"``: it continues.
            flow: maximum number of messages per acknowledgement; the server may choose less.
            outstanding: number of acknowledgements that may be missing before `FastPublisher.add` waits.
            gap_cb: called by `FastPublisher.add` and `FastPublisher.commit` with the numbers of lost
                messages, with ``gaps="ok"``; ``None``: they are only counted.
            timeout: how long to wait for the server, in seconds; ``None``: the timeout of the context.

        Raises:
            ServerTooOldError: the server is older than 2.14.
            InvalidOptionError: an option is invalid.
            ConnectionClosedError: the connection is closed.

        """
        return FastPublisher(self._api, gaps, flow, outstanding, gap_cb, timeout)

    # --- schedules ------------------------------------------------------------------------------

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
        includes the subject receive it, too. They could lose other unacknowledged messages when it is replaced, or
        published for the last time, see :ref:`purge-fault`: choose a subject that none of them receives.

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
            rollup: whether each message replaces the earlier ones of its subject, by which consumers could lose
                unacknowledged messages, see :ref:`purge-fault`. Needs server 2.14.
            headers: headers of the messages.
            msg_id: the message id of the schedule.
            timeout: as in `JetStream.publish`.

        Raises:
            InvalidOptionError: not exactly one of ``at``, ``every`` and ``cron`` is given, or one is invalid.
            ServerTooOldError: the server does not know the rule; nothing was sent.
            ScheduleError: the stream does not have ``allow_msg_schedules``, the target is not among its
                subjects, or the rule is invalid.
            Error: otherwise as `JetStream.publish`.

        """
        merged = Headers(check_headers(headers) if headers else ())
        merged.update(schedule_headers(target, at, every, cron, time_zone, source, rollup))
        if ttl is not None:
            merged[SCHEDULE_TTL] = ttl_text(ttl)
        deadline = self._api.deadline(timeout)
        is_new = at is None or source is not None or rollup
        require_level(self._api, 4 if is_new else 2, "a schedule", deadline)
        ack = self.publish(subject, payload, deadline.left(), headers=merged, msg_id=msg_id)
        self._check_leader(ack, {"a schedule": True}, deadline)
        return ack

    @with_one_deadline
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
            InvalidOptionError: the last message of the subject is not a schedule; nothing was deleted.
            Error: otherwise as `Stream.get_msg` and `Stream.delete_msg`.

        """
        subject = check_publish_subject(subject)
        name = self.find_stream_name_by_subject(subject)
        stream = self.get_stream(name)
        try:
            msg = stream.get_msg(last_by_subject=subject, consistent=True)
        except errors.MessageNotFoundError:
            return False
        if msg.headers is None or SCHEDULE not in msg.headers:
            rule = "its last message is not a schedule: give the subject of the schedule, not its target"
            raise errors.InvalidOptionError("subject", subject, rule)
        try:
            stream.delete_msg(msg.seq)
        except errors.MessageNotFoundError:
            return False
        return True

    # --- asynchronous publishing ----------------------------------------------------------------

    def _check_leader(
        self, ack: PubAck, options: Mapping[str, object], deadline: Deadline | None = None
    ) -> None:
        """Raise if the leader of a stream is too old for the options of a message that it has stored."""
        # In a rolling upgrade it may be older than the server that replied to `require_level`. Without the
        # permission for the request, the level of that server counts.
        for option, level in (*OPTION_LEVELS.items(), ("a schedule", 2)):
            if options.get(option) is None or not self._api.core.info.cluster:
                continue
            now, known = monotonic(), self._leaders.get(ack.stream)
            if known is None or now - known[0] > _LEADER_CHECK_S:
                known = now, ""
                with suppress(errors.APIError, errors.PermissionsError):
                    info = stream_info(self._api, ack.stream, deadline=deadline)
                    known = now, (info.config.metadata or {}).get("_nats.level", "0")
                self._leaders[ack.stream] = known
            known_level = server_number(known[1])
            if known_level is not None and known_level < level:
                outcome = f"it has stored message {ack.seq} without that option"
                raise errors.ServerTooOldError(
                    option,
                    _RELEASES[level],
                    f"the leader of {ack.stream!r}, which is older",
                    (),
                    outcome,
                )

    def _checked(
        self, options: PublishOptions, timeout: float | timedelta | None
    ) -> tuple[Retries, float | timedelta | None]:
        """Return the retries and the remaining timeout; raise if an older server would ignore an option."""
        retries = Retries.of(options)
        for option, level in OPTION_LEVELS.items():
            if options.get(option) is not None:
                deadline = self._api.deadline(timeout)
                require_level(self._api, level, option, deadline)
                return retries, deadline.left()
        return retries, timeout

    @property
    def publish_async_pending(self) -> int:
        """Number of messages of `publish_async()` without an acknowledgement."""
        return self._publisher.pending

    def publish_async_completed(self, timeout: float | timedelta | None = None) -> None:
        """
        Wait until every message of `publish_async()` is acknowledged or has failed.

        Args:
            timeout: in seconds; ``None``: no limit.

        Raises:
            TimeoutError: some messages are still unacknowledged.

        """
        self._publisher.completed(Deadline(timeout))
