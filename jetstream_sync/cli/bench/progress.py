"""Progress on ``stderr``: a line that is redrawn on a terminal, else a line every second."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from typing import Final

from typing_extensions import Self

from ...net.clock import monotonic
from ..env import Environment
from .histogram import bar

__all__ = ["Ticker", "draws", "writes_blocks"]

_REDRAW_INTERVAL_S: Final = 0.1
_LINE_INTERVAL_S: Final = 1.0


def draws(env: Environment) -> bool:
    """Return whether ``stderr`` is a terminal on which a line can be redrawn."""
    return env.stderr.isatty() and env.variables.get("TERM") not in ("dumb", "unknown")


def writes_blocks(encoding: str | None) -> bool:
    """Return whether an encoding has block characters."""
    try:
        "▏█".encode(encoding or "ascii")
    except (LookupError, UnicodeEncodeError):
        return False
    return True


class Ticker:
    """
    Show progress and rate in a ``with`` block; not for use by several threads.

    Args:
        env: provides the ``stderr`` to write to.
        title: the text before the count.
        total: the expected final count.
        quiet: show nothing.
        clock: returns seconds; a test passes its own.

    """

    def __init__(
        self,
        env: Environment,
        title: str,
        total: int,
        *,
        quiet: bool,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self._out = env.stderr
        self._title = title
        self._total = max(1, total)
        self._quiet = quiet
        self._clock = clock
        self._started = clock()
        self._draws = not quiet and draws(env)
        self._blocks = writes_blocks(getattr(env.stderr, "encoding", None))
        self._next = self._started + (0.0 if self._draws else _LINE_INTERVAL_S)

    def __enter__(self) -> Self:
        return self

    def show(self, done: int) -> None:
        """Show a count unless the last one was shown too recently; may be called often."""
        now = self._clock()
        if self._quiet or now < self._next:
            return
        self._next = now + (_REDRAW_INTERVAL_S if self._draws else _LINE_INTERVAL_S)
        seconds = now - self._started
        rate = f"{done / seconds:,.0f}/s" if seconds > 0 and done else ""
        text = f"{self._title}: {done:,} of {self._total:,} {rate}".rstrip()
        if not self._draws:
            self._out.write(f"{text}\n")
        else:
            columns = max(0, min(40, shutil.get_terminal_size().columns - len(text) - 8))
            drawn = bar(min(1.0, done / self._total), columns, blocks=self._blocks)
            self._out.write(f"\r{text}  {drawn}\x1b[K")
        self._out.flush()

    def __exit__(self, *_: object) -> None:
        """Erase the line."""
        if self._draws:
            self._out.write("\r\x1b[K")
            self._out.flush()
