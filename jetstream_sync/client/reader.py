"""Read one transport: parse bytes into operations and dispatch them."""

# This code runs on the reader thread, which must never wait for anything but bytes. It runs no user code
# and takes no lock that another thread may hold while sending. Replies to the server are appended to
# the output buffer and sent by another thread.

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from .. import errors
from ..durations import counted
from ..net.clock import Deadline
from ..net.tcp import TCPStream
from ..protocol.parser import (
    ErrorLine,
    Info,
    Messages,
    Operation,
    Parser,
    Ping,
    Pong,
    RawMessage,
    ServerInfo,
    ends_connection,
    error_from_text,
    is_over_limit,
)
from .direct_reads import DirectReads
from .events import Events
from .mailbox import SubscriptionState
from .subscription_table import SubscriptionTable
from .transport import Transport
from .writer import KeepAlive, Writer


class _Stop(NamedTuple):
    """The end of a transport that this client shuts down."""

    transport: Transport
    deadline: Deadline  # of the data received on it
    reason: errors.ConnectionClosedError | None


class Reader:
    """Dispatches operations from the server to receivers, keep-alive, events and the writer."""

    # Used by the reader thread only, except for `stop_reading()`.

    def __init__(
        self,
        direct: DirectReads,
        table: SubscriptionTable,
        writer: Writer,
        keepalive: KeepAlive,
        events: Events,
        on_info: Callable[[ServerInfo], None],
    ) -> None:
        self._direct = direct
        self._table = table
        self._writer = writer
        self._keepalive = keepalive
        self._events = events
        self._on_info = on_info
        #: Errors that servers sent so far.
        self.errors_received: int = 0
        # The ids of the subscriptions that the server has refused because of a limit.
        self._over_limit: set[int] = set()
        #: See `Parser.packed_sids`.
        self.packed_sids: set[int] = set()
        # Messages received for a subscription; bytes on earlier transports, and the parser of this one.
        self._in_msgs = 0
        self._in_bytes = 0
        self._parser: Parser | None = None
        # The error that the server sent before it closes the connection.
        self._final_error: errors.Error | None = None
        # A transport that this client shuts down.
        self._stopping: _Stop | None = None

    def read(self, transport: Transport) -> BaseException:
        """Read a transport until it breaks, and return the reason."""
        stream, parser = transport.stream, transport.parser
        receive, feed, pause = stream.receive, parser.feed, self._direct.pause
        parser.packed_sids = self.packed_sids
        self._in_bytes, self._parser = self.received()[1], parser
        self._final_error = None
        try:
            stream.set_timeout(None)  # from here on, pings detect a dead connection
            self._dispatch(transport.early)
            data = receive()
            while data:
                operations = feed(data)
                self._dispatch(operations)
                stop = self._stopping
                if stop is not None and stop.transport is transport and stop.deadline.expired():
                    break
                taken = pause(stream, parser, operations) if isinstance(stream, TCPStream) else None
                data = receive() if taken is None else taken
            ended: BaseException = errors.ConnectionLostError("the server closed the connection")
        except OSError as error:
            ended = error  # also ProtocolError, which is a ConnectionError
        except MemoryError as error:
            # Some bytes may be lost, so that reading can go on only with another transport.
            ended = errors.ConnectionLostError(
                "there was not enough memory to read from the server"
            )
            # Its frames would keep the bytes that were received.
            ended.__cause__ = error.with_traceback(None)
            self._events.error(ended)
        stop = self._stopping
        if stop is not None and stop.transport is transport and stop.reason is not None:
            return stop.reason
        return self._final_error or ended

    def stop_reading(
        self,
        transport: Transport,
        timeout: float,
        reason: errors.ConnectionClosedError | None = None,
    ) -> None:
        """Read a transport for at most ``timeout`` more seconds; called by any thread before a shutdown."""
        # The shutdown alone is not enough: a server that ignores it may continue to send.
        #
        # `reason`: returned by `read()`; ``None``: the one that it finds.
        self._stopping = _Stop(transport, Deadline(timeout), reason)

    def received(self) -> tuple[int, int]:
        """Return the number of messages received, and the bytes of their headers and payloads."""
        parser = self._parser
        size = parser.message_bytes if parser is not None else 0
        return self._in_msgs + self._direct.count, self._in_bytes + size

    def _dispatch(self, operations: list[Operation]) -> None:
        subscriptions = self._table.by_sid
        for operation in operations:
            if isinstance(operation, Messages):
                subscription = subscriptions.get(operation.sid)
                if subscription is not None:
                    try:
                        self._deliver(subscription, operation.deliveries)
                    except MemoryError:
                        raise
                    except Exception as error:  # noqa: BLE001 - reported
                        self._table.on_receiver_error(subscription, error)
            else:
                self._handle(operation)

    def _deliver(self, subscription: SubscriptionState, deliveries: list[RawMessage]) -> None:
        self._in_msgs += len(deliveries)
        subscription.delivered += len(deliveries)
        if not subscription.limit or subscription.delivered < subscription.limit:
            subscription.receiver.deliver(deliveries)
            subscription.processed = subscription.delivered
            # Another thread has set a limit meanwhile. Either it sees the number above, or this thread the reason.
            if subscription.ended is not None:
                subscription.receiver.on_closed(subscription.ended)
            return
        surplus = min(subscription.delivered - subscription.limit, len(deliveries))
        subscription.receiver.deliver(deliveries[: len(deliveries) - surplus])
        self._table.on_limit_reached(subscription)
        subscription.receiver.on_closed(
            errors.BadSubscriptionError(
                f"the subscription ended after its limit of {counted(subscription.limit, 'message')}"
            )
        )

    def _handle(self, operation: Operation) -> None:
        """Handle an operation other than a message."""
        kept = self._final_error
        if kept is not None and not isinstance(operation, ErrorLine):
            # The server goes on after an error that is not known here, so it explains no later end.
            self._final_error = None
            self._events.error(kept)
        if isinstance(operation, Ping):
            self._writer.pong()
        elif isinstance(operation, Pong):
            self._keepalive.pong()
        elif isinstance(operation, Info):
            self._on_info(ServerInfo.from_fields(operation.fields))
        elif isinstance(operation, ErrorLine):
            self._handle_error(error_from_text(operation.text))

    def _handle_error(self, error: errors.Error) -> None:
        """Report an error of the server, or keep it if the server closes the connection after it."""
        self.errors_received += 1
        if ends_connection(error):
            self._final_error = error
            return
        if is_over_limit(error):
            error = self._refusal_of_newest(error)
        self._events.error(error)
        if isinstance(error, errors.PermissionsError):
            self._dispatch_permission_error(error)

    def _refusal_of_newest(self, error: errors.Error) -> errors.Error:
        """Return the error for the subscription that is refused, which the server does not name."""
        # At the limit the server refuses each new one, and reports each: the newest ones are refused.
        for sid, subscription in sorted(self._table.by_sid.copy().items(), reverse=True):
            if sid not in self._over_limit and not subscription.delivered:
                self._over_limit.add(sid)
                subject, queue = subscription.subject, subscription.queue
                return errors.PermissionsError(str(error), "subscribe", subject, queue)
        return error

    def _dispatch_permission_error(self, error: errors.PermissionsError) -> None:
        """Notify the receiver that the refused command belongs to."""
        # A malformed text from the server may contain a surrogate.
        subject = error.subject.encode("utf-8", "replace")
        is_subscribe = error.operation == "subscribe"
        for subscription in self._table.by_sid.copy().values():
            if is_subscribe and (subscription.subject, subscription.queue) != (
                error.subject,
                error.queue,
            ):
                continue
            try:
                known = subscription.receiver.on_permission_error(subject, error)
            except Exception as raised:  # noqa: BLE001 - reported
                self._table.on_receiver_error(subscription, raised)
            else:
                if known and not is_subscribe:
                    return
