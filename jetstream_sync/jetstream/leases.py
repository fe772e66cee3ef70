"""Leases: for how long a delivered message belongs to this client, and how they are renewed."""

# A consumer with ack policy explicit redelivers a message after its ack_wait, or the step of its
# backoff. Until then the message is leased to the client that received it.
#
# Rules:
#
# 1. The reader timestamps a run of messages, at most once per fraction of a lease. There is no work per
#    message. The run of a message is found by its consumer sequence, and only when it is needed.
# 2. The taking thread compares the clock with `Leases.fresh_until`, and checks the message itself only
#    after that time.
# 3. A message with an expired lease is dropped: the server redelivers it with a new lease.
# 4. If a handler starts in time and ends late, another delivery of its message is in flight. That
#    delivery is dropped when it is taken after the first one was settled.
# 5. Before a message is dropped, the consumer config is read again, once per lease: ack_wait may have
#    become longer.
# 6. An acknowledgement with the policy all settles all earlier messages, including dropped ones.
#    Nothing is dropped there, nor with the policies without acknowledgements.
#
# The monotonic clock may stop while the computer sleeps (on Linux it does), so a lease seems longer then.

from __future__ import annotations

import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterable
from typing import Final

from .. import errors
from ..api.consumer import ConsumerConfig
from ..api.enums import AckPolicy
from ..client.core import ConnectionCore
from ..client.mailbox import first_items
from ..client.threads import Signal, start_timer
from ..lease_times import RENEWAL_FRACTION, LeaseTimes
from ..locks import new_lock
from ..net.clock import Deadline, monotonic
from ..protocol.parser import RawMessage
from ..subjects import ACK_PREFIX, ack_tokens
from .api_requests import APIRequests
from .consumer_requests import consumer_info
from .message import JetStreamMsg, send_in_progress

_NEVER: Final = float("-inf")
_ALWAYS: Final = float("inf")
#: Messages read within this fraction of a lease form one run, with the timestamp of the first.
_RUN_FRACTION: Final = 0.02
#: Number of leases after which no further delivery of a late settled message is expected.
_LATE_LEASES: Final = 2
#: Number of remembered threads above which ended threads are removed.
_MAX_REMEMBERED_THREADS: Final = 64
#: Timeout for reading the consumer config, in seconds.
_VERIFY_TIMEOUT_S: Final = 1.0
#: Seconds after which the leases of a thread that takes no more messages are not renewed.
_MAX_RENEWED_S: Final = 3600.0


class ReceiveTimes:
    """The times when runs of messages were read, recorded by the reader thread."""

    # The connection's reader holds this object, so it refers to nothing that keeps the connection open.

    __slots__ = ("recorded", "run_length", "runs")

    def __init__(self) -> None:
        #: Seconds within which all messages belong to one run.
        self.run_length: float = 0.0
        #: Monotonic time of the last run; infinite: no times are needed.
        self.recorded: float = _ALWAYS
        #: The first reply subject and the time of each run.
        self.runs: deque[tuple[bytes, float]] = deque()

    def received(self, deliveries: list[RawMessage], now: float) -> None:
        """Record when messages were read; called before they are enqueued."""
        if now - self.recorded < self.run_length:
            return
        for _, reply, _, _ in deliveries:
            if reply.startswith(ACK_PREFIX):  # no status
                self.recorded = now
                self.runs.append((reply, now))
                return


class NoLeases:
    """The leases of a consumer whose messages have none: they can be returned at any time."""

    #: Monotonic time until which a message can be returned without a check.
    fresh_until: float = _ALWAYS
    #: The last message taken by each thread, by thread identifier; ``None``: not needed.
    last_taken: dict[int, JetStreamMsg] | None = None
    #: Whether a message is about to be dropped because of a config that may be out of date.
    unsure: bool = False

    def admits(self, reply: bytes) -> bool:
        """Return whether a message taken after `fresh_until` still has its lease."""
        del reply
        return True

    def verify(self) -> None:
        """Read the consumer config if `unsure` is set."""


class Leases(NoLeases):
    """The leases of the messages that a client received from one consumer."""

    # The reader thread calls `times.received()`; any thread may call the methods of this class.

    def __init__(
        self, api: APIRequests, stream: str, consumer: Callable[[], str], config: ConsumerConfig
    ) -> None:
        self._api = api
        self._stream = stream
        self._consumer = consumer
        self.last_taken: dict[int, JetStreamMsg] = {}
        self.unsure: bool = False
        self.times: ReceiveTimes = ReceiveTimes()
        self._lock = new_lock()
        # --- under _lock ---
        # The run of the last checked message: the consumer sequence of its first message, and when it was
        # read, or its leases were renewed.
        self._run_first = 0
        self._run_received = _NEVER
        self._checked = _NEVER  # when the config was last read
        # Messages being handled when a lease expired, by stream sequence, and the time until which
        # another delivery of them may arrive.
        self._late: dict[int, JetStreamMsg] = {}
        self._late_until = _NEVER
        self.adopt(config)

    def adopt(self, config: ConsumerConfig) -> None:
        """Apply another config of the consumer."""
        leased = config.ack_policy == AckPolicy.EXPLICIT
        self._waits = LeaseTimes(config)
        self._shortest = self._waits.shortest if leased else _ALWAYS
        self.times.run_length = self._shortest * _RUN_FRACTION
        self.times.recorded = _NEVER if leased else _ALWAYS
        self.fresh_until: float = _NEVER if leased else _ALWAYS
        self._expiry = _NEVER  # when the first lease of the current run expires

    # --- called by the taking threads -------------------------------------------------------------

    def admits(self, reply: bytes) -> bool:
        """Return whether a message taken after `fresh_until` still has its lease."""
        # If not, and `unsure` is set, the caller keeps the message, calls `verify()`, and asks
        # again.
        numbers = _numbers(reply)
        if numbers is None:
            return True  # not from a stream: the user has to handle that
        count, sequence, position = numbers
        now = monotonic()
        with self._lock:
            self.unsure = False
            if now >= self._expiry:
                self._note_late(now)
            self._advance(position)
            received = self._run_received
            self._expiry = received + self._shortest
            late = self._late_copy(sequence, reply, now)
            self.fresh_until = _NEVER if self._late else self._expiry
            if late:
                return False
            if received == _NEVER or now < received + self._waits.of(count):
                return True
            self.unsure = self._checked < received
            return False

    def _advance(self, position: int) -> None:
        """Advance to the run of a delivery; ``_lock`` is held."""
        runs = self.times.runs
        while runs:
            reply, received = runs[0]
            first = _position(reply)
            if first > position:
                return
            runs.popleft()
            if first >= 0:
                self._run_first, self._run_received = first, received

    def _note_late(self, now: float) -> None:
        """Remember the messages being handled when a lease expires; ``_lock`` is held."""
        last_taken = self.last_taken
        if len(last_taken) > _MAX_REMEMBERED_THREADS:
            for ident in set(last_taken).difference(_running()):
                last_taken.pop(ident, None)
        for msg in last_taken.copy().values():  # other threads add to it
            numbers = _numbers(msg.ack_subject)
            if numbers is not None:
                self._late[numbers[1]] = msg
        self._late_until = now + self._shortest * _LATE_LEASES

    def _late_copy(self, sequence: int, reply: bytes, now: float) -> bool:
        """Return whether a message was settled while this delivery was in flight; ``_lock`` is held."""
        if now >= self._late_until:
            self._late.clear()
        msg = self._late.get(sequence)
        if msg is None or msg.ack_subject == reply or not msg.is_done:
            return False
        if ack_tokens(msg.ack_subject)[5] != ack_tokens(reply)[5]:
            return False  # a message of a recreated stream, stored at another time
        # Only once: if the acknowledgement was lost, the next delivery is returned.
        del self._late[sequence]
        return True

    def verify(self) -> None:
        """Read the consumer config if `unsure` is set; this waits for the reply."""
        if not self.unsure:
            return
        self.unsure = False
        config = None
        core = self._api.core
        if core.address is not None:
            try:
                deadline = Deadline(_VERIFY_TIMEOUT_S)
                config = consumer_info(self._api, self._stream, self._consumer(), deadline).config
            except errors.Error:
                pass  # deleted or not permitted: keep the known config
        with self._lock:
            self._checked = monotonic()
            if config is not None and LeaseTimes(config).waits != self._waits.waits:
                self.adopt(config)

    # --- renewing -------------------------------------------------------------------------------

    def interval(self) -> float:
        """Return the seconds between two renewals."""
        return self._shortest * RENEWAL_FRACTION

    def renewed(self, deliveries: Iterable[RawMessage], now: float) -> list[bytes]:
        """Record new leases, and return the reply subjects of the messages to renew."""
        # An expired lease cannot be renewed: the server may have redelivered the message.
        with self._lock:
            live = now < self._run_received + self._shortest
            horizon = self._run_first if live else _ALWAYS
            if live:
                self._run_received = now
            # The reader may append a run meanwhile; it has just received its first lease.
            for index, (reply, received) in enumerate(first_items(self.times.runs)):
                if now < received + self._shortest:
                    horizon = min(horizon, _position(reply))
                    self.times.runs[index] = (reply, now)
            if live:
                self._expiry = now + self._shortest
                self.fresh_until = _NEVER if self._late else self._expiry
        return [reply for _, reply, _, _ in deliveries if _position(reply) >= horizon]


def _numbers(reply: bytes) -> tuple[int, int, int] | None:
    """Return the delivery count, stream sequence and consumer sequence of a message, if it has any."""
    try:
        _, _, delivered, stream_seq, consumer_seq, _, _ = ack_tokens(reply)
        return int(delivered), int(stream_seq), int(consumer_seq)
    except (errors.NotJSMessageError, ValueError):
        return None


def _position(reply: bytes) -> int:
    """Return a delivery's consumer sequence; -1: it has none."""
    numbers = _numbers(reply)
    return -1 if numbers is None else numbers[2]


def _running() -> set[int | None]:
    """Return the identifiers of the threads that are running."""
    return {thread.ident for thread in threading.enumerate()}


class LeaseRenewer:
    """Renews the leases of an iterator's messages: those in its buffer and those being handled."""

    # A message is being handled from the moment a thread takes it until it is settled, the thread asks
    # for the next message, or the thread ends. The leases of a hanging thread, and of an iterator that
    # is not read, are renewed for one hour.
    #
    # One timer serves all messages. It ends with the iterator or the connection.
    #
    # Any thread may call its methods.

    def __init__(
        self,
        core: ConnectionCore,
        name: str,
        leases: Leases,
        buffer_state: Callable[[], tuple[list[RawMessage], int, bool]],
    ) -> None:
        self._core = core
        self._name = name
        self._leases = leases
        self._buffer_state = weakref.WeakMethod(buffer_state)
        # The last message of each thread when it asked for another one.
        self._left: dict[int, JetStreamMsg] = {}
        # --- the timer's thread alone ---
        # The messages being handled at the last tick, with the time when each was seen first.
        self._since: dict[int, tuple[JetStreamMsg, float]] = {}
        # The number of taken messages, and since when it is unchanged.
        self._taken = (-1, _NEVER)
        self._stopped = Signal()

    def start(self) -> None:
        """Start the timer; the caller holds the renewer by now, so that it can always be stopped."""
        name, interval = f"leases-{self._name}", self._leases.interval()
        start_timer(name, interval, self._tick, self._stopped, self._core.events.error)

    def _tick(self) -> float | None:
        buffer_state = self._buffer_state()
        if buffer_state is None or self._core.closed_reason is not None:
            return None
        # The new leases begin now. Later messages have just received their first lease.
        now = monotonic()
        buffered, taken, ending = buffer_state()
        del buffer_state
        at_hand = self._at_hand(now)
        if ending and not (buffered or at_hand):
            return None
        if self._core.address is not None:
            replies = [msg.ack_subject for msg in at_hand]
            if self._is_read(taken, now):
                replies += self._leases.renewed(buffered, now)
            try:
                for reply in replies:
                    send_in_progress(self._core, reply)
                self._core.writer.send_buffered()
            except errors.Error:
                pass  # the link just broke, or the connection is closed
        return self._leases.interval()

    def _is_read(self, taken: int, now: float) -> bool:
        """Return whether messages are being taken from the iterator."""
        if taken != self._taken[0]:
            self._taken = (taken, now)
        return now - self._taken[1] < _MAX_RENEWED_S

    def _at_hand(self, now: float) -> list[JetStreamMsg]:
        """Return the messages that are being handled."""
        running = _running()
        since: dict[int, tuple[JetStreamMsg, float]] = {}
        for ident, msg in self._leases.last_taken.copy().items():
            if ident not in running:
                self._leases.last_taken.pop(ident, None)
                self._left.pop(ident, None)
            elif not msg.is_acked and self._left.get(ident) is not msg:
                known = self._since.get(ident)
                since[ident] = known if known is not None and known[0] is msg else (msg, now)
        self._since = since
        return [msg for msg, first in since.values() if now - first < _MAX_RENEWED_S]

    def asked(self) -> None:
        """Record that the calling thread waits for another message, so its last one is handled."""
        ident = threading.get_ident()
        msg = self._leases.last_taken.get(ident)
        if msg is not None:
            self._left[ident] = msg

    def stop(self) -> None:
        """Stop the timer, without waiting for a running renewal."""
        self._stopped.set()
