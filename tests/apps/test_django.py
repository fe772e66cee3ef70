"""The project of docs/howto/django: a view that publishes, and a management command that consumes."""

from __future__ import annotations

import re
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from fix_apps import Program, copied, free_port, http, run
from fix_threads import wait_until
from rawnats import RawClient

from jetstream_sync.server import NatsServer

# Programs of others take their time to start and to stop.
pytestmark = [pytest.mark.apps, pytest.mark.timeout(110)]

COMMAND = ["manage.py", "handle_orders"]


@pytest.fixture
def project(tmp_path: Path) -> Path:
    return copied("django", tmp_path)


@pytest.fixture
def site(fresh_server: NatsServer, project: Path) -> Iterator[str]:
    """The address of the project's view, served by gunicorn."""
    port = free_port()
    command = ["-m", "gunicorn", "--preload", "-w", "2", "--bind", f"127.0.0.1:{port}"]
    with Program([*command, "manage:application"], fresh_server.url, project) as program:
        program.wait_for("Listening at")
        yield f"http://127.0.0.1:{port}/orders"


def handled(*workers: Program) -> list[int]:
    """The numbers of the orders that workers have handled, sorted."""
    output = "".join(worker.output for worker in workers)
    return sorted(map(int, re.findall(r"handled (\d+)\n", output)))


def consumer(server: NatsServer) -> dict[str, int]:
    with RawClient(server.port) as raw:
        answer: dict[str, int] = raw.api("CONSUMER.INFO.ORDERS.orders")
        return answer


def publish(server: NatsServer, first: int, last: int) -> None:
    with RawClient(server.port) as raw:
        for number in range(first, last):
            assert b'"seq"' in raw.request("ORDERS.received", b"%d" % number)


def test_an_order_goes_through_view_and_worker(
    site: str, fresh_server: NatsServer, project: Path
) -> None:
    """What the view takes the command handles, once; without a stream the view says 503."""
    assert http("POST", f"{site}/1", b"1")[0] == 503
    with Program(COMMAND, fresh_server.url, project) as worker:
        worker.wait_for("ready")
        with ThreadPoolExecutor(4) as pool:
            answers = list(pool.map(lambda n: http("POST", f"{site}/{n}", b"%d" % n), range(50)))
        assert {status for status, _ in answers} == {201}
        assert {answer["seq"] for _, answer in answers} == set(range(1, 51))
        assert http("POST", f"{site}/7", b"7")[1]["again"] is True
        wait_until(lambda: handled(worker) == list(range(50)))
        worker.signal(signal.SIGTERM)
        assert worker.ended() == 0
        assert "stopped" in worker.output
    assert consumer(fresh_server)["num_ack_pending"] == 0


@pytest.mark.parametrize("how", ["SIGTERM", "Ctrl-C"])
def test_a_worker_stops_on_a_signal(fresh_server: NatsServer, project: Path, how: str) -> None:
    """It finishes what it has asked for, leaves nothing open, and its successor goes on from there."""
    with (
        Program(COMMAND, fresh_server.url, project) as first,
        Program(COMMAND, fresh_server.url, project) as second,
    ):
        first.wait_for("ready")
        second.wait_for("ready")
        publish(fresh_server, 0, 300)
        if how == "SIGTERM":
            first.signal(signal.SIGTERM)
        else:
            first.ctrl_c()
        publish(fresh_server, 300, 600)
        assert first.ended() == 0
        assert "stopped" in first.output
        wait_until(lambda: handled(first, second) == list(range(600)), 15)
        second.signal(signal.SIGTERM)
        assert second.ended() == 0
    assert consumer(fresh_server)["num_ack_pending"] == 0


def test_orders_that_cannot_be_handled(fresh_server: NatsServer, project: Path) -> None:
    """An unreadable message is a dead letter, a failed one is redelivered after a delay; the worker stays."""
    unlucky = project / "unlucky.py"
    unlucky.write_text(
        "import manage\n"
        "from orders import workers\n"
        "save = workers.save_order\n"
        "closed = []\n"
        "workers.close_old_connections = lambda: closed.append(1)\n"
        "workers.save_order = lambda number: 1 / 0 if number == 13 else save(number)\n"
        "try:\n"
        "    manage.execute_from_command_line(['manage.py', 'handle_orders'])\n"
        "finally:\n"
        "    print('closed', len(closed))\n"
    )
    with Program([str(unlucky)], fresh_server.url, project) as worker:
        worker.wait_for("ready")
        with RawClient(fresh_server.port) as raw:
            for order in (b"1", b"not an order", b"2", b"13", b"3"):
                assert b'"seq"' in raw.request("ORDERS.received", order)
        wait_until(lambda: handled(worker) == [1, 2, 3], 15)
        worker.signal(signal.SIGTERM)
        assert worker.ended() == 0
        # Before each order, so that no dead database connection is used, and after it.
        assert "closed 10" in worker.output
        assert worker.output.count("ZeroDivisionError") == 1
    info = consumer(fresh_server)
    assert (info["num_ack_pending"], info["num_pending"]) == (1, 0)
    with RawClient(fresh_server.port) as raw:
        assert [each.data for each in raw.stored("DEAD")] == [b"not an order"]


def test_a_worker_over_a_restart_of_the_server(fresh_server: NatsServer, project: Path) -> None:
    """A worker goes on by itself when nats-server is back."""
    with Program(COMMAND, fresh_server.url, project) as worker:
        worker.wait_for("ready")
        publish(fresh_server, 0, 100)
        wait_until(lambda: handled(worker) == list(range(100)), 15)
        fresh_server.restart()
        publish(fresh_server, 100, 200)
        wait_until(lambda: set(handled(worker)) == set(range(200)), 20)
        worker.signal(signal.SIGTERM)
        assert worker.ended() == 0


def test_the_project_is_a_sound_one(fresh_server: NatsServer, project: Path) -> None:
    """Django finds nothing to complain of, without a nats-server."""
    fresh_server.stop()
    assert "no issues" in run(["manage.py", "check"], fresh_server.url, project)
