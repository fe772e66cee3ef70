"""
Pulling: the thread that receives the messages of one handler, the requests for them, and the held messages.

A handler holds what it has received and not settled yet, waiting for a thread or running.

Rules:

1. Only messages that fit are requested, one request at a time: at most ``concurrency + prefetch`` are held,
   or more if a request was repeated because its reply seemed lost. Without ``prefetch``, up to `_MAX_AHEAD`
   messages of busy keys are held beside them. A thread that makes room requests them; the thread that pulls
   only receives. With ``max_bytes``, as many are requested as fit by the size of the last ones, at most
   `_MAX_SIZED`; the first one is requested alone.
2. An exclusive handler has the pin of its consumer (ADR-42). A message with another pin follows messages
   that were lost with the former one: those that wait are returned, because another process has them.
3. A message that is delivered for the third time may have ended its process. It is started alone: no other
   one starts while it runs, and only one message at a time is requested, until one comes that is not
   suspicious. So the others are not delivered without a run. A retry of an attempt that this process
   survived is not suspicious. One that exceeds its timeout holds up the others no longer.
4. A message that exceeds the timeout of its handler stays among the running ones until that returns.
5. With ``key``, a message of a free key is ready at once, and makes the key busy until it is finished, after
   its settlement was enqueued; a retry in place keeps the key. The other messages of a busy key wait in its
   lane, in the order of their arrival, and occupy no thread. A lane exists only while its key is busy.
"""

from __future__ import annotations

import contextlib
import math
import threading
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from datetime import timedelta
from enum import Enum
from typing import TYPE_CHECKING, Final

from ... import errors
from ...durations import counted
from ...locks import new_lock
from ...net.clock import BackoffDelay, Deadline
from ...options import check_returned
from ..deliveries import Lease, LeasedMessage, Origin, delivery_number, lease_clock
from ..limits import CircuitBreaker
from ..logs import log
from ..source import Source, acceptor
from ..verdicts import given_back, not_started
from .consumers import WorkerConsumer
from .processing import GIVE_BACK_S, Processor, Router, Shared

if TYPE_CHECKING:
    from ... import JetStream, JetStreamMsg, MessageIterator, PriorityOptions

#: The delivery from which on a message is started alone.
SUSPICIOUS_DELIVERY: Final = 3
#: Delays between attempts to pull after an error, in seconds.
_FIRST_PULL_DELAY_S: Final = 0.5
_MAX_PULL_DELAY_S: Final = 30.0
#: Interval of repeated log records for a pull that keeps failing, in seconds.
_REPEAT_LOG_S: Final = 60.0
#: Interval of heartbeats, in seconds: a request that is lost with a leader is repeated after two of them.
_HEARTBEAT_S: Final = 5.0
#: Time in which a request is refused, if it is, in seconds.
_REFUSED_WITHIN_S: Final = 2.0
#: Largest number of messages that are requested with ``max_bytes``: the next messages may be larger than
#: the last ones.
_MAX_SIZED: Final = 16
#: Largest number of messages that are handed to the handler threads in one step.
_MAX_RUN: Final = 250
#: The server's default for ``priority_timeout``, in seconds.
_DEFAULT_PIN_S: Final = 120.0

#: The work that is received ahead, in seconds, and the largest number of messages.
_AHEAD_S: Final = 0.075
_MAX_AHEAD: Final = 500
#: Time after which a message that waits for a thread is returned, in seconds, if another process is idle.
STALE_S: Final = 1.0
#: Delays of a message that belongs to processes with another filter, by its number of deliveries.
_FOREIGN_DELAYS: Final = BackoffDelay(0.5, _MAX_PULL_DELAY_S)
#: The shortest mean time of a message, in seconds: a coarse clock may tell none.
_SHORTEST_S: Final = 1e-6


def message_size(msg: JetStreamMsg) -> int:
    """Return the size of a message as the server counts it for pull requests; headers approximately."""
    size = len(msg.subject) + len(msg.ack_subject) + len(msg.data)
    for name, values in (msg.headers or {}).items():
        size += len(name) + len(values) + 4
    return size


class Window:
    """
    How many messages of a handler are received ahead: its ``prefetch``, or the work of a short time.

    Without ``prefetch``, that is the work of `_AHEAD_S` by the mean time that a message takes, at least one
    message for each thread. A message that takes longer than the mean replaces it, so that a handler that
    becomes slow holds few messages at once. Other messages change it by a sixteenth, and it is long at first.
    """

    def __init__(self, slots: int, ahead: int, batch: int, *, adapts: bool) -> None:
        self.slots: int = slots
        self.ahead: int = ahead
        #: How many of them may wait when others are requested. A batch that is not full can always grow.
        self.low: int = max(ahead // 2, batch - 1)
        self.adapts: bool = adapts
        #: The mean time that a message takes, in seconds.
        self.mean_s: float = _AHEAD_S

    def handled(self, seconds: float, count: int = 1) -> None:
        """Count the time that a thread has spent on some messages."""
        if not (self.adapts and count):
            return
        mean, found = self.mean_s, seconds / count
        mean = found if found > mean else found + (mean - found) * (15 / 16) ** count
        self.mean_s = mean = max(mean, _SHORTEST_S)
        self.ahead = max(self.slots, min(int(self.slots * _AHEAD_S / mean), _MAX_AHEAD))
        self.low = self.ahead // 2


class Phase(Enum):
    """What happens to messages; a phase never follows a later one."""

    RECEIVING = "receiving"
    """They are requested and handled."""
    DRAINING = "draining"
    """No more are requested; those that wait or arrive are handled."""
    RETURNING = "returning"
    """Those that wait or arrive are returned to the server."""


class HeldMessages:
    """The held messages of one handler, used under the ``lock``."""

    def __init__(self, *, isolates: bool) -> None:
        self.lock: threading.Lock = new_lock()
        #: Notified when a thread has something to do.
        self.work: threading.Condition = threading.Condition(self.lock)
        self.phase: Phase = Phase.RECEIVING
        #: With ``max_bytes``, their size, and the one that is expected of the next message: that of a larger
        #: message replaces it, others change it by a sixteenth.
        self.size: int = 0
        self.expected_size: float = 0.0
        self.running: set[LeasedMessage] = set()
        #: Number of messages that were settled.
        self.handled: int = 0
        #: The messages that a thread can take, in the order in which they became ready.
        self.ready: deque[LeasedMessage] = deque()
        # The busy keys, each with the messages that wait for it.
        self._lanes: dict[Hashable, deque[LeasedMessage]] = {}
        self._isolates = isolates
        #: The message that is run alone.
        self.alone: LeasedMessage | None = None
        #: Whether the last received message is suspicious; at first, no message is known.
        self.is_careful: bool = isolates
        #: Whether messages were returned because they waited for long, and no thread has become free since.
        self.is_congested: bool = False
        # Notified when a message is finished or returned, while a thread waits for that.
        self._finished = threading.Condition(self.lock)
        self._is_awaited = False

    @property
    def waiting(self) -> int:
        """Number of messages that wait for a thread or for their key."""
        return len(self.ready) + sum(map(len, self._lanes.values()))

    @property
    def count(self) -> int:
        """Number of messages, waiting or running."""
        return self.waiting + len(self.running)

    @property
    def is_over(self) -> bool:
        """Whether a thread that finds no message ends."""
        return self.phase is not Phase.RECEIVING and (self.alone is None or not self.ready)

    def add(self, run: Sequence[LeasedMessage]) -> bool:
        """Add received messages, and wake threads for them; return false if they have to be returned."""
        if self.phase is Phase.RETURNING:
            return False
        ready, lanes, behind = self.ready, self._lanes, 0
        for delivery in run:
            if delivery.key is None:
                ready.append(delivery)
            elif delivery.key in lanes:
                lanes[delivery.key].append(delivery)
                behind += 1
            else:
                lanes[delivery.key] = deque()
                ready.append(delivery)
            if delivery.size:
                self.size += delivery.size
                expected = self.expected_size
                self.expected_size = max(delivery.size, expected + (delivery.size - expected) / 16)
        self.is_careful = self._isolates and run[-1].is_suspicious
        self.work.notify(len(run) - behind)
        return True

    def take(self) -> LeasedMessage | None:
        """Let a waiting message run, if one may start, and return it."""
        if not self.ready or self.alone is not None:
            return None
        delivery = self.ready.popleft()
        self.running.add(delivery)
        if delivery.is_suspicious and self._isolates:
            self.alone = delivery
        return delivery

    def take_batch(self, size: int) -> list[LeasedMessage]:
        """Let up to this number of waiting messages run, and return them."""
        batch = [self.ready.popleft() for _ in range(min(size, len(self.ready)))]
        self.running.update(batch)
        return batch

    def finish(self, delivery: LeasedMessage) -> None:
        """Forget a message that was taken, and free its key."""
        self.handled += 1
        self.is_congested = False
        self.running.discard(delivery)
        if delivery is self.alone:
            self.alone = None
            self.work.notify_all()
        if delivery.size:
            self.size -= delivery.size
        if delivery.key is not None:
            lane = self._lanes[delivery.key]
            if lane:
                self.ready.append(lane.popleft())
                self.work.notify()
            else:
                del self._lanes[delivery.key]
        if self._is_awaited:
            self._finished.notify_all()

    def wait_finished(self, is_given_up: Callable[[LeasedMessage], bool], timeout: float) -> bool:
        """Wait until no message waits, and none runs that is not given up; return whether that is so."""

        def is_finished() -> bool:
            return not self.waiting and all(map(is_given_up, self.running))

        self._is_awaited = True
        try:
            return is_finished() or (self._finished.wait(timeout) and is_finished())
        finally:
            self._is_awaited = False

    def has_stale(self, slots: int, before: float) -> bool:
        """Return whether all threads are busy, and messages wait that were received before a time."""
        is_busy = len(self.running) >= slots and self.phase is Phase.RECEIVING
        return is_busy and any(item.lease.received_at < before for item in self.ready)

    def take_stale(self, slots: int, before: float) -> list[LeasedMessage]:
        """Remove and return the waiting messages that were received before a time, if all threads are busy."""
        if not self.has_stale(slots, before):
            return []
        stale = [item for item in self.ready if item.lease.received_at < before]
        self.is_congested = True
        self.ready = deque(item for item in self.ready if item.lease.received_at >= before)
        self.size -= sum([item.size for item in stale])
        return stale

    def end_isolation(self) -> None:
        """Let others start beside the message that runs alone, because it exceeds its timeout."""
        self.alone, self.is_careful = None, False
        self.work.notify_all()

    def clear(self) -> list[LeasedMessage]:
        """Remove and return the waiting messages; the keys of running ones stay busy."""
        waiting, self.ready = [*self.ready], deque()
        for lane in self._lanes.values():
            waiting += lane
        busy = {delivery.key for delivery in self.running}
        self._lanes = {key: deque() for key in self._lanes if key in busy}
        self.size -= sum([delivery.size for delivery in waiting])
        if self._is_awaited:
            self._finished.notify_all()
        return waiting


class PullRequests:
    """Which messages of a handler are requested; used under the lock of the held messages, except `send`."""

    def __init__(
        self, source: Source, consumer: WorkerConsumer, held: HeldMessages, breaker: CircuitBreaker
    ) -> None:
        self._consumer = consumer
        self._held = held
        self._breaker = breaker
        self._max_bytes = source.max_bytes
        batch = source.max_messages or 1
        adapts = source.prefetch is None and source.max_messages is None
        #: How many messages are received ahead.
        self.window: Window = Window(source.concurrency * batch, source.ahead, batch, adapts=adapts)
        #: What messages are requested from; ``None``: none are received now.
        self.iterator: MessageIterator | None = None
        #: Number of messages that were requested from the iterator and have not arrived.
        self.awaited: int = 0
        #: Whether none may be requested although the worker receives messages.
        self.is_paused: bool = False

    @property
    def may_receive(self) -> bool:
        """Whether messages may be requested."""
        return self._held.phase is Phase.RECEIVING and not self.is_paused

    def use(self, iterator: MessageIterator | None) -> None:
        """Request messages from an iterator from now on; ``None``: none are received."""
        self.iterator, self.awaited = iterator, 0

    def arrived(self, count: int) -> None:
        """Note that messages have arrived."""
        self.awaited = max(0, self.awaited - count)

    def next(self) -> tuple[MessageIterator, int] | None:
        """Count the messages to request now, and return the iterator and their number for `send`."""
        # One request at a time: they are fewer and larger.
        if self.iterator is None or self.awaited or not self.may_receive:
            return None
        self.awaited = self._room()
        return (self.iterator, self.awaited) if self.awaited else None

    @staticmethod
    def send(request: tuple[MessageIterator, int] | None) -> None:
        """Send what `next` returned; the lock is not held."""
        if request is not None:
            with contextlib.suppress(errors.Error):  # the pull thread gets the same error
                request[0].request(request[1])

    def _room(self) -> int:
        """Return how many messages should be requested now."""
        held = self._held
        # Few large requests cost less. Messages of a busy key do not count: the other threads have nothing
        # to do.
        if len(held.ready) > self.window.low:
            return 0
        if self._consumer.is_foreign:
            return 0
        room = self.window.slots + (0 if held.is_congested else self.window.ahead) - held.count
        if self.window.adapts and not held.is_congested:
            # Otherwise one slow key would block the messages of all other keys.
            room += min(held.waiting - len(held.ready), _MAX_AHEAD)
        breaker = self._breaker
        if breaker.pause:
            # Beside handlers that run for long, or never return, some messages are tried.
            room = 0 if breaker.seconds_left else min(room, breaker.limit // 2 - held.count)
        if held.is_careful:
            # The next message may end the process: it is requested when no other one waits.
            is_free = held.alone is None and not held.waiting
            room = min(room, int(is_free))
        limit = self._max_bytes
        if limit is not None:
            fitting = int((limit - held.size) / (held.expected_size or math.inf))
            room = min(room, _MAX_SIZED, max(fitting, int(not held.count)))
        return max(0, room)


class Puller:
    """Requests and receives the messages of one handler."""

    def __init__(
        self,
        source: Source,
        shared: Shared,
        consumer: WorkerConsumer,
        processor: Processor | Router,
    ) -> None:
        self._source = source
        self._shared = shared
        self._consumer = consumer
        self._processor = processor
        isolates = source.pool == "threads" and source.max_messages is None
        #: The messages that were received and are not settled.
        self.held: HeldMessages = HeldMessages(isolates=isolates)
        self._observer = shared.observer.of(source)
        #: Which messages are requested.
        self.requests: PullRequests = PullRequests(source, consumer, self.held, processor.breaker)
        self._accepts = acceptor(source.filter_subjects)
        # The reply subjects of messages that are delivered for the first time begin with it (ADR-15).
        self._first = f"$JS.ACK.{source.stream}.{source.consumer}.1.".encode()
        self._stopped = threading.Event()
        #: Set when retries in place and waits for the rate have to end, and their messages are returned.
        self.interrupted: threading.Event = threading.Event()
        # Time of the next check for messages that wait for long; used by the thread of the worker.
        self._stale_check_at = 0.0
        #: Keeps the pin of a handler that is pinned; ``None``: it is not.
        self.pin: Pin | None = None
        if source.is_pinned:
            self.pin = Pin(consumer, self._lost_pin)
        #: The error of the last attempt to pull; empty: there was none.
        self.error: str = ""

    def run(self) -> None:
        """Receive messages until `stop`; the function of a thread."""
        delays = BackoffDelay(_FIRST_PULL_DELAY_S, _MAX_PULL_DELAY_S)
        delay, quiet = 0.0, Deadline(0)
        while not self._stopped.wait(delay):
            try:
                self._pull_or_recreate()
                delays.reset()
                delay = 0.0
            except (errors.NotFoundError, errors.InvalidArgumentError) as error:
                self._shared.on_fatal(error)
                return
            except errors.ConnectionClosedError as error:
                if not self._stopped.is_set():
                    self._shared.on_fatal(error)
                return
            except errors.Error as error:
                if not self.error:
                    delays.reset()  # it has received meanwhile
                self.error = str(error)
                delay = delays.next()
                if quiet.expired():
                    quiet = Deadline(_REPEAT_LOG_S)
                    log.error("%s: cannot pull, trying again: %s", self._source.name, error)  # noqa: TRY400
        self._shared.on_change()

    def stop(self, deadline: Deadline) -> None:
        """End `run`, after the phase of the held messages was changed; wait for messages in flight."""
        self._stopped.set()
        self.interrupted.set()
        self._end_iterator(deadline)

    def _end_iterator(self, deadline: Deadline) -> None:
        """Request no more messages, and receive those in flight."""
        with self.held.lock:
            iterator = self.requests.iterator
        if iterator is not None:
            with contextlib.suppress(errors.Error):
                iterator.drain(deadline.left())

    def _pull_or_recreate(self) -> None:
        """Pull; if the consumer does not exist, create it again."""
        try:
            self._pull()
        except (errors.ConsumerDeletedError, errors.NotFoundError) as error:
            if self._stopped.is_set():
                return
            log.warning("%s: %s", self._source.name, error)
            self._consumer.recreate()

    def _pull(self) -> None:
        """Receive the messages that the handler threads request, until the worker stops."""
        group = {} if self.pin is None else self.pin.options
        with self._consumer.pull.messages(
            on_demand=True, heartbeat=_HEARTBEAT_S, **group
        ) as messages:
            with self.held.lock:
                if not self.requests.may_receive:
                    return
                self.requests.use(messages)
                more = self.requests.next()
            try:
                if more is not None:
                    messages.request(more[1])
                while True:
                    self._receive(messages)
            except errors.IteratorClosedError:
                return  # stopped
            finally:
                with self.held.lock:
                    self.requests.use(None)

    # --- receiving ------------------------------------------------------------------------------

    def _receive(self, messages: MessageIterator) -> None:
        """Wait for a message, and add it with those that have arrived meanwhile."""
        limit = max(1, min(_MAX_RUN, self.requests.awaited))
        try:
            # A refusal comes soon; a pull that just waits has succeeded.
            timeout = _REFUSED_WITHIN_S if self.error else None
            run = messages._next_run(limit, timeout)  # noqa: SLF001 - for workers
        except errors.TimeoutError:
            if self.requests.awaited:
                self.error = ""
            return
        self.error = ""
        if self.pin is not None:
            self.pin.follow(run[0])  # the only one
        self._add(self._leased(run))

    def _leased(self, run: Sequence[JetStreamMsg]) -> list[LeasedMessage]:
        """Return messages that were received just now, whose leases are renewed from now on."""
        consumer = self._consumer
        now, times = lease_clock(), consumer.times
        origin = Origin(
            self._source.name,
            consumer.generation,
            self._observer,
            consumer.parks,
            consumer.clock_ahead,
        )
        # Most are delivered for the first time, which the reply subject tells without parsing it.
        first = self._first
        numbers = [1 if msg.ack_subject.startswith(first) else delivery_number(msg) for msg in run]
        leases = {number: Lease(times, number, now) for number in set(numbers)}
        deliveries = [
            LeasedMessage(msg, leases[number], origin)
            for msg, number in zip(run, numbers, strict=True)
        ]
        if max(numbers) >= SUSPICIOUS_DELIVERY:
            for delivery in deliveries:
                if delivery.lease.delivered >= SUSPICIOUS_DELIVERY:
                    delivery.is_suspicious = not self._processor.happened_here(delivery)
        self._shared.keeper.held.update(deliveries)
        accepts = self._accepts
        if accepts is not None and not all(
            map(accepts, [delivery.msg.subject for delivery in deliveries])
        ):
            deliveries = self._without_foreign(deliveries, accepts)
        if self._source.max_bytes is not None:
            for delivery in deliveries:
                delivery.size = message_size(delivery.msg)
        key = self._source.key
        if key is not None:
            for delivery in deliveries:
                delivery.key = _key_of(delivery, key)
        return deliveries

    def _without_foreign(
        self, deliveries: list[LeasedMessage], accepts: Callable[[str], object]
    ) -> list[LeasedMessage]:
        """Return the messages of the filters of the handler; the others belong to newer processes."""
        foreign = [delivery for delivery in deliveries if not accepts(delivery.msg.subject)]
        if not self._consumer.has_foreign:
            text = "%s: messages outside of the filters, such as one of %s, are returned"
            log.error(text, self._source.name, foreign[0].msg.subject)
        self._consumer.has_foreign = True
        with self.held.lock:
            self.requests.arrived(len(foreign))
        for delivery in foreign:
            self.give_back(delivery, _FOREIGN_DELAYS.after(delivery.lease.delivered))
        self._shared.on_change()
        return [delivery for delivery in deliveries if delivery not in foreign]

    def _add(self, run: list[LeasedMessage]) -> None:
        """Add received messages, or return them if it is too late for that."""
        if not run:
            return
        with self.held.lock:
            self.requests.arrived(len(run))
            added = self.held.add(run)
            more = self.requests.next()
        self.requests.send(more)
        if not added:
            self._give_all_back(run)

    def give_back(self, delivery: LeasedMessage, delay: float | None = None) -> None:
        """Return a message after a delay; ``None``: it was not started, and a call keeps its attempts."""
        verdict = not_started(self._source) if delay is None else given_back(delay)
        self._processor.perform(delivery, verdict)

    def _give_all_back(self, deliveries: Sequence[LeasedMessage]) -> None:
        """Return messages that were not started; calls keep their attempts, unless the server is slow."""
        parking = Deadline(GIVE_BACK_S)  # a request for each
        for delivery in deliveries:
            self.give_back(delivery, 0.0 if parking.expired() else None)

    def return_stale(self) -> bool:
        """
        Return messages that wait behind handlers that run for long, if another process is idle.

        Return whether it had to ask the server for that.
        """
        if not self.requests.window.adapts or self._source.key is not None or self.pin is not None:
            return False
        now = lease_clock()
        with self.held.lock:
            if now < self._stale_check_at or not self.held.has_stale(
                self.requests.window.slots, now - STALE_S
            ):
                return False
            own = int(bool(self.requests.awaited))
        self._stale_check_at = now + STALE_S
        with contextlib.suppress(errors.Error):
            if self._consumer.read().num_waiting > own:
                with self.held.lock:
                    stale = self.held.take_stale(self.requests.window.slots, now - STALE_S)
                self._give_all_back(stale)
        return True

    def return_waiting(self) -> int:
        """Return the waiting messages to the server; return how many there were."""
        with self.held.lock:
            waiting = self.held.clear()
            more = self.requests.next()
        self.requests.send(more)
        self._give_all_back(waiting)
        return len(waiting)

    def _lost_pin(self) -> None:
        text = "%s: another process has taken over the messages; %s returned"
        log.warning(text, self._source.name, counted(self.return_waiting(), "waiting message"))


def _key_of(delivery: LeasedMessage, key: Callable[[JetStreamMsg], Hashable]) -> Hashable:
    """Return the key of a message; if that fails, the attempt fails in a handler thread."""
    try:
        found = key(delivery.msg)
        check_returned(found)  # a coroutine can be hashed too
        hash(found)
    except BaseException as error:  # noqa: BLE001 - the thread that pulls must not end
        delivery.failure = error
        return None
    return found


class Pin:
    """The pin id of the messages that a process receives."""

    def __init__(self, consumer: WorkerConsumer, on_lost: Callable[[], object]) -> None:
        self._consumer = consumer
        self._on_lost = on_lost
        self._lock = new_lock()
        # The pin of the last message; None: it has none, or the pin is lost. Changed under _lock.
        self._id: str | None = None
        # The pin is not kept before its end.
        self._rest = Deadline(0)

    @property
    def options(self) -> PriorityOptions:
        """The priority group of the consumer, for pulls; empty: it has none."""
        info = self._consumer.info
        groups = None if info is None else info.config.priority_groups
        return {"group": groups[0]} if groups else {}

    def follow(self, msg: JetStreamMsg) -> None:
        """Use the pin id of a message; the former one is lost if it is another."""
        pin = msg.headers.get("Nats-Pin-Id") if msg.headers else None
        with self._lock:
            known, self._id = self._id, pin
            lost = known is not None and known != self._id
        if lost:
            self._on_lost()

    def lose(self, pin: str | None = None) -> None:
        """Forget the pin id if it is ``pin``; ``None``: any."""
        with self._lock:
            lost = self._id is not None and pin in {None, self._id}
            if lost:
                self._id = None
        if lost:
            self._on_lost()

    def forget(self) -> None:
        """Forget the pin id after the consumer was given up."""
        with self._lock:
            self._id = None

    def keep(self) -> bool:
        """
        Keep the pin with a request if none was sent for long, as while all threads are busy; call it often.

        Return whether it has asked the server.
        """
        group, pin, info = self.options, self._id, self._consumer.info
        if not group or info is None or pin is None or not self._rest.expired():
            return False
        timeout = info.config.priority_timeout
        seconds = timeout.total_seconds() if isinstance(timeout, timedelta) else _DEFAULT_PIN_S
        self._rest = Deadline(seconds / 4)
        with contextlib.suppress(errors.Error):
            if self._is_pinned(pin):
                # No message fits into one byte, so that nothing is delivered.
                self._consumer.pull.fetch_no_wait(1, max_bytes=1, **group)
            else:
                self.lose(pin)
        return True

    def release(self, js: JetStream) -> None:
        """Let another process take over at once; raises as `WorkerConsumer.read` and `Stream.unpin_consumer`."""
        pin = self._id
        if pin is not None and self._is_pinned(pin):
            pull = self._consumer.pull
            js.get_stream(pull.stream_name).unpin_consumer(pull.name, self.options["group"])

    def _is_pinned(self, pin: str) -> bool:
        """Return whether the server delivers to the client with this pin id; raises as `WorkerConsumer.read`."""
        group = self.options.get("group")
        states = self._consumer.read().priority_groups or ()
        return any(state.pinned_client_id == pin for state in states if state.group == group)
