"""
What goes out: a buffer that many threads fill, and one thread at a time empties.

Rules:

1. ``_lock`` guards the buffer and is held for a few instructions only, never while sending. So the
   reader may append an answer (a PONG) at any time and can not be blocked by a full socket.
2. ``_sending`` is held by whoever sends. Who finds it taken leaves: its holder looks into the
   buffer once more after letting go, so nothing is stranded. Who lets go with something left (the
   socket is full, a Ctrl-C struck) wakes the flusher, which goes on.
3. A command is sent whole and once. What was taken from the buffer is remembered in ``_batch`` with
   how much of it has gone out, so that a Ctrl-C in the middle of a send loses nothing.
4. Back-pressure: who appends to a buffer above its limit waits until the socket took it.
5. Who waits for an answer has a deadline for that, so it never waits for a full socket: the flusher
   does. And the flusher does not wait beyond its schedule: a peer that takes nothing is found out by
   the pings, which the flusher sends.
6. Without a link (while reconnecting) the buffer fills up to ``pending_size``; then it refuses.
7. A Ctrl-C strikes the main thread only, and only at a call. So the size is raised before the
   chunk is appended, which comes last, and the flusher is woken before that: whatever is cut
   off, a buffered command has been counted and will be sent.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import Any, TypeVar

from ..errors import (
    ConnectionClosedError,
    Error,
    ForkedConnectionError,
    OutboundBufferLimitError,
    TimeoutError,
)
from ..net.clock import FOREVER, Deadline
from ..net.stream import ByteStream
from ..protocol.commands import PING, PONG
from .result_slot import fresh

__all__ = ["Writer"]

T = TypeVar("T")

#: Bytes in the buffer from which on a publisher sends them itself.
_SEND_ABOVE = 64 * 1024
#: Seconds that a command without hurry waits for company, at most.
_TICK = 0.001
#: Ticks without anything to send after which the flusher goes to sleep.
_QUIET_TICKS = 20

# What the flusher does, under the lock.
_AWAKE = 0
_TICKING = 1  # sleeps for a tick; only what is urgent has to wake it
_ASLEEP = 2  # sleeps until its schedule or until it is woken
#: Seconds after which somebody who waits for a full socket looks whether there is still a link.
_LOOK_AGAIN = 0.5


class Writer:
    """
    The out-buffer of a connection, and the loop of the thread that flushes it.

    Args:
        pending_size: bytes that are buffered while there is no link.
        link_broke: called with the stream and the error when sending fails; on any thread, no
            lock held.

    Any thread may call its methods.
    """

    def __init__(
        self, pending_size: int, link_broke: Callable[[ByteStream, OSError], None]
    ) -> None:
        self._pending_size = pending_size
        self._link_broke = link_broke
        self._lock = threading.Lock()
        # --- under _lock ---
        self._chunks: list[bytes] = []
        self._size = 0
        self._stream: ByteStream | None = None
        self._flusher = _AWAKE
        self.out_msgs = 0
        self.out_bytes = 0
        # --- set once, read without a lock ---
        self.closed: BaseException | None = None
        # --- under _sending ---
        self._sending = threading.Lock()
        self._batch = memoryview(b"")
        self._sent: list[int] = []  # how much of the batch went out, send by send
        self._sender = 0  # the thread that holds _sending to send
        # The flusher sleeps on this; open means: there is something to do.
        self._work = threading.Lock()
        self._work.acquire()

    # --- filling the buffer ---------------------------------------------------------------------

    def publish(self, command: bytes, size: int) -> None:
        """
        Append a message's command and let the flusher send it.

        Args:
            command: the whole command.
            size: the bytes of headers and payload, for the statistics.

        Raises:
            ConnectionClosedError: the connection is closed; the reason.
            OutboundBufferLimitError: there is no link, and the buffer is full.

        """
        if self.closed is not None:
            raise fresh(self.closed)
        with self._lock:
            if self._flusher:
                self._wake()
            self._add(command, size)
        if self._size > _SEND_ABOVE:
            self._push_back()

    def publish_deferred(self, command: bytes, size: int) -> None:
        """
        Append a message's command that is in no hurry: it goes out within a tick, or with others.

        It is for what nobody waits for yet, such as acknowledgements. Who goes on to wait calls
        `send_buffered()` first. Args and errors are those of `publish()`.
        """
        if self.closed is not None:
            raise fresh(self.closed)
        with self._lock:
            if self._flusher == _ASLEEP:
                self._wake()
            self._add(command, size)
        if self._size > _SEND_ABOVE:
            self._push_back()

    def _add(self, command: bytes, size: int, messages: int = 1) -> None:
        """Append a message's command; the lock is held."""
        if self._stream is None and self._size + len(command) > self._pending_size:
            raise OutboundBufferLimitError(self._pending_size)
        self.out_msgs += messages
        self.out_bytes += size
        self._size += len(command)
        self._chunks.append(command)

    def _wake(self) -> None:
        """Wake the flusher, which sleeps; the lock is held."""
        self._flusher = _AWAKE
        self._work.release()

    def append(self, command: bytes) -> None:
        """Append a command that is no message; never waits, and is for the reader, too."""
        with self._lock:
            if self._flusher:
                self._wake()
            self._size += len(command)
            self._chunks.append(command)

    def pong(self) -> None:
        """
        Append an answer to a ping; never waits.

        A peer that pings on and on without reading gets one answer for many: what is owed to it must
        not grow without a bound, and one answer shows as well as many that somebody is there.
        """
        with self._lock:
            if self._size > _SEND_ABOVE and self._chunks and self._chunks[-1] is PONG:
                return
            if self._flusher:
                self._wake()
            self._size += len(PONG)
            self._chunks.append(PONG)

    def enqueue_deferred(self, command: bytes) -> None:
        """Append a command that may wait until something else is sent."""
        with self._lock:
            self._size += len(command)
            self._chunks.append(command)

    def enqueue_with_marker(self, command: bytes, notes: list[T], note: T) -> None:
        """Append a command that may wait, and a note of it to a list; both or, at a Ctrl-C, none."""
        with self._lock:
            self._size += len(command)
            lists: tuple[list[Any], list[Any]] = (notes, self._chunks)
            # No byte code runs in between, where a Ctrl-C could strike.
            deque(map(list.append, lists, (note, command)), maxlen=0)

    def send(self, command: bytes, messages: int, size: int, deadline: Deadline = FOREVER) -> None:
        """
        Append messages' commands and send all that is buffered on the calling thread.

        It is for calls that wait for an answer. When another thread is sending, or the socket is full,
        another thread takes the command along.

        Args:
            command: one whole command, or several.
            messages: how many they are, for the statistics.
            size: the bytes of headers and payloads, for the statistics.
            deadline: how long to wait when too much is buffered already.

        Raises:
            ConnectionClosedError: the connection is closed; the reason.
            OutboundBufferLimitError: there is no link, and the buffer is full.
            TimeoutError: the server takes no more data; the command stays buffered.

        """
        if self.closed is not None:
            raise fresh(self.closed)
        with self._lock:
            self._add(command, size, messages)
        self._flush()
        if self._size > _SEND_ABOVE:
            self._push_back(deadline)

    def send_buffered(self) -> None:
        """Send what is buffered, as far as the socket takes it; fine when the connection is closed."""
        self._flush()

    # --- emptying it ----------------------------------------------------------------------------

    def flusher(self, next_wake: Callable[[], float]) -> None:
        """
        Send what is buffered whenever there is something, until `close()`.

        Args:
            next_wake: called before each sleep; does what is due and returns the seconds until
                something is due again.

        """
        ticks = 0
        while True:
            schedule = Deadline(next_wake())
            try:
                self._flush(schedule)
            except TimeoutError:
                continue  # the socket is full, and the schedule has something due
            with self._lock:
                if self.closed is not None:
                    return
                if self._unsent() and not self._sending.locked():
                    continue
                self._flusher = _TICKING if ticks else _ASLEEP
            timeout = schedule.lock_timeout()
            woken = self._work.acquire(timeout=min(timeout, _TICK) if ticks else timeout)
            with self._lock:
                if not woken and not self._flusher:
                    self._work.acquire()  # woken just now: take back what that released
                self._flusher = _AWAKE
                ticks = _QUIET_TICKS if self._size else max(0, ticks - 1)

    def drain(self, deadline: Deadline) -> bool:
        """Send all that is buffered, waiting for the socket; say whether all of it went out."""
        while self._size or self._batch:
            if self._stream is None or self.closed is not None:
                return False
            try:
                if not self._send_if_free(deadline.lock_timeout(), deadline):
                    return False
            except TimeoutError:
                return False
        return True

    def flush_and_shutdown(self, stream: ByteStream, deadline: Deadline) -> None:
        """
        Send what is buffered to a stream, and shut it down.

        What comes later, and what does not go out in time, is kept for the next stream; a batch
        that has begun to go out is lost, as with a stream that breaks.
        """
        self.drain(deadline)
        taken: list[bool] = []
        try:
            # As in `_send_if_free`. Nobody is in the middle of a send while this is held.
            taken.extend(map(self._sending.acquire, (True,), (deadline.lock_timeout(),)))
            # In this order: a Ctrl-C in between must not leave a link to which nothing is sent.
            stream.shutdown()
            if self._stream is stream:
                self._stream = None
        finally:
            if True in taken:
                self._sending.release()

    def _flush(self, deadline: Deadline | None = None) -> None:
        """Send all that is buffered, unless somebody is at it; see `_send_all` for the deadline."""
        while self._unsent():
            if not self._send_if_free(0.0, deadline):
                return

    def _unsent(self) -> bool:
        """Say whether there is something to send, and somewhere to send it."""
        return bool(self._size or self._batch) and self._stream is not None

    def _push_back(self, deadline: Deadline = FOREVER) -> None:
        """Wait until the buffer is below its limit, and help with that."""
        while self._size > _SEND_ABOVE and self._stream is not None:
            self._send_if_free(deadline.sooner(_LOOK_AGAIN).lock_timeout(), deadline)
            if self._sender == threading.get_ident():
                # This thread holds _sending further down its stack, and would wait for itself.
                raise Error(
                    "a signal handler interrupted this thread while it was sending, and can not wait "
                    "for that; the message is buffered. Do not publish in signal handlers"
                )
            if self._size > _SEND_ABOVE and deadline.expired():
                raise TimeoutError("the server takes no more data")
        if self.closed is not None:
            raise fresh(self.closed)
        # Others may have left something while we were sending.
        self._flush()

    def _send_if_free(self, timeout: float, deadline: Deadline | None) -> bool:
        """
        Send if ``_sending`` can be had in ``timeout`` seconds; say whether all was sent.

        Raises:
            TimeoutError: see `_send_all`.

        """
        taken: list[bool] = []
        done = False
        try:
            # `extend` and `map` run without a byte code in between, so a Ctrl-C can not strike
            # between taking the lock and knowing that it was taken.
            taken.extend(map(self._sending.acquire, (True,), (timeout,)))
            if taken[0]:
                self._sender = threading.get_ident()
                done = self._send_all(deadline)
            return done
        finally:
            if True in taken:
                self._sender = 0  # no call, so no Ctrl-C in between
                self._sending.release()
                if not done:
                    self._wake_flusher()

    def _wake_flusher(self) -> None:
        """Have the flusher look what there is to send."""
        with self._lock:
            if self._flusher:
                self._wake()

    def _send_all(self, deadline: Deadline | None) -> bool:
        """
        Send the batch, and then the buffer until it is empty; ``_sending`` is held.

        Args:
            deadline: how long to wait for a full socket; ``None``: not at all.

        Returns:
            Whether all was sent; if not, the socket is full, or the link is down or given up.

        Raises:
            TimeoutError: the deadline came.

        """
        stream = self._stream
        if stream is None:
            return False
        while self._take(stream):
            try:
                stream.send(self._batch[sum(self._sent) :], self._sent)
            except BlockingIOError:
                if deadline is None:
                    return False
                if deadline.expired():
                    raise TimeoutError("the server takes no more data") from None
                if self._stream is not stream or self.closed is not None:
                    return False
                stream.wait_writable(deadline.sooner(_LOOK_AGAIN).lock_timeout())
            except OSError as error:
                self._link_broke(stream, error)
                self._let_notice(stream)
                return False
        return self._stream is stream

    def _let_notice(self, stream: ByteStream) -> None:
        """Wait for the reader to `detach()`: under gevent, a sender that tried on would not let it."""
        limit = Deadline(_LOOK_AGAIN)
        while self._stream is stream and self.closed is None and not limit.expired():
            threading.Event().wait(_TICK)

    def _take(self, stream: ByteStream) -> bool:
        """Make a batch of the buffer where the last one has gone out; say whether there is one."""
        if sum(self._sent) < len(self._batch):
            return True
        with self._lock:
            # Looked at under the lock: what was appended after `pause()` is for the next stream.
            if self._stream is not stream:
                return False
            # Two steps that a Ctrl-C can not part: there is no call between the assignments.
            batch = memoryview(b"".join(self._chunks))
            sent: list[int] = []
            self._batch, self._sent, self._chunks, self._size = batch, sent, [], 0
        return bool(batch)

    # --- links ----------------------------------------------------------------------------------

    def attach(self, stream: ByteStream, preamble: bytes) -> None:
        """Send to this stream from now on: first ``preamble``, then what was buffered."""
        with self._sending, self._lock:
            self._size += len(preamble)
            self._chunks.insert(0, preamble)
            self._stream = stream
            if self._flusher:
                self._wake()

    def pause(self) -> None:
        """Keep what comes from now on, for another stream: the link is down; `detach()` follows."""
        self._stream = None  # makes a sender give up

    def detach(self) -> None:
        """
        Stop sending; the link is down, and its stream was shut down.

        A batch that was on its way is dropped: nobody knows how much of it arrived, and a message
        must not be sent twice. Pings and pongs are dropped, for they were meant for the old server.
        """
        self.pause()
        with self._sending, self._lock:
            self._batch, self._sent = memoryview(b""), []
            self._chunks = [
                chunk for chunk in self._chunks if chunk is not PING and chunk is not PONG
            ]
            self._size = sum(map(len, self._chunks))

    def check_not_forked(self) -> None:
        """
        Refuse to go on in a forked child, where a thread that is not there may hold any lock.

        Raises:
            ForkedConnectionError: this is a child of the process that opened the connection.

        """
        if isinstance(self.closed, ForkedConnectionError):
            raise fresh(self.closed)

    def forked(self, reason: ConnectionClosedError) -> None:
        """Refuse everything; locks that a thread of the parent may have held are replaced."""
        self.closed = reason
        self._lock = threading.Lock()
        self._sending = threading.Lock()
        self._stream = None
        self._chunks, self._size, self._batch = [], 0, memoryview(b"")

    def close(self, reason: ConnectionClosedError) -> None:
        """Refuse everything from now on with ``reason``, and end the flusher."""
        with self._lock:
            if self.closed is None:
                self.closed = reason
            self._chunks, self._size = [], 0
            if self._flusher:
                self._wake()
