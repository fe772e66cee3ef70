"""The retry delays for a consumer without a leader."""

from __future__ import annotations

from jetstream_sync.errors import LeadershipChangeError, PullError
from jetstream_sync.jetstream.pull import RetryBackoff
from jetstream_sync.net.clock import monotonic

NO_RESPONDERS = PullError(503, "No Responders")
ANOTHER = LeadershipChangeError(409, "Leadership Change")


def wait_after(backoff: RetryBackoff, error: PullError) -> float:
    """Record the error, and return the delay until the next attempt, in tenths of a second."""
    backoff.record(error)
    return round(backoff.retry_at - monotonic(), 2)


def test_the_intervals_double_up_to_a_limit():
    """The delays are 1/4, 1/2, 1 and then 2 seconds."""
    backoff = RetryBackoff()
    assert [wait_after(backoff, NO_RESPONDERS) for _ in range(6)] == [0.25, 0.5, 1, 2, 2, 2]


def test_the_limit_may_be_shorter():
    """With short heartbeats the delays are not longer than those."""
    backoff = RetryBackoff(0.5)
    assert [wait_after(backoff, NO_RESPONDERS) for _ in range(4)] == [0.25, 0.5, 0.5, 0.5]


def test_a_new_leader_is_asked_at_once():
    """After a change of leaders the new one is asked at once, and then with a delay."""
    backoff = RetryBackoff()
    assert [wait_after(backoff, ANOTHER) for _ in range(3)] == [0, 0.25, 0.5]
    backoff.reset()
    assert [wait_after(backoff, item) for item in (NO_RESPONDERS, ANOTHER)] == [0.25, 0.5]


def test_only_the_first_failure_is_reported():
    """A failure is reported once, whatever the errors; after a success it is reported again."""
    backoff = RetryBackoff()
    assert [backoff.record(item) for item in (ANOTHER, NO_RESPONDERS, ANOTHER)] == [
        True,
        False,
        False,
    ]
    backoff.reset()
    assert (backoff.retry_at, backoff.error) == (None, None)
    assert backoff.record(NO_RESPONDERS)
    assert backoff.error is NO_RESPONDERS
