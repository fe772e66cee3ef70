"""A reader that runs out of memory reconnects, as after a lost connection."""

from __future__ import annotations

import subprocess
import sys

import pytest
from fixtures.threads import SCALE

from jetstream_sync import connect
from jetstream_sync.server import NatsServer

#: Subscribes, limits the memory to less than a large message needs, and reads what comes after it.
PROGRAM = """
import resource, sys, threading, time, jetstream_sync
threading.stack_size(262144)
errors = []
# The thread of the callbacks is started before the memory is limited.
connected = threading.Event()
options = {"error_cb": errors.append, "reconnect_time_wait": 0.05}
with jetstream_sync.connect(sys.argv[1], reconnected_cb=connected.set, **options) as nc:
    nc.reconnect()
    connected.wait(10)
    subscription = nc.subscribe("large")
    nc.flush()
    pages = int(open("/proc/self/statm").read().split()[0])
    limit = pages * resource.getpagesize() + 40_000_000
    resource.setrlimit(resource.RLIMIT_AS, (limit, resource.RLIM_INFINITY))
    print("ready", flush=True)
    deadline = time.monotonic() + 30
    while nc.stats["reconnects"] < 2 and not nc.is_closed and time.monotonic() < deadline:
        time.sleep(0.02)
    resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    nc.flush()
    print("reconnected", flush=True)
    size = len(subscription.next_msg(timeout=30).data)
    print(size, [type(error.__cause__).__name__ for error in errors], flush=True)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the limit and the size are those of Linux")
@pytest.mark.parametrize("speedups", ["0", "1"])
def test_a_reader_without_memory_reconnects(speedups, monkeypatch):
    """The message that does not fit is lost with its transport, the error is reported, and later ones arrive."""
    monkeypatch.setenv("JETSTREAM_SYNC_SPEEDUPS", speedups)
    config = "max_payload: 64000000\nmax_pending: 128000000"
    command = [sys.executable, "-c", PROGRAM]
    with (
        NatsServer(config=config) as server,
        connect(server.url) as publisher,
        subprocess.Popen([*command, server.url], stdout=subprocess.PIPE, text=True) as reader,
    ):
        assert reader.stdout is not None
        assert reader.stdout.readline() == "ready\n"
        publisher.publish("large", bytes(60_000_000))
        publisher.flush(timeout=20 * SCALE)
        assert reader.stdout.readline() == "reconnected\n"
        publisher.publish("large", b"small")
        publisher.flush()
        assert reader.stdout.readline() == "5 ['MemoryError']\n"
