"""Several drains, closes and blocks that end one connection at the same time."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Iterator

import pytest
from fix_threads import SCALE, wait_until

import jetstream_sync
from jetstream_sync import Connection, Msg
from jetstream_sync.server import NatsServer


@pytest.fixture
def own(nats_server: NatsServer) -> Iterator[Connection]:
    """A connection that the test ends."""
    connection = jetstream_sync.connect(nats_server.url)
    yield connection
    connection.close()


def test_two_callbacks_drain(own):
    """Two callbacks that drain the connection do not wait for each other."""
    both = threading.Barrier(2)
    done: list[str] = []

    def stop(msg: Msg) -> None:
        both.wait(5 * SCALE)
        own.drain()
        done.append(msg.subject)

    own.subscribe("drain.a", cb=stop)
    own.subscribe("drain.b", cb=stop)
    own.publish("drain.a")
    own.publish("drain.b")
    wait_until(lambda: len(done) == 2)
    assert own.is_closed


def test_a_block_that_ends_during_a_drain_waits_for_it(nats_server):
    """The end of a with block does not shorten a drain that is in progress."""
    may_end = threading.Event()
    answered: list[bytes] = []
    with jetstream_sync.connect(nats_server.url) as other:
        answers = other.subscribe("drain.answers")
        other.flush()
        with jetstream_sync.connect(nats_server.url) as nc:

            def slowly(msg: Msg) -> None:
                may_end.wait(5 * SCALE)
                nc.publish("drain.answers", msg.data)

            nc.subscribe("drain.work", cb=slowly)
            for number in range(5):
                nc.publish("drain.work", b"%d" % number)
            nc.flush()
            drainer = threading.Thread(target=nc.drain)
            drainer.start()
            wait_until(lambda: nc.is_draining)
            threading.Timer(0.1, may_end.set).start()
        drainer.join(5 * SCALE)
        answered += [answers.next_msg(timeout=5).data for _ in range(5)]
    assert answered == [b"0", b"1", b"2", b"3", b"4"]


def test_a_program_that_ends_without_closing(nats_server):
    """Messages published before a program ends without closing arrive; it ends at once, silently."""
    program = (
        "import jetstream_sync\n"
        f"nc = jetstream_sync.connect({nats_server.url!r})\n"
        "nc.subscribe('drain.cb', cb=print)\n"
        "for number in range(1000): nc.publish('drain.last', b'%d' % number)\n"
        "import time; print(time.monotonic())\n"
    )
    with jetstream_sync.connect(nats_server.url) as nc:
        sub = nc.subscribe("drain.last")
        nc.flush()
        path = {"PYTHONPATH": ":".join(filter(None, sys.path))}
        command = [sys.executable, "-W", "always::ResourceWarning", "-c", program]
        done = subprocess.run(
            command, check=True, timeout=20 * SCALE, env=path, capture_output=True
        )
        assert done.stderr == b""
        assert time.monotonic() - float(done.stdout) < 5 * SCALE
        got = [int(sub.next_msg(timeout=5).data) for _ in range(1000)]
    assert got == list(range(1000))
