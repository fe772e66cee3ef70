"""Reconnecting to real servers: restarts, crashes, clusters, and the speed."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from queue import SimpleQueue
from typing import Any

import pytest
from fixtures.ctrl_c import interrupted, sends_ctrl_c
from fixtures.internals import engine_of
from fixtures.threads import SCALE, wait_until, within

import jetstream_sync
from jetstream_sync import Connection, ConnectionEvent, ConnectionStatus, Server, errors
from jetstream_sync.server import NatsCluster, NatsServer

QUICK: dict[str, Any] = {"reconnect_time_wait": 0.01, "max_reconnect_attempts": -1}


@pytest.fixture
def server() -> Iterator[NatsServer]:
    """A server without JetStream of this test alone."""
    with NatsServer(jetstream=False) as starting:
        yield starting


# --- one server -------------------------------------------------------------------------------


def test_reconnect_loses_nothing(server):
    """
    Messages published during forced reconnects arrive once.

    The server may process the last ones of a link after the first ones of the next link.
    """
    with (
        jetstream_sync.connect(server.url) as reader,
        jetstream_sync.connect(server.url, **QUICK) as nc,
    ):
        sub = reader.subscribe("numbers")
        reader.flush(5 * SCALE)
        published = 0
        stop = threading.Event()

        def publish() -> None:
            nonlocal published
            while not stop.is_set():
                nc.publish("numbers", b"%d" % published)
                published += 1
                if published % 100 == 0:
                    stop.wait(0.001)

        publisher = threading.Thread(target=publish)
        publisher.start()
        for number in range(20):
            nc.reconnect()
            wait_until(lambda number=number: nc.stats["reconnects"] > number)
        stop.set()
        publisher.join()
        nc.flush(5 * SCALE)
        assert published > 0
        received = [int(sub.next_msg(5 * SCALE).data) for _ in range(published)]
        assert sorted(received) == list(range(published))
        with pytest.raises(TimeoutError):
            sub.next_msg(0.1)


CONNECTING = """
import socket, threading
import jetstream_sync
hole = socket.create_server(("127.0.0.1", 0))
url = "nats://127.0.0.1:%d" % hole.getsockname()[1]
def serve():
    accepted.append(hole.accept())
    print("connecting", flush=True)
accepted = []
threading.Thread(target=serve, daemon=True).start()
try:
    jetstream_sync.connect(url, connect_timeout=60, retry_on_failed_connect={retry})
except KeyboardInterrupt:
    left = [thread.name for thread in threading.enumerate() if thread.name.startswith("nats-")]
    print("interrupted", *left, flush=True)
"""


@pytest.mark.parametrize("retry", [False, True])
def test_ctrl_c_ends_connecting(retry):
    """Ctrl-C while a server does not answer ends connect() at once and leaves no thread."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    with subprocess.Popen(
        [sys.executable, "-c", CONNECTING.format(retry=retry)],
        stdout=subprocess.PIPE,
        env=environment,
    ) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"connecting\n"
        with within(2):
            child.send_signal(signal.SIGINT)
            assert child.stdout.readline() == b"interrupted\n"
            assert child.wait(5 * SCALE) == 0


@sends_ctrl_c
def test_ctrl_c_during_reconnect(server):
    """Wherever a Ctrl-C interrupts reconnect(), the connection works afterwards."""
    with jetstream_sync.connect(server.url, **QUICK) as nc:
        sub = nc.subscribe("orders")

        def works() -> bool:
            nc.publish("orders", b"x")
            with contextlib.suppress(errors.ConnectionLostError, TimeoutError):
                nc.flush(timeout=0.5 * SCALE)
                return True
            return False

        moment = 0
        went_off = True
        while went_off:
            moment += 1
            went_off = interrupted(nc.reconnect, moment)
            wait_until(works)
        assert moment > 10
        assert sub.next_msg(timeout=5 * SCALE).data == b"x"


# --- a cluster --------------------------------------------------------------------------------


@pytest.fixture
def three() -> Iterator[NatsCluster]:
    """Three idle servers that announce each other quickly."""
    with NatsCluster(config="lame_duck_duration: 30s, lame_duck_grace_period: 100ms") as servers:
        yield servers


def known(nc: Connection) -> set[str]:
    return {address.url for address in engine_of(nc).connector.pool.addresses()}


def test_a_cluster_is_discovered_from_one_seed(three):
    """
    From one seed the others are discovered, and used one after the other as servers go.

    A lame duck announces its end, a killed server does not, and a restarted one is discovered
    again.
    """
    lost: SimpleQueue[ConnectionEvent] = SimpleQueue()
    lame: SimpleQueue[ConnectionEvent] = SimpleQueue()
    servers = {server.url: server for server in three.servers}
    seed = three.servers[0]
    nc = jetstream_sync.connect(
        seed.url,
        disconnected_cb=lost.put,
        lame_duck_mode_cb=lame.put,
        **QUICK,
    )
    sub = nc.subscribe("orders")
    wait_until(lambda: known(nc) == set(servers))
    assert (nc.servers[0], set(nc.servers)) == (seed.url, set(servers))
    assert set(nc.discovered_servers) == set(servers) - {seed.url}
    assert [item.discovered for item in nc.server_pool] == [False, True, True]

    # Killed: another one is used.
    seed.kill()
    assert lost.get(timeout=5 * SCALE).server == seed.url
    wait_until(lambda: nc.is_connected)
    second = nc.connected_url
    assert second is not None
    assert second != seed.url
    nc.publish("orders", b"1")
    assert sub.next_msg(timeout=5 * SCALE).data == b"1"
    assert lame.empty()

    # A lame duck announces itself, and is left when it closes the link.
    seed.start()
    # A configured server stays known while it is away, so its return is not a discovery.
    assert known(nc) >= {seed.url, second}
    process = servers[second].pid
    assert process is not None
    os.kill(process, signal.SIGUSR2)
    event = lame.get(timeout=5 * SCALE)
    assert event.server == second
    nc.publish("orders", b"2")
    assert sub.next_msg(timeout=5 * SCALE).data == b"2"
    assert lost.get(timeout=10 * SCALE).server == second
    wait_until(lambda: nc.is_connected and nc.connected_url != second)
    nc.publish("orders", b"3")
    assert sub.next_msg(timeout=5 * SCALE).data == b"3"
    assert lame.empty()
    # Discovered servers that have left the cluster are forgotten.
    wait_until(lambda: second not in known(nc))

    # The last ones: with none left, the connection is closed.
    wait_until(lambda: nc.is_connected)
    three.stop()
    wait_until(lambda: nc.is_reconnecting)
    nc.close()
    assert nc.status is ConnectionStatus.CLOSED


# --- another pool -----------------------------------------------------------------------------


def test_a_new_pool_is_used_at_the_next_reconnect(server):
    """The link stays; when it breaks, only servers of the new pool are tried."""
    with (
        NatsServer(jetstream=False) as other,
        jetstream_sync.connect(server.url, **QUICK) as nc,
    ):
        assert nc.servers == [server.url]
        nc.set_server_pool([f"nats://unknown:secret@{other.url.removeprefix('nats://')}"])
        assert nc.servers == [other.url], "without the login"
        assert nc.server_pool == [Server(other.url)]
        assert nc.discovered_servers == []
        nc.flush()
        assert nc.connected_url == server.url
        nc.reconnect()
        wait_until(lambda: nc.is_connected and nc.connected_url == other.url)
        other.stop()
        wait_until(lambda: nc.server_pool[0].reconnects > 2)
        assert nc.connected_url is None, "the first server is not used any more"


def test_a_new_pool_ends_fruitless_attempts(server):
    """While disconnected, a new pool is used by the attempts in progress."""
    with (
        NatsServer(jetstream=False) as other,
        jetstream_sync.connect(server.url, **QUICK) as nc,
    ):
        server.stop()
        wait_until(lambda: nc.is_reconnecting)
        nc.set_server_pool(other.url)
        wait_until(lambda: nc.is_connected)
        assert nc.connected_url == other.url


def test_an_invalid_pool_is_refused(server):
    """Nothing changes then; on a closed connection it is an error."""
    nc = jetstream_sync.connect(server.url, **QUICK)
    for wrong in ([], ["nats://a", "nats://:x"], ""):
        with pytest.raises(errors.InvalidOptionError):
            nc.set_server_pool(wrong)
    assert nc.servers == [server.url]
    nc.close()
    with pytest.raises(errors.ConnectionClosedError):
        nc.set_server_pool(server.url)
