"""
A socket and nothing else: the fastest that a blocking Python program can do round trips here.

``python -m tests.bench.bare_socket`` sends a request and waits for its answer in one thread. With
``--reader``, a second thread reads the socket and wakes the caller with a lock, as a client has to that
serves several threads. There are no checks, no options and no recovery: the difference to a client is the
price of those.
"""

from __future__ import annotations

import json
import socket
import sys
import threading
from collections.abc import Callable
from platform import python_version
from typing import Any
from urllib.parse import urlsplit

from .job import BUCKET, Job, Result, serve
from .stopwatch import Stopwatch, Timing

_INBOX = b"_INBOX.bare"


class _Socket:
    """A connection for one request at a time."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self._socket = socket.create_connection((parts.hostname or "127.0.0.1", parts.port or 4222))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._rest = b""
        self.send(b'CONNECT {"verbose":false,"headers":true,"no_responders":true}\r\n')
        self.send(b"SUB " + _INBOX + b" 1\r\n")

    def send(self, data: bytes) -> None:
        self._socket.sendall(data)

    def receive(self) -> tuple[bytes, bytes]:
        """Return the control line and the payload of the next message."""
        while True:
            line, end, rest = self._rest.partition(b"\r\n")
            if not end:
                self._fill()
            elif line.startswith((b"MSG ", b"HMSG ")):
                size = int(line[line.rindex(b" ") :])
                while len(rest) < size + 2:
                    self._fill()
                    rest = self._rest[len(line) + 2 :]
                self._rest = rest[size + 2 :]
                return line, rest[:size]
            else:
                self._rest = rest
                if line == b"PING":
                    self.send(b"PONG\r\n")
                elif line.startswith(b"-ERR"):
                    raise ConnectionError(line.decode())

    def _fill(self) -> None:
        data = self._socket.recv(65536)
        if not data:
            raise ConnectionError("the server closed the connection")
        self._rest += data

    def ask(self, command: bytes) -> tuple[bytes, bytes]:
        """Send a command and return the answer to it."""
        self._socket.sendall(command)
        return self.receive()


class _SocketWithReader(_Socket):
    """The same with a second thread that reads."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self._answer = (b"", b"")
        self._arrived = threading.Lock()
        self._arrived.acquire()
        threading.Thread(target=self._read, name="nats-reader", daemon=True).start()

    def _read(self) -> None:
        while True:
            self._answer = self.receive()
            self._arrived.release()

    def ask(self, command: bytes) -> tuple[bytes, bytes]:
        """Send a command and return the answer to it."""
        self._socket.sendall(command)
        self._arrived.acquire()
        return self._answer


def _pub(subject: str, payload: bytes = b"") -> bytes:
    return b"PUB %b %b %d\r\n%b\r\n" % (subject.encode(), _INBOX, len(payload), payload)


def _asked(bare: _Socket, subject: str, payload: bytes, count: int) -> Timing:
    command = _pub(subject, payload)
    watch = Stopwatch()
    for _ in range(count):
        bare.ask(command)
    return watch.stop()


def _publish(bare: _Socket, job: Job) -> Timing:
    return _asked(bare, job.subject, b"x" * job.size, job.count)


def _request(bare: _Socket, job: Job) -> Timing:
    return _asked(bare, job.direct_subject, b"", job.count)


def _key_value(bare: _Socket, job: Job) -> Timing:
    stream = f"KV_{BUCKET}"
    config: dict[str, Any] = {
        "name": stream,
        "subjects": [f"$KV.{BUCKET}.>"],
        "storage": "memory",
        "allow_direct": True,
        "max_msgs_per_subject": 1,
    }
    bare.ask(_pub(f"$JS.API.STREAM.CREATE.{stream}", json.dumps(config).encode()))
    subject = f"$KV.{BUCKET}.key.0"
    payload = b"x" * job.size
    bare.ask(_pub(subject, payload))
    if job.row == "kv_get":
        subject, payload = f"$JS.API.DIRECT.GET.{stream}.{subject}", b""
    timing = _asked(bare, subject, payload, job.count)
    bare.ask(_pub(f"$JS.API.STREAM.DELETE.{stream}"))
    return timing


def _fetch(bare: _Socket, job: Job) -> Timing:
    pull = _pub(f"$JS.API.CONSUMER.MSG.NEXT.{job.stream}.{job.consumer}", b'{"batch":1}')
    ack = b""
    watch = Stopwatch()
    for _ in range(job.count):
        line, _ = bare.ask(ack + pull)
        ack = b"PUB %b 4\r\n+ACK\r\n" % line.split(b" ")[3]
    bare.send(ack)
    return watch.stop()


def _ack_sync(bare: _Socket, job: Job) -> Timing:
    pull = _pub(f"$JS.API.CONSUMER.MSG.NEXT.{job.stream}.{job.consumer}", b'{"batch":1}')
    replies = [bare.ask(pull)[0].split(b" ")[3].decode() for _ in range(job.count)]
    watch = Stopwatch()
    for reply in replies:
        bare.ask(_pub(reply, b"+ACK"))
    return watch.stop()


def _connected(work: Callable[[_Socket, Job], Timing]) -> Callable[[Job], Result]:
    kind = _SocketWithReader if "--reader" in sys.argv else _Socket
    return lambda job: Result.of(job, work(kind(job.url), job), f"of Python {python_version()}")


if __name__ == "__main__":
    serve(
        {
            "publish": _connected(_publish),
            "request": _connected(_request),
            "fetch1": _connected(_fetch),
            "ack_sync": _connected(_ack_sync),
            "kv_put": _connected(_key_value),
            "kv_get": _connected(_key_value),
        }
    )
