"""Calls whose result a `KeyboardInterrupt` cannot lose."""

from __future__ import annotations

from collections.abc import Callable
from itertools import starmap
from typing import TypeVar

T = TypeVar("T")


def call_and_record(results: list[T], function: Callable[..., T], *args: object) -> None:
    """
    Call a function written in C, and append its result to a list.

    Python handles a signal between two instructions of its bytecode. No bytecode runs between the call
    and the append, so a `KeyboardInterrupt` comes before the call or finds the result in the list. To
    acquire a lock with a timeout::

        acquired: list[bool] = []
        try:
            call_and_record(acquired, lock.acquire, True, timeout)
            ...
        finally:
            if True in acquired:
                lock.release()
    """
    results.extend(starmap(function, (args,)))
