"""The handshake, the subscriptions, and the meaning of the server's errors."""

from __future__ import annotations

import dataclasses
import json

import pytest

from jetstream_sync import errors
from jetstream_sync.protocol.parser import (
    ErrorLine,
    Info,
    Messages,
    Ok,
    Parser,
    Ping,
    Pong,
    ends_connection,
    error_from_text,
)
from jetstream_sync.protocol.session import (
    Handshake,
    ServerInfo,
    Session,
    connect_fields,
)

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


# --- the handshake ------------------------------------------------------------------------------


def fields(info):
    return {"name": info.server_name}


def test_the_handshake_of_a_server():
    """INFO is answered with CONNECT and PING; the PONG confirms the login."""
    handshake = Handshake(fields)
    assert (handshake.info, handshake.done) == (None, False)
    assert handshake.receive(Info(INFO)) == b'CONNECT {"name":"n1"}\r\nPING\r\n'
    assert handshake.info == ServerInfo.from_fields(INFO)
    assert handshake.receive(Ok()) == b"", "a verbose server confirms CONNECT"
    assert not handshake.done
    assert handshake.receive(Pong()) == b""
    assert handshake.done


def test_the_server_may_ping_at_any_time():
    """A PING is answered, also before INFO."""
    handshake = Handshake(fields)
    assert handshake.receive(Ping()) == b"PONG\r\n"
    handshake.receive(Info(INFO))
    assert handshake.receive(Ping()) == b"PONG\r\n"
    assert not handshake.done


def test_a_second_info_brings_news_only():
    """A second INFO during a handshake updates the cluster, without a second CONNECT."""
    handshake = Handshake(fields)
    handshake.receive(Info(INFO))
    assert handshake.receive(Info({**INFO, "server_name": "n2"})) == b""
    assert handshake.info.server_name == "n2"


@pytest.mark.parametrize("operation", [Pong(), Ok(), Messages(1, [(b"a", b"", b"", b"")])])
def test_info_comes_first(operation):
    """A peer that does not start with INFO is not a NATS server."""
    with pytest.raises(errors.ProtocolError, match="expected INFO"):
        Handshake(fields).receive(operation)


@pytest.mark.parametrize("informed", [False, True])
def test_a_server_may_refuse(informed):
    """-ERR ends the handshake with the matching error."""
    handshake = Handshake(fields)
    if informed:
        handshake.receive(Info(INFO))
    with pytest.raises(errors.AuthorizationError):
        handshake.receive(ErrorLine("Authorization Violation"))
    with pytest.raises(errors.ServerRefusedError):
        handshake.receive(ErrorLine("maximum connections exceeded"))


def test_a_client_may_refuse():
    """An exception while the CONNECT fields are created ends the handshake."""

    def refuse(info):
        assert info.version == "2.15.1"
        raise errors.SecureConnectionError("no TLS")

    with pytest.raises(errors.SecureConnectionError):
        Handshake(refuse).receive(Info(INFO))


def test_the_fields_of_connect():
    """CONNECT has the client, its version, and the support of headers and no responders."""
    made = connect_fields(name="me", version="1.2", verbose=False, pedantic=True, echo=False)
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
        }.items()
    )
    assert made["lang"]
    json.dumps(made)
    nameless = connect_fields(name=None, version="1", verbose=True, pedantic=False, echo=True)
    assert "name" not in nameless


# --- subscriptions --------------------------------------------------------------------------------


class Receiver:
    """A receiver of messages."""

    subscription = None


def test_subscriptions_have_numbers_of_their_own():
    """A sid is never reused."""
    session = Session()
    first, said = session.subscribe("a", "", Receiver())
    assert said == b"SUB a 1\r\n"
    assert session.unsubscribe(first) == b"UNSUB 1\r\n"
    receiver = Receiver()
    second, said = session.subscribe("b.*", "q", receiver)
    assert said == b"SUB b.* q 2\r\n"
    assert session.subscriptions == {2: second}
    assert (second.sid, second.subject, second.queue) == (2, "b.*", "q")
    assert second.receiver is receiver
    assert receiver.subscription is second


def test_unsubscribing_after_some_messages():
    """The limit counts from the start of the subscription; the subscription is kept until it is reached."""
    session = Session()
    subscription, _ = session.subscribe("a", "", Receiver())
    subscription.delivered = 2
    assert session.unsubscribe(subscription, 5) == b"UNSUB 1 5\r\n"
    assert subscription.limit == 5
    assert session.subscriptions == {1: subscription}
    assert session.unsubscribe(subscription, 4) == b"UNSUB 1 4\r\n"
    assert subscription.limit == 4


@pytest.mark.parametrize("limit", [0, 1, 2])
def test_unsubscribing_when_the_limit_is_reached(limit):
    """A subscription that has already received as many messages ends at once."""
    session = Session()
    subscription, _ = session.subscribe("a", "", Receiver())
    subscription.delivered = 2
    assert session.unsubscribe(subscription, limit) == b"UNSUB 1\r\n"
    assert session.subscriptions == {}


def test_messages_in_flight_are_delivered_after_unsub():
    """UNSUB is sent at once; messages in flight are delivered until the subscription is removed."""
    session = Session()
    subscription, _ = session.subscribe("a", "", Receiver())
    assert session.stop(subscription) == b"UNSUB 1\r\n"
    assert subscription.ending
    assert session.subscriptions == {1: subscription}
    session.forget(subscription)
    assert session.subscriptions == {}


def test_every_subscription_is_sent_to_a_new_server():
    """Subscriptions are restored with their remaining limits; ended ones are not."""
    session = Session()
    assert session.resubscribe() == b""
    _, first = session.subscribe("a", "", Receiver())
    limited, second = session.subscribe("b", "q", Receiver())
    ending, _ = session.subscribe("c", "", Receiver())
    ended, _ = session.subscribe("d", "", Receiver())
    limited.delivered = 3
    session.unsubscribe(limited, 10)
    session.stop(ending)
    session.unsubscribe(ended)
    assert session.resubscribe() == first + second + b"UNSUB 2 7\r\n"
    limited.delivered = 9
    assert session.resubscribe() == first + second + b"UNSUB 2 1\r\n"


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
