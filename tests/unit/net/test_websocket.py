"""A WebSocket as a stream: its handshake, and frames without messages."""

from __future__ import annotations

import logging
import re
import sys
from typing import Any

import pytest
from fixtures.layers import WebSocketPeer, Wire
from websockets.frames import Frame, Opcode

from jetstream_sync import errors
from jetstream_sync.address import ServerAddress
from jetstream_sync.net.clock import Deadline
from jetstream_sync.net.websocket import WebSocketStream
from jetstream_sync.version import install_command

URL = "ws://nats.example:8080/messages"


class Scripted:
    """A server with one reply to any request."""

    def __init__(self, response: bytes) -> None:
        self.heard = bytearray()
        self._response = response

    def react(self, data: bytes) -> bytes:
        self.heard += data
        response, self._response = self._response, b""
        return response

    def say(self, data: bytes) -> bytes:
        return data

    def say_goodbye(self) -> bytes:
        return b""


def stream_on(wire: Wire, url: str = URL, headers: Any = None) -> WebSocketStream:
    return WebSocketStream(wire, ServerAddress.parse(url), headers)


def opened() -> tuple[WebSocketStream, Wire, WebSocketPeer]:
    peer = WebSocketPeer()
    wire = Wire(peer)
    stream = stream_on(wire)
    stream.handshake(Deadline(10))
    return stream, wire, peer


def asked(url: str = URL, headers: Any = None) -> list[bytes]:
    """Return the lines of the request that a server receives."""
    peer = Scripted(b"HTTP/1.1 404 Not Found\r\n\r\n")
    with pytest.raises(errors.ServerRefusedError):
        stream_on(Wire(peer), url, headers).handshake(Deadline(10))
    return bytes(peer.heard).split(b"\r\n")


def test_the_request_is_for_the_path_of_the_url():
    """With the host and port, and without an offer of compression."""
    lines = asked()
    assert lines[0] == b"GET /messages HTTP/1.1"
    assert b"Host: nats.example:8080" in lines
    assert b"Upgrade: websocket" in lines
    assert not any(line.lower().startswith(b"sec-websocket-extensions") for line in lines)
    assert asked("ws://nats.example")[0] == b"GET / HTTP/1.1"


def test_a_login_stays_out_of_the_request():
    """The login is in CONNECT, which follows later."""
    lines = asked("ws://worker:open-sesame@nats.example")
    assert not any(b"sesame" in line or line.startswith(b"Authorization") for line in lines)


def test_headers_are_added():
    """One or several of a name; required ones can be replaced."""
    headers = {"Authorization": "Bearer abc", "X-Way": ["one", "two"], "Host": "front.example"}
    lines = asked(headers=headers)
    for line in (
        b"Authorization: Bearer abc",
        b"X-Way: one",
        b"X-Way: two",
        b"Host: front.example",
    ):
        assert lines.count(line) == 1
    assert sum(line.startswith(b"Host:") for line in lines) == 1


def test_headers_are_not_logged(caplog):
    """They may contain a login, so no log level shows them."""
    with caplog.at_level(logging.DEBUG):
        asked(headers={"Authorization": "Bearer abc"})
    assert "abc" not in caplog.text


@pytest.mark.parametrize(
    "response",
    [
        b'INFO {"server_id":"S"}\r\n',
        b"\x15\x03\x01\x00\x02\x02",
        b"HTTP/1.1 fine\r\n\r\n",
        b"HTTP/1.1 101 Switching Protocols\r\n\r\n",
        (
            b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            b"Sec-WebSocket-Accept: AAAAAAAAAAAAAAAAAAAAAAAAAAA=\r\n\r\n"
        ),
        b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 20_000,
    ],
    ids=["NATS", "TLS", "no number", "no headers", "wrong key", "endless"],
)
def test_a_server_without_websocket_is_refused(response):
    """A server that does not speak HTTP, or not WebSocket, is detected at once."""
    with pytest.raises(errors.ProtocolError):
        stream_on(Wire(Scripted(response))).handshake(Deadline(10))


def test_a_server_that_hangs_up():
    """The error is a lost connection."""
    wire = Wire(Scripted(b"HTTP/1.1 10"))
    wire.ended = False
    stream = stream_on(wire)

    def receive(really: Any = wire.receive) -> bytes:
        data: bytes = really() if not wire.ended else b""
        wire.ended = True
        return data

    wire.receive = receive  # type: ignore[method-assign]
    with pytest.raises(errors.ConnectionLostError):
        stream.handshake(Deadline(10))


def test_data_right_behind_the_handshake_is_kept():
    """A server sends INFO at once."""

    class Eager(WebSocketPeer):
        def react(self, data: bytes) -> bytes:
            return super().react(data) + self.say(b"INFO {}\r\n") if data else b""

    stream = stream_on(Wire(Eager()))
    stream.handshake(Deadline(10))
    assert stream.receive() == b"INFO {}\r\n"


def test_sent_frames_are_binary_and_masked():
    """The server refuses other frames."""
    stream, wire, _ = opened()
    stream.send(memoryview(b"PING\r\n"), [])
    frame = bytes(wire._out)
    assert frame[0] == 0x80 | Opcode.BINARY
    assert frame[1] == 0x80 | 6
    mask, data = frame[2:6], frame[6:]
    assert bytes(byte ^ mask[at % 4] for at, byte in enumerate(data)) == b"PING\r\n"


def test_a_pong_is_sent_with_the_next_data():
    """The reader only queues the pong."""
    stream, wire, peer = opened()
    peer.protocol.send_ping(b"are you there?")
    wire.bring(b"".join(peer.protocol.data_to_send()) + peer.say(b"data"))
    sends = wire.sends
    assert stream.receive() == b"data"
    assert wire.sends == sends
    stream.send(memoryview(b"something"), [])
    responses = []
    really = peer.protocol.events_received

    def events() -> list[Any]:
        found = really()
        responses.extend(found)
        return found

    peer.protocol.events_received = events  # type: ignore[method-assign]
    wire.deliver()
    assert [(response.opcode, response.data) for response in responses] == [
        (Opcode.PONG, b"are you there?"),
        (Opcode.BINARY, b"something"),
    ]


def test_fragments_and_text_are_bytes_like_any():
    """The boundaries of WebSocket messages have no meaning here."""
    stream, wire, _ = opened()
    parts = [
        Frame(Opcode.BINARY, b"PI", fin=False),
        Frame(Opcode.PING, b""),
        Frame(Opcode.CONT, b"N", fin=False),
        Frame(Opcode.CONT, b"G\r\n"),
        Frame(Opcode.TEXT, b"+OK\r\n"),
    ]
    wire.bring(b"".join(part.serialize(mask=False) for part in parts))
    assert stream.receive() == b"PING\r\n+OK\r\n"


def test_frames_without_data_do_not_end_the_stream():
    """An empty frame, or a pong, contains no bytes."""
    stream, wire, peer = opened()
    wire.bring(Frame(Opcode.BINARY, b"").serialize(mask=False))
    wire.piece = 2
    wire.bring(Frame(Opcode.PONG, b"").serialize(mask=False) + peer.say(b"x"))
    assert stream.receive() == b"x"


def test_a_masked_frame_breaks_the_rules():
    """Like anything else that RFC 6455 forbids a server, it is a protocol error."""
    stream, wire, _ = opened()
    wire.bring(Frame(Opcode.BINARY, b"x").serialize(mask=True))
    with pytest.raises(errors.ProtocolError, match="rules of WebSocket"):
        stream.receive()


def test_close_is_answered_with_close():
    """The server's close frame ends the stream, and is answered by the next send."""
    stream, wire, peer = opened()
    wire.bring(peer.say_goodbye())
    assert stream.receive() == b""
    stream.shutdown()
    wire.deliver()
    assert peer.ended


def test_a_missing_package_is_named(monkeypatch):
    """Without the extra the error names the package to install."""
    monkeypatch.setitem(sys.modules, "websockets.client", None)
    with pytest.raises(errors.InvalidOptionError, match=re.escape(install_command("websocket"))):
        stream_on(Wire(Scripted(b"")))
