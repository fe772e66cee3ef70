"""
Verdicts: what follows for a message that has failed, or that is not run.

A `Verdict` is decided once, from the facts of an attempt and the options of the work and its source. `Outcomes` in
``runtime/processing.py`` performs it, and the observer of the work counts it.
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

from .dead_letters import one_line
from .errors import DeadLetterTooLargeError, Retry, StateUnknownError, may_fit_elsewhere
from .retries import MAX_IN_PLACE_S, MIN_DELAY_S

if TYPE_CHECKING:
    from .retries import Backoff
    from .source import Source, Work

#: The outcome of a delivery; the label ``outcome`` of a metric.
DeliveryOutcome = Literal["ack", "retry", "dead", "rejected", "lost", "given_back", "skipped"]

#: The shortest time for which a call of an unknown task is given back, in seconds.
_MIN_UNKNOWN_DELAY_S: Final = 1.0


class VerdictAction(Enum):
    """What is done with a message."""

    NOTHING = "nothing"
    """It was settled before, or its lease is lost."""
    ACK = "ack"
    """It is acknowledged."""
    REPEAT = "repeat"
    """Its thread runs the handler again after the delay."""
    RETURN = "return"
    """The server delivers it again after the delay."""
    PARK = "park"
    """The server publishes it again after the delay; if it cannot, the message is returned."""
    BURY = "bury"
    """Its dead letter is stored, then its deliveries end; if it cannot be stored, the message is returned."""


class Verdict(NamedTuple):
    """What follows for a message."""

    action: VerdictAction
    outcome: DeliveryOutcome
    delay: float = 0.0
    """Seconds until the next attempt or delivery."""
    reason: str = ""
    """Why the message is given up, or does not fit the process, in one line."""
    is_fault: bool = False
    """Whether other messages may fail for the same reason, so that the circuit breaker counts it."""

    @property
    def is_last(self) -> bool:
        """Whether the message is not run again."""
        return self.action is VerdictAction.BURY or self.outcome == "ack"


#: A message whose lease was lost; one that is acknowledged; one that was settled before it failed.
LOST: Final = Verdict(VerdictAction.NOTHING, "lost")
ACKED: Final = Verdict(VerdictAction.ACK, "ack")
SETTLED: Final = Verdict(VerdictAction.NOTHING, "ack")
#: A tick of a schedule that does not run.
SKIPPED: Final = Verdict(VerdictAction.ACK, "skipped")


class FailedAttempt(NamedTuple):
    """The facts of an attempt that has failed."""

    error: BaseException
    number: int = 1
    slept: float = 0.0
    """Total delay of the retries in place, in seconds."""
    has_key: bool = True
    """Whether the place of the message in an order is known; false: it is not retried in place."""
    is_settled: bool = False
    is_lost: bool = False
    """Whether its lease is lost."""
    unfit_s: float = 0.0
    """Seconds since it was given back first, because it does not fit some processes."""


def verdict_of(failed: FailedAttempt, work: Work, source: Source) -> Verdict:
    """Return what follows for a message of a source whose attempt has failed."""
    error, retry = failed.error, work.retry
    if failed.is_settled:
        return SETTLED
    if failed.is_lost:
        return LOST
    if may_fit_elsewhere(error) and failed.unfit_s < source.grace:
        return postponed(_delay_within(failed.unfit_s, source.grace), one_line(error))
    is_unknown = isinstance(error, StateUnknownError)
    rejected = not is_unknown and work.rejects(error)
    is_fault = not (rejected or isinstance(error, Retry))
    if rejected or (failed.number >= retry.attempts and not is_unknown):
        return buried(one_line(error), rejected=rejected, is_fault=is_fault)
    delay = retry.delay(failed.number)
    if isinstance(error, Retry) and error.delay is not None:
        delay = error.delay
    action = VerdictAction.RETURN
    if retry.in_place and failed.has_key:
        action = VerdictAction.REPEAT
        delay = max(MIN_DELAY_S, min(delay, MAX_IN_PLACE_S - failed.slept))
    elif source.park_after is not None and delay > source.park_after:
        action = VerdictAction.PARK
    return Verdict(action, "retry", delay, is_fault=is_fault)


def buried(reason: str, *, rejected: bool = False, is_fault: bool = False) -> Verdict:
    """Return the verdict for a message that is given up; ``rejected``: at once, not after its attempts."""
    outcome: DeliveryOutcome = "rejected" if rejected else "dead"
    return Verdict(VerdictAction.BURY, outcome, reason=reason, is_fault=is_fault)


def not_buried(
    failure: BaseException, attempt: int, retry: Backoff, unfit_s: float, grace: float
) -> Verdict:
    """Return what follows for a message that could not be given up."""
    if may_fit_elsewhere(failure):
        delay = _delay_within(unfit_s, grace)
        return Verdict(VerdictAction.RETURN, "given_back", delay, one_line(failure))
    too_large = isinstance(failure, DeadLetterTooLargeError)
    delay = retry.maximum if too_large else retry.delay(attempt)
    return Verdict(VerdictAction.RETURN, "retry", delay)


def given_back(delay: float = 0.0) -> Verdict:
    """Return the verdict for a message that goes back to the server, which counts the next delivery as an attempt."""
    return Verdict(VerdictAction.RETURN, "given_back", delay)


def not_started(source: Source) -> Verdict:
    """Return the verdict for a message that this process does not start, because it stops, or another one is idle."""
    return given_back() if source.is_ordered else postponed(0.0)


def postponed(delay: float, unfit: str = "") -> Verdict:
    """Return the verdict for a message that is not run now, and uses no attempt; ``unfit``: why it does not fit here."""
    return Verdict(VerdictAction.PARK, "given_back", delay, unfit)


def unknown_task_verdict(task: str, unfit_s: float, grace: float) -> Verdict:
    """Return what follows for a call of an unknown task, see `FailedAttempt.unfit_s`; the delays double."""
    reason = f"unknown task {task!r}"
    if unfit_s >= grace:
        return buried(reason, rejected=True)
    return postponed(_delay_within(unfit_s, grace), reason)


def _delay_within(unfit_s: float, grace: float) -> float:
    """Return for how long a message is given back: as long as it has been until now, at most until the grace ends."""
    return round(max(_MIN_UNKNOWN_DELAY_S, min(unfit_s, grace - unfit_s)), 3)
