"""The threads that call functions of the user: for the events of a connection, and for messages."""

from __future__ import annotations

import inspect
import logging
import threading
from collections.abc import Callable, Iterable
from functools import partial
from typing import TypeVar, cast

from .. import codec, errors
from ..locks import new_lock
from ..net.clock import FOREVER, Deadline
from ..options import (
    ConnectionEvent,
    ConnectionOptions,
    ErrorCallback,
    EventCallback,
    EventKind,
    check_returned,
    signature_of,
)
from .mailbox import Mailbox
from .threads import Signal, in_callback, interrupt_main_greenlet, is_gevent, join, spawn

log: logging.Logger = logging.getLogger("jetstream_sync.events")

#: Maximum number of events waiting for a callback; further ones are dropped and counted.
_MAX_QUEUED_EVENTS = 1000

E = TypeVar("E", bound=BaseException)
_Call = Callable[[], object]
_Listener = Callable[[ConnectionEvent], object]

#: The option that names the callback for each kind of event.
_OPTIONS = {
    EventKind.DISCONNECTED: "disconnected_cb",
    EventKind.RECONNECTED: "reconnected_cb",
    EventKind.CLOSED: "closed_cb",
    EventKind.DISCOVERED_SERVERS: "discovered_server_cb",
    EventKind.RECONNECT_FAILED: "reconnect_error_cb",
    EventKind.LAME_DUCK: "lame_duck_mode_cb",
}


class Events:
    """Calls the user's callbacks one after the other, in the order of the events."""

    # The thread is started with the first event. Exceptions of callbacks are logged.
    #
    # Any thread may call its methods; they never wait.

    def __init__(self, name: str, options: ConnectionOptions) -> None:
        self.name: str = name
        self._error_cb: ErrorCallback | None = options.error_cb
        self._lock = new_lock()
        # The kinds and callbacks of the listeners; replaced as a whole.
        self._listeners: tuple[tuple[frozenset[EventKind], EventCallback, _Listener], ...] = ()
        for kind, option in _OPTIONS.items():
            callback = getattr(options, option)
            if callback is not None:
                self.add_listener(callback, {kind}, option)
        self._calls: Mailbox[_Call] = Mailbox()
        #: Number of events dropped because a callback is too slow.
        self.dropped: int = 0
        self._thread: threading.Thread | None = None
        # Taken by the call that reports the end of the connection.
        self._closed = threading.Lock()

    def add_listener(
        self, callback: EventCallback, kinds: Iterable[EventKind], option: str = "callback"
    ) -> None:
        """Call a function at events of these kinds."""
        added = frozenset(kinds), callback, _listener(option, callback)
        with self._lock:
            self._listeners += (added,)

    def remove_listener(self, callback: EventCallback) -> bool:
        """Stop calling a function; return whether it was called."""
        with self._lock:
            before = self._listeners
            self._listeners = tuple(item for item in before if item[1] != callback)
            return len(self._listeners) < len(before)

    def error(self, error: BaseException, callback: ErrorCallback | None = None) -> None:
        """Report an asynchronous error to a callback, else to ``error_cb``, else to the log."""
        chosen = callback or self._error_cb
        if chosen is None:
            log.error("%s: %s: %s", self.name, type(error).__name__, codec.text_of(error))
            return
        self._add(lambda: check_returned(chosen(error)))

    def callback_raised(
        self, what: str, error: BaseException, callback: ErrorCallback | None = None
    ) -> None:
        """Report what a function of the user raised; called while the exception is handled."""
        # On a thread of this package, a SystemExit or a time-out of gevent is an error like any other.
        # On a thread of the user it belongs to the caller, as a KeyboardInterrupt does.
        if not isinstance(error, Exception) and not in_callback():
            raise error
        if isinstance(error, KeyboardInterrupt) and is_gevent():
            interrupt_main_greenlet(error)
            return
        is_logged = isinstance(error, Exception) or (callback or self._error_cb) is None
        level = logging.DEBUG if is_logged else logging.ERROR
        log.log(level, "%s: %s raised", self.name, what, exc_info=error)
        self.error(error, callback)

    def tell(self, event: ConnectionEvent, *, needed: bool = False) -> None:
        """Report an event; an event that is ``needed`` is never dropped."""
        if event.kind is not EventKind.RECONNECT_FAILED:  # logged by the connector
            log.info("%s: %s", self.name, _log_line(event))
        for kinds, _, listener in self._listeners:
            if event.kind in kinds:
                self._add(partial(_called, listener, event), needed=needed)

    def closed(self, event: ConnectionEvent) -> None:
        """Report the end of the connection once; the thread ends after this event."""
        if self._closed.acquire(blocking=False):
            self.tell(event, needed=True)
        self._calls.close(errors.ConnectionClosedError("closed"))

    def wait_closed(self, timeout: float) -> None:
        """Wait until ``closed_cb`` has returned, unless called from a callback of this thread."""
        # Without a ``closed_cb`` this returns at once: closing does not wait for other callbacks.
        thread = self._thread
        if (
            thread is not None
            and thread is not threading.current_thread()
            and any(EventKind.CLOSED in kinds for kinds, _, _ in self._listeners)
            and not join(thread, timeout)
        ):
            log.warning("%s: closed_cb has not returned; closing does not wait for it", self.name)

    def forked(self) -> None:
        """Forget the thread, which exists only in the parent."""
        self._thread = None

    def _add(self, call: _Call, *, needed: bool = False) -> None:
        with self._lock:
            if self._calls.closed:
                return
            if len(self._calls) >= _MAX_QUEUED_EVENTS and not needed:
                self.dropped += 1
                if self.dropped == 1:
                    log.warning(
                        "%s: %d events are waiting for a slow callback; further events are dropped",
                        self.name,
                        _MAX_QUEUED_EVENTS,
                    )
                return
            self._calls.put((call,), 1)
            if self._thread is None:
                try:
                    self._thread = spawn(f"events-{self.name}", self._run)
                except RuntimeError:
                    # The reader must go on. The next event tries again.
                    log.exception("%s: callbacks for events have no thread", self.name)

    def _run(self) -> None:
        while True:
            try:
                call = self._calls.get(FOREVER)
            except errors.ConnectionClosedError:
                return
            try:
                call()
            except BaseException:
                log.exception("%s: a callback raised", self.name)


class _CallbackThread:
    """A thread of `CallbackThreads`."""

    __slots__ = ("end", "ended", "ident", "name")

    def __init__(self, name: str, end: Callable[[BaseException], None]) -> None:
        self.name = name
        self.end = end
        self.ended = Signal()
        self.ident = 0


class CallbackThreads:
    """The threads of a connection that call functions with messages, until each has ended."""

    # A subscription that has left the table, for example at its limit, still has its thread: a message
    # is being handled, or is waiting.

    def __init__(self, events: Events) -> None:
        self._events = events
        self._running: set[_CallbackThread] = set()

    def spawn(
        self, name: str, run: Callable[[], None], end: Callable[[BaseException], None]
    ) -> threading.Thread:
        """Start a thread that a drain of the connection waits for."""
        # `end`: called with the reason when the connection is closed, which drops waiting messages if
        # the user closed it; and with what ``run`` raises, which was reported then.
        this = _CallbackThread(name, end)

        def counted() -> None:
            this.ident = threading.get_ident()
            try:
                run()
            except BaseException as error:  # noqa: BLE001 - reported
                self._events.callback_raised(f"thread {name}", error)
                end(error)
            finally:
                self._running.discard(this)
                this.ended.set()

        self._running.add(this)
        try:
            return spawn(name, counted)
        except BaseException:
            if not this.ident:
                self._running.discard(this)
            raise

    def wait(self, deadline: Deadline) -> str | None:
        """Wait until all threads but the calling one have ended; return the name of one that has not."""
        for thread in self._running.copy():
            if thread.ident != threading.get_ident() and not thread.ended.wait(deadline.left()):
                return thread.name
        return None

    def end(self, reason: BaseException) -> None:
        """End all threads: the connection is closed."""
        for thread in self._running.copy():
            thread.end(reason)


def _called(listener: _Listener, event: ConnectionEvent) -> None:
    check_returned(listener(event))


def _log_line(event: ConnectionEvent) -> str:
    """Return an event as one line for the log."""
    where = [event.server] if event.server is not None else []
    why = f": {event.error}" if event.error is not None else ""
    return " ".join([event.kind.value, *where, *event.servers]) + why


def _listener(option: str, callback: EventCallback) -> _Listener:
    """Return a function that calls a callback with an event, or without arguments if it takes none."""
    without_event = cast("_Call", callback)
    try:
        signature = signature_of(callback)
    except (TypeError, ValueError):  # a C function without a signature
        return lambda _: without_event()
    if _takes(signature):
        return lambda _: without_event()
    if _takes(signature, None):
        return cast("_Listener", callback)
    raise errors.InvalidOptionError(option, callback, "must take no argument, or the event alone")


def _takes(signature: inspect.Signature, *arguments: object) -> bool:
    try:
        signature.bind(*arguments)
    except TypeError:
        return False
    return True


def closed_before(what: str, reason: E) -> E | errors.ConnectionClosedError:
    """Return the error of a call that waits for something when the connection is closed."""
    # Other reasons name an outage. The class and the cause stay, for `is_deliberate_close`.
    if type(reason) is not errors.ConnectionClosedError or reason.__cause__ is not None:
        return reason
    return errors.ConnectionClosedError(f"the connection was closed before {what}")


def is_deliberate_close(error: errors.ConnectionClosedError) -> bool:
    """Return whether the user closed or drained the connection, so that iteration ends normally."""
    if isinstance(error, errors.ConnectionDrainingError):
        return True
    return type(error) is errors.ConnectionClosedError and error.__cause__ is None
