"""Workers that end when their consumers are empty."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest
from fix_jsm import Jsm
from fix_threads import wait_until

from jetstream_sync import JetStream, Stream, connect
from jetstream_sync.server import NatsServer
from jetstream_sync.workers import Backoff, Context, Worker

FAST = Backoff(first=0.3, factor=1.0, jitter=0.0, attempts=3)


def test_a_burst_ends_when_everything_is_handled(
    js: JetStream, stream: Stream, nats_server: NatsServer
) -> None:
    """Retries, and what handlers publish for other consumers, are handled before the worker ends."""
    done: list[str] = []
    worker = Worker(nats_server.url)

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


def test_a_burst_waits_for_other_workers(
    js: JetStream, stream: Stream, nats_server: NatsServer
) -> None:
    """A message that another worker holds is not handled yet; the burst can be stopped meanwhile."""
    worker = Worker(nats_server.url)
    consumer = stream.create_consumer(durable_name="C")
    worker.handler(stream=stream.name, consumer="C")(print)
    js.publish(f"{stream.name}.a")
    held = consumer.next()
    statuses: list[int] = []
    thread = threading.Thread(target=lambda: statuses.append(worker.run(burst=True)))
    thread.start()
    wait_until(lambda: consumer.info().num_waiting == 1)
    time.sleep(1)  # several looks at the consumer
    assert statuses == []
    held.ack()
    wait_until(lambda: statuses == [0])
    thread.join()


def test_the_command_has_an_option_for_it(
    jsm: Jsm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``jsm worker run --burst`` handles what there is, and ends with status 0."""
    (tmp_path / "burst_app.py").write_text(
        "from jetstream_sync.workers import Worker\n"
        "worker = Worker()\n"
        "worker.handler(stream='S', consumer='C')(print)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("NATS_URL", jsm.server.url)
    with connect(jsm.server.url) as nc:
        stream = nc.jetstream().create_stream(name="S", subjects=["s"])
        nc.jetstream().publish("s")
        jsm("worker", "run", "burst_app:worker", "--burst").ok()
        assert stream.consumer_info("C").ack_floor.stream_seq == 1
