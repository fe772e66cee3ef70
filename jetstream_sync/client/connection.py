"""The connection to NATS that users hold in their hands; `ConnectionCore` does the work."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, NoReturn

from ..address import parse_servers
from ..errors import BadSubscriptionError, DrainTimeoutError, TimeoutError
from ..foreign_names import ForeignNames
from ..headers import HeadersLike
from ..net.clock import Deadline, monotonic
from ..options import (
    DEFAULT_PENDING_BYTES_LIMIT,
    DEFAULT_PENDING_MSGS_LIMIT,
    check_callback,
)
from ..protocol.session import ServerInfo
from ..protocol.state import ConnectionStatus
from ..subjects import check_queue, check_subject
from .core import ConnectionCore
from .message import Msg
from .pool import Server
from .subscription import MsgCallback, Subscription
from .threads import in_callback

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["Connection"]


class Connection(ForeignNames):
    """
    A connection to NATS.

    Made by `jetstream_sync.connect`. Any number of threads may use it; as a context manager it is
    drained at the end of the block, or closed when the block raises. It does not survive
    `os.fork`: a child that uses it gets `ForkedConnectionError`, and the parent goes on.
    """

    def __init__(self, core: ConnectionCore) -> None:
        self._core = core.handle()

    # --- messages -------------------------------------------------------------------------------

    def publish(
        self,
        subject: str,
        payload: bytes = b"",
        reply: str = "",
        headers: HeadersLike | None = None,
    ) -> None:
        """
        Publish a message, without waiting for anybody to get it.

        The message is buffered and sent right away by another thread; `flush()` waits until the
        server has it. When the server is slower than the publisher, this waits for it. While
        there is no link, up to ``pending_size`` bytes are kept for the next one.

        Args:
            subject: where to; no wildcards.
            payload: the message.
            reply: where an answer should go; empty: none is wanted.
            headers: names and values; ``None``: none.

        Raises:
            BadSubjectError: ``subject`` or ``reply`` is not well formed.
            InvalidHeaderError: a header can not be sent.
            MaxPayloadError: payload and headers are larger than the server accepts.
            OutboundBufferLimitError: there is no link, and the buffer for that time is full.
            ConnectionClosedError: the connection is closed.

        """
        core = self._core
        # Not in one line: a call with a star costs a tenth of all this.
        command, size = core.composer.message(subject, payload, reply, headers)
        core.writer.publish(command, size)

    def request(
        self,
        subject: str,
        payload: bytes = b"",
        timeout: float | timedelta | None = 0.5,
        headers: HeadersLike | None = None,
    ) -> Msg:
        """
        Publish a message and return the first answer to it.

        Args:
            subject: where to; no wildcards.
            payload: the message.
            timeout: how long to wait for the answer, in seconds; ``None``: for ever.
            headers: names and values; ``None``: none.

        Raises:
            NoRespondersError: nobody listens on the subject; known at once.
            TimeoutError: no answer came in time.
            ConnectionClosedError: the connection is closed, or was while waiting.
            BadSubjectError, InvalidHeaderError, MaxPayloadError, OutboundBufferLimitError: as
                `publish()`.

        """
        core = self._core
        where = core.composer.encoded(subject)
        return Msg(core.request(where, payload, Deadline(timeout), headers), core)

    def subscribe(
        self,
        subject: str,
        queue: str = "",
        cb: MsgCallback | None = None,
        pending_msgs_limit: int = DEFAULT_PENDING_MSGS_LIMIT,
        pending_bytes_limit: int = DEFAULT_PENDING_BYTES_LIMIT,
    ) -> Subscription:
        """
        Subscribe to a subject.

        The server knows of it soon; `flush()` waits until it does.

        Args:
            subject: what to listen to; ``*`` stands for one token, a final ``>`` for one or more.
            queue: a queue group, whose members share the messages; empty: none.
            cb: called with each message on a thread of its own; ``None``: messages are read with
                `Subscription.next_msg` or by iterating.
            pending_msgs_limit: messages that may wait unread; more are dropped and reported as
                `SlowConsumerError` to ``error_cb``; 0 or less: no limit.
            pending_bytes_limit: the same for the bytes of headers and payloads.

        Raises:
            BadSubjectError: the subject or queue group is not well formed.
            InvalidOptionError: the callback can not be called, or is an ``async`` function.
            ConnectionDrainingError: the connection is draining.
            ConnectionClosedError: it is closed.

        """
        check_subject(subject)
        check_queue(queue)
        if cb is not None:
            check_callback("cb", cb)
        return Subscription(self._core, subject, queue, cb, pending_msgs_limit, pending_bytes_limit)

    def new_inbox(self) -> str:
        """Return a subject for answers that nobody else uses, below the ``inbox_prefix``."""
        return self._core.new_inbox()

    # --- the link -------------------------------------------------------------------------------

    def flush(self, timeout: float | timedelta | None = 10.0) -> None:
        """
        Wait until the server has processed everything that this connection sent before.

        Args:
            timeout: in seconds; ``None``: wait for ever.

        Raises:
            TimeoutError: it has not in time.
            ConnectionLostError: the link broke meanwhile.
            ConnectionClosedError: the connection is closed.

        """
        self._core.flush(Deadline(timeout))

    def rtt(self, timeout: float | timedelta | None = 10.0) -> timedelta:
        """
        Return how long a ping takes to come back as a pong.

        Args:
            timeout: in seconds; ``None``: wait for ever.

        Raises:
            TimeoutError, ConnectionLostError, ConnectionClosedError: as `flush()`.

        """
        started = monotonic()
        self._core.flush(Deadline(timeout))
        return timedelta(seconds=monotonic() - started)

    def drain(self, timeout: float | timedelta | None = None) -> None:
        """
        Finish cleanly, and close.

        Every subscription ends; callbacks get the messages that are on their way; then what is
        buffered is sent, and the connection is closed. Messages of subscriptions without a
        callback can still be read afterwards. While somebody else drains the connection, this waits
        for that, unless a callback calls it: then it returns at once.

        Args:
            timeout: in seconds; ``None``: the option ``drain_timeout``.

        Raises:
            DrainTimeoutError: it took longer; the connection is closed all the same.
            ConnectionClosedError: the connection is closed, or had no link.

        """
        core = self._core
        deadline = Deadline(core.options.drain_timeout if timeout is None else timeout)
        if not core.start_draining():
            # Not from a callback: the one who drains may be waiting for it.
            if not in_callback() and not core.wait_closed(deadline.left() or 0.0):
                raise DrainTimeoutError("somebody else is draining, and not through")
            return
        try:
            _drain_subscriptions(core, deadline)
            core.flush(deadline)
        except DrainTimeoutError:
            raise
        except TimeoutError as error:
            raise DrainTimeoutError("the server did not confirm in time") from error
        finally:
            core.close()

    def reconnect(self) -> None:
        """
        Give up the link to the server and find another one, as when the link breaks by itself.

        What is buffered is sent first, if the server takes it within a tenth of a second; what is
        published from then on goes to the next server. This does not wait for that: the rest is done
        by the connection's own thread. Other servers are tried before the one that is left, and the
        first attempt is made at once. While a link is being sought, this ends the wait between two
        attempts. Any thread may call it, callbacks included.

        It is for moving to another server of a cluster, and for logging in with a login that has
        changed.

        Raises:
            ConnectionDrainingError: the connection is draining.
            ConnectionClosedError: it is closed.

        """
        self._core.reconnect()

    def close(self) -> None:
        """
        End the connection now.

        What is buffered is sent, if the server takes it within a second. Whoever waits for
        something on this connection gets `ConnectionClosedError`, and callbacks get no more messages.
        When this returns, ``closed_cb`` has run, unless ``error_cb`` or another callback for events
        calls this, or these callbacks take longer than 5 seconds. Closing twice is fine.
        """
        self._core.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None and self.is_draining:
            self._core.wait_closed(self._core.options.drain_timeout)
        if kind is None and self.is_connected:
            self.drain()
        else:
            self.close()

    # --- what is known of it --------------------------------------------------------------------

    @property
    def status(self) -> ConnectionStatus:
        """What the connection is doing."""
        return self._core.status

    @property
    def is_connected(self) -> bool:
        """Whether there is a link, and nobody is ending it."""
        return self._core.status is ConnectionStatus.CONNECTED

    @property
    def is_closed(self) -> bool:
        """Whether the connection is closed, for good."""
        return self._core.status is ConnectionStatus.CLOSED

    @property
    def is_reconnecting(self) -> bool:
        """Whether the link broke and another one is sought."""
        return self._core.status is ConnectionStatus.RECONNECTING

    @property
    def is_draining(self) -> bool:
        """Whether the connection is finishing what is under way."""
        return self._core.status is ConnectionStatus.DRAINING

    @property
    def connected_url(self) -> str | None:
        """The URL of the server, without a login; ``None`` while there is no link."""
        address = self._core.address
        return address.url if address is not None else None

    @property
    def servers(self) -> list[str]:
        """The URLs of the servers that the connection may use, without logins; the next first."""
        return [server.uri for server in self._core.servers]

    @property
    def discovered_servers(self) -> list[str]:
        """Those of `servers` that a cluster told of."""
        return [server.uri for server in self._core.servers if server.discovered]

    @property
    def server_pool(self) -> list[Server]:
        """The same servers, each with how often it could not be reached; a copy."""
        return self._core.servers

    def set_server_pool(self, servers: str | Sequence[str]) -> None:
        """
        Replace the servers that the connection may use.

        They are used from the next reconnect on; the link that there is stays, also where its server
        is not among them. To leave it, call `reconnect()` after this. A server that was known before
        keeps the count of its failures, and those that the cluster tells of later are added, unless
        ``ignore_discovered_servers`` is set. Any thread may call it.

        Args:
            servers: URLs, as for `jetstream_sync.connect`.

        Raises:
            InvalidOptionError: there is none, or one is not a URL; nothing has changed.
            ConnectionClosedError: the connection is closed.

        """
        self._core.set_servers(parse_servers(servers))

    @property
    def server_info(self) -> ServerInfo:
        """What the server said of itself when it last spoke of that."""
        return self._core.info

    @property
    def max_payload(self) -> int:
        """The largest message that the server accepts, headers included, in bytes."""
        return self._core.info.max_payload

    @property
    def last_error(self) -> BaseException | None:
        """Why the connection is closed, ``None`` while it is not."""
        return self._core.writer.closed

    @property
    def stats(self) -> dict[str, int]:
        """
        Messages and bytes (headers and payloads) in and out, reconnects, errors of the server.

        ``events_dropped`` counts errors and events that no callback was called with, because more than
        1000 were waiting for a slow one.
        """
        in_msgs, in_bytes = self._core.received()
        return {
            "in_msgs": in_msgs,
            "out_msgs": self._core.writer.out_msgs,
            "in_bytes": in_bytes,
            "out_bytes": self._core.writer.out_bytes,
            "reconnects": self._core.reconnects,
            "errors_received": self._core.errors_received,
            "events_dropped": self._core.events.dropped,
        }

    def __reduce__(self) -> NoReturn:
        raise TypeError("a connection can not be pickled; open one in the process that uses it")

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.connected_url or ''} {self.status.value}>"


def _drain_subscriptions(core: ConnectionCore, deadline: Deadline) -> None:
    """
    End every subscription, and wait until their callbacks and what they asked for are through.

    Raises:
        DrainTimeoutError: not in time.
        ConnectionClosedError: the connection is closed, or lost its link.

    """
    # Where answers come in stays: callbacks that finish may still ask for something.
    interests = [each for each in core.interests() if not each.receiver.is_reply_inbox]
    try:
        core.drain_subscriptions(interests, deadline)
    finally:
        for interest in interests:
            interest.receiver.on_closed(BadSubscriptionError("the connection was drained"))
    late = [each.subject for each in interests if not each.receiver.wait_drained(deadline)]
    if late:
        raise DrainTimeoutError(f"the callback for {late[0]!r} is not through")
    if not all(each.receiver.wait_drained(deadline) for each in core.interests()):
        raise DrainTimeoutError("not every message that was published has its acknowledgement")
