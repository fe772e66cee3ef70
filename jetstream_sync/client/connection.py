"""The public connection to NATS; `Engine` is its implementation."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Literal, NoReturn

from .. import errors
from ..address import Server, parse_servers
from ..foreign_names import ForeignNames
from ..headers import HeadersLike
from ..net.clock import Deadline, monotonic
from ..options import (
    DEFAULT_PENDING_BYTES_LIMIT,
    DEFAULT_PENDING_MSGS_LIMIT,
    EventCallback,
    EventKind,
    check_callback,
)
from ..protocol.parser import ServerInfo
from ..subjects import check_queue, check_subject
from .core import ConnectionCore
from .engine import Engine
from .events import is_deliberate_close
from .mailbox import copy_exception
from .message import Msg
from .replies import ReplyIterator, Sentinel
from .state import ConnectionStatus, closed_error_for
from .subscription import MsgCallback, Subscription
from .threads import in_callback

if TYPE_CHECKING:
    from typing_extensions import Self


class CoreConnection(ForeignNames):
    """
    A connection to NATS.

    Created by `jetstream_sync.connect`. Any number of threads may use it. As a context manager, it is
    drained at the end of the block, or closed if the block raises. It does not survive `os.fork`: in
    the child its methods raise `ForkedConnectionError`, and the parent is not affected.
    """

    def __init__(self, engine: Engine) -> None:
        self._core = ConnectionCore(engine).handle()

    # --- messages -------------------------------------------------------------------------------

    def publish(
        self,
        subject: str,
        payload: bytes = b"",
        reply: str = "",
        headers: HeadersLike | None = None,
    ) -> None:
        """
        Publish a message without waiting for its delivery.

        The message is buffered and sent at once by another thread; `flush()` waits until the server
        has received it. If the server is slower than the publisher, this call waits for the server.
        While disconnected, up to ``pending_size`` bytes are buffered for the next server.

        Args:
            subject: the subject, without wildcards.
            payload: the payload.
            reply: the subject for replies; empty: none.
            headers: names and values.

        Raises:
            BadSubjectError: ``subject`` or ``reply`` is not well formed.
            InvalidHeaderError: a header is not valid.
            MaxPayloadError: payload and headers are larger than the server accepts.
            OutboundBufferLimitError: disconnected, and the buffer is full.
            TimeoutError: the buffer is full, and the server has accepted no data for 10 seconds; the
                message is buffered and may be sent later.
            ConnectionClosedError: the connection is closed.

        """
        core = self._core
        core.writer.publish_message(core.encoder, subject, payload, reply, headers)

    def request(
        self,
        subject: str,
        payload: bytes = b"",
        timeout: float | timedelta | None = 0.5,
        headers: HeadersLike | None = None,
    ) -> Msg:
        """
        Publish a request and return the first reply.

        Args:
            subject: the subject, without wildcards.
            payload: the payload of the request.
            timeout: how long to wait for the reply, in seconds; ``None``: forever.
            headers: names and values.

        Raises:
            NoRespondersError: the subject has no subscribers; raised without waiting.
            TimeoutError: no reply arrived in time.
            ConnectionClosedError: the connection is closed, or was closed while waiting.
            BadSubjectError, InvalidHeaderError, MaxPayloadError, OutboundBufferLimitError: as
                `publish()`.

        """
        core = self._core
        where = core.encoder.encode_subject(subject)
        return Msg(core.requests.request(where, payload, Deadline(timeout), headers), core)

    def request_many(
        self,
        subject: str,
        payload: bytes = b"",
        timeout: float | timedelta | None = 0.5,
        stall: float | timedelta | None = None,
        max_messages: int | None = None,
        sentinel: Sentinel | Literal["empty"] | None = None,
        headers: HeadersLike | None = None,
    ) -> ReplyIterator:
        """
        Publish a request and return an iterator of the replies (ADR-47).

        The request is sent by this call. The iteration ends when the first of the given limits is
        reached; `ReplyIterator.ended_by` names it. All replies that arrive by then are returned, however
        long the caller takes for each. Callbacks may call this method.

        Args:
            subject: the subject, without wildcards.
            payload: the payload of the request.
            timeout: how long to receive replies, in seconds from now; ``None``: until another limit.
            stall: how long to wait for each reply after the first, in seconds; ``None``: until the
                timeout.
            max_messages: number of replies; ``None``: no limit.
            sentinel: called with each reply by the iterating thread; if the result is true, the
                iteration ends without this reply. ``"empty"``: a reply without payload is the end.
            headers: names and values.

        Raises:
            NoRespondersError: by the iteration, at once: the subject has no subscribers.
            ConnectionLostError: by the iteration: the connection was lost, and there is no timeout or
                the option ``fail_requests_on_disconnect`` is set.
            PermissionsError: by the iteration: the server does not permit the request.
            InvalidOptionError: a limit is invalid.
            ConnectionClosedError: the connection is closed, or was closed during the iteration.
            BadSubjectError, InvalidHeaderError, MaxPayloadError, OutboundBufferLimitError: as
                `publish()`.

        """
        return ReplyIterator(
            self._core, subject, payload, timeout, stall, max_messages, sentinel, headers
        )

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

        The command is sent in the background; `flush()` waits until the server has processed it.

        Args:
            subject: the subject; ``*`` matches one token, a final ``>`` one or more.
            queue: a queue group, whose members share the messages; empty: none.
            cb: called with each message on a separate thread; ``None``: messages are read with
                `Subscription.next_msg` or by iterating.
            pending_msgs_limit: maximum number of unread messages; further messages are dropped and
                reported as `SlowConsumerError` to ``error_cb``; 0 or less: no limit.
            pending_bytes_limit: the same limit for the bytes of headers and payloads.

        Raises:
            BadSubjectError: the subject or queue group is not well formed.
            InvalidOptionError: the callback is not callable, or is an ``async`` function; a limit is not an
                integer.
            ConnectionDrainingError: the connection is draining.
            ConnectionClosedError: it is closed.

        """
        subject, queue = check_subject(subject), check_queue(queue)
        if cb is not None:
            check_callback("cb", cb)
        return Subscription(self._core, subject, queue, cb, pending_msgs_limit, pending_bytes_limit)

    def new_inbox(self) -> str:
        """Return a unique subject for replies, below the ``inbox_prefix``."""
        return self._core.table.new_inbox()

    # --- lifecycle ------------------------------------------------------------------------------

    def flush(self, timeout: float | timedelta | None = 10.0) -> None:
        """
        Wait until the server has processed everything that this connection sent before.

        Args:
            timeout: in seconds; ``None``: wait forever.

        Raises:
            TimeoutError: the server did not answer in time.
            ConnectionLostError: the connection was lost while waiting.
            ConnectionClosedError: the connection is closed.

        """
        self._core.flush(Deadline(timeout))

    def rtt(self, timeout: float | timedelta | None = 10.0) -> timedelta:
        """
        Return the round-trip time of a ping to the server.

        Args:
            timeout: in seconds; ``None``: wait forever.

        Raises:
            TimeoutError, ConnectionLostError, ConnectionClosedError: as `flush()`.

        """
        started = monotonic()
        self._core.flush(Deadline(timeout))
        return timedelta(seconds=monotonic() - started)

    def drain(self, timeout: float | timedelta | None = None) -> None:
        """
        Complete pending work, and close.

        Every subscription ends, and callbacks process the messages in flight. This includes the callbacks
        of subscriptions that have reached their limit or are ending in other threads. Then buffered
        messages are sent, and the connection is closed when the server has confirmed them. Messages of
        subscriptions without a callback can still be read afterwards. If another drain is in progress,
        this waits for it and raises its error; called from a callback, it returns at once instead.

        Args:
            timeout: in seconds; ``None``: the option ``drain_timeout``.

        Raises:
            DrainTimeoutError: the timeout has passed, and a callback may be running or the last
                messages may be lost; the connection is closed nevertheless.
            ConnectionClosedError: the connection is closed, or was disconnected.

        """
        core = self._core
        deadline = Deadline(core.options.drain_timeout if timeout is None else timeout)
        if not core.engine.start_draining():
            # A callback must not wait: the other drain may be waiting for it.
            if not in_callback() and not core.wait_closed(deadline.left() or 0.0):
                raise errors.DrainTimeoutError("another drain is still in progress")
            failure = core.engine.drain_error
            if failure is not None and not in_callback():
                is_known = isinstance(failure, errors.Error)
                raise copy_exception(failure if is_known else closed_error_for(failure))
            return
        try:
            _drain_subscriptions(core, deadline)
            core.flush(deadline)
        except BaseException as error:
            if isinstance(error, errors.TimeoutError) and not isinstance(
                error, errors.DrainTimeoutError
            ):
                late = errors.DrainTimeoutError("the server did not confirm in time")
                core.engine.drain_error = late
                raise late from error
            core.engine.drain_error = error
            raise
        finally:
            core.engine.close()

    def reconnect(self) -> None:
        """
        Disconnect from the server and reconnect, as after a lost connection.

        Buffered messages are sent first, if the server accepts them within a tenth of a second; later
        messages go to the next server, which may process them before the others. This returns without
        waiting for the reconnect, which the connection's own thread does. Other servers are tried
        before the current one, and the first attempt is made at once. While the connection is
        reconnecting, this ends the delay between two rounds. Any thread may call it, callbacks included.

        Use it to move to another server of a cluster, or to log in with changed credentials. With
        ``allow_reconnect=False`` the connection closes instead, as after a lost connection.

        Raises:
            ConnectionDrainingError: the connection is draining.
            ConnectionClosedError: it is closed.

        """
        self._core.engine.reconnect()

    def close(self) -> None:
        """
        Close the connection.

        Buffered messages are sent, if the server accepts them within a second. Calls that wait on this
        connection raise `ConnectionClosedError`, and callbacks get no more messages. When this returns,
        ``closed_cb`` has run, unless this was called by ``error_cb`` or another event callback, or
        these callbacks take longer than 5 seconds. A second call does nothing.
        """
        self._core.engine.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            if kind is None and (self.is_connected or self.is_draining or self._has_lost()):
                self.drain()
        except errors.ConnectionLostError:
            # Where every message had a reply, nothing can be lost.
            if self._core.writer.unanswered:
                raise
        finally:
            self.close()

    def _has_lost(self) -> bool:
        """Return whether messages were not sent, unless the program has closed the connection."""
        reason = self._core.closed_reason
        closed = isinstance(reason, errors.ConnectionClosedError) and is_deliberate_close(reason)
        return self._core.writer.unsent > 0 and not closed

    # --- state ----------------------------------------------------------------------------------

    @property
    def status(self) -> ConnectionStatus:
        """The current status."""
        return self._core.status

    @property
    def is_connected(self) -> bool:
        """Whether the connection is established, and neither draining nor closed."""
        return self._core.status is ConnectionStatus.CONNECTED

    @property
    def is_closed(self) -> bool:
        """Whether the connection is closed; this is final."""
        return self._core.status is ConnectionStatus.CLOSED

    @property
    def is_reconnecting(self) -> bool:
        """Whether the connection was lost and is being re-established."""
        return self._core.status is ConnectionStatus.RECONNECTING

    @property
    def is_draining(self) -> bool:
        """Whether a drain is in progress."""
        return self._core.status is ConnectionStatus.DRAINING

    @property
    def connected_url(self) -> str | None:
        """The URL of the server, without a login; ``None`` while disconnected."""
        address = self._core.address
        return address.url if address is not None else None

    @property
    def servers(self) -> list[str]:
        """The URLs of the server pool, without logins, in the order in which they are tried next."""
        return [server.uri for server in self._core.engine.connector.pool.servers()]

    @property
    def discovered_servers(self) -> list[str]:
        """The URLs of the servers that were discovered from the cluster."""
        return [
            server.uri for server in self._core.engine.connector.pool.servers() if server.discovered
        ]

    @property
    def server_pool(self) -> list[Server]:
        """A copy of the server pool, with the number of failed attempts of each server."""
        return self._core.engine.connector.pool.servers()

    def set_server_pool(self, servers: str | Sequence[str]) -> None:
        """
        Replace the server pool.

        The new servers are used from the next reconnect on. The current connection stays, even if its
        server is not in the new pool; call `reconnect()` after this to leave it. A server that was in
        the pool before keeps its number of failed attempts. Servers that are discovered later are
        added, unless ``ignore_discovered_servers`` is set. Any thread may call it.

        Args:
            servers: URLs, as for `jetstream_sync.connect`.

        Raises:
            InvalidOptionError: no server is given, or one is not a URL; the pool is unchanged.
            ConnectionClosedError: the connection is closed.

        """
        pool = parse_servers(servers)
        engine = self._core.engine
        engine.state.check_usable(draining=True)
        engine.connector.pool.replace_all(pool)

    @property
    def pending_bytes(self) -> int:
        """Number of bytes that are buffered and not sent, as while disconnected."""
        return self._core.writer.pending_bytes

    def add_listener(self, callback: EventCallback, *kinds: EventKind) -> None:
        """
        Call a function at events of the connection, besides the callbacks of its options.

        Args:
            callback: called on the thread of these callbacks, with a `ConnectionEvent` if it has a
                parameter.
            *kinds: the kinds of events; none: all.

        Raises:
            InvalidOptionError: the callback cannot be called so, or is an ``async`` function.

        """
        check_callback("callback", callback)
        self._core.events.add_listener(callback, kinds or EventKind)

    def remove_listener(self, callback: EventCallback) -> bool:
        """Stop calling a function at events; return whether it was a listener, or the callback of an option."""
        return self._core.events.remove_listener(callback)

    @property
    def server_info(self) -> ServerInfo:
        """The last INFO of the server."""
        return self._core.info

    @property
    def max_payload(self) -> int:
        """The largest message that the server accepts, headers included, in bytes."""
        return self._core.info.max_payload

    @property
    def last_error(self) -> BaseException | None:
        """The error that closed the connection; ``None`` while it is open."""
        return self._core.closed_reason

    @property
    def stats(self) -> dict[str, int]:
        """
        Counters: messages and bytes (headers and payloads) in and out, reconnects, server errors.

        ``events_dropped`` counts errors and events that were not reported, because more than 1000 were
        waiting for a slow callback.
        """
        engine = self._core.engine
        in_msgs, in_bytes = engine.reader.received()
        return {
            "in_msgs": in_msgs,
            "out_msgs": engine.writer.out_msgs,
            "in_bytes": in_bytes,
            "out_bytes": engine.writer.out_bytes,
            "reconnects": engine.state.reconnects,
            "errors_received": engine.reader.errors_received,
            "events_dropped": engine.events.dropped,
        }

    def __reduce__(self) -> NoReturn:
        raise TypeError("a connection cannot be pickled; open one in the process that uses it")

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.connected_url or ''} {self.status.value}>"


def _drain_subscriptions(core: ConnectionCore, deadline: Deadline) -> None:
    """End every subscription, and wait for the callbacks and their requests."""
    # Reply inboxes stay: running callbacks may still make requests.
    subscriptions = [
        subscription
        for subscription in core.table.all()
        if not subscription.receiver.is_reply_inbox
    ]
    try:
        core.drain_subscriptions(subscriptions, deadline)
    finally:
        for subscription in subscriptions:
            subscription.receiver.on_closed(
                errors.BadSubscriptionError("the connection was drained")
            )
    late = [
        subscription.subject
        for subscription in subscriptions
        if not subscription.receiver.wait_drained(deadline)
    ]
    if late:
        raise errors.DrainTimeoutError(f"the callback for {late[0]!r} is still running")
    name = core.engine.callbacks.wait(deadline)
    if name is not None:
        raise errors.DrainTimeoutError(f"the callback of {name!r} is still running")
    if not all(subscription.receiver.wait_drained(deadline) for subscription in core.table.all()):
        raise errors.DrainTimeoutError("some published messages are not acknowledged yet")
