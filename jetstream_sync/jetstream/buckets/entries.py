"""The subjects of a bucket, and the entries of its keys."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Final

from ... import errors
from ...api.enums import KeyValueOperation
from ...api.key_value import OPERATION, bucket_of
from ...api.stream import StreamConfig, StreamSource
from ...durations import duration_from_text, time_from_ns, time_to_ns
from ...headers import Headers, parse_headers
from ...protocol.parser import SUBJECT, RawMessage
from ...records import Frozen, frozen
from ...subjects import (
    KEYS_PREFIX,
    MAX_REQUEST_SUBJECT,
    check_key,
    check_pattern,
    check_publish_subject,
    check_subject,
    check_writable,
    fits_request,
    metadata_of,
)
from ..api_requests import APIRequests, stream_info
from ..direct_get import StoredMsg, StoredReply
from .codecs import CodecChain

if TYPE_CHECKING:
    from ..stream import Stream

_MARKER_REASON: Final = "Nats-Marker-Reason"
#: The reasons of the markers of servers up to 2.15.
_REASONS: Final = frozenset({"MaxAge", "Purge", "Remove"})
#: The size of a payload that was left out.
_SIZE: Final = "Nats-Msg-Size"
_TTL: Final = "Nats-TTL"
#: The operations that delete a key.
_DELETIONS: Final = {
    item.value: item for item in (KeyValueOperation.DELETE, KeyValueOperation.PURGE)
}
#: Whether a header block may have one of the headers above; cheaper than parsing it.
MAY_BE_MARKER: Final = re.compile(b"KV-Operation|Nats-Marker-Reason", re.IGNORECASE).search


def listed_keys(keys: str | Sequence[str]) -> list[str]:
    """Return keys or patterns as a list; a value of another type is refused as a key."""
    if isinstance(keys, str) or not isinstance(keys, Iterable):
        return [keys]
    return list(keys)


@frozen()
class BucketSubjects(Frozen):
    """The subjects of a bucket and the codecs of its keys and values."""

    bucket: str
    """The name of the bucket."""
    read: str
    """The prefix of stored subjects, with its final dot."""
    write: str
    """The prefix of the subjects to publish to, with its final dot."""
    source: StreamSource | None = None
    """For a mirror, the stream that is written to; its messages have the sequences of the mirror."""
    loose: bool = False
    """Whether keys only have to be valid subjects."""
    key_codec: CodecChain | None = None
    """Encodes keys; ``None``: they are stored as they are."""
    value_codec: CodecChain | None = None
    """Encodes values; ``None``: they are stored as they are."""

    @classmethod
    def of(
        cls,
        config: StreamConfig,
        prefix: str | None,
        *,
        loose: bool = False,
        source: StreamSource | None = None,
    ) -> BucketSubjects:
        """Return the subjects of a bucket; ``source``: see `source_of`, ``None``: what it mirrors."""
        bucket = bucket_of(config.name)
        read = f"{KEYS_PREFIX}{bucket}."
        write = read
        source = source or config.mirror
        if config.mirror is not None and source is not None:
            # The copies have the subjects of the origin (ADR-57).
            write = read = f"{KEYS_PREFIX}{bucket_of(source.name)}."
            if config.mirror.subject_transforms:
                read = config.mirror.subject_transforms[0].dest.removesuffix(">")
            if source.external is not None:
                return cls(bucket, read, f"{source.external.api}.{write}", source, loose)
        return cls(bucket, read, write if prefix is None else f"{prefix}.{write}", source, loose)

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
            pattern = self.key_codec.encode_filter(pattern)
        return check_subject(pattern) if self.loose else check_pattern(pattern)

    def patterns(self, keys: str | Sequence[str]) -> list[str]:
        """Return the stored forms of patterns."""
        given = listed_keys(keys)
        if not given:
            rule = "must have a key or a pattern; '>' is for all keys"
            raise errors.InvalidOptionError("keys", keys, rule)
        return list(map(self.pattern, given))

    def decoded(self, subject: str) -> str:
        """Return the key of a stored subject."""
        key = subject[len(self.read) :]
        return key if self.key_codec is None else self.key_codec.decode(key)


def source_of(api: APIRequests, stream: Stream) -> StreamSource | None:
    """Return the stream that the keys of a mirror come from, which is written to; ``None``: it is no mirror."""
    source = stream.cached_info.config.mirror
    passed = {stream.name}
    # The origin may be a mirror itself: then both have the keys of its origin, if none renames them.
    while source is not None and not (source.external or source.subject_transforms):
        passed.add(source.name)
        try:
            further = stream_info(api, source.name).config.mirror
        except (errors.APIError, errors.PermissionsError, errors.TimeoutError):
            if _has_other_keys(stream, source):
                raise
            break
        if further is None or further.subject_transforms or further.name in passed:
            break
        source = further
    return source


def _has_other_keys(stream: Stream, source: StreamSource) -> bool:
    """Return whether the last message of a mirror is not of the bucket that it mirrors."""
    try:
        last = stream.get_msg(last_by_subject=f"{KEYS_PREFIX}>")
    except (errors.NotFoundError, errors.PermissionsError):
        return False
    return not last.subject.startswith(f"{KEYS_PREFIX}{bucket_of(source.name)}.")


def operation_of(headers: Headers | None, data: bytes) -> KeyValueOperation:
    """Return what was done by a message of a bucket, see `KeyValueEntry.operation`."""
    if headers is None:
        return KeyValueOperation.PUT
    operation = headers.get(OPERATION)
    if operation is not None:
        return _DELETIONS.get(operation, KeyValueOperation.PUT)
    reason = headers.get(_MARKER_REASON)
    # The marker of a server has no payload.
    has_content = bool(data) or headers.get(_SIZE, "0") != "0"
    if reason is None or (reason not in _REASONS and has_content):
        return KeyValueOperation.PUT
    # Whatever its reason is, a server has removed messages and written this marker.
    return KeyValueOperation.DELETE if reason == "Remove" else KeyValueOperation.PURGE


class KeyValueEntry:
    """
    A revision of a key.

    Everything is decoded on access. Entries are compared by bucket, key, revision, operation and value.
    Any thread may use one.
    """

    __slots__ = ("_header", "_raw", "_reply", "_stored", "_subject", "_subjects")

    def __init__(
        self,
        subjects: BucketSubjects,
        delivery: tuple[bytes, bytes, bytes | Headers | None, bytes],
        stored: StoredMsg | StoredReply | None = None,
    ) -> None:
        """Create the entry of a message."""
        # `stored`: the message, if it was read without a consumer; otherwise its sequence and time are in
        # the reply subject.
        self._subject, self._reply, self._header, self._raw = delivery
        self._subjects = subjects
        self._stored = stored

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
        value: bytes = codec.decode(self._raw)
        return value

    @property
    def revision(self) -> int:
        """The revision: the sequence in the bucket's stream, which grows with each change of any key."""
        stored = self._stored
        return metadata_of(self._reply).stream_seq if stored is None else stored.seq

    @property
    def delta(self) -> int:
        """Number of entries that a watch still has after this one; 0 for an entry of a get."""
        return metadata_of(self._reply).num_pending if self._reply else 0

    @property
    def created_ns(self) -> int:
        """
        When it was stored, in nanoseconds since 1970 (UTC).

        Raises:
            InvalidResponseError: the server did not send a time.

        """
        stored = self._stored
        return metadata_of(self._reply).timestamp_ns if stored is None else time_to_ns(stored.time)

    @property
    def created(self) -> datetime:
        """When it was stored, in UTC; a `datetime` shows microseconds, `created_ns` is exact."""
        return time_from_ns(self.created_ns)

    @property
    def headers(self) -> Headers | None:
        """The headers."""
        block = self._header
        if isinstance(block, bytes):
            self._header = block = parse_headers(block) if block else None
        return block

    @property
    def operation(self) -> KeyValueOperation:
        """
        What was done: ``PUT``, ``DELETE`` or ``PURGE``; an expired value is a ``PURGE``.

        An operation of another client that is not known here is a ``PUT``, as is a value with a marker's header whose
        reason is not known.
        """
        return operation_of(self.headers, self._raw)

    @property
    def has_value(self) -> bool:
        """Whether the operation is ``PUT``."""
        block = self._header
        if not block or (isinstance(block, bytes) and not MAY_BE_MARKER(block)):
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


def entry_of_message(subjects: BucketSubjects, message: StoredReply | StoredMsg) -> KeyValueEntry:
    """Return the entry of a message that was read without a consumer."""
    if isinstance(message, StoredReply):
        delivery = message.subject, b"", message.header, message.data
        return KeyValueEntry(subjects, delivery, message)
    subject = message.subject.encode("utf-8", "surrogateescape")
    return KeyValueEntry(subjects, (subject, b"", message.headers, message.data), message)


def decoded_entries(entries: Iterable[KeyValueEntry]) -> Iterator[tuple[str, KeyValueEntry]]:
    """Yield entries with their keys, other than those whose key the codec cannot decode."""
    for entry in entries:
        try:
            key = entry.key
        except ValueError:
            continue
        yield key, entry


def entry_maker(
    subjects: BucketSubjects, select: Callable[[str], bool] | None, ignore_deletes: bool
) -> Callable[[RawMessage], KeyValueEntry | None]:
    """Return the function that makes the entries of a watch."""
    if select is None and not ignore_deletes:
        return partial(KeyValueEntry, subjects)
    start = len(subjects.read)

    def make(delivery: RawMessage) -> KeyValueEntry | None:
        if select is not None:
            key = delivery[SUBJECT].decode("utf-8", "surrogateescape")[start:]
            if not select(key):
                return None
        entry = KeyValueEntry(subjects, delivery)
        return entry if entry.has_value or not ignore_deletes else None

    return make
