"""The workers that the modules of a program have created, for processes that look for a handler."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Final, Protocol

from .. import InvalidOptionError
from .handler import Handler, Middleware


class HandlerOwner(Protocol):
    """What is used of a `Worker`."""

    handlers: list[Handler]
    middleware: Sequence[Middleware]
    trace: str | None


_created: Final[list[weakref.ref[HandlerOwner]]] = []


def register(worker: HandlerOwner) -> None:
    """Remember a worker as long as it exists."""
    _created.append(weakref.ref(worker, _created.remove))


def created_workers() -> list[HandlerOwner]:
    """Return the workers that exist, in the order of their creation."""
    return [worker for each in tuple(_created) if (worker := each()) is not None]


#: Whether this process belongs to a handler; a list, because it changes.
_in_handler_process: Final = [False]


def enter_handler_process() -> None:
    """Record that this process belongs to a handler: workers must not run in it."""
    _in_handler_process[0] = True


def refuse_to_run() -> None:
    """
    Check that workers may run in this process.

    Raises:
        InvalidOptionError: it belongs to a handler. Its worker would start processes without end.

    """
    if _in_handler_process[0]:
        raise InvalidOptionError(
            "pool",
            "processes",
            "a process of a handler must not run the worker when it imports the module: call run() "
            "under if __name__ == '__main__'",
        )
