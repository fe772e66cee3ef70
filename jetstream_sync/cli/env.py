"""
The process as a command sees it: its streams and environment variables, handed in.

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
    Streams and variables of one run.

    Results go to ``stdout``; progress, warnings and errors go to ``stderr``.
    """

    stdin: BinaryIO
    stdout: TextIO
    stderr: TextIO
    variables: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of_process(cls) -> Environment:
        """Return the streams and variables that this process has now; one that is closed has no use."""
        # Opened in this order, they take the places of those that are closed: no socket gets there.
        stdin = sys.stdin.buffer if sys.stdin is not None else open(os.devnull, "rb")  # noqa: PTH123, SIM115
        stdout, stderr = (
            stream if stream is not None else open(os.devnull, "w", encoding="utf-8")  # noqa: PTH123, SIM115
            for stream in (sys.stdout, sys.stderr)
        )
        return cls(stdin=stdin, stdout=stdout, stderr=stderr, variables=os.environ)

    def write_utf8(self) -> None:
        """Have what is not shown to a person written in UTF-8, as JSON is, whatever the locale says."""
        for stream in (self.stdout, self.stderr):
            if isinstance(stream, io.TextIOWrapper) and not stream.isatty():
                stream.reconfigure(encoding="utf-8", errors="backslashreplace")

    def console(self, stream: TextIO) -> Console | None:
        """
        Return a rich console that writes to a stream, when there it has a use.

        Args:
            stream: ``stdout`` or ``stderr`` of this environment.

        Returns:
            ``None`` when the stream is no terminal, the terminal is dumb or rich is not
            installed: then the output is plain text, never cut. With ``NO_COLOR`` set, or
            ``JSM_COLOR=never``, the console has no colours; with ``JSM_COLOR=always`` it has some
            off a terminal, too.

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
