"""Starts the publisher of ``jsm bench sub`` in another process."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Final

from typing_extensions import Self

from ..status import CommandError, ExitStatus
from .child import Failure, Job
from .work import Cell

if TYPE_CHECKING:
    from ..settings import Settings

__all__ = ["Peer", "job_for"]

_MODULE: Final = "jetstream_sync.cli.bench.child"
#: Seconds that a client gets to end by itself.
_GOODBYE: Final = 5.0


def job_for(settings: Settings, cell: Cell) -> Job:
    """
    Return the job of a publisher in another process.

    Raises:
        CommandError: another process cannot use the login.

    """
    login = settings.login()
    options = login.options()
    handed = {name: value for name, value in options.items() if isinstance(value, str)}
    handed.pop("name", None)
    if handed.keys() != options.keys() - {"name"}:
        raise CommandError(
            "another process can log in with a user, token, credentials file or nkey, "
            "and without options for TLS",
            ExitStatus.USAGE,
        )
    return Job(
        servers=login.servers,
        login=handed,
        cell=asdict(cell),
    )


class Peer:
    """
    A publisher in another process; a ``with`` block ends it.

    Args:
        job: what to publish.

    """

    def __init__(self, job: Job) -> None:
        package = str(Path(__file__).parents[3])
        paths = [package, *filter(None, [os.environ.get("PYTHONPATH")])]
        self._process = subprocess.Popen(
            [sys.executable, "-m", _MODULE],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
            # Ctrl-C reaches the parent only, which ends this process.
            start_new_session=True,
        )
        self._say(job.to_json())

    def ready(self) -> None:
        """
        Wait until the publisher is connected.

        Raises:
            CommandError: the publisher failed to connect, or ended.

        """
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if line == "ready\n":
            return
        try:
            failure = Failure(**json.loads(line))
        except (ValueError, TypeError) as error:
            status = self._process.wait(_GOODBYE)
            raise CommandError(
                f"the publisher in another process ended with status {status}", ExitStatus.FAILED
            ) from error
        raise CommandError(failure.error, ExitStatus(failure.status))

    def go(self) -> None:
        """Let the publisher begin."""
        self._say("go\n")

    def _say(self, text: str) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # its last line has the reason
            self._process.stdin.write(text)
            self._process.stdin.flush()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """End it."""
        process = self._process
        if kind is not None:
            process.terminate()
        assert process.stdin is not None
        assert process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            process.stdin.close()
        try:
            process.wait(_GOODBYE)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        process.stdout.close()
