"""Progress on ``stderr``: a bar that is redrawn on a terminal, else a line every second."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from ..net.clock import monotonic
from .env import Environment, single_line
from .output import count, size

_REDRAW_INTERVAL_S: Final = 0.1
_LINE_INTERVAL_S: Final = 1.0


class Progress:
    """
    The progress of one operation, for use by one thread; see `show_progress`.

    It limits how often it draws, so that `advance` and `show` may be called often.
    """

    def __init__(
        self,
        title: str,
        total: int | None,
        *,
        about: bool,
        number: Callable[[int], str],
        clock: Callable[[], float],
        draw: Callable[[str, int], object],
        interval_s: float,
        first_s: float = 0.0,
    ) -> None:
        self.total = total
        self.done: int = 0
        self._title = title
        self._number = number
        self._of = "" if total is None else f" of {'about ' if about else ''}{number(total)}"
        self._clock = clock
        self._draw = draw
        self._interval_s = interval_s
        self._started = clock()
        self._next = self._started + first_s

    def advance(self, number: int) -> None:
        """Add a number of items to those done."""
        self.show(self.done + number)

    def show(self, done: int) -> None:
        """Set the number of items done, and show it unless the last one was shown too recently."""
        self.done = done
        now = self._clock()
        if now < self._next:
            return
        self._next = now + self._interval_s
        seconds = now - self._started
        rate = f" {self._number(round(done / seconds))}/s" if seconds > 0 and done else ""
        self._draw(f"{self._title}: {self._number(done)}{self._of}{rate}", done)


@contextmanager
def show_progress(
    env: Environment,
    title: str,
    total: int | None,
    *,
    in_bytes: bool = False,
    about: bool = False,
    quiet: bool = False,
    clock: Callable[[], float] = monotonic,
) -> Iterator[Progress]:
    """
    Show the progress and the rate of a ``with`` block.

    A terminal shows a bar that is erased at the end. Other outputs get one line of text a second.
    """
    number = size if in_bytes else count
    stderr = env.stderr
    drawn = stderr.isatty() and not quiet and not getattr(stderr, "as_json", False)
    console = env.console(stderr) if drawn else None
    if console is None:

        def write_line(text: str, _done: int) -> None:
            if not quiet:
                stderr.write(f"{text}\n")
                stderr.flush()

        yield Progress(
            title,
            total,
            about=about,
            number=number,
            clock=clock,
            draw=write_line,
            interval_s=_LINE_INTERVAL_S,
            first_s=_LINE_INTERVAL_S,
        )
        return
    from rich.progress import BarColumn, TextColumn  # noqa: PLC0415 - an extra, only for terminals
    from rich.progress import Progress as Bars  # noqa: PLC0415

    bars = Bars(
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=max(4, min(40, console.width - 50))),
        console=console,
        auto_refresh=False,
        transient=True,
        redirect_stdout=False,
        redirect_stderr=False,
    )
    task = bars.add_task(single_line(title), total=total)

    def draw(text: str, done: int) -> None:
        longest = None if total is None else max(total, done)
        bars.update(
            task, description=single_line(text), completed=done, total=longest, refresh=True
        )

    with bars:
        yield Progress(
            title,
            total,
            about=about,
            number=number,
            clock=clock,
            draw=draw,
            interval_s=_REDRAW_INTERVAL_S,
        )
