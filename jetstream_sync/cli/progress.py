"""Progress on ``stderr``: a bar on a terminal, else a line every second."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from ..net.clock import monotonic
from .env import Environment, single_line
from .output import count, size

_LINE_INTERVAL_S: Final = 1.0


@contextmanager
def show_progress(
    env: Environment,
    title: str,
    total: int | None,
    *,
    in_bytes: bool = False,
    quiet: bool = False,
    clock: Callable[[], float] = monotonic,
) -> Iterator[Callable[[int], None]]:
    """
    Yield a function that shows the number of items, or bytes, that are done; one thread may call it.

    A terminal shows a bar that is erased at the end. Other outputs get one line of text a second.
    """
    stderr = env.stderr
    drawn = stderr.isatty() and not quiet and not getattr(stderr, "as_json", False)
    console = env.console(stderr) if drawn else None
    if console is None:
        yield _line_writer(env, title, total, size if in_bytes else count, quiet, clock)
        return
    from rich import progress  # noqa: PLC0415 - an extra, only for terminals

    numbers = progress.DownloadColumn(binary_units=True), progress.TransferSpeedColumn()
    with progress.Progress(
        progress.TextColumn("{task.description}", markup=False),
        progress.BarColumn(bar_width=max(4, min(40, console.width - 50))),
        *(numbers if in_bytes else (progress.MofNCompleteColumn(), progress.TimeElapsedColumn())),
        console=console,
        transient=True,
        redirect_stdout=False,
        redirect_stderr=False,
    ) as bars:
        task = bars.add_task(single_line(title), total=total)

        def draw(done: int) -> None:
            # The total may be an estimate.
            bars.update(task, completed=done, total=None if total is None else max(total, done))

        yield draw


def _line_writer(
    env: Environment,
    title: str,
    total: int | None,
    number: Callable[[int], str],
    quiet: bool,
    clock: Callable[[], float],
) -> Callable[[int], None]:
    started = clock()
    following = started + _LINE_INTERVAL_S

    def write_line(done: int) -> None:
        nonlocal following
        now = clock()
        if quiet or now < following:
            return
        following = now + _LINE_INTERVAL_S
        of = "" if total is None else f" of {number(total)}"
        rate = number(round(done / (now - started)))
        env.stderr.write(f"{title}: {number(done)}{of} {rate}/s\n")
        env.stderr.flush()

    return write_line
