"""Tasks: functions whose calls are messages."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from fixtures.threads import SCALE, wait_until
from fixtures.worker import WorkerProgram, running

from jetstream_sync import (
    InvalidOptionError,
    JetStream,
    KeyNotFoundError,
    NoStreamResponseError,
    ServerTooOldError,
    StreamNotFoundError,
    TimeoutError,
    shared_connection,
)
from jetstream_sync.server import NatsServer
from jetstream_sync.workers import (
    Backoff,
    Context,
    Reject,
    TaskArgumentsError,
    TaskError,
    Worker,
)

pytestmark = pytest.mark.timeout(110)


@pytest.fixture
def worker(nats_server: NatsServer, js: JetStream) -> Iterator[Worker]:
    """A worker whose connection for sending, stream and bucket end with the test."""
    found = Worker(nats_server.url, name=uuid.uuid4().hex, program="tests", dead_letters="DEAD")
    yield found
    shared_connection(nats_server.url, name=found.name).close()
    for stream in ("DEAD", "TASKS", "KV_RESULTS"):
        with suppress(StreamNotFoundError):
            js.delete_stream(stream)


def test_a_call_runs_in_a_worker_and_has_a_result(worker, js):
    """The stream and the bucket are created; the result is found by id; a direct call is one."""
    order_ids = []

    @worker.task(results="RESULTS")
    def bill(order_id: int, *, total: float = 1.5, ctx: Context) -> dict[str, Any]:
        order_ids.append(order_id)
        return {"total": total, "attempt": ctx.attempt}

    call = bill.delay(order_id=17)
    assert call.status == "READY"
    with running(worker):
        assert call.get(10 * SCALE) == {"total": 1.5, "attempt": 1}
        assert bill.delay(18, total=2).get(10 * SCALE) == {"total": 2, "attempt": 1}
        assert bill.result_of(call.id).status == "SUCCESSFUL"
        wait_until(lambda: js.get_stream("TASKS").info().state.messages == 0)
    assert order_ids == [17, 18]
    assert not call.cancel()
    with pytest.raises(KeyNotFoundError):
        _ = bill.result_of("unknown").status


@dataclass
class Point:
    x: int


@pytest.mark.parametrize(
    "send",
    [
        lambda task: task.delay(),
        lambda task: task.delay(1, 2),
        lambda task: task.delay(total=1),
        lambda task: task.delay(order_id=object()),
    ],
)
def test_wrong_arguments_are_refused_when_they_are_sent(worker, js, send):
    """Nothing is published, and the error is a TypeError."""

    @worker.task()
    def bill(order_id: int) -> None:
        pass

    with pytest.raises(TypeError, match="bill") as caught:
        send(bill)
    assert isinstance(caught.value, TaskArgumentsError)
    assert "TASKS" not in js.stream_names()


def test_annotated_arguments_arrive_as_objects(worker):
    """The function gets objects of its annotations; other values are refused when they are sent."""
    seen: list[object] = []

    def note(at: datetime, where: Point, *sizes: int, **labels: float) -> None:
        seen.append((at, where, sizes, labels))

    note.__annotations__ = {"at": datetime, "where": Point, "sizes": int, "labels": float}
    task = worker.task()(note)
    at = datetime(2026, 1, 1, tzinfo=timezone.utc)
    with pytest.raises(TaskArgumentsError, match="where"):
        task.delay(at, "here")
    with running(worker):
        task.delay(at, Point(1), 2, 3, weight=1)
        wait_until(lambda: seen == [(at, Point(1), (2, 3), {"weight": 1.0})])


def test_a_message_that_is_no_call_is_a_dead_letter(worker, js):
    """Other programs may publish calls: an object with the arguments is enough."""
    seen: list[int] = []
    worker.queue("default", unknown_task_grace=0)

    @worker.task()
    def bill(order_id: int) -> None:
        seen.append(order_id)

    bill.delay(1)
    for payload in (b"{", b"[]", b'{"args": []}', b'{"args": [2]}'):
        js.publish(f"tasks.{worker.name}.default.{bill.name}.x", payload)
    with running(worker):
        wait_until(lambda: seen == [1, 2])
        wait_until(lambda: js.get_stream("TASKS").info().state.messages == 0)
    assert js.get_stream("DEAD").info().state.messages == 3


def test_a_failed_call_is_retried_and_tells_its_error(worker):
    """It is READY between two attempts, and FAILED after the last one or a Reject."""
    attempts: list[int] = []
    seen: list[str] = []

    @worker.task(results="RESULTS", retry=Backoff(first=0.2, jitter=0, attempts=2))
    def fail(text: str, ctx: Context) -> None:
        attempts.append(ctx.attempt)
        seen.append(call.status)
        raise Reject(text) if text == "no" else ValueError(text)

    call = fail.delay("boom")
    with running(worker):
        with pytest.raises(TaskError, match="ValueError") as caught:
            call.get(20 * SCALE)
        assert "ValueError: boom" in caught.value.traceback
        assert (attempts, seen) == ([1, 2], ["RUNNING", "RUNNING"])
        call = fail.delay("no")
        with pytest.raises(TaskError, match="Reject"):
            call.get(20 * SCALE)
    assert call.status == "FAILED"
    assert attempts == [1, 2, 1]


@pytest.mark.parametrize("results", [None, "RESULTS"])
def test_a_queued_call_can_be_cancelled(worker, js, results):
    """Its message is deleted, and with results no worker that has it starts it; a running one goes on."""
    started, goes_on = threading.Event(), threading.Event()
    runs: list[int] = []

    worker.queue("one", concurrency=1, prefetch=1)

    @worker.task(results=results, queue="one")
    def wait(number: int) -> None:
        runs.append(number)
        started.set()
        goes_on.wait(30)

    queued = wait.delay(0)
    assert queued.cancel()
    assert js.get_stream("TASKS").info().state.messages == 0
    if results is None:
        assert not queued.cancel()
        with pytest.raises(InvalidOptionError, match="results"):
            _ = queued.status
        return
    assert queued.status == "CANCELLED"
    with pytest.raises(TaskError, match="cancelled"):
        queued.get(1)
    first = wait.delay(1)
    with running(worker):
        assert started.wait(20 * SCALE)
        second = wait.delay(2)
        info = js.get_stream("TASKS").get_consumer(f"tasks-{worker.name}-one").info
        wait_until(lambda: info().num_ack_pending == 2)
        assert not first.cancel()
        assert second.cancel()
        with pytest.raises(TimeoutError):
            first.get(0.1)
        goes_on.set()
        assert first.get(20 * SCALE) is None
        wait_until(lambda: info().num_ack_pending == 0)
    assert runs == [1]


def test_a_call_for_a_later_time(worker, nats_server):
    """The server keeps it; an older server refuses it."""

    @worker.task(results="RESULTS")
    def now() -> float:
        return datetime.now(timezone.utc).timestamp()

    at = datetime.now(timezone.utc) + timedelta(seconds=2)
    if nats_server.version.startswith(("2.10.", "2.11.")):
        with pytest.raises(ServerTooOldError):
            now.apply_async(eta=at)
        return
    late, never = now.apply_async(eta=at), now.apply_async(eta=at)
    assert never.cancel()
    with running(worker):
        assert late.get(20 * SCALE) >= at.timestamp()
    assert never.status == "CANCELLED"


def test_tasks_run_in_processes_of_their_own(worker, nats_server, tmp_path):
    """The process finds the task by its name, and stores the result over its own connection."""
    code = """
worker = Worker(name="NAME", program="tests", dead_letters="DEAD", concurrency=2)
worker.queue("default", pool="processes")

@worker.task(name="square", results="RESULTS")
def square(number: int, ctx: Context) -> list:
    return [number**2, os.getpid(), ctx.attempt]
"""
    square = worker.task(name="square", results="RESULTS")(square_elsewhere)
    call = square.delay(7)
    with WorkerProgram(code.replace("NAME", worker.name), nats_server.url, tmp_path) as program:
        number, pid, attempt = call.get(20 * SCALE)
        program.stop()
    assert (number, attempt) == (49, 1)
    assert pid != program.process.pid


def test_a_task_that_is_given_up_has_failed(worker, nats_server, js, tmp_path):
    """So do a task that kills its process in each attempt, and one whose arguments do not fit any more."""
    code = """
worker = Worker(name="NAME", program="tests", dead_letters="DEAD", concurrency=2)
worker.queue("default", pool="processes", unknown_task_grace=0)

@worker.task(name="kill", results="RESULTS", retry=Backoff(first=0.1, attempts=2))
def kill(number: int):
    os.kill(os.getpid(), signal.SIGKILL)

@worker.task(name="square", results="RESULTS")
def square():
    pass
"""
    calls = [
        worker.task(name=name, results="RESULTS")(square_elsewhere).delay(7)
        for name in ("kill", "square")
    ]
    with WorkerProgram(code.replace("NAME", worker.name), nats_server.url, tmp_path) as program:
        for call, reason in zip(calls, ("SIGKILL", "no call of the task"), strict=True):
            with pytest.raises(TaskError, match="is failed") as caught:
                call.get(20 * SCALE)
            assert (call.status, reason in caught.value.traceback) == ("FAILED", True)
        wait_until(lambda: js.get_stream("TASKS").info().state.messages == 0)
        assert js.get_stream("DEAD").info().state.messages == 2
        program.stop()


def square_elsewhere(number: int) -> None:
    """Stand for the task of the other program: only its signature is used."""


def test_what_is_refused(worker):
    """Names that are no tokens, options of messages, and a missing stream with ensure='none'."""

    def bill() -> None:
        pass

    for options in ({"name": "a.b"}, {"queue": "none"}, {"decode": "json"}, {"max_retries": 3}):
        with pytest.raises(InvalidOptionError):
            worker.task(**options)(bill)  # type: ignore[arg-type]
    worker.task()(bill)
    with pytest.raises(InvalidOptionError, match="another task"):
        worker.task()(bill)
    with pytest.raises(InvalidOptionError, match=r"Backoff\(attempts=...\)"):
        worker.task(max_retries=3)(bill)  # type: ignore[call-overload]
    with pytest.raises(InvalidOptionError, match="belongs to the queue"):
        worker.task(concurrency=3)(bill)  # type: ignore[call-overload]
    worker.ensure = "none"
    with pytest.raises(NoStreamResponseError):
        worker.task(name="other")(bill).delay()
    result = worker.check()
    assert "stream 'TASKS'" in result.errors[0]
    worker.ensure = "consumer"
    result = worker.check()
    assert (result.status, result.errors) == (0, [])
    assert any("stream 'TASKS' does not exist" in text for text in result.warnings)
