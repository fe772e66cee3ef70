"""Open one link to one server: dial, handshake, log in."""

from __future__ import annotations

import errno
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ..address import ServerAddress
from ..errors import ConnectionLostError, Error, SecureConnectionError
from ..net import tcp
from ..net.clock import Deadline
from ..net.stream import ByteStream
from ..options import ConnectionOptions
from ..protocol.parser import Operation, Parser
from ..protocol.session import Handshake, ServerInfo

__all__ = ["Link", "open_link"]


@dataclass(slots=True)
class Link:
    """A stream on which the handshake is through, and what is needed to go on reading it."""

    stream: ByteStream
    parser: Parser
    info: ServerInfo
    early: list[Operation]
    """Operations that came right behind the handshake."""
    address: ServerAddress


def open_link(
    address: ServerAddress,
    options: ConnectionOptions,
    connect_fields: Callable[[ServerInfo], dict[str, Any]],
    deadline: Deadline,
    wrap: Callable[[ByteStream], ByteStream] | None = None,
) -> Link:
    """
    Connect to a server and log in.

    Args:
        address: the server.
        options: how to get there.
        connect_fields: returns the fields of CONNECT for a server's INFO.
        deadline: by when all of it has to be done: TCP, INFO, CONNECT, PONG.
        wrap: put around every stream on which the protocol is spoken in the clear; ``None``: nothing.

    Raises:
        AuthorizationError: the server refused the login.
        ProtocolError: what is there does not speak NATS.
        SecureConnectionError: one side wants TLS, and the other can not.
        ConnectionLostError: the server hung up.
        OSError: it can not be reached.
        TimeoutError: the built-in one; the deadline came.

    """
    del options
    if address.tls:
        raise SecureConnectionError("TLS is not supported yet")
    try:
        stream: ByteStream = tcp.dial(address.host, address.port, deadline)
    except UnicodeError as error:
        # An empty label or a long one; it is no OSError, unlike a name that does not exist.
        raise OSError(errno.EADDRNOTAVAIL, f"{address.host!r} is no host name") from error
    if wrap is not None:
        stream = wrap(stream)
    try:
        return _shake_hands(stream, address, connect_fields, deadline)
    except BaseException:
        stream.shutdown()
        stream.close()
        raise


def _shake_hands(
    stream: ByteStream,
    address: ServerAddress,
    connect_fields: Callable[[ServerInfo], dict[str, Any]],
    deadline: Deadline,
) -> Link:
    def checked_fields(info: ServerInfo) -> dict[str, Any]:
        if info.tls_required:
            raise SecureConnectionError("the server requires TLS")
        return connect_fields(info)

    handshake = Handshake(checked_fields)
    parser = Parser()
    while True:
        stream.set_timeout(_left(deadline))
        data = stream.receive()
        if not data:
            raise ConnectionLostError("the server closed the connection during the handshake")
        operations = parser.feed(data)
        for position, operation in enumerate(operations):
            _send(stream, handshake.receive(operation), deadline)
            if handshake.done and handshake.info is not None:
                stream.set_timeout(None)
                return Link(stream, parser, handshake.info, operations[position + 1 :], address)


def _left(deadline: Deadline) -> float | None:
    left = deadline.left()
    if left is not None and left <= 0:
        raise TimeoutError("the handshake took too long")
    return left


def _send(stream: ByteStream, data: bytes, deadline: Deadline) -> None:
    """Send all of ``data``, which is small, so this rarely has to wait."""
    rest = memoryview(data)
    while rest:
        sent: list[int] = []
        try:
            stream.send(rest, sent)
        except BlockingIOError:
            stream.wait_writable(_left(deadline) or 1.0)
        rest = rest[sum(sent) :]


def describe(error: BaseException) -> str:
    """Return why a server could not be reached, in words for a person."""
    if isinstance(error, Error):
        return str(error)
    if isinstance(error, TimeoutError):
        return "timed out"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return f"{type(error).__name__}: {error}"
