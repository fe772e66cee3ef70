"""One nats-server."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
import time
import weakref
from pathlib import Path
from types import TracebackType
from typing import Final, NoReturn

from typing_extensions import Self

from ..errors import InvalidOptionError, ServerUnavailableError
from .binary import ask_version, check_binary, find_nats_server
from .runtime import HOST, STOP_LIMIT, Runtime, reserve_port

__all__ = ["NatsServer"]

_READY: Final = b"Server is ready"
#: How often the log of a starting server is looked at, in seconds; it takes about 10 ms.
_LOOK_EVERY: Final = 0.002
_TAIL_LINES: Final = 12


class NatsServer:
    """
    A real nats-server on 127.0.0.1, with a store of its own.

    As a context manager it starts on entry and leaves nothing behind on exit. Without one, call
    `start()` and `close()`; what is forgotten is cleaned up when the object is collected, at exit,
    and also when this process is killed.

    The port and the stored data stay the same over `stop()`, `kill()`, `start()` and `restart()`,
    until `close()`.

    Any thread may call anything here; calls that change the server wait for each other. After a
    fork, the server stays the parent's: in the child `stop()` and `close()` do nothing, and
    whatever else would change it raises `ServerUnavailableError`. It cannot be pickled.

    Example:
        >>> with NatsServer() as server:
        ...     with jetstream_sync.connect(server.url) as nc:
        ...         nc.jetstream().stream_names()
        []

    """

    def __init__(
        self,
        *,
        name: str | None = None,
        port: int = 0,
        jetstream: bool = True,
        store_dir: str | os.PathLike[str] | None = None,
        config: str = "",
        binary: str | os.PathLike[str] | None = None,
        start_timeout: float = 10.0,
    ) -> None:
        """
        Check the options and find the program; nothing starts yet.

        Args:
            name: the server's name; None lets the server choose one.
            port: the port for clients; 0 takes a free one and keeps it.
            jetstream: whether JetStream is on.
            store_dir: where JetStream keeps its data; it is made when missing and never removed.
                None is a temporary directory that goes with `close()`.
            config: text in nats-server's configuration language, used as it is. The client
                address, the name, the log and the store directory are set by this class and win.
            binary: the program to run; None looks for it as `find_nats_server()` does.
            start_timeout: seconds that the server may take to be ready.

        Raises:
            InvalidOptionError: the port is not in 0..65535, or ``start_timeout`` is not above 0.
            ServerUnavailableError: there is no such program.

        """
        if not 0 <= port <= 65535:
            raise InvalidOptionError("port", port, "must be between 0 and 65535")
        if start_timeout <= 0:
            raise InvalidOptionError("start_timeout", start_timeout, "must be above 0 seconds")
        self.name = name
        self._port = port
        self._jetstream = jetstream
        self._store_dir = None if store_dir is None else Path(store_dir).resolve()
        self._config = config
        self._binary = find_nats_server() if binary is None else check_binary(binary)
        self._start_timeout = start_timeout
        self._version = ""
        self._lock = threading.RLock()
        self._runtime: Runtime | None = None
        _servers.add(self)

    # --- what it is ---------------------------------------------------------------------------

    @property
    def binary(self) -> Path:
        """The program that is run."""
        return self._binary

    @property
    def version(self) -> str:
        """
        The program's version, such as ``2.15.1``; works before the server is started.

        Raises:
            ServerUnavailableError: the program cannot be run, or is not a nats-server.

        """
        if not self._version:
            self._version = ask_version(self._binary)
        return self._version

    @property
    def port(self) -> int:
        """
        The port for clients.

        Raises:
            ServerUnavailableError: it is chosen by the first `start()`, which was not called yet.

        """
        if self._port == 0:
            raise ServerUnavailableError("the port is chosen when nats-server starts")
        return self._port

    @property
    def url(self) -> str:
        """The address for clients, such as ``nats://127.0.0.1:4222``; raises as `port` does."""
        return f"nats://{HOST}:{self.port}"

    @property
    def pid(self) -> int | None:
        """The process id of the server; None when it is not running, or is a parent's."""
        with self._lock:
            return None if self._runtime is None else self._runtime.pid

    @property
    def is_running(self) -> bool:
        """Whether the server's process is there; a paused one is."""
        return self.pid is not None

    @property
    def store_dir(self) -> Path:
        """
        Where JetStream keeps its data.

        Raises:
            ServerUnavailableError: it is made by the first `start()`, which was not called yet.

        """
        if self._store_dir is not None:
            return self._store_dir
        return self._need_runtime().directory / "store"

    @property
    def log_path(self) -> Path:
        """The log file, which goes with `close()`; raises as `store_dir` does."""
        return self._need_runtime().log_path

    def log(self) -> str:
        """
        Read what the server has logged since the first `start()`.

        Returns:
            The text, over all restarts; empty before the first start and after `close()`.

        """
        runtime = self._runtime
        if runtime is None:
            return ""
        with contextlib.suppress(FileNotFoundError):
            return runtime.log_path.read_text(encoding="utf-8", errors="replace")
        return ""

    # --- what it does -------------------------------------------------------------------------

    def start(self) -> Self:
        """
        Start the server and wait until it takes clients; nothing happens when it is running.

        Returns:
            The server itself.

        Raises:
            ServerUnavailableError: it ended, with its last words in the message (a mistake in
                ``config``, a port in use); it was not ready within ``start_timeout`` and was
                killed; or it belongs to a parent process.

        """
        self._check_owner()
        with self._lock:
            runtime = self._runtime
            if runtime is None:
                runtime = self._runtime = Runtime()
                self._finalize = weakref.finalize(self, runtime.close)
            if runtime.pid is not None:
                return self
            if self._port == 0:
                self._port, runtime.port_holder = reserve_port()
            logged = runtime.log_path.stat().st_size if runtime.log_path.exists() else 0
            process = runtime.spawn(self._command(runtime))
            self._wait_ready(runtime, process, logged)
            return self

    def stop(self) -> None:
        """
        Stop the server the way it likes best, or kill it when it takes longer than 5 seconds.

        The data and the port are kept for `start()`. Also ends a paused server.
        """
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """
        Kill the server at once, as a crash would; the data on disk and the port are kept.

        Raises:
            ServerUnavailableError: it belongs to a parent process.

        """
        self._check_owner()
        self._end(signal.SIGKILL)

    def restart(self) -> Self:
        """
        Stop the server if it runs, and start it with the same port and data.

        Returns:
            The server itself.

        Raises:
            ServerUnavailableError: as `start()`.

        """
        self._check_owner()
        with self._lock:
            self.stop()
            return self.start()

    def pause(self) -> None:
        """
        Freeze the server: connections stay open, but the server does not respond.

        Raises:
            ServerUnavailableError: it is not running.

        """
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        """
        Let a paused server go on.

        Raises:
            ServerUnavailableError: it is not running.

        """
        self._signal(signal.SIGCONT)

    def close(self) -> None:
        """
        Stop the server and remove what it has written, but not a ``store_dir`` that you gave.

        A later `start()` begins with an empty server, on the same port if you chose it. Idempotent.
        """
        runtime = self._runtime
        if runtime is None or not runtime.ours:
            return
        with self._lock:
            self._finalize()
            if runtime.port_holder is not None:
                self._port = 0
            self._runtime = None

    def __enter__(self) -> Self:
        try:
            return self.start()
        except BaseException:
            self.close()
            raise

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        where = self.url if self._port else "no port yet"
        return f"<NatsServer {self.name or 'unnamed'} {where}>"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a NatsServer cannot be pickled: pass its url")

    # --- how ----------------------------------------------------------------------------------

    def _command(self, runtime: Runtime) -> list[str]:
        # Flags win over the file, and the user's text stays alone in it: line numbers in the
        # server's complaints are those of the text.
        runtime.config_path.touch(mode=0o600)
        runtime.config_path.write_text(self._config, encoding="utf-8")
        command = [str(self._binary), "-c", str(runtime.config_path), "-a", HOST]
        command += ["-p", str(self._port), "-l", str(runtime.log_path), "-sd", str(self.store_dir)]
        if self.name is not None:
            command += ["-n", self.name]
        if self._jetstream:
            command.append("-js")
        return command

    def _wait_ready(self, runtime: Runtime, process: subprocess.Popen[bytes], logged: int) -> None:
        give_up = time.monotonic() + self._start_timeout
        while True:
            # In this order: what a server wrote before it ended must not be missed.
            ended = runtime.pid is None
            with runtime.log_path.open("rb") as file:
                file.seek(logged)
                text = file.read()
            if ended:
                reason = f"did not start (exit status {process.returncode})"
                raise ServerUnavailableError(_with_tail(reason, text))
            if _READY in text:
                return
            if time.monotonic() > give_up:
                runtime.end(signal.SIGKILL, STOP_LIMIT)
                reason = f"was not ready within {self._start_timeout:g} s"
                raise ServerUnavailableError(_with_tail(reason, text))
            time.sleep(_LOOK_EVERY)

    def _end(self, number: int) -> None:
        runtime = self._runtime
        if runtime is None or not runtime.ours:
            return
        with self._lock:
            runtime.end(number, STOP_LIMIT)

    def _signal(self, number: int) -> None:
        self._check_owner()
        with self._lock:
            if self._runtime is None or not self._runtime.signal(number):
                raise ServerUnavailableError("nats-server is not running")

    def _need_runtime(self) -> Runtime:
        if self._runtime is None:
            raise ServerUnavailableError("nats-server was not started")
        return self._runtime

    def _check_owner(self) -> None:
        if self._runtime is not None and not self._runtime.ours:
            raise ServerUnavailableError("nats-server was started by the parent process")

    def _after_fork_in_child(self) -> None:
        self._lock = threading.RLock()  # another thread of the parent may hold the old one
        if self._runtime is not None:
            self._runtime.abandon()


def _with_tail(reason: str, log: bytes) -> str:
    lines = log.decode(errors="replace").strip().splitlines()[-_TAIL_LINES:]
    return "\n".join([f"nats-server {reason}; it said:", *(lines or ["nothing"])])


_servers: weakref.WeakSet[NatsServer] = weakref.WeakSet()


def _let_go_in_child() -> None:
    for server in list(_servers):
        server._after_fork_in_child()  # noqa: SLF001 - the hook is a part of the class


os.register_at_fork(after_in_child=_let_go_in_child)
