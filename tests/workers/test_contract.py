"""The contract between a worker and its handlers: acknowledgements, replies and errors of any kind."""

from __future__ import annotations

import os
import signal
import sys
import threading
from pathlib import Path

import pytest
from fix_faults import FaultProxy, Toward
from fix_threads import wait_until
from fix_worker import WorkerProgram, is_settled, running

from jetstream_sync import Connection, JetStream, Stream
from jetstream_sync.server import NatsServer
from jetstream_sync.workers import Backoff, Context, LeaseLostError, Reply, Worker

FAST = Backoff(first=0.1, factor=1.0, maximum=0.1, jitter=0.0, attempts=3)


@pytest.fixture
def worker(nats_server: NatsServer) -> Worker:
    """A worker with a stream for dead letters."""
    return Worker(nats_server.url, name="tests", dead_letters="DEAD")


# --- acknowledgements -----------------------------------------------------------------------------


def test_a_message_can_be_acknowledged_before_its_handler(
    js: JetStream, stream: Stream, worker: Worker, caplog: pytest.LogCaptureFixture
) -> None:
    """The server has the acknowledgement when the handler begins, and an error is only logged."""
    pending = []

    @worker.handler(stream=stream.name, consumer="C", ack="before", retry=FAST)
    def handle(ctx: Context) -> None:
        pending.append((stream.consumer_info("C").num_ack_pending, ctx.attempt, ctx.lease_lost))
        raise RuntimeError("after the acknowledgement")

    js.publish(f"{stream.name}.a", b"x")
    with running(worker):
        wait_until(lambda: "was settled, then failed" in caplog.text)
        wait_until(lambda: is_settled(stream, "C"))
    assert pending == [(0, 1, False)]
    assert stream.consumer_info("C").delivered.consumer_seq == 1
    assert js.get_stream("DEAD").cached_info.state.messages == 0


@pytest.mark.parametrize("confirm", [True, False])
def test_an_ack_does_not_wait_for_the_next_handler(
    js: JetStream, stream: Stream, worker: Worker, *, confirm: bool
) -> None:
    """A message is acknowledged while its thread is busy with the next one, or goes on itself."""
    release = threading.Semaphore(0)

    @worker.handler(stream=stream.name, consumer="C", prefetch=5, confirm=confirm)
    def handle(data: bytes, ctx: Context) -> None:
        if data == b"early":
            wait_until(lambda: stream.consumer_info("C").ack_floor.stream_seq == 3)
            ctx.ack()
        if data != b"short":
            release.acquire(timeout=30)

    for data in (b"short", b"short", b"long", b"early"):
        js.publish(f"{stream.name}.a", data)
    with running(worker):
        wait_until(lambda: "C" in stream.consumer_names())
        wait_until(lambda: stream.consumer_info("C").ack_floor.stream_seq == 2)
        release.release()
        wait_until(lambda: is_settled(stream, "C"))  # before the last handler ends
        release.release()
    assert stream.consumer_info("C").num_redelivered == 0


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs POSIX signals")
def test_a_message_acknowledged_before_is_not_run_after_a_kill(
    js: JetStream, stream: Stream, nats_server: NatsServer, tmp_path: Path
) -> None:
    """A worker that is killed in the handler leaves nothing to another one."""
    code = f"""
worker = Worker()

@worker.handler(stream={stream.name!r}, consumer="C", ack="before", ack_wait=3, prefetch=0)
def handle(data):
    record(data)
    if data == b"1":
        os.kill(os.getpid(), signal.SIGKILL)
"""
    with WorkerProgram(code, nats_server.url, tmp_path) as first:
        js.publish(f"{stream.name}.a", b"1")
        assert first.ended() == -signal.SIGKILL
    js.publish(f"{stream.name}.a", b"2")
    with WorkerProgram(code, nats_server.url, tmp_path) as second:
        wait_until(lambda: is_settled(stream, "C"))
        assert second.wait_runs(2) == ["b'1'", "b'2'"]
    assert stream.consumer_info("C").delivered.consumer_seq == 2


def test_a_handler_does_not_run_before_the_acknowledgement_is_confirmed(
    js: JetStream, stream: Stream, nats_server: NatsServer, caplog: pytest.LogCaptureFixture
) -> None:
    """When the link is lost with the acknowledgement, the message is run when it comes again."""
    attempts = []
    with FaultProxy(nats_server.port) as proxy:
        options = {"reconnect_time_wait": 0.1, "fail_requests_on_disconnect": True}
        worker = Worker(proxy.url, connection=options)

        @worker.handler(stream=stream.name, consumer="C", ack="before", ack_wait=3)
        def handle(ctx: Context) -> None:
            attempts.append(ctx.attempt)

        proxy.cut_after(0, Toward.SERVER, after=b"+ACK")
        js.publish(f"{stream.name}.a", b"x")
        with running(worker):
            wait_until(lambda: "its acknowledgement was not confirmed" in caplog.text)
            assert attempts == []
            wait_until(lambda: is_settled(stream, "C"), 10)
    assert attempts == [2]


def test_a_handler_can_acknowledge_early(
    js: JetStream, stream: Stream, worker: Worker, caplog: pytest.LogCaptureFixture
) -> None:
    """After `Context.ack` the message is settled; a later error is only logged."""
    runs = []

    @worker.handler(stream=stream.name, consumer="C", retry=FAST)
    def handle(ctx: Context) -> None:
        runs.append(ctx.attempt)
        ctx.ack()
        ctx.ack()
        wait_until(lambda: stream.consumer_info("C").num_ack_pending == 0)
        raise RuntimeError("too late")

    js.publish(f"{stream.name}.a", b"x")
    with running(worker):
        wait_until(lambda: "was settled, then failed" in caplog.text)
    assert runs == [1]
    assert stream.consumer_info("C").delivered.consumer_seq == 1


def test_an_early_acknowledgement_needs_the_lease(
    js: JetStream, stream: Stream, worker: Worker
) -> None:
    """After the lease is lost, `Context.ack` raises: another worker may be handling the message."""
    errors = []

    @worker.handler(stream=stream.name, consumer="C", ack_wait=3, timeout=0.1, concurrency=2)
    def handle(ctx: Context) -> None:
        if ctx.attempt > 1:
            return
        wait_until(lambda: ctx.lease_lost, 10)
        try:
            ctx.ack()
        except LeaseLostError as error:
            errors.append(error)

    js.publish(f"{stream.name}.a", b"x")
    with running(worker):
        wait_until(lambda: len(errors) == 1, 10)


# --- replies --------------------------------------------------------------------------------------


def test_a_reply_is_sent_to_the_publisher(
    js: JetStream, nc: Connection, stream: Stream, worker: Worker
) -> None:
    """A `Reply` goes to the subject in the header Reply-To; without the header it is ignored."""

    @worker.handler(stream=stream.name, consumer="C", decode="text")
    def handle(text: str) -> Reply:
        return Reply(text.upper().encode(), {"Kind": "upper"})

    answers = nc.subscribe(inbox := nc.new_inbox())
    js.publish(f"{stream.name}.a", b"unasked")
    js.publish(f"{stream.name}.a", b"asked", headers={"Reply-To": inbox})
    with running(worker):
        answer = answers.next_msg(5)
        wait_until(lambda: is_settled(stream, "C"))
    assert answer.data == b"ASKED"
    assert answer.headers is not None
    assert answer.headers["Kind"] == "upper"


@pytest.mark.parametrize("subject", ["a..b", "$JS.API.STREAM.DELETE.{}", "a b", ""])
def test_a_reply_is_not_sent_to_every_subject(
    js: JetStream, stream: Stream, worker: Worker, caplog: pytest.LogCaptureFixture, subject: str
) -> None:
    """A subject of the server or an invalid one gets no reply; the message is acknowledged."""

    @worker.handler(stream=stream.name, consumer="C")
    def handle() -> Reply:
        return Reply(b"{}")

    headers = {"Reply-To": subject.format(stream.name)}
    js.publish(f"{stream.name}.a", b"x", headers=headers)
    with running(worker):
        wait_until(lambda: "no reply was sent" in caplog.text)
        wait_until(lambda: is_settled(stream, "C"))
    assert stream.name in js.stream_names()
    assert stream.consumer_info("C").delivered.consumer_seq == 1


def test_a_reply_that_is_too_large_is_an_error_of_the_handler(
    js: JetStream, nc: Connection, stream: Stream, worker: Worker
) -> None:
    """It cannot be sent, so the attempt has failed."""
    attempts = []

    @worker.handler(stream=stream.name, consumer="C", retry=FAST)
    def handle(ctx: Context) -> Reply:
        attempts.append(ctx.attempt)
        return Reply(b"x" * 2_000_000 if ctx.attempt == 1 else b"x")

    answers = nc.subscribe(inbox := nc.new_inbox())
    js.publish(f"{stream.name}.a", b"x", headers={"Reply-To": inbox})
    with running(worker):
        assert answers.next_msg(5).data == b"x"
        wait_until(lambda: is_settled(stream, "C"))
    assert attempts == [1, 2]


# --- errors ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("error", [SystemExit(0), KeyboardInterrupt(), GeneratorExit()], ids=repr)
def test_any_exception_is_a_failed_attempt(
    js: JetStream, stream: Stream, worker: Worker, error: BaseException
) -> None:
    """Also one that usually ends a thread or a program: the worker continues."""
    attempts = []

    @worker.handler(stream=stream.name, consumer="C", retry=FAST)
    def handle(ctx: Context) -> None:
        attempts.append(ctx.attempt)
        if ctx.attempt == 1:
            raise error
        if ctx.attempt == 2:
            sys.exit("again")

    js.publish(f"{stream.name}.a", b"x")
    with running(worker) as run:
        wait_until(lambda: len(attempts) == 3 and is_settled(stream, "C"))
        assert run.stop() == 0
    assert attempts == [1, 2, 3]


def test_a_memory_error_ends_the_worker(js: JetStream, stream: Stream, worker: Worker) -> None:
    """The attempt has failed, the message is returned, and a supervisor should start a new process."""

    @worker.handler(stream=stream.name, consumer="C", ack_wait=60)
    def handle(ctx: Context) -> None:
        if ctx.attempt == 1:
            raise MemoryError

    js.publish(f"{stream.name}.a", b"x")
    with running(worker) as run:
        assert run.ended() == 1
    with running(worker) as run:
        wait_until(lambda: is_settled(stream, "C"), 10)
    assert stream.consumer_info("C").delivered.consumer_seq == 2
