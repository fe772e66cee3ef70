"""What a handler, and its log records, can learn about its message, and do besides returning."""

from __future__ import annotations

import itertools
import logging
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol, TypeVar

from .checks import check_option, check_seconds, is_number
from .deliveries import DeliveryState, LeasedMessage, lease_clock, log_context
from .errors import LeaseLostError
from .logs import LOGGER_NAME, WorkerLogger
from .retries import MAX_DELAY_S

if TYPE_CHECKING:
    from .. import Headers, JetStreamMsg, KeyValue, PubAck, Stream

R = TypeVar("R")

#: Longest text of a progress.
_MAX_TEXT: Final = 200


class CallProgress(NamedTuple):
    """How far a run is, see `Context.progress`."""

    done: float
    """What is done."""
    total: float | None = None
    """Of what number; ``None``: it is not known."""
    text: str = ""
    """What is counted."""

    def __str__(self) -> str:
        """Return it as text, such as ``3 of 10 pages``."""
        total = "" if self.total is None else f" of {self.total:g}"
        return f"{self.done:g}{total} {self.text}".rstrip()


@dataclass(frozen=True)
class ContextActions:
    """What contexts do beside holding their message; the same for all messages of a handler."""

    work: Any
    """The `Work`: the handler or the task."""
    message_id: Callable[[LeasedMessage], str]
    publish: Callable[..., Any]
    """As `JetStream.publish`."""
    is_stopping: Callable[[], bool]
    ack: Callable[[LeasedMessage], bool]
    progress: Callable[[LeasedMessage, CallProgress], object]
    steps: Callable[[Context], Any]
    """Returns the `Steps` of a call."""


class Context:
    """
    The context of one run of a handler.

    A handler gets it as its second argument, or as the only one if that is annotated with this class.
    """

    __slots__ = (
        "_actions",
        "_delivery",
        "_published",
        "_steps",
        "acked",
        "batch",
        "call",
        "maybe_done",
        "origin",
        "value",
        "value_limit",
        "verdict",
    )

    batch: Sequence[JetStreamMsg]
    """For middleware of `Worker.batch`: the messages of the batch. Empty: the message is handled by itself."""

    maybe_done: bool
    """With ``once``: whether an earlier run may have had its effect, because its worker died or lost the
    lease. The handler should find out, if it can, or be safe to repeat."""

    call: Any
    """The record of the call of a task, and its revision.

    :meta private:"""

    origin: str | None
    """The id of the first message of a call that has had several; ``None``: it has one.

    :meta private:"""

    value: bytes | None
    """The return value of a task with results, as JSON; ``None``: it has not returned.

    :meta private:"""

    value_limit: int
    """The largest `value`, in bytes.

    :meta private:"""

    verdict: Any
    """What follows for the message, decided before the failure of this run was recorded; ``None``: it was not.

    :meta private:"""

    def __init__(self, delivery: LeasedMessage, actions: ContextActions) -> None:
        self.value = self.call = self.verdict = self.origin = None
        self._steps: Any = None
        self.value_limit = sys.maxsize
        self._delivery = delivery
        self._actions = actions
        self.acked: bool = delivery.state is DeliveryState.SETTLED
        self._published = itertools.count(1)
        self.maybe_done = False
        self.batch = ()

    @property
    def id(self) -> str:
        """
        ``stream/consumer/sequence/creation time of the stream``, after the domain if there is one.

        It is the same in each attempt, and unique. Use it as the idempotency key for calls to other
        systems. In a call with steps it is that of its first message.
        """
        return self.origin or self._actions.message_id(self._delivery)

    @property
    def message(self) -> JetStreamMsg:
        """The message. The runtime settles it; a handler may do so earlier with `ack`."""
        return self._delivery.msg

    @property
    def handler(self) -> str:
        """The name of the handler or of the task."""
        return self._delivery.handler

    @property
    def work(self) -> Any:
        """
        The handler or the task with its options.

        :meta private:
        """
        return self._actions.work

    @property
    def task(self) -> str:
        """The name of the task; empty in a handler."""
        return self._delivery.task

    @property
    def attempt(self) -> int:
        """
        The number of the attempt, from 1.

        It is the number of the delivery, so crashes and returned messages count, plus the retries in place, and
        the attempts before the message was parked. A call of a task without ``key`` that is returned without a
        run uses no attempt, if it can wait in the stream.
        """
        return self._delivery.attempt

    @property
    def deadline(self) -> datetime:
        """When the handler's timeout is over, in UTC."""
        left = self._delivery.give_up_at - lease_clock()
        return datetime.now(timezone.utc) + timedelta(seconds=left)

    @property
    def lease_lost(self) -> bool:
        """Whether the lease is over: another worker may be handling the message."""
        return not self.acked and self._delivery.is_lost()

    @property
    def stopping(self) -> bool:
        """Whether the worker is stopping: a long handler should return or raise `Retry`."""
        return self._actions.is_stopping()

    @property
    def log(self) -> logging.LoggerAdapter[logging.Logger]:
        """A logger whose records have the message id and the attempt as attributes."""
        extra = {"message_id": self.id, "attempt": self.attempt, "handler": self._delivery.handler}
        return WorkerLogger(LOGGER_NAME, extra)

    def check(self) -> None:
        """
        Raise if the lease is over; call it before an effect that must not happen twice.

        Raises:
            LeaseLostError: the lease is over.

        """
        if self.lease_lost:
            raise LeaseLostError(f"the lease of {self._delivery!r} is lost")

    def ack(self) -> None:
        """
        Acknowledge the message now instead of after the handler; a second call does nothing.

        An error of the handler after that is only logged: the message is not delivered again.

        Raises:
            LeaseLostError: the lease is over, or the message was returned because the worker stops.

        """
        self.check()
        if not self.acked and not self._actions.ack(self._delivery):
            raise LeaseLostError(f"{self._delivery!r} was returned: the worker is stopping")
        self.acked = True

    def extend(self, seconds: float) -> None:
        """
        Let the handler run for this many seconds from now, instead of its ``timeout``; a ``soft_timeout`` stays.

        Once the timeout is over, this does nothing. The limit is 100 years.

        Raises:
            InvalidOptionError: ``seconds`` is not a number, or is below 0.

        """
        check_seconds("seconds", seconds)
        if not self._delivery.exceeds_timeout:
            self._delivery.give_up_at = lease_clock() + min(seconds, MAX_DELAY_S)

    def progress(self, done: float, total: float | None = None, text: str = "") -> None:
        """
        Report how far the run is: ``ctx.progress(3, 10, "pages")``.

        ``jsm worker running`` and ``jsm top`` show it. With ``results``, it is stored for `TaskResult.progress`, at
        most once a second; a failure to store it is ignored. The report of the last moment before the end may
        not be stored.

        Args:
            done: what is done.
            total: of what number; ``None``: it is not known.
            text: what is counted, at most 200 characters.

        Raises:
            InvalidOptionError: a value has the wrong type.

        """
        for option, value in (("done", done), ("total", total)):
            ok = (
                is_number(value) and math.isfinite(value)
                if value is not None
                else option == "total"
            )
            check_option(option, value, ok, "must be a finite number")
        check_option("text", text, isinstance(text, str), "must be a str")
        self._actions.progress(self._delivery, CallProgress(done, total, text[:_MAX_TEXT]))

    # --- steps ----------------------------------------------------------------------------------

    @property
    def steps(self) -> Any:
        """
        The `Steps` of this run of a call.

        :meta private:
        """
        if self._steps is None:
            self._steps = self._actions.steps(self)
        return self._steps

    def server_time(self) -> float:
        """
        Return the time by the clock of the server, in seconds since 1970; not before the message was stored.

        :meta private:
        """
        return max(self._delivery.server_ns(), self.message.metadata.timestamp_ns) / 1e9

    def check_suspended(self) -> None:
        """
        Raise the wait for which the run ends again, if the function has caught it.

        :meta private:
        """
        if self._steps is not None and self._steps.suspended is not None:
            raise self._steps.suspended

    def _declared_steps(self) -> Any:
        rule = "is needed: @worker.task(steps=True, results=...)"
        check_option("steps", False, self.work.state.has_steps, rule)
        return self.steps

    def step(
        self,
        function: Callable[..., R],
        /,
        *args: Any,
        name: str | None = None,
        **kwargs: Any,
    ) -> R:
        """
        Call a function once, and return its value, as JSON has it, or as an object of its return annotation.

        The value is recorded. A run that is repeated reads it, and does not call the function. If the worker
        is killed after the effect of the function and before the record, the function is called again; it can
        use `step_id` as an idempotency key. In Django, a task with ``atomic`` records the step with its effects
        in the database.

        Call it from the thread of the function, for tasks with ``steps=True``. Steps are recognized by their names:
        a function that was changed must keep the names and the order of the steps.

        Args:
            function: the function; a task is called itself.
            *args: its positional arguments.
            name: the name of the step; ``None``: that of the function. The second step with a name is ``name-2``.
            **kwargs: its keyword arguments.

        Raises:
            StepsChangedError: the step is not recorded, and others are which this run has not asked for.
            Reject: the value is not JSON, or too large.
            LeaseLostError: the lease is over.
            InvalidOptionError: the task has no steps, or the name has other characters.

        """
        found: R = self._declared_steps().step(function, args, kwargs, name)
        return found

    @property
    def step_id(self) -> str | None:
        """The id of the step that runs, the same in each attempt, and unique; ``None``: no step runs."""
        return None if self._steps is None else self._steps.id

    def sleep(self, seconds: float | timedelta) -> None:
        """
        Wait for some time without a thread, for tasks with ``steps=True``.

        The run ends here. The server sends the call again at that time, and its next run continues here, after
        it has read its steps. No attempt is used. The blocks ``finally`` of the function run at each end.

        Raises:
            InvalidOptionError: the task has no steps, or the number is below 0.

        """
        delay = seconds.total_seconds() if isinstance(seconds, timedelta) else seconds
        check_seconds("seconds", delay)
        self._declared_steps().sleep(min(delay, MAX_DELAY_S))

    def wait(self, name: str, timeout: float | timedelta | None = None) -> Any:
        """
        Wait for a signal without a thread, and return its data; see `TaskResult.signal`, and `sleep`.

        Args:
            name: the name of the signal, which has one value in a call.
            timeout: seconds; ``None``: without limit.

        Raises:
            TimeoutError: the signal did not come in time; it is refused from then on.
            InvalidOptionError: the task has no steps, the name has other characters, or the timeout is below 0.

        """
        seconds = timeout.total_seconds() if isinstance(timeout, timedelta) else timeout
        if seconds is not None:
            check_seconds("timeout", seconds)
            seconds = min(seconds, MAX_DELAY_S)
        return self._declared_steps().wait(name, seconds)

    def gather(self, calls: Sequence[Any], *, on_error: str = "stop") -> list[Any]:
        """
        Have workers run calls, wait for them without a thread, and return their values in their order; see `sleep`.

        Args:
            calls: what `Task.call` and `chain` return; as many in each run.
            on_error: what follows if some have failed, were cancelled or have expired: ``"stop"``:
                `MembersFailedError` is raised; ``"call"``: a list of dictionaries with ``id``, ``status``,
                ``value`` and ``error`` is returned in place of the values.

        Raises:
            MembersFailedError: some have not succeeded.
            StepsChangedError: an earlier run had another number of calls.
            InvalidOptionError: the task has no steps, or one is no call.

        """
        found: list[Any] = self._declared_steps().gather(list(calls), on_error)
        return found

    def publish(
        self,
        subject: str,
        payload: bytes = b"",
        headers: Headers | Mapping[str, str] | Mapping[str, list[str]] | None = None,
        **options: Any,
    ) -> PubAck:
        """
        Publish a message to a stream, and wait until it is stored.

        The message id is made from `id` and the number of the call. If the handler runs again within
        the ``duplicate_window`` of the stream, its messages are not stored again. In a traced handler,
        the message continues the trace.

        Args:
            subject: the subject, without wildcards.
            payload: the payload.
            headers: names and values.
            **options: as for `JetStream.publish`, except ``msg_id``.

        Raises:
            Error: as `JetStream.publish`.

        """
        msg_id = f"{self.id}/{next(self._published)}"
        ack: PubAck = self._actions.publish(
            subject, payload, headers=headers, msg_id=msg_id, **options
        )
        return ack


def is_context(annotation: Any) -> bool:
    """Return whether an annotation is `Context`; it may be a string."""
    if isinstance(annotation, str) or hasattr(annotation, "__origin__"):
        text = str(annotation)
    else:
        text = getattr(annotation, "__name__", "")
    # Also ``list[Context]``, for batches.
    return text.rstrip("]").rpartition("[")[2].rpartition(".")[2] == Context.__name__


class Publishing(Protocol):
    """What the processing of messages uses of a JetStream context; test clients record it."""

    def publish(self, subject: str, payload: bytes = b"", /, *args: Any, **options: Any) -> PubAck:
        """Publish a message, as `JetStream.publish`."""

    @property
    def schedule(self) -> Callable[..., PubAck]:
        """Stores a schedule, as `JetStream.schedule`."""

    def get_stream(self, name: str, /) -> Stream:
        """Return a stream, as `JetStream.get_stream`."""

    def key_value(self, bucket: str, /) -> KeyValue:
        """Return a bucket, as `JetStream.key_value`."""


class RunState:
    """
    Records the runs of the messages of a handler; this one records nothing.

    `Once` and `TaskState` do. Any thread may call the methods.
    """

    def has_ended(self, message_id: str, message: JetStreamMsg) -> bool:
        """Return whether a message that is delivered too often needs no run and no dead letter; may raise `Error`."""
        del message_id, message
        return False

    def begin(self, context: Context) -> bool:
        """Record that the handler is about to run; return false if it must not."""
        del context
        return True

    def done(self, context: Context) -> None:
        """Record that the handler and its middleware have succeeded."""

    def failed(self, context: Context, error: BaseException, *, is_last: bool) -> bool:
        """Record that they have raised; return whether the message is acknowledged all the same."""
        del context, error, is_last
        return False

    def cancel(self, message: JetStreamMsg) -> bool:
        """Have a message that runs not run again; return whether that is recorded."""
        del message
        return False

    def progress(self, message: JetStreamMsg, progress: CallProgress) -> None:
        """Record how far a run is."""

    def give_up(self, message: JetStreamMsg, reason: str) -> None:
        """Record that a message is about to be terminated, after its dead letter is stored."""

    #: Whether the function has steps.
    has_steps: bool = False
    #: The `CallStates` of its calls; ``None``: they have no results.
    results: Any = None
    #: Whether a call that has failed is acknowledged, and has no dead letter.
    acks_failures: bool = False

    def ask(self, question: str, *arguments: Any) -> Any:
        """Read or record a step of a call, as the method of `StepStore` with this name."""
        raise NotImplementedError

    def suspend(self, context: Context, wait: Any) -> None:
        """Record that a run has ended to wait, as a `Suspended` says."""
        raise NotImplementedError


#: Attributes that `LogContextFilter` adds.
_CONTEXT: Final = ("handler", "stream", "consumer", "seq", "attempt", "trace_id")


class LogContextFilter(logging.Filter):
    """
    Adds the message that is being handled to every log record of its handler.

    Records get the attributes ``handler``, ``stream``, ``consumer``, ``seq``, ``attempt`` and
    ``trace_id``; outside of a handler they are empty. Add the filter to log handlers, not to loggers:
    a filter of a logger is not applied to the records of its children.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        """Add the attributes; every record passes."""
        delivery = log_context.get()
        values: tuple[object, ...] = ("",) * len(_CONTEXT)
        if delivery is not None:
            where = delivery.metadata
            values = (
                delivery.handler,
                where.stream,
                where.consumer,
                where.stream_seq,
                delivery.attempt,
                delivery.trace_id or _trace_id(delivery),
            )
        for name, value in zip(_CONTEXT, values, strict=True):
            if not hasattr(record, name):
                setattr(record, name, value)
        return True


def _trace_id(delivery: LeasedMessage) -> str:
    """Return the trace id in the headers of a message, or an empty string."""
    headers = delivery.msg.headers
    parts = ("" if headers is None else headers.get("traceparent", "")).split("-")
    return parts[1] if len(parts) == 4 else ""
