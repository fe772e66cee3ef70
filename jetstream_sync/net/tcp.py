"""TCP as a `ByteStream`."""

from __future__ import annotations

import contextlib
import random
import select
import socket
import struct
import time
from collections.abc import Callable, Sequence
from types import BuiltinMethodType
from typing import Any

from .. import errors
from ..records import Frozen, frozen
from .clock import Deadline, monotonic

#: Bytes requested with one read, enough for a thousand small messages.
RECEIVE_SIZE = 256 * 1024

# Minimum connect timeout in seconds; a timeout of 0 would mean not to wait at all.
_MIN_CONNECT_TIMEOUT_S = 0.001

# Lets one thread send without waiting while another waits to receive on the same, blocking socket.
_DONT_WAIT = getattr(socket, "MSG_DONTWAIT", 0)

# The arguments of a direct read: a size that is enough for most replies, and the flags, also of a send.
_DIRECT_SIZE = (16 * 1024,)
_FLAGS = (_DONT_WAIT,)

# Seconds of the shortest sleep in which gevent also processes timers and sockets; with 0 it does not.
_YIELD_S = 1e-6


def dial(
    addresses: Sequence[Address], peer: str, deadline: Deadline, tcp_timeout: float
) -> TCPStream:
    """Connect to a host, trying each of its addresses in turn; raise `OSError` if none accepts."""
    return _stream(_connect(addresses, peer, deadline), peer, tcp_timeout)


def dial_with(
    dialer: Callable[[str, int, float], socket.socket],
    host: str,
    port: int,
    deadline: Deadline,
    tcp_timeout: float,
) -> TCPStream:
    """
    Connect with a function of the user.

    Raises `InvalidOptionError` if it returns no socket, or raises anything but an `Error` or an `OSError`.
    """
    left = deadline.left()
    try:
        dialed: object = dialer(host, port, tcp_timeout if left is None else left)
    except (errors.Error, OSError):
        raise
    except Exception as error:
        # Without the text of the error, which may contain the login of a proxy.
        raise errors.InvalidOptionError(
            "dialer", "...", f"raised {type(error).__name__}"
        ) from error
    # A TLS socket cannot send without waiting.
    if not isinstance(dialed, socket.socket) or hasattr(dialed, "unwrap"):
        kind = "None" if dialed is None else type(dialed).__name__
        reason = f"must return a connected, plain socket, not {kind}"
        raise errors.InvalidOptionError("dialer", "...", reason)
    return _stream(dialed, f"{host}:{port}", tcp_timeout)


def _stream(connected: socket.socket, peer: str, tcp_timeout: float) -> TCPStream:
    """Return the stream of a connected socket."""
    with contextlib.suppress(OSError):
        # A publish that waits for its ack must not wait for Nagle's algorithm, too.
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    _set_keepalive(connected, tcp_timeout)
    return TCPStream(connected, peer)


def _connect(addresses: Sequence[Address], peer: str, deadline: Deadline) -> socket.socket:
    """Return a socket that is connected to the first address that accepts."""
    failure: OSError | None = None
    for tried, item in enumerate(addresses):
        # The clock is read once for each address.
        left = None if deadline.at is None else deadline.at - monotonic()
        if left is not None and left <= 0:
            raise failure or TimeoutError("timed out")
        connecting = socket.socket(item.family, item.kind, item.protocol)
        try:
            if left is not None:
                left = max(left / (len(addresses) - tried), _MIN_CONNECT_TIMEOUT_S)
            connecting.settimeout(left)
            connecting.connect(item.where)
        except OSError as error:
            connecting.close()
            failure = error
        except BaseException:  # such as a KeyboardInterrupt
            connecting.close()
            raise
        else:
            return connecting
    raise failure or OSError(f"{peer} has no address")


def _set_keepalive(connected: socket.socket, tcp_timeout: float) -> None:
    """Make the system detect that the peer's host is unreachable, within ``tcp_timeout`` seconds."""
    # On an idle connection the system sends up to three keep-alive probes. Unacknowledged data ends the
    # connection after the same time; otherwise Linux would retransmit it for a quarter of an hour.
    interval = max(1, round(tcp_timeout / 4))
    wanted = {
        "TCP_KEEPIDLE": interval,
        "TCP_KEEPALIVE": interval,  # the same on macOS
        "TCP_KEEPINTVL": interval,
        "TCP_KEEPCNT": 3,
        "TCP_USER_TIMEOUT": round(tcp_timeout * 1000),
    }
    with contextlib.suppress(OSError):
        connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in wanted.items():
        if hasattr(socket, name):
            with contextlib.suppress(OSError):
                connected.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def send_now(connected: socket.socket) -> Callable[[memoryview, int], int]:
    """Return a ``send()`` for a socket that respects ``MSG_DONTWAIT``."""
    # This is the socket's own method, except for gevent's sockets: they ignore the flag, but not in
    # ``sendmsg()``, which costs a fifth more.
    if isinstance(connected.send, BuiltinMethodType):
        return connected.send
    return lambda data, flags: connected.sendmsg((data,), (), flags)


def _receive_into(connected: socket.socket) -> Callable[[bytearray], int]:
    """Return a ``recv_into()`` for a socket, which under gevent yields to other greenlets first."""
    # gevent's own method yields only if there is nothing to read, and a busy server always sends.
    if isinstance(connected.recv_into, BuiltinMethodType):
        return connected.recv_into

    def receive_into(buffer: bytearray) -> int:
        time.sleep(_YIELD_S)
        return connected.recv_into(buffer)

    return receive_into


class TCPStream:
    """A connected socket."""

    def __init__(self, connected: socket.socket, peer: str) -> None:
        self.peer = peer
        self._socket = connected
        self._send_now = send_now(connected)
        self._receive_into = _receive_into(connected)
        # One buffer for all reads: the system would map and unmap a new one of this size each time.
        self._buffer = bytearray(RECEIVE_SIZE)
        self._view = memoryview(self._buffer)
        self._receive_some = connected.recv
        #: Whether any thread may use `wait_readable()` and `receive_now()`: not under gevent, whose sockets
        #: ignore ``MSG_DONTWAIT``, and not on Windows.
        self.reads_directly: bool = (
            hasattr(select, "poll")
            and hasattr(socket, "SO_RCVTIMEO")
            and _DONT_WAIT != 0
            and isinstance(connected.recv, BuiltinMethodType)
        )
        #: The socket for the C extension, which uses it as the methods do; -1: it must not.
        self.direct_fd: int = connected.fileno() if self.reads_directly else -1
        # Created when it is needed first.
        self._poll: Callable[[int], list[tuple[int, int]]] | None = None
        self._readable = [(connected.fileno(), getattr(select, "POLLIN", 0))]

    def receive(self) -> bytes:
        """Wait for bytes and return them; ``b""`` at the end of the stream."""
        return bytes(self._view[: self._receive_into(self._buffer)])

    def limit_waits(self, timeout: float) -> bool:
        """Limit the waits for bytes in one system call to ``timeout`` seconds; 0: no limit."""
        # Returns whether that was done: the system may want another structure, or not allow it.
        limit = struct.pack("ll", 0, int(timeout * 1e6))
        try:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, limit)
        except OSError:
            return False
        return True

    def wait_readable(self, timeout: float) -> bool:
        """Wait for bytes, up to ``timeout`` seconds without the fraction of a millisecond."""
        # Returns whether there are bytes, and the stream has not ended.
        if self._poll is None:
            poller = select.poll()
            poller.register(self._socket, select.POLLIN)
            self._poll = poller.poll
        return self._poll(int(timeout * 1000)) == self._readable

    def receive_now(self, received: list[bytes]) -> None:
        """Append the next bytes to ``received`` without waiting; ``b""`` at the end of the stream."""
        # No KeyboardInterrupt can be raised between receiving and appending.
        received.extend(map(self._receive_some, _DIRECT_SIZE, _FLAGS))

    def send(self, data: memoryview, sent: list[int]) -> None:
        """Send as much as possible without waiting, and append the count to ``sent``."""
        # As with `call_and_record`, but without its call: this runs for each send.
        sent.extend(map(self._send_now, (data,), _FLAGS))

    def wait_writable(self, timeout: float) -> bool:
        """Wait up to ``timeout`` seconds until the socket is writable; return whether it is."""
        if hasattr(select, "poll"):
            poller = select.poll()
            poller.register(self._socket, select.POLLOUT)
            return bool(poller.poll(timeout * 1000))
        return bool(select.select([], [self._socket], [], timeout)[1])

    def set_timeout(self, timeout: float | None) -> None:
        """Set the timeout of `receive()` in seconds; ``None``: wait forever."""
        self._socket.settimeout(timeout)

    def shutdown(self) -> None:
        """End the stream in both directions and wake the threads that use it."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Close the socket."""
        with contextlib.suppress(OSError):
            self._socket.close()


@frozen()
class Address(Frozen):
    """One address of a host, as the arguments of the socket calls."""

    family: int
    kind: int
    protocol: int
    where: Any
    """The IP address and the port; for IPv6 also flow info and scope id."""


def numeric(host: str, port: int) -> list[Address]:
    """Return the address of a numeric host, or an empty list for a name; never waits."""
    # A text is encoded by the codec of international names, whose import takes milliseconds.
    is_number = host.isascii() and (":" in host or host[-1:].isdigit())
    try:
        return _addresses(host.encode() if is_number else host, port, socket.AI_NUMERICHOST)
    except socket.gaierror:
        return []


def resolve(host: str, port: int, *, randomize: bool) -> list[Address]:
    """Return all addresses of a name; may wait for a long time, without a timeout."""
    # `randomize`: shuffle them, so that clients spread over servers with one name (ADR-11).
    found = _addresses(host, port, 0)
    if randomize:
        random.shuffle(found)
    return found


def _addresses(host: str | bytes, port: int, flags: int) -> list[Address]:
    found = socket.getaddrinfo(host, port, 0, socket.SOCK_STREAM, 0, flags)
    return [Address(family, kind, protocol, where) for family, kind, protocol, _, where in found]
