"""
Publish messages to streams and wait for their acknowledgements.

`Publisher.publish` waits for each ack. `Publisher.publish_async` does not: up to a window of messages
may await their acks, each with a future. The acks arrive on one inbox. A dedicated thread settles
the futures, because settling a future runs the user's callbacks.

Rules:

1. Each message that awaits its ack has an entry in ``_pending``. The thread that removes the entry
   settles the future. Each future is therefore settled once: by an ack, a refusal, its timeout, a
   lost connection, or the close of the connection.
2. ``_room`` only serves waiting: publishers wait on it for room in the window, and
   `publish_async_completed` for an empty window.
3. The thread checks for overdue acks while any are pending. After a while without pending acks it
   sleeps until the next message and sets ``_asleep``; the next publish then wakes it.
4. In a forked child every future is settled at once, and no lock is taken that a thread of the parent
   may hold: the fork check comes first.
"""

from __future__ import annotations

import itertools
import threading
from bisect import insort
from collections.abc import Callable
from concurrent.futures import Future
from datetime import timedelta
from functools import partial
from typing import Final, Literal, TypedDict

from ..api.publish import PubAck
from ..client.core import ConnectionCore
from ..client.mailbox import Mailbox
from ..client.threads import spawn
from ..codec import loads
from ..durations import duration, duration_to_ns
from ..errors import (
    BadSubscriptionError,
    ConnectionDrainingError,
    ConnectionLostError,
    Error,
    ForkedConnectionError,
    InvalidOptionError,
    NoRespondersError,
    NoStreamResponseError,
    PermissionsError,
    TimeoutError,
    TooManyStalledMsgsError,
)
from ..headers import (
    EXPECTED_LAST_MSG_ID,
    EXPECTED_LAST_SEQ,
    EXPECTED_LAST_SUBJECT_SEQ,
    EXPECTED_LAST_SUBJECT_SEQ_SUBJECT,
    EXPECTED_STREAM,
    MSG_ID,
    MSG_TTL,
    Headers,
    HeadersLike,
    parse_status,
)
from ..net.clock import Deadline, monotonic, seconds
from ..protocol.parser import Delivery
from ..subjects import check_stream_name, check_subject
from .pub_ack_future import PubAckFuture

__all__ = [
    "DEFAULT_WINDOW",
    "NEVER",
    "RETRY_ATTEMPTS",
    "RETRY_WAIT",
    "PublishOptions",
    "Publisher",
    "check_publish_options",
    "publish_headers",
]

#: The TTL of a message that stays, whatever the stream's limits of age are (ADR-43).
NEVER: Final = "never"

_SECOND: Final = 1_000_000_000
_LAST_SEQUENCE: Final = 2**64 - 1


def publish_headers(
    headers: HeadersLike | None,
    stream: str | None,
    msg_id: str | None,
    expected_last_sequence: int | None,
    expected_last_subject_sequence: int | None,
    expected_last_msg_id: str | None,
    msg_ttl: float | timedelta | Literal["never"] | None,
    expected_last_subject: str | None = None,
) -> HeadersLike | None:
    """
    Return the headers of a message with those that the arguments of a publish make.

    What the user gave as headers is not changed, and the other arguments come before it. For what
    they mean see `JetStream.publish`.

    Raises:
        InvalidNameError: the stream's name can not be one.
        BadSubjectError: the subject of an expectation can not be one.
        InvalidOptionError: another argument can not work.
        InvalidHeaderError: one of the headers can not be sent.

    """
    made: dict[str, str] = {}
    if msg_id is not None:
        made[MSG_ID] = _text(msg_id, "msg_id")
    if stream is not None:
        made[EXPECTED_STREAM] = check_stream_name(stream)
    if expected_last_sequence is not None:
        made[EXPECTED_LAST_SEQ] = _number(expected_last_sequence, "expected_last_sequence")
    if expected_last_subject_sequence is not None:
        made[EXPECTED_LAST_SUBJECT_SEQ] = _number(
            expected_last_subject_sequence, "expected_last_subject_sequence"
        )
    if expected_last_subject is not None:
        if expected_last_subject_sequence is None:
            raise InvalidOptionError(
                "expected_last_subject",
                expected_last_subject,
                "needs expected_last_subject_sequence",
            )
        made[EXPECTED_LAST_SUBJECT_SEQ_SUBJECT] = check_subject(expected_last_subject)
    if expected_last_msg_id is not None:
        made[EXPECTED_LAST_MSG_ID] = _text(expected_last_msg_id, "expected_last_msg_id")
    if msg_ttl is not None:
        made[MSG_TTL] = _ttl(msg_ttl)
    if not made:
        return headers
    if not headers:
        return made
    together = Headers(headers)
    together.update(made)
    return together


def _text(value: str, option: str) -> str:
    if not isinstance(value, str) or not value:
        raise InvalidOptionError(option, value, "expected a str with something in it")
    return value


def _number(value: int, option: str) -> str:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= _LAST_SEQUENCE:
        raise InvalidOptionError(option, value, "a sequence is an int from 0 on")
    return str(value)


def _ttl(value: float | timedelta | Literal["never"]) -> str:
    if isinstance(value, str):
        if value != NEVER:
            raise InvalidOptionError("msg_ttl", value, "must be seconds, a timedelta or 'never'")
        return NEVER
    ns = duration_to_ns(duration(value, "msg_ttl"))
    if ns < _SECOND:
        raise InvalidOptionError("msg_ttl", value, "it is at least a second")
    # Whole seconds, or a duration as Go writes it (ADR-43).
    return f"{ns}ns" if ns % _SECOND else str(ns // _SECOND)


#: Messages that `publish_async` lets be on their way.
DEFAULT_WINDOW: Final = 4000
#: ADR-22: how often a message that no stream took is sent again, and the seconds before each time.
RETRY_ATTEMPTS: Final = 2
RETRY_WAIT: Final = 0.25
#: Seconds that locks and events take at most.
_LONGEST_RETRY_WAIT: Final = 9e9
#: Seconds that an answer may take at least, for another attempt to make sense.
_ROUND_TRIP: Final = 0.05
#: Seconds between two looks for acks that are overdue.
_SWEEP: Final = 0.5

#: Looks without anything to look for, after which the thread goes to sleep.
_QUIET_SWEEPS: Final = 4

#: Put among the acks when the link broke.
_DISCONNECTED: Final[Delivery] = (b"", b"", b"down", b"")
#: Put among the acks when the server refused a message: see ``Publisher._denied``.
_DENIED: Final[Delivery] = (b"", b"", b"denied", b"")
#: Put among the acks to wake the thread.
_WAKE: Final[Delivery] = (b"", b"", b"wake", b"")


class PublishOptions(TypedDict, total=False):
    """What `JetStream.publish` and `JetStream.publish_async` take by name besides their arguments."""

    expected_last_subject: str | None
    """The subject that ``expected_last_subject_sequence`` is about, which may have wildcards; ``None``,
    the default: that of the message. Needs server 2.11; the first message with it on a link asks
    for the server's API level."""
    retry_attempts: int
    """How often the message is sent again while no stream takes it; 0: not at all; -1: until the time
    is up; default 2."""
    retry_wait: float | timedelta
    """The wait before each of these, in seconds; default 0.25."""


_OPTIONS: Final = frozenset(PublishOptions.__annotations__)


def check_publish_options(options: PublishOptions) -> None:
    """
    Refuse an option that is not known.

    Raises:
        InvalidOptionError: one is not.

    """
    unknown = set(options) - _OPTIONS
    if unknown:
        raise InvalidOptionError(min(unknown), "...", f"not one of {sorted(_OPTIONS)}")


class Publisher:
    """
    The publishing side of a JetStream context.

    Args:
        core: the connection.
        timeout: seconds to wait for an ack where a call names none; ``None``: for ever.
        window: messages that may wait for their acks at a time.

    Raises:
        InvalidOptionError: the window is not a number from 1 up.

    Any thread may call its methods.
    """

    is_reply_inbox = True

    def __init__(
        self, core: ConnectionCore, timeout: float | timedelta | None, window: int = DEFAULT_WINDOW
    ) -> None:
        if isinstance(window, bool) or not isinstance(window, int) or window < 1:
            reason = "must be a whole number from 1 up"
            raise InvalidOptionError("publish_async_max_pending", window, reason)
        self._core = core.machinery  # the thread of the acks holds this object
        self._timeout = timeout
        self._window = window
        self._tokens = itertools.count(1)
        self._pending: dict[bytes, PubAckFuture] = {}
        self._acks: Mailbox[Delivery] = Mailbox()
        # Entries to be sent again, sorted by the time for that; used by the thread alone.
        self._again: list[tuple[float, bytes, PubAckFuture]] = []
        # Messages that the server did not permit, and what it said; noted by the reader.
        self._denied: dict[bytes, PermissionsError] = {}
        self._start = threading.Lock()
        self._inbox = core.new_inbox()
        self._reply_prefix = self._inbox.encode() + b"."
        # --- changed under _start ---
        self._subscribed = False
        self._unsubscribe: Callable[[], None] | None = None
        self._thread: threading.Thread | None = None
        self._asleep = False  # whether the thread waits for somebody to wake it
        self._room = threading.Condition()
        self._waiting = 0  # how many wait on _room, under it

    # --- waiting for each ack -------------------------------------------------------------------

    def publish(
        self,
        subject: str,
        payload: bytes,
        headers: HeadersLike | None,
        timeout: float | timedelta | None,
        retry_attempts: int = RETRY_ATTEMPTS,
        retry_wait: float | timedelta = RETRY_WAIT,
    ) -> PubAck:
        """Publish and wait for the ack; see `JetStream.publish`."""
        deadline = Deadline(self._timeout if timeout is None else timeout)
        where = self._core.composer.encoded(subject)
        wait = _retry_wait(retry_attempts, retry_wait)
        # Counted down; below 0 it never becomes 0, and the time alone is the limit.
        for retries_left in itertools.count(retry_attempts, -1):
            try:
                answer = self._core.request(where, payload, deadline, headers)
            except NoRespondersError:
                # A stream that has no leader for a moment looks like no stream. Without the time
                # for another answer, nobody would learn what is wrong.
                left = deadline.left()
                if retries_left and (left is None or left > wait + _ROUND_TRIP):
                    self._core.wait_closed(wait)
                    continue
                break
            return PubAck.from_json(loads(answer[3]))
        raise NoStreamResponseError(subject)

    # --- not waiting ----------------------------------------------------------------------------

    def publish_async(
        self,
        subject: str,
        payload: bytes,
        headers: HeadersLike | None,
        timeout: float | timedelta | None,
        retry_attempts: int = RETRY_ATTEMPTS,
        retry_wait: float | timedelta = RETRY_WAIT,
    ) -> Future[PubAck]:
        """Publish and return a future of the ack; see `JetStream.publish_async`."""
        core = self._core
        token = b"%x" % next(self._tokens)
        compose = core.composer
        command, size = compose.command(
            compose.encoded(subject), payload, self._reply_prefix + token, headers
        )
        limit = self._timeout if timeout is None else timeout
        # What settles futures makes the room, so their callbacks can not wait for it.
        if len(self._pending) >= self._window and threading.current_thread() is not self._thread:
            self._wait_for_room(Deadline(limit))
        due = None if limit is None else monotonic() + seconds(limit)
        future = PubAckFuture(subject, command, size, due, core.writer)
        if retry_attempts != RETRY_ATTEMPTS or retry_wait != RETRY_WAIT:
            future.retry_wait = _retry_wait(retry_attempts, retry_wait)
            future.retries = retry_attempts
        self._pending[token] = future
        try:
            # Looked at behind that: the reader, told that the inbox is not permitted, first notes that
            # there is no subscription, and then fails what is pending.
            if not self._subscribed:
                self._subscribe()
            core.writer.publish_deferred(command, size)
        except BaseException:
            self._pending.pop(token, None)
            self._make_room()
            raise
        if self._asleep:
            self._asleep = False
            self._acks.put((_WAKE,), 1)
        return future

    @property
    def pending(self) -> int:
        """Messages that wait for their acks."""
        return len(self._pending)

    def completed(self, deadline: Deadline) -> None:
        """
        Wait until no message waits for its ack.

        Raises:
            TimeoutError: some still do, or it is a callback that waits, which they wait for.
            ForkedConnectionError: it is the parent that waits for them.

        """
        self._core.writer.check_not_forked()
        if threading.current_thread() is self._thread and self._pending:
            raise TimeoutError("a future's callback can not wait for other messages")
        self._core.writer.send_buffered()
        with self._room:
            self._waiting += 1
            try:
                if not self._room.wait_for(lambda: not self._pending, deadline.left()):
                    raise self._core.timed_out(
                        f"{len(self._pending)} messages still wait for their acks"
                    )
            finally:
                self._waiting -= 1

    def _wait_for_room(self, deadline: Deadline) -> None:
        self._core.writer.check_not_forked()
        self._core.writer.send_buffered()
        with self._room:
            self._waiting += 1
            try:
                if not self._room.wait_for(
                    lambda: len(self._pending) < self._window, deadline.left()
                ):
                    raise TooManyStalledMsgsError(
                        f"{len(self._pending)} messages wait for their acks, "
                        f"and the window is {self._window}"
                    )
            finally:
                self._waiting -= 1

    def _subscribe(self) -> None:
        self._core.writer.check_not_forked()
        with self._start:
            if self._subscribed:
                return
            interest = self._core.add_subscription(f"{self._inbox}.*", "", self)
            if self._unsubscribe is not None:
                # One that was not permitted. There is always one, so that the thread hears of the end.
                self._unsubscribe()
            self._unsubscribe = partial(self._core.remove_subscription_deferred, interest)
            if self._thread is None:
                self._thread = spawn(f"acks-{self._core.name}", self._settle_all)
            self._subscribed = True

    # --- the reader's side; see `MessageReceiver` ----------------------------------------------------------

    def deliver(self, deliveries: list[Delivery]) -> None:
        """Take acks."""
        self._acks.put(deliveries, len(deliveries))

    def on_connection_change(self, *, connected: bool) -> None:
        """Put the news that the link broke among the acks."""
        if not connected:
            self._acks.put((_DISCONNECTED,), 1)

    def on_permission_error(self, subject: bytes, error: PermissionsError) -> bool:
        """Have the last message to the subject fail, all of them where it is their inbox; say if any."""
        if error.operation == "subscribe":
            self._inbox_denied(error)
            return True
        # The server says so once for each. Where messages to the subject are on their way that it
        # took before, as when the permissions have just changed, they are the earlier ones.
        wanted = subject.decode("utf-8", "surrogateescape")
        # The tokens alone: a list of pairs may fail while others publish.
        for token in reversed(self._pending.copy()):
            future = self._pending.get(token)
            if future is not None and future.subject == wanted and token not in self._denied:
                self._denied[token] = error
                self._acks.put((_DENIED,), 1)
                return True
        return False

    def _inbox_denied(self, error: PermissionsError) -> None:
        """Have everything fail; the next message subscribes again, it may be permitted by then."""
        with self._start:  # not while the subscription is being made
            self._subscribed = False
        for token in self._pending.copy():
            self._denied[token] = error
        self._acks.put((_DENIED,), 1)

    def on_closed(self, reason: BaseException) -> None:
        """Wake the thread, which fails what is left; in a forked child, where it is not, do its work."""
        if isinstance(reason, ForkedConnectionError):
            self._forked(reason)
            return
        if isinstance(reason, BadSubscriptionError):
            reason = ConnectionDrainingError(
                "the connection was drained before the ack came; the message may be stored"
            )
        self._acks.close(reason)

    def _forked(self, reason: ForkedConnectionError) -> None:
        self._start = threading.Lock()
        self._room = threading.Condition()
        self._waiting = 0
        self._again = []
        self._acks.close(reason)
        pending, self._pending = self._pending, {}
        for future in pending.values():
            future.forked(reason)

    def wait_drained(self, deadline: Deadline) -> bool:
        """Wait until the messages that were published have their acks; say whether they have."""
        if threading.current_thread() is self._thread:
            return True  # a callback of a future that closes the connection
        try:
            self.completed(deadline)
        except TimeoutError:
            return False
        return True

    # --- the thread that settles ----------------------------------------------------------------

    def _settle_all(self) -> None:
        """Settle futures until the connection ends."""
        acks = self._acks
        sweep_at = monotonic() + _SWEEP
        quiet = 0
        while True:
            try:
                if self._pending:
                    quiet = 0
                    patience: float | None = _SWEEP
                    if self._again:
                        patience = min(_SWEEP, max(0.0, self._again[0][0] - monotonic()))
                else:
                    quiet += 1
                    self._asleep = quiet > _QUIET_SWEEPS
                    # Looked at again: somebody may have published before he could see that.
                    patience = None if self._asleep and not self._pending else _SWEEP
                self._settle(acks.get(Deadline(patience)))
                # Everything that came with it, too, before anybody is woken.
                for _ in range(len(acks)):
                    self._settle(acks.items.popleft())
            except (TimeoutError, IndexError):
                pass  # nothing came; or a callback forked, and this is the child, which has no acks
            except Error as error:
                self._fail_all(error)
                return
            now = monotonic()
            if self._again and now >= self._again[0][0]:
                self._send_again(now)
            if now >= sweep_at:
                self._sweep(now)
                sweep_at = now + _SWEEP
            self._make_room()

    def _make_room(self) -> None:
        """Wake those who wait for acks to have come."""
        if self._waiting:
            with self._room:
                self._room.notify_all()

    def _settle(self, delivery: Delivery) -> None:
        subject, _, header, payload = delivery
        token = subject[len(self._reply_prefix) :]
        status = None
        if header and not payload:
            if delivery is _DISCONNECTED:
                self._fail_all(
                    ConnectionLostError(
                        "the link broke before the ack came; the message may be stored"
                    )
                )
                return
            if delivery is _DENIED:
                self._fail_denied()
                return
            status = parse_status(header)
        nobody = status is not None and status.code == 503
        if nobody and self._sent_again_later(token):
            return
        future = self._pending.pop(token, None)
        if future is None:
            return  # it was late, or only woke us
        if nobody:
            future.failed(NoStreamResponseError(future.subject))
        else:
            future.acknowledged(payload)

    def _fail_denied(self) -> None:
        """Fail the messages that the server did not permit."""
        for token in list(self._denied):
            future = self._pending.pop(token, None)
            # Not before it is out of the pending ones: the reader would take it again.
            error = self._denied.pop(token)
            if future is not None:
                future.failed(error)

    def _sent_again_later(self, token: bytes) -> bool:
        """Have a message sent again, as ADR-22 says; say whether it will be."""
        future = self._pending.get(token)
        if future is None or not future.retries:
            return False
        future.retries -= 1
        insort(self._again, (monotonic() + future.retry_wait, token, future))
        return True

    def _send_again(self, now: float) -> None:
        due = [each for each in self._again if each[0] <= now]
        self._again = [each for each in self._again if each[0] > now]
        for _, token, future in due:
            if token not in self._pending:
                continue
            try:
                self._core.writer.publish(future.command, future.size)
            except Error as error:
                self._pending.pop(token, None)
                future.failed(error)

    def _sweep(self, now: float) -> None:
        """Give up messages whose time is up."""
        # A copy in one step: an iteration, even by list(), may be interrupted by another thread.
        for token, future in self._pending.copy().items():
            if (
                future.due is not None
                and future.due <= now
                and self._pending.pop(token, None) is not None
            ):
                future.failed(self._core.timed_out(f"no ack for {future.subject!r} in time"))

    def _fail_all(self, error: Error) -> None:
        """Give up every message that waits now."""
        for token in self._pending.copy():
            future = self._pending.pop(token, None)
            if future is not None:
                future.failed(error)
        self._make_room()


def _retry_wait(attempts: int, wait: float | timedelta) -> float:
    """Return the seconds between two attempts, after a check of both options."""
    if isinstance(attempts, bool) or not isinstance(attempts, int) or attempts < -1:
        raise InvalidOptionError("retry_attempts", attempts, "must be a whole number from -1 up")
    value = seconds(wait, "retry_wait")
    if value < 0:
        raise InvalidOptionError("retry_wait", wait, "must be 0 or above")
    return min(value, _LONGEST_RETRY_WAIT)
