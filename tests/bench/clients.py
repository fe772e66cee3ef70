"""The commands that start the clients, and the reasons for leaving a client out."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from pathlib import Path

from .job import Job, Result
from .rows import BARE, BARE_READER, OURS

__all__ = ["ROOT", "CellError", "LeftOutError", "command_makers", "python_module", "run_cell"]

ROOT = Path(__file__).resolve().parents[2]
"""The directory that has ``jetstream_sync`` and ``tests``."""

CELL_SECONDS_LIMIT = 120.0

Command = Callable[[Job], list[str]]


class LeftOutError(Exception):
    """A client cannot take part; the message says why."""


class CellError(Exception):
    """A client failed; the message is the end of its standard error."""


def run_cell(command: Command, job: Job) -> Result:
    """
    Run a client in a process of its own and return what it says.

    Raises:
        CellError: it failed, or was still running after two minutes and was killed.

    """
    try:
        done = subprocess.run(
            command(job),
            input=job.to_json(),
            capture_output=True,
            text=True,
            cwd=ROOT,
            timeout=CELL_SECONDS_LIMIT,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise CellError(f"not done after {CELL_SECONDS_LIMIT:.0f} s") from error
    if done.returncode != 0:
        raise CellError(done.stderr.strip()[-2000:] or f"exit status {done.returncode}")
    return Result.from_json(done.stdout)


def command_makers(directory: Path) -> Mapping[str, Callable[[], Command]]:
    """
    Return, for each client, a function that makes its command or raises `LeftOutError`.

    Args:
        directory: an empty directory for the compiled client.

    """
    return {
        OURS: lambda: _python("jetstream_sync", "ours"),
        "nats-py": lambda: _python("nats", "nats_py"),
        "nats-py-blocking": lambda: _python("nats", "nats_py_blocking"),
        "c": lambda: _compiled(directory),
        BARE: lambda: lambda _: python_module("bare_socket"),
        BARE_READER: lambda: lambda _: [*python_module("bare_socket"), "--reader"],
    }


def python_module(module: str) -> list[str]:
    """Return the command that runs a module of this package with the same interpreter."""
    return [sys.executable, "-m", f"{__package__}.{module}"]


def _python(library: str, module: str) -> Command:
    if find_spec(library) is None:
        raise LeftOutError(f"the package {library!r} is not installed")
    return lambda _: python_module(module)


def _compiled(directory: Path) -> Command:
    compiler = os.environ.get("CC") or shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        raise LeftOutError("there is no C compiler (gcc or cc)")
    program = directory / "bench"
    source = Path(__file__).parent / "c" / "bench.c"
    flags = ["-O2", "-std=gnu11", "-o", str(program), str(source), *_libnats_flags()]
    command_line = [*shlex.split(compiler), *flags]
    try:
        done = subprocess.run(command_line, capture_output=True, text=True, check=False)
    except OSError as error:
        raise LeftOutError(f"the C compiler does not start: {error}") from error
    if done.returncode != 0:
        raise LeftOutError(f"bench.c did not compile against libnats: {done.stderr.strip()[:500]}")

    def command(job: Job) -> list[str]:
        values = (job.row, job.url, job.stream, job.subject, job.consumer)
        numbers = (job.count, job.size, job.batch, job.window)
        return [str(program), *values, *map(str, numbers)]

    return command


def _libnats_flags() -> list[str]:
    pkg_config = shutil.which("pkg-config")
    if pkg_config is not None:
        for name in ("libnats", "cnats"):
            asked = [pkg_config, "--cflags", "--libs", name]
            done = subprocess.run(asked, capture_output=True, text=True, check=False)
            if done.returncode == 0:
                return shlex.split(done.stdout)
    return ["-lnats"]
