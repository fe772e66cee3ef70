"""The fields of CONNECT, and secrets that are removed from memory."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from fixtures.jwt import Account, User
from hypothesis import given
from hypothesis import strategies as st

from jetstream_sync.address import parse_servers
from jetstream_sync.client import transport
from jetstream_sync.client.transport import Login
from jetstream_sync.options import ConnectionOptions
from jetstream_sync.protocol.parser import ServerInfo
from jetstream_sync.version import __version__

USER = User()
SERVERS = parse_servers(["nats://127.0.0.1"])
CREDS = USER.creds(Account().user(USER))


# --- CONNECT ------------------------------------------------------------------------------------


def connect_of(info=None, **options):
    """Return the fields of CONNECT for an INFO."""
    given = ConnectionOptions(servers=SERVERS, **options)
    command = Login(given).command(SERVERS[0], info or ServerInfo(), is_secure=False)
    return json.loads(command.removeprefix(b"CONNECT "))


def test_the_fields_of_connect():
    """CONNECT has the client, its version, and the support of headers and no responders."""
    made = connect_of(name="me", pedantic=True, no_echo=True)
    assert (
        made.items()
        >= {
            "name": "me",
            "version": __version__,
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
    command = Login(options).command(SERVERS[0], ServerInfo(), is_secure=True)
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
    login: Any = Login(options(way, tmp_path / "login"))
    info = ServerInfo(nonce="nonce")
    if fails:
        monkeypatch.setattr(transport, "Key", FailingKey)
        with pytest.raises(OSError, match="nonce"):
            login.credentials(SERVERS[0], info)
    else:
        assert login.credentials(SERVERS[0], info).signature
    assert len(found) == 2
    assert not any(any(item) for item in found)
