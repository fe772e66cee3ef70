"""The methods of `JetStream` that manage object stores."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from ..api.object_store import (
    BUCKETS_SUBJECT,
    STREAM_PREFIX,
    ObjectStoreConfig,
    ObjectStoreStatus,
    check_bucket,
    status_of,
    stream_config,
    stream_name,
    update_config,
)
from ..api.stream import StreamConfig, StreamInfo
from ..codec import decode
from ..errors import (
    BucketNotFoundError,
    StreamNameInUseError,
    StreamNotFoundError,
)
from .api_requests import APIRequests, bucket_exists, resolve_config, stream_info
from .object_store import ObjectStore
from .publish import Publisher

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from ..api.config_fields import ObjectStoreConfigFields
    from .stream import Stream


class ObjectStoreAdmin:
    """The methods of `JetStream` that manage object stores."""

    _api: APIRequests
    _publisher: Publisher

    if TYPE_CHECKING:

        def _create(self, config: StreamConfig, pedantic: bool) -> Stream: ...
        def _update(self, config: StreamConfig, pedantic: bool) -> Stream: ...

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
            APIError: the server returned an error.
            JetStreamNotEnabledError, TimeoutError, ConnectionClosedError: as `account_info()`.

        """
        chosen = resolve_config(ObjectStoreConfig, config, fields)
        wanted = stream_config(chosen)
        try:
            self._create(wanted, pedantic=False)
        except StreamNameInUseError as error:
            raise bucket_exists(
                self._api, wanted, f"object store {chosen.bucket!r}", error
            ) from error
        return self._object_store(chosen.bucket)

    def update_object_store(
        self, config: ObjectStoreConfig | None = None, **fields: Unpack[ObjectStoreConfigFields]
    ) -> ObjectStore:
        """
        Update the config of an object store.

        Fields that are not set keep their value; the storage cannot be changed.

        Args:
            config: the config; or
            **fields: the fields of an `ObjectStoreConfig`, by name.

        Raises:
            BucketNotFoundError: it does not exist.
            InvalidNameError, InvalidOptionError: as `create_object_store()`.
            ServerTooOldError: the server does not know some of the fields.
            APIError: the server returned an error.
            JetStreamNotEnabledError, TimeoutError, ConnectionClosedError: as `account_info()`.

        """
        chosen = resolve_config(ObjectStoreConfig, config, fields)
        with _bucket_errors(chosen.bucket):
            current = stream_info(self._api, stream_name(chosen.bucket)).config
            self._update(update_config(current, chosen), pedantic=False)
        return self._object_store(chosen.bucket)

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
        except BucketNotFoundError:
            return self.create_object_store(chosen)

    def object_store(self, bucket: str) -> ObjectStore:
        """
        Return an existing object store.

        Raises:
            BucketNotFoundError: it does not exist.
            InvalidNameError: the name is invalid.
            APIError: the server returned an error.
            JetStreamNotEnabledError, TimeoutError, ConnectionClosedError: as `account_info()`.

        """
        check_bucket(bucket)
        with _bucket_errors(bucket):
            stream_info(self._api, stream_name(bucket))
        return self._object_store(bucket)

    def delete_object_store(self, bucket: str) -> None:
        """
        Delete an object store with all its objects.

        Raises:
            Error: as `object_store()`.

        """
        check_bucket(bucket)
        with _bucket_errors(bucket):
            self._api.command(self._api.routes.stream_delete(stream_name(bucket)))

    def object_store_names(self) -> list[str]:
        """
        Return the names of the account's object stores, sorted.

        Raises:
            APIError: the server returned an error.
            JetStreamNotEnabledError, TimeoutError, ConnectionClosedError: as `account_info()`.

        """
        route = self._api.routes.stream_names()
        names = self._api.names(route, "streams", {"subject": BUCKETS_SUBJECT})
        return sorted(
            name.removeprefix(STREAM_PREFIX) for name in names if name.startswith(STREAM_PREFIX)
        )

    def list_object_stores(self) -> list[ObjectStoreStatus]:
        """
        Return the configs and states of the account's object stores, sorted by name.

        In a cluster, those whose servers do not answer are left out.

        Raises:
            Error: as `object_store_names()`.

        """
        route = self._api.routes.stream_list()
        found: list[ObjectStoreStatus] = []
        for page in self._api.pages(route, "streams", {"subject": BUCKETS_SUBJECT}):
            infos: list[Any] = [decode(StreamInfo, item) for item in page]
            found += [
                status_of(info) for info in infos if info.config.name.startswith(STREAM_PREFIX)
            ]
        return sorted(found, key=lambda each: each.bucket)

    def _object_store(self, bucket: str) -> ObjectStore:
        return ObjectStore(self._api, self._publisher, bucket)


@contextmanager
def _bucket_errors(bucket: str) -> Iterator[None]:
    """Turn the error for a missing stream into the one for a missing bucket."""
    try:
        yield
    except StreamNotFoundError as error:
        text = f"object store {bucket!r} does not exist"
        raise BucketNotFoundError(error.code, error.err_code, text) from error
