"""Requests: one subscription receives the replies to all of them."""

# The inbox is ``<prefix>.<unique>.*``; the last token identifies the request. A request is registered in
# ``_waiting``. The thread that removes it from there settles it: the reader with a reply or a permission
# error, the requesting thread when its deadline has passed, `close()` with the reason. So a reply that
# arrives together with the timeout is not lost, and no request is settled twice.
#
# A server may refuse the inbox. Then the pending requests fail, and the next request subscribes again,
# because the permissions may have changed. So a request is registered before it checks for the
# subscription, and the reader first clears the subscription and then fails the registered requests.

from __future__ import annotations

import itertools
import sys
import threading
import warnings

from .. import errors
from ..headers import HeadersLike, is_no_responders
from ..locks import new_lock
from ..net.clock import FOREVER, Deadline
from ..protocol.parser import HEADER, PAYLOAD, SUBJECT, RawMessage
from .direct_reads import DirectReads
from .encoder import MessageEncoder
from .events import closed_before
from .mailbox import MessageReceiver, ResultSlot, SubscriptionState, copy_exception
from .state import ConnectionState
from .subscription_table import SubscriptionTable
from .threads import caller
from .writer import NOW, Writer

#: The lines for which `warn_in_event_loop` has warned.
_warned: dict[str | tuple[str, type[Warning], int], int] = {}


def warn_in_event_loop() -> None:
    """Warn if the main thread runs an asyncio event loop, which a call that waits stops."""
    loops = sys.modules.get("asyncio.events")
    if loops is None or loops._get_running_loop() is None:  # noqa: SLF001 - documented
        return
    # In a notebook, a cell runs in the event loop, and nothing else has to run meanwhile. A loop in another
    # thread, such as that of fsspec, runs for callers that wait for it.
    if "ipykernel" in sys.modules or threading.current_thread() is not threading.main_thread():
        return
    warnings.warn_explicit(
        "a blocking call in an event loop stops all of its tasks; use asyncio.to_thread() or nats-py",
        RuntimeWarning,
        *caller(),
        registry=_warned,
    )


class RequestMux(MessageReceiver):
    """Multiplexes the requests of a connection over one reply inbox."""

    # Any thread may call `request()`.

    is_reply_inbox = True
    awaited = True

    def __init__(
        self,
        table: SubscriptionTable,
        encoder: MessageEncoder,
        writer: Writer,
        direct: DirectReads,
        state: ConnectionState,
        *,
        fail_on_disconnect: bool,
    ) -> None:
        self._table = table
        self._encode = encoder.encode_command
        self._append = writer.append
        self._direct = direct
        self._state = state
        self._fail_all_on_disconnect = fail_on_disconnect
        self._inbox = table.new_inbox()
        self._reply_prefix = self._inbox.encode() + b"."
        self._tokens = itertools.count(1)
        # Token -> result slot and subject, in the order of the requests.
        self._waiting: dict[bytes, tuple[ResultSlot[RawMessage], bytes]] = {}
        # The tokens of requests that fail when the connection is lost. Without a deadline, nothing
        # else would end them.
        self._fail_on_disconnect: set[bytes] = set()
        # Guards the subscription; never held while waiting.
        self._lock = new_lock()
        self._subscription: SubscriptionState | None = None
        self._reason: BaseException | None = None

    def request(
        self,
        subject: bytes,
        payload: bytes,
        deadline: Deadline,
        headers: HeadersLike | None = None,
        *,
        fail_on_disconnect: bool = False,
        repeat_after: float = 0.0,
    ) -> RawMessage:
        """
        Publish a request and return the first reply.

        With ``repeat_after`` seconds, the request is sent again each time that this time passes without a reply.

        Raises:
            NoRespondersError: the subject has no subscribers.
            RequestTimeoutError: no reply arrived before the deadline.
            PermissionsError: the server does not permit the request or the reply subject.
            ConnectionLostError: the connection was lost, and the request fails on that.
            ConnectionClosedError: the connection is closed.
            Error: otherwise as `MessageEncoder.encode_command` and `Writer.append`.

        """
        warn_in_event_loop()
        reconnects = self._state.reconnects
        token = b"%x" % next(self._tokens)
        slot: ResultSlot[RawMessage] = ResultSlot()
        self._waiting[token] = slot, subject
        if fail_on_disconnect or deadline.at is None:
            self._fail_on_disconnect.add(token)
        try:
            if self._subscription is None:
                self._subscribe()
            if self._reason is not None:
                # Registered after close() failed the pending requests.
                raise copy_exception(self._reason)
            command, size = self._encode(subject, payload, self._reply_prefix + token, headers)
            self._append(command, size, NOW, 1, True, deadline)
            subscription, direct = self._subscription, self._direct
            replies: list[RawMessage] = []
            while True:
                limit = deadline.sooner(repeat_after) if repeat_after else deadline
                if direct.paused and subscription is not None:
                    direct.read(
                        subscription, replies, slot.is_set, limit, self._reply_prefix + token
                    )
                if replies or slot.arrived(limit):
                    break
                if not repeat_after or deadline.expired():
                    if self._waiting.pop(token, None) is not None:
                        outage = self._state.with_outage("")
                        lost = self._state.reconnects != reconnects and not outage
                        hint = "; the connection was lost meanwhile" if lost else ""
                        raise errors.RequestTimeoutError(subject.decode(), outage, hint)
                    # Another thread has just removed the request and is about to settle it.
                    slot.arrived(FOREVER)
                    break
                self._append(command, size, NOW, 1, True, deadline)
        finally:
            self._waiting.pop(token, None)
            self._fail_on_disconnect.discard(token)
        delivery = replies[0] if replies else slot.result()
        if delivery[HEADER] and is_no_responders(delivery[HEADER], delivery[PAYLOAD]):
            raise errors.NoRespondersError(subject.decode())
        return delivery

    def caller_waits(self) -> bool:
        """Return whether a request is pending."""
        return bool(self._waiting)

    def deliver(self, deliveries: list[RawMessage]) -> None:
        """Pass the replies to the waiting threads; called by the reader."""
        size = len(self._reply_prefix)
        for delivery in deliveries:
            waiting = self._waiting.pop(delivery[SUBJECT][size:], None)
            if waiting is not None:
                waiting[0].set(delivery)

    def on_connection_change(self, *, connected: bool) -> None:
        """Fail the requests without a deadline, because the reply may be lost."""
        # With the option ``fail_requests_on_disconnect``, fail all requests.
        if connected:
            return
        fail_all = self._fail_all_on_disconnect
        for token in (self._waiting if fail_all else self._fail_on_disconnect).copy():
            self._fail(
                token, errors.ConnectionLostError("the connection was lost before the reply")
            )

    def on_permission_error(self, subject: bytes, error: errors.PermissionsError) -> bool:
        """Fail the last request to the subject, or all requests if the inbox was refused."""
        if error.operation == "subscribe":
            self._on_inbox_refused(error)
            return True
        if error.operation == "reply":
            return self._fail(subject[len(self._reply_prefix) :], error)
        # The last one: the server accepted earlier requests before its permissions changed.
        for token in reversed(self._waiting.copy()):
            waiting = self._waiting.get(token)
            if waiting is not None and waiting[1] == subject and self._fail(token, error):
                return True
        return False

    def _on_inbox_refused(self, error: errors.PermissionsError) -> None:
        with self._lock:
            subscription, self._subscription = self._subscription, None
        if subscription is not None:
            self._table.remove_deferred(subscription)
        for token in self._waiting.copy():
            self._fail(token, error)

    def _fail(self, token: bytes, error: BaseException) -> bool:
        """Fail a request; return whether it was still pending."""
        waiting = self._waiting.pop(token, None)
        if waiting is not None:
            waiting[0].fail(error)
        return waiting is not None

    def on_closed(self, reason: BaseException) -> None:
        """Fail every request; the connection is closed."""
        self._reason = reason
        failure = closed_before("the reply arrived; the request may have been processed", reason)
        for token in self._waiting.copy():
            self._fail(token, failure)

    def _subscribe(self) -> None:
        with self._lock:
            if self._subscription is None:
                self._subscription = self._table.add(f"{self._inbox}.*", "", self)
