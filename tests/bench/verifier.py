"""
Prepare the data of one measurement, and verify afterwards that the server received the work.

The verifier speaks the protocol itself over its own socket: it must not depend on any of the
clients under test. It does nothing while a measurement runs.
"""

from __future__ import annotations

import json
import socket
import time
from types import TracebackType
from typing import Any
from urllib.parse import unquote, urlsplit

from typing_extensions import Self

from .job import Job, numbered_payload
from .rows import Row

__all__ = ["NotDoneError", "Verifier"]

_CHUNK_MESSAGES = 4_000
_STREAM_NOT_FOUND = 10059
_STATISTICS = "$SYS.REQ.ACCOUNT.PING.STATZ"


class NotDoneError(Exception):
    """The state of the server does not show the work that a client reports."""


class Verifier:
    """A connection that creates streams and consumers, fills them and reads their states."""

    def __init__(self, url: str, timeout: float = 30.0) -> None:
        """
        Connect.

        Args:
            url: one server, ``nats://[user:password@]host:port``.
            timeout: longest wait for the server, in seconds.

        """
        parts = urlsplit(url)
        address = (parts.hostname or "127.0.0.1", parts.port or 4222)
        self._socket = socket.create_connection(address, timeout)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._input = self._socket.makefile("rb")
        self._input.readline()  # INFO
        options: dict[str, Any] = {"verbose": False, "pedantic": False, "name": "verifier"}
        if parts.username is not None:
            options |= {"user": unquote(parts.username), "pass": unquote(parts.password or "")}
        self._send(f"CONNECT {json.dumps(options)}\r\nSUB _INBOX.verifier 1\r\n".encode())
        self._received_before = 0

    def __enter__(self) -> Self:
        """Return itself."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Close the socket."""
        self.close()

    def close(self) -> None:
        """Close the socket."""
        self._input.close()
        self._socket.close()

    def prepare(self, row: Row, job: Job) -> None:
        """Create the stream, with messages if the row reads it, and the row's consumer."""
        used = row.stores or row.reads or row.direct
        self.make_stream(job.stream, job.subject if used else f"{job.stream}.no")
        if row.reads or row.direct:
            self.fill(job.subject, 1, job.count if row.reads else 1, job.size)
        if row.pulls:
            # This row acknowledges after it has read everything.
            self.make_consumer(job.stream, job.consumer, unlimited=job.row == "ack_sync")
        self._received_before = self._received_bytes()

    def verify(self, row: Row, job: Job) -> None:
        """
        Verify the server's state after the work, and delete the stream.

        Raises:
            NotDoneError: messages are missing or were delivered more than once, or acks are.

        """
        if row.stores:
            self._verify_stored(job)
        if row.pulls:
            self._verify_acked(job)
        if not (row.stores or row.reads or row.direct or row.bucket):
            self._verify_received(job)
        self.delete_stream(job.stream)

    def make_stream(self, name: str, subject: str, max_msgs: int = -1) -> None:
        """Create an empty memory stream; one with that name is deleted first."""
        self.delete_stream(name)
        config = {
            "name": name,
            "subjects": [subject],
            "storage": "memory",
            "max_msgs": max_msgs,
            "allow_direct": True,
        }
        self.api(f"STREAM.CREATE.{name}", config)

    def delete_stream(self, name: str) -> None:
        """Delete a stream if there is one."""
        answer = self._request(f"$JS.API.STREAM.DELETE.{name}", None)
        if "error" in answer and answer["error"]["err_code"] != _STREAM_NOT_FOUND:
            raise NotDoneError(f"stream {name}: {answer['error']}")

    def make_consumer(self, stream: str, name: str, *, unlimited: bool = False) -> None:
        """Create a durable pull consumer with explicit acks; ``unlimited``: any number may be pending."""
        config: dict[str, object] = {"durable_name": name, "ack_policy": "explicit"}
        if unlimited:
            config["max_ack_pending"] = -1
        body = {"stream_name": stream, "config": config}
        self.api(f"CONSUMER.DURABLE.CREATE.{stream}.{name}", body)

    def fill(self, subject: str, first: int, last: int, size: int) -> None:
        """
        Publish numbered payloads into a stream.

        The server has stored them all when this returns: the last one of each chunk waits for its
        ack, so that the server's queue of incoming messages cannot overflow.

        Args:
            subject: a subject of the stream.
            first: number of the first payload.
            last: number of the last payload.
            size: payload, in bytes.

        """
        plain = f"PUB {subject} {size}\r\n".encode()
        acked = f"PUB {subject} _INBOX.verifier {size}\r\n".encode()
        for start in range(first, last + 1, _CHUNK_MESSAGES):
            stop = min(start + _CHUNK_MESSAGES, last + 1)
            chunk = [plain + numbered_payload(n, size) + b"\r\n" for n in range(start, stop - 1)]
            chunk.append(acked + numbered_payload(stop - 1, size) + b"\r\n")
            self._send(b"".join(chunk))
            ack = json.loads(self._next_payload())
            if "error" in ack:
                raise NotDoneError(f"the server refused to store: {ack}")

    def publish(self, subject: str, count: int, size: int) -> None:
        """Publish numbered payloads without a stream; the server has them when this returns."""
        head = f"PUB {subject} {size}\r\n".encode()
        for number in range(1, count + 1, _CHUNK_MESSAGES):
            stop = min(number + _CHUNK_MESSAGES, count + 1)
            chunk = [head + numbered_payload(n, size) + b"\r\n" for n in range(number, stop)]
            self._send(b"".join(chunk))
        self._request(_STATISTICS, None)

    def consumer_info(self, stream: str, name: str) -> dict[str, Any]:
        """Return the state of a consumer."""
        return self.api(f"CONSUMER.INFO.{stream}.{name}")

    def api(self, subject: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        """Send a JetStream API request; an error in the answer is raised as `NotDoneError`."""
        answer = self._request(f"$JS.API.{subject}", body)
        if "error" in answer:
            raise NotDoneError(f"{subject}: {answer['error']}")
        return answer

    def _verify_stored(self, job: Job) -> None:
        state = self.api(f"STREAM.INFO.{job.stream}")["state"]
        if (state["messages"], state["last_seq"]) != (job.count, job.count):
            raise NotDoneError(f"{job.count} messages were to be in the stream: {state}")

    def _verify_acked(self, job: Job) -> None:
        # The server processes acks asynchronously; it has some seconds for the last.
        limit = time.monotonic() + 5.0
        while True:
            info = self.consumer_info(job.stream, job.consumer)
            done = (
                info["ack_floor"]["stream_seq"] == job.count
                and info["delivered"]["consumer_seq"] == job.count
                and info["num_ack_pending"] == info["num_pending"] == info["num_redelivered"] == 0
            )
            if done:
                return
            if time.monotonic() > limit:
                raise NotDoneError(f"{job.count} messages were to be read and acked once: {info}")
            time.sleep(0.01)

    def _verify_received(self, job: Job) -> None:
        received = self._received_bytes() - self._received_before
        if received < job.count * job.size:
            raise NotDoneError(f"the server received {received} bytes for {job.count} messages")

    def _received_bytes(self) -> int:
        answer = self._request(_STATISTICS, None)
        return int(answer["data"]["account_statz"][0]["received"]["bytes"])

    def _request(self, subject: str, body: dict[str, Any] | None) -> dict[str, Any]:
        payload = b"" if body is None else json.dumps(body).encode()
        self._send(
            b"PUB %s _INBOX.verifier %d\r\n%s\r\n" % (subject.encode(), len(payload), payload)
        )
        answer: dict[str, Any] = json.loads(self._next_payload())
        return answer

    def _send(self, data: bytes) -> None:
        self._socket.sendall(data)

    def _next_payload(self) -> bytes:
        while True:
            line = self._input.readline()
            if line.startswith(b"MSG "):
                payload = self._input.read(int(line.split()[-1]))
                self._input.read(2)
                return payload
            if line.startswith(b"PING"):
                self._send(b"PONG\r\n")
            elif not line or line.startswith(b"-ERR"):
                raise NotDoneError(f"the server closed the verifier's connection: {line!r}")
