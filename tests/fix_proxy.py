"""Peers that a test plays by hand: a server that says what the test says, and takes what it wants."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
from collections.abc import Callable
from types import TracebackType

from fix_threads import SCALE
from typing_extensions import Self

__all__ = ["Listener", "ScriptedPeer", "black_hole"]


class ScriptedPeer:
    """
    The server's end of one connection, after the handshake.

    It reads only when the test tells it to, so it can be deaf, and it says whatever the test says.
    """

    def __init__(self, accepted: socket.socket) -> None:
        self._socket = accepted
        self._socket.settimeout(10 * SCALE)
        self._input = accepted.makefile("rb")

    def shake_hands(self, **info: object) -> dict[str, object]:
        """Take a client in, and return what it said in CONNECT."""
        fields = {"server_id": "puppet", "headers": True, "max_payload": 1048576, **info}
        self.say(b"INFO %s\r\n" % json.dumps(fields).encode())
        connect = self.line()
        assert connect.startswith(b"CONNECT "), connect
        assert self.line() == b"PING\r\n"
        self.say(b"PONG\r\n")
        said: dict[str, object] = json.loads(connect[8:])
        return said

    def say(self, data: bytes) -> None:
        self._socket.sendall(data)

    def say_until_full(self, data: bytes) -> int:
        """Say the same again and again until the client's end takes no more; return how often."""
        self._socket.settimeout(0.5)
        times = 0
        with contextlib.suppress(TimeoutError):
            while times < 100_000:
                self._socket.sendall(data)
                times += 1
        self._socket.settimeout(10 * SCALE)
        return times

    def line(self) -> bytes:
        """Read one line, ``b""`` at the end."""
        return self._input.readline()

    def read(self, count: int) -> bytes:
        """Read so many bytes, fewer at the end."""
        return self._input.read(count)

    def rest(self) -> bytes:
        """Read all that comes until the client hangs up."""
        try:
            return self._input.read()
        except ConnectionError:
            return b""

    def hang_up(self) -> None:
        # Not close() alone: the file made of the socket holds it open.
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        with contextlib.suppress(RuntimeError):  # another greenlet is reading, and sees the end
            self._input.close()
        self._socket.close()


class Listener:
    """
    A port on 127.0.0.1 where a test plays the server.

    Args:
        play: called with a `ScriptedPeer` for each client, on a thread of its own; ``None``: it shakes
            hands and waits for the test to `take()` it.
        port: the port; 0: any.

    """

    def __init__(self, play: Callable[[ScriptedPeer], object] | None = None, port: int = 0) -> None:
        self._play = play
        self._listening = socket.create_server(("127.0.0.1", port))
        self.port: int = self._listening.getsockname()[1]
        self.url = f"nats://127.0.0.1:{self.port}"
        self._puppets: list[ScriptedPeer] = []
        self._came = threading.Condition()
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

    def _serve(self, puppet: ScriptedPeer) -> None:
        with self._came:
            self._puppets.append(puppet)
        try:
            (self._play or ScriptedPeer.shake_hands)(puppet)
        except (OSError, ValueError, AssertionError):
            return  # the test ended, or the client did; the test knows what it wanted
        with self._came:
            self._came.notify_all()

    def take(self, number: int = 0) -> ScriptedPeer:
        """Return the puppet of a client, the first one by default, waiting for it."""
        with self._came:
            assert self._came.wait_for(lambda: len(self._puppets) > number, 5 * SCALE)
            return self._puppets[number]

    def refuse(self) -> None:
        """Take no more clients."""
        with contextlib.suppress(OSError):
            self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        self._acceptor.join(5 * SCALE)

    @property
    def clients(self) -> int:
        """How many came so far."""
        return len(self._puppets)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.refuse()
        for puppet in self._puppets:
            puppet.hang_up()
        for thread in self._threads:
            thread.join(5 * SCALE)


def black_hole() -> socket.socket:
    """Return a listening socket whose clients are connected by the system and never served."""
    return socket.create_server(("127.0.0.1", 0))
