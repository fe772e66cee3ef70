"""Ordered consumers (ADR-17, ADR-37): every message of a stream once and in order."""

# Each `OrderedConsumer` has one `OrderedReader` for its fetches, and one for each iterator or callback.

from __future__ import annotations

import itertools
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Final
from weakref import WeakSet

from ..api.consumer import ConsumerInfo
from ..api.pull import (
    ContinuousOptions,
    ContinuousPull,
    PullOptions,
    PullRequest,
    fetch_request,
)
from ..client.mailbox import first_items
from ..client.threads import call_to_end
from ..net.clock import Deadline, seconds
from ..options import ErrorCallback, check_callback, check_known
from .api_requests import APIRequests
from .consume_handle import ConsumeHandle, JetStreamCallback
from .consumer_requests import consumer_info
from .continuous_pull import MessageIterator
from .message import JetStreamMsg
from .ordered_cursor import CursorOptions, OrderedCursor, OrderedOptions, check_options, pull_cursor
from .ordered_reader import HEARTBEAT_S, OrderedReader

if TYPE_CHECKING:
    from typing_extensions import Self, Unpack


#: Default of ``max_messages``. It is higher than for other consumers: dropping buffered messages causes
#: no redelivery, and larger requests are faster.
DEFAULT_MAX_MESSAGES: Final = 4000


class OrderedMessages(MessageIterator):
    """
    An endless iterator over the messages of an ordered consumer.

    Returned by `OrderedConsumer.messages`. It works as `MessageIterator`, but in order and without
    gaps: after a gap it creates a new consumer before it returns the next message. Any number of
    threads may take messages from it: each message goes to one of them, in order.
    """


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
        check_options(options)
        self._serials = itertools.count(1)
        # That of fetch() and next(), and those of messages() and consume().
        cursor = self._new_cursor()
        self._reader = OrderedReader(api, cursor)
        self._others: WeakSet[OrderedReader] = WeakSet()
        self._last_used = cursor
        self._is_entered = False
        # Its consumer has no other reader, but those of messages() and consume() go on.
        api.core.stop_dropped(self, lambda: cursor.consumer is not None, cursor.drop)
        # Has the start of all reads, if that depends on the time of this call.
        self._first: OrderedCursor | None = None
        if cursor.keeps_start:
            try:
                self._reader.create(api.deadline())
                self._first = self._new_cursor()
                self._first.start_as(cursor)
            except BaseException:
                cursor.drop()
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
        return self._last_used.info or self._reader.cursor.info

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
        self._reader.check_open()
        deadline = self._api.deadline(timeout)
        name = self.name
        if name is None:
            self._reader.create(deadline)
            name = self._reader.cursor.name
        return consumer_info(self._api, self._stream, name, deadline)

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
        reader = self._new_reader(options)
        messages = OrderedMessages(reader)
        # The end of a with block stops it, too.
        what = f"an ordered iterator over the messages of stream {self._stream!r}"
        if self._is_entered:
            what = ""
        self._api.core.stop_dropped(messages, reader.is_open, reader.stop, what)
        self._start(reader)
        return messages

    def _new_cursor(self, report: Callable[[BaseException], object] | None = None) -> OrderedCursor:
        # `report`: called with the error before reading starts again; ``None``: `Events.error` is.
        further: CursorOptions = {}
        if self._options.get("restart_if_recreated"):
            further["on_recreated"] = report or self._api.core.events.error
        return pull_cursor(self._api, self._stream, self._options, serials=self._serials, **further)

    def _new_reader(
        self, options: ContinuousOptions, report: Callable[[BaseException], object] | None = None
    ) -> OrderedReader:
        """Return a reader that has no consumer yet."""
        self._reader.check_open()
        if options.get("heartbeat") is None:  # at most half the expiry of a request
            expires = seconds(options.get("expires", 30.0), "expires")
            options["heartbeat"] = min(HEARTBEAT_S, expires / 2)
        if options.get("max_bytes") is None:
            options.setdefault("max_messages", DEFAULT_MAX_MESSAGES)
        cursor = self._new_cursor(report)
        if self._first is not None:
            cursor.start_as(self._first)
        reader = OrderedReader(self._api, cursor, ContinuousPull.of(options))
        self._others.add(reader)
        return reader

    def _start(self, reader: OrderedReader) -> None:
        reader.start(self._api.deadline())
        self._last_used = reader.cursor
        if self._reader.closed:
            reader.stop()  # close() was called meanwhile and may not have seen it

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
        reader = self._new_reader(options, partial(core.events.error, callback=error_cb))
        try:
            self._start(reader)
            return ConsumeHandle(core, self._stream, reader, callback, error_cb=error_cb)
        except BaseException:
            reader.stop()
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
        self._reader.check_open()
        self._last_used = self._reader.cursor
        return self._reader.fetch(request, deadline)

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
        self._reader.stop("the ordered consumer was closed")
        for reader in first_items(self._others):
            reader.stop()

    def __enter__(self) -> Self:
        self._is_entered = True
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} on {self._stream!r}>"
