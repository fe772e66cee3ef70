"""Deliveries without a run: restarts of a worker, messages that end it, and a consumer that is deleted."""

from __future__ import annotations

import logging
import threading
import time

import pytest
from fixtures.server import paused
from fixtures.threads import SCALE, wait_until
from fixtures.worker import WorkerProgram, is_settled, publish_numbers, running

from jetstream_sync import ConsumerConfig, JetStream, RetentionPolicy, Stream, connect
from jetstream_sync.lease_times import LeaseTimes
from jetstream_sync.workers import Backoff, Worker
from jetstream_sync.workers import run as run_module
from jetstream_sync.workers.deliveries import DeliveryState, Lease, LeasedMessage, Origin
from jetstream_sync.workers.metrics import HandlerSnapshot
from jetstream_sync.workers.runtime.consumers import HandlerConsumer


def test_restarts_use_up_no_attempts(js, stream, nats_server, tmp_path):
    """A worker with a full buffer is terminated again and again: each message is run once, none is buried."""
    code = f"""
worker = Worker(dead_letters="DEAD", drain_timeout={0.5 * SCALE})

@worker.handler(
    stream={stream.name!r}, consumer="C", prefetch=100, retry=Backoff(attempts=1)
)
def handle(data):
    record(data.decode())
    time.sleep({0.02 * SCALE})
"""
    publish_numbers(js, stream, 60)
    for _ in range(3):
        with WorkerProgram(code, nats_server.url, tmp_path) as program:
            program.wait_runs(len(program.runs) + 1)
            program.stop()
    with WorkerProgram(code, nats_server.url, tmp_path) as program:
        wait_until(lambda: is_settled(stream), 20)
        runs = program.runs
    assert sorted(runs, key=int) == [str(number) for number in range(60)]
    assert js.get_stream("DEAD").info().state.messages == 0


def test_a_stop_handles_the_buffer_for_a_third_of_its_time(js, stream, worker):
    """What was received before a stop is handled in the first third of the drain time; the rest is returned."""
    worker.drain_timeout = 3.0 * SCALE
    began, runs = threading.Event(), []

    @worker.handler(stream=stream.name, consumer="C", prefetch=50, ack_wait=60)
    def handle(data: bytes) -> None:
        runs.append(data)
        began.set()
        time.sleep(0.2 * SCALE)

    publish_numbers(js, stream, 50)
    with running(worker) as run:
        assert began.wait(10 * SCALE)
        wait_until(lambda: stream.consumer_info("C").num_ack_pending == 50)
        worker.stop()
        assert run.ended() == 0
    assert 3 <= len(runs) <= 15
    info = stream.consumer_info("C")
    assert info.ack_floor.stream_seq == len(runs)


@pytest.mark.full
@pytest.mark.timeout(110)
def test_a_stop_takes_no_timeout_for_each_handler_while_the_server_is_silent(
    fresh_server, monkeypatch, caplog
):
    """Reading the states of many consumers does not delay it, and all share the time for what is in flight."""
    monkeypatch.setattr(run_module, "_REFRESH_S", 0.1)
    worker = Worker(fresh_server.url, name="many", drain_timeout=1.0)
    with connect(fresh_server.url) as nc:
        nc.jetstream().create_stream(name="MANY", subjects=["many.*"])
    for number in range(8):

        @worker.handler(stream="MANY", consumer=f"C{number}", filter_subject=f"many.{number}")
        def handle(data: bytes) -> None:
            pass

    with caplog.at_level(logging.INFO), running(worker) as run:
        wait_until(lambda: "is ready" in caplog.text, 20)
        with paused(fresh_server):
            began = time.monotonic()
            worker.stop()
            run.ended(60)
            # One request of 5 seconds may be on its way; 2, 1 and 1 seconds are for the end.
            assert time.monotonic() - began < 10 + 3 * SCALE


@pytest.mark.full
@pytest.mark.timeout(150)
def test_a_message_that_ends_its_process_spares_its_neighbours(
    js, stream_name, nats_server, tmp_path
):
    """From the third delivery on, messages start alone: only the one that kills becomes a dead letter."""
    stream = js.create_stream(
        name=stream_name, subjects=[f"{stream_name}.>"], retention=RetentionPolicy.WORK_QUEUE
    )
    code = f"""
from jetstream_sync.workers.runtime import processing

processing.MAX_EXTRA_DELIVERIES = 3  # each of them takes a restart
worker = Worker(dead_letters="DEAD")

@worker.handler(
    stream={stream.name!r}, consumer="C", ack_wait=3, concurrency=4, prefetch=8,
    retry=Backoff(attempts=1)
)
def handle(data):
    if data == b"2":
        time.sleep(0.1)
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(0.5)
"""
    publish_numbers(js, stream, 8)
    with WorkerProgram(code, nats_server.url, tmp_path, ["--processes", "1"]):
        wait_until(lambda: stream.info().state.messages == 0, 90)
    dead = js.get_stream("DEAD")
    assert dead.info().state.messages == 1
    assert dead.get_msg(seq=1).data == b"2"


def known_ack_floor(worker: Worker) -> int:
    """Return the ack floor of the consumer that the worker has read last."""
    (runner,) = worker._monitor.runners
    return runner.consumer.info.ack_floor.stream_seq


def test_a_deleted_consumer_continues_behind_its_ack_floor(js, stream, worker, caplog, monkeypatch):
    """Handled messages are not run again; without its stream the worker ends."""
    monkeypatch.setattr("jetstream_sync.workers.run._REFRESH_S", 0.1)
    runs: list[bytes] = []

    worker.handler(stream=stream.name, consumer="C")(runs.append)

    publish_numbers(js, stream, 20)
    with running(worker) as run:
        wait_until(lambda: is_settled(stream) and len(runs) == 20, 10)
        wait_until(lambda: known_ack_floor(worker) == 20, 10)
        stream.delete_consumer("C")
        js.publish(f"{stream.name}.a", b"new")
        wait_until(lambda: runs[20:] == [b"new"], 20)
        assert stream.consumer_info("C").config.max_deliver == -1
        js.delete_stream(stream.name)
        assert run.ended() == 3
    warnings = [record.message for record in caplog.records if record.levelno == logging.WARNING]
    # The consumer may exist again before the message is published.
    assert any("after sequence 20" in warning for warning in warnings)


def test_an_ack_floor_of_another_stream_does_not_count(js, stream, worker):
    """A consumer of a stream that was created again within a second receives all of its messages."""
    worker.handler(stream=stream.name, consumer="C")(print)
    publish_numbers(js, stream, 5)
    consumer = HandlerConsumer(js, worker.handlers[0], may_change=True)
    for msg in consumer.pull.fetch(5, timeout=10 * SCALE):
        msg.ack_sync()
    consumer.refresh()
    assert consumer.info.ack_floor.stream_seq == 5
    config = stream.cached_info.config
    js.delete_stream(stream.name)
    again = js.create_stream(config)
    publish_numbers(js, again, 8)
    consumer.recreate()
    assert consumer.info.num_pending == 8


@pytest.mark.parametrize(
    ("deliver", "expected"), [("all", [b"0", b"1", b"2"]), ("new", []), (3, [b"2"])]
)
def test_a_new_handler_starts_where_it_says(js, stream, worker, deliver, expected):
    """`deliver` is where the new consumer starts; `check` says how many stored messages it receives."""
    runs: list[bytes] = []

    worker.handler(stream=stream.name, consumer="C", deliver=deliver)(runs.append)

    publish_numbers(js, stream, 3)
    told = {"all": "receives 3 stored", "new": "receives no stored", 3: "receives at most 3 stored"}
    assert any(told[deliver] in line for line in worker.check().warnings)
    with running(worker):
        wait_until(lambda: is_settled(stream), 10)
        js.publish(f"{stream.name}.a", b"new")
        wait_until(lambda: runs == [*expected, b"new"], 10)


@pytest.mark.parametrize("batches", [False, True])
def test_failures_of_all_messages_pause_the_handler(js, stream, worker, caplog, batches):
    """While all messages fail, no more are requested; the first success ends the pause."""
    broken = threading.Event()
    broken.set()
    runs: list[bytes] = []

    def handle(data: bytes) -> None:
        if broken.is_set():
            raise OSError("no database")
        runs.append(data)

    def handle_batch(payloads: list[bytes]) -> None:
        handle(*payloads)

    options = {"stream": stream.name, "consumer": "C", "prefetch": 1, "retry": Backoff(first=30)}
    if batches:
        worker.batch(max_messages=1, **options)(handle_batch)
    else:
        worker.handler(**options)(handle)
    publish_numbers(js, stream, 50)
    with running(worker) as run:
        wait_until(lambda: "the last 10 messages failed" in caplog.text, 10)
        time.sleep(0.3)
        # The messages that were requested before the pause have failed, too.
        assert stream.consumer_info("C").delivered.consumer_seq <= 13
        broken.clear()
        wait_until(lambda: len(runs) >= 37, 20)
        run.stop()
    assert "all are requested again" in caplog.text


def test_a_supervisor_replaces_a_process_whose_threads_are_stuck(js, stream, nats_server, tmp_path):
    """When all threads exceed the timeout, another process takes over."""
    code = f"""
worker = Worker(drain_timeout=1)

@worker.handler(stream={stream.name!r}, consumer="C", ack_wait=3, timeout=1, prefetch=0)
def handle(data):
    record(f"{{os.getpid()}} {{data.decode()}}")
    if data == b"0" and not os.path.exists("stuck"):
        open("stuck", "w").close()
        time.sleep(600)
"""
    publish_numbers(js, stream, 2)
    with WorkerProgram(code, nats_server.url, tmp_path, ["--processes", "1"]) as program:
        runs = program.wait_runs(3, 40)
    assert len({line.split()[0] for line in runs}) == 2
    assert {line.split()[1] for line in runs[1:]} == {"0", "1"}


def test_a_pause_ends_beside_a_handler_that_never_returns(stream, js, worker, caplog):
    """After failures of all messages, some are tried although one thread is stuck."""
    broken, release = threading.Event(), threading.Event()
    broken.set()
    runs: list[bytes] = []

    @worker.handler(
        stream=stream.name, consumer="C", concurrency=2, timeout=1, retry=Backoff(first=60)
    )
    def handle(data: bytes) -> None:
        if data == b"0":
            release.wait(60 * SCALE)
        elif broken.is_set():
            raise OSError("no database")
        else:
            runs.append(data)

    publish_numbers(js, stream, 60)
    with running(worker):
        wait_until(lambda: "the last 10 messages failed" in caplog.text, 10)
        wait_until(lambda: numbers(worker)["paused"] > 0, 10)
        # Until only the message that hangs is held: no other one can end the pause.
        wait_until(lambda: held(worker) == (1, 0), 10)
        broken.clear()
        publish_numbers(js, stream, 10)
        try:
            wait_until(lambda: len(runs) >= 9, 20)
        finally:
            release.set()


def numbers(worker: Worker) -> HandlerSnapshot:
    """Return the numbers of the only handler of a worker that runs."""
    snapshot = worker.snapshot()
    return snapshot["handlers"][0]


def held(worker: Worker) -> tuple[int, int]:
    """Return how many messages the only handler of a worker runs, and how many wait for it."""
    now = numbers(worker)
    return now["running"], now["buffered"]


def deliver_twice(js: JetStream, stream: Stream, data: bytes, delay: float) -> None:
    """Publish a message whose next delivery, after a delay in seconds, is the third."""
    consumer = stream.create_consumer(ConsumerConfig(durable_name="C", ack_wait=60))
    js.publish(f"{stream.name}.a", data)
    for item in (0.0, delay):
        (msg,) = consumer.fetch(1, 5 * SCALE)
        msg.nak(item)


def test_a_message_that_hangs_alone_holds_up_no_others(js, stream, worker):
    """A message that runs alone and exceeds its timeout occupies its own thread only."""
    release = threading.Event()
    runs: list[bytes] = []

    @worker.handler(stream=stream.name, consumer="C", concurrency=2, timeout=1)
    def handle(data: bytes) -> None:
        if data == b"hangs":
            release.wait(60 * SCALE)
        else:
            runs.append(data)

    deliver_twice(js, stream, b"hangs", 0.0)
    publish_numbers(js, stream, 20)
    with running(worker):
        try:
            wait_until(lambda: len(runs) == 20, 15)
        finally:
            release.set()


def test_a_long_run_does_not_keep_others_waiting_after_a_message_that_ran_alone(js, stream, worker):
    """After the end of a message that ran alone, others are requested beside a handler that goes on."""
    release, began = threading.Event(), threading.Event()
    runs: list[bytes] = []

    @worker.handler(stream=stream.name, consumer="C", concurrency=2, prefetch=0)
    def handle(data: bytes) -> None:
        if data == b"long":
            began.set()
            release.wait(60 * SCALE)
        else:
            runs.append(data)

    deliver_twice(js, stream, b"third", 2.0 * SCALE)
    js.publish(f"{stream.name}.a", b"long")
    with running(worker):
        try:
            assert began.wait(10 * SCALE)
            wait_until(lambda: runs == [b"third"], 15)
            publish_numbers(js, stream, 5)
            wait_until(lambda: len(runs) == 6, 10)
        finally:
            release.set()


@pytest.mark.parametrize("stored", [0, 3])
def test_a_deleted_consumer_of_new_messages_skips_none(js, stream, worker, stored):
    """With ``deliver="new"``, messages that were not acknowledged are delivered by the next consumer."""
    runs: list[bytes] = []

    @worker.handler(stream=stream.name, consumer="C", deliver="new", retry=Backoff(first=60))
    def handle(data: bytes) -> None:
        runs.append(data)
        if len(runs) == 1:
            raise OSError("no database")

    publish_numbers(js, stream, stored)
    with running(worker):
        wait_until(lambda: is_settled(stream), 10)
        js.publish(f"{stream.name}.a", b"new")
        wait_until(lambda: runs == [b"new"], 10)
        stream.delete_consumer("C")
        wait_until(lambda: runs == [b"new", b"new"], 20)


def test_a_deleted_consumer_of_an_interest_stream_repeats_nothing(
    js, stream_name, worker, monkeypatch
):
    """Messages that another consumer keeps in the stream are not handled again."""
    monkeypatch.setattr("jetstream_sync.workers.run._REFRESH_S", 0.1)
    stream = js.create_stream(
        name=stream_name, subjects=[f"{stream_name}.>"], retention=RetentionPolicy.INTEREST
    )
    stream.create_consumer(ConsumerConfig(durable_name="OTHER"))
    runs: list[bytes] = []

    worker.handler(stream=stream.name, consumer="C")(runs.append)

    with running(worker):
        wait_until(lambda: is_settled(stream), 10)
        publish_numbers(js, stream, 20)
        wait_until(lambda: is_settled(stream) and len(runs) == 20, 10)
        wait_until(lambda: known_ack_floor(worker) == 20, 10)
        stream.delete_consumer("C")
        js.publish(f"{stream.name}.a", b"new")
        wait_until(lambda: b"new" in runs, 20)
    assert runs[20:] == [b"new"]


@pytest.mark.parametrize(
    ("before", "after", "is_new"),
    [
        (DeliveryState.LEASED, DeliveryState.LOST, True),
        (DeliveryState.LOST, DeliveryState.LOST, False),
        (DeliveryState.SETTLED, DeliveryState.SETTLED, True),
    ],
)
def test_a_lease_is_lost_once_and_a_settled_message_stays_settled(before, after, is_new):
    """A message whose acknowledgement came too late counts as lost, and is not settled again."""
    lease = Lease(LeaseTimes(ConsumerConfig(ack_wait=30)), 1, 0.0)
    delivery = LeasedMessage(None, lease, Origin("handle"))
    delivery.state = before
    assert delivery.lose() is is_new
    assert delivery.state is after
