"""Run one nats-server, or a cluster."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import subprocess
import time
import weakref
from pathlib import Path
from typing import Final, NoReturn

from typing_extensions import Self

from .. import errors
from ..locks import new_rlock
from .runtime import (
    HOST,
    STOP_TIMEOUT_S,
    Runtime,
    ask_version,
    check_binary,
    find_nats_server,
    reserve_port,
)

_READY: Final = b"Server is ready"
#: Interval at which the log of a starting server is read; a start takes about 10 ms.
_POLL_INTERVAL_S: Final = 0.002
#: The same for a cluster that becomes ready.
_CLUSTER_POLL_INTERVAL_S: Final = 0.01
#: Number of log lines in the error of a server that did not start.
_TAIL_LINES: Final = 12


class NatsServer:
    """
    A real nats-server on 127.0.0.1, with its own store.

    As a context manager it starts on entry, and on exit it stops and removes its files. Otherwise
    call `start()` and `close()`. A server that is not closed is stopped, and its files are removed, when the
    object is garbage-collected and when this process ends or is killed.

    `stop()`, `kill()`, `start()` and `restart()` keep the port and the stored data; `close()` ends
    both.

    All methods are thread-safe; calls that change the server run one at a time. After a
    fork, the server belongs to the parent process: in the child, `stop()` and `close()` do nothing, and other
    methods that would change the server raise `ServerUnavailableError`. It cannot be pickled.

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
        Check the options and find the program, without starting it.

        Args:
            name: the server's name; ``None``: the server chooses one.
            port: the port for clients; 0: a free port, which the server keeps.
            jetstream: whether to enable JetStream.
            store_dir: directory for JetStream's data, created if missing and never removed; ``None``:
                a temporary directory, which `close()` removes.
            config: configuration in nats-server's own language. The client address, the name, the log and
                the store directory of this class take precedence.
            binary: the program to run; ``None``: the result of `find_nats_server()`.
            start_timeout: how long the server may take to become ready, in seconds.

        Raises:
            InvalidOptionError: the port is not in 0..65535, or ``start_timeout`` is not above 0.
            ServerUnavailableError: ``binary`` is not executable, or no nats-server was found.

        """
        if not 0 <= port <= 65535:
            raise errors.InvalidOptionError("port", port, "must be between 0 and 65535")
        if start_timeout <= 0:
            raise errors.InvalidOptionError(
                "start_timeout", start_timeout, "must be above 0 seconds"
            )
        self.name = name
        self._port = port
        self._jetstream = jetstream
        self._store_dir = None if store_dir is None else Path(store_dir).resolve()
        self._config = config
        self._binary = find_nats_server() if binary is None else check_binary(binary)
        self._start_timeout = start_timeout
        self._version = ""
        self._lock = new_rlock()
        self._runtime: Runtime | None = None
        _servers.add(self)

    # --- state ---------------------------------------------------------------------------

    @property
    def binary(self) -> Path:
        """The path of the program."""
        return self._binary

    @property
    def version(self) -> str:
        """
        The program's version, such as ``2.15.1``; available before the server starts.

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
            ServerUnavailableError: the server was not started yet, and `start()` chooses the port.

        """
        if self._port == 0:
            raise errors.ServerUnavailableError("the port is chosen when nats-server starts")
        return self._port

    @property
    def url(self) -> str:
        """The address for clients, such as ``nats://127.0.0.1:4222``; raises like `port`."""
        return f"nats://{HOST}:{self.port}"

    @property
    def pid(self) -> int | None:
        """The process id; ``None`` if the server is not running or belongs to a parent process."""
        with self._lock:
            return None if self._runtime is None else self._runtime.pid

    @property
    def is_running(self) -> bool:
        """Whether the server's process exists; also true while it is paused."""
        return self.pid is not None

    @property
    def store_dir(self) -> Path:
        """
        The directory with JetStream's data.

        Raises:
            ServerUnavailableError: the server was not started yet, and `start()` creates the directory.

        """
        if self._store_dir is not None:
            return self._store_dir
        return self._need_runtime().directory / "store"

    @property
    def log_path(self) -> Path:
        """The path of the log file, which `close()` removes; raises like `store_dir`."""
        return self._need_runtime().log_path

    def log(self) -> str:
        """
        Return the server's log.

        Returns:
            The text since the first `start()`, across restarts; empty before that and after `close()`.

        """
        runtime = self._runtime
        if runtime is None:
            return ""
        with contextlib.suppress(FileNotFoundError):
            return runtime.log_path.read_text(encoding="utf-8", errors="replace")
        return ""

    # --- lifecycle -------------------------------------------------------------------------

    def start(self) -> Self:
        """
        Start the server and wait until it accepts clients; do nothing if it is running.

        Returns:
            This object.

        Raises:
            ServerUnavailableError: the server ended (an error in ``config``, a port in use), was not ready
                within ``start_timeout`` and was killed, or belongs to a parent process. The message
                has the end of the log.

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
        Shut the server down, and kill it if that takes longer than 5 seconds.

        The data and the port are kept for `start()`. A paused server is stopped as well.
        """
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """
        Kill the server at once, like a crash; the data on disk and the port are kept.

        Raises:
            ServerUnavailableError: the server belongs to a parent process.

        """
        self._check_owner()
        self._end(signal.SIGKILL)

    def restart(self) -> Self:
        """
        Stop the server if it is running, and start it with the same port and data.

        Returns:
            This object.

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
            ServerUnavailableError: the server is not running.

        """
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        """
        Resume a paused server.

        Raises:
            ServerUnavailableError: the server is not running.

        """
        self._signal(signal.SIGCONT)

    def close(self) -> None:
        """
        Stop the server and remove its files, except for a given ``store_dir``.

        A later `start()` starts an empty server, on the same port if ``port`` was given. Idempotent.
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

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        where = self.url if self._port else "no port yet"
        return f"<NatsServer {self.name or 'unnamed'} {where}>"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a NatsServer cannot be pickled: pass its url")

    # --- internals ----------------------------------------------------------------------------------

    def _command(self, runtime: Runtime) -> list[str]:
        # Flags override the file. The file contains only the user's text, so that the line numbers in the
        # server's error messages are correct.
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
        deadline = time.monotonic() + self._start_timeout
        while True:
            # In this order, so that the last output of a server that ended is read.
            ended = runtime.pid is None
            with runtime.log_path.open("rb") as file:
                file.seek(logged)
                text = file.read()
            if ended:
                reason = f"did not start (exit status {process.returncode})"
                raise errors.ServerUnavailableError(_with_tail(reason, text))
            if _READY in text:
                return
            if time.monotonic() > deadline:
                runtime.end(signal.SIGKILL, STOP_TIMEOUT_S)
                reason = f"was not ready within {self._start_timeout:g} s"
                raise errors.ServerUnavailableError(_with_tail(reason, text))
            time.sleep(_POLL_INTERVAL_S)

    def _end(self, number: int) -> None:
        runtime = self._runtime
        if runtime is None or not runtime.ours:
            return
        with self._lock:
            runtime.end(number, STOP_TIMEOUT_S)

    def _signal(self, number: int) -> None:
        self._check_owner()
        with self._lock:
            if self._runtime is None or not self._runtime.signal(number):
                raise errors.ServerUnavailableError("nats-server is not running")

    def _need_runtime(self) -> Runtime:
        if self._runtime is None:
            raise errors.ServerUnavailableError("nats-server was not started")
        return self._runtime

    def _check_owner(self) -> None:
        if self._runtime is not None and not self._runtime.ours:
            raise errors.ServerUnavailableError("nats-server was started by the parent process")

    def _after_fork_in_child(self) -> None:
        if self._runtime is not None:
            self._runtime.abandon()


def _with_tail(reason: str, log: bytes) -> str:
    lines = log.decode(errors="replace").strip().splitlines()[-_TAIL_LINES:]
    if not lines:
        return f"nats-server {reason}, and its log is empty"
    return "\n".join([f"nats-server {reason}; end of its log:", *lines])


_servers: weakref.WeakSet[NatsServer] = weakref.WeakSet()


def _release_in_child() -> None:
    for server in list(_servers):
        server._after_fork_in_child()  # noqa: SLF001 - the hook is part of the class


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_release_in_child)


class NatsCluster:
    """
    A cluster of nats-servers on 127.0.0.1, with clustered JetStream.

    As a context manager it starts on entry, and on exit it stops and removes its files. `servers` are
    the nodes. They can be stopped, killed, paused and restarted one by one; `wait_ready()` waits until the
    cluster is ready again. Threads, forks and pickling: as for `NatsServer`.
    """

    def __init__(
        self,
        size: int = 3,
        *,
        name: str = "cluster",
        config: str = "",
        binary: str | os.PathLike[str] | None = None,
        start_timeout: float = 30.0,
    ) -> None:
        """
        Choose the ports and create the nodes, without starting them.

        Args:
            size: number of servers, at least 2; a cluster of 3 survives the loss of one.
            name: the cluster's name; the servers are named ``<name>-1`` and so on.
            config: configuration for every server, without ``cluster`` and ``http``.
            binary: as for `NatsServer`.
            start_timeout: how long the cluster may take to become ready, in seconds.

        Raises:
            InvalidOptionError: ``size`` is below 2, or ``start_timeout`` is not above 0.
            ServerUnavailableError: ``binary`` is not executable, or no nats-server was found.

        """
        if size < 2:
            raise errors.InvalidOptionError("size", size, "must be at least 2")
        self._start_timeout = start_timeout
        reserved = [reserve_port() for _ in range(2 * size)]
        holders = [holder for _, holder in reserved if holder is not None]
        self._release_ports = weakref.finalize(self, _close_all, holders)
        route_ports = [port for port, _ in reserved[:size]]
        self._monitor_ports = [port for port, _ in reserved[size:]]
        routes = ", ".join(f'"nats://{HOST}:{port}"' for port in route_ports)
        self.servers: tuple[NatsServer, ...] = tuple(
            NatsServer(
                name=f"{name}-{number}",
                config=(
                    f'{config}\nhttp: "{HOST}:{monitor_port}"\n'
                    f'cluster {{name: "{name}", listen: "{HOST}:{route_port}", '
                    f"routes: [{routes}]}}\n"
                ),
                binary=binary,
                start_timeout=start_timeout,
            )
            for number, (route_port, monitor_port) in enumerate(
                zip(route_ports, self._monitor_ports, strict=True), 1
            )
        )

    @property
    def urls(self) -> list[str]:
        """The client URLs of all servers, including stopped ones."""
        return [server.url for server in self.servers]

    def start(self) -> Self:
        """
        Start every server that is not running, and wait until the cluster is ready.

        Returns:
            This object.

        Raises:
            ServerUnavailableError: a server did not start, or the cluster was not ready within
                ``start_timeout``.

        """
        for server in self.servers:
            server.start()
        self.wait_ready(self._start_timeout)
        return self

    def wait_ready(self, timeout: float = 30.0) -> None:
        """
        Wait until the running servers are up to date and follow one meta leader, which is running.

        This polls ``/healthz`` and ``/jsz`` of each monitoring port. More than half of the servers must
        be running. It takes the servers some seconds to notice that their leader is gone.

        Args:
            timeout: in seconds.

        Raises:
            ServerUnavailableError: the cluster was not ready in time; the message has the reason.

        """
        deadline = time.monotonic() + timeout
        while reason := self._unready_reason():
            if time.monotonic() > deadline:
                raise errors.ServerUnavailableError(f"not ready within {timeout:g} s: {reason}")
            time.sleep(_CLUSTER_POLL_INTERVAL_S)

    def leader(self) -> NatsServer | None:
        """
        Return the server that is JetStream's meta leader.

        Returns:
            The leader that all running servers follow; ``None`` while they disagree, or if it is not
            running.

        """
        running = {server.name: port for server, port in self._running()}
        leaders = {_meta_leader(port) for port in running.values()}
        name = leaders.pop() if len(leaders) == 1 else None
        return next((one for one in self.servers if one.name == name and name in running), None)

    def stop(self) -> None:
        """Stop every server; the data and ports are kept for `start()`."""
        for server in self.servers:
            server.stop()

    def close(self) -> None:
        """Stop every server and remove its files; the cluster cannot be started again."""
        for server in self.servers:
            server.close()
        self._release_ports()

    def _running(self) -> list[tuple[NatsServer, int]]:
        pairs = zip(self.servers, self._monitor_ports, strict=True)
        return [(server, port) for server, port in pairs if server.is_running]

    def _unready_reason(self) -> str:
        """Return why the cluster is not ready, or an empty string if it is."""
        running = self._running()
        if not running:
            return "no server is running"
        for server, port in running:
            health = _http_get(port, "/healthz")
            if not health.startswith("HTTP/1.0 200"):
                body = health.rpartition("\n")[2]
                return f"/healthz of {server.name}: {body}"
        return "" if self.leader() is not None else "there is no meta leader"

    def __enter__(self) -> Self:
        try:
            return self.start()
        except BaseException:
            self.close()
            raise

    def __exit__(self, *_: object) -> None:
        self.close()

    def __reduce__(self) -> NoReturn:
        raise TypeError("a NatsCluster cannot be pickled: pass its urls")


def _close_all(holders: list[socket.socket]) -> None:
    for holder in holders:
        holder.close()


def _http_get(port: int, path: str) -> str:
    """Return the HTTP response of a server's monitoring port, or the error as text."""
    try:
        with socket.create_connection((HOST, port), 1) as connection:
            connection.sendall(f"GET {path} HTTP/1.0\r\n\r\n".encode())
            with connection.makefile("rb") as response:
                return response.read().decode()
    except OSError as error:
        return str(error)


def _meta_leader(port: int) -> str | None:
    # The only "leader" in the response belongs to its "meta_cluster".
    match = re.search(r'"leader":\s*"([^"]+)"', _http_get(port, "/jsz"))
    return match[1] if match else None
