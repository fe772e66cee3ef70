"""
A small HTTP server for health checks and metrics: one thread, GET only, one request per connection.

The server of the standard library serves one connection at a time, or starts a thread for each: a
client that sends nothing would delay a health check, or many of them would fill the process with
threads. Here, sockets do not block, and each connection has a deadline.
"""

from __future__ import annotations

import selectors
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from http import HTTPStatus
from typing import Final
from urllib.parse import urlsplit

from .. import InvalidOptionError

#: Seconds after which a connection is closed, whether it is answered or not.
_DEADLINE_S: Final = 5.0
#: Maximum number of open connections; further ones wait in the backlog.
_MAX_CLIENTS: Final = 64
#: Maximum size of a request in bytes.
_MAX_REQUEST: Final = 8192
_POLL_S: Final = 1.0


@dataclass(frozen=True)
class Response:
    """What is answered to a request."""

    status: int
    body: str
    content_type: str = "text/plain; charset=utf-8"

    def encode(self, *, head_only: bool = False) -> bytes:
        """Return the bytes of the response."""
        body = self.body.encode()
        head = (
            f"HTTP/1.1 {self.status} {HTTPStatus(self.status).phrase}\r\n"
            f"Content-Type: {self.content_type}\r\n"
            f"Content-Length: {len(body)}\r\n"
            "Cache-Control: no-store\r\n"
            "Connection: close\r\n\r\n"
        )
        return head.encode() + (b"" if head_only else body)


def parse_address(address: str) -> tuple[str, int]:
    """
    Return host and port of ``HOST:PORT``; without a host, that of the local machine.

    Raises:
        InvalidOptionError: it has another form.

    """
    host, _, port = address.rpartition(":")
    if not port.isascii() or not port.isdigit() or int(port) > 65535:
        raise InvalidOptionError("http", address, "must be HOST:PORT, as in '127.0.0.1:9400'")
    return host.removeprefix("[").removesuffix("]") or "127.0.0.1", int(port)


class _Client:
    """One connection."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.deadline = time.monotonic() + _DEADLINE_S
        self.request = bytearray()
        self.response = memoryview(b"")


class HttpServer:
    """
    Serves responses on an address.

    Args:
        address: ``HOST:PORT``; port 0: a free one.
        respond: returns the response for a path, and whether its query has ``verbose``. It must not
            block.

    Raises:
        InvalidOptionError: the address has another form.
        OSError: the address cannot be used.

    Threads:
        One thread calls `run`; any other one may call `close`.

    """

    def __init__(self, address: str, respond: Callable[[str, bool], Response]) -> None:
        host, port = parse_address(address)
        self._respond = respond
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._listener = socket.create_server((host, port), family=family, backlog=_MAX_CLIENTS)
        self._listener.setblocking(False)
        #: The port that is used.
        self.port: int = self._listener.getsockname()[1]
        #: The URL of the server.
        self.url: str = f"http://{f'[{host}]' if ':' in host else host}:{self.port}"
        self._wake, self._waker = socket.socketpair()
        self._clients: set[_Client] = set()
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._wake, selectors.EVENT_READ)
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._accepting = True

    def close(self) -> None:
        """End `run`; later calls do nothing."""
        with suppress(OSError):
            self._waker.send(b"x")

    def run(self) -> None:
        """Serve until `close`; all sockets are closed on return."""
        try:
            while self._serve_once():
                pass
        finally:
            for client in tuple(self._clients):
                self._drop(client)
            self._selector.close()
            for sock in (self._listener, self._wake, self._waker):
                sock.close()

    def _serve_once(self) -> bool:
        """Handle what is ready; return whether to go on."""
        for key, _ in self._selector.select(_POLL_S):
            if key.fileobj is self._wake:
                return False
            if key.fileobj is self._listener:
                self._accept()
                continue
            client: _Client = key.data
            try:
                if client.response:
                    self._send(client)
                else:
                    self._receive(client)
            except BlockingIOError:
                pass
            except OSError:
                self._drop(client)
        now = time.monotonic()
        for client in [each for each in self._clients if now >= each.deadline]:
            self._drop(client)
        return True

    def _accept(self) -> None:
        try:
            sock, _ = self._listener.accept()
        except OSError:
            # Also when there are too many open files: wait until a client is gone.
            time.sleep(0.01)
            return
        sock.setblocking(False)
        client = _Client(sock)
        self._clients.add(client)
        self._selector.register(sock, selectors.EVENT_READ, client)
        self._limit_clients()

    def _limit_clients(self) -> None:
        """Accept connections only while there are few."""
        accepting = len(self._clients) < _MAX_CLIENTS
        if accepting != self._accepting:
            self._accepting = accepting
            if accepting:
                self._selector.register(self._listener, selectors.EVENT_READ)
            else:
                self._selector.unregister(self._listener)

    def _drop(self, client: _Client) -> None:
        self._clients.discard(client)
        self._selector.unregister(client.sock)
        client.sock.close()
        self._limit_clients()

    def _receive(self, client: _Client) -> None:
        data = client.sock.recv(_MAX_REQUEST)
        client.request += data
        complete = b"\r\n\r\n" in client.request or b"\n\n" in client.request
        if not data:
            self._drop(client)
        elif complete or len(client.request) > _MAX_REQUEST:
            client.response = memoryview(self._answer(bytes(client.request), complete=complete))
            self._selector.modify(client.sock, selectors.EVENT_WRITE, client)

    def _send(self, client: _Client) -> None:
        client.response = client.response[client.sock.send(client.response) :]
        if not client.response:
            with suppress(OSError):
                client.sock.shutdown(socket.SHUT_WR)
            self._drop(client)

    def _answer(self, request: bytes, *, complete: bool) -> bytes:
        if not complete:
            return Response(431, "the request is too large\n").encode()
        words = request.split(b"\n", 1)[0].decode("latin-1").split()
        if len(words) != 3 or not words[2].startswith("HTTP/1."):
            return Response(400, "not an HTTP request\n").encode()
        method, target, _ = words
        if method not in {"GET", "HEAD"}:
            return Response(405, "only GET is supported\n").encode()
        try:
            url = urlsplit(target)
        except ValueError:
            return Response(400, "the URL is invalid\n").encode()
        verbose = "verbose" in {part.partition("=")[0] for part in url.query.split("&")}
        return self._respond(url.path, verbose).encode(head_only=method == "HEAD")
