"""Threads and sockets: unit tests use none, the others leave none behind; how a test waits."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn, TypeVar

import pytest

__all__ = ["SCALE", "STALL", "between", "wait_until", "within"]

T = TypeVar("T")

#: Every limit is this much longer on a slow machine.
SCALE = float(os.environ.get("JETSTREAM_SYNC_TEST_SCALE", "1"))

#: Seconds for which a slow machine may stand still; what would not come at once takes longer.
STALL = 0.5 * (SCALE - 1)

_HERE = Path(__file__).parent


def wait_until(condition: Callable[[], T], limit: float = 5.0) -> T:
    """
    Wait until a condition holds, and return its value.

    Args:
        condition: called again and again; anything true ends the wait.
        limit: seconds after which the test fails; scaled by ``JETSTREAM_SYNC_TEST_SCALE``.

    """
    give_up = time.monotonic() + limit * SCALE
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > give_up:
            pytest.fail(f"still not so after {limit * SCALE:g} s: {condition}")
        time.sleep(0.001)


@contextmanager
def between(least: float, most: float) -> Iterator[None]:
    """What is in this block takes so many seconds, and on a slow machine `STALL` more at most."""
    began = time.monotonic()
    yield
    took = time.monotonic() - began
    assert least <= took < most + STALL, f"it took {took:.3f} s"


@contextmanager
def within(seconds: float) -> Iterator[None]:
    """What is in this block takes less than so many seconds, which are more on a slow machine."""
    with between(0, seconds * SCALE):
        yield


def _folder(request: pytest.FixtureRequest) -> str:
    path = Path(request.path)
    return path.relative_to(_HERE).parts[0] if path.is_relative_to(_HERE) else ""


@pytest.fixture(autouse=True)
def no_sockets_in_unit_tests(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Unit tests are about code without I/O; a socket in one is a mistake."""

    def refuse(self: socket.socket, *_: object) -> NoReturn:
        self.close()
        pytest.fail("a test in tests/unit tried to connect a socket")

    if _folder(request) == "unit":
        monkeypatch.setattr(socket.socket, "connect", refuse)


@pytest.fixture(autouse=True)
def no_thread_left_behind(request: pytest.FixtureRequest) -> Iterator[None]:
    """A server or thread test ends with the threads of this package that it began with."""
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
