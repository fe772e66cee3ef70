"""Scripted servers: the test decides every byte that they send and read."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
from collections.abc import Callable

from fix_threads import SCALE
from typing_extensions import Self

__all__ = ["Listener", "ScriptedPeer", "black_hole"]


class ScriptedPeer:
    """
    The server's end of one connection, after the handshake.

    It reads only when the test reads, so the client's socket can be made to fill up.
    """

    def __init__(self, accepted: socket.socket) -> None:
        self._socket = accepted
        # Like a real server: otherwise a second short message waits for the ack of the first, for 40 ms.
        with contextlib.suppress(OSError):  # the client has closed it
            accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket.settimeout(10 * SCALE)
        self._input = accepted.makefile("rb")

    def handshake(self, **info: object) -> dict[str, object]:
        """Do the server's part of the handshake, and return the fields of CONNECT."""
        fields = {"server_id": "fake", "headers": True, "max_payload": 1048576, **info}
        self.send(b"INFO %s\r\n" % json.dumps(fields).encode())
        connect = self.line()
        assert connect.startswith(b"CONNECT "), connect
        assert self.line() == b"PING\r\n"
        self.send(b"PONG\r\n")
        sent: dict[str, object] = json.loads(connect[8:])
        return sent

    def send(self, data: bytes) -> None:
        self._socket.sendall(data)

    def line(self) -> bytes:
        """Read one line, ``b""`` at the end."""
        return self._input.readline()

    def read(self, count: int) -> bytes:
        """Read ``count`` bytes, fewer at the end."""
        return self._input.read(count)

    def rest(self) -> bytes:
        """Read everything until the client closes."""
        try:
            return self._input.read()
        except ConnectionError:
            return b""

    def close(self) -> None:
        # Not close() alone: the file made of the socket holds it open.
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        with contextlib.suppress(RuntimeError):  # another greenlet is reading, and sees the end
            self._input.close()
        self._socket.close()


class Listener:
    """
    A listening port on 127.0.0.1 with a scripted server.

    Args:
        play: called with a `ScriptedPeer` for each client, on its own thread; ``None``: only the
            handshake is done, and the test gets the peer with `take()`.
        port: the port; 0: any.

    """

    def __init__(self, play: Callable[[ScriptedPeer], object] | None = None, port: int = 0) -> None:
        self._play = play
        self._listening = socket.create_server(("127.0.0.1", port))
        self.port: int = self._listening.getsockname()[1]
        self.url = f"nats://127.0.0.1:{self.port}"
        self._peers: list[ScriptedPeer] = []
        self._changed = threading.Condition()
        self._threads: list[threading.Thread] = []
        self._acceptor = threading.Thread(target=self._accept, daemon=True)
        self._acceptor.start()

    def _accept(self) -> None:
        while True:
            try:
                accepted, _ = self._listening.accept()
            except OSError:
                return
            thread = threading.Thread(
                target=self._serve, args=(ScriptedPeer(accepted),), daemon=True
            )
            self._threads.append(thread)
            thread.start()

    def _serve(self, peer: ScriptedPeer) -> None:
        with self._changed:
            self._peers.append(peer)
        try:
            (self._play or ScriptedPeer.handshake)(peer)
        except (OSError, ValueError, AssertionError):
            return  # the test or the client has ended; the test makes its own assertions
        with self._changed:
            self._changed.notify_all()

    def take(self, number: int = 0) -> ScriptedPeer:
        """Wait for a client, the first one by default, and return its peer."""
        with self._changed:
            assert self._changed.wait_for(lambda: len(self._peers) > number, 5 * SCALE)
            return self._peers[number]

    def refuse(self) -> None:
        """Stop accepting clients."""
        with contextlib.suppress(OSError):
            self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        self._acceptor.join(5 * SCALE)

    @property
    def clients(self) -> int:
        """Number of clients accepted so far."""
        return len(self._peers)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.refuse()
        for peer in self._peers:
            peer.close()
        for thread in self._threads:
            thread.join(5 * SCALE)
        for peer in self._peers:
            peer.close()  # under gevent the first call leaves open what another greenlet reads


def black_hole() -> socket.socket:
    """Return a listening socket whose clients are connected by the system and never served."""
    return socket.create_server(("127.0.0.1", 0))
