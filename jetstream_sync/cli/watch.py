"""The ``--watch`` option: refresh the output until Ctrl-C."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta

from .interruptible import pause
from .settings import Settings

__all__ = ["rounds"]


def rounds(settings: Settings, every: timedelta | None) -> Iterator[None]:
    """
    Yield once for each refresh, after clearing the screen on a terminal.

    Args:
        settings: of the command.
        every: the interval between refreshes; ``None``: yield once only.

    """
    out = settings.env.stdout
    while True:
        if every is not None and not settings.json and settings.env.console(out) is not None:
            out.write("\x1b[H\x1b[2J")
        yield
        out.flush()
        if every is None:
            return
        pause(every.total_seconds())
