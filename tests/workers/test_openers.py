"""The buckets and the stream that calls of tasks need: created at their first use, deleted, refused, and replaced."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import suppress

import pytest
from fixtures.threads import SCALE, run_all, wait_until
from fixtures.worker import FAST, running

import jetstream_sync
from jetstream_sync import (
    BucketNotFoundError,
    JetStream,
    KeyNotFoundError,
    KeyValueConfig,
    PermissionsError,
    StreamNotFoundError,
    TimeoutError,
    shared_connection,
)
from jetstream_sync.server import NatsServer
from jetstream_sync.workers import Context, TaskError, Worker
from jetstream_sync.workers.calls import CallBucket
from jetstream_sync.workers.limits import LIMITS_BUCKET
from jetstream_sync.workers.steps import StepBucket
from jetstream_sync.workers.unique import UNIQUE_STREAM

pytestmark = pytest.mark.timeout(110)

#: All that the tasks need, besides their stream.
STREAMS = ("KV_R", "KV_R-flows", f"KV_{LIMITS_BUCKET}", UNIQUE_STREAM)


@pytest.fixture
def worker(nats_server: NatsServer, js: JetStream) -> Iterator[Worker]:
    """A worker whose tasks use everything; its connection and streams end with the test."""
    found = defined(nats_server.url, f"w{uuid.uuid4().hex}")
    yield found
    shared_connection(nats_server.url, name=found.name).close()
    for stream in ("DEAD", "TASKS", *STREAMS):
        with suppress(StreamNotFoundError):
            js.delete_stream(stream)


def defined(url: str, name: str, **options: object) -> Worker:
    """Return a worker with a task that records a step and has a limit, and one that is unique."""
    found = Worker(url, name=name, program="tests", dead_letters="DEAD", **options)  # type: ignore[arg-type]
    found.limit("one", 1, scope="cluster")

    @found.task(name="single", unique="until_done", results="R")
    def single(number: int) -> int:
        return number

    @found.task(name="work", results="R", steps=True, limit="one", retry=FAST)
    def work(number: int, ctx: Context) -> int:
        return ctx.step(lambda: number, name="number")  # type: ignore[no-any-return]

    return found


def test_what_is_deleted_is_created_by_the_next_call(worker, js):
    """While the sender and the worker run; no process is started again."""
    tasks = worker.queues.tasks.values()
    with running(worker):
        for number in range(3):
            assert [task.delay(number).get(20 * SCALE) for task in tasks] == [number] * 2
            wait_until(lambda: js.get_stream("TASKS").info().state.messages == 0)
            for stream in STREAMS:
                js.delete_stream(stream)
        assert [task.delay(3).get(20 * SCALE) for task in tasks] == [3, 3]
    assert set(STREAMS) <= set(js.stream_names())
    assert "DEAD" not in js.stream_names() or js.get_stream("DEAD").info().state.messages == 0


def test_a_signal_creates_a_deleted_stream(worker, js):
    """The call that waits for it has no message there, and goes on."""

    @worker.task(name="patient", results="R", steps=True)
    def patient(ctx: Context) -> object:
        return ctx.wait("go")

    with running(worker):
        call = patient.delay()
        stream = js.get_stream("TASKS")
        wait_until(lambda: call.status == "READY" and not stream.info().state.messages, 20)
    js.delete_stream("TASKS")
    assert call.signal("go", 17)
    with running(worker):
        assert call.get(20 * SCALE) == 17


def test_a_call_of_a_deleted_bucket_is_unknown(worker, js):
    """As a call whose record has expired, in a process that has read it before."""
    work = worker.queues.tasks["work"]
    call = work.apply_async((1,), task_id="one")
    assert call.status == "READY"
    js.delete_stream("TASKS")
    js.delete_stream("KV_R")
    with pytest.raises(KeyNotFoundError):
        _ = call.status
    assert call.progress is None


def test_several_processes_create_them_at_once(nats_server, js):
    """Each one opens what one of them has created."""
    created: list[str] = []
    workers = [Worker(nats_server.url, name="w", program="tests") for _ in range(4)]
    for number in range(5):
        bucket = f"B{number}-{uuid.uuid4().hex}"
        connections = [jetstream_sync.connect(nats_server.url) for _ in workers]
        stores = [
            StepBucket(lambda nc=nc: nc, bucket, item.queues.create)  # type: ignore[misc]
            for nc, item in zip(connections, workers, strict=True)
        ]

        def record(store: StepBucket) -> Callable[[], object]:
            return lambda: created.append(store.record("call", "step", b"1").decode())

        run_all(*map(record, stores))
        assert js.key_value(bucket).keys() == ["call.step"]
        js.delete_key_value(bucket)
        for nc in connections:
            nc.close()
    assert created == ["1"] * 20


def test_another_connection_opens_them_again(nats_server, js):
    """As in a forked process: nothing is sent on the connection of the parent."""
    connections = [jetstream_sync.connect(nats_server.url) for _ in range(2)]
    bucket = uuid.uuid4().hex
    js.create_key_value(KeyValueConfig(bucket=bucket))
    used = connections[:1]
    calls = CallBucket(lambda: used[0], bucket, lambda *_: None)
    assert calls.progress("none") is None
    connections[0].close()
    used[:] = connections[1:]
    assert calls.progress("none") is None
    connections[1].close()
    js.delete_key_value(bucket)


def test_nothing_is_created_against_the_will_of_the_user(fresh_server):
    """With ``ensure="none"``, what is missing is an error that names it, within the timeout."""
    worker = defined(fresh_server.url, "strict", ensure="none")
    call = worker.queues.tasks["work"].result_of("one")
    began = time.monotonic()
    for read in (lambda: call.status, lambda: call.progress, lambda: call.signal("go")):
        with pytest.raises(BucketNotFoundError):
            read()
    assert time.monotonic() - began < 5 * SCALE
    with jetstream_sync.connect(fresh_server.url) as nc:
        assert nc.jetstream().stream_names() == []
    shared_connection(fresh_server.url, name="strict").close()


def test_a_user_who_may_not_create_them():
    """The error names the permission, and comes before the timeout."""
    users = """
authorization { users: [
    { user: all, password: p }
    { user: few, password: p, permissions: { publish: { deny: ["$JS.API.STREAM.CREATE.KV_R"] } } }
] }
"""
    with NatsServer(config=users) as server:
        few = {"user": "few", "password": "p"}
        worker = defined(server.url, "few", connection=few)
        began = time.monotonic()
        with pytest.raises((PermissionsError, TimeoutError), match="KV_R|STREAM.CREATE"):
            _ = worker.queues.tasks["work"].result_of("one").status
        assert time.monotonic() - began < 10 * SCALE
        shared_connection(server.url, name="few", user="few", password="p").close()


def test_a_value_that_a_new_bucket_does_not_take_fails_its_call(worker, js):
    """A bucket that was created again with a smaller limit, while the function ran."""
    begun, goes_on = threading.Event(), threading.Event()

    @worker.task(name="large", results="R", retry=FAST)
    def large() -> str:
        begun.set()
        assert goes_on.wait(60)
        return "x" * 5000

    with running(worker):
        call = large.delay()
        assert begun.wait(20 * SCALE)
        js.delete_stream("KV_R")
        js.create_key_value(KeyValueConfig(bucket="R", max_value_size=4000))
        goes_on.set()
        with pytest.raises(TaskError, match="cannot be stored"):
            call.get(20 * SCALE)


def test_a_traceback_that_a_bucket_does_not_take_is_left_out(worker, js):
    """The attempts of the call, and its end, are stored all the same."""
    js.create_key_value(KeyValueConfig(bucket="R", max_value_size=4000))
    runs: list[int] = []

    @worker.task(name="deep", results="R", retry=FAST)
    def deep() -> None:
        runs.append(1)
        exec(
            "def f0(): raise OSError('deep')\n"
            + "".join(f"def f{number}(): f{number - 1}()\n" for number in range(1, 99))
            + "f98()",
            {},
        )

    with running(worker), pytest.raises(TaskError, match="is failed: builtins.OSError: deep"):
        deep.delay().get(40 * SCALE)
    assert len(runs) == 3
