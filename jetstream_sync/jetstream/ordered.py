"""
Ordered consumers (ADR-17, ADR-37): every message of a stream once and in order.

An ordered consumer has no state of its own on the server. It reads through an ephemeral consumer that
is cheap for the server (no acks, in memory, one replica, deleted when inactive) and checks that each
delivery has the next consumer sequence. After a gap, or when that consumer is gone, it creates
another one that starts after the last message that was returned to the caller.

`OrderedCursor` keeps that position: the stream sequence of the last returned message. Before the first
message it is the position that the server reports when the first consumer is created. A reset before
the first message therefore loses nothing either.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Final, TypedDict
from weakref import WeakSet

from ..api.consumer import ConsumerConfig, ConsumerInfo
from ..api.enums import AckPolicy, DeliverPolicy, ReplayPolicy
from ..api.gaps import DeliverySequence
from ..api.pull import ContinuousPull, PullRequest
from ..api.reply import ack_tokens
from ..client.result_slot import fresh
from ..errors import (
    BadRequestError,
    BadRequestStatusError,
    ConnectionClosedError,
    ConnectionLostError,
    ConsumerNotFoundError,
    Error,
    InvalidOptionError,
    IteratorClosedError,
    NoHeartbeatError,
    OrderedConsumerResetError,
    PermissionsError,
    PullError,
    RequestLimitError,
    StreamNotFoundError,
    TimeoutError,
)
from ..net.clock import FOREVER, Deadline, seconds
from ..options import check_callback
from ..protocol.parser import Delivery
from .api_requests import APIRequests
from .consume import ConsumeHandle, JetStreamCallback
from .consumer import (
    NO_WAIT_TIMEOUT_S,
    ContinuousOptions,
    continuous_pull,
    fetch_request,
    no_wait_request,
)
from .consumer_api import CREATE, add_consumer, consumer_info
from .message import JetStreamMsg
from .messages import MessageIterator, until_stopped
from .pull import Fetch, PullInbox, PullRequester

if TYPE_CHECKING:
    from typing_extensions import Self, Unpack

__all__ = ["OrderedConsumer", "OrderedCursor", "OrderedMessages", "OrderedOptions", "pull_position"]

_INACTIVE: Final = timedelta(minutes=5)
#: Seconds that one attempt to make a consumer may take.
_ATTEMPT: Final = 10.0
#: Seconds between two attempts: the first, and the longest; it doubles in between.
_FIRST_RETRY_DELAY_S: Final = 1.0
_MAX_RETRY_DELAY_S: Final = 10.0
#: Seconds between two looks, while waiting for the next attempt, whether the user has stopped it.
_LOOK: Final = 0.25


class OrderedOptions(TypedDict, total=False):
    """Where an ordered consumer starts and what it reads; all may be left out."""

    filter_subjects: str | Sequence[str]
    """Read only these subjects; default: all of the stream's."""
    deliver_policy: DeliverPolicy
    """Where to start; default ``all``."""
    opt_start_seq: int
    """The sequence to start at, with ``by_start_sequence``."""
    opt_start_time: datetime
    """The time to start at, with ``by_start_time``."""
    replay_policy: ReplayPolicy
    """As fast as possible, or as the messages came; default ``instant``."""
    inactive_threshold: float | timedelta
    """After how long without a reader the server drops its consumer, in seconds; default 300."""
    headers_only: bool
    """Leave the payloads out; default false."""
    metadata: Mapping[str, str]
    """Put on the server's consumer; default: none."""
    name_prefix: str
    """What the names of the server's consumers start with; default: random."""
    max_reset_attempts: int
    """Give up after so many failed attempts in a row to make a consumer; default: never."""


class OrderedCursor:
    """How far the user got, and the server's consumer that reads on from there."""

    def __init__(
        self, api: APIRequests, stream: str, prefix: str, first: ConsumerConfig, attempts: int = 0
    ) -> None:
        """
        Start where a config says.

        Args:
            api: the JetStream API.
            stream: the name of the stream.
            prefix: what the names of the consumers start with.
            first: the config of the first consumer.
            attempts: after how many failed attempts in a row to give up; 0: never.

        """
        # An answer that went with the link need not be waited for: another attempt is made.
        self._api = api.failing_on_disconnect()
        self.stream = stream
        self._prefix = prefix
        self._serial = 0
        self._attempts = attempts
        self._first = first
        self._start: int | None = None  # the sequence just before the first message
        self._delivered = 0  # messages from former consumers
        self.info: ConsumerInfo | None = None  # the current consumer
        self.given_up = False  # nobody wants to read on: an attempt that fails is the last
        #: The last message that counts: the next consumer starts behind it.
        self.sequence = DeliverySequence()
        #: Note the message that has this reply subject; return whether it is the next one.
        self.advance: Callable[[bytes], bool] = self.sequence.follows

    @property
    def name(self) -> str:
        """The name of the current consumer, or of the one that is being made."""
        return f"{self._prefix}_{self._serial}"

    @property
    def consumer_seq(self) -> int:
        """The sequence of the last message from the current consumer."""
        return self.sequence.last or 0

    @property
    def delivered(self) -> int:
        """How many messages the user got."""
        return self._delivered + self.consumer_seq

    @property
    def stream_seq(self) -> int | None:
        """The sequence to go on behind; ``None``: where the first consumer starts."""
        reply = self.sequence.reply
        return int(ack_tokens(reply)[3]) if reply else self._start

    def _next_config(self, deliver_subject: str | None) -> ConsumerConfig:
        """Return the config of a consumer that goes on behind the last message."""
        self._serial += 1
        changes: dict[str, Any] = {"name": self.name, "deliver_subject": deliver_subject}
        behind = self.stream_seq
        if behind is not None:
            changes["deliver_policy"] = DeliverPolicy.BY_START_SEQUENCE
            changes["opt_start_seq"] = behind + 1
            changes["opt_start_time"] = None
        return replace(self._first, **changes)

    def renew(
        self, deadline: Deadline, deliver_to: Callable[[], str] | None = None
    ) -> ConsumerInfo:
        """
        Make a consumer that reads on from the position, and drop the old one.

        Args:
            deadline: the deadline.
            deliver_to: called before each attempt; returns the subject that the consumer delivers
                to, or raises what ends it all; ``None``: it is pulled from.

        Raises:
            StreamNotFoundError: the stream is gone.
            BadRequestError: the server rejected the consumer config.
            PermissionsError: this user may not make one.
            OrderedConsumerResetError: it could not be made in ``max_reset_attempts``.
            TimeoutError: the deadline came.
            ConnectionClosedError: the connection is closed.

        """
        self.drop()
        wait = _FIRST_RETRY_DELAY_S
        attempt = 0
        while True:
            attempt += 1
            # Somebody listens there before there is a consumer, and never hears two of them.
            config = self._next_config(None if deliver_to is None else deliver_to())
            limit = deadline.sooner(_ATTEMPT)
            try:
                info = add_consumer(self._api, self.stream, config, CREATE, limit)
            except (StreamNotFoundError, BadRequestError, PermissionsError):
                raise
            except Error as error:
                lost = isinstance(error, ConnectionLostError)
                closed = isinstance(error, ConnectionClosedError) and not lost
                if closed or self._api.core.writer.closed is not None:
                    raise
                self._drop(config)  # it may have been made
                if deadline.expired():
                    text = "the ordered consumer could not be made in time"
                    raise self._api.core.timed_out(text) from error
                if lost and not self.given_up:
                    attempt -= 1
                    continue  # the next one goes out as soon as there is a link
                if attempt == self._attempts:
                    raise OrderedConsumerResetError(
                        f"no consumer on stream {self.stream!r} after {attempt} attempts"
                    ) from error
                if not self._wait(deadline.sooner(wait)):
                    raise IteratorClosedError("it was ended while it had no consumer") from error
                wait = min(2 * wait, _MAX_RETRY_DELAY_S)
                continue
            self.info = info
            if deliver_to is None:
                self._delivered += self.consumer_seq
                self.sequence.last = 0
            if self._start is None and self._seeds(info):
                self._start = info.delivered.stream_seq
            return info

    def _wait(self, deadline: Deadline) -> bool:
        """Wait for the next attempt; return whether there is to be one."""
        while not self.given_up and not deadline.expired():
            if self._api.core.wait_closed(deadline.sooner(_LOOK).lock_timeout()):
                break  # the attempt will say so
        return not self.given_up

    def _seeds(self, info: ConsumerInfo) -> bool:
        """Return whether a new consumer's state tells where it starts."""
        # The last messages of many subjects lie anywhere: there is no sequence to start behind.
        return info.config.deliver_policy != DeliverPolicy.LAST_PER_SUBJECT

    def drop(self) -> None:
        """Have the server drop the current consumer, without waiting for its word."""
        info, self.info = self.info, None
        if info is not None:
            self._drop(info.config)

    def _drop(self, config: ConsumerConfig) -> None:
        assert config.name is not None
        route = self._api.routes.consumer_delete(self.stream, config.name)
        try:
            core = self._api.core
            core.writer.publish(*core.composer.message(route, b""))
        except Error:
            return  # it goes by itself, after its inactive_threshold


def pull_position(api: APIRequests, stream: str, options: OrderedOptions) -> OrderedCursor:
    """
    Return the position of an ordered consumer that pulls, before its first message.

    Raises:
        InvalidOptionError: an option is unknown or invalid.

    """
    unknown = set(options) - set(OrderedOptions.__annotations__)
    if unknown:
        raise InvalidOptionError(
            min(unknown), "...", f"not one of {sorted(OrderedOptions.__annotations__)}"
        )
    prefix = options.get("name_prefix")
    # Never the name alone: another reader of the same prefix would take, or delete, the consumer.
    unique = os.urandom(11).hex()
    prefix = f"{prefix}_{unique}" if prefix else unique
    attempts = options.get("max_reset_attempts", 0)
    if attempts < 0:
        raise InvalidOptionError("max_reset_attempts", attempts, "must be 0 or above")
    return OrderedCursor(api, stream, prefix, _pull_config(f"{prefix}_0", options), attempts)


def _pull_config(name: str, options: OrderedOptions) -> ConsumerConfig:
    """Return the config of the first consumer; checks the options."""
    filters = options.get("filter_subjects")
    if isinstance(filters, str):
        filters = [filters]
    policy = options.get("deliver_policy", DeliverPolicy.ALL)
    if "opt_start_seq" in options and "deliver_policy" not in options:
        policy = DeliverPolicy.BY_START_SEQUENCE
    elif "opt_start_time" in options and "deliver_policy" not in options:
        policy = DeliverPolicy.BY_START_TIME
    if policy == DeliverPolicy.LAST_PER_SUBJECT and not filters:
        filters = [">"]  # the server wants one with this policy
    fields: dict[str, Any] = {
        "name": name,
        "deliver_policy": policy,
        "opt_start_seq": options.get("opt_start_seq"),
        "opt_start_time": options.get("opt_start_time"),
        "ack_policy": AckPolicy.NONE,
        "replay_policy": options.get("replay_policy", ReplayPolicy.INSTANT),
        "max_deliver": 1,
        "mem_storage": True,
        "num_replicas": 1,
        "inactive_threshold": options.get("inactive_threshold", _INACTIVE),
        "headers_only": options.get("headers_only") or None,
        "metadata": options.get("metadata"),
    }
    if filters:
        fields["filter_subject" if len(filters) == 1 else "filter_subjects"] = (
            filters[0] if len(filters) == 1 else list(filters)
        )
    return ConsumerConfig(**fields)


log = logging.getLogger("jetstream_sync.ordered")

#: Messages to keep ready where nobody says. More than for other consumers: what is dropped unread
#: costs nobody a redelivery, and the server sends faster the more it may.
_READ_AHEAD: Final = 4000
#: Heartbeat of an ordered consumer's pulls, in seconds: a lost consumer should be missed soon.
_HEARTBEAT: Final = 5.0
#: Seconds that making a consumer may take at least, however short a fetch is.
_LEAST: Final = 1.0
#: Expiry of a pull request when the time of a fetch is up, in nanoseconds: it has to be above 0.
_SHORTEST_NS: Final = 1_000_000


class _OrderedRequester(PullRequester):
    """Pulls for a consumer of an ordered consumer, and checks that nothing is missing."""

    def __init__(self, api: APIRequests, info: ConsumerInfo, position: OrderedCursor) -> None:
        super().__init__(api, info.stream_name, info.name, info.config)
        self._position = position

    def message(self, delivery: Delivery) -> JetStreamMsg:
        """Make the message that the user gets; raises where one before it is missing."""
        if not self._position.advance(delivery[1]):
            raise _GapError(f"a message is missing behind {self._position.consumer_seq}")
        return JetStreamMsg(delivery, self.core, None)


class _GapError(Error):
    """A consumer's deliveries do not follow each other."""


#: What ends the reading of one consumer, and is mended by another.
_DISTURBED: Final = (
    _GapError,
    PullError,
    ConsumerNotFoundError,
    NoHeartbeatError,
    ConnectionLostError,
)
#: What a status, silence or a lost link says: another consumer is needed.
_LOST: Final = (PullError, ConsumerNotFoundError, NoHeartbeatError, ConnectionLostError)
#: What another consumer would meet, too.
_HOPELESS: Final = (BadRequestStatusError, RequestLimitError)


class OrderedMessages:
    """
    The messages of an ordered consumer, one after the other, without an end.

    Returned by `OrderedConsumer.messages`. As `MessageIterator`, but in order and without gaps: what
    breaks the order is mended before the next message is returned. Any number of threads may take
    messages from it: each goes to one, and they are taken in order.
    """

    def __init__(self, api: APIRequests, position: OrderedCursor, pull: ContinuousPull) -> None:
        self._api = api
        self._position = position
        self._pull = pull
        self._callback_finished: Callable[[Deadline], bool] | None = None
        # Held while a consumer is made; stop() does not take it, so as not to wait for that.
        self._renewing = threading.Lock()
        self._stopped: IteratorClosedError | None = None
        self._messages: MessageIterator | None = None

    def next(self, timeout: float | timedelta | None = None) -> JetStreamMsg:
        """
        Return the next message, waiting for it.

        Args:
            timeout: in seconds; ``None``: no limit; 0: look once.

        Raises:
            TimeoutError: no message arrived in time; the iterator goes on.
            IteratorClosedError: it was stopped, or drained, or gave all of ``stop_after``.
            StreamNotFoundError, BadRequestError, OrderedConsumerResetError: it cannot go on.
            ConnectionClosedError: the connection is closed.

        """
        return self.take(FOREVER if timeout is None else Deadline(timeout))

    def __iter__(self) -> Iterator[JetStreamMsg]:
        """Yield messages until the iterator is stopped; raises where it ends for another reason."""
        return until_stopped(self.take)

    def take(self, deadline: Deadline) -> JetStreamMsg:
        """Return the next message, as `next()` does, before the deadline."""
        while True:
            messages = self._messages or self._read_on(None, deadline)
            try:
                return messages.take(deadline)
            except IteratorClosedError:
                self._position.drop()
                raise
            except _HOPELESS:
                raise
            except _DISTURBED as error:
                log.info("ordered consumer on %r: %s", self._position.stream, error)
                messages.end(error)
                self._read_on(messages, deadline)

    def _read_on(self, ended: MessageIterator | None, deadline: Deadline) -> MessageIterator:
        """Go on with a new consumer behind the last message, unless another thread did."""
        self._api.core.writer.check_not_forked()
        if not self._renewing.acquire(timeout=deadline.lock_timeout()):
            raise TimeoutError("another thread is still making the consumer")
        try:
            if self._messages is not ended and self._messages is not None:
                return self._messages
            if self._stopped is not None:
                raise fresh(self._stopped)
            messages = self._renewed(deadline)
        finally:
            self._renewing.release()
        if self._stopped is not None:
            # stop() came while the consumer was made, and did not see it.
            messages.stop()
            self._position.drop()
        return messages

    def _renewed(self, deadline: Deadline) -> MessageIterator:
        """Make a new consumer and read from it; ``_renewing`` is held."""
        pull = self._pull
        if pull.stop_after:
            left = pull.stop_after - self._position.delivered
            if left < 1:
                raise IteratorClosedError("it gave as many messages as stop_after says")
            pull = replace(pull, stop_after=left)
        self._messages = None
        info = self._position.renew(deadline)
        requester = _OrderedRequester(self._api, info, self._position)
        messages = self._messages = MessageIterator(requester, pull, fail_fast=True)
        if self._callback_finished is not None:
            messages.set_callback_waiter(self._callback_finished)
        return messages

    def stop(self) -> None:
        """End the iterator, drop what is buffered, and have the server drop its consumer."""
        if self._stopped is None:
            self._stopped = IteratorClosedError("the iterator was stopped")
        self._position.given_up = True
        messages = self._messages
        if messages is not None:
            messages.stop()
            self._position.drop()

    def drain(self, timeout: float | timedelta | None = None) -> None:
        """
        Ask for no more messages; what is buffered, or on its way, can still be taken.

        Args:
            timeout: how long to wait for what is on its way, in seconds; ``None``: the
                connection's ``drain_timeout``.

        Raises:
            DrainTimeoutError: the server did not confirm in time.
            ConnectionClosedError: the connection is closed, or was lost.

        """
        if self._stopped is None:
            self._stopped = IteratorClosedError("the iterator was drained")
        self._position.given_up = True
        messages = self._messages
        if messages is not None:
            try:
                messages.drain(timeout)
            finally:
                self._position.drop()

    def set_callback_waiter(self, callback_finished: Callable[[Deadline], bool]) -> None:
        """Have a drain of the connection wait for the callback that the messages go to."""
        self._callback_finished = callback_finished
        if self._messages is not None:
            self._messages.set_callback_waiter(callback_finished)

    def start(self, deadline: Deadline) -> None:
        """Create the first consumer, so that errors are raised where the iterator is made."""
        self._read_on(None, deadline)

    @property
    def closed(self) -> bool:
        """Whether it was stopped or drained."""
        return self._stopped is not None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


class OrderedConsumer:
    """
    Reads a stream in order and without gaps, and acknowledges nothing.

    Returned by `Stream.ordered_consumer` or `JetStream.ordered_consumer`. Each `messages()` and
    `consume()` starts where the options say; `fetch()` and `next()` go on from one call to the next.
    `close()`, or the end of a ``with`` block, has the server drop its consumers at once; otherwise
    it does so after ``inactive_threshold``. Any thread may call the methods; one thread at a time
    fetches.
    """

    def __init__(
        self, api: APIRequests, stream_name: str, **options: Unpack[OrderedOptions]
    ) -> None:
        self._api = api
        self._stream = stream_name
        self._options = options
        # The position of fetch() and next(), under _lock, which is held while they wait.
        self._lock = threading.Lock()
        self._position = pull_position(api, stream_name, options)
        # Pulls from the server's consumer; None: the next pull makes a new one.
        self._requester: PullRequester | None = None
        self._reconnects = 0
        # Where a fetch that is under way gets its answer.
        self._inbox: PullInbox | None = None
        self._closed: IteratorClosedError | None = None
        # The position that was read from last: the one above, or that of messages().
        self._last_used = self._position
        self._iterators: WeakSet[OrderedMessages] = WeakSet()

    @property
    def stream_name(self) -> str:
        """The name of its stream."""
        return self._stream

    @property
    def cached_info(self) -> ConsumerInfo | None:
        """
        The consumer on the server that was used last, as it was when it was created.

        That of `messages()` or `consume()` until these are stopped, else that of `fetch()`;
        ``None`` while there is none.
        """
        return self._last_used.info or self._position.info

    @property
    def name(self) -> str | None:
        """The name of that consumer; it changes with each new one."""
        info = self.cached_info
        return None if info is None else info.name

    def info(self, timeout: float | timedelta | None = None) -> ConsumerInfo:
        """
        Ask the server for the config and state of the consumer that was used last.

        If there is none, the one that the next `fetch()` uses is made.

        Args:
            timeout: in seconds; ``None``: the timeout of the JetStream context.

        Raises:
            ConsumerNotFoundError: it is gone; the next read makes another one.
            StreamNotFoundError: the stream is gone.
            IteratorClosedError: it was closed.
            TimeoutError: the server did not reply in time.
            ConnectionClosedError: the connection is closed.

        """
        self._must_be_open()
        deadline = self._api.deadline(timeout)
        info = self.cached_info
        if info is None:
            with self._lock:
                info = self.cached_info
                if info is None:
                    self._requester = self._renewed(deadline)
                    info = self._position.info
            assert info is not None
        return consumer_info(self._api, self._stream, info.name, deadline)

    def messages(self, **options: Unpack[ContinuousOptions]) -> OrderedMessages:
        """
        Return an iterator over the stream's messages, from where the options of the consumer say.

        Args:
            **options: see `ContinuousOptions`; the default of ``max_messages`` is 4000 here, and that of
                ``heartbeat`` 5 seconds.

        Raises:
            InvalidOptionError: an option is out of range, or two options exclude each other.
            StreamNotFoundError: there is no such stream.
            BadRequestError: the server rejected the consumer config.
            IteratorClosedError: the ordered consumer was closed.
            TimeoutError: the server did not reply in time.
            ConnectionClosedError: the connection is closed.

        """
        self._must_be_open()
        options.setdefault("heartbeat", _heartbeat(options))
        if "max_bytes" not in options:
            options.setdefault("max_messages", _READ_AHEAD)
        position = pull_position(self._api, self._stream, self._options)
        messages = OrderedMessages(self._api, position, continuous_pull(options))
        self._iterators.add(messages)
        messages.start(self._api.deadline())
        self._last_used = position
        if self._closed is not None:
            messages.stop()  # close() came meanwhile, and may not have seen it
        return messages

    def consume(
        self, callback: JetStreamCallback, **options: Unpack[ContinuousOptions]
    ) -> ConsumeHandle:
        """
        Call a function for each message, in order, on a dedicated thread.

        Args:
            callback: called with each message; an error that it raises is reported to the
                connection's ``error_cb``, and the next message follows.
            **options: see `ContinuousOptions`.

        Raises:
            InvalidOptionError, StreamNotFoundError, BadRequestError, TimeoutError,
            ConnectionClosedError: as `messages()`.

        """
        check_callback("callback", callback)
        return ConsumeHandle(self._api.core, self._stream, self.messages(**options), callback)

    def fetch(
        self,
        batch: int | None = None,
        timeout: float | timedelta | None = 5.0,
        max_bytes: int | None = None,
        heartbeat: float | timedelta | None = None,
    ) -> list[JetStreamMsg]:
        """
        Return the next messages, up to a number of messages or bytes.

        Args:
            batch: maximum number of messages; ``None``: as many as ``max_bytes`` allows.
            timeout: how long to wait for them, in seconds; ``None``: until the batch is complete.
            max_bytes: maximum number of bytes; ``None``: no limit.
            heartbeat: as for `PullConsumer.fetch`.

        Returns:
            The messages in order; ``[]`` when no message arrived in time.

        Raises:
            InvalidOptionError: an option is out of range, or neither batch nor max_bytes is given.
            StreamNotFoundError, BadRequestError, OrderedConsumerResetError: it cannot go on.
            IteratorClosedError: it was closed.
            ConnectionClosedError: the connection is closed.

        """
        if timeout is not None and seconds(timeout) <= 0:
            raise InvalidOptionError("timeout", timeout, "must be above 0")
        request = fetch_request(batch, timeout, max_bytes, heartbeat)
        return self._fetch(request, Deadline(timeout))

    def fetch_no_wait(
        self, batch: int | None = None, max_bytes: int | None = None
    ) -> list[JetStreamMsg]:
        """
        Return the next messages that are there now, up to a number of messages or bytes.

        Args:
            batch: maximum number of messages; ``None``: as many as ``max_bytes`` allows.
            max_bytes: maximum number of bytes; ``None``: no limit.

        Returns:
            The messages in order; ``[]`` when there are none.

        Raises:
            InvalidOptionError, StreamNotFoundError, BadRequestError, OrderedConsumerResetError,
            IteratorClosedError, ConnectionClosedError: as `fetch()`.

        """
        return self._fetch(no_wait_request(batch, max_bytes), Deadline(NO_WAIT_TIMEOUT_S))

    def _fetch(self, request: PullRequest, deadline: Deadline) -> list[JetStreamMsg]:
        """Pull until there are messages, or the server says that there are none, or time is up."""
        self._must_be_open()
        fetched: list[JetStreamMsg] = []
        start = b""
        try:
            with self._lock:
                self._last_used = self._position
                start = self._position.sequence.reply
                while True:
                    try:
                        complete = self._pull(request, deadline, fetched)
                    except TimeoutError:
                        return []  # there is no connection, or no leader
                    if fetched or complete or deadline.expired():
                        return fetched
        except BaseException:
            self._take_back(fetched, start)
            raise

    def _pull(self, request: PullRequest, deadline: Deadline, fetched: list[JetStreamMsg]) -> bool:
        """
        Send one request, add its messages to ``fetched``, and return whether its answer was complete.

        The server's consumer is used again only after a complete answer. Otherwise (time is up here,
        a new link, any exception such as a Ctrl-C) it may have sent more messages than arrived, and
        without a later message no gap would show that. The next pull then makes a new consumer.
        """
        requester, self._requester = self._requester, None
        if requester is None or self._reconnects != self._api.core.reconnects:
            requester = self._renewed(_at_least(deadline, _LEAST))
            request = _shortened(request, deadline)
        pull = Fetch(requester, request, deadline.left(), fail_fast=True)
        inbox = self._inbox = PullInbox(self._api.core)
        try:
            if self._closed is not None:  # close() may not have seen the inbox
                raise fresh(self._closed)
            came = pull.run_in(inbox)
        except _HOPELESS:
            self._requester = requester  # it sent nothing
            raise
        except _LOST:
            return False
        finally:
            self._inbox = None
            inbox.close(deferred=pull.answered)
        follow = self._position.sequence.follow
        if came and not follow(came[0].ack_subject, came[-1].ack_subject, len(came)):
            for msg in came:
                if not self._position.advance(msg.ack_subject):
                    break
                fetched.append(msg)
            return False
        fetched += came
        if pull.answered:
            self._requester = requester
        return pull.answered

    def _renewed(self, deadline: Deadline) -> PullRequester:
        """Make a consumer that reads on from the position; ``_lock`` is held."""
        self._reconnects = self._api.core.reconnects
        info = self._position.renew(deadline)
        if self._closed is not None:
            self._position.drop()
            raise fresh(self._closed)
        return PullRequester(self._api, info.stream_name, info.name, info.config)

    def _take_back(self, fetched: list[JetStreamMsg], start: bytes) -> None:
        """Read messages again that an exception, such as a Ctrl-C, has kept from the caller."""
        if not fetched or not self._lock.acquire(blocking=False):
            return
        try:
            # Another thread may have read on behind them.
            if self._position.sequence.reply is fetched[-1].ack_subject:
                self._position.sequence.reply = start
                self._requester = None
        finally:
            self._lock.release()

    def next(
        self,
        timeout: float | timedelta | None = 5.0,
        heartbeat: float | timedelta | None = None,
    ) -> JetStreamMsg:
        """
        Return the next message.

        Args:
            timeout: in seconds; ``None``: no limit.
            heartbeat: as for `PullConsumer.fetch`.

        Raises:
            TimeoutError: no message arrived in time.
            InvalidOptionError, StreamNotFoundError, BadRequestError, OrderedConsumerResetError,
            IteratorClosedError, ConnectionClosedError: as `fetch()`.

        """
        messages = self.fetch(1, timeout, None, heartbeat)
        if not messages:
            raise self._api.core.timed_out(f"no message from stream {self._stream!r} in time")
        return messages[0]

    def close(self) -> None:
        """
        End it, and have the server drop its consumers; closing twice does nothing.

        Iterators and handles made by it are stopped. A fetch that waits on another thread returns
        what it has, or raises `IteratorClosedError`, as all later calls do. The server is not waited
        for.
        """
        if self._closed is None:
            self._closed = IteratorClosedError("the ordered consumer was closed")
        self._position.given_up = True
        inbox = self._inbox
        if inbox is not None:
            inbox.mailbox.close(self._closed)
        for messages in tuple(self._iterators):
            messages.stop()
        self._position.drop()

    def _must_be_open(self) -> None:
        self._api.core.writer.check_not_forked()
        if self._closed is not None:
            raise fresh(self._closed)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} on {self._stream!r}>"


def _at_least(deadline: Deadline, least: float) -> Deadline:
    """Return the deadline, or one in so many seconds where that comes later."""
    left = deadline.left()
    return deadline if left is None or left > least else Deadline(least)


def _shortened(request: PullRequest, deadline: Deadline) -> PullRequest:
    """Return the request with an expiry that fits into the time that is left."""
    left = deadline.left()
    if left is None or request.no_wait:
        return request
    expires_ns = max(_SHORTEST_NS, int(left * 1e9))
    heartbeat_ns = min(request.heartbeat_ns, expires_ns // 2)
    return replace(request, expires_ns=expires_ns, heartbeat_ns=heartbeat_ns)


def _heartbeat(options: ContinuousOptions) -> float | timedelta:
    """Return the heartbeat where nobody says: 5 seconds, unless the requests are too short for it."""
    expires = options.get("expires", 30.0)
    return min(_HEARTBEAT, seconds(expires, "expires") / 2)
