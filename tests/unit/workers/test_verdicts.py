"""Unit tests of `jetstream_sync.workers.verdicts`: what follows for a message that has failed."""

from __future__ import annotations

from typing import Any

import pytest

from jetstream_sync.errors import UnfinishedError
from jetstream_sync.workers import Backoff, Reject, Retry, Worker
from jetstream_sync.workers.errors import (
    DeadLetterTooLargeError,
    DecodeError,
    StateUnknownError,
)
from jetstream_sync.workers.source import Handler
from jetstream_sync.workers.verdicts import (
    ACKED,
    LOST,
    SETTLED,
    FailedAttempt,
    Verdict,
    VerdictAction,
    buried,
    given_back,
    not_buried,
    postponed,
    unknown_task_verdict,
    verdict_of,
)

#: The delays are 1, 2, 4 and 8 seconds.
RETRY = Backoff(first=1, factor=2, maximum=8, jitter=0, attempts=5)


def handler_with(**options: Any) -> Handler:
    """Return a handler with some options."""
    worker = Worker(name="tests", dead_letters=None)

    @worker.handler(stream="S", consumer="C", **{"retry": RETRY, **options})
    def handle(_data: bytes) -> None:
        pass

    return handle


def decided(failed: FailedAttempt, handler: Handler) -> Verdict:
    """Return the verdict for a message of a handler, which is its own source."""
    return verdict_of(failed, handler, handler)


def returned(delay: float, *, is_fault: bool) -> Verdict:
    """Return the verdict for a message that is delivered again."""
    return Verdict(action=VerdictAction.RETURN, outcome="retry", delay=delay, is_fault=is_fault)


@pytest.mark.parametrize(
    ("number", "error", "options", "wanted"),
    [
        (1, OSError(), {}, returned(1, is_fault=True)),
        (4, OSError(), {}, returned(8, is_fault=True)),
        # A handler that asks for it is not at fault.
        (2, Retry("later"), {}, returned(2, is_fault=False)),
        (2, Retry("later", delay=99), {}, returned(99, is_fault=False)),
        (2, Retry("now", delay=0.3), {}, returned(0.3, is_fault=False)),
        # Only the errors of retry_on are tried again.
        (1, OSError(), {"retry_on": (OSError,)}, returned(1, is_fault=True)),
        (1, Retry("later"), {"retry_on": (OSError,)}, returned(1, is_fault=False)),
        # A state that cannot be read says nothing about the message, also after the last attempt.
        (9, StateUnknownError(), {}, returned(8, is_fault=True)),
        (1, StateUnknownError(), {"retry_on": (OSError,)}, returned(1, is_fault=True)),
    ],
)
def test_a_failed_message_is_delivered_again(number, error, options, wanted):
    """After the delay of the back-off, or of the error."""
    failed = FailedAttempt(error=error, number=number)
    assert decided(failed, handler_with(**options)) == wanted


@pytest.mark.parametrize(
    ("number", "error", "options", "outcome", "is_fault"),
    [
        (5, OSError("no"), {}, "dead", True),
        (6, OSError("no"), {}, "dead", True),
        (5, Retry("no"), {}, "dead", False),
        (1, Reject("no"), {}, "rejected", False),
        (1, DecodeError("no"), {}, "rejected", False),
        (1, UnfinishedError("no"), {}, "rejected", False),
        (1, KeyError("no"), {"reject_on": (KeyError,)}, "rejected", False),
        (1, KeyError("no"), {"retry_on": (OSError,)}, "rejected", False),
        (5, KeyError("no"), {"retry_on": (OSError,)}, "rejected", False),
    ],
)
def test_a_message_is_given_up(number, error, options, outcome, is_fault):
    """After its last attempt, or at once: then another message need not fail."""
    if isinstance(error, UnfinishedError):
        options = {"retry_on": (UnfinishedError,)}
    verdict = decided(FailedAttempt(error=error, number=number), handler_with(**options))
    assert (verdict.action, verdict.outcome) == (VerdictAction.BURY, outcome)
    assert (verdict.reason.strip("'"), verdict.is_fault) == ("no", is_fault)
    assert verdict.is_last


@pytest.mark.parametrize("error", [OSError(), Reject("no"), Retry("later"), StateUnknownError()])
def test_nothing_follows_for_a_message_that_was_settled_or_lost(error):
    """A handler that settles its message has ended it; a lost one is delivered again by the server."""
    handler = handler_with()
    settled = decided(FailedAttempt(error=error, is_settled=True, is_lost=True), handler)
    assert settled is SETTLED
    lost = decided(FailedAttempt(error=error, number=99, is_lost=True), handler)
    assert lost is LOST
    assert (settled.is_last, lost.is_last) == (True, False)


@pytest.mark.parametrize(
    ("slept", "has_key", "error", "action", "delay"),
    [
        (0, True, OSError(), VerdictAction.REPEAT, 2),
        # All delays of a delivery are at most a minute, and none is shorter than 0.1 seconds.
        (59.5, True, OSError(), VerdictAction.REPEAT, 0.5),
        (60, True, OSError(), VerdictAction.REPEAT, 0.1),
        (0, True, Retry("now", delay=0), VerdictAction.REPEAT, 0.1),
        (0, False, OSError(), VerdictAction.RETURN, 2),
    ],
)
def test_a_handler_with_in_place_retries_in_its_thread(slept, has_key, error, action, delay):
    """Unless the key of the message is unknown: it would wait in the wrong place."""
    handler = handler_with(
        retry=Backoff(first=1, factor=2, maximum=8, jitter=0, attempts=5, in_place=True)
    )
    failed = FailedAttempt(error=error, number=2, slept=slept, has_key=has_key)
    verdict = decided(failed, handler)
    assert (verdict.action, verdict.delay) == (action, pytest.approx(delay))
    assert verdict.outcome == "retry"


@pytest.mark.parametrize(("number", "action"), [(2, VerdictAction.RETURN), (3, VerdictAction.PARK)])
def test_a_long_delay_is_parked(number, action):
    """A delay of exactly ``park_after`` is not."""
    verdict = decided(FailedAttempt(error=OSError(), number=number), handler_with(park_after=2))
    assert verdict.action is action
    assert not verdict.is_last


def test_a_message_that_cannot_be_given_up_is_returned():
    """One that is too large for a dead letter waits as long as possible."""
    assert not_buried(OSError(), 2, RETRY, 0.0, 300.0) == Verdict(
        action=VerdictAction.RETURN, outcome="retry", delay=2
    )
    assert not_buried(DeadLetterTooLargeError(), 2, RETRY, 0.0, 300.0).delay == 8


def test_a_call_of_an_unknown_task_is_given_back_until_its_grace_ends():
    """Each delay is as long as its age, so that there are few; the last one ends with the grace."""
    delays = [unknown_task_verdict("gone", age, 60).delay for age in (0, 0.5, 3, 20, 45, 59.9)]
    assert delays == [1, 1, 3, 20, 15, 1]
    assert unknown_task_verdict("gone", 3, 60) == postponed(3, "unknown task 'gone'")
    ended = unknown_task_verdict("gone", 60, 60)
    assert ended == buried("unknown task 'gone'", rejected=True)
    assert (ended.outcome, ended.is_last) == ("rejected", True)


def test_an_acknowledged_message_is_not_run_again():
    """Its outcome is that of a message that has succeeded."""
    assert (ACKED.outcome, ACKED.is_last, given_back().is_last) == ("ack", True, False)
