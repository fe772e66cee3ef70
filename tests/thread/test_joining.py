"""Waiting for a thread with a time limit, interrupted by Ctrl-C."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
from fix_threads import between, within

from jetstream_sync import connect
from jetstream_sync.cli import bench
from jetstream_sync.cli.bench import BenchKind, Meter, Workload
from jetstream_sync.client.threads import join, spawn
from jetstream_sync.server import NatsServer


@contextmanager
def ctrl_c_after(seconds: float) -> Iterator[None]:
    """Interrupt the block once, as Ctrl-C does; the block must be waiting by then."""
    old = signal.signal(signal.SIGALRM, signal.default_int_handler)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        with pytest.raises(KeyboardInterrupt):
            yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, old)


def test_an_interrupted_wait_leaves_a_running_thread_running() -> None:
    """After an interrupted wait, the next one still waits for the end of the thread."""
    release = threading.Event()
    thread = spawn("test", lambda: release.wait(30) and None)
    with ctrl_c_after(0.05):
        join(thread, 30)
    assert not join(thread, 0)
    with between(0.05, 1.0):
        assert not join(thread, 0.05)
    release.set()
    assert join(thread, 30)
    assert not thread.is_alive()


def test_a_thread_that_crashed_has_ended() -> None:
    """A crashed thread has ended, like any other."""

    def crash() -> None:
        raise ZeroDivisionError

    crashed: list[Exception] = []
    thread = spawn("test", crash, crashed.append)
    assert join(thread, 30)
    assert len(crashed) == 1


def test_a_close_that_was_interrupted_is_finished_by_the_next(nats_server: NatsServer) -> None:
    """After a Ctrl-C in close(), the next close() waits until trace_cb has had the last line."""
    release, waits, lines = threading.Event(), threading.Event(), []

    def trace(line: str) -> None:
        if line.startswith("> PUB"):
            waits.set()
            release.wait(30)
        lines.append(line)

    nc = connect(nats_server.url, trace_cb=trace)
    nc.publish("a", b"x")
    nc.flush()
    assert waits.wait(30)
    with ctrl_c_after(0.2):
        nc.close()
    threading.Timer(0.1, release.set).start()
    nc.close()
    assert "> PUB a 1 | x" in lines


def _slow_to_stop(hold: threading.Event) -> Callable[..., Callable[[], None]]:
    def start(_nc: Any, _js: Any, _cell: Workload, meter: Meter) -> Callable[[], None]:
        def work() -> None:
            while not meter.stopped:
                meter.done += 1
                hold.wait(0.01)
            hold.wait(0.2)

        return work

    return start


def test_a_bench_that_is_interrupted_knows_its_time(
    nats_server: NatsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a Ctrl-C the clients are joined, so that the duration of their work is known."""
    monkeypatch.setattr(bench, "_PROGRESS_INTERVAL_S", 30.0)
    kind = BenchKind("test", "Test", "none", _slow_to_stop(threading.Event()))
    workload = Workload(count=10, size=1, subject="test", name="")
    settings: Any = SimpleNamespace(
        connection=lambda: connect(nats_server.url), jetstream_on=lambda nc: nc.jetstream()
    )

    seen: list[bench.Outcome] = []

    def interrupted() -> None:
        try:
            bench.run_clients(settings, kind, [workload], lambda _: None)
        except bench.Interrupted as error:
            seen.append(error.outcome)
            raise

    with within(10), ctrl_c_after(1.0):
        interrupted()
    (outcome,) = seen
    assert outcome.messages > 0
    assert 0.5 < outcome.seconds < 10
