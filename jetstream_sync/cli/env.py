"""
The standard streams and environment variables of a command.

No command touches ``sys.stdout`` or ``os.environ``; a test passes an `Environment` of its own.
"""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, BinaryIO, TextIO

import click

from .sanitize import SafeText, unescaped
from .values import TIMEOUT

if TYPE_CHECKING:
    from rich.console import Console


@dataclass(frozen=True, kw_only=True)
class Environment:
    """
    The streams and variables of one command.

    Results go to ``stdout``; progress, warnings and errors go to ``stderr``. Both escape control characters;
    see `SafeText`.
    """

    stdin: BinaryIO
    stdout: TextIO
    stderr: TextIO
    variables: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in ("stdout", "stderr"):
            stream = getattr(self, name)
            if not isinstance(stream, SafeText):
                object.__setattr__(self, name, SafeText(stream))

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
        for stream in map(unescaped, (self.stdout, self.stderr)):
            if isinstance(stream, io.TextIOWrapper) and not stream.isatty():
                stream.reconfigure(encoding="utf-8", errors="backslashreplace")

    def console(self, stream: TextIO) -> Console | None:
        """
        Return a rich console for a stream, if the stream is suitable for one.

        Args:
            stream: ``stdout`` or ``stderr`` of this environment.

        Returns:
            ``None`` when the stream is not a terminal or the terminal is dumb: output is then plain
            text and never truncated. With ``NO_COLOR`` set, or ``JSM_COLOR=never``, the console has no
            colours. With ``JSM_COLOR=always`` it has colours without a terminal, too.

        """
        color = self.variables.get("JSM_COLOR", "").lower()
        dumb = self.variables.get("TERM") in ("dumb", "unknown")
        if (dumb or not stream.isatty()) and color != "always":
            return None
        from rich.console import Console  # noqa: PLC0415 - for terminals only

        plain = color == "never" or (bool(self.variables.get("NO_COLOR")) and color != "always")
        return Console(
            file=unescaped(stream),
            no_color=plain,
            highlight=False,
            force_terminal=True if color == "always" else None,
        )


#: The default timeout of a request, in seconds.
_DEFAULT_TIMEOUT_S = 5.0


@dataclass(kw_only=True)
class CommonOptions:
    """
    The values of the common options; click passes them to commands as ``obj``.

    They are set while the command line is parsed, and do not change after that.
    """

    env: Environment
    #: The values of the common options that were given, by option name; see `common_options`.
    given: dict[str, Any] = field(default_factory=dict)
    #: The command line arguments, for errors that quote them.
    words: Sequence[str] = ()

    def take(self, name: str, value: object) -> None:
        """Set an option; one given after the command name overrides one given before it."""
        self.given[name] = value
        if name == "color":
            self.env = replace(self.env, variables={**self.env.variables, "JSM_COLOR": str(value)})
        elif name == "json":
            self.env.write_utf8()
            self.env.stderr.as_json = True  # type: ignore[attr-defined]  # a `SafeText`

    # --- option values -------------------------------------------------------------------------

    @property
    def servers(self) -> list[str]:
        """Addresses given by ``--server``, in order; empty when the option was not given."""
        return list(self.given.get("servers", ()))

    @property
    def json(self) -> bool:
        """Whether to write results and errors as JSON."""
        return bool(self.given.get("json"))

    @property
    def utc(self) -> bool:
        """Whether to show times in UTC instead of local time."""
        return self._switch("utc", "JSM_UTC")

    @property
    def trace(self) -> bool:
        """Whether to trace messages to ``stderr``."""
        return self._switch("trace", "JSM_TRACE", "NATS_TRACE")

    @property
    def timeout(self) -> float:
        """The timeout of a request, in seconds."""
        if "timeout" in self.given:
            return float(self.given["timeout"])
        for name in ("JSM_TIMEOUT", "NATS_TIMEOUT"):
            if text := self.env.variables.get(name):
                try:
                    return float(TIMEOUT.parse(text))
                except ValueError as error:
                    raise click.UsageError(f"{name}: {error}") from error
        return _DEFAULT_TIMEOUT_S

    @property
    def interactive(self) -> bool:
        """Whether to prompt: all streams are terminals, and no option disables it."""
        if self.json or self._switch("no_input", "JSM_NO_INPUT", "CI"):
            return False
        # Prompts are written to stderr, so it must be visible as well.
        return all(each.isatty() for each in (self.env.stdin, self.env.stdout, self.env.stderr))

    def _switch(self, name: str, *variables: str) -> bool:
        if name in self.given:
            return bool(self.given[name])
        values = (self.env.variables.get(variable, "").lower() for variable in variables)
        return any(value not in ("", "0", "false", "no", "off") for value in values)
