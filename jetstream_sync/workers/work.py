"""Work: what runs for a message, with the options of its runs."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar, Final

from .. import Headers, errors
from .checks import check_bucket, check_option, exceptions, is_number
from .context import Context, RunState
from .errors import DecodeError, Reject, Retry
from .shared_limits import LimitUse
from .verdicts import Backoff

HandlerFunction = Callable[..., object]
#: Wraps each run of a handler: ``middleware(call, context)`` calls ``call()``.
Middleware = Callable[[Callable[[], object], Context], object]
#: The header of a message with the subject for a `Reply`.
REPLY_TO: Final = "Reply-To"


@dataclass(frozen=True)
class Reply:
    """
    A return value of a handler for the publisher of the message.

    It is published to the subject in the header ``Reply-To`` of the message, before the message is
    acknowledged; without the header it is ignored. A subject that begins with ``$`` gets no reply. An
    error of sending is logged, and the message is acknowledged.

    Args:
        payload: the payload.
        headers: names and values.

    """

    payload: bytes = b""
    headers: Headers | Mapping[str, str] | Mapping[str, list[str]] | None = None


@dataclass(frozen=True, kw_only=True)
class WorkOptions:
    """The options of runs, which handlers and tasks have."""

    retry: Backoff = Backoff()
    """Attempts and delays. With ``key`` or ``group`` the default is
    ``Backoff(first=0.5, maximum=10.0, attempts=8, in_place=True)``."""
    timeout: float = 600.0
    """Seconds after which the lease of a message is not renewed any more."""
    soft_timeout: float | None = None
    """Seconds after which `SoftTimeoutError` is raised in the handler, at its next statement: a call that
    waits outside of Python, such as `time.sleep`, ends first. Less than ``timeout``, and not for
    ``pool="processes"``, whose process is killed. ``None``: it is not raised."""
    reject_on: Sequence[type[BaseException]] = ()
    """Errors that make a dead letter at once."""
    retry_on: Sequence[type[BaseException]] | None = None
    """The errors to retry; all others make a dead letter at once; ``None``: all errors."""
    once: str | None = None
    """A key-value bucket that records which messages are handled, for effects outside a database. A
    message that is recorded as handled is acknowledged without a run; one whose worker died runs again,
    with `Context.maybe_done`. The bucket is created with a TTL of 30 days if it does not exist; its TTL
    must exceed the age of redelivered messages. It costs two writes for each message. ``None``: none."""

    def __post_init__(self) -> None:
        """Check the options."""
        ok = is_number(self.timeout) and self.timeout > 0
        check_option("timeout", self.timeout, ok, "must be a number of seconds above 0")
        soft = self.soft_timeout
        ok = soft is None or (is_number(soft) and 0 < soft < self.timeout)
        rule = "must be a number of seconds above 0 and below 'timeout'"
        check_option("soft_timeout", soft, ok, rule)
        if self.once is not None:
            check_bucket("once", self.once)
        for name in ("reject_on", "retry_on"):
            given = getattr(self, name)
            object.__setattr__(self, name, None if given is None else exceptions(name, given))


@dataclass(frozen=True, kw_only=True)
class Work(WorkOptions):
    """What runs for messages of a source: a handler, or one of the tasks of a queue."""

    function: HandlerFunction = field(repr=False)
    """The function."""
    stream: str
    """The name of the stream."""
    consumer: str
    """The durable name of the consumer."""
    name: str = ""
    """The name: that of a task, or of the function of a handler."""
    module: str = field(repr=False, default="")
    """The module that defines it."""
    state: RunState = field(repr=False, default_factory=RunState)
    """Records the runs."""
    shared_limit: LimitUse | None = field(repr=False, default=None)
    """The limit of all processes."""

    atomic: str | None = field(repr=False, default=None)
    """The database whose transactions it runs in, or each of its steps, in a Django project; ``None``: none."""

    #: Whether its messages are calls of a task.
    is_call: ClassVar[bool] = False

    @property
    def of_payload(self) -> Callable[[bytes], object] | None:
        """
        Return what runs for a payload; ``None``: the context is needed.

        :meta private:
        """
        return None

    def run(self, context: Context) -> object:
        """
        Run for a message; return and raise what the function does.

        :meta private:
        """
        raise NotImplementedError

    def rejects(self, error: BaseException) -> bool:
        """
        Return whether an error makes a dead letter at once.

        :meta private:
        """
        if isinstance(error, (Reject, DecodeError, *self.reject_on)):
            return True
        if self.retry_on is None or isinstance(error, (Retry, errors.UnfinishedError)):
            return isinstance(error, errors.UnfinishedError)
        return not isinstance(error, tuple(self.retry_on))


@dataclass(frozen=True, kw_only=True)
class TaskWork(Work):
    """What runs the calls of a task."""

    run_call: Callable[[bytes, Context], object] = field(repr=False)
    """Runs the call in a message."""
    run_payload: Callable[[bytes], object] | None = field(repr=False, default=None)
    """The same without its context; ``None``: the context is needed."""
    is_call: ClassVar[bool] = True

    @property
    def of_payload(self) -> Callable[[bytes], object] | None:
        """As `Work.of_payload`."""
        return self.run_payload

    def run(self, context: Context) -> object:
        """Run the call in a message."""
        return self.run_call(context.message.data, context)


# --- runs -------------------------------------------------------------------------------------

#: One item more in a process that was forked.
forks: Final = [0]
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=lambda: forks.append(0))


def end_fork(before: int, status: int = 0) -> None:
    """End a process if ``forks`` was shorter before: a handler has forked it, and it has no worker."""
    if len(forks) != before:
        os._exit(status)


def run_inside(
    middleware: Sequence[Middleware], run: Callable[..., object], *arguments: Any, context: Context
) -> object:
    """Run inside of middleware; a copy of the process that returns does not go on to the middleware."""

    def call() -> object:
        before = len(forks)
        try:
            returned = run(*arguments)
        except BaseException:
            end_fork(before, 1)
            raise
        end_fork(before)
        return returned

    for item in reversed(middleware):
        call = partial(item, call, context)
    return call()


#: Whether this process belongs to a handler; a list, because it changes.
in_handler_process: Final = [False]


def refuse_to_run() -> None:
    """Check that workers may run in this process."""
    rule = (
        "a process of a handler must not run the worker when it imports the module: call run() "
        "under if __name__ == '__main__'"
    )
    check_option("pool", "processes", not in_handler_process[0], rule)
