"""Handlers with `once`: what a bucket records, and runs that may repeat an effect."""

from __future__ import annotations

import os
import signal
import threading

import pytest
from fixtures.faults import FaultProxy, Toward
from fixtures.threads import wait_until
from fixtures.worker import FAST, WorkerProgram, is_settled, running

from jetstream_sync import BucketNotFoundError, InvalidOptionError, JetStream
from jetstream_sync.workers import Backoff, Context, Worker

POSIX = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs POSIX signals")


def states(js: JetStream) -> list[bytes]:
    """Return the values in the bucket."""
    bucket = js.key_value("ONCE")
    return [entry.value for entry in bucket.get_many(bucket.keys()).values()]


def test_a_handled_message_is_recorded(js, stream, worker):
    """A failed run is no effect: the next one has no doubt. The bucket says what has succeeded."""
    runs = []

    @worker.handler(stream=stream.name, consumer="C", retry=FAST, once="ONCE")
    def handle(ctx: Context) -> None:
        runs.append((ctx.attempt, ctx.maybe_done, states(js)))
        if ctx.attempt < 3:
            raise OSError("busy")

    js.publish(f"{stream.name}.a", b"x")
    assert "bucket 'ONCE' does not exist" in "".join(worker.check().warnings)
    with running(worker):
        wait_until(lambda: is_settled(stream))
    assert runs == [(attempt, False, [b"running"]) for attempt in (1, 2, 3)]
    assert states(js) == [b"done"]
    assert js.key_value("ONCE").status().ttl is not None


@pytest.mark.full
@POSIX
def test_a_handled_message_does_not_run_again(js, stream, nats_server, tmp_path):
    """A worker that is killed before its acknowledgement arrives leaves a message that is done."""
    code = f"""
worker = Worker()

@worker.handler(stream={stream.name!r}, consumer="C", ack_wait=3, prefetch=0, once="ONCE")
def handle(ctx: Context):
    record(f"{{ctx.attempt}} {{ctx.maybe_done}}")
"""
    js.publish(f"{stream.name}.a", b"x")
    with FaultProxy(nats_server.port) as proxy:
        # The link stays open, and nothing is forwarded from the acknowledgement on.
        proxy.cut_after(0, Toward.SERVER, after=b"+ACK", tell=())
        with WorkerProgram(code, proxy.url, tmp_path) as first:
            wait_until(lambda: proxy.cuts == 1)
            first.signal(signal.SIGKILL)
            assert first.ended() == -signal.SIGKILL
    assert stream.consumer_info("C").num_ack_pending == 1
    with WorkerProgram(code, nats_server.url, tmp_path) as second:
        wait_until(lambda: is_settled(stream), 10)
        assert second.runs == ["1 False"]
        second.wait_for("is done already")
    assert stream.consumer_info("C").delivered.consumer_seq == 2


@POSIX
def test_a_kill_in_the_handler_leaves_a_doubt(js, stream, nats_server, tmp_path):
    """The next run, and each one after it, is told that the effect may exist."""
    code = f"""
worker = Worker()

@worker.handler(
    stream={stream.name!r}, consumer="C", ack_wait=3, prefetch=0, once="ONCE",
    retry=Backoff(first=0.1, jitter=0.0),
)
def handle(ctx: Context):
    record(f"{{ctx.attempt}} {{ctx.maybe_done}}")
    if ctx.attempt == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    if ctx.attempt == 2:
        raise OSError("busy")
"""
    with WorkerProgram(code, nats_server.url, tmp_path) as first:
        js.publish(f"{stream.name}.a", b"x")
        assert first.ended() == -signal.SIGKILL
    with WorkerProgram(code, nats_server.url, tmp_path) as second:
        wait_until(lambda: is_settled(stream), 10)
        assert second.runs == ["1 False", "2 True", "3 True"]
    assert states(js) == [b"done"]


def test_a_handler_that_lost_its_lease_is_not_run_a_second_time(js, stream, worker):
    """While the handler still runs in this process, a redelivered message waits."""
    release = threading.Event()
    runs = []
    retry = Backoff(first=0.1, factor=1.0, jitter=0.0, attempts=100)

    @worker.handler(
        stream=stream.name,
        consumer="C",
        ack_wait=3,
        timeout=0.1,
        concurrency=2,
        retry=retry,
        once="ONCE",
    )
    def handle(ctx: Context) -> None:
        runs.append(ctx.attempt)
        release.wait(30)

    js.publish(f"{stream.name}.a", b"x")
    with running(worker):
        wait_until(
            lambda: (
                "C" in stream.consumer_names()
                and stream.consumer_info("C").delivered.consumer_seq >= 3
            ),
            10,
        )
        release.set()
        wait_until(lambda: is_settled(stream))
    assert runs == [1]


def test_a_bucket_that_is_away_fails_the_attempt(js, stream, nats_server):
    """Without its record, the handler does not run; the message is not lost."""
    runs = []
    retry = Backoff(first=0.1, factor=1.0, jitter=0.0, attempts=100)
    worker = Worker(nats_server.url)

    @worker.handler(stream=stream.name, consumer="C", retry=retry, once="ONCE")
    def handle(ctx: Context) -> None:
        runs.append(ctx.maybe_done)

    ready = threading.Event()
    worker.on("ready")(lambda _: ready.set())
    with running(worker):
        assert ready.wait(30)
        js.delete_key_value("ONCE")
        js.publish(f"{stream.name}.a", b"x")
        wait_until(lambda: stream.consumer_info("C").delivered.consumer_seq > 1)
        assert runs == []
        js.create_key_value(bucket="ONCE")
        wait_until(lambda: is_settled(stream))
    assert runs == [False]
    strict = Worker(nats_server.url, ensure="none")
    strict.handler(stream=stream.name, consumer="C", once="NONE")(print)
    assert strict.check().status == 3
    with pytest.raises(BucketNotFoundError):
        js.key_value("NONE")
    with pytest.raises(InvalidOptionError, match="ack='before'"):
        strict.handler(stream=stream.name, consumer="D", once="NONE", ack="before")(print)
