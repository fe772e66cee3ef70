"""When a failed message is delivered again."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from typing import Final

from .checks import check_count, check_option, is_number

#: The shortest delay before a message is delivered again, in seconds: a short failure of a database
#: must not use up all attempts.
MIN_DELAY_S: Final = 0.1
#: The longest delay, 100 years; the server counts in nanoseconds, with 64 bits.
MAX_DELAY_S: Final = 100 * 365.25 * 86400
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
