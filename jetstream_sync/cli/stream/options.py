"""
The options that say what a stream is to be, and the config that they make.

Every option stands for one field of `StreamConfig`, or for a part of one. What was not said is not
there, so that the same options change a config that exists.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final, TypeVar

import click

from ... import (
    DiscardPolicy,
    Placement,
    RePublish,
    StreamConsumerLimits,
    SubjectTransform,
)
from ..config.fields import labels_of, subjects_of
from ..values import DURATION, LIMIT, LIMITED_DURATION, LIMITED_SIZE
from .values import PLACEMENT, RETENTION, SOURCE, STORAGE, pair

__all__ = ["config_options", "fields_of"]

_Command = TypeVar("_Command", bound=Callable[..., object])

#: Options of which each is a field as it stands: declarations, field, settings.
_PLAIN: Final[tuple[tuple[tuple[str, ...], str, dict[str, Any]], ...]] = (
    (("--description",), "description", {"help": "What it is for."}),
    (("--storage",), "storage", {"type": STORAGE, "help": "Where messages are kept."}),
    (("--retention",), "retention", {"type": RETENTION, "help": "When messages go."}),
    (("--max-msgs",), "max_msgs", {"type": LIMIT, "help": "The most messages; -1: no limit."}),
    (
        ("--max-bytes",),
        "max_bytes",
        {"type": LIMITED_SIZE, "help": "The most bytes; -1: no limit."},
    ),
    (
        ("--max-age",),
        "max_age",
        {"type": LIMITED_DURATION, "help": "How old messages get, such as 1y."},
    ),
    (
        ("--max-msg-size",),
        "max_msg_size",
        {"type": LIMITED_SIZE, "help": "The largest message; -1: any."},
    ),
    (
        ("--max-msgs-per-subject",),
        "max_msgs_per_subject",
        {"type": LIMIT, "help": "The most messages of each subject; -1: no limit."},
    ),
    (
        ("--max-consumers", "--max-observables"),
        "max_consumers",
        {"type": LIMIT, "help": "The most consumers; -1: no limit."},
    ),
    (("--replicas",), "num_replicas", {"type": int, "help": "How many servers hold it."}),
    (
        ("--dupe-window",),
        "duplicate_window",
        {"type": DURATION, "help": "How long message ids are remembered."},
    ),
    (
        ("--first-seq", "--first-sequence"),
        "first_seq",
        {"type": int, "help": "The first sequence."},
    ),
    (
        ("--compression",),
        "compression",
        {"type": click.Choice(["none", "s2"]), "help": "How file storage is compressed."},
    ),
    (
        ("--persist-mode",),
        "persist_mode",
        {"type": click.Choice(["default", "async"]), "help": "When a message is acknowledged."},
    ),
    (
        ("--marker-ttl", "--subject-del-markers-ttl"),
        "subject_delete_marker_ttl",
        {"type": DURATION, "help": "How long markers of removed subjects stay."},
    ),
    (
        ("--mirror",),
        "mirror",
        {"type": SOURCE, "help": "The stream to copy: NAME, or KEY=VALUE,..."},
    ),
    (
        ("--source",),
        "sources",
        {"type": SOURCE, "multiple": True, "help": "A stream to take messages from; repeatable."},
    ),
    (
        ("--placement",),
        "placement",
        {"type": PLACEMENT, "help": "Which servers: cluster=NAME,tag=TAG,..."},
    ),
)

#: Switches, which have an opposite: what follows ``--``, field, help.
_SWITCHES: Final = (
    ("discard-per-subject", "discard_new_per_subject", "Refuse new messages of a full subject."),
    ("allow-rollup", "allow_rollup_hdrs", "Let a message replace its subject or the stream."),
    ("allow-direct", "allow_direct", "Let any replica answer a direct get."),
    ("allow-mirror-direct", "mirror_direct", "Let a mirror answer direct gets for its origin."),
    ("deny-delete", "deny_delete", "Let no message be deleted through the API."),
    ("deny-purge", "deny_purge", "Let the stream not be purged through the API."),
    ("allow-msg-ttl", "allow_msg_ttl", "Let messages have a time to live of their own."),
    ("allow-atomic", "allow_atomic", "Take atomic batches."),
    ("allow-batched", "allow_batched", "Take fast batches."),
    ("allow-counter", "allow_msg_counter", "Make it a stream of counters."),
    ("allow-schedules", "allow_msg_schedules", "Let messages have a schedule."),
)
#: Other names of switches, for who comes from the ``nats`` command.
_OTHER_NAMES: Final = {
    "allow-msg-ttl": ("--ttl",),
    "allow-atomic": ("--allow-batch",),
    "allow-batched": ("--allow-fast",),
}


def config_options(command: _Command) -> _Command:
    """Give a command the options that say what a stream is to be; see `fields_of`."""
    options: list[Callable[[Any], Any]] = [
        click.option(
            "--subjects", multiple=True, metavar="SUBJECTS", help="What it stores; repeatable."
        ),
        click.option("--ack/--no-ack", default=None, help="Acknowledge what is published."),
    ]
    options += [
        click.option(*names, field, default=None, **settings) for names, field, settings in _PLAIN
    ]
    options.append(
        click.option(
            "--discard",
            type=click.Choice(["old", "new"]),
            default=None,
            help="What gives way when it is full.",
        )
    )
    for name, field, text in _SWITCHES:
        names = [f"--{name}/--no-{name}", *_OTHER_NAMES.get(name, ())]
        options.append(click.option(*names, field, default=None, help=text))
    options += [
        click.option("--cluster", metavar="NAME", help="Which cluster holds it."),
        click.option(
            "--tag",
            "tags",
            multiple=True,
            metavar="TAG",
            help="A tag its servers have; repeatable.",
        ),
        click.option("--metadata", multiple=True, metavar="KEY=VALUE", help="A label; repeatable."),
        click.option("--transform", metavar="SRC=DEST", help="Give messages another subject."),
        click.option("--transform-source", hidden=True),
        click.option("--transform-destination", hidden=True),
        click.option("--republish", metavar="SRC=DEST", help="Publish what is stored again."),
        click.option("--republish-source", hidden=True),
        click.option("--republish-destination", hidden=True),
        click.option("--republish-headers", is_flag=True, help="Publish again without the bodies."),
        click.option(
            "--limit-consumer-inactive",
            type=DURATION,
            help="The longest inactive threshold of consumers.",
        ),
        click.option(
            "--limit-consumer-max-pending",
            type=int,
            help="The most unacknowledged messages of consumers.",
        ),
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
    subjects = subjects_of(options.pop("subjects"))
    if subjects:
        fields["subjects"] = subjects
    ack = options.pop("ack")
    if ack is not None:
        fields["no_ack"] = not ack
    for _, field, _ in _PLAIN:
        value = options.pop(field)
        if value is not None and value != ():
            fields[field] = list(value) if isinstance(value, tuple) else value
    for _, field, _ in _SWITCHES:
        value = options.pop(field)
        if value is not None:
            fields[field] = value
    discard = options.pop("discard")
    if discard is not None:
        fields["discard"] = DiscardPolicy(discard)
    elif fields.get("discard_new_per_subject"):
        fields["discard"] = DiscardPolicy.NEW
    _take_placement(options, fields)
    labels = labels_of(options.pop("metadata"))
    if labels:
        fields["metadata"] = labels
    _take_subject_rules(options, fields)
    limits = {
        "inactive_threshold": options.pop("limit_consumer_inactive"),
        "max_ack_pending": options.pop("limit_consumer_max_pending"),
    }
    if any(value is not None for value in limits.values()):
        fields["consumer_limits"] = StreamConsumerLimits(**limits)
    return fields


def _take_placement(options: dict[str, Any], fields: dict[str, Any]) -> None:
    cluster, tags = options.pop("cluster"), list(options.pop("tags"))
    if cluster or tags:
        before = fields.get("placement") or Placement()
        fields["placement"] = replace(
            before, cluster=cluster or before.cluster, tags=tags or before.tags
        )


def _take_subject_rules(options: dict[str, Any], fields: dict[str, Any]) -> None:
    rules = {}
    for name in ("transform", "republish"):
        both = options.pop(name)
        source, destination = options.pop(f"{name}_source"), options.pop(f"{name}_destination")
        try:
            if both is not None:
                source, destination = pair(both)
        except ValueError as error:
            raise click.BadParameter(str(error), param_hint=f"--{name}") from None
        if destination:
            rules[name] = source or "", destination
    if "transform" in rules:
        source, destination = rules["transform"]
        fields["subject_transform"] = SubjectTransform(src=source, dest=destination)
    headers_only = options.pop("republish_headers")
    if "republish" in rules:
        source, destination = rules["republish"]
        fields["republish"] = RePublish(
            src=source or None, dest=destination, headers_only=headers_only or None
        )
