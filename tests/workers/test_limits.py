"""Handlers with a limit or a rate."""

from __future__ import annotations

import threading
import time

from fixtures.threads import wait_until
from fixtures.worker import is_settled, publish_numbers, running

from jetstream_sync.workers import Backoff


def test_a_limit_holds_for_several_handlers(js, stream, worker):
    """Handlers with one limit never run more messages at a time, and one without it is not affected."""
    worker.limit("smtp", 2)
    lock = threading.Lock()
    running_now = 0
    most = 0
    seen = []
    both = threading.Barrier(4)

    def handle() -> None:
        nonlocal running_now, most
        with lock:
            running_now += 1
            most = max(most, running_now)
        time.sleep(0.01)
        with lock:
            running_now -= 1
            seen.append(1)

    def free() -> None:
        both.wait(20)  # all four threads run at a time

    for name in ("A", "B"):
        worker.handler(stream=stream.name, consumer=name, concurrency=4, limit="smtp")(handle)
    worker.handler(stream=stream.name, consumer="FREE", concurrency=4)(free)
    publish_numbers(js, stream, 20)
    with running(worker):
        for name in ("A", "B", "FREE"):
            wait_until(lambda name=name: is_settled(stream, name))
    assert len(seen) == 40
    assert most == 2
    assert not both.broken


def test_a_wait_for_a_limit_keeps_the_lease_and_ends_at_a_stop(js, stream, worker):
    """Longer than its lease a message waits without a redelivery; a stop returns it."""
    worker.limit("smtp", 1)
    release, begun = threading.Event(), threading.Event()

    @worker.handler(
        stream=stream.name, consumer="C", concurrency=2, prefetch=0, ack_wait=3, limit="smtp"
    )
    def handle() -> None:
        begun.set()
        release.wait(30)

    publish_numbers(js, stream, 2)
    with running(worker) as run:
        assert begun.wait(20)
        wait_until(lambda: stream.consumer_info("C").num_ack_pending == 2)
        # Each of them is renewed after a third of its lease.
        counts = lambda: worker.snapshot()["handlers"][0]["counts"]  # noqa: E731
        wait_until(lambda: counts()["leases_renewed"] >= 8, 20)
        assert stream.consumer_info("C").num_redelivered == 0
        worker.stop()
        # The waiting message is free before the running handler ends.
        msg = stream.get_consumer("C").next(timeout=10)
        assert msg.metadata.num_delivered == 2
        msg.ack()
        release.set()
        assert run.ended() == 0
    wait_until(lambda: is_settled(stream))


def test_a_rate_spaces_the_starts(js, stream, worker):
    """Starts of all threads together, and of retries, are never closer than the rate; a stop ends waits."""
    starts = []

    @worker.handler(
        stream=stream.name,
        consumer="C",
        concurrency=4,
        rate="20/s",
        retry=Backoff(first=0.1, attempts=2, jitter=0, in_place=True),
    )
    def handle() -> None:
        starts.append(time.monotonic())
        if len(starts) == 1:
            raise OSError("not now")

    @worker.handler(stream=stream.name, consumer="SLOW", rate="1/h", ack_wait=30)
    def slow() -> None:
        pass

    publish_numbers(js, stream, 10)
    began = time.monotonic()
    with running(worker) as run:
        wait_until(lambda: len(starts) == 11)
        wait_until(lambda: is_settled(stream))
        wait_until(lambda: stream.consumer_info("SLOW").ack_floor.consumer_seq == 1)
        assert run.stop() == 0
    # Eleven starts have ten gaps, and no start comes before its time.
    assert starts[-1] - began >= 10 * 0.05
    assert stream.consumer_info("SLOW").num_ack_pending > 0  # returned, and not handled


def test_max_bytes_bounds_what_is_held(js, stream, worker):
    """The held messages fit into max_bytes; a larger one is handled, and the next ones wait for it."""
    gate = threading.Semaphore(0)
    lock = threading.Lock()
    running_now: list[int] = []
    together: list[list[int]] = []
    sizes = [1000] * 8 + [9000] + [1000] * 8

    @worker.handler(stream=stream.name, consumer="C", concurrency=4, prefetch=20, max_bytes=4000)
    def handle(data: bytes) -> None:
        with lock:
            running_now.append(len(data))
            together.append(list(running_now))
        gate.acquire(timeout=30)
        with lock:
            running_now.remove(len(data))

    for size in sizes:
        js.publish(f"{stream.name}.a", b"x" * size)
    held = []

    def settled() -> int:
        info = stream.consumer_info("C")
        held.append(info.num_ack_pending)
        return info.delivered.consumer_seq - info.num_ack_pending

    with running(worker):
        for released in range(len(sizes)):
            wait_until(lambda released=released: running_now and settled() == released)
            gate.release()
        wait_until(lambda: is_settled(stream))
    # Three fit with their subjects. The one that was released may be settled and not confirmed yet.
    assert max(held) <= 4
    assert len(together) == len(sizes)
    assert [found for found in together if 9000 in found[:-1]] == []
    assert max(map(len, together)) > 1
    assert stream.consumer_info("C").num_redelivered == 0
