"""Workers that end when their consumers are empty."""

from __future__ import annotations

import gc
import threading

from fixtures.threads import wait_until

from jetstream_sync.workers import Backoff, Context

FAST = Backoff(first=0.3, factor=1.0, jitter=0.0, attempts=3)


def test_a_burst_ends_when_everything_is_handled(js, stream, worker):
    """Retries, and what handlers publish for other consumers, are handled before the worker ends."""
    done: list[str] = []

    # The consumer that is read first gets its messages last.
    @worker.handler(stream=stream.name, consumer="LAST", filter_subject=f"{stream.name}.last")
    def last() -> None:
        done.append("last")

    @worker.handler(stream=stream.name, consumer="MIDDLE", filter_subject=f"{stream.name}.middle")
    def middle(ctx: Context) -> None:
        threading.Event().wait(0.3)
        ctx.publish(f"{stream.name}.last")
        done.append("middle")

    @worker.handler(
        stream=stream.name, consumer="FIRST", filter_subject=f"{stream.name}.first", retry=FAST
    )
    def first(ctx: Context) -> None:
        if ctx.attempt < 3:
            raise OSError("busy")
        ctx.publish(f"{stream.name}.middle")
        done.append("first")

    assert worker.run(burst=True) == 0  # empty
    assert done == []
    for _ in range(3):
        js.publish(f"{stream.name}.first")
    assert worker.run(burst=True) == 0
    assert sorted(done) == 3 * ["first"] + 3 * ["last"] + 3 * ["middle"]
    assert len(stream.consumer_names()) == 3


def test_a_burst_waits_for_other_workers(js, nc, stream, worker):
    """A message that another worker holds is not handled yet; the burst can be stopped meanwhile."""
    consumer = stream.create_consumer(durable_name="C")
    worker.handler(stream=stream.name, consumer="C")(print)
    js.publish(f"{stream.name}.a")
    held = consumer.next()
    statuses: list[int] = []
    thread = threading.Thread(target=lambda: statuses.append(worker.run(burst=True)))
    thread.start()
    wait_until(lambda: consumer.info().num_waiting == 1)
    reads = nc.subscribe(f"$JS.API.CONSUMER.INFO.{stream.name}.C")
    wait_until(lambda: reads.pending_msgs >= 4)  # of the worker
    reads.unsubscribe()
    assert statuses == []
    held.ack()
    wait_until(lambda: statuses == [0])
    thread.join()


def test_collections_skip_what_existed_before_the_worker(js, stream, worker):
    """While a worker runs, full garbage collections skip its program; afterwards, they examine all again."""
    frozen: list[int] = []

    @worker.handler(stream=stream.name, consumer="C")
    def handle() -> None:
        frozen.append(gc.get_freeze_count())

    js.publish(f"{stream.name}.a")
    gc.unfreeze()
    assert worker.run(burst=True) == 0
    assert frozen[0] > len(gc.get_objects()) / 2
    assert gc.get_freeze_count() == 0
