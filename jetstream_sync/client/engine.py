"""The engine of a connection: its transport, and the threads that serve it."""

# Threads: the *reader* receives bytes, feeds the parser and passes messages to their receivers; when the
# transport breaks, it reconnects. The *flusher* sends buffered commands and keeps the ping schedule.
# Neither runs user code, except for the login and reconnect functions of the options, which the
# reader calls while it is disconnected.
#
# Lock order: ``ConnectionState.lock``, then ``KeepAlive._lock``, then ``Writer._lock``. None of these is held
# while receiving, sending or calling user code.

from __future__ import annotations

import logging
import threading
import warnings

from .. import errors
from ..durations import counted
from ..net.clock import Deadline
from ..net.layer import ByteStream
from ..options import ConnectionEvent, ConnectionOptions, EventKind
from ..protocol.parser import ServerInfo
from .connector import Connector
from .direct_reads import DirectReads
from .encoder import FastEncoder, MessageEncoder
from .events import CallbackThreads, Events, is_deliberate_close
from .mailbox import FORKED, SubscriptionState
from .reader import Reader
from .request import RequestMux, warn_in_event_loop
from .state import ConnectionState, ConnectionStatus, StateEvent, closed_error_for
from .subscription_table import SubscriptionTable
from .threads import (
    after_fork,
    at_exit,
    check_patches,
    join,
    spawn,
)
from .tracing import Tracer
from .transport import Transport, TransportOpener
from .writer import FastWriter, KeepAlive, Writer

log: logging.Logger = logging.getLogger("jetstream_sync.connection")

#: Seconds close() waits for buffered data to be sent, and for each thread to end.
_CLOSE_TIMEOUT_S = 1.0
#: Seconds close() waits for ``closed_cb``, and the callbacks queued before it, to return.
_CLOSE_CALLBACK_TIMEOUT_S = 5.0
#: Seconds reconnect() waits for buffered data to be sent.
_FINAL_FLUSH_TIMEOUT_S = 0.1
#: Seconds reconnect() continues to read data that the old server has sent.
_FINAL_READ_TIMEOUT_S = 1.0


class Engine:
    """Opens, serves, reconnects and closes a connection."""

    # Any thread may call its public methods. `open()` must be called first.

    def __init__(self, options: ConnectionOptions) -> None:
        self.options = options
        self.name: str = options.name or "connection"
        # --- parts with their own synchronization ---
        self.events: Events = Events(self.name, options)
        self.callbacks: CallbackThreads = CallbackThreads(self.events)
        self.encoder: MessageEncoder = FastEncoder()
        self.writer: Writer = FastWriter(options.pending_size, self._on_send_error)
        self.state: ConnectionState = ConnectionState(self.writer, self.encoder)
        self.keepalive: KeepAlive = KeepAlive(
            self.writer, options.ping_interval, options.max_outstanding_pings, self._on_stale
        )
        subscriptions: dict[int, SubscriptionState] = {}
        #: Lets callers read their replies themselves.
        self.direct: DirectReads = DirectReads(subscriptions, self.keepalive.pong_awaited)
        self.table: SubscriptionTable = SubscriptionTable(
            subscriptions, self.state, self.writer, self.direct, self.events, options.inbox_prefix
        )
        self.reader: Reader = Reader(
            self.direct, self.table, self.writer, self.keepalive, self.events, self._on_info
        )
        self.requests: RequestMux = RequestMux(
            self.table,
            self.encoder,
            self.writer,
            self.direct,
            self.state,
            fail_on_disconnect=options.fail_requests_on_disconnect,
        )
        self._tracer: Tracer | None = None
        if options.trace_cb is not None:
            self._tracer = Tracer(self.name, options.trace_cb)
        wrap = self._tracer.wrap if self._tracer is not None else None
        self._opener = TransportOpener(options, wrap)
        self.connector: Connector = Connector(options, self._opener, self.events)
        self._threads: list[threading.Thread] = []
        self._finished = False  # whether `_finish()` has run
        #: The error of the drain that ended the connection.
        self.drain_error: BaseException | None = None

    @property
    def is_served(self) -> bool:
        """Whether this process has started a thread of the connection."""
        return bool(self._threads)

    # --- opening and closing --------------------------------------------------------------------

    def open(self) -> None:
        """Connect to the first server that accepts, and start the threads; raises as `Connector.first()`."""
        # If no server accepts and ``retry_on_failed_connect`` is set, the reader continues to try.
        check_patches()
        warn_in_event_loop()
        after_fork(self)
        try:
            transport, failure = self._connect_first()
        except BaseException:
            self._end_trace()
            raise
        try:
            if transport is not None:
                self._attach(transport)
                log.info("%s: connected to %s", self.name, transport.address.url)
            elif failure is not None:
                with self.state.lock:
                    self.state.detach()
                    self.state.transition(StateEvent.DISCONNECTED, closed_error_for(failure))
                self.events.error(failure)
            at_exit(self)
            for name, target in (
                ("reader", lambda: self._read(transport, failure)),
                ("flusher", lambda: self.writer.flusher(self.keepalive.due)),
            ):
                self._threads.append(spawn(f"{name}-{self.name}", target, self._on_thread_error))
        except BaseException:
            # Too many threads, or a KeyboardInterrupt: the caller has no object to close.
            self._end(errors.ConnectionClosedError("connecting was interrupted"))
            if transport is not None and not self._threads:
                transport.stream.close()  # otherwise the reader closes it
            raise

    def _connect_first(self) -> tuple[Transport | None, errors.Error | None]:
        """Return the first transport, or the error if ``retry_on_failed_connect`` permits it."""
        try:
            return self.connector.first(), None
        except errors.InvalidArgumentError:
            raise
        except errors.Error as error:
            if not self.options.retry_on_failed_connect:
                raise
            return None, error

    def close(self) -> None:
        """Close: send buffered data for at most a second, then wake every waiting thread."""
        with self.state.lock:
            alive = self.state.status is not ConnectionStatus.CLOSED
        try:
            is_sent = not alive or self.writer.send_buffered(Deadline(_CLOSE_TIMEOUT_S))
            if not is_sent and (unsent := self.writer.unsent):
                log.warning("%s: closed with %s unsent", self.name, counted(unsent, "message"))
        finally:
            # Also after a KeyboardInterrupt: the connection must be closed in every case.
            self._end(errors.ConnectionClosedError("the connection is closed"))
        ended = [
            thread is not threading.current_thread() and join(thread, _CLOSE_TIMEOUT_S)
            for thread in self._threads
        ]
        if not all(ended[:1]):
            log.warning(
                "%s: the reader thread is still trying to connect and will end afterwards",
                self.name,
            )
        self.events.wait_closed(_CLOSE_CALLBACK_TIMEOUT_S)
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

        Raises:
            ConnectionClosedError: the connection is closed, or was disconnected and is closed now.

        """
        reason = errors.ConnectionClosedError(
            "the connection was drained while it was disconnected"
        )
        with self.state.lock:
            self.state.check_usable(draining=True)
            if self.state.status is ConnectionStatus.DRAINING:
                return False
            closed = self.state.transition(StateEvent.DRAIN, reason)
        if closed:
            if self.writer.unsent:
                log.warning(
                    "%s: %s; not sent: %s",
                    self.name,
                    reason,
                    counted(self.writer.unsent, "message"),
                )
            self._finish(reason)
            raise self.state.closed_error()
        return True

    def _end(self, reason: errors.ConnectionClosedError) -> None:
        """Close with a reason, or complete a close that a KeyboardInterrupt cut short."""
        with self.state.lock:
            if self.state.status is not ConnectionStatus.CLOSED:
                self.state.transition(StateEvent.CLOSE, reason)
            elif self._finished:
                return
        self._finish(closed_error_for(self.state.closed_error()))

    def _finish(self, reason: errors.ConnectionClosedError) -> None:
        """Wake all waiting threads with the reason. The status is CLOSED; a second call is harmless."""
        self.connector.stop()
        # First: the reader fails the flushes that are left, as those of a connection that was lost.
        self.keepalive.close(reason)
        with self.state.lock:
            transport = self.state.transport
        if transport is not None:
            self.reader.stop_reading(transport, 0.0)
            transport.stream.shutdown()
        self.direct.end()
        self.requests.on_closed(reason)
        self.table.close(reason)
        self.callbacks.end(reason)
        self.events.closed(
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
        self.writer.forked(FORKED)
        self.events.forked()
        self._opener.forked()
        self._finished = True
        self._threads = []
        self.state.forked()
        self.direct.paused = False
        self.requests.on_closed(FORKED)
        self.table.close(FORKED)

    def exiting(self) -> None:
        """Send buffered data before the interpreter exits; see `at_exit`."""
        # The trace is closed, too: Python aborts if it exits while a thread is printing.
        if self.state.status is not ConnectionStatus.CLOSED:
            deadline = Deadline(_CLOSE_TIMEOUT_S)
            self.writer.send_buffered(deadline)
            receivers = [item.receiver for item in self.table.all() if item.receiver.is_reply_inbox]
            unacked = sum(receiver.unacknowledged(deadline) for receiver in receivers)
            self._warn_of_lost(self.writer.unsent, unacked)
        self._end_trace()

    def _warn_of_lost(self, unsent: int, unacked: int) -> None:
        """Warn that the process exits before messages were sent, or acknowledged."""
        counts = ((unsent, "unsent"), (unacked, "of publish_async() not acknowledged"))
        lost = " and ".join(
            f"{counted(count, 'message')} {what}" for count, what in counts if count
        )
        if lost:
            text = f"the process exits with {lost} by the NATS connection {self.name!r}"
            log.warning(text)
            warnings.warn(text, ResourceWarning, stacklevel=1)

    # --- the reader -----------------------------------------------------------------------------

    def _read(self, transport: Transport | None, failure: errors.Error | None) -> None:
        """Run the reader thread: read, and reconnect whenever the transport breaks, until closed."""
        if transport is None and failure is not None:
            transport = self._replace_transport(None, failure)
        while transport is not None:
            error = self.reader.read(transport)
            transport = self._replace_transport(transport, error)

    def _on_info(self, info: ServerInfo) -> None:
        """Process an INFO that arrived while connected."""
        with self.state.lock:
            self.state.update(info)
            transport = self.state.transport
        if transport is not None:
            self.connector.on_info(info, transport.address)

    # --- reconnecting ---------------------------------------------------------------------------

    def reconnect(self) -> None:
        """Drop the transport and reconnect; while reconnecting, skip the current wait."""
        with self.state.lock:
            self.state.check_usable()
            transport = self.state.transport
        self.connector.skip_wait()
        if transport is not None:
            reason = errors.ConnectionLostError("reconnect() was called")
            self.reader.stop_reading(transport, _FINAL_READ_TIMEOUT_S, reason)
            self.writer.flush_and_shutdown(transport.stream, Deadline(_FINAL_FLUSH_TIMEOUT_S))

    def _replace_transport(
        self, broken: Transport | None, cause: BaseException
    ) -> Transport | None:
        """Reconnect after a transport broke, and return the new one; ``None``: closed instead."""
        # The whole story of a reconnect; the design page shows it as a diagram. It begins with step 3 if no
        # server has accepted the connection yet.
        if broken is not None and not self._leave(broken, cause):
            return None
        # 3. The servers are tried in rounds, until one accepts the connection and the login.
        try:
            lost = None if broken is None else broken.address
            transport = self.connector.reconnect(lost, cause)
        except errors.Error as error:
            error.__cause__ = error.__cause__ or cause
            self.events.error(error)
            self._end(closed_error_for(error))
            return None
        # 4. Its transport becomes the current one. The server gets all subscriptions, then the buffer.
        if transport is None or not self._attach(transport):
            return None  # closed meanwhile
        # 5. The receivers and the program learn of it: pulls send their requests again.
        self.state.reconnects += 1
        self.table.on_connection_change(connected=True)
        self.events.tell(ConnectionEvent(EventKind.RECONNECTED, transport.address.url))
        return transport

    def _leave(self, broken: Transport, cause: BaseException) -> bool:
        """Close a broken transport and report it, the first half of a reconnect; return whether one follows."""
        # 1. The old transport is closed. The buffer keeps what is published from now on, and the flushes
        #    whose pong cannot arrive fail.
        if not self._detach(broken, cause):
            return False
        # 2. The program and the receivers learn of the outage: requests fail, pulls drop their requests.
        self.events.tell(ConnectionEvent(EventKind.DISCONNECTED, broken.address.url, cause))
        self.table.on_connection_change(connected=False)
        if isinstance(cause, errors.Error) and type(cause) is not errors.ConnectionLostError:
            # The server sent an error or stopped answering pings: more than a lost connection.
            self.events.error(cause)
        return True

    def _detach(self, broken: Transport, cause: BaseException) -> bool:
        """Close a broken transport; return whether a reconnect follows."""
        # Before the status, so that a thread that sees the outage also meets the limits that apply
        # while disconnected.
        self.writer.pause()
        reason = closed_error_for(cause)
        with self.state.lock:
            self.state.detach()
            over = self.state.status is ConnectionStatus.CLOSED
            may = self.options.allow_reconnect
            ends_now = not over and self.state.transition(
                StateEvent.DISCONNECTED if may else StateEvent.CLOSE, reason
            )
        broken.stream.shutdown()
        self.keepalive.on_disconnected(cause)
        broken.stream.close()
        if ends_now:
            url = broken.address.url
            self.events.tell(ConnectionEvent(EventKind.DISCONNECTED, url, cause))
            self.events.error(reason)
            self._finish(reason)
        return not over and not ends_now

    def _attach(self, transport: Transport) -> bool:
        """Make a transport the current one; if the connection was closed meanwhile, close it instead."""
        with self.state.lock:
            is_open = self.state.status is not ConnectionStatus.CLOSED
            if is_open:
                # In one step, so that close() finds the transport that it has to shut down.
                self.state.attach(transport)
                preamble = self.table.restore()
        if not is_open:
            transport.stream.shutdown()
            transport.stream.close()
            return False
        self.connector.on_info(transport.info, transport.address)
        self.keepalive.on_connected()
        self.writer.attach(transport.stream, preamble)
        return True

    def _on_send_error(self, stream: ByteStream, error: OSError) -> None:
        """Shut the stream down, so that the reader reconnects; called by the sending thread."""
        transport = self.state.transport
        if transport is not None and transport.stream is stream:
            log.debug("%s: sending failed: %s", self.name, error)
            stream.shutdown()

    def _on_stale(self, error: errors.StaleConnectionError) -> None:
        """Shut the transport down with the given error, so that the reader reconnects."""
        transport = self.state.transport
        if transport is not None:
            self.reader.stop_reading(transport, 0.0, error)
            transport.stream.shutdown()

    def _on_thread_error(self, error: BaseException) -> None:
        """Close the connection after an unexpected exception in one of its threads."""
        closed = errors.ConnectionClosedError("an internal error ended the connection")
        closed.__cause__ = error
        self.events.error(error)
        transport = self.state.transport
        self._end(closed)
        if transport is not None and threading.current_thread() in self._threads[:1]:
            # This is the reader thread, which would have done this after the transport broke.
            self.keepalive.on_disconnected(closed)
            transport.stream.close()
