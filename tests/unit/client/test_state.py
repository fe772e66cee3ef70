"""The state table of a connection."""

from __future__ import annotations

from itertools import product

import pytest

from jetstream_sync.client.state import TRANSITIONS, ConnectionStatus, StateEvent, next_status

S, E = ConnectionStatus, StateEvent

#: A handshake without an attempt to connect, and a drain before the first one or after the end.
IMPOSSIBLE = {
    (S.CONNECTING, E.DRAIN),
    (S.CONNECTED, E.HANDSHAKE_DONE),
    (S.DRAINING, E.HANDSHAKE_DONE),
    (S.CLOSED, E.HANDSHAKE_DONE),
    (S.CLOSED, E.DRAIN),
}


@pytest.mark.parametrize(("status", "event"), list(product(S, E)))
def test_each_event_is_decided_in_each_state(status, event):
    """The table decides each pair of a state and an event, or the pair is impossible and raises."""
    assert ((status, event) in TRANSITIONS) is ((status, event) not in IMPOSSIBLE)
    if (status, event) in IMPOSSIBLE:
        with pytest.raises(AssertionError, match="is not permitted"):
            next_status(status, event)
    else:
        # Only a handshake leads to a state with a link, and only a lost link back to an attempt.
        after = next_status(status, event)
        assert (after is S.CONNECTED) is (event is E.HANDSHAKE_DONE)
        assert after is not S.CONNECTING
        assert after is not S.RECONNECTING or event is E.DISCONNECTED
        assert after is not S.DRAINING or event is E.DRAIN


def test_closed_is_the_end():
    """No event leaves the closed state, and late events are ignored."""
    after = {event: status for (before, event), status in TRANSITIONS.items() if before is S.CLOSED}
    assert set(after.values()) == {S.CLOSED}
    assert {E.CLOSE, E.DISCONNECTED} <= after.keys()


@pytest.mark.parametrize("status", S)
def test_a_user_can_close_at_any_time(status):
    """A connection can be closed in any state."""
    assert next_status(status, E.CLOSE) is S.CLOSED


@pytest.mark.parametrize("status", S)
def test_a_link_can_be_lost_at_any_time(status):
    """A connection in use reconnects after a loss; a draining one closes."""
    ending = {S.DRAINING, S.CLOSED}
    expected = S.CLOSED if status in ending else S.RECONNECTING
    assert next_status(status, E.DISCONNECTED) is expected


def test_every_state_can_be_reached_and_left():
    """Every state can be reached from the first one, and the last one from every state."""
    reached = {S.CONNECTING}
    while more := {TRANSITIONS[key] for key in TRANSITIONS if key[0] in reached} - reached:
        reached |= more
    assert reached == set(S)


@pytest.mark.parametrize(
    ("events", "status"),
    [
        ([E.HANDSHAKE_DONE], S.CONNECTED),
        ([E.HANDSHAKE_DONE, E.DISCONNECTED], S.RECONNECTING),
        ([E.HANDSHAKE_DONE, E.DISCONNECTED, E.DISCONNECTED, E.HANDSHAKE_DONE], S.CONNECTED),
        ([E.HANDSHAKE_DONE, E.DRAIN, E.DRAIN], S.DRAINING),
        ([E.HANDSHAKE_DONE, E.DRAIN, E.CLOSE], S.CLOSED),
        ([E.HANDSHAKE_DONE, E.DRAIN, E.DISCONNECTED], S.CLOSED),
        ([E.HANDSHAKE_DONE, E.DISCONNECTED, E.DRAIN], S.CLOSED),
    ],
)
def test_lives_of_a_connection(events, status):
    """A drain requires a server: without one, or when it is lost, the connection closes."""
    now = S.CONNECTING
    for event in events:
        now = next_status(now, event)
    assert now is status
