"""
The threads of one handler: one that pulls messages, and those that run the handler.

Rules:

1. Only messages that fit are requested, one request at a time: at most ``concurrency + prefetch``
   messages are held, or some more after a request that seemed lost was repeated. A thread that makes room
   requests them; the thread that pulls only receives. With ``max_bytes`` that thread also requests,
   because how many fit depends on what it has received.
2. ``_lock`` guards the queue and the set of running messages. It is held for a few instructions,
   never while pulling, settling or running a handler.
3. A handler thread that exceeds its timeout stays in the set of running messages, and occupies its
   slot, until the handler returns.
4. After `stop_pulling`, the threads handle the waiting messages, until `return_waiting` returns the rest,
   and end when they have nothing to do.
5. A message that is delivered for the third time may have ended its process. It is started alone: no other
   one starts while it runs, and only one message at a time is requested, until one comes that is not
   suspicious. So the others are not delivered without a run. A retry of an attempt that this process
   survived is not suspicious. One that exceeds its timeout holds up the others no longer.
6. With ``key``, a message that waits for another one of its key occupies no thread. The key becomes
   free after the settlement of its message was enqueued; a retry in place keeps it.
"""

from __future__ import annotations

import contextlib
import math
import threading
import time
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from .. import (
    ConnectionClosedError,
    ConsumerDeletedError,
    Error,
    InvalidArgumentError,
    IteratorClosedError,
    NotFoundError,
    PinIDMismatchError,
    TimeoutError,
)
from .batches import BatchProcessor
from .consumers import ConsumerWatch
from .dead_letters import DeadLetterWriter
from .handler import Handler
from .lanes import Lanes
from .leases import Delivery, LeaseTimes, lease_clock
from .limits import Pace, rate_interval
from .logs import log, log_context
from .pin import Pin
from .processes import ProcessPool
from .processing import Shared
from .spawn import spawn

if TYPE_CHECKING:
    from .. import (
        ConsumerInfo,
        JetStreamMsg,
        MessageIterator,
        PriorityOptions,
        PullConsumer,
    )

#: Delays between attempts to pull after an error, in seconds.
_FIRST_PULL_DELAY_S: Final = 0.5
_MAX_PULL_DELAY_S: Final = 30.0
#: Interval of repeated log records for a pull that keeps failing, in seconds.
_REPEAT_LOG_S: Final = 60.0
#: Interval of heartbeats, in seconds: a request that is lost with a leader is repeated after two of them.
_HEARTBEAT_S: Final = 5.0
#: Time in which a request is refused, if it is, in seconds.
_REFUSED_WITHIN_S: Final = 2.0
#: Timeout of a pull with a limit in bytes, which cannot be interrupted, in seconds.
_BYTES_TIMEOUT_S: Final = 1.0
#: Largest number of messages that are handed to the handler threads in one step.
_MAX_RUN: Final = 64
#: The delivery from which on a message is started alone.
_SUSPICIOUS_DELIVERY: Final = 3
#: Timeout for messages in flight when pulling stops, in seconds.
_STOP_TIMEOUT_S: Final = 2.0
#: Timeout of a request for the consumer's info, in seconds: the main thread waits for it.
_INFO_TIMEOUT_S: Final = 2.0
#: Delay of messages whose handler did not end before the drain timeout, in seconds.
_ABANDON_DELAY_S: Final = 1.0


@dataclass(frozen=True)
class PoolState:
    """What the threads of a handler are doing."""

    slots: int
    """Number of threads that run the handler."""
    running: int
    """Number of messages whose handler runs."""
    stuck: int
    """Number of threads whose handler exceeds the timeout."""
    buffered: int
    """Number of messages that wait for a thread."""
    paused: float
    """Seconds for which no messages are requested, because all have failed."""
    pull_alive: bool
    """Whether the thread that pulls messages has not ended."""


def message_size(msg: JetStreamMsg) -> int:
    """Return the size of a message as the server counts it for pull requests; headers approximately."""
    size = len(msg.subject) + len(msg.ack_subject) + len(msg.data)
    for name, values in (msg.headers or {}).items():
        size += len(name) + len(values) + 4
    return size


class HandlerThreads:
    """
    The threads of one handler.

    Args:
        handler: the handler.
        shared: what it shares with the others.
        consumer: its consumer.
        generation: the creation time of the stream, which distinguishes it from a later one of its name.
        dead_letters: where dead letters go; ``None``: nowhere.
        recreate: returns the consumer again after it was deleted, for its last known state and the
            generation; raises what must end the worker.

    """

    def __init__(
        self,
        handler: Handler,
        shared: Shared,
        consumer: PullConsumer,
        generation: str,
        dead_letters: DeadLetterWriter | None,
        recreate: Callable[[Handler, tuple[ConsumerInfo, str]], tuple[PullConsumer, str]],
    ) -> None:
        self.handler = handler
        self._name = handler.name
        self._shared = shared
        self._observer = shared.observer.handler(handler)
        self._processes: ProcessPool | None = None
        if handler.pool == "processes":
            self._processes = ProcessPool(handler, shared.js, shared.is_stopping)
        self._processor = BatchProcessor(handler, shared, generation, dead_letters, self._processes)
        self._recreate = recreate
        self._pin = Pin() if handler.exclusive else None
        self._limit = None if handler.limit is None else shared.limits[handler.limit]
        self._pace = None if handler.rate is None else Pace(rate_interval(handler.rate))
        limited = self._limit is not None or self._pace is not None
        self._process = self._process_limited if limited else self._processor.process
        self._lock = threading.Lock()
        self._work = threading.Condition(self._lock)
        self._room = threading.Condition(self._lock)
        #: The last known state of the consumer.
        self.info: ConsumerInfo = consumer.cached_info
        #: Compares the consumer with the handler.
        self.watch: ConsumerWatch = ConsumerWatch(handler, consumer.cached_info)
        #: The error of the last attempt to pull; empty: there was none.
        self.pull_error: str = ""
        # --- under _lock ---
        self._consumer = consumer
        self._times = LeaseTimes(consumer.cached_info.config)
        self._lanes: Lanes[Delivery] = Lanes()
        # Number of received messages that are not settled: waiting, or running.
        self._held = 0
        # Their size, and how many were held when no other one fitted; used with max_bytes only.
        self._held_bytes = 0
        self._full_at = 0
        self._running: set[Delivery] = set()
        self._prepared = 0
        #: Number of messages that a handler thread is done with.
        self.handled: int = 0
        self._pull: MessageIterator | None = None
        # Number of messages that were requested from it and have not arrived.
        self._requested = 0
        # Whether the thread that pulls waits for room; used with max_bytes only.
        self._pull_waits = False
        self._stopping = False
        # Whether the waiting messages were returned after that.
        self._returned = False
        # The message that is run alone, and whether to request one message at a time.
        self._alone: Delivery | None = None
        self._careful = self._isolates = self._processes is None and handler.max_messages is None
        # Interrupts retries in place, and waits for the rate.
        self._stopped = threading.Event()
        self._threads: list[threading.Thread] = []
        # --- used by the thread of `start` and `refresh` ---
        self._warned = False

    def start(self) -> None:
        """Start the threads."""
        name = f"worker-{self.handler.name}"
        fatal = self._shared.on_fatal
        self._check_order(self._consumer.cached_info.num_waiting)
        for number in range(1, self.handler.concurrency + 1):
            self._threads.append(spawn(f"{name}-{number}", self._run, fatal))
        self._threads.append(spawn(f"{name}-pull", self._pull_until_stopped, fatal))

    def refresh(self) -> None:
        """Read the state of the consumer again; an unreachable server changes nothing."""
        with contextlib.suppress(Error):
            info = self.info = self._consumer.info(_INFO_TIMEOUT_S)
            self._shared.keeper.adopt(self._times, info.config)
            self.watch.update(info)
            self._check_order(info.num_waiting - 1)  # without the own request

    def state(self) -> PoolState:
        """Return what the threads are doing."""
        with self._lock:
            return PoolState(
                slots=self.handler.concurrency,
                running=len(self._running),
                stuck=len({each.thread for each in self._running if each.given_up}),
                buffered=self._held - len(self._running),
                paused=self._processor.breaker.seconds_left,
                pull_alive=bool(self._threads) and self._threads[-1].is_alive(),
            )

    def resume(self) -> None:
        """Go on if a pause after failures is over, or a message that runs alone exceeds its timeout; call it often."""
        breaker, alone = self._processor.breaker, self._alone
        is_stuck = alone is not None and alone.given_up
        if not (is_stuck or (breaker.is_open and not breaker.seconds_left)):
            return
        with self._lock:
            if is_stuck and self._alone is alone:
                self._alone, self._careful = None, False
                self._work.notify_all()
            more = self._next_request()
        self._request(more)

    def delivered_if_empty(self) -> int | None:
        """Return how many messages the consumer has delivered; ``None``: it is not empty, or not reachable."""
        with self._lock:
            if self._held:
                return None
        try:
            info = self._consumer.info(_INFO_TIMEOUT_S)
        except Error:
            return None
        is_empty = not (info.num_pending or info.num_ack_pending)
        return info.delivered.consumer_seq if is_empty else None

    def _check_order(self, others: int) -> None:
        """Warn once if other processes pull from a consumer whose messages are ordered by key."""
        unordered = self.handler.key is not None and not self.handler.exclusive
        if others > 0 and unordered and not self._warned:
            self._warned = True
            log.warning(
                "%s: other processes pull from consumer %s/%s, so messages of one key may be handled at "
                "the same time",
                self.handler.name,
                self.handler.stream,
                self.handler.consumer,
            )

    @property
    def shortest_wait(self) -> float:
        """The length of the shortest lease, in seconds."""
        return self._times.shortest

    @property
    def is_prepared(self) -> bool:
        """Whether all threads are ready to run the handler."""
        return self._prepared == self.handler.concurrency

    @property
    def is_stuck(self) -> bool:
        """Whether the handler exceeds its timeout in all threads."""
        state = self.state()
        return state.stuck >= state.slots

    @property
    def pids(self) -> list[int]:
        """The ids of the processes of the handler; empty: it runs in this one."""
        return [] if self._processes is None else self._processes.pids

    # --- the pin of an exclusive handler --------------------------------------------------------

    def keep_pin(self) -> None:
        """Keep the pin of an exclusive handler, or return its waiting messages if it is lost; call it often."""
        if self._pin is not None and not self._pin.keep(self._consumer):
            self._return_waiting()

    def release_pin(self) -> None:
        """Let another process take over at once; after the end of all threads."""
        if self._pin is not None:
            self._pin.release(self._consumer, self._shared.js)

    def _follow_pin(self, msg: JetStreamMsg) -> None:
        """Return the waiting messages if a message that follows them has another pin."""
        if self._pin is not None and not self._pin.follow(msg):
            self._return_waiting()

    def _return_waiting(self) -> None:
        """Return the waiting messages to the server, because another process has the pin."""
        count = self.return_waiting()
        text = "%s: another process has taken over the messages; %d waiting ones are returned"
        log.warning(text, self._name, count)

    @property
    def _priority_options(self) -> PriorityOptions:
        group = None if self._pin is None else self._pin.group(self._consumer)
        return {} if group is None else {"group": group}

    # --- stopping -------------------------------------------------------------------------------

    def stop_pulling(self) -> None:
        """Pull no more; the threads end when they have handled the waiting messages."""
        with self._lock:
            self._stopping = True
            pull = self._pull
            self._work.notify_all()
            self._room.notify_all()
        self._stopped.set()
        if self._limit is not None:
            self._limit.stop()
        if pull is not None:
            with contextlib.suppress(Error):
                pull.drain(_STOP_TIMEOUT_S)

    def return_waiting(self) -> int:
        """Return the waiting messages to the server; return how many there were."""
        with self._lock:
            self._returned = self._stopping
            waiting = self._take_waiting()
            self._work.notify_all()
            more = self._next_request()
        self._request(more)
        for delivery in waiting:
            self._give_back(delivery)
        return len(waiting)

    def _take_waiting(self) -> list[Delivery]:
        """Remove and return the waiting messages; ``_lock`` is held."""
        waiting = self._lanes.clear()
        self._held -= len(waiting)
        for delivery in waiting:
            self._held_bytes -= delivery.size
        return waiting

    def _give_back(self, delivery: Delivery) -> None:
        if self._shared.settlements.claim(delivery):
            self._shared.settlements.nak(delivery, 0)
            self._observer.settled(delivery, "given_back")

    @property
    def idle(self) -> bool:
        """Whether all threads have ended after `stop_pulling`."""
        return not any(thread.is_alive() for thread in self._threads)

    def abandon(self) -> int:
        """Return the running messages to the server; return how many there are."""
        with self._lock:
            running = list(self._running)
        for delivery in running:
            if self._shared.settlements.claim(delivery):
                self._shared.settlements.nak(delivery, _ABANDON_DELAY_S)
                self._observer.settled(delivery, "given_back")
        return len(running)

    def close(self) -> None:
        """End the processes of the handler."""
        if self._processes is not None:
            self._processes.close()

    # --- pulling --------------------------------------------------------------------------------

    def _pull_until_stopped(self) -> None:
        delay, logged_at = 0.0, -math.inf
        while not self._stopped.wait(delay):
            try:
                self._pull_or_replace()
                delay = 0.0
            except (NotFoundError, InvalidArgumentError) as error:
                self._shared.on_fatal(error)
                return
            except ConnectionClosedError as error:
                if not self._stopping:
                    self._shared.on_fatal(error)
                return
            except Error as error:
                if not self.pull_error:
                    delay = 0.0  # it has received meanwhile
                self.pull_error = str(error)
                delay = min(max(_FIRST_PULL_DELAY_S, 2 * delay), _MAX_PULL_DELAY_S)
                if time.monotonic() - logged_at >= _REPEAT_LOG_S:
                    logged_at = time.monotonic()
                    log.error("%s: cannot pull, trying again: %s", self.handler.name, error)  # noqa: TRY400
        self._shared.on_change()

    def _pull_or_replace(self) -> None:
        """Pull; if the consumer does not exist, create it again. Raises what `_recreate` raises."""
        try:
            if self.handler.max_bytes is None:
                self._pull_on_demand()
            else:
                self._pull_limited(self.handler.max_bytes)
            return
        except (ConsumerDeletedError, NotFoundError) as error:
            if self._stopping:
                return
            log.warning("%s: %s", self.handler.name, error)
        known = self.info, self._processor.generation
        consumer, generation = self._recreate(self.handler, known)
        with self._lock:
            self._consumer, self.info = consumer, consumer.cached_info
        self.watch = ConsumerWatch(self.handler, consumer.cached_info)
        self._processor.generation = generation
        self._shared.keeper.adopt(self._times, consumer.cached_info.config)

    def _pull_on_demand(self) -> None:
        """
        Receive the messages that the handler threads request, until the worker stops.

        With ``max_bytes`` it requests and receives a single message, which has no limit in bytes: a large
        one is delivered alone.
        """
        single = self.handler.max_bytes is not None
        with self._consumer.messages(
            on_demand=True, heartbeat=_HEARTBEAT_S, **self._priority_options
        ) as messages:
            with self._lock:
                if self._stopping:
                    return
                room = 1 if single else max(0, self._free_room())
                self._pull, self._requested = messages, room
            try:
                if room:
                    messages.request(room)
                while self._requested or not single:
                    self._receive(messages)
            except IteratorClosedError:
                return  # stopped
            finally:
                with self._lock:
                    self._pull = None

    def _next_request(self) -> tuple[MessageIterator, int] | None:
        """
        Return from where to request how many messages for `_request`, and count them; ``_lock`` is held.

        With ``max_bytes`` it wakes the thread that pulls instead.
        """
        if self.handler.max_bytes is not None:
            if self._pull_waits and self._free_room() > 0:
                self._pull_waits = False
                self._room.notify()
            return None
        # One request at a time: they are fewer and larger.
        if self._pull is None or self._requested or self._stopping:
            return None
        room = self._free_room()
        if room < 1:
            return None
        self._requested = room
        return self._pull, room

    @staticmethod
    def _request(more: tuple[MessageIterator, int] | None) -> None:
        """Send what `_next_request` returned; ``_lock`` is not held."""
        if more is not None:
            with contextlib.suppress(Error):  # the thread that pulls gets it, too
                more[0].request(more[1])

    def _pull_limited(self, max_bytes: int) -> None:
        """Receive messages up to a number and a size, until the worker stops."""
        while (room := self._wait_for_room()) > 0:
            if self._held:
                self._pull_bytes(room, max_bytes - self._held_bytes)
            else:
                self._pull_on_demand()
            self.pull_error = ""

    def _wait_for_room(self) -> int:
        """Wait until messages should be requested, and return how many; 0: stop."""
        with self._lock:
            while not self._stopping:
                room = self._free_room()
                if room > 0:
                    return room
                self._pull_waits = True
                self._room.wait()
            return 0

    def _free_room(self) -> int:
        """Return how many messages should be requested now; ``_lock`` is held."""
        handler = self.handler
        # A buffer that is half full saves requests; a batch that is not full can always grow. Messages
        # of a busy key do not count: the other threads have nothing to do.
        if len(self._lanes.ready) > max(handler.prefetch // 2, (handler.max_messages or 1) - 1):
            return 0
        if handler.max_bytes is not None and self._held:
            full = self._held_bytes >= handler.max_bytes or 0 < self._full_at <= self._held
            if full:
                return 0
        room = handler.capacity - self._held
        breaker = self._processor.breaker
        if breaker.is_open:
            # Beside handlers that run for long, or never return, some messages are tried.
            room = 0 if breaker.seconds_left else min(room, breaker.limit // 2 - self._held)
        if self._careful:
            is_free = self._alone is None and self._held == len(self._running)
            room = min(room, 1) if is_free else 0
        return room

    def _pull_bytes(self, room: int, size: int) -> None:
        """Receive messages up to a number and a size; wait a short time for the first one."""
        options = self._priority_options
        held = self._held
        until = time.monotonic() + _BYTES_TIMEOUT_S
        try:
            found = self._consumer.fetch(1, _BYTES_TIMEOUT_S, size, **options)
        except PinIDMismatchError:
            if self._pin is not None and self._pin.lose():
                self._return_waiting()
            return
        if not found:
            if time.monotonic() < until:
                self._full_at = held  # the next one does not fit until another one is settled
            return
        self._full_at = 0
        self._follow_pin(found[0])
        now = lease_clock()
        self._enqueue([self._held_message(msg, now) for msg in found])
        size -= message_size(found[0])
        if room > 1 and size > 0:
            more = self._consumer.fetch_no_wait(room - 1, size, **options)
            now = lease_clock()
            self._enqueue([self._held_message(msg, now) for msg in more])

    def _receive(self, messages: MessageIterator) -> None:
        """Wait for a message, and enqueue it with those that have arrived meanwhile."""
        try:
            # A refusal comes soon; a pull that just waits has succeeded.
            msg = messages.next(_REFUSED_WITHIN_S if self.pull_error else None)
        except TimeoutError:
            if self._requested:
                self.pull_error = ""
            return
        self.pull_error = ""
        run: list[tuple[Delivery, Hashable]] = []
        now = lease_clock()
        pin = self._pin
        try:
            while True:
                if pin is not None and pin.differs(msg):
                    self._enqueue(run)
                    run = []
                    self._follow_pin(msg)
                run.append(self._held_message(msg, now))
                if len(run) >= min(_MAX_RUN, self._requested):
                    break
                msg = messages.next(0)
        except TimeoutError:
            pass  # nothing else has arrived
        finally:
            self._enqueue(run)

    def _held_message(self, msg: JetStreamMsg, now: float) -> tuple[Delivery, Hashable]:
        """Return a message received by ``now``, whose lease is renewed from now on, with its key."""
        delivery = Delivery(msg, self._times, self._name, self._observer, now)
        self._shared.keeper.add(delivery)
        if self.handler.max_bytes is not None:
            delivery.size = message_size(msg)
        self._careful = self._isolates and self._is_suspicious(delivery)
        return delivery, None if self.handler.key is None else self._key_of(delivery)

    def _enqueue(self, run: list[tuple[Delivery, Hashable]]) -> None:
        """Hand received messages to the handler threads, or return them if it is too late for that."""
        with self._lock:
            returned = self._returned
            self._requested = max(0, self._requested - len(run))
            more = None
            if not returned:
                self._held += len(run)
                if self.handler.max_bytes is not None:
                    self._held_bytes += sum(delivery.size for delivery, _ in run)
                self._work.notify(self._lanes.add_run(run))
                more = self._next_request()
        self._request(more)
        if returned:
            for delivery, _ in run:
                self._give_back(delivery)

    def _key_of(self, delivery: Delivery) -> Hashable:
        """Return the key of a message; if that fails, the attempt fails in a handler thread."""
        if self.handler.key is None:
            return None
        try:
            key = self.handler.key(delivery.msg)
            hash(key)
        except BaseException as error:  # noqa: BLE001 - this thread must not end
            delivery.failure = error
            return None
        return key

    # --- handling -------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            self._prepare()
            if self.handler.max_messages is None:
                self._run_single()
            else:
                self._run_batches(self.handler.max_messages)
        finally:
            self._shared.on_thread_end()
        self._shared.on_change()

    def _prepare(self) -> None:
        """Start the process of this thread, if the handler has processes."""
        try:
            if self._processes is not None:
                self._processes.prepare()
        except InvalidArgumentError as error:
            self._shared.on_fatal(error)
            return
        with self._lock:
            self._prepared += 1
        self._shared.on_change()

    def _run_single(self) -> None:
        taken = None
        try:
            while (taken := self._take(taken)) is not None:
                self._handle(taken[0])
                self._shared.keeper.remove(taken[0])
                log_context.set(None)
        finally:
            self._shared.settlements.send_acks()

    def _run_batches(self, size: int) -> None:
        while batch := self._take_batch(size):
            try:
                self._processor.process_batch(batch)
            finally:
                self._shared.settlements.send_acks()
                log_context.set(None)
                self._release(batch)

    def _take_batch(self, size: int) -> list[Delivery]:
        """Wait for a batch, at most ``max_wait`` after its first message; empty: stop."""
        ready = self._lanes.ready
        with self._lock:
            while True:
                if not ready:
                    if self._stopping:
                        return []
                    self._work.wait()
                    continue
                full_at = ready[0][0].received_at + self.handler.max_wait
                left = full_at - lease_clock()
                if len(ready) >= size or left <= 0 or self._stopping:
                    break
                self._work.wait(left)
            batch = [ready.popleft()[0] for _ in range(min(size, len(ready)))]
            self._running.update(batch)
            more = self._next_request()
        self._request(more)
        return batch

    def _release(self, batch: list[Delivery]) -> None:
        """Make room for as many messages."""
        for delivery in batch:
            self._shared.keeper.remove(delivery)
        with self._lock:
            self._held -= len(batch)
            self.handled += len(batch)
            self._held_bytes -= sum(delivery.size for delivery in batch)
            self._running.difference_update(batch)
            more = self._next_request()
        self._request(more)

    def _handle(self, delivery: Delivery) -> None:
        """Run the handler for a message until that is settled, or the worker stops."""
        while (delay := self._process(delivery)) is not None:
            if self._stopped.wait(delay):
                self._give_back(delivery)
                return
            delivery.attempt += 1

    def _process_limited(self, delivery: Delivery) -> float | None:
        """Process a message when the limit and the rate permit it; as `Processor.process`."""
        if self._limit is not None and not self._limit.acquire():
            self._give_back(delivery)
            return None
        try:
            # The rate comes last: a wait for the limit must not bring two starts together.
            if self._pace is not None and self._stopped.wait(self._pace.reserve()):
                self._give_back(delivery)
                return None
            return self._processor.process(delivery)
        finally:
            if self._limit is not None:
                self._limit.release()

    def _take(self, done: tuple[Delivery, Hashable] | None) -> tuple[Delivery, Hashable] | None:
        """
        Wait for a message, and return it with its key; ``None``: stop.

        Args:
            done: the message that this thread has handled, with its key; ``None``: there is none.

        """
        settlements = self._shared.settlements
        with self._lock:
            if done is not None:
                self._held -= 1
                self.handled += 1
                self._held_bytes -= done[0].size
                self._running.discard(done[0])
                if done[0] is self._alone:
                    self._alone = None
                    self._work.notify_all()
                if self._lanes.release(done[1]):
                    self._work.notify()
            taken = self._next_ready()
            more = self._next_request()
        if taken is None or more is not None:
            settlements.send_acks()  # together with the request
            self._request(more)
        else:
            settlements.send_acks_soon()
        if taken is not None:
            return taken
        with self._lock:
            while (taken := self._next_ready()) is None and not self._is_over():
                self._work.wait()
            more = self._next_request()
        self._request(more)
        return taken

    def _next_ready(self) -> tuple[Delivery, Hashable] | None:
        """Take a waiting message, if there is one; ``_lock`` is held."""
        ready = self._lanes.ready
        if not ready or self._alone is not None:
            return None
        taken = ready.popleft()
        delivery = taken[0]
        self._running.add(delivery)
        if self._isolates and self._is_suspicious(delivery):
            self._alone = delivery
        return taken

    def _is_suspicious(self, delivery: Delivery) -> bool:
        """Return whether a message may have ended the process that received it before."""
        many = delivery.attempt >= _SUSPICIOUS_DELIVERY
        return many and not self._processor.failed_here(delivery)

    def _is_over(self) -> bool:
        """Return whether a thread without a message ends; ``_lock`` is held."""
        return self._stopping and (self._alone is None or not self._lanes.ready)
