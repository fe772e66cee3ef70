"""The methods of `JetStream` that manage key-value buckets."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..api.key_value import (
    STREAM_PREFIX,
    KeyValueConfig,
    KeyValueStatus,
    bucket_of,
    check_bucket,
    is_bucket,
    new_stream_config,
    updated_stream_config,
)
from ..api.stream import StreamConfig, StreamInfo
from ..codec import decode
from ..errors import (
    BucketNotFoundError,
    StreamNameInUseError,
    StreamNotFoundError,
)
from .api_requests import (
    APIRequests,
    bucket_exists,
    require_level,
    resolve_config,
    stream_info,
)
from .key_value import KeyValue, bucket_not_found
from .publish import Publisher
from .stream import Stream

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from ..api.config_fields import KeyValueConfigFields


class KeyValueAdmin:
    """The methods of `JetStream` that manage key-value buckets."""

    _api: APIRequests
    _publisher: Publisher

    if TYPE_CHECKING:

        def _create(self, config: StreamConfig, pedantic: bool) -> Stream: ...
        def _update(self, config: StreamConfig, pedantic: bool) -> Stream: ...

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
            APIError: the server returned an error.
            JetStreamNotEnabledError, TimeoutError, ConnectionClosedError: as `account_info()`.

        """
        return self._create_bucket(resolve_config(KeyValueConfig, config, fields))

    def update_key_value(
        self, config: KeyValueConfig | None = None, **fields: Unpack[KeyValueConfigFields]
    ) -> KeyValue:
        """
        Update the config of a key-value bucket.

        Fields that are not set keep their value. The entries are kept, apart from those that a lower limit
        removes.

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
        return self._update_bucket(resolve_config(KeyValueConfig, config, fields))

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
            return self._update_bucket(chosen)
        except BucketNotFoundError:
            return self._create_bucket(chosen)

    def _create_bucket(self, config: KeyValueConfig) -> KeyValue:
        self._check_markers(config)
        wanted = new_stream_config(config)
        try:
            stream = self._create(wanted, pedantic=False)
        except StreamNameInUseError as error:
            raise bucket_exists(self._api, wanted, f"bucket {config.bucket!r}", error) from error
        return KeyValue(self._api, self._publisher, stream)

    def _update_bucket(self, config: KeyValueConfig) -> KeyValue:
        current = self._bucket_info(config.bucket).config
        self._check_markers(config)
        stream = self._update(updated_stream_config(current, config), pedantic=False)
        return KeyValue(self._api, self._publisher, stream)

    def _check_markers(self, config: KeyValueConfig) -> None:
        if config.limit_marker_ttl:
            require_level(self._api, 1, "limit_marker_ttl")

    def _bucket_info(self, bucket: str) -> StreamInfo:
        try:
            info = stream_info(self._api, STREAM_PREFIX + check_bucket(bucket))
        except StreamNotFoundError as error:
            raise bucket_not_found(bucket) from error
        if not is_bucket(info.config):
            name = info.config.name
            text = f"stream {name!r} is not a key-value bucket: it has no subjects '$KV.<bucket>.>'"
            raise BucketNotFoundError(404, 10059, text)
        return info

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
            APIError: the server returned an error.
            JetStreamNotEnabledError, TimeoutError, ConnectionClosedError: as `account_info()`.

        """
        stream = Stream(self._api, self._bucket_info(bucket))
        return KeyValue(self._api, self._publisher, stream, loose=not validate_keys)

    def delete_key_value(self, bucket: str) -> None:
        """
        Delete a key-value bucket with all its entries.

        Raises:
            BucketNotFoundError: the bucket does not exist.
            Error: otherwise as `key_value()`.

        """
        name = STREAM_PREFIX + check_bucket(bucket)
        try:
            self._api.command(self._api.routes.stream_delete(name))
        except StreamNotFoundError as error:
            raise bucket_not_found(bucket) from error

    def key_value_names(self) -> list[str]:
        """
        Return the names of the account's key-value buckets, sorted, also of mirrors.

        Raises:
            Error: as `list_streams()`.

        """
        return [bucket_of(info.config.name) for info in self._bucket_infos()]

    def list_key_values(self) -> list[KeyValueStatus]:
        """
        Return the configuration and state of the account's key-value buckets, sorted by name.

        Raises:
            Error: as `list_streams()`.

        """
        return [KeyValueStatus(info) for info in self._bucket_infos()]

    def _bucket_infos(self) -> list[StreamInfo]:
        # Not by subject: a mirror has none.
        pages = self._api.pages(self._api.routes.stream_list(), "streams")
        infos = [decode(StreamInfo, item) for page in pages for item in page]
        return [info for info in infos if is_bucket(info.config)]
