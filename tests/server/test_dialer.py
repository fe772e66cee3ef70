"""Connections through sockets that the user creates: a SOCKS proxy, a socket pair."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest
from fix_threads import SCALE, wait_until
from fix_tls import Certificates

import jetstream_sync
from jetstream_sync import InvalidOptionError, NoServersError
from jetstream_sync.server import NatsServer

QUICK: dict[str, Any] = {"reconnect_time_wait": 0.01, "max_reconnect_attempts": -1}


def pump(source: socket.socket, target: socket.socket) -> None:
    """Forward bytes in one direction until it ends, then end both sides."""
    with suppress(OSError):
        while data := source.recv(65536):
            target.sendall(data)
    for each in (source, target):
        with suppress(OSError):
            each.shutdown(socket.SHUT_RDWR)


def relay(one: socket.socket, other: socket.socket) -> None:
    """Forward bytes in both directions until one side ends, and close both sockets."""
    back = threading.Thread(target=pump, args=(other, one), daemon=True)
    back.start()
    pump(one, other)
    back.join()
    one.close()
    other.close()


def join(one: socket.socket, other: socket.socket) -> None:
    """Forward bytes between two sockets, on two threads."""
    threading.Thread(target=relay, args=(one, other), daemon=True).start()


class SocksProxy:
    """A SOCKS5 proxy (RFC 1928) that supports CONNECT to a name, and one invented host."""

    def __init__(self, port: int) -> None:
        self._target = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        #: The hosts and ports that clients asked for.
        self.asked: list[tuple[str, int]] = []
        self._open: list[socket.socket] = []
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                self._open.append(client)
                threading.Thread(target=self._shake_hands, args=(client,), daemon=True).start()

    def _shake_hands(self, client: socket.socket) -> None:
        with client.makefile("rb", buffering=0) as stream:
            assert stream.read(3) == b"\x05\x01\x00"
            client.sendall(b"\x05\x00")
            assert stream.read(4) == b"\x05\x01\x00\x03"
            host = stream.read(stream.read(1)[0]).decode()
            (port,) = struct.unpack("!H", stream.read(2))
        self.asked.append((host, port))
        if host != "nats.invalid":
            client.sendall(b"\x05\x04\x00\x01" + bytes(6))  # host unreachable
            client.close()
            return
        target = socket.create_connection(("127.0.0.1", self._target), 5)
        client.sendall(b"\x05\x00\x00\x01" + bytes(6))
        join(client, target)

    def cut(self) -> None:
        """Break every connection."""
        broken, self._open = self._open, []
        for each in broken:
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._listener.close()
        self.cut()


def through(proxy_port: int) -> Callable[[str, int, float], socket.socket]:
    """Return a dialer that connects through a SOCKS5 proxy."""

    def dial(host: str, port: int, timeout: float) -> socket.socket:
        assert 0 < timeout <= 2
        connected = socket.create_connection(("127.0.0.1", proxy_port), timeout)
        connected.sendall(b"\x05\x01\x00")
        assert connected.recv(2) == b"\x05\x00"
        name = host.encode()
        request = b"\x05\x01\x00\x03" + bytes([len(name)]) + name + struct.pack("!H", port)
        connected.sendall(request)
        answer = connected.recv(10)
        if answer[1:2] != b"\x00":
            connected.close()
            raise ConnectionRefusedError(f"SOCKS error {answer[1]}")
        return connected

    return dial


@pytest.fixture
def proxy(nats_server: NatsServer) -> Iterator[SocksProxy]:
    """A SOCKS5 proxy in front of the shared server, which is nats.invalid to it."""
    made = SocksProxy(nats_server.port)
    yield made
    made.close()


def test_a_connection_through_socks_comes_back_through_socks(proxy: SocksProxy) -> None:
    """The dialer gets the host as written, and is called again at each reconnect."""
    with jetstream_sync.connect(
        "nats://nats.invalid:4333", dialer=through(proxy.port), **QUICK
    ) as nc:
        assert proxy.asked == [("nats.invalid", 4333)]
        assert nc.connected_url == "nats://nats.invalid:4333"
        sub = nc.subscribe("socks")
        nc.publish("socks", bytes(500_000))
        assert len(sub.next_msg(5 * SCALE).data) == 500_000
        for times in (2, 3):
            proxy.cut()
            wait_until(lambda: nc.stats["reconnects"] == times - 1 and nc.is_connected)  # noqa: B023
            assert proxy.asked[:times] == [("nats.invalid", 4333)] * times
            nc.publish("socks", b"%d" % times)
            assert sub.next_msg(5 * SCALE).data == b"%d" % times


def test_a_host_that_the_proxy_cannot_reach(proxy: SocksProxy) -> None:
    """An OSError of the dialer counts as that of the server, and the next server is tried."""
    dial = through(proxy.port)
    with pytest.raises(NoServersError, match="SOCKS error 4"):
        jetstream_sync.connect("nats://other.invalid", dialer=dial)
    servers = ["nats://other.invalid", "nats://nats.invalid"]
    with jetstream_sync.connect(servers, dialer=dial, dont_randomize=True) as nc:
        nc.flush()
        assert nc.connected_url == "nats://nats.invalid:4222"


def test_a_socket_pair_reaches_a_server_in_the_process(nats_server: NatsServer) -> None:
    """The socket need not be TCP: the other end is the user's."""
    ours: list[socket.socket] = []

    def dial(host: str, port: int, timeout: float) -> socket.socket:
        del host, port
        near, far = socket.socketpair()
        join(far, socket.create_connection(("127.0.0.1", nats_server.port), timeout))
        ours.append(near)
        return near

    with jetstream_sync.connect("nats://in.process", dialer=dial, **QUICK) as nc:
        js = nc.jetstream()
        stream = js.create_stream(name="PAIR", subjects=["pair"], storage="memory")
        try:
            assert js.publish("pair", b"1").seq == 1
            ours[0].shutdown(socket.SHUT_RDWR)
            wait_until(lambda: len(ours) == 2 and nc.is_connected)
            assert js.publish("pair", b"2").seq == 2
            assert [msg.data for msg in stream.ordered_consumer().fetch(2)] == [b"1", b"2"]
        finally:
            js.delete_stream("PAIR")
    assert all(each.fileno() == -1 for each in ours), "the connection closes what it was given"


def test_tls_is_spoken_on_top(certificates: Certificates) -> None:
    """TLS runs on the dialer's socket, and the certificate is checked against the URL's host."""
    dialed: list[str] = []

    def dial(host: str, port: int, timeout: float) -> socket.socket:
        dialed.append(host)
        return socket.create_connection(("127.0.0.1", port), timeout)

    with (
        NatsServer(jetstream=False, config=certificates.server()) as server,
        jetstream_sync.connect(
            f"tls://localhost:{server.port}", dialer=dial, tls=certificates.trusted()
        ) as nc,
    ):
        nc.flush()
    assert dialed == ["localhost"]


def test_the_error_of_a_dialer_names_what_it_returned_or_raised(nats_server: NatsServer) -> None:
    """The error names the type of the result, and does not quote it as an option's value."""
    faults: dict[str, Any] = {
        "dialer=...: must return a connected, plain socket, not None": lambda *_: None,
        "dialer=...: must return a connected, plain socket, not int": lambda *_: 1,
        "dialer=...: raised ZeroDivisionError": lambda *_: 1 / 0,
    }
    for text, fault in faults.items():
        with pytest.raises(InvalidOptionError) as caught:
            jetstream_sync.connect(nats_server.url, dialer=fault)
        assert str(caught.value).replace("'...'", "...") == text


def test_a_dialer_that_breaks_later_is_reported(fresh_server: NatsServer) -> None:
    """On a reconnect the error goes to error_cb, and the attempts continue."""
    errors: list[Exception] = []
    broken = threading.Event()

    def dial(host: str, port: int, timeout: float) -> socket.socket:
        if broken.is_set():
            broken.clear()
            raise RuntimeError("a user's mistake")
        return socket.create_connection((host, port), timeout)

    with jetstream_sync.connect(
        fresh_server.url, dialer=dial, error_cb=errors.append, **QUICK
    ) as nc:
        broken.set()
        nc.reconnect()
        wait_until(lambda: errors and nc.is_connected)
        assert isinstance(errors[0], InvalidOptionError)
        nc.flush()
