"""
Read one transport: parse bytes into operations and dispatch them.

This code runs on the reader thread, which must never wait for anything but bytes. It runs no user code
and takes no lock that another thread may hold while sending. Replies to the server are appended to
the output buffer and sent by another thread.
"""

from __future__ import annotations

from collections.abc import Callable

from ..errors import BadSubscriptionError, ConnectionLostError, Error, PermissionsError
from ..net.clock import Deadline
from ..net.tcp import TCPStream
from ..protocol.parser import Delivery, ErrorLine, Info, Messages, Operation, Ping, Pong
from ..protocol.session import ServerInfo, SubscriptionState, ends_connection, error_from_text
from .direct_reads import DirectReads
from .events import Events
from .keepalive import KeepAlive
from .receiver import MessageReceiver
from .transport import Transport
from .writer import Writer


class Reader:
    """
    Dispatches operations from the server to receivers, keep-alive, events and the writer.

    Used by the reader thread only, except for `stop_reading()`.
    """

    def __init__(
        self,
        direct: DirectReads,
        subscriptions: dict[int, SubscriptionState[MessageReceiver]],
        writer: Writer,
        keepalive: KeepAlive,
        events: Events,
        on_info: Callable[[ServerInfo], None],
        on_limit_reached: Callable[[SubscriptionState[MessageReceiver]], None],
        on_receiver_error: Callable[[SubscriptionState[MessageReceiver], Exception], None],
    ) -> None:
        self._direct = direct
        self._subscriptions = subscriptions
        self._writer = writer
        self._keepalive = keepalive
        self._events = events
        self._on_info = on_info
        self._on_limit_reached = on_limit_reached
        self._on_receiver_error = on_receiver_error
        #: Messages received for a subscription, and errors that servers sent, so far.
        self.in_msgs: int = 0
        self.errors_received: int = 0
        #: See `Parser.packed_sids`.
        self.packed_sids: set[int] = set()
        # The error that the server sent before it closes the connection.
        self._final_error: Error | None = None
        # A transport that this client shuts down, and until when to read the data received on it.
        self._stopping: tuple[Transport, Deadline] | None = None

    def read(self, transport: Transport) -> BaseException:
        """Read a transport until it breaks, and return the reason."""
        stream, parser = transport.stream, transport.parser
        receive, feed, pause = stream.receive, parser.feed, self._direct.pause
        parser.packed_sids = self.packed_sids
        self._final_error = None
        try:
            self._dispatch(transport.early)
            data = receive()
            while data:
                self._dispatch(feed(data))
                if self._stopping is not None and self._has_stopped(transport):
                    break
                taken = pause(stream, parser) if isinstance(stream, TCPStream) else None
                data = receive() if taken is None else taken
        except OSError as error:
            # This includes ProtocolError, which is a ConnectionError.
            return self._final_error or error
        return self._final_error or ConnectionLostError("the server closed the connection")

    def stop_reading(self, transport: Transport, timeout: float) -> None:
        """
        Read a transport for at most ``timeout`` more seconds; called by any thread before a shutdown.

        The shutdown alone is not enough: a server that ignores it may continue to send.
        """
        self._stopping = transport, Deadline(timeout)

    def _has_stopped(self, transport: Transport) -> bool:
        stopping = self._stopping
        return stopping is not None and stopping[0] is transport and stopping[1].expired()

    def _dispatch(self, operations: list[Operation]) -> None:
        subscriptions = self._subscriptions
        for operation in operations:
            if isinstance(operation, Messages):
                subscription = subscriptions.get(operation.sid)
                if subscription is not None:
                    try:
                        self._deliver(subscription, operation.deliveries)
                    except Exception as error:  # noqa: BLE001 - reported
                        self._on_receiver_error(subscription, error)
            else:
                self._handle(operation)

    def _deliver(
        self, subscription: SubscriptionState[MessageReceiver], deliveries: list[Delivery]
    ) -> None:
        self.in_msgs += len(deliveries)
        subscription.delivered += len(deliveries)
        if not subscription.limit or subscription.delivered < subscription.limit:
            subscription.receiver.deliver(deliveries)
            return
        surplus = min(subscription.delivered - subscription.limit, len(deliveries))
        subscription.receiver.deliver(deliveries[: len(deliveries) - surplus])
        self._on_limit_reached(subscription)
        subscription.receiver.on_closed(
            BadSubscriptionError(
                f"the subscription ended after its limit of {subscription.limit} messages"
            )
        )

    def _handle(self, operation: Operation) -> None:
        """Handle an operation other than a message."""
        if isinstance(operation, Ping):
            self._writer.pong()
        elif isinstance(operation, Pong):
            self._keepalive.pong()
        elif isinstance(operation, Info):
            self._on_info(ServerInfo.from_fields(operation.fields))
        elif isinstance(operation, ErrorLine):
            self.errors_received += 1
            error = error_from_text(operation.text)
            if ends_connection(error):
                self._final_error = error
                return
            self._events.error(error)
            if isinstance(error, PermissionsError):
                self._dispatch_permission_error(error)

    def _dispatch_permission_error(self, error: PermissionsError) -> None:
        """Notify the receiver that the refused command belongs to."""
        # A malformed text from the server may contain a surrogate.
        subject = error.subject.encode("utf-8", "replace")
        is_subscribe = error.operation == "subscribe"
        for subscription in self._subscriptions.copy().values():
            if is_subscribe and (subscription.subject, subscription.queue) != (
                error.subject,
                error.queue,
            ):
                continue
            try:
                known = subscription.receiver.on_permission_error(subject, error)
            except Exception as raised:  # noqa: BLE001 - reported
                self._on_receiver_error(subscription, raised)
            else:
                if known and not is_subscribe:
                    return
