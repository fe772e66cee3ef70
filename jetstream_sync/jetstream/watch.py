"""
Watch the messages of a bucket: first those that exist, then every change.

`Watch` reads through an ordered consumer. Rules:

1. One thread at a time takes entries. It also creates the consumer again after a failure and finds out
   when the watch is current. There is no other thread and no timer. `Watch.stop` takes no lock.
2. The watch is current once, at the first of these events: the reply to CONSUMER.CREATE reports nothing
   pending; as many messages as it reported were received, and none of them is newer than the last
   sequence of the stream before the request; otherwise the values that were replaced before their
   delivery have been received as well (see `Watch._catch_up`); CONSUMER.INFO reports that everything
   was delivered, was received, and that nothing is pending. The last one covers messages that were
   removed before their delivery. Silence alone decides nothing. If the stream has replicas, each of
   these events counts only when the leader's last message of the filters was received, since the
   replica of the consumer may lag behind.
3. Before that, a consumer of the last message per subject starts from scratch after a failure, because
   the stream holds older revisions behind the last sequence. Revisions that were handed out are dropped.
   Afterwards a new consumer starts behind the last message.
4. If the watch was without a consumer for longer than the server keeps markers of deletions, it compares
   the keys that it has returned with those of the stream, and returns a marker for each missing one.
5. A message counts as handed out when the call that returns it is complete. After an exception before
   that, such as a Ctrl-C, the next call creates a consumer that starts with this message.
"""

from __future__ import annotations

import logging
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final, Generic, NamedTuple, TypeVar, cast

from ..api.consumer import ConsumerConfig, ConsumerInfo
from ..api.enums import DeliverPolicy
from ..api.reply import ack_tokens
from ..client.result_slot import copy_exception
from ..client.threads import Signal, after_fork
from ..durations import time_to_ns
from ..errors import (
    Error,
    IteratorClosedError,
    NoRespondersError,
    PermissionsError,
    PullError,
    StreamNotFoundError,
    TimeoutError,
)
from ..net.clock import FOREVER, Deadline, monotonic
from ..protocol.parser import Delivery
from .api_requests import APIRequests, stream_info
from .consume import ConsumeHandle, JetStreamCallback
from .consumer import continuous_pull
from .message import JetStreamMsg
from .messages import MessagePuller, until_stopped
from .ordered import OrderedPuller, OrderedRequester, at_least
from .ordered_cursor import (
    INACTIVE_THRESHOLD_S,
    OrderedCursor,
    OrderedOptions,
    pull_cursor,
)

if TYPE_CHECKING:
    from typing_extensions import Self

E = TypeVar("E")

log: logging.Logger = logging.getLogger("jetstream_sync.watch")

#: Maximum number of received messages that were not taken yet.
_MAX_BUFFERED: Final = 1000
#: Heartbeat of the pull requests in seconds.
_HEARTBEAT_S: Final = 5.0
#: Minimum timeout for creating a consumer in seconds, also if the caller waits for less time.
_MIN_CREATE_TIMEOUT_S: Final = 1.0
#: Seconds without a message after which CONSUMER.INFO is requested, while the watch is not current:
#: the first time and the maximum; the delay doubles each time.
_FIRST_CHECK_S: Final = 0.25
_MAX_CHECK_S: Final = 5.0
#: Timeout of the request for the state of the stream, in seconds.
_CHECK_TIMEOUT_S: Final = 2.0
#: Maximum number of rounds in which replaced values are read before a watch is current.
_MAX_CATCH_UPS: Final = 20
#: Checks that find the same pending messages undelivered, after which the consumer is replaced, and the
#: number of replaced consumers after which an error is raised.
_STALLED_CHECKS: Final = 3
_MAX_REPLACED: Final = 4
#: Interval in which a thread that waits for another one checks whether the watch is current.
_CURRENT_POLL_S: Final = 0.05


class _WatchCursor(OrderedCursor):
    """The position of a watch."""

    #: Whether the next consumer starts as the first one did.
    from_scratch = False
    #: Whether the watch is not current yet.
    initial = True
    #: The last sequence of the stream before the current consumer was created, while not current.
    end = 0

    @property
    def stream_seq(self) -> int | None:
        """The stream sequence to continue after; ``None``: the start of the first consumer."""
        return None if self.from_scratch else super().stream_seq

    @property
    def position(self) -> int:
        """The last sequence that was received, or the one before the start."""
        reply = self.sequence.reply
        return max(_stream_seq(reply) if reply else 0, (self._first.opt_start_seq or 1) - 1)

    def renew(
        self, deadline: Deadline, deliver_to: Callable[[], str] | None = None
    ) -> ConsumerInfo:
        """Create a consumer that continues from the position, or starts from scratch."""
        if self.from_scratch:
            self._start = None
            self.sequence.reply = b""
        return super().renew(deadline, deliver_to)

    def _create(self, config: ConsumerConfig, deadline: Deadline) -> ConsumerInfo:
        if self.initial:
            self.end = self.last_seq(deadline)
        return super()._create(config, deadline)

    def _has_start(self, info: ConsumerInfo) -> bool:
        # Used when nothing is pending, and then true for the last messages of subjects, too.
        del info
        return True


class _DeliveryRequester(OrderedRequester):
    """Returns deliveries as they were received; the watch makes its entries of them."""

    def make(self, delivery: Delivery) -> Any:
        """Return the delivery."""
        return delivery


class _WatchMessages(OrderedPuller):
    """The messages of a watch."""

    _requester_type = _DeliveryRequester

    #: The deadline of the caller. The one of `take` is often earlier.
    deadline = FOREVER
    #: Seconds after which the server removes markers of deletions; ``None``: it keeps them.
    marker_ttl: float | None = None
    #: Whether markers may have been removed while there was no consumer.
    markers_lost = False
    # The monotonic time of the last delivery; 0: there was no consumer yet.
    _last_seen = 0.0

    def _recreate(self, ended: MessagePuller | None, deadline: Deadline) -> MessagePuller:
        del deadline
        if ended is not None:
            self._last_seen = ended.last_seen
        messages = super()._recreate(ended, at_least(self.deadline, _MIN_CREATE_TIMEOUT_S))
        before, self._last_seen = self._last_seen, monotonic()
        if before and self.marker_ttl is not None and self._last_seen - before >= self.marker_ttl:
            self.markers_lost = True
            raise TimeoutError("the watch looks for lost markers before it waits for messages")
        return messages

    def take_many(self, deadline: Deadline) -> list[Delivery]:
        """Wait for the next message, and return it and those that have arrived after it."""
        found = [cast("Delivery", self.take(deadline))]
        messages = self._messages
        return found if messages is None else found + messages.take_run()

    def restart(self, reason: str) -> None:
        """End the current consumer, so that the next call continues with another one."""
        messages, self._messages = self._messages, None
        if messages is not None:
            self._last_seen = messages.last_seen
            messages.end(PullError(409, reason))


class Markers(NamedTuple):
    """The markers of deletions in a bucket that removes them after a time."""

    ttl_s: float
    """Seconds after which the server removes a marker."""

    has_value: Callable[[Delivery], bool]
    """Returns whether a message is a value, and not a marker."""

    header: bytes
    """The header block of a marker."""


class Watch(Generic[E]):
    """
    The entries of a bucket and every change, as an iterator that ends only when it is stopped.

    Returned by `KeyValue.watch` and `ObjectStore.watch` without a callback. Use it in a ``with`` block,
    so that its consumer on the server is deleted at the end. It continues after a lost connection, a
    restart of the server and a leader change. Any thread may call its methods; one thread at a time
    takes entries.

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
        make: Callable[[Delivery], E | None],
        not_found: Callable[[], Error],
        markers: Markers | None = None,
    ) -> None:
        """
        Create the consumer of the watch.

        Args:
            api: the JetStream API.
            stream: the name of the bucket's stream.
            options: the filters and the deliver policy of the consumer; with the policy ``new`` the
                watch is current from the start.
            make: makes the entry of a message; ``None``: there is none to hand out. It must not raise.
            not_found: makes the error for a bucket that does not exist.
            markers: the markers of deletions, if the server removes them after a time.

        Raises:
            Error: the result of ``not_found``: the bucket does not exist.
            BadRequestError: the server rejected the consumer.
            TimeoutError: the server did not reply in time.
            ConnectionClosedError: the connection is closed.

        """
        self._api = api
        self._make = make
        self._not_found = not_found
        options.setdefault("inactive_threshold", INACTIVE_THRESHOLD_S)
        self._cursor = cursor = pull_cursor(api, stream, options, _WatchCursor)
        cursor.from_scratch = options.get("deliver_policy") == DeliverPolicy.LAST_PER_SUBJECT
        pull = continuous_pull({"max_messages": _MAX_BUFFERED, "heartbeat": _HEARTBEAT_S})
        self._messages = _WatchMessages(api, cursor, pull)
        # Reentrant: a Ctrl-C just after it was acquired must not lock out the main thread itself.
        self._lock = threading.RLock()
        self._stopped = False
        # --- under _lock ---
        self._current = False
        self._buffer: deque[E] = deque()  # entries that wait_current() has read
        self._seen: dict[bytes, bytes] = {}  # subject -> last reply subject, until it is current
        self._taken: Delivery | None = None  # the message of the entry that is being returned
        self._left = 0  # messages that are left of those that the current consumer announced
        self._catch_ups = 0  # rounds after the initial messages; see _catch_up()
        self._target = 0  # the stream sequence at which the round ends
        self._received: deque[Delivery] = deque()  # received messages in order
        # The consumer and the number of its messages at the last check.
        self._quiet: tuple[str, int] = ("", 0)
        self._check_at = 0.0
        self._check_delay = _FIRST_CHECK_S
        self._stalled = 0
        self._replaced = 0  # consumers in a row that were replaced because nothing arrived
        self._live: set[bytes] = set()  # subjects with a value, if the server removes markers
        self._markers = markers
        self._filters = options["filter_subjects"]
        if markers is not None:
            self._messages.marker_ttl = markers.ttl_s
        self._fork_reset = _ForkReset(self)
        if options.get("deliver_policy") == DeliverPolicy.NEW:
            self._set_current()
        deadline = self._messages.deadline = api.deadline()
        try:
            self._messages.start(deadline)
        except StreamNotFoundError as error:
            raise not_found() from error
        if self._is_empty() and not self._is_behind():
            self._set_current()

    # --- taking entries -------------------------------------------------------------------------

    def next(self, timeout: float | timedelta | None = None) -> E:
        """
        Wait for the next entry and return it.

        Args:
            timeout: in seconds; ``None``: no limit; 0: do not wait.

        Raises:
            TimeoutError: there was no entry in time; the watch stays usable.
            IteratorClosedError: the watch was stopped.
            BucketNotFoundError: the bucket was deleted.
            BadRequestError, PermissionsError: the server refuses a new consumer.
            PullError: the server has messages for the watch, but none arrives; the watch stays usable.
            ConnectionClosedError: the connection is closed.

        """
        return self._take(FOREVER if timeout is None else Deadline(timeout))

    def __iter__(self) -> Iterator[E]:
        """Yield entries until the watch is stopped; raise any other reason for the end."""
        return until_stopped(self._take)

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
        self._api.core.check_not_forked()
        deadline = Deadline(timeout)
        received = 0
        while True:
            self._taken = None
            if not self._lock.acquire(timeout=_CURRENT_POLL_S):
                if self._current:
                    return
                if deadline.expired():
                    raise TimeoutError("another thread is still waiting for an entry")
                continue  # another thread takes entries
            try:
                try:
                    if self._current and not self._buffer:
                        return
                    entry = self._next_entry(deadline)
                finally:
                    self._lock.release()
            except Error:
                raise
            except BaseException:
                self._restore()
                raise
            if entry is not None:
                yield entry
            if timeout is not None and (entry is not None or received != self._cursor.consumer_seq):
                received = self._cursor.consumer_seq
                deadline = Deadline(timeout)

    def _take(self, deadline: Deadline) -> E:
        """Return the next entry, as `next()` does, before the deadline."""
        self._taken = None
        if not self._lock.acquire(timeout=deadline.lock_timeout()):
            raise TimeoutError("another thread is still waiting for an entry")
        try:
            try:
                while True:
                    entry = self._next_entry(deadline)
                    if entry is not None:
                        return entry
            finally:
                self._lock.release()
        except Error:
            raise
        except BaseException:
            self._restore()
            raise

    def _take_or_current(self) -> E | None:
        """Return the next entry; ``None``: it was dropped, or the watch has just become current."""
        with self._lock:
            return self._next_entry(FOREVER)

    # --- the initial entries --------------------------------------------------------------------

    @property
    def is_current(self) -> bool:
        """Whether all entries that existed at the start were received; it never becomes false again."""
        return self._current

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
        self._api.core.check_not_forked()
        deadline = Deadline(timeout)
        while not self._current:
            if not self._lock.acquire(timeout=deadline.sooner(_CURRENT_POLL_S).lock_timeout()):
                if deadline.expired():
                    raise TimeoutError("the watch was not current in time")
                continue
            try:
                if not self._current:
                    entry = self._advance(deadline)
                    if entry is not None:
                        self._buffer.append(entry)
            finally:
                self._lock.release()

    def _next_entry(self, deadline: Deadline) -> E | None:
        """Return the next buffered entry, or that of the next message; ``_lock`` is held."""
        if self._buffer and not self._stopped:
            return self._buffer.popleft()
        return self._advance(deadline)

    def _advance(self, deadline: Deadline) -> E | None:
        """Return the entry of the next message; ``_lock`` is held."""
        received = self._received
        if self._stopped:
            raise IteratorClosedError("the watch was stopped")
        if not received and not self._receive(deadline):
            return None
        delivery = received[0]
        entry = self._make(delivery)
        if self._markers is not None:
            change = self._live.add if self._markers.has_value(delivery) else self._live.discard
            change(delivery[0])
        self._taken = delivery
        if self._current:
            received.popleft()
            return entry
        if self._cursor.from_scratch:
            subject, reply, _, _ = delivery
            before = self._seen.get(subject)
            if before is not None and _stream_seq(before) >= _stream_seq(reply):
                entry = None
            else:
                self._seen[subject] = reply
        self._left -= 1
        received.popleft()
        if self._catch_ups:
            if _stream_seq(delivery[1]) >= self._target:
                self._catch_up(delivery[1])
        # The last token alone is compared first, because this runs for each initial message.
        elif self._left <= 0 or (delivery[1].endswith(b".0") and _is_last(delivery[1])):
            self._catch_up(delivery[1])
        return entry

    def _catch_up(self, reply: bytes) -> None:
        """
        Become current when messages that were replaced before their delivery have been received.

        A message that is replaced before its delivery is delivered with its new sequence, behind the
        others, and new subjects may take its place in the count. A message can report that nothing is
        pending although there are such messages, because the server counts a stored message with a
        delay. So the count is complete only with messages that existed before the consumer. Otherwise
        the watch reads on up to the present end of the stream, again if values were replaced
        meanwhile. The number of rounds is limited.
        """
        info = self._cursor.info
        tokens = ack_tokens(reply)
        position = int(tokens[3])
        known = info is None or (
            position <= self._cursor.end and int(tokens[4]) >= info.num_pending
        )
        if self._catch_ups == _MAX_CATCH_UPS or (known and not self._is_behind(position)):
            self._set_current()
            return
        if known:
            self._catch_ups += 1
            return
        try:
            self._target = self._cursor.last_seq(Deadline(_CHECK_TIMEOUT_S))
        except Error:
            return  # the connection is lost, or the check after a silence decides
        self._catch_ups += 1
        if self._target <= position:
            self._set_current()

    def _restore(self) -> None:
        """Put the message back that an exception, such as a Ctrl-C, kept from the caller."""
        taken, self._taken = self._taken, None
        if taken is None:
            return
        if not self._received or self._received[0] is not taken:
            self._received.appendleft(taken)
            self._left += 1
        self._seen.pop(taken[0], None)

    def _receive(self, deadline: Deadline) -> bool:
        """Wait for messages and return whether there are any; ``_lock`` is held."""
        messages = self._messages
        messages.deadline = deadline
        position = self._cursor.sequence.reply
        wait = deadline
        if not self._current:
            wait = deadline.sooner(_FIRST_CHECK_S)
        elif messages.markers_lost:
            self._find_lost_markers()
            if self._received:
                return True
            if messages.markers_lost:
                wait = deadline.sooner(_MAX_CHECK_S)
        try:
            self._received += messages.take_many(wait)
        except TimeoutError:
            if not self._current:
                self._check_current()
                if self._current:
                    return False
            if not deadline.expired():
                return False
            raise
        except StreamNotFoundError as error:
            raise self._not_found() from error
        except Error:
            raise
        except BaseException:
            # Messages may have been received and not stored here.
            self._received.clear()
            self._cursor.sequence.reply = position
            messages.restart("a call was interrupted")
            raise
        if not self._current:
            self._replaced = 0
            self._count_initial(len(self._received))
        return True

    def _find_lost_markers(self) -> None:
        """
        Add a marker for each key that had a value, and is not in the bucket any more.

        Its marker was stored while the watch had no consumer, and was removed before there was another.
        """
        assert self._markers is not None
        filters = [self._filters] if isinstance(self._filters, str) else self._filters
        stored: set[str] = set()
        try:
            for pattern in filters:
                info = stream_info(self._api, self._cursor.stream, pattern)
                stored.update(info.state.subjects or ())
        except Error:
            return  # tried again later
        self._messages.markers_lost = False
        # The reply subject that the marker of the last sequence would have.
        created = time_to_ns(info.ts or info.created)
        parts = self._cursor.stream, self._cursor.name, 1, info.state.last_seq, 0, created, 0
        reply = f"$JS.ACK.{'.'.join(map(str, parts))}".encode()
        for subject in sorted(self._live):
            if subject.decode("utf-8", "surrogateescape") not in stored:
                self._received.append((subject, reply, self._markers.header, b""))

    def _count_initial(self, received: int) -> None:
        """Compute how many messages are left, including those that were just received."""
        info = self._cursor.info
        if info is not None:  # otherwise the watch was stopped
            self._left = info.num_pending - self._cursor.consumer_seq + received

    def _is_empty(self) -> bool:
        """Return whether nothing was pending when the current consumer was created."""
        info = self._cursor.info
        return info is not None and not info.num_pending

    def _is_behind(self, position: int | None = None) -> bool:
        """
        Return whether the leader has matching messages behind a position, by default the last received.

        The consumer counts what its own replica of the stream has, which can lag behind the leader. The
        messages up to the last one of the leader are then the target of the next round.
        """
        cursor = self._cursor
        position = cursor.position if position is None else position
        if not cursor.replicated or position >= cursor.end:
            return False
        try:
            self._target = cursor.last_match(Deadline(_CHECK_TIMEOUT_S))
        except (PermissionsError, NoRespondersError):
            return False  # the user may not ask
        except Error:
            return True  # the connection or the leader is lost: the next check decides
        return self._target > position

    def _set_current(self) -> None:
        self._current = True
        self._cursor.initial = False
        self._cursor.from_scratch = False
        self._seen = {}

    def _check_current(self) -> None:
        """Request the consumer's state if no message has arrived for a while; ``_lock`` is held."""
        info = self._cursor.info
        if info is None:
            return
        received = self._cursor.consumer_seq
        if self._is_empty() and not self._is_behind():
            self._set_current()
            return
        now = monotonic()
        if self._quiet != (info.name, received):
            self._quiet = info.name, received
            self._check_delay = _FIRST_CHECK_S
            self._check_at = now  # a wait has just ended
            self._stalled = 0
        if now < self._check_at:
            return
        self._check_at = now + self._check_delay
        self._check_delay = min(2 * self._check_delay, _MAX_CHECK_S)
        state = self._messages.silent_state(FOREVER)
        if state is None:
            return
        everything = state.delivered.consumer_seq == received and not state.num_pending
        if everything and not self._is_behind():
            self._set_current()
            return
        self._stalled += 1
        if self._stalled < _STALLED_CHECKS:
            return
        # The server counts messages as pending that it does not deliver, or they do not arrive.
        self._messages.find_lost_replies(FOREVER)
        self._messages.restart("the consumer delivers nothing")
        self._replaced += 1
        if self._replaced == _MAX_REPLACED:
            self._replaced = 0
            raise PullError(
                409,
                f"stream {info.stream_name!r} has messages for the watch that do not arrive: "
                f"{state.delivered.consumer_seq} were sent, {received} arrived, "
                f"{state.num_pending} are pending",
            )

    # --- ending ---------------------------------------------------------------------------------

    def stop(self) -> None:
        """
        Stop the watch, drop the buffered entries, and delete its consumer on the server.

        Threads that wait for an entry get `IteratorClosedError`, and iterations end. The call does not
        wait for the server. A second call does nothing.
        """
        self._stopped = True
        self._messages.stop()

    @property
    def closed(self) -> bool:
        """Whether the watch was stopped."""
        return self._messages.closed

    def drain(self, timeout: float | timedelta | None = None) -> None:
        """Request no more messages; see `WatchHandle.drain`."""
        self._messages.drain(timeout)

    def _reset_in_child(self) -> None:
        """Replace the lock, which a thread of the parent may have held."""
        self._lock = threading.RLock()
        self._received.clear()
        self._buffer.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} on {self._cursor.stream!r}>"


def _stream_seq(reply: bytes) -> int:
    return int(ack_tokens(reply)[3])


def _is_last(reply: bytes) -> bool:
    """Return whether a message reports that nothing is pending after it."""
    return ack_tokens(reply)[6] == b"0"


class _ForkReset:
    """Resets a watch in a forked child; the watch refers to it, so that `Watch` has no such method."""

    def __init__(self, watch: Watch[Any]) -> None:
        self._watch = weakref.ref(watch)
        after_fork(self)

    def forked(self) -> None:
        """Reset the watch; see `ForkAware`."""
        watch = self._watch()
        if watch is not None:
            watch._reset_in_child()  # noqa: SLF001 - one module


class _WatchSource(Generic[E]):
    """The entries for the thread of a `WatchHandle`, which also calls ``current_cb``."""

    def __init__(self, watch: Watch[E], on_current: Callable[[], None]) -> None:
        self._watch = watch
        self._on_current: Callable[[], None] | None = on_current
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
            if self._on_current is not None and self._watch.is_current:
                on_current, self._on_current = self._on_current, None
                on_current()
            entry = self._watch._take_or_current()  # noqa: SLF001 - one module
            if entry is not None:
                return cast("JetStreamMsg", entry)


class WatchHandle(ConsumeHandle):
    """
    A watch that calls a function for each entry.

    Returned by `KeyValue.watch` and `ObjectStore.watch` with a callback. The callbacks run on one thread
    of their own, one after the other; an error that one raises is reported to the connection's
    ``error_cb``, and the next entry follows. Any thread may call the methods, also the callbacks.
    """

    def __init__(
        self,
        api: APIRequests,
        watch: Watch[E],
        callback: Callable[[E], object],
        current_cb: Callable[[], object] | None,
    ) -> None:
        """
        Start the thread.

        Args:
            api: the JetStream API.
            watch: the watch.
            callback: called with each entry.
            current_cb: called once, after the callback has handled the entries that existed at the
                start; ``None``: not called.

        """
        self._core = api.core  # first, so that pickling fails with its explanation
        self._current_cb = current_cb
        self._current_event = Signal()
        source = _WatchSource(watch, self._report_current)
        name = watch._cursor.stream  # noqa: SLF001 - one module
        super().__init__(api.core, name, source, cast("JetStreamCallback", callback))

    @property
    def is_current(self) -> bool:
        """Whether the callback has handled all entries that existed at the start."""
        return self._current_event.is_set()

    def wait_current(self, timeout: float | timedelta | None = None) -> None:
        """
        Wait until the callback has handled all entries that existed at the start.

        Args:
            timeout: in seconds; ``None``: no limit.

        Raises:
            TimeoutError: it was not in time.
            Error: the error that ended the watch before.
            IteratorClosedError: the watch was stopped before.

        """
        self._core.check_not_forked()
        deadline = Deadline(timeout)
        while not self._current_event.wait(deadline.sooner(_CURRENT_POLL_S).left()):
            if self._error is not None:
                raise copy_exception(self._error)
            if self.closed and not self._current_event.is_set():
                raise IteratorClosedError("the watch was stopped before it was current")
            if deadline.expired():
                raise TimeoutError("the watch was not current in time")

    def _report_current(self) -> None:
        try:
            if self._current_cb is not None:
                self._current_cb()
        except Exception as error:
            log.debug("the current_cb of a watch raised", exc_info=True)
            self._core.report_error(error)
        finally:
            self._current_event.set()

    def _on_callback_error(self, msg: JetStreamMsg) -> None:
        """Do nothing: entries are not acknowledged."""
