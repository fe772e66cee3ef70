"""Programs of the how-to pages, run as processes."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Mapping
from http.client import HTTPException
from pathlib import Path
from typing import IO, Any

from fix_threads import SCALE, wait_until
from typing_extensions import Self

__all__ = ["APPS", "Program", "copied", "free_port", "http", "run"]

#: The folder with the files that the how-to pages show.
APPS = Path(__file__).parents[1] / "docs" / "howto" / "apps"


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port: int = listening.getsockname()[1]
        return port


class Program:
    """
    A Python program and its children, in their own process group; all are ended at the end.

    Args:
        command: the module or file to run, and its arguments; ``-m name`` for a module.
        url: the address of the nats-server, which the program finds in ``NATS_URL``.
        folder: where it runs.
        feed: whether the test writes to its standard input.
        variables: its environment variables, besides the two that it always has; by default those
            of the tests.

    """

    def __init__(
        self,
        command: list[str],
        url: str,
        folder: Path,
        *,
        feed: bool = False,
        variables: Mapping[str, str] = os.environ,
    ) -> None:
        self._folder = folder
        self._output = folder / f"output-{len(list(folder.glob('output-*')))}.txt"
        environment = {**variables, "NATS_URL": url, "PYTHONUNBUFFERED": "1"}
        # Pytest's settings for warnings are not for other programs.
        environment.pop("PYTHONWARNINGS", None)
        with self._output.open("wb") as output:
            self.process = subprocess.Popen(
                [sys.executable, *command],
                cwd=folder,
                env=environment,
                stdin=subprocess.PIPE if feed else subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    @property
    def output(self) -> str:
        """Its output so far."""
        return self._output.read_text(encoding="utf-8", errors="replace")

    @property
    def input(self) -> IO[bytes]:
        assert self.process.stdin is not None
        return self.process.stdin

    def wait_for(self, text: str, limit: float = 20.0) -> None:
        """Wait until it has printed a text; fail with its whole output otherwise."""

        def there() -> bool:
            if text in self.output:
                return True
            assert self.process.poll() is None, f"it ended, without {text!r}:\n{self.output}"
            return False

        try:
            wait_until(there, limit)
        except BaseException:
            sys.stdout.write(self.output)
            raise

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the program itself."""
        self.process.send_signal(number)

    def ctrl_c(self) -> None:
        """Send a Ctrl-C: every process of the group gets it."""
        os.killpg(self.process.pid, signal.SIGINT)

    def ended(self, limit: float = 20.0) -> int:
        """Wait for its end, and return its status."""
        try:
            return self.process.wait(limit * SCALE)
        except subprocess.TimeoutExpired:
            sys.stdout.write(self.output)
            raise

    def stop(self) -> None:
        """End it with SIGTERM; its status must be 0."""
        self.signal(signal.SIGTERM)
        assert self.ended() == 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(10 * SCALE)
        # Also children that still run.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(5)
        if self.process.stdin is not None:
            self.process.stdin.close()
        # Shown by pytest if the test fails.
        sys.stdout.write(f"--- {self.process.args}\n{self.output}")


def copied(name: str, folder: Path) -> Path:
    """Copy an application to a folder where it may create files, and return the copy."""
    return Path(shutil.copytree(APPS / name, folder / name))


def run(command: list[str], url: str, folder: Path, limit: float = 40.0) -> str:
    """Run a program to its end, which must be successful, and return its output."""
    with Program(command, url, folder) as program:
        status = program.ended(limit)
        assert status == 0, program.output
        return program.output


def http(method: str, url: str, data: bytes | None = None) -> tuple[int, dict[str, Any]]:
    """Request JSON from an HTTP server; return the status, 0 without a server, and the answer."""
    request = urllib.request.Request(url, data=data, method=method)
    try:
        with urllib.request.urlopen(request, timeout=20 * SCALE) as response:
            return response.status, json.loads(response.read())
    except urllib.error.HTTPError as error:
        with error:
            body = error.read()
        return error.code, {"body": body.decode(errors="replace")}
    except (OSError, ValueError, HTTPException):  # it was killed during its answer
        return 0, {}
