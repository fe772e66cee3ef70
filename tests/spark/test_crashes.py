"""The run of random kills; see `tests/crash_tests` for what it does and checks."""

from __future__ import annotations

import os

import pytest
from crash_tests.run import DELIVERIES, RETENTIONS, Outcome, run
from fix_spark import need_java

#: Seconds of kills in each run; the environments of tox say.
SECONDS = float(os.environ.get("JETSTREAM_SYNC_KILL_SECONDS", "12"))
#: What the plans are made from; a run that failed names its own.
SEED = int(os.environ.get("JETSTREAM_SYNC_KILL_SEED", "1"))

pytestmark = [pytest.mark.spark, pytest.mark.timeout(SECONDS * 2 + 400)]


def _held(outcome: Outcome) -> None:
    print(outcome)  # noqa: T201 - the figures, where output is shown
    assert not outcome.wrong, str(outcome)
    # Less than that is no proof.
    assert outcome.kills.total() > 0
    assert outcome.published > 0


@pytest.mark.parametrize(
    ("delivery", "retention", "cluster"),
    [
        ("transaction", "limits", False),
        ("window", "workqueue", False),
        # Executors are processes of their own there, and are killed, too.
        ("scan", "interest", True),
    ],
)
def test_every_message_comes_through_once(delivery: str, retention: str, cluster: bool) -> None:
    """Whatever is killed, each message is written once, and leaves a queue only then."""
    need_java()
    _held(run(SEED, SECONDS, delivery=delivery, retention=retention, cluster=cluster, tell=print))


@pytest.mark.soak
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("cluster", [False, True])
@pytest.mark.parametrize("retention", RETENTIONS)
@pytest.mark.parametrize("delivery", DELIVERIES)
def test_it_holds_for_long(delivery: str, retention: str, cluster: bool) -> None:
    """It holds for five minutes as it does for one, in every mode, on every kind of stream."""
    need_java()
    outcome = run(SEED, 300, delivery=delivery, retention=retention, cluster=cluster, tell=print)
    _held(outcome)
