"""The reader of ordered consumers (ADR-17, ADR-37): every message of a stream once and in order."""

# An ordered consumer has no state of its own on the server. It reads through an ephemeral consumer that
# is cheap for the server (no acks, in memory, one replica, deleted when inactive) and checks that each
# delivery has the next consumer sequence. After a gap, or when that consumer is gone, it creates
# another one that starts after the last message that was returned to the caller.
#
# `OrderedCursor` keeps that position.

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import Any, Final, TypeVar

from .. import errors
from ..api.consumer import ConsumerConfig, ConsumerInfo
from ..api.enums import AckPolicy
from ..api.pull import (
    ContinuousPull,
    PullRequest,
    is_away,
)
from ..client.mailbox import copy_exception
from ..client.threads import call_to_end
from ..durations import NS_PER_S
from ..locks import call_and_record, new_lock
from ..net.clock import Deadline
from ..protocol.parser import RawMessage
from .api_requests import APIRequests
from .consumer_requests import consumer_info
from .continuous_pull import MessagePuller
from .message import JetStreamMsg
from .ordered_cursor import OrderedCursor
from .pull import NO_REPLY, Fetch, GapError, PullInbox, PullRequester, RetryPolicy

log: logging.Logger = logging.getLogger("jetstream_sync.ordered")

T = TypeVar("T")

_FETCHING: Final = "fetching with this consumer"
#: Heartbeat of an ordered consumer's pulls in seconds. A lost consumer is detected after two, and servers elect a
#: leader 4 seconds after a loss at the earliest: the next consumer is requested by then.
HEARTBEAT_S: Final = 2.0
#: Minimum timeout for creating a consumer in seconds, also if the fetch timeout is shorter.
_MIN_CREATE_TIMEOUT_S: Final = 0.25
#: Timeout of the request for the state of a silent consumer, in seconds.
CHECK_TIMEOUT_S: Final = 2.0
#: Minimum expiry of a pull request, in nanoseconds; it must be above 0.
_MIN_EXPIRES_NS: Final = 1_000_000
#: The part of an ordered consumer's config that its pulls depend on.
_CONFIG: Final = ConsumerConfig(ack_policy=AckPolicy.NONE)


#: Errors of a consumer that is lost: an error status, a missed heartbeat or a lost connection.
_CONSUMER_LOST: Final = (
    errors.PullError,
    errors.ConsumerNotFoundError,
    errors.NoHeartbeatError,
    errors.ConnectionLostError,
)
#: Errors after which a new consumer is created.
_RECREATE_ON: Final = (GapError, *_CONSUMER_LOST)
#: Errors that a new consumer would cause again.
_FATAL: Final = (errors.BadRequestStatusError, errors.RequestLimitError)


class OrderedReader:
    """Reads a stream in order, through one consumer of the server after another; see `MessageFeed`."""

    # It either reads ahead, with `start` and `take`, or sends single requests, with `fetch`. Rules:
    #
    # 1. Only a reader creates consumers, moves the position, and decides after which errors another consumer
    #    follows.
    # 2. One thread at a time creates a consumer, or fetches, with _lock held. `stop` does not take it, so that
    #    it need not wait: the thread that creates a consumer looks for a stop afterwards.

    def __init__(
        self,
        api: APIRequests,
        cursor: OrderedCursor,
        pull: ContinuousPull | None = None,
        requester_type: type[PullRequester] = PullRequester,
    ) -> None:
        # `pull`: how to read ahead; ``None``: it fetches.
        # `requester_type`: sends the pull requests and makes the messages.
        self._requester_type = requester_type
        self._api = api
        #: The position, and the current consumer.
        self.cursor: OrderedCursor = cursor
        self._pull = pull
        # The arguments of set_callback_waiter().
        self._callback: (
            tuple[Callable[[Deadline], bool], Callable[[BaseException], None]] | None
        ) = None
        self._lock = new_lock()
        self._stopped: errors.IteratorClosedError | None = None
        # What reads ahead from the current consumer; None: there is none, or it fetches.
        self._messages: MessagePuller | None = None
        # Sends the requests of fetches to the current consumer; None: the next fetch creates one.
        self._requester: PullRequester | None = None
        # The connection that it was created on.
        self._reconnects = 0
        # The reply inbox of a running fetch.
        self._inbox: PullInbox | None = None

    def check_open(self) -> None:
        """Raise the reason if it was stopped, or if this is a forked child."""
        self._api.core.writer.check_not_forked()
        if self._stopped is not None:
            raise copy_exception(self._stopped)

    def _alone(self, step: Callable[[Deadline], T], deadline: Deadline, busy: str) -> T:
        """Call a function with ``_lock`` held; raise `TimeoutError` if another thread has it until the deadline."""
        acquired: list[bool] = []
        try:
            call_and_record(acquired, self._lock.acquire, True, deadline.lock_timeout())
            if not acquired[0]:
                raise errors.TimeoutError(f"another thread is still {busy}")
            return step(deadline)
        finally:
            if True in acquired:
                self._lock.release()

    def _renewed(self, deadline: Deadline) -> PullRequester:
        """Create a consumer that continues from the position; ``_lock`` is held."""
        cursor = self.cursor
        self._reconnects = self._api.core.reconnects
        name = cursor.renew(deadline).name
        if self._stopped is not None:  # by a call that has not seen the consumer
            cursor.drop()
            raise copy_exception(self._stopped)
        return self._requester_type(self._api, cursor.stream, name, _CONFIG)

    # --- reading ahead --------------------------------------------------------------------------

    def take(self, deadline: Deadline) -> JetStreamMsg:
        """Wait for the next message and return it; see `MessageIterator.next`."""
        while True:
            messages = self._messages or self._recreate(None, deadline)
            try:
                return messages.take(deadline)
            except errors.Error as error:
                self._recover(messages, error, deadline)

    def read(self, deadline: Deadline, create_deadline: Deadline) -> list[Any]:
        """Wait for messages, and return those that have arrived; empty: there is another consumer."""
        # `create_deadline`: until when another consumer may be created.
        messages = self._messages
        if messages is None:
            self._recreate(None, create_deadline)
            return []
        try:
            return [messages.take(deadline), *messages.take_run()]
        except errors.Error as error:
            self._recover(messages, error, create_deadline)
            return []

    def _recover(self, messages: MessagePuller, error: errors.Error, deadline: Deadline) -> None:
        """Create another consumer after an error; raise the error if that would cause it again."""
        if isinstance(error, errors.IteratorClosedError):
            self.cursor.drop()
        if isinstance(error, _FATAL) or not isinstance(error, _RECREATE_ON):
            raise error
        log.info("ordered consumer on %r: %s", self.cursor.stream, error)
        if isinstance(error, errors.NoHeartbeatError):
            self.find_lost_replies(deadline)
        messages.abandon(error, self.cursor.rewind)
        self._recreate(messages, deadline)

    def ready(self) -> Iterator[JetStreamMsg]:
        """Yield messages that can be taken without waiting and without accounting, and end."""
        messages = self._messages
        return iter(()) if messages is None else messages.ready()

    def _recreate(self, ended: MessagePuller | None, deadline: Deadline) -> MessagePuller:
        """Create a consumer that starts after the last message, unless another thread has."""

        def step(deadline: Deadline) -> MessagePuller:
            if self._messages is not ended and self._messages is not None:
                return self._messages
            self.check_open()
            return self.start(deadline_to_create(deadline))

        return self._alone(step, deadline, "creating the consumer")

    def start(self, deadline: Deadline) -> MessagePuller:
        """Create a consumer and read ahead from it, as one thread does at a time."""
        # The first one is created before other threads use this, so that errors are raised there.
        pull, cursor = self._pull, self.cursor
        assert pull is not None
        if pull.stop_after:
            left = pull.stop_after - cursor.delivered
            if left < 1:
                raise errors.IteratorClosedError("the iterator has returned stop_after messages")
            pull = replace(pull, stop_after=left)
        if self._api.single_replies:
            pull = pull.with_single_replies()
        self._messages = None
        try:
            requester = self._renewed(deadline)
            requester.sequence = cursor.sequence
            requester.single_replies = self._api.single_replies
            messages = self._messages = MessagePuller(requester, pull, RetryPolicy.NEVER)
            if self._callback is not None:
                messages.set_callback_waiter(*self._callback)
            self.check_open()  # a stop has not seen the messages
        except BaseException:
            started, self._messages = self._messages, None
            if started is not None:
                started.stop()
            cursor.drop()
            raise
        return messages

    def is_open(self) -> bool:
        """Return whether it has a consumer that it may use again; takes no lock."""
        return self._stopped is None and self.cursor.consumer is not None

    def silent_state(self, deadline: Deadline) -> ConsumerInfo | None:
        """Return the state of a silent consumer; ``None``: unknown, or something has arrived meanwhile."""
        # What the server sent before its reply should have arrived with the reply.
        consumer, messages = self.cursor.consumer, self._messages
        if consumer is None or messages is None:
            return None
        try:
            limit = deadline.sooner(CHECK_TIMEOUT_S)
            state = consumer_info(self._api, self.cursor.stream, consumer.name, limit)
        except errors.Error:
            return None  # the next pull finds out
        return None if messages.has_arrived() else state

    def find_lost_replies(self, deadline: Deadline) -> None:
        """Send one request per message from now on if the server sent messages that did not arrive."""
        # A service import forwards one reply per request, also one that keeps the names of the API.
        state = self.silent_state(deadline)
        if state is not None and state.delivered.consumer_seq > self.cursor.consumer_seq:
            log.info("ordered consumer on %r: only one reply per request", self.cursor.stream)
            self._api.single_replies = True

    def replace_consumer(self, reason: str, deadline: Deadline) -> None:
        """End a silent consumer, so that the next call continues with another one."""
        messages = self._messages
        if messages is not None:
            self.find_lost_replies(deadline)
            messages.abandon(errors.PullError(409, reason), self.cursor.rewind)

    def renew(self, reason: str, deadline: Deadline) -> None:
        """Replace a consumer that is lost by another one, without waiting for a message."""
        messages = self._messages
        self.replace_consumer(reason, deadline)
        self._recreate(messages, deadline)

    def buffered(self) -> list[RawMessage]:
        """Return the messages that have arrived and were not taken."""
        messages = self._messages
        return [] if messages is None else messages.buffered()

    # --- fetching -------------------------------------------------------------------------------

    def fetch(self, request: PullRequest, deadline: Deadline) -> list[JetStreamMsg]:
        """Pull until there are messages, the server reports that there are none, or the deadline."""
        # After an error the next fetch returns the messages that this one has received.
        self.check_open()
        return self._alone(partial(self._fetch_alone, request), deadline, _FETCHING)

    def create(self, deadline: Deadline) -> None:
        """Create the consumer of the next fetch, unless there is one."""

        def step(deadline: Deadline) -> None:
            self.check_open()
            if self.cursor.consumer is None:
                self._requester = self._renewed(deadline)

        self._alone(step, deadline, _FETCHING)

    def _fetch_alone(self, request: PullRequest, deadline: Deadline) -> list[JetStreamMsg]:
        """Pull as `fetch()`; ``_lock`` is held."""
        self.check_open()
        messages: list[JetStreamMsg] = []
        start = self.cursor.sequence.reply
        try:
            self._fetch_into(request, deadline, messages)
        except BaseException:
            if messages:
                self.cursor.sequence.reply = start
                self._requester = None
            raise
        return messages

    def _fetch_into(
        self, request: PullRequest, deadline: Deadline, messages: list[JetStreamMsg]
    ) -> None:
        """Pull into the list; ``_lock`` is held."""
        refusal: errors.PullError | None = None
        while True:
            count = len(messages)
            try:
                complete = self._fetch_once(request, deadline, messages)
            except errors.TimeoutError:  # no connection or no leader
                if request.no_wait and not messages:
                    raise
                return
            except errors.RequestLimitError:
                if messages:
                    return
                raise  # no consumer can answer this request
            except _CONSUMER_LOST as error:
                complete = False
                # If the consumer or its server is gone, the next consumer may be answered.
                refusal = None
                if type(error) is errors.PullError and not is_away(error):
                    refusal = error
            found = len(messages) > count
            if self._api.single_replies and found and len(messages) < request.batch:
                complete = found = False  # the other messages are requested one by one
            if found or complete:
                return
            if deadline.expired():
                if refusal is not None and not messages:
                    raise refusal  # every consumer refused the request
                if request.no_wait and not messages:
                    raise self._api.core.state.timed_out(NO_REPLY)
                return

    def _fetch_once(
        self, request: PullRequest, deadline: Deadline, messages: list[JetStreamMsg]
    ) -> bool:
        """Send one request, append its messages to the list, and return whether its reply was complete."""
        # The server's consumer is reused only after a complete reply. Otherwise (a timeout, a
        # reconnect, an exception) it may have sent more messages than arrived, and
        # without a later message no gap would reveal that. The next pull then creates a new
        # consumer.
        requester, self._requester = self._requester, None
        if requester is None or self._reconnects != self._api.core.reconnects:
            requester = self._renewed(deadline_to_create(deadline))
            if deadline.expired():
                self._requester = requester  # for the next call
                return False
            request = _fit_expiry(request, deadline)
        if self._api.single_replies:
            request = replace(request, batch=1, heartbeat_ns=0)
        pull = Fetch(requester, request, deadline.left(), fail_fast=True)
        inbox = self._inbox = PullInbox(self._api.core)
        try:
            if self._stopped is not None:  # close() may not have seen the inbox
                raise copy_exception(self._stopped)
            received = pull.run_in(inbox)
        except _FATAL:
            self._requester = requester  # it sent nothing
            raise
        finally:
            self._inbox = None
            inbox.close(deferred=pull.answered)
        follow = self.cursor.sequence.follow
        if received and not follow(
            received[0].ack_subject, received[-1].ack_subject, len(received)
        ):
            for msg in received:
                if not self.cursor.sequence.follows(msg.ack_subject):
                    break
                messages.append(msg)
            return False
        messages += received
        if pull.answered:
            self._requester = requester
        return pull.answered

    # --- ending ---------------------------------------------------------------------------------

    def stop(self, reason: str = "the iterator was stopped") -> None:
        """Stop reading, drop the buffered messages, and delete the consumer."""
        call_to_end(f"closer-{self._api.core.name}", partial(self._stop, reason))

    def _stop(self, reason: str) -> None:
        if self._stopped is None:
            self._stopped = errors.IteratorClosedError(reason)
        self.cursor.stop()
        messages, inbox = self._messages, self._inbox
        if messages is not None:
            messages.end(self._stopped)
        if inbox is not None:
            inbox.mailbox.close(self._stopped)
        self.cursor.drop()

    def drain(self, timeout: float | timedelta | None = None) -> None:
        """Request no more messages; see `MessageIterator.drain`."""
        if self._stopped is None:
            self._stopped = errors.IteratorClosedError("the iterator was drained")
        self.cursor.stop()
        messages = self._messages
        if messages is not None:
            try:
                messages.drain(timeout)
            finally:
                self.cursor.drop()

    def set_callback_waiter(
        self,
        callback_finished: Callable[[Deadline], bool],
        report: Callable[[BaseException], None],
    ) -> None:
        """Make a drain of the connection wait for the callback that receives the messages."""
        self._callback = callback_finished, report
        if self._messages is not None:
            self._messages.set_callback_waiter(callback_finished, report)

    @property
    def closed(self) -> bool:
        """Whether it was stopped or drained."""
        return self._stopped is not None


def deadline_to_create(deadline: Deadline) -> Deadline:
    """Return the deadline for creating a consumer, which needs some time even if the caller has less."""
    left = deadline.left()
    enough = left is None or left > _MIN_CREATE_TIMEOUT_S
    return deadline if enough else Deadline(_MIN_CREATE_TIMEOUT_S)


def _fit_expiry(request: PullRequest, deadline: Deadline) -> PullRequest:
    """Return the request with an expiry within the remaining time."""
    left = deadline.left()
    if left is None or request.no_wait:
        return request
    expires_ns = max(_MIN_EXPIRES_NS, int(left * NS_PER_S))
    heartbeat_ns = min(request.heartbeat_ns, expires_ns // 2)
    return replace(request, expires_ns=expires_ns, heartbeat_ns=heartbeat_ns)
