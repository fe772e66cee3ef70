"""Records and rules of object stores (ADR-20)."""

# A bucket is a stream with two kinds of subjects. The chunks of an object are messages on one subject,
# which ends with a random id (the nuid). The info of an object is one message, on a subject that ends with
# the encoded name. It contains the nuid, and the number, size and digest of the chunks.

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

from .. import errors
from ..codec import UNSET, Duration, Record, decode, dumps, encode, loads
from ..durations import time_to_text
from ..exact import exact
from ..records import record
from ..subjects import (
    MAX_REQUEST_SUBJECT,
    OBJECT_PREFIX,
    OBJECTS_PREFIX,
    check_bucket,
    chunk_subject,
    fits_request,
    is_bucket_name,
    subjects_overlap,
)
from .enums import DiscardPolicy, StorageType
from .key_value import BucketConfig, changed_fields, is_compressed, shared_fields
from .stream import StreamConfig, StreamInfo

if TYPE_CHECKING:
    import hashlib

#: Prefix of the names of the streams that are object stores.
#: Matches a subject of each object store, to list them.
BUCKETS_SUBJECT: Final = chunk_subject("*", ">")
#: Size of a chunk in bytes, unless the meta has another.
DEFAULT_CHUNK_SIZE: Final = 128 * 1024

#: An id becomes the last token of a subject; a wildcard in it would purge the chunks of other objects.
_NUID: Final = r"[^\s.*>\x00-\x1f\x7f]+"
_DIGEST_ALGORITHM: Final = "SHA-256"


@record
class ObjectLink(Record):
    """The target of a link."""

    bucket: str
    """The bucket of the object."""

    name: str | None = None
    """The name of the object; ``None``: the link is to the whole bucket."""


@record
class ObjectMetaOptions(Record):
    """Options of an object."""

    link: ObjectLink | None = None
    """The target, if this is a link."""

    max_chunk_size: int | None = None
    """The size of a chunk in bytes; default 131,072."""

    def _check(self) -> None:
        self._check_range(1, 2**31 - 1, "max_chunk_size")


@record
class ObjectMeta(Record):
    """
    What describes an object besides its data.

    Raises:
        InvalidNameError: the name is empty or too long.
        InvalidOptionError: a value is out of range or has the wrong type.

    """

    name: str
    """The name, which may contain any characters."""

    description: str | None = None
    """Description."""

    headers: Mapping[str, Sequence[str]] | None = None
    """Headers: names with one or more values each."""

    metadata: Mapping[str, str] | None = None
    """Application-defined key-value pairs."""

    options: ObjectMetaOptions | None = None
    """The chunk size; the target of a link."""

    def _check(self) -> None:
        info_subject("_", self.name)

    @property
    def link(self) -> ObjectLink | None:
        """The target, if this is a link."""
        return None if self.options is None else self.options.link


@record
class ObjectInfo(ObjectMeta):
    """What a bucket contains about an object."""

    bucket: str
    """The bucket."""

    nuid: str
    """The id of the chunks; each put creates another."""

    size: int = 0
    """The size in bytes."""

    chunks: int = 0
    """The number of chunks."""

    digest: str | None = None
    """The SHA-256 of the data, such as ``SHA-256=47DEQpj8…``."""

    deleted: bool = False
    """Whether the object was deleted."""

    mtime: datetime | None = None
    """
    When this info was stored.

    It is the time of the message in the stream; in the info that a change returns, the time of the client.
    """

    @property
    def is_link(self) -> bool:
        """Whether the object is a link to another one, or to a bucket."""
        return self.link is not None


@record
class ObjectStoreConfig(BucketConfig):
    """
    The configuration of an object store; in an update, fields that are not set keep their value.

    Raises:
        InvalidNameError: the bucket name has a character other than letters, digits, ``_`` and ``-``.
        InvalidOptionError: a value is out of range or has the wrong type.

    """

    def _check(self) -> None:
        check_bucket(self.bucket)
        stream_config(self)


@record
class ObjectStoreStatus(Record):
    """The config and state of an object store."""

    bucket: str
    """The name of the bucket."""

    size: int
    """Size in bytes, with infos and deleted objects."""

    sealed: bool
    """Whether it can no longer be changed."""

    is_compressed: bool
    """Whether the server compresses its files."""

    replicas: int
    """Number of replicas."""

    storage: StorageType | str
    """Where objects are stored."""

    description: str | None = None
    """Description."""

    ttl: Duration = UNSET
    """Maximum age of objects; ``None``: no limit."""

    max_bytes: int | None = None
    """Maximum size of the bucket in bytes; ``None``: no limit."""

    metadata: Mapping[str, str] | None = None
    """Key-value pairs, also those of the server."""

    stream_info: StreamInfo
    """The info of the stream."""

    @property
    def config(self) -> ObjectStoreConfig:
        """The configuration; change it with `dataclasses.replace`, and pass it to an update."""
        bucket = self.bucket if is_bucket_name(self.bucket) else "_"
        return ObjectStoreConfig(**shared_fields(self.stream_info.config), bucket=bucket)


# --- names and subjects -------------------------------------------------------------------------


def stream_name(bucket: str) -> str:
    """Return the name of the stream of a bucket."""
    return OBJECT_PREFIX + bucket


def is_object_store(config: StreamConfig) -> bool:
    """Return whether a stream is an object store, also one that mirrors another."""
    bucket = config.name.removeprefix(OBJECT_PREFIX)
    return not config.subjects or any(
        subjects_overlap(subject, infos_subject(bucket)) for subject in config.subjects
    )


def infos_subject(bucket: str) -> str:
    """Return the subject of the infos of all objects."""
    return f"{OBJECTS_PREFIX}{bucket}.M.>"


def info_subject(bucket: str, name: str) -> str:
    """Return the subject of the info of an object."""
    name = exact(name)
    if type(name) is not str:
        raise errors.InvalidNameError(
            "object", repr(name), f"must be a str, not {type(name).__name__}"
        )
    if not name:
        raise errors.InvalidNameError("object", name, "must not be empty")
    try:
        encoded = base64.urlsafe_b64encode(name.encode()).decode()
    except UnicodeEncodeError:
        raise errors.InvalidNameError("object", name, "must not contain surrogates") from None
    subject = f"{OBJECTS_PREFIX}{bucket}.M.{encoded}"
    if not fits_request(subject):
        rule = f"must not exceed {MAX_REQUEST_SUBJECT} bytes in Base64, with the bucket"
        raise errors.InvalidNameError("object", name, rule)
    return subject


# --- infos --------------------------------------------------------------------------------------


def decode_info(data: bytes, time: datetime, name: str | None = None) -> ObjectInfo:
    """Return the info in a message."""
    found = loads(data)
    if isinstance(found, dict):
        found["mtime"] = time_to_text(time)
        if name is not None:
            found["name"] = name
        headers = found.get("headers")
        if isinstance(headers, dict):  # nats-py stores a single value without a list
            found["headers"] = {
                key: [value] if isinstance(value, str) else value for key, value in headers.items()
            }
    info = decode(ObjectInfo, found)
    if not re.fullmatch(_NUID, info.nuid):
        raise errors.InvalidResponseError(
            f"ObjectInfo.nuid: {info.nuid!r:.60} is not valid in a subject"
        )
    return info


def is_object(payload: bytes) -> bool:
    """Return whether a message is the info of an object that was not deleted."""
    try:
        info = loads(payload)
    except errors.InvalidResponseError:
        return False
    return isinstance(info, dict) and not info.get("deleted")


def name_in(subject: bytes) -> str:
    """Return the name of an object, from the subject of its info."""
    encoded = subject.rpartition(b".")[2]
    try:
        return base64.b64decode(encoded, b"-_", validate=True).decode()
    except ValueError:
        return encoded.decode("utf-8", "replace")  # another program has stored it


def deleted_info(bucket: str, subject: bytes) -> bytes:
    """Return the payload of the info of a deleted object, for the subject of its info."""
    name = name_in(subject)
    return dumps(
        {"name": name, "bucket": bucket, "nuid": "0" * 22, "size": 0, "chunks": 0, "deleted": True}
    )


def encode_info(info: ObjectInfo) -> bytes:
    """Return the payload of the message with an info."""
    data: dict[str, Any] = encode(info)
    data.pop("mtime", None)
    if not info.deleted:
        data.pop("deleted")
    return dumps(data)


def new_sha256() -> hashlib._Hash:
    """Return the hash for the digest of an object."""
    import hashlib  # noqa: PLC0415 - most programs have no object store

    return hashlib.sha256()


def digest_text(digest: bytes) -> str:
    """Return a SHA-256 as text, with padding."""
    return f"{_DIGEST_ALGORITHM}={base64.urlsafe_b64encode(digest).decode()}"


def parse_digest(text: str | None) -> bytes | None:
    """Return the SHA-256 of a text, with or without padding; ``None`` for another algorithm."""
    algorithm, _, encoded = (text or "").partition("=")
    if algorithm.upper() != _DIGEST_ALGORITHM:
        return None
    try:
        digest = base64.urlsafe_b64decode(encoded.rstrip("=") + "=")
    except (binascii.Error, ValueError):
        return None
    return digest if len(digest) == 32 else None


def description_of(meta: ObjectMeta, now: datetime) -> dict[str, Any]:
    """Return what an info takes over from a meta that is stored now."""
    names = "name", "description", "headers", "metadata"
    fields: dict[str, Any] = {name: getattr(meta, name) for name in names}
    return {**fields, "mtime": now}


# --- configs ------------------------------------------------------------------------------------


def stream_config(config: ObjectStoreConfig) -> StreamConfig:
    """Return the config of the stream of a new bucket."""
    bucket = config.bucket
    return StreamConfig(
        name=stream_name(bucket),
        subjects=[chunk_subject(bucket, ">"), infos_subject(bucket)],
        discard=DiscardPolicy.NEW,
        allow_rollup_hdrs=True,
        allow_direct=True,
        extra=config.extra,
        **config.stream_fields(),
    )


def update_config(current: StreamConfig, config: ObjectStoreConfig) -> StreamConfig:
    """Return the config of a bucket's stream with the set fields of a bucket config."""
    fields = changed_fields(config, current)
    return replace(current, **fields, extra={**current.extra, **config.extra})


def status_of(info: StreamInfo) -> ObjectStoreStatus:
    """Return the status of a bucket."""
    config = info.config
    name = config.name
    if not name.startswith(OBJECT_PREFIX):
        raise errors.InvalidOptionError("stream", name, f"must begin with {OBJECT_PREFIX}")
    limit = config.max_bytes
    return ObjectStoreStatus(
        bucket=name.removeprefix(OBJECT_PREFIX),
        size=info.state.bytes,
        sealed=bool(config.sealed),
        is_compressed=is_compressed(config),
        replicas=config.num_replicas or 1,
        storage=config.storage or StorageType.FILE,
        description=config.description,
        ttl=config.max_age or None,
        max_bytes=limit if limit is not None and limit > 0 else None,
        metadata=config.metadata,
        stream_info=info,
    )
