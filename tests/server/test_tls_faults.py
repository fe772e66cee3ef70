"""TLS and WebSocket with faults: slow links, full sockets, restarts, forks and Ctrl-C."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from fixtures.faults import FaultProxy, Toward
from fixtures.fork import in_child
from fixtures.threads import SCALE, wait_until
from fixtures.tls import Certificates

import jetstream_sync
from jetstream_sync import Connection, OutboundBufferLimitError
from jetstream_sync.server import NatsServer

LATER = 10 * SCALE
BIG = b"x" * 100_000


@dataclass
class Transport:
    """One way to reach a server, and the server."""

    scheme: str
    server: NatsServer
    port: int
    certificates: Certificates

    def connect(self, port: int | None = None, **options: Any) -> Connection:
        options = {
            "tls": None if self.scheme == "ws" else self.certificates.trusted(),
            "connect_timeout": 5 * SCALE,
            "reconnect_time_wait": 0.02,
            **options,
        }
        return jetstream_sync.connect(f"{self.scheme}://127.0.0.1:{port or self.port}", **options)


@pytest.fixture(params=["tls", "ws", "wss"])
def transport(
    request: pytest.FixtureRequest, certificates: Certificates, free_port: int
) -> Iterator[Transport]:
    """A server, and its address without TLS and WebSocket."""
    tls = certificates.server()
    websocket = {
        "tls": "",
        "ws": f"websocket {{ host: 127.0.0.1, port: {free_port}, no_tls: true }}",
        "wss": f"websocket {{ host: 127.0.0.1, port: {free_port}, {tls} }}",
    }[request.param]
    with NatsServer(config=f"{tls}\nallow_non_tls: true\n{websocket}", jetstream=False) as server:
        port = free_port if websocket else server.port
        yield Transport(request.param, server, port, certificates)


@pytest.fixture
def proxy(transport: Transport) -> Iterator[FaultProxy]:
    with FaultProxy(transport.port) as between:
        yield between


def echoes(nc: Connection, data: bytes = b"x" * 5000) -> bool:
    sub = nc.subscribe("faults.echo")
    nc.publish("faults.echo", data)
    response = sub.next_msg(timeout=LATER).data
    sub.unsubscribe()
    return response == data


def test_a_trickle(transport, proxy):
    """If bytes arrive one by one, everything is slow and nothing is lost."""
    proxy.slow(piece=1)
    with transport.connect(proxy.port) as nc:
        assert echoes(nc)


@pytest.mark.matrix
@pytest.mark.parametrize("reset", [True, False], ids=["reset", "end"])
def test_a_cut_link(transport, proxy, reset):
    """A link that is cut anywhere is replaced, also in the middle of a record or a frame."""
    with transport.connect(proxy.port) as nc:
        sub = nc.subscribe("faults.cut")
        nc.flush()
        for cut, count in enumerate((3, 700, 30_000), 1):
            for toward in Toward:
                before = nc.stats["reconnects"]
                proxy.cut_after(count, toward, reset=reset)
                while nc.stats["reconnects"] == before:
                    with contextlib.suppress(OutboundBufferLimitError):
                        nc.publish("faults.cut", BIG)
                    drop(sub)
            assert nc.stats["reconnects"] >= 2 * cut
        wait_until(lambda: nc.is_connected, LATER)
        nc.flush(timeout=LATER)
        drop(sub)
        assert echoes(nc)
        assert nc.stats["errors_received"] == 0


def drop(sub: Any) -> bool:
    while sub.pending_msgs:
        assert sub.next_msg(timeout=LATER).data == BIG
    return True


def test_a_full_socket_does_not_stop_the_reader(transport, proxy):
    """While a publisher waits because the server does not read, messages are received."""
    with (
        transport.connect(proxy.port, allow_reconnect=False) as nc,
        jetstream_sync.connect(transport.server.url) as other,
    ):
        coming = nc.subscribe("faults.in", pending_bytes_limit=0, pending_msgs_limit=0)
        going = other.subscribe("faults.out", pending_bytes_limit=0, pending_msgs_limit=0)
        nc.flush()
        other.flush()
        proxy.hold(Toward.SERVER)
        published = []

        def publish() -> None:
            for number in range(300):
                nc.publish("faults.out", b"%06d" % number + BIG)
                published.append(number)

        publisher = threading.Thread(target=publish, daemon=True)
        publisher.start()
        stuck = [-1]

        def is_stuck() -> bool:
            publisher.join(0.1)
            stuck.append(len(published))
            return stuck[-1] == stuck[-2] > 0

        wait_until(is_stuck, LATER)
        assert publisher.is_alive()
        for number in range(200):
            other.publish("faults.in", b"%06d" % number + BIG)
        for number in range(200):
            assert coming.next_msg(timeout=LATER).data[:6] == b"%06d" % number
        assert publisher.is_alive()
        assert len(published) < 300
        proxy.heal()
        publisher.join(LATER)
        assert not publisher.is_alive()
        nc.flush(timeout=LATER)
        other.flush(timeout=LATER)
        for number in range(300):
            assert going.next_msg(timeout=LATER).data == b"%06d" % number + BIG


def test_a_fork(transport):
    """A child that closes its copy, or ends, does not affect the parent's stream of bytes."""
    with transport.connect(allow_reconnect=False) as nc:
        assert echoes(nc)
        in_child(nc.close)
        assert echoes(nc)
