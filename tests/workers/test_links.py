"""Workers whose link breaks at a chosen byte, whose server restarts, or which may not do something."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections import Counter
from dataclasses import replace
from datetime import datetime, timedelta, timezone

import pytest
from fixtures.faults import FaultProxy, Toward
from fixtures.threads import SCALE, wait_until
from fixtures.worker import WorkerProgram, dead_letters, is_settled, running

import jetstream_sync
from jetstream_sync import Error, JetStream
from jetstream_sync.lease_times import LeaseTimes
from jetstream_sync.server import NatsServer
from jetstream_sync.workers import Backoff, Context, Reject, Worker
from jetstream_sync.workers.deliveries import (
    DeliveryState,
    Lease,
    LeasedMessage,
    LeaseKeeper,
    Origin,
    lease_clock,
)
from jetstream_sync.workers.runtime.consumers import HandlerConsumer

RECONNECT = {"reconnect_time_wait": 0.05, "max_reconnect_attempts": -1}


@pytest.mark.parametrize("command", ["+ACK", "-NAK", "+TERM"])
def test_a_settlement_that_is_cut_is_sent_again(js, stream, nats_server, command):
    """A link that breaks within an ack, nak or term costs no additional run of the handler."""
    attempts = []
    with FaultProxy(nats_server.port) as proxy:
        worker = Worker(proxy.url, dead_letters="DEAD", connection=RECONNECT)

        @worker.handler(
            stream=stream.name, consumer="C", ack_wait=3, retry=Backoff(first=2, jitter=0)
        )
        def handle(ctx: Context) -> None:
            attempts.append(ctx.attempt)
            if command == "+TERM":
                raise Reject("no")
            if command == "-NAK" and ctx.attempt == 1:
                raise OSError("not now")

        with running(worker) as run:
            wait_until(lambda: "C" in stream.consumer_names())
            proxy.cut_after(0, Toward.SERVER, after=command.encode())
            js.publish(f"{stream.name}.a", b"x")
            wait_until(lambda: proxy.cuts == 1)
            wait_until(lambda: is_settled(stream), 20)
            assert run.stop() == 0
    runs = 2 if command == "-NAK" else 1
    assert attempts == list(range(1, runs + 1))
    assert stream.consumer_info("C").delivered.consumer_seq == runs
    assert dead_letters(js) == (1 if command == "+TERM" else 0)


def test_a_nak_is_not_repeated_after_its_delay(js, stream, nats_server):
    """A nak whose confirmation was lost does not interrupt the next delivery of its message."""
    release = threading.Event()
    begun = threading.Event()
    first_attempts, second_attempts = [], []
    nak = b'-NAK {"delay": 100000000}\r\n'
    with FaultProxy(nats_server.port) as proxy:
        first = Worker(proxy.url, connection=RECONNECT)
        options = {"stream": stream.name, "consumer": "C", "prefetch": 0, "ack_wait": 30}

        @first.handler(**options, retry=Backoff(first=0.1, jitter=0))  # type: ignore[arg-type]
        def fail(ctx: Context) -> None:
            first_attempts.append(ctx.message.data)
            if ctx.message.data == b"x":
                proxy.refuse()
                # The server gets the whole nak, and nothing behind it.
                proxy.cut_after(len(nak) - 4, Toward.SERVER, after=b"-NAK")
                raise OSError("not now")

        second = Worker(nats_server.url)

        @second.handler(**options)  # type: ignore[arg-type]
        def hold(ctx: Context) -> None:
            second_attempts.append((ctx.message.data, ctx.attempt))
            begun.set()
            release.wait(30)

        with running(first) as run:
            js.publish(f"{stream.name}.a", b"x")
            wait_until(lambda: proxy.cuts == 1)
            with running(second):
                assert begun.wait(20)
                proxy.accept()
                # The first worker is connected again, and gets what the second one cannot take.
                js.publish(f"{stream.name}.a", b"y")
                wait_until(lambda: first_attempts == [b"x", b"y"], 20)
                time.sleep(1)  # several ticks, in which it would repeat the nak
                assert run.stop() == 0
                release.set()
                wait_until(lambda: is_settled(stream))
    assert second_attempts == [(b"x", 2)]
    assert stream.consumer_info("C").delivered.consumer_seq == 3


def test_an_acknowledgement_that_is_never_confirmed_is_not_a_clean_end(
    js, stream, worker, monkeypatch
):
    """The status tells that a settlement was given up while the worker stopped."""
    monkeypatch.setattr("jetstream_sync.workers.deliveries._MAX_ABSENT_SENDS", 2)
    monkeypatch.setattr("jetstream_sync.workers.deliveries._ABSENT_DELAY_S", 0.1)
    began, release = threading.Event(), threading.Event()

    @worker.handler(stream=stream.name, consumer="C")
    def handle() -> None:
        began.set()
        assert release.wait(30)

    with running(worker) as run:
        js.publish(f"{stream.name}.a", b"x")
        assert began.wait(20)
        worker.stop()
        wait_until(lambda: worker.snapshot()["not_ready"] == ["the worker is stopping"])
        stream.delete_consumer("C")
        release.set()
        assert run.ended() == 1


@pytest.mark.parametrize(("fails", "status"), [(False, 1), (True, 0)])
def test_an_ack_given_up_before_the_stop_shows_in_the_exit_status(
    js, stream, worker, monkeypatch, caplog, fails, status
):
    """Status 0 means that all acks of the run are confirmed; a nak given up only delays its message."""
    monkeypatch.setattr("jetstream_sync.workers.deliveries._MAX_ABSENT_SENDS", 2)
    monkeypatch.setattr("jetstream_sync.workers.deliveries._ABSENT_DELAY_S", 0.1)
    given_up = threading.Event()
    recreate = HandlerConsumer.recreate

    def recreate_later(consumer: HandlerConsumer) -> None:
        assert given_up.wait(20)
        recreate(consumer)

    monkeypatch.setattr(HandlerConsumer, "recreate", recreate_later)

    @worker.handler(stream=stream.name, consumer="C")
    def handle() -> None:
        if not given_up.is_set():
            stream.delete_consumer("C")
            if fails:
                raise OSError("not now")

    with running(worker) as run:
        js.publish(f"{stream.name}.a", b"x")
        wait_until(lambda: "was not settled" in caplog.text)
        given_up.set()
        wait_until(lambda: is_settled(stream))  # it was created again, and all is confirmed
        assert run.stop() == status
    assert ("not confirmed: 1 settlement," in caplog.text) == bool(status)


@pytest.mark.full
def test_a_handler_without_its_lease_still_exceeds_its_timeout(js, stream, nats_server, caplog):
    """The timeout limits the handler: an outage that takes the lease does not hide one that hangs."""
    release = threading.Event()
    overdue_extended = threading.Event()
    with FaultProxy(nats_server.port) as proxy:
        worker = Worker(proxy.url, connection=RECONNECT)

        @worker.handler(stream=stream.name, consumer="C", ack_wait=3, timeout=5)
        def hang_once(ctx: Context) -> None:
            if ctx.attempt > 1:
                return
            proxy.refuse()
            proxy.cut()
            wait_until(lambda: ctx.lease_lost)
            ctx.extend(0.5)
            wait_until(lambda: timeouts(worker) == 1)
            ctx.extend(60)
            assert ctx.deadline < datetime.now(timezone.utc)
            overdue_extended.set()
            assert release.wait(30)

        with running(worker):
            js.publish(f"{stream.name}.a", b"x")
            assert overdue_extended.wait(20)
            assert worker.snapshot()["not_live"]
            proxy.accept()
            release.set()
            wait_until(lambda: is_settled(stream), 20)
    assert "hang_once: the handler exceeds its timeout" in caplog.text
    assert "wait_until(lambda: timeouts(worker) == 1)" in caplog.text


def timeouts(worker: Worker) -> int:
    """Return how many handlers of a running worker have exceeded their timeout."""
    snapshot = worker.snapshot()
    assert snapshot is not None
    return sum(item["counts"]["timeouts"] for item in snapshot["handlers"])


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs SIGKILL")
def test_a_worker_killed_between_dead_letter_and_term(js, stream, nats_server, tmp_path):
    """The next worker stores the dead letter a second time: it is a duplicate, and the message ends."""
    code = f"""
worker = Worker(dead_letters="DEAD")

@worker.handler(stream={stream.name!r}, consumer="C", ack_wait=3, retry=Backoff(attempts=1))
def handle():
    record("run")
    raise OSError("no")
"""
    with FaultProxy(nats_server.port) as proxy:
        with WorkerProgram(code, proxy.url, tmp_path) as first:
            proxy.cut_after(0, Toward.SERVER, after=b"+TERM")
            proxy.refuse()
            js.publish(f"{stream.name}.a", b"x")
            wait_until(lambda: proxy.cuts == 1)
            first.signal(signal.SIGKILL)
            first.ended()
        assert dead_letters(js) == 1
        assert stream.consumer_info("C").num_ack_pending == 1
        with WorkerProgram(code, nats_server.url, tmp_path) as second:
            wait_until(lambda: is_settled(stream), 15)
            assert second.runs == ["run", "run"]
    assert dead_letters(js) == 1


def test_the_server_restarts_under_load(fresh_server):
    """
    A worker survives five restarts of its server: every message is handled, and none is left.

    It is alive all the time, and not ready while the server is away.
    """
    worker = Worker(fresh_server.url, connection=RECONNECT)
    runs: Counter[bytes] = Counter()

    @worker.handler(stream="LOAD", consumer="C", concurrency=4, prefetch=16, ack_wait=3)
    def handle(data: bytes) -> None:
        runs[data] += 1

    with jetstream_sync.connect(fresh_server.url, **RECONNECT) as nc:  # type: ignore[arg-type]
        js = nc.jetstream()
        stream = js.create_stream(name="LOAD", subjects=["load"])
        count = 1000
        with running(worker) as run:
            for number in range(count):
                if number in {100, 300, 500, 700, 900}:
                    wait_until(lambda number=number: len(runs) > number // 2)
                    fresh_server.stop()
                    wait_until(
                        lambda: "the server is not connected" in worker.snapshot()["not_ready"]
                    )
                    assert worker.snapshot()["not_live"] == []
                    fresh_server.start()
                js.publish("load", b"%d" % number, msg_id=f"{number}", timeout=20)
            wait_until(lambda: len(runs) == count, 20)
            wait_until(lambda: is_settled(stream), 20)
            assert (worker.snapshot()["not_live"], worker.snapshot()["not_ready"]) == ([], [])
            assert run.stop() == 0
    # A message is handled twice only if its ack was lost with the server.
    assert sum(runs.values()) <= count + 100


def test_the_worker_waits_for_its_server_at_the_start(fresh_server):
    """A worker may start before its server; a stop while it waits ends it with status 0."""
    with jetstream_sync.connect(fresh_server.url) as nc:
        nc.jetstream().create_stream(name="ORDERS", subjects=["orders"])
        nc.jetstream().publish("orders", b"x")
    url = fresh_server.url
    fresh_server.stop()
    seen = []
    workers = [Worker(url, connection=RECONNECT) for _ in range(2)]
    for worker in workers:
        worker.handler(stream="ORDERS", consumer="C")(seen.append)
    with running(workers[0]) as run:
        assert run.stop() == 0
    with running(workers[1]):
        fresh_server.restart()
        wait_until(lambda: seen == [b"x"], 20)


def test_a_worker_without_jetstream_or_permission_ends(caplog):
    """The status is 5, and the log names the reason."""
    users = """
authorization { users: [
    { user: all, password: p }
    { user: few, password: p, permissions: { publish: { deny: ["$JS.API.CONSUMER.CREATE.>"] } } }
] }
"""
    with NatsServer(config=users) as server:
        login = {"user": "all", "password": "p"}
        with jetstream_sync.connect(server.url, **login) as nc:  # type: ignore[arg-type]
            nc.jetstream().create_stream(name="ORDERS", subjects=["orders"])
        for wrong, text in (
            ({"user": "few", "password": "p"}, "CONSUMER.CREATE"),
            ({"user": "none", "password": "p"}, "Authorization Violation"),
            ({"user": "none", "retry_on_failed_connect": False}, "Authorization Violation"),
        ):
            worker = Worker(server.url, connection={**RECONNECT, **wrong})
            worker.handler(stream="ORDERS", consumer="C")(print)
            with running(worker) as run:
                assert run.ended() == 5
            assert text in caplog.text
            assert worker.check().status in {0, 5}  # a check does not try to create the consumer
    with NatsServer(jetstream=False) as server:
        worker = Worker(server.url)
        worker.handler(stream="ORDERS", consumer="C")(print)
        with running(worker) as run:
            assert run.ended() == 5
        assert worker.check().status == 5


@pytest.mark.server(">=2.11")  # a reload of users stops JetStream of an older server
def test_a_permission_that_is_lost_while_the_worker_runs(caplog):
    """Without the permission to pull, it is alive and not ready, logs one ERROR, and continues later."""

    def users(denied: str) -> str:
        return f"""
authorization {{ users: [
    {{ user: all, password: p }}
    {{ user: few, password: p, permissions: {{ publish: {{ deny: [{denied}] }} }} }}
] }}
"""

    def reload(denied: str) -> None:
        (server.store_dir.parent / "nats-server.conf").write_text(users(denied))
        os.kill(server.pid or 0, signal.SIGHUP)

    with (
        NatsServer(config=users('"none"')) as server,
        jetstream_sync.connect(server.url, user="all", password="p") as nc,
    ):
        js = nc.jetstream()
        stream = js.create_stream(name="ORDERS", subjects=["orders"])
        few = {"user": "few", "password": "p"}
        worker = Worker(server.url, connection={**RECONNECT, **few})
        seen: list[bytes] = []
        worker.handler(stream="ORDERS", consumer="C")(seen.append)

        with running(worker) as run:
            js.publish("orders", b"before")
            wait_until(lambda: seen == [b"before"])
            wait_until(lambda: worker.snapshot()["not_ready"] == [])
            reload('"$JS.API.CONSUMER.MSG.NEXT.>"')
            wait_until(lambda: "Reloaded server configuration" in server.log())
            for number in range(2):  # the open request receives them, and the next one is refused
                publish_until_stored(js, "orders", number)
            wait_until(lambda: "cannot pull" in "".join(worker.snapshot()["not_ready"]), 20)
            end = time.monotonic() + 2
            while time.monotonic() < end:  # also while it tries again
                assert "cannot pull" in "".join(worker.snapshot()["not_ready"])
                assert worker.snapshot()["not_live"] == []
                time.sleep(0.02)
            publish_until_stored(js, "orders", 2)
            reload('"none"')
            wait_until(lambda: seen == [b"before", b"0", b"1", b"2"], 40)
            wait_until(lambda: worker.snapshot()["not_ready"] == [])
            assert run.stop() == 0
        errors = [record for record in caplog.records if "cannot pull" in record.getMessage()]
        assert [error.levelname for error in errors] == ["ERROR"]
        assert stream.consumer_info("C").num_redelivered == 0


@pytest.mark.full
def test_the_leader_of_the_consumer_moves_under_load(cluster):
    """With three servers, every message is handled while leaders step down; the worker stays alive."""
    worker = Worker(cluster.urls, connection=RECONNECT)
    runs: Counter[bytes] = Counter()

    @worker.handler(stream="LOAD", consumer="C", concurrency=4, prefetch=16, ack_wait=5)
    def handle(data: bytes) -> None:
        runs[data] += 1

    with jetstream_sync.connect(cluster.urls, **RECONNECT) as nc:  # type: ignore[arg-type]
        js = nc.jetstream()
        stream = js.create_stream(name="LOAD", subjects=["load"], num_replicas=3)
        count = 400
        with running(worker) as run:
            for number in range(count):
                if number in {100, 200, 300}:
                    wait_until(lambda number=number: len(runs) > number - 100, 20)
                    for what in ("CONSUMER.LEADER.STEPDOWN.LOAD.C", "STREAM.LEADER.STEPDOWN.LOAD"):
                        nc.request(f"$JS.API.{what}", timeout=5 * SCALE)
                publish_until_stored(js, "load", number)
            wait_until(lambda: len(runs) == count, 40)
            wait_until(lambda: is_settled(stream), 40)
            assert worker.snapshot()["not_live"] == []
            assert run.stop() == 0
    assert sum(runs.values()) <= count + 60


def publish_until_stored(js: JetStream, subject: str, number: int) -> None:
    """Publish a message with its number as id, and repeat that until it is stored."""

    def stored() -> bool:
        try:
            js.publish(subject, b"%d" % number, msg_id=str(number), timeout=2 * SCALE)
        except Error:
            return False
        return True

    wait_until(stored, 30)


def test_leases_that_become_shorter_are_renewed_in_time(nc, js, stream):
    """A held message whose ack_wait is reduced is renewed by its new length, not by the former one."""
    consumer = stream.create_consumer(durable_name="C", ack_wait=60)
    js.publish(f"{stream.name}.a", b"x")
    times = LeaseTimes(consumer.cached_info.config)
    delivery = LeasedMessage(consumer.next(), Lease(times, 1, lease_clock()), Origin("handler"))
    keeper = LeaseKeeper(nc, lambda: None)
    keeper.held.add(delivery)
    with nc.subscribe("$JS.ACK.>") as acks:
        keeper.tick()
        shorter = replace(consumer.cached_info.config, ack_wait=timedelta(seconds=3))
        times.adopt(stream.update_consumer(shorter).cached_info.config)
        begin = delivery.lease.begun_at
        wait_until(lambda: keeper.tick() or delivery.lease.begun_at > begin, 3 / SCALE)
        assert acks.next_msg(5).data == b"+WPI"
    assert not delivery.is_lost()
    assert consumer.info().num_redelivered == 0


def test_a_lost_lease_stays_lost_when_leases_become_longer(nc, js, stream):
    """The server has delivered the message again: a nak or term would act on that delivery."""
    consumer = stream.create_consumer(durable_name="C", ack_wait=30)
    js.publish(f"{stream.name}.a", b"x")
    times = LeaseTimes(consumer.cached_info.config)
    delivery = LeasedMessage(
        consumer.next(), Lease(times, 1, lease_clock() - 30), Origin("handler")
    )
    keeper = LeaseKeeper(nc, lambda: None)
    keeper.held.add(delivery)
    times.adopt(replace(consumer.cached_info.config, ack_wait=timedelta(seconds=300)))
    keeper.tick()
    assert delivery.is_lost()
    assert delivery.state is DeliveryState.LOST
