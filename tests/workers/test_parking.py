"""Retries with long delays, and calls that a worker gives back, which wait in the stream."""

from __future__ import annotations

import threading
from collections import defaultdict

import pytest
from fixtures.rawnats import RawClient
from fixtures.threads import wait_until
from fixtures.worker import FAST, RunningWorker, dead_letters, is_settled, running

from jetstream_sync import (
    InvalidOptionError,
    JetStream,
    RetentionPolicy,
    Stream,
    shared_connection,
)
from jetstream_sync.workers import Backoff, Context, Retry, Worker

SLOW = Backoff(first=1.2, factor=1.0, maximum=1.2, jitter=0.0, attempts=3)


@pytest.fixture
def tasks(js: JetStream) -> Stream:
    """A work queue that can hold parked messages."""
    return js.create_stream(
        name="TASKS",
        subjects=["tasks.>", "parked.TASKS.>"],
        allow_msg_schedules=True,
        retention=RetentionPolicy.WORK_QUEUE,
    )


@pytest.mark.server(">=2.12")
def test_a_long_delay_is_spent_in_the_stream(js, tasks, worker):
    """Other messages go on with a single place; attempts, id and headers continue."""
    runs: list[tuple[bytes, int, str, str]] = []
    tasks.create_consumer(durable_name="C", filter_subject="tasks.>", max_ack_pending=1)

    @worker.handler(
        stream="TASKS", consumer="C", filter_subject="tasks.>", retry=SLOW, park_after=1
    )
    def handle(data: bytes, ctx: Context) -> None:
        runs.append((data, ctx.attempt, ctx.id, ctx.message.headers["Tenant"]))
        if data == b"bad":
            raise OSError("busy")
        if data == b"short" and ctx.attempt == 1:
            raise Retry("soon", delay=0.1)

    assert worker.check().status == 0
    headers = {"Tenant": "t", "Nats-Msg-Id": "mine"}
    js.publish("tasks.a", b"bad", headers=headers)
    js.publish("tasks.b", b"good", headers={"Tenant": "t"})
    js.publish("tasks.c", b"short", headers={"Tenant": "t"})
    with running(worker):
        wait_until(lambda: len(runs) >= 4)
        assert [(data, attempt) for data, attempt, _, _ in runs] == [
            (b"bad", 1),
            (b"good", 1),
            (b"short", 1),
            (b"short", 2),
        ]
        assert dead_letters(js) == 0
        wait_until(lambda: dead_letters(js) == 1 and is_settled(tasks))
    bad = [run for run in runs if run[0] == b"bad"]
    assert [attempt for _, attempt, _, _ in bad] == [1, 2, 3]
    assert len({(name, tenant) for _, _, name, tenant in bad}) == 1
    letter = js.get_stream("DEAD").get_msg(seq=1)
    assert letter.headers["Dead-Attempts"] == "3"
    assert letter.headers["Dead-Subject"] == "tasks.a"
    assert not [name for name in letter.headers if name.startswith("Worker-")]
    assert tasks.info().state.messages == 0


@pytest.mark.server(">=2.12")
def test_a_message_that_cannot_be_parked_waits_in_the_consumer(js, tasks, worker, caplog):
    """If the stream refuses the schedule, the message is delivered again after its delay."""
    attempts: list[int] = []

    @worker.handler(
        stream="TASKS", consumer="C", filter_subject="tasks.>", retry=SLOW, park_after=1
    )
    def handle(ctx: Context) -> None:
        attempts.append(ctx.attempt)
        if ctx.attempt == 1:
            js.update_stream(
                name="TASKS",
                subjects=["tasks.>"],
                allow_msg_schedules=True,
                retention=RetentionPolicy.WORK_QUEUE,
            )
            raise OSError("busy")

    js.publish("tasks.a")
    with running(worker):
        wait_until(lambda: len(attempts) == 2 and is_settled(tasks), 10)
    assert attempts == [1, 2]
    assert "is not parked" in caplog.text


@pytest.mark.server(">=2.12")
@pytest.mark.parametrize(
    "line",
    [
        *(b"Worker-Origin: \xff", b"Worker-Origin: a..b", b"Worker-Origin:"),
        *(b"Worker-Origin: " + b"z" * 5000, b"Worker-Origin: TASKS/C/1/ x"),
        *(b"Worker-Origin: TASKS/C/7/1", b"Worker-Attempt: 20", b"Worker-Attempt: " + b"9" * 5000),
    ],
    ids=[
        "no UTF-8",
        "empty token",
        "empty",
        "long",
        "almost an id",
        "an id",
        "number",
        "long number",
    ],
)
def test_headers_of_another_client_are_no_attempts(nats_server, js, tasks, worker, line):
    """Its message is run and retried like any other, under its own id."""
    runs = []

    @worker.handler(
        stream="TASKS",
        consumer="C",
        filter_subject="tasks.>",
        retry=Backoff(first=0.1, attempts=2),
        park_after=10,
        once="ONCE",
    )
    def handle(ctx: Context) -> None:
        runs.append((ctx.id.rpartition("/")[0], ctx.attempt))
        raise OSError("busy")

    block = b"NATS/1.0\r\n" + line + b"\r\n\r\n"
    client = RawClient(nats_server.port)
    client.send(b"HPUB tasks.a %d %d\r\n%s\r\n" % (len(block), len(block), block))
    with running(worker):
        wait_until(lambda: dead_letters(js) == 1 and is_settled(tasks))
    client.close()
    assert runs == [("TASKS/C/1", 1), ("TASKS/C/1", 2)]
    js.delete_key_value("ONCE")


@pytest.mark.server(">=2.12")
def test_a_handler_that_passes_on_all_headers(js, tasks, worker):
    """Its message has another subject: it is run, also with ``once``, and has an id and attempts of its own."""
    runs: list[tuple[str, int, str]] = []

    @worker.handler(
        stream="TASKS",
        consumer="C",
        filter_subject="tasks.>",
        retry=SLOW,
        park_after=1,
        once="ONCE",
    )
    def handle(ctx: Context) -> None:
        runs.append((ctx.message.subject, ctx.attempt, ctx.id))
        if len(runs) == 1:
            raise OSError("busy")
        if ctx.message.subject == "tasks.a":
            js.publish("tasks.b", headers=ctx.message.headers)

    js.publish("tasks.a")
    with running(worker):
        wait_until(lambda: len(runs) == 3)
        wait_until(lambda: is_settled(tasks))
    js.delete_key_value("ONCE")
    assert [run[:2] for run in runs] == [("tasks.a", 1), ("tasks.a", 2), ("tasks.b", 1)]
    assert runs[0][2] == runs[1][2] != runs[2][2]


@pytest.mark.server(">=2.12")
@pytest.mark.usefixtures("tasks")
def test_parking_needs_a_work_queue_with_schedules(stream, nats_server):
    """The worker does not start, and names what is missing."""
    for name, options, option in [
        (stream.name, {"filter_subject": f"{stream.name}.a"}, "retention"),
        ("TASKS", {}, "filter_subjects"),
    ]:
        worker = Worker(nats_server.url)
        worker.handler(stream=name, consumer="C", park_after=60, **options)(print)
        assert option in worker.check().errors[0]
        with running(worker) as run:
            assert run.ended() == 2
    for options in ({"key": str}, {"retry": Backoff(in_place=True, attempts=2)}, {}):
        with pytest.raises(InvalidOptionError, match="park_after"):
            worker.handler(stream="S", consumer="D", park_after=60 if options else 0, **options)(
                print
            )


@pytest.mark.server(">=2.12")
@pytest.mark.parametrize(
    "options",
    [{}, {"limit": "one"}, {"key": lambda _: "same"}],
    ids=["plain", "limit", "key"],
)
def test_calls_that_a_stop_gives_back_keep_their_attempts(js, nats_server, caplog, options):
    """As often as they wait in a worker that stops; those with a key stay in the consumer, which counts them."""
    caplog.set_level("INFO", logger="jetstream_sync.worker")
    goes_on, fails = threading.Event(), threading.Event()
    attempts: dict[int, list[int]] = defaultdict(list)
    is_ordered = "key" in options

    def worker() -> Worker:
        found = Worker(
            nats_server.url, name="stops", program="tests", dead_letters="DEAD", drain_timeout=4.0
        )
        found.limit("one", 1)
        found.queue("default", concurrency=2 if "limit" in options else 1, prefetch=10, **options)

        @found.task(name="work", retry=FAST)
        def work(number: int, ctx: Context) -> None:
            attempts[number].append(ctx.attempt)
            if fails.is_set():
                raise ValueError(number)
            goes_on.wait(60)

        return found

    def stop_one(left: int) -> None:
        """Run a worker that ends one call, and gives the others back."""
        caplog.clear()
        goes_on.clear()
        run = RunningWorker(worker())
        wait_until(lambda: len(attempts) == 8 - left)
        consumer = stream.get_consumer("tasks-stops-default")
        wait_until(lambda: consumer.info().num_ack_pending == left)
        run.worker.stop()
        if is_ordered:
            wait_until(lambda: "returned without a run" in caplog.text, 20)
        else:  # the others wait in the stream
            wait_until(lambda: consumer.info().num_ack_pending == 1, 20)
        goes_on.set()
        assert run.ended() == 0

    work = worker().queues.tasks["work"]
    for number in range(7):
        work.delay(number)
    shared_connection(nats_server.url, name="stops").close()
    stream = js.get_stream("TASKS")
    if is_ordered:
        for left in (7, 6):
            stop_one(left)
        assert list(attempts.values()) == [[1], [2]]
        return
    for left in (7, 6, 5, 4):
        stop_one(left)
    # Each call of these ran once, and the others were held by all workers.
    assert stream.info().state.messages == 3
    assert set(map(tuple, attempts.values())) == {(1,)}
    others = set(range(7)) - attempts.keys()
    fails.set()
    with running(worker()):
        wait_until(lambda: dead_letters(js) == len(others), 20)
        wait_until(lambda: stream.info().state.messages == 0)
    assert {tuple(attempts[number]) for number in others} == {(1, 2, 3)}
    dead = js.get_stream("DEAD")
    letters = [dead.get_msg(seq).headers["Dead-Attempts"] for seq in (1, 2, 3)]
    assert letters == ["3"] * 3
