"""TLS as a stream: the handshake, and its errors."""

from __future__ import annotations

import ssl

import pytest
from fixtures.layers import TLSPeer, Wire, client_context, opened

from jetstream_sync.errors import SecureConnectionError
from jetstream_sync.net.clock import Deadline
from jetstream_sync.net.tls import TLSStream, explain, server_name


def soon() -> Deadline:
    return Deadline(10)


def test_the_server_gets_the_reason():
    """A refused server gets an alert before the end."""
    peer = TLSPeer()
    wire = Wire(peer)
    stream = TLSStream(wire, client_context(), "other.example")
    with pytest.raises(ssl.SSLCertVerificationError):
        stream.handshake(soon())
    with pytest.raises(ssl.SSLError, match="(?i)alert"):
        wire.deliver()


@pytest.mark.parametrize(
    "said", [b'INFO {"server_id":"S"}\r\n', b"HTTP/1.1 400 Bad Request\r\n\r\n", b"\x00" * 50]
)
def test_a_server_that_does_not_speak_tls(said):
    """It is detected by its first bytes."""

    class Plain(TLSPeer):
        def react(self, data: bytes) -> bytes:
            return said if data else b""

    stream = TLSStream(Wire(Plain()), client_context(), "localhost")
    with pytest.raises(ssl.SSLError) as caught:
        stream.handshake(soon())
    error = explain(caught.value, "localhost")
    assert type(error) is SecureConnectionError


def test_a_handshake_has_a_deadline():
    """Also with a full socket, and with bytes that arrive one by one."""

    class Silent(Wire):
        def wait_writable(self, timeout: float) -> bool:
            return False

    wire = Silent(TLSPeer())
    wire.room = 0
    stream = TLSStream(wire, client_context(), "localhost")
    with pytest.raises(TimeoutError):
        stream.handshake(Deadline(0.02))
    with pytest.raises(TimeoutError):
        TLSStream(Wire(TLSPeer()), client_context(), "localhost").handshake(Deadline(0))


@pytest.mark.parametrize("piece", [1, 100])
def test_a_handshake_in_pieces(piece):
    """A slow network, and a socket that is full sometimes, change nothing."""
    wire = Wire(TLSPeer())
    wire.piece = piece
    wire.room = 0
    stream = TLSStream(wire, client_context(), "localhost")
    stream.handshake(soon())
    wire.room = None
    wire.deliver()
    wire.bring(wire.server.say(b"hello"))
    got = b""
    while got != b"hello":
        got += stream.receive()


def test_a_server_that_speaks_first():
    """Bytes that arrive together with the end of the handshake are not lost."""

    class Eager(TLSPeer):
        def react(self, data: bytes) -> bytes:
            before = self._through
            response = super().react(data)
            return response if before == self._through else response + self.say(b"INFO {}\r\n")

    context = client_context()
    context.maximum_version = ssl.TLSVersion.TLSv1_2  # here the server sends the last bytes
    wire = Wire(Eager())
    stream = TLSStream(wire, context, "localhost")
    stream.handshake(soon())
    assert stream.receive() == b"INFO {}\r\n"


@pytest.mark.parametrize("done", [True, False], ids=["after", "before"])
def test_a_ctrl_c_within_the_encryption(done, monkeypatch):
    """Wherever it interrupts the standard library, encrypted bytes are recorded."""
    layer, wire = opened("TLS 1.3")
    assert isinstance(layer, TLSStream)
    really = layer._ssl

    class Struck:
        def write(self, data: memoryview) -> int:
            if done:
                really.write(data)
            raise KeyboardInterrupt

    sent: list[int] = []
    monkeypatch.setattr(layer, "_ssl", Struck())
    with pytest.raises(KeyboardInterrupt):
        layer.send(memoryview(b"once"), sent)
    monkeypatch.setattr(layer, "_ssl", really)
    assert not sent
    layer.send(memoryview(b"once"), sent)
    layer.send(memoryview(b" more"), sent)
    wire.deliver()
    assert (wire.server.heard, sent) == (b"once more", [4, 5])


@pytest.mark.parametrize(
    ("host", "name"),
    [
        ("nats.example", "nats.example"),
        ("nats.example.", "nats.example"),
        ("fe80::1%eth0", "fe80::1"),
    ],
)
def test_names_are_as_certificates_have_them(host, name):
    """Without the final dot of a name, or the zone of a local address."""
    assert server_name(host) == name


def test_other_errors_are_not_of_tls():
    """A broken link is not an error of TLS."""
    assert explain(ConnectionResetError("reset"), "localhost") is None
