"""The ``--translate`` option of ``sub``: pass each body through a command."""

from __future__ import annotations

import shlex
import subprocess

from ..status import CommandError, ExitStatus

__all__ = ["Translator"]

#: Timeout of the command for one body, in seconds.
_TIMEOUT_S = 30.0


class Translator:
    """
    Runs a command for each body, with the body as its standard input.

    Args:
        command: a command line, run without a shell; ``{{Subject}}`` is replaced by the subject of
            the message.

    Raises:
        CommandError: the command line is invalid.

    """

    def __init__(self, command: str) -> None:
        try:
            self._command = shlex.split(command)
        except ValueError as error:
            raise CommandError(f"--translate: {error}", ExitStatus.USAGE) from error
        if not self._command:
            raise CommandError("--translate: the command is empty", ExitStatus.USAGE)

    def translate(self, subject: str, body: bytes) -> bytes:
        """
        Return the output of the command for a body.

        Raises:
            CommandError: the command cannot be run, fails, or exceeds the timeout.

        """
        words = [word.replace("{{Subject}}", subject) for word in self._command]
        try:
            done = subprocess.run(
                words, input=body, capture_output=True, timeout=_TIMEOUT_S, check=False
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            said = error.strerror if isinstance(error, OSError) else str(error)
            raise CommandError(f"--translate {words[0]}: {said}", ExitStatus.FAILED) from error
        if done.returncode:
            line = done.stderr.decode("utf-8", "replace").strip().partition("\n")[0]
            said = f": {line}" if line else ""
            raise CommandError(
                f"--translate {words[0]}: exit status {done.returncode}{said}", ExitStatus.FAILED
            )
        return done.stdout
