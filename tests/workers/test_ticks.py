"""Ticks: the calls that schedules make; none is lost, none that has started is replaced, and runs do not overlap."""

from __future__ import annotations

import threading
import time
import uuid
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from datetime import datetime, timedelta, timezone

import pytest
from fixtures.threads import SCALE, wait_until
from fixtures.worker import running

from jetstream_sync import JetStream, StreamNotFoundError, shared_connection
from jetstream_sync.server import NatsServer
from jetstream_sync.workers import Backoff, Context, Retry, Worker

pytestmark = [pytest.mark.timeout(110), pytest.mark.server(">=2.14")]


@pytest.fixture
def worker(nats_server: NatsServer, js: JetStream) -> Iterator[Worker]:
    """A worker whose streams and buckets end with the test."""
    found = Worker(
        nats_server.url, name=uuid.uuid4().hex, program="tests", dead_letters="DEAD", concurrency=4
    )
    yield found
    shared_connection(nats_server.url, name=found.name).close()
    for stream in ("DEAD", "TASKS", "KV_RESULTS", "KV_TASK_LEASES"):
        with suppress(StreamNotFoundError):
            js.delete_stream(stream)


def stored_ticks(js: JetStream, worker: Worker, task: str) -> int:
    """Return the number of stored ticks of a schedule with the name of its task."""
    subject = f"tasks.{worker.name}.default.{task}.{task}"
    return (js.get_stream("TASKS").info(subjects_filter=subject).state.subjects or {}).get(
        subject, 0
    )


def outcomes(worker: Worker) -> Counter[str]:
    """Return the outcomes that the running worker has counted."""
    found: Counter[str] = Counter()
    for item in (worker.snapshot() or {"handlers": []})["handlers"]:
        found.update(item["counts"])
    return found


def test_ticks_that_fail_become_dead_letters(worker, js):
    """A tick that has started keeps its attempts, its state and its dead letter, whatever ticks follow it."""
    runs: Counter[str] = Counter()

    @worker.task(
        name="tick", every=1, results="RESULTS", retry=Backoff(first=1.5, factor=1.0, attempts=3)
    )
    def tick(ctx: Context) -> None:
        runs[ctx.call[0].id] += 1
        raise ValueError("no")

    with running(worker):
        wait_until(lambda: len(runs) >= 4, 30)
        for schedule in worker.find_schedules():
            worker.delete_schedules([schedule])
        wait_until(lambda: stored_ticks(js, worker, "tick") == 0, 40)
    assert set(runs.values()) == {3}
    assert {tick.result_of(item).status for item in runs} == {"FAILED"}
    assert js.get_stream("DEAD").info().state.messages == len(runs)


def test_missed_ticks_are_skipped_and_counted(worker, js):
    """Of the ticks that were stored while no worker ran, the last one runs; the others are settled and counted."""
    ran: list[str] = []

    @worker.task(name="tick", every=1)
    def tick(ctx: Context) -> None:
        ran.append(ctx.message.metadata.timestamp.isoformat())

    with running(worker):
        wait_until(lambda: ran, 20)
    wait_until(lambda: stored_ticks(js, worker, "tick") >= 4, 30)
    ran.clear()
    with running(worker):
        wait_until(lambda: ran and outcomes(worker)["skipped"] >= 3, 20)
        assert len(ran) <= 2
        wait_until(lambda: stored_ticks(js, worker, "tick") == 0, 20)


def test_a_clock_that_is_set_back_skips_no_tick(worker, js):
    """A tick of an hour from now, which the server stored before its clock was corrected, is newer than no other."""
    ran: dict[int, bool] = {}

    @worker.task(name="tick", every=1)
    def tick(ctx: Context) -> None:
        ran[ctx.message.metadata.stream_seq] = "Worker-Stored" in ctx.message.headers

    with running(worker):
        wait_until(lambda: ran, 20)
        subject = f"tasks.{worker.name}.default.tick.tick"
        # As a retry of it is parked: its time is in a header.
        headers = {
            "Worker-Schedule": "x",
            "Worker-Subject": subject,
            "Worker-Stored": str(time.time_ns() + 3600 * 10**9),
        }
        at = datetime.now(timezone.utc) + timedelta(seconds=0.5)
        payload = b'{"args":[],"kwargs":{}}'
        js.schedule("parked.TASKS.x.1", payload, target=subject, at=at, headers=headers)
        wait_until(lambda: any(ran.values()), 20)
        seq = next(item for item, is_ahead in ran.items() if is_ahead)
        wait_until(lambda: len([item for item in ran if item > seq]) >= 3, 20)


def test_a_cancelled_call_and_ticks_leave_other_pending_calls_alone(worker, js):
    """Calls that wait for their retry are delivered again, although another one is cancelled and ticks come."""
    failed: set[int] = set()
    done: set[int] = set()

    @worker.task(name="tick", every=1, missed="last")
    def tick() -> None:
        time.sleep(0.1)

    @worker.task(name="work", results="RESULTS")
    def work(number: int, ctx: Context) -> None:
        if ctx.attempt == 1:
            failed.add(number)
            raise Retry("later", delay=4.0)
        done.add(number)

    with running(worker):
        calls = [work.delay(number) for number in range(10)]
        wait_until(lambda: len(failed) == 10, 20)
        assert calls[7].cancel()
        work.delay(10)
        wait_until(lambda: len(done) == 10, 40)
        assert done == {*range(11)} - {7}
    assert (
        js.get_stream("TASKS").info().state.messages == stored_ticks(js, worker, "tick") + 1
    )  # and its schedule


def test_runs_of_a_schedule_do_not_overlap(worker, nats_server):
    """The runs of two processes exclude each other by default; with ``overlap=True`` they do not."""
    lock = threading.Lock()
    current: Counter[str] = Counter()
    most: Counter[str] = Counter()

    def enter(name: str) -> None:
        with lock:
            current[name] += 1
            most[name] = max(most[name], current[name])
        time.sleep(2.5)
        with lock:
            current[name] -= 1

    other = Worker(
        nats_server.url, name=worker.name, program="tests", dead_letters="DEAD", concurrency=4
    )
    for item in (worker, other):
        item.task(name="alone", every=1)(lambda: enter("alone"))
        item.task(name="beside", every=1, overlap=True)(lambda: enter("beside"))
    with running(worker), running(other):
        wait_until(lambda: most["beside"] >= 2, 30)
        time.sleep(4 * SCALE)
        assert (outcomes(worker) + outcomes(other))["skipped"] >= 1
    assert most["alone"] == 1


def test_ticks_go_on_after_their_leases_were_deleted(worker, js):
    """The worker creates the bucket again."""
    runs: list[int] = []

    @worker.task(name="often", every=1)
    def often() -> None:
        runs.append(1)

    with running(worker):
        wait_until(lambda: runs, 20)
        js.delete_stream("KV_TASK_LEASES")
        before = len(runs)
        wait_until(lambda: len(runs) > before + 2, 30)
        assert "KV_TASK_LEASES" in js.stream_names()


def test_ticks_that_must_not_be_skipped_wait_for_each_other(worker, js):
    """With ``missed="all"``, all ticks run, one at a time."""
    lock = threading.Lock()
    spans: list[tuple[float, float]] = []

    @worker.task(name="tick", every=1, missed="all")
    def tick() -> None:
        assert lock.acquire(blocking=False)
        began = time.monotonic()
        time.sleep(1.2)
        lock.release()
        spans.append((began, time.monotonic()))

    with running(worker):
        wait_until(lambda: len(spans) >= 4, 40)
        for schedule in worker.find_schedules():
            worker.delete_schedules([schedule])
        wait_until(lambda: stored_ticks(js, worker, "tick") == 0, 40)
        assert outcomes(worker)["skipped"] == outcomes(worker)["retry"] == 0


def test_the_lease_of_a_killed_run_expires(worker, js):
    """A lease that no process renews is free after its time."""
    ran: list[int] = []

    @worker.task(name="tick", every=1)
    def tick() -> None:
        ran.append(1)

    key = f"tasks.{worker.name}.default.tick.tick"
    worker.setup()
    bucket = js.key_value("TASK_LEASES")
    assert bucket.status().config.ttl.total_seconds() == 30
    bucket.create(key, b'{"owner": "killed", "ttl": 30}')
    with running(worker):
        time.sleep(3 * SCALE)
        assert not ran
        assert outcomes(worker)["skipped"]
        bucket.delete(key)
        wait_until(lambda: ran, 20)


def test_ticks_of_an_unknown_task_reach_their_grace(worker, js, nats_server):
    """Each tick of a frequent task that no process has becomes a dead letter."""

    @worker.task(name="gone", every=1)
    def gone() -> None:
        pass

    with running(worker):
        pass
    other = Worker(nats_server.url, name=worker.name, program="tests", dead_letters="DEAD")
    other.queue("default", unknown_task_grace=3)
    other.task(name="known")(lambda: None)
    with running(other):
        wait_until(
            lambda: (
                "DEAD" in js.stream_names() and js.get_stream("DEAD").info().state.messages >= 2
            ),
            40,
        )
