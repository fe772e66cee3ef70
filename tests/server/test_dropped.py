"""Connections that are dropped without `close()` warn and leave nothing behind."""

from __future__ import annotations

import gc
import os
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from fixtures.faults import open_files
from fixtures.fork import in_child
from fixtures.threads import SCALE, wait_until

import jetstream_sync
from jetstream_sync import Connection, Msg
from jetstream_sync.server import NatsServer


def publish_async(nc: Connection) -> None:
    nc.jetstream().publish_async("no.stream.here")


def subscribe(nc: Connection) -> None:
    nc.subscribe("dropped")


def read_a_little(nc: Connection) -> None:
    """Leave an iteration over messages before its end."""
    js = nc.jetstream()
    consumer = js.create_consumer("KEPT", durable_name="C")
    for msg in consumer.messages():
        msg.nak()
        break


def fetch(nc: Connection) -> None:
    nc.jetstream().create_consumer("KEPT", durable_name="F").fetch(1)


@pytest.fixture
def kept(nats_server: NatsServer) -> Iterator[None]:
    """A stream with one message."""
    with jetstream_sync.connect(nats_server.url) as nc:
        js = nc.jetstream()
        js.create_stream(name="KEPT", subjects=["kept"], storage="memory")
        js.publish("kept", b"x")
        yield
        js.delete_stream("KEPT")


def ours() -> list[str]:
    return [item.name for item in threading.enumerate() if item.name.startswith("nats-")]


@contextmanager
def warned() -> Iterator[list[warnings.WarningMessage]]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield caught


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="needs /proc")
def test_fifty_dropped_connections_leave_nothing(nats_server):
    """Each warns, and none keeps a socket or a thread."""
    gc.collect()
    threads, files = set(ours()), open_files()
    with warned() as caught:
        for number in range(50):
            jetstream_sync.connect(nats_server.url, name=f"drop-{number}")
            place = sys._getframe().f_lineno - 1
        wait_until(lambda: set(ours()) <= threads, 10)
        wait_until(lambda: open_files() <= files, 10)
    told = [str(item.message) for item in caught if item.category is ResourceWarning]
    places = {(item.filename, item.lineno) for item in caught}
    assert places == {(__file__, place)}  # where the connections were opened
    assert len(told) == 50
    assert "'drop-0'" in told[0]
    assert "close()" in told[0]


@pytest.mark.usefixtures("kept")
@pytest.mark.parametrize("use", [publish_async, subscribe, read_a_little, fetch])
def test_unreferenced_objects_do_not_keep_a_connection_open(nats_server, use):
    """Unreferenced objects that used the connection do not keep it."""
    gc.collect()
    threads = set(ours())
    with warned() as caught:
        use(jetstream_sync.connect(nats_server.url, name="used"))
        gc.collect()
        wait_until(lambda: set(ours()) <= threads, 10)
    # The iterator that was left warns as well.
    assert {item.category for item in caught} == {ResourceWarning}
    assert len(caught) == (2 if use is read_a_little else 1)


@pytest.mark.usefixtures("kept")
@pytest.mark.parametrize("kind", ["jetstream", "consumer", "message", "subscription", "callback"])
def test_a_referenced_object_keeps_its_connection_open(nats_server, kind):
    """Each object made with a connection keeps it open while it is referenced."""

    def make() -> tuple[object, Callable[[], object]]:
        nc = jetstream_sync.connect(nats_server.url)
        js = nc.jetstream()
        if kind == "jetstream":
            return js, js.account_info
        if kind == "consumer":
            consumer = js.create_consumer("KEPT", durable_name="K")
            return consumer, consumer.info
        if kind == "message":
            msg = js.create_consumer("KEPT", durable_name="M").fetch(1)[0]
            return msg, msg.ack_sync
        sub = nc.subscribe("use.it")
        return sub, sub.unsubscribe

    def respond() -> None:
        nc = jetstream_sync.connect(nats_server.url)
        nc.subscribe("echo.me", cb=lambda msg: msg.respond(b"yes"))
        nc.subscribe("stop.me", cb=lambda _: nc.close())

    with warned() as caught:
        if kind == "callback":
            respond()
            gc.collect()
            with jetstream_sync.connect(nats_server.url) as nc:
                assert nc.request("echo.me", timeout=5 * SCALE).data == b"yes"
                nc.publish("stop.me")
                nc.flush()
                wait_until(lambda: not [our for our in ours() if "stop.me" in our])
        else:
            held, use = make()
            gc.collect()
            assert not caught
            use()
            threads = len(ours())
            del held, use
            gc.collect()
            wait_until(lambda: len(ours()) < threads, 10)
    assert [item.category for item in caught] == [ResourceWarning] * (kind != "callback")


def test_a_dropped_connection_sends_its_buffer(nats_server):
    """A dropped connection sends its buffer before it closes."""
    got: list[Msg] = []
    with jetstream_sync.connect(nats_server.url) as nc:
        sub = nc.subscribe("last.words")
        nc.flush()
        with warned():
            dropped = jetstream_sync.connect(nats_server.url)
            for _ in range(1000):
                dropped.publish("last.words", bytes(1000))
            del dropped
            gc.collect()
            got = [sub.next_msg(5 * SCALE) for _ in range(1000)]
    assert len(got) == 1000


def test_a_closed_connection_does_not_warn(nats_server):
    """A closed, drained or never opened connection does not warn."""
    with warned() as caught:
        jetstream_sync.connect(nats_server.url).close()
        jetstream_sync.connect(nats_server.url).drain()
        with jetstream_sync.connect(nats_server.url):
            pass
        with pytest.raises(jetstream_sync.NoServersError):
            jetstream_sync.connect("nats://127.0.0.1:1")
        gc.collect()
    assert not caught


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
def test_dropping_a_connection_in_a_forked_child_does_nothing(nats_server):
    """In a forked child there is no warning, and the parent's connection stays usable."""
    held = [jetstream_sync.connect(nats_server.url)]

    def check() -> None:
        with warned() as caught:
            held.clear()
            gc.collect()
            time.sleep(0.05)
        assert not caught
        assert not ours()

    in_child(check)
    held[0].flush(5 * SCALE)
    held[0].close()
