"""The handshake: INFO, then CONNECT and PING, then PONG."""

from __future__ import annotations

import json

import pytest

from jetstream_sync import errors
from jetstream_sync.protocol.parser import Handshake, Messages, ServerInfo

#: The fields of an INFO.
FIELDS = {"server_name": "n1", "version": "2.15.1", "connect_urls": ["127.0.0.1:4222"]}


def info(**fields: object) -> bytes:
    """Return the INFO of a server."""
    return b"INFO %b\r\n" % json.dumps({**FIELDS, **fields}).encode()


def test_the_handshake_of_a_server():
    """After INFO it waits for the next call; the PONG confirms the login."""
    handshake = Handshake()
    assert handshake.feed(info()[:10]) == b""
    assert (handshake.info, handshake.done) == (None, False)
    assert handshake.feed(info()[10:]) == b""
    assert handshake.info == ServerInfo.from_fields(FIELDS)
    assert handshake.feed(b"+OK\r\n") == b"", "a verbose server confirms CONNECT"
    assert not handshake.done
    assert handshake.feed(b"PONG\r\nMSG a 1 1\r\nx\r\n") == b""
    assert handshake.done
    assert list(handshake.left) == [Messages(1, [(b"a", b"", b"", b"x")])]


def test_what_follows_the_info_is_left_to_the_next_call():
    """The caller secures the connection first, and refuses what was sent before that."""
    handshake = Handshake()
    handshake.feed(info() + b"-ERR 'Authorization Violation'\r\nPONG\r\n")
    assert handshake.info is not None
    assert not handshake.done
    with pytest.raises(errors.AuthorizationError):
        handshake.feed(b"")


def test_the_server_may_ping_at_any_time():
    """A PING is answered, also before INFO."""
    handshake = Handshake()
    assert handshake.feed(b"PING\r\nPING\r\n") == b"PONG\r\nPONG\r\n"
    handshake.feed(info())
    assert handshake.feed(b"PING\r\n") == b"PONG\r\n"
    assert not handshake.done


def test_a_second_info_updates_the_first():
    """A second INFO during a handshake does not end the call."""
    handshake = Handshake()
    handshake.feed(info())
    handshake.feed(info(server_name="n2") + b"PONG\r\n")
    assert handshake.info is not None
    assert handshake.info.server_name == "n2"
    assert handshake.done


@pytest.mark.parametrize("operation", [b"PONG\r\n", b"+OK\r\n", b"MSG a 1 0\r\n\r\n"])
def test_info_comes_first(operation):
    """A peer that does not start with INFO is not a NATS server."""
    with pytest.raises(errors.ProtocolError, match="expected INFO"):
        Handshake().feed(operation)


@pytest.mark.parametrize("informed", [False, True])
def test_a_server_may_refuse(informed):
    """-ERR ends the handshake with the matching error."""
    handshake = Handshake()
    if informed:
        handshake.feed(info())
    with pytest.raises(errors.AuthorizationError):
        handshake.feed(b"-ERR 'Authorization Violation'\r\n")
    with pytest.raises(errors.ServerRefusedError):
        handshake.feed(b"-ERR 'maximum connections exceeded'\r\n")
