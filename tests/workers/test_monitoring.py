"""Health checks and metrics of a worker: they tell the truth, and disturb nothing."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import threading
from collections import Counter
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from fixtures.apps import free_port
from fixtures.faults import FaultProxy
from fixtures.threads import SCALE, wait_until
from fixtures.worker import WorkerProgram, is_settled, publish_numbers, publish_texts, running
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from jetstream_sync import InvalidOptionError
from jetstream_sync.server import NatsServer
from jetstream_sync.workers import Backoff, Context, Reject, Retry, Worker, WorkerCollector
from jetstream_sync.workers import run as run_module
from jetstream_sync.workers.deliveries import LeaseKeeper
from jetstream_sync.workers.observer import OUTCOMES
from jetstream_sync.workers.operations.health import Processes

FAST = Backoff(first=0.1, factor=1.0, jitter=0.0, attempts=2)
RECONNECT = {"reconnect_time_wait": 0.05, "max_reconnect_attempts": -1}
PREFIX = "jetstream_worker_"


class Monitored:
    """The HTTP endpoint of a worker."""

    def __init__(self) -> None:
        self.port = free_port()
        self.address = f"127.0.0.1:{self.port}"

    def get(self, path: str) -> tuple[int, str]:
        """Return status and body; 0 if nothing listens."""
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=5 * SCALE) as sock:
                sock.sendall(f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
                response = b"".join(iter(lambda: sock.recv(65536), b"")).decode()
        except ConnectionRefusedError:
            return 0, ""
        head, _, body = response.partition("\r\n\r\n")
        assert f"Content-Length: {len(body)}" in head
        return int(head.split()[1]), body

    def status(self, path: str) -> int:
        return self.get(path)[0]

    def metrics(self) -> dict[str, float]:
        """Return all samples: ``name`` or ``name outcome`` -> value, of a worker with one handler."""
        return samples(self.get("/metrics")[1])


def samples(text: str) -> dict[str, float]:
    found = {}
    for family in text_string_to_metric_families(text):
        assert family.documentation
        assert family.type in {"counter", "gauge", "histogram"}
        for sample in family.samples:
            if sample.name != f"{PREFIX}restarts_total":  # a supervisor has no handlers
                assert {"handler", "stream", "consumer"} <= sample.labels.keys()
            extra = sample.labels.get("outcome") or sample.labels.get("le")
            name = sample.name.removeprefix(PREFIX)
            assert name != sample.name
            found[f"{name} {extra}" if extra else name] = sample.value
    return found


@pytest.fixture
def endpoint() -> Monitored:
    return Monitored()


@pytest.fixture
def worker(nats_server: NatsServer, endpoint: Monitored, monkeypatch: pytest.MonkeyPatch) -> Worker:
    """A worker with that endpoint, which often asks the server for its consumers."""
    monkeypatch.setattr(run_module, "_SAMPLE_S", 0.1)
    return Worker(nats_server.url, dead_letters="DEAD", http=endpoint.address)


def test_health_follows_the_server_and_the_life_of_the_worker(js, stream, nats_server, endpoint):
    """Without its server a worker is alive but not ready, at the start and later; at its end nothing listens."""
    release = threading.Event()
    with FaultProxy(nats_server.port) as proxy:
        proxy.refuse()
        worker = Worker(proxy.url, http=endpoint.address, connection=RECONNECT)

        @worker.handler(stream=stream.name, consumer="C", ack_wait=30)
        def handle() -> None:
            release.wait(30)

        with running(worker) as run:
            wait_until(lambda: endpoint.status("/livez") == 200)
            assert endpoint.get("/readyz") == (503, "the worker is starting\n")
            proxy.accept()
            wait_until(lambda: endpoint.get("/readyz") == (200, "ok\n"))
            proxy.refuse()
            proxy.cut()
            wait_until(lambda: "not connected" in endpoint.get("/readyz")[1])
            assert endpoint.get("/livez") == (200, "ok\n")
            proxy.accept()
            wait_until(lambda: endpoint.status("/readyz") == 200)
            js.publish(f"{stream.name}.a", b"x")
            wait_until(lambda: endpoint.metrics().get("running") == 1)
            worker.stop()
            wait_until(lambda: endpoint.get("/readyz") == (503, "the worker is stopping\n"))
            assert endpoint.status("/livez") == 200
            release.set()
            assert run.ended() == 0
    assert endpoint.status("/livez") == 0


def test_a_worker_with_no_free_thread_is_not_alive(js, stream, worker, endpoint):
    """When all threads of a handler exceed the timeout, /livez fails; one thread less is fine."""
    release = threading.Event()

    @worker.handler(stream=stream.name, consumer="C", concurrency=2, timeout=0.1)
    def hang() -> None:
        release.wait(30)

    @worker.handler(stream=stream.name, consumer="IDLE", filter_subject=f"{stream.name}.none")
    def idle() -> None: ...

    with running(worker):
        js.publish(f"{stream.name}.a", b"1")
        wait_until(lambda: 'timeouts_total{handler="hang"' in endpoint.get("/metrics")[1])
        wait_until(lambda: worker_counts(endpoint, "hang")["timeouts"] == 1)
        assert endpoint.status("/livez") == 200
        js.publish(f"{stream.name}.a", b"2")
        wait_until(lambda: endpoint.status("/livez") == 503)
        assert endpoint.get("/livez")[1] == "hang: all 2 threads exceed the timeout\n"
        assert endpoint.status("/readyz") == 503
        release.set()
        wait_until(lambda: endpoint.status("/livez") == 200)


def test_a_thread_that_hangs_behind_its_acknowledgement_is_not_free(
    js, stream, worker, endpoint, caplog
):
    """A thread over the timeout is counted, and not alive, also if its message is acknowledged."""
    release = threading.Event()

    @worker.handler(stream=stream.name, consumer="C", ack="before", timeout=0.1)
    def hang(ctx: Context) -> None:
        wait_until(lambda: counted(worker)["timeouts"] == 1)
        ctx.extend(60)  # too late
        release.wait(30)

    with running(worker):
        js.publish(f"{stream.name}.a", b"1")
        wait_until(lambda: endpoint.status("/livez") == 503)
        wait_until(lambda: counted(worker)["timeouts"] == 1)
        wait_until(lambda: "hang: the handler exceeds its timeout" in caplog.text)
        assert endpoint.status("/livez") == 503
        release.set()
        wait_until(lambda: endpoint.status("/livez") == 200)


def worker_counts(endpoint: Monitored, handler: str) -> dict[str, int]:
    (process,) = json.loads(endpoint.get("/livez?verbose")[1])["processes"]
    return next(item["counts"] for item in process if item["handler"] == handler)


def test_a_worker_whose_leases_are_not_renewed_is_not_alive(
    js, stream, worker, endpoint, monkeypatch
):
    """When the thread that renews leases has ended, /livez says so, and the worker stops."""
    release, broken = threading.Event(), threading.Event()
    tick = LeaseKeeper.tick

    def fail(keeper: LeaseKeeper) -> None:
        if broken.is_set():
            raise RuntimeError("a fault")
        tick(keeper)

    monkeypatch.setattr(LeaseKeeper, "tick", fail)

    @worker.handler(stream=stream.name, consumer="C")
    def handle() -> None:
        release.wait(30)

    with running(worker) as run:
        js.publish(f"{stream.name}.a", b"1")
        wait_until(lambda: endpoint.metrics().get("running") == 1)
        assert endpoint.status("/livez") == 200
        broken.set()
        wait_until(lambda: endpoint.status("/livez") == 503)
        assert "the thread that renews leases has ended" in endpoint.get("/livez")[1]
        release.set()
        assert run.ended() == 1


def test_a_changed_consumer_is_reported(stream, worker, endpoint, caplog):
    """An operator changes what the handler needs: not ready, an error, a metric, until it is undone."""
    subject = f"{stream.name}.a"
    worker.handler(stream=stream.name, consumer="C", filter_subject=subject)(print)
    changed: list[dict[str, Any]] = [
        {"max_deliver": 2},
        {"filter_subject": f"{stream.name}.b"},
        {"ack_wait": 5.0},
        {"ack_wait": 1.0},
    ]
    texts = ["max_deliver=2", "has the filters", "of 5 seconds, below 30", "at least 3 seconds"]
    with running(worker):
        wait_until(lambda: endpoint.status("/readyz") == 200)
        fits = stream.consumer_info("C").config
        for changes, text in zip(changed, texts, strict=True):
            stream.update_consumer(replace(fits, **changes))
            wait_until(lambda: endpoint.status("/readyz") == 503)
            assert text in endpoint.get("/readyz")[1]
            assert endpoint.metrics()["consumer_mismatches"] >= 1
            assert endpoint.status("/livez") == 200
            stream.update_consumer(fits)
            wait_until(lambda: endpoint.status("/readyz") == 200)
            assert endpoint.metrics()["consumer_mismatches"] == 0
    errors = "".join(record.message for record in caplog.records if record.levelname == "ERROR")
    assert all(errors.count(text) == 1 for text in texts)


@pytest.mark.server(">=2.11")
def test_a_paused_consumer_is_reported(stream, worker, endpoint, caplog):
    """The worker is not ready until the consumer is resumed; the error is logged once."""
    until = datetime.now(timezone.utc) + timedelta(hours=1)
    worker.handler(stream=stream.name, consumer="C")(print)
    stream.create_consumer(durable_name="C")
    stream.pause_consumer("C", until)
    assert "is paused" in "".join(worker.check().warnings)
    with running(worker):
        wait_until(lambda: "is paused" in endpoint.get("/readyz")[1])
        stream.resume_consumer("C")
        wait_until(lambda: endpoint.status("/readyz") == 200)
        stream.pause_consumer("C", until)
        wait_until(lambda: endpoint.status("/readyz") == 503)
        stream.resume_consumer("C")
        wait_until(lambda: endpoint.status("/readyz") == 200)
    assert caplog.text.count("is paused") == 2
    assert caplog.text.count("fits the handler again") == 2


def test_the_metrics_count_what_was_handled(js, stream, worker, endpoint):
    """Each message has one outcome; the text is valid, and a registry of the user has the same."""

    @worker.handler(stream=stream.name, consumer="C", retry=FAST, decode="text")
    def handle(what: str, ctx: Context) -> None:
        if what.startswith("early"):
            ctx.ack()
        if what == "reject":
            raise Reject("no")
        if what in {"fail", "early, then bad"}:
            raise Retry("no")

    publish_texts(js, stream, "good", "reject", "fail", "good", "good", "early", "early, then bad")
    registry = CollectorRegistry()
    registry.register(WorkerCollector(worker))
    assert samples(generate_latest(registry).decode()) == {}
    with running(worker):
        wait_until(lambda: is_settled(stream) and endpoint.metrics().get("messages_total ack") == 5)
        wait_until(lambda: endpoint.metrics().get("consumer_pending") == 0)
        found = endpoint.metrics()
        assert found.keys() == samples(generate_latest(registry).decode()).keys()
    totals = {name.split()[1]: value for name, value in found.items() if "messages_total" in name}
    assert totals == dict.fromkeys(OUTCOMES, 0) | {"ack": 5, "retry": 1, "rejected": 1, "dead": 1}
    runs = 5 + 1 + 2
    for name in ("duration_seconds", "wait_seconds", "age_seconds"):
        assert found[f"{name}_count"] == found[f"{name}_bucket +Inf"] == runs
        assert 0 < found[f"{name}_sum"] < 60
    newest = js.get_stream("DEAD").get_msg(seq=2).time.timestamp()
    assert abs(found["last_success_timestamp_seconds"] - newest) < 60
    assert (found["slots"], found["running"], found["buffered"]) == (1, 0, 0)
    assert samples(generate_latest(registry).decode()) == {}


def test_one_late_batch_leaves_the_other_threads_alive(js, stream, worker, caplog):
    """A batch that exceeds its timeout occupies one thread, and logs one stack, for all its messages."""
    release = threading.Event()

    @worker.batch(
        stream=stream.name, consumer="C", concurrency=2, timeout=0.1, max_messages=3, max_wait=30
    )
    def hang() -> None:
        release.wait(30)

    with running(worker):
        for batch in (1, 2):
            publish_numbers(js, stream, 3)
            wait_until(lambda count=3 * batch: counted(worker)["timeouts"] == count)
            snapshot = worker.snapshot()
            assert bool(snapshot["not_live"]) == (batch == 2)
            wait_until(lambda count=batch: caplog.text.count("exceeds its timeout") == count)
        release.set()


def counted(worker: Worker) -> Counter[str]:
    """Return what a running worker with one handler has counted; nothing while it starts."""
    snapshot = worker.snapshot()
    handlers = [] if snapshot is None else snapshot["handlers"]
    return Counter(handlers[0]["counts"] if handlers else {})


def test_good_messages_pass_those_that_wait_for_their_retry(js, stream, worker, endpoint):
    """Fifty failed messages wait for their retry, as a metric tells, and fifty good ones are handled."""
    stream.create_consumer(durable_name="C", max_ack_pending=64, max_deliver=-1)
    good = []

    @worker.handler(stream=stream.name, consumer="C", retry=Backoff(first=30), decode="text")
    def handle(what: str) -> None:
        if what == "bad":
            raise Retry("no")
        good.append(what)

    publish_texts(js, stream, *(["bad"] * 50 + ["good"] * 50))
    with running(worker):
        wait_until(lambda: len(good) == 50)
        wait_until(lambda: endpoint.metrics().get("consumer_delayed") == 50)
        assert stream.consumer_info("C").num_ack_pending >= 50


def test_garbage_and_slow_clients_disturb_nothing(js, stream, worker, endpoint):
    """Clients that send nothing, or no HTTP, delay no health check and stop no worker."""
    seen = []

    worker.handler(stream=stream.name, consumer="C")(seen.append)

    with running(worker) as run:
        wait_until(lambda: endpoint.status("/readyz") == 200)
        silent = [socket.create_connection(("127.0.0.1", endpoint.port)) for _ in range(70)]
        for number, sock in enumerate(silent[:20]):
            sock.sendall(b"GET /livez HTTP" if number % 2 else b"\x16\x03\x01")
        assert endpoint.status("/livez") == 200
        for request, status in {
            b"HELLO\r\n\r\n": 400,
            b"\xff\xfe \x00 HTTP/1.1\r\n\r\n": 501,
            b"POST /livez HTTP/1.1\r\n\r\n": 501,
            b"GET http://[ HTTP/1.1\r\n\r\n": 404,
            b"GET /other HTTP/1.1\r\n\r\n": 404,
            b"x" * 70_000: 414,
        }.items():
            with socket.create_connection(("127.0.0.1", endpoint.port), timeout=5 * SCALE) as sock:
                sock.sendall(request)
                assert sock.recv(100).startswith(b"HTTP/1.1 %d " % status), request
        with socket.create_connection(("127.0.0.1", endpoint.port), timeout=5 * SCALE) as sock:
            sock.sendall(b"HEAD /livez HTTP/1.0\r\n\r\n")
            assert b"".join(iter(lambda: sock.recv(100), b"")).endswith(b"\r\n\r\n")
        js.publish(f"{stream.name}.a", b"x")
        wait_until(lambda: seen == [b"x"])
        assert run.stop() == 0
    assert endpoint.status("/livez") == 0
    for sock in silent:
        sock.close()


def test_a_port_that_is_in_use_keeps_the_worker_from_starting(stream, nats_server, caplog):
    """The status is 2, and the error names the address; an invalid address is refused at once."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        worker = Worker(nats_server.url, http=address)
        worker.handler(stream=stream.name, consumer="C")(print)
        assert worker.run() == 2
        assert address in caplog.text
        assert "in use" in caplog.text
    for wrong in ("9400x", "localhost", "127.0.0.1:99999", ":-1"):
        with pytest.raises(InvalidOptionError, match="HOST:PORT"):
            Worker(http=wrong)


def test_systemd_is_told_about_the_worker(stream, worker, systemd, monkeypatch):
    """The worker reports when it is ready and when it stops, and resets the watchdog in between."""
    monkeypatch.setenv("WATCHDOG_USEC", "1000000")
    monkeypatch.delenv("WATCHDOG_PID", raising=False)
    worker.handler(stream=stream.name, consumer="C")(print)
    states = []
    with running(worker) as run:
        while "READY=1" not in states or states.count("WATCHDOG=1") < 3:
            states.append(systemd.recv(100).decode())
        worker.stop()
        while states[-1] != "STOPPING=1":
            states.append(systemd.recv(100).decode())
        assert run.ended() == 0
    assert set(states) == {"READY=1", "WATCHDOG=1", "STOPPING=1"}
    assert (states.count("READY=1"), states.count("STOPPING=1")) == (1, 1)


def test_a_silent_process_is_not_ready(monkeypatch):
    """The last report of a process that was suspended does not count for ever."""
    monkeypatch.setattr("jetstream_sync.workers.operations.health._SILENCE_S", 0.1)
    processes = Processes(1)
    processes.report(7, {"not_live": [], "not_ready": [], "handlers": [], "gauges": []})
    assert processes.not_ready() == []
    wait_until(processes.not_ready)
    count, silent = processes.not_ready()
    assert count == "0 of 1 processes handle messages"
    assert re.fullmatch(r"process 7: it has reported nothing for \d+ s", silent)
    processes.report(7, {"not_live": [], "not_ready": [], "handlers": [], "gauges": []})
    assert processes.not_ready() == []


def test_a_supervisor_serves_all_its_processes(js, stream, nats_server, tmp_path, endpoint):
    """One port has the sums of all processes, also of those that were replaced, and their health."""
    code = f"""
worker = Worker(http="127.0.0.1:1")  # that of the supervisor is used

@worker.handler(stream={stream.name!r}, consumer="C", decode="text", timeout=0.5, prefetch=0)
def handle(data):
    record(f"{{os.getpid()}} {{data}}")
    if data == "hang":
        wait_for_file("finish")
"""
    arguments = ["--processes", "3", "--http", endpoint.address]
    with WorkerProgram(code, nats_server.url, tmp_path, arguments) as program:
        wait_until(lambda: endpoint.get("/readyz") == (200, "ok\n"))
        publish_numbers(js, stream, 150)
        program.wait_runs(150)
        wait_until(lambda: endpoint.metrics().get("messages_total ack") == 150)
        assert endpoint.metrics()["slots"] == 3
        runs = Counter(line.split()[0] for line in program.runs)
        os.kill(int(runs.most_common(1)[0][0]), signal.SIGKILL)
        wait_until(lambda: "2 of 3 processes" in endpoint.get("/readyz")[1])
        assert endpoint.status("/livez") == 200
        wait_until(lambda: endpoint.status("/readyz") == 200)
        assert "has ended, starting another in 1 s: signal SIGKILL" in program.output
        publish_numbers(js, stream, 50)
        wait_until(lambda: endpoint.metrics()["messages_total ack"] == len(program.runs) == 200)
        assert endpoint.metrics()["duration_seconds_count"] == 200
        assert endpoint.metrics()["restarts_total"] == 1
        js.publish(f"{stream.name}.a", b"hang")
        wait_until(lambda: endpoint.status("/livez") == 503)
        assert "handle: all 1 threads exceed the timeout" in endpoint.get("/livez")[1]
        assert len(json.loads(endpoint.get("/livez?verbose")[1])["processes"]) == 3
        (tmp_path / "finish").touch()
        wait_until(lambda: endpoint.status("/livez") == 200)
        program.stop()
