"""The fixtures for tests of users, in a run of pytest of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path

from pages import ROOT, blocks

TESTS = """
import threading

import pytest
from jetstream_sync.workers import Backoff, Worker

worker = Worker("nats://127.0.0.1:1", name="shop", dead_letters="DEAD", drain_timeout=3)
seen = []

@worker.handler(
    stream="ORDERS", consumer="BILLING", decode="text",
    retry=Backoff(first=0.1, maximum=0.1, attempts=2),
)
def bill(order):
    seen.append(order)
    if order == "bad":
        raise ValueError("a bad order")

@pytest.fixture
def orders(jetstream):
    assert jetstream.stream_names() == []
    seen.clear()
    return jetstream.create_stream(name="ORDERS", subjects=["ORDERS.*"], storage="memory")

@pytest.mark.parametrize("again", [False, True])
def test_orders(orders, jetstream, jetstream_server, jetstream_worker, again):
    running = jetstream_worker(worker)
    assert worker.servers == jetstream_server.url
    for order in ("one", "bad"):
        jetstream.publish("ORDERS.new", order.encode())
    running.wait_idle()
    assert sorted(seen) == ["bad", "bad", "one"]
    assert jetstream.get_stream("DEAD").cached_info.state.messages == 1
    if again:
        assert running.stop() == 0
        assert worker.servers == "nats://127.0.0.1:1"

@worker.task(name="double", results="R")
def double(number: int) -> int:
    return 2 * number

def test_eager(jetstream_eager):
    jetstream_eager(worker)
    assert double.delay(4).get() == 8

def test_eager_ends():
    assert worker.eager_calls is None

def test_idle_means_all_handlers(jetstream, jetstream_server):
    # A message that a handler publishes to one that was idle before is waited for, too.
    from jetstream_sync import connect
    from jetstream_sync.pytest_plugin import RunningWorker

    first_asked, go_on = threading.Event(), threading.Event()
    chain = Worker("nats://127.0.0.1:1", name="chain")
    for name in ("FIRST", "SECOND"):
        jetstream.create_stream(name=name, subjects=[name], storage="memory")

    @chain.handler(stream="FIRST", consumer="C")
    def first(_):
        go_on.wait(10)

    @chain.handler(stream="SECOND", consumer="C")
    def second(_):
        first_asked.wait(10)
        jetstream.publish("FIRST")

    def api_cb(call):
        if "INFO.SECOND" in call.subject:
            first_asked.set()

    jetstream.publish("SECOND")
    with connect(jetstream_server.url) as nc:
        running = RunningWorker(chain, jetstream_server.url, nc.jetstream(api_cb=api_cb))
        try:
            with pytest.raises(pytest.fail.Exception, match="handler first"):
                running.wait_idle(1)
        finally:
            go_on.set()
        running.wait_idle()
        assert jetstream.consumer_info("FIRST", "C").ack_floor.stream_seq == 1
        running.stop()

def test_no_stream(jetstream_worker):
    jetstream_worker(worker).wait_idle()

def test_too_slow(orders, jetstream, jetstream_worker):
    jetstream.publish("ORDERS.new", b"one")
    jetstream_worker(worker).wait_idle(0)
"""


def run_pytest(folder: Path, tests: str) -> str:
    """Run tests in a process that loads no plugins by itself, and return its output."""
    (folder / "pytest.ini").write_text("[pytest]\nfilterwarnings = error\n")
    (folder / "test_shop.py").write_text(tests)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-rfE", "--tb=short"],
        cwd=folder,
        env={**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "COLUMNS": "200"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=50,
        check=False,
    )
    return done.stdout


def test_a_worker_handles_messages_of_a_test(tmp_path):
    """
    The worker runs on a real server until all is settled, and the next test has no streams.

    A worker that ends by itself, or does not settle its messages in time, fails the test.
    """
    (tmp_path / "conftest.py").write_text('pytest_plugins = ["jetstream_sync.pytest_plugin"]\n')
    output = run_pytest(tmp_path, TESTS)
    summary = output.rpartition("short test summary info")[2]
    for expected in (
        "FAILED test_shop.py::test_no_stream - Failed: the worker has ended with status 3",
        "ERROR test_shop.py::test_no_stream - Failed: the worker has ended with status 3",
        "FAILED test_shop.py::test_too_slow - Failed: after 0 s, handler bill has ",
    ):
        assert expected in summary, output
    assert "2 failed, 5 passed, 1 error" in summary, output


def test_the_tests_on_the_page_pass(tmp_path):
    """The tests that the page shows run with the fixtures as it says."""
    page = ROOT / "docs" / "howto" / "testing.rst"
    output = run_pytest(
        tmp_path, "".join(block.code for block in blocks(page) if block.language == "python")
    )
    assert " 8 passed" in output, output


def test_the_plugin_is_not_loaded_unless_it_is_named():
    """An installed package adds nothing to the test runs of its users."""
    values = [point.value for point in entry_points(group="pytest11")]
    assert not [item for item in values if item.startswith("jetstream_sync")]
