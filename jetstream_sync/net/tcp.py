"""TCP as a `ByteStream`."""

from __future__ import annotations

import contextlib
import select
import socket
from collections.abc import Callable
from types import BuiltinMethodType

from .clock import Deadline

__all__ = ["RECEIVE_SIZE", "TCPStream", "dial", "send_now"]

#: Bytes asked for with one read: a thousand small messages at a time.
RECEIVE_SIZE = 256 * 1024

# A timeout of 0 would mean: do not wait at all.
_SHORTEST = 0.001

# Lets one thread send without waiting while another waits to receive on the same, blocking socket.
_DONT_WAIT = getattr(socket, "MSG_DONTWAIT", 0)


def dial(host: str, port: int, deadline: Deadline) -> TCPStream:
    """
    Connect to a host, trying each of its addresses in turn.

    Args:
        host: a name or an address.
        port: the port's number.
        deadline: when to give up.

    Raises:
        OSError: no address could be connected to; the last one's error.
        TimeoutError: the built-in one; the deadline came.

    """
    connected = _connected(host, port, deadline)
    with contextlib.suppress(OSError):
        # A publish that waits for its ack must not wait for Nagle's algorithm, too.
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    return TCPStream(connected, f"{host}:{port}")


def _connected(host: str, port: int, deadline: Deadline) -> socket.socket:
    """Return a socket that is connected to the first address that can be; all share the deadline."""
    failure: OSError | None = None
    for family, kind, protocol, _, address in socket.getaddrinfo(host, port, 0, socket.SOCK_STREAM):
        if deadline.expired():
            raise failure or TimeoutError("timed out")
        connecting = socket.socket(family, kind, protocol)
        try:
            connecting.settimeout(deadline.left() or _SHORTEST)
            connecting.connect(address)
        except OSError as error:
            connecting.close()
            failure = error
        except BaseException:  # a Ctrl-C
            connecting.close()
            raise
        else:
            return connecting
    raise failure or OSError(f"{host!r} has no address")


def send_now(connected: socket.socket) -> Callable[[memoryview, int], int]:
    """
    Return the ``send()`` of a socket that heeds the flag not to wait.

    That is its own, but for gevent's sockets: they wait all the same, except in ``sendmsg()``, which
    costs a fifth more.
    """
    if isinstance(connected.send, BuiltinMethodType):
        return connected.send
    return lambda data, flags: connected.sendmsg((data,), (), flags)


class TCPStream:
    """
    A connected socket.

    Args:
        connected: the socket, which belongs to the stream from now on.
        peer: how to call the other end in messages.

    """

    def __init__(self, connected: socket.socket, peer: str) -> None:
        self.peer = peer
        self._socket = connected
        self._send_now = send_now(connected)
        # Read into one buffer that stays: a fresh one of this size for each read would be mapped
        # and unmapped by the system every time.
        self._buffer = bytearray(RECEIVE_SIZE)
        self._view = memoryview(self._buffer)

    def receive(self) -> bytes:
        """Wait for bytes and return them, ``b""`` at the end."""
        return bytes(self._view[: self._socket.recv_into(self._buffer)])

    def send(self, data: memoryview, sent: list[int]) -> None:
        """Send what can be sent without waiting, and append the count to ``sent``."""
        # `extend` and `map` run without a byte code in between, where a Ctrl-C could strike.
        sent.extend(map(self._send_now, (data,), (_DONT_WAIT,)))

    def wait_writable(self, timeout: float) -> bool:
        """Wait up to ``timeout`` seconds until something can be sent; say whether it can."""
        if hasattr(select, "poll"):
            poller = select.poll()
            poller.register(self._socket, select.POLLOUT)
            return bool(poller.poll(timeout * 1000))
        return bool(select.select([], [self._socket], [], timeout)[1])

    def set_timeout(self, timeout: float | None) -> None:
        """Limit how long `receive()` waits, in seconds; ``None``: for ever."""
        self._socket.settimeout(timeout)

    def shutdown(self) -> None:
        """End the stream in both directions and wake whoever waits for it."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Close the socket."""
        with contextlib.suppress(OSError):
            self._socket.close()
