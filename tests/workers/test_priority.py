"""Urgent calls, on a real server."""

from __future__ import annotations

import threading
import time
import uuid
from contextlib import suppress

import pytest
from fixtures.threads import wait_until
from fixtures.worker import running

from jetstream_sync import InvalidOptionError, StreamNotFoundError, shared_connection
from jetstream_sync.workers import Worker
from jetstream_sync.workers.limits import Limit


@pytest.fixture
def worker(nats_server, js):
    """A worker whose connection for sending, stream and bucket end with the test."""
    found = Worker(nats_server.url, name=uuid.uuid4().hex, program="tests", dead_letters="DEAD")
    found.queue("default", urgent=True, concurrency=2)
    yield found
    shared_connection(nats_server.url, name=found.name).close()
    for stream in ("DEAD", "TASKS", "KV_RESULTS"):
        with suppress(StreamNotFoundError):
            js.delete_stream(stream)


@pytest.mark.parametrize("results", [None, "RESULTS"])
def test_urgent_calls_start_before_all_that_wait(worker, js, results):
    """Urgent calls overtake those that wait, never more calls run than threads, and each runs once."""
    release, lock, order, now, most = threading.Event(), threading.Lock(), [], [0], [0]

    @worker.task(results=results)
    def work(name: str) -> None:
        with lock:
            now[0] += 1
            most[0] = max(most[0], now[0])
            order.append(name)
        release.wait(20)
        time.sleep(0.01)
        with lock:
            now[0] -= 1

    with running(worker):
        for number in range(30):
            work.delay(f"normal {number}")
        wait_until(lambda: len(order) == 2)
        for number in range(10):
            work.apply_async([f"urgent {number}"], priority="urgent")
        consumer = js.get_stream("TASKS").get_consumer(f"tasks-{worker.name}-default-urgent")
        wait_until(lambda: consumer.info().num_ack_pending > 0)
        time.sleep(0.5)
        assert len(order) == 2
        release.set()
        wait_until(lambda: len(order) == 40)
        wait_until(lambda: js.get_stream("TASKS").info().state.messages == 0)
    assert most == [2]
    assert len(set(order)) == 40
    # At most the calls that a thread has got already come between them.
    places = [place for place, name in enumerate(order) if name.startswith("urgent")]
    assert max(places) <= 2 + 10 + 2


def test_an_urgent_call_is_found(worker, js):
    """Its status is known, it can be cancelled, a second one with its id is not sent, and it may be later."""

    @worker.task(results="RESULTS", unique="queued")
    def work(name: str) -> str:
        return name

    call = work.apply_async(["a"], priority="urgent", task_id="one")
    assert work.apply_async(["b"], task_id="one").id == call.id
    assert work.apply_async(["a"]).id == call.id  # unique
    stream = js.get_stream("TASKS")
    assert stream.info().state.messages == 1
    assert stream.get_msg(1).subject.split(".")[2] == "default-urgent"
    assert call.status == "READY"
    assert call.cancel()
    assert stream.info().state.messages == 0
    later = work.apply_async(["c"], priority="urgent", countdown=1)
    with running(worker):
        assert later.get(timeout=20) == "c"
        assert work.delay("d").get(timeout=20) == "d"


def test_priorities_are_checked(worker):
    """Unknown levels, queues without urgent calls, and options that exclude them are refused."""
    worker.queue("plain")

    @worker.task
    def work() -> None: ...

    @worker.task(queue="plain")
    def plain() -> None: ...

    for wrong in ("high", 5, None):
        with pytest.raises(InvalidOptionError, match="priority"):
            work.apply_async(priority=wrong)
    with pytest.raises(InvalidOptionError, match="urgent=True"):
        plain.apply_async(priority="urgent")
    for options in ({"rate": "1/s"}, {"key": str}, {"exclusive": True}, {"limit": "x"}):
        with pytest.raises(InvalidOptionError, match="urgent"):
            worker.queue("other", urgent=True, **options)
    with worker.eager():
        work.apply_async(priority="urgent")


def test_a_limit_lets_urgent_threads_in_first():
    """Of the threads that wait for a limit, the urgent ones are first; a stop ends all waits."""
    limit, order = Limit(1), []
    assert limit.acquire()

    def enter(name: str, *, urgent: bool) -> None:
        if limit.acquire(urgent=urgent):
            order.append(name)
            limit.release()

    threads = []
    for name, urgent in (("a", False), ("b", False), ("c", True), ("d", True)):
        threads.append(threading.Thread(target=enter, args=[name], kwargs={"urgent": urgent}))
        threads[-1].start()
        time.sleep(0.05)
    limit.release()
    for thread in threads:
        thread.join(10)
    assert sorted(order[:2]) == ["c", "d"]
    assert sorted(order) == ["a", "b", "c", "d"]
    assert limit.acquire()
    waiting = [
        threading.Thread(target=enter, args=["x"], kwargs={"urgent": u}) for u in (True, False)
    ]
    for thread in waiting:
        thread.start()
    limit.stop()
    for thread in waiting:
        thread.join(10)
    assert "x" not in order
