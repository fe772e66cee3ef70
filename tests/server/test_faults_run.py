"""The randomized fault run; see `tests/faults` for what it does and checks."""

from __future__ import annotations

import os

import pytest
from faults.run import run

#: Seconds of faults; the environments of tox say.
SECONDS = float(os.environ.get("JETSTREAM_SYNC_FAULT_SECONDS", "6"))
#: What the plans are made from; a run that failed names its own.
SEED = int(os.environ.get("JETSTREAM_SYNC_FAULT_SEED", "1"))


@pytest.mark.timeout(SECONDS * 2 + 240)
def test_every_promise_is_kept_while_everything_goes_wrong() -> None:
    """Random faults lose, double and reorder nothing that must not be, and leave nothing behind."""
    outcome = run(SEED, SECONDS, tell=print)
    print(outcome)  # noqa: T201 - the figures, where output is shown
    assert not outcome.wrong, str(outcome)


@pytest.mark.skipif(SECONDS < 30, reason="three servers take part in longer runs only")
@pytest.mark.timeout(SECONDS * 2 + 240)
def test_three_servers_keep_them_too() -> None:
    """With three replicas leaders step down and nodes are lost; everything holds all the same."""
    outcome = run(SEED, SECONDS / 2, cluster=True, tell=print)
    print(outcome)  # noqa: T201
    assert not outcome.wrong, str(outcome)


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("cluster", [False, True])
@pytest.mark.parametrize("seed", [SEED, SEED + 1])
def test_it_holds_for_long(seed: int, cluster: bool) -> None:
    """It holds for ten minutes as it does for one, with one server and with three."""
    outcome = run(seed, 600, cluster=cluster, tell=print)
    print(outcome)  # noqa: T201
    assert not outcome.wrong, str(outcome)
