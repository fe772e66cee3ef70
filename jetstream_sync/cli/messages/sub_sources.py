"""Message sources of ``jsm sub``: core NATS subscriptions, or a stream."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Protocol

from typing_extensions import Self

from ... import (
    Connection,
    ConsumerConfig,
    ContinuousOptions,
    DeliverPolicy,
    JetStream,
    Msg,
    Subscription,
)
from ...errors import BadSubscriptionError, ConsumerNotFoundError, Error, TimeoutError
from ..terminology import find_stream

__all__ = ["CoreSource", "Source", "Start", "StreamSource"]

#: The maximum number of queued messages from several subscriptions.
_MAX_QUEUED = 1000
#: Inactivity after which the server deletes the consumer that counts pending messages, in seconds.
_PROBE_THRESHOLD_S = 5.0
#: Timeout for messages in flight from a durable consumer at the end, in seconds.
_DRAIN_TIMEOUT_S = 1.0


class Source(Protocol):
    """A source of messages; the ``with`` block closes it."""

    ends: bool
    """Whether there are no messages to wait for."""

    def next(self, timeout: float | None) -> Msg:
        """
        Return the next message.

        Args:
            timeout: in seconds; ``None``: no limit.

        Raises:
            TimeoutError: no message arrived in time.

        """

    def __enter__(self) -> Self: ...

    def __exit__(self, *_: object) -> None: ...


class CoreSource:
    """
    Messages of core NATS.

    Args:
        nc: the connection.
        subjects: the subjects to subscribe to.
        queue: the queue group; empty: none.

    """

    ends = False

    def __init__(self, nc: Connection, subjects: Sequence[str], queue: str) -> None:
        self._arrived = threading.Condition()
        self._queued: deque[Msg] = deque()
        self._closed = False
        self._open = ExitStack()
        # A single subscription is read directly, without a queue.
        self._only = None
        self._several: list[Subscription] = []
        if len(subjects) == 1:
            self._only = nc.subscribe(subjects[0], queue)
        else:
            for subject in subjects:
                one = self._open.enter_context(nc.subscribe(subject, queue, self._enqueue))
                self._several.append(one)
        # Messages published after the announcement must be seen.
        nc.flush()

    def _enqueue(self, msg: Msg) -> None:
        with self._arrived:
            self._arrived.wait_for(lambda: self._closed or len(self._queued) < _MAX_QUEUED)
            self._queued.append(msg)
            self._arrived.notify_all()

    def next(self, timeout: float | None) -> Msg:
        """Return the next message of any of the subjects."""
        if self._only is not None:
            return self._only.next_msg(timeout)
        with self._arrived:
            if not self._arrived.wait_for(lambda: bool(self._queued), timeout):
                if not any(each.is_valid for each in self._several):
                    raise BadSubscriptionError("all subscriptions are closed")
                raise TimeoutError("no message in time")
            self._arrived.notify_all()
            return self._queued.popleft()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """End the subscriptions."""
        with self._arrived:
            self._closed = True
            self._arrived.notify_all()
        if self._only is not None and self._only.is_valid:
            self._only.unsubscribe()
        self._open.close()


@dataclass(frozen=True, kw_only=True)
class Start:
    """The start position in a stream, and the messages to read."""

    policy: DeliverPolicy = DeliverPolicy.ALL
    sequence: int | None = None
    since: datetime | None = None
    filters: tuple[str, ...] = ()
    headers_only: bool = False

    def fields(self) -> dict[str, Any]:
        """Return the fields of a consumer config."""
        fields: dict[str, Any] = {"deliver_policy": self.policy}
        if self.sequence is not None:
            fields["opt_start_seq"] = self.sequence
        if self.since is not None:
            fields["opt_start_time"] = self.since
        filters = self.filters
        if self.policy is DeliverPolicy.LAST_PER_SUBJECT and not filters:
            filters = (">",)
        if filters:
            fields["filter_subjects"] = list(filters)
        if self.headers_only:
            fields["headers_only"] = True
        return fields


class StreamSource:
    """
    Messages of a stream, in order and without gaps, or those of a durable consumer.

    Args:
        js: the JetStream context.
        stream: the name of the stream.
        start: the start position.
        durable: the durable consumer to read from, created if missing; ``None``: an ordered
            consumer.
        to_end: whether to set ``ends`` when there are no messages to read.
        count: the number of messages to read; ``None``: no limit.

    """

    def __init__(
        self,
        js: JetStream,
        stream: str,
        start: Start,
        *,
        durable: str | None,
        to_end: bool,
        count: int | None,
    ) -> None:
        found = find_stream(js, stream)
        fields = start.fields()
        self.ends = False
        self._durable = durable is not None
        limit: ContinuousOptions = {} if count is None else {"stop_after": count}
        if durable is None:
            if to_end:
                self.ends = not _pending(js, found.name, fields)
            self._messages: Any = found.ordered_consumer(**fields).messages(**limit)
            return
        try:
            consumer = found.get_consumer(durable)
        except ConsumerNotFoundError:
            consumer = found.create_consumer(
                ConsumerConfig(durable_name=durable, ack_policy="explicit", **fields)
            )
        info = consumer.cached_info
        self.ends = to_end and not info.num_pending and not info.num_ack_pending
        self._messages = consumer.messages(**limit)

    def next(self, timeout: float | None) -> Msg:
        """Return the next message of the stream."""
        msg: Msg = self._messages.next(timeout)
        return msg

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Stop reading; send a nak for each message that was not shown."""
        if self._durable:
            with suppress(Error):
                self._messages.drain(_DRAIN_TIMEOUT_S)
                while True:
                    self._messages.next(0).nak()
        self._messages.stop()


def _pending(js: JetStream, stream: str, fields: dict[str, Any]) -> int:
    """Return the number of pending messages from a start position."""
    config = ConsumerConfig(ack_policy="none", inactive_threshold=_PROBE_THRESHOLD_S, **fields)
    probe = js.create_consumer(stream, config)
    js.delete_consumer(stream, probe.name)
    return probe.cached_info.num_pending
