"""Records of streams: configuration, info and state."""

# Field names are those of the JSON API. In a config None means *not set*: the field is not sent, and
# the server's default applies. The records define every field of nats-server 2.15 (server/stream.go,
# server/store.go) and keep the fields of newer servers. Validation rejects invalid configs but accepts
# every config that a server sends, so that it can be changed and sent back.

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from .. import errors
from ..codec import UNSET, Duration, Record, UnknownEnumValue, dumps
from ..durations import check_message_time, time_to_text
from ..records import record, setting
from ..subjects import check_stream_name, check_subject
from .account import ClusterInfo, Placement
from .enums import DiscardPolicy, PersistMode, RetentionPolicy, StorageType, StoreCompression

_INT32_MAX = 2**31 - 1
_UINT64_MAX = 2**64 - 1
#: The server's default.
_DEFAULT_WINDOW = timedelta(minutes=2)


@record
class SubjectTransform(Record):
    """A rule that maps the subjects of messages."""

    src: str = setting(flags="--transform-source")
    """Subjects to map, with wildcards; ``""`` matches all subjects."""

    dest: str = setting(flags="--transform-destination")
    """The new subject, with subject mapping functions such as ``{{wildcard(1)}}``."""


@record
class RePublish(Record):
    """Republish each stored message on another subject, for core NATS subscribers."""

    dest: str = setting(flags="--republish-destination")
    """The subject to republish to, as in `SubjectTransform.dest`; not a subject of the stream."""

    src: str | None = setting(default=None, flags="--republish-source")
    """Subjects of the stream to republish, with wildcards; default: all."""

    headers_only: bool | None = setting(default=None, flags="--republish-headers")
    """Whether to omit the payload and send its size in ``Nats-Msg-Size``."""


@record
class ExternalStream(Record):
    """Access to a stream of another account or JetStream domain."""

    api: str
    """The API subject prefix of the other account or domain, such as ``$JS.hub.API``."""

    deliver: str | None = None
    """The prefix of delivery subjects, if it differs from the default."""


@record
class StreamConsumerSource(Record):
    """A durable push consumer that feeds a mirror or source (ADR-60); needs server 2.14."""

    name: str | None = None
    """The name of the consumer on the origin stream; it must exist, with flow-control acks."""

    deliver_subject: str | None = None
    """The delivery subject of the consumer; no wildcards."""


@record
class StreamSource(Record):
    """The origin of a mirror or source (ADR-59)."""

    name: str
    """The name of the origin stream."""

    opt_start_seq: int | None = setting(default=None, low=0, high=_UINT64_MAX)
    """The sequence to start at; default: the first message. Excludes `opt_start_time`."""

    opt_start_time: datetime | None = None
    """Start at the first message stored at or after this time. Excludes `opt_start_seq`."""

    filter_subject: str | None = None
    """Copy only messages on this subject, with wildcards. Excludes `subject_transforms`."""

    subject_transforms: Sequence[SubjectTransform] | None = None
    """
    Subject filters that can also map subjects; they must not overlap.

    Excludes `filter_subject`.
    """

    external: ExternalStream | None = None
    """Access to the origin if it is in another account or domain."""

    consumer: StreamConsumerSource | None = setting(default=None, since=(2, 14))
    """
    An existing consumer to copy through, instead of one that the server creates.

    Required for origins with work-queue or interest retention. Excludes
    `opt_start_seq`, `opt_start_time` and `filter_subject`.
    """

    def _check(self) -> None:
        check_stream_name(self.name)
        if self.opt_start_time is not None:
            check_message_time(self.opt_start_time, "opt_start_time")
        if self.filter_subject:
            check_subject(self.filter_subject)
        self._refuse_if(
            bool(self.filter_subject and self.subject_transforms),
            "subject_transforms",
            "cannot be combined with filter_subject",
        )
        for name in ("opt_start_seq", "opt_start_time", "filter_subject"):
            self._refuse_if(
                bool(self.consumer and getattr(self, name)),
                name,
                "cannot be combined with consumer",
            )


@record
class StreamConsumerLimits(Record):
    """Limits and defaults for the consumers of a stream."""

    inactive_threshold: Duration = setting(default=UNSET, low=0, flags="--limit-consumer-inactive")
    """Maximum and default of `ConsumerConfig.inactive_threshold`; default: no limit."""

    max_ack_pending: int | None = setting(default=None, flags="--limit-consumer-max-pending")
    """Maximum and default of `ConsumerConfig.max_ack_pending`; default: no limit."""


_NOT_FOR_MIRRORS = (
    "subjects",
    "sources",
    "first_seq",
    "subject_delete_marker_ttl",
    "allow_msg_counter",
    "allow_atomic",
    "allow_batched",
    "allow_msg_schedules",
)


@record
class StreamConfig(Record):
    """
    The configuration of a stream.

    Raises:
        InvalidNameError: the name is malformed.
        BadSubjectError: a subject is malformed.
        InvalidOptionError: a value is out of range or has the wrong type, or two fields cannot be
            combined.

    """

    name: str = setting(flags="")
    """The stream name, unique in the account; no white space, ``.``, ``*``, ``>`` or slashes."""

    description: str | None = None
    """Description; at most 4096 bytes."""

    subjects: Sequence[str] | None = setting(default=None, server_default=...)
    """
    The subjects that the stream stores, with wildcards; they must not overlap.

    The server's default is the stream's name, or none for a stream with `sources`. Excludes `mirror`.
    """

    retention: RetentionPolicy | str | None = setting(default=None, server_default="limits")
    """When messages are removed; the server's default is ``limits``."""

    max_consumers: int | None = setting(
        default=None, low=-1, server_default=-1, flags="--max-consumers --max-observables"
    )
    """Maximum number of consumers; the server's default is -1, no limit. Not updatable."""

    max_msgs: int | None = setting(default=None, low=-1, server_default=-1)
    """Maximum number of messages before `discard` applies; the server's default is -1, no limit."""

    max_bytes: int | None = setting(default=None, low=-1, server_default=-1, unit="bytes")
    """
    Maximum size in bytes before `discard` applies.

    The server's default is -1, no limit; an account may require a limit.
    """

    max_age: Duration = setting(default=UNSET, low=0.1)
    """Maximum age of messages in seconds, at least 0.1; the server's default is 0, no limit."""

    max_msgs_per_subject: int | None = setting(default=None, low=-1, server_default=-1)
    """Maximum number of messages per subject; the server's default is -1, no limit."""

    max_msg_size: int | None = setting(
        default=None, low=-1, high=_INT32_MAX, server_default=-1, unit="bytes"
    )
    """Maximum message size with headers, in bytes; the server's default is -1, no limit."""

    discard: DiscardPolicy | str | None = setting(default=None, server_default="old")
    """Which messages to discard when a limit is reached; the server's default is ``old``."""

    discard_new_per_subject: bool | None = setting(default=None, flags="--discard-per-subject")
    """
    Whether a subject at its limit rejects new messages instead of removing the oldest.

    Requires `discard` ``new`` and `max_msgs_per_subject`.
    """

    storage: StorageType | str | None = setting(default=None, server_default="file")
    """Where messages are stored; the server's default is ``file``. Not updatable."""

    num_replicas: int | None = setting(
        default=None, low=0, high=5, server_default=1, flags="--replicas"
    )
    """Number of replicas in a cluster, 1 to 5; the server's default is 1."""

    no_ack: bool | None = setting(default=None, flags="--no-ack/--ack")
    """Whether to send no acknowledgements to publishers, which then have to use core NATS."""

    duplicate_window: Duration = setting(
        default=UNSET, low=0.1, server_default=..., flags="--dupe-window"
    )
    """
    Window for deduplication by message id, in seconds, at least 0.1 and at most `max_age`.

    The server's default is 2 minutes, or `max_age` if that is shorter.
    """

    placement: Placement | None = setting(default=None, flags="")
    """Placement of the replicas; default: chosen by the server."""

    mirror: StreamSource | None = None
    """
    The origin of this stream, which is then a read-only copy.

    Excludes `subjects`, `sources`, `first_seq`, `subject_delete_marker_ttl`, counters, schedules
    and batches. An update can remove the mirror, which turns the copy into a normal stream, but not
    change it.
    """

    sources: Sequence[StreamSource] | None = setting(default=None, flags="--source")
    """Streams to copy messages from, in addition to `subjects`. Excludes `mirror`."""

    sealed: bool | None = setting(default=None, flags="")
    """Whether messages can no longer be added or removed; set by updates only, irreversible."""

    deny_delete: bool | None = None
    """Whether to forbid deleting messages through the API; irreversible."""

    deny_purge: bool | None = None
    """Whether to forbid purging through the API; irreversible."""

    allow_rollup_hdrs: bool | None = setting(default=None, flags="--allow-rollup")
    """
    Whether a message with ``Nats-Rollup`` may replace all messages of its subject or stream.

    Excludes `deny_purge`.
    """

    allow_direct: bool | None = None
    """Whether replicas answer direct gets (ADR-31); a replica can lag behind the leader."""

    mirror_direct: bool | None = setting(default=None, flags="--allow-mirror-direct")
    """Whether this mirror answers direct gets for its origin; set by the server from the origin."""

    republish: RePublish | None = setting(default=None, flags="")
    """Republish each stored message for core NATS subscribers."""

    subject_transform: SubjectTransform | None = setting(default=None, flags="")
    """Map the subjects of messages before they are stored."""

    compression: StoreCompression | str | None = setting(default=None, server_default="none")
    """Compression of file storage; the server's default is ``none``."""

    first_seq: int | None = setting(
        default=None, low=0, high=_UINT64_MAX, flags="--first-seq --first-sequence"
    )
    """The sequence of the first message; the server's default is 1."""

    consumer_limits: StreamConsumerLimits | None = setting(
        default=None, server_default=..., flags=""
    )
    """Limits and defaults for the consumers of the stream."""

    metadata: Mapping[str, str] | None = None
    """
    Application-defined key-value pairs, at most 128 KiB.

    Keys that begin with ``_nats.`` are reserved: the server sets and removes them.
    """

    allow_msg_ttl: bool | None = setting(default=None, since=(2, 11), flags="--allow-msg-ttl --ttl")
    """Whether to allow ``Nats-TTL`` on messages (ADR-43); irreversible."""

    subject_delete_marker_ttl: Duration = setting(
        default=UNSET, since=(2, 11), low=1, flags="--marker-ttl --subject-del-markers-ttl"
    )
    """
    Time to live of the delete marker of a subject whose last message expired, in seconds, at least 1.

    The server's default is 0, no markers. Enables `allow_msg_ttl` and `allow_rollup_hdrs`.
    Excludes `mirror`.
    """

    allow_msg_counter: bool | None = setting(default=None, since=(2, 12), flags="--allow-counter")
    """
    Whether the stream stores counters (ADR-49) only; not updatable.

    Excludes `discard` ``new``, `allow_msg_ttl`, `allow_msg_schedules`, `mirror` and any retention
    but ``limits``.
    """

    allow_atomic: bool | None = setting(
        default=None, since=(2, 12), flags="--allow-atomic --allow-batch"
    )
    """Whether to allow atomic batches (ADR-50). Excludes `mirror`."""

    allow_msg_schedules: bool | None = setting(
        default=None, since=(2, 12), flags="--allow-schedules"
    )
    """
    Whether to allow message schedules (ADR-51); irreversible.

    Enables `allow_rollup_hdrs`. Excludes `discard` ``new``, `mirror` and `sources`.
    """

    persist_mode: PersistMode | str | None = setting(
        default=None, since=(2, 12), server_default="default"
    )
    """
    Whether a message is acknowledged before or after it is flushed to disk.

    ``async`` requires file storage and one replica, and excludes `allow_atomic`. The server's default
    is ``default``. Not updatable.
    """

    allow_batched: bool | None = setting(
        default=None, since=(2, 14), flags="--allow-batched --allow-fast"
    )
    """Whether to allow fast batches (ADR-50). Excludes `mirror`."""

    def _check(self) -> None:
        check_stream_name(self.name, new=True)
        self._check_subjects()
        self._check_window()
        if self.mirror:
            self._refuse_set("cannot be combined with mirror", *_NOT_FOR_MIRRORS)
        self._check_features()

    def _check_subjects(self) -> None:
        for subject in self.subjects or ():
            check_subject(subject)
        if self.subjects and len(set(self.subjects)) < len(self.subjects):
            raise errors.InvalidOptionError(
                "subjects", self.subjects, "must not contain a subject twice"
            )

    def _check_window(self) -> None:
        self._refuse_if(
            bool(self.max_age and self.duplicate_window and self.duplicate_window > self.max_age),
            "duplicate_window",
            "must not be longer than max_age",
        )

    def _check_features(self) -> None:
        if self.discard_new_per_subject:
            self._needs_one_of("discard_new_per_subject", "discard", DiscardPolicy.NEW)
            self._refuse_if(
                self.max_msgs_per_subject is None or self.max_msgs_per_subject < 1,
                "discard_new_per_subject",
                "requires max_msgs_per_subject",
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
            self._refuse_if(bool(getattr(self, other)), option, f"cannot be combined with {other}")

    def _needs_one_of(self, option: str, other: str, *values: object) -> None:
        value = getattr(self, other)
        allowed = " or ".join(str(item) for item in values if item)
        # The requirements of an unknown value of a newer server are not known.
        wrong = value not in values and not isinstance(value, UnknownEnumValue)
        self._refuse_if(wrong, option, f"requires {other} {allowed}")


def duplicate_window(max_age: timedelta) -> timedelta:
    """Return the longest usual duplicate window for a maximum age; 0: no maximum."""
    return min(max_age, _DEFAULT_WINDOW) if max_age else _DEFAULT_WINDOW


# --- info and state -----------------------------------------------------------------------------


@record
class ErrorInfo(Record):
    """An error inside an info record; the error of a refused request is an `APIError`."""

    code: int
    """HTTP-like status code."""

    err_code: int | None = None
    """The error code of nats-server's ``errors.json``."""

    description: str | None = None
    """Description of the error."""


@record
class LostStreamData(Record):
    """Messages lost to data corruption on disk."""

    msgs: Sequence[int] | None = None
    """Sequences of the lost messages."""

    bytes: int | None = None
    """Number of lost bytes."""


@record
class StreamState(Record):
    """State of a stream."""

    messages: int
    """Number of messages."""

    bytes: int
    """Size in bytes, including headers and storage overhead."""

    first_seq: int
    """Sequence of the first message; ``last_seq + 1`` if the stream is empty."""

    first_ts: datetime | None = None
    """Time when the first message was stored; year 1 if the stream is empty."""

    last_seq: int
    """The last assigned sequence; 0 for a new stream."""

    last_ts: datetime | None = None
    """Time when the last message was stored; year 1 for a new stream."""

    num_subjects: int | None = None
    """Number of subjects with messages."""

    subjects: Mapping[str, int] | None = None
    """Number of messages per subject; only if requested with a subject filter."""

    num_deleted: int | None = None
    """Number of deleted messages between first and last sequence."""

    deleted: Sequence[int] | None = None
    """Sequences of the deleted messages; only if requested."""

    lost: LostStreamData | None = None
    """Messages lost to data corruption, if any."""

    consumer_count: int
    """Number of consumers."""


@record
class StreamSourceInfo(Record):
    """State of a mirror or source."""

    name: str
    """The name of the origin stream."""

    external: ExternalStream | None = None
    """Access to the origin if it is in another account or domain."""

    lag: int
    """Number of messages behind the origin; meaningful while the origin is reachable."""

    seq: int | None = None
    """Sequence in the origin of the last copied message; needs server 2.15."""

    active: timedelta
    """Time since the last contact with the origin; negative if there was none."""

    error: ErrorInfo | None = None
    """Why no messages are copied, if known."""

    filter_subject: str | None = None
    """The subject filter, if any."""

    subject_transforms: Sequence[SubjectTransform] | None = None
    """The subject filters with mappings, if any."""

    @property
    def seen_ago(self) -> timedelta | None:
        """Time since the last contact with the origin; `None`: there was none yet, so `lag` is unknown."""
        return self.active if self.active >= timedelta(0) else None


@record
class StreamAlternate(Record):
    """A mirror that can serve reads, or the stream itself."""

    name: str
    """The name of the stream."""

    domain: str | None = None
    """JetStream domain of the stream."""

    cluster: str
    """Cluster of the stream."""


@record
class StreamInfo(Record):
    """Configuration and state of a stream at the time `ts`."""

    config: StreamConfig
    """The configuration, including the server's defaults."""

    created: datetime
    """Time of creation."""

    state: StreamState
    """State of the stream."""

    domain: str | None = None
    """JetStream domain of the stream."""

    cluster: ClusterInfo | None = None
    """Leader and replicas; only in a cluster."""

    mirror: StreamSourceInfo | None = None
    """State of the mirror."""

    sources: Sequence[StreamSourceInfo] | None = None
    """State of each source."""

    alternates: Sequence[StreamAlternate] | None = None
    """The stream and its mirrors, nearest first; only if it has mirrors."""

    ts: datetime | None = None
    """Time of this snapshot on the server; not set by old servers."""


class MsgGetRequest(NamedTuple):
    """
    A request for stored messages: a ``STREAM.MSG.GET`` or a direct get (ADR-31).

    The names are those of the JSON API; ``None``: the field is not sent. A direct get alone has the fields from
    ``batch`` on.
    """

    seq: int | None = None
    """The sequence of the message; with `next_by_subj` or `batch`, the first one that it may have."""

    last_by_subj: str | None = None
    """The subject of which the last message is requested."""

    next_by_subj: str | None = None
    """The subject of the messages from `seq` or `start_time` on."""

    batch: int | None = None
    """Maximum number of messages."""

    max_bytes: int | None = None
    """Size in bytes after which the reply ends with a message."""

    start_time: datetime | None = None
    """The time from which on messages are requested, in place of `seq`."""

    multi_last: Sequence[str] | None = None
    """The subjects of which the last messages are requested."""

    up_to_seq: int | None = None
    """With `multi_last`, the sequence after which messages do not count."""

    up_to_time: datetime | None = None
    """With `multi_last`, the time from which on messages do not count."""

    def to_json(self) -> dict[str, Any]:
        """Return the body of the request."""
        return {
            name: time_to_text(value) if isinstance(value, datetime) else value
            for name, value in self._asdict().items()
            if value is not None
        }

    def encode(self) -> bytes:
        """Return the payload of the request."""
        return dumps(self.to_json())

    def selects(self, subject: str, seq: int) -> bool:
        """Return whether a single message can be the requested one; wildcards are not compared."""
        last, first = self.last_by_subj or "*", self.seq or 0
        is_exact = self.seq is not None and self.next_by_subj is None
        fits = seq == first if is_exact else seq >= max(1, first)
        return fits and ("*" in last or last.endswith(">") or subject == last)


@record
class StoredMsgReply(Record):
    """The stored message in a ``STREAM.MSG.GET`` response."""

    subject: str
    """Subject of the message."""

    seq: int
    """Sequence in the stream."""

    hdrs: bytes | None = None
    """Header block, from ``NATS/1.0`` to the empty line; not set without headers."""

    data: bytes | None = None
    """Payload; not set if empty."""

    time: datetime
    """Time when the message was stored."""


@record
class SnapshotInfo(Record):
    """
    Configuration and state of a stream at the time of its snapshot.

    Its JSON form is the ``backup.json`` file of the ``nats`` command.
    """

    config: StreamConfig
    """Configuration of the stream; a restore may change all fields except the name."""

    state: StreamState
    """State of the stream."""


@record
class SnapshotRequest(Record):
    """Request for a snapshot."""

    deliver_subject: str
    """Subject to send the data to."""

    no_consumers: bool | None = None
    """Whether to omit the consumers."""

    jsck: bool | None = None
    """Whether to verify all messages first."""

    chunk_size: int | None = None
    """Chunk size in bytes."""

    window_size: int | None = None
    """Maximum number of unacknowledged bytes."""

    def _check(self) -> None:
        self._check_range(1024, 1024**2, "chunk_size")
        self._check_range(1024, 32 * 1024**2, "window_size")


def chunk_position(reply: str) -> tuple[int, int] | None:
    """Return the size and the number (from 1) of a chunk from its reply subject."""
    # $JS.SNAPSHOT.ACK.<stream>.<id>.<size>.<number>
    tokens = reply.rsplit(".", 2)
    if len(tokens) == 3 and tokens[1].isdecimal() and tokens[2].isdecimal():
        return int(tokens[1]), int(tokens[2])
    return None
