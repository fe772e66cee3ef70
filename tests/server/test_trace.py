"""`trace_cb` gets all protocol lines, without secrets."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading

import pytest
from fixtures.internals import transport_of
from fixtures.proxy import Listener
from fixtures.threads import SCALE, wait_until, within

import jetstream_sync
from jetstream_sync.errors import AuthorizationError
from jetstream_sync.server import NatsServer


def test_every_protocol_line_is_traced(nats_server):
    """From INFO to the last command, in both directions, each command before its reply."""
    lines: list[str] = []
    with (
        jetstream_sync.connect(nats_server.url, trace_cb=lines.append, name="traced") as nc,
        nc.subscribe("trace.a") as sub,
    ):
        nc.publish("trace.a", b"hello", headers={"A": "1"})
        sub.next_msg(5)
    verbs = [(line[0], line.split()[1]) for line in lines]
    assert verbs[:4] == [("<", "INFO"), (">", "CONNECT"), (">", "PING"), ("<", "PONG")]
    assert json.loads(lines[0].removeprefix("< INFO "))["server_name"] == "shared"
    assert json.loads(lines[1].removeprefix("> CONNECT "))["name"] == "traced"
    shown = "NATS/1.0, A: 1 | hello"
    told = [line for line in lines if "trace.a" in line]
    assert told == [
        "> SUB trace.a 1",
        f"> HPUB trace.a 18 23 | {shown}",
        f"< HMSG trace.a 1 18 23 | {shown}",
    ]
    assert "> UNSUB 1" in lines
    pings = [line for line in lines if line in {"> PING", "< PONG"}]
    assert pings == ["> PING", "< PONG"] * (len(pings) // 2)


def test_the_callback_has_a_thread_of_its_own(nats_server):
    """A blocked callback stops neither sending nor receiving."""
    threads: set[str] = set()
    go_on = threading.Event()

    def callback(line: str) -> None:
        threads.add(threading.current_thread().name)
        assert go_on.wait(20 * SCALE), line

    with jetstream_sync.connect(nats_server.url, trace_cb=callback, name="own") as nc:
        nc.subscribe("trace.b", cb=lambda msg: msg.respond(msg.data))
        for number in range(50):
            assert nc.request("trace.b", b"%d" % number, 5).data == b"%d" % number
        go_on.set()
    assert threads == {"nats-trace-own"}


def test_without_a_callback_there_is_no_thread(nats_server):
    """Without tracing there is no thread and no wrapper around the stream."""
    with jetstream_sync.connect(nats_server.url, name="untraced") as nc:
        nc.flush()
        assert not [t for t in threading.enumerate() if t.name.startswith("nats-trace")]
        assert type(transport_of(nc).stream).__name__ == "TCPStream"


def test_a_slow_callback_does_not_hold_up_close(nats_server):
    """Closing waits a second at most; the thread ends when the callback returns."""
    go_on = threading.Event()
    nc = jetstream_sync.connect(nats_server.url, trace_cb=lambda _: go_on.wait(30))
    with within(4):
        nc.close()
    go_on.set()


def test_a_refused_login_is_traced():
    """The lines of a failed connect are traced when `connect()` raises, without secrets."""
    lines: list[str] = []
    with NatsServer(config="authorization { user: alice, password: secret-1 }") as guarded:
        url = guarded.url.replace("//", "//alice:secret-2@")
        with pytest.raises(AuthorizationError):
            jetstream_sync.connect(url, trace_cb=lines.append)
        assert any(line.startswith("< -ERR 'Authorization") for line in lines)
        jetstream_sync.connect(
            guarded.url, user="alice", password="secret-1", trace_cb=lines.append
        ).close()
        with pytest.raises(AuthorizationError):
            jetstream_sync.connect(guarded.url, token="secret-3", trace_cb=lines.append)
    connects = [line for line in lines if line.startswith("> CONNECT")]
    assert len(connects) == 3
    assert '"user":"alice"' in connects[1]
    assert "secret" not in "".join(lines)


def test_every_link_is_traced():
    """After a reconnect the trace continues with the new INFO; an incomplete line is dropped."""
    lines: list[str] = []
    with (
        Listener() as listener,
        jetstream_sync.connect(listener.url, trace_cb=lines.append, reconnect_time_wait=0) as nc,
    ):
        _kept = nc.subscribe("a")
        first = listener.take()
        assert first.line() == b"SUB a 1\r\n"
        first.send(b"MSG a 1 100\r\nhalf")
        first.close()
        wait_until(lambda: nc.stats["reconnects"] == 1)
        assert listener.take(1).line() == b"SUB a 1\r\n"
        nc.close()
    assert [line.split()[1] for line in lines if line.startswith("<")] == ["INFO", "PONG"] * 2
    assert len([line for line in lines if line == "> SUB a 1"]) == 2


def test_plaintext_under_tls_is_traced(certificates):
    """The trace has the lines inside TLS: INFO once, then the login and the rest."""
    lines: list[str] = []
    with (
        NatsServer(config=certificates.server()) as server,
        jetstream_sync.connect(server.url, tls=certificates.trusted(), trace_cb=lines.append) as nc,
    ):
        nc.publish("a", b"inside")
    assert [line.split()[1] for line in lines[:4]] == ["INFO", "CONNECT", "PING", "PONG"]
    assert "> PUB a 6 | inside" in lines
    assert '"tls_required":true' in lines[1]


def test_a_process_that_ends_without_closing_ends(nats_server):
    """The thread does not delay the end of Python, and all lines are traced."""
    program = (
        "import sys, time, jetstream_sync\n"
        "def trace(line):\n"
        "    time.sleep(0.05)\n"
        "    print(line, flush=True)\n"
        "nc = jetstream_sync.connect(sys.argv[1], trace_cb=trace)\n"
        "nc.flush()\n"
        "nc.publish('last', b'')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, nats_server.url],
        capture_output=True,
        text=True,
        timeout=20 * SCALE,
        check=False,
        env=os.environ,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("< INFO {")
    assert "> PUB last 0" in done.stdout
