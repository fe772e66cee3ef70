"""
A call that fails in its second half leaves nothing of the first half at the server.

Each call that starts a thread or takes several steps fails at each of its steps in turn: no thread can be
started, a request is refused, a reply is lost, or a Ctrl-C arrives while it waits. The server must then
have the subscriptions and consumers of before.
"""

from __future__ import annotations

import gc
import json
import random
import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any
from urllib.request import urlopen

import pytest
from fixtures.ctrl_c import interrupted, points, sends_ctrl_c
from fixtures.internals import core_of
from fixtures.threads import SCALE, wait_until

import jetstream_sync
from jetstream_sync import (
    Connection,
    JetStream,
    KeyValue,
    ObjectStore,
    PullConsumer,
    Stream,
    errors,
)
from jetstream_sync.server import NatsServer

# Consumer groups, which are among the calls, need this version.
pytestmark = pytest.mark.server(">=2.11")


class World:
    """A connection and what the calls use, and the view of another connection."""

    def __init__(self, server: NatsServer, monitor: str) -> None:
        self.server = server
        self._monitor = monitor
        self.nc: Connection = jetstream_sync.connect(
            server.url, error_cb=lambda _: None, name="halves"
        )
        self.js: JetStream = self.nc.jetstream(timeout=5 * SCALE)
        self.stream: Stream = self.js.create_stream(
            name="S", subjects=["s.>"], storage="memory", allow_direct=True
        )
        for number in range(3):
            self.js.publish(f"s.{number}")
        self.consumer: PullConsumer = self.stream.create_consumer(durable_name="C")
        self.kv: KeyValue = self.js.create_key_value(bucket="B", storage="memory")
        self.kv.put("a", b"1")
        self._other: Connection = jetstream_sync.connect(server.url, name="other")
        self._admin: JetStream = self._other.jetstream()
        # A context keeps the inbox of its futures for two seconds.
        self._admin.create_object_store(bucket="O", storage="memory").put("a", b"1")
        self.store: ObjectStore = self.js.object_store("O")
        self.group = self.js.consumer_groups.create_elastic("S", "G", 2, {"s.*": [1]})
        self.group.add_members("m")
        # Kept by the connection for later calls.
        self.consumer.fetch(1)
        core_of(self.nc).events.error(ValueError("starts the thread for events"))
        self.before = self.seen()

    def close(self) -> None:
        """Close both connections."""
        self.nc.close()
        self._other.close()

    def seen(self) -> tuple[list[str], list[str], list[str]]:
        """Return the subscriptions, consumers and held locks that the server has."""
        with urlopen(f"http://{self._monitor}/connz?subs=1", timeout=5) as response:
            clients = json.load(response)["connections"]
        subscriptions = [
            re.sub(r"_INBOX\.\S+", "inbox", subject)
            for client in clients
            if client["name"] == "halves"
            for subject in client.get("subscriptions_list", ())
        ]
        consumers = [
            f"{stream} {info.config.durable_name or 'ephemeral'} {info.num_waiting}"
            for stream in ("S", "KV_B", "OBJ_O", "S-G")
            for info in self._admin.list_consumers(stream)
        ]
        return sorted(subscriptions), sorted(consumers), self._admin.key_value("B").keys()

    def check(self, what: str) -> None:
        """Fail if the server has more or less than before."""
        self.nc.flush(5 * SCALE)
        deadline = time.monotonic() + 5 * SCALE
        while (seen := self.seen()) != self.before:
            if time.monotonic() > deadline:
                before, self.before = self.before, seen
                pytest.fail(f"{what}: {seen} instead of {before}")
            time.sleep(0.01)


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    """A connection to a server of this module."""
    with NatsServer(config='http: "127.0.0.1:-1"') as server:
        found = re.search(r"http monitor on (\S+)", server.log())
        assert found
        made = World(server, found[1])
        try:
            yield made
        finally:
            made.close()


def ignore(_: object) -> None:
    """Do nothing."""


def _stop(started: Any) -> None:
    """End what a call has returned."""
    for name in ("close", "stop", "unsubscribe", "release"):
        end = getattr(started, name, None)
        if end is not None:
            end()
            break
    if hasattr(started, "wait_closed"):
        started.wait_closed(5 * SCALE)


def _lock(world: World) -> object:
    lock = world.kv.lock("lock", ttl=5)
    assert lock.acquire(timeout=0)
    return lock


def _publish_async(world: World) -> None:
    with suppress(errors.TimeoutError):
        world.nc.jetstream().publish_async("s.x").result(5)


#: Each call: it returns what has to be ended.
CALLS: dict[str, Callable[[World], Any]] = {
    "subscribe": lambda w: w.nc.subscribe("halves"),
    "subscribe with a callback": lambda w: w.nc.subscribe("halves", cb=ignore),
    "subscribe in a queue": lambda w: w.nc.subscribe("halves", queue="q", cb=ignore),
    "request_many": lambda w: w.nc.request_many("s.none", max_messages=2),
    "add_service": lambda w: w.nc.add_service("second", "1.0.0"),
    "messages": lambda w: w.consumer.messages(max_messages=1, auto_in_progress=True),
    "consume": lambda w: w.consumer.consume(ignore, max_messages=1, auto_in_progress=True),
    "ordered messages": lambda w: w.stream.ordered_consumer().messages(),
    "ordered consume": lambda w: w.stream.ordered_consumer().consume(ignore),
    "ordered new": lambda w: w.stream.ordered_consumer(deliver_policy="new"),
    "push": lambda w: w.js.subscribe("s.*", cb=ignore, idle_heartbeat=1),
    "push durable": lambda w: w.js.subscribe("s.*", durable="D", queue="D", cb=ignore),
    "ordered subscription": lambda w: w.js.subscribe("s.*", ordered_consumer=True, cb=ignore),
    "pull_subscribe": lambda w: w.js.pull_subscribe("s.*"),
    "kv.watch": lambda w: w.kv.watch(),
    "kv.watch with a callback": lambda w: w.kv.watch(cb=ignore),
    "kv.replica": lambda w: w.kv.replica(),
    "kv.keys": lambda w: w.kv.keys(),
    "kv.lock": _lock,
    "objects.watch": lambda w: w.store.watch(cb=ignore),
    "objects.get": lambda w: w.store.get_bytes("a"),
    "group.consume": lambda w: w.group.consume("m", ignore, ack_wait=0.5),
    "snapshot": lambda w: w.stream.snapshot(),
}

Fault = Callable[[Callable[..., Any], tuple[Any, ...], dict[str, Any]], Any]


def _raise(error: BaseException) -> Fault:
    def fault(*_: object) -> None:
        raise error

    return fault


def _lost_reply(error: BaseException) -> Fault:
    """Return a fault that happens after the server has done what it was asked."""

    def fault(
        function: Callable[..., Any], args: tuple[Any, ...], options: dict[str, Any]
    ) -> object:
        function(*args, **options)
        raise error

    return fault


@contextmanager
def failing(world: World, step: str, number: int, fault: Fault) -> Iterator[list[int]]:
    """Let one step of the block fail, the n-th one; yield the numbers of the steps."""
    steps: list[int] = []
    patch = pytest.MonkeyPatch()

    def failing_function(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **options: Any) -> object:
            steps.append(len(steps) + 1)
            if len(steps) == number:
                return fault(function, args, options)
            return function(*args, **options)

        return call

    if step == "thread":
        patch.setattr(threading.Thread, "start", failing_function(threading.Thread.start))
    else:
        core = core_of(world.nc)
        parts = [core.requests] if step == "request" else [core, core.internal]
        changed = failing_function(getattr(parts[0], step))
        for part in parts:
            patch.setattr(part, step, changed)
    try:
        yield steps
    finally:
        patch.undo()


_REFUSED = errors.APIError(503, 10008, "JetStream system temporarily unavailable")
_NO_THREAD = RuntimeError("can't start new thread")

#: Each fault, and the step that fails.
FAULTS: dict[str, tuple[str, Callable[[], Fault]]] = {
    "no thread": ("thread", lambda: _raise(_NO_THREAD)),
    "refused": ("request", lambda: _raise(_REFUSED)),
    "no responders": ("request", lambda: _raise(errors.NoRespondersError("s"))),
    "lost reply": ("request", lambda: _lost_reply(errors.TimeoutError("no reply"))),
    "interrupted": ("request", lambda: _lost_reply(KeyboardInterrupt())),
    "flush": ("flush", lambda: _raise(errors.TimeoutError("no reply"))),
    "interrupted flush": ("flush", lambda: _lost_reply(KeyboardInterrupt())),
}


#: Those that every run of the tests tries.
_USUAL = {"no thread", "lost reply"}
#: A consumer with a name of the user may have been created by this call or by another program. It stays
#: when the reply is lost: the call can be repeated.
_STAYS = {("push durable", "lost reply"), ("push durable", "interrupted")}


def fail_at_each_step(world: World, what: str, fault: str, call: Callable[[], Any]) -> None:
    """Call a function until no step is left that could fail, and check the server after each call."""
    step, make = FAULTS[fault]
    number = 0
    while True:
        number += 1
        started = None
        with (
            suppress(jetstream_sync.Error, RuntimeError, KeyboardInterrupt),
            failing(world, step, number, make()) as steps,
        ):
            started = call()
        _stop(started)
        if (what, fault) in _STAYS:
            with suppress(errors.NotFoundError):
                world.js.delete_consumer("S", "D")
        world.check(f"{what}, {fault} {number}")
        if len(steps) < number:
            break


@pytest.mark.parametrize(
    "fault",
    [pytest.param(fault, marks=[] if fault in _USUAL else [pytest.mark.full]) for fault in FAULTS],
)
@pytest.mark.parametrize("call", CALLS)
def test_nothing_stays_behind(world, call, fault):
    """After a failed call, the server has what it had before."""
    fail_at_each_step(world, call, fault, lambda: CALLS[call](world))


@pytest.mark.parametrize("fault", ["no thread", "flush", "interrupted flush"])
def test_an_endpoint_that_could_not_be_added(world, fault):
    """The service goes on without it, and can add it afterwards."""
    before = world.before
    with world.nc.add_service("halves", "1.0.0") as service:
        wait_until(lambda: len(world.seen()[0]) == len(before[0]) + 9)
        world.before = world.seen()
        step, make = FAULTS[fault]
        for number in (1, 2):
            with (
                suppress(jetstream_sync.Error, RuntimeError, KeyboardInterrupt),
                failing(world, step, number, make()) as steps,
            ):
                service.add_endpoint("halves", ignore, workers=2)
            if len(steps) >= number:
                world.check(f"{fault} {number}")
        assert not service.is_stopped
        if not service.info().endpoints:
            service.add_endpoint("halves", lambda request: request.respond(b"ok"))
            assert world.nc.request("halves", timeout=5).data == b"ok"
    world.before = before
    world.check("the service was stopped")


#: Calls whose object may be complete, and not yet returned, when the Ctrl-C arrives.
_HANDED_ON = {"messages", "consume", "kv.keys", "objects.get", "group.consume", "snapshot"}
#: Number of points of each call at which it is interrupted.
_SAMPLE = 12


@sends_ctrl_c
@pytest.mark.full
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.parametrize("call", [name for name in CALLS if name not in _HANDED_ON])
def test_a_ctrl_c_leaves_nothing_behind(world, call):
    """A Ctrl-C at any moment of a call, before it returns, leaves nothing at the server."""
    moments = points(lambda: _stop(CALLS[call](world)))
    for moment in sorted(random.sample(range(1, moments), min(_SAMPLE, moments - 1))):
        made: list[Any] = []
        interrupted(lambda made=made: made.append(CALLS[call](world)), moment)  # type: ignore[misc]
        for started in made:
            _stop(started)
        if call == "push durable":
            with suppress(errors.NotFoundError):
                world.js.delete_consumer("S", "D")
        gc.collect()
        world.check(f"{call}, interrupted at {moment} of {moments}")
