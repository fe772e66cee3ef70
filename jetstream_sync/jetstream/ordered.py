"""Ordered consumers (ADR-17, ADR-37): every message of a stream once and in order."""

# An ordered consumer has no state of its own on the server. It reads through an ephemeral consumer that
# is cheap for the server (no acks, in memory, one replica, deleted when inactive) and checks that each
# delivery has the next consumer sequence. After a gap, or when that consumer is gone, it creates
# another one that starts after the last message that was returned to the caller.
#
# `OrderedCursor` keeps that position. `OrderedPuller` reads continuously, `OrderedConsumer` also fetches.

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Final, TypeVar
from weakref import WeakSet

from .. import errors
from ..api.consumer import ConsumerConfig, ConsumerInfo
from ..api.enums import AckPolicy
from ..api.pull import (
    ContinuousOptions,
    ContinuousPull,
    PullOptions,
    PullRequest,
    fetch_request,
    is_away,
)
from ..client.mailbox import copy_exception, first_items
from ..client.threads import call_to_end
from ..durations import NS_PER_S
from ..locks import call_and_record, new_lock
from ..net.clock import Deadline, seconds
from ..options import ErrorCallback, check_callback, check_known
from ..protocol.parser import RawMessage
from .api_requests import APIRequests
from .consume_handle import ConsumeHandle, JetStreamCallback
from .consumer_requests import consumer_info
from .continuous_pull import MessageIterator, MessagePuller
from .message import JetStreamMsg
from .ordered_cursor import CursorOptions, OrderedCursor, OrderedOptions, check_options, pull_cursor
from .pull import NO_REPLY, Fetch, GapError, PullInbox, PullRequester, RetryPolicy

if TYPE_CHECKING:
    from typing_extensions import Self, Unpack


log: logging.Logger = logging.getLogger("jetstream_sync.ordered")

T = TypeVar("T")

#: Default of ``max_messages``. It is higher than for other consumers: dropping buffered messages causes
#: no redelivery, and larger requests are faster.
DEFAULT_MAX_MESSAGES: Final = 4000
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


class OrderedMessages(MessageIterator):
    """
    An endless iterator over the messages of an ordered consumer.

    Returned by `OrderedConsumer.messages`. It works as `MessageIterator`, but in order and without
    gaps: after a gap it creates a new consumer before it returns the next message. Any number of
    threads may take messages from it: each message goes to one of them, in order.
    """


class OrderedPuller:
    """Pulls the messages of an ordered consumer ahead of their use; see `MessageFeed`."""

    #: Sends the pull requests and makes the messages.
    _requester_type: type[PullRequester] = PullRequester

    def __init__(self, api: APIRequests, cursor: OrderedCursor, pull: ContinuousPull) -> None:
        self._api = api
        self._cursor = cursor
        self._pull = pull
        # The arguments of set_callback_waiter().
        self._callback: (
            tuple[Callable[[Deadline], bool], Callable[[BaseException], None]] | None
        ) = None
        # Held while a consumer is created; stop() does not take it, so that it need not wait.
        self._renewing = new_lock()
        self._stopped: errors.IteratorClosedError | None = None
        self._messages: MessagePuller | None = None

    def take(self, deadline: Deadline) -> JetStreamMsg:
        """Wait for the next message and return it; see `MessageIterator.next`."""
        while True:
            messages = self._messages or self._recreate(None, deadline)
            try:
                return messages.take(deadline)
            except errors.IteratorClosedError:
                self._cursor.drop()
                raise
            except _FATAL:
                raise
            except _RECREATE_ON as error:
                log.info("ordered consumer on %r: %s", self._cursor.stream, error)
                if isinstance(error, errors.NoHeartbeatError):
                    self.find_lost_replies(deadline)
                messages.abandon(error, self._cursor.rewind)
                self._recreate(messages, deadline)

    def ready(self) -> Iterator[JetStreamMsg]:
        """Yield messages that can be taken without waiting and without accounting, and end."""
        messages = self._messages
        return iter(()) if messages is None else messages.ready()

    def _recreate(self, ended: MessagePuller | None, deadline: Deadline) -> MessagePuller:
        """Create a consumer that starts after the last message, unless another thread has."""
        acquired: list[bool] = []
        try:
            call_and_record(acquired, self._renewing.acquire, True, deadline.lock_timeout())
            if not acquired[0]:
                raise errors.TimeoutError("another thread is still creating the consumer")
            if self._messages is not ended and self._messages is not None:
                return self._messages
            if self._stopped is not None:
                raise copy_exception(self._stopped)
            messages = self.start(deadline_to_create(deadline))
        finally:
            if True in acquired:
                self._renewing.release()
        if self._stopped is not None:
            # stop() was called while the consumer was created, and did not see it.
            messages.stop()
            self._cursor.drop()
        return messages

    def start(self, deadline: Deadline) -> MessagePuller:
        """Create a consumer and an iterator over it, as one thread does at a time."""
        # The first one is created before other threads use this, so that errors are raised there.
        pull = self._pull
        if pull.stop_after:
            left = pull.stop_after - self._cursor.delivered
            if left < 1:
                raise errors.IteratorClosedError("the iterator has returned stop_after messages")
            pull = replace(pull, stop_after=left)
        if self._api.single_replies:
            pull = pull.with_single_replies()
        self._messages = None
        cursor = self._cursor
        try:
            requester = self._requester_type(
                self._api, cursor.stream, cursor.renew(deadline).name, _CONFIG
            )
            requester.sequence = cursor.sequence
            requester.single_replies = self._api.single_replies
            messages = self._messages = MessagePuller(requester, pull, RetryPolicy.NEVER)
            if self._callback is not None:
                messages.set_callback_waiter(*self._callback)
        except BaseException:
            started, self._messages = self._messages, None
            if started is not None:
                started.stop()
            cursor.drop()
            raise
        return messages

    def is_open(self) -> bool:
        """Return whether it has a consumer that it may use again; takes no lock."""
        return self._stopped is None and self._cursor.consumer is not None

    def silent_state(self, deadline: Deadline) -> ConsumerInfo | None:
        """Return the state of a silent consumer; ``None``: unknown, or something has arrived meanwhile."""
        # What the server sent before its reply should have arrived with the reply.
        consumer, messages = self._cursor.consumer, self._messages
        if consumer is None or messages is None:
            return None
        try:
            limit = deadline.sooner(CHECK_TIMEOUT_S)
            state = consumer_info(self._api, self._cursor.stream, consumer.name, limit)
        except errors.Error:
            return None  # the next pull finds out
        return None if messages.has_arrived() else state

    def find_lost_replies(self, deadline: Deadline) -> None:
        """Send one request per message from now on if the server sent messages that did not arrive."""
        # A service import forwards one reply per request, also one that keeps the names of the API.
        state = self.silent_state(deadline)
        if state is not None and state.delivered.consumer_seq > self._cursor.consumer_seq:
            log.info("ordered consumer on %r: only one reply per request", self._cursor.stream)
            self._api.single_replies = True

    def replace_consumer(self, reason: str, deadline: Deadline) -> None:
        """End a silent consumer, so that the next call continues with another one."""
        messages = self._messages
        if messages is not None:
            self.find_lost_replies(deadline)
            messages.abandon(errors.PullError(409, reason), self._cursor.rewind)

    def renew(self, reason: str, deadline: Deadline) -> None:
        """Replace a consumer that is lost by another one, without waiting for a message."""
        messages = self._messages
        self.replace_consumer(reason, deadline)
        self._recreate(messages, deadline)

    def buffered(self) -> list[RawMessage]:
        """Return the messages that have arrived and were not taken."""
        messages = self._messages
        return [] if messages is None else messages.buffered()

    def stop(self) -> None:
        """Stop the iterator, drop the buffered messages, and delete its consumer."""
        call_to_end(f"closer-{self._api.core.name}", self._stop)

    def _stop(self) -> None:
        if self._stopped is None:
            self._stopped = errors.IteratorClosedError("the iterator was stopped")
        self._cursor.stop()
        messages = self._messages
        if messages is not None:
            messages.end(self._stopped)
            self._cursor.drop()

    def drain(self, timeout: float | timedelta | None = None) -> None:
        """Request no more messages; see `MessageIterator.drain`."""
        if self._stopped is None:
            self._stopped = errors.IteratorClosedError("the iterator was drained")
        self._cursor.stop()
        messages = self._messages
        if messages is not None:
            try:
                messages.drain(timeout)
            finally:
                self._cursor.drop()

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


class OrderedConsumer:
    """
    Reads a stream in order and without gaps, without acknowledgements.

    Returned by `Stream.ordered_consumer` and `JetStream.ordered_consumer`. Each `messages()` and
    `consume()` starts at the position of the options; `fetch()` and `next()` continue from one call to
    the next. `close()`, or the end of a ``with`` block, deletes the server's consumers at once, and so does
    the end of the last reference to this object for the consumer of `fetch()`. Any thread may call the
    methods; one thread at a time fetches, and the others wait for it until their timeouts.
    """

    def __init__(
        self, api: APIRequests, stream_name: str, **options: Unpack[OrderedOptions]
    ) -> None:
        self._api = api
        self._stream = stream_name
        self._options = options
        # The position of fetch() and next(); guarded by _lock, which is held while they wait.
        self._lock = new_lock()
        check_options(options)
        self._serials = itertools.count(1)
        self._cursor = self._new_cursor()
        # Pulls from the server's consumer; None: the next pull creates one.
        self._requester: PullRequester | None = None
        self._reconnects = 0
        # The reply inbox of a running fetch.
        self._inbox: PullInbox | None = None
        self._closed: errors.IteratorClosedError | None = None
        # The cursor that was used last: the one above, or that of messages().
        self._last_used = self._cursor
        self._pullers: WeakSet[OrderedPuller] = WeakSet()
        self._is_entered = False
        # Its consumer has no other reader, but those of messages() and consume() go on.
        cursor = self._cursor
        api.core.stop_dropped(self, lambda: cursor.consumer is not None, cursor.drop)
        # Has the start of all reads, if that depends on the time of this call.
        self._first: OrderedCursor | None = None
        if self._cursor.keeps_start:
            try:
                with self._lock:
                    self._requester = self._renewed(api.deadline())
                self._first = self._new_cursor()
                self._first.start_as(self._cursor)
            except BaseException:
                self._cursor.drop()
                raise

    @property
    def stream_name(self) -> str:
        """The name of its stream."""
        return self._stream

    @property
    def cached_info(self) -> ConsumerInfo | None:
        """
        The last used consumer of the server, in its state at creation.

        It is the consumer of `messages()` or `consume()` until these are stopped, otherwise that of
        `fetch()`; ``None`` while there is none.
        """
        return self._last_used.info or self._cursor.info

    @property
    def name(self) -> str | None:
        """The name of the last used consumer; it changes with each new one."""
        info = self.cached_info
        return None if info is None else info.name

    def info(self, timeout: float | timedelta | None = None) -> ConsumerInfo:
        """
        Request the config and state of the last used consumer.

        If there is none, the consumer of the next `fetch()` is created.

        Args:
            timeout: in seconds; ``None``: the timeout of the JetStream context.

        Raises:
            ConsumerNotFoundError: it was deleted; the next read creates another one.
            StreamNotFoundError: the stream does not exist.
            IteratorClosedError: the ordered consumer was closed.
            TimeoutError: the server did not reply in time, or another thread was fetching all the time.
            ConnectionClosedError: the connection is closed.

        """
        self._check_open()
        deadline = self._api.deadline(timeout)
        info = self.cached_info
        if info is None:
            info = self._alone(self._created, deadline)
        return consumer_info(self._api, self._stream, info.name, deadline)

    def _created(self, deadline: Deadline) -> ConsumerInfo:
        """Return the last used consumer, which is created if there is none; ``_lock`` is held."""
        info = self.cached_info
        if info is None:
            self._requester = self._renewed(deadline)
            info = self._cursor.info
        assert info is not None
        return info

    def _alone(self, step: Callable[[Deadline], T], deadline: Deadline) -> T:
        """Call a function with ``_lock`` held; raise `TimeoutError` if another thread has it until the deadline."""
        acquired: list[bool] = []
        try:
            call_and_record(acquired, self._lock.acquire, True, deadline.lock_timeout())
            if not acquired[0]:
                raise errors.TimeoutError("another thread is still fetching with this consumer")
            self._check_open()
            return step(deadline)
        finally:
            if True in acquired:
                self._lock.release()

    def messages(self, **options: Unpack[ContinuousOptions]) -> OrderedMessages:
        """
        Return an iterator over the stream's messages, starting at the position of the options.

        Args:
            **options: see `ContinuousOptions`; the default of ``max_messages`` is 4000 here, and that of
                ``heartbeat`` 2 seconds.

        Raises:
            InvalidOptionError: an option is out of range, or two options exclude each other.
            StreamNotFoundError: there is no such stream.
            BadRequestError: the server rejected the consumer config.
            IteratorClosedError: the ordered consumer was closed.
            TimeoutError: the server did not reply in time.
            ConnectionClosedError: the connection is closed.

        """
        puller = self._puller(options)
        messages = OrderedMessages(puller)
        # The end of a with block stops it, too.
        what = f"an ordered iterator over the messages of stream {self._stream!r}"
        if self._is_entered:
            what = ""
        self._api.core.stop_dropped(messages, puller.is_open, puller.stop, what)
        self._start_puller(puller)
        return messages

    def _new_cursor(self, report: Callable[[BaseException], object] | None = None) -> OrderedCursor:
        # `report`: called with the error before reading starts again; ``None``: `Events.error` is.
        further: CursorOptions = {}
        if self._options.get("restart_if_recreated"):
            further["on_recreated"] = report or self._api.core.events.error
        return pull_cursor(self._api, self._stream, self._options, serials=self._serials, **further)

    def _puller(
        self, options: ContinuousOptions, report: Callable[[BaseException], object] | None = None
    ) -> OrderedPuller:
        """Return a puller that has no consumer yet."""
        self._check_open()
        if options.get("heartbeat") is None:  # at most half the expiry of a request
            expires = seconds(options.get("expires", 30.0), "expires")
            options["heartbeat"] = min(HEARTBEAT_S, expires / 2)
        if options.get("max_bytes") is None:
            options.setdefault("max_messages", DEFAULT_MAX_MESSAGES)
        cursor = self._new_cursor(report)
        if self._first is not None:
            cursor.start_as(self._first)
        puller = OrderedPuller(self._api, cursor, ContinuousPull.of(options))
        self._pullers.add(puller)
        return puller

    def _start_puller(self, puller: OrderedPuller) -> None:
        puller.start(self._api.deadline())
        self._last_used = puller._cursor  # noqa: SLF001 - one module
        if self._closed is not None:
            puller.stop()  # close() was called meanwhile and may not have seen it

    def consume(
        self,
        callback: JetStreamCallback,
        *,
        error_cb: ErrorCallback | None = None,
        **options: Unpack[ContinuousOptions],
    ) -> ConsumeHandle:
        """
        Call a function for each message, in order, on a dedicated thread.

        Args:
            callback: called with each message; an error that it raises is reported to ``error_cb``, and
                the next message follows.
            error_cb: as in `PullConsumer.consume`.
            **options: see `ContinuousOptions`.

        Raises:
            InvalidOptionError, StreamNotFoundError, BadRequestError, TimeoutError,
            ConnectionClosedError: as `messages()`.

        """
        check_callback("callback", callback)
        if error_cb is not None:
            check_callback("error_cb", error_cb)
        core = self._api.core
        puller = self._puller(options, partial(core.events.error, callback=error_cb))
        try:
            self._start_puller(puller)
            return ConsumeHandle(core, self._stream, puller, callback, error_cb=error_cb)
        except BaseException:
            puller.stop()
            raise

    def fetch(
        self,
        batch: int | None = None,
        timeout: float | timedelta | None = 5.0,
        **options: Unpack[PullOptions],
    ) -> list[JetStreamMsg]:
        """
        Return the next messages, up to a number of messages or bytes.

        Args:
            batch: maximum number of messages; ``None``: as many as ``max_bytes`` allows.
            timeout: how long to wait for them, in seconds; ``None``: until the batch is complete.
            **options: see `PullOptions`.

        Returns:
            The messages in order; ``[]`` when no message arrived in time.

        Raises:
            TimeoutError: another thread was fetching all the time.
            InvalidOptionError: an option is out of range, or neither batch nor max_bytes is given.
            StreamNotFoundError, StreamRecreatedError, BadRequestError, OrderedConsumerResetError: it cannot go on.
            IteratorClosedError: it was closed.
            ConnectionClosedError: the connection is closed.

        """
        check_known(options, PullOptions.__optional_keys__)
        return self._fetch(fetch_request(batch, timeout, **options), Deadline(timeout))

    def fetch_no_wait(
        self, batch: int | None = None, **options: Unpack[PullOptions]
    ) -> list[JetStreamMsg]:
        """
        Return the next messages that are there now, up to a number of messages or bytes.

        Args:
            batch: maximum number of messages; ``None``: as many as ``max_bytes`` allows.
            **options: as in `PullConsumer.fetch_no_wait`, see `PullOptions`.

        Returns:
            The messages in order; ``[]`` when the server says that there are none.

        Raises:
            TimeoutError: the server did not reply within the timeout of the `JetStream` object, or another thread
                was fetching all the time.
            InvalidOptionError, StreamNotFoundError, StreamRecreatedError, BadRequestError, OrderedConsumerResetError,
            IteratorClosedError, ConnectionClosedError: as `fetch()`.

        """
        check_known(options, PullOptions.__optional_keys__)
        request = fetch_request(batch, None, True, **options)
        return self._fetch(request, self._api.deadline())

    def _fetch(self, request: PullRequest, deadline: Deadline) -> list[JetStreamMsg]:
        """Pull until there are messages, the server reports that there are none, or the deadline."""
        # After an error the next fetch returns the messages that this one has received.
        self._check_open()
        return self._alone(partial(self._fetch_alone, request), deadline)

    def _fetch_alone(self, request: PullRequest, deadline: Deadline) -> list[JetStreamMsg]:
        """Pull as `_fetch()`; ``_lock`` is held."""
        messages: list[JetStreamMsg] = []
        self._last_used = self._cursor
        start = self._cursor.sequence.reply
        try:
            self._pull_all(request, deadline, messages)
        except BaseException:
            if messages:
                self._cursor.sequence.reply = start
                self._requester = None
            raise
        return messages

    def _pull_all(
        self, request: PullRequest, deadline: Deadline, messages: list[JetStreamMsg]
    ) -> None:
        """Pull into the list; ``_lock`` is held."""
        refusal: errors.PullError | None = None
        while True:
            count = len(messages)
            try:
                complete = self._pull(request, deadline, messages)
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

    def _pull(self, request: PullRequest, deadline: Deadline, messages: list[JetStreamMsg]) -> bool:
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
            if self._closed is not None:  # close() may not have seen the inbox
                raise copy_exception(self._closed)
            received = pull.run_in(inbox)
        except _FATAL:
            self._requester = requester  # it sent nothing
            raise
        finally:
            self._inbox = None
            inbox.close(deferred=pull.answered)
        follow = self._cursor.sequence.follow
        if received and not follow(
            received[0].ack_subject, received[-1].ack_subject, len(received)
        ):
            for msg in received:
                if not self._cursor.sequence.follows(msg.ack_subject):
                    break
                messages.append(msg)
            return False
        messages += received
        if pull.answered:
            self._requester = requester
        return pull.answered

    def _renewed(self, deadline: Deadline) -> PullRequester:
        """Create a consumer that continues from the position; ``_lock`` is held."""
        self._reconnects = self._api.core.reconnects
        name = self._cursor.renew(deadline).name
        if self._closed is not None:
            self._cursor.drop()
            raise copy_exception(self._closed)
        return PullRequester(self._api, self._stream, name, _CONFIG)

    def next(
        self, timeout: float | timedelta | None = 5.0, **options: Unpack[PullOptions]
    ) -> JetStreamMsg:
        """
        Return the next message.

        Args:
            timeout: in seconds; ``None``: no limit.
            **options: see `PullOptions`.

        Raises:
            TimeoutError: no message arrived in time.
            InvalidOptionError, StreamNotFoundError, StreamRecreatedError, BadRequestError, OrderedConsumerResetError,
            IteratorClosedError, ConnectionClosedError: as `fetch()`.

        """
        messages = self.fetch(1, timeout, **options)
        if messages:
            return messages[0]
        raise self._api.core.state.timed_out(f"no message from stream {self._stream!r} in time")

    def close(self) -> None:
        """
        Close the ordered consumer and delete the server's consumers. A second call does nothing.

        Its iterators and handles are stopped. A fetch that waits on another thread returns its messages,
        or raises `IteratorClosedError`, as all later calls do. The call does not wait for the server.
        """
        call_to_end(f"closer-{self._api.core.name}", self._close)

    def _close(self) -> None:
        if self._closed is None:
            self._closed = errors.IteratorClosedError("the ordered consumer was closed")
        self._cursor.stop()
        inbox = self._inbox
        if inbox is not None:
            inbox.mailbox.close(self._closed)
        for puller in first_items(self._pullers):
            puller.stop()
        self._cursor.drop()

    def _check_open(self) -> None:
        if self._closed is not None:
            raise copy_exception(self._closed)

    def __enter__(self) -> Self:
        self._is_entered = True
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} on {self._stream!r}>"


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
