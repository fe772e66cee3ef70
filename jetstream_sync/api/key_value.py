"""Key-value buckets (ADR-8, ADR-48, ADR-57), without I/O."""

# A bucket is a stream KV_<bucket> that keeps the last messages of each subject
# $KV.<bucket>.<key>. This module has the rules for names, keys and patterns, the config of a bucket
# as the config of its stream, and the entries.

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from itertools import combinations, takewhile
from typing import Any, Final, Protocol

from .. import errors
from ..codec import UNSET, Duration, Record
from ..durations import duration_from_text, time_from_ns, time_to_ns
from ..headers import Headers, parse_headers
from ..records import record, setting
from ..subjects import (
    MAX_REQUEST_SUBJECT,
    check_publish_subject,
    check_subject,
    fits_request,
    subject_matches,
    subjects_overlap,
)
from .account import Placement
from .enums import DiscardPolicy, KeyValueOperation, StorageType, StoreCompression
from .reply import metadata_of
from .stream import (
    RePublish,
    StreamConfig,
    StreamInfo,
    StreamSource,
    SubjectTransform,
    duplicate_window,
)

_ROOT: Final = "_root_"


class KeyCodec(Protocol):
    """
    Encodes keys into valid keys of a bucket.

    A codec with a method ``encode_filter(pattern)``, which keeps wildcards, can also be used to watch and
    list keys.
    """

    def encode(self, key: str) -> str:
        """Return the stored form of a key."""
        ...

    def decode(self, key: str) -> str:
        """Return the key of a stored form; raise a ValueError if there is none."""
        ...


class ValueCodec(Protocol):
    """Encodes values, for example to compress or encrypt them."""

    def encode(self, value: bytes) -> bytes:
        """Return the stored form of a value."""
        ...

    def decode(self, value: bytes) -> bytes:
        """Return the value of a stored form; raise a ValueError if there is none."""
        ...


class Base64Keys:
    """Stores each token of a key as URL-safe Base64 without padding, so that it can have any text."""

    def encode(self, key: str) -> str:
        """Return the stored form of a key."""
        return ".".join(_encoded_token(token) for token in key.split("."))

    def encode_filter(self, pattern: str) -> str:
        """Return the stored form of a pattern; wildcards are kept."""
        parts = pattern.split(".")
        return ".".join(part if part in {"*", ">"} else _encoded_token(part) for part in parts)

    def decode(self, key: str) -> str:
        """
        Return the key of a stored form.

        Raises:
            InvalidNameError: it is not valid Base64, or not a text.

        """
        try:
            return ".".join(
                base64.b64decode(token + "=" * (-len(token) % 4), b"-_", validate=True).decode()
                for token in key.split(".")
            )
        except (binascii.Error, UnicodeDecodeError) as error:
            raise errors.InvalidNameError(
                "key", key, f"not the Base64 of a text: {error}"
            ) from None


def _encoded_token(token: str) -> str:
    return base64.urlsafe_b64encode(token.encode()).rstrip(b"=").decode()


#: Characters of a path that have another meaning in its stored form, and how they are stored.
_ESCAPES: Final = {".": "=2E", "=": "=3D"}
#: The stored form of a relative path that begins with the token of the root.
_ESCAPED_ROOT: Final = "=5Froot_"


class PathKeys:
    """
    Stores paths such as ``/a/b`` as ``_root_.a.b``, and ``a/b`` as ``a.b``; a final slash is dropped.

    A dot in a path is stored as ``=2E``, and ``=`` as ``=3D``, so no two paths have one stored form.
    """

    def encode(self, key: str) -> str:
        """Return the stored form of a path."""
        tokens = "".join(_ESCAPES.get(char, char) for char in key.removesuffix("/")).split("/")
        if key.startswith("/"):
            tokens[0] = _ROOT
        elif tokens[0] == _ROOT:
            tokens[0] = _ESCAPED_ROOT
        return ".".join(tokens)

    encode_filter = encode

    def decode(self, key: str) -> str:
        """
        Return the path of a stored form.

        Raises:
            InvalidNameError: it is not the stored form of a path.

        """
        first, *rest = key.split(".")
        first = "" if first == _ROOT else _ROOT if first == _ESCAPED_ROOT else first
        path = "/".join((first, *rest)).replace("=2E", ".").replace("=3D", "=") or "/"
        if self.encode(path) != key:
            raise errors.InvalidNameError("key", key, "not the stored form of a path")
        return path


class _Chain:
    """Encodes keys or values with each of several codecs in turn."""

    def __init__(self, codecs: Sequence[Any]) -> None:
        self._codecs = codecs

    def encode(self, item: Any) -> Any:
        for codec in self._codecs:
            item = codec.encode(item)
        return item

    def encode_filter(self, pattern: str) -> str:
        for codec in self._codecs:
            pattern = encode_pattern(codec, pattern)
        return pattern

    def decode(self, item: Any) -> Any:
        for codec in reversed(self._codecs):
            item = codec.decode(item)
        return item


def encode_pattern(codec: KeyCodec, pattern: str) -> str:
    """Return the stored form of a pattern."""
    encode = getattr(codec, "encode_filter", None)
    if encode is None and ("*" in pattern or ">" in pattern):
        reason = f"{type(codec).__name__} cannot encode patterns"
        raise errors.InvalidOptionError("pattern", pattern, reason)
    return str((encode or codec.encode)(pattern))


def key_codec(given: KeyCodec | Sequence[KeyCodec] | None) -> KeyCodec | None:
    """Return one codec for keys; several are applied in order."""
    return _Chain(given) if isinstance(given, Sequence) else given


def value_codec(given: ValueCodec | Sequence[ValueCodec] | None) -> ValueCodec | None:
    """Return one codec for values; several are applied in order."""
    return _Chain(given) if isinstance(given, Sequence) else given


STREAM_PREFIX: Final = "KV_"
KEY_PREFIX: Final = "$KV."
#: The maximum of `KeyValueConfig.history` (ADR-8).
MAX_HISTORY: Final = 64
#: The header with the operation of a message that deletes or purges a key.
OPERATION: Final = "KV-Operation"
#: The header that makes a message replace all earlier ones of its subject, with the value ``sub``.
ROLLUP: Final = "Nats-Rollup"
_MARKER_REASON: Final = "Nats-Marker-Reason"
_TTL: Final = "Nats-TTL"
#: Keys that start with this are reserved (ADR-8).
_RESERVED: Final = "_kv"
#: Whether a header block may have one of the headers above; cheaper than parsing it.
_MAY_BE_MARKER: Final = re.compile(b"KV-Operation|Nats-Marker-Reason", re.IGNORECASE).search
_INT32_MAX: Final = 2**31 - 1
_INT64_MAX: Final = 2**63 - 1

_BUCKET = re.compile(r"[a-zA-Z0-9_-]+")
_KEY = re.compile(r"[-/_=a-zA-Z0-9]+(?:\.[-/_=a-zA-Z0-9]+)*")
_PATTERN = re.compile(r"(?:>|(?:\*|[-/_=a-zA-Z0-9]+)(?:\.(?:\*|[-/_=a-zA-Z0-9]+))*(?:\.>)?)")
_KEY_RULE: Final = "must consist of letters, digits and '-', '/', '_', '=', in tokens that are separated by single dots"


def check_bucket(bucket: str) -> str:
    """Validate the name of a bucket, and return it."""
    if not isinstance(bucket, str) or not _BUCKET.fullmatch(bucket):
        shown = bucket if isinstance(bucket, str) else repr(bucket)
        raise errors.InvalidNameError(
            "bucket", shown, "must consist of letters, digits, '_' and '-'"
        )
    return bucket


def check_key(key: str) -> str:
    """Validate a key, and return it."""
    if not isinstance(key, str) or not _KEY.fullmatch(key):
        raise errors.InvalidNameError("key", key if isinstance(key, str) else repr(key), _KEY_RULE)
    return key


def check_pattern(pattern: str) -> str:
    """Validate a key that may have the wildcards ``*`` for a token and ``>`` for the rest, and return it."""
    if not isinstance(pattern, str) or not _PATTERN.fullmatch(pattern):
        shown = pattern if isinstance(pattern, str) else repr(pattern)
        raise errors.InvalidNameError("key", shown, f"{_KEY_RULE}; wildcards are whole tokens")
    return pattern


def check_writable(key: str) -> str:
    """Check that a key is not reserved, and return it."""
    if key.startswith(_RESERVED):
        raise errors.InvalidNameError(
            "key", key, f"keys that start with {_RESERVED!r} are reserved"
        )
    return key


def merge_patterns(patterns: Iterable[str]) -> tuple[list[str], Callable[[str], bool] | None]:
    """Return patterns that do not overlap, which the server requires of the filters of a consumer."""
    given = list(dict.fromkeys(patterns)) or [">"]
    if len(given) == 1:
        return given, None
    kept = [
        pattern
        for pattern in given
        if not any(subject_matches(item, pattern) for item in given if item != pattern)
    ]
    if not any(subjects_overlap(one, other) for one, other in combinations(kept, 2)):
        return kept, None
    # One pattern with the tokens that all of them begin with, other than their last one.
    columns = zip(*(pattern.split(".")[:-1] for pattern in kept), strict=False)
    common = [tokens[0] for tokens in takewhile(lambda tokens: len(set(tokens)) == 1, columns)]
    return [".".join([*common, ">"])], lambda key: any(subject_matches(item, key) for item in kept)


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

    storage: StorageType | str | None = None
    """Where the data is stored; default ``file``. Not updatable."""

    replicas: int | None = setting(default=None, low=1, high=5)
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


def shared_fields(stream: StreamConfig) -> dict[str, Any]:
    """Return the fields of a `BucketConfig` for the config of its stream, other than the name."""
    return {
        "description": stream.description,
        "ttl": stream.max_age or None,
        "max_bytes": stream.max_bytes,
        "storage": stream.storage,
        "replicas": stream.num_replicas,
        "placement": stream.placement,
        "compression": (stream.compression or "none") != StoreCompression.NONE,
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

    history: int | None = setting(default=None, low=1, high=MAX_HISTORY)
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
        for source in self.sources or ():
            self._refuse_if(
                bool(source.filter_subject),
                "sources",
                "use subject_transforms instead of filter_subject",
            )


def _prefixed(name: str) -> str:
    return name if name.startswith(STREAM_PREFIX) else STREAM_PREFIX + name


def _source(source: StreamSource, bucket: str) -> StreamSource:
    if source.subject_transforms:
        return source  # ADR-57: not changed at all
    name = _prefixed(source.name)
    origin = name.removeprefix(STREAM_PREFIX)
    if source.external is not None and origin == bucket:
        return replace(source, name=name)
    transform = SubjectTransform(src=f"{KEY_PREFIX}{origin}.>", dest=f"{KEY_PREFIX}{bucket}.>")
    return replace(source, name=name, subject_transforms=[transform])


def _given_fields(config: KeyValueConfig) -> dict[str, Any]:
    """Return the fields of a stream config for the set fields of a bucket config."""
    fields = config.stream_fields()
    if "max_age" in fields:
        fields["duplicate_window"] = duplicate_window(fields["max_age"])
    own: dict[str, Any] = {
        "max_msg_size": config.max_value_size,
        "max_msgs_per_subject": config.history,
        "republish": config.republish,
    }
    if config.limit_marker_ttl is not None:
        own["subject_delete_marker_ttl"] = config.limit_marker_ttl
        own["allow_msg_ttl"] = True if config.limit_marker_ttl else None
    if config.sources is not None:
        own["sources"] = [_source(source, config.bucket) for source in config.sources]
    if config.extra:
        own["extra"] = config.extra
    return fields | {name: value for name, value in own.items() if value is not None}


def new_stream_config(config: KeyValueConfig) -> StreamConfig:
    """Return the config of the stream of a new bucket."""
    fields: dict[str, Any] = {
        "name": STREAM_PREFIX + config.bucket,
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
        fields["subjects"] = [f"{KEY_PREFIX}{config.bucket}.>"]
        fields["duplicate_window"] = duplicate_window(timedelta(0))
    else:
        fields["mirror"] = replace(config.mirror, name=_prefixed(config.mirror.name))
        fields["mirror_direct"] = True
    return StreamConfig(**(fields | _given_fields(config)))


def updated_stream_config(current: StreamConfig, config: KeyValueConfig) -> StreamConfig:
    """Return the config of a bucket's stream with the set fields of a bucket config."""
    if config.mirror is not None and current.mirror is None:
        raise errors.InvalidOptionError(
            "mirror", config.mirror, "the bucket exists and is not a mirror"
        )
    fields = _given_fields(config)
    return replace(current, **fields | {"extra": {**current.extra, **config.extra}})


def bucket_of(stream: str) -> str:
    """Return the name of the bucket of a stream."""
    return stream.removeprefix(STREAM_PREFIX)


def is_bucket(config: StreamConfig) -> bool:
    """Return whether a stream is a bucket, also one that mirrors another."""
    if not config.name.startswith(STREAM_PREFIX):
        return False
    if config.mirror is not None:
        return True
    return any(subject.startswith(KEY_PREFIX) for subject in config.subjects or ())


@dataclass(frozen=True, slots=True)
class KeyValueStatus:
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
        return (self.info.config.compression or "none") != StoreCompression.NONE

    @property
    def config(self) -> KeyValueConfig:
        """The configuration; change it with `dataclasses.replace`, and pass it to an update."""
        stream = self.info.config
        made = KeyValueConfig(
            **shared_fields(stream),
            bucket=self.bucket if _BUCKET.fullmatch(self.bucket) else "_",
            max_value_size=stream.max_msg_size,
            history=min(max(1, self.history), MAX_HISTORY),
            limit_marker_ttl=self.limit_marker_ttl,
            republish=stream.republish,
            mirror=stream.mirror,
        )
        return replace(made, sources=stream.sources) if stream.sources else made


# --- subjects and entries -----------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class BucketSubjects:
    """The subjects of a bucket and the codecs of its keys and values."""

    bucket: str
    """The name of the bucket."""
    read: str
    """The prefix of stored subjects, with its final dot."""
    write: str
    """The prefix of the subjects to publish to, with its final dot."""
    loose: bool = False
    """Whether keys only have to be valid subjects."""
    key_codec: KeyCodec | None = None
    """Encodes keys; ``None``: they are stored as they are."""
    value_codec: ValueCodec | None = None
    """Encodes values; ``None``: they are stored as they are."""

    @classmethod
    def of(cls, config: StreamConfig, prefix: str | None, *, loose: bool = False) -> BucketSubjects:
        """Return the subjects of a bucket."""
        bucket = bucket_of(config.name)
        read = f"{KEY_PREFIX}{bucket}."
        write = read
        mirror = config.mirror
        if mirror is not None:
            # The copies have the subjects of the origin (ADR-57).
            write = read = f"{KEY_PREFIX}{bucket_of(mirror.name)}."
            if mirror.subject_transforms:
                read = mirror.subject_transforms[0].dest.removesuffix(">")
            if mirror.external is not None:
                return cls(bucket, read, f"{mirror.external.api}.{write}", loose)
        return cls(bucket, read, write if prefix is None else f"{prefix}.{write}", loose)

    def encoded(self, key: str) -> str:
        """Return the stored form of a key."""
        if self.key_codec is not None:
            key = self.key_codec.encode(key)
        return check_publish_subject(key) if self.loose else check_key(key)

    def writable(self, key: str) -> str:
        """Return the stored form of a key whose value is written."""
        stored = check_writable(self.encoded(key))
        if not fits_request(self.write + stored):
            raise errors.InvalidNameError(
                "key", key, f"with {self.write!r} it must not exceed {MAX_REQUEST_SUBJECT} bytes"
            )
        return stored

    def pattern(self, pattern: str) -> str:
        """Return the stored form of a pattern."""
        if self.key_codec is not None and pattern != ">":
            pattern = encode_pattern(self.key_codec, pattern)
        return check_subject(pattern) if self.loose else check_pattern(pattern)

    def decoded(self, subject: str) -> str:
        """Return the key of a stored subject."""
        key = subject[len(self.read) :]
        return key if self.key_codec is None else self.key_codec.decode(key)


class KeyValueEntry:
    """
    A revision of a key.

    Everything is decoded on access. Entries are compared by bucket, key, revision, operation and value.
    Any thread may use one.
    """

    __slots__ = ("_created_ns", "_header", "_raw", "_reply", "_revision", "_subject", "_subjects")

    def __init__(
        self,
        subjects: BucketSubjects,
        delivery: tuple[bytes, bytes, bytes, bytes],
        revision: int = 0,
        created: datetime | None = None,
    ) -> None:
        """Create the entry of a message."""
        # `revision`: the sequence; 0: it is in the reply subject, as is the time.
        self._header: bytes | Headers | None
        self._subject, self._reply, self._header, self._raw = delivery
        self._subjects = subjects
        self._revision = revision
        self._created_ns = 0 if created is None else time_to_ns(created)

    @classmethod
    def of_stored(
        cls,
        subjects: BucketSubjects,
        subject: str,
        revision: int,
        headers: Headers | None,
        value: bytes,
        created: datetime,
    ) -> KeyValueEntry:
        """Create the entry of a message that was read without a consumer."""
        encoded = subject.encode("utf-8", "surrogateescape")
        entry = cls(subjects, (encoded, b"", b"", value), revision, created)
        entry._header = headers
        return entry

    @property
    def bucket(self) -> str:
        """The name of the bucket."""
        return self._subjects.bucket

    @property
    def key(self) -> str:
        """
        The key.

        Raises:
            ValueError: the codec cannot decode it.

        """
        return self._subjects.decoded(self.subject)

    @property
    def subject(self) -> str:
        """The subject under which it is stored."""
        return self._subject.decode("utf-8", "surrogateescape")

    @property
    def value(self) -> bytes:
        """
        The value; empty for a deleted key.

        Raises:
            ValueError: the codec cannot decode it.

        """
        codec = self._subjects.value_codec
        if codec is None or not self.has_value:
            return self._raw
        return codec.decode(self._raw)

    @property
    def revision(self) -> int:
        """The revision: the sequence in the bucket's stream, which grows with each change of any key."""
        return self._revision or metadata_of(self._reply).stream_seq

    @property
    def delta(self) -> int:
        """Number of entries that a watch still has after this one; 0 for an entry of a get."""
        return metadata_of(self._reply).num_pending if self._reply else 0

    @property
    def created_ns(self) -> int:
        """When it was stored, in nanoseconds since 1970 (UTC)."""
        return self._created_ns or metadata_of(self._reply).timestamp_ns

    @property
    def created(self) -> datetime:
        """When it was stored, in UTC; a `datetime` shows microseconds, `created_ns` is exact."""
        return time_from_ns(self.created_ns)

    @property
    def headers(self) -> Headers | None:
        """The headers; ``None``: none."""
        block = self._header
        if isinstance(block, bytes):
            self._header = block = parse_headers(block) if block else None
        return block

    @property
    def operation(self) -> KeyValueOperation:
        """What was done: ``PUT``, ``DELETE`` or ``PURGE``; an expired value is a ``PURGE``."""
        headers = self.headers
        if headers is None:
            return KeyValueOperation.PUT
        operation = headers.get(OPERATION)
        if operation is not None:
            purged = operation == KeyValueOperation.PURGE
            return KeyValueOperation.PURGE if purged else KeyValueOperation.DELETE
        reason = headers.get(_MARKER_REASON)
        if reason is None:
            return KeyValueOperation.PUT
        return KeyValueOperation.DELETE if reason == "Remove" else KeyValueOperation.PURGE

    @property
    def has_value(self) -> bool:
        """Whether the operation is ``PUT``."""
        block = self._header
        if not block or (isinstance(block, bytes) and not _MAY_BE_MARKER(block)):
            return True
        return self.operation is KeyValueOperation.PUT

    @property
    def ttl(self) -> timedelta | None:
        """Time after which it is removed, counted from `created`; ``None``: it has no TTL of its own."""
        headers = self.headers
        text = None if headers is None else headers.get(_TTL)
        if text is None:
            return None
        try:
            return duration_from_text(text) or None
        except (ValueError, OverflowError):
            return None  # "never"; servers before 2.11 store any text

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, KeyValueEntry):
            return NotImplemented
        return self._identity() == other._identity()

    def __hash__(self) -> int:
        return hash((self.bucket, self._subject, self.revision))

    def _identity(self) -> tuple[object, ...]:
        return self.bucket, self._subject, self.revision, self.operation, self._raw

    def __repr__(self) -> str:
        shown = self._subject.decode("utf-8", "replace")[len(self._subjects.read) :]
        return f"<{type(self).__name__} {self.operation} {shown!r} revision {self.revision}>"
