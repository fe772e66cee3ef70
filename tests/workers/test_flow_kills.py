"""
Flows whose workers, supervisors and server are killed again and again: each one ends, and what it did is in a file.

Beside them, calls share a limit of all processes, some are cancelled, and mirrors answer for the buckets.

The default is short. A long run: ``JETSTREAM_SYNC_TEST_FLOWS=200 JETSTREAM_SYNC_TEST_CHAINS=1000
pytest -s -o timeout=3600 tests/workers/test_flow_kills.py``.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import time
import uuid
from collections import Counter
from contextlib import ExitStack, suppress
from itertools import accumulate
from pathlib import Path

import pytest
from fixtures.threads import SCALE, wait_until
from fixtures.worker import WorkerProgram

from jetstream_sync import Error, StreamSource, shared_connection
from jetstream_sync.server import NatsServer
from jetstream_sync.workers import TaskResult, Worker, chain, group

#: The flows of each kind; a long run has more.
FLOWS = int(os.environ.get("JETSTREAM_SYNC_TEST_FLOWS", "12"))
CHAINS = int(os.environ.get("JETSTREAM_SYNC_TEST_CHAINS", str(FLOWS)))
#: The processes, and the calls that each one may run at a time.
PROCESSES, CONCURRENCY = 3, 2
#: What is killed, in turn.
VICTIMS = ("worker", "supervisor", "server")
#: The states of calls that have not ended.
READY = {"READY", "RUNNING"}
#: How often, in all.
KILLS = max(6, FLOWS // 3)

CODE = """
worker = Worker(os.environ["NATS_URL"], name=%r, program="tests", dead_letters="DEAD", concurrency=2)
worker.queue("default", ack_wait=3)
worker.limit("two", concurrency=2, scope="cluster")
fast = Backoff(first=0.2, factor=1.0, jitter=0.0, attempts=3)

@worker.task(name="link", results="R")
def link(value: int, flow: str) -> int:
    record(f"link {flow} {value}")
    time.sleep(0.1)
    return value + 1

@worker.task(name="member", results="R", retry=fast)
def member(flow: str, number: int, fails: bool) -> int:
    record(f"member {flow} {number}")
    time.sleep(0.1)
    if fails:
        raise Reject("as it must")
    return number

@worker.task(name="last", results="R")
def last(outcomes: list[dict[str, object]], flow: str) -> int:
    record(f"last {flow}")
    return len([item for item in outcomes if item["status"] == "SUCCESSFUL"])

@worker.task(name="limited", results="R", limit="two")
def limited(flow: str) -> None:
    with open("limited.txt", "a") as file:
        for what in ("begin", "end"):
            file.write(f"{what} {flow} {os.getpid()} {time.monotonic()}\\n")
            file.flush()
            time.sleep(0.1 * (what == "begin"))

def effect(flow, number):
    record(f"step {flow} {number}")
    time.sleep(0.1)
    return number

@worker.task(name="steps", results="R", steps=True)
def steps(flow: str, ctx: Context) -> int:
    total = ctx.step(effect, flow, 0) + ctx.step(effect, flow, 1)
    ctx.sleep(1.5)
    return total + ctx.step(effect, flow, 2) + ctx.step(effect, flow, 3)
"""


#: What a deploy in the middle brings: an argument, and a task that nothing calls yet.
DEPLOYED = (
    CODE.replace(
        'flow: str) -> int:\n    record(f"link',
        'flow: str, more: int = 0) -> int:\n    record(f"link',
    )
    + """
@worker.task(name="later")
def later() -> None:
    record("never")
"""
)


class Fleet:
    """The supervisors of workers, each with one child, and the server."""

    def __init__(self, code: str, server: NatsServer, folder: Path, chosen: random.Random) -> None:
        self.code = code
        self.server = server
        self.folder = folder
        self.chosen = chosen
        self.kills: Counter[str] = Counter()
        self.programs = [self._program() for _ in range(PROCESSES)]

    def _program(self) -> WorkerProgram:
        return WorkerProgram(self.code, self.server.url, self.folder, ["--processes", "1"])

    def kill_one(self) -> None:
        """Kill a worker, a supervisor or the server, whichever was killed least often."""
        what = min(VICTIMS, key=lambda name: self.kills[name])
        self.kills[what] += 1
        number = self.chosen.randrange(PROCESSES)
        if what == "server":
            self.server.kill()
            time.sleep(self.chosen.uniform(0, 0.5))
            self.server.start()
        elif what == "supervisor":
            self.replace(number, signal.SIGKILL)
        else:
            for child in children(self.programs[number].process.pid):
                with suppress(ProcessLookupError):
                    os.kill(child, signal.SIGKILL)

    def replace(self, number: int, end: signal.Signals) -> None:
        """End a supervisor with a signal, and start one with the present code."""
        self.programs[number].signal(end)
        self.programs[number].__exit__(None, None, None)
        self.programs[number] = self._program()

    def stop(self) -> None:
        """End everything."""
        for program in self.programs:
            program.__exit__(None, None, None)


def children(pid: int) -> list[int]:
    """Return the children of a process."""
    listed = subprocess.run(["pgrep", "-P", str(pid)], capture_output=True, text=True, check=False)
    return [int(child) for child in listed.stdout.split()]


@pytest.mark.timeout(600)
@pytest.mark.skipif(shutil.which("pgrep") is None, reason="needs pgrep")
def test_each_flow_ends_as_it_must_although_everything_is_killed(
    fresh_server: NatsServer, tmp_path: Path
) -> None:
    seed = int(os.environ.get("JETSTREAM_SYNC_TEST_SEED", "1"))
    name = f"k{uuid.uuid4().hex}"
    chosen = random.Random(seed)
    worker = Worker(fresh_server.url, name=name, program="tests", dead_letters="DEAD")

    def elsewhere(*_: object) -> int:
        raise AssertionError("it runs in other processes")

    link = worker.task(name="link", results="R")(elsewhere)
    member = worker.task(name="member", results="R")(elsewhere)
    last = worker.task(name="last", results="R")(elsewhere)
    steps = worker.task(name="steps", results="R", steps=True)(elsewhere)
    worker.limit("two", concurrency=2, scope="cluster")
    limited = worker.task(name="limited", results="R", limit="two")(elsewhere)
    shared: dict[str, TaskResult[int]] = {}
    results: dict[str, TaskResult[int]] = {}
    expected: dict[str, int] = {}

    def start_all() -> None:
        for number in range(CHAINS):
            flow = f"c{number}"
            links = [link.call(0, flow), link.call(flow), link.call(flow)]
            results[flow], expected[flow] = chain(*links).delay(), 3
        for number in range(FLOWS):
            flow = f"g{number}"
            failing = [chosen.randrange(20) == 0 for _ in range(10)]
            members = [member.call(flow, index, fails) for index, fails in enumerate(failing)]
            results[flow] = group(members, then=last.call(flow), on_error="call").delay()
            expected[flow] = 10 - sum(failing)
            flow = f"s{number}"
            results[flow], expected[flow] = steps.delay(flow), 6
            flow = f"l{number}"
            shared[flow] = limited.delay(flow)
        # They have the newest of the states, and answer direct gets for the buckets.
        for bucket in ("KV_R", "KV_R-flows"):
            js.create_stream(name=f"PART_{bucket}", mirror=StreamSource(name=bucket), max_msgs=5)
        for number in range(0, FLOWS, 3):
            cancelled[f"l{number}"] = shared[f"l{number}"].cancel()

    def open_flows() -> list[str]:
        found = []
        for flow, result in results.items():
            if flow not in ended:
                with suppress(Error):
                    if result.status == "SUCCESSFUL":
                        ended.add(flow)
                        continue
                found.append(flow)
        return found

    ended: set[str] = set()
    cancelled: dict[str, bool] = {}
    with ExitStack() as stack:
        nc = shared_connection(fresh_server.url, name=name)
        js = nc.jetstream(timeout=10 * SCALE)
        stack.callback(nc.close)
        fleet = Fleet(CODE % name, fresh_server, tmp_path, chosen)
        stack.callback(fleet.stop)
        start_all()
        deadline = time.monotonic() + (CHAINS + 8 * FLOWS) * SCALE + 120
        # All of them may end while one look waits for the killed server: the first ones come before any look.
        wait_until(lambda: fleet.programs[0].runs, 60)
        fleet.kill_one()
        fleet.code = DEPLOYED % name
        fleet.replace(0, signal.SIGTERM)
        while open_flows():
            assert time.monotonic() < deadline, missing(results)
            time.sleep(chosen.uniform(0.1, 0.6))
            if sum(fleet.kills.values()) < KILLS:
                fleet.kill_one()
        wait_until(lambda: js.get_stream("TASKS").info().state.messages == 0, 60)
        wait_until(lambda: js.get_stream("KV_R-flows").info().state.messages == 0, 20)
        assert {flow: result.get(0) for flow, result in results.items()} == expected
        wait_until(lambda: READY.isdisjoint(call.status for call in shared.values()), 60)
        check_shared(shared, cancelled, (tmp_path / "limited.txt").read_text())
        assert worker.verify() == []
        runs = Counter(fleet.programs[0].runs)
        dead = js.get_stream("DEAD").info().state.messages if "DEAD" in js.stream_names() else 0
    # Nothing is missing; what ran twice was killed between its effect and its record.
    wanted = {f"link c{number} {value}" for number in range(CHAINS) for value in range(3)}
    wanted |= {f"member g{number} {index}" for number in range(FLOWS) for index in range(10)}
    wanted |= {f"last g{number}" for number in range(FLOWS)}
    wanted |= {f"step s{number} {step}" for number in range(FLOWS) for step in range(4)}
    assert set(runs) == wanted
    twice = sum(count - 1 for count in runs.values())
    # A crash of the server interrupts what runs in all processes.
    assert twice <= sum(fleet.kills.values()) * CONCURRENCY * PROCESSES
    # A dead letter for each member that has failed.
    assert dead == sum(10 - expected[f"g{number}"] for number in range(FLOWS))
    sys.stdout.write(
        f"seed {seed}: killed {dict(fleet.kills)}, {len(wanted)} effects, {twice} twice, {dead} dead\n"
    )


def check_shared(
    shared: dict[str, TaskResult[int]], cancelled: dict[str, bool], recorded: str
) -> None:
    """Check that calls have run unless they were withdrawn, and that never more than two did at a time."""
    begun: dict[tuple[str, str], float] = {}
    changes: list[tuple[float, int]] = []
    finished: set[str] = set()
    for line in recorded.splitlines():
        what, flow, process, at = line.split()
        if what == "begin":
            begun[flow, process] = float(at)
            continue
        changes += [(begun.pop((flow, process)), 1), (float(at), -1)]
        finished.add(flow)
    # What was killed has run for a tenth of a second at most.
    changes += [change for at in begun.values() for change in ((at, 1), (at + 0.1, -1))]
    running = list(accumulate(change for _, change in sorted(changes)))
    assert max(running) <= 2
    for flow, call in shared.items():
        assert call.status == ("CANCELLED" if cancelled.get(flow) else "SUCCESSFUL"), flow
        assert (flow in finished) == (not cancelled.get(flow)), flow


def missing(results: dict[str, TaskResult[int]]) -> dict[str, str]:
    """Return the flows that have not ended, for the message of a failure."""
    found = {}
    for flow, result in results.items():
        try:
            if result.status != "SUCCESSFUL":
                found[flow] = result.status
        except Exception as error:
            found[flow] = type(error).__name__
    return found
