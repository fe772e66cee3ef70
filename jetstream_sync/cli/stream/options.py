"""
The options for the config of a stream, and their conversion to fields of `StreamConfig`.

Every option sets one field, or a part of one. An option that is not given sets nothing, so the same
options are used to create a stream and to edit one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

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
from ..config import FieldOption, labels_of, subjects_of, take_fields
from ..values import (
    DURATION,
    LIMIT,
    LIMITED_DURATION,
    LIMITED_SIZE,
    TAG,
    Decorator,
    Parsed,
    with_options,
)

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


#: Options that map to one field each.
_FIELDS: Final = (
    FieldOption("description", None, "Description of the stream."),
    FieldOption("storage", STORAGE, "Storage of the messages."),
    FieldOption("retention", RETENTION, "When messages are deleted."),
    FieldOption("max_msgs", LIMIT, "Maximum number of messages; -1 for no limit."),
    FieldOption("max_bytes", LIMITED_SIZE, "Maximum total size; -1 for no limit."),
    FieldOption("max_age", LIMITED_DURATION, "Maximum age of a message, such as 1y."),
    FieldOption("max_msg_size", LIMITED_SIZE, "Maximum size of a message; -1 for no limit."),
    FieldOption("max_msgs_per_subject", LIMIT, "Maximum messages per subject; -1 for no limit."),
    FieldOption(
        "max_consumers",
        LIMIT,
        "Maximum number of consumers; -1 for no limit.",
        flags="--max-consumers --max-observables",
    ),
    FieldOption("num_replicas", int, "Number of replicas.", flags="--replicas"),
    FieldOption(
        "duplicate_window",
        DURATION,
        "How long message ids are stored to detect duplicates.",
        flags="--dupe-window",
    ),
    FieldOption(
        "first_seq", int, "Sequence of the first message.", flags="--first-seq --first-sequence"
    ),
    FieldOption("compression", click.Choice(["none", "s2"]), "Compression of file storage."),
    FieldOption(
        "persist_mode",
        click.Choice(["default", "async"]),
        "Whether a publish is acknowledged before it is on disk.",
    ),
    FieldOption(
        "subject_delete_marker_ttl",
        DURATION,
        "Time to live of delete markers of subjects.",
        flags="--marker-ttl --subject-del-markers-ttl",
    ),
    FieldOption("mirror", SOURCE, "Stream to mirror: NAME, or KEY=VALUE,..."),
    FieldOption(
        "sources",
        SOURCE,
        "Stream to copy messages from; repeatable.",
        flags="--source",
        multiple=True,
    ),
    FieldOption("placement", PLACEMENT, "Placement: cluster=NAME,tag=TAG,..."),
    FieldOption(
        "discard", click.Choice(["old", "new"]), "Messages to discard when a limit is reached."
    ),
    FieldOption(
        "discard_new_per_subject",
        bool,
        "Reject new messages of a subject that is full.",
        flags="--discard-per-subject",
    ),
    FieldOption(
        "allow_rollup_hdrs",
        bool,
        "Allow messages that purge their subject or the stream first.",
        flags="--allow-rollup",
    ),
    FieldOption("allow_direct", bool, "Allow direct gets from any replica."),
    FieldOption(
        "mirror_direct",
        bool,
        "Allow a mirror to answer direct gets for its origin.",
        flags="--allow-mirror-direct",
    ),
    FieldOption("deny_delete", bool, "Deny the deletion of messages."),
    FieldOption("deny_purge", bool, "Deny purging the stream."),
    FieldOption(
        "allow_msg_ttl", bool, "Allow a time to live per message.", flags="--allow-msg-ttl --ttl"
    ),
    FieldOption(
        "allow_atomic", bool, "Allow atomic batch publishing.", flags="--allow-atomic --allow-batch"
    ),
    FieldOption(
        "allow_batched", bool, "Allow fast batch publishing.", flags="--allow-batched --allow-fast"
    ),
    FieldOption(
        "allow_msg_counter", bool, "Store counters, one per subject.", flags="--allow-counter"
    ),
    FieldOption(
        "allow_msg_schedules", bool, "Allow scheduled messages.", flags="--allow-schedules"
    ),
)


#: The options for the config of a stream; see `fields_of`.
config_options: Decorator = with_options(
    click.option(
        "--subjects", multiple=True, metavar="SUBJECTS", help="Subjects to store; repeatable."
    ),
    click.option("--ack/--no-ack", default=None, help="Acknowledge published messages."),
    *(each.option() for each in _FIELDS),
    click.option("--cluster", metavar="NAME", help="Cluster to place the stream in."),
    click.option(
        "--tag",
        "tags",
        type=TAG,
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
        "--limit-consumer-inactive", type=DURATION, help="Maximum inactive threshold of consumers."
    ),
    click.option(
        "--limit-consumer-max-pending",
        type=int,
        help="Maximum unacknowledged messages of consumers.",
    ),
)


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
    fields.update(take_fields(options, _FIELDS))
    if "discard" in fields:
        fields["discard"] = DiscardPolicy(fields["discard"])
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
