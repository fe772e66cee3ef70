"""The future of an acknowledgement."""

from __future__ import annotations

import threading
from concurrent.futures import Future, InvalidStateError
from concurrent.futures import TimeoutError as FutureTimeoutError
from typing import Any, Final, NoReturn

from ..api.publish import PubAck
from ..client.threads import in_each_child
from ..client.writer import Writer
from ..codec import loads
from ..errors import Error, ForkedConnectionError, TimeoutError

__all__ = ["PubAckFuture"]

_RUNNING: Final = "RUNNING"
_FINISHED: Final = "FINISHED"

# Held for a moment where a future gets its condition, or is settled without one.
_first_look = threading.Lock()


def _renew_lock() -> None:
    global _first_look  # noqa: PLW0603 - one for all futures, or each would cost more
    _first_look = threading.Lock()


in_each_child(_renew_lock)


class PubAckFuture(Future[PubAck]):
    """
    A `concurrent.futures.Future` that costs little until somebody looks at it.

    Most futures of a fast publisher are looked at after they are done, or never. So the parts with
    which the standard class waits and calls back (a condition, two lists) are made by the first thread that
    needs them, and the acknowledgement is read where somebody asks for it.

    In a forked child it is settled with `ForkedConnectionError`, unless it was before, and its callbacks
    are not called: the parent calls them.

    Args:
        subject: where the message went, for errors.
        command: what was sent, to send it again.
        size: bytes of headers and payload.
        due: when to give up, by the monotonic clock; ``None``: never.
        writer: what the message goes out through.

    """

    # What a new future is; the standard __init__, which sets these for each, is not called.
    _state = _RUNNING
    _result: PubAck | None = None
    _exception: BaseException | None = None
    _answer: bytes | None = None
    _looked_at = False  # whether it has a condition and lists

    def __init__(
        self,
        subject: str,
        command: bytes,
        size: int,
        due: float | None,
        writer: Writer,
    ) -> None:
        self.subject = subject
        self.command = command
        self.size = size
        self.due = due
        self.retries = 2
        self._writer = writer

    @property
    def _condition(self) -> threading.Condition:  # type: ignore[override]  # nobody sets it
        # The standard class takes the condition before it touches the lists, so all three are made
        # when the condition is asked for.
        if self._writer.closed is not None:
            self._settled()
        if not self._looked_at:
            with _first_look:
                if not self._looked_at:
                    self._waiters: list[Any] = []
                    self._done_callbacks: list[Any] = []
                    self._made_condition = threading.Condition()
                    self._looked_at = True
        return self._made_condition

    def acknowledged(self, answer: bytes) -> None:
        """Settle it with the server's answer, which says whether the message is stored."""
        if self._state == _FINISHED:
            raise InvalidStateError("the future is settled")
        self._answer = answer
        self.command = b""  # the payload is not needed any more
        with _first_look:
            if not self._looked_at:
                self._state = _FINISHED
                return
        # Somebody waits or wants to be called.
        self.set_result(None)  # type: ignore[arg-type]  # result() reads the answer

    def failed(self, error: BaseException) -> None:
        """Settle it with an error."""
        self.command = b""
        self.set_exception(error)

    def forked(self, error: ForkedConnectionError) -> None:
        """
        Settle it in a forked child with this error, or with its answer where that has just come.

        Nothing is waited for: threads of the parent may have held any of its locks. Its callbacks
        are not called, but who has been iterating over `concurrent.futures.as_completed` goes on.
        """
        self.command = b""
        if self._answer is None:
            self._exception = error
        self._state = _FINISHED
        if not self._looked_at:
            return
        self._done_callbacks = []
        self._made_condition = threading.Condition()
        for waiter in self._waiters:
            waiter.lock = threading.Lock()
            waiter.event = threading.Event()
            waiter.add_exception(self)

    def _settled(self) -> bool:
        """Say whether it is; in a child, one that the parent was about to settle is settled now."""
        if self._state == _FINISHED:
            return True
        closed = self._writer.closed
        if not isinstance(closed, ForkedConnectionError):
            return False
        self.forked(closed)
        return True

    def __reduce__(self) -> NoReturn:
        raise TypeError("a future can not be pickled; wait for its result, and pass that")

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.subject!r} state={self._state.lower()}>"

    def done(self) -> bool:
        """Say whether it is settled."""
        return self._settled()

    def running(self) -> bool:
        """Say whether it is not settled yet: what was sent can not be cancelled."""
        return not self._settled()

    def cancel(self) -> bool:
        """Return false: what was sent can not be taken back."""
        return False

    def cancelled(self) -> bool:
        """Return false: what was sent can not be taken back."""
        return False

    def result(self, timeout: float | None = None) -> PubAck:
        """
        Return the acknowledgement, waiting for it.

        Args:
            timeout: in seconds; ``None``: wait until it is settled, which always happens.

        Raises:
            TimeoutError: the built-in one; it is not settled in time.
            APIError, NoStreamResponseError, PermissionsError, TimeoutError, ConnectionClosedError:
                why the message was not acknowledged.

        """
        error = self.exception(timeout)
        if error is not None:
            raise error
        return super().result(0)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """
        Return why the message was not acknowledged, ``None`` when it was; waits for it.

        Args:
            timeout: in seconds; ``None``: wait until it is settled, which always happens.

        Raises:
            TimeoutError: the built-in one; it is not settled in time.

        """
        if not self._settled():
            # The message may still be buffered.
            self._writer.send_buffered()
            try:
                super().exception(timeout)
            except FutureTimeoutError:
                # The built-in one from Python 3.11 on, and one of its own before.
                raise TimeoutError("it is not settled in time") from None
        answer = self._answer
        if answer is not None:
            # Two threads may both read it; they come to the same.
            try:
                self._result = PubAck.from_json(loads(answer))
            except Error as error:
                self._exception = error
            self._answer = None
        return self._exception
