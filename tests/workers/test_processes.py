"""Workers as processes: signals, kills, and links that break."""

from __future__ import annotations

import os
import signal
import time

import pytest
from fixtures.faults import FaultProxy
from fixtures.threads import wait_until, within
from fixtures.worker import WorkerProgram, is_settled, publish_numbers

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs POSIX signals")


def test_sigterm_finishes_running_handlers_and_returns_the_others(
    js, stream, nats_server, tmp_path
):
    """Running handlers end and are acknowledged; waiting messages go to another worker at once."""
    code = f"""
worker = Worker(drain_timeout=15)  # waiting messages are returned after a third of it

@worker.handler(stream={stream.name!r}, consumer="C", concurrency=2, ack_wait=60, decode="text")
def handle(data):
    record(f"{{os.getpid()}} begins {{data}}")
    if not os.path.exists("stopping"):
        wait_for_file("finish")
    record(f"{{os.getpid()}} ends {{data}}")
"""
    publish_numbers(js, stream, 4)
    with WorkerProgram(code, nats_server.url, tmp_path) as first:
        first.wait_runs(2)
        wait_until(lambda: stream.consumer_info("C").num_ack_pending == 4)  # 2 run, 2 wait
        (tmp_path / "stopping").touch()
        with WorkerProgram(code, nats_server.url, tmp_path) as second:
            first.signal(signal.SIGTERM)
            # Long before their ack_wait of 60 seconds.
            runs = second.wait_runs(6, 10)
            assert sum(f"{second.process.pid} ends" in line for line in runs) == 2
            assert first.process.poll() is None
            (tmp_path / "finish").touch()
            assert first.ended() == 0
            wait_until(lambda: is_settled(stream))
            second.stop()
            runs = second.runs
    assert sorted(line.split()[2] for line in runs if "ends" in line) == ["0", "1", "2", "3"]
    assert len(runs) == 8
    assert stream.consumer_info("C").delivered.consumer_seq == 6


@pytest.mark.parametrize("again", [False, True], ids=["timeout", "second signal"])
def test_a_handler_that_does_not_end_is_abandoned(js, stream, nats_server, tmp_path, again):
    """After the drain timeout, or at a second signal, the message is returned and the status is 1."""
    code = f"""
worker = Worker(drain_timeout={60 if again else 0.5})

@worker.handler(stream={stream.name!r}, consumer="C", ack_wait=60)
def handle(ctx: Context):
    record(f"attempt {{ctx.attempt}}")
    if ctx.attempt == 1:
        time.sleep(300)
"""
    publish_numbers(js, stream, 1)
    with WorkerProgram(code, nats_server.url, tmp_path) as first:
        first.wait_runs(1)
        first.signal(signal.SIGINT)
        if again:
            first.wait_for("is stopping")
            first.signal(signal.SIGINT)
        with within(6):
            assert first.ended() == 1
    with WorkerProgram(code, nats_server.url, tmp_path) as second:
        assert second.wait_runs(2, 10) == ["attempt 1", "attempt 2"]
        wait_until(lambda: is_settled(stream))


def test_a_message_that_kills_its_worker_becomes_a_dead_letter(
    js, stream_name, nats_server, tmp_path
):
    """Killed in each attempt, the worker runs the message no more than permitted; none is lost."""
    stream = js.create_stream(
        name=stream_name, subjects=[f"{stream_name}.>"], retention="workqueue"
    )
    code = f"""
from jetstream_sync.workers.runtime import processing

processing.MAX_EXTRA_DELIVERIES = 0  # each of them takes a restart
worker = Worker(dead_letters="DEAD")

@worker.handler(
    stream={stream.name!r}, consumer="C", ack_wait=3, prefetch=0, retry=Backoff(attempts=1)
)
def handle(ctx: Context):
    record(f"attempt {{ctx.attempt}}")
    os.kill(os.getpid(), signal.SIGKILL)
"""
    with WorkerProgram(code, nats_server.url, tmp_path) as worker:
        publish_numbers(
            js, stream, 1
        )  # not before: the worker would be killed before it says that it is ready
        assert worker.ended() == -signal.SIGKILL
    with WorkerProgram(code, nats_server.url, tmp_path) as last:
        wait_until(lambda: stream.info().state.messages == 0, 10)
        assert last.runs == ["attempt 1"]
    dead = js.get_stream("DEAD")
    assert dead.cached_info.state.messages == 1
    letter = dead.get_msg(seq=1)
    assert letter.data == b"0"
    assert letter.headers["Dead-Attempts"] == "2"
    assert letter.headers["Dead-Reason"] == "delivered 2 times, not started here"


def test_a_suspended_worker_disturbs_no_other(js, stream, nats_server, tmp_path):
    """After a suspension longer than the lease, the failure of a handler sends nothing."""
    code = f"""
worker = Worker()

@worker.handler(stream={stream.name!r}, consumer="C", ack_wait=3, prefetch=0)
def handle(ctx: Context):
    record(f"begin {{ctx.attempt}}")
    if ctx.attempt == 1:
        while not ctx.lease_lost:
            time.sleep(0.01)
        record("lost")
        raise RuntimeError("after the suspension")
    wait_for_file("finish")
    record("done")
"""
    publish_numbers(js, stream, 1)
    with WorkerProgram(code, nats_server.url, tmp_path) as first:
        first.wait_runs(1)
        first.signal(signal.SIGSTOP)
        with WorkerProgram(code, nats_server.url, tmp_path) as second:
            second.wait_runs(2, 10)
            time.sleep(1)  # it was suspended for longer than its lease, not just for as long
            first.signal(signal.SIGCONT)
            first.wait_for("failed after its lease was lost")
            # A nak or in_progress of the first worker would change this delivery.
            first.stop()
            (tmp_path / "finish").touch()
            wait_until(lambda: is_settled(stream))
            assert second.runs == ["begin 1", "begin 2", "lost", "done"]
    assert stream.consumer_info("C").delivered.consumer_seq == 2


def test_a_link_that_is_cut_for_longer_than_the_lease(js, stream, nats_server, tmp_path):
    """A lost lease is never renewed or returned; only the success of the handler is acknowledged."""
    trace = tmp_path / "trace.txt"
    code = f"""
def trace(line):
    with open({str(trace)!r}, "a") as file:
        file.write(line + "\\n")

worker = Worker(connection={{"trace_cb": trace, "reconnect_time_wait": 0.1}})

@worker.handler(stream={stream.name!r}, consumer="C", ack_wait=3, prefetch=0, concurrency=4)
def handle(data, ctx: Context):
    record(f"{{ctx.attempt}} begin")
    if ctx.attempt > 1:
        return
    wait_for_file("back")
    record(f"lost: {{ctx.lease_lost}}")
    if data == b"1":
        raise RuntimeError("after the cut")
"""
    publish_numbers(js, stream, 2)
    with (
        FaultProxy(nats_server.port) as proxy,
        WorkerProgram(code, proxy.url, tmp_path) as worker,
    ):
        worker.wait_runs(2)
        proxy.refuse()
        proxy.cut()
        wait_until(lambda: worker.output.count("is lost") == 2, 20)
        proxy.accept()
        worker.wait_runs(4, 15)
        wait_until(lambda: is_settled(stream))
        (tmp_path / "back").touch()
        worker.wait_runs(6)
        worker.wait_for("failed after its lease was lost")
        worker.stop()
        assert worker.runs == 2 * ["1 begin"] + 2 * ["2 begin"] + 2 * ["lost: True"]
    # What was sent to the reply subjects of the first deliveries, "...<delivered>.<stream seq>...".
    sent = [line for line in trace.read_text().splitlines() if line.startswith(">")]
    first = {seq: [line for line in sent if f".1.{seq}.{seq}." in line] for seq in (1, 2)}
    # Once more if the reconnect was counted after the first time.
    assert 1 <= len(first[1]) <= 2, sent
    assert not first[2], sent
    assert stream.consumer_info("C").delivered.consumer_seq == 4
