"""Retries of transient errors."""

from __future__ import annotations

import pytest

from jetstream_sync import errors
from jetstream_sync.net.clock import Deadline
from jetstream_sync.spark import retry
from jetstream_sync.spark.retry import is_transient, retry_transient


@pytest.mark.parametrize(
    ("error", "passes"),
    [
        (errors.TimeoutError("late"), True),
        (errors.ConnectionLostError("gone"), True),
        (errors.NoServersError("none"), True),
        (errors.NoRespondersError("$JS.API.INFO"), True),
        (errors.JetStreamNotEnabledError(503, 10076, "disabled"), True),
        (errors.JetStreamNotEnabledForAccountError(503, 10039, "disabled"), True),
        (errors.LeadershipChangeError(409, "Leadership Change"), True),
        (errors.AuthorizationError("no"), False),
        (errors.CertificateError("no"), False),
        (errors.StreamNotFoundError(404, 10059, "no"), False),
        (errors.BadRequestError(400, 10100, "overlap"), False),
        (errors.InvalidOptionError("a", 1, "no"), False),
    ],
)
def test_transient_errors(error, passes):
    """Missing servers and leaders are transient, refusals are not."""
    assert is_transient(error) is passes


def test_a_call_is_repeated_until_it_succeeds(monkeypatch):
    """The waits grow up to 5 s."""
    waits: list[float] = []
    monkeypatch.setattr(retry, "sleep", waits.append)
    left = [errors.TimeoutError("late") for _ in range(9)]

    def call() -> str:
        if left:
            raise left.pop()
        return "done"

    assert retry_transient(call, Deadline(60.0), "asking") == "done"
    assert waits == [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0, 5.0]


def test_a_refusal_is_raised_at_once(monkeypatch):
    """An error that is not transient is not retried."""
    monkeypatch.setattr(retry, "sleep", lambda _: pytest.fail("it waited"))

    def call() -> None:
        raise errors.StreamNotFoundError(404, 10059, "no")

    with pytest.raises(errors.StreamNotFoundError):
        retry_transient(call, Deadline(60.0), "asking")


def test_retries_end_at_the_timeout():
    """After the timeout the next error is raised."""

    def call() -> None:
        raise errors.TimeoutError("late")

    with pytest.raises(errors.TimeoutError):
        retry_transient(call, Deadline(0.0), "asking")
