"""Steps that another version, another program, or a process with another clock has recorded."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator
from contextlib import suppress
from datetime import datetime, timedelta
from typing import Any

import pytest
from fixtures.threads import SCALE, wait_until
from fixtures.worker import dead_letters, running

from jetstream_sync import (
    JetStream,
    KeyValue,
    KeyValueConfig,
    StreamNotFoundError,
    shared_connection,
)
from jetstream_sync.server import NatsServer
from jetstream_sync.workers import Backoff, Context, StepsChangedError, TaskError, Worker, steps
from jetstream_sync.workers.runtime import consumers

pytestmark = pytest.mark.timeout(110)

ONCE = Backoff(attempts=1)


@pytest.fixture
def worker(nats_server: NatsServer, js: JetStream) -> Iterator[Worker]:
    """A worker whose connection for sending, streams and buckets end with the test."""
    name = f"w{uuid.uuid4().hex}"
    yield Worker(nats_server.url, name=name, program="tests", dead_letters="DEAD")
    shared_connection(nats_server.url, name=name).close()
    for stream in ("DEAD", "TASKS", "KV_R", "KV_R-flows"):
        with suppress(StreamNotFoundError):
            js.delete_stream(stream)


@pytest.fixture
def recorded(js: JetStream) -> KeyValue:
    """The bucket of the steps."""
    return js.create_key_value(KeyValueConfig(bucket="R-flows"))


def charge() -> int:
    return 3


#: Values of steps that this version does not read, and one that it reads.
FOREIGN = {
    "sleep=": (
        *(b"soon", b"", b"nan", b"-1", b"1e999", b"9" * 400, b"\xff", b'{"until":1}'),
        b"0",
    ),
    "wait=ok": (
        *(b"", b"5", b"null", b"[]", b'["deadline"]', b'"deadline"', b"{}", b"\xff", b"[" * 5000),
        *(b'{"deadline":"soon"}', b'{"deadline":[]}', b'{"deadline":1e300}'),
        *(b'{"deadline":1e999}', b'{"deadline":%s}' % (b"9" * 400), b'{"signal":"\\ud800"}'),
        b'{"signal":1}',
    ),
    "charge": (*(b"", b"\xff", b"[" * 5000, b'"\\ud800"', b"1e999"), b"3"),
    "gather=": (*(b"", b"2", b"\xff", b"one"), b"1"),
    "gather=.m.0.0": (
        *(b"", b"5", b"null", b"[]", b"{}", b'{"id":"m"}', b'{"id":5,"status":null}'),
        b'{"id":"m","status":"SUCCESSFUL","value":1}',
    ),
    # A step that this version does not have.
    "bill": (b"1", b""),
}


@pytest.mark.parametrize("step", FOREIGN)
def test_a_step_of_another_version_is_given_back(worker, js, recorded, step):
    """The calls use no attempt, have no dead letter, and end in a process that reads the value."""
    *values, known = FOREIGN[step]
    calls = [f"f{number}" for number in range(len(values))]
    attempts: dict[str, list[int]] = {call: [] for call in calls}

    @worker.task(name="member", results="R", retry=ONCE)
    def member() -> int:
        return 1

    @worker.task(name="flow", results="R", steps=True, retry=ONCE)
    def flow(call: str, ctx: Context) -> int:
        attempts[call].append(ctx.attempt)
        if step.startswith("gather="):
            ctx.gather([member.call()])
        else:
            ctx.step(charge)
        if step.startswith("sleep="):
            ctx.sleep(0)
        if step.startswith("wait="):
            ctx.wait("ok", 60)
        return ctx.attempt

    for call, value in zip(calls, values, strict=True):
        recorded.put(f"{call}.{step}", value)
        if step == "gather=.m.0.0":
            recorded.put(f"{call}.gather=", b"1")
        elif step in {"sleep=", "wait=ok"}:
            recorded.put(f"{call}.charge", b"3")
    with running(worker):
        results = [flow.apply_async((call,), task_id=call) for call in calls]
        wait_until(lambda: all(len(found) > 1 for found in attempts.values()))
        assert not dead_letters(js)
        assert {result.status for result in results} <= {"READY", "RUNNING"}
        for call in calls:
            if known:
                recorded.put(f"{call}.{step}", known)
            else:
                js.get_stream("KV_R-flows").purge(f"$KV.R-flows.{call}.{step}")
        assert {result.get(30 * SCALE) for result in results} == {1}
    assert {number for found in attempts.values() for number in found} == {1}
    assert not dead_letters(js)


def test_a_step_that_no_process_reads_is_an_error_after_the_grace(worker, js, recorded):
    worker.queue("default", unknown_task_grace=1)

    @worker.task(name="flow", results="R", steps=True, retry=ONCE)
    def flow(ctx: Context) -> None:
        ctx.sleep(0)

    recorded.put("f.sleep=", b"soon")
    with running(worker):
        with pytest.raises(TaskError, match=r"'sleep=' has a value .* not read: b'soon'") as raised:
            flow.apply_async(task_id="f").get(30 * SCALE)
        assert StepsChangedError.__name__ in str(raised.value)
        wait_until(lambda: dead_letters(js) == 1)


@pytest.mark.usefixtures("recorded")
def test_keys_of_other_programs_are_no_steps(worker, nc):
    """Names that no key can have are not read."""

    @worker.task(name="flow", results="R", steps=True, retry=ONCE)
    def flow(ctx: Context) -> int:
        return ctx.step(charge)

    for name in ("a,b", "\xe4", "$", "a\\b"):
        nc.request(f"$KV.R-flows.f.{name}", b"1")
    with running(worker):
        assert flow.apply_async(task_id="f").get(30 * SCALE) == 3


@pytest.mark.parametrize("changes", ["before", "after"])
def test_a_clock_that_is_behind_ends_no_wait_early_or_late(worker, monkeypatch, changes):
    """The clock of the server counts: each wait is one message, also if the local clock is set back meanwhile."""
    behind = timedelta(hours=1)
    begun: list[float] = []

    class LateClock(datetime):
        """The clock of a machine that is behind."""

        @classmethod
        def now(cls, tz: Any = None) -> datetime:
            return datetime.now(tz) - behind

    @worker.task(name="flow", results="R", steps=True, retry=ONCE)
    def flow(ctx: Context) -> None:
        begun.append(time.monotonic())
        ctx.sleep(3)
        with suppress(TimeoutError):
            ctx.wait("ok", 3)

    def set_clock() -> None:
        real = time.time_ns
        monkeypatch.setattr(time, "time_ns", lambda: real() - int(behind.total_seconds() * 1e9))
        for module in (consumers, steps):
            monkeypatch.setattr(module, "datetime", LateClock, raising=False)

    if changes == "before":
        set_clock()
    with running(worker):
        call = flow.apply_async(task_id="f")
        wait_until(lambda: begun)
        if changes == "after":
            set_clock()
        call.get(40 * SCALE)
    assert len(begun) == 3
    if changes == "before":
        assert min(begun[1] - begun[0], begun[2] - begun[1]) > 1.9
