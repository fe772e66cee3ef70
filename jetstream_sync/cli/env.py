"""
The standard streams and environment variables of a command.

No command touches ``sys.stdout`` or ``os.environ``; a test passes an `Environment` of its own.
"""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, BinaryIO, TextIO

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["Environment"]


@dataclass(frozen=True, kw_only=True)
class Environment:
    """
    The streams and variables of one command.

    Results go to ``stdout``; progress, warnings and errors go to ``stderr``.
    """

    stdin: BinaryIO
    stdout: TextIO
    stderr: TextIO
    variables: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of_process(cls) -> Environment:
        """Return the streams and variables of this process; a closed stream is replaced by the null device."""
        # Opened in this order, they take the closed file descriptors, so that no socket gets them.
        stdin = sys.stdin.buffer if sys.stdin is not None else open(os.devnull, "rb")  # noqa: PTH123, SIM115
        stdout, stderr = (
            stream if stream is not None else open(os.devnull, "w", encoding="utf-8")  # noqa: PTH123, SIM115
            for stream in (sys.stdout, sys.stderr)
        )
        return cls(stdin=stdin, stdout=stdout, stderr=stderr, variables=os.environ)

    def write_utf8(self) -> None:
        """Set the encoding of streams that are not terminals to UTF-8, as JSON requires, in any locale."""
        for stream in (self.stdout, self.stderr):
            if isinstance(stream, io.TextIOWrapper) and not stream.isatty():
                stream.reconfigure(encoding="utf-8", errors="backslashreplace")

    def console(self, stream: TextIO) -> Console | None:
        """
        Return a rich console for a stream, if the stream is suitable for one.

        Args:
            stream: ``stdout`` or ``stderr`` of this environment.

        Returns:
            ``None`` when the stream is not a terminal, the terminal is dumb or rich is not
            installed: output is then plain text and never truncated. With ``NO_COLOR`` set, or
            ``JSM_COLOR=never``, the console has no colours. With ``JSM_COLOR=always`` it has
            colours without a terminal, too.

        """
        color = self.variables.get("JSM_COLOR", "").lower()
        dumb = self.variables.get("TERM") in ("dumb", "unknown")
        if (dumb or not stream.isatty()) and color != "always":
            return None
        try:
            from rich.console import Console  # noqa: PLC0415 - an extra, and only for terminals
        except ModuleNotFoundError:
            return None

        plain = color == "never" or (bool(self.variables.get("NO_COLOR")) and color != "always")
        return Console(
            file=stream,
            no_color=plain,
            highlight=False,
            force_terminal=True if color == "always" else None,
        )
