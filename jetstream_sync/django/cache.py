"""
A cache backend on a key-value bucket.

Rules:

1. A value is stored with the time at which it ends, because a bucket has one TTL for all keys. That TTL,
   the option ``max_age``, frees the space of values that are not read again.
2. Keys are encoded: Django's have characters that keys of buckets cannot have.
3. `add`, `incr` and `touch` compare and set, so they are atomic for all processes.
"""

from __future__ import annotations

import pickle
import struct
from collections.abc import Callable, Iterable
from datetime import datetime, timedelta, timezone
from typing import Any, Final

from django.core.cache.backends.base import DEFAULT_TIMEOUT, BaseCache

from .. import (
    Base64Keys,
    BucketNotFoundError,
    Connection,
    KeyExistsError,
    KeyNotFoundError,
    KeyValue,
    KeyValueEntry,
    WrongLastRevisionError,
)
from .publishing import connection, jetstream

#: The end of a value in seconds since 1970, infinite: none, before its pickled form.
_END: Final = struct.Struct("!d")
_MISSING: Final = object()


class KeyValueCache(BaseCache):
    """
    Django's cache on a bucket of the connection of the setting ``JETSTREAM``.

    ``LOCATION`` is the bucket, which is created if it does not exist. ``OPTIONS`` may have ``max_age``, the
    TTL of the bucket in seconds (default: 30 days), and the other fields of a `KeyValueConfig`; they count
    only when it is created. Values are pickled, so the bucket must be writable by trusted programs only.
    """

    def __init__(self, bucket: str, params: dict[str, Any]) -> None:
        super().__init__(params)
        self._bucket = bucket
        config = dict(params.get("OPTIONS", {}))
        config["ttl"] = config.pop("max_age", timedelta(days=30))
        self._config = config
        self._opened: tuple[Connection, KeyValue] | None = None

    @property
    def _kv(self) -> KeyValue:
        nc = connection()
        if self._opened is None or self._opened[0] is not nc:
            js = jetstream()
            try:
                kv = js.key_value(self._bucket)
            except BucketNotFoundError:
                kv = js.create_or_update_key_value(bucket=self._bucket, **self._config)
            self._opened = nc, kv.with_codecs(key=Base64Keys())
        return self._opened[1]

    def _key(self, key: str, version: int | None) -> str:
        return str(self.make_and_validate_key(key, version=version))

    def _encoded(self, value: object, timeout: Any) -> bytes:
        end = self.get_backend_timeout(timeout)
        stored = pickle.dumps(value, pickle.HIGHEST_PROTOCOL)
        return _END.pack(float("inf") if end is None else end) + stored

    def _entry(self, key: str) -> KeyValueEntry | None:
        """Return the entry of a key whose value has not ended."""
        try:
            entry = self._kv.get(key)
        except KeyNotFoundError:
            return None
        return entry if _lives(entry) else None

    # --- single keys ----------------------------------------------------------------------------

    def add(
        self, key: str, value: Any, timeout: Any = DEFAULT_TIMEOUT, version: int | None = None
    ) -> bool:
        """Store the value of a key that has none; return whether it was stored."""
        name = self._key(key, version)
        data = self._encoded(value, timeout)
        try:
            self._kv.create(name, data)
        except KeyExistsError as error:
            try:
                entry = self._kv.get(name, error.revision)
                if _lives(entry):
                    return False
                self._kv.update(name, data, entry.revision)
            except (KeyNotFoundError, WrongLastRevisionError):
                return False  # another process has changed it meanwhile
        return True

    def get(self, key: str, default: Any = None, version: int | None = None) -> Any:
        """Return the value of a key."""
        entry = self._entry(self._key(key, version))
        return default if entry is None else _value(entry)

    def set(
        self, key: str, value: Any, timeout: Any = DEFAULT_TIMEOUT, version: int | None = None
    ) -> None:
        """Store the value of a key."""
        self._kv.put(self._key(key, version), self._encoded(value, timeout))

    def touch(self, key: str, timeout: Any = DEFAULT_TIMEOUT, version: int | None = None) -> bool:
        """Change when a value ends; return whether there is one."""
        return self._change(self._key(key, version), lambda value: value, timeout) is not _MISSING

    def delete(self, key: str, version: int | None = None) -> bool:
        """Delete a key; return whether it had a value."""
        name = self._key(key, version)
        if self._entry(name) is None:
            return False
        self._kv.purge(name)
        return True

    def incr(self, key: str, delta: int = 1, version: int | None = None) -> Any:
        """Add to a number, and return the sum; when it ends does not change."""
        value = self._change(self._key(key, version), lambda old: old + delta)
        if value is _MISSING:
            raise ValueError(f"Key '{key}' not found")
        return value

    def _change(self, name: str, change: Callable[[Any], Any], timeout: Any = _MISSING) -> Any:
        """Replace a value by a function of it, and return that; `_MISSING`: there is no value."""
        result: Any = _MISSING

        def replaced(entry: KeyValueEntry | None) -> bytes | None:
            nonlocal result
            result = _MISSING
            if entry is None or not _lives(entry):
                return None
            result = change(_value(entry))
            if timeout is not _MISSING:
                return self._encoded(result, timeout)
            return entry.value[: _END.size] + pickle.dumps(result, pickle.HIGHEST_PROTOCOL)

        self._kv.modify(name, replaced)
        return result

    # --- many keys ------------------------------------------------------------------------------

    def get_many(self, keys: Iterable[str], version: int | None = None) -> dict[str, Any]:
        """Return the values of those keys that have one, with one request."""
        names = {self._key(key, version): key for key in keys}
        if not names:
            return {}
        entries = self._kv.get_many(list(names))
        return {names[name]: _value(each) for name, each in entries.items() if _lives(each)}

    def clear(self) -> None:
        """Delete all keys of the bucket."""
        bucket = self._kv.bucket  # it exists now
        jetstream().get_stream(f"KV_{bucket}").purge()


def _lives(entry: KeyValueEntry) -> bool:
    return bool(_END.unpack_from(entry.value)[0] > datetime.now(timezone.utc).timestamp())


def _value(entry: KeyValueEntry) -> Any:
    return pickle.loads(entry.value[_END.size :])  # noqa: S301 - see the class
