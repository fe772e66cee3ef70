"""Tests of the fault proxy itself."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Iterator

import pytest
from fix_faults import BOTH, FaultProxy, Toward
from fix_threads import SCALE, wait_until


class Peer:
    """One end of a connection, which records what it receives and how it ended."""

    def __init__(self, link: socket.socket) -> None:
        self.link = link
        self.got = b""
        self.times: list[float] = []
        self.end = ""
        self.thread = threading.Thread(target=self._read, daemon=True)
        self.thread.start()

    def _read(self) -> None:
        try:
            while data := self.link.recv(65536):
                self.got += data
                self.times.append(time.monotonic())
            self.end = "FIN"
        except ConnectionResetError:
            self.end = "RST"
        except OSError:
            self.end = "closed"

    def close(self) -> None:
        with contextlib.suppress(OSError):  # it may be disconnected already
            self.link.shutdown(socket.SHUT_RDWR)
        self.thread.join(5 * SCALE)
        self.link.close()


class Wire:
    """A client and a server with the proxy in between."""

    def __init__(self) -> None:
        self.listening = socket.create_server(("127.0.0.1", 0))
        self.proxy = FaultProxy(self.listening.getsockname()[1])
        self.peers: list[Peer] = []
        self.client, self.server = self.connect()

    def connect(self) -> tuple[Peer, Peer]:
        client = Peer(socket.create_connection(("127.0.0.1", self.proxy.port)))
        server = Peer(self.listening.accept()[0])
        self.peers += [client, server]
        return client, server

    def close(self) -> None:
        self.proxy.close()
        for peer in self.peers:
            peer.close()
        self.listening.close()


@pytest.fixture
def wire() -> Iterator[Wire]:
    wire = Wire()
    yield wire
    wire.close()


@pytest.mark.parametrize(("reset", "end"), [(False, "FIN"), (True, "RST")])
@pytest.mark.parametrize("toward", [BOTH, (Toward.CLIENT,), (Toward.SERVER,)])
def test_a_cut_ends_the_sides_that_it_names(
    wire: Wire, toward: tuple[Toward, ...], reset: bool, end: str
) -> None:
    """A cut ends both sides, or one; the other one then receives nothing until the repair."""
    sides = {Toward.CLIENT: wire.client, Toward.SERVER: wire.server}
    assert wire.proxy.cut(toward, reset=reset) == 1
    for each, peer in sides.items():
        if each in toward:
            wait_until(lambda peer=peer: peer.end == end)
    for each, peer in sides.items():
        if each not in toward:
            peer.link.sendall(b"anybody there?")
            assert peer.end == ""
    wire.proxy.heal()
    wait_until(lambda: all(peer.end for peer in sides.values()))


def test_a_cut_after_some_bytes_is_exact(wire: Wire) -> None:
    """A cut after n bytes forwards exactly n, counted from a given text."""
    wire.proxy.cut_after(5, Toward.CLIENT, after=b"MSG ")
    wire.server.link.sendall(b"PING INFO M")
    wait_until(lambda: wire.client.got == b"PING INFO M")
    wire.server.link.sendall(b"SG 123456789")
    wait_until(lambda: wire.client.end == "FIN")
    assert wire.client.got == b"PING INFO MSG 12345"
    client, server = wire.connect()
    server.link.sendall(b"MSG 123456789")
    wait_until(lambda: client.got == b"MSG 123456789")


def test_it_holds_bytes_back_and_lets_them_go_on(wire: Wire) -> None:
    """A black hole keeps the bytes, and forwards them after the repair."""
    wire.proxy.hold(Toward.SERVER)
    wire.client.link.sendall(b"up")
    wire.server.link.sendall(b"down")
    wait_until(lambda: wire.client.got == b"down")
    assert wire.server.got == b""
    client, server = wire.connect()
    client.link.sendall(b"new")
    assert server.got == b""
    wire.proxy.heal()
    wait_until(lambda: (wire.server.got, server.got) == (b"up", b"new"))
