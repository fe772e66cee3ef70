"""
The options for a consumer config, and their conversion to config fields.

Only options that were given become fields, so the same options can update an existing config.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta, timezone
from typing import Any, Final, TypeVar

import click

from ... import AckPolicy, DeliverPolicy, PriorityPolicy, ReplayPolicy
from ...subjects import subjects_overlap
from ..config import FieldOption, labels_of, subjects_of, take_fields
from ..values import (
    DURATION,
    LIMIT,
    SIZE,
    Decorator,
    Parsed,
    parse_duration,
    parse_limit,
    parse_time,
    with_options,
)

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


ACK: Final = Parsed("policy", parse_ack, ["explicit", "all", "none", "flow_control"])
REPLAY: Final = Parsed("policy", parse_replay, ["instant", "original"])
DELIVER: Final = Parsed("start", parse_deliver, ["all", "last", "new", "subject"])
MAX_DELIVER: Final = Parsed("number", parse_max_deliver)
SAMPLE: Final = Parsed("percent", parse_sample)
BACKOFF: Final = Parsed("durations", parse_backoff)


def outside(filters: Sequence[str], subjects: Sequence[str]) -> list[str]:
    """Return the filters that match none of the subjects."""
    return [
        each for each in filters if not any(subjects_overlap(each, other) for other in subjects)
    ]


#: Options that map to one field each.
_FIELDS: Final = (
    FieldOption("description", None, "Describe its purpose.", metavar="TEXT"),
    FieldOption(
        "ack_policy",
        ACK,
        "Set the acknowledgement policy.",
        flags="--ack",
        metavar="[explicit|all|none]",
    ),
    FieldOption(
        "replay_policy",
        REPLAY,
        "Set the replay policy.",
        flags="--replay",
        metavar="[instant|original]",
    ),
    FieldOption(
        "sample_freq",
        SAMPLE,
        "Sample this share of acks, 0 to 100.",
        flags="--sample",
        metavar="PERCENT",
    ),
    FieldOption("max_deliver", MAX_DELIVER, "Deliver at most N times; -1: no limit.", metavar="N"),
    FieldOption(
        "ack_wait",
        DURATION,
        "Redeliver a message without an ack after TIME.",
        flags="--wait",
        metavar="TIME",
    ),
    FieldOption(
        "backoff", BACKOFF, "Redeliver after these times, as in 1s,10s,1m.", metavar="TIMES"
    ),
    FieldOption(
        "max_ack_pending",
        LIMIT,
        "Limit unacknowledged messages; -1: no limit.",
        flags="--max-pending",
        metavar="N",
    ),
    FieldOption("max_waiting", click.IntRange(1), "Limit waiting pull requests.", metavar="N"),
    FieldOption(
        "max_batch",
        click.IntRange(0),
        "Limit messages per pull; 0: no limit.",
        flags="--max-pull-batch",
        metavar="N",
    ),
    FieldOption(
        "max_expires",
        DURATION,
        "Limit the expiry of a pull.",
        flags="--max-pull-expire",
        metavar="TIME",
    ),
    FieldOption(
        "max_bytes",
        SIZE,
        "Limit bytes per pull; 0: no limit.",
        flags="--max-pull-bytes",
        metavar="SIZE",
    ),
    FieldOption(
        "idle_heartbeat",
        DURATION,
        "Send a heartbeat after TIME without messages.",
        flags="--heartbeat",
        metavar="TIME",
    ),
    FieldOption("deliver_group", None, "Deliver to this queue group.", metavar="GROUP"),
    FieldOption(
        "rate_limit_bps",
        click.IntRange(0),
        "Limit the push rate in bits/s; 0: no limit.",
        flags="--bps",
        metavar="BITS",
    ),
    FieldOption(
        "inactive_threshold", DURATION, "Delete it after TIME of inactivity.", metavar="TIME"
    ),
    FieldOption(
        "num_replicas",
        click.IntRange(0, 5),
        "Store its state on N servers; 0: as the stream.",
        flags="--replicas",
        metavar="N",
    ),
    FieldOption("flow_control", bool, "Enable flow control for a push consumer."),
    FieldOption("headers_only", bool, "Deliver headers and sizes without bodies."),
    FieldOption("mem_storage", bool, "Store its state in memory.", flags="--memory"),
)

#: Priority groups: flag, policy, help.
_GROUPS: Final = (
    (
        "--pinned-groups",
        PriorityPolicy.PINNED_CLIENT,
        "Set groups that deliver to one pinned client. (2.11)",
    ),
    ("--overflow-groups", PriorityPolicy.OVERFLOW, "Set groups with overflow thresholds. (2.11)"),
    (
        "--prioritized-groups",
        PriorityPolicy.PRIORITIZED,
        "Set groups with priorities of pulls. (2.12)",
    ),
)


#: The options for a consumer config; see `fields_of`.
config_options: Decorator = with_options(
    click.option(
        "--target", metavar="SUBJECT", help="Push to this subject.  [default: pull consumer]"
    ),
    click.option(
        "--filter",
        "filters",
        multiple=True,
        metavar="SUBJECT",
        help="Deliver only this subject; '' for all; repeatable.",
    ),
    click.option(
        "--deliver",
        type=DELIVER,
        metavar="START",
        help="Start at: all, last, new, subject, a sequence, 1h or a time.",
    ),
    *(each.option() for each in _FIELDS),
    *(click.option(flag, metavar="GROUPS", help=text) for flag, _, text in _GROUPS),
    click.option(
        "--pinned-ttl",
        type=DURATION,
        metavar="TIME",
        help="Unpin a client after TIME without a pull.",
    ),
    click.option(
        "--pause",
        "pause_until",
        metavar="TIME",
        help="Pause until a time, or for a duration. (2.11)",
    ),
    click.option(
        "--metadata", multiple=True, metavar="KEY=VALUE", help="Set metadata; repeatable."
    ),
)


def fields_of(options: dict[str, Any]) -> dict[str, Any]:
    """
    Remove the options of `config_options` from ``options`` and return the config fields.

    Raises:
        click.BadParameter: a value is invalid.

    """
    fields: dict[str, Any] = {}
    target = options.pop("target")
    if target is not None:
        # 'pull' means a pull consumer, not a subject.
        fields["deliver_subject"] = None if target.lower() in ("", "pull") else target
    fields.update(_filters(options.pop("filters")))
    fields.update(options.pop("deliver") or {})
    fields.update(take_fields(options, _FIELDS))
    fields.update(_groups(options))
    pause = options.pop("pause_until")
    if pause is not None:
        fields["pause_until"] = until(pause)
    labels = labels_of(options.pop("metadata"))
    if labels:
        fields["metadata"] = labels
    return fields


def _filters(values: tuple[str, ...]) -> dict[str, Any]:
    if not values:
        return {}
    subjects = subjects_of(values)
    if len(subjects) > 1:
        return {"filter_subject": None, "filter_subjects": subjects}
    return {"filter_subject": subjects[0] if subjects else None, "filter_subjects": None}


def _groups(options: dict[str, Any]) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    for flag, policy, _ in _GROUPS:
        value = options.pop(flag[2:].replace("-", "_"))
        if value is None:
            continue
        if fields:
            raise click.UsageError("the options for priority groups exclude each other")
        fields = {"priority_policy": policy, "priority_groups": value.replace(",", " ").split()}
    timeout = options.pop("pinned_ttl")
    if timeout is not None:
        fields["priority_timeout"] = timeout
    return fields


def until(text: str) -> datetime:
    """
    Return the end of a pause: a time, or a duration from now.

    Raises:
        click.BadParameter: the text is neither.

    """
    now = datetime.now(timezone.utc)
    try:
        wait = parse_duration(text)
    except ValueError:
        wait = timedelta(0)
    try:
        return now + wait if wait else parse_time(text, now).astimezone(timezone.utc)
    except ValueError:
        raise click.BadParameter(
            f"invalid time {text!r}: expected 1h or 2026-01-02T15:04:05Z", param_hint="'--pause'"
        ) from None
