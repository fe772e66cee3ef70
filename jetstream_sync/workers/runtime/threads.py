"""
The threads of one handler: one that pulls messages, and those that run the handler.

Rules:

1. A handler thread that exceeds its timeout occupies its slot until the handler returns.
2. After `stop_pulling`, the threads handle the waiting messages, until `return_waiting` returns the rest,
   and end when they have nothing to do.
"""

from __future__ import annotations

import contextlib
import functools
import sys
import threading
import traceback
from collections.abc import Callable, Mapping
from copy import copy
from typing import TYPE_CHECKING, Final

from ... import errors
from ...net.clock import Deadline
from ..deliveries import DeliveryState, LeasedMessage, lease_clock, log_context
from ..events import spawn
from ..limits import Gate
from ..logs import log
from ..observer import Observer
from ..source import Handler, Queue, Source
from .consumers import WorkerConsumer
from .processing import Processor, Router, Shared
from .pulling import HeldMessages, Phase, Puller, PullRequests

if TYPE_CHECKING:
    from .processes import HandlerProcesses

#: The largest age of the ack floor while messages are handled, in seconds: behind it, a consumer that is
#: deleted and created again delivers them a second time.
FLOOR_S: Final = 4.0
#: The same while the consumer has other filters.
_FOREIGN_REFRESH_S: Final = 2.0
#: Delay of messages whose handler did not end before the drain timeout, in seconds.
_ABANDON_DELAY_S: Final = 1.0


class Runner:
    """The threads of one source."""

    def __init__(
        self, source: Source, shared: Shared, consumer: WorkerConsumer, puller: type[Puller]
    ) -> None:
        self.source = source
        self.consumer = consumer
        #: What all handlers have counted.
        self.observer: Observer = shared.observer
        self._shared = shared
        #: The processes of the handler; ``None``: it runs in this one.
        self.processes: HandlerProcesses | None = None
        if source.pool == "processes":
            # Loaded before the threads of the handler start.
            from .processes import HandlerProcesses  # noqa: PLC0415 - for few programs

            self.processes = HandlerProcesses(
                source, shared.js, shared.is_stopping, shared.process_setup
            )
        #: Runs the work of each message.
        self.processor: Processor | Router
        if isinstance(source, Queue):
            self.processor = Router(source, shared, self.processes, self._run_again)
        else:
            assert isinstance(source, Handler)
            self.processor = Processor(source, source, shared, self.processes)
        #: Receives the messages.
        self.puller: Puller = puller(source, shared, consumer, self.processor)
        #: The messages that were received and are not settled.
        self.held: HeldMessages = self.puller.held
        #: Which messages are requested.
        self.requests: PullRequests = self.puller.requests
        self._limit = None if source.limit is None else shared.limits[source.limit]
        self._process: Callable[[LeasedMessage, float], float] = self.processor.process
        if source.limit is not None or source.rate is not None:
            urgent = isinstance(source, Queue) and source.urgent
            gate = Gate(self._limit, source.rate, self.puller.interrupted, urgent)
            self._process = functools.partial(self._process_limited, gate)
        # The messages whose handler was reported as over its timeout; used by the thread of `report_overdue`.
        self._overdue: set[LeasedMessage] = set()
        self._threads: list[threading.Thread] = []
        # Number of threads that are ready to run the handler; under the lock of the held messages.
        self._prepared = 0
        # The number of handled messages and the time of the last refresh; used by the thread of `start`.
        self._refreshed: tuple[int, float] = (0, lease_clock())
        # Whether the consumer had other filters.
        self._was_foreign = False
        # Whether it was logged that others pull from the consumer; used by the thread of `start`.
        self._warned = False

    def start(self) -> None:
        """Start the threads."""
        name = f"worker-{self.source.name}"
        fatal = self._shared.on_fatal
        self._check_order(0)
        for number in range(1, self.source.concurrency + 1):
            self._threads.append(spawn(f"{name}-{number}", self._run, fatal))
        self._threads.append(spawn(f"{name}-pull", self.puller.run, fatal))

    # --- for the thread that runs the worker ----------------------------------------------------

    @property
    def is_outdated(self) -> bool:
        """Whether messages were handled since the last refresh, or have shown that the consumer has changed."""
        handled, at = self._refreshed
        seconds = lease_clock() - at
        if self.consumer.is_foreign or self.consumer.has_foreign:
            return seconds >= _FOREIGN_REFRESH_S
        return handled != self.held.handled and seconds >= FLOOR_S

    def refresh(self) -> None:
        """Read the state of the consumer again; an unreachable server changes nothing."""
        self._refreshed = self.held.handled, lease_clock()
        with contextlib.suppress(errors.Error):
            self.consumer.refresh()
            self._check_order(1)

    def _check_order(self, own: int) -> None:
        """Warn once if others than this number of requests pull from a consumer whose messages have keys."""
        source, info = self.source, self.consumer.info
        others = 0 if info is None else info.num_waiting - own
        if others > 0 and source.key is not None and not source.is_pinned and not self._warned:
            self._warned = True
            text = (
                "%s: other processes pull from consumer %s/%s, so messages of one key may be handled at "
                "the same time"
            )
            log.warning(text, source.name, source.stream, source.consumer)

    def maintain(self, *, may_ask: bool) -> bool:
        """
        Keep a pin, and go on after a pause or beside a message that is stuck; call it often.

        Return whether that took a request, whose reply it has waited for; without ``may_ask`` it does not.
        """
        pin = self.puller.pin
        if may_ask and ((pin is not None and pin.keep()) or self.puller.return_stale()):
            return True
        held, breaker, alone = self.held, self.processor.breaker, self.held.alone
        is_stuck = alone is not None and alone.exceeds_timeout
        # Foreign messages that were returned may have used up what was requested.
        is_foreign = self.consumer.is_foreign or self.consumer.has_foreign
        resumes, self._was_foreign = self._was_foreign and not is_foreign, is_foreign
        if resumes or is_stuck or (breaker.pause and not breaker.seconds_left):
            with held.lock:
                if is_stuck and held.alone is alone:
                    held.end_isolation()
                more = self.requests.next()
            self.requests.send(more)
        return False

    def report_overdue(self) -> None:
        """
        Count and log the handlers that have exceeded their timeout since the last call; call it often.

        Their messages may be acknowledged, or their leases lost: the timeout limits the handler.
        """
        overdue = {item for item in self.running() if item.exceeds_timeout}
        new, self._overdue = overdue - self._overdue, overdue
        if not new:
            return
        for delivery in new:
            delivery.observer.count("timeouts")
            if self.processes is not None:
                self.processes.kill(delivery)  # it is suspended, and does not read the message
        # The messages of a batch share the thread, and have one record.
        for delivery in {item.thread: item for item in new}.values():
            frame = sys._current_frames().get(delivery.thread)  # noqa: SLF001 - documented for this use
            stack = "" if frame is None else "".join(traceback.format_stack(frame))
            text = "%s: the handler exceeds its timeout with %r, and occupies its thread:\n%s"
            log.error(text, delivery.handler, delivery, stack)

    @property
    def is_stuck(self) -> bool:
        """Whether the handler exceeds its timeout in all threads."""
        stuck = {item.thread for item in self.running() if item.exceeds_timeout}
        return len(stuck) >= self.source.concurrency

    @property
    def unknown_tasks(self) -> Mapping[str, int]:
        """Number of deliveries of calls of unknown tasks, by task."""
        return self.processor.unknown_tasks if isinstance(self.processor, Router) else {}

    @property
    def pull_alive(self) -> bool:
        """Whether the thread that pulls messages has not ended."""
        return bool(self._threads) and self._threads[-1].is_alive()

    def running(self) -> list[LeasedMessage]:
        """Return the messages whose handler runs."""
        with self.held.lock:
            return list(self.held.running.copy())

    def terminate(self, subject: str) -> bool:
        """End the process that runs the call with a subject, and record that; return whether one did."""
        work = self.source.route(subject)
        if self.processes is None or work is None:
            return False
        for delivery in self.running():
            if delivery.msg.subject == subject and work.state.cancel(delivery.msg):
                return self.processes.kill(delivery)
        return False

    def delivered_if_empty(self) -> int | None:
        """Return how many messages the consumer has delivered; ``None``: it is not empty, or not reachable."""
        with self.held.lock:
            if self.held.count:
                return None
        try:
            return self.consumer.delivered_if_empty()
        except errors.Error:
            return None

    @property
    def is_prepared(self) -> bool:
        """Whether all threads are ready to run the handler."""
        return self._prepared == self.source.concurrency

    @property
    def idle(self) -> bool:
        """Whether all threads have ended after `stop_pulling`."""
        return not any(thread.is_alive() for thread in self._threads)

    # --- stopping -------------------------------------------------------------------------------

    def stop_pulling(self, deadline: Deadline) -> None:
        """
        Pull no more; the threads end when they have handled the waiting messages.

        Messages in flight are received until the deadline.
        """
        with self.held.lock:
            self.held.phase = Phase.DRAINING
            self.held.work.notify_all()
        if self._limit is not None:
            self._limit.stop()
        self.puller.stop(deadline)

    def return_waiting(self) -> int:
        """Return the waiting messages to the server, and those that arrive; return how many there were."""
        with self.held.lock:
            self.held.phase = Phase.RETURNING
        count = self.puller.return_waiting()
        with self.held.lock:
            self.held.work.notify_all()
        return count

    def abandon(self) -> int:
        """Return the running messages to the server; return how many there are."""
        running = self.running()
        for delivery in running:
            self.puller.give_back(delivery, _ABANDON_DELAY_S)
        return len(running)

    def _run_again(self, delivery: LeasedMessage) -> None:
        """Have a thread process a delivery that was taken, and that waits for a limit."""
        # Another object: the thread that has taken the former one may not have finished it.
        again, keeper = copy(delivery), self._shared.keeper
        again.waits = False
        keeper.held.add(again)
        keeper.held.discard(delivery)
        with self.held.lock:
            added = self.held.phase is Phase.RECEIVING and self.held.add([again])
        if not added:
            self.puller.give_back(again)

    # --- handling -------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            self._prepare()
            if self.source.max_messages is None or isinstance(self.processor, Router):
                self._run_single()
            else:
                self._run_batches(self.source.max_messages, self.processor)
        finally:
            self._shared.on_thread_end()
        self._shared.on_change()

    def _prepare(self) -> None:
        """Start the process of this thread, if the handler has processes."""
        try:
            if self.processes is not None:
                self.processes.prepare()
        except errors.InvalidArgumentError as error:
            self._shared.on_fatal(error)
            return
        with self.held.lock:
            self._prepared += 1
        self._shared.on_change()

    def _run_single(self) -> None:
        held, requests, settlements = self.held, self.requests, self._shared.settlements
        window = requests.window
        # Messages that took less than the mean time, and their time, since the window was told.
        count, seconds = 0, 0.0
        try:
            delivery = self._wait()
            now = lease_clock()
            while delivery is not None:
                began, now = now, self._process(delivery, now)
                if delivery.retry_in is not None:
                    now = self._retry_in_place(delivery)
                if delivery.state is not DeliveryState.SETTLED and not delivery.waits:
                    self._shared.keeper.held.discard(delivery)  # its lease is lost
                if now - began > window.mean_s:
                    window.handled(now - began)
                else:
                    count += 1
                    seconds += now - began
                more = None
                with held.lock:
                    held.finish(delivery)
                    delivery = held.take()
                    has_room = len(held.ready) <= window.low and not requests.awaited
                    if delivery is None or has_room:
                        window.handled(seconds, count)
                        more = requests.next()
                        count, seconds = 0, 0.0
                if delivery is not None and more is None and now < settlements.due:
                    continue
                log_context.set(None)
                settlements.send_acks(now)  # together with the request
                requests.send(more)
                if delivery is None:
                    delivery = self._wait()
                    now = lease_clock()
        finally:
            settlements.send_acks()

    def _wait(self) -> LeasedMessage | None:
        """Wait for a message, and return it; ``None``: stop."""
        held = self.held
        with held.lock:
            while (delivery := held.take()) is None and not held.is_over:
                held.work.wait()
            more = self.requests.next()
        self.requests.send(more)
        return delivery

    def _retry_in_place(self, delivery: LeasedMessage) -> float:
        """Run the handler for a failed message until that is settled, or interrupted; return as `Processor.process`."""
        while delivery.retry_in is not None:
            if self.puller.interrupted.wait(delivery.retry_in):
                self.puller.give_back(delivery, 0.0)
                break
            delivery.retry_in = None
            delivery.attempt += 1
            self._process(delivery, lease_clock())
        return lease_clock()

    def _process_limited(self, gate: Gate, delivery: LeasedMessage, _now: float) -> float:
        """Process a message when the limit and the rate permit it; as `Processor.process`."""
        with gate.opened() as may_start:
            if may_start:
                return self.processor.process(delivery, lease_clock())
        self.puller.give_back(delivery)
        return lease_clock()

    # --- handling batches -----------------------------------------------------------------------

    def _run_batches(self, size: int, processor: Processor) -> None:
        while batch := self._take_batch(size):
            try:
                processor.process_batch(batch)
            finally:
                log_context.set(None)
                self._shared.settlements.send_acks()
                self._release(batch)

    def _take_batch(self, size: int) -> list[LeasedMessage]:
        """Wait for a batch, at most ``max_wait`` after its first message; empty: stop."""
        held = self.held
        with held.lock:
            while True:
                stopping = held.phase is not Phase.RECEIVING
                if not held.ready:
                    if stopping:
                        return []
                    held.work.wait()
                    continue
                full_at = held.ready[0].lease.received_at + self.source.max_wait
                left = full_at - lease_clock()
                if len(held.ready) >= size or left <= 0 or stopping:
                    break
                held.work.wait(left)
            batch = held.take_batch(size)
            more = self.requests.next()
        self.requests.send(more)
        return batch

    def _release(self, batch: list[LeasedMessage]) -> None:
        """Make room for as many messages."""
        for delivery in batch:
            self._shared.keeper.held.discard(delivery)
        with self.held.lock:
            for delivery in batch:
                self.held.finish(delivery)
            more = self.requests.next()
        self.requests.send(more)
