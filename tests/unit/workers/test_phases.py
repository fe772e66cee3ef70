"""Unit tests of the phases of a worker, of its held messages, and of a delivery."""

from __future__ import annotations

import itertools

import pytest

from jetstream_sync import ConsumerConfig
from jetstream_sync.lease_times import LeaseTimes
from jetstream_sync.workers.deliveries import (
    DeliveryState,
    Lease,
    LeasedMessage,
    Origin,
)
from jetstream_sync.workers.operations.health import WORKER_PHASES, HealthSource, WorkerPhase
from jetstream_sync.workers.operations.supervisor import (
    PROCESS_PHASES,
    ProcessEventKind,
    ProcessPhase,
)
from jetstream_sync.workers.runtime.pulling import PHASES, HeldMessages, Phase


@pytest.mark.parametrize(("before", "after"), list(itertools.product(WorkerPhase, WorkerPhase)))
def test_a_worker_enters_the_phases_of_the_table_only(before, after):
    """It stops after it has started or while it starts, and does not run again."""
    source = HealthSource({})
    source.phase = before
    if after in WORKER_PHASES[before]:
        source.enter(after)
        assert source.phase is after
        assert source.is_stopping is (after.value in {"stopping", "stopped"})
    else:
        with pytest.raises(AssertionError, match="does not follow"):
            source.enter(after)
        assert source.phase is before


@pytest.mark.parametrize(("before", "after"), list(itertools.product(Phase, Phase)))
def test_held_messages_enter_the_phases_of_the_table_only(before, after):
    """Messages that are returned are not handled again."""
    held = HeldMessages(isolates=False)
    held.phase = before
    if after in PHASES[before]:
        held.enter(after)
        assert held.phase is after
        assert held.is_over
    else:
        with pytest.raises(AssertionError, match="does not follow"):
            held.enter(after)
        assert held.phase is before


@pytest.mark.parametrize(
    ("before", "after", "is_new"),
    [
        (DeliveryState.LEASED, DeliveryState.LOST, True),
        (DeliveryState.LOST, DeliveryState.LOST, False),
        (DeliveryState.SETTLED, DeliveryState.SETTLED, True),
    ],
)
def test_a_lease_is_lost_once_and_a_settled_message_stays_settled(before, after, is_new):
    """A message whose acknowledgement came too late counts as lost, and is not settled again."""
    lease = Lease(LeaseTimes(ConsumerConfig(ack_wait=30)), 1, 0.0)
    delivery = LeasedMessage(None, lease, Origin("handle"))
    delivery.state = before
    assert delivery.lose() is is_new
    assert delivery.state is after


def test_the_phases_of_a_process_are_complete():
    """Each event has a phase that follows: a process that was ready is so until it has stopped."""
    pairs = set(itertools.product(ProcessPhase, ProcessEventKind))
    assert PROCESS_PHASES.keys() == pairs
    held = {ProcessPhase.READY, ProcessPhase.STOPPING}
    for before, event in pairs:
        after = PROCESS_PHASES[before, event]
        assert (after in held) is (before in held or event is ProcessEventKind.READY)
        stops = event is ProcessEventKind.STOP or before not in {
            ProcessPhase.STARTING,
            ProcessPhase.READY,
        }
        assert (after in {ProcessPhase.CANCELLED, ProcessPhase.STOPPING}) is stops
