"""TLS and WebSocket without sockets: certificates, and servers that map input bytes to output bytes."""

from __future__ import annotations

import contextlib
import ssl
from functools import cache
from typing import Protocol

import trustme
from websockets.server import ServerProtocol

from jetstream_sync.address import ServerAddress
from jetstream_sync.net.clock import Deadline
from jetstream_sync.net.layer import Layer
from jetstream_sync.net.tls import TLSStream
from jetstream_sync.net.websocket import WebSocketStream

__all__ = [
    "KINDS",
    "TLSPeer",
    "WebSocketPeer",
    "Wire",
    "authority",
    "client_context",
    "opened",
    "server_context",
]

KINDS = ("TLS 1.2", "TLS 1.3", "WebSocket")


@cache
def authority() -> trustme.CA:
    return trustme.CA()


def client_context() -> ssl.SSLContext:
    """Return a context that trusts our authority."""
    context = ssl.create_default_context()
    authority().configure_trust(context)
    return context


@cache
def server_context() -> ssl.SSLContext:
    """Return the context of a server on localhost and 127.0.0.1."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority().issue_cert("localhost", "127.0.0.1").configure_cert(context)
    return context


class Peer(Protocol):
    """A server; `heard` has the received bytes in plaintext."""

    heard: bytearray

    def react(self, data: bytes) -> bytes:
        """Process received bytes, and return the bytes to send."""
        ...

    def say(self, data: bytes) -> bytes:
        """Return the encoding of these bytes on the wire."""
        ...

    def say_goodbye(self) -> bytes:
        """Return the bytes that it sends to close."""
        ...


class TLSPeer:
    """A server that speaks TLS."""

    def __init__(self, context: ssl.SSLContext | None = None) -> None:
        self.heard = bytearray()
        self.ended = False
        self._in, self._out = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.ssl = (context or server_context()).wrap_bio(self._in, self._out, server_side=True)
        self._through = False

    def react(self, data: bytes) -> bytes:
        self._in.write(data)
        try:
            if not self._through:
                self.ssl.do_handshake()
                self._through = True
            while piece := self.ssl.read():
                self.heard += piece
            self.ended = True
        except ssl.SSLWantReadError:
            pass
        return self._out.read()

    def say(self, data: bytes) -> bytes:
        self.ssl.write(data)
        return self._out.read()

    def say_goodbye(self) -> bytes:
        with contextlib.suppress(ssl.SSLError):
            self.ssl.unwrap()
        return self._out.read()


class WebSocketPeer:
    """A server that speaks WebSocket."""

    def __init__(self) -> None:
        self.heard = bytearray()
        self.ended = False
        self.protocol = ServerProtocol(max_size=None)

    def react(self, data: bytes) -> bytes:
        self.protocol.receive_data(data)
        for event in self.protocol.events_received():
            if hasattr(event, "path"):
                self.protocol.send_response(self.protocol.accept(event))
            elif event.opcode in {0, 2}:
                self.heard += event.data
            elif event.opcode == 8:
                self.ended = True
        return b"".join(self.protocol.data_to_send())

    def say(self, data: bytes) -> bytes:
        self.protocol.send_binary(data)
        return b"".join(self.protocol.data_to_send())

    def say_goodbye(self) -> bytes:
        self.protocol.send_close(1000)
        return b"".join(self.protocol.data_to_send())


class Wire:
    """The lower stream, which is connected to a peer without sockets."""

    def __init__(self, peer: Peer) -> None:
        self.peer = "wire"
        self.server = peer
        #: Bytes that can be sent now; None: any number.
        self.room: int | None = None
        #: Maximum number of bytes per read.
        self.piece = 1 << 30
        self.sends = 0
        self.timeout: float | None = None
        self.ended = False
        self._out = bytearray()
        self._in = bytearray()

    def deliver(self) -> None:
        """Deliver the sent bytes to the peer."""
        data, self._out = bytes(self._out), bytearray()
        self._in += self.server.react(data)

    def bring(self, data: bytes) -> None:
        """Make these bytes readable."""
        self._in += data

    def receive(self) -> bytes:
        self.deliver()
        data = bytes(self._in[: self.piece])
        del self._in[: self.piece]
        if not data and not self.ended:
            raise TimeoutError("nothing came")
        return data

    def send(self, data: memoryview, sent: list[int]) -> None:
        if self.ended:
            raise BrokenPipeError("shut down")
        count = len(data) if self.room is None else min(self.room, len(data))
        if not count:
            raise BlockingIOError
        self.sends += 1
        if self.room is not None:
            self.room -= count
        # In one step, like a real stream.
        self._out += data[:count]
        sent.append(count)

    def wait_writable(self, timeout: float) -> bool:
        if self.room is not None:
            self.room += 100
        return True

    def set_timeout(self, timeout: float | None) -> None:
        self.timeout = timeout

    def shutdown(self) -> None:
        self.ended = True

    def close(self) -> None:
        self.ended = True


def opened(kind: str) -> tuple[Layer, Wire]:
    """Return a layer after its handshake, and the wire below it."""
    peer: Peer
    layer: TLSStream | WebSocketStream
    if kind == "WebSocket":
        peer = WebSocketPeer()
        wire = Wire(peer)
        address = ServerAddress("localhost", 80, "ws")
        layer = WebSocketStream(wire, address, None)
    else:
        context = client_context()
        if kind == "TLS 1.2":
            context.maximum_version = ssl.TLSVersion.TLSv1_2
        wire = Wire(TLSPeer())
        layer = TLSStream(wire, context, "localhost")
    layer.handshake(Deadline(10))
    wire.deliver()
    return layer, wire
