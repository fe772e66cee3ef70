"""The plain scripts of docs/howto/scripts: Ctrl-C, and an end without a close."""

from __future__ import annotations

import re
import signal

from fixtures.apps import APPS, Program, run
from fixtures.rawnats import RawClient
from fixtures.threads import wait_until

from jetstream_sync.server import NatsServer

SCRIPTS = APPS / "scripts"


def stored(server: NatsServer) -> int:
    with RawClient(server.port) as raw:
        info = raw.api("STREAM.INFO.ORDERS")
        return int(info["state"]["messages"]) if "state" in info else 0


def open_acks(server: NatsServer, consumer: str) -> int:
    with RawClient(server.port) as raw:
        return int(raw.api(f"CONSUMER.INFO.ORDERS.{consumer}")["num_ack_pending"])


def handled_by(worker: Program) -> set[int]:
    """Return the orders that a worker has printed as handled."""
    return set(map(int, re.findall(r"handled (\d+)\n", worker.output)))


def test_every_line_is_published(fresh_server, tmp_path):
    """The script ends with its input, and prints the state of the stream."""
    with Program([str(SCRIPTS / "publish.py")], fresh_server.url, tmp_path, feed=True) as program:
        program.input.write(b"".join(b"line %d\n" % n for n in range(5000)))
        program.input.close()
        assert program.ended() == 0
        assert "5000 of 5000 are stored" in program.output
    assert stored(fresh_server) == 5000


def test_ctrl_c_while_publishing(fresh_server, tmp_path):
    """After a Ctrl-C every message of the input read so far is stored, and the script says so."""
    with Program([str(SCRIPTS / "publish.py")], fresh_server.url, tmp_path, feed=True) as program:
        program.input.write(b"".join(b"line %d\n" % n for n in range(3000)))
        program.input.flush()
        wait_until(lambda: stored(fresh_server))
        program.signal(signal.SIGINT)
        assert program.ended() == 0
        assert "stopping" in program.output
        count = int(program.output.split(" of ")[1].split()[0])
    # The Ctrl-C may come after a publish and before the script keeps its future.
    assert stored(fresh_server) in {count, count + 1}


def create_orders(server: NatsServer) -> None:
    with RawClient(server.port) as raw:
        assert "error" not in raw.api("STREAM.CREATE.ORDERS", name="ORDERS", subjects=["ORDERS.*"])


def test_ctrl_c_while_working(fresh_server, tmp_path):
    """A Ctrl-C ends a worker; handled orders are acknowledged, and the rest is left to others."""
    create_orders(fresh_server)
    with Program([str(SCRIPTS / "work.py")], fresh_server.url, tmp_path) as worker:
        worker.wait_for("is ready")
        with RawClient(fresh_server.port) as raw:
            for number in range(500):
                assert b'"seq"' in raw.request("ORDERS.received", b"%d" % number)
        wait_until(lambda: worker.output.count("handled") > 100)
        worker.signal(signal.SIGINT)
        assert worker.ended() == 0
        handled = handled_by(worker)
    # Waiting orders were returned. Another worker continues, and nothing is handled twice or left out.
    with Program([str(SCRIPTS / "work.py")], fresh_server.url, tmp_path) as another:
        another.wait_for("is ready")
        wait_until(lambda: handled | handled_by(another) == set(range(500)), 20)
        another.signal(signal.SIGINT)
        assert another.ended() == 0
        assert not handled & handled_by(another)
    assert open_acks(fresh_server, "work") == 0


def test_an_end_without_a_close(fresh_server, tmp_path):
    """Acknowledged messages are stored, and buffered ones are sent at the end."""
    output = run([str(SCRIPTS / "forget.py")], fresh_server.url, tmp_path)
    assert "stored as 1" in output
    wait_until(lambda: stored(fresh_server) == 1001)
