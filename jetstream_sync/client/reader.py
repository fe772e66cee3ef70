"""
Read one link: bytes become operations, and operations reach those whom they are for.

This runs on the reader's thread, which must never wait for anything but bytes: it runs no user code, and
takes no lock that somebody may hold while sending. An answer to the server is appended to the
out-buffer, never sent, from here.
"""

from __future__ import annotations

from collections.abc import Callable

from ..errors import BadSubscriptionError, ConnectionLostError, Error, PermissionsError
from ..net.clock import Deadline
from ..protocol.parser import Delivery, Err, Info, Messages, Operation, Ping, Pong
from ..protocol.session import ServerInfo, SubscriptionState, ends_connection, error_from_text
from .events import Events
from .keepalive import KeepAlive
from .receiver import MessageReceiver
from .transport import Transport
from .writer import Writer

__all__ = ["Reader"]


class Reader:
    """
    Hands what a server sends to sinks, pings, events and the out-buffer.

    Args:
        interests: the subscription table, by sid; only looked up here.
        writer: for answers to pings.
        pings: told of pongs.
        events: told of errors that end nothing.
        informed: called with each INFO.
        complete: called with an interest that got as many messages as it asked for.

    One thread uses it.
    """

    def __init__(
        self,
        interests: dict[int, SubscriptionState[MessageReceiver]],
        writer: Writer,
        pings: KeepAlive,
        events: Events,
        informed: Callable[[ServerInfo], None],
        complete: Callable[[SubscriptionState[MessageReceiver]], None],
    ) -> None:
        self._interests = interests
        self._writer = writer
        self._pings = pings
        self._events = events
        self._informed = informed
        self._complete = complete
        #: Messages that came in for somebody, and errors that servers sent, so far.
        self.in_msgs = 0
        self.errors_received = 0
        # What the server said before it hangs up.
        self._final_error: Error | None = None
        # A link that was shut down at this end, and how long to read what has come on it.
        self._left: tuple[Transport, Deadline] | None = None

    def read(self, link: Transport) -> BaseException:
        """Read a link until it breaks, and return why."""
        receive, feed = link.stream.receive, link.parser.feed
        self._final_error = None
        try:
            self._dispatch(link.early)
            while data := receive():
                self._dispatch(feed(data))
                if self._left is not None and self._is_over(link):
                    break
        except OSError as error:
            # A ProtocolError is one, too: a ConnectionError.
            return self._final_error or error
        return self._final_error or ConnectionLostError("the server closed the connection")

    def leave(self, link: Transport, patience: float) -> None:
        """
        Read a link no longer than some seconds more; any thread may say so, before it shuts it down.

        Shutting down does not do that alone: a server that takes no notice may go on sending.
        """
        self._left = link, Deadline(patience)

    def _is_over(self, link: Transport) -> bool:
        left = self._left
        return left is not None and left[0] is link and left[1].expired()

    def _dispatch(self, operations: list[Operation]) -> None:
        interests = self._interests
        for operation in operations:
            if isinstance(operation, Messages):
                interest = interests.get(operation.sid)
                if interest is not None:
                    self._deliver(interest, operation.deliveries)
            else:
                self._handle(operation)

    def _deliver(
        self, interest: SubscriptionState[MessageReceiver], deliveries: list[Delivery]
    ) -> None:
        self.in_msgs += len(deliveries)
        interest.delivered += len(deliveries)
        if not interest.limit or interest.delivered < interest.limit:
            interest.sink.deliver(deliveries)
            return
        surplus = min(interest.delivered - interest.limit, len(deliveries))
        interest.sink.deliver(deliveries[: len(deliveries) - surplus])
        self._complete(interest)
        interest.sink.on_closed(
            BadSubscriptionError(
                f"the subscription got the {interest.limit} messages that it asked for"
            )
        )

    def _handle(self, operation: Operation) -> None:
        """Handle what is no message."""
        if isinstance(operation, Ping):
            self._writer.pong()
        elif isinstance(operation, Pong):
            self._pings.pong()
        elif isinstance(operation, Info):
            self._informed(ServerInfo.from_fields(operation.fields))
        elif isinstance(operation, Err):
            self.errors_received += 1
            error = error_from_text(operation.text)
            if ends_connection(error):
                self._final_error = error
                return
            self._events.error(error)
            if isinstance(error, PermissionsError):
                self._denied(error)

    def _denied(self, error: PermissionsError) -> None:
        """Tell those who would wait in vain."""
        # What a server makes up may have a surrogate in it.
        subject = error.subject.encode("utf-8", "replace")
        for interest in self._interests.copy().values():
            if error.operation != "subscribe":
                if interest.sink.on_permission_error(subject, error):
                    return
            elif interest.subject == error.subject and interest.queue == error.queue:
                interest.sink.on_permission_error(subject, error)
