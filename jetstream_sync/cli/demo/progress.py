"""Progress of the demo on ``stderr``: bars on a terminal, else a line now and then."""

from __future__ import annotations

from contextlib import AbstractContextManager
from types import TracebackType
from typing import TYPE_CHECKING

from ...net.clock import monotonic
from ..env import Environment
from .tally import STAGES

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from rich.console import Console

__all__ = ["BarProgress", "LineProgress", "NoProgress", "Progress", "make_progress"]

_LINE_INTERVAL = 1.0
_BAR_INTERVAL = 0.1


class Progress(AbstractContextManager["Progress"]):
    """Shows how many orders each stage has; used in a ``with`` block, on one thread."""

    def show(self, counts: Sequence[int]) -> None:
        """Take the counts of `STAGES`; may be called often, it draws only now and then."""

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Leave the terminal as it was."""


class NoProgress(Progress):
    """Shows nothing."""


class LineProgress(Progress):
    """
    Writes a line of text once a second.

    Args:
        env: written to its ``stderr``.
        total: the number of orders.
        clock: seconds; a test passes its own.

    """

    def __init__(
        self, env: Environment, total: int, clock: Callable[[], float] = monotonic
    ) -> None:
        self._stderr = env.stderr
        self._total = total
        self._clock = clock
        self._start = clock()
        self._next = self._start + _LINE_INTERVAL

    def show(self, counts: Sequence[int]) -> None:
        """Write a line when the last one is a second old."""
        now = self._clock()
        if now < self._next:
            return
        self._next = now + _LINE_INTERVAL
        stages = ", ".join(
            f"{count:,} {stage}" for stage, count in zip(STAGES, counts, strict=True)
        )
        self._stderr.write(f"{now - self._start:5.1f} s: {stages} of {self._total:,}\n")
        self._stderr.flush()


class BarProgress(Progress):
    """
    Draws a bar for each stage with rich, and removes them at the end.

    Args:
        console: the terminal.
        total: the number of orders.
        clock: seconds; a test passes its own.

    """

    def __init__(
        self, console: Console, total: int, clock: Callable[[], float] = monotonic
    ) -> None:
        from rich.progress import (  # noqa: PLC0415 - an extra, only for terminals
            BarColumn,
            MofNCompleteColumn,
            TextColumn,
            TimeElapsedColumn,
        )
        from rich.progress import Progress as Bars  # noqa: PLC0415

        # No thread of rich's own: it is drawn when there is something new.
        self._bars = Bars(
            TextColumn("{task.description:>9}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            console=console,
            auto_refresh=False,
            transient=True,
        )
        self._tasks = [self._bars.add_task(stage, total=total) for stage in STAGES]
        self._clock = clock
        self._next = 0.0
        self._counts: Sequence[int] = ()

    def __enter__(self) -> Progress:
        """Take the lower lines of the terminal."""
        self._bars.start()
        return self

    def show(self, counts: Sequence[int]) -> None:
        """Draw the bars when the last drawing is old enough."""
        self._counts = counts
        now = self._clock()
        if now >= self._next:
            self._next = now + _BAR_INTERVAL
            self._draw()

    def _draw(self) -> None:
        for task, count in zip(self._tasks, self._counts, strict=False):
            self._bars.update(task, completed=count)
        self._bars.refresh()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Show how far it came, and remove the bars."""
        self._draw()
        self._bars.stop()


def make_progress(env: Environment, total: int, *, quiet: bool) -> Progress:
    """
    Return the display that fits ``stderr``.

    Args:
        env: the streams.
        total: the number of orders.
        quiet: show nothing.

    """
    if quiet:
        return NoProgress()
    console = env.console(env.stderr)
    return LineProgress(env, total) if console is None else BarProgress(console, total)
