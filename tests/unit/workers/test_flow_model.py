"""
A model of flows: two workers that run the code of the package against a stream and a bucket in memory.

Each operation on the stream or the bucket is a point at which the other worker may go on, or at which a worker dies.
A worker that dies does nothing more; its message is delivered again.
"""

from __future__ import annotations

import itertools
import random
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from jetstream_sync.workers import Backoff, Context, Reject, Worker, chain, group
from jetstream_sync.workers.call_messages import (
    CallRecord,
    CallStatus,
)
from jetstream_sync.workers.calls import (
    CallStates,
)
from jetstream_sync.workers.eager import MemoryCalls, MemorySteps
from jetstream_sync.workers.errors import CallEndedError
from jetstream_sync.workers.flows import Flows
from jetstream_sync.workers.steps import RunOrder, order_of_run
from jetstream_sync.workers.testing import TestClient, _RecordedMsg

#: No schedule of the model takes more operations.
MOST_OPERATIONS = 4000


class Crash(BaseException):
    """The worker has died."""


@dataclass
class StoredMessage:
    """A message of a call in the stream of the model."""

    seq: int
    record: CallRecord
    deliveries: int = 0
    is_held: bool = False
    #: The step of which it is the schedule; it is published when nothing else can go on.
    waits: str | None = None


@dataclass
class World:
    """The stream and the bucket, and who may go on."""

    choose: Callable[[int], int]
    messages: dict[int, StoredMessage] = field(default_factory=dict)
    ids: set[str] = field(default_factory=set)
    stored: int = 0
    operations: int = 0
    #: The operations after which a worker dies.
    crashes: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.calls = ModelCalls(self)
        self.current = threading.local()

    def gate(self) -> None:
        """Let the other worker go on, or die; called before each operation of a worker."""
        worker = getattr(self.current, "worker", None)
        if worker is not None:
            worker.pause()

    def publish(self, record: CallRecord, msg_id: str, waits: str | None = None) -> None:
        self.gate()
        if msg_id not in self.ids:
            self.ids.add(msg_id)
            self.stored += 1
            self.messages[self.stored] = StoredMessage(self.stored, record, waits=waits)

    def deliverable(self) -> list[StoredMessage]:
        return [item for item in self.messages.values() if not item.is_held and item.waits is None]


class ModelSteps(MemorySteps):
    """Steps whose operations are those of the model."""

    def __init__(self, world: World) -> None:
        super().__init__()
        self._world = world

    def names(self, call: str, pattern: str = ">") -> list[str]:
        self._world.gate()
        return super().names(call, pattern)

    def load(self, call: str) -> dict[str, bytes]:
        self._world.gate()
        return super().load(call)

    def get(self, call: str, name: str) -> bytes | None:
        self._world.gate()
        return super().get(call, name)

    def record(self, call: str, name: str, value: bytes, replaces: bytes | None = None) -> bytes:
        self._world.gate()
        return super().record(call, name, value, replaces)

    def remove(self, call: str) -> None:
        self._world.gate()
        super().remove(call)

    def left(self) -> list[str]:
        """Return the calls that have steps."""
        return [call for call, steps in self._values.items() if steps]


class ModelCalls(MemoryCalls):
    """States with revisions, as in a bucket."""

    def __init__(self, world: World) -> None:
        super().__init__()
        self._world = world
        self._revisions: Counter[str] = Counter()
        self.steps = ModelSteps(world)
        self.flows = ModelFlows(world, self)

    def add(self, record: CallRecord, data: bytes | None = None) -> int:
        self._world.gate()
        return super().add(record, data)

    def read(self, call: str) -> CallRecord:
        self._world.gate()
        return super().read(call)

    def change(
        self,
        call: str,
        sent: CallRecord | None,
        change: Callable[[CallRecord], CallRecord],
        _revision: int = 0,
    ) -> tuple[CallRecord, int, int]:
        while True:
            self._world.gate()
            found, revision = self._records.get(call, sent), self._revisions[call]
            if found is None:
                raise CallEndedError(None)
            found = change(found)
            self._world.gate()
            if self._revisions[call] == revision:
                self._records[call] = found
                self._revisions[call] += 1
                return found, revision + 1, 0

    def store(self, record: CallRecord, revision: int) -> bool:
        self._world.gate()
        if self._revisions[record.id] != revision:
            return False
        self._records[record.id] = record
        self._revisions[record.id] += 1
        return True

    def all(self) -> dict[str, CallRecord]:
        """Return all records."""
        return dict(self._records)


class ModelFlows(Flows):
    """Sends calls to the stream of the model, as `QueueFlows` does."""

    def __init__(self, world: World, calls: CallStates) -> None:
        self._world = world
        self._calls = calls

    def states(self, results: str) -> CallStates:
        del results
        return self._calls

    def send(self, record: CallRecord) -> CallRecord | None:
        if not self._calls.add(record):
            found = self._calls.read(record.id)
            if not found.may_be_lost or any(
                item.record.id == record.id for item in self._world.messages.values()
            ):
                return found
        self._world.publish(record, record.id)
        return None

    def wake(self, record: CallRecord, key: str, at: float | None = None) -> None:
        assert record.flow is not None
        suffix = "" if at is None else f"#{self._world.stored}"
        waits = None if at is None else key
        self._world.publish(record, f"{record.id}#{key}#{record.flow.origin}{suffix}", waits)

    def has_message(self, record: CallRecord, seq: int) -> bool:
        self._world.gate()
        found = self._world.messages.get(seq)
        return found is not None and found.record.id == record.id


class ModelClient(TestClient):
    """Delivers a stored message, which has the same sequence and time each time."""

    message: StoredMessage

    def _message(self, handler: Any, payload: Any, subject: Any, *others: Any) -> Any:
        *_, attempt, outcome = others
        seq = self.message.seq
        reply = f"$JS.ACK.S.C.{attempt}.{seq}.{seq}.{seq}.0"
        return _RecordedMsg((subject.encode(), reply.encode(), None, payload), outcome)


class ModelSender:
    """A program that sends signals, in a thread; it does not die."""

    def __init__(self, world: World, signals: list[str]) -> None:
        self._world = world
        self._signals = signals
        self._go, self._paused = threading.Semaphore(0), threading.Semaphore(0)
        self.message: object | None = "signals"
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        self._paused.acquire()

    def go(self, *, dies: bool) -> None:
        """Go on until the next operation."""
        del dies
        self._go.release()
        self._paused.acquire()

    def pause(self) -> None:
        """Wait for `go`."""
        self._paused.release()
        self._go.acquire()

    def _run(self) -> None:
        self._world.current.worker = self
        self.pause()
        calls = self._world.calls
        for signal in self._signals:
            calls.flows.signal(calls, "f", signal, signal)
        self.message = None
        self._paused.release()


class ModelWorker:
    """A worker in a thread, which goes on when it is told to."""

    def __init__(self, world: World, worker: Worker) -> None:
        self._world = world
        self._client = ModelClient(worker, world.calls)
        self._go, self._paused = threading.Semaphore(0), threading.Semaphore(0)
        self.message: StoredMessage | None = None
        self.is_dead = False

    def start(self, message: StoredMessage) -> None:
        """Take a message; `go` begins with it."""
        message.is_held = True
        message.deliveries += 1
        self.message, self.is_dead = message, False
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        self._paused.acquire()

    def go(self, *, dies: bool) -> None:
        """Go on until the next operation."""
        self.is_dead = self.is_dead or dies
        self._go.release()
        self._paused.acquire()

    def pause(self) -> None:
        """Wait for `go`; a worker that is dead does nothing more."""
        if not self.is_dead:
            self._paused.release()
            self._go.acquire()
        if self.is_dead:
            raise Crash

    def _run(self) -> None:
        message = self.message
        assert message is not None
        self._world.current.worker = self
        kind = "lost"
        try:
            self.pause()
            place = message.record.flow
            assert place is not None
            self._client.message = message
            kind = self._client.deliver(
                place.handler,
                message.record.to_json(),
                subject=f"tasks.model.default.{place.handler}.{message.record.id}",
                attempt=message.deliveries,
            ).kind
            self.pause()  # before the acknowledgement
        except Crash:
            pass
        message.is_held = False
        if not self.is_dead and kind in {"ack", "parked", "dead"}:
            del self._world.messages[message.seq]
        self.message = None
        self._paused.release()


@dataclass
class Outcome:
    """What the functions of a model have seen."""

    runs: list[str] = field(default_factory=list)
    values: dict[str, set[Any]] = field(default_factory=dict)
    running: Counter[str] = field(default_factory=Counter)
    most: int = 0


def define(worker: Worker, outcome: Outcome) -> dict[str, Any]:
    """Define the tasks of the flows."""
    tokens = itertools.count()
    options: dict[str, Any] = {"results": "R", "retry": Backoff(attempts=3)}

    @worker.task(name="link", **options)
    def link(value: list[str], name: str) -> list[str]:
        outcome.runs.append(name)
        return [*value, name]

    @worker.task(name="member", **options)
    def member(name: str, fails: bool) -> str:
        outcome.runs.append(name)
        if fails:
            raise Reject("as it must")
        return name

    @worker.task(name="last", **options)
    def last(outcomes: list[dict[str, Any]]) -> list[str]:
        outcome.runs.append("last")
        return [item["status"] for item in outcomes]

    def effect(name: str) -> int:
        outcome.runs.append(name)
        return next(tokens)

    @worker.task(name="steps", steps=True, **options)
    def steps(ctx: Context) -> list[Any]:
        outcome.running["steps"] += 1
        outcome.most = max(outcome.most, outcome.running["steps"])
        try:
            for part in ("a", "b"):
                outcome.values.setdefault(part, set()).add(ctx.step(effect, part, name=part))
            ctx.sleep(1000)
            parts = ctx.gather([member.call("x", fails=False), member.call("y", fails=False)])
            outcome.values.setdefault("c", set()).add(ctx.step(effect, "c", name="c"))
            return parts
        finally:
            outcome.running["steps"] -= 1

    @worker.task(name="gathers", steps=True, **options)
    def gathers(ctx: Context) -> list[Any]:
        return ctx.gather([member.call("x", fails=False), member.call("y", fails=False)])

    @worker.task(name="waits", steps=True, **options)
    def waits(ctx: Context) -> list[Any]:
        return [ctx.wait("x"), ctx.step(effect, "a"), ctx.wait("y")]

    return worker.queues.tasks


def run_model(kind: str, choose: Callable[[int], int], crashes: set[int]) -> tuple[World, Outcome]:
    """Run a flow to its end; fail if it waits for ever, or runs without end."""
    worker, outcome = Worker(name="model", program="tests", dead_letters="DEAD"), Outcome()
    world = World(choose, crashes=crashes)
    tasks = define(worker, outcome)
    link, member, last = (tasks[name] for name in ("link", "member", "last"))
    if kind == "chain":
        flow = chain(link.call([], "1"), link.call("2"), link.call("3"))
    elif kind == "group":
        members = [member.call("x", fails=False), chain(link.call([], "1"), link.call("2"))]
        flow = group([*members, member.call("z", fails=True)], then=last.call(), on_error="call")
    else:
        flow = chain(tasks[kind].call())
    world.calls.flows.send(flow.plan("f"))
    actors: list[Any] = [ModelWorker(world, worker), ModelWorker(world, worker)]
    sender = ModelSender(world, ["x", "y"]) if kind == "waits" else None
    while True:
        ready = [item for item in actors if item.message is not None or world.deliverable()]
        if sender is not None and sender.message is not None:
            ready.append(sender)
        if not ready:
            schedules = [item for item in world.messages.values() if item.waits is not None]
            if not schedules:
                break
            for item in schedules:  # their time has come
                assert item.waits is not None
                call = item.record.id
                world.calls.steps.record(
                    call, item.waits, b"0", world.calls.steps.get(call, item.waits)
                )
                del world.messages[item.seq]
                world.publish(item.record, f"fired {item.seq}")
            continue
        chosen = ready[choose(len(ready))]
        if chosen.message is None:
            waiting = world.deliverable()
            chosen.start(waiting[choose(len(waiting))])
        world.operations += 1
        assert world.operations < MOST_OPERATIONS, "it runs without end"
        chosen.go(dies=world.operations in crashes)
        check_order(world)
    return world, outcome


def check_order(world: World) -> None:
    """P2: a call of the chain exists only if the one before has succeeded."""
    records = world.calls.all()
    for before, after in (("f-c1", "f-c2"), ("f-c2", "f"), ("f-m1-c1", "f-m1")):
        if after in records and before in records:
            assert records[before].status == CallStatus.SUCCESSFUL, (before, after)


def check_end(kind: str, world: World, outcome: Outcome, crashes: int) -> None:
    """All calls have ended, with one value each, and nothing is left."""
    records = world.calls.all()
    # P4: nothing waits, as no message is left.
    assert not world.messages
    assert all(record.has_ended for record in records.values()), records
    assert not world.calls.steps.left()
    counts = Counter(outcome.runs)
    if kind == "chain":
        assert records["f"].return_value == ["1", "2", "3"]
        expected = {"1", "2", "3"}
    elif kind == "group":
        # P3: the callback has the outcome of each member, also of the one that has failed.
        assert records["f"].return_value == ["SUCCESSFUL", "SUCCESSFUL", "FAILED"]
        expected = {"x", "1", "2", "z", "last"}
    elif kind == "waits":
        (step,) = set(outcome.runs)
        assert records["f"].return_value[::2] == ["x", "y"]
        expected = {step}
    elif kind == "gathers":
        assert records["f"].return_value == ["x", "y"]
        expected = {"x", "y"}
    else:
        assert records["f"].return_value == ["x", "y"]
        expected = {"a", "b", "c", "x", "y"}
        # P1: each run has seen the same value.
        assert all(len(values) == 1 for values in outcome.values.values()), outcome.values
        # One run at a time, as long as no worker has lost its lease.
        assert outcome.most <= 1 + crashes
    assert set(counts) == expected
    assert sum(counts.values()) - len(expected) <= crashes


KINDS = ("chain", "group", "steps", "gathers", "waits")


@pytest.mark.parametrize("kind", KINDS)
def test_each_operation_may_be_the_last_one_of_a_worker(kind):
    """A crash at each operation, with several orders of the workers."""
    for seed in range(3):
        for crash in itertools.count(1):
            world, outcome = run_model(kind, random.Random(seed).randrange, {crash})
            check_end(kind, world, outcome, 1)
            if crash > world.operations:
                break


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(seed=st.integers(0, 2**32), crashes=st.sets(st.integers(1, 120), max_size=4))
def test_workers_may_die_anywhere_in_any_order(kind, seed, crashes):
    """Several crashes, and any order of the workers."""
    world, outcome = run_model(kind, random.Random(seed).randrange, crashes)
    check_end(kind, world, outcome, len(crashes))


@pytest.mark.parametrize(
    ("began", "mine", "running", "exists", "expected"),
    [
        ((), (5, 1), False, False, RunOrder.RUN),
        ((5, 1), (5, 1), True, True, RunOrder.RUN),  # delivered again
        ((5, 1), (6, 2), False, True, RunOrder.RUN),  # the call has waited
        ((6, 2), (5, 1), False, True, RunOrder.DROP),
        ((6, 2), (5, 1), True, True, RunOrder.DROP),
        ((6, 2), (5, 1), True, False, RunOrder.RUN),  # a stream that was restored
        ((5, 1), (6, 2), True, True, RunOrder.WAIT),
        ((5, 1), (6, 2), True, False, RunOrder.RUN),
    ],
)
def test_a_message_is_dropped_only_after_a_later_one_has_begun(
    began, mine, running, exists, expected
):
    assert order_of_run(began, mine, running=running, exists=lambda: exists) is expected
