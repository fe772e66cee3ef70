"""The log records of a worker and of its handlers."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator

import pytest
from fixtures.apps import Program
from fixtures.threads import wait_until
from fixtures.worker import is_settled, publish_numbers, running

from jetstream_sync.codec import loads
from jetstream_sync.workers import (
    Backoff,
    Context,
    JsonLogFormatter,
    LogContextFilter,
    Reject,
    Worker,
    WorkerEvent,
)
from jetstream_sync.workers.logs import WorkerLogger, outcome_log

FAST = Backoff(first=0.1, factor=1.0, jitter=0.0, attempts=2)
TRACE = "0af7651916cd43dd8448eb211c80319c"


@pytest.fixture
def output() -> Iterator[io.StringIO]:
    """What is logged as JSON."""
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(JsonLogFormatter())
    handler.addFilter(LogContextFilter())
    root = logging.getLogger()
    level = root.level
    root.addHandler(handler)
    root.setLevel(logging.INFO)
    yield stream
    root.setLevel(level)
    root.removeHandler(handler)


def lines(output: io.StringIO) -> list[dict[str, object]]:
    return [json.loads(line) for line in output.getvalue().splitlines()]


def test_every_record_in_a_handler_names_the_message(js, stream, nats_server, output):
    """Records of other libraries get handler, position, attempt and trace id; payloads are not logged."""
    worker = Worker(nats_server.url, trace=None)  # other tests may have configured an SDK

    @worker.handler(stream=stream.name, consumer="C", retry=FAST)
    def handle(ctx: Context) -> None:
        logging.getLogger("some.library").warning("slow", extra={"query": "q1"})
        ctx.log.info("begun")
        raise Reject("no") if ctx.attempt == 2 else OSError("busy")

    headers = {"traceparent": f"00-{TRACE}-b7ad6b7169203331-01"}
    seq = js.publish(f"{stream.name}.a", b"secret payload", headers=headers).seq
    with running(worker) as run:
        wait_until(lambda: is_settled(stream))
        assert run.stop() == 0
    found = lines(output)
    context = {"handler": "handle", "stream": stream.name, "consumer": "C", "trace_id": TRACE}
    context["seq"] = seq  # type: ignore[assignment]
    for logger in ("some.library", "jetstream_sync.worker"):
        attempts = [
            line["attempt"]
            for line in found
            if line["logger"] == logger and context.items() <= line.items()
        ]
        assert {1, 2} == set(attempts), logger
    library = next(line for line in found if line["logger"] == "some.library")
    assert (library["level"], library["message"], library["query"]) == ("WARNING", "slow", "q1")
    failed = next(line for line in found if "failed and is retried" in str(line["message"]))
    assert "OSError: busy" in str(failed["exception"])
    # Outside of a handler the attributes are left out.
    ready = next(line for line in found if "is ready" in str(line["message"]))
    assert not {"handler", "seq", "trace_id"} & ready.keys()
    assert "secret payload" not in output.getvalue()


class UntoldError(Exception):
    """An error without a text."""

    def __str__(self) -> str:
        raise RuntimeError


def test_any_record_is_a_line_of_json():
    """What the program adds may be no number, no text, a circle, or an object without a text."""
    circle: list[object] = []
    circle.append(circle)
    added = {
        "a": float("nan"),
        "b": {(1, 2): "tuple"},
        "c": circle,
        "d": UntoldError(),
        "e": "menu\udcff",
        "f": 1.5,
    }
    for name, value in added.items():
        record = logging.makeLogRecord({"msg": "\udcff %s", "args": ("x",), "n": 1, name: value})
        text = JsonLogFormatter().format(record).encode().decode()
        found = loads(text)
        assert (found["message"], found["n"]) == ("\\udcff x", 1)
        assert name in found
    assert json.loads(JsonLogFormatter().format(logging.makeLogRecord({"f": 1.5})))["f"] == 1.5


def test_outcomes_are_logged_on_request(js, stream, worker, output):
    """There is one record for each message if the level of its logger is set, and none otherwise."""
    level = outcome_log.logger.level
    outcome_log.setLevel(logging.WARNING)  # another test may have changed it
    worker.handler(stream=stream.name, consumer="C")(bytes)
    settled: list[WorkerEvent] = []
    worker.on("success")(settled.append)
    with running(worker):
        js.publish(f"{stream.name}.a", b"1")
        wait_until(lambda: settled)
        outcome_log.setLevel(logging.INFO)
        try:
            js.publish(f"{stream.name}.a", b"2")
            wait_until(lambda: "message 2 of" in output.getvalue())
        finally:
            outcome_log.setLevel(level)
    outcomes = [
        line for line in lines(output) if line["logger"] == "jetstream_sync.worker.outcomes"
    ]
    assert [line["message"] for line in outcomes] == [f"bytes: message 2 of {stream.name}/C: ack"]


def test_a_log_handler_that_raises_changes_nothing(js, stream, worker, capsys, monkeypatch):
    """Its first error goes to standard error; messages are handled and settled."""
    monkeypatch.setattr(WorkerLogger, "_reported", False)

    class Broken(logging.Handler):
        def emit(self, _record: logging.LogRecord) -> None:
            raise RuntimeError("the log server is away")

    runs = []

    @worker.handler(stream=stream.name, consumer="C", retry=FAST)
    def handle(ctx: Context) -> None:
        runs.append(ctx.attempt)
        raise OSError("busy")

    broken = Broken()
    logger = logging.getLogger("jetstream_sync.worker")
    logger.addHandler(broken)
    try:
        js.publish(f"{stream.name}.a", b"1")
        with running(worker) as run:
            wait_until(lambda: "DEAD" in js.stream_names() and is_settled(stream))
            assert run.stop() == 0
    finally:
        logger.removeHandler(broken)
    assert runs == [1, 2]
    assert js.get_stream("DEAD").cached_info.state.messages == 1
    assert capsys.readouterr().err.count("a log handler raised") == 1


@pytest.mark.parametrize("processes", [[], ["--processes", "2"]], ids=["worker", "supervisor"])
def test_the_command_logs_as_json(js, stream, nats_server, tmp_path, processes):
    """Each line is a JSON document, with --verbose one for each message."""
    (tmp_path / "app.py").write_text(
        "from jetstream_sync.workers import Worker\n"
        "worker = Worker()\n"
        f"worker.handler(stream={stream.name!r}, consumer='C')(bytes)\n"
    )
    command = ["-m", "jetstream_sync.workers", "app:worker", "--log-format", "json", "--verbose"]
    with Program([*command, *processes], nats_server.url, tmp_path) as program:
        program.wait_for("is ready")
        publish_numbers(js, stream, 3)
        wait_until(lambda: program.output.count(": ack") == 3)
        program.stop()
        records = [json.loads(line) for line in program.output.splitlines()]
    outcomes = [record for record in records if record["logger"].endswith("outcomes")]
    assert [(outcome["handler"], outcome["consumer"]) for outcome in outcomes] == 3 * [
        ("bytes", "C")
    ]
    assert sorted(outcome["seq"] for outcome in outcomes) == [1, 2, 3]
    assert all(record["process"] and record["time"].endswith("Z") for record in records)
