"""The verification of the demo: what is missing, duplicate, wrong or unknown fails a run."""

from __future__ import annotations

import random
from collections.abc import Iterable

from jetstream_sync.cli.demo.pipeline import STAGES, DemoReport, Verification

MS = 1_000_000
TOTALS = {f"A-{number}": 1000 + number for number in range(100)}


def run(
    *, drop: Iterable[tuple[str, str]] = (), double: Iterable[tuple[str, str]] = (), offset: int = 0
) -> DemoReport:
    """Verify all orders in random order; later stages have totals that differ by ``offset``."""
    verification = Verification(TOTALS)
    ids = list(TOTALS)
    random.Random(1).shuffle(ids)
    for number, stage in enumerate(STAGES):
        for order_id in ids:
            times = 1 + ((stage, order_id) in set(double)) - ((stage, order_id) in set(drop))
            for _ in range(times):
                verification.add(stage, order_id, TOTALS[order_id] + offset * number, MS)
    return verification.report(seconds=1.5, server="nats-server", consumers=())


def test_every_order_once_in_every_stage_is_exactly_once() -> None:
    """The order of the messages does not matter."""
    report = run()
    assert report.exactly_once
    assert [(stage.messages, stage.orders) for stage in report.stages] == [(100, 100)] * 3


def test_a_missing_order_fails_the_run() -> None:
    """It is counted in its stage, and its id is in the failure."""
    report = run(drop=[("completed", "A-7")])
    assert [stage.matches_input for stage in report.stages] == [True, True, False]
    assert not report.exactly_once
    assert "completed: 1 missing, 0 duplicate" in report.failure()
    assert "(for example A-7)" in report.failure()


def test_a_duplicate_does_not_make_up_for_a_missing_order() -> None:
    """The right number of messages is not enough."""
    report = run(double=[("completed", "A-3")], drop=[("completed", "A-4")])
    assert (report.stages[2].messages, report.stages[2].duplicates) == (100, 1)
    assert not report.exactly_once


def test_a_wrong_total_fails_the_run() -> None:
    """Every order once, but with another total than in the input."""
    report = run(offset=1)
    assert [stage.wrong_totals for stage in report.stages] == [0, 100, 100]
    assert [stage.matches_input for stage in report.stages] == [True, False, False]


def test_a_message_that_is_not_about_an_order_fails_the_run() -> None:
    """An unknown id counts in its stage, and a message outside of the stages in all of them."""
    verification = Verification({"A": 5})
    for stage in STAGES:
        verification.add(stage, "A", 5, MS)
    assert verification.complete()
    assert verification.report(seconds=1, server="", consumers=()).exactly_once
    verification.add("received", "B", 1, MS)
    verification.add_unknown("received")
    verification.add_unknown("scratch")
    report = verification.report(seconds=1, server="", consumers=())
    assert [stage.unknown for stage in report.stages] == [3, 1, 1]
    assert not report.exactly_once


def test_latency_is_from_received_to_completed() -> None:
    """Percentiles of the time between the two messages of an order, by nearest rank."""
    verification = Verification(TOTALS)
    for number, order_id in enumerate(TOTALS, start=1):
        verification.add("received", order_id, 0, 5 * MS)
        verification.add("completed", order_id, 0, (5 + number) * MS)
    report = verification.report(seconds=1, server="", consumers=())
    assert report.latency_ms == {"p50": 50.0, "p99": 99.0, "p100": 100.0}


def test_counts_are_different_orders() -> None:
    """Progress counts orders, not messages."""
    verification = Verification({"A": 1, "B": 2})
    for stage in STAGES:
        verification.add(stage, "A", 1, MS)
        verification.add(stage, "A", 1, MS)
    assert verification.counts() == (1, 1, 1)
    assert not verification.complete()
