"""Key-value buckets (ADR-8, ADR-48, ADR-57), without I/O."""

# A bucket is a stream KV_<bucket> that keeps the last messages of each subject
# $KV.<bucket>.<key>. This module has the config of a bucket as the config of its stream; the rules for
# names, keys and patterns are in ``subjects.py``.

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any, Final

from .. import errors
from ..codec import UNSET, Duration, Record
from ..records import Frozen, frozen, record, setting
from ..subjects import KEYS_PREFIX, KV_PREFIX, check_bucket, is_bucket_name
from .account import Placement
from .enums import DiscardPolicy, StorageType, StoreCompression
from .stream import (
    RePublish,
    StreamConfig,
    StreamInfo,
    StreamSource,
    SubjectTransform,
    duplicate_window,
)

#: The maximum of `KeyValueConfig.history` (ADR-8).
MAX_HISTORY: Final = 64
#: The header with the operation of a message that deletes or purges a key.
OPERATION: Final = "KV-Operation"
#: The header that makes a message replace all earlier ones of its subject, with the value ``sub``.
ROLLUP: Final = "Nats-Rollup"
_INT32_MAX: Final = 2**31 - 1
_INT64_MAX: Final = 2**63 - 1


# --- the bucket ---------------------------------------------------------------------------------


@record
class BucketConfig(Record):
    """The fields that the configs of key-value buckets and object stores share."""

    bucket: str = setting(flags="")
    """The name of the bucket: letters, digits, ``_`` and ``-``."""

    description: str | None = None
    """Description; at most 4096 bytes."""

    ttl: Duration = setting(default=UNSET, low=0.1)
    """Seconds after which a value or object is removed, at least 0.1; default: never."""

    max_bytes: int | None = setting(
        default=None, low=-1, unit="bytes", server_default=-1, flags="--max-bucket-size"
    )
    """Maximum size of the bucket in bytes; a write above it fails. Default: no limit."""

    storage: StorageType | str | None = setting(default=None, server_default="file")
    """Where the data is stored; default ``file``. Not updatable."""

    replicas: int | None = setting(default=None, low=1, high=5, server_default=1)
    """Number of replicas in a cluster, 1 to 5; default 1."""

    placement: Placement | None = setting(default=None, flags="")
    """Placement of the replicas; default: chosen by the server."""

    compression: bool | None = setting(default=None, flags="--compress")
    """Whether file storage is compressed; default false."""

    metadata: Mapping[str, str] | None = None
    """Application-defined key-value pairs."""

    def _check(self) -> None:
        check_bucket(self.bucket)

    def stream_fields(self) -> dict[str, Any]:
        """Return the fields of a stream config for the fields that are set."""
        fields = {
            "description": self.description,
            "max_age": self.ttl,
            "max_bytes": self.max_bytes,
            "storage": self.storage,
            "num_replicas": self.replicas,
            "placement": self.placement,
            "metadata": self.metadata,
        }
        if self.compression is not None:
            s2, none = StoreCompression.S2, StoreCompression.NONE
            fields["compression"] = s2 if self.compression else none
        return {name: value for name, value in fields.items() if value is not None}


def is_compressed(stream: StreamConfig) -> bool:
    """Return whether a stream is compressed, also in a way that is not known here."""
    return (stream.compression or StoreCompression.NONE) != StoreCompression.NONE


def changed_fields(config: BucketConfig, current: StreamConfig) -> dict[str, Any]:
    """Return the fields of a stream config for an update of a bucket; a compression is kept as it is."""
    fields = config.stream_fields()
    if config.compression and is_compressed(current):
        del fields["compression"]
    if fields.get("max_age", current.max_age) != current.max_age:
        fields["duplicate_window"] = duplicate_window(fields["max_age"])
    return fields


def shared_fields(stream: StreamConfig) -> dict[str, Any]:
    """Return the fields of a `BucketConfig` for the config of its stream, other than the name."""
    return {
        "description": stream.description,
        "ttl": stream.max_age or None,
        "max_bytes": stream.max_bytes,
        "storage": stream.storage,
        "replicas": stream.num_replicas,
        "placement": stream.placement,
        "compression": is_compressed(stream),
        "metadata": stream.metadata,
    }


@record
class KeyValueConfig(BucketConfig):
    """
    The configuration of a key-value bucket; in an update, fields that are not set keep their value.

    Raises:
        InvalidNameError: the name of the bucket is malformed.
        InvalidOptionError: a value is out of range, or two fields cannot be combined.

    """

    max_value_size: int | None = setting(
        default=None, low=-1, high=_INT32_MAX, unit="bytes", server_default=-1
    )
    """Maximum size of a value with its headers, in bytes; default: no limit."""

    history: int | None = setting(default=None, low=1, high=MAX_HISTORY, server_default=1)
    """Number of revisions to keep per key, 1 to 64; default 1."""

    limit_marker_ttl: Duration = setting(
        default=UNSET, since=(2, 11), low=1, flags="--marker-ttl --limit-marker-ttl"
    )
    """
    Seconds for which a marker shows watchers that a value has expired, at least 1; default: no markers.

    Required for ``ttl=`` of `KeyValue.create` and `KeyValue.purge`. An update to 0 ends the markers; the
    bucket still allows a ``ttl``. Excludes `mirror`.
    """

    republish: RePublish | None = setting(default=None, flags="")
    """Republish each change for core NATS subscribers."""

    mirror: StreamSource | None = None
    """
    The bucket that this one mirrors; reads use the copy, and writes go to the origin.

    The prefix ``KV_`` of the name may be omitted. Excludes `sources`.
    """

    sources: Sequence[StreamSource] | None = setting(default=None, flags="--source")
    """
    Buckets whose entries are copied into this one.

    Without `subject_transforms`, the prefix ``KV_`` of the name may be omitted, and the keys stay the
    same.
    """

    def _check(self) -> None:
        check_bucket(self.bucket)
        if self.mirror is not None:
            self._refuse_set("cannot be combined with mirror", "sources", "limit_marker_ttl")


def _prefixed(name: str) -> str:
    return name if name.startswith(KV_PREFIX) else KV_PREFIX + name


def _source(source: StreamSource, bucket: str) -> StreamSource:
    if source.subject_transforms:
        return source  # ADR-57: not changed at all
    if source.filter_subject:
        rule = "use subject_transforms instead of filter_subject"
        raise errors.InvalidOptionError("sources", source, rule)
    name = _prefixed(source.name)
    origin = name.removeprefix(KV_PREFIX)
    if source.external is not None and origin == bucket:
        return replace(source, name=name)
    transform = SubjectTransform(src=f"{KEYS_PREFIX}{origin}.>", dest=f"{KEYS_PREFIX}{bucket}.>")
    return replace(source, name=name, subject_transforms=[transform])


def _given_fields(config: KeyValueConfig, current: StreamConfig) -> dict[str, Any]:
    """Return the fields of a stream config for the set fields of a bucket config."""
    fields, known = changed_fields(config, current), current.sources or ()
    own: dict[str, Any] = {
        "max_msg_size": config.max_value_size,
        "max_msgs_per_subject": config.history,
        "republish": config.republish,
    }
    if config.limit_marker_ttl is not None:
        own["subject_delete_marker_ttl"] = config.limit_marker_ttl
        own["allow_msg_ttl"] = True if config.limit_marker_ttl else None
    if config.mirror is not None:
        own["mirror"] = replace(config.mirror, name=_prefixed(config.mirror.name))
    if config.sources is not None:
        own["sources"] = [
            source if source in known else _source(source, config.bucket)
            for source in config.sources
        ]
    if config.extra:
        own["extra"] = config.extra
    return fields | {name: value for name, value in own.items() if value is not None}


def new_stream_config(config: KeyValueConfig) -> StreamConfig:
    """Return the config of the stream of a new bucket."""
    fields: dict[str, Any] = {
        "name": KV_PREFIX + config.bucket,
        "max_msgs": -1,
        "max_consumers": -1,
        "max_bytes": -1,
        "max_msg_size": -1,
        "max_msgs_per_subject": 1,
        "storage": StorageType.FILE,
        "num_replicas": 1,
        "compression": StoreCompression.NONE,
        "discard": DiscardPolicy.NEW,
        "allow_rollup_hdrs": True,
        "deny_delete": True,
        "allow_direct": True,
    }
    if config.mirror is None:
        fields["subjects"] = [f"{KEYS_PREFIX}{config.bucket}.>"]
        fields["duplicate_window"] = duplicate_window(timedelta(0))
    else:
        fields["mirror_direct"] = True
    return StreamConfig(**(fields | _given_fields(config, StreamConfig(name=fields["name"]))))


def updated_stream_config(current: StreamConfig, config: KeyValueConfig) -> StreamConfig:
    """Return the config of a bucket's stream with the set fields of a bucket config."""
    if config.mirror is not None and current.mirror is None:
        raise errors.InvalidOptionError(
            "mirror", config.mirror, "the bucket exists and is not a mirror"
        )
    fields = _given_fields(config, current)
    return replace(current, **fields | {"extra": {**current.extra, **config.extra}})


def bucket_of(stream: str) -> str:
    """Return the name of the bucket of a stream."""
    return stream.removeprefix(KV_PREFIX)


def is_bucket(config: StreamConfig) -> bool:
    """Return whether a stream is a bucket, also one that mirrors another."""
    if not config.name.startswith(KV_PREFIX):
        return False
    if config.mirror is not None:
        return True
    return any(subject.startswith(KEYS_PREFIX) for subject in config.subjects or ())


@frozen()
class KeyValueStatus(Frozen):
    """Configuration and state of a bucket."""

    info: StreamInfo
    """Configuration and state of the bucket's stream."""

    @property
    def bucket(self) -> str:
        """The name of the bucket."""
        return bucket_of(self.info.config.name)

    @property
    def values(self) -> int:
        """Number of stored messages: all kept revisions and the markers of deleted keys."""
        return self.info.state.messages

    @property
    def bytes(self) -> int:
        """Size of the bucket in bytes."""
        return self.info.state.bytes

    @property
    def history(self) -> int:
        """Number of revisions that are kept per key."""
        return self.info.config.max_msgs_per_subject or 1

    @property
    def ttl(self) -> timedelta | None:
        """Time after which a value is removed; ``None``: never."""
        return self.info.config.max_age or None

    @property
    def limit_marker_ttl(self) -> timedelta | None:
        """Time for which a marker shows that a value has expired; ``None``: no markers."""
        return self.info.config.subject_delete_marker_ttl or None

    @property
    def is_compressed(self) -> bool:
        """Whether the storage is compressed."""
        return is_compressed(self.info.config)

    @property
    def config(self) -> KeyValueConfig:
        """The configuration; change it with `dataclasses.replace`, and pass it to an update."""
        stream = self.info.config
        return KeyValueConfig(
            **shared_fields(stream),
            bucket=self.bucket if is_bucket_name(self.bucket) else "_",
            max_value_size=stream.max_msg_size,
            history=self.history if 1 <= self.history <= MAX_HISTORY else None,
            limit_marker_ttl=self.limit_marker_ttl,
            republish=stream.republish,
            mirror=stream.mirror,
            sources=stream.sources or None,
        )
