"""
Sources and work: what a worker receives, what runs for a message, and the options of both.

A `Source` has a consumer, threads and limits, and routes each message to a `Work`, which has a function. A `Handler`
is a function of the user with a consumer of its own, and both of them; a `Queue` is a source of calls of tasks.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field, fields
from datetime import datetime
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, ClassVar, Final, NamedTuple

from .. import DeliverPolicy, KeyValueConfig, StreamConfig, errors
from ..converters import Convert, converter
from ..options import check_returned, signature_of
from ..subjects import check_consumer_name, check_stream_name
from .arguments import may_be, payload_type
from .call_messages import CallAddress
from .checks import (
    check_bucket,
    check_configs,
    check_count,
    check_importable,
    check_name,
    check_option,
    check_plain,
    check_seconds,
    check_target,
    exceptions,
    is_number,
    subjects_of,
    unwrapped,
)
from .context import Context, RunState, is_context
from .dead_letters import DeadLetterTarget, one_line
from .errors import DecodeError, Reject, Retry, misfit
from .limits import LimitUse, rate_interval
from .retries import Backoff, backoff_for

if TYPE_CHECKING:
    from .. import JetStreamMsg
    from .calls import CallQueue

HandlerFunction = Callable[..., object]
#: Wraps each run of a handler: ``middleware(call, context)`` calls ``call()``.
Middleware = Callable[[Callable[[], object], Context], object]


#: How long a message is given back that does not fit the process, in seconds: as long as a deploy may take.
GRACE_S: Final = 300.0
#: Longest wait for a full batch, in seconds.
_LONGEST_WAIT_S: Final = 3600
#: Options that handlers of a group, or of batches, leave at their defaults.
_NOT_FOR_GROUPS: Final = (
    *("filter_subjects", "deliver", "confirm", "ack", "max_bytes", "exclusive", "max_messages"),
)
_NOT_FOR_BATCHES: Final = ("ack", "key", "limit", "rate")
#: Numbers that may be None, with their check and their least value.
_NUMBERS: Final = (
    ("prefetch", check_count, 0),
    ("max_bytes", check_count, 1),
    ("ack_wait", check_seconds, 3),
    ("park_after", check_seconds, 1),
)
#: Options with the values that they may have; `Source` checks what depends on others.
_RULES: Final[tuple[tuple[str, Callable[[Any], bool], str], ...]] = (
    ("confirm", lambda value: isinstance(value, bool), "must be True or False"),
    ("exclusive", lambda value: isinstance(value, bool), "must be True or False"),
    ("ack", lambda value: value in ("after", "before"), "must be 'after' or 'before'"),
    ("pool", lambda value: value in ("threads", "processes"), "must be 'threads' or 'processes'"),
    ("key", lambda value: value is None or callable(value), "must be a function of the message"),
)
#: The patterns of wildcards.
_WILDCARDS: Final = {"*": "[^.]*", ">": ".*"}
DECODERS: Final[dict[str, Callable[[bytes], Any]]] = {
    "bytes": bytes,
    "json": json.loads,
    "text": lambda data: data.decode("utf-8"),
}
#: What those return that do not convert to an annotation.
_FIXED: Final[dict[str, type]] = {"bytes": bytes, "text": str}


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


@dataclass(frozen=True, kw_only=True)
class SourceOptions:
    """The options of consumers and their threads, which handlers and queues have."""

    prefetch: int | None = None
    """Number of messages to receive ahead; ``None``: the work of about 75 milliseconds, by the time that
    messages take, between as many as there are threads and 500, or the size of a batch; 0: a message is
    requested when a thread is free."""
    ack_wait: float | None = None
    """The consumer's ``ack_wait``, at least 3 seconds; ``None``: 30 for a new consumer, unchanged for an
    existing one."""
    confirm: bool = True
    """Whether the server confirms acknowledgements."""
    dead_letters: DeadLetterTarget | None = None
    """The stream for dead letters of this handler, or a function ``(message, reason) -> subject``;
    ``None``: those of the worker."""
    key: Callable[[JetStreamMsg], Hashable] | None = None
    """A function of the message that returns its key, such as a customer. Within one process, messages of
    one key are handled one at a time, in the order of their receipt, and each one is settled before the
    next one starts; failed ones are retried in place. Messages of other keys do not wait for them. A
    message whose key is ``None`` has no order. An error of the function counts as one of the handler.
    ``None``: no order."""
    ack: str = "after"
    """``"before"``: acknowledge a message before the function runs, for work that must never be done
    twice. Errors are then only logged, and a crash loses the message. With ``confirm``, the function runs
    when the server has confirmed the acknowledgement."""
    park_after: float | None = None
    """Seconds above which the delay of a retry is spent in the stream instead of the consumer, so that it
    needs no place of ``max_ack_pending``: the message is stored as a schedule that publishes it again.
    Attempts and `Context.id` continue. Needs server 2.12, and a work queue with ``allow_msg_schedules``
    and the subject ``parked.<stream>.>``, which the filters of the handler exclude. Excludes ``key``.
    ``None``: never."""
    max_bytes: int | None = None
    """Total size of the messages that the handler holds, running and waiting, as the server counts it:
    subjects, headers and payloads. At most 16 are requested at a time, and as many as fit if they are as
    large as the last ones, so a few larger ones may exceed it. ``None``: only their number is limited."""
    exclusive: bool = False
    """Let one process at a time receive the messages (a pinned client, ADR-42, server 2.11). The others
    take over when it stops, or 30 seconds after it has crashed or lost its link: the
    ``priority_timeout`` of a new consumer. A process that is not pinned any more returns its waiting
    messages."""
    limit: str | None = None
    """The name of a limit, see `Worker.limit`."""
    rate: str | None = None
    """How often the function may start in each process, evenly spaced: a number and a unit, such as
    ``"10/s"``, ``"600/m"`` or ``"1000/h"``. A message waits in its thread, with a renewed lease. Retries
    count, too. ``None``: no limit."""
    pool: str = "threads"
    """``"processes"``: each thread runs the function and the middleware in a process of its own, which is
    killed at the ``timeout``, and whose crash fails only its message. The process imports the module of
    the handler, which must define it at the top level."""
    ensure: Sequence[StreamConfig | KeyValueConfig] = ()
    """Streams and buckets of the handler, as for `Worker`."""

    def __post_init__(self) -> None:
        """Check the options."""
        check_target(self.dead_letters)
        for option, check, least in _NUMBERS:
            if getattr(self, option) is not None:
                check(option, getattr(self, option), least)
        check_configs("ensure", self.ensure)
        for option, is_valid, rule in _RULES:
            check_option(option, getattr(self, option), is_valid(getattr(self, option)), rule)
        if self.key is not None and not isinstance(self.key, type):
            check_plain("key", self.key)
        if self.rate is not None:
            rate_interval(self.rate)


@dataclass(frozen=True, kw_only=True)
class Source(SourceOptions):
    """A consumer, its threads and limits; `route` returns the work that runs for a message."""

    stream: str
    """The name of the stream, which must exist, or be in an ``ensure``."""
    consumer: str
    """The durable name of the consumer, a pull consumer with ack policy ``explicit``; with ``group``, any
    name, that of the group by default."""
    name: str = ""
    """The name: that of the queue, or of the function of a handler."""
    filter_subject: str | None = None
    """The only subject to deliver."""
    filter_subjects: Sequence[str] = ()
    """Several of them; excludes ``filter_subject``. Empty: those of the existing consumer, or none."""
    concurrency: int = 1
    """Number of threads that run the function."""
    deliver: str | int | datetime = "all"
    """Where a new consumer starts in a stream with messages: ``"all"``, ``"new"``, a sequence or a time; a
    work queue always delivers all. `Worker.check` reports how many stored messages match."""
    group: str | None = None
    """The name of a partitioned consumer group of the stream (`ConsumerGroup`, server 2.11), whose partitions
    are shared by the processes: messages of a partition are handled one at a time, in order, and failed
    ones are retried in place. With ``key``, the same holds for messages of a key. A process adds itself to
    an elastic group, and drops members that are absent for a minute. ``None``: there is no group."""
    member: str | None = None
    """The name of this process in the ``group``, which keeps its partitions for a minute when it stops;
    ``None``: host name and process id, for an elastic group without mappings."""
    max_messages: int | None = None
    """The size of the largest batch; ``None``: each message is handled by itself."""
    max_wait: float = 1.0
    """Seconds after its first message in which a batch may become full."""
    grace: float = field(repr=False, default=GRACE_S)
    """Seconds for which a message is given back that does not fit this process, before it is a dead letter."""

    def __post_init__(self) -> None:
        """Check and complete the options."""
        super().__post_init__()
        check_name("stream", self.stream, check_stream_name)
        check_name("consumer", self.consumer, check_consumer_name)
        check_count("concurrency", self.concurrency)
        if self.max_messages is not None:
            check_count("max_messages", self.max_messages, 1)
        for option in ("group", "member"):
            value = getattr(self, option)
            check_option(option, value, isinstance(value, str | None), "must be a name")
        ok = is_number(self.max_wait) and 0 <= self.max_wait <= _LONGEST_WAIT_S
        rule = f"must be from 0 to {_LONGEST_WAIT_S} seconds"
        check_option("max_wait", self.max_wait, ok, rule)
        check_seconds("unknown_task_grace", self.grace)
        start_of(self.deliver)
        subjects = subjects_of(self.filter_subject, self.filter_subjects)
        object.__setattr__(self, "filter_subjects", subjects)
        is_batch = self.max_messages is not None
        for option, is_refused, rule in (
            ("member", self.member is not None and not self.group, "needs 'group'"),
            ("pool", is_batch and self.pool != "threads", "must be 'threads' for batches"),
            *(
                (name, is_so and getattr(self, name) != getattr(Source, name), f"is not for {what}")
                for what, is_so, names in (
                    ("batches", is_batch, _NOT_FOR_BATCHES),
                    ("groups", self.group is not None, _NOT_FOR_GROUPS),
                )
                for name in names
            ),
        ):
            check_option(option, getattr(self, option), not is_refused, rule)

    def adopt(self, work: Work) -> None:
        """
        Complete the options of some work that runs for what is received, and check that both fit.

        :meta private:
        """
        has_order, is_batch = self.key is not None or self.group is not None, self.max_messages
        retry = None if work.retry is WorkOptions.retry else work.retry
        object.__setattr__(work, "retry", backoff_for(retry, in_place=has_order))
        in_place, once, limit = work.retry.in_place, work.once, work.shared_limit
        after = "excludes ack='before': the message is not delivered again"
        not_in_order = "excludes 'key', 'group' and retries in place"
        goes_back = "of all processes excludes ack='before', 'key' and retries in place: its calls go back to the server"
        for option, value, is_refused, rule in (
            ("park_after", self.park_after, self.park_after is not None and in_place, not_in_order),
            ("soft_timeout", work.soft_timeout, self.pool != "threads", "is not for processes"),
            ("once", once, self.ack != "after", after),
            ("once", once, is_batch, "is not for batches"),
            ("retry", work.retry, is_batch and in_place, "is not for batches"),
            ("limit", limit and limit.rule.name, self.ack != "after" or in_place, goes_back),
        ):
            check_option(option, value, value is None or not is_refused, rule)
        if self.pool == "processes":
            check_importable(work.function)

    @property
    def is_pinned(self) -> bool:
        """Whether the server delivers to one process at a time, or one for each partition."""
        return self.exclusive or self.group is not None

    @property
    def is_ordered(self) -> bool:
        """Whether a message keeps its place in the stream; true unless it is a call without a key."""
        return not isinstance(self, Queue) or self.key is not None or self.is_pinned

    @property
    def ahead(self) -> int:
        """The number of messages to receive ahead, at least."""
        return (self.max_messages or self.concurrency) if self.prefetch is None else self.prefetch

    @property
    def works(self) -> Sequence[Work]:
        """What runs for the messages: the handler, or the tasks of a queue."""
        raise NotImplementedError

    def route(self, subject: str) -> Work | None:
        """Return what runs for a message with a subject; ``None``: it is a call of an unknown task."""
        raise NotImplementedError

    @property
    def needs_parking(self) -> bool:
        """Whether messages must be able to wait in the stream, as schedules."""
        return self.park_after is not None or any(work.shared_limit for work in self.works)

    @property
    def most_attempts(self) -> int:
        """The largest number of attempts of a message."""
        return max([work.retry.attempts for work in self.works], default=1)

    @property
    def identity(self) -> tuple[str, str, str]:
        """Stream, consumer, and a name that is the same in each process."""
        return self.stream, self.consumer, self.name

    def options(self) -> dict[str, str]:
        """Return the values of all options as text, by name."""
        raise NotImplementedError

    def check_processes(self, count: int) -> None:
        """
        Check that this number of processes may run the handler at a time.

        Raises:
            InvalidOptionError: more than one would handle messages of one key at a time.

        """
        if count > 1 and self.key is not None and not self.is_pinned:
            raise errors.InvalidOptionError(
                "processes",
                count,
                f"handler {self.name} has 'key', whose order holds within one process: add exclusive=True, "
                "or use group=",
            )


@dataclass(frozen=True, kw_only=True)
class Handler(Source, Work):
    """
    A handler and its options; `Worker.handler` returns it in place of the function.

    It can be called like the function, for tests.
    """

    decode: str | Callable[[bytes], Any] = "bytes"
    """``"bytes"``, ``"json"``, ``"text"``, or a function of the payload. A payload that cannot be decoded
    becomes a dead letter at once."""
    name: str = field(repr=False, default="")
    """The name of the function, see `unwrapped`; for an object with ``__call__``, the name of its class."""

    def __post_init__(self) -> None:
        """Check and complete the options."""
        if isinstance(self.function, Handler):  # decorated twice, for two consumers
            object.__setattr__(self, "function", self.function.function)
        check_plain("handler", self.function)
        function = unwrapped(self.function)
        name = getattr(function, "__name__", None) or type(function).__name__
        object.__setattr__(self, "name", name)
        check_option(
            "handler", self.function, name != "<lambda>", "must have a name: define it with def"
        )
        arity_of(self.function)
        Source.__post_init__(self)
        WorkOptions.__post_init__(self)
        ok = callable(self.decode) or self.decode in tuple(DECODERS)
        rule = f"must be a function or one of {sorted(DECODERS)}"
        check_option("decode", self.decode, ok, rule)
        if callable(self.decode) and not isinstance(self.decode, type):
            check_plain("decode", self.decode)
        kind = _FIXED.get(self.decode) if isinstance(self.decode, str) else None
        if kind is not None:
            wanted = payload_type(self.function, of_items=self.max_messages is not None)
            rule = (
                f"passes {kind.__name__} to a parameter that is annotated {getattr(wanted, '__name__', wanted)}: "
                "set 'json', or a function that returns it"
            )
            check_option("decode", self.decode, may_be(wanted, kind), rule)
        self.adopt(self)

    @property
    def works(self) -> Sequence[Work]:
        """The handler itself."""
        return (self,)

    def route(self, subject: str) -> Work | None:
        """Return the handler, for any subject."""
        del subject
        return self

    def options(self) -> dict[str, str]:
        """Return the values of all options as text, by name."""
        names = (*HANDLER_OPTIONS, "max_messages", "max_wait")
        return {name: repr(getattr(self, name)) for name in names}

    def __call__(self, *args: Any, **kwargs: Any) -> object:
        """Call the function itself."""
        return self.function(*args, **kwargs)

    # --- running --------------------------------------------------------------------------------

    @cached_property
    def _arity(self) -> str:
        return arity_of(self.function)

    @cached_property
    def _decode(self) -> Callable[[bytes], Any]:
        return self.decode if callable(self.decode) else DECODERS[self.decode]

    @cached_property
    def _convert(self) -> Convert | None:
        if self.decode != "json":
            return None
        return converter(payload_type(self.function, of_items=self.max_messages is not None))

    def decoded(self, data: bytes) -> Any:
        """
        Return the decoded payload.

        Raises:
            DecodeError: it cannot be decoded.

        """
        try:
            value = self._decode(data)
        except Exception as error:
            wrong = DecodeError(f"the payload cannot be decoded: {one_line(error)}")
            raise (misfit(wrong) if callable(self.decode) else wrong) from error
        if callable(self.decode):
            check_returned(value)
        if self._convert is None:
            return value
        try:
            return self._convert(value)
        except Exception as error:
            text = f"the payload does not fit the handler: {one_line(error)}"
            raise misfit(DecodeError(text)) from error

    @property
    def of_payload(self) -> Callable[[bytes], object] | None:
        """As `Work.of_payload`."""
        function = self.function
        if self._arity == "none":
            return lambda _: function()
        if self._arity == "payload":
            is_plain = self.decode == "bytes"
            return function if is_plain else lambda data: function(self.decoded(data))
        return None

    def run(self, context: Context) -> object:
        """Run the function for a message; return and raise what it does."""
        payload = None
        if self._arity in {"payload", "both"}:
            payload = self.decoded(context.message.data)
        return self.run_decoded(payload, context)

    def run_decoded(self, payload: Any, context: object) -> object:
        """Run the function for a decoded payload, or for a list of them and that of their contexts."""
        payloads = (payload,) if self._arity in {"payload", "both"} else ()
        contexts = (context,) if self._arity in {"context", "both"} else ()
        return self.function(*payloads, *contexts)


class TickRule(NamedTuple):
    """Which calls of a schedule run; see `Worker.schedule`."""

    missed: str = "all"
    overlap: bool = True


@dataclass(frozen=True, kw_only=True)
class Queue(Source):
    """A queue of tasks, whose messages are calls."""

    tasks: dict[str, Work] = field(repr=False)
    """What runs the calls, by the names of the tasks."""
    unknown: Work = field(repr=False)
    """Stands for tasks that are not known here."""
    ticks: dict[tuple[str, str], TickRule] = field(repr=False)
    """The rules of the schedules that call them, by the names of the task and of the schedule."""
    calls: CallQueue = field(repr=False)
    """Where its calls are sent."""
    urgent: bool = field(repr=False, default=False)
    """Whether it has the urgent calls of another queue."""

    @property
    def works(self) -> Sequence[Work]:
        """The tasks."""
        return tuple(self.tasks.values())

    def route(self, subject: str) -> Work | None:
        """As `Source.route`."""
        return self.tasks.get(CallAddress(subject).task)

    def options(self) -> dict[str, str]:
        """Return the values of all options as text, by name."""
        found = {name: repr(getattr(self, name)) for name in (*SOURCE_OPTIONS, "concurrency")}
        return {**found, "unknown_task_grace": repr(self.grace)}


#: The options of handlers and queues.
SOURCE_OPTIONS: Final = tuple(SourceOptions.__dataclass_fields__)
#: The options of `Worker.handler`.
HANDLER_OPTIONS: Final = (
    *("filter_subject", "filter_subjects", "concurrency", "deliver", "decode", "group", "member"),
    *(item.name for kind in (WorkOptions, SourceOptions) for item in fields(kind)),
)


# --- functions, filters and starts --------------------------------------------------------------


def arity_of(function: HandlerFunction) -> str:
    """Return which arguments the function takes: none, payload, context or both."""
    try:
        parameters = signature_of(function).parameters.values()
    except ValueError:
        return "payload"  # a built-in function that does not describe its parameters
    positional = [
        parameter
        for parameter in parameters
        if parameter.kind in {parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD}
        and parameter.default is parameter.empty
    ]
    keywords = [
        parameter
        for parameter in parameters
        if parameter.kind is parameter.KEYWORD_ONLY and parameter.default is parameter.empty
    ]
    ok = len(positional) <= 2 and not keywords
    rule = "must take at most two arguments: the payload and the context"
    check_option("handler", function, ok, rule)
    if not positional and any(item.kind is item.VAR_POSITIONAL for item in parameters):
        return "payload"  # as of a wrapper that passes its arguments on
    if len(positional) == 1:
        return "context" if is_context(positional[0].annotation) else "payload"
    return "both" if positional else "none"


def acceptor(filters: Sequence[str]) -> Callable[[str], object] | None:
    """Return a function whose result is true for subjects of the filters, if any."""
    if not filters:
        return None
    if not any(token in _WILDCARDS for item in filters for token in item.split(".")):
        return frozenset(filters).__contains__
    patterns = (
        r"\.".join(_WILDCARDS.get(token) or re.escape(token) for token in item.split("."))
        for item in filters
    )
    return re.compile("|".join(patterns), re.DOTALL).fullmatch


def start_of(deliver: str | int | datetime) -> dict[str, Any]:
    """Return the fields of a consumer config for the start of a new consumer."""
    if isinstance(deliver, datetime):
        return {"deliver_policy": DeliverPolicy.BY_START_TIME, "opt_start_time": deliver}
    if isinstance(deliver, int) and not isinstance(deliver, bool) and deliver >= 1:
        return {"deliver_policy": DeliverPolicy.BY_START_SEQUENCE, "opt_start_seq": deliver}
    rule = "must be 'all', 'new', a sequence of at least 1, or a datetime"
    check_option("deliver", deliver, deliver in ("all", "new"), rule)
    return {"deliver_policy": DeliverPolicy(deliver)}


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
