"""Starts the clients of ``jsm bench`` that need a process of their own, and hears what they measured."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Final

from typing_extensions import Self

from ..status import CommandError, ExitStatus
from .child import Job, Measured
from .work import Cell

if TYPE_CHECKING:
    from ..settings import Settings

__all__ = ["NATS_PY", "OURS", "Peer", "job_for"]

OURS: Final = "jetstream_sync.cli.bench.child"
NATS_PY: Final = "jetstream_sync.cli.bench.nats_py"
#: Seconds that a client gets to end by itself.
_GOODBYE: Final = 5.0


def job_for(settings: Settings, kind: str, cell: Cell) -> Job:
    """
    Return the job of a client in another process.

    Raises:
        CommandError: the login can not be handed on.

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
        kind=kind,
        servers=login.servers,
        login=handed,
        domain=login.domain,
        prefix=login.api_prefix,
        cell=asdict(cell),
    )


class Peer:
    """
    A client in a process of its own; used in a ``with`` block, which ends it.

    Args:
        module: what it runs, `OURS` or `NATS_PY`.
        job: what it does.

    Raises:
        CommandError: its library is not installed.

    """

    def __init__(self, module: str, job: Job) -> None:
        if module == NATS_PY and importlib.util.find_spec("nats") is None:
            raise CommandError("nats-py is not installed: pip install nats-py", ExitStatus.USAGE)
        package = str(Path(__file__).parents[3])
        paths = [package, *filter(None, [os.environ.get("PYTHONPATH")])]
        # -P or not: the folder that somebody happens to be in is no place for modules.
        self._process = subprocess.Popen(
            [sys.executable, "-m", module],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
            # Ctrl-C is for the parent, which ends this one.
            start_new_session=True,
        )
        self._say(job.to_json())

    def ready(self) -> None:
        """
        Wait until it is connected.

        Raises:
            CommandError: it is not.

        """
        line = self._hear()
        if line != "ready\n":
            self._measured(line)
            raise CommandError(f"a client said {line.strip()!r}", ExitStatus.FAILED)

    def go(self) -> None:
        """Let it begin."""
        self._say("go\n")

    def result(self) -> Measured:
        """
        Wait until it is done.

        Raises:
            CommandError: it failed.

        """
        return self._measured(self._hear())

    def _measured(self, line: str) -> Measured:
        try:
            measured = Measured(**json.loads(line))
        except (ValueError, TypeError) as error:
            raise CommandError(
                f"a client in another process ended with {self._process.wait(_GOODBYE)}",
                ExitStatus.FAILED,
            ) from error
        if measured.error:
            raise CommandError(measured.error, ExitStatus(measured.status))
        return measured

    def _say(self, text: str) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # what it says last tells why
            self._process.stdin.write(text)
            self._process.stdin.flush()

    def _hear(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline()

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
