"""The interface of a connection for its public objects and the layers above."""

from __future__ import annotations

import contextlib
import sys
import threading
import warnings
import weakref
from collections.abc import Callable
from types import FrameType
from typing import NoReturn, TypeAlias

from .. import errors
from ..address import ServerAddress
from ..net.clock import Deadline
from ..options import ConnectionOptions
from ..protocol.session import ServerInfo, SubscriptionState
from .direct_reads import DirectReads
from .encoder import EncodeFunction
from .engine import Engine
from .mailbox import MessageReceiver
from .request import RequestFunction
from .state import ConnectionStatus
from .threads import spawn_from_finalizer
from .writer import SendFunction

_Subscription: TypeAlias = SubscriptionState[MessageReceiver]


class ConnectionCore:
    """What the layers above use of a connection."""

    # Public objects hold the core that `handle()` returns. When the last of them is collected, the
    # connection closes. The engine and its threads do not hold it, so they do not keep a connection alive
    # that was dropped without `close()`. Objects that the threads hold use `internal` instead, unless they
    # have to keep the connection open, as subscriptions with a callback do.
    #
    # The functions are those of the engine's parts; see there for their arguments. They are attributes,
    # because a method that forwards its arguments would cost a tenth of the time of a publish.

    def __init__(self, engine: Engine, internal: ConnectionCore | None = None) -> None:
        writer, encoder, table, state = engine.writer, engine.encoder, engine.table, engine.state
        self.engine = engine
        #: The core that does not keep the connection open.
        self.internal: ConnectionCore = internal or self
        self.options: ConnectionOptions = engine.options
        self.name: str = engine.name
        self._state = state
        #: Validate and encode a subject, or a message with its subject as `str` or as encoded `bytes`.
        self.encode_subject: Callable[[str], bytes] = encoder.encode_subject
        self.encode_message: EncodeFunction[str] = encoder.encode_message
        self.encode_command: EncodeFunction[bytes] = encoder.encode_command
        #: Send an encoded message: by the flusher at once, by the calling thread, or later.
        #: The third argument of `send_deferred` limits the wait for a full socket, in seconds.
        self.publish: Callable[[bytes, int], None] = writer.publish
        self.send: SendFunction = writer.send
        self.send_deferred: Callable[..., None] = writer.send_deferred
        #: Send what is buffered, before a wait.
        self.send_buffered: Callable[[], None] = writer.send_buffered
        self.count_internal: Callable[[int], None] = writer.count_internal
        #: Raise in a forked child.
        self.check_not_forked: Callable[[], None] = writer.check_not_forked
        #: The ids of subscriptions whose receivers accept packed runs, see `ReplyCollector`.
        self.packed_sids: set[int] = engine.reader.packed_sids
        #: Publish a request and return the first reply. The subject is not validated here: it must come
        #: from `encode_subject` or from the server.
        self.request: RequestFunction = engine.requests.request
        #: Lets callers read their replies themselves, and ends that.
        self.direct: DirectReads = engine.direct
        self.end_direct_reads: Callable[[], None] = engine.direct.end
        # Subscriptions.
        self.new_inbox: Callable[[], str] = table.new_inbox
        self.subscriptions: Callable[[], list[_Subscription]] = table.all
        self.add_subscription: Callable[[str, str, MessageReceiver], _Subscription] = table.add
        self.add_subscription_deferred: Callable[..., _Subscription] = table.add_deferred
        self.remove_subscription: Callable[..., None] = table.remove
        self.remove_subscription_deferred: Callable[[_Subscription], None] = table.remove_deferred
        self.remove_receiver: Callable[[MessageReceiver], None] = table.remove_receiver
        self.drain_subscriptions: Callable[[list[_Subscription], Deadline], None] = (
            engine.drain_subscriptions
        )
        # Errors and waits.
        #: Report an error to ``error_cb``; the second is for what a function of the user raised.
        self.report_error: Callable[..., None] = engine.events.error
        self.callback_raised: Callable[..., None] = engine.events.callback_raised
        #: Start a thread that calls functions of the user; see `CallbackThreads`.
        self.spawn_callbacks: Callable[
            [str, Callable[[], None], Callable[[BaseException], None]], threading.Thread
        ] = engine.callbacks.spawn
        self.timed_out: Callable[[str], errors.TimeoutError] = state.timed_out
        self.with_outage: Callable[[str], str] = state.with_outage
        self.flush: Callable[[Deadline], None] = engine.flush
        self.wait_closed: Callable[[float], bool] = engine.wait_closed

    def handle(self) -> ConnectionCore:
        """Return a core for public objects; when it is collected, the connection closes."""
        handle = ConnectionCore(self.engine, self)
        weakref.finalize(handle, _close_dropped, self.engine, *_caller()).atexit = False
        return handle

    def stop_dropped(
        self, owner: object, is_open: Callable[[], bool], stop: Callable[[], object], what: str = ""
    ) -> None:
        """Stop an object of this connection when it is collected while it is open."""
        # The functions must not hold the owner. `is_open` takes no lock; `stop` runs on a thread of its own.
        # `what`: the object, for a warning; empty: dropping it is a usual end.
        arguments = self.engine, is_open, stop, what, *_caller()
        weakref.finalize(owner, _stop_dropped, *arguments).atexit = False

    def __reduce__(self) -> NoReturn:
        # Every object that belongs to a connection holds its core, so this covers all of them.
        raise TypeError(
            "objects that belong to a connection cannot be pickled; pass names and bytes instead"
        )

    @property
    def status(self) -> ConnectionStatus:
        """The current status."""
        return self._state.status

    @property
    def info(self) -> ServerInfo:
        """The last INFO of the server."""
        return self._state.info

    @property
    def max_payload(self) -> int:
        """The maximum size of a message with its headers in bytes, as the last server stated it."""
        return self._state.info.max_payload

    @property
    def address(self) -> ServerAddress | None:
        """The address of the connected server; ``None`` while disconnected."""
        transport = self._state.transport
        return transport.address if transport is not None else None

    @property
    def reconnects(self) -> int:
        """Number of reconnects."""
        return self._state.reconnects

    @property
    def closed_reason(self) -> BaseException | None:
        """The error that closed the connection; ``None`` while it is open."""
        return self.engine.writer.closed


def _caller() -> tuple[str, int]:
    """Return the file and line that called this package, for the warning about a dropped connection."""
    package = __name__.partition(".client.")[0]
    frame: FrameType = sys._getframe()  # noqa: SLF001 - documented
    while frame.f_back and f"{frame.f_globals.get('__name__')}.".startswith(f"{package}."):
        frame = frame.f_back
    return frame.f_code.co_filename, frame.f_lineno


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
