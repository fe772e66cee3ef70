"""TLS against a real nats-server: trust, requirements on either side, and prompt errors."""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from queue import SimpleQueue
from typing import Any

import pytest
from fixtures.internals import engine_of, transport_of
from fixtures.proxy import Listener, ScriptedPeer
from fixtures.threads import SCALE, wait_until
from fixtures.tls import Certificates, connect, echoes, refused

import jetstream_sync
from jetstream_sync import (
    CertificateError,
    InvalidOptionError,
    ProtocolError,
    SecureConnectionError,
)
from jetstream_sync.address import ServerAddress
from jetstream_sync.client.transport import TransportOpener
from jetstream_sync.net.clock import Deadline
from jetstream_sync.options import ConnectionOptions, TLSOptions
from jetstream_sync.server import NatsServer
from jetstream_sync.server.runtime import reserve_port


def url_of(server: NatsServer, scheme: str = "nats", host: str = "127.0.0.1") -> str:
    return f"{scheme}://{host}:{server.port}"


@pytest.fixture(scope="module")
def server(certificates: Certificates) -> Iterator[NatsServer]:
    """A server that requires TLS."""
    with NatsServer(config=certificates.server()) as running:
        yield running


@pytest.fixture(scope="module")
def verifying(certificates: Certificates) -> Iterator[NatsServer]:
    """A server that requires a certificate of its clients."""
    with NatsServer(config=certificates.verifying(), jetstream=False) as running:
        yield running


# --- TLS on the client's or the server's demand -----------------------------------------------


@pytest.mark.parametrize("scheme", ["nats", "tls"])
@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_a_server_that_requires_tls(server, certificates, scheme, host):
    """It is reached by name and by address, with or without tls:// in its URL."""
    with connect(url_of(server, scheme, host), tls=certificates.trusted()) as nc:
        assert echoes(nc)
        assert nc.server_info.tls_required


def test_a_given_context_is_used_unchanged(server):
    """A given SSLContext is used unchanged; this one trusts any certificate."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    with connect(server.url, tls=context) as nc:
        assert echoes(nc)


@pytest.mark.parametrize("options", [{}, {"tls": True}, {"tls": TLSOptions()}])
def test_by_default_the_system_is_trusted(server, certificates, options, monkeypatch):
    """Without a given CA the system's are used, also if only the server requires TLS."""
    with refused(CertificateError, "authority that is not trusted here"):
        connect(server.url, **options)
    monkeypatch.setenv("SSL_CERT_FILE", str(certificates.path("ca")))
    with connect(server.url, **options) as nc:
        assert echoes(nc)


def test_tls_can_be_forbidden(server):
    """With tls=False a server that requires TLS is refused, and so is a tls:// URL."""
    with refused(SecureConnectionError, "the server requires TLS"):
        connect(server.url, tls=False)
    with refused(SecureConnectionError, "tls=False forbids it"):
        connect(url_of(server, "tls"), tls=False)


@pytest.mark.parametrize("how", ["scheme", "option"])
def test_a_server_without_tls_is_refused(nats_server, how):
    """If TLS is required by the client, no byte is sent in the clear."""
    with refused(SecureConnectionError, "the server does not offer it"):
        if how == "scheme":
            connect(url_of(nats_server, "tls"))
        else:
            connect(nats_server.url, tls=True)


def test_a_server_that_offers_tls(certificates):
    """TLS is used only on request; CONNECT says whether it is."""
    with NatsServer(config=certificates.server() + "\nallow_non_tls: true") as server:
        for options, encrypted in (({}, False), ({"tls": certificates.trusted()}, True)):
            with connect(server.url, **options) as nc:
                assert nc.server_info.tls_available
                assert echoes(nc)
                assert (type(transport_of(nc).stream).__name__ == "TLSStream") is encrypted


# --- the server's certificate -----------------------------------------------------------------


def test_the_name_to_check_can_be_given(certificates):
    """A server that is reached by its address can be checked against a name."""
    with NatsServer(config=certificates.server("elsewhere"), jetstream=False) as server:
        trusted = certificates.trusted()
        with connect(server.url, tls=trusted, tls_hostname="elsewhere.example") as nc:
            assert echoes(nc)
        with refused(CertificateError, "other.example is for another name"):
            connect(server.url, tls=trusted, tls_hostname="other.example")
        with refused(InvalidOptionError, "tls_hostname"):
            connect(server.url, tls=trusted, tls_hostname=".bad")


def test_a_discovered_server_is_verified_with_the_name_of_its_announcer(certificates):
    """A server known by its address alone is checked against the name of its announcer."""
    with NatsServer(config=certificates.server("elsewhere"), jetstream=False) as server:
        address = ServerAddress("127.0.0.1", server.port, tls_name="elsewhere.example")
        options = ConnectionOptions(servers=(address,), tls=certificates.trusted())
        link = TransportOpener(options).open(address, Deadline(2))
        link.stream.shutdown()
        link.stream.close()


# --- TLS is not given up ----------------------------------------------------------------------

LOGIN = 'authorization {user: "app", password: "secret"}'
QUICK: dict[str, Any] = {"reconnect_time_wait": 0.01, "max_reconnect_attempts": -1}


@contextmanager
def tls_and_plain(certificates: Certificates) -> Iterator[tuple[NatsServer, NatsServer]]:
    """Run two servers of one cluster; the first one requires TLS, the second one has none."""
    with ExitStack() as stack:
        # The ports stay reserved: no client gets the one of a stopped server as its own.
        ports = [reserve_port() for _ in range(2)]
        for _, holder in ports:
            if holder is not None:
                stack.enter_context(holder)
        routes = ", ".join(f'"nats://127.0.0.1:{port}"' for port, _ in ports)
        secure, plain = (
            stack.enter_context(
                NatsServer(
                    config=f"{more}\n{LOGIN}\n"
                    f'cluster {{name: "mixed", listen: "127.0.0.1:{port}", routes: [{routes}]}}',
                    jetstream=False,
                    name=name,
                )
            )
            for (port, _), name, more in zip(
                ports, ("secure", "plain"), (certificates.server(), ""), strict=True
            )
        )
        yield secure, plain


@pytest.mark.parametrize("how", ["discovered", "listed"])
@pytest.mark.parametrize("downgrade", [False, True])
def test_no_later_server_gets_the_login_without_tls(certificates, monkeypatch, how, downgrade):
    """No later server gets the login in the clear, unless ``tls_allow_downgrade`` is set."""
    monkeypatch.setenv("SSL_CERT_FILE", str(certificates.path("ca")))
    errors: SimpleQueue[Exception] = SimpleQueue()
    with tls_and_plain(certificates) as (secure, plain):
        options: dict[str, Any] = {"user": "app", "password": "secret", **QUICK}
        if downgrade:
            options["tls_allow_downgrade"] = True
        urls = [secure.url] if how == "discovered" else [secure.url, plain.url]
        nc = jetstream_sync.connect(
            urls, dont_randomize=True, error_cb=errors.put, connect_timeout=5 * SCALE, **options
        )
        with nc:
            assert nc.connected_url == secure.url
            wait_until(lambda: len(engine_of(nc).connector.pool.servers()) == 2)
            secure.kill()
            if downgrade:
                wait_until(lambda: nc.connected_url == plain.url)
                assert echoes(nc)
            else:
                error = errors.get(timeout=5 * SCALE)
                assert isinstance(error, SecureConnectionError)
                assert "used TLS" in str(error)
                assert "tls_allow_downgrade" in str(error)
                assert not nc.is_connected
                # The server with TLS is still accepted.
                secure.start()
                wait_until(lambda: nc.connected_url == secure.url)
            nc.close()


def test_a_refused_login_over_tls_is_not_tried_in_the_clear(certificates, nats_server, monkeypatch):
    """After a login over TLS no server without TLS is used."""
    monkeypatch.setenv("SSL_CERT_FILE", str(certificates.path("ca")))
    with NatsServer(config=f"{certificates.server()}\n{LOGIN}", jetstream=False) as secure:
        urls = [secure.url, nats_server.url]
        options: dict[str, Any] = {"user": "app", "password": "wrong", "dont_randomize": True}
        with pytest.raises(jetstream_sync.NoServersError, match="used TLS"):
            jetstream_sync.connect(urls, connect_timeout=5 * SCALE, **options)
        with jetstream_sync.connect(
            urls, connect_timeout=5 * SCALE, tls_allow_downgrade=True, **options
        ) as nc:
            assert nc.connected_url == nats_server.url


def test_a_plain_websocket_is_refused_after_tls(certificates, monkeypatch):
    """A ``ws://`` address cannot be upgraded, so a connection that used TLS refuses it."""
    monkeypatch.setenv("SSL_CERT_FILE", str(certificates.path("ca")))
    with NatsServer(config=f"{certificates.server()}\n{LOGIN}", jetstream=False) as secure:
        urls = [secure.url, "ws://127.0.0.1:1"]
        with pytest.raises(
            jetstream_sync.NoServersError, match=r"ws://.*: this connection used TLS"
        ):
            jetstream_sync.connect(urls, user="app", password="wrong", dont_randomize=True)


# --- the client's certificate -----------------------------------------------------------------


def test_a_client_with_a_certificate(verifying, certificates):
    """A server that verifies its clients accepts a certificate that it trusts."""
    with connect(verifying.url, tls=certificates.trusted("client")) as nc:
        assert echoes(nc)


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
@pytest.mark.parametrize("own", [None, "stranger", "outdated"])
def test_a_client_that_is_not_trusted(verifying, certificates, version, own):
    """
    No certificate, one of another CA, or an expired one is a typed error, quickly.

    With TLS 1.3 a server only says so after the handshake.
    """
    context = ssl.create_default_context(cafile=certificates.path("ca"))
    context.minimum_version = context.maximum_version = version
    if own is not None:
        context.load_cert_chain(certificates.path(own))
    for _ in range(5):
        with refused(SecureConnectionError, "certificate"):
            connect(verifying.url, tls=context)


# --- handshake first --------------------------------------------------------------------------


def test_handshake_first(certificates):
    """A server that begins with TLS accepts a client that does, too."""
    config = certificates.server(more="handshake_first: true")
    with NatsServer(config=config, jetstream=False) as server:
        trusted = certificates.trusted()
        with connect(server.url, tls=trusted, tls_handshake_first=True) as nc:
            assert echoes(nc)
        # The option alone requires TLS.
        with refused(CertificateError, "not trusted here"):
            connect(server.url, tls_handshake_first=True)


def test_handshake_first_with_a_server_that_does_not(server, nats_server, certificates):
    """Its INFO in the clear is reported as not TLS."""
    for item in (server, nats_server):
        with refused(SecureConnectionError, "the server does not speak TLS here"):
            connect(item.url, tls=certificates.trusted(), tls_handshake_first=True)


# --- scripted servers ---------------------------------------------------------------------------

INFO = b'INFO {"server_id":"S","tls_required":true,"max_payload":1048576}\r\n'


@pytest.mark.parametrize("behind", [b"PING\r\n", b"M", b"+OK\r\n-ERR", b"INFO"])
def test_nothing_may_come_between_info_and_tls(behind):
    """Bytes inserted before the handshake are not treated as protected by TLS."""
    heard: SimpleQueue[bytes] = SimpleQueue()

    def play(peer: ScriptedPeer) -> None:
        peer.send(INFO + behind)
        heard.put(peer.rest())

    with Listener(play) as listener:
        with refused(ProtocolError, "more than INFO before TLS"):
            connect(listener.url)
        assert heard.get(timeout=5 * SCALE) == b""
