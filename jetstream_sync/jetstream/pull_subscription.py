"""Pull subscriptions (ADR-13): `JetStream.pull_subscribe` and `JetStream.pull_subscribe_bind`."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from functools import lru_cache
from typing import TYPE_CHECKING, Final, NamedTuple

from ..api.consumer import ConsumerConfig
from ..api.pull import PullRequest
from ..api.status import PullStatus, PullStatusKind
from ..api.subscribing import SubscribeRequest
from ..client.result_slot import fresh
from ..durations import duration, duration_to_ns
from ..errors import BadSubscriptionError, Error
from ..net.clock import Deadline, monotonic
from ..subjects import check_consumer_name, check_stream_name, check_subject
from .api_requests import APIRequests
from .consumer_api import ConsumerAccessors, release_consumer
from .heartbeat import pull_heartbeat_timeout
from .message import JetStreamMsg
from .pull import AnswerInbox, Fetch, PullInbox, PullRequester
from .subscribe import ResolvedConsumer, resolve_pull_consumer

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["PullSubscribeAPI", "PullSubscription"]

_SECOND: Final = 1_000_000_000
#: Seconds by which a request ends before its client gives up (ADR-13), so that the server says so.
_MARGIN: Final = 0.1
#: The same for short ones, as a part of the time that is left.
_MARGIN_PART: Final = 0.1
#: How long one request lasts when the user waits for ever.
_MAX_EXPIRES_NS: Final = 60 * _SECOND


class PullSubscription(ConsumerAccessors):
    """
    A subscription that fetches messages when it is asked to.

    Returned by `JetStream.pull_subscribe` and `JetStream.pull_subscribe_bind`. It is what ADR-13
    describes; `PullConsumer` is the later way (ADR-37), which also pulls ahead.

    Any number of threads may fetch from one subscription at the same time; each message goes to one
    of them. Used in a ``with`` block, it is unsubscribed at the end.
    """

    def __init__(
        self,
        api: APIRequests,
        stream: str,
        consumer: str,
        config: ConsumerConfig,
        delete: Callable[[], None] | None = None,
    ) -> None:
        """
        Make the subscription; nothing is sent.

        Args:
            api: the JetStream API.
            stream: the name of the stream.
            consumer: the consumer's name.
            config: the consumer's config, as far as it is known.
            delete: deletes the consumer at the end; ``None``: it stays.

        Raises:
            InvalidOptionError: the consumer has priority groups, of which a fetch here names none.

        """
        self._api = api
        self._stream = stream
        self._consumer = consumer
        self._delete = delete
        self._requester = PullRequester(api, stream, consumer, config)
        self._requester.check(PullRequest(no_wait=True))
        # Why nothing more can be fetched.
        self._ended: Error | None = None
        # Where fetches that are under way get their answers.
        self._busy: set[PullInbox] = set()
        # Where nothing is under way: kept for the next fetch of a single message.
        self._idle: list[AnswerInbox] = []
        self._count = threading.Lock()
        self._delivered = 0

    # --- what is known of it --------------------------------------------------------------------

    @property
    def delivered(self) -> int:
        """Messages that were fetched so far."""
        return self._delivered

    @property
    def pending_msgs(self) -> int:
        """Messages that have come for a fetch that is under way, and that it has not looked at."""
        return len(self._pending())

    @property
    def pending_bytes(self) -> int:
        """Their bytes of headers and payload."""
        return sum(len(header) + len(payload) for header, payload in self._pending())

    @property
    def is_valid(self) -> bool:
        """Whether more messages can be fetched."""
        return self._ended is None and self._api.core.writer.closed is None

    def _pending(self) -> list[tuple[bytes, bytes]]:
        waiting = [item for inbox in tuple(self._busy) for item in tuple(inbox.mailbox.items)]
        # What has no reply is a status, or news of the link.
        return [(header, payload) for _, reply, header, payload in waiting if reply]

    # --- fetching -------------------------------------------------------------------------------

    def fetch(
        self,
        batch: int = 1,
        timeout: float | timedelta | None = 5,
        heartbeat: float | timedelta | None = None,
    ) -> list[JetStreamMsg]:
        """
        Return the messages that are there now, or else wait for some.

        The server is asked for what it has at once. If that is anything, it is returned, even if
        it is less than the batch. If not, a second request waits for as many as the batch, until
        a tenth of a second before the time is up (a tenth of it when it is short), and what came is returned then,
        or as soon as the batch is complete. A link that breaks does not end a fetch: it asks again
        on the next one.

        Messages that arrive after the fetch has ended are redelivered after ``ack_wait``. With ack
        policy ``none`` they go to the next fetch, which returns them at once.

        Args:
            batch: maximum number of messages.
            timeout: how long to wait for them, in seconds; ``None``: until the batch is complete.
            heartbeat: interval of the server's heartbeats, in seconds, at most
                half of ``timeout``; ``None``: none.

        Returns:
            The messages in order, at least one.

        Raises:
            TimeoutError: no message arrived in time.
            InvalidOptionError: an option is out of range.
            ConsumerNotFoundError, StreamNotFoundError, ConsumerDeletedError: the consumer does not exist.
            PullError: the server rejected the request; see its subclasses.
            NoHeartbeatError: the heartbeats stopped.
            BadSubscriptionError: the subscription has ended.
            ConnectionClosedError: the connection is closed.
                Except for InvalidOptionError, none is raised if there are messages to return.

        """
        requests = _requests(batch, timeout, heartbeat)
        if self._ended is not None:
            raise fresh(self._ended)
        pull = _TwoRequests(self._requester, requests)
        # Without acknowledgements an inbox stays open for what may be on its way.
        shared = batch == 1 or self._requester.without_acks
        inbox = self._shared_inbox() if shared else PullInbox(self._api.core)
        try:
            self._busy.add(inbox)
            if self._ended is not None:  # while it was not in the set
                raise fresh(self._ended)
            messages = pull.run_in(inbox)
        finally:
            self._busy.discard(inbox)
            kept = pull.answered or self._requester.without_acks
            if shared and kept and self._ended is None:
                self._put_back(inbox)
            else:
                inbox.close(deferred=pull.answered)
        if not messages:
            raise self._api.core.timed_out(f"no message from consumer {self._consumer!r} in time")
        with self._count:
            self._delivered += len(messages)
        return messages

    def _shared_inbox(self) -> PullInbox:
        while self._idle:
            try:
                inbox = self._idle.pop()
            except IndexError:
                break  # another thread was faster
            if not inbox.mailbox.closed:
                inbox.last_seen = monotonic()
                return inbox
        return AnswerInbox(self._api.core)

    def _put_back(self, inbox: PullInbox) -> None:
        assert isinstance(inbox, AnswerInbox)
        inbox.request_subject = (
            b""  # should the server forbid requests, this one does not wait for any
        )
        self._idle.append(inbox)
        if self._ended is not None:
            self._close_idle()

    def _close_idle(self) -> None:
        while True:
            try:
                inbox = self._idle.pop()
            except IndexError:
                return
            inbox.close(deferred=True)

    # --- ending ---------------------------------------------------------------------------------

    def unsubscribe(self) -> None:
        """
        End the subscription; a fetch that waits returns what it has, or raises.

        If `JetStream.pull_subscribe` made the consumer, and was not told to leave it, it is deleted.

        Raises:
            BadSubscriptionError: the subscription has ended before.
            ConnectionClosedError: the connection is closed.
            APIError, TimeoutError: the consumer could not be deleted.

        """
        self._end("the subscription was ended by unsubscribe()")
        for inbox in tuple(self._busy):
            self._stop(inbox)
            inbox.close()  # before the consumer goes, of which this fetch need not hear
        if self._delete is not None:
            self._delete()

    def drain(self, timeout: float | timedelta | None = None) -> None:
        """
        End the subscription; a fetch that waits gets what is on its way, and returns.

        The consumer is deleted as with `unsubscribe()`, after that. An error of that goes to the
        ``error_cb``.

        Args:
            timeout: in seconds; ``None``: the connection's ``drain_timeout``.

        Raises:
            DrainTimeoutError: it took longer.
            BadSubscriptionError: the subscription has ended before.
            ConnectionClosedError: the connection is closed.

        """
        core = self._api.core
        deadline = Deadline(core.options.drain_timeout if timeout is None else timeout)
        self._end("the subscription was drained")
        try:
            for inbox in tuple(self._busy):
                inbox.drain(deadline)
        finally:
            for inbox in tuple(self._busy):
                self._stop(inbox)
                inbox.close()
        if self._delete is not None:
            try:
                self._delete()
            except Error as error:
                core.events.error(error)

    def _end(self, reason: str) -> None:
        closed = self._api.core.writer.closed
        if closed is not None:
            raise fresh(closed)
        if self._ended is not None:
            raise fresh(self._ended)
        self._ended = BadSubscriptionError(reason)
        self._close_idle()

    def _stop(self, inbox: PullInbox) -> None:
        """End a fetch that is under way; what has come for it can still be read."""
        assert self._ended is not None
        inbox.mailbox.close(self._ended)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.is_valid:
            self.unsubscribe()


# --- one fetch ------------------------------------------------------------------------------------


class _Requests(NamedTuple):
    """What a fetch asks for."""

    now: PullRequest
    """What is there."""
    later: PullRequest
    """What comes."""
    seconds: float | None
    """How long the client waits for both."""


@lru_cache(maxsize=64, typed=True)
def _requests(
    batch: int, timeout: float | timedelta | None, heartbeat: float | timedelta | None
) -> _Requests:
    """Return the requests of a fetch; programs fetch the same over and over, so they are kept."""
    timeout_ns = (
        _MAX_EXPIRES_NS if timeout is None else duration_to_ns(duration(timeout, "timeout"))
    )
    later = PullRequest(
        batch=batch,
        expires_ns=timeout_ns,
        heartbeat_ns=0 if heartbeat is None else duration_to_ns(duration(heartbeat, "heartbeat")),
    )
    now = replace(later, no_wait=True, expires_ns=0, heartbeat_ns=0)
    return _Requests(now, later, None if timeout is None else timeout_ns / _SECOND)


class _TwoRequests(Fetch):
    """A fetch that asks for what is there, and waits only if that is nothing."""

    def __init__(self, requester: PullRequester, requests: _Requests) -> None:
        super().__init__(requester, requests.now, requests.seconds)
        self._later = requests.later
        # The server says in time that the time is up.
        self._patience = self._end
        self._retries = True

    def _handle_end_status(self, status: PullStatus, inbox: PullInbox) -> bool:
        if status.kind is not PullStatusKind.QUIET or self._messages:
            return super()._handle_end_status(status, inbox)
        self._backoff = None
        if self._request.no_wait:
            self._request = self._later
            self._heartbeats = pull_heartbeat_timeout(self._later.heartbeat_ns)
            return self._request_again(inbox)
        if self._end.left() is None:
            return self._request_again(inbox)
        # The request ends a little earlier than the time that the user gave.
        self.answered = True
        self._heartbeats = pull_heartbeat_timeout(0)
        return True

    def _missing(self, left: float | None) -> PullRequest:
        if left is not None:
            left -= min(_MARGIN, left * _MARGIN_PART)
        return super()._missing(left)


class PullSubscribeAPI:
    """The part of `JetStream` that makes pull subscriptions."""

    _api: APIRequests

    def pull_subscribe(
        self,
        subject: str,
        durable: str | None = None,
        stream: str | None = None,
        config: ConsumerConfig | None = None,
        delete_consumer: bool = True,
    ) -> PullSubscription:
        """
        Subscribe to a subject of a stream, to fetch messages.

        A durable consumer that exists is used as it is; anything asked for that it does not have is
        an error. One that does not exist is made, with the subject as its filter (ADR-15). So is an
        ephemeral one when no durable is named.

        Args:
            subject: what to fetch, with wildcards; may be empty when the stream is named.
            durable: the name of a durable consumer; ``None``: an ephemeral one.
            stream: the name of the stream; ``None``: the one stream that takes the subject.
            config: what to make the consumer of, or has to be that of the one that exists;
                ``None``: the defaults.
            delete_consumer: whether `PullSubscription.unsubscribe` and `PullSubscription.drain`
                delete the consumer if this call made it, a durable one, too. One that was there
                before is never deleted.

        Raises:
            StreamNotFoundError: no stream has the subject, or has that name.
            SubscribeError: the subscription and the consumer do not fit together, or the subject
                and the streams; see its subclasses.
            InvalidOptionError, InvalidNameError, BadSubjectError: an argument is invalid.
            APIError: the server returned an error.
            JetStreamNotEnabledError, TimeoutError, ConnectionClosedError: as
                `JetStream.account_info`.

        """
        wanted = SubscribeRequest.of(
            subject=subject if subject == "" else check_subject(subject),
            stream=stream,
            durable=durable,
            pull=True,
            config=config,
        )
        return self._subscribed(resolve_pull_consumer(self._api, wanted), delete_consumer)

    def pull_subscribe_bind(self, consumer: str, stream: str) -> PullSubscription:
        """
        Subscribe to a consumer that exists, to fetch its messages.

        It is looked up. Where that fails (it is not there yet, or this user may not look), it is
        believed in, and `PullSubscription.fetch` says what is wrong (ADR-15).

        Args:
            consumer: the consumer's name.
            stream: the name of its stream.

        Raises:
            PullOnPushConsumerError: it delivers to a subject.
            InvalidNameError: the consumer name or the stream name is invalid.
            ConnectionClosedError: the connection is closed.

        """
        wanted = SubscribeRequest.of(
            stream=check_stream_name(stream), bind=check_consumer_name(consumer), pull=True
        )
        return self._subscribed(resolve_pull_consumer(self._api, wanted), delete_consumer=False)

    def _subscribed(self, found: ResolvedConsumer, delete_consumer: bool) -> PullSubscription:
        def delete() -> None:
            release_consumer(self._api, found.stream, found.consumer, shared=False)

        return PullSubscription(
            self._api,
            found.stream,
            found.consumer,
            found.config,
            delete if found.created and delete_consumer else None,
        )
