"""Calls and messages that a process of another version takes: they are given back, and no process rejects them alone."""

from __future__ import annotations

import pickle
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import date
from typing import Annotated, Any

import pytest
from fixtures.threads import SCALE, wait_until
from fixtures.worker import FAST, WorkerProgram, dead_letters, is_settled, running

import jetstream_sync
from jetstream_sync import (
    InvalidOptionError,
    JetStream,
    PullConsumer,
    RetentionPolicy,
    StreamNotFoundError,
    shared_connection,
)
from jetstream_sync.server import NatsServer
from jetstream_sync.workers import Context, TaskError, Worker
from jetstream_sync.workers.runtime import processing

pytestmark = pytest.mark.timeout(110)


@pytest.fixture
def versions(nats_server: NatsServer, js: JetStream) -> Iterator[list[Worker]]:
    """An old and a new version of a worker."""
    name = uuid.uuid4().hex
    yield [
        Worker(nats_server.url, name=name, program="tests", dead_letters="DEAD") for _ in range(2)
    ]
    shared_connection(nats_server.url, name=name).close()
    for stream in ("DEAD", "TASKS", "KV_RESULTS"):
        with suppress(StreamNotFoundError):
            js.delete_stream(stream)


@pytest.mark.parametrize("results", [None, "RESULTS"])
def test_a_deploy_that_adds_an_argument_loses_no_call(js, versions, results):
    """The old process gives the calls back, whatever it has for them, until the new one runs them."""
    old, new = versions
    done: list[tuple[int, str]] = []

    @old.task(name="send", results=results)
    def send(number: int) -> None:
        done.append((number, "old"))

    @new.task(name="send", results=results)
    def send_new(number: int, language: str) -> None:
        done.append((number, language))

    @new.task(name="when", results=results)
    def when_new(day: date) -> None:
        done.append((day.year, "date"))

    @old.task(name="when", results=results)
    def when(day: int) -> None:
        done.append((day, "old"))

    with running(old):
        for number in range(10):
            send_new.delay(number, language="de")
        when_new.delay(date(2026, 1, 1))
        time.sleep(1 * SCALE)
        assert not done
        # A call that is given back is stored twice for a moment.
        wait_until(lambda: js.get_stream("TASKS").info().state.messages == 11)
        assert js.get_stream("DEAD").info().state.messages == 0
        with running(new):
            time.sleep(2 * SCALE)  # both versions run
            assert not any("old" in item for item in done)
    with running(new):
        wait_until(lambda: len(done) == 11, 40)
    assert sorted(done) == sorted([*((number, "de") for number in range(10)), (2026, "date")])


def test_a_call_that_no_process_takes_is_a_dead_letter_after_the_grace(js, versions, caplog):
    """The dead letter and the state of the call have the reason."""
    old, new = versions
    old.queue("default", unknown_task_grace=3.0)

    @old.task(name="send", results="RESULTS")
    def send(number: int) -> None:
        pass

    @new.task(name="send", results="RESULTS")
    def send_new(number: int, language: str) -> None:
        pass

    began = time.monotonic()
    with running(old):
        call = send_new.delay(1, "de")
        with pytest.raises(TaskError, match="no call of the task"):
            call.get(30 * SCALE)
        assert time.monotonic() - began >= 2.5
        wait_until(lambda: js.get_stream("DEAD").info().state.messages == 1)
    assert (
        "too many positional arguments" in js.get_stream("DEAD").get_msg(1).headers["Dead-Reason"]
    )
    assert "does not fit this process" in caplog.text


_TASKS = """
worker = Worker(name="shop", program="tests", dead_letters="DEAD", concurrency=2)

def attempt(what, ctx):
    record(f"{what} {ctx.attempt} {ctx.id}")
    if ctx.attempt == 1:
        raise OSError("busy")

retry = Backoff(first=0.1, factor=1.0, attempts=3)
"""
#: What the processes of each version define.
_OLD = """
@worker.task(name="argument", retry=retry, results=RESULTS)
def argument(number: int, ctx: Context): record("old")

@worker.task(name="annotation", retry=retry, results=RESULTS)
def annotation(number: int, ctx: Context): record("old")

@worker.handler(
    stream="PAYLOADS", consumer="C", filter_subject="payloads.a", decode=lambda data: 1 / 0, retry=retry
)
def payload(data, ctx: Context): record("old")
"""
_NEW = """
@worker.task(name="argument", retry=retry, results=RESULTS)
def argument(number: int, language: str, ctx: Context): attempt("argument", ctx)

@worker.task(name="annotation", retry=retry, results=RESULTS)
def annotation(number: str, ctx: Context): attempt("annotation", ctx)

@worker.task(name="added", retry=retry, results=RESULTS)
def added(ctx: Context): attempt("added", ctx)

@worker.handler(
    stream="PAYLOADS", consumer="C", filter_subject="payloads.a", decode=int, retry=retry
)
def payload(data, ctx: Context): attempt("payload", ctx)
"""


@pytest.mark.server(">=2.12")
@pytest.mark.parametrize("results", [None, "RESULTS"])
def test_giving_back_uses_no_attempt(fresh_server, tmp_path, results):
    """A call that an old process has given back repeatedly has all of its attempts in a new one, and its id."""
    head = f"RESULTS = {results!r}\n{_TASKS}"
    sender = Worker(fresh_server.url, name="shop", program="tests")
    tasks = {}
    for name in ("argument", "annotation", "added"):

        @sender.task(name=name, results=results)
        def run(*args: Any) -> None: ...

        tasks[name] = run
    with jetstream_sync.connect(fresh_server.url) as nc:
        js = nc.jetstream()
        payloads = js.create_stream(
            name="PAYLOADS",
            subjects=["payloads.>", "parked.PAYLOADS.>"],
            allow_msg_schedules=True,
            retention=RetentionPolicy.WORK_QUEUE,
        )
        js.publish("payloads.a", b"17")
        calls = [
            tasks["argument"].delay(1, "de"),
            tasks["annotation"].delay("one"),
            tasks["added"].delay(),
        ]
        with WorkerProgram(head + _OLD, fresh_server.url, tmp_path) as old:
            # More often than the calls have attempts: for about 1, 1, 3 and 6 seconds.
            wait_until(lambda: old.output.count("does not fit this process") >= 12, 20)
            assert old.runs == []
            with WorkerProgram(head + _NEW, fresh_server.url, tmp_path) as new:
                old.stop()
                wait_until(lambda: len(new.runs) == 8, 30)
                tasks_stream = js.get_stream("TASKS")
                wait_until(lambda: tasks_stream.info().state.messages == 0)
                wait_until(lambda: is_settled(payloads))
                assert dead_letters(js) == 0
                runs = sorted(line.split() for line in new.runs)
                if results is not None:
                    assert {call.status for call in calls} == {"SUCCESSFUL"}
                new.stop()
    names = ("added", "annotation", "argument", "payload")
    assert [run[:2] for run in runs] == [[name, number] for name in names for number in "12"]
    assert len({run[2] for run in runs}) == len(names)
    shared_connection(fresh_server.url, name="shop").close()


@pytest.mark.server(">=2.12")
@pytest.mark.parametrize("task", ["known", "gone"])
def test_a_call_that_cannot_be_parked_reaches_its_grace(js, versions, caplog, task):
    """The stream refuses the schedule, which is larger than the call: it is returned, and is a dead letter in time."""
    old, new = versions
    old.queue("default", unknown_task_grace=6.0)

    @old.task(name="known", retry=FAST)
    def known() -> None:
        pass

    @new.task(name=task)
    def sent(number: int) -> None:
        pass

    sent.delay(1)
    stream = js.get_stream("TASKS")
    refuse_schedules(js)
    began = time.monotonic()
    with running(old):
        wait_until(lambda: dead_letters(js) == 1, 30)
        assert time.monotonic() - began >= 5.5
        wait_until(lambda: stream.info().state.messages == 0)
    assert "is not parked" in caplog.text
    reason = js.get_stream("DEAD").get_msg(1).headers["Dead-Reason"]
    assert ("unknown task" if task == "gone" else "no call of the task") in reason


@pytest.mark.server(">=2.12")
def test_many_calls_that_cannot_be_parked_reach_their_grace(js, versions, monkeypatch):
    """There are more of them than a process remembers, in several threads."""
    monkeypatch.setattr(processing, "_MAX_RETURNED", 5)
    old, new = versions
    old.queue("default", unknown_task_grace=4.0, concurrency=8)
    old.task(name="known")(print_nothing)
    gone = new.task(name="gone")(print_nothing)
    for _ in range(60):
        gone.delay()
    refuse_schedules(js)
    began = time.monotonic()
    with running(old) as run:
        wait_until(lambda: dead_letters(js) > 0, 20)
        assert time.monotonic() - began >= 3.5
        wait_until(lambda: dead_letters(js) == 60, 20)
        assert run.status is None


@pytest.mark.server(">=2.12")
def test_a_message_that_was_run_elsewhere_has_its_grace_again(js, versions, caplog):
    """A process that has returned it, before another one ran it and failed, does not give it up for that."""
    old, new = versions
    hold = held_queue(old, unknown_task_grace=3.0)
    new.task(name="known")(record_nothing).delay(1)
    refuse_schedules(js)
    with running(old):
        wait_until(lambda: "does not fit this process" in caplog.text)
        with hold():
            (msg,) = consumer_of(old, js).fetch(1, 10 * SCALE)
            msg.nak(3)
            time.sleep(3.2)
        wait_until(lambda: caplog.text.count("does not fit this process") == 2, 20)
        assert dead_letters(js) == 0
        wait_until(lambda: dead_letters(js) == 1, 20)


@pytest.mark.server(">=2.12")
def test_a_call_that_other_processes_return_is_not_parked_for_ever(js, versions):
    """Each return without a run may have been a run: the number of deliveries ends that."""
    old, new = versions
    hold = held_queue(old, unknown_task_grace=300.0)
    new.task(name="gone")(print_nothing).delay()
    with running(old):
        wait_until(lambda: any(unfit_headers(js)))
        with hold():
            consumer = consumer_of(old, js)
            for _ in range(
                31
            ):  # the attempts of an unknown task, and the returns that are forgiven
                (msg,) = consumer.fetch(1, 10 * SCALE)
                msg.nak()
        wait_until(lambda: dead_letters(js) == 1, 20)
    assert "unknown task" in js.get_stream("DEAD").get_msg(1).headers["Dead-Reason"]


@pytest.mark.server(">=2.12")
def test_a_return_without_a_run_continues_the_grace(js, versions):
    """A process that returns its waiting messages knows that it has not run them."""
    old, new = versions
    hold = held_queue(old, unknown_task_grace=300.0, exclusive=True, prefetch=5)
    new.task(name="gone")(print_nothing).delay()
    with running(old):
        wait_until(lambda: any(unfit_headers(js)))
        (since,) = unfit_headers(js)
        with hold():
            consumer = consumer_of(old, js)
            wait_until(lambda: consumer.info().num_ack_pending == 2)
            js.get_stream("TASKS").unpin_consumer(old.handlers[0].consumer, "worker")
            wait_until(lambda: consumer.info().num_redelivered == 1, 20)
        wait_until(lambda: consumer.info().num_ack_pending == 0, 20)
        wait_until(lambda: any(unfit_headers(js)))
        assert unfit_headers(js) == [since]


def refuse_schedules(js: JetStream) -> None:
    """Limit the size of the messages of the stream to that of the largest call, so that none can be parked."""
    stream = js.get_stream("TASKS")
    stored = stream.get_msg(1)
    size = len(stored.subject) + len(stored.data) + 150
    js.update_stream(replace(stream.info().config, max_msg_size=size))


def held_queue(worker: Worker, **options: Any) -> Callable[[], AbstractContextManager[None]]:
    """Define a queue with one thread and the task ``known``; return a context manager that keeps its thread busy."""
    worker.queue("default", concurrency=1, **{"prefetch": 0, **options})
    begun, end = threading.Event(), threading.Event()
    worker.task(name="known", retry=FAST)(print_nothing)

    @worker.task(name="block")
    def block() -> None:
        begun.set()
        end.wait(60)

    @contextmanager
    def hold() -> Iterator[None]:
        block.delay()
        assert begun.wait(20 * SCALE)
        try:
            yield
        finally:
            end.set()

    return hold


def consumer_of(worker: Worker, js: JetStream) -> PullConsumer:
    """Return the consumer of the only queue of a worker, from which a test receives as another process would."""
    source = worker.handlers[0]
    return js.get_stream(source.stream).get_consumer(source.consumer)


def unfit_headers(js: JetStream) -> list[str]:
    """Return since when the parked calls of unknown tasks have not fit."""
    stream = js.get_stream("TASKS")
    subjects = stream.info(subjects_filter=">").state.subjects or {}
    parked = [stream.get_msg(last_by_subject=item) for item in subjects if item.endswith(".later")]
    return [msg.headers["Worker-Unfit-Since"] for msg in parked]


def print_nothing() -> None:
    """Do nothing."""


_KILL = """
worker = Worker(name="NAME", program="tests", dead_letters="DEAD", concurrency=1)
worker.queue("default", pool="processes")

@worker.task(name="kill", retry=Backoff(attempts=1))
def kill():
    os.kill(os.getpid(), signal.SIGKILL)
"""
_ADDED = """
@worker.task(name="added", retry=Backoff(attempts=1), results="RESULTS")
def added() -> int:
    return 17
"""


def test_a_process_that_has_imported_another_version(js, versions, nats_server, tmp_path):
    """A deploy has replaced the files below a running worker: a call is given back, and uses no attempt."""
    sender, _ = versions
    kill = sender.task(name="kill")(print_nothing)
    added = sender.task(name="added", results="RESULTS")(print_nothing)
    code = _KILL.replace("NAME", sender.name)
    with WorkerProgram(code + _ADDED, nats_server.url, tmp_path) as program:
        program.write(code)
        kill.delay()
        wait_until(lambda: dead_letters(js) == 1, 20)
        call = added.delay()
        wait_until(lambda: "without this task" in program.output, 20)
        program.write(code + _ADDED)
        kill.delay()
        assert call.get(40 * SCALE) == 17
        assert dead_letters(js) == 2
        program.stop()


@pytest.mark.parametrize("pool", ["threads", "processes"])
def test_a_message_that_another_version_decodes(js, stream, nats_server, pool):
    """A function for ``decode`` decides for its process only; what is no JSON is a dead letter at once."""
    done: list[int] = []
    old, new = (Worker(nats_server.url, name=name, dead_letters="DEAD") for name in ("old", "new"))
    old.handler(stream=stream.name, consumer="C", decode=refuse, pool=pool)(record_nothing)
    new.handler(stream=stream.name, consumer="C", decode=int)(done.append)
    with running(old):
        js.publish(f"{stream.name}.a", b"17")
        time.sleep(1 * SCALE)
        assert stream.get_consumer("C").info().num_ack_pending == 1
    with running(new):
        wait_until(lambda: done == [17], 30)
    assert js.get_stream("DEAD").info().state.messages == 0


def refuse(_data: bytes) -> int:
    """Decode nothing."""
    raise ValueError("no")


def record_nothing(_number: int) -> None:
    """Handle nothing."""


@dataclass
class Order:
    """What the handlers get."""

    number: int
    day: date


def test_payloads_arrive_as_the_annotation_of_the_handler(js, stream, nats_server):
    """One rule for handlers, batches and tasks; what does not fit is given back."""
    seen: list[object] = []
    worker = Worker(nats_server.url, name="typed", dead_letters="DEAD")

    @worker.handler(
        stream=stream.name, consumer="C", filter_subject=f"{stream.name}.a", decode="json"
    )
    def handle(order: Order) -> None:
        seen.append(order)

    @worker.batch(
        stream=stream.name, consumer="B", filter_subject=f"{stream.name}.b", decode="json"
    )
    def handle_all(orders: list[Order]) -> None:
        seen.extend(orders)

    @worker.handler(
        stream=stream.name, consumer="P", filter_subject=f"{stream.name}.p", decode="json"
    )
    def plain(order, ctx) -> None:  # type: ignore[no-untyped-def]
        del ctx
        seen.append(order)

    for token in "abp":
        js.publish(f"{stream.name}.{token}", b'{"number": 1, "day": "2026-01-02"}')
    js.publish(f"{stream.name}.a", b'{"number": "one", "day": "2026-01-02"}')
    with running(worker):
        wait_until(lambda: len(seen) == 3)
        wait_until(lambda: stream.get_consumer("C").info().num_ack_pending == 1)
    assert seen.count(Order(1, date(2026, 1, 2))) == 2
    assert {"number": 1, "day": "2026-01-02"} in seen


def test_an_annotation_that_the_decoder_does_not_make_is_refused():
    """A handler that wants an object and would get bytes is refused at its definition."""
    worker = Worker(name="typed")

    def of_order(order: Order) -> None: ...

    def of_orders(orders: list[Order]) -> None: ...

    def of_text(text: str | None) -> None: ...

    def of_data(data: bytes | bytearray, ctx: Context) -> None: ...

    def of_annotated(data: Annotated[bytes, "an image"]) -> None: ...

    def of_any(data: Any) -> None: ...

    def of_sequence(data: Sequence[int]) -> None: ...

    def define(function: Callable[..., object], **options: Any) -> None:
        name = uuid.uuid4().hex
        worker.handler(stream="S", consumer=name, **options)(function)

    for function in (of_data, of_annotated, of_any, of_sequence):
        define(function)
    define(of_text, decode="text")
    define(of_order, decode="json")
    define(of_order, decode=pickle.loads)
    for function, options in ((of_order, {}), (of_order, {"decode": "text"}), (of_text, {})):
        with pytest.raises(InvalidOptionError, match="passes (bytes|str) to a parameter that is"):
            define(function, **options)
    with pytest.raises(InvalidOptionError, match="decode='bytes': passes bytes"):
        worker.batch(stream="S", consumer="B")(of_orders)
