"""INFO, and the meaning of the server's errors."""

from __future__ import annotations

import dataclasses

import pytest

from jetstream_sync import errors
from jetstream_sync.protocol.parser import Parser, ServerInfo, ends_connection, error_from_text

# An INFO as nats-server 2.15 sends it.
INFO = {
    "server_id": "NDJWE4SOUJOJT2TY5Y2YQEOAHGAK5VIGXTGKWJSFHVCII4ITI3LBHBUV",
    "server_name": "n1",
    "version": "2.15.1",
    "proto": 1,
    "go": "go1.25.1",
    "host": "0.0.0.0",
    "port": 4222,
    "headers": True,
    "auth_required": True,
    "tls_required": False,
    "max_payload": 2097152,
    "jetstream": True,
    "client_id": 6,
    "client_ip": "127.0.0.1",
    "cluster": "C1",
    "connect_urls": ["127.0.0.1:4222", "127.0.0.1:4223"],
    "nonce": "s3cret-nonce",
    "xkey": "X",
}


# --- INFO ---------------------------------------------------------------------------------------


def test_info_is_read():
    """Each known field of INFO is decoded, and `fields` has all fields."""
    info = ServerInfo.from_fields(INFO)
    for name in INFO.keys() - {"connect_urls", "proto", "go", "xkey"}:
        assert getattr(info, name) == INFO[name]
    assert info.connect_urls == ("127.0.0.1:4222", "127.0.0.1:4223")
    assert info.fields == INFO
    assert "s3cret" not in repr(info)


@pytest.mark.parametrize("junk", [None, True, 1.5, [], {}, "text", 7, ["x", 5]])
def test_a_field_of_another_type_keeps_its_default(junk):
    """A field with the wrong type has its default."""
    for field in dataclasses.fields(ServerInfo):
        if field.name in ("fields", "connect_urls", "ws_connect_urls"):
            continue
        default = getattr(ServerInfo(), field.name)
        expected = junk if type(junk) is type(default) else default
        got = getattr(ServerInfo.from_fields({field.name: junk}), field.name)
        assert (got, type(got)) == (expected, type(expected))
    for name in ("connect_urls", "ws_connect_urls"):
        urls = getattr(ServerInfo.from_fields({name: junk}), name)
        assert urls == (("x",) if junk == ["x", 5] else ())


# --- errors of the server -------------------------------------------------------------------------

# Texts that nats-server 2.15 sends to a client as -ERR (client.go, server.go, accounts.go, parser.go,
# route.go), their meaning, and whether a close follows.
TEXTS = [
    ("Authorization Violation", errors.AuthorizationError, True),
    ("Authentication Timeout", errors.AuthorizationError, True),
    ("User Authentication Expired", errors.AuthenticationExpiredError, True),
    ("User Authentication Revoked", errors.AuthenticationExpiredError, True),
    ("Account Authentication Expired", errors.AuthenticationExpiredError, True),
    ("Failed Account Registration", errors.ServerRefusedError, True),
    ("Stale Connection", errors.StaleConnectionError, True),
    ("Secure Connection - TLS Required", errors.SecureConnectionError, True),
    ("maximum connections exceeded", errors.ServerRefusedError, True),
    ("Maximum Payload Violation", errors.ServerRefusedError, True),
    ("maximum control line exceeded", errors.ServerRefusedError, True),
    ("Unknown Protocol Operation", errors.ServerRefusedError, True),
    ("attempted to connect to route port", errors.ServerRefusedError, True),
    ('Permissions Violation for Publish to "stale.connection"', errors.PermissionsError, False),
    ('Permissions Violation for Publish with Reply of "r"', errors.PermissionsError, False),
    ('Permissions Violation for Subscription to "a.>"', errors.PermissionsError, False),
    ("maximum subscriptions exceeded", errors.SubscriptionError, False),
    ("Invalid Subject", errors.SubscriptionError, False),
    ("Invalid Publish Subject", errors.SubscriptionError, False),
    # A possible addition of a newer server.
    ("Something New", errors.ServerRefusedError, True),
]


@pytest.mark.parametrize(("text", "cls", "closes"), TEXTS)
def test_the_servers_complaints(text, cls, closes):
    """Each -ERR has its class and keeps its text; some concern one subject and not the connection."""
    (operation,) = Parser().feed(f"-ERR '{text}'\r\n".encode())
    error = error_from_text(operation.text)
    assert type(error) is cls
    assert str(error) == text
    assert ends_connection(error) is closes
    assert isinstance(error, errors.ConnectionClosedError) is closes
