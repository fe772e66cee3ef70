"""
The options that say what a consumer is to be, and the config that they make.

What was not said is not there, so that the same options change a config that exists.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from typing import Any, Final, TypeVar

import click

from ... import PriorityPolicy
from ..config.fields import labels_of, subjects_of
from ..values import DURATION, LIMIT, SIZE, parse_duration, parse_time
from .values import ACK, BACKOFF, DELIVER, MAX_DELIVER, REPLAY, SAMPLE

__all__ = ["config_options", "fields_of", "until"]

_Command = TypeVar("_Command", bound=Callable[..., object])

#: Options of which each is a field as it stands: flag, field, type, metavar, help.
_PLAIN: Final = (
    ("description", "description", None, "TEXT", "What it is for."),
    ("ack", "ack_policy", ACK, "[explicit|all|none]", "Which messages have to be acknowledged."),
    ("replay", "replay_policy", REPLAY, "[instant|original]", "How fast stored messages come."),
    ("sample", "sample_freq", SAMPLE, "PERCENT", "How many acks the server reports, 0 to 100."),
    ("max-deliver", "max_deliver", MAX_DELIVER, "N", "How often one is delivered; -1: no limit."),
    ("wait", "ack_wait", DURATION, "TIME", "How long to wait for an ack before it comes again."),
    ("backoff", "backoff", BACKOFF, "TIMES", "The wait before each further delivery: 1s,10s,1m."),
    ("max-pending", "max_ack_pending", LIMIT, "N", "How many may be unacknowledged; -1: no limit."),
    ("max-waiting", "max_waiting", click.IntRange(1), "N", "How many pulls may wait."),
    ("max-pull-batch", "max_batch", click.IntRange(0), "N", "Messages of one pull; 0: no limit."),
    ("max-pull-expire", "max_expires", DURATION, "TIME", "How long one pull may wait."),
    ("max-pull-bytes", "max_bytes", SIZE, "SIZE", "Bytes of one pull; 0: no limit."),
    (
        "heartbeat",
        "idle_heartbeat",
        DURATION,
        "TIME",
        "After how much silence it says it is there.",
    ),
    (
        "deliver-group",
        "deliver_group",
        None,
        "GROUP",
        "The queue group that shares what is pushed.",
    ),
    ("bps", "rate_limit_bps", click.IntRange(0), "BITS", "Bits a second to push; 0: no limit."),
    ("inactive-threshold", "inactive_threshold", DURATION, "TIME", "When it goes, if not used."),
    (
        "replicas",
        "num_replicas",
        click.IntRange(0, 5),
        "N",
        "Servers with its state; 0: as the stream.",
    ),
)

#: Switches, which have an opposite: flags, field, help.
_SWITCHES: Final = (
    ("--flow-control/--no-flow-control", "flow_control", "Push no faster than is read."),
    ("--headers-only/--no-headers-only", "headers_only", "Deliver no bodies, only their sizes."),
    ("--memory/--no-memory", "mem_storage", "Keep its state in memory."),
)

#: Groups of pull requests: flag, policy, help.
_GROUPS: Final = (
    (
        "--pinned-groups",
        PriorityPolicy.PINNED_CLIENT,
        "Groups in which one client gets all. (2.11)",
    ),
    ("--overflow-groups", PriorityPolicy.OVERFLOW, "Groups that help when much is pending. (2.11)"),
    ("--prioritized-groups", PriorityPolicy.PRIORITIZED, "Groups served by their priority. (2.12)"),
)


def config_options(command: _Command) -> _Command:
    """Give a command the options that say what a consumer is to be; see `fields_of`."""
    options: list[Callable[[Any], Any]] = [
        click.option(
            "--target", metavar="SUBJECT", help="Where to deliver; without it, it is pulled from."
        ),
        click.option(
            "--filter",
            "filters",
            multiple=True,
            metavar="SUBJECT",
            help="Only messages on this subject; '': all; repeatable.",
        ),
        click.option(
            "--deliver",
            type=DELIVER,
            metavar="START",
            help="Where to start: all, last, new, subject, a sequence, 1h or a time.",
        ),
    ]
    options += [
        click.option(f"--{flag}", field, type=kind, metavar=metavar, help=text)
        for flag, field, kind, metavar, text in _PLAIN
    ]
    options += [
        click.option(names, field, default=None, help=text) for names, field, text in _SWITCHES
    ]
    options += [click.option(flag, metavar="GROUPS", help=text) for flag, _, text in _GROUPS]
    options += [
        click.option(
            "--pinned-ttl",
            type=DURATION,
            metavar="TIME",
            help="How long a pinned client may be silent.",
        ),
        click.option(
            "--pause",
            "pause_until",
            metavar="TIME",
            help="Deliver nothing before this time, or for so long. (2.11)",
        ),
        click.option("--metadata", multiple=True, metavar="KEY=VALUE", help="A label; repeatable."),
    ]
    for option in reversed(options):
        command = option(command)
    return command


def fields_of(options: dict[str, Any]) -> dict[str, Any]:
    """
    Take the options of `config_options` out of a command's, and return the fields that were said.

    Raises:
        click.BadParameter: a value can not be read.

    """
    fields: dict[str, Any] = {}
    target = options.pop("target")
    if target is not None:
        # Who types the word at the question means the kind, not a subject.
        fields["deliver_subject"] = None if target.lower() in ("", "pull") else target
    fields.update(_filters(options.pop("filters")))
    fields.update(options.pop("deliver") or {})
    for _, field, *_ in _PLAIN:
        value = options.pop(field)
        if value is not None:
            fields[field] = value
    for _, field, _ in _SWITCHES:
        value = options.pop(field)
        if value is not None:
            fields[field] = value
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
            raise click.UsageError("a consumer has groups of one kind only")
        fields = {"priority_policy": policy, "priority_groups": value.replace(",", " ").split()}
    timeout = options.pop("pinned_ttl")
    if timeout is not None:
        fields["priority_timeout"] = timeout
    return fields


def until(text: str) -> datetime:
    """
    Return the end of a pause: a time, or so long from now.

    Raises:
        click.BadParameter: it is neither.

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
            f"{text!r} is no time; write 1h, or 2026-01-02T15:04:05Z", param_hint="'--pause'"
        ) from None
