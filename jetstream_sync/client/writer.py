"""What a connection sends: the buffered commands of many threads, and pings."""

# Rules of the `Writer`: many threads append commands, one thread at a time sends them.
#
# 1. ``_lock`` guards the buffer and is held for a few instructions only, never while sending. So the
#    reader may append a PONG at any time and is never blocked by a full socket.
# 2. The sending thread holds ``_sending``. A thread that cannot take the lock returns at once; the holder
#    re-checks the buffer after releasing it, so no command is left behind. A thread that releases the
#    lock with unsent data (the socket is full, or a KeyboardInterrupt) wakes the flusher. ``locked()`` says
#    nothing: a blocked thread owns the lock before it can run, and again when it is released.
# 3. A command is sent completely and once. Data taken from the buffer is kept in ``_batch`` with the
#    number of bytes sent, so a KeyboardInterrupt in the middle of a send loses nothing.
# 4. Back-pressure: a thread that appends to a buffer above its limit waits until the socket accepts
#    it: until its deadline, or without one while the socket accepts some data every few seconds.
# 5. A thread that waits for a reply has a deadline, so it never waits for a full socket; the flusher
#    does. The flusher does not wait beyond its schedule: it also sends the pings, which detect a peer
#    that does not read.
# 6. While disconnected, the buffer grows up to ``pending_size``; then appending raises an error.
# 7. A KeyboardInterrupt is raised in the main thread only, and only at a call. So the flusher is woken
#    first, the counters are raised next and the command is appended last: wherever the sequence is cut off,
#    a buffered command has been counted and will be sent. The buffer is one `bytearray`, replaced as a whole when
#    it is taken.
# 8. A message after a silence is sent by its own thread: to wake the flusher for it costs several times as much.
#    A thread that is interrupted before it has sent wakes the flusher.
#
# Pings (`KeepAlive`) detect a dead connection, and confirm that the server has processed all earlier commands.
# A server answers them in order. Each ping adds an entry to ``_waiters``, and each pong removes the first one:
# the result slot of a flush, or ``None`` for a scheduled ping.

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from enum import IntEnum
from functools import partial
from operator import methodcaller
from typing import TYPE_CHECKING, TypeVar

from .. import errors, speedups
from ..durations import counted
from ..headers import HeadersLike
from ..locks import call_and_record, new_lock
from ..net.clock import NO_WAIT, Deadline, monotonic
from ..net.layer import ByteStream
from ..net.tcp import TCPStream
from ..protocol.parser import PING, PONG
from .encoder import MessageEncoder
from .mailbox import ResultSlot, copy_exception
from .threads import Signal

T = TypeVar("T")

#: Buffer size in bytes above which a publishing thread sends the buffer itself; the C extension has the same number.
_SEND_ABOVE_BYTES = 64 * 1024
#: Maximum delay before a deferred command is flushed, in seconds.
_FLUSH_DELAY_S = 0.001
#: Number of flush delays without data after which the flusher sleeps until it is woken.
_MAX_IDLE_TICKS = 2

#: Seconds without any progress after which a thread without a deadline stops waiting for a full socket.
_STALL_LIMIT_S = 10.0
#: Seconds after which a thread that waits for a full socket checks that the stream is still in use.
_STREAM_CHECK_S = 0.5

_NOTHING = memoryview(b"")

# Calls a function in one step.
_call = methodcaller("__call__")


def _without_pings(commands: bytearray) -> bytearray:
    """Return buffered commands without PING and PONG."""
    kept = bytearray()
    at = 0
    while at < len(commands):
        end = commands.find(b"\r\n", at) + 2
        if end == 1:
            end = len(commands)
        line = bytes(commands[at:end])
        if line.startswith((b"PUB ", b"HPUB ")):
            end += int(line.split()[-1]) + 2
        if line not in (PING, PONG):
            kept += commands[at:end]
        at = end
    return kept


class FlusherState(IntEnum):
    """What the flusher does; the C extension has the same numbers."""

    AWAKE = 0
    """It sends, or is about to look at the buffer."""
    TICKING = 1
    """It sleeps for one flush delay; only urgent commands have to wake it."""
    ASLEEP = 2
    """It sleeps until its schedule, or until it is woken."""


class Flush(IntEnum):
    """When a command is sent: the first state of the flusher that it ends; the C extension has the same numbers."""

    SOON = 1
    """By the flusher, at once."""
    DEFERRED = 2
    """By the flusher, within a flush delay."""
    WITH_NEXT = 3
    """Together with the next command."""
    NOW = 4
    """By the calling thread."""


# In Python 3.10, the lookup in the class is a call, which a KeyboardInterrupt could leave.
_AWAKE, _TICKING, _ASLEEP = FlusherState
SOON, DEFERRED, WITH_NEXT, NOW = Flush


class Writer:
    """The output buffer of a connection, and the loop of the flusher thread."""

    # Any thread may call its methods.

    def __init__(
        self, pending_size: int, on_send_error: Callable[[ByteStream, OSError], None]
    ) -> None:
        self._pending_size = pending_size
        self._on_send_error = on_send_error
        self._lock = new_lock()
        self._sending = new_lock()
        # --- under _lock ---
        self._buffer = bytearray()
        self._stream: ByteStream | None = None
        self._flusher: int = _AWAKE  # a `FlusherState`
        self._pong_end = 0  # size of the buffer after the last pong in it
        self._sent_at = 0.0  # when data was last taken from the buffer, by the monotonic clock
        self.out_msgs: int = 0
        self.out_bytes: int = 0
        #: The number of messages of the program, sent or not, for whose reply no caller has waited.
        self.unanswered: int = 0
        # --- set once, read without a lock ---
        self.closed: BaseException | None = None
        # --- under _sending ---
        self._batch = _NOTHING
        self._sent: list[int] = []  # bytes of the batch that were sent, one entry per send
        # What `unanswered` was when the batch was taken, and the one before it; see `unsent`.
        self._taken = self._taken_before = 0
        self._sender = 0  # id of the thread that holds _sending and sends
        # The flusher sleeps on this lock; released means that there is work.
        self._work = threading.Lock()
        self._work.acquire()
        # For the C extension: the socket of the stream, if commands may be sent to it without the stream.
        self._fd = -1

    # --- filling the buffer ---------------------------------------------------------------------

    def publish_message(
        self,
        encoder: MessageEncoder,
        subject: str,
        payload: bytes,
        reply: str,
        headers: HeadersLike | None,
    ) -> None:
        """Encode a message and append it for the flusher; raises as `encode_message()` and `append()`."""
        command, size = encoder.encode_message(subject, payload, reply, headers)
        self.append(command, size, SOON)

    _publish_message = publish_message  # for the C extension

    def append(
        self,
        command: bytes,
        size: int,
        flush: Flush,
        messages: int = 1,
        is_awaited: bool = False,
        deadline: Deadline | float | None = None,
        /,
    ) -> None:
        """
        Append the command of a message, or of several; wait while the buffer is above its limit.

        ``is_awaited``: callers wait for the replies, or the client itself sends it; see `unsent`.

        Raises:
            ConnectionClosedError: the writer is closed; a copy of the reason.
            OutboundBufferLimitError: no stream is attached, and the buffer is full; nothing was appended.
            TimeoutError: the command is buffered; the deadline has passed, or without one the socket has
                accepted nothing for ``_STALL_LIMIT_S``.
            Error: the same; a signal handler interrupted this thread while it was sending.

        """
        if self.closed is not None:
            raise copy_exception(self.closed)
        sends = False
        try:
            with self._lock:
                if self._stream is None and len(self._buffer) + len(command) > self._pending_size:
                    raise errors.OutboundBufferLimitError(self._pending_size)  # noqa: TRY301 - nothing to send
                sends = flush == NOW or (
                    self._flusher == _ASLEEP
                    and not self._buffer
                    and monotonic() - self._sent_at > _FLUSH_DELAY_S
                )
                if self._flusher >= flush and not sends:
                    self._wake()
                self.out_msgs += messages
                self.out_bytes += size
                if not is_awaited:
                    self.unanswered += messages
                self._buffer += command
            if sends:
                # If another thread is sending, or the socket is full, another thread sends the command.
                self.send_buffered()
        except BaseException:
            if sends:
                self._wake_flusher()
            raise
        if len(self._buffer) > _SEND_ABOVE_BYTES:
            self._apply_backpressure(deadline)

    _append = append  # for the C extension

    def control(self, command: bytes, flush: Flush) -> None:
        """Append a command other than a message, to be sent `SOON` or `WITH_NEXT`; never waits, never raises."""
        # So the reader may call it, and a thread that holds the lock of the state.
        with self._lock:
            if self._flusher >= flush:
                self._wake()
            self._buffer += command

    def pong(self) -> None:
        """Append a reply to a ping; never waits."""
        # A peer that sends pings continuously without reading gets one PONG for many of them. Otherwise
        # the buffer would grow without a limit, and one PONG proves as well that the client is alive.
        with self._lock:
            size = len(self._buffer)
            if size > _SEND_ABOVE_BYTES and self._pong_end == size:
                return
            if self._flusher:
                self._wake()
            self._pong_end = size + len(PONG)
            self._buffer += PONG

    def ping(self, markers: list[T], marker: T) -> None:
        """Append a ping that is sent together with the next command, and a marker to a list."""
        # A KeyboardInterrupt leaves both or neither of them.
        with self._lock:
            appends = partial(markers.append, marker), partial(self._buffer.extend, PING)
            # No bytecode runs between the two appends, so no KeyboardInterrupt is raised there.
            deque(map(_call, appends), maxlen=0)

    def _wake(self) -> None:
        """Wake the sleeping flusher; ``_lock`` is held."""
        self._flusher = _AWAKE
        self._work.release()

    def _wake_flusher(self) -> None:
        """Wake the flusher if it sleeps."""
        with self._lock:
            if self._flusher:
                self._wake()

    # --- sending the buffer ---------------------------------------------------------------------

    def flusher(self, next_wake: Callable[[], float]) -> None:
        """Run the flusher: send buffered commands until `close()`."""
        ticks = 0
        while True:
            schedule = Deadline(next_wake())
            while (self._buffer or self._batch) and self._send_if_free(0.0, schedule):
                pass  # other threads may have added data meanwhile
            with self._lock:
                if self.closed is not None:
                    return
                self._flusher = _TICKING if ticks else _ASLEEP
            # A thread that holds the lock from now on wakes this one if it leaves data.
            self.send_buffered()
            timeout = schedule.lock_timeout()
            woken = self._work.acquire(timeout=min(timeout, _FLUSH_DELAY_S) if ticks else timeout)
            with self._lock:
                if not woken and not self._flusher:
                    self._work.acquire()  # woken after the timeout: take the released lock again
                    woken = True
                self._flusher = _AWAKE
                # Also when the buffer is empty: the thread that woke this one may have sent it with the
                # next request. One tick costs less than a wake-up for each acknowledgement.
                ticks = _MAX_IDLE_TICKS if woken or self._buffer else max(0, ticks - 1)

    def send_buffered(self, deadline: Deadline = NO_WAIT) -> bool:
        """Send the buffer, waiting for another sender and for a full socket; return whether all was sent."""
        try:
            while self._buffer or self._batch:
                timeout = deadline.lock_timeout()
                if self._stream is None or not self._send_if_free(timeout, deadline):
                    return False
        except BaseException:
            self._wake_flusher()  # other threads rely on this one
            raise
        return True

    @property
    def pending_bytes(self) -> int:
        """The number of bytes that are buffered and not sent."""
        return len(self._buffer) + max(0, len(self._batch) - sum(self._sent))

    @property
    def unsent(self) -> int:
        """The number of `unanswered` messages that were not sent or are lost."""
        is_sent = sum(self._sent) == len(self._batch)
        taken = self._taken if is_sent else self._taken_before
        return self.unanswered - taken

    def flush_and_shutdown(self, stream: ByteStream, deadline: Deadline) -> None:
        """Send the buffer to a stream, and shut the stream down."""
        # Later commands, and those not sent in time, are kept for the next stream. A batch that was sent
        # in part is lost, as with a stream that breaks.
        self.send_buffered(deadline)
        acquired: list[bool] = []
        try:
            # No thread is sending while this lock is held.
            call_and_record(acquired, self._sending.acquire, True, deadline.lock_timeout())
            # In this order: a KeyboardInterrupt in between must not leave an open, unused stream.
            stream.shutdown()
            if self._stream is stream:
                self.pause()
        finally:
            if True in acquired:
                self._sending.release()

    def _apply_backpressure(self, limit: Deadline | float | None) -> None:
        """Send until the buffer is below its limit; see rule 4; raise as `append()`."""
        timeout = _STALL_LIMIT_S if limit is None else limit
        deadline = timeout if isinstance(timeout, Deadline) else Deadline(timeout)
        is_over, progress = False, self._progress()
        while len(self._buffer) > _SEND_ABOVE_BYTES and self._stream is not None:
            if is_over:
                raise errors.TimeoutError(
                    "the server accepts no more data; the message is buffered and may be sent later"
                )
            try:
                self._send_if_free(deadline.sooner(_STREAM_CHECK_S).lock_timeout(), deadline)
            except BaseException:
                self._wake_flusher()  # a KeyboardInterrupt after the release of _sending
                raise
            if self._sender == threading.get_ident():
                # This thread holds _sending further down its stack and would wait for itself.
                raise errors.Error(
                    "a signal handler interrupted this thread while it was sending and cannot wait "
                    "for that; the message is buffered. Do not publish in signal handlers"
                )
            before, progress = progress, self._progress()
            if limit is None and progress != before:
                deadline = Deadline(_STALL_LIMIT_S)
            is_over = deadline.expired()
        if self.closed is not None:
            raise copy_exception(self.closed)
        # Other threads may have added data while this one was sending.
        self.send_buffered()

    def _progress(self) -> tuple[int, int]:
        """Return a value that changes with every byte that the socket accepts."""
        return id(self._batch), sum(self._sent)

    def _send_if_free(self, lock_timeout_s: float, deadline: Deadline) -> bool:
        """Send if ``_sending`` is free in time; return whether all data was sent before the deadline."""
        acquired: list[bool] = []
        done = False
        try:
            call_and_record(acquired, self._sending.acquire, True, lock_timeout_s)
            if acquired[0]:
                self._sender = threading.get_ident()
                done = self._send_all(deadline)
            return done
        finally:
            if True in acquired:
                self._sender = 0  # not a call, so no KeyboardInterrupt before the release
                self._sending.release()
                if not done:
                    self._wake_flusher()

    def _send_all(self, deadline: Deadline) -> bool:
        """Send the batch, then the buffer until it is empty; ``_sending`` is held."""
        # Returns whether all data was sent; if not, the socket is full at the deadline, or the stream is not
        # in use any more.
        stream = self._stream
        if stream is None:
            return False
        while self._take(stream):
            try:
                stream.send(self._batch[sum(self._sent) :], self._sent)
            except BlockingIOError:
                if deadline.expired() or self._stream is not stream or self.closed is not None:
                    return False
                stream.wait_writable(deadline.sooner(_STREAM_CHECK_S).lock_timeout())
            except OSError as error:
                self._on_send_error(stream, error)
                self._wait_detached(stream)
                return False
        return self._stream is stream

    def _wait_detached(self, stream: ByteStream) -> None:
        """Wait for the reader to `detach()`; under gevent, a retrying sender would not let it run."""
        limit = Deadline(_STREAM_CHECK_S)
        while self._stream is stream and self.closed is None and not limit.expired():
            Signal().wait(_FLUSH_DELAY_S)

    def _take(self, stream: ByteStream) -> bool:
        """Take the next batch if the last one was sent; return whether there is one; ``_sending`` is held."""
        if sum(self._sent) < len(self._batch):
            return True
        if not self._buffer:
            self._batch, self._sent = _NOTHING, []
            return False
        with self._lock:
            # Checked under the lock: commands appended after `pause()` are for the next stream.
            if self._stream is not stream:
                return False
            # There is no call between the assignments, so no KeyboardInterrupt separates them. A buffer with a
            # view cannot grow, so the call that makes the view is the last one.
            buffer = bytearray()
            sent: list[int] = []
            batch = memoryview(self._buffer)
            self._taken_before, self._taken = self._taken, self.unanswered
            self._batch, self._sent, self._buffer, self._pong_end = batch, sent, buffer, 0
            self._sent_at = monotonic()
        return bool(batch)

    # --- streams --------------------------------------------------------------------------------

    def attach(self, stream: ByteStream, preamble: bytes) -> None:
        """Send to this stream from now on: first ``preamble``, then the buffer."""
        with self._sending, self._lock:
            self._buffer[:0] = preamble
            self._fd = stream.direct_fd if isinstance(stream, TCPStream) else -1
            self._stream = stream
            if self._flusher:
                self._wake()

    def pause(self) -> None:
        """Keep later commands for the next stream; `detach()` follows."""
        self._fd = -1
        self._stream = None  # makes a sending thread return

    def detach(self) -> None:
        """Stop sending; the stream was shut down."""
        # A batch that was sent in part is dropped: it is unknown how much of it arrived, and a message
        # must not be sent twice. Pings and pongs are dropped, because they were for the old server.
        self.pause()
        with self._sending, self._lock:
            if sum(self._sent) < len(self._batch):
                self._taken = self._taken_before  # its messages count as unsent
            self._batch, self._sent = _NOTHING, []
            self._buffer = _without_pings(self._buffer)

    def check_not_forked(self) -> None:
        """Raise `ForkedConnectionError` in a forked child."""
        if isinstance(self.closed, errors.ForkedConnectionError):
            raise copy_exception(self.closed)

    def forked(self, reason: errors.ConnectionClosedError) -> None:
        """Refuse all commands."""
        self.closed = reason
        self.pause()
        self._buffer, self._batch = bytearray(), _NOTHING

    def close(self, reason: errors.ConnectionClosedError) -> None:
        """Refuse all commands from now on with ``reason``, and end the flusher."""
        with self._lock:
            if self.closed is None:
                self.closed = reason
            self._buffer = bytearray()
            if self._flusher:
                self._wake()


#: The writer with the methods that append messages in C, if the C extension is in use. They append in C while no
#: thread holds the lock, a stream is attached, and the flusher need not be woken. What is sent now is sent in C if
#: no thread is sending, and the stream is a plain socket.
FastWriter: type[Writer] = Writer

if not TYPE_CHECKING and speedups.OutputBuffer is not None:

    class FastWriter(speedups.OutputBuffer, Writer):
        """The writer with the fields and methods of the C extension."""

        def __init__(
            self, pending_size: int, on_send_error: Callable[[ByteStream, OSError], None]
        ) -> None:
            super().__init__(pending_size, on_send_error)
            # With a GIL, the extension reads the first two, otherwise the others.
            self._is_locked, self._is_sending = self._lock.locked, self._sending.locked
            self._acquire, self._release = self._lock.acquire, self._lock.release


class KeepAlive:
    """Flushes and scheduled pings of a connection."""

    # Any thread may call `flush()`; the other methods are for the connection's own threads.

    def __init__(
        self,
        writer: Writer,
        interval: float,
        max_outstanding: int,
        on_stale: Callable[[errors.StaleConnectionError], None],
    ) -> None:
        self._writer = writer
        self._interval = interval
        self._max_outstanding = max_outstanding
        self._on_stale = on_stale
        # Held while a ping is appended to the output buffer, so that the waiters have the same order.
        self._lock = new_lock()
        self._waiters: list[ResultSlot[None] | None] = []
        self._outstanding = 0
        self._connected = False
        self._next_ping = monotonic() + interval

    def flush(self, deadline: Deadline) -> None:
        """
        Wait until the server has processed everything that was sent before.

        Raises:
            TimeoutError: the server did not confirm before the deadline.
            ConnectionLostError: the connection was lost meanwhile.
            ConnectionClosedError: the connection is closed.

        """
        slot: ResultSlot[None] = ResultSlot()
        with self._lock:
            self._writer.ping(self._waiters, slot)
        if self._writer.closed is not None:
            raise copy_exception(self._writer.closed)
        self._writer.send_buffered()
        if not slot.arrived(deadline):
            # The entry stays, because its pong will arrive and must not be matched to another ping.
            raise errors.TimeoutError("the server did not confirm in time")
        slot.result()

    def pong_awaited(self) -> bool:
        """Return whether a pong is outstanding."""
        return bool(self._waiters)

    def pong(self) -> None:
        """Process a pong; called by the reader."""
        with self._lock:
            self._outstanding = 0
            waiter = self._waiters.pop(0) if self._waiters else None
        if waiter is not None:
            waiter.set(None)

    def due(self) -> float:
        """Send a ping if one is due, and return the seconds until the next."""
        now = monotonic()
        left = self._next_ping - now
        if left > 0:
            return left
        self._next_ping = now + self._interval
        if not self._connected:
            return self._interval
        if self._outstanding >= self._max_outstanding:
            self._on_stale(
                errors.StaleConnectionError(
                    f"the server did not answer {counted(self._outstanding, 'ping')}"
                )
            )
            return self._interval
        with self._lock:
            self._outstanding += 1
            self._writer.ping(self._waiters, None)
        return self._interval

    def on_disconnected(self, error: BaseException) -> None:
        """Detach the writer, and fail the flushes whose pong will not arrive."""
        with self._lock:
            # In one step: a later flush adds its ping to a buffer without the old pings.
            self._writer.detach()
            waiters, self._waiters = self._waiters, []
            self._connected = False
            self._outstanding = 0
        lost = errors.ConnectionLostError("the connection was lost before the server confirmed")
        lost.__cause__ = error
        for waiter in waiters:
            if waiter is not None:
                waiter.fail(lost)

    def on_connected(self) -> None:
        """Restart the schedule."""
        self._next_ping = monotonic() + self._interval
        self._connected = True

    def close(self, reason: BaseException) -> None:
        """Fail all waiting flushes with the reason."""
        with self._lock:
            waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if waiter is not None:
                waiter.fail(reason)
