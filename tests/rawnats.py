"""
A few lines of the NATS protocol on a plain socket, independent of the package.

Tests use it to check the effects of the package under test.
"""

from __future__ import annotations

import base64
import json
import socket
from dataclasses import dataclass
from typing import Any

from typing_extensions import Self

#: Requests that are sent before their answers are read.
_WINDOW = 200
#: The server's error for a stream that does not exist.
_STREAM_NOT_FOUND = 10059


@dataclass(frozen=True)
class Stored:
    """A message that is stored in a stream."""

    seq: int
    subject: str
    data: bytes
    #: The header block, and the time of storing, as the server writes them.
    headers: bytes = b""
    time: str = ""


class RawClient:
    """A connection that sends one request at a time."""

    def __init__(self, port: int, timeout: float = 5.0) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), timeout)
        self._input = self._socket.makefile("rb")
        line = self._input.readline()
        assert line.startswith(b"INFO "), line
        self.info: dict[str, Any] = json.loads(line[5:])
        self.send(b'CONNECT {"verbose":false,"headers":true,"no_responders":true}\r\nPING\r\n')
        self.expect(b"PONG\r\n")
        self.send(b"SUB raw.inbox 1\r\n")

    def send(self, data: bytes) -> None:
        self._socket.sendall(data)

    def expect(self, line: bytes) -> None:
        while True:
            got = self._input.readline()
            if got == line:
                return
            assert got.startswith((b"INFO ", b"PING")), f"expected {line!r}, got {got!r}"

    def request(self, subject: str, payload: bytes = b"") -> bytes:
        """Send a request, and return the payload of the answer, or its status line."""
        return self.requests(subject, [payload])[0]

    def requests(self, subject: str, payloads: list[bytes]) -> list[bytes]:
        """Send requests at once, and return the answers in the order of arrival; see `request()`."""
        self.send(
            b"".join(
                b"PUB %s raw.inbox %d\r\n%s\r\n" % (subject.encode(), len(payload), payload)
                for payload in payloads
            )
        )
        return [self._answer() for _ in payloads]

    def _answer(self) -> bytes:
        while True:
            fields = self._input.readline().split()
            if not fields:
                raise ConnectionError("the server closed the connection")
            if fields[0] == b"MSG":
                return self._input.read(int(fields[-1]) + 2)[:-2]
            if fields[0] == b"HMSG":
                data = self._input.read(int(fields[-1]) + 2)[:-2]
                return data[int(fields[-2]) :] or data.partition(b"\r\n")[0]
            if fields[0] == b"PING":
                self.send(b"PONG\r\n")
            assert fields[0] in {b"INFO", b"PING"}, fields

    def api(self, name: str, /, **fields: Any) -> dict[str, Any]:
        """Call JetStream's API and return the decoded answer."""
        payload = json.dumps(fields).encode() if fields else b""
        answer: dict[str, Any] = json.loads(self.request(f"$JS.API.{name}", payload))
        return answer

    def stored(self, stream: str) -> list[Stored]:
        """Return the stored messages of a stream, in its order."""
        state = self.api(f"STREAM.INFO.{stream}")["state"]
        first, last = state["first_seq"], state["last_seq"]
        found: list[Stored] = []
        for begin in range(first, last + 1, _WINDOW):
            seqs = range(begin, min(begin + _WINDOW, last + 1))
            bodies = [json.dumps({"seq": seq}).encode() for seq in seqs]
            for answer in self.requests(f"$JS.API.STREAM.MSG.GET.{stream}", bodies):
                message = json.loads(answer).get("message")
                if message is not None:
                    data = base64.b64decode(message.get("data", ""))
                    headers = base64.b64decode(message.get("hdrs", ""))
                    found.append(
                        Stored(message["seq"], message["subject"], data, headers, message["time"])
                    )
        assert len(found) == state["messages"], (len(found), state)
        return sorted(found, key=lambda item: item.seq)

    def delete_all_streams(self) -> None:
        while names := self.api("STREAM.NAMES").get("streams"):
            for name in names:
                answer = self.api(f"STREAM.DELETE.{name}")
                # In a cluster, the list may still have a stream that is deleted already.
                assert answer.get("success") or answer["error"]["err_code"] == _STREAM_NOT_FOUND

    def close(self) -> None:
        self._input.close()
        self._socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
