"""The methods of `JetStream` that manage key-value buckets and object stores."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from ... import errors
from ...api.key_value import (
    KeyValueConfig,
    KeyValueStatus,
    bucket_of,
    is_bucket,
    new_stream_config,
    updated_stream_config,
)
from ...api.object_store import (
    BUCKETS_SUBJECT,
    ObjectStoreConfig,
    ObjectStoreStatus,
    infos_subject,
    is_object_store,
    status_of,
    stream_config,
    stream_name,
    update_config,
)
from ...api.stream import StreamConfig, StreamInfo
from ...records import shows_fields
from ...subjects import KV_PREFIX, OBJECT_PREFIX, check_bucket
from ..api_requests import resolve_config, stream_info, stream_infos, with_one_deadline
from ..listing import Listing, selected
from ..publish import Publisher
from ..server_support import require_level
from ..stream import Stream
from ..stream_admin import StreamAdmin
from .key_value import KeyValue, bucket_not_found
from .object_bucket import object_store_not_found
from .object_store import ObjectStore

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from ...api.config_fields import KeyValueConfigFields, ObjectStoreConfigFields


T = TypeVar("T")


class BucketAdmin(StreamAdmin):
    """The methods of `JetStream` that manage key-value buckets and object stores."""

    _publisher: Publisher

    def _new_bucket(self, what: str, wanted: StreamConfig) -> Stream:
        """Create the stream of a bucket; name the fields that differ if it exists."""
        try:
            return self.create_stream(wanted)
        except errors.StreamNameInUseError as error:
            fields = (
                f", which differs in {', '.join(error.differences)}" if error.differences else ""
            )
            text = f"{what} exists with a different config{fields}"
            found = errors.BucketExistsError(error.code, error.err_code, text)
            found.differences = error.differences
            raise found from error

    # --- key-value buckets ----------------------------------------------------------------------

    @with_one_deadline
    @shows_fields((KeyValueConfig, ()))
    def create_key_value(
        self, config: KeyValueConfig | None = None, **fields: Unpack[KeyValueConfigFields]
    ) -> KeyValue:
        """
        Create a key-value bucket.

        One that exists with the same config is returned unchanged.

        Args:
            config: the config; or
            **fields: the fields of a `KeyValueConfig`, by name.

        Raises:
            BucketExistsError: it exists with a different config; the error names the fields.
            InvalidNameError: the name of the bucket is invalid.
            InvalidOptionError: config and fields are both given, or a value is invalid.
            ServerTooOldError: the server is too old for some of the fields; no bucket was created, or it
                was deleted again.
            Error: otherwise as `account_info()`.

        """
        chosen = resolve_config(KeyValueConfig, config, fields)
        self._check_markers(chosen)
        stream = self._new_bucket(f"bucket {chosen.bucket!r}", new_stream_config(chosen))
        return KeyValue(self._api, self._publisher, stream)

    @with_one_deadline
    def update_key_value(
        self, config: KeyValueConfig | None = None, **fields: Unpack[KeyValueConfigFields]
    ) -> KeyValue:
        """
        Update the config of a key-value bucket.

        Fields that are not set keep their value. The entries are kept, apart from those that a lower limit
        removes. The config is read and then replaced, which the server cannot do in one step: only one program at a
        time may update a bucket, or it may undo the change of another one.

        Args:
            config: the config; or
            **fields: the fields of a `KeyValueConfig`, by name.

        Raises:
            BucketNotFoundError: the bucket does not exist.
            InvalidOptionError: config and fields are both given, or a value is invalid.
            ServerTooOldError: the server is too old for some of the fields.
            APIError: the server returned an error; some fields cannot be changed.
            JetStreamNotEnabledError, TimeoutError, ConnectionClosedError: as `account_info()`.

        """
        chosen = resolve_config(KeyValueConfig, config, fields)
        current = self._bucket_info(chosen.bucket).config
        self._check_markers(chosen)
        with _missing_as(bucket_not_found(chosen.bucket)):
            stream = self.update_stream(updated_stream_config(current, chosen))
        return KeyValue(self._api, self._publisher, stream)

    @with_one_deadline
    def create_or_update_key_value(
        self, config: KeyValueConfig | None = None, **fields: Unpack[KeyValueConfigFields]
    ) -> KeyValue:
        """
        Update a key-value bucket, or create it if it does not exist.

        Args:
            config: the config; or
            **fields: the fields of a `KeyValueConfig`, by name.

        Raises:
            BucketExistsError: another client created it with a different config at the same time.
            Error: otherwise as `update_key_value()`.

        """
        chosen = resolve_config(KeyValueConfig, config, fields)
        try:
            return self.update_key_value(chosen)
        except errors.BucketNotFoundError:
            return self.create_key_value(chosen)

    def _check_markers(self, config: KeyValueConfig) -> None:
        if config.limit_marker_ttl:
            require_level(self._api, 1, "limit_marker_ttl")

    def _bucket_info(self, bucket: str) -> StreamInfo:
        bucket = check_bucket(bucket)
        with _missing_as(bucket_not_found(bucket)):
            info = stream_info(self._api, KV_PREFIX + bucket)
        if not is_bucket(info.config):
            name = info.config.name
            text = f"stream {name!r} is not a key-value bucket: it has no subjects '$KV.<bucket>.>'"
            raise errors.BucketNotFoundError.found_here(text)
        return info

    @with_one_deadline
    def key_value(self, bucket: str, *, validate_keys: bool = True) -> KeyValue:
        """
        Return an existing key-value bucket.

        Args:
            bucket: the name of the bucket.
            validate_keys: whether keys are limited to the characters of ADR-8; false for a bucket that
                other programs fill with other keys, which only have to be valid subjects then.

        Raises:
            BucketNotFoundError: the bucket does not exist, or the stream of this name is not a bucket.
            InvalidNameError: the name is invalid.
            Error: otherwise as `account_info()`.

        """
        stream = Stream(self._api, self._bucket_info(bucket))
        return KeyValue(self._api, self._publisher, stream, loose=not validate_keys)

    @with_one_deadline
    def delete_key_value(self, bucket: str) -> None:
        """
        Delete a key-value bucket with all its entries.

        Raises:
            BucketNotFoundError: the bucket does not exist.
            Error: otherwise as `key_value()`.

        """
        bucket = check_bucket(bucket)
        stream = KV_PREFIX + bucket
        self._delete_bucket(stream, partial(self._bucket_info, bucket), bucket_not_found(bucket))

    def _delete_bucket(
        self, stream: str, check: Callable[[], object], missing: errors.BucketNotFoundError
    ) -> None:
        """Delete the stream of a bucket, unless ``check`` raises because it is a stream of another program."""
        try:
            check()
        except errors.PermissionsError:
            pass
        except errors.APIError as error:
            # A stream whose servers are lost can be deleted, and has no info.
            if error.err_code != errors.ErrorCode.STREAM_OFFLINE:
                raise
        with _missing_as(missing):
            self._api.command(self._api.routes.to("STREAM.DELETE", stream))

    def key_value_names(self, *, allow_incomplete: bool = False) -> Listing[str]:
        """
        Return the names of the account's key-value buckets, sorted, also of mirrors.

        Args:
            allow_incomplete: as for `list_streams()`.

        Raises:
            Error: as `list_streams()`.

        """
        return self._buckets(lambda info: bucket_of(info.config.name), allow_incomplete)

    def list_key_values(self, *, allow_incomplete: bool = False) -> Listing[KeyValueStatus]:
        """
        Return the configuration and state of the account's key-value buckets, sorted by name.

        Args:
            allow_incomplete: as for `list_streams()`.

        Raises:
            Error: as `list_streams()`.

        """
        return self._buckets(KeyValueStatus, allow_incomplete)

    def _buckets(self, make: Callable[[StreamInfo], T], allow_incomplete: bool) -> Listing[T]:
        # Not by subject: a mirror has none.
        infos = stream_infos(self._api, allow_incomplete=allow_incomplete)
        return selected(
            infos,
            "key-value buckets",
            KV_PREFIX,
            lambda info: make(info) if is_bucket(info.config) else None,
        )

    # --- object stores --------------------------------------------------------------------------

    @with_one_deadline
    @shows_fields((ObjectStoreConfig, ()))
    def create_object_store(
        self, config: ObjectStoreConfig | None = None, **fields: Unpack[ObjectStoreConfigFields]
    ) -> ObjectStore:
        """
        Create an object store.

        One that exists with the same config is returned unchanged.

        Args:
            config: the config; or
            **fields: the fields of an `ObjectStoreConfig`, by name.

        Raises:
            BucketExistsError: it exists with a different config; the error names the fields.
            InvalidNameError: the bucket name is invalid.
            InvalidOptionError: config and fields are both given, or a value is invalid.
            ServerTooOldError: the server does not know some of the fields, which the error names. A
                bucket that this call created is deleted.
            Error: otherwise as `account_info()`.

        """
        chosen = resolve_config(ObjectStoreConfig, config, fields)
        self._new_bucket(f"object store {chosen.bucket!r}", stream_config(chosen))
        return self._object_store(chosen.bucket)

    @with_one_deadline
    def update_object_store(
        self, config: ObjectStoreConfig | None = None, **fields: Unpack[ObjectStoreConfigFields]
    ) -> ObjectStore:
        """
        Update the config of an object store.

        Fields that are not set keep their value; the storage cannot be changed. Only one program at a time may
        update a store, as in `update_key_value()`.

        Args:
            config: the config; or
            **fields: the fields of an `ObjectStoreConfig`, by name.

        Raises:
            BucketNotFoundError: it does not exist.
            InvalidNameError, InvalidOptionError: as `create_object_store()`.
            ServerTooOldError: the server does not know some of the fields.
            Error: otherwise as `account_info()`.

        """
        chosen = resolve_config(ObjectStoreConfig, config, fields)
        current = self._object_store_info(chosen.bucket).config
        with _missing_as(object_store_not_found(chosen.bucket)):
            self.update_stream(update_config(current, chosen))
        return self._object_store(chosen.bucket)

    @with_one_deadline
    def create_or_update_object_store(
        self, config: ObjectStoreConfig | None = None, **fields: Unpack[ObjectStoreConfigFields]
    ) -> ObjectStore:
        """
        Update an object store, or create it if it does not exist.

        Args:
            config: the config; or
            **fields: the fields of an `ObjectStoreConfig`, by name.

        Raises:
            BucketExistsError: another client created it with a different config at the same time.
            Error: otherwise as `update_object_store()`.

        """
        chosen = resolve_config(ObjectStoreConfig, config, fields)
        try:
            return self.update_object_store(chosen)
        except errors.BucketNotFoundError:
            return self.create_object_store(chosen)

    def object_store(self, bucket: str) -> ObjectStore:
        """
        Return an existing object store.

        Raises:
            BucketNotFoundError: it does not exist, or the stream of this name is not an object store.
            InvalidNameError: the name is invalid.
            Error: otherwise as `account_info()`.

        """
        bucket = check_bucket(bucket)
        self._object_store_info(bucket)
        return self._object_store(bucket)

    def _object_store_info(self, bucket: str) -> StreamInfo:
        bucket = check_bucket(bucket)
        with _missing_as(object_store_not_found(bucket)):
            info = stream_info(self._api, stream_name(bucket))
        if not is_object_store(info.config):
            name = info.config.name
            text = f"stream {name!r} is not an object store: it has no subjects {infos_subject(bucket)!r}"
            raise errors.BucketNotFoundError.found_here(text)
        return info

    @with_one_deadline
    def delete_object_store(self, bucket: str) -> None:
        """
        Delete an object store with all its objects.

        Raises:
            Error: as `object_store()`.

        """
        bucket = check_bucket(bucket)
        stream = stream_name(bucket)
        check = partial(self._object_store_info, bucket)
        self._delete_bucket(stream, check, object_store_not_found(bucket))

    def object_store_names(self) -> list[str]:
        """
        Return the names of the account's object stores, sorted.

        Raises:
            Error: as `stream_names()`.

        """
        route = self._api.routes.to("STREAM.NAMES")
        names = self._api.names(route, "streams", {"subject": BUCKETS_SUBJECT})
        return sorted(
            name.removeprefix(OBJECT_PREFIX) for name in names if name.startswith(OBJECT_PREFIX)
        )

    def list_object_stores(self, *, allow_incomplete: bool = False) -> Listing[ObjectStoreStatus]:
        """
        Return the configs and states of the account's object stores, sorted by name.

        Args:
            allow_incomplete: as for `list_streams()`.

        Raises:
            Error: as `list_streams()`.

        """
        body = {"subject": BUCKETS_SUBJECT}
        infos = stream_infos(self._api, body, allow_incomplete=allow_incomplete)
        return selected(
            infos,
            "object stores",
            OBJECT_PREFIX,
            lambda info: status_of(info) if info.config.name.startswith(OBJECT_PREFIX) else None,
        )

    def _object_store(self, bucket: str) -> ObjectStore:
        return ObjectStore(self._api, self._publisher, bucket)


@contextmanager
def _missing_as(missing: errors.BucketNotFoundError) -> Iterator[None]:
    """Turn the error for a missing stream into the one for a missing bucket."""
    try:
        yield
    except errors.StreamNotFoundError as error:
        raise missing from error
