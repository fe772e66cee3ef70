"""
The queues of a worker: which tasks they have, and what is created for their calls.

A queue is a `Source` whose messages are calls: it has the consumer and the threads. Each task is a `Work`.
"""

from __future__ import annotations

import sys
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import datetime, timezone
from itertools import chain
from typing import TYPE_CHECKING, Any, Final, ParamSpec, TypeVar

from .. import StorageType, errors
from ..exact import exact
from .arguments import Arguments
from .call_messages import CallAddress, CallMessage, FlowPlace, call_id
from .calls import (
    URGENT,
    CallBucket,
    CallQueue,
    NewCall,
    SentCall,
    TaskState,
    sent_call,
    sent_record,
)
from .checks import check_option, check_plain, check_token
from .context import RunState
from .errors import NoCallError, Reject, misfit
from .flows import Flows, place_of
from .limits import LIMITS, LimitUse, SharedLimitRule, key_of
from .openers import Resource
from .options import OPTIONS, DefinedWorker, QueueOptions, TaskOptions, own_names, refuse_unknown
from .resources import create_missing, resources_of
from .retries import Backoff
from .schedules import LEASES, module_of
from .source import SOURCE_OPTIONS, Queue, Source, TaskWork, TickRule, Work, WorkOptions
from .tasks import Task, TaskResult
from .unique import UNIQUE, UniqueCalls, UniqueState

if TYPE_CHECKING:
    from .. import Connection, JetStream, JetStreamMsg
    from .call_messages import CallRecord
    from .context import Context

P = ParamSpec("P")
R = TypeVar("R")

#: Errors of sending after which a message is certainly not stored.
_NOT_STORED: Final = (
    errors.APIError,
    errors.NoStreamResponseError,
    errors.InvalidArgumentError,
    errors.MaxPayloadError,
)


#: What the names of the consumers of mirrors and of streams with sources begin with.
_COPYING: Final = ("JS_MIRROR_", "JS_SRC_")


class _UnknownCalls(RunState):
    """The states of calls of unknown tasks: any of the buckets may have them."""

    def __init__(self, states: Mapping[str, CallBucket]) -> None:
        self._states = states

    def has_ended(self, message_id: str, message: JetStreamMsg) -> bool:
        """Return whether a call has ended: a process that has the task was killed after that."""
        for states in self._states.values():
            with suppress(errors.KeyNotFoundError, NoCallError):
                if TaskState(states, "").has_ended(message_id, message):
                    return True
        return False

    def give_up(self, message: JetStreamMsg, reason: str) -> None:
        """Record that a call has failed."""
        call, sent = call_id(message), None
        with suppress(Reject):
            sent = sent_record(CallAddress(message.subject).task, call, message.data)
        for bucket, states in self._states.items():
            is_its = sent is not None and sent.flow is not None and sent.flow.results == bucket
            states.given_up(call, states.give_up(call, sent if is_its else None, reason))


class TaskQueues:
    """The queues of a worker; also puts the calls of its tasks into their streams."""

    def __init__(
        self,
        worker: DefinedWorker,
        *,
        complete: Callable[[dict[str, Any]], dict[str, Any]],
        add_source: Callable[[Source], object],
        sender: Callable[[], Connection],
    ) -> None:
        #: The worker.
        self.worker: DefinedWorker = worker
        # Checks and completes the options of a source.
        self._complete = complete
        self._add_source = add_source
        #: Returns the connection of this process for sending.
        self.sender: Callable[[], Connection] = sender
        #: The tasks by name.
        self.tasks: dict[str, Task[..., Any]] = {}
        self._queues: dict[str, Queue] = {}
        # The buckets of results by name.
        self._states: dict[str, CallBucket] = {}
        #: What follows from the end of calls.
        self.flows: QueueFlows = QueueFlows(self)

    # --- definitions ----------------------------------------------------------------------------

    def define(self, name: str, options: Mapping[str, Any]) -> None:
        """Define a queue; see `Worker.queue`."""
        name = exact(name)
        ok = name not in self._queues
        check_option("name", name, ok, "is the name of another queue already")
        for option, value in options.items():
            rule = f"belongs to the tasks of a queue: @worker.task({option}=...)"
            check_option(option, value, option not in own_names(WorkOptions), rule)
        refuse_unknown("queue", options, OPTIONS["queue"])
        where = QueueOptions(**options)
        own = {option: getattr(where, option) for option in SOURCE_OPTIONS}
        owner = self.worker
        owner.check_name()
        check_token("name", owner.name)
        concurrency = owner.concurrency if where.concurrency is None else where.concurrency
        tasks: dict[str, Work] = {}
        if where.urgent:
            for option in ("exclusive", "key", "limit", "rate"):
                check_option(option, own[option], not own[option], "excludes 'urgent'")
            limit = f"queue {name}"
            owner.limits[limit] = concurrency
            own["limit"] = limit
            # While calls wait, a thread always waits for the limit, which the others do not get.
            urgent = self._add_queue(f"{name}-{URGENT}", where, own, tasks, 2 * concurrency)
        queue = self._add_queue(name, where, own, tasks, concurrency)
        queue.calls.urgent = urgent.calls if where.urgent else None

    def _add_queue(
        self,
        name: str,
        where: QueueOptions,
        own: Mapping[str, Any],
        tasks: dict[str, Work],
        concurrency: int,
    ) -> Queue:
        calls = CallQueue(self, name, where.stream, where.subject)
        place: dict[str, Any] = {"name": name, "stream": where.stream, "consumer": calls.consumer}
        unknown = TaskWork(
            **place,
            function=_run_unknown,
            run_call=_run_unknown,
            retry=Backoff(),
            state=_UnknownCalls(self._states),
        )
        queue = self._queues[name] = Queue(
            **self._complete({**own, **place}),
            concurrency=concurrency,
            urgent=name.endswith(f"-{URGENT}") and where.urgent,
            calls=calls,
            filter_subject=calls.filter_subject,
            grace=where.unknown_task_grace,
            unknown=unknown,
            tasks=tasks,
            ticks={},
        )
        return queue

    def find(self, name: str, options: Mapping[str, Any] | None = None) -> Queue:
        """Return a queue; with options, define it if it is not."""
        if name not in self._queues:
            if name != "default" and options is None:
                rule = (
                    f"must be one of {sorted(self._queues)}: define it with worker.queue() before"
                )
                raise misfit(errors.InvalidOptionError("queue", name, rule))
            self.define(name, options or {})
        return self._queues[name]

    def add_task(self, function: Callable[..., Any], own: TaskOptions) -> Task[..., Any]:
        """Make a function a task of a queue; see `Worker.task`."""
        if isinstance(function, Work):  # decorated twice
            function = function.function
        check_plain("task", function)
        name = task_name(function) if own.name is None else own.name
        check_token("name", name)
        rule = "is not needed with 'results', which has the state of each call"
        check_option("once", own.once, own.results is None or own.once is None, rule)
        states, state, use = None, RunState(), None
        if own.results is not None:
            known = self._states.get(own.results)
            states = known or CallBucket(self.sender, own.results, self.create)
            place = FlowPlace(queue=own.queue, handler=name, results=own.results, steps=True)
            state = TaskState(states, name, place=place if own.steps else None)
        calls = self.find(own.queue).calls
        task: Task[..., Any] = self.worker.task_class(function, name, calls, states, self)
        if own.limit is not None:
            limits = self.worker.shared_limits
            rule = f"must be one of {sorted(limits)}: define it with limit(scope='cluster') before"
            check_option("limit", own.limit, own.limit in limits, rule)
            use = limit_use(limits[own.limit], own.limit_key, task)
        if own.unique is not None:
            task.unique = UniqueCalls(task, own.unique, own.unique_by, self.create)
            state = UniqueState(state, task.unique)
        options = {option: getattr(own, option) for option in own_names(WorkOptions)}
        options |= {"name": name, "function": function, "state": state, "shared_limit": use}
        options |= {"run_call": task.run_call, "run_payload": task.run_payload}
        task.work = self.add_work(own.queue, states, options)
        self.tasks[name] = task
        return task

    def add_work(self, queue: str, states: CallBucket | None, options: Mapping[str, Any]) -> Work:
        """Add what runs the calls of a task, a `TaskWork` with these fields, to a queue."""
        source = self.find(queue)
        calls, tasks, name = source.calls, source.tasks, options["name"]
        ok = name not in tasks and name not in self.tasks
        check_option("name", name, ok, "is the name of another task already")
        where = {"stream": calls.stream, "consumer": calls.consumer, "module": calling_module()}
        work = TaskWork(**{**where, **options})
        source.adopt(work)
        tasks[name] = work
        if len(tasks) == 1:
            self._add_source(source)
            if calls.urgent is not None:
                self._add_source(self._queues[calls.urgent.name])
        if states is not None:
            states.flows = self.flows
            self._states.setdefault(states.bucket, states)
        return work

    def set_ticks(self, task: Task[..., Any], name: str, rule: TickRule) -> None:
        """Have the calls of a schedule of a task follow a rule."""
        if rule != TickRule():
            self._queues[task.queue.name].ticks[task.name, name] = rule

    def rename(self, name: str) -> None:
        """Give the worker another name, also in the subjects and consumers of what is defined already."""
        name, owner = exact(name), self.worker
        if self._queues:
            check_token("name", name)
        owner.name = name
        if self._queues or owner.schedules:
            owner.check_name()
        for queue, source in self._queues.items():
            calls, tasks = source.calls, source.tasks
            before = calls.prefix
            calls.rename()
            for task_name, item in () if source.urgent else tasks.items():
                tasks[task_name] = replace(item, consumer=calls.consumer)
                if task_name in self.tasks:
                    self.tasks[task_name].work = tasks[task_name]
            renamed = replace(
                source,
                filter_subject=calls.filter_subject,
                filter_subjects=(),
                consumer=calls.consumer,
                unknown=replace(source.unknown, consumer=calls.consumer),
            )
            self._queues[queue] = renamed
            owner.handlers[:] = [renamed if item is source else item for item in owner.handlers]
            owner.schedules = [
                replace(item, subject=f"{calls.prefix}{item.subject.removeprefix(before)}")
                if item.subject.startswith(before)
                else item
                for item in owner.schedules
            ]

    def resources(self, nc: Connection) -> list[Resource]:
        """Return the configs of the streams and buckets."""
        streams = [queue.calls.resource(nc) for queue in self.in_use]
        schedules = [item for queue in self._queues.values() for item in queue.ticks.values()]
        leases = () if all(schedule.overlap for schedule in schedules) else (LEASES,)
        buckets = [states.resource() for states in self._states.values()]
        buckets += [states.steps.resource() for states in self._with_steps()]
        limits = [LIMITS] if self.worker.shared_limits else []
        keys = [UNIQUE] if any(task.unique for task in self.tasks.values()) else []
        return [*streams, *buckets, *leases, *limits, *keys]

    @property
    def in_use(self) -> list[Queue]:
        """The queues with tasks."""
        return [queue for queue in self._queues.values() if queue.tasks]

    def volatile_buckets(self, js: JetStream) -> list[str]:
        """Return the buckets of tasks with steps that are in memory, as sentences."""
        found = []
        names = [(states.bucket, states.steps.bucket) for states in self._with_steps()]
        for bucket in chain.from_iterable(names):
            with suppress(errors.BucketNotFoundError):
                if js.key_value(bucket).status().config.storage == StorageType.MEMORY:
                    text = "is in memory: a restart of the server forgets steps"
                    found.append(f"bucket {bucket!r} {text}")
        return found

    def copied_streams(self, js: JetStream) -> list[str]:
        """Return the streams of queues that another stream copies, as sentences; servers before 2.15 do not show that."""
        found = []
        for name in sorted({queue.stream for queue in self.in_use}):
            with suppress(errors.StreamNotFoundError, errors.PermissionsError):
                if any(item.startswith(_COPYING) for item in js.consumer_names(name)):
                    text = "has a mirror, or is a source: the server removes copied calls that are delayed"
                    found.append(f"stream {name!r} {text}")
        return found

    def _with_steps(self) -> list[CallBucket]:
        """Return the states of the calls of tasks with steps."""
        tasks = [task for task in self.tasks.values() if task.work.state.has_steps]
        return list({task.states.bucket: task.states for task in tasks if task.states}.values())

    # --- sending --------------------------------------------------------------------------------

    def create(self, nc: Connection, resources: Sequence[Resource]) -> None:
        """Create what is missing of some streams and buckets, unless the worker must not."""
        owner = self.worker
        if owner.ensure != "none":
            wanted = resources_of([], resources, owner.given, owner.num_replicas)
            create_missing(nc.jetstream(), wanted)

    def start(self, task: Task[P, R], record: CallRecord, at: datetime | None) -> TaskResult[R]:
        """Send a call, or run it at once; see `Worker.eager`."""
        call = NewCall(task.queue, task.name, task.states, record, at)
        eager = self.eager()
        if eager is not None:
            eager.put(call)
            return self.result(task, record.id)
        if task.unique is not None:
            task.queue.prepare()
            known = task.unique.claim(record)
            if known != record.id:
                return TaskResult(task, known, task.states)
        try:
            self.send(task, call)
        except _NOT_STORED:
            if task.unique is not None:
                with suppress(errors.Error):
                    task.unique.release(record.id, record.args, record.kwargs)
            raise
        return TaskResult(task, record.id, task.states)

    def send(self, task: Task[Any, Any], call: NewCall) -> None:
        """Send a call of a task."""
        del task
        self.put(call)

    def put(self, call: NewCall) -> CallRecord | None:
        """Store a call, and its message in the stream, unless the bucket has its id: return its record then."""
        states, message, is_new = call.states, call.message(), False
        queue = call.queue.of(call.record)
        if states is not None:
            queue.prepare()
            message = message._replace(revision=states.add(call.record, message.data))
            is_new = message.revision > 0
            if not is_new:
                record = states.read(call.record.id)
                if not record.may_be_lost or call.queue.find(call.task, record.id) is not None:
                    return record
                # The first sender was interrupted before the message was stored.
                call = call._replace(record=record, at=record.starts_at)
                queue, message = call.queue.of(record), call.message()
        try:
            known = queue.store(message)
            if known and states is not None and call.queue.find(call.task, call.record.id) is None:
                # The stream remembers the id of a call that has ended, whose record has expired.
                end = f"#{call.record.enqueued_at}"
                queue.store(message._replace(msg_id=message.msg_id + end))
        except _NOT_STORED:
            if states is not None and is_new:
                states.remove(call.record.id)
            raise
        return None

    def result(self, task: Task[P, R], call: str) -> TaskResult[R]:
        """Return the call of a task with an id."""
        eager = self.eager()
        return TaskResult(task, call, eager.calls if eager and task.states else task.states)

    def states_in(self, results: str) -> CallBucket:
        """Return the states of the calls of a bucket; raise `InvalidOptionError` if no task has it."""
        if results not in self._states:
            rule = "is no bucket of a task of this worker"
            raise misfit(errors.InvalidOptionError("results", results, rule))
        return self._states[results]

    def eager(self) -> Any:
        """Return what runs calls at once; ``None``: workers do."""
        return self.worker.eager_calls


def limit_use(
    rule: SharedLimitRule, key: Callable[[SentCall], Any] | None, task: Task[..., Any]
) -> LimitUse:
    """Return how a task uses a limit."""
    if key is None:
        return LimitUse(rule, lambda _: rule.name)
    arguments, value_of = Arguments(task.function), key

    def key_of_payload(data: bytes) -> str:
        call = sent_call(data)
        named = arguments.named(task.name, call.args, call.kwargs)
        return key_of(rule.name, value_of(call._replace(kwargs=named)))

    return LimitUse(rule, key_of_payload)


class QueueFlows(Flows):
    """Sends the calls of flows to the queues of a worker."""

    def __init__(self, queues: TaskQueues) -> None:
        self._queues = queues

    def states(self, results: str) -> CallBucket:
        """Return the states of the calls of a bucket."""
        return self._queues.states_in(results)

    def _queue(self, place: FlowPlace) -> CallQueue:
        check_token("handler", place.handler)
        return self._queues.find(place.queue).calls

    def send(self, record: CallRecord) -> CallRecord | None:
        """Send a new call; return its record if it was sent before."""
        place = place_of(record)
        states, queue = self.states(place.results), self._queue(place)
        return self._queues.put(NewCall(queue, place.handler, states, record))

    def wake(self, record: CallRecord, key: str, at: float | None = None) -> None:
        """Send a message that begins a call again; it is needed once in the life of the call, but for a time."""
        place = place_of(record)
        queue, suffix, time = self._queue(place), f"#{key}#{place.origin}", None
        if at is not None:
            time = datetime.fromtimestamp(at, timezone.utc)
            suffix += f"#{uuid.uuid4().hex}"
        address = queue.address(place.handler, record.id)
        queue.store(CallMessage(address, record.to_json(), address.now + suffix, time))

    def has_message(self, record: CallRecord, seq: int) -> bool:
        """Return whether a message of a call is stored."""
        place = place_of(record)
        return self._queue(place).has_message(place.handler, record.id, seq)

    def withdraw(self, record: CallRecord, *, later: bool = False) -> None:
        """As `Flows.withdraw`."""
        place = place_of(record)
        self._queue(place).withdraw(place.handler, record.id, later=later)


def program_of(module: str) -> str:
    """Return the name of the program to which a module belongs: its top package, or the name of its file."""
    return module_of(module).partition(".")[0]


def task_name(function: Callable[..., object]) -> str:
    """Return the name of a task: module and function, with ``-`` in place of dots."""
    name = getattr(function, "__qualname__", "").rpartition("<locals>.")[2]
    ok = name not in {"", "<lambda>"}
    check_option("name", None, ok, "is needed: the function has no name of its own")
    module = module_of(function.__module__).removesuffix(".py")
    return f"{module}.{name}".replace(".", "-")


def _run_unknown(_data: bytes, _context: Context) -> None:
    """Stand for the function of a task that is not known here."""
    raise LookupError("a call of an unknown task is not run")


def calling_module() -> str:
    """Return the name of the module outside of this package that calls it."""
    frame = sys._getframe()  # noqa: SLF001 - as namedtuple() does
    package = __name__.partition(".")[0]
    while frame.f_back and f"{frame.f_globals['__name__']}.".startswith(f"{package}."):
        frame = frame.f_back
    return str(frame.f_globals["__name__"])
