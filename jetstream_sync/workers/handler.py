"""Handlers: the functions of the user, with their options."""

from __future__ import annotations

import inspect
import json
import os
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from datetime import datetime
from functools import partial
from types import AsyncGeneratorType, CoroutineType, GeneratorType
from typing import TYPE_CHECKING, Any, Final, cast

from .. import DeliverPolicy, Headers, KeyValueConfig, StreamConfig, errors
from ..subjects import check_consumer_name, check_stream_name, check_subject, subject_matches
from .context import Context, RunState
from .dead_letters import DeadLetterTarget, one_line
from .limits import rate_interval
from .retries import Backoff, Reject, Retry, backoff_for, check_count, is_number

if TYPE_CHECKING:
    from .. import JetStreamMsg

HandlerFunction = Callable[..., object]
#: Wraps each run of a handler: ``middleware(call, context)`` calls ``call()``.
Middleware = Callable[[Callable[[], object], Context], object]

DECODERS: Final[dict[str, Callable[[bytes], Any]]] = {
    "bytes": bytes,
    "json": json.loads,
    "text": lambda data: data.decode("utf-8"),
}


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
#: The header of a message with the subject for a `Reply`.
REPLY_TO: Final = "Reply-To"


@dataclass(frozen=True)
class Reply:
    """
    A result of a handler for the publisher of the message.

    It is published to the subject in the header ``Reply-To`` of the message, before the message is
    acknowledged; without the header it is ignored. A subject that begins with ``$`` gets no reply. An
    error of sending is logged, and the message is acknowledged.

    Args:
        payload: the payload.
        headers: names and values; ``None``: none.

    """

    payload: bytes = b""
    headers: Headers | Mapping[str, str] | Mapping[str, list[str]] | None = None


class DecodeError(Exception):
    """The payload cannot be decoded; another attempt cannot succeed."""


class UnfinishedError(TypeError):
    """A function has returned a coroutine or a generator, whose code has not run."""


_UNFINISHED: Final = (CoroutineType, GeneratorType, AsyncGeneratorType)


def check_result(result: object) -> None:
    """Raise `UnfinishedError` if the result of a function is code that has not run."""
    if isinstance(result, _UNFINISHED):
        if isinstance(result, CoroutineType):
            result.close()
        kind = type(result).__name__.replace("_", " ")
        text = (
            f"the function returned a {kind}, whose code did not run: it must be a plain function"
        )
        raise UnfinishedError(text)


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
    work queue always delivers all. `Worker.check` tells how many stored messages it is."""
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
    process_setup: str = field(repr=False, default="")
    """``MODULE:FUNCTION``, called in a new process before the module is imported; empty: none."""
    on_given_up: Callable[[JetStreamMsg, str], object] | None = field(repr=False, default=None)
    """Called with a message and the reason before it is terminated; an error delays that. ``None``: none."""
    has_ended: Callable[[JetStreamMsg], bool] | None = field(repr=False, default=None)
    """Of a queue: returns whether a call of an unknown task has ended, and needs no dead letter."""
    state: RunState | None = field(repr=False, default=None)
    """Records the runs; ``None``: the bucket of ``once`` does, or nothing."""
    tasks: dict[str, Handler] | None = field(repr=False, default=None)
    """The handlers of the tasks of a queue, by name; ``None``: this is no queue."""
    owner: str = field(repr=False, default="")
    """The program to which the consumer belongs; empty: any."""
    unknown_task_grace: float = 300.0
    """Of a queue: seconds for which calls of unknown tasks are given back, before they are dead letters."""
    _arity: str = field(init=False, repr=False, default="both")
    _decode: Callable[[bytes], Any] = field(init=False, repr=False, default=bytes)
    accepts: Callable[[str], bool] | None = field(init=False, repr=False, default=None)
    """Returns whether a subject is one of the filters; ``None``: there are none."""
    of_payload: Callable[[bytes], object] | None = field(init=False, repr=False, default=None)
    """Runs the function for a payload; ``None``: it takes a context."""

    def __post_init__(self) -> None:
        """Check and complete the options."""
        _check_function(self.function)
        check_name("stream", self.stream, check_stream_name)
        check_name("consumer", self.consumer, check_consumer_name)
        check_target(self.dead_letters)
        if self.once is not None:
            check_bucket("once", self.once)
        for option in ("confirm", "exclusive"):
            value = getattr(self, option)
            _check(option, value, isinstance(value, bool), "must be True or False")
        for option in ("group", "member"):
            value = getattr(self, option)
            _check(option, value, value is None or isinstance(value, str), "must be a name")
        for item in () if isinstance(self.ensure, str) else self.ensure:
            ok = isinstance(item, (StreamConfig, KeyValueConfig))
            _check("ensure", item, ok, "must be a list of configs of streams and buckets")
        _check("ensure", self.ensure, not isinstance(self.ensure, str), "must be a list of configs")
        grace = self.unknown_task_grace
        ok = is_number(grace) and grace >= 0
        _check("unknown_task_grace", grace, ok, "must be a number of seconds, 0 or above")
        check_count("concurrency", self.concurrency)
        for option, least in (("prefetch", 0), ("max_bytes", 1), ("max_messages", 1)):
            if getattr(self, option) is not None:
                check_count(option, getattr(self, option), least)
        ok = is_number(self.timeout) and self.timeout > 0
        _check("timeout", self.timeout, ok, "must be a number of seconds above 0")
        soft = self.soft_timeout
        ok = soft is None or (is_number(soft) and 0 < soft < self.timeout)
        _check("soft_timeout", soft, ok, "must be a number of seconds above 0 and below 'timeout'")
        for option, shortest in (("ack_wait", 3), ("park_after", 1)):
            value = getattr(self, option)
            ok = value is None or (is_number(value) and value >= shortest)
            _check(option, value, ok, f"must be at least {shortest} seconds")
        start_of(self.deliver)
        _check("ack", self.ack, self.ack in ("after", "before"), "must be 'after' or 'before'")
        for option in ("key", "decode"):
            if getattr(self, option) is not None and not isinstance(
                getattr(self, option), (str, type)
            ):
                check_plain(option, getattr(self, option))
        ok = self.key is None or callable(self.key)
        _check("key", self.key, ok, "must be a function of the message")
        if self.rate is not None:
            rate_interval(self.rate)
        if self.tasks is None:
            check_pool(self.pool, self.function)
        elif self.pool not in {"threads", "processes"}:
            raise errors.InvalidOptionError("pool", self.pool, "must be 'threads' or 'processes'")
        ok = callable(self.decode) or self.decode in tuple(DECODERS)
        rule = f"must be a function or one of {sorted(DECODERS)}"
        _check("decode", self.decode, ok, rule)
        retried = self.retry_on
        for name, value in (
            ("filter_subjects", _subjects(self.filter_subject, self.filter_subjects)),
            ("reject_on", _exceptions("reject_on", self.reject_on)),
            ("retry_on", None if retried is None else _exceptions("retry_on", retried)),
            (
                "retry",
                backoff_for(self.retry, in_place=self.key is not None or self.group is not None),
            ),
            ("_arity", _arity(self.function)),
            ("_decode", self.decode if callable(self.decode) else DECODERS[self.decode]),
        ):
            object.__setattr__(self, name, value)
        object.__setattr__(self, "of_payload", self._without_context())
        object.__setattr__(self, "accepts", _acceptor(self.filter_subjects))
        self._check_combinations()

    def _check_combinations(self) -> None:
        """Refuse options that exclude each other."""
        in_order = self.retry.in_place
        ok = self.park_after is None or not in_order
        _check("park_after", self.park_after, ok, "excludes 'key', 'group' and retries in place")
        ok = self.soft_timeout is None or self.pool == "threads"
        _check("soft_timeout", self.soft_timeout, ok, "is not for processes")
        ok = self.once is None or self.ack == "after"
        rule = "excludes ack='before': the message is not delivered again"
        _check("once", self.once, ok, rule)
        _check("member", self.member, self.member is None or bool(self.group), "needs 'group'")
        if self.group is not None:
            for option, least in _WITHOUT_GROUP.items():
                value = getattr(self, option)
                _check(option, value, value == least, "is not for groups")
        if self.max_messages is None:
            return
        ok = is_number(self.max_wait) and 0 <= self.max_wait <= _LONGEST_WAIT_S
        _check("max_wait", self.max_wait, ok, f"must be from 0 to {_LONGEST_WAIT_S} seconds")
        for option in ("key", "once", "limit", "rate"):
            value = getattr(self, option)
            _check(option, value, value is None, "is not for batches")
        _check("retry", self.retry, not self.retry.in_place, "is not for batches")
        _check("ack", self.ack, self.ack == "after", "is not for batches")
        _check("pool", self.pool, self.pool == "threads", "must be 'threads' for batches")

    @property
    def is_pinned(self) -> bool:
        """Whether the server delivers to one process at a time, or one for each partition."""
        return self.exclusive or self.group is not None

    @property
    def ahead(self) -> int:
        """The number of messages to receive ahead, at least."""
        return (self.max_messages or self.concurrency) if self.prefetch is None else self.prefetch

    @property
    def name(self) -> str:
        """The name of the function."""
        return getattr(self.function, "__name__", repr(self.function))

    def of(self, subject: str) -> Handler | None:
        """Return the handler of the messages with a subject: of a queue, that of the task, if it is known."""
        return self if self.tasks is None else self.tasks.get(subject.rsplit(".", 2)[-2])

    @property
    def most_attempts(self) -> int:
        """The largest number of attempts of a message."""
        tasks = (self.tasks or {}).values()
        return max([self.retry.attempts, *(task.retry.attempts for task in tasks)])

    @property
    def identity(self) -> tuple[str, str, str]:
        """Stream, consumer, and qualified name of the function: the same in each process."""
        qualified_name = getattr(self.function, "__qualname__", self.name)
        return self.stream, self.consumer, qualified_name

    def options(self) -> dict[str, str]:
        """Return the values of all options as text, by name."""
        names = [*HANDLER_OPTIONS, *BATCH_OPTIONS]
        if self.tasks is not None:
            names.append("unknown_task_grace")
        return {name: repr(getattr(self, name)) for name in names}

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
        if self.retry_on is None or isinstance(error, (Retry, UnfinishedError)):
            return isinstance(error, UnfinishedError)
        return not isinstance(error, tuple(self.retry_on))

    def __call__(self, *args: Any, **kwargs: Any) -> object:
        """Call the function itself."""
        return self.function(*args, **kwargs)

    def decoded(self, data: bytes) -> Any:
        """
        Return the decoded payload.

        Raises:
            DecodeError: it cannot be decoded.

        """
        try:
            return self._decode(data)
        except Exception as error:
            raise DecodeError(f"the payload cannot be decoded: {one_line(error)}") from error

    def inside(self, middleware: Sequence[Middleware]) -> Callable[[Context], object]:
        """Return a function that runs the handler for a message, inside the middleware."""
        if not middleware:
            return self._call

        def run(context: Context) -> object:
            return _inside(middleware, partial(self._call, context), context)

        return run

    def _without_context(self) -> Callable[[bytes], object] | None:
        if self._arity == "none":
            return lambda _: self.function()
        if self._arity != "payload":
            return None
        return (
            self.function
            if self.decode == "bytes"
            else lambda data: self.function(self.decoded(data))
        )

    def _call(self, context: Context) -> object:
        if self.of_payload is not None:
            return self.of_payload(context.message.data)
        if self._arity == "context":
            return self.function(context)
        return self.function(self.decoded(context.message.data), context)

    def run_batch(
        self, payloads: list[Any], contexts: list[Context], middleware: Sequence[Middleware]
    ) -> object:
        """Run the function for a batch, inside the middleware; return and raise what they do."""
        arguments: dict[str, tuple[object, ...]] = {
            "none": (),
            "context": (contexts,),
            "payload": (payloads,),
            "both": (payloads, contexts),
        }
        contexts[0].batch = [context.message for context in contexts]
        call = partial(self.function, *arguments[self._arity])
        return _inside(middleware, call, contexts[0])


#: The options of `Worker.batch` that other handlers do not have.
BATCH_OPTIONS: Final = ("max_messages", "max_wait")
#: The options of all handlers.
HANDLER_OPTIONS: Final = tuple(
    item.name
    for item in fields(Handler)
    if item.init
    and item.repr
    and item.name not in {"stream", "consumer", "unknown_task_grace", *BATCH_OPTIONS}
)
#: Those that belong to a task, and those that belong to a queue.
TASK_OPTIONS: Final = ("once", "reject_on", "retry", "retry_on", "soft_timeout", "timeout")
QUEUE_OPTIONS: Final = (
    *("ack", "ack_wait", "confirm", "dead_letters", "ensure", "exclusive", "key"),
    *("limit", "max_bytes", "park_after", "pool", "prefetch", "rate"),
)


def _inside(
    middleware: Sequence[Middleware], call: Callable[[], object], context: Context
) -> object:
    """Call a function inside the middleware; return and raise what they do."""
    for item in reversed(middleware):
        call = partial(item, call, context)
    return call()


def _acceptor(filters: Sequence[str]) -> Callable[[str], bool] | None:
    """Return a function that returns whether a subject is one of the filters; ``None``: there are none."""
    if not filters:
        return None
    fixed = tuple(item.partition("*")[0].partition(">")[0] for item in filters)
    if all(item == f"{start}>" for item, start in zip(filters, fixed, strict=True)):
        return lambda subject: subject.startswith(fixed)
    exact = frozenset(filters)
    start, dots = fixed[0], filters[0].count(".")
    if len(filters) == 1 and start + "*" + ".*" * (dots - start.count(".")) == filters[0]:
        # As of a queue: all tokens behind the start are wildcards.
        return lambda subject: subject.startswith(start) and subject.count(".") == dots

    def accepts(subject: str) -> bool:
        return subject in exact or (
            subject.startswith(fixed) and any(subject_matches(item, subject) for item in filters)
        )

    return accepts


def start_of(deliver: str | int | datetime) -> dict[str, Any]:
    """Return the fields of a consumer config for the start of a new consumer."""
    if isinstance(deliver, datetime):
        return {"deliver_policy": DeliverPolicy.BY_START_TIME, "opt_start_time": deliver}
    if isinstance(deliver, int) and not isinstance(deliver, bool) and deliver >= 1:
        return {"deliver_policy": DeliverPolicy.BY_START_SEQUENCE, "opt_start_seq": deliver}
    if deliver not in ("all", "new"):
        raise errors.InvalidOptionError(
            "deliver", deliver, "must be 'all', 'new', a sequence of at least 1, or a datetime"
        )
    return {"deliver_policy": DeliverPolicy(deliver)}


def _check(option: str, value: object, ok: bool, rule: str) -> None:
    """Raise `InvalidOptionError` for an option unless ``ok``."""
    if not ok:
        raise errors.InvalidOptionError(option, value, rule)


def check_name(option: str, value: object, check: Callable[[str], object]) -> None:
    """Check a name with a function of the package, whose error does not name the option."""
    _check(option, value, isinstance(value, str) and bool(value), "must be a name")
    try:
        check(cast("str", value))
    except errors.InvalidArgumentError as error:
        raise errors.InvalidOptionError(option, value, str(error)) from error


def check_bucket(option: str, value: object) -> None:
    """Check the name of a key-value bucket."""
    check_name(option, value, _check_bucket)


def _check_bucket(name: str) -> None:
    KeyValueConfig(bucket=name)


def check_target(target: object) -> None:
    """Check the option ``dead_letters``."""
    if target is None:
        return
    if callable(target):
        check_plain("dead_letters", target)
    else:
        check_name("dead_letters", target, check_stream_name)


def _exceptions(option: str, given: object) -> tuple[type[BaseException], ...]:
    """Return the exception classes of an option."""
    classes = tuple(given) if isinstance(given, Collection) else (given,)
    ok = isinstance(given, Collection) and all(
        isinstance(item, type) and issubclass(item, BaseException) for item in classes
    )
    _check(option, given, ok, "must be a list of exception classes, such as (ValueError,)")
    return classes


def _subjects(one: object, several: object) -> tuple[str, ...]:
    """Return the filters of a handler, given as one subject or as several."""
    is_list = isinstance(several, Collection) and not isinstance(several, (str, bytes))
    subjects: tuple[Any, ...] = tuple(cast("Collection[Any]", several)) if is_list else ()
    rule = "must be a list of subjects: give a single one as 'filter_subject'"
    ok = is_list and all(isinstance(subject, str) for subject in subjects)
    _check("filter_subjects", several, ok, rule)
    for subject in subjects:
        check_name("filter_subjects", subject, check_subject)
    if one is None:
        return subjects
    if not isinstance(one, str):
        raise errors.InvalidOptionError("filter_subject", one, "must be a subject")
    check_name("filter_subject", one, check_subject)
    rule = "excludes 'filter_subject': give one of them"
    _check("filter_subjects", several, subjects in ((), (one,)), rule)
    return (one,)


def check_plain(option: str, function: object) -> None:
    """Raise `InvalidOptionError` unless a function runs to its end when it is called."""
    rule, inner = "", function
    while isinstance(inner, partial):
        inner = inner.func
    if isinstance(inner, type):
        # Types of Python, such as list, are conversions; others would construct an object and drop it.
        if inner.__module__ != "builtins":
            rule = "must be a function, not a class"
    elif not callable(inner):
        rule = "must be a function"
    else:
        # A callable object is what its method is; a bound method is what its function is.
        call = (
            inner
            if hasattr(inner, "__code__")
            else getattr(inner, "__func__", type(inner).__call__)
        )
        if inspect.iscoroutinefunction(call) or inspect.isasyncgenfunction(call):
            rule = "must not be async: handlers block, and run in threads"
        elif inspect.isgeneratorfunction(call):
            rule = "must not be a generator: its code would not run"
    if rule:
        raise errors.InvalidOptionError(option, function, rule)


def _check_function(function: HandlerFunction) -> None:
    """Refuse what cannot run in a thread to its end."""
    check_plain("handler", function)
    if getattr(function, "__name__", "") == "<lambda>":
        rule = "must have a name: define it with def"
        raise errors.InvalidOptionError("handler", function, rule)


def check_pool(pool: str, function: Callable[..., object]) -> None:
    """Check that a function can run in a pool."""
    if pool not in {"threads", "processes"}:
        raise errors.InvalidOptionError("pool", pool, "must be 'threads' or 'processes'")
    if pool == "threads":
        return
    if os.name != "posix":
        raise errors.InvalidOptionError("pool", pool, "needs a POSIX system")
    if "<locals>" in getattr(function, "__qualname__", ""):
        raise errors.InvalidOptionError(
            "pool",
            pool,
            f"a process imports its handler: define {function.__qualname__} at the top level of a module",
        )


def _arity(function: HandlerFunction) -> str:
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
    if len(positional) > 2 or keywords:
        raise errors.InvalidOptionError(
            "handler", function, "must take at most two arguments: the payload and the context"
        )
    if len(positional) == 1:
        return "context" if is_context(positional[0].annotation) else "payload"
    return "both" if positional else "none"


def is_context(annotation: Any) -> bool:
    """Return whether an annotation is `Context`; it may be a string."""
    if isinstance(annotation, str) or hasattr(annotation, "__origin__"):
        text = str(annotation)
    else:
        text = getattr(annotation, "__name__", "")
    # Also ``list[Context]``, for batches.
    return text.rstrip("]").rpartition("[")[2].rpartition(".")[2] == Context.__name__
