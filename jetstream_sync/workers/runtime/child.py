"""
Handlers in processes of their own: the side of the handler process.

Rules:

1. The main thread runs the handler. What it asks of the worker goes through the pipe, one question at
   a time; log records go the same way, unless the modules of the user configure logging.
2. Signals of the terminal are ignored: the worker decides when a process ends.
3. The end of the worker closes the lifeline, and that ends the process at once: it could neither settle
   its message nor keep the lease. On Linux that also works while a C function keeps the GIL.
"""

from __future__ import annotations

import faulthandler
import importlib
import logging
import os
import pickle
import signal
import traceback
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from logging.handlers import QueueHandler
from multiprocessing.connection import Connection
from multiprocessing.spawn import prepare
from typing import TYPE_CHECKING, Any, Final, NoReturn, cast

from ... import JetStreamMsg, codec, errors
from ...locks import new_rlock
from ...options import check_returned
from ..context import Context, ContextActions
from ..dead_letters import one_line
from ..deliveries import DeliveryState, LeasedMessage, Origin, Reply, log_context
from ..errors import misfit
from ..events import ignore_signals, spawn
from ..flows import planned_members
from ..logs import log, traceback_text
from ..options import registered
from ..source import Middleware, Source, in_handler_process, run_inside
from ..steps import Steps
from ..tracing import traced, tracing_middleware

if TYPE_CHECKING:
    from ... import Headers

try:
    import fcntl
except ImportError:  # not on POSIX, where these processes are refused
    fcntl = None  # type: ignore[assignment]

#: The types of what a log record always has.
_PLAIN: Final = (bool, float, int, str, type(None))


@dataclass(frozen=True, kw_only=True)
class ChildJob:
    """How a process finds its handler."""

    preparation: dict[str, Any]
    """Path, arguments and main module, as `multiprocessing` passes them on."""
    modules: Sequence[str]
    """The modules to import."""
    setup: str
    """``MODULE:FUNCTION`` to call before that, and after the import of the main module; empty: none."""
    identity: tuple[str, str, str]
    """Stream, consumer, and qualified name of the function."""
    log_levels: dict[str, int]
    """Levels of loggers by name."""


@dataclass(frozen=True, kw_only=True)
class HandlerRequest:
    """A message for a handler process."""

    received: tuple[bytes, bytes, Headers | None, bytes]
    """Subject, reply subject, headers and payload."""
    attempt: int
    state: DeliveryState
    deadline: float
    message_id: str
    maybe_done: bool
    value_limit: int
    clock_ahead: float
    """As `Origin.clock_ahead`."""


@dataclass(frozen=True, kw_only=True)
class FailureReport:
    """An error of a handler."""

    pickled: bytes | None
    """The error; ``None``: it cannot be pickled."""
    base: bytes
    """Its first class that can be pickled."""
    place: tuple[str, str]
    """The module and the qualified name of its class."""
    name: str
    """The name of its class."""
    text: str
    traceback: str


def main(connection: int, lifeline: int) -> None:
    """Run a handler for the messages that come through a pipe; the program of a handler process."""
    ignore_signals(signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    with suppress(OSError, ValueError, AttributeError):  # stderr may be closed
        faulthandler.register(signal.SIGQUIT, all_threads=True)
    _end_with(lifeline)
    in_handler_process[0] = True
    os.set_inheritable(connection, False)
    conn = Connection(connection)
    job = conn.recv()
    try:
        source, middleware = _load(job)
    except BaseException as error:  # noqa: BLE001 - the worker reports it
        conn.send("".join(traceback.format_exception(error)))
        return
    if source is None:
        where = " and ".join(dict.fromkeys(job.modules))
        conn.send(
            f"handler {job.identity[2]} must be defined when its module is imported, with a worker "
            f"that is created there: importing {where} does not define it"
        )
        return
    child = _Child(conn, source, middleware)
    _forward_logs(child, job)
    conn.send("")
    child.run()


def _end_with(lifeline: int) -> None:
    """End this process when the other end of a pipe is closed."""

    def wait() -> NoReturn:
        os.read(lifeline, 1)
        os._exit(1)

    os.set_inheritable(lifeline, False)
    if hasattr(fcntl, "F_SETSIG"):
        fcntl.fcntl(lifeline, fcntl.F_SETOWN, os.getpid())
        fcntl.fcntl(lifeline, fcntl.F_SETSIG, signal.SIGKILL)
        fcntl.fcntl(lifeline, fcntl.F_SETFL, fcntl.fcntl(lifeline, fcntl.F_GETFL) | os.O_ASYNC)
    spawn("worker-lifeline", wait, lambda _error: os._exit(1))


def _load(job: ChildJob) -> tuple[Source | None, Sequence[Middleware]]:
    """Import the modules; return the source, ``None`` if there is none, and the middleware of its worker."""
    prepare(job.preparation)
    if job.setup:
        module, _, function = job.setup.partition(":")
        getattr(importlib.import_module(module), function)()
    for name in job.modules:
        importlib.import_module(name)
    for worker in registered():
        for source in worker.handlers:
            if source.identity == job.identity:
                return source, (*tracing_middleware(worker.trace), *worker.middleware)
    return None, ()


def _forward_logs(child: _Child, job: ChildJob) -> None:
    """Send log records to the worker, unless logging is configured here."""
    root = logging.getLogger()
    if not root.handlers:
        root.addHandler(_ForwardingHandler(child))
        for name, level in job.log_levels.items():
            logging.getLogger(name).setLevel(level)


class _ForwardingHandler(QueueHandler):
    """Sends log records to the worker."""

    def __init__(self, child: _Child) -> None:
        super().__init__(cast("Any", None))
        self._child = child

    def enqueue(self, record: logging.LogRecord) -> None:
        # What the program has added may be of a class that cannot be pickled, or that the worker lacks.
        plain = {name: value for name, value in vars(record).items() if type(value) in _PLAIN}
        pickled = b""
        with suppress(Exception):
            pickled = pickle.dumps(record)
        self._child.send("log", pickled, plain)


class _Child:
    """The handler or the tasks of a queue, and the pipe to the worker."""

    def __init__(
        self, conn: Connection[Any, Any], source: Source, middleware: Sequence[Middleware]
    ) -> None:
        self._conn = conn
        self._source = source
        self._middleware = middleware
        # Held for a question and its reply: other threads of the handler may ask at the same time.
        self._lock = new_rlock()
        self._running = False

    def run(self) -> None:
        """Handle messages until the worker closes the pipe."""
        while True:
            try:
                request = self._conn.recv()
            except (EOFError, OSError):
                return
            self._running = True
            pid = os.getpid()
            kind, content = self._handled(request)
            if os.getpid() != pid:
                os._exit(0)  # the handler has forked, and this process has no worker
            with self._lock:
                self._running = False
                self._conn.send((kind, content))

    def _handled(self, request: HandlerRequest) -> tuple[str, object]:
        delivery = _RemoteDelivery(self, request, self._source.name)
        work = self._source.route(delivery.msg.subject)
        if work is None:  # the files were replaced after the start of the worker
            rule = f"the process of {self._source.name} has imported a version without this task"
            return "failure", _report(misfit(LookupError(rule)))
        context = Context(
            delivery,
            ContextActions(
                work=work,
                message_id=lambda _: request.message_id,
                publish=traced(partial(self.ask, "publish")),
                is_stopping=lambda: bool(self.ask("is_stopping")),
                ack=lambda _: bool(self.ask("ack")),
                progress=lambda _, progress: self.ask("progress", *progress),
                steps=partial(Steps, ask=partial(self.ask, "steps"), plan=planned_members),
            ),
        )
        context.origin = request.message_id
        context.maybe_done = request.maybe_done
        context.value_limit = request.value_limit
        log_context.set(delivery)
        try:
            delivery.handler = work.name
            if work.is_call:
                delivery.task = work.name
            returned = run_inside(self._middleware, work.run, context, context=context)
            if not isinstance(returned, Reply):
                check_returned(returned, done=True)
                return "returned", (None, context.value)
            try:
                pickle.dumps(returned)
            except Exception as error:  # noqa: BLE001 - another run would repeat what has succeeded
                text = "%s: no reply was sent for %r: it cannot be pickled: %s"
                log.error(text, self._source.name, delivery, one_line(error))  # noqa: TRY400
                return "returned", (None, None)
            return "returned", (returned, None)
        except BaseException as error:  # noqa: BLE001 - whatever it is, the attempt has failed
            return "failure", _report(error)

    def send(self, *content: object) -> None:
        """Send something that needs no reply."""
        with self._lock:
            self._conn.send(content)

    def ask(self, name: str, *arguments: object, **options: object) -> object:
        """Ask the worker, and return the reply."""
        question = (name, arguments, options)
        try:
            pickle.dumps(question)
        except Exception as error:
            raise errors.InvalidOptionError(
                "arguments", arguments, f"cannot be sent to the process of the worker: {error}"
            ) from error
        with self._lock:
            if not self._running:
                raise RuntimeError("the handler has returned: its context cannot be used any more")
            self._conn.send(question)
            kind, response = self._conn.recv()
        if kind == "error":
            raise cast("Exception", response)
        return cast("object", response)


class _RemoteDelivery(LeasedMessage):
    """A delivery whose lease is kept by the worker."""

    def __init__(self, child: _Child, request: HandlerRequest, handler: str) -> None:
        self._child = child
        self._deadline = request.deadline
        self.msg = _RemoteMsg(request.received, child)
        self.attempt = request.attempt
        self.state = request.state
        self.origin = Origin(handler, clock_ahead=request.clock_ahead)

    @property
    def give_up_at(self) -> float:
        """Time by the lease clock, which all processes share, at which this process is killed."""
        return self._deadline

    @give_up_at.setter
    def give_up_at(self, value: float) -> None:
        self._child.ask("extend", value)
        self._deadline = value

    def is_lost(self) -> bool:
        """Return whether the lease is over."""
        return bool(self._child.ask("is_lost"))


class _RemoteMsg(JetStreamMsg):
    """A message that the worker acknowledges: the handler process has no connection for anything else."""

    __slots__ = ("_child",)

    def __init__(self, received: tuple[Any, ...], child: _Child) -> None:
        super().__init__(cast("Any", received), None)
        self._child = child

    def ack(self) -> None:
        if self._open():
            self._child.ask("ack")
            self._settled = True

    def _refuse(self, *_: object, **_options: object) -> NoReturn:
        self._open()  # it may raise `MsgAlreadyAckdError`
        rule = "a handler process has no connection: return, raise, or use the context"
        raise errors.InvalidOptionError("pool", "processes", rule)

    ack_sync = nak = term = in_progress = respond = _refuse


def _report(error: BaseException) -> FailureReport:
    pickled, base = None, b""
    with suppress(Exception):
        pickled = pickle.dumps(error)
        pickle.loads(pickled)  # noqa: S301 - fails here rather than in the worker
    for cls in type(error).__mro__:
        with suppress(Exception):  # a class in a function cannot be pickled
            base = pickle.dumps(cls)
            break
    return FailureReport(
        pickled=pickled,
        base=base,
        name=type(error).__name__,
        place=(type(error).__module__, type(error).__qualname__),
        text=codec.text_of(error),
        traceback=traceback_text(error),
    )
