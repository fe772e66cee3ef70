"""Key-value buckets (ADR-8): read, write, list and watch the keys of a bucket."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from functools import partial
from typing import TYPE_CHECKING, Final, TypedDict, overload

from ... import errors
from ...api.enums import DeliverPolicy, KeyValueOperation
from ...api.key_value import OPERATION, ROLLUP, KeyValueStatus, bucket_of
from ...api.publish import LAST_SEQUENCE
from ...api.stream import MsgGetRequest, StreamSource
from ...durations import time_to_ns
from ...foreign_names import ForeignNames
from ...headers import EXPECTED_LAST_SUBJECT_SEQ
from ...net.clock import BackoffDelay, Deadline, monotonic, seconds
from ...options import check_callback, check_int, check_known
from ...subjects import (
    API_PREFIX,
    KEYS_PREFIX,
    KV_PREFIX,
    Routes,
    check_writable,
    is_pattern,
    merge_patterns,
    selects_itself,
)
from ..api_requests import APIRequests, limited, with_one_deadline
from ..consumer_requests import check_unacknowledged
from ..direct_get import StoredReply, get_stored
from ..ordered_cursor import OrderedOptions
from ..publish import Publisher
from .codecs import KeyCodec, ValueCodec, codec_of
from .entries import (
    BucketSubjects,
    KeyValueEntry,
    decoded_entries,
    entry_maker,
    entry_of_message,
    listed_keys,
    source_of,
)
from .lock import Lock
from .many_keys import MAX_READ_KEYS, READ_ATTEMPTS, last_entries, missing_entries
from .replica import Replica
from .watch import Markers, Watch
from .watch_handle import WatchHandle, watch_with_callbacks

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from ..stream import Stream

#: Rounds of `KeyValue.create` while the marker of a deleted key changes.
_CREATE_ROUNDS: Final = 3
#: Maximum delay of `KeyValue.modify` after a conflict, in seconds: the first time, and ever.
_FIRST_CONFLICT_DELAY_S: Final = 0.001
_MAX_CONFLICT_DELAY_S: Final = 0.1
#: Maximum number of keys that are read with one watch: the cost of filters grows with their square.
_MAX_WATCHED_KEYS: Final = 500


def bucket_not_found(bucket: str) -> errors.BucketNotFoundError:
    """Return the error for a bucket that does not exist."""
    return errors.BucketNotFoundError.found_here(f"bucket {bucket!r} does not exist")


class WatchOptions(TypedDict, total=False):
    """Options of `KeyValue.watch`; all are optional."""

    history: bool
    """Start with all stored revisions instead of the last one of each key."""
    ignore_deletes: bool
    """Leave out deletions and expiries."""
    meta_only: bool
    """Leave out the values."""
    updates_only: bool
    """Start with the next change; the watch is current at once."""
    resume_from_revision: int | None
    """Start with this revision of the bucket; all stored revisions from there on are returned."""
    inactive_threshold: float | timedelta | None
    """The server deletes the consumer of the watch if its client is gone for as long, in seconds; a watch
    that was cut off for longer makes a new one. Default 30."""
    timeout: float | timedelta | None
    """How long creating the watch may take, in seconds; ``None``: the timeout of the JetStream context."""


class KeyValue(ForeignNames):
    """
    A key-value bucket (ADR-8).

    Returned by `JetStream.create_key_value` and `JetStream.key_value`. Keys are tokens of letters, digits,
    ``-``, ``/``, ``_`` and ``=``, separated by dots; values are bytes. Every write has a revision that is
    larger than all earlier ones of the bucket. Any number of threads may use one object.

    It can be used like a dict for single keys: ``kv["a"]``, ``kv["a"] = b"v"``, ``del kv["a"]``,
    ``"a" in kv``, and iteration over the keys. It has no length: `KeyValueStatus.values` counts messages.

    A read may be answered by a replica that is behind, with an earlier value than the last one; `get()` with
    ``consistent`` and `modify()` read from the leader. Only the leader says that a key is missing.
    """

    def __init__(
        self,
        api: APIRequests,
        publisher: Publisher,
        stream: Stream,
        subjects: BucketSubjects | None = None,
        *,
        loose: bool = False,
    ) -> None:
        """Create the object for an existing bucket."""
        # `subjects`: the subjects and codecs; ``None``: those of the stream's config.
        # `loose`: whether keys only have to be valid subjects.
        self._api = api
        self._publisher = publisher
        self._stream = stream
        if subjects is None:
            prefix = api.routes.prefix
            subjects = BucketSubjects.of(
                stream.cached_info.config,
                None if prefix == API_PREFIX else prefix,
                loose=loose,
                source=source_of(api, stream),
            )
        self._subjects = subjects
        # The stream that stores what is written; ``None``: that of a mirror's origin, or of another account.
        own = subjects.write == f"{KEYS_PREFIX}{subjects.bucket}."
        self._writes_to = stream.name if own else None

    @property
    def bucket(self) -> str:
        """The name of the bucket."""
        return self._subjects.bucket

    def with_codecs(
        self,
        key: KeyCodec | Sequence[KeyCodec] | None = None,
        value: ValueCodec | Sequence[ValueCodec] | None = None,
    ) -> KeyValue:
        """
        Return the same bucket with encoded keys and values.

        The codecs replace those of this object. Several codecs are applied in the given order. `keys()`,
        `iter_keys()` and `get_many()` have only the keys that the codec can decode. A watch has the entries
        of the others as well, whose ``key`` raises a `ValueError`.

        Args:
            key: encodes keys, such as `Base64Keys` or `PathKeys`; ``None``: keys are not encoded.
            value: encodes values; ``None``: values are not encoded.

        Raises:
            InvalidOptionError: a codec is a class, or has no ``encode`` or ``decode``.

        """
        subjects = replace(
            self._subjects, key_codec=codec_of("key", key), value_codec=codec_of("value", value)
        )
        return KeyValue(self._api, self._publisher, self._stream, subjects)

    def status(self) -> KeyValueStatus:
        """
        Request the configuration and state of the bucket.

        Raises:
            BucketNotFoundError: the bucket does not exist.
            APIError: the server returned an error.
            TimeoutError: the server did not reply within the timeout of the context.
            ConnectionClosedError: the connection is closed.

        """
        try:
            return KeyValueStatus(self._stream.info())
        except errors.StreamNotFoundError as error:
            raise bucket_not_found(self.bucket) from error

    # --- reading --------------------------------------------------------------------------------

    def get(
        self,
        key: str,
        revision: int | None = None,
        consistent: bool = False,
        *,
        timeout: float | timedelta | None = None,
    ) -> KeyValueEntry:
        """
        Return the current value of a key, or a revision of it.

        Args:
            key: the key.
            revision: the revision to return; ``None``: the last one.
            consistent: read from the leader of the bucket's stream, or of the origin if the bucket is a
                mirror, so that all earlier writes are seen.
            timeout: in seconds; ``None``: the timeout of the JetStream context.

        Raises:
            KeyNotFoundError: the key has no value: it was never written, was deleted or has expired; its
                ``marker`` is the revision of the deletion. With ``revision``: this revision is not stored,
                is of another key, or is not a value.
            InvalidNameError: the key is malformed.
            InvalidOptionError: the revision is out of range.
            BucketNotFoundError: the bucket does not exist.
            APIError: the server returned an error.
            TimeoutError: the server did not reply in time.
            ConnectionClosedError: the connection is closed.

        """
        stored = self._subjects.encoded(key)
        if revision is not None:
            revision = check_int("revision", revision, 1, LAST_SEQUENCE)
        deadline = self._api.deadline(timeout)
        entry = self._read(stored, revision, deadline, consistent=consistent)
        if entry is None or not entry.has_value:
            marker = None if entry is None else entry.revision
            raise errors.KeyNotFoundError(self.bucket, key, revision, marker)
        return entry

    def value(self, key: str, default: bytes | None = None) -> bytes | None:
        """
        Return the current value of a key, or a default if it has none.

        Args:
            key: the key.
            default: returned for a key without a value.

        Raises:
            Error: as `get()`, other than `KeyNotFoundError`.

        """
        entry = self._read(self._subjects.encoded(key))
        return entry.value if entry is not None and entry.has_value else default

    def _read(
        self,
        stored: str,
        revision: int | None = None,
        deadline: Deadline | None = None,
        *,
        consistent: bool = False,
    ) -> KeyValueEntry | None:
        """Return the last entry of a stored key or a revision of it, which may be a marker."""
        subject = self._subjects.read + stored
        try:
            if consistent:
                reply = self._leader_read(stored, revision, deadline)
            else:
                request = MsgGetRequest(revision, subject if revision is None else None)
                direct = self._stream.cached_info.config.allow_direct
                reply = get_stored(self._api, self._stream.name, request, deadline, direct=direct)
        except errors.MessageNotFoundError:
            return None
        except errors.StreamNotFoundError as error:
            raise bucket_not_found(self.bucket) from error
        entry = entry_of_message(self._subjects, reply)
        return entry if entry.subject == subject else None

    def _leader_read(
        self, stored: str, revision: int | None, deadline: Deadline | None
    ) -> StoredReply:
        """Return the last message of a stored key, or a revision, from the leader of the origin."""
        api, stream, prefix = self._api, self._stream.name, self._subjects.read
        source = self._subjects.source
        if source is not None:
            # A mirror may be behind. Its messages have the sequences of the origin, where writes go.
            stream = source.name
            if source.subject_transforms:
                prefix = f"{KEYS_PREFIX}{bucket_of(stream)}."
            api = self._api_of(source)
        request = MsgGetRequest(revision, prefix + stored if revision is None else None)
        reply = get_stored(api, stream, request, deadline, direct=False)
        key = reply.subject.removeprefix(prefix.encode())
        return reply._replace(subject=self._subjects.read.encode() + key)

    def _api_of(self, source: StreamSource) -> APIRequests:
        """Return the API of the origin of a mirror."""
        external = source.external
        return self._api if external is None else self._api.at(Routes(external.api))

    @with_one_deadline
    def get_many(
        self, keys: str | Sequence[str], up_to_revision: int | None = None
    ) -> dict[str, KeyValueEntry]:
        """
        Return the current values of many keys with one request, as they were at one point in time.

        More than 1,024 keys are read with several requests, and keys that seem to be missing are requested again.
        Patterns with more than 1,024 keys, and keys of servers before 2.11, of mirrors or that mirrors answered are
        read by watches. Each value was current during the call, but then not all of them at the same moment.

        Args:
            keys: keys and patterns: ``*`` is any token, a final ``>`` the rest.
            up_to_revision: return the values that were current at this revision, as far as they are still
                stored; ``None``: now.

        Returns:
            The entries by key, without keys that have no value.

        Raises:
            TooManyResultsError, ServerTooOldError: ``up_to_revision`` is given, and there are more than
                1,024 keys, or the server is older than 2.11.
            MessagesChangedError: the same, and keys changed again and again while they were read.
            InvalidNameError: a key or pattern is malformed.
            Error: otherwise as `get()`.

        """
        patterns = listed_keys(keys)
        if up_to_revision is not None:
            check_int("up_to_revision", up_to_revision, 1, LAST_SEQUENCE)
        found: dict[str, KeyValueEntry] = {}
        size = MAX_READ_KEYS if up_to_revision is None else len(patterns) or 1
        place = self._api, self._stream, self._subjects
        try:
            for start in range(0, len(patterns), size):
                group = patterns[start : start + size]
                entries = last_entries(*place, group, up_to_revision)
                known = dict(decoded_entries(entries or ()))
                missing = group
                if entries is not None:
                    # A replica that is behind may not have a key yet.
                    missing = [key for key in group if key not in known and not is_pattern(key)]
                    if missing and up_to_revision is None:
                        later = missing_entries(*place, missing)
                        known.update(decoded_entries(later or ()))
                        missing = missing if later is None else []
                found.update((key, entry) for key, entry in known.items() if entry.has_value)
                if up_to_revision is None:
                    for first in range(0, len(missing), _MAX_WATCHED_KEYS):
                        found |= self._watched(missing[first : first + _MAX_WATCHED_KEYS])
        except errors.StreamNotFoundError as error:
            raise bucket_not_found(self.bucket) from error
        return found

    def _watched(self, patterns: list[str]) -> dict[str, KeyValueEntry]:
        """Return the current values of keys as a watch finds them."""
        found: dict[str, KeyValueEntry] = {}
        with self.watch(patterns) as watch:
            for key, entry in decoded_entries(watch.initial(self._api.timeout)):
                if entry.has_value:
                    found[key] = entry
                else:
                    found.pop(key, None)
        return found

    @with_one_deadline
    def history(self, key: str) -> list[KeyValueEntry]:
        """
        Return all stored revisions of a key, oldest first, with deletions; ``[]`` if there are none.

        Args:
            key: the key.

        Raises:
            Error: as `watch()`.

        """
        options = _consumer_options({"history": True})
        with self._watch([self._subjects.encoded(key)], options, follows=False) as watch:
            return list(watch.initial(self._api.deadline().left()))

    def keys(self, *patterns: str) -> list[str]:
        """
        Return the keys that have a value, sorted; ``[]`` if there are none.

        Args:
            *patterns: only keys that match one of these; none: all keys.

        Raises:
            InvalidNameError: a pattern is malformed.
            Error: otherwise as `watch()`.

        """
        for _ in range(READ_ATTEMPTS - 1):
            with suppress(errors.StreamRecreatedError):
                return sorted(self.iter_keys(*patterns))
        return sorted(self.iter_keys(*patterns))

    def iter_keys(self, *patterns: str) -> Iterator[str]:
        """
        Yield the keys that have a value, each once, in the order of their last change.

        Args:
            *patterns: only keys that match one of these; none: all keys.

        Raises:
            StreamRecreatedError: the bucket was deleted and created again, or restored to an earlier state,
                while its keys were read.
            Error: otherwise as `keys()`.

        """
        options = _consumer_options({"meta_only": True})
        stored = self._subjects.patterns(patterns or ">")
        with limited(deadline := self._api.deadline()):
            watch = self._watch(stored, options, ignore_deletes=True, follows=False)
        with watch:
            known: set[str] = set()
            for key, _ in decoded_entries(watch.initial(deadline.left())):
                if key not in known:  # it was changed meanwhile
                    known.add(key)
                    yield key

    # --- writing --------------------------------------------------------------------------------

    def put(self, key: str, value: bytes) -> int:
        """
        Store a value, whatever the key had before, and return its revision.

        There is no ``ttl``: when it expired, the previous revision would become current again. Only
        `create()` and `purge()` have one.

        Args:
            key: the key.
            value: the value; it may be empty.

        Raises:
            ValueTooLargeError: the value exceeds the bucket's ``max_value_size``.
            StreamFullError: the bucket has reached its ``max_bytes``.
            InvalidNameError: the key is malformed or reserved, or exceeds 3,840 bytes with the subject
                prefix of the bucket.
            InvalidArgumentError: the value is not bytes.
            MaxPayloadError: the value exceeds the server's limit.
            NoStreamResponseError: there was no response: the bucket does not exist, or has no leader.
            APIError: the server returned an error; nothing was stored.
            TimeoutError: no acknowledgement came in time; the value may be stored all the same.
            ConnectionClosedError: the connection is closed.

        """
        value = self._encoded(value)
        subject = self._subjects.write + self._subjects.writable(key)
        return self._publisher.publish(subject, value, None, None, stream=self._writes_to).seq

    @with_one_deadline
    def create(self, key: str, value: bytes, ttl: float | timedelta | None = None) -> int:
        """
        Store the value of a key that has none, and return its revision.

        Args:
            key: the key: new, deleted or expired.
            value: the value.
            ttl: seconds after which it expires, at least 1; the server raises it to the bucket's
                ``limit_marker_ttl`` if the bucket keeps a history. If a deleted key has a history, that is
                removed. ``None``: as long as the bucket keeps values.

        Raises:
            KeyExistsError: the key has a value; its ``revision`` names it.
            WrongLastRevisionError: other clients created and deleted the key again and again.
            InvalidOptionError: the bucket has no ``limit_marker_ttl``, or the TTL is out of range.
            Error: otherwise as `put()`.

        """
        stored = self._subjects.writable(key)
        self._check_ttl(ttl)
        expected = 0
        rollup = False
        for attempt in range(1, _CREATE_ROUNDS + 1):
            extra = {ROLLUP: "sub"} if rollup else {}
            try:
                return self._write(stored, self._encoded(value), extra, expected, ttl)
            except errors.WrongLastSequenceError as error:
                # The leader knows the message that is in the way; a replica may not.
                entry = self._read(stored, consistent=True)
                refusal = error.code, error.err_code, error.description
                if entry is not None and entry.has_value:
                    raise errors.KeyExistsError(*refusal, key, entry.revision) from None
                if attempt == _CREATE_ROUNDS or self._api.deadline().expired():
                    raise errors.WrongLastRevisionError(*refusal, key, expected) from error
            expected = 0 if entry is None else entry.revision
            # With a history the message before this one would be the last again after the TTL, and
            # the server would not write a marker.
            rollup = (
                ttl is not None
                and entry is not None
                and (self._stream.cached_info.config.max_msgs_per_subject or 1) > 1
            )
        raise AssertionError  # pragma: no cover

    def update(self, key: str, value: bytes, last: int) -> int:
        """
        Store a value if the last revision of the key is the expected one, and return its revision.

        Args:
            key: the key.
            value: the value.
            last: the expected last revision; 0: the key was never written.

        Raises:
            WrongLastRevisionError: the key was changed; nothing was stored.
            InvalidOptionError: ``last`` is not an int of at least 0.
            Error: otherwise as `put()`.

        """
        if last is None:
            raise errors.InvalidOptionError(
                "last", last, "must be a revision; use put() or create()"
            )
        stored = self._subjects.writable(key)
        return self._compare_and_set(key, stored, self._encoded(value), {}, last)

    def delete(self, key: str, last: int | None = None) -> int:
        """
        Delete a key and keep its history; return the revision of the deletion.

        Args:
            key: the key; it need not exist.
            last: delete only if this is the last revision; ``None``: whatever it is.

        Raises:
            WrongLastRevisionError: the key was changed; nothing was deleted.
            Error: otherwise as `put()`.

        """
        stored = check_writable(self._subjects.encoded(key))
        headers = {OPERATION: KeyValueOperation.DELETE.value}
        return self._compare_and_set(key, stored, b"", headers, last)

    def purge(self, key: str, last: int | None = None, ttl: float | timedelta | None = None) -> int:
        """
        Delete a key and its history; return the revision of the deletion.

        Consumers of the bucket that acknowledge could lose other messages by it, see :ref:`purge-fault`; watches
        and replicas do not acknowledge.

        Args:
            key: the key; it need not exist.
            last: purge only if this is the last revision; ``None``: whatever it is.
            ttl: seconds after which the marker of the deletion is removed, too, at least 1; ``None``: it
                stays until `purge_deletes()`.

        Raises:
            WrongLastRevisionError: the key was changed; nothing was deleted.
            InvalidOptionError: the bucket has no ``limit_marker_ttl``, or the TTL is out of range.
            Error: otherwise as `put()`.

        """
        self._check_ttl(ttl)
        headers = {OPERATION: KeyValueOperation.PURGE.value, ROLLUP: "sub"}
        stored = check_writable(self._subjects.encoded(key))
        return self._compare_and_set(key, stored, b"", headers, last, ttl)

    def modify(
        self,
        key: str,
        function: Callable[[KeyValueEntry | None], bytes | None],
        attempts: int | None = None,
    ) -> int:
        """
        Replace the value of a key with the result of a function, and return its revision.

        The function is called again with the new value if another client changes the key meanwhile, after
        a random delay, until the timeout of the context. The value is read from the leader each time.

        Args:
            key: the key.
            function: called with the current entry, or ``None`` if the key has no value; returns the new
                value, or ``None`` to delete the key.
            attempts: maximum number of calls of the function; ``None``: no limit.

        Returns:
            The revision; the last known one, or 0, if there was nothing to delete.

        Raises:
            WrongLastRevisionError: the key was changed during each attempt; nothing was stored.
            InvalidOptionError: ``attempts`` is below 1, or the function cannot be called.
            Error: otherwise as `put()` and `get()`; an exception of the function is not caught.

        """
        check_callback("function", function)
        if attempts is not None:
            check_int("attempts", attempts, 1)
        stored = self._subjects.writable(key)
        delays = BackoffDelay(_FIRST_CONFLICT_DELAY_S, _MAX_CONFLICT_DELAY_S, jitter=True)
        attempt = 0
        deadline = self._api.deadline()
        with limited(deadline):
            while True:
                attempt += 1
                # A replica or mirror that is behind could return no entry, or the same one again.
                entry = self._read(stored, consistent=True)
                current = entry if entry is not None and entry.has_value else None
                began = monotonic()
                value = function(current)
                if deadline.at is not None:
                    deadline.at += monotonic() - began  # the timeout is for the server
                last = 0 if entry is None else entry.revision
                if value is None and current is None:
                    return last
                try:
                    if value is None:
                        return self.delete(key, last)
                    return self.update(key, value, last)
                except errors.WrongLastRevisionError:
                    if attempt == attempts:
                        raise
                    self._api.core.wait_closed(delays.next())
                    if deadline.expired():
                        raise

    @with_one_deadline
    def purge_deletes(self, older_than: float | timedelta = 1800, *, force: bool = False) -> int:
        """
        Remove the history of deleted keys, and the markers of old deletions.

        A value that is written meanwhile is not removed. One timeout holds for the call, which can be repeated. It
        purges by subject, which consumers that acknowledge could lose messages by; watches and replicas do not. What
        other clients have deleted under a key with wildcards or control characters stays. Of a mirror, it removes the
        copies: the origin keeps its history and markers.

        Args:
            older_than: seconds since the deletion after which its marker is removed, too; 0: all markers.
                Younger markers stay, so that watches that were interrupted see the deletion.
            force: as in `Stream.purge`.

        Returns:
            The number of removed messages.

        Raises:
            InvalidOptionError: ``older_than`` is below 0.
            PendingAcksError: a consumer of the bucket's stream has unacknowledged messages; nothing was removed.
            StreamRecreatedError: the bucket was deleted and created again, or restored to an earlier state, before
                all was removed.
            Error: otherwise as `watch()`.

        """
        age_s = seconds(older_than, "older_than")
        if age_s < 0:
            raise errors.InvalidOptionError("older_than", older_than, "must be 0 or above")
        options = _consumer_options({"meta_only": True})
        before = self.status().info
        with self._watch([self._subjects.pattern(">")], options, follows=False) as watch:
            markers = [
                entry
                for entry in watch.initial(self._api.deadline().left())
                if not entry.has_value and selects_itself(entry.subject)
            ]
        if markers and not force:
            check_unacknowledged(self._api, self._stream.name, f"{self._subjects.read}>")
        removed = 0
        for marker in markers:
            # Each time: the values of a bucket that was created again have the same revisions.
            info = self.status().info
            if info.created != before.created:
                raise errors.StreamRecreatedError(
                    info.config.name, time_to_ns(before.created), time_to_ns(info.created)
                )
            now = info.ts or datetime.now(timezone.utc)
            old = not age_s or (now - marker.created).total_seconds() >= age_s
            # Everything before this sequence: never a value that was written after the marker.
            end = marker.revision + 1 if old else marker.revision
            removed += self._stream.purge(subject=marker.subject, seq=end, force=True)
        return removed

    def _encoded(self, value: bytes) -> bytes:
        codec = self._subjects.value_codec
        return value if codec is None else codec.encode(value)

    def _check_ttl(self, ttl: float | timedelta | None) -> None:
        """Raise if the bucket does not allow TTLs; another client may have allowed them meanwhile."""
        if ttl is None or self._stream.cached_info.config.allow_msg_ttl:
            return
        if not self.status().info.config.allow_msg_ttl:
            raise errors.InvalidOptionError(
                "ttl", ttl, "the bucket was created without limit_marker_ttl"
            )

    def _compare_and_set(
        self,
        key: str,
        stored: str,
        value: bytes,
        headers: dict[str, str],
        last: int | None,
        ttl: float | timedelta | None = None,
    ) -> int:
        if last is not None:
            last = check_int("last", last, 0, LAST_SEQUENCE)
        try:
            return self._write(stored, value, headers, last, ttl)
        except errors.WrongLastSequenceError as error:
            raise errors.WrongLastRevisionError(
                error.code, error.err_code, error.description, key, last or 0
            ) from None

    def _write(
        self,
        stored: str,
        value: bytes,
        headers: dict[str, str],
        last: int | None,
        ttl: float | timedelta | None,
    ) -> int:
        """Publish a message with the expected last revision of its key, and return its revision."""
        subject, deadline = self._subjects.write + stored, self._api.deadline()
        if last is not None:
            headers[EXPECTED_LAST_SUBJECT_SEQ] = str(last)
        publish, stream = self._publisher.publish_expecting, self._writes_to
        return publish(subject, value, headers, deadline, stream, {"msg_ttl": ttl}).seq

    # --- watching -------------------------------------------------------------------------------

    def lock(
        self, key: str, ttl: float | timedelta = 30.0, timeout: float | timedelta | None = None
    ) -> Lock:
        """
        Return a lock that one client of the bucket holds at a time; it is not acquired yet.

        Args:
            key: the key, which has no other use.
            ttl: how long the lock of a client that stopped is held, in seconds, at least 1. The holder
                writes the key three times in it.
            timeout: how long a ``with`` block waits for the lock, in seconds; ``None``: no limit.

        Raises:
            InvalidOptionError: the ``ttl`` is below 1 second.
            InvalidNameError: the key is malformed or reserved.

        """
        check_writable(self._subjects.encoded(key))
        return Lock(self, key, ttl, timeout)

    @with_one_deadline
    def replica(self, keys: str | Sequence[str] = ">") -> Replica:
        """
        Return a copy of the bucket in memory, which a watch keeps up to date.

        Call `Replica.wait_current` before the first read, and `Replica.close` at the end.

        Args:
            keys: keys and patterns: ``*`` is any token, a final ``>`` the rest; default: all keys.

        Raises:
            Error: as `watch()`.

        """
        make = partial(self._watch, self._subjects.patterns(keys), _consumer_options({}))
        source = self._subjects.source
        origin = None if source is None else (self._api_of(source), source.name)
        return Replica(self._api, self.status(), make, origin)

    @overload
    def watch(
        self,
        keys: str | Sequence[str] = ...,
        *,
        cb: None = ...,
        current_cb: None = ...,
        **options: Unpack[WatchOptions],
    ) -> Watch[KeyValueEntry]: ...

    @overload
    def watch(
        self,
        keys: str | Sequence[str] = ...,
        *,
        cb: Callable[[KeyValueEntry], object],
        current_cb: Callable[[], object] | None = ...,
        **options: Unpack[WatchOptions],
    ) -> WatchHandle: ...

    def watch(
        self,
        keys: str | Sequence[str] = ">",
        *,
        cb: Callable[[KeyValueEntry], object] | None = None,
        current_cb: Callable[[], object] | None = None,
        **options: Unpack[WatchOptions],
    ) -> Watch[KeyValueEntry] | WatchHandle:
        """
        Watch keys: first their current entries, then every change.

        The watch is *current* when all entries that existed at the start were received. It survives lost
        connections, restarts of the server and leader changes. After each of these it returns a ``PURGE``
        for each key that it has returned and that the bucket does not have any more without a marker of
        its deletion. If the bucket was deleted and created again, or restored to an earlier state, a
        `StreamRecreatedError` is reported to ``error_cb``, and these are followed by all its entries.

        Args:
            keys: keys and patterns: ``*`` is any token, a final ``>`` the rest; default: all keys.
            cb: called with each entry on a thread of its own; ``None``: the entries are read from the
                returned watch.
            current_cb: called once when ``cb`` has handled the entries that existed at the start.
            **options: see `WatchOptions`.

        Returns:
            A `Watch` to iterate over; with ``cb`` a `WatchHandle`.

        Raises:
            InvalidNameError: a key or pattern is malformed.
            InvalidOptionError: two options exclude each other, or a value is invalid.
            BucketNotFoundError: the bucket does not exist.
            StreamRecreatedError: ``resume_from_revision`` is beyond the next revision of the bucket.
            APIError: the server rejected the consumer.
            TimeoutError: the server did not reply in time.
            ConnectionClosedError: the connection is closed.

        """
        make = partial(
            self._watch,
            self._subjects.patterns(keys),
            _consumer_options(options),
            options.get("ignore_deletes", False),
            timeout=options.get("timeout"),
        )
        if cb is None and current_cb is None:
            return make()
        return watch_with_callbacks(self._api, make, cb, current_cb)

    def _watch(
        self,
        stored: list[str],
        options: OrderedOptions,
        ignore_deletes: bool = False,
        follows: bool = True,
        timeout: float | timedelta | None = None,
    ) -> Watch[KeyValueEntry]:
        """Watch the stored forms of keys and patterns; ``follows``: whether with markers, see `Watch`."""
        subjects = self._subjects
        filters, select = merge_patterns(stored)
        options["filter_subjects"] = [subjects.read + pattern for pattern in filters]
        markers = None
        if follows:
            header = f"NATS/1.0\r\n{OPERATION}: {KeyValueOperation.PURGE.value}\r\n\r\n".encode()
            markers = Markers(
                lambda delivery: KeyValueEntry(subjects, delivery).has_value,
                lambda _: (header, b""),
            )
        return Watch(
            self._api,
            f"{KV_PREFIX}{subjects.bucket}",
            options,
            entry_maker(subjects, select, ignore_deletes),
            partial(bucket_not_found, subjects.bucket),
            markers,
            timeout,
        )

    # --- like a dict ----------------------------------------------------------------------------

    def __getitem__(self, key: str) -> bytes:
        """Return the current value of a key; raise `KeyNotFoundError`, which is a `KeyError`."""
        return self.get(key).value

    def __setitem__(self, key: str, value: bytes) -> None:
        """Store a value, as `put()`."""
        self.put(key, value)

    def __delitem__(self, key: str) -> None:
        """Delete a key, as `delete()`; it need not exist."""
        self.delete(key)

    def __contains__(self, key: object) -> bool:
        """Return whether a key has a value."""
        if not isinstance(key, str):
            return False
        entry = self._read(self._subjects.encoded(key))
        return entry is not None and entry.has_value

    def __iter__(self) -> Iterator[str]:
        """Yield the keys that have a value, as `iter_keys()`."""
        return self.iter_keys()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {bucket_of(self._stream.name)!r}>"


def _consumer_options(options: WatchOptions) -> OrderedOptions:
    """Return the options of the consumer of a watch."""
    if options:
        check_known(options, WatchOptions.__annotations__)
    history, revision = options.get("history"), options.get("resume_from_revision")
    given: OrderedOptions = {"headers_only": options.get("meta_only", False)}
    if (threshold := options.get("inactive_threshold")) is not None:
        given["inactive_threshold"] = threshold
    if options.get("updates_only"):
        if history or revision is not None:
            other = "history" if history else "resume_from_revision"
            raise errors.InvalidOptionError(
                "updates_only", True, f"cannot be combined with {other}"
            )
        given["deliver_policy"] = DeliverPolicy.NEW
    elif revision is not None:
        check_int("resume_from_revision", revision, 1, LAST_SEQUENCE)
        given["deliver_policy"] = DeliverPolicy.BY_START_SEQUENCE
        given["opt_start_seq"] = revision
    else:
        given["deliver_policy"] = DeliverPolicy.ALL if history else DeliverPolicy.LAST_PER_SUBJECT
    return given
