"""
Requests: one subscription takes the answers to all of them.

The inbox is ``<prefix>.<unique>.*``; the last token says whose answer it is. A request is
registered in ``_waiting``. Whoever takes it out there settles it: the reader with an answer or because
the server did not permit it, the requester when its time is up, `close()` with the reason. So an
answer that arrives together with the end of the time is not lost, and nobody is answered twice.

A server may not permit the inbox. Then the requests that wait fail, and the next one subscribes again:
the permissions may be others by then. So a request is registered before it looks whether there is a
subscription, and the reader first notes that there is none and then fails those that are registered.
"""

from __future__ import annotations

import itertools
import threading
from typing import TYPE_CHECKING

from ..errors import (
    ConnectionLostError,
    Error,
    NoRespondersError,
    PermissionsError,
)
from ..headers import HeadersLike, parse_status
from ..net.clock import FOREVER, Deadline
from ..protocol.parser import Delivery
from ..protocol.session import SubscriptionState
from .receiver import MessageReceiver
from .result_slot import ResultSlot, fresh

if TYPE_CHECKING:
    from .core import ConnectionCore

__all__ = ["RequestMux"]


class RequestMux:
    """
    The requests of a connection.

    Args:
        core: the connection that they go through.

    Any thread may call `request()`.
    """

    is_reply_inbox = True

    def __init__(self, core: ConnectionCore) -> None:
        self._core = core
        self._inbox = core.new_inbox()
        self._reply_prefix = self._inbox.encode() + b"."
        self._tokens = itertools.count(1)
        # With the subject of each, in the order in which they were made.
        self._waiting: dict[bytes, tuple[ResultSlot[Delivery], bytes]] = {}
        # Those among them that a link which breaks ends; without a deadline nothing else would.
        self._endless: set[bytes] = set()
        # Guards the subscription; never held while waiting.
        self._lock = threading.Lock()
        self._subscribed = False
        self._interest: SubscriptionState[MessageReceiver] | None = None
        self._reason: BaseException | None = None

    def request(
        self,
        subject: bytes,
        payload: bytes,
        deadline: Deadline,
        headers: HeadersLike | None = None,
        *,
        ends_with_link: bool = False,
    ) -> Delivery:
        """
        Publish a message and wait for the first answer.

        Args:
            subject: where to.
            payload: the message.
            deadline: by when the answer has to be there.
            headers: names and values; ``None``: none.
            ends_with_link: do not wait for an answer any more when the link breaks.

        Raises:
            NoRespondersError: nobody listens on the subject.
            TimeoutError: no answer came in time.
            PermissionsError: the server does not permit the subject, or the inbox for answers.
            ConnectionLostError: the link broke, and there is no deadline to wait for, or
                ``ends_with_link`` or the option ``fail_requests_on_disconnect`` is set.
            ConnectionClosedError: the connection is closed, or was while waiting.
            InvalidArgumentError, InvalidHeaderError, MaxPayloadError: it can not be sent.

        """
        token = b"%x" % next(self._tokens)
        handoff: ResultSlot[Delivery] = ResultSlot()
        self._waiting[token] = handoff, subject
        if ends_with_link or deadline.left() is None:
            self._endless.add(token)
        try:
            if not self._subscribed:
                self._subscribe()
            if self._reason is not None:
                # Registered too late for close() to see it.
                raise fresh(self._reason)
            command, size = self._core.composer.command(
                subject, payload, self._reply_prefix + token, headers
            )
            self._core.writer.send(command, 1, size, deadline)
            if not handoff.arrived(deadline):
                if self._waiting.pop(token, None) is not None:
                    raise self._core.timed_out(f"no answer on {subject.decode()!r} in time")
                # Somebody took it out at the last moment, and is about to settle it.
                handoff.arrived(FOREVER)
        finally:
            self._waiting.pop(token, None)
            self._endless.discard(token)
        delivery = handoff.result()
        if delivery[2] and not delivery[3]:
            status = parse_status(delivery[2])
            if status is not None and status.code == 503:
                raise NoRespondersError(subject.decode())
        return delivery

    def deliver(self, deliveries: list[Delivery]) -> None:
        """Hand the answers to their waiters; called by the reader."""
        size = len(self._reply_prefix)
        for delivery in deliveries:
            waiting = self._waiting.pop(delivery[0][size:], None)
            if waiting is not None:
                waiting[0].set(delivery)

    def on_connection_change(self, *, connected: bool) -> None:
        """
        Fail those who wait without a deadline: the answer may have been lost with the link.

        With the option ``fail_requests_on_disconnect`` all fail.
        """
        if connected:
            return
        all_of_them = self._core.options.fail_requests_on_disconnect
        for token in list(self._waiting if all_of_them else self._endless):
            self._fail(token, ConnectionLostError("the link broke before the answer came"))

    def on_permission_error(self, subject: bytes, error: PermissionsError) -> bool:
        """Fail the last request to the subject; all of them where it is their inbox."""
        if error.operation == "subscribe":
            self._inbox_denied(error)
            return True
        if error.operation == "reply":
            return self._fail(subject[len(self._reply_prefix) :], error)
        # The last one: where others wait that the server took, they are from before it was told to
        # permit it no more.
        for token in reversed(self._waiting.copy()):
            waiting = self._waiting.get(token)
            if waiting is not None and waiting[1] == subject and self._fail(token, error):
                return True
        return False

    def _inbox_denied(self, error: PermissionsError) -> None:
        with self._lock:
            interest, self._interest = self._interest, None
            self._subscribed = False
        if interest is not None:
            self._core.remove_subscription_deferred(interest)
        for token in self._waiting.copy():
            self._fail(token, error)

    def _fail(self, token: bytes, error: Error) -> bool:
        """Fail a request; say whether it still waited."""
        waiting = self._waiting.pop(token, None)
        if waiting is not None:
            waiting[0].fail(error)
        return waiting is not None

    def on_closed(self, reason: BaseException) -> None:
        """Fail every request; the connection is closed."""
        self._reason = reason
        while self._waiting:
            try:
                _, waiting = self._waiting.popitem()
            except KeyError:  # the last one was just settled
                break
            waiting[0].fail(reason)

    def forked(self, reason: BaseException) -> None:
        """Fail every request in a forked child, where a thread that is not there may hold the lock."""
        self._lock = threading.Lock()
        self.on_closed(reason)

    def wait_drained(self, deadline: Deadline) -> bool:
        """Say at once that no callback is at work."""
        del deadline
        return True

    def _subscribe(self) -> None:
        with self._lock:
            if not self._subscribed:
                self._interest = self._core.add_subscription(f"{self._inbox}.*", "", self)
                self._subscribed = True
