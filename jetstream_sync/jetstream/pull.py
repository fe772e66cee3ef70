"""
Pull requests (ADR-13, ADR-37): the inbox of their replies, the requester, and one bounded fetch.

`PullInbox` receives the messages and statuses. `PullRequester` sends the requests of one consumer and
is shared by fetches and continuous pulls. `Fetch` is one `fetch()`, `fetch_no_wait()` or `next()`.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from typing import ClassVar, Final
from weakref import ref

from ..api.consumer import ConsumerConfig
from ..api.echo import release
from ..api.enums import AckPolicy, PriorityPolicy
from ..api.pull import PullRequest
from ..api.status import PullStatus, PullStatusKind, parse_pull_status
from ..client.core import ConnectionCore
from ..client.mailbox import Mailbox
from ..errors import (
    BadSubscriptionError,
    ConnectionClosedError,
    ConnectionDrainingError,
    ConnectionLostError,
    Error,
    InvalidOptionError,
    LeadershipChangeError,
    NoHeartbeatError,
    NotFoundError,
    PermissionsError,
    PullError,
    TimeoutError,
)
from ..headers import PIN_ID, parse_headers
from ..net.clock import Deadline, monotonic
from ..protocol.parser import Delivery
from .api_requests import APIRequests
from .consumer_api import consumer_info
from .heartbeat import pull_heartbeat_timeout
from .leases import Leases
from .message import JetStreamMsg

__all__ = [
    "CONSUMER_CHECK_DELAY_S",
    "DISCONNECTED",
    "RECONNECTED",
    "AnswerInbox",
    "Fetch",
    "PullInbox",
    "PullRequester",
    "RetryBackoff",
]

#: Put among the messages when the link breaks: what was asked for is lost. They look like
#: statuses, so that nobody has to look for them among messages, and are known by identity.
DISCONNECTED: Final[Delivery] = (b"", b"", b"down", b"")
#: Put among the messages when there is a new link.
RECONNECTED: Final[Delivery] = (b"", b"", b"up", b"")


class PullInbox:
    """
    A subject of its own for the answers to pull requests.

    Messages come under the subjects that they were published to, so requests whose answers must
    not be mixed up need inboxes of their own. The subscription is sent with the next request.

    What was asked for is lost with the link, and has to be asked for again, once, on the next one.
    So the subject changes with the link, for the server may still have requests with the old one;
    and nothing may be asked between a change of the link and the moment when its `RECONNECTED` is
    read: `next_reply()` and `news()` see to that.

    Args:
        core: the connection.

    Raises:
        ConnectionClosedError: it is closed or draining.

    """

    is_reply_inbox = False

    #: What follows the reply subject in the subscription's.
    _suffix: ClassVar[str] = ""

    __slots__ = (
        "_closed",
        "_core",
        "_disconnects",
        "_disconnects_read",
        "_interest",
        "callback_finished",
        "connected",
        "last_seen",
        "mailbox",
        "reply",
        "request_subject",
    )

    def __init__(self, core: ConnectionCore) -> None:
        self._core = core.machinery  # the reader holds this object
        self._closed = False
        #: Where the last request went.
        self.request_subject = b""
        # How often the link broke: by the reader's count, and by what was read of it.
        self._disconnects = 0
        self._disconnects_read = 0
        #: What came and was not read yet.
        self.mailbox: Mailbox[Delivery] = Mailbox(core.machinery.timed_out)
        #: When something came last, by the monotonic clock; written by the reader, once per read.
        self.last_seen = monotonic()
        #: Waits until a callback has had the last message; ``None``: there is no callback.
        self.callback_finished: Callable[[Deadline], bool] | None = None
        subject = core.new_inbox()
        #: The subject, as bytes: the reply of requests.
        self.reply = subject.encode()
        self._interest = core.add_subscription_deferred(subject + self._suffix, self)
        #: Whether there is a link, as far as it was read. Looked at once there is a subscription:
        #: what changes later is told.
        self.connected = core.address is not None

    def close(self, *, deferred: bool = False) -> None:
        """
        Give the subscription up; what has come stays readable.

        Args:
            deferred: tell the server when something else is sent. Where a request may be left, the
                server has to know at once: it would go on sending messages here.

        """
        self._closed = True
        if deferred:
            self._core.remove_subscription_deferred(self._interest)
        else:
            self._core.remove_subscription(self._interest)

    def next_reply(self) -> bytes | None:
        """Return the reply for a request that is sent now; ``None``: wait for `RECONNECTED`."""
        # Read before the count: the reader counts first, and changes it then.
        reply = self.reply
        return reply if self.connected and self._disconnects == self._disconnects_read else None

    def is_current(self, status: Delivery) -> bool:
        """Say whether a status is about the last request, and not about one before it."""
        # Here they are all of one fetch, which asks again when the one before has ended.
        del status
        return True

    def apply_connection_change(self, delivery: Delivery) -> bool:
        """Take note of `DISCONNECTED` or `RECONNECTED`; say whether what was asked for can be asked again."""
        if delivery is DISCONNECTED:
            self._disconnects_read += 1
            self.connected = False
            return False
        known, self.connected = self.connected, True
        return not known

    def drain(self, deadline: Deadline) -> None:
        """
        Give the subscription up once everything that is on its way has come.

        Raises:
            DrainTimeoutError: the server did not confirm in time.
            ConnectionClosedError: the connection is closed, or lost its link.

        """
        self._core.drain_subscriptions([self._interest], deadline)

    # --- the reader's side; see `MessageReceiver` ----------------------------------------------------------

    def deliver(self, deliveries: list[Delivery]) -> None:
        """Take messages and statuses."""
        self.last_seen = monotonic()
        self.mailbox.put(deliveries, len(deliveries))

    def on_connection_change(self, *, connected: bool) -> None:
        """Put the news among the messages, and take another subject for the next link."""
        if not connected:
            self._disconnects += 1
            self._renew()
        self.mailbox.put((RECONNECTED if connected else DISCONNECTED,), 1)

    def on_permission_error(self, subject: bytes, error: PermissionsError) -> bool:
        """End where the server does not permit the request, or this inbox: asking again is no use."""
        if self.mailbox.closed:
            return False
        if error.operation != "subscribe" and subject not in (self.request_subject, self.reply):
            return False
        self.mailbox.close(error)
        self.close(deferred=True)
        return True

    def _renew(self) -> None:
        subject = self._core.new_inbox()
        old = self._interest
        try:
            self._interest = self._core.add_subscription_deferred(subject + self._suffix, self)
        except ConnectionClosedError:
            return  # it is being closed
        self.reply = subject.encode()
        self._core.remove_subscription_deferred(old)
        if self._closed:
            # close() came meanwhile, and may not have seen the new one.
            self._core.remove_subscription_deferred(self._interest)

    def on_closed(self, reason: BaseException) -> None:
        """Wake whoever waits."""
        if isinstance(reason, BadSubscriptionError):
            reason = ConnectionDrainingError("the connection was drained")
        self.mailbox.close(reason)

    def wait_drained(self, deadline: Deadline) -> bool:
        """Wait for the callback that the messages go to, if there is one."""
        return self.callback_finished is None or self.callback_finished(deadline)


class AnswerInbox(PullInbox):
    """
    An inbox that is used again: each request has a reply subject of its own in it.

    It saves a subscription for each fetch of a single message ("Pull Optimization" of ADR-13), and
    takes what comes after a fetch has ended. Only one fetch has it at a time. Messages cannot be told
    apart by the request that they answer, statuses can.
    """

    _suffix: ClassVar[str] = ".*"

    __slots__ = ("_reply", "_tokens", "owner")

    def __init__(self, core: ConnectionCore) -> None:
        self._tokens = itertools.count(1)
        self._reply = b""
        #: What keeps the inbox between two fetches: without it the inbox is closed with the next
        #: delivery, or the next change of the link.
        self.owner: ref[object] | None = None
        super().__init__(core)

    def next_reply(self) -> bytes | None:
        """Return the reply for a request that is sent now, with a token of its own."""
        reply = super().next_reply()
        if reply is None:
            return None
        self._reply = b"%b.%x" % (reply, next(self._tokens))
        return self._reply

    def is_current(self, status: Delivery) -> bool:
        """Return whether a status is about the last request."""
        return status[0] == self._reply

    def deliver(self, deliveries: list[Delivery]) -> None:
        """Take messages and statuses."""
        super().deliver(deliveries)
        self._close_without_owner()

    def on_connection_change(self, *, connected: bool) -> None:
        """Put the news among the messages, and take another subject for the next link."""
        super().on_connection_change(connected=connected)
        self._close_without_owner()

    def _close_without_owner(self) -> None:
        if self.owner is not None and self.owner() is None:
            self.close(deferred=True)


#: Seconds of silence after which it makes sense to ask whether the consumer is there.
CONSUMER_CHECK_DELAY_S: Final = 0.5
#: Seconds until a consumer without a leader is asked again: at first, and at most.
_FIRST_RETRY_DELAY_S: Final = 0.25
_MAX_RETRY_DELAY_S: Final = 2.0
#: Seconds to wait for the word whether a consumer that does not answer is still there.
_CONSUMER_CHECK_TIMEOUT_S: Final = 1.0


class RetryBackoff:
    """
    The time in which a consumer has nobody to serve it: no leader, or its server shuts down.

    It is asked again in growing intervals, so that many clients leave a cluster alone that has
    enough to do. Not thread-safe.
    """

    __slots__ = ("_longest", "_wait", "error", "retry_at")

    def __init__(self, longest: float = _MAX_RETRY_DELAY_S) -> None:
        self._longest = longest
        self._wait = 0.0
        #: When to ask again, by the monotonic clock; ``None``: a request is out, or need not be.
        self.retry_at: float | None = None
        #: What was last said; ``None``: it is there, as far as is known.
        self.error: PullError | None = None

    def record(self, error: PullError) -> bool:
        """Note that it is away, and choose when to ask again; say whether that is news."""
        new = self.error is None
        if self._wait:
            self._wait = min(2 * self._wait, self._longest)
        elif not new or not isinstance(error, LeadershipChangeError):
            # The first time, who says that it is the leader now can be asked at once.
            self._wait = _FIRST_RETRY_DELAY_S
        self.retry_at = monotonic() + self._wait
        self.error = error
        return new

    def over(self) -> None:
        """Note that it is there."""
        self._wait = 0.0
        self.retry_at = None
        self.error = None


class PullRequester:
    """
    The requesting side of a pull consumer.

    Args:
        api: the JetStream API.
        stream: the stream's name.
        consumer: the consumer's name.
        config: the consumer's config, as it was last seen.

    Any thread may call its methods.
    """

    def __init__(
        self, api: APIRequests, stream: str, consumer: str, config: ConsumerConfig
    ) -> None:
        self.core = api.core
        self.stream = stream
        self.consumer = consumer
        self.config = config
        self._api = api
        self._subject = api.core.composer.encoded(api.routes.next_msg(stream, consumer))
        # What messages are born with: whether an acknowledgement is open, or not wanted at all.
        self._settled = None if config.ack_policy == AckPolicy.NONE else False
        self._pinned = config.priority_policy == PriorityPolicy.PINNED_CLIENT
        self._pin_id: str | None = None
        # Without acknowledgements the server sends nothing twice. Messages that an exception kept
        # from the caller, and inboxes to which more may be on its way, are left for the next fetch.
        self._unread: deque[JetStreamMsg] = deque()
        self._open: list[AnswerInbox] = []

    @property
    def without_acks(self) -> bool:
        """Whether the consumer's ack policy is ``none``."""
        return self._settled is None

    def check(self, request: PullRequest) -> None:
        """
        Refuse a request that this consumer can not serve.

        Raises:
            InvalidOptionError: the group is missing, not one of the consumer's, or it has none.

        """
        groups = self.config.priority_groups or ()
        if groups and request.group not in groups:
            raise InvalidOptionError("group", request.group, f"must be one of {list(groups)}")
        if request.group and not groups:
            raise InvalidOptionError("group", request.group, "the consumer has no priority groups")

    def send(self, request: PullRequest, inbox: PullInbox, *, deferred: bool = False) -> None:
        """
        Send a request, with the pin that this client holds; do nothing while there is no link.

        Args:
            request: what to ask for.
            inbox: where the answers go; it gets `RECONNECTED` when there is a link.
            deferred: let it wait for company; who goes to sleep sends it.

        Raises:
            ConnectionClosedError: the connection is closed.
            OutboundBufferLimitError: the link just broke, and the buffer for that time is full.

        """
        reply = inbox.next_reply()
        if reply is None:
            return
        inbox.request_subject = self._subject
        if self._pin_id is not None:
            request = replace(request, pin_id=self._pin_id)
        command, size = self.core.composer.command(self._subject, request.encode(), reply)
        if deferred:
            self.core.writer.publish_deferred(command, size)
        else:
            self.core.writer.send(command, 1, size)

    def message(self, delivery: Delivery) -> JetStreamMsg:
        """Make the message that the user gets."""
        if self._pinned and delivery[2]:
            headers = parse_headers(delivery[2])
            self._pin_id = (headers.get(PIN_ID) if headers else None) or self._pin_id
        return JetStreamMsg(delivery, self.core, self._settled)

    def leases(self) -> Leases:
        """Return an account of the leases of messages; an ordered consumer has none."""
        return Leases(self._api, self.stream, lambda: self.consumer, self.config)

    # --- what an earlier fetch without acknowledgements has left ---------------------------------

    def take_inbox(self) -> AnswerInbox:
        """Return the inbox of an earlier fetch to which more may be on its way, or a new one."""
        while self._open:
            try:
                inbox = self._open.pop()
            except IndexError:
                break  # another thread took it
            if not inbox.mailbox.closed:
                inbox.last_seen = monotonic()
                return inbox
        return AnswerInbox(self.core)

    def keep_inbox(self, inbox: AnswerInbox) -> None:
        """Keep an inbox for the next fetch."""
        inbox.owner = ref(self)
        if inbox not in self._open:
            self._open.append(inbox)

    def take_unread(self, count: int) -> list[JetStreamMsg]:
        """Return up to a number of messages that an earlier fetch took and did not return."""
        taken: list[JetStreamMsg] = []
        while self._unread and len(taken) < count:
            try:
                taken.append(self._unread.popleft())
            except IndexError:
                break  # another thread took it
        return taken

    def keep_unread(self, messages: list[JetStreamMsg]) -> None:
        """Keep messages that an exception kept from the caller."""
        self._unread.extendleft(reversed(messages))

    def unpin(self) -> None:
        """Forget the pin: another client holds it now."""
        self._pin_id = None

    def silent_when_deleted(self) -> bool:
        """
        Say whether a request for a consumer that is not there gets no answer at all.

        So it is with servers before 2.11. Later ones say at once that nobody listens.
        """
        return _before_2_11(self.core.info.version)

    def check_consumer_exists(self, deadline: Deadline) -> Error | None:
        """
        Find out why nobody answers for the consumer.

        Returns:
            The error that says that it is gone; ``None``: it is there, or nobody can say now, so
            asking again makes sense.

        """
        try:
            consumer_info(
                self._api, self.stream, self.consumer, deadline.sooner(_CONSUMER_CHECK_TIMEOUT_S)
            )
        except (NotFoundError, ConnectionClosedError) as error:
            return error
        except Error:
            # JetStream is starting, has no leader, or does not let us ask.
            return None
        return None


@lru_cache(maxsize=16)
def _before_2_11(version: str) -> bool:
    return (release(version) or (2, 11)) < (2, 11)


_SECOND: Final = 1_000_000_000
#: Seconds that the client waits longer than the server, whose status says that the time is up.
_REPLY_MARGIN_S: Final = 1.0
#: How long one request lasts when the user waits for ever.
_MAX_EXPIRES_NS: Final = 60 * _SECOND


class Fetch:
    """
    A pull that ends: when it has its messages, when its time is up, or with an error.

    Args:
        requester: the consumer's.
        request: what to ask for.
        expires: seconds that the user gives; ``None``: until the batch is complete.
        fail_fast: end where the consumer has no leader or the link breaks, instead of asking again,
            and where nothing says that the time is up; an ordered consumer then goes on with
            another consumer.

    It is made, run once with `run()` by one thread, and dropped.
    """

    def __init__(
        self,
        requester: PullRequester,
        request: PullRequest,
        expires: float | None,
        *,
        fail_fast: bool = False,
    ) -> None:
        self._requester = requester
        self._request = request
        self._end = Deadline(expires)
        self._patience = Deadline(None if expires is None else expires + _REPLY_MARGIN_S)
        self._heartbeats = pull_heartbeat_timeout(request.heartbeat_ns)
        self._messages: list[JetStreamMsg] = []
        self._bytes = 0
        #: Whether the server is through with what was asked: the batch is complete, or a status
        #: ended the request. If not, more of its answer may be on its way to a closed inbox.
        self.answered = False
        self._fail_fast = fail_fast
        #: Whether to ask again where the consumer has no leader.
        self._retries = not (request.no_wait or fail_fast)
        self._backoff: RetryBackoff | None = None  # made where there is one
        # Whether nothing has come yet, and that may mean that nobody is there.
        self._check_pending = requester.silent_when_deleted()

    def run(self) -> list[JetStreamMsg]:
        """
        Pull, and return the messages in order; fewer than asked for, or none, when time is up.

        Raises:
            PullError, NotFoundError, NoHeartbeatError: the pull failed before any message came.
            ConnectionClosedError: the connection was closed before any message came.

        """
        if self._requester.without_acks and not self._fail_fast:
            return self._run_without_acks()
        inbox = PullInbox(self._requester.core)
        try:
            return self.run_in(inbox)
        finally:
            inbox.close(deferred=self.answered)

    def _run_without_acks(self) -> list[JetStreamMsg]:
        """Pull as `run()` does, and drop nothing: the server does not send it again."""
        inbox = self._requester.take_inbox()
        try:
            messages = self.run_in(inbox)
        finally:
            if self.answered and inbox.owner is None:
                inbox.close(deferred=True)
            else:
                # An earlier fetch, or this one, may have an open request.
                self._requester.keep_inbox(inbox)
        return messages

    def run_in(self, inbox: PullInbox) -> list[JetStreamMsg]:
        """Pull as `run()` does, into an inbox that the caller closes."""
        try:
            if self._requester.without_acks and self._take_kept(inbox):
                self.answered = True  # nothing was asked for
                return self._messages
            self._requester.send(self._request, inbox)
            self._collect(inbox)
            self.answered = True
        except TimeoutError:
            if self._fail_fast and not self._messages:
                raise NoHeartbeatError(self._requester.consumer, _REPLY_MARGIN_S) from None
        except Error:
            if not self._messages:
                raise
        except BaseException:
            if self._requester.without_acks:
                self._requester.keep_unread(self._messages)
            raise
        return self._messages

    def _take_kept(self, inbox: PullInbox) -> bool:
        """Take the messages that an earlier fetch has left; return whether there were any."""
        messages = self._messages
        messages += self._requester.take_unread(self._request.batch)
        arrived = inbox.mailbox.items
        while arrived and len(messages) < self._request.batch:
            delivery = arrived.popleft()
            if delivery is DISCONNECTED or delivery is RECONNECTED:
                inbox.apply_connection_change(delivery)
            elif (
                not delivery[2]
                or delivery[3]
                or parse_pull_status(delivery[2], delivery[3]) is None
            ):
                messages.append(self._requester.message(delivery))
        return bool(messages)

    def _collect(self, inbox: PullInbox) -> None:
        messages = self._messages
        batch = self._request.batch
        limit = self._request.max_bytes
        make = self._requester.message
        arrived = inbox.mailbox.items
        while len(messages) < batch:
            try:
                delivery = arrived.popleft()
            except IndexError:
                delivery = self._wait(inbox)
            if delivery[2] and not delivery[3]:
                if delivery is DISCONNECTED or delivery is RECONNECTED:
                    self._backoff = None
                    new_link = inbox.apply_connection_change(delivery)
                    if self._fail_fast and (new_link or not inbox.connected):
                        # A part of the answer may be lost with the old link, without a gap that
                        # a later message would show.
                        raise ConnectionLostError("the link broke during the pull")
                    if new_link and not self._request_again(inbox):
                        return
                    continue
                status = parse_pull_status(delivery[2], delivery[3])
                if status is not None:
                    ends = status.kind is not PullStatusKind.HEARTBEAT and inbox.is_current(
                        delivery
                    )
                    if ends and not self._handle_end_status(status, inbox):
                        return
                    continue
            messages.append(make(delivery))
            if limit:
                # A request that has sent exactly its bytes ends without a status.
                self._bytes += sum(map(len, delivery))
                if self._bytes >= limit:
                    return

    def _wait(self, inbox: PullInbox) -> Delivery:
        """Wait for the next delivery, as long as heartbeats come."""
        if not inbox.connected:
            # Nobody will say that the time is up, or that he is there.
            return inbox.mailbox.get(self._end)
        backoff = self._backoff
        while backoff is not None and backoff.retry_at is not None:
            try:
                return inbox.mailbox.get(self._end.sooner(backoff.retry_at - monotonic()))
            except TimeoutError:
                if not self._request_again(inbox):
                    assert backoff.error is not None
                    raise backoff.error from None
        if self._check_pending:
            try:
                return inbox.mailbox.get(self._patience.sooner(CONSUMER_CHECK_DELAY_S))
            except TimeoutError:
                gone = self._requester.check_consumer_exists(self._patience)
                if gone is not None:
                    raise gone from None
            finally:
                self._check_pending = False
        heartbeats = self._heartbeats
        if not heartbeats.limit:
            return inbox.mailbox.get(self._patience)
        while True:
            left = heartbeats.left(inbox.last_seen)
            try:
                return inbox.mailbox.get(self._patience.sooner(left))
            except TimeoutError:
                if self._patience.expired():
                    raise
                if heartbeats.left(inbox.last_seen) <= 0:
                    raise heartbeats.error(self._requester.consumer) from None

    def _handle_end_status(self, status: PullStatus, inbox: PullInbox) -> bool:
        """Act on a status that ends the request; say whether there is, or will be, another one."""
        if status.kind is PullStatusKind.QUIET:
            self._backoff = None
            # A request that waits for ever is made of many that do not.
            return self._end.left() is None and self._request_again(inbox)
        if status.kind is PullStatusKind.FULL:
            return False
        error = status.error
        assert error is not None
        if error.code == 423:
            self._requester.unpin()
        if error.code == 503:
            gone = self._requester.check_consumer_exists(self._patience)
            if gone is not None:
                raise gone
        if status.kind is PullStatusKind.AWAY and self._retries:
            # Asked for again as soon as it makes sense, also on the next link.
            self._backoff = self._backoff or RetryBackoff()
            self._backoff.record(error)
            return True
        raise error

    def _request_again(self, inbox: PullInbox) -> bool:
        """Ask for what is still missing in the time that is left; say whether there is any."""
        left = self._end.left()
        if left is not None and left <= 0:
            return False
        if self._messages and self._request.max_bytes:
            return False  # the server counts bytes per request; this one has had its share
        inbox.last_seen = monotonic()
        self.answered = False
        if self._backoff is not None:
            self._backoff.retry_at = None
        self._check_pending = self._requester.silent_when_deleted()
        self._requester.send(self._missing(left), inbox)
        return True

    def _missing(self, left: float | None) -> PullRequest:
        """Return the request for what is still missing in so many seconds."""
        expires_ns = _MAX_EXPIRES_NS if left is None else int(left * _SECOND)
        return replace(
            self._request,
            batch=self._request.batch - len(self._messages),
            expires_ns=0 if self._request.no_wait else max(1, expires_ns),
            heartbeat_ns=min(self._request.heartbeat_ns, expires_ns // 2),
        )
