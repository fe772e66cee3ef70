"""The terminal of ``jsm top``: the alternate screen, unbuffered key input, and their restoration."""

from __future__ import annotations

import contextlib
import os
import shutil
import termios
import tty
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from typing_extensions import Self

from ..sanitize import unescaped

if TYPE_CHECKING:
    from ..env import Environment

_ENTER_SCREEN: Final = "\x1b[?1049h\x1b[?25l"
_LEAVE_SCREEN: Final = "\x1b[?25h\x1b[?1049l"
_CURSOR_HOME: Final = "\x1b[H"
_ERASE_LINE: Final = "\x1b[K"
_ERASE_BELOW: Final = "\x1b[J"
#: Maximum wait for a key, in tenths of a second (the unit of VTIME).
_KEY_TIMEOUT_DS: Final = 1


class Screen:
    """
    The whole screen of a terminal; the end of the ``with`` block restores the terminal.

    Ctrl-C still raises SIGINT.

    Args:
        env: its ``stdin`` and ``stdout`` are the terminal.

    """

    def __init__(self, env: Environment) -> None:
        self._out = unescaped(env.stdout)
        self._input = env.stdin.fileno()
        self._before: list[object] | None = None

    def __enter__(self) -> Self:
        self._before = termios.tcgetattr(self._input)
        tty.setcbreak(self._input, termios.TCSANOW)
        mode = termios.tcgetattr(self._input)
        mode[6][termios.VMIN], mode[6][termios.VTIME] = 0, _KEY_TIMEOUT_DS
        termios.tcsetattr(self._input, termios.TCSANOW, mode)
        self._out.write(_ENTER_SCREEN)
        self._out.flush()
        return self

    def __exit__(self, *_: object) -> None:
        """Restore the terminal."""
        if self._before is not None:
            # Discard unread input, so that the shell does not run it.
            termios.tcsetattr(self._input, termios.TCSAFLUSH, self._before)  # type: ignore[arg-type]
        with contextlib.suppress(OSError):
            self._out.write(_LEAVE_SCREEN)
            self._out.flush()

    def size(self) -> tuple[int, int]:
        """Return the current number of columns and lines."""
        with contextlib.suppress(OSError):
            found = os.get_terminal_size(self._input)
            if found.columns and found.lines:
                return found.columns, found.lines
        return shutil.get_terminal_size()

    def read_key(self) -> str:
        """Return the input of the next tenth of a second; empty if there was none."""
        data = os.read(self._input, 32)
        return data.decode("utf-8", "replace")

    def show(self, lines: Sequence[str]) -> None:
        """Redraw the whole screen without flicker."""
        drawn = f"{_ERASE_LINE}\n".join(lines)
        self._out.write(f"{_CURSOR_HOME}{drawn}{_ERASE_LINE}{_ERASE_BELOW}")
        self._out.flush()
