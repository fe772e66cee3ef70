"""Endpoints of a service: their subscriptions, worker threads and statistics."""

# Rules:
#
# 1. The worker threads of an endpoint read from its mailbox; each request goes to one thread. A thread ends
#    when the subscription has ended and the mailbox is empty.
# 2. ``_lock`` guards the statistics. It is held for a few instructions, and never while a handler runs.
# 3. Requests above the pending limit are refused by the control thread of the service, because the reader
#    must not wait for the server.

# ruff: noqa: SLF001 - a service, its endpoints and requests are one unit

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any, Final

from .. import errors
from ..client.core import ConnectionCore
from ..client.mailbox import SubscriptionState
from ..client.message import Msg
from ..client.subscription import Subscription, SubscriptionReceiver
from ..client.threads import Signal
from ..client.writer import DEFERRED, NOW
from ..codec import dumps, encodable, text_of
from ..headers import Headers, HeadersLike
from ..locks import new_lock
from ..net.clock import FOREVER, Deadline, monotonic
from ..options import DEFAULT_PENDING_BYTES_LIMIT, check_int, check_returned
from ..protocol.parser import RawMessage
from .wire import ERROR_CODE_HEADER, ERROR_HEADER, EndpointInfo, EndpointStats

_INTERNAL_ERROR: Final = errors.ServiceError(500, "the request could not be handled")
#: The largest code of an error, and the length of its text if the original one cannot be sent.
_MAX_CODE: Final = 599
_MAX_TEXT: Final = 200
#: Maximum length of the error in the statistics, in characters.
_MAX_LAST_ERROR: Final = 1000
_OVERLOADED: Final = errors.ServiceError(503, "overloaded")


class ServiceRequest(Msg):
    """A request to an endpoint; any thread may respond to it."""

    __slots__ = ("_endpoint", "_error")

    _endpoint: Endpoint
    _error: str | None

    def respond(self, payload: bytes = b"", headers: HeadersLike | None = None) -> None:
        """
        Send a reply.

        A request without a reply subject gets none, and counts as an error in the statistics.

        Args:
            payload: the payload of the reply.
            headers: its headers.

        Raises:
            InvalidHeaderError, MaxPayloadError: the reply is invalid; nothing was sent.
            OutboundBufferLimitError: disconnected, and the buffer is full.
            ConnectionClosedError: the connection is closed.

        """
        if not self._reply:
            self._error = "the request has no reply subject"
            return
        core = self._core
        command, size = core.encoder.encode_command(self._reply, payload, b"", headers)
        core.writer.append(command, size, DEFERRED if self._endpoint.is_busy() else NOW)

    def respond_json(self, value: Any, headers: HeadersLike | None = None) -> None:
        """
        Send a reply in JSON.

        Args:
            value: a value that JSON can represent.
            headers: the headers of the reply.

        Raises:
            InvalidArgumentError: JSON cannot represent the value.
            Error: as `respond()`.

        """
        self.respond(dumps(value), headers)

    def respond_error(
        self, code: int, description: str, data: bytes = b"", headers: HeadersLike | None = None
    ) -> None:
        """
        Send an error reply, and count it as an error in the statistics.

        Args:
            code: the number of the error, as in HTTP, from 1 to 599.
            description: the text of the error, one line, not empty.
            data: the payload of the reply.
            headers: further headers.

        Raises:
            InvalidOptionError: the code is out of range, or the description is empty.
            Error: as `respond()`.

        """
        code = check_int("code", code, 1, _MAX_CODE)
        if not description:
            # Clients of other languages take an empty text for a success.
            raise errors.InvalidOptionError("description", description, "must not be empty")
        merged = Headers(headers or ())
        merged.update({ERROR_HEADER: description, ERROR_CODE_HEADER: str(code)})
        self.respond(data, merged)
        self._error = f"{code}:{merged[ERROR_HEADER]}"


#: Lets another thread call a function with each message.
PostFunction = Callable[[Callable[[RawMessage], None], list[RawMessage]], None]
#: Handles a request, on a thread of the endpoint.
RequestHandler = Callable[[ServiceRequest], object]


class _EndpointSubscription(Subscription):
    """The subscription of an endpoint; ``done`` is set when its worker threads have ended."""

    def __init__(self, endpoint: Endpoint, core: ConnectionCore, queue: str, limit: int) -> None:
        self._endpoint = endpoint
        self.threads: list[threading.Thread] = []
        subject = endpoint.info.subject
        super().__init__(core, subject, queue, None, limit, DEFAULT_PENDING_BYTES_LIMIT)
        self.done = self._done = Signal()

    def _new_receiver(self) -> SubscriptionReceiver:
        # The service keeps the connection open, like a subscription with a callback.
        return SubscriptionReceiver(self, self._core.internal, weak=False)

    def take(self) -> RawMessage:
        """Return the next request, and wait for it; raise if the subscription has ended."""
        if not self._mailbox.items:
            self._core.writer.send_buffered()
        return self._mailbox.get(FOREVER)

    def check_permitted(self) -> None:
        """Raise if the server has refused the subscription."""
        if isinstance(self._mailbox.reason, errors.PermissionsError):
            self._mailbox.raise_reason()

    def _on_dropped(self, dropped: list[RawMessage]) -> None:
        super()._on_dropped(dropped)
        # The service refuses them: the reader must not wait.
        self._endpoint._post(self._endpoint._refuse_overload, dropped)

    def _on_closed(self, reason: BaseException) -> None:
        super()._on_closed(reason)
        if isinstance(reason, errors.ConnectionClosedError):
            self._mailbox.items.clear()  # no reply can be sent

    def _wait_drained(self, deadline: Deadline) -> bool:
        # A handler that stops its own service must not wait for itself.
        return threading.current_thread() in self.threads or super()._wait_drained(deadline)


class Endpoint:
    """An endpoint: a subscription, and the threads that call its handler."""

    def __init__(
        self,
        core: ConnectionCore,
        info: EndpointInfo,
        handler: RequestHandler,
        workers: int,
        pending_limit: int,
        post: PostFunction,
        ended: Callable[[BaseException], None],
    ) -> None:
        self.info = info
        self._post = post
        self._ended = ended
        self._core = core
        self._handler = handler
        self._lock = new_lock()
        self._running = workers
        self.reset()
        self.subscription: _EndpointSubscription = _EndpointSubscription(
            self, core, info.queue_group or "", pending_limit
        )
        self.is_busy: Callable[[], int] = self.subscription._mailbox.items.__len__
        self.state: SubscriptionState = self.subscription._state
        end = self.subscription._end_with
        try:
            for number in range(workers):
                name = f"service-{info.name}-{number}"
                self.subscription.threads.append(core.callbacks.spawn(name, self._run, end))
        except BaseException:
            self.abandon()
            raise

    def abandon(self) -> None:
        """End an endpoint that could not be started; the service goes on."""
        self._ended = lambda _: None
        self.subscription._end_with(
            errors.BadSubscriptionError("the endpoint could not be started")
        )

    # --- statistics -----------------------------------------------------------------------------

    def reset(self) -> None:
        """Set the statistics to zero."""
        with self._lock:
            self._requests = self._errors = 0
            self._seconds = 0.0
            self._last_error = ""

    def stats(self) -> EndpointStats:
        """Return the statistics."""
        with self._lock:
            count, total = self._requests, self._seconds
            return EndpointStats(
                name=self.info.name,
                subject=self.info.subject,
                queue_group=self.info.queue_group,
                num_requests=count,
                num_errors=self._errors,
                last_error=self._last_error,
                processing_time=timedelta(seconds=total),
                average_processing_time=timedelta(seconds=total / count if count else 0.0),
            )

    def _count(self, seconds: float, error: str | None) -> None:
        with self._lock:
            self._requests += 1
            self._seconds += seconds
            if error is not None:
                self._errors += 1
                self._last_error = encodable(error)[:_MAX_LAST_ERROR]

    # --- requests -------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while True:
                self._handle(self._request(self.subscription.take()))
        except (
            errors.BadSubscriptionError,
            errors.ConnectionClosedError,
            errors.PermissionsError,
        ) as error:
            self._leave(error)
        except BaseException as error:
            # Without this thread requests might wait for ever, so the endpoint ends.
            self.subscription._end_with(error)
            self._leave(error)
            raise

    def _leave(self, reason: BaseException) -> None:
        """End a worker thread; the last one reports the end of the endpoint."""
        with self._lock:
            self._running -= 1
            is_last = not self._running
        if is_last:
            self._core.writer.send_buffered()
            self.subscription.done.set()
            self._ended(reason)

    def _request(self, delivery: RawMessage) -> ServiceRequest:
        request = ServiceRequest(delivery, self._core)
        request._endpoint = self
        request._error = None
        return request

    def _handle(self, request: ServiceRequest) -> None:
        """Call the handler, reply to its error, and count the request."""
        error: str | None = None
        started = monotonic()
        try:
            returned = self._handler(request)
            if returned is not None:
                check_returned(returned, done=True)
        except errors.ServiceError as raised:
            self._refuse(request, raised)
        except BaseException as raised:  # noqa: BLE001 - reported
            # The requester gets a fixed text: the error may quote data of other requests.
            error = f"{type(raised).__name__}: {text_of(raised)}"
            self._core.events.callback_raised(f"the handler of endpoint {self.info.name!r}", raised)
            self._refuse(request, _INTERNAL_ERROR)
        self._count(monotonic() - started, error or request._error)

    def _refuse(self, request: ServiceRequest, error: errors.ServiceError) -> None:
        """Reply with an error; if that is not possible, with one that has only a text."""
        try:
            request.respond_error(error.code, error.description, error.data)
            return
        except errors.ConnectionClosedError as failure:
            self._core.events.error(failure)
            return
        except (errors.Error, TypeError, ValueError) as failure:
            # The user chose the code, the text and the payload.
            self._core.events.error(failure)
        data = " ".join(text_of(error.description).split())[:_MAX_TEXT].encode("ascii", "replace")
        text = data.decode() or _INTERNAL_ERROR.description
        try:
            request.respond_error(_INTERNAL_ERROR.code, text)
        except errors.Error as failure:
            self._core.events.error(failure)

    def _refuse_overload(self, delivery: RawMessage) -> None:
        request = self._request(delivery)
        self._refuse(request, _OVERLOADED)
        self._count(0.0, request._error)
