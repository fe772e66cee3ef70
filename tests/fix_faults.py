"""
A fault-injecting proxy between clients and a real server.

One thread moves all bytes, so every fault takes effect at a definite place in the stream: what was
forwarded before a call has been forwarded, and nothing after it is. Faults can be changed while
connections are open. Nothing is left behind when the proxy is closed.
"""

from __future__ import annotations

import contextlib
import selectors
import socket
import struct
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from enum import Enum
from pathlib import Path

import pytest
from fix_threads import SCALE
from typing_extensions import Self

import jetstream_sync
from jetstream_sync import Connection
from jetstream_sync.server import NatsServer
from jetstream_sync.server.runtime import reserve_port

__all__ = ["BOTH", "FaultProxy", "Toward", "open_files"]

#: Bytes read from a socket at a time, and kept while the other end does not read.
_PIECE = 256 * 1024


class Toward(Enum):
    """A direction, named after the receiver of the bytes."""

    SERVER = "server"
    CLIENT = "client"


BOTH = (Toward.SERVER, Toward.CLIENT)


class _LinkConditions:
    """Faults that apply to one direction of every link."""

    def __init__(self) -> None:
        self.held = False
        self.delay = 0.0  # seconds by which every byte is delayed
        self.piece = _PIECE  # bytes sent at a time
        self.pause = 0.0  # seconds between two pieces
        # The next link that forwards `needle` is cut, or held, this many bytes after it.
        self.cut_after: tuple[bytes, int, Callable[[_Link], None]] | None = None


class _Pipe:
    """One direction of one link."""

    def __init__(
        self, source: socket.socket, sink: socket.socket, conditions: _LinkConditions
    ) -> None:
        self.source = source
        self.sink = sink
        self.conditions = conditions
        self.waiting: deque[tuple[float, bytes]] = deque()  # time to forward it, and the bytes
        self.size = 0
        self.not_before = 0.0
        self.tail = b""  # the last bytes forwarded, to find the needle in
        self.budget: int | None = None  # bytes until the link is cut; None: not counted
        self.ended = False  # the source has reached end of file
        self.done = False  # end of file was forwarded
        self.silent = False  # nothing is forwarded any more

    def readable(self) -> bool:
        return not (self.ended or self.conditions.held or self.silent) and self.size < _PIECE

    def left(self) -> int | None:
        """Return the bytes until the cut; ``None``: no cut is scheduled."""
        return self.budget if self.conditions.cut_after is not None else None

    def due(self) -> float | None:
        """Return the time of the next send; ``None``: nothing is buffered, or it is held."""
        if self.conditions.held or self.silent or not self.waiting:
            return None
        return max(self.waiting[0][0], self.not_before)


class _Link:
    """A client's connection and the one to the server behind it."""

    def __init__(self, client: socket.socket, server: socket.socket, proxy: FaultProxy) -> None:
        self.client = client
        self.server = server
        conditions = proxy._conditions
        self.pipes = (
            _Pipe(client, server, conditions[Toward.SERVER]),
            _Pipe(server, client, conditions[Toward.CLIENT]),
        )
        self.dropped: set[socket.socket] = set()  # closed already
        self.draining = False  # shut down on both sides; waits for their end of file

    def sockets(self) -> list[socket.socket]:
        return [item for item in (self.client, self.server) if item not in self.dropped]

    def reads(self, pipe: _Pipe) -> bool:
        return not pipe.ended if self.draining else pipe.readable()

    def through(self) -> bool:
        """Return whether both sides have reached end of file."""
        return all(pipe.ended if self.draining else pipe.done for pipe in self.pipes)

    def towards(self, toward: Toward) -> socket.socket:
        return self.server if toward is Toward.SERVER else self.client


class FaultProxy:
    """
    A proxy on 127.0.0.1 for a server, with network conditions that the test sets.

    Args:
        target: the server's port.
        small: use small receive buffers towards clients, so that a large write takes long.

    Any thread may call its methods; a fault has taken effect when the call returns.
    """

    def __init__(self, target: int, *, small: bool = False) -> None:
        self._target = target
        self._small = small
        self._conditions = {toward: _LinkConditions() for toward in Toward}
        self._links: list[_Link] = []
        self.port, self._holder = reserve_port()
        self.url = f"nats://127.0.0.1:{self.port}"
        #: Number of connections accepted so far, and of those that were cut.
        self.accepted = 0
        self.cuts = 0
        self._orders: deque[Callable[[], object]] = deque()
        self._closing = False
        self._waker, self._wakeups = socket.socketpair()
        self._wakeups.setblocking(False)
        self._listening: socket.socket | None = None
        self._listen()
        self._thread = threading.Thread(target=self._run, name="fault-proxy", daemon=True)
        self._thread.start()

    # --- faults -----------------------------------------------------------------------------

    def cut(self, toward: tuple[Toward, ...] = BOTH, *, reset: bool = False) -> int:
        """
        Cut all links; return how many there were.

        Args:
            toward: the side that learns of it. For the other one the link stays open until `heal()`, and
                nothing comes: as when one end of a connection crashed.
            reset: end it with RST, as a crash does, and not with FIN.

        """
        return self._do(lambda: self._cut_all(toward, reset=reset))

    def cut_after(
        self,
        count: int,
        toward: Toward,
        *,
        after: bytes = b"",
        tell: tuple[Toward, ...] = BOTH,
        reset: bool = False,
    ) -> None:
        """
        Cut the first link that forwards ``count`` more bytes in one direction, at exactly that byte.

        Args:
            count: the bytes that still go through.
            toward: the direction in which they are counted.
            after: start to count behind these bytes.
            tell: the side that learns of it, as ``toward`` of `cut()`.
            reset: as for `cut()`.

        """
        self._act_after(count, toward, after, lambda link: self._cut(link, tell, reset=reset))

    def hold_after(self, count: int, toward: Toward) -> None:
        """Forward ``count`` more bytes of one link in one direction, then nothing until `heal()`."""

        def hold(_: _Link) -> None:
            self._conditions[toward].held = True

        self._act_after(count, toward, b"", hold)

    def _act_after(
        self, count: int, toward: Toward, needle: bytes, act: Callable[[_Link], None]
    ) -> None:
        def order() -> None:
            for link in self._links:
                for pipe in link.pipes:
                    pipe.budget, pipe.tail = None, b""
            self._conditions[toward].cut_after = (needle, count, act)

        self._do(order)

    def half_close(self, toward: Toward) -> None:
        """Send end of file to one side only; that side can still send."""

        def order() -> None:
            for link in self._links:
                pipe = link.pipes[0 if toward is Toward.SERVER else 1]
                if not pipe.done:
                    pipe.done = pipe.silent = True
                    with contextlib.suppress(OSError):
                        pipe.sink.shutdown(socket.SHUT_WR)

        self._do(order)

    def hold(self, *toward: Toward) -> None:
        """Accept connections, and forward nothing until `heal()`."""

        def order() -> None:
            for item in toward or BOTH:
                self._conditions[item].held = True

        self._do(order)

    def slow(
        self, *toward: Toward, delay: float = 0.0, piece: int = _PIECE, pause: float = 0.0
    ) -> None:
        """
        Slow down all links.

        Args:
            *toward: the directions; both by default.
            delay: latency of every byte, in seconds.
            piece: bytes that are sent at a time; 1 is a trickle.
            pause: seconds between two pieces.

        """

        def order() -> None:
            for item in toward or BOTH:
                conditions = self._conditions[item]
                conditions.delay, conditions.piece, conditions.pause = delay, piece, pause

        self._do(order)

    def heal(self) -> None:
        """Remove all faults; held bytes are forwarded, and links cut on one side only are closed."""

        def order() -> None:
            for conditions in self._conditions.values():
                conditions.held = False
                conditions.delay, conditions.piece, conditions.pause = 0.0, _PIECE, 0.0
                conditions.cut_after = None
            for link in list(self._links):
                for pipe in link.pipes:
                    pipe.budget = None
                if link.dropped or link.draining:
                    self._drop(link)

        self._do(order)

    def refuse(self) -> None:
        """Refuse new connections, as a port without a listener does."""

        def order() -> None:
            if self._listening is not None:
                self._listening.close()
                self._listening = None

        self._do(order)

    def accept(self) -> None:
        """Accept connections again."""
        self._do(lambda: self._listen() if self._listening is None else None)

    # --- state ------------------------------------------------------------------------------

    @property
    def links(self) -> int:
        """The number of intact links."""
        return self._do(lambda: sum(not (link.dropped or link.draining) for link in self._links))

    def close(self) -> None:
        """Close all links and end the thread; a second call does nothing."""
        if self._closing:
            return
        self._closing = True
        self._waker.send(b".")
        self._thread.join(5 * SCALE)
        assert not self._thread.is_alive(), "the proxy hangs"
        self._waker.close()
        self._wakeups.close()
        if self._holder is not None:
            self._holder.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # --- the thread -------------------------------------------------------------------------

    def _do(self, order: Callable[[], int | None]) -> int:
        """Make the thread do something, and wait for it."""
        done = threading.Event()
        result: list[int | None] = []

        def carry_out() -> None:
            try:
                result.append(order())
            finally:
                done.set()

        self._orders.append(carry_out)
        self._waker.send(b".")
        assert done.wait(5 * SCALE), "the proxy hangs"
        return result[0] or 0

    def _listen(self) -> None:
        listening = socket.socket()
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if self._small:
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 16 * 1024)
        listening.bind(("127.0.0.1", self.port))
        listening.listen(64)
        listening.setblocking(False)
        self._listening = listening

    def _run(self) -> None:
        while not self._closing:
            ready = self._wait()
            with contextlib.suppress(BlockingIOError):
                while self._wakeups.recv(4096):
                    pass
            while self._orders:
                self._orders.popleft()()
            if self._listening is not None and self._listening.fileno() in ready:
                self._take_client()
            for link in list(self._links):
                self._move(link, ready)
        for link in list(self._links):
            self._drop(link)
        if self._listening is not None:
            self._listening.close()

    def _wait(self) -> set[int]:
        """Wait until there is something to do; return the sockets that can be read or written."""
        now = time.monotonic()
        soonest = now + 60
        with selectors.PollSelector() as selector:
            selector.register(self._wakeups, selectors.EVENT_READ)
            if self._listening is not None:
                selector.register(self._listening, selectors.EVENT_READ)
            for link in self._links:
                wanted = dict.fromkeys(link.sockets(), 0)
                for pipe in link.pipes:
                    if pipe.source in wanted and link.reads(pipe):
                        wanted[pipe.source] |= selectors.EVENT_READ
                    due = pipe.due()
                    if due is None or pipe.sink not in wanted:
                        continue
                    if due > now:
                        soonest = min(soonest, due)
                    else:
                        wanted[pipe.sink] |= selectors.EVENT_WRITE
                for item, events in wanted.items():
                    if events:
                        selector.register(item, events)
            return {key.fd for key, _ in selector.select(soonest - now)}

    def _take_client(self) -> None:
        assert self._listening is not None
        with contextlib.suppress(BlockingIOError):
            client, _ = self._listening.accept()
            self.accepted += 1
            try:
                server = socket.create_connection(("127.0.0.1", self._target), 1)
            except OSError:
                _reset(client)
                return
            for item in (client, server):
                item.setblocking(False)
                item.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._links.append(_Link(client, server, self))

    def _move(self, link: _Link, ready: set[int]) -> None:
        """Read and forward what is available."""
        try:
            for pipe in link.pipes:
                if pipe.source not in link.dropped and pipe.source.fileno() in ready:
                    self._read(link, pipe)
            for pipe in link.pipes:
                if link in self._links and pipe.sink not in link.dropped:
                    self._send(link, pipe)
        except OSError:
            self._drop(link, reset=True)
            return
        if link in self._links and link.through():
            self._drop(link)

    def _read(self, link: _Link, pipe: _Pipe) -> None:
        if not link.reads(pipe):
            return
        try:
            data = pipe.source.recv(_PIECE)
        except BlockingIOError:
            return
        if not data:
            pipe.ended = True
        elif not (link.draining or pipe.silent):
            pipe.waiting.append((time.monotonic() + pipe.conditions.delay, data))
            pipe.size += len(data)

    def _send(self, link: _Link, pipe: _Pipe) -> None:
        while (due := pipe.due()) is not None and due <= time.monotonic():
            ready_at, data = pipe.waiting.popleft()
            piece = data[: pipe.conditions.piece]
            if pipe.budget is None and pipe.conditions.cut_after is not None:
                self._look_for_needle(pipe, piece)
            left = pipe.left()
            if left is not None:
                piece = piece[:left]
            try:
                sent = pipe.sink.send(piece) if piece else 0
            except BlockingIOError:
                sent = -1
            if sent < len(data):
                pipe.waiting.appendleft((ready_at, data[max(sent, 0) :]))
            if sent < 0:
                return
            pipe.size -= sent
            pipe.not_before = time.monotonic() + pipe.conditions.pause
            if left is not None:
                pipe.budget = left - sent
                if left <= sent:
                    self._cut_here(link, pipe)
                    return
        if pipe.ended and not pipe.waiting and not pipe.done:
            pipe.done = True
            pipe.sink.shutdown(socket.SHUT_WR)

    def _look_for_needle(self, pipe: _Pipe, piece: bytes) -> None:
        """Start the count where the needle ends within this piece, which is about to be sent."""
        assert pipe.conditions.cut_after is not None
        needle, count, _ = pipe.conditions.cut_after
        seen = pipe.tail + piece
        at = seen.find(needle)
        if at >= 0:
            pipe.budget = max(0, at + len(needle) - len(pipe.tail)) + count
        pipe.tail = seen[len(seen) - len(needle) + 1 :] if len(needle) > 1 else b""

    def _cut_here(self, link: _Link, pipe: _Pipe) -> None:
        assert pipe.conditions.cut_after is not None
        cut = pipe.conditions.cut_after[2]
        pipe.conditions.cut_after = None
        cut(link)

    # --- ends -------------------------------------------------------------------------------

    def _cut_all(self, toward: tuple[Toward, ...], *, reset: bool) -> int:
        whole = [link for link in self._links if not (link.dropped or link.draining)]
        for link in whole:
            self._cut(link, toward, reset=reset)
        return len(whole)

    def _cut(self, link: _Link, toward: tuple[Toward, ...], *, reset: bool) -> None:
        self.cuts += 1
        for pipe in link.pipes:
            pipe.silent = True
            pipe.waiting.clear()
        if reset:
            for item in toward:
                link.dropped.add(link.towards(item))
                _reset(link.towards(item))
            if len(link.dropped) == 2:
                self._links.remove(link)
            return
        if len(toward) == 2:
            # Not closed yet: closing with unread bytes would send RST.
            link.draining = True
        for item in toward:
            with contextlib.suppress(OSError):
                link.towards(item).shutdown(socket.SHUT_WR)
        if len(toward) == 1:
            link.dropped.add(link.towards(toward[0]))
            link.towards(toward[0]).close()

    def _drop(self, link: _Link, *, reset: bool = False) -> None:
        if link in self._links:
            self._links.remove(link)
        for item in link.sockets():
            if reset:
                _reset(item)
            else:
                item.close()


def _reset(victim: socket.socket) -> None:
    """Close a socket with RST."""
    with contextlib.suppress(OSError):
        victim.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    victim.close()


def open_files() -> int:
    """Return the number of open files and sockets of this process."""
    directory = Path("/proc/self/fd")
    # On other systems than Linux there is nothing to compare.
    return len(list(directory.iterdir())) if directory.exists() else 0


@pytest.fixture
def proxy(nats_server: NatsServer) -> Iterator[FaultProxy]:
    """A fault proxy in front of the shared server."""
    with FaultProxy(nats_server.port) as network:
        yield network


@pytest.fixture
def far(proxy: FaultProxy) -> Iterator[Connection]:
    """A connection through the proxy that reconnects quickly."""
    with jetstream_sync.connect(proxy.url, reconnect_time_wait=0.02) as connection:
        yield connection
        proxy.heal()


@pytest.fixture
def short_reply_margin(monkeypatch: pytest.MonkeyPatch) -> None:
    """Return from a fetch soon after its timeout, so that the stalls of the tests can be short."""
    monkeypatch.setattr("jetstream_sync.jetstream.pull._REPLY_MARGIN_S", 0.05)
