"""
Handlers in processes of their own: the side of the worker.

Rules:

1. Connection, pulls, leases and settlements stay in the worker. A handler process gets the data of one
   message at a time, through a pipe, and asks the worker for everything else.
2. A process is a new interpreter that imports the module of the handler: the worker has threads, so it
   must not be forked.
3. A process that exceeds the timeout of its handler is killed. One that ends fails its message, and no
   other. The next message gets a new process.
4. Every process ends with the worker: see `child`.
"""

from __future__ import annotations

import logging
import math
import os
import pickle
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from multiprocessing.connection import Pipe
from multiprocessing.spawn import get_preparation_data
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NoReturn

from ... import errors
from ...locks import new_lock
from ...net.clock import BackoffDelay, Deadline
from ..checks import unwrapped
from ..deliveries import LeasedMessage, lease_clock
from ..errors import (
    HandlerTimeoutError,
    ProcessStartError,
    RemoteTraceback,
    Retry,
    WorkerCrashedError,
)
from ..logs import log, status_text
from .child import ChildJob, FailureReport, HandlerRequest

if TYPE_CHECKING:
    from ... import JetStream
    from ..context import Context
    from ..source import Source, Work

#: Run by a new interpreter, which may not find this package by itself.
_BOOTSTRAP: Final = (
    "import sys; sys.path.insert(0, sys.argv[3]); "
    "from jetstream_sync.workers.runtime.child import main; main(int(sys.argv[1]), int(sys.argv[2]))"
)
#: Interval of the checks whether a silent process exists, in seconds.
_POLL_S: Final = 0.5
#: Seconds to write the stacks before SIGKILL, and to end after the pipe is closed.
_STACKS_S: Final = 0.2
_EXIT_S: Final = 1.0
#: Seconds after the timeout at which a lease is given up although its process was not killed.
_KILL_GRACE_S: Final = 10.0
#: Delays between attempts to start a process, in seconds.
_FIRST_DELAY_S: Final = 1.0
_MAX_DELAY_S: Final = 30.0


class HandlerProcesses:
    """The processes of one handler."""

    def __init__(
        self, source: Source, js: JetStream, is_stopping: Callable[[], bool], setup: str
    ) -> None:
        self._source = source
        self._js = js
        self._is_stopping = is_stopping
        self._job = _job(source, setup)
        self._closed = threading.Event()
        self._lock = new_lock()
        # --- under _lock ---
        self._idle: list[_HandlerProcess] = []
        self._all: set[_HandlerProcess] = set()
        self._busy: dict[LeasedMessage, _HandlerProcess] = {}
        # Those that were idle at the close.
        self._ending: list[_HandlerProcess] = []

    @property
    def pids(self) -> list[int]:
        """The ids of the processes."""
        with self._lock:
            return [item.popen.pid for item in self._all]

    def prepare(self) -> None:
        """Start one process."""
        try:
            process = self._start()
        except ProcessStartError as error:
            if self._is_stopping():
                return
            if error.by_signal:
                log.warning("%s, another one is started for the next message", error)
                return
            raise errors.InvalidOptionError("pool", "processes", str(error)) from None
        with self._lock:
            self._idle.append(process)

    def run(
        self, work: Work, delivery: LeasedMessage, context: Context, ack: Callable[[], bool]
    ) -> object:
        """Run the handler or task of a message; return its `Reply`, or raise its error. Any thread may call it."""
        process = self._acquire()
        usable = False
        with self._lock:
            self._busy[delivery] = process
        try:
            call = _Call(
                delivery,
                context,
                work.timeout,
                ack=ack,
                is_stopping=self._is_stopping,
                publish=self._js.publish,
                progress=context.progress,
                steps=work.state.ask,
            )
            failure: BaseException | None
            (returned, context.value), failure = process.run(call)
            usable = not isinstance(failure, MemoryError)
        except (WorkerCrashedError, HandlerTimeoutError) as error:
            if isinstance(error, HandlerTimeoutError):
                delivery.observer.count("timeouts")
            failure = Retry("the worker has stopped") if self._closed.is_set() else error
            raise failure.with_traceback(None) from None
        finally:
            with self._lock:
                del self._busy[delivery]
                if usable:
                    self._idle.append(process)
            if not usable:
                delivery.observer.count("restarts")
                self._discard(process)
        if failure is not None:
            raise failure
        return returned

    def kill(self, delivery: LeasedMessage) -> bool:
        """End the process that runs the handler for a message; return whether there was one."""
        with self._lock:
            process = self._busy.get(delivery)
            if process is not None:
                process.popen.kill()
        return process is not None

    def close(self) -> None:
        """Kill the processes that run a handler, and let the others end; see `wait_closed`."""
        self._closed.set()
        with self._lock:
            self._ending, self._idle = self._idle, []
            busy = self._all.difference(self._ending)
            self._all.clear()
        for process in busy:
            process.popen.kill()  # the thread that waits for it does the rest
        for process in self._ending:
            process.conn.close()

    def wait_closed(self, deadline: Deadline) -> None:
        """Wait for the processes that end, and kill those that have not ended at the deadline."""
        for process in self._ending:
            process.end(deadline)

    def _acquire(self) -> _HandlerProcess:
        """Return a process without a message; wait until one can be started."""
        delays = BackoffDelay(_FIRST_DELAY_S, _MAX_DELAY_S)
        while True:
            with self._lock:
                process = self._idle.pop() if self._idle else None
            if process is None:
                try:
                    return self._start()
                except ProcessStartError as error:
                    delay = delays.next()
                    log.error("%s, trying again in %g s", error, delay)  # noqa: TRY400
                if self._is_stopping() or self._closed.wait(delay):
                    raise Retry("the worker is stopping")
            elif process.popen.poll() is None:
                return process
            else:
                self._discard(process)  # killed while it had no message

    def _start(self) -> _HandlerProcess:
        """Start a process, and wait until it has imported the handler."""
        name = self._source.name
        with self._lock:  # a process is started before `close`, or not at all
            if self._closed.is_set():
                raise ProcessStartError(f"{name}: the worker is stopping")
            try:
                process = _HandlerProcess(name)
            except OSError as error:
                raise ProcessStartError(f"{name}: cannot start a process: {error}") from error
            self._all.add(process)
        try:
            process.prepare(self._job, self._is_stopping)
        except BaseException:
            self._discard(process)
            raise
        return process

    def _discard(self, process: _HandlerProcess) -> None:
        with self._lock:
            self._all.discard(process)
        process.kill()


class _Call:
    """One run of a handler in a process; ``replies`` has a function for each question of that process."""

    def __init__(
        self,
        delivery: LeasedMessage,
        context: Context,
        timeout: float,
        **replies: Callable[..., object],
    ) -> None:
        self._delivery = delivery
        self._replies = {**replies, "is_lost": delivery.is_lost, "extend": self._extend}
        self.deadline = 0.0
        self._extend(lease_clock() + timeout)
        msg = delivery.msg
        self.request = HandlerRequest(
            received=(
                msg.subject.encode("utf-8", "surrogateescape"),
                *(msg.ack_subject, msg.headers, msg.data),
            ),
            attempt=delivery.attempt,
            state=delivery.state,
            deadline=self.deadline,
            message_id=context.id,
            maybe_done=context.maybe_done,
            value_limit=context.value_limit,
            clock_ahead=delivery.origin.clock_ahead,
        )

    def _extend(self, deadline: float) -> None:
        """Let the handler run until this time by the lease clock."""
        self.deadline = deadline
        self._delivery.give_up_at = deadline + _KILL_GRACE_S

    def respond(
        self, question: str, arguments: Sequence[Any], options: Mapping[str, Any]
    ) -> tuple[str, object]:
        """Return the reply to a question of the handler process."""
        try:
            return "value", self._replies[question](*arguments, **options)
        except Exception as error:  # noqa: BLE001 - raised in the handler process
            return "error", error


class _HandlerProcess:
    """A process that runs a handler, one message at a time."""

    def __init__(self, name: str) -> None:
        self._name = name
        self.conn, theirs = Pipe()
        # The process ends when the write end is closed, at the latest by the end of the worker.
        lifeline, self._lifeline = os.pipe()
        package = Path(__file__).parents[3]
        descriptors = (theirs.fileno(), lifeline)
        try:
            self.popen = subprocess.Popen(
                [sys.executable, "-c", _BOOTSTRAP, *map(str, descriptors), str(package)],
                stdin=subprocess.DEVNULL,
                pass_fds=descriptors,
            )
        except OSError:
            self._close()
            raise
        finally:
            theirs.close()
            os.close(lifeline)

    def prepare(self, job: ChildJob, is_stopping: Callable[[], bool]) -> None:
        """Send the job, and wait until the process has imported the handler."""
        try:
            self.conn.send(job)
            refusal = self._receive(lambda: 0.0 if is_stopping() else math.inf)
        except HandlerTimeoutError:
            raise ProcessStartError(f"{self._name}: the worker is stopping") from None
        except (WorkerCrashedError, OSError) as error:
            failure = ProcessStartError(f"{self._name}: {error}")
            failure.by_signal = (self.popen.poll() or 0) < 0
            raise failure from error
        if refusal:
            raise ProcessStartError(refusal)

    def run(self, call: _Call) -> tuple[tuple[object, bytes | None], BaseException | None]:
        """Run the handler for a message; return its `Reply` and its encoded return value, or its error."""
        try:
            self.conn.send(call.request)
            while True:
                kind, *content = self._receive(lambda: call.deadline)
                if kind == "returned":
                    return content[0], None
                if kind == "failure":
                    return (None, None), _error_of(content[0])
                if kind == "log":
                    _log(*content)
                else:
                    self.conn.send(call.respond(kind, *content))
        except OSError:
            self._crashed()
        except HandlerTimeoutError:
            # The handlers of this signal write the stacks, also while a C function keeps the GIL.
            self.popen.send_signal(signal.SIGQUIT)
            with suppress(subprocess.TimeoutExpired):
                self.popen.wait(_STACKS_S)
            raise

    def _receive(self, deadline: Callable[[], float]) -> Any:
        while not self.conn.poll(max(0.0, min(_POLL_S, deadline() - lease_clock()))):
            if lease_clock() >= deadline():
                raise HandlerTimeoutError("the handler exceeded its timeout and was killed")
            # Another process may have inherited the pipe, so it does not always end.
            if self.popen.poll() is not None and not self.conn.poll():
                self._crashed()
        try:
            return self.conn.recv()
        except (EOFError, OSError):
            self._crashed()

    def _crashed(self) -> NoReturn:
        with suppress(subprocess.TimeoutExpired):
            self.popen.wait(_EXIT_S)
        self.popen.kill()
        status = self.popen.wait()
        raise WorkerCrashedError(f"the process of the handler ended with {status_text(status)}")

    def kill(self) -> None:
        """Kill the process."""
        self.popen.kill()
        self.popen.wait()
        self._close()

    def end(self, deadline: Deadline) -> None:
        """Kill the process unless it ends by itself, because its pipe is closed."""
        with suppress(subprocess.TimeoutExpired):
            self.popen.wait(deadline.left())
        self.kill()

    def _close(self) -> None:
        self.conn.close()
        os.close(self._lifeline)


def _job(source: Source, setup: str) -> ChildJob:
    """Return how a new process finds the handler."""
    preparation = get_preparation_data(f"handler-{source.name}")
    del preparation["authkey"], preparation["start_method"]
    names = ("", log.name)
    modules = [work.module for work in source.works]
    # That of a task may have been given to it by a decorator.
    modules += [unwrapped(work.function).__module__ for work in source.works if not work.is_call]
    return ChildJob(
        preparation=preparation,
        modules=modules,
        setup=setup,
        identity=source.identity,
        log_levels={name: logging.getLogger(name).level for name in names},
    )


def _error_of(report: FailureReport) -> BaseException:
    """Return an exception that is, or stands for, the one that a handler has raised."""
    error = None
    if report.pickled is not None:
        with suppress(Exception):
            error = pickle.loads(report.pickled)  # noqa: S301 - from a process of this program
    if not isinstance(error, BaseException):
        base: type[BaseException] = Exception
        with suppress(Exception):
            base = pickle.loads(report.base)  # noqa: S301 - the same
        error = _stand_in(report, base) or _stand_in(report, Exception)
    assert error is not None
    error.__cause__ = RemoteTraceback(report.traceback)
    return error


def _stand_in(report: FailureReport, base: type[BaseException]) -> BaseException | None:
    """Return an exception of a class with the name and the text of another one."""
    module, qualified_name = report.place
    namespace = {
        "__str__": lambda _self: report.text,
        "__module__": module,
        "__qualname__": qualified_name,
    }
    try:
        stand_in: type[BaseException] = type(report.name, (base,), namespace)
        return stand_in.__new__(stand_in, report.text)
    except TypeError:
        return None


def _log(pickled: bytes, plain: dict[str, Any]) -> None:
    """Handle a log record of a handler process as one of this thread."""
    record = logging.makeLogRecord(plain)
    with suppress(Exception):  # a class of the program may not exist here
        record = pickle.loads(pickled)  # noqa: S301 - from a process of this program
    record.threadName = threading.current_thread().name
    logger = logging.getLogger(record.name)
    if logger.isEnabledFor(record.levelno):
        logger.handle(record)
