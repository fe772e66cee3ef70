"""Queues of tasks: threads, names, unknown tasks, and messages that must not wait."""

from __future__ import annotations

import functools
import json
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import suppress
from datetime import datetime, timedelta
from pathlib import Path

import pytest
from fixtures.threads import SCALE, wait_until
from fixtures.worker import WorkerProgram, running

from jetstream_sync import (
    InvalidOptionError,
    JetStream,
    StreamNotFoundError,
    shared_connection,
)
from jetstream_sync.server import NatsServer
from jetstream_sync.workers import Backoff, Context, Reject, TaskError, Worker
from jetstream_sync.workers.observer import OUTCOMES
from jetstream_sync.workers.runtime import consumers, processing

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
    for index, item in enumerate(tasks):
        item.delay(index)
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
    for item in (other, named):
        shared_connection(nats_server.url, name=item.name).close()


def print_nothing() -> None:
    """Do nothing."""


def test_a_call_of_an_unknown_task_is_a_dead_letter(worker, js):
    """It is given back for the grace first, counted, and reported by check()."""
    worker.queue("default", unknown_task_grace=2.0 * SCALE)

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


class _FastClock(datetime):
    """The time of a computer whose clock is an hour ahead."""

    @classmethod
    def now(cls, tz=None) -> datetime:
        """Return the current time."""
        return datetime.now(tz) + timedelta(hours=1)


def test_the_grace_for_unknown_tasks_does_not_depend_on_the_clock_of_the_worker(
    worker, js, monkeypatch
):
    """The server stores the time of a call, so its age is measured with the server's clock."""
    for module in (consumers, processing):
        monkeypatch.setattr(module, "datetime", _FastClock)
    worker.queue("default", unknown_task_grace=300.0)
    worker.task(name="known")(print_nothing)
    worker.task(name="gone")(print_nothing).delay()
    del worker.handlers[0].tasks["gone"]
    with running(worker):
        wait_until(lambda: unknown_of(worker).get("gone"))
        wait_until(lambda: sum(counts_of(worker).values()))
        assert counts_of(worker)["given_back"] == 1
    assert js.get_stream("TASKS").info().state.messages == 1


def counts_of(worker: Worker) -> dict[str, int]:
    """Return the outcomes that a running worker has counted."""
    snapshot = worker.snapshot()
    counts = {} if snapshot is None else snapshot["handlers"][0]["counts"]
    return {name: number for name, number in counts.items() if name in OUTCOMES}


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
        for item in (first, second):
            item.process.kill()


def sleep_elsewhere(seconds: float) -> None:
    """Stand for the task of the programs."""


def test_a_worker_has_the_floor_of_its_consumer(js, stream, nats_server, monkeypatch):
    """A consumer that is deleted while messages are handled is created again behind a recent one."""
    monkeypatch.setattr("jetstream_sync.workers.runtime.threads.FLOOR_S", 0.5)
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
    return lambda: monitor.runners[0].consumer.info.ack_floor.stream_seq


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
    assert [item.subject for item in outcome.published] == ["tasks.other"]
    assert call.status == "FAILED"
    assert js.get_stream("DEAD").info().state.messages == 1
    del worker.handlers[0].tasks["mend"]
    with pytest.raises(InvalidOptionError, match="no handler"):
        worker.replay("DEAD", 1)


def test_a_dead_letter_is_replayed_by_the_handler_of_its_stream(worker, js):
    """Consumers of two streams may have one name."""
    runs = []
    for name in ("FIRST", "SECOND"):
        js.create_stream(name=name, subjects=[f"{name}.>"], storage="memory")

    @worker.handler(stream="FIRST", consumer="C")
    def first() -> None:
        runs.append("first")

    @worker.handler(stream="SECOND", consumer="C")
    def second() -> None:
        runs.append("second")
        raise Reject("no")

    js.publish("SECOND.a", b"x")
    with running(worker):
        wait_until(lambda: runs and js.get_stream("DEAD").info().state.messages == 1)
    assert worker.replay("DEAD", 1).kind == "dead"
    assert runs == ["second", "second"]
    del worker.handlers[1]
    with pytest.raises(InvalidOptionError, match="no handler"):
        worker.replay("DEAD", 1)


@pytest.mark.server(">=2.14")
@pytest.mark.parametrize("missed", ["last", "all"])
def test_a_periodic_task_runs_once_for_each_tick(worker, js, missed):
    """Each call has an id and a state of its own; without a worker, the calls wait in the stream."""
    ran: list[str] = []

    @worker.task(name="tick", results="RESULTS", every=1, missed=missed)
    def tick(ctx: Context) -> None:
        ran.append(ctx.call[0].id)

    with running(worker):
        wait_until(lambda: len(ran) >= 3, 20)
    count = len(ran)
    assert len(set(ran)) == count
    calls = [tick.result_of(item) for item in ran]
    assert {call.status for call in calls} == {"SUCCESSFUL"}
    stream = js.get_stream("TASKS")
    subject = f"tasks.{worker.name}.default.tick.tick"
    counts = lambda: (stream.info(subjects_filter=subject).state.subjects or {}).get(subject, 0)  # noqa: E731
    last = stream.info().state.last_seq
    wait_until(lambda: stream.info().state.last_seq >= last + 3, 20)
    assert counts() >= 3


@pytest.mark.server(">=2.14")
def test_a_periodic_task_passes_the_check_before_the_first_start(worker, js):
    """Its stream is created at the start, unless the worker must not."""

    @worker.task(name="tick", every=60)
    def tick() -> None:
        pass

    assert worker.check().errors == []
    worker.ensure = "none"
    assert any("schedule tick" in text for text in worker.check().errors)
    assert "TASKS" not in js.stream_names()


@pytest.mark.server(">=2.14")
def test_a_task_is_scheduled_with_arguments(worker):
    """`Worker.schedule` takes a task: several schedules of one task have names of their own."""
    seen: list[tuple[str, int]] = []

    @worker.task(name="note")
    def note(text: str, *, size: int = 0) -> None:
        seen.append((text, size))

    worker.schedule(note, every=1, args=("a",), kwargs={"size": 2})
    worker.schedule(note, every=1, kwargs={"text": "b"}, schedule_name="other")
    with pytest.raises(InvalidOptionError, match="another schedule"):
        worker.schedule(note, every=2, args=("c",))
    with pytest.raises(TypeError):
        worker.schedule(note, every=2, schedule_name="wrong")
    with running(worker):
        wait_until(lambda: {("a", 2), ("b", 0)} <= set(seen), 20)


def test_a_call_with_a_known_id_is_not_stored_again(worker, js):
    """With results the first call is returned for their lifetime; without, within the duplicate window."""
    runs: list[int] = []

    @worker.task(name="stored", results="RESULTS")
    def stored(number: int) -> int:
        runs.append(number)
        return number

    @worker.task(name="sent")
    def sent(number: int) -> None:
        runs.append(number)

    for task in (stored, sent):
        for number in (1, 2):
            task.apply_async((number,), task_id="same")
    assert js.get_stream("TASKS").info().state.messages == 2
    with running(worker):
        wait_until(lambda: runs == [1, 1])
        assert stored.apply_async((3,), task_id="same").get(20 * SCALE) == 1
    assert runs == [1, 1]


def test_a_call_expires(worker):
    """A call that is not started in time does not run, with and without results."""
    runs: list[str] = []

    @worker.task(name="stored", results="RESULTS")
    def stored(text: str) -> None:
        runs.append(text)

    @worker.task(name="sent")
    def sent(text: str) -> None:
        runs.append(text)

    late = stored.apply_async(("late",), expires=-1)
    sent.apply_async(("late",), expires=-1)
    stored.apply_async(("soon",), expires=600)
    with running(worker):
        with pytest.raises(TaskError, match="expired") as caught:
            late.get(20 * SCALE)
        wait_until(lambda: runs == ["soon"])
    assert (caught.value.status, late.status, runs) == ("EXPIRED", "EXPIRED", ["soon"])


#: Sets the clock of a program, before it imports anything else.
_CLOCK = """
import datetime, time

ahead_s, now_ns = {ahead}, time.time_ns
time.time_ns = lambda: now_ns() + ahead_s * 10**9
time.time = lambda: time.time_ns() / 1e9

class Shifted(datetime.datetime):
    @classmethod
    def now(cls, tz=None):
        return cls.fromtimestamp(time.time(), tz)

datetime.datetime = Shifted
"""
_EXPIRING = """
@worker.task(name="stored", results="RESULTS")
def stored(text: str):
    record(text)

@worker.task(name="sent")
def sent(text: str):
    record(text)

@worker.task(name="with_context")
def with_context(text: str, ctx: Context):
    record(text)
"""


@pytest.mark.parametrize("pool", ["threads", "processes"])
@pytest.mark.parametrize("ahead", [3600, -3600])
def test_a_call_expires_by_the_clock_of_the_server(
    nats_server, js, tmp_path, monkeypatch, ahead, pool
):
    """A worker whose clock is an hour ahead or behind runs the same calls as any other."""
    (tmp_path / "sitecustomize.py").write_text(_CLOCK.format(ahead=ahead))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    name = f"w{uuid.uuid4().hex}"
    head = f'worker = Worker(os.environ["NATS_URL"], name="{name}", program="tests")\n'
    head += f'worker.queue("default", pool="{pool}")\n'
    sender = Worker(nats_server.url, name=name, program="tests")
    tasks = [
        sender.task(name=task, results=results)(print)
        for task, results in (("stored", "RESULTS"), ("sent", None), ("with_context", None))
    ]
    for task in tasks:
        task.apply_async((f"{task.name} late",), expires=-1)
        task.apply_async((f"{task.name} soon",), expires=1000)
    with WorkerProgram(head + _EXPIRING, nats_server.url, tmp_path) as program:
        wait_until(lambda: js.get_stream("TASKS").info().state.messages == 0, 20)
        assert sorted(program.runs) == ["sent soon", "stored soon", "with_context soon"]
    shared_connection(nats_server.url, name=name).close()


def test_a_deleted_stream_is_created_by_the_next_call(worker, js):
    """A process that only sends creates the stream again."""

    @worker.task(name="bill")
    def bill() -> None:
        pass

    bill.delay()
    js.delete_stream("TASKS")
    bill.delay()
    assert js.get_stream("TASKS").info().state.messages == 1


async def coroutine() -> None:
    """Never run."""


def generator():
    yield 1


class AsyncObject:
    async def __call__(self) -> None:
        """Never run."""


@pytest.mark.parametrize(
    "function",
    [
        coroutine,
        generator,
        functools.partial(coroutine),
        functools.partial(generator),
        AsyncObject(),
        AsyncObject().__call__,
        AsyncObject,
    ],
)
def test_functions_that_do_not_block_are_refused(worker, function):
    """Also behind partial, as objects and as methods; the same holds for middleware, hooks and payloads."""
    for define in (
        worker.task(name="x"),
        worker.handler(stream="S", consumer="C"),
        worker.on("ready"),
        lambda item: Worker(middleware=[item]),
        lambda item: worker.handler(stream="S", consumer="C", decode=item)(print_nothing),
    ):
        if function is AsyncObject and define.__name__ == "<lambda>":
            continue
        with pytest.raises(InvalidOptionError):
            define(function)
    if function is not AsyncObject:
        with pytest.raises(InvalidOptionError):
            worker.schedule("x", subject="s", every=1)(function)


def test_a_decorated_coroutine_fails(worker, js):
    """A plain function that returns a coroutine is found out when it runs, and not acknowledged as done."""

    def decorated(function):
        @functools.wraps(function)
        def wrapper():
            return function()

        del wrapper.__wrapped__
        return wrapper

    task = worker.task(name="x", results="RESULTS")(decorated(coroutine))
    plain = worker.task(name="y")(decorated(generator))
    call = task.delay()
    plain.delay()
    with running(worker):
        with pytest.raises(TaskError, match="whose code did not run"):
            call.get(20 * SCALE)
        wait_until(lambda: js.get_stream("TASKS").info().state.messages == 0)
    assert js.get_stream("DEAD").info().state.messages == 2


def test_a_running_call_is_ended_on_request(worker, nats_server, js, tmp_path):
    """Its process is killed, it is CANCELLED, and it is not run again."""
    code = """
worker = Worker(name="NAME", program="tests", dead_letters="DEAD", concurrency=1)
worker.queue("default", pool="processes")

@worker.task(name="sleep", results="RESULTS", retry=Backoff(first=0.1))
def sleep(seconds: float):
    record(seconds)
    time.sleep(seconds)
"""
    sleep = worker.task(name="sleep", results="RESULTS")(sleep_elsewhere)
    call = sleep.delay(60.0)
    with WorkerProgram(code.replace("NAME", worker.name), nats_server.url, tmp_path) as program:
        program.wait_runs(1)
        assert not call.cancel()
        assert call.cancel(terminate=True)
        with pytest.raises(TaskError, match="cancelled"):
            call.get(20 * SCALE)
        wait_until(lambda: js.get_stream("TASKS").info().state.messages == 0, 20)
        assert not call.cancel(terminate=True)
        assert sleep.delay(0.0).get(20 * SCALE) is None
        assert program.runs == ["60.0", "0.0"]
        program.stop()


@pytest.mark.parametrize("pool", ["threads", "processes"])
def test_a_handler_that_forks_leaves_no_process(worker, nats_server, js, tmp_path, pool):
    """The copy that returns from the handler ends at once, before its middleware and without an ack."""
    code = """
import warnings
warnings.simplefilter("ignore")

def commit(call, ctx):
    call()
    record("committed")

worker = Worker(
    name="NAME", program="tests", dead_letters="DEAD", concurrency=1, middleware=[commit]
)
worker.queue("default", pool="POOL")

@worker.task(name="fork")
def fork(number: int):
    pid = os.fork()
    record(pid if pid else -os.getpid())
"""
    fork = worker.task(name="fork")(fork_elsewhere)
    fork.delay(1)
    code = code.replace("NAME", worker.name).replace("POOL", pool)
    with WorkerProgram(code, nats_server.url, tmp_path) as program:
        program.wait_runs(3)
        pid = max(int(run) for run in program.runs if run != "committed")
        wait_until(lambda: not is_running(pid))
        wait_until(lambda: js.get_stream("TASKS").info().state.messages == 0)
        program.stop()
    assert (len(program.runs), program.runs.count("committed")) == (3, 1)


def is_running(pid: int) -> bool:
    """Return whether a process runs; one that has ended and was not waited for does not."""
    status = Path(f"/proc/{pid}/stat")
    return status.exists() and status.read_text().rpartition(")")[2].split()[0] != "Z"


def fork_elsewhere(number: int) -> None:
    """Stand for the task of the program."""


def test_options_of_a_task_need_their_buckets_and_their_pool(worker, js):
    """The bucket of ``once`` is created; a soft limit and a local function are refused in processes."""
    runs: list[int] = []

    @worker.task(name="count", once="ONCE")
    def count(number: int) -> None:
        runs.append(number)

    count.delay(1)
    with running(worker):
        wait_until(lambda: runs == [1])
        assert "ONCE" in js.key_value_names()
    js.delete_key_value("ONCE")
    worker.queue("apart", pool="processes")
    with pytest.raises(InvalidOptionError, match="soft_timeout"):
        worker.task(queue="apart", soft_timeout=1.0)(print_nothing)
    with pytest.raises(InvalidOptionError, match="top level"):
        worker.task(name="local", queue="apart")(count.function)


def test_tasks_and_schedules_need_a_name():
    """A worker with the default name, which other programs share, has no tasks and no schedules."""
    worker = Worker()
    with pytest.raises(InvalidOptionError, match=r'Worker\(name="shop"\)'):
        worker.task(name="task")(bytes)
    with pytest.raises(InvalidOptionError, match="no other program"):
        worker.queue("mail")
    with pytest.raises(InvalidOptionError, match="no other program"):
        worker.schedule("daily", subject="a.b", every=60)(bytes)
    assert not worker.handlers
    assert not worker.schedules


def test_calls_of_another_program_are_reported_once(worker, nats_server, caplog):
    """Calls whose tasks are of a module that the worker does not have may be those of a namesake."""
    other = Worker(nats_server.url, name=worker.name, program="tests")
    for name in ("other-mail-send", "other-mail-read"):
        task = other.task(name=name)(lambda: None)
        task.delay()
        task.delay()

    @worker.task(name="mine")
    def mine() -> None:
        pass

    with running(worker):
        wait_until(lambda: caplog.text.count("of the unknown task") >= 2, 20)
    assert caplog.text.count("does another program have the same name?") == 1
    shared_connection(nats_server.url, name=other.name).close()


def test_a_function_may_change_its_arguments(worker, js):
    """Neither the next attempt nor the record has the changes."""
    seen: list[str] = []

    @worker.task(name="eat", results="RESULTS", retry=Backoff(first=0.1))
    def eat(items: list, names: dict) -> int:
        seen.append(f"{items} {names}")
        items.pop()
        names["b"] = 2
        if len(seen) == 1:
            raise ValueError("later")
        return len(items)

    with running(worker):
        call = eat.delay([1, 2, 3], names={"a": 1})
        assert call.get(20 * SCALE) == 2
    assert seen == ["[1, 2, 3] {'a': 1}"] * 2
    record = json.loads(js.key_value("RESULTS").get(call.id).value)
    assert (record["args"], record["kwargs"]) == ([[1, 2, 3]], {"names": {"a": 1}})


def test_the_id_of_a_run_makes_the_id_of_a_call(worker, js):
    """A run that is repeated sends its call once."""
    done: list[int] = []

    @worker.task(name="mail", results="RESULTS")
    def mail(number: int) -> None:
        done.append(number)

    @worker.task(name="order", retry=Backoff(first=0.1, attempts=3))
    def order(number: int, ctx: Context) -> None:
        call = mail.apply_async((number,), task_id=f"{ctx.id}/mail")
        if ctx.attempt < 3:
            raise ValueError("later")
        assert call.get(20 * SCALE) is None

    order.delay(17)
    with running(worker):
        wait_until(lambda: done and js.get_stream("TASKS").info().state.messages == 0, 20)
        assert worker.verify() == []
    assert done == [17]
