"""TCP as a `ByteStream`."""

from __future__ import annotations

import contextlib
import select
import socket
import time
from collections.abc import Callable, Sequence
from types import BuiltinMethodType

from ..errors import Error, InvalidOptionError
from .clock import Deadline
from .lookup import Address

__all__ = ["RECEIVE_SIZE", "TCPStream", "dial", "dial_with", "send_now"]

#: Bytes asked for with one read: a thousand small messages at a time.
RECEIVE_SIZE = 256 * 1024

# A timeout of 0 would mean: do not wait at all.
_SHORTEST = 0.001

# Lets one thread send without waiting while another waits to receive on the same, blocking socket.
_DONT_WAIT = getattr(socket, "MSG_DONTWAIT", 0)

# The shortest sleep in which gevent looks at timers and sockets, too; with 0 it would not.
_TURN = 1e-6


def dial(addresses: Sequence[Address], peer: str, deadline: Deadline, patience: float) -> TCPStream:
    """
    Connect to a host, trying each of its addresses in turn.

    Args:
        addresses: where it is.
        peer: how to call it in messages, ``host:port``.
        deadline: when to give up; each address gets an equal share of what is left.
        patience: seconds after which the system gives a connection up on which the host is silent.

    Raises:
        OSError: no address could be connected to; the last one's error.
        TimeoutError: the built-in one; the deadline came.

    """
    return _stream(_connected(addresses, peer, deadline), peer, patience)


def dial_with(
    dialer: Callable[[str, int, float], socket.socket],
    host: str,
    port: int,
    deadline: Deadline,
    patience: float,
) -> TCPStream:
    """
    Have a function of the user connect to a host.

    Args:
        dialer: the function; it gets the host, the port and the seconds that are left.
        host: where it should connect to, as it stands in the server's URL.
        port: the port there.
        deadline: when to give up.
        patience: seconds after which the system gives a connection up on which the host is silent.

    Raises:
        InvalidOptionError: it returned no plain socket, or raised what is no `OSError`.
        OSError: the server can not be reached.

    """
    left = deadline.left()
    try:
        dialed: object = dialer(host, port, patience if left is None else left)
    except (Error, OSError):
        raise
    except Exception as error:
        raise InvalidOptionError("dialer", "...", f"it raised {type(error).__name__}") from error
    # A socket that speaks TLS itself can not send without waiting.
    if not isinstance(dialed, socket.socket) or hasattr(dialed, "unwrap"):
        kind = type(dialed).__name__
        raise InvalidOptionError("dialer", kind, "must return a connected, plain socket")
    return _stream(dialed, f"{host}:{port}", patience)


def _stream(connected: socket.socket, peer: str, patience: float) -> TCPStream:
    """Return the stream of a socket that is connected."""
    with contextlib.suppress(OSError):
        # A publish that waits for its ack must not wait for Nagle's algorithm, too.
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    _watch(connected, patience)
    return TCPStream(connected, peer)


def _connected(addresses: Sequence[Address], peer: str, deadline: Deadline) -> socket.socket:
    """Return a socket that is connected to the first address that can be."""
    failure: OSError | None = None
    for tried, each in enumerate(addresses):
        if deadline.expired():
            raise failure or TimeoutError("timed out")
        connecting = socket.socket(each.family, each.kind, each.protocol)
        try:
            left = deadline.left()
            if left is not None:
                left = max(left / (len(addresses) - tried), _SHORTEST)
            connecting.settimeout(left)
            connecting.connect(each.where)
        except OSError as error:
            connecting.close()
            failure = error
        except BaseException:  # a Ctrl-C
            connecting.close()
            raise
        else:
            return connecting
    raise failure or OSError(f"{peer} has no address")


def _watch(connected: socket.socket, patience: float) -> None:
    """
    Have the system find out that the host at the other end is gone.

    Where nothing is under way it asks three times, and gives up within ``patience`` seconds. What is not
    acknowledged for as long ends the connection as well; without that, Linux would send it again and
    again for a quarter of an hour.
    """
    interval = max(1, round(patience / 4))
    wanted = {
        "TCP_KEEPIDLE": interval,
        "TCP_KEEPALIVE": interval,  # the same on macOS
        "TCP_KEEPINTVL": interval,
        "TCP_KEEPCNT": 3,
        "TCP_USER_TIMEOUT": round(patience * 1000),
    }
    with contextlib.suppress(OSError):
        connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in wanted.items():
        if hasattr(socket, name):
            with contextlib.suppress(OSError):
                connected.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def send_now(connected: socket.socket) -> Callable[[memoryview, int], int]:
    """
    Return the ``send()`` of a socket that heeds the flag not to wait.

    That is its own, but for gevent's sockets: they wait all the same, except in ``sendmsg()``, which
    costs a fifth more.
    """
    if isinstance(connected.send, BuiltinMethodType):
        return connected.send
    return lambda data, flags: connected.sendmsg((data,), (), flags)


def _receive_into(connected: socket.socket) -> Callable[[bytearray], int]:
    """
    Return the ``recv_into()`` of a socket, which under gevent lets the others have their turn first.

    gevent's own does so only when there is nothing to read, and a busy server always has something.
    """
    if isinstance(connected.recv_into, BuiltinMethodType):
        return connected.recv_into

    def receive_into(buffer: bytearray) -> int:
        time.sleep(_TURN)
        return connected.recv_into(buffer)

    return receive_into


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
        self._receive_into = _receive_into(connected)
        # Read into one buffer that stays: a fresh one of this size for each read would be mapped
        # and unmapped by the system every time.
        self._buffer = bytearray(RECEIVE_SIZE)
        self._view = memoryview(self._buffer)

    def receive(self) -> bytes:
        """Wait for bytes and return them, ``b""`` at the end."""
        return bytes(self._view[: self._receive_into(self._buffer)])

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
