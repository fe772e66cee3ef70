"""Rolling deploys: processes of two versions run at the same time, in both orders, and are started again."""

from __future__ import annotations

import itertools
import signal
from collections import Counter
from contextlib import ExitStack

import pytest
from fixtures.threads import SCALE, wait_until
from fixtures.worker import WorkerProgram

import jetstream_sync
from jetstream_sync.workers import TaskError, Worker

pytestmark = [pytest.mark.full, pytest.mark.timeout(170)]

_TASKS = """
worker = Worker(name="shop", program="tests", dead_letters="DEAD", concurrency=2)
worker.queue("default", unknown_task_grace=15)

def define(name):
    @worker.task(name=name, results="R", retry=Backoff(first=0.1))
    def run(number: int) -> str:
        record(f"{name} {number} VERSION")
        return name

for name in NAMES:
    define(name)
"""
#: The tasks of each version.
_NAMES = {"old": ("kept", "removed"), "new": ("kept", "added")}


@pytest.mark.parametrize("before", ["old", "new"])
def test_a_deploy_with_another_list_of_tasks(fresh_server, tmp_path, before):
    """
    Each call runs once, in a process that has its task.

    Only calls of a task that the last version does not have, sent after the last process that has it has ended,
    are dead letters.
    """
    after = "new" if before == "old" else "old"
    sender = Worker(fresh_server.url, name="shop", program="tests")
    tasks = {}
    for name in ("kept", "removed", "added"):

        @sender.task(name=name, results="R")
        def run(number: int) -> str:
            return str(number)

        tasks[name] = run
    calls, numbers = {}, itertools.count()

    def send(count: int) -> None:
        for _ in range(count):
            for name, task in tasks.items():
                number = next(numbers)
                calls[number] = name, task.delay(number)

    def start(version: str) -> WorkerProgram:
        code = _TASKS.replace("NAMES", repr(_NAMES[version])).replace("VERSION", version)
        return stack.enter_context(WorkerProgram(code, fresh_server.url, tmp_path))

    with ExitStack() as stack:
        programs = [start(before), start(before)]
        send(20)
        for version in (after, before, after):
            # A process is replaced; that of the former version is started again in between.
            programs.append(start(version))
            send(20)
            old = programs.pop(0)
            old.signal(signal.SIGKILL if version == before else signal.SIGTERM)
            old.ended()
            send(20)
        for program in programs[:-1]:
            program.stop()
        known = len(calls)
        wait_until(lambda: len(programs[-1].runs) >= known * 2 // 3, 40)
        send(10)
        outcomes = Counter()
        for number, (name, call) in calls.items():
            try:
                found = call.get(60 * SCALE)
            except TaskError as error:
                found = str(error)
            outcomes["run" if found == name else "dead"] += 1
            assert found == name or ("unknown task" in found and name not in _NAMES[after]), number
        runs = Counter(line.split()[1] for line in programs[-1].runs)
        names = {line.split()[1]: line.split() for line in programs[-1].runs}
        with jetstream_sync.connect(fresh_server.url) as nc:
            # A call that has ended in a killed process is delivered again after 30 seconds.
            wait_until(lambda: not nc.jetstream().get_stream("TASKS").info().state.messages, 60)
        programs[-1].stop()
    assert outcomes["run"] + outcomes["dead"] == len(calls)
    assert len(runs) == outcomes["run"]
    # A process was killed with at most two calls that ran, and may have ended them.
    assert sum(runs.values()) - len(runs) <= 2
    assert all(name in _NAMES[version] for name, _, version in names.values())
    with jetstream_sync.connect(fresh_server.url) as nc:
        js = nc.jetstream()
        assert js.get_stream("TASKS").info().state.messages == 0
        dead = js.get_stream("DEAD").info().state.messages if outcomes["dead"] else 0
    assert dead == outcomes["dead"]
    jetstream_sync.shared_connection(fresh_server.url, name="shop").close()


_HANDLER = """
worker = Worker(name="VERSION")

@worker.handler(stream="S", consumer="C", filter_subject="s.VERSION", concurrency=2)
def handle(ctx: Context):
    record(f"VERSION {ctx.message.subject} {ctx.message.data.decode()}")
"""


@pytest.mark.parametrize("before", ["old", "new"])
def test_a_deploy_with_another_filter_and_restarts_of_the_old_version(
    fresh_server, tmp_path, before
):
    """Each message of the new filter runs once, in a process of it; the old version is refused all the time."""
    after = "new" if before == "old" else "old"
    code = {version: _HANDLER.replace("VERSION", version) for version in ("old", "new")}
    with jetstream_sync.connect(fresh_server.url) as nc, ExitStack() as stack:
        js = nc.jetstream()
        js.create_stream(name="S", subjects=["s.*"])

        def start(version: str) -> WorkerProgram:
            return stack.enter_context(WorkerProgram(code[version], fresh_server.url, tmp_path))

        def publish(version: str, count: int) -> None:
            for number in range(count):
                js.publish(f"s.{version}", b"%d" % number)

        first = [start(before), start(before)]
        publish(before, 50)
        first[0].wait_runs(50, 40)
        last = [start(after)]
        publish(after, 50)
        for _ in range(2):
            old = first.pop()
            old.signal(signal.SIGTERM)
            assert old.ended() == 0
            again = Worker(fresh_server.url, name="tests")
            again.handler(stream="S", consumer="C", filter_subject=f"s.{before}")(bytes)
            assert again.run() == 2
            publish(after, 50)
            last.append(start(after))
        wait_until(lambda: js.consumer_info("S", "C").num_pending == 0, 40)
        wait_until(lambda: js.consumer_info("S", "C").num_ack_pending == 0, 40)
        assert js.consumer_info("S", "C").config.filter_subject == f"s.{after}"
        for program in last:
            program.stop()
        runs = Counter(line.rpartition(" ")[0] for line in last[0].runs)
    assert runs == {f"{before} s.{before}": 50, f"{after} s.{after}": 150}
