"""A periodic task for many minutes, across restarts of its workers: each tick of the server runs once."""

from __future__ import annotations

import os
import signal
import sys
import time
from itertools import pairwise

import pytest
from fixtures.threads import SCALE
from fixtures.worker import WorkerProgram

import jetstream_sync

MINUTES = float(os.environ.get("JETSTREAM_SYNC_SOAK_MINUTES", "20"))

pytestmark = [pytest.mark.soak, pytest.mark.timeout(int(MINUTES * 60 + 300))]

CODE = """
worker = Worker(name="clock", program="tests", dead_letters="DEAD", concurrency=2)

@worker.task(name="tick", every=1)
def tick(ctx: Context) -> None:
    metadata = ctx.message.metadata
    record(f"{metadata.stream_seq} {metadata.timestamp_ns}")
"""
#: Seconds between two restarts of a worker.
RESTART_S = 8.0


def test_each_tick_runs_once_across_restarts(fresh_server, tmp_path):
    """
    Two processes are stopped in turns, and now and then one is killed.

    The server numbers the messages of the stream: a number that no run has is the schedule itself, which is stored
    once, or a tick that was lost.
    """
    programs = [WorkerProgram(CODE, fresh_server.url, tmp_path) for _ in range(2)]
    kills, end, number = 0, time.monotonic() + MINUTES * 60, 0
    while time.monotonic() < end:
        time.sleep(RESTART_S)
        number += 1
        program = programs[number % 2]
        kill = number % 5 == 0
        kills += kill
        program.signal(signal.SIGKILL if kill else signal.SIGTERM)
        assert program.ended() == (-signal.SIGKILL if kill else 0)
        programs[number % 2] = WorkerProgram(CODE, fresh_server.url, tmp_path)
    for program in programs:
        program.signal(signal.SIGTERM)
        assert program.ended() == 0
    with jetstream_sync.connect(fresh_server.url) as nc:
        state = nc.jetstream().get_stream("TASKS").info().state
    runs = [tuple(map(int, line.split())) for line in programs[0].runs]
    ticks = sorted(set(runs))
    first, last = ticks[0][0], ticks[-1][0]
    missing = set(range(first, last + 1)) - {seq for seq, _ in ticks}
    gaps = [(after - before) / 1e9 for (_, before), (_, after) in pairwise(ticks)]
    # Shown with -rP.
    sys.stdout.write(
        f"{len(ticks)} ticks, {len(runs)} runs, {kills} kills, longest gap {max(gaps):.2f} s, "
        f"missing {sorted(missing)}\n"
    )
    assert not missing
    assert len(runs) - len(ticks) <= kills, "a tick ran again without a kill"
    assert max(gaps) < 2.5 * SCALE
    assert len(ticks) >= MINUTES * 60 * 0.95
    # What the runs say is what the server stored: only ticks that came after the last stop are left.
    assert last <= state.last_seq <= last + 5
