"""Some nats-servers that form one cluster."""

from __future__ import annotations

import os
import re
import socket
import time
import weakref
from types import TracebackType
from typing import Final, NoReturn

from typing_extensions import Self

from ..errors import InvalidOptionError, ServerUnavailableError
from .runtime import HOST, reserve_port
from .single import NatsServer

__all__ = ["NatsCluster"]

_LOOK_EVERY: Final = 0.01


class NatsCluster:
    """
    Some nats-servers on 127.0.0.1 that form one cluster, with JetStream clustered.

    As a context manager it starts on entry and leaves nothing behind on exit. `servers` are the
    nodes: stop, kill, pause or restart each as you like, and then call `wait_ready()`. What
    `NatsServer` says about threads, forks and pickle holds here, too.
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
        Choose the ports and make the nodes; nothing starts yet.

        Args:
            size: how many servers; 3 stand the loss of one.
            name: the cluster's name; the servers are called ``<name>-1`` and so on.
            config: configuration text for every server, without ``cluster`` and ``http``.
            binary: as in `NatsServer`.
            start_timeout: seconds that the cluster may take to be ready.

        Raises:
            InvalidOptionError: ``size`` is below 2, or ``start_timeout`` is not above 0.
            ServerUnavailableError: there is no such program.

        """
        if size < 2:
            raise InvalidOptionError("size", size, "a cluster has at least 2 servers")
        self._start_timeout = start_timeout
        reserved = [reserve_port() for _ in range(2 * size)]
        holders = [holder for _, holder in reserved if holder is not None]
        self._let_ports_go = weakref.finalize(self, _close_all, holders)
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
        """The addresses of all servers for clients, also of those that are stopped."""
        return [server.url for server in self.servers]

    def start(self) -> Self:
        """
        Start every server that is not running, and wait as `wait_ready()` does.

        Returns:
            The cluster itself.

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
        Wait until the running servers follow one meta leader, which runs, and are up to date.

        Each is asked at its monitoring port, ``/healthz`` and ``/jsz``. More than half of the
        servers must run. The servers notice only after some seconds that their leader is gone.

        Args:
            timeout: seconds to wait.

        Raises:
            ServerUnavailableError: the time ran out; the message names the server and repeats
                what it said.

        """
        give_up = time.monotonic() + timeout
        while complaint := self._complaint():
            if time.monotonic() > give_up:
                raise ServerUnavailableError(f"not ready within {timeout:g} s: {complaint}")
            time.sleep(_LOOK_EVERY)

    def leader(self) -> NatsServer | None:
        """
        Find the server that is JetStream's meta leader.

        Returns:
            The leader that all running servers follow; None while they do not agree, or when it
            does not run.

        """
        running = {server.name: port for server, port in self._running()}
        leaders = {_meta_leader(port) for port in running.values()}
        name = leaders.pop() if len(leaders) == 1 else None
        return next((one for one in self.servers if one.name == name and name in running), None)

    def stop(self) -> None:
        """Stop every server; data and ports are kept for `start()`."""
        for server in self.servers:
            server.stop()

    def close(self) -> None:
        """Stop every server and remove what they have written; the cluster's life is over."""
        for server in self.servers:
            server.close()
        self._let_ports_go()

    def _running(self) -> list[tuple[NatsServer, int]]:
        pairs = zip(self.servers, self._monitor_ports, strict=True)
        return [(server, port) for server, port in pairs if server.is_running]

    def _complaint(self) -> str:
        """Say why the cluster is not ready; empty when it is."""
        running = self._running()
        if not running:
            return "no server is running"
        for server, port in running:
            health = _ask(port, "/healthz")
            if not health.startswith("HTTP/1.0 200"):
                body = health.rpartition("\n")[2]
                return f"{server.name} says {body}"
        return "" if self.leader() is not None else "there is no meta leader"

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

    def __reduce__(self) -> NoReturn:
        raise TypeError("a NatsCluster cannot be pickled: pass its urls")


def _close_all(holders: list[socket.socket]) -> None:
    for holder in holders:
        holder.close()


def _ask(port: int, path: str) -> str:
    """Ask a server's monitoring port; the HTTP answer, or what went wrong."""
    try:
        with socket.create_connection((HOST, port), 1) as link:
            link.sendall(f"GET {path} HTTP/1.0\r\n\r\n".encode())
            with link.makefile("rb") as answer:
                return answer.read().decode()
    except OSError as error:
        return str(error)


def _meta_leader(port: int) -> str | None:
    # The one "leader" in the answer stands in its "meta_cluster".
    match = re.search(r'"leader":\s*"([^"]+)"', _ask(port, "/jsz"))
    return match[1] if match else None
