"""``jsm worker``: run and check a worker that a module defines."""

from __future__ import annotations

import importlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from fixtures.threads import SCALE

from jetstream_sync import Stream

CODE = """
from jetstream_sync.workers import Worker

worker = Worker(name="shop", dead_letters="DEAD")

@worker.handler(stream={stream!r}, consumer="C", decode="text")
def handle(data):
    print("handled", data, flush=True)

not_a_worker = 1
"""


@pytest.fixture
def app(
    stream: Stream, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> Iterator[str]:
    """A module with a worker, importable from the current directory; its name."""
    name = f"app_{abs(hash(request.node.nodeid))}"
    (tmp_path / f"{name}.py").write_text(CODE.format(stream=stream.name))
    monkeypatch.chdir(tmp_path)
    yield name
    sys.modules.pop(name, None)


def test_a_worker_runs_until_a_signal(jsm, js, stream, app):
    """Messages are handled; SIGTERM ends it with status 0, after the acknowledgement."""
    js.publish(f"{stream.name}.a", b"tea")
    process = jsm.spawn("worker", "run", f"{app}:worker")
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == b"handled tea\n"
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=20 * SCALE)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 0, err
    assert b"is ready" in err
    assert b"is stopping: signal 15" in err
    assert stream.consumer_info("C").ack_floor.stream_seq == 1


def test_a_handler_may_print_to_a_closed_stream(jsm, js, stream, app):
    """What it prints is dropped, and fails no message."""
    js.publish(f"{stream.name}.a", b"tea")
    command = [
        sys.executable,
        "-m",
        "jetstream_sync.cli",
        "worker",
        "run",
        f"{app}:worker",
        "--burst",
    ]
    done = subprocess.run(
        ["sh", "-c", '"$@" >&-', "sh", *command],
        env={**os.environ, "NATS_URL": jsm.url, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        timeout=60 * SCALE,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert stream.consumer_info("C").ack_floor.stream_seq == 1


def test_a_worker_collects_garbage_as_a_python_program_does(jsm, tmp_path, monkeypatch):
    """The start of jsm is tuned for short commands; the functions of a worker may make many cycles."""
    program = "import gc; print(gc.get_threshold(), flush=True)"
    (tmp_path / "thresholds.py").write_text(program)
    monkeypatch.chdir(tmp_path)
    usual = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    process = jsm.spawn("worker", "run", "thresholds:worker")  # it has no worker
    out, _ = process.communicate(timeout=20 * SCALE)
    assert (process.returncode, out) == (2, usual.stdout)


def test_a_worker_that_cannot_start_says_why(jsm, js, app):
    """Without its stream the command ends with status 3."""
    js.delete_stream(js.stream_names()[0])
    process = jsm.spawn("worker", "run", f"{app}:worker", JETSTREAM_WORKER_DRAIN_TIMEOUT="1")
    try:
        _, err = process.communicate(timeout=20 * SCALE)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 3
    assert b"stream not found" in err


def test_check_reads_nothing(jsm, js, stream, app):
    """`check` lists handlers and warnings, and its status tells whether the worker would run."""
    result = jsm("worker", "check", f"{app}:worker", "--verbose").ok()
    assert f"handle: consumer C of stream {stream.name}\n" in result.out
    assert "  timeout=600.0\n" in result.out
    assert (
        "  retry=Backoff(first=1.0, factor=2.0, maximum=300.0, jitter=0.5, attempts=21, "
        in result.out
    )
    assert "stream 'DEAD' does not exist: it is created at start" in result.err
    assert stream.consumer_names() == []
    stream.create_consumer(durable_name="C", max_ack_pending=7)
    result = jsm("worker", "check", f"{app}:worker", "--processes", "4").ok()
    assert "max_ack_pending=7 is below" in result.err
    stream.delete_consumer("C")
    stream.create_consumer(durable_name="C", max_deliver=3)
    result = jsm("worker", "check", f"{app}:worker", "-j")
    assert result.status == 2
    assert result.json["handlers"] == [{"name": "handle", "stream": stream.name, "consumer": "C"}]
    assert "max_deliver=3" in result.json["errors"][0]
    js.delete_stream(stream.name)
    assert jsm("worker", "check", f"{app}:worker").status == 3
    unreachable = jsm("worker", "check", f"{app}:worker", "-s", "nats://127.0.0.1:1")
    assert unreachable.status == 5
    assert "127.0.0.1:1" in unreachable.out


@pytest.mark.parametrize("command", ["run", "check", "setup", "schedules"])
@pytest.mark.parametrize("login", ["--creds", "--user", "--context", "--js-domain"])
def test_a_login_that_a_worker_would_not_use_is_refused(jsm, app, command, login):
    """A worker connects with the options of its module, so that a login on the command line has no effect."""
    refused = jsm("worker", command, f"{app}:worker", login, "orders")
    assert (refused.status, refused.out) == (2, "")
    assert f"{login} has no effect on a worker" in refused.err


@pytest.mark.server(">=2.14")
def test_schedules_are_listed_and_unused_ones_deleted(jsm, js, stream, app):
    """`--prune` needs a confirmation, and deletes what the worker does not define."""
    name = stream.name
    config = replace(
        stream.cached_info.config,
        subjects=[f"{name}.>", f"schedules.{name}.>"],
        allow_msg_schedules=True,
    )
    jobs = js.update_stream(config)
    js.schedule(f"schedules.{name}.shop.old", target=f"{name}.old", every=3600)
    with Path(f"{app}.py").open("a") as file:
        file.write(f'worker.schedule("daily", subject="{name}.daily", cron="0 5 * * *")(bytes)\n')
    command = ("worker", "schedules", f"{app}:worker")
    lines = jsm(*command).ok().out.splitlines()
    assert [line.split()[:3] for line in lines[2:]] == [
        ["daily", name, "missing"],
        ["old", name, "unused"],
    ]
    assert jsm(*command, "--prune").status == 2
    assert jobs.info().state.messages == 1
    pruned = jsm(*command, "--prune", "--force", "-j").ok().json
    assert pruned["deleted"] == ["old"]
    assert [item["name"] for item in pruned["schedules"]] == ["daily"]
    assert jobs.info().state.messages == 0


def test_setup_shows_and_makes_the_differences(jsm, js, stream, app):
    """With --check nothing is changed, and the status is 1; later runs have nothing to do."""
    name = f"{stream.name}-DEAD"
    path = Path(f"{app}.py")
    path.write_text(path.read_text().replace('"DEAD"', f"{name!r}"))
    command = ("worker", "setup", f"{app}:worker")
    lines = f"create stream {name!r}\ncreate consumer 'C' of stream {stream.name!r}\n"
    checked = jsm(*command, "--check")
    assert (checked.status, checked.out) == (1, lines)
    assert name not in js.stream_names()
    assert jsm(*command).ok().out == lines
    assert jsm(*command, "--check").ok().out == "Nothing to do\n"
    path.write_text(path.read_text().replace('"C",', '"C", filter_subject="x.>",'))
    sys.modules.pop(app)
    step = jsm(*command, "--check", "-j").json["steps"][0]
    assert step["differences"] == ["filter_subject: - -> x.>"]
    js.delete_stream(name)


def test_a_worker_may_be_an_attribute_of_an_object(jsm, app):
    """As `js.worker` of the Flask extension."""
    with Path(f"{app}.py").open("a") as file:
        file.write("\nclass js:\n    worker = worker\n")
    assert "handle: consumer C" in jsm("worker", "check", f"{app}:js.worker").ok().out
    result = jsm("worker", "check", f"{app}:js.nothing")
    assert result.status == 2
    assert "is not a Worker" in result.err


def test_a_worker_must_exist(jsm, app):
    """What is not MODULE:ATTRIBUTE, or not a Worker, is refused with a remedy."""
    for target, text in {
        "app": "must be MODULE:ATTRIBUTE",
        "no_such_module:worker": "there is no module 'no_such_module'",
        f"{app}:not_a_worker": "is not a Worker; the module has worker",
        f"{app}:nothing": "is not a Worker",
    }.items():
        result = jsm("worker", "check", target)
        assert result.status == 2, target
        assert text in result.err


@pytest.mark.usefixtures("app")
@pytest.mark.parametrize("command", ["check", "run"])
def test_an_error_of_the_module_is_shown_as_such(jsm, command):
    """It is no bug of jsm; the text says where it is."""
    for code, text in {
        "import no_such_dependency": "ModuleNotFoundError: No module named 'no_such_dependency'",
        "1 / 0": "ZeroDivisionError: division by zero",
        "worker = (": "SyntaxError: ",
    }.items():
        Path("broken.py").write_text(f"\n{code}\n")
        result = jsm("worker", command, "broken:worker")
        assert result.status == 1
        assert f"worker 'broken:worker': importing broken raised {text}" in result.err
        assert "broken.py, line 2" in result.err


def test_calls_are_verified(jsm, js, app):
    """`worker verify` prints what disagrees, and exits with status 1 then."""
    with Path(f"{app}.py").open("a") as file:
        file.write('worker.task(name="work", results="RESULTS")(print)\n')
    assert jsm("worker", "verify", f"{app}:worker").ok().out == ""
    module = importlib.import_module(app)
    call = module.worker.queues.tasks["work"].delay()
    assert jsm("worker", "verify", f"{app}:worker").ok().out == ""
    js.get_stream("TASKS").purge()
    result = jsm("worker", "verify", f"{app}:worker")
    assert (result.status, result.out.strip()) == (
        1,
        f"call {call.id} of task work is READY, and no message of it is stored",
    )
    assert jsm("worker", "verify", f"{app}:worker", "-j").json == {
        "disagreements": [result.out.strip()]
    }
    for stream in ("TASKS", "KV_RESULTS"):
        js.delete_stream(stream)


@pytest.mark.parametrize("layout", ["text", "json"])
def test_the_text_of_an_error_forges_no_log_line(nats_server, js, tmp_path, layout):
    """Escape sequences and line breaks in the text of a handler's error are escaped or indented in the log."""
    js.create_stream(name="FORGED", subjects=["forged"])
    js.get_stream("FORGED").create_consumer(durable_name="C", ack_policy="explicit")
    js.publish("forged", b"\x1b[31m")
    (tmp_path / "forging.py").write_text(
        "from jetstream_sync.workers import Worker\n"
        "worker = Worker(name='w', report=None, ensure='none')\n"
        "@worker.handler(stream='FORGED', consumer='C', reject_on=(ValueError,))\n"
        "def fail():\n"
        "    raise ValueError('\\x1b]0;title\\x07\\x9b31m\\u202e\\n2026-01-01 ERROR forged line')\n"
    )
    command = [sys.executable, "-m", "jetstream_sync.cli", "worker", "run", "forging:worker"]
    variables = {**os.environ, "PYTHONPATH": str(tmp_path), "NATS_URL": nats_server.url}
    done = subprocess.run(
        [*command, "--burst", "--log-format", layout],
        cwd=tmp_path,
        env=variables,
        check=False,
        capture_output=True,
    )
    logged = done.stderr.decode()
    assert "forged line" in logged
    assert not [char for char in "\x1b\x07\x9b\u202e" if char in logged]
    lines = logged.splitlines()
    assert not [line for line in lines if line.startswith("2026-01-01")]
    if layout == "json":
        assert any("\x1b]0;title" in json.loads(line).get("exception", "") for line in lines)
