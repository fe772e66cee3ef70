"""
The options for the config of a stream, and their conversion to fields of `StreamConfig`.

Every option sets one field, or a part of one. An option that is not given sets nothing, so the same
options are used to create a stream and to edit one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, TypeVar

import click

from ... import (
    DiscardPolicy,
    Placement,
    RePublish,
    RetentionPolicy,
    StorageType,
    StreamConsumerLimits,
    StreamSource,
    SubjectTransform,
)
from ...codec import decode, loads
from ...errors import Error
from ..config import labels_of, subjects_of
from ..values import DURATION, LIMIT, LIMITED_DURATION, LIMITED_SIZE, Parsed

__all__ = [
    "PLACEMENT",
    "RETENTION",
    "SOURCE",
    "STORAGE",
    "config_options",
    "fields_of",
    "split_pair",
]

#: Accepted spellings of retention policies, including those of the 2020 CLI.
_RETENTIONS: Final = {
    "limits": RetentionPolicy.LIMITS,
    "interest": RetentionPolicy.INTEREST,
    "work": RetentionPolicy.WORK_QUEUE,
    "workq": RetentionPolicy.WORK_QUEUE,
    "workqueue": RetentionPolicy.WORK_QUEUE,
    "work queue": RetentionPolicy.WORK_QUEUE,
    "stream": RetentionPolicy.LIMITS,
    "streampolicy": RetentionPolicy.LIMITS,
    "limitspolicy": RetentionPolicy.LIMITS,
    "interestpolicy": RetentionPolicy.INTEREST,
    "workqueuepolicy": RetentionPolicy.WORK_QUEUE,
}
_STORAGES: Final = {
    "file": StorageType.FILE,
    "f": StorageType.FILE,
    "memory": StorageType.MEMORY,
    "m": StorageType.MEMORY,
}


def _policy(name: str, known: Mapping[str, Any], words: Sequence[str]) -> Parsed:
    """Return the type of a policy with one of several names; case is ignored."""

    def parse(text: str) -> Any:
        policy = known.get(text.strip().lower())
        if policy is None:
            raise ValueError(f"{text!r} is not one of {', '.join(words)}")
        return policy

    return Parsed(name, parse, words, listed=True)


RETENTION: Final = _policy("retention", _RETENTIONS, ["limits", "interest", "work", "stream"])
STORAGE: Final = _policy("storage", _STORAGES, ["file", "memory"])


def _record(name: str, make: Callable[[dict[str, Any]], Any], bare: str) -> Parsed:
    """
    Return the type of a record, given as a name, as ``key=value,key=value`` or as a JSON object.

    Args:
        name: the name of a value in the help.
        make: returns the record for its fields.
        bare: the field that a name sets.

    """

    def parse(text: str) -> Any:
        try:
            return make(_fields(text.strip(), bare))
        except ValueError as error:
            raise error if isinstance(error, Error) else ValueError(f"{text!r}: {error}") from None

    return Parsed(name, parse)


def _fields(text: str, bare: str) -> dict[str, Any]:
    if text.startswith("{"):
        document = loads(text)
        if not isinstance(document, dict):
            raise ValueError("expected a JSON object")
        return document
    if "=" not in text:
        return {bare: text}
    fields: dict[str, Any] = {}
    for pair in text.split(","):
        key, equals, item = pair.partition("=")
        if not equals:
            raise ValueError("expected key=value,key=value or a JSON object")
        if key.strip() == "tag":
            fields.setdefault("tags", []).append(item)
        else:
            fields[key.strip()] = item
    return fields


_SOURCE_KEYS: Final = {
    "stream": "name",
    "seq": "opt_start_seq",
    "start_seq": "opt_start_seq",
    "time": "opt_start_time",
    "start_time": "opt_start_time",
    "subject": "filter_subject",
    "filter": "filter_subject",
}


def _source(fields: dict[str, Any]) -> StreamSource:
    values = {_SOURCE_KEYS.get(key, key): value for key, value in fields.items()}
    if isinstance(values.get("opt_start_seq"), str):
        values["opt_start_seq"] = int(values["opt_start_seq"])
    for key in ("api", "deliver", "domain"):
        if isinstance(value := values.pop(key, None), str):
            name, value = ("api", f"$JS.{value}.API") if key == "domain" else (key, value)
            values.setdefault("external", {})[name] = value
    source = decode(StreamSource, values)
    if source.extra:
        raise ValueError(f"unknown fields of a source: {', '.join(source.extra)}")
    # Decoding checks only types; creating a copy runs the other checks.
    return replace(source)


def _placement(fields: dict[str, Any]) -> Placement:
    placement = decode(Placement, fields)
    if placement.extra:
        raise ValueError(f"unknown fields of a placement: {', '.join(placement.extra)}")
    return placement


def split_pair(text: str) -> tuple[str, str]:
    """
    Return the texts before and after ``=``.

    Raises:
        ValueError: the text contains no ``=``.

    """
    left, equals, right = text.partition("=")
    if not equals:
        raise ValueError(f"{text!r}: expected SOURCE=DESTINATION")
    return left.strip(), right.strip()


SOURCE: Final = _record("SOURCE", _source, "name")
PLACEMENT: Final = _record("PLACEMENT", _placement, "cluster")


_Command = TypeVar("_Command", bound=Callable[..., object])

#: Options whose value is the value of a field: declarations, field, click settings.
_FIELD_OPTIONS: Final[tuple[tuple[tuple[str, ...], str, dict[str, Any]], ...]] = (
    (("--description",), "description", {"help": "Description of the stream."}),
    (("--storage",), "storage", {"type": STORAGE, "help": "Storage of the messages."}),
    (("--retention",), "retention", {"type": RETENTION, "help": "When messages are deleted."}),
    (
        ("--max-msgs",),
        "max_msgs",
        {"type": LIMIT, "help": "Maximum number of messages; -1 for no limit."},
    ),
    (
        ("--max-bytes",),
        "max_bytes",
        {"type": LIMITED_SIZE, "help": "Maximum total size; -1 for no limit."},
    ),
    (
        ("--max-age",),
        "max_age",
        {"type": LIMITED_DURATION, "help": "Maximum age of a message, such as 1y."},
    ),
    (
        ("--max-msg-size",),
        "max_msg_size",
        {"type": LIMITED_SIZE, "help": "Maximum size of a message; -1 for no limit."},
    ),
    (
        ("--max-msgs-per-subject",),
        "max_msgs_per_subject",
        {"type": LIMIT, "help": "Maximum messages per subject; -1 for no limit."},
    ),
    (
        ("--max-consumers", "--max-observables"),
        "max_consumers",
        {"type": LIMIT, "help": "Maximum number of consumers; -1 for no limit."},
    ),
    (("--replicas",), "num_replicas", {"type": int, "help": "Number of replicas."}),
    (
        ("--dupe-window",),
        "duplicate_window",
        {"type": DURATION, "help": "How long message ids are stored to detect duplicates."},
    ),
    (
        ("--first-seq", "--first-sequence"),
        "first_seq",
        {"type": int, "help": "Sequence of the first message."},
    ),
    (
        ("--compression",),
        "compression",
        {"type": click.Choice(["none", "s2"]), "help": "Compression of file storage."},
    ),
    (
        ("--persist-mode",),
        "persist_mode",
        {
            "type": click.Choice(["default", "async"]),
            "help": "Whether a publish is acknowledged before it is on disk.",
        },
    ),
    (
        ("--marker-ttl", "--subject-del-markers-ttl"),
        "subject_delete_marker_ttl",
        {"type": DURATION, "help": "Time to live of delete markers of subjects."},
    ),
    (
        ("--mirror",),
        "mirror",
        {"type": SOURCE, "help": "Stream to mirror: NAME, or KEY=VALUE,..."},
    ),
    (
        ("--source",),
        "sources",
        {"type": SOURCE, "multiple": True, "help": "Stream to copy messages from; repeatable."},
    ),
    (
        ("--placement",),
        "placement",
        {"type": PLACEMENT, "help": "Placement: cluster=NAME,tag=TAG,..."},
    ),
)

#: Flags with a --no- form: name, field, help.
_FLAGS: Final = (
    (
        "discard-per-subject",
        "discard_new_per_subject",
        "Reject new messages of a subject that is full.",
    ),
    (
        "allow-rollup",
        "allow_rollup_hdrs",
        "Allow messages that purge their subject or the stream first.",
    ),
    ("allow-direct", "allow_direct", "Allow direct gets from any replica."),
    (
        "allow-mirror-direct",
        "mirror_direct",
        "Allow a mirror to answer direct gets for its origin.",
    ),
    ("deny-delete", "deny_delete", "Deny the deletion of messages."),
    ("deny-purge", "deny_purge", "Deny purging the stream."),
    ("allow-msg-ttl", "allow_msg_ttl", "Allow a time to live per message."),
    ("allow-atomic", "allow_atomic", "Allow atomic batch publishing."),
    ("allow-batched", "allow_batched", "Allow fast batch publishing."),
    ("allow-counter", "allow_msg_counter", "Store counters, one per subject."),
    ("allow-schedules", "allow_msg_schedules", "Allow scheduled messages."),
)
#: Names of flags in the nats CLI.
_FLAG_ALIASES: Final = {
    "allow-msg-ttl": ("--ttl",),
    "allow-atomic": ("--allow-batch",),
    "allow-batched": ("--allow-fast",),
}


def config_options(command: _Command) -> _Command:
    """Add the options for the config of a stream to a command; see `fields_of`."""
    options: list[Callable[[Any], Any]] = [
        click.option(
            "--subjects", multiple=True, metavar="SUBJECTS", help="Subjects to store; repeatable."
        ),
        click.option("--ack/--no-ack", default=None, help="Acknowledge published messages."),
    ]
    options += [
        click.option(*names, field, default=None, **settings)
        for names, field, settings in _FIELD_OPTIONS
    ]
    options.append(
        click.option(
            "--discard",
            type=click.Choice(["old", "new"]),
            default=None,
            help="Messages to discard when a limit is reached.",
        )
    )
    for name, field, text in _FLAGS:
        names = [f"--{name}/--no-{name}", *_FLAG_ALIASES.get(name, ())]
        options.append(click.option(*names, field, default=None, help=text))
    options += [
        click.option("--cluster", metavar="NAME", help="Cluster to place the stream in."),
        click.option(
            "--tag",
            "tags",
            multiple=True,
            metavar="TAG",
            help="Tag that its servers must have; repeatable.",
        ),
        click.option(
            "--metadata", multiple=True, metavar="KEY=VALUE", help="Metadata entry; repeatable."
        ),
        click.option("--transform", metavar="SRC=DEST", help="Change the subjects of messages."),
        click.option("--transform-source", hidden=True),
        click.option("--transform-destination", hidden=True),
        click.option("--republish", metavar="SRC=DEST", help="Republish stored messages."),
        click.option("--republish-source", hidden=True),
        click.option("--republish-destination", hidden=True),
        click.option("--republish-headers", is_flag=True, help="Republish only the headers."),
        click.option(
            "--limit-consumer-inactive",
            type=DURATION,
            help="Maximum inactive threshold of consumers.",
        ),
        click.option(
            "--limit-consumer-max-pending",
            type=int,
            help="Maximum unacknowledged messages of consumers.",
        ),
    ]
    for option in reversed(options):
        command = option(command)
    return command


def fields_of(options: dict[str, Any]) -> dict[str, Any]:
    """
    Remove the options of `config_options` from a command's options, and return the fields they set.

    Raises:
        click.BadParameter: a value is invalid.

    """
    fields: dict[str, Any] = {}
    subjects = subjects_of(options.pop("subjects"))
    if subjects:
        fields["subjects"] = subjects
    ack = options.pop("ack")
    if ack is not None:
        fields["no_ack"] = not ack
    for _, field, _ in _FIELD_OPTIONS:
        value = options.pop(field)
        if value is not None and value != ():
            fields[field] = list(value) if isinstance(value, tuple) else value
    for _, field, _ in _FLAGS:
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
                source, destination = split_pair(both)
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
