"""WebSocket to a real nats-server: ports, logins, and refused connections."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from fixtures.threads import SCALE
from fixtures.tls import connect, echoes, refused

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
