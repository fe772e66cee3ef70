"""The future of an acknowledgement."""

from __future__ import annotations

import threading
from concurrent.futures import Future, InvalidStateError
from concurrent.futures import TimeoutError as FutureTimeoutError
from typing import Any, Final

from ..api.publish import PubAck
from ..client.writer import Writer
from ..codec import loads
from ..errors import Error, TimeoutError

__all__ = ["PubAckFuture"]

_RUNNING: Final = "RUNNING"
_FINISHED: Final = "FINISHED"

# Held for a moment where a future gets its condition, or is settled without one.
_first_look = threading.Lock()


class PubAckFuture(Future[PubAck]):
    """
    A `concurrent.futures.Future` that costs little until somebody looks at it.

    Most futures of a fast publisher are looked at after they are done, or never. So the parts with
    which the standard class waits and calls back (a condition, two lists) are made by the first thread that
    needs them, and the acknowledgement is read where somebody asks for it.

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

    def __getattr__(self, name: str) -> Any:
        # Only for what is not there yet. The standard class takes the condition before it touches
        # the lists, so all three are made when the condition is asked for.
        if name != "_condition":
            raise AttributeError(name)
        with _first_look:
            if not self._looked_at:
                self._waiters: list[Any] = []
                self._done_callbacks: list[Any] = []
                self._condition = threading.Condition()
                self._looked_at = True
        return self._condition

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

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.subject!r} state={self._state.lower()}>"

    def done(self) -> bool:
        """Say whether it is settled."""
        return self._state == _FINISHED

    def running(self) -> bool:
        """Say whether it is not settled yet: what was sent can not be cancelled."""
        return self._state != _FINISHED

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
            APIError, NoStreamResponseError, TimeoutError, ConnectionClosedError: why the message
                was not acknowledged.

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
        if self._state != _FINISHED:
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
