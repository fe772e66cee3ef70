"""Queues of tasks: threads, names, unknown tasks, and messages that must not wait."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import suppress

import pytest
from fix_threads import SCALE, wait_until
from fix_worker import WorkerProgram, running

from jetstream_sync import (
    InvalidOptionError,
    JetStream,
    StreamNotFoundError,
    shared_connection,
)
from jetstream_sync.server import NatsServer
from jetstream_sync.workers import Context, Reject, TaskError, Worker

pytestmark = pytest.mark.timeout(110)


@pytest.fixture
def worker(nats_server: NatsServer, js: JetStream) -> Iterator[Worker]:
    """A worker whose connection for sending, stream and bucket end with the test."""
    found = Worker(
        nats_server.url, name=uuid.uuid4().hex, program="tests", dead_letters="DEAD", concurrency=2
    )
    yield found
    shared_connection(nats_server.url, name=found.name).close()
    for stream in ("DEAD", "TASKS", "KV_RESULTS"):
        with suppress(StreamNotFoundError):
            js.delete_stream(stream)


def test_many_tasks_share_the_threads_of_a_queue(worker, js):
    """200 tasks are one consumer and a few threads, and are ready at once."""
    done: list[int] = []

    def task(number: int) -> None:
        done.append(number)

    tasks = [worker.task(name=f"task-{index}")(task) for index in range(200)]
    for index, each in enumerate(tasks):
        each.delay(index)
    before = threading.active_count()
    with running(worker):
        wait_until(lambda: len(done) == 200)
        assert threading.active_count() - before <= 20
        assert len(js.get_stream("TASKS").consumer_names()) == 1
    assert sorted(done) == list(range(200))


def test_two_programs_with_one_name_are_refused(worker, nats_server, js):
    """The consumer records its program: another one neither starts nor sends; under another name it may."""

    @worker.task(name="bill")
    def bill() -> None:
        pass

    bill.delay()
    with running(worker):
        wait_until(lambda: js.get_stream("TASKS").info().state.messages == 0)
    other = Worker(nats_server.url, name=worker.name, program="crm")
    theirs = other.task(name="bill")(print_nothing)
    assert other.run() == 2
    assert "another name" in other.check().errors[0]
    with pytest.raises(InvalidOptionError, match="belongs to the program 'tests'"):
        theirs.delay()
    named = Worker(nats_server.url, name=f"{worker.name}-crm", program="crm")
    named.task(name="bill")(print_nothing).delay()
    with running(worker):
        # The call is that of the other program: it waits.
        wait_until(lambda: js.get_stream("TASKS").info().state.messages == 1)
    for each in (other, named):
        shared_connection(nats_server.url, name=each.name).close()


def print_nothing() -> None:
    """Do nothing."""


def test_a_call_of_an_unknown_task_is_a_dead_letter(worker, js):
    """It is given back for the grace first, counted, and reported by check()."""
    worker.queue("default", unknown_task_grace=2.0)

    @worker.task(name="known")
    def known() -> None:
        pass

    gone = worker.task(name="gone")(print_nothing)
    gone.delay()
    del worker.handlers[0].tasks["gone"]
    with running(worker):
        wait_until(lambda: unknown_of(worker))
        result = worker.check()
        assert result.status != 0
        assert "unknown task 'gone'" in " ".join(result.errors)
        assert unknown_of(worker)["gone"] >= 1
        wait_until(lambda: js.get_stream("TASKS").info().state.messages == 0, 15)
    dead = js.get_stream("DEAD").get_msg(1)
    assert dead.headers["Dead-Reason"] == "unknown task 'gone'"


def unknown_of(worker: Worker) -> dict[str, int]:
    """Return the deliveries of unknown tasks that a running worker has counted."""
    snapshot = worker.snapshot()
    handlers = [] if snapshot is None else snapshot["handlers"]
    return handlers[0]["unknown_tasks"] if handlers else {}


def test_no_message_waits_behind_a_long_task(worker, nats_server, tmp_path):
    """A message that one process received ahead goes to another one that is idle."""
    code = """
worker = Worker(name="NAME", program="tests", dead_letters="DEAD", concurrency=1)

@worker.task(name="sleep")
def sleep(seconds: float):
    record(f"{time.time()} {seconds}")
    time.sleep(seconds)
"""
    code = code.replace("NAME", worker.name)
    sleep = worker.task(name="sleep")(sleep_elsewhere)
    with (
        WorkerProgram(code, nats_server.url, tmp_path) as first,
        WorkerProgram(code, nats_server.url, tmp_path) as second,
    ):
        began = time.time()
        sleep.delay(15.0)
        for _ in range(12):
            sleep.delay(0.01)
        first.wait_runs(13, 10)
        starts = [float(line.split()[0]) for line in first.runs]
        assert max(starts) - began < 3 * SCALE
        for each in (first, second):
            each.process.kill()


def sleep_elsewhere(seconds: float) -> None:
    """Stand for the task of the programs."""


def test_a_worker_has_the_floor_of_its_consumer(js, stream, nats_server, monkeypatch):
    """A consumer that is deleted while messages are handled is created again behind a recent one."""
    monkeypatch.setattr("jetstream_sync.workers.threads.FLOOR_S", 0.5)
    runs: list[bytes] = []
    worker = Worker(nats_server.url)

    @worker.handler(stream=stream.name, consumer="C")
    def handle(data: bytes) -> None:
        runs.append(data)

    with running(worker):
        for number in range(100):
            js.publish(f"{stream.name}.a", b"%d" % number)
        wait_until(lambda: len(runs) == 100)
        wait_until(lambda: js.consumer_info(stream.name, "C").num_ack_pending == 0)
        floor = worker_floor(worker)
        wait_until(lambda: floor() >= 100)
        js.delete_consumer(stream.name, "C")
        js.publish(f"{stream.name}.a", b"last")
        wait_until(lambda: b"last" in runs, 20)
    assert len(runs) == 101


def worker_floor(worker: Worker):
    monitor = worker._monitor
    assert monitor is not None
    return lambda: monitor.pools[0].consumer.info.ack_floor.stream_seq


def test_a_deploy_with_another_filter(js, stream, nats_server, tmp_path):
    """The old process handles nothing of the new filter, and is refused when it is started again."""
    old = """
worker = Worker()

@worker.handler(stream="STREAM", consumer="C", filter_subject="STREAM.a")
def handle(ctx: Context):
    record(f"old {ctx.message.subject}")
"""
    old = old.replace("STREAM", stream.name)
    new = old.replace(f"{stream.name}.a", f"{stream.name}.b").replace("old ", "new ")
    with WorkerProgram(old, nats_server.url, tmp_path) as first:
        js.publish(f"{stream.name}.a", b"")
        first.wait_runs(1)
        with WorkerProgram(new, nats_server.url, tmp_path) as second:
            for _ in range(100):
                js.publish(f"{stream.name}.b", b"")
            second.wait_runs(101, 30)
            found = second.runs
            assert found.count(f"new {stream.name}.b") == 100, found
            first.process.terminate()
            first.process.wait(30)
            again = Worker(nats_server.url)
            again.handler(stream=stream.name, consumer="C", filter_subject=f"{stream.name}.a")(
                bytes
            )
            assert again.run() == 2
            info = js.consumer_info(stream.name, "C")
            assert info.config.filter_subject == f"{stream.name}.b"
            # To return to the old version is possible, and deliberate.
            again.setup()
            info = js.consumer_info(stream.name, "C")
            assert info.config.filter_subject == f"{stream.name}.a"
            second.process.kill()


def test_a_dead_letter_is_replayed_in_this_process(worker, js):
    """The task runs for the message of the dead letter, which stays; a repaired one succeeds."""
    problems = ["broken"]

    @worker.task(name="mend", results="RESULTS")
    def mend(number: int, *, ctx: Context) -> int:
        if problems:
            raise Reject(problems[0])
        ctx.publish("tasks.other", b"done")
        return number

    call = mend.delay(7)
    with running(worker), pytest.raises(TaskError, match="broken"):
        call.get(20 * SCALE)
    wait_until(lambda: js.get_stream("DEAD").info().state.messages == 1)
    outcome = worker.replay("DEAD", 1)
    assert (outcome.kind, str(outcome.error)) == ("dead", "broken")
    problems.clear()
    outcome = worker.replay("DEAD", 1)
    assert (outcome.kind, outcome.result) == ("ack", 7)
    assert [each.subject for each in outcome.published] == ["tasks.other"]
    assert call.status == "FAILED"
    assert js.get_stream("DEAD").info().state.messages == 1
    del worker.handlers[0].tasks["mend"]
    with pytest.raises(InvalidOptionError, match="no handler"):
        worker.replay("DEAD", 1)
