"""The terminal of ``jsm top``: keys as they are pressed, a screen of its own, all put back at the end."""

from __future__ import annotations

import contextlib
import os
import shutil
import termios
import tty
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from typing_extensions import Self

if TYPE_CHECKING:
    from ..env import Environment

__all__ = ["Screen"]

_ENTER: Final = "\x1b[?1049h\x1b[?25l"
_LEAVE: Final = "\x1b[?25h\x1b[?1049l"
_HOME: Final = "\x1b[H"
_REST_OF_LINE: Final = "\x1b[K"
_BELOW: Final = "\x1b[J"
#: Tenths of a second that one look for a key lasts.
_LOOK: Final = 1


class Screen:
    """
    A terminal's whole screen; used in a ``with`` block, after which the terminal is as it was.

    Ctrl-C stays what it is.

    Args:
        env: its ``stdin`` and ``stdout`` are the terminal.

    """

    def __init__(self, env: Environment) -> None:
        self._out = env.stdout
        self._input = env.stdin.fileno()
        self._before: list[object] | None = None

    def __enter__(self) -> Self:
        self._before = termios.tcgetattr(self._input)
        tty.setcbreak(self._input, termios.TCSANOW)
        mode = termios.tcgetattr(self._input)
        mode[6][termios.VMIN], mode[6][termios.VTIME] = 0, _LOOK
        termios.tcsetattr(self._input, termios.TCSANOW, mode)
        self._out.write(_ENTER)
        self._out.flush()
        return self

    def __exit__(self, *_: object) -> None:
        """Put the terminal back."""
        if self._before is not None:
            # What was typed and not read is not for the shell.
            termios.tcsetattr(self._input, termios.TCSAFLUSH, self._before)  # type: ignore[arg-type]
        with contextlib.suppress(OSError):
            self._out.write(_LEAVE)
            self._out.flush()

    def size(self) -> tuple[int, int]:
        """Return the columns and lines that there are now."""
        with contextlib.suppress(OSError):
            found = os.get_terminal_size(self._input)
            if found.columns and found.lines:
                return found.columns, found.lines
        return shutil.get_terminal_size()

    def key(self) -> str:
        """Return what is typed within a tenth of a second; empty: nothing."""
        data = os.read(self._input, 32)
        return data.decode("utf-8", "replace")

    def show(self, lines: Sequence[str]) -> None:
        """Draw the whole screen anew, without flicker."""
        drawn = f"{_REST_OF_LINE}\n".join(lines)
        self._out.write(f"{_HOME}{drawn}{_REST_OF_LINE}{_BELOW}")
        self._out.flush()
