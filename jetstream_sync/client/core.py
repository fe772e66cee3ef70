"""
The machinery of a connection: the state, the link, and the threads that serve it.

Threads: the *reader* receives, feeds the parser and hands messages to sinks; when the link breaks,
it finds another one. The *flusher* sends what is buffered and keeps the ping schedule. Neither runs
user code, but for the functions that the options name for the login and for the wait between
attempts, which the reader asks while it has no link.

Locks, in the order in which they may be taken: ``_lock`` (state, session), then the
lock of `KeepAlive`, then that of `Writer`. No lock is held while receiving, sending or calling a user.
"""

from __future__ import annotations

import itertools
import logging
import os
import threading
import warnings
import weakref
from datetime import datetime, timedelta, timezone
from typing import NoReturn

from ..address import ServerAddress
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
from ..headers import HeadersLike
from ..net.clock import Deadline, monotonic
from ..net.stream import ByteStream
from ..options import ConnectionOptions
from ..protocol.parser import Delivery
from ..protocol.session import ServerInfo, Session, SubscriptionState, refuses_line
from ..protocol.state import ConnectionStatus, Event, next_status
from .connector import Connector
from .dialer import Dialer
from .encoder import MessageEncoder
from .events import Events
from .gevent_check import check_patches
from .keepalive import KeepAlive
from .pool import Server
from .reader import Reader
from .reasons import closed_error_for, is_deliberate_close
from .receiver import MessageReceiver
from .request import RequestMux
from .result_slot import fresh
from .threads import after_fork, at_exit, join, spawn, spawn_from_finalizer
from .tracing import Tracer
from .transport import Transport
from .writer import Writer

__all__ = ["ConnectionCore", "is_deliberate_close"]

log = logging.getLogger("jetstream_sync.connection")

#: Seconds that close() gives to what is buffered, and to each thread to end.
_CLOSE_TIMEOUT_S = 1.0
#: Seconds that close() waits for ``closed_cb``, and the callbacks before it, to return.
_CALLBACK_PATIENCE = 5.0
#: Seconds that reconnect() gives to what is buffered.
_FINAL_FLUSH_TIMEOUT_S = 0.1
#: Seconds that it goes on to take what the old server has sent.
_FINAL_READ_TIMEOUT_S = 1.0


class ConnectionCore:
    """
    A connection without its public face.

    Args:
        options: how to connect.
        client_version: the version of this package, for the server's lists.

    Any thread may call its public methods. `open()` comes first.
    """

    def __init__(self, options: ConnectionOptions, client_version: str) -> None:
        self.options = options
        #: This object, also where a `CoreHandle` is asked: for what must not keep a handle alive.
        self.machinery: ConnectionCore = self
        self.name = options.name or "connection"
        self.reconnects = 0
        # --- under _lock ---
        self._lock = threading.Lock()
        self.status = ConnectionStatus.CONNECTING
        self._session: Session[MessageReceiver] = Session()
        self._link: Transport | None = None
        self._threads: list[threading.Thread] = []
        self._finished = False  # whether everybody knows that it is closed
        # When the link broke: by the monotonic clock, and in seconds since the epoch.
        self._down_since: float | None = None  # by the monotonic clock
        # Inboxes: unguessable for others by what they share, different by their number.
        self._inbox_base = f"{options.inbox_prefix}.{os.urandom(11).hex()}"
        self._inbox_numbers = itertools.count(1)
        # The link that we broke ourselves, and why.
        self._forced_close: tuple[Transport, ConnectionClosedError] | None = None
        # Bytes of former links, written by the reader alone; the parser counts the current one's.
        self._in_bytes = 0
        # After a server refused a command line as too long, the subscriptions that were made again on
        # the current link, each with a PING behind it; used by the reader alone.
        self._suspects: list[SubscriptionState[MessageReceiver]] | None = None
        #: What `jetstream.server_age` knows: by API prefix, the number of the link and the API's level.
        self.api_levels: dict[str, tuple[int, int]] = {}
        # --- parts with rules of their own ---
        self.composer = MessageEncoder()
        self.events = Events(self.name, options)
        self.writer = Writer(options.pending_size, self._sending_failed)
        self._pings = KeepAlive(
            self.writer, options.ping_interval, options.max_outstanding_pings, self._give_up_link
        )
        self._reader = Reader(
            self._session.interests,
            self.writer,
            self._pings,
            self.events,
            self._informed,
            self._forget,
        )
        self._mux = RequestMux(self)
        self._tracer = Tracer.of(self.name, options.trace_cb)
        wrap = self._tracer.wrap if self._tracer is not None else None
        self._finder = Connector(options, Dialer(options, client_version, wrap), self.events)

    def handle(self) -> CoreHandle:
        """Return what users' objects hold; when the last of them is gone, the connection is closed."""
        handle = CoreHandle.__new__(CoreHandle)
        # One state, so that both are the same connection, at no cost for what is called often.
        handle.__dict__ = self.__dict__
        weakref.finalize(handle, _close_dropped, self).atexit = False
        return handle

    # --- opening and closing --------------------------------------------------------------------

    def open(self) -> None:
        """
        Connect to the first server that accepts, and start the threads.

        With ``retry_on_failed_connect`` the reader goes on trying where none did.

        Raises:
            NoServersError, AuthorizationError, ProtocolError, SecureConnectionError: no server did.
            InvalidArgumentError: no login could be made of the options.
            Error: gevent has patched only a part of what is used.

        """
        check_patches()
        try:
            link, failure = self._first_link()
        except BaseException:
            self._end_trace()
            raise
        try:
            if link is not None:
                self._use(link)
                log.info("%s: connected to %s", self.name, link.address.url)
            else:
                self._go_on_trying(failure)
            after_fork(self)
            at_exit(self)
            for name, target in (
                ("reader", lambda: self._read(link, failure)),
                ("flusher", self._flush_loop),
            ):
                self._threads.append(spawn(f"{name}-{self.name}", target, self._crashed))
        except BaseException:
            # There are too many threads, or a Ctrl-C struck: nobody would ever close it.
            self._end(ConnectionClosedError("connecting was interrupted"))
            if link is not None and not self._threads:
                link.stream.close()  # else the reader does
            raise

    def _first_link(self) -> tuple[Transport | None, Error | None]:
        """Return the first link, or why there is none where that is no failure; see `open`."""
        try:
            return self._finder.first(), None
        except InvalidArgumentError:
            raise
        except Error as error:
            if not self.options.retry_on_failed_connect:
                raise
            return None, error

    def _go_on_trying(self, failure: Error | None) -> None:
        """Have no link yet, and tell the user why."""
        with self._lock:
            self.status = next_status(self.status, Event.LINK_LOST)
            self._down_since = monotonic()
        if failure is not None:
            self.events.error(failure)

    def close(self) -> None:
        """End the connection: send what is buffered, for a second at most, then wake every waiter."""
        with self._lock:
            alive = self.status is not ConnectionStatus.CLOSED
        try:
            if alive:
                self.writer.drain(Deadline(_CLOSE_TIMEOUT_S))
        finally:
            # After a Ctrl-C, too: who runs out of patience with a close still wants it closed.
            self._end(ConnectionClosedError("the connection is closed"))
        ended = [
            thread is not threading.current_thread() and join(thread, _CLOSE_TIMEOUT_S)
            for thread in self._threads
        ]
        if not all(ended[:1]):
            log.warning("%s: the reader is still busy; it ends with its current attempt", self.name)
        self.events.wait_closed(_CALLBACK_PATIENCE)
        self._end_trace()

    def _end_trace(self, patience: float = _CLOSE_TIMEOUT_S) -> None:
        """Give the callback of the trace a while to take the last lines."""
        if self._tracer is not None:
            self._tracer.close(patience)

    def start_draining(self) -> bool:
        """
        Take no new subscriptions; ``close()`` must follow.

        Returns:
            Whether this call has started it; if not, somebody else is draining the connection.

        Raises:
            ConnectionClosedError: it is closed, or had no link and is closed now.

        """
        no_link = ConnectionClosedError("drained while there was no link")
        with self._lock:
            if self.status is ConnectionStatus.CLOSED:
                raise self._closed_error()
            if self.status is ConnectionStatus.DRAINING:
                return False
            closed = self._change(Event.DRAIN, no_link)
        if closed:
            self._finish(no_link)
            raise self._closed_error()
        return True

    def _end(self, reason: ConnectionClosedError) -> None:
        """Close with a reason, unless it is closed; then finish what a Ctrl-C may have left."""
        with self._lock:
            if self.status is not ConnectionStatus.CLOSED:
                self._change(Event.CLOSE, reason)
            elif self._finished:
                return
        self._finish(closed_error_for(self._closed_error()))

    def _change(self, event: Event, reason: ConnectionClosedError) -> bool:
        """Change the status; say whether that closes, for the reason. ``_lock`` is held."""
        status = next_status(self.status, event)
        if status is ConnectionStatus.CLOSED:
            # First: who sees that it is closed can ask why.
            self.writer.close(reason)
        self.status = status
        return status is ConnectionStatus.CLOSED

    def _finish(self, reason: ConnectionClosedError) -> None:
        """Wake everybody with the reason; the status is CLOSED. Doing it again does no harm."""
        self._finder.stop()
        with self._lock:
            link = self._link
            interests = list(self._session.interests.values())
        if link is not None:
            self._reader.leave(link, 0.0)
            link.stream.shutdown()
        self._pings.close(reason)
        self._mux.on_closed(reason)
        for interest in interests:
            interest.sink.on_closed(reason)
        self._session.interests.clear()
        self.events.closed(
            ConnectionEvent(
                EventKind.CLOSED,
                link.address.url if link is not None else None,
                None if is_deliberate_close(reason) else reason,
            )
        )
        self._end_trace(patience=0.0)
        self._finished = True

    def forked(self) -> None:
        """Become useless in a forked child, without a byte to the server; see `ForkAware`."""
        reason = ForkedConnectionError(
            "the connection was opened in the parent process; open one after the fork"
        )
        self.writer.forked(reason)
        self.events.forked()
        self._finder.pool.forked()
        self._lock = threading.Lock()
        self.status = ConnectionStatus.CLOSED
        self._finished = True
        self._threads = []
        if self._link is not None:
            # Closes the child's copy of the socket. A shutdown would end the parent's connection.
            self._link.stream.close()
            self._link = None
        self._mux.forked(reason)
        for interest in self._session.interests.values():
            interest.sink.on_closed(reason)
        self._session.interests.clear()

    def __reduce__(self) -> NoReturn:
        # Everything that belongs to a connection has its core.
        raise TypeError("what belongs to a connection can not be pickled; pass names and bytes")

    def exiting(self) -> None:
        """
        Send what is buffered before the interpreter goes; see `at_exit`.

        The trace ends with it: Python aborts when it ends while a thread is printing.
        """
        if self.status is not ConnectionStatus.CLOSED:
            self.writer.drain(Deadline(_CLOSE_TIMEOUT_S))
        self._end_trace()

    def _closed_error(self) -> BaseException:
        return fresh(self.writer.closed or ConnectionClosedError("the connection is closed"))

    # --- subscribing ----------------------------------------------------------------------------

    def add_subscription(
        self, subject: str, queue: str, sink: MessageReceiver
    ) -> SubscriptionState[MessageReceiver]:
        """
        Subscribe; the command goes out with the next flush or by the flusher.

        Raises:
            ConnectionDrainingError: the connection is draining.
            ConnectionClosedError: it is closed.

        """
        with self._lock:
            self._must_be_open_for(sink)
            interest, command = self._session.subscribe(subject, queue, sink)
            self.writer.append(command)
        return interest

    def add_subscription_deferred(
        self, subject: str, sink: MessageReceiver
    ) -> SubscriptionState[MessageReceiver]:
        """Subscribe where the caller sends something right behind, which takes this along."""
        with self._lock:
            self._must_be_open_for(sink)
            interest, command = self._session.subscribe(subject, "", sink)
            self.writer.enqueue_deferred(command)
        return interest

    def remove_subscription(
        self, interest: SubscriptionState[MessageReceiver], limit: int = 0
    ) -> None:
        """End a subscription, at once or after ``limit`` messages; its sink is told by the caller."""
        with self._lock:
            if interest.sid in self._session.interests:
                self.writer.append(self._session.unsubscribe(interest, limit))
                if limit and limit <= interest.delivered:
                    # The reader was faster: the last message has come just now.
                    self._session.forget(interest)

    def remove_subscription_deferred(self, interest: SubscriptionState[MessageReceiver]) -> None:
        """End a subscription that costs nothing to linger: the command waits for company."""
        with self._lock:
            if interest.sid in self._session.interests:
                self.writer.enqueue_deferred(self._session.unsubscribe(interest))

    def drain_subscriptions(
        self, interests: list[SubscriptionState[MessageReceiver]], deadline: Deadline
    ) -> None:
        """
        Unsubscribe, and return once every message that was on its way has been delivered.

        Raises:
            DrainTimeoutError: the server did not confirm in time.
            ConnectionClosedError: the connection is closed, or lost its link.

        """
        with self._lock:
            for interest in interests:
                self.writer.enqueue_deferred(self._session.stop(interest))
        try:
            # A pong comes behind everything that the server sent before it.
            self.flush(deadline)
        except TimeoutError as error:
            raise DrainTimeoutError("the server did not confirm in time") from error
        finally:
            with self._lock:
                for interest in interests:
                    self._session.forget(interest)

    def interests(self) -> list[SubscriptionState[MessageReceiver]]:
        """Return the subscriptions that there are now."""
        with self._lock:
            return list(self._session.interests.values())

    def _must_be_open_for(self, sink: MessageReceiver) -> None:
        """Raise unless something new may be started; ``_lock`` is held."""
        if self.status is ConnectionStatus.CLOSED:
            raise self._closed_error()
        # Callbacks that finish may still ask for something, and it may be their first request.
        if self.status is ConnectionStatus.DRAINING and not sink.is_reply_inbox:
            raise ConnectionDrainingError("the connection is draining")

    # --- asking ---------------------------------------------------------------------------------

    def request(
        self,
        subject: bytes,
        payload: bytes,
        deadline: Deadline,
        headers: HeadersLike | None = None,
        *,
        ends_with_link: bool = False,
    ) -> Delivery:
        """
        Publish and wait for one answer; see `RequestMux.request`.

        Args:
            subject: where to: from `MessageEncoder.encoded`, or one that the server sent. It is not
                checked here, so what a user passes never comes here as it is.
            payload: the message.
            deadline: by when the answer has to be there.
            headers: names and values; ``None``: none.
            ends_with_link: do not wait for an answer any more when the link breaks.

        """
        return self._mux.request(subject, payload, deadline, headers, ends_with_link=ends_with_link)

    def flush(self, deadline: Deadline) -> None:
        """Wait until the server has processed what was sent; see `KeepAlive.flush`."""
        try:
            self._pings.flush(deadline)
        except TimeoutError as error:
            raise self.timed_out(str(error)) from None

    def new_inbox(self) -> str:
        """Return a subject that nobody else uses."""
        return f"{self._inbox_base}{next(self._inbox_numbers):x}"

    def wait_closed(self, seconds: float) -> bool:
        """Wait for a while, or until the connection is closed; say whether it is."""
        return self.status is ConnectionStatus.CLOSED or self._finder.stopped(seconds)

    # --- what is known of the link --------------------------------------------------------------

    @property
    def info(self) -> ServerInfo:
        """What the server last said of itself."""
        return self._session.info

    @property
    def is_served(self) -> bool:
        """Whether it was opened, in this process: whether there are threads that serve it."""
        return bool(self._threads)

    @property
    def address(self) -> ServerAddress | None:
        """The server that the link leads to, ``None`` without one."""
        link = self._link
        return link.address if link is not None else None

    @property
    def servers(self) -> list[Server]:
        """The servers that the connection may use, in the order in which they are tried next."""
        return self._finder.pool.servers()

    def set_servers(self, servers: tuple[ServerAddress, ...]) -> None:
        """
        Take these servers from the next reconnect on, instead of those that were known.

        Raises:
            ConnectionClosedError: the connection is closed.

        """
        if self.status is ConnectionStatus.CLOSED:
            raise self._closed_error()
        self._finder.pool.replace_all(servers)

    def timed_out(self, text: str) -> TimeoutError:
        """Return the error for a wait that timed out; while there is no link, it says since when."""
        down = self._down_since
        if down is None:
            return TimeoutError(text)
        seconds = monotonic() - down
        since = datetime.now(timezone.utc) - timedelta(seconds=seconds)
        return TimeoutError(
            f"{text}; there has been no connection to a server for {seconds:.1f} s,"
            f" since {since:%Y-%m-%d %H:%M:%S} UTC"
        )

    def received(self) -> tuple[int, int]:
        """Return the messages, and the bytes of their headers and payloads, that came in so far."""
        link = self._link
        size = link.parser.message_bytes if link is not None else 0
        return self._reader.in_msgs, self._in_bytes + size

    @property
    def errors_received(self) -> int:
        """How many errors servers sent."""
        return self._reader.errors_received

    def _tell(self, *, connected: bool) -> None:
        for interest in self.interests():
            interest.sink.on_connection_change(connected=connected)

    # --- the reader -----------------------------------------------------------------------------

    def _read(self, link: Transport | None, failure: Error | None) -> None:
        """Read link after link, until there is none any more; without a first one, find it."""
        if link is None and failure is not None:
            link = self._reconnect(None, failure)
        while link is not None:
            error = self._reader.read(link)
            link = self._next_link(link, error)

    def _forget(self, interest: SubscriptionState[MessageReceiver]) -> None:
        """Drop an interest that is complete."""
        with self._lock:
            self._session.forget(interest)
            if self.reconnects:
                # A limit that was buffered over a break has the new server count from its start.
                self.writer.append(self._session.unsubscribe(interest))

    def _informed(self, info: ServerInfo) -> None:
        """Take note of an INFO that came while connected."""
        with self._lock:
            self._session.info = info
            self.composer.max_payload = info.max_payload
            link = self._link
        if link is not None:
            self._finder.informed(info, link.address)

    # --- when the link breaks -------------------------------------------------------------------

    def reconnect(self) -> None:
        """
        Give the link up and find another one; while one is being sought, do not wait any longer.

        Raises:
            ConnectionDrainingError: the connection is draining.
            ConnectionClosedError: it is closed.

        """
        with self._lock:
            if self.status is ConnectionStatus.CLOSED:
                raise self._closed_error()
            if self.status is ConnectionStatus.DRAINING:
                raise ConnectionDrainingError("the connection is draining")
            link = self._link
        self._finder.skip_wait()
        if link is not None:
            self._forced_close = (link, ConnectionLostError("a reconnect was asked for"))
            self._reader.leave(link, _FINAL_READ_TIMEOUT_S)
            self.writer.flush_and_shutdown(link.stream, Deadline(_FINAL_FLUSH_TIMEOUT_S))

    def _next_link(self, broken: Transport, error: BaseException) -> Transport | None:
        """Clean up after a link, and find the next one; ``None`` when it is over."""
        given_up, self._forced_close = self._forced_close, None
        cause = given_up[1] if given_up is not None and given_up[0] is broken else error
        reason = closed_error_for(cause)
        # First: who sees that there is no link finds the limits that hold then.
        self.writer.pause()
        with self._lock:
            self._in_bytes += broken.parser.message_bytes
            self._link = None
            self._down_since = monotonic()
            over = self.status is ConnectionStatus.CLOSED
            ends_now = False
            if not over:
                may = self.options.allow_reconnect
                ends_now = self._change(Event.LINK_LOST if may else Event.CLOSE, reason)
        broken.stream.shutdown()
        self._pings.link_down(cause)
        broken.stream.close()
        if over:
            return None
        url = broken.address.url
        self.events.tell(ConnectionEvent(EventKind.DISCONNECTED, url, cause))
        if ends_now:
            self.events.error(reason)
            self._finish(reason)
            return None
        self._note_refused_line(cause)
        self._tell(connected=False)
        if isinstance(cause, Error) and type(cause) is not ConnectionLostError:
            # The server said something, or fell silent: more than a link that broke.
            self.events.error(cause)
        return self._reconnect(broken.address, cause)

    def _note_refused_line(self, cause: BaseException) -> None:
        """
        End the subscription whose command line the server does not take: made again, it would end
        every link.

        At first nothing tells which line it was, so on the next link a PING follows each of them.
        """
        suspects, self._suspects = self._suspects, None
        if not refuses_line(cause):
            return
        if suspects is None:
            self._suspects = []
            return
        if self._pings.pongs >= len(suspects):
            return  # it took them all: it was the line of a message, which is not sent again
        interest = suspects[self._pings.pongs]
        self._suspects = []  # there may be more of them
        error = BadSubjectError(
            interest.subject, "the server refused the subscription: its command line is too long"
        )
        with self._lock:
            self._session.forget(interest)
        self.events.error(error)
        if interest.sink.is_reply_inbox:
            # An inbox, by a long inbox_prefix: what waits there fails, and is not the end of it.
            refusal = PermissionsError(
                f'Permissions Violation for Subscription to "{interest.subject}"'
            )
            refusal.__cause__ = error
            interest.sink.on_permission_error(interest.subject.encode(), refusal)
        else:
            ended = BadSubscriptionError(str(error))
            ended.__cause__ = error
            interest.sink.on_closed(ended)

    def _reconnect(self, lost: ServerAddress | None, cause: BaseException) -> Transport | None:
        try:
            link = self._finder.reconnect(lost, cause)
        except Error as error:
            error.__cause__ = error.__cause__ or cause
            self.events.error(error)
            self._end(closed_error_for(error))
            return None
        if link is None:  # closed meanwhile
            return None
        if not self._use(link):
            link.stream.shutdown()
            link.stream.close()
            return None
        self.reconnects += 1
        self._tell(connected=True)
        self.events.tell(ConnectionEvent(EventKind.RECONNECTED, link.address.url))
        return link

    def _use(self, link: Transport) -> bool:
        """Make a link the one that is read and written; say whether it is, and not closed meanwhile."""
        with self._lock:
            if self.status is ConnectionStatus.CLOSED:
                return False
            # In one step: who closes a connection finds the link that it has to shut down.
            self.status = next_status(self.status, Event.HANDSHAKE_DONE)
            self._link = link
            self._down_since = None
            self._session.info = link.info
            self.composer.max_payload = link.info.max_payload
            preamble = self._session.resubscribe(self._suspects)
            pings = len(self._suspects or ())
        self._pings.link_up(pings)
        self._finder.informed(link.info, link.address)
        self.writer.attach(link.stream, preamble)
        return True

    def _sending_failed(self, stream: ByteStream, error: OSError) -> None:
        """Wake the reader, which sees to it; called by whoever was sending."""
        link = self._link
        if link is not None and link.stream is stream:
            log.debug("%s: sending failed: %s", self.name, error)
            stream.shutdown()

    def _give_up_link(self, error: StaleConnectionError) -> None:
        """Break the link for the given reason; the reader sees to it."""
        link = self._link
        if link is not None:
            self._forced_close = (link, error)
            self._reader.leave(link, 0.0)
            link.stream.shutdown()

    def _crashed(self, error: Exception) -> None:
        """One of the threads met an error that is a fault of this package."""
        closed = ConnectionClosedError("an internal error ended the connection")
        closed.__cause__ = error
        self.events.error(error)
        link = self._link
        self._end(closed)
        if link is not None and threading.current_thread() in self._threads[:1]:
            # The reader, which would have done this at the end of the link.
            self._pings.link_down(closed)
            link.stream.close()

    def _flush_loop(self) -> None:
        self.writer.flusher(self._pings.due)


class CoreHandle(ConnectionCore):
    """
    The core of a connection, as users' objects hold it.

    The connection's threads, and what they serve, hold the `ConnectionCore` itself: so they do not keep a connection
    alive that was dropped without `close()`. A handle shares the state of its core. Subscriptions with
    a callback, and consume handles, keep the connection in use: their threads hold a handle.
    """


def _close_dropped(core: ConnectionCore) -> None:
    """
    Close a connection that was dropped while it was open.

    It runs in whatever thread drops the last reference, or collects garbage, and in the middle of
    anything: it takes no lock and leaves the work to a thread. In a forked child there is nothing to do.
    """
    if core.status is ConnectionStatus.CLOSED or not core.is_served:
        return
    spawn_from_finalizer(f"closer-{core.name}", core.close)
    warnings.warn(
        f"the NATS connection {core.name!r} was dropped while it was open; use it in a with block, "
        "or call close() or drain()",
        ResourceWarning,
        stacklevel=2,
    )
