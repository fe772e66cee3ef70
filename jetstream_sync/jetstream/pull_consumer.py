"""Pull consumers (ADR-37)."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

from ..api.consumer import ConsumerInfo, ConsumerReset
from ..api.pull import (
    ContinuousOptions,
    ContinuousPull,
    FetchOptions,
    PullRequest,
    fetch_request,
)
from ..durations import NS_PER_S
from ..foreign_names import ForeignNames
from ..options import ErrorCallback, check_callback
from .api_requests import APIRequests
from .consume_handle import ConsumeHandle, JetStreamCallback
from .consumer_requests import consumer_info, reset_consumer, stranded_msg
from .continuous_pull import MessageIterator, MessagePuller
from .message import JetStreamMsg
from .pull import Fetch, PullRequester

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from .direct_get import StoredMsg


class PullConsumer(ForeignNames):
    """
    A pull consumer of a stream.

    Returned by `Stream.create_consumer`, `JetStream.create_consumer` and the like. Any number of threads
    and programs may pull from one consumer at the same time; each message is delivered to one of them.
    After an error that says that the consumer does not exist, the next call reads its config again, such as the ack
    policy of another consumer with its name; `info()` reads it at any time.
    """

    def __init__(self, api: APIRequests, info: ConsumerInfo) -> None:
        self._api = api
        self._info = info
        self._requester = PullRequester(api, info.stream_name, info.name, info.config)

    @property
    def name(self) -> str:
        """The consumer's name."""
        return self._info.name

    @property
    def stream_name(self) -> str:
        """The name of the stream."""
        return self._info.stream_name

    @property
    def cached_info(self) -> ConsumerInfo:
        """The last received config and state; `info()` requests them again."""
        return self._info

    def info(self, timeout: float | timedelta | None = None) -> ConsumerInfo:
        """
        Request the consumer's config and state.

        Args:
            timeout: in seconds; ``None``: the timeout of the JetStream context.

        Raises:
            ConsumerNotFoundError, StreamNotFoundError: it does not exist.
            TimeoutError: the server did not reply in time.
            ConnectionClosedError: the connection is closed.

        """
        deadline = self._api.deadline(timeout)
        self._info = consumer_info(self._api, self.stream_name, self.name, deadline)
        self._requester.configure(self._info.config)
        return self._info

    def reset(self, seq: int | None = None) -> ConsumerReset:
        """
        Reset the consumer; needs server 2.14 (ADR-60). See `Stream.reset_consumer`.

        Requests that wait continue, and `fetch()`, `messages()` and `consume()` stay usable.

        Args:
            seq: the stream sequence to continue at, at least 1; ``None``: after the ack floor.

        Raises:
            Error: as `Stream.reset_consumer`.

        """
        return reset_consumer(self._api, self.stream_name, self.name, seq)

    def stranded(self) -> StoredMsg | None:
        """
        Return the first message of a work queue that the consumer should have, and will never deliver.

        That is a message that it selects, at or below its ack floor; a fault of nats-server causes it, see
        :ref:`purge-fault`. To deliver such messages, delete the consumer and create it again with the same config.
        ``None``: there is none, the stream is no work queue, or the consumer has a ``max_deliver``, whose
        messages stay there as well. If there seems to be one, it is looked up again half a second later, and does
        not count while another consumer, such as that of a mirror, still needs it.

        Raises:
            Error: as `info()`.

        """
        return stranded_msg(self._api, self.stream_name, self.name)

    # --- one pull -------------------------------------------------------------------------------

    def fetch(
        self,
        batch: int | None = None,
        timeout: float | timedelta | None = 5.0,
        **options: Unpack[FetchOptions],
    ) -> list[JetStreamMsg]:
        """
        Pull up to a number of messages or bytes, and return them.

        Returns when the batch is complete or the timeout expires. A lost connection does not end the
        call: the missing messages are requested again after the reconnect.

        Messages that arrive after the call has ended are redelivered after ``ack_wait``, and those of a call
        that a Ctrl-C has ended at once. With ack policy ``none`` they go to the next call on this object,
        which returns them at once.

        Args:
            batch: maximum number of messages; ``None``: as many as ``max_bytes`` allows.
            timeout: how long to wait for them, in seconds; ``None``: until the batch is complete.
            **options: see `FetchOptions`.

        Returns:
            The messages in order; ``[]`` if there are none.

        Raises:
            InvalidOptionError: an option is out of range, or neither ``batch`` nor ``max_bytes`` is given.
            ConsumerNotFoundError, StreamNotFoundError, ConsumerDeletedError: the consumer does not exist.
            PullError: the server rejected the request; see its subclasses.
            NoHeartbeatError: the heartbeats stopped.
            ConnectionClosedError: the connection is closed.
                All but the first are raised only if there are no messages to return.

        """
        request = fetch_request(batch, timeout, **options)
        return self._fetch(request, None if timeout is None else request.expires_ns / NS_PER_S)

    def fetch_no_wait(
        self, batch: int | None = None, **options: Unpack[FetchOptions]
    ) -> list[JetStreamMsg]:
        """
        Pull the available messages, up to a number of messages or bytes.

        Args:
            batch: maximum number of messages; ``None``: as many as ``max_bytes`` allows.
            **options: see `FetchOptions`; without a ``heartbeat``, because the server replies at once.

        Returns:
            The messages in order; ``[]`` when the server says that there are none, as it does while the
            consumer is paused.

        Raises:
            TimeoutError: the server did not reply within the timeout of the `JetStream` object.
            InvalidOptionError, PullError, ConsumerDeletedError, ConnectionClosedError: as `fetch()`.

        """
        request = fetch_request(batch, None, True, **options)
        return self._fetch(request, self._api.deadline().left())

    def next(
        self, timeout: float | timedelta | None = 5.0, **options: Unpack[FetchOptions]
    ) -> JetStreamMsg:
        """
        Pull one message.

        Args:
            timeout: how long to wait for it, in seconds; ``None``: no limit.
            **options: see `FetchOptions`.

        Raises:
            TimeoutError: no message arrived in time.
            InvalidOptionError, ConsumerDeletedError, PullError, NoHeartbeatError,
            ConnectionClosedError: as `fetch()`.

        """
        messages = self.fetch(1, timeout, **options)
        if not messages:
            raise self._api.core.state.timed_out(f"no message from consumer {self.name!r} in time")
        return messages[0]

    def _fetch(self, request: PullRequest, expires: float | None) -> list[JetStreamMsg]:
        self._requester.check(request)
        return Fetch(self._requester, request, expires).run()

    # --- continuous pulls -----------------------------------------------------------------------

    def messages(
        self, *, on_demand: bool = False, **options: Unpack[ContinuousOptions]
    ) -> MessageIterator:
        """
        Return an iterator over the consumer's messages, which are pulled ahead.

        Args:
            on_demand: pull only as many messages as `MessageIterator.request` asks for, for a program
                that limits the number of messages it has received and not acknowledged. This excludes
                ``stop_after``, ``max_messages``, ``max_bytes`` and the thresholds.
            **options: see `ContinuousOptions`.

        Raises:
            InvalidOptionError: an option is out of range, or two options exclude each other.
            ConnectionClosedError: the connection is closed.

        """
        puller = self._puller(options, on_demand=on_demand)
        try:
            messages = MessageIterator(puller, puller if on_demand else None)
            what = f"an iterator over the messages of consumer {self.name!r}"
            self._api.core.stop_dropped(messages, puller.is_open, puller.give_back, what)
        except BaseException:
            puller.stop()
            raise
        return messages

    def consume(
        self,
        callback: JetStreamCallback,
        *,
        error_cb: ErrorCallback | None = None,
        **options: Unpack[ContinuousOptions],
    ) -> ConsumeHandle:
        """
        Call a function for each of the consumer's messages, on a dedicated thread.

        Messages are pulled ahead. The callback acknowledges them. An error that it raises is reported to
        ``error_cb``, and the next message follows. If the callback did not acknowledge the failed message,
        it is redelivered after 5 seconds, or after the step of the consumer's ``backoff``.

        Args:
            callback: called with each message.
            error_cb: called with each error of this call, on the thread of the connection's callbacks;
                ``None``: the connection's ``error_cb``.
            **options: see `ContinuousOptions`.

        Returns:
            A handle that stops or drains it.

        Raises:
            InvalidOptionError: an option is out of range, or two options exclude each other.
            ConnectionClosedError: the connection is closed.

        """
        check_callback("callback", callback)
        if error_cb is not None:
            check_callback("error_cb", error_cb)
        puller = self._puller(options)
        config = self._requester.config
        return ConsumeHandle(self._api.core, self.name, puller, callback, config, error_cb)

    def _puller(self, options: ContinuousOptions, *, on_demand: bool = False) -> MessagePuller:
        self._requester.renew(self._api.deadline())
        pull = ContinuousPull.of(options, self._requester.config, on_demand=on_demand)
        self._requester.check(pull.request)
        renew = bool(options.get("auto_in_progress"))
        return MessagePuller(self._requester, pull, auto_in_progress=renew)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name!r} on {self.stream_name!r}>"
