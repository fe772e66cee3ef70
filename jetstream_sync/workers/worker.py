"""Workers: handlers, and how they are defined, checked and started."""

from __future__ import annotations

import faulthandler
import os
import queue
import signal
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import chain
from typing import TYPE_CHECKING, Any, Concatenate, Final, ParamSpec, TypeVar, overload

from .. import StreamConfig, connect, errors, shared_connection
from ..exact import exact, masked
from ..exit_status import ExitStatus, exit_status
from ..records import shows_fields
from ..subjects import subject_matches
from .call_messages import payload_of
from .checks import check_count, check_option, check_plain, check_token, unwrapped
from .context import Context
from .dead_letters import DeadLetters
from .events import RunEvent, StopOnce, signals
from .limits import SharedLimitRule
from .logs import log
from .observer import EVENT_KINDS, Hook, Observer, WorkerEventKind
from .operations.health import Monitor
from .operations.heartbeat import SupervisorLink, supervisor_link
from .options import (
    OPTIONS,
    DefinedWorker,
    QueueOptions,
    TaskOptions,
    WorkerOptions,
    refuse_unknown,
    register,
)
from .queues import TaskQueues, calling_module, program_of
from .resources import SetupStep, Wanted, name_of, occupied_buckets, plan_resources, resources_of
from .run import WorkerRun, existing_objects_kept, monitoring
from .runtime.consumers import plan_consumer, stranded_calls, unknown_calls
from .runtime.membership import check_handler
from .schedules import Schedule, ScheduleState, check_schedules, delete_schedules, find_schedules
from .source import (
    HANDLER_OPTIONS,
    SOURCE_OPTIONS,
    Handler,
    HandlerFunction,
    Source,
    TickRule,
    refuse_to_run,
)
from .tasks import Task, TaskDecorator
from .verify import unverified, verify_calls

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from .. import Connection
    from .eager import EagerCalls
    from .metrics import GaugeSnapshot, Snapshot
    from .option_fields import HandlerFields, QueueFields, TaskFields, WorkerFields
    from .testing import Outcome, TestClient

#: Options of the connection that differ from the defaults of `connect`.
_CONNECTION: Final[dict[str, Any]] = {
    "retry_on_failed_connect": True,
    "max_reconnect_attempts": -1,
    "reconnect_time_wait": 0.5,
    "ping_interval": 10.0,
}


P = ParamSpec("P")
R = TypeVar("R")


@dataclass(frozen=True, kw_only=True)
class CheckResult:
    """What `Worker.check` found."""

    warnings: list[str]
    """What is allowed and probably not intended."""
    errors: list[str]
    """What would keep the worker from running."""
    status: int
    """The exit status with which `Worker.run` would end; 0: it would run."""


class Worker(DefinedWorker):
    """
    A set of handlers, and the process that runs them.

    Creating a worker opens no connection.

    Args:
        servers: as for `jetstream_sync.connect`; ``None``: those of the ``context`` of ``connection``, else
            of the environment variable ``NATS_URL``, else the local server.
        **options: the attributes of `WorkerOptions`, where they are explained.

    Raises:
        InvalidOptionError: an option is unknown or out of range.

    """

    #: The class of tasks, for subclasses.
    task_class: type[Task[..., Any]] = Task
    #: The class of `queues`, for subclasses.
    queues_class: type[TaskQueues] = TaskQueues
    #: ``MODULE:FUNCTION``, called in each process of a handler before its module is imported; for
    #: subclasses. Empty: none.
    process_setup: str = ""

    @shows_fields((WorkerOptions, OPTIONS["worker"]))
    def __init__(
        self, servers: str | Sequence[str] | None = None, **options: Unpack[WorkerFields]
    ) -> None:
        refuse_unknown("worker", options, OPTIONS["worker"])
        super().__init__(**options)  # type: ignore[arg-type]  # None is the default of some
        self.servers = servers
        self.program: str = self.program or program_of(calling_module())
        #: The handlers and queues, in the order of their definition.
        self.handlers: list[Source] = []
        #: The limits by name: how many handlers may run at a time.
        self.limits: dict[str, int] = {}
        #: The limits of all processes by name.
        self.shared_limits: dict[str, SharedLimitRule] = {}
        #: The schedules, in the order of their definition.
        self.schedules: list[Schedule] = []
        #: What runs calls at once, see `eager`; ``None``: workers do.
        self.eager_calls: Any = None
        #: The queues of the tasks.
        self.queues: TaskQueues = self.queues_class(
            self, complete=self._complete, add_source=self._add_source, sender=self._sender
        )
        self._hooks: dict[WorkerEventKind, list[Hook]] = {}
        self._monitor: Monitor | None = None
        # The connection for sending calls, and what it was chosen by.
        self._sending: tuple[object, Connection | None] = (None, None)
        # Events for the calling thread of run(); the worker is stopped before it runs, too.
        self._events: queue.SimpleQueue[RunEvent] = queue.SimpleQueue()
        register(self)

    @shows_fields((Handler, HANDLER_OPTIONS))
    def handler(
        self, *, stream: str, consumer: str | None = None, **options: Unpack[HandlerFields]
    ) -> Callable[[HandlerFunction], Handler]:
        """
        Return a decorator that makes a function handle the messages of a consumer, or of a group.

        The function is called with the decoded payload and a `Context`; it may take only one of them, or
        none. When it returns, the message is acknowledged; when it raises, the message is delivered
        again after a delay, or becomes a dead letter after its last attempt.

        Args:
            stream: the name of the stream, which must exist, or be in an ``ensure``.
            consumer: the durable name of the consumer, a pull consumer with ack policy ``explicit``;
                ``None``: the name in ``group``.
            **options: the attributes of `Handler`, where they are explained, from ``filter_subject`` to
                ``ensure``.

        Raises:
            InvalidOptionError: an option is out of range, the function cannot be a handler, or another
                handler has the same consumer.

        """
        refuse_unknown("handler", options, OPTIONS["handler"])
        name = consumer or options.get("group")
        return self._decorator({**options, "stream": stream, "consumer": name})

    @shows_fields((Handler, HANDLER_OPTIONS))
    def batch(
        self,
        *,
        stream: str,
        consumer: str,
        max_messages: int = 100,
        max_wait: float = 1.0,
        **options: Unpack[HandlerFields],
    ) -> Callable[[HandlerFunction], Handler]:
        """
        Return a decorator that makes a function handle the messages of a consumer in batches.

        The function is called with a list of decoded payloads, and a list of their contexts in the same
        order; it may take only one of them. When it returns, all messages are acknowledged. When it
        raises `BatchError`, those that are named in it fail, and the others are acknowledged; any other
        error fails all. Each message has its own lease, attempts, delays and dead letter. Middleware
        runs once for a batch, with the context of its first message.

        Args:
            stream: as for `handler`.
            consumer: as for `handler`.
            max_messages: the size of the largest batch.
            max_wait: seconds after its first message in which a batch may become full; 0: it has the
                messages that are there.
            **options: as for `handler`, except ``ack``, ``key``, ``limit``, ``once``, ``pool`` and ``rate``.
                ``prefetch`` is a number of messages, by default ``max_messages``.

        Raises:
            InvalidOptionError: as `handler`.

        """
        refuse_unknown("handler", options, OPTIONS["handler"])
        batches = {"max_messages": max_messages, "max_wait": max_wait}
        return self._decorator({**options, **batches, "stream": stream, "consumer": consumer})

    @shows_fields((QueueOptions, OPTIONS["queue"]))
    def queue(self, name: str, **options: Unpack[QueueFields]) -> None:
        """
        Define a queue for tasks: one consumer, and threads that its tasks share.

        The queue ``default`` needs no definition, unless it has options. Tasks that name a queue follow its
        definition. With ``urgent=True``, calls may start before the others.

        Args:
            name: the name, a token of the subject ``<subject>.<worker>.<queue>.<task>.<id>`` of the calls.
            **options: the attributes of `QueueOptions`, where they are explained.

        Raises:
            InvalidOptionError: an option is out of range, the name is no token of a subject, or the queue is
                defined already.

        """
        self.queues.define(name, options)

    @overload
    def task(self, function: Callable[Concatenate[Context, P], R], /) -> Task[P, R]: ...

    @overload
    def task(self, function: Callable[P, R], /) -> Task[P, R]: ...

    @overload
    def task(self, **options: Unpack[TaskFields]) -> TaskDecorator: ...

    @shows_fields((TaskOptions, OPTIONS["task"]))  # type: ignore[misc]
    def task(self, function: Callable[..., Any] | None = None, /, **options: Any) -> Any:
        """
        Make a function a task: `Task.delay` has a worker call it. A decorator, with and without arguments.

        The arguments are sent as JSON. The first call of a process creates the stream and the bucket if
        they do not exist, unless ``ensure="none"``. Failed calls are retried as messages of a handler. A
        parameter that is annotated with `Context` gets the context of the run, and is no argument; type
        checkers know that if it is the first one.

        Args:
            function: the function.
            **options: the attributes of `TaskOptions`, where they are explained.

        Raises:
            InvalidOptionError: as `handler`, the name is no token of a subject, or the option belongs to the
                queue.

        """
        for option, value in options.items():
            rule = f"belongs to the queue of the task: worker.queue(name, {option}=...)"
            of_queue = option in {*SOURCE_OPTIONS, "concurrency"}
            check_option(option, value, option in OPTIONS["task"] or not of_queue, rule)
        refuse_unknown("task", options, OPTIONS["task"])
        own = TaskOptions(**options)

        def decorate(function: Callable[..., Any]) -> Task[..., Any]:
            task = self.queues.add_task(function, own)
            if own.cron is not None or own.every is not None:
                self.schedule(
                    task,
                    cron=own.cron,
                    every=own.every,
                    time_zone=own.time_zone,
                    missed=own.missed,
                    overlap=own.overlap,
                )
            return task

        return decorate if function is None else decorate(function)

    def resources(self, nc: Connection) -> list[Wanted]:
        """
        Return the streams and buckets of the worker.

        :meta private:
        """
        given = [*self.given, *(item for handler in self.handlers for item in handler.ensure)]
        return resources_of(self.handlers, self.queues.resources(nc), given, self.num_replicas)

    def setup(
        self, *, check: bool = False, report: Callable[[SetupStep], object] = lambda _step: None
    ) -> list[SetupStep]:
        """
        Create the streams, buckets and consumers of the worker, and update those that differ.

        Of a stream or bucket, the fields that a config in ``ensure`` sets are compared; of a consumer,
        those that its handler names. Nothing is deleted.

        Args:
            check: change nothing.
            report: called with each step before it is made.

        Returns:
            The steps; empty: everything fits.

        Raises:
            Error: the server cannot be reached, or it refused a step; the steps before it are made.

        """
        steps = []
        with self._connect_once() as nc:
            js = nc.jetstream()
            consumers = (
                plan_consumer(js, handler) for handler in self.handlers if handler.group is None
            )
            for step in chain(plan_resources(js, self.resources(nc)), consumers):
                if step is None:
                    continue
                steps.append(step)
                report(step)
                if not check:
                    step.run()
        return steps

    def _decorator(self, options: dict[str, Any]) -> Callable[[HandlerFunction], Handler]:
        """Return a decorator that adds a handler with these options, defined in the calling module."""
        options = {"module": calling_module(), **self._complete(options)}

        def decorate(function: HandlerFunction) -> Handler:
            handler = Handler(function=function, **options)
            self._add_source(handler)
            return handler

        return decorate

    def _complete(self, options: dict[str, Any]) -> dict[str, Any]:
        """Return the options of a source with the defaults of the worker; check its limit."""
        limit = options.get("limit")
        rule = f"must be one of {sorted(self.limits)}: define it with limit() before"
        if limit in self.shared_limits:
            rule = "is a limit of all processes: they are for tasks, @worker.task(limit=...)"
        check_option("limit", limit, limit is None or limit in self.limits, rule)
        given = options.get("dead_letters")
        return {**options, "dead_letters": self.dead_letters if given is None else given}

    def _add_source(self, source: Source) -> None:
        for other in self.handlers:
            ok = (other.stream, other.consumer) != (source.stream, source.consumer)
            rule = f"is used by handler {other.name} already"
            check_option("consumer", source.consumer, ok, rule)
        self.handlers.append(source)

    def schedule(
        self,
        name: str | Task[..., Any],
        *,
        subject: str | None = None,
        cron: str | None = None,
        every: float | timedelta | None = None,
        at: datetime | None = None,
        time_zone: str | None = None,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        missed: str = "last",
        overlap: bool = False,
        schedule_name: str | None = None,
    ) -> Callable[[Callable[[], bytes]], Callable[[], bytes]]:
        """
        Have the server publish a message, or call a task, at given times (ADR-51).

        With a name, this returns a decorator: the function returns the payload, and is called when the worker
        starts. With a task, the server calls the task, and each call has an id of its own.

        The server keeps the schedule, also while no worker runs. A worker that starts replaces a schedule that
        differs. Once a minute, it stores a schedule again that is missing or has another rule. It deletes none,
        see `delete_schedules`. With ``ensure="none"`` it leaves them all alone.

        The stream needs ``allow_msg_schedules`` and the subject ``schedules.<stream>.>``, and handlers of
        that stream need filters without it; the stream of tasks has both.

        Args:
            name: the name, unique in the worker; or a task.
            subject: the subject of the messages; a stream must have it. Not for tasks.
            cron: six fields, the first one for seconds; five fields, as in a crontab, for the second 0; or
                a name such as ``@daily``. Needs server 2.14.
            every: the interval, in seconds, at least 1. Needs server 2.14.
            at: the time of a single message, with a time zone. Needs server 2.12. A time in the past is
                not stored again.
            time_zone: the time zone of ``cron``; ``None``: UTC.
            args: the positional arguments of the task.
            kwargs: the keyword arguments of the task.
            missed: of a task with ``cron`` or ``every``: ``"last"``: a call that has not started is skipped if
                a newer one of the schedule is stored; ``"all"``: all calls run. A call that has started keeps
                its attempts and its dead letter.
            overlap: of such a task: whether a call may run while another one of the schedule runs, in any
                process. Otherwise it is skipped, or waits if it must not be skipped.
            schedule_name: the name of the schedule of a task; ``None``: that of the task.

        Raises:
            InvalidOptionError: not exactly one of ``cron``, ``every`` and ``at`` is given, a rule or a name is
                invalid, or the name is used already.
            TaskArgumentsError: the arguments do not fit the task.

        """
        times: dict[str, Any] = {"cron": cron, "every": every, "at": at, "time_zone": time_zone}
        if isinstance(name, Task):
            check_option("missed", missed, missed in {"last", "all"}, "must be 'last' or 'all'")
            check_option("overlap", overlap, isinstance(overlap, bool), "must be True or False")
            ticks = TickRule() if at is not None else TickRule(missed, overlap)
            call = name, exact(schedule_name or name.name), args, kwargs or {}
            self._schedule_call(call, times, ticks)
            return lambda function: function
        if subject is None:
            rule = "is needed unless a task is scheduled"
            raise errors.InvalidOptionError("subject", subject, rule)

        def decorate(function: Callable[[], bytes]) -> Callable[[], bytes]:
            if not isinstance(function, type):
                check_plain("schedule", function)
            self._add_schedule(Schedule(function=function, name=name, subject=subject, **times))
            return function

        return decorate

    def _schedule_call(
        self,
        call: tuple[Task[..., Any], str, Sequence[Any], Mapping[str, Any]],
        times: Mapping[str, Any],
        rule: TickRule,
    ) -> None:
        task, name, args, kwargs = call
        record, _ = task.record(args, kwargs)
        data = payload_of(record, whole=False)

        def payload() -> bytes:
            return data

        payload.__module__ = unwrapped(task.function).__module__
        subject = task.queue.address(task.name, name).now
        self._add_schedule(Schedule(function=payload, name=name, subject=subject, **times))
        self.queues.set_ticks(task, name, rule)

    def _add_schedule(self, schedule: Schedule) -> None:
        self.check_name()
        ok = all(item.name != schedule.name for item in self.schedules)
        check_option("name", schedule.name, ok, "is used by another schedule already")
        self.schedules.append(schedule)

    def find_schedules(self) -> list[ScheduleState]:
        """
        Return the schedules that the worker defines, and those that are stored under its name.

        Stored ones are found in the streams of the handlers and of the schedules.

        Raises:
            StreamNotFoundError: a stream does not exist.
            Error: the server cannot be reached, or it refused.

        """
        with self._connect_once() as nc:
            return find_schedules(nc.jetstream(), self.name, self.schedules, self.handlers)

    def delete_schedules(self, schedules: Sequence[ScheduleState]) -> None:
        """
        Delete stored schedules; a running worker that defines one stores it again.

        Args:
            schedules: schedules that `find_schedules` returned.

        Raises:
            StreamNotFoundError: a stream does not exist.
            Error: the server cannot be reached, or it refused.

        """
        with self._connect_once() as nc:
            delete_schedules(nc.jetstream(), schedules)

    def on(self, kind: WorkerEventKind) -> Callable[[Hook], Hook]:
        """
        Return a decorator that has a function called with a `WorkerEvent` at each event of a kind.

        Several functions are called in the order of their definition. An error that one raises is
        logged once, and changes nothing else.

        Args:
            kind: ``"start"``: `run` was called; ``"ready"``: messages are requested; ``"message"``: a
                handler is about to run; ``"success"``: it returned; ``"failure"``: it raised;
                ``"dead_letter"``: a message is given up, its dead letter is stored; ``"lease_lost"``:
                the server delivers the message again; ``"drain"``: the worker is stopping; ``"stop"``:
                it has stopped, and the connection is closed.

        Raises:
            InvalidOptionError: there is no such event.

        Threads:
            Functions for messages run in handler threads, the others and those for ``"lease_lost"`` in
            the thread that called `run`, which must not be kept busy.

        """
        known = ", ".join(EVENT_KINDS)
        check_option("kind", kind, kind in EVENT_KINDS, f"must be one of {known}")

        def decorate(hook: Hook) -> Hook:
            check_plain("hook", hook)
            self._hooks.setdefault(kind, []).append(hook)
            return hook

        return decorate

    def limit(
        self,
        name: str,
        concurrency: int | None = None,
        *,
        rate: str | None = None,
        scope: str = "process",
    ) -> None:
        """
        Define a limit for handlers or tasks that use the same thing, such as a mail server.

        With the scope ``"process"``, all handlers and queues of the process with this ``limit`` handle that
        number of messages at a time. A message that waits for another one occupies its thread, and its lease is
        renewed.

        With the scope ``"cluster"``, the limit holds for the tasks with this ``limit`` in all processes, also of
        other programs with a limit of this name. A call that has to wait goes back to the server, and occupies
        neither a thread nor a place of ``max_ack_pending``. See :doc:`/howto/task-control`.

        Args:
            name: the name for the option ``limit``; with the scope ``"cluster"``, a token of a subject.
            concurrency: how many messages may be handled at a time, at least 1; ``None``: any number, with a rate.
            rate: how many calls may start, such as ``"10/s"``, ``"600/m"`` or ``"1000/h"``; only for the scope
                ``"cluster"``, since handlers and queues have a ``rate`` of their own. ``None``: any number.
            scope: ``"process"`` or ``"cluster"``.

        Raises:
            InvalidOptionError: a value is out of range, or the name is defined already.

        """
        name, scope = exact(name), exact(scope)
        ok = name not in self.limits and name not in self.shared_limits
        check_option("name", name, ok, "is the name of another limit already")
        check_option(
            "scope", scope, scope in ("process", "cluster"), "must be 'process' or 'cluster'"
        )
        if scope == "cluster":
            check_token("name", name)
            rule = SharedLimitRule(name=name, concurrency=concurrency, rate=rate)
            self.shared_limits[name] = rule
            return
        hint = "needs scope='cluster'; handlers and queues have an option 'rate'"
        check_option("rate", rate, rate is None, hint)
        check_count("concurrency", concurrency)
        assert concurrency is not None
        self.limits[name] = concurrency

    def stop(self) -> None:
        """Stop a running worker as SIGTERM does; any thread, and a signal handler, may call it."""
        self._events.put(RunEvent(stops=True))

    def gauges(self) -> list[GaugeSnapshot]:
        """Return no other numbers for the metrics; for subclasses. Any thread may call it."""
        return []

    def run(self, *, burst: bool = False) -> int:
        """
        Handle messages until SIGTERM, SIGINT or `stop`.

        In the main thread, signal handlers are set for the duration of the call: SIGTERM and SIGINT
        stop the worker, a second one stops it at once, and SIGQUIT writes the stacks of all threads to
        standard error. In another thread, signals are left alone.

        Args:
            burst: stop also when all consumers are empty: nothing is pending, and nothing waits for an
                acknowledgement, also of other workers. Messages that the server publishes later are left: calls
                with a time, long retries that are parked, and calls that do not fit this worker.

        Returns:
            0: stopped, and every acknowledgement of the run is confirmed. 1: a handler or a confirmation took
            longer than ``drain_timeout``, an acknowledgement was given up at any time, or a thread crashed.
            2: an option or a consumer does not fit. 3: a stream or consumer does not exist. 5: the login or
            a permission was refused, or JetStream is disabled. The reason is logged.

        Raises:
            InvalidOptionError: there are no handlers, an option of the connection is invalid, or a process
                of a handler imports a module that calls this.

        """
        refuse_to_run()
        rule = "the worker has none: add one with @handler"
        check_option("handlers", self.handlers, bool(self.handlers), rule)
        observer = Observer(
            self.name, self._hooks, lambda call: self._events.put(RunEvent(call=call))
        )
        link = supervisor_link()
        for handler in self.handlers:
            handler.check_processes(1 if link is None else link.count)
        # A supervisor serves the reports of its processes, and reports to systemd.
        monitor = Monitor(self.gauges, os.environ if link is None else {})
        stop_once = StopOnce(self._events)
        on_stop = self._events.put if link is None else stop_once
        http = self.http if link is None else None
        where = f"worker {self.name!r}"
        with self._signals(on_stop), monitoring(http, monitor, where) as may_run:
            if not may_run:
                return ExitStatus.USAGE
            self._monitor = monitor
            try:
                observer.emit("start")
                if link is not None:
                    link.report = monitor.snapshot
                    link.on_command(stop_once.command)
                status = self._run_connected(observer, monitor, link, burst=burst)
                observer.emit("stop", status=status)
            finally:
                self._monitor = None
        if link is not None:
            link.ignore_signals()
        return status

    def snapshot(self) -> Snapshot | None:
        """Return health and numbers of the running worker; ``None``: it does not run."""
        monitor = self._monitor
        return None if monitor is None else monitor.snapshot()

    def _run_connected(
        self, observer: Observer, monitor: Monitor, link: SupervisorLink | None, *, burst: bool
    ) -> int:
        try:
            with self._connect() as nc, existing_objects_kept():
                return WorkerRun(self, nc, self._events, observer, monitor, link).run(burst=burst)
        except errors.InvalidArgumentError:
            raise
        except errors.Error as error:
            # Also a login that is refused while the worker is being prepared.
            log.error("worker %r cannot run: %s", self.name, error)  # noqa: TRY400
            return exit_status(error)
        finally:
            if link is not None:
                link.beat()  # with the final report

    def check(self, processes: int = 1) -> CheckResult:
        """
        Check that the worker can run: connection, streams, consumers and options.

        No message is read, and nothing is changed on the server.

        Args:
            processes: the number of processes that will run the worker at a time, at least 1.

        """
        warnings: list[str] = []
        problems: list[tuple[str, errors.Error]] = []

        @contextmanager
        def collected(where: str) -> Iterator[None]:
            try:
                yield
            except errors.Error as error:
                problems.append((where, error))

        if not self.handlers:
            problems.append(("", errors.InvalidOptionError("handlers", [], "the worker has none")))
        may_change = self.ensure != "none"
        with collected(""), self._connect_once() as nc:
            js = nc.jetstream()
            absent = self._check_resources(nc, warnings, problems)
            for handler in self.handlers:
                with collected(f"{handler.name}: "):
                    handler.check_processes(processes)
                    if may_change and f"stream {handler.stream!r}" in absent:
                        continue  # it is created at start
                    found = check_handler(js, handler, may_change=may_change, processes=processes)
                    warnings += [f"{handler.name}: {item}" for item in found]
            for find in (unknown_calls, stranded_calls):
                with collected(""):
                    problems += [("", errors.Error(text)) for text in find(js, self.handlers)]
            for schedule in self.schedules:
                with collected(f"schedule {schedule.name}: "):
                    changes = schedule.clock_changes()
                    warnings += [f"schedule {schedule.name}: {change}" for change in changes]
                    if may_change and self._has_subject(nc, absent, schedule.subject):
                        continue  # its stream is created at start
                    check_schedules(js, self.name, [schedule], self.handlers)
        return CheckResult(
            warnings=warnings,
            errors=[f"{where}{error}" for where, error in problems],
            status=exit_status(problems[0][1]) if problems else ExitStatus.OK,
        )

    def verify(self) -> list[str]:
        """
        Compare the calls of tasks with their messages, their states and their dead letters.

        A call with results has exactly one of these: a stored message; the state ``SUCCESSFUL``, ``CANCELLED`` or
        ``EXPIRED``; the state ``FAILED`` and a dead letter, as long as none was requeued or discarded. A task of
        ``django.tasks`` that has raised is ``FAILED`` without one. A call
        whose sender was killed before its message was stored is reported, too. Of calls without results, messages
        that have a dead letter, or that no consumer knows, are reported. Without a message and a dead letter, such a
        call has either ended or is lost; the stored data cannot tell which. Nothing is changed; what disagrees is
        read again two seconds later. All states and all dead letters of the stream are read.

        Returns:
            What disagrees, as sentences; empty: nothing is lost.

        Raises:
            Error: the server cannot be reached, or it refused.

        """
        with self._connect_once() as nc:
            return verify_calls(nc.jetstream(), self.queues.tasks, self.queues.in_use)

    def unverified(self) -> str:
        """
        Return what `verify` cannot know, as a sentence; empty: there is nothing.

        :meta private:
        """
        return unverified(self.queues.in_use)

    def _has_subject(self, nc: Connection, names: Collection[str], subject: str) -> bool:
        """Return whether one of the named streams of the worker will have a subject."""
        return any(
            isinstance(config, StreamConfig)
            and name_of(config) in names
            and any(subject_matches(item, subject) for item in config.subjects or ())
            for config, _ in self.resources(nc)
        )

    def _check_resources(
        self, nc: Connection, warnings: list[str], problems: list[tuple[str, errors.Error]]
    ) -> set[str]:
        """Return the names of streams and buckets that do not exist, and report them."""
        absent = set()
        js, resources = nc.jetstream(), self.resources(nc)
        occupied = occupied_buckets(js, resources)
        for name, text in occupied.items():
            problems.append((f"{name}: ", errors.BucketExistsError.found_here(text)))
        warnings += [*self.queues.volatile_buckets(js), *self.queues.copied_streams(js)]
        for step in plan_resources(js, resources):
            if step.name in occupied:
                continue
            if step.action != "create":
                warnings.append(f"setup would {step}")
                continue
            absent.add(step.name)
            if self.ensure != "none":
                warnings.append(f"{step.name} does not exist: it is created at start")
            else:
                missing = errors.StreamNotFoundError.found_here("does not exist")
                problems.append((f"{step.name}: ", missing))
        return absent

    @contextmanager
    def eager(self, *, raises: bool = True) -> Iterator[None]:
        """
        Have calls of tasks run at once, in the calling thread and without a server, for tests.

        For the duration of the block, `Task.delay` runs the middleware and the function, with the attempts of the
        task and without delays; also for a time in the future. Results are kept in this process.

        Args:
            raises: whether the error of a call that has failed is raised; otherwise it is in its result.

        """
        before = self.eager_calls
        calls = self.eager_calls = self.new_eager_calls()
        calls.raises = raises
        try:
            yield
        finally:
            self.eager_calls = before

    def new_eager_calls(self) -> EagerCalls:
        """
        Return what runs calls at once.

        :meta private:
        """
        from .eager import EagerCalls  # noqa: PLC0415 - for tests only
        from .testing import TestClient  # noqa: PLC0415 - for tests only

        return EagerCalls(lambda calls: TestClient(self, calls), self.queues.tasks)

    def test_client(self) -> TestClient:
        """Return a client that delivers messages to the handlers without a server, for tests."""
        from .testing import TestClient  # noqa: PLC0415 - for tests only

        return TestClient(self)

    def _sender(self) -> Connection:
        """Return the connection of this process for sending calls of tasks."""
        # The look-up of a shared connection masks and compares all options, and a context is read each time.
        before, nc = self._sending
        if (
            nc is None
            or nc.is_closed
            or before != (os.getpid(), self._servers, self.name, self.connection)
            or "context" in self.connection
        ):
            chosen = masked((os.getpid(), self._servers, self.name, {**self.connection}))
            nc = shared_connection(self._servers, **{"name": self.name, **self.connection})
            self._sending = chosen, nc
        return nc

    def replay(self, stream: str, seq: int) -> Outcome:
        """
        Run the handler or the task of a dead letter in this process, and acknowledge nothing.

        The middleware runs, too; what the handler publishes with its context is recorded and not sent, and no
        state of a call is changed. Its other effects are real.

        Args:
            stream: the stream of dead letters.
            seq: the sequence of the dead letter in it.

        Raises:
            MessageNotFoundError: there is no such message, or the original of a dead letter without data is
                not stored any more.
            InvalidOptionError: the message is no dead letter, or one of a consumer without a handler here.
            Error: the server cannot be reached, or it refused.

        """
        with self._connect_once() as nc:
            letter, msg = DeadLetters(nc.jetstream()).read_copy(stream, seq)
        # The stream of an elastic group has a name of its own.
        source = next(
            (
                item
                for item in self.handlers
                if item.consumer == letter.consumer and (item.group or item.stream == letter.stream)
            ),
            None,
        )
        found = None if source is None else source.route(letter.subject)
        if source is None or found is None:
            rule = (
                f"is for {letter.subject} of consumer {letter.consumer}, which has no handler here"
            )
            raise errors.InvalidOptionError("seq", seq, rule)
        client = self.test_client()
        if source.max_messages is not None:
            return client.deliver_batch(found, [msg.data])[0]
        return client.deliver(found, msg.data, subject=letter.subject, headers=msg.headers)

    def _connect(self, **overrides: Any) -> Connection:
        options = masked({**_CONNECTION, "name": self.name, **self.connection, **overrides})
        return connect(self._servers, **options)

    @property
    def _servers(self) -> str | Sequence[str] | None:
        if self.servers or "context" in self.connection:  # its login is for its own servers
            return self.servers or None
        return os.environ.get("NATS_URL")

    def _connect_once(self) -> Connection:
        return self._connect(retry_on_failed_connect=False, allow_reconnect=False)

    @contextmanager
    def _signals(self, put: Callable[[RunEvent], object]) -> Iterator[None]:
        """Pass on signals for the duration of a block, if this is the main thread."""
        is_main = threading.current_thread() is threading.main_thread()
        quits = getattr(signal, "SIGQUIT", None) if is_main else None
        if quits is not None:
            # Standard error may be replaced by an object.
            with suppress(OSError, ValueError, AttributeError):
                faulthandler.register(quits, all_threads=True)
        stops = (signal.SIGTERM, signal.SIGINT)
        try:
            with signals(stops, lambda number: put(RunEvent(stops=True, signal_number=number))):
                yield
        finally:
            if quits is not None:
                faulthandler.unregister(quits)
