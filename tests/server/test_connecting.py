"""Connecting: the order of servers, refused connections, and the properties of a connection."""

from __future__ import annotations

import socket
import threading
import time
import traceback
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from queue import SimpleQueue
from typing import Any

import pytest
from fixtures.internals import core_of
from fixtures.proxy import Listener, ScriptedPeer, black_hole
from fixtures.threads import SCALE, wait_until, within

import jetstream_sync
from jetstream_sync import (
    Connection,
    ConnectionClosedError,
    ConnectionLostError,
    ConnectionStatus,
    InvalidOptionError,
    NoServersError,
    ProtocolError,
    SecureConnectionError,
    ServerRefusedError,
)
from jetstream_sync.server import NatsServer

PASSWORD = "open-sesame-4711"
USER_CONFIG = f'authorization {{ user: worker, password: "{PASSWORD}" }}'


def shown(error: BaseException) -> str:
    """Return the text of an error as a log shows it, with its causes."""
    return "".join(traceback.format_exception(error)) + repr(error) + str(error)


def echoes(nc: Connection) -> bool:
    """Return whether a message makes a round trip."""
    with nc.subscribe("echo.test") as sub:
        nc.publish("echo.test", b"hello")
        return sub.next_msg(timeout=5).data == b"hello"


@pytest.fixture
def dead_url() -> Iterator[str]:
    """A URL with a port that is reserved and not listened on during the test."""
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))  # and no listen()
        yield f"nats://127.0.0.1:{holder.getsockname()[1]}"


@pytest.fixture(scope="module")
def user_server() -> Iterator[NatsServer]:
    """A server that requires a user and a password."""
    with NatsServer(name="users", config=USER_CONFIG, jetstream=False) as server:
        yield server


# --- servers ----------------------------------------------------------------------------------


@pytest.mark.parametrize("joined", [False, True], ids=["list", "commas"])
def test_dead_servers_in_front_are_passed_over(nats_server, dead_url, joined):
    """The first server that accepts is used, after any number of unreachable ones."""
    urls = [dead_url, "nats://no-such-host.invalid:4222", nats_server.url]
    servers: Any = ",".join(urls) if joined else urls
    with jetstream_sync.connect(servers, dont_randomize=True) as nc:
        assert nc.connected_url == nats_server.url
        assert echoes(nc)


@pytest.mark.parametrize(("option", "value"), [("passwd", PASSWORD), ("connect_timeout", 0)])
def test_an_invalid_option_is_refused_by_name(option, value):
    """An option that is unknown or out of range is refused by name before connecting."""
    options: Any = {option: value}
    with black_hole() as listening:
        url = f"nats://127.0.0.1:{listening.getsockname()[1]}"
        with pytest.raises(InvalidOptionError) as caught:
            jetstream_sync.connect(url, **options)
        assert caught.value.option == option
        assert PASSWORD not in shown(caught.value)
        listening.settimeout(0)
        with pytest.raises(BlockingIOError):
            listening.accept()


# --- unreachable servers ----------------------------------------------------------------------


def test_no_server_is_an_error_that_names_address_and_reason(dead_url):
    """Without a listening server, the error names the address and the reason at once."""
    with within(1.0), pytest.raises(NoServersError) as caught:
        jetstream_sync.connect(dead_url)
    [(address, reason)] = caught.value.attempts
    assert address == dead_url
    assert "refused" in reason.lower()
    assert dead_url in str(caught.value)
    assert isinstance(caught.value.__cause__, ConnectionRefusedError)


@pytest.mark.parametrize("host", ["a..b", "x" * 70 + ".org"])
def test_a_host_name_that_dns_cannot_express_is_an_unreachable_server(host):
    with pytest.raises(NoServersError, match="is invalid"):
        jetstream_sync.connect(f"nats://{host}:4222")


def test_every_server_that_was_tried_is_named(dead_url):
    """When several servers cannot be reached, each is named with its own reason."""
    other = "nats://no-such-host.invalid:4222"
    with pytest.raises(NoServersError) as caught:
        jetstream_sync.connect([dead_url, other], dont_randomize=True)
    assert [address for address, _ in caught.value.attempts] == [dead_url, other]
    assert len({reason for _, reason in caught.value.attempts}) == 2


def test_a_server_that_never_answers_takes_the_connect_timeout():
    """A server that accepts and stays silent is given up after connect_timeout."""
    with black_hole() as listening:
        url = f"nats://127.0.0.1:{listening.getsockname()[1]}"
        began = time.monotonic()
        with within(1.3), pytest.raises(NoServersError) as caught:
            jetstream_sync.connect(url, connect_timeout=0.3)
        assert time.monotonic() - began >= 0.3
    assert caught.value.attempts == ((url, "timed out"),)


def test_connect_timeout_covers_the_whole_handshake():
    """The connect_timeout is for the whole handshake, not for each byte of it."""

    def trickle(peer: ScriptedPeer) -> None:
        peer.send(b"INFO {")
        ended = threading.Event()
        while not ended.wait(0.05):
            peer.send(b" ")

    with (
        Listener(trickle) as listener,
        within(1.3),
        pytest.raises(NoServersError, match="too long|timed out"),
    ):
        jetstream_sync.connect(listener.url, connect_timeout=0.3)


# --- logging in -------------------------------------------------------------------------------


def test_the_right_password_by_option_and_by_url(user_server):
    """A user and password log in by option and by URL, and are not shown anywhere."""
    by_url = user_server.url.replace("//", f"//worker:{PASSWORD}@")
    ways: list[tuple[str, dict[str, Any]]] = [
        (user_server.url, {"user": "worker", "password": PASSWORD}),
        (by_url, {}),
        (by_url, {"user": "worker", "password": "wrong"}),  # the URL comes first
    ]
    for url, options in ways:
        with jetstream_sync.connect(url, **options) as nc:
            assert echoes(nc)
            assert nc.connected_url == user_server.url
            assert PASSWORD not in repr(nc) + repr(nc.server_info) + repr(core_of(nc).options)


# --- servers that refuse ----------------------------------------------------------------------


def test_a_server_that_requires_tls_gets_no_login_in_the_clear():
    """When the server requires TLS, no password is sent before the TLS handshake."""
    heard: SimpleQueue[bytes] = SimpleQueue()

    def require_tls(peer: ScriptedPeer) -> None:
        peer.send(b'INFO {"server_id":"S","tls_required":true,"max_payload":1048576}\r\n')
        record = peer.read(5)
        heard.put(record + peer.read(int.from_bytes(record[3:], "big")))
        peer.close()

    with Listener(require_tls) as listener:
        with within(1.0), pytest.raises(SecureConnectionError) as caught:
            jetstream_sync.connect(listener.url, user="worker", password=PASSWORD)
        hello = heard.get(timeout=5 * SCALE)
    assert hello[:2] == b"\x16\x03"
    assert PASSWORD.encode() not in hello
    assert listener.url in str(caught.value)
    assert PASSWORD not in shown(caught.value)


def test_the_error_of_a_full_server_is_quoted():
    """The refusal of a server with too many connections is in the error."""
    with (
        NatsServer(config="max_connections: 1", jetstream=False) as server,
        jetstream_sync.connect(server.url) as nc,
    ):
        with pytest.raises(ServerRefusedError, match="maximum connections exceeded"):
            jetstream_sync.connect(server.url)
        assert echoes(nc)


# --- not NATS ---------------------------------------------------------------------------------

HTTP = b"HTTP/1.1 400 Bad Request\r\nContent-Type: text/html\r\n\r\n<h1>Bad Request</h1>"
SSH = b"SSH-2.0-OpenSSH_9.6\r\n"
NOISE = bytes(range(128, 256)) * 8


@pytest.mark.parametrize(
    ("banner", "start"),
    [
        (HTTP, b"HTTP/1.1 400 Bad Request"),
        (SSH, b"SSH-2.0-OpenSSH_9.6"),
        (NOISE, bytes(range(128, 192))),
        (b"INFO {not json}\r\n", b"INFO {not json}"),
        (b"INFO []\r\n", b"INFO []"),
    ],
    ids=["http", "ssh", "noise", "no json", "no object"],
)
def test_a_peer_without_nats_is_an_error_with_its_first_bytes(banner, start):
    """A peer that does not speak NATS is an error at once, with its first bytes."""
    with (
        Listener(lambda peer: peer.send(banner)) as listener,
        within(1.0),
        pytest.raises(ProtocolError) as caught,
    ):
        jetstream_sync.connect(listener.url)
    assert caught.value.excerpt.startswith(start)
    assert len(caught.value.excerpt) <= 64
    assert repr(start)[2:-1] in str(caught.value)
    assert listener.url in str(caught.value)


@pytest.mark.parametrize("before", [b"", b"INFO {}\r\n", b"INF"], ids=["nothing", "INFO", "half"])
def test_a_server_that_hangs_up_at_once(before):
    """A peer that closes during the handshake is reported as closed or reset."""

    def hang_up(peer: ScriptedPeer) -> None:
        peer.send(before)
        peer.close()

    with (
        Listener(hang_up) as listener,
        within(1.0),
        pytest.raises((ConnectionLostError, NoServersError)) as caught,
    ):
        jetstream_sync.connect(listener.url)
    assert listener.url in str(caught.value)
    assert isinstance(caught.value, ConnectionLostError) or before  # our CONNECT may be reset


# --- properties of a connection ---------------------------------------------------------------


def test_a_connection_knows_its_server(nats_server):
    """A connection has its server's URL and INFO, and its own status."""
    nc = jetstream_sync.connect(nats_server.url)
    assert nc.status is ConnectionStatus.CONNECTED
    assert nc.is_connected
    assert not nc.is_closed
    assert not nc.is_reconnecting
    assert not nc.is_draining
    assert nc.connected_url == nats_server.url
    assert nc.server_info.version == nats_server.version
    assert nc.server_info.server_name == "shared"
    assert nc.server_info.port == nats_server.port
    assert nc.server_info.jetstream
    assert nc.server_info.headers
    assert nc.max_payload == 1024 * 1024
    assert nc.last_error is None
    assert nats_server.url in repr(nc)
    assert "connected" in repr(nc)
    nc.close()
    assert nc.status is ConnectionStatus.CLOSED
    assert nc.is_closed
    assert not nc.is_connected
    assert isinstance(nc.last_error, ConnectionClosedError)
    assert "closed" in repr(nc)


# --- invalid bytes from the server ------------------------------------------------------------


GARBAGE = pytest.mark.parametrize(
    "garbage",
    [b"WHAT is this\r\n", b"MSG a 1 -5\r\n\r\n", b"MSG a 1 2\r\nlonger\r\n", b"\x00\x01\x02"],
    ids=["unknown", "negative size", "other size", "binary"],
)


@GARBAGE
def test_garbage_in_mid_stream_breaks_the_link(garbage):
    """Bytes that are not NATS end the link, are quoted in the reported error, and lead to a reconnect."""
    errors: SimpleQueue[Exception] = SimpleQueue()
    with Listener() as listener, ThreadPoolExecutor() as pool:
        nc = jetstream_sync.connect(listener.url, error_cb=errors.put)
        sub = nc.subscribe("orders")
        waiter = pool.submit(sub.next_msg, timeout=None)
        peer = listener.take()
        assert peer.line().startswith(b"SUB orders")
        peer.send(b"MSG orders %d 5\r\nfirst\r\n" % sub.sid)
        assert waiter.result(5 * SCALE).data == b"first"
        waiter = pool.submit(sub.next_msg, timeout=None)
        peer.send(garbage)
        error = errors.get(timeout=5 * SCALE)
        assert isinstance(error, ProtocolError), error
        assert error.excerpt
        assert garbage.startswith(error.excerpt)
        assert repr(error.excerpt) in str(error)
        wait_until(lambda: nc.stats["reconnects"])
        again = listener.take(1)
        assert again.line().startswith(b"SUB orders")
        again.send(b"MSG orders %d 6\r\nsecond\r\n" % sub.sid)
        assert waiter.result(5 * SCALE).data == b"second"
        nc.close()


def test_a_server_without_headers():
    """With ``no_header_support``, messages without headers pass, and others raise an error that says so."""
    with (
        NatsServer(config="no_header_support: true", jetstream=False) as server,
        jetstream_sync.connect(server.url) as nc,
    ):
        sub = nc.subscribe("a")
        nc.publish("a", b"x")
        assert sub.next_msg(5).data == b"x"
        with pytest.raises(jetstream_sync.InvalidHeaderError, match="no_header_support"):
            nc.publish("a", b"x", headers={"A": "1"})
        with pytest.raises(jetstream_sync.InvalidHeaderError, match="no_header_support"):
            nc.request("a", b"x", timeout=5, headers={"A": "1"})
        assert nc.is_connected
