"""Waiting for conditions, and checks that tests leave no threads or sockets behind."""

from __future__ import annotations

import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import NoReturn, TypeVar

import pytest

__all__ = ["SCALE", "STALL", "between", "run_all", "threads_in", "wait_until", "within"]

T = TypeVar("T")

#: Factor for every time limit, above 1 on a slow machine.
SCALE = float(os.environ.get("JETSTREAM_SYNC_TEST_SCALE", "1"))

#: Seconds that a slow machine may stall in addition to the limit of a measurement.
STALL = 0.5 * (SCALE - 1)

_HERE = Path(__file__).parent


def wait_until(condition: Callable[[], T], limit: float = 5.0) -> T:
    """
    Wait until a condition holds, and return its value.

    Args:
        condition: called repeatedly; a true value ends the wait.
        limit: seconds after which the test fails; scaled by ``JETSTREAM_SYNC_TEST_SCALE``.

    """
    began = time.monotonic()
    while True:
        value = condition()
        if value:
            return value
        waited = time.monotonic() - began
        if waited > limit * SCALE:
            pytest.fail(f"still false after {limit * SCALE:g} s: {condition}")
        # Long waits look less often: many tests at a time share the processors.
        time.sleep(min(0.001 + waited / 50, 0.02))


@contextmanager
def between(least: float, most: float) -> Iterator[None]:
    """Assert that the block takes from ``least`` to ``most`` seconds, plus `STALL` on a slow machine."""
    began = time.monotonic()
    yield
    took = time.monotonic() - began
    assert least <= took < most + STALL, f"it took {took:.3f} s"


@contextmanager
def within(seconds: float) -> Iterator[None]:
    """Assert that the block takes less than ``seconds``, scaled on a slow machine."""
    with between(0, seconds * SCALE):
        yield


def run_all(*targets: Callable[[], object]) -> None:
    """Run each target on its own thread, all at once; raise the first error."""
    barrier = threading.Barrier(len(targets))
    raised: list[BaseException] = []

    def run(target: Callable[[], object]) -> None:
        barrier.wait()
        try:
            target()
        except BaseException as error:
            raised.append(error)

    threads = [threading.Thread(target=run, args=(target,), daemon=True) for target in targets]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(40 * SCALE)
        assert not thread.is_alive(), "it hangs"
    if raised:
        raise raised[0]


def threads_in(function: str) -> int:
    """Count the threads that are inside the package's function of that name."""
    count = 0
    for frame in sys._current_frames().values():
        at: FrameType | None = frame
        while at is not None:
            if at.f_code.co_name == function and "jetstream_sync" in at.f_code.co_filename:
                count += 1
                break
            at = at.f_back
    return count


def _folder(request: pytest.FixtureRequest) -> str:
    path = Path(request.path)
    return path.relative_to(_HERE).parts[0] if path.is_relative_to(_HERE) else ""


@pytest.fixture(autouse=True)
def no_sockets_in_unit_tests(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fail a unit test that connects a socket: unit tests are for code without I/O."""

    def refuse(self: socket.socket, *_: object) -> NoReturn:
        self.close()
        pytest.fail("a test in tests/unit tried to connect a socket")

    if _folder(request) == "unit":
        monkeypatch.setattr(socket.socket, "connect", refuse)


@pytest.fixture(autouse=True)
def no_thread_left_behind(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fail a server or thread test that leaves threads of this package running."""
    if _folder(request) not in {"server", "thread"}:
        yield
        return
    before = set(threading.enumerate())
    yield

    def left() -> list[str]:
        new = set(threading.enumerate()) - before
        return [thread.name for thread in new if thread.name.startswith("nats-")]

    give_up = time.monotonic() + 5 * SCALE
    while left() and time.monotonic() < give_up:
        time.sleep(0.001)
    assert not left(), "these threads were left behind"
