"""Parsers and option types for consumer configs, with the names of 2020 and of today."""

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
        raise ValueError(f"invalid {what} policy {text!r}: expected {write}")
    return policy


def parse_ack(text: str) -> AckPolicy:
    """Return the acknowledgement policy for a name, or raise `ValueError`."""
    return _word(text, _ACKS, "acknowledgement", "explicit, all or none")


def parse_replay(text: str) -> ReplayPolicy:
    """Return the replay policy for a name, or raise `ValueError`."""
    return _word(text, _REPLAYS, "replay", "instant or original")


def parse_deliver(text: str) -> dict[str, Any]:
    """
    Return the config fields for the start of a consumer.

    Args:
        text: ``all``, ``last``, ``new``, ``subject``, a sequence, a time, or a duration before now.

    Raises:
        ValueError: the text is none of these.

    """
    given = text.strip()
    fields: dict[str, Any] = {"opt_start_seq": None, "opt_start_time": None}
    policy = _STARTS.get(given.lower())
    if policy is not None:
        return {**fields, "deliver_policy": policy}
    if given.isdecimal():
        if not int(given):
            raise ValueError("invalid sequence '0': the first sequence is 1")
        policy = DeliverPolicy.BY_START_SEQUENCE
        return {**fields, "deliver_policy": policy, "opt_start_seq": int(given)}
    try:
        start = parse_time(given)
    except ValueError:
        raise ValueError(
            f"invalid start {text!r}: expected all, last, new, subject, a sequence such as 10, "
            "a duration such as 1h, or a time such as 2026-01-02T15:04:05Z"
        ) from None
    start = start.astimezone(timezone.utc)
    return {**fields, "deliver_policy": DeliverPolicy.BY_START_TIME, "opt_start_time": start}


def parse_max_deliver(text: str) -> int:
    """
    Return the maximum number of deliveries; -1 means no limit.

    Raises:
        ValueError: the text is not a number, or is 0.

    """
    if text.strip() == "0":
        raise ValueError("invalid number '0': expected at least 1, or -1 for no limit")
    return parse_limit(text)


def parse_sample(text: str) -> str:
    """
    Return a percentage in the format of the server.

    Raises:
        ValueError: the text is not a number from 0 to 100.

    """
    number = text.strip().removesuffix("%")
    if not number.isdecimal() or int(number) > 100:
        raise ValueError(f"invalid percentage {text!r}: expected 0 to 100")
    return str(int(number))


def parse_backoff(text: str) -> list[Any]:
    """
    Return the durations in a list such as ``1s,10s,1m``; empty for an empty text.

    Raises:
        ValueError: an item is not a duration.

    """
    return [parse_duration(each) for each in text.split(",") if each.strip()]


class _Parsed(WordType):
    """A parameter type based on a parser function."""

    def __init__(self, name: str, parse: Callable[[str], Any], words: Sequence[str] = ()) -> None:
        super().__init__(name, words)
        self._parse = parse

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the parsed value."""
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
    """Return the filters that match none of the subjects."""
    return [
        each for each in filters if not any(subjects_overlap(each, other) for other in subjects)
    ]
