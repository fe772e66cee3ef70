"""The part of `JetStream` that makes, finds, changes and deletes the consumers of any stream."""

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

__all__ = ["ConsumerAdmin"]


class ConsumerAdmin:
    """What `JetStream` does with consumers; `Stream` does the same with those of one stream."""

    _api: APIRequests

    def create_consumer(
        self,
        stream_name: str,
        config: ConsumerConfig | None = None,
        *,
        pedantic: bool = False,
        **fields: Unpack[ConsumerConfigFields],
    ) -> PullConsumer:
        """
        Create a pull consumer.

        One that exists with the same config is returned unchanged. Without ``durable_name`` it is
        ephemeral; without any name it gets a random one.

        Args:
            stream_name: the stream to read.
            config: the config; or
            **fields: the fields of a `ConsumerConfig`, by name.
            pedantic: whether the server rejects a config with `BadRequestError` instead of silently
                completing or correcting it; needs server 2.11.

        Raises:
            ConsumerExistsError: it exists with a different config.
            StreamNotFoundError: there is no such stream.
            InvalidNameError: the stream name is invalid.
            Error: otherwise as `Stream.create_consumer`.

        """
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
        """
        Change a consumer that exists.

        Args:
            stream_name: the name of the stream.
            config: what it is to be, with its name; or
            **fields: the fields of a `ConsumerConfig`, by name.
            pedantic: whether the server rejects a config with `BadRequestError` instead of silently
                completing or correcting it; needs server 2.11.

        Raises:
            ConsumerDoesNotExistError: there is no consumer of that name.
            StreamNotFoundError: there is no such stream.
            InvalidNameError: the stream name is invalid.
            Error: otherwise as `Stream.update_consumer`.

        """
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
        """
        Make a consumer to pull from, or change the one of that name.

        Args:
            stream_name: the name of the stream.
            config: the config; or
            **fields: the fields of a `ConsumerConfig`, by name.
            pedantic: whether the server rejects a config with `BadRequestError` instead of silently
                completing or correcting it; needs server 2.11.

        Raises:
            StreamNotFoundError: there is no such stream.
            InvalidNameError: the stream name is invalid.
            Error: otherwise as `Stream.create_or_update_consumer`.

        """
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
        """
        Make a consumer that delivers to a subject.

        One that exists with the same config is returned unchanged. Receive its messages with
        `subscribe_bind()`. Without ``durable_name`` the server deletes it when its subject has no subscriber.

        Args:
            stream_name: the stream to read.
            config: what it is to be, with its ``deliver_subject``; or
            **fields: the fields of a `ConsumerConfig`, by name.
            pedantic: whether the server rejects a config with `BadRequestError` instead of silently
                completing or correcting it; needs server 2.11.

        Raises:
            ConsumerExistsError: it exists with a different config.
            StreamNotFoundError: there is no such stream.
            InvalidNameError: the stream name is invalid.
            Error: otherwise as `Stream.create_push_consumer`.

        """
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
        """
        Change a consumer that delivers to a subject, also to which.

        Args:
            stream_name: the name of the stream.
            config: what it is to be, with its name and ``deliver_subject``; or
            **fields: the fields of a `ConsumerConfig`, by name.
            pedantic: whether the server rejects a config with `BadRequestError` instead of silently
                completing or correcting it; needs server 2.11.

        Raises:
            ConsumerDoesNotExistError: there is no consumer of that name.
            StreamNotFoundError: there is no such stream.
            InvalidNameError: the stream name is invalid.
            Error: otherwise as `Stream.create_push_consumer`.

        """
        chosen = resolve_config(ConsumerConfig, config, fields)
        return consumer_api.add_push_consumer(
            self._api, stream_name, chosen, consumer_api.UPDATE, pedantic
        )

    def get_consumer(self, stream_name: str, name: str) -> PullConsumer:
        """
        Return a consumer that exists.

        Raises:
            ConsumerNotFoundError: there is none of that name.
            StreamNotFoundError: there is no such stream.
            ConsumerIsPushBasedError: it delivers to a subject and cannot be pulled from.
            InvalidNameError: the stream name or the consumer name is invalid.
            APIError: the server returned an error.
            JetStreamNotEnabledError, TimeoutError, ConnectionClosedError: as `account_info()`.

        """
        return pull_consumer(self._api, stream_name, name)

    def consumer_info(self, stream_name: str, name: str) -> ConsumerInfo:
        """
        Return the config and state of a consumer of any kind.

        Raises:
            Error: as `get_consumer()`, but push consumers are fine.

        """
        return consumer_info(self._api, stream_name, name)

    def delete_consumer(self, stream_name: str, name: str) -> None:
        """
        Delete a consumer of any kind; threads that pull from it get `ConsumerDeletedError`.

        Raises:
            Error: as `get_consumer()`, but push consumers are fine.

        """
        consumer_api.delete_consumer(self._api, stream_name, name)

    def consumer_names(self, stream_name: str) -> list[str]:
        """
        Return the names of a stream's consumers, sorted, of any kind.

        Raises:
            StreamNotFoundError: there is no such stream.
            InvalidNameError: the stream name is invalid.
            Error: otherwise as `Stream.consumer_names`.

        """
        return consumer_api.consumer_names(self._api, stream_name)

    def list_consumers(self, stream_name: str) -> list[ConsumerInfo]:
        """
        Return the infos of a stream's consumers, sorted by name, of any kind.

        Raises:
            StreamNotFoundError: there is no such stream.
            InvalidNameError: the stream name is invalid.
            Error: otherwise as `Stream.list_consumers`.

        """
        return consumer_api.list_consumers(self._api, stream_name)

    def pause_consumer(self, stream_name: str, name: str, until: datetime) -> ConsumerPause:
        """
        Pause a consumer until a given time; needs server 2.11.

        Args:
            stream_name: the name of the stream.
            name: the name of the consumer.
            until: the end of the pause, with a time zone. A time in the past resumes it.

        Raises:
            InvalidOptionError: the time has no time zone.
            ServerTooOldError: the server is older than 2.11; nothing was done.
            Error: otherwise as `delete_consumer()`.

        """
        return consumer_api.pause_consumer(self._api, stream_name, name, until)

    def resume_consumer(self, stream_name: str, name: str) -> ConsumerPause:
        """
        Resume a paused consumer; a consumer that is not paused is left unchanged. Needs server 2.11.

        Raises:
            ServerTooOldError: the server is older than 2.11; nothing was done.
            Error: otherwise as `delete_consumer()`.

        """
        return consumer_api.resume_consumer(self._api, stream_name, name)

    def reset_consumer(self, stream_name: str, name: str, seq: int | None = None) -> ConsumerReset:
        """
        Reset a consumer of any kind; needs server 2.14 (ADR-60).

        Afterwards nothing is pending or redelivered, deliveries count from 1 again, and what was
        delivered and not acknowledged is delivered again. Pulls from it continue.

        Args:
            stream_name: the name of the stream.
            name: the name of the consumer.
            seq: the stream sequence to continue at, at least 1; ``None``: after the ack floor. Only a consumer that delivers all, or from a sequence or time on, can
                be given one, and none before the start that its config says.

        Returns:
            The consumer in its new state, with the sequence at which it continues.

        Raises:
            ConsumerInvalidResetError: its config does not allow that sequence.
            ServerTooOldError: its server is older than 2.14; nothing was done.
            InvalidOptionError: the sequence is out of range.
            Error: otherwise as `delete_consumer()`.

        """
        return consumer_api.reset_consumer(self._api, stream_name, name, seq)

    def unpin_consumer(self, stream_name: str, name: str, group: str) -> None:
        """
        Unpin the pinned client of a priority group; needs server 2.11 (ADR-42).

        If none is pinned, nothing happens. The client that was pinned gets `PinIDMismatchError`, or pulls
        again by itself in `PullConsumer.messages` and the like.

        Args:
            stream_name: the name of the stream.
            name: the name of the consumer.
            group: one of its ``priority_groups``.

        Raises:
            BadRequestError: the consumer has no such group.
            ServerTooOldError: its server is older than 2.11; nothing was done.
            Error: otherwise as `delete_consumer()`.

        """
        consumer_api.unpin_consumer(self._api, stream_name, name, group)

    def ordered_consumer(
        self, stream_name: str, **options: Unpack[OrderedOptions]
    ) -> OrderedConsumer:
        """
        Return a reader that gets every message once and in order, without acknowledgements.

        Args:
            stream_name: the stream to read.
            **options: see `OrderedOptions`.

        Raises:
            InvalidNameError: the stream name is invalid.
            InvalidOptionError: an option is unknown or invalid.

        """
        return OrderedConsumer(self._api, check_stream_name(stream_name), **options)
