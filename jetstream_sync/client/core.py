"""The interface of a connection for its public objects and the layers above."""

from __future__ import annotations

import contextlib
import warnings
import weakref
from collections.abc import Callable
from typing import NoReturn

from .. import errors
from ..address import ServerAddress
from ..net.clock import Deadline
from ..options import ConnectionOptions
from ..protocol.parser import ServerInfo
from .direct_reads import DirectReads
from .encoder import MessageEncoder
from .engine import Engine
from .events import CallbackThreads, Events
from .mailbox import SubscriptionState
from .reader import Reader
from .request import RequestMux
from .state import ConnectionState, ConnectionStatus
from .subscription_table import SubscriptionTable
from .threads import caller, spawn_from_finalizer
from .writer import Writer


class ConnectionCore:
    """What the layers above use of a connection."""

    # Public objects hold the core that `handle()` returns. When the last of them is collected, the
    # connection closes. The engine and its threads do not hold it, so they do not keep a connection alive
    # that was dropped without `close()`. Objects that the threads hold use `internal` instead, unless they
    # have to keep the connection open, as subscriptions with a callback do.
    #
    # Its parts are those of the engine. The layers above call their methods: `core.writer.append`,
    # `core.table.add`, `core.requests.request`.

    def __init__(self, engine: Engine, internal: ConnectionCore | None = None) -> None:
        self.engine = engine
        #: The core that does not keep the connection open.
        self.internal: ConnectionCore = internal or self
        self.options: ConnectionOptions = engine.options
        self.name: str = engine.name
        self.callbacks: CallbackThreads = engine.callbacks
        self.direct: DirectReads = engine.direct
        self.encoder: MessageEncoder = engine.encoder
        self.events: Events = engine.events
        self.reader: Reader = engine.reader
        self.requests: RequestMux = engine.requests
        self.state: ConnectionState = engine.state
        self.table: SubscriptionTable = engine.table
        self.writer: Writer = engine.writer

    def handle(self) -> ConnectionCore:
        """Return a core for public objects; when it is collected, the connection closes."""
        handle = ConnectionCore(self.engine, self)
        weakref.finalize(
            handle, _in_any_case, _close_dropped, self.engine, *caller()
        ).atexit = False
        return handle

    def stop_dropped(
        self, owner: object, is_open: Callable[[], bool], stop: Callable[[], object], what: str = ""
    ) -> weakref.finalize[..., object]:
        """Stop an object of this connection when it is collected while it is open; return what does that."""
        # The functions must not hold the owner. `is_open` takes no lock; `stop` runs on a thread of its own.
        # `what`: the object, for a warning; empty: dropping it is a usual end.
        arguments = self.engine, is_open, stop, what, *caller()
        finalizer = weakref.finalize(owner, _in_any_case, _stop_dropped, *arguments)
        finalizer.atexit = False
        return finalizer

    # --- waiting for the server -----------------------------------------------------------------

    def flush(self, deadline: Deadline) -> None:
        """
        Wait until the server has processed everything sent before.

        Raises:
            TimeoutError: it did not confirm in time; the text names an outage.
            ConnectionLostError: the connection was lost meanwhile.
            ConnectionClosedError: the connection is closed.

        """
        self.direct.end()
        try:
            self.engine.keepalive.flush(deadline)
        except errors.TimeoutError as error:
            raise self.state.timed_out(str(error)) from None

    def drain_subscriptions(
        self, subscriptions: list[SubscriptionState], deadline: Deadline
    ) -> None:
        """
        Unsubscribe, and wait until every message in flight has been delivered.

        Raises:
            DrainTimeoutError: the server did not confirm in time.
            ConnectionLostError, ConnectionClosedError: as `flush()`.

        """
        self.table.stop(subscriptions)
        try:
            # The server answers a ping only after all messages that it sent before.
            self.flush(deadline)
        except errors.TimeoutError as error:
            raise errors.DrainTimeoutError("the server did not confirm in time") from error
        finally:
            self.table.forget(subscriptions)

    def wait_closed(self, seconds: float, ended: Callable[[], object] | None = None) -> bool:
        """Wait up to ``seconds`` until the connection is closed; return whether it is."""
        # `ended`: ends the wait when it holds after a `wake()`.
        closed = self.status is ConnectionStatus.CLOSED
        return closed or self.engine.connector.stopped(seconds, ended)

    def wake(self) -> None:
        """Let the threads in `wait_closed()` check whether their wait has ended."""
        self.engine.connector.wake()

    # --- its state ------------------------------------------------------------------------------

    def __reduce__(self) -> NoReturn:
        # Every object that belongs to a connection holds its core, so this covers all of them.
        raise TypeError(
            "objects that belong to a connection cannot be pickled; pass names and bytes instead"
        )

    @property
    def status(self) -> ConnectionStatus:
        """The current status."""
        return self.state.status

    @property
    def info(self) -> ServerInfo:
        """The last INFO of the server."""
        return self.state.info

    @property
    def max_payload(self) -> int:
        """The maximum size of a message with its headers in bytes, as the last server stated it."""
        return self.state.info.max_payload

    @property
    def address(self) -> ServerAddress | None:
        """The address of the connected server; ``None`` while disconnected."""
        transport = self.state.transport
        return transport.address if transport is not None else None

    @property
    def reconnects(self) -> int:
        """Number of reconnects."""
        return self.state.reconnects

    @property
    def closed_reason(self) -> BaseException | None:
        """The error that closed the connection; ``None`` while it is open."""
        return self.writer.closed


def _in_any_case(function: Callable[..., object], *args: object) -> None:
    """Call a function of a finalizer, again after a Ctrl-C, which Python drops there."""
    try:
        function(*args)
    except KeyboardInterrupt:
        function(*args)
        raise


def _close_dropped(engine: Engine, file: str, line: int) -> None:
    """Close a connection whose last handle was collected while it was open."""
    _stop_dropped(
        engine, lambda: True, engine.close, f"the NATS connection {engine.name!r}", file, line
    )


def _stop_dropped(
    engine: Engine,
    is_open: Callable[[], bool],
    stop: Callable[[], object],
    what: str,
    file: str,
    line: int,
) -> None:
    """Stop an object that was collected while it was open."""
    # The warning shows the line that created it.
    #
    # This runs in any thread that drops the last reference or collects garbage, at any point of its
    # code. Therefore it takes no lock and starts a thread for the work. A forked child has nothing to do.
    if engine.state.status is ConnectionStatus.CLOSED or not engine.is_served or not is_open():
        return

    def run() -> None:
        with contextlib.suppress(errors.Error):  # the connection is closed
            stop()

    spawn_from_finalizer(f"closer-{engine.name}", run)
    if what:
        ending = "close() or drain()" if stop == engine.close else "its method to end it"
        text = f"{what} was dropped while it was open; use it in a with block, or call {ending}"
        warnings.warn_explicit(text, ResourceWarning, file, line)
