"""
A cache backend on a key-value bucket.

Rules:

1. A value is stored with the time at which it ends. Servers from 2.11 also delete it then.
2. The bucket has one message for each key. `delete_many` leaves markers, which end after a second. A full bucket
   evicts the oldest values.
3. Any text is a key: it is encoded as one token, and a long one is hashed.
4. `add`, `incr` and `touch` compare and set, so they are atomic for all processes.
5. Without the bucket, reads find nothing, and the next write creates it again.
6. A value that is too large for the server or the bucket is a miss, and its key keeps no older value.
"""

from __future__ import annotations

import logging
import math
import pickle
import struct
import time
from base64 import urlsafe_b64encode
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import timedelta
from functools import cache
from hashlib import sha256
from typing import Any, Final, NamedTuple, TypeVar

from django.core.cache.backends.base import DEFAULT_TIMEOUT, BaseCache
from django.core.exceptions import ImproperlyConfigured

from .. import (
    Connection,
    JetStream,
    KeyValue,
    KeyValueConfig,
    KeyValueEntry,
    Stream,
    StreamConfig,
    errors,
)
from ..durations import MAX_TTL_S
from ..exact import exact
from ..net.clock import BackoffDelay, Deadline
from ..subjects import KEYS_PREFIX, KV_PREFIX
from .config import Config, connection

#: The end of a value in seconds since 1970, infinite: none, before its pickled form.
_END: Final = struct.Struct("!d")
_MISSING: Final = object()
#: The longest encoded key that is not hashed.
_MAX_KEY: Final = 200
#: Seconds after a failed connection attempt, or a miss that has timed out, in which calls fail at once.
_RETRY_INTERVAL_S: Final = 1.0
#: Maximum delay in seconds after another process has changed a value.
_MAX_CONFLICT_DELAY_S: Final = 0.1
#: Bytes of a message in a stream beside its value: its subject, headers and record.
_OVERHEAD_BYTES: Final = 1024
#: The errors for a value that the server does not store because of its size.
_TOO_LARGE: Final = errors.MaxPayloadError, errors.ValueTooLargeError
#: The options that are fields of a `KeyValueConfig`.
_CONFIG: Final = (
    *("compression", "description", "max_bytes", "max_value_size", "metadata", "placement"),
    *("replicas", "storage"),
)

_T = TypeVar("_T")
log: logging.Logger = logging.getLogger("jetstream_sync.django.cache")


class _OpenBucket(NamedTuple):
    """An open bucket."""

    nc: Connection
    js: JetStream
    stream: Stream
    kv: KeyValue


class KeyValueCache(BaseCache):
    """
    Django's cache on a bucket of the connection of the setting ``JETSTREAM``.

    ``LOCATION`` is the bucket, which is created if it does not exist. Values are pickled, so it must be
    writable by trusted programs only. ``OPTIONS`` may have

    * ``max_age``: seconds after which every value is deleted (default: 30 days); ``max_bytes`` and
      ``MAX_ENTRIES``, limits at which the oldest values are evicted; and of a `KeyValueConfig`
      ``compression``, ``description``, ``max_value_size``, ``metadata``, ``placement``, ``replicas`` and
      ``storage``. They count when the bucket is created.
    * ``timeout``: the timeout of each request in seconds; default: that of the setting.
    * ``errors``: ``"raise"`` (default), or ``"miss"``: while the server cannot be reached or refuses, reads
      find nothing and writes do nothing. Each such call logs a warning, and counts in the metric
      ``jetstream_cache_errors_total`` if ``prometheus_client`` is installed.

    While the connection is lost, calls fail at once.

    Raises:
        ImproperlyConfigured: an option is unknown or wrong.

    """

    #: The open buckets of the process, by name and timeout: Django makes a cache for each thread.
    _open_buckets: Final[dict[tuple[str, Any], _OpenBucket]] = {}
    #: Time before which no connection is attempted.
    _pause: Deadline = Deadline(0)
    #: Time before which the calls of this cache are misses, because one has timed out.
    _misses_until: Deadline = Deadline(0)

    def __init__(self, bucket: str, params: dict[str, Any]) -> None:
        super().__init__(params)
        options = dict(params.get("OPTIONS", {}))
        self._errors = options.pop("errors", "raise")
        self._timeout = options.pop("timeout", None)
        if self._errors not in ("raise", "miss"):
            raise ImproperlyConfigured(f"errors is {self._errors!r}: it must be 'raise' or 'miss'")
        if self._timeout is not None and not (
            isinstance(self._timeout, int | float) and self._timeout > 0
        ):
            raise ImproperlyConfigured(f"timeout is {self._timeout!r}: it must be seconds above 0")
        self._name = bucket = exact(bucket)
        self._prefix = f"{KEYS_PREFIX}{bucket}."
        try:
            self._config = _stream_config(bucket, options)
        except (errors.InvalidArgumentError, TypeError) as error:
            raise ImproperlyConfigured(f"OPTIONS of the cache {bucket!r}: {error}") from error

    # --- the bucket -----------------------------------------------------------------------------

    def _bucket(self, *, create: bool = True) -> _OpenBucket:
        """Return the open bucket; raise at once while the connection is lost."""
        key = self._name, self._timeout
        if not (KeyValueCache._pause.expired() and self._misses_until.expired()):
            raise errors.ConnectionLostError("the server could not be reached a moment ago")
        try:
            nc = connection()
        except ConnectionError:
            KeyValueCache._pause = Deadline(_RETRY_INTERVAL_S)
            raise
        if not nc.is_connected:
            raise errors.ConnectionLostError("the connection to the server is lost")
        found = self._open_buckets.get(key)
        if found is None or found.nc is not nc:
            config = Config.load()
            js = nc.jetstream(timeout=self._timeout or config.timeout)
            try:
                stream = js.get_stream(self._config.name)
            except errors.StreamNotFoundError:
                if not create:
                    raise
                stream = self._create(js)
            found = _OpenBucket(nc, js, stream, js.key_value(self._name))
            self._open_buckets[key] = found
        return found

    def _create(self, js: JetStream) -> Stream:
        config = self._config
        try:
            return js.create_stream(config)
        except errors.ServerTooOldError:
            return js.create_stream(replace(config, allow_msg_ttl=None))
        except errors.StreamNameInUseError:  # another process was faster
            return js.get_stream(config.name)

    def _forget_bucket(self) -> None:
        """Open the bucket again at the next call, because it was deleted or replaced."""
        self._open_buckets.pop((self._name, self._timeout), None)

    @contextmanager
    def _tolerance(self, operation: str) -> Iterator[None]:
        """Turn errors of the server and the connection into misses, if the options say so."""
        try:
            yield
        except (errors.InvalidArgumentError, errors.WrongLastSequenceError):
            raise
        except errors.Error as error:
            if self._errors == "raise":
                raise
            if isinstance(error, errors.TimeoutError):
                self._misses_until = Deadline(_RETRY_INTERVAL_S)
            log.warning("cache %r: %s is a miss: %s", self._name, operation, error)
            if (counter := _error_counter()) is not None:
                counter.labels(self._name, operation).inc()

    def _key(self, key: str, version: int | None) -> str:
        """Return the token of a key; no two keys have the same."""
        name = str(self.make_and_validate_key(key, version=version))
        data = name.encode("utf-8", "surrogatepass")
        encoded = "k" + urlsafe_b64encode(data).decode().rstrip("=")
        return encoded if len(encoded) <= _MAX_KEY else "h" + sha256(data).hexdigest()

    # --- reading and writing --------------------------------------------------------------------

    def _entry(self, name: str, *, consistent: bool = False) -> KeyValueEntry | None:
        """Return the entry of a key, whose value may have ended."""
        try:
            bucket = self._bucket(create=False)
            # Without replicas, any read is consistent, and a direct get is faster.
            is_replicated = bucket.stream.cached_info.config.num_replicas != 1
            return bucket.kv.get(name, consistent=consistent and is_replicated)
        except errors.KeyNotFoundError:
            return None
        except errors.StreamNotFoundError:
            self._forget_bucket()
            return None

    def _write(self, values: Mapping[str, tuple[float, Any]], last: int | None = None) -> list[str]:
        """
        Store values, with the time at which each ends; if the bucket was lost, create it.

        Returns:
            The keys whose values are too large. An older value of them is deleted.
        """
        # Before the first is stored: one that cannot be pickled leaves nothing behind.
        pickled = {
            name: (end, _END.pack(end) + pickle.dumps(value, pickle.HIGHEST_PROTOCOL))
            for name, (end, value) in values.items()
        }

        def store(bucket: _OpenBucket) -> list[str]:
            large = self._publish(bucket, pickled, last)
            for name in large:
                log.warning("cache %r: a value is too large, and is a miss", self._name)
                bucket.stream.purge(subject=self._prefix + name, force=True)
            return large

        return self._retried(store)

    def _retried(self, call: Callable[[_OpenBucket], _T], *, create: bool = True) -> _T:
        """Call a function with the open bucket; if that was deleted or replaced, once more with the present one."""
        try:
            return call(self._bucket(create=create))
        except errors.WrongLastSequenceError:
            raise
        except (errors.APIError, errors.NoStreamResponseError):
            self._forget_bucket()
        return call(self._bucket(create=create))

    def _publish(
        self, bucket: _OpenBucket, pickled: Mapping[str, tuple[float, bytes]], last: int | None
    ) -> list[str]:
        """Store pickled values, all at a time, and return the keys of those that are too large."""
        config = bucket.stream.cached_info.config
        most = _largest_value(config)
        publish = bucket.js.publish if len(pickled) == 1 else bucket.js.publish_async
        options: dict[str, Any] = {}
        if last is not None:
            options["expected_last_subject_sequence"] = last
        sent: dict[str, Any] = {}
        large = []
        for name, (end, data) in pickled.items():
            headers = None
            seconds = math.ceil(max(1.0, min(end - time.time(), MAX_TTL_S)))
            if config.allow_msg_ttl and seconds < MAX_TTL_S:
                headers = {"Nats-TTL": str(seconds)}
            try:
                if len(data) > most:
                    large.append(name)
                else:
                    sent[name] = publish(self._prefix + name, data, headers=headers, **options)
            except _TOO_LARGE:
                large.append(name)
        for name, future in sent.items() if len(pickled) > 1 else ():
            try:
                future.result()
            except _TOO_LARGE:
                large.append(name)
        return large

    def _end(self, timeout: Any) -> float:
        end = self.get_backend_timeout(timeout)
        return math.inf if end is None else float(end)

    # --- single keys ----------------------------------------------------------------------------

    def add(
        self, key: str, value: Any, timeout: Any = DEFAULT_TIMEOUT, version: int | None = None
    ) -> bool:
        """Store the value of a key that has none; return whether it was stored."""
        name = self._key(key, version)
        values = {name: (self._end(timeout), value)}
        last = 0
        with self._tolerance("add"):
            # The server removes a value up to a second after its end, also between two requests.
            for is_last_try in self._tries():
                try:
                    return not self._write(values, last=last)
                except errors.WrongLastSequenceError:
                    if is_last_try:
                        raise
                bucket = self._bucket()
                try:
                    entry = bucket.kv.get(name, consistent=True)
                    if _lives(entry):
                        return False
                    last = entry.revision
                except errors.KeyNotFoundError:
                    last = 0
                    # Another client of the bucket may have left a marker of its deletion.
                    with suppress(errors.MessageNotFoundError):
                        subject = self._prefix + name
                        last = bucket.stream.get_msg(last_by_subject=subject, consistent=True).seq
        return False

    def _tries(self) -> Iterator[bool]:
        """Yield for each try of a change that may conflict with others whether it is the last; wait in between."""
        deadline = Deadline(self._timeout or Config.load().timeout)
        delays = BackoffDelay(_MAX_CONFLICT_DELAY_S / 64, _MAX_CONFLICT_DELAY_S, jitter=True)
        while True:
            is_last = deadline.expired()
            yield is_last
            if is_last:
                return
            time.sleep(delays.next())

    def get(self, key: str, default: Any = None, version: int | None = None) -> Any:
        """Return the value of a key."""
        name = self._key(key, version)
        with self._tolerance("get"):
            entry = self._entry(name)
            if entry is not None and _lives(entry):
                return _value(entry)
        return default

    def set(
        self, key: str, value: Any, timeout: Any = DEFAULT_TIMEOUT, version: int | None = None
    ) -> None:
        """Store the value of a key."""
        name = self._key(key, version)
        with self._tolerance("set"):
            self._write({name: (self._end(timeout), value)})

    def touch(self, key: str, timeout: Any = DEFAULT_TIMEOUT, version: int | None = None) -> bool:
        """Change when a value ends; return whether there is one."""
        name = self._key(key, version)
        with self._tolerance("touch"):
            return self._change(name, lambda value: value, timeout) is not _MISSING
        return False

    def delete(self, key: str, version: int | None = None) -> bool:
        """Delete a key; return whether it had a value."""
        name = self._key(key, version)
        with self._tolerance("delete"), suppress(errors.StreamNotFoundError):
            entry = self._entry(name, consistent=True)
            if entry is not None:
                # Nothing acknowledges the messages of a cache, so consumers need not be listed.
                purge = self._bucket(create=False).stream.purge
                return purge(subject=self._prefix + name, force=True) > 0 and _lives(entry)
        return False

    def incr(self, key: str, delta: int = 1, version: int | None = None) -> Any:
        """Add to a number, and return the sum; when it ends does not change."""
        name = self._key(key, version)
        value = _MISSING
        with self._tolerance("incr"):
            value = self._change(name, lambda old: old + delta)
        if value is _MISSING:
            raise ValueError(f"Key '{key}' not found")
        return value

    def _change(self, name: str, change: Callable[[Any], Any], timeout: Any = _MISSING) -> Any:
        """Replace a value by a function of it, and return that; `_MISSING`: there is no value."""
        for is_last_try in self._tries():
            # A replica that is behind could return the same entry again.
            entry = self._entry(name, consistent=True)
            if entry is None or not _lives(entry):
                return _MISSING
            end = _END.unpack_from(entry.value)[0] if timeout is _MISSING else self._end(timeout)
            value = change(_value(entry))
            try:
                self._write({name: (end, value)}, last=entry.revision)
                return value
            except errors.WrongLastSequenceError:
                if is_last_try:
                    raise
        raise AssertionError  # pragma: no cover

    # --- many keys ------------------------------------------------------------------------------

    def get_many(self, keys: Iterable[str], version: int | None = None) -> dict[str, Any]:
        """Return the values of those keys that have one, with one request."""
        names = {self._key(key, version): key for key in keys}
        with self._tolerance("get_many"):
            try:
                entries = self._bucket(create=False).kv.get_many(list(names)) if names else {}
                now = time.time()
                return {
                    names[name]: pickle.loads(value[_END.size :])  # noqa: S301 - see the class
                    for name, entry in entries.items()
                    if _end_of(value := entry.value) > now
                }
            except (errors.BucketNotFoundError, errors.StreamNotFoundError):
                self._forget_bucket()
        return {}

    def set_many(
        self, data: Mapping[str, Any], timeout: Any = DEFAULT_TIMEOUT, version: int | None = None
    ) -> list[str]:
        """Store values, all at a time; return the keys that were not stored."""
        end = self._end(timeout)
        values = {self._key(key, version): (end, value) for key, value in data.items()}
        with self._tolerance("set_many"):
            large = set(self._write(values))
            return [key for key in data if large and self._key(key, version) in large]
        return list(data)

    def delete_many(self, keys: Iterable[str], version: int | None = None) -> None:
        """Delete keys, all at a time."""
        keys = list(keys)
        is_done = True
        with self._tolerance("delete_many"), suppress(errors.StreamNotFoundError):
            try:
                is_done = self._retried(
                    lambda bucket: self._mark_deleted(bucket, keys, version), create=False
                )
            except errors.ServerFullError:
                is_done = False  # a purge needs no room
        if not is_done:
            super().delete_many(keys, version=version)

    def _mark_deleted(self, bucket: _OpenBucket, keys: list[str], version: int | None) -> bool:
        """Replace values by markers that end; return whether the bucket can have such markers."""
        config = bucket.stream.cached_info.config
        if not config.allow_msg_ttl:
            return False
        names: Iterable[str] = (self._key(key, version) for key in keys)
        if not _has_room(bucket, len(keys)):
            # A marker for a key without a value would take the place of another value.
            names = bucket.kv.get_many(list(names))
        headers = {"KV-Operation": "DEL", "Nats-TTL": "1s"}
        publish = bucket.js.publish_async
        # The server stores the first markers while the next ones are encoded.
        sent = [publish(self._prefix + name, b"", headers=headers) for name in names]
        for future in reversed(sent):  # the last one first: the thread that waits wakes up once
            future.result()
        return True

    def clear(self) -> None:
        """Delete all keys of the bucket, also those of other prefixes and versions."""
        with self._tolerance("clear"):
            try:
                self._bucket(create=False).stream.purge()
            except errors.StreamNotFoundError:
                self._forget_bucket()


def _most_of(max_bytes: int | None) -> int:
    """Return the size of the largest value that does not evict all others from a bucket."""
    return max((max_bytes or 0) - _OVERHEAD_BYTES, (max_bytes or 0) // 2)


def _largest_value(config: StreamConfig) -> float:
    """Return the size of the largest value that a bucket stores."""
    limits = [config.max_msg_size or 0, _most_of(config.max_bytes)]
    return min((limit for limit in limits if limit > 0), default=math.inf)


def _has_room(bucket: _OpenBucket, markers: int) -> bool:
    """Return whether a bucket takes a number of markers without an eviction."""
    config = bucket.stream.cached_info.config
    most, most_bytes = config.max_msgs or 0, config.max_bytes or 0
    if most <= 0 and most_bytes <= 0:
        return True
    state = bucket.stream.info().state
    left = most_bytes - state.bytes - markers * _OVERHEAD_BYTES
    return (most <= 0 or state.messages + markers <= most) and (most_bytes <= 0 or left >= 0)


def _stream_config(bucket: str, options: dict[str, Any]) -> StreamConfig:
    """Return the config of the stream of a new bucket."""
    entries = options.pop("MAX_ENTRIES", -1)
    max_age = options.pop("max_age", timedelta(days=30))
    if "CULL_FREQUENCY" in options:
        raise TypeError("CULL_FREQUENCY is not possible: the server evicts the oldest values")
    if unknown := options.keys() - set(_CONFIG):
        known = ", ".join((*_CONFIG, "errors", "max_age", "MAX_ENTRIES", "timeout"))
        raise TypeError(f"unknown option {min(unknown)!r}; known are {known}")
    config = KeyValueConfig(bucket=bucket, ttl=max_age, **options)
    fields = config.stream_fields()
    if config.max_value_size is not None:
        fields["max_msg_size"] = config.max_value_size
    elif (config.max_bytes or 0) > 0:
        fields["max_msg_size"] = _most_of(config.max_bytes)
    return StreamConfig(
        name=KV_PREFIX + bucket,
        subjects=[f"{KEYS_PREFIX}{bucket}.>"],
        max_msgs=entries,
        max_msgs_per_subject=1,
        discard="old",
        allow_rollup_hdrs=True,
        deny_delete=True,
        allow_direct=True,
        allow_msg_ttl=True,
        **fields,
    )


@cache
def _error_counter() -> Any:
    """Return the counter of errors that were misses; ``None`` without ``prometheus_client``."""
    try:
        from prometheus_client import Counter  # noqa: PLC0415 - optional
    except ImportError:
        return None
    text = "Calls of caches that failed and were misses"
    return Counter("jetstream_cache_errors", text, ["cache", "operation"])


def _end_of(value: bytes) -> float:
    """Return when a value ends; one of another program that is too short for a time has ended."""
    return _END.unpack_from(value)[0] if len(value) >= _END.size else -math.inf


def _lives(entry: KeyValueEntry) -> bool:
    return _end_of(entry.value) > time.time()


def _value(entry: KeyValueEntry) -> Any:
    return pickle.loads(entry.value[_END.size :])  # noqa: S301 - see the class
