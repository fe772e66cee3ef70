"""
Ordered consumers: every message of a stream, once, in order, whatever happens in between.

An ordered consumer has no state of its own on the server. It reads with a consumer that costs the
server little (no acks, in memory, one replica, gone when unused), and checks that each delivery has the
next consumer sequence. When one is missing, or that consumer is gone, it makes another one that starts behind
the last message that the user got (ADR-17 for the rules, ADR-37 for pulling).

The position is the stream sequence of that last message. Before there is one, it is what the server says
when the first consumer is made: so a reset before the first message loses nothing either.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any, Final, TypedDict

from typing_extensions import Self, Unpack

from ..api.consumer import ConsumerConfig, ConsumerInfo
from ..api.enums import AckPolicy, DeliverPolicy, ReplayPolicy
from ..api.pull import ContinuousPull
from ..api.reply import ack_tokens, consumer_sequence
from ..client.core import closed_on_purpose
from ..client.handoff import fresh
from ..errors import (
    BadRequestError,
    BadRequestStatusError,
    ConnectionClosedError,
    ConnectionLostError,
    ConsumerDeletedError,
    ConsumerNotFoundError,
    Error,
    InvalidOptionError,
    IteratorClosedError,
    NoHeartbeatError,
    OrderedConsumerResetError,
    PullError,
    RequestLimitError,
    StreamNotFoundError,
    TimeoutError,
)
from ..net.clock import FOREVER, Deadline, seconds
from ..protocol.parser import Delivery
from .consume import ConsumeHandle, JetStreamCallback
from .consumer import ContinuousOptions, PullConsumer, continuous_pull
from .consumers import add_consumer
from .message import JetStreamMsg
from .messages import MessageIterator
from .puller import Puller
from .requests import APIRequests

__all__ = ["OrderedConsumer", "OrderedMessages", "OrderedOptions"]

log = logging.getLogger("jetstream_sync.ordered")

_INACTIVE: Final = timedelta(minutes=5)
#: Seconds that one attempt to make a consumer may take.
_ATTEMPT: Final = 10.0
#: Seconds between two attempts: the first, and the longest; it doubles in between.
_FIRST_WAIT: Final = 1.0
_LONGEST_WAIT: Final = 10.0
#: Seconds between two looks, while waiting for the next attempt, whether the user has stopped it.
_LOOK: Final = 0.25
#: Messages to keep ready where nobody says. More than for other consumers: what is dropped unread
#: costs nobody a redelivery, and the server sends faster the more it may.
_READ_AHEAD: Final = 4000
#: Heartbeat of an ordered consumer's pulls, in seconds: a lost consumer should be missed soon.
_HEARTBEAT: Final = 5.0
#: What a consumer that is gone looks like, from the various sides.
_LOST: Final = (ConsumerDeletedError, ConsumerNotFoundError, NoHeartbeatError)


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


class _Position:
    """How far the user got, and the server's consumer that reads on from there."""

    def __init__(self, api: APIRequests, stream: str, options: OrderedOptions) -> None:
        unknown = set(options) - set(OrderedOptions.__annotations__)
        if unknown:
            raise InvalidOptionError(
                min(unknown), "...", f"not one of {sorted(OrderedOptions.__annotations__)}"
            )
        self._api = api
        self.stream = stream
        self._prefix = options.get("name_prefix") or os.urandom(11).hex()
        self._serial = 0
        self._attempts = options.get("max_reset_attempts", 0)
        if self._attempts < 0:
            raise InvalidOptionError("max_reset_attempts", self._attempts, "must be 0 or above")
        self._first = self._config(options)
        self._start: int | None = None  # the sequence just before the first message
        self._last = b""  # the reply subject of the last message that the user got
        self.consumer_seq = 0  # of the last message from the current consumer
        self._delivered = 0  # messages from former consumers
        self.info: ConsumerInfo | None = None  # the current consumer
        self.given_up = False  # nobody wants to read on: an attempt that fails is the last

    @property
    def delivered(self) -> int:
        """How many messages the user got."""
        return self._delivered + self.consumer_seq

    @property
    def stream_seq(self) -> int | None:
        """The sequence to go on behind; ``None``: where the first consumer starts."""
        return int(ack_tokens(self._last)[3]) if self._last else self._start

    def _config(self, options: OrderedOptions) -> ConsumerConfig:
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
            "name": f"{self._prefix}_0",
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

    def _next_config(self) -> ConsumerConfig:
        """Return the config of a consumer that goes on behind the last message."""
        self._serial += 1
        name = f"{self._prefix}_{self._serial}"
        changes: dict[str, Any] = {"name": name}
        behind = self.stream_seq
        if behind is not None:
            changes["deliver_policy"] = DeliverPolicy.BY_START_SEQUENCE
            changes["opt_start_seq"] = behind + 1
            changes["opt_start_time"] = None
        return replace(self._first, **changes)

    def renew(self, deadline: Deadline) -> ConsumerInfo:
        """
        Make a consumer that reads on from the position, and drop the old one.

        Raises:
            StreamNotFoundError: the stream is gone.
            BadRequestError: the server refuses the consumer.
            OrderedConsumerResetError: it could not be made in ``max_reset_attempts``.
            TimeoutError: the deadline came.
            ConnectionClosedError: the connection is closed.

        """
        self.drop()
        wait = _FIRST_WAIT
        attempt = 0
        while True:
            attempt += 1
            try:
                info = add_consumer(
                    self._api,
                    self.stream,
                    self._next_config(),
                    "create",
                    deadline.sooner(_ATTEMPT),
                )
            except (StreamNotFoundError, BadRequestError, ConnectionClosedError):
                raise
            except Error as error:
                if deadline.expired():
                    raise TimeoutError("the ordered consumer could not be made in time") from error
                if attempt == self._attempts:
                    raise OrderedConsumerResetError(
                        f"no consumer on stream {self.stream!r} after {attempt} attempts"
                    ) from error
                if not self._wait(deadline.sooner(wait)):
                    raise IteratorClosedError("it was ended while it had no consumer") from error
                wait = min(2 * wait, _LONGEST_WAIT)
                continue
            self.info = info
            self._delivered += self.consumer_seq
            self.consumer_seq = 0
            if self._start is None and self._seeds(info):
                self._start = info.delivered.stream_seq
            return info

    def _wait(self, deadline: Deadline) -> bool:
        """Wait for the next attempt; say whether there is to be one."""
        while not self.given_up and not deadline.expired():
            if self._api.core.wait_closed(deadline.sooner(_LOOK).lock_timeout()):
                break  # the attempt will say so
        return not self.given_up

    def _seeds(self, info: ConsumerInfo) -> bool:
        """Say whether a new consumer's state tells where it starts."""
        # The last messages of many subjects lie anywhere: there is no sequence to start behind.
        return info.config.deliver_policy != DeliverPolicy.LAST_PER_SUBJECT

    def drop(self) -> None:
        """Have the server drop the current consumer, without waiting for its word."""
        info, self.info = self.info, None
        if info is not None:
            route = self._api.routes.consumer_delete(self.stream, info.name)
            try:
                core = self._api.core
                core.writer.publish(*core.composer.message(route, b""))
            except Error:
                return  # it goes by itself, after its inactive_threshold

    def advance(self, reply: bytes) -> bool:
        """Note the message that has this reply subject; say whether it is the next one."""
        if consumer_sequence(reply) != self.consumer_seq + 1:
            return False
        self.consumer_seq += 1
        self._last = reply
        return True


class _OrderedPuller(Puller):
    """Pulls for a consumer of an ordered consumer, and checks that nothing is missing."""

    def __init__(self, api: APIRequests, info: ConsumerInfo, position: _Position) -> None:
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
#: What another consumer would meet, too.
_HOPELESS: Final = (BadRequestStatusError, RequestLimitError)


class OrderedMessages:
    """
    The messages of an ordered consumer, one after the other, without an end.

    Made by `OrderedConsumer.messages`. As `MessageIterator`, but in order and without gaps: what
    breaks the order is mended before the next message is returned. Any number of threads may take
    messages from it: each goes to one, and they are taken in order.
    """

    def __init__(self, api: APIRequests, position: _Position, pull: ContinuousPull) -> None:
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
            timeout: in seconds; ``None``: wait for ever; 0: look once.

        Raises:
            TimeoutError: none came in time; the iterator goes on.
            IteratorClosedError: it was stopped, or drained, or gave all of ``stop_after``.
            StreamNotFoundError, BadRequestError, OrderedConsumerResetError: it can not go on.
            ConnectionClosedError: the connection is closed.

        """
        return self.take(FOREVER if timeout is None else Deadline(timeout))

    def __iter__(self) -> Iterator[JetStreamMsg]:
        """Yield messages until the iterator is stopped; raises where it ends for another reason."""
        take = self.take
        while True:
            try:
                msg = take(FOREVER)
            except IteratorClosedError:
                return
            except ConnectionClosedError as error:
                if closed_on_purpose(error):
                    return
                raise
            yield msg

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
        puller = _OrderedPuller(self._api, info, self._position)
        messages = self._messages = MessageIterator(puller, pull, strict=True)
        if self._callback_finished is not None:
            messages.handed_to(self._callback_finished)
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
            ConnectionClosedError: the connection is closed, or lost its link.

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

    def handed_to(self, callback_finished: Callable[[Deadline], bool]) -> None:
        """Have a drain of the connection wait for the callback that the messages go to."""
        self._callback_finished = callback_finished
        if self._messages is not None:
            self._messages.handed_to(callback_finished)

    def start(self, deadline: Deadline) -> None:
        """Make the first consumer, so that errors are raised where the iterator is made."""
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

    Had from `Stream.ordered_consumer` or `JetStream.ordered_consumer`. Each `messages()` and
    `consume()` starts where the options say; `fetch()` and `next()` go on from one call to the next.
    """

    def __init__(
        self, api: APIRequests, stream_name: str, **options: Unpack[OrderedOptions]
    ) -> None:
        self._api = api
        self._stream = stream_name
        self._options = options
        # The position of fetch() and next(), under _lock, which is held while they wait.
        self._lock = threading.Lock()
        self._position = _Position(api, stream_name, options)
        self._consumer: PullConsumer | None = None
        self._reconnects = 0

    @property
    def stream_name(self) -> str:
        """The name of its stream."""
        return self._stream

    @property
    def cached_info(self) -> ConsumerInfo | None:
        """The consumer on the server that `fetch()` last used, as it was when it was made."""
        return self._position.info

    def messages(self, **options: Unpack[ContinuousOptions]) -> OrderedMessages:
        """
        Return an iterator over the stream's messages, from where the options of the consumer say.

        Args:
            **options: see `ContinuousOptions`; the default of ``max_messages`` is 4000 here, and that of
                ``heartbeat`` 5 seconds.

        Raises:
            InvalidOptionError: an option is out of range, or two exclude each other.
            StreamNotFoundError: there is no such stream.
            BadRequestError: the server refuses the consumer.
            TimeoutError: the server does not answer.
            ConnectionClosedError: the connection is closed.

        """
        options.setdefault("heartbeat", _heartbeat(options))
        if "max_bytes" not in options:
            options.setdefault("max_messages", _READ_AHEAD)
        position = _Position(self._api, self._stream, self._options)
        messages = OrderedMessages(self._api, position, continuous_pull(options))
        messages.start(self._api.deadline())
        return messages

    def consume(
        self, callback: JetStreamCallback, **options: Unpack[ContinuousOptions]
    ) -> ConsumeHandle:
        """
        Call a function for each message, in order, on a thread of its own.

        Args:
            callback: called with each message; an error that it raises is reported to the
                connection's ``error_cb``, and the next message follows.
            **options: see `ContinuousOptions`.

        Raises:
            InvalidOptionError, StreamNotFoundError, BadRequestError, TimeoutError,
            ConnectionClosedError: as `messages()`.

        """
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
            batch: messages at most; ``None``: as many as ``max_bytes`` allows.
            timeout: how long to wait for them, in seconds; ``None``: until the batch is complete.
            max_bytes: bytes at most; ``None``: no limit.
            heartbeat: as for `PullConsumer.fetch`.

        Returns:
            The messages in order; ``[]`` when none came in time.

        Raises:
            InvalidOptionError: an option is out of range, or neither batch nor max_bytes is given.
            StreamNotFoundError, BadRequestError, OrderedConsumerResetError: it can not go on.
            ConnectionClosedError: the connection is closed.

        """
        if timeout is not None and seconds(timeout) <= 0:
            raise InvalidOptionError("timeout", timeout, "must be above 0")
        deadline = Deadline(timeout)
        with self._lock:
            while True:
                consumer = self._consumer
                if consumer is None or self._reconnects != self._api.core.reconnects:
                    self._reconnects = self._api.core.reconnects
                    # A consumer gets the usual time to be made, however short the fetch is.
                    info = self._position.renew(self._api.deadline())
                    consumer = self._consumer = PullConsumer(self._api, info)
                try:
                    fetched = consumer.fetch(batch, _left(deadline), max_bytes, heartbeat)
                except _LOST:
                    fetched = []
                    self._consumer = None
                messages = []
                for msg in fetched:
                    if not self._position.advance(msg.ack_subject):
                        self._consumer = None
                        break
                    messages.append(msg)
                if messages or self._consumer is not None or deadline.expired():
                    return messages

    def next(
        self,
        timeout: float | timedelta | None = 5.0,
        heartbeat: float | timedelta | None = None,
    ) -> JetStreamMsg:
        """
        Return the next message.

        Args:
            timeout: in seconds; ``None``: wait for ever.
            heartbeat: as for `PullConsumer.fetch`.

        Raises:
            TimeoutError: none came in time.
            InvalidOptionError, StreamNotFoundError, BadRequestError, OrderedConsumerResetError,
            ConnectionClosedError: as `fetch()`.

        """
        messages = self.fetch(1, timeout, None, heartbeat)
        if not messages:
            raise TimeoutError(f"no message from stream {self._stream!r} in time")
        return messages[0]

    def __repr__(self) -> str:
        return f"<{type(self).__name__} on {self._stream!r}>"


def _left(deadline: Deadline) -> float | None:
    """Return a timeout that a pull request accepts: it has to be above 0."""
    left = deadline.left()
    return None if left is None else max(left, 0.001)


def _heartbeat(options: ContinuousOptions) -> float | timedelta:
    """Return the heartbeat where nobody says: 5 seconds, unless the requests are too short for it."""
    expires = options.get("expires", 30.0)
    return min(_HEARTBEAT, seconds(expires, "expires") / 2)
