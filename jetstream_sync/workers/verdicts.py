"""
Verdicts: what follows for a message that has failed, or that is not run, and the delays of its attempts.

A `Verdict` is decided once, from the facts of an attempt and the options of the work and its source. `Outcomes` in
``runtime/processing.py`` performs it, and the observer of the work counts it.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from enum import Enum
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

from .checks import check_count, check_option, is_number
from .dead_letters import one_line
from .errors import (
    MAX_DELAY_S,
    MIN_DELAY_S,
    DeadLetterTooLargeError,
    Retry,
    StateUnknownError,
    may_fit_elsewhere,
)

if TYPE_CHECKING:
    from .source import Source, Work

#: The outcome of a delivery; the label ``outcome`` of a metric.
DeliveryOutcome = Literal["ack", "retry", "dead", "rejected", "lost", "given_back", "skipped"]

#: The shortest time for which a call of an unknown task is given back, in seconds.
_MIN_UNKNOWN_DELAY_S: Final = 1.0
#: Number of deliveries above ``attempts`` in which a message is run still: messages that a stopped process
#: returned, and those beside one that ended a process, were delivered without a run.
MAX_EXTRA_DELIVERIES: Final = 10
#: The longest total delay of the retries in place of one delivery, in seconds.
MAX_IN_PLACE_S: Final = 60.0


@dataclass(frozen=True, kw_only=True)
class Backoff:
    """
    How often a failing message is tried, and the delays between the attempts.

    The delay after attempt *n* is ``first * factor ** (n - 1)``, at most ``maximum``, multiplied by a
    random number between ``1 - jitter`` and ``1 + jitter``.

    Args:
        first: the delay after the first attempt, in seconds, at least 0.1.
        factor: by which the delay grows with each attempt, at least 1.
        maximum: the longest delay before jitter, in seconds.
        jitter: the random share of each delay, from 0 to below 1.
        attempts: a message whose handler fails at this delivery, or at a later one, becomes a dead letter;
            at least 1. The server's delivery counter is used: crashes and returned messages count, so a
            message may be tried less often. At more than 10 deliveries above that, it is not run again.
        in_place: wait for the delay in the handler's thread and run the handler again there, instead of
            returning the message to the server. The lease is renewed meanwhile, and a stop of the worker
            ends the wait and returns the message. For short delays: all of them together must not exceed
            60 seconds. The server does not count these attempts: after a crash or a stop, they are
            counted from the number of deliveries again.

    Raises:
        InvalidOptionError: a value is out of range, or the delays are too long for ``in_place``.

    """

    first: float = 1.0
    factor: float = 2.0
    maximum: float = 300.0
    jitter: float = 0.5
    attempts: int = 21
    in_place: bool = False

    def __post_init__(self) -> None:
        """Check the values."""
        for option in ("first", "factor", "maximum", "jitter"):
            value = getattr(self, option)
            check_option(option, value, is_number(value), "must be a number")
        for option, ok, rule in (
            ("first", self.first >= MIN_DELAY_S, f"must be at least {MIN_DELAY_S} seconds"),
            ("factor", self.factor >= 1, "must be at least 1"),
            ("maximum", self.maximum >= self.first, "must not be below 'first'"),
            ("maximum", self.maximum <= MAX_DELAY_S, "must not exceed 100 years"),
            ("jitter", 0 <= self.jitter < 1, "must be from 0 to below 1"),
        ):
            check_option(option, getattr(self, option), ok, rule)
        check_count("attempts", self.attempts)
        if self.in_place:
            self._check_in_place()

    def _check_in_place(self) -> None:
        """Check the total of the longest delays."""
        total = 0.0
        for attempt in range(1, self.attempts):
            total += self._grown(attempt) * (1 + self.jitter)
            rule = (
                f"needs delays of at most {MAX_IN_PLACE_S:g} seconds in all, and the first {attempt} of "
                f"them take up to {total:g}: lower 'attempts', 'first' or 'maximum'"
            )
            check_option("in_place", True, total <= MAX_IN_PLACE_S, rule)

    def delay(self, attempt: int) -> float:
        """
        Return the delay after a failed attempt, in seconds with whole milliseconds.

        Args:
            attempt: the number of the failed attempt, from 1.

        """
        jitter = random.uniform(1 - self.jitter, 1 + self.jitter)  # noqa: S311 - not a secret
        return max(MIN_DELAY_S, round(self._grown(attempt) * jitter, 3))

    def _grown(self, attempt: int) -> float:
        try:
            return min(self.maximum, self.first * self.factor ** (attempt - 1))
        except OverflowError:
            return self.maximum


def backoff_for(retry: Backoff | None, *, in_place: bool) -> Backoff:
    """Return the back-off of a handler."""
    check_option("retry", retry, isinstance(retry, Backoff | None), "must be a Backoff")
    if not in_place:
        return Backoff() if retry is None else retry
    if retry is None:
        return Backoff(first=0.5, maximum=10.0, attempts=8, in_place=True)
    return replace(retry, in_place=True)


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
