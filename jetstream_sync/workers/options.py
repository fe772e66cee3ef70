"""
The options of workers, tasks and queues, each declared once; those of handlers are in `source`.

`Worker` and its decorators take them as keywords. Type checkers see the types of `option_fields`, which are made
from these classes by ``tests/make_option_fields.py``; `shows_fields` shows them in signatures.

An unknown option is refused with the closest known one, or, if it is a word of Celery, with what to use here. The
page "From Celery" has the same table.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, fields
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final, TypeVar

from .. import KeyValueConfig, StreamConfig, errors
from ..exact import take_values
from ..options import hint_for
from .checks import (
    check_bucket,
    check_configs,
    check_count,
    check_option,
    check_plain,
    check_seconds,
    check_target,
    parse_address,
)
from .dead_letters import DeadLetterTarget
from .limits import SharedLimitRule
from .openers import Resource
from .schedules import Schedule
from .source import GRACE_S, HANDLER_OPTIONS, Middleware, Source, SourceOptions, WorkOptions
from .tracing import TRACE_MODES

if TYPE_CHECKING:
    from .. import Connection
    from .calls import SentCall
    from .context import Context
    from .resources import Wanted

#: The values of the option ``report``.
REPORTS: Final = ("messages", "stacks")

#: Where a word of Celery is used, the word, and what to use here.
CELERY_WORDS: Final[tuple[tuple[str, str, str], ...]] = (
    ("task", "acks_late", "the default: ack='before' of worker.queue() acknowledges first"),
    ("task", "autoretry_for", "retry_on="),
    ("task", "base", "middleware of the Worker"),
    ("task", "bind", "a parameter annotated with Context"),
    ("task", "default_retry_delay", "retry=Backoff(first=...)"),
    ("task", "dont_autoretry_for", "reject_on="),
    ("task", "ignore_result", "leave out results="),
    ("task", "max_retries", "retry=Backoff(attempts=...), the first attempt included"),
    ("task", "priority", "apply_async(priority='urgent'), with worker.queue(name, urgent=True)"),
    ("task", "rate_limit", "worker.limit(name, rate='10/s', scope='cluster'), and limit=name"),
    ("task", "reject_on_worker_lost", "the default: the call is delivered again"),
    ("task", "retry_backoff", "retry=Backoff(first=..., factor=2.0)"),
    ("task", "retry_backoff_max", "retry=Backoff(maximum=...)"),
    ("task", "retry_jitter", "retry=Backoff(jitter=...)"),
    ("task", "retry_kwargs", "retry=Backoff(...)"),
    ("task", "serializer", "arguments and return values are JSON"),
    ("task", "shared", "worker.task"),
    ("task", "soft_time_limit", "soft_timeout="),
    ("task", "store_errors_even_if_ignored", "results="),
    ("task", "throws", "reject_on="),
    ("task", "time_limit", "timeout="),
    ("task", "track_started", "results=, which always has the status RUNNING"),
    ("task", "typing", "arguments are always checked"),
    ("call", "connection", "the options of the Worker"),
    ("call", "exchange", "@worker.task(queue=...)"),
    ("call", "headers", "an argument of the task"),
    ("call", "ignore_result", "leave out results= of the task"),
    ("call", "link", "a call of the next task at the end of the task"),
    ("call", "link_error", "worker.on('dead_letter')"),
    ("call", "producer", "the options of the Worker"),
    ("call", "queue", "@worker.task(queue=...)"),
    ("call", "retry", "calls are sent once: repeat apply_async(task_id=...)"),
    ("call", "retry_policy", "calls are sent once: repeat apply_async(task_id=...)"),
    ("call", "routing_key", "@worker.task(queue=...)"),
    ("call", "serializer", "arguments are JSON"),
    ("call", "shadow", "@worker.task(name=...)"),
    ("call", "soft_time_limit", "@worker.task(soft_timeout=...)"),
    ("call", "time_limit", "@worker.task(timeout=...)"),
    ("task object", "retry", "raise Retry(delay=...)"),
    ("task object", "AsyncResult", "result_of(task_id)"),
    ("task object", "s", "a call of the next task at the end of the task"),
    ("task object", "si", "a call of the next task at the end of the task"),
    ("task object", "signature", "a call of the next task at the end of the task"),
    ("task object", "chunks", "a call of the task for each chunk"),
    ("task object", "map", "a call of the task for each item"),
    ("task object", "starmap", "a call of the task for each item"),
    ("task object", "send", "delay()"),
    ("task object", "send_at", "apply_async(eta=...)"),
    ("task object", "apply", "call the task itself, or use worker.eager()"),
    ("task object", "request", "a parameter annotated with Context"),
    ("result", "state", "status"),
    ("result", "result", "get()"),
    ("result", "revoke", "cancel()"),
    ("result", "ready", "status"),
    ("result", "successful", "status == 'SUCCESSFUL'"),
    ("result", "failed", "status == 'FAILED'"),
    ("result", "forget", "the ttl of the bucket"),
    ("result", "traceback", "the traceback of the TaskError of get()"),
)

#: Places that share the words of another one.
_PLACES: Final = {"queue": "task"}

F = TypeVar("F", bound=Callable[..., Any])


@dataclass(kw_only=True, eq=False, repr=False)
class WorkerOptions:
    """
    The options of `Worker`, which has them as attributes.

    Handlers and tasks take ``name``, ``program``, ``dead_letters`` and ``concurrency`` when they are defined; `run`
    uses the values of the others at its start.
    """

    name: str = "worker"
    """The name of the connection, recorded with each dead letter. The subjects of tasks and schedules contain it:
    a worker that has some needs a name that no other program of the account has."""
    dead_letters: DeadLetterTarget | None = None
    """The stream for dead letters of handlers that name no other; it is created if it does not exist. Or a
    function ``(message, reason) -> subject``; a stream with the subject must exist. ``None``: messages that
    are given up are dropped."""
    program: str = ""
    """The program to which the queues of tasks belong, which is recorded with their consumers: another program
    with the same ``name`` is refused. Empty or ``None``: the top package of the module that creates the worker, or
    the name of a script."""
    concurrency: int = 8
    """Number of threads of the queue ``default`` of tasks, and of others that name none."""
    drain_timeout: float = 25.0
    """How long running handlers may take when the worker stops, in seconds."""
    middleware: Sequence[Middleware] = ()
    """Functions called as ``middleware(call, context)`` around each run of a handler, the first one outermost.
    An exception in middleware is handled as one of the handler."""
    ensure: str | Sequence[StreamConfig | KeyValueConfig] = "consumer"
    """``"consumer"``: create missing consumers, and update the fields that a handler names, and create missing
    streams for dead letters and tasks and missing buckets; ``"none"``: all of them must exist. A list of
    configs: as ``"consumer"``, and these streams and buckets are created, too; one that exists with other
    values is only logged, see `Worker.setup`."""
    num_replicas: int | None = None
    """The number of replicas of the streams and buckets that are created and whose config names none;
    ``None``: 1."""
    trace: str | None = "link"
    """How a handler's span refers to the one that published the message, if an OpenTelemetry SDK is configured
    before `Worker.run`: ``"link"``: it starts a trace with a link; ``"parent"``: it is a child; ``None``:
    handlers are not traced."""
    http: str | None = None
    """The address ``HOST:PORT`` of health checks and metrics; ``None``: no server. Without a host, only
    programs on this machine can connect; port 0 is a free one, which is logged."""
    report: str | None = "messages"
    """What ``jsm worker running`` shows of the worker, to users of the account who may publish to
    ``jetstream-worker.>``: ``"messages"``: the messages whose handlers run; ``"stacks"``: also the stacks of
    their threads; ``None``: nothing."""
    connection: Mapping[str, Any] = field(default_factory=dict)
    """Other options of `jetstream_sync.connect`. Unless they say otherwise, the worker waits for
    its server at the start, reconnects without limit, and pings every 10 seconds."""

    given: list[Resource] = field(init=False, default_factory=list)

    def __post_init__(self) -> None:
        """Check the options."""
        take_values(self)
        self.program = "" if self.program is None else self.program
        self.connection = {} if self.connection is None else self.connection
        self.given = [] if isinstance(self.ensure, str) else list(self.ensure)
        check_configs("ensure", self.given)
        rule = "must be 'consumer', 'none' or a list of configs of streams and buckets"
        is_mode = not isinstance(self.ensure, str) or self.ensure in {"consumer", "none"}
        check_option("ensure", self.ensure, is_mode, rule)
        check_seconds("drain_timeout", self.drain_timeout)
        check_count("concurrency", self.concurrency)
        if self.num_replicas is not None:
            check_count("num_replicas", self.num_replicas)
        check_target(self.dead_letters)
        for option, ok, rule in (
            ("name", isinstance(self.name, str) and self.name != "", "must be a name"),
            ("program", isinstance(self.program, str), "must be a name"),
            ("connection", isinstance(self.connection, Mapping), "must be a dictionary"),
            ("http", isinstance(self.http, str | None), "must be HOST:PORT"),
            ("middleware", isinstance(self.middleware, list | tuple), "must be a list"),
        ):
            check_option(option, getattr(self, option), ok, rule)
        self.middleware = tuple(self.middleware)
        self.connection = dict(self.connection)
        for item in self.middleware:
            check_plain("middleware", item)
        for option, known in (("trace", TRACE_MODES), ("report", REPORTS)):
            value = getattr(self, option)
            ok = value is None or value in known
            check_option(option, value, ok, f"must be None or one of {known}")
        if self.http is not None:
            parse_address(self.http)


class DefinedWorker(WorkerOptions):
    """A worker with what it defines, for the modules that `Worker` uses."""

    handlers: list[Source]
    limits: dict[str, int]
    shared_limits: dict[str, SharedLimitRule]
    schedules: list[Schedule]
    process_setup: str
    eager_calls: Any
    task_class: type[Any]
    #: The name of a worker that was given none, and how to give one.
    default_name: str = "worker"
    name_example: str = 'Worker(name="shop")'

    def check_name(self) -> None:
        """Raise `InvalidOptionError` if the worker has no name of its own: programs that share it mix their calls."""
        rule = (
            "must be one that no other program of the account has, because the subjects of tasks and schedules "
            f"contain it: set {self.name_example}"
        )
        check_option("name", self.name, self.name != self.default_name, rule)

    def resources(self, nc: Connection) -> Sequence[Wanted]:
        """Return the streams and buckets of the worker."""
        raise NotImplementedError

    def new_eager_calls(self) -> Any:
        """Return what runs calls at once, an `EagerCalls`."""
        raise NotImplementedError

    def on_thread_end(self) -> None:
        """Do nothing; called at the end of each thread that runs handlers, for subclasses."""

    def has_committed(self, context: Context) -> bool:
        """
        Return whether a run that raised has committed all the same, and set the value of its context.

        Called in the thread of the handler. For subclasses.
        """
        del context
        return False


_created: Final[list[weakref.ref[DefinedWorker]]] = []


def register(worker: DefinedWorker) -> None:
    """Remember a worker as long as it exists."""
    _created.append(weakref.ref(worker, _created.remove))


def registered() -> list[DefinedWorker]:
    """Return the workers that exist, in the order of their creation."""
    return [worker for item in tuple(_created) if (worker := item()) is not None]


@dataclass(frozen=True, kw_only=True)
class TaskOptions(WorkOptions):
    """
    The options of `Worker.task`.

    Besides these, a task has those of runs, as a handler has: ``retry``, ``timeout``, ``soft_timeout``, ``reject_on``,
    ``retry_on`` and ``once``.
    """

    name: str | None = None
    """The name, unique in the worker; ``None``: module and name of the function, such as ``shop-mail-send`` for
    ``send`` in ``shop.mail``."""
    queue: str = "default"
    """The name of the queue, see `Worker.queue`."""
    limit: str | None = None
    """The name of a limit of all processes, see `Worker.limit`; a call that has to wait for it goes back to the
    server, and uses no attempt. Needs server 2.12. ``None``: none."""
    limit_key: Callable[[SentCall], str | int | None] | None = None
    """Returns a key of a call, such as ``lambda call: call.kwargs["tenant"]``: the calls of each key have the
    limit for themselves. ``call.kwargs`` has all arguments by name, as JSON. ``None``: all calls together."""
    unique: str | None = None
    """``"queued"``: while a call waits, another one with the same arguments is not sent, and the first one is
    returned; ``"until_done"``: also while it runs, or waits for its next attempt. Calls of a schedule do not count.
    ``None``: each call is sent."""
    unique_by: Sequence[str] = ()
    """The names of the parameters that make calls the same; empty: all of them."""
    results: str | None = None
    """A key-value bucket for the state and the return value of each call, for one day if it is created here;
    ``None``: there are no results. It costs a write when the call is sent, and two in the worker."""
    steps: bool = False
    """Whether the function has steps: `Context.step`, `Context.sleep`, `Context.wait` and `Context.gather`. They
    are kept in the bucket ``<results>-flows`` until the call has ended. It needs ``results``."""
    cron: str | None = None
    """When the server calls the task without arguments, as for `Worker.schedule`; ``None``: never."""
    every: float | timedelta | None = None
    """The same, as an interval in seconds."""
    time_zone: str | None = None
    """The time zone of ``cron``; ``None``: UTC."""
    missed: str = "last"
    """``"last"``: a call of the schedule that has not started is skipped if a newer one is stored; ``"all"``: all
    of them run."""
    overlap: bool = False
    """Whether a call of the schedule may run while another one runs, in any process; otherwise it is skipped, or
    with ``missed="all"`` it waits in its thread."""

    def __post_init__(self) -> None:
        """Check the options that no other part checks."""
        take_values(self)
        if self.results is not None:
            check_bucket("results", self.results)
        ok = not self.unique_by or self.unique is not None
        check_option("unique_by", self.unique_by, ok, "needs 'unique'")
        ok = self.limit_key is None or (callable(self.limit_key) and self.limit is not None)
        check_option(
            "limit_key", self.limit_key, ok, "must be a function of the call, and needs 'limit'"
        )
        check_option("steps", self.steps, self.steps in {True, False}, "must be True or False")
        has_results = self.results is not None
        check_option("steps", self.steps, not self.steps or has_results, "needs 'results'")
        ok = not self.steps or self.unique is None
        check_option("steps", self.steps, ok, "excludes 'unique': a call that waits has no message")
        for option, default in (("time_zone", None), ("missed", "last"), ("overlap", False)):
            value, is_scheduled = (
                getattr(self, option),
                self.cron is not None or self.every is not None,
            )
            check_option(option, value, is_scheduled or value == default, "needs 'cron' or 'every'")


@dataclass(frozen=True, kw_only=True)
class QueueOptions(SourceOptions):
    """
    The options of `Worker.queue`.

    Besides these, a queue has those of its consumer and its threads, as a handler has: ``prefetch``, ``ack_wait``,
    ``confirm``, ``dead_letters``, ``key``, ``ack``, ``park_after``, ``max_bytes``, ``exclusive``, ``limit``, ``rate``,
    ``pool`` and ``ensure``.
    """

    concurrency: int | None = None
    """Number of threads; ``None``: the ``concurrency`` of the worker."""
    stream: str = "TASKS"
    """The name of the stream, a work queue, which is created if it does not exist."""
    subject: str = "tasks"
    """The first token of its subjects."""
    urgent: bool = False
    """Whether calls may have ``priority="urgent"``, see `Task.apply_async`. They have a consumer of their own, and
    share the number of running calls, ``concurrency``, with the others. Excludes ``exclusive``, ``key``,
    ``limit`` and ``rate``."""
    unknown_task_grace: float = GRACE_S
    """Seconds for which a call is given back whose task the worker does not have, or whose arguments do not fit the
    task: during a deploy, another process may have the other version. Then it is a dead letter. This uses no attempt
    if the calls can wait in the stream, which needs server 2.12 and the subject ``parked.<stream>.>`` in a work queue
    with ``allow_msg_schedules``. Otherwise each return uses an attempt, and the time begins when the call is sent."""

    def __post_init__(self) -> None:
        """Take the options by value."""
        take_values(self)


def own_names(kind: type[Any]) -> tuple[str, ...]:
    """Return the names of the options that a class declares."""
    return tuple(item.name for item in fields(kind) if item.init)


#: All options of each place, by the name of the place for error messages.
OPTIONS: Final[Mapping[str, Collection[str]]] = {
    "worker": own_names(WorkerOptions),
    "handler": (*HANDLER_OPTIONS, "stream", "consumer"),
    "task": own_names(TaskOptions),
    "queue": own_names(QueueOptions),
}


def hint_of(place: str, word: str) -> str | None:
    """Return what a word of Celery is called here; ``None``: it is no such word."""
    return next(
        (hint for where, name, hint in CELERY_WORDS if (where, name) == (place, word)), None
    )


def refuse_unknown(place: str, given: Mapping[str, object], known: Collection[str]) -> None:
    """Raise `InvalidOptionError` for an unknown option, with the right one."""
    for option, value in given.items():
        if option in known:
            continue
        hint = hint_of(_PLACES.get(place, place), option)
        rule = f"this option of Celery is here: {hint}" if hint else hint_for(option, known)
        raise errors.InvalidOptionError(option, value, f"unknown option; {rule}")
