"""The project of docs/howto/django: gunicorn, workers, and databases, each in its own processes."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import sqlite3
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from fixtures.apps import Program, copied, free_port, http, run
from fixtures.rawnats import RawClient
from fixtures.threads import SCALE, wait_until

import jetstream_sync
from jetstream_sync.server import NatsServer

# Other programs take some time to start and to stop.
pytestmark = [pytest.mark.apps, pytest.mark.timeout(110)]

WORKER = ["manage.py", "jetstream_worker"]
#: How often the processes of a test are killed.
KILLS = int(os.environ.get("JETSTREAM_SYNC_DJANGO_KILLS", "5"))


class Project:
    """
    A copy of the project, with its own database, and its streams on a server.

    Args:
        folder: the folder of the copy.
        server: the nats-server.
        variables: additional environment variables of the processes.

    """

    def __init__(self, folder: Path, server: NatsServer, variables: Mapping[str, str]) -> None:
        self.folder = folder
        self.server = server
        self._variables = {**os.environ, **variables}
        with RawClient(server.port) as raw:
            raw.api("STREAM.CREATE.ORDERS", name="ORDERS", subjects=["ORDERS.*"])
            # The lease of a killed worker ends soon.
            config = {"durable_name": "BILLING", "ack_policy": "explicit", "ack_wait": 3 * 10**9}
            config["filter_subject"] = "ORDERS.received"
            raw.api("CONSUMER.CREATE.ORDERS.BILLING", stream_name="ORDERS", config=config)
        self.run("manage.py", "migrate", "--run-syncdb", "--verbosity", "0")

    def start(self, *command: str) -> Program:
        return Program(list(command), self.server.url, self.folder, variables=self._variables)

    def run(self, *command: str) -> str:
        with self.start(*command) as program:
            assert program.ended(40) == 0, program.output
            return program.output

    @contextlib.contextmanager
    def site(self) -> Iterator[str]:
        """Run gunicorn, and yield the address of the view."""
        port = free_port()
        options = ("--preload", "-w", "2", "--threads", "4", "--bind", f"127.0.0.1:{port}")
        with self.start("-m", "gunicorn", *options, "manage:application") as program:
            program.wait_for("Listening at")
            yield f"http://127.0.0.1:{port}/orders"

    def rows(self, sql: str) -> list[tuple[Any, ...]]:
        """The rows of a query, read without Django."""
        if "PGHOST" in self._variables:
            import psycopg

            names = {"host": "PGHOST", "user": "PGUSER", "dbname": "PGDATABASE"}
            options = {name: self._variables[key] for name, key in names.items()}
            with psycopg.connect(**options) as connection:
                return list(connection.execute(sql))
        with contextlib.closing(sqlite3.connect(self.folder / "shop.sqlite3")) as connection:
            return list(connection.execute(sql))

    def add_orders(self, first: int, last: int) -> None:
        """Store orders like the view, without publishing them."""
        code = (
            "import manage; from orders.models import Order; Order.objects.bulk_create("
            f"[Order(number=str(n), text='x') for n in range({first}, {last})])"
        )
        self.run("-c", code)

    def publish(self, first: int, last: int) -> None:
        with RawClient(self.server.port) as raw:
            for number in range(first, last):
                assert b'"seq"' in raw.request("ORDERS.received", b"%d" % number)

    def invoices(self) -> Counter[int]:
        """Return the number of invoices of each order."""
        sql = "SELECT o.number FROM orders_invoice i JOIN orders_order o ON i.order_id = o.id"
        return Counter(int(row[0]) for row in self.rows(sql))

    def billed(self) -> list[int]:
        """Return the announced orders in their order."""
        with RawClient(self.server.port) as raw:
            stored = raw.stored("ORDERS")
        return [int(item.data) for item in stored if item.subject == "ORDERS.billed"]

    def consumer(self) -> dict[str, Any]:
        with RawClient(self.server.port) as raw:
            return raw.api("CONSUMER.INFO.ORDERS.BILLING")

    def is_done(self, count: int) -> bool:
        """Return whether this number of orders has invoices, and nothing is pending."""
        info = self.consumer()
        return (
            len(self.invoices()) == count
            and not info["num_pending"] + info["num_ack_pending"]
            and self.rows("SELECT count(*) FROM jetstream_outbox") == [(0,)]
        )


@pytest.fixture(params=["sqlite", "postgresql"])
def project(
    request: pytest.FixtureRequest, fresh_server: NatsServer, tmp_path: Path
) -> Iterator[Project]:
    folder = copied("django", tmp_path)
    if request.param == "sqlite":
        yield Project(folder, fresh_server, {})
        return
    variables = request.getfixturevalue("postgres_database")
    yield Project(folder, fresh_server, variables)


def test_an_order_goes_through_view_and_worker(project):
    """An order of the view gets an invoice and is announced once, also if it is repeated."""
    with project.site() as site, project.start(*WORKER) as worker:
        worker.wait_for("is ready")
        with ThreadPoolExecutor(4) as pool:
            responses = list(pool.map(lambda n: http("POST", f"{site}/{n}", b"tea"), range(30)))
        assert {status for status, _ in responses} == {201}
        assert http("POST", f"{site}/7", b"tea")[0] == 200
        wait_until(lambda: project.is_done(30), 20)
        worker.signal(signal.SIGTERM)
        assert worker.ended() == 0
        assert "stopped" in worker.output
    assert project.invoices() == Counter(range(30))
    assert sorted(project.billed()) == list(range(30))


@pytest.mark.parametrize("project", ["sqlite"], indirect=True)
def test_the_view_while_the_server_is_away(project):
    """The client gets a 503 and repeats its request; the order exists once."""
    with project.site() as site:
        project.server.stop()
        assert http("POST", f"{site}/1", b"tea")[0] == 503
        project.server.start()
        wait_until(lambda: http("POST", f"{site}/1", b"tea")[0] == 200, 20)
    assert project.rows("SELECT count(*) FROM orders_order") == [(1,)]
    assert project.consumer()["num_pending"] == 1


@pytest.mark.parametrize("project", ["sqlite"], indirect=True)
def test_orders_that_cannot_be_handled(project):
    """An unknown order is a dead letter; the worker continues, also after a restart."""
    project.add_orders(0, 3)
    with project.start(*WORKER) as worker:
        worker.wait_for("is ready")
        project.publish(0, 1)
        project.publish(13, 14)
        wait_until(lambda: project.is_done(1), 20)
        project.server.restart()
        project.publish(1, 3)
        wait_until(lambda: project.is_done(3), 20)
        worker.signal(signal.SIGTERM)
        assert worker.ended() == 0
    with RawClient(project.server.port) as raw:
        assert [item.data for item in raw.stored("DEAD")] == [b"13"]


@pytest.mark.parametrize("project", ["sqlite"], indirect=True)
def test_handlers_in_processes(project):
    """A process of a handler sets Django up before it imports the handler, and uses the database."""
    workers = project.folder / "orders" / "workers.py"
    code = workers.read_text().replace("concurrency=4", 'concurrency=2, pool="processes"')
    workers.write_text(code)
    project.add_orders(0, 10)
    with project.start(*WORKER) as worker:
        worker.wait_for("is ready")
        project.publish(0, 10)
        wait_until(lambda: project.is_done(10), 20)
        worker.signal(signal.SIGTERM)
        assert worker.ended() == 0
    assert project.invoices() == Counter(range(10))


#: Programs that run the worker, and kill it at a certain place, once.
_KILLED = """
import os, signal
import manage

def killed():
    try:
        os.close(os.open("was-killed", os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return
    os.kill(os.getpid(), signal.SIGKILL)

{patch}
manage.execute_from_command_line(["manage.py", "jetstream_worker"])
"""
_AFTER_COMMIT = """
from jetstream_sync.workers.deliveries import Settlements
ack = Settlements.ack

def ack_after(*arguments, **options):
    killed()
    return ack(*arguments, **options)

Settlements.ack = ack_after
"""
_AFTER_PUBLISH = """
from jetstream_sync.django.outbox import OutboxRelay
publish = OutboxRelay._publish_rows

def publish_before(*arguments):
    result = publish(*arguments)
    if result[0]:
        killed()
    return result

OutboxRelay._publish_rows = publish_before
"""


_SLOW_IMPORT = """
from pathlib import Path
import time

Path("importing").touch()
while not Path("goes-on").exists():
    time.sleep(0.01)
"""


@pytest.fixture
def hangup_ends() -> Iterator[None]:
    """Have SIGHUP end the programs that a test starts, also if the tests run under ``nohup``, which ignores it."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


@pytest.mark.usefixtures("hangup_ends")
@pytest.mark.parametrize("options", [["--processes", "1"], []], ids=["supervisor", "alone"])
def test_a_hangup_during_the_imports(project, options):
    """A supervisor ignores it: what starts has the current code. A single process ends, as without this package."""
    models = project.folder / "orders" / "models.py"
    models.write_text(_SLOW_IMPORT + models.read_text())
    with project.start(*WORKER, *options) as program:
        wait_until((project.folder / "importing").exists, 20)
        program.signal(signal.SIGHUP)
        (project.folder / "goes-on").touch()
        if options:
            program.wait_for("is ready")
            program.stop()
        else:
            assert program.ended() == -signal.SIGHUP


@pytest.mark.parametrize("patch", [_AFTER_COMMIT, _AFTER_PUBLISH], ids=["handler", "relay"])
def test_a_worker_that_is_killed(project, patch):
    """Killed between commit and ack, or between publish and delete: each effect exists once."""
    (project.folder / "unlucky.py").write_text(_KILLED.format(patch=patch))
    project.add_orders(0, 1)
    project.publish(0, 1)
    with project.start("unlucky.py") as worker:
        assert worker.ended() == -signal.SIGKILL
    assert project.invoices() == Counter([0])
    with project.start("unlucky.py") as worker:
        wait_until(lambda: project.is_done(1), 20)
        worker.signal(signal.SIGTERM)
        assert worker.ended() == 0
    assert project.invoices() == Counter([0])
    assert project.billed() == [0]
    runs = project.consumer()["delivered"]["consumer_seq"]
    assert runs == (2 if patch is _AFTER_COMMIT else runs)


@pytest.mark.parametrize("project", ["postgresql"], indirect=True)
@pytest.mark.timeout(110 + 10 * KILLS)
def test_random_kills(project):
    """Gunicorn takes orders while workers are killed at random: each order has one invoice."""
    chance = random.Random(KILLS)
    stop = False
    command = [*WORKER, "--processes", "4"]
    taken: list[int] = []

    def client(start: int) -> None:
        number = start
        while not stop:
            order = f"{site}/{number}"
            wait_until(lambda order=order: http("POST", order, b"tea")[0] in {200, 201}, 30)
            taken.append(number)
            number += 4

    with contextlib.ExitStack() as stack:
        site = stack.enter_context(project.site())
        worker = stack.enter_context(project.start(*command))
        wait_until(lambda: worker.output.count("is ready") == 4, 20)
        pool = stack.enter_context(ThreadPoolExecutor(4))
        clients = [pool.submit(client, start) for start in range(4)]
        try:
            for _ in range(KILLS):
                goal = len(project.invoices()) + chance.randrange(5, 25)
                wait_until(lambda goal=goal: len(project.invoices()) >= goal, 30)
                os.kill(chance.choice(processes(worker)), signal.SIGKILL)
        finally:
            stop = True
        for item in clients:
            item.result(60 * SCALE)
        wait_until(lambda: project.is_done(len(taken)), 40)
        worker.signal(signal.SIGTERM)
        assert worker.ended() == 0
    assert project.invoices() == Counter(taken)
    assert sorted(project.billed()) == sorted(taken)
    info = project.consumer()
    with RawClient(project.server.port) as raw:
        assert raw.stored("DEAD") == []
    sys.stdout.write(
        f"{KILLS} kills: {len(taken)} orders, {len(project.invoices())} invoices,"
        f" {len(project.billed())} announced, {info['delivered']['consumer_seq']} deliveries\n"
    )


def processes(worker: Program) -> list[int]:
    """Return the processes of a worker with a supervisor."""
    children = Path(f"/proc/{worker.process.pid}/task/{worker.process.pid}/children")
    return [int(part) for part in children.read_text().split()]


@pytest.mark.server(">=2.14")
def test_unused_schedules_are_deleted_by_a_command(fresh_server, tmp_path):
    """`jetstream_schedules` lists what is stored under the name of the worker, and deletes it."""
    folder = copied("django", tmp_path)
    with jetstream_sync.connect(fresh_server.url) as nc:
        js = nc.jetstream()
        subjects = ["ORDERS.*", "schedules.ORDERS.>"]
        stream = js.create_stream(name="ORDERS", subjects=subjects, allow_msg_schedules=True)
        js.schedule("schedules.ORDERS.shop.old", target="ORDERS.old", every=3600)
        command = ["manage.py", "jetstream_schedules"]
        assert "old: unused in stream ORDERS" in run(command, fresh_server.url, folder)
        assert stream.info().state.messages == 1
        assert "old: deleted" in run([*command, "--prune"], fresh_server.url, folder)
        assert stream.info().state.messages == 0


def test_the_project_is_a_sound_one(fresh_server, tmp_path):
    """The checks of Django find no problem, without a nats-server; `jetstream_check` needs one."""
    folder = copied("django", tmp_path)
    with Program(["manage.py", "jetstream_check"], fresh_server.url, folder) as program:
        assert program.ended() == 3  # there is no stream
        assert "bill: consumer BILLING of stream ORDERS" in program.output
        assert "stream not found" in program.output
    fresh_server.stop()
    assert "no issues" in run(["manage.py", "check"], fresh_server.url, folder)
