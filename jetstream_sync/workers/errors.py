"""The errors of workers: those that a handler raises, those that it gets, and those that stay inside."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any, TypeVar

from .. import errors
from ..durations import counted
from ..exact import exact
from .checks import check_option, is_number
from .retries import MAX_DELAY_S, MIN_DELAY_S

E = TypeVar("E", bound=BaseException)

# --- raised by handlers, to decide what follows -------------------------------------------------


class Reject(Exception):  # noqa: N818 - an instruction to the runtime, named like one
    """
    Give the message up: it becomes a dead letter and is not retried.

    Args:
        reason: recorded with the dead letter.

    """

    def __init__(self, *reason: object) -> None:
        super().__init__(*map(exact, reason))


class Retry(Exception):  # noqa: N818 - an instruction to the runtime, named like one
    """
    Deliver the message again later; logged without a traceback.

    It counts as an attempt: the last attempt becomes a dead letter.

    Args:
        reason: recorded in the log.
        delay: in seconds, at least 0.1 and at most 100 years; ``None``: the delay of the handler's `Backoff`.

    """

    def __init__(self, reason: str = "", delay: float | timedelta | None = None) -> None:
        super().__init__(exact(reason))
        self.delay: float | None = None
        if delay is not None:
            seconds = delay.total_seconds() if isinstance(delay, timedelta) else delay
            ok = is_number(seconds) and seconds >= 0
            check_option("delay", delay, ok, "must be a number of seconds, 0 or above")
            # Another server may have sent it, as in a header Retry-After: it must not stop the worker.
            self.delay = min(max(MIN_DELAY_S, seconds), MAX_DELAY_S)


class BatchError(Exception):
    """
    Some messages of a batch have failed; the others are acknowledged.

    Args:
        errors: the error of each failed message, by its index in the batch. They have the same meaning
            as if a handler for one message raised them: also `Reject` and `Retry`.

    Raises:
        InvalidOptionError: they are not exceptions by index.

    """

    def __init__(self, errors: Mapping[int, BaseException]) -> None:
        self.errors: dict[int, BaseException] = dict(errors)
        for index, error in self.errors.items():
            ok = isinstance(index, int) and isinstance(error, BaseException)
            check_option("errors", errors, ok, "must be exceptions by index")
        super().__init__(f"{counted(len(self.errors), 'message')} of a batch failed")

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.errors,)


# --- raised in handlers, or by an attempt to run one ---------------------------------------------


class LeaseLostError(Exception):
    """The lease of the message is over: the server may have delivered it to another worker."""


class SoftTimeoutError(Exception):
    """
    The handler has run for its ``soft_timeout``; raised in the thread of the handler.

    A handler may catch it to clean up; otherwise the attempt has failed.
    """


class WorkerCrashedError(Exception):
    """The process of a handler has ended while it handled the message."""


class HandlerTimeoutError(Exception):
    """The process of a handler was killed because the handler exceeded its timeout."""


class DecodeError(Exception):
    """
    The payload cannot be decoded; another attempt in this process cannot succeed.

    If a function of the program has refused it, processes of another version may take it: the message is returned
    for five minutes, and becomes a dead letter afterwards.
    """


def may_fit_elsewhere(error: BaseException) -> bool:
    """Return whether a process of another version of the program may take the message, see `misfit`."""
    return getattr(error, "_may_fit_elsewhere", False) is True


def misfit(error: E) -> E:
    """Return an error for a message that a process of another version of the program may take."""
    # An attribute, because the error of a handler in a process is pickled with it.
    error._may_fit_elsewhere = True  # type: ignore[attr-defined]  # noqa: SLF001 - for `may_fit_elsewhere`
    return error


def state_unknown(text: str, error: errors.Error) -> Exception:
    """Return the error of a run after an error of reading or storing its state; another process may know the place."""
    text = f"{text}: {error}"
    return misfit(Reject(text)) if may_fit_elsewhere(error) else StateUnknownError(text)


# --- tasks --------------------------------------------------------------------------------------


class TaskArgumentsError(errors.InvalidArgumentError, TypeError):
    """The arguments of a task do not fit its signature, or are not JSON; nothing was sent."""


class TaskError(errors.Error):
    """
    A call of a task has failed, was cancelled, or has expired.

    Attributes:
        status: ``"FAILED"``, ``"CANCELLED"`` or ``"EXPIRED"``.
        traceback: the traceback of its last attempt, with the frames of the user; empty: there was none.

    """

    def __init__(self, text: str, status: str, traceback: str = "") -> None:
        super().__init__(text)
        self.status = status
        self.traceback = traceback
        if traceback:
            self.__cause__: BaseException | None = RemoteTraceback(traceback)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.args[0], self.status, self.traceback)


class StateUnknownError(Exception):
    """The state of a call cannot be read or stored now; the message is delivered again."""


class MembersFailedError(Reject):
    """
    Calls of a group, or of `Context.gather`, have not succeeded.

    Attributes:
        outcomes: the outcome of each call, in order: ``id``, ``status``, ``value`` and ``error``.

    """

    def __init__(self, outcomes: Sequence[Mapping[str, Any]]) -> None:
        failed = [item for item in outcomes if item["status"] != "SUCCESSFUL"]
        shown = ", ".join(f"{item['id']} is {item['status'].lower()}" for item in failed[:10])
        more = f", and {len(failed) - 10} more" if len(failed) > 10 else ""
        super().__init__(
            f"{len(failed)} of {counted(len(outcomes), 'call')} did not succeed: {shown}{more}"
        )
        self.outcomes = outcomes

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.outcomes,)


class StepsChangedError(Exception):
    """
    The steps that earlier runs of the call have recorded do not fit this run: another version has recorded them.

    The call is given back to other processes for the ``unknown_task_grace`` of its queue; after that, it is an error of
    the function.
    """


class ReturnValueError(Reject):
    """The return value of a task cannot be stored; the call has failed, and is not retried."""


# --- inside of the runtime ----------------------------------------------------------------------


class NoCallError(errors.InvalidResponseError):
    """A message is not a call: its id cannot be a key, or the bucket has data of another program for it."""


class CallEndedError(Exception):
    """A call has ended; the argument is its record, ``None`` if it is unknown."""


class CallBusyError(Exception):
    """A message of a call does not begin a run: another one does, or has done so."""

    def __init__(self, *, is_obsolete: bool) -> None:
        super().__init__(is_obsolete)
        #: Whether a run that began after the message was stored has seen all that it could tell.
        self.is_obsolete = is_obsolete


class DeadLetterTooLargeError(Exception):
    """A message is too large for a dead letter, and its stream does not keep it."""


class ProcessStartError(Exception):
    """A handler process cannot start."""

    #: Whether a signal has ended it; the handler did not cause this.
    by_signal: bool = False


class RemoteTraceback(Exception):  # noqa: N818 - shown as the cause of an error, with its text
    """The traceback of an error in another process."""

    def __str__(self) -> str:
        return f"\n{self.args[0]}"
