"""Handlers: the functions of the user, with their options."""

from __future__ import annotations

import inspect
import json
import os
import re
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from .. import DeliverPolicy, Headers, KeyValueConfig, StreamConfig, errors
from ..converters import converter
from ..exact import take_values
from ..subjects import check_consumer_name, check_stream_name
from .arguments import may_be, payload_type
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
from .limits import rate_interval
from .retries import Backoff, backoff_for
from .shared_limits import LimitUse

if TYPE_CHECKING:
    from .. import JetStreamMsg

HandlerFunction = Callable[..., object]
#: How long a message is given back that does not fit the process, in seconds: as long as a deploy may take.
GRACE_S: Final = 300.0
#: Wraps each run of a handler: ``middleware(call, context)`` calls ``call()``.
Middleware = Callable[[Callable[[], object], Context], object]

DECODERS: Final[dict[str, Callable[[bytes], Any]]] = {
    "bytes": bytes,
    "json": json.loads,
    "text": lambda data: data.decode("utf-8"),
}
#: What those return that do not convert to an annotation.
_FIXED: Final[dict[str, type]] = {"bytes": bytes, "text": str}
#: Longest wait for a full batch, in seconds.
_LONGEST_WAIT_S: Final = 3600
#: Options with the only value that handlers of a group may have.
_WITHOUT_GROUP: Final[dict[str, object]] = {
    "filter_subjects": (),
    "deliver": "all",
    "confirm": True,
    "ack": "after",
    "max_bytes": None,
    "exclusive": False,
    "max_messages": None,
}
#: Numbers that may be None, with their check and their least value.
_NUMBERS: Final = (
    ("prefetch", check_count, 0),
    ("max_bytes", check_count, 1),
    ("max_messages", check_count, 1),
    ("ack_wait", check_seconds, 3),
    ("park_after", check_seconds, 1),
)


#: Options with the values that they may have; `Handler` checks what depends on others.
_RULES: Final[tuple[tuple[str, Callable[[Any], bool], str], ...]] = (
    ("confirm", lambda value: isinstance(value, bool), "must be True or False"),
    ("exclusive", lambda value: isinstance(value, bool), "must be True or False"),
    ("group", lambda value: isinstance(value, str | None), "must be a name"),
    ("member", lambda value: isinstance(value, str | None), "must be a name"),
    (
        "timeout",
        lambda value: is_number(value) and value > 0,
        "must be a number of seconds above 0",
    ),
    ("ack", lambda value: value in ("after", "before"), "must be 'after' or 'before'"),
    ("pool", lambda value: value in ("threads", "processes"), "must be 'threads' or 'processes'"),
    ("key", lambda value: value is None or callable(value), "must be a function of the message"),
    (
        "decode",
        lambda value: callable(value) or value in tuple(DECODERS),
        f"must be a function or one of {sorted(DECODERS)}",
    ),
    (
        "max_wait",
        lambda value: is_number(value) and 0 <= value <= _LONGEST_WAIT_S,
        f"must be from 0 to {_LONGEST_WAIT_S} seconds",
    ),
)
#: The patterns of wildcards.
_WILDCARDS: Final = {"*": "[^.]*", ">": ".*"}
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
        headers: names and values; ``None``: none.

    """

    payload: bytes = b""
    headers: Headers | Mapping[str, str] | Mapping[str, list[str]] | None = None


#: One item more in a process that was forked.
forks: Final = [0]
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=lambda: forks.append(0))


def end_fork(before: int, status: int = 0) -> None:
    """End a process if ``forks`` was shorter before: a handler has forked it, and it has no worker."""
    if len(forks) != before:
        os._exit(status)


@dataclass(frozen=True, kw_only=True)
class Handler:
    """
    A handler and its options; `Worker.handler` returns it in place of the function.

    It can be called like the function, for tests.
    """

    function: HandlerFunction = field(repr=False)
    """The function."""
    stream: str
    """The name of the stream, which must exist, or be in an ``ensure``."""
    consumer: str
    """The durable name of the consumer, a pull consumer with ack policy ``explicit``; with ``group``, any
    name, that of the group by default."""
    filter_subject: str | None = None
    """The only subject to deliver."""
    filter_subjects: Sequence[str] = ()
    """Several of them; excludes ``filter_subject``. Empty: those of the existing consumer, or none."""
    concurrency: int = 1
    """Number of threads that run the function."""
    prefetch: int | None = None
    """Number of messages to receive ahead; ``None``: the work of about 75 milliseconds, by the time that
    messages take, between as many as there are threads and 500, or the size of a batch; 0: a message is
    requested when a thread is free."""
    retry: Backoff = None  # type: ignore[assignment]  # replaced in __post_init__
    """Attempts and delays; ``None``: those of ``Backoff()``, or with ``key`` or ``group`` those of
    ``Backoff(first=0.5, maximum=10.0, attempts=8, in_place=True)``."""
    timeout: float = 600.0
    """Seconds after which the lease of a message is not renewed any more."""
    soft_timeout: float | None = None
    """Seconds after which `SoftTimeoutError` is raised in the handler, at its next statement: a call that
    waits outside of Python, such as `time.sleep`, ends first. Less than ``timeout``, and not for
    ``pool="processes"``, whose process is killed. ``None``: it is not raised."""
    ack_wait: float | None = None
    """The consumer's ``ack_wait``, at least 3 seconds; ``None``: 30 for a new consumer, unchanged for an
    existing one."""
    deliver: str | int | datetime = "all"
    """Where a new consumer starts in a stream with messages: ``"all"``, ``"new"``, a sequence or a time; a
    work queue always delivers all. `Worker.check` reports how many stored messages match."""
    reject_on: Sequence[type[BaseException]] = ()
    """Errors that make a dead letter at once."""
    retry_on: Sequence[type[BaseException]] | None = None
    """The errors to retry; all others make a dead letter at once; ``None``: all errors."""
    decode: str | Callable[[bytes], Any] = "bytes"
    """``"bytes"``, ``"json"``, ``"text"``, or a function of the payload. A payload that cannot be decoded
    becomes a dead letter at once."""
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
    once: str | None = None
    """A key-value bucket that records which messages are handled, for effects outside a database. A
    message that is recorded as handled is acknowledged without a run; one whose worker died runs again,
    with `Context.maybe_done`. The bucket is created with a TTL of 30 days if it does not exist; its TTL
    must exceed the age of redelivered messages. It costs two writes for each message. ``None``: none."""
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
    """The name of a limit, see `Worker.limit`; ``None``: none."""
    rate: str | None = None
    """How often the function may start in each process, evenly spaced: a number and a unit, such as
    ``"10/s"``, ``"600/m"`` or ``"1000/h"``. A message waits in its thread, with a renewed lease. Retries
    count, too. ``None``: no limit."""
    pool: str = "threads"
    """``"processes"``: each thread runs the function and the middleware in a process of its own, which is
    killed at the ``timeout``, and whose crash fails only its message. The process imports the module of
    the handler, which must define it at the top level."""
    group: str | None = None
    """The name of a partitioned consumer group of the stream (`ConsumerGroup`, server 2.11), whose partitions
    are shared by the processes: messages of a partition are handled one at a time, in order, and failed
    ones are retried in place. With ``key``, the same holds for messages of a key. A process adds itself to
    an elastic group, and drops members that are absent for a minute. ``None``: there is no group."""
    member: str | None = None
    """The name of this process in the ``group``, which keeps its partitions for a minute when it stops;
    ``None``: host name and process id, for an elastic group without mappings."""
    ensure: Sequence[StreamConfig | KeyValueConfig] = ()
    """Streams and buckets of the handler, as for `Worker`."""
    max_messages: int | None = None
    """The size of the largest batch; ``None``: each message is handled by itself."""
    max_wait: float = 1.0
    """Seconds after its first message in which a batch may become full."""
    module: str = field(repr=False, default="")
    """The module that defines the handler."""

    def __post_init__(self) -> None:
        """Check and complete the options."""
        take_values(self)
        if isinstance(self.function, Handler):  # decorated twice, for two consumers
            object.__setattr__(self, "function", self.function.function)
        check_plain("handler", self.function)
        is_named = self.name != "<lambda>"
        check_option("handler", self.function, is_named, "must have a name: define it with def")
        arity_of(self.function)
        check_name("stream", self.stream, check_stream_name)
        check_name("consumer", self.consumer, check_consumer_name)
        check_target(self.dead_letters)
        if self.once is not None:
            check_bucket("once", self.once)
        check_count("concurrency", self.concurrency)
        for option, check, least in _NUMBERS:
            if getattr(self, option) is not None:
                check(option, getattr(self, option), least)
        check_configs("ensure", self.ensure)
        for option, is_valid, rule in _RULES:
            check_option(option, getattr(self, option), is_valid(getattr(self, option)), rule)
        for option in ("key", "decode"):
            value = getattr(self, option)
            if value is not None and not isinstance(value, (str, type)):
                check_plain(option, value)
        kind = _FIXED.get(self.decode) if isinstance(self.decode, str) else None
        if kind is not None:
            wanted = payload_type(self.function, of_items=self.max_messages is not None)
            rule = (
                f"passes {kind.__name__} to a parameter that is annotated {getattr(wanted, '__name__', wanted)}: "
                "set 'json', or a function that returns it"
            )
            check_option("decode", self.decode, may_be(wanted, kind), rule)
        soft = self.soft_timeout
        ok = soft is None or (is_number(soft) and 0 < soft < self.timeout)
        check_option(
            "soft_timeout", soft, ok, "must be a number of seconds above 0 and below 'timeout'"
        )
        start_of(self.deliver)
        if self.rate is not None:
            rate_interval(self.rate)
        if self.pool == "processes":
            check_importable(self.function)
        retried = self.retry_on
        in_place = self.key is not None or self.group is not None
        for name, value in (
            ("filter_subjects", subjects_of(self.filter_subject, self.filter_subjects)),
            ("reject_on", exceptions("reject_on", self.reject_on)),
            ("retry_on", None if retried is None else exceptions("retry_on", retried)),
            ("retry", backoff_for(self.retry, in_place=in_place)),
        ):
            object.__setattr__(self, name, value)
        self._check_combinations()

    def _check_combinations(self) -> None:
        """Refuse options that exclude each other."""
        is_batch, in_place = self.max_messages is not None, self.retry.in_place
        after = "excludes ack='before': the message is not delivered again"
        not_in_order = "excludes 'key', 'group' and retries in place"
        for option, is_refused, rule in (
            ("park_after", self.park_after is not None and in_place, not_in_order),
            ("soft_timeout", self.soft_timeout and self.pool != "threads", "is not for processes"),
            ("once", self.once is not None and self.ack != "after", after),
            ("member", self.member is not None and not self.group, "needs 'group'"),
            ("retry", is_batch and in_place, "is not for batches"),
            ("ack", is_batch and self.ack != "after", "is not for batches"),
            ("pool", is_batch and self.pool != "threads", "must be 'threads' for batches"),
            *(
                (name, is_batch and getattr(self, name) is not None, "is not for batches")
                for name in ("key", "once", "limit", "rate")
            ),
            *(
                (name, self.group is not None and getattr(self, name) != value, "is not for groups")
                for name, value in _WITHOUT_GROUP.items()
            ),
        ):
            check_option(option, getattr(self, option), not is_refused, rule)

    @property
    def grace(self) -> float:
        """
        Seconds for which a message is given back that does not fit this process, before it is a dead letter.

        :meta private:
        """
        return GRACE_S

    @property
    def is_pinned(self) -> bool:
        """Whether the server delivers to one process at a time, or one for each partition."""
        return self.exclusive or self.group is not None

    @property
    def parks(self) -> bool:
        """Whether messages may wait in the stream, as schedules."""
        return self.park_after is not None

    @property
    def ahead(self) -> int:
        """The number of messages to receive ahead, at least."""
        return (self.max_messages or self.concurrency) if self.prefetch is None else self.prefetch

    @property
    def name(self) -> str:
        """The name of the function, see `unwrapped`; for an object with ``__call__``, the name of its class."""
        function = unwrapped(self.function)
        return getattr(function, "__name__", None) or type(function).__name__

    def of(self, subject: str) -> Handler | None:
        """Return the handler of a subject; a queue returns the handler of the task, if it is known."""
        del subject
        return self

    @property
    def parts(self) -> Sequence[Handler]:
        """What runs for the messages: the handler, or the tasks of a queue."""
        return (self,)

    @property
    def most_attempts(self) -> int:
        """The largest number of attempts of a message."""
        return max(part.retry.attempts for part in (self, *self.parts))

    @property
    def declared(self) -> tuple[str, str, str]:
        """Stream and consumer as they are declared, and the name: no two handlers of a worker have the same."""
        return self.stream, self.consumer, self.name

    @property
    def identity(self) -> tuple[str, str, str]:
        """Stream, consumer, and qualified name of the function: the same in each process."""
        qualified_name = getattr(unwrapped(self.function), "__qualname__", self.name)
        return self.stream, self.consumer, qualified_name

    def options(self) -> dict[str, str]:
        """Return the values of all options as text, by name."""
        return {name: repr(getattr(self, name)) for name in (*HANDLER_OPTIONS, *BATCH_OPTIONS)}

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

    def rejects(self, error: BaseException) -> bool:
        """Return whether an error makes a dead letter at once."""
        if isinstance(error, (Reject, DecodeError, *self.reject_on)):
            return True
        if self.retry_on is None or isinstance(error, (Retry, errors.UnfinishedError)):
            return isinstance(error, errors.UnfinishedError)
        return not isinstance(error, tuple(self.retry_on))

    def __call__(self, *args: Any, **kwargs: Any) -> object:
        """Call the function itself."""
        return self.function(*args, **kwargs)


@dataclass(frozen=True, kw_only=True)
class CallHandler(Handler):
    """The handler of a task, whose messages are calls."""

    state: RunState = field(repr=False)
    """Records the runs."""
    shared_limit: LimitUse | None = field(repr=False, default=None)
    """The limit of all processes; ``None``: none."""
    unknown_task_grace: float = GRACE_S
    """Seconds for which calls that do not fit this process are given back, before they are dead letters."""

    def __post_init__(self) -> None:
        """Check and complete the options."""
        super().__post_init__()
        check_seconds("unknown_task_grace", self.unknown_task_grace)
        ok = self.shared_limit is None or (self.ack == "after" and not self.retry.in_place)
        rule = "of all processes excludes ack='before', 'key' and retries in place: its calls go back to the server"
        check_option("limit", self.shared_limit and self.shared_limit.rule.name, ok, rule)

    @property
    def grace(self) -> float:
        """As `Handler.grace`."""
        return self.unknown_task_grace

    @property
    def parks(self) -> bool:
        """Whether messages may wait in the stream, as schedules."""
        return super().parks or self.shared_limit is not None


class TickRule(NamedTuple):
    """Which calls of a schedule run; see `Worker.schedule`."""

    missed: str = "all"
    overlap: bool = True


@dataclass(frozen=True, kw_only=True)
class QueueHandler(CallHandler):
    """The handler of a queue, whose calls are run by its tasks; ``state`` is for calls of unknown ones."""

    tasks: dict[str, CallHandler] = field(repr=False)
    """The handlers of the tasks, by name."""
    ticks: dict[str, TickRule] = field(repr=False)
    """The rules of the schedules that call them, by the last two tokens of the subjects of the calls."""
    owner: str = field(repr=False)
    """The program to which the consumer belongs."""
    urgent: bool = field(repr=False, default=False)
    """Whether it has the urgent calls of another queue."""

    def of(self, subject: str) -> Handler | None:
        """Return the handler of the task of a call; ``None``: it is unknown."""
        return self.tasks.get(task_of(subject))

    @property
    def parts(self) -> Sequence[Handler]:
        """The handlers of the tasks."""
        return tuple(self.tasks.values())

    def options(self) -> dict[str, str]:
        """Return the values of all options as text, by name."""
        return {**super().options(), "unknown_task_grace": repr(self.unknown_task_grace)}


def task_of(subject: str) -> str:
    """Return the name of the task in the subject of a call; empty: it is the subject of none."""
    return subject.rpartition(".")[0].rpartition(".")[2]


#: The options of `Worker.batch` that other handlers do not have.
BATCH_OPTIONS: Final = ("max_messages", "max_wait")
#: The options of all handlers.
HANDLER_OPTIONS: Final = tuple(
    item.name
    for item in fields(Handler)
    if item.name not in {"function", "module", "stream", "consumer", *BATCH_OPTIONS}
)
#: Those that belong to a task, and those that belong to a queue.
TASK_OPTIONS: Final = ("once", "reject_on", "retry", "retry_on", "soft_timeout", "timeout")
QUEUE_OPTIONS: Final = (
    *("ack", "ack_wait", "confirm", "dead_letters", "ensure", "exclusive", "key"),
    *("limit", "max_bytes", "park_after", "pool", "prefetch", "rate"),
)


class Invocation:
    """Runs the function of a handler inside the middleware, with the arguments that it takes."""

    def __init__(self, handler: Handler, middleware: Sequence[Middleware]) -> None:
        self._function = handler.function
        self._middleware = middleware
        self._arity = arity_of(handler.function)
        self._decode = handler.decode if callable(handler.decode) else DECODERS[handler.decode]
        is_batch = handler.max_messages is not None
        self._convert = (
            converter(payload_type(handler.function, of_items=is_batch))
            if handler.decode == "json"
            else None
        )
        #: Runs the function for a payload; ``None``: something needs the context.
        self.of_payload: Callable[[bytes], object] | None = None
        if not middleware and self._arity == "none":
            self.of_payload = lambda _: self._function()
        elif not middleware and self._arity == "payload":
            is_plain = handler.decode == "bytes"
            self.of_payload = (
                self._function if is_plain else lambda data: self._function(self.decoded(data))
            )

    def decoded(self, data: bytes) -> Any:
        """
        Return the decoded payload.

        Raises:
            DecodeError: it cannot be decoded.

        """
        try:
            value = self._decode(data)
            if self._convert is None:
                return value
        except Exception as error:
            wrong = DecodeError(f"the payload cannot be decoded: {one_line(error)}")
            raise (misfit(wrong) if self._decode not in DECODERS.values() else wrong) from error
        try:
            return self._convert(value)
        except Exception as error:
            text = f"the payload does not fit the handler: {one_line(error)}"
            raise misfit(DecodeError(text)) from error

    def run(self, context: Context) -> object:
        """Run the function for a message; return and raise what they do."""

        def call() -> object:
            return self._call(*self._arguments(lambda: self.decoded(context.message.data), context))

        return self._inside(call, context)

    def run_batch(self, payloads: list[Any], contexts: list[Context]) -> object:
        """Run the function for a batch; return and raise what they do."""
        contexts[0].batch = [context.message for context in contexts]
        arguments = self._arguments(lambda: payloads, contexts)
        return self._inside(partial(self._call, *arguments), contexts[0])

    def _arguments(self, payload: Callable[[], Any], context: object) -> tuple[object, ...]:
        """Return those arguments that the function takes."""
        payloads = (payload(),) if self._arity in {"payload", "both"} else ()
        return (*payloads, context) if self._arity in {"context", "both"} else payloads

    def _call(self, *arguments: object) -> object:
        """Call the function; a copy of the process that returns from it does not go on to the middleware."""
        before = len(forks)
        try:
            returned = self._function(*arguments)
        except BaseException:
            end_fork(before, 1)
            raise
        end_fork(before)
        return returned

    def _inside(self, call: Callable[[], object], context: Context) -> object:
        for item in reversed(self._middleware):
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


# --- filters, starts and signatures


def acceptor(filters: Sequence[str]) -> Callable[[str], object] | None:
    """Return a function whose result is true for subjects of the filters; ``None``: there are none."""
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


def arity_of(function: HandlerFunction) -> str:
    """Return which arguments the function takes: none, payload, context or both."""
    try:
        parameters = inspect.signature(function).parameters.values()
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
