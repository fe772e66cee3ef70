"""A minimal NATS client that does not use the package: subscribe, publish and respond."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
from typing_extensions import Self

from jetstream_sync.server import NatsServer

__all__ = ["Heard", "RawPeer", "peer"]


@dataclass(frozen=True)
class Heard:
    """A message as received."""

    subject: str
    reply: str
    headers: tuple[str, ...]
    data: bytes


class RawPeer:
    """A connection that subscribes and publishes."""

    def __init__(self, port: int, timeout: float = 10.0) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), timeout)
        self._input = self._socket.makefile("rb")
        self.info = json.loads(self._input.readline()[5:])
        self._send(b'CONNECT {"verbose":false,"headers":true,"no_responders":true}\r\n')
        self._sids = 0

    def _send(self, data: bytes) -> None:
        self._socket.sendall(data)

    def hear(self, subject: str) -> Self:
        """Subscribe to a subject."""
        self._sids += 1
        self._send(b"SUB %s %d\r\nPING\r\n" % (subject.encode(), self._sids))
        while (line := self._input.readline()) != b"PONG\r\n":
            assert line.startswith((b"INFO", b"PING")), line
        return self

    def next(self) -> Heard:
        """Return the next message; a timeout is an error."""
        while True:
            fields = self._input.readline().decode().split()
            assert fields, "the server closed the connection"
            if fields[0] == "PING":
                self._send(b"PONG\r\n")
            if fields[0] not in {"MSG", "HMSG"}:
                continue
            data = self._input.read(int(fields[-1]) + 2)[:-2]
            numbers = 2 if fields[0] == "HMSG" else 1
            header = data[: int(fields[-2])] if numbers == 2 else b""
            names = fields[3 : len(fields) - numbers]
            lines = tuple(line for line in header.decode().split("\r\n")[1:] if line)
            return Heard(fields[1], names[0] if names else "", lines, data[len(header) :])

    def publish(self, subject: str, data: bytes = b"", headers: tuple[str, ...] = ()) -> None:
        """Publish a message."""
        if not headers:
            self._send(b"PUB %s %d\r\n%s\r\n" % (subject.encode(), len(data), data))
            return
        block = ("NATS/1.0\r\n" + "".join(f"{line}\r\n" for line in headers) + "\r\n").encode()
        sizes = (subject.encode(), len(block), len(block) + len(data))
        self._send(b"HPUB %s %d %d\r\n" % sizes + block + data + b"\r\n")

    def flush(self) -> None:
        """Wait until the server has processed everything sent."""
        self._send(b"PING\r\n")
        while self._input.readline() != b"PONG\r\n":
            pass

    def close(self) -> None:
        self._input.close()
        self._socket.close()


@pytest.fixture
def peer(nats_server: NatsServer) -> Iterator[RawPeer]:
    """Another client of the shared server."""
    someone = RawPeer(nats_server.port)
    yield someone
    someone.close()
