"""
The read loop of ``jsm consumer next`` and ``sub``: receive, show and acknowledge messages.

Every message is shown before it is acknowledged, so a message that fails to be written is redelivered.
Messages that were received but not shown, after Ctrl-C or a broken pipe, get a nak, so that the server
redelivers them without waiting for the ack wait.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Protocol

from typing_extensions import Self

from ... import (
    AckPolicy,
    Connection,
    ConsumerConfig,
    ContinuousOptions,
    DeliverPolicy,
    JetStream,
    JetStreamMsg,
    MessageIterator,
    Msg,
    PullConsumer,
    PushSubscription,
    Subscription,
)
from ...errors import (
    BadSubscriptionError,
    ConsumerNotFoundError,
    Error,
    IteratorClosedError,
    TimeoutError,
)
from ...net.clock import Deadline
from ..interruptible import wait_interruptibly
from ..output import say
from ..settings import Settings
from ..status import CommandError, ExitStatus
from ..terminology import find_stream
from .view import ConsumerView

__all__ = [
    "CoreSource",
    "NowSource",
    "PullSource",
    "PushSource",
    "Reading",
    "Settle",
    "Start",
    "StreamSource",
    "SubSource",
]

#: Timeout for messages in flight when reading ends, in seconds.
_DRAIN_TIMEOUT_S = 1.0


class Source(Protocol):
    """A source of messages."""

    def next(self, timeout: float | None) -> JetStreamMsg | None:
        """Return the next message; ``None`` at the end. Raise `TimeoutError` after ``timeout`` seconds."""

    def end(self) -> None:
        """Request no more messages; received ones are available with a ``timeout`` of 0."""


class PullSource:
    """A continuous pull with prefetching; see `Source`."""

    def __init__(self, messages: MessageIterator) -> None:
        self._messages = messages

    def next(self, timeout: float | None) -> JetStreamMsg | None:
        """Return the next message."""
        try:
            return self._messages.next(timeout)
        except IteratorClosedError:
            return None

    def end(self) -> None:
        """Request no more messages."""
        if not self._messages.closed:
            self._messages.drain(_DRAIN_TIMEOUT_S)


class NowSource:
    """The messages available now, without waiting; see `Source`."""

    def __init__(self, consumer: PullConsumer, count: int, group: str | None) -> None:
        self._consumer = consumer
        self._left = count
        self._group = group
        self._got: list[JetStreamMsg] = []

    def next(self, timeout: float | None) -> JetStreamMsg | None:
        """Return the next message."""
        del timeout
        if not self._got and self._left > 0:
            most = self._consumer.cached_info.config.max_batch or self._left
            batch = min(self._left, most)
            if self._group is None:
                self._got = self._consumer.fetch_no_wait(batch)
            else:
                self._got = self._consumer.fetch_no_wait(batch, group=self._group)
            self._left -= len(self._got) or self._left
        return self._got.pop(0) if self._got else None

    def end(self) -> None:
        """Request no more messages."""
        self._left = 0


class PushSource:
    """The messages of a push consumer; see `Source`."""

    def __init__(self, subscription: PushSubscription) -> None:
        self._subscription = subscription

    def next(self, timeout: float | None) -> JetStreamMsg | None:
        """Return the next message."""
        try:
            return self._subscription.next_msg(timeout)
        except BadSubscriptionError:
            return None

    def end(self) -> None:
        """Request no more messages."""
        if self._subscription.is_valid:
            self._subscription.drain(_DRAIN_TIMEOUT_S)


@dataclass(frozen=True, kw_only=True)
class Settle:
    """The acknowledgement of a message after it was shown."""

    word: str = "ack"
    """``ack``, ``nak``, ``term`` or empty for none."""
    delay: timedelta | None = None
    """The redelivery delay of a nak; ``None``: no delay."""
    confirmed: bool = False
    """Whether to wait until the server confirms an ack."""
    wanted: bool = True
    """Whether the consumer's policy expects acknowledgements."""
    timeout: float = 5.0
    """The timeout for the confirmation, in seconds."""

    @property
    def acks(self) -> bool:
        """Whether messages are acknowledged."""
        return self.wanted and self.word == "ack"

    def __call__(self, msg: JetStreamMsg) -> str:
        """Acknowledge a message and return a line that reports it."""
        if not self.word:
            return ""
        if not self.wanted:
            return "No acknowledgement needed"
        if self.word == "nak":
            msg.nak(self.delay)
            return "Not acknowledged (nak)"
        if self.word == "term":
            msg.term()
            return "Terminated message"
        if self.confirmed:
            msg.ack_sync(self.timeout)
            return "Acknowledged message, confirmed by the server"
        msg.ack()
        return "Acknowledged message"

    @classmethod
    def of(
        cls,
        policy: AckPolicy | str,
        timeout: float,
        *,
        no_ack: bool,
        nak: timedelta | None,
        term: bool,
        confirmed: bool,
    ) -> Settle:
        """
        Return the acknowledgement for the options and the consumer's policy.

        Raises:
            CommandError: options exclude each other.

        """
        said = {"--no-ack": no_ack, "--nak": nak is not None, "--term": term}
        chosen = [name for name, value in said.items() if value]
        if len(chosen) > 1 or (chosen and confirmed):
            names = " and ".join([*chosen, "--double-ack"][:2])
            raise CommandError(f"{names} exclude each other", ExitStatus.USAGE)
        word = {"--no-ack": "", "--nak": "nak", "--term": "term"}[chosen[0]] if chosen else "ack"
        return cls(
            word=word,
            delay=nak or None,
            confirmed=confirmed,
            wanted=policy not in (AckPolicy.NONE, AckPolicy.FLOW_CONTROL),
            timeout=timeout,
        )


@dataclass(kw_only=True)
class Reading:
    """The state of one run of a command that reads from a consumer."""

    settings: Settings
    source: Source
    view: ConsumerView
    settle: Settle
    flush: Callable[[], None]
    """Flushes the connection."""
    shown: int = 0
    #: The message that was received but not yet shown.
    _current: JetStreamMsg | None = field(default=None, init=False)

    def run(self, count: int | None, wait: float | None, *, each: bool) -> None:
        """
        Read until the source ends, the count is reached or the timeout has passed.

        Args:
            count: the maximum number of messages; ``None``: no limit.
            wait: the timeout in seconds; ``None``: no limit.
            each: whether the timeout applies to each message instead of all together.

        """
        try:
            self._read(count, wait, each=each)
        except BaseException:
            # Ctrl-C, a broken pipe, or a lost connection. In the last case the server redelivers
            # # the messages without a nak.
            with suppress(Error):
                self._nak_unshown()
            raise
        self._nak_unshown()
        self.flush()

    def _read(self, count: int | None, wait: float | None, *, each: bool) -> None:
        deadline = Deadline(wait)
        while self.shown != count:
            if each:
                deadline = Deadline(wait)
            try:
                msg = wait_interruptibly(self.source.next, deadline)
            except TimeoutError:
                break
            if msg is None:
                return
            self._handle(msg)
        else:
            return
        # After the timeout, messages in flight are shown as well.
        self.source.end()
        while self.shown != count and (late := self._next_received()) is not None:
            self._handle(late)

    def _handle(self, msg: JetStreamMsg) -> None:
        self._current = msg
        self.view.show(msg, acked=self.settle.acks)
        self._current = None
        self.shown += 1
        line = self.settle(msg)
        if line and self.view.is_text:
            say(self.settings, f"\n{line}")

    def _next_received(self) -> JetStreamMsg | None:
        try:
            return self.source.next(0)
        except TimeoutError:
            return None

    def _nak_unshown(self) -> None:
        """Send a nak for each message that was received but not shown."""
        current = self._current
        if current is not None and self.settle.wanted:
            current.nak()
        self.source.end()
        returned = False
        while (msg := self._next_received()) is not None:
            if self.settle.wanted:
                msg.nak()
                returned = True
        if current is not None or returned:
            self.flush()


#: The maximum number of queued messages from several subscriptions.
_MAX_QUEUED = 1000
#: Inactivity after which the server deletes the consumer that counts pending messages, in seconds.
_PROBE_THRESHOLD_S = 5.0


class SubSource(Protocol):
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
        self.ends: bool = False
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
