"""Byte progress on ``stderr``: a bar on a terminal, else one line a second."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from ..net.clock import monotonic
from .env import Environment
from .output import size

__all__ = ["byte_progress"]

_LINE_INTERVAL_S = 1.0
_BAR_INTERVAL_S = 0.1


@contextmanager
def byte_progress(
    env: Environment,
    title: str,
    total: int,
    *,
    about: bool = False,
    quiet: bool = False,
    clock: Callable[[], float] = monotonic,
) -> Iterator[Callable[[int], None]]:
    """
    Show progress for a ``with`` block.

    Args:
        env: progress is written to its ``stderr``.
        title: describes the operation.
        total: the expected number of bytes.
        about: whether the total is an estimate.
        quiet: show nothing.
        clock: returns monotonic seconds; tests pass their own.

    Yields:
        A function to call with the bytes done so far; it limits how often it draws.

    """
    console = None if quiet else env.console(env.stderr)
    if console is None:
        yield _Lines(env, title, total, about=about, clock=clock) if not quiet else _nothing
        return
    from rich.progress import (  # noqa: PLC0415 - an extra, only for terminals
        BarColumn,
        DownloadColumn,
        Progress,
        TextColumn,
        TransferSpeedColumn,
    )

    bars = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(binary_units=True),
        TransferSpeedColumn(),
        console=console,
        auto_refresh=False,
        transient=True,
    )
    task = bars.add_task(title, total=max(total, 1))
    due = 0.0

    def show(done: int) -> None:
        nonlocal due
        if (now := clock()) < due:
            return
        due = now + _BAR_INTERVAL_S
        bars.update(task, completed=done, total=max(total, done, 1))
        bars.refresh()

    with bars:
        yield show


def _nothing(_done: int) -> None:
    """Show nothing."""


class _Lines:
    """Writes a line of text once a second."""

    def __init__(
        self,
        env: Environment,
        title: str,
        total: int,
        *,
        about: bool,
        clock: Callable[[], float],
    ) -> None:
        self._stderr = env.stderr
        self._title = title
        self._total = f"{'about ' if about else ''}{size(total)}"
        self._clock = clock
        self._start = clock()
        self._due = self._start + _LINE_INTERVAL_S

    def __call__(self, done: int) -> None:
        now = self._clock()
        if now < self._due:
            return
        self._due = now + _LINE_INTERVAL_S
        self._stderr.write(f"{self._title}: {size(done)} of {self._total}\n")
        self._stderr.flush()
