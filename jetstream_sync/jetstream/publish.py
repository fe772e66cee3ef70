"""Publish messages to streams and wait for their acknowledgements."""

# `Publisher.publish` waits for each ack. `Publisher.publish_async` does not: up to a window of messages
# may await their acks, each with a future. The acks arrive on one inbox. The reader settles the futures
# for which no thread waits and which have no callback. A dedicated thread settles the others, because
# that runs the user's callbacks.
#
# Rules:
#
# 1. Each message that awaits its ack has an entry in _pending. The thread that removes the entry
#    settles the future: the reader or the ack thread. Each future is therefore settled once: by an ack,
#    a refusal, its timeout, a lost connection, or the close of the connection.
# 2. _room only serves waiting: publishers wait on it for room in the window, and
#    `publish_async_completed` for an empty window.
# 3. The thread checks for overdue acks while any are pending. After a while without pending acks it ends
#    with the subscription, because a program may make many contexts; the next message starts both.
# 4. A thread of its own asks why no stream has stored a message, as the server may be silent. The message
#    is pending until the ack thread has the answer.
# 5. In a forked child every pending future has failed for each thread that looks at it.

from __future__ import annotations

import contextlib
import itertools
import threading
from bisect import insort
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, InvalidStateError
from datetime import timedelta
from functools import partial
from typing import Any, Final, NamedTuple, NoReturn

from .. import errors, speedups
from ..api.publish import (
    DEFAULT_RETRIES,
    EACH_MESSAGE,
    PubAck,
    Retries,
    parse_pub_ack,
    publish_headers,
)
from ..client.core import ConnectionCore
from ..client.events import closed_before
from ..client.mailbox import Mailbox, MessageReceiver, copy_exception
from ..client.threads import Waiters, in_each_child, is_gevent, spawn
from ..client.writer import DEFERRED
from ..durations import counted
from ..headers import HeadersLike, is_no_responders
from ..locks import new_lock, new_rlock
from ..net.clock import NO_WAIT, BackoffDelay, Deadline, monotonic, seconds
from ..options import check_int, check_returned
from ..protocol.parser import PAYLOAD, RawMessage

# Held while a future is settled, or gets its first callback or waiting thread. Reentrant, because signal handlers
# may use futures.
_lock = new_rlock()
#: Seconds that a child process waits for a lock of a standard future that a thread of its parent may have held.
_HELD_LOCK_S: Final = 0.1
#: The standard futures that are not settled.
_standard: set[Future[PubAck]] = set()


def _wrong_stream(ack: PubAck, expected: str) -> errors.WrongStreamError:
    """Return the error for the acknowledgement of another stream."""
    text = f"expected stream {expected!r}, but {ack.stream!r} has stored the message"
    return errors.WrongStreamError.found_here(text)


class PubAckFuture(speedups.FutureFields):
    """
    The acknowledgement of a message of `JetStream.publish_async`, once it has arrived.

    Any thread may use it. In a forked child it has failed with `ForkedConnectionError`, unless it was settled
    before; the parent calls its callbacks.
    """

    # Most futures of a fast publisher are read after they are settled, or never. So the acknowledgement is
    # decoded when it is read, and what a waiting thread and callbacks need is made for them (`_watch`).
    #
    # _outcome: None; then the server's reply, until it is decoded; then the acknowledgement or the error.
    # _watched: whether a thread waits, or there is a callback: the ack thread settles it then. Set under _lock.
    _wakeups: Waiters
    _calls: list[Callable[[PubAckFuture], object]]

    message: tuple[bytes, int] | None
    #: Number of retries while there are no responders, and the delay before each, in seconds.
    retries: int = DEFAULT_RETRIES.attempts
    retry_wait: float = DEFAULT_RETRIES.wait_s
    #: The stream that must store the message; ``None``: any.
    stream: str | None = None

    def _decoded(self) -> PubAck | BaseException:
        """Return the outcome of a settled future. Two threads may decode it at once, to equal values."""
        outcome: Any = self._outcome
        if type(outcome) is bytes:
            try:
                outcome = parse_pub_ack(outcome)
                if self.stream is not None and outcome.stream != self.stream:
                    outcome = _wrong_stream(outcome, self.stream)
            except errors.Error as error:
                outcome = error
            self._outcome = outcome
        return outcome  # type: ignore[no-any-return]

    @classmethod
    def settle_run(
        cls, pending: dict[bytes, PubAckFuture], deliveries: list[RawMessage], token_at: int
    ) -> list[RawMessage]:
        """Settle the futures without a waiting thread or callback; return the other acks."""
        # It runs no user code, so the reader may call it. The settled futures are removed from
        # pending.
        if speedups.settle_futures is not None:
            with _lock:
                return speedups.settle_futures(cls, pending, deliveries, token_at)
        others: list[RawMessage] = []
        with _lock:
            for delivery in deliveries:
                subject, _, header, payload = delivery
                token = subject[token_at:]
                future = pending.get(token)
                if future is None:
                    continue  # a late ack
                if future._watched or (header and not payload):  # noqa: SLF001 - of this class
                    others.append(delivery)
                elif pending.pop(token, None) is not None:
                    future._outcome = payload  # noqa: SLF001
                    future.message = None  # no longer needed
        return others

    def settle(self, outcome: bytes | BaseException) -> None:
        """Settle the future with the server's reply, or an error; one that is settled stays as it is."""
        with _lock:
            if self._outcome is not None:
                return
            self._outcome = outcome
        self.message = None  # no longer needed
        if self._watched:
            self._wakeups.wake_all()
            for call in self._calls:
                self._call(call)

    def _settled(self) -> bool:
        """Return whether the future is settled; in a forked child, settle a pending one first."""
        if self._outcome is not None:
            return True
        closed = self._core.closed_reason
        if not isinstance(closed, errors.ForkedConnectionError):
            return False
        # No callback is called: those that were added before the fork are for the parent.
        self.message, self._outcome = None, closed
        return True

    def _watch(self) -> None:
        """Let the ack thread settle it; ``_lock`` is held."""
        if not self._watched:
            self._wakeups = Waiters()
            self._calls = []
            self._watched = True
            self._core.direct.end()  # the reader has to receive the ack

    def _call(self, fn: Callable[[PubAckFuture], object]) -> None:
        try:
            check_returned(fn(self))
        except BaseException as error:  # noqa: BLE001 - reported
            self._core.events.callback_raised("the callback of a future", error)

    def __reduce__(self) -> NoReturn:
        raise TypeError("a future cannot be pickled; wait for its result, and pass that")

    def __repr__(self) -> str:
        state = "settled" if self._settled() else "pending"
        return f"<{type(self).__name__} {self.subject!r} {state}>"

    def done(self) -> bool:
        """Return whether the acknowledgement has arrived, or the message has failed."""
        return self._settled()

    def result(self, timeout: float | None = None) -> PubAck:
        """
        Wait for the acknowledgement and return it.

        Args:
            timeout: how long to wait, in seconds; ``None``: until the message is acknowledged or has failed, at
                most its timeout.

        Raises:
            TimeoutError: it did not arrive in time.
            Error: the message has failed; the errors are those of `JetStream.publish`.

        """
        outcome = self._outcome
        if type(outcome) is bytes:
            outcome = self._decoded()
        if type(outcome) is PubAck:
            return outcome
        error = self.exception(timeout)
        if error is not None:
            raise error
        return self._decoded()  # type: ignore[return-value]  # no error

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """
        Wait for the acknowledgement; return the error of a message that has failed, else ``None``.

        Args:
            timeout: as of `result`.

        Raises:
            TimeoutError: it did not arrive in time.

        """
        if not self._settled():
            # The message may still be buffered.
            self._core.writer.send_buffered()
            with _lock:
                self._watch()
            if not self._wakeups.wait_for(self._settled, Deadline(timeout)):
                raise errors.TimeoutError("the future was not settled in time")
        outcome = self._decoded()
        return None if isinstance(outcome, PubAck) else outcome

    def add_done_callback(self, fn: Callable[[PubAckFuture], object]) -> None:
        """
        Call a function with this future when it is settled, or at once if it is.

        It is called by the thread for acknowledgements, which must not wait, or by the calling thread. What it
        raises is reported to ``error_cb``.

        Args:
            fn: the function.

        """
        with _lock:
            is_settled = self._settled()
            if not is_settled:
                self._watch()
                self._calls.append(fn)
        if is_settled:
            self._call(fn)

    def future(self) -> Future[PubAck]:
        """
        Return a future of the standard library with the same outcome, which cannot be cancelled.

        `concurrent.futures.wait`, `concurrent.futures.as_completed` and `asyncio.wrap_future` accept it. Each call
        returns a new one, so keep it to look it up in what these return. In a forked child it fails with
        `ForkedConnectionError`, and its callbacks are called there as well.
        """
        found: Future[PubAck] = Future()
        found.set_running_or_notify_cancel()
        _standard.add(found)
        self.add_done_callback(partial(_settle_standard, found))
        return found


def _settle_standard(standard: Future[PubAck], future: PubAckFuture) -> None:
    error = future.exception(0)
    if error is None:
        standard.set_result(future.result(0))
    else:
        standard.set_exception(error)
    _standard.discard(standard)  # last: a fork before leaves it to `_fail_in_child`


def _fail_in_child() -> None:
    """Fail the standard futures in a forked child."""
    # So that a loop over `as_completed` that contains the fork continues. A thread of the parent may have held the
    # lock of one of them, so other threads settle them, and leave out one that does not get ready.
    left = list(_standard)
    _standard.clear()
    error = errors.ForkedConnectionError("the message was published in the parent process")

    def fail() -> None:
        with contextlib.suppress(IndexError):  # another thread took the last one
            while True:
                standard = left.pop()
                with contextlib.suppress(InvalidStateError):  # settled just before
                    standard.set_exception(error)

    if is_gevent():
        fail()  # greenlets do not switch while they hold such a lock
    while left:
        spawn("forked-futures", fail).join(_HELD_LOCK_S)


in_each_child(_fail_in_child)


#: Delays before a message is published again while an earlier one is being stored, in seconds: the first and the
#: maximum.
_IN_PROCESS_DELAY_S: Final = 0.02
_MAX_IN_PROCESS_DELAY_S: Final = 0.32
#: Maximum number of messages of `publish_async` that may await their acks.
DEFAULT_WINDOW: Final = 4000
#: Minimum time in seconds that must be left for a reply; with less, there is no further attempt.
_MIN_REPLY_TIME_S: Final = 0.05
#: Seconds between two checks for overdue acks.
_OVERDUE_CHECK_INTERVAL_S: Final = 0.1

#: Number of checks without an ack after which the thread ends if none is pending.
_IDLE_CHECKS: Final = 20


#: Returns the error for each subject of messages that no stream has stored.
ReasonsOf = Callable[[Iterable[str]], dict[str, errors.NoStreamResponseError]]


class _Retry(NamedTuple):
    """A message that is sent again, as there were no responders (ADR-22)."""

    at: float
    """When, by the monotonic clock."""
    token: bytes
    future: PubAckFuture


class _Failures(NamedTuple):
    """Messages that fail with an error: a later thread that finds it fails no others."""

    tokens: Iterable[bytes]
    error: errors.Error


class _Reasons(NamedTuple):
    """Why no stream has stored some messages."""

    subjects: dict[bytes, str]
    """Tokens and subjects of the messages."""
    errors: dict[str, errors.NoStreamResponseError]
    """The error for each subject."""


class _AckThread:
    """The thread that settles the futures that the reader must not settle, or for which no ack arrives."""

    def __init__(
        self,
        core: ConnectionCore,
        pending: dict[bytes, PubAckFuture],
        room: Waiters,
        token_at: int,
        reasons: ReasonsOf,
        has_reasons: Callable[[], bool],
    ) -> None:
        # `token_at`: where the token begins in the subject of an ack; `reasons`, `has_reasons`: see `Publisher`.
        self._core = core
        self._pending = pending
        self._room = room
        self._token_at = token_at
        self._acks: Mailbox[RawMessage | _Reasons | _Failures] = Mailbox()
        self._reasons_of = reasons
        self._has_reasons = has_reasons
        # Tokens of messages that no stream has stored, and whose reason is not known yet. Subjects of those of
        # which the next thread asks, and whether such a thread runs. Used by the thread only.
        self._not_stored: set[bytes] = set()
        self._unanswered: dict[bytes, str] = {}
        self._asking = False
        # Entries to be retried, sorted by due time; used by the thread only.
        self._retries: list[_Retry] = []
        #: Messages that the thread is going to fail; added by the reader.
        self.failed: set[bytes] = set()
        #: The thread; ``None``: it was not started, or has ended. Changed by the publisher.
        self.thread: threading.Thread | None = None
        #: Whether it calls callbacks of futures.
        self.settling: bool = False

    def is_current(self) -> bool:
        """Return whether it is the calling thread."""
        return threading.current_thread() is self.thread

    def add(self, items: Sequence[RawMessage | _Reasons | _Failures]) -> None:
        """Enqueue acks or events, and wake the thread."""
        self._acks.put(items, len(items))

    def fail(self, tokens: Iterable[bytes], error: errors.Error) -> None:
        """Let the thread fail messages after the acks that have arrived; called by the reader."""
        self.failed.update(tokens)
        self.add((_Failures(tokens, error),))

    def close(self, reason: BaseException) -> None:
        """Let the thread fail the messages that are left."""
        self._acks.close(reason)

    def settle_all(self, ends: Callable[[], bool]) -> None:
        """Settle futures until the connection is closed, or ``ends`` returns whether the thread may end."""
        acks = self._acks
        check_at = monotonic() + _OVERDUE_CHECK_INTERVAL_S
        idle_checks = 0
        while True:
            try:
                wait_s = _OVERDUE_CHECK_INTERVAL_S
                if self._retries:
                    wait_s = min(wait_s, max(0.0, self._retries[0].at - monotonic()))
                if idle_checks > _IDLE_CHECKS and not self._pending and ends():
                    return
                delivery = acks.get(Deadline(wait_s))
                idle_checks = 0
                self.settling = True
                self._settle(delivery)
                # Settle everything that arrived with it before waking other threads.
                for _ in range(len(acks)):
                    self._settle(acks.items.popleft())
            except (errors.TimeoutError, IndexError):
                idle_checks += 1  # no ack; or a callback forked, and the child has no acks
            except errors.Error as error:
                self.settling = False
                text = "the ack arrived; the message may be stored"
                self.fail_all(closed_before(text, error))
                return
            self.settling = False
            now = monotonic()
            if self._retries and now >= self._retries[0].at:
                self._send_retries(now)
            if now >= check_at:
                self._fail_overdue(now)
                check_at = now + _OVERDUE_CHECK_INTERVAL_S
            self._room.wake_all()

    def _settle(self, item: RawMessage | _Reasons | _Failures) -> None:
        if isinstance(item, _Failures):
            for token in item.tokens:
                self._fail(token, item.error)
            # Only after their removal from _pending: the reader would otherwise choose them again.
            self.failed.difference_update(item.tokens)
            return
        if isinstance(item, _Reasons):
            self._asking = False
            self._not_stored.difference_update(item.subjects)
            for token, asked in item.subjects.items():
                reason = item.errors.get(asked) or errors.NoStreamResponseError(asked)
                self._settle_one(token, copy_exception(reason))
            self._ask_reasons()
            return
        subject, _, header, payload = item
        token = subject[self._token_at :]
        if not is_no_responders(header, payload):
            self._settle_one(token, payload)
        elif not self._schedule_retry(token) and (future := self._pending.get(token)) is not None:
            self._not_stored.add(token)
            self._unanswered[token] = future.subject
            self._ask_reasons()

    def _settle_one(self, token: bytes, outcome: bytes | BaseException) -> None:
        future = self._pending.pop(token, None)
        if future is not None:  # otherwise a late ack
            future.settle(outcome)

    def _ask_reasons(self) -> None:
        """Ask why messages have no response, in another thread; the answers are enqueued among the acks."""
        if self._asking or not self._unanswered:
            return
        asked, self._unanswered = self._unanswered, {}

        def ask() -> None:
            found: dict[str, errors.NoStreamResponseError] = {}
            try:
                found = self._reasons_of(asked.values())
            finally:
                self.add((_Reasons(asked, found),))

        self._asking = True
        try:
            if self._has_reasons():
                spawn(f"reasons-{self._core.name}", ask, self._core.events.error)
                return
        except RuntimeError:
            pass  # no thread can be started
        self.add((_Reasons(asked, {}),))

    def _fail(self, token: bytes, error: errors.Error) -> None:
        """Fail a pending message; the error does not hide that no stream has stored it."""
        future = self._pending.pop(token, None)
        if future is not None:
            is_known = token in self._not_stored
            self._not_stored.discard(token)
            future.settle(errors.NoStreamResponseError(future.subject) if is_known else error)

    def _schedule_retry(self, token: bytes) -> bool:
        """Schedule a retry of a message (ADR-22); return whether there is one."""
        future = self._pending.get(token)
        if future is None or not future.retries:
            return False
        future.retries -= 1
        insort(self._retries, _Retry(monotonic() + future.retry_wait, token, future))
        return True

    def _send_retries(self, now: float) -> None:
        due = [retry for retry in self._retries if retry.at <= now]
        self._retries = [retry for retry in self._retries if retry.at > now]
        for _, token, future in due:
            message = future.message
            if message is None:
                continue  # settled meanwhile
            try:
                # This thread must not wait for a full socket.
                self._core.writer.append(*message, DEFERRED, 1, False, NO_WAIT)
            except errors.TimeoutError:
                pass  # it is buffered
            except errors.Error as error:
                self._pending.pop(token, None)
                future.settle(error)

    def _fail_overdue(self, now: float) -> None:
        """Fail the messages whose timeout has expired."""
        # A copy in one step: an iteration, even by list(), may be interrupted by another thread.
        for token, future in self._pending.copy().items():
            if future.due is not None and future.due <= now:
                self._fail(
                    token, self._core.state.timed_out(f"no ack for {future.subject!r} in time")
                )

    def fail_all(self, error: errors.Error) -> None:
        """Fail every pending message."""
        for token in self._pending.copy():
            self._fail(token, error)
        self._room.wake_all()


class Publisher(MessageReceiver):
    """Publishes the messages of a JetStream context."""

    # Any thread may call its methods.

    is_reply_inbox = True

    def __init__(
        self,
        core: ConnectionCore,
        timeout: float | timedelta | None,
        window: int = DEFAULT_WINDOW,
        stall_wait: float | timedelta | None = None,
        *,
        reasons: ReasonsOf,
        has_reasons: Callable[[], bool],
    ) -> None:
        # `reasons`: returns the error for each subject without a response; `has_reasons`: whether it has to wait
        # for the server.
        check_int("publish_async_max_pending", window, 1)
        self._reasons_of = reasons
        self._core = core.internal  # the ack thread holds this object
        # Copied: to look them up for each message costs 5 % of `publish_async`.
        self._encode_subject = core.encoder.encode_subject
        self._encode_command = core.encoder.encode_command
        self._append = core.writer.append
        self._timeout = None if timeout is None else seconds(timeout)
        self._window = window
        self._stall_wait = (
            None if stall_wait is None else seconds(stall_wait, "publish_async_stall_wait")
        )
        self._tokens = itertools.count(1)
        self._pending: dict[bytes, PubAckFuture] = {}
        self._room = Waiters()
        self._start = new_lock()
        self._inbox = core.table.new_inbox()
        self._reply_prefix = self._inbox.encode() + b"."
        # --- changed under _start ---
        self._subscribed = False
        self._unsubscribe: Callable[[], None] | None = None
        self._acks = _AckThread(
            self._core, self._pending, self._room, len(self._reply_prefix), reasons, has_reasons
        )

    # --- waiting for each ack -------------------------------------------------------------------

    def publish(
        self,
        subject: str,
        payload: bytes,
        headers: HeadersLike | None,
        timeout: float | timedelta | None,
        retries: Retries = DEFAULT_RETRIES,
        stream: str | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> PubAck:
        """Publish and wait for the ack; see `JetStream.publish`."""
        headers = publish_headers(headers, options)
        deadline = Deadline(self._timeout if timeout is None else timeout)
        where = self._core.encoder.encode_subject(subject)
        # Counts down. A negative start never reaches 0, so only the timeout limits the attempts.
        for retries_left in itertools.count(retries.attempts, -1):
            try:
                response = self._core.requests.request(where, payload, deadline, headers)
            except errors.NoRespondersError:
                # A stream without a leader looks like a missing stream. Without the time for another
                # reply, a retry would only hide the error behind a timeout.
                left = deadline.left()
                if retries_left and (left is None or left > retries.wait_s + _MIN_REPLY_TIME_S):
                    self._core.wait_closed(retries.wait_s)
                    continue
                break
            ack = parse_pub_ack(response[PAYLOAD])
            if stream is not None and ack.stream != stream:
                raise _wrong_stream(ack, stream)
            return ack
        raise self._reasons_of([subject])[subject]

    def publish_expecting(
        self,
        subject: str,
        payload: bytes,
        headers: HeadersLike | None,
        deadline: Deadline,
        stream: str | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> PubAck:
        """Publish with an expected sequence; try again while the server cannot check it yet."""
        delays = BackoffDelay(_IN_PROCESS_DELAY_S, _MAX_IN_PROCESS_DELAY_S)
        while True:
            try:
                left = deadline.left()
                return self.publish(
                    subject, payload, headers, left, DEFAULT_RETRIES, stream, options
                )
            except errors.APIError as error:
                # Other transient errors are for the caller: they may last longer than it waits.
                if not error.in_process or deadline.expired():
                    raise
            self._core.wait_closed(delays.next())

    # --- not waiting ----------------------------------------------------------------------------

    def publish_async(
        self,
        subject: str,
        payload: bytes,
        headers: HeadersLike | None,
        timeout: float | timedelta | None,
        retries: Retries = DEFAULT_RETRIES,
        stream: str | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> PubAckFuture:
        """Publish and return a future of the ack; see `JetStream.publish_async`."""
        core = self._core
        if options or EACH_MESSAGE:
            headers = publish_headers(headers, options)
        token = b"%x" % next(self._tokens)
        # Local, because Python 3.11 does not cache the lookup of a method that an instance holds.
        encode_subject, encode, append = self._encode_subject, self._encode_command, self._append
        where = encode_subject(subject)
        message = command, size = encode(where, payload, self._reply_prefix + token, headers)
        limit = self._timeout if timeout is None else seconds(timeout)
        deadline = None
        # The ack thread makes room in the window, so callbacks of futures must not wait for it.
        if len(self._pending) >= self._window and not self._acks.is_current():
            stall, deadline = self._stall_wait, Deadline(limit)
            self._wait_for_room(deadline if stall is None else Deadline(stall))
        due = None if limit is None else monotonic() + limit
        future = PubAckFuture(subject, message, due, core)
        if retries is not DEFAULT_RETRIES:
            future.retries, future.retry_wait = retries
        if stream is not None:
            future.stream = stream
        try:
            self._pending[token] = future
            # Checked after the entry is pending: if the inbox is not permitted, the reader first resets
            # _subscribed and then fails the pending messages.
            if not self._subscribed:
                self._subscribe()
            end = None if limit is None else deadline or limit
            append(command, size, DEFERRED, 1, False, end)
        except BaseException:
            self._pending.pop(token, None)
            self._room.wake_all()
            raise
        return future

    @property
    def pending(self) -> int:
        """The number of messages that await their acks."""
        return len(self._pending)

    def completed(self, deadline: Deadline) -> None:
        """Wait until every message has its ack."""
        if self._acks.is_current() and self._pending:
            raise errors.TimeoutError("a callback of a future cannot wait for other messages")
        if not self._wait_for_acks(lambda: not self._pending, deadline):
            raise self._core.state.timed_out(
                f"{counted(len(self._pending), 'message')} still without an ack"
            )

    def _wait_for_acks(self, holds: Callable[[], object], deadline: Deadline) -> bool:
        self._core.writer.check_not_forked()
        self._core.direct.end()
        self._core.writer.send_buffered()
        return self._room.wait_for(holds, deadline)

    def _wait_for_room(self, deadline: Deadline) -> None:
        if not self._wait_for_acks(lambda: len(self._pending) < self._window, deadline):
            raise errors.TooManyStalledMsgsError(
                self._core.state.with_outage(
                    f"{len(self._pending)} messages await their acks; "
                    f"publish_async_max_pending is {self._window}"
                )
            )

    def _subscribe(self) -> None:
        with self._start:
            if self._subscribed:
                return
            try:
                subscription = self._core.table.add(f"{self._inbox}.*", "", self)
                if self._unsubscribe is not None:
                    # Remove the one that was not permitted. It stayed until now because the ack thread
                    # must always have a subscription that reports the close.
                    self._unsubscribe()
                self._unsubscribe = partial(self._core.table.remove_deferred, subscription)
                if self._acks.thread is None:
                    name = f"acks-{self._core.name}"
                    self._acks.thread = spawn(name, self._settle_all, self._crashed)
                self._subscribed = True
            finally:
                if not self._subscribed and self._acks.thread is None:
                    self._core.table.remove_receiver(self)

    def _settle_all(self) -> None:
        with self._start:  # a Ctrl-C may have ended the call that started this thread
            is_needed = self._acks.is_current()
        if is_needed:
            self._acks.settle_all(self._ends)

    # --- called by the reader; see `MessageReceiver` ------------------------------------------------

    @property
    def awaited(self) -> bool:
        """Whether no ack is expected; others arrive unexpectedly for callers that read directly."""
        return not self._pending

    def caller_waits(self) -> bool:
        """Return false: no thread reads acks from the socket."""
        return False

    def deliver(self, deliveries: list[RawMessage]) -> None:
        """Settle the futures of acks; enqueue the other acks for the ack thread."""
        others = PubAckFuture.settle_run(self._pending, deliveries, len(self._reply_prefix))
        if others:
            self._acks.add(others)
        self._room.wake_all()

    def on_connection_change(self, *, connected: bool) -> None:
        """Fail the messages that may have been sent, when the connection is lost."""
        if not connected:
            text = "the connection was lost before the ack arrived; the message may be stored"
            self._acks.fail(self._pending.copy(), errors.ConnectionLostError(text))

    def on_permission_error(self, subject: bytes, error: errors.PermissionsError) -> bool:
        """Fail the last message to the subject, or all if the inbox is not permitted; return whether any."""
        if error.operation == "subscribe":
            self._inbox_denied(error)
            return True
        # The server reports each refused message once. If the permissions have just changed, messages
        # to this subject that it accepted before may be pending too; those are the earlier ones.
        refused = subject.decode("utf-8", "surrogateescape")
        # A copy in one step: an iteration, even by list(), may be interrupted by another thread.
        for token in reversed(self._pending.copy()):
            future = self._pending.get(token)
            if future is not None and future.subject == refused and token not in self._acks.failed:
                self._acks.fail([token], error)
                return True
        return False

    def _inbox_denied(self, error: errors.PermissionsError) -> None:
        """Fail all messages; the next one subscribes again, because the permissions may change."""
        with self._start:  # not while the subscription is being created
            self._subscribed = False
        self._acks.fail(self._pending.copy(), error)

    def on_closed(self, reason: BaseException) -> None:
        """Wake the ack thread, which fails the rest; in a forked child, the futures fail when they are looked at."""
        if isinstance(reason, errors.ForkedConnectionError):
            self._pending.clear()
        if isinstance(reason, errors.BadSubscriptionError):
            reason = errors.ConnectionDrainingError(
                "the connection was drained before the ack arrived; the message may be stored"
            )
        self._acks.close(reason)

    def wait_drained(self, deadline: Deadline) -> bool:
        """Wait until all published messages have their acks; return whether they do."""
        if self._acks.is_current():
            return True  # a callback of a future that closes the connection
        return self._wait_for_acks(lambda: not (self._pending or self._acks.settling), deadline)

    def unacknowledged(self, deadline: Deadline) -> int:
        """Wait for the acks; return the number of those that are missing."""
        if self._pending:
            self._wait_for_acks(lambda: not self._pending, deadline)
        return len(self._pending)

    def _ends(self) -> bool:
        """End the subscription, unless a message awaits its ack; return whether it has ended."""
        with self._start:
            # First: a thread that publishes meanwhile has an entry below, or waits for the lock.
            was_subscribed, self._subscribed = self._subscribed, False
            if self._pending:
                self._subscribed = was_subscribed
                return False
            self._acks.thread = None
            self._core.table.remove_receiver(self)
            return True

    def _crashed(self, error: BaseException) -> None:
        """Fail all messages because the thread ended; the next message starts another one."""
        self._core.events.error(error)
        failure = errors.Error("an internal error ended the thread for acks")
        failure.__cause__ = error
        with self._start:
            self._acks.thread = None
            self._subscribed = self._acks.settling = False
        self._acks.fail_all(failure)
