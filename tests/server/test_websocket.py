"""WebSocket to a real nats-server: ports, logins, and refused connections."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import re
import socket
import threading
import time
from collections.abc import Iterator

import pytest
from fixtures.threads import SCALE, wait_until
from fixtures.tls import connect, echoes, refused

import jetstream_sync
from jetstream_sync import errors
from jetstream_sync.server import NatsServer


def listening(port: int, more: str = "no_tls: true") -> str:
    return f"websocket {{ host: 127.0.0.1, port: {port}, {more} }}"


@pytest.fixture
def server(free_port: int) -> Iterator[NatsServer]:
    """A server that accepts WebSockets on the free port, in the clear."""
    with NatsServer(config=listening(free_port)) as running:
        yield running


@pytest.mark.usefixtures("server")
def test_everything_works_through_a_websocket(free_port):
    """Messages of all sizes, requests, and JetStream."""
    url = f"ws://127.0.0.1:{free_port}"
    with connect(url) as nc:
        assert nc.connected_url == url
        assert echoes(nc)
        js = nc.jetstream()
        stream = js.create_stream(name="WS", subjects=["ws.*"], storage="memory")
        futures = [js.publish_async("ws.a", b"%d" % number) for number in range(500)]
        assert [future.result(5 * SCALE).seq for future in futures] == list(range(1, 501))
        got = stream.create_consumer().fetch(500, timeout=5 * SCALE)
        assert [msg.data for msg in got] == [b"%d" % number for number in range(500)]


def test_a_login_goes_with_connect(free_port):
    """User and password are checked like on other ports."""
    config = f"authorization {{ user: a, password: b }}\n{listening(free_port)}"
    with NatsServer(config=config, jetstream=False):
        for url, options in (
            (f"ws://a:b@127.0.0.1:{free_port}", {}),
            (f"ws://127.0.0.1:{free_port}", {"user": "a", "password": "b"}),
        ):
            with connect(url, **options) as nc:
                assert echoes(nc)
        with refused(errors.AuthorizationError, "Authorization Violation"):
            connect(f"ws://127.0.0.1:{free_port}", user="a", password="c")


def test_headers_reach_the_server(free_port):
    """A server that accepts requests of some origins only checks the header."""
    only = 'no_tls: true, allowed_origins: ["http://good.example"]'
    with NatsServer(config=listening(free_port, only), jetstream=False):
        url = f"ws://127.0.0.1:{free_port}"
        with connect(url, ws_connection_headers={"Origin": "http://good.example"}) as nc:
            assert echoes(nc)
        with refused(errors.ServerRefusedError, "HTTP 403 Forbidden"):
            connect(url, ws_connection_headers={"Origin": "http://evil.example"})


def test_wss(free_port, certificates):
    """wss:// uses TLS with all its options."""
    config = listening(free_port, certificates.server())
    with NatsServer(config=config, jetstream=False):
        trusted = certificates.trusted()
        for url in (
            f"wss://127.0.0.1:{free_port}",
            f"wss://localhost:{free_port}/path",
            # Both the option and the URL require TLS.
            f"ws://127.0.0.1:{free_port}",
        ):
            with connect(url, tls=trusted) as nc:
                assert echoes(nc)
        with refused(errors.CertificateError, "not trusted here"):
            connect(f"wss://127.0.0.1:{free_port}")
        with refused(errors.SecureConnectionError, "tls=False"):
            connect(f"wss://127.0.0.1:{free_port}", tls=False)
        with refused(errors.ServerRefusedError, "HTTP 400 Bad Request"):
            connect(f"ws://127.0.0.1:{free_port}")


@pytest.mark.usefixtures("server")
def test_wss_where_there_is_no_tls(free_port):
    """The error is raised at once."""
    with refused(errors.SecureConnectionError, "the server does not speak TLS here"):
        connect(f"wss://127.0.0.1:{free_port}")


def test_a_client_certificate_over_wss(free_port, certificates):
    """A server that verifies its clients refuses one without a certificate, without a hang."""
    with NatsServer(config=listening(free_port, certificates.verifying()), jetstream=False):
        url = f"wss://127.0.0.1:{free_port}"
        with connect(url, tls=certificates.trusted("client")) as nc:
            assert echoes(nc)
        with refused(errors.SecureConnectionError, "certificate"):
            connect(url, tls=certificates.trusted())


def test_the_port_for_other_clients(nats_server):
    """The error says that the port does not speak HTTP."""
    with refused(errors.ProtocolError, "does not speak HTTP on this port"):
        connect(nats_server.url.replace("nats://", "ws://"))


class FramePeer:
    """The server's end of a WebSocket: it sends frames whose size the test chooses, and reads nothing."""

    def __init__(self, first_frames: list[bytes], size: int) -> None:
        self._first, self._size = first_frames, size
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.url = f"ws://127.0.0.1:{self._listening.getsockname()[1]}"
        self.sent = 0
        self._ended = threading.Event()
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        client, _ = self._listening.accept()
        head = b""
        while b"\r\n\r\n" not in head:
            head += client.recv(4096)
        key = re.search(rb"Sec-WebSocket-Key: (\S+)", head)[1]
        guid = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
        accept = base64.b64encode(hashlib.sha1(key + guid).digest())
        client.sendall(
            b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            b"Sec-WebSocket-Accept: %b\r\n\r\n" % accept
        )
        for data in self._first:
            client.sendall(frame(data))
            time.sleep(0.2)
        with contextlib.suppress(OSError):
            client.sendall(b"\x82\x7f" + self._size.to_bytes(8, "big"))
            while self.sent < self._size:
                self.sent += client.send(bytes(1 << 16))
        client.close()
        self._ended.set()

    def close(self) -> None:
        """Wait for the end of the connection."""
        assert self._ended.wait(10 * SCALE)
        self._listening.close()


def frame(data: bytes) -> bytes:
    """Return a short frame of a server."""
    return b"\x82\x7e" + len(data).to_bytes(2, "big") + data


INFO = b'INFO {"server_id":"x","version":"2.12.0","max_payload":1048576,"headers":true}\r\n'


@pytest.mark.parametrize(
    ("first", "size"), [([], 2 << 20), ([INFO, b"PONG\r\n"], 900 << 20)], ids=["INFO", "messages"]
)
def test_a_frame_that_is_too_large_ends_the_connection(first, size):
    """The size in its head counts: the content is not read into memory."""
    peer = FramePeer(first, size)
    lost: list[BaseException] = []
    try:
        nc = jetstream_sync.connect(
            peer.url, allow_reconnect=False, connect_timeout=5 * SCALE, error_cb=lost.append
        )
        wait_until(lambda: nc.is_closed, 10)
        reason = nc.last_error
    except errors.Error as error:
        reason = error
    peer.close()
    assert "WebSocket" in str(reason)
    assert peer.sent < 32 << 20  # what the sockets hold
