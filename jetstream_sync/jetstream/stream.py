"""A stream: what it holds, its messages and its consumers."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any, Final

from ..api.consumer import ConsumerConfig, ConsumerInfo, ConsumerPause, ConsumerReset
from ..api.snapshot import SnapshotRequest
from ..api.stream import StreamInfo
from ..errors import (
    ConnectionLostError,
    InvalidOptionError,
    InvalidResponseError,
    MessageNotFoundError,
    NoRespondersError,
    ServerError,
    TimeoutError,
)
from ..foreign_names import ForeignNames
from ..subjects import check_subject
from . import consumer_api
from .api_requests import APIRequests, resolve_config, stream_info
from .consumer import PullConsumer, add_pull_consumer, pull_consumer
from .consumer_api import consumer_info
from .direct_get import MAX_BYTES, StoredMsg, direct_get, direct_get_many, leader_get
from .ordered import OrderedConsumer
from .snapshots import StreamSnapshot, take_snapshot

__all__ = ["Stream"]

_LAST_SEQUENCE: Final = 2**64 - 1
#: Seconds for the answer to a direct get before the leader is asked: old servers do not say that
#: nobody is there, and one replica may be down while the leader is well.
_DIRECT_PATIENCE: Final = 1.0
#: How many messages are asked for at most.
_MOST_MESSAGES: Final = 10_000
#: What the server says when a message cannot be deleted, whatever the reason.
_DELETE_FAILED: Final = 10057


class Stream(ForeignNames):
    """
    A stream of the account.

    Returned by `JetStream.create_stream`, `JetStream.get_stream` and the like. It holds no message and
    no connection of its own; any number of threads may use it, and it needs no closing.
    """

    def __init__(self, api: APIRequests, info: StreamInfo) -> None:
        self._api = api
        self._name = info.config.name
        self._info = info

    @property
    def name(self) -> str:
        """Its name."""
        return self._name

    @property
    def cached_info(self) -> StreamInfo:
        """Config and state as they were when last asked for; nothing is sent."""
        return self._info

    def info(self, subjects_filter: str | None = None, deleted_details: bool = False) -> StreamInfo:
        """
        Ask the server for the stream's config and state.

        Afterwards `cached_info` has it too, without the details asked for here.

        Args:
            subjects_filter: also count the messages of each subject that falls under this one, in
                ``state.subjects``; ``>`` is all subjects; ``None``: do not count.
            deleted_details: whether to list the sequences that were deleted, in ``state.deleted``.

        Raises:
            StreamNotFoundError: the stream is gone.
            BadSubjectError: the filter is not well formed.
            JetStreamNotEnabledError: there are no responders.
            APIError: the server refused; the class says why.
            TimeoutError: no answer in the context's timeout.
            ConnectionClosedError: the connection is closed.

        """
        info = stream_info(self._api, self._name, subjects_filter, deleted_details)
        self._info = _without_details(info)
        return info

    # --- messages -------------------------------------------------------------------------------

    def purge(
        self, subject: str | None = None, seq: int | None = None, keep: int | None = None
    ) -> int:
        """
        Delete messages for good.

        Without arguments the stream is empty afterwards; its sequence goes on where it was.

        Args:
            subject: delete only messages that fall under this subject; ``None``: all of them.
            seq: delete only what is before this sequence, from 1 on; ``None``: no such bound. One
                beyond the last message becomes the sequence of the next one, without ``subject``.
            keep: leave so many of the youngest messages (of the subject, with one); ``None``:
                leave none. Excludes ``seq``.

        Returns:
            How many messages were deleted.

        Raises:
            InvalidOptionError: seq and keep are both given, or one is out of range.
            BadSubjectError: the subject is not well formed.
            StreamNotFoundError: the stream is gone.
            APIError: the server refused, for example since the stream has ``deny_purge``.
            JetStreamNotEnabledError, TimeoutError, ConnectionClosedError: as `info()`.

        """
        body: dict[str, Any] = {}
        if subject is not None:
            body["filter"] = check_subject(subject)
        if seq is not None and keep is not None:
            raise InvalidOptionError("keep", keep, f"excludes seq={seq!r}")
        if seq is not None:
            body["seq"] = _checked(seq, "seq", 1)
        if keep is not None:
            body["keep"] = _checked(keep, "keep", 0)
        if seq == 1:
            # Nothing is before it. Servers before 2.11 would delete without a bound.
            self._api.ask(self._api.routes.stream_info(self._name))
            return 0
        answer = self._api.ask(self._api.routes.stream_purge(self._name), body)
        purged = answer.get("purged")
        if type(purged) is not int or answer.get("success") is not True:
            said = f"success={answer.get('success')!r:.60}, purged={purged!r:.60}"
            raise InvalidResponseError(f"a purge answered with {said}")
        return purged

    def get_msg(
        self,
        seq: int | None = None,
        last_by_subject: str | None = None,
        next_by_subject: str | None = None,
    ) -> StoredMsg:
        """
        Return one message, without a consumer.

        Say which with exactly one of the arguments, or with ``next_by_subject`` and ``seq``.

        When the stream has ``allow_direct`` (as far as `cached_info` knows), any replica may
        answer (ADR-31), so a message that was stored a moment ago may be missing; otherwise the
        leader answers. The leader is also asked when nobody answers a direct get.

        Args:
            seq: the message with this sequence; with ``next_by_subject`` the sequence to start at.
            last_by_subject: the last message of this subject, which may have wildcards.
            next_by_subject: the first message of this subject, which may have wildcards, from
                ``seq`` on; from the start without.

        Raises:
            InvalidOptionError: none of the arguments, or two that exclude each other, or the
                sequence is out of range.
            BadSubjectError: the subject is not well formed.
            MessageNotFoundError: there is no such message.
            StreamNotFoundError: the stream is gone.
            APIError: the server returned an error.
            JetStreamNotEnabledError, TimeoutError, ConnectionClosedError: as `info()`.

        """
        request = _get_request(seq, last_by_subject, next_by_subject)
        deadline = self._api.deadline()
        if self._info.config.allow_direct:
            try:
                return direct_get(self._api, self._name, request, deadline.sooner(_DIRECT_PATIENCE))
            except NoRespondersError:
                pass  # the stream is gone, or does not allow it any more
            except TimeoutError:
                if deadline.expired():
                    raise
        return leader_get(self._api, self._name, request, deadline)

    def get_msgs(
        self,
        max_messages: int,
        seq: int = 1,
        next_by_subject: str | None = None,
        *,
        max_bytes: int | None = None,
        timeout: float | timedelta | None = None,
    ) -> list[StoredMsg]:
        """
        Return the messages from a sequence on, without a consumer.

        Where the stream has ``allow_direct`` and its server knows batches (2.11), they come with one
        request (ADR-31), from any replica, so one that was stored a moment ago may be missing.
        Otherwise there is one message at a time.

        Args:
            max_messages: how many to return at most, from 1 on; 10,000 are never exceeded.
            seq: the sequence to start at.
            next_by_subject: only messages of this subject, which may have wildcards; ``None``: all.
            max_bytes: end with the message that reaches so many bytes; ``None``: 4 MB, which is
                the most.
            timeout: in seconds; ``None``: the timeout of the JetStream context.

        Returns:
            The messages by sequence. Fewer than ``max_messages`` are not the end: ask on behind the
            last of them, until there are none.

        Raises:
            InvalidOptionError: a number is out of range.
            BadSubjectError: the subject is not well formed.
            StreamNotFoundError: the stream is gone.
            APIError: the server returned an error.
            TimeoutError: nothing came in time.
            JetStreamNotEnabledError, ConnectionClosedError: as `info()`.

        """
        request = _get_request(seq, None, ">" if next_by_subject is None else next_by_subject)
        many = {
            "batch": min(_checked(max_messages, "max_messages", 1), _MOST_MESSAGES),
            "max_bytes": min(
                _checked(MAX_BYTES if max_bytes is None else max_bytes, "max_bytes", 1),
                MAX_BYTES,
            ),
        }
        deadline = self._api.deadline(timeout)
        try:
            if self._info.config.allow_direct:
                with suppress(NoRespondersError, ConnectionLostError, TimeoutError):
                    return direct_get_many(self._api, self._name, request | many, deadline)
            return [leader_get(self._api, self._name, request, deadline)]
        except MessageNotFoundError:
            return []

    def delete_msg(self, seq: int, secure: bool = False) -> None:
        """
        Delete one message.

        Args:
            seq: its sequence, which is not given again.
            secure: whether to overwrite its bytes with random ones, which takes longer.

        Raises:
            InvalidOptionError: the sequence is out of range.
            MessageNotFoundError: there is no such message.
            StreamNotFoundError: the stream is gone.
            APIError: the server refused, for example since the stream has ``deny_delete``.
            JetStreamNotEnabledError, TimeoutError, ConnectionClosedError: as `info()`.

        """
        body: dict[str, Any] = {"seq": _checked(seq, "seq", 1)}
        if not secure:
            body["no_erase"] = True
        try:
            self._api.command(self._api.routes.msg_delete(self._name), body)
        except ServerError as error:
            if error.err_code == _DELETE_FAILED:
                # From file storage this is also said of a message that is not there.
                leader_get(self._api, self._name, {"seq": seq}, self._api.deadline())
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
        Take a snapshot: all that the stream is and holds, in a form that makes it again.

        The server starts to send it at once; take it with `StreamSnapshot.write_to`, in a ``with``
        block. What is stored meanwhile is not in it. `JetStream.restore_stream` is the way back. The
        protocol is nats-server's ``STREAM.SNAPSHOT``; the data is its own business.

        Args:
            consumers: whether the consumers are in it, with how far they are.
            check: whether the server reads and checks every message first, which can take long.
            chunk_size: the size of the pieces in bytes, from 1 KiB to 1 MiB; ``None``: as the server
                likes it, 128 KiB.
            window_size: how many bytes may be on their way, from 1 KiB to 32 MiB; ``None``: as the
                server likes it, 8 MiB. Old servers have windows of their own.
            timeout: how long the server may take for the answer and then for each piece, in
                seconds; ``None``: as long as the context says.

        Raises:
            SnapshotFailedError: the server cannot make one, as of a stream in memory.
            InvalidOptionError: a size is out of range.
            StreamNotFoundError: the stream is gone.
            ConnectionLostError: the connection was lost before the answer came.
            APIError: the server returned an error.
            JetStreamNotEnabledError, TimeoutError, ConnectionClosedError: as `info()`.

        """
        wanted = SnapshotRequest(
            deliver_subject="",
            no_consumers=not consumers or None,
            jsck=check or None,
            chunk_size=chunk_size,
            window_size=window_size,
        )
        return take_snapshot(self._api, self._name, wanted, timeout)

    # --- consumers ------------------------------------------------------------------------------

    def create_consumer(
        self, config: ConsumerConfig | None = None, *, pedantic: bool = False, **fields: Any
    ) -> PullConsumer:
        """
        Make a consumer to pull from.

        One that exists with the same config is taken as it is. Without ``durable_name`` it is
        ephemeral; without any name it gets a random one.

        Args:
            config: what it is to be; or
            **fields: the fields of a `ConsumerConfig`, by name.
            pedantic: whether the server refuses a config that it would otherwise complete or correct
                without a word, which is a `BadRequestError`; needs server 2.11.

        Raises:
            ConsumerExistsError: it exists with another config.
            InvalidOptionError: config and fields are both given, a value is invalid, or there
                is a ``deliver_subject``.
            InvalidNameError, BadSubjectError: a name or subject is not well formed.
            ServerTooOldError: ``pedantic`` needs a later server, and nothing was sent; or the server
                does not know some of the fields, which the error names. What this call made is
                removed; what was there before is left as it is, and the error says what an update
                changed.
            StreamNotFoundError: the stream is gone.
            MaxConsumersError: the stream or account has as many as it may have.
            APIError: the server returned an error.
            JetStreamNotEnabledError, TimeoutError, ConnectionClosedError: as `info()`.

        """
        return self._add(config, fields, consumer_api.CREATE, pedantic)

    def update_consumer(
        self, config: ConsumerConfig | None = None, *, pedantic: bool = False, **fields: Any
    ) -> PullConsumer:
        """
        Change a consumer that exists.

        The config replaces the one that it has, so take that from `ConsumerInfo.config` and
        change it with `dataclasses.replace`. Other `PullConsumer` objects for it go on working.

        Args:
            config: what it is to be, with its name; or
            **fields: the fields of a `ConsumerConfig`, by name.
            pedantic: whether the server refuses a config that it would otherwise complete or correct
                without a word, which is a `BadRequestError`; needs server 2.11.

        Raises:
            ConsumerDoesNotExistError: there is no consumer of that name.
            InvalidOptionError: also when the config has no name; else as `create_consumer()`.
            APIError: the server refused; many fields cannot be changed.
            Error: otherwise as `create_consumer()`.

        """
        return self._add(config, fields, consumer_api.UPDATE, pedantic)

    def create_or_update_consumer(
        self, config: ConsumerConfig | None = None, *, pedantic: bool = False, **fields: Any
    ) -> PullConsumer:
        """
        Make a consumer to pull from, or change the one of that name.

        Args:
            config: what it is to be; or
            **fields: the fields of a `ConsumerConfig`, by name.
            pedantic: whether the server refuses a config that it would otherwise complete or correct
                without a word, which is a `BadRequestError`; needs server 2.11.

        Raises:
            APIError: the server refused; many fields cannot be changed.
            Error: otherwise as `create_consumer()`.

        """
        return self._add(config, fields, consumer_api.CREATE_OR_UPDATE, pedantic)

    def _add(
        self, config: ConsumerConfig | None, fields: dict[str, Any], action: str, pedantic: bool
    ) -> PullConsumer:
        chosen = resolve_config(ConsumerConfig, config, fields)
        return add_pull_consumer(self._api, self._name, chosen, action, pedantic)

    def create_push_consumer(
        self, config: ConsumerConfig | None = None, *, pedantic: bool = False, **fields: Any
    ) -> ConsumerInfo:
        """
        Make a consumer that delivers to a subject.

        One that exists with the same config is taken as it is. Its messages are had with
        `JetStream.subscribe_bind`. Without ``durable_name`` it goes when nobody listens on its
        subject.

        Args:
            config: what it is to be, with its ``deliver_subject``; or
            **fields: the fields of a `ConsumerConfig`, by name.
            pedantic: whether the server refuses a config that it would otherwise complete or correct
                without a word, which is a `BadRequestError`; needs server 2.11.

        Raises:
            InvalidOptionError: there is no ``deliver_subject``; else as `create_consumer()`.
            APIError: the server refused, for example since the subject is one of the stream's.
            Error: otherwise as `create_consumer()`.

        """
        chosen = resolve_config(ConsumerConfig, config, fields)
        return consumer_api.add_push_consumer(
            self._api, self._name, chosen, consumer_api.CREATE, pedantic
        )

    def update_push_consumer(
        self, config: ConsumerConfig | None = None, *, pedantic: bool = False, **fields: Any
    ) -> ConsumerInfo:
        """
        Change a consumer that delivers to a subject, also to which.

        Args:
            config: what it is to be, with its name and ``deliver_subject``; or
            **fields: the fields of a `ConsumerConfig`, by name.
            pedantic: whether the server refuses a config that it would otherwise complete or correct
                without a word, which is a `BadRequestError`; needs server 2.11.

        Raises:
            ConsumerDoesNotExistError: there is no consumer of that name.
            Error: otherwise as `create_push_consumer()`.

        """
        chosen = resolve_config(ConsumerConfig, config, fields)
        return consumer_api.add_push_consumer(
            self._api, self._name, chosen, consumer_api.UPDATE, pedantic
        )

    def get_consumer(self, name: str) -> PullConsumer:
        """
        Return a consumer that exists.

        Raises:
            ConsumerNotFoundError: there is none of that name.
            StreamNotFoundError: the stream is gone.
            ConsumerIsPushBasedError: it delivers to a subject and cannot be pulled from.
            InvalidNameError: the name cannot be a consumer's.
            APIError: the server returned an error.
            JetStreamNotEnabledError, TimeoutError, ConnectionClosedError: as `info()`.

        """
        return pull_consumer(self._api, self._name, name)

    def consumer_info(self, name: str) -> ConsumerInfo:
        """
        Return the config and state of a consumer of any kind.

        Raises:
            Error: as `get_consumer()`, but push consumers are fine.

        """
        return consumer_info(self._api, self._name, name)

    def delete_consumer(self, name: str) -> None:
        """
        Delete a consumer of any kind; who pulls from it gets `ConsumerDeletedError`.

        Raises:
            Error: as `get_consumer()`, but push consumers are fine.

        """
        consumer_api.delete_consumer(self._api, self._name, name)

    def consumer_names(self) -> list[str]:
        """
        Return the names of the stream's consumers, sorted, of any kind.

        Raises:
            StreamNotFoundError: the stream is gone.
            APIError: the server returned an error.
            JetStreamNotEnabledError, TimeoutError, ConnectionClosedError: as `info()`; the timeout
                is for each page of 1024.

        """
        return consumer_api.consumer_names(self._api, self._name)

    def list_consumers(self) -> list[ConsumerInfo]:
        """
        Return the infos of the stream's consumers, sorted by name, of any kind.

        In a cluster, those whose servers do not answer are left out.

        Raises:
            Error: as `consumer_names()`; a page has 256.

        """
        return consumer_api.list_consumers(self._api, self._name)

    def pause_consumer(self, name: str, until: datetime) -> ConsumerPause:
        """
        Let a consumer deliver nothing until a time; needs server 2.11.

        Args:
            name: the name of the consumer.
            until: when it goes on, with a time zone. A time in the past resumes it.

        Raises:
            InvalidOptionError: the time has no time zone.
            ServerTooOldError: the server is older than 2.11; nothing was done.
            Error: otherwise as `delete_consumer()`.

        """
        return consumer_api.pause_consumer(self._api, self._name, name, until)

    def resume_consumer(self, name: str) -> ConsumerPause:
        """
        Let a paused consumer deliver again; it is fine if it was not paused. Needs server 2.11.

        Raises:
            ServerTooOldError: the server is older than 2.11; nothing was done.
            Error: otherwise as `delete_consumer()`.

        """
        return consumer_api.resume_consumer(self._api, self._name, name)

    def reset_consumer(self, name: str, seq: int | None = None) -> ConsumerReset:
        """
        Let a consumer of any kind start over; needs server 2.14 (ADR-60).

        Afterwards nothing is pending or redelivered, deliveries count from 1 again, and what was
        delivered and not acknowledged is delivered again. Who pulls from it can go on.

        Args:
            name: the name of the consumer.
            seq: the sequence of the stream to go on at, from 1 on, forward or back; ``None``: behind
                its ack floor. Only a consumer that delivers all, or from a sequence or time on, can
                be given one, and none before the start that its config says.

        Returns:
            The consumer as it is now, with the sequence that it goes on at.

        Raises:
            ConsumerInvalidResetError: its config does not allow that sequence.
            ServerTooOldError: its server is older than 2.14; nothing was done.
            InvalidOptionError: the sequence is out of range.
            Error: otherwise as `delete_consumer()`.

        """
        return consumer_api.reset_consumer(self._api, self._name, name, seq)

    def unpin_consumer(self, name: str, group: str) -> None:
        """
        Let another client become the pinned one of a priority group; needs server 2.11 (ADR-42).

        It is fine if none is pinned. The client that was pinned gets `PinIDMismatchError`, or pulls
        again by itself in `PullConsumer.messages` and the like.

        Args:
            name: the name of the consumer.
            group: one of its ``priority_groups``.

        Raises:
            BadRequestError: the consumer has no such group.
            ServerTooOldError: its server is older than 2.11; nothing was done.
            Error: otherwise as `delete_consumer()`.

        """
        consumer_api.unpin_consumer(self._api, self._name, name, group)

    def ordered_consumer(self, **options: Any) -> OrderedConsumer:
        """
        Return a reader that gets every message once and in order, without acknowledgements.

        Args:
            **options: see `OrderedOptions`.

        Raises:
            InvalidOptionError: an option is unknown or invalid.

        """
        return OrderedConsumer(self._api, self._name, **options)

    def __repr__(self) -> str:
        return f"<Stream {self._name}>"


def _without_details(info: StreamInfo) -> StreamInfo:
    """Return the info without what can be large, to keep it."""
    if info.state.subjects is None and info.state.deleted is None:
        return info
    return replace(info, state=replace(info.state, subjects=None, deleted=None))


def _checked(value: int, option: str, least: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise InvalidOptionError(option, value, "expected an int")
    if not least <= value <= _LAST_SEQUENCE:
        raise InvalidOptionError(option, value, f"it is from {least} to {_LAST_SEQUENCE}")
    return value


def _get_request(
    seq: int | None, last_by_subject: str | None, next_by_subject: str | None
) -> dict[str, Any]:
    """Return the body of a request for one message."""
    if last_by_subject is not None:
        for name, value in (("seq", seq), ("next_by_subject", next_by_subject)):
            if value is not None:
                raise InvalidOptionError(name, value, "excludes last_by_subject")
        return {"last_by_subj": check_subject(last_by_subject)}
    if seq is None and next_by_subject is None:
        raise InvalidOptionError("seq", None, "say which message: seq, last or next by subject")
    request: dict[str, Any] = {}
    if seq is not None:
        request["seq"] = _checked(seq, "seq", 1)
    if next_by_subject is not None:
        request["next_by_subj"] = check_subject(next_by_subject)
    return request
