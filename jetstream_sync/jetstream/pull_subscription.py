"""Pull subscriptions (ADR-13): `JetStream.pull_subscribe` and `JetStream.pull_subscribe_bind`."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Final

from .. import errors
from ..api.consumer import ConsumerConfig
from ..api.pull import PullRequest, PullStatus, PullStatusKind, fetch_request
from ..api.subscribing import SubscribeRequest
from ..client.mailbox import copy_exception, first_items
from ..client.threads import call_to_end
from ..durations import NS_PER_S
from ..locks import new_lock
from ..net.clock import Deadline
from ..subjects import check_consumer_name, check_stream_name, check_subject
from .api_requests import APIRequests, limited, with_one_deadline
from .consumer_requests import ConsumerAccessors, release_consumer, taken_back
from .heartbeat import pull_heartbeat_timeout
from .message import JetStreamMsg
from .pull import Fetch, PullInbox, PullRequester, RetryPolicy
from .subscribe import ResolvedConsumer, resolve_pull_consumer

if TYPE_CHECKING:
    from typing_extensions import Self

#: Seconds by which a request expires before the client's timeout (ADR-13), so that its status arrives.
_MARGIN: Final = 0.1
#: The same for short timeouts, as a fraction of the remaining time.
_MARGIN_PART: Final = 0.1


class PullSubscription(ConsumerAccessors):
    """
    A pull subscription: each call of `fetch()` requests messages.

    Returned by `JetStream.pull_subscribe` and `JetStream.pull_subscribe_bind`. It follows
    ADR-13. `PullConsumer` is the newer API (ADR-37), which also pulls ahead.

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
        """Initialise the subscription; no request is sent."""
        # `delete`: deletes the consumer at the end; ``None``: the consumer is kept.
        #
        # Raises InvalidOptionError: the consumer has priority groups, which this class does not
        # support.
        self._api = api
        self._stream = stream
        self._consumer = consumer
        self._delete = delete
        self._requester = PullRequester(api, stream, consumer, config)
        self._requester.check(PullRequest(no_wait=True))
        # The reason why the subscription has ended.
        self._ended: errors.Error | None = None
        # The inboxes of running fetches.
        self._busy: set[PullInbox] = set()
        self._count = new_lock()
        self._delivered = 0

    # --- counters -------------------------------------------------------------------------------

    @property
    def delivered(self) -> int:
        """The number of fetched messages."""
        return self._delivered

    @property
    def pending_msgs(self) -> int:
        """The number of messages that were received for a running fetch and not processed yet."""
        return len(self._pending())

    @property
    def pending_bytes(self) -> int:
        """The bytes of headers and payloads of the pending messages."""
        return sum(len(header) + len(payload) for header, payload in self._pending())

    @property
    def is_valid(self) -> bool:
        """Whether more messages can be fetched."""
        return self._ended is None and self._api.core.closed_reason is None

    def _pending(self) -> list[tuple[bytes, bytes]]:
        waiting = [item for inbox in self._busy.copy() for item in first_items(inbox.mailbox.items)]
        # An item without a reply subject is a status or a connection marker.
        return [(header, payload) for _, reply, header, payload in waiting if reply]

    # --- fetching -------------------------------------------------------------------------------

    def fetch(
        self,
        batch: int = 1,
        timeout: float | timedelta | None = 5,
        heartbeat: float | timedelta | None = None,
    ) -> list[JetStreamMsg]:
        """
        Return the available messages, or wait for some.

        The first request asks for the messages that are available at once. If there are any, they are
        returned, even if the batch is not complete. Otherwise a second request waits for a whole batch.
        It expires a tenth of a second before the timeout (a tenth of a short timeout). The messages are
        returned then, or when the batch is complete. A lost connection does not end a fetch: it repeats
        its request after the reconnect.

        Messages that arrive after the fetch has ended are redelivered after ``ack_wait``. With ack
        policy ``none`` they go to the next fetch, which returns them at once.

        Args:
            batch: maximum number of messages.
            timeout: in seconds; ``None``: wait until the batch is complete.
            heartbeat: interval of the server's heartbeats, in seconds, at most
                half of ``timeout``.

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
        try:
            now, later = _requests(batch, timeout, heartbeat)
        except TypeError:  # a value cannot be hashed: its check refuses it
            now, later = _requests.__wrapped__(batch, timeout, heartbeat)
        if self._ended is not None:
            raise copy_exception(self._ended)
        expires = None if timeout is None else later.expires_ns / NS_PER_S
        messages = _TwoRequests(self, now, later, expires).run()
        if not messages:
            raise self._api.core.state.timed_out(
                f"no message from consumer {self._consumer!r} in time"
            )
        return messages

    def _run_in(
        self, inbox: PullInbox, pull: Callable[[PullInbox], list[JetStreamMsg]]
    ) -> list[JetStreamMsg]:
        """Fetch into an inbox, which the end of the subscription closes."""
        self._busy.add(inbox)
        try:
            if self._ended is not None:  # it ended before the inbox was in the set
                raise copy_exception(self._ended)
            messages = pull(inbox)
        finally:
            self._busy.discard(inbox)
        with self._count:
            self._delivered += len(messages)
        return messages

    # --- ending ---------------------------------------------------------------------------------

    def unsubscribe(self) -> None:
        """
        End the subscription; a waiting fetch returns its messages, or raises.

        A consumer that `JetStream.pull_subscribe` created is deleted unless ``delete_consumer`` was false.

        Raises:
            BadSubscriptionError: the subscription has ended before.
            ConnectionClosedError: the connection is closed.
            APIError, TimeoutError: the consumer could not be deleted.

        """
        ending = "the subscription was ended by unsubscribe()"

        def again() -> None:
            with suppress(errors.BadSubscriptionError):
                self._end(ending)
            self._delete_now()

        def unsubscribe() -> None:
            self._end(ending)
            self._delete_now()

        call_to_end(f"closer-{self._api.core.name}", unsubscribe, again)

    def _delete_now(self) -> None:
        for inbox in self._busy.copy():
            self._stop(inbox)
            inbox.close()  # before the consumer is deleted, so that the fetch does not see that
        if self._delete is not None:
            self._delete()

    def drain(self, timeout: float | timedelta | None = None) -> None:
        """
        End the subscription; a waiting fetch receives the messages in flight and returns.

        The consumer is deleted afterwards, as by `unsubscribe()`. An error of the deletion is reported to
        ``error_cb``.

        Args:
            timeout: in seconds; ``None``: the connection's ``drain_timeout``.

        Raises:
            DrainTimeoutError: the timeout expired.
            BadSubscriptionError: the subscription has ended before.
            ConnectionClosedError: the connection is closed.

        """
        core = self._api.core
        deadline = Deadline(core.options.drain_timeout if timeout is None else timeout)
        self._end("the subscription was drained")
        try:
            for inbox in self._busy.copy():
                inbox.drain(deadline)
        finally:
            for inbox in self._busy.copy():
                self._stop(inbox)
                inbox.close()
        if self._delete is not None:
            try:
                with limited(deadline):
                    self._delete()
            except errors.Error as error:
                core.events.error(error)

    def _end(self, reason: str) -> None:
        closed = self._api.core.closed_reason
        if closed is not None:
            raise copy_exception(closed)
        if self._ended is not None:
            raise copy_exception(self._ended)
        self._ended = errors.BadSubscriptionError(reason)
        self._requester.close_inboxes()

    def _stop(self, inbox: PullInbox) -> None:
        """End a running fetch; its received messages can still be read."""
        assert self._ended is not None
        inbox.mailbox.close(self._ended)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.is_valid:
            self.unsubscribe()


# --- one fetch ------------------------------------------------------------------------------------


@lru_cache(maxsize=64, typed=True)
def _requests(
    batch: int, timeout: float | timedelta | None, heartbeat: float | timedelta | None
) -> tuple[PullRequest, PullRequest]:
    """Return the requests of a fetch: for the available messages, and for new ones; cached as those."""
    later = fetch_request(batch, timeout, heartbeat=heartbeat or 0)
    return replace(later, no_wait=True, expires_ns=0, heartbeat_ns=0), later


class _TwoRequests(Fetch):
    """A fetch that asks for what is there, and waits only if that is nothing."""

    def __init__(
        self,
        subscription: PullSubscription,
        now: PullRequest,
        later: PullRequest,
        expires: float | None,
    ) -> None:
        super().__init__(subscription._requester, now, expires)  # noqa: SLF001 - one module
        self._subscription = subscription
        self._is_small = now.batch == 1  # ADR-13: a batch has an inbox of its own
        self._later = later
        # The server tells the caller before the deadline that no message came.
        self._reply_end = self._end
        self._policy = RetryPolicy.IF_AWAY

    def run_in(self, inbox: PullInbox) -> list[JetStreamMsg]:
        return self._subscription._run_in(inbox, super().run_in)  # noqa: SLF001 - one module

    def _handle_end_status(self, status: PullStatus, inbox: PullInbox) -> bool:
        has_end = self._end.left() is not None
        if status.kind is not PullStatusKind.QUIET or (self._messages and has_end):
            return super()._handle_end_status(status, inbox)
        if has_end and self._request is self._later:
            # The request ends a little earlier than the time that the user gave.
            self.answered = True
            self._heartbeats = pull_heartbeat_timeout(0)
            return True
        self._backoff = None
        self._request = self._later
        self._heartbeats = pull_heartbeat_timeout(self._later.heartbeat_ns)
        return self._request_again(inbox)

    def _missing(self, left: float | None) -> PullRequest:
        if left is not None:
            left -= min(_MARGIN, left * _MARGIN_PART)
        return super()._missing(left)


class PullSubscribeAPI:
    """The methods of `JetStream` that create pull subscriptions."""

    _api: APIRequests

    @with_one_deadline
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

        An existing durable consumer is used unchanged; a requested option that differs is an error. A
        missing one is created with the subject as its filter (ADR-15), and so is an ephemeral consumer if
        no durable name is given.

        Args:
            subject: the subject, which may have wildcards; may be empty if ``stream`` is given.
            durable: the name of a durable consumer; ``None``: an ephemeral one.
            stream: the name of the stream; ``None``: the only stream with the subject.
            config: the config of a new consumer, or the expected config of an existing one; ``None``:
                the defaults.
            delete_consumer: whether `PullSubscription.unsubscribe` and `PullSubscription.drain`
                delete the consumer if this call created it, also a durable one. An existing consumer
                is never deleted.

        Raises:
            StreamNotFoundError: no stream has the subject, or has that name.
            SubscribeError: the subscription does not match the consumer, or the subject matches
                several streams; see its subclasses.
            InvalidOptionError, InvalidNameError, BadSubjectError: an argument is invalid.
            Error: otherwise as `JetStream.account_info`.

        """
        request = SubscribeRequest.of(
            subject=check_subject(subject) if subject != "" else "",
            stream=stream,
            durable=durable,
            pull=True,
            config=config,
        )
        found = resolve_pull_consumer(self._api, request)
        own_name = found.consumer if found.made and request.consumer is None else None
        with taken_back(self._api, found.stream, own_name):
            return self._subscribed(found, delete_consumer)

    @with_one_deadline
    def pull_subscribe_bind(self, consumer: str, stream: str) -> PullSubscription:
        """
        Subscribe to an existing consumer, to fetch its messages.

        The consumer is looked up. If that fails (it does not exist yet, or the lookup is not permitted),
        it is assumed to exist, and `PullSubscription.fetch` raises the error (ADR-15).

        Args:
            consumer: the consumer's name.
            stream: the name of its stream.

        Raises:
            PullOnPushConsumerError: it delivers to a subject.
            InvalidNameError: the consumer name or the stream name is invalid.
            ConnectionClosedError: the connection is closed.

        """
        request = SubscribeRequest.of(
            stream=check_stream_name(stream), bind=check_consumer_name(consumer), pull=True
        )
        return self._subscribed(resolve_pull_consumer(self._api, request), delete_consumer=False)

    def _subscribed(self, found: ResolvedConsumer, delete_consumer: bool) -> PullSubscription:
        delete = None
        if found.made is not None and delete_consumer:
            delete = partial(release_consumer, self._api, found.made, shared=False)
        return PullSubscription(self._api, found.stream, found.consumer, found.config, delete)
