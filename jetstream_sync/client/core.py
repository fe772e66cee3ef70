"""
The internals of a connection: its state, its transport and the threads that serve it.

Threads: the *reader* receives bytes, feeds the parser and passes messages to their receivers; when the
transport breaks, it reconnects. The *flusher* sends buffered commands and keeps the ping schedule.
Neither runs user code, except for the login and reconnect functions of the options, which the
reader calls while it is disconnected.

Lock order: ``_lock`` (state, session), then the lock of `KeepAlive`, then that of `Writer`.
No lock is held while receiving, sending or calling user code.
"""

from __future__ import annotations

import itertools
import logging
import os
import sys
import threading
import warnings
import weakref
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from types import FrameType
from typing import NoReturn

from ..address import Server, ServerAddress
from ..errors import (
    BadSubjectError,
    BadSubscriptionError,
    ConnectionClosedError,
    ConnectionDrainingError,
    ConnectionLostError,
    DrainTimeoutError,
    Error,
    ForkedConnectionError,
    InvalidArgumentError,
    PermissionsError,
    StaleConnectionError,
    TimeoutError,
)
from ..events import ConnectionEvent, EventKind
from ..net.clock import Deadline, monotonic
from ..net.layer import ByteStream
from ..options import ConnectionOptions
from ..protocol.session import ServerInfo, Session, SubscriptionState, refuses_line
from ..protocol.state import ConnectionStatus, Event, next_status
from .connector import Connector
from .dialer import Dialer
from .direct_reads import DirectReads
from .encoder import EncodeFunction, MessageEncoder
from .events import Events, closed_error_for, is_deliberate_close
from .keepalive import KeepAlive
from .reader import Reader
from .receiver import MessageReceiver
from .request import RequestFunction, RequestMux
from .result_slot import copy_exception
from .threads import after_fork, at_exit, check_patches, join, spawn, spawn_from_finalizer
from .tracing import Tracer
from .transport import Transport
from .writer import FastWriter, SendFunction, Writer

log: logging.Logger = logging.getLogger("jetstream_sync.connection")

#: Seconds close() waits for buffered data to be sent, and for each thread to end.
_CLOSE_TIMEOUT_S = 1.0
#: Seconds close() waits for ``closed_cb``, and the callbacks queued before it, to return.
_CLOSE_CALLBACK_TIMEOUT_S = 5.0
#: Seconds reconnect() waits for buffered data to be sent.
_FINAL_FLUSH_TIMEOUT_S = 0.1
#: Seconds reconnect() continues to read data that the old server has sent.
_FINAL_READ_TIMEOUT_S = 1.0


class ConnectionCore:
    """
    The implementation behind the public `Connection`.

    Any thread may call its public methods. `open()` must be called first.

    The layers above send and report through the bound methods that are set in ``__init__`` (see `Writer`,
    `MessageEncoder` and `Events` for their arguments). They are attributes, because a method that
    forwards its arguments would cost a tenth of the time of a publish.
    """

    def __init__(self, options: ConnectionOptions, client_version: str) -> None:
        self.options = options
        #: This object, also when read from a `CoreHandle`: for objects that must not keep a handle alive.
        self.machinery: ConnectionCore = self
        self.name: str = options.name or "connection"
        self.reconnects: int = 0
        # --- under _lock ---
        self._lock = threading.Lock()
        self.status: ConnectionStatus = ConnectionStatus.CONNECTING
        self._session: Session[MessageReceiver] = Session()
        self._transport: Transport | None = None
        self._threads: list[threading.Thread] = []
        self._finished = False  # whether `_finish()` has run
        self._down_since: float | None = None  # start of the outage, by the monotonic clock
        # Inboxes share an unguessable random part and differ by a number.
        self._inbox_base = f"{options.inbox_prefix}.{os.urandom(11).hex()}"
        self._inbox_numbers = itertools.count(1)
        # The transport that this client closed itself, and the reason.
        self._forced_close: tuple[Transport, ConnectionClosedError] | None = None
        # Bytes received on previous transports, written by the reader only; the parser counts the
        # bytes of the current one.
        self._in_bytes = 0
        # After a server refused a command line as too long: the subscriptions that were restored on
        # the current transport, each followed by a PING. Used by the reader only.
        self._probed: list[SubscriptionState[MessageReceiver]] | None = None
        #: Cache of `jetstream.server_age`: API prefix -> (number of reconnects, API level).
        self.api_levels: dict[str, tuple[int, int]] = {}
        #: Inboxes that `jetstream.pull` keeps for the next fetch: subject of the requests -> inbox.
        self.idle_inboxes: dict[bytes, MessageReceiver] = {}
        # --- parts with their own synchronization ---
        self._encoder = MessageEncoder()
        self._events = Events(self.name, options)
        self._writer: Writer = FastWriter(options.pending_size, self._on_send_error)
        # --- for the layers above ---
        #: Validate and encode a subject, or a message with its subject as `str` or as encoded `bytes`.
        self.encode_subject: Callable[[str], bytes] = self._encoder.encode_subject
        self.encode_message: EncodeFunction[str] = self._encoder.encode_message
        self.encode_command: EncodeFunction[bytes] = self._encoder.encode_command
        #: Send an encoded message: by the flusher at once, by the calling thread, or later.
        self.publish: Callable[[bytes, int], None] = self._writer.publish
        self.send: SendFunction = self._writer.send
        self.send_deferred: Callable[[bytes, int], None] = self._writer.send_deferred
        #: Send what is buffered, before a wait.
        self.send_buffered: Callable[[], None] = self._writer.send_buffered
        #: Raise in a forked child.
        self.check_not_forked: Callable[[], None] = self._writer.check_not_forked
        #: Report an error to ``error_cb``.
        self.report_error: Callable[[Exception], None] = self._events.error
        self._keepalive = KeepAlive(
            self._writer, options.ping_interval, options.max_outstanding_pings, self._on_stale
        )
        #: Lets callers read their replies themselves.
        self.direct: DirectReads = DirectReads(
            self._session.subscriptions, self._keepalive.pong_awaited
        )
        self._reader = Reader(
            self.direct,
            self._session.subscriptions,
            self._writer,
            self._keepalive,
            self._events,
            self._on_info,
            self._on_limit_reached,
            self._on_receiver_error,
        )
        #: The ids of subscriptions whose receivers accept packed runs, see `ReplyCollector`.
        self.packed_sids: set[int] = self._reader.packed_sids
        self._mux = RequestMux(self)
        #: Publish a request and return the first reply. The subject is not validated here: it must come
        #: from `encode_subject` or from the server.
        self.request: RequestFunction = self._mux.request
        self._tracer = Tracer.of(self.name, options.trace_cb)
        wrap = self._tracer.wrap if self._tracer is not None else None
        self._connector = Connector(options, Dialer(options, client_version, wrap), self._events)

    def handle(self) -> CoreHandle:
        """Return a handle for public objects; when the last handle is collected, the connection closes."""
        handle = CoreHandle.__new__(CoreHandle)
        # Handle and core share one state dict, which costs nothing in frequent calls.
        handle.__dict__ = self.__dict__
        weakref.finalize(handle, _close_dropped, self, *_caller()).atexit = False
        return handle

    # --- opening and closing --------------------------------------------------------------------

    def open(self) -> None:
        """
        Connect to the first server that accepts, and start the threads.

        If no server accepts and ``retry_on_failed_connect`` is set, the reader continues to try.
        """
        check_patches()
        try:
            transport, failure = self._connect_first()
        except BaseException:
            self._end_trace()
            raise
        try:
            if transport is not None:
                self._attach(transport)
                log.info("%s: connected to %s", self.name, transport.address.url)
            else:
                self._start_disconnected(failure)
            after_fork(self)
            at_exit(self)
            for name, target in (
                ("reader", lambda: self._read(transport, failure)),
                ("flusher", self._flush_loop),
            ):
                self._threads.append(spawn(f"{name}-{self.name}", target, self._on_thread_error))
        except BaseException:
            # Too many threads, or a KeyboardInterrupt: the caller has no object to close.
            self._end(ConnectionClosedError("connecting was interrupted"))
            if transport is not None and not self._threads:
                transport.stream.close()  # otherwise the reader closes it
            raise

    def _connect_first(self) -> tuple[Transport | None, Error | None]:
        """Return the first transport, or the error if ``retry_on_failed_connect`` permits it."""
        try:
            return self._connector.first(), None
        except InvalidArgumentError:
            raise
        except Error as error:
            if not self.options.retry_on_failed_connect:
                raise
            return None, error

    def _start_disconnected(self, failure: Error | None) -> None:
        """Enter the reconnecting state without a transport, and report the failure."""
        with self._lock:
            self.status = next_status(self.status, Event.DISCONNECTED)
            self._down_since = monotonic()
        if failure is not None:
            self._events.error(failure)

    def close(self) -> None:
        """Close: send buffered data for at most a second, then wake every waiting thread."""
        with self._lock:
            alive = self.status is not ConnectionStatus.CLOSED
        try:
            if alive:
                self._writer.drain(Deadline(_CLOSE_TIMEOUT_S))
        finally:
            # Also after a KeyboardInterrupt: the connection must be closed in every case.
            self._end(ConnectionClosedError("the connection is closed"))
        ended = [
            thread is not threading.current_thread() and join(thread, _CLOSE_TIMEOUT_S)
            for thread in self._threads
        ]
        if not all(ended[:1]):
            log.warning(
                "%s: the reader thread is still in a connection attempt and ends after it",
                self.name,
            )
        self._events.wait_closed(_CLOSE_CALLBACK_TIMEOUT_S)
        self._end_trace()

    def _end_trace(self, timeout: float = _CLOSE_TIMEOUT_S) -> None:
        """Close the trace, and wait up to ``timeout`` seconds for its callback to take the last lines."""
        if self._tracer is not None:
            self._tracer.close(timeout)

    def start_draining(self) -> bool:
        """
        Enter the draining state, which refuses new subscriptions; ``close()`` must follow.

        Returns:
            Whether this call started the drain; ``False``: another drain is in progress.
        """
        reason = ConnectionClosedError("the connection was drained while it was disconnected")
        with self._lock:
            if self.status is ConnectionStatus.CLOSED:
                raise self._closed_error()
            if self.status is ConnectionStatus.DRAINING:
                return False
            closed = self._transition(Event.DRAIN, reason)
        if closed:
            self._finish(reason)
            raise self._closed_error()
        return True

    def _end(self, reason: ConnectionClosedError) -> None:
        """Close with a reason, or complete a close that a KeyboardInterrupt cut short."""
        with self._lock:
            if self.status is not ConnectionStatus.CLOSED:
                self._transition(Event.CLOSE, reason)
            elif self._finished:
                return
        self._finish(closed_error_for(self._closed_error()))

    def _transition(self, event: Event, reason: ConnectionClosedError) -> bool:
        """Change the status; return whether it is CLOSED now, with ``reason``. ``_lock`` is held."""
        status = next_status(self.status, event)
        if status is ConnectionStatus.CLOSED:
            # Before the status, so that a thread that sees CLOSED also finds the reason.
            self._writer.close(reason)
        self.status = status
        return status is ConnectionStatus.CLOSED

    def _finish(self, reason: ConnectionClosedError) -> None:
        """Wake all waiting threads with the reason. The status is CLOSED; a second call is harmless."""
        self._connector.stop()
        with self._lock:
            transport = self._transport
            subscriptions = list(self._session.subscriptions.values())
        if transport is not None:
            self._reader.stop_reading(transport, 0.0)
            transport.stream.shutdown()
        self.direct.end()
        self._keepalive.close(reason)
        self._mux.on_closed(reason)
        for subscription in subscriptions:
            self._close_receiver(subscription, reason)
        self._session.subscriptions.clear()
        self._events.closed(
            ConnectionEvent(
                EventKind.CLOSED,
                transport.address.url if transport is not None else None,
                None if is_deliberate_close(reason) else reason,
            )
        )
        self._end_trace(timeout=0.0)
        self._finished = True

    def forked(self) -> None:
        """Become unusable in a forked child, without sending anything to the server; see `ForkAware`."""
        reason = ForkedConnectionError(
            "the connection was opened in the parent process; open one after the fork"
        )
        self._writer.forked(reason)
        self._events.forked()
        self._connector.pool.forked()
        self._lock = threading.Lock()
        self.status = ConnectionStatus.CLOSED
        self._finished = True
        self._threads = []
        if self._transport is not None:
            # Close the child's copy of the socket. A shutdown would end the parent's connection.
            self._transport.stream.close()
            self._transport = None
        self.direct.forked()
        self._mux.forked(reason)
        for subscription in self._session.subscriptions.values():
            subscription.receiver.on_closed(reason)
        self._session.subscriptions.clear()

    def __reduce__(self) -> NoReturn:
        # Every object that belongs to a connection holds its core, so this covers all of them.
        raise TypeError(
            "objects that belong to a connection cannot be pickled; pass names and bytes instead"
        )

    def exiting(self) -> None:
        """
        Send buffered data before the interpreter exits; see `at_exit`.

        The trace is closed, too: Python aborts if it exits while a thread is printing.
        """
        if self.status is not ConnectionStatus.CLOSED:
            self._writer.drain(Deadline(_CLOSE_TIMEOUT_S))
        self._end_trace()

    def _closed_error(self) -> BaseException:
        return copy_exception(
            self._writer.closed or ConnectionClosedError("the connection is closed")
        )

    # --- subscribing ----------------------------------------------------------------------------

    def add_subscription(
        self, subject: str, queue: str, receiver: MessageReceiver
    ) -> SubscriptionState[MessageReceiver]:
        """Subscribe; the command is sent with the next flush or by the flusher."""
        with self._lock:
            self._check_open_for(receiver)
            subscription, command = self._session.subscribe(subject, queue, receiver)
            self._writer.append(command)
        if not receiver.awaited:
            self.end_direct_reads()
        return subscription

    def add_subscription_deferred(
        self, subject: str, receiver: MessageReceiver, limit: int = 0
    ) -> SubscriptionState[MessageReceiver]:
        """Subscribe, for ``limit`` messages if given; sent together with the caller's next command."""
        with self._lock:
            self._check_open_for(receiver)
            subscription, command = self._session.subscribe(subject, "", receiver)
            if limit:
                command += self._session.unsubscribe(subscription, limit)
            self._writer.enqueue_deferred(command)
        if not receiver.awaited:
            self.end_direct_reads()
        return subscription

    def end_direct_reads(self) -> None:
        """Make the reader continue, because messages may come that no caller reads."""
        if self.direct.paused:
            self.direct.end()

    def remove_subscription(
        self, subscription: SubscriptionState[MessageReceiver], limit: int = 0
    ) -> None:
        """
        End a subscription, at once or after ``limit`` messages.

        The caller must notify the receiver.
        """
        with self._lock:
            if subscription.sid in self._session.subscriptions:
                self._writer.append(self._session.unsubscribe(subscription, limit))
                if limit and limit <= subscription.delivered:
                    # The reader delivered the last message before this thread took the lock.
                    self._session.forget(subscription)

    def remove_subscription_deferred(
        self, subscription: SubscriptionState[MessageReceiver]
    ) -> None:
        """End a subscription; the command is sent together with the next one."""
        with self._lock:
            if subscription.sid in self._session.subscriptions:
                self._writer.enqueue_deferred(self._session.unsubscribe(subscription))

    def drain_subscriptions(
        self, subscriptions: list[SubscriptionState[MessageReceiver]], deadline: Deadline
    ) -> None:
        """Unsubscribe, and wait until every message in flight has been delivered."""
        with self._lock:
            for subscription in subscriptions:
                self._writer.enqueue_deferred(self._session.stop(subscription))
        try:
            # The server answers a ping only after all messages that it sent before.
            self.flush(deadline)
        except TimeoutError as error:
            raise DrainTimeoutError("the server did not confirm in time") from error
        finally:
            with self._lock:
                for subscription in subscriptions:
                    self._session.forget(subscription)

    def subscriptions(self) -> list[SubscriptionState[MessageReceiver]]:
        """Return the current subscriptions."""
        with self._lock:
            return list(self._session.subscriptions.values())

    def _check_open_for(self, receiver: MessageReceiver) -> None:
        """Raise if the state does not permit a new subscription; ``_lock`` is held."""
        if self.status is ConnectionStatus.CLOSED:
            raise self._closed_error()
        # While draining, callbacks may still make requests, also the first one of the connection.
        if self.status is ConnectionStatus.DRAINING and not receiver.is_reply_inbox:
            raise ConnectionDrainingError("the connection is draining")

    # --- requests -------------------------------------------------------------------------------

    def flush(self, deadline: Deadline) -> None:
        """Wait until the server has processed everything sent before; see `KeepAlive.flush`."""
        self.end_direct_reads()
        try:
            self._keepalive.flush(deadline)
        except TimeoutError as error:
            raise self.timed_out(str(error)) from None

    def new_inbox(self) -> str:
        """Return a unique subject for replies."""
        return f"{self._inbox_base}{next(self._inbox_numbers):x}"

    def wait_closed(self, seconds: float) -> bool:
        """Wait up to ``seconds`` until the connection is closed; return whether it is."""
        return self.status is ConnectionStatus.CLOSED or self._connector.stopped(seconds)

    # --- state of the connection ----------------------------------------------------------------

    @property
    def info(self) -> ServerInfo:
        """The last INFO of the server."""
        return self._session.info

    @property
    def max_payload(self) -> int:
        """The maximum size of a message with its headers in bytes, as the last server stated it."""
        return self._encoder.max_payload

    @property
    def is_served(self) -> bool:
        """Whether this process has started the threads of the connection."""
        return bool(self._threads)

    @property
    def address(self) -> ServerAddress | None:
        """The address of the connected server; ``None`` while disconnected."""
        transport = self._transport
        return transport.address if transport is not None else None

    @property
    def servers(self) -> list[Server]:
        """The servers that the connection may use, in the order in which they are tried next."""
        return self._connector.pool.servers()

    def set_servers(self, servers: tuple[ServerAddress, ...]) -> None:
        """Replace the server pool; the new servers are used from the next reconnect on."""
        if self.status is ConnectionStatus.CLOSED:
            raise self._closed_error()
        self._connector.pool.replace_all(servers)

    def timed_out(self, text: str) -> TimeoutError:
        """Return the error for a wait that timed out; while disconnected, it names the outage."""
        return TimeoutError(self.with_outage(text))

    def with_outage(self, text: str) -> str:
        """Return the text of an error, and while disconnected how long that has lasted."""
        down = self._down_since
        if down is None:
            return text
        seconds = monotonic() - down
        since = datetime.now(timezone.utc) - timedelta(seconds=seconds)
        return (
            f"{text}; there has been no connection to a server for {seconds:.1f} s,"
            f" since {since:%Y-%m-%d %H:%M:%S} UTC"
        )

    def received(self) -> tuple[int, int]:
        """Return the number of messages received, and the bytes of their headers and payloads."""
        transport = self._transport
        size = transport.parser.message_bytes if transport is not None else 0
        return self._reader.in_msgs + self.direct.count, self._in_bytes + size

    def sent(self) -> tuple[int, int]:
        """Return the number of messages sent or buffered, and the bytes of headers and payloads."""
        return self._writer.out_msgs, self._writer.out_bytes

    @property
    def closed_reason(self) -> BaseException | None:
        """The error that closed the connection; ``None`` while it is open."""
        return self._writer.closed

    @property
    def events_dropped(self) -> int:
        """Number of errors and events dropped because a callback is too slow."""
        return self._events.dropped

    @property
    def errors_received(self) -> int:
        """Number of errors that servers sent."""
        return self._reader.errors_received

    def _notify_receivers(self, *, connected: bool) -> None:
        for subscription in self.subscriptions():
            try:
                subscription.receiver.on_connection_change(connected=connected)
            except Exception as error:  # noqa: BLE001 - reported
                self._on_receiver_error(subscription, error)

    def _on_receiver_error(
        self, subscription: SubscriptionState[MessageReceiver], error: Exception
    ) -> None:
        """End the subscription of a receiver that raised, and report it; all others continue."""
        log.error("%s: the receiver of %r raised", self.name, subscription.subject, exc_info=error)
        ended = ConnectionClosedError(
            f"an internal error ended the subscription to {subscription.subject!r}"
        )
        ended.__cause__ = error
        self.remove_subscription_deferred(subscription)
        self._events.error(ended)
        self._close_receiver(subscription, ended)

    def _close_receiver(
        self, subscription: SubscriptionState[MessageReceiver], reason: BaseException
    ) -> None:
        try:
            subscription.receiver.on_closed(reason)
        except Exception:
            log.exception("%s: the receiver of %r raised", self.name, subscription.subject)

    # --- the reader -----------------------------------------------------------------------------

    def _read(self, transport: Transport | None, failure: Error | None) -> None:
        """Run the reader thread: read, and reconnect whenever the transport breaks, until closed."""
        if transport is None and failure is not None:
            transport = self._reconnect(None, failure)
        while transport is not None:
            error = self._reader.read(transport)
            transport = self._replace_transport(transport, error)

    def _on_limit_reached(self, subscription: SubscriptionState[MessageReceiver]) -> None:
        """Remove a subscription that has received its limit of messages."""
        with self._lock:
            self._session.forget(subscription)
            if self.reconnects:
                # An UNSUB with a limit that was buffered over a reconnect makes the new server count
                # from zero, so it would keep the subscription.
                self._writer.append(self._session.unsubscribe(subscription))

    def _on_info(self, info: ServerInfo) -> None:
        """Process an INFO that arrived while connected."""
        with self._lock:
            self._session.info = info
            self._encoder.max_payload = info.max_payload
            transport = self._transport
        if transport is not None:
            self._connector.on_info(info, transport.address)

    # --- reconnecting ---------------------------------------------------------------------------

    def reconnect(self) -> None:
        """Drop the transport and reconnect; while reconnecting, skip the current wait."""
        with self._lock:
            if self.status is ConnectionStatus.CLOSED:
                raise self._closed_error()
            if self.status is ConnectionStatus.DRAINING:
                raise ConnectionDrainingError("the connection is draining")
            transport = self._transport
        self._connector.skip_wait()
        if transport is not None:
            self._forced_close = (transport, ConnectionLostError("reconnect() was called"))
            self._reader.stop_reading(transport, _FINAL_READ_TIMEOUT_S)
            self._writer.flush_and_shutdown(transport.stream, Deadline(_FINAL_FLUSH_TIMEOUT_S))

    def _replace_transport(self, broken: Transport, error: BaseException) -> Transport | None:
        """Clean up after a broken transport, and return the next one; ``None``: closed."""
        forced, self._forced_close = self._forced_close, None
        cause = forced[1] if forced is not None and forced[0] is broken else error
        reason = closed_error_for(cause)
        # Before the status, so that a thread that sees the outage also meets the limits that apply
        # while disconnected.
        self._writer.pause()
        with self._lock:
            self._in_bytes += broken.parser.message_bytes
            self._transport = None
            self._down_since = monotonic()
            over = self.status is ConnectionStatus.CLOSED
            ends_now = False
            if not over:
                may = self.options.allow_reconnect
                ends_now = self._transition(Event.DISCONNECTED if may else Event.CLOSE, reason)
        broken.stream.shutdown()
        self._keepalive.on_disconnected(cause)
        broken.stream.close()
        if over:
            return None
        url = broken.address.url
        self._events.tell(ConnectionEvent(EventKind.DISCONNECTED, url, cause))
        if ends_now:
            self._events.error(reason)
            self._finish(reason)
            return None
        self._drop_refused_subscription(cause)
        self._notify_receivers(connected=False)
        if isinstance(cause, Error) and type(cause) is not ConnectionLostError:
            # The server sent an error or stopped answering pings: more than a lost connection.
            self._events.error(cause)
        return self._reconnect(broken.address, cause)

    def _drop_refused_subscription(self, cause: BaseException) -> None:
        """
        End the subscription whose command line the server refuses as too long.

        Restored on every reconnect, it would end every connection. The error does not name the line,
        so on the next transport a PING follows each SUB, and the pongs show which one was refused.
        """
        probed, self._probed = self._probed, None
        if not refuses_line(cause):
            return
        if probed is None:
            self._probed = []
            return
        if self._keepalive.pongs >= len(probed):
            return  # all SUBs were accepted: the line belonged to a message, which is not sent again
        subscription = probed[self._keepalive.pongs]
        self._probed = []  # there may be more refused subscriptions
        error = BadSubjectError(
            subscription.subject,
            "the server refused the subscription: its command line is too long",
        )
        with self._lock:
            self._session.forget(subscription)
        self._events.error(error)
        if subscription.receiver.is_reply_inbox:
            # A reply inbox with a long inbox_prefix: its requests fail, but it may be used again.
            refusal = PermissionsError(
                f'Permissions Violation for Subscription to "{subscription.subject}"'
            )
            refusal.__cause__ = error
            subscription.receiver.on_permission_error(subscription.subject.encode(), refusal)
        else:
            ended = BadSubscriptionError(str(error))
            ended.__cause__ = error
            self._close_receiver(subscription, ended)

    def _reconnect(self, lost: ServerAddress | None, cause: BaseException) -> Transport | None:
        try:
            transport = self._connector.reconnect(lost, cause)
        except Error as error:
            error.__cause__ = error.__cause__ or cause
            self._events.error(error)
            self._end(closed_error_for(error))
            return None
        if transport is None:  # closed meanwhile
            return None
        if not self._attach(transport):
            transport.stream.shutdown()
            transport.stream.close()
            return None
        self.reconnects += 1
        self._notify_receivers(connected=True)
        self._events.tell(ConnectionEvent(EventKind.RECONNECTED, transport.address.url))
        return transport

    def _attach(self, transport: Transport) -> bool:
        """Make a transport the current one; return ``False`` if the connection was closed meanwhile."""
        with self._lock:
            if self.status is ConnectionStatus.CLOSED:
                return False
            # In one step, so that close() finds the transport that it has to shut down.
            self.status = next_status(self.status, Event.HANDSHAKE_DONE)
            self._transport = transport
            self._down_since = None
            self._session.info = transport.info
            self._encoder.max_payload = transport.info.max_payload
            preamble = self._session.resubscribe(self._probed)
            pings = len(self._probed or ())
        self._keepalive.on_connected(pings)
        self._connector.on_info(transport.info, transport.address)
        self._writer.attach(transport.stream, preamble)
        return True

    def _on_send_error(self, stream: ByteStream, error: OSError) -> None:
        """Shut the stream down, so that the reader reconnects; called by the sending thread."""
        transport = self._transport
        if transport is not None and transport.stream is stream:
            log.debug("%s: sending failed: %s", self.name, error)
            stream.shutdown()

    def _on_stale(self, error: StaleConnectionError) -> None:
        """Shut the transport down with the given error, so that the reader reconnects."""
        transport = self._transport
        if transport is not None:
            self._forced_close = (transport, error)
            self._reader.stop_reading(transport, 0.0)
            transport.stream.shutdown()

    def _on_thread_error(self, error: Exception) -> None:
        """Close the connection after an unexpected exception in one of its threads."""
        closed = ConnectionClosedError("an internal error ended the connection")
        closed.__cause__ = error
        self._events.error(error)
        transport = self._transport
        self._end(closed)
        if transport is not None and threading.current_thread() in self._threads[:1]:
            # This is the reader thread, which would have done this after the transport broke.
            self._keepalive.on_disconnected(closed)
            transport.stream.close()

    def _flush_loop(self) -> None:
        self._writer.flusher(self._keepalive.due)


class CoreHandle(ConnectionCore):
    """
    The reference to a `ConnectionCore` that public objects hold.

    The connection's threads hold the `ConnectionCore` itself, so they do not keep a connection alive
    that was dropped without `close()`. A handle shares the state of its core. Subscriptions with a
    callback and consume handles keep the connection open, because their threads hold a handle.
    """


def _caller() -> tuple[str, int]:
    """Return the file and line that called this package, for the warning about a dropped connection."""
    package = __name__.partition(".client.")[0]
    frame: FrameType = sys._getframe()  # noqa: SLF001 - documented
    while frame.f_back and f"{frame.f_globals.get('__name__')}.".startswith(f"{package}."):
        frame = frame.f_back
    return frame.f_code.co_filename, frame.f_lineno


def _close_dropped(core: ConnectionCore, file: str, line: int) -> None:
    """
    Close a connection whose last handle was collected while it was open.

    The warning shows the line that opened the connection.

    This runs in any thread that drops the last reference or collects garbage, at any point of its
    code. Therefore it takes no lock and starts a thread for the work. A forked child has nothing to do.
    """
    if core.status is ConnectionStatus.CLOSED or not core.is_served:
        return
    spawn_from_finalizer(f"closer-{core.name}", core.close)
    warnings.warn_explicit(
        f"the NATS connection {core.name!r} was dropped while it was open; use it in a with block, "
        "or call close() or drain()",
        ResourceWarning,
        file,
        line,
    )
