"""Limits of tasks that hold for all processes, on a real server."""

from __future__ import annotations

import threading
import time
from contextlib import ExitStack

import pytest
from fixtures.server import paused
from fixtures.threads import wait_until
from fixtures.worker import WorkerProgram, dead_letters, running

from jetstream_sync.workers import Backoff, Context, Worker
from jetstream_sync.workers.limits import LIMITS_BUCKET, PART_TTL_S, SLICE_S

_CODE = """
worker = Worker(name="limited", program="limited", concurrency=4, dead_letters="DEAD")
worker.limit("smtp", {limit}, scope="cluster")

@worker.task(name="send", limit="smtp", retry=Backoff(first=0.1, attempts=5))
def send(number: int) -> None:
    record(f"{{os.getpid()}} {{number}} begin {{time.time()}}")
    time.sleep({seconds})
    record(f"{{os.getpid()}} {{number}} end {{time.time()}}")
"""


@pytest.fixture
def send(nats_server, js):
    """The task that the programs run, for sending its calls."""
    del js  # it deletes the streams
    worker = Worker(nats_server.url, name="limited", program="limited")
    worker.limit("smtp", 1, scope="cluster")

    @worker.task(name="send", limit="smtp")
    def send(number: int) -> None:
        del number

    return send


@pytest.fixture
def start(nats_server, tmp_path):
    """Start processes with a code; they are ended with the test."""
    with ExitStack() as stack:

        def start(code: str, count: int) -> list[WorkerProgram]:
            programs = [WorkerProgram(code, nats_server.url, tmp_path) for _ in range(count)]
            return [stack.enter_context(program) for program in programs]

        yield start


def _spans(program: WorkerProgram) -> list[tuple[int, int, float, float | None]]:
    """Return process, call, begin and end of each run; one that was killed has no end."""
    begun: dict[tuple[int, int], float] = {}
    found: list[tuple[int, int, float, float | None]] = []
    for line in program.runs:
        pid, number, what, at = line.split()
        key = int(pid), int(number)
        if what == "begin":
            begun[key] = float(at)
        else:
            found.append((*key, begun.pop(key), float(at)))
    return [*found, *((*key, at, None) for key, at in begun.items())]


def _most(spans: list[tuple[int, int, float, float | None]], end: float) -> int:
    """Return how many calls ran at a time; those without an end until a time."""
    events = [(begun, 1) for _, _, begun, _ in spans]
    events += [(end if ended is None else ended, -1) for *_, ended in spans]
    found = most = 0
    for _, change in sorted(events):
        found += change
        most = max(most, found)
    return most


def test_five_processes_never_run_more_and_use_the_slots_of_a_killed_one(js, start, send):
    """Five processes never run more than three calls; the part of a killed one is free after its time to live."""
    code = _CODE.format(limit="3", seconds=0.1)
    programs = start(code, 5)
    count = 400
    for number in range(count):
        send.delay(number)
    programs[0].wait_runs(80)

    def holder() -> WorkerProgram | None:
        spans = _spans(programs[0])
        pids = {pid for pid, _, _, ended in spans if ended is None}
        return next((item for item in programs if item.process.pid in pids), None)

    wait_until(lambda: holder() is not None)
    victim = holder()
    victim.process.kill()
    killed_at = time.time()
    victim.process.wait()

    def done() -> set[int]:
        return {number for _, number, _, ended in _spans(programs[0]) if ended is not None}

    wait_until(lambda: len(done()) == count, 90)
    spans = _spans(programs[0])
    assert _most(spans, killed_at) == 3
    # Its part is not used while it may still run, and is used afterwards.
    ttl = killed_at + PART_TTL_S
    after = [span for span in spans if span[2] > ttl + SLICE_S]
    if after:
        assert _most(after, ttl) == 3
    assert len({pid for pid, *_ in spans}) == 5
    wait_until(lambda: js.get_stream("TASKS").info().state.messages == 0)
    assert not dead_letters(js)


@pytest.mark.full
@pytest.mark.timeout(120)
def test_a_silent_server_lets_no_call_above_the_limit_run(fresh_server, tmp_path):
    """While the server is stopped for longer than parts live, and after it, no more than two calls run; all do."""
    sender = Worker(fresh_server.url, name="limited", program="limited")
    sender.limit("smtp", 2, scope="cluster")

    @sender.task(name="send", limit="smtp")
    def send(number: int) -> None: ...

    count = 60
    for number in range(count):
        send.delay(number)
    with ExitStack() as stack:
        code = _CODE.format(limit="2", seconds=0.2)
        programs = [
            stack.enter_context(WorkerProgram(code, fresh_server.url, tmp_path)) for _ in range(3)
        ]
        programs[0].wait_runs(10)
        with paused(fresh_server):
            time.sleep(PART_TTL_S + 2)
        wait_until(lambda: len({span[1] for span in _spans(programs[0])}) == count, 60)
        wait_until(lambda: all(span[3] is not None for span in _spans(programs[0])))
        assert _most(_spans(programs[0]), time.time()) == 2


def test_five_processes_keep_the_rate(js, start, send):
    """In each second, five processes start no more calls than the rate and a slice, and nearly as many."""
    code = _CODE.format(limit="rate='20/s'", seconds=0.001)
    for number in range(160):
        send.delay(number)
    programs = start(code, 5)
    wait_until(lambda: len(_spans(programs[0])) == 160, 60)
    starts = sorted(begun for _, _, begun, _ in _spans(programs[0]))
    for seconds in (0.5, 1.0, 3.0):
        for index, first in enumerate(starts):
            within = [item for item in starts[index:] if item <= first + seconds]
            assert len(within) <= 20 * (seconds + SLICE_S) + 1
    # 8 seconds at the rate; the requests of a slice are few.
    assert starts[-1] - starts[0] < 16
    revisions = js.get_stream(f"KV_{LIMITS_BUCKET}").info().state.last_seq
    assert revisions < (starts[-1] - starts[0] + 2) * 5 / (SLICE_S / 2) * 2


def test_waiting_calls_hold_no_thread_no_place_and_no_attempt(js, nats_server):
    """Behind 60 calls that wait for long, another task of the queue runs at once; waiting uses no attempts."""
    worker = Worker(nats_server.url, name="w", program="w", concurrency=2, dead_letters="DEAD")
    worker.limit("slow", 1, scope="cluster")
    release, attempts, ids = threading.Event(), [], set()

    @worker.task(limit="slow", retry=Backoff(first=0.1, attempts=2))
    def slow(number: int, *, ctx: Context) -> None:
        attempts.append((number, ctx.attempt))
        ids.add(ctx.id)
        release.wait(60)

    @worker.task(results="RESULTS")
    def fast() -> str:
        return "done"

    with running(worker):
        for number in range(60):
            slow.delay(number)
        wait_until(lambda: len(attempts) == 1)
        begun = time.monotonic()
        assert fast.delay().get(timeout=20) == "done"
        assert time.monotonic() - begun < 10
        stream = js.get_stream("TASKS")
        consumer = stream.get_consumer("tasks-w-default")
        wait_until(
            lambda: consumer.info().num_pending == 0 and consumer.info().num_ack_pending <= 12
        )
        time.sleep(3)  # some have returned, and wait again
        assert stream.info().state.messages >= 60
        assert consumer.info().num_ack_pending <= 20
        release.set()
        wait_until(lambda: len(attempts) == 60, 60)
        wait_until(lambda: stream.info().state.messages == 0)
    assert sorted(attempts) == [(number, 1) for number in range(60)]
    assert len(ids) == 60
    assert not dead_letters(js)


def test_each_key_has_the_limit_for_itself(js, nats_server):
    """The calls of one tenant wait for each other, and not for those of another one."""
    worker = Worker(nats_server.url, name="w", program="w", concurrency=8)
    worker.limit("api", 1, scope="cluster")
    lock, now, most, order = threading.Lock(), {}, {}, []

    @worker.task(limit="api", limit_key=lambda call: call.kwargs["tenant"])
    def fetch(tenant: str = "a", seconds: float = 0.1) -> None:
        with lock:
            now[tenant] = now.get(tenant, 0) + 1
            most[tenant] = max(most.get(tenant, 0), now[tenant])
        time.sleep(seconds)
        with lock:
            now[tenant] -= 1
            order.append(tenant)

    with running(worker):
        fetch.delay("busy", 5)
        for _ in range(5):
            fetch.delay("busy")
            fetch.delay(tenant="b")
            fetch.delay()
        wait_until(lambda: len(order) >= 10)
        assert set(order[:10]) == {"a", "b"}
        wait_until(lambda: len(order) == 16, 40)
    assert most == {"a": 1, "b": 1, "busy": 1}
    assert len(list(js.key_value(LIMITS_BUCKET).keys())) == 3
    wait_until(lambda: js.get_stream("TASKS").info().state.messages == 0)


def test_a_failing_key_fails_the_call(js, nats_server):
    """An error of limit_key, and arguments that do not fit, are failures of the call and not of the worker."""
    worker = Worker(nats_server.url, name="w", program="w", dead_letters="DEAD")
    worker.queue("default", unknown_task_grace=0)  # else another version may have other arguments
    worker.limit("api", 1, scope="cluster")
    seen = []

    @worker.task(
        limit="api", limit_key=lambda call: 1 / call.kwargs["n"], retry=Backoff(attempts=1)
    )
    def fetch(n: int) -> None:
        seen.append(n)

    with running(worker):
        fetch.delay(0)  # ZeroDivisionError
        fetch.delay(1)  # a float
        js.publish(fetch.queue.address(fetch.name, "other").now, b'{"args": [1, 2, 3]}')
        wait_until(lambda: "DEAD" in js.stream_names() and dead_letters(js) == 3)
    assert not seen


def test_a_waiting_call_is_found_and_cancelled(js, nats_server):
    """A call that has gone back to the server can be cancelled, and one of a stopped worker is run by the next."""
    worker = Worker(nats_server.url, name="w", program="w", concurrency=2)
    worker.limit("one", 1, scope="cluster")
    release, seen = threading.Event(), []

    @worker.task(limit="one", results="RESULTS")
    def slow(number: int) -> int:
        seen.append(number)
        release.wait(60)
        return number

    with running(worker):
        calls = [slow.delay(0)]
        wait_until(lambda: seen == [0])
        calls += [slow.delay(number) for number in range(1, 30)]
        stream = js.get_stream("TASKS")
        wait_until(lambda: stream.get_consumer("tasks-w-default").info().num_pending == 0)
        time.sleep(0.5)
        assert calls[-1].status == "READY"
        assert calls[-1].cancel()
        release.set()
    # The parts are given back by a stop, and the calls that waited there are returned.
    assert js.key_value(LIMITS_BUCKET).get("one").value.startswith(b"[{}")
    with running(worker):
        assert [call.get(timeout=60) for call in calls[:-1]] == list(range(29))
    assert sorted(seen) == list(range(29))
    assert stream.info().state.messages == 0


def test_a_deleted_bucket_is_created_again(js, nats_server):
    """Calls go on after the bucket of the limits was deleted, within the limit."""
    worker = Worker(nats_server.url, name="w", program="w")
    worker.limit("two", 2, scope="cluster")

    @worker.task(limit="two", results="RESULTS")
    def work() -> None:
        time.sleep(0.01)

    with running(worker):
        work.delay().get(timeout=20)
        js.delete_key_value(LIMITS_BUCKET)
        for call in [work.delay() for _ in range(5)]:
            call.get(timeout=30)
    assert js.key_value(LIMITS_BUCKET).get("two").value


@pytest.mark.parametrize("foreign", [b"[{}, 1e999, 0]", b"[" * 5000, b'[{"a": [1, 2]}, 1, 1]'])
def test_foreign_data_of_a_limit_make_its_calls_wait(js, nats_server, caplog, foreign):
    """Data that is no state of a limit is neither overwritten nor the end of a thread."""
    worker = Worker(nats_server.url, name="w", program="w")
    worker.limit("two", 2, scope="cluster")

    @worker.task(limit="two", results="RESULTS")
    def work() -> None:
        """Do nothing."""

    with running(worker):
        work.delay().get(timeout=20)
        bucket = js.key_value(LIMITS_BUCKET)
        bucket.put("two", foreign)
        # The thread of the limits finds it first, when it gives back what the process does not use.
        wait_until(lambda: "limit two: it cannot be used" in caplog.text)
        call = work.delay()
        time.sleep(0.5)
        assert call.status == "READY"
        assert bucket.get("two").value == foreign
        bucket.delete("two")
        call.get(timeout=60)
