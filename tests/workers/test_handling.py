"""Workers on a real server: acknowledgements, retries, dead letters and leases."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from dataclasses import replace
from typing import Any

import pytest
from fixtures.fake_jetstream import FakeJetStream
from fixtures.server import paused
from fixtures.threads import SCALE, wait_until
from fixtures.worker import FAST, dead_letters, is_settled, publish_numbers, publish_texts, running

from jetstream_sync import ConsumerConfig, InvalidOptionError, StreamConsumerLimits, connect
from jetstream_sync.workers import (
    Backoff,
    Context,
    LeaseLostError,
    Reject,
    Retry,
    Worker,
    WorkerEvent,
)

_STATE = {"messages": 0, "bytes": 0, "first_seq": 0, "last_seq": 0, "consumer_count": 0}
STREAM = {"config": {"name": "S"}, "state": _STATE, "created": "2024-01-01T00:00:00Z"}


def test_a_handled_message_is_acknowledged(js, stream, worker):
    """Messages of before and after the start are handled once each, and acknowledged."""
    seen = []

    @worker.handler(stream=stream.name, consumer="C", decode="json")
    def handle(order: dict[str, int], ctx: Context) -> None:
        seen.append((order["n"], ctx.attempt))

    js.publish(f"{stream.name}.a", b'{"n": 1}')
    with running(worker) as run:
        wait_until(lambda: len(seen) == 1)
        js.publish(f"{stream.name}.a", b'{"n": 2}')
        wait_until(lambda: len(seen) == 2 and is_settled(stream))
        assert run.stop() == 0
    assert seen == [(1, 1), (2, 1)]
    info = stream.consumer_info("C")
    assert (info.num_redelivered, info.delivered.consumer_seq) == (0, 2)
    assert info.config.max_deliver == -1


def test_a_failed_message_is_retried_with_growing_delays(js, stream, worker):
    """The gaps between attempts follow the back-off with its jitter; other messages do not wait."""
    starts: dict[str, list[float]] = {}
    retry = Backoff(first=0.4, factor=2.0, maximum=0.8, jitter=0.5, attempts=4)

    @worker.handler(stream=stream.name, consumer="C", retry=retry, decode="text")
    def handle(name: str, ctx: Context) -> None:
        starts.setdefault(name, []).append(time.monotonic())
        if name.startswith("bad") and ctx.attempt < 4:
            raise RuntimeError("not now")

    publish_texts(js, stream, "bad 1", "bad 2", "good")
    with running(worker):
        wait_until(lambda: len(starts.get("bad 1", ())) == len(starts.get("bad 2", ())) == 4)
        wait_until(lambda: is_settled(stream))
    assert len(starts["good"]) == 1
    assert starts["good"][0] < starts["bad 1"][1]
    for name in ("bad 1", "bad 2"):
        first, second, third = (b - a for a, b in zip(starts[name], starts[name][1:], strict=False))
        assert first >= 0.2
        assert second >= 0.4
        assert third >= 0.4  # at most the maximum, so 0.8 and not 1.6 before the jitter
    # Every attempt failed but the last: there is no dead letter.
    assert dead_letters(js) == 0


def test_the_last_failure_makes_a_dead_letter(js, stream, worker):
    """After the last attempt the message is in the stream for dead letters, once, with its origin."""
    attempts = []

    @worker.handler(stream=stream.name, consumer="C", retry=FAST)
    def handle(ctx: Context) -> None:
        attempts.append(ctx.attempt)
        raise ValueError("total\nis negative")

    headers = {"Trace": "t1", "Nats-Msg-Id": "order-1"}
    seq = js.publish(f"{stream.name}.a", b"-5", headers=headers).seq
    with running(worker):
        wait_until(lambda: dead_letters(js) == 1)
        wait_until(lambda: is_settled(stream))
    assert attempts == [1, 2, 3]
    dead = js.get_stream("DEAD").get_msg(seq=1)
    assert (dead.subject, dead.data) == (f"dead.{stream.name}.C.{stream.name}.a", b"-5")
    found = dict(dead.headers)
    assert found.pop("Nats-Msg-Id").startswith(f"dead:{stream.name}/C/{seq}/")
    assert found.pop("Dead-Time")
    found.pop("Nats-Expected-Stream", None)
    assert found == {
        "Trace": "t1",
        "Dead-Stream": stream.name,
        "Dead-Consumer": "C",
        "Dead-Sequence": str(seq),
        "Dead-Subject": f"{stream.name}.a",
        "Dead-Attempts": "3",
        "Dead-Reason": "total is negative",
        "Dead-Error": "ValueError",
        "Dead-Worker": "tests",
    }


def test_a_delay_without_end_is_a_long_one(js, stream, worker):
    """It may come from another server: the message waits, and the worker goes on with the next one."""
    handled = []

    @worker.handler(stream=stream.name, consumer="C", decode="text")
    def handle(delay):
        handled.append(delay)
        if delay != "next":
            raise Retry("busy", delay=float(delay))

    publish_texts(js, stream, "inf", "1e300", "next")
    with running(worker):
        wait_until(lambda: len(handled) == 3)
        wait_until(lambda: stream.consumer_info("C").num_ack_pending == 2)
    assert handled == ["inf", "1e300", "next"]


def test_some_errors_are_not_retried(js, stream, worker):
    """`Reject`, an error in reject_on, one not in retry_on and bad data make dead letters at once."""
    runs = []

    @worker.handler(
        stream=stream.name,
        consumer="C",
        decode="json",
        retry=FAST,
        reject_on=[PermissionError],
        retry_on=[OSError],
    )
    def handle(name: str) -> None:
        runs.append(name)
        raise {
            "reject": Reject("no"),
            "permission": PermissionError("no"),
            "value": ValueError("no"),
            "retry": Retry("busy", delay=0.1),
            "os": OSError("busy"),
        }[name]

    publish_texts(js, stream, '"reject"', '"permission"', '"value"', "{", '"retry"', '"os"')
    with running(worker):
        wait_until(lambda: dead_letters(js) == 6)
    assert sorted(runs) == sorted(["reject", "permission", "value"] + 3 * ["retry", "os"])
    letters = [js.get_stream("DEAD").get_msg(seq=seq).headers for seq in range(1, 7)]
    found = {letter["Dead-Sequence"]: letter["Dead-Error"] for letter in letters if letter}
    assert found == {
        "1": "Reject",
        "2": "PermissionError",
        "3": "ValueError",
        "4": "DecodeError",
        "5": "Retry",
        "6": "OSError",
    }


def test_a_handler_may_take_any_arguments(js, stream, worker):
    """The payload and the context are optional."""
    seen: list[object] = []

    @worker.handler(stream=stream.name, consumer="NONE")
    def none() -> None:
        seen.append("none")

    worker.handler(stream=stream.name, consumer="PAYLOAD", decode=lambda data: data * 2)(
        seen.append
    )

    @worker.handler(stream=stream.name, consumer="CONTEXT")
    def context(ctx: Context) -> None:
        seen.append(ctx.message.subject)

    @worker.handler(stream=stream.name, consumer="DEFAULT")
    def default(data: bytes, *, note: str = "default") -> None:
        seen.append((data, note))

    js.publish(f"{stream.name}.a", b"x")
    with running(worker):
        wait_until(lambda: len(seen) == 4)
    assert set(seen) == {"none", b"xx", f"{stream.name}.a", (b"x", "default")}


def test_a_dead_letter_that_cannot_be_stored_is_not_lost(js, stream, worker):
    """Without its stream a dead letter is tried again; it is stored once when the stream is back."""

    @worker.handler(stream=stream.name, consumer="C", retry=FAST)
    def handle() -> None:
        raise Reject("never")

    with running(worker):
        wait_until(lambda: "C" in js.consumer_names(stream.name))
        js.delete_stream("DEAD")
        js.publish(f"{stream.name}.a", b"x")
        wait_until(lambda: stream.consumer_info("C").delivered.consumer_seq > 2)
        # Full, and new messages are refused.
        full = js.create_stream(name="DEAD", subjects=["full"], max_msgs=1, discard="new")
        js.publish("full", b"")
        config = replace(full.cached_info.config, subjects=["dead.>"])
        js.update_stream(config)
        before = stream.consumer_info("C").delivered.consumer_seq
        wait_until(lambda: stream.consumer_info("C").delivered.consumer_seq > before + 1)
        assert stream.consumer_info("C").num_ack_pending == 1
        js.get_stream("DEAD").purge()
        wait_until(lambda: is_settled(stream))
    assert js.get_stream("DEAD").get_msg(last_by_subject="dead.>").data == b"x"
    assert dead_letters(js) == 1


def test_leases_are_renewed_while_handling_and_waiting(js, stream, worker):
    """A handler longer than its lease, and messages that wait longer, are delivered once."""
    # The first step of the back-off is the lease, not the longer ack_wait.
    stream.create_consumer(durable_name="BACKOFF", backoff=[3, 30], max_deliver=-1)
    runs = []

    @worker.handler(stream=stream.name, consumer="C", ack_wait=3, prefetch=2)
    def handle(data: bytes) -> None:
        runs.append(data)
        time.sleep(4 if data == b"0" else 0.2)

    @worker.handler(stream=stream.name, consumer="BACKOFF", ack_wait=60)
    def handle_with_backoff(data: bytes) -> None:
        runs.append(b"b" + data)
        time.sleep(4 if data == b"0" else 0.2)

    publish_numbers(js, stream, 3)
    with running(worker):
        wait_until(lambda: is_settled(stream) and is_settled(stream, "BACKOFF"), 15)
    assert sorted(runs) == [b"0", b"1", b"2", b"b0", b"b1", b"b2"]
    for consumer in ("C", "BACKOFF"):
        assert stream.consumer_info(consumer).delivered.consumer_seq == 3


def test_a_handler_over_its_timeout_loses_its_lease(js, stream, worker, caplog):
    """Another worker gets the message; the error shows where the thread hangs, and a hook is called."""
    release = threading.Event()
    attempts: list[int] = []
    lost: list[tuple[str, int]] = []

    @worker.on("lease_lost")
    def on_lost(event: WorkerEvent) -> None:
        lost.append((threading.current_thread().name, event.message.metadata.num_delivered))

    @worker.handler(stream=stream.name, consumer="C", ack_wait=3, timeout=0.5, concurrency=2)
    def hang_once(ctx: Context) -> None:
        attempts.append(ctx.attempt)
        if ctx.attempt == 1:
            release.wait(30)
            with pytest.raises(LeaseLostError):
                ctx.ack()  # another worker may be handling the message
            raise RuntimeError("too late")

    js.publish(f"{stream.name}.a", b"x")
    with running(worker):
        wait_until(lambda: len(attempts) == 2 and is_settled(stream), 15)
        release.set()
        wait_until(lambda: "failed after its lease was lost" in caplog.text)
    assert attempts == [1, 2]
    assert "exceeds its timeout" in caplog.text
    assert "release.wait(30)" in caplog.text
    assert stream.consumer_info("C").delivered.consumer_seq == 2  # the late failure had no effect
    assert lost == [("worker-main", 1)]  # not the thread that renews leases


def test_a_handler_over_its_soft_timeout_is_interrupted(js, stream, worker, caplog):
    """It may clean up; the attempt has failed, and its thread goes on with other messages."""
    ended = []

    @worker.handler(
        stream=stream.name, consumer="C", timeout=60, soft_timeout=0.5, retry=Backoff(first=0.1)
    )
    def work(ctx: Context) -> None:
        try:
            while ctx.attempt == 1:
                time.sleep(0.01)
        finally:
            ended.append(ctx.attempt)

    publish_numbers(js, stream, 2)
    with running(worker):
        wait_until(lambda: is_settled(stream), 30)
    assert sorted(ended) == [1, 1, 2, 2]
    assert "SoftTimeoutError" in caplog.text


@pytest.mark.full
@pytest.mark.timeout(110)
def test_a_soft_timeout_does_not_wait_for_a_silent_server(fresh_server):
    """A renewal of the lease waits 6 seconds for its reply at that time."""
    worker = Worker(fresh_server.url, name="soft", drain_timeout=1.0)
    began, ended = threading.Event(), threading.Event()
    with connect(fresh_server.url) as nc:
        js = nc.jetstream()
        js.create_stream(name="SOFT", subjects=["soft"])
        js.publish("soft")

    @worker.handler(stream="SOFT", consumer="C", ack_wait=24, soft_timeout=9.5)
    def work() -> None:
        began.set()
        try:
            while True:
                time.sleep(0.01)
        finally:
            ended.set()

    with running(worker):
        assert began.wait(20)
        with paused(fresh_server):
            started = time.monotonic()
            assert ended.wait(30)
            assert time.monotonic() - started < 10 + SCALE


# In a process of its own: the error would be raised in functions of coverage, too.
INTERRUPTED = """
import sys, threading
from jetstream_sync.workers import SoftTimeoutError
from jetstream_sync.workers.limits import SoftTimeout

def interrupt():
    while not stopped.is_set():
        limit.interrupt()

sys.setswitchinterval(1e-6)
limit = SoftTimeout(0)
limit.end()
stopped = threading.Event()
threading.Thread(target=interrupt, daemon=True).start()
interrupted = late = 0
while interrupted < 100:
    try:
        try:
            limit = SoftTimeout(0)
            sum(n for n in range(10 * interrupted))
        finally:
            limit.end()
    except SoftTimeoutError:
        interrupted += 1
    try:
        for _ in range(50):
            pass
    except SoftTimeoutError:
        late += 1
stopped.set()
print(late)
"""


def test_a_soft_timeout_hits_nothing_but_the_handler():
    """An interrupt at the moment when the handler returns is raised in it, or not at all."""
    command = [sys.executable, "-c", INTERRUPTED]
    ended = subprocess.run(command, check=False, capture_output=True, text=True, timeout=50)
    assert (ended.stdout, ended.stderr) == ("0\n", "")


def test_a_worker_waits_at_its_start_until_there_is_a_leader(caplog):
    """A change that the server refuses during an election is repeated, and does not end the worker."""
    created = []

    def respond(subject: str, _: object) -> dict[str, Any]:
        if subject == "STREAM.INFO.S":
            return STREAM
        if subject.startswith("CONSUMER.INFO."):
            return {"error": {"code": 404, "err_code": 10014, "description": "not found"}}
        created.append(subject)
        unavailable = "JetStream system temporarily unavailable"
        return {"error": {"code": 503, "err_code": 10008, "description": unavailable}}

    with FakeJetStream(respond) as server:
        worker = Worker(server.url)
        worker.handler(stream="S", consumer="C")(print)
        with running(worker) as run:
            wait_until(lambda: len(created) >= 2)
            assert run.status is None
            run.stop()
    assert "waits for the server: JetStream system temporarily unavailable" in caplog.text
    assert "cannot start" not in caplog.text


def test_what_a_handler_publishes_is_stored_once(js, stream, worker):
    """A second run of a handler has the same id, and its messages are duplicates."""
    ids, duplicates = [], []

    @worker.handler(
        stream=stream.name, consumer="C", filter_subject=f"{stream.name}.in", retry=FAST
    )
    def handle(ctx: Context) -> None:
        ids.append(ctx.id)
        out = f"{stream.name}.out"
        duplicates.extend(ctx.publish(out, part).duplicate for part in (b"1", b"2"))
        if ctx.attempt < 2:
            raise OSError("after the effect")

    js.publish(f"{stream.name}.in", b"x")
    with running(worker):
        wait_until(lambda: len(duplicates) == 4)
    assert duplicates == [False, False, True, True]
    assert len(set(ids)) == 1


def test_a_stream_that_is_created_again_at_once_has_other_ids(js, nats_server, stream_name):
    """A message with the same sequence is another one, also in the second in which the stream was created."""
    ids, created = [], []

    def handle(ctx: Context) -> None:
        ids.append(ctx.id)

    for number in (1, 2):
        stream = js.create_stream(name=stream_name, subjects=[stream_name])
        created.append(f"{stream.cached_info.created:%Y%m%d%H%M%S%f}")
        js.publish(stream_name, b"x")
        worker = Worker(nats_server.url)
        worker.handler(stream=stream_name, consumer="C")(handle)
        with running(worker):
            wait_until(lambda expected=number: len(ids) == expected)
        js.delete_stream(stream_name)
    assert ids == [f"{stream_name}/C/1/{time}" for time in created]


def test_a_consumer_that_does_not_fit_is_refused(stream, nats_server, caplog):
    """The worker does not start, and names both values; `check` says the same and changes nothing."""
    configs = {
        "max_deliver": ConsumerConfig(durable_name="max_deliver", max_deliver=3),
        "ack_wait": ConsumerConfig(durable_name="ack_wait", ack_wait=2),
        "backoff": ConsumerConfig(durable_name="backoff", ack_wait=60, backoff=[1, 60]),
        "ack_policy": ConsumerConfig(durable_name="ack_policy", ack_policy="none"),
    }
    for field, config in configs.items():
        stream.create_consumer(config)
        worker = Worker(nats_server.url)
        worker.handler(stream=stream.name, consumer=field, retry=FAST)(print)
        with running(worker) as run:
            assert run.ended() == 2
        assert f"cannot start: {field}=" in caplog.text
        if field == "max_deliver":  # messages may be returned
            assert "more than 13 times (3 attempts" in caplog.text
        result = worker.check()
        assert result.status == 2
        assert field in result.errors[0]
    missing = Worker(nats_server.url)
    missing.handler(stream="NONE", consumer="C")(print)
    with running(missing) as run:
        assert run.ended() == 3
    assert "stream not found: 'NONE'" in caplog.text
    assert missing.check().status == 3
    assert "stream not found: 'NONE'" in missing.check().errors[0]


def test_check_tells_what_a_start_would_do(js, stream, nats_server):
    """`check` warns of what is missing or too small, and changes nothing."""
    stream.create_consumer(durable_name="SMALL", max_ack_pending=3)
    worker = Worker(nats_server.url, dead_letters="DEAD")
    worker.handler(stream=stream.name, consumer="NEW")(print)
    worker.handler(stream=stream.name, consumer="SMALL", concurrency=2)(print)
    result = worker.check()
    assert result.status == 0
    text = "\n".join(result.warnings)
    assert "consumer 'NEW' does not exist" in text
    assert "stream 'DEAD' does not exist" in text
    assert "max_ack_pending=3 is below concurrency + prefetch = 4" in text
    text = "\n".join(worker.check(processes=600).warnings)
    assert "max_ack_pending=1000 is below 600 processes * (concurrency + prefetch) = 1200" in text
    limits = StreamConsumerLimits(max_ack_pending=7)
    js.update_stream(replace(stream.cached_info.config, consumer_limits=limits))
    text = "\n".join(worker.check(processes=4).warnings)
    assert "max_ack_pending=7 is below 4 processes * (concurrency + prefetch) = 8" in text
    keyed = Worker(nats_server.url)
    keyed.handler(stream=stream.name, consumer="SMALL", key=lambda msg: msg.subject)(print)
    assert keyed.check().status == 0
    assert keyed.check(processes=2).status == 2
    assert stream.consumer_names() == ["SMALL"]
    assert "DEAD" not in js.stream_names()
    assert Worker(nats_server.url, ensure="none").check().status == 2  # no handlers
    strict = Worker(nats_server.url, ensure="none")
    strict.handler(stream=stream.name, consumer="NEW")(print)
    assert strict.check().status == 3
    with pytest.raises(InvalidOptionError, match="handlers"):
        Worker(nats_server.url).run()
