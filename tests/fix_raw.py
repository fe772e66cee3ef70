"""A minimal NATS client that does not use the package: subscribe, publish and respond."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pytest
from rawnats import RawClient
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


class RawPeer(RawClient):
    """A connection that subscribes and publishes."""

    def __init__(self, port: int) -> None:
        super().__init__(port, 10.0)
        self._sids = 1  # that of the inbox for requests

    def hear(self, subject: str) -> Self:
        """Subscribe to a subject."""
        self._sids += 1
        self.send(b"SUB %s %d\r\nPING\r\n" % (subject.encode(), self._sids))
        self.expect(b"PONG\r\n")
        return self

    def next(self) -> Heard:
        """Return the next message; a timeout is an error."""
        while True:
            fields = self._input.readline().decode().split()
            assert fields, "the server closed the connection"
            if fields[0] == "PING":
                self.send(b"PONG\r\n")
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
            self.send(b"PUB %s %d\r\n%s\r\n" % (subject.encode(), len(data), data))
            return
        block = ("NATS/1.0\r\n" + "".join(f"{line}\r\n" for line in headers) + "\r\n").encode()
        sizes = (subject.encode(), len(block), len(block) + len(data))
        self.send(b"HPUB %s %d %d\r\n" % sizes + block + data + b"\r\n")

    def flush(self) -> None:
        """Wait until the server has processed everything sent."""
        self.send(b"PING\r\n")
        while self._input.readline() != b"PONG\r\n":
            pass


@pytest.fixture
def peer(nats_server: NatsServer) -> Iterator[RawPeer]:
    """Another client of the shared server."""
    with RawPeer(nats_server.port) as someone:
        yield someone
