"""
The worker's end of its link to the supervisor.

A supervised process has two pipes, whose descriptors are in the environment variable `LINK_VARIABLE`:

1. To the supervisor go lines of JSON: a `Heartbeat` with ``ready`` when the worker handles messages, and one
   every second. A process whose heartbeats fail to come is killed.
2. From the supervisor come the lines ``stop`` and ``now``. The end of this pipe is the end of the
   supervisor: the worker then stops, too.
"""

from __future__ import annotations

import json
import os
import select
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import cache
from typing import TYPE_CHECKING, Final

from ... import codec
from ...locks import new_lock
from ...net.clock import Deadline
from ...records import record
from ..events import ignore_signals, spawn
from ..logs import log

if TYPE_CHECKING:
    from ..metrics import Snapshot

#: The descriptors to read and to write, the number of processes, and ``watch`` if files are reported.
LINK_VARIABLE: Final = "JETSTREAM_WORKER_LINK"
#: Interval of the heartbeats, in seconds.
_INTERVAL_S: Final = 1.0


@record
class Heartbeat(codec.Record):
    """A line to the supervisor."""

    ready: bool = False
    """Whether the worker handles messages from now on; the line says nothing else."""
    rss: int = 0
    """Bytes of memory, with the processes of handlers."""
    handled: int = 0
    """Number of handled messages."""
    recycle: str = ""
    """Why the process asks to be replaced; empty: it does not."""
    report: Mapping[str, object] | None = None
    """The `Snapshot` of the worker; ``None``: it does not run yet."""
    files: Sequence[str] = ()
    """Source files that were imported since the last heartbeat."""


class SupervisorLink:
    """The link of this process to its supervisor."""

    def __init__(self, commands: int, beats: int, count: int, *, watch: bool) -> None:
        self._commands = commands
        self._beats = beats
        self._watch = watch
        #: Number of processes that run the same worker.
        self.count: int = count
        self._lock = new_lock()
        self._on_command: Callable[[str], object] | None = None
        self._early: list[str] = []
        self._reported: set[str] = set()
        self._recycle = ""
        #: Returns the ids of further processes that belong to this one.
        self.processes: Callable[[], Iterable[int]] = lambda: ()
        #: Returns the numbers of the worker; ``None``: it does not run yet.
        self.report: Callable[[], Snapshot] | None = None
        for descriptor in (commands, beats):
            os.set_inheritable(descriptor, False)
        spawn("worker-heartbeat", self._run, lambda _error: self._command("stop"))

    def on_command(self, function: Callable[[str], object]) -> None:
        """Call a function with each command, ``stop`` or ``now``, also those that came before."""
        with self._lock:
            self._on_command = function
            early, self._early = self._early, []
        for command in early:
            function(command)

    def ready(self) -> None:
        """Report that the worker handles messages."""
        self._send(Heartbeat(ready=True))

    def recycle(self, reason: str) -> None:
        """Ask the supervisor to replace this process."""
        self._recycle = reason
        self.beat()

    def ignore_signals(self) -> None:
        """Let no signal change the status of this process, which is about to end; in the main thread."""
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                signal.signal(number, signal.SIG_IGN)

    def _run(self) -> None:
        next_beat = Deadline(0)
        buffer = b""
        while True:
            if select.select([self._commands], [], [], next_beat.left())[0]:
                data = os.read(self._commands, 4096)
                if not data:
                    log.warning("the supervisor is gone")
                    self._command("stop")
                    return
                *lines, buffer = (buffer + data).split(b"\n")
                for line in lines:
                    self._command(line.decode())
            if next_beat.expired():
                next_beat = Deadline(_INTERVAL_S)
                self.beat()

    def _command(self, command: str) -> None:
        with self._lock:
            function = self._on_command
            if function is None:
                self._early.append(command)
        if function is not None:
            function(command)

    def beat(self) -> None:
        """Send a heartbeat, with a report."""
        processes = [os.getpid(), *self.processes()]
        report, handled = None, 0
        if self.report is not None:
            with suppress(Exception):  # an error in a report must not end the heartbeats
                report = self.report()
                handled = sum(item["handled"] for item in report["handlers"])
        files = _module_files() - self._reported if self._watch else set()
        self._reported |= files
        self._send(
            Heartbeat(
                rss=sum(rss_of(process) for process in processes),
                handled=handled,
                recycle=self._recycle,
                report=report,
                files=sorted(files),
            )
        )

    def _send(self, line: Heartbeat) -> None:
        # Not `codec.dumps`: names of tasks and of files may have half pairs of surrogates, and gauges be NaN.
        data = json.dumps(codec.encode(line)).encode() + b"\n"
        # The other end is closed after the end of the supervisor, which the thread notices.
        with suppress(OSError), self._lock:
            while data:
                data = data[os.write(self._beats, data) :]


def supervisor_link() -> SupervisorLink | None:
    """
    Return the link of this process to its supervisor, opened by the first call, if any.

    The first call should come before the imports of the user, and in the main thread.
    """
    value = os.environ.pop(LINK_VARIABLE, None)  # not for the processes that this one starts
    if value is not None:
        commands, beats, count, *watch = value.split()
        _links.append(SupervisorLink(int(commands), int(beats), int(count), watch=bool(watch)))
        if threading.current_thread() is threading.main_thread():
            # Both are sent to all processes of a terminal; the supervisor decides what they mean.
            ignore_signals(signal.SIGINT, signal.SIGHUP)
    return _links[0] if _links else None


_links: Final[list[SupervisorLink]] = []


def rss_of(process: int) -> int:
    """Return the memory of a process in bytes; 0 where the system does not tell."""
    try:
        with open(f"/proc/{process}/statm", "rb") as file:  # noqa: PTH123 - called every second
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, IndexError, ValueError):
        return 0


@cache
def _installed() -> tuple[str, ...]:
    """Return where the files of Python and of installed packages are."""
    import sysconfig  # noqa: PLC0415 - for ``--reload``

    names = ("stdlib", "platstdlib", "purelib", "platlib")
    return tuple(sysconfig.get_path(name) + os.sep for name in names)


def _module_files() -> set[str]:
    """Return the source files of imported modules that do not belong to the installation."""
    found = set()
    for module in tuple(sys.modules.values()):
        file = getattr(module, "__file__", None)
        if isinstance(file, str) and not file.startswith(_installed()):
            found.add(os.path.abspath(file))  # noqa: PTH100 - called every second
    return found
