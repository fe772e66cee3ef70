"""Waiting for a thread with a time limit, interrupted by Ctrl-C."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from fixtures.threads import between

from jetstream_sync import connect
from jetstream_sync.client.threads import join, spawn


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


def test_an_interrupted_wait_leaves_a_running_thread_running():
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


def test_a_thread_that_crashed_has_ended():
    """A crashed thread has ended, like any other."""

    def crash() -> None:
        raise ZeroDivisionError

    crashed: list[Exception] = []
    thread = spawn("test", crash, crashed.append)
    assert join(thread, 30)
    assert len(crashed) == 1


def test_a_close_that_was_interrupted_is_finished_by_the_next(nats_server):
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
