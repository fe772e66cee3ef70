"""The randomized fault run; see `tests/faults` for what it does and checks."""

from __future__ import annotations

import os

import pytest
from faults.run import run

#: Duration of the faults in seconds, set by the environments of tox.
SECONDS = float(os.environ.get("JETSTREAM_SYNC_FAULT_SECONDS", "12"))
#: Seeds of the plans; a failed run prints its own.
SEED = int(os.environ.get("JETSTREAM_SYNC_FAULT_SEED", "1"))


@pytest.mark.full
@pytest.mark.timeout(SECONDS * 2 + 240)
def test_random_faults_break_no_promise():
    """Random faults lose, repeat and reorder nothing, and leave nothing behind."""
    outcome = run(SEED, SECONDS, tell=print)
    print(outcome)  # noqa: T201 - the figures, where output is shown
    assert not outcome.wrong, str(outcome)


@pytest.mark.full
@pytest.mark.timeout(SECONDS * 2 + 240)
def test_random_faults_of_a_cluster_break_no_promise():
    """With three replicas, leader changes and lost nodes break no promise either."""
    outcome = run(SEED, SECONDS / 2, cluster=True, tell=print)
    print(outcome)  # noqa: T201
    assert not outcome.wrong, str(outcome)


@pytest.mark.full
@pytest.mark.timeout(240)
@pytest.mark.parametrize(
    ("mistake", "expected"),
    [
        ("drop acks", "was delivered 2 times without a fault of "),
        ("drop replies", "TimeoutError("),
    ],
)
def test_the_verdict_finds_a_mistake_of_the_client(mistake, expected):
    """A client that drops an acknowledgement in 300, or a reply in 100, fails the run for that reason."""
    outcome = run(SEED, 2, mistake=mistake)
    assert any(expected in item for item in outcome.wrong), str(outcome)


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("cluster", [False, True])
@pytest.mark.parametrize("seed", [SEED, SEED + 1])
def test_long_random_faults_break_no_promise(seed, cluster):
    """Ten minutes of faults break no promise, with one server and with three."""
    outcome = run(seed, 600, cluster=cluster, tell=print)
    print(outcome)  # noqa: T201
    assert not outcome.wrong, str(outcome)
