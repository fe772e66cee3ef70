"""Atomic tasks with results whose workers are killed at every point of a run."""

from __future__ import annotations

import contextlib
import os
import time
from collections import Counter
from pathlib import Path
from typing import Any

import orjson
import pytest
from fixtures.apps import Program
from fixtures.threads import SCALE

import jetstream_sync
from jetstream_sync.server import NatsServer
from jetstream_sync.workers import DeadLetters

#: Number of tasks and of kills.
TASKS = int(os.environ.get("JETSTREAM_SYNC_KILL_TASKS", "300"))
KILLS = int(os.environ.get("JETSTREAM_SYNC_KILLS", "12"))

pytestmark = [
    pytest.mark.apps,
    pytest.mark.full,
    pytest.mark.timeout(120 + TASKS // 2),
]

APP = """
import logging, os, random, signal, sys
from pathlib import Path
import django
from django.conf import settings
settings.configure(
    INSTALLED_APPS=["jetstream_sync.django"], SECRET_KEY="x", USE_TZ=True,
    DATABASES={"default": {"ENGINE": "django.db.backends.postgresql", "USER": os.environ["PGUSER"],
        "NAME": os.environ["PGDATABASE"], "HOST": os.environ["PGHOST"]}},
    JETSTREAM={"servers": os.environ["NATS_URL"], "name": "kills", "program": "kills",
        "dead_letters": "DEAD", "concurrency": 4, "outbox": []},
)
django.setup()
from django.db import connection
from jetstream_sync.django import Worker
from jetstream_sync.workers import Backoff, calls
from jetstream_sync.workers import dead_letters
logging.basicConfig(level="INFO", stream=sys.stdout)

CHANCE, KILLS = float(os.environ["CHANCE"]), int(os.environ["KILLS"])
POINTS = Path("kills.txt")

def maybe_killed(point):
    if random.random() < CHANCE and len(POINTS.read_text().splitlines()) < KILLS:
        with POINTS.open("a") as file:
            file.write(point + "\\n")
        os.kill(os.getpid(), signal.SIGKILL)

def around(call, ctx):
    maybe_killed("before the transaction")
    result = call()
    maybe_killed("after the commit")
    return result

def then_killed(owner, name, point):
    function = getattr(owner, name)
    def wrapped(*args, **kwargs):
        result = function(*args, **kwargs)
        maybe_killed(point)
        return result
    setattr(owner, name, wrapped)

then_killed(calls.TaskState, "begin", "after the begin")
then_killed(calls.TaskState, "done", "after the state, before the ack")
then_killed(calls.TaskState, "failed", "after the failure, before the dead letter")
then_killed(calls.TaskState, "give_up", "after giving up, before the term")
then_killed(dead_letters.DeadLetterWriter, "write", "after the dead letter")

worker = Worker(name="kills", middleware=[around])
worker.queue("default", ack_wait=3, prefetch=2)

@worker.task(name="pay", results="R", atomic=True, retry=Backoff(first=0.1, factor=1, maximum=0.1, attempts=4))
def pay(number: int) -> int:
    with connection.cursor() as cursor:
        cursor.execute("INSERT INTO payments VALUES (%s)", [number])
        if number % 10 == 3:
            cursor.execute("INSERT INTO children VALUES (%s)", [number])  # fails at the commit
    maybe_killed("before the commit")
    if number % 10 == 7:
        raise ValueError(f"no {number}")
    return 2 * number

if __name__ == "__main__":
    if sys.argv[1] == "fill":
        from django.core.management import call_command
        call_command("migrate", verbosity=0)
        with connection.cursor() as cursor:
            cursor.execute("CREATE TABLE payments (number integer)")
            cursor.execute("CREATE TABLE parents (id integer PRIMARY KEY)")
            cursor.execute("CREATE TABLE children (parent integer REFERENCES parents DEFERRABLE INITIALLY DEFERRED)")
        for number in range(int(sys.argv[2])):
            pay.apply_async((number,), task_id=f"n-{number}")
    else:
        sys.exit(worker.run())
"""


def test_database_states_and_dead_letters_agree(
    fresh_server: NatsServer, tmp_path: Path, postgres_database: dict[str, str]
) -> None:
    """Each call has a row, its state and its value; or no row, the state FAILED, and one dead letter."""
    (tmp_path / "app.py").write_text(APP)
    kills = tmp_path / "kills.txt"
    kills.touch()
    chance = f"{KILLS / TASKS / 4:g}"
    variables = {**os.environ, **postgres_database, "CHANCE": chance, "KILLS": str(KILLS)}

    def start(*arguments: str) -> Program:
        return Program(["app.py", *arguments], fresh_server.url, tmp_path, variables=variables)

    with start("fill", str(TASKS)) as filled:
        assert filled.ended(60 * SCALE + TASKS) == 0, filled.output
    with jetstream_sync.connect(fresh_server.url) as nc, contextlib.ExitStack() as stack:
        js = nc.jetstream()
        workers = [stack.enter_context(start("run")) for _ in range(2)]
        deadline = time.monotonic() + 60 * SCALE + TASKS / 4
        while js.get_stream("TASKS").info().state.messages:
            assert time.monotonic() < deadline, js.get_stream("TASKS").info().state.messages
            for index, item in enumerate(workers):
                if item.process.poll() is not None:
                    workers[index] = stack.enter_context(start("run"))
            time.sleep(0.05)
        for worker in workers:
            worker.process.kill()
        check(js, postgres_database)
        points = Counter(kills.read_text().splitlines())
        assert sum(points.values()) >= KILLS / 2, points


def check(js: Any, database: dict[str, str]) -> None:
    """Compare the rows, the states and the dead letters of all calls."""
    import psycopg

    where = {"host": database["PGHOST"], "user": database["PGUSER"]}
    with psycopg.connect(**where, dbname=database["PGDATABASE"]) as connection:
        rows = Counter(row[0] for row in connection.execute("SELECT number FROM payments"))
    dead = Counter(
        int(item.subject.rpartition("-")[2])
        for item in DeadLetters(js).find("TASKS")
        for _ in item.stored
    )
    bucket, wrong = js.key_value("R"), []
    for number in range(TASKS):
        record = orjson.loads(bucket.value(f"n-{number}"))
        status, value = record["status"], record["return_value"]
        good = (status, value, rows[number], dead[number]) == ("SUCCESSFUL", 2 * number, 1, 0)
        bad = (status, value, rows[number], dead[number]) == ("FAILED", None, 0, 1)
        expected = bad if number % 10 in {3, 7} else good or bad
        if not expected:
            wrong.append((number, status, value, rows[number], dead[number]))
    assert not wrong, wrong[:10]
    assert sum(rows.values()) >= 0.75 * TASKS
