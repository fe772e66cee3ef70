"""Waits on the main thread that Ctrl-C always interrupts, and the ``--watch`` option."""

from __future__ import annotations

import select
import threading
from collections.abc import Callable, Iterator
from datetime import timedelta
from functools import partial
from typing import Any, BinaryIO, Final, TypeVar

from ..errors import TimeoutError
from ..net.clock import Deadline
from .output import emit, emit_line
from .sanitize import unescaped
from .settings import Settings

T = TypeVar("T")

#: The longest single wait, in seconds.
_MAX_SLICE_S: Final = 0.5
#: The maximum number of bytes of one read.
_READ_SIZE: Final = 128 * 1024


def wait_interruptibly(take: Callable[[float], T], deadline: Deadline) -> T:
    """
    Return the result of ``take``, called with short timeouts until the deadline.

    Python records a Ctrl-C and raises KeyboardInterrupt a moment later. When the signal arrives just
    before a wait for a lock, the wait still begins, and an unlimited wait would never be interrupted.

    Args:
        take: called with the seconds to wait; raises `TimeoutError` when they have passed.
        deadline: when to stop waiting.

    Raises:
        TimeoutError: the deadline has passed.

    """
    while True:
        left = deadline.left()
        try:
            return take(_MAX_SLICE_S if left is None else min(left, _MAX_SLICE_S))
        except TimeoutError:
            if deadline.expired():
                raise


def pause(seconds: float) -> None:
    """Sleep for a time in short slices; see `wait_interruptibly` for the reason."""
    never_set, deadline = threading.Event(), Deadline(seconds)
    while not deadline.expired():
        never_set.wait(min(deadline.left() or 0.0, _MAX_SLICE_S))


def write_reports(
    settings: Settings,
    every: timedelta | None,
    take: Callable[[], list[T]],
    row: Callable[[T], Any],
    human: Callable[[list[T]], object],
) -> None:
    """
    Write a report once, or repeatedly until Ctrl-C; a terminal is cleared before each repeated one.

    Args:
        settings: of the command.
        every: the interval between reports; ``None``: write one only.
        take: returns the objects to report.
        row: returns the JSON value of an object.
        human: writes the objects as text.

    """
    out = settings.env.stdout
    while True:
        if every is not None and not settings.json and settings.env.console(out) is not None:
            unescaped(out).write("\x1b[H\x1b[2J")
        found = take()
        if settings.json and every is not None:
            emit_line(settings, [row(each) for each in found])
        else:
            emit(settings, [row(each) for each in found], partial(human, found))
        out.flush()
        if every is None:
            return
        pause(every.total_seconds())


def read_interruptibly(file: BinaryIO, *, buffered: bool = False) -> Iterator[bytes]:
    """
    Yield the data of an input as it arrives, until its end; see `wait_interruptibly` for the reason.

    Args:
        file: standard input, or a stream without a file descriptor, which is read without waiting.
        buffered: whether part of it was read before, so that its buffer may have data.

    """
    try:
        descriptor = None if buffered else file.fileno()
    except OSError:
        descriptor = None
    while True:
        while descriptor is not None and not select.select([descriptor], [], [], _MAX_SLICE_S)[0]:
            pass
        # At most one read of the descriptor: the buffer stays empty.
        data: bytes = file.read1(_READ_SIZE)  # type: ignore[attr-defined]
        if not data:
            return
        yield data
