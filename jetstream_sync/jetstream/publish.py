"""
Publish to a stream, and learn that it has the message.

`Publisher.publish` waits for each ack. `Publisher.publish_async` does not: up to a window of messages may
be on their way, each with a future. Acks come in on one inbox and are settled by a thread of their
own, because settling a future runs the user's callbacks.

Rules:

1. A message on its way is an entry in ``_pending``; whoever takes it out settles its future. So each
   future is settled once, by an ack, a refusal, its time, a lost link, or the end of the connection.
2. ``_room`` guards nothing but waiting: publishers wait on it for room in the window, and
   `publish_async_completed` for an empty one.
"""

from __future__ import annotations

import itertools
import threading
from concurrent.futures import Future
from datetime import timedelta
from typing import Final

from ..api.publish import PubAck
from ..client.core import Core
from ..client.mailbox import Mailbox
from ..client.threads import spawn
from ..codec import loads
from ..errors import (
    ConnectionLostError,
    Error,
    NoRespondersError,
    NoStreamResponseError,
    TimeoutError,
    TooManyStalledMsgsError,
)
from ..headers import HeadersLike, parse_status
from ..net.clock import Deadline, monotonic, seconds
from ..protocol.parser import Delivery
from .acks import PubAckFuture

__all__ = ["DEFAULT_WINDOW", "Publisher"]

#: Messages that `publish_async` lets be on their way.
DEFAULT_WINDOW: Final = 4000
#: ADR-22: a stream that does not answer is asked again so often, after so many seconds.
_RETRIES: Final = 2
_RETRY_WAIT: Final = 0.25
#: Seconds between two looks for acks that are overdue.
_SWEEP: Final = 0.5

#: Put among the acks when the link broke.
_LINK_DOWN: Final[Delivery] = (b"", b"", b"down", b"")


class Publisher:
    """
    The publishing side of a JetStream context.

    Args:
        core: the connection.
        timeout: seconds to wait for an ack where a call names none; ``None``: for ever.
        window: messages that may wait for their acks at a time.

    Any thread may call its methods.
    """

    def __init__(
        self, core: Core, timeout: float | timedelta | None, window: int = DEFAULT_WINDOW
    ) -> None:
        self._core = core
        self._timeout = timeout
        self._window = window
        self._tokens = itertools.count(1)
        self._pending: dict[bytes, PubAckFuture] = {}
        self._acks: Mailbox[Delivery] = Mailbox()
        # Entries to be sent again, with the time for that; used by the thread alone.
        self._again: list[tuple[float, bytes, PubAckFuture]] = []
        self._start = threading.Lock()
        self._reply_prefix = b""  # set once the inbox is subscribed to, under _start
        self._room = threading.Condition()
        self._waiting = 0  # how many wait on _room, under it

    # --- waiting for each ack -------------------------------------------------------------------

    def publish(
        self,
        subject: str,
        payload: bytes,
        headers: HeadersLike | None,
        timeout: float | timedelta | None,
    ) -> PubAck:
        """Publish and wait for the ack; see `JetStream.publish`."""
        deadline = Deadline(self._timeout if timeout is None else timeout)
        for retries_left in range(_RETRIES, -1, -1):
            try:
                answer = self._core.request(subject, payload, deadline, headers)
            except NoRespondersError:
                # A stream that has no leader for a moment looks like no stream.
                if retries_left and not deadline.expired():
                    left = deadline.left()
                    self._core.wait_closed(_RETRY_WAIT if left is None else min(left, _RETRY_WAIT))
                    continue
                break
            return PubAck.from_json(loads(answer[3]))
        raise NoStreamResponseError(subject)

    # --- not waiting ----------------------------------------------------------------------------

    def publish_async(
        self,
        subject: str,
        payload: bytes,
        headers: HeadersLike | None,
        timeout: float | timedelta | None,
    ) -> Future[PubAck]:
        """Publish and return a future of the ack; see `JetStream.publish_async`."""
        if not self._reply_prefix:
            self._subscribe()
        core = self._core
        token = b"%x" % next(self._tokens)
        command, size = core.command(
            core.encoded(subject), payload, self._reply_prefix + token, headers
        )
        limit = self._timeout if timeout is None else timeout
        if len(self._pending) >= self._window:
            self._wait_for_room(Deadline(limit))
        due = None if limit is None else monotonic() + seconds(limit)
        future = PubAckFuture(subject, command, size, due, core.writer)
        self._pending[token] = future
        try:
            core.writer.publish_lazily(command, size)
        except BaseException:
            self._pending.pop(token, None)
            raise
        return future

    @property
    def pending(self) -> int:
        """Messages that wait for their acks."""
        return len(self._pending)

    def completed(self, deadline: Deadline) -> None:
        """
        Wait until no message waits for its ack.

        Raises:
            TimeoutError: some still do.

        """
        self._core.writer.send_buffered()
        with self._room:
            self._waiting += 1
            try:
                if not self._room.wait_for(lambda: not self._pending, deadline.left()):
                    raise TimeoutError(f"{len(self._pending)} messages still wait for their acks")
            finally:
                self._waiting -= 1

    def _wait_for_room(self, deadline: Deadline) -> None:
        self._core.writer.send_buffered()
        with self._room:
            self._waiting += 1
            try:
                if not self._room.wait_for(
                    lambda: len(self._pending) < self._window, deadline.left()
                ):
                    raise TooManyStalledMsgsError(
                        f"{len(self._pending)} messages wait for their acks, "
                        f"and the window is {self._window}"
                    )
            finally:
                self._waiting -= 1

    def _subscribe(self) -> None:
        with self._start:
            if self._reply_prefix:
                return
            inbox = self._core.new_inbox()
            self._core.add_interest(f"{inbox}.*", "", self)
            spawn(f"acks-{self._core.name}", self._settle_all)
            self._reply_prefix = inbox.encode() + b"."

    # --- the reader's side; see `Sink` ----------------------------------------------------------

    def deliver(self, deliveries: list[Delivery]) -> None:
        """Take acks."""
        self._acks.put(deliveries, len(deliveries))

    def link_changed(self, *, connected: bool) -> None:
        """Put the news that the link broke among the acks."""
        if not connected:
            self._acks.put((_LINK_DOWN,), 1)

    def ended(self, reason: BaseException) -> None:
        """Wake the thread, which fails what is left."""
        self._acks.close(reason)

    def finished(self, deadline: Deadline) -> bool:
        """Wait until the messages that were published have their acks."""
        del deadline
        return True

    # --- the thread that settles ----------------------------------------------------------------

    def _settle_all(self) -> None:
        """Settle futures until the connection ends."""
        acks = self._acks
        sweep_at = monotonic() + _SWEEP
        while True:
            try:
                self._settle(acks.get(Deadline(_SWEEP if self._pending else None)))
                # Everything that came with it, too, before anybody is woken.
                for _ in range(len(acks)):
                    self._settle(acks.items.popleft())
            except TimeoutError:
                pass
            except Error as error:
                self._fail_all(error)
                return
            if self._again or monotonic() >= sweep_at:
                self._send_again()
                self._sweep()
                sweep_at = monotonic() + _SWEEP
            self._make_room()

    def _make_room(self) -> None:
        """Wake those who wait for acks to have come."""
        if self._waiting:
            with self._room:
                self._room.notify_all()

    def _settle(self, delivery: Delivery) -> None:
        if delivery is _LINK_DOWN:
            self._fail_all(
                ConnectionLostError("the link broke before the ack came; the message may be stored")
            )
            return
        subject, _, header, payload = delivery
        token = subject[len(self._reply_prefix) :]
        future = self._pending.pop(token, None)
        if future is None:
            return  # it was late
        if header and not payload:
            status = parse_status(header)
            if status is not None and status.code == 503:
                self._no_responders(token, future)
                return
        future.acknowledged(payload)

    def _no_responders(self, token: bytes, future: PubAckFuture) -> None:
        """Have a message sent again, as ADR-22 says, or give it up."""
        if not future.retries:
            future.failed(NoStreamResponseError(future.subject))
            return
        future.retries -= 1
        self._pending[token] = future
        self._again.append((monotonic() + _RETRY_WAIT, token, future))

    def _send_again(self) -> None:
        now = monotonic()
        due = [each for each in self._again if each[0] <= now]
        self._again = [each for each in self._again if each[0] > now]
        for _, token, future in due:
            if token not in self._pending:
                continue
            try:
                self._core.writer.publish(future.command, future.size)
            except Error as error:
                self._pending.pop(token, None)
                future.failed(error)

    def _sweep(self) -> None:
        """Give up messages whose time is up."""
        now = monotonic()
        for token, future in list(self._pending.items()):
            if (
                future.due is not None
                and future.due <= now
                and self._pending.pop(token, None) is not None
            ):
                future.failed(TimeoutError(f"no ack for {future.subject!r} in time"))

    def _fail_all(self, error: Error) -> None:
        """Give up every message that waits now."""
        for token in list(self._pending):
            future = self._pending.pop(token, None)
            if future is not None:
                future.failed(error)
        self._make_room()
