"""Run a cluster of nats-servers."""

from __future__ import annotations

import os
import re
import socket
import time
import weakref
from typing import Final, NoReturn

from typing_extensions import Self

from .. import errors
from .runtime import HOST, reserve_port
from .single import NatsServer

_POLL_INTERVAL_S: Final = 0.01


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
            time.sleep(_POLL_INTERVAL_S)

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
