"""
The supervisor: starts worker processes, replaces them, and stops them.

Rules:

1. The supervisor never connects and never imports the code of the user. Each process is a new
   interpreter, so a reload sees new code.
2. The calling thread changes the state and waits for events. A thread per process reads its pipe,
   and signal handlers add events; see `heartbeat` for the lines.
3. Processes are stopped through their pipe. A signal to the whole process group or control group, as
   the terminal and systemd send it, therefore stops each of them once.
4. A process is replaced by one that is ready already, one process at a time.
"""

from __future__ import annotations

import json
import logging
import os
import queue
import signal
import subprocess
import time
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, cast

from ... import codec
from ...net.clock import FOREVER, BackoffDelay, Deadline
from ..checks import check_count, check_option
from ..events import signals, spawn
from ..logs import log, status_text
from .heartbeat import LINK_VARIABLE, Heartbeat

if TYPE_CHECKING:
    from ..metrics import Snapshot
    from .health import Processes

#: Delays before a process is started again, in seconds, and the uptime that resets them.
_FIRST_DELAY_S: Final = 1.0
_MAX_DELAY_S: Final = 30.0
_RESET_S: Final = 60.0
#: Number of processes in a row that may end before they are ready.
_MAX_EARLY_ENDS: Final = 5
#: Seconds without a heartbeat after which a process is killed, and the time to write its stacks.
_SILENCE_S: Final = 30.0
_STACKS_S: Final = 2.0
#: Seconds between the request to stop at once and SIGKILL.
_KILL_S: Final = 10.0
#: Interval of checks, in seconds.
_TICK_S: Final = 0.25
#: A longer interval means that the supervisor itself was suspended, in seconds.
_SUSPENDED_S: Final = 5.0
#: Seconds to wait for the last lines of a process that has ended.
_LAST_LINES_S: Final = 1.0


@dataclass(frozen=True, kw_only=True)
class RecycleRules:
    """When a worker process is replaced; ``None``: never."""

    max_messages: int | None = None
    """Number of handled messages."""
    max_age: float | None = None
    """Seconds since its start."""
    max_rss: int | None = None
    """Bytes of memory, with its handler processes. Linux only."""

    def __post_init__(self) -> None:
        """Check the values."""
        for name in ("max_messages", "max_age", "max_rss"):
            value = getattr(self, name)
            check_option(name, value, value is None or value > 0, "must be above 0")

    def exceeded(self, age: float, beat: Heartbeat) -> str:
        """Return which limit a process exceeds, or why it asks to be replaced; empty: neither."""
        if beat.recycle:
            return beat.recycle
        if self.max_messages is not None and beat.handled >= self.max_messages:
            return f"it has handled {beat.handled} messages"
        if self.max_age is not None and age >= self.max_age:
            return f"it is {age:.0f} seconds old"
        if self.max_rss is not None and beat.rss >= self.max_rss:
            return f"it uses {beat.rss / 2**20:.0f} MiB"
        return ""


class _Process:
    """A worker process."""

    def __init__(self, number: int, process: subprocess.Popen[bytes], commands: int) -> None:
        self.number = number
        self.popen = process
        self._commands: int | None = commands
        self.started_at = time.monotonic()
        #: When it counts as silent; each line from it puts that off.
        self.silent_at: Deadline = Deadline(_SILENCE_S)
        #: Whether it has reported that it handles messages, so that it may hold some.
        self.was_ready: bool = False
        #: The last heartbeat.
        self.beat: Heartbeat = Heartbeat()
        #: When it is killed, and when its last lines are not awaited any more, after its end.
        self.kill_at: Deadline = FOREVER
        self.read_until: Deadline | None = None
        #: Whether everything was read from its pipe.
        self.read = False

    def __repr__(self) -> str:
        return f"worker process {self.number} (pid {self.popen.pid})"

    def send(self, command: str) -> None:
        """Send a command; a process that has ended does not get it."""
        if self._commands is not None:
            with suppress(OSError):
                os.write(self._commands, f"{command}\n".encode())

    def stop(self) -> None:
        """Ask the process to stop after the handlers that run."""
        self.send("stop")
        if not self.was_ready:
            self.signal(signal.SIGTERM)  # it may be importing modules for a long time

    def signal(self, number: int) -> None:
        """Send a signal."""
        with suppress(OSError):
            self.popen.send_signal(number)

    def close(self) -> None:
        """Close the pipe to the process, which has ended."""
        if self._commands is not None:
            os.close(self._commands)
            self._commands = None


class _Slot:
    """The place of one worker process, and of its successor."""

    def __init__(self) -> None:
        self.process: _Process | None = None
        self.successor: _Process | None = None
        self._delays = BackoffDelay(_FIRST_DELAY_S, _MAX_DELAY_S)
        #: When a process may be started here.
        self.start_at = Deadline(0)

    def postpone(self, uptime: float) -> float:
        """Delay the next start after an unexpected end; return the delay."""
        if uptime >= _RESET_S:
            self._delays.reset()
        delay = self._delays.next()
        self.start_at = Deadline(delay)
        return delay


class Supervisor:
    """
    Runs a command in several processes until it is stopped.

    The command must run a `Worker` in its main thread. A process that ends is started again, after 1
    to 30 seconds. Five processes in a row that end before they are ready end the supervisor.
    """

    def __init__(
        self,
        command: Sequence[str],
        processes: int,
        environment: Mapping[str, str],
        limits: RecycleRules,
        observer: Processes,
        *,
        reload: bool,
    ) -> None:
        check_count("processes", processes)
        check_option("processes", processes, os.name == "posix", "needs a POSIX system")
        self._command = list(command)
        self._environment = dict(environment)
        self._limits = limits
        self._reload = reload
        self._observer = observer
        self._events: queue.SimpleQueue[_ProcessEvent] = queue.SimpleQueue()
        self._slots = [_Slot() for _ in range(processes)]
        #: All processes that have not ended, also those that are being stopped.
        self._alive: list[_Process] = []
        self._outdated: deque[_Slot] = deque()
        #: The slot whose process is being replaced, and the old process while it stops.
        self._replacing: _Slot | None = None
        self._leaving: _Process | None = None
        self._number = 0
        self._early_ends = 0
        self._stops = 0
        self._status = 0
        # When the supervisor has not checked its processes for long.
        self._suspended_at = FOREVER
        #: Modification times of source files.
        self._files: dict[str, float] = {}

    def stop(self) -> None:
        """Stop as SIGTERM does; any thread, and a signal handler, may call it."""
        self._events.put(_ProcessEvent(signal_number=signal.SIGTERM))

    def run(self) -> int:
        """
        Run the processes until SIGTERM, SIGINT or `stop`; a second one stops them at once.

        SIGHUP replaces all processes by new ones. SIGQUIT is passed on: each process writes its stacks.
        """
        numbers = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)
        with signals(numbers, lambda number: self._events.put(_ProcessEvent(signal_number=number))):
            log.info("supervisor: starting %d worker processes", len(self._slots))
            while not (self._stops and not self._alive):
                self._tick()
                with suppress(queue.Empty):
                    self._handle(self._events.get(timeout=_TICK_S))
        log.info("supervisor: stopped with status %d", self._status)
        return self._status

    # --- events ---------------------------------------------------------------------------------

    def _handle(self, event: _ProcessEvent) -> None:
        process = event.process
        if process is not None:
            if event.line is None:
                process.read = True
            else:
                self._heard(process, event.line)
        elif event.signal_number == signal.SIGHUP:
            self._replace_all("SIGHUP")
        elif event.signal_number == signal.SIGQUIT:
            for item in [item for item in self._alive if item.was_ready]:
                item.signal(signal.SIGQUIT)
        else:
            self._stop(f"signal {event.signal_number}")

    def _heard(self, process: _Process, line: Heartbeat) -> None:
        """Handle a line from a process."""
        process.silent_at = Deadline(_SILENCE_S)
        for file in line.files:
            self._files.setdefault(file, _modified(file))
        if line.report is not None:
            self._observer.report(process.number, cast("Snapshot", line.report))
        if not line.ready:
            process.beat = line
            return
        process.was_ready = True
        self._early_ends = 0
        slot = self._replacing
        if slot is not None and process is slot.successor:
            self._leaving = slot.process
            slot.process, slot.successor = process, None
            if self._leaving is not None:
                self._leaving.stop()

    def _stop(self, why: str) -> None:
        """Stop all processes; at the second time, at once."""
        self._stops += 1
        log.info("supervisor: stopping%s: %s", " at once" if self._stops > 1 else "", why)
        if self._stops == 1:
            self._observer.stop()
        for process in self._alive:
            if self._stops == 1:
                process.stop()
            else:
                process.send("now")
                if process.kill_at is FOREVER:
                    process.kill_at = Deadline(_KILL_S)

    # --- processes ------------------------------------------------------------------------------

    def _start(self) -> _Process | None:
        """Start a process; return it, or ``None`` if the system refuses."""
        commands_read, commands_write = os.pipe()
        beats_read, beats_write = os.pipe()
        watch = " watch" if self._reload else ""
        link = {LINK_VARIABLE: f"{commands_read} {beats_write} {len(self._slots)}{watch}"}
        try:
            popen = subprocess.Popen(
                self._command,
                env={**os.environ, **self._environment, **link},
                pass_fds=(commands_read, beats_write),
            )
        except OSError as error:
            log.error("supervisor: cannot start a process: %s", error)  # noqa: TRY400
            os.close(commands_write)
            os.close(beats_read)
            return None
        finally:
            os.close(commands_read)
            os.close(beats_write)
        self._number += 1
        process = _Process(self._number, popen, commands_write)
        self._alive.append(process)
        name = f"supervisor-read-{process.number}"
        spawn(name, lambda: self._read(process, beats_read), lambda _error: None)
        log.debug("supervisor: started %r", process)
        return process

    def _read(self, process: _Process, beats: int) -> None:
        """Add the lines of a process to the events; the function of a thread."""
        with open(beats, "rb") as pipe:
            for line in pipe:
                beat = codec.decode(Heartbeat, json.loads(line))
                self._events.put(_ProcessEvent(process=process, line=beat))
        self._events.put(_ProcessEvent(process=process))

    def _tick(self) -> None:
        """Do what is due."""
        self._observer.tell_systemd()  # also while no process reports
        if self._suspended_at.expired():
            for process in self._alive:
                process.silent_at = Deadline(_SILENCE_S)  # it may have been suspended, too
        self._suspended_at = Deadline(_SUSPENDED_S)
        for process in tuple(self._alive):
            self._check_alive(process)
        if os.getpid() == 1:
            self._reap_orphans()
        if self._stops:
            return
        for slot in self._slots:
            if slot.process is None and slot.start_at.expired():
                slot.process = self._start()
                if slot.process is None:
                    slot.postpone(0.0)
        if self._reload:
            self._check_files()
        self._check_limits()
        self._replace_next()

    def _check_alive(self, process: _Process) -> None:
        """Notice the end of a process; kill one that does not answer."""
        status = process.popen.poll()
        if status is not None:
            # Another process may have inherited the pipe, so its end does not always come.
            process.read_until = process.read_until or Deadline(_LAST_LINES_S)
            if process.read or process.read_until.expired():
                self._ended(process, status)
        elif process.kill_at is not FOREVER:
            if process.kill_at.expired():
                process.signal(signal.SIGKILL)
        elif process.silent_at.expired():
            log.error("supervisor: %r is silent for %g s: killing it", process, _SILENCE_S)
            process.kill_at = Deadline(_STACKS_S)
            if process.was_ready:
                process.signal(signal.SIGQUIT)

    def _ended(self, process: _Process, status: int) -> None:
        """Handle the end of a process."""
        self._alive.remove(process)
        process.close()
        self._observer.end(process.number)
        what = status_text(status)
        if self._stops:
            # Before it is ready it holds no message, and SIGTERM may end it.
            if process.was_ready and status and not self._status:
                self._status = 128 - status if status < 0 else status
            return
        if process is self._leaving:
            level = logging.WARNING if status else logging.INFO
            log.log(level, "supervisor: %r was replaced; %s", process, what)
            self._leaving = self._replacing = None
            return
        slot = next(slot for slot in self._slots if process in {slot.process, slot.successor})
        delay = slot.postpone(time.monotonic() - process.started_at)
        if process is slot.successor:
            log.error("supervisor: %r cannot replace the old process: %s", process, what)
            slot.successor = self._replacing = None
            self._outdated.clear()
            return
        slot.process = None
        if slot.successor is not None:
            slot.process, slot.successor, self._replacing = slot.successor, None, None
        text = "supervisor: %r has ended, starting another in %g s: %s"
        log.log(logging.WARNING if status else logging.INFO, text, process, delay, what)
        if not process.was_ready:
            self._early_ends += 1
            if self._early_ends >= _MAX_EARLY_ENDS and not self._reload:
                self._status = (128 - status if status < 0 else status) or 1
                self._stop(f"{_MAX_EARLY_ENDS} processes in a row ended before they were ready")

    def _reap_orphans(self) -> None:
        """Reap processes whose parents have ended: the first process of a container inherits them."""
        own = {item.popen.pid for item in self._alive}
        while True:
            try:
                found = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            except ChildProcessError:
                return
            if found is None or found.si_pid in own:
                return  # the others are found when this one was waited for
            os.waitpid(found.si_pid, 0)

    # --- replacement ----------------------------------------------------------------------------

    def _replace_all(self, why: str) -> None:
        if not self._stops:
            log.info("supervisor: replacing all processes: %s", why)
            self._outdated = deque(self._slots)
            for slot in self._slots:
                slot.start_at = Deadline(0)

    def _check_limits(self) -> None:
        for slot in self._slots:
            process = slot.process
            if process is None or not process.was_ready or slot in self._outdated:
                continue
            if slot is self._replacing or not slot.start_at.expired():
                continue
            why = self._limits.exceeded(time.monotonic() - process.started_at, process.beat)
            if why:
                log.info("supervisor: replacing %r: %s", process, why)
                self._outdated.append(slot)

    def _replace_next(self) -> None:
        """Start the successor of the next process to replace, if no other is being replaced."""
        while self._outdated and self._replacing is None:
            slot = self._outdated.popleft()
            if slot.process is not None:  # otherwise it is started again anyway
                slot.successor = self._start()
                if slot.successor is None:
                    slot.postpone(0.0)
                else:
                    self._replacing = slot

    def _check_files(self) -> None:
        changed = [file for file, before in self._files.items() if _modified(file) != before]
        if changed:
            self._files.update((file, _modified(file)) for file in changed)
            self._replace_all(f"{', '.join(sorted(changed))} changed")


@dataclass(frozen=True, kw_only=True)
class _ProcessEvent:
    """A signal, or a line from a process; without either, the end of its lines."""

    signal_number: int = 0
    process: _Process | None = None
    line: Heartbeat | None = None


def _modified(file: str) -> float:
    try:
        return os.stat(file).st_mtime  # noqa: PTH116 - called for many files
    except OSError:
        return 0.0
