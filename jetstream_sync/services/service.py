"""A service: its endpoints, and the control thread that answers discovery and statistics requests."""

# Rules:
#
# 1. ``_lock`` guards the list of endpoints and the state. It is not held while sending or waiting.
# 2. The first thread that stops the service does the work; ``_stopped`` is set at the end, and every other
#    caller waits for that.
# 3. An endpoint that ends by itself, because the connection was closed or the subject is not permitted,
#    stops the service with that reason. Its last worker thread does that.

# ruff: noqa: SLF001 - a service, its endpoints and receivers are one unit

from __future__ import annotations

import contextlib
import inspect
import os
import threading
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any, Final, TypeVar

from .. import errors
from ..client.core import ConnectionCore
from ..client.mailbox import Mailbox, MessageReceiver
from ..client.threads import Signal, in_callback, join
from ..client.writer import NOW
from ..codec import dumps, encode
from ..locks import new_lock
from ..net.clock import FOREVER, Deadline
from ..options import check_callback, check_int, check_returned
from ..protocol.parser import REPLY, SUBJECT, RawMessage
from ..subjects import check_publish_subject, check_queue, check_subject
from .endpoint import Endpoint, RequestHandler
from .wire import (
    ERROR_CODE_HEADER,
    ERROR_HEADER,
    EndpointInfo,
    EndpointStats,
    ServiceInfo,
    ServicePing,
    ServiceStats,
    check_metadata,
    check_service_name,
    check_text,
    check_version,
    verb_subject,
)

if TYPE_CHECKING:
    from typing_extensions import Self

#: Maximum number of control requests that wait for the control thread; further ones are dropped.
_MAX_CONTROL_REQUESTS: Final = 10_000
#: Seconds to wait until the server has processed new subscriptions.
_FLUSH_TIMEOUT_S: Final = 10.0
#: Default of the pending requests of an endpoint.
DEFAULT_PENDING_REQUESTS: Final = 65_536
_VERBS: Final = ("PING", "INFO", "STATS")
#: Random bytes of the id of an instance, which has two characters for each.
_ID_BYTES: Final = 11

#: Called with the statistics of an endpoint; returns further data for them, which JSON can represent.
StatsHandler = Callable[[EndpointStats], Any]
#: Called when the service has stopped, with the reason; ``None``: it was stopped by a call.
StopCallback = Callable[[BaseException | None], object]
H = TypeVar("H", bound=Callable[..., Any])


class EndpointGroup:
    """
    Endpoints with a common subject prefix; created by `Service.add_group`.

    A service is the group without a prefix. Any thread may add endpoints.
    """

    def __init__(self, service: Service, prefix: str, queue_group: str) -> None:
        self._service = service
        self._prefix = prefix
        self._queue_group = queue_group

    def add_group(self, name: str, queue_group: str | None = None) -> EndpointGroup:
        """
        Return a group within this one.

        Args:
            name: the tokens that precede the subjects of its endpoints; empty: none.
            queue_group: the queue group of its endpoints; ``None``: that of this group; empty: none, so
                that each instance of the service gets every request.

        Raises:
            BadSubjectError: the name or the queue group is invalid.

        """
        if name:
            name = check_subject(name)
            if ">" in name.split("."):
                raise errors.BadSubjectError(name, "a group must not contain '>'")
        prefix = ".".join(filter(None, (self._prefix, name)))
        return EndpointGroup(self._service, prefix, self._queue(queue_group))

    def _queue(self, queue_group: str | None) -> str:
        return self._queue_group if queue_group is None else check_queue(queue_group)

    def endpoint(
        self,
        name: str,
        subject: str | None = None,
        workers: int = 1,
        pending_msgs_limit: int = DEFAULT_PENDING_REQUESTS,
        queue_group: str | None = None,
        metadata: Mapping[str, str] | None = None,
    ) -> Callable[[H], H]:
        """
        Return a decorator that adds a function as an endpoint, with the arguments of `add_endpoint()`.

        The function handles requests, or it is typed: ``def total(order: Order) -> Total``.
        """

        def add(handler: H) -> H:
            self.add_endpoint(
                name, handler, subject, workers, pending_msgs_limit, queue_group, metadata
            )
            return handler

        return add

    def add_endpoint(
        self,
        name: str,
        handler: RequestHandler | Callable[..., Any],
        subject: str | None = None,
        workers: int = 1,
        pending_msgs_limit: int = DEFAULT_PENDING_REQUESTS,
        queue_group: str | None = None,
        metadata: Mapping[str, str] | None = None,
    ) -> None:
        """
        Add an endpoint; on return, the server sends it requests.

        An exception of the handler is counted, reported to ``error_cb`` and answered with code 500; a
        `ServiceError` is answered as it is.

        Args:
            name: letters, digits, ``-`` and ``_``.
            handler: called with each request; or a function whose only parameter is annotated with another type
                than `ServiceRequest`, or that has no parameter. Then the payload is converted from JSON to
                this type, as the arguments of tasks are, and the return value is sent as JSON; ``bytes`` are
                payloads as they are. A request that does not fit is answered with code 400.
            subject: the subject, below the prefix of the group; ``None``: the name.
            workers: the number of threads that call the handler. With one, requests are handled in the
                order of their arrival.
            pending_msgs_limit: maximum number of requests that wait for a thread; further requests are
                answered with code 503.
            queue_group: the queue group, whose members share the requests; ``None``: that of the group;
                empty: none.
            metadata: shown in the description of the service.

        Raises:
            InvalidNameError: the name is invalid.
            BadSubjectError: the subject or the queue group is invalid.
            InvalidOptionError: another argument is invalid, or the service has stopped.
            PermissionsError: the server does not permit the subscription; the service stops.
            ConnectionClosedError: the connection is closed.
            TimeoutError: the server did not confirm the subscription in time; the endpoint was removed.

        """
        name = check_service_name(name, "endpoint")
        full = ".".join(filter(None, (self._prefix, name if subject is None else subject)))
        check_callback("handler", handler)
        # Python 3.14 evaluates the annotations when they are read.
        annotated = getattr(handler, "__annotate__", None) or getattr(
            handler, "__annotations__", None
        )
        if annotated or not inspect.isroutine(handler):
            from .typed import typed_handler  # noqa: PLC0415 - it imports the types that it converts

            handler = typed_handler(handler) or handler
        check_int("workers", workers, 1)
        check_int("pending_msgs_limit", pending_msgs_limit, 1)
        info = EndpointInfo(
            name=name,
            subject=check_subject(full),
            queue_group=self._queue(queue_group) or None,
            metadata=check_metadata(metadata),
        )
        self._service._start_endpoint(info, handler, workers, pending_msgs_limit)


class Service(EndpointGroup):
    """
    A service on a connection, created by `Connection.add_service`.

    As a context manager, it is stopped at the end of the block. It keeps its connection open. Any thread
    may use it, handlers included.
    """

    def __init__(
        self,
        core: ConnectionCore,
        name: str,
        version: str,
        description: str,
        metadata: Mapping[str, str] | None,
        queue_group: str,
        stats_handler: StatsHandler | None,
        stop_cb: StopCallback | None,
        prefix: str,
    ) -> None:
        super().__init__(self, "", check_queue(queue_group))
        self._core = core
        self._ping = ServicePing(
            name=check_service_name(name),
            id=os.urandom(_ID_BYTES).hex(),
            version=check_version(version),
            metadata=check_metadata(metadata),
        )
        self._description = check_text("description", description)
        for option, callback in (("stats_handler", stats_handler), ("stop_cb", stop_cb)):
            if callback is not None:
                check_callback(option, callback)
        self._stats_handler = stats_handler
        self._stop_cb = stop_cb
        self._root = check_publish_subject(prefix)
        self._started: datetime = datetime.now(timezone.utc)
        self._lock = new_lock()
        self._endpoints: list[Endpoint] = []
        self._stopping = False
        self._stopped = Signal()
        self._error: BaseException | None = None
        # What the control thread has to do: a function and its argument.
        self._control: Mailbox[tuple[Callable[[RawMessage], None], RawMessage]] = Mailbox()
        self._receivers: list[_ControlReceiver] = []
        self._thread: threading.Thread | None = None
        try:
            for verb in _VERBS:
                for scope in ((), (name,), (name, self._ping.id)):
                    receiver = _ControlReceiver(self)
                    self._receivers.append(receiver)
                    core.table.add(verb_subject(self._root, verb, *scope), "", receiver)
            core.flush(Deadline(_FLUSH_TIMEOUT_S))
            self._thread = core.callbacks.spawn(
                f"service-{self._ping.name}", self._run_control, self._end_with
            )
        except BaseException:
            self._end_control()
            raise

    # --- state ----------------------------------------------------------------------------------

    @property
    def id(self) -> str:
        """The unique id of this instance."""
        return self._ping.id

    @property
    def is_stopped(self) -> bool:
        """Whether the service has stopped."""
        return self._stopped.is_set()

    @property
    def error(self) -> BaseException | None:
        """Why the service has stopped by itself; ``None``: it has not, or `stop()` was called."""
        return self._error

    def info(self) -> ServiceInfo:
        """Return the description of this instance, as `Connection.service_info` does."""
        endpoints = [endpoint.info for endpoint in self._current()]
        return ServiceInfo(**self._identity(), description=self._description, endpoints=endpoints)

    def stats(self) -> ServiceStats:
        """Return the statistics of this instance, as `Connection.service_stats` does."""
        endpoints = [self._with_data(endpoint.stats()) for endpoint in self._current()]
        return ServiceStats(**self._identity(), started=self._started, endpoints=endpoints)

    def _current(self) -> list[Endpoint]:
        """Return the endpoints; raise `ForkedConnectionError` in another process."""
        self._core.writer.check_not_forked()
        with self._lock:
            return list(self._endpoints)

    def _identity(self) -> dict[str, Any]:
        return {name: getattr(self._ping, name) for name in ("name", "id", "version", "metadata")}

    def _with_data(self, stats: EndpointStats) -> EndpointStats:
        """Add the result of the stats handler; without one, nats-py still expects the field."""
        data = None
        if self._stats_handler is not None:
            try:
                data = self._stats_handler(stats)
                dumps(data)
            except BaseException as error:  # noqa: BLE001 - reported
                self._core.events.callback_raised("stats_handler", error)
                data = None
        return replace(stats, extra={"data": data})

    def reset(self) -> None:
        """Set the statistics of all endpoints to zero, and `ServiceStats.started` to now."""
        for endpoint in self._current():
            endpoint.reset()
        self._started = datetime.now(timezone.utc)

    # --- endpoints; called by `EndpointGroup` -----------------------------------------------------

    def _start_endpoint(
        self, info: EndpointInfo, handler: RequestHandler, workers: int, pending_limit: int
    ) -> None:
        """Start an endpoint; see `EndpointGroup.add_endpoint`."""
        self._core.writer.check_not_forked()
        with self._lock:
            if self._stopping:
                raise errors.InvalidOptionError("name", info.name, "the service has stopped")
            endpoint = Endpoint(
                self._core, info, handler, workers, pending_limit, self._post, self._on_ended
            )
            self._endpoints.append(endpoint)
        try:
            self._core.flush(Deadline(_FLUSH_TIMEOUT_S))
            endpoint.subscription.check_permitted()
        except errors.PermissionsError:
            raise  # the endpoint ends, which stops the service
        except BaseException:
            with self._lock:
                if not self._stopping:  # otherwise it is being stopped with the others
                    self._endpoints.remove(endpoint)
                    endpoint.abandon()
            raise

    # --- stopping -------------------------------------------------------------------------------

    def stop(self, timeout: float | timedelta | None = None) -> None:
        """
        Stop the service.

        Its endpoints receive no more requests, and handlers process those that have arrived. Then the
        service stops answering discovery requests, and ``stop_cb`` is called. Called from a handler, this
        does not wait for handlers. A second call waits for the first.

        Args:
            timeout: how long to wait for the handlers and for the replies to discovery requests, in
                seconds; ``None``: the connection's ``drain_timeout``.

        Raises:
            DrainTimeoutError: the timeout has passed; the service has stopped, and requests that wait for
                a thread are dropped.

        """
        core = self._core
        core.writer.check_not_forked()
        deadline = Deadline(core.options.drain_timeout if timeout is None else timeout)
        if not self._begin_stop():
            if not in_callback() and not self._stopped.wait(deadline.left()):
                raise errors.DrainTimeoutError(f"the service {self._ping.name!r} is still stopping")
            return
        self._finish_stop(None, deadline)

    def wait_stopped(self, timeout: float | timedelta | None = None) -> bool:
        """
        Wait until the service has stopped.

        Args:
            timeout: in seconds; ``None``: no limit.

        Returns:
            Whether it has stopped.

        """
        self._core.writer.check_not_forked()
        return self._stopped.wait(Deadline(timeout).left())

    def _begin_stop(self) -> bool:
        """Return whether the calling thread has to stop the service."""
        with self._lock:
            was_stopping, self._stopping = self._stopping, True
        return not was_stopping

    def _finish_stop(self, error: BaseException | None, deadline: Deadline) -> None:
        core = self._core
        endpoints = self._endpoints  # complete, because the service is stopping
        reason = errors.BadSubscriptionError(f"the service {self._ping.name!r} was stopped")
        late = ""
        try:
            # Without a connection the server has forgotten the subscriptions.
            with contextlib.suppress(errors.ConnectionClosedError):
                core.drain_subscriptions([item.state for item in endpoints], deadline)
        finally:
            # After a KeyboardInterrupt as well: no endpoint must stay half stopped.
            for endpoint in endpoints:
                endpoint.subscription._on_closed(reason)
            try:
                for endpoint in endpoints:
                    if not endpoint.subscription._wait_drained(deadline):
                        name = endpoint.info.name
                        late = late or f"the handler of endpoint {name!r} is still running"
            finally:
                try:
                    if not self._drain_control(deadline):
                        late = late or "a discovery request is still being answered"
                finally:
                    self._error = error
                    self._stopped.set()
                    self._call_stop_cb(error)
        if late:
            raise errors.DrainTimeoutError(late)

    def _call_stop_cb(self, error: BaseException | None) -> None:
        if self._stop_cb is not None:
            try:
                check_returned(self._stop_cb(error))
            except BaseException as raised:  # noqa: BLE001 - reported
                self._core.events.callback_raised("stop_cb", raised)

    def _on_ended(self, reason: BaseException) -> None:
        """Stop because an endpoint has ended; called by its last worker thread."""
        try:
            self._stop_for(reason)
        except errors.Error as error:
            self._core.events.error(error)

    def _stop_for(self, reason: BaseException) -> None:
        """Stop without a call of the user, unless the service is stopping."""
        if self._begin_stop():
            self._finish_stop(reason, Deadline(self._core.options.drain_timeout))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def __repr__(self) -> str:
        state = "stopped" if self.is_stopped else "running"
        return f"<{type(self).__name__} {self._ping.name!r} {self._ping.version} {self.id} {state}>"

    # --- the control thread -----------------------------------------------------------------------

    def _post(self, function: Callable[[RawMessage], None], deliveries: list[RawMessage]) -> None:
        """Let the control thread call a function with each message; called by the reader."""
        if len(self._control) < _MAX_CONTROL_REQUESTS:
            self._control.put([(function, delivery) for delivery in deliveries], len(deliveries))

    def _drain_control(self, deadline: Deadline) -> bool:
        """End the control thread after the discovery requests in flight; return whether it has ended."""
        try:
            # The service has stopped in any case.
            with contextlib.suppress(errors.DrainTimeoutError, errors.ConnectionClosedError):
                self._core.drain_subscriptions(
                    [receiver.subscription for receiver in self._receivers], deadline
                )
        finally:
            self._end_control()
        # A caller that closes the connection next must not cut off the last replies.
        thread = self._thread
        if thread is None or thread is threading.current_thread():
            return True
        return join(thread, deadline.left())

    def _end_control(self) -> None:
        for receiver in self._receivers:
            self._core.table.remove_receiver(receiver)
        self._control.close(errors.BadSubscriptionError("the service was stopped"))

    def _run_control(self) -> None:
        self._thread = threading.current_thread()
        while True:
            try:
                function, delivery = self._control.get(FOREVER)
            except (errors.BadSubscriptionError, errors.ConnectionClosedError) as error:
                self._stop_for(error)
                return
            try:
                function(delivery)
            except BaseException as error:  # noqa: BLE001 - reported
                self._core.events.callback_raised(f"service {self._ping.name!r}", error)

    def _end_with(self, reason: BaseException) -> None:
        """End the control thread, or stop without it because it has failed."""
        self._control.close(reason)
        if not isinstance(reason, errors.ConnectionClosedError):
            self._stop_for(reason)

    def _answer_verb(self, delivery: RawMessage) -> None:
        subject, reply = delivery[SUBJECT], delivery[REPLY]
        verb = subject[len(self._root) + 1 :].split(b".", 1)[0]
        if reply:
            records = {b"PING": lambda: self._ping, b"INFO": self.info, b"STATS": self.stats}
            encoder = self._core.encoder
            try:
                data = dumps(encode(records[verb]()))
                command, size = encoder.encode_command(reply, data, b"", None)
            except errors.InvalidArgumentError as error:
                # Without a reply it would look as if there were no service.
                self._core.events.error(error)
                headers = {ERROR_HEADER: "the reply is too large", ERROR_CODE_HEADER: "500"}
                command, size = encoder.encode_command(reply, b"", b"", headers)
            self._core.writer.append(command, size, NOW)


class _ControlReceiver(MessageReceiver):
    """Receives the requests of one verb."""

    __slots__ = ("_service",)

    def __init__(self, service: Service) -> None:
        self._service = service

    def deliver(self, deliveries: list[RawMessage]) -> None:
        """Queue requests for the control thread."""
        self._service._post(self._service._answer_verb, deliveries)

    def on_closed(self, reason: BaseException) -> None:
        """End the control thread."""
        self._service._control.close(reason)
