"""Where ``jsm sub`` has its messages from: subjects of core NATS, or a stream."""

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

#: Messages that wait between the threads of several subscriptions and the one that shows them.
_WAITING = 1000
#: Seconds after which the server drops the consumer that only says how much there is to read.
_PROBE = 5.0
#: Seconds to wait at the end for what is on its way from a durable consumer.
_GOODBYE = 1.0


class Source(Protocol):
    """Gives one message after the other; ends with its ``with`` block."""

    ends: bool
    """Whether there is nothing to wait for."""

    def next(self, timeout: float | None) -> Msg:
        """
        Return the next message.

        Args:
            timeout: in seconds; ``None``: wait for ever.

        Raises:
            TimeoutError: none came in time.

        """

    def __enter__(self) -> Self: ...

    def __exit__(self, *_: object) -> None: ...


class CoreSource:
    """
    Messages of core NATS.

    Args:
        nc: the connection.
        subjects: what to listen to.
        queue: the queue group; empty: none.

    """

    ends = False

    def __init__(self, nc: Connection, subjects: Sequence[str], queue: str) -> None:
        self._arrived = threading.Condition()
        self._waiting: deque[Msg] = deque()
        self._closed = False
        self._open = ExitStack()
        # One that reads alone needs nobody in between, and keeps the order of the server.
        self._only = None
        self._several: list[Subscription] = []
        if len(subjects) == 1:
            self._only = nc.subscribe(subjects[0], queue)
        else:
            for subject in subjects:
                one = self._open.enter_context(nc.subscribe(subject, queue, self._take))
                self._several.append(one)
        # So that what is published after the line that says so is seen.
        nc.flush()

    def _take(self, msg: Msg) -> None:
        with self._arrived:
            self._arrived.wait_for(lambda: self._closed or len(self._waiting) < _WAITING)
            self._waiting.append(msg)
            self._arrived.notify_all()

    def next(self, timeout: float | None) -> Msg:
        """Return the next message of any of the subjects."""
        if self._only is not None:
            return self._only.next_msg(timeout)
        with self._arrived:
            if not self._arrived.wait_for(lambda: bool(self._waiting), timeout):
                if not any(each.is_valid for each in self._several):
                    raise BadSubscriptionError("none of the subscriptions is there any more")
                raise TimeoutError("no message in time")
            self._arrived.notify_all()
            return self._waiting.popleft()

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
    """Where in a stream to begin, and what to read of it."""

    policy: DeliverPolicy = DeliverPolicy.ALL
    sequence: int | None = None
    since: datetime | None = None
    filters: tuple[str, ...] = ()
    headers_only: bool = False

    def fields(self) -> dict[str, Any]:
        """Return it as fields of a consumer's config."""
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
        js: where the stream is.
        stream: its name.
        start: where to begin.
        durable: the consumer to read from, made where it is not there; ``None``: none is left
            behind.
        to_end: whether it matters if there is something to read at all.
        count: how many messages are wanted; ``None``: all.

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
        """Stop reading; what came and was not shown is given back at once."""
        if self._durable:
            with suppress(Error):
                self._messages.drain(_GOODBYE)
                while True:
                    self._messages.next(0).nak()
        self._messages.stop()


def _pending(js: JetStream, stream: str, fields: dict[str, Any]) -> int:
    """Return how many messages there are to read from a start on."""
    config = ConsumerConfig(ack_policy="none", inactive_threshold=_PROBE, **fields)
    probe = js.create_consumer(stream, config)
    js.delete_consumer(stream, probe.name)
    return probe.cached_info.num_pending
