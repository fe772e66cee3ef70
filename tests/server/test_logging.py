"""Log records: their texts and levels, and that they contain no secrets."""

from __future__ import annotations

import logging
import subprocess
import sys
import threading

import pytest
from fixtures.proxy import Listener
from fixtures.threads import SCALE, wait_until

import jetstream_sync
from jetstream_sync.errors import NoServersError, SlowConsumerError
from jetstream_sync.server import NatsServer


@pytest.fixture
def log(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.DEBUG, "jetstream_sync")
    return caplog


def said(log: pytest.LogCaptureFixture, logger: str, level: str) -> list[str]:
    """Return the messages of one logger at one level."""
    return [
        record.getMessage()
        for record in log.records
        if record.name == f"jetstream_sync.{logger}" and record.levelname == level
    ]


def test_connection_events_are_logged_at_level_info(log):
    """The log has connects, failed attempts, disconnects with reasons, reconnects and the close."""
    server = NatsServer().start()
    try:
        with jetstream_sync.connect(server.url, name="orders", reconnect_time_wait=0.05) as nc:
            server.kill()
            wait_until(lambda: any("refused" in text for text in log.messages))
            server.start()
            wait_until(lambda: nc.stats["reconnects"] == 1)
    finally:
        server.stop()
    attempts = [text for text in said(log, "connection", "INFO") if text.startswith("orders: ")]
    assert attempts[0] == f"orders: connected to {server.url}"
    # The errors of attempts while the server starts are not predictable.
    assert all(text.startswith(f"orders: {server.url}: ") for text in attempts[1:])
    assert f"orders: {server.url}: Connection refused" in attempts
    disconnected, *rest = said(log, "events", "INFO")
    assert disconnected.startswith(f"orders: disconnected {server.url}: ")
    assert rest == [f"orders: reconnected {server.url}", f"orders: closed {server.url}"]
    assert not [record for record in log.records if record.levelno >= logging.ERROR]


def test_the_reason_of_an_end_is_logged_without_error_cb(log):
    """Without error_cb the reason is in the event and in an error record."""
    with Listener() as listener:
        nc = jetstream_sync.connect(listener.url, allow_reconnect=False)
        listener.take().close()
        wait_until(lambda: nc.is_closed)
        wait_until(lambda: len(said(log, "events", "INFO")) == 2)
        nc.close()
    disconnected, closed = said(log, "events", "INFO")
    assert disconnected.startswith(f"connection: disconnected {listener.url}: ")
    assert closed.startswith("connection: closed")
    assert len(said(log, "events", "ERROR")) == 1


def test_unreachable_servers_are_named(log):
    """Each attempt of the first round has a record."""
    with pytest.raises(NoServersError):
        jetstream_sync.connect(["nats://127.0.0.1:1", "nats://me:secret@127.0.0.1:2"])
    assert sorted(said(log, "connection", "INFO")) == [
        "connection: nats://127.0.0.1:1: Connection refused",
        "connection: nats://127.0.0.1:2: Connection refused",
    ]


def test_errors_without_a_callback_are_logged(nats_server, log):
    """A slow subscription is an error record, unless there is an error_cb."""
    errors: list[Exception] = []
    for error_cb in ({}, {"error_cb": errors.append}):
        with jetstream_sync.connect(nats_server.url, name="slow", **error_cb) as nc:
            sub = nc.subscribe("logging.slow", pending_msgs_limit=1)
            for _ in range(10):
                nc.publish("logging.slow", b"x")
            nc.flush()
            assert sub.dropped == 9
    (text,) = said(log, "events", "ERROR")
    assert text.startswith("slow: SlowConsumerError: ")
    assert [type(error) for error in errors] == [SlowConsumerError]


def test_a_callback_that_raises_is_logged_with_its_traceback(nats_server, log):
    """A callback for events stays in use; an error of one for messages is an error event, too."""
    done = threading.Event()

    def closed() -> None:
        done.set()
        raise ZeroDivisionError("in closed_cb")

    def handle(msg: object) -> None:
        raise ValueError(f"in the callback for {type(msg).__name__}")

    nc = jetstream_sync.connect(nats_server.url, name="raising", closed_cb=closed)
    nc.subscribe("logging.raise", cb=handle)
    nc.publish("logging.raise")
    wait_until(lambda: said(log, "events", "ERROR"))
    nc.close()
    assert done.wait(5 * SCALE)
    wait_until(lambda: len(said(log, "events", "ERROR")) == 2)
    assert said(log, "events", "ERROR") == [
        "raising: ValueError: in the callback for Msg",
        "raising: a callback raised",
    ]
    tracebacks = [record.exc_info[0] for record in log.records if record.exc_info is not None]
    assert tracebacks == [ValueError, ZeroDivisionError]


def test_a_program_that_configures_nothing_sees_errors_only():
    """Without configuration only errors without an error_cb are printed, on stderr."""
    program = """if True:
        import threading, jetstream_sync
        from jetstream_sync.server import NatsServer
        done = threading.Event()
        with NatsServer() as server, jetstream_sync.connect(server.url, name="plain") as nc:
            nc.flush()
            nc.subscribe("a", cb=lambda msg: done.set() or 1 / 0)
            nc.publish("a")
            done.wait(5)
        """
    ended = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        timeout=30 * SCALE,
        check=True,
    )
    assert ended.stdout == ""
    assert ended.stderr == "plain: ZeroDivisionError: division by zero\n"


def test_the_counters_go_on_over_a_reconnect(fresh_server):
    """`stats` counts from the first link to the last, and can be read after the close."""
    with jetstream_sync.connect(fresh_server.url, reconnect_time_wait=0.01) as nc:
        sub = nc.subscribe("stats.a")
        for links in (1, 2):
            nc.publish("stats.a", b"12345")
            sub.next_msg(10)
            if links == 1:
                fresh_server.kill()
                wait_until(lambda: not nc.is_connected)
                fresh_server.start()
                wait_until(lambda: nc.stats["reconnects"] == 1)
    assert nc.stats == {
        "in_msgs": 2,
        "out_msgs": 2,
        "in_bytes": 10,
        "out_bytes": 10,
        "reconnects": 1,
        "errors_received": 0,
        "events_dropped": 0,
    }
