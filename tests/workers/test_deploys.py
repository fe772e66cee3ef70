"""Rolling deploys: processes of two versions run at the same time, in both orders, and are started again."""

from __future__ import annotations

import itertools
import signal
from collections import Counter
from contextlib import ExitStack
from typing import Any

import pytest
from fixtures.threads import SCALE, wait_until
from fixtures.worker import WorkerProgram

import jetstream_sync
from jetstream_sync.workers import DeadLetters, TaskError, TaskResult, Worker

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


_ARGUMENTS = """
worker = Worker(name="shop", program="tests", dead_letters="DEAD", concurrency=2)
worker.queue("default", unknown_task_grace=GRACE)
options = {"results": "R", "retry": Backoff(first=0.1, factor=1.0, attempts=2)}

def attempt(name, number, ctx):
    if ctx.attempt == 1:
        raise Retry("busy")
    record(f"{name} {number} VERSION")

@worker.task(name="kept", **options)
def kept(number: int, ctx: Context): attempt("kept", number, ctx)
"""
_OLD_ARGUMENTS = """
@worker.task(name="changed", **options)
def changed(number: int, ctx: Context): attempt("changed", number, ctx)

@worker.task(name="removed", **options)
def removed(number: int, ctx: Context): attempt("removed", number, ctx)
"""
_NEW_ARGUMENTS = """
@worker.task(name="changed", **options)
def changed(number: int, language: str, ctx: Context): attempt("changed", number, ctx)
"""
_GRACE_S = 12
#: The statuses of calls that have ended.
ENDED = {"SUCCESSFUL", "FAILED"}


def test_a_deploy_with_a_new_argument_and_a_removed_task(fresh_server, tmp_path):
    """
    Each call runs to success once, with a retry, in a process that it fits, or is a dead letter with the reason.

    Only calls that no process takes during their grace are dead letters.
    """
    sender = Worker(fresh_server.url, name="shop", program="tests")
    tasks = {}
    for name in ("kept", "changed", "removed"):

        @sender.task(name=name, results="R")
        def run(*args: Any) -> None: ...

        tasks[name] = run
    calls: dict[int, tuple[str, bool, TaskResult[None]]] = {}

    def send(count: int) -> None:
        """Send calls as programs of both versions do."""
        for _ in range(count):
            for name, args in (
                *(("kept", ()), ("changed", ())),
                *(("changed", ("de",)), ("removed", ())),
            ):
                number = len(calls)
                calls[number] = name, bool(args), tasks[name].delay(number, *args)

    def start(version: str) -> WorkerProgram:
        code = _ARGUMENTS + (_OLD_ARGUMENTS if version == "old" else _NEW_ARGUMENTS)
        code = code.replace("VERSION", version).replace("GRACE", str(_GRACE_S))
        return stack.enter_context(WorkerProgram(code, fresh_server.url, tmp_path))

    with jetstream_sync.connect(fresh_server.url) as nc, ExitStack() as stack:
        js = nc.jetstream()
        old = [start("old"), start("old")]
        send(10)
        old[0].wait_runs(30)
        new = [start("new")]
        send(10)
        old.pop().stop()
        new.append(start("new"))
        send(10)
        sent = len(calls)
        wait_until(lambda: all(call.status in ENDED for _, _, call in calls.values()), 60)
        old.pop().stop()
        send(5)
        stream = js.get_stream("TASKS")
        wait_until(lambda: not stream.info().state.messages, 60)
        letters = {
            letter.subject.rpartition(".")[2]: letter.reason
            for letter in DeadLetters(js).find("TASKS")
        }
        runs = Counter(line.split()[1] for line in new[0].runs)
        succeeded = Counter()
        for number, (name, is_new, call) in calls.items():
            status, reason = call.status, letters.pop(call.id, None)
            if name == "kept" or (is_new if number >= sent else not is_new and number < sent // 3):
                assert status == "SUCCESSFUL", (name, number)
            elif number >= sent:
                assert status == "FAILED", (name, number)
            assert runs[str(number)] == (status == "SUCCESSFUL"), (name, number)
            succeeded[name] += status == "SUCCESSFUL"
            if status == "SUCCESSFUL":
                assert reason is None
            else:
                unfit = "unknown task" if name == "removed" else "no call of the task"
                assert unfit in reason
        assert not letters
        # Some have met only processes that they do not fit during their grace.
        assert succeeded["removed"] >= 20
        assert {line.split()[2] for line in new[0].runs if "removed" in line} == {"old"}
        for program in new:
            program.stop()
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
