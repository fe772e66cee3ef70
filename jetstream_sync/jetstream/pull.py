"""Pull requests (ADR-13, ADR-37): the inbox of their replies, the requester, and one bounded fetch."""

# `PullInbox` receives the messages and statuses. `PullRequester` sends the requests of one consumer and
# is shared by fetches and continuous pulls. `Fetch` is one `fetch()`, `fetch_no_wait()` or `next()`.

from __future__ import annotations

import contextlib
import itertools
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import replace
from enum import Enum
from functools import lru_cache
from itertools import islice, repeat, starmap
from operator import itemgetter
from typing import ClassVar, Final
from weakref import ref

from .. import errors
from ..api.consumer import ConsumerConfig
from ..api.echo import release
from ..api.enums import AckPolicy, PriorityPolicy
from ..api.pull import (
    MAX_EXPIRES_NS,
    PullRequest,
    PullStatus,
    PullStatusKind,
    parse_pull_status,
)
from ..client.core import ConnectionCore
from ..client.mailbox import first_items
from ..client.replies import QueueInbox
from ..client.writer import DEFERRED, NOW
from ..durations import NS_PER_S
from ..headers import PIN_ID, STATUS_START, StatusCode, parse_headers
from ..net.clock import BackoffDelay, Deadline, monotonic
from ..protocol.parser import HEADER, PAYLOAD, REPLY, RawMessage
from ..subjects import DeliverySequence
from .api_requests import APIRequests
from .consumer_requests import consumer_info
from .heartbeat import pull_heartbeat_timeout
from .leases import Leases, NoLeases
from .message import JetStreamMsg

#: Enqueued when the connection is lost: open requests are lost with it. Both markers look like a
#: status, so that messages need no extra check, and are compared by identity.
DISCONNECTED: Final[RawMessage] = (b"", b"", STATUS_START + b"down", b"")
#: Enqueued after a reconnect.
RECONNECTED: Final[RawMessage] = (b"", b"", STATUS_START + b"up", b"")


_header_of: Final = itemgetter(2)
_payload_of: Final = itemgetter(3)


def arrived_messages(deliveries: deque[RawMessage], count: int) -> list[RawMessage]:
    """Return the first deliveries of a queue, up to ``count`` or to one that may be a status."""
    run = first_items(deliveries, count)
    if not all(map(_payload_of, run)) and any(map(_header_of, run)):
        for index, (_, _, header, payload) in enumerate(run):
            if not payload and header.startswith(STATUS_START):
                return run[:index]
    return run


class PullInbox(QueueInbox):
    """An inbox for pull requests."""

    # Messages keep the subject to which they were published. Requests whose replies must not be mixed
    # up therefore need separate inboxes. The subscription is sent with the next request.
    #
    # Open requests are lost with the connection and must be sent again once after a reconnect. The
    # subject therefore changes at each reconnect, because the server may still hold requests for the
    # old one. No request may be sent between a disconnect and the moment when its `RECONNECTED` is
    # read. `next_reply()` and `apply_connection_change()` ensure that.

    #: Appended to the reply subject in the subject of the subscription.
    _suffix: ClassVar[str] = ""

    is_reply_inbox = False

    __slots__ = (
        "_closed",
        "_disconnects",
        "_disconnects_read",
        "awaited",
        "callback_finished",
        "connected",
        "last_seen",
        "waiting",
    )

    def __init__(self, core: ConnectionCore) -> None:
        """Subscribe."""
        self._closed = False
        # The number of disconnects: counted by the reader, and read from the mailbox.
        self._disconnects = 0
        self._disconnects_read = 0
        #: Monotonic time of the last delivery; the reader writes it once per read.
        self.last_seen: float = monotonic()
        #: Waits until the callback has handled the last message; ``None``: there is no callback.
        self.callback_finished: Callable[[Deadline], bool] | None = None
        #: Whether a fetch of one message uses the inbox, or none does; see `read_directly()`.
        self.awaited: bool = False
        #: Whether a fetch is running.
        self.waiting: bool = False
        super().__init__(core, self._suffix)
        #: Whether there is a connection, as far as the markers were read. Initialised after the
        #: subscription exists, because later changes are reported to it.
        self.connected: bool
        try:
            self.connected = core.state.transport is not None
        except BaseException:  # a KeyboardInterrupt
            self.close()
            raise

    def close(self, *, deferred: bool = False) -> None:
        """Remove the subscription; received messages stay readable."""
        # `deferred`: send the UNSUB with the next command. If a request may still be open, the
        # UNSUB must be sent at once, because the server would keep delivering to this inbox.
        self._closed = True
        if deferred:
            self._core.table.remove_deferred(self.subscription)
        else:
            self._core.table.remove(self.subscription)

    def next_reply(self) -> bytes | None:
        """Return the reply subject for a request that is sent now; ``None``: wait for `RECONNECTED`."""
        # Read before the count: the reader increments the count first and then changes the subject.
        reply = self.reply
        return reply if self.connected and self._disconnects == self._disconnects_read else None

    def is_current(self, status: RawMessage) -> bool:
        """Return whether a status belongs to the last request, and not to an earlier one."""
        # All requests here belong to one fetch, which sends the next one after the previous has ended.
        del status
        return True

    def apply_connection_change(self, delivery: RawMessage) -> bool:
        """Apply `DISCONNECTED` or `RECONNECTED`; return whether requests can be sent again."""
        if delivery is DISCONNECTED:
            self._disconnects_read += 1
            self.connected = False
            return False
        known, self.connected = self.connected, True
        return not known

    def caller_waits(self) -> bool:
        """Return whether a fetch waits for messages or statuses."""
        return self.waiting and not self.mailbox.items

    def read_directly(self, deadline: Deadline) -> bool:
        """Read messages from the socket if the reader pauses; return whether there are any."""
        direct = self._core.direct
        if not direct.paused:
            return False
        if not self.awaited:
            direct.end()
            return False
        arrived = self.mailbox.items
        if not direct.read(self.subscription, arrived, arrived.__len__, deadline):
            return False
        self.last_seen = monotonic()
        return True

    def drain(self, deadline: Deadline) -> None:
        """Remove the subscription after everything that is in flight has arrived."""
        self._core.drain_subscriptions([self.subscription], deadline)

    # --- called by the reader; see `MessageReceiver` ------------------------------------------------

    def deliver(self, deliveries: list[RawMessage]) -> None:
        """Enqueue messages and statuses."""
        self.last_seen = monotonic()
        self.mailbox.put(deliveries, len(deliveries))

    def on_connection_change(self, *, connected: bool) -> None:
        """Enqueue the marker, and change the subject before the next reconnect."""
        if not connected:
            self._disconnects += 1
            self.asked = b""  # later permission errors are those of other requests
            self._renew()
        self.mailbox.put((RECONNECTED if connected else DISCONNECTED,), 1)

    def on_permission_error(self, subject: bytes, error: errors.PermissionsError) -> bool:
        """Close if the server does not permit the request or this inbox; a retry would fail too."""
        is_end = super().on_permission_error(subject, error)
        if is_end:
            self.close(deferred=True)
        return is_end

    def _renew(self) -> None:
        subject = self._core.table.new_inbox()
        old = self.subscription
        try:
            self._core.table.add_deferred(subject + self._suffix, self)
        except errors.ConnectionClosedError:
            return  # the connection is being closed
        self.reply: bytes = subject.encode()
        self._core.table.remove_deferred(old)
        if self._closed:
            # close() was called meanwhile and may not have seen the new subscription.
            self._core.table.remove_deferred(self.subscription)

    def wait_drained(self, deadline: Deadline) -> bool:
        """Wait for the callback that receives the messages, if there is one."""
        return self.callback_finished is None or self.callback_finished(deadline)


class ReusableInbox(PullInbox):
    """A reusable inbox: each request has its own reply subject below a wildcard subscription."""

    # It saves a subscription for each fetch of few messages ("Pull Optimization" of ADR-13), and
    # receives messages that arrive after a fetch has ended. One fetch uses it at a time, and only fetches
    # from one consumer. A status can be matched to its request; a message cannot.

    _suffix: ClassVar[str] = ".*"

    __slots__ = ("_reply", "_tokens", "owner")

    def __init__(self, core: ConnectionCore) -> None:
        self._tokens = itertools.count(1)
        self._reply = b""
        #: The object that keeps the inbox between two fetches. When it is garbage collected, the inbox
        #: is closed by the next delivery or connection change.
        self.owner: ref[object] | None = None
        super().__init__(core)

    def next_reply(self) -> bytes | None:
        """Return the reply subject for a request that is sent now, with a new token."""
        reply = super().next_reply()
        if reply is None:
            return None
        self._reply = b"%b.%x" % (reply, next(self._tokens))
        return self._reply

    def is_current(self, status: RawMessage) -> bool:
        """Return whether a status belongs to the last request."""
        return status[0] == self._reply

    def reset(self) -> None:
        """Prepare for the next fetch; drop messages, which the server redelivers."""
        arrived = self.mailbox.items
        while arrived:
            delivery = arrived.popleft()
            if delivery is DISCONNECTED or delivery is RECONNECTED:
                self.apply_connection_change(delivery)

    def deliver(self, deliveries: list[RawMessage]) -> None:
        """Enqueue messages and statuses."""
        super().deliver(deliveries)
        self._close_without_owner()

    def on_connection_change(self, *, connected: bool) -> None:
        """Enqueue the marker, and change the subject before the next reconnect."""
        super().on_connection_change(connected=connected)
        self._close_without_owner()

    def _close_without_owner(self) -> None:
        if self.owner is not None and self.owner() is None:
            self.close(deferred=True)


#: Maximum batch of a fetch that reuses an inbox.
_MAX_SMALL_BATCH: Final = 16
#: Maximum number of inboxes that a connection keeps for later fetches.
_MAX_IDLE_INBOXES: Final = 4
#: Seconds of silence after which the existence of the consumer is checked.
CONSUMER_CHECK_DELAY_S: Final = 0.5
#: Delay before a request to a consumer without a leader is repeated, in seconds: first and maximum.
_FIRST_RETRY_DELAY_S: Final = 0.25
_MAX_RETRY_DELAY_S: Final = 2.0
#: Timeout of the check whether a silent consumer still exists, in seconds.
_CONSUMER_CHECK_TIMEOUT_S: Final = 1.0


class RetryBackoff:
    """Retry back-off while a consumer is unavailable: it has no leader, or its server shuts down."""

    # The delays grow, so that many clients do not overload a recovering cluster. Not thread-safe.

    __slots__ = ("_delays", "error", "retry_at")

    def __init__(self, max_delay: float = _MAX_RETRY_DELAY_S) -> None:
        self._delays = BackoffDelay(_FIRST_RETRY_DELAY_S, max_delay)
        #: Monotonic time of the next attempt; ``None``: a request is open, or none is needed.
        self.retry_at: float | None = None
        #: The last error; ``None``: the consumer is available as far as is known.
        self.error: errors.PullError | None = None

    def record(self, error: errors.PullError) -> bool:
        """Record an error and schedule the next attempt; return whether it is the first error."""
        new = self.error is None
        # After a leadership change the new leader can be asked at once, the first time.
        at_once = new and isinstance(error, errors.LeadershipChangeError)
        self.retry_at = monotonic() + (0.0 if at_once else self._delays.next())
        self.error = error
        return new

    def reset(self) -> None:
        """Record that the consumer is available."""
        self._delays.reset()
        self.retry_at = None
        self.error = None


class RetryPolicy(Enum):
    """After which failures of a request a pull sends another one."""

    NEVER = "never"
    """After none: the server replies at once, or an ordered consumer continues with a new consumer."""
    IF_AWAY = "if the consumer is away"
    """While the consumer is temporarily unavailable, as a fetch until its deadline."""
    ALWAYS = "always"
    """Unless the next request would fail in the same way, as a continuous pull."""


class StatusEffect(Enum):
    """What a pull does after a status."""

    WAIT = "wait"
    """The request is still open."""
    CONTINUE = "continue"
    """The request ended normally; the pull ends or sends the next one."""
    RETRY = "retry"
    """The request is repeated after a delay."""
    REPORT = "report"
    """The error is reported, and the pull continues."""
    FAIL = "fail"
    """The pull ends with the error."""


_SAME_EFFECTS: Final = {
    PullStatusKind.HEARTBEAT: StatusEffect.WAIT,
    PullStatusKind.QUIET: StatusEffect.CONTINUE,
    PullStatusKind.FULL: StatusEffect.CONTINUE,
    PullStatusKind.FATAL: StatusEffect.FAIL,
}

STATUS_EFFECTS: Final[dict[RetryPolicy, dict[PullStatusKind, StatusEffect]]] = {
    policy: {**_SAME_EFFECTS, PullStatusKind.AWAY: away, PullStatusKind.WARNING: warning}
    for policy, away, warning in (
        (RetryPolicy.NEVER, StatusEffect.FAIL, StatusEffect.FAIL),
        (RetryPolicy.IF_AWAY, StatusEffect.RETRY, StatusEffect.FAIL),
        (RetryPolicy.ALWAYS, StatusEffect.RETRY, StatusEffect.REPORT),
    )
}


class GapError(errors.Error):
    """The deliveries of an ordered consumer have a gap."""


class PullRequester:
    """Sends the pull requests of one consumer."""

    # Any thread may call its methods.

    def __init__(
        self, api: APIRequests, stream: str, consumer: str, config: ConsumerConfig
    ) -> None:
        self.core: ConnectionCore = api.core
        self.stream = stream
        self.consumer = consumer
        self._api = api
        self.configure(config)
        self._subject = api.routes.to("CONSUMER.MSG.NEXT", stream, consumer).encode()
        #: The position that each message has to follow; ``None``: gaps are allowed.
        self.sequence: DeliverySequence | None = None
        #: Whether to send one request for each message of a continuous pull, because each has one reply.
        self.single_replies: bool = False
        #: The pin id of this client; ``None``: it was never pinned, or another client is.
        self.pin_id: str | None = None
        # The last request and its JSON: programs repeat the same request.
        self._encoded: tuple[PullRequest, bytes] | None = None
        # Without acknowledgements the server redelivers nothing. Inboxes that may still receive messages
        # are kept for the next fetch.
        self._open: list[ReusableInbox] = []

    def configure(self, config: ConsumerConfig) -> None:
        """Take over the config of the consumer, which may be another one with the same name."""
        self.config: ConsumerConfig = config
        #: Whether the consumer was found to be deleted.
        self.deleted: bool = False
        #: Initial acknowledgement state of a message; ``None``: the consumer wants no acknowledgements.
        self.settled: bool | None = None if config.ack_policy == AckPolicy.NONE else False
        #: Whether a message may bring the pin id of this client.
        self.pinned: bool = config.priority_policy == PriorityPolicy.PINNED_CLIENT

    def failed(self, error: BaseException) -> None:
        """Record whether the error that ended a pull says that the consumer does not exist any more."""
        if isinstance(error, errors.ConsumerDeletedError | errors.NotFoundError):
            self.deleted = True

    def renew(self, deadline: Deadline) -> None:
        """Read the config of the consumer that may have replaced a deleted one; raises as `consumer_info`."""
        if self.deleted:
            try:
                found = consumer_info(self._api, self.stream, self.consumer, deadline)
                self.configure(found.config)
            except errors.PermissionsError:
                self.deleted = False  # it cannot be read

    def check(self, request: PullRequest) -> None:
        """Check that this consumer can serve a request."""
        groups = self.config.priority_groups or ()
        group = request.options.get("group")
        if groups and group not in groups:
            raise errors.InvalidOptionError("group", group, f"must be one of {list(groups)}")
        if group is not None and not groups:
            raise errors.InvalidOptionError("group", group, "the consumer has no priority groups")

    def send(self, request: PullRequest, inbox: PullInbox, *, deferred: bool = False) -> None:
        """Send a request with the pin id of this client; do nothing while disconnected."""
        reply = inbox.next_reply()
        if reply is None:
            return
        inbox.asked = self._subject
        if self.pin_id is not None:
            request = replace(request, pin_id=self.pin_id)
        count = 1
        if self.single_replies:
            count, request = request.batch, request.single()
        encoded = self._encoded
        if encoded is None or encoded[0] is not request:
            encoded = self._encoded = request, request.encode()
        command, size = self.core.encoder.encode_command(self._subject, encoded[1], reply)
        flush = DEFERRED if deferred else NOW
        self.core.writer.append(command * count, size * count, flush, count, True)

    def message(self, delivery: RawMessage) -> JetStreamMsg:
        """Check a message, and return it for the caller; raise if one before it is missing."""
        sequence = self.sequence
        if sequence is not None and not sequence.follows(delivery[REPLY]):
            raise GapError(f"a message is missing after consumer sequence {sequence.last}")
        if self.pinned and delivery[HEADER]:
            headers = parse_headers(delivery[HEADER])
            ids = headers.get_all(PIN_ID) if headers else ()
            # The server adds its header after those of the message, which may have one from elsewhere.
            self.pin_id = ids[-1] if ids else self.pin_id
        return self.make(delivery)

    def make(self, delivery: RawMessage) -> JetStreamMsg:
        """Return a message that needs no check for the caller."""
        return JetStreamMsg(delivery, self.core, self.settled)

    def give_back(self, deliveries: Iterable[RawMessage]) -> None:
        """Let the messages among deliveries be delivered again at once; raises as `JetStreamMsg.nak`."""
        for delivery in deliveries:
            if delivery[REPLY] and parse_pull_status(*delivery[1:]) is None:
                self.make(delivery).nak()

    def leases(self) -> NoLeases:
        """Return the leases of this consumer's messages."""
        if self.config.ack_policy != AckPolicy.EXPLICIT:
            return NoLeases()
        return Leases(self._api, self.stream, lambda: self.consumer, self.config)

    # --- kept by earlier fetches --------------------------------------------------------------------

    def take_inbox(self) -> ReusableInbox:
        """Return an inbox of an earlier fetch, or a new one."""
        while self._open:
            try:
                inbox = self._open.pop()
            except IndexError:
                break  # another thread took it
            if not inbox.mailbox.closed:
                inbox.last_seen = monotonic()
                return inbox
        idle = self._api.caches.idle_inboxes.pop(self._subject, None)
        if not isinstance(idle, ReusableInbox) or idle.mailbox.closed:
            return ReusableInbox(self.core)
        if self.settled is not None:
            idle.reset()
        idle.last_seen = monotonic()
        return idle

    def keep_idle(self, inbox: ReusableInbox) -> None:
        """Keep an inbox without an open request for the next fetch, instead of an earlier one."""
        inbox.asked = b""  # an idle inbox ignores permission errors of requests
        idle = self._api.caches.idle_inboxes
        dropped = [idle.pop(self._subject, None)]
        idle[self._subject] = inbox
        if len(idle) > _MAX_IDLE_INBOXES:  # the first one was added longest ago
            with contextlib.suppress(KeyError, RuntimeError):  # another thread changed the dict
                dropped.append(idle.pop(next(iter(idle))))
        for item in dropped:
            if isinstance(item, ReusableInbox):
                item.close(deferred=True)

    def keep_inbox(self, inbox: ReusableInbox) -> None:
        """Keep an inbox that may still receive messages for the next fetch, without acknowledgements."""
        inbox.owner = ref(self)
        if inbox not in self._open:
            self._open.append(inbox)

    def close_inboxes(self) -> None:
        """Close the inboxes that are kept for the next fetch."""
        kept = [self._api.caches.idle_inboxes.pop(self._subject, None), *self._open]
        self._open.clear()
        for inbox in kept:
            if isinstance(inbox, ReusableInbox):
                inbox.close(deferred=True)

    def silent_when_deleted(self) -> bool:
        """Return whether a request to a missing consumer gets no reply at all."""
        # This is the case with servers before 2.11. Later servers reply "no responders" at once.
        return _before_2_11(self.core.state.info.version)

    def check_consumer_exists(self, deadline: Deadline) -> errors.Error | None:
        """Return the error if a silent consumer is gone; ``None``: a retry is useful."""
        try:
            consumer_info(
                self._api, self.stream, self.consumer, deadline.sooner(_CONSUMER_CHECK_TIMEOUT_S)
            )
        except (errors.NotFoundError, errors.ConnectionClosedError) as error:
            return error
        except errors.Error:
            # JetStream is starting, has no leader, or does not permit the request.
            return None
        return None


@lru_cache(maxsize=16)
def _before_2_11(version: str) -> bool:
    return (release(version) or (2, 11)) < (2, 11)


#: Seconds that the client waits beyond the expiry of the request for the server's final status.
_REPLY_MARGIN_S: Final = 0.25


#: Why a pull that the server answers at once has no result: silence is not an empty stream.
NO_REPLY: Final = "the server did not reply to the pull request"


class Fetch:
    """A bounded pull: it ends with a complete batch, at its deadline, or with an error."""

    # `fail_fast`: raise instead of retrying if the consumer has no leader, the connection is lost, or
    # the final status is missing; an ordered consumer then continues with a new consumer.
    #
    # One thread runs it once with `run()`.

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
        self._reply_end = Deadline(None if expires is None else expires + _REPLY_MARGIN_S)
        self._heartbeats = pull_heartbeat_timeout(request.heartbeat_ns)
        self._messages: list[JetStreamMsg] = []
        self._bytes = 0
        # With a limit in bytes, it is not certain when the request has ended.
        self._is_small = request.batch <= _MAX_SMALL_BATCH and not request.max_bytes
        #: Whether the request has ended: the batch is complete, or a status ended it. If not, more
        #: messages may be in flight to the inbox.
        self.answered: bool = False
        self._fail_fast = fail_fast
        at_once = request.no_wait or fail_fast
        self._policy = RetryPolicy.NEVER if at_once else RetryPolicy.IF_AWAY
        self._backoff: RetryBackoff | None = None  # only while unavailable
        # Whether nothing has arrived yet, which may mean that the consumer does not exist.
        self._check_pending = True

    def run(self) -> list[JetStreamMsg]:
        """Pull and return the messages in order; fewer than the batch, or none, after a timeout."""
        self._requester.renew(self._end)
        if self._is_small or self._requester.settled is None:
            return self._run_in_kept()
        inbox = PullInbox(self._requester.core)
        try:
            return self.run_in(inbox)
        finally:
            inbox.close(deferred=self.answered)

    def _run_in_kept(self) -> list[JetStreamMsg]:
        """Pull into the inbox of an earlier fetch, and keep it for a later one."""
        requester = self._requester
        kept = requester.take_inbox()
        try:
            return self.run_in(kept)
        finally:
            if self.answered and kept.owner is None:
                if self._is_small:
                    requester.keep_idle(kept)
                else:
                    kept.close(deferred=True)
            elif requester.settled is None:
                # This fetch or an earlier one may have an open request. The server redelivers nothing.
                requester.keep_inbox(kept)
            else:
                kept.close()

    def run_in(self, inbox: PullInbox) -> list[JetStreamMsg]:
        """Pull as `run()` does, into an inbox that the caller closes."""
        # More messages arrive in several reads, which cost less in the reader.
        inbox.awaited = self._request.batch == 1
        inbox.waiting = True
        try:
            if self._requester.settled is None and self._take_kept(inbox):
                self.answered = True  # no request was sent
                return self._messages
            self._requester.send(self._request, inbox)
            self._collect(inbox)
            self.answered = True
        except errors.TimeoutError:
            if self._fail_fast and not self._messages:
                raise errors.NoHeartbeatError(self._requester.consumer, _REPLY_MARGIN_S) from None
            if self._request.no_wait and not self._messages:
                raise self._requester.core.state.timed_out(NO_REPLY) from None
        except errors.Error as error:
            self._requester.failed(error)
            if not self._messages:
                raise
        except BaseException:
            if self._requester.settled is False:
                self._give_back(inbox)
            raise
        finally:
            inbox.waiting = False
            inbox.awaited = True  # an inbox that is kept: no message is expected
        return self._messages

    def _give_back(self, inbox: PullInbox) -> None:
        """End the inbox after a Ctrl-C, and let the messages be delivered again that the caller does not get."""
        with contextlib.suppress(errors.Error):
            inbox.drain(Deadline(_REPLY_MARGIN_S))  # for those in flight
        with contextlib.suppress(errors.Error):
            for message in self._messages:
                message.nak()
            self._requester.give_back(inbox.mailbox.items)

    def _room(self, ended: PullStatusKind | None = None, size: int = 1) -> int:
        """
        Return how many messages the fetch still takes; 0: it ends.

        ``ended``: how its request has ended, the rest of which would be requested again; ``size``: that of the next
        message, if it is known.
        """
        request = self._request
        if request.max_bytes and self._messages:
            # The server counts the bytes of each request, and sends no status when exactly these were sent.
            if ended is not None or self._bytes + size > request.max_bytes:
                return 0
        elif ended is PullStatusKind.FULL:
            return 0
        if ended is not None:
            left = self._end.left()
            # A fetch without a timeout consists of many requests with an expiry.
            if left is not None and (left <= 0 or ended is PullStatusKind.QUIET):
                return 0
        return request.batch - len(self._messages)

    def _take_kept(self, inbox: PullInbox) -> bool:
        """Take the messages that an earlier fetch kept; return whether there were any."""
        arrived = inbox.mailbox.items
        while arrived and self._room(size=sum(map(len, arrived[0]))):
            delivery = arrived.popleft()
            if delivery is DISCONNECTED or delivery is RECONNECTED:
                inbox.apply_connection_change(delivery)
            elif parse_pull_status(*delivery[1:]) is None:
                self._take(delivery)
        return bool(self._messages)

    def _collect(self, inbox: PullInbox) -> None:
        """Take the messages that arrive, until the fetch ends."""
        arrived = inbox.mailbox.items
        in_runs = not (self._request.max_bytes or self._requester.pinned)
        while room := self._room():
            if in_runs and arrived and self._take_run(arrived, room):
                continue
            try:
                delivery = arrived.popleft()
            except IndexError:
                delivery = self._wait(inbox)
            if not delivery[HEADER] or delivery[PAYLOAD]:
                self._take(delivery)
            elif delivery is DISCONNECTED or delivery is RECONNECTED:
                if not self._handle_connection_change(delivery, inbox):
                    return
            elif (status := parse_pull_status(*delivery[1:])) is None:
                self._take(delivery)
            elif (
                status.kind is not PullStatusKind.HEARTBEAT
                and inbox.is_current(delivery)
                and not self._handle_end_status(status, inbox)
            ):
                return

    def _take(self, delivery: RawMessage) -> None:
        self._messages.append(self._requester.message(delivery))
        if self._request.max_bytes:
            self._bytes += sum(map(len, delivery))

    def _take_run(self, arrived: deque[RawMessage], room: int) -> int:
        """Take the messages that have arrived; return their number."""
        run = arrived_messages(arrived, room)
        core, settled = self._requester.core, self._requester.settled
        made = [JetStreamMsg(delivery, core, settled) for delivery in run]
        taken = islice(starmap(arrived.popleft, repeat(())), len(run))
        self._messages += made
        deque(taken, maxlen=0)
        return len(run)

    def _wait(self, inbox: PullInbox) -> RawMessage:
        """Wait for the next delivery while heartbeats arrive."""
        if not inbox.connected:
            # Neither a final status nor heartbeats can arrive.
            return inbox.mailbox.get(self._end)
        backoff = self._backoff
        while backoff is not None and backoff.retry_at is not None:
            try:
                return inbox.mailbox.get(self._end.sooner(backoff.retry_at - monotonic()))
            except errors.TimeoutError:
                if not self._request_again(inbox):
                    assert backoff.error is not None
                    raise backoff.error from None
        if inbox.read_directly(self._reply_end):
            return inbox.mailbox.items.popleft()
        if self._check_pending and self._requester.silent_when_deleted():
            try:
                return inbox.mailbox.get(self._reply_end.sooner(CONSUMER_CHECK_DELAY_S))
            except errors.TimeoutError:
                gone = self._requester.check_consumer_exists(self._reply_end)
                if gone is not None:
                    raise gone from None
            finally:
                self._check_pending = False
        heartbeats = self._heartbeats
        if not heartbeats.limit:
            return inbox.mailbox.get(self._reply_end)
        while True:
            left = heartbeats.left(inbox.last_seen)
            try:
                return inbox.mailbox.get(self._reply_end.sooner(left))
            except errors.TimeoutError:
                if self._reply_end.expired():
                    raise
                if heartbeats.left(inbox.last_seen) <= 0:
                    raise heartbeats.error(self._requester.consumer) from None

    def _handle_connection_change(self, delivery: RawMessage, inbox: PullInbox) -> bool:
        """Handle the end or the begin of a connection; return whether the fetch goes on."""
        self._backoff = None
        reconnected = inbox.apply_connection_change(delivery)
        if self._fail_fast and (reconnected or not inbox.connected):
            # Part of the reply may be lost with the old connection, and no later message would reveal the gap.
            raise errors.ConnectionLostError("the connection was lost during the pull")
        return not reconnected or self._request_again(inbox)

    def _handle_end_status(self, status: PullStatus, inbox: PullInbox) -> bool:
        """Handle a status that ends the request; return whether the fetch goes on."""
        error = status.error
        if error is None:
            limit = self._request.max_bytes
            # If bytes were sent, their messages were lost with a connection, and come again.
            is_unused = status.pending is None or status.pending[1] >= limit
            if status.kind is PullStatusKind.FULL and limit and is_unused and not self._messages:
                # No request with this limit can be answered.
                text = f"the next message is larger than max_bytes={limit}"
                raise errors.RequestLimitError(409, text)
            self._backoff = None
            return self._request_again(inbox, status.kind)
        if isinstance(error, errors.PinIDMismatchError):
            self._requester.pin_id = None  # another client is pinned now
        if error.code == StatusCode.NO_RESPONDERS:
            gone = self._requester.check_consumer_exists(self._reply_end)
            if gone is not None:
                raise gone
        if STATUS_EFFECTS[self._policy][status.kind] is StatusEffect.RETRY:
            # The request is repeated after the back-off, also after a reconnect.
            self._backoff = self._backoff or RetryBackoff()
            self._backoff.record(error)
            return True
        raise error

    def _request_again(self, inbox: PullInbox, ended: PullStatusKind = PullStatusKind.AWAY) -> bool:
        """Request the missing messages, unless the fetch ends; return whether it goes on."""
        if not self._room(ended):
            return False
        inbox.last_seen = monotonic()
        self.answered = False
        if self._backoff is not None:
            self._backoff.retry_at = None
        self._check_pending = True
        self._requester.send(self._missing(self._end.left()), inbox)
        return True

    def _missing(self, left: float | None) -> PullRequest:
        """Return the request for the missing messages, which expires after ``left`` seconds."""
        expires_ns = MAX_EXPIRES_NS if left is None else int(left * NS_PER_S)
        return replace(
            self._request,
            batch=self._request.batch - len(self._messages),
            expires_ns=0 if self._request.no_wait else max(1, expires_ns),
            heartbeat_ns=min(self._request.heartbeat_ns, expires_ns // 2),
        )
