"""A message's body, run through a command of the user's: ``sub --translate``."""

from __future__ import annotations

import shlex
import subprocess

from ..status import CommandError, ExitStatus

__all__ = ["Translator"]

#: Seconds that the command may take for one body.
_PATIENCE = 30.0


class Translator:
    """
    Runs a command for each body, which it has as its standard input.

    Args:
        command: a command line without a shell's special characters; ``{{Subject}}`` in it is the
            subject of the message.

    Raises:
        CommandError: it is no command line.

    """

    def __init__(self, command: str) -> None:
        try:
            self._words = shlex.split(command)
        except ValueError as error:
            raise CommandError(f"--translate: {error}", ExitStatus.USAGE) from error
        if not self._words:
            raise CommandError("--translate: there is no command", ExitStatus.USAGE)

    def translate(self, subject: str, body: bytes) -> bytes:
        """
        Return what the command makes of a body.

        Raises:
            CommandError: it can not be run, failed, or took too long.

        """
        words = [word.replace("{{Subject}}", subject) for word in self._words]
        try:
            done = subprocess.run(
                words, input=body, capture_output=True, timeout=_PATIENCE, check=False
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
