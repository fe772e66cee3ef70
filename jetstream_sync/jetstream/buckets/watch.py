"""Watch the messages of a bucket: first those that exist, then every change."""

# `Watch` reads through an ordered consumer. Rules:
#
# 1. One thread at a time takes entries. It also creates the consumer again after a failure and finds out
#    when the watch is current. There is no other thread and no timer. `Watch.stop` takes no lock.
# 2. The watch is current once, at the first of these events: the reply to CONSUMER.CREATE reports nothing
#    pending; as many messages as it reported were received, and none of them is newer than the last
#    sequence of the stream before the request; otherwise the values that were replaced before their
#    delivery have been received as well (see `_Initial`); CONSUMER.INFO reports that everything
#    was delivered, was received, and that nothing is pending. The last one covers messages that were
#    removed before their delivery. Silence alone decides nothing. If the stream has replicas, each of
#    these events counts only when the leader's last message of the filters was received, since the
#    replica of the consumer may lag behind.
# 3. Before that, a consumer of the last message per subject starts from scratch after a failure, because
#    the stream holds older revisions behind the last sequence. Revisions that were handed out are dropped.
#    Afterwards a new consumer starts behind the last message.
# 4. Markers of deletions may be removed while the watch has no consumer. With each further one it compares the
#    keys that it has returned with those of the stream, and makes a marker, with delivery number 0, for each
#    missing key.
# 5. If the bucket is another one (see `OrderedCursor`), or none of the last messages shows that it is not, the
#    watch is not current any more, and starts again with all values; see rule 4 for missing keys.

from __future__ import annotations

import logging
import re
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any, Final, Generic, NamedTuple, TypeVar, cast
from weakref import WeakMethod

from ... import errors
from ...api.consumer import ConsumerInfo
from ...api.enums import DeliverPolicy
from ...api.pull import ContinuousPull
from ...api.stream import MsgGetRequest
from ...client.threads import call_to_end
from ...durations import time_to_ns
from ...locks import call_and_record, new_rlock
from ...net.clock import FOREVER, BackoffDelay, Deadline, monotonic
from ...protocol.parser import REPLY, SUBJECT, RawMessage
from ...subjects import ACK_PREFIX, ack_tokens, selects_itself
from ..api_requests import APIRequests, stream_info, within
from ..continuous_pull import until_stopped
from ..direct_get import leader_get
from ..message import JetStreamMsg
from ..ordered_cursor import (
    UNREAD_LIMIT_S,
    CursorOptions,
    OrderedCursor,
    OrderedOptions,
    ReadMode,
    pull_cursor,
)
from ..ordered_reader import (
    CHECK_TIMEOUT_S,
    HEARTBEAT_S,
    OrderedReader,
)
from ..pull import PullRequester

if TYPE_CHECKING:
    from typing_extensions import Self

E = TypeVar("E")
T = TypeVar("T")

log: logging.Logger = logging.getLogger("jetstream_sync.watch")

#: Maximum number of received messages that were not taken yet.
_MAX_BUFFERED: Final = 1000
#: Seconds without a message after which CONSUMER.INFO is requested, while the watch is not current:
#: the first time and the maximum; the delay doubles each time.
_FIRST_CHECK_S: Final = 0.25
_MAX_CHECK_S: Final = 5.0
#: Seconds without a message after which a current watch of a replicated bucket is compared with the leader, and
#: seconds in which a message that it lacks may still arrive.
_IDLE_CHECK_S: Final = 30.0
_ARRIVAL_S: Final = 1.0
#: Maximum number of rounds in which replaced values are read before a watch is current.
_MAX_CATCH_UPS: Final = 20
#: Checks that find the same pending messages undelivered, after which the consumer is replaced, and the
#: number of replaced consumers after which an error is raised.
_STALLED_CHECKS: Final = 3
_MAX_REPLACED: Final = 4
#: Maximum number of the last messages that are looked for after a loss of the consumer.
_MAX_VERIFIED: Final = 16
#: Minimum timeout of the comparison of keys, in seconds.
_MIN_LOST_TIMEOUT_S: Final = 0.25


@lru_cache(maxsize=4)
def _pull(max_messages: int, heartbeat_s: float) -> ContinuousPull:
    return ContinuousPull.of({"max_messages": max_messages, "heartbeat": heartbeat_s})


class _DeliveryRequester(PullRequester):
    """Returns deliveries as they were received; the watch makes its entries of them."""

    def make(self, delivery: RawMessage) -> Any:
        """Return the delivery."""
        return delivery


@dataclass(slots=True, eq=False)
class _WatchState:
    """The state of a watch; all but `stopped` is guarded by its lock."""

    initial: _Initial | None = None
    """What makes the watch current; ``None``: it is."""
    markers_lost: bool = False
    """Whether markers may have been removed while there was no consumer."""
    compare_at: float = 0.0
    """When the position of an idle watch is compared with the leader; 0: not yet known."""
    behind: int | None = None
    """The position after which the leader had a message at the last comparison; ``None``: it had none."""
    stopped: bool = False
    """Whether `Watch.stop` was called."""
    received: deque[RawMessage] = field(default_factory=deque)
    """Messages that have arrived and were not taken, in order."""
    lost: deque[RawMessage] = field(default_factory=deque)
    """Markers for the keys that are missing."""
    buffer: deque[Any] = field(default_factory=deque)
    """Entries that `Watch.wait_current` has read."""


class Markers(NamedTuple):
    """The markers of deletions in a bucket."""

    has_value: Callable[[RawMessage], bool]
    """Returns whether a message is a value, and not a marker."""

    make: Callable[[bytes], tuple[bytes, bytes]]
    """Returns the header block and the payload of the marker for a subject."""


def _stream_seq(reply: bytes) -> int:
    return int(ack_tokens(reply)[3])


def is_made_up(reply: bytes) -> bool:
    """Return whether a message was not delivered, but made for a key that is missing."""
    return ack_tokens(reply)[4] == b"0"


@dataclass(slots=True, eq=False)
class _Initial:
    """The state of a watch until it is current, and the events that make it current (rule 2)."""

    # Guarded by the lock of the watch.

    cursor: OrderedCursor
    messages: OrderedReader
    seen: dict[bytes, bytes] = field(default_factory=dict)
    """Subject -> last reply subject, to drop revisions that were handed out before a failure."""
    left: int = 0
    """Messages that are left of those that the current consumer announced."""
    rounds: int = 0
    """Rounds after the announced messages; see `_is_complete`."""
    target: int = 0
    """The stream sequence at which the round ends."""
    quiet: tuple[str, int] = ("", 0)
    """The consumer and the number of its messages at the last check."""
    check_at: float = 0.0
    check_delays: BackoffDelay = field(
        default_factory=partial(BackoffDelay, _FIRST_CHECK_S, _MAX_CHECK_S)
    )
    stalled: int = 0
    """Checks in a row that found the same messages undelivered."""
    replaced: int = 0
    """Consumers in a row that were replaced because nothing arrived."""

    def received(self, count: int) -> None:
        """Count messages that have arrived and were not taken."""
        self.replaced = 0
        consumer = self.cursor.consumer
        if consumer is not None:  # otherwise the watch was stopped
            self.left = consumer.pending - self.cursor.consumer_seq + count

    def is_new(self, delivery: RawMessage) -> bool:
        """Return whether no later revision of a message was handed out before."""
        if self.cursor.reading is not ReadMode.INITIAL_FROM_START:
            return True
        subject, reply, _, _ = delivery
        before = self.seen.get(subject)
        if before is not None and _stream_seq(before) >= _stream_seq(reply):
            return False
        self.seen[subject] = reply
        return True

    def is_complete_after(self, reply: bytes) -> bool:
        """Count a message that is taken; return whether the watch is current after it."""
        self.left -= 1
        if self.rounds:
            return _stream_seq(reply) >= self.target and self._is_complete(reply)
        # The last token alone is compared first, because this runs for each initial message.
        if self.left <= 0 or (reply.endswith(b".0") and ack_tokens(reply)[6] == b"0"):
            return self._is_complete(reply)
        return False

    def _is_complete(self, reply: bytes) -> bool:
        """Return whether nothing is missing up to a message; otherwise set the end of another round."""
        # A message that is replaced before its delivery is delivered with its new sequence, behind
        # the others, and new subjects may take its place in the count. A message can report that
        # nothing is pending although there are such messages, because the server counts a stored
        # message with a delay. So the count is complete only with messages that existed before the
        # consumer. Otherwise the watch reads on up to the present end of the stream, again if
        # values were replaced meanwhile. The number of rounds is limited.
        consumer = self.cursor.consumer
        tokens = ack_tokens(reply)
        position = int(tokens[3])
        known = consumer is None or (
            position <= self.cursor.known.end and int(tokens[4]) >= consumer.pending
        )
        if self.rounds == _MAX_CATCH_UPS or (known and not self._is_behind(position)):
            return True
        if not known:
            try:
                self.target = self.cursor.last_seq(within(Deadline(CHECK_TIMEOUT_S)))
            except errors.Error:
                return False  # the connection is lost, or the check after a silence decides
        self.rounds += 1
        return not known and self.target <= position

    def is_empty(self) -> bool:
        """Return whether nothing was pending when the current consumer was created."""
        consumer = self.cursor.consumer
        return consumer is not None and not consumer.pending and not self._is_behind()

    def _is_behind(self, position: int | None = None) -> bool:
        """Return whether the leader has matching messages behind a position, by default the last received."""
        # The consumer counts what its own replica of the stream has, which can lag behind the
        # leader. The messages up to the last one of the leader are then the target of the next
        # round.
        cursor = self.cursor
        position = cursor.position if position is None else position
        if not cursor.known.replicated or position >= cursor.known.end:
            return False
        try:
            self.target = cursor.last_match(within(Deadline(CHECK_TIMEOUT_S)))
        except (errors.PermissionsError, errors.NoRespondersError):
            return False  # the user may not ask
        except errors.Error:
            return True  # the connection or the leader is lost: the next check decides
        return self.target > position

    def check(self, deadline: Deadline) -> bool:
        """Return whether the watch is current after a silence; `PullError`: new consumers have not helped."""
        consumer = self.cursor.consumer
        if consumer is None:
            return False
        if self.is_empty():
            return True
        received = self.cursor.consumer_seq
        now = monotonic()
        if self.quiet != (consumer.name, received):
            self.quiet = consumer.name, received
            self.check_delays.reset()
            self.check_at = now  # a wait has just ended
            self.stalled = 0
        if now < self.check_at:
            return False
        self.check_at = now + self.check_delays.next()
        left = deadline.left()  # a caller that does not wait must learn it, too
        limit = FOREVER if left is None else Deadline(max(left, _MIN_LOST_TIMEOUT_S))
        state = self.messages.silent_state(limit)
        if state is None:
            return False
        everything = state.delivered.consumer_seq == received and not state.num_pending
        if everything and not self._is_behind():
            return True
        self.stalled += 1
        if self.stalled == _STALLED_CHECKS:
            self._replace(state)
        return False

    def _replace(self, state: ConsumerInfo) -> None:
        """Replace a consumer whose pending messages the server does not deliver, or do not arrive."""
        received = self.cursor.consumer_seq
        self.messages.replace_consumer("the consumer delivers nothing", FOREVER)
        self.replaced += 1
        if self.replaced == _MAX_REPLACED:
            self.replaced = 0
            raise errors.PullError(
                409,
                f"stream {self.cursor.stream!r} has messages for the watch that do not arrive: "
                f"{state.delivered.consumer_seq} were sent, {received} arrived, "
                f"{state.num_pending} are pending",
            )


def _in_json(subject: str) -> str:
    """Return a subject in which any number of bytes that are not UTF-8 are one character: a server replaces them."""
    return re.sub("\ufffd+", "\ufffd", subject)


@dataclass(slots=True, eq=False)
class _LiveKeys:
    """The subjects that the caller of a watch knows with a value."""

    api: APIRequests
    stream: str
    markers: Markers
    filters: Sequence[str]
    subjects: set[bytes] = field(default_factory=set)
    recent: deque[tuple[bytes, bytes]] = field(default_factory=partial(deque, maxlen=_MAX_VERIFIED))
    """The subjects and reply subjects of the last messages."""

    def verify(self, position: int, deadline: Deadline) -> bool | None:
        """Return whether the stream is the known one; ``None``: none of the last messages shows it."""
        checked: set[bytes] = set()
        for subject, reply in reversed(self.recent):
            if subject in checked:
                continue  # a later message has replaced this one
            checked.add(subject)
            name, tokens = subject.decode("utf-8", "surrogateescape"), ack_tokens(reply)
            if not selects_itself(name):
                continue  # of another client; no request can ask for it
            request = MsgGetRequest(last_by_subj=name)
            try:
                found = leader_get(self.api, self.stream, request, deadline)
            except errors.MessageNotFoundError:
                continue  # see `lost`
            except (errors.PermissionsError, errors.NoRespondersError):
                return True  # the user may not ask
            if found.seq == int(tokens[3]) and found.time_ns == int(tokens[5]):
                return True
            if found.seq <= position:
                return False
        return None

    def record(self, delivery: RawMessage) -> None:
        """Record a value or a marker."""
        self.recent.append(delivery[:2])
        if self.markers.has_value(delivery):
            self.subjects.add(delivery[SUBJECT])
        else:
            self.subjects.discard(delivery[SUBJECT])

    def lost(self, deadline: Deadline) -> list[RawMessage] | None:
        """Return a marker for each key that had a value, and is not in the bucket any more."""
        # Its marker was stored while the watch had no consumer, and was removed before there was
        # another; or the bucket is another one. None: the stream cannot be asked now.
        if not self.subjects:
            return []
        stored: set[str] = set()
        try:
            for pattern in self.filters:
                info = stream_info(self.api, self.stream, pattern, deadline=deadline)
                stored.update(info.state.subjects or ())
        except (errors.PermissionsError, errors.NoRespondersError):
            log.warning("watch of %r: keys without a marker are not noticed", self.stream)
            return []
        except errors.Error:
            return None
        # The reply subject that the marker of the last sequence would have.
        created = time_to_ns(info.ts or info.created)
        parts = self.stream, "_", 1, info.state.last_seq, 0, created, 0
        reply = ACK_PREFIX + ".".join(map(str, parts)).encode()
        replaced = {_in_json(name) for name in stored if "\ufffd" in name}
        missing = [
            subject
            for subject in sorted(self.subjects)
            if subject.decode("utf-8", "surrogateescape") not in stored
            and _in_json(subject.decode("utf-8", "replace")) not in replaced
        ]
        self.subjects.difference_update(missing)
        return [(subject, reply, *self.markers.make(subject)) for subject in missing]


class Watch(Generic[E]):
    """
    The entries of a bucket and every change, as an iterator that ends only when it is stopped.

    Returned by `KeyValue.watch` and `ObjectStore.watch` without a callback. Use it in a ``with`` block,
    so that its consumer on the server is deleted at the end. A watch that is garbage-collected while it is open
    is stopped, with a `ResourceWarning`. It continues after a lost connection, a restart of the server and a
    leader change. Any thread may call its methods; one thread at a time takes entries.

    Example::

        with kv.watch("orders.>") as watch:
            for entry in watch.initial():
                print("exists", entry.key)
            for entry in watch:
                print("changed", entry.key, entry.operation)

    """

    def __init__(
        self,
        api: APIRequests,
        stream: str,
        options: OrderedOptions,
        make: Callable[[RawMessage], E | None],
        not_found: Callable[[], errors.Error],
        markers: Markers | None = None,
        timeout: float | timedelta | None = None,
    ) -> None:
        """Create the consumer of the watch."""
        # `markers`: ``None``: the watch ends if the bucket is another one; otherwise it starts again, and
        # reports the keys that are missing.
        # `options`: the filters and the deliver policy of the consumer; with the policy ``new`` the
        # watch is current from the start.
        # `timeout`: how long that may take; ``None``: the timeout of the context.
        # `make`: makes the entry of a message; ``None``: there is none to hand out. It must not raise.
        #
        # Raises Error: the result of ``not_found``: the bucket does not exist.
        # Raises StreamRecreatedError: the start sequence is beyond the next one of the stream.
        # Raises BadRequestError: the server rejected the consumer.
        # Raises TimeoutError: the server did not reply in time.
        # Raises ConnectionClosedError: the connection is closed.
        self._api = api
        self._make = make
        self._not_found = not_found
        policy = options.get("deliver_policy")
        from_scratch = policy == DeliverPolicy.LAST_PER_SUBJECT
        further: CursorOptions = {
            "reading": ReadMode.INITIAL_FROM_START if from_scratch else ReadMode.INITIAL
        }
        self._live: _LiveKeys | None = None
        if markers is not None:
            filters = options["filter_subjects"]
            filters = [filters] if isinstance(filters, str) else filters
            self._live = _LiveKeys(api, stream, markers, filters)
            further["verify"] = self._live.verify
            # Weak, because the messages hold the cursor, and a watch that is collected is stopped.
            method = WeakMethod(self._on_recreated)
            further["on_recreated"] = lambda error: (call := method()) and call(error)
        self._cursor = cursor = pull_cursor(api, stream, options, UNREAD_LIMIT_S, **further)
        # All revisions are read again if the caller wanted all from the start, or from a revision on.
        keeps_all = policy in (DeliverPolicy.ALL, DeliverPolicy.BY_START_SEQUENCE)
        self._policy_again = DeliverPolicy.ALL if keeps_all else DeliverPolicy.LAST_PER_SUBJECT
        # Called when the watch starts again, before the entries of the other bucket.
        self._recreated_cb: Callable[[], object] | None = None
        self._state = _WatchState()
        pull = _pull(_MAX_BUFFERED, HEARTBEAT_S)
        self._messages = OrderedReader(api, cursor, pull, _DeliveryRequester)
        # Reentrant: a Ctrl-C just after it was acquired must not lock out the main thread itself.
        self._lock = new_rlock()
        # --- under _lock ---
        self._state.initial = _Initial(cursor, self._messages)
        if policy == DeliverPolicy.NEW:
            self._set_current()
        what = f"a watch of {stream!r}"
        self._stop_dropped = api.core.stop_dropped(
            self, self._messages.is_open, self._messages.stop, what
        )
        try:
            self._messages.start(api.deadline(timeout))
            if self._state.initial is not None and self._state.initial.is_empty():
                self._set_current()
        except errors.StreamNotFoundError as error:
            raise not_found() from error
        except BaseException:
            self.stop()
            raise

    # --- taking entries -------------------------------------------------------------------------

    def next(self, timeout: float | timedelta | None = None) -> E:
        """
        Wait for the next entry and return it.

        Args:
            timeout: in seconds; ``None``: no limit; 0: do not wait.

        Raises:
            TimeoutError: there was no entry in time; the watch stays usable.
            IteratorClosedError: the watch was stopped.
            BucketNotFoundError: the bucket was deleted, and not created again within half a second.
            BadRequestError, PermissionsError: the server refuses a new consumer.
            PullError: the server has messages for the watch, but none arrives; the watch stays usable.
            ConnectionClosedError: the connection is closed.

        """
        self._api.core.writer.check_not_forked()
        deadline = FOREVER if timeout is None else Deadline(timeout)
        while True:
            entry = self._turn(self._next_entry, deadline)
            if entry is not None:
                return entry

    def __iter__(self) -> Iterator[E]:
        """Yield entries until the watch is stopped; raise any other reason for the end."""
        return until_stopped(lambda _: self.next())

    def __next__(self) -> E:
        """Return the next entry, as an iteration does."""
        return next(iter(self))

    def initial(self, timeout: float | timedelta | None = None) -> Iterator[E]:
        """
        Yield the entries that exist, and end when the watch is current.

        It ends at once if they were taken already. A later iteration over the watch continues.

        Args:
            timeout: how long to wait for the next message of the server, in seconds; ``None``: no limit.

        Raises:
            TimeoutError: no message arrived in time; the watch stays usable.
            IteratorClosedError: the watch was stopped before it was current.
            Error: otherwise as `next()`.

        """
        self._api.core.writer.check_not_forked()
        deadline = Deadline(timeout)
        received = 0
        while True:
            entries = self._turn(self._next_initial, deadline, until_current=True)
            if entries is None:
                return
            yield from entries
            if timeout is not None and (entries or received != self._cursor.consumer_seq):
                received = self._cursor.consumer_seq
                deadline = Deadline(timeout)

    def _turn(
        self, step: Callable[[Deadline], T], deadline: Deadline, *, until_current: bool = False
    ) -> T | None:
        """Take a step while no other thread does; ``None``: the watch has become current before."""
        while True:
            # Read before it is checked whether the watch is current: see `_set_current`.
            lock = self._lock
            waits = not (until_current and self._state.initial is None)
            # A Ctrl-C may come between the last steps of the thread that makes the watch current.
            limit = deadline.sooner(_MAX_CHECK_S) if until_current else deadline
            acquired: list[bool] = []
            try:
                call_and_record(
                    acquired, lock.acquire, waits, limit.lock_timeout() if waits else -1
                )
                if True in acquired and lock is self._lock:
                    return step(deadline)
            finally:
                if True in acquired:
                    lock.release()
            if until_current and self._state.initial is None:
                return None
            if True not in acquired and deadline.expired():
                raise errors.TimeoutError("another thread is still waiting for an entry")

    def _next_entry(self, deadline: Deadline) -> E | None:
        """Return the next buffered entry, or that of the next message, if any; ``_lock`` is held."""
        if self._state.buffer and not self._state.stopped:
            return self._state.buffer.popleft()  # type: ignore[no-any-return]
        return self._advance(deadline)

    def _next_initial(self, deadline: Deadline) -> list[E] | None:
        """Return the next initial entry, if any; ``None``: all were taken; ``_lock`` is held."""
        if self._state.initial is None and not self._state.buffer:
            return None
        entry = self._next_entry(deadline)
        return [] if entry is None else [entry]

    def _read_ahead(self, deadline: Deadline) -> None:
        """Put the next initial entry into the buffer; ``_lock`` is held."""
        if self._state.initial is not None:
            entry = self._advance(deadline)
            if entry is not None:
                self._state.buffer.append(entry)

    # --- the initial entries --------------------------------------------------------------------

    @property
    def _stream_created(self) -> str:
        """The creation time of the stream that is read, as the server has written it; empty: not known."""
        return self._cursor.known.created

    @property
    def is_current(self) -> bool:
        """
        Whether all entries that existed at the start were received.

        It becomes false only when the bucket was deleted and created again, or restored to an earlier state,
        until all entries of that bucket were received.
        """
        return self._state.initial is None

    def wait_current(self, timeout: float | timedelta | None = None) -> None:
        """
        Wait until all entries that existed at the start were received.

        Entries that no other thread takes meanwhile are buffered, and later calls return them first.

        Args:
            timeout: in seconds; ``None``: no limit.

        Raises:
            TimeoutError: the watch was not current in time; it stays usable.
            Error: otherwise as `next()`.

        """
        self._api.core.writer.check_not_forked()
        deadline = Deadline(timeout)
        while self._state.initial is not None:
            self._turn(self._read_ahead, deadline, until_current=True)

    def _advance(self, deadline: Deadline) -> E | None:
        """Return the entry of the next message, if it has one; ``_lock`` is held."""
        state = self._state
        received, lost = state.received, state.lost
        if state.stopped:
            raise errors.IteratorClosedError("the watch was stopped")
        if not received and not lost and not self._receive(deadline):
            return None
        if lost and self._live is not None:
            return self._make(lost.popleft())
        delivery, initial = received[0], state.initial
        # This may ask the server. Until it is known, the message is not taken.
        is_current = initial is not None and initial.is_complete_after(delivery[REPLY])
        received.popleft()
        entry = self._make(delivery)
        if self._live is not None:
            self._live.record(delivery)
        is_new = initial is None or initial.is_new(delivery)
        if is_current:
            self._set_current()
        return entry if is_new else None

    def _set_current(self) -> None:
        """Make the watch current, as the last step of a turn; ``_lock`` is held."""
        self._cursor.reading = ReadMode.FOLLOWING
        self._state.initial = None
        # The threads that wait for their turn get the old lock at the end of this one, and see the change.
        # They would have to wait for the next message if the same thread took the same lock again.
        self._lock = new_rlock()

    def _on_recreated(self, error: errors.StreamRecreatedError) -> None:
        """Start again with all values of another bucket; called while another consumer is created."""
        self._api.core.events.error(error)
        self._cursor.read_state_again(self._policy_again)
        self._state.initial = _Initial(self._cursor, self._messages)
        if self._recreated_cb is not None:
            self._recreated_cb()

    def _receive(self, deadline: Deadline) -> bool:
        """Wait for messages and return whether there are any; ``_lock`` is held."""
        state = self._state
        initial = state.initial
        wait = deadline
        if initial is not None:
            wait = deadline.sooner(_FIRST_CHECK_S)
        if state.markers_lost and self._live is not None:
            left = deadline.left()  # a caller that does not wait must find them, too
            enough = self._api.timeout if left is None else max(left, _MIN_LOST_TIMEOUT_S)
            lost = self._live.lost(self._api.deadline(enough))
            if lost is None:
                wait = wait.sooner(_MAX_CHECK_S)  # tried again later
            else:
                state.markers_lost = False
                state.lost += lost
            if lost:
                return True
        if initial is None and self._cursor.known.replicated:
            state.compare_at = state.compare_at or monotonic() + _IDLE_CHECK_S
            wait = wait.sooner(max(0.0, state.compare_at - monotonic()))
        try:
            found = self._messages.read(wait, deadline)
            if not found:
                state.markers_lost = True
                return False
            state.received += found
            state.compare_at = 0.0
        except errors.TimeoutError:
            if initial is not None and initial.check(deadline):
                self._set_current()
                return False
            if initial is None and state.compare_at and monotonic() >= state.compare_at:
                self._compare()
            if not deadline.expired():
                return False
            raise
        except errors.StreamNotFoundError as error:
            raise self._not_found() from error
        if initial is not None:
            initial.received(len(state.received))
        return True

    def _compare(self) -> None:
        """Replace the consumer of an idle watch if its server lacks what the leader has; ``_lock`` is held."""
        # A consumer reads one replica of the stream, which can be stuck without an error.
        state, cursor = self._state, self._cursor
        position = max(cursor.position, cursor.stream_seq or 0)
        last = position
        with suppress(errors.Error):
            last = cursor.last_match(within(Deadline(CHECK_TIMEOUT_S)))
        is_stuck = last > position and state.behind == position
        state.behind = position if last > position and not is_stuck else None
        state.compare_at = monotonic() + (_ARRIVAL_S if last > position else _IDLE_CHECK_S)
        if is_stuck:
            log.warning("watch of %r: its server is behind the leader", cursor.stream)
            self._messages.replace_consumer("its server is behind the leader", FOREVER)

    def _source(
        self, on_current: Callable[[], None], on_recreated: Callable[[], object]
    ) -> _WatchSource[E]:
        """Return the source of a `WatchHandle`, whose thread holds the watch until its end."""
        self._recreated_cb = on_recreated
        self._stop_dropped.detach()
        return _WatchSource(self, on_current)

    # --- ending ---------------------------------------------------------------------------------

    def stop(self) -> None:
        """
        Stop the watch, drop the buffered entries, and delete its consumer on the server.

        Threads that wait for an entry get `IteratorClosedError`, and iterations end. The call does not
        wait for the server. A second call does nothing.
        """
        call_to_end(f"closer-{self._api.core.name}", self._stop)

    def _stop(self) -> None:
        self._state.stopped = True
        self._messages.stop()
        self._stop_dropped.detach()

    @property
    def closed(self) -> bool:
        """Whether the watch was stopped."""
        return self._messages.closed

    def drain(self, timeout: float | timedelta | None = None) -> None:
        """Request no more messages; see `WatchHandle.drain`."""
        self._messages.drain(timeout)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} on {self._cursor.stream!r}>"


class _WatchSource(Generic[E]):
    """The entries for the thread of a `WatchHandle`, which also calls ``current_cb``."""

    def __init__(self, watch: Watch[E], on_current: Callable[[], None]) -> None:
        self._watch = watch
        self._on_current = on_current
        self._was_current = False
        self.stream: str = watch._cursor.stream  # noqa: SLF001 - one module
        self.stop = watch.stop
        self.drain = watch.drain
        self.set_callback_waiter = watch._messages.set_callback_waiter  # noqa: SLF001 - one module

    @property
    def closed(self) -> bool:
        """Whether the watch was stopped."""
        return self._watch.closed

    def take(self, deadline: Deadline) -> JetStreamMsg:
        """Return the next entry, and report before it that the watch is current."""
        del deadline
        while True:
            watch = self._watch
            was_current, self._was_current = self._was_current, watch.is_current
            if self._was_current and not was_current:
                self._on_current()
            entry = watch._turn(watch._next_entry, FOREVER)  # noqa: SLF001 - one module
            if entry is not None:
                return cast("JetStreamMsg", entry)
