"""
Streams: what can be configured, and what the server says about them.

Field names are the wire's. In a config ``None`` means *not said*: the field is not sent, and the
server's default applies. The records know every field of nats-server 2.15 (``server/stream.go``,
``server/store.go``) and keep what a newer server sends. The checks refuse what can not work, and
nothing that a server would send, so that its configs can be changed and sent back.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta

from ..codec import UNSET, Duration, Record, UnknownEnumValue, record
from ..errors import InvalidOptionError
from ..subjects import check_stream_name, check_subject
from .cluster import ClusterInfo, Placement
from .enums import DiscardPolicy, PersistMode, RetentionPolicy, StorageType, StoreCompression

__all__ = [
    "ErrorInfo",
    "ExternalStream",
    "LostStreamData",
    "RePublish",
    "StoredMsg",
    "StreamAlternate",
    "StreamConfig",
    "StreamConsumerLimits",
    "StreamConsumerSource",
    "StreamInfo",
    "StreamSource",
    "StreamSourceInfo",
    "StreamState",
    "SubjectTransform",
]

_INT32_MAX = 2**31 - 1
_INT64_MAX = 2**63 - 1
_UINT64_MAX = 2**64 - 1


@record
class SubjectTransform(Record):
    """A rule that gives messages another subject; needs server 2.10."""

    src: str
    """Subjects that it applies to, with wildcards; ``""`` stands for all of them."""

    dest: str
    """The new subject, with ``{{wildcard(1)}}`` and the other functions of subject mapping."""


@record
class RePublish(Record):
    """Publishing each stored message again, on another subject, for core NATS subscribers."""

    dest: str
    """The subject to publish on, as in `SubjectTransform.dest`; no subject of the stream itself."""

    src: str | None = None
    """Subjects of the stream that this applies to, with wildcards; all of them when not said."""

    headers_only: bool | None = None
    """Whether to leave out the payload and say its size in ``Nats-Msg-Size``."""


@record
class ExternalStream(Record):
    """How to reach a stream of another account or JetStream domain."""

    api: str
    """The prefix of that side's API subjects, such as ``$JS.hub.API``."""

    deliver: str | None = None
    """The prefix of the subjects that messages are delivered on, when it has to be another one."""


@record
class StreamConsumerSource(Record):
    """A durable push consumer that feeds a mirror or source (ADR-60); needs server 2.14."""

    name: str | None = None
    """The name of the consumer on the origin stream; it must exist, with flow-control acks."""

    deliver_subject: str | None = None
    """The subject that it delivers to; no wildcards."""


@record
class StreamSource(Record):
    """A stream that another one mirrors, or takes messages from (ADR-59)."""

    name: str
    """The name of the origin stream."""

    opt_start_seq: int | None = None
    """The sequence to start at; the first message when not said. Excludes `opt_start_time`."""

    opt_start_time: datetime | None = None
    """Start at the first message that is not older. Excludes `opt_start_seq`."""

    filter_subject: str | None = None
    """Take only messages on these subjects, with wildcards. Excludes `subject_transforms`."""

    subject_transforms: Sequence[SubjectTransform] | None = None
    """
    Filters that can give the messages another subject; needs server 2.10.

    Excludes `filter_subject`, and they must not overlap.
    """

    external: ExternalStream | None = None
    """Where the origin is, when it is in another account or domain."""

    consumer: StreamConsumerSource | None = None
    """
    The consumer to take messages through, instead of one that the server makes for itself.

    It has to be there for origins with work-queue or interest retention. Excludes
    `opt_start_seq`, `opt_start_time` and `filter_subject`. Needs server 2.14.
    """

    def _check(self) -> None:
        check_stream_name(self.name)
        self._check_range(0, _UINT64_MAX, "opt_start_seq")
        if self.filter_subject:
            check_subject(self.filter_subject)
        self._refuse_if(
            bool(self.filter_subject and self.subject_transforms),
            "subject_transforms",
            "excludes filter_subject",
        )
        for name in ("opt_start_seq", "opt_start_time", "filter_subject"):
            self._refuse_if(
                bool(self.consumer and getattr(self, name)), name, "excludes a consumer of its own"
            )


@record
class StreamConsumerLimits(Record):
    """What the consumers of a stream may ask for, and get when they do not ask; server 2.10."""

    inactive_threshold: Duration = UNSET
    """The longest `ConsumerConfig.inactive_threshold`; no limit when not said."""

    max_ack_pending: int | None = None
    """The most `ConsumerConfig.max_ack_pending`; no limit when not said."""

    def _check(self) -> None:
        self._check_range(0, _INT64_MAX, "inactive_threshold")


@record
class StreamConfig(Record):
    """
    The configuration of a stream.

    Raises:
        InvalidNameError: the name can not be a stream's.
        BadSubjectError: a subject is not well formed.
        InvalidOptionError: a value is out of range or of the wrong type, or two fields exclude
            each other.

    """

    name: str
    """The name, unique in the account; no white space, ``.``, ``*``, ``>`` or slashes."""

    description: str | None = None
    """What it is for; at most 4096 bytes."""

    subjects: Sequence[str] | None = None
    """
    The subjects that it stores, with wildcards; they must not overlap.

    When not said the server takes the stream's name, or none for a stream with `sources`.
    Excludes `mirror`.
    """

    retention: RetentionPolicy | str | None = None
    """When a message goes; the server's default is ``limits``."""

    max_consumers: int | None = None
    """How many consumers it may have; the server's default is -1, no limit. Not updatable."""

    max_msgs: int | None = None
    """How many messages it holds before `discard` applies; the server's default is -1, no limit."""

    max_bytes: int | None = None
    """
    How many bytes it holds before `discard` applies.

    The server's default is -1, no limit; an account may require a limit.
    """

    max_age: Duration = UNSET
    """How old a message gets, in seconds, at least 0.1; the server's default is 0, no limit."""

    max_msgs_per_subject: int | None = None
    """How many messages it holds for each subject; the server's default is -1, no limit."""

    max_msg_size: int | None = None
    """The largest message, headers included, in bytes; the server's default is -1, no limit."""

    discard: DiscardPolicy | str | None = None
    """What gives way when a limit is reached; the server's default is ``old``."""

    discard_new_per_subject: bool | None = None
    """
    Whether a full subject refuses new messages, rather than dropping its oldest.

    Needs `discard` ``new`` and `max_msgs_per_subject`.
    """

    storage: StorageType | str | None = None
    """Where messages are kept; the server's default is ``file``. Not updatable."""

    num_replicas: int | None = None
    """How many servers of a cluster hold it, 1 to 5; the server's default is 1."""

    no_ack: bool | None = None
    """Whether publishers get no acknowledgement; publish with core NATS then."""

    duplicate_window: Duration = UNSET
    """
    How long message ids are remembered for de-duplication, in seconds, at least 0.1.

    The server's default is 2 minutes, or `max_age` where that is shorter; it can not be longer.
    """

    placement: Placement | None = None
    """Which servers may hold it; the server chooses when not said."""

    mirror: StreamSource | None = None
    """
    The stream that this one is a read-only copy of.

    Excludes `subjects`, `sources`, `first_seq`, `subject_delete_marker_ttl`, counters, schedules
    and batches. It can be removed, which makes an ordinary stream of the copy, but not changed.
    """

    sources: Sequence[StreamSource] | None = None
    """Streams that this one takes messages from, besides its `subjects`. Excludes `mirror`."""

    sealed: bool | None = None
    """Whether nothing goes in or out any more; set by an update only, and for ever."""

    deny_delete: bool | None = None
    """Whether single messages can not be deleted through the API; once set it stays."""

    deny_purge: bool | None = None
    """Whether it can not be purged through the API; once set it stays."""

    allow_rollup_hdrs: bool | None = None
    """
    Whether a message with ``Nats-Rollup`` may replace its subject or the stream.

    Excludes `deny_purge`.
    """

    allow_direct: bool | None = None
    """Whether any replica may answer a direct get (ADR-31), which can lag behind the leader."""

    mirror_direct: bool | None = None
    """Whether this mirror answers direct gets for its origin; the server sets it from there."""

    republish: RePublish | None = None
    """Publish each stored message again for core NATS subscribers."""

    subject_transform: SubjectTransform | None = None
    """Give messages another subject before they are stored; needs server 2.10."""

    compression: StoreCompression | str | None = None
    """How file storage is compressed; the server's default is ``none``. Needs server 2.10."""

    first_seq: int | None = None
    """The sequence of the first message; the server's default is 1. Needs server 2.10."""

    consumer_limits: StreamConsumerLimits | None = None
    """Limits and defaults for the consumers of the stream; needs server 2.10."""

    metadata: Mapping[str, str] | None = None
    """
    Labels of the application, at most 128 KiB; needs server 2.10.

    Keys that start with ``_nats.`` are the server's: it sets and removes them itself.
    """

    allow_msg_ttl: bool | None = None
    """Whether messages may carry a ``Nats-TTL`` (ADR-43); once set it stays. Server 2.11."""

    subject_delete_marker_ttl: Duration = UNSET
    """
    How long a marker stays for a subject whose last message aged out, in seconds, at least 1.

    The server's default is 0, no markers. It turns on `allow_msg_ttl` and `allow_rollup_hdrs`.
    Excludes `mirror`. Needs server 2.11.
    """

    allow_msg_counter: bool | None = None
    """
    Whether the stream is one of counters (ADR-49) and takes nothing else; not updatable.

    Excludes `discard` ``new``, `allow_msg_ttl`, `allow_msg_schedules`, `mirror` and any retention
    but ``limits``. Needs server 2.12.
    """

    allow_atomic: bool | None = None
    """Whether it takes atomic batches (ADR-50). Excludes `mirror`. Needs server 2.12."""

    allow_msg_schedules: bool | None = None
    """
    Whether messages may carry a schedule (ADR-51); once set it stays.

    It turns on `allow_rollup_hdrs`. Excludes `discard` ``new``, `mirror` and `sources`. Needs
    server 2.12.
    """

    persist_mode: PersistMode | str | None = None
    """
    When a message is acknowledged, relative to its way to the disk.

    ``async`` needs file storage and one replica, and excludes `allow_atomic`. The server's default
    is ``default``. Not updatable. Needs server 2.12.
    """

    allow_batched: bool | None = None
    """Whether it takes fast batches (ADR-50). Excludes `mirror`. Needs server 2.14."""

    def _check(self) -> None:
        check_stream_name(self.name)
        self._check_subjects()
        self._check_numbers()
        self._check_mirror()
        self._check_features()

    def _check_subjects(self) -> None:
        for subject in self.subjects or ():
            check_subject(subject)
        if self.subjects and len(set(self.subjects)) < len(self.subjects):
            raise InvalidOptionError("subjects", self.subjects, "a subject is there twice")

    def _check_numbers(self) -> None:
        limits = ("max_msgs", "max_bytes", "max_msgs_per_subject", "max_consumers")
        self._check_range(-1, _INT64_MAX, *limits)
        self._check_range(-1, _INT32_MAX, "max_msg_size")
        self._check_range(0, 5, "num_replicas")
        self._check_range(0, _UINT64_MAX, "first_seq")
        if self.max_age:
            self._check_range(0.1, _INT64_MAX, "max_age")
        if self.duplicate_window:
            self._check_range(0.1, _INT64_MAX, "duplicate_window")
        if self.subject_delete_marker_ttl:
            self._check_range(1, _INT64_MAX, "subject_delete_marker_ttl")
        self._refuse_if(
            bool(self.max_age and self.duplicate_window and self.duplicate_window > self.max_age),
            "duplicate_window",
            "it is not longer than max_age",
        )

    def _check_mirror(self) -> None:
        excluded = (
            "subjects",
            "sources",
            "first_seq",
            "subject_delete_marker_ttl",
            "allow_msg_counter",
            "allow_atomic",
            "allow_batched",
            "allow_msg_schedules",
        )
        for name in excluded if self.mirror else ():
            self._refuse_if(bool(getattr(self, name)), name, "a mirror has none")

    def _check_features(self) -> None:
        if self.discard_new_per_subject:
            self._needs_one_of("discard_new_per_subject", "discard", DiscardPolicy.NEW)
            self._refuse_if(
                self.max_msgs_per_subject is None or self.max_msgs_per_subject < 1,
                "discard_new_per_subject",
                "needs max_msgs_per_subject",
            )
        self._excludes("allow_rollup_hdrs", "deny_purge")
        self._excludes("allow_msg_schedules", "sources")
        if self.allow_msg_schedules:
            self._needs_one_of("allow_msg_schedules", "discard", None, DiscardPolicy.OLD)
        if self.allow_msg_counter:
            self._excludes("allow_msg_counter", "allow_msg_ttl", "allow_msg_schedules")
            self._needs_one_of("allow_msg_counter", "discard", None, DiscardPolicy.OLD)
            self._needs_one_of("allow_msg_counter", "retention", None, RetentionPolicy.LIMITS)
        if self.persist_mode == PersistMode.ASYNC:
            self._excludes("persist_mode", "allow_atomic")
            self._needs_one_of("persist_mode", "storage", None, StorageType.FILE)
            self._needs_one_of("persist_mode", "num_replicas", None, 0, 1)

    def _excludes(self, option: str, *others: str) -> None:
        for other in others if getattr(self, option) else ():
            self._refuse_if(bool(getattr(self, other)), option, f"excludes {other}")

    def _needs_one_of(self, option: str, other: str, *values: object) -> None:
        value = getattr(self, other)
        words = " or ".join(str(each) for each in values if each)
        # What a newer server's word goes with is not known here.
        wrong = value not in values and not isinstance(value, UnknownEnumValue)
        self._refuse_if(wrong, option, f"needs {other} {words}")


# --- what the server says -----------------------------------------------------------------------


@record
class ErrorInfo(Record):
    """An error that is part of an info; one that refuses a request is raised as an `APIError`."""

    code: int
    """HTTP-like."""

    err_code: int | None = None
    """The exact number, from nats-server's ``errors.json``."""

    description: str | None = None
    """Its text."""


@record
class LostStreamData(Record):
    """Messages that were damaged on disk and could not be read back."""

    msgs: Sequence[int] | None = None
    """Their sequences."""

    bytes: int | None = None
    """How many bytes they had."""


@record
class StreamState(Record):
    """What a stream holds."""

    messages: int
    """How many messages."""

    bytes: int
    """How many bytes, with headers and storage overhead."""

    first_seq: int
    """The sequence of the first message; one after `last_seq` when there is none."""

    first_ts: datetime | None = None
    """When the first message was stored; year 1 when there is none."""

    last_seq: int
    """The last sequence that was given, 0 at the start."""

    last_ts: datetime | None = None
    """When it was given; year 1 at the start."""

    num_subjects: int | None = None
    """How many subjects have messages."""

    subjects: Mapping[str, int] | None = None
    """Messages by subject; only when the request had a subject filter."""

    num_deleted: int | None = None
    """How many sequences between first and last have no message any more."""

    deleted: Sequence[int] | None = None
    """These sequences; only when the request asked for them."""

    lost: LostStreamData | None = None
    """What was damaged on disk, if anything."""

    consumer_count: int
    """How many consumers it has."""


@record
class StreamSourceInfo(Record):
    """How far a mirror or source is."""

    name: str
    """The name of the origin stream."""

    external: ExternalStream | None = None
    """Where the origin is, when it is in another account or domain."""

    lag: int
    """How many messages it is behind; meaningful while the two talk."""

    seq: int | None = None
    """The sequence in the origin of the last message that was taken; server 2.15."""

    active: timedelta
    """How long ago the origin was last heard of; negative when it never was."""

    error: ErrorInfo | None = None
    """Why it does not advance, if the server knows."""

    filter_subject: str | None = None
    """The subjects that are taken, if not all."""

    subject_transforms: Sequence[SubjectTransform] | None = None
    """The filters with new subjects."""


@record
class StreamAlternate(Record):
    """A mirror that reads can use instead, or the stream itself; nearest first in a list."""

    name: str
    """The name of the stream."""

    domain: str | None = None
    """Its JetStream domain."""

    cluster: str
    """The cluster that it is in."""


@record
class StreamInfo(Record):
    """A stream as it was at the time of `ts`."""

    config: StreamConfig
    """Its configuration, with the server's defaults filled in."""

    created: datetime
    """When it was made."""

    state: StreamState
    """What it holds."""

    domain: str | None = None
    """The JetStream domain that it is in."""

    cluster: ClusterInfo | None = None
    """The servers that hold it; only in a cluster."""

    mirror: StreamSourceInfo | None = None
    """How far it is as a mirror."""

    sources: Sequence[StreamSourceInfo] | None = None
    """How far each of its sources is."""

    alternates: Sequence[StreamAlternate] | None = None
    """The stream and its mirrors, nearest first; only when it has mirrors."""

    ts: datetime | None = None
    """When the server gathered this; old servers do not say."""


@record
class StoredMsg(Record):
    """A message as the API returns it from a stream, outside of consumers."""

    subject: str
    """The subject that it was stored under."""

    seq: int
    """Its sequence in the stream."""

    hdrs: bytes | None = None
    """Its header block, from ``NATS/1.0`` to the empty line; not said when it has none."""

    data: bytes | None = None
    """Its payload; not said when it is empty."""

    time: datetime
    """When it was stored."""
