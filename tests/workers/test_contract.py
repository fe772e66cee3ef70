"""The contract between a worker and its handlers: acknowledgements, replies and errors of any kind."""

from __future__ import annotations

import sys
import threading
from dataclasses import replace

import pytest
from fixtures.faults import FaultProxy, Toward
from fixtures.threads import wait_until
from fixtures.worker import FAST, WorkerProgram, dead_letters, is_settled, publish_texts, running

from jetstream_sync.workers import Context, Reply, Worker

# --- acknowledgements -----------------------------------------------------------------------------


@pytest.mark.parametrize("ack", ["before", "after"])
def test_an_error_after_the_acknowledgement_is_only_logged(js, stream, worker, caplog, ack):
    """The message is settled by ``ack="before"`` when its handler begins, or by `Context.ack` in it."""
    pending = []

    @worker.handler(stream=stream.name, consumer="C", ack=ack, retry=FAST)
    def handle(ctx: Context) -> None:
        if ack == "after":
            ctx.ack()
            ctx.ack()
            wait_until(lambda: stream.consumer_info("C").num_ack_pending == 0)
        pending.append((stream.consumer_info("C").num_ack_pending, ctx.attempt, ctx.lease_lost))
        raise RuntimeError("after the acknowledgement")

    js.publish(f"{stream.name}.a", b"x")
    with running(worker):
        wait_until(lambda: "was settled, then failed" in caplog.text)
        wait_until(lambda: is_settled(stream))
    assert pending == [(0, 1, False)]
    assert stream.consumer_info("C").delivered.consumer_seq == 1
    assert dead_letters(js) == 0


@pytest.mark.parametrize("confirm", [True, False])
def test_an_ack_does_not_wait_for_the_next_handler(js, stream, worker, confirm):
    """A message is acknowledged while its thread is busy with the next one, or goes on itself."""
    release = threading.Semaphore(0)

    @worker.handler(stream=stream.name, consumer="C", prefetch=5, confirm=confirm)
    def handle(data: bytes, ctx: Context) -> None:
        if data == b"early":
            wait_until(lambda: stream.consumer_info("C").ack_floor.stream_seq == 3)
            ctx.ack()
        if data != b"short":
            release.acquire(timeout=30)

    publish_texts(js, stream, "short", "short", "long", "early")
    with running(worker):
        wait_until(lambda: "C" in stream.consumer_names())
        wait_until(lambda: stream.consumer_info("C").ack_floor.stream_seq == 2)
        release.release()
        wait_until(lambda: is_settled(stream))  # before the last handler ends
        release.release()
    assert stream.consumer_info("C").num_redelivered == 0


def test_a_handler_does_not_run_before_the_acknowledgement_is_confirmed(
    js, stream, nats_server, caplog
):
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
            wait_until(lambda: is_settled(stream), 10)
    assert attempts == [2]


# --- replies --------------------------------------------------------------------------------------


def test_a_reply_is_sent_to_the_publisher(js, nc, stream, worker):
    """A `Reply` goes to the subject in the header Reply-To; without the header it is ignored."""

    @worker.handler(stream=stream.name, consumer="C", decode="text")
    def handle(text: str) -> Reply:
        return Reply(text.upper().encode(), {"Kind": "upper"})

    responses = nc.subscribe(inbox := nc.new_inbox())
    js.publish(f"{stream.name}.a", b"unasked")
    js.publish(f"{stream.name}.a", b"asked", headers={"Reply-To": inbox})
    with running(worker):
        response = responses.next_msg(5)
        wait_until(lambda: is_settled(stream))
    assert response.data == b"ASKED"
    assert response.headers["Kind"] == "upper"


@pytest.mark.parametrize("subject", ["a..b", "$JS.API.STREAM.DELETE.{}", "a b", ""])
def test_a_reply_is_not_sent_to_every_subject(js, stream, worker, caplog, subject):
    """A subject of the server or an invalid one gets no reply; the message is acknowledged."""

    @worker.handler(stream=stream.name, consumer="C")
    def handle() -> Reply:
        return Reply(b"{}")

    headers = {"Reply-To": subject.format(stream.name)}
    js.publish(f"{stream.name}.a", b"x", headers=headers)
    with running(worker):
        wait_until(lambda: "no reply was sent" in caplog.text)
        wait_until(lambda: is_settled(stream))
    assert stream.name in js.stream_names()
    assert stream.consumer_info("C").delivered.consumer_seq == 1


@pytest.mark.parametrize("pool", ["threads", "processes"])
def test_a_reply_that_cannot_be_sent_is_logged(js, nats_server, stream, tmp_path, pool):
    """The handler has succeeded: the message is acknowledged, and the handler does not run again."""
    code = f"""
from jetstream_sync.workers import Reply
worker = Worker()

@worker.handler(stream={stream.name!r}, consumer="C", pool={pool!r}, decode="text")
def handle(what):
    record(what)
    return Reply(b"x" * 2_000_000 if what == "large" else b"x", {{"a:b": "c"}})
"""
    with WorkerProgram(code, nats_server.url, tmp_path) as program:
        for what in ("large", "header"):
            js.publish(f"{stream.name}.a", what.encode(), headers={"Reply-To": "inbox"})
        program.wait_for("no reply was sent")
        wait_until(lambda: stream.consumer_info("C").ack_floor.stream_seq == 2)
        assert program.runs == ["large", "header"]
        assert stream.consumer_info("C").delivered.consumer_seq == 2


# --- errors ---------------------------------------------------------------------------------------


class UnprintableError(Exception):
    """An error whose text cannot be made."""

    def __str__(self) -> str:
        raise RuntimeError("no text")

    __repr__ = __str__


def raise_unprintable(*_: object) -> str:
    raise UnprintableError


def test_an_error_without_a_text_is_one_of_the_handler(js, stream, worker):
    """In the handler and the decoder it makes a dead letter; in the function for its subject a retry."""

    def handle(_data: bytes) -> None:
        raise UnprintableError

    once = replace(FAST, attempts=1)
    subjects = [f"{stream.name}.{name}" for name in ("handler", "decoder", "target")]
    for subject, options in zip(
        subjects,
        ({}, {"decode": raise_unprintable}, {"dead_letters": raise_unprintable}),
        strict=True,
    ):
        name = subject.rpartition(".")[2]
        decorate = worker.handler(
            stream=stream.name, consumer=name, filter_subject=subject, retry=once, **options
        )
        object.__setattr__(decorate(handle), "grace", 0.0)
        js.publish(subject, b"x")
    with running(worker) as run:
        wait_until(lambda: is_settled(stream, "handler") and is_settled(stream, "decoder"))
        wait_until(lambda: stream.consumer_info("target").num_redelivered > 0)
        assert run.status is None
        dead = js.get_stream("DEAD")
        assert dead.info().state.messages == 2
        headers = [dead.get_msg(seq).headers or {} for seq in (1, 2)]
        assert {header["Dead-Error"] for header in headers} == {"UnprintableError", "DecodeError"}


@pytest.mark.parametrize("error", [SystemExit(0), KeyboardInterrupt(), GeneratorExit()], ids=repr)
def test_any_exception_is_a_failed_attempt(js, stream, worker, error):
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
        wait_until(lambda: len(attempts) == 3 and is_settled(stream))
        assert run.stop() == 0
    assert attempts == [1, 2, 3]


def test_a_memory_error_ends_the_worker(js, stream, worker):
    """The attempt has failed, the message is returned, and a supervisor should start a new process."""

    @worker.handler(stream=stream.name, consumer="C", ack_wait=60)
    def handle(ctx: Context) -> None:
        if ctx.attempt == 1:
            raise MemoryError

    js.publish(f"{stream.name}.a", b"x")
    with running(worker) as run:
        assert run.ended() == 1
    with running(worker) as run:
        wait_until(lambda: is_settled(stream), 10)
    assert stream.consumer_info("C").delivered.consumer_seq == 2
