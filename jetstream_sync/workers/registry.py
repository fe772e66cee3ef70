"""The workers that the modules of a program have created, for processes that look for a handler."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Final, Protocol

from .handler import Handler, Middleware

__all__ = ["HandlerOwner", "created_workers", "register"]


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
