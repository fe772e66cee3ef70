"""How people write what a consumer is to be: the words of 2020, those of today, and numbers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import timezone
from typing import Any, Final, TypeVar

import click

from ... import AckPolicy, DeliverPolicy, ReplayPolicy
from ...subjects import subjects_overlap
from ..values import WordType, parse_duration, parse_limit, parse_time

__all__ = [
    "ACK",
    "BACKOFF",
    "DELIVER",
    "MAX_DELIVER",
    "REPLAY",
    "SAMPLE",
    "outside",
    "parse_ack",
    "parse_deliver",
    "parse_max_deliver",
    "parse_replay",
]

_Policy = TypeVar("_Policy", AckPolicy, ReplayPolicy)

_ACKS: Final[Mapping[str, AckPolicy]] = {
    "explicit": AckPolicy.EXPLICIT,
    "all": AckPolicy.ALL,
    "none": AckPolicy.NONE,
    "flow_control": AckPolicy.FLOW_CONTROL,
    "ackexplicit": AckPolicy.EXPLICIT,
    "ackall": AckPolicy.ALL,
    "acknone": AckPolicy.NONE,
}
_REPLAYS: Final[Mapping[str, ReplayPolicy]] = {
    "instant": ReplayPolicy.INSTANT,
    "original": ReplayPolicy.ORIGINAL,
    "replayinstant": ReplayPolicy.INSTANT,
    "replayoriginal": ReplayPolicy.ORIGINAL,
}
_STARTS: Final[Mapping[str, DeliverPolicy]] = {
    "all": DeliverPolicy.ALL,
    "deliverall": DeliverPolicy.ALL,
    "last": DeliverPolicy.LAST,
    "deliverlast": DeliverPolicy.LAST,
    "new": DeliverPolicy.NEW,
    "next": DeliverPolicy.NEW,
    "subject": DeliverPolicy.LAST_PER_SUBJECT,
    "last_per_subject": DeliverPolicy.LAST_PER_SUBJECT,
}


def _word(text: str, known: Mapping[str, _Policy], what: str, write: str) -> _Policy:
    policy = known.get(text.strip().lower())
    if policy is None:
        raise ValueError(f"{text!r} is no {what} policy; write {write}")
    return policy


def parse_ack(text: str) -> AckPolicy:
    """Return the acknowledgement policy that a word stands for, or raise `ValueError`."""
    return _word(text, _ACKS, "acknowledgement", "explicit, all or none")


def parse_replay(text: str) -> ReplayPolicy:
    """Return the replay policy that a word stands for, or raise `ValueError`."""
    return _word(text, _REPLAYS, "replay", "instant or original")


def parse_deliver(text: str) -> dict[str, Any]:
    """
    Return the fields of a config that say where a consumer starts.

    Args:
        text: ``all``, ``last``, ``new``, ``subject``, a sequence, a time, or how long ago.

    Raises:
        ValueError: it is none of them.

    """
    given = text.strip()
    fields: dict[str, Any] = {"opt_start_seq": None, "opt_start_time": None}
    policy = _STARTS.get(given.lower())
    if policy is not None:
        return {**fields, "deliver_policy": policy}
    if given.isdecimal():
        if not int(given):
            raise ValueError("the first sequence is 1")
        policy = DeliverPolicy.BY_START_SEQUENCE
        return {**fields, "deliver_policy": policy, "opt_start_seq": int(given)}
    try:
        start = parse_time(given)
    except ValueError:
        raise ValueError(
            f"{text!r} is no start; write all, last, new, subject, a sequence such as 10, "
            "how long ago such as 1h, or a time such as 2026-01-02T15:04:05Z"
        ) from None
    start = start.astimezone(timezone.utc)
    return {**fields, "deliver_policy": DeliverPolicy.BY_START_TIME, "opt_start_time": start}


def parse_max_deliver(text: str) -> int:
    """
    Return how often a message is delivered; -1 is without a limit.

    Raises:
        ValueError: it is no number, or 0.

    """
    if text.strip() == "0":
        raise ValueError("0 deliveries make no sense; write -1 for no limit")
    return parse_limit(text)


def parse_sample(text: str) -> str:
    """
    Return a percentage as the server takes it.

    Raises:
        ValueError: it is not from 0 to 100.

    """
    number = text.strip().removesuffix("%")
    if not number.isdecimal() or int(number) > 100:
        raise ValueError(f"{text!r} is no percentage; write 0 to 100")
    return str(int(number))


def parse_backoff(text: str) -> list[Any]:
    """
    Return the waits of a list such as ``1s,10s,1m``; an empty text is an empty list.

    Raises:
        ValueError: one is no duration.

    """
    return [parse_duration(each) for each in text.split(",") if each.strip()]


class _Parsed(WordType):
    """An option whose text a function reads."""

    def __init__(self, name: str, parse: Callable[[str], Any], words: Sequence[str] = ()) -> None:
        super().__init__(name, words)
        self._parse = parse

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return what the text stands for."""
        if not isinstance(value, str) or isinstance(value, (AckPolicy, ReplayPolicy)):
            return value
        try:
            return self._parse(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)


ACK: Final = _Parsed("policy", parse_ack, ["explicit", "all", "none", "flow_control"])
REPLAY: Final = _Parsed("policy", parse_replay, ["instant", "original"])
DELIVER: Final = _Parsed("start", parse_deliver, ["all", "last", "new", "subject"])
MAX_DELIVER: Final = _Parsed("number", parse_max_deliver)
SAMPLE: Final = _Parsed("percent", parse_sample)
BACKOFF: Final = _Parsed("durations", parse_backoff)


def outside(filters: Sequence[str], subjects: Sequence[str]) -> list[str]:
    """Return the filters under which no message of these subjects can fall."""
    return [
        each for each in filters if not any(subjects_overlap(each, other) for other in subjects)
    ]
