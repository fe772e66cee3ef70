"""
One run of a worker: its threads, and the events of the thread that called `Worker.run`.

Rules:

1. The calling thread waits for events in a queue. Between them it keeps pins, and reads the state of consumers
   and schedules again. Messages are pulled, handled and settled on other threads. Signal handlers only add an
   event, which `queue.SimpleQueue` permits.
2. Stopping: pulls end, waiting messages are handled for a third of the time and then returned, running
   handlers may finish, settlements are confirmed, the connection is drained. After the drain timeout, or
   at a second signal, the running messages are returned and the threads are left behind.
"""

from __future__ import annotations

import gc
import queue
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from functools import partial
from itertools import cycle
from typing import TYPE_CHECKING, Final

from .. import errors
from ..durations import counted
from ..exit_status import ExitStatus, exit_status
from ..net.clock import FOREVER, BackoffDelay, Deadline
from .dead_letters import DeadLetterWriter
from .deliveries import LeaseKeeper, Settlements
from .events import RunEvent, spawn
from .limits import LIMITS_BUCKET, Limit, SharedLimits
from .logs import log
from .observer import Observer
from .openers import bucket_opener
from .operations.health import Monitor, Processes, WorkerPhase
from .operations.heartbeat import SupervisorLink
from .options import DefinedWorker
from .resources import SetupStep, create_missing
from .running import RunningReporter
from .runtime.consumers import check_dead_letters, check_parking
from .runtime.membership import receiver_of
from .runtime.processing import Shared
from .runtime.threads import Runner
from .schedules import LEASES, Schedules
from .source import Source
from .tracing import tracing_middleware

if TYPE_CHECKING:
    from .. import Connection, JetStream
    from .runtime.processes import HandlerProcesses

#: Interval at which the lengths of the leases are read again, in seconds.
_REFRESH_S: Final = 60.0
#: The same with `Worker.http`, because the state of the consumers is among the metrics, and with a group,
#: whose members are looked after.
_SAMPLE_S: Final = 5.0
#: Delays between attempts to start while the server is unreachable, in seconds.
_FIRST_START_DELAY_S: Final = 0.25
_MAX_START_DELAY_S: Final = 5.0
#: Interval of the checks whether the connection is open, or all threads have ended, in seconds.
_POLL_S: Final = 0.1
#: Longest wait of the main thread, in seconds. A signal that the system delivers to another thread does
#: not interrupt the wait, and its handler runs afterwards.
_SIGNAL_POLL_S: Final = 0.5
#: Maximum time for receiving what is in flight for all handlers after a stop, in seconds.
_STOP_PULLING_S: Final = 2.0
#: The share of the drain timeout in which messages that were received before the stop are started.
_BUFFERED_SHARE: Final = 1 / 3
#: Interval at which a worker that ends when its consumers are empty reads their state, in seconds.
_BURST_POLL_S: Final = 0.2
#: Longest interval at which leases and unconfirmed settlements are checked, in seconds.
_MAX_TICK_S: Final = 0.25
#: Timeout of the requests for limits of all processes, in seconds.
_LIMITS_S: Final = 2.0
#: Timeout of the end of handler processes without a message, in seconds.
_CLOSE_S: Final = 1.0
#: Timeouts of the last flush, in seconds: after a clean stop, and after the drain timeout.
_LAST_DRAIN_S: Final = 5.0
_LAST_FLUSH_S: Final = 1.0


@contextmanager
def existing_objects_kept() -> Iterator[None]:
    """Exempt the objects that exist now from garbage collection: modules, classes, settings."""
    # Each message creates objects, so full collections are frequent, and each would stop all handlers for 20
    # milliseconds or more. The objects that exist when a worker has started are hardly ever garbage.
    was_frozen = gc.get_freeze_count() > 0
    gc.freeze()
    try:
        yield
    finally:
        if not was_frozen:
            gc.unfreeze()


class WorkerRun:
    """One run of a worker."""

    def __init__(
        self,
        worker: DefinedWorker,
        nc: Connection,
        events: queue.SimpleQueue[RunEvent],
        observer: Observer,
        monitor: Monitor,
        link: SupervisorLink | None,
    ) -> None:
        self._worker = worker
        self._monitor = monitor
        self._observer = observer
        self._nc = nc
        self._events = events
        self._link = link
        self._js: JetStream = nc.jetstream()
        self._status = ExitStatus.OK
        self._ended = threading.Event()
        self._runners: list[Runner] = []
        self._pools: list[HandlerProcesses] = []
        # What the consumers had delivered at the last check, if all of them were empty.
        self._delivered: list[int] = []
        self._reporter = RunningReporter(worker.name, worker.report, monitor)
        self._schedules = Schedules(self._js, worker.name, worker.schedules, worker.handlers)
        self._keeper = LeaseKeeper(nc, lambda: events.put(RunEvent(call=self._upkeep.refresh_all)))
        self._settlements = Settlements(nc, self._keeper)
        self._shared = Shared(
            js=self._js,
            keeper=self._keeper,
            settlements=self._settlements,
            dead_letters=partial(DeadLetterWriter, self._js, worker.name),
            middleware=(*tracing_middleware(worker.trace), *worker.middleware),
            observer=observer,
            is_stopping=lambda: monitor.is_stopping,
            on_fatal=lambda error: events.put(RunEvent(error=error)),
            on_change=lambda: events.put(RunEvent()),
            on_thread_end=worker.on_thread_end,
            has_committed=worker.has_committed,
            leases=bucket_opener(lambda: nc, LEASES.bucket, self._create_missing),
            process_setup=worker.process_setup,
            limits={name: Limit(count) for name, count in worker.limits.items()},
            shared_limits=SharedLimits(
                bucket_opener(lambda: nc, LIMITS_BUCKET, self._create_missing, _LIMITS_S)
            ),
        )

    def run(self, *, burst: bool) -> int:
        """Run the worker, with ``burst`` only until its consumers are empty; return the exit status."""
        if not self._start():
            return self._status
        self._wait_for_stop(burst=burst)
        self._monitor.enter(WorkerPhase.STOPPING)
        self._monitor.tell_systemd()
        self._observer.emit("drain")
        clean = self._drain(Deadline(self._worker.drain_timeout))
        self._ended.set()
        abandoned = self._settlements.abandoned
        if abandoned:
            text = "worker %r: not confirmed: %s, so messages may be delivered again"
            log.error(text, self._worker.name, counted(abandoned, "settlement"))
        if abandoned or not clean:
            self._status = self._status or ExitStatus.FAILED
        log.info("worker %r has stopped with status %d", self._worker.name, self._status)
        return self._status

    # --- starting -------------------------------------------------------------------------------

    def _start(self) -> bool:
        """Prepare the consumers and start the threads; return whether the worker runs."""
        worker, name = self._worker, self._worker.name
        delays = BackoffDelay(_FIRST_START_DELAY_S, _MAX_START_DELAY_S)
        while True:
            if not self._wait_connected():
                return False
            try:
                for step in self._create_missing():
                    log.warning("worker %r: setup would %s", name, step)
                self._runners = [self._prepare(source) for source in self._worker.handlers]
                self._pools = [item.processes for item in self._runners if item.processes]
                if self._worker.ensure != "none":
                    self._schedules.store()
                break
            except errors.Error as error:
                # A closed connection is not opened again.
                if not error.transient or self._nc.is_closed:
                    log.error("worker %r cannot start: %s", name, error)  # noqa: TRY400
                    self._status = exit_status(error)
                    return False
                log.warning("worker %r waits for the server: %s", name, error)
                if self._stopped_within(delays.next()):
                    return False
        self._upkeep = _Upkeep(worker, self._nc, self._runners, self._schedules, self._link)
        shortest = min(runner.consumer.times.shortest for runner in self._runners)
        interval = min(shortest / 12, _MAX_TICK_S)
        fatal = self._shared.on_fatal
        keeper = spawn("worker-leases", lambda: self._maintain(interval), fatal)
        works = [work for source in self._worker.handlers for work in source.works]
        if any(work.soft_timeout is not None for work in works):
            spawn("worker-soft-timeouts", self._interrupt_overdue, fatal)
        if self._worker.shared_limits:
            spawn("worker-limits", lambda: self._shared.shared_limits.run(self._ended), fatal)
        for runner in self._runners:
            runner.start()
        self._monitor.attach(self._keeper, self._runners, keeper)
        self._reporter.start(self._nc)
        return True

    def _create_missing(self, *_: object) -> list[SetupStep]:
        """Create all that is missing, unless the worker must not; return the steps that are left."""
        if self._worker.ensure == "none":
            return []
        return create_missing(self._js, self._worker.resources(self._nc))

    def _wait_connected(self) -> bool:
        """Wait until the connection is open or has failed; return whether the worker may start."""
        if not self._nc.is_connected:
            log.warning("worker %r waits for the server", self._worker.name)
        while not (self._nc.is_connected or self._nc.is_closed):
            if self._stopped_within(_POLL_S):
                return False
        return True

    def _prepare(self, source: Source) -> Runner:
        may_change = self._worker.ensure != "none"
        consumer, puller = receiver_of(self._js, source, may_change=may_change)
        if source.needs_parking:
            check_parking(self._js, source)
        self._check_dead_letters(source)
        return Runner(source, self._shared, consumer, puller)

    def _check_dead_letters(self, source: Source) -> None:
        # Without a place for its dead letter, a message that fails is delivered again and again.
        if source.group is None:
            try:
                check_dead_letters(self._js, source, source.stream)
            except errors.InvalidOptionError as error:
                log.error("worker %r: %s: %s", self._worker.name, source.name, error)  # noqa: TRY400
            except errors.PermissionsError:
                pass  # the user may not read its config

    def _maintain(self, interval: float) -> None:
        """Renew leases and repeat settlements until the worker has stopped."""
        while not self._ended.wait(interval):
            self._keeper.tick()
            for runner in self._runners:
                runner.report_overdue()
            self._settlements.tick()

    def _interrupt_overdue(self) -> None:
        """Interrupt handlers over their ``soft_timeout``, on a thread that never waits for the server."""
        while not self._ended.wait(_MAX_TICK_S):
            self._shared.soft_timeouts.tick()

    # --- running --------------------------------------------------------------------------------

    def _stopped_within(self, seconds: float) -> bool:
        """Wait for a request to stop; return whether there is one."""
        event = self._next_event(seconds)
        return event is not None and event.stops

    def _next_event(self, seconds: float) -> RunEvent | None:
        self._monitor.tell_systemd()
        try:
            event = self._events.get(timeout=seconds)
        except queue.Empty:
            return None
        if event.call is not None:
            event.call()
        return event

    def _announce_ready(self) -> None:
        """Report once that the worker is ready, as soon as all of its threads are."""
        if self._monitor.phase is not WorkerPhase.STARTING or not all(
            runner.is_prepared for runner in self._runners
        ):
            return
        log.info(
            "worker %r is ready: %s", self._worker.name, counted(len(self._runners), "handler")
        )
        self._monitor.enter(WorkerPhase.RUNNING)
        self._observer.emit("ready")
        if self._link is not None:
            self._link.processes = lambda: [pid for pool in self._pools for pid in pool.pids]
            self._link.ready()

    def _is_drained(self) -> bool:
        """Return whether all consumers are empty, and were at the last check."""
        before, self._delivered = self._delivered, []
        for runner in self._runners:
            count = runner.delivered_if_empty()
            if count is None:
                self._delivered = []
                return False
            self._delivered.append(count)
        # Twice the same: a handler may publish for a consumer that was found empty before.
        return self._delivered == before

    def _wait_for_stop(self, *, burst: bool) -> None:
        """Return when the worker has to stop."""
        upkeep = self._upkeep
        upkeep_at = Deadline(_SIGNAL_POLL_S)
        poll_s = _BURST_POLL_S if burst else _SIGNAL_POLL_S
        while True:
            self._announce_ready()
            event = self._next_event(0.0 if upkeep.has_more else poll_s)
            if event is not None and self._must_stop(event):
                return
            if burst and event is None and self._is_drained():
                log.info("worker %r is stopping: all consumers are empty", self._worker.name)
                return
            # One of the next events may be a request to stop. Many slow hooks must not keep the rest away.
            if self._events.empty() or upkeep_at.expired():
                upkeep_at = Deadline(_SIGNAL_POLL_S)
                upkeep.step()

    def _must_stop(self, event: RunEvent) -> bool:
        """Return whether the worker has to stop because of an event, and log the reason."""
        name = self._worker.name
        if event.stops:
            why = f"signal {event.signal_number}" if event.signal_number else "stop()"
            log.info("worker %r is stopping: %s", name, why)
            return True
        if event.error is None:
            return False
        if isinstance(event.error, MemoryError) and self._link is not None:
            self._link.recycle("MemoryError in a handler")
            return False
        log.error("worker %r is stopping: %s", name, event.error)
        self._status = exit_status(event.error)
        return True

    # --- stopping -------------------------------------------------------------------------------

    def _drain(self, deadline: Deadline) -> bool:
        """Stop the handlers; return whether they have ended in time, and no settlement is left."""
        receiving = deadline.sooner(_STOP_PULLING_S)
        for runner in self._runners:
            runner.stop_pulling(receiving)
        self._shared.shared_limits.stop()
        clean = self._wait_idle(deadline) and self._settlements.wait_confirmed(deadline)
        abandoned = sum(runner.abandon() for runner in self._runners)
        if abandoned:
            log.error(
                "%s did not end in time; messages are returned", counted(abandoned, "handler")
            )
            self._settlements.wait_confirmed(Deadline(_LAST_FLUSH_S))
        self._monitor.enter(WorkerPhase.STOPPED)
        self._shared.shared_limits.stop()
        self._reporter.stop()
        for pool in self._pools:
            pool.close()
        closing = Deadline(_CLOSE_S)  # the processes of all handlers end at the same time
        for pool in self._pools:
            pool.wait_closed(closing)
        with suppress(errors.Error):
            # At the first error, the other pins are left to their timeouts: the server may be silent.
            for runner in self._runners if clean else ():
                if runner.puller.pin is not None:
                    runner.puller.pin.release(self._js)
        with suppress(errors.Error):
            if clean:
                self._nc.drain(_LAST_DRAIN_S)
            else:
                self._nc.flush(_LAST_FLUSH_S)
        self._nc.close()
        self._finish_events()
        return clean

    def _finish_events(self) -> None:
        """Make the calls that are left in the queue."""
        with suppress(queue.Empty):
            while not (event := self._events.get_nowait()).stops:
                if event.call is not None:
                    event.call()

    def _wait_idle(self, deadline: Deadline) -> bool:
        """
        Wait until all threads have ended; a second request to stop ends the wait.

        Waiting messages are handled in the first part of the time; then they are returned.
        """
        starting, clean = Deadline((deadline.left() or 0.0) * _BUFFERED_SHARE), True
        while clean and not all(runner.idle for runner in self._runners):
            if starting.expired():
                self._return_waiting()
                starting = FOREVER
            wait = deadline.sooner(_POLL_S).lock_timeout()
            clean = not (deadline.expired() or self._stopped_within(wait))
        self._return_waiting()
        return clean

    def _return_waiting(self) -> None:
        count = sum(runner.return_waiting() for runner in self._runners)
        if count:
            log.info("%s returned without a run", counted(count, "message"))


class _Upkeep:
    """Keeps pins, and reads the states of consumers and schedules again, between two events."""

    def __init__(
        self,
        worker: DefinedWorker,
        nc: Connection,
        runners: Sequence[Runner],
        schedules: Schedules,
        link: SupervisorLink | None,
    ) -> None:
        self._nc = nc
        self._runners = runners
        self._schedules = schedules
        self._link = link
        is_frequent = worker.http is not None or any(handler.group for handler in worker.handlers)
        self._interval = _SAMPLE_S if is_frequent else _REFRESH_S
        self._refresh_at = Deadline(self._interval)
        self._turns = cycle(runners)
        self._outdated: deque[Runner] = deque()
        self._has_asked = False

    @property
    def has_more(self) -> bool:
        """Whether `step` has more to do now."""
        return self._has_asked or bool(self._outdated)

    def refresh_all(self) -> None:
        """Have the next `step` begin to read all states again."""
        self._refresh_at = Deadline(0)

    def step(self) -> None:
        """Do what is due; at most one request of each kind, because the next event may be a signal."""
        is_connected = self._nc.is_connected
        self._has_asked = any(
            next(self._turns).maintain(may_ask=is_connected) for _ in self._runners
        )
        if self._link is not None and any(runner.is_stuck for runner in self._runners):
            self._link.recycle("all threads of a handler exceed the timeout")
        due = self._refresh_at.expired()
        self._outdated.extend(
            runner
            for runner in self._runners
            if (due or runner.is_outdated) and runner not in self._outdated
        )
        if not self._nc.is_connected:
            self._outdated.clear()
        elif self._outdated:
            self._outdated.popleft().refresh()
        if due:
            self._refresh_at = Deadline(self._interval)
            if self._nc.is_connected:
                self._schedules.refresh()


def monitoring(
    address: str | None, source: Monitor | Processes, name: str
) -> AbstractContextManager[bool]:
    """Return a context that serves health checks and metrics; it is false if the address cannot be used."""
    if address is None:
        return nullcontext(True)
    # It loads the module of TLS, which takes memory and time.
    from .operations.http_server import serving  # noqa: PLC0415 - for workers with ``http``

    return serving(address, source, name)
