"""A stream, with its messages and consumers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

from .. import errors
from ..api.consumer import ConsumerConfig, ConsumerInfo, ConsumerPause, ConsumerReset
from ..api.publish import LAST_SEQUENCE, Schedule
from ..api.stream import MsgGetRequest, SnapshotRequest, StreamInfo
from ..durations import check_message_time, check_time, time_to_text
from ..foreign_names import ForeignNames
from ..headers import SCHEDULE
from ..options import check_int
from ..records import shows_fields
from ..subjects import check_consumer_name, check_subject
from . import consumer_requests
from .api_requests import APIRequests, resolve_config, stream_info, with_one_deadline
from .consumer_requests import CREATE, CREATE_OR_UPDATE, UPDATE, add_consumer, consumer_info
from .direct_get import (
    MAX_BYTES,
    StoredMsg,
    direct_get_many,
    get_stored,
    leader_get,
)
from .last_msgs import decoded, direct_last_msgs, leader_last_msgs, proven_last_msgs
from .listing import Listing
from .ordered import OrderedConsumer
from .ordered_cursor import OrderedOptions
from .pull_consumer import PullConsumer
from .server_support import require_level
from .snapshots import StreamSnapshot, take_snapshot

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from ..api.config_fields import ConsumerConfigFields

#: Maximum number of messages per request.
_MAX_BATCH: Final = 10_000


class StreamConsumers:
    """The methods of `Stream` for its consumers."""

    def __init__(self, api: APIRequests, name: str) -> None:
        self._api = api
        self._name = name

    @shows_fields((ConsumerConfig, ()))
    def create_consumer(
        self,
        config: ConsumerConfig | None = None,
        *,
        pedantic: bool = False,
        **fields: Unpack[ConsumerConfigFields],
    ) -> PullConsumer:
        """
        Create a pull consumer.

        An existing consumer with the same config is returned unchanged. Without ``durable_name`` the
        consumer is ephemeral; without any name it gets a random one.

        Args:
            config: the config; or
            **fields: the fields of a `ConsumerConfig`, by name.
            pedantic: whether the server rejects a config with `BadRequestError` instead of silently
                completing or correcting it; needs server 2.11.

        Raises:
            ConsumerExistsError: the consumer exists with a different config.
            InvalidOptionError: config and fields are both given, a value is invalid, or
                ``deliver_subject`` is set.
            InvalidNameError, BadSubjectError: a name or subject is invalid.
            ServerTooOldError: the server does not support ``pedantic``, and nothing was sent; or it
                does not support some of the fields. The error names them. A consumer that this call
                created is deleted; an existing one is unchanged, and after an update the error states
                what was changed.
            StreamNotFoundError: the stream does not exist.
            MaxConsumersError: the stream or the account has reached its limit of consumers.
            Error: otherwise as `info()`.

        """
        return self._add_pull(config, fields, CREATE, pedantic)

    def update_consumer(
        self,
        config: ConsumerConfig | None = None,
        *,
        pedantic: bool = False,
        **fields: Unpack[ConsumerConfigFields],
    ) -> PullConsumer:
        """
        Update an existing consumer.

        The config replaces the current one. Take that from `ConsumerInfo.config` and change it with
        `dataclasses.replace`. Existing `PullConsumer` objects stay valid.

        Args:
            config: the new config, with the consumer's name; or
            **fields: the fields of a `ConsumerConfig`, by name.
            pedantic: whether the server rejects a config with `BadRequestError` instead of silently
                completing or correcting it; needs server 2.11.

        Raises:
            ConsumerDoesNotExistError: there is no consumer with that name.
            InvalidOptionError: the config has no name; or as `create_consumer()`.
            APIError: the server returned an error; many fields cannot be changed.
            Error: otherwise as `create_consumer()`.

        """
        return self._add_pull(config, fields, UPDATE, pedantic)

    def create_or_update_consumer(
        self,
        config: ConsumerConfig | None = None,
        *,
        pedantic: bool = False,
        **fields: Unpack[ConsumerConfigFields],
    ) -> PullConsumer:
        """
        Create a pull consumer, or update the one with that name.

        Args:
            config: the config; or
            **fields: the fields of a `ConsumerConfig`, by name.
            pedantic: whether the server rejects a config with `BadRequestError` instead of silently
                completing or correcting it; needs server 2.11.

        Raises:
            APIError: the server returned an error; many fields cannot be changed.
            Error: otherwise as `create_consumer()`.

        """
        return self._add_pull(config, fields, CREATE_OR_UPDATE, pedantic)

    def create_push_consumer(
        self,
        config: ConsumerConfig | None = None,
        *,
        pedantic: bool = False,
        **fields: Unpack[ConsumerConfigFields],
    ) -> ConsumerInfo:
        """
        Create a push consumer, which delivers to a subject.

        An existing consumer with the same config is returned unchanged. Receive its messages with
        `JetStream.subscribe_bind`. Without ``durable_name``, the server deletes the consumer when its
        subject has no subscribers.

        Args:
            config: the config, with its ``deliver_subject``; or
            **fields: the fields of a `ConsumerConfig`, by name.
            pedantic: whether the server rejects a config with `BadRequestError` instead of silently
                completing or correcting it; needs server 2.11.

        Raises:
            InvalidOptionError: there is no ``deliver_subject``; or as `create_consumer()`.
            APIError: the server returned an error, for example because the subject is one of the stream's.
            Error: otherwise as `create_consumer()`.

        """
        return self._add_push(config, fields, CREATE, pedantic)

    def update_push_consumer(
        self,
        config: ConsumerConfig | None = None,
        *,
        pedantic: bool = False,
        **fields: Unpack[ConsumerConfigFields],
    ) -> ConsumerInfo:
        """
        Update a push consumer; the ``deliver_subject`` can be changed as well.

        Args:
            config: the new config, with the consumer's name and its ``deliver_subject``; or
            **fields: the fields of a `ConsumerConfig`, by name.
            pedantic: whether the server rejects a config with `BadRequestError` instead of silently
                completing or correcting it; needs server 2.11.

        Raises:
            ConsumerDoesNotExistError: there is no consumer with that name.
            Error: otherwise as `create_push_consumer()`.

        """
        return self._add_push(config, fields, UPDATE, pedantic)

    def _add_pull(
        self, config: ConsumerConfig | None, fields: Mapping[str, Any], action: str, pedantic: bool
    ) -> PullConsumer:
        chosen = resolve_config(ConsumerConfig, config, fields)
        if chosen.deliver_subject is not None:
            raise errors.InvalidOptionError(
                "deliver_subject",
                chosen.deliver_subject,
                "makes a push consumer: subscribe() creates one; omit the field for a pull consumer",
            )
        chosen.check_pulled()
        return PullConsumer(self._api, self._add(chosen, action, pedantic))

    def _add_push(
        self, config: ConsumerConfig | None, fields: Mapping[str, Any], action: str, pedantic: bool
    ) -> ConsumerInfo:
        chosen = resolve_config(ConsumerConfig, config, fields)
        if chosen.deliver_subject is None:
            raise errors.InvalidOptionError(
                "deliver_subject", None, "a push consumer requires a deliver_subject"
            )
        return self._add(chosen, action, pedantic)

    def _add(self, config: ConsumerConfig, action: str, pedantic: bool) -> ConsumerInfo:
        try:
            return add_consumer(self._api, self._name, config, action, pedantic=pedantic)
        except errors.ConsumerExistsError as error:
            return consumer_requests.existing_consumer(self._api, self._name, config, error)

    def get_consumer(self, name: str) -> PullConsumer:
        """
        Return an existing pull consumer.

        Raises:
            ConsumerNotFoundError: there is no consumer with that name.
            StreamNotFoundError: the stream does not exist.
            ConsumerIsPushBasedError: it is a push consumer.
            InvalidNameError: the name is invalid.
            Error: otherwise as `info()`.

        """
        info = consumer_info(self._api, self._name, name)
        subject = info.config.deliver_subject
        if subject:
            raise errors.ConsumerIsPushBasedError(
                409, f"consumer {name!r} delivers to {subject!r} and cannot be pulled from"
            )
        return PullConsumer(self._api, info)

    def consumer_info(self, name: str) -> ConsumerInfo:
        """
        Return the config and state of a consumer of any kind.

        Raises:
            Error: as `get_consumer()`, except for push consumers, which are supported.

        """
        return consumer_info(self._api, self._name, name)

    def delete_consumer(self, name: str) -> None:
        """
        Delete a consumer of any kind; threads that pull from it get `ConsumerDeletedError`.

        Raises:
            Error: as `get_consumer()`, except for push consumers, which are supported.

        """
        consumer_requests.delete_consumer(self._api, self._name, name)

    def consumer_names(self) -> list[str]:
        """
        Return the names of all consumers of the stream, sorted.

        Raises:
            StreamNotFoundError: the stream does not exist.
            APIError: the server returned an error.
            IncompleteListingError: the server counts more consumers than it names.
            JetStreamNotEnabledError, TimeoutError, ConnectionClosedError: as `info()`.

        """
        deadline = self._api.deadline()
        route = self._api.routes.to("CONSUMER.NAMES", self._name)
        names = self._api.names(route, "consumers", deadline=deadline)
        if not names:
            # A cluster sends an empty list for a stream that does not exist.
            stream_info(self._api, self._name, deadline=deadline)
        return names

    def stranded(self, name: str) -> StoredMsg | None:
        """Return the first message that a consumer of a work queue will never deliver; see `PullConsumer.stranded`."""
        return consumer_requests.stranded_msg(self._api, self._name, name)

    def list_consumers(self, *, allow_incomplete: bool = False) -> Listing[ConsumerInfo]:
        """
        Return the infos of all consumers of the stream, sorted by name.

        Iterating over the result raises `IncompleteListingError` at its end if the server names
        consumers whose state it does not know; see `Listing`.

        Args:
            allow_incomplete: whether the known consumers are enough; `Listing.missing` names the others.

        Raises:
            Error: as `consumer_names()`. A cluster waits 4 seconds for servers that do not reply, so
                that a shorter timeout of the context raises `TimeoutError`.

        """
        deadline = self._api.deadline()
        infos = self._api.infos(
            ConsumerInfo,
            "CONSUMER",
            "consumers",
            (self._name,),
            deadline=deadline,
            allow_incomplete=allow_incomplete,
        )
        if infos.is_complete and not infos:
            stream_info(self._api, self._name, deadline=deadline)  # as in `consumer_names()`
        return infos

    def pause_consumer(self, name: str, until: datetime) -> ConsumerPause:
        """
        Pause a consumer until a given time; needs server 2.11.

        Args:
            name: the name of the consumer.
            until: the end of the pause, with a time zone. A time in the past resumes the consumer.

        Raises:
            InvalidOptionError: the time has no time zone.
            ServerTooOldError: the server is older than 2.11; nothing was changed.
            Error: otherwise as `delete_consumer()`.

        """
        return self._pause(name, {"pause_until": time_to_text(check_time(until, "until"))})

    def resume_consumer(self, name: str) -> ConsumerPause:
        """
        Resume a paused consumer; does nothing if it is not paused. Needs server 2.11.

        Raises:
            ServerTooOldError: the server is older than 2.11; nothing was changed.
            Error: otherwise as `delete_consumer()`.

        """
        return self._pause(name, None)

    def _pause(self, name: str, body: dict[str, Any] | None) -> ConsumerPause:
        route = self._api.routes.to("CONSUMER.PAUSE", self._name, check_consumer_name(name))
        deadline = self._api.deadline()
        # Older servers do not reply at all.
        require_level(self._api, 1, "pausing a consumer", deadline)
        return self._api.ask_for(ConsumerPause, route, body, deadline)

    def reset_consumer(self, name: str, seq: int | None = None) -> ConsumerReset:
        """
        Reset a consumer of any kind; needs server 2.14 (ADR-60).

        Pending acknowledgements and redeliveries are cleared, the delivery counts start at 1, and messages
        that were delivered but not acknowledged are delivered again. Pull requests continue.

        Args:
            name: the name of the consumer.
            seq: the stream sequence to continue at, at least 1; ``None``: after the ack floor. It requires
                the deliver policy ``all``, ``by_start_sequence`` or ``by_start_time``, and must not be
                before the start of the config.

        Returns:
            The consumer in its new state, with the sequence at which it continues.

        Raises:
            ConsumerInvalidResetError: the config does not allow that sequence.
            ServerTooOldError: the server of the consumer is older than 2.14; nothing was changed.
            InvalidOptionError: the sequence is out of range.
            Error: otherwise as `delete_consumer()`.

        """
        return consumer_requests.reset_consumer(self._api, self._name, name, seq)

    def unpin_consumer(self, name: str, group: str) -> None:
        """
        Unpin the pinned client of a priority group; needs server 2.11 (ADR-42).

        If no client is pinned, nothing happens. A `PullConsumer.fetch` of the pinned client raises
        `PinIDMismatchError`; `PullConsumer.messages` and `PullConsumer.consume` send a new request.

        Args:
            name: the name of the consumer.
            group: one of the consumer's ``priority_groups``.

        Raises:
            BadRequestError: the consumer has no such group.
            ServerTooOldError: the server of the consumer is older than 2.11; nothing was changed.
            Error: otherwise as `delete_consumer()`.

        """
        deadline = self._api.deadline()
        consumer_requests.check_consumer_server(
            self._api, self._name, name, "unpinning a client", (2, 11), deadline
        )
        route = self._api.routes.to("CONSUMER.UNPIN", self._name, name)
        self._api.ask(route, {"group": group}, deadline)

    def ordered_consumer(self, **options: Unpack[OrderedOptions]) -> OrderedConsumer:
        """
        Return an ordered consumer, which delivers every message once and in order.

        Its messages are not acknowledged.

        Args:
            **options: see `OrderedOptions`.

        Raises:
            InvalidOptionError: an option is unknown or invalid.
            StreamNotFoundError, BadRequestError, TimeoutError, ConnectionClosedError: with the deliver
                policies ``new`` and ``last``, which ask the server for the position.

        """
        return OrderedConsumer(self._api, self._name, **options)


class Stream(ForeignNames, StreamConsumers):
    """
    A stream of the account.

    Returned by `JetStream.create_stream`, `JetStream.get_stream` and the like. It need not be closed,
    and any number of threads may use it.
    """

    def __init__(self, api: APIRequests, info: StreamInfo) -> None:
        super().__init__(api, info.config.name)
        self._info = info

    @property
    def name(self) -> str:
        """The name of the stream."""
        return self._name

    @property
    def cached_info(self) -> StreamInfo:
        """The last received config and state; `info()` requests them again."""
        return self._info

    def info(self, subjects_filter: str | None = None, deleted_details: bool = False) -> StreamInfo:
        """
        Request the stream's config and state.

        `cached_info` is updated, without the requested details.

        Args:
            subjects_filter: also count the messages per subject, in ``state.subjects``, for the subjects
                that match this one; ``>`` matches all; ``None``: do not count.
            deleted_details: whether to list the sequences of deleted messages, in ``state.deleted``.

        Raises:
            StreamNotFoundError: the stream does not exist.
            BadSubjectError: the filter is invalid.
            JetStreamNotEnabledError: there are no responders.
            APIError: the server returned an error; see its subclasses.
            TimeoutError: the server did not reply within the timeout of the context.
            ConnectionClosedError: the connection is closed.

        """
        info = stream_info(self._api, self._name, subjects_filter, deleted_details)
        self._info = _without_details(info)
        return info

    # --- messages -------------------------------------------------------------------------------

    def purge(
        self,
        subject: str | None = None,
        seq: int | None = None,
        keep: int | None = None,
        *,
        force: bool = False,
    ) -> int:
        """
        Delete messages permanently.

        Without arguments, all messages are deleted; the sequence continues.

        With ``subject``, the consumers of the stream are listed first, because nats-server drops other pending
        messages of a consumer if a purge by subject removes one; see :ref:`purge-fault`. Messages that are
        delivered between the listing and the purge are not noticed. `delete_msg()` has no such effect.

        Args:
            subject: delete only messages whose subject matches; ``None``: all.
            seq: delete only messages before this sequence, at least 1; ``None``: no bound. Without
                ``subject``, a sequence after the last message becomes the next sequence.
            keep: number of newest messages to keep; with ``subject``, of those that match. ``None``:
                none. Excludes ``seq``.
            force: whether to purge without listing the consumers, which may lose messages.

        Returns:
            The number of deleted messages.

        Raises:
            PendingAcksError: a consumer that may receive the subject has unacknowledged messages; nothing was deleted.
            IncompleteListingError: the servers of some consumers do not reply; nothing was deleted.
            InvalidOptionError: seq and keep are both given, or one is out of range.
            BadSubjectError: the subject is invalid.
            StreamNotFoundError: the stream does not exist.
            APIError: the server returned an error, for example because the stream has ``deny_purge``.
            JetStreamNotEnabledError, TimeoutError, ConnectionClosedError: as `info()`.

        """
        body: dict[str, Any] = {}
        if subject is not None:
            body["filter"] = check_subject(subject)
        if seq is not None and keep is not None:
            raise errors.InvalidOptionError("keep", keep, f"excludes seq={seq!r}")
        if seq is not None:
            check_int("seq", seq, 1, LAST_SEQUENCE)
            body["seq"] = seq
        if keep is not None:
            check_int("keep", keep, 0, LAST_SEQUENCE)
            body["keep"] = keep
        if seq == 1:
            # There is nothing to delete; servers before 2.11 would ignore the bound.
            self._api.ask(self._api.routes.to("STREAM.INFO", self._name))
            return 0
        if subject is not None and not force:
            consumer_requests.check_unacknowledged(self._api, self._name, subject)
        response = self._api.ask(self._api.routes.to("STREAM.PURGE", self._name), body)
        purged = response.get("purged")
        if type(purged) is not int or response.get("success") is not True:
            fields = f"success={response.get('success')!r:.60}, purged={purged!r:.60}"
            raise errors.InvalidResponseError(f"invalid reply to a purge: {fields}")
        return purged

    def get_msg(
        self,
        seq: int | None = None,
        last_by_subject: str | None = None,
        next_by_subject: str | None = None,
        *,
        consistent: bool = False,
    ) -> StoredMsg:
        """
        Return one message, without a consumer.

        Select it with exactly one of the arguments, or with ``next_by_subject`` and ``seq``.

        If the stream has ``allow_direct`` (according to `cached_info`), any replica may reply
        (ADR-31), which may have an earlier last message of a subject. The leader replies otherwise, if a mirror
        of the stream has replied, and before a message is reported as missing.

        Args:
            seq: the sequence of the message; with ``next_by_subject``, the sequence to start at.
            last_by_subject: return the last message with this subject, which may have wildcards.
            next_by_subject: return the first message with this subject, which may have wildcards, from
                ``seq`` on; without ``seq``, from the start.
            consistent: read from the leader of the stream, so that every message stored earlier is found.

        Raises:
            InvalidOptionError: no argument is given, two exclude each other, or the sequence is out of
                range.
            BadSubjectError: the subject is invalid.
            MessageNotFoundError: there is no such message.
            Error: otherwise as `info()`.

        """
        request = _get_request(seq, last_by_subject, next_by_subject)
        direct = self._info.config.allow_direct and not consistent
        return get_stored(self._api, self._name, request, direct=direct).decoded()

    def get_msgs(
        self,
        max_messages: int,
        seq: int | None = None,
        next_by_subject: str | None = None,
        *,
        start_time: datetime | None = None,
        max_bytes: int | None = None,
        timeout: float | timedelta | None = None,
    ) -> list[StoredMsg]:
        """
        Return the messages from a sequence or time on, without a consumer.

        If the stream has ``allow_direct`` and its server supports batches (2.11), one request returns a
        batch (ADR-31), which any replica may send. Otherwise, and if a mirror of the stream has replied, a call
        returns one message of the leader.

        Args:
            max_messages: maximum number of messages, from 1 to 10,000.
            seq: the sequence to start at; ``None``: the first message.
            next_by_subject: only messages with this subject, which may have wildcards; ``None``: all.
            start_time: start at the first message that was stored then or later, with a time zone;
                excludes ``seq``. Needs server 2.11.
            max_bytes: stop after the message that reaches this number of bytes; ``None``: 4 MB, which is
                the maximum.
            timeout: in seconds; ``None``: the timeout of the JetStream context.

        Returns:
            The messages in order of sequence. Fewer than ``max_messages`` do not mean the end of the
            stream: call again with the sequence after the last one, until the list is empty.

        Raises:
            InvalidOptionError: a number or the time is out of range, or the time has no time zone.
            BadSubjectError: the subject is invalid.
            ServerTooOldError: the server is too old for ``start_time``.
            StreamNotFoundError: the stream does not exist.
            APIError: the server returned an error.
            TimeoutError: no reply arrived in time.
            JetStreamNotEnabledError, ConnectionClosedError: as `info()`.

        """
        if start_time is None:
            seq = 1 if seq is None else seq
        elif seq is not None:
            raise errors.InvalidOptionError("seq", seq, "excludes start_time")
        request = _get_request(seq, None, ">" if next_by_subject is None else next_by_subject)
        if start_time is not None:
            request = request._replace(start_time=check_message_time(start_time, "start_time"))
        size = MAX_BYTES if max_bytes is None else max_bytes
        check_int("max_messages", max_messages, 1)
        check_int("max_bytes", size, 1)
        many = request._replace(
            batch=min(max_messages, _MAX_BATCH),
            max_bytes=min(size, MAX_BYTES),
        )
        deadline = self._api.deadline(timeout)
        if start_time is not None:
            # An older server ignores it.
            require_level(self._api, 1, "start_time", deadline)
        try:
            if self._info.config.allow_direct:
                with suppress(
                    errors.NoRespondersError, errors.ConnectionLostError, errors.TimeoutError
                ):
                    return direct_get_many(self._api, self._name, many, deadline)
            return [leader_get(self._api, self._name, request, deadline)]
        except errors.MessageNotFoundError:
            return []

    def get_last_msgs(
        self,
        subjects: str | Sequence[str],
        up_to_seq: int | None = None,
        up_to_time: datetime | None = None,
        batch: int | None = None,
    ) -> Iterator[StoredMsg]:
        """
        Return the last message of each of many subjects, at one point in time and without a consumer.

        Any replica may answer (ADR-31), so a message that was stored a moment ago may be missing. Needs
        server 2.11, and a stream with ``allow_direct``. If mirrors of the stream answer, or there seem to be no
        messages, the leader is asked for each subject: then each message was the last one during the call.

        The first page is requested by this call, each other page when the iteration gets there. All
        pages show the stream as it was at the first one, or the iteration raises.

        Args:
            subjects: subjects, which may have wildcards and overlap. Those without messages are left
                out.
            up_to_seq: return what the last message of each subject was when the stream had this last
                sequence, if it is still stored; ``None``: now.
            up_to_time: the same for what was stored before this time, with a time zone; excludes
                ``up_to_seq``.
            batch: maximum number of messages per page; ``None``: as many as fit in 4 MB, which is
                also the maximum.

        Returns:
            An iterator of the messages by sequence, for use by one thread at a time.

        Raises:
            TooManyResultsError: there are more than 1,024 messages, on all pages together. Use
                `ordered_consumer` with ``deliver_policy="last_per_subject"`` instead.
            MessagesChangedError: raised by the iteration: messages were replaced or deleted since the
                first page was read.
            ServerTooOldError: the server is older than 2.11.
            InvalidOptionError: no subject was given, a number is out of range, or the time has no time
                zone.
            BadSubjectError: a subject is invalid.
            StreamNotFoundError: the stream does not exist.
            NoRespondersError: the stream does not have ``allow_direct``.
            APIError: the server returned an error.
            TimeoutError: a page was not complete within the timeout of the context.
            PermissionsError: this user may not send the request.
            ConnectionClosedError: the connection is closed.

        """
        names = [subjects] if isinstance(subjects, str) else subjects
        if not isinstance(names, Sequence) or not names:
            raise errors.InvalidOptionError("subjects", subjects, "expected at least one subject")
        request = MsgGetRequest(
            multi_last=[check_subject(name) for name in names],
            max_bytes=MAX_BYTES,
            up_to_seq=up_to_seq,
            up_to_time=up_to_time,
        )
        if up_to_seq is not None and up_to_time is not None:
            raise errors.InvalidOptionError("up_to_seq", up_to_seq, "excludes up_to_time")
        if up_to_seq is not None:
            check_int("up_to_seq", up_to_seq, 1, LAST_SEQUENCE)
        if up_to_time is not None:
            check_message_time(up_to_time, "up_to_time")
        if batch is not None:
            check_int("batch", batch, 1)
            request = request._replace(batch=min(batch, _MAX_BATCH))
        try:
            return map(decoded, direct_last_msgs(self._api, self._name, request))
        except errors.NoRespondersError as error:
            config = self.info().config  # raises an error if the stream does not exist
            if config.allow_direct or config.mirror_direct:
                return proven_last_msgs(self._api, self._name, request)
            hint = f"stream {self._name!r} needs allow_direct=True, see update_stream()"
            raise errors.NoRespondersError(error.subject, hint) from None

    def delete_msg(self, seq: int, secure: bool = False) -> None:
        """
        Delete one message.

        Args:
            seq: the sequence of the message; it is not reused.
            secure: whether to overwrite the stored bytes with random data, which takes longer.

        Raises:
            InvalidOptionError: the sequence is out of range.
            MessageNotFoundError: there is no such message.
            StreamNotFoundError: the stream does not exist.
            APIError: the server returned an error, for example because the stream has ``deny_delete``.
            JetStreamNotEnabledError, TimeoutError, ConnectionClosedError: as `info()`.

        """
        check_int("seq", seq, 1, LAST_SEQUENCE)
        body: dict[str, Any] = {"seq": seq}
        if not secure:
            body["no_erase"] = True
        try:
            self._api.command(self._api.routes.to("STREAM.MSG.DELETE", self._name), body)
        except errors.ServerError as error:
            if error.err_code == errors.ErrorCode.MESSAGE_DELETE_FAILED:
                # File storage returns this code for a missing message, too.
                leader_get(self._api, self._name, MsgGetRequest(seq), self._api.deadline())
            raise

    def snapshot(
        self,
        consumers: bool = True,
        check: bool = False,
        chunk_size: int | None = None,
        window_size: int | None = None,
        timeout: float | timedelta | None = None,
    ) -> StreamSnapshot:
        """
        Take a snapshot of the stream: its config, state and messages.

        The server starts to send it at once; receive it with `StreamSnapshot.write_to`, in a ``with``
        block. Messages that are stored in the meantime are not included. `JetStream.restore_stream`
        restores it. The request is ``STREAM.SNAPSHOT`` of nats-server, which defines the data format.

        Args:
            consumers: whether to include the consumers and their state.
            check: whether the server first reads and checks every message, which can take long.
            chunk_size: the chunk size in bytes, from 1 KiB to 1 MiB; ``None``: the default of the
                server, 128 KiB.
            window_size: the number of bytes in flight, from 1 KiB to 32 MiB; ``None``: the default of the
                server, 8 MiB. Old servers use their own window.
            timeout: the timeout for the reply and then for each chunk, in
                seconds; ``None``: the timeout of the context.

        Raises:
            SnapshotFailedError: the server cannot create a snapshot, for example of a stream in memory.
            InvalidOptionError: a size is out of range.
            StreamNotFoundError: the stream does not exist.
            ConnectionLostError: the connection was lost before the reply arrived.
            Error: otherwise as `info()`.

        """
        request = SnapshotRequest(
            deliver_subject="",
            no_consumers=not consumers or None,
            jsck=check or None,
            chunk_size=chunk_size,
            window_size=window_size,
        )
        return take_snapshot(self._api, self._name, request, timeout)

    # --- the cluster -----------------------------------------------------------------------------

    def step_down(self, preferred: str | None = None) -> None:
        """
        Have the leader of the stream step down, so that another replica becomes the leader.

        `StreamInfo.cluster` names the leader and the replicas. Until the election is over, publishers are
        refused for a moment.

        Args:
            preferred: the name of the server that should become the leader; needs server 2.11. ``None``: any.

        Raises:
            APIError: the stream is not in a cluster or has one replica, or the preferred server has none.
            ServerTooOldError: ``preferred`` is given, and the server is older than 2.11.
            Error: otherwise as `info()`.

        """
        self._step_down(self._api.routes.to("STREAM.LEADER.STEPDOWN", self._name), preferred)

    def step_down_consumer(self, name: str, preferred: str | None = None) -> None:
        """
        Have the leader of a consumer step down.

        Args:
            name: the name of the consumer.
            preferred: as in `step_down()`.

        Raises:
            InvalidNameError: the name is invalid.
            ConsumerNotFoundError: the consumer does not exist.
            Error: otherwise as `step_down()`.

        """
        route = self._api.routes.to(
            "CONSUMER.LEADER.STEPDOWN", self._name, check_consumer_name(name)
        )
        self._step_down(route, preferred)

    def _step_down(self, route: str, preferred: str | None) -> None:
        deadline = self._api.deadline()
        body = None
        if preferred is not None:
            require_level(self._api, 1, "a preferred leader", deadline)
            body = {"placement": {"preferred": preferred}}
        self._api.ask(route, body, deadline)

    def remove_peer(self, name: str) -> None:
        """
        Remove a server from the replicas of the stream; the cluster chooses another one, if there is one.

        Args:
            name: the name of the server.

        Raises:
            APIError: the stream is not in a cluster, the server has no replica, or no other server can
                have one.
            Error: otherwise as `info()`.

        """
        self._api.ask(self._api.routes.to("STREAM.PEER.REMOVE", self._name), {"peer": name})

    @with_one_deadline
    def schedules(self, subject: str = ">") -> list[Schedule]:
        """
        Return the schedules of the stream, sorted by subject (ADR-51).

        Args:
            subject: only schedules whose subject matches this one, which may have wildcards.

        Raises:
            BadSubjectError: the subject is invalid.
            Error: otherwise as `info()` and `get_last_msgs()`.

        """
        found = [
            Schedule.of(msg.subject, msg.data, msg.headers, msg.seq, msg.time)
            for msg in every_last_msg(self, check_subject(subject))
            if msg.headers and SCHEDULE in msg.headers
        ]
        return sorted(found, key=lambda item: item.subject)

    def __repr__(self) -> str:
        return f"<Stream {self._name}>"


def every_last_msg(stream: Stream, subject: str) -> Iterator[StoredMsg]:
    """Yield the last message of each subject that matches, for any number of subjects."""
    # With more of them than a server returns at once, the messages are not those of one point in
    # time.
    if stream.cached_info.config.allow_direct:
        found: Iterator[StoredMsg] | None = None
        with suppress(
            errors.TooManyResultsError, errors.NoRespondersError, errors.ServerTooOldError
        ):
            found = stream.get_last_msgs(subject)
        if found is not None:
            return found
    return leader_last_msgs(stream._api, stream.name, [subject])  # noqa: SLF001 - as a method


def _without_details(info: StreamInfo) -> StreamInfo:
    """Return the info without its large fields."""
    if info.state.subjects is None and info.state.deleted is None:
        return info
    return replace(info, state=replace(info.state, subjects=None, deleted=None))


def _get_request(
    seq: int | None, last_by_subject: str | None, next_by_subject: str | None
) -> MsgGetRequest:
    """Return the request for one message, checked."""
    if last_by_subject is not None:
        for name, value in (("seq", seq), ("next_by_subject", next_by_subject)):
            if value is not None:
                raise errors.InvalidOptionError(name, value, "excludes last_by_subject")
        return MsgGetRequest(last_by_subj=check_subject(last_by_subject))
    if seq is None and next_by_subject is None:
        raise errors.InvalidOptionError(
            "seq", None, "one of seq, last_by_subject and next_by_subject is required"
        )
    if seq is not None:
        seq = check_int("seq", seq, 1, LAST_SEQUENCE)
    if next_by_subject is not None:
        next_by_subject = check_subject(next_by_subject)
    return MsgGetRequest(seq, next_by_subj=next_by_subject)
