"""Direct reads: a caller that waits for a reply reads it from the socket itself."""

# Usually the reader thread reads. A request then costs two switches between threads: the reader wakes up
# with the reply, and wakes the caller. While one thread makes request after request, the reader pauses
# instead, and the caller takes its reply from the socket.
#
# Rules:
#
# 1. ``_reading`` is held while reading the socket: by the reader always, except while it pauses, and by a
#    caller for one ``recv``. In Python this does not wait; in C it waits ``_WAIT_S`` at most, the limit that
#    a pause sets at the socket, and no signal handler runs meanwhile. ``_turn`` is held by the one caller
#    that waits for bytes; a second caller waits for the reader. Only the reader blocks at ``_turn``, so
#    there ``locked()`` is exact for the reader: of a lock at which other threads block it would say nothing.
# 2. A caller takes its own reply, if it received exactly that. Everything else stays in ``_received``, and
#    the reader continues with it: other messages, pings, errors, the end of the stream. So recovery,
#    keep-alive and all receivers involve only the reader.
# 3. The reader pauses only while no caller waits for a reply. A caller that waits in any other way than
#    `read()` calls `end()`. Nothing depends on that: the reader continues by itself ``_TICK_S`` after the
#    last direct read. After useless pauses, it pauses less often. With a receiver that is not
#    `MessageReceiver.awaited`, such as a subscription, its messages would wait that long, too: then the
#    reader pauses after ``_MIN_REPLIES`` reads that were replies, and for ``_SHARED_TICK_S``.
# 4. The reader continues after the caller that has the turn, which would otherwise wait for bytes that
#    are gone. It waits ``_TURN_S`` at most: a signal handler may run in the caller's thread.
# 5. A KeyboardInterrupt releases both locks, and no received bytes of others are lost.

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from operator import attrgetter, methodcaller
from typing import Final

from ..locks import new_lock
from ..net.clock import Deadline
from ..net.tcp import TCPStream
from ..protocol.parser import Messages, Operation, Parser, RawMessage, only_message
from ..speedups import receive_reply
from .mailbox import SubscriptionState

#: Seconds after the last direct read at which the reader continues: without and with other receivers.
_TICK_S: Final = 0.005
_SHARED_TICK_S: Final = 0.0005
#: Maximum time in seconds that a caller waits for the socket, before it waits for the reader.
_WAIT_S: Final = 0.02
#: Maximum time in seconds that the reader waits for the caller that has the turn.
_TURN_S: Final = 0.05
#: Number of direct reads that make a pause useful: without and with other receivers.
_USEFUL_READS: Final = 4
_USEFUL_SHARED_READS: Final = 16
#: Number of reads in a row that have to be replies before a pause with other receivers, and number of reads that are
#: skipped after one that was not a reply.
_MIN_REPLIES: Final = 8
_SKIPPED_BESIDE_OTHERS: Final = 15
#: Maximum number of reads between two pauses, after useless ones.
_MAX_SKIPPED: Final = 63
#: Number of subscriptions above which the reader does not pause, because it checks each of them: after
#: every read, and after reads that were replies.
_MAX_SUBSCRIPTIONS: Final = 8
_MAX_SHARED_SUBSCRIPTIONS: Final = 4096

_RECEIVER: Final = attrgetter("receiver")
_AWAITED: Final = attrgetter("receiver.awaited")
_CALLER_WAITS: Final = methodcaller("caller_waits")

# The arguments of a `Lock.acquire` that does not wait.
_NO_WAIT: Final = (False,)


class DirectReads:
    """Passes the reading of a connection's socket between the reader thread and callers."""

    # The reader thread calls `pause()`; any thread may call `read()` and `end()`.

    def __init__(
        self,
        subscriptions: dict[int, SubscriptionState],
        pong_awaited: Callable[[], bool],
    ) -> None:
        self._subscriptions = subscriptions
        self._pong_awaited = pong_awaited
        #: Whether the reader pauses. Then a caller that will wait calls `read()` or `end()`.
        self.paused: bool = False
        #: Number of messages read by callers.
        self.count: int = 0
        self._reading = threading.Lock()
        self._reading.acquire()
        self._turn = threading.Lock()
        # Guards the change of ``paused``. The reader sleeps on the gate; released means: continue.
        self._lock = new_lock()
        self._gate = threading.Lock()
        self._gate.acquire()
        # What a caller has received and not taken: one piece, or an error.
        self._received: list[bytes] = []
        # Whether the socket has the limit for waits, without which the extension might wait for ever.
        self._is_limited = False
        self._failure: OSError | None = None
        self._stream: TCPStream | None = None
        self._parser: Parser | None = None
        # Used by the reader only: the number of reads before the next pause, and after a useless one, and
        # the number of reads in a row that were replies.
        self._skip = 0
        self._penalty = 0
        self._replies = 0

    # --- the reader -----------------------------------------------------------------------------

    def pause(
        self, stream: TCPStream, parser: Parser, operations: Sequence[Operation]
    ) -> bytes | None:
        """
        Pause while callers read their replies themselves; called by the reader after each read.

        Returns what a caller has received instead of its reply, ``b""`` at the end of the stream; ``None``:
        nothing. ``operations`` is what the reader has read.

        Raises:
            OSError: the stream failed while a caller read it.

        """
        if self._skip:
            self._skip -= 1
            return None
        is_shared = not self._all_awaited()
        if is_shared and not self._follows_replies(operations):
            return None
        before = self.count
        if stream.reads_directly and parser.idle and not self._turn.locked():
            self._stream, self._parser = stream, parser
            self.paused = True
            # Checked after ``paused`` is set: a caller registers its request before it looks at that.
            self._leave_to_callers(not self._caller_waits(), is_shared=is_shared)
        if self.count - before >= (_USEFUL_SHARED_READS if is_shared else _USEFUL_READS):
            self._penalty = 0
        else:
            self._penalty = self._skip = min(2 * self._penalty + 1, _MAX_SKIPPED)
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure
        try:
            return self._received.pop()
        except IndexError:  # also if a caller took it that has kept its turn for too long
            return None

    def _follows_replies(self, operations: Sequence[Operation]) -> bool:
        """Return whether the reader may pause beside other receivers: it has read replies only."""
        if self._is_reply(operations) and len(self._subscriptions) <= _MAX_SHARED_SUBSCRIPTIONS:
            self._replies += 1
            return self._replies >= _MIN_REPLIES
        self._replies, self._skip = 0, _SKIPPED_BESIDE_OTHERS
        return False

    def _is_reply(self, operations: Sequence[Operation]) -> bool:
        if len(operations) != 1 or not isinstance(operations[0], Messages):
            return False
        subscription = self._subscriptions.get(operations[0].sid)
        return subscription is not None and subscription.receiver.awaited

    def _leave_to_callers(self, allowed: bool, *, is_shared: bool) -> None:
        """Sleep if that is allowed, and end the pause."""
        woken = False
        if allowed and self._stream is not None:
            self._is_limited = receive_reply is not None and self._stream.limit_waits(_WAIT_S)
            self._reading.release()
        try:
            woken = allowed and self._sleep(is_shared=is_shared)
        finally:
            self._end_pause(woken=woken)
            # From here on, a caller that gets the turn finds that there is no pause.
            if self._turn.acquire(timeout=_TURN_S):
                self._turn.release()
            if allowed and self._stream is not None:
                self._reading.acquire()
                if self._is_limited:
                    self._stream.limit_waits(0)

    def _sleep(self, *, is_shared: bool) -> bool:
        """Sleep until `end()` is called, or no caller reads; return whether `end()` was called."""
        tick = _SHARED_TICK_S if is_shared else _TICK_S
        idle = 0.0
        while is_shared or self._all_awaited():
            count = self.count
            if self._gate.acquire(timeout=tick):
                return True
            idle = idle + tick if self.count == count else 0.0
            if idle and (idle > _TURN_S or not self._turn.locked()):
                break
        return False

    def _end_pause(self, *, woken: bool) -> None:
        with self._lock:
            if not self.paused and not woken:
                self._gate.acquire()  # `end()` has released it
            self.paused = False

    def _all_awaited(self) -> bool:
        subscriptions = self._subscriptions
        # A copy, because other threads change the table. Only `dict.copy()` is one step without the GIL.
        return len(subscriptions) <= _MAX_SUBSCRIPTIONS and all(
            map(_AWAITED, subscriptions.copy().values())
        )

    def _caller_waits(self) -> bool:
        """Return whether a caller waits for a reply or a pong."""
        receivers = map(_RECEIVER, self._subscriptions.copy().values())
        replies = (receiver for receiver in receivers if receiver.awaited)
        return self._pong_awaited() or any(map(_CALLER_WAITS, replies))

    # --- callers --------------------------------------------------------------------------------

    def end(self) -> None:
        """Make the reader continue; for a caller that waits for anything but its own reply."""
        if not self.paused:
            return
        with self._lock:
            if self.paused:
                self.paused = False
                self._gate.release()

    def read(
        self,
        subscription: SubscriptionState,
        messages: list[RawMessage] | deque[RawMessage],
        delivered: Callable[[], object],
        deadline: Deadline,
        subject: bytes | None = None,
    ) -> bool:
        """Read the next message of a reply inbox, while the reader pauses."""
        # Returns whether there is one; if not, the reader continues and will deliver it.
        turn = self._turn
        # As with `call_and_record`, but without its call: this runs for each request.
        has_turn: list[bool] = []
        taken = False
        try:
            has_turn.extend(map(turn.acquire, _NO_WAIT))
            if has_turn[0] and self.paused:
                # Until this thread releases the turn, the reader cannot deliver the reply meanwhile, nor
                # pause on another stream.
                stream, parser = self._stream, self._parser
                if delivered() or stream is None or parser is None:
                    return False
                taken = self._take_reply(stream, subscription.sid, subject, messages, deadline)
                if taken:
                    reply = messages[-1]
                    # Counted before the turn is released, because the next thread counts, too.
                    self.count += 1
                    subscription.delivered += 1
                    parser.message_bytes += len(reply[2]) + len(reply[3])
        except OSError as error:
            self._failure = error
        except (IndexError, ValueError):
            return False  # the reader did not wait any longer for this thread, and took it
        finally:
            if True in has_turn:
                turn.release()
        if not taken:
            self.end()
        return taken

    def _take_reply(
        self,
        stream: TCPStream,
        sid: int,
        subject: bytes | None,
        messages: list[RawMessage] | deque[RawMessage],
        deadline: Deadline,
    ) -> bool:
        """Wait for bytes, and append the message that they are; return whether they are one."""
        received = self._received
        if not received:
            left = deadline.left()
            if self._is_limited and receive_reply and (left is None or left > _WAIT_S):
                lock, fd = self._reading, stream.direct_fd
                return receive_reply(
                    lock.acquire, lock.release, fd, subject, sid, messages, received
                )
            if stream.wait_readable(_WAIT_S if left is None else min(left, _WAIT_S)):
                self._receive(stream, received)
        if received:
            data = received[0]
            reply = only_message(data, subject or _subject_of(data), sid)
            if reply is not None:
                received.remove(data)
                messages.append(reply)
                return True
        return False

    def _receive(self, stream: TCPStream, received: list[bytes]) -> None:
        """Receive the bytes that have arrived."""
        reading = self._reading
        may_read: list[bool] = []
        try:
            may_read.extend(map(reading.acquire, _NO_WAIT))
            if may_read[0]:
                stream.receive_now(received)
        except BlockingIOError:
            pass
        finally:
            if True in may_read:
                reading.release()


def _subject_of(data: bytes) -> bytes:
    """Return the first argument of an operation."""
    return data[: data.find(b"\r\n")].partition(b" ")[2].partition(b" ")[0]
