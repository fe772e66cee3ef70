"""The consumer methods of `JetStream`, for the consumers of any stream."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING

from ..api.consumer import ConsumerConfig, ConsumerInfo, ConsumerPause, ConsumerReset
from ..subjects import check_stream_name
from . import consumer_api
from .api_requests import APIRequests, resolve_config
from .consumer import PullConsumer, add_pull_consumer, pull_consumer
from .consumer_api import consumer_info
from .ordered import OrderedConsumer
from .ordered_cursor import OrderedOptions

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from ..api.config_fields import ConsumerConfigFields


class ConsumerAdmin:
    """
    The consumer methods of `JetStream`.

    Each takes the name of the stream first, which raises `InvalidNameError` if it is invalid. Otherwise it
    is as the method of `Stream` with the same name, which describes the arguments and errors.
    """

    _api: APIRequests

    def create_consumer(
        self,
        stream_name: str,
        config: ConsumerConfig | None = None,
        *,
        pedantic: bool = False,
        **fields: Unpack[ConsumerConfigFields],
    ) -> PullConsumer:
        """Create a pull consumer; see `Stream.create_consumer`."""
        chosen = resolve_config(ConsumerConfig, config, fields)
        return add_pull_consumer(self._api, stream_name, chosen, consumer_api.CREATE, pedantic)

    def update_consumer(
        self,
        stream_name: str,
        config: ConsumerConfig | None = None,
        *,
        pedantic: bool = False,
        **fields: Unpack[ConsumerConfigFields],
    ) -> PullConsumer:
        """Update an existing pull consumer; see `Stream.update_consumer`."""
        chosen = resolve_config(ConsumerConfig, config, fields)
        return add_pull_consumer(self._api, stream_name, chosen, consumer_api.UPDATE, pedantic)

    def create_or_update_consumer(
        self,
        stream_name: str,
        config: ConsumerConfig | None = None,
        *,
        pedantic: bool = False,
        **fields: Unpack[ConsumerConfigFields],
    ) -> PullConsumer:
        """Create a pull consumer, or update the one with that name; see `Stream.create_or_update_consumer`."""
        chosen = resolve_config(ConsumerConfig, config, fields)
        action = consumer_api.CREATE_OR_UPDATE
        return add_pull_consumer(self._api, stream_name, chosen, action, pedantic)

    def create_push_consumer(
        self,
        stream_name: str,
        config: ConsumerConfig | None = None,
        *,
        pedantic: bool = False,
        **fields: Unpack[ConsumerConfigFields],
    ) -> ConsumerInfo:
        """Create a push consumer; see `Stream.create_push_consumer`."""
        chosen = resolve_config(ConsumerConfig, config, fields)
        return consumer_api.add_push_consumer(
            self._api, stream_name, chosen, consumer_api.CREATE, pedantic
        )

    def update_push_consumer(
        self,
        stream_name: str,
        config: ConsumerConfig | None = None,
        *,
        pedantic: bool = False,
        **fields: Unpack[ConsumerConfigFields],
    ) -> ConsumerInfo:
        """Update a push consumer; see `Stream.update_push_consumer`."""
        chosen = resolve_config(ConsumerConfig, config, fields)
        return consumer_api.add_push_consumer(
            self._api, stream_name, chosen, consumer_api.UPDATE, pedantic
        )

    def get_consumer(self, stream_name: str, name: str) -> PullConsumer:
        """Return an existing pull consumer; see `Stream.get_consumer`."""
        return pull_consumer(self._api, stream_name, name)

    def consumer_info(self, stream_name: str, name: str) -> ConsumerInfo:
        """Return the config and state of a consumer of any kind; see `Stream.consumer_info`."""
        return consumer_info(self._api, stream_name, name)

    def delete_consumer(self, stream_name: str, name: str) -> None:
        """Delete a consumer of any kind; threads that pull from it get `ConsumerDeletedError`; see `Stream.delete_consumer`."""
        consumer_api.delete_consumer(self._api, stream_name, name)

    def consumer_names(self, stream_name: str) -> list[str]:
        """Return the names of all consumers of a stream, sorted; see `Stream.consumer_names`."""
        return consumer_api.consumer_names(self._api, stream_name)

    def list_consumers(self, stream_name: str) -> list[ConsumerInfo]:
        """Return the infos of all consumers of a stream, sorted by name; see `Stream.list_consumers`."""
        return consumer_api.list_consumers(self._api, stream_name)

    def pause_consumer(self, stream_name: str, name: str, until: datetime) -> ConsumerPause:
        """Pause a consumer until a given time; needs server 2.11; see `Stream.pause_consumer`."""
        return consumer_api.pause_consumer(self._api, stream_name, name, until)

    def resume_consumer(self, stream_name: str, name: str) -> ConsumerPause:
        """Resume a paused consumer; needs server 2.11; see `Stream.resume_consumer`."""
        return consumer_api.resume_consumer(self._api, stream_name, name)

    def reset_consumer(self, stream_name: str, name: str, seq: int | None = None) -> ConsumerReset:
        """Reset a consumer of any kind; needs server 2.14 (ADR-60); see `Stream.reset_consumer`."""
        return consumer_api.reset_consumer(self._api, stream_name, name, seq)

    def unpin_consumer(self, stream_name: str, name: str, group: str) -> None:
        """Unpin the pinned client of a priority group; needs server 2.11 (ADR-42); see `Stream.unpin_consumer`."""
        consumer_api.unpin_consumer(self._api, stream_name, name, group)

    def ordered_consumer(
        self, stream_name: str, **options: Unpack[OrderedOptions]
    ) -> OrderedConsumer:
        """
        Return an ordered consumer of a stream.

        Args:
            stream_name: the stream to read.
            **options: see `OrderedOptions`.

        Raises:
            InvalidNameError: the stream name is invalid.
            InvalidOptionError: an option is unknown or invalid.
            StreamNotFoundError, BadRequestError, TimeoutError, ConnectionClosedError: with the deliver
                policies ``new`` and ``last``, which ask the server for the position.

        """
        return OrderedConsumer(self._api, check_stream_name(stream_name), **options)
