"""Tell the user what happens to a connection, on a thread of its own."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from ..errors import ConnectionClosedError
from ..net.clock import FOREVER
from ..options import ConnectionOptions, ErrorCallback, EventCallback
from .mailbox import Mailbox
from .threads import spawn

__all__ = ["Events"]

log = logging.getLogger("jetstream_sync.events")

_Call = Callable[[], object]


class Events:
    """
    Calls the user's callbacks, one after the other, in the order of what happened.

    The thread is made with the first event. A callback that raises is logged.

    Args:
        name: the connection's name, for the thread's.
        options: whose callbacks are called.

    Any thread may call its methods; they never wait.
    """

    def __init__(self, name: str, options: ConnectionOptions) -> None:
        self._name = name
        self._options = options
        self._lock = threading.Lock()
        self._calls: Mailbox[_Call] = Mailbox()
        self._thread: threading.Thread | None = None
        # Taken by the one who tells that it is over.
        self._closed = threading.Lock()

    def error(self, error: Exception) -> None:
        """Report an error that no call can raise; without an ``error_cb`` it is logged."""
        callback = self._options.error_cb
        if callback is None:
            log.error("%s: %s: %s", self._name, type(error).__name__, error)
            return
        self._add(_with(callback, error))

    def disconnected(self) -> None:
        """The link broke."""
        self._call(self._options.disconnected_cb)

    def reconnected(self) -> None:
        """There is a new link."""
        self._call(self._options.reconnected_cb)

    def discovered_server(self) -> None:
        """The cluster told of a server."""
        self._call(self._options.discovered_server_cb)

    def lame_duck_mode(self) -> None:
        """The server will stop soon."""
        self._call(self._options.lame_duck_mode_cb)

    def closed(self) -> None:
        """It is over; the thread ends after this."""
        if self._closed.acquire(blocking=False):
            self._call(self._options.closed_cb)
        self._calls.close(ConnectionClosedError("closed"))

    def forked(self) -> None:
        """Forget the thread, which exists only in the parent."""
        self._lock = threading.Lock()
        self._calls = Mailbox()
        self._calls.close(ConnectionClosedError("forked"))

    def _call(self, callback: EventCallback | None) -> None:
        if callback is not None:
            self._add(callback)

    def _add(self, call: _Call) -> None:
        with self._lock:
            if self._calls.closed:
                return
            self._calls.put((call,), 1)
            if self._thread is None:
                self._thread = spawn(f"events-{self._name}", self._run)

    def _run(self) -> None:
        while True:
            try:
                call = self._calls.get(FOREVER)
            except ConnectionClosedError:
                return
            try:
                call()
            except Exception:
                log.exception("%s: a callback raised", self._name)


def _with(callback: ErrorCallback, error: Exception) -> _Call:
    def call() -> object:
        return callback(error)

    return call
