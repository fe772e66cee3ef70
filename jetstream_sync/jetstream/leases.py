"""
Leases: for how long a delivered message belongs to this client, and how they are renewed.

A consumer that wants each message acknowledged delivers a message again when its ``ack_wait`` (or the
step of its ``backoff``) is over. Until then the message is leased to the client that got it.

Rules:

1. The reader stamps what it reads, at most once in each part of a lease; there is nothing for each
   message. The run of a message is found by its consumer sequence, and only when it is needed.
2. A taker compares the clock with `Leases.fresh_until`. Only past that it looks at the message itself.
3. A message whose lease is over is dropped: the server delivers it again, with a new lease.
4. A handler that began in time and ended late has another delivery of its message on the way. When
   that is taken and the first one is done with, it is dropped, too.
5. Before anything is dropped the consumer's config is read again, once in each lease: ``ack_wait`` may
   have become longer meanwhile.
6. Acknowledging with the policy ``all`` settles every message before. A dropped message would be
   among these, so nothing is dropped there; nor with the policies that want no acknowledgements.

A computer that sleeps may stop the monotonic clock (on Linux it does), so leases seem longer after that.
"""

from __future__ import annotations

import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterable
from datetime import timedelta
from typing import Final

from ..api.consumer import ConsumerConfig
from ..api.enums import AckPolicy
from ..api.reply import ack_tokens
from ..client.core import ConnectionCore
from ..client.threads import start_timer
from ..errors import Error, NotJSMessageError
from ..net.clock import Deadline, monotonic
from ..protocol.parser import Delivery
from .api_requests import APIRequests
from .consumer_api import consumer_info
from .message import JetStreamMsg, send_in_progress

__all__ = ["LeaseRenewer", "Leases", "ReceiveTimes", "ack_waits"]

_ACK_PREFIX: Final = b"$JS.ACK."
_NEVER: Final = float("-inf")
_ALWAYS: Final = float("inf")
#: nats-server's ``ack_wait`` where the config does not say it, in seconds.
_DEFAULT_ACK_WAIT_S: Final = 30.0
#: Runs that are read within this part of a lease count as one, with the stamp of the first.
_GRAIN: Final = 0.02
#: Leases after which another delivery of a message that was settled late is not expected any more.
_LATE_LEASES: Final = 2
#: Threads whose last message is remembered before those that have ended are looked for.
_MANY_THREADS: Final = 64
#: Seconds that reading the consumer's config may take.
_VERIFY_TIMEOUT_S: Final = 1.0
#: Leases are renewed whenever this part of the shortest one has passed.
_RENEWAL_PART: Final = 1 / 3
#: Seconds after which the leases of a thread that takes no more messages are left to run out.
_MAX_RENEWED_S: Final = 3600.0


def ack_waits(config: ConsumerConfig) -> list[float]:
    """Return the leases of the first, the second, ... delivery of a message, in seconds."""
    waits: Iterable[timedelta] = config.backoff or ()
    if not waits and config.ack_wait:
        waits = (config.ack_wait,)
    return [wait.total_seconds() for wait in waits] or [_DEFAULT_ACK_WAIT_S]


class _Run:
    """Messages that were read at about the same time."""

    __slots__ = ("first", "received")

    def __init__(self, first: int, received: float) -> None:
        #: The consumer sequence of its first message.
        self.first = first
        #: When it was read, or its leases were renewed, by the monotonic clock.
        self.received = received


class ReceiveTimes:
    """
    The times when runs of messages were read, noted by the reader thread.

    The connection's reader holds this object, so it refers to nothing that keeps the connection open.
    """

    __slots__ = ("grain", "runs", "stamped")

    def __init__(self) -> None:
        #: Seconds within which all messages get the same time.
        self.grain = 0.0
        #: When the last time was noted, by the monotonic clock; infinite: no times are needed.
        self.stamped = _ALWAYS
        #: The first reply subject and the time of each run.
        self.runs: deque[tuple[bytes, float]] = deque()

    def received(self, deliveries: list[Delivery], now: float) -> None:
        """Note when messages were read; called before another thread can take them."""
        if now - self.stamped < self.grain:
            return
        for _, reply, _, _ in deliveries:
            if reply.startswith(_ACK_PREFIX):  # no status
                self.stamped = now
                self.runs.append((reply, now))
                return


class Leases:
    """
    The leases of the messages that a client has from one consumer.

    Args:
        api: the JetStream API for the consumer's config.
        stream: the name of the stream.
        consumer: returns the consumer's name.
        config: the consumer's config, as it was last seen.

    The reader thread calls `times.received()`; any thread may call the methods of this class.
    """

    __slots__ = (
        "_api",
        "_checked",
        "_consumer",
        "_lapse",
        "_late",
        "_late_until",
        "_lock",
        "_run",
        "_shortest",
        "_stream",
        "_waits",
        "fresh_until",
        "last_taken",
        "times",
        "unsure",
    )

    def __init__(
        self,
        api: APIRequests,
        stream: str,
        consumer: Callable[[], str],
        config: ConsumerConfig,
    ) -> None:
        self._api = api
        self._stream = stream
        self._consumer = consumer
        #: The message that each thread got last, by the thread's identifier.
        self.last_taken: dict[int, JetStreamMsg] = {}
        #: Whether a message is about to be dropped by a config that may be out of date.
        self.unsure = False
        self.times = ReceiveTimes()
        self._lock = threading.Lock()
        # --- under _lock ---
        self._run = _Run(0, _NEVER)  # that of the message which was looked at last
        self._checked = _NEVER  # when the config was last read
        # Messages that were at hand when a lease ran out, by stream sequence, and until when another
        # delivery of them may come.
        self._late: dict[int, JetStreamMsg] = {}
        self._late_until = _NEVER
        self.adopt(config)

    @property
    def limited(self) -> bool:
        """Whether leases end at all."""
        return self._shortest < _ALWAYS

    def adopt(self, config: ConsumerConfig) -> None:
        """Go by another config of the consumer."""
        leased = config.ack_policy == AckPolicy.EXPLICIT
        self._waits = ack_waits(config) if leased else [_ALWAYS]
        self._shortest = min(self._waits)
        self.times.grain = self._shortest * _GRAIN
        self.times.stamped = _NEVER if leased else _ALWAYS
        #: Until when a message can be handed out without a look at it, by the monotonic clock.
        self.fresh_until = _NEVER if leased else _ALWAYS
        self._lapse = _NEVER  # when the first lease of the current run ends

    # --- the taker's side -----------------------------------------------------------------------

    def admits(self, reply: bytes) -> bool:
        """
        Return whether a message may be handed out; for what is taken after `fresh_until`.

        Where it may not, and `unsure` is set, keep the message, call `verify()`, and ask again.
        """
        numbers = _numbers(reply)
        if numbers is None:
            return True  # not from a stream: the user's to find out
        count, sequence, position = numbers
        now = monotonic()
        with self._lock:
            self.unsure = False
            if now >= self._lapse:
                self._note_late(now)
            self._advance(position)
            received = self._run.received
            self._lapse = received + self._shortest
            late = self._late_copy(sequence, reply, now)
            self.fresh_until = _NEVER if self._late else self._lapse
            if late:
                return False
            if received == _NEVER or now < received + self._waits[min(count, len(self._waits)) - 1]:
                return True
            self.unsure = self._checked < received
            return False

    def _advance(self, position: int) -> None:
        """Go to the run of a delivery; ``_lock`` is held."""
        runs = self.times.runs
        while runs:
            reply, received = runs[0]
            first = _position(reply)
            if first > position:
                return
            runs.popleft()
            if first >= 0:
                self._run = _Run(first, received)

    def _note_late(self, now: float) -> None:
        """Remember what is at hand while a lease runs out; ``_lock`` is held."""
        last_taken = self.last_taken
        if len(last_taken) > _MANY_THREADS:
            for ident in set(last_taken).difference(_running()):
                last_taken.pop(ident, None)
        for msg in tuple(last_taken.values()):
            numbers = _numbers(msg.ack_subject)
            if numbers is not None:
                self._late[numbers[1]] = msg
        self._late_until = now + self._shortest * _LATE_LEASES

    def _late_copy(self, sequence: int, reply: bytes, now: float) -> bool:
        """Return whether a message was settled while this delivery was on its way; ``_lock`` is held."""
        if now >= self._late_until:
            self._late.clear()
        msg = self._late.get(sequence)
        if msg is None or msg.ack_subject == reply or not msg.is_done:
            return False
        # Once: should the acknowledgement have been lost, the next delivery is handed out.
        del self._late[sequence]
        return True

    def verify(self) -> None:
        """Where `unsure` is set, read the consumer's config; it waits for that."""
        if not self.unsure:
            return
        self.unsure = False
        config = None
        core = self._api.core
        if core.address is not None:
            try:
                deadline = Deadline(_VERIFY_TIMEOUT_S)
                config = consumer_info(self._api, self._stream, self._consumer(), deadline).config
            except Error:
                pass  # it is gone, or we may not look: the config that is known holds
        with self._lock:
            self._checked = monotonic()
            if config is not None and ack_waits(config) != self._waits:
                self.adopt(config)

    # --- renewing -------------------------------------------------------------------------------

    def interval(self) -> float:
        """Return the seconds between two renewals."""
        return self._shortest * _RENEWAL_PART

    def renewed(self, deliveries: Iterable[Delivery], now: float) -> list[bytes]:
        """
        Enter new leases, and return the reply subjects of the messages that need them.

        A lease that is over cannot be renewed: the server may have delivered the message again.

        Args:
            deliveries: what waits in the buffer.
            now: the time; the new leases begin then.

        """
        with self._lock:
            live = now < self._run.received + self._shortest
            horizon = self._run.first if live else _ALWAYS
            if live:
                self._run.received = now
            for index, (reply, received) in enumerate(tuple(self.times.runs)):
                if now < received + self._shortest:
                    horizon = min(horizon, _position(reply))
                    self.times.runs[index] = (reply, now)
            if live:
                self._lapse = now + self._shortest
                self.fresh_until = _NEVER if self._late else self._lapse
        return [reply for _, reply, _, _ in deliveries if _position(reply) >= horizon]

    def forked(self) -> None:
        """Replace the lock, which a thread of the parent may have held."""
        self._lock = threading.Lock()


def _numbers(reply: bytes) -> tuple[int, int, int] | None:
    """Return how often a message was delivered, and its stream and consumer sequences, if it has any."""
    try:
        _, _, delivered, stream_seq, consumer_seq, _, _ = ack_tokens(reply)
        return int(delivered), int(stream_seq), int(consumer_seq)
    except (NotJSMessageError, ValueError):
        return None


def _position(reply: bytes) -> int:
    """Return a delivery's consumer sequence; -1: it has none."""
    numbers = _numbers(reply)
    return -1 if numbers is None else numbers[2]


def _running() -> set[int | None]:
    """Return the identifiers of the threads that are running."""
    return {thread.ident for thread in threading.enumerate()}


class LeaseRenewer:
    """
    Renews the leases of the messages that an iterator has buffered, and of those being handled.

    A message is being handled from the moment when a thread takes it until it is settled, the thread
    asks for the next message, or the thread ends. A thread that hangs, and an iterator from which
    nothing is taken, keep their leases for an hour, not for ever.

    It is one timer for all of them, and it ends with the iterator or the connection.

    Args:
        core: the connection.
        name: the consumer's, for the threads' names.
        leases: the iterator's.
        buffer_state: a bound method of the iterator, which this does not keep alive. It returns what is
            buffered, the number of messages that were taken so far, and whether no more will come.

    Any thread may call its methods.
    """

    def __init__(
        self,
        core: ConnectionCore,
        name: str,
        leases: Leases,
        buffer_state: Callable[[], tuple[list[Delivery], int, bool]],
    ) -> None:
        self._core = core
        self._name = name
        self._leases = leases
        self._buffer_state = weakref.WeakMethod(buffer_state)
        # The message that each thread had when it asked for another one.
        self._left: dict[int, JetStreamMsg] = {}
        # --- the timer's thread alone ---
        # The messages that were being handled last time, and when each was found first.
        self._since: dict[int, tuple[JetStreamMsg, float]] = {}
        # The messages that were taken, and since when their number is the same.
        self._taken = (-1, _NEVER)
        self._lock = threading.Lock()
        # --- under _lock ---
        self._timer: threading.Timer | None = None
        self._stopped = False
        self._arm()

    def _arm(self) -> None:
        with self._lock:
            if not self._stopped:
                seconds = self._leases.interval()
                self._timer = start_timer(f"leases-{self._name}", seconds, self._tick)

    def _tick(self) -> None:
        buffer_state = self._buffer_state()
        if buffer_state is None or self._core.writer.closed is not None:
            return
        # The new leases begin now. What comes after this has just got its first.
        now = monotonic()
        buffered, taken, ending = buffer_state()
        del buffer_state
        at_hand = self._at_hand(now)
        if ending and not (buffered or at_hand):
            return
        if self._core.address is not None:
            replies = [msg.ack_subject for msg in at_hand]
            if self._is_read(taken, now):
                replies += self._leases.renewed(buffered, now)
            try:
                for reply in replies:
                    send_in_progress(self._core, reply)
                self._core.writer.send_buffered()
            except Error:
                pass  # the link just broke, or the connection is closed
        self._arm()

    def _is_read(self, taken: int, now: float) -> bool:
        """Return whether messages are being taken from the iterator."""
        if taken != self._taken[0]:
            self._taken = (taken, now)
        return now - self._taken[1] < _MAX_RENEWED_S

    def _at_hand(self, now: float) -> list[JetStreamMsg]:
        """Return the messages that are being handled."""
        running = _running()
        since: dict[int, tuple[JetStreamMsg, float]] = {}
        for ident, msg in tuple(self._leases.last_taken.items()):
            if ident not in running:
                self._leases.last_taken.pop(ident, None)
                self._left.pop(ident, None)
            elif not msg.is_acked and self._left.get(ident) is not msg:
                known = self._since.get(ident)
                since[ident] = known if known is not None and known[0] is msg else (msg, now)
        self._since = since
        return [msg for msg, first in since.values() if now - first < _MAX_RENEWED_S]

    def asked(self) -> None:
        """Note that the calling thread waits for another message: it is through with its last."""
        ident = threading.get_ident()
        msg = self._leases.last_taken.get(ident)
        if msg is not None:
            self._left[ident] = msg

    def stop(self) -> None:
        """End it; a renewal that goes on just now is not waited for."""
        with self._lock:
            self._stopped = True
            if self._timer is not None:
                self._timer.cancel()

    def forked(self) -> None:
        """End it in a forked child, where its thread does not exist and may have held its locks."""
        self._lock = threading.Lock()
        self._stopped = True
        self._timer = None
