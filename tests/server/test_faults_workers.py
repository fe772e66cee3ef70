"""The fault run of the worker runtime, and mistakes that its verdict has to find; see `tests/faults`."""

from __future__ import annotations

import os

import pytest
from faults.workers import run_workers

#: Seconds of faults; the environments of tox say. A short run of the tests leaves these out.
SECONDS = float(os.environ.get("JETSTREAM_SYNC_FAULT_SECONDS", "12"))
SEED = int(os.environ.get("JETSTREAM_SYNC_FAULT_SEED", "1"))

pytestmark = [
    pytest.mark.skipif(not hasattr(os, "fork"), reason="needs POSIX signals"),
    pytest.mark.timeout(SECONDS * 2 + 400),
]


@pytest.mark.full
@pytest.mark.parametrize("pool", ["threads", "processes"])
def test_each_message_has_one_result_despite_kills(pool):
    """Each message is acknowledged after a successful run or is one dead letter, as configured."""
    messages = int(SECONDS * (40 if pool == "threads" else 15))
    outcome = run_workers(SEED, SECONDS / 2, messages, pool=pool, tell=print)
    print(outcome)  # noqa: T201 - the figures, where output is shown
    assert not outcome.wrong, str(outcome)


@pytest.mark.full
@pytest.mark.parametrize(
    ("mistake", "expected"),
    [
        ("ack first", "was acknowledged before its handler had succeeded"),
        ("term first", "was terminated before its dead letter was stored"),
        ("renew always", "was not delivered again after the timeout of its handler"),
    ],
)
def test_the_verdict_finds_a_mistake_of_the_runtime(mistake, expected):
    """A worker with a deliberate mistake fails the run, for the reason that the mistake is."""
    outcome = run_workers(SEED, 3, 150, mistake=mistake, overdue=12)
    assert any(expected in item for item in outcome.wrong), str(outcome)


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("pool", ["threads", "processes"])
@pytest.mark.parametrize("seed", [SEED, SEED + 1])
def test_ten_thousand_messages(seed, pool):
    """It holds for two minutes and 10,000 messages."""
    outcome = run_workers(seed, 120, 10_000, pool=pool, tell=print)
    print(outcome)  # noqa: T201
    assert not outcome.wrong, str(outcome)
