"""Logins: the fields of CONNECT, and secrets that are removed from memory."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
from fixtures.jwt import Account, User

from jetstream_sync.address import parse_servers
from jetstream_sync.client import login
from jetstream_sync.client.login import Credentials, Login
from jetstream_sync.options import ConnectionOptions
from jetstream_sync.protocol.session import ServerInfo

USER = User()
SERVERS = parse_servers(["nats://127.0.0.1"])
CREDS = USER.creds(Account().user(USER))


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
    find, key = login.find_seed, login.Key

    def finding(content: bytearray) -> bytearray:
        seed = find(content)
        found.extend((content, seed))
        assert all(found)
        return seed

    class FailingKey(key):  # type: ignore[misc, valid-type]
        def sign(self, nonce: str) -> str:
            raise OSError(nonce)

    monkeypatch.setattr(login, "find_seed", finding)
    given: Any = Login(options(way, tmp_path / "login"), "1.0")
    info = ServerInfo(nonce="nonce")
    if fails:
        monkeypatch.setattr(login, "Key", FailingKey)
        with pytest.raises(OSError, match="nonce"):
            given.login_fields(SERVERS[0], info)
    else:
        assert given.login_fields(SERVERS[0], info)["sig"]
    assert len(found) == 2
    assert not any(any(item) for item in found)
