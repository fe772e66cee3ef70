"""Name resolution: its time limit, its threads, and the order in which addresses are tried."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from fixtures.internals import transport_of
from fixtures.proxy import Listener, black_hole
from fixtures.threads import SCALE, between, wait_until, within

import jetstream_sync
from jetstream_sync import NoServersError
from jetstream_sync.client.transport import look_up
from jetstream_sync.net import tcp
from jetstream_sync.net.clock import Deadline
from jetstream_sync.net.tcp import Address

NAME = "nats.example"


class Resolver:
    """A replacement for the system's lookup of one name."""

    def __init__(self) -> None:
        self.found: list[tuple[str, int]] = []
        self.error: Exception | None = None
        self.free = threading.Event()
        self.free.set()
        self.asked = 0
        self._really = socket.getaddrinfo

    def __call__(self, host: str, port: int, *rest: Any) -> Any:
        if host != NAME or (len(rest) > 3 and rest[3] & socket.AI_NUMERICHOST):
            return self._really(host, port, *rest)
        self.asked += 1
        assert self.free.wait(10 * SCALE)
        if self.error is not None:
            raise self.error
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", where) for where in self.found]


@pytest.fixture
def resolver(monkeypatch: pytest.MonkeyPatch) -> Iterator[Resolver]:
    standing_in = Resolver()
    monkeypatch.setattr(socket, "getaddrinfo", standing_in)
    yield standing_in
    standing_in.free.set()


def lookups() -> list[str]:
    return [item.name for item in threading.enumerate() if item.name.startswith("nats-lookup")]


def test_an_address_needs_no_thread(monkeypatch):
    """A numeric host is not looked up."""
    monkeypatch.setattr("jetstream_sync.client.transport.spawn", None)
    for host in ("127.0.0.1", "::1"):
        (address,) = look_up(host, 4222, Deadline(5), randomize=True)
        assert address.where[:2] == (host, 4222)


def test_a_name_is_looked_up(resolver):
    """All of its addresses are returned, and no thread is left."""
    resolver.found = [("10.0.0.1", 1), ("10.0.0.2", 1)]
    found = look_up(NAME, 1, Deadline(5 * SCALE), randomize=False)
    assert [item.where for item in found] == resolver.found
    wait_until(lambda: not lookups())


def test_a_name_that_does_not_exist(resolver):
    """The system's error is raised, with its reason."""
    resolver.error = socket.gaierror(socket.EAI_NONAME, "Name or service not known")
    with pytest.raises(NoServersError, match="Name or service not known"):
        jetstream_sync.connect(f"nats://{NAME}:4222")


def test_a_look_up_that_hangs_is_left_behind(resolver):
    """The connect timeout holds, although the system's look-up cannot be cancelled."""
    resolver.free.clear()
    with within(1.0), pytest.raises(NoServersError, match="timed out|took too long"):
        jetstream_sync.connect(f"nats://{NAME}:4222", connect_timeout=0.1)
    assert len(lookups()) == 1
    resolver.free.set()
    wait_until(lambda: not lookups())


def test_a_fork_while_a_name_is_looked_up(resolver):
    """The child does not wait for a thread that it does not have, and can look up names itself."""
    resolver.free.clear()
    resolver.found = [("10.0.0.1", 1)]
    results: list[object] = []
    waiting = threading.Thread(
        target=lambda: results.append(look_up(NAME, 1, Deadline(10 * SCALE), randomize=False))
    )
    waiting.start()
    wait_until(lambda: resolver.asked)
    pid = os.fork()
    if pid == 0:
        resolver.free = threading.Event()  # a thread of the parent may be inside it
        resolver.free.set()
        found = look_up(NAME, 1, Deadline(10 * SCALE), randomize=False)
        os._exit(0 if len(found) == 1 else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    resolver.free.set()
    waiting.join(10 * SCALE)
    assert len(results) == 1


def test_every_address_is_tried(resolver):
    """An address that refuses is skipped, in any position."""
    with Listener() as listener, socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        refusing = closed.getsockname()
        resolver.found = [refusing, refusing, ("127.0.0.1", listener.port)]
        for _ in range(4):
            url = f"nats://{NAME}:{listener.port}"
            jetstream_sync.connect(url, connect_timeout=5 * SCALE).close()


def full() -> tuple[ExitStack, tuple[str, int]]:
    """Return an address that neither accepts nor refuses, like a host behind a firewall."""
    things = ExitStack()
    hole = things.enter_context(black_hole())
    hole.listen(0)
    where = hole.getsockname()
    # The listen backlog is full: a new connection waits.
    for _ in range(3):
        waiting = things.enter_context(socket.socket())
        waiting.setblocking(False)
        waiting.connect_ex(where)
    return things, where


def test_each_address_gets_its_share_of_the_time(resolver):
    """An address that does not answer leaves time for the others, as in nats.go."""
    things, where = full()
    with things, Listener() as listener:
        good = ("127.0.0.1", listener.port)
        for found in ([where, good], [where, where, where, good]):
            resolver.found = found
            began = time.monotonic()
            nc = jetstream_sync.connect(
                f"nats://{NAME}:4222", connect_timeout=1.0 * SCALE, dont_randomize=True
            )
            took = time.monotonic() - began
            nc.close()
            assert (len(found) - 1) / len(found) - 0.1 < took / SCALE < 1


def test_all_addresses_share_one_deadline():
    """All attempts together take no longer than the timeout."""
    things, where = full()
    with things:
        addresses = [Address(socket.AF_INET, socket.SOCK_STREAM, 6, where)] * 5
        with between(0.25, 0.3 + 0.5), pytest.raises(TimeoutError):
            tcp.dial(addresses, "nowhere:1", Deadline(0.3), 60.0)


def test_a_host_without_addresses():
    """It is an error, not an endless loop."""
    with pytest.raises(OSError, match="nowhere:1 has no address"):
        tcp.dial([], "nowhere:1", Deadline(1), 60.0)


@pytest.mark.parametrize(
    ("options", "patience"),
    [
        ({}, 60.0),
        ({"ping_interval": 10.0, "max_outstanding_pings": 3}, 40.0),
        ({"ping_interval": 0.5}, 10.0),
    ],
    ids=["default", "pings", "fast pings"],
)
@pytest.mark.skipif(not hasattr(socket, "TCP_USER_TIMEOUT"), reason="the system has no such option")
def test_the_system_gives_a_silent_host_up(options, patience):
    """As soon as the pings would, but not before 10 seconds, and within a minute."""
    with Listener() as listener:
        nc = jetstream_sync.connect(listener.url, **options)
        connected = transport_of(nc).stream._socket

        def option(name: str) -> int:
            return connected.getsockopt(socket.IPPROTO_TCP, getattr(socket, name))

        assert connected.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        assert option("TCP_USER_TIMEOUT") == patience * 1000
        idle = option("TCP_KEEPIDLE") + option("TCP_KEEPINTVL") * option("TCP_KEEPCNT")
        assert abs(idle - patience) <= 2
        assert option("TCP_NODELAY")
        nc.close()
