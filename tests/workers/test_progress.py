"""The progress of runs, on a real server."""

from __future__ import annotations

import threading
import time
import uuid
from contextlib import suppress

import pytest
from fixtures.threads import wait_until
from fixtures.worker import WorkerProgram, running

from jetstream_sync import InvalidOptionError, StreamNotFoundError, shared_connection
from jetstream_sync.workers import CallProgress, Context, Worker
from jetstream_sync.workers.running import request_reports


@pytest.fixture
def worker(nats_server, js):
    """A worker whose connection for sending, stream and bucket end with the test."""
    found = Worker(nats_server.url, name=uuid.uuid4().hex, program="tests")
    yield found
    shared_connection(nats_server.url, name=found.name).close()
    for stream in ("TASKS", "KV_RESULTS"):
        with suppress(StreamNotFoundError):
            js.delete_stream(stream)


def test_progress_is_stored_once_a_second_and_shown(worker, js, nc, jsm):
    """The first report is stored at once, the next ones each second; the report of the process has the last one."""
    reported, finish = threading.Event(), threading.Event()

    @worker.task(results="RESULTS")
    def copy(ctx: Context, count: int) -> int:
        for number in range(count):
            ctx.progress(number, count, "pages")
        reported.set()
        finish.wait(20)
        ctx.progress(count, count, "pages")
        return count

    with running(worker):
        call = copy.delay(1000)
        assert call.progress is None
        assert reported.wait(20)
        assert call.progress == CallProgress(0, 1000, "pages")
        keys = js.get_stream("KV_RESULTS").info(subjects_filter="$KV.RESULTS.>")
        assert keys.state.last_seq < 10  # of 1000 reports
        wait_until(lambda: len(request_reports(nc, worker.name)) == 1)  # its service has started
        (report,) = request_reports(nc, worker.name)
        assert report["running"][0]["progress"] == "999 of 1000 pages"
        assert "999 of 1000 pages" in jsm("worker", "running", worker.name).ok().out
        shown = jsm("top", "--once", "--interval", "10ms", "-j", "--view", "workers").ok().json
        assert "999 of 1000 pages" in [
            item["progress"] for row in shown["workers"] for item in row["running"]
        ]
        time.sleep(1.1)
        finish.set()
        # The record of the run is not touched by what is stored beside it.
        assert call.get(timeout=20) == 1000
        assert str(call.progress) == "1000 of 1000 pages"
        assert "1000 of 1000 pages" in jsm("task", "show", call.id).ok().out
        assert [item["id"] for item in jsm("task", "ls", "-j").ok().json] == [call.id]


_CODE = """
worker = Worker(name={name!r}, program="tests")
worker.queue("default", pool="processes", concurrency=1)

@worker.task(name="copy", results="RESULTS")
def copy(ctx: Context) -> str:
    ctx.progress(1.5)
    wait_for_file("finish")
    return "done"
"""


def test_progress_of_a_handler_process(worker, nc, nats_server, tmp_path):
    """A run in a process of its own reports in the same way."""

    @worker.task(name="copy", results="RESULTS")
    def copy() -> str:
        return "here"

    with WorkerProgram(_CODE.format(name=worker.name), nats_server.url, tmp_path):
        call = copy.delay()
        wait_until(lambda: call.progress == CallProgress(1.5), 20)
        (report,) = request_reports(nc, worker.name)
        assert report["running"][0]["progress"] == "1.5"
        (tmp_path / "finish").touch()
        assert call.get(timeout=20) == "done"


def test_progress_without_a_server(worker):
    """Eager calls and test clients keep it; wrong values are refused; without results, there is none to read."""

    @worker.task(results="RESULTS")
    def copy(ctx: Context, done: object, total: object = None, text: object = "") -> None:
        ctx.progress(done, total, text)

    @worker.task
    def plain(ctx: Context) -> None:
        ctx.progress(1, 2)

    with worker.eager():
        assert copy.delay(1, 2, "x").progress == CallProgress(1, 2, "x")
        plain.delay()
        for wrong in (["1"], [None], [float("nan")], [1, "2"], [1, 2, 3]):
            with pytest.raises((InvalidOptionError, ValueError)):
                copy.delay(*wrong)
        with pytest.raises(InvalidOptionError, match="results"):
            _ = plain.delay().progress
