"""The events that the main thread of a worker waits for, and the signals and threads that send them."""

from __future__ import annotations

import queue
import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from .logs import log


@contextmanager
def signals(numbers: Iterable[int], on_signal: Callable[[int], object]) -> Iterator[None]:
    """Handle signals for the duration of a block, if this is the main thread; else leave them alone."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {
        number: signal.signal(number, lambda number, _frame: on_signal(number))
        for number in numbers
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)


def ignore_signals(*numbers: int) -> None:
    """Ignore signals; unlike with SIG_IGN, the programs that this process starts do not."""
    for number in numbers:
        signal.signal(number, lambda _number, _frame: None)


def hold_hangup(*, is_held: bool) -> None:
    """Have the system keep a SIGHUP until it is known what it means, or deliver it now."""
    signal.pthread_sigmask(signal.SIG_BLOCK if is_held else signal.SIG_UNBLOCK, [signal.SIGHUP])


@dataclass(frozen=True)
class RunEvent:
    """
    Something that the calling thread of `Worker.run` waits for.

    Without a value, it has to look at the handlers: one may have become ready or idle, or its consumer has changed.
    """

    stops: bool = False
    """Stop the worker: a signal, a supervisor or `Worker.stop` asks for it."""
    signal_number: int = 0
    """The signal that asks for it; 0: none."""
    error: BaseException | None = None
    """Stop the worker because of this error."""
    call: Callable[[], object] | None = None
    """Make this call."""


class StopOnce:
    """
    Passes on the first request to stop, and those to stop at once, for a supervised worker.

    A supervisor and its workers may all get the same signal, from a terminal or a service manager, and
    the supervisor asks its workers to stop, too. So a second request does not mean "at once" here.
    """

    def __init__(self, events: queue.SimpleQueue[RunEvent]) -> None:
        self._events = events
        self._stopping = False

    def __call__(self, event: RunEvent) -> None:
        """Pass on the first event."""
        if not self._stopping:
            self._stopping = True
            self._events.put(event)

    def command(self, command: str) -> None:
        """Handle a command of the supervisor."""
        self(RunEvent(stops=True))
        if command == "now":
            self._events.put(RunEvent(stops=True))


def spawn(
    name: str, target: Callable[[], None], crashed: Callable[[BaseException], object]
) -> threading.Thread:
    """Start a daemon thread."""

    def run() -> None:
        try:
            target()
        except BaseException as error:
            log.exception("thread %s crashed", name)
            crashed(error)

    thread = threading.Thread(target=run, name=name, daemon=True)
    thread.start()
    return thread
