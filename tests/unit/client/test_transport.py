"""The handshake, the fields of CONNECT, and secrets that are removed from memory."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
from fixtures.jwt import Account, User
from hypothesis import given
from hypothesis import strategies as st

from jetstream_sync import errors
from jetstream_sync.address import parse_servers
from jetstream_sync.client import transport
from jetstream_sync.client.transport import Credentials, Handshake, Login
from jetstream_sync.options import ConnectionOptions
from jetstream_sync.protocol.parser import ErrorLine, Info, Messages, Ok, Ping, Pong, ServerInfo

USER = User()
SERVERS = parse_servers(["nats://127.0.0.1"])
CREDS = USER.creds(Account().user(USER))


# --- the handshake ------------------------------------------------------------------------------


#: The fields of an INFO.
INFO = {"server_name": "n1", "version": "2.15.1", "connect_urls": ["127.0.0.1:4222"]}


def connect(info):
    return b"CONNECT %b\r\n" % info.server_name.encode()


def test_the_handshake_of_a_server():
    """INFO is answered with CONNECT and PING; the PONG confirms the login."""
    handshake = Handshake(connect)
    assert (handshake.info, handshake.done) == (None, False)
    assert handshake.receive(Info(INFO)) == b"CONNECT n1\r\nPING\r\n"
    assert handshake.info == ServerInfo.from_fields(INFO)
    assert handshake.receive(Ok()) == b"", "a verbose server confirms CONNECT"
    assert not handshake.done
    assert handshake.receive(Pong()) == b""
    assert handshake.done


def test_the_server_may_ping_at_any_time():
    """A PING is answered, also before INFO."""
    handshake = Handshake(connect)
    assert handshake.receive(Ping()) == b"PONG\r\n"
    handshake.receive(Info(INFO))
    assert handshake.receive(Ping()) == b"PONG\r\n"
    assert not handshake.done


def test_a_second_info_brings_news_only():
    """A second INFO during a handshake updates the cluster, without a second CONNECT."""
    handshake = Handshake(connect)
    handshake.receive(Info(INFO))
    assert handshake.receive(Info({**INFO, "server_name": "n2"})) == b""
    assert handshake.info.server_name == "n2"


@pytest.mark.parametrize("operation", [Pong(), Ok(), Messages(1, [(b"a", b"", b"", b"")])])
def test_info_comes_first(operation):
    """A peer that does not start with INFO is not a NATS server."""
    with pytest.raises(errors.ProtocolError, match="expected INFO"):
        Handshake(connect).receive(operation)


@pytest.mark.parametrize("informed", [False, True])
def test_a_server_may_refuse(informed):
    """-ERR ends the handshake with the matching error."""
    handshake = Handshake(connect)
    if informed:
        handshake.receive(Info(INFO))
    with pytest.raises(errors.AuthorizationError):
        handshake.receive(ErrorLine("Authorization Violation"))
    with pytest.raises(errors.ServerRefusedError):
        handshake.receive(ErrorLine("maximum connections exceeded"))


def test_a_client_may_refuse():
    """An exception while CONNECT is created ends the handshake."""

    def refuse(info):
        assert info.version == "2.15.1"
        raise errors.SecureConnectionError("no TLS")

    with pytest.raises(errors.SecureConnectionError):
        Handshake(refuse).receive(Info(INFO))


# --- CONNECT ------------------------------------------------------------------------------------


def connect_of(info=None, **options):
    """Return the fields of CONNECT for an INFO."""
    given = ConnectionOptions(servers=SERVERS, **options)
    command = Login(given, "1.2").command(SERVERS[0], info or ServerInfo(), is_secure=False)
    return json.loads(command.removeprefix(b"CONNECT "))


def test_the_fields_of_connect():
    """CONNECT has the client, its version, and the support of headers and no responders."""
    made = connect_of(name="me", pedantic=True, no_echo=True)
    assert (
        made.items()
        >= {
            "name": "me",
            "version": "1.2",
            "verbose": False,
            "pedantic": True,
            "echo": False,
            "headers": True,
            "no_responders": True,
            "protocol": 1,
            "tls_required": False,
        }.items()
    )
    assert made["lang"]
    assert "name" not in connect_of()
    without = connect_of(ServerInfo(accepts_headers=False))
    assert (without["headers"], without["no_responders"]) == (False, False)


@given(st.text(max_size=8))
def test_connect_is_one_line_of_json(name):
    """CONNECT is one line, even for a name with line ends."""
    options = ConnectionOptions(servers=SERVERS, user=name)
    command = Login(options, "1").command(SERVERS[0], ServerInfo(), is_secure=True)
    assert command.startswith(b"CONNECT {")
    assert command.count(b"\r\n") == command.count(b"\n") == 1
    assert json.loads(command.removeprefix(b"CONNECT "))["user"] == name


# --- logins -------------------------------------------------------------------------------------


def options(way: str, path: Path) -> ConnectionOptions:
    """Return options for a login with a key, for each way to give its seed."""
    if way == "creds":
        path.write_text(CREDS)
        return ConnectionOptions(servers=SERVERS, user_credentials=str(path))
    if way == "creds function":
        return ConnectionOptions(servers=SERVERS, user_credentials=lambda: CREDS)
    if way == "seed":
        path.write_text(USER.seed)
        return ConnectionOptions(servers=SERVERS, nkeys_seed=str(path))
    return ConnectionOptions(servers=SERVERS, nkeys_seed_str=USER.seed)


@pytest.mark.parametrize(
    ("credentials", "fields"),
    [
        (Credentials(), {}),
        (Credentials("u", ""), {"user": "u", "pass": ""}),
        (Credentials(token="t"), {"auth_token": "t"}),
        (Credentials(jwt="j", signature="s"), {"jwt": "j", "sig": "s"}),
        (Credentials(nkey="n", signature="s"), {"nkey": "n", "sig": "s"}),
    ],
)
def test_the_fields_are_those_of_the_protocol(credentials, fields):
    """Missing values are not in CONNECT; empty ones are."""
    assert credentials.connect_fields() == fields


def test_credentials_do_not_show():
    """Neither `repr` nor `str` shows a value."""
    credentials = Credentials(*["s3cret"] * 6)
    assert "s3cret" not in f"{credentials!r} {credentials}"
    assert all(not field.repr for field in dataclasses.fields(credentials))


@pytest.mark.parametrize("fails", [False, True])
@pytest.mark.parametrize("way", ["creds", "creds function", "seed", "seed string"])
def test_a_seed_is_wiped_after_its_use(monkeypatch, tmp_path, way, fails):
    """After a login, also a failed one, neither the seed nor its source text is in memory."""
    pytest.importorskip("nkeys")
    found: list[bytearray] = []
    find, key = transport.find_seed, transport.Key

    def finding(content: bytearray) -> bytearray:
        seed = find(content)
        found.extend((content, seed))
        assert all(found)
        return seed

    class FailingKey(key):  # type: ignore[misc, valid-type]
        def sign(self, nonce: str) -> str:
            raise OSError(nonce)

    monkeypatch.setattr(transport, "find_seed", finding)
    login: Any = Login(options(way, tmp_path / "login"), "1.0")
    info = ServerInfo(nonce="nonce")
    if fails:
        monkeypatch.setattr(transport, "Key", FailingKey)
        with pytest.raises(OSError, match="nonce"):
            login.login_fields(SERVERS[0], info)
    else:
        assert login.login_fields(SERVERS[0], info)["sig"]
    assert len(found) == 2
    assert not any(any(item) for item in found)
