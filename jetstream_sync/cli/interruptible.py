"""Waiting on the main thread, so that Ctrl-C always ends it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final, TypeVar

from ..errors import TimeoutError
from ..net.clock import Deadline

__all__ = ["pause", "wait_interruptibly"]

T = TypeVar("T")

#: Seconds that a wait lasts at most in one piece.
_SLICE: Final = 0.5


def wait_interruptibly(take: Callable[[float], T], deadline: Deadline) -> T:
    """
    Return what ``take`` returns, waiting for it a little at a time.

    Python notes a Ctrl-C and acts on it a moment later. When it comes right between that and the
    wait for a lock, the wait begins all the same, and a wait without an end would never hear of it.

    Args:
        take: takes the seconds to wait, and raises `TimeoutError` when nothing came.
        deadline: when to give up.

    Raises:
        TimeoutError: nothing came before the deadline.

    """
    while True:
        left = deadline.left()
        try:
            return take(_SLICE if left is None else min(left, _SLICE))
        except TimeoutError:
            if deadline.expired():
                raise


def pause(seconds: float) -> None:
    """Wait for so long, a little at a time, for the reason that `wait_interruptibly` has."""
    nothing, deadline = threading.Event(), Deadline(seconds)
    while not deadline.expired():
        nothing.wait(min(deadline.left() or 0.0, _SLICE))
