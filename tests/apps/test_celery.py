"""The task of docs/howto/celery, in a worker with the prefork pool."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from fixtures.apps import Program, copied
from fixtures.rawnats import RawClient
from fixtures.threads import wait_until

from jetstream_sync.server import NatsServer

# Other programs take some time to start and to stop.
pytestmark = [pytest.mark.apps, pytest.mark.timeout(110)]

WORKER = ["-m", "celery", "--app", "tasks", "worker", "--loglevel", "info"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return copied("celery", tmp_path)


@pytest.fixture
def worker(fresh_server: NatsServer, folder: Path) -> Iterator[Program]:
    with Program(WORKER, fresh_server.url, folder) as program:
        program.wait_for(" ready.", 30)
        yield program
        # With folders as a broker a clean stop takes long; one test waits for it.
        program.signal(signal.SIGKILL)


def order(folder: Path, url: str, first: int, last: int) -> None:
    """Send tasks from another process, like a web application."""
    code = (
        "from tasks import take_order\n"
        f"for number in range({first}, {last}):\n"
        "    take_order.delay(number, f'order {number}')\n"
    )
    environment = {**os.environ, "NATS_URL": url}
    subprocess.run(
        [sys.executable, "-c", code], cwd=folder, env=environment, check=True, timeout=60
    )


def receipts(folder: Path) -> dict[int, tuple[int, int]]:
    """Return by order: its sequence in the stream, and the process that wrote the receipt."""
    found = {}
    for path in (folder / "receipts").glob("*.txt"):
        words = path.read_text().split()
        if len(words) == 2:
            found[int(path.stem)] = (int(words[0]), int(words[1]))
    return found


def stored(server: NatsServer) -> int:
    with RawClient(server.port) as raw:
        return int(raw.api("STREAM.INFO.ORDERS")["state"]["messages"])


def test_tasks_publish(worker, fresh_server, folder):
    """Each task stores its order; the children of the pool have their own connections."""
    (folder / "receipts").mkdir()
    order(folder, fresh_server.url, 0, 60)
    wait_until(lambda: len(receipts(folder)) == 60, 30)
    found = receipts(folder)
    assert {seq for seq, _ in found.values()} == set(range(1, 61))
    assert len({pid for _, pid in found.values()}) == 2
    assert worker.process.pid not in {pid for _, pid in found.values()}
    assert stored(fresh_server) == 60
    worker.signal(signal.SIGTERM)
    assert worker.ended() == 0
    assert "Traceback" not in worker.output


def test_a_repeated_task_is_stored_once(worker, fresh_server, folder):
    """A failure after the publish does not store the order a second time."""
    # Without the folder every task fails after its publish, and is repeated later.
    order(folder, fresh_server.url, 0, 10)
    wait_until(lambda: worker.output.count("Retry in") >= 10 and stored(fresh_server) == 10, 30)
    (folder / "receipts").mkdir()
    wait_until(lambda: len(receipts(folder)) == 10, 45)
    assert {seq for seq, _ in receipts(folder).values()} == set(range(1, 11))
    assert stored(fresh_server) == 10


@pytest.mark.usefixtures("worker")
def test_messages_become_tasks(fresh_server, folder):
    """The bridge sends one task for each stored order, and its consumer has nothing left to do."""
    (folder / "receipts").mkdir()
    with Program(["bridge.py"], fresh_server.url, folder) as bridge:
        order(folder, fresh_server.url, 0, 10)
        wait_until(lambda: len(list((folder / "labels").glob("*.txt"))) == 10, 45)
        with RawClient(fresh_server.port) as raw:
            info = raw.api("CONSUMER.INFO.ORDERS.LABELS")
            assert info["delivered"]["consumer_seq"] == 10
            wait_until(lambda: not raw.api("CONSUMER.INFO.ORDERS.LABELS")["num_ack_pending"])
        bridge.signal(signal.SIGTERM)
        assert bridge.ended() == 0
    names = {path.stem for path in (folder / "labels").glob("*.txt")}
    assert names == {f"order {number}" for number in range(10)}
    # Each task has its own id.
    assert len({path.read_text() for path in (folder / "labels").glob("*.txt")}) == 10
