"""Flows whose workers are killed again and again: each one ends, and what it did is in a file."""

from __future__ import annotations

import os
import random
import signal
import sys
import time
import uuid
from collections import Counter
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest
from fixtures.threads import SCALE, wait_until
from fixtures.worker import WorkerProgram

from jetstream_sync import JetStream, StreamNotFoundError, shared_connection
from jetstream_sync.server import NatsServer
from jetstream_sync.workers import TaskResult, Worker, chain, group

#: The flows of each kind; a long run has more.
FLOWS = int(os.environ.get("JETSTREAM_SYNC_TEST_FLOWS", "12"))
#: The processes, and the calls that each one may run at a time.
PROCESSES, CONCURRENCY = 3, 2

CODE = """
worker = Worker(os.environ["NATS_URL"], name=%r, program="tests", dead_letters="DEAD", concurrency=2)
worker.queue("default", ack_wait=3)
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


@pytest.mark.timeout(600)
@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="needs SIGKILL")
def test_each_flow_ends_as_it_must_although_workers_are_killed(
    nats_server: NatsServer, js: JetStream, tmp_path: Path
) -> None:
    seed = int(os.environ.get("JETSTREAM_SYNC_TEST_SEED", "1"))
    name = f"k{uuid.uuid4().hex}"
    chosen, kills = random.Random(seed), 0
    worker = Worker(nats_server.url, name=name, program="tests", dead_letters="DEAD")

    def elsewhere(*_: object) -> int:
        raise AssertionError("it runs in other processes")

    link = worker.task(name="link", results="R")(elsewhere)
    member = worker.task(name="member", results="R")(elsewhere)
    last = worker.task(name="last", results="R")(elsewhere)
    steps = worker.task(name="steps", results="R", steps=True)(elsewhere)
    results: dict[str, TaskResult[int]] = {}
    expected: dict[str, int] = {}

    def start_all() -> None:
        for number in range(FLOWS):
            flow = f"c{number}"
            links = [link.call(0, flow), link.call(flow), link.call(flow)]
            results[flow], expected[flow] = chain(*links).delay(), 3
            flow = f"g{number}"
            failing = [chosen.randrange(20) == 0 for _ in range(10)]
            members = [member.call(flow, index, fails) for index, fails in enumerate(failing)]
            results[flow] = group(members, then=last.call(flow), on_error="call").delay()
            expected[flow] = 10 - sum(failing)
            flow = f"s{number}"
            results[flow], expected[flow] = steps.delay(flow), 6

    def statuses() -> Counter[str]:
        found: Counter[str] = Counter()
        for result in results.values():
            try:
                found[result.status] += 1
            except Exception:
                found[""] += 1
        return found

    code = CODE % name
    with ExitStack() as stack:
        stack.callback(shared_connection(nats_server.url, name=name).close)
        programs = [WorkerProgram(code, nats_server.url, tmp_path) for _ in range(PROCESSES)]
        stack.callback(lambda: [program.__exit__(None, None, None) for program in programs])
        start_all()
        deadline = time.monotonic() + 8 * FLOWS * SCALE + 60
        while statuses()["SUCCESSFUL"] < len(results):
            assert time.monotonic() < deadline, (statuses(), missing(results))
            time.sleep(chosen.uniform(0.1, 0.6))
            if kills < 2 * FLOWS:
                victim = chosen.randrange(PROCESSES)
                programs[victim].signal(signal.SIGKILL)
                programs[victim].__exit__(None, None, None)
                programs[victim] = WorkerProgram(code, nats_server.url, tmp_path)
                kills += 1
        wait_until(lambda: js.get_stream("TASKS").info().state.messages == 0, 40)
        wait_until(lambda: js.get_stream("KV_R-flows").info().state.messages == 0, 20)
        assert {flow: result.get(0) for flow, result in results.items()} == expected
        assert worker.verify() == []
        runs = Counter(programs[0].runs)
    dead = js.get_stream("DEAD").info().state.messages if "DEAD" in js.stream_names() else 0
    for stream in ("DEAD", "TASKS", "KV_R", "KV_R-flows"):
        with suppress(StreamNotFoundError):
            js.delete_stream(stream)
    # Nothing is missing; what ran twice was killed between its effect and its record.
    wanted = {f"link c{number} {value}" for number in range(FLOWS) for value in range(3)}
    wanted |= {f"member g{number} {index}" for number in range(FLOWS) for index in range(10)}
    wanted |= {f"last g{number}" for number in range(FLOWS)}
    wanted |= {f"step s{number} {step}" for number in range(FLOWS) for step in range(4)}
    assert set(runs) == wanted
    twice = sum(count - 1 for count in runs.values())
    assert twice <= kills * CONCURRENCY
    # A dead letter for each member that has failed.
    assert dead == sum(10 - expected[f"g{number}"] for number in range(FLOWS))
    sys.stdout.write(
        f"seed {seed}: {kills} kills, {len(wanted)} effects, {twice} twice, {dead} dead\n"
    )


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
