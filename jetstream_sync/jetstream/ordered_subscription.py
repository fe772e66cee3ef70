"""Ordered subscriptions (ADR-17): `OrderedReader` with the methods of a subscription."""

# ruff: noqa: SLF001 - it uses the counters and the handle of this package

from __future__ import annotations

import os
from collections.abc import Iterator
from datetime import timedelta
from typing import TYPE_CHECKING

from .. import errors
from ..api.consumer import ConsumerInfo
from ..api.pull import ContinuousOptions, ContinuousPull
from ..api.subscribing import SubscribeRequest, ordered_config
from ..client.mailbox import copy_exception
from ..codec import encode
from ..durations import counted
from ..locks import new_lock
from ..net.clock import Deadline
from ..options import check_int
from ..protocol.parser import HEADER, PAYLOAD
from .api_requests import APIRequests
from .consume_handle import ConsumeHandle, JetStreamCallback
from .consumer_requests import ConsumerAccessors
from .continuous_pull import until_stopped
from .message import JetStreamMsg
from .ordered import DEFAULT_MAX_MESSAGES
from .ordered_cursor import INACTIVE_THRESHOLD_S, CursorOptions, OrderedCursor
from .ordered_reader import HEARTBEAT_S, OrderedReader
from .server_support import EchoCheck

if TYPE_CHECKING:
    from typing_extensions import Self


class _CountedReader(OrderedReader):
    """Counts the messages that are taken, and ends after a number of them."""

    def __init__(self, api: APIRequests, cursor: OrderedCursor, pull: ContinuousPull) -> None:
        super().__init__(api, cursor, pull)
        # Held while a message is counted, and while the limit is set.
        self._counting = new_lock()
        #: Number of messages that were taken.
        self.taken: int = 0
        #: Number of messages after which it ends; 0: no limit.
        self.limit: int = 0

    def take(self, deadline: Deadline) -> JetStreamMsg:
        """Wait for the next message and return it; raise `IteratorClosedError` after the last one."""
        if 0 < self.limit <= self.taken:
            raise errors.IteratorClosedError(self._limit_reached())
        msg = super().take(deadline)
        with self._counting:
            if 0 < self.limit <= self.taken:  # another thread has taken the last one
                raise errors.IteratorClosedError(self._limit_reached())
            self.taken += 1
            is_last = self.taken == self.limit
        if is_last:
            self.stop()
        return msg

    def end_after(self, limit: int) -> None:
        """End after this number of messages, counted from the first one."""
        with self._counting:
            self.limit = limit
            is_over = self.taken >= limit
        if is_over:
            self.stop()

    def _limit_reached(self) -> str:
        return f"the subscription has reached its limit of {counted(self.limit, 'message')}"


class OrderedSubscription(ConsumerAccessors):
    """
    A subscription to a stream that returns each message once and in order, without acknowledgements.

    Returned by `JetStream.subscribe` with ``ordered_consumer``. It has no state of its own on the
    server: after a gap, missed heartbeats or a reconnect it creates another consumer, which starts
    after the last message that was read. It requests at most 4,000 messages ahead of the reader. Without
    a callback, messages are read with `next_msg()` or by iterating; with one, a dedicated thread calls it
    for each message, and an exception is reported to ``error_cb``.

    Any thread may use a subscription, and several may read from it: each message goes to one of them.
    """

    def __init__(
        self,
        api: APIRequests,
        stream: str,
        request: SubscribeRequest,
        callback: JetStreamCallback | None,
        *,
        restart_if_recreated: bool,
    ) -> None:
        """Create the first consumer."""
        prefix = request.requested.get("name") or os.urandom(11).hex()
        config = ordered_config(request, prefix, timedelta(seconds=INACTIVE_THRESHOLD_S))
        further: CursorOptions = {}
        if restart_if_recreated:
            further["on_recreated"] = api.core.internal.events.error
        asked = request.requested.get("idle_heartbeat")
        # A pull request has at least 0.5 seconds, and half its expiry at most.
        heartbeat = min(max(asked.total_seconds(), 0.5), 15.0) if asked else HEARTBEAT_S
        pull: ContinuousOptions = {"max_messages": DEFAULT_MAX_MESSAGES, "heartbeat": heartbeat}
        self.subject: str = request.subject
        """The subject that was subscribed; empty if only the stream was given."""
        self.queue = ""
        """Empty: an ordered consumer is not shared."""
        self._api = api
        self._stream = stream
        cursor = OrderedCursor(api, stream, prefix, encode(config), **further)
        self._reader = reader = _CountedReader(api, cursor, ContinuousPull.of(pull))
        self._cursor = cursor
        self._handle: ConsumeHandle | None = None
        # Whether the end was asked for by `unsubscribe` without a limit, or by `drain`.
        self._ended = False
        check = EchoCheck(api, f"the consumer of stream {stream!r}", config)
        reader.start(api.deadline())
        try:
            created = cursor.info
            if created is not None:
                check.verify(created.config, cursor.drop)
            if callback is not None:
                self._handle = ConsumeHandle(api.core, stream, reader, callback)
                return

            def drained(_: Deadline) -> bool:
                cursor.stop()
                cursor.drop()
                return True

            # A drain of the connection deletes the consumer; the messages can be read afterwards.
            reader.set_callback_waiter(drained, api.core.internal.events.error)
            what = f"an ordered subscription to stream {stream!r}"
            api.core.stop_dropped(self, reader.is_open, reader.stop, what)
        except BaseException:
            reader.stop()
            raise

    # --- state ----------------------------------------------------------------------------------

    @property
    def consumer_name(self) -> str:
        """The name of the current consumer, or of the one that is being created."""
        return self._cursor.name

    def consumer_info(self, timeout: float | timedelta | None = None) -> ConsumerInfo:
        """
        Request the config and state of the current consumer; create another one if it is lost.

        Args:
            timeout: in seconds; ``None``: the timeout of the JetStream context.

        Raises:
            StreamNotFoundError: the stream does not exist.
            TimeoutError: the server did not reply in time.
            ConsumerNotFoundError, BadSubscriptionError: the subscription has ended.
            ConnectionClosedError: the connection is closed.

        """
        deadline = self._api.deadline(timeout)
        try:
            return super().consumer_info(deadline.left())
        except errors.ConsumerNotFoundError:
            if self._reader.closed:
                raise
        try:
            self._reader.renew("it was deleted", deadline)
        except errors.IteratorClosedError as error:
            raise errors.BadSubscriptionError(str(error)) from None
        return super().consumer_info(deadline.left())

    @property
    def delivered(self) -> int:
        """The number of messages that were received, in order."""
        return self._reader.taken + self.pending_msgs

    @property
    def dropped(self) -> int:
        """0: the server sends only messages that were requested."""
        return 0

    @property
    def pending_msgs(self) -> int:
        """Number of messages received and not yet read."""
        count, reader = len(self._reader.buffered()), self._reader
        return max(0, min(count, reader.limit - reader.taken)) if reader.limit else count

    @property
    def pending_bytes(self) -> int:
        """Bytes of headers and payload received and not yet read."""
        found = self._reader.buffered()[: self.pending_msgs]
        return sum(len(item[HEADER]) + len(item[PAYLOAD]) for item in found)

    @property
    def is_valid(self) -> bool:
        """Whether the subscription may receive more messages."""
        return not self._cursor.stopping and self._api.core.closed_reason is None

    # --- reading --------------------------------------------------------------------------------

    def next_msg(self, timeout: float | timedelta | None = 1.0) -> JetStreamMsg:
        """
        Wait for the next message and return it.

        Args:
            timeout: in seconds; ``None``: no limit; 0: do not wait.

        Raises:
            TimeoutError: no message arrived in time.
            BadSubscriptionError: the subscription has ended and all messages were read.
            StreamNotFoundError, StreamRecreatedError, BadRequestError: it cannot continue.
            ConnectionClosedError: the connection is closed and all messages were read.
            SubscriptionError: the subscription has a callback.

        """
        self._must_be_readable()
        try:
            return self._reader.take(Deadline(timeout))
        except errors.IteratorClosedError as error:
            raise errors.BadSubscriptionError(str(error)) from None

    def __iter__(self) -> Iterator[JetStreamMsg]:
        """Yield messages until the subscription or the connection is closed by the user."""
        self._must_be_readable()
        return until_stopped(self._reader.take, owner=self)

    def _must_be_readable(self) -> None:
        if self._handle is not None:
            raise errors.SubscriptionError(
                "the subscription has a callback, which receives its messages;"
                " subscribe without cb to read them"
            )

    # --- ending ---------------------------------------------------------------------------------

    def unsubscribe(self, limit: int = 0) -> None:
        """
        End the subscription, at once or after a number of messages, and delete its consumer.

        Args:
            limit: the number of messages, counted from the start of the subscription, after which it
                ends. 0: end now and drop all messages that were not read.

        Raises:
            BadSubscriptionError: the subscription was ended before by `unsubscribe()` or `drain()`.
            ConnectionClosedError: the connection is closed.
            InvalidOptionError: ``limit`` is below 0.

        """
        limit = check_int("limit", limit, 0)
        self._must_not_be_ended()
        if limit:
            self._reader.end_after(limit)
            return
        self._reader.stop()
        self._ended = True  # only now: after a Ctrl-C before, the call can be repeated

    def drain(self, timeout: float | timedelta | None = None) -> None:
        """
        End the subscription after all messages in flight were handled, and delete its consumer.

        With a callback, wait until it has handled the last message, unless the callback itself calls
        this. Without a callback, the pending messages can still be read.

        Args:
            timeout: in seconds; ``None``: the connection's ``drain_timeout``.

        Raises:
            DrainTimeoutError: the timeout expired; the rest is dropped.
            BadSubscriptionError: the subscription was ended before by `unsubscribe()` or `drain()`.
            ConnectionClosedError: the connection is closed.

        """
        core, handle = self._api.core, self._handle
        deadline = Deadline(core.options.drain_timeout if timeout is None else timeout)
        self._must_not_be_ended()
        try:
            self._reader.drain(deadline.left())
        except errors.DrainTimeoutError:
            self._reader.stop()
            self._ended = True
            raise
        self._ended = True
        if handle is not None and not handle._finished(deadline):
            self._reader.stop()
            raise errors.DrainTimeoutError(f"the callback for {self.subject!r} is still running")

    def _must_not_be_ended(self) -> None:
        if self._api.core.closed_reason is not None:
            raise copy_exception(self._api.core.closed_reason)
        if self._ended:
            raise errors.BadSubscriptionError("the subscription was ended before")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.is_valid:
            self.unsubscribe()
