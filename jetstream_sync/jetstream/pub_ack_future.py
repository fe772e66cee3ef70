"""The future of a publish acknowledgement."""

from __future__ import annotations

import contextlib
import os
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError
from typing import Any, Final, NoReturn

from .. import speedups
from ..api.publish import DEFAULT_RETRIES, PubAck, parse_pub_ack
from ..client.threads import Waiters, in_each_child, is_gevent, spawn
from ..errors import Error, ForkedConnectionError, TimeoutError
from ..net.clock import Deadline
from ..protocol.parser import Delivery

#: Seconds that a child process waits for a lock of the standard library that a thread of its parent
#: may have held.
_HELD_LOCK_S: Final = 0.1

# Held while the standard part of a future is created, and while a future is settled. Reentrant, because
# signal handlers may use futures.
_lock = threading.RLock()
# The pending futures with a standard part; guarded by _lock.
_watched: weakref.WeakSet[PubAckFuture] = weakref.WeakSet()


class PubAckFuture(speedups.FutureFields, Future[PubAck]):
    """
    A `concurrent.futures.Future` that costs little until a thread waits for it.

    Most futures of a fast publisher are read after they are done, or never. A future therefore uses its
    own fields, and decodes the acknowledgement on demand. The state of the base class, which
    `concurrent.futures.wait`, `concurrent.futures.as_completed`, callbacks and waiting threads need, is
    created on first use: only then its ``__init__`` is called.

    In a forked child the future is settled with `ForkedConnectionError`, unless it was settled before.
    Its callbacks are not called there: the parent calls them.
    """

    # Assumptions about the base class in Python 3.10 to 3.14: it has no attributes with the names of these
    # fields; `Future.__init__` sets all its attributes on the instance, so that they are missing before
    # (see __getattr__); `wait`, `as_completed` and `asyncio.wrap_future` read only these. Python 3.14 adds
    # a method that reads the result from them, so the result is stored there as well.
    #
    # _outcome: None; then the server's reply, until it is decoded; then the acknowledgement or the error.
    # _has_standard: whether the standard part exists.

    # Calls of this class wait with _wakeups and add to _calls under _lock, since an interrupt could leave
    # the standard part locked; see ``client/threads.py``. Both are created with it.
    _wakeups: Waiters
    _calls: list[Callable[[Future[PubAck]], object]]

    message: tuple[bytes, int] | None
    #: Number of retries while there are no responders, and the delay before each, in seconds.
    retries: int = DEFAULT_RETRIES.attempts
    retry_wait: float = DEFAULT_RETRIES.wait_s

    def __getattr__(self, name: str) -> Any:
        # Called for a missing attribute: it belongs to the standard part, or it does not exist.
        if not name.startswith("__"):
            if not self._has_standard:
                self._create_standard()
            # Another thread may have created the standard part after the failed lookup.
            with contextlib.suppress(KeyError):
                return self.__dict__[name]
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def _create_standard(self) -> None:
        """Create the standard part, in the state of the future."""
        with _lock:
            if self._has_standard:
                return
            Future.__init__(self)
            self._wakeups = Waiters()
            self._calls = []
            self._has_standard = True
            if not self._settled():
                _watched.add(self)
                # A callback, or a thread that waits, needs the ack from the reader.
                self._core.end_direct_reads()
                return
        self._settle_standard()

    def _settle_standard(self) -> None:
        """Settle the standard part of a settled future; a second call does nothing."""
        outcome = self._decoded()
        with contextlib.suppress(InvalidStateError):
            if isinstance(outcome, PubAck):
                super().set_result(outcome)
            else:
                super().set_exception(outcome)

    def _decoded(self) -> PubAck | BaseException:
        """Return the outcome of a settled future. Two threads may decode it at once, to equal values."""
        outcome: Any = self._outcome
        if type(outcome) is bytes:
            try:
                outcome = parse_pub_ack(outcome)
            except Error as error:
                outcome = error
            self._outcome = outcome
        return outcome  # type: ignore[no-any-return]

    @classmethod
    def settle_run(
        cls, pending: dict[bytes, PubAckFuture], deliveries: list[Delivery], token_at: int
    ) -> list[Delivery]:
        """Settle the futures without a waiting thread or callback; return the other acks."""
        # It runs no user code, so the reader may call it. The settled futures are removed from
        # pending.
        if speedups.settle_futures is not None:
            left = speedups.settle_futures(cls, pending, deliveries, token_at)
            if left is not None:
                return left
        others: list[Delivery] = []
        with _lock:
            for delivery in deliveries:
                subject, _, header, payload = delivery
                token = subject[token_at:]
                future = pending.get(token)
                if future is None:
                    continue  # a late ack
                if future._has_standard or (header and not payload):  # noqa: SLF001 - of this class
                    others.append(delivery)
                elif pending.pop(token, None) is not None:
                    future._outcome = payload  # noqa: SLF001
                    future.message = None  # no longer needed
        return others

    def acknowledged(self, answer: bytes) -> None:
        """Settle the future with the server's reply."""
        self._settle(answer)

    def failed(self, error: BaseException) -> None:
        """Settle the future with an error."""
        self._settle(error)

    def _settle(self, outcome: bytes | BaseException) -> None:
        with _lock:
            if self._outcome is not None:
                raise InvalidStateError("the future is settled")
            self._outcome = outcome
        self.message = None  # no longer needed
        if self._has_standard:
            _watched.discard(self)
            self._wakeups.wake_all()
            self._settle_standard()
            for call in self._calls:
                super().add_done_callback(call)  # calls it now, and logs what it raises

    def forked(self, error: ForkedConnectionError) -> None:
        """Settle it in a forked child with this error, unless it was settled just before."""
        # No lock is taken. `_settle_in_child` settles the standard part, if there is one.
        self.message = None
        if self._outcome is None:
            self._outcome = error

    def settle_forked(self) -> None:
        """Settle the standard part in a forked child; a thread of the parent may have held its lock."""
        self._settle_standard()

    def renew_forked(self) -> None:
        """Create the standard part again in a forked child, with new locks."""
        Future.__init__(self)
        self._settle_standard()

    def _settled(self) -> bool:
        """Return whether the future is settled; in a forked child, settle a pending one first."""
        if self._outcome is not None:
            return True
        closed = self._core.closed_reason
        if not isinstance(closed, ForkedConnectionError):
            return False
        self.forked(closed)
        return True

    def __reduce__(self) -> NoReturn:
        raise TypeError("a future cannot be pickled; wait for its result, and pass that")

    def __repr__(self) -> str:
        state = "finished" if self._settled() else "running"
        return f"<{type(self).__name__} {self.subject!r} state={state}>"

    def done(self) -> bool:
        """Return whether the future is settled."""
        return self._settled()

    def running(self) -> bool:
        """Return whether it is not settled yet: a sent message cannot be cancelled."""
        return not self._settled()

    def cancel(self) -> bool:
        """Return false: a sent message cannot be cancelled."""
        return False

    def cancelled(self) -> bool:
        """Return false: a sent message cannot be cancelled."""
        return False

    def result(self, timeout: float | None = None) -> PubAck:
        """Wait for the acknowledgement and return it."""
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
        """Wait for the result; return the error, or ``None`` if the message was acknowledged."""
        if not self._settled():
            # The message may still be buffered.
            self._core.send_buffered()
            self._create_standard()  # not by __getattr__: its creation may have been interrupted
            if not self._wakeups.wait_for(self._settled, Deadline(timeout)):
                raise TimeoutError("the future was not settled in time")
        outcome = self._decoded()
        return None if isinstance(outcome, PubAck) else outcome

    def add_done_callback(self, fn: Callable[[Future[PubAck]], object]) -> None:
        """Call a function with this future when it is settled, or at once if it already is."""
        process = os.getpid()

        def call(future: Future[PubAck]) -> None:
            if os.getpid() == process:
                fn(future)

        self._create_standard()
        with _lock:
            if not self._settled():
                self._calls.append(call)
                return
        super().add_done_callback(call)


def _settle_in_child() -> None:
    """Settle the futures of the parent in a forked child."""
    # A loop over `concurrent.futures.as_completed` that contains the fork continues. At the fork,
    # another thread of the parent may have held the lock of a standard part. So a separate thread
    # settles these parts; if it blocks, the remaining parts are created again.
    global _lock  # noqa: PLW0603 - one for all futures, or each would cost more
    _lock = threading.RLock()
    left = list(_watched)
    _watched.clear()
    if not left:
        return
    error = ForkedConnectionError("the message was published in the parent process")
    for future in left:
        future.forked(error)

    def settle() -> None:
        while left:
            left[-1].settle_forked()
            left.pop()

    if is_gevent():
        settle()  # greenlets do not switch while they hold such a lock
        return
    spawn("forked-futures", settle).join(_HELD_LOCK_S)
    for future in left[:]:
        future.renew_forked()


in_each_child(_settle_in_child)
