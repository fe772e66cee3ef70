"""Progress of ``jsm bench`` on ``stderr``: a line that changes on a terminal, else one now and then."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from typing import Final

from typing_extensions import Self

from ...net.clock import monotonic
from ..env import Environment
from .histogram import bar

__all__ = ["Ticker", "draws", "writes_blocks"]

_REDRAW: Final = 0.1
_LINE: Final = 1.0


def draws(env: Environment) -> bool:
    """Say whether ``stderr`` is a terminal on which a line can be written anew."""
    return env.stderr.isatty() and env.variables.get("TERM") not in ("dumb", "unknown")


def writes_blocks(encoding: str | None) -> bool:
    """Say whether block characters can be written in an encoding."""
    try:
        "▏█".encode(encoding or "ascii")
    except (LookupError, UnicodeEncodeError):
        return False
    return True


class Ticker:
    """
    Shows how far something is; used in a ``with`` block, on one thread.

    Args:
        env: written to its ``stderr``.
        title: what goes on.
        total: how much there is to do.
        quiet: show nothing.
        rate: whether to say how fast it goes.
        clock: seconds; a test passes its own.

    """

    def __init__(
        self,
        env: Environment,
        title: str,
        total: int,
        *,
        quiet: bool,
        rate: bool = True,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self._out = env.stderr
        self._title = title
        self._total = max(1, total)
        self._quiet = quiet
        self._rate = rate
        self._clock = clock
        self._started = clock()
        self._draws = not quiet and draws(env)
        self._blocks = writes_blocks(getattr(env.stderr, "encoding", None))
        self._next = self._started + (0.0 if self._draws else _LINE)

    def __enter__(self) -> Self:
        return self

    def show(self, done: int) -> None:
        """Take how much is done; may be called often."""
        now = self._clock()
        if self._quiet or now < self._next:
            return
        self._next = now + (_REDRAW if self._draws else _LINE)
        seconds = now - self._started
        rate = f"{done / seconds:,.0f}/s" if self._rate and seconds > 0 and done else ""
        text = f"{self._title}: {done:,} of {self._total:,} {rate}".rstrip()
        if not self._draws:
            self._out.write(f"{text}\n")
        else:
            columns = max(0, min(40, shutil.get_terminal_size().columns - len(text) - 8))
            drawn = bar(min(1.0, done / self._total), columns, blocks=self._blocks)
            self._out.write(f"\r{text}  {drawn}\x1b[K")
        self._out.flush()

    def __exit__(self, *_: object) -> None:
        """Take the line away."""
        if self._draws:
            self._out.write("\r\x1b[K")
            self._out.flush()
