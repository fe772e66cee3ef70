"""The state tables of pulls and locks, and what follows a failed attempt."""

from __future__ import annotations

from itertools import product

import pytest

from jetstream_sync import errors
from jetstream_sync.api.pull import PullStatusKind
from jetstream_sync.jetstream.buckets.lock import LOCK_TRANSITIONS, LockEvent, LockState
from jetstream_sync.jetstream.continuous_pull import PULLER_TRANSITIONS, PullerEvent, PullerState
from jetstream_sync.jetstream.ordered_cursor import NextAttempt, next_attempt
from jetstream_sync.jetstream.pull import STATUS_EFFECTS, RetryPolicy, StatusEffect

K = StatusEffect


@pytest.mark.parametrize(("state", "event"), list(product(PullerState, PullerEvent)))
def test_each_event_is_decided_in_each_state_of_a_puller(state, event):
    """A stop is final, and a drain never starts requests again."""
    order = list(PullerState)
    after = PULLER_TRANSITIONS[state, event]
    assert order.index(after) >= order.index(state)
    assert after is not PullerState.PULLING
    if event is PullerEvent.STOP:
        assert after is PullerState.STOPPED


@pytest.mark.parametrize("kind", PullStatusKind)
@pytest.mark.parametrize("policy", RetryPolicy)
def test_each_status_is_decided_for_each_pull(policy, kind):
    """A heartbeat leaves a request open, a normal end is no error, and a fatal status ends every pull."""
    by_policy = {
        PullStatusKind.HEARTBEAT: (K.WAIT, K.WAIT, K.WAIT),
        PullStatusKind.QUIET: (K.CONTINUE, K.CONTINUE, K.CONTINUE),
        PullStatusKind.FULL: (K.CONTINUE, K.CONTINUE, K.CONTINUE),
        PullStatusKind.AWAY: (K.FAIL, K.RETRY, K.RETRY),
        PullStatusKind.WARNING: (K.FAIL, K.FAIL, K.REPORT),
        PullStatusKind.FATAL: (K.FAIL, K.FAIL, K.FAIL),
    }
    assert STATUS_EFFECTS[policy][kind] is by_policy[kind][list(RetryPolicy).index(policy)]


@pytest.mark.parametrize(("state", "event"), list(product(LockState, LockEvent)))
def test_each_event_is_decided_in_each_state_of_a_lock(state, event):
    """Only an acquisition makes a lock held, and a loss is remembered until the next one."""
    after = LOCK_TRANSITIONS[state, event]
    if event is LockEvent.ACQUIRE:
        assert after is LockState.HELD
    elif state is LockState.HELD:
        assert after is (LockState.LOST if event is LockEvent.LOSE else LockState.FREE)
    else:
        assert after is state


LOST = errors.ConnectionLostError("lost")
RECREATED = errors.StreamRecreatedError("S", reason="another")


@pytest.mark.parametrize(
    ("error", "now", "late", "stopping", "closed"),
    [
        # What follows the error: at once, after the deadline, while it is stopped, on a closed connection.
        (RECREATED, *["START_AGAIN"] * 4),
        (errors.BadRequestError(400, 10003, "no"), *["NONE"] * 4),
        (errors.PermissionsError("publish", "x"), *["NONE"] * 4),
        (errors.StreamNotFoundError(404, 10059, "no"), *["IF_STREAM_RETURNS"] * 4),
        (errors.ConnectionClosedError("closed"), *["NONE"] * 4),
        (LOST, "AT_ONCE", "TIMED_OUT", "LATER", "NONE"),
        (errors.TimeoutError("silent"), "LATER", "TIMED_OUT", "LATER", "NONE"),
        (errors.NoRespondersError("none"), "LATER", "TIMED_OUT", "LATER", "NONE"),
        (errors.APIError(503, 10008, "away"), "LATER", "TIMED_OUT", "LATER", "NONE"),
    ],
)
def test_each_failure_of_a_creation_is_decided(error, now, late, stopping, closed):
    """An error that would come again is raised; otherwise another attempt follows, or the call times out."""

    def after(**given: bool) -> str:
        flags = {"is_closed": False, "is_late": False, "is_stopping": False, **given}
        return next_attempt(error, **flags).name

    assert after() == now
    assert after(is_late=True) == late
    assert after(is_stopping=True) == stopping
    assert after(is_closed=True) == closed
    assert now in NextAttempt.__members__
