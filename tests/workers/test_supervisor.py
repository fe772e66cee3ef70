"""The supervisor: worker processes that are started, replaced and stopped."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from urllib.request import urlopen

import pytest
from fixtures.apps import Program
from fixtures.threads import SCALE, wait_until, within
from fixtures.worker import WorkerProgram, exists, is_settled, publish_numbers

import jetstream_sync
from jetstream_sync import Stream
from jetstream_sync.server import NatsServer
from jetstream_sync.workers.operations import supervisor as supervisor_module
from jetstream_sync.workers.operations.heartbeat import Heartbeat, rss_of
from jetstream_sync.workers.operations.supervisor import RecycleRules, Supervisor

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs POSIX signals")

CODE = """
worker = Worker(name="shop", drain_timeout=20)

@worker.handler(stream={stream!r}, consumer="C", concurrency=2, ack_wait=60, decode="text")
def handle(data):
    record(f"{version} {{os.getpid()}} {{data}}")
    {body}
"""


def code_of(stream: Stream, body: str = "pass", version: str = "old") -> str:
    return CODE.format(stream=stream.name, body=body, version=version)


def pids(runs: list[str]) -> set[int]:
    return {int(line.split()[1]) for line in runs}


@pytest.fixture
def monitored() -> Iterator[NatsServer]:
    """A server of its own, with the stream S, that tells how many connections it has."""
    with NatsServer(config="http: 127.0.0.1:-1") as server:
        yield server


def connections(server: NatsServer) -> Counter[str]:
    """Return the names of the open connections."""
    found = re.search(r"http monitor on (\S+)", server.log())
    with urlopen(f"http://{found[1]}/connz", timeout=5 * SCALE) as response:
        return Counter(item.get("name", "") for item in json.load(response)["connections"])


def test_processes_are_replaced_without_a_loss(monitored, tmp_path):
    """Each process has a connection, the supervisor none; SIGHUP brings new code, and no message twice."""
    slow = "time.sleep(0.02)"
    with jetstream_sync.connect(monitored.url, name="test") as nc:
        js = nc.jetstream()
        stream = js.create_stream(name="S", subjects=["S.>"])
        code = code_of(stream, slow)
        with WorkerProgram(code, monitored.url, tmp_path, ["--processes", "3"]) as program:
            wait_until(lambda: program.output.count("is ready") == 3, 20)
            assert connections(monitored) == {"test": 1, "shop": 3}
            publishing = threading.Thread(target=publish_numbers, args=(js, stream, 300))
            publishing.start()
            program.wait_runs(10)
            program.write(code_of(stream, f"{slow}  # a longer line", version="new"))
            program.signal(signal.SIGHUP)
            wait_until(lambda: program.output.count("was replaced") == 3, 30)
            publishing.join()
            publish_numbers(js, stream, 10, 300)
            runs = program.wait_runs(310)
            assert Counter(line.split()[2] for line in runs) == Counter(map(str, range(310)))
            assert all(line.startswith("new") for line in runs[300:])
            assert connections(monitored) == {"test": 1, "shop": 3}
            wait_until(lambda: is_settled(stream))
            program.process.kill()
            wait_until(lambda: connections(monitored) == {"test": 1}, 20)


def test_a_killed_supervisor_ends_its_processes_after_their_handlers(
    js, stream, nats_server, tmp_path
):
    """A handler that runs when the supervisor is killed finishes, and its message is acknowledged."""
    wait = "wait_for_file('finish')"
    publish_numbers(js, stream, 1)
    with WorkerProgram(
        code_of(stream, wait), nats_server.url, tmp_path, ["--processes", "1"]
    ) as program:
        (child,) = pids(program.wait_runs(1))
        program.process.kill()
        program.process.wait()
        wait_until(lambda: "is stopping" in program.output)
        assert exists(child)
        (tmp_path / "finish").touch()
        wait_until(lambda: "has stopped with status 0" in program.output)
        wait_until(lambda: is_settled(stream))
    assert stream.consumer_info("C").delivered.consumer_seq == 1


def test_a_signal_to_all_processes_stops_each_once(js, stream, nats_server, tmp_path):
    """Ctrl-C, which also the worker processes get, lets handlers finish; a second one does not."""
    wait = "wait_for_file('finish')"
    for again in (False, True):
        publish_numbers(js, stream, 1)
        with WorkerProgram(
            code_of(stream, wait), nats_server.url, tmp_path, ["--processes", "2"]
        ) as program:
            wait_until(lambda output=program: output.output.count("is ready") == 2, 20)
            program.wait_runs(1 + again)
            program.ctrl_c()
            wait_until(lambda output=program: output.output.count("is stopping") == 2)
            # Two signals that the supervisor has not handled yet would be one.
            wait_until(lambda output=program: "supervisor: stopping" in output.output)
            if again:
                program.ctrl_c()
                with within(8):
                    assert program.ended() == 1
            else:
                (tmp_path / "finish").touch()
                assert program.ended() == 0
                (tmp_path / "finish").unlink()
                assert is_settled(stream)
    assert stream.consumer_info("C").num_ack_pending + stream.consumer_info("C").num_pending == 1


def test_processes_that_never_get_ready_end_the_supervisor(nats_server, tmp_path):
    """After five of them in a row the supervisor ends with their status."""
    (tmp_path / "broken.py").write_text("raise SystemExit(9)")
    command = ["-m", "jetstream_sync.workers", "broken:worker", "--processes", "5"]
    with Program(command, nats_server.url, tmp_path) as program:
        assert program.ended() == 9
        assert "5 processes in a row" in program.output


def test_a_process_is_replaced_at_its_limits(js, stream, nats_server, tmp_path):
    """After its number of messages, or a MemoryError, a ready successor takes over."""
    body = "if data == '30' and not os.path.exists('once'): open('once', 'w'); raise MemoryError"
    options = ["--max-messages", "10"]
    with WorkerProgram(code_of(stream, body), nats_server.url, tmp_path, options) as program:
        for count in (10, 20, 30):
            publish_numbers(js, stream, 10, count - 10)
            program.wait_runs(count)
            wait_until(lambda: program.output.count("was replaced") * 10 == len(program.runs), 20)
        publish_numbers(js, stream, 1, 30)
        wait_until(lambda: program.output.count("was replaced") == 4, 20)
        assert "MemoryError in a handler" in program.output
        runs = program.wait_runs(32)
        assert len(pids(runs)) >= 4  # the fifth one may have been too late for a message
        wait_until(lambda: is_settled(stream))
    assert Counter(line.split()[2] for line in runs) == Counter([*map(str, range(31)), "30"])


def test_a_changed_source_file_reloads(js, stream, nats_server, tmp_path):
    """With --reload the new code runs soon after a file was written, also after a wrong one."""
    with WorkerProgram(code_of(stream), nats_server.url, tmp_path, ["--reload"]) as program:

        def is_noticed() -> bool:
            program.write("this is wrong")  # again: files are reported with a heartbeat
            return "cannot replace the old process" in program.output

        wait_until(is_noticed, 20)
        program.write(code_of(stream, "pass  # longer", version="new"))
        program.wait_for("was replaced", 20)
        publish_numbers(js, stream, 1)
        (line,) = program.wait_runs(1)
        assert line.startswith("new")


UNSHARE = ["unshare", "--user", "--map-root-user", "--pid", "--fork"]
AS_FIRST_PROCESS = f"""
import os, sys
os.execvp("unshare", [*{UNSHARE}, sys.executable, *sys.argv[1:]])
"""


def children(pid: int) -> list[int]:
    return [int(part) for part in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def is_zombie(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return False


@pytest.mark.skipif(
    shutil.which("unshare") is None or subprocess.run([*UNSHARE, "true"], check=False).returncode,
    reason="needs permission to create a PID namespace",
)
@pytest.mark.parametrize("options", [[], ["--processes", "1"]], ids=["worker", "supervisor"])
def test_the_first_process_of_a_container_stops(js, stream, nats_server, tmp_path, options):
    """As process 1 the command acts on SIGTERM, and a supervisor reaps the orphans of handlers."""
    body = "subprocess.run(['sh', '-c', 'sleep 0.1 &'])"
    (tmp_path / "app.py").write_text(
        f"import subprocess, time\nfrom jetstream_sync.workers import Worker\nrecord = print\nimport os\n"
        f"{code_of(stream, body)}"
    )
    publish_numbers(js, stream, 1)
    command = ["-c", AS_FIRST_PROCESS, "-m", "jetstream_sync.workers", "app:worker", *options]
    with Program(command, nats_server.url, tmp_path) as program:
        program.wait_for("old ")
        wait_until(lambda: is_settled(stream))
        (first,) = children(program.process.pid)
        if options:
            wait_until(lambda: len(children(first)) == 1)
            assert not any(is_zombie(pid) for pid in children(first))
        os.kill(first, signal.SIGTERM)
        assert program.ended() == 0
        assert "has stopped with status 0" in program.output


SILENT = """
import re, sys
from jetstream_sync.workers.operations.heartbeat import supervisor_link

link = supervisor_link()
link.ready()
if not link.report:
    open("started", "a").write("x")
if len(open("started").read()) == 1:
    re.match("(a+)+$", 60 * "a" + "b")  # keeps the interpreter for itself
link.report = lambda: {"metrics": 1}
import threading
stop = threading.Event()
link.on_command(lambda command: stop.set())
stop.wait()
link.beat()
"""


@pytest.mark.full
@pytest.mark.timeout(110)  # a process must also start within the time of silence
def test_a_silent_process_is_killed(tmp_path, monkeypatch):
    """A process without heartbeats gets SIGKILL and is replaced; reports come from the new one."""
    monkeypatch.setattr(supervisor_module, "_SILENCE_S", 3.0 * SCALE)
    monkeypatch.setattr(supervisor_module, "_STACKS_S", 0.2)
    monkeypatch.chdir(tmp_path)
    reports, ended = [], []
    observer = SimpleNamespace(
        report=lambda number, report: reports.append((number, report)),
        end=ended.append,
        stop=list,
        tell_systemd=list,
    )
    command = [sys.executable, "-c", SILENT]
    supervisor = Supervisor(command, 1, {}, RecycleRules(), observer, reload=False)
    statuses: list[int] = []
    thread = threading.Thread(target=lambda: statuses.append(supervisor.run()))
    thread.start()
    wait_until(lambda: reports, 25)
    assert ended == [1]
    assert reports[0] == (2, {"metrics": 1})
    supervisor.stop()
    thread.join(20 * SCALE)
    assert statuses == [0]
    assert ended == [1, 2]


ODD = """
import time
from jetstream_sync.workers.operations.heartbeat import supervisor_link

link = supervisor_link()
link.report = lambda: {"handlers": [], "gauges": [["na\\udcffme", 2**70, float("inf")]]}
link.beat()
time.sleep(60)
"""


def test_a_report_may_have_any_text_and_number(tmp_path, monkeypatch):
    """The names of tasks are those of subjects, which another client chooses; it ends no process."""
    monkeypatch.chdir(tmp_path)
    reports, ended = [], []
    observer = SimpleNamespace(
        report=lambda number, report: reports.append((number, report)),
        end=ended.append,
        stop=list,
        tell_systemd=list,
    )
    command = [sys.executable, "-c", ODD]
    supervisor = Supervisor(command, 1, {}, RecycleRules(), observer, reload=False)
    thread = threading.Thread(target=supervisor.run)
    thread.start()
    wait_until(lambda: len(reports) > 1 or ended, 25)
    supervisor.stop()
    thread.join(20 * SCALE)
    assert (
        reports[:2] == [(1, {"handlers": [], "gauges": [["na\udcffme", 2**70, float("inf")]]})] * 2
    )


def test_limits_name_what_is_exceeded():
    """A limit holds for the age, or for the last heartbeat, of a process."""
    limits = RecycleRules(max_messages=5, max_age=60, max_rss=2**20)
    assert not limits.exceeded(59, Heartbeat(handled=4, rss=2**20 - 1))
    assert limits.exceeded(60, Heartbeat()) == "it is 60 seconds old"
    assert limits.exceeded(1, Heartbeat(handled=5)) == "it has handled 5 messages"
    assert limits.exceeded(1, Heartbeat(rss=3 * 2**20)) == "it uses 3 MiB"
    assert not RecycleRules().exceeded(1e9, Heartbeat(handled=10**9, rss=10**12))
    assert limits.exceeded(1, Heartbeat(handled=5, recycle="it asks")) == "it asks"
    if sys.platform == "linux":
        assert rss_of(os.getpid()) > 2**20
    assert rss_of(2**22 + 1) == 0


def test_systemd_is_told_about_the_supervisor(stream, nats_server, tmp_path, systemd):
    """The supervisor reports once that all processes are ready, and once that it stops."""
    code = code_of(stream, "pass")
    with WorkerProgram(code, nats_server.url, tmp_path, ["--processes", "2"]) as program:
        assert systemd.recv(100) == b"READY=1"
        program.signal(signal.SIGTERM)
        assert systemd.recv(100) == b"STOPPING=1"
        assert program.ended() == 0
    systemd.setblocking(False)
    with pytest.raises(BlockingIOError):
        systemd.recv(100)


def test_the_watchdog_of_systemd_while_the_only_process_starts_again(
    stream, nats_server, tmp_path, systemd, monkeypatch
):
    """The supervisor works, although no process reports: its end would only delay the start."""
    monkeypatch.setenv("WATCHDOG_USEC", "1000000")
    code = code_of(stream, "pass").replace(
        "worker =", "record(os.getpid())\nos.path.exists('slow') and wait_for_file('go')\nworker ="
    )
    with WorkerProgram(code, nats_server.url, tmp_path, ["--processes", "1"]) as program:
        wait_until(lambda: systemd.recv(100) == b"READY=1")
        (tmp_path / "slow").touch()
        os.kill(int(program.runs[0]), signal.SIGKILL)
        program.wait_runs(2)
        systemd.setblocking(False)
        with pytest.raises(BlockingIOError):
            while True:
                systemd.recv(100)
        systemd.settimeout(20 * SCALE)
        assert [systemd.recv(100) for _ in range(4)] == [b"WATCHDOG=1"] * 4
        (tmp_path / "go").touch()


def test_a_hangup_while_a_supervisor_starts_does_not_end_it(tmp_path):
    """Until the supervisor handles SIGHUP, it is ignored: the processes that start have the current code."""
    code = """
import contextlib, os, signal, sys
from jetstream_sync.workers import command

def monitoring(*_args):
    os.kill(os.getpid(), signal.SIGHUP)
    return contextlib.nullcontext(False)

command.monitoring = monitoring
sys.exit(command.main(["app:worker", "--processes", "2"], prog="test"))
"""
    found = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, check=False, timeout=60)
    assert found.returncode == 2
