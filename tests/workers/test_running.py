"""Reports of running messages, and ``jsm worker ls``, ``running`` and ``stacks``."""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Iterator
from datetime import datetime, timezone
from pathlib import Path

import pytest
from fixtures.jsm import Jsm
from fixtures.rawnats import RawClient
from fixtures.threads import wait_until
from fixtures.worker import WorkerProgram, is_settled, running

import jetstream_sync
from jetstream_sync import JetStream, Stream
from jetstream_sync.server import NatsServer
from jetstream_sync.workers import Context, Worker
from jetstream_sync.workers.running import request_reports, terminate

CODE = """
worker = Worker(name={name!r}, report={report!r}, drain_timeout=20)

@worker.handler(stream={stream!r}, consumer={consumer!r}, filter_subject="{stream}.{token}",
                concurrency=2, decode="text", timeout=60)
def handle_{token}(data):
    record(data)
    wait_for_file("finish")
"""


RUNNING = {
    "handler": "h",
    "stream": "S",
    "consumer": "C",
    "subject": "s",
    "stream_seq": 1,
    "attempt": 1,
    "since": "2026-01-01T00:00:00+00:00",
    "seconds": 1.5,
    "over_timeout": False,
    "lease_lost": False,
    "thread": "t",
    "stack": None,
}
REPORT = {
    "worker": "w",
    "host": "h",
    "pid": 1,
    "started": "2026-01-01T00:00:00+00:00",
    "stacks": False,
    "running": [],
    "omitted": 0,
    "not_live": [],
    "not_ready": [],
    "handlers": [],
    "gauges": [],
}


@pytest.fixture
def programs(
    jsm: Jsm, js: JetStream, stream: Stream, nats_server: NatsServer, tmp_path: Path
) -> Iterator[list[WorkerProgram]]:
    """Two worker processes that handle messages: one message of "shop a", two of "mail"."""
    del jsm  # deletes the streams afterwards
    started = []
    options = [("shop a", "messages", "A", "a"), ("mail", "stacks", "B", "b")]
    for name, report, consumer, token in options:
        code = CODE.format(
            name=name, report=report, consumer=consumer, token=token, stream=stream.name
        )
        started.append(WorkerProgram(code, nats_server.url, tmp_path))
    for token in ("a", "b", "b"):
        js.publish(f"{stream.name}.{token}", token.encode())
    started[0].wait_runs(3)
    yield started
    (tmp_path / "finish").touch()
    for program in started:
        with program:
            program.signal(signal.SIGTERM)
            program.process.wait(20)


def test_processes_report_their_running_messages(nc, stream, programs, tmp_path):
    """Each process reports handler, subject, sequence, attempt and start of what it runs now."""
    before = datetime.now(timezone.utc)
    mail, shop = request_reports(nc)
    pids = [program.process.pid for program in programs]
    assert [(item["worker"], item["pid"]) for item in (shop, mail)] == [
        ("shop a", pids[0]),
        ("mail", pids[1]),
    ]
    (message,) = shop["running"]
    assert message["handler"].endswith("handle_a")
    assert (message["stream"], message["consumer"]) == (stream.name, "A")
    assert (message["subject"], message["stream_seq"]) == (f"{stream.name}.a", 1)
    assert (message["attempt"], message["over_timeout"], message["lease_lost"]) == (1, False, False)
    assert datetime.fromisoformat(message["since"]) <= before
    assert sorted(item["stream_seq"] for item in mail["running"]) == [2, 3]
    (state,) = mail["handlers"]
    assert (state["slots"], state["running"], state["handled"]) == (2, 2, 0)
    assert shop["not_ready"] == []

    # Stacks are for those who ask, of the workers that enable them.
    assert [item["stack"] for item in (*shop["running"], *mail["running"])] == [None] * 3
    mail, shop = request_reports(nc, stacks=True)
    assert shop["running"][0]["stack"] is None
    for item in mail["running"]:
        assert "in wait_for_file" in (item["stack"] or "")

    # By name, which may be no token of a subject.
    assert [report["pid"] for report in request_reports(nc, "shop a")] == pids[:1]
    assert request_reports(nc, "shop") == []

    (tmp_path / "finish").touch()
    wait_until(lambda: is_settled(stream, "A") and is_settled(stream, "B"))
    (mail,) = wait_until(lambda: [e for e in request_reports(nc, "mail") if not e["running"]])
    assert mail["handlers"][0]["handled"] == 2


@pytest.mark.usefixtures("programs")
def test_commands_show_running_workers(jsm, stream):
    """Tables list processes, messages and stacks of all workers, or of one."""
    lines = jsm("worker", "ls").ok().out.splitlines()
    assert [line.split()[0] for line in lines[2:]] == ["mail", "shop"]
    assert all(" ready " in line for line in lines[2:])
    assert [item["worker"] for item in jsm("worker", "ls", "mail", "-j").ok().json] == ["mail"]

    out = jsm("worker", "running").ok().out
    assert f"{stream.name}.a" in out
    assert out.count(f"{stream.name}.b") == 2
    (report,) = jsm("worker", "running", "shop a", "-j").ok().json
    assert [item["stream_seq"] for item in report["running"]] == [1]

    shown = jsm("worker", "stacks").ok()
    assert shown.out.count("in wait_for_file") == 2
    assert "handle_a" not in shown.out
    assert "worker shop a at" in shown.err
    assert "report='stacks'" in shown.err

    missing = jsm("worker", "running", "unknown")
    assert missing.status == 3
    assert "'unknown'" in missing.err


def test_handlers_that_are_late(nc, js, stream, nats_server):
    """
    A handler over its timeout is marked, and a lost lease; a worker without reports is not found.

    The server delivers a message that was acknowledged early no more, so its lease is not lost.
    """
    release = threading.Event()
    silent = Worker(nats_server.url, name="silent", report=None)
    silent.handler(stream=stream.name, consumer="S", filter_subject=f"{stream.name}.s")(os.getpid)
    late = Worker(nats_server.url, name="late")

    @late.handler(
        stream=stream.name, consumer="L", filter_subject=f"{stream.name}.l", timeout=0.1, ack_wait=3
    )
    def wait(_data: bytes, _ctx: Context) -> None:
        release.wait(30)

    @late.handler(
        stream=stream.name, consumer="E", filter_subject=f"{stream.name}.e", timeout=0.1, ack_wait=3
    )
    def ack_early(ctx: Context) -> None:
        ctx.ack()
        release.wait(30)

    with running(silent), running(late):
        js.publish(f"{stream.name}.e", b"")
        js.publish(f"{stream.name}.l", b"")
        wait_until(
            lambda: [
                message
                for report in request_reports(nc)
                for message in report["running"]
                if message["over_timeout"] and message["lease_lost"]
            ],
            10,
        )
        (report,) = request_reports(nc)
        assert report["worker"] == "late"
        assert {
            item["handler"]: (item["over_timeout"], item["lease_lost"])
            for item in report["running"]
        } == {"ack_early": (True, False), "wait": (True, True)}
        release.set()


@pytest.mark.parametrize(
    ("reply", "headers", "missing"),
    [
        (
            b"",
            {"Nats-Service-Error-Code": "500", "Nats-Service-Error": "no"},
            {"process 1": "no"},
        ),
        (
            json.dumps({**REPORT, "pid": "1", "host": "h"}).encode(),
            {},
            {"w h:1": "it reports as another version"},
        ),
        (b'{"worker": "w", "host": "h", "pid": 1}', {}, {"w h:1": "it reports as another version"}),
    ],
)
def test_a_process_that_cannot_report_is_missing(jsm, nc, reply, headers, missing):
    """It is none of the reports, but `jsm` does not say that there are no workers."""
    nc.subscribe("jetstream-worker.>", cb=lambda msg: msg.respond(reply, headers=headers))
    nc.flush()
    found = request_reports(nc)
    assert (list(found), found.missing, found.is_complete) == ([], missing, False)
    for command in (["ls"], ["running"], ["stacks"], ["ls", "w"]):
        done = jsm("worker", *command)
        assert (done.status, done.out) == (1, "")
        assert next(iter(missing)) in done.err


def test_a_subject_that_is_no_utf_8_is_reported(nats_server, nc, stream):
    """Its bytes are escaped."""
    release = threading.Event()
    worker = Worker(nats_server.url, name="bytes")

    @worker.handler(stream=stream.name, consumer="C")
    def handle() -> None:
        release.wait(30)

    client = RawClient(nats_server.port)
    client.send(b"PUB %s.\xff 0\r\n\r\n" % stream.name.encode())
    with running(worker):
        (message,) = wait_until(lambda: [m for r in request_reports(nc) for m in r["running"]])
        release.set()
    client.close()
    assert message["subject"] == f"{stream.name}.\\udcff"


def test_a_report_of_a_newer_version_is_read(nc):
    """Keys that are not known are left out."""
    newer = json.dumps({**REPORT, "new": 1, "running": [{**RUNNING, "new": 2}]}).encode()
    nc.subscribe("jetstream-worker.>", cb=lambda msg: msg.respond(newer))
    nc.flush()
    assert list(request_reports(nc)) == [{**REPORT, "running": [RUNNING]}]


@pytest.mark.parametrize("reply", [b"", b"[]", b'{"stream": "S", "seq": 1}'])
def test_a_reply_that_is_no_report_is_not_one(nc, reply):
    """Other programs may reply, and a stream may store the subjects."""
    nc.subscribe("jetstream-worker.>", cb=lambda msg: msg.respond(reply))
    nc.flush()
    assert request_reports(nc) == []
    assert not terminate(nc, "tasks.shop.default.mail.1")


def test_a_worker_without_permission_runs_without_reports(caplog):
    """A user who may not subscribe to the subject handles messages; a warning says so."""
    config = """
        authorization { users = [
            {user: all, password: x},
            {user: worker, password: x,
             permissions: {publish: ">", subscribe: {allow: ">", deny: ["jetstream-worker.>"]}}}
        ] }
    """
    handled = threading.Event()
    with NatsServer(config=config) as server:
        url = server.url.replace("://", "://worker:x@")
        with jetstream_sync.connect(url.replace("worker:", "all:")) as nc:
            js = nc.jetstream()
            js.create_stream(name="S", subjects=["S.>"])
            worker = Worker(url, name="shop")

            @worker.handler(stream="S", consumer="C")
            def handle() -> None:
                handled.set()

            with running(worker):
                js.publish("S.a", b"")
                assert handled.wait(20)
                wait_until(lambda: "does not report running messages" in caplog.text)
                assert request_reports(nc) == []
