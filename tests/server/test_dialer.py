"""Connections through sockets that the user creates: a SOCKS proxy, a socket pair."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress
from typing import Any

import pytest
from fixtures.server import break_link
from fixtures.threads import SCALE, wait_until

import jetstream_sync
from jetstream_sync import InvalidOptionError, NoServersError
from jetstream_sync.server import NatsServer

QUICK: dict[str, Any] = {"reconnect_time_wait": 0.01, "max_reconnect_attempts": -1}


def pump(source: socket.socket, target: socket.socket) -> None:
    """Forward bytes in one direction until it ends, then end both sides."""
    with suppress(OSError):
        while data := source.recv(65536):
            target.sendall(data)
    for item in (source, target):
        with suppress(OSError):
            item.shutdown(socket.SHUT_RDWR)


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


def test_the_dialer_is_called_at_each_reconnect(nats_server):
    """The dialer gets the host as written, and is called again at each reconnect."""
    asked: list[tuple[str, int]] = []

    def dial(host: str, port: int, timeout: float) -> socket.socket:
        assert 0 < timeout <= 2
        asked.append((host, port))
        return socket.create_connection(("127.0.0.1", nats_server.port), timeout)

    with jetstream_sync.connect("nats://nats.invalid:4333", dialer=dial, **QUICK) as nc:
        assert nc.connected_url == "nats://nats.invalid:4333"
        sub = nc.subscribe("dialed")
        for times in (1, 2, 3):
            assert asked == [("nats.invalid", 4333)] * times
            nc.publish("dialed", bytes(500_000))
            assert len(sub.next_msg(5 * SCALE).data) == 500_000
            break_link(nc)


def test_a_host_that_the_dialer_cannot_reach(nats_server):
    """An OSError of the dialer counts as that of the server, and the next server is tried."""

    def dial(host: str, port: int, timeout: float) -> socket.socket:
        if host == "other.invalid":
            raise ConnectionRefusedError(f"no route to {host}:{port}")
        return socket.create_connection(("127.0.0.1", nats_server.port), timeout)

    with pytest.raises(NoServersError, match="no route to other.invalid:4222"):
        jetstream_sync.connect("nats://other.invalid", dialer=dial)
    servers = ["nats://other.invalid", "nats://nats.invalid"]
    with jetstream_sync.connect(servers, dialer=dial, dont_randomize=True) as nc:
        nc.flush()
        assert nc.connected_url == "nats://nats.invalid:4222"


def test_a_socket_pair_reaches_a_server_in_the_process(nats_server):
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
    assert all(our.fileno() == -1 for our in ours), "the connection closes what it was given"


def test_tls_is_spoken_on_top(certificates):
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


def test_the_error_of_a_dialer_names_what_it_returned_or_raised(nats_server):
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


def test_a_dialer_that_breaks_later_is_reported(fresh_server):
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
